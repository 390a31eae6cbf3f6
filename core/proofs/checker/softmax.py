"""Gaussian noise whose largest cost and largest variance are replaced by soft maxima.

With the workload W, neighbours U, costs and variances of ``noise``, targets c > 0, two numbers t1, t2 > 0 and w ≥ 0,
asked is the least of ``(1/t1) log Σ_i exp(t1 cost_i) + (1/t2) log Σ_j exp(t2 var_j / c_j) + w Σ_j var_j``.

Upper bound. A strategy with its inverse, as there; exponentials and logarithms of decimals are correctly rounded, and
are moved one step up.

Lower bound. For shares λ_i that sum to 1, with entropy ``H(λ) = - Σ λ_i log λ_i``, the soft maximum of x is at least
``Σ λ_i x_i + H(λ) / t``, since the relative entropy of λ to the shares in proportion to ``exp(t x_i)`` is not
negative. So with shares μ of queries the objective is at least ``Σ λ_i cost_i + Σ_j (μ_j / c_j + w) var_j + H(λ) / t1
+ H(μ) / t2``, and of the first two sums, x and y, ``x + y ≥ 2 √(x y)``: with ``p_j² ≤ μ_j / c_j + w`` and λ in
proportion to q², at least twice the trace norm of ``diag(p) W U diag(q) / |q|``.
"""

from __future__ import annotations

from fractions import Fraction

from .exact import exp_above, expect, log_above, log_below, root_below
from .given import Given
from .noise import at_most, moved, sides, stated, trace_norm


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show."""
    workload, neighbours = stated(problem)
    targets = problem.vector("targets", workload.shape[0])
    t1, t2, weight = (problem.number(name) for name in ("t1", "t2", "total_weight"))
    expect(
        min(*targets, t1, t2) > 0 and weight >= 0,
        "targets and t1, t2 must be positive, and total_weight not negative",
    )
    costs, variances = sides(upper, workload, neighbours)
    ratios = [v / c for v, c in zip(variances, targets, strict=True)]
    most = soft_max_above(costs, t1) + soft_max_above(ratios, t2) + weight * sum(variances)
    changed = moved(workload, neighbours)
    p, norm = trace_norm(lower, changed)
    q = lower.vector("neighbour_roots", changed.shape[1])
    mu = lower.nonnegative("query_weights", len(p))
    total = sum(mu)
    at_most([root * root for root in p], [m / (total * c) + weight for m, c in zip(mu, targets, strict=True)])
    least = 2 * root_below(norm) + entropy_below([root * root for root in q]) / t1 + entropy_below(mu) / t2
    return least, most


def soft_max_above(values: list[Fraction], sharpness: Fraction) -> Fraction:
    """Return a number that is at least ``(1/t) log Σ exp(t x_i)``."""
    largest = max(values)
    powers = (exp_above(sharpness * (each - largest)) for each in values)
    return largest + log_above(sum(powers, Fraction(0))) / sharpness


def entropy_below(weights: list[Fraction]) -> Fraction:
    """Return a number that is at most the entropy of weights, none negative, over their sum."""
    total = sum(weights, Fraction(0))
    return log_below(total) - sum(each * log_above(each) for each in weights if each) / total
