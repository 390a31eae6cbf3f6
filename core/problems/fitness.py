"""Fitness for use: variance targets at the least privacy cost, the reverse problem, and queries for free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import accounting, mechanisms, validate
from dualmech.certificate import FEASIBLE, Certificate, with_reasons
from dualmech.errors import InvalidInputError
from dualmech.geometry.base import Geometry, Index, scale_to_limit
from dualmech.geometry.choice import choose
from dualmech.geometry.moves import changes_between
from dualmech.geometry.weights import FitnessDual
from dualmech.geometry.words import variances_over
from dualmech.immutable import set_parts
from dualmech.mechanisms.privacy import SPENT
from dualmech.neighbours import NeighboursLike
from dualmech.problems.base import OnGeometry
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism

__all__ = ["FitnessDual", "FitnessForUse", "PrivacyFirst"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FitnessForUse(OnGeometry[FitnessDual]):
    """Accuracy first: the least squared privacy cost for which every query meets its variance target.

    Minimise α over Σ ≻ 0 subject to

    - ``(B u_i)' Σ⁻¹ (B u_i) ≤ α`` for every pair of neighbours u_i, and
    - ``v_j Σ v_j' ≤ c_j`` for every query, where ``W = L B`` and v_j are the rows of L.

    The dual is to maximise ``‖diag(√μ) W U diag(√λ)‖_*²`` over ``λ ≥ 0, Σ λ_i ≤ 1`` and
    ``μ ≥ 0, Σ μ_j c_j ≤ 1``; any such weights bound α from below, and strong duality holds.
    Raises `InvalidInputError` or `InputTypeError` for an all-zero workload, targets that are not positive, of the
    wrong number or that miss a name, a basis that lacks full row rank or does not span the workload, neighbours of
    the wrong shape or that change no query, a geometry that cannot hold the workload.

    Parameters
    ----------
    workload : Workload
        W, m queries over d cells.
    targets : float, array, mapping, pandas Series or ByFactor
        Variance targets c > 0 (`variance_from_margin` converts margins of error): one for all, one per query, or by the
        names of queries or of their groups. For workloads with tables also one per table, or by names of tables, sets
        of attributes, or numbers of ways, such as ``{("age", "sex"): 25.0, 1: 4.0}``; for products by factor.
    basis : (k, d) array, optional
        B, of full row rank k, spanning the rows of W. By default the identity if W has full column rank, else
        orthonormal rows. With more rows than the rank of W, as in the paper's experiments, the infimum of the cost is
        the same but not attained: unlimited noise in directions without queries costs nothing. Only dense.
    neighbours : str, Relation, (d, s) array or sparse matrix, optional
        A rule: ``add-remove`` or ``replace``, also with ``:RECORDS`` per person, on dense geometries and blocks;
        ``participation:TIMES:SEPARATION`` for participation in several steps, on geometry ``epochs``. Or U, the
        differences of neighbouring data sets up to sign (`dualmech.neighbours`), only dense. By default one record
        added or removed.
    geometry : {"auto", "dense", "epochs", "blocks", "product", "split", "stream"} or Geometry
        Structure of the noise: a matrix (dense); small blocks by the symmetry of tables, for any number of cells; a
        product of factors; split by attribute, which proves an interval and is not always tight; phases of several
        epochs; or running sums by tridiagonal matrices (stream). ``auto`` takes the cheapest exact one;
        ``problem.geometry.name`` is its name.

    Notes
    -----
    Problem 1 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially private
    linear queries", PVLDB 14(10), 2021. The optimum is the square of the factorisation norm γ₂ of
    ``diag(c)^(-1/2) W`` (Edmonds, Nikolov and Ullman 2020). Independent noise on residual subspaces for marginals:
    Xiao, He, Zhang and Kifer (ResidualPlanner), NeurIPS 2023; closed constructions for products of queries on groups:
    "Weighted Fourier factorizations", arXiv 2512.21499 (2025). New here are the dual and the certificate.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    >>> best = problem.certify([[1, -1 / 2], [-1 / 2, 1]], ([2 / 3, 1 / 3], [1 / 3, 2 / 3]))
    >>> round(best.objective, 12), round(best.lower_bound, 12), best.gap < 1e-12
    (1.333333333333, 1.333333333333, True)
    >>> dm.FitnessForUse(dm.workloads.marginals([10] * 60, ways=(1, 2)), targets={1: 1.0, 2: 4.0})
    FitnessForUse(MarginalWorkload(1830 tables, 177600 queries x 1e+60 cells), blocks)
    """

    workload: Workload
    targets: Any
    geometry: Any = field(repr=False)

    numbers: ClassVar[str] = "targets"
    dual_type: ClassVar[Callable[..., FitnessDual]] = FitnessDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "targets")
    objective_name = "squared privacy cost"
    price_words = "Loosening the target{}", "saves about {} of rho"
    cost_limit = None  # its objective is the squared privacy cost

    def __init__(
        self,
        workload: Workload,
        targets: object = 1.0,
        basis: npt.ArrayLike | None = None,
        neighbours: NeighboursLike = None,
        *,
        geometry: str | Geometry = "auto",
    ) -> None:
        chosen, numbers = choose(workload, targets, "targets", geometry, basis, neighbours)
        set_parts(self, workload=workload, targets=numbers, geometry=chosen)

    def in_numbers(self) -> dict[str, object]:
        return self._noise_in_numbers(1.0)

    @with_reasons
    def certify(self, primal: object, dual: object) -> Certificate:
        """Judge a point (on a dense geometry a covariance on B x, (k, k)) and dual weights of any origin."""
        geometry = self.geometry
        lower_bound, rounding = geometry.bound(*geometry.weights(dual), self.targets)
        forms = geometry.forms(geometry.point(primal))
        if forms is None:
            return Certificate.of(np.inf, lower_bound, np.inf, rounding)
        excess, slack = forms.excess(self.targets)
        rounding += forms.cost_rounding + slack
        return Certificate.of(forms.cost, lower_bound, max(excess - 1, 0.0), rounding)

    def feasible(self, primal: object) -> Any:
        """Return the noise scaled so that the tightest target is met exactly."""
        geometry = self.geometry

        def excess(point: object) -> float:
            return float(geometry.largest_ratio(point, self.targets))

        return scale_to_limit(geometry.point(primal), excess, 1, geometry.divide, FEASIBLE / 10)

    def exceeded(self, primal: object) -> tuple[str, ...]:
        """Describe the queries, or tables, that exceed their targets most."""
        forms = self.geometry.forms(self.geometry.point(primal))
        return () if forms is None else variances_over(forms.worst_items(self.targets), self.geometry.item_words)

    def prices(self, dual: object) -> Array:
        """Return ``μ_j c_j / Σ μ_l c_l``, each query's, or table's, share of the privacy cost."""
        prices: Array = self.geometry.prices(self.geometry.weights(dual)[1], self.targets)
        return prices

    def loose(self, primal: object, slack: float) -> Index:
        """Return the queries, or tables, with variances below their targets by more than a relative `slack`."""
        rel_slack = validate.nonnegative_number(slack=slack)
        forms = self.geometry.forms(self.geometry.point(primal))
        return np.zeros(0, dtype=np.intp) if forms is None else forms.loose(self.targets, rel_slack)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PrivacyFirst(OnGeometry[FitnessDual]):
    """Privacy first: the least common factor on the targets at a given squared privacy cost.

    Minimise κ over Σ ≻ 0 subject to ``(B u_i)' Σ⁻¹ (B u_i) ≤ cost`` and ``v_j Σ v_j' ≤ κ c_j``. If Σ
    solves `FitnessForUse` with value α, then ``(α / cost) Σ`` solves this with value ``α / cost``, and the
    same dual weights bound it.

    Parameters
    ----------
    workload, targets, basis, neighbours, geometry
        As for `FitnessForUse`; here the targets give the ratios of the variances.
    cost : float
        Squared privacy cost Δ² > 0; or instead
    rho : number, Fraction or text such as "1/20"
        ρ of zCDP: Δ² is the largest double of at most 2ρ.

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
    >>> dm.PrivacyFirst(dm.workloads.prefix(2), targets=100.0, rho="1/20").cost
    0.09999999999999999
    """

    cost: float
    accuracy_first: FitnessForUse

    numbers: ClassVar[str] = "targets"
    dual_type: ClassVar[Callable[..., FitnessDual]] = FitnessDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "targets", "cost")
    objective_name = "factor on the targets"
    price_words = "Loosening the target{}", "lowers the factor on all targets by about {}"

    def __init__(
        self,
        workload: Workload,
        targets: object,
        cost: float | None = None,
        basis: npt.ArrayLike | None = None,
        neighbours: NeighboursLike = None,
        *,
        rho: float | str | Fraction | None = None,
        geometry: str | Geometry = "auto",
    ) -> None:
        only_cost = cost is not None and rho is None
        budget = validate.positive_number(cost=cost) if only_cost else accounting.cost_or_rho(cost, rho)
        accuracy_first = FitnessForUse(workload, targets, basis, neighbours, geometry=geometry)
        set_parts(self, cost=budget, accuracy_first=accuracy_first)

    @property
    def workload(self) -> Workload:  # type: ignore[override]
        """W of the accuracy-first problem."""
        return self.accuracy_first.workload

    @property
    def targets(self) -> Any:
        """Ratios of the variances."""
        return self.accuracy_first.targets

    @property
    def geometry(self) -> Any:
        """The geometry of the accuracy-first problem."""
        return self.accuracy_first.geometry

    @property
    def cost_limit(self) -> float:
        return self.cost

    def in_numbers(self) -> dict[str, object]:
        return self._noise_in_numbers(self.cost)

    @with_reasons
    def certify(self, primal: object, dual: object) -> Certificate:
        """Judge noise and dual weights."""
        geometry = self.geometry
        bound, rounding = geometry.bound(*geometry.weights(dual), self.targets)
        forms = geometry.forms(geometry.point(primal))
        if forms is None:
            return Certificate.of(np.inf, bound / self.cost, np.inf, rounding)
        excess, slack = forms.excess(self.targets)
        violation = max(forms.cost / self.cost - 1, 0.0)
        return Certificate.of(excess, bound / self.cost, violation, rounding + forms.cost_rounding + slack)

    def prices(self, dual: object) -> Array:
        """Return each query's, or table's, share of the common factor."""
        return self.accuracy_first.prices(dual)

    def loose(self, primal: object, slack: float) -> Index:
        """Return the queries, or tables, with variances below the scaled targets by more than a relative `slack`."""
        rel_slack = validate.nonnegative_number(slack=slack)
        forms = self.geometry.forms(self.geometry.point(primal))
        if forms is None:
            return np.zeros(0, dtype=np.intp)
        factor, numbers = forms.excess(self.targets)[0], self.targets
        # For a product, scale the targets of one factor.
        scaled = (numbers[0] * factor, *numbers[1:]) if isinstance(numbers, tuple) else numbers * factor
        return forms.loose(scaled, rel_slack)


# Queries for free: further queries within the privacy cost of a mechanism with an uneven profile.


def extra_for_free(
    mechanism: LinearGaussianMechanism, workload: Workload, targets: npt.ArrayLike = 1.0, alpha: float | None = None
) -> PrivacyFirst:
    """State the problem of further queries within the free budget of a mechanism.

    Minimise the common factor κ of the variances on the targets, over the covariance S of noise on
    ``F x``, where the rows of F span the workload, subject to ``(F u_i)' S⁻¹ (F u_i) ≤ α - profile_i`` for
    every pair of neighbours: the problem of `PrivacyFirst` at cost 1 with neighbours
    ``u_i / √(α - profile_i)``. Either layer solves it. Its profile is relative to the free budget; the extra release
    in ordinary units is ``LinearGaussianMechanism(basis, S, neighbours)``.
    Raises `InvalidInputError` or `InputTypeError` for a query that differs between neighbours without free budget (at
    most 1e-9 of α), by their names; for queries that no neighbour changes, which need no noise; and for arguments that
    `free_budget` refuses.
    Source: section 3.2.1 of Xiao et al., PVLDB 14(10), 2021.

    Parameters
    ----------
    mechanism : LinearGaussianMechanism
        The mechanism with an uneven profile.
    workload : Workload
        The further queries, (m, d).
    targets : float or (m,) array
        Ratios of their variances.
    alpha : float, optional
        As for `LinearGaussianMechanism.free_budget`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> mechanism = dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1]], [[1, 0], [0, 1]])
    >>> extra = fast.solve(dm.extra_for_free(mechanism, dm.Workload([[1, 0, 1]])))
    >>> round(extra.objective, 6)
    1.0
    """
    if alpha is not None:
        validate.moderate(alpha=validate.positive_number(alpha=alpha))
    rows = mechanisms.noise.as_matrix(mechanism)
    mechanism = validate.instance(mechanisms.gaussian.LinearGaussianMechanism, mechanism=rows)
    free_budget = mechanism.free_budget(alpha)
    mechanism.check_cells(workload)
    budget = float((mechanism.profile + free_budget).max())
    cells = sp.eye_array(len(free_budget), format="csc")
    differences = cells if mechanism.neighbours is None else mechanism.neighbours
    has_budget = free_budget > SPENT * budget
    _refuse_changed(workload, differences, np.flatnonzero(~has_budget))
    if not np.any(has_budget):
        raise InvalidInputError(
            "workload must change between some neighbours; none does, so every answer can be released exactly"
        )
    scaled = differences[:, has_budget] @ sp.diags_array(1 / np.sqrt(free_budget[has_budget]))
    return PrivacyFirst(workload, targets, cost=1.0, neighbours=scaled)


def _refuse_changed(workload: Workload, differences: Matrix, pairs: npt.NDArray[np.intp]) -> None:
    """Refuse a query that differs between pairs of neighbours without free budget."""
    for start, changes, rounding in changes_between(workload.matrix, differences[:, pairs]):
        changed = np.argwhere(changes > rounding)
        if len(changed):
            raise InvalidInputError(
                f"workload: query {workload.names[changed[0][0]]!r} changes between neighbours "
                f"{pairs[start + changed[0][1]]}, whose free budget is spent"
            )
