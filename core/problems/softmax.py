"""Soft maxima in place of the maxima of fitness for use: Problem 4, alone or with the total variance added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import scipy  # it loads special when that is used

from dualmech import validate
from dualmech.certificate import Certificate, with_reasons
from dualmech.geometry.base import EvaluatedForms
from dualmech.geometry.dense import Dense, divided_covariance, trace_norm_bound
from dualmech.geometry.weights import valid_weights
from dualmech.immutable import set_parts
from dualmech.linalg import EPS
from dualmech.neighbours import NeighboursLike
from dualmech.problems.base import Problem, point_on
from dualmech.problems.fitness import FitnessForUse
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxDual:
    """Weights that prove a lower bound: λ on neighbours (s,) and μ on queries (m,), shares that sum to 1 each.

    The judge divides either by its sum, so any two vectors without a negative entry prove a bound.
    """

    neighbour_weights: Array
    query_weights: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.neighbour_weights, self.query_weights))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SoftmaxFitness(Problem[SoftmaxDual, "LinearGaussianMechanism"]):
    """Fitness for use with both maxima smoothed: what the paper's own algorithm minimises, at fixed sharpness.

    Minimise over Σ ≻ 0

        ``F(Σ) = (1/t₁) log Σ_i exp(t₁ g_i) + (1/t₂) log Σ_j exp(t₂ h_j) + w Σ_j v_j Σ v_j'``

    with ``g_i = (B u_i)' Σ⁻¹ (B u_i)``, ``h_j = v_j Σ v_j' / c_j``, and w = `total_weight`. There is no other
    constraint: the answer is divided by ``γ = max_j h_j`` before it is released, which meets all targets
    (`rescaled`, `mechanism`). The dual, over λ ≥ 0 with sum 1 and μ ≥ 0 with sum 1, is to maximise

        ``2 ‖diag(√(μ/c + w)) W U diag(√λ)‖_* + H(λ)/t₁ + H(μ)/t₂``

    with the entropy ``H(p) = - Σ p log p``; strong duality holds, and the soft max weights of an optimal Σ,
    ``λ_i ∝ exp(t₁ g_i)`` and ``μ_j ∝ exp(t₂ h_j)``, are optimal (`dual_at`).

    The soft max of n numbers lies between their maximum and ``log(n)/t`` above it. So F is positive, the gap is
    relative to the lower bound, which includes the logarithms, and with w = 0 the optimum lies at most
    `smoothing_gap` above the optimum of Problem 3, which is ``2 √α`` for the optimum α of `FitnessForUse`.

    The sharpness is not free of units: targets times s, both t times √s and w divided by s is the same problem,
    with Σ times √s and the optimum divided by √s. What counts is ``t √α``.
    Raises `InvalidInputError` or `InputTypeError` for what `FitnessForUse` refuses, a sharpness that is not
    positive, a negative weight.
    Source: Problem 4, Equation 8 (whose second term lost its ``exp`` in print) and the end of section 6.1 of Xiao,
    Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially private linear queries", PVLDB 14(10),
    2021. The dual is this library's; `certify` proves it.

    Parameters
    ----------
    workload, targets, basis, neighbours
        As for `FitnessForUse`.
    t1, t2 : float
        Sharpness of the soft max of costs and of the soft max of variances, > 0.
    total_weight : float, default 0
        w ≥ 0, the weight of the total variance; 0 is Problem 4, a positive one the paper's hybrid of it.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.SoftmaxFitness(dm.workloads.identity(4), targets=1.0, t1=10, t2=10)
    >>> best = problem.certify([[float(i == j) for j in range(4)] for i in range(4)], ([1] * 4, [1] * 4))
    >>> round(best.objective, 6), best.gap < 1e-12              # 2 + log(4)/10 + log(4)/10
    (2.277259, True)
    >>> round(problem.smoothing_gap, 6)
    0.277259
    """

    workload: Workload
    targets: Array
    t1: float
    t2: float
    total_weight: float
    basis: Array
    neighbours: Matrix | None
    accuracy_first: FitnessForUse = field(repr=False)

    dual_type: ClassVar[Callable[..., SoftmaxDual]] = SoftmaxDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "targets", "t1", "t2", "total_weight", "basis", "neighbours")
    optional_arguments: ClassVar[tuple[str, ...]] = ("basis", "neighbours")

    def __init__(
        self,
        workload: Workload,
        targets: npt.ArrayLike,
        t1: float,
        t2: float,
        total_weight: float = 0.0,
        basis: npt.ArrayLike | None = None,
        neighbours: NeighboursLike = None,
    ) -> None:
        first, last = validate.positive_number(t1=t1), validate.positive_number(t2=t2)
        weight = validate.nonnegative_number(total_weight=total_weight)
        validate.moderate(t1=np.array([first]))
        validate.moderate(t2=np.array([last]))
        validate.moderate(total_weight=np.array([weight]))
        twin = FitnessForUse(workload, targets, basis, neighbours, geometry="dense")
        set_parts(
            self,
            workload=twin.workload,
            targets=twin.targets,
            t1=first,
            t2=last,
            total_weight=weight,
            basis=twin.basis,
            neighbours=twin.neighbours,
            accuracy_first=twin,
        )

    @property
    def geometry(self) -> Dense:
        """Factors of the workload, shared with the problem that is smoothed."""
        return self.accuracy_first.geometry

    @property
    def objective_name(self) -> str:
        return "sum of the soft maxima" + (" and the weighted total variance" if self.total_weight else "")

    def in_numbers(self) -> dict[str, object]:
        stated = self.geometry.matrices(self.workload)
        numbers = {name: getattr(self, name) for name in ("targets", "t1", "t2", "total_weight")}
        return {"kind": "soft maxima"} | stated | numbers

    @property
    def smoothing_gap(self) -> float:
        """``(log s)/t₁ + (log m)/t₂``: what the two soft maxima can add to the two maxima, at most."""
        return float(np.log(self.geometry.moves.shape[1]) / self.t1 + np.log(len(self.targets)) / self.t2)

    @with_reasons
    def certify(self, primal: npt.ArrayLike, dual: SoftmaxDual | tuple[npt.ArrayLike, npt.ArrayLike]) -> Certificate:
        """Judge a covariance on B x (k, k) and dual weights; neither needs to come from a solver.

        Proof of the bound. For any shares p, ``Σ p_i a_i + H(p)/t ≤ (1/t) log Σ exp(t a_i)``: it says that the
        relative entropy of p to the shares ``∝ exp(t a_i)`` is not negative. Add it for (λ, g) and for (μ, h):
        ``F(Σ) ≥ Σ_i λ_i g_i + Σ_j (μ_j/c_j + w) v_j Σ v_j' + H(λ)/t₁ + H(μ)/t₂``. With S = Σ^(1/2) the two
        sums are ``‖S⁻¹ B U diag(√λ)‖_F²`` and ``‖diag(√(μ/c + w)) L S‖_F²``; by ``a² + b² ≥ 2 a b`` and
        ``‖X‖_F ‖Y‖_F ≥ ‖X Y‖_*`` they are at least ``2 ‖diag(√(μ/c + w)) W U diag(√λ)‖_*``.
        """
        lower_bound, slack = self._bound(*self.geometry.weights(dual))
        forms = self.geometry.forms(self.geometry.point(primal))
        if forms is None:
            return Certificate.of(np.inf, lower_bound, 0.0, slack)
        value, rounding = self._value(forms)
        return Certificate.of(value, lower_bound, 0.0, rounding + slack)

    def dual_at(self, primal: npt.ArrayLike) -> SoftmaxDual:
        """Return the soft max weights of a covariance: the better it is, the better the bound they prove.

        They prove nothing, being 0, where the matrix is no covariance.
        """
        forms = self.geometry.forms(self.geometry.point(primal))
        if forms is None:
            return SoftmaxDual(np.zeros(self.geometry.moves.shape[1]), np.zeros(len(self.targets)))
        ratios = forms.ratios(self.targets)
        return SoftmaxDual(soft_max(forms.profile, self.t1)[1], soft_max(ratios, self.t2)[1])

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the covariance, free of any asymmetry: every Σ ≻ 0 is feasible."""
        return divided_covariance(self.geometry.point(primal), 1.0)

    def rescaled(self, primal: npt.ArrayLike) -> Array:
        """Return ``Σ / γ`` with ``γ = max_j v_j Σ v_j' / c_j``, which just meets the targets."""
        return self.accuracy_first.feasible(primal)

    def as_dual(self, dual: object) -> SoftmaxDual:
        """Return given weights on neighbours and queries, negative ones of rounding size as 0."""
        return SoftmaxDual(*self.geometry.weights(dual))

    def as_primal(self, answer: object) -> Array:
        """Return a covariance on B x from any source, or the covariance of a mechanism that answers it."""
        return np.asarray(point_on(self.geometry, answer))

    def mechanism(self, primal: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the mechanism that adds noise of the `rescaled` covariance to B x, as the paper releases it."""
        return self.accuracy_first.mechanism(self.rescaled(primal))

    def prices(self, dual: SoftmaxDual | tuple[npt.ArrayLike, npt.ArrayLike]) -> Array:
        """Return the shares μ_j (m,): what `FitnessForUse.prices` become as the soft max sharpens."""
        shares = np.asarray(self.geometry.weights(dual)[1])
        return shares / shares.sum() if valid_weights(shares) else np.zeros_like(shares)

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours whose cost is within `slack`, relative, of the largest."""
        within = validate.nonnegative_number(slack=slack)
        forms = self.geometry.forms(self.geometry.point(primal))
        return np.zeros(0, dtype=np.intp) if forms is None else forms.binding(within)

    def _value(self, forms: EvaluatedForms) -> tuple[float, float]:
        """Return F and its rounding, relative.

        Every form is known up to its allowance. F grows with each and is convex, so the allowances move it
        most where all are added.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            value = self._smooth(forms.profile, forms.variances)
            highest = self._smooth(forms.profile + forms.profile_rounding, forms.variances + forms.variance_rounding)
        terms = len(forms.profile) + len(forms.variances)
        return value, (highest - value) / value + 4 * terms * EPS

    def _smooth(self, profile: Array, variances: Array) -> float:
        first, last = soft_max(profile, self.t1)[0], soft_max(variances / self.targets, self.t2)[0]
        return first + last + self.total_weight * float(variances.sum())

    def _bound(self, neighbour_weights: Array, query_weights: Array) -> tuple[float, float]:
        """Return the bound that `certify` proves and its rounding, relative; 0 from weights that prove nothing."""
        if not (valid_weights(neighbour_weights) and valid_weights(query_weights)):
            return 0.0, 0.0
        shares = query_weights / query_weights.max()
        weights = shares / shares.sum() / self.targets + self.total_weight
        squared, rounding = trace_norm_bound(self.geometry, neighbour_weights, weights)
        norm = float(np.sqrt(squared))
        bound, slack = 2 * norm, norm * rounding
        for weights, sharpness in ((neighbour_weights, self.t1), (query_weights, self.t2)):
            relative = weights / weights.max()
            entropy = float(scipy.special.entr(relative / relative.sum()).sum())
            bound += entropy / sharpness
            # Several shares sum to 1 up to rounding, and what they miss counts as a part of 1/t, not of H/t.
            slack += 4 * (int(np.count_nonzero(weights)) - 1) * EPS * (1 + entropy) / sharpness
        return bound, slack / bound if bound > 0 else 0.0


def soft_max(values: Array, sharpness: float) -> tuple[float, Array]:
    """Return ``(1/t) log Σ exp(t a_i)`` and the shares ``∝ exp(t a_i)``, its gradient, without overflow."""
    largest = values.max()
    powers = np.exp(sharpness * (values - largest))
    total = powers.sum()
    return float(largest + np.log(total) / sharpness), np.asarray(powers / total)
