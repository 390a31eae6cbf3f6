"""BLAS threads: one for a solve unless more are asked for, and the user's own number when the last one ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import threads


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


@pytest.mark.parametrize("said", ["", "0", "-1", "two", "1.5"])
def test_what_is_no_number_of_threads(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = dm.FitnessForUse(dm.workloads.prefix(3))
    with pytest.raises(dm.errors.DualmechError, match="threads"):
        dm.fast.solve(problem, threads=0)
    monkeypatch.setenv(threads.THREADS, said)
    with pytest.raises(dm.errors.InvalidInputError, match="DUALMECH_THREADS must be an integer"):
        dm.fast.solve(problem)


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
