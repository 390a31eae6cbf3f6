"""Lists of the census and circles of values on the command line, solved and reported by table."""

import re
from pathlib import Path

import numpy as np
import pytest
from commanded import run_wide as run
from printed import is_close_above, number_after
from typer.testing import Result

import dualmech as dm
from dualmech import fast
from dualmech.command.answers import _tables_by_name
from dualmech.command.inputs import labels, read_workload
from dualmech.errors import DualmechError

SMALL = "sex_by_age:0,0"


def rows(result: Result) -> dict[str, list[str]]:
    found = (re.split(" {2,}", line.strip()) for line in result.output.splitlines())
    return {row[0]: row[1:] for row in found if len(row) > 4 and row[0] != "table"}


class TestCircles:
    def test_hundreds_of_values(self, tmp_path: Path) -> None:
        path = tmp_path / "answer.npz"
        result = run("solve", "circular_ranges:400", "--targets", "1", "-o", str(path))
        assert result.exit_code == 0
        for printed in ("CERTIFIED: rho (zCDP) 6.3605", "geometry: blocks", "201 blocks", "same"):
            assert printed in result.output
        again = dm.load(path)
        assert again.status is dm.Status.CERTIFIED and again.problem.workload.shape == (399 * 400 + 1, 400)

    def test_total_variance_spends_what_it_is_told(self) -> None:
        result = run("solve", "differences:300", "--problem", "variance", "--rho", "0.1")
        # W'W has the eigenvalue 300 for 299 times, so that the least total at cost 1 is (299 √300)² / 300.
        assert result.exit_code == 0
        assert f"total variance {299**2 / 0.2:.9g} at rho = 0.1" in result.output
        assert is_close_above(number_after("Privacy: rho = ", result.output), "0.1")

    def test_small_circles_are_taken_by_query_where_they_must_be(self, tmp_path: Path) -> None:
        np.save(tmp_path / "moves.npy", np.eye(4) - np.roll(np.eye(4), 1, axis=0))
        listed = run("solve", "differences:4", "--neighbours", str(tmp_path / "moves.npy"))
        assert listed.exit_code == 0 and "Queries by group" in listed.output
        np.save(tmp_path / "mine.npy", np.eye(4))
        judged = run("judge", "differences:4", "--covariance", str(tmp_path / "mine.npy"), "--targets", "2")
        assert "optimum at least" in judged.output


class TestCensus:
    def test_targets_by_published_table(self, tmp_path: Path) -> None:
        targets, path = tmp_path / "targets.csv", tmp_path / "answer.npz"
        targets.write_text("table,target\nP1,1\nP2 by race,9\nP2,2\nP3,4\nP4,4\nP5,1\n", encoding="utf-8")
        result = run("solve", "census_redistricting", "--targets", str(targets), "-o", str(path))
        assert result.exit_code == 0 and "kinds of records bind; 8 blocks" in result.output
        shown = {name: row[1] for name, row in rows(result).items()}
        expected = {"P1": 1, "P2": 2, "P2 by race": 9, "P3": 4, "P4": 4, "P4 by race": 4, "P5": 1}
        assert shown == {name: str(number) for name, number in expected.items()}
        again = dm.load(path)
        assert dict(zip(labels(again.problem.workload) or [], again.problem.targets, strict=True)) == expected
        assert again.status is dm.Status.CERTIFIED

    def test_privacy_first_spends_what_it_is_told(self, tmp_path: Path) -> None:
        plain = fast.solve(dm.FitnessForUse(dm.workloads.sex_by_age(False, False), 2.0))
        path = tmp_path / "answer.npz"
        result = run("solve", SMALL, "--targets", "2", "--rho", "0.05", "-o", str(path))
        assert result.exit_code == 0
        printed = float(result.output.split("CERTIFIED: factor on the targets ")[1].split(",")[0])
        assert printed == pytest.approx(plain.objective / 0.1, rel=1e-8)
        again = dm.load(path)
        assert again.mechanism.rho == pytest.approx(0.05, rel=1e-12)
        np.testing.assert_allclose(again.problem.targets, plain.problem.targets)
        assert again.gap == pytest.approx(plain.gap, rel=1e-3, abs=1e-12)
        np.testing.assert_allclose(again.prices, plain.prices)

    def test_both_layers(self) -> None:
        asked = ("solve", "circular_ranges:12", "--moe", "5")
        ours, theirs = run(*asked), run(*asked, "--layer", "reference")
        assert ours.exit_code == theirs.exit_code == 0
        first, second = (float(each.output.split("(zCDP) ")[1].split(",")[0]) for each in (ours, theirs))
        assert first == pytest.approx(second, rel=1e-5)

    def test_weights_and_margins_by_table(self, tmp_path: Path) -> None:
        path = tmp_path / "numbers.csv"
        path.write_text("P12,4\nP12 by age,1\n", encoding="utf-8")
        result = run("solve", SMALL, "--problem", "variance", "--weights", str(path))
        assert result.exit_code == 0
        assert {name: row[1] for name, row in rows(result).items()} == {"P12": "4", "P12 by age": "1"}
        result = run("solve", SMALL, "--moe", str(path), "--z", "2")
        assert {name: row[1] for name, row in rows(result).items()} == {"P12": "4", "P12 by age": "0.25"}

    def test_many_tables_are_reported_by_their_publication(self) -> None:
        asked = read_workload("census_tables")
        listed = {name: len(inside) for name, inside in _tables_by_name(asked, asked)}
        assert listed == {"P1": 1, "P2": 2, "P3": 1, "P4": 2, "P5": 1, "P12": 20, "PCT12": 32}


class TestRefused:
    @pytest.mark.parametrize(
        ("message", "text"),
        [
            ("line 2 must name a table such as 'P12', or its ways, got 'P13'", "P12,4\nP13,4\n"),
            ("line 3 names 'P12' a second time", "table,target\nP12,4\nP12,4\n"),
            ("line 2: must be a name and a number", "P12,4\nP12 by age,x\n"),
            ("by its name, its attributes or its ways; 'P12' is not", "P12 by age,4\n"),
            ("must be positive", "P12,-4\n"),
        ],
    )
    def test_bad_targets_are_refused_by_line(self, tmp_path: Path, message: str, text: str) -> None:
        path = tmp_path / "targets.csv"
        path.write_text(text, encoding="utf-8")
        result = run("solve", SMALL, "--targets", str(path))
        assert isinstance(result.exception, DualmechError) and message in str(result.exception)

    @pytest.mark.parametrize(
        ("message", "arguments"),
        [
            ("are solved by table", ("judge", "census_tables", "--covariance", "mine.npy")),
            ("are solved by table", ("solve", "census_tables", "--refine")),
            ("are solved by table", ("solve", "census_tables", "--problem", "weighting")),
            ("too large to write out", ("solve", "circular_ranges:1000", "--geometry", "dense")),
            ("rho must be positive", ("solve", SMALL, "--rho", "-1")),
        ],
    )
    def test_what_does_not_go_together_is_said(self, message: str, arguments: tuple[str, ...]) -> None:
        result = run(*arguments)
        assert isinstance(result.exception, DualmechError) and message in str(result.exception)
