"""Where gradient descent begins (the local privacy paper, end of section 4): at random, or at a fixed mechanism.

The text says that beginning at the best known mechanism is never worse than that mechanism, and that beginning at
random tends to end better. Both are held against certified optima here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from dualmech import fast
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.local.instances import (
    ALL_RANGE,
    HADAMARD,
    HISTOGRAM,
    PREFIX,
    RESPONSE,
    TREE,
    WORKLOADS,
    LocalInstance,
)
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.problems.local.strategy import LocalStrategy

TOLERANCE = 1e-6

STARTS = (RESPONSE, HADAMARD, TREE)
"""Fixed mechanisms whose reports can be listed."""

SEEDS, QUICK_SEEDS = 10, 3

SIZE, QUICK_SIZE = 16, 8

EPSILONS, QUICK_EPSILONS = (0.5, 1.0, 2.0, 4.0), (1.0,)


@dataclass(frozen=True, slots=True)
class InitialisationRow:
    """Gradient descent from several starts, on a workload at one n and ε; L is relative to the optimum."""

    instance: LocalInstance
    epsilon: float
    before: dict[str, float]  # By fixed mechanism: its L
    after: dict[str, float]  # The same where the descent from it ends
    random: tuple[float, ...]  # Where descents from random strategies end
    gap: float  # Of the optimum, proven, relative

    @property
    def outcome(self) -> Agreement:
        """Whether the optimum is certified, nothing fell below it, and no descent ended above its start."""
        least = min(*self.after.values(), *self.random)
        risen = max(self.after[name] / self.before[name] for name in self.after)
        if least < 1 - 2 * TOLERANCE or risen > 1 + TOLERANCE:
            return Agreement.DISAGREE
        return certified_outcome(self.gap <= TOLERANCE)

    @property
    def random_is_better(self) -> bool:
        """Whether random starts end, in the median, below the descent from the best fixed mechanism of all."""
        best = min(self.before, key=lambda name: self.before[name])
        return median(self.random) < self.after[best]


def solve(instance: LocalInstance, epsilon: float, seeds: int) -> InitialisationRow:
    """Descend from every fixed mechanism and from some random strategies, and solve for the optimum."""
    problem = LocalStrategy(instance.build(), epsilon)
    before, after = {}, {}
    with without_warnings():
        best = fast.solve(problem, tol=TOLERANCE)
        for name in STARTS:
            rival: Any = instance.rival(name, epsilon)
            descent = fast.solve(problem, method="gradient", start=rival.strategy)
            before[name] = rival.objective(problem.workload) / best.objective
            after[name] = descent.objective / best.objective
        random = [fast.solve(problem, method="gradient", rng=seed).objective for seed in range(seeds)]
    ends = tuple(each / best.objective for each in random)
    return InitialisationRow(instance, epsilon, before, after, ends, best.gap)


def rows(quick: bool) -> list[Callable[[], InitialisationRow]]:
    """Return what to compute."""
    size, epsilons, seeds = (QUICK_SIZE, QUICK_EPSILONS, QUICK_SEEDS) if quick else (SIZE, EPSILONS, SEEDS)
    names = (HISTOGRAM, PREFIX, ALL_RANGE) if quick else tuple(WORKLOADS)
    return [
        partial(solve, LocalInstance(name, size), epsilon, seeds) for name in names for epsilon in epsilons
    ]
