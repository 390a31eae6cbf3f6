"""How a row of FFU's Tables 4 to 11 looks in a terminal: lines that can be printed as soon as the row is solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dualmech.crosscheck.command.wording import interval_text
from dualmech.crosscheck.papers.fitness.ratios import Reading
from dualmech.crosscheck.papers.fitness.rows import AS_CODED, RIVALS, RatioRow
from dualmech.crosscheck.papers.printed import MECHANISMS, Interval
from dualmech.crosscheck.papers.verdicts import Evidence, Finding, Verdict

STUB, WIDTH = 30, 10
"""Columns of a line's name, and of each number."""

DECIMALS = 4
"""Most decimals of a ratio; two are printed in the paper."""

LEGEND = (
    "Entries are the largest ratio of variance to target over all queries, each mechanism at the squared privacy\n"
    "cost α that fitness for use needs. 'implies α': the cost at which a printed ratio was computed. 'times Δ': the\n"
    "privacy cost at which a mechanism meets the targets, over the least (Theorem 5). 'CA as coded': with the ridge\n"
    "of the published code; wCA-I and wCA-II weight queries by 1/target² and 1/target, as it does; 'as worded' by\n"
    "1/target and its root."
)

WORDS = {
    Finding.AGREES: "AGREES",
    Finding.ABOVE: "PAPER ABOVE THE OPTIMUM",
    Finding.DIFFERS: "THE INSTANCE MAY DIFFER",
}


def lines(row: RatioRow) -> list[str]:
    """Return the lines of a row: as printed, every reading with its verdict, and the spread of random instances."""
    shown = [
        _line(
            row.table.parameter and f"{row.table.parameter} = {row.row}",
            dict(zip(MECHANISMS, MECHANISMS, strict=True)),
        )
    ]
    shown.append(_line("  printed", row.printed))
    for reading, found in zip(row.readings, row.verdicts, strict=True):
        shown += _reading(row, reading, found)
    return shown + (_spread(row) if row.random else [])


def _reading(row: RatioRow, reading: Reading, found: Verdict) -> list[str]:
    queries, cells = reading.size
    label = f"{reading.label}, " if reading.label else ""
    shown = [
        f"  {label}{queries} queries x {cells} cells: α in {interval_text(reading.cost)}, "
        f"{reading.seconds:.3g} s" + ("" if reading.certified else " WIDE")
    ]
    certified = {name: reading.ratio(name) for name in RIVALS}
    shown.append(_line("    certified", _settled(certified) | {"SM-II": "1"}))
    for name, values in (("CA as coded", reading.coded), ("as worded", reading.words)):
        if values:
            shown.append(_line(f"    {name}", _settled(_at(values, reading.cost))))
    implied = {name: Evidence(name, name, reading.values[name], row.printed[name]).implied for name in RIVALS}
    shown.append(_line("    implies α", {name: f"{sum(ends) / 2:.5g}" for name, ends in implied.items()}))
    factors = {name: (low**0.5, high**0.5) for name, (low, high) in certified.items()}
    shown.append(_line("    times Δ", _settled(factors) | {"SM-II": "1"}))
    said = row.table.said_of_total_error(row.row)
    if said:
        shown.append(f"    total squared error over CA's: {reading.total_error:.3f}, printed {said}")
    return [*shown, f"    {_sentence(found)}"]


def _sentence(found: Verdict) -> str:
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


def _spread(row: RatioRow) -> list[str]:
    """Return the spread of the random instances, and which printed ratios lie in it."""
    ends = {name: row.spread(name) for name in RIVALS}
    count = len(row.random)
    inside = [name for name in RIVALS if row.within_spread(name)]
    outside = [name for name in RIVALS if name not in inside]
    text = f"    INSTANCE IS RANDOM: of {count} seeds' spread, printed within: {', '.join(inside) or 'none'}"
    return [
        f"  as the text, {count} seed{'s' if count > 1 else ''}"
        + ("" if all(reading.certified for reading in row.random) else " WIDE"),
        _line("    least", {name: f"{low:.{DECIMALS}f}" for name, (low, _) in ends.items()}),
        _line("    largest", {name: f"{high:.{DECIMALS}f}" for name, (_, high) in ends.items()}),
        text + (f"; outside: {', '.join(outside)}" if outside else ""),
    ]


def _at(values: Mapping[str, Interval], cost: Interval) -> dict[str, Interval]:
    return {name: (low / cost[1], high / cost[0]) for name, (low, high) in values.items()}


def _settled(intervals: Mapping[str, Interval]) -> dict[str, str]:
    return {name: settled(interval) for name, interval in intervals.items()}


def settled(interval: Interval) -> str:
    """Return a number with the decimals on which both ends of its interval agree, from 4 down to 2, or both ends.

    Examples
    --------
    >>> settled((4.60838, 4.60841)), settled((1.2431, 1.2444)), settled((1.2, 1.3))
    ('4.6084', '1.24', '1.2..1.3')
    """
    low, high = interval
    for decimals in range(DECIMALS, 1, -1):
        if f"{low:.{decimals}f}" == f"{high:.{decimals}f}":
            return f"{low:.{decimals}f}"
    return f"{low:.1f}..{high:.1f}"


def _line(name: str, numbers: Mapping[str, str]) -> str:
    return f"{name:<{STUB}}" + "".join(f"{numbers.get(mechanism, ''):>{WIDTH}}" for mechanism in MECHANISMS)
