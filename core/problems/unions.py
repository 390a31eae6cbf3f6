"""Fitness for use and total variance of unions of product tables: exact by what symmetry they have, however large."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.certificate import Certificate
from dualmech.errors import InfeasibleAnswerError, InputTypeError, InvalidInputError
from dualmech.geometry import block_forms
from dualmech.geometry.block_forms import UnionPoint
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense_forms import proving
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.circular import CircularWorkload
from dualmech.workloads.stacking import structured
from dualmech.workloads.unions import UnionWorkload, union

if TYPE_CHECKING:
    from dualmech.mechanisms.block import UnionMechanism
    from dualmech.solution import Solution


@dataclass(frozen=True, slots=True, eq=False)
class UnionDual:
    """Weights that prove a bound, none negative: λ of orbits of cells, μ of those of queries (total variance: None)."""

    cell_weights: Array
    query_weights: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class UnionFitness:
    """Fitness for use on a union of product tables: one variance target a table, at the least privacy cost.

    Values of an attribute that no query set tells apart may be exchanged, and a circle of values may be turned, without
    changing what is asked. Noise that respects this loses nothing (``docs/scale.md``), and is a covariance K_b on each
    of a few blocks (`dualmech.geometry.blocks`). Minimise

    - ``α = max_o Σ_b (K_b⁻¹)_oo`` over orbits o of cells, subject to ``Σ_b v_jb K_b v_jb' ≤ c_j`` for each orbit j of
      queries.

    The dual is to maximise ``(Σ_b ‖diag(√μ) V_b diag(√λ)‖_*)²`` over ``λ, μ ≥ 0`` with ``Σ λ_o ≤ 1`` and
    ``Σ μ_j c_j ≤ 1``.
    Both are those of `FitnessForUse`, whose optimum this is, with the weights of an orbit spread evenly.

    Parameters
    ----------
    workload : Workload
        Made by `dualmech.workloads.union`, or one that keeps its structure: marginals, a product over a domain, query
        tables, a stack of these, or a circle, which becomes a table of one attribute.
    targets : float, array or mapping
        Variance targets > 0: one for all tables, one each, or by the tables' names.

    Raises
    ------
    InvalidInputError, InputTypeError
        A workload without structure, targets that are not positive or miss a table, a workload that is all zero or has
        so little symmetry that its blocks are too large.

    Notes
    -----
    One record added or removed. With marginals the blocks are the residual subspaces (`MarginalFitness`, which is
    quicker), on a circle they are the frequencies. Closed constructions of optimal noise for marginals and for queries
    that are products on groups: "Weighted Fourier factorizations", arXiv 2512.21499 (2025). What is added are blocks of
    several coordinates, targets by table, and the certificate.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> answer = fast.solve(dm.UnionFitness(dm.workloads.circular_ranges(24)), tol=1e-9)
    >>> answer.status.name, round(answer.objective, 6)
    ('CERTIFIED', 5.291903)
    """

    workload: UnionWorkload
    targets: Array
    blocks: Blocks = field(repr=False)

    def __init__(self, workload: Workload, targets: Any = 1.0) -> None:
        _state(self, workload, "targets", targets)

    @property
    def orbit_targets(self) -> Array:
        """The target of each orbit of queries."""
        return np.asarray(self.targets[self.blocks.tables])

    def certify(self, primal: UnionPoint, dual: UnionDual) -> Certificate:
        """Judge noise on blocks and dual weights; neither needs to come from a solver."""
        bound, rounding = self._bound(dual)
        forms = block_forms.evaluate(self.blocks, block_forms.checked_point(self.blocks, primal))
        if forms is None:
            return Certificate.of(np.inf, bound, np.inf, rounding)
        ratios = forms.variances / self.orbit_targets
        highest = (ratios + forms.variance_rounding / self.orbit_targets).max() / ratios.max()
        rounding += forms.relative_cost_rounding + float(highest) - 1
        return Certificate.of(forms.cost, bound, max(float(ratios.max()) - 1, 0.0), rounding)

    def feasible(self, primal: UnionPoint) -> UnionPoint:
        """Return the noise scaled so that the tightest target is met exactly."""

        def excess(point: UnionPoint) -> float:
            forms = block_forms.evaluate(self.blocks, point)
            return np.inf if forms is None else float((forms.variances / self.orbit_targets).max())

        return block_forms.meeting(block_forms.checked_point(self.blocks, primal), excess, 1)

    def spending(self, answer: Solution, cost: float) -> Solution:
        """Return an answer, from whichever layer, at a squared privacy cost of its own: privacy first, judged anew.

        As `MarginalFitness.spending`: all targets are multiplied by the least factor that the cost allows.

        Parameters
        ----------
        answer : Solution
            Of this problem.
        cost : float
            Squared privacy cost to spend, > 0 (ρ-zCDP is 2ρ).

        Raises
        ------
        InvalidInputError, InputTypeError
            A cost that is not positive, or so far from the answer's that targets are no longer moderate numbers.
        InfeasibleAnswerError
            Noise that is no covariance.

        Examples
        --------
        >>> import dualmech as dm
        >>> from dualmech import fast
        >>> hours = dm.UnionFitness(dm.workloads.union({"hour": 24}, {"each": ["hour"], "all": []}))
        >>> round(hours.spending(fast.solve(hours), cost=0.1).mechanism.rho, 9)
        0.05
        """
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.solution import required, restated

        point = self.feasible(required(answer).primal)
        cells, queries = self._weights(answer.dual)
        if (forms := block_forms.evaluate(self.blocks, point)) is None:
            raise InfeasibleAnswerError("no mechanism: the noise is no covariance")
        factor = forms.cost / validate.positive_number(cost=cost)
        targets = self.workload.per_table(factor * self.targets, "targets")
        validate.moderate(targets=targets)
        problem = copy.copy(self)  # with the same blocks: noise is stated on their bases
        object.__setattr__(problem, "targets", targets)
        return restated(answer, problem, point.scaled(factor), UnionDual(cells, queries / factor))

    def mechanism(self, primal: UnionPoint) -> UnionMechanism:
        """Return the mechanism with this noise."""
        return _mechanism(self, primal, 1.0)

    def prices(self, dual: UnionDual) -> Array:
        """Return each table's share of the privacy bill (tables,), ``Σ_j μ_j c_j`` over its orbits, of the sum."""
        _, weights = self._weights(dual)
        bill = np.zeros(len(self.targets))
        np.add.at(bill, self.blocks.tables, weights * self.orbit_targets)
        return np.asarray(bill / bill.sum()) if bill.any() else bill

    def binding(self, primal: UnionPoint, slack: float) -> npt.NDArray[np.intp]:
        """Return the orbits of cells whose cost is within `slack`, relative, of the largest."""
        return block_forms.binding(self.blocks, primal, slack)

    def loose(self, primal: UnionPoint, slack: float) -> npt.NDArray[np.intp]:
        """Return the tables none of whose queries comes within `slack`, relative, of the target."""
        forms = block_forms.evaluate(self.blocks, block_forms.checked_point(self.blocks, primal))
        largest = np.zeros(len(self.targets))
        if forms is not None:
            np.maximum.at(largest, self.blocks.tables, forms.variances)
        return np.flatnonzero(largest < (1 - slack) * self.targets)

    def _weights(self, dual: UnionDual) -> tuple[Array, Array]:
        if not isinstance(dual, UnionDual) or dual.query_weights is None:
            raise InputTypeError(
                f"dual must be a dualmech.UnionDual with query weights, got {type(dual).__name__}"
            )
        return (
            block_forms.checked_weights("cell_weights", dual.cell_weights, self.blocks.cells),
            block_forms.checked_weights("query_weights", dual.query_weights, len(self.blocks.tables)),
        )

    def _bound(self, dual: UnionDual) -> tuple[float, float]:
        cells, queries = self._weights(dual)
        if not (proving(cells) and proving(queries)):
            return 0.0, 0.0
        shares, bill = cells / cells.max(), queries / queries.max()
        return block_forms.bound(self.blocks, shares / shares.sum(), bill / (bill @ self.orbit_targets))


@dataclass(frozen=True, slots=True, eq=False)
class UnionVariance:
    """Least total variance of a union of product tables at a squared privacy cost of 1.

    With the weight w_t on the variance of every query of table t, and m_j queries in orbit j, minimise
    ``Σ_j w_j m_j Σ_b v_jb K_b v_jb'`` subject to ``Σ_b (K_b⁻¹)_oo ≤ 1`` for every orbit o of cells. The dual is to
    maximise ``(Σ_b ‖diag(√(w m)) V_b diag(√λ)‖_*)²`` over λ ≥ 0 with ``Σ λ_o ≤ 1``: those of `TotalVariance`.

    Parameters
    ----------
    workload : Workload
        As for `UnionFitness`.
    weights : float, array or mapping
        What a unit of a query's variance counts, > 0, as the targets of `UnionFitness`; by default 1.

    Raises
    ------
    InvalidInputError, InputTypeError
        As for `UnionFitness`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> asked = dm.workloads.union({"age": 16, "sex": 2}, {"ages": {"age": dm.workloads.prefix(16), "sex": None}})
    >>> answer, ages = fast.solve(dm.UnionVariance(asked)), fast.solve(dm.TotalVariance(dm.workloads.prefix(16)))
    >>> round(answer.objective / ages.objective, 5)      # the sexes are disjoint
    2.0
    """

    workload: UnionWorkload
    weights: Array
    blocks: Blocks = field(repr=False)

    def __init__(self, workload: Workload, weights: Any = 1.0) -> None:
        _state(self, workload, "weights", weights)

    @property
    def orbit_weights(self) -> Array:
        """What the variance of an orbit of queries counts, all its queries together."""
        return np.asarray(self.weights[self.blocks.tables] * self.blocks.counts)

    def certify(self, primal: UnionPoint, dual: UnionDual) -> Certificate:
        """Judge noise on blocks and weights of orbits of cells; neither needs to come from a solver."""
        given = dual.cell_weights if isinstance(dual, UnionDual) else dual
        cells = block_forms.checked_weights("cell_weights", given, self.blocks.cells)
        bound, rounding = 0.0, 0.0
        if proving(cells):
            shares = cells / cells.max()
            bound, rounding = block_forms.bound(self.blocks, shares / shares.sum(), self.orbit_weights)
        forms = block_forms.evaluate(self.blocks, block_forms.checked_point(self.blocks, primal))
        if forms is None:
            return Certificate.of(np.inf, bound, np.inf, rounding)
        total = float(self.orbit_weights @ forms.variances)
        rounding += forms.relative_cost_rounding + float(self.orbit_weights @ forms.variance_rounding) / total
        return Certificate.of(total, bound, max(forms.cost - 1, 0.0), rounding)

    def feasible(self, primal: UnionPoint) -> UnionPoint:
        """Return the noise scaled so that the squared privacy cost is exactly 1."""

        def excess(point: UnionPoint) -> float:
            forms = block_forms.evaluate(self.blocks, point)
            return np.inf if forms is None else forms.cost

        return block_forms.meeting(block_forms.checked_point(self.blocks, primal), excess, -1)

    def mechanism(self, primal: UnionPoint, cost: float = 1.0) -> UnionMechanism:
        """Return the mechanism with this noise, divided by a squared privacy cost."""
        return _mechanism(self, primal, 1 / validate.positive_number(cost=cost))

    def prices(self, dual: UnionDual) -> Array:
        """Return each table's share of the trace norm that proves the bound (tables,)."""
        found = np.zeros(len(self.weights))
        np.add.at(
            found, self.blocks.tables, block_forms.shares(self.blocks, dual.cell_weights, self.orbit_weights)
        )
        return np.asarray(found / found.sum()) if found.any() else found

    def binding(self, primal: UnionPoint, slack: float) -> npt.NDArray[np.intp]:
        """Return the orbits of cells whose cost is within `slack`, relative, of the largest."""
        return block_forms.binding(self.blocks, primal, slack)

    def loose(self, primal: UnionPoint, slack: float) -> npt.NDArray[np.intp]:
        """Return no table: none has a target of its own that it could fall short of."""
        return np.zeros(0, dtype=np.intp)


def _as_union(workload: Any) -> UnionWorkload:
    if not isinstance(workload, Workload):
        raise InputTypeError(f"workload must be a dualmech.Workload, got {type(workload).__name__}")
    if isinstance(workload, CircularWorkload):
        return union({"value": workload.shape[1]}, {"translates": {"value": workload}})
    found = workload if isinstance(workload, UnionWorkload) else structured([workload])
    if found is None:
        raise InvalidInputError(
            "workload must keep its structure, as those of dualmech.workloads.union, marginals, query_tables, circular "
            "and kron (over a domain) do; FitnessForUse and TotalVariance take any other"
        )
    return found


def _state(problem: UnionFitness | UnionVariance, workload: Workload, name: str, values: Any) -> None:
    """Check what a problem is made of, and set it: its numbers, one a table, under their name."""
    asked = _as_union(workload)
    checked = asked.per_table(values, name)
    validate.moderate(**{name: checked})
    blocks = Blocks.of(asked)
    if not (blocks.keys or blocks.several):
        raise InvalidInputError("workload must have at least one query that is not all zero")
    for attribute, value in (("workload", asked), (name, checked), ("blocks", blocks)):
        object.__setattr__(problem, attribute, value)


def _mechanism(problem: UnionFitness | UnionVariance, primal: UnionPoint, factor: float) -> UnionMechanism:
    # Imported here so that the judge rests on no module that it does not need.
    from dualmech.mechanisms.block import UnionMechanism

    point = block_forms.checked_point(problem.blocks, primal)
    return UnionMechanism(problem.workload, problem.blocks, point.scaled(factor))
