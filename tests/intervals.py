"""Certified intervals, which tests compare in place of solvers' values."""

from __future__ import annotations

from typing import Any

import dualmech as dm
from dualmech import fast
from dualmech.watching import without_warnings


def solved(problem: Any, **options: Any) -> dm.Solution:
    with without_warnings():  # a wide interval is an interval
        return fast.solve(problem, **options)


def meet(one: dm.Solution, two: dm.Solution) -> bool:
    """Whether an optimum may lie in both intervals."""
    (low, high), (least, most) = one.certificate.interval, two.certificate.interval
    return low <= most and least <= high


def contains(certificate: dm.Certificate, value: float, slack: float = 0.0) -> bool:
    """Whether a value lies in an interval, widened by a relative slack."""
    low, high = certificate.interval
    return low * (1 - slack) <= value <= high * (1 + slack)
