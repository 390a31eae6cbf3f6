"""Toeplitz strategies with factors on their rows and columns: both sides of their noise by products of series.

``C = D_r T(c) D_y⁻¹`` with ``y_i = Σ_m a_m θ_m^i``, a few exponentials: the noise of step i is ``y_i`` times that of
the Toeplitz strategy c, drawn from independent numbers over ``r_k``. Sum j has from number k the noise

    ``Σ_m a_m q_m(j) p_m(k) g^m_{j-k} / r_k``,

where of θ ≤ 1 ``p(k) = θ^k``, ``q = 1`` and g is the series ``1 / ((1 - β z) c(θ z))``, and of θ > 1, which begins at
the last step, ``p = 1``, ``q(j) = θ^{j-n+1}`` and g is ``1 / ((1 - (β/θ) z) c(z))``: none of them grows. So variances
are products of series, in time that grows as n but for a logarithm.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dualmech.geometry.causal import (
    MOST_DEPARTURE,
    POWERS,
    EarlierRows,
    Toeplitz,
    largest_of,
    product_of_series,
    products_of,
    summing,
)
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads.streams import running_sums


@dataclass(frozen=True, eq=False)
class Exponentials:
    """``y_i = Σ_m a_m θ_m^i`` of n steps; a term of θ > 1 is ``a_m θ_m^{i-n+1}``, so that no power exceeds 1."""

    scales: Array  # (m,) a
    decays: Array  # (m,) θ
    steps: int

    @cached_property
    def curves(self) -> Array:
        """The powers (m, n)."""
        lags = np.arange(self.steps)
        with np.errstate(under="ignore"):
            return np.array([decay ** (lags - lags[-1] * (decay > 1)) for decay in self.decays])

    @property
    def values(self) -> Array:
        """The sums y (n,)."""
        return np.asarray(self.scales @ self.curves)

    @property
    def rounding(self) -> Array:
        """What the sums may be off by, relative (n,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (len(self.scales) + 1) * POWERS * (np.abs(self.scales) @ self.curves) / np.abs(self.values)

    def terms(self, decay: float) -> list[tuple[Array, Array, Array, float]]:
        """Return ``q_m`` (n,), ``p_m`` (n,), the powers in c's argument (n,) and the decay of the sums of each term."""
        none = np.ones(self.steps)
        return [
            (curve, none, none, decay / rate) if rate > 1 else (none, curve, curve, decay)
            for curve, rate in zip(self.curves, self.decays, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class ScaledToeplitz:
    """``C_ki = r_k c_{k-i} / y_i``: a Toeplitz strategy with factors on its rows, and divisors of its columns."""

    coefficients: Array  # (b,) c, those that follow are 0
    rows: Array  # (n,) r > 0
    scales: Array  # (m,) a
    decays: Array  # (m,) θ

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return len(self.rows)

    @property
    def columns(self) -> Exponentials:
        """The divisors y of the columns."""
        return Exponentials(self.scales, self.decays, self.steps)

    @property
    def unscaled(self) -> Toeplitz:
        """The strategy without factors, T(c)."""
        return Toeplitz(self.coefficients, self.steps)

    def costs(self) -> tuple[Array, Array]:
        """Return the squared norm of each column (n,), and what rounding may hide of it."""
        return self._shared(0)

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,), and what it may be higher by, relative.

        With T(h) for the inverse of T(c) and ``e = 1 - c h``, the true noise is that of h times ``D_r T(1 / (1 - e))
        D_r⁻¹``, which is off the identity by ``Σ |e|`` over 1 less that, times the largest r over the least.
        """
        inverse = self.unscaled.answers(0.0)
        terms = [(q, p, *_summed(inverse, powers, rate)) for q, p, powers, rate in self.columns.terms(decay)]
        variances, off = np.zeros(self.steps), np.zeros(self.steps)
        for first, second in itertools.combinations_with_replacement(range(len(terms)), 2):
            (q, p, series, _), (q_other, p_other, other, _) = terms[first], terms[second]
            pair, numbers = series * other, p * p_other / self.rows**2
            product, rounding = product_of_series(pair, numbers, self.steps)
            factor = (1 + (first < second)) * self.scales[first] * self.scales[second] * q * q_other
            variances += factor * product
            norms = float(np.linalg.norm(pair) * np.linalg.norm(numbers))
            off += np.abs(factor) * (rounding + (8 + len(terms) ** 2) * POWERS * norms)
        moved = np.zeros(self.steps)
        for (q, p, _, hidden), scale in zip(terms, self.scales, strict=True):
            moved += np.abs(scale) * q * np.maximum.accumulate(p / self.rows) * np.sqrt(np.cumsum(hidden**2))
        spread = np.maximum.accumulate(self.rows) / np.minimum.accumulate(self.rows)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            missed = np.cumsum(self.unscaled.residual(inverse, 0.0))
            departed = 1 + spread * np.where(missed < MOST_DEPARTURE, missed / (1 - missed), np.inf)
            higher = ((np.sqrt(variances + off) + moved) * departed) ** 2 / variances - 1
        return variances, np.where(variances > 0, higher + 16 * POWERS, np.inf)

    @property
    def nonnegative(self) -> bool:
        """Whether C has no negative entry."""
        return self.unscaled.nonnegative

    @property
    def width(self) -> int:
        """The number of coefficients."""
        return self.unscaled.width

    @property
    def decreasing(self) -> bool:
        """Whether C is a Toeplitz matrix: factors make it none."""
        return False

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n), the latter with what the columns' factors are off by."""
        shared, sizes = products_of(self.matrix())
        return shared, sizes * (1 + 2 * float(self.columns.rounding.max()) / summing(self.steps))

    def participation(self, times: int, apart: int) -> tuple[float, float]:
        """Return the largest squared norm of a sum of columns of ``|C|``, so many steps apart."""
        total, off = (_every(numbers, times, apart) for numbers in self.costs())
        for count in range(1, min(times, -(-self.width // apart))):
            shared, unsure = self._shared(count * apart)
            total[: len(shared)] += 2 * _every(shared, times - count, apart)
            off[: len(shared)] += 2 * _every(unsure, times - count, apart)
        largest, hidden = largest_of(total, self.steps)
        return largest, hidden + float(off.max())

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        drawn = generator.standard_normal(self.steps) / self.rows
        inverse = self.unscaled.answers(0.0)
        return running_sums(self.columns.values * product_of_series(inverse, drawn, self.steps)[0], decay)

    def matrix(self) -> Array:
        """Return C (n, n)."""
        return self.rows[:, None] * self.unscaled.matrix() / self.columns.values

    def recurrence(self, level: float) -> EarlierRows:
        """Return how the rows of ``√level C⁻¹ Z`` follow from as many rows as c has coefficients after c_0."""
        weights, scale, _ = self.unscaled.recurrence(level).tables
        return EarlierRows((weights, scale / self.rows, self.columns.values))

    def _shared(self, lag: int) -> tuple[Array, Array]:
        """Return what ``|C|`` has in common in columns so far apart (n - lag,), and what rounding may hide of it."""
        sizes, columns, count = np.abs(self.coefficients), self.columns, self.steps - lag
        common = (sizes[: len(sizes) - lag] * sizes[lag:])[:count]
        squares = self.rows[lag:] ** 2
        product, rounding = product_of_series(squares[::-1], common, count)
        values, unsure = columns.values, columns.rounding
        divisors = values[:count] * values[lag:]
        rounding = rounding[::-1] + POWERS * float(np.linalg.norm(squares) * np.linalg.norm(common))
        shared = np.abs(product[::-1]) / divisors
        share = summing(self.steps) + 2 * (unsure[:count] + unsure[lag:])
        return shared, rounding / divisors * (1 + share) + shared * share


def _summed(series: Array, powers: Array, decay: float) -> tuple[Array, Array]:
    """Return sums with a decay of a series times powers (n,), and what rounding may hide of each."""
    terms = series * powers
    sums = running_sums(terms, decay)
    return sums, running_sums(8 * EPS * np.abs(sums) + POWERS * np.abs(terms), decay) * (1 + summing(len(sums)))


def _every(numbers: Array, times: int, apart: int) -> Array:
    """Return the sums of up to so many numbers, so many steps apart, from each on."""
    total = numbers.copy()
    for start in range(apart, min(times * apart, len(numbers)), apart):
        total[: len(numbers) - start] += numbers[start:]
    return total
