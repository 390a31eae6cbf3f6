"""Problems with a number that a paper prints for their optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dualmech import workloads
from dualmech.crosscheck.papers.fitness.printed import FFU, PRIVACY_COSTS
from dualmech.crosscheck.papers.printed import Interval, is_rounding
from dualmech.problems.fitness import FitnessForUse


@dataclass(frozen=True, slots=True)
class PrintedCase:
    """A problem and a number that a paper prints for its optimum."""

    name: str  # How rows and tests call it
    problem: Callable[[], FitnessForUse]  # Builds the problem; cheap to keep, built when needed
    # By column: numbers as the paper prints them, digits included: a text such as ``"4.46"``
    printed: dict[str, str]
    source: str  # Paper and table

    def confirms(self, column: str, interval: Interval) -> bool:
        """Whether a printed number is a rounding of something in a certified interval."""
        return is_rounding(self.printed[column], interval)


def _prefix(d: int) -> Callable[[], FitnessForUse]:
    return lambda: FitnessForUse(workloads.prefix(d), targets=1.0)


TABLE_2 = tuple(
    PrintedCase(f"prefix {d}", _prefix(d), {"interior point": value, "SM-II": value}, f"{FFU}, Table 2")
    for d, value in PRIVACY_COSTS.items()
)
"""Squared privacy cost of the prefix workload at variance targets 1."""
