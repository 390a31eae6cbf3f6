"""A table or figure of a paper: its tasks, the one type of its rows, and how these are shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dualmech.crosscheck.agreement import VERDICTS, Agreement, meet
from dualmech.crosscheck.printing import TextTable, print_lines, table, uncertified_mark

if TYPE_CHECKING:
    from dualmech.solution import Solution


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one task: values by name, and how far they are proven; it is as good as the worst of its parts."""

    values: Mapping[str, Any]
    gap: float = 0.0  # The widest certified gap; 0 where nothing is optimised
    certified: bool = True  # Whether all that was optimised is proven to its tolerance
    # Whether nothing contradicts what is proven; a verdict on the paper does not enter
    sound: bool = True
    parts: tuple[Row, ...] = ()  # Rows of a table of its own

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", max([self.gap, *(part.gap for part in self.parts)]))
        for name in ("certified", "sound"):
            object.__setattr__(self, name, all(getattr(row, name) for row in (self, *self.parts)))

    @classmethod
    def compared(cls, values: Mapping[str, object], gap: float, outcome: Agreement) -> Row:
        return cls(values, gap, outcome is Agreement.AGREE, outcome is not Agreement.DISAGREE)

    @classmethod
    def of_answers(cls, values: Mapping[str, object], answers: Sequence[Solution]) -> Row:
        """Return the row of answers to one optimum, the first in question: they meet, each as narrow as promised."""
        return cls.compared(values, answers[0].gap, meet(answers).outcome)

    @property
    def outcome(self) -> Agreement:
        if not self.sound:
            return Agreement.DISAGREE
        return Agreement.AGREE if self.certified else Agreement.WIDE

    def __getattr__(self, name: str) -> Any:
        if name == "values" or name not in self.values:
            raise AttributeError(name)
        return self.values[name]

    def text(self, form: Form) -> str:
        if not isinstance(form, str):
            return form(self)
        mark = uncertified_mark(self.certified)
        return form.format_map({"gap": self.gap, "verdict": VERDICTS[self.outcome], "mark": mark, **self.values})


Form = str | Callable[[Row], str]
"""How a row is shown: a function, or a format such as ``{size} cells, {gap:.0e}`` of its values and of ``gap``,
``verdict`` (yes, wide, NO) and ``mark`` (of a row that is not certified)."""

Columns = Sequence[tuple[str, Form]]
"""Headings, each with the form of its column."""

Tasks = Callable[..., Sequence[Callable[[], Row]]]
"""Takes whether to be quick, and the options of its sheet by name; returns independent tasks, a row each."""

Picture = Callable[[Any, Sequence[Row]], None]
"""Draws rows on the panels of a figure of matplotlib."""

Show = Callable[[Console, str, Iterator[Row]], None]
"""Prints rows under a title, as they come where their form allows."""


@dataclass(frozen=True, slots=True)
class Sheet:
    source: str  # Paper and number
    tasks: Tasks
    show: Show
    picture: Picture | None = None  # Draws the same rows on its panels
    # Those of ``data`` and ``grid``, paths of files, which are refused before any work, ``limit``, seconds for each run
    # of a published solver or for an optimised strategy, and ``longer`` that its tasks take
    options: Collection[str] = ()
    apart: bool = False  # Whether it has to be named: it takes too long to be one of all
    panels: int = 1  # Pairs of axes, side by side, of the picture: one scale each


def drawn(title: str, columns: Columns, rows: Iterable[Row], **style: Any) -> TextTable:
    """Return the table of rows, its verdicts decisive; `style` as `printing.table` takes it."""
    forms = [form for _, form in columns]
    headings = [heading for heading, _ in columns]
    style = {"decisive": [name for name, form in columns if isinstance(form, str) and "{verdict}" in form], **style}
    return table(title, headings, ([row.text(form) for form in forms] for row in rows), **style)


def one_table(
    columns: Columns | Callable[[Sequence[Row]], Columns],
    below: str | Callable[[Sequence[Row]], str] = "",
    *,
    heading: str | Callable[[Sequence[Row]], str] = "",
    parts: bool = False,
    **style: object,
) -> Show:
    """Return how to show all rows, or all their `parts`, in one table, with a text below.

    Its `heading` follows the title. Columns, text and heading may depend on the rows.
    """

    def show(out: Console, title: str, rows: Iterator[Row]) -> None:
        listed = [*rows]
        shown = [part for row in listed for part in row.parts] if parts else listed
        named, text = (words if isinstance(words, str) else words(listed) for words in (heading, below))
        chosen = columns(shown) if callable(columns) else columns
        out.print(drawn(title + named, chosen, shown, **style))
        if text:
            print_lines(out, text)

    return show


def table_each(columns: Columns, heading: Form) -> Show:
    """Return how to show every row as a table of its parts, whose heading follows the title."""

    def show(out: Console, title: str, rows: Iterator[Row]) -> None:
        for row in rows:
            out.print(drawn(f"{title}: {row.text(heading)}", columns, row.parts))

    return show
