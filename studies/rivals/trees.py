"""Hierarchical mechanisms: which tree of interval sums to measure, products of trees, and the Haar wavelet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

import dualmech as dm
from dualmech import designs, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.studies.rivals.plain import checked
from dualmech.validate import Array

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
    >>> from dualmech.studies import rivals
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

    def variances(self, workload: dm.Workload, cost: float = 1.0) -> Array:
        """Return the variance of each answer to a workload (m,) at a squared privacy cost."""
        matrix, spent = self._check_cells(workload).matrix, validate.positive_number(cost=cost)
        terms, shrinkage = self._terms()
        squares, reach = matrix * matrix, matrix @ terms
        gained = (reach * reach) @ shrinkage
        return np.asarray(squares.sum(axis=1)).ravel() * self._unit(spent) - gained * self._unit(spent)

    def mechanism(self, cost: float) -> dm.LinearGaussianMechanism:
        """Return the mechanism that spends a squared privacy cost on the tree, as noise on the cells."""
        return dm.LinearGaussianMechanism(np.eye(self.cells), self.covariance(validate.positive_number(cost=cost)))

    def covariance(self, cost: float) -> Array:
        """Return the covariance of the cells' estimate (d, d) at a squared privacy cost."""
        terms, shrinkage = self._terms()
        covariance = np.eye(self.cells)
        for node, (start, stop) in enumerate(zip(self.first, self.stop, strict=True)):
            term = terms.data[terms.indptr[node] : terms.indptr[node + 1]]
            covariance[start:stop, start:stop] -= np.outer(shrinkage[node] * term, term)
        return covariance * self._unit(cost)

    def _unit(self, cost: float) -> float:
        return float(self.levels.max()) / cost

    def _check_cells(self, workload: dm.Workload) -> dm.Workload:
        if checked(workload).shape[1] != self.cells:
            raise InvalidInputError(f"workload must have {self.cells} cells, as the tree, got {workload.shape[1]}")
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
    """Return first cells and stops; refuse anything that is no interval of cells, or crosses another."""
    pairs = np.array([tuple(pair) for pair in intervals] or np.zeros((0, 2)), dtype=object)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not all(isinstance(end, int | np.integer) for end in pairs.flat):
        raise InputTypeError("intervals must be pairs of integers, first cell and stop")
    first, stop = pairs.astype(np.intp).T
    bad = np.flatnonzero((first < 0) | (stop > cells) | (first >= stop))
    if bad.size:
        raise InvalidInputError(
            f"intervals must be non-empty and lie within 0 and {cells}, got ({first[bad[0]]}, {stop[bad[0]]})"
        )
    # Rows cross columns that they enter from the left.
    crossing = (first[:, None] < first) & (first < stop[:, None]) & (stop[:, None] < stop)
    if crossing.any():
        one, _ = np.argwhere(crossing)[0]
        raise InvalidInputError(f"intervals must be nested or disjoint, ({first[one]}, {stop[one]}) crosses another")
    return first, stop


def _members(first: Index, stop: Index) -> tuple[Index, Index]:
    widths = stop - first
    owners = np.repeat(np.arange(len(first)), widths)
    offsets = np.arange(len(owners)) - np.repeat(np.cumsum(widths) - widths, widths)
    return first[owners] + offsets, owners


def interval_tree(cells: int, branching: int) -> IntervalTree:
    """Return the tree of `branching`: intervals of 1, b, b², … cells while shorter than all, then the root.

    The last interval of a level is shorter where the numbers do not divide, so the tree exists for any number
    of cells, and every cell is counted once a level.

    - `cells`: number of cells d;
    - `branching`: branching factor b, at least 2; d and more give the cells and their total.

    Examples
    --------
    >>> from dualmech.studies import rivals
    >>> tree = rivals.interval_tree(20, branching=4)
    >>> [(int(a), int(b)) for a, b in zip(tree.first, tree.stop) if b - a > 4]
    [(0, 16), (0, 20)]
    """
    return IntervalTree.of_widths(cells, designs.level_widths(cells, branching))


def square_root_tree(cells: int) -> IntervalTree:
    """Return the tree of FFU's experiments: cells, ``s = ⌊√d⌋`` intervals of s cells each, and the root.

    This is the tree of the code published with the paper. Where d is no square, the last ``d - s²`` cells are
    counted by themselves and the root only. The ratio of its largest variance to that of input perturbation
    does not depend on the optimum; the paper prints this ratio in Tables 4 and 8 to 11, and in most rows of Tables 5 to
    7. (There, Table 7 at d = 64 and 128 fits the cells and their total, Tables 5 and 6 at d = 128 fit intervals of
    four.)

    Examples
    --------
    >>> from dualmech.studies import rivals
    >>> rivals.square_root_tree(6).matrix.toarray()[6:]
    array([[1., 1., 0., 0., 0., 0.],
           [0., 0., 1., 1., 0., 0.],
           [1., 1., 1., 1., 1., 1.]])
    """
    count = validate.size(cells=cells)
    side = int(np.sqrt(count))
    return IntervalTree(count, [(side * i, side * (i + 1)) for i in range(side)] + [(0, count)])


# Strategies over several attributes as Kronecker products of strategies over one: trees of intervals.


def hierarchical_product(workload: dm.Workload, cost: float, domain: Any = None) -> dm.LinearGaussianMechanism:
    """Add equal noise to every product of tree nodes, and use the sums consistently ("Hierarchical").

    With X_i the cost matrix of one attribute's tree, the cost matrix of the product is ``⊗ X_i``. So the covariance of
    the cells' estimate is the Kronecker product of the trees' own covariances, and its cost the product of their costs.

    Li and Miklau, PVLDB 5(6), 2012 ("EIG"), section 5, take binary trees with their root, adapted to several dimensions
    "in a manner analogous to" the wavelet's: a product in every dimension, not the nodes of one tree that halves all
    dimensions together (a quad-tree).

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.range_marginals([4, 4], ways=2)
    >>> round(float(rivals.hierarchical_product(workload, cost=1).variances(workload).sum()), 2)
    435.02
    """
    return _product(designs.domain_of(workload, domain), lambda size: interval_tree(size, 2), cost)


def _product(domain: dm.Domain, tree: Callable[[int], IntervalTree], cost: float) -> dm.LinearGaussianMechanism:
    spent = validate.positive_number(cost=cost)
    covariance: Array = np.ones((1, 1))
    for size in domain.shape:
        covariance = np.asarray(np.kron(covariance, tree(size).covariance(1.0)), dtype=np.float64)
    return dm.LinearGaussianMechanism(np.eye(domain.cells), covariance / spent)


# The Haar wavelet, over one attribute and over several.


def haar_tree(cells: int) -> IntervalTree:
    """Return the tree of interval sums that is equivalent to the Haar wavelet.

    With h the row of a node v of the wavelet and l, r its halves, ``1_v 1_v' + h h' = 2 (1_l 1_l' + 1_r 1_r')``.
    Used from the root down, this turns the cost matrix of the wavelet into ``2 I + Σ 1_v 1_v'`` over the nodes
    between root and cells: it is the binary tree without its root, every cell counted once more.

    Examples
    --------
    >>> from dualmech.studies import rivals
    >>> wavelet, tree = rivals.haar_matrix(6), rivals.haar_tree(6).matrix
    >>> int(abs(wavelet.T @ wavelet - tree.T @ tree).max())
    0
    """
    count = validate.size(cells=cells)
    return IntervalTree.of_widths(count, [2**level for level in range(designs.levels(count))])


def wavelet(workload: dm.Workload, cost: float, domain: Any = None) -> dm.LinearGaussianMechanism:
    """Add equal noise to every row of `haar_matrix`, and use the answers consistently ("Wavelet").

    Over d cells, a power of two, a cell has the variance ``(1 + log₂ d) (1/3 + 2/(3 d²)) / cost``, and the total
    ``(1 + log₂ d) / cost``.
    Source: Xiao, Wang and Gehrke, ICDE 2010; Li and Miklau, PVLDB 5(6), 2012 ("EIG"), section 5.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.identity_total(8)
    >>> rivals.wavelet(workload, cost=1).variances(workload)[-2:]
    array([1.375, 4.   ])
    """
    return _product(designs.domain_of(workload, domain), haar_tree, cost)
