"""Fitness for use: every query meets its own variance target at the least privacy cost, and the reverse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE, Certificate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.problems.geometry import Geometry
from dualmech.validate import Array, Matrix
from dualmech.workload import Workload

if TYPE_CHECKING:
    from dualmech.mechanism import LinearGaussianMechanism


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
class FitnessForUse:
    """Accuracy first: the least squared privacy cost at which every query meets its variance target.

    Minimise α over Σ ≻ 0 subject to

    - ``(B u_i)' Σ⁻¹ (B u_i) ≤ α`` for every pair of neighbours u_i, and
    - ``v_j Σ v_j' ≤ c_j`` for every query, where ``W = L B`` and v_j are the rows of L.

    The dual is to maximise ``‖diag(√μ) W U diag(√λ)‖_*²`` over ``λ ≥ 0, Σ λ_i ≤ 1`` and
    ``μ ≥ 0, Σ μ_j c_j ≤ 1``; any such weights bound α from below, and strong duality holds.

    Parameters
    ----------
    workload : Workload
        W, m queries over d cells.
    targets : float or (m,) array
        Variance targets c > 0, one for all or one a query (`variance_from_margin` converts margins of error).
    basis : (k, d) array, optional
        B, of full row rank k = rank W, spanning the rows of W. By default the identity if W has full column
        rank, else orthonormal rows.
    neighbours : (d, s) array or sparse matrix, optional
        U, the differences of neighbouring data sets up to sign (`dualmech.neighbours`); by default the
        identity, one record added or removed.

    Raises
    ------
    InvalidInputError, InputTypeError
        An all-zero workload, targets that are not positive or of the wrong number, a basis that lacks full
        row rank or does not span the workload, neighbours of the wrong shape or that change no query.

    Notes
    -----
    Problem 1 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially private
    linear queries", PVLDB 14(10), 2021. The optimum is the square of the factorisation norm γ₂ of
    ``diag(c)^(-1/2) W`` (Edmonds, Nikolov and Ullman 2020).

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    >>> best = problem.certify([[1, -1 / 2], [-1 / 2, 1]], ([2 / 3, 1 / 3], [1 / 3, 2 / 3]))
    >>> round(best.objective, 12), round(best.lower_bound, 12), best.gap < 1e-12
    (1.333333333333, 1.333333333333, True)
    """

    workload: Workload
    targets: Array
    basis: Array
    neighbours: Matrix | None
    geometry: Geometry = field(repr=False)

    def __init__(
        self,
        workload: Workload,
        targets: npt.ArrayLike,
        basis: npt.ArrayLike | None = None,
        neighbours: Matrix | npt.ArrayLike | None = None,
    ) -> None:
        if isinstance(workload, Workload):
            targets = validate.per_item(workload.shape[0], targets=targets)
        geometry = Geometry.of(workload, basis, neighbours)
        object.__setattr__(self, "workload", workload)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "basis", geometry.basis)
        object.__setattr__(self, "neighbours", geometry.neighbours)
        object.__setattr__(self, "geometry", geometry)

    def certify(
        self, primal: npt.ArrayLike, dual: FitnessDual | tuple[npt.ArrayLike, npt.ArrayLike]
    ) -> Certificate:
        """Judge a covariance on B x (k, k) and dual weights; neither needs to come from a solver."""
        sides = evaluate(self, primal)
        lower_bound, rounding = weak_duality_bound(self, dual)
        return Certificate.of(sides.cost, lower_bound, max(sides.excess - 1, 0.0), sides.rounding + rounding)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the covariance scaled so that the tightest target is met exactly."""
        covariance = np.asarray(primal, dtype=np.float64)
        for count in range(MOST_PASSES):
            variances, _ = self.geometry.variances(covariance)
            excess = float((variances / self.targets).max())
            if count and not excess > 1 + FEASIBLE / 10:
                break
            margin = 1 + count * abs(excess - 1) if count else 1.0
            covariance = scaled(covariance, 1 / (excess * margin))
        return covariance

    def mechanism(self, primal: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the mechanism that adds noise of this covariance to B x."""
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.mechanism import LinearGaussianMechanism

        return LinearGaussianMechanism(self.basis, primal, self.neighbours)

    def prices(self, dual: FitnessDual) -> Array:
        """Return ``μ_j c_j / Σ μ_l c_l`` (m,), each query's share of the privacy bill."""
        bill = np.asarray(dual.query_weights) * self.targets
        total = bill.sum()
        return np.asarray(bill / total) if total > 0 else np.zeros_like(bill)

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours whose cost is within `slack`, relative, of the largest."""
        profile, _ = self.geometry.profile(np.asarray(primal, dtype=np.float64))
        return np.flatnonzero(profile >= (1 - slack) * profile.max())

    def loose(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the queries whose variance is below their target by more than `slack`, relative."""
        variances, _ = self.geometry.variances(np.asarray(primal, dtype=np.float64))
        return np.flatnonzero(variances < (1 - slack) * self.targets)


@dataclass(frozen=True, slots=True, eq=False)
class PrivacyFirst:
    """Privacy first: the least common factor on the targets at a given squared privacy cost.

    Minimise κ over Σ ≻ 0 subject to ``(B u_i)' Σ⁻¹ (B u_i) ≤ cost`` and ``v_j Σ v_j' ≤ κ c_j``. If Σ
    solves `FitnessForUse` with value α, then ``(α / cost) Σ`` solves this with value ``α / cost``, and the
    same dual weights bound it.

    Parameters
    ----------
    workload, targets, basis, neighbours
        As for `FitnessForUse`; here the targets say how the variances shall relate.
    cost : float
        Squared privacy cost Δ² that may be spent, > 0 (ρ-zCDP is Δ² = 2ρ).

    Notes
    -----
    Problem 2 and Theorem 5 of the paper that `FitnessForUse` cites.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.PrivacyFirst(dm.workloads.prefix(2), targets=1.0, cost=4 / 3)
    >>> best = problem.certify([[1, -1 / 2], [-1 / 2, 1]], ([2 / 3, 1 / 3], [1 / 3, 2 / 3]))
    >>> round(best.objective, 12), best.gap < 1e-12
    (1.0, True)
    """

    workload: Workload
    targets: Array
    cost: float
    basis: Array
    neighbours: Matrix | None
    accuracy_first: FitnessForUse = field(repr=False)

    def __init__(
        self,
        workload: Workload,
        targets: npt.ArrayLike,
        cost: float,
        basis: npt.ArrayLike | None = None,
        neighbours: Matrix | npt.ArrayLike | None = None,
    ) -> None:
        allowed = validate.positive_number(cost=cost)
        twin = FitnessForUse(workload, targets, basis, neighbours)
        object.__setattr__(self, "workload", twin.workload)
        object.__setattr__(self, "targets", twin.targets)
        object.__setattr__(self, "cost", allowed)
        object.__setattr__(self, "basis", twin.basis)
        object.__setattr__(self, "neighbours", twin.neighbours)
        object.__setattr__(self, "accuracy_first", twin)

    @property
    def geometry(self) -> Geometry:
        """Factors of the workload, shared with the accuracy-first twin."""
        return self.accuracy_first.geometry

    def certify(
        self, primal: npt.ArrayLike, dual: FitnessDual | tuple[npt.ArrayLike, npt.ArrayLike]
    ) -> Certificate:
        """Judge a covariance on B x (k, k) and dual weights."""
        sides = evaluate(self.accuracy_first, primal)
        bound, rounding = weak_duality_bound(self.accuracy_first, dual)
        violation = max(sides.cost / self.cost - 1, 0.0)
        return Certificate.of(sides.excess, bound / self.cost, violation, sides.rounding + rounding)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the covariance scaled so that the squared privacy cost is spent exactly."""
        profile, _ = self.geometry.profile(np.asarray(primal, dtype=np.float64))
        return scaled(primal, float(profile.max()) / self.cost)

    def mechanism(self, primal: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the mechanism that adds noise of this covariance to B x."""
        return self.accuracy_first.mechanism(primal)

    def prices(self, dual: FitnessDual) -> Array:
        """Return each query's share of the common factor (m,)."""
        return self.accuracy_first.prices(dual)

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours whose cost is within `slack`, relative, of the largest."""
        return self.accuracy_first.binding(primal, slack)

    def loose(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the queries below the common factor on their target by more than `slack`, relative."""
        variances, _ = self.geometry.variances(np.asarray(primal, dtype=np.float64))
        ratios = variances / self.targets
        return np.flatnonzero(ratios < (1 - slack) * ratios.max())


MOST_PASSES = 10
"""Times that a covariance is scaled to its targets: where it is ill-conditioned, rounding undoes a little of it.

Each time after the first, a growing margin is left for that."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Largest cost and largest ratio of variance to target of one covariance, and their rounding, relative."""

    cost: float
    excess: float
    rounding: float


def evaluate(problem: FitnessForUse, primal: npt.ArrayLike) -> Sides:
    """Evaluate both sides of Problem 1 at any matrix; one that is no covariance costs infinity."""
    geometry, size = problem.geometry, problem.geometry.rank
    covariance = validate.numeric(2, covariance=primal)
    if covariance.shape != (size, size):
        raise InvalidInputError(f"covariance must have shape ({size}, {size}), got {covariance.shape}")
    nothing = Sides(np.inf, np.inf, 0.0)
    if not np.all(np.isfinite(covariance)):
        return nothing
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if (
            not np.abs(covariance - covariance.T).max()
            <= validate.SYMMETRY_TOLERANCE * np.abs(covariance).max()
        ):
            return nothing
        covariance = (covariance + covariance.T) / 2
        profile, profile_rounding = geometry.profile(covariance)
        if not np.all(np.isfinite(profile)):
            return nothing
        variances, variance_rounding = geometry.variances(covariance)
        cost, excess = float(profile.max()), float((variances / problem.targets).max())
        rounding = (profile + profile_rounding).max() / cost - 1
        rounding += ((variances + variance_rounding) / problem.targets).max() / excess - 1
    return Sides(cost, excess, float(rounding))


def scaled(primal: npt.ArrayLike, factor: float) -> Array:
    """Return ``factor · Σ``; a point without finite value is returned as it is, for the judge to refuse."""
    covariance = np.asarray(primal, dtype=np.float64)
    covariance = (covariance + covariance.T) / 2
    return covariance * factor if np.isfinite(factor) and factor > 0 else covariance


def weak_duality_bound(
    problem: FitnessForUse, dual: FitnessDual | tuple[npt.ArrayLike, npt.ArrayLike]
) -> tuple[float, float]:
    """Return ``‖diag(√μ) W U diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)`` and its rounding, relative.

    Proof that it bounds α: with S = Σ^(1/2), ``Σ_i λ_i (B u_i)'Σ⁻¹(B u_i) = ‖S⁻¹ B U diag(√λ)‖_F²`` is at
    most ``α Σ λ_i``, and ``Σ_j μ_j v_j Σ v_j' = ‖diag(√μ) L S‖_F²`` at most ``Σ μ_j c_j``; multiply, and use
    ``‖X Y‖_* ≤ ‖X‖_F ‖Y‖_F``. Weights that are negative or not finite prove nothing: the bound is 0.
    """
    neighbour_weights, query_weights = _dual_parts(dual)
    expected = (problem.geometry.moves.shape[1],), problem.workload.shape[:1]
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
