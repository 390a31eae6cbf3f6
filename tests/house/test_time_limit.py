"""A limit on seconds: one moment for all parts of a run, after which what was found is returned, judged."""

from __future__ import annotations

import itertools
import types
from typing import Any

import cvxpy as cp
import pytest

import dualmech as dm
from dualmech import fast, progress, reference
from dualmech.fast import fitness
from dualmech.fast.engine import loop
from dualmech.fast.local import columns
from dualmech.geometry import local
from dualmech.watching import without_warnings

NO_TIME = 1e-9

PRODUCT = dm.FitnessForUse(dm.workloads.kron(dm.workloads.prefix(4), dm.workloads.cdf(5)), targets=1.0)
TABLES = dm.workloads.query_tables({"a": 5, "b": 3}, {"a": dm.workloads.prefix(5)}, ways=(1, 2))
STAGED = dm.FitnessForUse(dm.Workload([[1, 0, 0], [1, 1, 0], [0, 0, 1]]), targets=[1, 1, 4])

RUNS = {
    "product": lambda layer: layer.solve(PRODUCT, time_limit=NO_TIME),
    "split": lambda layer: layer.solve(
        dm.FitnessForUse(TABLES, {1: 1.0, 2: 4.0}, geometry="split"), time_limit=NO_TIME
    ),
    "refinement": lambda layer: layer.refine(STAGED, time_limit=NO_TIME),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that goes on by a second whenever a deadline looks at it."""
    ticks = itertools.count(1)
    made = types.SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr(progress, "time", made)


def quietly(run: Any, *arguments: Any) -> Any:
    with without_warnings():
        return run(*arguments)


@pytest.mark.parametrize("layer", [fast, reference], ids=["fast", "reference"])
@pytest.mark.parametrize("run", RUNS.values(), ids=[*RUNS])
def test_all_parts_of_a_run_share_it(run: Any, layer: Any) -> None:
    answer = quietly(run, layer)
    solution = getattr(answer, "solution", answer)
    assert solution.certificate.feasible and solution.mechanism.rho > 0
    assert solution.status is dm.Status.STEPS_EXHAUSTED
    assert solution.iterations <= 4  # each part has begun, and no more


def test_a_refinement_that_ends_early_says_so() -> None:
    answer = quietly(lambda: fast.refine(STAGED, time_limit=NO_TIME))
    assert len(answer.stages) == 1 and not answer.certified


def test_steps_end_when_time_is_up_and_no_sooner(clock: None) -> None:
    steps: list[int] = []
    for seconds in (3.0, 6.0, 1e6):
        limits = loop.Limits.validated(1e-12, time_limit=seconds)
        problem = dm.FitnessForUse(dm.workloads.prefix(16), targets=1.0)
        steps.append(quietly(fitness.solve_on_geometry, problem, limits).iterations)
    assert steps[0] < steps[1] < steps[2]


def test_what_cvxpy_takes_to_compile_counts(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    solve = cp.Problem.solve

    def noted(self: cp.Problem, *arguments: Any, **options: Any) -> Any:
        given.append(options["time_limit"])
        return solve(self, *arguments, **options)

    monkeypatch.setattr(cp.Problem, "solve", noted)
    reference.solve(STAGED, time_limit=1000.0)
    assert 0 < given[0] < 1000


def test_attempts_share_it(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that does not satisfy the judge is asked for again, in the time that is left."""
    given: list[float] = []
    run = reference.backends.run

    def noted(*arguments: Any, **options: Any) -> Any:
        given.append(options["deadline"].left)
        return run(*arguments, **options)

    monkeypatch.setattr(reference.backends, "run", noted)
    quietly(lambda: reference.solve(STAGED, tol=1e-15, time_limit=1000.0))
    assert len(given) > 1 and given == sorted(given, reverse=True) and given[-1] < given[0]


@pytest.mark.parametrize("method", ["exact", "restart"])
def test_weighing_patterns_ends_within_a_step(clock: None, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    newton, steps = columns._newton_step, []

    def noted(*arguments: Any) -> Any:
        steps.append(0)
        return newton(*arguments)

    monkeypatch.setattr(columns, "_step", noted)
    problem = dm.LocalStrategy(dm.workloads.prefix(8), 1.0)
    answer = quietly(lambda: fast.solve(problem, method=method, time_limit=5.0))
    assert len(steps) <= 5 and answer.certificate.feasible
    assert answer.status is dm.Status.STEPS_EXHAUSTED and "was stopped after" in answer.message


def test_patterns_are_priced_where_time_allows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    price, sizes = local.worst_by_size, []

    def noted(matrix: Any, epsilon: float) -> Any:
        sizes.append(len(matrix))
        return price(matrix, epsilon)

    monkeypatch.setattr(local, "worst_by_size", noted)
    answer = quietly(lambda: fast.solve(dm.LocalStrategy(dm.workloads.prefix(29), 1.0), time_limit=NO_TIME))
    assert max(sizes, default=0) < 29 and answer.gap < 10
