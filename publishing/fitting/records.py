"""Tables that look like tables: no negative count, all of one data set, whole where asked; and no longer unbiased."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import files, validate
from dualmech.display import counted
from dualmech.errors import InvalidInputError
from dualmech.files.csv import as_frame, file_name, write_rows
from dualmech.immutable import freeze
from dualmech.publishing.fitting.cliques import LARGEST_CLIQUE, CliqueTables
from dualmech.publishing.fitting.nearest import NoisyTables
from dualmech.publishing.published import PublishedTable
from dualmech.publishing.schema import attribute_at
from dualmech.validate import Array
from dualmech.workloads.domain import Axes, Domain, count_text

Codes = npt.NDArray[np.int64]

MOST_CODES = 2**27  # of all records together
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, eq=False)
class CliqueData:
    layout: CliqueTables
    vector: Array
    whole: bool

    @property
    def axes(self) -> Axes:
        return tuple(sorted({axis for clique in self.layout.cliques for axis in clique.axes}))

    def records(self) -> Codes:
        return glued_records(self.layout, self.vector, self.axes)

    def joint(self) -> Array:
        """Return the data set that ties attributes by cliques alone; of whole numbers, the data set of `records`."""
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
        return True

    def records(self) -> Codes:
        return self.codes.copy()

    def joint(self) -> Array:
        shape = tuple(self.sizes[axis] for axis in self.axes)
        cells = np.ravel_multi_index(tuple(self.codes.T), shape) if shape else np.zeros(len(self.codes), dtype=np.intp)
        return np.bincount(cells, minlength=math.prod(shape)).astype(np.float64).reshape(shape)


def whole_tables(layout: CliqueTables, vector: Array, total: float) -> Array:
    """Return tables of whole numbers that agree, near to tables that do, of a whole total.

    Given the whole counts of a separator, or the total, a table is rounded side after side: each count is split along
    the next side into differences of rounded cumulative sums, which keep it. So tables agree.

    Whole records have these tables. The root's cells, repeated, are records of its attributes; a child has as many in
    each cell of its separator as there are records in it, so that each record can take the child's other values from
    one of its own. By running intersection these are new attributes, and no table before changes.
    """
    whole = np.empty_like(vector)
    tables, fractions = layout.views(whole), layout.views(vector)
    for number, clique in enumerate(layout.cliques):
        counts = np.array([total])
        if number:
            counts = layout.marginal(tables[clique.parent], clique.parent, clique.separator).ravel()
        order = _separator_first(layout, number)
        table = fractions[number].transpose(order)
        for side in range(len(clique.separator), table.ndim):
            marginal = table.sum(axis=tuple(range(side + 1, table.ndim)))
            counts = _split(counts, marginal.reshape(len(counts), -1)).ravel()
        tables[number][...] = counts.reshape(table.shape).transpose(np.argsort(order))
    return whole


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
    records = np.zeros((count, len(axes)), dtype=np.int64)
    columns = {axis: column for column, axis in enumerate(axes)}
    for number, clique in enumerate(layout.cliques):
        order = _separator_first(layout, number)
        table = tables[number].transpose(order)
        cells = np.repeat(np.arange(table.size), table.ravel().astype(np.int64))
        cells = cells[generator.permutation(count)]
        shared = math.prod(layout.sizes[axis] for axis in clique.separator)
        cells = cells[np.argsort(cells // (table.size // shared), kind="stable")]
        known = records[:, [columns[axis] for axis in clique.separator]]
        place = np.lexsort(known.T[::-1]) if known.shape[1] else np.arange(count)
        codes = np.unravel_index(cells, table.shape) if table.ndim else ()
        for side, values in zip(order, codes, strict=True):
            records[place, columns[clique.axes[side]]] = values
    return records


def joint_table(layout: CliqueTables, vector: Array, axes: Axes) -> Array:
    """Return ``Π_C p_C / Π_S p_S``, the data set in which tables know no more of each other than their separators."""
    sizes = [layout.sizes[axis] for axis in axes]
    joint = np.ones(sizes)
    tables = layout.views(vector)
    for number, clique in enumerate(layout.cliques):
        table = tables[number]
        if number:
            shared = layout.spread(layout.marginal(table, number, clique.separator), number, clique.separator)
            table = np.divide(table, shared, out=np.zeros(table.shape), where=shared > 0)
        joint *= table.reshape([layout.sizes[axis] if axis in clique.axes else 1 for axis in axes])
    return joint


def _separator_first(layout: CliqueTables, number: int) -> list[int]:
    """Return the sides of a clique's table, its separator's sides before the others."""
    clique = layout.cliques[number]
    others = layout.outside(number, clique.separator)
    return [side for side in range(len(clique.axes)) if side not in others] + [*others]


INDEX, NOTE = "tables.csv", "README.md"

BIASED = """\
# Fitted tables: consistent, and biased

These tables were computed from the noisy ones of a release, and from nothing else: they cost no privacy. They are those
of one data set without negative counts, so that they agree with each other; and they are **biased**. Where the truth is
0, noise below 0 has been cut off, so that small counts come out too large on average and large ones too small.
No margin of error holds for them. For estimates without bias, with margins, take the tables of the release itself.

Records, where there are any here, are made up, so that they have these tables. They are nobody's. Whatever else is
counted in them says how they were made, and nothing about the people.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FittedTables:
    """Tables of one non-negative data set that is near to what was released, made by `Publication.fitted`.

    Truths of 0 are no longer estimated by negative numbers, so small counts come out too large on average, and large
    ones too small: margins of error and intervals do not hold for them, and none are given.

    Attributes
    ----------
    gap : float
        What the squared distance to the estimates, in units of the noise and halved, exceeds the least of any
        non-negative data set of the released total by at most; of whole numbers, too, the least of all, whole or not.
    """

    gap: float
    _data: CliqueData | RecordData
    _domain: Domain
    _tables: dict[str, tuple[PublishedTable, Array]]

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._tables)

    @property
    def whole(self) -> bool:
        """Whether it is a fit of whole numbers, which has `records`."""
        return self._data.whole

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes that tables ask about, in the domain's order."""
        return tuple(self._domain.names[axis] for axis in self._axes)

    def counts(self, table: str) -> Array:
        """Return a table, an axis a side: of prefixes it grows, since no count is negative."""
        validate.choice(self.tables, table=table)
        return self._tables[table][1]

    @property
    def data(self) -> Array:
        """The data set, an axis for each of `attributes`, where it has at most 2^17 cells.

        Many data sets have these tables; this one ties attributes that no table has together by nothing but those
        between them. Raises `InvalidInputError` for more cells.
        """
        shape = tuple(self._domain.shape[axis] for axis in self._axes)
        if math.prod(shape) > LARGEST_CLIQUE:
            raise InvalidInputError(
                f"a data set of {count_text(math.prod(shape))} cells is too large to write out (limit "
                f"{LARGEST_CLIQUE}): take counts(), or records() of a fit of whole numbers"
            )
        return freeze(self._data.joint())

    def records(self) -> npt.NDArray[np.int64]:
        """Return records that have these tables, (N, attributes), as codes: a fit of whole numbers alone has some.

        They are made up: nobody's record is among them but by chance. The released tables are theirs, near to the noisy
        ones; any other statistic of them says how they were glued together, and nothing about the people.
        Raises `InvalidInputError` for a fit that is not of whole numbers, or more than 2^27 codes.
        """
        if not self.whole:
            raise InvalidInputError("only a fit of whole numbers has records: fitted(integer=True)")
        return self._data.records()

    def frame(self) -> Any:
        """Return `records` as a pandas DataFrame, with labels in place of codes."""
        return as_frame(self.attributes, self._labelled())

    def write(self, folder: str | PathLike[str], records: bool = False) -> list[str]:
        """Write a CSV file a table, a list of them, and a note that they are biased; return the names of the files.

        With `records`, those are in a file of their own, ``records.csv``, by labels. The folder must not exist; it is
        there whole or not at all.
        """
        made_up = self._labelled() if validate.boolean(records=records) else None
        names = [file_name(number, name, len(self.tables)) for number, name in enumerate(self.tables, start=1)]
        with files.atomic_folder(folder) as place:
            for name, (table, counts) in zip(names, self._tables.values(), strict=True):
                write_rows(place / name, (*table.sides, "count"), self._rows(table, counts))
            sizes = ((name, *size) for name, size in zip(names, self._sizes(), strict=True))
            write_rows(place / INDEX, ("file", "table", "entries"), sizes)
            files.atomic.write_text(place / NOTE, BIASED)
            if made_up is not None:
                names.append("records.csv")
                write_rows(place / names[-1], self.attributes, made_up)
        return [*names, INDEX, NOTE]

    @property
    def _axes(self) -> Axes:
        return self._data.axes

    def _sizes(self) -> Iterator[tuple[str, int]]:
        return ((name, table.entries) for name, (table, _) in self._tables.items())

    def _rows(self, table: PublishedTable, counts: Array) -> Iterator[tuple[object, ...]]:
        numbers = counts.ravel()
        values = numbers.astype(np.int64).tolist() if np.all(numbers == np.rint(numbers)) else numbers.tolist()
        return ((*cell, number) for cell, number in zip(itertools.product(*table.sides.values()), values, strict=True))

    def _labelled(self) -> Iterator[tuple[str, ...]]:
        codes = self.records()
        labels = [attribute_at(self._domain, axis) for axis in self._axes]
        columns = [[attribute.label(code) for code in range(attribute.size)] for attribute in labels]
        return (tuple(column[code] for column, code in zip(columns, record, strict=True)) for record in codes.tolist())

    def __repr__(self) -> str:
        return f"FittedTables({counted(len(self.tables), 'table')}, gap={self.gap:.2g})"


# Whole records, one value of each moved at a time, towards noisy tables that tie too many attributes together.


SWEEPS, STEPS = 12, 400  # over all attributes at most, and moves of many records at once for each
FIRST, AT_ONCE = 64, 2**20  # records that the first step looks at, and values of records in one step at most
ENOUGH = 1e-2  # part of the distance that a sweep must take off for another one to follow
KEPT = 0.5  # part of what was foreseen that a step must take off for the next one to be as large


class RecordMoves:
    """Records, their tables and how far these are from noisy ones: each table of `noisy` has a clique of its own.

    A step looks at one attribute of some records. What a value would change follows from the slope of the distance on
    each table and, roughly, its curvature; all that gain move at once if the distance falls.
    """

    def __init__(self, noisy: NoisyTables, codes: Codes) -> None:
        self.noisy, self.codes = noisy, codes
        self.shapes = noisy.layout.shapes
        self.counts = [self._count(number, codes) for number in range(len(noisy.tables))]
        self.residuals = noisy.residuals(self.vector)
        self.slopes = [self._slope(number) for number in range(len(noisy.tables))]
        self.asking: dict[int, list[int]] = {}
        for number, table in enumerate(noisy.tables):
            for axis in table.axes:
                if noisy.layout.sizes[axis] > 1:
                    self.asking.setdefault(axis, []).append(number)

    @property
    def vector(self) -> Array:
        return np.concatenate([count.ravel() for count in self.counts])

    def descend(self) -> None:
        """Move records until a sweep hardly helps."""
        generator = np.random.default_rng(0)
        curvatures = {axis: self._curvature(axis) for axis in self.asking}
        most = {axis: min(max(AT_ONCE // self.noisy.layout.sizes[axis], 1), len(self.codes)) for axis in self.asking}
        sizes = {axis: min(FIRST, most[axis]) for axis in self.asking}
        left = self.noisy.distance(self.residuals)
        for _ in range(SWEEPS if len(self.codes) else 0):
            for axis in generator.permutation(list(self.asking)).tolist():
                seen = 0
                for _ in range(STEPS):
                    chosen = generator.choice(len(self.codes), sizes[axis], replace=False)
                    seen += len(chosen)
                    as_foreseen = self._step(axis, chosen, curvatures[axis])
                    size = 2 * sizes[axis] if as_foreseen else sizes[axis] // 2
                    sizes[axis] = min(max(size, 1), most[axis])
                    if seen >= len(self.codes):
                        break
            before, left = left, self.noisy.distance(self.residuals)
            if left >= (1 - ENOUGH) * before:
                break

    def _step(self, axis: int, chosen: npt.NDArray[np.intp], curvature: Array) -> bool:
        """Move what gains among some records, if the distance falls; return whether it fell much as foreseen."""
        codes, row = self.codes[chosen], np.arange(len(chosen))
        now = codes[:, axis]
        change = self._slopes_along(axis, codes) + 0.5 * curvature[now]
        change -= change[row, now][:, None]
        value = change.argmin(axis=1)
        foreseen = change[row, value]
        gaining = foreseen < 0
        if not np.any(gaining):
            return True
        before = codes[gaining]
        after = before.copy()
        after[:, axis] = value[gaining]
        moved = {number: self._count(number, after) - self._count(number, before) for number in self.asking[axis]}
        residuals = {
            number: self.residuals[number] + self.noisy.tables[number].forward(difference)
            for number, difference in moved.items()
        }
        fallen = self.noisy.distance([self.residuals[number] for number in moved]) - self.noisy.distance(
            [*residuals.values()]
        )
        if fallen > 0:
            self.codes[chosen[gaining]] = after
            for number, difference in moved.items():
                self.counts[number] = self.counts[number] + difference
                self.residuals[number] = residuals[number]
                self.slopes[number] = self._slope(number)
        return bool(fallen >= -KEPT * foreseen[gaining].sum())

    def _slopes_along(self, axis: int, codes: Codes) -> Array:
        """Return the slope of the distance at each value that records could take along an attribute."""
        along = np.zeros((len(codes), self.noisy.layout.sizes[axis]))
        for number in self.asking[axis]:
            axes = self.noisy.tables[number].axes
            slopes = np.moveaxis(self.slopes[number], axes.index(axis), -1)
            along += slopes[tuple(codes[:, other] for other in axes if other != axis)]
        return along

    def _curvature(self, axis: int) -> Array:
        """Return what one record moved from value to value adds to twice the distance, by typical units and queries."""
        size = self.noisy.layout.sizes[axis]
        curvature = np.zeros((size, size))
        for number in self.asking[axis]:
            table = self.noisy.tables[number]
            gram, typical = np.eye(size), float((table.unit**2).mean())
            by_side = len(table.queries) == len(table.axes)  # else asked of all cells at once
            for side, matrix in enumerate(table.queries):
                if by_side and table.axes[side] == axis and matrix is not None:
                    product = matrix.T @ matrix
                    gram = product if isinstance(product, np.ndarray) else product.toarray()
                elif matrix is not None:
                    typical *= float((matrix * matrix).sum()) / matrix.shape[1]
            squares = np.diagonal(gram)
            curvature += (squares[:, None] + squares - 2 * gram) * typical
        return curvature

    def _count(self, number: int, codes: Codes) -> Array:
        shape = self.shapes[number]
        columns = tuple(codes[:, axis] for axis in self.noisy.tables[number].axes)
        cells = np.ravel_multi_index(columns, shape) if shape else np.zeros(len(codes), dtype=np.intp)
        return np.bincount(cells, minlength=math.prod(shape)).astype(np.float64).reshape(shape)

    def _slope(self, number: int) -> Array:
        return self.noisy.tables[number].adjoint(self.residuals[number])
