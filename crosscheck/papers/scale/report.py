"""Marginal tables at scale: what each sheet asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from dualmech.crosscheck.agreement import VERDICTS
from dualmech.crosscheck.papers.plots import COLOURS
from dualmech.crosscheck.papers.report import print_lines, table
from dualmech.crosscheck.papers.scale import census, instances, marginals, published
from dualmech.crosscheck.papers.scale.census import AGES
from dualmech.crosscheck.papers.scale.instances import MarginalsCase
from dualmech.crosscheck.papers.scale.marginals import DENSE, SolvedMarginals
from dualmech.crosscheck.papers.sheet import Sheet
from dualmech.crosscheck.papers.verdicts import Finding, InstanceVerdict

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

NONE = "—"  # stands for a number that is not known to be printed, or for a solver that cannot follow

PUBLISHED_LEGEND = (
    "Root mean square errors over all queries at a squared privacy cost of 1, and largest variances; up to 3-way, the "
    "total is among them. 'computed again': the paper's own way, which on marginals is the closed form. The least "
    "error lies between what is proven and what is found. No printed largest variance of these domains is at hand."
)


def _sheet(
    source: str,
    cases: Callable[[bool], list[MarginalsCase]],
    *others: str,
    picture: Callable[[Any, Sequence[Any]], None] | None = None,
    panels: int = 1,
) -> Sheet:
    """Return a sheet of marginal tables, solved by the fast layer and by others."""
    return Sheet(
        source,
        lambda quick: [partial(marginals.solve, case, others) for case in cases(quick)],
        _show_marginals,
        picture,
        panels=panels,
    )


def _show_marginals(out: Console, title: str, rows: Iterator[SolvedMarginals]) -> None:
    headings = ("tables", "cells", "tables", "queries", "optimum", "gap", "s", "plain", "consistent")
    drawn = table(
        title,
        (*headings, "solvers agree"),
        (_marginals(row) for row in rows),
        notes=[LEGEND],
    )
    out.print(drawn)


def _marginals(row: SolvedMarginals) -> tuple[str, ...]:
    cells, tables, queries, _ = row.counts
    others = ", ".join(name for name in row.answers if name != "fast")
    random = ", random targets" if row.case.random and "random" not in row.case.label else ""
    return (
        row.case.label + random,
        *(f"{float(cells):.3g}", str(tables), str(queries)),
        *(f"{row.best.objective:.10g}", f"{row.gap:.0e}", f"{row.seconds:.2g}"),
        *(f"{row.plain:.6g}", f"{row.consistent:.6g}"),
        f"{VERDICTS[row.outcome]}{f' ({others})' if others else ''}",
    )


def _census(quick: bool) -> list[Callable[[], census.SolvedTables]]:
    return [partial(census.solve, case) for case in census.cases(quick)]


def _show_census(out: Console, title: str, rows: Iterator[census.SolvedTables]) -> None:
    headings = ("tables", "targets", "cells", "lines", "blocks", "optimum", "gap", "s", "plain", "consistent")
    drawn = (_lists(row) for row in rows)
    out.print(table(title, (*headings, "agree"), drawn, notes=[CENSUS_LEGEND]))


def _lists(row: census.SolvedTables) -> tuple[str, ...]:
    lines, cells = row.problem.workload.shape
    count, largest = row.blocks
    return (
        row.case.label,
        ", ".join(f"{row.case.targets[name]:g}" for name in AGES if name in row.case.targets) or "1",
        *(str(cells), str(lines), f"{count} up to {largest}"),
        *(f"{row.best.objective:.7g}", f"{row.gap:.0e}", f"{row.seconds:.2g}"),
        *(f"{row.plain:.6g}", f"{row.consistent:.6g}"),
        VERDICTS[row.outcome] if row.case.dense else NONE,
    )


def _published_tasks(quick: bool) -> list[Callable[[], published.DataSetRow]]:
    kinds = (published.of_marginals, published.of_prefixes)
    return [partial(kind, name) for kind in kinds for name in instances.PUBLISHED]


def _show_published(out: Console, title: str, rows: Iterator[published.DataSetRow]) -> None:
    headings = (
        *("tables", "HDMM, printed", "printed", "computed again", "least error proven", "found"),
        *("largest variance, printed", "least proven"),
    )
    for row in rows:
        drawn = (
            (
                *(entry.asked, entry.rival or NONE, entry.printed, f"{sum(entry.again) / 2:.4f}"),
                *(f"{end:.4f}" for end in entry.least),
                *(NONE, f"{entry.largest[0]:.4f}" if entry.largest else ""),
            )
            for entry in row.entries
        )
        out.print(table(f"{title}: {row.name}", headings, drawn))
        better = f"; up to {100 * row.excess:.1f} % above what is found" if row.excess > 0 else ""
        print_lines(out, f"{_sentence(row.verdict)}{better}", "", whole=True)
    print_lines(out, PUBLISHED_LEGEND)


def _sentence(found: InstanceVerdict) -> str:
    """Return in words what printed errors imply; one column alone says nothing."""
    fitting, others = (", ".join(names) for names in (found.fitting, found.others))
    low, high = found.implied
    if found.finding is Finding.AGREES and found.sources > 1:
        text = f"AGREES{' IN PART' if others else ''}: {fitting} were computed at a privacy cost of 1"
    elif found.sources > 1:
        text = f"THE INSTANCE MAY DIFFER: {fitting} imply a privacy cost of {low:.5g} to {high:.5g}"
    else:
        return "THE INSTANCE MAY DIFFER: no two columns imply one privacy cost"
    return text + (f"; not {others}" if others else "")


def draw_growth(axes: Any, rows: Sequence[SolvedMarginals]) -> None:
    """Draw the squared privacy cost, and beside it how many numbers have to be found, against up to 10^80 cells.

    Seconds stand in the table: a picture is to be the same every time.
    """
    cells = [float(row.counts[0]) for row in rows]
    cost, numbers = axes
    cost.plot(cells, [row.best.objective for row in rows], "s-", ms=3.5, color=COLOURS[0])
    cost.set(yscale="log", ylabel="least squared privacy cost α (variances 1)")
    cost.set_title("All one- and two-way tables of attributes of ten values", loc="left", fontsize=10)
    numbers.plot(cells, [row.counts[3] for row in rows], "o-", ms=3.5, color=COLOURS[1])
    numbers.set(ylim=(0, None), ylabel="residual subspaces, one number each")
    for panel in axes:
        panel.set(xscale="log", xlabel="cells of the domain")


SHEETS = {
    "dense": _sheet("one- and two-way tables, with the dense solver", instances.small, DENSE, CLARABEL),
    "adult": _sheet("the Adult table's fourteen attributes", instances.adult, CLARABEL),
    "sixty": _sheet("sixty attributes of ten values", instances.sixty, CLARABEL),
    "domains": _sheet("domains of published experiments and of the census", instances.domains, CLARABEL),
    "published": Sheet(f"{published.PLANNER}, root mean square errors", _published_tasks, _show_published),
    "growth": _sheet(
        "two to eighty attributes of ten values", instances.growth, picture=draw_growth, panels=2
    ),
    "census": Sheet("the census's lists of tables", _census, _show_census),
}
