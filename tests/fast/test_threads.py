"""Threads of BLAS and of backends: one for a solve unless more are asked for, and what there was in the end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import reference, threads
from dualmech.problems.base import Problem


class Blas:
    """A library whose number of threads is that of the process, limited and restored as threadpoolctl does."""

    def __init__(self) -> None:
        self.threads = 2

    def limit(self, limits: int, user_api: str) -> Limit:
        assert user_api == "blas"
        limit = Limit(self, self.threads)
        self.threads = limits
        return limit


@dataclass
class Limit:
    blas: Blas
    before: int

    def restore_original_limits(self) -> None:
        self.blas.threads = self.before


@contextlib.contextmanager
def pretended() -> Iterator[Blas]:
    blas = Blas()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "_controller", lambda: blas)
        yield blas
    assert blas.threads == 2


@given(order=st.permutations(range(6)))
def test_solves_that_overlap_in_any_order_restore_what_there_was(order: list[int]) -> None:
    """Numbers below 3 open a context, those above close it, if it is open by then."""
    opened: dict[int, contextlib.ExitStack] = {}
    with pretended() as blas, contextlib.ExitStack() as rest:
        for event in order:
            if event < 3:
                opened[event] = rest.enter_context(contextlib.ExitStack())
                opened[event].enter_context(threads.blas_threads())
            elif event - 3 in opened:
                opened.pop(event - 3).close()
            assert blas.threads == (1 if opened else 2)


def test_a_problem_is_stated_and_judged_in_as_many_threads_as_a_solve() -> None:
    """With all cores a judge of two cells took 27 times as long beside two other processes."""
    seen: list[int] = []
    with pretended() as blas:

        class Noted(Problem[Any, Any]):
            def __init__(self) -> None:
                seen.append(blas.threads)

            def certify(self, primal: object, dual: object) -> Any:
                seen.append(blas.threads)

        class Again(Noted):
            """Its methods are those of its base, limited once."""

        Again().certify(None, None)
        assert seen == [1, 1] and Again.certify is Noted.certify


def test_more_threads_by_argument_or_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    problem = dm.FitnessForUse(dm.workloads.prefix(6))
    with pretended() as blas:
        for said, given, expected in ((None, None, 1), ("3", None, 3), ("3", 4, 4), (None, 2, 2)):
            monkeypatch.delenv(threads.THREADS, raising=False)
            if said is not None:
                monkeypatch.setenv(threads.THREADS, said)
            dm.fast.solve(problem, threads=given, callback=lambda _: seen.append(blas.threads))
            assert {*seen} == {expected}
            seen.clear()
        with threads.blas_threads(5):
            dm.fast.solve(problem, callback=lambda _: seen.append(blas.threads))
        assert {*seen} == {5}, "what holds around a solve holds within it"


def test_other_numbers_of_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = dm.FitnessForUse(dm.workloads.prefix(3))
    with pytest.raises(dm.errors.DualmechError, match="threads"):
        dm.fast.solve(problem, threads=0)
    for said in ("", "0", "-1", "two", "1.5"):
        monkeypatch.setenv(threads.THREADS, said)
        with pytest.raises(dm.errors.InvalidInputError, match="DUALMECH_THREADS must be an integer"):
            dm.fast.solve(problem)


def test_backends_get_as_many_as_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    solve = cp.Problem.solve

    def recording(program: Any, **settings: Any) -> Any:
        seen.append(settings)
        return solve(program, **settings)

    monkeypatch.setattr(cp.Problem, "solve", recording)
    problem = dm.FitnessForUse(dm.workloads.prefix(3))
    with pretended():
        for said, given, expected in ((None, None, 1), ("3", None, 3), ("3", 2, 2)):
            monkeypatch.delenv(threads.THREADS, raising=False)
            if said is not None:
                monkeypatch.setenv(threads.THREADS, said)
            reference.solve(problem, threads=given)
            with threads.blas_threads(given):
                reference.solve(problem)
            reference.solve(problem, max_threads=5)
            assert [each["max_threads"] for each in seen] == [expected, expected, 5]
            seen.clear()
        reference.solve(problem, backend="SCS")
        assert "max_threads" not in seen[-1]
        with pytest.raises(dm.errors.InvalidInputError, match="threads must"):
            reference.solve(problem, threads=0)


SOLVES = """
import multiprocessing, sys
import dualmech as dm
from dualmech import reference

def solve(threads):
    return reference.solve(dm.FitnessForUse(dm.workloads.prefix(8)), threads=threads).objective

if __name__ == "__main__":
    for start, before in (each.split(":") for each in sys.argv[1:]):
        found = solve(int(before))
        with multiprocessing.get_context(start).Pool(1) as pool:
            assert pool.map(solve, [None, None]) == [solve(None)] * 2
"""


@pytest.mark.parametrize(
    "several", [("fork:1", "fork:2", "forkserver:2"), pytest.param(("spawn:2",), marks=pytest.mark.slow)]
)
def test_children_answer_after_their_parent_has_solved(several: tuple[str, ...], tmp_path: Path) -> None:
    """How they are started, and the threads that their parent solved with."""
    known = [each for each in several if each.partition(":")[0] in multiprocessing.get_all_start_methods()]
    if not known:
        pytest.skip(f"this system has none of {several}")
    path = tmp_path / "solves.py"
    path.write_text(SOLVES)
    with subprocess.Popen([sys.executable, str(path), *known], start_new_session=True) as running:
        try:
            assert running.wait(600) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # with the children that wait for ever


def test_concurrent_solves_agree_with_one_and_restore_the_number() -> None:
    together = threading.Barrier(4)
    given = (1.0, 2.0, [1.0, 2, 3, 4, 5, 6])
    problems = [dm.FitnessForUse(dm.workloads.prefix(6), targets) for targets in given]
    alone = [dm.fast.solve(problem).primal for problem in problems]

    def solve(_: int) -> list[Any]:
        together.wait(60)
        return [dm.fast.solve(problem).primal for problem in problems]

    with pretended(), ThreadPoolExecutor(4) as pool:
        for found in pool.map(solve, range(4)):
            for one, other in zip(alone, found, strict=True):
                np.testing.assert_array_equal(one, other)


def test_the_limit_is_one_that_threadpoolctl_sets_and_lifts() -> None:
    def numbers() -> list[int]:
        return [each["num_threads"] for each in threads._controller().info() if each["user_api"] == "blas"]

    before = numbers()
    with threads.blas_threads():
        assert set(numbers()) <= {1}
    assert numbers() == before
