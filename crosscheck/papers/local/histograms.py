"""Histograms under local privacy: the one workload whose optimum is a closed form, at every size.

Subset selection meets the bound ``‖W 1‖²/n + ‖W Π‖_*²/τ`` on histograms, so no unbiased linear mechanism does better,
on average or in the worst case. Randomised response is subset selection with sets of one type, so it is optimal
exactly where these are the best sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualmech import workloads
from dualmech.crosscheck import rivals
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.local.instances import (
    BEST_HADAMARD,
    HADAMARD,
    HISTOGRAM,
    RAPPOR,
    RESPONSE,
    LocalInstance,
)
from dualmech.crosscheck.papers.solving import certified_outcome
from dualmech.geometry.local import strategies
from dualmech.mechanisms.local import NORMALISED_VARIANCE
from dualmech.problems.local.strategy import LocalStrategy

SIZES, QUICK_SIZES = (8, 64, 512), (8, 64)

EPSILONS = (0.5, 1.0, 2.0, 4.0)

PROVEN = 1e-9  # distance from the bound up to which a closed form counts as meeting it, relative
LISTED = 8  # user types up to which all sets are listed and the judge prices every pattern

OTHERS = (RESPONSE, RAPPOR, HADAMARD, BEST_HADAMARD)


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """Histograms of n user types at one ε."""

    size: int  # n
    epsilon: float
    members: int  # Members of the reported sets, k
    users: float  # That subset selection needs, in both the average and the worst case (α = 0.01)
    paper_bound: float  # Users needed by the paper's bound, ``(e^-ε - 1/n) / α``, at least 0
    others: dict[str, float]  # By name: how many times as many users other mechanisms need
    gap: float  # Of the objective of subset selection over the bound, relative

    @property
    def outcome(self) -> Agreement:
        """Whether subset selection meets the bound."""
        return certified_outcome(self.gap <= PROVEN)


def solve(size: int, epsilon: float) -> HistogramRow:
    """Compute a row."""
    histogram = workloads.identity(size)
    best = rivals.subset_selection(size, epsilon)
    users = best.sample_complexity(histogram)
    problem = LocalStrategy(histogram, epsilon)
    if size <= LISTED:
        strategy = best.with_listed_sets().strategy
        gap = problem.certify(strategy, problem.dual_at(strategy)).gap
    else:
        gap = best.objective(histogram) / strategies.trace_bound(problem.root, epsilon) - 1
    instance = LocalInstance(HISTOGRAM, size)
    others = {name: instance.rival(name, epsilon).sample_complexity(histogram) / users for name in OTHERS}
    paper = max(math.exp(-epsilon) - 1 / size, 0.0) / NORMALISED_VARIANCE
    return HistogramRow(size, epsilon, int(np.argmax(best.sizes)), users, paper, others, gap)


def rows(quick: bool) -> list[Callable[[], HistogramRow]]:
    """Return what to compute."""
    sizes = QUICK_SIZES if quick else SIZES
    return [partial(solve, size, epsilon) for size in sizes for epsilon in EPSILONS]


def response_is_optimal_from(size: int) -> float:
    """Return the least ε at which randomised response is optimal on histograms of n user types.

    It is where sets of two members stop to be better than single ones, ``(e^ε + n - 1)² / (n - 1)`` against
    ``(2 e^ε + n - 2)² / (2 (n - 2))``: about ``ln(n / √2)``.
    """
    if size < 4:
        return 0.0
    one, two = math.sqrt(size - 1), math.sqrt(2 * (size - 2))
    growth = ((size - 1) * two - (size - 2) * one) / (2 * one - two)
    return math.log(growth)
