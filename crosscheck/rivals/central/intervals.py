"""Trees of interval sums over the cells, and the mechanism that measures one with equal noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class IntervalTree:
    """A strategy of interval sums: every cell, and intervals of which any two are nested or disjoint.

    With unit noise on every sum and T the matrix of them all, least squares estimates the cells with
    covariance ``(T' T)⁻¹``. Adding intervals one by one, the inner before the outer, each takes a rank-one term
    off the covariance (Sherman and Morrison): ``(T' T)⁻¹ = I - Σ_v u_v u_v' / (1 + 1'u_v)``, where ``u_v`` is
    the covariance so far, times the interval's indicator. No matrix is factored.

    - `cells`: number of cells d;
    - `intervals`: sums of cells ``first, …, stop - 1``, in any order; repeats count twice.

    Examples
    --------
    >>> from dualmech.crosscheck import rivals
    >>> tree = rivals.IntervalTree(4, [(0, 2), (0, 4)])
    >>> tree.matrix.toarray()
    array([[1., 0., 0., 0.],
           [0., 1., 0., 0.],
           [0., 0., 1., 0.],
           [0., 0., 0., 1.],
           [1., 1., 0., 0.],
           [1., 1., 1., 1.]])
    >>> tree.levels
    array([3, 3, 2, 2])
    """

    cells: int
    first: Index = field(repr=False)
    stop: Index = field(repr=False)

    def __init__(self, cells: int, intervals: Iterable[tuple[int, int]]) -> None:
        count = validate.size(cells=cells)
        first, stop = _ends(count, intervals)
        inner_first = np.lexsort((first, stop - first))
        object.__setattr__(self, "cells", count)
        object.__setattr__(self, "first", first[inner_first])
        object.__setattr__(self, "stop", stop[inner_first])

    @classmethod
    def of_widths(cls, cells: int, widths: Iterable[int]) -> IntervalTree:
        """Return the tree whose levels cut the cells into intervals of these widths, the last perhaps shorter."""
        return cls(cells, [(a, min(a + width, cells)) for width in widths for a in range(0, cells, width)])

    @property
    def matrix(self) -> sp.csr_array:
        """The sums as rows (d + number of intervals, d), cells first."""
        members, owners = _members(self.first, self.stop)
        rows = np.concatenate([np.arange(self.cells), self.cells + owners])
        columns = np.concatenate([np.arange(self.cells), members])
        shape = (self.cells + len(self.first), self.cells)
        return sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)

    @property
    def levels(self) -> npt.NDArray[np.intp]:
        """Number of sums that count each cell (d,); the largest is the squared cost of unit noise."""
        return np.asarray(1 + np.bincount(_members(self.first, self.stop)[0], minlength=self.cells))

    def variances(self, workload: Workload, cost: float = 1.0) -> Array:
        """Return the variance of each answer to a workload (m,) at a squared privacy cost."""
        matrix, spent = self._check_cells(workload).matrix, validate.positive_number(cost=cost)
        terms, shrinkage = self._terms()
        squares, reach = matrix * matrix, matrix @ terms
        gained = (reach * reach) @ shrinkage
        return np.asarray(squares.sum(axis=1)).ravel() * self._unit(spent) - gained * self._unit(spent)

    def mechanism(self, cost: float) -> LinearGaussianMechanism:
        """Return the mechanism that spends a squared privacy cost on the tree, as noise on the cells."""
        spent = validate.positive_number(cost=cost)
        terms, shrinkage = self._terms()
        covariance = np.eye(self.cells)
        for node, (start, stop) in enumerate(zip(self.first, self.stop, strict=True)):
            term = terms.data[terms.indptr[node] : terms.indptr[node + 1]]
            covariance[start:stop, start:stop] -= np.outer(shrinkage[node] * term, term)
        covariance *= self._unit(spent)
        return LinearGaussianMechanism(np.eye(self.cells), covariance)

    def _unit(self, cost: float) -> float:
        return float(self.levels.max()) / cost

    def _check_cells(self, workload: Workload) -> Workload:
        if check_workload(workload).shape[1] != self.cells:
            raise InvalidInputError(
                f"workload must have {self.cells} cells, as the tree, got {workload.shape[1]}"
            )
        return workload

    def _terms(self) -> tuple[sp.csc_array, Array]:
        """Return the vectors u_v as columns, and the factors ``1 / (1 + 1'u_v)``."""
        current, columns = np.ones(self.cells), []
        shrinkage = np.empty(len(self.first))
        for node, (start, stop) in enumerate(zip(self.first, self.stop, strict=True)):
            term = current[start:stop].copy()
            shrinkage[node] = 1 / (1 + term.sum())
            current[start:stop] *= shrinkage[node]
            columns.append(term)
        members, _ = _members(self.first, self.stop)
        starts = np.concatenate([[0], np.cumsum(self.stop - self.first)])
        entries = np.concatenate(columns) if columns else np.zeros(0)
        return sp.csc_array((entries, members, starts), shape=(self.cells, len(self.first))), shrinkage


def _ends(cells: int, intervals: Iterable[tuple[int, int]]) -> tuple[Index, Index]:
    """Return first cells and stops; refuse what is no interval of cells, or crosses another."""
    pairs = np.array([tuple(pair) for pair in intervals] or np.zeros((0, 2)), dtype=object)
    if (
        pairs.ndim != 2
        or pairs.shape[1] != 2
        or not all(isinstance(end, int | np.integer) for end in pairs.flat)
    ):
        raise InputTypeError("intervals must be pairs of integers, first cell and stop")
    first, stop = pairs.astype(np.intp).T
    bad = np.flatnonzero((first < 0) | (stop > cells) | (first >= stop))
    if bad.size:
        raise InvalidInputError(
            f"intervals must be non-empty and lie within 0 and {cells}, got ({first[bad[0]]}, {stop[bad[0]]})"
        )
    open_stops: list[int] = []
    for start, end in sorted(
        zip(first.tolist(), stop.tolist(), strict=True), key=lambda pair: (pair[0], -pair[1])
    ):
        while open_stops and open_stops[-1] <= start:
            open_stops.pop()
        if open_stops and end > open_stops[-1]:
            raise InvalidInputError(f"intervals must be nested or disjoint, ({start}, {end}) crosses another")
        open_stops.append(end)
    return first, stop


def _members(first: Index, stop: Index) -> tuple[Index, Index]:
    """Return every cell of every interval, and the interval that it is in."""
    widths = stop - first
    owners = np.repeat(np.arange(len(first)), widths)
    offsets = np.arange(len(owners)) - np.repeat(np.cumsum(widths) - widths, widths)
    return first[owners] + offsets, owners
