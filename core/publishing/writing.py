"""Tables as CSV files that any file system takes and no spreadsheet misreads."""

from __future__ import annotations

import csv
import importlib
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dualmech import files
from dualmech.errors import BackendError

LONGEST = 60  # most letters of a table's name that the name of its file holds


def file_name(number: int, label: str, count: int) -> str:
    """Return a name that any file system takes, whatever the attributes are called."""
    letters = re.sub("[^0-9A-Za-z]+", "_", label).strip("_")[:LONGEST]
    return f"{number:0{len(str(count))}d}_{letters}.csv"


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file, whole or not at all; no text of it is one of which a spreadsheet makes a formula."""
    with files.atomic_write(path) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(_shown, header))
        writer.writerows(map(_shown, row) for row in rows)
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
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") else cell
