"""Closed forms for the counts of d cells and their total: what FFU derives in section 5.1, with weights and targets.

Cells are interchangeable, so optimal noise on them has covariance ``Σ = a I + b 1 1'``; with d cells,

- a cell's variance is ``a + b``, the total's is ``d (a + d b)``,
- the squared privacy cost is ``(a + (d - 1) b) / (a (a + d b))``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dualmech import validate
from dualmech.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class ExchangeableNoise:
    """Noise of covariance ``Σ = a I + b 1 1'`` on d cells; `own` is a, `shared` is b.

    Examples
    --------
    >>> noise = ExchangeableNoise(cells=3, own=4 / 3, shared=-1 / 3)
    >>> round(noise.cell_variance, 12), round(noise.total_variance, 12), round(noise.squared_cost, 12)
    (1.0, 1.0, 1.5)
    """

    cells: int
    own: float
    shared: float

    @property
    def cell_variance(self) -> float:
        """Variance of each cell's count."""
        return self.own + self.shared

    @property
    def total_variance(self) -> float:
        """Variance of the sum of all counts."""
        return self.cells * (self.own + self.cells * self.shared)

    @property
    def squared_cost(self) -> float:
        """Squared privacy cost, one record added or removed."""
        common = self.own + self.cells * self.shared
        return (common - self.shared) / (self.own * common)

    def largest_ratio(self, total_target: float) -> float:
        """Return the largest variance over target, with targets 1 for the cells and `total_target` for their sum."""
        return max(self.cell_variance, self.total_variance / total_target)


def fitness_noise(cells: int, total_target: float) -> ExchangeableNoise:
    """Return the noise of least privacy cost with variances of at most 1 per cell and `total_target` for their sum.

    ``a = (d² - k) / (d (d - 1))``, ``b = (k - d) / (d (d - 1))`` where the sum's target k is below d; from there
    on, the cells' own noise meets it.
    Raises `InvalidInputError` for fewer than two cells, a target that is not positive.
    Theorem 7 of FFU is k = 1: a squared cost of ``2d / (d + 1)``.

    - `cells`: number of cells d, at least 2;
    - `total_target`: k > 0.
    """
    count, target = _cells(cells), validate.positive_number(total_target=total_target)
    if target >= count:
        return ExchangeableNoise(count, 1.0, 0.0)
    pairs = count * (count - 1)
    return ExchangeableNoise(count, (count**2 - target) / pairs, (target - count) / pairs)


def variance_noise(cells: int, total_weight: float) -> ExchangeableNoise:
    """Return the noise of squared cost 1 with the least sum of cell variances plus `total_weight` times the total's.

    With ω the weight and ``r = √(1 + ω d)``: ``a = (d - 1 + r) / d`` and ``a + d b = a / r``.
    Raises `InvalidInputError` for fewer than two cells, a weight that is not positive.
    Theorem 6 of FFU is ω = 1 (stated for d ≥ 5; the formula is 0/0 at d = 3); the weighted form stands before its
    Theorem 8 in the full version.

    - `cells`: number of cells d, at least 2;
    - `total_weight`: ω > 0.
    """
    count, weight = _cells(cells), validate.positive_number(total_weight=total_weight)
    root = math.sqrt(1 + weight * count)
    own = (count - 1 + root) / count
    return ExchangeableNoise(count, own, (own / root - own) / count)


def _cells(cells: int) -> int:
    count = validate.size(cells=cells)
    if count < 2:
        raise InvalidInputError(f"cells must be an integer of at least 2, got {count}")
    return count
