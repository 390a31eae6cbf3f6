"""The dual function of many blocks of rank one: every decomposition is a square root.

Block t sees the neighbour i with the squared entry ``d_it²`` and the query j with ``v_jt²``. With
``p_t = Σ_i λ_i d_it²`` its singular value is ``s_t = √(p_t Σ_j μ_j v_jt²)``. The formulas are those of
`dualmech.fast.engine.fidelity`, each for all blocks at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalProgram:
    """The data of such blocks."""

    # (m, t) ``v²`` over targets; where the queries' weights are given, (1, t), with these in them
    squares: sp.csr_array
    reach: sp.csr_array  # (s, t) ``d²``
    fixed: bool = False  # whether the weights of the queries are given

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of weights on neighbours and on queries, and of blocks."""
        return self.reach.shape[0], 0 if self.fixed else self.squares.shape[0], self.squares.shape[1]

    @property
    def operations(self) -> tuple[float, float, float]:
        """Approximate operations of an evaluation, of the curvature of all weights, and of a product with it."""
        entries = self.squares.nnz + self.reach.nnz
        return 20.0 * entries, 40.0 * entries * max(1, entries // self.squares.shape[1]), 20.0 * entries

    def at(self, weights: Array) -> DiagonalSpectrum:
        """Evaluate the dual function at strictly positive weights."""
        neighbours = self.reach.shape[0]
        queries = np.ones(1) if self.fixed else weights[neighbours:]
        moved = np.asarray(self.reach.T @ weights[:neighbours])
        values = np.sqrt(moved * np.asarray(self.squares.T @ queries))
        return DiagonalSpectrum(self, weights, moved, values, values)


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalSpectrum:
    """Everything that is known at given weights, ``moved`` being p; see `dualmech.fast.fidelity.Spectrum`."""

    program: DiagonalProgram
    weights: Array
    moved: Array
    values: Array
    mean: Array
    smoothing: float = 0.0

    @property
    def neighbours(self) -> int:
        """Where the queries begin."""
        return int(self.program.reach.shape[0])

    @property
    def gains(self) -> Array:
        """``d_i' Σ⁻¹ d_i``, then ``v_j Σ v_j'``."""
        return self._sum_by_group(self.mean / self.moved, self.moved / self.mean)

    def gradient(self) -> Array:
        """Return the gradient of the smoothed function."""
        return self._sum_by_group((self.mean + self.smoothing) / self.moved, self.moved / self.mean)

    def gradient_slope(self) -> Array:
        """Return the derivative of the gradient by the smoothing."""
        slope = -self.mean / (2 * self.mean + self.smoothing)
        return self._sum_by_group((1 + slope) / self.moved, -slope * self.moved / self.mean**2)

    @property
    def barrier(self) -> float:
        """``log det M``, but for constants and the weights' own part."""
        return float(np.log(self.mean * self.moved).sum())

    def smoothed(self, smoothing: float) -> DiagonalSpectrum:
        """Return the same at another smoothing."""
        mean = 2 * self.values**2 / (smoothing + np.sqrt(smoothing**2 + 4 * self.values**2))
        return replace(self, mean=mean, smoothing=smoothing)

    def covariance(self) -> Array:
        """Return the level of noise of each block, unscaled."""
        return np.asarray(self.moved / self.mean)

    def curvature_diagonal(self) -> Array:
        """Return the diagonal of `hessian`."""
        own, seen, kernel = self._relative()
        first = (own * own) @ (kernel + self.smoothing)
        return first if seen is None else np.concatenate([first, (seen * seen) @ kernel])

    def curvature_product(self, change: Array) -> Array:
        """Return `hessian` times a relative change of the weights."""
        own, seen, kernel = self._relative()
        spent = own.T @ change[: self.neighbours]
        if seen is None:
            return np.asarray(own @ ((kernel + self.smoothing) * spent))
        moved = kernel * (seen.T @ change[self.neighbours :] - spent)
        return np.concatenate([own @ (self.smoothing * spent - moved), seen @ moved])

    def hessian(self) -> Array:
        """Return ``-∇²G`` in relative weights."""
        own, seen, kernel = self._relative()
        first = (own.multiply((kernel + self.smoothing)[None, :]) @ own.T).toarray()
        if seen is None:
            return np.asarray(first)
        mixed, last = (
            (-(seen.multiply(kernel[None, :]) @ own.T)).toarray(),
            seen.multiply(kernel[None, :]) @ seen.T,
        )
        return np.block([[first, mixed.T], [mixed, last.toarray()]])

    def _relative(self) -> tuple[sp.csr_array, sp.csr_array | None, Array]:
        """Return ``t_i²`` and ``u_j²``, how a relative change of a weight moves each block, and how that bends G."""
        program, mean = self.program, self.mean
        own = sp.csr_array(_scale(program.reach, self.weights[: self.neighbours], 1 / self.moved))
        kernel = mean**2 / (2 * mean + self.smoothing)
        if program.fixed:
            return own, None, kernel
        return own, _scale(program.squares, self.weights[self.neighbours :], self.moved / mean**2), kernel

    def _sum_by_group(self, of_neighbours: Array, of_queries: Array) -> Array:
        first = np.asarray(self.program.reach @ of_neighbours)
        if self.program.fixed:
            return first
        return np.concatenate([first, np.asarray(self.program.squares @ of_queries)])


def _scale(matrix: sp.csr_array, rows: Array, columns: Array) -> sp.csr_array:
    return sp.csr_array(matrix.multiply(rows[:, None]).multiply(columns[None, :]))
