"""BLAS threads: few for small solves, and the user's own number again when the last one ends, in whatever order."""

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
from dualmech.fast.engine import loop


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
        patch.setattr(loop, "_controller", lambda: blas)
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
                opened[event].enter_context(loop.threads_for_rank(8))
            elif event - 3 in opened:
                opened.pop(event - 3).close()
            assert blas.threads == (1 if opened else 2)


def test_large_ranks_leave_the_number_alone() -> None:
    with pretended() as blas, loop.threads_for_rank(loop.FEW_ROWS + 1):
        assert blas.threads == 2


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
        return [each["num_threads"] for each in loop._controller().info() if each["user_api"] == "blas"]

    before = numbers()
    with loop.threads_for_rank(8):
        assert set(numbers()) <= {1}
    assert numbers() == before
