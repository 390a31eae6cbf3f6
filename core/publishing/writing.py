"""Tables as CSV files that any file system takes and no spreadsheet misreads."""

from __future__ import annotations

import importlib
import io
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dualmech import files
from dualmech.errors import BackendError
from dualmech.files.csv import write_lines

FORMULA = tuple(
    "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
)  # First characters by which a spreadsheet tells a formula, wide ones too

LONGEST = 60  # most letters of a table's name that the name of its file holds


def file_name(number: int, label: str, count: int) -> str:
    """Return a name that any file system takes, whatever the attributes are called."""
    letters = re.sub("[^0-9A-Za-z]+", "_", label).strip("_")[:LONGEST]
    return f"{number:0{len(str(count))}d}_{letters}.csv"


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file, whole or not at all; no text of it is one of which a spreadsheet makes a formula."""
    with files.atomic_write(path) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
        write_lines(text, (map(_shown, row) for row in itertools.chain([header], rows)))
        text.flush()
        text.detach()


def as_frame(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> Any:
    """Return rows as a pandas DataFrame.

    Raises `BackendError` where pandas is not installed.
    """
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise BackendError("a frame needs pandas: pip install pandas; write() does without") from error
    return pandas.DataFrame(list(rows), columns=list(heading))


def _shown(cell: object) -> object:
    """Return a cell of which a spreadsheet makes no formula: a text that would begin one gets an apostrophe."""
    begins = cell.lstrip("\ufeff")[:1] if isinstance(cell, str) else ""  # A byte order mark is read over.
    return f"'{cell}" if begins in FORMULA else cell
