"""Non-negative estimates: the possible data whose answers are nearest to given ones.

There are a workload W (p, n), answers a, and the total N of the data or none. Asked is the least of ``½ |W x - a|²``
over x ≥ 0, with ``Σ x_u = N`` if it is known.

Upper bound. Any x ≥ 0, brought to the total.

Lower bound. For any v, by Cauchy's inequality, ``|v| |W x - a| ≥ vᵀW x - vᵀa``. Without a total, ``Wᵀv ≥ 0`` is
required, and the first product is at least 0; with one, it is at least N times the least entry of ``Wᵀv``. Where the
right side is positive, its square over ``2 |v|²`` is the bound.
"""

from __future__ import annotations

from fractions import Fraction

from .exact import expect
from .given import Given


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that an estimate and a residual of a file show."""
    workload = problem.matrix("workload").numbers()
    queries, cells = len(workload), len(workload[0])
    answers = problem.vector("answers", queries)
    total = None if problem.get("total") is None else problem.number("total")
    expect(total is None or total >= 0, "the total must not be negative")
    x = upper.vector("estimate", cells)
    expect(min(x) >= 0, "the estimate must not be negative")
    if total is not None:
        expect(sum(x) > 0, "the estimate must not be all 0")
        x = [each * total / sum(x) for each in x]
    left = [product(row, x) - own for row, own in zip(workload, answers, strict=True)]
    v = lower.vector("residual", queries)
    slopes = [product(v, list(column)) for column in zip(*workload, strict=True)]
    expect(total is not None or min(slopes) >= 0, "no slope of the residual may be negative")
    least = (total or 0) * min(slopes) - product(v, answers)
    return max(least, Fraction(0)) ** 2 / (2 * (product(v, v) or 1)), product(left, left) / 2


def product(one: list[Fraction], two: list[Fraction]) -> Fraction:
    """Return the sum of products of entries."""
    return sum((a * b for a, b in zip(one, two, strict=True) if a and b), Fraction(0))
