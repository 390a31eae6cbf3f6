"""How the rows of every paper's tables look in a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from dualmech.crosscheck.tables import TextTable, wrapped


def table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: Collection[str] | None = None,
    notes: Sequence[str] = (),
    **style: Any,
) -> TextTable:
    """Return a table of texts, a row each; the columns `words`, by default the first, hold words and others numbers."""
    left = headings[:1] if words is None else words
    return TextTable(title, headings, [*rows], left, notes, style)


def format_line(
    name: str, numbers: Mapping[str, str], columns: Sequence[str], stub: int, width: int, room: int = 80
) -> str:
    """Return one line of a table that is printed as it comes; `stub` and `width` are a name's and a number's places.

    Where they do not fit the `room`, the numbers go on below themselves.
    """
    most = max((room - stub) // width, 1)
    starts = range(0, len(columns), most)
    parts = [
        "".join(f"{numbers.get(column, ''):>{width}}" for column in columns[start : start + most])
        for start in starts
    ]
    lines = [f"{name if not place else '':<{stub}}{part}".rstrip() for place, part in enumerate(parts)]
    return "\n".join([lines[0], *(line for line in lines[1:] if line)])


def print_lines(out: Console, *lines: str, whole: bool = False) -> None:
    """Print lines as they are: no markup is read in them, and none is broken where it is to stay `whole`."""
    for each in lines:
        for line in [each] if whole else wrapped(each, out.width):
            out.print(line, markup=False, soft_wrap=True)


def yes_or_no(holds: bool) -> str:
    """Return whether something holds in a word."""
    return "yes" if holds else "NO"


def uncertified_mark(certified: bool) -> str:
    """Return what is added to the name of a row that is not certified."""
    return "" if certified else " WIDE"
