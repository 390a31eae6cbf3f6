"""Causal strategies of running sums: what a record costs and how noisy each sum is, without their matrices.

A lower-triangular strategy C answers step by step: ``C x`` plus unit noise z leaves the noise ``W C⁻¹ z`` on the sums
``W x``. A record in cell i costs the squared norm of column i of C, and sum j has the variance of row j of ``W C⁻¹``.
With W sums of decay β, ``W⁻¹`` is bidiagonal, and everything takes time in proportion to the number of steps, for a
Toeplitz matrix but for a logarithm. The allowances are proven where each form is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.geometry.dense_forms import DenseForms
from dualmech.linalg import EPS
from dualmech.neighbours import participation
from dualmech.validate import Array


class Causal(Protocol):
    """A causal strategy: its number of steps, both sides of its noise, its matrix, and its noise as it is drawn."""

    @property
    def steps(self) -> int:
        """Number of steps n."""

    def costs(self) -> Array:
        """Return the squared norm of each column (n,)."""

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return each sum's variance with unit noise (n,), and what it may be higher by, relative; inf if unknown."""

    @property
    def nonnegative(self) -> bool:
        """Whether C has no negative entry."""

    def participation(self, times: int, apart: int) -> float:
        """Return the largest squared norm of a sum of up to so many columns of ``|C|``, so many steps apart."""

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""

    def matrix(self) -> Array:
        """Return C (n, n)."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Noisy counts of all binary blocks of steps that are complete, put together as they come in.

    The strategy has a row for every block of ``2^h`` steps from a multiple of that. A block's count is estimated from
    its own noisy count and the estimates of its halves, by their precisions: ``1 / v_h = 1 + 1 / (2 v_{h-1})``. A sum
    is that of the blocks which its number of steps has in binary. All numbers are positive.
    """

    steps: int

    def costs(self) -> Array:
        """Return how many blocks each step is in (n,)."""
        cells, found = np.arange(self.steps), np.zeros(self.steps)
        for height in range(self.steps.bit_length()):
            found += ((cells >> height) + 1) << height <= self.steps
        return found

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,), and what it may be higher by, relative."""
        self._check(decay)
        ends, found = np.arange(1, self.steps + 1), np.zeros(self.steps)
        for height, variance in enumerate(self._variances()):
            found += variance * (ends >> height & 1)
        return found, np.full(self.steps, 8 * (self.steps.bit_length() + 2) * EPS)

    @property
    def nonnegative(self) -> bool:
        """Whether the strategy has no negative entry: it counts."""
        return True

    def participation(self, times: int, apart: int) -> float:
        """Return the largest squared norm of a sum of columns, so many steps apart: of counts by block."""
        together = participation(self.steps, times, apart, np.ones((1, times)))
        cells, persons = together.tocoo().coords
        found = np.zeros(together.shape[1])
        for height in range(self.steps.bit_length()):
            blocks = cells >> height
            complete = (blocks + 1) << height <= self.steps
            keys, counts = np.unique(
                persons[complete] * np.int64(self.steps) + blocks[complete], return_counts=True
            )
            np.add.at(found, keys // self.steps, counts.astype(np.float64) ** 2)
        return float(found.max())

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        self._check(decay)
        ends, found = np.arange(1, self.steps + 1), np.zeros(self.steps)
        below = np.zeros(0)
        for height, variance in enumerate(self._variances()):
            blocks = generator.standard_normal(self.steps >> height)
            if height:
                pairs = below[: 2 * len(blocks)].reshape(-1, 2).sum(axis=1)
                blocks = variance * blocks + (1 - variance) * pairs
            asked = (ends >> height & 1).astype(bool)
            found[asked] += blocks[(ends[asked] >> height) - 1]
            below = blocks
        return found

    def matrix(self) -> Array:
        """Refuse: what a tree answers is no least squares, so that a matrix would not tell the whole."""
        raise InvalidInputError(
            "a binary tree is judged on plain running sums alone: it decodes as it goes, not by least squares"
        )

    def _variances(self) -> list[float]:
        found = [1.0]
        while len(found) < self.steps.bit_length():
            found.append(1 / (1 + 1 / (2 * found[-1])))
        return found

    def _check(self, decay: float) -> None:
        if decay != 1:
            raise InvalidInputError(
                f"a binary tree answers plain running sums, not those with decay {decay:g}"
            )


def summing(steps: int) -> float:
    """Return an allowance for the rounding of a sum of squares over so many steps, relative."""
    return 4 * (steps + 8) * EPS


def unit_forms(strategy: Causal, decay: float) -> DenseForms | None:
    """Evaluate both sides of unit noise; None where doubles do not hold them, or say nothing of them."""
    costs = strategy.costs()
    variances, off = strategy.variances(decay)
    if not (np.all(np.isfinite(variances)) and np.all(np.isfinite(off)) and np.all(np.isfinite(costs))):
        return None
    rounding = summing(strategy.steps)
    return DenseForms(costs, variances, rounding * costs, (off + rounding) * variances)
