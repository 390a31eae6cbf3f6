"""Sources of records: CSV files, DataFrames, arrays of codes, and the engines that narwhals supports.

Each source yields the values of the requested columns in chunks; `records` interprets the values.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dualmech import files, validate
from dualmech.errors import (
    BackendError,
    DualmechError,
    FileFormatError,
    InputTypeError,
    InvalidInputError,
    first_line,
)
from dualmech.files import csv
from dualmech.publishing.attributes import Attribute, Binned, Numbers
from dualmech.publishing.dates import Dated
from dualmech.publishing.persons import require_exact_ids
from dualmech.workloads.base import column_names

CHUNK = 256  # lines of CSV read at a time: few, so that they are freed before the garbage collector visits them
MAX_GROUPS = 2**22  # distinct rows returned by an engine
MAX_BINS = 256  # of an attribute for which an engine replaces numbers by one number per bin

COUNT, PERSON = "count", "person"
Key = int | str
"""The position of an attribute, `COUNT` or `PERSON`."""

Requested = Mapping[Key, tuple[str, Attribute | None]]
"""The name of each requested column, and the attribute that reads it."""

Locate = Callable[[Sequence[str] | None], Mapping[str, int]]
"""Returns the position of each requested column among all names (None for an array), or refuses the names."""

Column = Sequence[Any] | npt.NDArray[Any]
"""The values of a column."""


class Chunk(NamedTuple):
    """Some records: a sequence of values for each key, and the number of rows with each combination of values."""

    columns: Mapping[Key, Column]
    refuse: Callable[[int | None, str], DualmechError]  # returns the error for a row, or None for the whole chunk
    sizes: npt.NDArray[np.int64] | None = None  # None: one row each


class Source(Protocol):
    """Records in one form of storage."""

    is_grouped: bool  # whether an engine groups each set of columns in a separate query

    def headers(self) -> Iterator[tuple[Sequence[str] | None, Callable[[str], DualmechError]]]:
        """Yield the names of each file's columns, None without names, and a function from messages to errors."""

    def chunks(self, requested: Requested, locate: Locate) -> Iterator[Chunk]:
        """Yield the values of the requested columns."""


@contextmanager
def refused_by(refuse: Callable[[str], DualmechError]) -> Iterator[None]:
    """Raise errors in input as the error that `refuse` returns for their message, with the place of the columns."""
    try:
        yield
    except InvalidInputError as error:
        raise refuse(str(error)) from error


def source_of(source: Any) -> Source:
    """Return the source for a path, a frame or an array of codes.

    Raises `BackendError` for records that need the extra ``engines`` if it is not installed, and
    `FileFormatError` for a folder of files of several kinds.
    """
    if isinstance(source, str | PathLike):
        return _of_path(Path(source))
    return engine_of(source) or InMemory(source)


# CSV files.


@dataclass(frozen=True, slots=True)
class CsvFiles:
    """Records in CSV files, one after another, each read once."""

    paths: tuple[Path, ...]
    is_grouped = False

    def headers(self) -> Iterator[tuple[Sequence[str], Callable[[str], DualmechError]]]:
        for path in self.paths:
            with files.errors_naming(path):
                yield _header(path, csv.lines(path))

    def chunks(self, requested: Requested, locate: Locate) -> Iterator[Chunk]:
        for path in self.paths:
            with files.errors_naming(path):
                lines = csv.lines(path)
                names, refuse = _header(path, lines)
                with refused_by(refuse):
                    places = locate(names)
                keys = {key: places[name] for key, (name, _) in requested.items()}
                yield from _csv_chunks(path, lines, keys, len(names))


def _header(path: Path, lines: Iterator[tuple[int, list[str]]]) -> tuple[list[str], Callable[[str], DualmechError]]:
    line, header = next(lines, (1, []))
    if not header:
        raise InvalidInputError("is empty: its first line must name the columns")
    return header, lambda message: FileFormatError(f"{path}: line {line}: {message}")


def _csv_chunks(
    path: Path, lines: Iterator[tuple[int, list[str]]], keys: Mapping[Key, int], width: int
) -> Iterator[Chunk]:
    """Yield the texts of some columns in batches of lines; refuse a line with more or fewer fields."""
    while batch := [*itertools.islice(lines, CHUNK)]:
        numbers, rows = zip(*batch, strict=True)
        complete = len(batch) if {*map(len, rows)} == {width} else [len(row) == width for row in rows].index(False)
        texts = [*zip(*rows[:complete], strict=True)] or [()] * width

        def refuse(
            row: int | None, message: str, numbers: Sequence[int] = numbers, rows: Sequence[Sequence[str]] = rows
        ) -> DualmechError:
            if row is None:
                return FileFormatError(f"{path}: {message}")
            is_empty = len(rows[row]) > 1 and not any(map(str.strip, rows[row]))
            hint = "; all fields are empty, as in lines that spreadsheets leave below records: delete them"
            return FileFormatError(f"{path}: line {numbers[row]}: {message}{hint if is_empty else ''}")

        yield Chunk({key: texts[place] for key, place in keys.items()}, refuse)
        if complete < len(batch):
            raise refuse(
                complete,
                f"has {len(rows[complete])} fields where the first line has {width}; write a value with a comma "
                f'in quotes, as "1,200"',
            )


def _of_path(path: Path) -> Source:
    """Return the source for a file, or for a folder of files with one ending."""
    paths = [path]
    if os.path.isdir(path):  # False for an invalid name
        with files.errors_naming(path):
            all_files = [Path(folder, name) for folder, _, names in os.walk(path, onerror=_raised) for name in names]
        hidden = {file for file in all_files if any(part.startswith(".") for part in file.relative_to(path).parts)}
        paths = sorted(file for file in {*all_files} - hidden if _ending(file) is not None and file.is_file())
        endings = sorted({str(_ending(path)) for path in paths})
        if len(endings) != 1:
            got = " and ".join(endings) if endings else "none"
            raise FileFormatError(
                f"{path}: a folder of records must hold files of one kind (.csv, .csv.gz, .parquet, .arrow), got {got}"
            )
    ending = _ending(paths[0])
    return CsvFiles(tuple(paths)) if ending in (None, CSV) else _of_files(paths, str(ending))


def _raised(error: OSError) -> None:
    """Raise for a subfolder that cannot be read: `os.walk` would silently skip its records."""
    raise error


CSV, PARQUET, ARROW = ENDINGS = (".csv", ".parquet", ".arrow")


def _ending(path: Path) -> str | None:
    name = path.name.lower().removesuffix(".gz")
    return next((ending for ending in ENDINGS if name.endswith(ending)), None)


# Frames and arrays in memory.


@dataclass(frozen=True, slots=True)
class InMemory:
    """Records in memory: a DataFrame of pandas, or an array of codes (records, attributes)."""

    source: Any
    is_grouped = False

    def headers(self) -> Iterator[tuple[Sequence[str] | None, Callable[[str], DualmechError]]]:
        yield column_names(self.source), InvalidInputError

    def chunks(self, requested: Requested, locate: Locate) -> Iterator[Chunk]:
        names = column_names(self.source)
        if names is not None:
            places = locate(names)
            series = {key: self.source[self.source.columns[places[name]]] for key, (name, _) in requested.items()}
            columns = {key: np.asarray(column) for key, column in series.items()}
            if PERSON in columns:
                require_exact_ids(requested[PERSON][0], str(columns[PERSON].dtype))
        elif self._is_empty():
            return
        else:
            locate(None)
            codes = validate.finite(2, records=self.source)
            if codes.shape[1] != len(requested):
                raise InvalidInputError(
                    f"records must hold {len(requested)} whole numbers each, one per attribute, got shape {codes.shape}"
                )
            columns = dict(zip(requested, codes.T, strict=True))
        yield Chunk(columns, _in_memory)

    def _is_empty(self) -> bool:
        try:
            return len(self.source) == 0
        except TypeError:  # a source without a length
            return False


def _in_memory(row: int | None, message: str) -> DualmechError:
    return InvalidInputError(f"records: {'' if row is None else f'record {row + 1}: '}{message}")


# Engines.

FRAMES = ("polars", "pyarrow", "duckdb", "_duckdb", "dask", "dask_expr", "pyspark", "ibis", "sqlframe", "narwhals")
"""Packages whose frames are grouped by their own engine."""

FLAT = ("Boolean", "Categorical", "Date", "Datetime", "Enum", "Object", "String", "Time", "Unknown")
"""Types of columns with one value in each row that is no number."""

WIDE = ("UInt64", "Int128", "UInt128", "Decimal")
"""Types of numbers whose literals are neither integers of 64 bits nor doubles."""


def engine_of(source: object) -> Source | None:
    """Return the engine of a frame, or None for another source.

    Raises `BackendError` if narwhals is not installed.
    """
    if isinstance(source, Engine):
        return source
    if type(source).__module__.partition(".")[0] not in FRAMES:
        return None
    _require("narwhals")
    import narwhals as nw

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about the future of Dask in narwhals
        frame = nw.from_native(source, pass_through=True)
    if not isinstance(frame, nw.DataFrame | nw.LazyFrame):
        return None
    return InMemory(frame.to_native()) if frame.implementation.is_pandas() else Engine(frame)


def _require(*packages: str) -> None:
    """Raise `BackendError` if a package of the extra ``engines`` is not installed."""
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    if absent:
        raise BackendError(
            f"records other than CSV and pandas need {' and '.join(absent)}, of the extra `engines`: "
            f"pip install 'dualmech[engines]'"
        )


def _of_files(paths: Sequence[Path], ending: str) -> Engine:
    """Return a DuckDB query of Parquet or Arrow files, which need not fit in memory."""
    _require("narwhals", "duckdb", "pyarrow")
    import duckdb
    import narwhals as nw

    texts, connection = [str(path) for path in paths], duckdb.connect()
    with files.errors_naming(paths[0]):
        try:
            if ending == PARQUET:
                keys = {tuple(part.partition("=")[0] for part in path.parts if "=" in part) for path in paths}
                in_folders = len(keys) == 1
                relation = connection.sql(_parquet(texts, in_folders))
                columns = {path: connection.sql(_parquet([str(path)], in_folders)).columns for path in paths}
            else:
                from pyarrow import dataset

                parts = [dataset.dataset(text, format="arrow") for text in texts]
                relation = connection.from_arrow(dataset.dataset(parts))
                columns = {path: part.schema.names for path, part in zip(paths, parts, strict=True)}
        except (duckdb.Error, OSError, ValueError) as error:
            raise FileFormatError(f"{paths[0]}: cannot be read: {first_line(error)}") from error
    location = str(paths[0].parent if len(paths) > 1 else paths[0])
    return Engine(nw.from_native(relation), location, connection, columns)


def _parquet(paths: Sequence[str], in_folders: bool) -> str:
    """Return the query of all rows of files, with columns from folder names: ``month=01`` gives the text 01."""
    quoted = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    options = f"union_by_name = true, hive_partitioning = {in_folders}, hive_types_autocast = false"
    return f"select * from read_parquet([{quoted}], {options})"


def of_query(query: str, database: str | None) -> Engine:
    """Return the records that a query selects from a DuckDB file, opened read-only.

    Raises `FileFormatError` for a missing database; `InvalidInputError` for a query that DuckDB refuses, or that
    selects no records.
    """
    _require("narwhals", "duckdb", "pyarrow")
    import duckdb
    import narwhals as nw

    try:
        connection = duckdb.connect() if database is None else duckdb.connect(database, read_only=True)
    except duckdb.Error as error:
        raise FileFormatError(f"{database}: cannot be read: {first_line(error)}") from error
    try:
        relation = connection.sql(query)
    except duckdb.Error as error:
        raise InvalidInputError(f"sql must be a query of DuckDB: {first_line(error)}") from error
    if relation is None:
        raise InvalidInputError(f"sql must select records, got {query!r}")
    return Engine(nw.from_native(relation), "sql", connection)


def _file_error(path: Path, message: str) -> FileFormatError:
    return FileFormatError(f"{path}: {message}")


@dataclass(frozen=True, slots=True)
class Engine:
    """Records in a frame of an engine (Arrow, Dask, DuckDB, Ibis, polars, Spark, …), which groups equal rows."""

    frame: Any
    where: str = "records"
    connection: object = field(default=None, repr=False)  # kept alive as long as the frame
    columns: Mapping[Path, Sequence[str]] = field(default_factory=dict, repr=False)  # the columns of each file
    is_grouped = True

    @property
    def engine(self) -> str:
        return str(self.frame.implementation.name.lower())

    def headers(self) -> Iterator[tuple[Sequence[str], Callable[[str], DualmechError]]]:
        for path, names in self.columns.items():
            yield names, partial(_file_error, path)
        if not self.columns:
            yield self.frame.collect_schema().names(), InvalidInputError

    def chunks(self, requested: Requested, locate: Locate) -> Iterator[Chunk]:
        """Yield one chunk: the distinct rows of the requested columns, with their multiplicities.

        Raises `InvalidInputError` for more than `MAX_GROUPS` distinct rows.
        """
        import narwhals as nw

        for path, file_names in self.columns.items():
            with refused_by(partial(_file_error, path)):
                locate(file_names)  # the engine would fill an absent column with missing values
        schema = self.frame.collect_schema()
        names = schema.names()
        places = locate(names)
        columns = {key: names[places[name]] for key, (name, _) in requested.items()}
        if PERSON in columns:
            require_exact_ids(requested[PERSON][0], str(schema[columns[PERSON]]))
        aliases = {key: f"column {place}" for place, key in enumerate(requested)}
        values = [
            self._value(schema[columns[key]], columns[key], *requested[key]).alias(alias)
            for key, alias in aliases.items()
        ]
        lazy = self.frame.lazy() if self.engine == "polars" else self.frame
        grouped = lazy.select(*values).group_by(*aliases.values()).agg(nw.len().alias("size"))
        groups = self._collected(lambda: grouped.head(MAX_GROUPS + 1))
        if len(groups) > MAX_GROUPS:
            names_text = " and ".join(dict.fromkeys(repr(name) for name, _ in requested.values()))
            raise self._refuse(
                None,
                f"{names_text} have more than {MAX_GROUPS} distinct values together: select fewer, such as rounded "
                f"numbers, or days for times",
            )
        sizes = np.array(groups.get_column("size").to_list(), dtype=np.int64)
        yield Chunk({key: groups.get_column(name).to_list() for key, name in aliases.items()}, self._refuse, sizes)

    def _refuse(self, _: int | None, message: str) -> DualmechError:
        return InvalidInputError(f"{self.where} ({self.engine}): {message}")

    def _collected(self, build: Callable[[], Any]) -> Any:
        import narwhals as nw

        try:
            frame = build()
            if isinstance(frame, nw.DataFrame):
                return frame
            return frame.collect(**({"engine": "streaming"} if self.engine == "polars" else {}))
        except MemoryError:
            raise
        except Exception as error:  # engines raise their own errors
            raise self._refuse(None, f"cannot be read: {first_line(error)}") from error

    def _value(self, kind: Any, column_name: str, name: str, attribute: Attribute | None) -> Any:
        """Return the expression to group rows by: a column, with numbers and times replaced by one for each cell."""
        import narwhals as nw

        column, type_name = nw.col(column_name), type(kind).__name__
        if not kind.is_numeric() and type_name not in FLAT:
            raise InputTypeError(
                f"{self.where} ({self.engine}): {name!r} must be a column of numbers, texts, dates or truth values, "
                f"got {kind}"
            )
        if type_name in ("Categorical", "Enum", "Unknown"):
            return column.cast(nw.String)
        if isinstance(attribute, Dated) and type_name == "Datetime":
            if kind.time_zone is None:
                return column.dt.date()
            # Engines differ in time zones, and some use the machine's: the day is computed with the codes. Until 1972
            # some zones had offsets of seconds.
            return column if attribute.first.year < 1973 else column.dt.truncate("1m")
        is_plain = kind.is_numeric() and type_name not in WIDE and not (kind.is_integer() and self.engine == "dask")
        if is_plain and isinstance(attribute, Binned):
            return _binned(attribute, kind.is_integer(), column)
        if is_plain and isinstance(attribute, Numbers) and attribute.step is not None and not kind.is_integer():
            return _on_grid(attribute, float(attribute.step), column)
        return column


def _on_grid(attribute: Numbers, step: float, column: Any) -> Any:
    """Return a column with the numbers well inside a cell of a grid replaced by the grid point."""
    import narwhals as nw

    first, last = float(attribute.first), float(attribute.last)
    missing_numbers = [csv.number(text) for text in attribute.missing]
    if max(abs(first), abs(last)) > 2**40 * step or any(number is not None for number in missing_numbers):
        return column
    column = column.cast(nw.Float64)
    grid_point = (((column - first) / step).round() * step + first).clip(first, last)
    is_inside = (column >= first) & (column <= last) & ((column - grid_point).abs() < 0.499 * step)
    return nw.when(is_inside).then(grid_point).otherwise(column)


def _binned(attribute: Binned, is_integer: bool, column: Any) -> Any:
    """Return a column with the numbers strictly inside each bin replaced by the smallest number inside.

    Edges, numbers beyond them and missing values stay: `records` assigns them, as for every source.
    """
    import narwhals as nw

    if attribute.values > MAX_BINS:
        return column
    column = column.cast(nw.Int64 if is_integer else nw.Float64)
    expression, missing_numbers = column, [csv.number(text) for text in attribute.missing]
    for left, right in itertools.pairwise(attribute.edges):
        if is_integer:
            first, last = max(math.floor(left) + 1, -(2**63)), min(math.ceil(right) - 1, 2**63 - 1)
        else:
            first, last = math.nextafter(left, math.inf), math.nextafter(right, -math.inf)  # type: ignore[assignment]
        if first < last and not any(number is not None and left < number < right for number in missing_numbers):
            is_inside = (column >= first) & (column <= last)
            expression = nw.when(is_inside).then(nw.lit(first)).otherwise(expression)
    return expression
