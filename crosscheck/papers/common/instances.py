"""The mechanisms of the common-mechanism paper's experiments (CMN, section 7), at squared privacy cost 1.

Each adds independent noise of one variance to every answer of its workload, and the mechanisms of one experiment cost
the same. A mechanism at ρ is the one here with its noise divided by √(2ρ); so all of them are stated once, at ρ = 1/2,
and counts are multiplied by √(2ρ) instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualmech import workloads
from dualmech.crosscheck import rivals
from dualmech.crosscheck.papers.common.printed import BRAZIL, HISRACE_CELLS, HISRACE_TABLES
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

HISRACE = Domain([(f"a{attribute}", 2) for attribute in range(7)])
"""Hispanic or Latino, White, Black, American Indian, Asian, Pacific Islander, other: yes or no."""

BRAZIL_TABLE = Domain({"age": 101, "gender": 2})

AGES = 103

CENSUS_TABLE = Domain({"gender": 2, "age": AGES})

BUCKETS = {
    "Total": (0, 103),
    "Age4": (0, 18, 45, 65, 103),
    "Age9": (0, 5, 18, 25, 35, 45, 55, 65, 75, 103),
    "Age23": (
        *(0, 5, 10, 15, 18, 20, 21, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 67, 70, 75, 80, 85),
        103,
    ),
}
"""Where the age buckets of section 7.5.1 begin, and where the last one ends; a bucket holds its first age only."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice between a primary analysis and one that refines it."""

    name: str  # As `dualmech.crosscheck.papers.common.printed` calls it
    domain: Domain  # Attributes of the cells
    ways: tuple[int, int]  # Of the marginals that the two mechanisms measure

    @property
    def workloads(self) -> tuple[Workload, Workload]:
        """What the two mechanisms answer."""
        primary, secondary = (workloads.marginals(self.domain, ways=ways) for ways in self.ways)
        return primary, secondary

    @property
    def mechanisms(self) -> tuple[LinearGaussianMechanism, LinearGaussianMechanism]:
        """The two mechanisms, at squared privacy cost 1."""
        primary, secondary = (independent_noise(workload) for workload in self.workloads)
        return primary, secondary


CHOICES = {
    choice.name: choice
    for choice in (
        Choice(HISRACE_TABLES, HISRACE, (1, 2)),
        Choice(HISRACE_CELLS, HISRACE, (1, 7)),
        Choice(BRAZIL, BRAZIL_TABLE, (1, 2)),
    )
}
"""Sections 7.3 and 7.4."""


def independent_noise(workload: Workload) -> LinearGaussianMechanism:
    """Return the mechanism that adds noise of one variance to every answer, at squared privacy cost 1.

    Examples
    --------
    >>> from dualmech import workloads
    >>> round(independent_noise(workloads.marginals([2, 2, 2], ways=1)).squared_privacy_cost, 9)
    1.0
    """
    variance = rivals.raw_gaussian_variance(workload, 1.0)
    return LinearGaussianMechanism(workload.dense(), variance * np.eye(len(workload)))


def summed_variances(primary: Workload, secondary: Workload) -> Array:
    """Return the variance of each primary answer as the sum of cells of one secondary table, the smallest that has it.

    That is how the code published with the paper takes a primary answer from the secondary mechanism. Least squares,
    which use all tables at once, give no more (`LinearGaussianMechanism.variances`).
    """
    cells, queries = secondary.dense(), primary.dense()
    groups = np.array(secondary.groups)
    inside = (queries @ cells.T) == cells.sum(axis=1)
    counts = np.full(len(primary), np.inf)
    for group in dict.fromkeys(secondary.groups):
        table = groups == group
        whole = np.all(inside[:, table] @ cells[table] == queries, axis=1)
        counts = np.where(whole, np.minimum(counts, inside[:, table].sum(axis=1)), counts)
    return counts * rivals.raw_gaussian_variance(secondary, 1.0)


def histogram(name: str, by_gender: bool = True) -> Workload:
    """Return one of the histograms of ages by gender, `BUCKETS`, over 2 x 103 cells.

    - `name`: which one;
    - `by_gender`: whether Total counts the two genders apart, as the text says, or together, as the published code
      does.
    """
    edges = BUCKETS[name]
    ages = np.arange(AGES)
    buckets = np.array(
        [(low <= ages) & (ages < high) for low, high in zip(edges[:-1], edges[1:], strict=True)]
    )
    apart = np.eye(2) if by_gender or name != "Total" else np.ones((1, 2))
    return Workload(np.kron(apart, buckets.astype(np.float64)), domain=CENSUS_TABLE)


def census(by_gender: bool = True) -> tuple[LinearGaussianMechanism, ...]:
    """Return the four mechanisms of section 7.5, coarsest first, at squared privacy cost 1."""
    return tuple(independent_noise(histogram(name, by_gender)) for name in BUCKETS)
