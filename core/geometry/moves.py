"""Differences of neighbouring data sets: how far they move queries, and what of that may be rounding."""

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

CHUNK = 4096  # neighbours whose effect on the queries is written out at a time

UNMOVED = (
    "neighbours must change at least one query; none does, so every answer can be released exactly: publish the sums "
    "as they are, or state neighbours that change some, such as add-remove"
)


def as_neighbour_matrix(neighbours: NeighboursLike, cells: int, domain: Domain | None = None) -> Matrix | None:
    """Return differences of neighbouring data sets, one per column, also from words; None stands for the identity."""
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
    """Yield, from a first pair of neighbours on, ``|W U|`` for the next few and what of it may be rounding."""
    for start in range(0, neighbours.shape[1], CHUNK):
        columns = neighbours[:, start : start + CHUNK]
        reach = linalg.to_dense(abs(matrix) @ abs(columns))
        yield start, np.abs(linalg.to_dense(matrix @ columns)), 8 * matrix.shape[1] * linalg.EPS * reach


def without_rounding(rows: Array) -> Array:
    """Return orthonormal rows with zero for entries that are rounding alone: a difference of two is no move."""
    return np.where(np.abs(rows) > max(8, rows.shape[1]) * linalg.EPS, rows, 0.0)


def moves_between(basis: Array, neighbours: Matrix | None) -> tuple[Array, Array | None]:
    """Return ``B U``, with zero for entries that are rounding alone, and what each may be off; exact where U is I."""
    if neighbours is None:
        return basis, None
    moves, rounding = product(basis, neighbours)
    reach = linalg.to_dense(np.abs(basis) @ abs(neighbours))
    known = (rounding == 0) | (np.abs(moves) > 8 * basis.shape[1] * linalg.EPS * reach)
    kept = np.where(known, moves, 0.0)
    return kept, rounding + np.abs(moves - kept)


def product(left: Matrix, right: Matrix) -> tuple[Array, Array]:
    """Return a product, written out, and what each entry may be off: 0 where all numbers are whole, and not too large.

    Where a column has two entries at most, both powers of 2, as with replaced records, the one sum is rounded.
    """
    values, reach = linalg.to_dense(left @ right), linalg.to_dense(abs(left) @ abs(right))
    if _is_whole(left) and _is_whole(right) and reach.max(initial=0.0) <= 2**53:
        return values, np.zeros_like(values)
    terms = int(np.max(np.asarray((abs(right) > 0).sum(axis=0)), initial=0))
    entries = right.data if sp.issparse(right) else right[right != 0]
    if terms <= 2 and np.all(np.abs(np.frexp(entries)[0]) == 0.5):
        return values, linalg.EPS * np.abs(values)
    return values, terms * linalg.EPS * reach


def _is_whole(matrix: Matrix) -> bool:
    entries = matrix.data if sp.issparse(matrix) else matrix
    return bool(np.all(entries == np.rint(entries)))


def unmoved_directions(moves: Array) -> Array:
    """Return orthonormal rows f with ``f B U = 0``, units of the basis rows ignored; none where all are moved."""
    norms = np.linalg.norm(moves, axis=1)
    units = np.where(norms > 0, norms, 1.0)
    lengths = np.linalg.norm(moves / units[:, None], axis=0)
    scaled = moves / units[:, None] / np.where(lengths > 0, lengths, 1.0)
    small = scipy.linalg.qr(scaled.T, mode="r", check_finite=False)[0][: len(moves)]
    if _clearly_regular(small, max(moves.shape)):
        return np.zeros((0, len(moves)))
    _, values, vectors = linalg.svd(small, full_matrices=True)
    still = vectors[linalg.numerical_rank(values, moves.shape) :] / units
    if not len(still):
        return still
    return np.ascontiguousarray(scipy.linalg.qr(still.T, mode="economic", check_finite=False)[0].T)


def _clearly_regular(triangle: Array, size: int) -> bool:
    """Return whether a triangular matrix (k, k) has full rank by an estimate of its condition, k² operations.

    It stands for a matrix with `size` rows or columns. The estimate of ``1 / κ_1`` is rarely more than ten times too
    high, and ``κ_2 ≤ k κ_1``.
    """
    rows, columns = triangle.shape
    if rows < columns:
        return False
    estimate, _ = scipy.linalg.lapack.dtrcon(triangle)
    return bool(estimate > 1000 * rows * linalg.rank_tolerance(size))


# Neighbours that only a matrix of differences holds: which problems take them, and what bounds them elsewhere.


LARGEST_DENSE = 2**12
"""Largest rank up to which ``auto`` takes a matrix of noise, and most cells where blocks cannot carry a relation."""


def on_matrix(workload: Workload, kind: str, differences: object) -> str:
    """Return ``dense``, which alone takes a basis, or differences of neighbours in a matrix.

    Raises `InvalidInputError` for another geometry and for differences that are too many, with a bound that holds.
    """
    reach, pairs = 1.0, workload.shape[1]
    if differences is not None:
        checked = as_neighbour_matrix(differences, workload.shape[1])
        if checked is not None:
            reach, pairs = float(np.max(abs(checked).sum(axis=0))), checked.shape[1]
    if kind not in ("auto", "dense"):
        raise InvalidInputError(
            f"a basis and a matrix of neighbours are for geometry 'dense', not for {kind!r}"
            f"{'' if differences is None else bound_words(reach, kind)}"
        )
    if differences is not None:
        _refuse_large(workload, f"{pairs} differences", pairs, reach, kind == "dense")
    return "dense"


def check_relation(relation: Relation, workload: Workload, named: bool) -> None:
    """Refuse neighbours by a rule where they have to be written out and are too many.

    Raises `GeometryError`, with a bound that holds there.
    """
    _refuse_large(workload, str(relation), relation.columns(workload.shape[1], workload.domain), relation.reach, named)


def _refuse_large(workload: Workload, shown: str, pairs: int, reach: float, named: bool) -> None:
    rank = min(workload.shape)
    if rank * pairs <= MAX_DENSE_ENTRIES and (named or rank <= LARGEST_DENSE):
        return
    structured = "blocks" if workload.tabular() is not None else "stream"
    raise GeometryError(
        f"neighbours ({shown}) of a workload of rank up to {rank} are too many: they need a matrix of {rank} x {pairs} "
        f"here (limits: rank {LARGEST_DENSE}, {MAX_DENSE_ENTRIES} entries){bound_words(reach, structured)}"
    )


def bound_words(reach: float, kind: str) -> str:
    """Say what bounds differences whose entries add up to `reach`: as many records in one cell cost the most.

    For z with ``Σ|z_i| ≤ N``, ``z'Cz ≤ N² max_i C_ii``, since z lies in the hull of ``± N e_i``.
    """
    most = math.ceil(reach)
    if kind == "blocks":
        return f"; neighbours='add-remove:{most}' bounds them and keeps the structure"
    return f"; solve for one record added or removed: {most**2} times its squared cost bounds them"
