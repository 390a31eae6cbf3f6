"""From records to published tables: names, labels, refusals, margins, files and statements."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

import dualmech as dm
from dualmech import accounting, fast
from dualmech.display import rounded_up
from dualmech.publishing.publication import Publication
from dualmech.publishing.release import plan
from dualmech.publishing.statement import digest

PEOPLE = dm.Schema(
    {
        "age": range(17, 23),
        "sex": ["female", "male"],
        "hours": {"bins": [0, 20, 40, 60], "column": "hours-per-week", "missing": ["?", ""]},
    }
)
ASKED = dm.workloads.union(
    PEOPLE, {"ages": {"age": dm.workloads.prefix(6)}, "cells": ["age", "sex"], "hours": ["hours"]}
)
RECORDS = """sex,hours-per-week,age
female, 19.5,17
male,?,22
male,60,20
female,20,20
"""


def silent(deviation: float, count: int) -> Any:
    return np.array([0] * count, dtype=object)


def published(problem: Any, records: Any, noise: Any = silent) -> Publication:
    """Return what a release would publish, with noise of our own."""
    drawn, asked = plan(fast.solve(problem, tol=1e-4))
    return Publication(drawn, drawn.draw(drawn.read(records, asked.domain, False), noise), asked)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "records.csv"
    found.write_text(RECORDS)
    return found


class TestRecords:
    def test_columns_and_values_are_matched_by_name(self, path: Path) -> None:
        tables = dm.records.count(path, dm.workloads.marginals(PEOPLE, ways=(1, 2)))
        assert tables[0, 1].tolist() == [[1, 0], [0, 0], [0, 0], [1, 1], [0, 0], [0, 1]]
        assert tables[1, 2].tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_csv(path, skipinitialspace=True, na_values=["?"])
        for shown in (frame, frame[["age", "hours-per-week", "sex"]]):
            again = dm.records.count(shown, dm.workloads.marginals(PEOPLE, ways=(1, 2)))
            assert all(np.array_equal(tables[axes], again[axes]) for axes in tables)
        with pytest.raises(
            dm.errors.InvalidInputError, match=r"record 3: 'sex' must be one of 'female', 'male', got 'other'"
        ):
            dm.records.count(frame.assign(sex=["male", "male", "other", "male"]), ASKED_TABLES)
        with pytest.raises(dm.errors.InputTypeError, match="matched by the names of columns"):
            dm.records.count([[17, 0, 1]], ASKED_TABLES)

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("other,20,17", "'sex' must be one of 'female', 'male', got 'other'"),
            ("male,61,17", "'hours-per-week' must be a number from 0 to 60, got '61'"),
            ("male,20,16", "'age' must be a whole number from 17 to 22, got '16'"),
            ("male,20,17.5", "'age' must be a whole number from 17 to 22, got '17.5'"),
            ("male,20,", "'age' must be a whole number from 17 to 22, got ''"),
        ],
    )
    def test_unknown_values_are_refused_with_row_and_column(self, path: Path, line: str, told: str) -> None:
        path.write_text(f"{RECORDS}{line}\n")
        with pytest.raises(dm.errors.FileFormatError, match="line 6") as caught:
            dm.records.count(path, ASKED_TABLES)
        assert told in str(caught.value)

    def test_columns_must_be_there(self, path: Path) -> None:
        path.write_text("sex,hours,age\nmale,20,17\n")
        with pytest.raises(dm.errors.FileFormatError, match="must name the attribute 'hours-per-week'"):
            dm.records.count(path, ASKED_TABLES)


ASKED_TABLES = dm.workloads.marginals(PEOPLE, ways=1)


class TestSchema:
    def test_numbers_beyond_the_ends(self) -> None:
        held = dm.Schema({"age": {"from": 0, "to": 9, "clamp": True}, "pay": {"bins": [0.5, 1, 2], "clamp": True}})
        age, pay = held.attribute(0), held.attribute(1)
        assert [age.code(text) for text in ("-3", "0", "12", "x", "nan")] == [0, 0, 9, None, None]
        assert [pay.code(text) for text in ("0", "0.99", "1", "2", "9")] == [0, 0, 1, 1, 1]

    @pytest.mark.parametrize(
        ("spec", "told"),
        [
            ({"a": {"label": ["x"]}}, "did you mean labels"),
            ({"a": {"labels": ["x"], "size": 2}}, "exactly one of"),
            ({"a": {"from": 3}}, "exactly one of"),
            ({"a": {"from": 3, "to": 2}}, "must be at least 3"),
            ({"a": {"labels": ["x", "x"]}}, "all distinct"),
            ({"a": {"labels": ["x", "?"], "missing": "?"}}, "none of them a text for missing"),
            ({"a": {"bins": [0, 0]}}, "increasing edges"),
            ({"a": {"size": 2, "clamp": True}}, "which the option clamp is not for"),
            ({"a": range(0, 9, 2)}, "step 1"),
            ({"a": True}, "must be a size"),
            ({"a": 1.5}, "must be a size"),
            ({}, "one or more attributes"),
        ],
    )
    def test_refusals_name_the_attribute(self, spec: Any, told: str) -> None:
        with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError)) as caught:
            dm.Schema(spec)
        assert told in str(caught.value)

    def test_files_keep_it(self, tmp_path: Path) -> None:
        answer = fast.solve(dm.FitnessForUse(ASKED, 1.0), tol=1e-3)
        dm.save(answer, tmp_path / "plan.npz")
        again = dm.load(tmp_path / "plan.npz")
        assert again.problem.workload.domain == PEOPLE and again == answer
        assert dm.Schema.of_json(PEOPLE.to_json()) == PEOPLE != dm.Domain(PEOPLE.sizes)
        marginals = fast.solve(dm.FitnessForUse(dm.workloads.marginals(PEOPLE, ways=1), 1.0))
        dm.save(marginals, tmp_path / "ways.npz")
        assert dm.load(tmp_path / "ways.npz").problem.workload.domain == PEOPLE
        dm.save(marginals.mechanism, tmp_path / "mechanism.npz")
        assert dm.load(tmp_path / "mechanism.npz").domain == PEOPLE

    def test_queries_are_described_by_values(self) -> None:
        age, sex, hours = (PEOPLE.attribute(axis) for axis in range(3))
        assert age.describe([3]) == "age = 20" and age.describe([1, 2]) == "18 ≤ age ≤ 19"
        assert age.describe([4, 5]) == "age ≥ 21" and age.describe([0, 5]) == "age = 17 or 22"
        assert age.describe([0, 1, 3, 5]) is None and sex.describe([0, 1]) == "any sex"
        assert hours.describe([0, 1]) == "hours < 40" and hours.describe([1, 2]) == "hours ≥ 20"
        assert hours.describe([1]) == "hours = [20, 40)" and hours.label(3) == "missing"
        assert hours.describe([2, 3]) == "hours = [40, 60] or missing"


class TestPublication:
    def test_estimates_labels_and_margins(self, path: Path) -> None:
        found = published(dm.FitnessForUse(ASKED, {"ages": 1.0, "cells": 4.0, "hours": 2.0}), path)
        assert found.tables == ("ages", "cells", "hours")
        heading, rows = found.rows("ages")
        table = [*rows]
        assert heading == ("age", "estimate", "margin", "low", "high")
        assert [row[0] for row in table] == [*(f"age ≤ {age}" for age in range(17, 23))]
        assert np.allclose([row[1] for row in table], [1, 1, 1, 3, 3, 4], atol=1e-6)
        assert table[0][2] == pytest.approx(-scipy.special.ndtri(0.025), rel=1e-5)
        assert [row[:2] for row in found.rows("cells")[1]][:3] == [("17", "female"), ("17", "male"), ("18", "female")]
        assert [row[0] for row in found.rows("hours")[1]] == ["[0, 20)", "[20, 40)", "[40, 60]", "missing"]
        several = found.margins("hours", simultaneous=True)
        level = 0.95 ** (1 / 22)
        expected = -scipy.special.ndtri((1 - level) / 2) * np.sqrt(found.variances("hours"))
        assert np.allclose(several, expected) and np.all(several > found.margins("hours"))
        with pytest.raises(dm.errors.InvalidInputError, match="did you mean cells"):
            found.estimates("cell")

    def test_a_frame_says_the_same(self, path: Path) -> None:
        pytest.importorskip("pandas")
        found = published(dm.FitnessForUse(ASKED, 1.0), path)
        frame = found.frame("cells")
        assert frame.columns.tolist() == ["age", "sex", "estimate", "margin", "low", "high"]
        assert np.allclose(frame.estimate, found.estimates("cells").ravel())

    @pytest.mark.parametrize("geometry", ["blocks", "dense"])
    def test_derived_queries_have_the_joint_noise(self, path: Path, geometry: str) -> None:
        found = published(dm.FitnessForUse(ASKED, 1.0, geometry=geometry), path)
        if geometry == "blocks":
            estimate, variance = found.estimate({"age": [1, 1, 0, 0, 0, 0], "sex": [0, 1]})
            assert estimate == pytest.approx(0, abs=1e-6)
            return
        row = np.zeros(PEOPLE.shape)
        row[:2, 1] = 1
        estimates, variances = found.estimate(dm.Workload(row.reshape(1, -1)))
        dense = found.drawn.mechanism.variances(dm.Workload(row.reshape(1, -1)))
        assert np.allclose(estimates, 0, atol=1e-6) and np.allclose(variances, dense)

    def test_privacy_is_that_of_rho_and_never_less(self, path: Path) -> None:
        found = published(dm.FitnessForUse(ASKED, 1.0), path)
        assert isinstance(found.rho, Fraction) and Fraction(rounded_up(found.rho)) >= found.rho
        assert found.epsilon(1e-6) == accounting.zcdp_epsilon(rounded_up(found.rho), 1e-6)
        assert found.epsilon(1e-6) > found.drawn.mechanism.epsilon(1e-6)
        assert 0 < found.delta(1.0) < 1
        assert found.rho <= Fraction(found.rho_text) < found.rho * (1 + Fraction(1, 10**9))

    def test_files_are_there_whole_or_not_at_all(self, path: Path, tmp_path: Path) -> None:
        found = published(dm.FitnessForUse(ASKED, 1.0), path)
        names = found.write(tmp_path / "out", level=0.9)
        assert names == ["1_ages.csv", "2_cells.csv", "3_hours.csv", "tables.csv", "STATEMENT.md"]
        assert {each.name for each in (tmp_path / "out").iterdir()} == {*names}
        with (tmp_path / "out" / "2_cells.csv").open() as handle:
            lines = [*csv.reader(handle)]
        assert lines[0] == ["age", "sex", "estimate", "margin", "low", "high"] and len(lines) == 13
        with pytest.raises(dm.errors.FileFormatError):
            found.write(tmp_path / "out")
        with pytest.raises(dm.errors.InvalidInputError, match="level"):
            found.write(tmp_path / "other", level=95)
        assert not (tmp_path / "other").exists()

    @pytest.mark.parametrize("letter", ["\r", "\n", '"', ",", "\t", "\u2028"])
    def test_no_label_begins_a_line_or_a_formula(self, tmp_path: Path, letter: str) -> None:
        labels = [f"a{letter}=1+1", "=2", "\ufeff=3", "\uff1d4"]
        records = tmp_path / "records.csv"
        with records.open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle, quoting=csv.QUOTE_ALL).writerows([["kind"], *([each] for each in labels)])
        asked = dm.workloads.marginals(dm.Schema({"kind": labels}), ways=1)
        published(dm.FitnessForUse(asked, 1.0), records).write(tmp_path / "out")
        with (tmp_path / "out" / "1_kind.csv").open(encoding="utf-8", newline="") as handle:
            _, *lines = csv.reader(handle)
        assert [line[0] for line in lines] == [labels[0], *(f"'{each}" for each in labels[1:])]
        assert all(float(line[1]) == pytest.approx(1) for line in lines)

    def test_the_statement_says_what_is_protected(self, path: Path) -> None:
        found = published(dm.FitnessForUse(ASKED, 1.0, neighbours="replace:2"), path)
        text = found.statement()
        for words in (
            "up to 2 records of one person have other values",
            f"{found.rho.numerator}/{found.rho.denominator}" if len(str(found.rho)) < 60 else "a fraction of",
            f"SHA-256 {digest(ASKED)}",
            "| cells | 12 |",
            "Limits of the guarantee",
        ):
            assert words in text, words
        other = dm.workloads.union(PEOPLE, {"ages": {"age": dm.workloads.prefix(6)}, "cells": ["age", "sex"]})
        assert digest(ASKED) == digest(ASKED) != digest(other)


class TestRelease:
    def test_refusals_come_before_records_are_read(self) -> None:
        asked = dm.Workload(dm.workloads.prefix(4).dense(), domain=dm.Domain({"x": 4}))
        answer = fast.solve(dm.FitnessForUse(asked, 1.0), tol=1e-4)
        nowhere: Any = "no such file.csv"
        unreadable = object()
        for given, told in (
            ({"rng": 0}, "takes no rng"),
            ({"seed": 1}, "takes no seed"),
            ({"rho": "1/1000"}, r"scaled\("),
            ({"rho": "x"}, "rho must be"),
            ({"rho": 0}, "rho must be"),
            ({"rho": "-1/2"}, "rho must be positive"),
        ):
            with pytest.raises(dm.errors.DualmechError, match=told):
                dm.release(answer, unreadable, **given)
        with pytest.raises(dm.errors.InputTypeError, match="workload must name"):
            dm.release(answer.mechanism, np.ones(4))
        local: Any = dm.LocalMechanism([[0.7, 0.3], [0.3, 0.7]], 1.0, dm.workloads.identity(2))
        with pytest.raises(dm.errors.InputTypeError, match="each person runs it"):
            dm.release(local, np.ones(2), workload=dm.workloads.identity(2))
        for columns in (dm.workloads.prefix(4), dm.workloads.identity(4)):
            with pytest.raises(dm.errors.InputTypeError, match="no domain"):
                dm.release(fast.solve(dm.FitnessForUse(columns, 1.0), tol=1e-4), nowhere)

    def test_what_the_message_says_to_scale_by_is_enough(self) -> None:
        pytest.importorskip("opendp")
        mechanism = fast.solve(dm.FitnessForUse(dm.workloads.prefix(4), 1.0), tol=1e-4).mechanism
        with pytest.raises(dm.errors.InvalidInputError) as caught:
            dm.release(mechanism, np.ones(4), workload=dm.workloads.prefix(4), rho="1/7")
        factor = float(str(caught.value).rpartition("scaled(")[2].rstrip(")"))
        found = dm.release(mechanism.scaled(factor), np.ones(4), workload=dm.workloads.prefix(4), rho="1/7")
        assert Fraction(1, 7) >= found.rho > Fraction(1, 7) * Fraction(9999, 10000)
