"""Gaussian noise on tables over a domain: each side by noise, or weights, of whichever form a file names."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from . import blocks, split
from .domain import Asked
from .exact import expect, number

Given = dict[str, Any]

FORMS = {"blocks": blocks, "split": split}


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show.

    Noise on r records costs r² times what it does on one; of what is asked at a cost, that is a share.
    """
    asked, allowed = Asked(problem), number(problem, "allowed")
    expect(allowed > 0, "allowed must be positive")
    known = all(str(each.get("form")) in FORMS for each in (upper, lower))
    expect(known, f"form must be one of {', '.join(FORMS)}")
    proven = FORMS[str(lower["form"])].lower(asked, lower)
    achieved = FORMS[str(upper["form"])].upper(asked, upper)
    return proven * asked.moved / allowed, achieved * asked.moved / allowed
