"""The parts of reports: tables and words for a terminal, pictures, and the meaning of a printed number."""

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

# Pictures of the papers' figures, as SVG and PNG; matplotlib is loaded only here, and only when one is drawn.


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
"""Told apart by readers who do not see all colours; the first is ink."""

RESOLUTION = 200  # dots per inch of a PNG

METADATA: dict[str, dict[str, str | None]] = {"svg": {"Date": None}, "png": {}}
"""Without the date, so that the same figure gives the same file."""


def check_installed() -> None:
    """Raise `BackendError` where matplotlib, of the extra ``plots``, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise BackendError("pictures need matplotlib, which the extra `plots` brings: pip install 'dualmech[plots]'")


def check_drawable(folder: str) -> Path:
    """Return the folder for pictures, made where it is missing, before anything is computed.

    Raises `BackendError` where matplotlib, of the extra ``plots``, is not installed; `FileFormatError` where the
    folder cannot be made or written to; `InvalidInputError` for an empty path.
    """
    check_installed()
    if not folder:
        raise InvalidInputError("output must be the path of a folder, got an empty one")
    return atomic.make_folder(folder)


def save_picture(
    name: str, folder: str, picture: Callable[..., object], rows: object = None, columns: int = 1
) -> list[Path]:
    """Draw rows on one or more pairs of axes, side by side, and return the picture's files, each written whole.

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


# The meaning of a printed number: its digits are a text, and stand for all numbers that round to it.


Interval = tuple[float, float]


def rounded_from(text: str) -> Interval:
    """Return the numbers that a printed text can be a rounding of: half a unit of its last digit either way."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return float(text) - half, float(text) + half


def with_allowance(value: float, allowance: float) -> Interval:
    """Return a positive number with an allowance, relative, for what rounding or an optimiser may have changed."""
    return value * (1 - allowance), value * (1 + allowance)


def overlap(one: Interval, other: Interval) -> bool:
    """Whether two closed intervals have a number in common."""
    return one[0] <= other[1] and other[0] <= one[1]


def is_rounding(text: str, interval: Interval) -> bool:
    """Whether a printed text is a rounding of some number of an interval."""
    return overlap(rounded_from(text), interval)


def parse_table(text: str) -> dict[str, tuple[str, ...]]:
    """Return a printed table as texts: a line each by its first word."""
    return {row[0]: tuple(row[1:]) for row in map(str.split, text.strip().splitlines())}


# Tables of texts for a terminal: one table where it fits the width, else several of the same rows.


UNBOUNDED = 10_000  # columns in which a table's own width is measured

NARROWEST = 20  # characters to which a column of words may be broken

MOST_KEYS = 3  # columns at most that every part of a divided table repeats


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of texts under headings: no markup or control character is read in them, and nothing of them is left out.

    Where they do not fit the width, headings and words are broken between words; where that is not enough, the columns
    are divided among several tables, each with the first columns that tell the rows apart, and the `decisive` columns
    stand in the first. Where even these do not fit, every row is a block of lines.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[str] = ()  # headings of columns of words; the others hold numbers, which stand to the right
    notes: Sequence[str] = ()  # lines under the table, such as the meaning of its words
    style: dict[str, Any] = field(default_factory=dict)
    decisive: Collection[str] = ()  # headings of columns that say how a row came out

    def __post_init__(self) -> None:
        for name in ("headings", "words", "decisive"):
            object.__setattr__(self, name, [plain(text) for text in getattr(self, name)])
        object.__setattr__(self, "rows", [[plain(cell) for cell in row] for row in self.rows])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield from _paragraph(self.title, width)

        def fits(drawn: Table) -> bool:
            return console.measure(drawn, options=options.update(width=UNBOUNDED)).maximum <= width

        whole = self._side_by_side(range(len(self.headings)), False)
        if fits(whole):
            yield whole
        elif parts := self._divided(lambda columns: fits(self._side_by_side(columns, True))):
            for columns in parts:
                drawn = self._side_by_side(columns, False)
                yield drawn if fits(drawn) else self._side_by_side(columns, True)
        else:
            yield from self._stacked(width)
        for note in self.notes:
            yield from _paragraph(note, width)

    def _side_by_side(self, columns: Sequence[int], broken: bool) -> Table:
        drawn = Table(box=box.SIMPLE_HEAD, **self.style)
        for column in columns:
            words = self.headings[column] in self.words
            heading, cells = self.headings[column], [row[column] for row in self.rows]
            least = max((len(word) for word in heading.split()), default=0)
            width = max(_line_width(cells, NARROWEST if words else None), least) if broken else None
            drawn.add_column(Text(heading), justify="left" if words else "right", width=width)
        for row in self.rows:
            drawn.add_row(*(Text(row[column]) for column in columns))
        return drawn

    def _divided(self, fits: Callable[[Sequence[int]], bool]) -> list[list[int]]:
        """Return the columns of each part, in order, or none where a part of one column is too wide."""
        leads = [tuple(row[:MOST_KEYS]) for row in self.rows]
        apart = [count for count in range(1, MOST_KEYS) if len({lead[:count] for lead in leads}) == len(leads)]
        keys = [*range(apart[0] if apart else min(MOST_KEYS, len(self.headings)))]
        others = [column for column in range(len(keys), len(self.headings))]
        if not fits([*keys, *others]):
            others.sort(key=lambda column: self.headings[column] not in self.decisive)
        parts = [[*keys]]
        for column in others:
            if not fits([*parts[-1], column]) and len(parts[-1]) > len(keys):
                parts.append([*keys])
            parts[-1].append(column)
        return parts if all(map(fits, parts)) else []

    def _stacked(self, width: int) -> Iterator[Text]:
        """Yield every row as a block: its first cell as a heading, below it the names and contents of the others."""
        first, *others = (heading.replace("\n", " ") for heading in self.headings)
        stub = min(max((len(name) for name in others), default=0), max(width // 2, 8))
        for row in self.rows:
            lead, *cells = (" ".join(cell.split()) for cell in row)
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


def _line_width(cells: Sequence[str], most: int | None) -> int:
    """Return the width of the longest line, or of the longest word where lines may be broken at `most` characters."""
    lines = [line for cell in cells for line in (cell.split("\n") if most is None else wrapped(cell, most))]
    return max(map(len, lines), default=0)


def plain(text: str) -> str:
    """Return a text with the control characters of its lines written out; line breaks stay."""
    return "\n".join(printable(line) for line in text.split("\n"))


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of at most a width, broken between words; its own line breaks stay."""
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
    """Return a table of texts, a row each; the columns `words`, by default the first, hold words and others numbers."""
    left = headings[:1] if words is None else words
    return TextTable(title, headings, [*rows], left, notes, style, decisive)


def table_of_lines(
    title: str, columns: Sequence[str], lines: Mapping[str, Mapping[str, str]], notes: Sequence[str] = ()
) -> TextTable:
    """Return a table of named lines, each of numbers by column; a number that a line does not have is left blank."""
    rows = [(name, *(numbers.get(column, "") for column in columns)) for name, numbers in lines.items()]
    return table(title, ("", *columns), rows, notes=notes)


def print_lines(out: Console, *lines: str, whole: bool = False) -> None:
    """Print lines as they are: no markup is read in them, and none is broken where it is to stay `whole`."""
    for text in lines:
        for line in [text] if whole else wrapped(text, out.width):
            out.print(line, markup=False, soft_wrap=True)


def yes_or_no(holds: bool) -> str:
    return "yes" if holds else "NO"


def uncertified_mark(certified: bool) -> str:
    return "" if certified else " WIDE"


# Words and numbers of a report: measures, intervals, percentages, names of queries.


LISTED = 6  # most names that a line lists before it counts the rest


REPORTED_DELTA = 1e-9  # δ at which ε is reported where none is named


@dataclass(frozen=True, slots=True)
class Terms:
    z: float  # margin of error in standard deviations
    delta: float  # δ at which ε is given
    # squared privacy cost that `TotalVariance` and `QueryWeighting`, solved at 1, are to spend; ``ε²/2`` for the
    # Laplace noise of pure privacy. It divides their variances
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
    """Return a report's name for the objective of a problem, and its divisor: a privacy cost is told as ρ."""
    unit = problem.objective_name
    return unit.replace("squared privacy cost", "rho (zCDP)"), 2.0 if "cost" in unit else terms.divisor(problem)


def objective_text(number: float, unit: str) -> str:
    """Return an objective to nine digits, rounded up where it is told as ρ."""
    return decimal_above(number, 9) if "rho" in unit else f"{number:.9g}"


def steps(solution: Solution) -> str:
    unit = "iterations"
    if solution.solver.startswith("fast"):
        unit = "steps" if "softmax" in solution.solver else family_of(solution.problem).steps
    return f"{solution.iterations} {unit}"


def interval_text(interval: tuple[float, float]) -> str:
    """Return an interval with as many digits as it takes to see that it is one, and two more."""
    low, high = interval
    if not np.isfinite(high):
        return f"[{low:.6g}, inf)"
    width = (high - low) / high if high > 0 else 0.0
    digits = int(np.clip(2 - np.floor(np.log10(max(width, 1e-15))), 4, 16))
    return f"[{low:.{digits}g}, {high:.{digits}g}]"


def gap_percent(certificate: Certificate) -> str:
    """Return the gap of a certificate in percent, never less than rounding allows to say."""
    return f"{100 * max(certificate.gap, certificate.resolution):.3g} %"


def names(workload: Workload, queries: npt.NDArray[np.intp]) -> str:
    """Return the names of some queries, cut after `LISTED`."""
    listed = ", ".join(escape(workload.names[j]) for j in queries[:LISTED])
    return listed if len(queries) <= LISTED else f"{listed} and {len(queries) - LISTED} more"


def range_text(values: Array) -> str:
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"


def neighbours_name(neighbours: Any) -> str:
    """Return the command line's name for neighbours, a matrix by its size."""
    known = neighbours if isinstance(neighbours, Relation) else Relation.matching(neighbours)
    cells, pairs = (0, 0) if known else neighbours.shape
    return str(known) if known else f"a matrix of {pairs} differences over {cells} cells"


def neighbours_lines(problem: Problem) -> list[str]:
    """Say who are neighbours, where that is not one record added or removed."""
    relation = getattr(problem, "neighbours", None)
    return [] if relation is None else [f"Neighbours: {neighbours_name(relation)}."]


def free_lines(geometry: object) -> list[str]:
    """Say which queries constrain nothing: those that no neighbour changes are answered exactly, for free."""
    if not isinstance(geometry, Dense) or not len(free := geometry.free_queries):
        return []
    return [f"Answered exactly at no cost (no neighbour changes them): {names(geometry.workload, free)}."]


def console() -> Console:
    """Return a console for standard output: tables fit its width, or COLUMNS; lines are broken on a terminal alone."""
    return _PlainConsole(highlight=False, soft_wrap=not sys.stdout.isatty())


class _PlainConsole(Console):
    """A console on which no name in a text can move the cursor."""

    def print(self, *objects: object, **options: Any) -> None:
        """Print texts with their control characters written out, and other objects as they draw themselves."""
        super().print(*(plain(item) if isinstance(item, str) else item for item in objects), **options)
