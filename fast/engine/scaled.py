"""Toeplitz strategies with factors on rows and columns; for many steps, descent starts from a coarse solution.

The solution for fewer steps is prolonged by interpolation, which is nearly optimal: factors depend on the fraction of
steps that has passed, and ratios to the coefficients of the square root on the fraction of the coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dualmech.fast.engine.classes import (
    Evaluated,
    RowsObjective,
    SumsObjective,
    correlate,
    inverse_series,
    product,
    soft_maximum_cost,
)
from dualmech.geometry.causal import Causal
from dualmech.geometry.scaled import Exponentials, ScaledToeplitz
from dualmech.neighbours import Participation
from dualmech.problems.strategies import root_coefficients
from dualmech.validate import Array

LOG_DECAY = 2.0
"""Column divisors are mixtures of a constant, an exponential that decreases by this logarithm over all steps, and one
that increases by it. At 256 steps, arbitrary divisors decrease the total variance by less than another 1 %, and the
largest variance by another 2 % to 5 %.
"""

MAX_DIRECT_STEPS = 2048  # for more steps, descent starts from a coarse solution
COARSENING = 6  # ratio of the numbers of steps
MIN_COARSE_COUNT = 16  # coefficients of the coarse solution
INFEASIBLE_VALUE = 1e3  # if column divisors are not positive


@dataclass(frozen=True, eq=False)
class ScaledCoefficients:
    """``C_ki = r_k c_{k-i} / y_i`` with parameters ``c_1, …`` (``c_0 = 1``), log r and three mixtures."""

    steps: int
    count: int
    rule: Participation | None
    decay: float = 1.0

    by_series, has_soft_cost = True, True

    @cached_property
    def _exponentials(self) -> Exponentials:
        return Exponentials(np.ones(3), np.exp(np.array([0.0, -LOG_DECAY, LOG_DECAY]) / self.steps), self.steps)

    @cached_property
    def _mixtures(self) -> Array:
        """Scales of the exponentials in three orthogonal mixtures, shape (3, 3)."""
        curves = self._exponentials.curves
        values, vectors = np.linalg.eigh(curves @ curves.T / self.steps)
        return vectors / np.sqrt(np.maximum(values, 1e-12))

    def start(self) -> Array:
        return self._join(root_coefficients(self.count, self.decay), np.ones(self.steps), np.array([1.0, 0.0, 0.0]))

    def coarser(self) -> ScaledCoefficients | None:
        if self.steps <= MAX_DIRECT_STEPS or self.count < MIN_COARSE_COUNT * COARSENING:
            return None
        coarse_steps = -(-self.steps // COARSENING)
        if (rule := self.rule) is not None:
            separation = max(rule.separation // COARSENING, 1)
            last_start = self.steps - (rule.times - 1) * rule.separation
            coarse_steps = (rule.times - 1) * separation + max(round(last_start * separation / rule.separation), 1)
            rule = Participation(rule.times, separation, rule.parts, rule.at_least)
        count = min(self.count // COARSENING, coarse_steps if rule is None else rule.separation)
        decay = max(float(self.decay ** (self.steps / coarse_steps)), np.finfo(float).tiny)
        return ScaledCoefficients(coarse_steps, count, rule, decay)

    def prolong(self, x: Array, fine: ScaledCoefficients) -> Array:
        series, rows, scales = self._parts(x)
        ratios = series / np.maximum(root_coefficients(self.count, self.decay), np.finfo(float).tiny)
        fine_ratios = np.interp(np.linspace(0, 1, fine.count), np.linspace(0, 1, self.count), ratios)
        coarse_times, fine_times = ((np.arange(steps) + 0.5) / steps for steps in (self.steps, fine.steps))
        factors = np.exp(np.interp(fine_times, coarse_times, np.log(rows)))
        return fine._join(fine_ratios * root_coefficients(fine.count, fine.decay), factors, scales)

    def strategy(self, x: Array) -> Causal:
        series, rows, scales = self._parts(x)
        return ScaledToeplitz(np.trim_zeros(series, "b"), rows, scales, self._exponentials.decays)

    def evaluate(self, x: Array, aim: RowsObjective | SumsObjective, sharpness: float) -> Evaluated:
        series, rows, scales = self._parts(x)
        columns = scales @ self._exponentials.curves
        if not columns.min() > 0:
            return INFEASIBLE_VALUE, np.zeros_like(x)
        padded = np.r_[series, np.zeros(self.steps - self.count)]
        inverse, squares = inverse_series(padded), rows**2
        value, by_inverse, by_scale, by_number = aim.of_scaled(inverse, scales, self._exponentials, 1 / squares)
        by_series = -correlate(by_inverse, product(inverse, inverse))

        costs = correlate(squares, padded**2) / columns**2
        cost, by_cost = self._log_cost(costs, sharpness)
        cost_gradient = by_cost / columns**2
        by_series = by_series / value + 2 * padded * correlate(squares, cost_gradient)
        by_row = 2 * squares * product(cost_gradient, padded**2) - 2 * by_number / squares / value
        by_mixture = by_scale / value - self._exponentials.curves @ (2 * by_cost * costs / columns)
        return float(np.log(value) + cost), np.r_[by_series[1 : self.count], by_row, self._mixtures.T @ by_mixture]

    def _log_cost(self, costs: Array, sharpness: float) -> Evaluated:
        """Return the logarithm of the soft maximum cost over users from column costs, shape (n,), and its gradient."""
        rule = self.rule
        if rule is not None and rule.at_least:
            cost, shares = soft_maximum_cost(costs, rule.times, rule.separation, sharpness)
            return float(np.log(cost)), shares / cost
        phases = np.arange(self.steps) % (self.steps if rule is None else rule.separation)
        sums = np.bincount(phases, costs)
        with np.errstate(under="ignore"):
            sizes = (sums / sums.max()) ** sharpness
        sizes[sizes < np.finfo(float).eps ** 2] = 0.0  # numbers too small to be normal are slow
        return float(np.log(sums.max()) + np.log(sizes.sum()) / sharpness), (sizes / sizes.sum() / sums)[phases]

    def _parts(self, x: Array) -> tuple[Array, Array, Array]:
        series, logs, mixture = np.split(x, [self.count - 1, self.count - 1 + self.steps])
        return np.r_[1.0, series], np.exp(logs), self._mixtures @ mixture

    def _join(self, series: Array, rows: Array, scales: Array) -> Array:
        return np.r_[series[1:] / series[0], np.log(rows), np.linalg.solve(self._mixtures, scales)]
