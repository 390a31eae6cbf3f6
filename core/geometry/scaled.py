"""Toeplitz strategies with factors on rows and columns: costs and variances by products of series.

``C = D_r T(c) D_y⁻¹`` with a few exponentials ``y_i = Σ_m a_m θ_m^i``: the noise of step i is ``y_i`` times the noise
of the Toeplitz strategy c from independent numbers of standard deviation ``1 / r_k``. The coefficient of number k in
sum j is

    ``Σ_m a_m q_m(j) p_m(k) g^m_{j-k} / r_k``,

where for θ ≤ 1 ``p(k) = θ^k``, ``q = 1`` and g is the series ``1 / ((1 - β z) c(θ z))``; for θ > 1, normalised at the
last step, ``p = 1``, ``q(j) = θ^{j-n+1}`` and g is ``1 / ((1 - (β/θ) z) c(z))``. No factor grows. So variances are
products of series, in time O(n log n).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech.geometry.causal import (
    MAX_RESIDUAL,
    POWERS,
    EarlierRows,
    Toeplitz,
    inverse_of_series,
    product_of_series,
    products_of,
    summing,
)
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.verified import UPWARDS
from dualmech.workloads.streams import running_sums

MAX_TERMS = 2**28  # of direct sums: about a second

MAX_SUBSTITUTIONS = 2**16  # coefficients of an inverse series by substitution

COST_TOL, VARIANCE_TOL = 1e-9, 1e-7  # a fast product with a larger relative error is computed again by direct sums

CHUNK = 64  # sums whose coefficients form one matrix


@dataclass(frozen=True, eq=False)
class Exponentials:
    """``y_i = Σ_m a_m θ_m^i`` of n steps; for θ > 1 a term is ``a_m θ_m^{i-n+1}``, to keep powers below 1."""

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
        """Relative error bounds of the sums (n,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (len(self.scales) + 1) * POWERS * (np.abs(self.scales) @ self.curves) / np.abs(self.values)

    def terms(self, decay: float) -> list[tuple[Array, Array, Array, float]]:
        """Return for each term ``q_m`` (n,), ``p_m`` (n,), the powers for c's argument (n,) and the decay."""
        ones = np.ones(self.steps)
        return [
            (curve, ones, ones, decay / rate) if rate > 1 else (ones, curve, curve, decay)
            for curve, rate in zip(self.curves, self.decays, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class ScaledToeplitz:
    """``C_ki = r_k c_{k-i} / y_i``: a Toeplitz strategy with factors on its rows and divisors of its columns."""

    coefficients: Array  # (b,) c; later coefficients are 0
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
        """Return the squared norm of each column (n,) and rounding-error bounds."""
        return self._column_products(0)

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,) and relative error bounds (inf if unknown)."""
        variances, errors = self._by_products(self._terms(decay, False))
        with np.errstate(invalid="ignore"):
            inaccurate = np.flatnonzero(~(errors <= VARIANCE_TOL * variances))
        count = len(inaccurate) * self.steps * len(self.scales)
        if 0 < count <= MAX_TERMS and self.steps <= MAX_SUBSTITUTIONS and self.steps * self.width <= MAX_TERMS // 4:
            terms = self._terms(decay, True)
            for start in range(0, len(inaccurate), CHUNK):
                sums = inaccurate[start : start + CHUNK]
                variances[sums], errors[sums] = _by_direct_sums(terms, sums)
        with np.errstate(divide="ignore", invalid="ignore"):
            return variances, np.where(variances > 0, errors / variances + 16 * POWERS, np.inf)

    def _terms(self, decay: float, direct: bool) -> list[Term]:
        """Return the terms of the noise; the inverse of c by substitution (`direct`) or by products of series."""
        inverse, errors = self._inverse(direct)
        return [
            (scale * q, p / self.rows, *_decayed_sums(inverse, errors, powers, rate))
            for scale, (q, p, powers, rate) in zip(self.scales, self.columns.terms(decay), strict=True)
        ]

    def _by_products(self, terms: list[Term]) -> tuple[Array, Array]:
        """Return the variances (n,) by products of series, and their error bounds."""
        variances, errors = np.zeros(self.steps), np.zeros(self.steps)
        if not _bounded(terms):
            return variances, errors + np.inf
        for first, second in itertools.combinations_with_replacement(range(len(terms)), 2):
            (q, p, series, _), (q_other, p_other, other, _) = terms[first], terms[second]
            pair, numbers = series * other, p * p_other
            product, rounding = product_of_series(pair, numbers, self.steps)
            factor = (1 + (first < second)) * q * q_other
            variances += factor * product
            norms = float(np.linalg.norm(pair) * np.linalg.norm(numbers))
            errors += np.abs(factor) * (rounding + (8 + len(terms) ** 2) * POWERS * norms)
        series_error = np.zeros(self.steps)
        for q, p, _, term_errors in terms:
            series_error += np.abs(q) * np.maximum.accumulate(p) * np.sqrt(np.cumsum(term_errors**2))
        root = np.sqrt(np.maximum(variances, 0.0) + errors)
        return variances, errors + series_error * (2 * root + series_error)

    def _inverse(self, direct: bool) -> tuple[Array, Array]:
        """Return the coefficients h of 1 / c(z) (n,) and error bounds (all inf if unknown).

        With ``e = 1 - c h`` for the computed h, the inverse is ``h + h E``, ``E = e + e E``. The coefficients of E are
        at         most the largest ``|e_j|`` over ``1 - Σ |e_j|``; the bound ``|e| + |e| E`` is smaller, entry by
        entry.
        """
        inverse = inverse_of_series(self.coefficients, self.steps) if direct else self.unscaled.answers(0.0)
        residual = self.unscaled.residual(inverse, 0.0, direct)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            total = float(residual.sum())
            if not total < MAX_RESIDUAL:
                return inverse, np.full(self.steps, np.inf)
            bound = np.maximum.accumulate(residual) / (1 - total) * UPWARDS
            for _ in range(2):
                bound = (residual + _product_bound(residual, bound)) * UPWARDS
            return inverse, _product_bound(np.abs(inverse), bound)

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
        """False: C is not Toeplitz."""
        return False

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n), the latter enlarged by the errors of the divisors."""
        products, sizes = products_of(self.matrix())
        return products, sizes * (1 + 2 * float(self.columns.rounding.max()) / summing(self.steps))

    def participation(self, times: int, separation: int) -> tuple[float, float]:
        """Return the squared norm of the largest sum of `times` columns of ``|C|``, and its error."""
        total, errors = (_strided_sums(numbers, times, separation) for numbers in self.costs())
        for count in range(1, min(times, -(-self.width // separation))):
            products, product_errors = self._column_products(count * separation)
            total[: len(products)] += 2 * _strided_sums(products, times - count, separation)
            errors[: len(products)] += 2 * _strided_sums(product_errors, times - count, separation)
        errors += summing(self.steps) * total
        lower = float(np.max(total - errors))
        middle = (float(np.max(total + errors)) + lower) / 2
        return middle, (middle - lower) * UPWARDS

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Sample the noise of the sums (n,)."""
        sample = generator.standard_normal(self.steps) / self.rows
        inverse = self.unscaled.answers(0.0)
        return running_sums(self.columns.values * product_of_series(inverse, sample, self.steps)[0], decay)

    def matrix(self) -> Array:
        """Return C (n, n)."""
        return self.rows[:, None] * self.unscaled.matrix() / self.columns.values

    @property
    def entry_error(self) -> float:
        """Maximum relative error of a divisor, plus two roundings."""
        return float(self.columns.rounding.max()) + 4 * EPS

    def recurrence(self, level: float) -> EarlierRows:
        """Return the recurrence of the rows of ``√level C⁻¹ Z`` from the last b - 1 rows."""
        weights, scale, _ = self.unscaled.recurrence(level).tables
        return EarlierRows((weights, scale / self.rows, self.columns.values))

    def _column_products(self, lag: int) -> tuple[Array, Array]:
        """Return the inner products of columns i and i + lag of ``|C|`` (n - lag,) and rounding-error bounds."""
        sizes, columns, count = np.abs(self.coefficients), self.columns, self.steps - lag
        series = (sizes[: len(sizes) - lag] * sizes[lag:])[:count]
        product, rounding = _nonnegative_product((self.rows[lag:] ** 2)[::-1], series)
        values, value_errors = columns.values, columns.rounding
        divisors = values[:count] * values[lag:]
        products = product[::-1] / divisors
        rel_error = summing(self.steps) + 2 * (value_errors[:count] + value_errors[lag:])
        return products, rounding[::-1] / divisors * (1 + rel_error) + products * rel_error


Term: TypeAlias = tuple[Array, Array, Array, Array]
"""``a q`` and ``p / r`` of a term of the noise, its series g, and error bounds of its coefficients, all (n,)."""


def _bounded(terms: list[Term]) -> bool:
    """Return whether all series have finite error bounds."""
    return all(bool(np.all(np.isfinite(part))) for term in terms for part in term[2:])


def _by_direct_sums(terms: list[Term], sums: npt.NDArray[np.intp]) -> tuple[Array, Array]:
    """Return the variances of some sums and error bounds, from the coefficients of all independent numbers."""
    if not _bounded(terms):
        return np.full(len(sums), np.inf), np.full(len(sums), np.inf)
    steps = len(terms[0][0])
    noise, errors = np.zeros((len(sums), steps)), np.zeros((len(sums), steps))
    for q, p, series, series_errors in terms:
        # Row j has the coefficients j, j - 1, …, 0, and zeros.
        rows, row_errors = (
            np.lib.stride_tricks.sliding_window_view(np.r_[part[::-1], np.zeros(steps)], steps)[steps - 1 - sums]
            for part in (series, series_errors)
        )
        factors = q[sums, None] * p
        noise += factors * rows
        errors += np.abs(factors) * (row_errors + (len(terms) + 2) * POWERS * np.abs(rows))
    variances = np.einsum("jk,jk->j", noise, noise)
    variance_errors = np.einsum("jk,jk->j", 2 * np.abs(noise) + errors, errors)
    return variances, (variance_errors + summing(steps) * variances) * UPWARDS


def _nonnegative_product(numbers: Array, series: Array) -> tuple[Array, Array]:
    """Return the first coefficients of a product of non-negative series, as many as `numbers`, and error bounds."""
    count, width = len(numbers), len(series)
    product, rounding = product_of_series(numbers, series, count)
    rounding += POWERS * float(np.linalg.norm(numbers) * np.linalg.norm(series))
    product = np.abs(product)
    inaccurate = np.flatnonzero(rounding > COST_TOL * product)
    if not len(inaccurate) or len(inaccurate) * width > MAX_TERMS:
        return product, rounding
    for part in np.split(inaccurate, np.flatnonzero(np.diff(inaccurate) > 1) + 1):
        start, stop = int(part[0]), int(part[-1]) + 1
        first = max(start - width + 1, 0)
        product[start:stop] = np.convolve(numbers[first:stop], series)[start - first : stop - first]
    rounding[inaccurate] = (width + 4) * POWERS * product[inaccurate]
    return product, rounding


def _product_bound(first: Array, second: Array) -> Array:
    """Return upper bounds on the first coefficients of a product of non-negative series (n,)."""
    product, rounding = product_of_series(first, second, len(first))
    return np.asarray((np.abs(product) + rounding) * UPWARDS)


def _decayed_sums(series: Array, errors: Array, powers: Array, decay: float) -> tuple[Array, Array]:
    """Return the decayed sums of a series times powers (n,) and error bounds."""
    terms = series * powers
    sums = running_sums(terms, decay)
    rounding = 8 * EPS * np.abs(sums) + POWERS * np.abs(terms) + 2 * powers * errors
    return sums, running_sums(rounding, decay) * (1 + summing(len(sums)))


def _strided_sums(numbers: Array, times: int, separation: int) -> Array:
    """Return for each index the sum of up to `times` numbers from it on, a `separation` apart."""
    total = numbers.copy()
    for start in range(separation, min(times * separation, len(numbers)), separation):
        total[: len(numbers) - start] += numbers[start:]
    return total
