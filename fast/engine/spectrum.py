"""Value, gradient, Hessian and primal point of the dual function, from one decomposition.

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

# Weighted queries in other coordinates: the operations of the dual function, with or without their entries.
# Rows ``u_j = f_j v_j R``, V (m, k) being the queries. Where V is written out, so are the rows; where it is known by
# its steps, sums of steps give the Gram matrices and quadratic forms.


Index = npt.NDArray[np.intp]

UNEVEN = 1e3  # ratio of queries' entries, targets in them, from which on sums lose digits of the small ones


class Rows(Protocol):
    """Rows u_j (m, k)."""

    def __len__(self) -> int:
        """Return their number m."""

    def scaled(self, columns: Array) -> Rows:
        """Return the rows with their columns multiplied (k,)."""

    def squares(self, columns: Array) -> Array:
        """Return ``Σ_a u_ja² d_ab`` for the columns of d (k, n)."""

    def forms(self, matrix: Array) -> Array:
        """Return ``u_j M u_j'`` (m,) of a symmetric matrix (k, k)."""

    def gram(self, weights: Array) -> Array:
        """Return ``Σ_j w_j u_j' u_j`` (k, k), for weights (m,) of any sign."""

    def chosen(self, index: Index) -> Array:
        """Return some of the rows, written out."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseRows:
    """Rows that are written out; see `Rows`."""

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
    """Queries ``f_j w_j`` by the steps of the w_j, never written out, unless as an array."""

    steps: Steps
    factors: Array  # (m,) f

    @classmethod
    def of(cls, steps: Steps | None, factors: Array) -> SteppedQueries | None:
        """Return queries by steps; None where these are None, or where sums would lose digits of the small ones."""
        if steps is None:
            return None
        lengths = steps.largest * factors
        return cls(steps, factors) if lengths.max() < UNEVEN * lengths.min() else None

    @property
    def shape(self) -> tuple[int, int]:
        queries, cells = self.steps.steps.shape
        return int(queries), int(cells)

    def chosen(self, index: Index) -> SteppedQueries:
        return SteppedQueries(self.steps.chosen(index), self.factors[index])

    def gram(self, weights: Array) -> Array:
        """Return the weighted Gram matrix (k, k)."""
        return self.steps.gram(self.factors**2 * weights)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        queries, cells = self.shape
        if queries * cells > MAX_DENSE_ENTRIES:
            raise InvalidInputError(
                f"{queries} queries over {cells} cells are too many to write out (limit {MAX_DENSE_ENTRIES} entries)"
            )
        return self.steps.times(np.eye(self.shape[1])) * self.factors[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class SteppedRows:
    """Rows ``f_j w_j R`` by the steps of the w_j, never written out; see `Rows`."""

    steps: Steps
    factors: Array  # (m,) f
    sums: Array  # (k, k) ``C R``, sums of the rows of R

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
"""Largest relative error of the kernel in `curvature`, and so of the Hessian in every direction."""

MOST_PIVOTS = 40  # pivots of an interval, beyond which pivots by size are taken
SINGLE_FROM = 1024  # weights from which on `curvature` is formed in single precision
BLOCK_ROWS = 256  # rows of it that are formed at a time


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Everything that one decomposition tells at given weights; values that are asked for often are kept."""

    weights: Array  # (s + m,) λ, then μ; where Q is fixed, there is no μ, here and below
    values: Array  # (k,) singular values s, ascending; their sum is F
    mean: Array  # (k,) the n of the module's docstring; equal to `values` where nothing is smoothed
    smoothing: float  # τ
    first: Array  # (s, k) rows t_i
    last: Rows  # (m, k) rows u_j
    root: Array  # (k, k) ``Σ = root diag(1/n) root'``
    log_volume: float  # ``log |det root|``
    decompositions: int = 1  # number of decompositions
    offsets: Array | None = None  # (s,) o, costs that no covariance changes

    @cached_property
    def gains(self) -> Array:
        """``d_i' Σ⁻¹ d_i``, then ``v_j Σ v_j'`` (s + m,)."""
        return np.asarray(self._squares(self.mean[:, None])[:, 0] / self.weights)

    @property
    def neighbours(self) -> int:
        """Their number s, where the queries begin."""
        return len(self.first)

    @cached_property
    def dual_value(self) -> float:
        """F(λ, μ)."""
        return float(self.values.sum())

    @cached_property
    def lower_bound(self) -> float:
        """``F² / (Σλ Σμ)``, or ``F² / Σλ``, a bound on the optimum (the judge recomputes it)."""
        first, last = self.weights[: self.neighbours].sum(), self.weights[self.neighbours :]
        offset = 0.0 if self.offsets is None else self.weights[: self.neighbours] @ self.offsets / first
        return float(self.dual_value**2 / (first * last.sum() if last.size else first) + offset)

    @cached_property
    def objective(self) -> float:
        """Largest cost of Σ times its largest variance, or ``tr(Q Σ)``: no scale matters (the judge recomputes)."""
        costs, variances = self.gains[: self.neighbours], self.gains[self.neighbours :]
        last = variances.max() if variances.size else (self.values**2 / self.mean).sum()
        return float((costs * last if self.offsets is None else costs * last + self.offsets).max())

    def gradient(self) -> Array:
        """Return the gradient of the dual function (s + m,): of G, and of its linear terms."""
        gradient = self.gains if self.offsets is None else self.gains + self.linear
        if not self.smoothing:
            return gradient
        first = np.einsum("ik,ik->i", self.first, self.first)
        gradient = gradient.copy()
        gradient[: self.neighbours] += self.smoothing * first / self.weights[: self.neighbours]
        return gradient

    def gradient_slope(self) -> Array:
        """Return the derivative of `gradient` by τ (s + m,), from the derivative of n, ``-n / (2n + τ)``."""
        slope = -self.mean / (2 * self.mean + self.smoothing)
        first, last = self.first**2 @ (1 + slope), self.last.squares(-slope[:, None])[:, 0]
        return np.concatenate([first, last]) / self.weights

    @property
    def linear(self) -> Array:
        """Coefficients of the terms linear in the weights, next to G (s + m,): the offsets, and -1 for every query."""
        linear = np.zeros(len(self.weights))
        if self.offsets is not None:
            linear[: self.neighbours], linear[self.neighbours :] = self.offsets, -1.0
        return linear

    def smoothed(self, smoothing: float) -> Spectrum:
        """Return the same decomposition at another τ."""
        mean = 2 * self.values**2 / (smoothing + np.sqrt(smoothing**2 + 4 * self.values**2))
        last = self.last.scaled(self.mean / mean)
        return replace(self, mean=mean, smoothing=smoothing, last=last, decompositions=1)

    @property
    def barrier(self) -> float:
        """``log det M``, but for constants and the weights' own part."""
        return float(np.log(self.mean).sum()) + 2 * self.log_volume

    def covariance(self) -> Array:
        """Return Σ (k, k), unscaled."""
        half = self.root / np.sqrt(self.mean)
        return half @ half.T

    def tightened(self, share: float) -> Array:
        """Return Σ (k, k), unscaled, without noise that nothing limits: its costs are higher by `share` at most.

        In directions that queries hardly use, optimal noise is almost unbounded, and rounding loses the rest of Σ.
        With τ a share of the largest cost, ``(Σ⁻¹ + τ (D D')⁻¹)⁻¹ ⪯ Σ`` costs at most τ more, since ``d' (D D')⁻¹ d``
        is at most 1 for the columns d of D.
        """
        weights = self.weights[: self.neighbours]
        moves = (self.first / np.sqrt(weights)[:, None]).T
        axes, lengths, _ = linalg.svd(moves)
        inverse_root = np.sqrt(self.mean)[:, None] * axes * lengths
        _, values, turned = linalg.svd(inverse_root)
        level = share * float(self.gains[: self.neighbours].max())
        half = self.root @ (axes * lengths) @ turned.T / np.sqrt(values**2 + level)
        return np.asarray(half @ half.T)

    def curvature_product(self, change: Array) -> Array:
        """Return ``-∇²G`` times a relative change of the weights (s + m,)."""
        spent = (self.first.T * change[: self.neighbours]) @ self.first
        moved = self.last.gram(change[self.neighbours :]) - spent if len(self.last) else -spent
        shifted = self.mean + self.smoothing / 2
        moved *= self.mean[:, None] * self.mean / (shifted[:, None] + shifted)
        kept = self.smoothing * spent - moved
        return np.concatenate([DenseRows(self.first).forms(kept), self.last.forms(moved)])

    def curvature_diagonal(self) -> Array:
        diagonal = np.asarray((self._squares(self._kernel_factor()) ** 2).sum(axis=1))
        if self.smoothing:
            first = np.einsum("ik,ik->i", self.first, self.first)
            diagonal[: self.neighbours] += self.smoothing * first**2
        return diagonal

    def curvature(self, chosen: npt.NDArray[np.intp], exactly: bool = False) -> Array:
        """Return the lower triangle of ``-∇²G`` in relative weights, for the chosen (ascending) indices.

        Writing the kernel ``n_a n_b / (n_a + n_b + τ)`` as a short sum of rank-one terms makes each term the
        square, entry by entry, of a weighted Gram matrix of the factors; entries between a neighbour and a query
        are negative. With many weights the result is formed in single precision, unless `exactly` is set, as it is
        where rounding leaves Newton's matrix indefinite.
        """
        split = int(np.searchsorted(chosen, self.neighbours))
        single = len(chosen) >= SINGLE_FROM and not exactly
        factors: Any = self.rows(chosen).astype(np.float32 if single else np.float64, copy=False)
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

    def rows(self, chosen: npt.NDArray[np.intp]) -> Array:
        """Return the rows t_i and u_j of the chosen (ascending) indices."""
        split = int(np.searchsorted(chosen, self.neighbours))
        return np.vstack([self.first[chosen[:split]], self.last.chosen(chosen[split:] - self.neighbours)])

    def _squares(self, columns: Array) -> Array:
        """Return ``Σ_a f_ia² d_ab`` for all rows f of both kinds, and the columns of d (k, n)."""
        return np.concatenate([self.first**2 @ columns, self.last.squares(columns)])

    def _kernel_factor(self) -> Array:
        """Return g (k, q) with ``g g'`` close to ``n_a n_b / (n_a + n_b + τ)``, entry by entry.

        With ``x = n + τ/2`` the kernel is ``n_a n_b / (x_a + x_b)``. Eliminating the pivots p_1, p_2, … from it leaves
        the share ``r_a r_b`` of an entry, where ``r_a = Π (x_a - p) / (x_a + p)``: the largest is on the diagonal.
        """
        shifted = self.mean + self.smoothing / 2
        left, terms = np.ones(len(shifted)), []
        for pivot in min(_pivots_by_size(shifted), _pivots_of_interval(shifted), key=len):
            terms.append(self.mean * left * (np.sqrt(2 * pivot) / (shifted + pivot)))
            left = left * ((shifted - pivot) / (shifted + pivot))
        return np.stack(terms, axis=1)


def _pivots_by_size(shifted: Array) -> Array:
    """Return the pivots where most is left, one after another: few where the values lie in clusters."""
    left, pivots = np.ones(len(shifted)), [float(np.sqrt(shifted[0] * shifted[-1]))]
    while True:
        left = np.abs(left * ((shifted - pivots[-1]) / (shifted + pivots[-1])))
        if left.max() ** 2 <= KERNEL_ERROR:
            return np.array(pivots)
        pivots.append(float(shifted[np.argmax(left)]))


def _pivots_of_interval(shifted: Array) -> Array:
    """Return the pivots that leave the least on the whole interval (Zolotarev; as shifts, Wachspress)."""
    parameter = min((shifted[0] / shifted[-1]) ** 2, 1.0)
    quarter = scipy.special.ellipkm1(parameter)
    for count in itertools.count(1):
        points = quarter * (np.arange(count) + 0.5) / count
        pivots = shifted[-1] * scipy.special.ellipj(points, 1 - parameter)[2]
        left = np.prod((shifted[:, None] - pivots) / (shifted[:, None] + pivots), axis=1)
        if np.abs(left).max() ** 2 <= KERNEL_ERROR or count == MOST_PIVOTS:
            return np.asarray(pivots)
    raise AssertionError
