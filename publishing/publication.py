"""Release plans and publications: cost, accuracy, tables and the statement, before and after noise is drawn."""

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

UNDECLARED = records.Records(None)  # no column has a declared role


class ReleasePlan(Displayed):
    """A mechanism on its grid and the workload to publish, as `dualmech.plan_release` returns it; it holds no record.

    Attributes
    ----------
    drawn : Measured
        The mechanism on its grid; ``drawn.mechanism`` is the Gaussian mechanism with the covariance of the drawn noise.
    workload : Workload
        The published queries.
    answer : Solution or None
        The solution of the mechanism, with its certificate; None for a bare mechanism.
    """

    def __init__(self, drawn: Measured, workload: Workload, answer: Solution | None = None) -> None:
        if not hasattr(drawn, "squared_privacy_cost") or not hasattr(drawn, "by_table"):
            raise InputTypeError(f"drawn must be a mechanism on its grid, got {type(drawn).__name__}")
        self.drawn: Any = drawn
        self.workload = check_workload(workload)
        self.answer = None if answer is None else require_solution(answer)
        self.ledger: Any = None  # the ledger that records this release
        self._declared: records.Records | None = None  # roles of columns, if no specification declares them
        self._table_variances: dict[str, Array] = {}
        self._table_unmoved: dict[str, npt.NDArray[np.bool_]] = {}

    def draw(self, records: object, *, allow_empty: bool = False) -> Publication:
        """Count records, answer the queries and add discrete Gaussian noise; see `dualmech.release`.

        Raises `BackendError` if OpenDP is not installed, and the errors of `dualmech.release` about records.
        """
        return self.joined(self.draw_new(records, allow_empty=allow_empty))

    def draw_new(self, records: object, *, allow_empty: bool = False) -> Publication:
        """Draw only the new noisy answers, at the ρ of the plan; see `draw`."""
        validate.boolean(allow_empty=allow_empty)
        planned = self.declaring(records)
        require_sampler()
        data = self.drawn.read(read_as(records, planned.declared), self.workload.domain, allow_empty)
        publication = Publication(self.drawn, self.drawn.draw(data, discrete_gaussian), self.workload, self.answer)
        # Keep the plan's specification, tables and variances. The ledger recorded one release, not this one.
        vars(publication).update(vars(planned) | {"ledger": None})
        return publication

    def joined(self, publication: Publication) -> Publication:
        """Return a publication of `draw_new`, combined with the earlier release that the plan reuses."""
        return validate.instance(Publication, publication=publication)

    @property
    def declared(self) -> records.Records:
        """Declared roles of the columns that are no attributes (counts, persons, ignored); it holds no records."""
        return records_of(self.specification) if self._declared is None else self._declared

    def declaring(self, source: object) -> ReleasePlan:
        """Return the plan with the column roles that records declare; counts declare none.

        Raises `InvalidInputError` for records that contradict the plan, and for counts if the plan bounds the records
        of each person: counts do not distinguish persons.
        """
        if not is_records(source):
            if (bound := truncation(self.declared)) is not None:
                raise InvalidInputError(
                    f"records must be rows with a column {bound.person!r}, because the plan counts at most "
                    f"{bound.at_most} of each person, got counts, which do not tell persons apart"
                )
            return self
        planned = copy.copy(self)
        planned._declared = columns_of(read_as(source, self.declared))
        planned.unit  # noqa: B018  # raises if the noise does not protect the unit, before any record is read
        return planned

    @property
    def unit(self) -> PrivacyUnit:
        """The unit of privacy: the difference between neighbouring sets of records."""
        rule = None if self.specification is None else self.specification.neighbours
        return PrivacyUnit.of(self.relation, self.declared, self.workload.domain, rule)

    @property
    def terms(self) -> PlanTerms | None:
        """The terms that the user stated with the problem; None if the answer keeps none."""
        return PlanTerms.of(self.answer)

    @cached_property
    def specification(self) -> Specification | None:
        """The specification of the plan, or None.

        Raises `InvalidInputError` if the plan publishes other tables or protects other neighbours than it specifies.
        """
        specification = specification_of(self.terms)
        if specification is not None and self.answer is not None:
            specification.check_answer(self.answer)
        return specification

    @property
    def quantile(self) -> float:
        """The default number of standard deviations in a margin of error: the requested one, else of level 0.95."""
        quantile = None if self.terms is None else self.terms.quantile
        return normal_quantile(LEVEL) if quantile is None else quantile

    @cached_property
    def rho(self) -> Fraction:
        """The ρ of zero-concentrated differential privacy: the maximum of the plan's ρ and the exact ρ on the grid.

        The ρ on the grid differs by about 1e-9 (relative) between machines.
        """
        grid_rho: Fraction = self.drawn.squared_privacy_cost / 2
        plan_rho = None if self.terms is None else self.terms.rho
        return grid_rho if plan_rho is None else max(grid_rho, Fraction(plan_rho))

    @property
    def rho_text(self) -> str:
        """ρ, rounded up to ten digits."""
        return decimal_above(self.rho, 10)

    def epsilon(self, delta: float) -> float:
        """Return an ε, rounded up, that ρ implies: the release is (ε, δ)-differentially private.

        The lower privacy curve of the continuous Gaussian mechanism does not hold for discrete noise.
        """
        return accounting.zcdp_epsilon(rounded_up(self.rho), delta) if self.rho else 0.0

    @cached_property
    def epsilons(self) -> Mapping[float, str]:
        """ε by δ, as decimals rounded up: for the requested δ, or by default for 1e-6, 1e-9 and 1e-12."""
        deltas = DELTAS if self.terms is None or self.terms.delta is None else (self.terms.delta,)
        return {delta: decimal_above(self.epsilon(delta)) for delta in deltas}

    def delta(self, epsilon: float) -> float:
        """Return a δ, rounded up, that ρ implies: the release is (ε, δ)-differentially private."""
        return accounting.zcdp_delta(rounded_up(self.rho), epsilon) if self.rho else 0.0

    @cached_property
    def derivations(self) -> Mapping[str, tuple[str, ...]]:
        """The requested kinds of derived tables, by table; see `Publication.derived`."""
        return {
            table: kinds
            for specification in self._specifications
            for table, kinds in specification.derivations.items()
            if table in self.published
        }

    def ordered_sides(self, table: str) -> list[str]:
        """Return the axes of a table by name, in the order of the specification or else of the attributes."""
        sides, questions = [*self._table(table).sides], self.asks.get(table, {})
        return [*questions] if {*questions} == {*sides} else sides

    @cached_property
    def published(self) -> dict[str, PublishedTable]:
        """The tables by name, with the labels of their entries."""
        return {table.name: table for table in published_tables(self.workload)}

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self.published)

    @property
    def neighbours(self) -> str:
        """The difference between neighbouring sets of records, in words."""
        return neighbours_text(self)

    @cached_property
    def relation(self) -> str:
        """The neighbour relation, in the form of `dualmech.neighbours.canonical`."""
        return canonical(getattr(self.drawn.mechanism, "neighbours", None), self.workload.domain)

    def unmoved(self, table: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the entries of a table that no neighbour changes: they are published without noise."""
        layout = self._table(table)
        if table not in self._table_unmoved:
            unmoved = np.zeros(layout.shape, dtype=bool)
            if hasattr(self.drawn, "unmoved"):
                unmoved = self.drawn.unmoved(layout.table_key) if self.drawn.by_table else self._unmoved[layout.rows]
            self._table_unmoved[table] = np.asarray(unmoved).reshape(layout.shape) | layout.impossible
        return self._table_unmoved[table].copy()

    def variances(self, table: str) -> Array:
        """Return the variances of the estimates of a table; 0 for entries that no neighbour changes."""
        layout = self._table(table)
        if table not in self._table_variances:
            mechanism = self.drawn.mechanism
            variances = (
                np.asarray(mechanism.variances(layout.table_key))
                if self.drawn.by_table
                else self._all_variances[layout.rows]
            )
            self._table_variances[table] = np.where(self.unmoved(table), 0.0, variances.reshape(layout.shape))
        return self._table_variances[table].copy()

    def margins(self, table: str, level: float | None = None, simultaneous: bool = False) -> Array:
        """Return margins of error: the true value lies within the margin with probability `level`.

        The default level is the plan's, else 0.95.
        With `simultaneous`, the true values of all tables lie within their margins at once. By Šidák's inequality,
        which holds for Gaussian noise with any correlation, each of the m noisy entries then has the level
        ``level^(1/m)``.
        """
        quantile = self.quantile if level is None else normal_quantile(validate.probability(level=level))
        if validate.boolean(simultaneous=simultaneous):
            quantile = normal_quantile(level_of(quantile), max(self._noisy, 1))
        return np.asarray(quantile * np.sqrt(self.variances(table)))

    def lines(self, level: float | None = None, simultaneous: bool = False) -> list[str]:
        """Return lines with the protected unit, the exact privacy cost, and each table's largest margin of error."""
        return plan_lines(self, level, simultaneous)

    def check_columns(self, source: object) -> list[str]:
        """Return the unread columns of records; refuse records without a column for each attribute.

        Of a file only the header is read. Counts have no columns, and pass.
        Raises `FileFormatError` or `InvalidInputError` with the missing attribute; `InputTypeError` if the workload has
        no domain.
        """
        return check_columns(read_as(source, self.declared), self.workload)

    @cached_property
    def asks(self) -> Mapping[str, Mapping[str, Any]]:
        """The requested statistics by table and attribute; empty if the plan keeps no specification."""
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
    def _all_variances(self) -> Array:
        return self._variances(self.workload)

    def _variances(self, workload: Workload) -> Array:
        variances = self.drawn.mechanism.variances(workload)
        if isinstance(variances, tuple):  # of a product, by factor
            return products.outer(variances).ravel()
        return np.asarray(variances)

    def _table(self, name: str) -> PublishedTable:
        if not isinstance(name, str) or name not in self.published:
            hint = did_you_mean(name, self.published) if isinstance(name, str) else ""
            raise InvalidInputError(f"table must be one of {list(self.tables)}, got {validate.shown(name)}{hint}")
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
    """Return the specification in the terms of a plan, or None."""
    return None if terms is None or terms.specification is None else Specification.of_json(terms.specification)


@dataclass(frozen=True, slots=True)
class Part:
    """One release of a combination.

    Attributes
    ----------
    rho : Fraction
        Its privacy cost.
    tables : tuple of str
        Names of its tables.
    digest : str
        SHA-256 of its noisy answers, which identifies it.
    terms : PlanTerms or None
        The terms of its plan.
    declared : Records
        The declared roles of its columns that are no attributes.
    """

    rho: Fraction
    tables: tuple[str, ...]
    digest: str
    terms: PlanTerms | None = None
    declared: records.Records = UNDECLARED


MEASURES = ("estimate", "margin", "low", "high")
INDEX, STATEMENT = "tables.csv", "STATEMENT.md"

MARGIN_DIGITS = 4  # significant digits of a margin of error in the tables
ROUNDING_TOL = 1e-10  # rounding error of an answer without noise, relative to the largest answer of its table


class Publication(ReleasePlan):
    """Noisy answers as `dualmech.release` returns them. They may be published: no other trace of the records is kept.

    Attributes
    ----------
    measured : array or dict of arrays
        The noisy answers, which determine all tables.
    drawn, workload, answer
        As in the `ReleasePlan`.
    """

    def __init__(self, drawn: Measured, measured: object, workload: Workload, answer: Solution | None = None) -> None:
        super().__init__(drawn, workload, answer)
        self.measured: Any = measured
        self.combined: tuple[Part, ...] = ()  # the releases of a combination

    @property
    def parts(self) -> tuple[Part, ...]:
        """The combined releases, or this release alone."""
        if self.combined:
            return self.combined
        return (Part(self.rho, self.tables, measured_digest(self.measured), self.terms, self.declared),)

    @property
    def declared(self) -> records.Records:
        """Declared roles of the columns that are no attributes; for a combination, in its first release."""
        return self.combined[0].declared if self.combined else super().declared

    @property
    def terms(self) -> PlanTerms | None:
        """The terms of its plan; for a combination, only the level and the δ that all its plans share."""
        if not self.combined:
            return super().terms
        levels = [
            (None, None) if part.terms is None else (part.terms.quantile, part.terms.delta) for part in self.parts
        ]
        quantiles, deltas = ({*values} for values in zip(*levels, strict=True))
        return PlanTerms(*(values.pop() if len(values) == 1 else None for values in (quantiles, deltas)))

    @property
    def _specifications(self) -> tuple[Specification, ...]:
        if not self.combined:
            return super()._specifications
        specifications = (specification_of(part.terms) for part in self.combined)
        return tuple(specification for specification in specifications if specification is not None)

    def draw_new(self, records: object, *, allow_empty: bool = False) -> Publication:
        """Refuse: a second draw is another release, with its own plan and privacy cost."""
        raise InvalidInputError("a publication has no second draw: plan another release, dualmech.plan_release")

    def estimates(self, table: str) -> Array:
        """Return the unbiased estimates of a table; entries that no neighbour changes have their true values."""
        layout = self._table(table)
        by_table = self.drawn.by_table
        estimates = self.drawn.estimate(self.measured, layout.table_key) if by_table else self._answers[layout.rows]
        estimates = np.where(layout.impossible, 0.0, np.reshape(estimates, layout.shape))
        # Without noise, integer-valued queries have integer answers. Undo the rounding of the sums that form them.
        integers = np.rint(estimates)
        off_integer = np.abs(estimates - integers) > ROUNDING_TOL * np.abs(estimates).max(initial=0.0)
        return np.where(self.unmoved(table) & ~off_integer, integers, estimates)

    def rows(
        self, table: str, level: float | None = None, simultaneous: bool = False
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """Return the heading of a table and its rows: a label for each axis, then estimate, margin and interval.

        The axes are in the order of the specification, else of the attributes.
        """
        sides = self.ordered_sides(table)
        cells = itertools.product(*(self._table(table).sides[side] for side in sides))
        numbers = self._measures(table, self.margins(table, level, simultaneous))
        return (*sides, *MEASURES), ((*cell, *number) for cell, number in zip(cells, numbers, strict=True))

    def _measures(self, table: str, margins: Array) -> Iterator[tuple[float, float, float, float]]:
        sides = [*self._table(table).sides]
        order = [sides.index(side) for side in self.ordered_sides(table)]
        pairs = (np.transpose(array, order).ravel().tolist() for array in (self.estimates(table), margins))
        return (
            (estimate, margin, estimate - margin, estimate + margin) for estimate, margin in zip(*pairs, strict=True)
        )

    def _with_keys(self, table: str) -> tuple[list[str], Iterator[tuple[str, ...]]]:
        published, heading = self._table(table), list[str]()
        columns: list[list[tuple[str, ...]]] = []
        for side in self.ordered_sides(table):
            labels, keys = published.sides[side], published.keys.get(side)
            heading += [side] if keys is None else [side, f"{side} from", f"{side} to"]
            columns.append([(label, *(() if keys is None else keys[place])) for place, label in enumerate(labels)])
        return heading, (tuple(itertools.chain(*cells)) for cells in itertools.product(*columns))

    def derived(self, table: str, kind: str, level: float | None = None) -> tuple[list[str], list[Any]]:
        """Return the heading and rows of statistics derived from a table, with intervals, at no further privacy cost.

        `kind` is one of

        - ``share``: every row divided by the total over the table's last attribute;
        - ``mean``: the sum of an attribute divided by the number of records that have a value;
        - ``median``, ``quantile 0.9``: the first value whose running sum is at least that share of the total.

        Each interval holds at the level. Intervals of quotients are by Fieller's theorem, and unbounded if the
        denominator cannot be distinguished from 0. Intervals of quantiles follow from a simultaneous band of the
        running sums.
        Raises `InvalidInputError` for a table without the queries that `kind` needs.

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
        """Return a table as a pandas DataFrame with one row per entry: labels, estimate, margin of error, interval."""
        return as_frame(*self.rows(table, level, simultaneous))

    def estimate(self, queries: object) -> tuple[float, float] | tuple[Array, Array]:
        """Return the estimates of further queries and their variances, from the joint noise of all tables.

        For a mechanism on a matrix, `queries` is a `Workload` of queries in its span. For a mechanism of tables, it is
        one product query: a mapping of attributes to factors, as in `BlockMechanism.variance_of`.
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
        """Write one CSV file for each table, an index and the statement; return the names of the files.

        The folder must not exist; after an error it does not exist. Numbers are rounded to four significant digits of
        the margin. If a label is not a value (``18 to 24``), two more columns give its first and last value, to
        sort and join by.
        """
        with files.atomic_folder(folder) as place:
            return write_into(self, place, level, simultaneous)

    def statement(self, level: float | None = None, simultaneous: bool = False) -> str:
        """Return the statement in Markdown: the request, the protected unit, the guarantee and its limits."""
        return statement(self, level, simultaneous)

    @cached_property
    def _answers(self) -> Array:
        return np.asarray(self.drawn.estimate(self.measured, self.workload)).ravel()


def write_into(released: Publication, folder: Path, level: float | None, simultaneous: bool) -> list[str]:
    """Write the files of `Publication.write` into an existing folder."""
    names = [file_name(number, name, len(released.tables)) for number, name in enumerate(released.tables, start=1)]
    index: list[tuple[str, str, int, object]] = []
    for name, table in zip(names, released.tables, strict=True):
        (heading, labels), margins = released._with_keys(table), released.margins(table, level, simultaneous)
        numbers = zip(labels, released._measures(table, margins), strict=True)
        write_rows(folder / name, (*heading, *MEASURES), ((*entry, *to_digits(*values)) for entry, values in numbers))
        largest = to_digits(margin=float(margins.max()))[1]
        index.append((name, table, released.published[table].entries, largest))
    for name, table in zip(names, released.tables, strict=True):
        for kind in released.derivations.get(table, ()):
            target = f"{name.removesuffix('.csv')}_{kind.replace(' ', '_')}.csv"
            heading, lines = released.derived(table, kind, level)
            write_rows(folder / target, heading, map(_with_digits, lines))
            index.append((target, f"{table}: {kind}", len(lines), ""))
    write_rows(folder / INDEX, ("file", "table", "entries", "largest margin"), index)
    files.atomic.write_text(folder / STATEMENT, released.statement(level, simultaneous))
    return [*(name for name, *_ in index), INDEX, STATEMENT]


def measured_digest(measured: Any) -> str:
    """Return the SHA-256 of noisy answers, which identifies a release."""
    hashed = hashlib.sha256()
    arrays = measured if isinstance(measured, Mapping) else {(): measured}
    for axes in sorted(arrays):
        array = np.ascontiguousarray(arrays[axes], dtype="<f8")
        hashed.update(f"{axes}:{array.shape}:".encode() + array.tobytes())
    return hashed.hexdigest()


def to_digits(estimate: float = 0.0, margin: float = 0.0, *ends: float) -> tuple[float, ...]:
    """Round numbers to `MARGIN_DIGITS` significant digits of the margin; return integers for integer values if it is 0.

    Examples
    --------
    >>> to_digits(10.50633551619816, 17.512225747151234), to_digits(12345.678, 51234.5), to_digits(0.5, 0.0)
    ((10.51, 17.51), (12350.0, 51230.0), (0.5, 0))
    >>> to_digits(3000.0, 0.0)
    (3000, 0)
    """
    numbers = (estimate, margin, *ends)
    if margin == 0:  # the true value
        return tuple(int(number) if number == int(number) else number for number in numbers)
    places = MARGIN_DIGITS - 1 - math.floor(math.log10(margin))
    return tuple(round(number, places) + 0.0 for number in numbers)


def _with_digits(row: tuple[Any, ...]) -> tuple[Any, ...]:
    labels, (estimate, low, high) = row[:-3], row[-3:]
    if isinstance(estimate, str) or not all(map(math.isfinite, (estimate, low, high))):
        return row
    estimate, _, low, high = to_digits(estimate, (high - low) / 2, low, high)
    return (*labels, estimate, low, high)


# Arguments of a release, checked before any record is read.


SEEDS = ("rng", "seed", "random_state", "random_seed", "generator", "key", "sampler", "noise")


GRID_FACTOR = 1 + 1e-5  # maximum increase of the privacy cost by rounding scaled noise to the grid


def require_no_seed(arguments: Mapping[str, object]) -> None:
    """Refuse a seed, and all other unknown arguments of a release."""
    names = ", ".join(arguments)
    if any(name in SEEDS for name in arguments):
        raise InputTypeError(
            f"a release takes no {names}: noise that can be drawn again protects nobody; a mechanism's simulate takes "
            f"a seed, for study"
        )
    if arguments:
        raise InputTypeError(
            f"a release takes no {names}: the mechanism determines the privacy cost, and rho limits it; set accuracy "
            f"in the problem, and levels on the returned publication"
        )


def require_within(squared_cost: Fraction, rho: object) -> None:
    """Refuse an exact squared privacy cost above 2 ρ for the allowed `rho`, a number or text; None allows UNBOUNDED."""
    limit = None if rho is None else validate.exact_number(rho=rho)
    if limit is None and squared_cost > 2 * UNBOUNDED:
        raise InvalidInputError(
            f"mechanism costs rho = {decimal_above(squared_cost / 2)}, which protects next to nothing: by default at "
            f"most {UNBOUNDED} is released; ask for less accuracy, or allow this cost with rho=… (--rho …)"
        )
    if limit is not None and squared_cost > 2 * limit:
        factor = float(squared_cost / (2 * limit)) * GRID_FACTOR
        raise InvalidInputError(
            f"mechanism costs rho = {decimal_above(squared_cost / 2, 12)}, more than the {decimal_below(limit, 12)} "
            f"allowed: solve again with that rho (--rho …), or multiply all variances by {factor:.12g}, in Python "
            f"mechanism.scaled({factor:.12g})"
        )


def records_of(specification: Specification | None) -> records.Records:
    """Return the column roles that a specification declares."""
    return UNDECLARED if specification is None else specification.records


def read_as(source: object, declared: records.Records) -> object:
    """Return records with the column roles that a plan declares; counts are returned unchanged.

    Raises `InvalidInputError` for records that declare other roles themselves.
    """
    if not is_records(source):
        return source
    user_records = records.Records.of(source)
    if declared == UNDECLARED:
        return user_records
    if columns_of(user_records) not in (UNDECLARED, declared):
        raise InvalidInputError("records must declare the same columns as the specification, or none")
    return replace(declared, source=user_records.source, report=user_records.report)


def columns_of(source: object) -> records.Records:
    """Return the column roles that a source declares, without its records; counts declare none."""
    declared = records.Records.of(source) if is_records(source) else UNDECLARED
    return replace(declared, source=None, report=records.quiet)


def truncation(declared: records.Records) -> Bound | None:
    """Return the contribution bound that truncates the records of each person, or None."""
    bound = declared.persons
    return None if bound is None or bound.check else bound


def check_columns(source: object, workload: Workload | None) -> list[str]:
    """Return the unread columns of records; refuse records that lack an attribute. Counts have no columns."""
    if workload is None or not is_records(source):
        return []
    return records.Records.of(source).check_columns(require_domain(workload.domain))
