"""What several row spaces have in common, and the angles at which they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.mechanisms.answerability import coordinate_rounding, coordinates
from dualmech.validate import Array
from dualmech.workloads.base import Workload

MEETING = linalg.SPAN_TOLERANCE
"""Sine of the largest angle, 1e-9, up to which directions of several spaces count as one and the same."""

UNASKED = 1e-3
"""Weight of what the decision queries do not ask for, relative to the mean weight of what they do."""


@dataclass(frozen=True, slots=True, eq=False)
class Intersection:
    """The intersection of several row spaces."""

    rows: Array  # (r, d) orthonormal rows that span it; none where the spaces meet in 0 alone
    # (k,) in increasing order, k the least of the dimensions, in radians. For two spaces they are the principal
    # angles; for more, each is the root mean square of the angles' sines between a direction of the smallest space
    # and the others. The first r are 0, up to 1e-9
    angles: Array


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """What several mechanisms of unit noise have in common: rows B, and the covariance with which each answers B x."""

    rows: Array  # (r, d)
    bounds: Array  # (p, r, r)
    angles: Array  # as those of `Intersection`
    roundings: Array  # (p,) of the bounds, relative to their norms

    @classmethod
    def of(cls, spaces: Sequence[Array], chosen: Callable[[Array], Array]) -> Meeting:
        """Intersect the rows of mechanisms in standard form, and choose rows that span what is found."""
        found = intersection(spaces)
        rows = chosen(found.rows)
        factors = [coordinates(rows, space) for space in spaces]
        bounds = np.array([factor @ factor.T for factor in factors])
        roundings = [coordinate_rounding(*pair) for pair in zip(factors, spaces, strict=True)]
        return cls(rows, bounds, found.angles, np.array(roundings))

    def scaled(self, times: float) -> Meeting:
        """Return the meeting on rows that are multiplied by a number."""
        return replace(self, rows=times * self.rows, bounds=times**2 * self.bounds)

    def covariance_of(self, theirs: Array) -> Array | None:
        """Return the covariance with which rows of unit noise answer B x; None where they leave part of B x out.

        Raises `InvalidInputError` where they answer what is not in all row spaces.
        """
        shared = intersection([self.rows, theirs]) if len(theirs) and len(self.rows) else None
        if len(theirs) and (shared is None or len(shared.rows) < len(theirs)):
            raise InvalidInputError(
                "no common mechanism: it answers queries outside the intersection of the row spaces"
            )
        if len(self.rows) and (shared is None or len(shared.rows) < len(self.rows)):
            return None
        factor = coordinates(self.rows, theirs)
        return np.asarray(factor @ factor.T)


def intersection(spaces: Sequence[Array]) -> Intersection:
    """Intersect the row spaces of matrices whose rows are independent.

    A direction t of the smallest space V belongs to all of them where ``Σ_i ‖t - t P_i‖²`` is 0, P_i being the
    orthogonal projectors of the others. The singular values of the residuals, stacked, are the sines of the
    angles; so a small angle is seen as such to the last digit, where its cosine would be 1 from 1e-8 downwards.

    Examples
    --------
    >>> from dualmech.mechanisms.intersections import intersection
    >>> found = intersection([np.array([[1.0, 0, 0], [0, 1, 0]]), np.array([[1.0, 0, 0], [0, 1, 1]])])
    >>> found.rows, found.angles.round(4)
    (array([[1., 0., 0.]]), array([0.    , 0.7854]))
    """
    cells = spaces[0].shape[1]
    if not all(len(space) for space in spaces):
        return Intersection(np.zeros((0, cells)), np.zeros(0))
    bases = sorted((linalg.row_space(space) for space in spaces), key=len)
    smallest, others = bases[0], bases[1:]
    residuals = [smallest - (smallest @ other.T) @ other for other in others]
    # Projecting twice leaves nothing of the first projection's own rounding.
    residuals = [
        residual - (residual @ other.T) @ other for residual, other in zip(residuals, others, strict=True)
    ]
    _, sines, directions = linalg.svd(np.hstack(residuals).T)
    sines = np.minimum(sines / np.sqrt(len(others)), 1.0)[::-1]
    meeting = directions[::-1][: int(np.sum(sines <= MEETING))]
    rows = meeting @ smallest
    leading = rows[np.arange(len(rows)), np.argmax(np.abs(rows), axis=1)] if len(rows) else np.zeros(0)
    return Intersection(np.asarray(rows * np.sign(leading)[:, None]), np.arcsin(sines))


def given_rows(basis: npt.ArrayLike, rows: Array) -> Array:
    """Return rows that were given, once they span what the orthonormal ones do; refused where they do not."""
    given = validate.finite(2, basis=basis)
    same = given.shape == rows.shape and linalg.rank(given) == len(given)
    if not same or len(intersection([given, rows]).rows) < len(rows):
        raise InvalidInputError(
            f"basis must have {len(rows)} independent rows that span the intersection of the row spaces, "
            f"got shape {given.shape}"
        )
    return given


def decision_rows(decisions: Workload, rows: Array) -> Array:
    """Return rows K B with ``K'K = M``: the trace of a covariance on them is ``tr(M Σ)``, the decisions' variance."""
    if not isinstance(decisions, Workload):
        raise InputTypeError(f"decisions must be a dualmech.Workload, got {type(decisions).__name__}")
    if decisions.shape[1] != rows.shape[1]:
        raise InvalidInputError(
            f"decisions must have {rows.shape[1]} cells, as the mechanisms, got {decisions.shape[1]}"
        )
    queries = decisions.dense()
    asked = queries @ rows.T
    outside = np.linalg.norm(queries - asked @ rows, axis=1) > MEETING * np.linalg.norm(queries, axis=1)
    if np.any(outside):
        raise InvalidInputError(
            f"decisions: query {decisions.names[int(np.argmax(outside))]!r} lies outside the intersection "
            f"of the row spaces"
        )
    weight = np.linalg.norm(asked) / np.sqrt(len(rows)) if len(rows) else 0.0
    if weight == 0:
        raise InvalidInputError("decisions must hold a query that is not all zero")
    stacked = np.vstack([asked, np.sqrt(UNASKED) * weight * np.eye(len(rows))])
    return np.asarray(scipy.linalg.qr(stacked, mode="r", check_finite=False)[0][: len(rows)] @ rows)
