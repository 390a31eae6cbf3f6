"""Marginal tables of large domains on the command line and in files."""

import re
from pathlib import Path

import numpy as np
import pytest
from commanded import run_wide as run
from printed import is_close_above, number_after

import dualmech as dm
from dualmech import fast
from dualmech.command.inputs import read_numbers
from dualmech.errors import DualmechError

FIVE = "marginals:10x10x10x10x10:1,2"
SIXTY = f"marginals:{'x'.join(['10'] * 60)}:1,2"


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
        rows = [re.split(" {2,}", line.strip()) for line in result.output.splitlines()]
        found = {row[0]: row[2] for row in rows if len(row) > 4}
        assert result.exit_code == 0
        assert found["a0"] == "4" and found["a0 x a1"] == "2.5" and found["a3 x a4"] == "25"

    def test_targets_by_the_names_that_reports_print(self, tmp_path: Path) -> None:
        path = tmp_path / "targets.csv"
        for name, text in ((SIXTY, "1-way,4\n2-way,25\n"), ("circular_ranges:101", "translates,2\n")):
            path.write_text(f"table,target\n{text}", encoding="utf-8")
            result = run("solve", name, "--targets", str(path))
            rows = [re.split(" {2,}", line.strip()) for line in result.output.splitlines()]
            printed = {row[0]: row[2] for row in rows if len(row) > 4}
            given = dict(line.split(",") for line in text.split())
            assert result.exit_code == 0 and {name: printed[name] for name in given} == given

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

    def test_both_layers(self) -> None:
        ours, theirs = run("solve", FIVE), run("solve", FIVE, "--layer", "reference")
        assert ours.exit_code == theirs.exit_code == 0
        first, second = (float(each.output.split("(zCDP) ")[1].split(",")[0]) for each in (ours, theirs))
        assert first == pytest.approx(second, rel=1e-5)

    def test_total_variance_spends_what_it_is_told(self) -> None:
        result = run("solve", FIVE, "--problem", "variance", "--rho", "0.1")
        assert result.exit_code == 0
        assert "total variance 48621.6869 at rho = 0.1" in result.output
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
        ("message", "text"),
        [
            ("line 1 must name a table such as 'a0'", "a9,4\n"),
            ("line 2 must name a table such as 'a0'", "1,4\na0 x a0,4\n2,4\n"),
            ("line 3 names 'a0 x a1' a second time", "1,4\na0 x a1,4\na1 x a0,5\n2,4\n"),
            ("line 2: must be a name and a number", "1,4\n2,many\n"),
            ("line 2: must be a name and a number", "1,4\n2,4,4\n"),
            ("line 3 names '1' a second time", "1,4\n2,4\n1,5\n"),
            ("line 3 names '1' a second time", "1,4\n2,4\n1-way,5\n"),
            ("line 1 must name a table such as 'a0'", "one-way,4\n"),
            ("targets must name every table", "1,4\n"),
            ("targets must name tables of the workload, got 3-way", "1,4\n2,4\n3,4\n"),
            ("must be positive", "1,4\n2,-4\n"),
        ],
    )
    def test_bad_targets_are_refused_by_line(self, tmp_path: Path, message: str, text: str) -> None:
        path = tmp_path / "targets.csv"
        path.write_text(text, encoding="utf-8")
        result = run("solve", FIVE, "--targets", str(path))
        assert isinstance(result.exception, DualmechError) and message in str(result.exception)

    @pytest.mark.parametrize(
        ("message", "arguments"),
        [
            ("more than are taken query by query", ("solve", FIVE, "--refine")),
            ("more than are taken query by query", ("solve", FIVE, "--geometry", "dense")),
            ("neighbours must be add-remove, replace", ("solve", FIVE, "--neighbours", "rename")),
            ("more than are taken query by query", ("judge", FIVE, "--covariance", "mine.npy")),
            ("are solved by table", ("solve", SIXTY, "--problem", "weighting")),
            ("are solved by table", ("solve", FIVE, "--problem", "softmax", "--t1", "9")),
            ("cannot be read", ("solve", FIVE, "--targets", "missing.csv")),
        ],
    )
    def test_what_does_not_go_together_is_said(self, message: str, arguments: tuple[str, ...]) -> None:
        result = run(*arguments)
        assert isinstance(result.exception, DualmechError) and message in str(result.exception)


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
        assert "Proven in whole numbers" in proved.output
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
        said = f"neighbours must be those of the answer in {path}, {own}:1, or left out, got {asked}"
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
        assert "replace:1, or left out, got a matrix of 4 differences" in str(refused)

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
