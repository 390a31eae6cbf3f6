"""Which mechanism can be answered from which: the order of mechanisms by what they reveal, with witnesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.mechanisms.noise import NoisyQueries
from dualmech.validate import Array

TOLERANCE = 1e-8
"""Share of another mechanism's cost by which a cost may exceed it and still count as rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Answerability:
    """Whether one mechanism b can be answered from another a, and why; true or false in a condition.

    Attributes
    ----------
    answerable : bool
        Whether ``C_b ⪯ (1 + tol) C_a``.
    excess : float
        The least e ≥ 0 with ``C_b ⪯ (1 + e) C_a``; infinite where b sees what a does not.
    transform : (m_b, m_a) array or None
        A of Lemma 3.2: b has the distribution of ``A a(x) + C N(0, I)``. None where it is not answerable.
    noise : (m_b, m_b) array or None
        C of Lemma 3.2, symmetric.
    direction : (d,) array or None
        A difference x of data sets that costs more under b than under a, ``x'C_b x > x'C_a x``, largest entry 1;
        None where b is answerable.
    attributes : tuple of str or None
        Of mechanisms on blocks, in the place of matrices, the attributes of the worst block.
    """

    answerable: bool
    excess: float
    transform: Array | None = None
    noise: Array | None = None
    direction: Array | None = None
    attributes: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return self.answerable


@dataclass(frozen=True, slots=True, eq=False)
class Equivalence:
    """Whether two mechanisms reveal the same, with a witness each way; true or false in a condition.

    Attributes
    ----------
    forward, backward : Answerability
        Of the first mechanism from the second, and of the second from the first.
    """

    forward: Answerability
    backward: Answerability

    def __bool__(self) -> bool:
        return bool(self.forward) and bool(self.backward)


def answerable(wanted: NoisyQueries, given: NoisyQueries, tol: float = TOLERANCE) -> Answerability:
    """Say whether `wanted` can be answered from `given`; see `LinearGaussianMechanism.is_answerable_from`."""
    tol = validate.positive_number(tol=tol)
    check_comparable((wanted, given), ("the mechanism", "other"))
    above, below = given.standard_form, wanted.standard_form
    hidden = _unanswerable_part(below.queries, above.queries, min(tol, linalg.SPAN_TOLERANCE))
    if hidden is not None:
        return Answerability(False, np.inf, direction=_largest_one(hidden))
    shares = coordinates(below.queries, above.queries)
    _, sizes, right = linalg.svd(shares) if shares.size else (None, np.zeros(0), None)
    excess = max(float(sizes[0] - 1) * float(sizes[0] + 1), 0.0) if sizes.size else 0.0
    if excess > tol and right is not None:
        direction = np.linalg.lstsq(above.queries, right[0], rcond=None)[0]
        return Answerability(False, excess, direction=_largest_one(direction))
    known = below.lift @ shares
    return Answerability(True, excess, known @ above.estimate, _root(wanted.covariance() - known @ known.T))


def coordinates(queries: Array, rows: Array) -> Array:
    """Return T with ``T rows = queries``, for queries in the span of independent rows, whatever their units."""
    if not len(rows) or not len(queries):
        return np.zeros((len(queries), len(rows)))
    orthonormal, triangle = scipy.linalg.qr(rows.T, mode="economic", check_finite=False)
    solved = scipy.linalg.solve_triangular(triangle, orthonormal.T @ queries.T, check_finite=False)
    return np.ascontiguousarray(solved.T)


def without_dust(rows: Array) -> Array:
    """Return rows without entries far below their last digit: what rounding leaves of zeros."""
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    return np.where(np.abs(rows) < linalg.EPS**2 * largest, 0.0, rows)


def coordinate_rounding(shares: Array, rows: Array) -> float:
    """Return an allowance for the rounding of ``T T'``, relative to its norm, T being `coordinates` on the rows.

    A backward error that is small against each row moves T by ``T E S⁺`` to first order, S being the rows.
    """
    if not shares.size:
        return 0.0
    norms = np.linalg.norm(rows, axis=1)
    triangle = scipy.linalg.qr(rows.T, mode="r", check_finite=False)[0][: len(rows)]
    spread = np.linalg.norm(shares * norms) / linalg.singular_values(triangle)[-1]
    return float(8 * np.sqrt(rows.shape[1]) * linalg.EPS * spread / np.linalg.norm(shares))


def check_comparable(mechanisms: Sequence[NoisyQueries], names: Sequence[str] = ()) -> None:
    """Refuse what is no mechanism, and mechanisms on other cells or with other neighbours than the first.

    `names` are those of the arguments that they were given as; by default ``mechanisms[0]``, ``mechanisms[1]``, …
    """
    called = names or [f"mechanisms[{index}]" for index in range(len(mechanisms))]
    for name, mechanism in zip(called, mechanisms, strict=True):
        if not isinstance(mechanism, NoisyQueries):
            raise InputTypeError(f"{name} must be a LinearGaussianMechanism, got {type(mechanism).__name__}")
        cells, expected = mechanism.query_matrix.shape[1], mechanisms[0].query_matrix.shape[1]
        if cells != expected:
            raise InvalidInputError(
                f"{name} must be stated on the same cells as {called[0]}, got {cells} and {expected}"
            )
        if not _same_neighbours(mechanism, mechanisms[0]):
            raise InvalidInputError(f"{name} must have the same neighbours as {called[0]}, it has others")


def _same_neighbours(first: NoisyQueries, second: NoisyQueries) -> bool:
    if first.neighbours is second.neighbours:
        return True
    if first.neighbours is None or second.neighbours is None:
        return False
    ours, theirs = (linalg.to_dense(each.neighbours) for each in (first, second))
    return ours.shape == theirs.shape and bool(np.array_equal(ours, theirs))


def _unanswerable_part(queries: Array, rows: Array, tol: float) -> Array | None:
    """Return the largest part of a query outside the span of the rows; None where all lie inside, up to a share."""
    if not len(queries):
        return None
    basis = linalg.row_space(rows) if len(rows) else rows
    outside = queries - (queries @ basis.T) @ basis
    shares = np.linalg.norm(outside, axis=1) / np.linalg.norm(queries, axis=1)
    worst = int(np.argmax(shares))
    return outside[worst] if shares[worst] > tol else None


def _largest_one(direction: Array) -> Array:
    return np.asarray(direction / direction[np.argmax(np.abs(direction))])


def _root(matrix: Array) -> Array:
    """Return the symmetric root of a matrix that is positive semidefinite but for rounding."""
    if not matrix.size:
        return matrix
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)
