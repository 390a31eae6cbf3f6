"""Exact arithmetic: integers times powers of two, fractions, bounds on roots, logarithms and norms."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from math import isqrt, lcm
from typing import Any

DECIMALS = Context(60, Emin=-999999, Emax=999999)  # for exponentials and logarithms
MIN_EXP_ARGUMENT = -1000  # below it, ``e**x`` is bounded by 0 and ``e**-1000``
ARCTAN_BITS = 160
MAX_MULTIPLICATIONS = 2**36  # of 64-bit words in a matrix product: some minutes
Rows = list[list[int]]


class Refused(Exception):
    """The file is not a proof; the message names the missing part or the inequality that does not hold."""


class Matrix:
    """A matrix of integers, given by rows, times ``2**exponent``."""

    def __init__(self, rows: Rows, exponent: int) -> None:
        self.rows, self.exponent = rows, exponent

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.rows[0])

    def times(self, other: Matrix) -> Matrix:
        """Return the product.

        Each row of the other matrix is packed into one long integer whose digits are the entries, in a base so large
        that no sum overflows. A row of the product is a linear combination of these integers, unpacked from its digits.
        """
        bit_lengths = [max(map(int.bit_length, map(max, matrix.rows))) for matrix in (self.sizes(), other.sizes())]
        words = (bit_lengths[0] // 64 + 1) * (bit_lengths[1] // 64 + 1)
        work = len(self.rows) * len(other.rows) * other.shape[1] * words
        expect(
            work <= MAX_MULTIPLICATIONS,
            f"a matrix product takes {work:.1e} multiplications, more than {MAX_MULTIPLICATIONS:.1e}",
        )
        width = (sum(bit_lengths) + len(other.rows).bit_length()) // 8 + 1  # bytes of a digit, its sign included
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
        exponent = min(self.exponent, other.exponent)
        shift, other_shift = self.exponent - exponent, other.exponent - exponent
        rows = [
            [(a << shift) + factor * (b << other_shift) for a, b in zip(*pair, strict=True)]
            for pair in zip(self.rows, other.rows, strict=True)
        ]
        return Matrix(rows, exponent)

    def over(self, other: Matrix) -> Matrix:
        exponent = min(self.exponent, other.exponent)
        rows = [
            [entry << (matrix.exponent - exponent) for entry in row] for matrix in (self, other) for row in matrix.rows
        ]
        return Matrix(rows, exponent)

    def transposed(self) -> Matrix:
        return Matrix([list(column) for column in zip(*self.rows, strict=True)], self.exponent)

    def squares(self) -> list[Fraction]:
        return [power(sum(entry * entry for entry in row), 2 * self.exponent) for row in self.rows]

    def numbers(self) -> list[list[Fraction]]:
        return [[power(entry, self.exponent) for entry in row] for row in self.rows]

    def paired(self, other: Matrix) -> Fraction:
        """Return ``⟨A, B⟩ = tr(A'B)``."""
        pairs = zip(self.rows, other.rows, strict=True)
        return power(sum(sum(map(int.__mul__, left, right)) for left, right in pairs), self.exponent + other.exponent)

    def trace(self) -> Fraction:
        return power(sum(row[index] for index, row in enumerate(self.rows)), self.exponent)

    def largest_sum(self) -> Fraction:
        """Return the largest absolute row sum, an upper bound on the spectral norm of a symmetric matrix."""
        return power(max(sum(map(abs, row)) for row in self.rows), self.exponent)

    def norm_squared(self) -> Fraction:
        """Return an upper bound on the squared spectral norm."""
        wide = self if self.shape[0] <= self.shape[1] else self.transposed()
        return wide.times(wide.transposed()).largest_sum()


def identity(size: int) -> Matrix:
    return diagonal(Matrix([[1] * size], 0))


def diagonal(entries: Matrix) -> Matrix:
    """Return the diagonal matrix with the entries of a single row."""
    (row,) = entries.rows
    return Matrix([[entry if i == j else 0 for j, entry in enumerate(row)] for i in range(len(row))], entries.exponent)


def departure(matrix: Matrix, inverse: Matrix) -> Matrix:
    """Return ``E = A Z - I``."""
    return matrix.times(inverse).plus(identity(matrix.shape[0]), -1)


def departed(matrix: Matrix, inverse: Matrix) -> Fraction:
    """Return an upper bound, below 1, on ``|A Z - I|`` (Frobenius), so that A is invertible; refuse any other Z."""
    residual = root_above(sum(departure(matrix, inverse).squares()))
    expect(residual < 1, f"|A Z - I| must be below 1, it is {above(residual)}")
    return residual


def eliminated(matrix: Matrix, right: Matrix) -> tuple[Fraction, list[list[Fraction]]]:
    """Return ``det A`` and ``A⁻¹ C`` of a symmetric A; refuse one that is not positive definite.

    By fraction-free elimination (Bareiss 1968): every division is exact, and the pivots are the leading principal
    minors, which are all positive if and only if the matrix is positive definite.
    """
    rows, size, last = (
        [[*left, *other] for left, other in zip(matrix.rows, right.rows, strict=True)],
        len(matrix.rows),
        1,
    )
    for place in range(size):
        pivot_row, pivot = rows[place], rows[place][place]
        expect(pivot > 0, "a matrix must be positive definite")
        for index, row in enumerate(rows):
            if index != place:
                factor = row[place]
                rows[index] = [
                    (pivot * left - factor * other) // last for left, other in zip(row, pivot_row, strict=True)
                ]
        last = pivot
    unit = power(1, right.exponent - matrix.exponent) / last
    return power(last, size * matrix.exponent), [[entry * unit for entry in row[size:]] for row in rows]


def dot(first: Iterable[Fraction | int], second: Iterable[Fraction | int]) -> Fraction:
    """Return the sum of products, over one common denominator, so that the fraction is reduced only once."""
    sum_numerator, sum_denominator = 0, 1
    for a, b in zip(first, second, strict=True):
        numerator, denominator = a.numerator * b.numerator, a.denominator * b.denominator
        if denominator != sum_denominator:
            common = lcm(sum_denominator, denominator)
            sum_numerator, numerator, sum_denominator = (
                sum_numerator * (common // sum_denominator),
                numerator * (common // denominator),
                common,
            )
        sum_numerator += numerator
    return Fraction(sum_numerator, sum_denominator)


def total(numbers: Sequence[Fraction | int]) -> Fraction:
    return dot(numbers, [1] * len(numbers))


def root_above(number: Fraction | int, order: int = 2) -> Fraction:
    """Return a tight upper bound on the root of the given order of a non-negative number."""
    return _root(Fraction(number), order, 1)


def root_below(number: Fraction | int, order: int = 2) -> Fraction:
    """Return a tight lower bound on the root of the given order of a non-negative number."""
    return _root(Fraction(number), order, 0)


def _root(number: Fraction, order: int, more: int) -> Fraction:
    """Return the root of a non-negative number, rounded down, plus `more` units in the last place."""
    if not number:
        return Fraction(0)
    digits = number.numerator.bit_length() - number.denominator.bit_length()
    shift = max(0, 160 - digits // order)  # three times the digits of a double, whatever the size
    scaled = (number.numerator << (order * shift)) // number.denominator
    root = isqrt(scaled) if order == 2 else _integer_root(scaled, order)
    return Fraction(root + more, 1 << shift)


def _integer_root(number: int, order: int) -> int:
    """Return the integer part of the root of an integer, by Newton's method from above."""
    root = 1 << -(-number.bit_length() // order)
    while True:
        better = ((order - 1) * root + number // root ** (order - 1)) // order
        if better >= root:
            return root
        root = better


def exp_below(value: Fraction) -> Fraction:
    """Return a lower bound on ``e**value``: the decimal before the correctly rounded one."""
    return (
        Fraction(DECIMALS.next_minus(DECIMALS.exp(_decimal(value, ROUND_FLOOR))))
        if value > MIN_EXP_ARGUMENT
        else Fraction(0)
    )


def exp_above(value: Fraction) -> Fraction:
    """Return an upper bound on ``e**value``."""
    return Fraction(DECIMALS.next_plus(DECIMALS.exp(max(_decimal(value, ROUND_CEILING), Decimal(MIN_EXP_ARGUMENT)))))


def log_below(value: Fraction) -> Fraction:
    """Return a lower bound on the logarithm of a positive number."""
    decimal = _decimal(value, ROUND_FLOOR)  # log 1 is 0 exactly: the decimal next to 0 has a million digits
    return Fraction(0) if decimal == 1 else Fraction(DECIMALS.next_minus(DECIMALS.ln(decimal)))


def log_above(value: Fraction) -> Fraction:
    """Return an upper bound on the logarithm of a positive number."""
    decimal = _decimal(value, ROUND_CEILING)
    return Fraction(0) if decimal == 1 else Fraction(DECIMALS.next_plus(DECIMALS.ln(decimal)))


def arcsine_share(value: Fraction) -> tuple[Fraction, Fraction]:
    """Return a lower and an upper bound on ``(2/π) arcsin x`` for x from -1 to 1.

    The value is ``arctan(t) / arctan(1)`` for ``t = x / (1 + √(1 - x²))``.
    """
    if value < 0:
        lower, upper = arcsine_share(-value)
        return -upper, -lower
    square, (lower_quarter, upper_quarter) = 1 - value * value, _arctan(Fraction(1))
    lower_angle, _ = _arctan(value / (1 + root_above(square)))
    _, upper_angle = _arctan(value / (1 + root_below(square)))
    return Fraction(lower_angle, upper_quarter), min(Fraction(upper_angle, lower_quarter), Fraction(1))


def _arctan(tangent: Fraction) -> tuple[int, int]:
    """Return integer bounds on a sixteenth of the angle whose tangent, from 0 to 1, is given, in units of 2⁻¹⁶⁰.

    If t is the tangent of an angle, ``t / (1 + √(1 + t²))`` is the tangent of half the angle. After four halvings t is
    below 1/20, and the truncated terms of the series are negligible. Each of the hundred roundings changes the sum by
    less than two units.
    """
    unit = 1 << ARCTAN_BITS
    t = (tangent.numerator << ARCTAN_BITS) // tangent.denominator
    for _ in range(4):
        t = (t << ARCTAN_BITS) // (unit + isqrt(unit * unit + t * t))
    total, term, square = 0, t, t * t >> ARCTAN_BITS
    for order in range(1, ARCTAN_BITS // 4, 2):
        total += term // order if order % 4 == 1 else -(term // order)
        term = term * square >> ARCTAN_BITS
    return total - 256, total + 256


def _decimal(value: Fraction, rounding: str) -> Decimal:
    context = Context(DECIMALS.prec, rounding, DECIMALS.Emin, DECIMALS.Emax)
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


def power(integer: int, exponent: int) -> Fraction:
    return Fraction(integer << exponent) if exponent >= 0 else Fraction(integer, 1 << -exponent)


def below(value: Fraction) -> Decimal:
    return Context(15, ROUND_FLOOR).divide(Decimal(value.numerator), Decimal(value.denominator))


def above(value: Fraction) -> Decimal:
    return Context(15, ROUND_CEILING).divide(Decimal(value.numerator), Decimal(value.denominator))


def expect(holds: bool, message: str) -> None:
    if not holds:
        raise Refused(message)


# The reader of a file: its sections by name, their numbers, and a record of the names that were read.
#
# A name that the checker ignored could mislead a reader of the file. So a file is refused unless every name was read.


NUMBER = re.compile(r"(-?)0x([0-9a-f]{1,1000})p([+-]?[0-9]{1,4})", re.ASCII)
Shape = tuple[int | None, int | None]


class Section:
    """A section of a file: its entries by name, and a record of the names not yet read, also of subsections."""

    def __init__(self, entries: dict[str, Any], where: str = "") -> None:
        self.entries, self.where = entries, where
        self.unread = dict.fromkeys(entries)
        self.within: dict[str, list[Section]] = {}

    def get(self, name: str) -> Any:
        """Return the entry of a name, or None if absent; the name counts as read."""
        self.unread.pop(name, None)
        return self.entries.get(name)

    def names(self) -> list[str]:
        return list(self.entries)

    def refuse_unread(self) -> None:
        """Refuse names that were not read, in this section or a subsection."""
        for name in self.unread:
            raise Refused(f"{self._place(name)} has no meaning there: every name of a proof must be known and used")
        for inner in self.within.values():
            for part in inner:
                part.refuse_unread()

    def word(self, name: str, choices: Collection[str], label: str = "") -> str:
        """Return an entry that must be one of `choices`; `label` replaces its name in the message."""
        text = self.get(name)
        if not (isinstance(text, str) and text in choices):
            raise Refused(f"{label or name} must be one of {', '.join(choices)}")
        return text

    def part(self, name: str) -> Section:
        part = self.get(name)
        expect(isinstance(part, dict), f"it has no {name!r}")
        return self._within(name, [part])[0]

    def parts(self, name: str, count: int | None = None) -> list[Section]:
        """Return a list of `count` sections, or any positive number of them."""
        parts = self.get(name)
        valid = isinstance(parts, list) and len(parts) > 0 and all(isinstance(item, dict) for item in parts)
        expect(valid and count in (None, len(parts)), f"{name} must be a list of {count or 'some'} sections")
        return self._within(name, parts)

    def listed(self, name: str) -> list[Section]:
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
        """Return a list of non-negative numbers, not all 0."""
        numbers = self.vector(name, count)
        expect(min(numbers) >= 0 and any(numbers), f"{name} must not be negative, and not all be 0")
        return numbers

    def matrix(self, name: str, shape: Shape = (None, None)) -> Matrix:
        """Return a matrix, its entries brought to a common exponent."""
        rows = self.get(name)
        message = f"{name} must be a list of rows of equal length"
        if not (isinstance(rows, list) and rows and all(isinstance(row, list) and row for row in rows)):
            raise Refused(message)
        expect(len({len(row) for row in rows}) == 1, message)
        for expected, count, kind in zip(shape, (len(rows), len(rows[0])), ("rows", "columns"), strict=True):
            expect(expected in (None, count), f"{name} must have {expected} {kind}, got {count}")
        parsed = [[_parsed(text) for text in row] for row in rows]
        common_exponent = min((exponent for row in parsed for integer, exponent in row if integer), default=0)
        return Matrix(
            [
                [integer << (exponent - common_exponent) if integer else 0 for integer, exponent in row]
                for row in parsed
            ],
            common_exponent,
        )

    def optional_matrix(self, name: str, shape: Shape = (None, None)) -> Matrix | None:
        return None if self.get(name) is None else self.matrix(name, shape)

    def _within(self, name: str, items: list[Any]) -> list[Section]:
        if name not in self.within:
            self.within[name] = [Section(item, self._place(name)) for item in items]
        return self.within[name]

    def _place(self, name: str) -> str:
        return f"{self.where}, {str(name)[:40]!r}" if self.where else repr(str(name)[:40])


def _parsed(text: object) -> tuple[int, int]:
    """Return the integer and the exponent of two of a number."""
    match = NUMBER.fullmatch(text) if isinstance(text, str) else None
    expect(match is not None, f"{str(text)[:40]!r} is not a number such as '-0x1a3p-52'")
    sign, digits, exponent = match.groups()  # type: ignore[union-attr]
    return int(sign + digits, 16), int(exponent)
