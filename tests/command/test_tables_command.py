"""Tables of large domains, lists of the census and circles of values, on the command line and in files."""

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
from dualmech.command.inputs import labels, read_numbers, read_workload
from dualmech.errors import DualmechError

FIVE = "marginals:10x10x10x10x10:1,2"
SIXTY = f"marginals:{'x'.join(['10'] * 60)}:1,2"
SMALL = "sex_by_age:0,0"


def rows(result: Result) -> dict[str, list[str]]:
    found = (re.split(" {2,}", line.strip()) for line in result.output.splitlines())
    return {row[0]: row[1:] for row in found if len(row) > 4 and row[0] != "table"}


class TestSolve:
    def test_sixty_attributes(self, tmp_path: Path) -> None:
        path = tmp_path / "answer.npz"
        result = run("solve", SIXTY, "-o", str(path))
        assert result.exit_code == 0
        for printed in ("CERTIFIED: rho (zCDP) 617.4093", "1-way", "1770", "1831 blocks are measured"):
            assert printed in result.output
        again = dm.load(path)
        assert again.status is dm.Status.CERTIFIED and again.objective == pytest.approx(1234.818652, rel=1e-6)

    def test_targets_by_table_and_by_ways(self, tmp_path: Path) -> None:
        path = tmp_path / "targets.csv"
        path.write_text("table,target\n1,4\na1 x a0,2.5\n\n2,25\n", encoding="utf-8")
        result = run("solve", FIVE, "--targets", str(path))
        found = {name: row[1] for name, row in rows(result).items()}
        assert result.exit_code == 0
        assert found["a0"] == "4" and found["a0 x a1"] == "2.5" and found["a3 x a4"] == "25"

    def test_targets_by_the_names_that_reports_print(self, tmp_path: Path) -> None:
        path = tmp_path / "targets.csv"
        for name, text in ((SIXTY, "1-way,4\n2-way,25\n"), ("circular_ranges:101", "translates,2\n")):
            path.write_text(f"table,target\n{text}", encoding="utf-8")
            result = run("solve", name, "--targets", str(path))
            given = dict(line.split(",") for line in text.split())
            assert result.exit_code == 0 and {name: rows(result)[name][1] for name in given} == given

    def test_a_table_says_nothing_of_those_that_begin_with_its_name(self, tmp_path: Path) -> None:
        path, asked = tmp_path / "targets.csv", dm.workloads.marginals([2, 3], ways=(1, 2))
        path.write_text("a0,3\n1,4\n2,25\n", encoding="utf-8")
        assert read_numbers(str(path), "targets", asked) == {"a0": 3.0, 1: 4.0, 2: 25.0}

    def test_a_table_of_its_own_name_is_no_number_of_ways(self, tmp_path: Path) -> None:
        path, asked = tmp_path / "targets.csv", dm.workloads.marginals({"1-way": 2, "b": 3}, ways=(1, 2))
        path.write_text("1-way,4\nb,5\n2-way,6\n", encoding="utf-8")
        assert read_numbers(str(path), "targets", asked) == {"1-way": 4.0, "b": 5.0, 2: 6.0}

    def test_targets_as_a_vector_and_as_margins(self, tmp_path: Path) -> None:
        vector, margins = tmp_path / "targets.csv", tmp_path / "margins.csv"
        vector.write_text("\n".join(["4.0"] * 5 + ["25.0"] * 10), encoding="utf-8")
        margins.write_text("1,2\n2,5\n", encoding="utf-8")
        by_vector, by_margin = (
            run("solve", FIVE, option, str(path), "--z", "1")
            for option, path in (("--targets", vector), ("--moe", margins))
        )
        assert by_vector.exit_code == by_margin.exit_code == 0
        assert by_vector.output.splitlines()[0] == by_margin.output.splitlines()[0]
        assert "share" in run("solve", FIVE, "--moe", "5").output

    @pytest.mark.parametrize("asked", [(FIVE,), ("circular_ranges:12", "--moe", "5")])
    def test_both_layers(self, asked: tuple[str, ...]) -> None:
        ours, theirs = run("solve", *asked), run("solve", *asked, "--layer", "reference")
        assert ours.exit_code == theirs.exit_code == 0
        first, second = (float(each.output.split("(zCDP) ")[1].split(",")[0]) for each in (ours, theirs))
        assert first == pytest.approx(second, rel=1e-5)

    # W'W of all differences of 300 has 299 eigenvalues of 300: the least total at cost 1 is (299 √300)² / 300.
    @pytest.mark.parametrize(("name", "total"), [(FIVE, "48621.6869"), ("differences:300", f"{299**2 / 0.2:.9g}")])
    def test_total_variance_spends_what_it_is_told(self, name: str, total: str) -> None:
        result = run("solve", name, "--problem", "variance", "--rho", "0.1")
        assert result.exit_code == 0
        assert f"total variance {total} at rho = 0.1" in result.output
        assert is_close_above(number_after("Privacy: rho = ", result.output), "0.1")

    def test_privacy_first_spends_what_it_is_told(self, tmp_path: Path) -> None:
        plain = fast.solve(dm.FitnessForUse(dm.workloads.marginals([10] * 5, ways=(1, 2)), {1: 1.0, 2: 3.0}))
        path, targets = tmp_path / "answer.npz", tmp_path / "targets.csv"
        targets.write_text("1,1\n2,3\n", encoding="utf-8")
        for option, cost in ((("--rho", "0.1"), 0.2), (("--epsilon", "1", "--delta", "1e-6"), None)):
            result = run("solve", FIVE, "--targets", str(targets), *option, "-o", str(path))
            spent = 2 * dm.accounting.zcdp_rho(1.0, 1e-6) if cost is None else cost
            assert result.exit_code == 0
            printed = float(result.output.split("CERTIFIED: factor on the targets ")[1].split(",")[0])
            assert printed == pytest.approx(plain.objective / spent, rel=1e-8)
            again = dm.load(path)
            assert isinstance(again.problem, dm.PrivacyFirst) and again.status is dm.Status.CERTIFIED
            assert again.mechanism.squared_privacy_cost == pytest.approx(spent, rel=1e-12)
            assert again.gap == pytest.approx(plain.gap, rel=1e-3, abs=1e-12)
            np.testing.assert_allclose(again.prices, plain.prices)
        theirs = run("solve", FIVE, "--rho", "0.1", "--layer", "reference")
        assert theirs.exit_code == 0 and "factor on the targets 55.77" in theirs.output

    def test_the_geometry_is_said_and_can_be_named(self) -> None:
        assert "geometry: blocks" in run("solve", "marginals:4x4:1,2").output
        dense = run("solve", "marginals:4x4:1,2", "--geometry", "dense")
        assert "geometry: dense" in dense.output and "Queries by group" in dense.output
        replaced = run("solve", "marginals:4x4:1,2", "--neighbours", "replace")
        assert "geometry: blocks" in replaced.output
        refused = run("solve", "marginals:4x4:1,2", "--geometry", "split")
        assert "geometry 'split' takes" in str(refused.exception)

    def test_a_large_problem_is_explained(self) -> None:
        result = run("explain", SIXTY)
        assert result.exit_code == 0
        assert "1831 blocks" in result.output and "(squared privacy cost) is 1234.81865" in result.output

    @pytest.mark.parametrize(
        ("name", "message", "text"),
        [
            (FIVE, "line 1 must name a table such as 'a0'", "a9,4\n"),
            (FIVE, "line 2 must name a table such as 'a0'", "1,4\na0 x a0,4\n2,4\n"),
            (FIVE, "line 3 names 'a0 x a1' a second time", "1,4\na0 x a1,4\na1 x a0,5\n2,4\n"),
            (FIVE, "line 2: must be a name and a number", "1,4\n2,many\n"),
            (FIVE, "line 2: must be a name and a number", "1,4\n2,4,4\n"),
            (FIVE, "line 3 names '1' a second time", "1,4\n2,4\n1,5\n"),
            (FIVE, "line 3 names '1' a second time", "1,4\n2,4\n1-way,5\n"),
            (FIVE, "line 1 must name a table such as 'a0'", "one-way,4\n"),
            (FIVE, "targets must name every table", "1,4\n"),
            (FIVE, "targets must name tables of the workload, got 3-way", "1,4\n2,4\n3,4\n"),
            (FIVE, "must be positive", "1,4\n2,-4\n"),
            (SMALL, "line 2 must name a table such as 'P12', or its ways, got 'P13'", "P12,4\nP13,4\n"),
            (SMALL, "line 3 names 'P12' a second time", "table,target\nP12,4\nP12,4\n"),
            (SMALL, "line 2: must be a name and a number", "P12,4\nP12 by age,x\n"),
            (SMALL, "by its name, its attributes or its ways; 'P12' is not", "P12 by age,4\n"),
            (SMALL, "must be positive", "P12,-4\n"),
        ],
    )
    def test_bad_targets_are_refused_by_line(self, tmp_path: Path, name: str, message: str, text: str) -> None:
        path = tmp_path / "targets.csv"
        path.write_text(text, encoding="utf-8")
        result = run("solve", name, "--targets", str(path))
        assert isinstance(result.exception, DualmechError) and message in str(result.exception)

    @pytest.mark.parametrize(
        ("message", "arguments"),
        [
            ("are supported query by query", ("solve", FIVE, "--refine")),
            ("are supported query by query", ("solve", FIVE, "--geometry", "dense")),
            ("neighbours must be add-remove, replace", ("solve", FIVE, "--neighbours", "rename")),
            ("are supported query by query", ("judge", FIVE, "--covariance", "mine.npy")),
            ("are solved by table", ("solve", SIXTY, "--problem", "weighting")),
            ("are solved by table", ("solve", FIVE, "--problem", "softmax", "--t1", "9")),
            ("cannot be read", ("solve", FIVE, "--targets", "missing.csv")),
            ("are solved by table", ("judge", "census_tables", "--covariance", "mine.npy")),
            ("are solved by table", ("solve", "census_tables", "--refine")),
            ("are solved by table", ("solve", "census_tables", "--problem", "weighting")),
            ("too large for a dense matrix", ("solve", "circular_ranges:1000", "--geometry", "dense")),
            ("rho must be positive", ("solve", SMALL, "--rho", "-1")),
        ],
    )
    def test_what_does_not_go_together_is_said(self, message: str, arguments: tuple[str, ...]) -> None:
        result = run(*arguments)
        assert isinstance(result.exception, DualmechError) and message in str(result.exception)


class TestCircles:
    def test_hundreds_of_values(self, tmp_path: Path) -> None:
        path = tmp_path / "answer.npz"
        result = run("solve", "circular_ranges:400", "--targets", "1", "-o", str(path))
        assert result.exit_code == 0
        for printed in ("CERTIFIED: rho (zCDP) 6.3605", "geometry: blocks", "201 blocks", "same"):
            assert printed in result.output
        again = dm.load(path)
        assert again.status is dm.Status.CERTIFIED and again.problem.workload.shape == (399 * 400 + 1, 400)

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


def test_a_judge_takes_a_solution_of_tables(tmp_path: Path) -> None:
    path = tmp_path / "answer.npz"
    assert run("solve", FIVE, "-o", str(path)).exit_code == 0
    result = run("judge", FIVE, "--covariance", str(path))
    assert result.exit_code == 0 and "FEASIBLE: rho (zCDP) 5.577" in result.output
    loose = run("judge", FIVE, "--covariance", str(path), "--targets", "2")
    assert loose.exit_code == 3 and "loose targets: 15 of 15" in loose.output


def test_a_solution_of_a_huge_domain_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "answer.npz"
    workload = dm.workloads.marginals({"age": 1000, "sex": 2, "race": 63, "place": 10**9}, ways=(0, 2))
    answer = fast.solve(dm.TotalVariance(workload, np.arange(1.0, 1 + len(workload.axes))))
    dm.save(answer, path)
    again = dm.load(path)
    assert again.problem.workload.sets == workload.sets
    assert again.certificate == answer.certificate and again.mechanism.noise == answer.mechanism.noise


class TestNeighbours:
    """An answer in a file is explained, and judged, under the neighbours that it was made for."""

    WORKLOADS = ("prefix:4", "marginals:3x4:1,2", "circular_ranges:5")
    RULES = ("replace:1", "replace:2", "add-remove:3")

    @pytest.mark.parametrize(("name", "rule"), [*zip(WORKLOADS * 2, (*RULES, *RULES[1:], RULES[0]), strict=True)])
    def test_those_of_the_file_are_said_and_hold(self, tmp_path: Path, name: str, rule: str) -> None:
        path = str(tmp_path / "answer.npz")
        solved = run("solve", name, "--neighbours", rule, "-o", path)
        explained = run("explain", path)
        assert f"Neighbours: {rule}." in explained.output and f"Neighbours: {rule}." in solved.output
        for more in ((), ("--neighbours", rule), ("--neighbours", rule.removesuffix(":1"))):
            judged = run("judge", name, "--covariance", path, *more)
            assert judged.exit_code == 0 and f"Neighbours: {rule}." in judged.output
            assert f"rho (zCDP) {dm.load(path).objective / 2:.6g}"[:-1] in judged.output

    def test_persons_in_several_months(self, tmp_path: Path) -> None:
        name, rule, path = "marginals:4x3:1,2", "contributions:a0:2:3", str(tmp_path / "answer.npz")
        solved, explained = run("solve", name, "--neighbours", rule, "-o", path), run("explain", path)
        assert "geometry: blocks" in solved.output
        judged = run("judge", name, "--covariance", path)
        assert all(f"Neighbours: {rule}." in each.output for each in (solved, explained, judged))
        proved = run("solve", name, "--neighbours", rule, "--prove", str(tmp_path / "proof.json"))
        assert "Proven in exact arithmetic" in proved.output
        unknown = run("solve", name, "--neighbours", "contributions:b:2:3")
        assert "must name an attribute of the domain" in str(unknown.exception)

    @pytest.mark.parametrize("name", WORKLOADS)
    def test_the_default_is_not_said(self, tmp_path: Path, name: str) -> None:
        path = str(tmp_path / "answer.npz")
        assert "Neighbours" not in run("solve", name, "-o", path).output
        assert "Neighbours" not in run("explain", path).output
        for more in ((), ("--neighbours", "add-remove")):
            judged = run("judge", name, "--covariance", path, *more)
            assert judged.exit_code == 0 and "Neighbours" not in judged.output

    @pytest.mark.parametrize("name", WORKLOADS)
    @pytest.mark.parametrize(
        ("own", "asked"), [("replace", "add-remove"), ("add-remove", "replace"), ("replace", "replace:2")]
    )
    def test_others_are_refused_by_both_names(self, tmp_path: Path, name: str, own: str, asked: str) -> None:
        path = str(tmp_path / "answer.npz")
        assert run("solve", name, "--neighbours", own, "-o", path).exit_code == 0
        refused = run("judge", name, "--covariance", path, "--neighbours", asked).exception
        said = f"neighbours must be {own}:1 as for the answer in {path}, or left out, got {asked}"
        assert isinstance(refused, dm.errors.InvalidInputError) and said in str(refused)

    def test_matrices_strategies_and_mechanisms(self, tmp_path: Path) -> None:
        moves, path = np.eye(4) - np.roll(np.eye(4), 1, axis=0), str(tmp_path / "answer.npz")
        np.save(tmp_path / "moves.npy", moves)
        own = ("--neighbours", str(tmp_path / "moves.npy"))
        weighting = ("prefix:4", "--problem", "weighting", "--design", "identity")
        assert run("solve", *weighting, *own, "-o", path).exit_code == 0
        for arguments in (
            ("judge", *weighting, "--query-weights", path),
            ("judge", "prefix:4", "--problem", "variance", "--strategy", path),
            ("explain", path),
        ):
            assert "Neighbours: a matrix of 4 differences over 4 cells." in run(*arguments).output
        assert run("judge", *weighting, "--query-weights", path, *own).exit_code == 0
        made = dm.LinearGaussianMechanism(np.eye(4), np.eye(4), dm.neighbours.replace_one(4))
        dm.save(made, path)
        judged = run("judge", "prefix:4", "--targets", "4", "--covariance", path)
        assert "Neighbours: replace:1." in judged.output and "rho (zCDP) 1\n" in judged.output
        refused = run("judge", "prefix:4", "--covariance", path, *own).exception
        assert "or left out, got a matrix of 4 differences" in str(refused)

    @pytest.mark.parametrize(
        "neighbours", [np.zeros((0, 0)), np.ones(4), np.full((4, 4), np.nan), np.array("rename"), np.array(3.0)]
    )
    def test_a_file_that_lies_about_them_is_refused(self, tmp_path: Path, neighbours: np.ndarray) -> None:
        path = str(tmp_path / "answer.npz")
        assert run("solve", "prefix:4", "-o", path).exit_code == 0
        arrays = {key: value for key, value in np.load(path).items() if key != "digest"}
        np.savez(path, **(arrays | {"neighbours": neighbours}))
        refused = run("judge", "prefix:4", "--covariance", path).exception
        assert isinstance(refused, DualmechError) and "neighbours" in str(refused)

    def test_a_bare_covariance_has_no_say(self, tmp_path: Path) -> None:
        np.save(tmp_path / "mine.npy", np.eye(4))
        for rule in ("replace:1", "add-remove:2"):
            judged = run(
                "judge", "prefix:4", "--targets", "4", "--covariance", str(tmp_path / "mine.npy"), "--neighbours", rule
            )
            assert f"Neighbours: {rule}." in judged.output
