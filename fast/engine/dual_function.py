"""The dual function ``F(λ, μ) = ‖diag(√μ) V D diag(√λ)‖_*`` with its gradient, Hessian and primal point.

Here D (k, s) holds the moves between neighbours and V (m, k) the queries over √targets. With
``P = D diag(λ) D'`` and ``Q = V' diag(μ) V``, F is the fidelity ``tr (P^½ Q P^½)^½``, jointly concave. It is
``max tr N`` over matrices with ``M = [[Q, N], [N', P]] ⪰ 0``, so an interior-point method sees

    G(λ, μ) = max_N  2 tr N + τ log det M,

smooth even where the optimal P and Q are singular; τ = 0 gives 2F. In the basis in which P is the identity
and Q is diagonal with entries s², N is diagonal with the entries n that solve ``n² + τ n = s²``, and

- ``∂G/∂λ_i = d_i' (n + τ) d_i`` and ``∂G/∂μ_j = v_j n⁻¹ v_j'``, where ``Σ = n⁻¹`` is the primal point: at
  τ = 0 the matrix geometric mean ``P # Q⁻¹``;
- with rows t_i = √λ_i d_i and u_j = √μ_j n⁻¹ v_j in that basis, a relative change δ of the weights changes G to
  second order by ``-½ Σ_ab [ n_a n_b / (n_a + n_b + τ) (A - C)_ab² + τ C_ab² ]``, where ``A = Σ_j δ_j u_j u_j'``
  and ``C = Σ_i δ_i t_i t_i'``.

So one decomposition of a k-by-k matrix gives value, gradient, Hessian and a primal point, at every τ.

Where Q is fixed, as in total variance, λ alone varies: F is a function of λ, and ``tr(Q Σ)`` takes the place of
the largest variance. Where neighbours have offsets o, costs that no Σ changes, the dual function is
``o'λ + 2F - Σ μ_j``: with no freedom left to scale Σ, the scale of μ is part of the answer.
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


STEEP = 1e4  # largest singular value of the other cells' part, relative to the basis, that can be told from rounding


class Half(Protocol):
    """A square root H (k, k)."""

    @property
    def log_volume(self) -> float:
        """Return ``log |det H|``."""

    def around(self, matrix: Array) -> Array:
        """Return ``H' Q H``, a new matrix."""

    def times(self, matrix: Array) -> Array:
        """Return ``H X``."""

    def moved(self, matrix: Array) -> Array:
        """Return ``(H⁻¹ D diag(√λ))' X`` (s, k)."""


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

    def moved(self, matrix: Array) -> Array:
        return matrix


@dataclass(frozen=True, slots=True, eq=False)
class TriangularHalf:
    """The triangular factor of any P; see `Half`."""

    lower: Array  # (k, k)
    moves: Matrix  # (k, s) ``D diag(√λ)``

    @property
    def log_volume(self) -> float:
        return float(np.log(np.diagonal(self.lower)).sum())

    def around(self, matrix: Array) -> Array:
        return np.asarray(self.lower.T @ matrix @ self.lower)

    def times(self, matrix: Array) -> Array:
        return np.asarray(self.lower @ matrix)

    def moved(self, matrix: Array) -> Array:
        solved = scipy.linalg.solve_triangular(self.lower, matrix, trans="T", lower=True, check_finite=False)
        return np.asarray(self.moves.T @ solved)


@dataclass(frozen=True, slots=True, eq=False)
class NearlyDiagonalHalf:
    """Where D is the identity with a few more columns R: ``P = Λ^½ (I + G G') Λ^½``, ``G = Λ^-½ R √λ``; see `Half`.

    With ``G = X σ Y'``, ``H = Λ^½ (I + X (√(1 + σ²) - 1) X')``.
    """

    diagonal: DiagonalHalf
    identity_columns: npt.NDArray[np.intp]  # (k,), others (c,): indices in D of the identity's columns, and of R's
    others: npt.NDArray[np.intp]
    axes: Array  # (k, c) X
    lengths: Array  # (c,) √(1 + σ²)
    coupling: Array  # (c, c) ``Y σ``

    @classmethod
    def of(cls, moves: Array, identity_columns: npt.NDArray[np.intp], scale: Array) -> NearlyDiagonalHalf | None:
        others = np.setdiff1d(np.arange(len(scale)), identity_columns)
        diagonal = DiagonalHalf(scale[identity_columns])
        axes, values, turn = np.linalg.svd(
            moves[:, others] * scale[others] / scale[identity_columns, None], full_matrices=False
        )
        if not values.max(initial=0.0) < STEEP:
            return None
        return cls(diagonal, identity_columns, others, axes, np.sqrt(1 + values**2), turn.T * values)

    @property
    def log_volume(self) -> float:
        return self.diagonal.log_volume + float(np.log(self.lengths).sum())

    def around(self, matrix: Array) -> Array:
        scaled = self.diagonal.around(matrix)
        scaled += ((scaled @ self.axes) * (self.lengths - 1)) @ self.axes.T
        return self._stretched(scaled, self.lengths)

    def times(self, matrix: Array) -> Array:
        return self.diagonal.times(self._stretched(matrix, self.lengths))

    def moved(self, matrix: Array) -> Array:
        turned = self._stretched(matrix, 1 / self.lengths)
        image = np.empty((len(self.identity_columns) + len(self.others), matrix.shape[1]))
        image[self.identity_columns], image[self.others] = turned, self.coupling @ (self.axes.T @ turned)
        return image

    def _stretched(self, matrix: Array, lengths: Array) -> Array:
        return np.asarray(matrix + (self.axes * (lengths - 1)) @ (self.axes.T @ matrix))


EVEN = 1e-8  # ratio of diagonal entries of Q above which it may be computed from steps
MANY = 8  # queries, relative to the rank, from which on rows are not written out
GRADED = 1e-6  # ratio of singular values below which squaring them in a Gram matrix loses too many digits


@dataclass(frozen=True, slots=True, eq=False)
class DenseDual:
    """The reduced data of one problem: V (m, k), and D (k, s), dense, sparse, or None for the identity.

    Where `fixed`, the queries have no weights μ of their own to vary: ``Q = V' V``. `offsets` (s,) are costs
    that come on top, whatever Σ is; None where there are none and the scale of Σ is free.
    """

    queries: Array | SteppedQueries  # by their steps where these are few
    moves: Matrix | None
    fixed: bool = False
    offsets: Array | None = None
    identity_columns: Index | None = None  # (k,) indices in D of the identity's columns, where nearly all are
    second: Array | None = field(init=False)  # ``V' V`` where it is fixed

    def __post_init__(self) -> None:
        rows = np.asarray(self.queries) if self.fixed else None
        object.__setattr__(self, "second", None if rows is None else rows.T @ rows)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of weights on neighbours s, of weights on queries (m, or 0 where fixed), and rank k."""
        queries, rank = self.queries.shape
        neighbours = rank if self.moves is None else self.moves.shape[1]
        return neighbours, 0 if self.fixed else queries, rank

    @property
    def operations(self) -> tuple[float, float, float]:
        """Approximate operations of an evaluation, of the curvature of all weights, and of a product with it."""
        neighbours, queries, rank = self.sizes
        by_steps = isinstance(self.queries, SteppedQueries)
        written = 0 if by_steps else queries
        first = 12.0 * rank**3 + 4.0 * (written + (0 if self.moves is None else neighbours)) * rank**2
        product = 4.0 * (neighbours + written) * rank**2 + (8.0 * rank**3 + 8.0 * queries if by_steps else 0.0)
        return first, 3.0 * (neighbours + queries) ** 2 * rank, product

    def at(self, weights: Array) -> Spectrum:
        """Evaluate the dual function at strictly positive weights, with the accuracy that they need.

        An eigendecomposition of the Gram matrix is quickest, but squares the singular values; where they spread
        too far, the decomposition is repeated on orthogonal factors.
        """
        if not np.all(np.isfinite(weights)):
            raise np.linalg.LinAlgError("weights are no longer finite")
        spectrum = _by_gram(self, weights)
        if spectrum is None:
            spectrum = _by_factors(self, weights)
        elif spectrum.values[0] < GRADED * spectrum.values[-1]:
            spectrum = replace(_by_factors(self, weights), decompositions=2)
        return spectrum if self.offsets is None else replace(spectrum, offsets=self.offsets)


def _by_gram(program: DenseDual, weights: Array) -> Spectrum | None:
    neighbours, _, _ = program.sizes
    half = _half(program, np.sqrt(weights[:neighbours]))
    if half is None:
        return None
    second = half.around(_second_moment(program, weights[neighbours:]))
    # The least diagonal entry is no less than the least eigenvalue.
    diagonal = np.diagonal(second)
    if not np.all(np.isfinite(second)) or diagonal.min() < GRADED**2 * diagonal.max():
        return None
    squares, vectors = np.linalg.eigh(second)
    if not squares[0] > 0:
        return None
    values, root, spread = np.sqrt(squares), half.times(vectors), np.sqrt(weights[neighbours:])
    last = _rows(program, spread, root / values)
    return _spectrum(weights, values, half.moved(vectors), last, root, half.log_volume)


def _half(program: DenseDual, scale: Array) -> Half | None:
    """Return a square root of P, whichever is least work; None where P is singular."""
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
    """Return the rows ``f_j v_j R``: written out where there is no other way, or where that is less work."""
    queries = program.queries
    if not isinstance(queries, SteppedQueries):
        return DenseRows((queries[: len(factors)] @ root) * factors[:, None])
    scaled = queries.factors * factors
    if len(factors) > MANY * len(root):
        return SteppedRows(queries.steps, scaled, root.cumsum(axis=0))
    return DenseRows(queries.steps.times(root) * scaled[:, None])


def _second_moment(program: DenseDual, weights: Array) -> Array:
    """Return Q (k, k)."""
    if program.second is not None:
        return program.second
    if isinstance(program.queries, SteppedQueries):
        gram = program.queries.gram(weights)
        diagonal = np.diagonal(gram)
        # Sums of steps are exact to the rounding of the largest entry.
        if diagonal.min() > EVEN * diagonal.max():
            return gram
    half = np.sqrt(weights)[:, None] * np.asarray(program.queries)
    return np.asarray(half.T @ half)


def _by_factors(program: DenseDual, weights: Array) -> Spectrum:
    neighbours, _, _ = program.sizes
    scale, spread = np.sqrt(weights[:neighbours]), np.sqrt(weights[neighbours:, None])
    weighted = np.asarray(program.queries) if program.fixed else spread * np.asarray(program.queries)
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
    # Ascending order, as an eigendecomposition gives it; zeros become the smallest number that divides.
    values = np.maximum(values[::-1], np.finfo(np.float64).tiny / np.finfo(np.float64).eps)
    left, right = left[:, ::-1], right[::-1].T
    first = right if first_basis is None else first_basis @ right
    last = DenseRows(last_basis[: len(spread)] @ left)
    volume = float(np.log(np.abs(np.diagonal(lower))).sum())
    return _spectrum(weights, values, first, last, lower @ right, volume)


def _spectrum(weights: Array, values: Array, first: Array, last: Rows, root: Array, volume: float) -> Spectrum:
    return Spectrum(weights, values, values, 0.0, first, last, root, volume)
