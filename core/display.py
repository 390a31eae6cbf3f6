"""Representations of objects, in one line and as a small table in a notebook, and numbers rounded to the safe side."""

from __future__ import annotations

import decimal
import html
import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from dualmech.validate import Matrix


class Displayed:
    """An object that a notebook shows as its `repr` above a table of facts."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        """Return the table's rows: each label with its value."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return the table, with every text escaped."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(brief(value))}</td></tr>"
            for name, value in self._facts().items()
        )
        return f"<div><code>{html.escape(repr(self))}</code><table>{rows}</table></div>"


def rounded_up(number: Fraction) -> float:
    """Return the least double that is not below a fraction."""
    value = float(number)
    return value if Fraction(value) >= number else math.nextafter(value, math.inf)


def counted(count: int, what: str) -> str:
    """Return a count with its noun, whose plural ends in s.

    Examples
    --------
    >>> counted(1, "table"), counted(2, "table")
    ('1 table', '2 tables')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def told_apart(one: float, other: float) -> tuple[str, str]:
    """Return two numbers with two digits, or as many more as it takes to tell them apart.

    Examples
    --------
    >>> told_apart(0.01003, 0.01), told_apart(0.2, 1e-6)
    (('1.003e-02', '1.000e-02'), ('2.0e-01', '1.0e-06'))
    """
    for digits in range(1, 17):
        first, last = f"{one:.{digits}e}", f"{other:.{digits}e}"
        if first != last:
            break
    return first, last


def decimal_above(number: Fraction | float, digits: int = 6) -> str:
    """Return a decimal of so many digits that is not below a number: privacy costs are printed so.

    Examples
    --------
    >>> decimal_above(Fraction(1, 3)), decimal_above(Fraction(1, 10)), decimal_above(0.5)
    ('0.333334', '0.1', '0.5')
    >>> decimal_above(1.0000001e-9, 3)
    '1.01e-09'
    """
    return _decimal(number, digits, decimal.ROUND_CEILING)


def decimal_below(number: Fraction | float, digits: int = 6) -> str:
    """Return a number as a decimal of so many digits that is not above it: how a remaining budget is printed."""
    return _decimal(number, digits, decimal.ROUND_FLOOR)


def _decimal(number: Fraction | float, digits: int, rounding: str) -> str:
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    exact, context = Fraction(number), decimal.Context(digits, rounding)
    rounded = context.divide(decimal.Decimal(exact.numerator), decimal.Decimal(exact.denominator))
    written = f"{float(rounded):.{digits}g}"  # in the style of all other numbers, where a double holds these digits
    return written if decimal.Decimal(written) == rounded else str(rounded)


LISTED = 2  # items of a tuple that are named


def brief(value: object) -> str:
    """Describe a value in a few words: a text unchanged, a number to six digits, an array by its range or its shape.

    Examples
    --------
    >>> brief(1 / 3), brief(np.ones(4)), brief(np.arange(1.0, 9)), brief(np.eye(3))
    ('0.333333', '1', '1 to 8', '3 x 3 matrix')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        more = f", …; {len(value)} in all" if len(value) > LISTED else ""
        return f"({', '.join(map(brief, value[:LISTED]))}{more})"
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    if isinstance(value, np.ndarray) or sp.issparse(value):
        return _brief_array(value)
    return str(value)


def _brief_array(array: Matrix) -> str:
    if array.ndim == 2:
        return f"{array.shape[0]} x {array.shape[1]} matrix"
    if not array.size:
        return "none"
    least, largest = f"{array.min():.6g}", f"{array.max():.6g}"
    return least if least == largest else f"{least} to {largest}"
