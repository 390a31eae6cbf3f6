"""The judge's arithmetic for fitness for use: both sides of a covariance, and the bound that weights prove."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.problems.geometry import Geometry
from dualmech.validate import Array

MOST_PASSES = 10
"""Times that a covariance is scaled to its targets: where it is ill-conditioned, rounding undoes a little of it.

Each time after the first, a growing margin is left for that."""


class Stated(Protocol):
    """What is evaluated: a workload over its basis and neighbours, and its targets."""

    @property
    def geometry(self) -> Geometry:
        """Workload, basis and neighbours."""

    @property
    def targets(self) -> Array:
        """Variance targets (m,)."""


@dataclass(frozen=True, slots=True, eq=False)
class FitnessDual:
    """Weights that prove a lower bound: λ on neighbours (s,) and μ on queries (m,), none negative.

    Any two such vectors prove a bound, whatever their scale; solvers return them with ``Σ λ_i = 1`` and
    ``Σ μ_j c_j = 1``.
    """

    neighbour_weights: Array
    query_weights: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.neighbour_weights, self.query_weights))


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Cost of each pair of neighbours, ratio of each variance to its target, and their rounding, relative."""

    profile: Array
    ratios: Array
    rounding: float = 0.0

    @property
    def cost(self) -> float:
        """Squared privacy cost, the largest entry of the profile."""
        return float(self.profile.max())

    @property
    def excess(self) -> float:
        """Largest ratio of a variance to its target."""
        return float(self.ratios.max())

    def binding(self, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours whose cost is within `slack` of the largest; none where that is infinite."""
        return np.flatnonzero((self.profile >= (1 - slack) * self.cost) & np.isfinite(self.cost))


def evaluate(problem: Stated, primal: npt.ArrayLike) -> Sides:
    """Evaluate both sides of Problem 1 at any matrix; one that is no covariance costs infinity."""
    geometry, covariance = problem.geometry, covariance_of(problem, primal)
    nothing = Sides(np.full(geometry.moves.shape[1], np.inf), np.full(len(problem.targets), np.inf))
    if not np.all(np.isfinite(covariance)):
        return nothing
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        asymmetry = np.abs(covariance - covariance.T).max()
        if not asymmetry <= validate.SYMMETRY_TOLERANCE * np.abs(covariance).max():
            return nothing
        judged = linalg.inverse_forms((covariance + covariance.T) / 2, geometry.moves)
        if judged is None or not np.all(np.isfinite(judged[1])):
            return nothing
        settled, profile, profile_rounding = judged
        variances, variance_rounding = geometry.variances(settled)
        ratios = variances / problem.targets
        rounding = (profile + profile_rounding).max() / profile.max() - 1
        rounding += (ratios + variance_rounding / problem.targets).max() / ratios.max() - 1
    return Sides(profile, ratios, float(rounding))


def meeting_targets(problem: Stated, primal: npt.ArrayLike) -> Array:
    """Return a covariance scaled so that the tightest target is met; what cannot be scaled is left as it is."""
    covariance = covariance_of(problem, primal)
    for count in range(MOST_PASSES):
        with np.errstate(over="ignore", invalid="ignore"):
            settled = linalg.settled(covariance)
            variances, _ = problem.geometry.variances(covariance if settled is None else settled)
            excess = float((variances / problem.targets).max())
        if count and not excess > 1 + FEASIBLE / 10:
            break
        margin = 1 + count * abs(excess - 1) if count else 1.0
        covariance = scaled(covariance, excess * margin)
    return covariance


def covariance_of(problem: Stated, primal: npt.ArrayLike) -> Array:
    """Return a primal point as a matrix of the right shape, its entries unseen; text and the like are refused."""
    size = problem.geometry.rank
    covariance = validate.numeric(2, covariance=primal)
    if covariance.shape != (size, size):
        raise InvalidInputError(f"covariance must have shape ({size}, {size}), got {covariance.shape}")
    return covariance


def scaled(covariance: Array, divisor: float) -> Array:
    """Return ``Σ / divisor``, symmetric; by nothing else than a positive number: the judge refuses the rest."""
    if not (np.isfinite(divisor) and divisor > 0):
        return covariance
    with np.errstate(over="ignore", invalid="ignore"):
        return (covariance + covariance.T) / 2 / divisor


def weak_duality_bound(
    problem: Stated, dual: FitnessDual | tuple[npt.ArrayLike, npt.ArrayLike]
) -> tuple[float, float]:
    """Return ``‖diag(√μ) W U diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)`` and its rounding, relative.

    Proof that it bounds α: with S = Σ^(1/2), ``Σ_i λ_i (B u_i)'Σ⁻¹(B u_i) = ‖S⁻¹ B U diag(√λ)‖_F²`` is at
    most ``α Σ λ_i``, and ``Σ_j μ_j v_j Σ v_j' = ‖diag(√μ) L S‖_F²`` at most ``Σ μ_j c_j``; multiply, and use
    ``‖X Y‖_* ≤ ‖X‖_F ‖Y‖_F``. Weights that are negative or not finite prove nothing: the bound is 0.
    """
    neighbour_weights, query_weights = _dual_parts(dual)
    expected = (problem.geometry.moves.shape[1],), problem.targets.shape
    if (neighbour_weights.shape, query_weights.shape) != expected:
        raise InvalidInputError(
            f"dual must hold weights of shapes {expected[0]} on neighbours and {expected[1]} on queries, "
            f"got {neighbour_weights.shape} and {query_weights.shape}"
        )
    weights = np.concatenate([neighbour_weights, query_weights])
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        return 0.0, 0.0
    if not np.any(neighbour_weights) or not np.any(query_weights):
        return 0.0, 0.0
    # Brought to a largest weight of 1 before anything else, so that no scale of theirs under- or overflows.
    shares = neighbour_weights / neighbour_weights.max()
    spread = query_weights / query_weights.max()
    moves, queries = np.flatnonzero(shares), np.flatnonzero(spread)
    shares = shares[moves] / shares.sum()
    spread = np.sqrt(spread[queries] / (spread @ problem.targets))
    product = problem.geometry.differences(queries, moves) * np.sqrt(shares) * spread[:, None]
    norm, rounding = linalg.trace_norm(product)
    return norm**2, 2 * rounding / norm if norm > 0 else 0.0


def _dual_parts(dual: FitnessDual | tuple[npt.ArrayLike, npt.ArrayLike]) -> tuple[Array, Array]:
    try:
        first, last = dual
    except (TypeError, ValueError) as error:
        raise InputTypeError("dual must be a pair of weights, on neighbours and on queries") from error
    named = {"dual weights on neighbours": first}, {"dual weights on queries": last}
    return validate.numeric(1, **named[0]), validate.numeric(1, **named[1])
