"""The data set behind fitted tables: cliques' tables, whole ones, and the records that have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dualmech.errors import InvalidInputError
from dualmech.publishing.fitting.clique_tables import CliqueTables
from dualmech.validate import Array
from dualmech.workloads.lattice import Axes

Codes = npt.NDArray[np.int64]

MOST_CODES = 2**27  # of all records together
GOLDEN = (math.sqrt(5) - 1) / 2


class DataSet(Protocol):
    """What fitted tables are of: a data set of the attributes `axes`."""

    @property
    def whole(self) -> bool:
        """Whether it has records."""

    @property
    def axes(self) -> Axes:
        """The attributes."""

    def records(self) -> Codes:
        """Return records, as codes (N, attributes)."""

    def joint(self) -> Array:
        """Return the counts of all cells, an axis an attribute."""


@dataclass(frozen=True, slots=True, eq=False)
class CliqueData:
    """A data set that is known by its tables of cliques."""

    layout: CliqueTables
    vector: Array
    whole: bool

    @property
    def axes(self) -> Axes:
        """All attributes of cliques."""
        return tuple(sorted({axis for clique in self.layout.cliques for axis in clique.axes}))

    def records(self) -> Codes:
        """Return records that have these tables, where they are whole."""
        return glued_records(self.layout, self.vector, self.axes)

    def joint(self) -> Array:
        """Return the data set that ties attributes by cliques alone; of whole numbers, that of `records`."""
        if self.whole:
            return RecordData(self.records(), self.axes, self.layout.sizes).joint()
        return joint_table(self.layout, self.vector, self.axes)


@dataclass(frozen=True, slots=True, eq=False)
class RecordData:
    """A data set of records (N, attributes)."""

    codes: Codes
    axes: Axes
    sizes: Axes  # of all attributes of the domain

    @property
    def whole(self) -> bool:
        """Always."""
        return True

    def records(self) -> Codes:
        """Return a copy."""
        return self.codes.copy()

    def joint(self) -> Array:
        """Return the counts of all cells."""
        shape = tuple(self.sizes[axis] for axis in self.axes)
        cells = (
            np.ravel_multi_index(tuple(self.codes.T), shape)
            if shape
            else np.zeros(len(self.codes), dtype=np.intp)
        )
        return np.bincount(cells, minlength=math.prod(shape)).astype(np.float64).reshape(shape)


def whole_tables(layout: CliqueTables, vector: Array, total: float) -> Array:
    """Return tables of whole numbers that agree, near to tables that do, of a whole total.

    Given the whole counts of a separator, or the total, a table is rounded side after side: each count is split along
    the next side into differences of rounded cumulative sums, which keep it. So tables agree.

    Whole records have these tables. The root's cells, repeated, are records of its attributes; a child has as many in
    each cell of its separator as there are records in it, so that each record can take the child's other values from
    one of its own. By running intersection these are new attributes, and no table before changes.
    """
    found = np.empty_like(vector)
    tables, given = layout.views(found), layout.views(vector)
    for number, clique in enumerate(layout.cliques):
        counts = np.array([total])
        if number:
            counts = layout.marginal(tables[clique.parent], clique.parent, clique.separator).ravel()
        order = _separator_first(layout, number)
        table = given[number].transpose(order)
        for side in range(len(clique.separator), table.ndim):
            marginal = table.sum(axis=tuple(range(side + 1, table.ndim)))
            counts = _split(counts, marginal.reshape(len(counts), -1)).ravel()
        tables[number][...] = counts.reshape(table.shape).transpose(np.argsort(order))
    return found


def _split(counts: Array, shares: Array) -> Array:
    """Split whole counts (k,) into whole parts (k, n), near to shares of them.

    Parts are differences of cumulative sums, rounded down after a start between 0 and 1 has been added, which is ½ for
    the first count and differs from one to the next, lest all round alike.
    """
    sums = np.cumsum(np.where(shares.sum(axis=1, keepdims=True) > 0, shares, 1.0), axis=1)
    sums = np.minimum(sums * (counts / sums[:, -1])[:, None], counts[:, None])
    sums[:, -1] = counts
    starts = (0.5 + GOLDEN * (np.cumsum(counts > 0) - 1)) % 1.0
    return np.asarray(np.diff(np.floor(sums + starts[:, None]), axis=1, prepend=0.0))


def glued_records(layout: CliqueTables, vector: Array, axes: Axes) -> Codes:
    """Return records of some attributes, as codes (N, attributes), that have these tables of whole numbers.

    Which records of a separator's cell take which of a child's values is settled by lot, always the same.
    """
    tables = layout.views(vector)
    count = int(tables[0].sum())
    if count * max(len(axes), 1) > MOST_CODES:
        raise InvalidInputError(
            f"{count} records of {len(axes)} attributes are too many to write out (limit {MOST_CODES} codes)"
        )
    generator = np.random.default_rng(0)
    found = np.zeros((count, len(axes)), dtype=np.int64)
    columns = {axis: column for column, axis in enumerate(axes)}
    for number, clique in enumerate(layout.cliques):
        order = _separator_first(layout, number)
        table = tables[number].transpose(order)
        own = np.repeat(np.arange(table.size), table.ravel().astype(np.int64))
        own = own[generator.permutation(count)]
        shared = math.prod(layout.sizes[axis] for axis in clique.separator)
        own = own[np.argsort(own // (table.size // shared), kind="stable")]
        known = found[:, [columns[axis] for axis in clique.separator]]
        place = np.lexsort(known.T[::-1]) if known.shape[1] else np.arange(count)
        codes = np.unravel_index(own, table.shape) if table.ndim else ()
        for side, values in zip(order, codes, strict=True):
            found[place, columns[clique.axes[side]]] = values
    return found


def joint_table(layout: CliqueTables, vector: Array, axes: Axes) -> Array:
    """Return ``Π_C p_C / Π_S p_S``, the data set in which tables know no more of each other than their separators."""
    sizes = [layout.sizes[axis] for axis in axes]
    found = np.ones(sizes)
    tables = layout.views(vector)
    for number, clique in enumerate(layout.cliques):
        table = tables[number]
        if number:
            shared = layout.spread(layout.marginal(table, number, clique.separator), number, clique.separator)
            table = np.divide(table, shared, out=np.zeros(table.shape), where=shared > 0)
        found *= table.reshape([layout.sizes[axis] if axis in clique.axes else 1 for axis in axes])
    return found


def _separator_first(layout: CliqueTables, number: int) -> list[int]:
    """Return the sides of a clique's table, those of its separator before the others."""
    clique = layout.cliques[number]
    others = layout.outside(number, clique.separator)
    return [side for side in range(len(clique.axes)) if side not in others] + [*others]
