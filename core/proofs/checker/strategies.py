"""Strategies of local privacy: what e^ε lies between, and whether a matrix is one.

A strategy Q (m, n) has a column of probabilities for each user type; it is ε-private where no entry exceeds e^ε times
another one of its row. The larger ε, the more strategies there are: an upper bound may take a smaller number for e^ε,
a lower bound a larger.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from .exact import Matrix, exp_above, exp_below, expect
from .given import Given


def growth(problem: Given) -> tuple[Fraction, Fraction]:
    """Return two numbers with few digits, next to each other, between which e^ε lies."""
    epsilon = problem.number("epsilon")
    expect(0 < epsilon <= 100, "epsilon must be positive and at most 100")
    # Beyond 1 what counts is e^ε - 1, which is at least ε.
    unit = Fraction(1, 1 << max(70 - floor(epsilon) + epsilon.denominator.bit_length(), 70))
    return floor(exp_below(epsilon) / unit) * unit, ceil(exp_above(epsilon) / unit) * unit


def strategy(given: Given, largest: Fraction, columns: int) -> Matrix:
    """Return a strategy of a file; `Refused` where it is none, or a ratio exceeds the largest."""
    found = given.matrix("strategy", (None, columns))
    one = 1 << max(-found.exponent, 0)
    for column in zip(*found.rows, strict=True):
        expect(
            min(column) >= 0 and sum(column) << max(found.exponent, 0) == one, "probabilities must sum to 1"
        )
    for index, row in enumerate(found.rows):
        expect(max(row) <= largest * min(row), f"row {index} of the strategy has a ratio above e^ε")
    return found
