"""Matrices as CSV text: numbers, one query per row, with an optional header and optional names and groups.

The schema is in ``docs/formats.md``; `dualmech.files` reads and writes whole files with it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np

from dualmech.errors import FileFormatError, InvalidInputError
from dualmech.validate import Array

HINT = "a first line is a header if it starts with 'query' or holds no number at all"


@dataclass(frozen=True, slots=True, eq=False)
class CsvTable:
    """The numbers of a CSV file (rows, columns), and the texts of its `query` and `group` columns, if any."""

    values: Array
    names: tuple[str, ...] | None
    groups: tuple[str, ...] | None


def read_table(path: str | PathLike[str]) -> CsvTable:
    """Read a CSV file in UTF-8; a fault raises `FileFormatError` with its line, `OSError` is passed on."""
    labels: list[list[str]] = []
    rows: list[Array] = []
    layout: tuple[int, int] | None = None
    with open(path, newline="", encoding="utf-8-sig") as handle:
        reader = csv.reader(handle, strict=True)
        try:
            for row in reader:
                if not any(field.strip() for field in row) and len(row) <= 1:
                    continue
                if layout is None:
                    texts, is_header = _header(row)
                    layout = texts, len(row)
                    if is_header:
                        continue
                label, values = _parse(row, *layout, first=not rows)
                labels.append(label)
                rows.append(values)
        except csv.Error as error:
            raise FileFormatError(f"{path}: line {reader.line_num}: is not CSV: {error}") from error
        except InvalidInputError as error:
            raise FileFormatError(f"{path}: line {reader.line_num}: {error}") from error
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}: is not UTF-8 text") from error
    if not rows:
        raise FileFormatError(f"{path}: holds no row of numbers")
    columns = [tuple(column) for column in zip(*labels, strict=True)]
    return CsvTable(np.stack(rows), *(columns + [None, None])[:2])


def format_table(values: Array, names: Sequence[str], groups: Sequence[str]) -> bytes:
    """Return the CSV text, in UTF-8, of a matrix with its names and groups; numbers keep every bit."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["query", "group", *(f"x{i}" for i in range(values.shape[1]))])
    for name, group, row in zip(names, groups, values, strict=True):
        writer.writerow([name, group, *(repr(number).removesuffix(".0") for number in row.tolist())])
    try:
        return buffer.getvalue().encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError("names and groups must be texts that UTF-8 can hold") from error


def _header(row: list[str]) -> tuple[int, bool]:
    """Return how many leading columns are texts, and whether this first row is a header."""
    fields = [field.strip().lower() for field in row]
    if fields[0] == "query":
        return (2 if fields[1:2] == ["group"] else 1), True
    if any(_number(field) is not None for field in row):
        return 0, False
    if "" in fields:
        raise InvalidInputError("the header has an empty field")
    return 0, True


def _parse(row: list[str], texts: int, width: int, first: bool) -> tuple[list[str], Array]:
    if len(row) != width:
        raise InvalidInputError(f"has {len(row)} fields where the first line has {width}")
    if width == texts:
        raise InvalidInputError("has no column of numbers")
    values = [_number(field) for field in row[texts:]]
    for field, value in zip(row[texts:], values, strict=True):
        if value is None:
            raise InvalidInputError(f"{field!r} is not a number" + (f" ({HINT})" if first else ""))
        if not math.isfinite(value):
            raise InvalidInputError(f"numbers must be finite, got {field!r}")
    return row[:texts], np.array(values, dtype=np.float64)


def _number(field: str) -> float | None:
    try:
        return None if "_" in field else float(field)
    except ValueError:
        return None
