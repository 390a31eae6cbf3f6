"""The ``dualmech`` command: what it says, its exit status, and what it leaves behind."""

import importlib.metadata
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest
from commanded import run
from printed import is_close_above, number_after
from typer.testing import Result

import dualmech as dm
from dualmech import fast
from dualmech.command import inputs
from dualmech.command import main as command
from dualmech.command.request import Request, UsageError
from dualmech.crosscheck.families import POSED

Main = Callable[..., tuple[int, str]]


@pytest.fixture
def status_and_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Main:
    """Run as a shell would, through `main`, so that our errors become one line and a status."""

    def main(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dualmech", *arguments])
        with pytest.raises(SystemExit) as left:
            command.main()
        return int(left.value.code or 0), capsys.readouterr().err

    return main


class TestSolve:
    def test_prints_groups_and_privacy(self) -> None:
        result = run("solve", "pl94", "--targets", "1", "--delta", "1e-6")
        assert result.exit_code == 0
        for words in ("CERTIFIED", "voting-age", "share of bill", "rho = 1.5067", "at delta = 1e-06"):
            assert words in result.output

    def test_writes_a_solution_that_is_judged_anew(self, tmp_path: Path) -> None:
        path = tmp_path / "prefix.npz"
        assert run("solve", "prefix:8", "-o", str(path)).exit_code == 0
        again = dm.load(path)
        assert again.status is dm.Status.CERTIFIED
        assert list(tmp_path.iterdir()) == [path]

    def test_reads_files_of_workload_and_targets(self, tmp_path: Path) -> None:
        (tmp_path / "w.csv").write_text("query,a,b\nleft,1,0\nboth,1,1\n")
        (tmp_path / "t.csv").write_text("1\n4\n")
        result = run("solve", str(tmp_path / "w.csv"), "--targets", str(tmp_path / "t.csv"))
        assert result.exit_code == 0
        assert "1 to 4" in result.output

    @pytest.mark.parametrize("layer", ["fast", "reference"])
    def test_refine_breaks_ties(self, layer: str, tmp_path: Path) -> None:
        (tmp_path / "w.csv").write_text("query,a,b\nwhole,1,0\nhalf,0,0.5\n")
        path = tmp_path / "refined.npz"
        result = run("solve", str(tmp_path / "w.csv"), "--refine", "--layer", layer, "-o", str(path))
        assert result.exit_code == 0
        assert "Stage 2: CERTIFIED, worst squared cost of 1 open neighbour 0.25" in result.output
        assert "up to 0.75 for 1 of 2 neighbours" in result.output
        profile = dm.load(path).mechanism.profile
        assert profile == pytest.approx([1, 0.25], rel=1e-6)

    def test_margins_of_error_are_targets(self) -> None:
        by_margin = run("solve", "prefix:4", "--moe", "3.29", "--z", "1.645")
        by_variance = run("solve", "prefix:4", "--targets", "4")
        assert by_margin.output.splitlines()[0] == by_variance.output.splitlines()[0]

    def test_privacy_first(self) -> None:
        assert "factor on the targets" in run("solve", "prefix:4", "--rho", "0.5").output
        asked = run("solve", "prefix:4", "--epsilon", "1", "--delta", "1e-6").output
        assert "at delta = 1e-06" in asked and is_close_above(number_after("(zCDP), epsilon = ", asked), 1)

    def test_rank_deficient_workloads_under_replacement_have_a_finite_price(self) -> None:
        result = run("solve", "marginals:3x3:0,1", "--neighbours", "replace")
        assert result.exit_code == 0
        assert "inf" not in result.output

    def test_names_are_text_and_never_markup(self, tmp_path: Path) -> None:
        (tmp_path / "w.csv").write_text("query,group,a,b\nx,[red]g[/red],1,0\n[bold],[/x],1,1\n")
        for command_name in ("solve", "explain"):
            result = run(command_name, str(tmp_path / "w.csv"))
            assert result.exit_code == 0
        assert "[bold]" in result.output

    def test_the_reference_layer(self) -> None:
        result = run("solve", "prefix:4", "--layer", "reference", "--backend", "SCS")
        assert result.exit_code == 0
        assert "reference:SCS" in result.output

    def test_what_is_free_is_said(self) -> None:
        result = run("solve", "identity_total:4", "--neighbours", "replace")
        assert result.exit_code == 0
        assert "Answered exactly at no cost (no neighbour changes them): total." in result.output

    def test_answered_but_not_certified_is_status_3(self) -> None:
        result = run("solve", "prefix:16", "--tol", "1e-16")
        assert result.exit_code == 3
        assert "CERTIFIED" not in result.output.splitlines()[0]
        assert result.output.splitlines()[-1].startswith("dualmech: status 3, not certified: gap ")


class TestJudge:
    def judge(self, path: Path, matrix: object, *options: object, given: str = "--covariance") -> Result:
        np.save(path / "mine.npy", matrix)  # type: ignore[arg-type]
        return run("judge", *(options or ("prefix:4",)), given, path / "mine.npy")

    def test_says_how_far_from_the_optimum_and_which_tolerance_would_be_met(self, tmp_path: Path) -> None:
        result = self.judge(tmp_path, np.eye(4) / 4)
        assert result.exit_code == 3
        for words in ("FEASIBLE: rho (zCDP) 2", "at most 127 %", "loose targets: 3 of 4"):
            assert words in result.output
        last = result.output.splitlines()[-1]
        assert last.endswith("gap 1.3e+00 proven, above the 1.0e-06 asked; --tol 1.3 would be met")
        assert self.judge(tmp_path, np.eye(4) / 4, "prefix:4", "--tol", "1.3").exit_code == 0
        assert "rho (zCDP) 2" in self.judge(tmp_path, 2 * np.eye(4), given="--strategy").output

    def test_an_optimum_is_status_0(self, tmp_path: Path) -> None:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(4), 1.0), tol=1e-8)
        assert self.judge(tmp_path, answer.primal).exit_code == 0
        dm.save(answer.mechanism, tmp_path / "mine.npz")
        assert run("judge", "prefix:4", "--covariance", tmp_path / "mine.npz").exit_code == 0
        single = self.judge(tmp_path, 1.0000001 * answer.primal.astype(np.float32), "prefix:4", "--tol", "1e-5")
        assert single.exit_code == 0 and "judged scaled to meet its constraints" in single.output

    def test_a_covariance_on_the_cells_of_a_rank_deficient_workload(self, tmp_path: Path) -> None:
        assert "rho (zCDP)" in self.judge(tmp_path, np.eye(4) / 4, "marginals:2x2:1").output
        refused = self.judge(tmp_path, np.eye(3), "marginals:2x2:1")
        assert isinstance(refused.exception, dm.errors.InvalidInputError)

    def test_infeasible_says_by_how_much(self, tmp_path: Path) -> None:
        result = self.judge(tmp_path, np.eye(4))
        assert result.exit_code == 3
        for words in (
            "INFEASIBLE",
            "exceeded by 300 %",
            "query 'cells 0..3' has 4 times its target",
            "status 3, not certified: a constraint is exceeded by 300 %; scale the noise",
        ):
            assert words in result.output


def objective(result: Result) -> float:
    """Return the number that the first line of an answer or a verdict ends with, or that stands before ``at``."""
    first = result.output.partition("\n")[0].partition(", optimum")[0].partition(" at ")[0]
    return float(first.split()[-1])


class TestTotalVariance:
    def test_is_solved_written_and_judged(self, tmp_path: Path) -> None:
        path = str(tmp_path / "v.npz")
        result = run("solve", "prefix:8", "--problem", "variance", "-o", path)
        assert result.exit_code == 0
        for words in ("CERTIFIED: total variance 17.866", " at rho = 0.5,"):
            assert words in result.output
        assert is_close_above(number_after("Privacy: rho = ", result.output), 0.5)
        assert dm.load(path).objective == pytest.approx(objective(result), rel=1e-8)
        assert run("judge", "prefix:8", "--problem", "variance", "--covariance", path).exit_code == 0

    def test_a_budget_divides_it(self) -> None:
        arguments = ("solve", "prefix:4", "--problem", "variance")
        spent = run(*arguments, "--rho", "2")
        assert objective(spent) == pytest.approx(objective(run(*arguments)) / 4, rel=1e-8)
        assert is_close_above(number_after("Privacy: rho = ", spent.output), 2)
        by_epsilon = run(*arguments, "--epsilon", "1", "--delta", "1e-6")
        assert is_close_above(number_after("(zCDP), epsilon = ", by_epsilon.output), 1)

    def test_weights_count_and_queries_of_weight_0_are_not_asked(self, tmp_path: Path) -> None:
        (tmp_path / "weights.csv").write_text("1\n0\n2\n3\n")
        weights = str(tmp_path / "weights.csv")
        result = run("solve", "prefix:4", "--problem", "variance", "--weights", weights)
        assert result.exit_code == 0
        assert "weighted total variance" in result.output and "1 to 3" in result.output
        assert "Left out, having weight 0: 1 of 4 queries" in result.output
        tenfold = run("solve", "identity:3", "--problem", "variance", "--weights", "10")
        assert objective(tenfold) == pytest.approx(30)

    def test_a_strategy_in_any_units(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", 7 * np.eye(4))
        result = run("judge", "prefix:4", "--problem", "variance", "--strategy", str(tmp_path / "a.npy"))
        assert result.exit_code == 0
        assert objective(result) == pytest.approx(10)
        assert "FEASIBLE" in result.output and "loose" not in result.output


class TestQueryWeighting:
    def test_named_designs(self) -> None:
        for design in inputs.DESIGNS:
            result = run("solve", "range_marginals:3x3:1,2", "--problem", "weighting", "--design", design)
            assert result.exit_code == 0 and "Design queries: " in result.output, design
            assert is_close_above(number_after("Privacy: rho = ", result.output), 0.5)

    @pytest.mark.parametrize("layer", ["fast", "reference"])
    def test_pure_privacy_is_laplace_noise(self, layer: str) -> None:
        arguments = ("--problem", "weighting", "--design", "identity", "--privacy", "pure", "--layer", layer)
        at_half = run("solve", "prefix:4", *arguments, "--epsilon", "0.5")
        assert at_half.exit_code == 0
        assert objective(at_half) == pytest.approx(10 * 2 / 0.5**2, rel=1e-6)
        assert "epsilon = 0.5, pure, by Laplace noise of variance 8" in at_half.output
        assert objective(run("solve", "prefix:4", *arguments)) == pytest.approx(10 * 2, rel=1e-6)
        approximate = run("solve", "prefix:4", "--problem", "weighting", "--design", "identity", "--layer", layer)
        assert objective(approximate) == pytest.approx(10)

    def test_files_of_one_command_serve_the_next(self, tmp_path: Path) -> None:
        path, weighting = str(tmp_path / "w.npz"), ("all_range:8", "--problem", "weighting")
        assert run("solve", *weighting, "-o", path).exit_code == 0
        assert run("solve", *weighting, "--design", path).exit_code == 0
        assert run("judge", *weighting, "--query-weights", path).exit_code == 0
        variance = run("judge", "all_range:8", "--problem", "variance", "--strategy", path)
        assert variance.exit_code == 0
        assert objective(variance) == pytest.approx(dm.load(path).objective)
        other = run("judge", *weighting, "--design", "haar", "--query-weights", path)
        assert "other rows than the problem's design" in str(other.exception)
        covariance = run("solve", "all_range:8", "--problem", "variance", "-o", path)
        assert covariance.exit_code == 0
        assert "not a strategy" in str(run("judge", "all_range:8", "--strategy", path).exception)

    def test_dependent_and_exact_design_queries(self) -> None:
        arguments = ("--problem", "weighting", "--design", "tree", "--neighbours", "replace")
        result = run("solve", "marginals:2x2:1,2", *arguments)
        assert result.exit_code == 0
        for words in ("bound on the total variance", "1 released exactly, at no cost", "least squares bring"):
            assert words in result.output

    def test_weights_of_nothing_are_no_mechanism(self, tmp_path: Path) -> None:
        np.save(tmp_path / "u.npy", [1.0, 0.0, 0.0])
        arguments = ("--problem", "weighting", "--design", "identity")
        result = run("judge", "prefix:3", *arguments, "--query-weights", str(tmp_path / "u.npy"))
        assert result.exit_code == 3
        assert "NOT A MECHANISM" in result.output

    def test_no_tolerance_lets_nothing_pass_for_a_mechanism(self, tmp_path: Path) -> None:
        np.save(tmp_path / "c.npy", np.diag([1.0, 0.0]))
        for line in (("judge", "prefix:2", "--covariance", str(tmp_path / "c.npy")), ("solve", "prefix:2")):
            for tol in ("inf", "nan", "0", "-1"):
                result = run(*line, "--tol", tol)
                assert result.exit_code not in (0, 3) and "tol must be" in str(result.exception)


class TestSoftMaxima:
    def test_are_solved_written_and_judged(self, tmp_path: Path) -> None:
        path, arguments = str(tmp_path / "s.npz"), ("prefix:4", "--problem", "softmax", "--t1", "20")
        result = run("solve", *arguments, "--total-weight", "0.1", "-o", path)
        assert result.exit_code == 0
        assert "sum of the soft maxima and the weighted total variance" in result.output
        assert "% above the least" in result.output
        again = dm.load(path).problem
        assert (again.t1, again.t2, again.total_weight) == (20, 20, 0.1)
        judged = run("judge", *arguments, "--total-weight", "0.1", "--covariance", path)
        assert judged.exit_code == 0


class TestExplain:
    def test_prefix_2_is_a_blackboard_proof(self) -> None:
        result = run("explain", "prefix:2")
        assert result.exit_code == 0
        for words in ("λ = (2/3, 1/3)", "μ = (1/3, 2/3)", "-1/2", "at most 4/3", "at least 4/3", "exactly 4/3"):
            assert words in result.output

    def test_noise_on_rows_that_are_no_fractions_is_put_on_the_queries_themselves(self) -> None:
        for name in ("total:3", "marginals:2x2:0 --geometry dense", "differences:3 --geometry dense"):
            result = run("explain", *name.split())
            assert "W = L B" in result.output and "is exactly " in result.output, name

    def test_what_no_neighbour_moves_is_named_and_the_rest_proven(self) -> None:
        """Of replaced records Σ is singular: the program says so, and the fractions are proven where there is noise."""
        for name in ("identity:3", "prefix:2"):
            result = run("explain", name, "--neighbours", "replace")
            assert result.exit_code == 0
            for words in ("over Σ ⪰ 0 whose range", "the sum of all cells: released exactly", "pseudo-inverse"):
                assert words in result.output
            assert "is exactly " in result.output

    def test_what_has_no_small_fractions_lies_in_an_interval(self) -> None:
        for name in ("prefix:16", "marginals:2x2:0,1", "pl94"):
            result = run("explain", name)
            assert result.exit_code == 0
            assert re.search(r"So the optimum (lies in \[|lies between \d|is \S+ to within \d)", result.output)


class TestCrosscheck:
    def test_the_first_screen_has_it_all(self) -> None:
        """One table within 80 columns and 40 lines, and a verdict that says what it shows."""
        result = run("crosscheck", "--quick", columns=80)
        assert result.exit_code == 0
        lines = result.output.splitlines()
        assert max(map(len, lines)) <= 80 and len(lines) <= 40
        found = [line.split()[:2] for line in lines if re.match(r" +\d+ +\d\.\d\d ", line)]
        assert found == [["2", "1.33"], ["4", "1.76"], ["8", "2.28"], ["16", "2.91"]]
        said = " ".join(result.output.split())
        assert "All layers agree. All printed values hold. In this run, at d = 16, fast is" in said
        assert "SM-II run here" not in said

    @pytest.mark.slow
    def test_the_longer_study_is_a_second_table(self) -> None:
        result = run("crosscheck", "--quick", "--all", columns=80)
        assert result.exit_code == 0 and max(map(len, result.output.splitlines())) <= 80
        assert result.output.count("yes") == 24, "SM-II at four sizes in three bases with two Hessians"
        assert "CAPPED:" in result.output and "NO" not in result.output.replace("NOT", "")
        refused = run("crosscheck", "fitness/figure1", "--all")
        assert "fitness/table2" in str(refused.exception)

    def test_info_lists_backends(self) -> None:
        result = run("info")
        assert result.exit_code == 0 and "CLARABEL" in result.output and "SCS" in result.output


BAD = {
    "solve nope": "known are identity:D",
    "solve people.tml": "is no file: files of workloads end in",
    "solve prefx:4": "'prefx:4' (did you mean prefix:4?)",
    "crosscheck fitness/tabel2": "(did you mean fitness/table2?)",
    "solve prefix:4 --problem weighting --design eigne": "(did you mean eigen?)",
    "solve prefix:4 --layer reference --backend CLARABLE": "(did you mean CLARABEL?)",
    "solve prefix:4 --geometry bloks": "(did you mean blocks?)",
    "solve prefix:4 --neighbours replaced": "(did you mean replace?)",
    "solve prefix:0": "at least 1",
    "solve nope.csv": "nope.csv",
    "solve prefix:4 --targets=-1": "positive",
    "solve prefix:4 --targets nan": "finite",
    "solve prefix:4 --epsilon 1 --delta 1": "delta",
    "solve prefix:4 --epsilon 0 --delta 1e-6": "epsilon",
    "solve prefix:4 --tol 0": "tol",
    "solve prefix:4 --layer reference --backend NOPE": "CLARABEL",
    "solve prefix:4 -o no-such-folder/x.npz": "cannot be written",
    "solve prefix:4 -o x.csv": ".npz",
    "solve prefix:4 --neighbours twins": "add-remove",
    "solve prefix:2 --delta 2 -o x.npz": "delta",
    "crosscheck nope": "fitness/table2",
    "solve prefix:4 --problem weighting --design nope": "must be eigen",
    "solve prefix:4 --problem weighting --design no.csv": "no.csv",
    "solve prefix:4 --problem variance --weights=-1": "negative",
    "solve prefix:4 --problem softmax --t1 0": "t1",
}

MISUSED = {
    "solve nope.csv --targets 1 --moe 2": "--moe",
    "solve nope.csv --rho 1 --epsilon 1 --delta 1e-6": "--rho or --epsilon",
    "solve nope.csv --epsilon 1": "--delta",
    "solve nope.csv --backend SCS": "--layer reference",
    "judge nope.csv": "--covariance",
    "judge nope.csv --covariance a.npy --strategy b.npy": "either --covariance",
    "judge nope.csv --problem weighting": "--query-weights FILE",
    "solve nope.csv --problem variance --targets 1": "--targets belongs to --problem fitness, softmax or reuse, not to "
    "variance",
    "solve nope.csv --problem variance --refine": "--refine",
    "solve nope.csv --design eigen": "--problem weighting",
    "judge nope.csv --problem weighting --covariance a.npy": "--covariance",
    "judge nope.csv --problem variance --rho 1 --strategy a": "solve",
    "solve nope.csv --problem weighting --privacy pure --epsilon 1 --delta 1e-6": "a budget --epsilon",
    "solve nope.csv --problem softmax": "--t1",
}
"""The workload does not exist, so whoever reads it first exits with status 1."""


class TestBadInput:
    def test_is_one_line_and_status_1(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status_and_error: Main
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for line, words in BAD.items():
            status, error = status_and_error(*line.split())
            assert (status, error.count("\n")) == (1, 1) and words in error, (line, error)
            assert not list(tmp_path.iterdir())

    def test_broken_files(self, tmp_path: Path, status_and_error: Main) -> None:
        for text, words in (
            ("1e300,1\n1,1\n", "magnitude"),
            ("1e-300,1\n", "magnitude"),
            ("", "holds no row of numbers"),
            ("1,2\n3\n", "line 2"),
            ("1,x\n", "w.csv"),
            ("0,0\n0,0\n", "not all zero"),
            ("1,nan\n", "w.csv"),
        ):
            (tmp_path / "w.csv").write_text(text)
            status, error = status_and_error("solve", str(tmp_path / "w.csv"))
            assert status == 1 and words in error, (text, error)
        (tmp_path / "t.csv").write_text("1\n2\n3\n")
        status, error = status_and_error("solve", "prefix:4", "--targets", str(tmp_path / "t.csv"))
        assert (status, "4 numbers" in error) == (1, True)

    def test_covariances_that_are_none(self, tmp_path: Path, status_and_error: Main) -> None:
        for covariance in (np.eye(3), np.diag([1.0, 1, 1, -1]), np.full((4, 4), np.nan), np.triu(np.ones((4, 4)))):
            np.save(tmp_path / "mine.npy", covariance)
            status, error = status_and_error("judge", "prefix:4", "--covariance", str(tmp_path / "mine.npy"))
            assert status == 1 and "covariance" in error


class TestMisuse:
    def test_is_one_line_and_status_2_before_any_work(self, status_and_error: Main) -> None:
        for line, words in MISUSED.items():
            status, error = status_and_error(*line.split())
            assert (status, error.count("\n")) == (2, 1) and words in error, (line, error)

    def test_unknown_options_and_choices_are_status_2(
        self, monkeypatch: pytest.MonkeyPatch, status_and_error: Main
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        for arguments in (["--bogus"], ["--problem", "bogus"], ["--privacy", "bogus"]):
            assert status_and_error("solve", "prefix:4", *arguments)[0] == 2
        assert status_and_error("crosscheck", "--output", "pictures")[0] == 2  # without a figure
        status, error = status_and_error("solve", "prefix:4", "--problem", "fitnes")
        assert status == 2 and "(did you mean fitness?)" in error

    def test_an_option_is_taken_by_the_problems_that_know_it_alone(self) -> None:
        for family in (each.name for each in POSED):
            request = Request("nope.csv", family, after="nope.npz" if family == "reuse" else None)
            for name in {name for each in POSED for name in each.options}:
                if any(each.name == family and name in each.options for each in POSED):
                    request.refuse_foreign(**{name: "1"})
                else:
                    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} belongs to --problem"):
                        request.refuse_foreign(**{name: "1"})

    def test_numbers_say_which_option_takes_what(self, status_and_error: Main) -> None:
        for problem, option in (("fitness", "--targets"), ("fitness", "--moe"), ("variance", "--weights")):
            for text in ("1,5", "1;5", "nope", "."):
                status, error = status_and_error("solve", "prefix:4", "--problem", problem, option, text)
                assert status == 1
                assert f"{option} takes one number, with a full stop, or a file" in error and repr(text) in error


def main_writes_to(stream: TextIO | None, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dualmech", *arguments])
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as left:
        command.main()
    return int(left.value.code or 0)


def test_a_terminal_without_greek_letters_gets_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    assert main_writes_to(stream, monkeypatch, "explain", "prefix:2") == 0
    assert b"exactly 4/3" in written.getvalue() and b"?" in written.getvalue()


def test_memory_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch, status_and_error: Main) -> None:
    def allocate(*_: object, **__: object) -> None:
        np.empty(2**60, dtype=np.uint8)

    monkeypatch.setattr(fast, "solve", allocate)
    status, error = status_and_error("solve", "prefix:4")
    assert status == 1
    assert error.startswith("dualmech: not enough memory: Unable to allocate") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("method", "workload"), [("softmax_newton", "prefix:4"), ("softmax_gradient", "marginals:2x2:1")]
)
def test_methods_of_the_paper_by_name(method: str, workload: str) -> None:
    for problem in (("fitness",), ("softmax", "--t1", "5")):
        result = run("solve", workload, "--problem", *problem, "--method", method, "--tol", "0.1")
        assert result.exit_code == 0 and f"fast:{method}: " in result.output and "steps" in result.output


def test_a_method_is_of_the_fast_layer(status_and_error: Main) -> None:
    for others in (("--layer", "reference"), ("--refine",)):
        status, error = status_and_error("solve", "prefix:4", "--method", "newton", *others)
        assert status == 2 and "--method belongs to --layer fast without --refine" in error
    status, error = status_and_error("solve", "prefix:4", "--method", "newtn")
    assert status == 1 and "(did you mean newton?)" in error


def test_a_run_goes_on_where_another_ended(tmp_path: Path, status_and_error: Main) -> None:
    path = str(tmp_path / "first.npz")
    assert run("solve", "prefix:64", "--tol", "1e-9", "--time-limit", "1e-6", "-o", path).exit_code == 3
    with pytest.warns(dm.errors.UncertifiedWarning):
        first = dm.load(path)
    assert first.status is dm.Status.STEPS_EXHAUSTED
    for problem in (("prefix:64",), ("prefix:64", "--targets", "1.01")):
        assert run("solve", *problem, "--start", path).exit_code == 0
    for others in (("--layer", "reference"), ("--refine",)):
        status, error = status_and_error("solve", "prefix:4", *others, "--time-limit", "1")
        assert status == 2 and "--time-limit belongs to --layer fast without --refine" in error
    (tmp_path / "x.csv").write_text("1\n")
    for given, words in (
        (("--start", str(tmp_path / "x.csv")), "--start takes the file of a solution"),
        (("--time-limit", "0"), "time_limit must be"),
    ):
        _, error = status_and_error("solve", "prefix:4", *given)
        assert words in error


class TestHostileNames:
    """No name of a path, an array or a query moves the cursor, or says something in another's place."""

    def test_names_in_tables_and_lists(self, tmp_path: Path) -> None:
        path = tmp_path / "w.csv"
        path.write_text("query,group,a,b\n\x1b[2Jone,\x1b]0;title\x07,1,0\ntwo\x9b31m,\u202egroup,1,1\n", "utf-8")
        for arguments in (("solve", str(path)), ("explain", str(path)), ("solve", str(path), "--refine")):
            shown = run(*arguments).output
            assert "\\x1b" in shown
            assert all(letter.isprintable() or letter == "\n" for letter in shown)

    def test_paths_and_keys_in_messages(self, tmp_path: Path, status_and_error: Main) -> None:
        np.savez(tmp_path / "w.npz", **{"\x1b[31mred": np.eye(2)})  # type: ignore[arg-type]
        given = (str(tmp_path / "w.npz"), str(tmp_path / "\x1b[2Jnone.csv"), "prefix:\x1b[2J")
        for workload in given:
            status, error = status_and_error("solve", workload)
            assert status == 1 and "\\x1b[" in error
            assert error.rstrip("\n").isprintable()
        with pytest.raises(dm.errors.FileFormatError) as refused:
            dm.files.read_workload(given[0])
        assert str(refused.value).isprintable()


class TestOutputThatCannotBeWritten:
    def test_a_path_without_a_name_is_refused_before_any_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status_and_error: Main
    ) -> None:
        monkeypatch.setattr(Request, "state", lambda *_: pytest.fail("stated"))
        monkeypatch.chdir(tmp_path)
        for path in (".npz", "answer", "folder/.npz"):
            status, error = status_and_error("solve", "prefix:4", "-o", path)
            assert status == 1 and f"{path}: must end in a name and .npz" in error

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
    def test_a_full_disk_is_one_line(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        with open("/dev/full", "w") as full:
            assert main_writes_to(full, monkeypatch, "solve", "prefix:4") == 1
        said = capsys.readouterr().err
        assert said.startswith("dualmech: ") and len(said.splitlines()) == 1

    def test_a_closed_output_is_dropped(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert main_writes_to(None, monkeypatch, "solve", "prefix:4") == 0
        sys.stdout.close()
        assert not capsys.readouterr().err


@pytest.mark.parametrize("name", ["atomic.write_text", "atomic.make_folder", "reading.read_toml"])
def test_submodules_of_files_are_there_before_anything_imported_them(name: str) -> None:
    code = f"from dualmech import files; assert callable(files.{name})"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version() -> None:
    assert run("--version").output == f"dualmech {importlib.metadata.version('dualmech')}\n"
