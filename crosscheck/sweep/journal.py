"""The file of results: a JSON object a line, appended and on the disk as each run ends."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from dualmech import files
from dualmech.crosscheck.sweep.runs import Row
from dualmech.errors import FileFormatError
from dualmech.files.reading import FilePath

SUFFIX = ".jsonl"
BEGINS = b'{"digest": "'  # every line that is written here, by which one that was cut off is known

_NUMBER: tuple[type, ...] = (float, int, NoneType)
_COUNT: tuple[type, ...] = (int, NoneType)
_TEXT: tuple[type, ...] = (str, NoneType)

FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("digest", "problem", "family", "workload", "pattern"), (str,)),
    **dict.fromkeys(("layer", "status", "message", "solver", "grid"), (str,)),
    **dict.fromkeys(("targets", "neighbours", "backend"), _TEXT),
    **dict.fromkeys(("size", "seed", "steps", "queries", "cells", "threads", "blas_threads"), _COUNT),
    **dict.fromkeys(("epsilon", "delta", "t1", "tol", "time_limit", "asked_tol"), _NUMBER),
    **dict.fromkeys(("lower", "upper", "gap", "wall_seconds", "cpu_seconds", "peak_mebibytes"), _NUMBER),
    "contents": (list,),
    "versions": (dict,),
}
"""What every line holds."""


def read_rows(path: FilePath) -> list[Row]:
    """Return the rows of a file of results; a last line that was cut off is left out.

    Raises `FileFormatError` for a file that cannot be read, or a line that is no row, by its number.
    """
    with files.errors_naming(path), files.reading.opened(path) as handle:
        return _rows(path, _whole(path, handle.read()))


@contextlib.contextmanager
def journal(path: FilePath) -> Iterator[Journal]:
    """Open a file of results to be continued, made where it is missing; what a killed run left half written is cut off.

    Raises `FileFormatError` where it cannot be read or written, does not end in .jsonl, holds anything else, or is
    written by another sweep.
    """
    files.check_writable(path, SUFFIX)
    with contextlib.ExitStack() as opened:
        with files.errors_naming(path):
            handle = opened.enter_context(open(path, "a+b"))
            _lock(path, handle)
            handle.seek(0)
            whole = _whole(path, handle.read())
            rows = _rows(path, whole)
            handle.truncate(len(whole))
        yield Journal(path, handle, rows)


class Journal:
    """Rows that are in a file already, and the means to add one."""

    def __init__(self, path: FilePath, handle: BinaryIO, rows: list[Row]) -> None:
        self.rows = rows
        self._path, self._handle = path, handle

    def append(self, row: Row) -> None:
        """Write a row, so that it is on the disk when this returns.

        Raises `FileFormatError` where it cannot be written.
        """
        line = json.dumps(row, allow_nan=False)
        try:
            self._handle.write(line.encode("ascii") + b"\n")
            self._handle.flush()
            os.fsync(self._handle.fileno())
        except OSError as error:
            raise FileFormatError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        self.rows.append(row)


def _whole(path: FilePath, held: bytes) -> bytes:
    """Return the lines that have an end; what comes after them has to be the beginning of one of ours."""
    end = held.rfind(b"\n") + 1
    cut = held[end:]
    if not (cut.startswith(BEGINS) or BEGINS.startswith(cut)):
        raise FileFormatError(f"{path}: is not a file of results: its last line is none")
    return held[:end]


def _rows(path: FilePath, held: bytes) -> list[Row]:
    rows = []
    for number, line in enumerate(held.splitlines(), 1):
        try:
            rows.append(_row(line))
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{path}: line {number}: is no row of results: {error}") from error
    return rows


def _row(line: bytes) -> Row:
    row = json.loads(line.decode("utf-8"))
    if not isinstance(row, dict):
        raise ValueError("it is not an object")
    for name, kinds in FIELDS.items():
        if name not in row:
            raise ValueError(f"{name} is missing")
        value = row[name]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{name} is {type(value).__name__}")
        if kinds is _NUMBER and value is not None and not math.isfinite(_double(value)):
            raise ValueError(f"{name} is not finite")
    return row


def _double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _lock(path: FilePath, handle: BinaryIO) -> None:
    """Keep the file to this process, where the system can."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise FileFormatError(f"{Path(path)}: is written by another sweep") from error
