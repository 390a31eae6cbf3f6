"""What every run of a solver does, whatever the family: news, limits, starts, one answer twice, options refused."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.validate import Array


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


COVARIANCES = [half @ half.T / 8 + 0.1 * np.eye(8) for half in (normal(8, 8, seed=seed) for seed in range(3))]
RANGES = dm.workloads.random_range(10, 25, rng=3)
PREFIX = dm.workloads.prefix(16)
PROBLEMS: dict[str, Any] = {
    "fitness": dm.FitnessForUse(RANGES, np.linspace(1, 3, 25)),
    "variance": dm.TotalVariance(RANGES, np.linspace(1, 3, 25)),
    "weighting": dm.QueryWeighting(PREFIX, dm.designs.eigen_queries(PREFIX)),
    "softmax": dm.SoftmaxFitness(PREFIX, 1.0, 20, 20),
    "common": dm.CommonMechanism([dm.LinearGaussianMechanism(np.eye(8), each) for each in COVARIANCES]),
    "reuse": dm.ReuseFitness(PREFIX, 1.0, dm.LinearGaussianMechanism(np.ones((1, 16)), [[3.0]])),
    "local": dm.LocalStrategy(dm.workloads.prefix(6), 1.0),
    "estimate": dm.NonnegativeEstimate(dm.workloads.all_range(6), normal(21)),
    "projection": dm.LocalProjection(normal(64, 16), 0.01),
}
NEARBY: dict[str, Any] = {
    "fitness": dm.FitnessForUse(RANGES, np.linspace(1, 3, 25) * np.linspace(1, 1.01, 25)),
    "variance": dm.TotalVariance(RANGES, np.linspace(1, 3, 25) * np.linspace(1, 1.01, 25)),
    "softmax": dm.SoftmaxFitness(PREFIX, 1.0, 18, 18),
}
RUNS = [(family, name) for family in ("fitness", "variance") for name in ("auto", "newton", "fixed_point")] + [
    (family, "auto") for family in ("weighting", "softmax", "common", "reuse", "local", "estimate", "projection")
]

TAKEN = {"local": "exact", "estimate": "active_set", "projection": "newton"}
"""What ``auto`` takes, where the solver says it."""

OWN_UNITS = ("weighting", "local", "estimate", "projection")
"""Families whose news are of the solver's own program, in other units than the judge's."""

SEVERAL_A_STEP = ("common", "local")
"""Families that count several decompositions a step."""

of_runs = pytest.mark.parametrize(("family", "method"), RUNS)


@of_runs
def test_the_callback_hears_of_every_step_and_two_runs_are_identical(family: str, method: str) -> None:
    news: list[dm.Progress] = []
    answer = fast.solve(PROBLEMS[family], method=method, callback=news.append)
    assert answer.status is dm.Status.CERTIFIED and answer.solver == f"fast:{TAKEN.get(family, method)}"
    assert tuple(news) == answer.history and all(isinstance(each, dm.Progress) for each in news)
    counts = [each.iteration for each in news]
    assert counts == sorted(set(counts)) and counts[-1] == answer.iterations
    for one, two in itertools.pairwise(news):
        assert one.objective >= two.objective and one.lower_bound <= two.lower_bound
        assert one.seconds <= two.seconds
    assert answer.seconds >= news[-1].seconds
    if family not in OWN_UNITS:
        assert news[-1].gap == pytest.approx(answer.gap, rel=1e-3)
        assert news[-1].objective == pytest.approx(answer.objective, rel=1e-12)
    again = fast.solve(PROBLEMS[family], method=method)
    np.testing.assert_array_equal(answer.primal, again.primal)
    for name in answer.dual.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(answer.dual, name), getattr(again.dual, name))
    assert (answer.iterations, answer.certificate) == (again.iterations, again.certificate)


@pytest.mark.parametrize(("family", "method"), [run for run in RUNS if run[0] != "estimate"])  # a step or two
def test_when_steps_or_time_run_out_the_gap_is_honest(family: str, method: str) -> None:
    optimum = fast.solve(PROBLEMS[family], tol=1e-8).objective
    limits: list[dict[str, Any]] = [
        {"max_iterations": steps} for steps in ((1, 2, 5) if family == "fitness" else (1, 2))
    ]
    for limit in (*limits, {"time_limit": 1e-9}):
        with pytest.warns(dm.errors.UncertifiedWarning, match="STEPS_EXHAUSTED") as caught:
            answer = fast.solve(PROBLEMS[family], method=method, **limit)
        assert caught[0].filename == __file__
        assert answer.status is dm.Status.STEPS_EXHAUSTED
        assert family in SEVERAL_A_STEP or answer.iterations <= limit.get("max_iterations", answer.iterations)
        assert answer.certificate.feasible and math.isfinite(answer.gap) and answer.gap > answer.tol
        assert answer.lower_bound <= optimum <= answer.objective


@pytest.mark.parametrize(("family", "method"), [run for run in RUNS if run[0] in NEARBY])
def test_a_warm_start_takes_no_more_steps(family: str, method: str) -> None:
    first = fast.solve(PROBLEMS[family], method=method)
    for following in (PROBLEMS[family], NEARBY[family]):
        cold, warm = (fast.solve(following, method=method, start=start) for start in (None, first))
        assert warm.status is dm.Status.CERTIFIED and warm.iterations <= cold.iterations
        assert max(cold.lower_bound, warm.lower_bound) <= min(cold.objective, warm.objective) * (1 + 1e-12)


def test_an_optimum_of_fitness_for_use_starts_soft_maxima() -> None:
    answer = fast.solve(PROBLEMS["softmax"], start=fast.solve(dm.FitnessForUse(PREFIX, 1.0)))
    assert answer.status is dm.Status.CERTIFIED


@pytest.mark.parametrize("family", NEARBY)
def test_a_start_of_another_size_or_kind_is_refused(family: str) -> None:
    others: list[Any] = [dm.FitnessForUse(dm.workloads.prefix(4)), dm.TotalVariance(dm.workloads.prefix(4))]
    if family == "variance":
        others.append(dm.FitnessForUse(RANGES))
    for other in others:
        with pytest.raises(dm.errors.InvalidInputError, match="start"):
            fast.solve(PROBLEMS[family], start=fast.solve(other))


@pytest.mark.parametrize("family", PROBLEMS)
def test_options_out_of_range_are_refused(family: str) -> None:
    refused: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("tol", (0, -1e-6, np.nan, np.inf, "small", None, [1e-6])),
        ("max_iterations", (0, -1, 1.5, True, "many")),
        ("time_limit", (0, -1.0, np.nan, np.inf, "long")),
        ("method", ("quick", "", None, 1)),
        ("callback", (3,)),
    )
    for name, values in refused:
        for value in values:
            with pytest.raises(dm.errors.DualmechError, match=name) as error:
                fast.solve(PROBLEMS[family], **{name: value})
            assert isinstance(error.value, ValueError | TypeError)
