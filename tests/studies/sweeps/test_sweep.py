"""Sweeps: every run once, whatever ended in between; disagreements found, made small and written."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run

from dualmech.command.options import UsageError
from dualmech.command.runs import PosedRun
from dualmech.crosscheck import processes
from dualmech.errors import BackendError, FileFormatError, InvalidInputError
from dualmech.solution import Solution, retold
from dualmech.studies.sweeps import running as sweeping
from dualmech.studies.sweeps.grid import read_grid, shrink
from dualmech.studies.sweeps.running import Row, read_rows

GRID = 'workloads = "prefix:{size}"\nsizes = [2, 3, 4]\ntargets = [1, 2]'
LIMIT = 600  # seconds that a process may take: a busy machine starts an interpreter slowly
TOOK = ("wall_seconds", "cpu_seconds", "peak_mebibytes", "grid")  # what no two runs repeat


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path / "grid.toml"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def lasting(rows: list[Row]) -> list[Row]:
    """Return rows by digest, without what no two runs repeat."""
    kept = [{name: value for name, value in row.items() if name not in TOOK} for row in rows]
    return sorted(kept, key=lambda row: str(row["digest"]))


class TestResume:
    def test_every_run_has_a_line_and_is_run_once(self, grid: Path, results: Path) -> None:
        first = run("sweep", grid, "-o", results)
        assert first.exit_code == 0, first.output
        assert "6 runs, 6 of them now: 6 CERTIFIED" in first.output
        held = results.read_bytes()
        again = run("sweep", grid, "-o", results)
        assert "6 runs, 0 of them now" in again.output
        assert results.read_bytes() == held
        grid.write_text(GRID.replace("[2, 3, 4]", "[2, 3, 4, 5]"))
        assert "8 runs, 2 of them now" in run("sweep", grid, "-o", results).output

    def test_a_line_that_a_kill_cut_off_is_run_again(self, grid: Path, results: Path) -> None:
        runs = read_grid(grid, PosedRun)
        rows = list(sweeping.sweep(runs, results))
        *whole, last = results.read_bytes().splitlines(keepends=True)
        for cut in (1, 5, 60, -1):
            results.write_bytes(b"".join(whole) + last[:cut])
            assert len(read_rows(results)) == len(rows) - 1
            assert len(list(sweeping.sweep(runs, results))) == 1
            assert lasting(read_rows(results)) == lasting(rows)

    def test_a_sweep_that_is_killed_goes_on_where_it_was(self, tmp_path: Path, results: Path) -> None:
        (tmp_path / "grid.toml").write_text(GRID.replace("[2, 3, 4]", str([*range(2, 14)])))
        line = [sys.executable, "-m", "dualmech", "sweep", str(tmp_path / "grid.toml"), "-o", str(results)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.kill()
        held = len(read_rows(results))
        assert held >= 1
        subprocess.run(line, check=True, capture_output=True)
        rows = read_rows(results)
        assert len({row["digest"] for row in rows}) == len(rows) == 24

    def test_two_at_a_time_find_the_same(self, grid: Path, tmp_path: Path) -> None:
        runs = read_grid(grid, PosedRun)
        one = list(sweeping.sweep(runs, tmp_path / "one.jsonl"))
        two = list(sweeping.sweep(runs, tmp_path / "two.jsonl", jobs=2))
        assert lasting(one) == lasting(two)

    def test_two_sweeps_do_not_write_one_file(self, grid: Path, results: Path) -> None:
        runs = read_grid(grid, PosedRun)
        first = sweeping.sweep(runs, results)
        next(first)
        with pytest.raises(FileFormatError, match="written by another sweep"):
            next(sweeping.sweep(runs, results))
        first.close()  # type: ignore[attr-defined]

    def test_a_file_of_something_else_is_left_as_it_is(self, grid: Path, results: Path) -> None:
        for held in ("notes of mine", "notes\n", "[]\n", '{"digest": "a"}\n', '{"digest": 1e999}\n'):
            results.write_text(held)
            with pytest.raises(FileFormatError, match=r"results\.jsonl"):
                list(sweeping.sweep(read_grid(grid, PosedRun), results))
            assert results.read_text() == held


class TestRows:
    def test_a_row_tells_what_was_asked_what_came_and_what_it_took(self, grid: Path, results: Path) -> None:
        row = next(iter(sweeping.sweep(read_grid(grid, PosedRun), results)))
        assert (row["family"], row["workload"], row["status"]) == ("fitness", "prefix:2", "CERTIFIED")
        assert row["lower"] <= 4 / 3 <= row["upper"]
        assert 0 < row["gap"] <= 1e-6
        assert row["wall_seconds"] > 0
        assert row["blas_threads"] == 1
        assert {*row["versions"]} == {"dualmech", "numpy", "scipy", "cvxpy"}
        assert PosedRun.of(row) == read_grid(grid, PosedRun)[0]

    def test_a_budget_scales_what_is_solved_at_a_cost_of_one(self, tmp_path: Path, results: Path) -> None:
        text = 'families = "variance"\nworkloads = "prefix:4"\nepsilon = [1, 2]\ndelta = 1e-6'
        (tmp_path / "grid.toml").write_text(text)
        once, twice = sweeping.sweep(read_grid(tmp_path / "grid.toml", PosedRun), results)
        assert 3 < once["lower"] / twice["upper"] < 4

    @pytest.mark.parametrize("family", ["fitness", "variance", "weighting", "softmax", "local"])
    def test_every_family_runs_in_both_layers(self, family: str, tmp_path: Path, results: Path) -> None:
        extra = {"softmax": "t1 = 10", "local": "epsilon = 1"}.get(family, "")
        text = f'families = "{family}"\nworkloads = "prefix:3"\nlayers = ["fast", "reference"]\ntolerances = 1e-4\n'
        (tmp_path / "grid.toml").write_text(text + extra)
        rows = list(sweeping.sweep(read_grid(tmp_path / "grid.toml", PosedRun), results))
        assert [row["status"] for row in rows] == ["CERTIFIED"] * 2
        (verdict,) = sweeping.verdicts(rows)
        assert verdict.word == "yes"

    def test_a_typed_error_is_a_line_and_status_3(self, tmp_path: Path, results: Path) -> None:
        (tmp_path / "few.csv").write_text("1\n2\n")
        (tmp_path / "grid.toml").write_text('workloads = ["prefix:2", "prefix:3"]\ntargets = "few.csv"')
        done = run("sweep", tmp_path / "grid.toml", "-o", results)
        assert done.exit_code == 3
        fine, refused = read_rows(results)
        assert (fine["status"], refused["status"]) == ("CERTIFIED", "REFUSED")
        assert "targets" in refused["message"]
        assert refused["lower"] is refused["upper"] is refused["gap"] is None

    def test_another_error_is_a_line_that_says_where(
        self, grid: Path, results: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(PosedRun, "solve", lambda self, problem: [][0])
        assert run("sweep", grid, "-o", results).exit_code == 3
        assert {row["status"] for row in read_rows(results)} == {"FAULT"}
        assert "IndexError" in read_rows(results)[0]["message"]


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the reference layer certify too much wherever a query asks of three cells or more."""
    solve = PosedRun.solve

    def wrong(self: PosedRun, problem: Any) -> Solution:
        answer = solve(self, problem)
        if self.layer != "reference" or not (np.count_nonzero(problem.workload.dense(), axis=1) > 2).any():
            return answer
        own = answer.certificate
        raised = replace(own, objective=1.1 * own.objective, lower_bound=1.1 * own.lower_bound)
        return retold(answer, certificate=raised)

    monkeypatch.setattr(PosedRun, "solve", wrong)


@pytest.mark.usefixtures("faulty")
class TestDisagreement:
    def test_is_printed_made_small_and_repeated_by_its_file(self, tmp_path: Path, results: Path) -> None:
        text = 'workloads = "prefix:{size}"\nsizes = 8\nlayers = ["fast", "reference"]\ntargets = "random"\nseeds = 3'
        (tmp_path / "grid.toml").write_text(text)
        done = run("sweep", tmp_path / "grid.toml", "-o", results)
        assert done.exit_code == 4
        assert "DISAGREE" in done.output
        (small,) = tmp_path.glob("results-disagreement-*.toml")
        assert f"dualmech sweep {small}" in done.output
        again = run("sweep", small, "-o", tmp_path / "again.jsonl")
        assert again.exit_code == 4
        rows = read_rows(tmp_path / "again.jsonl")
        assert [(row["queries"], row["cells"]) for row in rows] == [(1, 4)] * 2

    def test_of_many_cells_only_the_size_shrinks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dualmech.studies.sweeps.grid.MOST_ENTRIES", 1)
        first = PosedRun("fitness", "prefix:8", "prefix:{size}", 8)
        second = replace(first, layer="reference", backend="CLARABEL")
        small = shrink(first, second, ((1.0, 1.0), (2.0, 2.0)))
        assert small.first.workload == small.second.workload == "prefix:4"
        assert small.workload is None

    def test_that_never_comes_again_is_written_as_it_was(self) -> None:
        first, ends = PosedRun("fitness", "prefix:2", "prefix:{size}", 2), ((1.0, 1.0), (2.0, 2.0))
        small = shrink(first, replace(first, layer="reference", backend="CLARABEL"), ends)
        assert (small.first, small.ends, small.workload) == (first, ends, None)


class TestCluster:
    def test_without_the_extra_it_is_named(self, grid: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(BackendError, match=r"dualmech\[dask\]"):
            processes.check_dask()

    def test_what_ends_a_sweep_keeps_its_own_name(
        self, grid: Path, results: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lost(*_: object, **__: object) -> None:
            raise BackendError("the cluster is lost")

        monkeypatch.setattr(processes, "computed", lost)
        with pytest.raises(BackendError, match="^the cluster is lost$"):
            list(sweeping.sweep(read_grid(grid, PosedRun), results))

    def test_a_process_that_is_killed_is_said(self, grid: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def killed(*_: object, **__: object) -> Iterator[Row]:
            yield read_grid(grid, PosedRun)[0].row()
            raise BrokenExecutor

        monkeypatch.setattr(processes, "computed", killed)
        with pytest.raises(BackendError, match="goes on from there"):
            list(sweeping.sweep(read_grid(grid, PosedRun), results))
        assert len(read_rows(results)) == 1

    def test_jobs_are_for_this_machine(self, grid: Path, results: Path) -> None:
        done = run("sweep", grid, "-o", results, "--jobs", 2, "--dask", "127.0.0.1:1")
        assert isinstance(done.exception, UsageError)

    def test_a_worker_that_is_lost_loses_no_row(self, grid: Path, tmp_path: Path, workers: Workers) -> None:
        grid.write_text(GRID.replace("[2, 3, 4]", str([*range(2, 30)])))
        runs = read_grid(grid, PosedRun)
        found = sweeping.sweep(runs, tmp_path / "cluster.jsonl", dask=workers.address)
        rows = [next(found)]
        workers.kill_one()
        rows += found
        assert len(rows) == len({row["digest"] for row in rows}) == len(runs)
        assert lasting(rows) == lasting(list(sweeping.sweep(runs, tmp_path / "serial.jsonl")))
        assert lasting(rows) == lasting(read_rows(tmp_path / "cluster.jsonl"))


class Workers:
    """A Dask scheduler and two workers on this machine."""

    def __init__(self, start: Callable[..., subprocess.Popen[bytes]]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        start("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        one = ("--nthreads", "1", "--no-nanny", "--no-dashboard")
        self._processes = [start("worker", self.address, *one) for _ in range(2)]

    def kill_one(self) -> None:
        self._processes[0].kill()
        self._processes[0].wait()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    pytest.importorskip("dask", reason="a cluster needs the extra `dask`")
    distributed = pytest.importorskip("distributed", reason="a cluster needs the extra `dask`")
    started: list[subprocess.Popen[bytes]] = []

    def start(what: str, *options: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", f"distributed.cli.dask_{what}", *options]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(line, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet))
        return started[-1]

    try:
        cluster = Workers(start)
        with distributed.Client(cluster.address, timeout=LIMIT, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=LIMIT)
        yield cluster
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_rows_are_json_of_every_reader(grid: Path, results: Path) -> None:
    list(sweeping.sweep(read_grid(grid, PosedRun), results))

    def refuse(constant: str) -> None:
        raise InvalidInputError(constant)

    for line in results.read_text().splitlines():
        assert isinstance(json.loads(line, parse_constant=refuse), dict)
