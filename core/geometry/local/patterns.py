"""Extremal patterns of local privacy, and the pricing oracle: which pattern breaks a dual constraint the most.

Rows of an ε-LDP strategy lie in the cone ``{v ≥ 0 : v_u ≤ e^ε v_u'}``, which the vectors ``v_S = 1 + c 1_S`` generate,
``c = e^ε - 1``, S a proper subset of the user types, not empty. A pattern is such a vector with sum 1,
``p_S = v_S / (n + c |S|)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array

Sets = npt.NDArray[np.bool_]  # subsets of the user types, one per row (s, n)

EXACT = 32  # user types up to which all 2^n patterns are priced, those of more than 24 in single precision
DOUBLE = 24  # user types up to which patterns are priced in double precision
BLOCK = 1 << 22  # patterns that are priced at a time


def gain(epsilon: float) -> float:
    """Return ``c = e^ε - 1``, without cancellation for small ε."""
    return float(np.expm1(epsilon))


def rows(sets: Sets, epsilon: float) -> Array:
    """Return the patterns of sets (s, n), each of sum 1.

    Examples
    --------
    >>> rows(np.array([[True, False]]), np.log(3)).round(6)
    array([[0.75, 0.25]])
    """
    vectors = 1 + gain(epsilon) * np.asarray(sets, dtype=np.float64)
    return np.asarray(vectors / vectors.sum(axis=1, keepdims=True))


def all_sets(size: int) -> Sets:
    """Return every proper subset that is not empty, (2^n - 2, n); refused above 20 user types."""
    if validate.size(size=size) > 20:
        raise InvalidInputError(f"size must be at most 20 for all its subsets to be listed, got {size}")
    return _subsets(size)[1:-1]


def split_into_patterns(strategy: Array, epsilon: float) -> tuple[Array, Sets]:
    """Split the rows of a strategy into patterns: weights w and sets S with ``row = Σ w_S p_S``.

    Each row is, up to a factor, ``1 + c t`` with t between 0 and 1, a mixture of the indicators of its upper level
    sets: a chain of at most n + 1 patterns. Splitting never makes a strategy worse. (A constant is halved into a set
    and its complement.)
    """
    excess = gain(epsilon)
    least = strategy.min(axis=1, keepdims=True)
    levels = np.clip((strategy / least - 1) / excess, 0.0, 1.0)
    weights, sets = [], []
    for smallest, level in zip(least[:, 0], levels, strict=True):
        steps = np.unique(np.append(level, [0.0, 1.0]))
        for below, above in zip(steps[:-1], steps[1:], strict=True):
            members = level >= above
            weight = smallest * (above - below) * (len(level) + excess * members.sum())
            if 0 < members.sum() < len(level):
                weights.append(weight)
                sets.append(members)
            else:
                # A constant: 1 = (v_S + v_{not S}) / (2 + c).
                first = np.arange(len(level)) < len(level) / 2
                total = weight / (len(level) * (2 + excess))
                for half in (first, ~first):
                    weights.append(total * (len(level) + excess * half.sum()))
                    sets.append(half)
    return np.array(weights), np.array(sets).reshape(len(weights), strategy.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """A block of patterns with the values of a quadratic form on them."""

    values: Any  # (a, b) ``v_S' K v_S`` for S the union of a row's and a column's set
    left: Sets  # left, right: the rows' sets among the first user types, the columns' among the others
    right: Sets

    @property
    def sizes(self) -> npt.NDArray[np.intp]:
        """Number of user types in each set (a, b)."""
        return self.left.sum(axis=1)[:, None] + self.right.sum(axis=1)[None, :]

    def sets(self, chosen: npt.NDArray[np.intp]) -> Sets:
        """Return the sets (s, n) at flat positions of the block."""
        first, second = np.unravel_index(chosen, self.values.shape)
        return np.hstack([self.left[first], self.right[second]])


def forms(matrix: Array, epsilon: float) -> Iterator[Priced]:
    """Yield ``v_S' K v_S`` for all 2^n sets S, the empty and the full one included, in blocks.

    The user types are cut into two halves; a product of two matrices with ``2^(n/2)`` rows each does the rest.
    """
    size = len(matrix)
    half, excess = (size + 1) // 2, gain(epsilon)
    precision: Any = np.float64 if size <= DOUBLE else np.float32
    left, right = _subsets(half), _subsets(size - half)
    right = right[np.argsort(right.sum(axis=1), kind="stable")]
    first, second = 1 + excess * left, 1 + excess * right
    own = [
        np.einsum("su,uv,sv->s", vectors, block, vectors, optimize=True)
        for vectors, block in ((first, matrix[:half, :half]), (second, matrix[half:, half:]))
    ]
    ones = np.ones((len(second), 1))
    columns = np.hstack([second, ones, own[1][:, None]]).astype(precision).T
    mixed = 2 * first @ matrix[:half, half:]
    lines = np.hstack([mixed, own[0][:, None], np.ones((len(first), 1))]).astype(precision)
    step = max(BLOCK // columns.shape[1], 1)
    for start in range(0, len(lines), step):
        yield Priced(lines[start : start + step] @ columns, left[start : start + step], right)


def worst_by_size(matrix: Array, epsilon: float) -> tuple[Array, float]:
    """Return the largest ``v_S' K v_S`` over the sets of each size 0 … n, and an allowance for its rounding, absolute.

    Raises `InvalidInputError` for more than 32 user types.
    """
    size = len(matrix)
    if size > EXACT:
        raise InvalidInputError(f"all patterns are priced up to {EXACT} user types only, got {size}")
    worst = np.full(size + 1, -np.inf)
    for block in forms(matrix, epsilon):
        counts = block.right.sum(axis=1)
        starts = np.flatnonzero(np.diff(counts, prepend=-1))
        by_right = np.maximum.reduceat(block.values, starts, axis=1)
        for own, values in zip(block.left.sum(axis=1), by_right, strict=True):
            reached = own + counts[starts]
            worst[reached] = np.maximum(worst[reached], values)
    largest = (1 + gain(epsilon)) ** 2 * float(np.abs(matrix).sum())
    unit = np.finfo(np.float64 if size <= DOUBLE else np.float32).eps
    return worst, float(4 * (size + 4) * unit * largest)


def _subsets(size: int) -> Sets:
    """Return all subsets of `size` things (2^size, size), the empty one first and the full one last."""
    return (np.arange(1 << size)[:, None] >> np.arange(size)) % 2 == 1
