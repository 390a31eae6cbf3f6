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
            _require_text(path, text.buffer.peek(8)[:8])  # type: ignore[attr-defined]
            yield _lines(path, text)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, text.buffer) from error  # type: ignore[arg-type]
        except (EOFError, zlib.error) as error:
            raise FileFormatError(f"{path}: is not a readable gzip file: {error}") from error


UTF_16 = "text in UTF-16: save it as CSV UTF-8, or read it with pandas.read_csv(…, encoding='utf-16')"

KINDS = {
    b"PK\x03\x04": "an Excel workbook, or another zip archive: save the sheet as CSV UTF-8, or read it with "
    "pandas.read_excel or polars.read_excel, whose frames are records as well",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (.xls): save the sheet as CSV UTF-8, or read it with pandas.read_excel",
    b"PAR1\x15": "Parquet: its name must end in .parquet",
    b"ARROW1\0": "Arrow: its name must end in .arrow",
    b"\x1f\x8b": "compressed by gzip: its name must end in .gz",
    b"\0\x05\x16\x07": "what macOS keeps beside a file of that name: take the file itself",
    b"\xff\xfe": UTF_16,
    b"\xfe\xff": UTF_16,
}
"""The first bytes of files that are no CSV, what they are, and what to do."""


def _require_text(path: FilePath, first: bytes) -> None:
    """Refuse a file whose first bytes are those of another kind."""
    kinds = [kind for begin, kind in KINDS.items() if first.startswith(begin)]
    kinds += [UTF_16] if b"\0" in first[:2] else []  # without a byte order mark
    if kinds:
        raise FileFormatError(f"{path}: is not UTF-8 text but {kinds[0]}")


def _not_utf8(path: FilePath, stream: BinaryIO) -> FileFormatError:
    """Return the error for a text that is not UTF-8, with its first wrong byte where it can be read again."""
    where = "is not UTF-8 text"
    if stream.seekable():
        stream.seek(0)
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE), b""), start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start : error.start + 1]
                letter = byte.decode("cp1252", "replace")
                where = (
                    f"line {number}: is not UTF-8 text: byte {error.start + 1} of the line is 0x{byte.hex()}, "
                    f"{letter!r} in Windows-1252"
                )
                break
    return FileFormatError(
        f"{path}: {where}; save it as CSV UTF-8, or convert it: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW, or "
        f"pandas.read_csv(…, encoding='cp1252')"
    )


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
        try:
            text = handle.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, handle) from error
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
