"""The file that states a sweep: what it means, and what is refused of it before anything is run."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech.command.runs import PosedRun
from dualmech.errors import DualmechError, FileFormatError
from dualmech.studies.sweeps.grid import KEYS, read_grid


def runs_of(folder: Path, text: str) -> list[PosedRun]:
    (folder / "grid.toml").write_text(text)
    return read_grid(folder / "grid.toml", PosedRun)


FIVE_LINES = """
families = ["fitness", "variance"]
workloads = ["prefix:{size}", "pl94"]
sizes = [4, 8]
layers = ["fast", "reference"]
tolerances = [1e-4, 1e-6]
"""


class TestProduct:
    def test_five_lines_state_the_product_of_all(self, tmp_path: Path) -> None:
        runs = runs_of(tmp_path, FIVE_LINES)
        assert len(runs) == 2 * 3 * 2 * 2
        assert {run.workload for run in runs} == {"prefix:4", "prefix:8", "pl94"}
        assert {(run.layer, run.backend) for run in runs} == {("fast", None), ("reference", "CLARABEL")}

    def test_what_a_run_has_no_use_for_does_not_repeat_it(self, tmp_path: Path) -> None:
        text = 'families = ["fitness", "variance"]\nworkloads = ["total:4", "random_range:4,3,{seed}"]\n'
        runs = runs_of(tmp_path, text + "seeds = [0, 1]\ntargets = [1, 2]")
        fitness = [run for run in runs if run.family == "fitness"]
        assert len(fitness) == 2 * (1 + 2)
        assert len(runs) - len(fitness) == 1 + 2
        assert all(run.seed is None for run in runs if run.workload == "total:4")

    def test_random_targets_are_of_the_seed(self, tmp_path: Path) -> None:
        runs = runs_of(tmp_path, 'workloads = "prefix:4"\ntargets = "random"\nseeds = [0, 1]')
        first, second = (run.state(run.read())[0].targets for run in runs)
        assert (first != second).any()
        assert (first == runs[0].state(runs[0].read())[0].targets).all()
        assert all(1 <= each <= 10 for each in first)

    def test_random_targets_of_tables_are_the_same_in_every_family(self, tmp_path: Path) -> None:
        text = 'families = ["fitness", "softmax"]\nworkloads = "marginals:3x2:1,2"\nt1 = 5\n'
        runs = runs_of(tmp_path, text + 'targets = "random"\nseeds = 0')
        fitness, softmax = (run.state(run.read())[0] for run in runs)
        assert list(np.repeat(fitness.targets, [3, 2, 6])) == list(softmax.targets)

    def test_epsilon_goes_with_a_delta_but_in_local_privacy(self, tmp_path: Path) -> None:
        runs = runs_of(tmp_path, 'families = ["variance", "local"]\nworkloads = "prefix:4"\nepsilon = 1')
        assert [(run.family, run.epsilon, run.delta) for run in runs] == [("variance", 1.0, 1e-9), ("local", 1.0, None)]

    def test_files_are_looked_for_beside_the_grid(self, tmp_path: Path) -> None:
        (tmp_path / "w.csv").write_text("a,b\n1,0\n1,1\n")
        (tmp_path / "t.csv").write_text("1\n2\n")
        (run,) = runs_of(tmp_path, 'workloads = "w.csv"\ntargets = "t.csv"')
        assert run.read().shape == (2, 2)
        assert list(run.state(run.read())[0].targets) == [1, 2]


class TestRho:
    """ρ as an axis: fractions, kept exactly."""

    def test_every_family_that_spends_takes_it(self, tmp_path: Path) -> None:
        text = 'families = ["fitness", "variance", "softmax"]\nworkloads = "prefix:4"\nt1 = 9\nrho = ["1/20", 0.25]\n'
        runs = runs_of(tmp_path, text)
        assert [(run.family, run.rho) for run in runs] == [
            *(("fitness", "1/20"), ("fitness", "1/4"), ("variance", "1/20"), ("variance", "1/4")),
            ("softmax", None),
        ]
        problem, divisor = runs[0].state(runs[0].read())
        assert problem.cost == dm.accounting.squared_cost_from_rho("1/20") and divisor == 1
        assert runs[3].state(runs[3].read())[1] == 0.5

    def test_it_is_part_of_what_is_asked(self) -> None:
        plain = PosedRun("fitness", "prefix:4", "prefix:4")
        other = replace(plain, rho="1/20")
        assert plain.problem != other.problem and PosedRun.of(other.row()) == other


class TestDigests:
    def test_they_stay_the_same_from_version_to_version(self) -> None:
        run = PosedRun("fitness", "prefix:4", "prefix:{size}", 4, targets="1.0")
        assert (run.problem, run.digest) == ("56d7893f9f2706fa", "c1b76607cc7f6e1e")

    @given(
        st.fixed_dictionaries(
            {},
            optional={
                "workload": st.sampled_from(["prefix:8", "total:4"]),
                "targets": st.sampled_from(["2.0", "random"]),
                "seed": st.integers(0, 3),
                "epsilon": st.floats(0.1, 2),
            },
        ),
        st.fixed_dictionaries(
            {},
            optional={
                "layer": st.just("reference"),
                "backend": st.sampled_from(["CLARABEL", "SCS"]),
                "tol": st.floats(1e-9, 1e-2),
                "time_limit": st.floats(1, 9),
                "threads": st.integers(2, 4),
            },
        ),
    )
    def test_a_problem_is_what_is_asked_and_a_run_all_of_it(self, asked: dict[str, Any], how: dict[str, Any]) -> None:
        run = PosedRun("fitness", "prefix:4", "prefix:4")
        other = replace(run, **asked, **how)
        assert (run.problem == other.problem) == (not asked)
        assert (run.digest == other.digest) == (not asked and not how)

    def test_a_file_is_what_it_holds_wherever_it_lies(self, tmp_path: Path) -> None:
        runs = []
        for name, entry in (("one", 1), ("two", 1), ("three", 2)):
            (tmp_path / name).mkdir()
            (tmp_path / name / f"{name}.csv").write_text(f"a,b\n1,0\n1,{entry}\n")
            runs += runs_of(tmp_path / name, f'workloads = "{name}.csv"')
        assert runs[0].digest == runs[1].digest != runs[2].digest


REFUSED = {
    "unknown key 'workload' (did you mean workloads?); known are families": 'workload = "prefix:4"',
    "workloads must be given": "sizes = [4]",
    "families must be one of fitness": 'families = "fitnes"\nworkloads = "prefix:4"',
    "unknown workload 'prefx:4'": 'workloads = ["prefix:4", "prefx:4"]',
    "sizes must be an integer": 'workloads = "prefix:{size}"\nsizes = [4, 0]',
    "sizes must be given": 'workloads = "prefix:{size}"',
    "sizes is used by no workload": 'workloads = "prefix:4"\nsizes = 4',
    "seeds must be given: random": 'workloads = "prefix:4"\ntargets = "random"',
    "seeds is used by no workload": 'workloads = "prefix:4"\nseeds = 1',
    "targets must be positive": 'workloads = "prefix:4"\ntargets = -1',
    "targets must be a positive number, 'random'": 'workloads = "prefix:4"\ntargets = "many"',
    "targets is for fitness": 'families = "variance"\nworkloads = "prefix:4"\ntargets = 1',
    "t1 must be given for softmax": 'families = "softmax"\nworkloads = "prefix:4"',
    "epsilon must be given for local": 'families = "local"\nworkloads = "prefix:4"',
    "either rho or epsilon": 'workloads = "prefix:4"\nrho = 1\nepsilon = 1',
    "rho must be positive": 'workloads = "prefix:4"\nrho = 0',
    "rho must be": 'workloads = "prefix:4"\nrho = "1/0"',
    "delta needs epsilon": 'workloads = "prefix:4"\ndelta = 1e-9',
    "layers must be one of fast, reference": 'workloads = "prefix:4"\nlayers = "slow"',
    "backends are for layers that hold": 'workloads = "prefix:4"\nbackends = "SCS"',
    "backend 'NONE' is not installed": 'workloads = "prefix:4"\nlayers = "reference"\nbackends = "NONE"',
    "tolerances must be positive": 'workloads = "prefix:4"\ntolerances = 0',
    "threads must be one value, got 2": 'workloads = "prefix:4"\nthreads = [1, 2]',
    "layers must hold a value": 'workloads = "prefix:4"\nlayers = []',
    "is not TOML": "workloads = [",
    "runs, more than are taken": f'workloads = "prefix:{{size}}"\nsizes = {[*range(1, 400)]}\n'
    f"targets = {[*range(1, 400)]}",
}


def test_what_is_wrong_is_named_before_anything_is_run(tmp_path: Path) -> None:
    for said, text in REFUSED.items():
        with pytest.raises(FileFormatError) as refused:
            runs_of(tmp_path, text)
        assert said in str(refused.value) and "grid.toml" in str(refused.value)


ONE = st.sampled_from(
    ["1", "true", '"x\\u001b"', "nan", "-inf", "1e400", "{a = 1}", "1979-05-27", '"prefix:4"', "[[]]"]
)
ODD = ONE | st.lists(ONE, max_size=3).map(lambda items: f"[{', '.join(items)}]")


@given(st.dictionaries(st.sampled_from([*KEYS, "other"]), ODD, max_size=3))
def test_odd_values_are_taken_or_refused_by_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, stated: dict[str, str]
) -> None:
    lines = {"workloads": '"total:2"'} | stated
    with contextlib.suppress(DualmechError):
        runs_of(tmp_path_factory.getbasetemp(), "\n".join(f"{name} = {each}" for name, each in lines.items()))
