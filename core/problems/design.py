"""Design queries: a workload written over them, the load they put on neighbours, and least squares from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy  # it loads fft when that is used
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.moves import as_neighbour_matrix, product
from dualmech.immutable import freeze
from dualmech.mechanisms.costs import PseudoInverse
from dualmech.neighbours import ADD_REMOVE, NeighboursLike, Relation
from dualmech.validate import Array, Matrix
from dualmech.verified import UPWARDS, Enclosure, sum_rounding
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload, check_asks, check_workload
from dualmech.workloads.streams import RangeWorkload, SineWorkload

# What weights of design queries spend between neighbours: sensitivities as a matrix, or as fast transforms.


TRANSFORM = 64
"""A Fourier transform of length N is off by this many roundings times ``log₂ 4N`` at most, in Euclidean norm."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenLoads:
    """Sensitivities as a matrix, moves raised to 2 / p; each move of a query is off by its margin at most."""

    matrix: Array
    margin: Array  # (k,)
    power: int  # p, 1 where noise is Gaussian

    @property
    def shape(self) -> tuple[int, int]:
        """Number of design queries, and of pairs of neighbours."""
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def largest(self) -> Array:
        """The largest sensitivity of each design query (k,)."""
        return np.asarray(self.matrix.max(axis=1))

    def reach(self, weights: Array) -> tuple[Array, Array]:
        """Return ``N y`` (k,) for weights y of sum 1, and what no entry exceeds but for the rounding of the sums."""
        sums = self.matrix @ weights
        raised = (np.sqrt(sums) + self.margin) ** 2 if self.power == 1 else sums + self.margin
        return sums, raised

    def spent(self, weights: Array) -> tuple[Array, float]:
        """Return ``N'u`` (s,), infinite weights left out, and an allowance for rounding, relative to 1."""
        weights = np.where(np.isinf(weights), 0.0, weights)
        # By Cauchy's inequality where moves are squared: ``Σ u m² ≤ 1`` and each m is off by its margin at most.
        moved = 2 * np.sqrt(weights @ self.margin**2) if self.power == 1 else weights @ self.margin
        return self.matrix.T @ weights, float(moved + 2 * len(weights) * linalg.EPS)


@dataclass(frozen=True, slots=True, eq=False)
class SineLoads:
    """Squared sines ``2 sin²(π k i / N) / N = (1 - cos(2 π k i / N)) / N``, ``N = d + 1``: a product is a transform.

    The matrix is symmetric, and its rows k and N - k are the same.
    """

    cells: int  # d

    @property
    def shape(self) -> tuple[int, int]:
        return self.cells, self.cells

    @property
    def matrix(self) -> Array:
        """N written out; refused where it is too large."""
        if self.cells**2 > MAX_DENSE_ENTRIES:
            raise InvalidInputError(
                f"sensitivities of {self.cells} sines are too many for a matrix (limit {MAX_DENSE_ENTRIES} entries)"
            )
        period, order = self.cells + 1, np.arange(1, self.cells + 1)
        squares = 2 * np.sin(np.pi / period * np.arange(period)) ** 2 / period
        return freeze(squares[np.multiply.outer(order, order) % period])

    @property
    def largest(self) -> Array:
        """The largest sensitivity of each sine, at most ``2 / N`` (k,)."""
        return np.full(self.cells, 2 / (self.cells + 1))

    def reach(self, weights: Array) -> tuple[Array, Array]:
        """Return ``N y`` (k,), and what no entry exceeds."""
        sums, error = self._product(weights)
        return sums, sums + error

    def spent(self, weights: Array) -> tuple[Array, float]:
        """Return ``N'u`` (s,), infinite weights left out, and what its entries may be off by."""
        return self._product(np.where(np.isinf(weights), 0.0, weights))

    def _product(self, vector: Array) -> tuple[Array, float]:
        period = self.cells + 1
        with np.errstate(over="ignore", invalid="ignore"):
            half = scipy.fft.rfft(np.r_[0.0, vector]).real
            falls = half[0] - half[1:]
            sums = np.r_[falls, falls[: self.cells - len(falls)][::-1]] / period
            length = np.sqrt(period) * np.linalg.norm(vector)
            error = 2 * TRANSFORM * np.log2(4 * period) * linalg.EPS * length / period
        return np.maximum(sums, 0.0), float(error)


SUMMED = 256  # rows of L whose squares are summed at a time

CHUNK = 4096  # queries of the workload that are written over the design at a time

CLOSE, CLOSE_WHERE_LARGE, LARGE = 5e-13, 1e-9, 2**21
"""What columns of L may be off by, relative, before the workload is written over the design in twice the precision.

It may be more where a product has that many terms."""


@dataclass(frozen=True, slots=True, eq=False)
class DesignGeometry:
    """``W = L Q`` with ``L = W Q⁺``, and the moves ``Q U`` between neighbours."""

    workload: Workload  # W, (m, d)
    design: Array  # (k, d) Q
    # (d, s) U, differences of neighbouring data sets up to sign; None stands for the identity
    neighbours: Matrix | None
    roots: Array  # (k,) euclidean norms of the columns of L, exactly 0 where no entry of a column is more than rounding
    moves: Array  # (k, s) |Q U|
    # root_rounding, move_rounding: (k,) allowances for the rounding of `roots`, and of the entries of a row of
    # `moves`, absolute
    root_rounding: Array
    move_rounding: Array
    independent: bool  # whether the rows of Q that are not all zero are linearly independent

    name: ClassVar[str] = "written"

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def of(
        cls, workload: Workload, design: Workload | Matrix | npt.ArrayLike, neighbours: NeighboursLike
    ) -> DesignGeometry:
        """Check the three against each other and write the workload over the design."""
        check_workload(workload)
        check_asks(workload)
        queries = _design(design, workload.shape[1])
        checked = as_neighbour_matrix(neighbours, workload.shape[1], workload.domain)
        inverse = PseudoInverse.of(queries)
        roots, root_rounding = _column_norms(workload, inverse, np.linalg.norm(queries, axis=1))
        moves, move_rounding = _moves(queries, checked)
        if not np.any(moves[roots > 0] > move_rounding[roots > 0, None]):
            raise InvalidInputError(
                "neighbours must change at least one design query that the workload needs; none does, so every "
                "answer can be released exactly"
            )
        return cls(workload, queries, checked, roots, moves, root_rounding, move_rounding, inverse.independent)

    def loads(self, power: int) -> WrittenLoads:
        """Return the sensitivities: squared moves for Gaussian noise, where the power is 1, else the moves."""
        matrix = self.moves**2 if power == 1 else self.moves
        return WrittenLoads(freeze(matrix), self.move_rounding, power)

    @property
    def needed(self) -> npt.NDArray[np.intp]:
        """Indices of the design queries that serve the workload: their columns of L are not zero."""
        return np.flatnonzero(self.roots)

    @property
    def unmoved(self) -> npt.NDArray[np.intp]:
        """Indices of the design queries that no neighbour changes, all-zero ones among them."""
        return np.flatnonzero(~np.any(self.moves, axis=1))

    @property
    def weighed(self) -> npt.NDArray[np.intp]:
        """Indices of the design queries whose weights are to be found: needed, and changed by some neighbours."""
        return np.setdiff1d(self.needed, self.unmoved)

    def spread(self, weights: Array) -> Array:
        """Return weights (k,) from the weights of the `weighed`: 0 for queries not needed, infinite for free ones."""
        whole = np.zeros(len(self.design))
        whole[np.intersect1d(self.needed, self.unmoved)] = np.inf
        whole[self.weighed] = weights
        return whole

    def left_out(self, weights: Array, reach: Array, power: int, total: float) -> float:
        """Return what design queries may add to a total, relative, whose costs of 0 may be squares of their rounding.

        One with weight t adds ``r² / t^p``. Where it has none, a further weight t would take ``p s t`` from the others,
        s being its largest sensitivity: the best t balances both.
        """
        others = np.setdiff1d(np.flatnonzero(self.root_rounding), self.needed)
        errors, powers = self.root_rounding[others] ** 2 / total, weights[others] ** power
        balanced = (power + 1) * (errors * reach[others] ** power) ** (1 / (power + 1))
        added = np.divide(errors, powers, out=np.full(len(errors), np.inf), where=powers > 0)
        return float(np.minimum(added, balanced).sum())

    def noise(self, precisions: Array) -> tuple[Array, Array]:
        """Return independent rows B spanning the design queries of positive precision, and the noise on B x.

        The noise comes by least squares from independent noise of variance 1 / precision on each of these
        queries; it is returned as a root Y of its covariance ``Y Y'``.
        """
        kept = np.flatnonzero((precisions > 0) & np.any(self.design, axis=1))
        rows, deviations = self.design[kept], 1 / np.sqrt(precisions[kept])
        if self.independent:
            return rows, np.diag(deviations)
        basis, exact = linalg.row_space(rows), deviations == 0
        # As they are given, where they can be: what neighbours do not change exactly, they may change up to rounding.
        known = rows[exact]
        if len(known) and linalg.row_rank(known) < len(known):
            known = linalg.row_space(known)
        # What is exact has basis rows of its own, without any noise; the others do not see it.
        unknown = scipy.linalg.null_space(known @ basis.T).T @ basis if len(known) else basis
        directions, root = least_squares(rows[~exact] @ unknown.T / deviations[~exact, None])
        return np.vstack([known, unknown]), np.vstack([np.zeros((len(known), len(root))), directions.T @ root])


def least_squares(strategy: Array) -> tuple[Array, Array]:
    """Return a basis N (r, d) of the rows of A, and Y with ``Y Y'`` the covariance of the noise on ``N x``.

    That noise comes by least squares from unit noise on ``A x``: ``N A⁺`` has the form ``Y O'`` with
    orthonormal columns O. N is the identity where A has full column rank, else its rows are orthonormal.
    """
    cells = strategy.shape[1]
    if len(strategy) >= cells:
        triangle = linalg.triangle(strategy)
        if np.all(np.diagonal(triangle)):
            root = _inverse(triangle)
            if np.linalg.norm(triangle) * np.linalg.norm(root) < 1 / linalg.RANK_CHECK_TOL:
                return np.eye(cells), root
    basis = linalg.row_space(strategy)
    return basis, _inverse(linalg.triangle(strategy @ basis.T))


def answer_rows(workload: Workload, basis: Array, right: Array, what: str) -> Iterator[tuple[int, Array]]:
    """Yield the rows of ``W · right``, many at a time, each time with the number of the first.

    Raises `InvalidInputError` for a query outside the span of the orthonormal rows `basis`, which are the row space
    of `what`; it is named.
    """
    complete = len(basis) == workload.shape[1]
    for start in range(0, workload.shape[0], CHUNK):
        rows = workload.matrix[start : start + CHUNK]
        if not complete:
            dense = linalg.to_dense(rows)
            missed = np.linalg.norm(dense - (dense @ basis.T) @ basis, axis=1)
            outside = np.flatnonzero(missed > linalg.SPAN_TOLERANCE * np.linalg.norm(dense, axis=1))
            if outside.size:
                name = workload.names[start + int(outside[0])]
                raise InvalidInputError(f"workload: query {name!r} lies outside the row space of the {what}")
        yield start, linalg.to_dense(rows @ right)


def _column_norms(workload: Workload, inverse: PseudoInverse, lengths: Array) -> tuple[Array, Array]:
    """Return the norms of the columns of ``W Q⁺``, 0 where every entry may be 0, and what they may be off by.

    Products of doubles serve where that is little next to the lengths of the design queries, else twice the precision.
    """
    roots, rounding = _plain_norms(workload, inverse, lengths)
    close = CLOSE if workload.shape[0] * inverse.design.size <= LARGE else CLOSE_WHERE_LARGE
    if rounding @ lengths <= close * (roots @ lengths) and np.all((rounding <= 1e3 * close * roots) | (roots == 0)):
        return roots, rounding
    return _enclosed_norms(workload, inverse, lengths)


def _plain_norms(workload: Workload, inverse: PseudoInverse, lengths: Array) -> tuple[Array, Array]:
    norms, matrix = workload.row_norms() * UPWARDS, inverse.matrix
    # Zeros are added without any rounding.
    terms = np.count_nonzero(matrix, axis=0)
    per_norm = inverse.rounding + sum_rounding(terms) * np.linalg.norm(matrix, axis=0)
    negligible = per_norm * lengths <= linalg.SPAN_TOLERANCE
    squares = np.zeros(matrix.shape[1])
    for start, rows in answer_rows(workload, inverse.basis, matrix, "design"):
        with np.errstate(invalid="ignore"):  # where nothing is proven, nothing is negligible
            small = np.abs(rows) <= norms[start : start + len(rows), None] * per_norm
        rows[small & negligible] = 0.0
        squares += _squares(rows)
    roots = np.sqrt(squares)
    # What was set to 0 is at most what it may be off by.
    off = 2 * per_norm * np.linalg.norm(norms) + _square_rounding(len(norms)) * roots
    return roots, np.where(np.any(matrix, axis=0), off * UPWARDS, 0.0)


def _enclosed_norms(workload: Workload, inverse: PseudoInverse, lengths: Array) -> tuple[Array, Array]:
    """Return both in twice the precision; what no pseudoinverse is proven for may be off by anything."""
    enclosed = inverse.enclosed()
    if enclosed is None:
        roots, rounding = _plain_norms(workload, inverse, lengths)
        return roots, np.where(np.any(inverse.matrix, axis=0), np.inf, rounding)
    squares, off = np.zeros(len(lengths)), np.zeros(len(lengths))
    for start in range(0, workload.shape[0], CHUNK):
        rows = Enclosure.of(linalg.to_dense(workload.matrix[start : start + CHUNK])) @ enclosed
        left = np.abs(rows.low) + rows.radius
        unclear = np.abs(rows.high) <= left
        kept = np.where(unclear, 0.0, rows.high)
        left = np.where(unclear, np.abs(rows.high) + left, left)
        squares, off = squares + _squares(kept), off + _squares(left)
    roots = np.sqrt(squares)
    return roots, (np.sqrt(off) + _square_rounding(workload.shape[0]) * roots) * UPWARDS


def _squares(rows: Array) -> Array:
    """Return the squared norms of columns, a few rows at a time, so that no sum has many terms."""
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), SUMMED):
        part = rows[start : start + SUMMED]
        total += np.einsum("jk,jk->k", part, part)
    return total


def _square_rounding(count: int) -> float:
    """Return what the root of `_squares` of so many rows may be off by, relative."""
    return sum_rounding(min(count, SUMMED) + -(-count // SUMMED) + 4)


def _moves(design: Array, neighbours: Matrix | None) -> tuple[Array, Array]:
    """Return |Q U| and what the entries of each row may be off by."""
    if neighbours is None:
        return np.abs(design), np.zeros(len(design))
    moved, rounding = product(design, neighbours)
    moves, off = np.abs(moved), rounding.max(axis=1)
    # What may be moved is not taken for unmoved: it would be released exactly.
    unclear = ~np.any(moves, axis=1) & (off > 0)
    moves[unclear] = off[unclear, None]
    return moves, off


def _inverse(triangle: Array) -> Array:
    return np.asarray(scipy.linalg.solve_triangular(triangle, np.eye(len(triangle)), check_finite=False))


def _design(design: Workload | Matrix | npt.ArrayLike, cells: int) -> Array:
    checked = design.matrix if isinstance(design, Workload) else validate.matrix(design=design)
    if checked.shape[1] != cells:
        raise InvalidInputError(f"design must have {cells} columns, one per cell, got {checked.shape[1]}")
    if checked.shape[0] * cells > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"design of shape {checked.shape[0]} x {cells} is too large for a dense matrix "
            f"(limit {MAX_DENSE_ENTRIES} entries)"
        )
    validate.moderate(design=checked)
    queries = checked.toarray() if sp.issparse(checked) else np.array(checked)
    if not np.any(queries):
        raise InvalidInputError("design must have at least one query that is not all zero")
    return queries


# All ranges over their eigen-queries, the sines: every cost in closed form, every product a fast transform.


@dataclass(frozen=True, slots=True, eq=False)
class SineDesign:
    """``W = L Q`` for all ranges and the sines Q, which are orthonormal: what `DesignGeometry` is, without a matrix."""

    workload: Workload
    design: SineWorkload

    name: ClassVar[str] = "sines"
    neighbours: ClassVar[None] = None
    independent: ClassVar[bool] = True

    @classmethod
    def of(cls, workload: object, design: object, neighbours: NeighboursLike, privacy: str) -> SineDesign | None:
        """Return the geometry of all ranges and the sines over them; None for any other question."""
        relation = Relation.of(neighbours) if isinstance(neighbours, str) else neighbours
        plain = relation is None or (isinstance(relation, Relation) and relation == ADD_REMOVE)
        if not (isinstance(workload, RangeWorkload) and isinstance(design, SineWorkload)):
            return None
        if not plain or privacy != "approximate" or workload.shape[1] != len(design):
            return None
        return cls(workload, design)

    def loads(self, power: int) -> SineLoads:
        """Return the sensitivities: squared sines."""
        return SineLoads(len(self.design))

    @property
    def roots(self) -> Array:
        """Norms of the columns of L (k,): roots of the eigenvalues ``N / (4 sin²(π k / 2N))``, ``N = d + 1``."""
        period = len(self.design) + 1
        return np.asarray(np.sqrt(period) / 2 / np.sin(np.pi / (2 * period) * np.arange(1, period)))

    @property
    def root_rounding(self) -> Array:
        """Allowance for the rounding of `roots` (k,), absolute."""
        return 8 * linalg.EPS * self.roots

    @property
    def needed(self) -> npt.NDArray[np.intp]:
        """Indices of the sines that serve the workload: all."""
        return np.arange(len(self.design))

    @property
    def unmoved(self) -> npt.NDArray[np.intp]:
        """Indices of the sines that no neighbour changes: none."""
        return np.zeros(0, dtype=np.intp)

    @property
    def weighed(self) -> npt.NDArray[np.intp]:
        """Indices of the sines whose weights are to be found: all."""
        return self.needed

    def spread(self, weights: Array) -> Array:
        """Return the weights of all sines from the weights of the `weighed`."""
        return weights

    def left_out(self, weights: Array, reach: Array, power: int, total: float) -> float:
        """Return what sines that are not needed may add to a total: nothing."""
        return 0.0

    def noise(self, precisions: Array) -> tuple[Array, Array]:
        """Return the sines written out and a root of the covariance of the noise on them; refused where too large."""
        return self.design.matrix, np.diag(1 / np.sqrt(precisions))
