"""Counting records into marginal tables: the columns that are read, the codes of their values, the counts."""

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
from dualmech.publishing.persons import Bound, Report, quiet, told
from dualmech.publishing.schema import Schema, attribute_at, attributes_of
from dualmech.publishing.sources import COUNT, PERSON, Chunk, Column, Key, Source, source_of
from dualmech.validate import Array, compared, composed
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginal import Axes, MarginalWorkload, cells_of, check_marginal

__all__ = ["Bound", "Records", "count", "tables"]

MAX_REMEMBERED = 2**18  # distinct values of a column that are remembered
MIN_ROWS = 65536  # rows that are counted at a time
MERGED_CELLS = 2**16  # cells up to which several tables come from one group-by
LARGEST_TOTAL = 2**53  # up to which counts are exact

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
"""Names of columns that seem to say how many records a row stands for, in small letters."""

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Records:
    """Records, and what their columns mean that no attribute reads: what is taken wherever records are.

    Attributes
    ----------
    source : path, DataFrame, frame of an engine, or array of codes
        What `count` takes.
    count : str or None
        The column of whole numbers that says how many records a row stands for; without one each row is one record.
        Their total is at most 2^53, up to which it is exact.
    ignore : tuple of str
        Columns that are left unread although their names are those of counts or weights.
    persons : Bound or None
        How many records of one person are counted; see `Bound`.
    report : function
        What is told to whoever holds the records and is no part of a release: how many records were left out.

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
            raise InvalidInputError(f"count must be another column than that of persons, got {self.count!r}")
        if not callable(self.report):
            raise InputTypeError(f"report must be a function of a text, got {type(self.report).__name__}")

    @classmethod
    def of(cls, source: Any) -> Records:
        """Return records as they are, or with each row one record."""
        return source if isinstance(source, Records) else cls(source)

    def check_columns(self, domain: Domain) -> list[str]:
        """Refuse columns that lack an attribute, and counts that are not declared; return those that are not read.

        Raises `FileFormatError` or `InvalidInputError` with the attribute or the column. No record is read.
        """
        unread: dict[str, None] = {}
        for names, refuse in source_of(self.source).headers():
            try:
                read = {*self.located(names, domain).values()}
            except InvalidInputError as error:
                raise refuse(str(error)) from error
            unread |= {composed(name.strip()): None for place, name in enumerate(names or ()) if place not in read}
        return [*unread]

    @property
    def names(self) -> list[str] | None:
        """The names of the columns of a frame as they are compared, None where they have none."""
        names, _ = next(source_of(self.source).headers())
        return None if names is None else compared("columns of records", names)

    def located(self, written: Sequence[str] | None, domain: Domain) -> dict[str, int]:
        """Return the position of each column that is read, by its name as names are compared.

        Refuses columns of which one is absent or comes twice, columns that seem to be counts, and an array without
        names of columns (None) where they are needed.
        """
        if written is None:
            self._require_array(domain)
            return {}
        sources = domain.sources
        special = {self.count: "the column of counts"}
        special |= {} if self.persons is None else {self.persons.person: "the column of persons"}
        if self.count is not None and self.count in sources:
            raise InvalidInputError(f"count must be a column that is no attribute, got {self.count!r}")
        read = [*dict.fromkeys([*sources, *(name for name in special if name is not None)])]
        names = [name if name in read else name.strip() for name in compared("columns of records", written)]
        for name in names:
            plain = name.casefold()
            if name not in read and name not in self.ignore and COUNTS.fullmatch(plain):
                raise InvalidInputError(
                    f"columns of records must not name a {name!r} that is no attribute and is not declared: it seems "
                    f"to say how many records a row stands for; records.count = {name!r} counts them, records.ignore = "
                    f"[{name!r}] leaves it unread and counts each row once; "
                    f"in Python dualmech.publishing.records.Records, for a command --count or --ignore"
                )
        for name in read:
            role = "the attribute" if name in sources else special[name]
            if name not in names:
                near = did_you_mean(name, names)
                raise InvalidInputError(f"columns of records must name {role} {name!r}, got {names}{near}")
            if names.count(name) > 1:
                raise InvalidInputError(f"columns of records must name {role} {name!r} once, got {names}")
        return {name: names.index(name) for name in read}

    def _require_array(self, domain: Domain) -> None:
        """Refuse codes without names of columns, for a schema and where a column is declared, as one of counts."""
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
    """Count records into the marginal tables that a workload needs: those that no other table covers.

    Raises `FileFormatError` for a file that is not as `docs/formats.md` says, with the line that is at fault;
    `InvalidInputError` or `InputTypeError` for an array of another width, columns that lack an attribute or seem to
    be counts, anything but a value of the attribute, with the record or how many rows have it; no records; a table too
    large to count; `BackendError` for records that need the extra ``engines`` where that is not installed.
    Returns a dict of axes to arrays: what the `measure` of a mechanism takes: an axis per attribute, counts as float64.

    Parameters
    ----------
    source : path, DataFrame, frame of an engine, (records, attributes) array of integers, or `Records`
        A path is that of a CSV file (``.csv``, ``.csv.gz``), of Parquet or Arrow, or of a folder of such files; frames
        are those of pandas, polars, Arrow, DuckDB, Dask, Spark and what else narwhals knows. Codes 0 … n - 1 of every
        attribute, or values of a `Schema`; columns name all attributes of the domain, in any order and among others;
        an array has them in the domain's order. `Records` say what other columns mean.
    workload : MarginalWorkload
        Whose tables are wanted.
    allow_empty : bool
        Whether there may be no records, which then count 0 everywhere.

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
            f"workload must be one of marginal tables, got {type(workload).__name__}; those that a mechanism of a "
            f"union counts are its `needed_tables`, those of query tables are their `tables`"
        )
    domain, tables = check_marginal(workload).domain, maximal_sets(workload.axes)
    assert domain is not None
    for axes in tables:
        shape = tuple(domain.shape[axis] for axis in axes)
        if np.prod(shape, dtype=np.float64) > LARGEST_TABLE:
            raise InvalidInputError(f"a table of shape {shape} has more cells than are counted ({LARGEST_TABLE})")
    known = Records.of(source)
    counts, total = Counting(known, domain).tables(tables)
    if not total and not allow_empty:
        where = f"{known.source}: " if isinstance(known.source, str | PathLike) else ""
        raise InvalidInputError(f"{where}there are no records; allow_empty=True (--allow-empty) counts them so")
    return {axes: freeze(table) for axes, table in counts.items()}


def tables(frames: Sequence[Any], domain: Domain) -> dict[Axes, Array]:
    """Return tables of counts by their attributes, of frames such as ``group_by(…).len()`` gives.

    Each frame has columns of some attributes, and one other, which holds whole numbers of records; rows with the same
    values add up. A pandas Series, as ``groupby(…).size()`` gives, has the attributes in its index.
    Raises `InvalidInputError` or `InputTypeError` for a frame without attributes, or with more or fewer other columns
    than one, two frames of the same attributes, and what `count` refuses.

    Parameters
    ----------
    frames : sequence of frames
        A frame a table.
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
    known = attributes_of(validate.instance(Domain, domain=domain))
    arrays: dict[Axes, Array] = {}
    for place, frame in enumerate(validate.sequence(frames=frames)):
        if hasattr(frame, "reset_index") and not hasattr(frame, "columns"):
            frame = frame.rename("size").reset_index()
        names = Records(frame).names
        if names is None:
            raise InputTypeError(f"frames[{place}] must have columns with names, got {type(frame).__name__}")
        axes = tuple(axis for axis, attribute in enumerate(known) if attribute.source in names)
        others = [name for name in names if name not in domain.sources]
        if not axes or len(others) != 1 or axes in arrays:
            raise InvalidInputError(
                f"frames[{place}] must have columns of attributes that no other frame has, and one of counts, "
                f"got {names}"
            )
        part: Domain = Domain([domain.sizes[axis] for axis in axes])
        if isinstance(domain, Schema):
            part = Schema({attribute.name: attribute for attribute in (known[axis] for axis in axes)})
        marginals = MarginalWorkload(part, [tuple(range(len(axes)))])
        (arrays[axes],) = count(Records(frame, count=others[0]), marginals, allow_empty=True).values()
    return arrays


@dataclass(frozen=True, slots=True)
class Coded:
    """Some records: the codes of each attribute by its position, how many records each row is, and its person."""

    codes: Mapping[int, Codes]
    records: Codes | None = None  # None: one each
    persons: Column = ()

    @property
    def rows(self) -> int:
        return len(next(iter(self.codes.values()))) if self.codes else 0

    @classmethod
    def joined(cls, parts: Sequence[Coded]) -> Coded:
        """Return the records of one or more parts, one after another."""
        codes = {axis: np.concatenate([part.codes[axis] for part in parts]) for axis in parts[0].codes}
        numbers = [part.records for part in parts if part.records is not None]
        persons = [person for part in parts for person in listed(part.persons)]
        return cls(codes, np.concatenate(numbers) if numbers else None, persons)


class Counting:
    """Records on their way into tables of a domain; codes of values are remembered from chunk to chunk."""

    def __init__(self, records: Records, domain: Domain) -> None:
        self.records, self.domain = records, domain
        self.source: Source = source_of(records.source)
        self.attributes = dict(enumerate(attributes_of(domain)))
        self.codes = {axis: Remembered(partial(code_of, attribute)) for axis, attribute in self.attributes.items()}
        self.numbers = Remembered(_whole_count)

    def tables(self, tables: Sequence[Axes]) -> tuple[dict[Axes, Array], int]:
        """Return tables of counts by their attributes, and the number of records."""
        sets: list[Axes] = [(*self.attributes,)]
        if self.source.is_grouped and self.records.persons is None:
            together = [tuple(sorted(combination)) for combination in self.domain.impossible]
            sets = _merged(self.domain, [*tables, *((axis,) for axis in self.attributes), *together])
        counts: dict[Axes, Array] = {}
        total = 0
        for axes in sets:
            chosen = [table for table in tables if table not in counts and {*table} <= {*axes}]
            new_counts, total = _tallied(self.domain, chosen, self._coded(axes))
            counts |= new_counts
        return {table: counts[table] for table in tables}, total

    def _coded(self, axes: Axes) -> Iterable[Coded]:
        """Return the codes of some attributes; with a bound on persons only of the records that are kept."""
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
        """Yield the codes of chunks; the first row, or of equal rows the most, that is no record is refused."""
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
                if total > LARGEST_TOTAL:
                    raise chunk.refuse(None, inexact(repr(self.records.count), total))
                records = np.array(numbers, dtype=np.int64)
            yield Coded(codes, records, chunk.columns.get(PERSON, ()))

    def _impossible(self, codes: Mapping[int, Codes]) -> Iterator[tuple[Sequence[int], npt.NDArray[np.bool]]]:
        """Yield attributes, and the rows with values of these that no record has together."""
        for together in self.domain.impossible:
            if {*together} <= {*codes}:
                yield [*together], np.all([np.isin(codes[axis], values) for axis, values in together.items()], axis=0)

    def _error(self, chunk: Chunk, codes: Mapping[int, Codes], rows: npt.NDArray[np.intp]) -> DualmechError:
        """Return the error for the first of some rows, or for the values that most rows have."""
        if chunk.sizes is None:
            message, _ = self._fault(chunk, codes, int(rows[0]))
            return chunk.refuse(int(rows[0]), message)
        message, alike = self._fault(chunk, codes, int(rows[np.argmax(chunk.sizes[rows])]))
        number = int(chunk.sizes[alike].sum())
        return chunk.refuse(None, f"{message}; {counted(number, 'row')} {'has' if number == 1 else 'have'} it")

    def _fault(self, chunk: Chunk, codes: Mapping[int, Codes], row: int) -> tuple[str, npt.NDArray[np.bool]]:
        """Return why a row is refused, and which rows are refused for the same value."""
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
            f"neighbours differ by records, so that privacy is stated for whole ones; weights that are not whole are "
            f"for estimates made of a release"
        ), _like(values, row)

    def _bounded(self, bound: Bound, coded: Sequence[Coded]) -> list[Coded]:
        """Return the records of which each person has no more than is allowed."""
        if not coded:
            return []
        every = Coded.joined(coded)
        codes = np.stack([*every.codes.values()])
        rows = np.ones(every.rows, dtype=np.int64) if every.records is None else every.records
        kept = bound.kept([*every.persons], bound.values_of(self.domain, codes), codes, rows)
        self.records.report(told(bound, int(kept.sum()), int(rows.sum())))
        return [Coded(dict(enumerate(codes[:, kept > 0])), kept[kept > 0])]


def _tallied(domain: Domain, tables: Sequence[Axes], coded: Iterable[Coded]) -> tuple[dict[Axes, Array], int]:
    """Return tables of counts, and the number of records, of some records at a time."""
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
    """Yield the same records in larger parts, since to count a part takes time for each cell of a table."""
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
    """Return sets of attributes that contain all those given, few if their tables are small."""
    merged: list[frozenset[int]] = []
    for axes in sorted({*map(frozenset, sets)}, key=lambda group: (-len(group), sorted(group))):
        if any(axes <= other for other in merged):
            continue
        for place, other in enumerate(merged):
            if cells_of(domain, tuple(sorted(axes | other))) <= MERGED_CELLS:
                merged[place] = axes | other
                break
        else:
            merged.append(axes)
    return [tuple(sorted(axes)) for axes in merged]


# Codes and counts of values.


class Remembered(dict[Any, int]):
    """The numbers that values stand for, -1 for values that are refused; the first distinct ones are remembered."""

    def __init__(self, read: Callable[[Any], int | None]) -> None:
        self.read = read

    def __missing__(self, value: Any) -> int:
        number = self.read(value)
        number = -1 if number is None else number
        if len(self) < MAX_REMEMBERED:
            self[value] = number
        return number

    def codes(self, values: Column) -> Codes:
        """Return the numbers of the values of a column as an array (rows,)."""
        if isinstance(values, np.ndarray) and values.dtype != object:
            distinct, inverse = np.unique(values, return_inverse=True)
            return self.codes(listed(distinct))[inverse]
        return np.fromiter(self.all_of(values), np.int64, len(values))

    def all_of(self, values: Column) -> Iterable[int]:
        """Return the number of each value of a column.

        Values of other types than texts and numbers are told apart by type and text: True is not 1, nor 1.10 1.1.
        """
        items = listed(values) if isinstance(values, np.ndarray) else values
        if isinstance(values, tuple) or {*map(type, items)} <= {str, int, float, type(None)}:  # a tuple: texts of CSV
            return map(self.__getitem__, items)
        keys = [(type(value), text_of(value)) for value in items]
        numbers = {key: self.read(value) for key, value in dict(zip(keys, items, strict=True)).items()}
        return (-1 if (number := numbers[key]) is None else number for key in keys)


def code_of(attribute: Attribute, value: object) -> int | None:
    """Return the code of a value of a data frame, None of one that is not allowed: that of the text in a file.

    A truth value is the text ``True`` or ``true``, and a code 0 or 1 of an attribute that has just these two values; a
    time at midnight is a day as well.

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
        texts.append(str(int(value)))  # 1.000 of a column of decimals is no thousand
    rest = attribute.values if attribute.has_rest else None
    codes = [code for code in map(attribute.code, texts) if code is not None]
    return next((code for code in codes if code != rest), codes[0] if codes else None)


WHOLE_COUNT = re.compile(r"[+]?([0-9]{1,400})(?:\.0*)?")


def _whole_count(value: object) -> int | None:
    """Return the integer from 0 that a value is, exactly; None of any other, and of a text that may be a thousand."""
    text = text_of(value).strip()
    match = None if isinstance(value, bool) else WHOLE_COUNT.fullmatch(text)
    is_doubtful = isinstance(value, str) and THOUSANDS.fullmatch(text) is not None
    return None if match is None or is_doubtful else int(match[1])


def listed(values: Column) -> list[Any]:
    """Return the values of a column as Python objects; missing dates and durations as None."""
    if not isinstance(values, np.ndarray):
        return [*values]
    if values.dtype.kind not in "mM":
        return values.tolist()
    if values.dtype.str.endswith("[ns]") and values.dtype.kind == "M":  # which NumPy lists as integers
        values = values.astype("M8[us]")
    return [None if missing else value for value, missing in zip(values.tolist(), np.isnat(values), strict=True)]


def _shown(value: object) -> object:
    """Return a value as a message shows it."""
    return value if value is None or isinstance(value, bool | int | float | str) else text_of(value) or None


def _like(values: Sequence[object], row: int) -> npt.NDArray[np.bool]:
    """Return which values have the text of one of them."""
    text = text_of(values[row])
    return np.array([text_of(value) == text for value in values])


def inexact(name: str, total: float) -> str:
    """Say that counts add up to more than is counted exactly."""
    return (
        f"{name} must add up to at most 2^53 = {LARGEST_TOTAL} records, got {total}: tables hold counts as doubles, "
        f"which are exact up to there"
    )
