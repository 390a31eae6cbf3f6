"""What the fitness-for-use paper prints: its numbers as texts, digits included, and nothing computed.

All are from Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially private linear
queries", PVLDB 14(10), 2021 ("FFU"), section 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dualmech.crosscheck.papers.printed import parse_table

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
    subject: str  # What is asked, at which targets
    parameter: str  # What the rows vary
    # By the parameter's value: what the running text says of SM-II's total squared error as a multiple
    # of CA's
    total_error: dict[int | None, str]
    # By the parameter's value: one text per mechanism, in the order of `MECHANISMS`
    rows: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def with_rows(self, printed: str) -> RatioTable:
        """Return the table with rows as printed, a line each: the parameter's value, then the numbers."""
        return replace(self, rows={int(row): texts for row, texts in parse_table(printed).items()})

    @property
    def source(self) -> str:
        """Paper and table."""
        return f"{FFU}, Table {self.number}"

    def printed(self, row: int) -> dict[str, str]:
        """Return the texts of a row by mechanism."""
        return dict(zip(MECHANISMS, self.rows[row], strict=True))

    def said_of_total_error(self, row: int) -> str:
        """Return what the text says of the total squared error, empty where it says nothing."""
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
    RatioTable(
        7, "2d queries of random signs over d cells, targets 1", "d", {None: "at most 1.005"}
    ).with_rows("""
          64  1.14  2.29  1.14  1.14  1.14  1.00
         128  1.14  2.29  1.07  1.07  1.07  1.00
         256  1.14  3.39  1.06  1.06  1.06  1.00
         512  1.15  3.40  1.05  1.05  1.05  1.00
        1024  1.15  3.41  1.04  1.04  1.04  1.00
    """),
    RatioTable(
        8, "2d queries of random signs over d cells, random targets from 1 to 10", "d", {}
    ).with_rows("""
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
        11,
        "d/2 queries C A over d cells, C and A Gaussian and square or wide, targets 1",
        "d",
        {None: "at most 1.08"},
    ).with_rows("""
          64  3.51   9.59  1.31  1.31  1.31  1.00
         128  4.16  11.16  1.31  1.31  1.31  1.00
         256  4.28  12.60  1.19  1.19  1.19  1.00
         512  3.62  10.46  1.12  1.12  1.12  1.00
        1024  3.50  10.05  1.07  1.07  1.07  1.00
    """),
)
