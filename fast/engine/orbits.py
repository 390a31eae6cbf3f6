"""Weights that orbits tie together: the dual function of several blocks, or of a program whose weights are equal.

Each *part* is a `DenseDual` of its own; its weight i is ``share_i`` times the weight of a group. The dual
function is the sum of the parts' functions, and so are value, gradient, Hessian and barrier, summed by group. With a
part for each block of a union of tables the shares are 1; with one part and an orbit of k equal weights they are 1/k.
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

# The dual function of many blocks of rank one: every decomposition is a square root.
#
# Block t sees the neighbour i with the squared entry ``d_it²`` and the query j with ``v_jt²``. With
# ``p_t = Σ_i λ_i d_it²`` its singular value is ``s_t = √(p_t Σ_j μ_j v_jt²)``. The formulas are in
# `dualmech.fast.engine.dual_function`; here each is taken for all blocks at once.


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalProgram:
    # (m, t) ``v²`` over targets; where the queries' weights are given, (1, t), with these in them
    squares: sp.csr_array
    reach: sp.csr_array  # (s, t) ``d²``
    fixed: bool = False  # whether the weights of the queries are given

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.reach.shape[0], 0 if self.fixed else self.squares.shape[0], self.squares.shape[1]

    @property
    def operations(self) -> tuple[float, float, float]:
        """Approximate operations of an evaluation, of the curvature of all weights, and of a product with it."""
        entries = self.squares.nnz + self.reach.nnz
        return 20.0 * entries, 40.0 * entries * max(1, entries // self.squares.shape[1]), 20.0 * entries

    def at(self, weights: Array) -> DiagonalSpectrum:
        neighbours = self.reach.shape[0]
        queries = np.ones(1) if self.fixed else weights[neighbours:]
        moved = np.asarray(self.reach.T @ weights[:neighbours])
        values = np.sqrt(moved * np.asarray(self.squares.T @ queries))
        return DiagonalSpectrum(self, weights, moved, values, values)


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalSpectrum:
    """Everything that is known at given weights, ``moved`` being p; see `dualmech.fast.engine.spectrum.Spectrum`."""

    program: DiagonalProgram
    weights: Array
    moved: Array
    values: Array
    mean: Array
    smoothing: float = 0.0

    @property
    def neighbours(self) -> int:
        return int(self.program.reach.shape[0])

    @property
    def gains(self) -> Array:
        """``d_i' Σ⁻¹ d_i``, then ``v_j Σ v_j'``."""
        return self._sum_by_group(self.mean / self.moved, self.moved / self.mean)

    def gradient(self) -> Array:
        return self._sum_by_group((self.mean + self.smoothing) / self.moved, self.moved / self.mean)

    def gradient_slope(self) -> Array:
        slope = -self.mean / (2 * self.mean + self.smoothing)
        return self._sum_by_group((1 + slope) / self.moved, -slope * self.moved / self.mean**2)

    @property
    def barrier(self) -> float:
        """``log det M``, but for constants and the weights' own part."""
        return float(np.log(self.mean * self.moved).sum())

    def smoothed(self, smoothing: float) -> DiagonalSpectrum:
        mean = 2 * self.values**2 / (smoothing + np.sqrt(smoothing**2 + 4 * self.values**2))
        return replace(self, mean=mean, smoothing=smoothing)

    def covariance(self) -> Array:
        return np.asarray(self.moved / self.mean)

    def curvature_diagonal(self) -> Array:
        neighbour_rows, seen, kernel = self._relative()
        first = (neighbour_rows * neighbour_rows) @ (kernel + self.smoothing)
        return first if seen is None else np.concatenate([first, (seen * seen) @ kernel])

    def curvature_product(self, change: Array) -> Array:
        neighbour_rows, seen, kernel = self._relative()
        spent = neighbour_rows.T @ change[: self.neighbours]
        if seen is None:
            return np.asarray(neighbour_rows @ ((kernel + self.smoothing) * spent))
        moved = kernel * (seen.T @ change[self.neighbours :] - spent)
        return np.concatenate([neighbour_rows @ (self.smoothing * spent - moved), seen @ moved])

    def hessian(self) -> Array:
        """Return ``-∇²G`` in relative weights."""
        neighbour_rows, seen, kernel = self._relative()
        first = (neighbour_rows.multiply((kernel + self.smoothing)[None, :]) @ neighbour_rows.T).toarray()
        if seen is None:
            return np.asarray(first)
        mixed, last = (
            (-(seen.multiply(kernel[None, :]) @ neighbour_rows.T)).toarray(),
            seen.multiply(kernel[None, :]) @ seen.T,
        )
        return np.block([[first, mixed.T], [mixed, last.toarray()]])

    def _relative(self) -> tuple[sp.csr_array, sp.csr_array | None, Array]:
        """Return ``t_i²`` and ``u_j²``, how a relative change of a weight moves each block, and how that bends G."""
        program, mean = self.program, self.mean
        neighbour_rows = sp.csr_array(_scale(program.reach, self.weights[: self.neighbours], 1 / self.moved))
        kernel = mean**2 / (2 * mean + self.smoothing)
        if program.fixed:
            return neighbour_rows, None, kernel
        return neighbour_rows, _scale(program.squares, self.weights[self.neighbours :], self.moved / mean**2), kernel

    def _sum_by_group(self, of_neighbours: Array, of_queries: Array) -> Array:
        first = np.asarray(self.program.reach @ of_neighbours)
        if self.program.fixed:
            return first
        return np.concatenate([first, np.asarray(self.program.squares @ of_queries)])


def _scale(matrix: sp.csr_array, rows: Array, columns: Array) -> sp.csr_array:
    return sp.csr_array(matrix.multiply(rows[:, None]).multiply(columns[None, :]))


Index = npt.NDArray[np.intp]

MOST_MEMBERS = 10_000
"""Number of weights of a part above which its Hessian is not formed before it is gathered (0.8 GiB)."""

SLAB_ENTRIES = 2**24  # entries of the groups' matrices that are held at a time where it is not


@dataclass(frozen=True, eq=False)
class Part:
    """A program, the group of each of its weights, and each weight's share of the group's weight."""

    program: DenseDual
    groups: Index
    shares: Array

    @cached_property
    def distinct(self) -> bool:
        """Whether every weight has a group of its own."""
        return len(np.unique(self.groups)) == len(self.groups)

    @cached_property
    def operations(self) -> tuple[float, float]:
        """Approximate operations of the Hessian by group: of all weights at once, and of a matrix per group."""
        rank, members, groups = self.program.sizes[2], len(self.groups), len(np.unique(self.groups))
        return 3.0 * members**2 * rank, 2.0 * members * rank**2 + 2.0 * groups**2 * rank**2

    @property
    def by_members(self) -> bool:
        """Whether the first of the two takes fewer operations."""
        first, second = self.operations
        return self.distinct or (first <= second and len(self.groups) <= MOST_MEMBERS)


@dataclass(frozen=True, eq=False)
class OrbitProgram:
    """Parts whose weights are tied in groups: groups of neighbours first, then groups of queries.

    `diagonal`, if any, holds the blocks of rank one, and its weights are the groups' weights. Where `fixed`, the
    weights of the queries are given, and all groups are of neighbours.
    """

    parts: tuple[Part, ...]
    diagonal: DiagonalProgram | None
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
            more = self.diagonal.operations
            return first + more[0], second + more[1], product + more[2]
        return first, second, product

    def at(self, weights: Array) -> OrbitSpectrum:
        spectra = tuple(part.program.at(weights[part.groups] * part.shares) for part in self.parts)
        return OrbitSpectrum(self, weights, spectra, None if self.diagonal is None else self.diagonal.at(weights))

    def gather(self, values: list[Array], diagonal: Array | None) -> Array:
        """Return sums by group of a value for each part's weights."""
        total = np.zeros(self.neighbours + self.queries) if diagonal is None else diagonal.copy()
        for part, value in zip(self.parts, values, strict=True):
            total += np.bincount(part.groups, value, len(total))
        return total


@dataclass(frozen=True, eq=False)
class OrbitSpectrum:
    """Everything that one decomposition of each part tells; see `dualmech.fast.engine.spectrum.Spectrum`."""

    program: OrbitProgram
    weights: Array
    spectra: tuple[Spectrum, ...]
    diagonal: DiagonalSpectrum | None
    smoothing: float = 0.0

    @property
    def neighbours(self) -> int:
        return self.program.neighbours

    @property
    def offsets(self) -> None:
        return None

    @property
    def decompositions(self) -> int:
        """Number of decompositions, blocks of a step counted once."""
        return max((spectrum.decompositions for spectrum in self.spectra), default=1)

    @property
    def values(self) -> Array:
        return np.sort(self._concatenate("values"))

    @property
    def mean(self) -> Array:
        return self._concatenate("mean")

    @cached_property
    def gains(self) -> Array:
        """Mean cost of each orbit of neighbours, then mean variance of each of queries."""
        gains = [part.shares * spectrum.gains for part, spectrum in zip(self.program.parts, self.spectra, strict=True)]
        return self.program.gather(gains, None if self.diagonal is None else self.diagonal.gains)

    @property
    def linear(self) -> Array:
        return np.zeros(len(self.weights))

    @cached_property
    def dual_value(self) -> float:
        return float(self._concatenate("values").sum())

    @cached_property
    def lower_bound(self) -> float:
        """``F² / (Σλ Σμ)``, or ``F² / Σλ``, a bound on the optimum (the judge recomputes it)."""
        first, last = self.weights[: self.neighbours].sum(), self.weights[self.neighbours :]
        return float(self.dual_value**2 / (first * last.sum() if last.size else first))

    @cached_property
    def objective(self) -> float:
        """Largest cost times largest variance, or times the total: no scale matters (the judge recomputes)."""
        gains = self.gains
        variances = gains[self.neighbours :]
        last = variances.max() if variances.size else (self._concatenate("values") ** 2 / self.mean).sum()
        return float(gains[: self.neighbours].max() * last)

    @property
    def barrier(self) -> float:
        """``log det M``, but for constants and the weights' own part."""
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
        """Return the levels of the diagonal blocks and the covariance of each part, unscaled."""
        levels = np.zeros(0) if self.diagonal is None else self.diagonal.covariance()
        return levels, tuple(spectrum.covariance() for spectrum in self.spectra)

    def tightened(self, share: float) -> tuple[Array, tuple[Array, ...]]:
        """Return the same without noise that nothing limits: see `Spectrum.tightened`."""
        return self.covariance()[0], tuple(spectrum.tightened(share) for spectrum in self.spectra)

    def curvature_diagonal(self) -> Array:
        """Return the diagonal of `curvature`, or an upper bound on it where a part has several weights of a group."""
        total = np.zeros(len(self.weights)) if self.diagonal is None else self.diagonal.curvature_diagonal()
        for part, spectrum in zip(self.program.parts, self.spectra, strict=True):
            roots = np.sqrt(spectrum.curvature_diagonal())
            total = total + np.bincount(part.groups, roots, len(total)) ** 2
        return np.asarray(total)

    def curvature_product(self, change: Array) -> Array:
        """Return ``-∇²G`` times a relative change of the groups' weights."""
        pairs = zip(self.program.parts, self.spectra, strict=True)
        diagonal = None if self.diagonal is None else self.diagonal.curvature_product(change)
        return self.program.gather(
            [spectrum.curvature_product(change[part.groups]) for part, spectrum in pairs], diagonal
        )

    def curvature(self, chosen: Index, exactly: bool = False) -> Array:
        """Return ``-∇²G`` in relative weights, for the chosen (ascending) groups."""
        size = len(chosen)
        place = np.full(len(self.weights), -1)
        place[chosen] = np.arange(size)
        total = np.zeros((size, size))
        if self.diagonal is not None:
            total += self.diagonal.hessian()[np.ix_(chosen, chosen)]
        for part, spectrum in zip(self.program.parts, self.spectra, strict=True):
            members = np.flatnonzero(place[part.groups] >= 0)
            groups = place[part.groups[members]]
            if part.distinct:
                total[np.ix_(groups, groups)] += _hessian(spectrum, members, exactly)
            elif part.by_members:
                total += _sum_by_group(_hessian(spectrum, members, exactly), groups, size)
            else:
                total += _by_matrices(spectrum, members, groups, size)
        return total

    def _concatenate(self, name: str) -> Array:
        arrays = [getattr(spectrum, name) for spectrum in self.spectra]
        return np.concatenate([*arrays, getattr(self.diagonal, name)] if self.diagonal is not None else arrays)


def _hessian(spectrum: Spectrum, members: Index, exactly: bool) -> Array:
    """Return the Hessian of some weights of a part, from its lower triangle."""
    lower = np.tril(spectrum.curvature(members, exactly))
    return np.asarray(lower + np.tril(lower, -1).T)


def _sum_by_group(hessian: Array, groups: Index, size: int) -> Array:
    entries = np.ones(len(groups)), (groups, np.arange(len(groups)))
    members = sp.csr_array(entries, shape=(size, len(groups)))
    return np.asarray((members @ (members @ hessian).T).T)


def _by_matrices(spectrum: Spectrum, members: Index, groups: Index, size: int) -> Array:
    """Return the Hessian of many weights in few groups, from the matrix ``Σ u u'`` of each group, slab by slab."""
    mean, smoothing, rank = spectrum.mean, spectrum.smoothing, len(spectrum.mean)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    of_neighbours = members[order[starts]] < spectrum.neighbours
    # Members are ascending, neighbours first: the rows of a group are all of one kind.
    runs = [spectrum.rows(members[run]) for run in np.split(order, starts[1:])]
    matrix = np.zeros((len(runs), len(runs)))
    step = max(1, SLAB_ENTRIES // (len(runs) * rank))
    for low in range(0, rank, step):
        high = min(low + step, rank)
        slab = np.stack([run[:, low:high].T @ run for run in runs])
        slab[of_neighbours] *= -1
        kernel = mean[low:high, None] * mean / (mean[low:high, None] + mean + smoothing)
        flat = slab.reshape(len(runs), -1)
        matrix += (flat * kernel.ravel()) @ flat.T
        if smoothing:
            matrix[np.ix_(of_neighbours, of_neighbours)] += smoothing * flat[of_neighbours] @ flat[of_neighbours].T
    total = np.zeros((size, size))
    present = groups[order[starts]]
    total[np.ix_(present, present)] = matrix
    return total
