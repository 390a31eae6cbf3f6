"""Sheets: tables and figures of papers, with their tasks, rows and forms of printing."""

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
    """The result of one task: values by name, with the worst gap and verdict of its parts."""

    values: Mapping[str, Any]
    gap: float = 0.0  # the largest certified gap; 0 without an optimum
    certified: bool = True  # whether all optima are proven to their tolerances
    sound: bool = True  # whether the certificates are consistent, regardless of the paper's values
    parts: tuple[Row, ...] = ()  # rows of a separate table

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", max([self.gap, *(part.gap for part in self.parts)]))
        for name in ("certified", "sound"):
            object.__setattr__(self, name, all(getattr(row, name) for row in (self, *self.parts)))

    @classmethod
    def compared(cls, values: Mapping[str, object], gap: float, outcome: Agreement) -> Row:
        return cls(values, gap, outcome is Agreement.AGREE, outcome is not Agreement.DISAGREE)

    @classmethod
    def of_answers(cls, values: Mapping[str, object], answers: Sequence[Solution]) -> Row:
        """Return the row of answers to one problem: the gap of the first, and the outcome of comparing all."""
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
"""Form of a row: a function, or a format such as ``{size} cells, {gap:.0e}`` of its values and of ``gap``, ``verdict``
(yes, wide, NO) and ``mark`` (if not certified)."""

Columns = Sequence[tuple[str, Form]]
"""Headings, each with the form of its column."""

Tasks = Callable[..., Sequence[Callable[[], Row]]]
"""Takes `quick` and the options of its sheet by name; returns independent tasks of one row each."""

Picture = Callable[[Any, Sequence[Row]], None]
"""Draws rows on the panels of a figure of matplotlib."""

Show = Callable[[Console, str, Iterator[Row]], None]
"""Prints rows under a title, immediately if the form allows it."""


@dataclass(frozen=True, slots=True)
class Sheet:
    source: str  # paper and number
    tasks: Tasks
    show: Show
    picture: Picture | None = None  # draws the same rows on its panels
    # Options of its tasks, among ``data`` and ``grid`` (paths of files), ``limit`` (seconds for each run of a published
    # solver or for an optimised strategy) and ``longer``.
    options: Collection[str] = ()
    apart: bool = False  # whether it is slow, and runs only if named
    panels: int = 1  # axes of the picture, side by side


def drawn(title: str, columns: Columns, rows: Iterable[Row], **style: Any) -> TextTable:
    """Return the table of rows, with decisive verdicts; `style` as in `printing.table`."""
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
    """Return a function that prints all rows, or all their `parts`, in one table, with the text `below`.

    The `heading` follows the title. Columns, text and heading may depend on the rows.
    """

    def show(out: Console, title: str, rows: Iterator[Row]) -> None:
        all_rows = [*rows]
        table_rows = [part for row in all_rows for part in row.parts] if parts else all_rows
        subtitle, text = (words if isinstance(words, str) else words(all_rows) for words in (heading, below))
        table_columns = columns(table_rows) if callable(columns) else columns
        out.print(drawn(title + subtitle, table_columns, table_rows, **style))
        if text:
            print_lines(out, text)

    return show


def table_each(columns: Columns, heading: Form) -> Show:
    """Return a function that prints every row as a table of its parts, with a heading after the title."""

    def show(out: Console, title: str, rows: Iterator[Row]) -> None:
        for row in rows:
            out.print(drawn(f"{title}: {row.text(heading)}", columns, row.parts))

    return show
