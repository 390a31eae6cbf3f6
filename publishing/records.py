"""Counting records: marginal tables from a file of codes, in one pass and in the memory of the tables alone."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dualmech import files, validate
from dualmech.errors import FileFormatError, InputTypeError, InvalidInputError, did_you_mean
from dualmech.files import csv
from dualmech.immutable import freeze
from dualmech.mechanisms.tables import LARGEST_TABLE, maximal_sets
from dualmech.publishing import engines
from dualmech.publishing.attributes import LARGEST_CODE, Attribute, text_of
from dualmech.publishing.engines import codes_of, listed
from dualmech.publishing.persons import Bound, Report, quiet, require_exact_ids, told
from dualmech.publishing.schema import Schema, attribute_at, attributes_of
from dualmech.validate import Array, compared, composed
from dualmech.workloads.base import Workload, column_names
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginal import Axes, MarginalWorkload, check_marginal

__all__ = ["Bound", "Records", "count", "tables"]

BATCH = 256  # records that are read at a time: so few that hardly any lives to see a garbage collection
CHUNK = 65536  # records that are counted at a time, and distinct texts that are remembered

COUNTS = (
    *("count", "counts", "n", "len", "freq", "freqs", "frequency", "population", "pop", "multiplicity", "replicates"),
    *("weight", "weights", "wt", "wgt", "fnlwgt", "perwt", "hhwt", "pwgtp", "wgtp", "wtfinl", "finalwt", "asecwt"),
)
"""Columns that seem to say how many records a row stands for, in small letters."""

NUMBERED = re.compile(r"p?wgtp\d+|weight_?\d+")  # replicate weights

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

    @property
    def reader(self) -> Reader:
        """What reads the source."""
        if isinstance(self.source, str | PathLike):
            return _reader_of(Path(self.source))
        return engines.engine_of(self.source) or Rows(self.source)

    def check_columns(self, domain: Domain) -> list[str]:
        """Refuse columns that lack an attribute, and counts that are not declared; return those that are not read.

        Raises `FileFormatError` or `InvalidInputError` with the attribute or the column. No record is read.
        """
        return self.reader.unread(self, domain)

    @property
    def names(self) -> list[str] | None:
        """The names of the columns of a frame as they are compared, None where they have none."""
        reader = self.reader
        names = reader.names if isinstance(reader, engines.Engine) else column_names(self.source)
        return None if names is None else compared("columns of records", names)

    def unread(self, names: Sequence[str], sources: Sequence[str]) -> list[str]:
        """Return the columns that are not read; refuse those that lack one, or that seem to be counts.

        Names are those of `compared`.
        """
        special = {self.count: "the column of counts"}
        special |= {} if self.persons is None else {self.persons.person: "the column of persons"}
        wanted = [*dict.fromkeys([*sources, *(name for name in special if name is not None)])]
        if self.count is not None and self.count in sources:
            raise InvalidInputError(f"count must be a column that is no attribute, got {self.count!r}")
        left = [name for name in names if name not in wanted]
        for name in left:
            plain = name.strip().casefold()
            if name not in self.ignore and (plain in COUNTS or NUMBERED.fullmatch(plain)):
                raise InvalidInputError(
                    f"columns of records must not name a {name!r} that is no attribute and is not declared: it seems "
                    f"to say how many records a row stands for; records.count = {name!r} counts them, records.ignore = "
                    f"[{name!r}] leaves it unread and counts each row once; "
                    f"in Python dualmech.records.Records, for a command --count or --ignore"
                )
        for name in wanted:
            called = "the attribute" if name in sources else special[name]
            if name not in names:
                near = did_you_mean(name, names)
                raise InvalidInputError(f"columns of records must name {called} {name!r}, got {[*names]}{near}")
            if [*names].count(name) > 1:
                raise InvalidInputError(f"columns of records must name {called} {name!r} once, got {[*names]}")
        return left


class Reader(Protocol):
    """What reads records of one kind: the names of their columns, and tables of their counts."""

    def unread(self, records: Records, domain: Domain) -> list[str]:
        """Return the columns that are not read; see `Records.check_columns`."""

    def counted(self, records: Records, domain: Domain, tables: Sequence[Axes]) -> tuple[dict[Axes, Array], int]:
        """Return tables of counts by their attributes, and the number of records."""


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
    counted = Records.of(source)
    counts, seen = counted.reader.counted(counted, domain, tables)
    if not seen and not allow_empty:
        where = f"{counted.source}: " if isinstance(counted.source, str | PathLike) else ""
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


class Chunk(NamedTuple):
    """Some records: codes (attributes, records), how many each is, and its person, where columns say so."""

    codes: Codes
    weights: Array | None = None
    persons: Sequence[object] = ()


def _tallied(
    records: Records, domain: Domain, tables: Sequence[Axes], chunks: Iterable[Chunk]
) -> tuple[dict[Axes, Array], int]:
    """Return tables of counts, and the number of records, of some at a time; of persons, of all at once."""
    if records.persons is not None:
        chunks = _bounded(records, records.persons, domain, [*chunks])
    shapes = {axes: tuple(domain.shape[axis] for axis in axes) for axes in tables}
    counts = {axes: np.zeros(int(np.prod(shape, dtype=np.int64))) for axes, shape in shapes.items()}
    seen = 0
    for codes, weights, _ in chunks:
        seen += codes.shape[1] if weights is None else int(weights.sum())
        for axes, shape in shapes.items():
            cells = (
                np.ravel_multi_index(tuple(codes[axis] for axis in axes), shape)
                if axes
                else np.zeros(codes.shape[1], int)
            )
            counts[axes] += np.bincount(cells, weights=weights, minlength=len(counts[axes]))
    return {axes: table.reshape(shapes[axes]) for axes, table in counts.items()}, seen


def _bounded(records: Records, bound: Bound, domain: Domain, chunks: list[Chunk]) -> list[Chunk]:
    """Return the records of which each person has no more than is allowed."""
    if not chunks:
        return []
    codes = np.concatenate([chunk.codes for chunk in chunks], axis=1)
    persons = [person for chunk in chunks for person in chunk.persons]
    ones = (np.ones(chunk.codes.shape[1]) if chunk.weights is None else chunk.weights for chunk in chunks)
    rows = np.concatenate([*ones]).astype(np.int64)
    kept = bound.kept(persons, bound.values_of(domain, codes), codes, rows)
    records.report(told(bound, int(kept.sum()), int(rows.sum())))
    return [Chunk(codes[:, kept > 0], kept[kept > 0].astype(np.float64))]


@dataclass(frozen=True, slots=True)
class Rows:
    """Records in memory: a DataFrame of pandas, or an array of codes."""

    source: Any

    def unread(self, records: Records, domain: Domain) -> list[str]:
        names = records.names
        if names is not None:
            return records.unread(names, domain.sources)
        if records.count is not None or records.persons is not None:
            raise InputTypeError(
                f"records with a column of counts or persons must have named columns: give a file or a frame, got "
                f"{type(self.source).__name__}"
            )
        return []

    def counted(self, records: Records, domain: Domain, tables: Sequence[Axes]) -> tuple[dict[Axes, Array], int]:
        return _tallied(records, domain, tables, self._chunks(records, domain))

    def _chunks(self, records: Records, domain: Domain) -> Iterator[Chunk]:
        source, names, attributes = self.source, records.names, attributes_of(domain)
        self.unread(records, domain)
        if _is_empty(source):
            return
        if names is not None:
            columns = {name: source.columns[place] for place, name in enumerate(names)}
            values = {name: np.asarray(source[columns[name]]) for name in domain.sources}
            codes = np.stack([_column(attribute, values[attribute.source]) for attribute in attributes])
            weights = None if records.count is None else np.asarray(source[columns[records.count]])
            yield Chunk(
                _possible(codes, domain, "records: "),
                None if weights is None else _weights(records.count, weights),
                () if records.persons is None else _ids(source[columns[records.persons.person]]),
            )
        elif isinstance(domain, Schema):
            raise InputTypeError(
                f"records of a schema are matched by the names of columns: give a file, a frame, or a mapping of "
                f"attributes' positions to tables of counts, such as {{(0, 2): counts}}, got {type(source).__name__}"
            )
        else:
            yield Chunk(_checked(validate.finite(2, records=source).T, domain))


def _ids(column: Any) -> list[object]:
    """Return the ids of persons in a column of a frame, as Python's texts and numbers."""
    values = np.asarray(column)
    require_exact_ids(str(getattr(column, "name", "")), str(values.dtype))
    ids: list[object] = values.tolist()
    return ids


def _weights(name: str | None, values: npt.NDArray[np.generic]) -> Array:
    """Return the counts of a column of a frame; the first that is no whole number is refused, with its record."""
    weights = []
    for place, value in enumerate(listed(values)):
        number = _count_of(text_of(value))
        if number is None or isinstance(value, bool):
            raise InvalidInputError(f"records: record {place + 1}: {engines.not_whole(str(name), value)}")
        weights.append(number)
    engines.require_exact(repr(name), sum(weights), "records")
    return np.array(weights, dtype=np.float64)


def _count_of(text: str) -> int | None:
    """Return the whole number from 0 that a text is, exactly; None of any other."""
    match = WHOLE_COUNT.fullmatch(text.strip())
    return None if match is None else int(match[1])


WHOLE_COUNT = re.compile(r"[+]?([0-9]{1,400})(?:\.0*)?")


def _column(attribute: Attribute, values: npt.NDArray[np.generic]) -> Codes:
    """Return the codes of a column of a frame; the first value that is not allowed is refused, with its record."""
    items = listed(values)
    codes = codes_of(attribute, items)
    wrong = np.flatnonzero(codes < 0)
    if len(wrong):
        raise InvalidInputError(f"records: record {wrong[0] + 1}: {attribute.refused(items[wrong[0]])}")
    return codes


def _is_empty(source: Any) -> bool:
    try:
        return len(source) == 0
    except TypeError:  # which has no length
        return False


def _checked(numbers: Array, domain: Domain) -> Codes:
    """Return numbers (attributes, records) as codes; the first record that holds anything else is refused."""
    if len(numbers) != len(domain.names):
        raise InvalidInputError(
            f"records must hold {len(domain.names)} whole numbers each, one per attribute, got shape {numbers.T.shape}"
        )
    largest = np.array([min(size - 1, LARGEST_CODE) for size in domain.shape], dtype=np.float64)[:, None]
    wrong = np.argwhere(((numbers < 0) | (numbers > largest) | (numbers != np.floor(numbers))).T)
    if len(wrong):
        record, axis = wrong[0]
        words = attribute_at(domain, int(axis)).refused(float(numbers[axis, record]))
        raise InvalidInputError(f"records: record {record + 1}: {words}")
    return numbers.astype(np.int64)


# Files.


def _reader_of(path: Path) -> Reader:
    """Return what reads a file, or a folder of files of one kind, by the ending of its name."""
    paths = [path]
    if os.path.isdir(path):  # False of a name that is none
        with files.errors_naming(path):
            inside = [Path(folder, name) for folder, _, names in os.walk(path, onerror=_raised) for name in names]
        paths = sorted(path for path in inside if _kind(path) is not None and path.is_file())
        kinds = sorted({str(_kind(path)) for path in paths})
        if len(kinds) != 1:
            got = " and ".join(kinds) if kinds else "none"
            raise FileFormatError(f"{path}: a folder of records must hold files of one kind ({ENDINGS}), got {got}")
    kind = _kind(paths[0])
    return engines.of_files(paths, kind) if kind in engines.ENDINGS else Lines(tuple(paths))


def _raised(error: OSError) -> None:
    """Refuse a folder inside that cannot be read: its records would be missing without a word."""
    raise error


def _kind(path: Path) -> str | None:
    """Return the ending that says how a file of records is read."""
    name = path.name.lower().removesuffix(".gz")
    return next((ending for ending in (".csv", *engines.ENDINGS) if name.endswith(ending)), None)


ENDINGS = ".csv, .csv.gz, .parquet, .arrow"


@dataclass(frozen=True, slots=True)
class Lines:
    """Records in CSV files, one after another, read once and in the memory of the tables alone."""

    paths: tuple[Path, ...]

    def unread(self, records: Records, domain: Domain) -> list[str]:
        unread: dict[str, None] = {}
        for path in self.paths:
            with files.errors_naming(path):
                unread |= dict.fromkeys(_header(path, csv.lines(path), records, domain)[1])
        return [*unread]

    def counted(self, records: Records, domain: Domain, tables: Sequence[Axes]) -> tuple[dict[Axes, Array], int]:
        return _tallied(records, domain, tables, self._chunks(records, domain))

    def _chunks(self, records: Records, domain: Domain) -> Iterator[Chunk]:
        total = 0
        for path in self.paths:
            batches = _batches(path, domain, records)
            while parts := [*itertools.islice(batches, CHUNK // BATCH)]:
                counts = [number for part in parts for number in part[1]]
                total += sum(counts)
                with files.errors_naming(path):
                    engines.require_exact(repr(records.count), total)
                weights = None if records.count is None else np.array(counts, dtype=np.float64)
                persons = [person for part in parts for person in part[2]]
                yield Chunk(np.concatenate([part[0] for part in parts], axis=1), weights, persons)


class _Numbers(dict[str, int]):
    """The codes or counts that texts in a column stand for; each is read once, but for those too many to remember."""

    def __init__(self, read: Callable[[str], int | None], refused: Callable[[str], str]) -> None:
        self.read, self.refused = read, refused

    def __missing__(self, text: str) -> int:
        number = self.read(text)
        if number is None:
            raise InvalidInputError(self.refused(text))
        if len(self) < CHUNK:
            self[text] = number
        return number


Batch = tuple[Codes, list[int], list[str]]


def _batches(path: Path, domain: Domain, records: Records) -> Iterator[Batch]:
    """Yield the codes of a few records of a file at a time (attributes, records), how many each is, and its person."""
    with files.errors_naming(path):
        rows, attributes = csv.lines(path), attributes_of(domain)
        codes = [_Numbers(attribute.code, attribute.refused) for attribute in attributes]
        header, _ = _header(path, rows, records, domain)
        columns, width = [header.index(attribute.source) for attribute in attributes], len(header)
        counts = None
        if records.count is not None:
            counts = header.index(records.count), _Numbers(_count_of, partial(engines.not_whole, records.count))
        person = None if records.persons is None else header.index(records.persons.person)

        def parsed(batch: Sequence[Sequence[str]]) -> Batch:
            block = _possible(_parse(batch, codes, columns, width), domain)
            numbers = [] if counts is None else [counts[1][row[counts[0]]] for row in batch]
            return block, numbers, [] if person is None else [row[person] for row in batch]

        while batch := [*itertools.islice(rows, BATCH)]:
            try:
                yield parsed([row for _, row in batch])
            except InvalidInputError:
                for line, row in batch:  # which one it is
                    with csv.line_named(path, line):
                        parsed([row])
                raise


def _possible(codes: Codes, domain: Domain, where: str = "") -> Codes:
    """Return codes (attributes, records); the first record that has what no record has together is refused."""
    for together in domain.impossible:
        wrong = np.flatnonzero(np.all([np.isin(codes[axis], chosen) for axis, chosen in together.items()], axis=0))
        if len(wrong):
            words = engines.impossible_text(domain, together, dict(enumerate(codes[:, wrong[0]].tolist())))
            named = f"{where}record {wrong[0] + 1}: " if where else ""
            raise InvalidInputError(f"{named}{words}")
    return codes


def _header(
    path: Path, rows: Iterator[tuple[int, list[str]]], records: Records, domain: Domain
) -> tuple[list[str], list[str]]:
    """Return the first line of a file, and what of it is not read."""
    line, header = next(rows, (1, []))
    if not header:
        raise InvalidInputError("is empty: its first line must name the columns")
    sources = domain.sources
    sought = {*sources, records.count, records.persons and records.persons.person}
    with csv.line_named(path, line):
        names = [name if name in sought else name.strip() for name in compared("columns of records", header)]
        return names, records.unread(names, sources)


def _parse(rows: Sequence[Sequence[str]], codes: list[_Numbers], columns: list[int], width: int) -> Codes:
    if wrong := {*map(len, rows)} - {width}:
        raise InvalidInputError(f"has {min(wrong)} fields where the first line has {width}")
    texts = [*zip(*rows, strict=True)]
    known = zip(codes, columns, strict=True)
    return np.stack([np.fromiter(map(code.__getitem__, texts[column]), np.int64, len(rows)) for code, column in known])
