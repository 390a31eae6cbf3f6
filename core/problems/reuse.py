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
    """Weights that prove a lower bound: λ on neighbours (s,), μ on queries (m,), Ω on the release (q, q).

    On blocks λ and μ are on orbits, and Ω is a `BlockPoint`: a number or a matrix for each block.

    No entry of λ and μ may be negative, and of Ω counts the positive semidefinite part of its symmetric part. Any
    such weights prove a bound, whatever their scale; solvers return them with ``Σ λ_i = 1`` and
    ``Σ μ_j c_j + tr Ω = 1``.
    """

    neighbour_weights: Array
    query_weights: Array
    release_weights: Array | BlockPoint

    def __iter__(self) -> Iterator[Any]:
        return iter((self.neighbour_weights, self.query_weights, self.release_weights))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReuseFitness(Problem[ReuseDual, GaussianPrivacy]):
    """Reuse: the least total squared privacy cost at which every target is met, given an earlier release.

    What was released is worth as much as ``F x`` with unit noise; its cost matrix is ``F'F``. Whatever is run now,
    the two together cost a matrix ``B' Σ⁻¹ B`` that is at least that. Minimise α over Σ ≻ 0, the covariance on B x
    of all that is then known, subject to

    - ``(B u_i)' Σ⁻¹ (B u_i) ≤ α`` for every pair of neighbours u_i,
    - ``v_j Σ v_j' ≤ c_j`` for every query, where ``W = L B`` and v_j are the rows of L, and
    - ``K Σ K' ⪯ I``, where ``F = K B``: the release can be answered from the noisy answers. (It says the same as
      ``Σ⁻¹ ⪰ K'K``: both say that no singular value of ``K Σ^½`` exceeds 1.)

    The dual is to maximise ``‖[diag(√μ) W ; Ω^½ F] U diag(√λ)‖_*²`` over ``λ ≥ 0, Σ λ_i ≤ 1`` and ``μ ≥ 0, Ω ⪰ 0,
    Σ μ_j c_j + tr Ω ≤ 1``; any such weights bound α from below, and strong duality holds.
    Raises `InvalidInputError` or `InputTypeError` for what `FitnessForUse` refuses of the wish; a release on other
    cells, or exact where neighbours differ.
    The introduction of Xiao, Wang, Zhang and Kifer, "Answering private linear queries adaptively using the common
    mechanism", PVLDB 16(8), 2023, takes the wish's own mechanism and pays the residual; this is the joint optimum,
    which is never worse. Several Σ can be optimal, and some spend budget that others leave free.

    Parameters
    ----------
    workload : Workload
        W, the wish: m queries over d cells.
    targets : float, array or mapping
        Variance targets c > 0, one for all, one per query or, of tables, one for each, as `FitnessForUse` takes them.
    released : LinearGaussianMechanism or BlockMechanism
        What is out already, `stack`-ed where it is several; no part of it exact but what no neighbour changes,
        which is left aside: it costs nothing and stays known. Of a `BlockMechanism` the problem is on the blocks that
        its tables and those of the wish leave together, of cells without number; there Σ, K and Ω have a matrix for
        each block, and trace norms and traces are sums over the blocks (`dualmech.geometry.blocks`).
    neighbours : str, Relation, (d, s) array or sparse matrix, optional
        U, the differences of neighbouring data sets up to sign; by default the released mechanism's, and on blocks no
        others.

    Attributes
    ----------
    geometry : Dense or Blocks
        Where Σ is.
    basis : (k, d) array
        On a matrix: B, spanning the rows of W and F: the identity where these have full column rank, else orthonormal.
    release : (q, d) array
        On a matrix: F, independent rows.

    Examples
    --------
    The total of two cells is out with variance 2; now both cells are wanted with variance 1:

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
        """Of a matrix, factors of the workload and, in the rows after it, of the release; or blocks of tables."""
        return self.known.geometry

    @property
    def rows(self) -> ReleasedRows:
        """The release on a matrix; refused where it is of tables by blocks."""
        if not isinstance(self.known, ReleasedRows):
            raise InvalidInputError("released must be on a matrix, got a BlockMechanism; take its dense()")
        return self.known

    @property
    def basis(self) -> Array:
        """B (k, d), spanning the rows of W and F: the identity where these have full column rank, else orthonormal."""
        return self.rows.geometry.basis

    @property
    def release(self) -> Array:
        """F (q, d), independent rows."""
        return self.rows.rows

    def in_numbers(self) -> dict[str, object]:
        if not isinstance(self.known, ReleasedRows):
            raise InvalidInputError("no proof in whole numbers is known of reuse on geometry 'blocks'")
        release = self.release if len(self.release) else None
        return {"kind": "reuse"} | self.geometry.matrices(self.workload) | {"targets": self.targets, "release": release}

    @with_reasons
    def certify(self, primal: object, dual: object) -> Certificate:
        """Judge noise of all that is known in the end, a covariance on B x (k, k) or on blocks, and dual weights."""
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
        """Return the largest constraint, which may be 1; infinity where noise is no covariance."""
        forms = self.known.constraints(point)
        return np.inf if forms is None else forms.excess(CONSTRAINT_LIMIT)[0]

    def least_informative(self, primal: object) -> Any:
        """Return Σ with as much of its new information as the targets need: cost ``K'K + t (Σ⁻¹ - K'K)``, t least.

        No neighbours cost more: where the release decides α, little of the free budget may be needed. Noise that
        breaks a constraint, or that would lose digits, stays as it is.
        """
        point = self.geometry.point(primal)
        before = self.known.constraints(point)
        if before is None or not before.excess(CONSTRAINT_LIMIT)[0] <= 1 + FEASIBLE:
            return point
        spared = self.feasible(self.known.lean(point))
        after = self.known.constraints(spared)
        if after is None or not after.excess(CONSTRAINT_LIMIT)[0] <= 1 + FEASIBLE:
            return point
        blur, blur_before = (forms.cost_rounding + forms.excess(CONSTRAINT_LIMIT)[1] for forms in (after, before))
        kept = after.cost <= (1 + FEASIBLE) * before.cost and blur <= max(FEASIBLE, blur_before)
        return spared if kept else point

    def as_dual(self, dual: Any) -> ReuseDual:
        """Return given weights on neighbours, queries and the release, negative ones of rounding size as 0."""
        try:
            first, second, last = dual
        except (TypeError, ValueError) as error:
            raise InputTypeError("dual must hold weights on neighbours, queries and the release") from error
        return ReuseDual(*self.known.weights(first, second, last))

    def argument_values(self) -> dict[str, object]:
        """Return the arguments that make the same problem again, a rule of neighbours by its text."""
        relation = self.neighbours
        values = Problem.argument_values(self)
        return values | ({"neighbours": str(relation)} if isinstance(relation, Relation) else {})

    def as_primal(self, answer: object) -> Any:
        """Return noise from any source, or that of a mechanism which answers it."""
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
        held = getattr(dual, "release_weights", None)
        return replace(dual, release_weights=self.restored(held)) if isinstance(held, BasedPoint) else dual

    def mechanism(self, primal: object) -> Any:
        """Return all that is known in the end, release included: noise of this covariance."""
        return self.known.mechanism(self.geometry.point(primal))

    def new_mechanism(self, primal: object, least: float = 0.0) -> Any:
        """Return the mechanism to run now, of cost ``B' (Σ⁻¹ - K'K) B``; without rows where nothing is needed.

        A direction in which the release holds all but 1e-9 of the information counts as known: leaving it out can
        only lower the cost, and it raises no variance by more than that share. With `least`, the new mechanism holds at
        least this share of the information in every direction of a matrix or block of which it holds any, and costs at
        most so much more of the total: what is drawn in whole numbers needs rows that span what queries span.
        Raises `InfeasibleAnswerError` where the noise is no covariance, or the release cannot be answered from it.
        """
        point = self.geometry.point(primal)
        if not self._excess(point) <= 1 + FEASIBLE:
            raise InfeasibleAnswerError("no new mechanism: the covariance breaks a constraint or is indefinite")
        return self.known.new_mechanism(point, validate.nonnegative_number(least=least))

    def release_alone(self) -> tuple[Any, ReuseDual] | None:
        """Return the answer that runs nothing further, with its proof, where the release meets every target."""
        alone = self.known.alone()
        if alone is None:
            return None
        point, neighbours, weights = alone
        if not self._excess(point) <= 1 + FEASIBLE:
            return None
        return self.feasible(point), ReuseDual(neighbours, self.known.no_queries, weights)

    def prices(self, dual: ReuseDual) -> Array:
        """Return ``μ_j c_j / (Σ μ_l c_l + tr Ω)`` (m,): what loosening each target saves of the total cost.

        They sum to less than 1: the rest of the cost is due to the release and cannot be recovered.
        """
        _, weights, release_weights = self.as_dual(dual)
        bills = self.known.bills(weights)
        total = bills.sum() + self.known.total(release_weights)
        return np.asarray(bills / total) if total > 0 else np.zeros_like(bills)

    def binding(self, primal: object, slack: float) -> Index:
        """Return the neighbours whose cost is within `slack`, relative, of the largest."""
        within = validate.nonnegative_number(slack=slack)
        forms = self.known.constraints(self.geometry.point(primal))
        return np.zeros(0, dtype=np.intp) if forms is None else forms.binding(within)

    def exceeded(self, primal: object) -> tuple[str, ...]:
        """Say which queries exceed their targets most, and whether the release does not follow."""
        forms, count = self.known.constraints(self.geometry.point(primal)), len(self.targets)
        ratios = np.full(count, np.inf) if forms is None else forms.variances
        over = variances_over(ranked(ratios[:count]), self.known.wish.geometry.item_words)
        released = [("what was released before", float(ratios[-1]) if len(ratios) > count else 0.0)]
        return over + variances_over(released, str, "the variance that it was released with")

    def loose(self, primal: object, slack: float) -> Index:
        """Return the queries, or tables, whose variance is below their target by more than `slack`, relative."""
        below = validate.nonnegative_number(slack=slack)
        forms = self.known.constraints(self.geometry.point(primal))
        return np.flatnonzero([] if forms is None else forms.variances[: len(self.targets)] < 1 - below)
