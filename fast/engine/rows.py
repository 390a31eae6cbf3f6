"""Weighted queries in other coordinates: what the dual function asks of them, with or without their entries.

Rows ``u_j = f_j v_j R``, V (m, k) being the queries. Where V is written out, so are they. Queries of which neighbouring
entries mostly are the same, such as ranges of ordered cells, are few numbers each: ``V = S C``, where C takes sums from
the first cell on and S is sparse. Their Gram matrices and quadratic forms are those of S, and sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.validate import Array

Index = npt.NDArray[np.intp]

LEAST_ENTRIES = 2**15  # entries of V below which a matrix product is quick enough
MANY = 8  # queries, relative to the rank, from which on rows are not written out
UNEVEN = 1e3  # ratio of queries' entries, targets in them, from which on sums lose digits of the small ones
FEW_STEPS = 1 / 16  # pairs of entries of S, relative to the entries of V, up to which S is used


class Rows(Protocol):
    """Rows u_j (m, k)."""

    def __len__(self) -> int:
        """Return their number m."""

    def scaled(self, columns: Array) -> Any:
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
        """Multiply columns."""
        return DenseRows(self.entries * columns)

    def squares(self, columns: Array) -> Array:
        """Return weighted sums of squares."""
        return np.asarray(self.entries**2 @ columns)

    def forms(self, matrix: Array) -> Array:
        """Return quadratic forms."""
        return np.einsum("jk,jk->j", self.entries @ matrix, self.entries)

    def gram(self, weights: Array) -> Array:
        """Return the weighted Gram matrix."""
        return np.asarray((self.entries.T * weights) @ self.entries)

    def chosen(self, index: Index) -> Array:
        """Return some rows."""
        return np.asarray(self.entries[index])


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Queries ``V = S C`` by the steps between their entries."""

    steps: sp.csr_array  # (m, k) S
    pairs: sp.csr_array  # (m, k²) the products ``s_j' s_j``, a row each

    @classmethod
    def of(cls, queries: Array) -> Steps | None:
        """Return the steps of queries; None where they are too many to be of use."""
        lengths = np.abs(queries).max(axis=1, initial=0.0)
        if queries.size < LEAST_ENTRIES or not lengths.max() < UNEVEN * lengths.min():
            return None
        found = sp.csr_array(queries - np.pad(queries[:, 1:], ((0, 0), (0, 1))))
        counts = np.diff(found.indptr)
        if float(counts.astype(np.float64) @ counts) > FEW_STEPS * queries.size:
            return None
        width = queries.shape[1]
        # Entry q of a query meets each of its entries in turn.
        first = np.repeat(np.arange(found.nnz), np.repeat(counts, counts))
        starts = np.repeat(found.indptr[:-1], counts**2)
        within = np.arange(len(first)) - np.repeat(np.cumsum(counts**2) - counts**2, counts**2)
        second = starts + within % np.repeat(counts, counts**2)
        places = found.indices[first].astype(np.intp) * width + found.indices[second]
        ends = np.concatenate([[0], np.cumsum(counts**2)])
        shape = len(queries), width**2
        return cls(found, sp.csr_array((found.data[first] * found.data[second], places, ends), shape=shape))

    def gram(self, weights: Array) -> Array:
        """Return ``V' diag(w) V`` (k, k)."""
        width = self.steps.shape[1]
        steps = np.asarray(self.pairs.T @ weights).reshape(width, width)
        return np.ascontiguousarray(steps[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1])

    def times(self, matrix: Array, chosen: Any = slice(None)) -> Array:
        """Return ``V M`` for some queries."""
        return np.asarray(self.steps[chosen] @ matrix.cumsum(axis=0))

    def forms(self, matrix: Array) -> Array:
        """Return ``v_j M v_j'`` (m,)."""
        return np.asarray(self.pairs @ matrix.cumsum(axis=0).cumsum(axis=1).ravel())


@dataclass(frozen=True, slots=True, eq=False)
class SteppedRows:
    """Rows by their steps, never written out; see `Rows`."""

    queries: Steps
    factors: Array  # (m,) f
    root: Array  # (k, k) R

    def __len__(self) -> int:
        return len(self.factors)

    def scaled(self, columns: Array) -> SteppedRows:
        """Multiply columns."""
        return replace(self, root=self.root * columns)

    def squares(self, columns: Array) -> Array:
        """Return weighted sums of squares."""
        found = [self.queries.forms((self.root * each) @ self.root.T) for each in columns.T]
        return np.asarray(self.factors[:, None] ** 2 * np.stack(found, axis=1))

    def forms(self, matrix: Array) -> Array:
        """Return quadratic forms."""
        return np.asarray(self.factors**2 * self.queries.forms(self.root @ matrix @ self.root.T))

    def gram(self, weights: Array) -> Array:
        """Return the weighted Gram matrix."""
        return np.asarray(self.root.T @ self.queries.gram(self.factors**2 * weights) @ self.root)

    def chosen(self, index: Index) -> Array:
        """Return some rows."""
        return np.asarray(self.factors[index, None] * self.queries.times(self.root, index))


def turned(queries: Array, steps: Steps | None, factors: Array, root: Array) -> Rows:
    """Return the rows ``f_j v_j R``: written out where there is no other way, or where that is less work."""
    if steps is None:
        return DenseRows((queries[: len(factors)] @ root) * factors[:, None])
    if len(factors) > MANY * len(root):
        return SteppedRows(steps, factors, root)
    return DenseRows(steps.times(root) * factors[:, None])
