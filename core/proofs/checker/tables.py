"""Gaussian noise on tables over a domain: each side by noise, or weights, of whichever form a file names."""

from __future__ import annotations

from fractions import Fraction

from . import blocks, split
from .domain import Asked
from .exact import expect
from .given import Given

FORMS = {"blocks": (blocks.lower, blocks.upper), "split": (split.lower, split.upper)}
"""What shows a lower and an upper bound, by form."""


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show.

    Noise on r records costs r² times what it does on one; of what is asked at a cost, that is a share.
    """
    asked, allowed = Asked(problem), problem.number("allowed")
    expect(allowed > 0, "allowed must be positive")
    _, above = FORMS[upper.word("form", FORMS)]
    below, _ = FORMS[lower.word("form", FORMS)]
    proven, achieved = below(asked, lower), above(asked, upper)
    return proven * asked.moved / allowed, achieved * asked.moved / allowed
