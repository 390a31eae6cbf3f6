"""Papers' tables and figures, by name: what each asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial
from itertools import islice
from typing import Any, Protocol

from joblib import Parallel, delayed
from rich import box
from rich.console import Console
from rich.table import Table

from dualmech.crosscheck.agreement import VERDICTS, Agreement
from dualmech.crosscheck.command.wording import interval_text
from dualmech.crosscheck.papers.common import picture as common_picture
from dualmech.crosscheck.papers.common import report as common_report
from dualmech.crosscheck.papers.eigen import report as eigen_report
from dualmech.crosscheck.papers.fitness import ratio_report
from dualmech.crosscheck.papers.fitness import rows as fitness
from dualmech.crosscheck.papers.fitness.cases import TABLE_2
from dualmech.crosscheck.papers.fitness.figures import (
    COSTS,
    EPSILONS,
    FIGURE_2,
    FIGURE_3,
    Curve,
    Figure,
    Point,
    curve,
)
from dualmech.crosscheck.papers.fitness.ratios import CA_WEIGHTINGS
from dualmech.crosscheck.papers.fitness.rows import (
    BACKENDS,
    Entry,
    RaceRow,
    RatioRow,
    Row,
)
from dualmech.crosscheck.papers.local import report as local_report
from dualmech.crosscheck.papers.printed import (
    CONVERGENCE,
    FFU,
    RATIO_TABLES,
    RatioTable,
)
from dualmech.crosscheck.papers.scale import census
from dualmech.crosscheck.papers.scale import report as scale_report
from dualmech.errors import InvalidInputError

QUICK_CELLS = 16
"""Largest size of Table 2 in a quick run."""

QUICK_ROWS = {5: 64, 6: 64, 7: 64, 8: 64, 10: 6, 11: 64}
"""Largest parameter of a ratio table's rows in a quick run."""

QUICK_SEEDS = 3

RACE_SECONDS, QUICK_RACE_SECONDS = 30.0, 2.0
"""Limit of each run of Table 3; the paper let gradient descent run for minutes."""

EVERYTHING = "all"
"""What stands behind a paper's slash for all of its tables and figures."""

DIGITS = 9
"""Significant digits of an interval's ends; they are rounded outwards, so what is printed is still proven."""


class Computed(Protocol):
    """What every computed row tells: whether certified answers agree, and the widest gap among them."""

    @property
    def outcome(self) -> Agreement:
        """How the row's certified answers compare."""

    @property
    def gap(self) -> float:
        """The widest certified gap."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table or figure.

    Attributes
    ----------
    source : str
        Paper and number.
    tasks : callable
        Takes whether to be quick; returns what to compute, a row each, none depending on another.
    show : callable
        Prints the rows, as they come where their form allows.
    picture : str
        Name of the picture that `plots` draws of it; empty for a table.
    data : callable, optional
        Takes the path of a data file to the sheet on it, where the sheet is of real records.
    apart : bool
        Whether it has to be named: it takes too long to be one of all.
    """

    source: str
    tasks: Callable[[bool], Sequence[Callable[[], Computed]]]
    show: Callable[[Console, str, Iterator[Any]], None]
    picture: str = ""
    data: Callable[[str], Sheet] | None = None
    apart: bool = False


def chosen(names: Sequence[str]) -> dict[str, Sheet]:
    """Return sheets by name, a paper's but those `apart` for such as ``fitness/all``, the first where none is named.

    Raises
    ------
    InvalidInputError
        An unknown name.
    """
    wanted: dict[str, Sheet] = {}
    papers = dict.fromkeys(name.partition("/")[0] for name in SHEETS)
    whole = {f"{paper}/{EVERYTHING}": f"{paper}/" for paper in papers}
    for name in names or [next(iter(SHEETS))]:
        if name not in whole and name not in SHEETS:
            raise InvalidInputError(f"unknown table {name!r}; known are {', '.join([*SHEETS, *whole])}")
        start = whole.get(name)
        wanted |= {
            each: sheet
            for each, sheet in SHEETS.items()
            if each == name or (start and each.startswith(start) and not sheet.apart)
        }
    return wanted


def with_data(sheets: dict[str, Sheet], path: str) -> dict[str, Sheet]:
    """Return the sheets with those that are of real records put on a data file, as far as it fits them.

    Raises
    ------
    InvalidInputError
        None of them is, or the file is for none of those that are.
    """
    if not any(sheet.data for sheet in sheets.values()):
        known = ", ".join(name for name, sheet in SHEETS.items() if sheet.data)
        raise InvalidInputError(f"--data takes a file to the tables of real records, {known}; none was named")
    placed: dict[str, Sheet] = {}
    refusals: list[InvalidInputError] = []
    for name, sheet in sheets.items():
        try:
            placed |= {name: sheet.data(path)} if sheet.data else {}
        except InvalidInputError as error:
            refusals.append(error)
    if not placed:
        raise refusals[0]
    return sheets | placed


def compute(sheets: Sequence[Sheet], quick: bool = False, jobs: int = 1) -> Iterator[Iterator[Computed]]:
    """Yield the rows of each sheet, in order, computed `jobs` at a time across sheets.

    Several at a time get one BLAS thread each. The rows of a sheet must be taken before those of the next.
    """
    batches = [sheet.tasks(quick) for sheet in sheets]
    pool = Parallel(n_jobs=jobs, return_as="generator", backend="loky", inner_max_num_threads=1)
    rows = iter(pool(delayed(task)() for batch in batches for task in batch))
    for batch in batches:
        yield islice(rows, len(batch))


def _privacy_costs(quick: bool) -> list[Callable[[], Row]]:
    cases = [case for case in TABLE_2 if not quick or case.problem().workload.shape[1] <= QUICK_CELLS]
    return [partial(fitness.solve_case, case) for case in cases]


def _show_privacy_costs(out: Console, title: str, rows: Iterator[Row]) -> None:
    out.print(crosscheck_table(list(rows), f"{title} (squared privacy cost)"))


def crosscheck_table(rows: Sequence[Row], title: str) -> Table:
    """Return a table of printed numbers beside certified intervals, each over the seconds that it took."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_lines=True)
    printed = list(rows[0].case.printed) if rows else []
    for heading in ("d", *printed):
        table.add_column(heading, justify="right")
    for heading in (*BACKENDS, "fast"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("layers agree", "printed holds"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row.size),
            *(row.case.printed[column] for column in printed),
            *(_entry(entry) for entry in row.entries),
            VERDICTS[row.outcome],
            "yes" if all(row.confirmed(column) for column in printed) else "NO",
        )
    return table


def _entry(entry: Entry) -> str:
    low, high = entry.interval
    wide = "" if entry.certified else " wide"
    return f"[{_rounded(low, ROUND_FLOOR)},\n{_rounded(high, ROUND_CEILING)}]{wide}\n{entry.seconds:.3g} s"


def _rounded(value: float, rounding: str) -> str:
    return str(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(value)))


def _race(quick: bool) -> list[Callable[[], RaceRow]]:
    limit = QUICK_RACE_SECONDS if quick else RACE_SECONDS
    return [partial(fitness.race, size, limit) for size in CONVERGENCE]


def _show_race(out: Console, title: str, rows: Iterator[RaceRow]) -> None:
    table = Table(title=f"{title}: seconds, and the gap proven", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("d", "descent, printed", "SM-II, printed", "descent", "SM-II", "dual, certified"):
        table.add_column(heading, justify="right")
    for row in rows:
        found = (
            f"{'> ' if entry.seconds >= row.limit else ''}{entry.seconds:.2g} s, {entry.gap:.0e}"
            for entry in row.entries
        )
        table.add_row(str(row.size), *(f"{seconds} s" for seconds in row.printed), *found)
    out.print(table)


def _ratios(table: RatioTable, quick: bool) -> list[Callable[[], RatioRow]]:
    rows = [row for row in table.rows if not quick or row <= QUICK_ROWS.get(table.number, row)]
    return [partial(fitness.solve_row, table, row, QUICK_SEEDS if quick else None) for row in rows]


def _show_ratios(subject: str, out: Console, title: str, rows: Iterator[RatioRow]) -> None:
    for line in (title, f"{subject[0].upper()}{subject[1:]}.", ratio_report.LEGEND):
        out.print(line, markup=False)
    for row in rows:
        for line in ("", *ratio_report.lines(row)):
            out.print(line, markup=False, soft_wrap=True)
    out.print()


def _show_points(figure: Figure, out: Console, title: str, rows: Iterator[Point]) -> None:
    table = Table(title=f"{title}: {figure.subject}", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in (figure.varied, "squared cost", *CA_WEIGHTINGS, "certified squared cost", "certified"):
        table.add_column(heading, justify="right")
    for row in rows:
        certified = ("", "")
        if row.reading:
            held = ", ".join(ratio_report.settled(row.reading.ratio(name)) for name in CA_WEIGHTINGS)
            certified = (interval_text(row.reading.cost), f"{held}: {VERDICTS[row.outcome]}")
        numbers = (row.squared_cost, *(row.curves[name] for name in CA_WEIGHTINGS))
        x = row.cells if figure.varied == "d" else row.total_target
        table.add_row(str(x), *(f"{number:.6f}" for number in numbers), *certified)
    out.print(table)


def _show_curves(out: Console, title: str, rows: Iterator[Curve]) -> None:
    table = Table(title=f"{title}: δ by ε", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("Δ", *(f"ε = {epsilon:g}" for epsilon in EPSILONS), "ε found again"):
        table.add_column(heading, justify="right")
    for row in rows:
        deltas = (f"{delta:.4e}" for delta in row.deltas)
        table.add_row(f"{row.privacy_cost:g}", *deltas, VERDICTS[row.outcome])
    out.print(table)


def _curves(quick: bool) -> list[Callable[[], Curve]]:
    return [partial(curve, cost) for cost in COSTS]


SHEETS: dict[str, Sheet] = {
    "fitness/table2": Sheet(f"{FFU}, Table 2", _privacy_costs, _show_privacy_costs),
    "fitness/table3": Sheet(f"{FFU}, Table 3", _race, _show_race),
    **{
        f"fitness/table{table.number}": Sheet(
            table.source, partial(_ratios, table), partial(_show_ratios, table.subject)
        )
        for table in RATIO_TABLES
    },
    "fitness/figure1": Sheet(f"{FFU}, Figure 1", _curves, _show_curves, "fitness-figure1"),
    **{
        f"fitness/figure{figure.number}": Sheet(
            f"{FFU}, Figure {figure.number}",
            figure.tasks,
            partial(_show_points, figure),
            f"fitness-figure{figure.number}",
        )
        for figure in (FIGURE_2, FIGURE_3)
    },
    "eigen/alternative": Sheet(*eigen_report.ALTERNATIVES),
    "eigen/ranges": Sheet(*eigen_report.RANGES),
    "eigen/marginals": Sheet(*eigen_report.MARGINALS),
    "eigen/designs": Sheet(*eigen_report.DESIGNS),
    "eigen/completion": Sheet(*eigen_report.COMPLETION),
    "eigen/reductions": Sheet(*eigen_report.REDUCTIONS),
    "eigen/reductions8192": Sheet(*eigen_report.LARGE_REDUCTIONS, apart=True),
    "eigen/relative": Sheet(*eigen_report.RELATIVE, data=lambda path: Sheet(*eigen_report.relative(path))),
    "common/examples": Sheet(*common_report.EXAMPLES),
    "common/ellipses": Sheet(*common_picture.ELLIPSES, "common-ellipses"),
    "common/saved": Sheet(*common_report.SAVED),
    "common/census": Sheet(*common_report.CENSUS),
    "common/hisrace": Sheet(*common_report.hisrace(), data=lambda path: Sheet(*common_report.hisrace(path))),
    "common/brazil": Sheet(*common_report.brazil(), data=lambda path: Sheet(*common_report.brazil(path))),
    "common/thresholds": Sheet(
        *common_report.thresholds(),
        "common-thresholds",
        data=lambda path: Sheet(*common_report.thresholds(path)),
    ),
    "local/histograms": Sheet(*local_report.HISTOGRAMS),
    "local/descent": Sheet(*local_report.DESCENT),
    "local/epsilon": Sheet(*local_report.EPSILON),
    "local/epsilon512": Sheet(*local_report.EPSILON_LARGE),
    "local/size": Sheet(*local_report.SIZE),
    "local/worst": Sheet(*local_report.WORST),
    "local/steps": Sheet(*local_report.STEPS),
    "local/consistency": Sheet(
        *local_report.consistency(), data=lambda path: Sheet(*local_report.consistency(path))
    ),
    "scale/dense": Sheet(*scale_report.DENSE_SHEET),
    "scale/adult": Sheet(*scale_report.ADULT),
    "scale/sixty": Sheet(*scale_report.SIXTY),
    "scale/domains": Sheet(*scale_report.DOMAINS),
    "scale/published": Sheet(*scale_report.PUBLISHED_ERRORS),
    "scale/growth": Sheet(*scale_report.GROWTH, "scale-growth"),
    "scale/census": Sheet(*census.SHEET),
}
"""Tables and figures by name; the first is the default."""
