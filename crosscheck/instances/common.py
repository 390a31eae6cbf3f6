"""The mechanisms of the common-mechanism paper's experiments (CMN, section 7), at cost 1, and its printed numbers.

Each adds independent noise of one variance to every answer of its workload, and the mechanisms of one experiment cost
the same. A mechanism at ρ is the one here with its noise divided by √(2ρ); so all of them are stated once, at ρ = 1/2,
and counts are multiplied by √(2ρ) instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from dualmech import workloads
from dualmech.crosscheck.printing import parse_table
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

# The printed numbers of the common-mechanism paper, as strings with the printed digits.
#
# All are from Xiao, Wang, Zhang and Kifer, "Answering private linear queries adaptively using the common mechanism",
# PVLDB 16(8), 2023 ("CMN"), section 7. Figure 1 of the paper is a curve; its numbers are from the script that
# draws it, in the repository published with the paper, ``cmla-psu/commonmech``.


CMN = "Xiao et al., PVLDB 16(8), 2023"

HISRACE_TABLES, HISRACE_CELLS, BRAZIL = "hisrace, two-way", "hisrace, identity", "brazil, two-way"
"""The three choices: between one-way marginals and two-way ones, or the cells themselves."""

SAVED = {HISRACE_TABLES: "75", HISRACE_CELLS: "6.25", BRAZIL: "50.5"}  # %PLB saved, by choice

RHO, SHARE, LEVEL = "rho", "x", "y"
"""The varied parameter: the ρ of zCDP, the share of queries that need signal, or their signal-to-noise."""

GAMMA = 0.1  # share of ρ for a noisy head count if no other query is asked; the paper gives no value


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of one row: ρ, and the rule that a share x of the queries needs signal to noise of y."""

    rho: float
    share: float
    level: float
    gamma: float = GAMMA  # Share of ρ that thresholds spend on a head count (section 7.5.2)


@dataclass(frozen=True, slots=True)
class AccuracyTable:
    number: int  # Of the table
    choice: str  # Between which mechanisms
    varied: str  # Which of `RHO`, `SHARE` and `LEVEL` the rows vary
    fixed: Setting  # The other two; the varied one stands there too, and is overwritten
    # By the varied number: percent of blocks for which the first, and for which the second mechanism is
    # right; accuracy in percent
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"Table {self.number}, {self.choice}"

    def with_rows(self, printed: str) -> AccuracyTable:
        """Return the table with rows as printed, a line each: the varied number, then the percentages."""
        return replace(self, rows=parse_table(printed))

    def printed(self, row: str) -> tuple[str, ...]:
        return self.rows[row]

    def setting(self, row: str) -> Setting:
        numbers = {RHO: self.fixed.rho, SHARE: self.fixed.share, LEVEL: self.fixed.level}
        numbers[self.varied] = float(Fraction(row))
        return Setting(numbers[RHO], numbers[SHARE], numbers[LEVEL])


ACCURACY = (
    AccuracyTable(2, HISRACE_TABLES, RHO, Setting(1 / 8, 0.5, 5)).with_rows("""
           2  45.54  54.46  98.64
           1  54.35  45.65  97.98
         1/2  65.47  34.53  98.37
         1/8  84.12  15.81  98.84
        1/32  94.41   5.59  99.56
    """),
    AccuracyTable(2, HISRACE_CELLS, RHO, Setting(1 / 8, 0.5, 5)).with_rows("""
           2  50.20  49.80  95.00
           1  61.46  38.54  95.37
         1/2  71.32  28.68  95.40
         1/8  88.27  11.73  97.53
        1/32  95.98   4.02  99.08
    """),
    AccuracyTable(3, HISRACE_TABLES, LEVEL, Setting(1 / 8, 0.5, 5)).with_rows("""
        2  58.08  41.92  95.56
        3  70.57  29.43  97.22
        4  78.75  21.25  98.20
        5  84.19  15.81  98.83
        6  87.82  12.18  99.22
        8  92.10   7.90  99.61
    """),
    AccuracyTable(3, HISRACE_CELLS, LEVEL, Setting(1 / 8, 0.5, 5)).with_rows("""
        2  64.52  35.48  88.83
        3  76.58  23.42  93.56
        4  83.85  16.15  96.08
        5  88.27  11.73  97.54
        6  91.07   8.93  98.35
        8  94.27   5.73  99.17
    """),
    AccuracyTable(4, HISRACE_TABLES, SHARE, Setting(1 / 8, 0.5, 5)).with_rows("""
        0.2  79.61  20.39  99.07
        0.3  81.25  18.75  98.97
        0.4  82.96  17.04  98.95
        0.5  84.19  15.81  98.83
        0.6  97.95   2.05  99.85
    """),
    AccuracyTable(4, HISRACE_CELLS, SHARE, Setting(1 / 8, 0.5, 5)).with_rows("""
        0.2  84.42  15.58  97.05
        0.3  85.86  14.14  97.44
        0.4  87.30  12.70  97.55
        0.5  88.27  11.73  97.52
        0.6  98.50   1.50  99.65
    """),
    AccuracyTable(5, BRAZIL, RHO, Setting(2, 0.3, 3)).with_rows("""
           2  71.47  28.53  96.95
           1  71.47  28.53  97.86
         1/2  78.65  21.35  98.29
         1/8  85.30  14.70  98.94
        1/32  90.66   9.34  99.20
    """),
    AccuracyTable(6, BRAZIL, SHARE, Setting(2, 0.3, 3)).with_rows("""
        0.2  58.56  41.44  96.27
        0.3  71.47  38.53  96.95
        0.4  81.14  18.86  97.55
        0.5  88.78  11.22  98.46
        0.6  94.58   5.42  99.18
    """),
    AccuracyTable(6, BRAZIL, LEVEL, Setting(2, 0.3, 3)).with_rows("""
        3  71.47  28.53  96.95
        4  71.47  28.53  98.41
        5  75.78  24.22  99.03
        6  78.65  21.35  99.00
        8  80.94  19.06  99.40
    """),
)
"""Tables 2 to 6, a half each."""


@dataclass(frozen=True, slots=True)
class CensusRow:
    """A row of Table 7, and the point of Figure 1 that belongs to it."""

    shares: tuple[str, ...]  # Percent of tracts for which Total, Age4, Age9 and Age23 are right
    # Percent of right choices, and %PLB saved
    accuracy: str
    saved: str
    thresholds: str  # Accuracy of the tuned thresholds (Figure 1)


CENSUS_SETTING = Setting(1 / 8, 0.5, 20)  # ρ of the first row, and the rule of section 7.5.5

TABLE_7 = {
    "1/8": CensusRow(("0.34", "0.68", "1.64", "97.34"), "99.80", "49.67", "97.71"),
    "1/32": CensusRow(("0.39", "1.31", "12.61", "85.69"), "98.74", "49.59", "94.59"),
    "1/72": CensusRow(("0.45", "3.46", "31.51", "64.58"), "97.32", "48.92", "89.03"),
    "1/128": CensusRow(("0.50", "8.08", "49.95", "41.47"), "96.09", "47.74", "87.02"),
    "1/200": CensusRow(("0.56", "14.50", "61.43", "23.51"), "95.88", "46.11", "87.57"),
    "1/288": CensusRow(("0.63", "22.55", "64.85", "11.97"), "95.75", "46.06", "88.81"),
}
"""Table 7 by ρ, with Figure 1."""

HISRACE = Domain([(f"a{attribute}", 2) for attribute in range(7)])
"""Hispanic or Latino, White, Black, American Indian, Asian, Pacific Islander, other: yes or no."""

BRAZIL_TABLE = Domain({"age": 101, "gender": 2})

AGES = 103

CENSUS_TABLE = Domain({"gender": 2, "age": AGES})

BUCKETS = {
    "Total": (0, 103),
    "Age4": (0, 18, 45, 65, 103),
    "Age9": (0, 5, 18, 25, 35, 45, 55, 65, 75, 103),
    "Age23": (*(0, 5, 10, 15, 18, 20, 21, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 67, 70, 75, 80, 85), 103),
}
"""Where the age buckets of section 7.5.1 begin, and where the last one ends; a bucket holds its first age only."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice between a primary analysis and one that refines it."""

    name: str  # As `dualmech.crosscheck.instances.common` calls it
    domain: Domain  # Attributes of the cells
    ways: tuple[int, int]  # Of the marginals that the two mechanisms measure

    @property
    def workloads(self) -> tuple[Workload, Workload]:
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
    return LinearGaussianMechanism(workload.dense(), workload.column_squares().max() * np.eye(len(workload)))


def summed_variances(primary: Workload, secondary: Workload) -> Array:
    """Return the variance of each primary answer as a sum of cells of the secondary table that needs the fewest.

    The code published with the paper takes a primary answer from the secondary mechanism in this way. Least squares,
    which use all tables at once, give no more (`LinearGaussianMechanism.variances`).
    """
    cells, queries = secondary.dense(), primary.dense()
    groups = np.array(secondary.groups)
    is_contained = (queries @ cells.T) == cells.sum(axis=1)
    counts = np.full(len(primary), np.inf)
    for group in dict.fromkeys(secondary.groups):
        table = groups == group
        is_exact = np.all(is_contained[:, table] @ cells[table] == queries, axis=1)
        counts = np.where(is_exact, np.minimum(counts, is_contained[:, table].sum(axis=1)), counts)
    return counts * secondary.column_squares().max()


def histogram(name: str, by_gender: bool = True) -> Workload:
    """Return one of the histograms of ages by gender, `BUCKETS`, over 2 x 103 cells.

    - `name`: which one;
    - `by_gender`: whether Total counts the two genders apart, as the text says, or together, as the published code
      does.
    """
    edges = BUCKETS[name]
    ages = np.arange(AGES)
    buckets = np.array([(low <= ages) & (ages < high) for low, high in zip(edges[:-1], edges[1:], strict=True)])
    gender_rows = np.eye(2) if by_gender or name != "Total" else np.ones((1, 2))
    return Workload(np.kron(gender_rows, buckets.astype(np.float64)), domain=CENSUS_TABLE)


def census(by_gender: bool = True) -> tuple[LinearGaussianMechanism, ...]:
    """Return the four mechanisms of section 7.5, coarsest first, at squared privacy cost 1."""
    return tuple(independent_noise(histogram(name, by_gender)) for name in BUCKETS)
