"""Sensitivity vectors: differences between neighbouring data sets, in queries and in a basis, with error bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import GeometryError, InvalidInputError
from dualmech.immutable import freeze
from dualmech.neighbours import NeighboursLike, Relation
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload
from dualmech.workloads.domain import Domain

CHUNK = 4096  # neighbours that are multiplied with the queries at a time

UNMOVED = (
    "neighbours must change at least one query; none does, so every answer can be released exactly: publish the exact "
    "sums, or state neighbours that change some, such as add-remove"
)


def as_neighbour_matrix(neighbours: NeighboursLike, cells: int, domain: Domain | None = None) -> Matrix | None:
    """Return the differences of neighbouring data sets (d, s), also from words; None for the identity."""
    relation = Relation.of(neighbours) if isinstance(neighbours, str) else neighbours
    if isinstance(relation, Relation):
        return freeze(relation.matrix(cells, domain))
    if neighbours is None:
        return None
    checked = validate.matrix(neighbours=neighbours)
    validate.moderate(neighbours=checked)
    if checked.shape[0] != cells:
        raise InvalidInputError(f"neighbours must have {cells} rows, one per cell, got {checked.shape[0]}")
    if linalg.is_identity(checked):
        return None
    return freeze(sp.csc_array(checked)) if sp.issparse(checked) else checked


def changes_between(matrix: Matrix, neighbours: Matrix) -> Iterator[tuple[int, Array, Array]]:
    """Yield the index of a first pair of neighbours, ``|W U|`` for the next pairs, and rounding-error bounds."""
    for start in range(0, neighbours.shape[1], CHUNK):
        columns = neighbours[:, start : start + CHUNK]
        magnitude = linalg.to_dense(abs(matrix) @ abs(columns))
        yield start, np.abs(linalg.to_dense(matrix @ columns)), 8 * matrix.shape[1] * linalg.EPS * magnitude


def without_rounding(rows: Array) -> Array:
    """Return orthonormal rows with entries of rounding size set to 0, so that differences of equal columns are 0."""
    return np.where(np.abs(rows) > max(8, rows.shape[1]) * linalg.EPS, rows, 0.0)


def moves_between(basis: Array, neighbours: Matrix | None) -> tuple[Array, Array | None]:
    """Return ``B U``, with entries of rounding size set to 0, and error bounds (None if U is the identity)."""
    if neighbours is None:
        return basis, None
    moves, rounding = product(basis, neighbours)
    magnitude = linalg.to_dense(np.abs(basis) @ abs(neighbours))
    is_nonzero = (rounding == 0) | (np.abs(moves) > 8 * basis.shape[1] * linalg.EPS * magnitude)
    truncated = np.where(is_nonzero, moves, 0.0)
    return truncated, rounding + np.abs(moves - truncated)


def product(left: Matrix, right: Matrix) -> tuple[Array, Array]:
    """Return a product as a dense array, and error bounds of its entries; 0 for integers that are not too large.

    For columns of at most two entries that are powers of 2, as for replaced records, only the sum is rounded.
    """
    values, magnitude = linalg.to_dense(left @ right), linalg.to_dense(abs(left) @ abs(right))
    if _is_whole(left) and _is_whole(right) and magnitude.max(initial=0.0) <= 2**53:
        return values, np.zeros_like(values)
    terms = int(np.max(np.asarray((abs(right) > 0).sum(axis=0)), initial=0))
    entries = right.data if sp.issparse(right) else right[right != 0]
    if terms <= 2 and np.all(np.abs(np.frexp(entries)[0]) == 0.5):
        return values, linalg.EPS * np.abs(values)
    return values, terms * linalg.EPS * magnitude


def _is_whole(matrix: Matrix) -> bool:
    entries = matrix.data if sp.issparse(matrix) else matrix
    return bool(np.all(entries == np.rint(entries)))


def unmoved_directions(moves: Array) -> Array:
    """Return orthonormal rows f with ``f B U = 0``: insensitive directions, for any units of the basis rows."""
    norms = np.linalg.norm(moves, axis=1)
    units = np.where(norms > 0, norms, 1.0)
    lengths = np.linalg.norm(moves / units[:, None], axis=0)
    scaled = moves / units[:, None] / np.where(lengths > 0, lengths, 1.0)
    triangle = scipy.linalg.qr(scaled.T, mode="r", check_finite=False)[0][: len(moves)]
    if _clearly_regular(triangle, max(moves.shape)):
        return np.zeros((0, len(moves)))
    _, values, vectors = linalg.svd(triangle, full_matrices=True)
    null_space = vectors[linalg.numerical_rank(values, moves.shape) :] / units
    if not len(null_space):
        return null_space
    return np.ascontiguousarray(scipy.linalg.qr(null_space.T, mode="economic", check_finite=False)[0].T)


def _clearly_regular(triangle: Array, size: int) -> bool:
    """Return whether a triangular factor (k, k) of a matrix has full rank, by a condition estimate in O(k²).

    The estimate of ``1 / κ_1`` is rarely more than ten times too high, and ``κ_2 ≤ k κ_1``.

    - `size`: the larger dimension of the matrix.
    """
    rows, columns = triangle.shape
    if rows < columns:
        return False
    estimate, _ = scipy.linalg.lapack.dtrcon(triangle)
    return bool(estimate > 1000 * rows * linalg.rank_tolerance(size))


# Neighbours that need a matrix of differences: supported problems, and bounds for the others.


LARGEST_DENSE = 2**12
"""Maximum rank of a dense geometry under ``auto``, and maximum number of cells for rules that blocks do not support."""


def on_matrix(workload: Workload, kind: str, differences: object) -> str:
    """Return ``dense``, the only geometry for a basis or a matrix of neighbours.

    Raises `InvalidInputError` for another geometry and for too many differences, with a relation that bounds them.
    """
    l1_norm, pairs = 1.0, workload.shape[1]
    if differences is not None:
        checked = as_neighbour_matrix(differences, workload.shape[1])
        if checked is not None:
            l1_norm, pairs = float(np.max(abs(checked).sum(axis=0))), checked.shape[1]
    if kind not in ("auto", "dense"):
        raise InvalidInputError(
            f"a basis and a matrix of neighbours are for geometry 'dense', not for {kind!r}"
            f"{'' if differences is None else bound_words(l1_norm, kind)}"
        )
    if differences is not None:
        _refuse_large(workload, f"{pairs} differences", pairs, l1_norm, kind == "dense")
    return "dense"


def check_relation(relation: Relation, workload: Workload, named: bool) -> None:
    """Refuse a rule of neighbours that needs too large a matrix: a `GeometryError` with a relation that bounds them."""
    _refuse_large(workload, str(relation), relation.columns(workload.shape[1], workload.domain), relation.reach, named)


def _refuse_large(workload: Workload, description: str, pairs: int, l1_norm: float, named: bool) -> None:
    rank = min(workload.shape)
    if rank * pairs <= MAX_DENSE_ENTRIES and (named or rank <= LARGEST_DENSE):
        return
    structured = "blocks" if workload.tabular() is not None else "stream"
    raise GeometryError(
        f"neighbours ({description}) of a workload of rank up to {rank} are too many: they need a matrix of {rank} x "
        f"{pairs} here (limits: rank {LARGEST_DENSE}, {MAX_DENSE_ENTRIES} entries){bound_words(l1_norm, structured)}"
    )


def bound_words(l1_norm: float, kind: str) -> str:
    """Name the relation ``add-remove:N`` that bounds differences z of an L1 norm of at most N.

    For z with ``Σ|z_i| ≤ N``, ``z'Cz ≤ N² max_i C_ii``, since z lies in the convex hull of ``± N e_i``.
    """
    records = math.ceil(l1_norm)
    if kind == "blocks":
        return f"; neighbours='add-remove:{records}' bounds them and keeps the structure"
    return f"; solve for one record added or removed: {records**2} times its squared cost bounds them"
