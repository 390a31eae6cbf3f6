"""Numbers as proof files hold them: texts of whole numbers times powers of two, which lose nothing."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import inf, nextafter
from typing import Any, TypeAlias

import numpy as np

from dualmech.crosscheck.proofs.checker.exact import Matrix, Section
from dualmech.validate import Array

Parts: TypeAlias = dict[str, Any]
"""The parts that show a bound, by name: numbers, arrays, exact matrices, words, or parts of their own."""

PrimalAndDual: TypeAlias = tuple[Parts, Parts]
"""The parts that show the upper and the lower bound."""


def written(value: Any) -> Any:
    """Return parts, arrays, exact matrices and numbers as JSON has them; words and None as they are."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {name: written(item) for name, item in value.items()}
    if isinstance(value, Matrix):
        return [[_whole(entry, value.exponent) for entry in row] for row in value.rows]
    if isinstance(value, np.ndarray):
        return written(value.tolist())
    if isinstance(value, list | tuple):
        return [written(item) for item in value]
    top, bottom = value.as_integer_ratio()
    if bottom & (bottom - 1):
        raise ValueError(f"{value} is no whole number times a power of two")
    return _whole(top, 1 - bottom.bit_length())


def as_read(parts: Parts) -> Section:
    return Section(written(parts))


def exactly(array: Array) -> Matrix:
    """Return the very numbers of an array as whole ones times one power of two."""
    pairs = [[entry.as_integer_ratio() for entry in row] for row in array.tolist()]
    longest = max(bottom for row in pairs for _, bottom in row)
    return Matrix([[top * (longest // bottom) for top, bottom in row] for row in pairs], 1 - longest.bit_length())


def float_below(value: Fraction) -> float:
    """Return the largest double that is at most the given value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else nextafter(nearest, -inf)


def float_above(value: Fraction) -> float:
    """Return the smallest double that is at least the given value."""
    return -float_below(-value)


def root_below(weight: float | Fraction) -> float:
    """Return a number whose square is at most the given weight, exactly."""
    root = float_below(Fraction(weight)) ** 0.5  # A fraction below the smallest doubles would be rounded up by far.
    while Fraction(root) ** 2 > weight:
        root = nextafter(root, 0.0)
    return root


def _whole(whole: int, exponent: int) -> str:
    if not whole:
        return "0x0p0"  # whatever its exponent, which may have more digits than a file takes
    if zeros := (whole & -whole).bit_length() - 1:
        whole, exponent = whole >> zeros, exponent + zeros
    return f"{'-' if whole < 0 else ''}0x{abs(whole):x}p{exponent}"
