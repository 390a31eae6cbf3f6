"""The dual function ``F(λ, μ) = ‖diag(√μ) V D diag(√λ)‖_*`` with its gradient, Hessian and primal point.

Here the columns of D (k, s) are the differences between neighbours, and the rows of V (m, k) are the queries over
√targets. With ``P = D diag(λ) D'`` and ``Q = V' diag(μ) V``, F is the fidelity ``tr (P^½ Q P^½)^½``, which is jointly
concave. It equals ``max tr N`` over matrices with ``M = [[Q, N], [N', P]] ⪰ 0``. The smoothed function

    G(λ, μ) = max_N  2 tr N + τ log det M

of the interior-point method is smooth even if the optimal P and Q are singular; τ = 0 gives 2F. Take the basis for
which P is the identity and Q is diagonal with entries s². Then N is diagonal with the entries n that solve
``n² + τ n = s²``, and

- ``∂G/∂λ_i = d_i' (n + τ) d_i`` and ``∂G/∂μ_j = v_j n⁻¹ v_j'``, where ``Σ = n⁻¹`` is the primal point; for τ = 0 it is
  the matrix geometric mean ``P # Q⁻¹``;
- with rows t_i = √λ_i d_i and u_j = √μ_j n⁻¹ v_j in that basis, the second-order term of G in a relative change δ of
  the weights is ``-½ Σ_ab [ n_a n_b / (n_a + n_b + τ) (A - C)_ab² + τ C_ab² ]``, where ``A = Σ_j δ_j u_j u_j'`` and
  ``C = Σ_i δ_i t_i t_i'``.

So one decomposition of a k-by-k matrix gives value, gradient, Hessian and a primal point for every τ.

If Q is fixed, as for total variance, F is a function of λ only, and ``tr(Q Σ)`` replaces the maximum variance. If
neighbours have offsets o, costs that do not depend on Σ, the dual function is ``o'λ + 2F - Σ μ_j``. The scale of Σ is
then determined, and the scale of μ is part of the solution.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg
from dualmech.fast.engine.spectrum import DenseRows, Index, Rows, Spectrum, SteppedQueries, SteppedRows
from dualmech.linalg import to_dense
from dualmech.validate import Array, Matrix

# Square roots H of ``P = D diag(λ) D'``, ``P = H H'``, and products with them.


MAX_COUPLING = 1e4  # upper limit on the singular values σ; larger ones make P too ill-conditioned


class Half(Protocol):
    """A square root H (k, k)."""

    @property
    def log_volume(self) -> float:
        """``log |det H|``."""

    def around(self, matrix: Array) -> Array:
        """Return ``H' Q H`` as a new matrix."""

    def times(self, matrix: Array) -> Array:
        """Return ``H X``."""

    def on_neighbours(self, matrix: Array) -> Array:
        """Return ``(H⁻¹ D diag(√λ))' X``, shape (s, k)."""


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalHalf:
    scale: Array  # (k,) √λ

    @property
    def log_volume(self) -> float:
        return float(np.log(self.scale).sum())

    def around(self, matrix: Array) -> Array:
        scaled = matrix * self.scale
        scaled *= self.scale[:, None]
        return np.asarray(scaled)

    def times(self, matrix: Array) -> Array:
        return np.asarray(self.scale[:, None] * matrix)

    def on_neighbours(self, matrix: Array) -> Array:
        return matrix


@dataclass(frozen=True, slots=True, eq=False)
class TriangularHalf:
    """The triangular factor of a general P; see `Half`."""

    lower: Array  # (k, k)
    moves: Matrix  # (k, s) ``D diag(√λ)``

    @property
    def log_volume(self) -> float:
        return float(np.log(np.diagonal(self.lower)).sum())

    def around(self, matrix: Array) -> Array:
        return np.asarray(self.lower.T @ matrix @ self.lower)

    def times(self, matrix: Array) -> Array:
        return np.asarray(self.lower @ matrix)

    def on_neighbours(self, matrix: Array) -> Array:
        projected = scipy.linalg.solve_triangular(self.lower, matrix, trans="T", lower=True, check_finite=False)
        return np.asarray(self.moves.T @ projected)


@dataclass(frozen=True, slots=True, eq=False)
class NearlyDiagonalHalf:
    """If D is the identity with a few additional columns R: ``P = Λ^½ (I + G G') Λ^½``, ``G = Λ^-½ R √λ``; see `Half`.

    With ``G = X σ Y'``, ``H = Λ^½ (I + X (√(1 + σ²) - 1) X')``.
    """

    diagonal: DiagonalHalf
    identity_columns: npt.NDArray[np.intp]  # (k,) indices in D of the columns of the identity
    other_columns: npt.NDArray[np.intp]  # (c,) indices in D of the columns of R
    axes: Array  # (k, c) X
    lengths: Array  # (c,) √(1 + σ²)
    coupling: Array  # (c, c) ``Y σ``

    @classmethod
    def of(cls, moves: Array, identity_columns: npt.NDArray[np.intp], scale: Array) -> NearlyDiagonalHalf | None:
        other_columns = np.setdiff1d(np.arange(len(scale)), identity_columns)
        diagonal = DiagonalHalf(scale[identity_columns])
        axes, values, right = np.linalg.svd(
            moves[:, other_columns] * scale[other_columns] / scale[identity_columns, None], full_matrices=False
        )
        if not values.max(initial=0.0) < MAX_COUPLING:
            return None
        return cls(diagonal, identity_columns, other_columns, axes, np.sqrt(1 + values**2), right.T * values)

    @property
    def log_volume(self) -> float:
        return self.diagonal.log_volume + float(np.log(self.lengths).sum())

    def around(self, matrix: Array) -> Array:
        scaled = self.diagonal.around(matrix)
        scaled += ((scaled @ self.axes) * (self.lengths - 1)) @ self.axes.T
        return self._stretched(scaled, self.lengths)

    def times(self, matrix: Array) -> Array:
        return self.diagonal.times(self._stretched(matrix, self.lengths))

    def on_neighbours(self, matrix: Array) -> Array:
        stretched = self._stretched(matrix, 1 / self.lengths)
        image = np.empty((len(self.identity_columns) + len(self.other_columns), matrix.shape[1]))
        image[self.identity_columns], image[self.other_columns] = stretched, self.coupling @ (self.axes.T @ stretched)
        return image

    def _stretched(self, matrix: Array, lengths: Array) -> Array:
        return np.asarray(matrix + (self.axes * (lengths - 1)) @ (self.axes.T @ matrix))


MIN_DIAGONAL_RATIO = 1e-8  # with a smaller ratio of diagonal entries, Q is not computed from cumulative sums
STEPPED_ROWS_RATIO = 8  # with more queries per rank, rows are not materialised
MIN_SINGULAR_RATIO = 1e-6  # with a smaller ratio of singular values, a Gram matrix is too inaccurate


@dataclass(frozen=True, slots=True, eq=False)
class DenseDual:
    """The reduced data of one problem: V (m, k), and D (k, s), which is dense, sparse, or None for the identity.

    If `fixed`, the weights of the queries are fixed: ``Q = V' V``. `offsets` (s,) are costs that do not depend on Σ;
    None if there are none, and the scale of Σ is free.
    """

    queries: Array | SteppedQueries  # by first differences if these are sparse
    moves: Matrix | None
    fixed: bool = False
    offsets: Array | None = None
    identity_columns: Index | None = None  # (k,) indices in D of the columns of the identity, if they are most of D
    fixed_gram: Array | None = field(init=False)  # ``V' V`` if it is fixed

    def __post_init__(self) -> None:
        rows = np.asarray(self.queries) if self.fixed else None
        object.__setattr__(self, "fixed_gram", None if rows is None else rows.T @ rows)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of weights on neighbours (s) and on queries (m, or 0 if fixed), and rank k."""
        queries, rank = self.queries.shape
        neighbours = rank if self.moves is None else self.moves.shape[1]
        return neighbours, 0 if self.fixed else queries, rank

    @property
    def operations(self) -> tuple[float, float, float]:
        """Approximate operations of an evaluation, of the curvature of all weights, and of a product with it."""
        neighbours, queries, rank = self.sizes
        is_stepped = isinstance(self.queries, SteppedQueries)
        dense_rows = 0 if is_stepped else queries
        evaluation = 12.0 * rank**3 + 4.0 * (dense_rows + (0 if self.moves is None else neighbours)) * rank**2
        product = 4.0 * (neighbours + dense_rows) * rank**2 + (8.0 * rank**3 + 8.0 * queries if is_stepped else 0.0)
        return evaluation, 3.0 * (neighbours + queries) ** 2 * rank, product

    def at(self, weights: Array) -> Spectrum:
        """Evaluate the dual function at strictly positive weights.

        An eigendecomposition of the Gram matrix is fastest, but squares the singular values. If their ratio is too
        small, the decomposition is repeated with orthogonal factors.
        """
        if not np.all(np.isfinite(weights)):
            raise np.linalg.LinAlgError("weights are no longer finite")
        spectrum = _by_gram(self, weights)
        if spectrum is None:
            spectrum = _by_factors(self, weights)
        elif spectrum.values[0] < MIN_SINGULAR_RATIO * spectrum.values[-1]:
            spectrum = replace(_by_factors(self, weights), decompositions=2)
        return spectrum if self.offsets is None else replace(spectrum, offsets=self.offsets)


def _by_gram(program: DenseDual, weights: Array) -> Spectrum | None:
    neighbours, _, _ = program.sizes
    half = _half(program, np.sqrt(weights[:neighbours]))
    if half is None:
        return None
    second = half.around(_second_moment(program, weights[neighbours:]))
    # The minimum diagonal entry is an upper bound on the smallest eigenvalue.
    diagonal = np.diagonal(second)
    if not np.all(np.isfinite(second)) or diagonal.min() < MIN_SINGULAR_RATIO**2 * diagonal.max():
        return None
    squares, vectors = np.linalg.eigh(second)
    if not squares[0] > 0:
        return None
    values, root, root_weights = np.sqrt(squares), half.times(vectors), np.sqrt(weights[neighbours:])
    query_rows = _rows(program, root_weights, root / values)
    return _spectrum(weights, values, half.on_neighbours(vectors), query_rows, root, half.log_volume)


def _half(program: DenseDual, scale: Array) -> Half | None:
    """Return a square root of P by the cheapest method, or None if P is singular."""
    if program.moves is None:
        return DiagonalHalf(scale)
    if program.identity_columns is not None:
        half = NearlyDiagonalHalf.of(to_dense(program.moves), program.identity_columns, scale)
        if half is not None:
            return half
    moves = program.moves.multiply(scale) if sp.issparse(program.moves) else program.moves * scale
    try:
        lower = scipy.linalg.cholesky(to_dense(moves @ moves.T), lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return None
    return TriangularHalf(lower, moves)


def _rows(program: DenseDual, factors: Array, root: Array) -> Rows:
    """Return the rows ``f_j v_j R``, represented by first differences if that is possible and cheaper."""
    queries = program.queries
    if not isinstance(queries, SteppedQueries):
        return DenseRows((queries[: len(factors)] @ root) * factors[:, None])
    scaled = queries.factors * factors
    if len(factors) > STEPPED_ROWS_RATIO * len(root):
        return SteppedRows(queries.steps, scaled, root.cumsum(axis=0))
    return DenseRows(queries.steps.times(root) * scaled[:, None])


def _second_moment(program: DenseDual, weights: Array) -> Array:
    """Return Q, shape (k, k)."""
    if program.fixed_gram is not None:
        return program.fixed_gram
    if isinstance(program.queries, SteppedQueries):
        gram = program.queries.gram(weights)
        diagonal = np.diagonal(gram)
        # The errors of cumulative sums are relative to the largest entry.
        if diagonal.min() > MIN_DIAGONAL_RATIO * diagonal.max():
            return gram
    half = np.sqrt(weights)[:, None] * np.asarray(program.queries)
    return np.asarray(half.T @ half)


def _by_factors(program: DenseDual, weights: Array) -> Spectrum:
    neighbours, _, _ = program.sizes
    scale, root_weights = np.sqrt(weights[:neighbours]), np.sqrt(weights[neighbours:, None])
    weighted = np.asarray(program.queries) if program.fixed else root_weights * np.asarray(program.queries)
    last_basis, upper = scipy.linalg.qr(weighted, mode="economic", check_finite=False)
    if program.moves is None:
        first_basis, lower = None, np.diag(scale)
    else:
        first_basis, triangle = scipy.linalg.qr(
            scale[:, None] * to_dense(program.moves).T, mode="economic", check_finite=False
        )
        lower = triangle.T
    core = upper @ lower
    if not np.all(np.isfinite(core)):
        raise np.linalg.LinAlgError("the weighted workload is no longer finite")
    left, values, right = linalg.svd(core)
    # Increasing order, as from an eigendecomposition; zeros become the smallest safe divisor.
    values = np.maximum(values[::-1], np.finfo(np.float64).tiny / np.finfo(np.float64).eps)
    left, right = left[:, ::-1], right[::-1].T
    neighbour_rows = right if first_basis is None else first_basis @ right
    query_rows = DenseRows(last_basis[: len(root_weights)] @ left)
    log_volume = float(np.log(np.abs(np.diagonal(lower))).sum())
    return _spectrum(weights, values, neighbour_rows, query_rows, lower @ right, log_volume)


def _spectrum(weights: Array, values: Array, first: Array, last: Rows, root: Array, log_volume: float) -> Spectrum:
    return Spectrum(weights, values, values, 0.0, first, last, root, log_volume)
