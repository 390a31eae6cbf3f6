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
from dualmech.publishing.fitting.junction import LARGEST_CLIQUE
from dualmech.publishing.fitting.whole_records import DataSet
from dualmech.publishing.published import PublishedTable
from dualmech.publishing.writing import as_frame, file_name, write_rows
from dualmech.validate import Array
from dualmech.workloads.domain import Domain, count_text
from dualmech.workloads.lattice import Axes

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
    _data: DataSet
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
        return validate.read_only(self._data.joint())

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
        names = [
            file_name(number, name, len(self.tables)) for number, name in enumerate(self.tables, start=1)
        ]
        with files.atomic_folder(folder) as place:
            for name, (table, counts) in zip(names, self._tables.values(), strict=True):
                write_rows(place / name, (*table.sides, "count"), self._rows(table, counts))
            sizes = ((name, *each) for name, each in zip(names, self._sizes(), strict=True))
            write_rows(place / INDEX, ("file", "table", "entries"), sizes)
            with files.atomic_write(place / NOTE) as handle:
                handle.write(BIASED.encode())
            if made_up is not None:
                names.append("records.csv")
                write_rows(place / names[-1], self.attributes, made_up)
        return [*names, INDEX, NOTE]

    @property
    def _axes(self) -> Axes:
        return self._data.axes

    def _sizes(self) -> Iterator[tuple[str, int]]:
        return ((name, table.entries) for name, (table, _) in self._tables.items())

    def _rows(self, table: PublishedTable, counts: Array) -> Iterator[tuple[Any, ...]]:
        numbers = counts.ravel()
        told = numbers.astype(np.int64).tolist() if np.all(numbers == np.rint(numbers)) else numbers.tolist()
        return (
            (*cell, own) for cell, own in zip(itertools.product(*table.sides.values()), told, strict=True)
        )

    def _labelled(self) -> Iterator[tuple[str, ...]]:
        codes = self.records()
        labels = [self._domain.attribute(axis) for axis in self._axes]
        columns = [[each.label(code) for code in range(each.size)] for each in labels]
        return (
            tuple(column[code] for column, code in zip(columns, record, strict=True))
            for record in codes.tolist()
        )

    def __repr__(self) -> str:
        return f"FittedTables({counted(len(self.tables), 'table')}, gap={self.gap:.2g})"
