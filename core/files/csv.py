"""Matrices as CSV text: numbers, one query per row, with an optional header and optional names and groups.

The schema is in ``docs/formats.md``; `dualmech.files` reads and writes whole files with it.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, TextIO

import numpy as np

from dualmech.errors import BackendError, FileFormatError, InvalidInputError
from dualmech.files.atomic import atomic_write
from dualmech.files.reading import opened_lines
from dualmech.validate import Array

HINT = "a first line is a header if it starts with 'query' or holds no number at all"

LISTED = 6  # most columns that a message names

MAX_LETTERS = 60  # of a table's name in the name of its file

COUNTS = (
    "0, 1, 2, … only count the columns, as pandas does: write it with index=False, header=False, or name the columns; "
    "a query of these very numbers needs a header"
)

OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "pipes"}
"""What other programs write between fields, and what it is called."""

Named = tuple[int, str, float]
"""A line that names something: its number, the name and the number that goes with it."""


@dataclass(frozen=True, slots=True, eq=False)
class CsvTable:
    """The numbers of a CSV file (rows, columns), the texts of its `query` and `group` columns, and its header's."""

    values: Array
    names: tuple[str, ...] | None
    groups: tuple[str, ...] | None
    cell_names: tuple[str, ...] | None  # None without a header, and where it only counts: x0, x1, …


def read_table(path: str | PathLike[str]) -> CsvTable:
    """Read a CSV file in UTF-8; a fault raises `FileFormatError` with its line, `OSError` is passed on."""
    labels: list[list[str]] = []
    rows: list[Array] = []
    layout: tuple[int, int] | None = None
    cells: list[str] = []
    for line, row in lines(path):
        with line_named(path, line):
            if layout is None:
                texts, is_header = _header(row)
                layout = texts, len(row)
                if is_header:
                    cells = row[texts:]
                    continue
            label, values = _parse(row, *layout, first=not rows)
            labels.append(label)
            rows.append(values)
    if not rows:
        raise FileFormatError(f"{path}: holds no row of numbers")
    named: list[tuple[str, ...] | None] = [tuple(column) for column in zip(*labels, strict=True)]
    names, groups = (*named, None, None)[:2]
    has_names = cells and all(map(str.strip, cells)) and cells != _counted(len(cells))
    return CsvTable(np.stack(rows), names, groups, tuple(cells) if has_names else None)


def read_named(path: str | PathLike[str]) -> list[Named] | None:
    """Return the lines of a CSV file that hold a name and a number; None for a file of one column.

    The header may be left out: it is a first line whose second field is no number.
    Raises `FileFormatError` for a line that holds anything else; `OSError` is passed on.
    """
    rows: list[Named] = []
    first = True
    for line, row in lines(path):
        if first and len(row) == 1:
            return None
        with line_named(path, line):
            amount = number(row[1]) if len(row) == 2 else None
            if amount is None and (not first or len(row) != 2):
                raise InvalidInputError(f"must be a name and a number, got {','.join(row)!r}")
            if amount is not None and not math.isfinite(amount):
                raise InvalidInputError(f"numbers must be finite, got {row[1]!r}")
        if amount is not None:
            rows.append((line, row[0].strip(), amount))
        first = False
    if not rows:
        raise FileFormatError(f"{path}: holds no row of numbers")
    return rows


def lines(path: str | PathLike[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each line of a file that is not blank, with the number of the line that it ends on.

    Raises `FileFormatError` for a file that is not UTF-8 or not CSV (RFC 4180) with commas; `OSError` is passed on.
    """
    with opened_lines(path) as stream:
        reader, first = csv.reader(stream, strict=True), True
        try:
            for row in reader:
                if len(row) < 2 and (not row or row[0].isspace()):
                    continue  # while a single field that is quoted and empty is one
                if first:
                    first = False
                    with line_named(path, reader.line_num):
                        check_separator(row)
                yield reader.line_num, row
        except csv.Error as error:
            raise FileFormatError(f"{path}: line {reader.line_num}: is not CSV: {error}") from error


@contextlib.contextmanager
def line_named(path: str | PathLike[str], line: int) -> Iterator[None]:
    """Name file and line in the errors of the block."""
    try:
        yield
    except InvalidInputError as error:
        raise FileFormatError(f"{path}: line {line}: {error}") from error


def number(field: str) -> float | None:
    """Return the number in a field, spaces around it or none; None for a text that is no number in ASCII digits."""
    try:
        return float(field) if field.isascii() and "_" not in field else None
    except ValueError:
        return None


def check_separator(row: Sequence[str]) -> None:
    """Raise `InvalidInputError` for a first line whose fields are not separated by commas."""
    for mark, called in OTHER_SEPARATORS.items():
        halves = [field.split(mark) for field in row if mark in field]
        numbers = any(all(number(part) is not None for part in parts) for parts in halves)
        if halves and (len(row) == 1 or numbers):
            raise InvalidInputError(
                f"fields are separated by {called}: write commas between them, and full stops in numbers; "
                f"pandas.read_csv(…, sep={mark!r}) reads records as they are"
            )


FORMULA = tuple(
    "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
)  # First characters by which a spreadsheet tells a formula, wide ones too


def write_rows(path: str | PathLike[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file, whole or not at all; no text of it is one of which a spreadsheet makes a formula."""
    with atomic_write(path) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
        write_lines(text, ([_plain(cell) for cell in row] for row in itertools.chain([header], rows)))
        text.flush()
        text.detach()


def _plain(cell: object) -> object:
    """Return a cell of which a spreadsheet makes no formula: a text that would begin one gets an apostrophe."""
    begins = cell.lstrip("\ufeff")[:1] if isinstance(cell, str) else ""  # A byte order mark is read over.
    return f"'{cell}" if begins in FORMULA else cell


def write_lines(text: TextIO, rows: Iterable[Iterable[object]]) -> None:
    """Write rows as lines of CSV that end in a line feed; fields with any mark that ends a line are quoted."""
    csv.writer(_LineFeeds(text), lineterminator="\r\n").writerows(rows)


class _LineFeeds:
    r"""What `csv` writes its lines to: before Python 3.13 it quotes of "\r" and "\n" only what its own lines end in."""

    def __init__(self, text: TextIO) -> None:
        self._text = text

    def write(self, line: str) -> int:
        return self._text.write(line.removesuffix("\r\n") + "\n")


def format_table(
    values: Array, names: Sequence[str], groups: Sequence[str], cells: Sequence[str] | None = None
) -> bytes:
    """Return the CSV text, in UTF-8, of a matrix with its names and groups; numbers keep every bit."""
    buffer = io.StringIO(newline="")
    head = ["query", "group", *(cells or _counted(values.shape[1]))]
    rows = (
        [name, group, *(repr(number).removesuffix(".0") for number in row.tolist())]
        for name, group, row in zip(names, groups, values, strict=True)
    )
    write_lines(buffer, [head, *rows])
    try:
        return buffer.getvalue().encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError("names and groups must be texts that UTF-8 can hold") from error


def refuse_records(table: CsvTable) -> None:
    """Refuse records, a column an attribute, where queries were meant, a column a cell."""
    values, names = table.values, table.cell_names
    if table.names is not None or names is None:
        return
    whole = bool(np.all((values == np.rint(values)) & (values >= 0)))
    distinct = len(np.unique(values, axis=0))
    if whole and len(values) > len(names) and (values.max() > 1 or distinct < len(values)):
        shown = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
        raise InvalidInputError(
            f"looks like records, {len(values)} of {shown}: what is asked of them goes into a specification, a .toml "
            f"file (docs/release.md), and the records to release; a file of queries has a first column called 'query'"
        )


def _counted(cells: int) -> list[str]:
    return [f"x{i}" for i in range(cells)]


def _header(row: list[str]) -> tuple[int, bool]:
    """Return how many leading columns are texts, and whether this first row is a header."""
    fields = [field.strip().lower() for field in row]
    if fields[0] == "query":
        return (2 if fields[1:2] == ["group"] else 1), True
    counting = fields if fields[0] else fields[1:]  # without the head of a column that counts the rows
    if len(fields) > 2 and counting == [str(i) for i in range(len(counting))]:
        raise InvalidInputError(COUNTS)
    if any(number(field) is not None for field in row):
        return 0, False
    if "" in fields:
        raise InvalidInputError("the header has an empty field; a column of names must be called 'query'")
    return 0, True


def _parse(row: list[str], texts: int, width: int, first: bool) -> tuple[list[str], Array]:
    if len(row) != width:
        raise InvalidInputError(f"has {len(row)} fields where the first line has {width}")
    if width == texts:
        raise InvalidInputError("has no column of numbers")
    values = [number(field) for field in row[texts:]]
    for field, value in zip(row[texts:], values, strict=True):
        if value is None:
            raise InvalidInputError(f"{field!r} is not a number" + (f" ({HINT})" if first else ""))
        if not math.isfinite(value):
            raise InvalidInputError(f"numbers must be finite, got {field!r}")
    return row[:texts], np.array(values, dtype=np.float64)


def file_name(number: int, label: str, count: int) -> str:
    """Return a name that any file system takes, whatever the attributes are called."""
    letters = re.sub("[^0-9A-Za-z]+", "_", label).strip("_")[:MAX_LETTERS]
    return f"{number:0{len(str(count))}d}_{letters}.csv"


def as_frame(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> Any:
    """Return rows as a pandas DataFrame.

    Raises `BackendError` where pandas is not installed.
    """
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise BackendError("a table as a frame needs pandas: pip install pandas") from error
    return pandas.DataFrame(list(rows), columns=list(heading))
