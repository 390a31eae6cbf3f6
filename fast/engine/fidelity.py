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

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg
from dualmech.linalg import to_dense
from dualmech.validate import Array, Matrix

NODE_SPACING = 1.2
"""Step of the quadrature of 1/z in log z; its relative error is about ``2 |Γ(1 + 2πi/step)|``, 3e-3."""

BLOCK_ROWS = 256  # rows of the Hessian that are formed at a time
GRADED = 1e-6  # ratio of singular values below which squaring them in a Gram matrix loses too many digits


@dataclass(frozen=True, slots=True, eq=False)
class FidelityProgram:
    """The reduced data of one problem: V (m, k), and D (k, s), dense, sparse, or None for the identity.

    Where `fixed`, the queries have no weights μ of their own to vary: ``Q = V' V``. `offsets` (s,) are costs
    that come on top, whatever Σ is; None where there are none and the scale of Σ is free.
    """

    queries: Array
    moves: Matrix | None
    fixed: bool = False
    offsets: Array | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of weights on neighbours s, of weights on queries (m, or 0 where fixed), and rank k."""
        queries, rank = self.queries.shape
        neighbours = rank if self.moves is None else self.moves.shape[1]
        return neighbours, 0 if self.fixed else queries, rank

    @property
    def operations(self) -> tuple[float, float]:
        """Approximate operations of a step of the fixed point and of one of Newton's method."""
        neighbours, queries, rank = self.sizes
        size = neighbours + queries
        first = 12.0 * rank**3 + 4.0 * size * rank**2
        return first, first + 15.0 * size**2 * rank + size**3 / 3

    def at(self, weights: Array) -> Spectrum:
        """Evaluate the dual function at strictly positive weights."""
        return decompose(self, weights)


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """Everything that one decomposition tells at given weights."""

    weights: Array  # (s + m,) λ, then μ; where Q is fixed, there is no μ, here and below
    values: Array  # (k,) singular values s, ascending; their sum is F
    mean: Array  # (k,) the n of the module's docstring; equal to `values` where nothing is smoothed
    smoothing: float  # τ
    factors: Array  # (s + m, k) rows t_i, then u_j
    root: Array  # (k, k) ``Σ = root diag(1/n) root'``
    neighbours: int  # s, where the queries begin
    decompositions: int = 1  # how many it took
    offsets: Array | None = None  # (s,) o, costs that come on top
    gains: Array = field(init=False)  # (s + m,) ``d_i' Σ⁻¹ d_i``, then ``v_j Σ v_j'``

    def __post_init__(self) -> None:
        object.__setattr__(self, "gains", (self.factors**2 @ self.mean) / self.weights)

    @property
    def fidelity(self) -> float:
        """F(λ, μ)."""
        return float(self.values.sum())

    @property
    def lower_bound(self) -> float:
        """``F² / (Σλ Σμ)``, or ``F² / Σλ``, a bound on the optimum (the judge recomputes it)."""
        first, last = self.weights[: self.neighbours].sum(), self.weights[self.neighbours :]
        offset = 0.0 if self.offsets is None else self.weights[: self.neighbours] @ self.offsets / first
        return float(self.fidelity**2 / (first * last.sum() if last.size else first) + offset)

    @property
    def objective(self) -> float:
        """Largest cost of Σ times its largest variance, or ``tr(Q Σ)``: no scale matters (the judge recomputes)."""
        costs, variances = self.gains[: self.neighbours], self.gains[self.neighbours :]
        last = variances.max() if variances.size else (self.values**2 / self.mean).sum()
        return float((costs * last if self.offsets is None else costs * last + self.offsets).max())

    def gradient(self) -> Array:
        """Return the gradient of the dual function (s + m,): of G, and of what is linear beside it."""
        gradient = self.gains if self.offsets is None else self.gains + self.linear
        if not self.smoothing:
            return gradient
        first = np.einsum("ik,ik->i", self.factors[: self.neighbours], self.factors[: self.neighbours])
        gradient = gradient.copy()
        gradient[: self.neighbours] += self.smoothing * first / self.weights[: self.neighbours]
        return gradient

    def gradient_slope(self) -> Array:
        """Return the derivative of `gradient` by τ (s + m,), from that of n, ``-n / (2n + τ)``."""
        slope = -self.mean / (2 * self.mean + self.smoothing)
        changes = self.factors**2 @ np.stack([1 + slope, -slope], axis=1)
        first = np.arange(len(self.weights)) < self.neighbours
        return np.asarray(np.where(first, changes[:, 0], changes[:, 1]) / self.weights)

    @property
    def linear(self) -> Array:
        """Coefficients of what is linear in the weights beside G (s + m,): the offsets, and -1 for every query."""
        linear = np.zeros(len(self.weights))
        if self.offsets is not None:
            linear[: self.neighbours], linear[self.neighbours :] = self.offsets, -1.0
        return linear

    def smoothed(self, smoothing: float) -> Spectrum:
        """Return the same decomposition at another τ."""
        mean = 2 * self.values**2 / (smoothing + np.sqrt(smoothing**2 + 4 * self.values**2))
        factors = self.factors.copy()
        factors[self.neighbours :] *= self.mean / mean
        return replace(self, mean=mean, smoothing=smoothing, factors=factors, decompositions=1)

    @property
    def barrier(self) -> float:
        """``log det M``, but for constants and the weights' own part."""
        return float(np.log(self.mean).sum()) + 2 * float(np.linalg.slogdet(self.root)[1])

    def covariance(self) -> Array:
        """Return Σ (k, k), unscaled."""
        half = self.root / np.sqrt(self.mean)
        return half @ half.T

    def calmed(self, share: float) -> Array:
        """Return Σ (k, k), unscaled, without noise that nothing limits: its costs are higher by `share` at most.

        Where queries ask next to nothing, optimal noise is almost without end, and drowns the rest of Σ in rounding.
        With τ a share of the largest cost, ``(Σ⁻¹ + τ (D D')⁻¹)⁻¹ ⪯ Σ`` costs at most τ more, since ``d' (D D')⁻¹ d``
        is at most 1 for the columns d of D.
        """
        weights = self.weights[: self.neighbours]
        moves = (self.factors[: self.neighbours] / np.sqrt(weights)[:, None]).T
        axes, lengths, _ = linalg.svd(moves)
        inverse_root = np.sqrt(self.mean)[:, None] * axes * lengths
        _, values, turned = linalg.svd(inverse_root)
        level = share * float(self.gains[: self.neighbours].max())
        half = self.root @ (axes * lengths) @ turned.T / np.sqrt(values**2 + level)
        return np.asarray(half @ half.T)

    def curvature_diagonal(self) -> Array:
        """Return the diagonal of `curvature` for every weight."""
        squares = self.factors**2
        diagonal = np.asarray(sum(c * (squares @ g) ** 2 for c, g in self._nodes()))
        diagonal[: self.neighbours] += self.smoothing * squares[: self.neighbours].sum(axis=1) ** 2
        return diagonal

    def curvature(self, chosen: npt.NDArray[np.intp]) -> Array:
        """Return the lower triangle of ``-∇²G`` in relative weights, for the chosen (ascending) indices.

        Writing the kernel ``n_a n_b / (n_a + n_b + τ)`` as a short sum of rank-one terms makes each term the
        square, entry by entry, of a weighted Gram matrix of the factors; entries between a neighbour and a query
        are negative.
        """
        factors = self.factors[chosen]
        split = int(np.searchsorted(chosen, self.neighbours))
        result = np.zeros((len(factors), len(factors)))
        for start in range(0, len(factors), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, len(factors))
            block = result[start:stop, :stop]
            for coefficient, weight in self._nodes():
                product = (factors[start:stop] * (np.sqrt(coefficient) * weight)) @ factors[:stop].T
                product *= product
                block += product
        result[split:, :split] *= -1
        if self.smoothing:
            first = factors[:split]
            result[:split, :split] += self.smoothing * (first @ first.T) ** 2
        return result

    def _nodes(self) -> list[tuple[float, Array]]:
        """Return terms of ``n_a n_b / (n_a + n_b + τ) ≈ Σ_q c_q g_q(a) g_q(b)``.

        They are a quadrature of ``1/z = ∫ exp(u - z e^u) du`` over the range of z that occurs.
        """
        shifted = self.mean + self.smoothing / 2
        low, high = 2 * shifted[0], 2 * shifted[-1]
        points = np.arange(-np.log(high) - 8.0, -np.log(low) + 2.4, NODE_SPACING)
        return [(NODE_SPACING * float(np.exp(u)), self.mean * np.exp(-shifted * np.exp(u))) for u in points]


def decompose(program: FidelityProgram, weights: Array) -> Spectrum:
    """Evaluate the dual function at strictly positive weights, with the accuracy that they need.

    An eigendecomposition of the Gram matrix is quickest, but squares the singular values; where they spread
    too far, the decomposition is repeated on orthogonal factors.
    """
    if not np.all(np.isfinite(weights)):
        raise np.linalg.LinAlgError("weights are no longer finite")
    spectrum = _by_gram(program, weights)
    if spectrum is None or spectrum.values[0] < GRADED * spectrum.values[-1]:
        spectrum = replace(_by_factors(program, weights), decompositions=2)
    return spectrum if program.offsets is None else replace(spectrum, offsets=program.offsets)


def _by_gram(program: FidelityProgram, weights: Array) -> Spectrum | None:
    neighbours, _, _ = program.sizes
    scale, spread = np.sqrt(weights[:neighbours]), np.sqrt(weights[neighbours:, None])
    queries, moves = program.queries, program.moves
    half = queries if program.fixed else spread * queries
    second = half.T @ half
    if moves is None:
        second *= scale
        second *= scale[:, None]
    else:
        half = moves.multiply(scale) if sp.issparse(moves) else moves * scale
        try:
            lower = scipy.linalg.cholesky(to_dense(half @ half.T), lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        second = lower.T @ second @ lower
    if not np.all(np.isfinite(second)):
        return None
    squares, vectors = scipy.linalg.eigh(second, overwrite_a=True, check_finite=False)
    if not squares[0] > 0:
        return None
    values = np.sqrt(squares)
    if moves is None:
        root, first = scale[:, None] * vectors, vectors
    else:
        root = lower @ vectors
        first = half.T @ scipy.linalg.solve_triangular(
            lower, vectors, trans="T", lower=True, check_finite=False
        )
    last = (queries[: len(spread)] @ root) * (spread / values)
    return _spectrum(weights, values, first, last, root)


def _by_factors(program: FidelityProgram, weights: Array) -> Spectrum:
    neighbours, _, _ = program.sizes
    scale, spread = np.sqrt(weights[:neighbours]), np.sqrt(weights[neighbours:, None])
    weighted = program.queries if program.fixed else spread * program.queries
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
    return _spectrum(weights, values, first, last_basis[: len(spread)] @ left, lower @ right)


def _spectrum(weights: Array, values: Array, first: Array, last: Array, root: Array) -> Spectrum:
    return Spectrum(weights, values, values, 0.0, np.vstack([first, last]), root, len(first))
