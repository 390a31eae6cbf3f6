"""The Eigen-Design paper's tables and figures: the tasks of each, and how it looks in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich.console import Console

from dualmech.crosscheck.printing import Interval, format_line, print_lines, table, uncertified_mark, yes_or_no
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table, table_each
from dualmech.studies.papers.eigen import designs, instances, relative
from dualmech.studies.papers.eigen.instances import (
    BOUND,
    CELLS,
    DATACUBE,
    EIG,
    FOURIER,
    HIERARCHICAL,
    IDENTITY,
    OPTIMUM_TOLERANCE,
    PERMUTED_DESIGNS,
    WAVELET,
    Claim,
    EigenInstance,
    SolvedInstance,
    ratio,
)

OPTIMUM = "optimum"

COLUMNS = (BOUND, OPTIMUM, WAVELET, HIERARCHICAL, FOURIER, DATACUBE, IDENTITY)

STUB, WIDTH = 27, 13  # columns of a line's name, and of each number

LEGEND = (
    "Root mean square errors at equal privacy cost, over that of the Eigen-Design (columns completed). 'bound' is the "
    "singular value bound, 'optimum' the least error of any strategy, certified to a relative gap of "
    f"{OPTIMUM_TOLERANCE:.0e} of its "
    "square. 'implies': the error of the paper's own Eigen-Design that a printed number was divided by, over the bound."
)

SMALLER = f"NO VERDICT: the paper's numbers are of {CELLS} cells"

_line = partial(format_line, columns=COLUMNS, stub=STUB, width=WIDTH)


def lines(row: Row, room: int = 80) -> list[str]:
    """Return the lines of a row of the table of alternative workloads: as printed, then every reading."""
    shown = [
        _line(row.name, dict(zip(COLUMNS, COLUMNS, strict=True)), room=room),
        _line("  printed", row.readings[0].instance.printed, room=room),
    ]
    for reading in row.readings:
        shown += _instance_lines(reading, room)
    return shown


def _instance_lines(reading: SolvedInstance, room: int) -> list[str]:
    instance, verdict = reading.instance, reading.verdict.sentence("a design at", "PAPER'S DESIGN WORSE")
    over = {name: reading.factor(name) for name in (BOUND, *reading.rivals)}
    over[OPTIMUM] = ratio(reading.optimum, reading.design)
    return [
        f"  {instance.label}, {instance.cells} cells: Eigen-Design at {three_decimals(reading.design)} of the bound "
        f"and {three_decimals(ratio(reading.design, reading.optimum))} of the optimum, the bound at "
        f"{three_decimals(ratio((1.0, 1.0), reading.optimum))} of it, {reading.seconds:.2g} s"
        + uncertified_mark(reading.certified),
        _line("    computed", {name: three_decimals(value) for name, value in over.items()}, room=room),
        _line("    implies", {name: three_decimals(value) for name, value in reading.implied.items()}, room=room),
        f"    {verdict if instance.cells == CELLS else SMALLER}",
    ]


def three_decimals(interval: Interval) -> str:
    """Return a number to three decimals where the ends of its interval are that close, else both ends.

    Examples
    --------
    >>> three_decimals((1.01380, 1.01381)), three_decimals((9.5554, 9.6431)), three_decimals((1.0015, 1.0042))
    ('1.014', '9.56-9.64', '1.002-1.004')
    """
    low, high = interval
    if high - low <= 1e-3:
        return f"{(low + high) / 2:.3f}"
    decimals = 2 if f"{low:.2f}" != f"{high:.2f}" else 3
    return f"{low:.{decimals}f}-{high:.{decimals}f}"


def _show_alternatives(out: Console, title: str, rows: Iterator[Row]) -> None:
    print_lines(out, title, LEGEND)
    for row in rows:
        print_lines(out, "", *lines(row, out.width), whole=True)
    print_lines(out, "")


def _readings(name: str, claim: Claim, choose: Callable[[bool], Sequence[EigenInstance]]) -> Sheet:
    """Return a sheet of instances, each certified and held against a claim of the text."""
    least, most = claim.factor

    def columns(rows: Sequence[Row]) -> Columns:
        names = dict.fromkeys(name for row in rows for name in row.reading.rivals)
        return (
            ("workload", "{reading.instance.label}"),
            ("text holds", lambda row: yes_or_no(row.reading.within(claim))),
            ("best rival / design", lambda row: three_decimals(row.reading.factor(row.reading.best))),
            ("design / bound", lambda row: three_decimals(row.reading.design)),
            ("optimum certified", "{verdict}"),
            *((name, partial(_over_optimum, name)) for name in ("bound", "Eigen-Design", *names)),
        )

    show = one_table(
        columns,
        f"The text says that the best rival's error is {least} to {most} times the design's, and the design's at most "
        f"{claim.over_bound} times the bound.",
        heading=": root errors over the optimum",
    )
    return Sheet(
        f"{EIG}, {name}", lambda quick: [partial(instances.solve_shown, instance) for instance in choose(quick)], show
    )


def _over_optimum(name: str, row: Row) -> str:
    reading = row.reading
    error = {"bound": (1.0, 1.0), "Eigen-Design": reading.design}.get(name) or reading.rivals[name]
    return three_decimals(ratio(error, reading.optimum))


def _design_columns(rows: Sequence[Row]) -> Columns:
    names = dict.fromkeys(entry.name for row in rows for entry in row.parts)
    return (
        ("workload", "{name}{mark}"),
        *((name, partial(_errors, name)) for name in names),
        ("best", "{best.name}"),
        ("others / eigen-queries", _others),
    )


def _errors(name: str, row: Row) -> str:
    entries = [entry for entry in row.parts if entry.name == name]
    return "".join(f"{three_decimals(entry.program)}\n{three_decimals(entry.completed)}" for entry in entries)


def _others(row: Row) -> str:
    reference, entries = row.eigen_queries, {entry.name: entry for entry in row.parts}
    lines = (
        ", ".join(
            three_decimals(ratio(getattr(entries[name], kind), getattr(reference, kind))) for name in (WAVELET, FOURIER)
        )
        for kind in ("program", "completed")
    )
    return "\n".join(lines)


def _show_reductions(out: Console, title: str, rows: Iterator[Row]) -> None:
    for row in rows:
        most, known = (", at most", "") if math.isinf(row.asked) else ("", f", optimum to {row.gap:.0e}")
        whole, (name, error) = row.parts[0].seconds, row.rival
        lines = [
            (
                *(entry.label, three_decimals(entry.error), f"{100 * entry.excess:.2g} %"),
                *(f"{entry.seconds:.2g}", f"{whole / entry.seconds:.1f}"),
            )
            for entry in row.parts
        ]
        headings = (
            *("eigen-queries weighed", f"error / optimum{most}", "Program 1, above its optimum"),
            *("seconds for weights", "speed"),
        )
        lines.append((f"best rival: {name}", three_decimals(error), "", "", ""))
        out.print(table(row.text(f"{title}: {{name}}{known}{{mark}}"), headings, lines))


COMPLETION: Columns = (
    (
        "weights",
        lambda row: row.text("Program 1 to {asked:.0e}" if math.isfinite(row.asked) else "Theorem 2's, nothing solved"),
    ),
    ("gap of Program 1", "{proven:.0e}"),
    ("eigen-queries / bound", "{program:.4f}"),
    ("columns completed / bound", "{completed:.4f}"),
)

PURE: Columns = (
    ("basis", "{name}"),
    ("equal weights over best", "{gain[0]:.4f}"),
    ("best weights over best basis", "{over_best:.4f}"),
    ("gap", "{gap:.0e}"),
    ("certified", lambda row: yes_or_no(row.certified)),
)


def _relative(quick: bool, data: str | None = None) -> list[Callable[[], Row]]:
    """Return the tasks on a file of records; a quick run leaves out the table of alternative workloads."""
    if data is None:
        return []
    counts = relative.histogram(data)
    return relative.rows(counts) + ([] if quick else relative.alternatives_rows(counts))


def _show_relative(out: Console, title: str, rows: Iterator[Row]) -> None:
    listed = [*rows]
    for row in listed:
        headings = ("mean errors", *row.rivals, "Eigen-Design for absolute error", "certified")
        errors = (f"{error:.3f}" for error in (*row.rivals.values(), row.plain))
        lines = [("computed", *errors, row.text("{verdict}"))]
        if row.printed:
            lines.append(("printed", *(row.printed.get(name, "") for name in row.rivals), "", ""))
        title_of_row = f"{title}: {row.name}, means over that of the Eigen-Design for relative error"
        out.print(table(title_of_row, headings, lines))
    said = "The text has the best rival at 1.3 to 1.5 on ranges, and at 1.1 to 2.7 on marginals."
    skipped = f"{title}: skipped, it is of real records: give the Adult table with --data FILE"
    print_lines(out, said if listed else skipped)


SHEETS = {
    "alternative": Sheet(
        f"{EIG}, alternative workloads",
        lambda quick: [partial(instances.solve_row, *row) for row in instances.alternatives(quick)],
        _show_alternatives,
    ),
    "ranges": _readings("ranges", instances.RANGES, instances.ranges),
    "marginals": _readings("marginals", instances.MARGINALS, instances.marginals),
    "designs": Sheet(
        f"{EIG}, design queries",
        designs.comparisons,
        one_table(
            _design_columns,
            "Above: Program 1 alone. Below: columns completed. Last column, wavelet and Fourier over eigen-queries: "
            f"the text says above {PERMUTED_DESIGNS:g} on permuted ranges, more than 1 on ranges, 1 on marginals.",
            heading=": root errors over the optimum",
        ),
    ),
    "completion": Sheet(f"{EIG}, columns completed", designs.completion_rows, table_each(COMPLETION, "{name}")),
    "reductions": Sheet(f"{EIG}, reductions", designs.reductions_rows, _show_reductions),
    "reductions8192": Sheet(f"{EIG}, reductions", designs.large_rows, _show_reductions, apart=True),
    "pure": Sheet(f"{EIG}, pure privacy", designs.pure_rows, table_each(PURE, "{name}, root errors, {seconds:.2g} s")),
    "relative": Sheet(f"{EIG}, relative errors on the Adult table", _relative, _show_relative, options=("data",)),
}
"""Relative errors are skipped, with the reason, where no file is given; on one they take a minute in a quick run, and
several more for the table of alternative workloads."""
