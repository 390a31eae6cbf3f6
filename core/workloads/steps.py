"""Queries by their first differences: weighted Gram matrices and quadratic forms without the queries' entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.validate import Array, Matrix
from dualmech.verified import UNIT, UPWARDS, Enclosure, sum_rounding, two_sum

Index = npt.NDArray[np.intp]

MIN_ENTRIES = 2**15  # of W; for smaller matrices a dense product is fast enough
MAX_PAIR_FRACTION = 1 / 16  # pairs of differences per entry of W; above it a dense product is faster
MAX_EXACT_SUM = 2.0**20  # of the absolute differences of a query of integers, for sums without rounding
MIN_TOTAL = 2.0**-800  # lower bound on the size attributed to a matrix, so that no unit of its digits underflows


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Queries ``W = S C`` by first differences S, few of which are non-zero; C sums from the last cell backwards.

    A range of ordered cells has two differences, at its last cell and before its first. Gram matrices and quadratic
    forms follow from S and cumulative sums, without a cost per entry of W.
    """

    steps: sp.csr_array  # (m, n) S
    pairs: sp.csr_array  # (m, n²) the upper triangles of ``s_j' s_j``, off-diagonal entries doubled, in rows
    largest: Array  # (m,) maximum absolute entry of each query
    is_whole: bool  # whether all entries are integers, so that ``W = S C`` holds exactly

    @classmethod
    def of(cls, queries: Array) -> Steps | None:
        """Return the first differences of queries; None if a dense product is faster."""
        if queries.size < MIN_ENTRIES:
            return None
        steps = sp.csr_array(queries - np.pad(queries[:, 1:], ((0, 0), (0, 1))))
        largest = np.abs(queries).max(axis=1)
        return cls.few(steps, largest, bool(np.all(queries == np.rint(queries))))

    @classmethod
    def few(cls, steps: sp.csr_array, largest: Array, is_whole: bool) -> Steps | None:
        """Return queries by given first differences; None if a dense product is faster."""
        counts, (queries, width) = np.diff(steps.indptr), steps.shape
        entries = float(queries) * width
        if entries < MIN_ENTRIES or float(counts.astype(np.float64) @ counts) > MAX_PAIR_FRACTION * entries:
            return None
        # All pairs of differences of each query.
        first = np.repeat(np.arange(steps.nnz), np.repeat(counts, counts))
        starts = np.repeat(steps.indptr[:-1], counts**2)
        position = np.arange(len(first)) - np.repeat(np.cumsum(counts**2) - counts**2, counts**2)
        second = starts + position % np.repeat(counts, counts**2)
        is_above, is_upper = steps.indices[first] < steps.indices[second], steps.indices[first] <= steps.indices[second]
        values = (steps.data[first] * steps.data[second] * np.where(is_above, 2.0, 1.0))[is_upper]
        places = steps.indices[first[is_upper]].astype(np.intp) * width + steps.indices[second[is_upper]]
        ends = np.concatenate([[0], np.cumsum(counts * (counts + 1) // 2)])
        pairs = sp.csr_array((values, places, ends), shape=(queries, width**2))
        is_exact = is_whole and float(abs(steps).sum(axis=1).max()) <= MAX_EXACT_SUM
        return cls(steps, pairs, largest, is_exact)

    def __len__(self) -> int:
        return len(self.largest)

    @property
    def reach(self) -> Array:
        """Square of the sum of each query's absolute differences (m,): it bounds all partial sums of products."""
        return np.asarray(abs(self.steps).sum(axis=1)).ravel() ** 2

    def chosen(self, index: Index) -> Steps:
        """Return some of the queries."""
        if np.array_equal(index, np.arange(len(self))):
            return self
        return Steps(self.steps[index], self.pairs[index], self.largest[index], self.is_whole)

    def gram(self, weights: Array) -> Array:
        """Return ``W' diag(w) W`` (n, n)."""
        steps = self.step_gram(weights)
        return np.ascontiguousarray(steps[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1])

    def step_gram(self, weights: Array) -> Array:
        """Return ``S' diag(w) S`` (n, n)."""
        width = self.steps.shape[1]
        half = np.asarray(self.pairs.T @ weights).reshape(width, width)
        return (half + half.T) / 2

    def times(self, matrix: Array, index: object = slice(None)) -> Array:
        """Return ``W M`` for the queries with these indices."""
        return np.asarray(self.steps[index] @ matrix.cumsum(axis=0))

    def forms(self, matrix: Array) -> Array:
        """Return ``w_j M w_j'`` (m,) for a symmetric matrix M."""
        return np.asarray(self.pairs @ matrix.cumsum(axis=0).cumsum(axis=1).ravel())

    def enclosed_forms(self, matrix: Array) -> tuple[Array, Array]:
        """Return ``w_j M w_j'`` (m,) for queries of integers and a symmetric M, and absolute error bounds.

        M is split into leading digits, few enough to be added exactly, and a small remainder.
        """
        reach, total = self.reach, float(np.abs(matrix).sum())
        bound = max(total * float(reach.max()), MIN_TOTAL)
        if not np.isfinite(bound):
            return np.full(len(self), np.inf), np.full(len(self), np.inf)
        # After rounding to units, all sums and products are at most 2^52 units.
        unit = np.ldexp(1.0, int(np.frexp(bound)[1]) - 51)
        leading = np.rint(matrix / unit) * unit
        remainder = matrix - leading
        values, correction = self.forms(leading), self.forms(remainder)
        # The remainder is summed along both sides and over the pairs of differences.
        terms = float(2 * len(matrix) + np.diff(self.pairs.indptr).max(initial=0) + 1)
        error = sum_rounding(terms) * reach * float(np.abs(remainder).sum()) * UPWARDS
        values = values + correction
        return values, error + 2 * UNIT * np.abs(values)


def whole_matrix(matrix: Matrix) -> Array | None:
    """Return a matrix of integers as a dense array, None if an entry is no integer or above `MAX_EXACT_SUM`."""
    entries = matrix.data if sp.issparse(matrix) else matrix
    if np.abs(entries).max(initial=0.0) > MAX_EXACT_SUM or np.any(entries != np.rint(entries)):
        return None
    return np.asarray(matrix.toarray()) if sp.issparse(matrix) else np.asarray(matrix)


def exact_gram(rows: Steps | Array, weights: Array) -> Enclosure:
    """Return ``W' diag(w) W`` (n, n) exactly, for integers W and weights w that are rounded down to 104 bits.

    The leading bits of the weights are multiples of one power of 2, chosen so that all sums are at most 2^52 multiples:
    they are added exactly in any order. The next bits are added likewise.
    """
    reach = rows.reach if isinstance(rows, Steps) else np.abs(rows).max(axis=1) ** 2
    parts = []
    for _ in range(2):
        total = max(float(weights @ reach), MIN_TOTAL)
        unit = np.ldexp(1.0, int(np.frexp(total)[1]) - 52)
        integers = np.floor(weights / unit)
        gram = rows.gram(integers) if isinstance(rows, Steps) else (rows.T * integers) @ rows
        parts.append(gram * unit)
        weights = weights - integers * unit
    high, low = two_sum(parts[0], parts[1])
    return Enclosure(high, low, np.zeros_like(high))
