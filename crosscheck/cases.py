"""Printed numbers with their sources, and the problems they were printed for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dualmech import workloads
from dualmech.problems.fitness import FitnessForUse

FFU = "Xiao et al., PVLDB 14(10), 2021"


@dataclass(frozen=True, slots=True)
class Case:
    """A problem and a number that a paper prints for its optimum.

    Attributes
    ----------
    name : str
        How rows and tests call it.
    problem : callable
        Builds the problem; cheap to keep, built when needed.
    printed : mapping of column to text
        Numbers as the paper prints them, digits included: a text such as ``"4.46"``.
    source : str
        Paper and table.
    """

    name: str
    problem: Callable[[], FitnessForUse]
    printed: dict[str, str]
    source: str

    def confirms(self, column: str, interval: tuple[float, float]) -> bool:
        """Whether a printed number is a rounding of something in a certified interval.

        Half a unit of the last printed digit is allowed on either side.
        """
        text = self.printed[column]
        half = 0.5 * 10.0 ** -len(text.partition(".")[2])
        low, high = interval
        return float(text) - half <= high and low <= float(text) + half


def _prefix(d: int) -> Callable[[], FitnessForUse]:
    return lambda: FitnessForUse(workloads.prefix(d), targets=1.0)


TABLE_2 = tuple(
    Case(f"prefix {d}", _prefix(d), {"interior point": value, "SM-II": value}, f"{FFU}, Table 2")
    for d, value in ((2, "1.33"), (4, "1.76"), (8, "2.28"), (16, "2.91"), (64, "4.46"))
)
"""Squared privacy cost of the prefix workload at variance targets 1."""
