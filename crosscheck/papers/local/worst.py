"""Worst case against average (the local privacy paper, sections 5.1 and 6.5), with both optima certified.

The paper optimises the average and hopes for the worst; the worst case has a convex program of its own, so the price of
that hope can be proven.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dualmech import fast
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.local.instances import WORKLOADS, LocalInstance
from dualmech.crosscheck.papers.printed import Interval
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.problems.local.strategy import LocalStrategy

TOLERANCE = 1e-6

SIZES, QUICK_SIZES = (8, 16), (4,)

EPSILONS, QUICK_EPSILONS = (0.5, 1.0, 2.0, 4.0), (1.0,)


@dataclass(frozen=True, slots=True)
class WorstRow:
    """A workload at one n and ε; variances are of one user."""

    instance: LocalInstance
    epsilon: float
    ratio: float  # Worst over average variance of the strategy that is the best on average
    allowed: float  # What theorem 5.1 allows for it, ``e^ε (1 + ‖W‖² / n over the average)``
    excess: Interval  # How far its worst variance is above the least possible, relative; proven
    gap: float  # The wider of the two proven gaps, relative
    seconds: float  # For both optima

    @property
    def outcome(self) -> Agreement:
        """Whether both optima are certified and theorem 5.1 holds."""
        if not 1 - TOLERANCE <= self.ratio <= self.allowed:
            return Agreement.DISAGREE
        return certified_outcome(self.gap <= TOLERANCE)


def solve(instance: LocalInstance, epsilon: float) -> WorstRow:
    """Solve both criteria."""
    workload, begun = instance.build(), time.perf_counter()
    problem = LocalStrategy(workload, epsilon)
    with without_warnings():
        mean = fast.solve(problem, tol=TOLERANCE)
        worst = fast.solve(LocalStrategy(workload, epsilon, criterion="worst"), tol=TOLERANCE)
    seconds = time.perf_counter() - begun
    mechanism = problem.mechanism(mean.primal)
    average, largest = mechanism.average_variance(), mechanism.worst_variance()
    squares = float((problem.root**2).sum()) / instance.size
    low, high = worst.certificate.interval
    return WorstRow(
        instance,
        epsilon,
        largest / average,
        math.exp(epsilon) * (1 + squares / average),
        (max(largest / high - 1, 0.0), largest / low - 1),
        max(mean.gap, worst.gap),
        seconds,
    )


def rows(quick: bool) -> list[Callable[[], WorstRow]]:
    """Return what to compute; what has fewer than three attributes has no 3-way marginals."""
    sizes, epsilons = (QUICK_SIZES, QUICK_EPSILONS) if quick else (SIZES, EPSILONS)
    instances = [LocalInstance(name, size) for size in sizes for name in WORKLOADS]
    return [partial(solve, each, epsilon) for each in instances if each.queries for epsilon in epsilons]
