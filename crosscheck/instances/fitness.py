"""The workloads, targets and printed numbers of FFU's Tables 4 to 11, as its text and its published code have them.

Five tables are of random workloads. The code published with the paper (its repository is
``cmla-psu/matrixqueries``) seeds NumPy's legacy generator with 0 before it draws, so those very instances can
be drawn again. They differ from the text in two points: the signs are fair, because the probability of 0.2 lands
in another argument of the function that draws them; and random targets are whole numbers from 1 to 10. That Table 5 was
drawn without any targets in between is an inference from its columns: the stored versions of the code draw some.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dualmech import workloads
from dualmech.crosscheck.printing import Interval, is_rounding, parse_table
from dualmech.problems.fitness import FitnessForUse
from dualmech.validate import Array
from dualmech.workloads.base import Workload

RANDOM_TABLES = (5, 6, 7, 8, 11)

LEAST_TARGET, LARGEST_TARGET = 1, 10


@dataclass(frozen=True, slots=True)
class FitnessInstance:
    """One reading of a row of a table: which workload and targets its numbers may be of."""

    label: str  # The difference from other readings of the same row
    # Returns workload and targets; called only when they are needed
    build: Callable[[], tuple[Workload, Array | float]]


def readings(table: int, row: int) -> tuple[FitnessInstance, ...]:
    if table == 4:
        return (FitnessInstance("", _pl94),)
    if table == 9:
        return (
            FitnessInstance("as the text", partial(_age_pyramid, adults=True, cells=False)),
            FitnessInstance("without 18+", partial(_age_pyramid, adults=False, cells=False)),
            FitnessInstance("without 18+, with every cell", partial(_age_pyramid, adults=False, cells=True)),
        )
    if table == 10:
        return (FitnessInstance("", partial(_marginals, row)),)
    inferred = ", no targets drawn (an inference)" if table == 5 else ""
    return (FitnessInstance(f"as the code, seed 0{inferred}", partial(_RANDOM_BUILDERS[table], row)),)


def random_instance(table: int, row: int, seed: int) -> FitnessInstance:
    """Return a row's random instance as the text describes it, drawn with a seed."""
    return FitnessInstance(f"as the text, seed {seed}", partial(_from_text, table, row, seed))


def _from_text(table: int, cells: int, seed: int) -> tuple[Workload, Array | float]:
    rng = np.random.default_rng(seed)
    if table == 11:
        return workloads.related(cells, cells // 2, cells // 2, rng), 1.0
    build = workloads.random_range if table in (5, 6) else workloads.random_signs
    workload = build(cells, 2 * cells, rng)
    random_targets = table in (6, 8)
    return workload, rng.uniform(LEAST_TARGET, LARGEST_TARGET, 2 * cells) if random_targets else 1.0


def _pl94() -> tuple[Workload, float]:
    return workloads.pl94(), 1.0


def _marginals(values: int) -> tuple[Workload, float]:
    return workloads.marginals((values,) * 3, ways=(1, 2)), 1.0


def _age_pyramid(adults: bool, cells: bool) -> tuple[Workload, float]:
    pyramid = workloads.age_pyramid(adults=adults)
    if not cells:
        return pyramid, 1.0
    every = Workload(workloads.identity(pyramid.shape[1]).matrix, domain=pyramid.domain)
    return workloads.stack(pyramid, every), 1.0


def _legacy() -> np.random.RandomState:
    """Return NumPy's legacy generator at seed 0; its stream is frozen, so that old draws can be repeated."""
    return np.random.RandomState(0)


def _drawn_ranges(cells: int, targets: bool) -> tuple[Workload, Array | float]:
    rng, ends, target_values = _legacy(), [], []
    for _ in range(2 * cells):
        ends.append([rng.randint(cells), rng.randint(cells)])
        if targets:
            target_values.append(rng.randint(LEAST_TARGET, LARGEST_TARGET + 1))
    first, last = np.sort(ends, axis=1).T[:, :, None]
    cell = np.arange(cells)
    workload = Workload((first <= cell) & (cell <= last))
    return workload, np.array(target_values, dtype=np.float64) if targets else 1.0


def _drawn_signs(cells: int, targets: bool) -> tuple[Workload, Array | float]:
    rng = _legacy()
    signs = 2.0 * rng.randint(2, size=(2 * cells, cells)) - 1
    target_values = rng.randint(LEAST_TARGET, LARGEST_TARGET + 1, 2 * cells)
    return Workload(signs), target_values.astype(np.float64) if targets else 1.0


def _drawn_related(cells: int) -> tuple[Workload, float]:
    rng, half = _legacy(), cells // 2
    right = rng.normal(size=(half, cells))
    return Workload(rng.normal(size=(half, half)) @ right), 1.0


_RANDOM_BUILDERS: dict[int, Callable[[int], tuple[Workload, Array | float]]] = {
    5: partial(_drawn_ranges, targets=False),
    6: partial(_drawn_ranges, targets=True),
    7: partial(_drawn_signs, targets=False),
    8: partial(_drawn_signs, targets=True),
    11: _drawn_related,
}


# The printed numbers of the fitness-for-use paper, as strings with the printed digits.
#
# All are from Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially private linear
# queries", PVLDB 14(10), 2021 ("FFU"), section 7.


FFU = "Xiao et al., PVLDB 14(10), 2021"

MECHANISMS = ("IP", "HM", "CA", "wCA-I", "wCA-II", "SM-II")
"""Columns of Tables 4 to 11: input perturbation, hierarchical, total variance and two weightings of it, and theirs."""

PRIVACY_COSTS = {2: "1.33", 4: "1.76", 8: "2.28", 16: "2.91", 64: "4.46"}
"""Table 2: squared privacy cost of d prefixes at variance targets 1, by both solvers of the paper."""

CONVERGENCE = {2: ("7.02", "0.027"), 4: ("44.90", "0.055"), 8: ("198.52", "0.053"), 16: ("264.36", "0.058")}
"""Table 3: seconds to convergence on d prefixes, of gradient descent and of SM-II."""


@dataclass(frozen=True, slots=True)
class RatioTable:
    """A table of largest ratios of variance to target, all mechanisms at the privacy cost of the last column."""

    number: int  # Of the table
    subject: str  # The queries, and their targets
    parameter: str  # The parameter that the rows vary
    # By the parameter's value: SM-II's total squared error as a multiple of CA's, in the words of the running text
    total_error: dict[int | None, str]
    # By the parameter's value: one text per mechanism, in the order of `MECHANISMS`
    rows: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def with_rows(self, printed: str) -> RatioTable:
        """Return the table with rows as printed, a line each: the parameter's value, then the numbers."""
        return replace(self, rows={int(row): texts for row, texts in parse_table(printed).items()})

    @property
    def source(self) -> str:
        return f"{FFU}, Table {self.number}"

    def printed(self, row: int) -> dict[str, str]:
        return dict(zip(MECHANISMS, self.rows[row], strict=True))

    def said_of_total_error(self, row: int) -> str:
        """Return the paper's statement on the total squared error, or an empty string."""
        return self.total_error.get(row, self.total_error.get(None, ""))


RATIO_TABLES = (
    RatioTable(4, "PL-94, targets 1", "", {None: "2.07"}).with_rows("""
        252  36.56  13.93  3.99  3.99  3.99  1.00
    """),
    RatioTable(5, "2d random ranges over d cells, targets 1", "d", {None: "1.04 to 1.09"}).with_rows("""
          64  10.63  2.84  1.27  1.27  1.27  1.00
         128  17.45  3.48  1.25  1.25  1.25  1.00
         256  28.43  3.90  1.29  1.29  1.29  1.00
         512  47.36  4.68  1.23  1.23  1.23  1.00
        1024  77.26  5.42  1.24  1.24  1.24  1.00
    """),
    RatioTable(6, "2d random ranges over d cells, random targets from 1 to 10", "d", {}).with_rows("""
          64   16.04  4.63  2.53  1.62  1.98  1.00
         128   21.28  5.87  2.14  1.49  1.75  1.00
         256   41.76  6.05  1.91  1.45  1.69  1.00
         512   71.51  7.35  1.80  1.46  1.52  1.00
        1024  109.34  7.68  1.69  1.43  1.49  1.00
    """),
    RatioTable(7, "2d queries of random signs over d cells, targets 1", "d", {None: "at most 1.005"}).with_rows("""
          64  1.14  2.29  1.14  1.14  1.14  1.00
         128  1.14  2.29  1.07  1.07  1.07  1.00
         256  1.14  3.39  1.06  1.06  1.06  1.00
         512  1.15  3.40  1.05  1.05  1.05  1.00
        1024  1.15  3.41  1.04  1.04  1.04  1.00
    """),
    RatioTable(8, "2d queries of random signs over d cells, random targets from 1 to 10", "d", {}).with_rows("""
          64  2.58  7.44  2.43  1.15  1.61  1.00
         128  2.82  8.28  2.58  1.18  1.72  1.00
         256  2.82  8.36  2.58  1.17  1.70  1.00
         512  2.79  8.27  2.51  1.16  1.68  1.00
        1024  2.76  8.17  2.49  1.16  1.67  1.00
    """),
    RatioTable(9, "age pyramids, targets 1", "", {None: "1.07"}).with_rows("""
        232  32.49  6.2  1.58  1.58  1.58  1.00
    """),
    RatioTable(
        10,
        "all one- and two-way marginals of three attributes of t values, targets 1",
        "t",
        {2: "1.1", 16: "1.34", None: "1.1 to 1.34"},
    ).with_rows("""
         2   1.82    3.02  1.14  1.14  1.14  1.00
         4   4.55   10.28  1.42  1.42  1.42  1.00
         6    8.6   21.38  1.66  1.66  1.66  1.00
         8  14.03   36.72  1.88  1.88  1.88  1.00
        10  20.84   56.23  2.08  2.08  2.08  1.00
        12  28.76   78.96  2.25  2.25  2.25  1.00
        14  38.17  106.22  2.41  2.41  2.41  1.00
        16  48.85  137.41  2.57  2.57  2.57  1.00
    """),
    RatioTable(
        11, "d/2 queries C A over d cells, C and A Gaussian and square or wide, targets 1", "d", {None: "at most 1.08"}
    ).with_rows("""
          64  3.51   9.59  1.31  1.31  1.31  1.00
         128  4.16  11.16  1.31  1.31  1.31  1.00
         256  4.28  12.60  1.19  1.19  1.19  1.00
         512  3.62  10.46  1.12  1.12  1.12  1.00
        1024  3.50  10.05  1.07  1.07  1.07  1.00
    """),
)


# Problems with a number that a paper prints for their optimum.


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
