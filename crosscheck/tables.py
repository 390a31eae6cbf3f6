"""Papers' tables, by name, and how they look in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from rich import box
from rich.table import Table

from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.fitness import BACKENDS, Entry, Row, table_2

TABLES: dict[str, Callable[[bool, int], Iterator[Row]]] = {"fitness/2": table_2}
"""Tables by name; each takes whether to be quick and how many rows to solve at a time. The first is the default."""

VERDICTS = {Agreement.AGREE: "yes", Agreement.WIDE: "wide", Agreement.DISAGREE: "NO"}

DIGITS = 9
"""Significant digits of an interval's ends; they are rounded outwards, so what is printed is still proven."""


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
            VERDICTS[row.comparison.outcome],
            "yes" if all(row.confirmed(column) for column in printed) else "NO",
        )
    return table


def _entry(entry: Entry) -> str:
    low, high = entry.interval
    wide = "" if entry.certified else " wide"
    return f"[{_rounded(low, ROUND_FLOOR)},\n{_rounded(high, ROUND_CEILING)}]{wide}\n{entry.seconds:.3g} s"


def _rounded(value: float, rounding: str) -> str:
    return str(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(value)))
