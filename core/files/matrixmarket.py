"""Matrix Market text (``.mtx``): real matrices, sparse (``coordinate``) or dense (``array``).

Written by scipy. Its reader is not used: on a file that ends in the middle of a number, as one does that was cut off,
it ends the whole process (1.17: a segmentation fault, also from memory), so numpy reads the numbers here.
"""

from __future__ import annotations

import io
from os import PathLike

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.errors import InvalidInputError
from dualmech.files.reading import opened_lines
from dualmech.validate import Array

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
    with opened_lines(path) as given:
        words = next(given, "").lower().split()
        lines = [line for line in given if line.strip() and not line.lstrip().startswith("%")]
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
    matrix = _sparse_matrix(
        *(_array if layout == "array" else _coordinates)(numbers, sizes, width, mirror), mirror
    )
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


def _sparse_matrix(
    data: Array, index: npt.NDArray[np.int64], shape: tuple[int, int], mirror: int
) -> sp.csr_array:
    if mirror:
        off = index[0] != index[1]
        index, data = np.hstack([index, index[::-1, off]]), np.concatenate([data, mirror * data[off]])
    return sp.csr_array(sp.coo_array((data, (index[0], index[1])), shape=shape))
