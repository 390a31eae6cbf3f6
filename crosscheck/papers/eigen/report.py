"""The Eigen-Design paper's tables and figures: what each asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.eigen import (
    completion,
    designs,
    experiments,
    instances,
    printed,
    reductions,
)
from dualmech.crosscheck.papers.eigen import (
    relative as eigen_relative,
)
from dualmech.crosscheck.papers.eigen.completion import CompletionRow
from dualmech.crosscheck.papers.eigen.designs import DesignRow
from dualmech.crosscheck.papers.eigen.experiments import OPTIMUM_TOLERANCE, Reading, Row
from dualmech.crosscheck.papers.eigen.instances import CELLS, IDENTITY, Instance
from dualmech.crosscheck.papers.eigen.printed import (
    BOUND,
    DATACUBE,
    EIG,
    FOURIER,
    HIERARCHICAL,
    PERMUTED_DESIGNS,
    WAVELET,
    Claim,
)
from dualmech.crosscheck.papers.eigen.reductions import ReductionRow
from dualmech.crosscheck.papers.eigen.relative import RelativeRow
from dualmech.crosscheck.papers.printed import Interval
from dualmech.crosscheck.papers.verdicts import Finding, Verdict

OPTIMUM = "optimum"

COLUMNS = (BOUND, OPTIMUM, WAVELET, HIERARCHICAL, FOURIER, DATACUBE, IDENTITY)

STUB, WIDTH = 27, 13
"""Columns of a line's name, and of each number."""

LEGEND = (
    "Root mean square errors at equal privacy cost, over that of the Eigen-Design (columns completed). 'bound' is the\n"
    "singular value bound, 'optimum' the least error of any strategy, certified to a relative gap of "
    f"{OPTIMUM_TOLERANCE:.0e} of its\n"
    "square. 'implies': the error of the paper's own Eigen-Design that a printed number was divided by, over the bound."
)


def lines(row: Row) -> list[str]:
    """Return the lines of a row of the table of alternative workloads: as printed, then every reading."""
    shown = [
        _line(row.name, dict(zip(COLUMNS, COLUMNS, strict=True))),
        _line("  printed", row.readings[0].instance.printed),
    ]
    for reading in row.readings:
        shown += _reading(reading)
    return shown


def _reading(reading: Reading) -> list[str]:
    instance = reading.instance
    over = {name: reading.factor(name) for name in (BOUND, *reading.rivals)}
    over[OPTIMUM] = experiments.ratio(reading.optimum, reading.design)
    text = (
        f"  {instance.label}, {instance.cells} cells: Eigen-Design at {span(reading.design)} of the bound and "
        f"{span(experiments.ratio(reading.design, reading.optimum))} of the optimum, {reading.seconds:.2g} s"
    )
    return [
        text + ("" if reading.certified else " WIDE"),
        _line("    computed", {name: span(value) for name, value in over.items()}),
        _line("    implies", {name: span(value) for name, value in reading.implied.items()}),
        f"    {sentence(reading.verdict, reading.design) if instance.cells == CELLS else SMALLER}",
    ]


SMALLER = f"NO VERDICT: the paper's numbers are of {CELLS} cells"


def sentence(found: Verdict, design: Interval) -> str:
    """Return a verdict in words, held against the error of the Eigen-Design here."""
    fitting, others = " and ".join(found.fitting), " and ".join(found.others)
    if found.finding is Finding.AGREES:
        text = f"AGREES: {fitting}" if not others else f"AGREES IN PART: {fitting}"
    elif found.sources == 1:
        return "THE INSTANCE MAY DIFFER: no two columns imply one design"
    elif found.finding is Finding.ABOVE:
        least, most = (100 * excess for excess in found.excess)
        text = f"PAPER'S DESIGN WORSE by {least:.2f} % to {most:.2f} %: {fitting}"
    else:
        low, high = found.implied
        text = (
            f"THE INSTANCE MAY DIFFER: {fitting} imply a design at {low:.4f} to {high:.4f} of the bound, "
            f"not {design[1]:.4f}"
        )
    return text + (f"; not {others}" if others else "")


def span(interval: Interval) -> str:
    """Return a number to three decimals where the ends of its interval are that close, else both ends.

    Examples
    --------
    >>> span((1.01380, 1.01381)), span((9.5554, 9.6431)), span((1.0015, 1.0042))
    ('1.014', '9.56-9.64', '1.002-1.004')
    """
    low, high = interval
    if high - low <= 1e-3:
        return f"{(low + high) / 2:.3f}"
    decimals = 2 if f"{low:.2f}" != f"{high:.2f}" else 3
    return f"{low:.{decimals}f}-{high:.{decimals}f}"


def _line(name: str, numbers: Mapping[str, str]) -> str:
    return f"{name:<{STUB}}" + "".join(f"{numbers.get(column, ''):>{WIDTH}}" for column in COLUMNS).rstrip()


def _alternatives(quick: bool) -> list[Callable[[], Row]]:
    return [partial(experiments.solve_row, *row) for row in instances.alternatives(quick)]


def _show_alternatives(out: Console, title: str, rows: Iterator[Row]) -> None:
    for line in (title, LEGEND):
        out.print(line, markup=False)
    for row in rows:
        for line in ("", *lines(row)):
            out.print(line, markup=False, soft_wrap=True)
    out.print()


def _instances(
    choose: Callable[[bool], Sequence[Instance]],
) -> Callable[[bool], list[Callable[[], Reading]]]:
    return lambda quick: [partial(experiments.solve, instance) for instance in choose(quick)]


def _show_readings(claim: Claim, out: Console, title: str, rows: Iterator[Reading]) -> None:
    least, most = claim.factor
    table = Table(title=f"{title}: root errors over the optimum", title_justify="left", box=box.SIMPLE_HEAD)
    found = list(rows)
    names = list(dict.fromkeys(name for reading in found for name in reading.rivals))
    table.add_column("workload")
    headings = ("optimum certified", "bound", "Eigen-Design", *names, "best rival / design", "design / bound")
    for heading in (*headings, f"{least} to {most}, {claim.over_bound}"):
        table.add_column(heading, justify="right")
    for reading in found:
        errors = [(1.0, 1.0), reading.design, *(reading.rivals[name] for name in names)]
        table.add_row(
            reading.instance.label,
            "yes" if reading.outcome is Agreement.AGREE else "wide",
            *(span(experiments.ratio(error, reading.optimum)) for error in errors),
            span(reading.factor(reading.best)),
            span(reading.design),
            "yes" if reading.within(claim) else "NO",
        )
    out.print(table)
    out.print(
        f"Last column: the text says that the best rival's error is {least} to {most} times the design's, and the "
        f"design's at most {claim.over_bound} times the bound."
    )


def _show_designs(out: Console, title: str, rows: Iterator[DesignRow]) -> None:
    found = list(rows)
    table = Table(title=f"{title}: root errors over the optimum", title_justify="left", box=box.SIMPLE_HEAD)
    names = list(dict.fromkeys(entry.name for row in found for entry in row.entries))
    table.add_column("workload")
    for heading in (*names, "best", "others / eigen-queries"):
        table.add_column(heading, justify="right")
    for row in found:
        entries = {entry.name: entry for entry in row.entries}
        shown = [
            f"{span(entries[name].program)}\n{span(entries[name].completed)}" if name in entries else ""
            for name in names
        ]
        bases = [entries[name] for name in (WAVELET, FOURIER)]
        mark = "" if row.outcome is Agreement.AGREE else " WIDE"
        table.add_row(row.name + mark, *shown, row.best.name, _others(row.eigen_queries, bases))
    out.print(table)
    out.print(
        "Above: Program 1 alone. Below: columns completed. Last column, wavelet and Fourier over eigen-queries: the "
        f"text says above {PERMUTED_DESIGNS:g} on permuted ranges, more than 1 on ranges, 1 on marginals."
    )


def _others(eigen_queries: designs.Weighted, bases: Sequence[designs.Weighted]) -> str:
    program = [span(experiments.ratio(each.program, eigen_queries.program)) for each in bases]
    completed = [span(experiments.ratio(each.completed, eigen_queries.completed)) for each in bases]
    return f"{', '.join(program)}\n{', '.join(completed)}"


def _show_reductions(out: Console, title: str, rows: Iterator[ReductionRow]) -> None:
    for row in rows:
        most, known = (", at most", "") if math.isinf(row.asked) else ("", f", optimum to {row.gap:.0e}")
        mark = "" if row.outcome is Agreement.AGREE else " WIDE"
        table = Table(title=f"{title}: {row.name}{known}{mark}", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("eigen-queries weighed")
        headings = ("Program 1, above its optimum", "seconds for weights", "speed")
        for heading in (f"error / optimum{most}", *headings):
            table.add_column(heading, justify="right")
        whole = row.entries[0].seconds
        for entry in row.entries:
            table.add_row(
                entry.label,
                span(entry.error),
                f"{100 * entry.excess:.2g} %",
                f"{entry.seconds:.2g}",
                f"{whole / entry.seconds:.1f}",
            )
        table.add_row(f"best rival: {row.rival[0]}", span(row.rival[1]), "", "", "")
        out.print(table)


def _show_completion(out: Console, title: str, rows: Iterator[CompletionRow]) -> None:
    for row in rows:
        table = Table(title=f"{title}: {row.name}", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("weights")
        for heading in ("gap of Program 1", "eigen-queries / bound", "columns completed / bound"):
            table.add_column(heading, justify="right")
        for entry in row.entries:
            solved = math.isfinite(entry.asked)
            name = f"Program 1 to {entry.asked:.0e}" if solved else "Theorem 2's, nothing solved"
            table.add_row(name, f"{entry.gap:.0e}", f"{entry.program:.4f}", f"{entry.completed:.4f}")
        out.print(table)


def _show_relative(out: Console, title: str, rows: Iterator[RelativeRow]) -> None:
    found = list(rows)
    if not found:
        out.print(
            f"{title}: skipped, it is of real records: give the Adult table with --data FILE", markup=False
        )
        return
    for row in found:
        table = Table(
            title=f"{title}: {row.name}, means over that of the Eigen-Design for relative error",
            title_justify="left",
            box=box.SIMPLE_HEAD,
        )
        for heading in (*row.rivals, "Eigen-Design for absolute error", "certified"):
            table.add_column(heading, justify="right")
        certified = "yes" if row.outcome is Agreement.AGREE else "wide"
        table.add_row(*(f"{error:.3f}" for error in (*row.rivals.values(), row.plain)), certified)
        out.print(table)


Parts = tuple[
    str, Callable[[bool], Sequence[Callable[[], Any]]], Callable[[Console, str, Iterator[Any]], None]
]

ALTERNATIVES: Parts = (f"{EIG}, alternative workloads", _alternatives, _show_alternatives)
RANGES: Parts = (
    f"{EIG}, ranges",
    _instances(instances.ranges),
    partial(_show_readings, printed.RANGES),
)
MARGINALS: Parts = (
    f"{EIG}, marginals",
    _instances(instances.marginals),
    partial(_show_readings, printed.MARGINALS),
)
DESIGNS: Parts = (f"{EIG}, design queries", designs.comparisons, _show_designs)
COMPLETION: Parts = (f"{EIG}, columns completed", completion.rows, _show_completion)
REDUCTIONS: Parts = (f"{EIG}, reductions", reductions.rows, _show_reductions)
LARGE_REDUCTIONS: Parts = (f"{EIG}, reductions", reductions.large_rows, _show_reductions)
RELATIVE: Parts = (f"{EIG}, relative errors on the Adult table", lambda quick: [], _show_relative)
"""Skipped, with the reason; `relative` is the sheet on a file."""


def relative(path: str) -> Parts:
    """Return the sheet of relative errors on a data file; what it asks for takes a minute, also in a quick run."""
    title, _, show = RELATIVE
    return title, lambda quick: eigen_relative.rows(path), show
