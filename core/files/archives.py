"""``.npz`` archives with a schema, a version and no pickle, checked before they are read."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from typing import IO

import numpy as np
import numpy.typing as npt

from dualmech.errors import FileFormatError, InputTypeError, InvalidInputError
from dualmech.files.atomic import atomic_write, check_suffix
from dualmech.files.reading import FilePath, decoding_errors, errors_naming, opened
from dualmech.workloads.arrays import Arrays

LARGEST_CONTENTS = 3 * 2**30
"""Bytes of the arrays that are read from, or written to, one compressed file: the largest matrix that a workload
writes out, and half as much again. A file that is itself as large may hold as much as it takes."""

LIBRARY = "library"  # key of the version of the library that wrote a file
DIGEST = "digest"  # of a file's other arrays

LISTED = 8  # most names that a message lists

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def write_npz(path: FilePath, schema: str, version: int, /, **arrays: npt.ArrayLike) -> None:
    """Write arrays to an ``.npz`` file with its schema, version and library, compressed, whole or not at all.

    The same arrays give the same bytes. The version of the library that writes them is kept as ``library``, and
    their digest as ``digest``, in place of an earlier file's version and digest.
    Raises `FileFormatError` where the path cannot be written, or does not end in ``.npz``; `InvalidInputError` or
    `InputTypeError` for an array called ``schema`` or ``version``, or one that holds neither numbers nor texts.
    """
    check_suffix(path, ".npz")
    contents = {"schema": np.array(schema), "version": np.array(version, dtype=np.int64)}
    entries = {key: value for key, value in arrays.items() if key != DIGEST}
    for key, value in (entries | {LIBRARY: metadata.version("dualmech")}).items():
        if key in contents:
            raise InvalidInputError(f"an array must not be called {key!r}, which every file has")
        array = np.asarray(value)
        if array.dtype.kind not in "biufU":
            raise InputTypeError(f"{key} must hold real numbers or texts, got dtype {array.dtype}")
        contents[key] = array
    contents[DIGEST] = np.array(_digest(contents))
    if sum(array.nbytes for array in contents.values()) > LARGEST_CONTENTS:
        raise InvalidInputError(f"{path}: arrays of more than {LARGEST_CONTENTS} bytes are not written")
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
    with _members(path) as (archive, members):
        head = _arrays(path, archive, members, {"schema", "version"})
        _check_head(path, head, schema, versions)
        arrays = _arrays(path, archive, members)
    if DIGEST in arrays and str(arrays[DIGEST]) != _digest(arrays):
        raise FileFormatError(
            f"{path}: was changed after dualmech wrote it: its contents have another digest than it says; a file that "
            f"is meant to be as it is has no array {DIGEST!r}"
        )
    return arrays


def _check_head(path: FilePath, head: Arrays, schema: str, versions: Collection[int]) -> None:
    """Refuse a file of another schema or version."""
    require(path, head, "schema", "version")
    named, version = head["schema"], head["version"]
    if named.shape != () or named.dtype.kind != "U" or version.shape != () or version.dtype.kind not in "iu":
        raise FileFormatError(f"{path}: schema must be one text and version one integer")
    if str(named) != schema:
        raise FileFormatError(f"{path}: must follow the schema {schema!r}, got {str(named)!r}")
    if int(version) not in versions:
        newer = "; it was written by a newer dualmech" if int(version) > max(versions) else ""
        allowed = ", ".join(map(str, sorted(versions)))
        raise FileFormatError(f"{path}: must have version {allowed} of {schema!r}, got {int(version)}{newer}")


def _digest(arrays: Mapping[str, npt.NDArray[np.generic]]) -> str:
    hashed = hashlib.sha256()
    for key in sorted(arrays):
        if key != DIGEST:
            array = np.ascontiguousarray(arrays[key])
            hashed.update(f"{key}:{array.dtype.str}:{array.shape}:".encode())
            hashed.update(array.tobytes())
    return hashed.hexdigest()


def read_archive(path: FilePath, keys: Collection[str] | None = None) -> Arrays:
    """Read the arrays of any ``.npz`` file, or of `keys` those that it has; nothing before all of them fit.

    Raises `FileFormatError`, also where they would take more memory than `LARGEST_CONTENTS`; and `InputTypeError` for
    a path of another kind, such as the number of an open file.
    """
    with _members(path) as (archive, members):
        return _arrays(path, archive, members, keys)


def _arrays(
    path: FilePath,
    archive: zipfile.ZipFile,
    members: Mapping[str, zipfile.ZipInfo],
    keys: Collection[str] | None = None,
) -> Arrays:
    """Return the arrays of an open archive, once the sizes of all that are wanted fit."""
    wanted = {key: entry for key, entry in members.items() if keys is None or key in keys}
    inflated, allowed = sum(entry.file_size for entry in wanted.values()), LARGEST_CONTENTS
    if inflated > max(allowed, os.path.getsize(path)):
        raise FileFormatError(f"{path}: would take {inflated:.3g} bytes of memory, {allowed} are allowed")
    arrays = {}
    for key, entry in wanted.items():
        with archive.open(entry) as member:
            arrays[key] = read_array(member, entry.file_size)
    return arrays


def read_array(stream: IO[bytes], size: int) -> npt.NDArray[np.generic]:
    """Read one array in NumPy's format from a file of a size, once its header asks for no more memory than that.

    Raises `ValueError` for any other size, and for Python objects, which are never loaded.
    """
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of NumPy's format is not read")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a header that Python 2 wrote
        shape, _, dtype = _HEADERS[version](stream)
        if dtype.hasobject:
            raise ValueError("holds pickled objects")
        entries: int = math.prod(shape)
        stated, available = entries * dtype.itemsize, size - stream.tell()
        if stated != available or (entries and not dtype.itemsize) or min(shape, default=0) < 0:
            raise ValueError(f"its header states {dtype} of shape {shape}, {stated} bytes; {available} bytes follow")
        stream.seek(0)
        return np.lib.format.read_array(stream, allow_pickle=False)


def require(path: FilePath, arrays: Mapping[str, object], *keys: str) -> None:
    """Raise `FileFormatError`, which lists what an ``.npz`` file has, unless every key is among its arrays."""
    missing = [key for key in keys if key not in arrays]
    if missing:
        raise FileFormatError(f"{path}: needs the array {missing[0]!r}, has {listed_names(path)}")


def listed_names(path: FilePath) -> str:
    """Return the names of the arrays in an ``.npz`` file, from its list of contents alone."""
    with _members(path) as (_, members):
        names = sorted(members)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more or "none"


@contextlib.contextmanager
def _members(path: FilePath) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Open an archive, and find its arrays by name in its list of contents."""
    with errors_naming(path), opened(path) as handle, decoding_errors(path, ".npz"), zipfile.ZipFile(handle) as archive:
        members = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name == entry.filename:
                raise FileFormatError(f"{path}: is not a readable .npz file: {name!r} is not an array")
            if name in members:
                raise FileFormatError(f"{path}: is not a readable .npz file: holds {name!r} twice")
            members[name] = entry
        yield archive, members
