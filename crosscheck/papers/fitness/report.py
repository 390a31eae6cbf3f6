"""The fitness-for-use paper's tables and figures: what each asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial

from rich.console import Console

from dualmech.crosscheck.agreement import VERDICTS
from dualmech.crosscheck.command.wording import interval_text
from dualmech.crosscheck.papers.fitness import figures, rows
from dualmech.crosscheck.papers.fitness.cases import TABLE_2
from dualmech.crosscheck.papers.fitness.figures import (
    COSTS,
    EPSILONS,
    FIGURE_2,
    FIGURE_3,
    Curve,
    Figure,
    FigurePoint,
)
from dualmech.crosscheck.papers.fitness.printed import CONVERGENCE, FFU, MECHANISMS, RATIO_TABLES, RatioTable
from dualmech.crosscheck.papers.fitness.ratios import CA_WEIGHTINGS, SolvedRatios
from dualmech.crosscheck.papers.fitness.rows import (
    AS_CODED,
    BACKENDS,
    RIVALS,
    LayerAnswer,
    OptimumRow,
    RaceRow,
    RatioRow,
)
from dualmech.crosscheck.papers.printed import Interval
from dualmech.crosscheck.papers.report import format_line, print_lines, table, uncertified_mark, yes_or_no
from dualmech.crosscheck.papers.sheets import Sheet
from dualmech.crosscheck.papers.verdicts import Evidence, Finding, InstanceVerdict

QUICK_CELLS = 16  # largest size of Table 2 in a quick run

QUICK_ROWS = {5: 64, 6: 64, 7: 64, 8: 64, 10: 6, 11: 64}
"""Largest parameter of a ratio table's rows in a quick run."""

QUICK_SEEDS = 3

RACE_SECONDS, QUICK_RACE_SECONDS = 30.0, 2.0
"""Limit of each run of Table 3; the paper let gradient descent run for minutes."""

DIGITS = 9
"""Significant digits of an interval's ends; they are rounded outwards, so what is printed is still proven."""

STUB, WIDTH = 20, 10  # columns of a line's name, and of each number
DECIMALS = 4  # most decimals of a ratio; two are printed in the paper

LEGEND = (
    "Entries are the largest ratio of variance to target over all queries, each mechanism at the squared privacy "
    "cost α that fitness for use needs. 'implies α': the cost at which a printed ratio was computed. 'times Δ': the "
    "privacy cost at which a mechanism meets the targets, over the least (Theorem 5). 'CA as coded': with the ridge "
    "of the published code; wCA-I and wCA-II weight queries by 1/target² and 1/target, as it does; 'as worded' by "
    "1/target and its root."
)

WORDS = {
    Finding.AGREES: "AGREES",
    Finding.ABOVE: "PAPER ABOVE THE OPTIMUM",
    Finding.DIFFERS: "THE INSTANCE MAY DIFFER",
}


_line = partial(format_line, columns=MECHANISMS, stub=STUB, width=WIDTH)


def lines(row: RatioRow, room: int = 80) -> list[str]:
    """Return the lines of a row: as printed, every reading with its verdict, and the spread of random instances."""
    shown = [
        _line(
            row.table.parameter and f"{row.table.parameter} = {row.row}",
            dict(zip(MECHANISMS, MECHANISMS, strict=True)),
            room=room,
        )
    ]
    shown.append(_line("  printed", row.printed, room=room))
    for reading, found in zip(row.readings, row.verdicts, strict=True):
        shown += _reading_lines(row, reading, found, room)
    return shown + (_spread(row, room) if row.random else [])


def _reading_lines(row: RatioRow, reading: SolvedRatios, found: InstanceVerdict, room: int) -> list[str]:
    queries, cells = reading.size
    label = f"{reading.label}, " if reading.label else ""
    shown = [
        f"  {label}{queries} queries x {cells} cells: α in {interval_text(reading.cost)}, "
        f"{reading.seconds:.3g} s" + uncertified_mark(reading.certified)
    ]
    certified = {name: reading.ratio(name) for name in RIVALS}
    shown.append(_line("    certified", _agreed_digits_of(certified) | {"SM-II": "1"}, room=room))
    for name, values in (("CA as coded", reading.coded), ("as worded", reading.words)):
        if values:
            shown.append(_line(f"    {name}", _agreed_digits_of(_ratios_at(values, reading.cost)), room=room))
    implied = {name: Evidence(name, name, reading.values[name], row.printed[name]).implied for name in RIVALS}
    shown.append(
        _line("    implies α", {name: f"{sum(ends) / 2:.5g}" for name, ends in implied.items()}, room=room)
    )
    factors = {name: (low**0.5, high**0.5) for name, (low, high) in certified.items()}
    shown.append(_line("    times Δ", _agreed_digits_of(factors) | {"SM-II": "1"}, room=room))
    said = row.table.said_of_total_error(row.row)
    if said:
        shown.append(f"    total squared error over CA's: {reading.total_error:.3f}, printed {said}")
    return [*shown, f"    {_sentence(found)}"]


def _sentence(found: InstanceVerdict) -> str:
    """Return a verdict in words."""
    text = WORDS[found.finding]
    if found.finding is Finding.ABOVE:
        text += f" by {100 * found.excess[0]:.2f} % to {100 * found.excess[1]:.2f} %"
    # A mechanism that fits both as optimal and as coded is named once.
    fitting = [
        name
        for name in found.fitting
        if name.removesuffix(AS_CODED) not in found.fitting or AS_CODED not in name
    ]
    other = [name for name in found.others if AS_CODED not in name and name + AS_CODED not in found.fitting]
    low, high = found.implied
    text += f": {_subject(fitting, 'implies', 'imply')} α = {low:.5g} to {high:.5g}"
    return text + (f"; {_subject(other, 'does not fit', 'do not fit')}" if other else "")


def _subject(names: Sequence[str], singular: str, plural: str) -> str:
    return f"{', '.join(names)} {singular if len(names) == 1 else plural}"


def _spread(row: RatioRow, room: int) -> list[str]:
    """Return the spread of the random instances, and which printed ratios lie in it."""
    ends = {name: row.spread(name) for name in RIVALS}
    count = len(row.random)
    inside = [name for name in RIVALS if row.within_spread(name)]
    outside = [name for name in RIVALS if name not in inside]
    text = f"    INSTANCE IS RANDOM: of {count} seeds' spread, printed within: {', '.join(inside) or 'none'}"
    return [
        f"  as the text, {count} seed{'s' if count > 1 else ''}"
        + uncertified_mark(all(reading.certified for reading in row.random)),
        _line("    least", {name: f"{low:.{DECIMALS}f}" for name, (low, _) in ends.items()}, room=room),
        _line("    largest", {name: f"{high:.{DECIMALS}f}" for name, (_, high) in ends.items()}, room=room),
        text + (f"; outside: {', '.join(outside)}" if outside else ""),
    ]


def _ratios_at(values: Mapping[str, Interval], cost: Interval) -> dict[str, Interval]:
    return {name: (low / cost[1], high / cost[0]) for name, (low, high) in values.items()}


def _agreed_digits_of(intervals: Mapping[str, Interval]) -> dict[str, str]:
    return {name: agreed_digits(interval) for name, interval in intervals.items()}


def agreed_digits(interval: Interval) -> str:
    """Return a number with the decimals on which both ends of its interval agree, from 4 down to 2, or both ends.

    Examples
    --------
    >>> agreed_digits((4.60838, 4.60841)), agreed_digits((1.2431, 1.2444)), agreed_digits((1.2, 1.3))
    ('4.6084', '1.24', '1.2..1.3')
    """
    low, high = interval
    for decimals in range(DECIMALS, 1, -1):
        if f"{low:.{decimals}f}" == f"{high:.{decimals}f}":
            return f"{low:.{decimals}f}"
    return f"{low:.1f}..{high:.1f}"


def _privacy_costs(quick: bool) -> list[Callable[[], OptimumRow]]:
    cases = [case for case in TABLE_2 if not quick or case.problem().workload.shape[1] <= QUICK_CELLS]
    return [partial(rows.solve_case, case) for case in cases]


def _show_privacy_costs(out: Console, title: str, found: Iterator[OptimumRow]) -> None:
    printed = list(TABLE_2[0].printed)
    drawn = table(
        f"{title} (squared privacy cost)",
        ("d", *(f"{name}, printed" for name in printed), *BACKENDS, "fast", "layers agree", "printed holds"),
        (_privacy_cost(row, printed) for row in found),
        words=(),
        show_lines=True,
    )
    out.print(drawn)


def _privacy_cost(row: OptimumRow, printed: Sequence[str]) -> tuple[str, ...]:
    return (
        str(row.size),
        *(row.case.printed[column] for column in printed),
        *(_entry(entry) for entry in row.entries),
        *(VERDICTS[row.outcome], yes_or_no(all(row.confirmed(column) for column in printed))),
    )


def _entry(entry: LayerAnswer) -> str:
    low, high = entry.interval
    ends = f"[{_rounded_text(low, ROUND_FLOOR)},\n{_rounded_text(high, ROUND_CEILING)}]"
    return f"{ends}{'' if entry.certified else ' wide'}\n{entry.seconds:.3g} s"


def _rounded_text(value: float, rounding: str) -> str:
    return str(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(value)))


def _race(quick: bool) -> list[Callable[[], RaceRow]]:
    limit = QUICK_RACE_SECONDS if quick else RACE_SECONDS
    return [partial(rows.race, size, limit) for size in CONVERGENCE]


def _show_race(out: Console, title: str, found: Iterator[RaceRow]) -> None:
    drawn = (
        (
            str(row.size),
            *(f"{seconds} s" for seconds in row.printed),
            *(
                f"{'> ' if entry.seconds >= row.limit else ''}{entry.seconds:.2g} s, {entry.gap:.0e}"
                for entry in row.entries
            ),
        )
        for row in found
    )
    headings = ("d", "descent, printed", "SM-II, printed", "descent", "SM-II", "dual, certified")
    out.print(table(f"{title}: seconds, and the gap proven", headings, drawn, words=()))


def _ratios(table: RatioTable, quick: bool) -> list[Callable[[], RatioRow]]:
    chosen = [row for row in table.rows if not quick or row <= QUICK_ROWS.get(table.number, row)]
    return [partial(rows.solve_row, table, row, QUICK_SEEDS if quick else None) for row in chosen]


def _show_ratios(subject: str, out: Console, title: str, found: Iterator[RatioRow]) -> None:
    print_lines(out, title, f"{subject[0].upper()}{subject[1:]}.", LEGEND)
    for row in found:
        print_lines(out, "", *lines(row, out.width), whole=True)
    print_lines(out, "")


def _curves(quick: bool) -> list[Callable[[], Curve]]:
    return [partial(figures.curve, cost) for cost in COSTS]


def _show_curves(out: Console, title: str, found: Iterator[Curve]) -> None:
    drawn = (
        (f"{row.privacy_cost:g}", *(f"{delta:.4e}" for delta in row.deltas), VERDICTS[row.outcome])
        for row in found
    )
    headings = ("Δ", *(f"ε = {epsilon:g}" for epsilon in EPSILONS), "ε found again")
    out.print(table(f"{title}: δ by ε", headings, drawn, words=()))


def _show_points(figure: Figure, out: Console, title: str, found: Iterator[FigurePoint]) -> None:
    headings = (figure.varied, "squared cost", *CA_WEIGHTINGS, "certified squared cost", "certified")
    drawn = (_point(figure, row) for row in found)
    out.print(table(f"{title}: {figure.subject}", headings, drawn, words=()))


def _point(figure: Figure, row: FigurePoint) -> tuple[str, ...]:
    certified = ("", "")
    if row.reading:
        held = ", ".join(agreed_digits(row.reading.ratio(name)) for name in CA_WEIGHTINGS)
        certified = (interval_text(row.reading.cost), f"{held}: {VERDICTS[row.outcome]}")
    numbers = (row.squared_cost, *(row.curves[name] for name in CA_WEIGHTINGS))
    return str(figure.x(row)), *(f"{number:.6f}" for number in numbers), *certified


SHEETS = {
    "table2": Sheet(f"{FFU}, Table 2", _privacy_costs, _show_privacy_costs),
    "table3": Sheet(f"{FFU}, Table 3", _race, _show_race),
    **{
        f"table{each.number}": Sheet(each.source, partial(_ratios, each), partial(_show_ratios, each.subject))
        for each in RATIO_TABLES
    },
    "figure1": Sheet(f"{FFU}, Figure 1", _curves, _show_curves, figures.draw_curves),
    **{
        f"figure{each.number}": Sheet(
            f"{FFU}, Figure {each.number}",
            each.tasks,
            partial(_show_points, each),
            partial(figures.draw_points, each),
        )
        for each in (FIGURE_2, FIGURE_3)
    },
}
