"""Papers' tables, by name, and how they look in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.fitness import BACKENDS, Row, table_2
from dualmech.crosscheck.report import interval_text

TABLES: dict[str, Callable[[bool, int], Iterator[Row]]] = {"fitness/2": table_2}
"""Tables by name; each takes whether to be quick and how many rows to solve at a time. The first is the default."""

VERDICTS = {Agreement.AGREE: "yes", Agreement.WIDE: "wide", Agreement.DISAGREE: "NO"}


def crosscheck_table(rows: Sequence[Row], title: str) -> Table:
    """Return a table of printed numbers beside certified intervals."""
    table = Table(title=title, title_justify="left")
    printed = list(rows[0].case.printed) if rows else []
    for heading in (
        "d",
        *printed,
        *BACKENDS,
        "fast",
        "agree",
        "printed values",
        *(f"s {name}" for name in (*BACKENDS, "fast")),
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        confirmed = [row.confirmed(column) for column in printed]
        table.add_row(
            str(row.size),
            *(row.case.printed[column] for column in printed),
            *(interval_text(entry.interval) + ("" if entry.certified else " wide") for entry in row.entries),
            {Agreement.AGREE: "yes", Agreement.WIDE: "wide", Agreement.DISAGREE: "NO"}[
                row.comparison.outcome
            ],
            "confirmed" if all(confirmed) else "differ",
            *(f"{entry.seconds:.3g}" for entry in row.entries),
        )
    return table
