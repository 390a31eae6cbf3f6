"""What a solver's author puts into tests: problems in plain arrays, and checks that fail with both bounds."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import collection, hostile, library, sdpa, testing

NAMES = ["fitness-prefix-4", "variance-prefix-4", "fitness-rank-deficient", "variance-prefix-8-household"]

A_SOLVERS_TESTS = """
    import numpy as np
    import pytest
    from dualmech.crosscheck import testing

    def my_solver(workload, numbers):
        return np.eye(workload.shape[1])

    @pytest.mark.parametrize("known", testing.problems(["fitness-prefix-2", "variance-identity-total-4"]), ids=str)
    def test_my_solver(known):
        testing.check_strategy(known, my_solver(known.workload, known.numbers), within=0.2)
"""


def found(known: testing.KnownProblem) -> dm.Solution:
    return fast.solve(known.problem, tol=1e-9)


@pytest.mark.parametrize("known", testing.problems(NAMES), ids=str)
def test_what_is_optimal_passes(known: testing.KnownProblem) -> None:
    answer = found(known)
    assert testing.check_covariance(known, 7 * answer.covariance) == pytest.approx(known.upper)
    assert testing.check_value(known, answer.objective) == answer.objective
    assert known.lower <= known.upper <= known.lower * (1 + 2e-9)


@pytest.mark.parametrize("known", testing.problems(NAMES), ids=str)
def test_what_is_not_fails_with_both_bounds(known: testing.KnownProblem) -> None:
    cells = known.workload.shape[1]
    checks: list[tuple[Any, Any, str]] = [
        (testing.check_strategy, np.eye(cells), "the strategy achieves"),
        (testing.check_covariance, np.eye(cells), "the covariance achieves"),
        (testing.check_value, 1.01 * known.upper, "at least 1 % above the optimum"),
        (testing.check_value, 0.99 * known.lower, "1 % below what is possible"),
    ]
    for check, given, words in checks:
        with pytest.raises(AssertionError) as raised:
            check(known, given)
        said = str(raised.value)
        assert words in said and said.startswith(f"{known.name}: ")
        assert f"{known.lower:.15g}" in said and f"{known.upper:.15g}" in said
        assert "at most 0.0001 % is allowed" in said


def test_arrays_pose_the_problem() -> None:
    """A covariance on the cells and one on the basis are the same noise; arrays are what the problem has."""
    for known in testing.problems(NAMES):
        family: Any = {"FitnessForUse": dm.FitnessForUse, "TotalVariance": dm.TotalVariance}[known.family]
        again = family(
            dm.Workload(known.workload), known.numbers, neighbours=known.neighbours, geometry="dense"
        )
        assert again.same_as(known.problem) and str(known) == known.name in repr(known)
    (known,) = testing.problems(["fitness-rank-deficient"])
    noise, basis = found(known).covariance, known.basis
    on_cells = np.linalg.pinv(basis) @ noise @ np.linalg.pinv(basis).T
    assert testing.check_covariance(known, on_cells) == pytest.approx(testing.check_covariance(known, noise))


def test_bad_arguments_are_refused_by_name() -> None:
    (known,) = testing.problems(["fitness-prefix-4"])
    with pytest.raises(dm.InvalidInputError, match="did you mean fitness-prefix-4"):
        testing.problems(["fitness-prefix4"])
    with pytest.raises(dm.InvalidInputError, match="most_cells"):
        testing.problems(most_cells=0)
    with pytest.raises(dm.InvalidInputError, match="covariance must have 4 rows"):
        testing.check_covariance(known, np.eye(3))
    with pytest.raises(dm.InvalidInputError, match="strategy"):
        testing.check_strategy(known, np.ones((1, 4)))
    with pytest.raises(dm.InvalidInputError, match="within"):
        testing.check_value(known, 2.0, within=-1.0)
    with pytest.raises(dm.DualmechError, match="known"):
        testing.check_value("fitness-prefix-4", 2.0)  # type: ignore[arg-type]


def test_what_a_family_has_not_is_refused_by_name() -> None:
    known = {name: testing.problems([name])[0] for name in ("estimate-prefix-16", "fitness-tables-sixty")}
    with pytest.raises(dm.InvalidInputError, match="NonnegativeEstimate, which check_answer takes"):
        testing.check_strategy(known["estimate-prefix-16"], np.eye(16))
    with pytest.raises(dm.InvalidInputError, match="geometry 'dense', got 'blocks'"):
        testing.check_strategy(known["fitness-tables-sixty"], np.eye(16))
    with pytest.raises(dm.InvalidInputError, match="it has no workload"):
        _ = known["fitness-tables-sixty"].workload
    with pytest.raises(dm.InvalidInputError, match="it has no basis"):
        _ = known["estimate-prefix-16"].basis
    with pytest.raises(AssertionError, match="the answer achieves"):
        testing.check_answer(known["estimate-prefix-16"], np.ones(16))
    assert testing.check_value(known["fitness-tables-sixty"], 1234.8186524) == 1234.8186524


def test_hostile_arguments_are_refused_by_name() -> None:
    (known,) = testing.problems(["fitness-prefix-4"])
    program = sdpa.sparse_program(known.problem)
    allowed = {"known": known, "within": 9.0}
    for function, arguments in (
        (testing.problems, {"names": NAMES}),
        (testing.problems, {"most_cells": 2}),
        (testing.check_value, allowed | {"value": 2.0}),
        (testing.check_strategy, allowed | {"strategy": np.eye(4)}),
        (testing.check_answer, allowed | {"answer": np.eye(4)}),
        (testing.check_covariance, allowed | {"covariance": np.eye(4)}),
        (sdpa.sparse_program, {"problem": known.problem}),
        (sdpa.covariance, {"problem": known.problem, "x": np.zeros(len(program.objective))}),
    ):
        call = hostile.Call(function.__name__, function, arguments)
        for argument in arguments:
            for label, make in hostile.VALUES.items():
                fault = hostile.fault_of(call, {argument: make()})
                assert not fault or fault.startswith("AssertionError: fitness-prefix-4: "), (
                    call.place,
                    argument,
                    label,
                )


def test_all_small_problems_are_there_and_none_is_proven_before_it_is_asked() -> None:
    library.interval.cache_clear()
    listed = testing.problems(["FitnessForUse", "variance", "fitness-prefix-8"], most_cells=4)
    assert {each.family for each in listed} == {"FitnessForUse", "TotalVariance"}
    assert all(each.workload.shape[1] <= 4 for each in listed if each.name != "fitness-prefix-8")
    assert {each.family for each in testing.problems()} == {*collection.FAMILIES.values()}
    assert library.interval.cache_info().currsize == 0


def test_a_solvers_own_tests_fail_where_it_does(tmp_path: Path) -> None:
    path = tmp_path / "test_my_solver.py"
    path.write_text(textwrap.dedent(A_SOLVERS_TESTS))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout
    assert "test_my_solver[fitness-prefix-2]" in done.stdout
    assert "the strategy achieves 2, at least 50 % above the optimum" in done.stdout
