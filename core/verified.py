"""Matrices in twice the precision, with computed, not estimated, bounds of their errors."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dualmech.immutable import Array

T = TypeVar("T", float, Array)

UNIT = 2.0**-53
"""Relative error of one rounded operation."""

UPWARDS = 1 + 1e-9
"""Factor that makes up for the rounding of a bound that is itself a sum of up to a million numbers, none negative."""

SPLITTER = 2.0**27 + 1
"""Veltkamp's factor: it splits a double into two halves whose products are exact."""

LEAST_SIZE = 2.0**-400
"""Rows count as this large at least, so that no part of a product is lost to underflow."""

CONTRACTED = 0.25
"""Largest norm of E at which ``I - E`` is inverted by a series."""

NEGLIGIBLE = 1e-32
"""A remainder of that series that is below the precision of its terms."""

MOST_EXACT = 2**15
"""Multiplications of fractions up to which columns are compared exactly."""


@dataclass(frozen=True, slots=True, eq=False)
class Enclosure:
    """A matrix known as ``high + low``, both doubles, with no entry off by more than its entry of `radius`.

    Every operation adds its own largest error to the radius. Sums and products of doubles are split so that their
    rounding errors are doubles too (Dekker, Knuth). Products of matrices are cut into pieces so short that BLAS adds
    them without any error (Ozaki, Ogita, Oishi and Rump, Numerical Algorithms 59, 2012). The bounds hold whether or not
    a processor fuses operations, and in any order.
    """

    high: Array
    low: Array
    radius: Array

    @classmethod
    def of(cls, matrix: Array) -> Enclosure:
        return cls(matrix, np.zeros_like(matrix), np.zeros_like(matrix))

    @property
    def T(self) -> Enclosure:  # noqa: N802 (NumPy's name)
        return Enclosure(self.high.T, self.low.T, self.radius.T)

    @property
    def is_identity(self) -> bool:
        """Whether this is exactly the identity."""
        rows, columns = self.high.shape
        plain = rows == columns and bool(np.all(np.diagonal(self.high) == 1)) and np.count_nonzero(self.high) == rows
        return plain and not np.any(self.low) and not np.any(self.radius)

    def __matmul__(self, other: Enclosure) -> Enclosure:
        """Return the product, off by about ``UNIT²`` times the longest row and column; by nothing for an identity."""
        if self.is_identity:
            return other
        if other.is_identity:
            return self
        inner = self.high.shape[1]
        bits = (53 - inner.bit_length()) // 2
        one, two, _, rest, sizes = _pieces(self.high, self.low, bits)
        first, second, behind, last, others = (piece.T for piece in _pieces(other.high.T, other.low.T, bits))
        # Products of the first pieces, and of a first with a second one, are sums of whole numbers below 2^53.
        high, low = two_sum(one @ first, one @ second)
        high, more = two_sum(high, two @ first)
        small = np.hstack([one, two, rest]) @ np.vstack([last, behind, other.high])
        high, low = two_sum(high, low + more + small)
        # Each of the small products has terms below 3/4 · 4^-bits next to both sizes. All are rounded: by
        # forming the pieces, in a sum of 3 · inner terms, and three times when they are added to the errors above.
        share = 32 * UNIT * inner * (inner + 8) * 4.0 ** -(bits + 1)
        radius = share * UPWARDS * np.multiply.outer(sizes, others)
        if np.any(other.radius):
            radius = (radius + np.abs(self.high) @ other.radius) * UPWARDS
        if np.any(self.radius):
            radius = (radius + self.radius @ (np.abs(other.high) * UPWARDS + other.radius)) * UPWARDS
        return Enclosure(high, low, radius)

    def __add__(self, other: Enclosure) -> Enclosure:
        high, low = two_sum(self.high, other.high)
        rest = low + (self.low + other.low)
        size = np.abs(low) + np.abs(self.low) + np.abs(other.low)
        high, low = two_sum(high, rest)
        return Enclosure(high, low, (self.radius + other.radius + 3 * UNIT * size) * UPWARDS)

    def __neg__(self) -> Enclosure:
        return Enclosure(-self.high, -self.low, self.radius)

    def __sub__(self, other: Enclosure) -> Enclosure:
        return self + -other

    def magnitude(self) -> Array:
        return (np.abs(self.high) + np.abs(self.low) + self.radius) * UPWARDS

    def norm(self) -> float:
        return spectral_norm(self.magnitude())

    def widened(self, more: float) -> Enclosure:
        """Return the enclosure of all matrices whose entries are at most so far from a matrix in this one."""
        return Enclosure(self.high, self.low, self.radius + more)

    def columns_scaled(self, factors: Array) -> Enclosure:
        return Enclosure(self.high * factors, self.low * factors, self.radius * factors)

    def row_products(self, other: Enclosure) -> tuple[Array, Array]:
        """Return the inner product of each row with the same row of another, and by how much it may be off."""
        values, off = np.zeros(len(self.high)), np.zeros(len(self.high))
        for row in range(len(values)):
            here = slice(row, row + 1)
            one, two = (Enclosure(part.high[here], part.low[here], part.radius[here]) for part in (self, other))
            total = one @ two.T
            values[row], off[row] = total.high[0, 0], total.radius[0, 0]
        return values, off


def inverse_near_identity(matrix: Enclosure) -> Enclosure | None:
    """Return the inverse of a matrix that is proven close to the identity; None where no proof is found.

    With ``E = I - C`` of norm δ, ``C⁻¹ = (I + E)(I + E²)(I + E⁴) … `` up to ``δ^(2^j) / (1 - δ)``. Where E is so small
    that ``E²`` in doubles adds no error to speak of, one product of doubles does.
    """
    identity = Enclosure.of(np.eye(len(matrix.high)))
    power = identity - matrix
    reach = distance = power.norm()
    if not distance <= CONTRACTED:  # NaN is no proof either
        return None
    total, rest = identity + power, distance**2
    # What is off in a square of doubles: its own rounding, and what E has beside its leading digits.
    beside = spectral_norm((np.abs(power.low) + power.radius) * UPWARDS)
    off = sum_rounding(len(power.high)) * distance**2 + 2 * distance * beside
    if distance**3 <= NEGLIGIBLE and off <= max(UNIT**2, float(power.radius.max())):
        square = power.high @ power.high
        return (total + Enclosure.of(square)).widened((off + distance**3 / (1 - distance)) * UPWARDS)
    while rest > NEGLIGIBLE and reach > 0:
        power = power @ power
        total, reach, rest = total + total @ power, power.norm(), rest**2
    return total.widened(rest / (1 - distance) * UPWARDS)


def spectral_norm(sizes: Array) -> float:
    """Return an upper bound of the spectral norm of every matrix whose entries have at most these sizes."""
    if not sizes.size:
        return 0.0
    sides = float(np.sqrt(sizes.sum(axis=0).max())) * float(np.sqrt(sizes.sum(axis=1).max()))
    squares = float(np.vdot(sizes, sizes))
    # Squares of tiny numbers are lost to underflow; so is half a unit of the smallest numbers of all.
    largest = min(sides, float(np.sqrt(squares))) if squares > LEAST_SIZE**2 else sides
    return float(np.nextafter(largest * UPWARDS, np.inf)) if largest else 0.0


def sum_rounding(terms: T) -> T:
    """Return the largest error of a sum of products in any order, relative to the sum of their magnitudes."""
    return (terms + 1) * (UNIT * UPWARDS)


def gram_defect(rows: Array) -> tuple[Array, float]:
    """Return ``K K' - I`` and a bound of the errors of its entries, for rows K of norm close to 1.

    K is cut to so few leading digits that BLAS multiplies these without any error.
    """
    count, cells = rows.shape
    unit = 2.0 ** -((52 - cells.bit_length()) // 2)
    leading = rows / unit
    np.rint(leading, out=leading)
    leading *= unit
    rest = rows - leading
    crossed = leading @ rest.T
    defect = (leading @ leading.T - np.eye(count)) + (crossed + crossed.T + rest @ rest.T)
    size = float(np.linalg.norm(leading, axis=1).max() + 1) * np.sqrt(cells) * unit
    return defect, (2 * sum_rounding(cells) * size + 4 * UNIT * float(np.abs(defect).max())) * UPWARDS


def proves_span(rows: Array, chosen: npt.NDArray[np.intp], diagonal: Array, left: Enclosure, spread: float) -> bool:
    """Whether rows are proven to lie in the span of the chosen rows.

    With every row scaled to whole numbers, the Gram determinant of the chosen rows and one more row is a whole number.
    It is the determinant D of the chosen rows times the squared distance of the other row from their span, so it is 0
    where it is less than 1. A triangle with this diagonal maps the chosen rows to K with ``‖K K' - I‖ ≤ spread``;
    `left` encloses the part of each row outside of the span. Where that proves nothing, few and small numbers are
    compared in fractions.
    """
    grid = _grid(rows)
    others = np.setdiff1d(np.arange(len(rows)), chosen)
    with np.errstate(divide="ignore"):
        determinant = len(chosen) * np.log2(1 + spread) - 2 * np.log2(np.abs(diagonal)).sum()
        determinant -= 2 * grid[chosen].sum()
        distances = np.log2(np.linalg.norm(left.magnitude(), axis=1)[others]) - grid[others]
    if np.all(2 * distances + determinant < -1):
        return True
    proof = exactly_independent(rows.T)
    return proof is not None and len(proof) == len(chosen)


def exactly_independent(columns: Array) -> list[int] | None:
    """Return the indices of columns that are exactly independent and span all columns; every column must have an entry.

    They are compared in exact fractions; None where that takes more than `MOST_EXACT` multiplications.
    """
    chosen: list[int] = []
    reduced: list[tuple[int, list[Fraction]]] = []
    for index, column in enumerate(columns.T):
        left = [Fraction(entry) for entry in column.tolist()]
        for pivot, other in reduced:
            if left[pivot]:
                factor = left[pivot] / other[pivot]
                left = [entry - factor * pivot if pivot else entry for entry, pivot in zip(left, other, strict=True)]
        place = next((place for place, entry in enumerate(left) if entry), None)
        if place is not None:
            chosen.append(index)
            reduced.append((place, left))
            if len(chosen) == len(columns):
                break
            if columns.size * len(chosen) > MOST_EXACT:
                return None
    return chosen


def two_sum(one: Array, two: Array) -> tuple[Array, Array]:
    """Return the rounded sum and its exact error (Knuth)."""
    total = one + two
    back = total - one
    return total, (one - (total - back)) + (two - back)


def two_product(one: Array, two: Array) -> tuple[Array, Array]:
    """Return the rounded product and its exact error (Dekker), except for underflow."""
    product = one * two
    first, second = _halves(one), _halves(two)
    error = first[0] * second[0] - product
    return product, ((error + first[0] * second[1]) + first[1] * second[0]) + first[1] * second[1]


def _halves(number: Array) -> tuple[Array, Array]:
    """Return two numbers of half as many digits that add up to a number (Veltkamp)."""
    scaled = SPLITTER * number
    high = scaled - (scaled - number)
    return high, number - high


def _pieces(high: Array, low: Array, bits: int) -> tuple[Array, Array, Array, Array, Array]:
    """Cut rows into two pieces of so many bits next to their largest entry, the remainder of the first, and the rest.

    Returns the sizes of the rows, powers of 2 above all their entries, too.
    """
    largest = np.abs(high).max(axis=1)
    sizes = np.maximum(np.ldexp(1.0, np.frexp(largest)[1]), LEAST_SIZE)
    unit = (sizes * 2.0**-bits)[:, None]
    one = np.rint(high / unit) * unit
    left = high - one
    unit = unit * 2.0 ** -(bits + 1)
    two = np.rint(left / unit) * unit
    return one, two, left + low, (left - two) + low, sizes


def _grid(rows: Array) -> Array:
    """Return for each row the exponent of the largest power of 2 of which all its entries are multiples."""
    mantissas, exponents = np.frexp(rows)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    zeros = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return np.asarray(np.where(whole != 0, exponents - 53 + zeros, 2**20).min(axis=1), dtype=np.float64)
