"""The same nasty records on every engine: the same tables, and the same refusals."""

from __future__ import annotations

import contextlib
import csv
import datetime
import decimal
import gzip
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

import dualmech as dm
from dualmech.publishing import persons, sources
from dualmech.validate import Array

QUEBEC = "Qu\u00e9bec"
KIND, KIND_WRITTEN = "esp\u00e8ce", "espe\u0300ce"  # a name, and the same as records have it
SCHEMA = dm.Schema(
    {
        "place": {"labels": [QUEBEC, "Bern"], "rest": "elsewhere", "missing": ["", "NA"]},
        "area": {"column": "place", "labels": {QUEBEC: "west", "Bern": "east"}, "rest": "other", "missing": ""},
        "age": {"from": 0, "to": 3, "clamp": True, "missing": ["-9", ""]},
        "hours": {"bins": [0, 0.1, 2.5, 40], "clamp": True, "missing": ""},
        "day": {"from": datetime.date(2013, 1, 1), "to": datetime.date(2013, 3, 31), "step": "month", "clamp": True}
        | {"timezone": "UTC"},  # Spark's times have the zone of its session
        "member": ["false", "true"],
        "code": {"labels": ["1", "2"], "missing": ""},
        "party": {"labels": ["a", "b"], "ordered": True},
        "kind": {"from": 2, "to": 4, "column": KIND},
        "price": {"bins": [0, 1.1, 2]},
    }
)
TABLES = dm.workloads.marginals(
    SCHEMA, sets=[["place", "age"], ["area", "hours", "day"], ["member", "code", "price"], ["party", "kind"]]
)
TYPES = {
    "place": "text",
    "age": "whole",
    "hours": "real",
    "day": "time",
    "member": "truth",
    "code": "whole",
    "party": "category",
    KIND_WRITTEN: "small",
    "price": "decimal",
}
"""The columns of records, and the type that engines have for each."""

Row = tuple[Any, ...]

ROWS: list[Row] = [
    (QUEBEC, 0, 0.1, datetime.datetime(2013, 1, 31, 23, 59, 59), True, 1, "a", 2, decimal.Decimal("1.10")),
    (
        "Que\u0301bec ",
        -9,
        0.09999999999999999,
        datetime.datetime(2013, 2, 1),
        False,
        2,
        "b",
        4,
        decimal.Decimal("1.09"),
    ),
    (" Bern", None, 2.5, datetime.datetime(2012, 5, 1, 12), True, None, "b", 3, decimal.Decimal("0.00")),
    ("Z\u00fcrich", 7, None, datetime.datetime(2013, 3, 31, 1), False, 1, "a", 2, decimal.Decimal("2.00")),
    (None, -1, 1e300, datetime.datetime(2099, 1, 1), True, 2, "a", 2, decimal.Decimal("1.10")),
    ("NA", 3, -4.0, datetime.datetime(2013, 1, 1), True, 2, "a", 2, decimal.Decimal("1.10")),
    ("bern", 2, 39.0, datetime.datetime(2013, 2, 28), True, 2, "a", 2, decimal.Decimal("1.10")),
]


def text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def columns(rows: list[Row]) -> dict[str, list[Any]]:
    return dict(zip(TYPES, map(list, zip(*rows, strict=True)), strict=True))


def as_csv(rows: list[Row], folder: Path) -> Path:
    path = folder / "records.csv"
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerows([[*TYPES], *(map(text, row) for row in rows)])
    return path


def as_gzip(rows: list[Row], folder: Path) -> Path:
    path = folder / "records.csv.gz"
    path.write_bytes(gzip.compress(as_csv(rows, folder).read_bytes()))
    return path


def as_csv_folder(rows: list[Row], folder: Path) -> Path:
    for name, part in (("one", rows[::2]), ("two", rows[1::2] or rows)):
        (folder / "parts" / name).mkdir(parents=True, exist_ok=True)
        as_csv(part if len(rows) > 1 else rows[: name == "one"], folder / "parts" / name)
    return folder / "parts"


def as_arrow(rows: list[Row], folder: Path) -> Any:
    pa = pytest.importorskip("pyarrow")
    types = {
        "text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "time": pa.timestamp("us"), "truth": pa.bool_(),
        "category": pa.dictionary(pa.int32(), pa.string()), "small": pa.uint8(), "decimal": pa.decimal128(9, 2),
    }  # fmt: skip
    given = columns(rows)
    return pa.table({name: pa.array(given[name], types[kind]) for name, kind in TYPES.items()})


def as_pandas(rows: list[Row], folder: Path) -> Any:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({name: pandas.Series(each) for name, each in columns(rows).items()})
    return frame.assign(party=frame["party"].astype("category"))


def as_pandas_of_arrow(rows: list[Row], folder: Path) -> Any:
    pandas = pytest.importorskip("pandas")
    return as_arrow(rows, folder).to_pandas(types_mapper=pandas.ArrowDtype)


def as_polars(rows: list[Row], folder: Path) -> Any:
    pl = pytest.importorskip("polars")
    types = {
        "text": pl.String, "whole": pl.Int64, "real": pl.Float64, "time": pl.Datetime("us"), "truth": pl.Boolean,
        "category": pl.Categorical, "small": pl.UInt8, "decimal": pl.Decimal(9, 2),
    }  # fmt: skip
    return pl.DataFrame(columns(rows), schema={name: types[kind] for name, kind in TYPES.items()})


def as_polars_lazy(rows: list[Row], folder: Path) -> Any:
    return as_polars(rows, folder).lazy()


def as_polars_enum(rows: list[Row], folder: Path) -> Any:
    pl = pytest.importorskip("polars")
    return as_polars(rows, folder).with_columns(pl.col("party").cast(pl.Enum(["a", "b", "c"])))


def as_duckdb(rows: list[Row], folder: Path) -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.from_arrow(as_arrow(rows, folder))


def as_parquet(rows: list[Row], folder: Path) -> Path:
    pytest.importorskip("duckdb")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(as_arrow(rows, folder), folder / "records.parquet")
    return folder / "records.parquet"


def as_parquet_folder(rows: list[Row], folder: Path) -> Path:
    (folder / "lake" / "year=2013").mkdir(parents=True, exist_ok=True)
    shutil.copy(as_parquet(rows, folder), folder / "lake" / "year=2013" / "part.parquet")
    return folder / "lake"


def as_arrow_file(rows: list[Row], folder: Path) -> Path:
    pytest.importorskip("duckdb")
    feather = pytest.importorskip("pyarrow.feather")
    feather.write_feather(as_arrow(rows, folder), folder / "records.arrow")
    return folder / "records.arrow"


def as_dask(rows: list[Row], folder: Path) -> Any:
    pytest.importorskip("narwhals")
    pytest.importorskip("pyarrow")
    dask = pytest.importorskip("dask.dataframe")
    return dask.from_pandas(as_pandas_of_arrow(rows, folder), npartitions=2)


def as_ibis(rows: list[Row], folder: Path) -> Any:
    ibis = pytest.importorskip("ibis")
    pytest.importorskip("duckdb")
    return ibis.memtable(as_arrow(rows, folder))


def as_spark(rows: list[Row], folder: Path) -> Any:
    pa = pytest.importorskip("pyarrow")
    table = as_arrow(rows, folder)
    known = {KIND_WRITTEN: pa.int16(), "party": pa.string()}  # which Spark has types for
    return spark().createDataFrame(table.cast(pa.schema([(f.name, known.get(f.name, f.type)) for f in table.schema])))


def spark() -> Any:
    """A session of Spark, which needs Java as well."""
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None:
        pytest.skip("could not find Java, which Spark needs")
    options = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.sql.session.timeZone": "UTC"}
    return sql.SparkSession.builder.master("local[1]").config(map=options).getOrCreate()


Make = Callable[[list[Row], Path], Any]
FILES = {"csv.gz": as_gzip, "CSV folder": as_csv_folder}
ENGINES: dict[str, Make] = {
    "polars": as_polars,
    "polars lazy": as_polars_lazy,
    "polars enum": as_polars_enum,
    "Arrow": as_arrow,
    "DuckDB": as_duckdb,
    "Parquet": as_parquet,
    "Parquet folder": as_parquet_folder,
    "Arrow file": as_arrow_file,
    "Dask": as_dask,
    "Ibis": as_ibis,
    "Spark": as_spark,
}
EVERY: dict[str, Make] = FILES | {"pandas": as_pandas, "pandas of Arrow": as_pandas_of_arrow} | ENGINES


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) if name == "Spark" else name for name in EVERY])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """What brings records to an engine; those of one that is not installed are skipped by its name."""
    if request.param in ENGINES:
        pytest.importorskip("narwhals")
    yield EVERY[request.param]
    if request.param == "Spark" and importlib.util.find_spec("pyspark"):
        spark().stop()


def tables_of(source: Any, workload: Any = TABLES) -> dict[Any, Array]:
    found: dict[Any, Array] = dm.records.count(source, workload)
    return found


def same(one: dict[Any, Array], other: dict[Any, Array]) -> None:
    assert one.keys() == other.keys()
    for axes, table in one.items():
        np.testing.assert_array_equal(table, other[axes])


class TestConformance:
    def test_nasty_records_are_counted_as_those_of_a_file(self, make: Make, tmp_path: Path) -> None:
        same(tables_of(make(ROWS, tmp_path)), tables_of(as_csv(ROWS, tmp_path)))

    def test_what_a_file_refuses_is_refused(self, make: Make, tmp_path: Path) -> None:
        for column, value, told in (
            ("member", None, "'member' must be one of 'false', 'true'"),
            ("code", 3, "'code' must be one of '1', '2', got"),
            ("party", "c", "'party' must be one of 'a', 'b', got 'c'"),
            (KIND_WRITTEN, 5, f"'{KIND}' must be a whole number from 2 to 4, got"),
            ("price", decimal.Decimal("2.01"), "'price' must be a number from 0 to 2, got"),
            ("day", None, "'day' must be a date, as in 2013-01-01"),
        ):
            if make in (as_dask, as_spark) and column not in (KIND_WRITTEN, "party"):
                continue  # slow engines refuse by the same lines
            (folder := tmp_path / column).mkdir()
            place = [*TYPES].index(column)
            wrong = (*ROWS[0][:place], value, *ROWS[0][place + 1 :])
            given = [*ROWS, wrong, wrong]
            for source in (as_csv(given, folder), make(given, folder)):
                with pytest.raises(dm.errors.InvalidInputError) as caught:
                    tables_of(source)
                assert told in str(caught.value)
                if value is not None:
                    assert f"got {value}" in str(caught.value).replace("'", "").replace("Decimal(", "").replace(")", "")

    def test_no_records_are_refused_unless_they_are_allowed(self, make: Make, tmp_path: Path) -> None:
        if make in (as_csv_folder, as_pandas, as_spark):
            pytest.skip("which says nothing of types")
        source = make(ROWS, tmp_path)
        nobody = source[:0] if hasattr(source, "slice") and make is not as_polars_lazy else None
        if nobody is None:
            pytest.skip("counted by another engine's frame")
        with pytest.raises(dm.errors.InvalidInputError, match="no records"):
            tables_of(nobody)
        assert not any(each.any() for each in dm.records.count(nobody, TABLES, allow_empty=True).values())

    def test_columns_are_known_by_their_names(self, make: Make, tmp_path: Path) -> None:
        other = dm.workloads.marginals(dm.Schema({"sex": ["f", "m"]}), ways=1)
        with pytest.raises(dm.errors.InvalidInputError, match=r"must name the attribute 'sex'"):
            tables_of(make(ROWS, tmp_path), other)

    def test_a_column_of_counts_says_how_many_records_a_row_is(self, make: Make, tmp_path: Path) -> None:
        """A row with n = 3 is that row three times; the column `age` is whole, so that it can stand for n."""
        rows = [(*row[:1], count, *row[2:]) for row, count in zip(ROWS, (3, 0, 1, 2, 10, 1, 1), strict=True)]
        kept = dm.Schema({each.name: each for each in SCHEMA.attributes if each.name != "age"})
        asked = dm.workloads.marginals(kept, sets=[["place"], ["area", "hours", "day"], ["member", "code"]])
        repeated = [row for row in rows for _ in range(row[1])]
        weighed = tables_of(dm.records.Records(make(rows, tmp_path), count="age"), asked)
        same(weighed, tables_of(as_csv(repeated, tmp_path), asked))
        wrong = [*rows, (*rows[0][:1], -1, *rows[0][2:])]
        with pytest.raises(dm.errors.InvalidInputError, match="'age' must count records, in whole numbers from 0, got"):
            tables_of(dm.records.Records(make(wrong, tmp_path), count="age"), asked)
        with pytest.raises(dm.errors.InvalidInputError, match="'hours' must count records, in whole numbers from 0"):
            real = dm.workloads.marginals(dm.Schema({KIND: range(2, 5)}), ways=1)
            tables_of(dm.records.Records(make(rows, tmp_path), count="hours"), real)

    def test_columns_of_one_name_are_refused(self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = {KIND if name == "member" else name: kind for name, kind in TYPES.items()}
        monkeypatch.setattr(sys.modules[__name__], "TYPES", names)
        with pytest.raises(dm.errors.InvalidInputError, match=f"names that differ .* NFC, got '{KIND}' twice, as 'esp"):
            tables_of(make(ROWS, tmp_path))

    def test_a_person_has_several_records(self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Person 2 has 17 records in five rows, 3 has 1, and 4 has a row of none; `age` counts."""
        monkeypatch.setattr(persons.secrets, "token_bytes", lambda count: b"4" * count)
        rows = [(*row[:1], count, *row[2:]) for row, count in zip(ROWS, (3, 0, 1, 2, 10, 1, 1), strict=True)]
        asked = dm.workloads.marginals(dm.Schema({"place": SCHEMA.attributes[0], "party": ["a", "b"]}), ways=2)
        repeated = as_csv([row for row in rows for _ in range(row[1])], tmp_path)
        (folder := tmp_path / "source").mkdir()
        source = make(rows, folder)
        for name in (KIND, KIND_WRITTEN):
            expected = tables_of(dm.records.Records(repeated, persons=dm.records.Bound(name, 4)), asked)
            same(tables_of(dm.records.Records(source, count="age", persons=dm.records.Bound(name, 4)), asked), expected)
            assert expected[0, 1].sum() == 5
        for most in (16, 17):
            bound = dm.records.Bound(KIND_WRITTEN, most, check=True)
            with contextlib.nullcontext() if most == 17 else pytest.raises(dm.errors.InvalidInputError) as caught:
                assert tables_of(dm.records.Records(source, count="age", persons=bound), asked)[0, 1].sum() == 18
            assert caught is None or f"'{KIND}': somebody has 17 records, more than the 16" in str(caught.value)

    def test_a_person_is_one_in_either_form(self, make: Make, tmp_path: Path) -> None:
        rows = [(place, *ROWS[0][1:]) for place in (QUEBEC, "Que\u0301bec", " Que\u0301bec ", "Bern")]
        records = dm.records.Records(make(rows, tmp_path), persons=dm.records.Bound("place", 1))
        asked = dm.workloads.marginals(dm.Schema({"party": ["a", "b"]}), ways=1)
        assert tables_of(records, asked)[0,].tolist() == [2, 0]

    def test_no_count_is_rounded(self, make: Make, tmp_path: Path) -> None:
        asked = dm.workloads.marginals(dm.Schema({"party": ["a", "b"]}), ways=1)
        for number, counts in enumerate([(2**53 - 1, 1), (2**53, 1), (2**53 + 1, 0), (2**62, 2**62)]):
            (folder := tmp_path / str(number)).mkdir()
            rows = [(*ROWS[0][:1], count, *ROWS[0][2:]) for count in counts]
            records = dm.records.Records(make(rows, folder), count="age")
            if sum(counts) == 2**53:
                assert tables_of(records, asked)[0,].tolist() == [2**53, 0]
            else:
                told = rf"'age' must add up to at most 2\^53 = {2**53} records, got \d+: tables hold counts as doubles"
                with pytest.raises(dm.errors.InvalidInputError, match=told):
                    tables_of(records, asked)


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**62), 2**62),
    st.integers(-3, 5),
    st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1]),
)
TINY = st.sampled_from([5e-324, -1e-20, 1 - 2**-53, -(2**-53), 2.0**53 + 2, -1e300, float("inf"), float("-inf")])
NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-40, 120).map(lambda tenth: tenth / 10), TINY)
TEXTS = st.one_of(
    st.none(),
    st.sampled_from(["a", " a", "a ", "b", "1", "1.0", "01", "1.50", "e\u0301", "\u00e9", "", "NA", "True", "\u0663"]),
    st.text(max_size=3),
)
DATES = st.one_of(st.none(), st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)))
ATTRIBUTES: dict[str, tuple[str, list[Any]]] = {
    "whole": ("whole", [range(5), {"from": -2, "to": 3, "clamp": True, "missing": ["", "-9"]}, {"bins": [0, 2, 9e15]}]),
    "real": (
        "real",
        [
            {"from": 0, "to": 3},
            {"from": -4, "to": 12, "step": 0.1, "clamp": True, "missing": ""},
            {"bins": [0, 0.1, 7.3, 12], "clamp": True, "missing": ["", "-1"]},
        ],
    ),
    "text": (
        "text",
        [{"labels": ["a", "1", "\u00e9"], "rest": "other"}, {"labels": ["a", "b"], "missing": ["", "NA"]}],
    ),
    "time": ("time", [{"from": "1950-01-01", "to": "2013-12-31", "step": "year", "clamp": True, "missing": ""}]),
}
DRAWN = {"whole": VALUES, "real": NUMBERS, "text": TEXTS, "time": DATES}


READERS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "polars lazy": ("polars", lambda polars, table: polars.from_arrow(table).lazy()),
    "DuckDB": ("duckdb", lambda duckdb, table: duckdb.from_arrow(table)),
    "Arrow": ("pyarrow", lambda arrow, table: table),
    "Ibis": ("ibis", lambda ibis, table: ibis.memtable(table)),
}


@pytest.mark.parametrize("engine", READERS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@drawn(kind=st.sampled_from([*ATTRIBUTES]), data=st.data())
def test_any_value_is_counted_or_refused_as_in_a_file(
    engine: str, tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    pytest.importorskip("narwhals")
    pa = pytest.importorskip("pyarrow")
    package, read = READERS[engine]
    module = pytest.importorskip(package)
    values = data.draw(st.lists(DRAWN[kind], min_size=1, max_size=6))
    attribute = data.draw(st.sampled_from(ATTRIBUTES[kind][1]))
    types = {"whole": pa.int64(), "real": pa.float64(), "text": pa.string(), "time": pa.timestamp("us")}
    table = pa.table({"x": pa.array(values, types[kind])})
    source = read(module, table)
    path = tmp_path_factory.getbasetemp() / f"{engine}{kind}.csv"
    with path.open("w", newline="", encoding="utf-8") as handle:
        absent = (None, float("nan"))
        lines = [["" if value in absent or value != value else text(value)] for value in values]
        csv.writer(handle, quoting=csv.QUOTE_ALL).writerows([["x"], *lines])
    asked = dm.workloads.marginals(dm.Schema({"x": attribute}), ways=1)
    try:
        expected = tables_of(path, asked)
    except dm.errors.InvalidInputError:
        with pytest.raises(dm.errors.InvalidInputError, match=r"'x' must be .*; \d+ rows? ha(s|ve) it$"):
            tables_of(source, asked)
    else:
        same(tables_of(source, asked), expected)


BINS: list[tuple[dict[str, Any], list[float]]] = [
    ({"bins": [0, 10, 20], "missing": ["5", "", "12"]}, [5, 5.5, 12, 13, 10, 0, 20]),
    ({"bins": [0, *range(1, 400)]}, [0, 0.5, 1, 398.5, 399]),
    ({"bins": [-1e300, -1e18, 0.5, 2**53, 1e300], "clamp": True}, [-(2.0**62), 0, 1, 2**53, 2.0**53 + 2, 2.0**62]),
    ({"bins": [0, 5e-324, 1e-323, 1]}, [0, 5e-324, 1e-323, 0.3, 1]),
    ({"bins": [0, 1, 2]}, [0, 1, 2]),
    ({"from": 0, "to": 2, "step": 0.1}, [0, 0.05, 0.049999999999999996, 0.05000000000000001, 0.15, 0.25, 1.95, 2]),
    ({"from": 0, "to": 8, "step": 4, "clamp": True, "missing": "1"}, [0, 1, 2, 3, 5, 6, 7, 9]),
]
"""Numbers at edges, between them, beyond 64 bits, and inside a bin but missing."""


@pytest.mark.parametrize("engine", READERS)
@pytest.mark.parametrize(("attribute", "numbers"), BINS)
def test_numbers_in_bins_count_as_in_a_file(
    engine: str, attribute: dict[str, Any], numbers: list[float], tmp_path: Path
) -> None:
    pytest.importorskip("narwhals")
    pa = pytest.importorskip("pyarrow")
    package, read = READERS[engine]
    module = pytest.importorskip(package)
    wanted = dm.workloads.marginals(dm.Schema({"x": attribute}), ways=1)
    kinds = [pa.float64(), *([pa.int64()] if all(float(number).is_integer() for number in numbers) else [])]
    for kind in kinds:
        values = [int(number) if kind == pa.int64() else float(number) for number in numbers]
        path = tmp_path / f"{kind}.csv"
        path.write_text("x\n" + "".join(f"{value!r}\n" for value in values))
        same(tables_of(read(module, pa.table({"x": pa.array(values, kind)})), wanted), tables_of(path, wanted))


def test_more_distinct_rows_than_are_returned_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("narwhals")
    polars = pytest.importorskip("polars")
    wanted = dm.workloads.marginals(dm.Schema({"x": {"labels": ["a"], "rest": "other"}}), ways=1)
    frame = polars.DataFrame({"x": [*map(str, range(9))]})
    assert tables_of(frame, wanted)[0,].tolist() == [0, 9]
    monkeypatch.setattr(sources, "MAX_GROUPS", 8)
    with pytest.raises(
        dm.errors.InvalidInputError, match="'x' have more than 8 distinct values together: select fewer"
    ):
        tables_of(frame, wanted)


def test_equal_values_of_several_types_are_told_apart() -> None:
    """True is 1, and the decimal 1.10 is 1.1, in Python's comparisons; as texts they are not."""
    pandas = pytest.importorskip("pandas")
    values = [True, 1, 1.0, "1", "true", decimal.Decimal("1.10"), decimal.Decimal("1.1"), None, float("nan"), ""]
    labels = {"labels": ["true", "1", "1.10", "1.1"], "missing": ""}
    wanted = dm.workloads.marginals(dm.Schema({"x": labels}), ways=1)
    frame = pandas.DataFrame({"x": pandas.Series(values, dtype=object)})
    assert tables_of(frame, wanted)[0,].tolist() == [2, 3, 1, 1, 3]


class TestAbsent:
    def test_an_engine_needs_its_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        polars = pytest.importorskip("polars")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        told = "need narwhals.*, of the extra `engines`: pip install"
        with pytest.raises(dm.errors.BackendError, match=told):
            tables_of(polars.DataFrame({"x": [1]}))
        (tmp_path / "records.parquet").write_bytes(b"PAR1")
        with pytest.raises(dm.errors.BackendError, match=told):
            tables_of(tmp_path / "records.parquet")
        assert tables_of(as_csv(ROWS, tmp_path))
        assert tables_of(as_pandas(ROWS, tmp_path))

    def test_broken_files_are_named(self, tmp_path: Path) -> None:
        for package in ("duckdb", "narwhals", "pyarrow"):
            pytest.importorskip(package)
        (tmp_path / "folder").mkdir()
        for name in ("records.parquet", "records.arrow", "records.csv.gz", "folder"):
            for content in (b"", b"PAR1 and no more", gzip.compress(b"place,age\n" * 999)[:-9]):
                if name != "folder":
                    (tmp_path / name).write_bytes(content)
                with pytest.raises(dm.errors.FileFormatError, match=name):
                    tables_of(tmp_path / name)
