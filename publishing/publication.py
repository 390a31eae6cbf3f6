"""What a release has made public: estimates, accuracy, the exact cost, and the folder of tables and statement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from dualmech import files, validate
from dualmech.publishing.drawing import Measured
from dualmech.publishing.fitting.records import FittedTables
from dualmech.publishing.fitting.released import fit
from dualmech.publishing.plans import ReleasePlan
from dualmech.publishing.statement import as_frame, file_name, statement, write_rows
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.workloads.base import Workload

MEASURES = ("estimate", "margin", "low", "high")
INDEX, STATEMENT = "tables.csv", "STATEMENT.md"


DIGITS = 4  # of a margin of error that tables show
ROUNDING = 1e-10  # of an answer without noise that is put together from parts, relative


def to_digits(estimate: float = 0.0, margin: float = 0.0, *ends: float) -> tuple[float, ...]:
    """Return numbers to the digits that noise leaves.

    Examples
    --------
    >>> to_digits(10.50633551619816, 17.512225747151234), to_digits(12345.678, 51234.5), to_digits(0.5, 0.0)
    ((10.51, 17.51), (12350.0, 51230.0), (0.5, 0))
    >>> to_digits(3000.0, 0.0)
    (3000, 0)
    """
    numbers = (estimate, margin, *ends)
    if margin == 0:  # the truth
        return tuple(int(each) if each == int(each) else each for each in numbers)
    places = DIGITS - 1 - math.floor(math.log10(margin))
    return tuple(round(each, places) + 0.0 for each in numbers)


class Publication(ReleasePlan):
    """Noisy answers as `dualmech.release` returns them: all that is left of the records, and safe to tell.

    Attributes
    ----------
    measured : array or dict of arrays
        What everything is estimated from.
    drawn, workload, answer
        As of the `ReleasePlan` that was carried out.
    """

    def __init__(self, drawn: Measured, measured: object, workload: Workload, answer: Solution | None = None) -> None:
        super().__init__(drawn, workload, answer)
        self.measured = measured

    def estimates(self, table: str) -> Array:
        """Return the unbiased estimates of a table, an axis a side; what no neighbour changes is the truth."""
        asked = self._table(table)
        by_table = self.drawn.by_table
        found = self.drawn.estimate(self.measured, asked.asked) if by_table else self._answers[asked.rows]
        found, known = np.reshape(found, asked.shape), self.unmoved(table)
        near = np.rint(found)  # whole rows have whole answers, which sums of parts miss by their rounding alone
        return np.where(known & (np.abs(found - near) <= ROUNDING * np.abs(found)), near, found)

    def rows(
        self, table: str, level: float | None = None, simultaneous: bool = False
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """Return the heading of a table and its rows: a label a side, then estimate, margin and interval.

        Sides are in the order in which a specification asks for them, else in that of the attributes.
        """
        asked, kept = self._table(table), self.specification
        sides = [*asked.sides]
        if kept is not None and {*kept.asks.get(table, ())} == {*sides}:
            sides = [*kept.asks[table]]
        order = [[*asked.sides].index(side) for side in sides]
        margins = np.transpose(self.margins(table, level, simultaneous), order).ravel().tolist()
        estimates = np.transpose(self.estimates(table), order).ravel().tolist()
        cells = itertools.product(*(asked.sides[side] for side in sides))
        lines = (
            (*cell, estimate, margin, estimate - margin, estimate + margin)
            for cell, (estimate, margin) in zip(cells, zip(estimates, margins, strict=True), strict=True)
        )
        return (*sides, *MEASURES), lines

    def frame(self, table: str, level: float | None = None, simultaneous: bool = False) -> Any:
        """Return a table as a pandas DataFrame, a row an entry: labels, estimate, margin of error, interval."""
        return as_frame(*self.rows(table, level, simultaneous))

    def estimate(self, asked: object) -> tuple[float, float] | tuple[Array, Array]:
        """Return the estimate of a derived query and its variance, from the joint noise of all tables.

        `asked` is a `Workload` of any queries in the span, where the mechanism is on a matrix; of tables, a product
        query: a mapping of attributes to factors, as `BlockMechanism.variance_of` takes it.
        """
        if not self.drawn.by_table:
            workload = validate.instance(Workload, asked=asked)
            return self.drawn.estimate(self.measured, workload), self._variances(workload)
        mechanism = self.drawn.mechanism
        factors = {
            name: np.asarray(factor, dtype=np.float64)
            for name, factor in validate.mapping("attributes to factors", asked=asked).items()
        }
        variance = mechanism.variance_of(factors)
        table = self.drawn.estimate(self.measured, tuple(factors))
        for name in sorted(factors, key=mechanism.domain.names.index):
            table = np.tensordot(factors[name], table, axes=(0, 0))
        return float(table), variance

    def fitted(self, integer: bool = False) -> FittedTables:
        """Return tables of one non-negative data set near to these, of whole numbers if asked: consistent, and biased.

        The domain may be of any size. The gap is proven, and small where tables tie few attributes together at a time:
        up to 2^17 cells. Beyond, whole records are fitted, asked for or not, and the gap is of a looser bound.
        Raises `InvalidInputError` for a table of more cells than that, records of more than 2^24 codes where they are
        needed, and a release that does not tell the number of records.
        """
        return fit(self, validate.boolean(integer=integer))

    def write(self, folder: str | PathLike[str], level: float | None = None, simultaneous: bool = False) -> list[str]:
        """Write a CSV file a table, a list of them, and the statement; return the names of the files.

        The folder must not exist; it is there whole or not at all. Numbers have the digits that noise leaves: four of
        the margin.
        """
        names = [file_name(number, name, len(self.tables)) for number, name in enumerate(self.tables, start=1)]
        with files.atomic_folder(folder) as place:
            listed = []
            for name, table in zip(names, self.tables, strict=True):
                heading, rows = self.rows(table, level, simultaneous)
                sides = len(heading) - len(MEASURES)
                write_rows(place / name, heading, ((*row[:sides], *to_digits(*row[sides:])) for row in rows))
                largest = to_digits(margin=float(self.margins(table, level, simultaneous).max()))[1]
                listed.append((name, table, self.published[table].entries, largest))
            write_rows(place / INDEX, ("file", "table", "entries", "largest margin"), listed)
            with files.atomic_write(place / STATEMENT) as handle:
                handle.write(self.statement(level, simultaneous).encode())
        return [*names, INDEX, STATEMENT]

    def statement(self, level: float | None = None, simultaneous: bool = False) -> str:
        """Return a page in Markdown that says what was asked, protected and promised, and what is not covered."""
        return statement(self, level, simultaneous)

    @cached_property
    def _answers(self) -> Array:
        return np.asarray(self.drawn.estimate(self.measured, self.workload)).ravel()
