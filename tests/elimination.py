"""Linear algebra in exact fractions, for tests that hold floating point against it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

Rows = list[list[Fraction]]


def fractions(matrix: Any) -> Rows:
    return [[Fraction(entry) for entry in row] for row in np.asarray(matrix, dtype=float).tolist()]


def transposed(rows: Rows) -> Rows:
    return [list(column) for column in zip(*rows, strict=True)]


def times(one: Rows, two: Rows) -> Rows:
    columns = transposed(two)
    return [[sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0)) for column in columns] for row in one]


def reduced(rows: Rows) -> tuple[Rows, list[int]]:
    """Return the reduced row echelon form, without rows of zeros, and its pivots."""
    left, pivots = [row[:] for row in rows], list[int]()
    for column in range(len(rows[0])):
        done = len(pivots)
        place = next((each for each in range(done, len(left)) if left[each][column]), None)
        if place is None:
            continue
        left[done], left[place] = left[place], left[done]
        left[done] = [entry / left[done][column] for entry in left[done]]
        for other in range(len(left)):
            if other != done and left[other][column]:
                factor = left[other][column]
                left[other] = [a - factor * b for a, b in zip(left[other], left[done], strict=True)]
        pivots.append(column)
    return left[: len(pivots)], pivots


def solution(matrix: Rows, right: list[Fraction]) -> list[Fraction] | None:
    """Return the one solution of a system, None where there is none or several."""
    echelon, pivots = reduced([[*row, value] for row, value in zip(matrix, right, strict=True)])
    return [row[-1] for row in echelon] if pivots == [*range(len(matrix[0]))] else None


def inverse(rows: Rows) -> Rows:
    size = len(rows)
    both = [[*row, *(Fraction(place == own) for own in range(size))] for place, row in enumerate(rows)]
    return [row[size:] for row in reduced(both)[0]]


def exact_cost(covariance: Any, move: Any) -> Fraction | float:
    """Return ``b' Σ⁺ b`` of a positive semidefinite matrix, infinite where b leaves its range."""
    rows, left, total = fractions(covariance), [Fraction(entry) for entry in move], Fraction(0)
    for place, row in enumerate(rows):
        if row[place] == 0:
            if left[place]:
                return math.inf
            continue
        total += left[place] ** 2 / row[place]
        for below in range(place + 1, len(rows)):
            factor = rows[below][place] / row[place]
            rows[below] = [a - factor * b for a, b in zip(rows[below], row, strict=True)]
            left[below] -= factor * left[place]
    return total
