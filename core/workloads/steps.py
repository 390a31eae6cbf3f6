"""Queries by the steps between neighbouring entries: weighted Gram matrices and quadratic forms without the entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.validate import Array, Matrix
from dualmech.verified import UNIT, UPWARDS, Enclosure, sum_rounding, two_sum

Index = npt.NDArray[np.intp]

LEAST_ENTRIES = 2**15  # entries of W below which a matrix product is quick enough
FEW_STEPS = 1 / 16  # pairs of steps, relative to the entries of W, up to which steps are used
LARGEST_WHOLE = 2.0**20  # largest sum of the steps of a query, absolute, of which sums without rounding are taken
LEAST_TOTAL = 2.0**-800  # matrices count as this large at least, so that no unit of their digits underflows


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Queries ``W = S C``: C takes sums from the last cell back, S holds the few entries that differ from the next.

    A range of ordered cells is two steps, one at its end and one before it begins. S and sums give Gram matrices and
    quadratic forms of such queries, at no cost per entry.
    """

    steps: sp.csr_array  # (m, n) S
    pairs: sp.csr_array  # (m, n²) the products ``s_j' s_j``, a row each, what is below the diagonal added above it
    largest: Array  # (m,) largest entry of each query, absolute
    is_whole: bool  # whether all entries are whole numbers, so that ``W = S C`` holds exactly

    @classmethod
    def of(cls, queries: Array) -> Steps | None:
        """Return the steps of queries; None where they are too many to be of use."""
        if queries.size < LEAST_ENTRIES:
            return None
        steps = sp.csr_array(queries - np.pad(queries[:, 1:], ((0, 0), (0, 1))))
        largest = np.abs(queries).max(axis=1)
        return cls.few(steps, largest, bool(np.all(queries == np.rint(queries))))

    @classmethod
    def few(cls, steps: sp.csr_array, largest: Array, is_whole: bool) -> Steps | None:
        """Return queries by given steps; None where they are too many to be of use."""
        counts, (queries, width) = np.diff(steps.indptr), steps.shape
        entries = float(queries) * width
        if entries < LEAST_ENTRIES or float(counts.astype(np.float64) @ counts) > FEW_STEPS * entries:
            return None
        # Entry q of a query meets each of its entries in turn.
        first = np.repeat(np.arange(steps.nnz), np.repeat(counts, counts))
        starts = np.repeat(steps.indptr[:-1], counts**2)
        within = np.arange(len(first)) - np.repeat(np.cumsum(counts**2) - counts**2, counts**2)
        second = starts + within % np.repeat(counts, counts**2)
        above, others = steps.indices[first] < steps.indices[second], steps.indices[first] <= steps.indices[second]
        values = (steps.data[first] * steps.data[second] * np.where(above, 2.0, 1.0))[others]
        places = steps.indices[first[others]].astype(np.intp) * width + steps.indices[second[others]]
        ends = np.concatenate([[0], np.cumsum(counts * (counts + 1) // 2)])
        pairs = sp.csr_array((values, places, ends), shape=(queries, width**2))
        whole = is_whole and float(abs(steps).sum(axis=1).max()) <= LARGEST_WHOLE
        return cls(steps, pairs, largest, whole)

    def __len__(self) -> int:
        return len(self.largest)

    @property
    def reach(self) -> Array:
        """Square of the sum of each query's steps, absolute (m,): no partial sum of products of entries is above it."""
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
        """Return ``W M`` for some queries."""
        return np.asarray(self.steps[index] @ matrix.cumsum(axis=0))

    def forms(self, matrix: Array) -> Array:
        """Return ``w_j M w_j'`` (m,) of a symmetric matrix."""
        return np.asarray(self.pairs @ matrix.cumsum(axis=0).cumsum(axis=1).ravel())

    def enclosed_forms(self, matrix: Array) -> tuple[Array, Array]:
        """Return ``w_j M w_j'`` (m,) of whole numbers w and a symmetric M, and bounds of their errors, absolute.

        The leading digits of M are cut so short that they are added without any error, and the rest is small.
        """
        reach, total = self.reach, float(np.abs(matrix).sum())
        most = max(total * float(reach.max()), LEAST_TOTAL)
        if not np.isfinite(most):
            return np.full(len(self), np.inf), np.full(len(self), np.inf)
        # No more than twice the total is left after rounding: 2^52 units, products with steps included.
        unit = np.ldexp(1.0, int(np.frexp(most)[1]) - 51)
        leading = np.rint(matrix / unit) * unit
        rest = matrix - leading
        values, small = self.forms(leading), self.forms(rest)
        # The rest is added up along both sides and over the pairs of steps.
        terms = float(2 * len(matrix) + np.diff(self.pairs.indptr).max(initial=0) + 1)
        off = sum_rounding(terms) * reach * float(np.abs(rest).sum()) * UPWARDS
        values = values + small
        return values, off + 2 * UNIT * np.abs(values)


def whole_matrix(matrix: Matrix) -> Array | None:
    """Return a matrix written out where it holds whole numbers alone, none too large for sums without rounding."""
    entries = matrix.data if sp.issparse(matrix) else matrix
    if np.abs(entries).max(initial=0.0) > LARGEST_WHOLE or np.any(entries != np.rint(entries)):
        return None
    return np.asarray(matrix.toarray()) if sp.issparse(matrix) else np.asarray(matrix)


def exact_gram(rows: Steps | Array, weights: Array) -> Enclosure:
    """Return ``W' diag(w) W`` (n, n) without any rounding, of whole numbers W and weights w rounded down.

    Weights that are whole multiples of one power of 2, of which all products are together at most 2^52, are added
    without error in any order. What that leaves of the weights is added likewise: of 104 digits none is lost.
    """
    reach = rows.reach if isinstance(rows, Steps) else np.abs(rows).max(axis=1) ** 2
    parts = []
    for _ in range(2):
        total = max(float(weights @ reach), LEAST_TOTAL)
        unit = np.ldexp(1.0, int(np.frexp(total)[1]) - 52)
        whole = np.floor(weights / unit)
        gram = rows.gram(whole) if isinstance(rows, Steps) else (rows.T * whole) @ rows
        parts.append(gram * unit)
        weights = weights - whole * unit
    high, low = two_sum(parts[0], parts[1])
    return Enclosure(high, low, np.zeros_like(high))
