"""Reuse of a release: the least total privacy cost of a workload with targets, given what is already released.

With the workload W, neighbours U, costs and variances of ``noise`` and targets c > 0, what was released is worth as
much as F x with unit noise: it must stay known, which means that for every a the query ``a F`` has a variance of at
most ``|a|²``. Asked is the least cost at which this holds and ``var_j ≤ c_j`` for all j.

Upper bound. A strategy A with Z and E as there; with ``M = F Z (F Z)ᵀ`` no ``a F`` has a variance above ``|a|² |M| /
(1 - |E|)²``. Given V, let ``VᵀV = I + D``, d the largest absolute row sum of D and ``d < 1``: then V is invertible,
and ``|M| ≤ |VᵀM V| / (1 - d)``, where an absolute row sum bounds the norm. All noise over the largest excess meets
all limits, at as many times the cost.

Lower bound. That of targets, for the queries W and ``a_k F``, a_k being rows that the file gives, whose targets are
``|a_k|²``.
"""

from __future__ import annotations

from fractions import Fraction

from .exact import Matrix, departed, expect, identity
from .given import Given
from .noise import moved, sides, stated, trace_norm


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show."""
    workload, neighbours = stated(problem)
    targets = problem.vector("targets", workload.shape[0])
    expect(min(targets) > 0, "targets must be positive")
    release = problem.optional_matrix("release", (None, workload.shape[1]))
    costs, variances = sides(upper, workload, neighbours)
    excess = max(v / c for v, c in zip(variances, targets, strict=True))
    queries, limits = workload, targets
    if release is not None:
        excess = max(excess, largest_variance(release, upper))
        rows = lower.matrix("release_rows", (None, release.shape[0]))
        queries, limits = workload.over(rows.times(release)), targets + rows.squares()
    p, norm = trace_norm(lower, moved(queries, neighbours))
    asked = sum((root * root * limit for root, limit in zip(p, limits, strict=True)), Fraction(0))
    expect(asked > 0, "roots of queries must not all be 0")
    return norm / asked, max(costs) * excess


def largest_variance(release: Matrix, given: Given) -> Fraction:
    """Return what the variance of ``a F`` over ``|a|²`` is at most."""
    strategy, inverse = given.matrix("strategy"), given.matrix("inverse")
    known = release.times(inverse)
    frame = given.matrix("frame", (release.shape[0], release.shape[0]))
    off = frame.transposed().times(frame).plus(identity(release.shape[0]), -1).largest_sum()
    expect(off < 1, "the columns of the frame must be next to orthonormal")
    turned = frame.transposed().times(known)
    return (
        turned.times(turned.transposed()).largest_sum() / (1 - off) / (1 - departed(strategy, inverse)) ** 2
    )
