"""The rows of the ratio tables, Tables 4 to 11, in lines: as printed, certified, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from dualmech.crosscheck.command.wording import interval_text
from dualmech.crosscheck.papers.fitness.printed import MECHANISMS
from dualmech.crosscheck.papers.fitness.published_runs import PublishedRun
from dualmech.crosscheck.papers.fitness.ratios import SolvedRatios
from dualmech.crosscheck.papers.fitness.rows import AS_CODED, RIVALS, RatioRow
from dualmech.crosscheck.papers.printed import Interval
from dualmech.crosscheck.papers.report import format_line, uncertified_mark
from dualmech.crosscheck.papers.verdicts import Evidence, Finding, InstanceVerdict

COLUMNS = (*MECHANISMS[:-1], "GM", MECHANISMS[-1])
"""Those of the ratio tables, and the Gaussian mechanism, which the paper leaves out of its experiments."""

STUB, WIDTH = 20, 10  # columns of a line's name, and of each number
DECIMALS = 4  # most decimals of a ratio; two are printed in the paper

LEGEND = (
    "Entries are the largest ratio of variance to target over all queries, each mechanism at the squared privacy "
    "cost α that fitness for use needs. 'implies α': the cost at which a printed ratio was computed. 'times Δ': the "
    "privacy cost at which a mechanism meets the targets, over the least (Theorem 5). 'CA as coded': with the ridge "
    "of the published code; wCA-I and wCA-II weight queries by 1/target² and 1/target, as it does; 'as worded' by "
    "1/target and its root. GM: the Gaussian mechanism, independent noise on every answer in proportion to its target, "
    "which the paper leaves out. 'SM-II run here': with the settings of the published code (Equation 14 as printed, "
    "its start), in the basis B that the text states; CAPPED where it was stopped before its own rule ended it."
)

WORDS = {
    Finding.AGREES: "AGREES",
    Finding.ABOVE: "PAPER ABOVE THE OPTIMUM",
    Finding.DIFFERS: "THE INSTANCE MAY DIFFER",
}


_line = partial(format_line, columns=COLUMNS, stub=STUB, width=WIDTH)


def lines(row: RatioRow, room: int = 80) -> list[str]:
    """Return the lines of a row: as printed, every reading with its verdict, and the spread of random instances."""
    shown = [
        _line(
            row.table.parameter and f"{row.table.parameter} = {row.row}",
            dict(zip(COLUMNS, COLUMNS, strict=True)),
            room=room,
        )
    ]
    shown.append(_line("  printed", row.printed, room=room))
    for reading, found, run in zip(row.readings, row.verdicts, row.runs, strict=True):
        shown += _reading_lines(row, reading, found, room)
        shown += [] if run is None else [_run_line(run, reading.cost)]
    return shown + (_spread(row, room) if row.random else [])


def _reading_lines(row: RatioRow, reading: SolvedRatios, found: InstanceVerdict, room: int) -> list[str]:
    queries, cells = reading.size
    label = f"{reading.label}, " if reading.label else ""
    shown = [
        f"  {label}{queries} queries x {cells} cells: α in {interval_text(reading.cost)}, "
        f"{reading.seconds:.3g} s" + uncertified_mark(reading.certified)
    ]
    certified = {name: reading.ratio(name) for name in (*RIVALS, "GM")}
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


def _run_line(run: PublishedRun, optimum: Interval) -> str:
    """Return what SM-II reached here, and in which basis."""
    low, high = (100 * each for each in run.excess(optimum))
    return (
        f"    SM-II run here, {run.settings}, B = {run.basis}: α = {run.objective:.6g}, "
        f"{low:.2f} % to {high:.2f} % above the optimum, {run.steps} steps, "
        f"{run.seconds:.3g} s{', CAPPED' if run.capped else ''}"
    )


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
