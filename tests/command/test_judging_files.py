"""``dualmech judge`` of a solution's file: its answer judged anew, whatever the family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run_wide as run

import dualmech as dm
from dualmech import fast
from dualmech.command.options import UsageError

TABLES = dm.workloads.marginals({"age": 4, "sex": 2}, ways=(1, 2))


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (lambda: dm.FitnessForUse(TABLES, 2.0), "Tables"),
        (lambda: dm.TotalVariance(TABLES), "total variance"),
        (lambda: dm.CommonMechanism([dm.BlockMechanism.of_tables(TABLES, v) for v in (1.0, 2.0)]), "Privacy: rho"),
        (lambda: dm.LocalStrategy(dm.workloads.prefix(3), 1.0), "sum of the user types' second moments"),
        (lambda: dm.NonnegativeEstimate(dm.workloads.prefix(3), [3.0, 2.0, 5.0]), "half the squared distance"),
    ],
)
def test_its_own_answer_is_judged(state: Callable[[], Any], shown: str, tmp_path: Path) -> None:
    dm.save(fast.solve(state()), tmp_path / "answer.npz")
    judged = run("judge", tmp_path / "answer.npz")
    assert judged.exit_code == 0 and judged.output.startswith("CERTIFIED: ") and shown in judged.output


def test_a_rough_answer_is_no_proof_and_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answer.npz"
    dm.save(fast.solve(dm.FitnessForUse(dm.workloads.prefix(8), 1.0), tol=0.5), path)
    assert run("judge", path).exit_code == 3 and run("judge", path, "--tol", 0.5).exit_code == 0
    with np.load(path) as held:
        arrays = dict(held)
    arrays["primal"] = 0.9 * arrays["primal"]
    np.savez(path, **arrays)
    refused = run("judge", path)
    assert isinstance(refused.exception, dm.errors.FileFormatError) and "changed" in str(refused.exception)


@pytest.mark.parametrize("command", ["judge", "explain"])
@pytest.mark.parametrize(
    "option", [("--neighbours", "replace"), ("--targets", 3), ("--rho", 1), ("--problem", "fitness")]
)
def test_options_that_nothing_reads_are_refused(command: str, option: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "answer.npz"
    dm.save(fast.solve(dm.FitnessForUse(dm.workloads.prefix(4))), path)
    refused = run(command, path, *option)
    assert isinstance(refused.exception, UsageError)
    assert str(refused.exception) == f"{option[0]} is not for a solution, whose file has the problem"


def test_what_is_spent_is_an_option_of_answers_at_a_cost(tmp_path: Path) -> None:
    path, ranges = tmp_path / "answer.npz", dm.workloads.prefix(4)
    pure = dm.QueryWeighting(ranges, ranges, privacy="pure")
    for problem, spent, said in (
        (dm.TotalVariance(ranges), ("--rho", "1/8"), "at rho = 0.125"),
        (pure, (), "at epsilon = 1 (pure)"),
        (pure, ("--epsilon", 2), "at epsilon = 2 (pure)"),
    ):
        dm.save(fast.solve(problem), path)
        assert said in run("judge", path, *spent).output
