"""Representations of objects, as one line and as a table in notebooks, and numbers rounded to the safe side."""

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
    """Mixin of objects that a notebook shows as their `repr` above a table of facts."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        """Return the rows of the table: labels and values."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return the table, with all texts escaped."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(brief(value))}</td></tr>"
            for name, value in self._facts().items()
        )
        return f"<div><code>{html.escape(repr(self))}</code><table>{rows}</table></div>"


def rounded_up(number: Fraction) -> float:
    """Return the smallest double that is at least a fraction."""
    value = float(number)
    return value if Fraction(value) >= number else math.nextafter(value, math.inf)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural if need be.

    Examples
    --------
    >>> counted(1, "table"), counted(2, "table")
    ('1 table', '2 tables')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def told_apart(first: float, second: float) -> tuple[str, str]:
    """Return two numbers as texts of two digits, or of more if they would be equal.

    Examples
    --------
    >>> told_apart(0.01003, 0.01), told_apart(0.2, 1e-6)
    (('1.003e-02', '1.000e-02'), ('2.0e-01', '1.0e-06'))
    """
    for digits in range(1, 17):
        texts = f"{first:.{digits}e}", f"{second:.{digits}e}"
        if texts[0] != texts[1]:
            break
    return texts


def decimal_above(number: Fraction | float, digits: int = 6) -> str:
    """Return a number rounded up to a decimal, as privacy costs are printed.

    Examples
    --------
    >>> decimal_above(Fraction(1, 3)), decimal_above(Fraction(1, 10)), decimal_above(0.5)
    ('0.333334', '0.1', '0.5')
    >>> decimal_above(1.0000001e-9, 3)
    '1.01e-09'
    """
    return _decimal(number, digits, decimal.ROUND_CEILING)


def decimal_below(number: Fraction | float, digits: int = 6) -> str:
    """Return a number rounded down to a decimal, as remaining budgets are printed."""
    return _decimal(number, digits, decimal.ROUND_FLOOR)


def _decimal(number: Fraction | float, digits: int, rounding: str) -> str:
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    exact, context = Fraction(number), decimal.Context(digits, rounding)
    quotient = context.divide(decimal.Decimal(exact.numerator), decimal.Decimal(exact.denominator))
    text = f"{float(quotient):.{digits}g}"  # the format of all other numbers, if a double holds these digits
    return text if decimal.Decimal(text) == quotient else str(quotient)


MAX_SHOWN_ITEMS = 2  # of a tuple


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
        more = f", …; {len(value)} in all" if len(value) > MAX_SHOWN_ITEMS else ""
        return f"({', '.join(map(brief, value[:MAX_SHOWN_ITEMS]))}{more})"
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
    minimum, maximum = f"{array.min():.6g}", f"{array.max():.6g}"
    return minimum if minimum == maximum else f"{minimum} to {maximum}"
