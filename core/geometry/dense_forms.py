"""The judge's arithmetic for Gaussian noise: both sides of a covariance, and the bound that weights prove."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.dense import Geometry
from dualmech.validate import Array

T = TypeVar("T")

MOST_PASSES = 10
"""Times that a covariance is scaled to its limits: where it is ill-conditioned, rounding undoes a little of it.

Each time after the first, a growing margin is left for that."""


class Located(Protocol):
    """What is evaluated: a workload over its basis and neighbours."""

    @property
    def geometry(self) -> Geometry:
        """Workload, basis and neighbours."""


class Stated(Located, Protocol):
    """The same with a target for every query."""

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
class Forms:
    """Both quadratic forms of a covariance, with allowances for their rounding, absolute.

    Attributes
    ----------
    profile, profile_rounding : (s,) arrays
        Cost ``(B u_i)' Σ⁻¹ (B u_i)`` of each pair of neighbours.
    variances, variance_rounding : (m,) arrays
        Variance ``v_j Σ v_j'`` of each query.
    """

    profile: Array
    variances: Array
    profile_rounding: Array
    variance_rounding: Array

    @property
    def cost(self) -> float:
        """Squared privacy cost, the largest entry of the profile."""
        return float(self.profile.max())

    @property
    def cost_rounding(self) -> float:
        """Allowance for the rounding of the cost, relative."""
        return float((self.profile + self.profile_rounding).max() / self.cost - 1)

    def binding(self, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours whose cost is within `slack` of the largest; none where that is infinite."""
        return np.flatnonzero((self.profile >= (1 - slack) * self.cost) & np.isfinite(self.cost))


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


def quadratic_forms(problem: Located, primal: npt.ArrayLike) -> Forms | None:
    """Evaluate both forms at any matrix; None for one that is no covariance, or that some neighbour leaves."""
    geometry, covariance = problem.geometry, covariance_of(problem, primal)
    if not np.all(np.isfinite(covariance)):
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        asymmetry = np.abs(covariance - covariance.T).max()
        if not asymmetry <= validate.SYMMETRY_TOLERANCE * np.abs(covariance).max():
            return None
        judged = linalg.inverse_forms((covariance + covariance.T) / 2, geometry.moves)
        if judged is None or not np.all(np.isfinite(judged[1])):
            return None
        settled, profile, profile_rounding = judged
        variances, variance_rounding = geometry.variances(settled)
    return Forms(profile, variances, profile_rounding, variance_rounding)


def evaluate(problem: Stated, primal: npt.ArrayLike) -> Sides:
    """Evaluate both sides of Problem 1 at any matrix; one that is no covariance costs infinity."""
    forms = quadratic_forms(problem, primal)
    if forms is None:
        moves, queries = problem.geometry.moves.shape[1], len(problem.targets)
        return Sides(np.full(moves, np.inf), np.full(queries, np.inf))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratios = forms.variances / problem.targets
        rounding = forms.cost_rounding
        higher = np.maximum(ratios, 0.0) + forms.variance_rounding / problem.targets
        # Variances that cancellation left at 0 or below say nothing: the allowance is then all there is.
        rounding += higher.max() / ratios.max() - 1 if ratios.max() > 0 else np.inf
    return Sides(forms.profile, ratios, float(rounding))


def meeting_targets(problem: Stated, primal: npt.ArrayLike) -> Array:
    """Return a covariance scaled so that the tightest target is met; what cannot be scaled is left as it is."""

    def excess(covariance: Array) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            settled = linalg.settled(covariance)
            variances, _ = problem.geometry.variances(covariance if settled is None else settled)
            return float((variances / problem.targets).max())

    return scaled_until(covariance_of(problem, primal), excess, 1, scaled, FEASIBLE / 10)


def spending_one(problem: Located, primal: npt.ArrayLike) -> Array:
    """Return a covariance scaled so that its squared privacy cost is 1; what cannot be scaled is left as it is."""

    def excess(covariance: Array) -> float:
        forms = quadratic_forms(problem, covariance)
        return np.inf if forms is None else forms.cost

    return scaled_until(covariance_of(problem, primal), excess, -1, scaled, FEASIBLE / 10)


def scaled_until(
    noise: T, excess: Callable[[T], float], power: int, divided: Callable[[T, float], T], slack: float
) -> T:
    """Return noise divided until `excess`, proportional to a power of it, is 1 at most, or by `slack` more."""
    for count in range(MOST_PASSES):
        found = excess(noise)
        if count and not found > 1 + slack:
            break
        margin = 1 + count * abs(found - 1) if count else 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = divided(noise, np.float64(found * margin) ** power)
    return noise


def covariance_of(problem: Located, primal: npt.ArrayLike) -> Array:
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
    neighbour_weights, query_weights = dual_weights(problem, dual)
    if not (proving(neighbour_weights) and proving(query_weights)):
        return 0.0, 0.0
    spread = query_weights / query_weights.max()
    return trace_norm_bound(problem.geometry, neighbour_weights, np.sqrt(spread / (spread @ problem.targets)))


def trace_norm_bound(geometry: Geometry, neighbour_weights: Array, factors: Array) -> tuple[float, float]:
    """Return ``‖diag(factors) W U diag(√λ)‖_*² / Σ λ_i`` and its rounding, relative; 0 where λ proves nothing.

    It bounds ``max_i (B u_i)'Σ⁻¹(B u_i) · Σ_j factors_j² v_j Σ v_j'`` from below, whatever the covariance.
    """
    if not proving(neighbour_weights):
        return 0.0, 0.0
    # Brought to a largest weight of 1 before anything else, so that no scale of theirs under- or overflows.
    shares = neighbour_weights / neighbour_weights.max()
    moves, queries = np.flatnonzero(shares), np.flatnonzero(factors)
    shares = shares[moves] / shares.sum()
    product = geometry.differences(queries, moves) * np.sqrt(shares) * factors[queries, None]
    norm, rounding = linalg.trace_norm(product)
    # The bound is on the workload, the other side on its factors: ``‖E‖_* ≤ √k ‖E‖_F`` for what is between them.
    rounding += float(np.sqrt(geometry.rank) * np.linalg.norm(factors * geometry.mismatch))
    return norm**2, 2 * rounding / norm if norm > 0 else 0.0


def proving(weights: Array) -> bool:
    """Whether weights prove anything: finite, none negative, not all zero."""
    return bool(np.all(np.isfinite(weights)) and np.all(weights >= 0) and np.any(weights))


def dual_weights(problem: Stated, dual: Iterable[npt.ArrayLike]) -> tuple[Array, Array]:
    """Return weights on neighbours (s,) and on queries (m,), their entries unseen; other shapes are refused."""
    try:
        first, last = dual
    except (TypeError, ValueError) as error:
        raise InputTypeError("dual must be a pair of weights, on neighbours and on queries") from error
    named = {"dual weights on neighbours": first}, {"dual weights on queries": last}
    weights = validate.numeric(1, **named[0]), validate.numeric(1, **named[1])
    expected = (problem.geometry.moves.shape[1],), problem.targets.shape
    if (weights[0].shape, weights[1].shape) != expected:
        raise InvalidInputError(
            f"dual must hold weights of shapes {expected[0]} on neighbours and {expected[1]} on queries, "
            f"got {weights[0].shape} and {weights[1].shape}"
        )
    return weights
