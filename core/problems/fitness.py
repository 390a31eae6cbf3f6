"""Fitness for use: every query meets its own variance target at the least privacy cost, and the reverse."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.certificate import Certificate
from dualmech.geometry.dense import Geometry
from dualmech.geometry.dense_forms import (
    FitnessDual,
    covariance_of,
    evaluate,
    meeting_targets,
    scaled,
    weak_duality_bound,
)
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism


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
            validate.moderate(targets=targets)
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
        return meeting_targets(self, primal)

    def mechanism(self, primal: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the mechanism that adds noise of this covariance to B x."""
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.mechanisms.gaussian import LinearGaussianMechanism

        return LinearGaussianMechanism(self.basis, primal, self.neighbours)

    def prices(self, dual: FitnessDual) -> Array:
        """Return ``μ_j c_j / Σ μ_l c_l`` (m,), each query's share of the privacy bill."""
        bill = np.asarray(dual.query_weights) * self.targets
        total = bill.sum()
        return np.asarray(bill / total) if total > 0 else np.zeros_like(bill)

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours whose cost is within `slack`, relative, of the largest."""
        return evaluate(self, primal).binding(slack)

    def loose(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the queries whose variance is below their target by more than `slack`, relative."""
        return np.flatnonzero(evaluate(self, primal).ratios < 1 - slack)


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
        sides = evaluate(self, primal)
        bound, rounding = weak_duality_bound(self, dual)
        violation = max(sides.cost / self.cost - 1, 0.0)
        return Certificate.of(sides.excess, bound / self.cost, violation, sides.rounding + rounding)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the covariance scaled so that the squared privacy cost is spent exactly."""
        covariance = covariance_of(self, primal)
        return scaled(covariance, self.cost / evaluate(self, covariance).cost)

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
        sides = evaluate(self, primal)
        return np.flatnonzero(sides.ratios < (1 - slack) * sides.excess)
