"""Numbers ``a + b √d + …`` with fractions a, b, …: sums, products, quotients and comparisons, without any rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

SMALL_FACTORS = 10**5
"""Largest factor that is sought by division: a rest below its square is then prime."""


class Surd:
    """A number of a field of square roots: a sum of fractions times square roots of whole numbers.

    Square roots of different whole numbers without a square factor are linearly independent over the fractions. So a
    number is 0 exactly if all its coefficients are; any other has a sign that enough digits show, and comparisons end.

    Examples
    --------
    >>> root = Surd({6: Fraction(1)})
    >>> root * root, 1 / (root - 2), (root - 2) > Fraction(44, 100)
    (Surd(6), Surd((2 + √6)/2), True)
    """

    def __init__(self, terms: Mapping[int, Fraction]) -> None:
        """Take the coefficients, by the number under the root: 1, or whole numbers without a square factor."""
        self.terms = {root: terms[root] for root in sorted(terms) if terms[root]}

    def __add__(self, other: Number | int) -> Surd:
        terms = dict(self.terms)
        for root, factor in _terms(other).items():
            terms[root] = terms.get(root, Fraction(0)) + factor
        return Surd(terms)

    __radd__ = __add__

    def __neg__(self) -> Surd:
        return Surd({root: -factor for root, factor in self.terms.items()})

    def __sub__(self, other: Number | int) -> Surd:
        return self + -other

    def __rsub__(self, other: Number | int) -> Surd:
        return -self + other

    def __mul__(self, other: Number | int) -> Surd:
        terms: dict[int, Fraction] = {}
        for one, a in self.terms.items():
            for two, b in _terms(other).items():
                common = math.gcd(one, two)
                root = (one // common) * (two // common)
                terms[root] = terms.get(root, Fraction(0)) + a * b * common
        return Surd(terms)

    __rmul__ = __mul__

    def __truediv__(self, other: Number | int) -> Surd:
        if isinstance(other, Surd):
            return self * other.inverse
        return Surd({root: factor / other for root, factor in self.terms.items()})

    def __rtruediv__(self, other: Number | int) -> Surd:
        return self.inverse * other

    def __pow__(self, times: int) -> Surd:
        return math.prod([self] * times, start=Surd({1: Fraction(1)}))

    @cached_property
    def inverse(self) -> Surd:
        """One over the number: with ``x = u + v √p``, p prime and in neither, it is ``(u - v √p) / (u² - p v²)``."""
        if not self.terms:
            raise ZeroDivisionError("division by 0")
        largest = max(self.terms)
        if largest == 1:
            return Surd({1: 1 / self.terms[1]})
        prime = _a_prime_of(largest)
        conjugate = Surd({root: -a if root % prime == 0 else a for root, a in self.terms.items()})
        return conjugate * (self * conjugate).inverse

    @cached_property
    def sign(self) -> int:
        bits = 64
        while self.terms:
            middle, off = self.in_units(bits)
            if abs(middle) > off:
                return 1 if middle > 0 else -1
            bits *= 2
        return 0

    def in_units(self, bits: int) -> tuple[Fraction, Fraction]:
        """Return a number near this one, times ``2**bits``, and how far away it may be."""
        middle, off = Fraction(0), Fraction(0)
        for root, factor in self.terms.items():
            middle += factor * math.isqrt(root << 2 * bits)
            off += abs(factor)
        return middle, off

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | Fraction | Surd) and self.terms == _terms(other)

    def __hash__(self) -> int:
        return hash(tuple(self.terms.items()) if self.radicals else self.terms.get(1, 0))

    def __lt__(self, other: Number | int) -> bool:
        return (self - other).sign < 0

    def __le__(self, other: Number | int) -> bool:
        return (self - other).sign <= 0

    def __gt__(self, other: Number | int) -> bool:
        return (self - other).sign > 0

    def __ge__(self, other: Number | int) -> bool:
        return (self - other).sign >= 0

    def __float__(self) -> float:
        bits = 64
        while self.terms:
            middle, off = self.in_units(bits)
            if abs(middle) > off * 2**60:
                return float(middle / 2**bits)
            bits *= 2
        return 0.0

    @property
    def radicals(self) -> tuple[int, ...]:
        """The numbers under the roots, 1 left out."""
        return tuple(root for root in self.terms if root > 1)

    def latex(self) -> str:
        r"""Return the number as LaTeX.

        >>> Surd({1: Fraction(9, 5), 6: Fraction(-2, 5)}).latex()
        '(9 - 2 \\sqrt{6})/5'
        """
        return self._written(r"\sqrt{{{}}}")

    def __str__(self) -> str:
        return self._written("√{}")

    def __repr__(self) -> str:
        return f"Surd({self})"

    def _written(self, root_text: str) -> str:
        below = math.lcm(*(factor.denominator for factor in self.terms.values()))
        text = ""
        for root, factor in self.terms.items():
            above = int(factor * below)
            sign = ("-" if not text else " - ") if above < 0 else "" if not text else " + "
            size = "" if abs(above) == 1 and root > 1 else str(abs(above))
            text += sign + " ".join(filter(None, (size, root_text.format(root) if root > 1 else "")))
        several = len(self.terms) > 1 and below > 1
        return (f"({text})" if several else text or "0") + (f"/{below}" if below > 1 else "")


Number: TypeAlias = Fraction | Surd


def square_root(number: Fraction) -> Surd | None:
    """Return the square root of a fraction that is not negative; None where its factors are not found.

    >>> square_root(Fraction(8, 3))
    Surd(2 √6/3)
    """
    if not number:
        return Surd({})
    factors = _without_squares(number.numerator * number.denominator)
    if factors is None:
        return None
    outside, inside = factors
    return Surd({inside: Fraction(outside, number.denominator)})


def latex(number: Number) -> str:
    """Return a number as LaTeX."""
    return number.latex() if isinstance(number, Surd) else str(number)


def radicals_of(numbers: Iterable[Number]) -> tuple[int, ...]:
    """Return the numbers under the roots of some numbers, in order."""
    return tuple(sorted({root for number in numbers if isinstance(number, Surd) for root in number.radicals}))


def _terms(number: Number | int) -> dict[int, Fraction]:
    return number.terms if isinstance(number, Surd) else {1: Fraction(number)} if number else {}


def _without_squares(whole: int) -> tuple[int, int] | None:
    """Return a, b with ``whole = a² b`` and b without a square factor, None where they are not found."""
    outside, inside, divisor = 1, 1, 2
    while divisor <= SMALL_FACTORS and divisor * divisor <= whole:
        while whole % divisor == 0:
            whole //= divisor
            outside, inside = (
                (outside * divisor, inside // divisor) if inside % divisor == 0 else (outside, inside * divisor)
            )
        divisor += 1 if divisor == 2 else 2
    root = math.isqrt(whole)
    if root * root == whole:
        return outside * root, inside
    return (outside, inside * whole) if whole < SMALL_FACTORS**2 else None


@cache
def _a_prime_of(whole: int) -> int:
    """Return the least prime factor of a number above 1."""
    divisor = 2
    while divisor * divisor <= whole:
        if whole % divisor == 0:
            return divisor
        divisor += 1
    return whole


# Matrices of exact numbers: products and sums are those of NumPy, elimination is without any rounding.


Rows: TypeAlias = Any
"""A matrix of exact numbers, in an array of Python's objects."""

LARGEST_DENOMINATOR = 10**7
"""Largest denominator of a number of the problem. The simplest fraction that rounds to a double has one of some
10**8 where the double stands for nothing simple."""


def exactly(array: npt.ArrayLike) -> Rows | None:
    """Return the simplest fractions that round to doubles; None where one has a denominator beyond the largest.

    >>> exactly([1 / 3, 1e-6]).tolist()
    [[Fraction(1, 3), Fraction(1, 1000000)]]
    """
    rows = [[_stood_for(float(entry)) for entry in row] for row in np.atleast_2d(np.asarray(array, float))]
    large = any(entry.denominator > LARGEST_DENOMINATOR for row in rows for entry in row)
    return None if large else np.array(rows, dtype=object)


def _stood_for(value: float) -> Fraction:
    size, sign = abs(value), -1 if value < 0 else 1
    if size.is_integer():
        return Fraction(value)
    middle = [Fraction(size) + Fraction(math.nextafter(size, end)) for end in (0, math.inf)]
    fraction = simplest_between(middle[0] / 2, middle[1] / 2)
    return sign * fraction if float(fraction) == size else Fraction(value)


def simplest_near(value: Fraction, within: Fraction) -> Fraction:
    """Return the nearest fraction of the least denominator that one within a distance has.

    >>> simplest_near(Fraction(7, 15), Fraction(1, 10)), simplest_near(Fraction(-7, 5), Fraction(1))
    (Fraction(1, 2), Fraction(-1, 1))
    """
    below = simplest_between(value - within, value + within).denominator
    return Fraction(round(value * below), below)


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction of least denominator in an interval.

    >>> simplest_between(Fraction(314, 100), Fraction(315, 100))
    Fraction(22, 7)
    """
    whole = -((-low.numerator) // low.denominator)
    if whole <= high:
        return Fraction(whole)
    below = whole - 1
    return below + 1 / simplest_between(1 / (high - below), 1 / (low - below))


def dot(left: Sequence[Number], right: Sequence[Number]) -> Number:
    """Return the scalar product of two vectors."""
    return sum((a * b for a, b in zip(left, right, strict=True)), Fraction(0))


def form(matrix: Rows, vectors: Rows) -> list[Number]:
    """Return ``v M v'`` for each row v."""
    return [vector @ matrix @ vector for vector in vectors]


def weighted_gram(vectors: Rows, weights: Sequence[Number]) -> Rows:
    """Return the sum of the outer squares of rows, each times its weight."""
    return (vectors.T * np.array(weights, dtype=object)) @ vectors


def row_echelon(matrix: Rows) -> tuple[Rows, list[int]]:
    """Return the reduced row echelon form, and the columns of its pivots: those that are independent."""
    work = matrix.copy()
    pivots: list[int] = []
    for column in range(work.shape[1]):
        rank = len(pivots)
        pivot = next((row for row in range(rank, len(work)) if work[row, column]), None)
        if pivot is None:
            continue
        work[[rank, pivot]] = work[[pivot, rank]]
        _eliminate(work, rank, column)
        pivots.append(column)
    return work, pivots


def inverse(matrix: Rows) -> Rows | None:
    """Invert a positive definite matrix by elimination; None where a pivot is not positive."""
    size = len(matrix)
    work = np.hstack([matrix, np.array([[Fraction(int(i == j)) for j in range(size)] for i in range(size)])])
    for pivot in range(size):
        if work[pivot, pivot] <= 0:
            return None
        _eliminate(work, pivot, pivot)
    return work[:, size:]


def _eliminate(work: Rows, pivot: int, column: int) -> None:
    """Make the entries of a column 1 in the pivot's row and 0 in all others."""
    work[pivot] = work[pivot] / work[pivot, column]
    for other in range(len(work)):
        if other != pivot and work[other, column]:
            work[other] = work[other] - work[pivot] * work[other, column]


def on_basis(rows: Rows, basis: Rows) -> Rows | None:
    """Return the coordinates of rows on a basis, None where the basis is dependent or does not span them."""
    gram = inverse(basis @ basis.T)
    if gram is None:
        return None
    image = rows @ basis.T @ gram
    return image if np.array_equal(image @ basis, rows) else None
