"""What a mechanism still has to reveal once part of it is known, and how to put both parts together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.frames import Decomposition, frame_of
from dualmech.mechanisms.gaussian import (
    TOLERANCE,
    LinearGaussianMechanism,
    coordinate_rounding,
    coordinates,
    without_tiny_entries,
)
from dualmech.mechanisms.noise import as_matrix
from dualmech.validate import Array
from dualmech.workloads.base import Workload

NOTHING_LEFT = 1e-9  # share of a direction's information, left over, up to which it is not asked for again


def decomposition(mechanism: Any, common: Any, tol: float = TOLERANCE) -> Any:
    """Split a mechanism into a part that it can answer and the residual that is left of it.

    In the standard form S of the mechanism, with unit noise, the common part's is T S, and what is left has the cost
    ``S' (I - T'T) S``. With ``I - T'T = V E V'`` the residual asks ``√E V' S``, with unit noise, and
    ``T' (T S x + z) + V √E (√E V' S x + z')`` is S x with unit noise again. The singular values of T give E without
    forming a difference of cost matrices. Mechanisms of tables are split block by block.
    Raises `InvalidInputError` or `InputTypeError` for a common part that is not answerable from the mechanism, or
    on other cells or neighbours; exact answers.
    A direction of which less than 1e-9 is left is not asked again: its variance is 1e-9, relative, above the
    target's. Algorithms 3 and 4 and theorem 5.5 of CMN.
    Returns `Decomposition`; of mechanisms of tables `TableDecomposition`.

    Parameters
    ----------
    mechanism : LinearGaussianMechanism or BlockMechanism
        What is wanted in the end.
    common : mechanism of the same kind
        What is known first; it must be answerable from `mechanism`.
    tol : float
        As for `LinearGaussianMechanism.is_answerable_from`.

    Examples
    --------
    >>> import dualmech as dm
    >>> cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
    >>> parts = dm.decomposition(cells, dm.LinearGaussianMechanism([[1, 1]], [[2]]))
    >>> abs(parts.residual.query_matrix.round(4)), parts.from_common.round(4).ravel()
    (array([[0.7071, 0.7071]]), array([0.5, 0.5]))
    """
    mechanism, common = as_matrix(mechanism), as_matrix(common)
    frame = frame_of((mechanism, common), ("mechanism", "common"))
    verdict = common.is_answerable_from(mechanism, tol)
    if not verdict:
        place = "" if verdict.attributes is None else f", on {' x '.join(verdict.attributes) or 'the total'}"
        raise InvalidInputError(
            f"common must be answerable from mechanism, but exceeds its cost by {verdict.excess:.3g}, relative{place}"
        )
    pairs = zip(frame.parts(mechanism), frame.parts(common, "common"), strict=True)
    return frame.decomposed([_split(*pair) for pair in pairs])


def _split(mechanism: LinearGaussianMechanism, common: LinearGaussianMechanism) -> Decomposition:
    form, known = mechanism.standard_form, common.standard_form
    shares = coordinates(known.queries, form.queries)
    directions, left = _remaining_directions(shares)
    rows = without_tiny_entries(np.sqrt(left)[:, None] * directions @ form.queries)
    residual = LinearGaussianMechanism(rows, np.eye(len(left)), mechanism.neighbours)
    return Decomposition(
        mechanism,
        common,
        residual._rounded_from(partial(_remaining_costs, mechanism, common)) if len(rows) else residual,
        form.lift @ shares.T @ known.estimate,
        form.lift @ (directions.T * np.sqrt(left)),
        _leftover(mechanism),
    )


def _remaining_costs(mechanism: LinearGaussianMechanism, common: LinearGaussianMechanism) -> Array:
    """Return what neighbours cost beyond the common part (s,), rounded up."""
    upper, lower = mechanism.profile, common._least_profile
    proven = np.isfinite(upper) & ((lower > 0) | (common.profile == 0))
    return np.where(proven, np.where(proven, upper, 0.0) - lower, 0.0)


def residual(mechanism: object, common: object, tol: float = TOLERANCE) -> Any:
    """Return the rest of a mechanism once a part of it is known; see `decomposition`.

    Examples
    --------
    >>> import dualmech as dm
    >>> noisy, better = (dm.LinearGaussianMechanism([[1, 1]], [[variance]]) for variance in (2, 1))
    >>> dm.residual(better, noisy).cost_matrix.round(9)      # 1/1 - 1/2
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    return decomposition(mechanism, common, tol).residual


def _remaining_directions(shares: Array) -> tuple[Array, Array]:
    """Return the eigenvectors, as rows, and eigenvalues of ``I - T'T`` that are not nothing."""
    size = shares.shape[1]
    if not len(shares):
        return np.eye(size), np.ones(size)
    _, sizes, directions = linalg.svd(shares, full_matrices=True)
    left = np.ones(size)
    left[: len(sizes)] = (1 - sizes) * (1 + sizes)
    kept = left > NOTHING_LEFT
    return directions[kept], left[kept]


def _leftover(mechanism: LinearGaussianMechanism) -> Array:
    """Return ``Σ - L L'``, each row in its own unit cut at rounding; exactly 0 where the rows are independent."""
    covariance = mechanism.covariance()
    if mechanism.independent:
        return np.zeros_like(covariance)
    units, lift = np.sqrt(np.diagonal(covariance)), mechanism.standard_form.lift
    values, vectors = np.linalg.eigh((covariance - lift @ lift.T) / units / units[:, None])
    scaled = vectors * np.where(values > NOTHING_LEFT, values, 0.0) @ vectors.T * units * units[:, None]
    return np.asarray((scaled + scaled.T) / 2)


# What several row spaces have in common, and the angles at which they meet.


SHARED_TOLERANCE = linalg.SPAN_TOLERANCE
"""Sine of the largest angle, 1e-9, up to which directions of several spaces count as one and the same."""

UNASKED = 1e-3
"""Weight of what the decision queries do not ask for, relative to the mean weight of what they do."""


@dataclass(frozen=True, slots=True, eq=False)
class Intersection:
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
    angles: Array  # the angles of `Intersection`
    roundings: Array  # (p,) of the bounds, relative to their norms

    @classmethod
    def of(cls, spaces: Sequence[Array], chosen: Callable[[Array], Array]) -> Meeting:
        """Intersect the rows of mechanisms in standard form, and choose rows that span the intersection."""
        meeting = intersection(spaces)
        rows = without_tiny_entries(chosen(meeting.rows))
        factors = [coordinates(rows, space) for space in spaces]
        bounds = np.array([factor @ factor.T for factor in factors])
        roundings = [coordinate_rounding(*pair, rows) for pair in zip(factors, spaces, strict=True)]
        return cls(rows, bounds, meeting.angles, np.array(roundings))

    def scaled(self, times: float) -> Meeting:
        return replace(self, rows=times * self.rows, bounds=times**2 * self.bounds)

    def covariance_of(self, queries: Array) -> Array | None:
        """Return the covariance with which rows of unit noise answer B x; None where they leave part of B x out.

        Raises `InvalidInputError` where they answer a query outside one of the row spaces.
        """
        shared = intersection([self.rows, queries]) if len(queries) and len(self.rows) else None
        if len(queries) and (shared is None or len(shared.rows) < len(queries)):
            raise InvalidInputError(
                "no common mechanism: it answers queries outside the intersection of the row spaces"
            )
        if len(self.rows) and (shared is None or len(shared.rows) < len(self.rows)):
            return None
        factor = coordinates(self.rows, queries)
        return np.asarray(factor @ factor.T)


def intersection(spaces: Sequence[Array]) -> Intersection:
    """Intersect the row spaces of matrices whose rows are independent.

    A direction t of the smallest space V belongs to all of them where ``Σ_i ‖t - t P_i‖²`` is 0, P_i being the
    orthogonal projectors of the others. The singular values of the residuals, stacked, are the sines of the
    angles; so a small angle is seen as such to the last digit, where its cosine would be 1 from 1e-8 downwards.

    Examples
    --------
    >>> from dualmech.mechanisms.decomposition import intersection
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
    residuals = [residual - (residual @ other.T) @ other for residual, other in zip(residuals, others, strict=True)]
    _, sines, directions = linalg.svd(np.hstack(residuals).T)
    sines = np.minimum(sines / np.sqrt(len(others)), 1.0)[::-1]
    meeting = directions[::-1][: int(np.sum(sines <= SHARED_TOLERANCE))]
    rows = meeting @ smallest
    leading = rows[np.arange(len(rows)), np.argmax(np.abs(rows), axis=1)] if len(rows) else np.zeros(0)
    return Intersection(np.asarray(rows * np.sign(leading)[:, None]), np.arcsin(sines))


def given_rows(basis: npt.ArrayLike, rows: Array) -> Array:
    """Return rows that were given, once they span what the orthonormal ones do; refused where they do not."""
    array = validate.finite(2, basis=basis)
    validate.moderate(basis=without_tiny_entries(array))
    same = array.shape == rows.shape and linalg.rank(array) == len(array)
    if not same or len(intersection([array, rows]).rows) < len(rows):
        raise InvalidInputError(
            f"basis must have {len(rows)} independent rows that span the intersection of the row spaces, "
            f"got shape {array.shape}"
        )
    return array


def decision_rows(decisions: Workload, rows: Array) -> Array:
    """Return rows K B with ``K'K = M``: the trace of a covariance on them is ``tr(M Σ)``, the decisions' variance."""
    if validate.instance(Workload, decisions=decisions).shape[1] != rows.shape[1]:
        raise InvalidInputError(
            f"decisions must have {rows.shape[1]} cells, as the mechanisms, got {decisions.shape[1]}"
        )
    queries = decisions.dense()
    decided = queries @ rows.T
    outside = np.linalg.norm(queries - decided @ rows, axis=1) > SHARED_TOLERANCE * np.linalg.norm(queries, axis=1)
    if np.any(outside):
        raise InvalidInputError(
            f"decisions: query {decisions.names[int(np.argmax(outside))]!r} lies outside the intersection "
            f"of the row spaces"
        )
    weight = np.linalg.norm(decided) / np.sqrt(len(rows)) if len(rows) else 0.0
    if weight == 0:
        raise InvalidInputError("decisions must hold a query that is not all zero")
    stacked = np.vstack([decided, np.sqrt(UNASKED) * weight * np.eye(len(rows))])
    return np.asarray(scipy.linalg.qr(stacked, mode="r", check_finite=False)[0][: len(rows)] @ rows)
