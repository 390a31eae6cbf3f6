"""A release as it is planned, before any record is read, and as it is drawn: cost, accuracy, tables, statement."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import accounting, files, validate
from dualmech.accounting import LEVEL, UNBOUNDED, level_of, normal_quantile
from dualmech.display import Displayed, counted, decimal_above, decimal_below, rounded_up
from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.files.csv import as_frame, file_name, write_rows
from dualmech.neighbours import canonical
from dualmech.publishing import records
from dualmech.publishing.derived import derived
from dualmech.publishing.drawing import Measured, discrete_gaussian, is_records, require_domain, require_sampler
from dualmech.publishing.persons import Bound
from dualmech.publishing.plans import PlanTerms
from dualmech.publishing.published import PublishedTable, published_tables
from dualmech.publishing.specification import Specification
from dualmech.publishing.statement import (
    neighbours_text,
    plan_lines,
    statement,
)
from dualmech.publishing.unit import PrivacyUnit
from dualmech.solution import Solution, require_solution
from dualmech.validate import Array
from dualmech.workloads import products
from dualmech.workloads.base import Workload, check_workload

DELTAS = (1e-6, 1e-9, 1e-12)

UNDECLARED = records.Records(None)  # columns that no attribute reads have no meaning


class ReleasePlan(Displayed):
    """A mechanism on its grid and what it will publish, as `dualmech.plan_release` returns it: no record is in it.

    Attributes
    ----------
    drawn : Measured
        The mechanism on its grid; ``drawn.mechanism`` is the Gaussian mechanism with the noise that is drawn.
    workload : Workload
        What is published.
    answer : Solution or None
        What the noise is the best for, with the proof, where the mechanism came as one.
    """

    def __init__(self, drawn: Measured, workload: Workload, answer: Solution | None = None) -> None:
        if not hasattr(drawn, "squared_privacy_cost") or not hasattr(drawn, "by_table"):
            raise InputTypeError(f"drawn must be a mechanism on its grid, got {type(drawn).__name__}")
        self.drawn: Any = drawn
        self.workload = check_workload(workload)
        self.answer = None if answer is None else require_solution(answer)
        self.ledger: Any = None  # where it was recorded, the ledger with it
        self._declared: records.Records | None = None  # of columns, where the plan has no specification that says so
        self._known: dict[str, Array] = {}  # variances of tables
        self._still: dict[str, npt.NDArray[np.bool_]] = {}  # entries of tables that no neighbour changes

    def draw(self, records: object, *, allow_empty: bool = False) -> Publication:
        """Count records, answer the whole queries and add noise that nobody can predict; see `dualmech.release`.

        Raises `BackendError` where OpenDP is not installed; what `dualmech.release` refuses of records.
        """
        return self.joined(self.draw_new(records, allow_empty=allow_empty))

    def draw_new(self, records: object, *, allow_empty: bool = False) -> Publication:
        """Draw the new noisy answers alone, which spends the ρ of the plan; see `draw`."""
        empty = validate.boolean(allow_empty=allow_empty)
        planned = self.declaring(records)
        require_sampler()
        data = self.drawn.read(read_as(records, planned.declared), self.workload.domain, empty)
        publication = Publication(self.drawn, self.drawn.draw(data, discrete_gaussian), self.workload, self.answer)
        # what the plan knows: its specification, its tables and their variances; but what was recorded is one release
        vars(publication).update(vars(planned) | {"ledger": None})
        return publication

    def joined(self, publication: Publication) -> Publication:
        """Return a publication of `draw_new`, combined with the earlier release that the plan reuses, if any."""
        return validate.instance(Publication, publication=publication)

    @property
    def declared(self) -> records.Records:
        """Declarations of columns that no attribute reads: counts, columns left unread, persons; without a source."""
        return records_of(self.specification) if self._declared is None else self._declared

    def declaring(self, source: object) -> ReleasePlan:
        """Return the plan for records that declare their columns; counts declare none.

        Raises `InvalidInputError` for records that contradict the plan, and for counts where the plan truncates the
        records of persons: counts do not tell persons apart.
        """
        if not is_records(source):
            if (bound := truncation(self.declared)) is not None:
                raise InvalidInputError(
                    f"records must be rows with a column {bound.person!r}, of each of which the plan counts at most "
                    f"{bound.at_most}, got counts, which do not tell persons apart"
                )
            return self
        planned = copy.copy(self)
        planned._declared = columns_of(read_as(source, self.declared))
        planned.unit  # noqa: B018  # raises, before any record is read, if the noise does not protect the unit
        return planned

    @property
    def unit(self) -> PrivacyUnit:
        """The unit of privacy: what neighbouring sets of records differ by."""
        rule = None if self.specification is None else self.specification.neighbours
        return PrivacyUnit.of(self.relation, self.declared, self.workload.domain, rule)

    @property
    def terms(self) -> PlanTerms | None:
        """What the plan keeps of what was asked."""
        return PlanTerms.of(self.answer)

    @cached_property
    def specification(self) -> Specification | None:
        """What was asked, where the plan keeps it.

        Raises `InvalidInputError` for a plan of other tables, or whose noise does not protect those who were asked for.
        """
        specification = specification_of(self.terms)
        if specification is not None and self.answer is not None:
            specification.check_answer(self.answer)
        return specification

    @property
    def quantile(self) -> float:
        """Standard deviations in a margin of error where no level is named: as asked, else for 19 in 20."""
        quantile = None if self.terms is None else self.terms.quantile
        return normal_quantile(LEVEL) if quantile is None else quantile

    @cached_property
    def rho(self) -> Fraction:
        """The ρ of zero-concentrated differential privacy: the ρ that the plan keeps, else exactly the ρ of the grid.

        A plan's is not below the grid's, which differs by some 1e-9 from machine to machine: both are compared here.
        """
        drawn: Fraction = self.drawn.squared_privacy_cost / 2
        kept = None if self.terms is None else self.terms.rho
        return drawn if kept is None else max(drawn, Fraction(kept))

    @property
    def rho_text(self) -> str:
        """ρ as a decimal of ten digits that is not below it."""
        return decimal_above(self.rho, 10)

    def epsilon(self, delta: float) -> float:
        """Return an ε at which the release is (ε, δ)-differentially private, as ρ implies it; rounded up.

        The noise is discrete: the curve of the continuous Gaussian mechanism, which is lower, does not hold for it.
        """
        return accounting.zcdp_epsilon(rounded_up(self.rho), delta) if self.rho else 0.0

    @cached_property
    def epsilons(self) -> Mapping[float, str]:
        """The ε that are told, as decimals not below them, by δ: the one that was asked, or the usual ones."""
        deltas = DELTAS if self.terms is None or self.terms.delta is None else (self.terms.delta,)
        return {delta: decimal_above(self.epsilon(delta)) for delta in deltas}

    def delta(self, epsilon: float) -> float:
        """Return a δ at which the release is (ε, δ)-differentially private, as ρ implies it; rounded up."""
        return accounting.zcdp_delta(rounded_up(self.rho), epsilon) if self.rho else 0.0

    @cached_property
    def derivations(self) -> Mapping[str, tuple[str, ...]]:
        """The derived columns of each table of which the plan asks some; see `Publication.derived`."""
        kept = {
            table: kinds for specification in self._specifications for table, kinds in specification.derivations.items()
        }
        return {table: kinds for table, kinds in kept.items() if table in self.published}

    def ordered_sides(self, table: str) -> list[str]:
        """Return the sides of a table in the order in which a specification asks for them, or of the attributes."""
        sides, questions = [*self._table(table).sides], self.asks.get(table, {})
        return [*questions] if {*questions} == {*sides} else sides

    @cached_property
    def published(self) -> dict[str, PublishedTable]:
        """The tables, by name: what their entries are called."""
        return {table.name: table for table in published_tables(self.workload)}

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self.published)

    @property
    def neighbours(self) -> str:
        """By what neighbouring sets of records differ, in words."""
        return neighbours_text(self)

    @cached_property
    def relation(self) -> str:
        """The relation of the data sets that are counted, as `dualmech.neighbours.canonical` writes it."""
        return canonical(getattr(self.drawn.mechanism, "neighbours", None), self.workload.domain)

    def unmoved(self, table: str) -> npt.NDArray[np.bool_]:
        """Return which entries of a table no neighbour changes, an axis a side: they are published as they are."""
        listed = self._table(table)
        if table not in self._still:
            unmoved = np.zeros(listed.shape, dtype=bool)
            if hasattr(self.drawn, "unmoved"):
                unmoved = self.drawn.unmoved(listed.asked) if self.drawn.by_table else self._unmoved[listed.rows]
            self._still[table] = np.asarray(unmoved).reshape(listed.shape) | listed.empty
        return self._still[table].copy()

    def variances(self, table: str) -> Array:
        """Return the variance of each estimate of a table, an axis a side; 0 of what no neighbour changes."""
        listed = self._table(table)
        if table not in self._known:
            mechanism = self.drawn.mechanism
            variances = (
                np.asarray(mechanism.variances(listed.asked)) if self.drawn.by_table else self._spread[listed.rows]
            )
            self._known[table] = np.where(self.unmoved(table), 0.0, variances.reshape(listed.shape))
        return self._known[table].copy()

    def margins(self, table: str, level: float | None = None, simultaneous: bool = False) -> Array:
        """Return the margin of error of each estimate: truth lies within it with this probability.

        Without a level it is the plan's own, or 19 in 20 where that keeps none.
        With `simultaneous`, all truths of all tables do at once: by Šidák's inequality, which holds for Gaussian noise
        however it is correlated, at the level ``level^(1/m)`` of each of the m that have noise.
        """
        quantile = self.quantile if level is None else normal_quantile(validate.probability(level=level))
        if validate.boolean(simultaneous=simultaneous):
            quantile = normal_quantile(level_of(quantile), max(self._noisy, 1))
        return np.asarray(quantile * np.sqrt(self.variances(table)))

    def lines(self, level: float | None = None, simultaneous: bool = False) -> list[str]:
        """Return who is protected, the exact privacy, and the largest margin of error of each table, in lines."""
        return plan_lines(self, level, simultaneous)

    def check_columns(self, source: object) -> list[str]:
        """Refuse records whose columns lack an attribute: of a file the header is read, and no record.

        Returns the columns that are not read, which are passed over.
        Raises `FileFormatError` or `InvalidInputError` with the attribute; `InputTypeError` where no domain says which
        columns to count. Counts have no columns, and pass.
        """
        return check_columns(read_as(source, self.declared), self.workload)

    @cached_property
    def asks(self) -> Mapping[str, Mapping[str, Any]]:
        """What a specification asks of each table's attributes, where the plan keeps one."""
        return {
            table: question for specification in self._specifications for table, question in specification.asks.items()
        }

    @property
    def _specifications(self) -> tuple[Specification, ...]:
        return () if self.specification is None else (self.specification,)

    @cached_property
    def _noisy(self) -> int:
        return sum(int(np.sum(~self.unmoved(name))) for name in self.tables)

    @cached_property
    def _unmoved(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.drawn.unmoved(self.workload))

    @cached_property
    def _spread(self) -> Array:
        return self._variances(self.workload)

    def _variances(self, workload: Workload) -> Array:
        variances = self.drawn.mechanism.variances(workload)
        if isinstance(variances, tuple):  # of a product, by factor
            return products.outer(variances).ravel()
        return np.asarray(variances)

    def _table(self, name: str) -> PublishedTable:
        if not isinstance(name, str) or name not in self.published:
            near = did_you_mean(name, self.published) if isinstance(name, str) else ""
            raise InvalidInputError(f"table must be one of {list(self.tables)}, got {validate.shown(name)}{near}")
        return self.published[name]

    def _facts(self) -> dict[str, object]:
        return {
            "tables": len(self.tables),
            "queries": sum(value.entries for value in self.published.values()),
            "rho (zCDP)": decimal_above(self.rho),
            "epsilon at delta = 1e-09": decimal_above(self.epsilon(1e-9)),
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(len(self.tables), 'table')}, rho={decimal_above(self.rho)})"


def specification_of(terms: PlanTerms | None) -> Specification | None:
    """Return the specification that terms keep, if any."""
    return None if terms is None or terms.specification is None else Specification.of_json(terms.specification)


@dataclass(frozen=True, slots=True)
class Part:
    """A release as a combination of several tells of it.

    Attributes
    ----------
    rho : Fraction
        What it costs.
    tables : tuple of str
        What it publishes.
    digest : str
        SHA-256 of its noisy answers, which no other release has.
    terms : PlanTerms or None
        What its plan keeps of what was asked.
    declared : Records
        What columns of its records mean that no attribute reads.
    """

    rho: Fraction
    tables: tuple[str, ...]
    digest: str
    terms: PlanTerms | None = None
    declared: records.Records = UNDECLARED


MEASURES = ("estimate", "margin", "low", "high")
INDEX, STATEMENT = "tables.csv", "STATEMENT.md"


DIGITS = 4  # of a margin of error that tables show
ROUNDING = 1e-10  # of answers without noise that are put together from parts, relative to the largest of a table


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
        self.measured: Any = measured
        self.combined: tuple[Part, ...] = ()  # of several releases, each of them

    @property
    def parts(self) -> tuple[Part, ...]:
        """The releases that it is made of: itself, or those that were combined."""
        if self.combined:
            return self.combined
        return (Part(self.rho, self.tables, measured_digest(self.measured), self.terms, self.declared),)

    @property
    def declared(self) -> records.Records:
        """Declarations of columns that no attribute reads; of a combination those of its first release."""
        return self.combined[0].declared if self.combined else super().declared

    @property
    def terms(self) -> PlanTerms | None:
        """What its plan keeps of what was asked; of a combination the level and the δ that all its plans share."""
        if not self.combined:
            return super().terms
        levels = [
            (None, None) if part.terms is None else (part.terms.quantile, part.terms.delta) for part in self.parts
        ]
        quantiles, deltas = ({*values} for values in zip(*levels, strict=True))
        return PlanTerms(*(values.pop() if len(values) == 1 else None for values in (quantiles, deltas)))

    @property
    def _specifications(self) -> tuple[Specification, ...]:
        kept = (specification_of(part.terms) for part in self.combined)
        return (
            tuple(specification for specification in kept if specification is not None)
            if self.combined
            else super()._specifications
        )

    def draw_new(self, records: object, *, allow_empty: bool = False) -> Publication:
        """Refuse to draw again: that is another release, which costs as much once more, and has a plan of its own."""
        raise InvalidInputError("a publication has no second draw: plan another release, dualmech.plan_release")

    def estimates(self, table: str) -> Array:
        """Return the unbiased estimates of a table, an axis a side; what no neighbour changes is the truth."""
        listed = self._table(table)
        by_table = self.drawn.by_table
        estimates = self.drawn.estimate(self.measured, listed.asked) if by_table else self._answers[listed.rows]
        estimates, known = np.reshape(estimates, listed.shape), self.unmoved(table)
        estimates = np.where(listed.empty, 0.0, estimates)
        near = np.rint(estimates)  # whole rows have whole answers, which sums of parts miss by their rounding alone
        return np.where(
            known & (np.abs(estimates - near) <= ROUNDING * np.abs(estimates).max(initial=0.0)), near, estimates
        )

    def rows(
        self, table: str, level: float | None = None, simultaneous: bool = False
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """Return the heading of a table and its rows: a label a side, then estimate, margin and interval.

        Sides are in the order in which a specification asks for them, else in the order of the attributes.
        """
        listed, sides = self._table(table), self.ordered_sides(table)
        cells = itertools.product(*(listed.sides[side] for side in sides))
        numbers = self._measures(table, self.margins(table, level, simultaneous))
        return (*sides, *MEASURES), ((*cell, *number) for cell, number in zip(cells, numbers, strict=True))

    def _measures(self, table: str, margins: Array) -> Iterator[tuple[float, float, float, float]]:
        sides = [*self._table(table).sides]
        order = [sides.index(side) for side in self.ordered_sides(table)]
        pairs = (np.transpose(array, order).ravel().tolist() for array in (self.estimates(table), margins))
        return ((one, margin, one - margin, one + margin) for one, margin in zip(*pairs, strict=True))

    def _with_keys(self, table: str) -> tuple[list[str], Iterator[tuple[str, ...]]]:
        published, heading = self._table(table), list[str]()
        columns: list[list[tuple[str, ...]]] = []
        for side in self.ordered_sides(table):
            labels, keys = published.sides[side], published.keys.get(side)
            heading += [side] if keys is None else [side, f"{side} from", f"{side} to"]
            columns.append([(label, *(() if keys is None else keys[place])) for place, label in enumerate(labels)])
        return heading, (tuple(itertools.chain(*cells)) for cells in itertools.product(*columns))

    def derived(self, table: str, kind: str, level: float | None = None) -> tuple[list[str], list[Any]]:
        """Return the heading and rows of what follows from a table at no further privacy: a label a side, and interval.

        `kind` is ``share``, every row over the total of the attribute that the table names last; ``mean``, the sum of
        an attribute over the number of records that have a value; ``median``, where running sums reach half of the
        last; ``quantile 0.9``, where they reach nine tenths of it. Each interval holds at the level: of quotients by
        Fieller's theorem, without an end where the denominator cannot be told from 0; of quantiles from a band of all
        running sums.
        Raises `InvalidInputError` for a table that does not ask what this needs.

        Examples
        --------
        >>> import numpy as np
        >>> import dualmech as dm
        >>> from dualmech import fast
        >>> schema = dm.Schema({"sex": ["female", "male"], "hours": range(3)})
        >>> asked = dm.workloads.union(schema, {"hours": {"sex": "values", "hours": ["sum", "total"]}})
        >>> released = dm.release(fast.solve(dm.FitnessForUse(asked, 1.0)), {(0, 1): np.full((2, 3), 1000)})
        >>> heading, rows = released.derived("hours", "mean")
        >>> heading, [(row[0], round(row[1], 1)) for row in rows]
        (['sex', 'mean', 'low', 'high'], [('female', 1.0), ('male', 1.0)])
        """
        return derived(self, self._table(table).name, kind, level)

    def frame(self, table: str, level: float | None = None, simultaneous: bool = False) -> Any:
        """Return a table as a pandas DataFrame, a row an entry: labels, estimate, margin of error, interval."""
        return as_frame(*self.rows(table, level, simultaneous))

    def estimate(self, queries: object) -> tuple[float, float] | tuple[Array, Array]:
        """Return the estimate of a derived query and its variance, from the joint noise of all tables.

        `queries` is a `Workload` of any queries in the span, where the mechanism is on a matrix; of tables, a product
        query: a mapping of attributes to factors, as `BlockMechanism.variance_of` takes it.
        """
        if not self.drawn.by_table:
            workload = validate.instance(Workload, queries=queries)
            return self.drawn.estimate(self.measured, workload), self._variances(workload)
        mechanism = self.drawn.mechanism
        factors = {
            name: np.asarray(factor, dtype=np.float64)
            for name, factor in validate.mapping("attributes to factors", queries=queries).items()
        }
        variance = mechanism.variance_of(factors)
        table = self.drawn.estimate(self.measured, tuple(factors))
        for name in sorted(factors, key=mechanism.domain.names.index):
            table = np.tensordot(factors[name], table, axes=(0, 0))
        return float(table), variance

    def write(self, folder: str | PathLike[str], level: float | None = None, simultaneous: bool = False) -> list[str]:
        """Write a CSV file a table, a list of them, and the statement; return the names of the files.

        The folder must not exist; it is there whole or not at all. Numbers have the digits that noise leaves: four of
        the margin. Where labels are no values, two columns have the first and the last value of each, to sort and join.
        """
        with files.atomic_folder(folder) as place:
            return write_into(self, place, level, simultaneous)

    def statement(self, level: float | None = None, simultaneous: bool = False) -> str:
        """Return a page in Markdown that says what was asked, protected and promised, and what is not covered."""
        return statement(self, level, simultaneous)

    @cached_property
    def _answers(self) -> Array:
        return np.asarray(self.drawn.estimate(self.measured, self.workload)).ravel()


def write_into(released: Publication, folder: Path, level: float | None, simultaneous: bool) -> list[str]:
    """Write what `Publication.write` does into a folder that exists."""
    names = [file_name(number, name, len(released.tables)) for number, name in enumerate(released.tables, start=1)]
    listed: list[tuple[str, str, int, object]] = []
    for name, table in zip(names, released.tables, strict=True):
        (heading, labels), margins = released._with_keys(table), released.margins(table, level, simultaneous)
        numbers = zip(labels, released._measures(table, margins), strict=True)
        write_rows(folder / name, (*heading, *MEASURES), ((*entry, *to_digits(*values)) for entry, values in numbers))
        largest = to_digits(margin=float(margins.max()))[1]
        listed.append((name, table, released.published[table].entries, largest))
    for name, table in zip(names, released.tables, strict=True):
        for kind in released.derivations.get(table, ()):
            target = f"{name.removesuffix('.csv')}_{kind.replace(' ', '_')}.csv"
            heading, lines = released.derived(table, kind, level)
            write_rows(folder / target, heading, map(_with_digits, lines))
            listed.append((target, f"{table}: {kind}", len(lines), ""))
    write_rows(folder / INDEX, ("file", "table", "entries", "largest margin"), listed)
    files.atomic.write_text(folder / STATEMENT, released.statement(level, simultaneous))
    return [*(name for name, *_ in listed), INDEX, STATEMENT]


def measured_digest(measured: Any) -> str:
    """Return the SHA-256 of noisy answers, which tells a release from every other."""
    hashed = hashlib.sha256()
    arrays = measured if isinstance(measured, Mapping) else {(): measured}
    for axes in sorted(arrays):
        array = np.ascontiguousarray(arrays[axes], dtype="<f8")
        hashed.update(f"{axes}:{array.shape}:".encode() + array.tobytes())
    return hashed.hexdigest()


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
        return tuple(int(number) if number == int(number) else number for number in numbers)
    places = DIGITS - 1 - math.floor(math.log10(margin))
    return tuple(round(number, places) + 0.0 for number in numbers)


def _with_digits(row: tuple[Any, ...]) -> tuple[Any, ...]:
    labels, (middle, low, high) = row[:-3], row[-3:]
    if isinstance(middle, str) or not all(map(math.isfinite, (middle, low, high))):
        return row
    rounded = to_digits(middle, (high - low) / 2, low, high)
    return (*labels, rounded[0], *rounded[2:])


# What a release takes, and refuses before any record is read.


SEEDS = ("rng", "seed", "random_state", "random_seed", "generator", "key", "sampler", "noise")


GRID = 1e-5  # how much more the grid may make noise cost once it is scaled, relative


def require_no_seed(refused: Mapping[str, object]) -> None:
    """Refuse a seed, and all else that a release takes no argument for."""
    shown = ", ".join(refused)
    if any(name in SEEDS for name in refused):
        raise InputTypeError(
            f"a release takes no {shown}: noise that can be drawn again protects nobody; a mechanism's simulate takes "
            f"a seed, for study"
        )
    if refused:
        raise InputTypeError(
            f"a release takes no {shown}: what it costs is settled by the mechanism, and limited by rho; accuracy is "
            f"asked of the problem, levels of what is returned"
        )


def require_within(squared_cost: Fraction, rho: object) -> None:
    """Refuse an exact squared privacy cost of more than twice the ρ allowed: a number or a text, or UNBOUNDED."""
    limit = None if rho is None else validate.exact_number(rho=rho)
    if limit is None and squared_cost > 2 * UNBOUNDED:
        raise InvalidInputError(
            f"mechanism costs rho = {decimal_above(squared_cost / 2)}, which protects next to nothing: no more than "
            f"{UNBOUNDED} is released unless rho says so; ask for less accuracy, or allow so much, rho=… (--rho …)"
        )
    if limit is not None and squared_cost > 2 * limit:
        larger = float(squared_cost / (2 * limit)) * (1 + GRID)
        raise InvalidInputError(
            f"mechanism costs rho = {decimal_above(squared_cost / 2, 12)}, more than the {decimal_below(limit, 12)} "
            f"allowed: solve again with that rho (--rho …); the same noise {larger:.12g} times as large, all variances "
            f"with it, costs that much, in Python mechanism.scaled({larger:.12g})"
        )


def records_of(specification: Specification | None) -> records.Records:
    """Return what a specification declares of columns; nothing without one."""
    return UNDECLARED if specification is None else specification.records


def read_as(source: object, declared: records.Records) -> object:
    """Return records with what a plan declares of their columns; counts as they are.

    Raises `InvalidInputError` for records that declare something else themselves.
    """
    if not is_records(source):
        return source
    stated = records.Records.of(source)
    if declared == UNDECLARED:
        return stated
    if columns_of(stated) not in (UNDECLARED, declared):
        raise InvalidInputError("records must say of their columns what the specification says, or nothing")
    return replace(declared, source=stated.source, report=stated.report)


def columns_of(source: object) -> records.Records:
    """Return what records declare of their columns, without the records; counts declare nothing."""
    declared = records.Records.of(source) if is_records(source) else UNDECLARED
    return replace(declared, source=None, report=records.quiet)


def truncation(declared: records.Records) -> Bound | None:
    """Return the bound beyond which records of a person are left out, None without one."""
    bound = declared.persons
    return None if bound is None or bound.check else bound


def check_columns(source: object, workload: Workload | None) -> list[str]:
    """Return the columns of records that are not read; refuse what lacks an attribute. Counts have no columns."""
    if workload is None or not is_records(source):
        return []
    return records.Records.of(source).check_columns(require_domain(workload.domain))
