"""How much of its privacy a mechanism wastes: its cost, and the least that gives every query the same accuracy."""

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

MAX_ORDERED = 2048  # queries in order, such as prefixes, whose consistent answers are found on a matrix

ROUNDING = 1e-9
"""Least allowance for the rounding of the variances that are matched, relative: the interval of the least cost is
widened by it, and targets within a table that differ by less are one."""

EXACT = 1e-6  # variance of tables that are published exactly, relative to the largest of the others

QUERY_BY_QUERY = 1024  # most cells on which queries of a table are matched one by one


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Waste(Displayed):
    """The cost of a mechanism beyond the least, at the same accuracy of every query of a workload.

    Attributes
    ----------
    mechanism
        The judged mechanism.
    answer : Solution
        The noise of least cost for its variances as targets, with the certificate of the bound.
    by_table : bool
        Whether only the largest variance of each table was matched, as the domain is too large to go query by query.
    rounding : float
        Allowance for the rounding of the variances that are matched, relative, by which the interval is widened.
    practice : str
        The judged practice in words, where it is one.
    spent : float, optional
        Squared privacy cost that a practice spends, the sum over its tables; no less than the cost of its noise.
    variances : mapping of names to float
        The largest that a practice gives to each table.
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
        """Squared privacy cost that the mechanism, or the practice, spends."""
        return float(self.mechanism.squared_privacy_cost if self.spent is None else self.spent)

    @property
    def least(self) -> tuple[float, float]:
        """Proven interval of the least squared privacy cost at which every query is as accurate."""
        low, high = self.answer.certificate.interval
        known = min(self.rounding, 1.0)
        return min(low * (1 - known), self.cost), min(high * (1 + known), self.cost)

    @property
    def share(self) -> tuple[float, float]:
        """Proven interval of the share of the cost that is wasted, ``1 - least / cost``."""
        low, high = self.least
        return 1 - high / self.cost, 1 - low / self.cost

    @property
    def certificate(self) -> Certificate:
        """The mechanism's own certificate: how far its cost is from the least."""
        certificate = self.answer.certificate
        return Certificate.of(self.cost, certificate.lower_bound, 0.0, certificate.resolution + self.rounding)

    @property
    def better(self) -> GaussianPrivacy:
        """The mechanism of `answer`, or the one that was judged where that costs no more."""
        best = self.answer.mechanism if self.answer.certificate.feasible else self.mechanism
        return best if best.squared_privacy_cost < self.cost else self.mechanism

    @property
    def words(self) -> tuple[str, ...]:
        """The verdict in sentences."""
        low, high = self.share
        enough = decimal_above(self.least[1] / 2)
        queries = "the least accurate query of every table" if self.by_table else "every query"
        if self.practice:
            share = f"{self.practice} wastes {_percent(low, high)} of it (proven)"
            return (f"{share}: noise of rho = {enough} is enough to make {queries} as accurate.",)
        lines = [
            f"It costs rho = {decimal_above(self.cost / 2)} (zCDP); noise of rho = {enough} is enough to make "
            f"{queries} as accurate.",
            f"Wasted: {_percent(low, high)} of rho (proven).",
        ]
        if self.by_table:
            lines.append("Within a table, queries that were more accurate than its worst may lose some of that.")
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
    """Say how much privacy a mechanism, or a practice, wastes: the least cost of being as accurate for every query.

    A mechanism's variances are the targets of `dualmech.FitnessForUse`, under its own neighbours, and the bound is the
    judge's. Its answers beyond the workload count as waste. Where variances differ within a table, and the
    domain has more than 1,024 cells, the largest of each table is matched, and the result says so.

    A workload in place of the mechanism, with `rho`, means a practice: each table gets a share of ρ, and independent
    noise on its own entries. The published answers are consistent, by least squares on all tables, or, `as_drawn`, have
    each table's own noise. Tables that no neighbour changes are exact, and get no share.
    Raises `InvalidInputError` or `InputTypeError` for no mechanism of Gaussian noise, no workload, other cells, queries
    that are not answered or are released exactly, a mechanism that answers queries only written out and is too large,
    shares that name no table, tables none of which neighbours change.

    Parameters
    ----------
    mechanism : any mechanism of Gaussian noise, or the workload of a practice
        Dense, on blocks, products, split, streams or causal strategies.
    workload : Workload
        Over the same cells, of any structure; left out for a practice.
    rho : number or text such as "1/10"
        The ρ that a practice spends.
    shares : mapping of table names to numbers, optional
        How a practice splits it, by default equally.
    as_drawn : bool
        Whether a practice publishes each table's own noise.
    neighbours : str or Relation, optional
        The neighbours of a practice.
    tol : float
        Gap to which the least cost is solved; the interval is valid whatever was reached.
    callback : callable, optional
        Receives a `Progress` after each step.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import crosscheck
    >>> counts = dm.BlockMechanism.of_tables(dm.workloads.marginals({"age": 16}, ways=(0, 1)))
    >>> found = crosscheck.waste(counts, dm.workloads.prefix(16))
    >>> round(found.cost, 6), round(found.better.squared_privacy_cost, 4)
    (2.0, 1.7153)
    >>> print(found.words[1])
    Wasted: 14.23 % to 14.24 % of rho (proven).
    >>> tables = dm.workloads.marginals({"age": 16, "sex": 2}, ways=(1, 2))
    >>> crosscheck.waste(tables, rho="1/10", as_drawn=True)
    Waste(27.34 % to 27.35 % of 0.2)
    """
    if isinstance(mechanism, Workload):
        if workload is not None or rho is None:
            raise InvalidInputError("rho must be given with the workload of a practice, and no other workload")
        spent, is_drawn = validate.exact_number(rho=rho), validate.boolean(as_drawn=as_drawn)
        return _of_practice(mechanism, spent, shares, is_drawn, neighbours, validate.positive_number(tol=tol), callback)
    drawn = True if validate.boolean(as_drawn=as_drawn) else None
    for name, value in {"rho": rho, "shares": shares, "as_drawn": drawn, "neighbours": neighbours}.items():
        if value is not None:
            raise InvalidInputError(f"{name} is for a practice: a mechanism brings its own privacy and accuracy")
    queries = check_workload(workload)
    if not isinstance(mechanism, GaussianPrivacy):
        raise InputTypeError(f"mechanism must be one of Gaussian noise, got {describe_kind(mechanism)}")
    if not 0 < mechanism.squared_privacy_cost < math.inf:
        raise InvalidInputError("mechanism must have a privacy cost that is positive and finite")
    targets, by_table = _targets(queries, mechanism.as_targets(queries))
    relation = getattr(mechanism, "neighbours", None)
    its = relation if relation is None or isinstance(relation, Relation) else Relation.matching(relation) or relation
    problem = FitnessForUse(queries, targets, neighbours=its)
    answer = _solved(problem, tol, callback)
    return Waste(mechanism=mechanism, answer=answer, by_table=by_table, rounding=_rounding(problem, mechanism))


def _solved(problem: FitnessForUse, tol: float, callback: Callback | None) -> Solution:
    with without_warnings():
        return fast.solve(problem, tol=tol, callback=callback)


def _of_practice(
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
    # Tables that no neighbour changes cost nothing at any variance: they are exact, nearly, where all are consistent.
    variances = {name: variances.get(name, EXACT * max(variances.values())) for name in tables}
    problem = FitnessForUse(workload, variances, neighbours=relation)
    drawn = _drawn(problem, workload, variances, relation)
    split = "An equal split" if shares is None else "This split"
    kind = ", as drawn," if as_drawn else ", made consistent,"
    description = f"{split} of rho = {rho} over {counted(len(noisy), 'table')}{kind}"
    if not as_drawn:
        result = waste(drawn, workload, tol, callback=callback)
        variances = {name: float(np.max(drawn.as_targets(table))) for name, table in tables.items()}
    else:
        result = Waste(mechanism=drawn, answer=_solved(problem, tol, callback), by_table=False)
    rounding = result.rounding + (EXACT if len(noisy) < len(tables) else 0.0)
    return replace(result, practice=description, spent=2 * float(rho), variances=variances, rounding=rounding)


def _tables(workload: Workload) -> dict[str, Workload]:
    """Return the tables of a workload by name, or its groups of queries where it has no tables."""
    tabular = workload.tabular()
    if tabular is None:
        groups = np.array(workload.groups)
        return {name: workload.select(np.flatnonzero(groups == name)) for name in dict.fromkeys(workload.groups)}
    union: Any = tabular if isinstance(tabular, UnionWorkload) else union_of([tabular])
    return {table.name: UnionWorkload(union.domain, [table]) for table in union.tables}


def _shares(stated: Mapping[str, float] | None, names: list[str]) -> dict[str, float]:
    """Return which share of ρ each table gets."""
    if stated is None:
        return dict.fromkeys(names, 1 / len(names))
    known = {**validate.mapping("names of tables to numbers", shares=stated)}
    if {*known} != {*names}:
        raise InvalidInputError(
            f"shares must name each table once, {', '.join(names)}, got {', '.join(map(str, known))}"
        )
    parts = {name: validate.positive_number(shares=known[name]) for name in names}
    return {name: part / sum(parts.values()) for name, part in parts.items()}


def _cost_alone(table: Workload, relation: Relation | None) -> float:
    """Return the squared privacy cost of noise of variance 1 on every entry of a table."""
    with contextlib.suppress(InvalidInputError):
        return BlockMechanism.of_tables(table, 1.0, relation).squared_privacy_cost
    moved = table.matrix if relation is None else table.matrix @ relation.matrix(table.shape[1], table.domain)
    return float(np.max(np.asarray((moved * moved).sum(axis=0))))


def _drawn(problem: FitnessForUse, workload: Workload, variances: dict[str, float], relation: Relation | None) -> Any:
    """Return the mechanism of independent noise on the entries of all tables, made consistent."""
    with contextlib.suppress(InvalidInputError):
        return BlockMechanism.of_tables(workload, variances, relation)
    posed: Any = problem.on_geometry("dense")
    rows = to_dense(workload.matrix) / np.sqrt(posed.targets)[:, None]
    return posed.mechanism(covariance_of_strategy(posed, rows))


def _rounding(problem: FitnessForUse, mechanism: GaussianPrivacy) -> float:
    """Return the part of the variances that rounding may hide, as the judge evaluates them where it can."""
    with contextlib.suppress(InvalidInputError), np.errstate(all="ignore"):
        forms = problem.geometry.forms(problem.as_primal(mechanism))
        if forms is not None:
            excess, slack = forms.excess(problem.targets)
            rounding = float(max(excess - 1, 0.0) + slack)
            return max(ROUNDING, rounding) if math.isfinite(rounding) else math.inf
    return ROUNDING


def _targets(workload: Workload, variances: Any) -> tuple[Any, bool]:
    """Return variances as targets, of a table one number where they are equal or the domain is large; whether so."""
    if not isinstance(variances, np.ndarray):
        return variances, False
    targets = np.where(variances > 0, variances, 1.0)  # a query that is all zero constrains nothing
    if targets.shape != workload.shape[:1]:
        return targets, True
    if workload.tabular() is None:
        return targets, False
    largest, least = _largest(workload, targets), -_largest(workload, -targets)
    even = bool(np.all(largest <= (1 + ROUNDING) * least))
    if even or workload.shape[1] > QUERY_BY_QUERY:
        return largest, not even
    return targets, False


def _largest(workload: Workload, variances: Array) -> Array:
    tables = workload.table_numbers()
    largest = np.full(int(tables.max()) + 1, -np.inf)
    np.maximum.at(largest, tables, variances)
    return largest


def _percent(low: float, high: float) -> str:
    """Return an interval of shares in percent, moved out to two decimals."""
    ends = math.floor(1e4 * max(low, 0.0)) / 100, math.ceil(1e4 * high) / 100
    if ends[0] == 0:
        return f"at most {ends[1]:.2f} %"
    return " to ".join(dict.fromkeys(f"{end:.2f} %" for end in ends))


__all__ = ["Waste", "waste"]
