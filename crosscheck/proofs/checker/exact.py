"""Exact arithmetic: whole numbers times powers of two, fractions, bounds on roots, logarithms and norms."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from math import isqrt, lcm
from typing import Any

WIDE = Context(60, Emin=-999999, Emax=999999)  # sixty digits, where there is no fraction
LEAST = -1000  # least exponent of e: with a smaller one the power is no larger, and at least 0
ARCTAN_BITS = 160
MOST = 2**36  # multiplications of words that a product of matrices may take, some minutes
Rows = list[list[int]]


class Refused(Exception):
    """The file is no proof: what is missing, or the inequality that does not hold."""


class Matrix:
    """Whole numbers by row, all of them times ``2**exponent``."""

    def __init__(self, rows: Rows, exponent: int) -> None:
        self.rows, self.exponent = rows, exponent

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.rows[0])

    def times(self, other: Matrix) -> Matrix:
        """Return the product.

        Each row of the other matrix is written as one long whole number, an entry a digit to a base so large that no
        sum overflows: a row of the product is then a sum of multiples of these, and is read off its digits.
        """
        longest = [max(map(int.bit_length, map(max, matrix.rows))) for matrix in (self.sizes(), other.sizes())]
        words = (longest[0] // 64 + 1) * (longest[1] // 64 + 1)
        work = len(self.rows) * len(other.rows) * other.shape[1] * words
        expect(work <= MOST, f"a product takes {work:.1e} multiplications, more than {MOST:.1e}")
        width = (sum(longest) + len(other.rows).bit_length()) // 8 + 1  # bytes of a digit, its sign included
        half = 1 << (8 * width - 1)
        shift = int.from_bytes(half.to_bytes(width, "little") * other.shape[1], "little")
        long_rows = [
            int.from_bytes(b"".join([(entry + half).to_bytes(width, "little") for entry in row]), "little") - shift
            for row in other.rows
        ]
        rows = []
        for row in self.rows:
            digits = (sum(map(int.__mul__, row, long_rows)) + shift).to_bytes(width * other.shape[1], "little")
            places = range(0, width * other.shape[1], width)
            rows.append([int.from_bytes(digits[at : at + width], "little") - half for at in places])
        return Matrix(rows, self.exponent + other.exponent)

    def sizes(self) -> Matrix:
        return Matrix([[abs(entry) for entry in row] for row in self.rows], self.exponent)

    def plus(self, other: Matrix, factor: int = 1) -> Matrix:
        least = min(self.exponent, other.exponent)
        shift, more = self.exponent - least, other.exponent - least
        rows = [
            [(a << shift) + factor * (b << more) for a, b in zip(*pair, strict=True)]
            for pair in zip(self.rows, other.rows, strict=True)
        ]
        return Matrix(rows, least)

    def over(self, other: Matrix) -> Matrix:
        least = min(self.exponent, other.exponent)
        rows = [
            [entry << (matrix.exponent - least) for entry in row] for matrix in (self, other) for row in matrix.rows
        ]
        return Matrix(rows, least)

    def transposed(self) -> Matrix:
        return Matrix([list(column) for column in zip(*self.rows, strict=True)], self.exponent)

    def squares(self) -> list[Fraction]:
        return [power(sum(entry * entry for entry in row), 2 * self.exponent) for row in self.rows]

    def numbers(self) -> list[list[Fraction]]:
        return [[power(entry, self.exponent) for entry in row] for row in self.rows]

    def paired(self, other: Matrix) -> Fraction:
        """Return ``tr(A'B)``, the sum of products of entries."""
        pairs = zip(self.rows, other.rows, strict=True)
        return power(sum(sum(map(int.__mul__, one, two)) for one, two in pairs), self.exponent + other.exponent)

    def trace(self) -> Fraction:
        return power(sum(row[index] for index, row in enumerate(self.rows)), self.exponent)

    def largest_sum(self) -> Fraction:
        """Return the largest sum of magnitudes in a row: no eigenvalue of a symmetric matrix has a larger magnitude."""
        return power(max(sum(map(abs, row)) for row in self.rows), self.exponent)

    def norm_squared(self) -> Fraction:
        """Return a number that the square of no singular value exceeds."""
        smaller = self if self.shape[0] <= self.shape[1] else self.transposed()
        return smaller.times(smaller.transposed()).largest_sum()


def identity(size: int) -> Matrix:
    """Return I."""
    return diagonal(Matrix([[1] * size], 0))


def diagonal(entries: Matrix) -> Matrix:
    """Return the diagonal matrix with the entries of a single row."""
    (row,) = entries.rows
    return Matrix([[entry if i == j else 0 for j, entry in enumerate(row)] for i in range(len(row))], entries.exponent)


def departure(matrix: Matrix, inverse: Matrix) -> Matrix:
    """Return ``E = A Z - I``."""
    return matrix.times(inverse).plus(identity(matrix.shape[0]), -1)


def departed(matrix: Matrix, inverse: Matrix) -> Fraction:
    """Return a number below 1 that ``|A Z - I|`` (Frobenius) is at most; A is then invertible."""
    missed = root_above(sum(departure(matrix, inverse).squares()))
    expect(missed < 1, f"|A Z - I| must be below 1, it is {above(missed)}")
    return missed


def eliminated(matrix: Matrix, right: Matrix) -> tuple[Fraction, list[list[Fraction]]]:
    """Return ``det A`` and ``A⁻¹ C`` of a symmetric A; refuse one that is not positive definite.

    By elimination in whole numbers (Bareiss 1968): every division leaves no remainder, and the pivots are the leading
    minors, all of them positive if and only if the matrix is positive definite.
    """
    rows, size, last = [[*one, *two] for one, two in zip(matrix.rows, right.rows, strict=True)], len(matrix.rows), 1
    for place in range(size):
        chosen, pivot = rows[place], rows[place][place]
        expect(pivot > 0, "a matrix must be positive definite")
        for index, row in enumerate(rows):
            if index != place:
                factor = row[place]
                rows[index] = [(pivot * one - factor * two) // last for one, two in zip(row, chosen, strict=True)]
        last = pivot
    unit = power(1, right.exponent - matrix.exponent) / last
    return power(last, size * matrix.exponent), [[entry * unit for entry in row[size:]] for row in rows]


def dot(one: Iterable[Fraction | int], two: Iterable[Fraction | int]) -> Fraction:
    """Return the sum of products, over one common denominator: it is reduced once, and not at every step."""
    top, bottom = 0, 1
    for a, b in zip(one, two, strict=True):
        more, below_it = a.numerator * b.numerator, a.denominator * b.denominator
        if below_it != bottom:
            common = lcm(bottom, below_it)
            top, more, bottom = top * (common // bottom), more * (common // below_it), common
        top += more
    return Fraction(top, bottom)


def total(numbers: Sequence[Fraction | int]) -> Fraction:
    return dot(numbers, [1] * len(numbers))


def root_above(number: Fraction | int, order: int = 2) -> Fraction:
    """Return an upper bound, close to it, on the square root, or a root of another order."""
    return _root(Fraction(number), order, 1)


def root_below(number: Fraction | int, order: int = 2) -> Fraction:
    """Return a lower bound, close to it, on the square root, or a root of another order, of a non-negative number."""
    return _root(Fraction(number), order, 0)


def _root(number: Fraction, order: int, more: int) -> Fraction:
    """Return the root of a number that is not negative, rounded down, and so many units of its last place more."""
    if not number:
        return Fraction(0)
    digits = number.numerator.bit_length() - number.denominator.bit_length()
    shift = max(0, 160 - digits // order)  # three times the digits of a double, whatever the size
    scaled = (number.numerator << (order * shift)) // number.denominator
    root = isqrt(scaled) if order == 2 else _whole_root(scaled, order)
    return Fraction(root + more, 1 << shift)


def _whole_root(whole: int, order: int) -> int:
    """Return the largest whole number whose power is at most the given one, by Newton's method from above."""
    root = 1 << -(-whole.bit_length() // order)
    while True:
        better = ((order - 1) * root + whole // root ** (order - 1)) // order
        if better >= root:
            return root
        root = better


def exp_below(value: Fraction) -> Fraction:
    """Return a number that is at most ``e**value``: the decimal value is correctly rounded, then one step down."""
    return Fraction(WIDE.next_minus(WIDE.exp(_decimal(value, ROUND_FLOOR)))) if value > LEAST else Fraction(0)


def exp_above(value: Fraction) -> Fraction:
    """Return a number that is at least ``e**value``."""
    return Fraction(WIDE.next_plus(WIDE.exp(max(_decimal(value, ROUND_CEILING), Decimal(LEAST)))))


def log_below(value: Fraction) -> Fraction:
    """Return a number that is at most the logarithm of a positive one."""
    decimal = _decimal(value, ROUND_FLOOR)  # of 1 it is 0 itself: the next number has a million digits
    return Fraction(0) if decimal == 1 else Fraction(WIDE.next_minus(WIDE.ln(decimal)))


def log_above(value: Fraction) -> Fraction:
    """Return a number that is at least the logarithm of a positive one."""
    decimal = _decimal(value, ROUND_CEILING)
    return Fraction(0) if decimal == 1 else Fraction(WIDE.next_plus(WIDE.ln(decimal)))


def arcsine_share(value: Fraction) -> tuple[Fraction, Fraction]:
    """Return numbers between which ``(2/π) arcsin x`` lies, x from -1 to 1.

    It is ``arctan(t) / arctan(1)`` for ``t = x / (1 + √(1 - x²))``.
    """
    if value < 0:
        least, most = arcsine_share(-value)
        return -most, -least
    square, (below_one, above_one) = 1 - value * value, _arctan(Fraction(1))
    least_angle, _ = _arctan(value / (1 + root_above(square)))
    _, most_angle = _arctan(value / (1 + root_below(square)))
    return Fraction(least_angle, above_one), min(Fraction(most_angle, below_one), Fraction(1))


def _arctan(tangent: Fraction) -> tuple[int, int]:
    """Return whole numbers between which a sixteenth of the angle lies, in units of 2⁻¹⁶⁰, its tangent from 0 to 1.

    ``t / (1 + √(1 + t²))`` is the tangent of half an angle. After four of them it is below 1/20, and the series ends.
    Each of the hundred roundings moves the sum by less than two units.
    """
    one = 1 << ARCTAN_BITS
    t = (tangent.numerator << ARCTAN_BITS) // tangent.denominator
    for _ in range(4):
        t = (t << ARCTAN_BITS) // (one + isqrt(one * one + t * t))
    total, term, square = 0, t, t * t >> ARCTAN_BITS
    for order in range(1, ARCTAN_BITS // 4, 2):
        total += term // order if order % 4 == 1 else -(term // order)
        term = term * square >> ARCTAN_BITS
    return total - 256, total + 256


def _decimal(value: Fraction, rounding: str) -> Decimal:
    context = Context(WIDE.prec, rounding, WIDE.Emin, WIDE.Emax)
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


def power(whole: int, exponent: int) -> Fraction:
    """Return ``whole * 2**exponent``."""
    return Fraction(whole << exponent) if exponent >= 0 else Fraction(whole, 1 << -exponent)


def below(value: Fraction) -> Decimal:
    return Context(15, ROUND_FLOOR).divide(Decimal(value.numerator), Decimal(value.denominator))


def above(value: Fraction) -> Decimal:
    return Context(15, ROUND_CEILING).divide(Decimal(value.numerator), Decimal(value.denominator))


def expect(holds: bool, words: str) -> None:
    """Raise `Refused` unless something holds."""
    if not holds:
        raise Refused(words)


# The contents of a file: its parts by name, the numbers in them, and a record of the names that were read.
#
# A name that nothing reads would be passed over, and a reader of the file might think that it means something. So a
# file is refused unless every name in it was read.


NUMBER = re.compile(r"(-?)0x([0-9a-f]{1,1000})p([+-]?[0-9]{1,4})", re.ASCII)
Shape = tuple[int | None, int | None]


class Given:
    """A part of a file: its contents by name, and which of its names, and of those in its parts, were read."""

    def __init__(self, entries: dict[str, Any], where: str = "") -> None:
        self.entries, self.where = entries, where
        self.unread = dict.fromkeys(entries)
        self.within: dict[str, list[Given]] = {}

    def get(self, name: str) -> Any:
        """Return the entry of a name, None where there is none; the name counts as read."""
        self.unread.pop(name, None)
        return self.entries.get(name)

    def names(self) -> list[str]:
        return list(self.entries)

    def refuse_unread(self) -> None:
        """Refuse a name that was not read, here or in any part."""
        for name in self.unread:
            raise Refused(f"{self._place(name)} means nothing there: every name of a proof must be known, and used")
        for inner in self.within.values():
            for part in inner:
                part.refuse_unread()

    def word(self, name: str, known: Collection[str], called: str = "") -> str:
        """Return a word that must be one of those known; `called` is its name for the file's reader."""
        text = self.get(name)
        if not (isinstance(text, str) and text in known):
            raise Refused(f"{called or name} must be one of {', '.join(known)}")
        return text

    def part(self, name: str) -> Given:
        part = self.get(name)
        expect(isinstance(part, dict), f"it has no {name!r}")
        return self._within(name, [part])[0]

    def parts(self, name: str, count: int | None = None) -> list[Given]:
        """Return a list of parts, of which there must be some, or as many as is said."""
        parts = self.get(name)
        held = isinstance(parts, list) and len(parts) > 0 and all(isinstance(item, dict) for item in parts)
        expect(held and count in (None, len(parts)), f"{name} must be a list of {count or 'some'} parts")
        return self._within(name, parts)

    def listed(self, name: str) -> list[Given]:
        return self.parts(name) if self.get(name) else []

    def number(self, name: str) -> Fraction:
        return power(*_parsed(self.get(name)))

    def vector(self, name: str, count: int | None = None) -> list[Fraction]:
        texts = self.get(name)
        if not isinstance(texts, list) or not texts:
            raise Refused(f"{name} must be a list of numbers")
        expect(count in (None, len(texts)), f"{name} must be {count} numbers, got {len(texts)}")
        return [power(*_parsed(text)) for text in texts]

    def nonnegative(self, name: str, count: int) -> list[Fraction]:
        """Return a list of numbers, none negative and some positive."""
        numbers = self.vector(name, count)
        expect(min(numbers) >= 0 and any(numbers), f"{name} must not be negative, and not all be 0")
        return numbers

    def matrix(self, name: str, shape: Shape = (None, None)) -> Matrix:
        """Return a matrix with all entries times one power of two."""
        rows = self.get(name)
        words = f"{name} must be rows of equally many numbers"
        if not (isinstance(rows, list) and rows and all(isinstance(row, list) and row for row in rows)):
            raise Refused(words)
        expect(len({len(row) for row in rows}) == 1, words)
        for stated, count, what in zip(shape, (len(rows), len(rows[0])), ("rows", "columns"), strict=True):
            expect(stated in (None, count), f"{name} must have {stated} {what}, got {count}")
        parsed = [[_parsed(text) for text in row] for row in rows]
        least = min((exponent for row in parsed for whole, exponent in row if whole), default=0)
        return Matrix(
            [[whole << (exponent - least) if whole else 0 for whole, exponent in row] for row in parsed], least
        )

    def optional_matrix(self, name: str, shape: Shape = (None, None)) -> Matrix | None:
        return None if self.get(name) is None else self.matrix(name, shape)

    def _within(self, name: str, items: list[Any]) -> list[Given]:
        if name not in self.within:
            self.within[name] = [Given(item, self._place(name)) for item in items]
        return self.within[name]

    def _place(self, name: str) -> str:
        return f"{self.where}, {str(name)[:40]!r}" if self.where else repr(str(name)[:40])


def _parsed(text: object) -> tuple[int, int]:
    """Return a whole number and the power of two that it is multiplied by."""
    match = NUMBER.fullmatch(text) if isinstance(text, str) else None
    expect(match is not None, f"{str(text)[:40]!r} is no number such as '-0x1a3p-52'")
    sign, digits, exponent = match.groups()  # type: ignore[union-attr]
    return int(sign + digits, 16), int(exponent)
