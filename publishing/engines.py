"""Records on an engine that narwhals knows (Arrow, Dask, DuckDB, polars, Spark, …): a group-by a table, run there."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import itertools
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech.display import counted
from dualmech.errors import BackendError, FileFormatError, InputTypeError, InvalidInputError, first_line
from dualmech.files import csv
from dualmech.files.reading import errors_naming
from dualmech.publishing.attributes import Attribute, is_missing, text_of
from dualmech.publishing.persons import Bound, require_exact_ids, told
from dualmech.publishing.schema import attribute_at, attributes_of
from dualmech.validate import Array, composed
from dualmech.workloads.domain import Axes, Domain
from dualmech.workloads.marginal import cells_of

Codes = npt.NDArray[np.int64]

FRAMES = ("polars", "pyarrow", "duckdb", "_duckdb", "dask", "dask_expr", "pyspark", "ibis", "sqlframe", "narwhals")
"""Packages whose frames are grouped by their own engine."""

GROUPS = 2**22  # most groups of one group-by that come back
FEW = 256  # values of a cell for the rest up to which each is grouped by itself
MERGED = 2**16  # cells up to which several tables come from one group-by
MISSING, REFUSED = -2, -1  # what stands on an engine for a missing number, and for one that is not allowed

DAY_AND_TIME = r"^[0-9]{4}-[0-9][0-9]-[0-9][0-9][T ][ -~]*$"
"""A text whose first ten characters say the day."""

FLAT = ("Boolean", "Categorical", "Date", "Datetime", "Enum", "Object", "String", "Time", "Unknown")
"""Types whose values are looked up one by one; numbers are placed by the engine."""


def require(*packages: str) -> None:
    """Raise `BackendError` where a package of the extra ``engines`` is not installed."""
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    if absent:
        raise BackendError(
            f"records other than CSV and pandas need {' and '.join(absent)}, of the extra `engines`: "
            f"pip install 'dualmech[engines]'"
        )


def engine_of(source: object) -> Engine | None:
    """Return the engine that holds records, None of what is no frame of an engine.

    Raises `BackendError` where narwhals is not installed.
    """
    if isinstance(source, Engine):
        return source
    if type(source).__module__.partition(".")[0] not in FRAMES:
        return None
    require("narwhals")
    import narwhals as nw

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # on where narwhals will keep Dask
        frame = nw.from_native(source, pass_through=True)
    return Engine(frame) if isinstance(frame, nw.DataFrame | nw.LazyFrame) else None


def of_files(paths: Sequence[Path], ending: str) -> Engine:
    """Return DuckDB's reading of Parquet or Arrow files, which need not fit in memory."""
    require("narwhals", "duckdb", "pyarrow")
    import duckdb
    import narwhals as nw

    texts, connection = [str(path) for path in paths], duckdb.connect()
    with errors_naming(paths[0]):
        try:
            if ending == PARQUET:
                relation = connection.read_parquet(texts, union_by_name=True)
            else:
                from pyarrow import dataset

                relation = connection.from_arrow(dataset.dataset(texts, format="arrow"))
        except (duckdb.Error, OSError, ValueError) as error:
            raise FileFormatError(f"{paths[0]}: cannot be read: {first_line(error)}") from error
    where = str(paths[0].parent if len(paths) > 1 else paths[0])
    return Engine(nw.from_native(relation), where, connection)


def of_query(query: str, database: str | None) -> Engine:
    """Return what a query of a DuckDB file selects, which is opened to be read alone.

    Raises `FileFormatError` for no such database, `InvalidInputError` for a query that DuckDB refuses or that selects
    nothing.
    """
    require("narwhals", "duckdb", "pyarrow")
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


PARQUET = ".parquet"
ENDINGS = (PARQUET, ".arrow")


@dataclass(frozen=True, slots=True)
class Key:
    """What an engine groups by in place of a column: codes that it computes, or values that are looked up here."""

    expression: Any
    read: Callable[[Sequence[Any]], Codes]
    is_code: bool = False


class Engine:
    """Records in a frame of an engine: it groups them by what each table needs, and returns counts alone.

    Numbers are placed among whole numbers and edges of bins by the engine, with comparisons that are exact; other
    values come back once each, and are looked up as the texts of a file are.
    """

    def __init__(self, frame: Any, where: str = "records", connection: object = None) -> None:
        self.names = frame.collect_schema().names()  # of the columns, as they are written
        renamed = {name: composed(name) for name in self.names if not unicodedata.is_normalized("NFC", name)}
        if renamed and len({*map(composed, self.names)}) == len(self.names):  # else they are refused by name
            frame = frame.rename(renamed)
        self.frame, self.connection = frame, connection  # which lives as long as what it reads
        self.schema = frame.collect_schema()
        self.engine = frame.implementation.name.lower()
        self.where = f"{where} ({self.engine})"
        self.is_eager = not hasattr(frame, "collect")

    def unread(self, records: Any, domain: Domain) -> list[str]:
        """Return the columns that are not read; see `dualmech.records.Records`."""
        return records.unread(records.names, domain.sources)

    def counted(self, records: Any, domain: Domain, tables: Sequence[Axes]) -> tuple[dict[Axes, Array], int]:
        """Return tables of counts by their attributes, and the number of records.

        Raises `InvalidInputError` for a value that is not allowed, with how many rows have it, values that no record
        has together, counts that are no whole numbers, and more groups than come back.
        """
        import narwhals as nw

        self.unread(records, domain)
        attributes, weight = dict(enumerate(attributes_of(domain))), records.count
        keys = {axis: self._key(attribute) for axis, attribute in attributes.items()}
        columns = [key.expression.alias(_named(axis)) for axis, key in keys.items()]
        if weight is not None:
            columns.append(self._checked_weight(weight))
        bound: Bound | None = records.persons
        if bound is not None:
            require_exact_ids(bound.person, str(self.schema[bound.person]))
            columns.append(nw.col(bound.person).alias(PERSON))
        whole = self.frame.lazy() if self.engine == "polars" else self.frame
        frame = self._collected(lambda: whole.select(*columns)) if self.is_eager else whole.select(*columns)
        together = [tuple(sorted(codes)) for codes in domain.impossible]
        sets = [(*attributes,)] if bound else _merged(domain, [*tables, *((axis,) for axis in attributes), *together])
        grouped = {axes: self._grouped(frame, axes, keys, domain, records) for axes in sets}
        counted = {axes: _table(domain, axes, *_covering(grouped, axes)) for axes in tables}
        return counted, int(next(iter(grouped.values()))[1].sum())

    def _grouped(
        self, frame: Any, axes: Axes, keys: Mapping[int, Key], domain: Domain, records: Any
    ) -> tuple[dict[int, Codes], Codes]:
        """Return the codes of each group of a set of attributes, and how many records each has.

        Where persons are bounded, groups are of one person each, and have the records that are kept.
        """
        import narwhals as nw

        size = nw.len() if records.count is None else nw.col(WEIGHT).sum()
        names = [*map(_named, axes), *([PERSON] if records.persons else [])]
        groups = self._collected(lambda: frame.group_by(*names).agg(size.alias(SIZE)).head(GROUPS + 1))
        if len(groups) > GROUPS:
            columns = [attribute_at(domain, axis).source for axis in axes]
            shown = " and ".join(map(repr, [*columns, *([records.persons.person] if records.persons else [])]))
            raise InvalidInputError(
                f"{self.where}: {shown} have more than {GROUPS} distinct values together: select fewer, as text that "
                f"stands for a number cast to one"
            )
        counts = np.array([int(size) for size in groups.get_column(SIZE).to_list()], dtype=np.int64)
        codes = {}
        for axis in axes:
            values = groups.get_column(_named(axis)).to_list()
            codes[axis] = keys[axis].read(values)
            wrong = np.flatnonzero(codes[axis] < 0)
            if len(wrong):
                worst = wrong[np.argmax(counts[wrong])]
                self._refuse(attribute_at(domain, axis), keys[axis], values[worst])
        self._require_possible(domain, codes, counts)
        if records.persons is None:
            return codes, counts
        return codes, self._kept(domain, records, groups, codes, counts)

    def _kept(self, domain: Domain, records: Any, groups: Any, codes: Mapping[int, Codes], counts: Codes) -> Codes:
        """Return how many records of each group are kept, of groups of one person each."""
        bound: Bound = records.persons
        persons = groups.get_column(PERSON).to_list()
        matrix = np.stack([codes[axis] for axis in sorted(codes)])
        kept = bound.kept(persons, bound.values_of(domain, matrix), matrix, counts)
        records.report(told(bound, int(kept.sum()), int(counts.sum())))
        return kept

    def _collected(self, build: Callable[[], Any]) -> Any:
        """Build what an engine is to do, and run it."""
        import narwhals as nw

        try:
            frame = build()
            if isinstance(frame, nw.DataFrame):
                return frame
            return frame.collect(**({"engine": "streaming"} if self.engine == "polars" else {}))
        except MemoryError:
            raise
        except Exception as error:  # every engine has errors of its own
            raise InvalidInputError(f"{self.where}: cannot be read: {first_line(error)}") from error

    def _key(self, attribute: Attribute) -> Key:
        """Return what stands for the column of an attribute."""
        import narwhals as nw

        column, kind = nw.col(attribute.source), self.schema[attribute.source]
        if kind.is_numeric():
            if (code := _code_expression(attribute, *self._numbers(attribute.source))) is not None:
                return Key(code, functools.partial(_codes, attribute), is_code=True)
        elif type(kind).__name__ not in FLAT:
            raise InputTypeError(
                f"{self.where}: {attribute.source!r} must be a column of numbers, texts, dates or truth values, got "
                f"{kind}"
            )
        if kind in (nw.Categorical, nw.Enum, nw.Unknown):
            column, kind = column.cast(nw.String), nw.String()
        if attribute.by_day and isinstance(kind, nw.Datetime) and self.engine != "pandas":
            column = column.dt.date()
        if attribute.by_day and kind == nw.String:
            column = _pick(column.str.contains(DAY_AND_TIME), column.str.slice(0, 10), column)
        if attribute.has_rest:
            column = self._without_rest(attribute, column)
        return Key(column, functools.partial(codes_of, attribute))

    def _numbers(self, name: str) -> tuple[Any, bool]:
        """Return a column of numbers as an expression, and whether they are whole: else they are doubles."""
        import narwhals as nw

        kind = self.schema[name]
        is_whole = kind.is_integer() and type(kind).__name__ not in WIDE and self.engine != "dask"
        x = nw.col(name).cast(nw.Int64 if is_whole else nw.Float64)
        if is_whole and self.engine == "pyarrow":  # which refuses to round what no double holds
            return (x // HALF).cast(nw.Float64) * float(HALF) + (x % HALF).cast(nw.Float64), False
        return x, is_whole

    def _without_rest(self, attribute: Attribute, column: Any) -> Any:
        """Return a column in which one value stands for all that have no cell of their own."""
        import narwhals as nw

        one = self.frame.lazy() if self.engine == "polars" else self.frame
        texts = self._collected(
            lambda: one.select(column.alias("value")).group_by("value").agg(nw.len().alias(SIZE)).head(GROUPS + 1)
        )
        values = texts.get_column("value").to_list()
        codes = codes_of(attribute, values)
        rest = [value for value, code in zip(values, codes, strict=True) if code == attribute.values]
        others = [value for value, code in zip(values, codes, strict=True) if code != attribute.values]
        if len(values) > GROUPS:
            raise InvalidInputError(f"{self.where}: {attribute.source!r} has more than {GROUPS} distinct values")
        kept = [value for value in others if not is_missing(value)]
        return _pick(column.is_in(kept) | column.is_null(), column, rest[0]) if len(rest) > FEW else column

    def _checked_weight(self, name: str) -> Any:
        """Return the column of counts as whole numbers; refuse counts that are none, with one of them."""
        import narwhals as nw

        kind = self.schema[name]
        if not kind.is_numeric():
            raise InputTypeError(f"{self.where}: {name!r} must be a column of whole numbers, counts, got {kind}")
        (x, is_whole), most = self._numbers(name), float(LARGEST_TOTAL) if kind.is_float() else LARGEST_TOTAL
        within = (x >= 0) & (nw.col(name) <= most)  # not of doubles, to which 2^53 + 1 is 2^53
        fails = ~_pick(_absent(x, is_whole), nw.lit(False), within if is_whole else within & _whole(x))
        wrong = self._collected(lambda: self.frame.filter(fails).select(name).head(1)).get_column(name).to_list()
        if wrong and not is_missing(wrong[0]) and wrong[0] < INFINITY:
            require_exact(repr(name), wrong[0], self.where)
        if wrong:
            raise InvalidInputError(f"{self.where}: {not_whole(name, wrong[0])}")
        total = self._total(x.cast(nw.Float64))
        if LARGEST_TOTAL / 2 < total < LARGEST_TOTAL * 2:  # too near for doubles, and within 64 bits
            total = self._total(x.cast(nw.Int64))
        require_exact(repr(name), total, self.where)
        return x.cast(nw.Int64).alias(WEIGHT)

    def _total(self, x: Any) -> int:
        """Return the sum of a column, of doubles to their precision."""
        sums = self._collected(lambda: self.frame.select(x.sum().alias(SIZE)))
        return int(sums.get_column(SIZE).to_list()[0] or 0)

    def _refuse(self, attribute: Attribute, key: Key, wrong: Any) -> None:
        """Refuse a value that is not allowed: say how many rows have it, and where rows have an order the first."""
        import narwhals as nw

        k = nw.col("key")
        absent = (k.is_null() | k.is_nan()) if isinstance(wrong, float | np.floating) else k.is_null()
        stands = k == wrong if key.is_code or not is_missing(wrong) else absent
        columns = key.expression.alias("key"), nw.col(attribute.source).alias("value")

        def groups() -> Any:
            """Return the values that are refused so, with how many rows have each, most first."""
            frame = self.frame.select(*columns).filter(stands).group_by("value").agg(nw.len().alias(SIZE))
            return frame.sort(SIZE, descending=True).head(GROUPS)

        refused, row, have = self._collected(groups), "", ""
        values, sizes = refused.get_column("value").to_list(), refused.get_column(SIZE).to_list()
        value = values[0] if values else wrong
        if self.is_eager and values:
            first = self._collected(lambda: self.frame.select(*columns).with_row_index("row").filter(stands).head(1))
            row, value = f"record {first.item(0, 'row') + 1}: ", first.item(0, "value")
        rows = sum(int(size) for other, size in zip(values, sizes, strict=True) if text_of(other) == text_of(value))
        if rows:
            have = f"; {counted(rows, 'row')} {'has' if rows == 1 else 'have'} it"
        value = None if is_missing(value) else value
        shown = value if value is None or isinstance(value, bool | int | float | str) else text_of(value)
        raise InvalidInputError(f"{self.where}: {row}{attribute.refused(shown)}{have}")

    def _require_possible(self, domain: Domain, codes: Mapping[int, Codes], counts: Codes) -> None:
        """Refuse records that have what no record has together, where their groups tell."""
        for together in domain.impossible:
            if not {*together} <= {*codes}:
                continue
            wrong = np.all([np.isin(codes[axis], chosen) for axis, chosen in together.items()], axis=0)
            if wrong.any():
                place = np.flatnonzero(wrong)[0]
                words = impossible_text(domain, together, {axis: int(codes[axis][place]) for axis in together})
                have = counted(int(counts[wrong].sum()), "record")
                raise InvalidInputError(f"{self.where}: {words}; {have} in all")


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
    texts = [text_of(value)]
    if isinstance(value, bool | np.bool):
        has_two = attribute.values == 2 and {attribute.code("0"), attribute.code("1")} == {0, 1}
        texts += [texts[0].lower(), *([str(int(value))] if has_two else [])]
    elif isinstance(value, datetime.datetime) and not is_missing(value) and value.time() == datetime.time():
        texts.append(str(value.date()))
    rest = attribute.values if attribute.has_rest else None
    codes = [code for code in map(attribute.code, texts) if code is not None]
    return next((code for code in codes if code != rest), codes[0] if codes else None)


def codes_of(attribute: Attribute, values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Return the codes of values of a data frame, -1 of those that are not allowed."""
    known: dict[tuple[bool, str], int] = {}
    codes = np.empty(len(values), dtype=np.int64)
    for index, value in enumerate(values):
        key = isinstance(value, bool | np.bool), text_of(value)
        if key not in known:
            code = code_of(attribute, value)
            known[key] = -1 if code is None else code
        codes[index] = known[key]
    return codes


def listed(values: npt.NDArray[np.generic]) -> list[Any]:
    """Return the values of a column; of dates and durations, which NumPy lists as numbers, missing ones as None."""
    missing = np.isnat(values) if values.dtype.kind in "mM" else np.zeros(0, dtype=bool)
    if values.dtype.kind == "M" and values.dtype.str.endswith("[ns]"):  # which NumPy lists as numbers
        values = values.astype("M8[us]")
    return [None if absent else value for value, absent in itertools.zip_longest(values.tolist(), missing.tolist())]


SIZE, WEIGHT, PERSON = "size", "weight", "person"

LARGEST_TOTAL = 2**53  # up to which counts are exact


def require_exact(name: str, total: float, where: str = "") -> None:
    """Refuse counts that add up to more than is counted exactly."""
    if total > LARGEST_TOTAL:
        raise InvalidInputError(
            f"{where and f'{where}: '}{name} must add up to at most 2^53 = {LARGEST_TOTAL} records, got {total}: "
            f"tables hold counts as doubles, which are exact up to there"
        )


def not_whole(name: str, value: object) -> str:
    """Say why a count is refused that is no whole number."""
    shown = repr(value) if value is None or isinstance(value, bool | int | float | str) else text_of(value) or None
    return (
        f"{name!r} must count records, in whole numbers from 0, got {shown}: neighbours differ by records, so "
        f"that privacy is stated for whole ones; weights that are not whole are for estimates made of a release"
    )


def impossible_text(domain: Domain, together: Iterable[int], codes: Mapping[int, int]) -> str:
    """Say that no record has values together."""
    labels = {axis: attribute_at(domain, axis).label(codes[axis]) for axis in together}
    words = " and ".join(f"{domain.names[axis]!r} = {label}" for axis, label in labels.items())
    return f"no record has {words} together, as the schema says (never)"


def _named(axis: int) -> str:
    return f"attribute {axis}"


def _pick(condition: Any, one: Any, other: Any) -> Any:
    """Return an expression that is the one where a condition holds, else the other."""
    import narwhals as nw

    one, other = (side if isinstance(side, nw.Expr) else nw.lit(side) for side in (one, other))
    return nw.when(condition).then(one).otherwise(other)


def _code_expression(attribute: Attribute, x: Any, is_whole: bool) -> Any:
    """Return the codes of a column of numbers as an expression of the engine; None where the attribute has none."""
    import narwhals as nw

    placed = attribute.place_numbers(x, _pick)
    if placed is None:
        return None
    within, code = placed
    if within is None:
        within = (x == x) if is_whole else (x > -INFINITY) & (x < INFINITY)
    if attribute.whole_only and not is_whole:
        within = within & _whole(x)
    expression = _pick(within, code, _pick(_absent(x, is_whole), MISSING, REFUSED))
    for text in attribute.missing:
        number = csv.number(text)
        if number is not None and attribute.code(text_of(number)) == attribute.size - 1:
            expression = _pick(x == number, attribute.size - 1, expression)
    return expression.cast(nw.Int64)


def _whole(x: Any) -> Any:
    """Return which doubles are whole: all from 2^53 on, whose floor Ibis would not hold; remainders are rounded."""
    small = _pick((x > -float(LARGEST_TOTAL)) & (x < float(LARGEST_TOTAL)), x, 0.0)
    return small == small.floor()


def _absent(x: Any, is_whole: bool) -> Any:
    """Return which numbers of a column are missing."""
    return x.is_null() if is_whole else x.is_null() | x.is_nan()


INFINITY = float("inf")
HALF = 2**32  # of 64 bits
WIDE = ("UInt64", "Int128", "UInt128")
"""Whole numbers that 64 bits with a sign do not hold; Dask's hold no missing value."""


def _codes(attribute: Attribute, values: Sequence[Any]) -> Codes:
    """Return the codes that an engine computed, those of missing numbers as the schema has them."""
    codes = np.array([MISSING if value is None else value for value in values], dtype=np.int64)
    absent = attribute.code("")
    return np.where(codes == MISSING, REFUSED if absent is None else absent, codes)


def _merged(domain: Domain, sets: Iterable[Axes]) -> list[Axes]:
    """Return sets that contain all that are given, few where their tables are small."""
    merged: list[frozenset[int]] = []
    for axes in sorted({*map(frozenset, sets)}, key=lambda group: (-len(group), sorted(group))):
        if any(axes <= other for other in merged):
            continue
        for place, other in enumerate(merged):
            if cells_of(domain, tuple(sorted(axes | other))) <= MERGED:
                merged[place] = axes | other
                break
        else:
            merged.append(axes)
    return [tuple(sorted(axes)) for axes in merged]


Grouped = tuple[dict[int, Codes], Codes]


def _covering(grouped: Mapping[Axes, Grouped], axes: Axes) -> Grouped:
    """Return the fewest groups that tell the attributes."""
    return min((table for wider, table in grouped.items() if {*axes} <= {*wider}), key=lambda table: len(table[1]))


def _table(domain: Domain, axes: Axes, codes: Mapping[int, Codes], counts: Codes) -> Array:
    """Return the table of some attributes, an axis each, from the counts of groups."""
    shape = tuple(domain.shape[axis] for axis in axes)
    cells = np.ravel_multi_index(tuple(codes[axis] for axis in axes), shape) if axes else np.zeros(len(counts), int)
    size = int(np.prod(shape, dtype=np.int64))
    return np.asarray(np.bincount(cells, counts, size).reshape(shape), dtype=np.float64)
