"""Matrices of exact numbers: as few operations as blackboard proofs need, each without any rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dualmech.crosscheck.optima.surds import Number

Rows = list[list[Number]]

LARGEST_DENOMINATOR = 1000
"""Largest denominator that a proof may have; beyond it nobody would put it on a blackboard."""


def exactly(array: npt.ArrayLike, denominator: int = LARGEST_DENOMINATOR) -> Rows | None:
    """Return the simplest fractions that round to doubles; None where one has a denominator beyond the largest.

    >>> exactly([1 / 3, 1e-6], 10**7)
    [[Fraction(1, 3), Fraction(1, 1000000)]]
    """
    rows = [[_stood_for(float(entry)) for entry in row] for row in np.atleast_2d(np.asarray(array, float))]
    large = any(entry.denominator > denominator for row in rows for entry in row)
    return None if large else [[*row] for row in rows]


def _stood_for(value: float) -> Fraction:
    size, sign = abs(value), -1 if value < 0 else 1
    if size.is_integer():
        return Fraction(value)
    middle = [Fraction(size) + Fraction(math.nextafter(size, end)) for end in (0, math.inf)]
    found = simplest_between(middle[0] / 2, middle[1] / 2)
    return sign * found if float(found) == size else Fraction(value)


def simplest(array: npt.ArrayLike, within: float) -> Rows | None:
    """Return the fractions of least denominators within a distance of each entry, None where one has none small."""
    rows = [
        [_simplest(float(entry), within) for entry in row] for row in np.atleast_2d(np.asarray(array, float))
    ]
    return None if any(entry is None for row in rows for entry in row) else rows  # type: ignore[return-value]


def _simplest(value: float, within: float) -> Fraction | None:
    low, high = 1, LARGEST_DENOMINATOR
    if not np.isfinite(value) or abs(float(_near(value, high)) - value) > within:
        return None
    while low < high:  # distances fall as denominators grow
        middle = (low + high) // 2
        low, high = (
            (low, middle) if abs(float(_near(value, middle)) - value) <= within else (middle + 1, high)
        )
    return _near(value, low)


def _near(value: float, denominator: int) -> Fraction:
    return Fraction(value).limit_denominator(denominator)


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


def transpose(rows: Rows) -> Rows:
    """Return the transposed matrix."""
    return [list(column) for column in zip(*rows, strict=True)]


def product(left: Rows, right: Rows) -> Rows:
    """Return the product of two matrices."""
    columns = transpose(right)
    return [[dot(row, column) for column in columns] for row in left]


def total(left: Rows, right: Rows) -> Rows:
    """Return the sum of two matrices."""
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(left, right, strict=True)]


def times(factor: Number, rows: Rows) -> Rows:
    """Return a matrix times a number."""
    return [[factor * entry for entry in row] for row in rows]


def dot(left: Sequence[Number], right: Sequence[Number]) -> Number:
    """Return the scalar product of two vectors."""
    return sum((a * b for a, b in zip(left, right, strict=True)), Fraction(0))


def form(matrix: Rows, vector: list[Number]) -> Number:
    """Return the quadratic form of a matrix at a vector."""
    return dot([dot(row, vector) for row in matrix], vector)


def weighted_gram(vectors: Rows, weights: Sequence[Number]) -> Rows:
    """Return the sum of the outer squares of vectors, each times its weight."""
    weighted = [[weight * entry for entry in vector] for vector, weight in zip(vectors, weights, strict=True)]
    return product(transpose(weighted), vectors)


def row_echelon(matrix: Rows) -> tuple[Rows, list[int]]:
    """Return the reduced row echelon form, and the columns of its pivots: those that are independent."""
    work = [list(row) for row in matrix]
    pivots: list[int] = []
    for column in range(len(matrix[0])):
        rank = len(pivots)
        found = next((row for row in range(rank, len(work)) if work[row][column]), None)
        if found is None:
            continue
        work[rank], work[found] = work[found], work[rank]
        work[rank] = [entry / work[rank][column] for entry in work[rank]]
        for other in range(len(work)):
            if other != rank and work[other][column]:
                factor = work[other][column]
                work[other] = [a - factor * b for a, b in zip(work[other], work[rank], strict=True)]
        pivots.append(column)
    return work, pivots


def null_space(matrix: Rows) -> Rows:
    """Return vectors, a row each, that span what a matrix takes to 0."""
    reduced, pivots = row_echelon(matrix)
    found: Rows = []
    for free in (column for column in range(len(matrix[0])) if column not in pivots):
        vector: list[Number] = [Fraction(int(column == free)) for column in range(len(matrix[0]))]
        for row, pivot in zip(reduced, pivots, strict=False):
            vector[pivot] = -row[free]
        found.append(vector)
    return found


def inverse(matrix: Rows) -> Rows | None:
    """Invert a positive definite matrix by elimination; None where a pivot is not positive."""
    size = len(matrix)
    work = [row + [Fraction(int(i == j)) for j in range(size)] for i, row in enumerate(matrix)]
    for pivot in range(size):
        if work[pivot][pivot] <= 0:
            return None
        work[pivot] = [entry / work[pivot][pivot] for entry in work[pivot]]
        for other in range(size):
            if other != pivot and work[other][pivot]:
                factor = work[other][pivot]
                work[other] = [a - factor * b for a, b in zip(work[other], work[pivot], strict=True)]
    return [row[size:] for row in work]


def on_basis(rows: Rows, basis: Rows) -> Rows | None:
    """Return the coordinates of rows on a basis, None where the basis is dependent or does not span them."""
    gram = inverse(product(basis, transpose(basis)))
    if gram is None:
        return None
    found = product(product(rows, transpose(basis)), gram)
    return found if product(found, basis) == rows else None


def floats(rows: Rows) -> npt.NDArray[np.float64]:
    """Return the nearest doubles."""
    return np.array([[float(entry) for entry in row] for row in rows])
