"""Marginal tables at scale: the tasks of each sheet, and how it looks in a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

import dualmech as dm
from dualmech import fast, reference, workloads
from dualmech.crosscheck.instances.tables import (
    PUBLISHED,
    MarginalsCase,
    adult,
    domains,
    growth,
    published,
    sixty,
    small,
)
from dualmech.crosscheck.printing import COLOURS, Interval, print_lines, with_allowance
from dualmech.crosscheck.sheet import Columns, Picture, Row, Sheet, drawn, one_table
from dualmech.studies.papers.verdicts import Evidence, verdict
from dualmech.validate import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Marginal tables at scale: the certified optimum by residual subspaces, next to other solvers and plain noise.

MARGINALS_TOLERANCE = 1e-9  # gap to which the fast layer solves
DENSE = "dense"  # the solver that knows nothing of marginals


def beside_noise(
    problem: Any, begun: float, tol: float, others: Iterable[Callable[[Any], dm.Solution]], **values: object
) -> Row:
    """Solve a problem on tables by the fast layer and by others, beside plain noise.

    'plain' is the squared privacy cost of independent noise of the target's variance on every query, 'consistent' the
    same where the answers are made consistent, and the noise raised until a target is met exactly; seconds are from
    the tables to the first certificate, the search for structure included.
    """
    best = fast.solve(problem, tol=tol)
    seconds = time.perf_counter() - begun
    noisy = dm.BlockMechanism.of_tables(problem.workload, problem.targets)
    plain = noisy.squared_privacy_cost
    consistent = plain * problem.geometry.largest_ratio(noisy.point_on(problem.geometry), problem.targets)
    values |= {"best": best, "plain": plain, "consistent": consistent, "seconds": seconds}
    return Row.of_answers(values, [best, *(solve(problem) for solve in others)])


def solve_marginals(case: MarginalsCase, others: tuple[str, ...] = ()) -> Row:
    """Solve a case by the fast layer, and by others: `DENSE`, or a backend of the reference layer."""
    begun = time.perf_counter()
    problem = case.problem()
    tables: Any = problem.workload
    queries, cells = tables.shape
    return beside_noise(
        *(problem, begun, MARGINALS_TOLERANCE, [partial(_other, name) for name in others]),
        label=case.label + (", random targets" if case.random and "random" not in case.label else ""),
        cells=float(cells),
        tables=len(problem.targets),
        queries=queries,
        subspaces=len(tables.lattice.axes),
        beside=f" ({', '.join(others)})" if others else "",
    )


def _other(name: str, problem: dm.FitnessForUse) -> dm.Solution:
    if name != DENSE:
        return reference.solve(problem, backend=name)
    # A bare matrix, so that nothing of the structure is left.
    return fast.solve(dm.FitnessForUse(dm.Workload(problem.workload.matrix), problem.per_query()))


# The census's lists of tables, certified by symmetry, next to the dense solver and to independent noise.

CENSUS_TOLERANCE = 1e-6  # gap to which both solvers solve
AGES = {"P12": 4.0, "PCT12": 25.0}  # targets by published table: the finer, the looser

ALL = {f"P{number}": 1.0 for number in range(1, 6)} | AGES


@dataclass(frozen=True, slots=True)
class TablesCase:
    label: str  # Their description
    build: Callable[[], workloads.UnionWorkload]  # Returns them
    targets: Mapping[str, float] = field(default_factory=dict)  # By published table; by default all are 1
    dense: bool = False  # Whether the dense solver can follow

    def problem(self) -> dm.FitnessForUse:
        tables = self.build()
        return dm.FitnessForUse(tables, workloads.census.per_table(tables, self.targets) if self.targets else 1.0)


def solve_census(case: TablesCase) -> Row:
    """Solve a case by symmetry, and by the dense solver where that can follow.

    Examples
    --------
    >>> row = solve_census(CENSUS_SMALL[1])
    >>> row.text("{label}: {best.objective:.5f}, {plain:.5f}, {consistent:.5f}, {verdict}")
    'P12: 2.25000, 3.00000, 2.87321, yes'
    """
    begun = time.perf_counter()
    problem = case.problem()
    lines, cells = problem.workload.shape
    geometry = problem.geometry
    return beside_noise(
        *(problem, begun, CENSUS_TOLERANCE, [_dense] if case.dense else []),
        label=case.label,
        targets=", ".join(f"{case.targets[name]:g}" for name in AGES if name in case.targets) or "1",
        cells=cells,
        lines=lines,
        blocks=len(geometry.keys) + len(geometry.matrix_blocks),
        rank=geometry.rank,  # of the largest covariance
        dense=case.dense,
    )


def _dense(problem: dm.FitnessForUse) -> dm.Solution:
    return fast.solve(on_matrix(problem), tol=CENSUS_TOLERANCE)


def on_matrix(problem: dm.FitnessForUse) -> dm.FitnessForUse:
    """Return the problem on its matrix; cells that no query tells apart cost the same, and are written once."""
    cells = np.unique(problem.workload.matrix.toarray(), axis=1)
    return dm.FitnessForUse(dm.Workload(cells), problem.per_query())


def cases(quick: bool) -> list[TablesCase]:
    """Return the lists of tables; those that take seconds only if there is time."""
    return CENSUS_SMALL if quick else [*CENSUS_SMALL, *LARGE]


def _tables_of_race() -> workloads.UnionWorkload:
    tables = workloads.census_redistricting()
    assert tables.domain is not None
    return workloads.UnionWorkload(tables.domain, tables.tables[:-1])


CENSUS_SMALL = [
    TablesCase("P1 to P4", _tables_of_race, dense=True),
    TablesCase("P12", partial(workloads.sex_by_age, iterations=False, single_years=False), dense=True),
    TablesCase("P12, PCT12", partial(workloads.sex_by_age, iterations=False), dense=True),
    TablesCase("P12, PCT12", partial(workloads.sex_by_age, iterations=False), AGES, dense=True),
]
LARGE = [
    TablesCase("P1 to P5", workloads.census_redistricting, dense=True),
    TablesCase("P12 to P12I", partial(workloads.sex_by_age, single_years=False), dense=True),
    TablesCase("P12 to P12I, PCT12 to PCT12O", workloads.sex_by_age),
    TablesCase("P12 to P12I, PCT12 to PCT12O", workloads.sex_by_age, AGES),
    TablesCase("all of these", workloads.census_tables),
    TablesCase("all of these", workloads.census_tables, ALL),
]

# Printed errors of ResidualPlanner and its successor next to certified ones: on marginal tables and on prefixes.
#
# Errors are root mean squares over all queries at a squared privacy cost of 1. On marginals the least one is a closed
# form, and proven. With prefix sums on numerical attributes the successor splits, in every attribute, the noise of
# least total variance into the noise of the total and the noise of the residual. This is done again here, and held
# against a proven bound and against noise found in the same way from workloads that count the total for more.

NONE = "—"  # stands for a number that is not known to be printed, or for a solver that cannot follow

PLANNER = "He et al., arXiv 2305.08175"
"""He, Xiao, Toksoz, Ding, Zhang and Kifer, "ResidualPlanner+: a scalable matrix mechanism for marginals and beyond"."""

WAYS = {"1-way": (1,), "2-way": (2,), "3-way": (3,), "up to 3-way": (0, 1, 2, 3)}
"""The tables, in the order of the printed numbers; the last includes the total."""

MARGINALS = {
    "CPS": ("1.744", "2.035", "2.048", "2.276"),
    "Adult": ("3.047", "6.359", "10.515", "10.665"),
    "Loans": ("2.875", "5.634", "8.702", "8.876"),
}
"""Root mean square errors of marginal tables, of the successor as of ResidualPlanner (NeurIPS 2023)."""

NUMERICAL = {"CPS": ("a0", "a1"), "Adult": ("a0", "a2", "a9", "a10", "a11"), "Loans": ("a0", "a1", "a2", "a3")}
"""The data sets' numerical attributes, as the code published with its successor has them (arXiv 2305.08175)."""

PREFIXES = {
    "CPS": ("3.081", "5.823", "7.302", "7.570"),
    "Adult": ("5.081", "17.274", "45.223", "45.174"),
    "Loans": ("4.681", "14.502", "34.168", "34.144"),
}
"""The same with prefix sums on numerical attributes."""

HDMM = {
    "CPS": ("3.347", "6.625", "8.634", "8.623"),
    "Adult": ("5.648", "21.111", "60.025", "61.613"),
    "Loans": ("5.127", "17.149", "42.938", "44.338"),
}
"""Of HDMM, in the same tables."""

PUBLISHED_TOLERANCE = 1e-9  # gap to which optima are solved

CLOSE = 1e-4  # gap to which the least error is solved where it can be
FEW = 5000  # combinations of values of numerical attributes up to which it is

TOTALS = (1.0, 10.0, 100.0)
"""How much the total counts for among the prefixes of an attribute, where noise is looked for; 1 is the paper's way."""


def of_data_set(name: str, entries: Sequence[Row]) -> Row:
    """Return the row of a data set, and of all that is printed of it.

    An error is inversely proportional to the privacy cost, so each printed one implies a cost, held against 1; they are
    independent. 'better': by how much the printed way's error exceeds the one found here, at most, relative.
    """
    held = [Evidence(entry.asked, entry.asked, entry.again, entry.printed) for entry in entries]
    better = max(entry.again[0] / entry.least[1] - 1 for entry in entries)
    values = {"name": name, "better": better, "paper": verdict(held, (1.0, 1.0))}
    return Row(values, parts=tuple(entries))


def _printed_error(queries: str, printed: str, again: Interval, least: Interval, **values: object) -> Row:
    """Return the printed value of one error, the same computed here and the least error of any noise.

    - `queries`: a key of `WAYS`;
    - `least`: proven from below, and found.
    """
    values = {"rival": NONE, "bound": "", "asked": queries, "printed": printed, **values}
    values |= {"again": again, "least": least, "middle": sum(again) / 2}
    return Row(values, least[1] / least[0] - 1, sound=least[0] <= least[1])


def of_marginals(name: str) -> Row:
    """Certify the least errors and the least largest variances of a data set's marginal tables."""
    entries = []
    for (query_name, ways), printed in zip(WAYS.items(), MARGINALS[name], strict=True):
        tables = workloads.marginals(published(name), ways=ways)
        queries = tables.shape[0]
        low, high = fast.solve(dm.TotalVariance(tables), tol=PUBLISHED_TOLERANCE).certificate.interval
        error = math.sqrt(low / queries), math.sqrt(high / queries)
        largest = fast.solve(dm.FitnessForUse(tables), tol=PUBLISHED_TOLERANCE).certificate.interval
        bound = f"{largest[0]:.4f}"
        entries.append(_printed_error(query_name, printed, error, error, largest=largest, bound=bound))
    return of_data_set(f"{name}, marginals", entries)


def of_prefixes(name: str) -> Row:
    """Compute the successor's errors again, with prefix sums on numerical attributes, and bound the least."""
    entries = []
    for position, (query_name, ways) in enumerate(WAYS.items()):
        domain = published(name)
        queries = {axis: workloads.prefix(size) for axis, size in domain.sizes if axis in NUMERICAL[name]}
        split: Any = dm.TotalVariance(workloads.query_tables(domain, queries, ways=ways), geometry="split").geometry
        errors = [split_error(split, NUMERICAL[name], total) for total in TOTALS]
        proven = max(proven_error(split, NUMERICAL[name], total, share) for total in TOTALS for share in (0.0, 0.5))
        least = certified_error(split.workload) if _is_small(name, ways) else (proven, min(errors))
        again = with_allowance(errors[0], 2e-5)  # its strategy was itself found by an optimiser
        entries.append(_printed_error(query_name, PREFIXES[name][position], again, least, rival=HDMM[name][position]))
    return of_data_set(f"{name}, prefixes of {len(NUMERICAL[name])} attributes", entries)


def certified_error(workload: dm.Workload) -> Interval:
    """Return the least error as blocks prove it, from the symmetry that is left."""
    low, high = fast.solve(dm.TotalVariance(workload, geometry="blocks"), tol=CLOSE).certificate.interval
    return math.sqrt(low / workload.shape[0]), math.sqrt(high / workload.shape[0])


def _is_small(name: str, ways: tuple[int, ...]) -> bool:
    """Whether the values that no symmetry joins are few enough, and no table crosses them."""
    sizes = dict(published(name).sizes)
    return max(ways) == 1 and math.prod(sizes[axis] for axis in NUMERICAL[name]) <= FEW


def split_error(split: Any, numerical: Iterable[str], total: float) -> float:
    """Return the error of split noise at its best levels, a closed form, where the judge has split it.

    Let V_T be the sum of the variances of all queries at ``τ_T = 1``, and C_T the cost of this noise. The least of
    ``Σ V_T τ_T`` at a cost ``Σ C_T / τ_T`` of 1 is ``(Σ √(V_T C_T))²``.
    """
    tables = split.workload.tables
    assert tables.domain is not None
    shapes = [_attribute(size, total)[0] if axis in numerical else np.eye(size) for axis, size in tables.domain.sizes]
    parts = split.parts(shapes)
    assert parts is not None
    roots = np.sqrt(split.totals(parts, np.ones(len(tables.axes))) * split.costs(parts))
    return float(roots.sum()) / math.sqrt(split.workload.shape[0])


def proven_error(split: Any, numerical: Iterable[str], total: float, share: float) -> float:
    """Return a bound on the error: the bound of the total variance at products of weights."""
    tables, users = split.workload.tables, []
    assert tables.domain is not None
    for axis, size in tables.domain.sizes:
        weights = _attribute(size, total)[1] if axis in numerical else np.ones(size)
        users.append((1 - share) * weights / weights.sum() + share / size)
    bound, _ = split.total_bound(users, np.ones(len(tables.axes)))
    return math.sqrt(bound / split.workload.shape[0])


@cache
def _attribute(size: int, total: float) -> tuple[Array, Array]:
    """Return the noise of least total variance on the values of an attribute, and the weights that prove it."""
    weights = np.ones(size)
    weights[-1] = total
    answer = fast.solve(dm.TotalVariance(workloads.prefix(size), weights), tol=PUBLISHED_TOLERANCE)
    covariance = answer.mechanism.covariance(workloads.identity(size))
    return (covariance + covariance.T) / 2, answer.dual.neighbour_weights


LEGEND = (
    "Squared privacy costs at which every cell of every table meets its variance target: the certified optimum, that "
    "of independent noise on every table, and the latter once the tables are made consistent."
)

CENSUS_LEGEND = (
    "Squared privacy costs at which every line of every table meets its variance target: the certified optimum, that "
    "of independent noise on every line, and the latter once the lines are made consistent. 'agree': with the solver "
    "that knows no symmetry, where it can follow."
)

CLARABEL = "CLARABEL"

PUBLISHED_LEGEND = (
    "Root mean square errors over all queries at a squared privacy cost of 1, and largest variances; up to 3-way, the "
    "total is among them. 'computed again': the paper's own way, which on marginals is the closed form. The least "
    "error lies between what is proven and what is found. No printed largest variance of these domains is known here."
)

MARGINALS_COLUMNS: Columns = (
    ("tables", "{label}"),
    ("cells", "{cells:.3g}"),
    ("tables", "{tables}"),
    ("queries", "{queries}"),
    ("optimum", "{best.objective:.10g}"),
    ("gap", "{gap:.0e}"),
    ("s", "{seconds:.2g}"),
    ("plain", "{plain:.6g}"),
    ("consistent", "{consistent:.6g}"),
    ("solvers agree", "{verdict}{beside}"),
)

CENSUS_COLUMNS: Columns = (
    ("tables", "{label}"),
    ("targets", "{targets}"),
    ("cells", "{cells}"),
    ("lines", "{lines}"),
    ("blocks", "{blocks} up to {rank}"),
    ("optimum", "{best.objective:.7g}"),
    *MARGINALS_COLUMNS[5:9],
    ("agree", lambda row: row.text("{verdict}") if row.dense else NONE),
)

PUBLISHED_COLUMNS: Columns = (
    ("tables", "{asked}"),
    ("HDMM, printed", "{rival}"),
    ("printed", "{printed}"),
    ("computed again", "{middle:.4f}"),
    ("least error proven", "{least[0]:.4f}"),
    ("found", "{least[1]:.4f}"),
    ("largest variance, printed", NONE),
    ("least proven", "{bound}"),
)


def _sheet(
    source: str,
    cases: Callable[[bool], list[MarginalsCase]],
    *others: str,
    picture: Picture | None = None,
    panels: int = 1,
) -> Sheet:
    """Return a sheet of marginal tables, solved by the fast layer and by others."""
    return Sheet(
        source,
        lambda quick: [partial(solve_marginals, case, others) for case in cases(quick)],
        one_table(MARGINALS_COLUMNS, notes=[LEGEND]),
        picture,
        panels=panels,
    )


def _published_tasks(quick: bool) -> list[Callable[[], Row]]:
    return [partial(kind, name) for kind in (of_marginals, of_prefixes) for name in PUBLISHED]


def _show_published(out: Console, title: str, rows: Iterator[Row]) -> None:
    for row in rows:
        out.print(drawn(f"{title}: {row.name}", PUBLISHED_COLUMNS, row.parts))
        better = f"; up to {100 * row.better:.1f} % above what is found" if row.better > 0 else ""
        print_lines(out, f"{row.paper.sentence('a privacy cost of')}{better}", "", unwrapped=True)
    print_lines(out, PUBLISHED_LEGEND)


def draw_growth(axes: Sequence[Axes], rows: Sequence[Row]) -> None:
    """Draw the squared privacy cost, and next to it how many numbers have to be found, against up to 10^80 cells.

    Seconds stand in the table: a picture is to be the same every time.
    """
    cells = [row.cells for row in rows]
    cost, numbers = axes
    cost.plot(cells, [row.best.objective for row in rows], "s-", ms=3.5, color=COLOURS[0])
    cost.set(yscale="log", ylabel="least squared privacy cost α (variances 1)")
    cost.set_title("All one- and two-way tables of attributes of ten values", loc="left", fontsize=10)
    numbers.plot(cells, [row.subspaces for row in rows], "o-", ms=3.5, color=COLOURS[1])
    numbers.set(ylim=(0, None), ylabel="residual subspaces, one number each")
    for panel in axes:
        panel.set(xscale="log", xlabel="cells of the domain")


SHEETS = {
    "dense": _sheet("one- and two-way tables, with the dense solver", small, DENSE, CLARABEL),
    "adult": _sheet("the Adult table's fourteen attributes", adult, CLARABEL),
    "sixty": _sheet("sixty attributes of ten values", sixty, CLARABEL),
    "domains": _sheet("domains of published experiments and of the census", domains, CLARABEL),
    "published": Sheet(f"{PLANNER}, root mean square errors", _published_tasks, _show_published),
    "growth": _sheet("two to eighty attributes of ten values", growth, picture=draw_growth, panels=2),
    "census": Sheet(
        "the census's lists of tables",
        lambda quick: [partial(solve_census, case) for case in cases(quick)],
        one_table(CENSUS_COLUMNS, notes=[CENSUS_LEGEND]),
    ),
}
