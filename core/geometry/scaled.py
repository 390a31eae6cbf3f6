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

MAX_TERMS = 2**28  # largest number of terms that are summed one by one: about a second

MAX_SUBSTITUTIONS = 2**16  # largest number of coefficients of an inverse that follow from one another

COST_TOL, VARIANCE_TOL = 1e-9, 1e-7  # relative errors above which a fast product is computed again, term by term

CHUNK = 64  # sums whose noise is written out together


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
        """Return the variance of each sum (n,), and what it may be higher by, relative."""
        fast = self._fast(self._terms(decay, False))
        with np.errstate(invalid="ignore"):
            rough = np.flatnonzero(~(fast[1] <= VARIANCE_TOL * fast[0]))
        terms = len(rough) * self.steps * len(self.scales)
        if 0 < terms <= MAX_TERMS and self.steps <= MAX_SUBSTITUTIONS and self.steps * self.width <= MAX_TERMS // 4:
            exact = self._terms(decay, True)
            for start in range(0, len(rough), CHUNK):
                some = rough[start : start + CHUNK]
                fast[0][some], fast[1][some] = _term_by_term(exact, some)
        variances, off = fast
        with np.errstate(divide="ignore", invalid="ignore"):
            return variances, np.where(variances > 0, off / variances + 16 * POWERS, np.inf)

    def _terms(self, decay: float, direct: bool) -> list[Term]:
        """Return the terms of the noise, the inverse of c by substitution or by products of series."""
        inverse, unsure = self._inverse(direct)
        return [
            (scale * q, p / self.rows, *_summed(inverse, unsure, powers, rate))
            for scale, (q, p, powers, rate) in zip(self.scales, self.columns.terms(decay), strict=True)
        ]

    def _fast(self, terms: list[Term]) -> tuple[Array, Array]:
        """Return the variances (n,) by products of series, and their error bounds."""
        variances, off = np.zeros(self.steps), np.zeros(self.steps)
        if not _bounded(terms):
            return variances, off + np.inf
        for first, second in itertools.combinations_with_replacement(range(len(terms)), 2):
            (q, p, series, _), (q_other, p_other, other, _) = terms[first], terms[second]
            pair, numbers = series * other, p * p_other
            product, rounding = product_of_series(pair, numbers, self.steps)
            factor = (1 + (first < second)) * q * q_other
            variances += factor * product
            norms = float(np.linalg.norm(pair) * np.linalg.norm(numbers))
            off += np.abs(factor) * (rounding + (8 + len(terms) ** 2) * POWERS * norms)
        moved = np.zeros(self.steps)
        for q, p, _, unsure in terms:
            moved += np.abs(q) * np.maximum.accumulate(p) * np.sqrt(np.cumsum(unsure**2))
        return variances, off + moved * (2 * np.sqrt(np.maximum(variances, 0.0) + off) + moved)

    def _inverse(self, direct: bool) -> tuple[Array, Array]:
        """Return the coefficients h of 1 / c(z) (n,), and what each may be off by: all inf if unknown.

        With ``e = 1 - c h`` for the computed h, the inverse is ``h + h E``, ``E = e + e E``. Its coefficients are at
        most the largest ``|e_j|`` over ``1 - Σ |e_j|``, which ``|e| + |e| E`` makes smaller, entry by entry.
        """
        inverse = inverse_of_series(self.coefficients, self.steps) if direct else self.unscaled.answers(0.0)
        missed = self.unscaled.residual(inverse, 0.0, direct)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            total = float(missed.sum())
            if not total < MAX_RESIDUAL:
                return inverse, np.full(self.steps, np.inf)
            bound = np.maximum.accumulate(missed) / (1 - total) * UPWARDS
            for _ in range(2):
                bound = (missed + _at_most(missed, bound)) * UPWARDS
            return inverse, _at_most(np.abs(inverse), bound)

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
        off += summing(self.steps) * total
        largest = float(np.max(total - off))
        middle = (float(np.max(total + off)) + largest) / 2
        return middle, (middle - largest) * UPWARDS

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        drawn = generator.standard_normal(self.steps) / self.rows
        inverse = self.unscaled.answers(0.0)
        return running_sums(self.columns.values * product_of_series(inverse, drawn, self.steps)[0], decay)

    def matrix(self) -> Array:
        """Return C (n, n)."""
        return self.rows[:, None] * self.unscaled.matrix() / self.columns.values

    @property
    def entry_error(self) -> float:
        """What a divisor of a column is off by, relative, and two roundings."""
        return float(self.columns.rounding.max()) + 4 * EPS

    def recurrence(self, level: float) -> EarlierRows:
        """Return how the rows of ``√level C⁻¹ Z`` follow from as many rows as c has coefficients after c_0."""
        weights, scale, _ = self.unscaled.recurrence(level).tables
        return EarlierRows((weights, scale / self.rows, self.columns.values))

    def _shared(self, lag: int) -> tuple[Array, Array]:
        """Return what ``|C|`` has in common in columns so far apart (n - lag,), and what rounding may hide of it."""
        sizes, columns, count = np.abs(self.coefficients), self.columns, self.steps - lag
        common = (sizes[: len(sizes) - lag] * sizes[lag:])[:count]
        product, rounding = _of_positive((self.rows[lag:] ** 2)[::-1], common)
        values, unsure = columns.values, columns.rounding
        divisors = values[:count] * values[lag:]
        shared = product[::-1] / divisors
        share = summing(self.steps) + 2 * (unsure[:count] + unsure[lag:])
        return shared, rounding[::-1] / divisors * (1 + share) + shared * share


Term: TypeAlias = tuple[Array, Array, Array, Array]
"""``a q`` and ``p / r`` of a term of the noise, its series g, and what each coefficient of that is off by, all (n,)."""


def _bounded(terms: list[Term]) -> bool:
    """Return whether errors of all series are bounded."""
    return all(bool(np.all(np.isfinite(part))) for term in terms for part in term[2:])


def _term_by_term(terms: list[Term], some: npt.NDArray[np.intp]) -> tuple[Array, Array]:
    """Return the variances of some sums, and their error bounds, from the noise that each has from every number."""
    if not _bounded(terms):
        return np.full(len(some), np.inf), np.full(len(some), np.inf)
    steps = len(terms[0][0])
    noise, off = np.zeros((len(some), steps)), np.zeros((len(some), steps))
    for q, p, series, unsure in terms:
        # Row j has the coefficients j, j - 1, …, 0, and zeros.
        rows, errors = (
            np.lib.stride_tricks.sliding_window_view(np.r_[part[::-1], np.zeros(steps)], steps)[steps - 1 - some]
            for part in (series, unsure)
        )
        factors = q[some, None] * p
        noise += factors * rows
        off += np.abs(factors) * (errors + (len(terms) + 2) * POWERS * np.abs(rows))
    variances = np.einsum("jk,jk->j", noise, noise)
    unknown = np.einsum("jk,jk->j", 2 * np.abs(noise) + off, off)
    return variances, (unknown + summing(steps) * variances) * UPWARDS


def _of_positive(numbers: Array, series: Array) -> tuple[Array, Array]:
    """Return as many coefficients of a product of non-negative series as `numbers` has, and their error bounds."""
    count, width = len(numbers), len(series)
    product, rounding = product_of_series(numbers, series, count)
    rounding += POWERS * float(np.linalg.norm(numbers) * np.linalg.norm(series))
    product = np.abs(product)
    rough = np.flatnonzero(rounding > COST_TOL * product)
    if not len(rough) or len(rough) * width > MAX_TERMS:
        return product, rounding
    for part in np.split(rough, np.flatnonzero(np.diff(rough) > 1) + 1):
        start, stop = int(part[0]), int(part[-1]) + 1
        first = max(start - width + 1, 0)
        product[start:stop] = np.convolve(numbers[first:stop], series)[start - first : stop - first]
    rounding[rough] = (width + 4) * POWERS * product[rough]
    return product, rounding


def _at_most(first: Array, second: Array) -> Array:
    """Return upper bounds on the first coefficients of a product of non-negative series (n,)."""
    product, rounding = product_of_series(first, second, len(first))
    return np.asarray((np.abs(product) + rounding) * UPWARDS)


def _summed(series: Array, unsure: Array, powers: Array, decay: float) -> tuple[Array, Array]:
    """Return sums with a decay of a series times powers (n,), and what each may be off by."""
    terms = series * powers
    sums = running_sums(terms, decay)
    rounding = 8 * EPS * np.abs(sums) + POWERS * np.abs(terms) + 2 * powers * unsure
    return sums, running_sums(rounding, decay) * (1 + summing(len(sums)))


def _every(numbers: Array, times: int, apart: int) -> Array:
    """Return the sums of up to so many numbers, so many steps apart, from each on."""
    total = numbers.copy()
    for start in range(apart, min(times * apart, len(numbers)), apart):
        total[: len(numbers) - start] += numbers[start:]
    return total
