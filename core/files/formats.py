"""Reading and writing files; every schema is in ``docs/appendix/schemas.md``.

A file appears whole or not at all, nothing is ever pickled or unpickled, and whatever is wrong with a file
raises `FileFormatError`, one line that names the file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import DualmechError, FileFormatError, InvalidInputError
from dualmech.files import csv
from dualmech.files.archives import (
    listed_names,
    read_archive,
    read_array,
    read_npz,
    require,
    write_npz,
)
from dualmech.files.atomic import atomic_write
from dualmech.files.reading import FilePath, check_path, decoding_errors, errors_naming, opened, opened_lines
from dualmech.validate import Array
from dualmech.workloads.arrays import Arrays, as_text_array, domain_arrays, domain_from_arrays
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload, check_workload

# Matrix Market text (``.mtx``): real matrices, sparse (``coordinate``) or dense (``array``).
#
# Written by scipy. Its reader is not used: on a file that ends in the middle of a number, as one does that was cut off,
# it ends the whole process (1.17: a segmentation fault, also from memory), so numpy reads the numbers here.


KINDS = {("coordinate", "real"): 3, ("coordinate", "integer"): 3, ("coordinate", "pattern"): 2} | {
    ("array", "real"): 1,
    ("array", "integer"): 1,
}
"""Numbers a line by layout and field; of a pattern all entries are 1."""

MIRRORS = {"general": 0, "symmetric": 1, "skew-symmetric": -1}
"""By what an entry below the diagonal is multiplied to give the one above; 0 where both are written."""

LAST_DIAGONAL = {1: 0, -1: -1}  # the last one that an array writes, by mirror; otherwise all

MOST_EMPTY_ROWS = 2**24  # rows, which take memory though nothing stands in them

Listed = tuple[Array, npt.NDArray[np.int64], tuple[int, int]]
"""Entries, their rows and columns (2, n), and the shape."""


def read_matrix_market(path: str | PathLike[str]) -> Array | sp.csr_array:
    """Read a real Matrix Market file: sparse if it lists coordinates, dense if it lists an array.

    Raises `InvalidInputError` or `ValueError` for another kind of file or of matrix, text that is not a number,
    another number of entries than is announced.
    """
    with opened_lines(path) as stream:
        words = next(stream, "").lower().split()
        lines = [line for line in stream if line.strip() and not line.lstrip().startswith("%")]
    layout, field, symmetry = words[2:] if len(words) == 5 else ("", "", "")
    if words[:2] != ["%%matrixmarket", "matrix"] or (layout, field) not in KINDS or symmetry not in MIRRORS:
        raise InvalidInputError(
            "must begin with '%%MatrixMarket matrix', then coordinate or array; real, integer or, of coordinates, "
            f"pattern; general, symmetric or skew-symmetric; got {' '.join(words) or 'nothing'}"
        )
    sizes = [int(size) for size in lines[0].split()] if lines else []
    if len(sizes) != (2 if layout == "array" else 3) or min(sizes[:2]) < 1:
        raise InvalidInputError(f"must state its sizes, got {' '.join(map(str, sizes)) or 'nothing'}")
    if MIRRORS[symmetry] and sizes[0] != sizes[1]:
        raise InvalidInputError(f"a {symmetry} matrix must be square, got {sizes[0]} x {sizes[1]}")
    if layout == "coordinate" and sizes[0] > max(MOST_EMPTY_ROWS, sizes[2]):
        raise InvalidInputError(
            f"must have at most {MOST_EMPTY_ROWS} rows, or an entry in each, got {sizes[0]} rows, {sizes[2]} entries"
        )
    width, mirror = KINDS[layout, field], MIRRORS[symmetry]
    numbers = np.loadtxt(lines[1:], ndmin=2) if len(lines) > 1 else np.zeros((0, width))
    matrix = _sparse_matrix(*(_array if layout == "array" else _coordinates)(numbers, sizes, width, mirror), mirror)
    return matrix.toarray() if layout == "array" else matrix


def format_matrix_market(matrix: Array | sp.csr_array) -> bytes:
    """Return the Matrix Market text of a matrix; numbers keep every bit."""
    import scipy.io

    text = io.BytesIO()
    scipy.io.mmwrite(text, matrix, symmetry="general")
    return text.getvalue()


def _coordinates(numbers: Array, sizes: list[int], width: int, mirror: int) -> Listed:
    if numbers.shape != (sizes[2], width):
        raise InvalidInputError(f"must have {sizes[2]} entries of {width} numbers, got {numbers.shape}")
    index = numbers[:, :2].T - 1
    if np.any(index != np.round(index)) or np.any((index < 0) | (index >= np.array(sizes[:2])[:, None])):
        raise InvalidInputError(f"entries must lie within {sizes[0]} x {sizes[1]}, counted from 1")
    data = numbers[:, 2] if width == 3 else np.ones(len(numbers))
    return data, index.astype(np.int64), (sizes[0], sizes[1])


def _array(numbers: Array, sizes: list[int], width: int, mirror: int) -> Listed:
    """List the entries of an array, written by columns: all, or the lower triangle (if skew, without its zeros)."""
    rows, columns = sizes
    expected = rows * (rows + mirror) // 2 if mirror else rows * columns
    if numbers.size != expected:
        raise InvalidInputError(f"must have {expected} entries, got {numbers.size}")
    written = np.tri(rows, columns, LAST_DIAGONAL.get(mirror, columns))
    return numbers.ravel(), np.stack(np.nonzero(written.T))[::-1], (rows, columns)


def _sparse_matrix(data: Array, index: npt.NDArray[np.int64], shape: tuple[int, int], mirror: int) -> sp.csr_array:
    if mirror:
        off = index[0] != index[1]
        index, data = np.hstack([index, index[::-1, off]]), np.concatenate([data, mirror * data[off]])
    return sp.csr_array(sp.coo_array((data, (index[0], index[1])), shape=shape))


SCHEMA, VERSION = "dualmech.workload", 1

SUFFIXES = (".csv", ".npy", ".npz", ".mtx")
VECTORS = SUFFIXES[:3]  # of files with one number an item


def read_workload(path: FilePath) -> Workload:
    """Read a workload from a ``.csv``, ``.npy``, ``.npz`` or ``.mtx`` file.

    An ``.npz`` file is one that `write_workload` or ``scipy.sparse.save_npz`` wrote. Only the former keeps
    the domain; only it and ``.csv`` keep names, groups and names of cells. Sparse files give a sparse workload.
    Raises `FileFormatError` where the file cannot be read or is not in its format: with the line number where a
    ``.csv`` is at fault.

    Examples
    --------
    >>> import os, tempfile
    >>> import dualmech as dm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "prefix.npz")
    ...     dm.files.write_workload(dm.workloads.prefix(3), path)
    ...     dm.files.read_workload(path).names
    ('cell 0', 'cells 0..1', 'cells 0..2')
    """
    suffix = _suffix(path)
    with errors_naming(path):
        if suffix == ".csv":
            table = csv.read_table(path)
            csv.refuse_records(table)
            return Workload(table.values, table.names, table.groups, cell_names=table.cell_names)
        if suffix == ".npz":
            return _unpack(path)
        return Workload(_read_npy(path) if suffix == ".npy" else _read_mtx(path))


def write_workload(workload: Workload, path: FilePath) -> None:
    """Write a workload to a ``.csv``, ``.npy``, ``.npz`` or ``.mtx`` file, whole or not at all.

    ``.npz`` keeps everything, ``.csv`` all but the domain, the others the matrix alone. ``.csv`` and
    ``.npy`` are written out densely.
    Raises `FileFormatError`, `InvalidInputError` or `InputTypeError` for another ending, a path that cannot be
    written, names that the format cannot hold.
    """
    check_workload(workload)
    suffix = _suffix(path)
    # Each branch refuses what it must before it opens the file.
    if suffix == ".npz":
        write_npz(path, SCHEMA, VERSION, **workload_arrays(workload))
    elif suffix == ".csv":
        text = csv.format_table(workload.dense(), workload.names, workload.groups, workload.cell_names)
        with atomic_write(path) as handle:
            handle.write(text)
    elif suffix == ".npy":
        dense = np.ascontiguousarray(workload.dense())
        with atomic_write(path) as handle:
            np.lib.format.write_array(handle, dense, allow_pickle=False)
    else:
        text = format_matrix_market(workload.matrix)
        with atomic_write(path) as handle:
            handle.write(text)


def read_vector(path: FilePath, name: str) -> Array:
    """Read a vector, such as ``targets``: a ``.csv`` of one column, ``.npy``, or the key `name` of ``.npz``.

    Raises `FileFormatError` where the file cannot be read, is not in its format, or holds anything but one column
    of finite numbers.
    Returns an array (n,): finite numbers. A ``.npy`` or ``.npz`` array of shape (n, 1) is taken as a column.
    """
    validate.text(name=name)
    with errors_naming(path):
        suffix = _suffix(path, VECTORS)
        table = csv.read_table(path) if suffix == ".csv" else None
        if table is not None and table.names is not None:
            # Names may stand in an order of their own, and nothing here could follow it.
            raise InvalidInputError(
                f"{name} must be one column of numbers, got a column of names; read_by_name takes names and numbers"
            )
        values = table.values if table is not None else _read_array(path, name, suffix)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            raise InvalidInputError(f"{name} must be one column of numbers, got shape {values.shape}")
        return validate.finite(1, **{name: values})


def read_by_name(path: FilePath, name: str) -> dict[str, float]:
    r"""Read numbers by name, such as ``targets``, from a ``.csv`` whose lines are ``query,target``.

    Problems take the returned mapping and find each query's number, or its table's or group's, by name.
    Raises `FileFormatError` where the file cannot be read, a line is no name and number, or names what another did.

    Examples
    --------
    >>> import os, tempfile
    >>> import dualmech as dm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "targets.csv")
    ...     with dm.files.atomic_write(path) as handle:
    ...         _ = handle.write(b"query,target\ncells 0..1,4\ncell 0,1\n")
    ...     targets = dm.files.read_by_name(path, "targets")
    >>> dm.FitnessForUse(dm.workloads.prefix(2), targets).targets
    array([1., 4.])
    """
    validate.text(name=name)
    _suffix(path, SUFFIXES[:1])
    with errors_naming(path):
        lines = csv.read_named(path)
    if lines is None:
        raise FileFormatError(f"{path}: {name} by name must be lines of a name and a number, got one column")
    numbers: dict[str, float] = {}
    for line, label, number in lines:
        if label in numbers:
            raise FileFormatError(f"{path}: line {line}: {name} must name each item once, {label!r} is double")
        numbers[label] = number
    return numbers


def read_matrix(path: FilePath, name: str) -> Array:
    """Read a dense matrix, such as ``covariance``: ``.csv``, ``.npy``, ``.mtx``, or key `name` of ``.npz``.

    A ``query`` or ``group`` column of a ``.csv`` is allowed and not used.
    Raises `FileFormatError` where the file cannot be read, is not in its format, or holds anything but a matrix of
    finite numbers.
    Returns an array (rows, columns): finite numbers.
    """
    validate.text(name=name)
    with errors_naming(path):
        return validate.finite(2, **{name: _read_array(path, name, _suffix(path))})


def workload_arrays(workload: Workload) -> Arrays:
    """Return the arrays that describe a workload in an ``.npz`` file; every key starts with ``workload_``.

    Examples
    --------
    >>> import dualmech as dm
    >>> sorted(dm.files.workload_arrays(dm.workloads.total(2)))
    ['workload_groups', 'workload_matrix', 'workload_names', 'workload_shape']
    """
    return {f"workload_{key}": value for key, value in workload_parts(check_workload(workload)).items()}


def workload_parts(workload: Workload) -> Arrays:
    """Return the arrays that describe a workload, by their names."""
    matrix = workload.matrix
    arrays: Arrays = {"shape": np.array(workload.shape, dtype=np.int64)}
    if sp.issparse(matrix):
        arrays |= {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    else:
        arrays["matrix"] = matrix
    arrays |= {"names": as_text_array("names", workload.names), "groups": as_text_array("groups", workload.groups)}
    if workload.cell_names is not None:
        arrays["cell_names"] = as_text_array("cell_names", workload.cell_names)
    if workload.domain is not None:
        arrays |= domain_arrays(workload.domain)
    return arrays


def workload_from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Workload:
    """Return the workload that `workload_arrays` described; other keys are ignored.

    Raises `InvalidInputError` or `InputTypeError` where a key is missing, or the arrays do not fit together.
    """
    prefix = "workload_"
    parts = {key.removeprefix(prefix): np.asarray(value) for key, value in arrays.items() if key.startswith(prefix)}
    needed = ["shape", "names", "groups"] + (["matrix"] if "matrix" in parts else ["data", "indices", "indptr"])
    missing = [f"workload_{key}" for key in needed if key not in parts]
    if missing:
        raise InvalidInputError(f"a workload needs the array {missing[0]!r}")
    shape = tuple(int(count) for count in validate.finite(1, workload_shape=parts["shape"]))
    if len(shape) != 2:
        raise InvalidInputError(f"workload_shape must hold two numbers, got {len(shape)}")
    try:
        matrix = parts.get("matrix")
        if matrix is None:
            rows = (parts["data"], parts["indices"], parts["indptr"])
            matrix = _check_indices(sp.csr_array(rows, shape=shape))
        names, groups = parts["names"].tolist(), parts["groups"].tolist()
        cells = parts["cell_names"].tolist() if "cell_names" in parts else None
        workload = Workload(matrix, names, groups, domain_from_arrays(parts), cells)
    except DualmechError:
        raise
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise InvalidInputError(f"the workload's arrays do not fit together: {error}") from error
    if workload.shape != shape:
        raise InvalidInputError(f"workload_matrix must have shape {shape}, got {workload.shape}")
    return workload


def _check_indices(matrix: object) -> Any:
    """Return a sparse matrix whose indices all lie inside it; scipy checks the others only when asked."""
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)
    return matrix


def _unpack(path: FilePath) -> Workload:
    arrays = read_archive(path, {"schema", "format"})
    if "schema" in arrays:
        return workload_from_arrays(read_npz(path, SCHEMA, (VERSION,)))
    if "format" not in arrays:
        raise FileFormatError(
            f"{path}: holds neither a {SCHEMA!r} nor a scipy sparse matrix, but arrays {listed_names(path)}"
        )
    read_archive(path)  # checks sizes, which scipy does not
    with opened(path) as handle, decoding_errors(path, ".npz"):
        return Workload(_check_indices(sp.load_npz(handle)))


def _read_npy(path: FilePath) -> npt.NDArray[np.generic]:
    with opened(path) as handle, decoding_errors(path, ".npy"):
        return read_array(handle, os.fstat(handle.fileno()).st_size)


def _read_mtx(path: FilePath) -> Array | sp.csr_array:
    with decoding_errors(path, ".mtx"):
        return read_matrix_market(path)


def _read_array(path: FilePath, name: str, suffix: str) -> npt.NDArray[np.generic]:
    if suffix == ".csv":
        return csv.read_table(path).values
    if suffix == ".npz":
        arrays = read_archive(path, {name})
        require(path, arrays, name)
        return arrays[name]
    if suffix == ".npy":
        return _read_npy(path)
    matrix = _read_mtx(path)
    if matrix.shape[0] * matrix.shape[1] > MAX_DENSE_ENTRIES:
        raise InvalidInputError(f"{name} of shape {matrix.shape} is too large for a dense matrix")
    return linalg.to_dense(matrix)


def _suffix(path: FilePath, allowed: Sequence[str] = SUFFIXES) -> str:
    check_path(path)
    suffix = PurePath(path).suffix.lower()
    if suffix not in allowed:
        endings = " or ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))
        raise FileFormatError(f"{path}: must end in {endings}")
    return suffix
