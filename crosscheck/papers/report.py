"""How the rows of every paper's tables look in a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: Collection[str] | None = None,
    **style: Any,
) -> Table:
    """Return a table of texts, a row each; the columns `words`, by default the first, hold words and others numbers."""
    left = headings[:1] if words is None else words
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, **style)
    for heading in headings:
        drawn.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def format_line(name: str, numbers: Mapping[str, str], columns: Sequence[str], stub: int, width: int) -> str:
    """Return one line of a table that is printed as it comes; `stub` and `width` are a name's and a number's places."""
    return f"{name:<{stub}}" + "".join(f"{numbers.get(column, ''):>{width}}" for column in columns).rstrip()


def print_lines(out: Console, *lines: str, whole: bool = False) -> None:
    """Print lines as they are: no markup is read in them, and none is broken where it is to stay `whole`."""
    for each in lines:
        out.print(each, markup=False, soft_wrap=whole)


def yes_or_no(holds: bool) -> str:
    """Return whether something holds in a word."""
    return "yes" if holds else "NO"


def uncertified_mark(certified: bool) -> str:
    """Return what is added to the name of a row that is not certified."""
    return "" if certified else " WIDE"
