"""Parts of reports: tables and texts for a terminal, pictures, and intervals of printed numbers."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dualmech.certificate import Certificate
from dualmech.crosscheck.families import family_of
from dualmech.display import decimal_above
from dualmech.errors import BackendError, InvalidInputError, printable
from dualmech.files import atomic
from dualmech.geometry.dense import Dense
from dualmech.neighbours import Relation
from dualmech.problems.base import Problem
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.workloads.base import Workload

# Pictures of the papers' figures, as SVG and PNG. matplotlib is imported only here, when a picture is drawn.


KINDS = ("svg", "png")

STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10.0,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "dualmech",
}

COLOURS = ("#1b1b1b", "#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Distinguishable for colour-blind readers; the first is for text and lines."""

RESOLUTION = 200  # dots per inch of a PNG

METADATA: dict[str, dict[str, str | None]] = {"svg": {"Date": None}, "png": {}}
"""Without a date, so that files are reproducible."""


def check_installed() -> None:
    """Raise `BackendError` if matplotlib, of the extra ``plots``, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise BackendError("pictures need matplotlib, of the extra `plots`: pip install 'dualmech[plots]'")


def check_drawable(folder: str) -> Path:
    """Return the folder for pictures; create it if necessary.

    Raises `BackendError` if matplotlib, of the extra ``plots``, is not installed; `FileFormatError` if the folder
    cannot be created or written to; `InvalidInputError` for an empty path.
    """
    check_installed()
    if not folder:
        raise InvalidInputError("output must be the path of a folder, got an empty one")
    return atomic.make_folder(folder)


def save_picture(
    name: str, folder: str, picture: Callable[..., object], rows: object = None, columns: int = 1
) -> list[Path]:
    """Draw rows on one or more axes, side by side, and return the paths of the picture's files.

    Raises `BackendError` or `FileFormatError` as `check_drawable`.
    """
    target = check_drawable(folder)
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    paths = [target / f"{name}.{kind}" for kind in KINDS]
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(5.6 * columns, 3.8), layout="constrained")
        picture(canvas.subplots(ncols=columns), rows)
        for kind, path in zip(KINDS, paths, strict=True):
            with atomic.atomic_write(path) as handle:
                canvas.savefig(handle, format=kind, dpi=RESOLUTION, metadata=METADATA[kind])
    return paths


# Intervals of printed numbers: a printed text means all numbers that round to it.


Interval = tuple[float, float]


def rounded_from(text: str) -> Interval:
    """Return the interval of numbers that round to a printed text: plus and minus half a unit of its last digit."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return float(text) - half, float(text) + half


def with_allowance(value: float, allowance: float) -> Interval:
    """Return the interval of a positive number with a relative tolerance."""
    return value * (1 - allowance), value * (1 + allowance)


def overlap(a: Interval, b: Interval) -> bool:
    """Return whether two closed intervals intersect."""
    return a[0] <= b[1] and b[0] <= a[1]


def is_rounding(text: str, interval: Interval) -> bool:
    """Return whether some number of an interval rounds to a printed text."""
    return overlap(rounded_from(text), interval)


def parse_table(text: str) -> dict[str, tuple[str, ...]]:
    """Return the lines of a printed table: the other words of each line by its first word."""
    return {row[0]: tuple(row[1:]) for row in map(str.split, text.strip().splitlines())}


# Tables of texts for a terminal: one table if it fits the width, else several with the same rows.


UNBOUNDED_WIDTH = 10_000  # for measuring a table's natural width

MIN_WORDS_WIDTH = 20  # characters of a wrapped column of words

MAX_KEYS = 3  # first columns that every part of a divided table repeats


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of texts under headings, without markup and control characters, printed completely.

    If the table is too wide, headings and words are wrapped. If that is not enough, the columns are divided among
    several tables, each with the first columns that distinguish the rows; the first table has the `decisive` columns.
    If these tables are too wide, every row is printed as a block of lines.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[str] = ()  # headings of left-aligned columns of words; other columns hold right-aligned numbers
    notes: Sequence[str] = ()  # lines under the table, such as explanations of its headings
    style: dict[str, Any] = field(default_factory=dict)
    decisive: Collection[str] = ()  # headings of columns with the result of a row

    def __post_init__(self) -> None:
        for name in ("headings", "words", "decisive"):
            object.__setattr__(self, name, [plain(text) for text in getattr(self, name)])
        object.__setattr__(self, "rows", [[plain(cell) for cell in row] for row in self.rows])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield from _paragraph(self.title, width)

        def fits(rich_table: Table) -> bool:
            return console.measure(rich_table, options=options.update(width=UNBOUNDED_WIDTH)).maximum <= width

        single_table = self._side_by_side(range(len(self.headings)), False)
        if fits(single_table):
            yield single_table
        elif parts := self._divided(lambda columns: fits(self._side_by_side(columns, True))):
            for columns in parts:
                part = self._side_by_side(columns, False)
                yield part if fits(part) else self._side_by_side(columns, True)
        else:
            yield from self._stacked(width)
        for note in self.notes:
            yield from _paragraph(note, width)

    def _side_by_side(self, columns: Sequence[int], is_wrapped: bool) -> Table:
        rich_table = Table(box=box.SIMPLE_HEAD, **self.style)
        for column in columns:
            words = self.headings[column] in self.words
            heading, cells = self.headings[column], [row[column] for row in self.rows]
            min_width = max((len(word) for word in heading.split()), default=0)
            width = max(_line_width(cells, MIN_WORDS_WIDTH if words else None), min_width) if is_wrapped else None
            rich_table.add_column(Text(heading), justify="left" if words else "right", width=width)
        for row in self.rows:
            rich_table.add_row(*(Text(row[column]) for column in columns))
        return rich_table

    def _divided(self, fits: Callable[[Sequence[int]], bool]) -> list[list[int]]:
        """Return the columns of each part, in order; empty if some column does not fit."""
        leads = [tuple(row[:MAX_KEYS]) for row in self.rows]
        key_counts = [count for count in range(1, MAX_KEYS) if len({lead[:count] for lead in leads}) == len(leads)]
        keys = [*range(key_counts[0] if key_counts else min(MAX_KEYS, len(self.headings)))]
        values = [column for column in range(len(keys), len(self.headings))]
        if not fits([*keys, *values]):
            values.sort(key=lambda column: self.headings[column] not in self.decisive)
        parts = [[*keys]]
        for column in values:
            if not fits([*parts[-1], column]) and len(parts[-1]) > len(keys):
                parts.append([*keys])
            parts[-1].append(column)
        return parts if all(map(fits, parts)) else []

    def _stacked(self, width: int) -> Iterator[Text]:
        """Yield every row as a block: its first cell as a heading, then the headings and contents of other cells."""
        first, *names = (heading.replace("\n", " ") for heading in self.headings)
        stub = min(max((len(name) for name in names), default=0), max(width // 2, 8))
        for row in self.rows:
            lead, *cells = (" ".join(cell.split()) for cell in row)
            yield Text("")
            yield from _paragraph(f"{first}: {lead}", width)
            for name, cell in zip(names, cells, strict=True):
                hanging = " " * (stub + 4)
                label = textwrap.wrap(name, stub) or [""]
                yield from (Text(f"  {part}") for part in label[:-1])
                lines = textwrap.wrap(cell, max(width - len(hanging), 8), break_on_hyphens=False) or [""]
                yield Text(f"  {label[-1]:<{stub}}  {lines[0]}".rstrip())
                yield from (Text(hanging + line) for line in lines[1:])
        yield Text("")


def _line_width(cells: Sequence[str], max_width: int | None) -> int:
    """Return the width of the longest line, after wrapping at `max_width` characters."""
    lines = [line for cell in cells for line in (cell.split("\n") if max_width is None else wrapped(cell, max_width))]
    return max(map(len, lines), default=0)


def plain(text: str) -> str:
    """Return a text with its control characters escaped, except for line breaks."""
    return "\n".join(printable(line) for line in text.split("\n"))


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, wrapped between words at a width; its line breaks are kept."""
    return [
        line
        for paragraph in text.split("\n")
        for line in textwrap.wrap(paragraph, width, break_long_words=False, break_on_hyphens=False) or [""]
    ]


def _paragraph(text: str, width: int) -> Iterator[Text]:
    return (Text(line) for line in wrapped(plain(text), width))


def table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: Collection[str] | None = None,
    notes: Sequence[str] = (),
    decisive: Collection[str] = (),
    **style: Any,
) -> TextTable:
    """Return a table of texts; the columns `words`, by default the first, hold words, the others numbers."""
    left = headings[:1] if words is None else words
    return TextTable(title, headings, [*rows], left, notes, style, decisive)


def table_of_lines(
    title: str, columns: Sequence[str], lines: Mapping[str, Mapping[str, str]], notes: Sequence[str] = ()
) -> TextTable:
    """Return a table of named lines with numbers by column; missing numbers are blank."""
    rows = [(name, *(numbers.get(column, "") for column in columns)) for name, numbers in lines.items()]
    return table(title, ("", *columns), rows, notes=notes)


def print_lines(out: Console, *lines: str, unwrapped: bool = False) -> None:
    """Print lines without interpreting markup; wrap them unless `unwrapped`."""
    for text in lines:
        for line in [text] if unwrapped else wrapped(text, out.width):
            out.print(line, markup=False, soft_wrap=True)


def yes_or_no(holds: bool) -> str:
    return "yes" if holds else "NO"


def uncertified_mark(certified: bool) -> str:
    return "" if certified else " WIDE"


# Words and numbers of a report: measures, intervals, percentages, names of queries.


MAX_LISTED = 6  # names in a line; the others are counted


REPORTED_DELTA = 1e-9  # default δ of reported ε


@dataclass(frozen=True, slots=True)
class Terms:
    z: float  # margin of error in standard deviations
    delta: float  # δ of the reported ε
    # Squared privacy cost for `TotalVariance` and `QueryWeighting`, which are solved at 1: it divides their variances.
    # For Laplace noise of pure privacy it is ``ε²/2``.
    cost: float

    def divisor(self, problem: Problem) -> float:
        return self.cost if family_of(problem).at_a_cost else 1.0

    def privacy(self, problem: Problem) -> str:
        if not family_of(problem).at_a_cost:
            return ""
        if getattr(problem, "privacy", None) == "pure":
            return f" at epsilon = {self.laplace_epsilon:.6g} (pure)"
        return f" at rho = {self.cost / 2:.6g}"

    @property
    def laplace_epsilon(self) -> float:
        return float(np.sqrt(2 * self.cost))


def in_rho(problem: Problem, terms: Terms) -> tuple[str, float]:
    """Return the name of a problem's objective in reports, and its divisor: a privacy cost is reported as ρ."""
    unit = problem.objective_name
    return unit.replace("squared privacy cost", "rho (zCDP)"), 2.0 if "cost" in unit else terms.divisor(problem)


def objective_text(number: float, unit: str) -> str:
    """Return an objective to nine digits, rounded up if it is ρ."""
    return decimal_above(number, 9) if "rho" in unit else f"{number:.9g}"


def steps(solution: Solution) -> str:
    unit = "iterations"
    if solution.solver.startswith("fast"):
        unit = "steps" if "softmax" in solution.solver else family_of(solution.problem).steps
    return f"{solution.iterations} {unit}"


def interval_text(interval: tuple[float, float]) -> str:
    """Return an interval with two digits more than its ends have in common."""
    low, high = interval
    if not np.isfinite(high):
        return f"[{low:.6g}, inf)"
    width = (high - low) / high if high > 0 else 0.0
    digits = int(np.clip(2 - np.floor(np.log10(max(width, 1e-15))), 4, 16))
    return f"[{low:.{digits}g}, {high:.{digits}g}]"


def gap_percent(certificate: Certificate) -> str:
    """Return the gap of a certificate in percent, at least its resolution."""
    return f"{100 * max(certificate.gap, certificate.resolution):.3g} %"


def names(workload: Workload, queries: npt.NDArray[np.intp]) -> str:
    """Return the names of at most `MAX_LISTED` queries, and the number of others."""
    text = ", ".join(escape(workload.names[j]) for j in queries[:MAX_LISTED])
    return text if len(queries) <= MAX_LISTED else f"{text} and {len(queries) - MAX_LISTED} more"


def range_text(values: Array) -> str:
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"


def neighbours_name(neighbours: Any) -> str:
    """Return the command line's name for a relation, or the size of a matrix of differences."""
    relation = neighbours if isinstance(neighbours, Relation) else Relation.matching(neighbours)
    cells, pairs = (0, 0) if relation else neighbours.shape
    return str(relation) if relation else f"a matrix of {pairs} differences over {cells} cells"


def neighbours_lines(problem: Problem) -> list[str]:
    """Return a line on the neighbours; none for the default, one record added or removed."""
    relation = getattr(problem, "neighbours", None)
    return [] if relation is None else [f"Neighbours: {neighbours_name(relation)}."]


def free_lines(geometry: object) -> list[str]:
    """Return a line on the queries that no neighbour changes, if there are any."""
    if not isinstance(geometry, Dense) or not len(indices := geometry.free_queries):
        return []
    return [f"Answered exactly at no cost (no neighbour changes them): {names(geometry.workload, indices)}."]


def console() -> Console:
    """Return a console for standard output: tables fit its width or COLUMNS; lines are wrapped only on a terminal."""
    return _PlainConsole(highlight=False, soft_wrap=not sys.stdout.isatty())


class _PlainConsole(Console):
    """A console that escapes control characters in texts."""

    def print(self, *objects: object, **options: Any) -> None:
        """Print texts with their control characters escaped, and other objects unchanged."""
        super().print(*(plain(item) if isinstance(item, str) else item for item in objects), **options)
