"""From digits to numbers with square roots: integer relations by lattice reduction, checked against further digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dualmech.crosscheck.optima.digits import BITS, GUARD, ONE
from dualmech.crosscheck.optima.surds import Surd, square_root

SEARCHED = (128, 256, 480, 800)
"""Binary digits from which relations are sought, one after the other; they are held against all digits."""

MOST_ROOTS = 8
"""Largest degree of a field: that of three independent square roots."""


MOST_MISSED = 8
"""Most numbers that may be of a larger degree than 4, at which no field is found from one alone."""


def recognised(values: Sequence[int]) -> list[Surd] | None:
    """Return the numbers of one field of square roots that values are digits of, None where there is none.

    Parameters
    ----------
    values : whole numbers
        In units of ``2**-BITS``, of which `GUARD` binary digits may be wrong.
    """
    field, found, missed = [1], dict[int, Surd](), list[int]()
    for value in sorted({*values}, key=abs):
        number = expressed(value, field)
        if number is None:
            field = _joined(field, _new_radicals(value))
            number = expressed(value, field)
        if number is not None:
            found[value] = number
            continue
        missed.append(value)
        if len(missed) > MOST_MISSED:
            return None
    for value in missed:  # of a degree that is found only once the field is known
        number = expressed(value, field) if len(field) > 4 else None
        if number is None:
            return None
        found[value] = number
    return [found[value] for value in values]


def expressed(value: int, field: Sequence[int]) -> Surd | None:
    """Return the number of a field, given by what stands under its roots, that a value is digits of."""
    found = relation([value, *(math.isqrt(root << 2 * BITS) for root in field)])
    if found is None or not found[0]:
        return None
    return Surd({root: Fraction(-a, found[0]) for root, a in zip(field, found[1:], strict=True)})


def relation(values: Sequence[int]) -> list[int] | None:
    """Return small whole numbers, not all 0, whose products with the values add up to 0; None where there are none.

    >>> relation([3 * ONE + 3, 2 * ONE])
    [-2, 3]
    """
    for bits in SEARCHED:
        rows = [
            [*(int(i == j) for j in range(len(values))), value >> BITS - bits]
            for i, value in enumerate(values)
        ]
        found = reduced(rows)[0][:-1]
        off = abs(sum(a * value for a, value in zip(found, values, strict=True)))
        if any(found) and off <= sum(map(abs, found)) << GUARD + 32:
            return found
    return None


def reduced(rows: list[list[int]]) -> list[list[int]]:
    """Return a reduced basis of the lattice of independent rows, a short vector first.

    The algorithm of Lenstra, Lenstra and Lovász in whole numbers: Cohen, "A course in computational algebraic number
    theory", 2.6.7.

    >>> reduced([[1, 0, 5], [0, 1, 3]])
    [[-1, 1, -2], [-1, 2, 1]]
    """
    lattice = _Lattice(rows)
    place = 1
    while place < len(rows):
        lattice.orthogonalise(place)
        lattice.shorten(place, place - 1)
        if lattice.out_of_order(place):
            lattice.swap(place)
            place = max(place - 1, 1)
            continue
        for other in range(place - 2, -1, -1):
            lattice.shorten(place, other)
        place += 1
    return lattice.rows


class _Lattice:
    """Rows with their Gram-Schmidt coefficients, times what makes them whole; d_i are minors of their Gram matrix."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows, self.known = [list(row) for row in rows], 0
        self.minors = [1, _dot(rows[0], rows[0])] + [0] * (len(rows) - 1)  # d_0, d_1, …
        self.inner = [[0] * len(rows) for _ in rows]

    def orthogonalise(self, place: int) -> None:
        """Compute the coefficients of a row that is reached for the first time."""
        if place <= self.known:
            return
        self.known = place
        for other in range(place + 1):
            value = _dot(self.rows[place], self.rows[other])
            for i in range(other):
                value = self.minors[i + 1] * value - self.inner[place][i] * self.inner[other][i]
                value //= self.minors[i]
            if other < place:
                self.inner[place][other] = value
            else:
                self.minors[place + 1] = value

    def shorten(self, place: int, other: int) -> None:
        """Subtract the multiple of another row that leaves the least along it."""
        below = self.minors[other + 1]
        times = (2 * self.inner[place][other] + below) // (2 * below)
        if not times:
            return
        self.rows[place] = [a - times * b for a, b in zip(self.rows[place], self.rows[other], strict=True)]
        self.inner[place][other] -= times * below
        for i in range(other):
            self.inner[place][i] -= times * self.inner[other][i]

    def out_of_order(self, place: int) -> bool:
        """Whether a row is so much shorter than the one before, past what is before both, that they change places."""
        before, own, after = self.minors[place - 1 : place + 2]
        return 4 * (after * before + self.inner[place][place - 1] ** 2) < 3 * own**2

    def swap(self, place: int) -> None:
        """Let a row and the one before it change places."""
        rows, inner, minors = self.rows, self.inner, self.minors
        rows[place], rows[place - 1] = rows[place - 1], rows[place]
        for i in range(place - 1):
            inner[place][i], inner[place - 1][i] = inner[place - 1][i], inner[place][i]
        shared = inner[place][place - 1]
        changed = (minors[place - 1] * minors[place + 1] + shared**2) // minors[place]
        for i in range(place + 1, self.known + 1):
            own = inner[i][place]
            inner[i][place] = (minors[place + 1] * inner[i][place - 1] - shared * own) // minors[place]
            inner[i][place - 1] = (changed * own + shared * inner[i][place]) // minors[place + 1]
        minors[place] = changed


def _dot(left: list[int], right: list[int]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _joined(field: list[int], radicals: list[int]) -> list[int]:
    """Return what stands under the roots of a field with further square roots, up to the largest degree."""
    for radical in radicals:
        if radical in field:
            continue
        if 2 * len(field) > MOST_ROOTS:
            break
        field = field + [root * radical // math.gcd(root, radical) ** 2 for root in field]
    return field


def _new_radicals(value: int) -> list[int]:
    """Return what stands under the square roots of a number of degree 2 or 4, none where it is no such number."""
    powers = [ONE]
    for degree in (1, 2, 3, 4):
        powers.append(powers[-1] * value >> BITS)
        found = relation(powers) if degree in (2, 4) else None
        if found is not None and found[-1]:
            squares = [Fraction(each) for each in found]
            each = _of_quadratic(*squares) if degree == 2 else _of_quartic(squares)
            roots = [square_root(square) for square in each if square > 0]
            return [radical for root in roots if root is not None for radical in root.radicals]
    return []


def _of_quadratic(c: Fraction, b: Fraction, a: Fraction) -> list[Fraction]:
    """Return the discriminant of ``a x² + b x + c``."""
    return [b * b - 4 * a * c]


def _of_quartic(coefficients: list[Fraction]) -> list[Fraction]:
    """Return the rational roots of the resolvent of a quartic, by ascending powers.

    Where its roots are ``f + q √a + r √b + s √(ab)`` with all signs, those are 4 q² a, 4 r² b and 4 s² a b.
    """
    e, d, c, b = (each / coefficients[-1] for each in coefficients[:-1])
    p, q = c - 3 * b * b / 8, b**3 / 8 - b * c / 2 + d
    r = -3 * b**4 / 256 + b * b * c / 16 - b * d / 4 + e
    return _rational_roots([-q * q, p * p - 4 * r, 2 * p, Fraction(1)])


def _rational_roots(cubic: list[Fraction]) -> list[Fraction]:
    """Return the rational roots of a cubic with leading coefficient 1, by ascending powers."""
    below = math.lcm(*(each.denominator for each in cubic))
    size = max(float(abs(each)) ** (1 / (3 - power)) for power, each in enumerate(cubic[:3])) or 1.0
    scaled = [float(each) / size ** (3 - power) for power, each in enumerate(cubic)]
    found = set[Fraction]()
    for near in np.roots(scaled[::-1]).real:
        value = Fraction(float(near) * size)
        for _ in range(8):
            slope = _value([power * each for power, each in enumerate(cubic)][1:], value)
            if not slope:
                break
            value = Fraction(round((value - _value(cubic, value) / slope) * ONE), ONE)
        value = Fraction(round(value * below), below)
        if _value(cubic, value) == 0:
            found.add(value)
    return sorted(found)


def _value(coefficients: list[Fraction], at: Fraction) -> Fraction:
    found = Fraction(0)
    for each in reversed(coefficients):
        found = found * at + each
    return found
