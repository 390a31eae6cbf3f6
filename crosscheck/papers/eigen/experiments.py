"""Experiments of the Eigen-Design paper, solved: its strategy, its rivals and its bound beside the certified optimum.

Errors are root mean squares over all queries at one privacy cost, so their ratios depend neither on that cost nor on
the number of queries. The unit here is the singular value bound (EIG, Theorem 2), a closed form.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from dualmech import fast
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.eigen.instances import EigenInstance
from dualmech.crosscheck.papers.eigen.printed import BOUND, Claim
from dualmech.crosscheck.papers.printed import Interval, rounded_from, with_allowance
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.crosscheck.papers.verdicts import Evidence, InstanceVerdict, verdict
from dualmech.problems.variance import TotalVariance

OPTIMUM_TOLERANCE = 1e-5
"""Gap to which optima of total variance are solved; root errors are known to half of it."""

DESIGN_TOLERANCE = 1e-7  # gap to which Program 1 is solved
ROUNDING = 1e-6  # relative allowance for rounding in errors that nothing was optimised for, and in the bound


@dataclass(frozen=True, slots=True)
class SolvedInstance:
    """An instance, solved. All errors are over the singular value bound."""

    instance: EigenInstance
    optimum: Interval  # Proven interval of the least error of any strategy
    # Error of the Eigen-Design as found, Program 1 solved to `DESIGN_TOLERANCE`. Other weights that
    # solve it as well may leave other columns to complete, and so another error
    # (`dualmech.crosscheck.papers.eigen.completion`).
    design: Interval
    # By name: errors of the rivals; over all orders of the cells where the instance has several
    rivals: dict[str, Interval]
    gap: float  # Of the total variance proven, relative
    certified: bool  # Whether the optimum and Program 1 were both proven to their tolerances
    seconds: float  # From the instance to the optimum

    @property
    def outcome(self) -> Agreement:
        """Whether everything was certified; a verdict on the paper does not enter."""
        return certified_outcome(self.certified)

    @property
    def best(self) -> str:
        """The rival of least error."""
        return min(self.rivals, key=lambda name: self.rivals[name])

    def factor(self, name: str) -> Interval:
        """Return a rival's error, or the singular value bound, over the error of the Eigen-Design."""
        return ratio((1.0, 1.0) if name == BOUND else self.rivals[name], self.design)

    @property
    def verdict(self) -> InstanceVerdict:
        """What the printed numbers say about the design's error behind them, held against the design's here.

        Every printed number is a known error divided by the design's, so each implies the latter. The columns
        are independent of one another.
        """
        return verdict(self._evidence, self.design)

    @property
    def implied(self) -> dict[str, Interval]:
        """The errors of the paper's design that the printed numbers imply, by column."""
        return {item.column: item.implied for item in self._evidence}

    @property
    def _evidence(self) -> list[Evidence]:
        known = self.rivals | {BOUND: with_allowance(1.0, ROUNDING)}
        return [Evidence(name, name, known[name], text) for name, text in self.instance.printed.items()]

    def within(self, claim: Claim) -> bool:
        """Whether the best rival and the bound are where the text says, to its digits."""
        low, high = self.factor(self.best)
        least, most = rounded_from(claim.factor[0])[0], rounded_from(claim.factor[1])[1]
        return least <= high and low <= most and self.design[0] <= rounded_from(claim.over_bound)[1]


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """A row of the table of alternative workloads: a name and its readings."""

    name: str
    readings: tuple[SolvedInstance, ...]

    @property
    def outcome(self) -> Agreement:
        """Whether every reading is certified."""
        certified = all(reading.certified for reading in self.readings)
        return certified_outcome(certified)

    @property
    def gap(self) -> float:
        """The widest certified gap."""
        return max(reading.gap for reading in self.readings)


def solve(instance: EigenInstance) -> SolvedInstance:
    """Solve an instance: the certified optimum, the Eigen-Design, and every rival."""
    begun = time.perf_counter()
    workload = instance.build()
    problem = TotalVariance(workload, geometry="dense")
    with without_warnings():
        found = fast.eigen_design(workload, tol=DESIGN_TOLERANCE, bound_tol=None)
        best = fast.solve(problem, tol=OPTIMUM_TOLERANCE)
    bound = problem.certify(best.primal, np.ones(workload.shape[1])).lower_bound
    unit = bound, bound
    errors = {name: instance.errors(name, workload) for name in instance.rivals}
    return SolvedInstance(
        instance,
        root_errors(best.certificate.interval, unit),
        root_errors(with_allowance(found.total_variance, ROUNDING), unit),
        {
            name: root_errors((least * (1 - ROUNDING), largest * (1 + ROUNDING)), unit)
            for name, (least, largest) in errors.items()
        },
        best.gap,
        best.certificate.certifies(OPTIMUM_TOLERANCE) and found.weighting.gap <= DESIGN_TOLERANCE,
        time.perf_counter() - begun,
    )


def solve_row(name: str, instances: tuple[EigenInstance, ...]) -> WorkloadRow:
    """Solve the readings of a row."""
    return WorkloadRow(name, tuple(solve(instance) for instance in instances))


def ratio(one: Interval, other: Interval) -> Interval:
    """Return the interval of a quotient of positive numbers."""
    return one[0] / other[1], one[1] / other[0]


def root_errors(totals: Interval, unit: Interval) -> Interval:
    """Return root mean square errors over those of a unit, from total variances."""
    low, high = ratio(totals, unit)
    return math.sqrt(low), math.sqrt(high)
