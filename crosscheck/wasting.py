"""Waste of a mechanism: its privacy cost beyond the minimum cost of the same accuracy of every query."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dualmech import fast, validate
from dualmech.certificate import Certificate
from dualmech.crosscheck.judging import covariance_of_strategy, describe_kind
from dualmech.display import Displayed, counted, decimal_above
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.stream import stream_in
from dualmech.linalg import to_dense
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.neighbours import Relation, relation_of
from dualmech.problems.fitness import FitnessForUse
from dualmech.progress import Callback
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.watching import without_warnings
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.unions import UnionWorkload, union_of

MAX_ORDERED = 2048  # ordered queries, such as prefixes, whose consistent answers need a matrix

ROUNDING = 1e-9
"""Minimum relative rounding error of variances. It widens the interval of the minimum cost, and targets within a table
that differ by less are equal."""

EXACT = 1e-6  # nominal variance of tables without noise, relative to the largest other variance

MAX_CELLS = 1024  # on larger domains, only the largest variance of each table is matched


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Waste(Displayed):
    """The privacy cost of a mechanism beyond the minimum at the same accuracy of every query of a workload.

    Attributes
    ----------
    mechanism
        The judged mechanism.
    answer : Solution
        The noise of minimum cost with its variances as targets, with a certificate.
    by_table : bool
        Whether only the largest variance of each table is matched, because the domain is large.
    rounding : float
        Relative rounding error of the matched variances, which widens the interval.
    practice : str
        The judged practice in words; empty for a mechanism.
    spent : float, optional
        Budget of a practice as a squared privacy cost, the sum over its tables; at least the cost of its noise.
    variances : mapping of names to float
        The largest variance of each table of a practice.
    """

    mechanism: GaussianPrivacy
    answer: Solution
    by_table: bool
    rounding: float = ROUNDING
    practice: str = ""
    spent: float | None = None
    variances: Mapping[str, float] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """Squared privacy cost of the mechanism, or budget of the practice."""
        return float(self.mechanism.squared_privacy_cost if self.spent is None else self.spent)

    @property
    def least(self) -> tuple[float, float]:
        """Proven interval of the minimum squared privacy cost with the same accuracy of every query."""
        low, high = self.answer.certificate.interval
        rounding = min(self.rounding, 1.0)
        return min(low * (1 - rounding), self.cost), min(high * (1 + rounding), self.cost)

    @property
    def share(self) -> tuple[float, float]:
        """Proven interval of the wasted share of the cost, ``1 - least / cost``."""
        low, high = self.least
        return 1 - high / self.cost, 1 - low / self.cost

    @property
    def certificate(self) -> Certificate:
        """The certificate of the mechanism: its cost against the bound."""
        certificate = self.answer.certificate
        return Certificate.of(self.cost, certificate.lower_bound, 0.0, certificate.resolution + self.rounding)

    @property
    def better(self) -> GaussianPrivacy:
        """The mechanism of `answer`, or the judged mechanism if that costs no more."""
        best = self.answer.mechanism if self.answer.certificate.feasible else self.mechanism
        return best if best.squared_privacy_cost < self.cost else self.mechanism

    @property
    def words(self) -> tuple[str, ...]:
        """The verdict in sentences."""
        low, high = self.share
        min_rho = decimal_above(self.least[1] / 2)
        queries = "the least accurate query of every table" if self.by_table else "every query"
        if self.practice:
            share = f"{self.practice} wastes {_percent(low, high)} of it (proven)"
            return (f"{share}: noise of rho = {min_rho} is enough to make {queries} as accurate.",)
        lines = [
            f"It costs rho = {decimal_above(self.cost / 2)} (zCDP); noise of rho = {min_rho} is enough to make "
            f"{queries} as accurate.",
            f"Wasted: {_percent(low, high)} of rho (proven).",
        ]
        if self.by_table:
            lines.append(
                "Within a table, queries that are more accurate than its worst query may become less accurate."
            )
        return tuple(lines)

    def _facts(self) -> dict[str, object]:
        return {
            "squared privacy cost": self.cost,
            "the least lies in": self.least,
            "wasted": _percent(*self.share),
            "matched": "the worst of every table" if self.by_table else "every query",
        }

    def __repr__(self) -> str:
        return f"Waste({_percent(*self.share)} of {self.cost:.6g})"


def waste(
    mechanism: Any,
    workload: Workload | None = None,
    tol: float = 1e-6,
    *,
    rho: float | str | Fraction | None = None,
    shares: Mapping[str, float] | None = None,
    as_drawn: bool = False,
    neighbours: str | Relation | None = None,
    callback: Callback | None = None,
) -> Waste:
    """Compute the waste of a mechanism or a practice: its cost beyond the minimum cost of the same accuracy.

    A mechanism's variances are the targets of `dualmech.FitnessForUse`, under its own neighbours; the bound comes from
    the certificate. Its answers to other queries than the workload count as waste. If variances differ within a
    table, and the domain has more than 1,024 cells, the largest variance of each table is matched, and the result has
    `by_table`.

    A workload instead of the mechanism, with `rho`, means a practice: each table gets a share of ρ, and independent
    noise on its entries. The published answers are made consistent by least squares on all tables, or, with `as_drawn`,
    keep each table's own noise. Tables that no neighbour changes have no noise and no share.
    Raises `InvalidInputError` or `InputTypeError` for no mechanism of Gaussian noise, no workload, other cells, queries
    that are not answered or are answered exactly, a mechanism that is too large for a dense matrix if its answers need
    one, shares that name no table, and tables that no neighbour changes.

    Parameters
    ----------
    mechanism : any mechanism of Gaussian noise, or the workload of a practice
        Dense, on blocks, products, split, streams or causal strategies.
    workload : Workload
        A workload on the same cells; none for a practice.
    rho : number or text such as "1/10"
        The budget ρ of a practice.
    shares : mapping of table names to numbers, optional
        The split of ρ over the tables of a practice, by default equal.
    as_drawn : bool
        Whether a practice publishes each table's own noise.
    neighbours : str or Relation, optional
        The neighbours of a practice.
    tol : float
        Gap of the minimum cost; the interval is valid for any gap.
    callback : callable, optional
        Receives a `Progress` after each step.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import crosscheck
    >>> counts = dm.BlockMechanism.of_tables(dm.workloads.marginals({"age": 16}, ways=(0, 1)))
    >>> wasted = crosscheck.waste(counts, dm.workloads.prefix(16))
    >>> round(wasted.cost, 6), round(wasted.better.squared_privacy_cost, 4)
    (2.0, 1.7153)
    >>> print(wasted.words[1])
    Wasted: 14.23 % to 14.24 % of rho (proven).
    >>> tables = dm.workloads.marginals({"age": 16, "sex": 2}, ways=(1, 2))
    >>> crosscheck.waste(tables, rho="1/10", as_drawn=True)
    Waste(27.34 % to 27.35 % of 0.2)
    """
    if isinstance(mechanism, Workload):
        if workload is not None or rho is None:
            raise InvalidInputError("rho must be given with the workload of a practice, and no other workload")
        budget, is_drawn = validate.exact_number(rho=rho), validate.boolean(as_drawn=as_drawn)
        tol = validate.positive_number(tol=tol)
        return _waste_of_practice(mechanism, budget, shares, is_drawn, neighbours, tol, callback)
    drawn_option = True if validate.boolean(as_drawn=as_drawn) else None
    for name, value in {"rho": rho, "shares": shares, "as_drawn": drawn_option, "neighbours": neighbours}.items():
        if value is not None:
            raise InvalidInputError(f"{name} is for a practice: a mechanism has its own privacy and accuracy")
    queries = check_workload(workload)
    if not isinstance(mechanism, GaussianPrivacy):
        raise InputTypeError(f"mechanism must be one of Gaussian noise, got {describe_kind(mechanism)}")
    if not 0 < mechanism.squared_privacy_cost < math.inf:
        raise InvalidInputError("mechanism must have a privacy cost that is positive and finite")
    targets, by_table = _targets(queries, mechanism.as_targets(queries))
    relation = getattr(mechanism, "neighbours", None)
    if relation is not None and not isinstance(relation, Relation):
        relation = Relation.matching(relation) or relation
    problem = FitnessForUse(queries, targets, neighbours=relation)
    answer = _solved(problem, tol, callback)
    return Waste(mechanism=mechanism, answer=answer, by_table=by_table, rounding=_rounding(problem, mechanism))


def _solved(problem: FitnessForUse, tol: float, callback: Callback | None) -> Solution:
    with without_warnings():
        return fast.solve(problem, tol=tol, callback=callback)


def _waste_of_practice(
    workload: Workload,
    rho: Fraction,
    shares: Mapping[str, float] | None,
    as_drawn: bool,
    neighbours: str | Relation | None,
    tol: float,
    callback: Callback | None,
) -> Waste:
    relation, tables = relation_of(neighbours), _tables(workload)
    if stream_in(workload) is not None and workload.shape[0] > MAX_ORDERED:
        raise InvalidInputError(
            f"workload must have at most {MAX_ORDERED} queries in order: independent noise on each is made consistent "
            f"on a matrix, got {workload.shape[0]}"
        )
    costs = {name: _cost_alone(table, relation) for name, table in tables.items()}
    noisy = [name for name, cost in costs.items() if cost > 0]
    if not noisy:
        raise InvalidInputError("workload must have a table that neighbours change: all of these need no noise")
    parts = _shares(shares, noisy)
    variances = {name: costs[name] / (2 * float(rho) * parts[name]) for name in noisy}
    # Tables that no neighbour changes have no cost; in consistent tables they get a very small nominal variance.
    variances = {name: variances.get(name, EXACT * max(variances.values())) for name in tables}
    problem = FitnessForUse(workload, variances, neighbours=relation)
    mechanism = _independent_noise(problem, workload, variances, relation)
    split = "An equal split" if shares is None else "This split"
    kind = ", as drawn," if as_drawn else ", made consistent,"
    description = f"{split} of rho = {rho} over {counted(len(noisy), 'table')}{kind}"
    if not as_drawn:
        result = waste(mechanism, workload, tol, callback=callback)
        variances = {name: float(np.max(mechanism.as_targets(table))) for name, table in tables.items()}
    else:
        result = Waste(mechanism=mechanism, answer=_solved(problem, tol, callback), by_table=False)
    rounding = result.rounding + (EXACT if len(noisy) < len(tables) else 0.0)
    return replace(result, practice=description, spent=2 * float(rho), variances=variances, rounding=rounding)


def _tables(workload: Workload) -> dict[str, Workload]:
    """Return the tables of a workload by name, or its groups of queries if it has no tables."""
    tabular = workload.tabular()
    if tabular is None:
        groups = np.array(workload.groups)
        return {name: workload.select(np.flatnonzero(groups == name)) for name in dict.fromkeys(workload.groups)}
    union: Any = tabular if isinstance(tabular, UnionWorkload) else union_of([tabular])
    return {table.name: UnionWorkload(union.domain, [table]) for table in union.tables}


def _shares(shares: Mapping[str, float] | None, names: list[str]) -> dict[str, float]:
    """Return the share of ρ of each table, with the sum 1."""
    if shares is None:
        return dict.fromkeys(names, 1 / len(names))
    by_name = {**validate.mapping("names of tables to numbers", shares=shares)}
    if {*by_name} != {*names}:
        raise InvalidInputError(
            f"shares must name each table once, {', '.join(names)}, got {', '.join(map(str, by_name))}"
        )
    parts = {name: validate.positive_number(shares=by_name[name]) for name in names}
    return {name: part / sum(parts.values()) for name, part in parts.items()}


def _cost_alone(table: Workload, relation: Relation | None) -> float:
    """Return the squared privacy cost of noise of variance 1 on every entry of a table."""
    with contextlib.suppress(InvalidInputError):
        return BlockMechanism.of_tables(table, 1.0, relation).squared_privacy_cost
    changes = table.matrix if relation is None else table.matrix @ relation.matrix(table.shape[1], table.domain)
    return float(np.max(np.asarray((changes * changes).sum(axis=0))))


def _independent_noise(
    problem: FitnessForUse, workload: Workload, variances: dict[str, float], relation: Relation | None
) -> Any:
    """Return the mechanism of independent noise on the entries of all tables, made consistent."""
    with contextlib.suppress(InvalidInputError):
        return BlockMechanism.of_tables(workload, variances, relation)
    dense: Any = problem.on_geometry("dense")
    rows = to_dense(workload.matrix) / np.sqrt(dense.targets)[:, None]
    return dense.mechanism(covariance_of_strategy(dense, rows))


def _rounding(problem: FitnessForUse, mechanism: GaussianPrivacy) -> float:
    """Return a bound on the relative rounding error of the variances, as in the certificate if possible."""
    with contextlib.suppress(InvalidInputError), np.errstate(all="ignore"):
        forms = problem.geometry.forms(problem.as_primal(mechanism))
        if forms is not None:
            excess, slack = forms.excess(problem.targets)
            rounding = float(max(excess - 1, 0.0) + slack)
            return max(ROUNDING, rounding) if math.isfinite(rounding) else math.inf
    return ROUNDING


def _targets(workload: Workload, variances: Any) -> tuple[Any, bool]:
    """Return variances as targets, one for each table if they are equal or the domain is large, and `by_table`."""
    if not isinstance(variances, np.ndarray):
        return variances, False
    targets = np.where(variances > 0, variances, 1.0)  # a zero query is no constraint
    if targets.shape != workload.shape[:1]:
        return targets, True
    if workload.tabular() is None:
        return targets, False
    largest, smallest = _largest(workload, targets), -_largest(workload, -targets)
    are_equal = bool(np.all(largest <= (1 + ROUNDING) * smallest))
    if are_equal or workload.shape[1] > MAX_CELLS:
        return largest, not are_equal
    return targets, False


def _largest(workload: Workload, variances: Array) -> Array:
    tables = workload.table_numbers()
    largest = np.full(int(tables.max()) + 1, -np.inf)
    np.maximum.at(largest, tables, variances)
    return largest


def _percent(low: float, high: float) -> str:
    """Return an interval of shares in percent, rounded outwards to two decimals."""
    ends = math.floor(1e4 * max(low, 0.0)) / 100, math.ceil(1e4 * high) / 100
    if ends[0] == 0:
        return f"at most {ends[1]:.2f} %"
    return " to ".join(dict.fromkeys(f"{end:.2f} %" for end in ends))


__all__ = ["Waste", "waste"]
