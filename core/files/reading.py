"""Opening files to read: ordinary ones, lines of a length that has an end, and errors that name the file."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import stat
import struct
import tokenize
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from os import PathLike
from typing import BinaryIO, TextIO

from dualmech.errors import DualmechError, FileFormatError, InputTypeError

FilePath = str | PathLike[str]

LONGEST_LINE = 2**26  # characters of a line of text: a row of millions of numbers with all their digits

# What numpy, scipy and zipfile raise on contents that are broken, or were made to look so.
_BROKEN = (
    *(ValueError, TypeError, LookupError, EOFError, ArithmeticError, SyntaxError),
    *(AttributeError, RuntimeError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


@contextlib.contextmanager
def errors_naming(path: FilePath) -> Iterator[None]:
    """Name the file in any error raised inside the block: a failed system call, or contents that are refused.

    Raises `FileFormatError` in place of any `OSError` or `DualmechError`.
    """
    check_path(path)
    if "\0" in str(path):
        raise FileFormatError(f"{str(path)!r}: cannot be read: embedded null byte")
    try:
        yield
    except FileFormatError:
        raise
    except DualmechError as error:
        raise FileFormatError(f"{path}: {error}") from error
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from error


@contextlib.contextmanager
def decoding_errors(path: FilePath, kind: str) -> Iterator[None]:
    """Turn what numpy and scipy raise on broken contents into one line that names the file."""
    try:
        yield
    except (DualmechError, OSError):
        raise
    except _BROKEN as error:
        if "pickle" in str(error):
            raise FileFormatError(f"{path}: holds pickled Python objects, which are never loaded") from error
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileFormatError(f"{path}: is not a readable {kind} file: {first_line}") from error


@contextlib.contextmanager
def opened(path: FilePath) -> Iterator[BinaryIO]:
    """Open an ordinary file to read its bytes; what has no size is refused."""
    check_path(path)
    # A folder is refused by the system's own words.
    if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        raise FileFormatError(f"{path}: cannot be read: it is not an ordinary file")
    with open(path, "rb") as handle:
        yield handle


@contextlib.contextmanager
def opened_lines(path: FilePath) -> Iterator[Iterator[str]]:
    """Open a file of text in UTF-8, to read its lines with their ends; a byte order mark is left out.

    What a shell hands on, such as ``/dev/stdin``, can be read; a pipe by its name is refused, which may wait for its
    writer for ever.
    A name that ends in ``.gz`` is that of a text compressed by gzip.
    Raises `FileFormatError`, while lines are read, for one of more than `LONGEST_LINE` characters, before it fills the
    memory, and for bytes that are not UTF-8.
    """
    check_path(path)
    if stat.S_ISFIFO(os.stat(path).st_mode) and os.path.exists(os.path.realpath(path)):
        raise FileFormatError(f"{path}: cannot be read: it is a pipe, not an ordinary file")
    zipped = str(path).lower().endswith(".gz")
    with (gzip.open if zipped else open)(path, "rt", encoding="utf-8-sig", newline="") as text:
        try:
            yield _lines(path, text)
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}: is not UTF-8 text{'' if zipped else _kind_of(text)}") from error
        except (EOFError, zlib.error) as error:
            raise FileFormatError(f"{path}: is not a readable gzip file: {error}") from error


def _kind_of(text: TextIO) -> str:
    """Say what a file that is not UTF-8 seems to be, by its first bytes; nothing of one that can be read only once."""
    if not text.seekable():
        return ""
    text.buffer.seek(0)
    first = text.buffer.read(4)
    for begin, kind in KINDS.items():
        if first.startswith(begin):
            return f": it seems to be {kind}; save it as CSV in UTF-8"
    return ""


KINDS = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PK": "a workbook of a spreadsheet (.xlsx, .ods) or another zip archive",
    b"PAR1": "Parquet",
    b"\xd0\xcf\x11\xe0": "an old workbook of Excel (.xls)",
}
"""What files begin with that are no CSV."""


def _lines(path: FilePath, text: TextIO) -> Iterator[str]:
    number = 1
    while line := text.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE and line[-1] not in "\r\n":
            raise FileFormatError(f"{path}: line {number}: is longer than {LONGEST_LINE} characters")
        yield line
        number += 1


def check_path(path: object) -> None:
    """Raise `InputTypeError` for a path that is neither text nor path object, such as the number of an open file."""
    if not isinstance(path, str | PathLike):
        raise InputTypeError(f"path must be a text or a path, got {type(path).__name__}")


# Files in TOML.


def read_toml(path: FilePath) -> dict[str, object]:
    """Return what a TOML file holds.

    Raises `FileFormatError` for a file that cannot be read or is no TOML, `InputTypeError` for no path.
    """
    with errors_naming(path), opened(path) as handle, decoding_errors(path, "TOML"):
        text = handle.read().decode()
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"at line (\d+)", str(error))
            hint = "" if line is None else _number_hint(text.split("\n")[int(line[1]) - 1])
            raise tomllib.TOMLDecodeError(f"{error}{hint}") from None


def _number_hint(line: str) -> str:
    """Say how a line of TOML has a fraction, or a number with a decimal point; nothing of another line."""
    value = line.partition("=")[2].strip()
    if re.fullmatch(r"\d+\s*/\s*\d+", value):
        return f': a fraction is a text, "{value}"'
    if re.fullmatch(r"\d+,\d+", value):
        return f": a number has a point, {value.replace(',', '.')}"
    return ""
