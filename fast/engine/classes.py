"""Classes of strategies with cheap noise generation (bands, Toeplitz coefficients, buffers), and descent in a class.

A class restricts the lower-triangular C of the noise ``C⁻¹ Z`` to a form with few parameters x. L-BFGS minimises, with
exact gradients,

    ``log v(C) + log α(C)``,

where v is the weighted sum of the variances, or the p-norm of their ratios to the targets for increasing p, and α is
the privacy cost of a user. Both are homogeneous in C, which removes the constraint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy  # it loads fft when that is used
import scipy.linalg

from dualmech.geometry.causal import Banded, Buffered, Causal, Toeplitz
from dualmech.neighbours import Participation
from dualmech.problems.strategies import root_coefficients
from dualmech.progress import NO_DEADLINE, Deadline
from dualmech.validate import Array
from dualmech.workloads.streams import running_sums

if TYPE_CHECKING:
    from dualmech.geometry.scaled import Exponentials

POWERS = (4.0, 16.0, 64.0, 256.0, 1024.0)
"""Successive p of the norms that approximate the maximum ratio of variance to target."""

SHARPNESS_VALUES = (64.0, 1024.0, 16384.0)
"""Successive sharpness values of the soft maximum over users with a minimum separation of participations."""

MAX_STEPS = 400  # of a descent, for each norm and sharpness
MAX_CONTINUED_STEPS = 60  # of a descent from a prolonged solution

Evaluated = tuple[float, Array]
Index = npt.NDArray[np.intp]


class Family(Protocol):
    """A class of strategies with parameters x."""

    @property
    def by_series(self) -> bool:
        """Whether the variances of running sums are computed from series, without a matrix."""

    @property
    def has_soft_cost(self) -> bool:
        """Whether the cost of users is a soft maximum."""

    def start(self) -> Array:
        """Return the initial parameters."""

    def coarser(self) -> Any:
        """Return a class with fewer steps whose solution `prolong` extends, or None to begin at `start`."""

    def strategy(self, x: Array) -> Causal:
        """Return the strategy with some parameters."""

    def evaluate(self, x: Array, aim: Any, sharpness: float) -> Evaluated:
        """Return ``log v + log α`` and its gradient."""


@dataclass(frozen=True, eq=False)
class Bands:
    """C by its entries, each column divided by the root of the cost of its phase.

    Scaling a column up increases no variance and keeps the bands, so all phases have the same cost at the optimum.
    """

    steps: int
    count: int  # of bands
    rule: Participation | None
    equal: bool  # whether all columns have the same norm

    by_series = False

    @cached_property
    def places(self) -> tuple[Index, Index]:
        band, column = np.nonzero(np.arange(self.count)[:, None] + np.arange(self.steps) < self.steps)
        return band + column, column

    def start(self) -> Array:
        rows, columns = self.places
        return root_coefficients(self.count)[rows - columns]

    @property
    def groups(self) -> Index:
        """The phase of each column; the costs of a phase add up. Every column has its own phase if norms are equal."""
        if self.equal or self.rule is None or self.rule.at_least:
            return np.arange(self.steps)
        return np.arange(self.steps) % self.rule.separation

    def coarser(self) -> None:
        """None: the descent begins at the root."""

    @property
    def has_soft_cost(self) -> bool:
        """Whether the cost is a soft maximum, which phases do not determine."""
        return self.rule is not None and self.rule.at_least and not self.equal

    def scaled(self, x: Array) -> tuple[Array, Array]:
        """Return the entries, and the factors on the columns, shape (n,)."""
        _, columns = self.places
        if self.has_soft_cost:
            return x, np.ones(self.steps)
        squares = np.bincount(self.groups, np.bincount(columns, x**2, self.steps))
        factors = 1 / np.sqrt(squares[self.groups])
        return x * factors[columns], factors

    def strategy(self, x: Array) -> Causal:
        rows, columns = self.places
        entries, _ = self.scaled(x)
        bands = np.zeros((self.count, self.steps))
        bands[rows - columns, columns] = entries
        bands *= np.where(bands[0] < 0, -1.0, 1.0)
        return Banded(bands)

    def evaluate(self, x: Array, aim: RowsObjective, sharpness: float) -> Evaluated:
        rows, columns = self.places
        entries, factors = self.scaled(x)
        matrix = np.zeros((self.steps, self.steps))
        matrix[rows, columns] = entries
        value, by_entry = aim.of_matrix(matrix)
        gradient = by_entry[rows, columns] / value
        if self.has_soft_cost:
            assert self.rule is not None
            squares = np.asarray(np.bincount(columns, x**2, self.steps), dtype=np.float64)
            cost, shares = soft_maximum_cost(squares, self.rule.times, self.rule.separation, sharpness)
            return np.log(value) + np.log(cost), gradient + 2 * x * shares[columns] / cost
        # The gradient in the entries, minus its component along the entries of the phase.
        group = self.groups[columns]
        projection = np.bincount(group, gradient * entries)
        return float(np.log(value)), (gradient - projection[group] * entries) * factors[columns]


def soft_maximum_cost(squares: Array, times: int, separation: int, sharpness: float) -> Evaluated:
    """Return ``log Σ_P exp(s Σ_{t in P} d_t) / s`` over non-empty sets P of participations, and its gradient (n,).

    s is the sharpness over `times` times the mean of d, so that the soft maximum is homogeneous in d.
    """
    scale = sharpness / (times * squares.mean())
    sizes, count = squares * scale, len(squares)
    max_times = min(times, -(-count // separation))

    log_prefixes, log_suffixes = [sizes], [np.zeros(count)]  # logarithms of `dualmech.geometry.apart.Walks`
    for _ in range(1, max_times):
        sums = np.logaddexp.accumulate(log_prefixes[-1])[: count - separation]
        log_prefixes.append(np.r_[np.full(min(separation, count), -np.inf), sizes[separation:] + sums])
        suffix_sums = np.logaddexp.accumulate((sizes + log_suffixes[-1])[::-1])[::-1]
        suffix_sums = np.r_[suffix_sums[separation:], np.full(min(separation, count), -np.inf)]
        log_suffixes.append(np.logaddexp(0.0, suffix_sums))
    total = np.logaddexp.reduce(log_prefixes, axis=None)
    with np.errstate(under="ignore"):
        pairs = zip(log_prefixes, log_suffixes[::-1], strict=True)
        shares = sum(np.exp(prefix + suffix - total) for prefix, suffix in pairs)
    # The derivative through s, which depends on the mean.
    mean_correction = (total - float(sizes @ shares)) / (scale * float(squares.sum()))
    return float(total / scale), np.asarray(shares + mean_correction)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A Toeplitz C by ``c_1, …``, with ``c_0 = 1``; the user who starts first has the largest cost."""

    steps: int
    count: int
    shared: Index  # steps of the user who starts first
    decay: float = 1.0  # of the sums, whose square root is the initial C

    by_series, has_soft_cost = True, False

    def start(self) -> Array:
        return root_coefficients(self.count, self.decay)[1:]

    def coarser(self) -> None:
        """None: the descent begins at the root."""

    def series(self, x: Array) -> Array:
        """Return the coefficients of C, shape (n,)."""
        return np.r_[1.0, x, np.zeros(self.steps - self.count)]

    def strategy(self, x: Array) -> Causal:
        return Toeplitz(np.trim_zeros(self.series(x), "b"), self.steps)

    def evaluate(self, x: Array, aim: RowsObjective | SumsObjective, sharpness: float) -> Evaluated:
        value, gradient = self.of_series(self.series(x), aim)
        return value, gradient[1 : self.count]

    def of_series(self, series: Array, aim: RowsObjective | SumsObjective) -> Evaluated:
        """Return ``log v + log α`` for coefficients, shape (n,), and the gradient."""
        inverse = inverse_series(series)
        value, by_inverse = aim.of_series(inverse)
        # 1/c changes by -dc/c².
        inverse_square = product(inverse, inverse)
        gradient = -correlate(by_inverse, inverse_square) / value
        sums = np.zeros(self.steps)
        for step in self.shared:
            sums[step:] += np.abs(series[: self.steps - step])
        cost = float(sums @ sums)
        cost_gradient = sum(np.r_[sums[step:], np.zeros(step)] for step in self.shared)
        return float(np.log(value) + np.log(cost)), gradient + 2 * np.sign(series) * cost_gradient / cost


@dataclass(frozen=True, eq=False)
class BufferedSums(Coefficients):
    """A Toeplitz C of buffers with parameters ``log a_j`` and the logit of θ_j."""

    def start(self) -> Array:
        """Return buffers with log-spaced decay times that fit the coefficients of the square root."""
        from scipy.optimize import nnls

        decay_times = np.geomspace(1.5, max(2.0 * self.steps, 4.0), self.count + 2)[1:-1]
        decays = np.exp(-1 / decay_times)
        steps = np.unique(np.geomspace(1, max(self.steps - 1, 1), 60).astype(int))
        target = root_coefficients(self.steps + 1)[steps]
        with np.errstate(under="ignore"):
            powers = decays ** (steps[:, None] - 1.0)
        scales, _ = nnls(powers / target[:, None], np.ones(len(steps)))
        scales = np.maximum(scales, 1e-3 / self.count)
        return np.r_[np.log(scales), np.log(decays / (1 - decays))]

    def buffers(self, x: Array) -> tuple[Array, Array]:
        logs, logits = np.split(np.clip(x, -40.0, 40.0), 2)
        return np.exp(logs), 1 / (1 + np.exp(-logits))

    def strategy(self, x: Array) -> Causal:
        scales, decays = self.buffers(x)
        return Buffered(steps=self.steps, scales=scales, decays=decays)

    def evaluate(self, x: Array, aim: RowsObjective | SumsObjective, sharpness: float) -> Evaluated:
        scales, decays = self.buffers(x)
        lags = np.arange(self.steps - 1.0)
        with np.errstate(under="ignore"):
            powers = decays[:, None] ** lags
        value, gradient = self.of_series(np.r_[1.0, scales @ powers], aim)
        by_scale = powers @ gradient[1:]
        by_decay = (powers * lags) @ gradient[1:] / decays
        return value, np.r_[by_scale * scales, scales * by_decay * decays * (1 - decays)]


# Objectives: variances as functions of the inverse of C.


@dataclass(frozen=True, eq=False)
class SumsObjective:
    """The weighted sum, or the p-norm, of the variances of running sums with a decay, for Toeplitz strategies."""

    factors: Array  # weights, or 1 / targets (n,)
    decay: float
    power: float | None = None

    def of_series(self, inverse: Array) -> Evaluated:
        """Return v for the first column of a Toeplitz ``C⁻¹``, and its gradient."""
        answers = running_sums(inverse, self.decay)
        ratios = np.cumsum(answers**2) * self.factors
        value, by_ratio = self._of(ratios)
        slopes = 2 * answers * np.cumsum((by_ratio * self.factors)[::-1])[::-1]
        return value, running_sums(slopes[::-1], self.decay)[::-1]

    def of_scaled(self, inverse: Array, scales: Array, columns: Exponentials, numbers: Array) -> Scaled:
        """Return v of a `ScaledToeplitz`, by the products of series in its module, and the gradients.

        The gradients are in the first column of the inverse of the Toeplitz matrix, the scales, and ``1 / r²``.
        """
        sums, curves, powers, decays = (list(parts) for parts in zip(*columns.terms(self.decay), strict=True))
        series = [running_sums(inverse * tilt, decay) for tilt, decay in zip(powers, decays, strict=True)]
        pairs = [(i, j) for i in range(len(series)) for j in range(i, len(series))]
        count = len(inverse)
        length = scipy.fft.next_fast_len(2 * count, real=True)
        noise_series, sensitivities = np.empty((2, len(pairs), count))
        for place, (i, j) in enumerate(pairs):
            noise_series[place], sensitivities[place] = series[i] * series[j], curves[i] * curves[j] * numbers
        noise_spectra = scipy.fft.rfft(noise_series, length)
        sensitivity_spectra = scipy.fft.rfft(sensitivities, length)
        multiplicity = np.array([1.0 + (i < j) for i, j in pairs])
        weights = np.array([scales[i] * scales[j] for i, j in pairs]) * multiplicity
        outer_factors = np.array([sums[i] * sums[j] for i, j in pairs])
        variances = scipy.fft.irfft(noise_spectra * sensitivity_spectra, length)[:, :count] * outer_factors
        value, by_ratio = self._of(self.factors * (weights @ variances))

        slopes = by_ratio * self.factors
        scale_shares = (variances @ slopes) * multiplicity
        slope_spectra = scipy.fft.rfft((outer_factors * slopes)[:, ::-1], length)
        by_noise, by_product = (
            scipy.fft.irfft(slope_spectra * spectra, length)[:, count - 1 :: -1] * weights[:, None]
            for spectra in (sensitivity_spectra, noise_spectra)
        )
        by_scale, by_series, by_number = np.zeros(len(series)), np.zeros((len(series), count)), np.zeros(count)
        for place, (i, j) in enumerate(pairs):
            by_number += by_product[place] * curves[i] * curves[j]
            for term, other in ((i, j), (j, i)):
                by_scale[term] += scale_shares[place] * scales[other]
                by_series[term] += by_noise[place] * series[other]
        by_inverse = np.zeros(count)
        for slope, tilt, decay in zip(by_series, powers, decays, strict=True):
            by_inverse += tilt * running_sums(slope[::-1], decay)[::-1]
        return value, by_inverse, by_scale, by_number

    def shortened(self, count: int) -> SumsObjective:
        """Return the objective for fewer sums, each with the mean factor of the sums that it represents."""
        starts = np.arange(count) * len(self.factors) // count
        means = np.add.reduceat(self.factors, starts) / np.diff(np.r_[starts, len(self.factors)])
        return SumsObjective(means, float(self.decay ** (len(self.factors) / count)), self.power)

    def _of(self, ratios: Array) -> tuple[float, Array]:
        return (float(ratios.sum()), np.ones(1)) if self.power is None else _norm(ratios, self.power)


def _norm(ratios: Array, power: float) -> Evaluated:
    largest = ratios.max()
    shares = (ratios / largest) ** (power - 1)
    norm = float(shares @ (ratios / largest)) ** (1 / power)
    return largest * norm, shares / norm ** (power - 1)


@dataclass(frozen=True, eq=False)
class RowsObjective:
    """The sum of the squares of ``R C⁻¹``, or the p-norm of the squared norms of its rows."""

    rows: Array  # R (m, n), multiplied by the roots of weights or of 1 / targets
    power: float | None = None

    @cached_property
    def gram(self) -> Array:
        """``R'R``, shape (n, n)."""
        return np.asarray(self.rows.T @ self.rows)

    @cached_property
    def along(self) -> Array:
        """The quadratic form in h that gives the sum for ``C⁻¹ = Σ h_k S^k`` with the shift S, shape (n, n)."""
        steps = len(self.gram)
        form = np.zeros_like(self.gram)
        for lag in range(steps):
            sums = np.cumsum(np.diagonal(self.gram, lag)[::-1])[::-1]
            form[np.arange(steps - lag), np.arange(lag, steps)] = sums
            form[np.arange(lag, steps), np.arange(steps - lag)] = sums
        return form

    def of_inverse(self, inverse: Array) -> Evaluated:
        """Return v for ``Y = C⁻¹``, and its gradient in Y."""
        if self.power is None:
            image = self.gram @ inverse
            return float(np.vdot(inverse, image)), 2 * image
        image = self.rows @ inverse
        ratios = np.einsum("ji,ji->j", image, image)
        value, shares = _norm(ratios, self.power)
        return value, 2 * self.rows.T @ (image * shares[:, None])

    def of_matrix(self, matrix: Array) -> Evaluated:
        inverse, _ = scipy.linalg.lapack.dtrtri(matrix, lower=1)
        value, by_inverse = self.of_inverse(inverse)
        return value, -(inverse.T @ by_inverse) @ inverse.T

    def of_series(self, inverse: Array) -> Evaluated:
        """Return v for the first column of a Toeplitz ``C⁻¹``, and its gradient."""
        if self.power is None:
            image = self.along @ inverse
            return float(inverse @ image), 2 * image
        value, by_entry = self.of_inverse(scipy.linalg.toeplitz(inverse, np.zeros(len(inverse))))
        return value, np.array([np.trace(by_entry, -lag) for lag in range(len(inverse))])

    def of_scaled(self, inverse: Array, scales: Array, columns: Exponentials, numbers: Array) -> Scaled:
        """Return v for a `ScaledToeplitz`, and its gradients; see `SumsObjective.of_scaled`."""
        unscaled = scipy.linalg.toeplitz(inverse, np.zeros(len(inverse)))
        curves, roots = columns.curves, np.sqrt(numbers)
        divisors = scales @ curves
        value, by_entry = self.of_inverse(divisors[:, None] * unscaled * roots)
        by_unscaled = divisors[:, None] * by_entry * roots
        by_inverse = np.array([np.trace(by_unscaled, -lag) for lag in range(len(inverse))])
        products = by_entry * unscaled * roots
        return value, by_inverse, curves @ products.sum(axis=1), (products.T @ divisors) / (2 * numbers)


Scaled = tuple[float, Array, Array, Array]
"""A value, and its gradients in a series, the scales of the column divisors, and the variances of the samples."""

ObjectiveOfPower = Callable[[float | None], RowsObjective | SumsObjective]
"""The objective for the power of a norm, or for the sum if the power is None."""


def product(first: Array, second: Array) -> Array:
    """Return the product of two truncated series of equal length, truncated to that length."""
    length = scipy.fft.next_fast_len(2 * len(first), real=True)
    product = scipy.fft.irfft(scipy.fft.rfft(first, length) * scipy.fft.rfft(second, length), length)
    return np.asarray(product[: len(first)])


def correlate(first: Array, second: Array) -> Array:
    """Return ``Σ_j first_{i+j} second_j`` for each i: the transpose of `product`."""
    return product(first[::-1], second)[::-1]


def inverse_series(series: Array) -> Array:
    """Return the coefficients of ``1 / c(z)``."""
    inverse = np.array([1 / series[0]])
    while (num_known := len(inverse)) < len(series):
        size = min(2 * num_known, len(series))
        padded = np.r_[inverse, np.zeros(size - num_known)]
        inverse = 2 * padded - product(padded, product(padded, series[:size]))
    return inverse


def descents(aims: ObjectiveOfPower, family: Family, total: bool, deadline: Deadline = NO_DEADLINE) -> Iterator[Causal]:
    """Yield the final strategies of descents in a class, for norms and soft maxima that approach the maximum.

    At least one strategy is yielded, even after the deadline.
    """
    return (family.strategy(x) for x in _parameters(aims, family, total, deadline))


def _parameters(aims: ObjectiveOfPower, family: Family, total: bool, deadline: Deadline) -> Iterator[Array]:
    powers = (None,) if total else POWERS
    sharpness_values = SHARPNESS_VALUES if family.has_soft_cost else SHARPNESS_VALUES[:1]
    count = max(len(powers), len(sharpness_values))
    stages = [
        (powers[min(i, len(powers) - 1)], sharpness_values[min(i, len(sharpness_values) - 1)]) for i in range(count)
    ]
    max_steps, aim = MAX_STEPS, aims(powers[0])
    if isinstance(aim, SumsObjective) and (coarse := family.coarser()) is not None:
        coarse_aims = partial(_shortened, aims, coarse.steps)
        *_, best = _parameters(coarse_aims, coarse, total, deadline)
        x, stages, max_steps = coarse.prolong(best, family), stages[-2:], MAX_CONTINUED_STEPS
    else:
        x = family.start()
    for power, sharpness in stages:
        x = _descend(partial(family.evaluate, aim=aims(power), sharpness=sharpness), x, deadline, max_steps)
        yield x
        if deadline.passed:
            return


def _shortened(aims: ObjectiveOfPower, count: int, power: float | None) -> SumsObjective:
    aim = aims(power)
    assert isinstance(aim, SumsObjective)
    return aim.shortened(count)


def _descend(evaluate: Callable[[Array], Evaluated], x: Array, deadline: Deadline, max_steps: int) -> Array:
    from scipy.optimize import minimize

    def stop_in_time(intermediate_result: object) -> None:
        if deadline.passed:
            raise StopIteration

    if not len(x):
        return x
    options = {"maxiter": max_steps, "ftol": 1e-9, "gtol": 1e-7}
    with np.errstate(all="ignore"):
        result = minimize(evaluate, x, jac=True, method="L-BFGS-B", callback=stop_in_time, options=options)
    return np.asarray(result.x)
