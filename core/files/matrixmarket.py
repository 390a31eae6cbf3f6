"""Matrix Market text (``.mtx``): real matrices, sparse (``coordinate``) or dense (``array``).

Read here and not with scipy, whose reader can end the whole process on a broken file (seen with 1.17: a
segmentation fault in one of its threads). `dualmech.files` reads and writes whole files with this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike

import numpy as np
import scipy.sparse as sp

from dualmech.errors import FileFormatError, InvalidInputError
from dualmech.validate import Array

Lines = Iterator[tuple[int, list[str]]]

MIRRORS = {"general": 0, "symmetric": 1, "skew-symmetric": -1}
"""By what an entry below the diagonal is multiplied to give the one above; 0 where both are written."""

FIELDS = ("real", "integer", "pattern")


def read_matrix_market(path: str | PathLike[str]) -> Array | sp.csr_array:
    """Read a real Matrix Market file: sparse if it lists coordinates, dense if it lists an array.

    A fault in the file raises `FileFormatError` with its line; `OSError` is passed on.
    """
    with open(path, encoding="utf-8") as handle:
        try:
            banner = handle.readline().lower().split()
            is_sparse, field, mirror = _banner(banner)
            split = ((number, line.split()) for number, line in enumerate(handle, start=2))
            lines = ((number, parts) for number, parts in split if parts and not parts[0].startswith("%"))
            return _sparse(lines, field, mirror) if is_sparse else _dense(lines, mirror)
        except InvalidInputError as error:
            raise FileFormatError(f"{path}: {error}") from error
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}: is not a readable .mtx file: not text") from error


def format_matrix_market(matrix: Array | sp.csr_array) -> bytes:
    """Return the Matrix Market text of a matrix; numbers keep every bit."""
    rows, columns = matrix.shape
    if sp.issparse(matrix):
        entries = sp.coo_array(matrix)
        lines = [f"%%MatrixMarket matrix coordinate real general\n{rows} {columns} {entries.nnz}"]
        triples = zip(entries.row.tolist(), entries.col.tolist(), entries.data.tolist(), strict=True)
        lines += [f"{row + 1} {column + 1} {value!r}" for row, column, value in triples]
    else:
        lines = [f"%%MatrixMarket matrix array real general\n{rows} {columns}"]
        lines += [repr(value) for value in np.ravel(matrix, order="F").tolist()]
    return ("\n".join(lines) + "\n").encode("ascii")


def _banner(words: list[str]) -> tuple[bool, str, int]:
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise InvalidInputError("line 1: must be '%%MatrixMarket matrix', a layout, a field and a symmetry")
    layout, field, symmetry = words[2:]
    if layout not in ("coordinate", "array"):
        raise InvalidInputError(f"line 1: layout must be coordinate or array, got {layout!r}")
    if field not in FIELDS or (layout == "array" and field == "pattern"):
        raise InvalidInputError(
            f"line 1: field must be real, integer, or a pattern of coordinates, got {field!r}"
        )
    if symmetry not in MIRRORS:
        raise InvalidInputError(f"line 1: symmetry must be one of {', '.join(MIRRORS)}, got {symmetry!r}")
    return layout == "coordinate", field, MIRRORS[symmetry]


def _sizes(lines: Lines, count: int, mirror: int) -> list[int]:
    number, parts = next(lines, (0, []))
    sizes = [_index(part, number) for part in parts]
    if len(sizes) != count or 0 in sizes[:2]:
        raise InvalidInputError(f"line {number}: must hold {count} sizes, got {' '.join(parts) or 'nothing'}")
    if mirror and sizes[0] != sizes[1]:
        raise InvalidInputError(
            f"line {number}: a symmetric matrix must be square, got {sizes[0]} x {sizes[1]}"
        )
    return sizes


def _sparse(lines: Lines, field: str, mirror: int) -> sp.csr_array:
    rows, columns, count = _sizes(lines, 3, mirror)
    width = 2 if field == "pattern" else 3
    where: list[tuple[int, int]] = []
    values: list[float] = []
    for number, parts in lines:
        if len(parts) != width:
            raise InvalidInputError(f"line {number}: must hold {width} numbers, got {' '.join(parts)}")
        row, column = _index(parts[0], number), _index(parts[1], number)
        if not (1 <= row <= rows and 1 <= column <= columns):
            raise InvalidInputError(f"line {number}: entry ({row}, {column}) lies outside {rows} x {columns}")
        where.append((row - 1, column - 1))
        values.append(_value(parts[2], number) if width == 3 else 1.0)
    if len(where) != count:
        raise InvalidInputError(f"must have {count} entries, got {len(where)}")
    index, data = np.array(where, dtype=np.int64).reshape(-1, 2).T, np.array(values)
    if mirror:
        off = index[0] != index[1]
        index, data = np.hstack([index, index[::-1, off]]), np.concatenate([data, mirror * data[off]])
    return sp.csr_array(sp.coo_array((data, (index[0], index[1])), shape=(rows, columns)))


def _dense(lines: Lines, mirror: int) -> Array:
    rows, columns = _sizes(lines, 2, mirror)
    values = np.array([_value(part, number) for number, parts in lines for part in parts])
    # A skew-symmetric array leaves out its diagonal, which is 0.
    expected = rows * columns if mirror == 0 else rows * (rows + mirror) // 2
    if len(values) != expected:
        raise InvalidInputError(f"must have {expected} entries, got {len(values)}")
    if mirror == 0:
        return np.ascontiguousarray(values.reshape(columns, rows).T)
    # The lower triangle is written by columns: the upper one of the transpose, by rows.
    upper = np.zeros((rows, rows))
    upper[np.triu_indices(rows, k=0 if mirror == 1 else 1)] = values
    lower = upper.T
    return np.asarray(lower + mirror * np.triu(upper, k=1))


def _index(text: str, number: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidInputError(f"line {number}: {text!r} is not a whole number")
    return int(text)


def _value(text: str, number: int) -> float:
    try:
        return float("" if "_" in text else text)
    except ValueError:
        raise InvalidInputError(f"line {number}: {text!r} is not a number") from None
