"""Matrices in double-double arithmetic, with computed error bounds."""

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
"""Factor that covers the rounding of a bound which is a sum of up to a million non-negative numbers."""

SPLITTER = 2.0**27 + 1
"""Veltkamp's factor: it splits a double into two halves whose products are exact."""

MIN_ROW_SIZE = 2.0**-400
"""Lower bound on the size attributed to a row, so that no part of a product underflows."""

CONTRACTED = 0.25
"""Maximum norm of E for which ``I - E`` is inverted by a series."""

SERIES_TOL = 1e-32
"""Remainder at which that series ends: below the precision of its terms."""

MAX_EXACT_PRODUCTS = 2**15
"""Maximum number of multiplications of fractions in an exact comparison of columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Enclosure:
    """A matrix that differs from ``high + low`` (two arrays of doubles) by at most `radius`, entry by entry.

    Every operation adds a bound on its own error to the radius. Sums and products of doubles are split so that their
    rounding errors are doubles too (Dekker, Knuth). Factors of matrix products are cut into pieces of so few digits
    that BLAS multiplies them exactly (Ozaki, Ogita, Oishi and Rump, Numerical Algorithms 59, 2012). The bounds hold in
    any order of summation, with or without fused operations.
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
        """Whether the matrix is exactly the identity."""
        rows, columns = self.high.shape
        ones = rows == columns and bool(np.all(np.diagonal(self.high) == 1)) and np.count_nonzero(self.high) == rows
        return ones and not np.any(self.low) and not np.any(self.radius)

    def __matmul__(self, other: Enclosure) -> Enclosure:
        """Return the product, with an error of about ``UNIT²`` times the longest row and column; 0 for identities."""
        if self.is_identity:
            return other
        if other.is_identity:
            return self
        inner = self.high.shape[1]
        bits = (53 - inner.bit_length()) // 2
        a1, a2, _, a_rest, row_sizes = _pieces(self.high, self.low, bits)
        b1, b2, b_after1, b_rest, column_sizes = (piece.T for piece in _pieces(other.high.T, other.low.T, bits))
        # a1 b1, a1 b2 and a2 b1 are sums of integers below 2^53, up to a power of 2: exact.
        high, low = two_sum(a1 @ b1, a1 @ b2)
        high, error = two_sum(high, a2 @ b1)
        products = np.hstack([a1, a2, a_rest]) @ np.vstack([b_rest, b_after1, other.high])
        high, low = two_sum(high, low + error + products)
        # The terms of the remaining products are below 3/4 · 4^-bits times both sizes. They are rounded when the
        # pieces are formed, in a sum of 3 · inner terms, and three times when they are added to the errors above.
        rel_error = 32 * UNIT * inner * (inner + 8) * 4.0 ** -(bits + 1)
        radius = rel_error * UPWARDS * np.multiply.outer(row_sizes, column_sizes)
        if np.any(other.radius):
            radius = (radius + np.abs(self.high) @ other.radius) * UPWARDS
        if np.any(self.radius):
            radius = (radius + self.radius @ (np.abs(other.high) * UPWARDS + other.radius)) * UPWARDS
        return Enclosure(high, low, radius)

    def __add__(self, other: Enclosure) -> Enclosure:
        high, low = two_sum(self.high, other.high)
        size = np.abs(low) + np.abs(self.low) + np.abs(other.low)
        high, low = two_sum(high, low + (self.low + other.low))
        return Enclosure(high, low, (self.radius + other.radius + 3 * UNIT * size) * UPWARDS)

    def __neg__(self) -> Enclosure:
        return Enclosure(-self.high, -self.low, self.radius)

    def __sub__(self, other: Enclosure) -> Enclosure:
        return self + -other

    def magnitude(self) -> Array:
        return (np.abs(self.high) + np.abs(self.low) + self.radius) * UPWARDS

    def norm(self) -> float:
        return spectral_norm(self.magnitude())

    def widened(self, error: float) -> Enclosure:
        """Return the enclosure with the radius of every entry increased by an error."""
        return Enclosure(self.high, self.low, self.radius + error)

    def columns_scaled(self, factors: Array) -> Enclosure:
        return Enclosure(self.high * factors, self.low * factors, self.radius * factors)

    def row_products(self, other: Enclosure) -> tuple[Array, Array]:
        """Return the inner product of each row with the same row of another matrix, and error bounds."""
        values, errors = np.zeros(len(self.high)), np.zeros(len(self.high))
        for row in range(len(values)):
            rows = slice(row, row + 1)
            left, right = (Enclosure(part.high[rows], part.low[rows], part.radius[rows]) for part in (self, other))
            product = left @ right.T
            values[row], errors[row] = product.high[0, 0], product.radius[0, 0]
        return values, errors


def inverse_near_identity(matrix: Enclosure) -> Enclosure | None:
    """Return the inverse of a matrix C that is proven close to the identity; None if the proof fails.

    With ``E = I - C`` of norm δ, ``C⁻¹ = (I + E)(I + E²)(I + E⁴) … `` up to ``δ^(2^j) / (1 - δ)``. If E is small, one
    product ``E²`` of doubles is accurate enough.
    """
    identity = Enclosure.of(np.eye(len(matrix.high)))
    power = identity - matrix
    norm = distance = power.norm()
    if not distance <= CONTRACTED:  # also for NaN
        return None
    total, remainder = identity + power, distance**2
    # The error of E² in doubles has two parts: its rounding, and the digits of E beyond its leading double.
    low_norm = spectral_norm((np.abs(power.low) + power.radius) * UPWARDS)
    error = sum_rounding(len(power.high)) * distance**2 + 2 * distance * low_norm
    if distance**3 <= SERIES_TOL and error <= max(UNIT**2, float(power.radius.max())):
        square = power.high @ power.high
        return (total + Enclosure.of(square)).widened((error + distance**3 / (1 - distance)) * UPWARDS)
    while remainder > SERIES_TOL and norm > 0:
        power = power @ power
        total, norm, remainder = total + total @ power, power.norm(), remainder**2
    return total.widened(remainder / (1 - distance) * UPWARDS)


def spectral_norm(sizes: Array) -> float:
    """Return an upper bound on the spectral norm of every matrix with entries of at most these magnitudes."""
    if not sizes.size:
        return 0.0
    sides = float(np.sqrt(sizes.sum(axis=0).max())) * float(np.sqrt(sizes.sum(axis=1).max()))
    squares = float(np.vdot(sizes, sizes))
    # Squares of tiny numbers underflow, and subnormal numbers round: `nextafter` covers the latter.
    bound = min(sides, float(np.sqrt(squares))) if squares > MIN_ROW_SIZE**2 else sides
    return float(np.nextafter(bound * UPWARDS, np.inf)) if bound else 0.0


def sum_rounding(terms: T) -> T:
    """Return the maximum error of a sum of products, in any order, relative to the sum of their magnitudes."""
    return (terms + 1) * (UNIT * UPWARDS)


def gram_defect(rows: Array) -> tuple[Array, float]:
    """Return ``K K' - I`` and a bound on the errors of its entries, for rows K of norm close to 1.

    K is split into leading digits, few enough that BLAS multiplies them exactly, and a remainder.
    """
    count, cells = rows.shape
    unit = 2.0 ** -((52 - cells.bit_length()) // 2)
    leading = rows / unit
    np.rint(leading, out=leading)
    leading *= unit
    remainder = rows - leading
    mixed = leading @ remainder.T
    defect = (leading @ leading.T - np.eye(count)) + (mixed + mixed.T + remainder @ remainder.T)
    size = float(np.linalg.norm(leading, axis=1).max() + 1) * np.sqrt(cells) * unit
    return defect, (2 * sum_rounding(cells) * size + 4 * UNIT * float(np.abs(defect).max())) * UPWARDS


def proves_span(rows: Array, basis: npt.NDArray[np.intp], diagonal: Array, residual: Enclosure, defect: float) -> bool:
    """Return whether all rows are proven to lie in the span of the rows with the indices `basis`.

    With every row scaled to integers, the Gram determinant of the basis rows and one more row is an integer. It is the
    determinant D of the basis rows times the squared distance of the other row from their span, so it is 0 if it is
    below 1. If that proof fails, rows of few and small numbers are compared in fractions.

    - `diagonal`: of a triangle that maps the basis rows to K with ``‖K K' - I‖ ≤ defect``;
    - `residual`: encloses the component of each row outside the span.
    """
    exponents = _trailing_exponents(rows)
    others = np.setdiff1d(np.arange(len(rows)), basis)
    with np.errstate(divide="ignore"):
        log_determinant = len(basis) * np.log2(1 + defect) - 2 * np.log2(np.abs(diagonal)).sum()
        log_determinant -= 2 * exponents[basis].sum()
        log_distances = np.log2(np.linalg.norm(residual.magnitude(), axis=1)[others]) - exponents[others]
    if np.all(2 * log_distances + log_determinant < -1):
        return True
    independent = exactly_independent(rows.T)
    return independent is not None and len(independent) == len(basis)


def exactly_independent(columns: Array) -> list[int] | None:
    """Return the indices of columns that are linearly independent and span all columns, by exact elimination.

    None if the elimination takes more than `MAX_EXACT_PRODUCTS` multiplications of fractions.
    """
    basis: list[int] = []
    pivots: list[tuple[int, list[Fraction]]] = []
    for index, column in enumerate(columns.T):
        entries = [Fraction(entry) for entry in column.tolist()]
        for row, pivot in pivots:
            if entries[row]:
                factor = entries[row] / pivot[row]
                entries = [x - factor * y if y else x for x, y in zip(entries, pivot, strict=True)]
        row_index = next((row for row, entry in enumerate(entries) if entry), None)
        if row_index is not None:
            basis.append(index)
            pivots.append((row_index, entries))
            if len(basis) == len(columns):
                break
            if columns.size * len(basis) > MAX_EXACT_PRODUCTS:
                return None
    return basis


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum and its exact error (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded product and its exact error (Dekker), except for underflow."""
    product = a * b
    first, second = _halves(a), _halves(b)
    error = first[0] * second[0] - product
    return product, ((error + first[0] * second[1]) + first[1] * second[0]) + first[1] * second[1]


def _halves(number: Array) -> tuple[Array, Array]:
    """Split a number into two numbers of half as many digits (Veltkamp)."""
    scaled = SPLITTER * number
    high = scaled - (scaled - number)
    return high, number - high


def _pieces(high: Array, low: Array, bits: int) -> tuple[Array, Array, Array, Array, Array]:
    """Split rows into a first and a second piece of `bits` bits, relative to the row's largest entry.

    Returns both pieces, the remainder after the first, the remainder after both, and the sizes of the rows: powers of 2
    above all entries.
    """
    largest = np.abs(high).max(axis=1)
    sizes = np.maximum(np.ldexp(1.0, np.frexp(largest)[1]), MIN_ROW_SIZE)
    unit = (sizes * 2.0**-bits)[:, None]
    first = np.rint(high / unit) * unit
    remainder = high - first
    unit = unit * 2.0 ** -(bits + 1)
    second = np.rint(remainder / unit) * unit
    return first, second, remainder + low, (remainder - second) + low, sizes


def _trailing_exponents(rows: Array) -> Array:
    """Return for each row the exponent of the largest power of 2 that divides all its entries."""
    mantissas, exponents = np.frexp(rows)
    integers = np.ldexp(mantissas, 53).astype(np.int64)
    zeros = np.frexp((integers & -integers).astype(np.float64))[1] - 1
    return np.asarray(np.where(integers != 0, exponents - 53 + zeros, 2**20).min(axis=1), dtype=np.float64)
