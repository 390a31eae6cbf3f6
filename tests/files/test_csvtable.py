"""What a CSV file may look like, and what is said of one that may not."""

import csv as standard
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dualmech import files
from dualmech.errors import FileFormatError
from dualmech.files import csv


def parse(folder: Path, content: bytes | str) -> csv.CsvTable:
    path = folder / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return csv.read_table(path)


def test_read(tmp_path: Path) -> None:
    for content, names, groups in (
        ("1,0\n1,1\n", None, None),
        ("1,0\n1,1\n  \n\n", None, None),
        ("1,0\r\n\r\n1,1", None, None),
        ("\ufeff1,0\n1,1\n", None, None),
        (" 1 , 0.0\n1e0,+1\n", None, None),
        ("left,right\n1,0\n1,1\n", None, None),
        ("query,left,right\na,1,0\nb,1,1\n", ("a", "b"), None),
        ("Query , GROUP,x0,x1\na,g,1,0\nb,h,1,1\n", ("a", "b"), ("g", "h")),
        ("query,0,1\na,1,0\nb,1,1\n", ("a", "b"), None),
        ('\ufeff"query","group",,\n"a,\n""b""",,1,0\n12, g,1,1\n', ('a,\n"b"', "12"), ("", " g")),
    ):
        table = parse(tmp_path, content)
        np.testing.assert_array_equal(table.values, [[1, 0], [1, 1]])
        assert (table.names, table.groups) == (names, groups)


def test_refused(tmp_path: Path) -> None:
    for content, match in (
        ("", "no row of numbers"),
        ("\n \n", "no row of numbers"),
        ("left,right\n", "no row of numbers"),
        ("query\na\n", "line 2: has no column of numbers"),
        ("query,group\na,g\n", "line 2: has no column of numbers"),
        ("1,0\n1\n", "line 2: has 1 fields where the first line has 2"),
        ("x,y\n\n1,0\n1,0,0\n", "line 4: has 3 fields"),
        ("query,x\na,1\nb\n", "line 3: has 1 fields"),
        ("1,O\n1,1\n", "line 1: 'O' is not a number .*header"),
        ("left,1,0\n", "line 1: 'left' is not a number .*header"),
        (",a,b\n0,1,0\n", "line 1: the header has an empty field; a column of names must be called 'query'"),
        ("a,b\n1,\n", "line 2: '' is not a number"),
        ("1,0\n1,1_0\n", "line 2: '1_0' is not a number$"),
        ("1,0\n1,\u0663\n", "line 2: '\u0663' is not a number$"),
        ('1\n""\n', "line 2: '' is not a number"),
        ("0,1,2\n1,0,0\n", "line 1: 0, 1, 2, … only count .* index=False, header=False, or name the columns"),
        (",0,1\n0,1,0\n", "line 1: 0, 1, 2, … only count .* index=False, header=False"),
        ("1;0\n1;1\n", "line 1: fields are separated by semicolons: write commas between them, and full stops"),
        ("query;a;b\nleft;1;0\n", "line 1: fields are separated by semicolons"),
        ("1,5;2\n3,5;4\n", "line 1: fields are separated by semicolons"),
        ("1\t0\n1\t1\n", "line 1: fields are separated by tabs"),
        ("1,0\nnan,1\n", "line 2: numbers must be finite, got 'nan'"),
        ("1,0\n1,1e999\n", "line 2: numbers must be finite, got '1e999'"),
        ("1,0\n1,-inf\n", "line 2: numbers must be finite"),
        ('query,x\n"a,1\n', "is not CSV"),
        ('query,x\n"a"b,1\n', "line 2: is not CSV"),
        (b"query,x\n\xff\xfe,1\n", "is not UTF-8 text"),
        ("1,0\n1,1\n".encode("utf-16"), "table.csv: "),
        (b"\x00\x01\x02", "table.csv: "),
        ("query,x\n" + "a" * 200_000 + ",1\n", "line 2: is not CSV"),
    ):
        with pytest.raises(FileFormatError, match=match) as caught:
            parse(tmp_path, content)
        assert str(caught.value).startswith(f"{tmp_path}/table.csv: ") and "\n" not in str(caught.value)


def test_numbers_keep_every_bit_and_whole_ones_are_short(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((20, 7)) * 10.0 ** rng.integers(-300, 300, (20, 7))
    values[0] = [0.0, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3, 1e22, -2.0]
    texts = [f"q{j}" for j in range(20)]
    read = parse(tmp_path, csv.format_table(values, texts, texts)).values
    np.testing.assert_array_equal(read, values)
    np.testing.assert_array_equal(np.signbit(read), np.signbit(values))
    text = csv.format_table(np.array([[1.0, -2.0, 0.5]]), ["total, all"], ["a"])
    assert text == b'query,group,x0,x1,x2\n"total, all",a,1,-2,0.5\n'


@pytest.mark.parametrize("first", ["0,1", "0,1.0,2", "0,2,1"])
def test_a_first_line_of_numbers_that_may_be_a_query_is_one(tmp_path: Path, first: str) -> None:
    assert parse(tmp_path, f"{first}\n").values.tolist() == [[float(number) for number in first.split(",")]]


def test_a_workload_takes_names_and_groups(tmp_path: Path) -> None:
    parse(tmp_path, "query,a,b\nleft,1,0\n")
    workload = files.read_workload(tmp_path / "table.csv")
    assert workload.names == ("left",) and workload.groups == ("queries",)


@pytest.mark.parametrize(
    ("header", "cells"), [("query,a,b", ("a", "b")), ("a,b", ("a", "b")), ("query,x0,x1", None), ("query,a,", None)]
)
def test_the_header_names_the_cells(tmp_path: Path, header: str, cells: object) -> None:
    parse(tmp_path, f"{header}\n{'left,' * header.startswith('query')}1,0\n")
    assert files.read_workload(tmp_path / "table.csv").cell_names == cells


def test_are_read_with_a_header_or_without_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "targets.csv"
    for content in ("query,target\nleft,4\n,1e0\n", '"left",4\n\n,1.0\n'):
        path.write_text(content)
        assert files.read_by_name(path, "targets") == {"left": 4, "": 1}
    for content, match in (
        ("1\n2\n", "targets by name must be lines of a name and a number, got one column"),
        ("query,target\n", "no row of numbers"),
        ("query,target\na,1\nb\n", "line 3: must be a name and a number, got 'b'"),
        ("a,1\nb,O\n", "line 2: must be a name and a number, got 'b,O'"),
        ("a,1\nb,nan\n", "line 2: numbers must be finite"),
        ("a,1\nb,2\na,3\n", "line 3: targets must name each item once, 'a' is double"),
        ("query;target\na;1\n", "line 1: fields are separated by semicolons"),
    ):
        path = tmp_path / "targets.csv"
        path.write_text(content)
        with pytest.raises(FileFormatError, match=match):
            files.read_by_name(path, "targets")


@given(st.lists(st.lists(st.text(max_size=6), min_size=1, max_size=3), max_size=4))
@example([["a\r=1+1", "b"], [""], ["\r"], ["\n", '"', ","]])
def test_any_text_is_read_back_as_it_was_written(rows: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.write_lines(text, rows)
    # Whoever splits lines first finds no field torn open, which would begin a line of the file.
    assert [*standard.reader(io.StringIO(text.getvalue(), newline=""), strict=True)] == rows
    assert text.getvalue().endswith("\n") or not rows


def test_names_with_any_mark_survive(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for letter in [chr(code) for code in range(0x20)] + ["\x7f", "\x85", "\u2028", '"', ","]:
        names = [f"a{letter}=1+1", f"{letter}b"]
        path.write_bytes(csv.format_table(np.eye(2), names, [f"g{letter}", letter], [f"x{letter}y", "z"]))
        table = csv.read_table(path)
        assert (table.names, table.groups) == ((*names,), (f"g{letter}", letter))
        assert table.cell_names == (f"x{letter}y", "z")
