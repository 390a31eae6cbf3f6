"""Gaussian noise: a workload with variance targets, or with weights on the variances.

There is a workload W (m, d), a query a row; neighbours U (d, s), differences of neighbouring data sets a column, or
none, which is the identity; and numbers c, one per query. Noise on the data gives query j the variance var_j, and
costs neighbours u some squared privacy cost; let ``cost`` be the largest of these. Asked is the least of ``cost ·
max_j var_j / c_j`` (targets c > 0), or of ``cost · Σ_j c_j var_j`` (weights c ≥ 0), over a number ``allowed``.

Upper bound. Measure A x with independent noise of variance 1, A square (d, d). Neighbours u cost ``|A u|²``, and if A
is invertible, query w has the variance ``|A⁻ᵀ w|²``. Given Z, let ``E = A Z - I``. If ``|E| < 1`` (Frobenius), A is
invertible, ``A⁻ᵀ w = (I + E)⁻ᵀ Zᵀ w``, and so ``var_j ≤ |w_j Z|² / (1 - |E|)²``.

Lower bound. Given p and q, for any noise ``Σ_i q_i² cost_i ≤ cost Σ_i q_i²``, and by Cauchy's inequality the left
side times ``Σ_j p_j² var_j`` is at least the square of the trace norm of ``N = diag(p) W U diag(q)``. The trace norm
is at least ``⟨N, Q⟩ / |Q|`` for any matrix Q, and the square of its largest singular value ``|Q|`` is at most the
largest absolute row sum of ``QᵀQ``, or of ``QQᵀ``. With targets ``Σ_j p_j² var_j ≤ max_j (var_j / c_j) Σ_j p_j²
c_j``; with weights ``p_j² ≤ c_j`` is required.
"""

from __future__ import annotations

from fractions import Fraction

from .exact import Matrix, departed, expect, power
from .given import Given


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show."""
    workload, neighbours = stated(problem)
    kind, numbers, allowed = (
        problem.get("kind"),
        problem.vector("numbers", workload.shape[0]),
        problem.number("allowed"),
    )
    positive = min(numbers) > 0 if kind == "targets" else min(numbers) >= 0
    expect(positive and allowed > 0, "numbers must be positive (weights may be 0)")
    costs, variances = sides(upper, workload, neighbours)
    pairs = list(zip(variances, numbers, strict=True))
    total = max(v / c for v, c in pairs) if kind == "targets" else sum(v * c for v, c in pairs)
    p, norm = trace_norm(lower, moved(workload, neighbours))
    squares = [root * root for root in p]
    asked = Fraction(1)
    if kind == "targets":
        asked = sum((square * c for square, c in zip(squares, numbers, strict=True)), Fraction(0))
        expect(asked > 0, "roots of queries must not all be 0")
    else:
        at_most(squares, numbers)
    return norm / asked / allowed, max(costs) * total / allowed


def stated(problem: Given) -> tuple[Matrix, Matrix | None]:
    """Return the workload and the neighbours of a problem."""
    workload = problem.matrix("workload")
    return workload, problem.optional_matrix("neighbours", (workload.shape[1], None))


def moved(rows: Matrix, neighbours: Matrix | None) -> Matrix:
    """Return what neighbours move of some rows."""
    return rows if neighbours is None else rows.times(neighbours)


def sides(given: Given, workload: Matrix, neighbours: Matrix | None) -> tuple[list[Fraction], list[Fraction]]:
    """Return the cost of each pair of neighbours, and what the variance of each query is at most."""
    cells = workload.shape[1]
    strategy, inverse = (given.matrix(name, (cells, cells)) for name in ("strategy", "inverse"))
    missed = departed(strategy, inverse)
    costs = moved(strategy, neighbours).transposed().squares()
    return costs, [each / (1 - missed) ** 2 for each in workload.times(inverse).squares()]


def trace_norm(given: Given, changed: Matrix) -> tuple[list[Fraction], Fraction]:
    """Return p, and what the squared trace norm of ``diag(p) N diag(q) / |q|`` is at least."""
    rows, columns = changed.shape
    p, q = given.vector("query_roots", rows), given.vector("neighbour_roots", columns)
    other = given.matrix("isometry", changed.shape)
    product = Fraction(0)
    for root, row, matching in zip(p, changed.rows, other.rows, strict=True):
        if root:
            product += root * sum(
                own * (a * b) for own, a, b in zip(q, row, matching, strict=True) if a and b
            )
    product *= power(1, changed.exponent + other.exponent)
    divisor = other.norm_squared() * sum(root * root for root in q)
    expect(divisor > 0, "isometry and roots must not all be 0")
    return p, max(product, Fraction(0)) ** 2 / divisor


def at_most(squares: list[Fraction], weights: list[Fraction]) -> None:
    """Require that no square of a query's root exceeds its weight."""
    for square, weight in zip(squares, weights, strict=True):
        expect(square <= weight, "the square of a query's root must be at most its weight")
