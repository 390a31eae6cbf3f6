"""What a printed number means: its digits are a text, and stand for all numbers that round to it."""

from __future__ import annotations

Interval = tuple[float, float]


def rounded_from(text: str) -> Interval:
    """Return the numbers that a printed text can be a rounding of: half a unit of its last digit either way."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return float(text) - half, float(text) + half


def with_allowance(value: float, allowance: float) -> Interval:
    """Return a positive number with an allowance, relative, for what rounding or an optimiser may have changed."""
    return value * (1 - allowance), value * (1 + allowance)


def overlap(one: Interval, other: Interval) -> bool:
    """Whether two closed intervals have a number in common."""
    return one[0] <= other[1] and other[0] <= one[1]


def is_rounding(text: str, interval: Interval) -> bool:
    """Whether a printed text is a rounding of some number of an interval."""
    return overlap(rounded_from(text), interval)


def parse_table(text: str) -> dict[str, tuple[str, ...]]:
    """Return a printed table as texts: a line each by its first word."""
    return {row[0]: tuple(row[1:]) for row in map(str.split, text.strip().splitlines())}
