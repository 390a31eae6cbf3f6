"""Toeplitz strategies with factors on rows and columns: the descent, for many steps begun at the best of fewer.

Drawn out, factors and coefficients of fewer steps are close to the best of more: the factors depend on the share of the
steps that have passed, and so does, of the share of the coefficients, each coefficient over that of the square root.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dualmech.fast.engine.classes import (
    Evaluated,
    OfRows,
    OfSums,
    correlated,
    inverse_series,
    product,
    soft_largest,
)
from dualmech.geometry.causal import Causal
from dualmech.geometry.scaled import Exponentials, ScaledToeplitz
from dualmech.neighbours import Participation
from dualmech.problems.strategies import root_coefficients
from dualmech.validate import Array

FALLS = 2.0
"""Logarithm by which one exponential of the columns' divisors falls, and one rises, from the first step to the last.

With a constant they are three. At 256 steps any divisors whatever lower total variance by less than 1 % more, and the
largest variance by 2 % to 5 % more.
"""

AT_ONCE = 2048  # steps up to which the descent begins at the square root

FEWER = 6  # times as few steps are drawn out

FEWEST = 16  # coefficients of fewer steps: fewer say nothing of more

NOT_POSITIVE = 1e3  # value of factors that are no factors


@dataclass(frozen=True, eq=False)
class ScaledCoefficients:
    """``C_ki = r_k c_{k-i} / y_i`` by ``c_1, …``, with ``c_0 = 1``, the logarithms of r and three mixtures."""

    steps: int
    count: int
    rule: Participation | None
    decay: float = 1.0

    by_series, soft = True, True

    @cached_property
    def _exponentials(self) -> Exponentials:
        return Exponentials(np.ones(3), np.exp(np.array([0.0, -FALLS, FALLS]) / self.steps), self.steps)

    @cached_property
    def _mixtures(self) -> Array:
        """Scales of the exponentials by mixtures of them that are orthogonal (3, 3)."""
        curves = self._exponentials.curves
        values, vectors = np.linalg.eigh(curves @ curves.T / self.steps)
        return vectors / np.sqrt(np.maximum(values, 1e-12))

    def first(self) -> Array:
        return self._joined(root_coefficients(self.count, self.decay), np.ones(self.steps), np.array([1.0, 0.0, 0.0]))

    def shorter(self) -> ScaledCoefficients | None:
        """Return the class of fewer steps whose best is drawn out; None where the descent begins at the root."""
        if self.steps <= AT_ONCE or self.count < FEWEST * FEWER:
            return None
        fewer = -(-self.steps // FEWER)
        if (rule := self.rule) is not None:
            apart = max(rule.separation // FEWER, 1)
            last = self.steps - (rule.times - 1) * rule.separation
            fewer = (rule.times - 1) * apart + max(round(last * apart / rule.separation), 1)
            rule = Participation(rule.times, apart, rule.parts, rule.at_least)
        count = min(self.count // FEWER, fewer if rule is None else rule.separation)
        decay = max(float(self.decay ** (self.steps / fewer)), np.finfo(float).tiny)
        return ScaledCoefficients(fewer, count, rule, decay)

    def drawn_out(self, x: Array, longer: ScaledCoefficients) -> Array:
        series, rows, scales = self._parts(x)
        ratios = series / np.maximum(root_coefficients(self.count, self.decay), np.finfo(float).tiny)
        along = np.interp(np.linspace(0, 1, longer.count), np.linspace(0, 1, self.count), ratios)
        before, after = ((np.arange(steps) + 0.5) / steps for steps in (self.steps, longer.steps))
        factors = np.exp(np.interp(after, before, np.log(rows)))
        return longer._joined(along * root_coefficients(longer.count, longer.decay), factors, scales)

    def strategy(self, x: Array) -> Causal:
        series, rows, scales = self._parts(x)
        return ScaledToeplitz(np.trim_zeros(series, "b"), rows, scales, self._exponentials.decays)

    def evaluate(self, x: Array, aim: OfRows | OfSums, sharpness: float) -> Evaluated:
        series, rows, scales = self._parts(x)
        columns = scales @ self._exponentials.curves
        if not columns.min() > 0:
            return NOT_POSITIVE, np.zeros_like(x)
        padded = np.r_[series, np.zeros(self.steps - self.count)]
        inverse, squares = inverse_series(padded), rows**2
        value, by_inverse, by_scale, by_number = aim.of_scaled(inverse, scales, self._exponentials, 1 / squares)
        by_series = -correlated(by_inverse, product(inverse, inverse))

        costs = correlated(squares, padded**2) / columns**2
        cost, by_cost = self._largest(costs, sharpness)
        pull = by_cost / columns**2
        by_series = by_series / value + 2 * padded * correlated(squares, pull)
        by_row = 2 * squares * product(pull, padded**2) - 2 * by_number / squares / value
        mixed = by_scale / value - self._exponentials.curves @ (2 * by_cost * costs / columns)
        return float(np.log(value) + cost), np.r_[by_series[1 : self.count], by_row, self._mixtures.T @ mixed]

    def _largest(self, costs: Array, sharpness: float) -> Evaluated:
        """Return the logarithm of the soft maximum over persons of what columns cost (n,), and its gradient."""
        rule = self.rule
        if rule is not None and rule.at_least:
            cost, shares = soft_largest(costs, rule.times, rule.separation, sharpness)
            return float(np.log(cost)), shares / cost
        phases = np.arange(self.steps) % (self.steps if rule is None else rule.separation)
        sums = np.bincount(phases, costs)
        with np.errstate(under="ignore"):
            sizes = (sums / sums.max()) ** sharpness
        sizes[sizes < np.finfo(float).eps ** 2] = 0.0  # numbers too small to be normal are slow
        return float(np.log(sums.max()) + np.log(sizes.sum()) / sharpness), (sizes / sizes.sum() / sums)[phases]

    def _parts(self, x: Array) -> tuple[Array, Array, Array]:
        """Return the coefficients, the rows' factors and the scales of the exponentials."""
        series, logs, mixed = np.split(x, [self.count - 1, self.count - 1 + self.steps])
        return np.r_[1.0, series], np.exp(logs), self._mixtures @ mixed

    def _joined(self, series: Array, rows: Array, scales: Array) -> Array:
        return np.r_[series[1:] / series[0], np.log(rows), np.linalg.solve(self._mixtures, scales)]
