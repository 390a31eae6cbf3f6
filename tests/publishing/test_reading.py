"""What columns of records mean that no attribute reads: counts, what is left unread, and tables of counts."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.publishing import drawing

PEOPLE = dm.Schema({"sex": ["f", "m"], "age": range(3)})
CELLS = dm.workloads.marginals(PEOPLE, ways=2)
ASKED = {
    "attributes": {"sex": ["f", "m"], "age": {"from": 0, "to": 2}},
    "tables": [{"name": "people", "ask": ["sex", "age"], "variance": 1}],
}


def planned(**records: Any) -> dm.Solution:
    asked = dm.Specification.of({**ASKED, **({"records": records} if records else {})})
    return asked.planned(fast.solve(asked.problem(), tol=1e-3))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reading") / "records.csv"


class TestCounts:
    @given(rows=st.lists(st.tuples(st.sampled_from("fm"), st.integers(0, 2), st.integers(0, 2**40)), min_size=1))
    def test_a_row_is_as_many_records_as_it_says(self, path: Path, rows: list[tuple[str, int, int]]) -> None:
        pandas = pytest.importorskip("pandas")
        path.write_text("sex,age,n\n" + "".join(f"{sex},{age},{n}\n" for sex, age, n in rows))
        expected = np.zeros((2, 3))
        for sex, age, n in rows:
            expected["fm".index(sex), age] += n
        frame = pandas.DataFrame(rows, columns=["sex", "age", "n"])
        for source in (path, frame):
            found = dm.records.count(dm.records.Records(source, count="n"), CELLS, allow_empty=True)
            np.testing.assert_array_equal(found[0, 1], expected)

    def test_what_counts_no_records_is_refused_with_its_line(self, path: Path) -> None:
        told = "line 3: 'n' must count records, in whole numbers from 0"
        for count in ("2.5", "-1", "", "x", "1e3", "nan"):
            path.write_text(f"sex,age,n\nf,1,3\nf,2,{count}\n")
            with pytest.raises(dm.errors.FileFormatError, match=told):
                dm.records.count(dm.records.Records(path, count="n"), CELLS)

    def test_no_count_is_rounded(self, path: Path) -> None:
        path.write_text(f"sex,age,n\nf,1,{2**53 - 1}\nf,1,1\n")
        assert dm.records.count(dm.records.Records(path, count="n"), CELLS)[0, 1][0, 1] == 2**53
        path.write_text(f"sex,age,n\nf,1,{2**53 - 1}\nf,1,2\n")
        with pytest.raises(dm.errors.InvalidInputError, match=f"'n' must add up to at most 2.53 .* got {2**53 + 1}"):
            dm.records.count(dm.records.Records(path, count="n"), CELLS)

    def test_a_plan_keeps_what_columns_mean(self, path: Path, tmp_path: Path) -> None:
        path.write_text("sex,age,n,wt\nf,1,300,0.5\nm,2,500,0.5\n")
        dm.save(planned(count="n", ignore=["wt"]), tmp_path / "plan.npz")
        again = dm.load(tmp_path / "plan.npz")
        assert np.allclose(dm.release(again, path).estimates("people"), [[0, 300, 0], [0, 0, 500]], atol=9)
        with pytest.raises(dm.errors.InvalidInputError, match="the same columns as the specification, or none"):
            dm.release(again, dm.records.Records(path, count="wt"))
        assert dm.plan_release(again).check_columns(path) == ["wt"]

    def test_a_specification_says_it_right(self) -> None:
        for records, told in (
            ({"count": "sex"}, "records.count must be a column that is no attribute, got 'sex'"),
            ({"counts": "n"}, "records takes count, ignore, .*got 'counts'.*did you mean count"),
            ({"count": "n", "ignore": ["n"]}, "ignore must not name the column of counts, 'n'"),
            ({"count": 3}, "count must be"),
            ({"ignore": [3]}, "ignore must be"),
        ):
            with pytest.raises(dm.errors.DualmechError, match=told):
                dm.Specification.of({**ASKED, "records": records})


class TestNames:
    """A name means the same in either form of its accents: that of records is not that of the specification."""

    @pytest.mark.parametrize(("stated", "written"), [("\u00e2ge", "a\u0302ge"), ("a\u0302ge", "\u00e2ge")])
    def test_names_are_compared_in_one_form(self, path: Path, stated: str, written: str) -> None:
        person, weight, group = "pre\u0301nom", "quantite\u0301", "e\u0301t\u00e9"
        asked = {
            "attributes": {stated: {"from": 0, "to": 2, "groups": {group: {"a": [0, 1], "b": [2]}}}, "sex": ["f", "m"]},
            "tables": [{"name": "people", "ask": {written: [unicodedata.normalize("NFC", group)]}, "variance": 1}],
            "records": {"person": unicodedata.normalize("NFC", person), "at_most": 2, "per": written, "count": weight},
            "neighbours": f"contributions:{written}:3:1",
        }
        plan = dm.Specification.of(asked)
        path.write_text(f"sex,{written},{person},{weight}\nf,1,x,3\nm,2,y,1\nm,2,x,0\n", encoding="utf-8")
        assert str(plan.neighbours) == "contributions:\u00e2ge:3:1"
        counts = dm.records.count(replace(plan.records, source=path), dm.workloads.marginals(plan.schema, ways=1))
        assert counts[0,].tolist() == [0, 2, 1]
        with pytest.raises(dm.errors.InvalidInputError, match="a specification must have names that differ"):
            dm.Specification.of({**asked, "attributes": {stated: 3, written: 3}})

    def test_tables_of_counts_are_compared_in_it_too(self) -> None:
        pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
        people = dm.Schema({"\u00e2ge": range(3)})
        for name in ("\u00e2ge", "a\u0302ge"):
            frame = pandas.DataFrame({name: [0, 1, 1]})
            for table in (frame.groupby([name]).size(), polars.from_pandas(frame).group_by(name).len()):
                assert dm.records.tables([table], people)[0,].tolist() == [1, 2, 0]
            assert people.axes([name]) == (0,) and name in people and people.cell(**{name: 2}) == 2
            relation = dm.neighbours.Relation.of(f"contributions:{name}:1:2")
            assert relation == dm.neighbours.Contributions(1, "\u00e2ge", 2) and relation.columns(3, people) == 6

    def test_two_columns_of_a_file_that_become_one_are_refused(self, path: Path) -> None:
        path.write_text("sex,age,a\u0302ge,\u00e2ge\nf,1,1,1\n", encoding="utf-8")
        told = (
            r"line 1: columns of records must have names that differ .*, got '\u00e2ge' twice, as 'a\\u0302ge' and as"
        )
        with pytest.raises(dm.errors.FileFormatError, match=told):
            dm.records.count(path, CELLS)


class TestUnread:
    def test_what_seems_to_count_is_declared_or_ignored(self, path: Path, tmp_path: Path) -> None:
        names = ("count", "N", "freq", "frequency", "wt", "PWGTP", "PWGTP17", "fnlwgt", "perwt", "weights", "Weight")
        answer = planned()
        dm.save(answer, tmp_path / "plan.npz")
        for name in names:
            path.write_text(f"sex,age, {name} \nf,1,3\n")
            told = f"records.count = '{name}' .* records.ignore = .'{name}'."
            with pytest.raises(dm.errors.FileFormatError, match=told):
                dm.records.count(path, CELLS)
            with pytest.raises(dm.errors.FileFormatError, match="records.count"):
                dm.plan_release(answer).check_columns(path)
            refused = run("release", path, tmp_path / "plan.npz", "--dry-run").exception
            assert isinstance(refused, dm.errors.FileFormatError)
            found = [dm.records.Records(path, count=name), dm.records.Records(path, ignore=[name])]  # type: ignore[arg-type]
            assert [dm.records.count(each, CELLS)[0, 1].sum() for each in found] == [3, 1], name

    def test_the_command_names_what_it_does_not_read(self, path: Path, tmp_path: Path) -> None:
        path.write_text("sex,height,age,name\nf,170,1,x\n")
        dm.save(planned(), tmp_path / "plan.npz")
        plan = str(tmp_path / "plan.npz")
        told = run("release", path, plan, "-o", tmp_path / "out").output
        assert "Columns that are not read: height, name." in told
        assert "height" not in "".join(each.read_text() for each in (tmp_path / "out").glob("*.*[vd]"))


class TestCommand:
    def test_records_come_from_files_and_queries(self, path: Path, tmp_path: Path) -> None:
        duckdb = pytest.importorskip("duckdb")
        pytest.importorskip("narwhals")
        pytest.importorskip("pyarrow")
        dm.save(planned(), tmp_path / "plan.npz")
        plan, database = str(tmp_path / "plan.npz"), str(tmp_path / "people.duckdb")
        with duckdb.connect(database) as connection:
            connection.sql("create table people as select 'f' as sex, i % 3 as age from range(3000) t(i)")
            connection.sql(f"copy people to '{tmp_path / 'people.parquet'}'")
        sql = ("--sql", "select * from people", "--database", database)
        for number, records in enumerate([(str(tmp_path / "people.parquet"), plan), (plan, *sql)]):
            out = tmp_path / f"out {number}"
            done = run("release", *records, "-o", out)
            assert done.exit_code == 0, (done.output, done.exception)
            rows = (out / "1_people.csv").read_text().splitlines()
            assert rows[1].startswith("f,0,") and abs(float(rows[1].split(",")[2]) - 1000) < 9
        for wrong, told in (
            ((plan, "--sql", "select", "--database", database), "sql must be a query of DuckDB"),
            ((plan, "--sql", "select 1", "--database", str(tmp_path / "none.duckdb")), "cannot be read"),
            ((plan, *sql[2:]), "--database is the file of the query of --sql"),
            ((str(path), plan, *sql), "release takes only the file of a solution with --sql"),
        ):
            done = run("release", *wrong, "-o", tmp_path / "none")
            assert told in str(done.exception) + done.output, done.output
            assert not (tmp_path / "none").exists()

    def test_folders_hold_files_of_one_kind(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("sex,age\nf,1\n")
        (tmp_path / "b.csv").write_text("age,sex\n2,m\n2,x\n")
        with pytest.raises(dm.errors.FileFormatError, match=r"b\.csv: line 3: 'sex' must be"):
            dm.records.count(tmp_path, CELLS)
        (tmp_path / "b.csv").write_text("age,sex\n2,m\n")
        assert dm.records.count(tmp_path, CELLS)[0, 1].tolist() == [[0, 1, 0], [0, 0, 1]]
        (tmp_path / "c.parquet").write_bytes(b"PAR1")
        with pytest.raises(dm.errors.FileFormatError, match=r"files of one kind .* got \.csv and \.parquet"):
            dm.records.count(tmp_path, CELLS)


class TestTables:
    def test_frames_of_counts_are_tables(self) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"age": [0, 1, 1, 2] * 50, "sex": ["f", "f", "m", "m"] * 50, "n": 1})
        truth = [[50, 50, 0], [0, 50, 50]]
        plan = planned()
        groups = frame.groupby(["age", "sex"])
        given: list[Any] = [[groups.size()], [groups.size().reset_index()], [groups["n"].sum().reset_index()]]
        given.append([pytest.importorskip("polars").from_pandas(frame).group_by("sex", "age").len()])
        for tables in given:
            assert np.allclose(dm.release(plan, tables).estimates("people"), truth, atol=9)

    def test_a_histogram_is_counts(self) -> None:
        counts = np.array([[50.0, 50, 0], [0, 50, 50]])
        assert np.allclose(dm.release(planned(), counts).estimates("people"), counts, atol=9)
        with pytest.raises(dm.errors.InvalidInputError, match="whole numbers"):
            dm.release(planned(), counts / 3)
        on_matrix = fast.solve(
            dm.FitnessForUse(dm.workloads.union(PEOPLE, {"all": ["sex", "age"]}), 1, geometry="dense")
        )
        for cells in (counts, counts.astype(int), counts.ravel()):
            assert np.allclose(dm.release(on_matrix, cells).estimates("all"), counts, atol=9)

    def test_tables_hold_at_most_2_53_records(self) -> None:
        """Cells that doubles count exactly have sums that they do not."""
        for counts, told in (
            (np.array([[2**53 + 1, 0, 0], [0, 0, 0]]), "must hold whole numbers of at most 2.53"),
            (np.array([[2**53, 1, 0], [0, 0, 0]]), f"add up to at most 2.53 = {2**53} records, got {2**53 + 1}"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=told):
                dm.release(planned(), counts)
        largest = np.array([[2**53 - 1, 1, 0], [0, 0, 0]])
        assert np.allclose(dm.release(planned(), largest).estimates("people"), largest, atol=9)

    def test_frames_that_are_no_tables_are_refused(self) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"age": [0], "sex": ["f"], "len": [3]})
        for frames, told in (
            ([frame, frame], "frames.1. must have columns of attributes"),
            ([frame.assign(more=1)], "frames.0. must have .* one of counts"),
            ([frame[["len"]]], "frames.0. must have columns of attributes"),
            ([frame.assign(len=0.5)], "'len' must count records"),
            ([frame[["age", "len"]], frame[["sex", "len"]].assign(len=4)], "must be of the same records"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=told):
                dm.release(planned(), frames)


def test_agreement_of_many_tables_takes_time_in_proportion_to_them() -> None:
    """Of as many tables as a table has subsets all subsets are compared, and no table is looked at for another."""

    class Counted(dict[tuple[int, ...], None]):
        def __iter__(self) -> Iterator[tuple[int, ...]]:
            raise AssertionError("every table was compared with every other")

    pairs = itertools.combinations(range(9), 2)
    assert drawing._possibly_shared((0, 1), Counted.fromkeys(pairs)) == {(), (0,), (1,), (0, 1)}
    assert drawing._possibly_shared((0, 1, 2), [(0, 1, 2), (1, 2, 5), (7,)]) == {(0, 1, 2), (1, 2), ()}
