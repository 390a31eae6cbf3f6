"""The common mechanism: the least noise, on queries that several mechanisms all answer, that none of them stays below.

There are covariances P_i ⪰ 0, with which mechanism i answers the common queries; asked is the least ``tr S`` over ``S
⪰ P_i`` for all i.

Upper bound. Given a symmetric S and matrices H_i, let ``D_i = S - P_i - H_i H_iᵀ`` and d be the largest absolute row
sum of all of them, which no eigenvalue of them exceeds in magnitude. Then ``S + d I - P_i ⪰ H_i H_iᵀ ⪰ 0``, and ``tr
S + d r`` is reached.

Lower bound. Given G_i, let ``T = Σ G_i G_iᵀ`` and t be its largest absolute row sum: ``t I - T ⪰ 0``. So ``t tr S``
is ``Σ tr(S G_i G_iᵀ) + tr(S (t I - T))``, at least ``Σ tr(P_i G_i G_iᵀ) + tr(P_1 (t I - T))``.
"""

from __future__ import annotations

from fractions import Fraction

from .exact import Matrix, expect
from .given import Given


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that a covariance and a measurement of a file show."""
    mechanisms = [each.matrix("covariance") for each in problem.parts("mechanisms")]
    size = mechanisms[0].shape[0]
    for each in mechanisms:
        expect(
            each.shape == (size, size) and symmetric(each), "covariances must be symmetric and of one size"
        )
    found, off = upper.matrix("covariance", (size, size)), Fraction(0)
    expect(symmetric(found), "the covariance must be symmetric")
    for own, given in zip(mechanisms, upper.parts("roots", len(mechanisms)), strict=True):
        left = found.plus(own, -1).plus(squared(given.matrix("root", (size, None))), -1)
        off = max(off, left.largest_sum())
    total, proven = Matrix([[0] * size for _ in range(size)], 0), Fraction(0)
    for own, given in zip(mechanisms, lower.parts("roots", len(mechanisms)), strict=True):
        weights = squared(given.matrix("root", (size, None)))
        total, proven = total.plus(weights), proven + own.paired(weights)
    largest = total.largest_sum()
    expect(largest > 0, "roots must not all be 0")
    proven += largest * mechanisms[0].trace() - mechanisms[0].paired(total)
    return proven / largest, found.trace() + size * off


def symmetric(given: Matrix) -> bool:
    """Whether a matrix is its own transpose."""
    return given.rows == given.transposed().rows


def squared(root: Matrix) -> Matrix:
    """Return ``G Gᵀ``."""
    return root.times(root.transposed())
