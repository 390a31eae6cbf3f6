"""The local privacy paper's gradient descent (its algorithm 2) against certified optima, and what a step takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

from dualmech import fast
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.local.instances import ALL_RANGE, HISTOGRAM, PREFIX, WORKLOADS, LocalInstance
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.progress import Progress

TOLERANCE = 1e-6

SEEDS, QUICK_SEEDS = 10, 3

SIZES, QUICK_SIZES = (8, 16), (4,)

EPSILONS = (1.0, 4.0)

METHODS = ("published_gradient", "gradient")
"""Gradient descent with the derivative of the authors' code, and with that of the text."""

STEP_SIZES, QUICK_STEP_SIZES = (16, 32, 64, 128, 256, 512), (16, 32, 64)

STEPS = 15  # steps that are timed (section 6.4)


@dataclass(frozen=True, slots=True)
class DescentRow:
    """Gradient descent on a workload at one n and ε."""

    instance: LocalInstance
    epsilon: float
    objectives: dict[str, tuple[float, ...]]  # By method: L over the optimum, a random start each
    # By method: the same for the average variance, L less the workload's squares
    variances: dict[str, tuple[float, ...]]
    gap: float  # Of the optimum, proven, relative
    # For the median start, of all methods, and for the certified optimum
    seconds: float
    exact_seconds: float

    @property
    def outcome(self) -> Agreement:
        """Whether the optimum is certified, and nothing fell below it."""
        if min(min(found) for found in self.objectives.values()) < 1 - 2 * TOLERANCE:
            return Agreement.DISAGREE
        return certified_outcome(self.gap <= TOLERANCE)


def solve(instance: LocalInstance, epsilon: float, seeds: int) -> DescentRow:
    """Run gradient descent from some random starts, and the exact solver once."""
    problem = LocalStrategy(instance.build(), epsilon)
    squares = float((problem.root**2).sum())
    with without_warnings():
        best = fast.solve(problem, tol=TOLERANCE)
        found = {
            method: [fast.solve(problem, method=method, rng=seed) for seed in range(seeds)]
            for method in METHODS
        }
    return DescentRow(
        instance,
        epsilon,
        {method: tuple(each.objective / best.objective for each in runs) for method, runs in found.items()},
        {
            method: tuple((each.objective - squares) / (best.objective - squares) for each in runs)
            for method, runs in found.items()
        },
        best.gap,
        median(each.seconds for runs in found.values() for each in runs),
        best.seconds,
    )


def rows(quick: bool) -> list[Callable[[], DescentRow]]:
    """Return what to compute; what has fewer than three attributes has no 3-way marginals."""
    sizes, seeds = (QUICK_SIZES, QUICK_SEEDS) if quick else (SIZES, SEEDS)
    names = (HISTOGRAM, PREFIX, ALL_RANGE) if quick else tuple(WORKLOADS)
    instances = [LocalInstance(name, size) for size in sizes for name in names]
    return [
        partial(solve, each, epsilon, seeds) for each in instances if each.queries for epsilon in EPSILONS
    ]


@dataclass(frozen=True, slots=True)
class StepRow:
    """Seconds of one step of gradient descent on histograms of n types, with 4 n outputs, on one thread."""

    size: int  # n
    # Per step, by the clock and by the processor
    seconds: float
    processor_seconds: float

    @property
    def outcome(self) -> Agreement:
        """Nothing is proven here."""
        return Agreement.AGREE

    @property
    def gap(self) -> float:
        """Nothing is optimised here."""
        return 0.0


def time_steps(size: int) -> StepRow:
    """Time `STEPS` steps one by one, and take the medians: the first ones of the search for a step length."""
    problem = LocalStrategy(LocalInstance(HISTOGRAM, size).build(), 1.0)
    clocks: list[tuple[float, float]] = []

    def note(news: Progress) -> None:
        clocks.append((time.perf_counter(), time.process_time()))

    with without_warnings():
        fast.solve(problem, method="gradient", max_iterations=STEPS + 1, callback=note)
    wall, processor = (
        median(after[clock] - before[clock] for before, after in pairwise(clocks)) for clock in (0, 1)
    )
    return StepRow(size, wall, processor)


def steps(quick: bool) -> list[Callable[[], StepRow]]:
    """Return what to time."""
    return [partial(time_steps, size) for size in (QUICK_STEP_SIZES if quick else STEP_SIZES)]
