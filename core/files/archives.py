"""Files that appear whole or not at all, and ``.npz`` archives with a schema, a version and no pickle.

`dualmech.files` offers these functions beside the readers and writers that are built on them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dualmech.errors import DualmechError, FileFormatError, InputTypeError, InvalidInputError
from dualmech.files.temporary import temporary_beside

FilePath = str | PathLike[str]
Arrays = dict[str, npt.NDArray[Any]]

# What numpy, scipy and zipfile raise on contents that are broken, or were made to look so.
_BROKEN = (
    *(ValueError, TypeError, LookupError, EOFError, MemoryError, ArithmeticError, SyntaxError),
    *(AttributeError, RuntimeError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


@contextlib.contextmanager
def atomic_write(path: FilePath) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends without an error, and is deleted otherwise.

    The bytes go to a temporary file in the same folder, reach the disk, and are renamed. An exception, or
    an interruption from the keyboard, leaves `path` as it was and nothing beside it; what a killed process left, the
    next one that writes there removes. A link is followed; an existing file keeps its permissions.
    Raises `FileFormatError` where the path cannot be written (see `check_writable`), or writing failed.

    Examples
    --------
    >>> import os, tempfile
    >>> from dualmech.files import atomic_write
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(os.path.join(folder, "note")) as handle:
    ...         _ = handle.write(b"whole")
    ...     os.listdir(folder)
    ['note']
    """
    target = _target(path)
    with _failures_naming(path), temporary_beside(target) as temporary:
        with open(temporary, "xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)


@contextlib.contextmanager
def atomic_folder(path: FilePath) -> Iterator[Path]:
    """Make a folder to write files into, which appears at `path` only if the block ends without an error.

    It has a temporary name beside `path` until then; write its files with `atomic_write`, so that they reach the disk.
    Raises `FileFormatError` where something of this name exists already, or the folder that it is to lie in is
    missing or closed to writing.

    Examples
    --------
    >>> import os, tempfile
    >>> from dualmech.files import atomic_folder, atomic_write
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with atomic_folder(os.path.join(home, "tables")) as folder, atomic_write(folder / "first") as handle:
    ...         _ = handle.write(b"whole")
    ...     os.listdir(home), os.listdir(os.path.join(home, "tables"))
    (['tables'], ['first'])
    """
    if isinstance(path, str | PathLike) and os.path.lexists(path):
        raise FileFormatError(f"{path}: cannot be written: it exists already; name a new folder")
    target = _target(path)
    with _failures_naming(path), temporary_beside(target) as temporary:
        temporary.mkdir()
        yield temporary
        os.replace(temporary, target)


def check_writable(path: FilePath) -> None:
    """Check, before long work, that `path` could be written now; leaves nothing behind.

    Raises `FileFormatError` where the folder is missing or closed to writing, or `path` is a folder, a device or a
    read-only file.

    Examples
    --------
    >>> from dualmech.files import check_writable
    >>> check_writable("/no/such/folder/answer.npz")
    Traceback (most recent call last):
    dualmech.errors.FileFormatError: /no/such/folder/answer.npz: cannot be written: no folder /no/such/folder
    """
    with _failures_naming(path), temporary_beside(_target(path)) as trial, open(trial, "xb"):
        pass


@contextlib.contextmanager
def _failures_naming(path: FilePath) -> Iterator[None]:
    """Turn a system call that failed while writing into one line that names the file."""
    try:
        yield
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def errors_naming(path: FilePath) -> Iterator[None]:
    """Name the file in any error raised inside the block: a failed system call, or contents that are refused.

    Raises `FileFormatError` in place of any `OSError` or `DualmechError`.
    """
    check_readable(path)
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


def write_npz(path: FilePath, schema: str, version: int, /, **arrays: npt.ArrayLike) -> None:
    """Write arrays to an ``.npz`` file with its schema and version, compressed, whole or not at all.

    The same arrays give the same bytes.
    Raises `FileFormatError` where the path cannot be written, or does not end in ``.npz``; `InvalidInputError` or
    `InputTypeError` for an array called ``schema`` or ``version``, or one that holds neither numbers nor texts.
    """
    if _target(path).suffix.lower() != ".npz":
        raise FileFormatError(f"{path}: must end in .npz, the one format that is written here")
    contents = {"schema": np.array(schema), "version": np.array(version, dtype=np.int64)}
    for key, value in arrays.items():
        if key in contents:
            raise InvalidInputError(f"an array must not be called {key!r}, which every file has")
        array = np.asarray(value)
        if array.dtype.kind not in "biufU":
            raise InputTypeError(f"{key} must hold real numbers or texts, got dtype {array.dtype}")
        contents[key] = array
    with atomic_write(path) as handle, zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in contents.items():
            # A ZipInfo made by hand carries a fixed date, which np.savez does not promise.
            entry = zipfile.ZipInfo(f"{key}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_npz(path: FilePath, schema: str, versions: Collection[int]) -> Arrays:
    """Read all arrays of an ``.npz`` file, ``schema`` and ``version`` among them, once these two fit.

    Raises `FileFormatError` where the file cannot be read, is no archive or a broken one, holds pickled objects,
    lacks a schema or follows another one, or has a version that is not among `versions`.

    Examples
    --------
    >>> import os, tempfile
    >>> from dualmech.files import read_npz, write_npz
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "numbers.npz")
    ...     write_npz(path, "example", 1, values=[1.0, 2.0])
    ...     read_npz(path, "example", (1,))["values"]
    array([1., 2.])
    """
    head = read_archive(path, {"schema", "version"}) or read_archive(path)
    require(path, head, "schema", "version")
    found, version = head["schema"], head["version"]
    if found.shape != () or found.dtype.kind != "U" or version.shape != () or version.dtype.kind not in "iu":
        raise FileFormatError(f"{path}: schema must be one text and version one integer")
    if str(found) != schema:
        raise FileFormatError(f"{path}: must follow the schema {schema!r}, got {str(found)!r}")
    if int(version) not in versions:
        newer = "; it was written by a newer dualmech" if int(version) > max(versions) else ""
        allowed = ", ".join(map(str, sorted(versions)))
        raise FileFormatError(f"{path}: must have version {allowed} of {schema!r}, got {int(version)}{newer}")
    return read_archive(path)


def read_archive(path: FilePath, keys: Collection[str] | None = None) -> Arrays:
    """Read the arrays of any ``.npz`` file, or of `keys` those that it has.

    Raises `FileFormatError`; and `InputTypeError` for a path of another kind, such as the number of an open file.
    """
    with errors_naming(path), open(path, "rb") as handle, decoding_errors(path, ".npz"):
        # np.load takes anything that is neither .npy nor a zip for a pickle, and says so.
        if handle.read(4) not in (b"PK\3\4", b"PK\5\6"):
            raise FileFormatError(f"{path}: is not a readable .npz file: not a zip archive")
        handle.seek(0)
        with np.load(handle, allow_pickle=False) as archive:
            wanted = [key for key in archive.files if keys is None or key in keys]
            arrays = {key: archive[key] for key in wanted}
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise FileFormatError(f"{path}: is not a readable .npz file: {key!r} is not an array")
    return arrays


def require(path: FilePath, arrays: Mapping[str, object], *keys: str) -> None:
    """Raise `FileFormatError` unless every key is among the arrays of a file."""
    missing = [key for key in keys if key not in arrays]
    if missing:
        held = ", ".join(sorted(arrays)) or "none"
        raise FileFormatError(f"{path}: needs the array {missing[0]!r}, has {held}")


def as_text_array(argument: str, labels: Sequence[str]) -> npt.NDArray[np.str_]:
    """Return texts as an array; refuse those that an array does not keep unchanged."""
    for label in labels:
        # numpy pads texts with NUL characters and takes them off again.
        if label.endswith("\0"):
            raise InvalidInputError(f"{argument} must not end in a NUL character, got {label!r}")
    return np.array(labels, dtype=np.str_)


def check_path(path: object) -> None:
    """Refuse what names no file, whatever the system."""
    if not isinstance(path, str | PathLike):
        raise InputTypeError(f"path must be a text or a path, got {type(path).__name__}")


def check_readable(path: object) -> None:
    """Refuse what names no file that could be read."""
    check_path(path)
    if "\0" in str(path):
        raise FileFormatError(f"{str(path)!r}: cannot be read: embedded null byte")


def _target(path: FilePath) -> Path:
    """Return the file behind a path, links followed, after the checks that need no trial."""
    check_path(path)
    reason = None
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            reason = "it is a folder"
        elif not target.parent.is_dir():
            reason = f"no folder {target.parent}"
        elif target.exists() and not target.is_file():
            reason = "it is not an ordinary file"
        elif target.exists() and not os.access(target, os.W_OK):
            reason = "it is read-only"
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path!r}: cannot be written: {error}") from error
    if reason:
        raise FileFormatError(f"{path}: cannot be written: {reason}")
    return target
