"""Numbers ``a + b √d + …`` with fractions a, b, …: sums, products, quotients and comparisons, without any rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

MAX_TRIAL_DIVISOR = 10**5
"""Largest divisor in trial division. A cofactor below its square is prime."""


class Surd:
    """A sum of rational multiples of square roots of integers.

    Square roots of distinct square-free integers are linearly independent over the rationals. So a number is 0 if and
    only if all its coefficients are 0. The sign of any other number follows from enough digits, so comparisons end.

    Examples
    --------
    >>> root = Surd({6: Fraction(1)})
    >>> root * root, 1 / (root - 2), (root - 2) > Fraction(44, 100)
    (Surd(6), Surd((2 + √6)/2), True)
    """

    def __init__(self, terms: Mapping[int, Fraction]) -> None:
        """Take the coefficients by radicand: square-free integers, including 1."""
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
        for left_root, a in self.terms.items():
            for right_root, b in _terms(other).items():
                common = math.gcd(left_root, right_root)
                root = (left_root // common) * (right_root // common)
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
        """Reciprocal ``(u - v √p) / (u² - p v²)`` of ``x = u + v √p``; p is prime and divides no radicand of u, v."""
        if not self.terms:
            raise ZeroDivisionError("division by 0")
        largest = max(self.terms)
        if largest == 1:
            return Surd({1: 1 / self.terms[1]})
        prime = _smallest_prime_factor(largest)
        conjugate = Surd({root: -a if root % prime == 0 else a for root, a in self.terms.items()})
        return conjugate * (self * conjugate).inverse

    @cached_property
    def sign(self) -> int:
        bits = 64
        while self.terms:
            middle, error = self.in_units(bits)
            if abs(middle) > error:
                return 1 if middle > 0 else -1
            bits *= 2
        return 0

    def in_units(self, bits: int) -> tuple[Fraction, Fraction]:
        """Return an approximation of the number times ``2**bits``, and a bound on its absolute error."""
        middle, error = Fraction(0), Fraction(0)
        for root, factor in self.terms.items():
            middle += factor * math.isqrt(root << 2 * bits)
            error += abs(factor)
        return middle, error

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
            middle, error = self.in_units(bits)
            if abs(middle) > error * 2**60:
                return float(middle / 2**bits)
            bits *= 2
        return 0.0

    @property
    def radicals(self) -> tuple[int, ...]:
        """The radicands other than 1."""
        return tuple(root for root in self.terms if root > 1)

    def latex(self) -> str:
        r"""Return the number as LaTeX.

        >>> Surd({1: Fraction(9, 5), 6: Fraction(-2, 5)}).latex()
        '(9 - 2 \\sqrt{6})/5'
        """
        return self._text(r"\sqrt{{{}}}")

    def __str__(self) -> str:
        return self._text("√{}")

    def __repr__(self) -> str:
        return f"Surd({self})"

    def _text(self, root_text: str) -> str:
        denominator = math.lcm(*(factor.denominator for factor in self.terms.values()))
        text = ""
        for root, factor in self.terms.items():
            numerator = int(factor * denominator)
            sign = ("-" if not text else " - ") if numerator < 0 else "" if not text else " + "
            size = "" if abs(numerator) == 1 and root > 1 else str(abs(numerator))
            text += sign + " ".join(filter(None, (size, root_text.format(root) if root > 1 else "")))
        several = len(self.terms) > 1 and denominator > 1
        return (f"({text})" if several else text or "0") + (f"/{denominator}" if denominator > 1 else "")


Number: TypeAlias = Fraction | Surd


def square_root(number: Fraction) -> Surd | None:
    """Return the square root of a non-negative fraction, or None if trial division does not factor it.

    >>> square_root(Fraction(8, 3))
    Surd(2 √6/3)
    """
    if not number:
        return Surd({})
    factors = _without_squares(number.numerator * number.denominator)
    if factors is None:
        return None
    root_factor, radicand = factors
    return Surd({radicand: Fraction(root_factor, number.denominator)})


def latex(number: Number) -> str:
    return number.latex() if isinstance(number, Surd) else str(number)


def radicals_of(numbers: Iterable[Number]) -> tuple[int, ...]:
    """Return the sorted radicands of the numbers, without 1."""
    return tuple(sorted({root for number in numbers if isinstance(number, Surd) for root in number.radicals}))


def _terms(number: Number | int) -> dict[int, Fraction]:
    return number.terms if isinstance(number, Surd) else {1: Fraction(number)} if number else {}


def _without_squares(number: int) -> tuple[int, int] | None:
    """Return a, b with ``number = a² b`` and b square-free, or None if trial division does not find them."""
    root_factor, radicand, divisor = 1, 1, 2
    while divisor <= MAX_TRIAL_DIVISOR and divisor * divisor <= number:
        while number % divisor == 0:
            number //= divisor
            root_factor, radicand = (
                (root_factor * divisor, radicand // divisor)
                if radicand % divisor == 0
                else (root_factor, radicand * divisor)
            )
        divisor += 1 if divisor == 2 else 2
    root = math.isqrt(number)
    if root * root == number:
        return root_factor * root, radicand
    return (root_factor, radicand * number) if number < MAX_TRIAL_DIVISOR**2 else None


@cache
def _smallest_prime_factor(number: int) -> int:
    """Return the smallest prime factor of a number above 1."""
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return divisor
        divisor += 1
    return number


# Matrices of exact numbers: NumPy computes sums and products of objects; elimination is exact.


Rows: TypeAlias = Any
"""A matrix of exact numbers: a NumPy array of objects."""

MAX_DENOMINATOR = 10**7
"""Largest denominator of a number of a problem. For a generic double, the simplest fraction that rounds to it has a
denominator of about 10**8."""


def exactly(array: npt.ArrayLike) -> Rows | None:
    """Return the simplest fractions that round to the given doubles, or None if one has a denominator above the limit.

    >>> exactly([1 / 3, 1e-6]).tolist()
    [[Fraction(1, 3), Fraction(1, 1000000)]]
    """
    rows = [[_simplest_fraction(float(entry)) for entry in row] for row in np.atleast_2d(np.asarray(array, float))]
    too_large = any(entry.denominator > MAX_DENOMINATOR for row in rows for entry in row)
    return None if too_large else np.array(rows, dtype=object)


def _simplest_fraction(value: float) -> Fraction:
    size, sign = abs(value), -1 if value < 0 else 1
    if size.is_integer():
        return Fraction(value)
    middle = [Fraction(size) + Fraction(math.nextafter(size, end)) for end in (0, math.inf)]
    fraction = simplest_between(middle[0] / 2, middle[1] / 2)
    return sign * fraction if float(fraction) == size else Fraction(value)


def simplest_near(value: Fraction, distance: Fraction) -> Fraction:
    """Return the fraction nearest to `value` among those of the smallest denominator that occurs within `distance`.

    >>> simplest_near(Fraction(7, 15), Fraction(1, 10)), simplest_near(Fraction(-7, 5), Fraction(1))
    (Fraction(1, 2), Fraction(-1, 1))
    """
    denominator = simplest_between(value - distance, value + distance).denominator
    return Fraction(round(value * denominator), denominator)


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction of smallest denominator in an interval.

    >>> simplest_between(Fraction(314, 100), Fraction(315, 100))
    Fraction(22, 7)
    """
    ceiling = -((-low.numerator) // low.denominator)
    if ceiling <= high:
        return Fraction(ceiling)
    floor = ceiling - 1
    return floor + 1 / simplest_between(1 / (high - floor), 1 / (low - floor))


def dot(left: Sequence[Number], right: Sequence[Number]) -> Number:
    return sum((a * b for a, b in zip(left, right, strict=True)), Fraction(0))


def form(matrix: Rows, vectors: Rows) -> list[Number]:
    """Return ``v M v'`` for each row v."""
    return [vector @ matrix @ vector for vector in vectors]


def weighted_gram(vectors: Rows, weights: Sequence[Number]) -> Rows:
    """Return ``Σ w_i v_i' v_i`` over the rows v_i."""
    return (vectors.T * np.array(weights, dtype=object)) @ vectors


def row_echelon(matrix: Rows) -> tuple[Rows, list[int]]:
    """Return the reduced row echelon form and the indices of its pivot columns."""
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
    """Return the inverse of a positive definite matrix, or None if a pivot is not positive."""
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
    """Return the coordinates of rows in a basis, or None if the basis is dependent or does not span them."""
    gram = inverse(basis @ basis.T)
    if gram is None:
        return None
    image = rows @ basis.T @ gram
    return image if np.array_equal(image @ basis, rows) else None
