"""What a release has made public: estimates, their accuracy, and the exact privacy cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import scipy.special

from dualmech import accounting, files, validate
from dualmech.display import Displayed, counted
from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.publishing.drawing import Drawn
from dualmech.publishing.fitting.fitted import FittedTables
from dualmech.publishing.fitting.released import fit
from dualmech.publishing.published import PublishedTable, published_tables
from dualmech.publishing.statement import decimal_above, statement
from dualmech.publishing.writing import as_frame, file_name, write_rows
from dualmech.solution import Solution, require_solution
from dualmech.validate import Array
from dualmech.workloads import products
from dualmech.workloads.base import Workload, check_workload

LEVEL = 0.95
MEASURES = ("estimate", "margin", "low", "high")
INDEX, STATEMENT = "tables.csv", "STATEMENT.md"


class Publication(Displayed):
    """Noisy answers as `dualmech.release` returns them: all that is left of the records, and safe to tell.

    Attributes
    ----------
    drawn : Drawn
        The mechanism on its grid; ``drawn.mechanism`` is the Gaussian mechanism with the noise that was drawn.
    measured : array or dict of arrays
        What everything is estimated from.
    workload : Workload
        What is published.
    answer : Solution or None
        What the noise is the best for, with the proof, where the mechanism came as one.
    """

    def __init__(
        self, drawn: Drawn, measured: Any, workload: Workload, answer: Solution | None = None
    ) -> None:
        if not hasattr(drawn, "squared_privacy_cost") or not hasattr(drawn, "by_table"):
            raise InputTypeError(f"drawn must be a mechanism on its grid, got {type(drawn).__name__}")
        self.drawn, self.measured, self.workload = drawn, measured, check_workload(workload)
        self.answer = None if answer is None else require_solution(answer)

    @property
    def rho(self) -> Fraction:
        """The ρ of zero-concentrated differential privacy, exactly."""
        return self.drawn.squared_privacy_cost / 2

    @property
    def rho_text(self) -> str:
        """ρ as a decimal of ten digits that is not below it."""
        return decimal_above(self.rho)

    def epsilon(self, delta: float) -> float:
        """Return an ε at which the release is (ε, δ)-differentially private, as ρ implies it; rounded up.

        The noise is discrete: the curve of the continuous Gaussian mechanism, which is lower, does not hold for it.
        """
        return accounting.zcdp_epsilon(rounded_up(self.rho), delta) if self.rho else 0.0

    def delta(self, epsilon: float) -> float:
        """Return a δ at which the release is (ε, δ)-differentially private, as ρ implies it; rounded up."""
        return accounting.zcdp_delta(rounded_up(self.rho), epsilon) if self.rho else 0.0

    @cached_property
    def published(self) -> dict[str, PublishedTable]:
        """The tables, by name: what their entries are called."""
        return {table.name: table for table in published_tables(self.workload)}

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self.published)

    def estimates(self, table: str) -> Array:
        """Return the unbiased estimates of a table, an axis a side."""
        asked = self._table(table)
        if self.drawn.by_table:
            return np.asarray(self.drawn.estimate(self.measured, asked.asked)).reshape(asked.shape)
        return self._answers[asked.rows].reshape(asked.shape)

    def variances(self, table: str) -> Array:
        """Return the variance of each estimate of a table, an axis a side."""
        asked = self._table(table)
        if self.drawn.by_table:
            return np.asarray(self.drawn.mechanism.variances(asked.asked)).reshape(asked.shape)
        return self._spread[asked.rows].reshape(asked.shape)

    def margins(self, table: str, level: float = LEVEL, simultaneous: bool = False) -> Array:
        """Return the margin of error of each estimate: truth lies within it with this probability.

        With `simultaneous`, all truths of all tables do at once: by Šidák's inequality, which holds for Gaussian noise
        however it is correlated, at the level ``level^(1/m)`` of each of m.
        """
        chosen = validate.probability(level=level)
        if validate.boolean(simultaneous=simultaneous):
            chosen = chosen ** (1 / sum(each.entries for each in self.published.values()))
        return np.asarray(-scipy.special.ndtri((1 - chosen) / 2) * np.sqrt(self.variances(table)))

    def rows(
        self, table: str, level: float = LEVEL, simultaneous: bool = False
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """Return the heading of a table and its rows: a label a side, then estimate, margin and interval."""
        asked, margins = self._table(table), self.margins(table, level, simultaneous).ravel().tolist()
        cells = itertools.product(*asked.sides.values())
        numbers = zip(self.estimates(table).ravel().tolist(), margins, strict=True)
        lines = (
            (*cell, estimate, margin, estimate - margin, estimate + margin)
            for cell, (estimate, margin) in zip(cells, numbers, strict=True)
        )
        return (*asked.sides, *MEASURES), lines

    def frame(self, table: str, level: float = LEVEL, simultaneous: bool = False) -> Any:
        """Return a table as a pandas DataFrame, a row an entry: labels, estimate, margin of error, interval."""
        return as_frame(*self.rows(table, level, simultaneous))

    def estimate(self, asked: Any) -> tuple[float, float] | tuple[Array, Array]:
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

    def write(
        self, folder: str | PathLike[str], level: float = LEVEL, simultaneous: bool = False
    ) -> list[str]:
        """Write a CSV file a table, a list of them, and the statement; return the names of the files.

        The folder must not exist; it is there whole or not at all.
        """
        names = [
            file_name(number, name, len(self.tables)) for number, name in enumerate(self.tables, start=1)
        ]
        with files.atomic_folder(folder) as place:
            listed = []
            for name, table in zip(names, self.tables, strict=True):
                write_rows(place / name, *self.rows(table, level, simultaneous))
                largest = float(self.margins(table, level, simultaneous).max())
                listed.append((name, table, self.published[table].entries, largest))
            write_rows(place / INDEX, ("file", "table", "entries", "largest margin"), listed)
            with files.atomic_write(place / STATEMENT) as handle:
                handle.write(self.statement(level, simultaneous).encode())
        return [*names, INDEX, STATEMENT]

    def statement(self, level: float = LEVEL, simultaneous: bool = False) -> str:
        """Return a page in Markdown that says what was asked, protected and promised, and what is not covered."""
        return statement(self, level, simultaneous)

    @cached_property
    def _answers(self) -> Array:
        return np.asarray(self.drawn.estimate(self.measured, self.workload)).ravel()

    @cached_property
    def _spread(self) -> Array:
        return self._variances(self.workload)

    def _variances(self, workload: Workload) -> Array:
        found = self.drawn.mechanism.variances(workload)
        if isinstance(found, tuple):  # of a product, by factor
            return products.outer(found).ravel()
        return np.asarray(found)

    def _table(self, name: str) -> PublishedTable:
        if not isinstance(name, str) or name not in self.published:
            near = did_you_mean(name, self.published)
            raise InvalidInputError(f"table must be one of {list(self.tables)}, got {name!r}{near}")
        return self.published[name]

    def _facts(self) -> dict[str, object]:
        return {
            "tables": len(self.tables),
            "queries": sum(each.entries for each in self.published.values()),
            "rho (zCDP)": rounded_up(self.rho),
            "epsilon at delta = 1e-09": self.epsilon(1e-9),
        }

    def __repr__(self) -> str:
        return f"Publication({counted(len(self.tables), 'table')}, rho={rounded_up(self.rho):.6g})"


def rounded_up(number: Fraction) -> float:
    """Return the least double that is not below a fraction."""
    found = float(number)
    return found if Fraction(found) >= number else math.nextafter(found, math.inf)
