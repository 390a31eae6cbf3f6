"""Counting records: every record counts once, where its codes say, or the table is refused with the line."""

from __future__ import annotations

import csv
import datetime
import decimal
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech.publishing import records

DOMAIN = dm.Domain({"a": 2, "b, or\nso": 12, "c": 3})
EVERYTHING = dm.workloads.marginals(DOMAIN, ways=3)
SPELLINGS = ("{}", " {}\t", "+{}", "0{}", "{}.0", "{}e0", "{}.", "{}00E-2")
"""Ways to write a whole number."""


def counted(codes: Any) -> npt.NDArray[np.float64]:
    table = np.zeros(DOMAIN.shape)
    np.add.at(table, tuple(np.reshape(codes, (-1, 3)).T), 1)
    return table


def count(path: Path, text: str, encoding: str = "utf-8", **options: Any) -> npt.NDArray[np.float64]:
    path.write_bytes(text.encode(encoding))
    return dm.records.count(path, EVERYTHING, **options)[0, 1, 2]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "records.csv"


class TestFiles:
    @given(
        records=st.lists(st.tuples(*(st.integers(0, size - 1) for size in DOMAIN.shape)), min_size=1),
        columns=st.permutations([*DOMAIN.names, "text", "a2"]),
        # Before Python 3.13 the writer quotes of "\r" and "\n" only what its own lines end in, unless it quotes all.
        style=st.sampled_from(
            [
                *({"quoting": csv.QUOTE_ALL, "lineterminator": end} for end in ("\n", "\r\n", "\r", "\r\n\r\n")),
                *({"quoting": csv.QUOTE_MINIMAL, "lineterminator": end} for end in ("\r\n", "\r\n\r\n")),
            ]
        ),
        encoding=st.sampled_from(["utf-8", "utf-8-sig"]),
        data=st.data(),
    )
    def test_each_record_counts_once_however_it_is_written(
        self, path: Path, records: Any, columns: Any, style: Any, encoding: str, data: st.DataObject
    ) -> None:
        texts = st.text("#\",;\n 7.'\u00e9", max_size=5)
        buffer = io.StringIO(newline="")
        writer = csv.DictWriter(buffer, columns, **style)
        writer.writeheader()
        for record in records:
            spelt = [data.draw(st.sampled_from(SPELLINGS)).format(code) for code in record]
            writer.writerow(dict(zip(DOMAIN.names, spelt, strict=True)) | {"text": data.draw(texts), "a2": "x"})
        np.testing.assert_array_equal(count(path, buffer.getvalue(), encoding), counted(records))

    @given(fields=st.lists(st.lists(st.text("01 #.+-\u0663\0", max_size=2), min_size=2, max_size=4), max_size=4))
    def test_no_line_is_dropped_in_silence(self, path: Path, fields: list[list[str]]) -> None:
        text = 'a,"b, or\nso",c\n1,1,1\n' + "".join(f"{','.join(row)}\n" for row in fields)
        try:
            table = count(path, text)
        except dm.errors.FileFormatError as error:
            assert "line " in str(error) and str(error).startswith(str(path))
        else:
            assert table.sum() == 1 + len(fields)

    def test_what_is_no_record_is_refused_with_its_line(self, path: Path) -> None:
        for row, told in (
            ("#1,0,0", "line 4: 'a' must be a whole number from 0 to 1, got '#1'"),
            ("1.9,0,0", "line 4: 'a' must be a whole number from 0 to 1, got '1.9'"),
            ("0,12,0", "line 4: 'b, or\\nso' must be a whole number from 0 to 11, got '12'"),
            ("0,1_0,0", "got '1_0'"),
            ("0,1e3,0", "got '1e3'"),
            ("0,-1,0", "got '-1'"),
            ("0,\u0663,0", "got '\u0663'"),
            ("0,\u00a03,0", "got '\\xa03'"),
            ("0,nan,0", "got 'nan'"),
            ("0,inf,0", "got 'inf'"),
            ("0,0x1,0", "got '0x1'"),
            ("0,1\0,0", "got '1\\x00'"),
            ("0,,0", "got ''"),
            ("0,NA,0", "got 'NA'"),
            ("0," + "9" * 400 + ",0", "got '999"),
            ("0,36893488147419103233,0", "got '36893488147419103233'"),
            ("0,0", "line 4: has 2 fields where the first line has 3"),
            ("0,0,0,0", "line 4: has 4 fields where the first line has 3"),
            ("0,0,0,", "line 4: has 4 fields where the first line has 3"),
            (",,", "got ''"),
            ('0,"0"1,0', "line 4: is not CSV"),
            ('0,0,"0', "is not CSV"),
            ("0,0,\ud800", "is not UTF-8 text"),
        ):
            text = f'a,"b, or\nso",c\n1,1,1\n{row}\n0,0,0\n'
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            with pytest.raises(dm.errors.FileFormatError) as caught:
                dm.records.count(path, EVERYTHING)
            assert told in str(caught.value) and str(caught.value).startswith(str(path))

    def test_the_first_line_names_attributes_and_the_first_fault_is_named(self, path: Path) -> None:
        good = "1,1,1\n" * 1000
        with pytest.raises(dm.errors.FileFormatError, match=r"line 1004: 'c' must be .*, got '3'"):
            count(path, f'a,"b, or\nso",c\n{good}\n1,1,3\n1,1\n')
        for header, told in (
            ('a,"b, or\nso"', "line 2: columns of records must name the attribute 'c', got ['a', 'b, or\\nso']"),
            ('a,"b, or\nso",c,a', "line 2: columns of records must name the attribute 'a' once"),
            ("\n", "line 3: columns of records must name the attribute 'a', got ['0', '0', '0']"),
            ("0,0,0", "line 1: columns of records must name the attribute 'a', got ['0', '0', '0']"),
        ):
            with pytest.raises(dm.errors.FileFormatError) as caught:
                count(path, f"{header}\n0,0,0\n")
            assert told in str(caught.value)

    def test_records_of_one_attribute_and_of_many_values(self, path: Path) -> None:
        asked = dm.workloads.marginals({"a": 2}, ways=1)
        path.write_text("a\n1\n\n0\n1\n")
        assert dm.records.count(path, asked)[0,].tolist() == [1, 2]
        path.write_text('a\n1\n""\n0\n')
        with pytest.raises(dm.errors.FileFormatError, match="line 3: 'a' must be a whole number from 0 to 1, got ''"):
            dm.records.count(path, asked)
        asked = dm.workloads.marginals({"a": 2**63 - 1, "b": 2}, sets=[["b"]])
        path.write_text("a,b\n9007199254740991,1\n")
        assert dm.records.count(path, asked)[1,].tolist() == [0, 1]
        path.write_text("a,b\n9007199254740992,1\n")
        with pytest.raises(dm.errors.FileFormatError, match="from 0 to 9007199254740991, got"):
            dm.records.count(path, asked)
        with pytest.raises(dm.errors.InvalidInputError, match="record 1: 'a' must be .* got 9007199254740992$"):
            dm.records.count([[2**53, 1]], asked)


class TestArrays:
    def test_codes_lie_below_the_sizes(self) -> None:
        table = dm.records.count(np.array([[1, 11, 2]] * 2, dtype=float), EVERYTHING)[0, 1, 2]
        np.testing.assert_array_equal(table, counted([[1, 11, 2]] * 2))
        wrong: Any = ((0.5, "0.5"), (-1, "-1"), (12, "12"), (1234567, "1234567"), (1e300, "1e+300"))
        for code, shown in wrong:
            told = f"record 2: 'b, or\\\\nso' must be a whole number from 0 to 11, got {shown.replace('+', '.')}$"
            with pytest.raises(dm.errors.InvalidInputError, match=told):
                dm.records.count([[0, 0, 0], [0, code, 0]], EVERYTHING)
        with pytest.raises(dm.errors.InvalidInputError, match="3 whole numbers each"):
            dm.records.count([[0, 0]], EVERYTHING)
        records, bound = dm.records.Records, dm.records.Bound("p", 1)
        for declared in (records([[0, 0, 0]], count="n"), records([[0, 0, 0]], persons=bound)):
            with pytest.raises(dm.errors.InputTypeError, match="must have named columns"):
                dm.records.count(declared, EVERYTHING)

    def test_columns_of_a_frame_are_known_by_their_names(self) -> None:
        pandas = pytest.importorskip("pandas")
        codes = np.random.default_rng(0).integers(0, DOMAIN.shape, (50, 3))
        named = pandas.DataFrame(codes, columns=[*DOMAIN.names], index=range(7, 57))
        for frame in (
            named,
            named[[*DOMAIN.names[::-1]]],
            named.assign(text="#")[["c", "text", *DOMAIN.names[:2]]],
            named.astype({"c": "Int64", "a": bool, DOMAIN.names[1]: "category"}),
            pandas.DataFrame(codes),  # columns that only count are no names
        ):
            np.testing.assert_array_equal(dm.records.count(frame, EVERYTHING)[0, 1, 2], counted(codes))

    @pytest.mark.parametrize("kind", ["object", "string", "str", "string[pyarrow]", "convert_dtypes", "category"])
    @pytest.mark.parametrize("absent", ["None", "nan", "NA", "NaT"])
    def test_what_pandas_has_for_missing_values_is_missing(self, kind: str, absent: str) -> None:
        pandas = pytest.importorskip("pandas")
        if "pyarrow" in kind:
            pytest.importorskip("pyarrow")
        value = getattr(pandas, absent, {"None": None, "nan": np.nan}.get(absent))
        column = pandas.Series(["f", value, "m", value], dtype=object)
        column = column.convert_dtypes() if kind == "convert_dtypes" else column.astype(kind)
        options: dict[str, object] = {"labels": ["f", "m"]}
        for extra in ({"missing": ""}, {}):
            asked = dm.workloads.marginals(dm.Schema({"sex": options | extra}), ways=1)
            if extra:
                assert np.array_equal(dm.records.count(column.to_frame("sex"), asked)[0,], [1, 1, 2])
                continue
            with pytest.raises(dm.errors.InvalidInputError, match="record 2: 'sex' must be one of .* missing = "):
                dm.records.count(column.to_frame("sex"), asked)

    @pytest.mark.parametrize("kind", ["Int64", "Float64", "boolean", "object", "datetime64[ns]", "timedelta64[s]"])
    def test_missing_numbers_and_dates(self, kind: str) -> None:
        pandas = pytest.importorskip("pandas")
        dates = kind[-1] == "]"
        given = [pandas.NaT, pandas.NaT, pandas.NaT] if dates else [1, pandas.NA, 0]
        frame = pandas.DataFrame({"own": pandas.Series(given, dtype=kind)})
        asked = dm.workloads.marginals(dm.Schema({"own": {"from": 0, "to": 1, "missing": ""}}), ways=1)
        assert np.array_equal(dm.records.count(frame, asked)[0,], [0, 0, 3] if dates else [1, 1, 1])
        without = dm.workloads.marginals(dm.Schema({"own": range(2)}), ways=1)
        codes = dm.workloads.marginals({"own": 2}, ways=1)
        for each in (without, codes):
            with pytest.raises(dm.errors.InvalidInputError, match=f"record {1 if dates else 2}: 'own' must be"):
                dm.records.count(frame, each)

    def test_frames_are_refused_by_the_names_of_their_columns(self) -> None:
        pandas = pytest.importorskip("pandas")
        named = pandas.DataFrame([[0, 0, 0]] * 3, columns=[*DOMAIN.names])
        for frame, told in (
            (
                named.rename(columns={"c": "d"}),
                "columns of records must name the attribute 'c', got ['a', 'b, or\\nso'",
            ),
            (named[["a", "c", *DOMAIN.names[:2]]], "columns of records must name the attribute 'a' once"),
            (named.assign(c=[0, 0, 3]), "record 3: 'c' must be a whole number from 0 to 2, got 3"),
            (named.assign(c=[0, None, 0]), "record 2: 'c' must be a whole number from 0 to 2, got nan"),
            (named.assign(c=["0", "x", "0"]), "record 2: 'c' must be a whole number from 0 to 2, got 'x'"),
        ):
            with pytest.raises(dm.errors.DualmechError) as caught:
                dm.records.count(frame, EVERYTHING)
            assert told in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "value", "code"),
    [
        (range(1, 13), True, None),
        (range(2), True, 1),
        (2, False, 0),
        ({"bins": [0, 12, 24]}, True, None),
        (["no", "yes"], True, None),
        (["False", "True"], True, 1),
        (["false", "true"], np.True_, 1),
        ({"labels": ["a"], "rest": "other"}, True, 1),
        (["1", "2"], 1.0, 0),
        (["1", "1.5"], 1.5, 1),
        (["1", "1.0"], "1.0", 1),
        ({"labels": ["a"], "missing": ["-9"]}, "-9.0", 1),
        ({"labels": ["a"], "missing": ["-9"]}, -9.0, 1),
        (["1"], decimal.Decimal("1.00"), 0),
        ({"from": "2013-01-01", "to": "2013-12-31"}, datetime.datetime(2013, 2, 1, 23, 59), 31),
        (["2013-02-01"], datetime.datetime(2013, 2, 1), 0),
        (["2013-02-01"], datetime.datetime(2013, 2, 1, 5), None),
        (range(2010, 2020), datetime.date(2013, 2, 1), None),
        (["Qu\u00e9bec"], "Que\u0301bec", 0),
        ({"labels": ["a"], "missing": ["Qu\u00e9"]}, " Que\u0301", 1),
    ],
)
def test_a_value_is_its_text(attribute: Any, value: Any, code: int | None, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    asked = dm.workloads.marginals(dm.Schema({"x": attribute}), ways=1)
    sources: list[Any] = [pandas.DataFrame({"x": pandas.Series([value], dtype=object)})]
    if isinstance(value, str):
        sources.append(tmp_path / "records.csv")
        sources[-1].write_text(f"x\n{value}\n", encoding="utf-8")
    if importlib.util.find_spec("narwhals") and importlib.util.find_spec("polars"):
        sources.append(pytest.importorskip("polars").DataFrame({"x": [value]}))
    for source in sources:
        if code is None:
            with pytest.raises(dm.errors.InvalidInputError, match="'x' must be"):
                dm.records.count(source, asked)
        else:
            assert np.flatnonzero(dm.records.count(source, asked)[0,]).tolist() == [code]


def test_a_table_without_records_is_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text('a,"b, or\nso",c\n\n')
    pandas = pytest.importorskip("pandas")
    nobody: Any = (path, [], np.zeros((0, 3)), pandas.DataFrame(columns=[*DOMAIN.names]))
    for source in nobody:
        with pytest.raises(dm.errors.InvalidInputError, match="no records; allow_empty=True"):
            dm.records.count(source, EVERYTHING)
        assert not dm.records.count(source, EVERYTHING, allow_empty=True)[0, 1, 2].any()
    with pytest.raises(dm.errors.InvalidInputError, match="must name the attribute"):
        dm.records.count(pandas.DataFrame(columns=["a"]), EVERYTHING, allow_empty=True)


def test_more_values_than_are_remembered_are_read_anew_and_no_others() -> None:
    """A column that goes through a few values more in turn once had every one of them read again."""
    read: list[str] = []
    values = records.CodeCache(lambda text: read.append(text) or int(text))  # type: ignore[func-returns-value]
    texts = [*map(str, range(records.MAX_CACHED_VALUES + 10))]
    for _ in range(3):
        assert [*values.all_of(texts[-20:])] == [*range(len(texts) - 20, len(texts))]
        assert [*values.all_of(texts)] == [*range(len(texts))]
    assert len(values) == records.MAX_CACHED_VALUES and len(read) <= len(texts) + 3 * 20 * 2
