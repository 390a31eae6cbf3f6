"""Value, gradient, Hessian and primal point of the dual function from one decomposition.

The formulas are in `dualmech.fast.engine.dual_function`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy  # it loads special when that is used

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.base import MAX_DENSE_ENTRIES
from dualmech.workloads.steps import Steps

# Weighted queries in other coordinates: rows ``u_j = f_j v_j R`` for queries V (m, k). They are dense if V is dense. If
# V is represented by first differences, Gram matrices and quadratic forms are computed from cumulative sums.


Index = npt.NDArray[np.intp]

MAX_LENGTH_RATIO = 1e3  # with a larger ratio of query lengths, cumulative sums are inaccurate for short queries


class Rows(Protocol):
    """Rows u_j, shape (m, k)."""

    def __len__(self) -> int:
        """Return the number m of rows."""

    def scaled(self, columns: Array) -> Rows:
        """Return the rows with columns multiplied by factors, shape (k,)."""

    def squares(self, columns: Array) -> Array:
        """Return ``Σ_a u_ja² d_ab`` for a matrix d, shape (k, n)."""

    def forms(self, matrix: Array) -> Array:
        """Return ``u_j M u_j'``, shape (m,), for a symmetric matrix M (k, k)."""

    def gram(self, weights: Array) -> Array:
        """Return ``Σ_j w_j u_j' u_j``, shape (k, k), for weights of any sign, shape (m,)."""

    def chosen(self, index: Index) -> Array:
        """Return some rows as a dense matrix."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseRows:
    """A dense matrix of rows; see `Rows`."""

    entries: Array

    def __len__(self) -> int:
        return len(self.entries)

    def scaled(self, columns: Array) -> DenseRows:
        return DenseRows(self.entries * columns)

    def squares(self, columns: Array) -> Array:
        return np.asarray(self.entries**2 @ columns)

    def forms(self, matrix: Array) -> Array:
        return np.einsum("jk,jk->j", self.entries @ matrix, self.entries)

    def gram(self, weights: Array) -> Array:
        return np.asarray((self.entries.T * weights) @ self.entries)

    def chosen(self, index: Index) -> Array:
        return np.asarray(self.entries[index])


@dataclass(frozen=True, slots=True, eq=False)
class SteppedQueries:
    """Queries ``f_j w_j`` represented by the first differences of the w_j, and materialised only by `numpy.asarray`."""

    steps: Steps
    factors: Array  # (m,) f

    @classmethod
    def of(cls, steps: Steps | None, factors: Array) -> SteppedQueries | None:
        """Return queries by first differences, or None without any, or if cumulative sums would be inaccurate."""
        if steps is None:
            return None
        lengths = steps.largest * factors
        return cls(steps, factors) if lengths.max() < MAX_LENGTH_RATIO * lengths.min() else None

    @property
    def shape(self) -> tuple[int, int]:
        queries, cells = self.steps.steps.shape
        return int(queries), int(cells)

    def chosen(self, index: Index) -> SteppedQueries:
        return SteppedQueries(self.steps.chosen(index), self.factors[index])

    def gram(self, weights: Array) -> Array:
        """Return the weighted Gram matrix, shape (k, k)."""
        return self.steps.gram(self.factors**2 * weights)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        queries, cells = self.shape
        if queries * cells > MAX_DENSE_ENTRIES:
            raise InvalidInputError(
                f"{queries} queries over {cells} cells need too large a matrix (limit {MAX_DENSE_ENTRIES} entries)"
            )
        return self.steps.times(np.eye(self.shape[1])) * self.factors[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class SteppedRows:
    """Rows ``f_j w_j R`` represented by the first differences of the w_j, without a dense matrix; see `Rows`."""

    steps: Steps
    factors: Array  # (m,) f
    sums: Array  # (k, k) ``C R``, cumulative sums of the rows of R

    def __len__(self) -> int:
        return len(self.factors)

    def scaled(self, columns: Array) -> SteppedRows:
        return replace(self, sums=self.sums * columns)

    def squares(self, columns: Array) -> Array:
        pairs = self.steps.pairs
        forms = [pairs @ ((self.sums * column) @ self.sums.T).ravel() for column in columns.T]
        return np.asarray(self.factors[:, None] ** 2 * np.stack(forms, axis=1))

    def forms(self, matrix: Array) -> Array:
        return np.asarray(self.factors**2 * (self.steps.pairs @ (self.sums @ matrix @ self.sums.T).ravel()))

    def gram(self, weights: Array) -> Array:
        return np.asarray(self.sums.T @ self.steps.step_gram(self.factors**2 * weights) @ self.sums)

    def chosen(self, index: Index) -> Array:
        return np.asarray(self.factors[index, None] * (self.steps.steps[index] @ self.sums))


KERNEL_ERROR = 3e-2
"""Maximum relative error of the kernel in `curvature`, and so of the Hessian in every direction."""

MAX_PIVOTS = 40  # maximum number of pivots for an interval; pivots by size are used otherwise
MIN_SINGLE_WEIGHTS = 1024  # `curvature` of at least this number of weights is in single precision
BLOCK_ROWS = 256  # rows of the curvature formed at a time


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The dual function at some weights, by one decomposition."""

    weights: Array  # (s + m,) λ, then μ; here and below, m is 0 if Q is fixed
    values: Array  # (k,) singular values s in increasing order; their sum is F
    mean: Array  # (k,) the n of `dualmech.fast.engine.dual_function`; equal to `values` for τ = 0
    smoothing: float  # τ
    neighbour_rows: Array  # (s, k) rows t_i
    query_rows: Rows  # (m, k) rows u_j
    root: Array  # (k, k) ``Σ = root diag(1/n) root'``
    log_volume: float  # ``log |det root|``
    decompositions: int = 1  # number of decompositions
    offsets: Array | None = None  # (s,) o, costs that do not depend on the covariance

    @cached_property
    def constraint_values(self) -> Array:
        """``d_i' Σ⁻¹ d_i``, then ``v_j Σ v_j'``, shape (s + m,)."""
        return np.asarray(self._squares(self.mean[:, None])[:, 0] / self.weights)

    @property
    def neighbours(self) -> int:
        """The number s of neighbours."""
        return len(self.neighbour_rows)

    @cached_property
    def dual_value(self) -> float:
        """F(λ, μ)."""
        return float(self.values.sum())

    @cached_property
    def lower_bound(self) -> float:
        """``F² / (Σλ Σμ)``, or ``F² / Σλ``, a bound on the optimum (the judge recomputes it)."""
        first_sum, last = self.weights[: self.neighbours].sum(), self.weights[self.neighbours :]
        offset = 0.0 if self.offsets is None else self.weights[: self.neighbours] @ self.offsets / first_sum
        return float(self.dual_value**2 / (first_sum * last.sum() if last.size else first_sum) + offset)

    @cached_property
    def objective(self) -> float:
        """Maximum cost of Σ times its maximum variance, or times ``tr(Q Σ)``: invariant under scaling."""
        costs, variances = self.constraint_values[: self.neighbours], self.constraint_values[self.neighbours :]
        query_factor = variances.max() if variances.size else (self.values**2 / self.mean).sum()
        return float((costs * query_factor if self.offsets is None else costs * query_factor + self.offsets).max())

    def gradient(self) -> Array:
        """Return the gradient of the dual function, shape (s + m,): of G and the linear terms."""
        gradient = self.constraint_values if self.offsets is None else self.constraint_values + self.linear
        if not self.smoothing:
            return gradient
        squared_norms = np.einsum("ik,ik->i", self.neighbour_rows, self.neighbour_rows)
        gradient = gradient.copy()
        gradient[: self.neighbours] += self.smoothing * squared_norms / self.weights[: self.neighbours]
        return gradient

    def gradient_slope(self) -> Array:
        """Return the derivative of `gradient` in τ, shape (s + m,), from the derivative of n, ``-n / (2n + τ)``."""
        slope = -self.mean / (2 * self.mean + self.smoothing)
        neighbour_part, query_part = (
            self.neighbour_rows**2 @ (1 + slope),
            self.query_rows.squares(-slope[:, None])[:, 0],
        )
        return np.concatenate([neighbour_part, query_part]) / self.weights

    @property
    def linear(self) -> Array:
        """Coefficients of the linear terms apart from G, shape (s + m,): the offsets, and -1 for every query."""
        linear = np.zeros(len(self.weights))
        if self.offsets is not None:
            linear[: self.neighbours], linear[self.neighbours :] = self.offsets, -1.0
        return linear

    def smoothed(self, smoothing: float) -> Spectrum:
        """Return the same decomposition at another τ."""
        mean = 2 * self.values**2 / (smoothing + np.sqrt(smoothing**2 + 4 * self.values**2))
        last = self.query_rows.scaled(self.mean / mean)
        return replace(self, mean=mean, smoothing=smoothing, query_rows=last, decompositions=1)

    @property
    def barrier(self) -> float:
        """``log det M`` up to constants, without the logarithms of the weights."""
        return float(np.log(self.mean).sum()) + 2 * self.log_volume

    def covariance(self) -> Array:
        """Return the unscaled Σ, shape (k, k)."""
        half = self.root / np.sqrt(self.mean)
        return half @ half.T

    def tightened(self, rel_increase: float) -> Array:
        """Return the unscaled Σ, shape (k, k), with less noise in unconstrained directions.

        In directions that queries hardly use, the optimal noise is almost unbounded, and Σ loses precision. With τ
        equal to `rel_increase` times the maximum cost, ``(Σ⁻¹ + τ (D D')⁻¹)⁻¹ ⪯ Σ``. Its costs are at most τ higher,
        since ``d' (D D')⁻¹ d`` is at most 1 for the columns d of D.
        """
        weights = self.weights[: self.neighbours]
        differences = (self.neighbour_rows / np.sqrt(weights)[:, None]).T
        axes, lengths, _ = linalg.svd(differences)
        inverse_root = np.sqrt(self.mean)[:, None] * axes * lengths
        _, values, right = linalg.svd(inverse_root)
        tau = rel_increase * float(self.constraint_values[: self.neighbours].max())
        half = self.root @ (axes * lengths) @ right.T / np.sqrt(values**2 + tau)
        return np.asarray(half @ half.T)

    def curvature_product(self, change: Array) -> Array:
        """Return ``-∇²G`` times a relative change of the weights, shape (s + m,)."""
        neighbour_part = (self.neighbour_rows.T * change[: self.neighbours]) @ self.neighbour_rows
        products = (
            self.query_rows.gram(change[self.neighbours :]) - neighbour_part
            if len(self.query_rows)
            else -neighbour_part
        )
        shifted = self.mean + self.smoothing / 2
        products *= self.mean[:, None] * self.mean / (shifted[:, None] + shifted)
        regularised = self.smoothing * neighbour_part - products
        return np.concatenate([DenseRows(self.neighbour_rows).forms(regularised), self.query_rows.forms(products)])

    def curvature_diagonal(self) -> Array:
        diagonal = np.asarray((self._squares(self._kernel_factor()) ** 2).sum(axis=1))
        if self.smoothing:
            squared_norms = np.einsum("ik,ik->i", self.neighbour_rows, self.neighbour_rows)
            diagonal[: self.neighbours] += self.smoothing * squared_norms**2
        return diagonal

    def curvature(self, indices: npt.NDArray[np.intp], exactly: bool = False) -> Array:
        """Return the lower triangle of ``-∇²G`` in relative weights, for some indices in increasing order.

        The kernel ``n_a n_b / (n_a + n_b + τ)`` is approximated by a short sum of rank-one terms. The contribution of
        each term is the entrywise square of a weighted Gram matrix of the factors; entries between a neighbour and a
        query are negative. For many weights the result is computed in single precision, unless `exactly` is set.
        """
        split = int(np.searchsorted(indices, self.neighbours))
        use_single = len(indices) >= MIN_SINGLE_WEIGHTS and not exactly
        factors: Any = self.rows(indices).astype(np.float32 if use_single else np.float64, copy=False)
        terms = self._kernel_factor().astype(factors.dtype)
        result = np.zeros((len(factors), len(factors)), dtype=factors.dtype)
        for start in range(0, len(factors), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, len(factors))
            block = result[start:stop, :stop]
            for term in terms.T:
                product = (factors[start:stop] * term) @ factors[:stop].T
                product *= product
                block += product
        result[split:, :split] *= -1
        if self.smoothing:
            first = factors[:split]
            result[:split, :split] += factors.dtype.type(self.smoothing) * (first @ first.T) ** 2
        return result.astype(np.float64, copy=False)

    def rows(self, indices: npt.NDArray[np.intp]) -> Array:
        """Return the rows t_i and u_j for some indices in increasing order."""
        split = int(np.searchsorted(indices, self.neighbours))
        return np.vstack(
            [self.neighbour_rows[indices[:split]], self.query_rows.chosen(indices[split:] - self.neighbours)]
        )

    def _squares(self, columns: Array) -> Array:
        """Return ``Σ_a f_ia² d_ab`` for the rows f of neighbours and queries, and a matrix d (k, n)."""
        return np.concatenate([self.neighbour_rows**2 @ columns, self.query_rows.squares(columns)])

    def _kernel_factor(self) -> Array:
        """Return g, shape (k, q), with ``g g'`` close to ``n_a n_b / (n_a + n_b + τ)``, entry by entry.

        With ``x = n + τ/2`` the kernel is ``n_a n_b / (x_a + x_b)``. After elimination of the pivots p_1, p_2, … the
        relative remainder of an entry is ``r_a r_b`` with ``r_a = Π (x_a - p) / (x_a + p)``. Its maximum is on the
        diagonal.
        """
        shifted = self.mean + self.smoothing / 2
        remainder, terms = np.ones(len(shifted)), []
        for pivot in min(_pivots_by_size(shifted), _pivots_of_interval(shifted), key=len):
            terms.append(self.mean * remainder * (np.sqrt(2 * pivot) / (shifted + pivot)))
            remainder = remainder * ((shifted - pivot) / (shifted + pivot))
        return np.stack(terms, axis=1)


def _pivots_by_size(shifted: Array) -> Array:
    """Choose pivots greedily, each at the maximum remainder: few are needed if the values lie in clusters."""
    remainders, pivots = np.ones(len(shifted)), [float(np.sqrt(shifted[0] * shifted[-1]))]
    while True:
        remainders = np.abs(remainders * ((shifted - pivots[-1]) / (shifted + pivots[-1])))
        if remainders.max() ** 2 <= KERNEL_ERROR:
            return np.array(pivots)
        pivots.append(float(shifted[np.argmax(remainders)]))


def _pivots_of_interval(shifted: Array) -> Array:
    """Return the pivots with the minimax remainder on the whole interval (Zolotarev; as shifts, Wachspress)."""
    parameter = min((shifted[0] / shifted[-1]) ** 2, 1.0)
    quarter = scipy.special.ellipkm1(parameter)
    for count in itertools.count(1):
        points = quarter * (np.arange(count) + 0.5) / count
        pivots = shifted[-1] * scipy.special.ellipj(points, 1 - parameter)[2]
        remainders = np.prod((shifted[:, None] - pivots) / (shifted[:, None] + pivots), axis=1)
        if np.abs(remainders).max() ** 2 <= KERNEL_ERROR or count == MAX_PIVOTS:
            return np.asarray(pivots)
    raise AssertionError
