"""Numbers in proof files: strings of integers times powers of two, without rounding."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import inf, nextafter
from typing import Any, TypeAlias

import numpy as np

from dualmech.crosscheck.proofs.checker.exact import Matrix, Section
from dualmech.validate import Array

Parts: TypeAlias = dict[str, Any]
"""A section of a proof file before it is written: numbers, arrays, exact matrices, words or sections by name."""

PrimalAndDual: TypeAlias = tuple[Parts, Parts]
"""The sections that prove the upper and the lower bound."""


def written(value: Any) -> Any:
    """Return sections, arrays, exact matrices and numbers in JSON form; words and None unchanged."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {name: written(item) for name, item in value.items()}
    if isinstance(value, Matrix):
        return [[_number_text(entry, value.exponent) for entry in row] for row in value.rows]
    if isinstance(value, np.ndarray):
        return written(value.tolist())
    if isinstance(value, list | tuple):
        return [written(item) for item in value]
    numerator, denominator = value.as_integer_ratio()
    if denominator & (denominator - 1):
        raise ValueError(f"{value} is not an integer times a power of two")
    return _number_text(numerator, 1 - denominator.bit_length())


def as_read(parts: Parts) -> Section:
    return Section(written(parts))


def exactly(array: Array) -> Matrix:
    """Return an array as an exact matrix."""
    pairs = [[entry.as_integer_ratio() for entry in row] for row in array.tolist()]
    denominator = max(entry_denominator for row in pairs for _, entry_denominator in row)
    return Matrix(
        [[numerator * (denominator // entry_denominator) for numerator, entry_denominator in row] for row in pairs],
        1 - denominator.bit_length(),
    )


def float_below(value: Fraction) -> float:
    """Return the largest double that is at most the given value."""
    rounded = float(value)
    return rounded if Fraction(rounded) <= value else nextafter(rounded, -inf)


def float_above(value: Fraction) -> float:
    """Return the smallest double that is at least the given value."""
    return -float_below(-value)


def root_below(weight: float | Fraction) -> float:
    """Return a number whose square is at most the given weight, without rounding error."""
    root = float_below(Fraction(weight)) ** 0.5  # rounding first: a subnormal fraction has a large relative error
    while Fraction(root) ** 2 > weight:
        root = nextafter(root, 0.0)
    return root


def _number_text(integer: int, exponent: int) -> str:
    if not integer:
        return "0x0p0"  # the exponent of 0 could have more digits than the checker accepts
    if zeros := (integer & -integer).bit_length() - 1:
        integer, exponent = integer >> zeros, exponent + zeros
    return f"{'-' if integer < 0 else ''}0x{abs(integer):x}p{exponent}"
