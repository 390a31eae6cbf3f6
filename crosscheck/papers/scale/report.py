"""Marginal tables at scale: what each sheet asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dualmech.crosscheck.agreement import VERDICTS
from dualmech.crosscheck.papers.scale import instances, marginals, published
from dualmech.crosscheck.papers.scale.instances import Case
from dualmech.crosscheck.papers.scale.marginals import DENSE, Reading
from dualmech.crosscheck.papers.verdicts import Finding, Verdict

LEGEND = (
    "Squared privacy costs at which every cell of every table meets its variance target: the certified optimum, that "
    "of independent noise on every table, and the latter once the tables are made consistent."
)

INK, ACCENT = "#1b1b1b", "#0072b2"

CLARABEL = "CLARABEL"

NONE = "—"
"""Stands for a number that is not known to be printed."""

PUBLISHED_LEGEND = (
    "Root mean square errors over all queries at a squared privacy cost of 1, and largest variances; up to 3-way, the\n"
    "total is among them. 'computed again': the paper's own way, which on marginals is the closed form. The least\n"
    "error lies between what is proven and what is found. No printed largest variance of these domains is at hand."
)

Cases = Callable[[bool], list[Case]]


def _tasks(cases: Cases, others: tuple[str, ...], quick: bool) -> list[Callable[[], Reading]]:
    return [partial(marginals.solve, case, others) for case in cases(quick)]


def _show(out: Console, title: str, rows: Iterator[Reading]) -> None:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, caption=LEGEND, caption_justify="left"
    )
    table.add_column("tables")
    for heading in (
        "cells",
        "tables",
        "queries",
        "optimum",
        "gap",
        "s",
        "plain",
        "consistent",
        "solvers agree",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells, tables, queries, _ = row.counts
        others = ", ".join(name for name in row.answers if name != "fast")
        table.add_row(
            f"{row.case.label}{', random targets' if row.case.random and 'random' not in row.case.label else ''}",
            f"{float(cells):.3g}",
            str(tables),
            str(queries),
            f"{row.best.objective:.10g}",
            f"{row.gap:.0e}",
            f"{row.seconds:.2g}",
            f"{row.plain:.6g}",
            f"{row.consistent:.6g}",
            f"{VERDICTS[row.outcome]}{f' ({others})' if others else ''}",
        )
    out.print(table)


def _published(quick: bool) -> list[Callable[[], published.Row]]:
    kinds = (published.of_marginals, published.of_prefixes)
    return [partial(kind, name) for kind in kinds for name in instances.PUBLISHED]


def _show_published(out: Console, title: str, rows: Iterator[published.Row]) -> None:
    for row in rows:
        table = Table(title=f"{title}: {row.name}", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("tables")
        headings = ("HDMM", "printed", "computed again", "least error proven", "found")
        for heading in (*headings, "largest variance, printed", "least proven"):
            table.add_column(heading, justify="right")
        for entry in row.entries:
            low, high = entry.least
            table.add_row(
                entry.asked,
                entry.rival or NONE,
                entry.printed,
                f"{sum(entry.again) / 2:.4f}",
                *(f"{low:.4f}", f"{high:.4f}", NONE),
                f"{entry.largest[0]:.4f}" if entry.largest else "",
            )
        out.print(table)
        better = f"; up to {100 * row.excess:.1f} % above what is found" if row.excess > 0 else ""
        out.print(f"{_sentence(row.verdict)}{better}\n", markup=False, soft_wrap=True)
    out.print(PUBLISHED_LEGEND, markup=False)


def _sentence(found: Verdict) -> str:
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


def growth_picture(axes: Any) -> None:
    """Draw the squared privacy cost, and how many numbers have to be found, against the number of cells up to 10^80.

    Seconds stand in the table: a picture is to be the same every time.
    """
    rows = [marginals.solve(case) for case in instances.growth(quick=False)]
    cells = [float(row.counts[0]) for row in rows]
    axes.plot(cells, [row.best.objective for row in rows], "s-", ms=3.5, color=INK)
    axes.set(xscale="log", yscale="log", xlabel="cells", ylabel="squared privacy cost, optimal")
    beside = axes.twinx()
    beside.plot(cells, [row.counts[3] for row in rows], "o--", ms=3.5, color=ACCENT)
    beside.set_ylim(0, None)
    beside.set_ylabel("residual subspaces (dashed)", color=ACCENT)
    beside.spines["right"].set_visible(True)
    axes.set_title("All one- and two-way tables of attributes of ten values", loc="left", fontsize=10)


def _sheet(source: str, cases: Cases, *others: str) -> tuple[Any, Any, Any]:
    return source, partial(_tasks, cases, others), _show


DENSE_SHEET = _sheet("one- and two-way tables, with the dense solver", instances.small, DENSE, CLARABEL)
ADULT = _sheet("the Adult table's fourteen attributes", instances.adult, CLARABEL)
SIXTY = _sheet("sixty attributes of ten values", instances.sixty, CLARABEL)
DOMAINS = _sheet("domains of published experiments and of the census", instances.domains, CLARABEL)
PUBLISHED_ERRORS = (f"{published.PLANNER}, root mean square errors", _published, _show_published)
GROWTH = _sheet("two to eighty attributes of ten values", instances.growth)
"""Source, tasks and report, as the list of tables takes them."""
