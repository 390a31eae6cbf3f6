"""Known strategies of running sums: what is computed, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from dualmech.crosscheck.papers.report import table
from dualmech.crosscheck.papers.sheet import Sheet
from dualmech.crosscheck.papers.streams import known
from dualmech.crosscheck.papers.streams.known import KnownRow

LEGEND = (
    "How far each strategy is above what is proven to be the least, in the squared privacy cost at one largest "
    "variance of all prefixes, and in their total variance at one privacy cost. 'off by at most' is what its "
    "evaluation, in time that grows as the steps do, may be off by. The buffers are tuned to the total of 1,024 "
    "prefixes."
)


def _tasks(quick: bool) -> list[Callable[[], KnownRow]]:
    return [partial(known.judged, steps) for steps in (known.QUICK if quick else known.ALL)]


def _show(out: Console, title: str, rows: Iterator[KnownRow]) -> None:
    headings = ("strategy", "steps", "largest variance", "total variance", "off by at most")
    found = [*rows]
    drawn = (
        (
            name,
            str(row.steps),
            *(f"{each.scaled.gap:+.2%}" for each in pair),
            f"{max(each.scaled.resolution for each in pair):.0e}",
        )
        for row in found
        for name, pair in row.judged.items()
    )
    notes = [
        f"{row.steps} steps: bounds proven to {row.gap:.0e}; all judged in {row.seconds:.2g} s."
        for row in found
    ]
    out.print(table(title, headings, drawn, notes=[LEGEND, *notes]))


SHEETS = {"known": Sheet("known strategies of running sums, before the proven optimum", _tasks, _show)}
