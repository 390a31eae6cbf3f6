"""Query weighting: how much of the privacy to spend on each of some design queries (Program 1 of the Eigen-Design)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.certificate import Certificate, with_reasons
from dualmech.errors import InvalidInputError
from dualmech.geometry.weights import ON_NEIGHBOURS, read_weights, valid_weights
from dualmech.geometry.words import costs_over, neighbour_words, ranked
from dualmech.immutable import set_parts
from dualmech.neighbours import NeighboursLike
from dualmech.problems.base import Problem, limited
from dualmech.problems.design import DesignGeometry, SineDesign, SineLoads, WrittenLoads, answer_rows
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism

POWERS = {"approximate": 1, "pure": 2}
"""The power p for each kind of privacy: a weight u divides a variance by ``u^p``."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightingDual:
    """Weights of a lower bound: y ≥ 0 on neighbours (s,).

    Any such vector gives a bound, at any scale; solvers return one with ``Σ y_j = 1``.
    """

    neighbour_weights: Array


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryWeighting(Problem[WeightingDual, "LinearGaussianMechanism"]):
    """Optimal weights of design queries: the strategy measures each query with a precision of its weight.

    Write the workload over the design, ``W = L Q`` with ``L = W Q⁺``, and let ``c_i`` be the squared norm of
    column i of L. For approximate (Gaussian) privacy, minimise ``Σ c_i / u_i`` over weights u ≥ 0 with

    - ``Σ_i (q_i n_j)² u_i ≤ 1`` for every pair of neighbours n_j: with ``A = diag(√u) Q``, its squared cost.

    For pure ε-differential privacy (Laplace noise), minimise ``Σ c_i / u_i²`` with

    - ``Σ_i |q_i n_j| u_i ≤ 1``, the L1 sensitivity of ``A = diag(u) Q``.

    With unit noise on A x the objective is the workload's total variance if the design queries are independent;
    otherwise it is an upper bound (`strategy_error` is then lower). At another squared
    cost c it is ``1/c`` times as large; Laplace noise of privacy ε has the variance ``2/ε²``, not 1.

    The dual, with y in the simplex: ``g_i = Σ_j (q_i n_j)² y_j`` gives the bound ``(Σ √(c_i g_i))²``, and
    ``g_i = Σ_j |q_i n_j| y_j`` gives ``(Σ c_i^(1/3) g_i^(2/3))³``. It bounds this problem, not `TotalVariance`.
    Raises `InvalidInputError` or `InputTypeError` for a query outside the row space of the design, which is named;
    a design of the wrong shape or all zero; neighbours of the wrong shape or that change none of the design queries
    that are needed.

    Parameters
    ----------
    workload : Workload
        W, m queries over d cells, in the row space of the design.
    design : Workload, (k, d) array or sparse matrix
        Q, the design queries, dependent ones and all-zero ones among them. All ranges by `workloads.sines`, their
        eigen-queries, need no matrix.
    privacy : {"approximate", "pure"}
        Which noise, and so which sensitivity.
    neighbours : str, Relation, (d, s) array or sparse matrix, optional
        Differences n_j of neighbouring data sets up to sign (`dualmech.neighbours`); by default the identity,
        one record added or removed.

    Notes
    -----
    A design query with ``c_i = 0`` serves nothing and may have weight 0. One that no neighbour changes costs
    nothing: its weight may be infinite, and the mechanism releases it exactly.

    Program 1 of Li and Miklau, "An adaptive mechanism for accurate query answering under differential privacy",
    PVLDB 5(6), 2012, their Theorem 1, and section 3.5 for pure privacy, whose encoding they omit.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.QueryWeighting(dm.workloads.prefix(2), [[1, 0], [1, 1]])
    >>> problem.costs
    array([1., 1.])
    >>> judged = problem.certify([0.5, 0.5], dm.duals.WeightingDual([1, 0]))
    >>> round(judged.objective, 12), round(judged.lower_bound, 12)
    (4.0, 4.0)
    """

    workload: Workload
    design: Any  # an array (k, d), or sines, which are a workload
    privacy: str
    neighbours: Matrix | None
    geometry: DesignGeometry | SineDesign = field(repr=False)
    loads: WrittenLoads | SineLoads = field(repr=False)

    dual_type: ClassVar[Callable[..., WeightingDual]] = WeightingDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "design", "privacy", "neighbours")
    optional_arguments: ClassVar[tuple[str, ...]] = ("neighbours",)

    def __init__(
        self,
        workload: Workload,
        design: Workload | Matrix | npt.ArrayLike,
        privacy: str = "approximate",
        neighbours: NeighboursLike = None,
    ) -> None:
        validate.choice([*POWERS], privacy=privacy)
        by_sines = SineDesign.of(workload, design, neighbours, privacy)
        geometry = by_sines or DesignGeometry.of(workload, design, neighbours)
        set_parts(
            self,
            workload=workload,
            design=geometry.design,
            privacy=privacy,
            neighbours=geometry.neighbours,
            geometry=geometry,
            loads=geometry.loads(POWERS[privacy]),
        )

    @property
    def objective_name(self) -> str:
        return "total variance" if self.geometry.independent else "bound on the total variance"

    def in_numbers(self) -> dict[str, object]:
        moves = None if self.neighbours is None else linalg.to_dense(self.neighbours)
        arguments = {"workload": self.workload.dense(), "design": np.asarray(self.design), "neighbours": moves}
        return {"kind": "weighting", "privacy": self.privacy, **arguments}

    @property
    def costs(self) -> Array:
        """The total variance per unit of noise on each design query: c (k,), the squared column norms of W Q⁺."""
        return self.geometry.roots**2

    @property
    def sensitivities(self) -> Array:
        """The sensitivity per unit of each weight to each pair of neighbours (k, s), as a dense matrix."""
        return self.loads.matrix

    @property
    def cost_limit(self) -> float | None:
        """The limit on the squared privacy cost; None for pure privacy, with Laplace noise."""
        return 1.0 if self.privacy == "approximate" else None

    @property
    def power(self) -> int:
        """The power p of weights in variances: 1, or 2 for pure privacy."""
        return POWERS[self.privacy]

    @with_reasons
    def certify(self, primal: npt.ArrayLike, dual: WeightingDual | npt.ArrayLike) -> Certificate:
        """Certify weights (k,) of the design queries with dual weights (s,), from any source."""
        lower_bound, rounding = self._bound(dual)
        weights = self._weights(primal)
        if not self._meaningful(weights):
            return Certificate.of(np.inf, lower_bound, np.inf, rounding)
        roots = self.geometry.roots
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            sensitivities, sensitivity_error = self.loads.spent(weights)
            total = np.float64(self._total(roots, weights))
            upper = self._total(roots + self.geometry.root_rounding, weights)
            excess, p = max(float(sensitivities.max()) - 1, 0.0), self.power
            rounding += float(upper / total) - 1 + p * sensitivity_error + 2 * len(weights) * linalg.EPS
            # Weights scaled to the limit raise the objective by the power p of the excess, charged once.
            rounding += (1 + min(excess, 1.0)) ** (p - 1) - 1
            rounding += self.geometry.left_out(weights, self.loads.largest, p, float(total))
        return Certificate.of(float(total), lower_bound, excess, rounding)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the weights scaled to a largest sensitivity of 1; weights of insensitive queries are unchanged."""
        weights = self._weights(primal)
        if not self._meaningful(weights):
            return weights
        return weights / float(self.loads.spent(weights)[0].max())

    def strategy(self, primal: npt.ArrayLike) -> Array:
        """Return A (k, d), ``diag(√u) Q`` or, for pure privacy, ``diag(u) Q``: its answers get unit noise.

        Raises `InvalidInputError` for weights that are no solution (negative, or 0 on a design query that is
        needed), or infinite ones: a query released exactly is no strategy row.
        """
        weights = self._solution(primal)
        if not np.all(np.isfinite(weights)):
            first = int(np.flatnonzero(np.isinf(weights))[0])
            raise InvalidInputError(f"weights must be finite for a strategy, got inf at [{first}]")
        return np.asarray(np.sqrt(weights**self.power)[:, None] * np.asarray(self.design))

    def strategy_error(self, primal: npt.ArrayLike) -> float:
        """Return the total variance of the workload by least squares from the strategy, with unit noise.

        It is the objective where the design queries are independent, and at most that where they are not: by
        the Gauss-Markov theorem least squares is no worse than ``L``, which the objective holds fast.
        """
        weights = self._solution(primal)
        if self.geometry.independent:
            return self._total(self.geometry.roots, weights)
        basis, root = self.geometry.noise(weights**self.power)
        parts = answer_rows(self.workload, basis, basis.T @ root, "design")
        return float(sum(np.vdot(rows, rows) for _, rows in parts))

    def as_dual(self, dual: Any) -> WeightingDual:
        """Return given weights on neighbours, negative ones of rounding size as 0."""
        return WeightingDual(self._neighbour_weights(dual))

    def as_primal(self, answer: object) -> Array:
        """Return given weights u of the design queries (k,), none negative.

        Raises `InvalidInputError` or `InputTypeError` for weights that are negative, NaN or of another number
        than the design queries.
        """
        weights, count = validate.numeric(1, weights=answer), len(self.design)
        if len(weights) != count:
            raise InvalidInputError(f"weights must have {count} entries, one per design query, got {len(weights)}")
        wrong = np.flatnonzero(~(weights >= 0))
        if wrong.size:
            raise InvalidInputError(f"weights must not be negative, got {weights[wrong[0]]:g} at weights[{wrong[0]}]")
        return weights

    def mechanism(self, primal: npt.ArrayLike, cost: float = 1.0) -> LinearGaussianMechanism:
        """Return the mechanism that answers the strategy at a squared privacy cost.

        Raises `InvalidInputError` for weights that are no solution; a problem of pure privacy, whose noise is
        not Gaussian.
        """
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.mechanisms.gaussian import LinearGaussianMechanism

        if self.privacy == "pure":
            raise InvalidInputError(
                "privacy must be 'approximate' for a Gaussian mechanism, got 'pure', whose noise is Laplace noise "
                "on the rows of the strategy"
            )
        spent = validate.positive_number(cost=cost)
        basis, root = self.geometry.noise(self._solution(primal) ** self.power)
        mechanism: LinearGaussianMechanism = limited(
            LinearGaussianMechanism(basis, root @ root.T / spent, self.neighbours), spent
        )
        return mechanism

    def exceeded(self, primal: npt.ArrayLike) -> tuple[str, ...]:
        """Say which neighbours move the strategy's answers by more than 1."""
        weights = self._weights(primal)
        if not self._meaningful(weights):
            return ()
        return costs_over(
            ranked(self.loads.spent(weights)[0]), 1.0, partial(neighbour_words, self.workload, self.neighbours)
        )

    def prices(self, dual: WeightingDual | npt.ArrayLike) -> Array:
        """Return each design query's share of the objective (k,), ``(c_i / u_i) / Σ_l c_l / u_l``.

        They belong to the weights that the dual weights determine. A cost c_i that grows by the small
        fraction t raises the optimum by the fraction ``prices[i] · t``.
        """
        weights = self._neighbour_weights(dual)
        if not valid_weights(weights):
            return np.zeros(len(self.design))
        weights = weights / weights.max()
        terms = self._terms(self.geometry.roots, self.loads.reach(weights / weights.sum())[0])
        return terms / terms.sum() if np.any(terms) else terms

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours with a sensitivity of at least ``1 - slack`` times the largest."""
        min_share, weights = 1 - validate.nonnegative_number(slack=slack), self._weights(primal)
        if not self._meaningful(weights):
            return np.zeros(0, dtype=np.intp)
        sensitivities, _ = self.loads.spent(weights)
        return np.flatnonzero(sensitivities >= min_share * sensitivities.max())

    def _bound(self, dual: WeightingDual | npt.ArrayLike) -> tuple[float, float]:
        """Return ``(Σ c_i^(1/(p+1)) g_i^(p/(p+1)))^(p+1)`` and a relative error bound.

        Proof that it bounds the optimum: a feasible u has ``Σ g_i u_i ≤ Σ y_j = 1``, g being the combination of
        the sensitivities, and by Hölder's inequality ``Σ (c_i u_i^-p)^(1/(p+1)) (g_i u_i)^(p/(p+1))`` is at
        most ``(Σ c_i u_i^-p)^(1/(p+1)) (Σ g_i u_i)^(p/(p+1))``.
        """
        weights = self._neighbour_weights(dual)
        if not valid_weights(weights):
            return 0.0, 0.0
        shares = weights / weights.max()
        shares = shares / shares.sum()
        roots, (reach, raised), p = self.geometry.roots, self.loads.reach(shares), self.power
        value = self._terms(roots, reach).sum() ** (p + 1)
        least = np.maximum(roots - self.geometry.root_rounding, 0.0)
        lower = self._terms(least, np.maximum(2 * reach - raised, 0.0)).sum() ** (p + 1)
        sums = 1 + 2 * (p + 1) * (len(shares) + len(roots)) * linalg.EPS
        return float(value), float(sums - lower / value) if value > 0 else 0.0

    def _terms(self, roots: Array, reach: Array) -> Array:
        """Return ``c_i^(1/(p+1)) g_i^(p/(p+1))`` (k,), 0 for design queries that are not needed."""
        needed, p = self.geometry.needed, self.power
        terms = np.zeros(len(roots))
        terms[needed] = (roots[needed] ** 2 * reach[needed] ** p) ** (1 / (p + 1))
        return terms

    def _total(self, roots: Array, weights: Array) -> float:
        """Return ``Σ c_i / u_i^p`` over the design queries that are needed, whose costs have these roots."""
        needed = self.geometry.needed
        return float((roots[needed] ** 2 / weights[needed] ** self.power).sum())

    def _meaningful(self, weights: Array) -> bool:
        """Whether weights give every design query that is needed a variance, and neighbours a sensitivity."""
        bounded = np.ones(len(weights), dtype=bool)
        bounded[self.geometry.unmoved] = False
        return bool(
            np.all(weights >= 0)
            and np.all(weights[self.geometry.needed] > 0)
            and np.all(np.isfinite(weights[bounded]))
            and np.any(weights[bounded])
        )

    def _solution(self, primal: npt.ArrayLike) -> Array:
        weights = self._weights(primal)
        if not self._meaningful(weights):
            raise InvalidInputError(
                "weights must not be negative, must be positive where the costs are, and finite except on design "
                "queries that no neighbour changes"
            )
        return weights

    def _weights(self, primal: npt.ArrayLike) -> Array:
        weights = validate.numeric(1, weights=primal)
        if len(weights) != len(self.design):
            raise InvalidInputError(
                f"weights must have {len(self.design)} entries, one per design query, got {len(weights)}"
            )
        return weights

    def _neighbour_weights(self, dual: WeightingDual | npt.ArrayLike) -> Array:
        weights = dual.neighbour_weights if isinstance(dual, WeightingDual) else dual
        return read_weights(self.loads.shape[1], weights, *ON_NEIGHBOURS)
