"""Files as offices have them: every refusal says what to change, and what is read is the same on every machine."""

from __future__ import annotations

import ast
import contextlib
import datetime
import decimal
import gzip
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from commanded import run_wide as run
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from releases import planned

import dualmech as dm
from dualmech.publishing import attributes
from dualmech.publishing.attributes import number_hint
from dualmech.publishing.schema import attribute_of

ROOT = Path(__file__).resolve().parents[2]
CHICAGO, YEAR = "America/Chicago", {"from": "2024-01-01", "to": "2024-12-31"}
WHOLE, BINS = {"from": 0, "to": 2000}, {"bins": [0, 10, 2000]}


def counted(source: Any, **options: Any) -> list[float]:
    """Return the counts of records by their one attribute."""
    (table,) = dm.records.count(source, dm.workloads.marginals(dm.Schema(options), ways=1)).values()
    counts: list[float] = table.tolist()
    return counts


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError)) as caught:
        counted(source, **options)
    return str(caught.value)


def column(folder: Path, *texts: str) -> Path:
    """Return a CSV file of one column, 'x'."""
    path = folder / "records.csv"
    path.write_text("x\n" + "".join(f'"{text}"\n' for text in texts), encoding="utf-8")
    return path


def workbook() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("xl/workbook.xml"), "<workbook/>")  # of a fixed date
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (workbook(), "an Excel workbook, or another zip archive: save the sheet as CSV UTF-8, or read it with pandas"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel workbook (.xls): save the sheet as CSV UTF-8"),
        (gzip.compress(b"x\na\n", mtime=0), "compressed by gzip: its name must end in .gz"),
        (b"PAR1\x15\x04", "Parquet: its name must end in .parquet"),
        ("x\na\n".encode("utf-16"), "pandas.read_csv(…, encoding='utf-16')"),
        ("x\na\n".encode("utf-16-le"), "pandas.read_csv(…, encoding='utf-16')"),
        ("x\na\nM\u00fcnchen\n".encode("cp1252"), "line 3: is not UTF-8 text: byte 2 of the line is 0xfc, '\u00fc' in"),
        ("x\na\nM\u00fcnchen\n".encode("cp1252"), "iconv -f WINDOWS-1252 -t UTF-8"),
        (b"x|y\na|b\n", "fields are separated by pipes: write commas between them"),
        (b"x|y\na|b\n", "pandas.read_csv(…, sep='|')"),
        (b"x;y\na;b\n", "pandas.read_csv(…, sep=';')"),
        (b"x,y,z\na,1,2\n,,\n,,\n", "line 3: 'x' must be one of 'a', got ''; the option missing"),
        (b"x,y,z\na,1,2\n,,\n,,\n", "all fields are empty, as in lines that spreadsheets leave below records: delete"),
        (b"x,y\na,1,200\n", 'fields where the first line has 2; write a value with a comma in quotes, as "1,200"'),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_named_with_the_cure(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_bytes(content)
    assert told in refusal(tmp_path / "records.csv", x=["a"])


def test_a_compressed_file_in_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "records.csv.gz").write_bytes(gzip.compress("x\na\n\u00fc\n".encode("cp1252")))
    assert "line 3: is not UTF-8 text: byte 1 of the line is 0xfc" in refusal(tmp_path / "records.csv.gz", x=["a"])


@pytest.mark.parametrize(
    ("attribute", "text", "told"),
    [
        (WHOLE, "1,200", "got '1,200'; write 1200, as pandas.read_csv(…, thousands=',') reads it"),
        (WHOLE, "1 200", "write 1200, as pandas.read_csv(…, thousands=' ')"),
        (WHOLE, "12%", "got '12%'; write 12 alone"),
        (WHOLE, "1200 \u20ac", "write 1200 alone"),
        (WHOLE, "\u20ac1,200", "write 1200 alone"),
        (WHOLE, "\u22125", "write -5 alone"),
        (WHOLE, "#N/A", 'the option missing = "#N/A"'),
        (BINS, "#DIV/0!", 'the option missing = "#DIV/0!"'),
        (BINS, "1,5", "write 1.5, as pandas.read_csv(…, decimal=',')"),
        (BINS, "1,234.5", "write 1234.5, as pandas.read_csv(…, thousands=',')"),
        (BINS, "1.234,5", "write 1234.5, as pandas.read_csv(…, thousands='.', decimal=',')"),
        (WHOLE, "1.200", "it may be 1200: write it without full stops"),
        (WHOLE, "1.000", 'it may be 1000: write it without full stops; the option decimal = "." reads it as 1'),
        (WHOLE, "1.000.000", "it may be 1000000: write it without full stops"),
        (WHOLE, "1.5", "the option step = 1 rounds numbers to whole ones, step = 0.1 to tenths"),
        (["F", "M"], "f", "write 'F', or map both to one label: labels = { \"F\" = \"F\", \"f\" = \"F\", … }"),
        ({"labels": {"F": "female", "M": "male"}}, "f", 'labels = { "F" = "female", "f" = "female", … }'),
        (["Chicago", "Boston"], "Chigaco", "(did you mean Chicago?)"),
        (["F", "M"], "unknown", 'the option rest = "other" counts all other values in one cell'),
        (YEAR, "05.01.2024", 'the option format = "%d.%m.%Y" reads it as 2024-01-05'),
        (YEAR, "1/5/2024", 'format = "%m/%d/%Y" reads it as 2024-01-05, format = "%d/%m/%Y" reads it as 2024-05-01'),
        (YEAR, "1/25/2024 06:30", 'the option format = "%m/%d/%Y %H:%M" reads it as 2024-01-25'),
        (YEAR, "45296", 'the option format = "excel" reads it as 2024-01-05'),
        (YEAR, "20240105", 'format = "%Y%m%d"'),
        (YEAR, "2024-01-05 garbage", "after a date there may only be a time, as in 2024-01-05 06:30:00"),
        (YEAR, "2024-01-05T02:30:00Z", f'the option timezone = "{CHICAGO}" determines the time zone of its day'),
    ],
)  # fmt: skip
def test_a_value_is_refused_with_the_change_to_make(attribute: Any, text: str, told: str, tmp_path: Path) -> None:
    assert told in refusal(column(tmp_path, text), x=attribute)


@drawn(
    number=st.decimals(-(10**9), 10**9, places=2),
    style=st.sampled_from(["{:,}", "{} \u20ac", "{}%", "${}", "{:,} kg"]),
    is_german=st.booleans(),
)
def test_the_number_of_a_hint_is_the_number(number: decimal.Decimal, style: str, is_german: bool) -> None:
    text = style.format(number)
    text = text.translate({ord(","): ".", ord("."): ","}) if is_german else text
    written = re.search("; write ([^ ,]+)", number_hint(text))
    if written is None:
        assert attributes.read_number(text) == float(number)
    else:
        assert decimal.Decimal(written[1]) == number


def test_a_thousand_is_a_number_if_the_column_says_so(tmp_path: Path) -> None:
    assert counted(column(tmp_path, "1.000", "2.00", "3"), x={"from": 1, "to": 3, "decimal": "."}) == [1, 1, 1]
    assert counted(column(tmp_path, "1.000"), x={"size": 2, "decimal": "."}) == [0, 1]
    assert "decimal of 'x' must be one of ." in refusal([], x=WHOLE | {"decimal": ","})
    polars = pytest.importorskip("polars")
    pytest.importorskip("narwhals")
    decimals = polars.DataFrame({"x": [decimal.Decimal("1.000")]})
    assert counted(decimals, x=range(2)) == [0, 1]
    (tmp_path / "counts.csv").write_text("x,n\na,1.000\n")
    assert "'n' must count records, in whole numbers from 0, got '1.000'" in refusal(
        dm.records.Records(tmp_path / "counts.csv", count="n"), x=["a"]
    )


@pytest.mark.parametrize(
    "name", ["Anzahl", "n_persons", "N", "num_people", "Anzahl Personen", "F\u00e4lle", "cnt", "pwgtp12", "personCount"]
)
def test_a_column_that_looks_like_a_count_is_asked_about(name: str, tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text(f"x,{name}\na,3\n", encoding="utf-8")
    assert f"records.count = '{name}' counts them, records.ignore = ['{name}']" in refusal(path, x=["a"])
    assert counted(dm.records.Records(path, count=name), x=["a"]) == [3]
    assert counted(dm.records.Records(path, ignore=(name,)), x=["a"]) == [1]


@pytest.mark.parametrize("name", ["name", "country", "discount", "account", "number", "nation", "union", "person_id"])
def test_other_columns_are_passed_over(name: str, tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text(f"x,{name}\na,3\n")
    assert counted(tmp_path / "records.csv", x=["a"]) == [1]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["[attributes.a]", "size = 2", "[tables]", "ask = ['a']"], "each under [[tables]] in a file, got [tables]"),
        (["[[attributes]]", "size = 2", "[[tables]]"], "attributes must have names, as [attributes.age] in a file"),
        (["title = 'M\u00fcnchen'"], "line 1: is not UTF-8 text: byte 11 of the line is 0xfc"),
    ],
)
def test_a_specification_says_what_to_change(lines: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "tables.toml").write_bytes("\n".join(lines).encode("cp1252"))
    done = run("solve", str(tmp_path / "tables.toml"))
    assert done.exit_code == 1 and told in str(done.exception)


def test_a_specification_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[a]\nsize = 2\n", encoding="utf-8-sig")
    assert dm.Schema.read(tmp_path / "a.toml").shape == (2,)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"records": {"person": "id", "at_most": 3, "sum_at_most": 100}}, "limit on a person's whole sum is not supp"),
        ({"records": {"person": "id", "clip_total": 100}}, "frame.group_by('person').agg(polars.col('x').sum().clip"),
        ({"tables": [{"ask": {"x": "distinct"}, "margin": 9}]}, "counts of distinct persons in a cell are not"),
        ({"tables": [{"ask": ["x"], "distinct": "id", "margin": 9}]}, "frame.unique(['person', 'cell']) in polars"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name_with_its_preparation(changed: dict[str, Any], told: str) -> None:
    asked = {"attributes": {"x": {"from": 0, "to": 20}}, "tables": [{"ask": ["x"], "margin": 9}]}
    with pytest.raises(dm.errors.InvalidInputError, match=re.escape(told)):
        dm.Specification.of(asked | changed)


def test_paths_in_messages_can_be_imported() -> None:
    """No error names a module, class or function of the library by a path that no import has."""
    paths: set[str] = set()
    for room in ("core", "fast", "crosscheck", "publishing", "command", "reference"):
        for path in (ROOT / room).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
            texts = (part.value for node in raised for part in ast.walk(node) if isinstance(part, ast.Constant))
            paths |= {name for text in texts for name in re.findall(r"\bdualmech(?:\.[A-Za-z_]\w*)+", str(text))}
    assert "dualmech.publishing.records.Records" in paths
    absent = [path for path in sorted(paths) if not _can_be_imported(path)]
    assert not absent


def _can_be_imported(path: str) -> bool:
    """Return whether a path is a module, and then names within it, none of them a module that has another path."""
    parts, thing = path.split("."), None
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            thing = importlib.import_module(".".join(parts[:count]))
            break
    for name in parts[count:]:
        thing = getattr(thing, name, None)
        if inspect.ismodule(thing):
            return False
    return thing is not None


class TestDates:
    @pytest.mark.parametrize(
        ("options", "texts"),
        [
            ({"format": "%d.%m.%Y"}, ["05.01.2024", "5.1.2024", "2024-01-05", "2024-01-05 06:30:00"]),
            ({"format": "%m/%d/%Y %I:%M %p"}, ["1/5/2024 6:30 PM"]),
            ({"format": "%d-%b-%Y"}, ["05-JAN-2024", "05-Jan-2024"]),
            ({"format": "excel"}, ["45296", "45296.0", "45296.75"]),
            ({}, ["2024-01-05T06:30", "2024-01-05 06:30:00.5"]),
            ({"timezone": CHICAGO}, ["2024-01-06T05:59:59Z", "2024-01-05T23:59+00:00", "2024-01-05 23:59:59"]),
            ({"timezone": "Asia/Tokyo"}, ["2024-01-04T15:00:00Z", "2024-01-05 00:00:00", "2024-01-04 23:00:00+0200"]),
            ({"timezone": "UTC", "format": "%d.%m.%Y %H:%M %z"}, ["06.01.2024 01:30 +0200"]),
        ],
    )
    def test_a_day_is_read(self, options: dict[str, str], texts: list[str], tmp_path: Path) -> None:
        counts = counted(column(tmp_path, *texts), x=YEAR | options)
        assert np.flatnonzero(counts).tolist() == [4] and sum(counts) == len(texts)

    @pytest.mark.parametrize(
        "text", ["2024-01-05 garbage", "2024-01-05T", "2024-01-05 24:00", "2024-01-05 06:30 UTC", "2024-01-0", "60"]
    )
    @pytest.mark.parametrize("form", ["%d.%m.%Y", "excel"])
    def test_nothing_else_follows_a_date(self, form: str, text: str, tmp_path: Path) -> None:
        assert "'x' must be a date" in refusal(column(tmp_path, text), x=YEAR | {"format": form, "timezone": "UTC"})

    def test_months_without_a_day(self, tmp_path: Path) -> None:
        months = {"from": "2024-01-15", "to": "2024-03-31", "step": "month", "format": "%m/%Y"}
        assert counted(column(tmp_path, "01/2024", "3/2024", "2024-02-10"), x=months) == [1, 1, 1]

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"format": "%d.%m"}, "does not determine day, month and year"),
            ({"format": "%m.%Y"}, "does not determine day, month and year"),
            ({"format": "%Y-%d-%m"}, "does not determine day"),  # which ISO reads otherwise
            ({"format": ""}, "does not determine day"),
            ({"format": "%x"}, "got '%x', which has %x"),
            ({"format": "%d.%m.%Y %Z"}, "which has %Z"),
            ({"format": 3}, "format of 'x' must be a text"),
            ({"timezone": "Amerika/Chicago"}, "got 'Amerika/Chicago' (did you mean America/Chicago?)"),
            ({"timezone": "localtime"}, "timezone of 'x' must be a name of the IANA database"),
            ({"timezone": "../UTC"}, "timezone of 'x' must be a name of the IANA database"),
            ({"timezone": ""}, "timezone of 'x' must be a name of the IANA database"),
            ({"decimal": "."}, "decimal of 'x' is for numbers"),
            ({"zone": "UTC"}, "format, timezone, worth, column, missing, groups, got 'zone'"),
        ],
    )
    def test_bad_options_are_refused(self, options: dict[str, Any], told: str) -> None:
        assert told in refusal([], x=YEAR | options)
        for key in ("format", "timezone"):
            assert f"{key} of 'x' is for dates" in refusal([], x={"from": 0, "to": 1, key: "UTC"})

    @drawn(day=st.dates(datetime.date(1970, 1, 1), datetime.date(2060, 12, 31)), zone=st.sampled_from([CHICAGO, ""]))
    def test_a_schema_of_dates_comes_back(self, day: datetime.date, zone: str) -> None:
        spec = {"from": day, "to": day, "format": "%d.%m.%y"} | ({"timezone": zone} if zone else {})
        schema = dm.Schema({"x": spec})
        assert dm.Schema.of_json(schema.to_json()) == schema
        assert attribute_of("x", spec).code(day.strftime("%d.%m.%y")) == 0

    def test_the_statement_says_the_zone(self) -> None:
        asked = {"attributes": {"x": YEAR | {"timezone": CHICAGO}}, "tables": [{"ask": {"x": "months"}, "margin": 9}]}
        page = dm.release(planned(asked), {(0,): np.ones(366)}).statement()
        assert f"times with a time zone count on their day in {CHICAGO}" in page


ZONED: dict[str, Callable[[Any, Path], Any]] = {
    "Arrow": lambda table, folder: table,
    "polars": lambda table, folder: pytest.importorskip("polars").from_arrow(table),
    "polars lazy": lambda table, folder: pytest.importorskip("polars").from_arrow(table).lazy(),
    "pandas": lambda table, folder: table.to_pandas(),
    "DuckDB": lambda table, folder: pytest.importorskip("duckdb").from_arrow(table),
    "Parquet": lambda table, folder: _parquet(table, folder / "x.parquet"),
    "CSV": lambda table, folder: column(folder, *(value.isoformat() for value in table.column("x").to_pylist())),
}


def _parquet(table: Any, path: Path) -> Path:
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


@pytest.mark.parametrize("engine", ZONED)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@drawn(
    times=st.lists(
        st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2030, 1, 1)).map(
            lambda time: time.replace(microsecond=0, tzinfo=datetime.UTC)
        ),
        min_size=1,
        max_size=5,
    ),
    written=st.sampled_from(["UTC", "Asia/Kolkata", CHICAGO]),
    zone=st.sampled_from(["UTC", CHICAGO, "Pacific/Apia"]),
)
def test_a_zoned_time_is_the_same_day_on_every_engine(
    engine: str, tmp_path: Path, times: list[datetime.datetime], written: str, zone: str
) -> None:
    pytest.importorskip("narwhals")
    arrow = pytest.importorskip("pyarrow")
    times = [time.astimezone(ZoneInfo(written)) for time in times]
    source = ZONED[engine](arrow.table({"x": arrow.array(times, arrow.timestamp("us", written))}), tmp_path)
    years = {"from": "1899-12-31", "to": "2030-01-02", "timezone": zone}
    expected = {(time.astimezone(ZoneInfo(zone)).date() - datetime.date(1899, 12, 31)).days for time in times}
    assert {*np.flatnonzero(counted(source, x=years)).tolist()} == expected
    assert 'the option timezone = "America/Chicago"' in refusal(
        source, x=years | {"timezone": "UTC"} if False else YEAR
    )


def test_a_parquet_file_does_not_depend_on_the_zone_of_the_machine(tmp_path: Path) -> None:
    pytest.importorskip("narwhals")
    arrow = pytest.importorskip("pyarrow")
    time = datetime.datetime(2024, 1, 5, 2, 30, tzinfo=datetime.UTC)
    path = _parquet(arrow.table({"x": arrow.array([time], arrow.timestamp("us", "UTC"))}), tmp_path / "x.parquet")
    program = (
        f"import dualmech as dm; asked = dm.workloads.marginals(dm.Schema({{'x': {YEAR | {'timezone': CHICAGO}}}}), "
        f"ways=1); print(dm.records.count({str(path)!r}, asked)[0,].argmax())"
    )
    for zone in ("America/Chicago", "Asia/Tokyo"):
        done = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"TZ": zone}, capture_output=True, text=True, check=True
        )
        assert done.stdout == "3\n"


GRID = {"from": 0, "to": 20, "step": 0.1}


class TestRealNumbers:
    @drawn(
        first=st.integers(-50, 50),
        step=st.sampled_from(["0.1", "0.05", "0.25", "2", "1", "0.003"]),
        values=st.integers(1, 300),
        numbers=st.lists(st.floats(-60, 60) | st.decimals(-60, 60, places=3).map(float), max_size=20),
    )
    def test_numbers_are_rounded_to_the_grid_exactly(
        self, first: int, step: str, values: int, numbers: Sequence[float]
    ) -> None:
        by, last = Fraction(step), first + (values - 1) * Fraction(step)
        spec = {"from": first, "to": float(last), "step": float(step)}
        grid, clamped = attribute_of("x", spec), attribute_of("x", spec | {"clamp": True})
        assert grid.size == values and Fraction(grid.label(values - 1)) == last
        np.testing.assert_array_equal(grid.worth, [float(first + code * by) for code in range(values)])
        for number in numbers:
            exact = Fraction(repr(number))
            code, end = grid.code(repr(number)), clamped.code(repr(number))
            assert end is not None
            if first <= exact <= last:
                assert code == end
                assert -by / 2 < first + end * by - exact <= by / 2
            else:
                assert code is None and end == (0 if exact < first else values - 1)

    def test_a_tenth_is_a_tenth(self, tmp_path: Path) -> None:
        path = column(tmp_path, "0.3", "0.30000000000000004", ".25", "0.34999", "3e-1", "1.96", "20")
        assert {code: count for code, count in enumerate(counted(path, x=GRID)) if count} == {3: 5, 20: 1, 200: 1}
        assert "'x' must be a number from 0 to 20, got '20.01'; the option clamp = true" in refusal(
            column(tmp_path, "20.01"), x=GRID
        )
        assert counted(column(tmp_path, "20.01", "-3", "1e300"), x=GRID | {"clamp": True})[::200] == [1, 2]
        for text in ("1e-99999", "1e-" + "9" * 30, "nan", "inf", "1/3", "1_0", "\u0663"):
            assert "'x' must be a number" in refusal(column(tmp_path, text), x=GRID)

    @pytest.mark.parametrize(
        ("spec", "told"),
        [
            ({"step": 0.3}, "to must be from plus a whole number of steps, got from 0 to 20 by 0.3"),
            ({"step": 0}, "step of 'x' must be positive"),
            ({"step": -0.1}, "step of 'x' must be positive"),
            ({"step": float("nan")}, "step of 'x' must be finite"),
            ({"to": float("inf")}, "to of 'x' must be finite"),
            ({"step": True}, "step of 'x' must be a number, got True"),
            ({"to": -1}, "to of 'x' must be at least 0, got -1"),
        ],
    )
    def test_bad_grids_are_refused(self, spec: dict[str, Any], told: str) -> None:
        assert told in refusal([], x=GRID | spec)
        assert "the attribute must have a step, such as step = 0.1, got 20.5" in refusal([], x={"from": 0, "to": 20.5})

    @pytest.mark.parametrize("geometry", ["dense", "blocks"])
    def test_sums_and_means_are_released(self, geometry: str) -> None:
        polars = pytest.importorskip("polars")
        pytest.importorskip("narwhals")
        table = {"name": "hours", "ask": {"x": ["sum", "total"]}, "margin": 60, "derive": ["mean"]}
        asked = dm.Specification.of({"attributes": {"x": GRID | {"clamp": True}}, "tables": [table]})
        problem = dm.FitnessForUse(asked.workload, asked.targets, geometry=geometry)
        released = dm.release(asked.planned(dm.fast.solve(problem)), polars.DataFrame({"x": [3.34, 99.0] * 500}))
        truth = np.array([500 * 3.3 + 500 * 20, 1000])
        assert np.all(np.abs(released.estimates("hours") - truth) < 7 * np.sqrt(released.variances("hours")))
        (_, low, high) = released.derived("hours", "mean")[1][0]
        assert 0 < low < high < 20
        assert "numbers are rounded to the nearest of these values" in released.statement()

    def test_a_schema_of_numbers_comes_back(self) -> None:
        schema = dm.Schema({"x": GRID | {"clamp": True, "decimal": "."}, "y": {"from": -0.5, "to": 1, "step": 0.25}})
        assert dm.Schema.of_json(schema.to_json()) == schema
        assert schema.attribute(0).chosen("0.5..0.7") == [5, 6, 7]
        assert schema.attribute(1).describe([1, 2]) == "-0.25 \u2264 y \u2264 0"


class TestFolders:
    def test_columns_that_folders_hold(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("narwhals")
        for month, values in (("01", [1, 2]), ("12", [0])):
            (tmp_path / "lake" / f"month={month}").mkdir(parents=True)
            _parquet(arrow.table({"x": values}), tmp_path / "lake" / f"month={month}" / "0.parquet")
        assert counted(tmp_path / "lake", month=["01", "12"]) == [2, 1]
        assert counted(tmp_path / "lake", month=range(1, 13))[::11] == [2, 1]
        assert counted(tmp_path / "lake", x=range(3)) == [1, 1, 1]
        _parquet(arrow.table({"x": [0]}), tmp_path / "lake" / "1.parquet")
        assert counted(tmp_path / "lake", x=range(3)) == [2, 1, 1]
        assert "1.parquet: columns of records must name the attribute 'month'" in refusal(
            tmp_path / "lake", month=["01", "12"]
        )

    def test_hidden_files_are_passed_over(self, tmp_path: Path) -> None:
        column(tmp_path, "a")
        (tmp_path / "._records.csv").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
        (tmp_path / ".ipynb_checkpoints").mkdir()
        column(tmp_path / ".ipynb_checkpoints", "a")
        assert counted(tmp_path, x=["a"]) == [1]
        assert "what macOS keeps beside a file of that name" in refusal(tmp_path / "._records.csv", x=["a"])

    @pytest.mark.parametrize("kind", ["parquet", "arrow"])
    def test_a_file_that_lacks_a_column_is_refused(self, kind: str, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        feather = pytest.importorskip("pyarrow.feather")
        pytest.importorskip("narwhals")
        for name, table in {"0": {"x": ["a"], "y": ["b"]}, "1": {"x": ["a"]}}.items():
            path, columns = tmp_path / f"{name}.{kind}", arrow.table(table)
            _parquet(columns, path) if kind == "parquet" else feather.write_feather(columns, str(path))
        assert counted(tmp_path, x=["a"]) == [2]
        told = f"1.{kind}: columns of records must name the attribute 'y', got ['x']"
        assert told in refusal(tmp_path, y={"labels": ["b"], "missing": ""})
        records = dm.records.Records(tmp_path)
        with pytest.raises(dm.errors.FileFormatError, match=re.escape(told)):
            records.check_columns(dm.Schema({"y": ["b"]}))


def test_labels_that_are_decimals(tmp_path: Path) -> None:
    path = column(tmp_path, "0.5", "0.50", "1", "1.0")
    assert counted(path, x=["0.5", "1"]) == [2, 2] == counted(path, x=["0.50", "1.0"])
    assert counted(path, x=["0.5", "0.50", "1"]) == [1, 1, 2]
    assert "got '007'" in refusal(column(tmp_path, "007"), x=["7"])
    pandas = pytest.importorskip("pandas")
    assert counted(pandas.read_csv(column(tmp_path, "0.50", "1")), x=["0.50", "1"]) == [1, 1]
