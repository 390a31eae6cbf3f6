"""Decomposition of a mechanism into a common part and its residual, and intersections of row spaces."""

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

RESIDUAL_TOL = 1e-9  # smallest share of a direction's cost that is in the residual


def decomposition(mechanism: Any, common: Any, tol: float = TOLERANCE) -> Any:
    """Split a mechanism into a part that is answerable from it, and the residual.

    With the standard form S of the mechanism, with unit noise, the common part has T S, and the residual has the cost
    ``S' (I - T'T) S``. With ``I - T'T = V E V'`` the residual is ``√E V' S`` with unit noise, and
    ``T' (T S x + z) + V √E (√E V' S x + z')`` is S x with unit noise again. E is computed from the singular values
    of T, without a difference of cost matrices. Mechanisms of tables are split block by block.
    Raises `InvalidInputError` or `InputTypeError` for a common part that is not answerable from the mechanism, or
    on other cells or neighbours; exact answers.
    Directions with less than 1e-9 of their cost in the residual are dropped: their variances are higher by a factor
    of up to 1 + 1e-9. Algorithms 3 and 4 and theorem 5.5 of CMN.
    Returns `Decomposition`; of mechanisms of tables `TableDecomposition`.

    Parameters
    ----------
    mechanism : LinearGaussianMechanism or BlockMechanism
        The mechanism to split.
    common : mechanism of the same kind
        The part that is released first, answerable from `mechanism`.
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
            f"common must be answerable from mechanism, but its cost exceeds that of mechanism by a relative "
            f"{verdict.excess:.3g}{place}"
        )
    pairs = zip(frame.parts(mechanism), frame.parts(common, "common"), strict=True)
    return frame.decomposed([_split(*pair) for pair in pairs])


def _split(mechanism: LinearGaussianMechanism, common: LinearGaussianMechanism) -> Decomposition:
    form, common_form = mechanism.standard_form, common.standard_form
    shares = coordinates(common_form.queries, form.queries)
    directions, remaining = _remaining_directions(shares)
    rows = without_tiny_entries(np.sqrt(remaining)[:, None] * directions @ form.queries)
    residual = LinearGaussianMechanism(rows, np.eye(len(remaining)), mechanism.neighbours)
    return Decomposition(
        mechanism,
        common,
        residual._rounded_from(partial(_remaining_costs, mechanism, common)) if len(rows) else residual,
        form.lift @ shares.T @ common_form.estimate,
        form.lift @ (directions.T * np.sqrt(remaining)),
        _leftover(mechanism),
    )


def _remaining_costs(mechanism: LinearGaussianMechanism, common: LinearGaussianMechanism) -> Array:
    """Return upper bounds on the cost of the mechanism minus the cost of the common part (s,)."""
    upper, lower = mechanism.profile, common._least_profile
    verified = np.isfinite(upper) & ((lower > 0) | (common.profile == 0))
    return np.where(verified, np.where(verified, upper, 0.0) - lower, 0.0)


def residual(mechanism: object, common: object, tol: float = TOLERANCE) -> Any:
    """Return the residual of a mechanism after a common part; see `decomposition`.

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
    """Return the eigenvectors, as rows, and eigenvalues of ``I - T'T`` above `RESIDUAL_TOL`."""
    size = shares.shape[1]
    if not len(shares):
        return np.eye(size), np.ones(size)
    _, sizes, directions = linalg.svd(shares, full_matrices=True)
    remaining = np.ones(size)
    remaining[: len(sizes)] = (1 - sizes) * (1 + sizes)
    positive = remaining > RESIDUAL_TOL
    return directions[positive], remaining[positive]


def _leftover(mechanism: LinearGaussianMechanism) -> Array:
    """Return ``Σ - L L'`` without rounding errors of zeros; exactly 0 if the rows are independent."""
    covariance = mechanism.covariance()
    if mechanism.independent:
        return np.zeros_like(covariance)
    units, lift = np.sqrt(np.diagonal(covariance)), mechanism.standard_form.lift
    values, vectors = np.linalg.eigh((covariance - lift @ lift.T) / units / units[:, None])
    scaled = vectors * np.where(values > RESIDUAL_TOL, values, 0.0) @ vectors.T * units * units[:, None]
    return np.asarray((scaled + scaled.T) / 2)


# Intersections of row spaces, and their principal angles.


SHARED_TOLERANCE = linalg.SPAN_TOLERANCE
"""Sine of the largest angle, 1e-9, between equal directions of several spaces."""

UNASKED = 1e-3
"""Weight of directions outside the span of the decision queries, relative to the mean weight inside."""


@dataclass(frozen=True, slots=True, eq=False)
class Intersection:
    rows: Array  # (r, d) orthonormal rows that span the intersection
    # (k,) in increasing order, in radians, k the least dimension. For two spaces they are the principal angles. For
    # more, the sine of each is the root mean square of the sines of a direction's angles to the other spaces. The first
    # r are 0, up to 1e-9
    angles: Array


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """The intersection of several mechanisms with unit noise: rows B, and each mechanism's covariance of B x."""

    rows: Array  # (r, d)
    bounds: Array  # (p, r, r)
    angles: Array  # the angles of `Intersection`
    roundings: Array  # (p,) error bounds on `bounds`, relative to their norms

    @classmethod
    def of(cls, spaces: Sequence[Array], transform: Callable[[Array], Array]) -> Meeting:
        """Intersect the rows of mechanisms in standard form, and transform the basis of the intersection."""
        intersected = intersection(spaces)
        rows = without_tiny_entries(transform(intersected.rows))
        factors = [coordinates(rows, space) for space in spaces]
        bounds = np.array([factor @ factor.T for factor in factors])
        roundings = [coordinate_rounding(*pair, rows) for pair in zip(factors, spaces, strict=True)]
        return cls(rows, bounds, intersected.angles, np.array(roundings))

    def scaled(self, times: float) -> Meeting:
        return replace(self, rows=times * self.rows, bounds=times**2 * self.bounds)

    def covariance_of(self, queries: Array) -> Array | None:
        """Return the covariance of B x from rows with unit noise, or None if they do not answer all of B x.

        Raises `InvalidInputError` for rows outside the intersection.
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
    """Intersect the row spaces of matrices with independent rows.

    A direction t of the smallest space V belongs to all spaces if ``Σ_i ‖t - t P_i‖²`` is 0, with P_i the orthogonal
    projectors of the others. The singular values of the stacked residuals are the sines of the angles. Sines keep the
    digits of small angles; the cosine of an angle below 1e-8 is 1.

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
    smallest, rest = bases[0], bases[1:]
    residuals = [smallest - (smallest @ other.T) @ other for other in rest]
    # The second projection removes the rounding errors of the first.
    residuals = [residual - (residual @ other.T) @ other for residual, other in zip(residuals, rest, strict=True)]
    _, sines, directions = linalg.svd(np.hstack(residuals).T)
    sines = np.minimum(sines / np.sqrt(len(rest)), 1.0)[::-1]
    common = directions[::-1][: int(np.sum(sines <= SHARED_TOLERANCE))]
    rows = common @ smallest
    leading = rows[np.arange(len(rows)), np.argmax(np.abs(rows), axis=1)] if len(rows) else np.zeros(0)
    return Intersection(np.asarray(rows * np.sign(leading)[:, None]), np.arcsin(sines))


def given_rows(basis: npt.ArrayLike, rows: Array) -> Array:
    """Return a user's basis; refused if its span is not that of the orthonormal rows."""
    array = validate.finite(2, basis=basis)
    validate.moderate(basis=without_tiny_entries(array))
    independent = array.shape == rows.shape and linalg.rank(array) == len(array)
    if not independent or len(intersection([array, rows]).rows) < len(rows):
        raise InvalidInputError(
            f"basis must have {len(rows)} independent rows that span the intersection of the row spaces, "
            f"got shape {array.shape}"
        )
    return array


def decision_rows(decisions: Workload, rows: Array) -> Array:
    """Return rows K B with ``K'K = M``: the trace of their covariance is ``tr(M Σ)``, the decisions' total variance."""
    if validate.instance(Workload, decisions=decisions).shape[1] != rows.shape[1]:
        raise InvalidInputError(
            f"decisions must have {rows.shape[1]} cells, as the mechanisms, got {decisions.shape[1]}"
        )
    queries = decisions.dense()
    coordinates = queries @ rows.T
    unspanned = np.linalg.norm(queries - coordinates @ rows, axis=1) > SHARED_TOLERANCE * np.linalg.norm(
        queries, axis=1
    )
    if np.any(unspanned):
        raise InvalidInputError(
            f"decisions: query {decisions.names[int(np.argmax(unspanned))]!r} lies outside the intersection "
            f"of the row spaces"
        )
    weight = np.linalg.norm(coordinates) / np.sqrt(len(rows)) if len(rows) else 0.0
    if weight == 0:
        raise InvalidInputError("decisions must hold a query that is not all zero")
    stacked = np.vstack([coordinates, np.sqrt(UNASKED) * weight * np.eye(len(rows))])
    return np.asarray(scipy.linalg.qr(stacked, mode="r", check_finite=False)[0][: len(rows)] @ rows)
