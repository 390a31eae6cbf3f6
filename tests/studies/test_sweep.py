"""One question over a grid: rows of proven numbers, errors as rows, and disagreements."""

from __future__ import annotations

import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run

import dualmech as dm
from dualmech import fast, reference
from dualmech.command.sweep import KEYS, read_grid, request_of
from dualmech.studies.sweep import disagreements, sweep

LAYERS: dict[str, Any] = {"fast": fast, "reference": reference}


def posed(size: int, layer: str) -> dm.Solution:
    return LAYERS[layer].solve(dm.FitnessForUse(dm.workloads.prefix(size)), tol=1e-4)


def unsolved(size: int) -> dm.Solution:
    if size == 3:
        raise KeyError("three")
    return fast.solve(dm.FitnessForUse(dm.workloads.prefix(size)), tol=1e-4)


GRID: dict[str, list[Any]] = {"size": [2, 5], "layer": ["fast", "reference"]}


@pytest.fixture(autouse=True)
def needs_pandas() -> None:
    pytest.importorskip("pandas")


def test_a_row_is_what_the_certificate_proves() -> None:
    table = sweep(posed, GRID)
    assert table[["size", "layer"]].values.tolist() == [[2, "fast"], [2, "reference"], [5, "fast"], [5, "reference"]]
    for row in table.to_dict("records"):
        answer = posed(row["size"], row["layer"])
        assert (row["lower"], row["upper"]) == answer.certificate.interval and row["gap"] <= 1e-4
        assert (row["status"], row["message"]) == ("CERTIFIED", answer.message) and row["seconds"] > 0
    assert not disagreements(table.to_dict("records"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_one_run_is_its_row(jobs: int) -> None:
    first, refused, fault, last = sweep(unsolved, {"size": [2, 0, 3, 4]}, jobs).to_dict("records")
    assert first["status"] == last["status"] == "CERTIFIED"
    assert refused["status"] == "REFUSED" and "d must be" in refused["message"]
    assert fault["status"] == "FAULT" and fault["message"] == "KeyError: 'three'"
    assert disagreements([first, refused, fault, last]) == []


def test_answers_that_are_kept_are_not_solved_again(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    cached = joblib.Memory(tmp_path, verbose=0).cache(posed)
    first, again = sweep(cached, GRID), sweep(cached, GRID)
    assert first.drop(columns="seconds").equals(again.drop(columns="seconds"))
    assert all(cached.check_call_in_cache(2, layer) for layer in LAYERS)


def test_disjoint_intervals_of_one_problem_disagree() -> None:
    row = {"size": 4, "layer": "fast", "tol": 1e-4, "status": "CERTIFIED", "lower": 1.0, "upper": 1.1}
    other = row | {"layer": "reference", "tol": 1e-6, "lower": 1.2, "upper": 1.3}
    assert disagreements([row, other]) == [(other, row)]
    assert disagreements([row, other | {"lower": 1.05}]) == []
    assert disagreements([row, other | {"size": 8}]) == []
    assert disagreements([row, other | {"lower": None, "upper": None}]) == []


def test_values_may_be_arrays() -> None:
    row = {"targets": np.arange(3.0), "layer": "fast", "lower": 1.0, "upper": 1.1}
    other = row | {"targets": np.arange(3.0), "layer": "reference", "lower": 1.2, "upper": 1.3}
    assert len(disagreements([row, other])) == 1 and not disagreements([row, other | {"targets": np.ones(3)}])


def test_the_configured_backend_of_joblib_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    joblib, threads = pytest.importorskip("joblib"), set[str]()

    def noted(size: int) -> dm.Solution:
        threads.add(threading.current_thread().name)
        return unsolved(size)

    with joblib.parallel_config(backend="threading", n_jobs=2):
        table = sweep(noted, {"size": [2, 4, 5, 6]}, jobs=None)
    assert table["status"].tolist() == ["CERTIFIED"] * 4 and "MainThread" not in threads


def test_nothing_is_solved_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(dm.errors.BackendError, match="needs pandas"):
        sweep(lambda size: pytest.fail("solved"), {"size": [2]})


@pytest.mark.parametrize(
    ("grid", "told"),
    [
        ({}, "grid must name an argument"),
        ({"size": []}, "grid must have values"),
        ({"gap": [1]}, "names other than"),
        ({"size": range(100_001)}, "100001 combinations"),
    ],
)
def test_grids_that_state_no_run(grid: dict[str, list[Any]], told: str) -> None:
    with pytest.raises(dm.errors.InvalidInputError, match=told):
        sweep(posed, grid)
    with pytest.raises(dm.errors.InputTypeError):
        sweep(3, GRID)  # type: ignore[arg-type]


class TestCommand:
    def test_a_file_states_a_product(self, tmp_path: Path) -> None:
        (tmp_path / "grid.toml").write_text(
            'families = ["fitness", "variance"]\nworkloads = ["prefix:{size}", "identity:3"]\nsizes = [2, 4]\n'
            'targets = [2, 3]\nlayers = ["fast", "reference"]\nbackends = ["CLARABEL", "SCS"]\n'
        )
        runs = read_grid(str(tmp_path / "grid.toml"))
        # Three workloads, three ways to solve: with two targets for fitness, none for total variance.
        assert len(runs) == 3 * 3 * (2 + 1)
        assert {run["backend"] for run in runs if run["layer"] == "fast"} == {None}
        assert {run["size"] for run in runs if run["workload"] == "identity:3"} == {None}

    def test_it_solves_and_writes_a_table(self, tmp_path: Path) -> None:
        (tmp_path / "grid.toml").write_text('workloads = "prefix:{size}"\nsizes = [2, 4]\ntolerances = 1e-4\n')
        done = run("sweep", tmp_path / "grid.toml", "-o", tmp_path / "results.csv")
        assert done.exit_code == 0, done.output
        heading, *lines = (tmp_path / "results.csv").read_text().splitlines()
        assert heading.startswith("problem,workload,size") and len(lines) == 2 and "CERTIFIED" in lines[1]
        (tmp_path / "grid.toml").write_text('workloads = ["prefix:4", "prefix:0"]\n')
        assert run("sweep", tmp_path / "grid.toml", "-o", tmp_path / "results.csv").exit_code == 3

    def test_rho_is_exact_and_of_fitness(self, tmp_path: Path) -> None:
        path = tmp_path / "grid.toml"
        path.write_text('workloads = "prefix:4"\nrho = ["1/20"]\n')
        (stated,) = read_grid(str(path))
        assert request_of(stated).state().cost == dm.accounting.squared_cost_from_rho("1/20")
        path.write_text('families = "variance"\nworkloads = "prefix:4"\nrho = ["1/20"]\n')
        with pytest.raises(dm.errors.FileFormatError, match="rho is for the family fitness"):
            read_grid(str(path))

    def test_files_are_looked_for_beside_the_grid(self, tmp_path: Path) -> None:
        dm.save(dm.workloads.prefix(3), tmp_path / "asked.csv")
        (tmp_path / "grid.toml").write_text('workloads = "asked.csv"\n')
        (stated,) = read_grid(str(tmp_path / "grid.toml"))
        assert stated["workload"] == str(tmp_path / "asked.csv")
        done = run("sweep", tmp_path / "grid.toml", "-o", tmp_path / "results.csv")
        assert done.exit_code == 0, done.output

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("size = [4]", r"unknown key 'size' \(did you mean sizes\?\)"),
            ("sizes = [4]", "workloads must be given"),
            ('workloads = "prefix:4"\nfamilies = "riddle"', "families must be one of"),
            ('workloads = "prefix:4"\nlayers = "slow"', "layers must be one of"),
            ('workloads = "prefix:4"\nrho = 0', "rho must be positive"),
            ('workloads = "prefix:4"\nrho = "1/0"', "rho must be"),
            ('workloads = "prefix:4"\ntolerances = [1e-4, -1]', "tolerances must be positive"),
            ('workloads = "prefix:4"\ntargets = []', "targets must hold a value"),
            ('workloads = "prefix:{size}"', r"sizes must be given for \{size\}"),
            ('workloads = "prefix:4"\nsizes = [4]', "sizes must be for .* none uses it"),
            ('workloads = "prefix:4"\nbackends = "SCS"', "backends must be for .* none uses it"),
            ('families = "variance"\nworkloads = "prefix:4"\ntargets = 2', "targets must be for"),
            (
                f"workloads = 'prefix:{{seed}}'\nseeds = {[*range(1001)]}\ntargets = {[*range(1, 101)]}",
                "100100 combinations",
            ),
        ],
    )
    def test_grids_that_are_refused(self, text: str, told: str, tmp_path: Path) -> None:
        (tmp_path / "grid.toml").write_text(text)
        with pytest.raises(dm.errors.FileFormatError, match=told):
            read_grid(str(tmp_path / "grid.toml"))

    def test_the_example_is_a_grid(self) -> None:
        path = Path(__file__).parents[2] / "examples" / "sweep.toml"
        assert {*tomllib.loads(path.read_text())} <= {*KEYS} and len(read_grid(str(path))) == 24
