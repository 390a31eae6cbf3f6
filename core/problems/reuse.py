"""Reuse of a release: the least total privacy cost of a new workload, given an earlier release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dualmech import validate
from dualmech.certificate import FEASIBLE, Certificate, with_reasons
from dualmech.errors import InfeasibleAnswerError, InputTypeError, InvalidInputError
from dualmech.geometry.base import MAX_RESCALINGS, Index
from dualmech.geometry.blocks import BasedPoint, BlockPoint
from dualmech.geometry.words import ranked, variances_over
from dualmech.immutable import set_parts
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.noise import NoisyQueries, as_matrix
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.neighbours import NeighboursLike, Relation
from dualmech.problems.base import Problem, point_on
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.released import CONSTRAINT_LIMIT, Released, ReleasedRows, released_on
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload


@dataclass(frozen=True, slots=True, eq=False)
class ReuseDual:
    """Weights of a lower bound: λ on neighbours (s,), μ on queries (m,), Ω on the release (q, q).

    On blocks λ and μ are on orbits, and Ω is a `BlockPoint`: a number or a matrix for each block.

    λ and μ must be non-negative, and of Ω the positive semidefinite part of its symmetric part is used. Any such
    weights give a bound, at any scale; solvers return them with ``Σ λ_i = 1`` and
    ``Σ μ_j c_j + tr Ω = 1``.
    """

    neighbour_weights: Array
    query_weights: Array
    release_weights: Array | BlockPoint

    def __iter__(self) -> Iterator[Any]:
        return iter((self.neighbour_weights, self.query_weights, self.release_weights))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReuseFitness(Problem[ReuseDual, GaussianPrivacy]):
    """Reuse: minimise the total squared privacy cost that meets every target, given an earlier release.

    The release is equivalent to ``F x`` with unit noise, and its cost matrix is ``F'F``. Its composition with any new
    mechanism has a cost matrix ``B' Σ⁻¹ B`` of at least ``F'F``. Minimise α over Σ ≻ 0, the covariance of this
    composition on B x, subject to

    - ``(B u_i)' Σ⁻¹ (B u_i) ≤ α`` for every pair of neighbours u_i,
    - ``v_j Σ v_j' ≤ c_j`` for every query, where ``W = L B`` and v_j are the rows of L, and
    - ``K Σ K' ⪯ I``, where ``F = K B``: the release is answerable from the composition. (This is equivalent to
      ``Σ⁻¹ ⪰ K'K``: in both cases no singular value of ``K Σ^½`` exceeds 1.)

    The dual is to maximise ``‖[diag(√μ) W ; Ω^½ F] U diag(√λ)‖_*²`` over ``λ ≥ 0, Σ λ_i ≤ 1`` and ``μ ≥ 0, Ω ⪰ 0, Σ μ_j
    c_j + tr Ω ≤ 1``; any such weights bound α from below, and strong duality holds. Raises `InvalidInputError` or
    `InputTypeError` as `FitnessForUse` does, and for a release on other cells, or with exact answers that differ
    between neighbours. The introduction of Xiao, Wang, Zhang and Kifer, "Answering private linear queries adaptively
    using the common mechanism", PVLDB 16(8), 2023, takes the optimal mechanism of the new workload and releases its
    residual. This problem is the joint optimum, which is never worse. Several Σ can be optimal, with different
    remaining budgets.

    Parameters
    ----------
    workload : Workload
        W, the new workload: m queries over d cells.
    targets : float, array or mapping
        Variance targets c > 0: one number, one per query, or one per table, as for `FitnessForUse`.
    released : LinearGaussianMechanism or BlockMechanism
        The earlier release; of several, their `stack`. Exact answers must be equal for all neighbours: these cost
        nothing and are dropped. For a `BlockMechanism` the problem is on the blocks of all tables, for any number of
        cells; Σ, K and Ω then have a matrix for each block, and trace norms and traces are sums over the blocks
        (`dualmech.geometry.blocks`).
    neighbours : str, Relation, (d, s) array or sparse matrix, optional
        U, the differences of neighbouring data sets up to sign; by default those of the released mechanism,
        which blocks require.

    Attributes
    ----------
    geometry : Dense or Blocks
        The geometry of Σ.
    basis : (k, d) array
        On a matrix: B, a basis of the rows of W and F: the identity if these have full column rank, else orthonormal.
    release : (q, d) array
        On a matrix: F, independent rows.

    Examples
    --------
    The total of two cells is released with variance 2. Then both cells are requested with variance 1:

    >>> import dualmech as dm
    >>> total = dm.LinearGaussianMechanism([[1, 1]], [[2]])
    >>> problem = dm.ReuseFitness(dm.workloads.identity(2), 1.0, total)
    >>> best = problem.certify([[1, 0], [0, 1]], dm.duals.ReuseDual([1, 1], [1, 1], [[0]]))
    >>> best.objective, round(best.lower_bound, 12)
    (1.0, 1.0)
    >>> problem.new_mechanism([[1, 0], [0, 1]]).profile.round(12)       # 1/2 was paid with the total
    array([0.5, 0.5])
    """

    workload: Workload
    targets: Array
    released: Any  # a LinearGaussianMechanism or a BlockMechanism
    neighbours: Matrix | Relation | None
    known: Released = field(repr=False)

    dual_type: ClassVar[Callable[..., ReuseDual]] = ReuseDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "targets", "released", "neighbours")
    optional_arguments: ClassVar[tuple[str, ...]] = ("neighbours",)
    numbers: ClassVar[str] = "targets"
    objective_name = "squared privacy cost with the release"
    price_words = "Loosening the target{}", "saves about {} of rho"

    def __init__(
        self, workload: Workload, targets: object, released: GaussianPrivacy, neighbours: NeighboursLike = None
    ) -> None:
        released = as_matrix(released)
        if not isinstance(released, NoisyQueries | BlockMechanism):
            raise InputTypeError(
                f"released must be a LinearGaussianMechanism or a BlockMechanism, got {type(released).__name__}"
            )
        moves = released.neighbours if neighbours is None else neighbours

        def wish(geometry: str) -> FitnessForUse:
            return FitnessForUse(workload, targets, neighbours=moves, geometry=geometry)

        known = released_on(wish, released)
        target = known.wish
        set_parts(
            self,
            workload=workload,
            targets=target.targets,
            released=released,
            neighbours=target.neighbours,
            known=known,
        )

    @property
    def geometry(self) -> Any:
        """The dense geometry of the workload's rows, then the release's; or the blocks of all tables."""
        return self.known.geometry

    @property
    def rows(self) -> ReleasedRows:
        """The release on a matrix; refused on blocks."""
        if not isinstance(self.known, ReleasedRows):
            raise InvalidInputError("released must be on a matrix, got a BlockMechanism; take its dense()")
        return self.known

    @property
    def basis(self) -> Array:
        """B (k, d), a basis of the rows of W and F: the identity if these have full column rank, else orthonormal."""
        return self.rows.geometry.basis

    @property
    def release(self) -> Array:
        """F (q, d), independent rows."""
        return self.rows.rows

    def in_numbers(self) -> dict[str, object]:
        if not isinstance(self.known, ReleasedRows):
            raise InvalidInputError("exact proofs of reuse on geometry 'blocks' are not supported")
        release = self.release if len(self.release) else None
        return {"kind": "reuse"} | self.geometry.matrices(self.workload) | {"targets": self.targets, "release": release}

    @with_reasons
    def certify(self, primal: object, dual: object) -> Certificate:
        """Certify the noise of the composition, a covariance on B x (k, k) or on blocks, with dual weights."""
        forms = self.known.constraints(self.geometry.point(primal))
        lower_bound, rounding = self.known.bound(*self.as_dual(dual))
        if forms is None:
            return Certificate.of(np.inf, lower_bound, np.inf, rounding)
        excess, slack = forms.excess(CONSTRAINT_LIMIT)
        return Certificate.of(forms.cost, lower_bound, max(excess - 1, 0.0), forms.cost_rounding + slack + rounding)

    def feasible(self, primal: object) -> Any:
        """Return the noise scaled so that the tightest constraint, of a query or of the release, is met."""
        point = self.known.feasible(self.geometry.point(primal))
        for count in range(1, MAX_RESCALINGS):
            excess = self._excess(point)
            if not 1 + FEASIBLE / 10 < excess < np.inf:
                break
            point = self.geometry.divide(point, 1 + count * (excess - 1))
        return point

    def _excess(self, point: Any) -> float:
        """Return the largest constraint value, with limit 1; infinite if the noise is no covariance."""
        forms = self.known.constraints(point)
        return np.inf if forms is None else forms.excess(CONSTRAINT_LIMIT)[0]

    def least_informative(self, primal: object) -> Any:
        """Return Σ with the least share t of new information that meets the targets, of cost ``K'K + t (Σ⁻¹ - K'K)``.

        No pair of neighbours costs more. If the release determines α, a small share may be enough. Noise that violates
        a constraint, or whose error bound would increase, is returned unchanged.
        """
        point = self.geometry.point(primal)
        before = self.known.constraints(point)
        if before is None or not before.excess(CONSTRAINT_LIMIT)[0] <= 1 + FEASIBLE:
            return point
        spared = self.feasible(self.known.lean(point))
        after = self.known.constraints(spared)
        if after is None or not after.excess(CONSTRAINT_LIMIT)[0] <= 1 + FEASIBLE:
            return point
        error, error_before = (forms.cost_rounding + forms.excess(CONSTRAINT_LIMIT)[1] for forms in (after, before))
        accepted = after.cost <= (1 + FEASIBLE) * before.cost and error <= max(FEASIBLE, error_before)
        return spared if accepted else point

    def as_dual(self, dual: Any) -> ReuseDual:
        """Return weights on neighbours, queries and the release, with negative rounding errors set to 0."""
        try:
            first, second, last = dual
        except (TypeError, ValueError) as error:
            raise InputTypeError("dual must hold weights on neighbours, queries and the release") from error
        return ReuseDual(*self.known.weights(first, second, last))

    def argument_values(self) -> dict[str, object]:
        """Return the arguments of the constructor, with a relation of neighbours as text."""
        relation = self.neighbours
        values = Problem.argument_values(self)
        return values | ({"neighbours": str(relation)} if isinstance(relation, Relation) else {})

    def as_primal(self, answer: object) -> Any:
        """Return noise from any source, or the noise of a mechanism."""
        return point_on(self.geometry, answer)

    def stored(self, primal: object) -> object:
        return self.geometry.stored(primal)

    def restored(self, primal: object) -> object:
        return self.geometry.restored(primal)

    def stored_dual(self, dual: ReuseDual) -> ReuseDual:
        dual = self.as_dual(dual)
        weights = dual.release_weights
        return replace(
            dual, release_weights=self.geometry.stored(weights) if isinstance(weights, BlockPoint) else weights
        )

    def restored_dual(self, dual: Any) -> Any:
        weights = getattr(dual, "release_weights", None)
        return replace(dual, release_weights=self.restored(weights)) if isinstance(weights, BasedPoint) else dual

    def mechanism(self, primal: object) -> Any:
        """Return the composition of the release and the new mechanism, with this covariance."""
        return self.known.mechanism(self.geometry.point(primal))

    def new_mechanism(self, primal: object, least: float = 0.0) -> Any:
        """Return the new mechanism, of cost ``B' (Σ⁻¹ - K'K) B``; without rows if the release is enough.

        Directions in which the release has all but 1e-9 of the information are dropped: this lowers the cost, and
        raises variances by at most that share. With `least`, the new mechanism has at least this share of the
        information in every direction of a matrix or block that it measures, at an additional cost of at most this
        share of the total: integer noise needs rows with the span of the queries.
        Raises `InfeasibleAnswerError` if the noise is no covariance, or the release is not answerable from it.
        """
        point = self.geometry.point(primal)
        if not self._excess(point) <= 1 + FEASIBLE:
            raise InfeasibleAnswerError("no new mechanism: the covariance breaks a constraint or is indefinite")
        return self.known.new_mechanism(point, validate.nonnegative_number(least=least))

    def release_alone(self) -> tuple[Any, ReuseDual] | None:
        """Return the answer without a new mechanism, with its dual weights, if the release meets every target."""
        answer = self.known.alone()
        if answer is None:
            return None
        point, neighbours, weights = answer
        if not self._excess(point) <= 1 + FEASIBLE:
            return None
        return self.feasible(point), ReuseDual(neighbours, self.known.no_queries, weights)

    def prices(self, dual: ReuseDual) -> Array:
        """Return ``μ_j c_j / (Σ μ_l c_l + tr Ω)`` (m,), the shadow prices relative to the total cost.

        They sum to less than 1: the remaining cost is due to the release.
        """
        _, weights, release_weights = self.as_dual(dual)
        bills = self.known.bills(weights)
        total = bills.sum() + self.known.total(release_weights)
        return np.asarray(bills / total) if total > 0 else np.zeros_like(bills)

    def binding(self, primal: object, slack: float) -> Index:
        """Return the neighbours with a cost of at least ``1 - slack`` times the largest cost."""
        relative_slack = validate.nonnegative_number(slack=slack)
        forms = self.known.constraints(self.geometry.point(primal))
        return np.zeros(0, dtype=np.intp) if forms is None else forms.binding(relative_slack)

    def exceeded(self, primal: object) -> tuple[str, ...]:
        """Return messages about the queries with the largest excess, and about a violated release constraint."""
        forms, count = self.known.constraints(self.geometry.point(primal)), len(self.targets)
        ratios = np.full(count, np.inf) if forms is None else forms.variances
        over = variances_over(ranked(ratios[:count]), self.known.wish.geometry.item_words)
        released = [("the earlier release", float(ratios[-1]) if len(ratios) > count else 0.0)]
        return over + variances_over(released, str, "its released variance")

    def loose(self, primal: object, slack: float) -> Index:
        """Return the queries, or tables, with a variance below ``1 - slack`` times their target."""
        relative_slack = validate.nonnegative_number(slack=slack)
        forms = self.known.constraints(self.geometry.point(primal))
        return np.flatnonzero([] if forms is None else forms.variances[: len(self.targets)] < 1 - relative_slack)
