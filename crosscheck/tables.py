"""Tables of texts for a terminal: side by side where they fit its width, else stacked, one block a row."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dualmech.errors import printable

UNBOUNDED = 10_000  # columns in which a table's own width is measured


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of texts under headings, taken as they are: no markup is read in them, and nothing of them is left out."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[
        str
    ] = ()  # headings of columns of words; the others hold numbers, which stand to the right
    notes: Sequence[str] = ()  # what stands under the table, such as what its words mean
    style: dict[str, Any] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield from _paragraph(self.title, width)
        drawn = self._side_by_side()
        if console.measure(drawn, options=options.update(width=UNBOUNDED)).maximum <= width:
            yield drawn
        else:
            yield from self._stacked(width)
        for note in self.notes:
            yield from _paragraph(note, width)

    def _side_by_side(self) -> Table:
        drawn = Table(box=box.SIMPLE_HEAD, **self.style)
        for heading in self.headings:
            drawn.add_column(Text(plain(heading)), justify="left" if heading in self.words else "right")
        for row in self.rows:
            drawn.add_row(*(Text(plain(cell)) for cell in row))
        return drawn

    def _stacked(self, width: int) -> Iterator[Text]:
        """Yield every row as a block: its first cell as a heading, below it what the others are called and hold."""
        first, *others = (heading.replace("\n", " ") for heading in self.headings)
        stub = min(max((len(name) for name in others), default=0), max(width // 2, 8))
        for row in self.rows:
            lead, *cells = (" ".join(plain(cell).split()) for cell in row)
            yield Text("")
            yield from _paragraph(f"{first}: {lead}", width)
            for name, cell in zip(others, cells, strict=True):
                hanging = " " * (stub + 4)
                label = textwrap.wrap(name, stub) or [""]
                yield from (Text(f"  {part}") for part in label[:-1])
                lines = textwrap.wrap(cell, max(width - len(hanging), 8), break_on_hyphens=False) or [""]
                yield Text(f"  {label[-1]:<{stub}}  {lines[0]}".rstrip())
                yield from (Text(hanging + line) for line in lines[1:])
        yield Text("")


def plain(text: str) -> str:
    """Return a text with the control characters of its lines written out; line breaks stay."""
    return "\n".join(printable(line) for line in text.split("\n"))


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of at most a width, broken between words; its own line breaks stay."""
    return [
        line
        for own in text.split("\n")
        for line in textwrap.wrap(own, width, break_long_words=False, break_on_hyphens=False) or [""]
    ]


def _paragraph(text: str, width: int) -> Iterator[Text]:
    return (Text(line) for line in wrapped(plain(text), width))
