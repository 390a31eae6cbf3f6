"""Design queries: the workload on their basis, their sensitivities, and least squares from their noisy answers."""

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

# Sensitivities of design queries, as a matrix or as fast transforms.

FFT_ERROR_FACTOR = 64
"""Error bound of a Fourier transform of length N in the Euclidean norm, in units of ``ε log₂ 4N``."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenLoads:
    """Sensitivities (k, s) as a matrix, ``|q n|^(2/p)``, with an error bound on ``|q n|`` for each query."""

    matrix: Array
    margin: Array  # (k,)
    power: int  # p, 1 for Gaussian noise

    @property
    def shape(self) -> tuple[int, int]:
        """Number of design queries, and of pairs of neighbours."""
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def largest(self) -> Array:
        """The largest sensitivity of each design query (k,)."""
        return np.asarray(self.matrix.max(axis=1))

    def reach(self, weights: Array) -> tuple[Array, Array]:
        """Return ``N y`` (k,) for weights y of sum 1, and upper bounds, without the rounding error of the sums."""
        sums = self.matrix @ weights
        upper = (np.sqrt(sums) + self.margin) ** 2 if self.power == 1 else sums + self.margin
        return sums, upper

    def spent(self, weights: Array) -> tuple[Array, float]:
        """Return ``N'u`` (s,) over the finite weights, and an absolute error bound if ``N'u ≤ 1``."""
        weights = np.where(np.isinf(weights), 0.0, weights)
        # For squares, by Cauchy's inequality: ``Σ u m² ≤ 1``, and each m has an error of at most its margin.
        error = 2 * np.sqrt(weights @ self.margin**2) if self.power == 1 else weights @ self.margin
        return self.matrix.T @ weights, float(error + 2 * len(weights) * linalg.EPS)


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
        """N as a dense matrix; refused if it has too many entries."""
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
        """Return ``N y`` (k,) and upper bounds (k,)."""
        sums, error = self._product(weights)
        return sums, sums + error

    def spent(self, weights: Array) -> tuple[Array, float]:
        """Return ``N'u`` (s,) over the finite weights, and an absolute error bound."""
        return self._product(np.where(np.isinf(weights), 0.0, weights))

    def _product(self, vector: Array) -> tuple[Array, float]:
        period = self.cells + 1
        with np.errstate(over="ignore", invalid="ignore"):
            half = scipy.fft.rfft(np.r_[0.0, vector]).real
            falls = half[0] - half[1:]
            sums = np.r_[falls, falls[: self.cells - len(falls)][::-1]] / period
            length = np.sqrt(period) * np.linalg.norm(vector)
            error = 2 * FFT_ERROR_FACTOR * np.log2(4 * period) * linalg.EPS * length / period
        return np.maximum(sums, 0.0), float(error)


SUM_CHUNK = 256  # rows of L whose squares are added in one partial sum

QUERIES_CHUNK = 4096  # queries of the workload whose rows of L are computed together

NORM_TOL, LARGE_NORM_TOL, MAX_SMALL_ENTRIES = 5e-13, 1e-9, 2**21
"""Largest relative error bounds on column norms of L in double precision; otherwise twice the precision is used.

The second holds for more queries times design entries than the third."""


@dataclass(frozen=True, slots=True, eq=False)
class DesignGeometry:
    """``W = L Q`` with ``L = W Q⁺``, and the sensitivity vectors ``Q U`` of neighbours."""

    workload: Workload  # W, (m, d)
    design: Array  # (k, d) Q
    # (d, s) U, differences of neighbouring data sets up to sign; None is the identity
    neighbours: Matrix | None
    roots: Array  # (k,) Euclidean norms of the columns of L, exactly 0 for columns of rounding errors
    moves: Array  # (k, s) |Q U|
    # root_rounding, move_rounding: (k,) absolute error bounds on `roots`, and on the entries of each row of `moves`
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
        """Check the arguments and represent the workload on the design."""
        check_workload(workload)
        check_asks(workload)
        queries = _design(design, workload.shape[1])
        checked = as_neighbour_matrix(neighbours, workload.shape[1], workload.domain)
        inverse = PseudoInverse.of(queries)
        roots, root_rounding = _column_norms(workload, inverse, np.linalg.norm(queries, axis=1))
        moves, move_rounding = _moves(queries, checked)
        if not np.any(moves[roots > 0] > move_rounding[roots > 0, None]):
            raise InvalidInputError(
                "neighbours must change at least one design query that the workload needs: all are equal for all "
                "neighbours, so that every answer can be released exactly"
            )
        return cls(workload, queries, checked, roots, moves, root_rounding, move_rounding, inverse.independent)

    def loads(self, power: int) -> WrittenLoads:
        """Return the sensitivities: squared for Gaussian noise (power 1), otherwise absolute."""
        matrix = self.moves**2 if power == 1 else self.moves
        return WrittenLoads(freeze(matrix), self.move_rounding, power)

    @property
    def needed(self) -> npt.NDArray[np.intp]:
        """Indices of the design queries with a non-zero column of L."""
        return np.flatnonzero(self.roots)

    @property
    def unmoved(self) -> npt.NDArray[np.intp]:
        """Indices of the design queries that are equal for all neighbours, with all-zero ones."""
        return np.flatnonzero(~np.any(self.moves, axis=1))

    @property
    def weighed(self) -> npt.NDArray[np.intp]:
        """Indices of the design queries with unknown weights: needed, and changed by some neighbours."""
        return np.setdiff1d(self.needed, self.unmoved)

    def spread(self, weights: Array) -> Array:
        """Return weights (k,) from those of `weighed`: 0 for queries not needed, infinite for insensitive ones."""
        all_weights = np.zeros(len(self.design))
        all_weights[np.intersect1d(self.needed, self.unmoved)] = np.inf
        all_weights[self.weighed] = weights
        return all_weights

    def left_out(self, weights: Array, reach: Array, power: int, total: float) -> float:
        """Return a relative error bound on a total from the rounding errors r of column norms that were set to 0.

        A design query of weight t adds ``r² / t^p``. With weight 0, a weight t would cost the others ``p s t``, s its
        largest sensitivity: the optimal t balances both.
        """
        zeros = np.setdiff1d(np.flatnonzero(self.root_rounding), self.needed)
        errors, powers = self.root_rounding[zeros] ** 2 / total, weights[zeros] ** power
        balanced = (power + 1) * (errors * reach[zeros] ** power) ** (1 / (power + 1))
        additions = np.divide(errors, powers, out=np.full(len(errors), np.inf), where=powers > 0)
        return float(np.minimum(additions, balanced).sum())

    def noise(self, precisions: Array) -> tuple[Array, Array]:
        """Return independent rows B with the span of the design queries of positive precision, and a root of the noise.

        The noise on B x is that of the least-squares estimate from independent noise of variance 1 / precision on
        each query. The root Y has ``Y Y'`` as the covariance of this noise.
        """
        positive = np.flatnonzero((precisions > 0) & np.any(self.design, axis=1))
        rows, deviations = self.design[positive], 1 / np.sqrt(precisions[positive])
        if self.independent:
            return rows, np.diag(deviations)
        basis, is_exact = linalg.row_space(rows), deviations == 0
        # Independent exact rows are kept: another basis could differ for neighbours by rounding errors.
        exact_rows = rows[is_exact]
        if len(exact_rows) and linalg.row_rank(exact_rows) < len(exact_rows):
            exact_rows = linalg.row_space(exact_rows)
        # Exact rows are basis rows without noise, and all other basis rows are orthogonal to them.
        noisy_rows = scipy.linalg.null_space(exact_rows @ basis.T).T @ basis if len(exact_rows) else basis
        directions, root = least_squares(rows[~is_exact] @ noisy_rows.T / deviations[~is_exact, None])
        return np.vstack([exact_rows, noisy_rows]), np.vstack(
            [np.zeros((len(exact_rows), len(root))), directions.T @ root]
        )


def least_squares(strategy: Array) -> tuple[Array, Array]:
    """Return a basis N (r, d) of the rows of A, and Y with ``Y Y'`` the covariance of the noise on ``N x``.

    The noise is that of least squares from unit noise on ``A x``: ``N A⁺ = Y O'`` with orthonormal columns O. N is
    the identity if A has full column rank, otherwise its rows are orthonormal.
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
    """Yield the rows of ``W · right`` in chunks, with the index of the first row.

    Raises `InvalidInputError` for a query outside the span of the orthonormal rows `basis`, the row space of `what`.
    """
    complete = len(basis) == workload.shape[1]
    for start in range(0, workload.shape[0], QUERIES_CHUNK):
        rows = workload.matrix[start : start + QUERIES_CHUNK]
        if not complete:
            dense = linalg.to_dense(rows)
            residuals = np.linalg.norm(dense - (dense @ basis.T) @ basis, axis=1)
            unspanned = np.flatnonzero(residuals > linalg.SPAN_TOLERANCE * np.linalg.norm(dense, axis=1))
            if unspanned.size:
                name = workload.names[start + int(unspanned[0])]
                raise InvalidInputError(f"workload: query {name!r} lies outside the row space of the {what}")
        yield start, linalg.to_dense(rows @ right)


def _column_norms(workload: Workload, inverse: PseudoInverse, lengths: Array) -> tuple[Array, Array]:
    """Return the norms of the columns of ``W Q⁺``, 0 for columns of rounding errors, and absolute error bounds.

    Double precision is used if the error is small relative to the norms of the design queries, else twice that.
    """
    roots, rounding = _plain_norms(workload, inverse, lengths)
    tolerance = NORM_TOL if workload.shape[0] * inverse.design.size <= MAX_SMALL_ENTRIES else LARGE_NORM_TOL
    if rounding @ lengths <= tolerance * (roots @ lengths) and np.all(
        (rounding <= 1e3 * tolerance * roots) | (roots == 0)
    ):
        return roots, rounding
    return _enclosed_norms(workload, inverse, lengths)


def _plain_norms(workload: Workload, inverse: PseudoInverse, lengths: Array) -> tuple[Array, Array]:
    norms, matrix = workload.row_norms() * UPWARDS, inverse.matrix
    # Sums of zeros are exact.
    terms = np.count_nonzero(matrix, axis=0)
    per_norm = inverse.rounding + sum_rounding(terms) * np.linalg.norm(matrix, axis=0)
    negligible = per_norm * lengths <= linalg.SPAN_TOLERANCE
    squares = np.zeros(matrix.shape[1])
    for start, rows in answer_rows(workload, inverse.basis, matrix, "design"):
        with np.errstate(invalid="ignore"):  # an infinite error bound makes no entry negligible
            small = np.abs(rows) <= norms[start : start + len(rows), None] * per_norm
        rows[small & negligible] = 0.0
        squares += _squares(rows)
    roots = np.sqrt(squares)
    # Entries that were set to 0 are at most their error bounds.
    errors = 2 * per_norm * np.linalg.norm(norms) + _square_rounding(len(norms)) * roots
    return roots, np.where(np.any(matrix, axis=0), errors * UPWARDS, 0.0)


def _enclosed_norms(workload: Workload, inverse: PseudoInverse, lengths: Array) -> tuple[Array, Array]:
    """Return both in twice the precision; error bounds are infinite if no pseudoinverse is verified."""
    enclosed = inverse.enclosed()
    if enclosed is None:
        roots, rounding = _plain_norms(workload, inverse, lengths)
        return roots, np.where(np.any(inverse.matrix, axis=0), np.inf, rounding)
    squares, errors = np.zeros(len(lengths)), np.zeros(len(lengths))
    for start in range(0, workload.shape[0], QUERIES_CHUNK):
        rows = Enclosure.of(linalg.to_dense(workload.matrix[start : start + QUERIES_CHUNK])) @ enclosed
        low = np.abs(rows.low) + rows.radius
        unclear = np.abs(rows.high) <= low
        values = np.where(unclear, 0.0, rows.high)
        low = np.where(unclear, np.abs(rows.high) + low, low)
        squares, errors = squares + _squares(values), errors + _squares(low)
    roots = np.sqrt(squares)
    return roots, (np.sqrt(errors) + _square_rounding(workload.shape[0]) * roots) * UPWARDS


def _squares(rows: Array) -> Array:
    """Return the squared norms of columns by partial sums, so that no sum has many terms."""
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), SUM_CHUNK):
        part = rows[start : start + SUM_CHUNK]
        total += np.einsum("jk,jk->k", part, part)
    return total


def _square_rounding(count: int) -> float:
    """Return a relative error bound on the root of `_squares` of `count` rows."""
    return sum_rounding(min(count, SUM_CHUNK) + -(-count // SUM_CHUNK) + 4)


def _moves(design: Array, neighbours: Matrix | None) -> tuple[Array, Array]:
    """Return |Q U| and an absolute error bound for each row."""
    if neighbours is None:
        return np.abs(design), np.zeros(len(design))
    products, rounding = product(design, neighbours)
    moves, errors = np.abs(products), rounding.max(axis=1)
    # A query of 0 within its error bound counts as sensitive: otherwise it would be released exactly.
    unclear = ~np.any(moves, axis=1) & (errors > 0)
    moves[unclear] = errors[unclear, None]
    return moves, errors


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


# All ranges on their eigen-queries, the sines: column norms in closed form, products by fast transforms.


@dataclass(frozen=True, slots=True, eq=False)
class SineDesign:
    """``W = L Q`` for all ranges and the sines Q, which are orthonormal: a `DesignGeometry` without a matrix."""

    workload: Workload
    design: SineWorkload

    name: ClassVar[str] = "sines"
    neighbours: ClassVar[None] = None
    independent: ClassVar[bool] = True

    @classmethod
    def of(cls, workload: object, design: object, neighbours: NeighboursLike, privacy: str) -> SineDesign | None:
        """Return the geometry of all ranges and their sines, or None for other arguments."""
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
        """Absolute error bounds on `roots` (k,)."""
        return 8 * linalg.EPS * self.roots

    @property
    def needed(self) -> npt.NDArray[np.intp]:
        """Indices of the sines with a non-zero column of L: all."""
        return np.arange(len(self.design))

    @property
    def unmoved(self) -> npt.NDArray[np.intp]:
        """Indices of the sines that are equal for all neighbours: none."""
        return np.zeros(0, dtype=np.intp)

    @property
    def weighed(self) -> npt.NDArray[np.intp]:
        """Indices of the sines with unknown weights: all."""
        return self.needed

    def spread(self, weights: Array) -> Array:
        """Return the weights of all sines from the weights of the `weighed`."""
        return weights

    def left_out(self, weights: Array, reach: Array, power: int, total: float) -> float:
        """Return 0: all sines are needed."""
        return 0.0

    def noise(self, precisions: Array) -> tuple[Array, Array]:
        """Return the sines and a root of the covariance of the noise on them; refused if these are too large."""
        return self.design.matrix, np.diag(1 / np.sqrt(precisions))
