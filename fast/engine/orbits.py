"""Dual functions with grouped weights: of several blocks, or of a program with equal weights on orbits.

Each *part* is a separate `DenseDual`, whose weight i is ``share_i`` times the weight of a group. The dual function is
the sum over the parts; value, gradient, Hessian and barrier are sums by group. The shares are 1 for the blocks of a
union of tables, and 1/k for a single part with an orbit of k equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.fast.engine.dual_function import DenseDual
from dualmech.fast.engine.spectrum import Spectrum
from dualmech.validate import Array

# The dual function of many blocks of rank one, with a square root in place of each decomposition.
#
# Block t has the squared entry ``d_it²`` for neighbour i and ``v_jt²`` for query j. With ``p_t = Σ_i λ_i d_it²`` its
# singular value is ``s_t = √(p_t Σ_j μ_j v_jt²)``. The formulas of `dualmech.fast.engine.dual_function` are evaluated
# for all blocks at once.


@dataclass(frozen=True, slots=True, eq=False)
class RankOneProgram:
    # (m, t) ``v²`` over targets; if the query weights are fixed, their weighted sum (1, t)
    squared_queries: sp.csr_array
    squared_sensitivities: sp.csr_array  # (s, t) ``d²``
    fixed: bool = False  # whether the weights of the queries are fixed

    @property
    def sizes(self) -> tuple[int, int, int]:
        return (
            self.squared_sensitivities.shape[0],
            0 if self.fixed else self.squared_queries.shape[0],
            self.squared_queries.shape[1],
        )

    @property
    def operations(self) -> tuple[float, float, float]:
        """Approximate operations of an evaluation, of the curvature of all weights, and of a product with it."""
        entries = self.squared_queries.nnz + self.squared_sensitivities.nnz
        return 20.0 * entries, 40.0 * entries * max(1, entries // self.squared_queries.shape[1]), 20.0 * entries

    def at(self, weights: Array) -> RankOneSpectrum:
        neighbours = self.squared_sensitivities.shape[0]
        queries = np.ones(1) if self.fixed else weights[neighbours:]
        projected = np.asarray(self.squared_sensitivities.T @ weights[:neighbours])
        values = np.sqrt(projected * np.asarray(self.squared_queries.T @ queries))
        return RankOneSpectrum(self, weights, projected, values, values)


@dataclass(frozen=True, slots=True, eq=False)
class RankOneSpectrum:
    """The dual function at some weights, with p in `projected`; see `dualmech.fast.engine.spectrum.Spectrum`."""

    program: RankOneProgram
    weights: Array
    projected: Array
    values: Array
    mean: Array
    smoothing: float = 0.0

    @property
    def neighbours(self) -> int:
        return int(self.program.squared_sensitivities.shape[0])

    @property
    def constraint_values(self) -> Array:
        """``d_i' Σ⁻¹ d_i``, then ``v_j Σ v_j'``."""
        return self._sum_by_group(self.mean / self.projected, self.projected / self.mean)

    def gradient(self) -> Array:
        return self._sum_by_group((self.mean + self.smoothing) / self.projected, self.projected / self.mean)

    def gradient_slope(self) -> Array:
        slope = -self.mean / (2 * self.mean + self.smoothing)
        return self._sum_by_group((1 + slope) / self.projected, -slope * self.projected / self.mean**2)

    @property
    def barrier(self) -> float:
        """``log det M`` up to constants, without the logarithms of the weights."""
        return float(np.log(self.mean * self.projected).sum())

    def smoothed(self, smoothing: float) -> RankOneSpectrum:
        mean = 2 * self.values**2 / (smoothing + np.sqrt(smoothing**2 + 4 * self.values**2))
        return replace(self, mean=mean, smoothing=smoothing)

    def covariance(self) -> Array:
        return np.asarray(self.projected / self.mean)

    def curvature_diagonal(self) -> Array:
        neighbour_rows, query_rows, kernel = self._relative()
        neighbour_part = (neighbour_rows * neighbour_rows) @ (kernel + self.smoothing)
        return (
            neighbour_part
            if query_rows is None
            else np.concatenate([neighbour_part, (query_rows * query_rows) @ kernel])
        )

    def curvature_product(self, change: Array) -> Array:
        neighbour_rows, query_rows, kernel = self._relative()
        neighbour_part = neighbour_rows.T @ change[: self.neighbours]
        if query_rows is None:
            return np.asarray(neighbour_rows @ ((kernel + self.smoothing) * neighbour_part))
        products = kernel * (query_rows.T @ change[self.neighbours :] - neighbour_part)
        return np.concatenate([neighbour_rows @ (self.smoothing * neighbour_part - products), query_rows @ products])

    def curvature(self) -> Array:
        """Return ``-∇²G`` in relative weights."""
        neighbour_rows, query_rows, kernel = self._relative()
        neighbour_block = (neighbour_rows.multiply((kernel + self.smoothing)[None, :]) @ neighbour_rows.T).toarray()
        if query_rows is None:
            return np.asarray(neighbour_block)
        cross_block, query_block = (
            (-(query_rows.multiply(kernel[None, :]) @ neighbour_rows.T)).toarray(),
            query_rows.multiply(kernel[None, :]) @ query_rows.T,
        )
        return np.block([[neighbour_block, cross_block.T], [cross_block, query_block.toarray()]])

    def _relative(self) -> tuple[sp.csr_array, sp.csr_array | None, Array]:
        """Return ``t_i²`` and ``u_j²``, derivatives of blocks in relative weights, and the curvature of G in blocks."""
        program, mean = self.program, self.mean
        neighbour_rows = sp.csr_array(
            _scale(program.squared_sensitivities, self.weights[: self.neighbours], 1 / self.projected)
        )
        kernel = mean**2 / (2 * mean + self.smoothing)
        if program.fixed:
            return neighbour_rows, None, kernel
        return (
            neighbour_rows,
            _scale(program.squared_queries, self.weights[self.neighbours :], self.projected / mean**2),
            kernel,
        )

    def _sum_by_group(self, neighbour_values: Array, query_values: Array) -> Array:
        neighbour_sums = np.asarray(self.program.squared_sensitivities @ neighbour_values)
        if self.program.fixed:
            return neighbour_sums
        return np.concatenate([neighbour_sums, np.asarray(self.program.squared_queries @ query_values)])


def _scale(matrix: sp.csr_array, rows: Array, columns: Array) -> sp.csr_array:
    return sp.csr_array(matrix.multiply(rows[:, None]).multiply(columns[None, :]))


Index = npt.NDArray[np.intp]

MAX_MEMBERS = 10_000
"""Maximum number of weights of a part whose full Hessian is formed before it is summed by group (0.8 GiB)."""

SLAB_ENTRIES = 2**24  # otherwise, entries of the group matrices that are formed at a time


@dataclass(frozen=True, eq=False)
class Part:
    """A program, the group of each of its weights, and the share of each weight in the group's weight."""

    program: DenseDual
    groups: Index
    shares: Array

    @cached_property
    def distinct(self) -> bool:
        """Whether all weights belong to different groups."""
        return len(np.unique(self.groups)) == len(self.groups)

    @cached_property
    def operations(self) -> tuple[float, float]:
        """Approximate operations of the Hessian by group: from all weights, and from one matrix per group."""
        rank, members, groups = self.program.sizes[2], len(self.groups), len(np.unique(self.groups))
        return 3.0 * members**2 * rank, 2.0 * members * rank**2 + 2.0 * groups**2 * rank**2

    @property
    def by_members(self) -> bool:
        """Whether to form the Hessian from all weights."""
        first, second = self.operations
        return self.distinct or (first <= second and len(self.groups) <= MAX_MEMBERS)


@dataclass(frozen=True, eq=False)
class OrbitProgram:
    """Parts with grouped weights: groups of neighbours first, then groups of queries.

    `diagonal`, if not None, contains the blocks of rank one, whose weights are the group weights. If `fixed`, the
    weights of the queries are fixed, and all groups consist of neighbours.
    """

    parts: tuple[Part, ...]
    diagonal: RankOneProgram | None
    neighbours: int
    queries: int
    fixed: bool = False

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        rank = sum(part.program.sizes[2] for part in self.parts)
        return self.neighbours, self.queries, rank + (0 if self.diagonal is None else self.diagonal.sizes[2])

    @cached_property
    def operations(self) -> tuple[float, float, float]:
        """Approximate operations of an evaluation, of the curvature of all weights, and of a product with it."""
        counts = [part.program.operations for part in self.parts]
        first, product = sum(count[0] for count in counts), sum(count[2] for count in counts)
        second = sum(part.operations[0 if part.by_members else 1] for part in self.parts)
        if self.diagonal is not None:
            diagonal = self.diagonal.operations
            return first + diagonal[0], second + diagonal[1], product + diagonal[2]
        return first, second, product

    def at(self, weights: Array) -> OrbitSpectrum:
        spectra = tuple(part.program.at(weights[part.groups] * part.shares) for part in self.parts)
        return OrbitSpectrum(self, weights, spectra, None if self.diagonal is None else self.diagonal.at(weights))

    def gather(self, values: list[Array], diagonal: Array | None) -> Array:
        """Sum values for the weights of all parts by group."""
        total = np.zeros(self.neighbours + self.queries) if diagonal is None else diagonal.copy()
        for part, value in zip(self.parts, values, strict=True):
            total += np.bincount(part.groups, value, len(total))
        return total


@dataclass(frozen=True, eq=False)
class OrbitSpectrum:
    """The dual function at some weights, by one decomposition per part; see `fast.engine.spectrum.Spectrum`."""

    program: OrbitProgram
    weights: Array
    spectra: tuple[Spectrum, ...]
    diagonal: RankOneSpectrum | None
    smoothing: float = 0.0

    @property
    def neighbours(self) -> int:
        return self.program.neighbours

    @property
    def offsets(self) -> None:
        return None

    @property
    def decompositions(self) -> int:
        """Number of decompositions; one decomposition of every part counts as one."""
        return max((spectrum.decompositions for spectrum in self.spectra), default=1)

    @property
    def values(self) -> Array:
        return np.sort(self._concatenate("values"))

    @property
    def mean(self) -> Array:
        return self._concatenate("mean")

    @cached_property
    def constraint_values(self) -> Array:
        """Mean cost of each group of neighbours, then mean variance of each group of queries."""
        values = [
            part.shares * spectrum.constraint_values
            for part, spectrum in zip(self.program.parts, self.spectra, strict=True)
        ]
        return self.program.gather(values, None if self.diagonal is None else self.diagonal.constraint_values)

    @property
    def linear(self) -> Array:
        return np.zeros(len(self.weights))

    @cached_property
    def dual_value(self) -> float:
        return float(self._concatenate("values").sum())

    @cached_property
    def lower_bound(self) -> float:
        """``F² / (Σλ Σμ)``, or ``F² / Σλ``, a bound on the optimum (the judge recomputes it)."""
        first_sum, last = self.weights[: self.neighbours].sum(), self.weights[self.neighbours :]
        return float(self.dual_value**2 / (first_sum * last.sum() if last.size else first_sum))

    @cached_property
    def objective(self) -> float:
        """Maximum cost times maximum variance, or times total variance: invariant under scaling."""
        values = self.constraint_values
        variances = values[self.neighbours :]
        query_factor = variances.max() if variances.size else (self._concatenate("values") ** 2 / self.mean).sum()
        return float(values[: self.neighbours].max() * query_factor)

    @property
    def barrier(self) -> float:
        """``log det M`` up to constants, without the logarithms of the weights."""
        total = sum(spectrum.barrier for spectrum in self.spectra)
        return float(total) + (0.0 if self.diagonal is None else self.diagonal.barrier)

    def gradient(self) -> Array:
        pairs = zip(self.program.parts, self.spectra, strict=True)
        diagonal = None if self.diagonal is None else self.diagonal.gradient()
        return self.program.gather([part.shares * spectrum.gradient() for part, spectrum in pairs], diagonal)

    def gradient_slope(self) -> Array:
        pairs = zip(self.program.parts, self.spectra, strict=True)
        slopes = [part.shares * spectrum.gradient_slope() for part, spectrum in pairs]
        return self.program.gather(slopes, None if self.diagonal is None else self.diagonal.gradient_slope())

    def smoothed(self, smoothing: float) -> OrbitSpectrum:
        return replace(
            self,
            spectra=tuple(spectrum.smoothed(smoothing) for spectrum in self.spectra),
            diagonal=None if self.diagonal is None else self.diagonal.smoothed(smoothing),
            smoothing=smoothing,
        )

    def covariance(self) -> tuple[Array, tuple[Array, ...]]:
        """Return the unscaled variances of the rank-one blocks and the unscaled covariance of each part."""
        levels = np.zeros(0) if self.diagonal is None else self.diagonal.covariance()
        return levels, tuple(spectrum.covariance() for spectrum in self.spectra)

    def tightened(self, share: float) -> tuple[Array, tuple[Array, ...]]:
        """Return the same with less noise in unconstrained directions; see `Spectrum.tightened`."""
        return self.covariance()[0], tuple(spectrum.tightened(share) for spectrum in self.spectra)

    def curvature_diagonal(self) -> Array:
        """Return the diagonal of `curvature`, or an upper bound if a part has several weights of the same group."""
        total = np.zeros(len(self.weights)) if self.diagonal is None else self.diagonal.curvature_diagonal()
        for part, spectrum in zip(self.program.parts, self.spectra, strict=True):
            roots = np.sqrt(spectrum.curvature_diagonal())
            total = total + np.bincount(part.groups, roots, len(total)) ** 2
        return np.asarray(total)

    def curvature_product(self, change: Array) -> Array:
        """Return ``-∇²G`` times a relative change of the group weights."""
        pairs = zip(self.program.parts, self.spectra, strict=True)
        diagonal = None if self.diagonal is None else self.diagonal.curvature_product(change)
        return self.program.gather(
            [spectrum.curvature_product(change[part.groups]) for part, spectrum in pairs], diagonal
        )

    def curvature(self, indices: Index, exactly: bool = False) -> Array:
        """Return ``-∇²G`` in relative weights, for some groups in increasing order."""
        size = len(indices)
        index = np.full(len(self.weights), -1)
        index[indices] = np.arange(size)
        total = np.zeros((size, size))
        if self.diagonal is not None:
            total += self.diagonal.curvature()[np.ix_(indices, indices)]
        for part, spectrum in zip(self.program.parts, self.spectra, strict=True):
            members = np.flatnonzero(index[part.groups] >= 0)
            groups = index[part.groups[members]]
            if part.distinct:
                total[np.ix_(groups, groups)] += _hessian(spectrum, members, exactly)
            elif part.by_members:
                total += _sum_by_group(_hessian(spectrum, members, exactly), groups, size)
            else:
                total += _hessian_by_matrices(spectrum, members, groups, size)
        return total

    def _concatenate(self, name: str) -> Array:
        arrays = [getattr(spectrum, name) for spectrum in self.spectra]
        return np.concatenate([*arrays, getattr(self.diagonal, name)] if self.diagonal is not None else arrays)


def _hessian(spectrum: Spectrum, members: Index, exactly: bool) -> Array:
    lower = np.tril(spectrum.curvature(members, exactly))
    return np.asarray(lower + np.tril(lower, -1).T)


def _sum_by_group(hessian: Array, groups: Index, size: int) -> Array:
    entries = np.ones(len(groups)), (groups, np.arange(len(groups)))
    members = sp.csr_array(entries, shape=(size, len(groups)))
    return np.asarray((members @ (members @ hessian).T).T)


def _hessian_by_matrices(spectrum: Spectrum, members: Index, groups: Index, size: int) -> Array:
    """Return the Hessian of many weights in few groups, from the matrix ``Σ u u'`` of each group, in slabs."""
    mean, smoothing, rank = spectrum.mean, spectrum.smoothing, len(spectrum.mean)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    is_neighbour = members[order[starts]] < spectrum.neighbours
    # Members are in increasing order, so neighbours come first: a group has neighbours only or queries only.
    runs = [spectrum.rows(members[run]) for run in np.split(order, starts[1:])]
    matrix = np.zeros((len(runs), len(runs)))
    slab_rows = max(1, SLAB_ENTRIES // (len(runs) * rank))
    for start in range(0, rank, slab_rows):
        stop = min(start + slab_rows, rank)
        slab = np.stack([run[:, start:stop].T @ run for run in runs])
        slab[is_neighbour] *= -1
        kernel = mean[start:stop, None] * mean / (mean[start:stop, None] + mean + smoothing)
        flat_slab = slab.reshape(len(runs), -1)
        matrix += (flat_slab * kernel.ravel()) @ flat_slab.T
        if smoothing:
            matrix[np.ix_(is_neighbour, is_neighbour)] += (
                smoothing * flat_slab[is_neighbour] @ flat_slab[is_neighbour].T
            )
    total = np.zeros((size, size))
    group_indices = groups[order[starts]]
    total[np.ix_(group_indices, group_indices)] = matrix
    return total
