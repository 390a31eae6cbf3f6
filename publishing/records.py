"""Counting records into marginal tables: the columns to read, the codes of their values, the counts."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.display import counted
from dualmech.errors import DualmechError, InputTypeError, InvalidInputError, did_you_mean
from dualmech.immutable import freeze
from dualmech.mechanisms.tables import LARGEST_TABLE, maximal_sets
from dualmech.publishing.attributes import THOUSANDS, Attribute, is_missing, number_hint, text_of
from dualmech.publishing.persons import Bound, Report, quiet, report_text
from dualmech.publishing.schema import Schema, attribute_at, attributes_of
from dualmech.publishing.sources import COUNT, PERSON, Chunk, Column, Key, Source, refused_by, source_of
from dualmech.validate import Array, compared, composed
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginal import Axes, MarginalWorkload, cells_of, check_marginal

__all__ = ["Bound", "Records", "count", "tables"]

MAX_CACHED_VALUES = 2**18  # distinct values of a column whose codes are cached
MIN_ROWS = 65536  # rows that are counted at a time
MAX_MERGED_CELLS = 2**16  # cells of a group-by that serves several tables
MAX_TOTAL = 2**53  # number of records: doubles represent larger counts inexactly

PERSONS = (
    "persons?|people|individuals?|patients?|respondents?|households?|records?|rows?|cases?|observations?|obs|"
    "personen|menschen|patienten|haushalte|fälle|faelle|personnes?|cas|personas?|casos?"
)
COUNTS = re.compile(
    "counts?|cnt|n|len|freqs?|frequency|frequencies|population|pop|multiplicity|replicates|weights?|wt|wgt|"
    "fnlwgt|perwt|hhwt|p?wgtp[0-9]*|wtfinl|finalwt|asecwt|weight_?[0-9]+|anzahl|fallzahl|häufigkeit|haeufigkeit|"
    "gewicht|hochrechnungsfaktor|fälle|faelle|cases|observations|effectifs?|poids|frecuencia|"
    f"(?:n|no|nr|nb|num|number|counts?|cnt|freq|anzahl|nombre)[ _.-]*(?:of|der|de|d)?[ _.-]*(?:{PERSONS})|"
    f"(?:{PERSONS})[ _.-]*(?:n|num|number|counts?|cnt|freq|weights?|wt)"
)
"""Names, in small letters, of columns that seem to hold the number of records of each row."""

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Records:
    """Records with the roles of the columns that are no attributes. All functions that read records accept it.

    Attributes
    ----------
    source : path, DataFrame, frame of an engine, or array of codes
        The records, as for `count`.
    count : str or None
        The column with the number of records of each row, as integers; None if each row is one record. The total is at
        most 2^53, so that doubles represent it exactly.
    ignore : tuple of str
        Columns to leave unread, although their names suggest counts or weights.
    persons : Bound or None
        The bound on the records of one person; see `Bound`.
    report : function
        Receives messages for the owner of the records that are no part of a release, such as the number of records
        left out.

    Examples
    --------
    >>> import dualmech as dm
    >>> pandas = __import__("pandas")
    >>> frame = pandas.DataFrame({"sex": ["f", "m"], "n": [3, 5]})
    >>> sexes = dm.workloads.marginals(dm.Schema({"sex": ["f", "m"]}), ways=1)
    >>> dm.records.count(dm.records.Records(frame, count="n"), sexes)
    {(0,): array([3., 5.])}
    """

    source: Any
    count: str | None = None
    ignore: tuple[str, ...] = ()
    persons: Bound | None = None
    report: Report = field(default=quiet, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.count is not None:
            object.__setattr__(self, "count", composed(validate.text(count=self.count)))
        names = (self.ignore,) if isinstance(self.ignore, str) else validate.sequence(ignore=self.ignore)
        object.__setattr__(self, "ignore", tuple(composed(validate.text(ignore=name)) for name in names))
        if self.count in self.ignore:
            raise InvalidInputError(f"ignore must not name the column of counts, {self.count!r}")
        if self.persons is not None and validate.instance(Bound, persons=self.persons).person == self.count:
            raise InvalidInputError(f"count must be another column than the column of persons, got {self.count!r}")
        if not callable(self.report):
            raise InputTypeError(f"report must be a function of a text, got {type(self.report).__name__}")

    @classmethod
    def of(cls, source: Any) -> Records:
        """Return records, by default with one record in each row."""
        return source if isinstance(source, Records) else cls(source)

    def check_columns(self, domain: Domain) -> list[str]:
        """Return the unread columns; refuse columns that lack an attribute, and undeclared columns of counts.

        Raises `FileFormatError` or `InvalidInputError` with the attribute or the column. No record is read.
        """
        unread: dict[str, None] = {}
        for names, refuse in source_of(self.source).headers():
            with refused_by(refuse):
                read = {*self.located(names, domain).values()}
            unread |= {composed(name.strip()): None for place, name in enumerate(names or ()) if place not in read}
        return [*unread]

    @property
    def names(self) -> list[str] | None:
        """The names of the columns of a frame in normal form, None if they have no names."""
        names, _ = next(source_of(self.source).headers())
        return None if names is None else compared("columns of records", names)

    def located(self, column_names: Sequence[str] | None, domain: Domain) -> dict[str, int]:
        """Return the positions of the columns to read, by their names in normal form.

        Refuses absent or duplicate columns, columns that seem to be counts, and an array without names of columns
        (None) if names are needed.
        """
        if column_names is None:
            self._require_array(domain)
            return {}
        sources = domain.sources
        special = {self.count: "the column of counts"}
        special |= {} if self.persons is None else {self.persons.person: "the column of persons"}
        if self.count is not None and self.count in sources:
            raise InvalidInputError(f"count must be a column that is no attribute, got {self.count!r}")
        read = [*dict.fromkeys([*sources, *(name for name in special if name is not None)])]
        names = [name if name in read else name.strip() for name in compared("columns of records", column_names)]
        for name in names:
            plain = name.casefold()
            if name not in read and name not in self.ignore and COUNTS.fullmatch(plain):
                raise InvalidInputError(
                    f"columns of records must not name a {name!r} that is no attribute and is not declared: it seems "
                    f"to hold the number of records of a row; records.count = {name!r} counts them, records.ignore = "
                    f"[{name!r}] leaves it unread and counts each row once; "
                    f"in Python dualmech.publishing.records.Records, for a command --count or --ignore"
                )
        for name in read:
            role = "the attribute" if name in sources else special[name]
            if name not in names:
                hint = did_you_mean(name, names)
                raise InvalidInputError(f"columns of records must name {role} {name!r}, got {names}{hint}")
            if names.count(name) > 1:
                raise InvalidInputError(f"columns of records must name {role} {name!r} once, got {names}")
        return {name: names.index(name) for name in read}

    def _require_array(self, domain: Domain) -> None:
        """Refuse an array of codes if names of columns are needed: for a schema, or for a declared column."""
        if self.count is not None or self.persons is not None:
            raise InputTypeError(
                f"records with a column of counts or persons must have named columns: give a file or a frame, got "
                f"{type(self.source).__name__}"
            )
        if isinstance(domain, Schema):
            raise InputTypeError(
                f"records of a schema are matched by the names of columns: give a file, a frame, or a mapping of "
                f"attributes' positions to tables of counts, such as {{(0, 2): counts}}, got "
                f"{type(self.source).__name__}"
            )


def count(source: Any, workload: MarginalWorkload, *, allow_empty: bool = False) -> dict[Axes, Array]:
    """Count records into the maximal marginal tables of a workload, which determine its other tables.

    Returns a dict of axes to float64 arrays with one axis for each attribute, the argument of a mechanism's `measure`.
    Raises `FileFormatError`, with the line, for a file in another format than `docs/formats.md` describes;
    `InvalidInputError` or `InputTypeError` for an array of another width, for columns that lack an attribute or seem to
    be counts, for a value that the attribute does not have, with its record or number of rows, for no records, and for
    a table too large to count; `BackendError` for records that need the extra ``engines`` if it is not installed.

    Parameters
    ----------
    source : path, DataFrame, frame of an engine, (records, attributes) array of integers, or `Records`
        A path leads to a CSV file (``.csv``, ``.csv.gz``), a Parquet or Arrow file, or a folder of these. Frames are of
        pandas, polars, Arrow, DuckDB, Dask, Spark, or another library that narwhals supports. They hold codes
        0 … n - 1 of every attribute, or values of a `Schema`. Columns name all attributes of the domain, in any order;
        other columns are allowed. An array has the attributes in the domain's order. `Records` declare the roles of
        other columns.
    workload : MarginalWorkload
        The workload of the tables.
    allow_empty : bool
        Whether zero records are allowed; all counts are then 0.

    Examples
    --------
    >>> import dualmech as dm
    >>> tables = dm.workloads.marginals({"age": 2, "sex": 2}, ways=(0, 2))
    >>> dm.records.count([[0, 1], [1, 1], [0, 1]], tables)[0, 1]
    array([[0., 2.],
           [0., 1.]])
    """
    validate.boolean(allow_empty=allow_empty)
    if isinstance(workload, Workload) and not isinstance(workload, MarginalWorkload):
        raise InputTypeError(
            f"workload must be of marginal tables, got {type(workload).__name__}; use the `needed_tables` of a "
            f"mechanism of a union, or the `tables` of query tables"
        )
    domain, tables = check_marginal(workload).domain, maximal_sets(workload.axes)
    assert domain is not None
    for axes in tables:
        shape = tuple(domain.shape[axis] for axis in axes)
        if np.prod(shape, dtype=np.float64) > LARGEST_TABLE:
            raise InvalidInputError(f"a table of shape {shape} has more than {LARGEST_TABLE} cells: too many to count")
    user_records = Records.of(source)
    counts, total = Counting(user_records, domain).tables(tables)
    if not total and not allow_empty:
        file = f"{user_records.source}: " if isinstance(user_records.source, str | PathLike) else ""
        raise InvalidInputError(f"{file}there are no records; allow_empty=True (--allow-empty) counts them so")
    return {axes: freeze(table) for axes, table in counts.items()}


def tables(frames: Sequence[Any], domain: Domain) -> dict[Axes, Array]:
    """Return tables of counts by their attributes, from frames such as the results of ``group_by(…).len()``.

    Each frame has columns of some attributes, and one other column with numbers of records. The counts of rows with the
    same values are added. A pandas Series, as from ``groupby(…).size()``, has the attributes in its index.
    Raises `InvalidInputError` or `InputTypeError` for a frame without attributes, for a frame with several or no other
    columns, for two frames of the same attributes, and for the errors of `count`.

    Parameters
    ----------
    frames : sequence of frames
        One frame for each table.
    domain : Domain
        The attributes, such as a `dualmech.Schema`.

    Examples
    --------
    >>> import dualmech as dm
    >>> pandas = __import__("pandas")
    >>> people = dm.Schema({"sex": ["f", "m"], "age": range(2)})
    >>> frame = pandas.DataFrame({"age": [0, 1, 1], "sex": ["f", "f", "m"]})
    >>> dm.records.tables([frame.groupby(["age", "sex"]).size()], people)
    {(0, 1): array([[1., 1.],
           [0., 1.]])}
    """
    attributes = attributes_of(validate.instance(Domain, domain=domain))
    arrays: dict[Axes, Array] = {}
    for place, frame in enumerate(validate.sequence(frames=frames)):
        if hasattr(frame, "reset_index") and not hasattr(frame, "columns"):
            frame = frame.rename("size").reset_index()
        names = Records(frame).names
        if names is None:
            raise InputTypeError(f"frames[{place}] must have columns with names, got {type(frame).__name__}")
        axes = tuple(axis for axis, attribute in enumerate(attributes) if attribute.source in names)
        count_columns = [name for name in names if name not in domain.sources]
        if not axes or len(count_columns) != 1 or axes in arrays:
            raise InvalidInputError(
                f"frames[{place}] must have columns of attributes, other ones than each other frame, and one of "
                f"counts, got {names}"
            )
        part: Domain = Domain([domain.sizes[axis] for axis in axes])
        if isinstance(domain, Schema):
            part = Schema({attribute.name: attribute for attribute in (attributes[axis] for axis in axes)})
        marginals = MarginalWorkload(part, [tuple(range(len(axes)))])
        (arrays[axes],) = count(Records(frame, count=count_columns[0]), marginals, allow_empty=True).values()
    return arrays


@dataclass(frozen=True, slots=True)
class Coded:
    """Coded rows: the codes of each attribute by its position, and the number of records and the person of each row."""

    codes: Mapping[int, Codes]
    records: Codes | None = None  # None: one record in each row
    persons: Column = ()

    @property
    def rows(self) -> int:
        return len(next(iter(self.codes.values()))) if self.codes else 0

    @classmethod
    def joined(cls, parts: Sequence[Coded]) -> Coded:
        codes = {axis: np.concatenate([part.codes[axis] for part in parts]) for axis in parts[0].codes}
        numbers = [part.records for part in parts if part.records is not None]
        persons = [person for part in parts for person in listed(part.persons)]
        return cls(codes, np.concatenate(numbers) if numbers else None, persons)


class Counting:
    """Counting of records into tables of a domain; codes of values are cached between chunks."""

    def __init__(self, records: Records, domain: Domain) -> None:
        self.records, self.domain = records, domain
        self.source: Source = source_of(records.source)
        self.attributes = dict(enumerate(attributes_of(domain)))
        self.codes = {axis: CodeCache(partial(code_of, attribute)) for axis, attribute in self.attributes.items()}
        self.numbers = CodeCache(_nonnegative_integer)

    def tables(self, tables: Sequence[Axes]) -> tuple[dict[Axes, Array], int]:
        """Return tables of counts by their attributes, and the number of records."""
        sets: list[Axes] = [(*self.attributes,)]
        if self.source.is_grouped and self.records.persons is None:
            together = [tuple(sorted(combination)) for combination in self.domain.impossible]
            sets = _merged(self.domain, [*tables, *((axis,) for axis in self.attributes), *together])
        counts: dict[Axes, Array] = {}
        total = 0
        for axes in sets:
            subtables = [table for table in tables if table not in counts and {*table} <= {*axes}]
            new_counts, total = _tallied(self.domain, subtables, self._coded(axes))
            counts |= new_counts
        return {table: counts[table] for table in tables}, total

    def _coded(self, axes: Axes) -> Iterable[Coded]:
        """Return the codes of some attributes; with a bound on persons, only of the records within the bound."""
        requested: dict[Key, tuple[str, Attribute | None]] = {}
        requested |= {axis: (self.attributes[axis].source, self.attributes[axis]) for axis in axes}
        if self.records.count is not None:
            requested[COUNT] = self.records.count, None
        if self.records.persons is not None:
            requested[PERSON] = self.records.persons.person, None
        chunks = self.source.chunks(requested, lambda names: self.records.located(names, self.domain))
        checked = self._checked(chunks)
        return checked if self.records.persons is None else self._bounded(self.records.persons, [*checked])

    def _checked(self, chunks: Iterable[Chunk]) -> Iterator[Coded]:
        """Yield the codes of chunks; raise for the first invalid row, or for the most frequent one of grouped rows."""
        total = 0
        for chunk in chunks:
            codes = {
                key: self.codes[key].codes(values) for key, values in chunk.columns.items() if isinstance(key, int)
            }
            numbers = [*self.numbers.all_of(chunk.columns[COUNT])] if COUNT in chunk.columns else None
            wrong = [array < 0 for array in codes.values()] + [mask for _, mask in self._impossible(codes)]
            wrong += [] if numbers is None else [np.array([number < 0 for number in numbers])]
            if any(mask.any() for mask in wrong):
                raise self._error(chunk, codes, np.flatnonzero(np.any(wrong, axis=0)))
            records = chunk.sizes
            if numbers is not None:
                if chunk.sizes is not None:
                    numbers = [number * size for number, size in zip(numbers, chunk.sizes.tolist(), strict=True)]
                total += sum(numbers)
                if total > MAX_TOTAL:
                    raise chunk.refuse(None, inexact(repr(self.records.count), total))
                records = np.array(numbers, dtype=np.int64)
            yield Coded(codes, records, chunk.columns.get(PERSON, ()))

    def _impossible(self, codes: Mapping[int, Codes]) -> Iterator[tuple[Sequence[int], npt.NDArray[np.bool]]]:
        """Yield attributes, and a mask of the rows with an impossible combination of their values."""
        for together in self.domain.impossible:
            if {*together} <= {*codes}:
                yield [*together], np.all([np.isin(codes[axis], values) for axis, values in together.items()], axis=0)

    def _error(self, chunk: Chunk, codes: Mapping[int, Codes], rows: npt.NDArray[np.intp]) -> DualmechError:
        """Return the error for the first of the invalid rows, or for the most frequent one of grouped rows."""
        if chunk.sizes is None:
            message, _ = self._fault(chunk, codes, int(rows[0]))
            return chunk.refuse(int(rows[0]), message)
        message, mask = self._fault(chunk, codes, int(rows[np.argmax(chunk.sizes[rows])]))
        number = int(chunk.sizes[mask].sum())
        return chunk.refuse(None, f"{message}; {counted(number, 'row')} {'has' if number == 1 else 'have'} it")

    def _fault(self, chunk: Chunk, codes: Mapping[int, Codes], row: int) -> tuple[str, npt.NDArray[np.bool]]:
        """Return the message for an invalid row, and a mask of the rows with the same value."""
        for axis, array in codes.items():
            if array[row] < 0:
                values = listed(chunk.columns[axis])
                return self.attributes[axis].refused(_shown(values[row])), _like(values, row)
        for together, mask in self._impossible(codes):
            if mask[row]:
                labels = (attribute_at(self.domain, axis).label(int(codes[axis][row])) for axis in together)
                pairs = zip((self.domain.names[axis] for axis in together), labels, strict=True)
                words = " and ".join(f"{name!r} = {label}" for name, label in pairs)
                return f"no record has {words} together, as the schema says (never)", mask
        values = listed(chunk.columns[COUNT])
        hint = number_hint(str(values[row]).strip())
        return (
            f"{self.records.count!r} must count records, in whole numbers from 0, got {_shown(values[row])!r}{hint}: "
            f"neighbours differ by records, so privacy is stated for whole records; apply weights that are not whole "
            f"numbers to a release"
        ), _like(values, row)

    def _bounded(self, bound: Bound, coded: Sequence[Coded]) -> list[Coded]:
        if not coded:
            return []
        rows = Coded.joined(coded)
        codes = np.stack([*rows.codes.values()])
        sizes = np.ones(rows.rows, dtype=np.int64) if rows.records is None else rows.records
        admitted = bound.kept([*rows.persons], bound.values_of(self.domain, codes), codes, sizes)
        self.records.report(report_text(bound, int(admitted.sum()), int(sizes.sum())))
        return [Coded(dict(enumerate(codes[:, admitted > 0])), admitted[admitted > 0])]


def _tallied(domain: Domain, tables: Sequence[Axes], coded: Iterable[Coded]) -> tuple[dict[Axes, Array], int]:
    shapes = {axes: tuple(domain.shape[axis] for axis in axes) for axes in tables}
    counts = {axes: np.zeros(int(np.prod(shape, dtype=np.int64))) for axes, shape in shapes.items()}
    total = 0
    for part in _joined(coded):
        total += part.rows if part.records is None else int(part.records.sum())
        for axes, shape in shapes.items():
            cells = np.zeros(part.rows, dtype=np.intp)
            if axes:
                cells = np.ravel_multi_index(tuple(part.codes[axis] for axis in axes), shape)
            counts[axes] += np.bincount(cells, part.records, len(counts[axes]))
    return {axes: table.reshape(shapes[axes]) for axes, table in counts.items()}, total


def _joined(coded: Iterable[Coded]) -> Iterator[Coded]:
    """Yield the same records in larger parts: counting a part takes time for each cell of a table."""
    parts: list[Coded] = []
    rows = 0
    for part in coded:
        parts.append(part)
        rows += part.rows
        if rows >= MIN_ROWS:
            yield Coded.joined(parts)
            parts, rows = [], 0
    if parts:
        yield Coded.joined(parts)


def _merged(domain: Domain, sets: Iterable[Axes]) -> list[Axes]:
    """Return sets of attributes that contain all given sets; unite sets while their tables are small."""
    merged: list[frozenset[int]] = []
    for axes in sorted({*map(frozenset, sets)}, key=lambda group: (-len(group), sorted(group))):
        if any(axes <= other for other in merged):
            continue
        for place, other in enumerate(merged):
            if cells_of(domain, tuple(sorted(axes | other))) <= MAX_MERGED_CELLS:
                merged[place] = axes | other
                break
        else:
            merged.append(axes)
    return [tuple(sorted(axes)) for axes in merged]


# Codes and counts of values.


class CodeCache(dict[Any, int]):
    """The codes of values, -1 for invalid values; codes of the first distinct values are cached."""

    def __init__(self, read: Callable[[Any], int | None]) -> None:
        self.read = read

    def __missing__(self, value: Any) -> int:
        number = self.read(value)
        number = -1 if number is None else number
        if len(self) < MAX_CACHED_VALUES:
            self[value] = number
        return number

    def codes(self, values: Column) -> Codes:
        """Return the codes of the values of a column as an array (rows,)."""
        if isinstance(values, np.ndarray) and values.dtype != object:
            distinct, inverse = np.unique(values, return_inverse=True)
            return self.codes(listed(distinct))[inverse]
        return np.fromiter(self.all_of(values), np.int64, len(values))

    def all_of(self, values: Column) -> Iterable[int]:
        """Return the code of each value of a column.

        Values that are no text or number are compared by type and text: True differs from 1, and 1.10 from 1.1.
        """
        items = listed(values) if isinstance(values, np.ndarray) else values
        if isinstance(values, tuple) or {*map(type, items)} <= {str, int, float, type(None)}:  # a tuple: texts of CSV
            return map(self.__getitem__, items)
        keys = [(type(value), text_of(value)) for value in items]
        numbers = {key: self.read(value) for key, value in dict(zip(keys, items, strict=True)).items()}
        return (-1 if (number := numbers[key]) is None else number for key in keys)


def code_of(attribute: Attribute, value: object) -> int | None:
    """Return the code of a value of a data frame, by its text as in a file; None if the value is not allowed.

    A truth value has the text ``True`` or ``true``, and the code 0 or 1 of an attribute with only these two values. A
    time at midnight also has the text of its day.

    Examples
    --------
    >>> from dualmech.publishing.schema import attribute_of
    >>> month, member = attribute_of("month", range(1, 13)), attribute_of("member", ["false", "true"])
    >>> code_of(month, True), code_of(member, True), code_of(month, 1.0)
    (None, 1, 0)
    """
    if isinstance(value, str):
        return attribute.code(value)
    texts = [text_of(value)]
    if isinstance(value, bool | np.bool):
        has_two = attribute.values == 2 and {attribute.code("0"), attribute.code("1")} == {0, 1}
        texts += [texts[0].lower(), *([str(int(value))] if has_two else [])]
    elif isinstance(value, datetime.datetime) and not is_missing(value) and value.time() == datetime.time():
        texts.append(str(value.date()))
    elif isinstance(value, Decimal) and not is_missing(value) and value == value.to_integral_value():
        texts.append(str(int(value)))  # a decimal 1.000 is 1, not a thousand
    other_code = attribute.values if attribute.has_rest else None
    codes = [code for code in map(attribute.code, texts) if code is not None]
    return next((code for code in codes if code != other_code), codes[0] if codes else None)


WHOLE_COUNT = re.compile(r"[+]?([0-9]{1,400})(?:\.0*)?")


def _nonnegative_integer(value: object) -> int | None:
    """Return the exact value of a non-negative integer; None for other values, and for a text such as 1.000."""
    text = text_of(value).strip()
    match = None if isinstance(value, bool) else WHOLE_COUNT.fullmatch(text)
    is_doubtful = isinstance(value, str) and THOUSANDS.fullmatch(text) is not None
    return None if match is None or is_doubtful else int(match[1])


def listed(values: Column) -> list[Any]:
    """Return the values of a column as Python objects; None for missing dates and durations."""
    if not isinstance(values, np.ndarray):
        return [*values]
    if values.dtype.kind not in "mM":
        return values.tolist()
    if values.dtype.str.endswith("[ns]") and values.dtype.kind == "M":  # NumPy lists nanoseconds as integers
        values = values.astype("M8[us]")
    return [None if is_nat else value for value, is_nat in zip(values.tolist(), np.isnat(values), strict=True)]


def _shown(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else text_of(value) or None


def _like(values: Sequence[object], row: int) -> npt.NDArray[np.bool]:
    """Return a mask of the values with the same text as one of them."""
    text = text_of(values[row])
    return np.array([text_of(value) == text for value in values])


def inexact(name: str, total: float) -> str:
    """Return a message about counts whose total is not exact in doubles."""
    return (
        f"{name} must add up to at most 2^53 = {MAX_TOTAL} records, got {total}: tables hold counts as doubles, "
        f"which are exact up to there"
    )
