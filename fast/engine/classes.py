"""Classes of strategies whose noise is cheap, bands, Toeplitz coefficients or buffers, and the descent within one.

A class fixes the form of the lower-triangular C of the noise ``C⁻¹ Z``; its few parameters x are descended along the
exact gradient of

    ``log v(C) + log α(C)``,

where v is the weighted sum of the variances, or the p-norm of their ratios to the targets for rising p, and α what a
person costs: both are homogeneous in C, so that no constraint is left.
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
"""Norms of the ratios of variances to targets, one after the other, that stand for the largest of them."""

SHARPNESS = (64.0, 1024.0, 16384.0)
"""Sharpness of the soft maximum over persons whose parts are at least so far apart, one value after the other."""

MOST_STEPS = 400  # of a descent at each norm or sharpness

FEW_STEPS = 60  # of one that begins at the best of fewer steps, drawn out

Evaluated = tuple[float, Array]
Index = npt.NDArray[np.intp]


class Family(Protocol):
    """A class of strategies by parameters x."""

    @property
    def by_series(self) -> bool:
        """Whether variances of running sums need no matrix."""

    @property
    def soft(self) -> bool:
        """Whether what persons cost is a soft maximum."""

    def first(self) -> Array:
        """Return parameters to start from."""

    def shorter(self) -> Any:
        """Return a class of fewer steps whose best parameters its `drawn_out` takes; None for `first` alone."""

    def strategy(self, x: Array) -> Causal:
        """Return the strategy."""

    def evaluate(self, x: Array, aim: Any, sharpness: float) -> Evaluated:
        """Return ``log v + log α`` and its gradient."""


@dataclass(frozen=True, eq=False)
class Bands:
    """C by its entries, each column divided by the root of what persons cost: a phase costs 1.

    To raise a column lowers no variance's precision, and keeps the bands, so that all phases cost as much at the best.
    """

    steps: int
    count: int  # of bands
    rule: Participation | None
    equal: bool  # columns of one norm

    by_series = False

    @cached_property
    def places(self) -> tuple[Index, Index]:
        band, column = np.nonzero(np.arange(self.count)[:, None] + np.arange(self.steps) < self.steps)
        return band + column, column

    def first(self) -> Array:
        rows, columns = self.places
        return root_coefficients(self.count)[rows - columns]

    @property
    def groups(self) -> Index:
        """The phase of each column: columns of one phase cost together; one of each where norms are equal."""
        if self.equal or self.rule is None or self.rule.at_least:
            return np.arange(self.steps)
        return np.arange(self.steps) % self.rule.separation

    def shorter(self) -> None:
        """Return that the descent begins at the root."""

    @property
    def soft(self) -> bool:
        """Whether what persons cost is a soft maximum: phases do not decide it."""
        return self.rule is not None and self.rule.at_least and not self.equal

    def scaled(self, x: Array) -> tuple[Array, Array]:
        """Return the entries, and the factors on the columns (n,)."""
        _, columns = self.places
        if self.soft:
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

    def evaluate(self, x: Array, aim: OfRows, sharpness: float) -> Evaluated:
        rows, columns = self.places
        entries, factors = self.scaled(x)
        matrix = np.zeros((self.steps, self.steps))
        matrix[rows, columns] = entries
        value, by_entry = aim.of_matrix(matrix)
        gradient = by_entry[rows, columns] / value
        if self.soft:
            assert self.rule is not None
            squares = np.asarray(np.bincount(columns, x**2, self.steps), dtype=np.float64)
            cost, shares = soft_largest(squares, self.rule.times, self.rule.separation, sharpness)
            return np.log(value) + np.log(cost), gradient + 2 * x * shares[columns] / cost
        # The gradient along the entries, less what their phase's norm takes back.
        group = self.groups[columns]
        taken = np.bincount(group, gradient * entries)
        return float(np.log(value)), (gradient - taken[group] * entries) * factors[columns]


def soft_largest(squares: Array, times: int, apart: int, sharpness: float) -> Evaluated:
    """Return ``log Σ_P exp(s Σ_{t in P} d_t) / s`` over persons P of one part or more, and its gradient (n,).

    s is the sharpness over `times` times the mean of d, so that the soft maximum grows with d.
    """
    scale = sharpness / (times * squares.mean())
    sizes, count = squares * scale, len(squares)
    most = min(times, -(-count // apart))

    begun, ended = [sizes], [np.zeros(count)]  # logarithms of `dualmech.geometry.apart.Walks`
    for _ in range(1, most):
        sums = np.logaddexp.accumulate(begun[-1])[: count - apart]
        begun.append(np.r_[np.full(min(apart, count), -np.inf), sizes[apart:] + sums])
        onward = np.logaddexp.accumulate((sizes + ended[-1])[::-1])[::-1]
        ended.append(np.logaddexp(0.0, np.r_[onward[apart:], np.full(min(apart, count), -np.inf)]))
    total = np.logaddexp.reduce(begun, axis=None)
    with np.errstate(under="ignore"):
        shares = sum(np.exp(before + after - total) for before, after in zip(begun, ended[::-1], strict=True))
    # What changes with the mean, by s.
    drift = (total - float(sizes @ shares)) / (scale * float(squares.sum()))
    return float(total / scale), np.asarray(shares + drift)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A Toeplitz C by ``c_1, …``, with ``c_0 = 1``; the columns of the first person cost the most."""

    steps: int
    count: int
    shared: Index  # steps of the first person
    decay: float = 1.0  # of the sums, whose root begins the descent of coefficients

    by_series, soft = True, False

    def first(self) -> Array:
        return root_coefficients(self.count, self.decay)[1:]

    def shorter(self) -> None:
        """Return that the descent begins at the root."""

    def series(self, x: Array) -> Array:
        """Return the coefficients of C (n,)."""
        return np.r_[1.0, x, np.zeros(self.steps - self.count)]

    def strategy(self, x: Array) -> Causal:
        return Toeplitz(np.trim_zeros(self.series(x), "b"), self.steps)

    def evaluate(self, x: Array, aim: OfRows | OfSums, sharpness: float) -> Evaluated:
        value, gradient = self.of_series(self.series(x), aim)
        return value, gradient[1 : self.count]

    def of_series(self, series: Array, aim: OfRows | OfSums) -> Evaluated:
        """Return ``log v + log α`` of coefficients (n,), and the gradient in them."""
        inverse = inverse_series(series)
        value, by_inverse = aim.of_series(inverse)
        # 1/c changes by -dc/c².
        square = product(inverse, inverse)
        gradient = -correlated(by_inverse, square) / value
        sums = np.zeros(self.steps)
        for step in self.shared:
            sums[step:] += np.abs(series[: self.steps - step])
        cost = float(sums @ sums)
        pull = sum(np.r_[sums[step:], np.zeros(step)] for step in self.shared)
        return float(np.log(value) + np.log(cost)), gradient + 2 * np.sign(series) * pull / cost


@dataclass(frozen=True, eq=False)
class BufferedSums(Coefficients):
    """A Toeplitz C of buffers by ``log a_j`` and the logit of θ_j."""

    def first(self) -> Array:
        """Return buffers whose times of decay are spread over the steps, to meet the square root's coefficients."""
        from scipy.optimize import nnls

        times = np.geomspace(1.5, max(2.0 * self.steps, 4.0), self.count + 2)[1:-1]
        decays = np.exp(-1 / times)
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

    def evaluate(self, x: Array, aim: OfRows | OfSums, sharpness: float) -> Evaluated:
        scales, decays = self.buffers(x)
        lags = np.arange(self.steps - 1.0)
        with np.errstate(under="ignore"):
            powers = decays[:, None] ** lags
        value, gradient = self.of_series(np.r_[1.0, scales @ powers], aim)
        by_scale = powers @ gradient[1:]
        by_decay = (powers * lags) @ gradient[1:] / decays
        return value, np.r_[by_scale * scales, scales * by_decay * decays * (1 - decays)]


# What is minimised: variances as a function of the inverse of C.


@dataclass(frozen=True, eq=False)
class OfSums:
    """The weighted sum, or the p-norm, of the variances of running sums with a decay, of Toeplitz strategies alone."""

    factors: Array  # weights, or 1 / targets (n,)
    decay: float
    power: float | None = None

    def of_series(self, inverse: Array) -> Evaluated:
        """Return v of the first column of a Toeplitz ``C⁻¹``, and its gradient."""
        answers = running_sums(inverse, self.decay)
        ratios = np.cumsum(answers**2) * self.factors
        value, by_ratio = self._of(ratios)
        slopes = 2 * answers * np.cumsum((by_ratio * self.factors)[::-1])[::-1]
        return value, running_sums(slopes[::-1], self.decay)[::-1]

    def of_scaled(self, inverse: Array, scales: Array, columns: Exponentials, numbers: Array) -> Scaled:
        """Return v of a `ScaledToeplitz`, by the products of series that its module states, and its gradients.

        They are in the first column of the inverse of the Toeplitz matrix, the scales, and ``1 / r²``.
        """
        sums, curves, powers, decays = (list(parts) for parts in zip(*columns.terms(self.decay), strict=True))
        series = [running_sums(inverse * tilt, decay) for tilt, decay in zip(powers, decays, strict=True)]
        pairs = [(one, two) for one in range(len(series)) for two in range(one, len(series))]
        count = len(inverse)
        length = scipy.fft.next_fast_len(2 * count, real=True)
        noises, drawn = np.empty((2, len(pairs), count))
        for place, (one, two) in enumerate(pairs):
            noises[place], drawn[place] = series[one] * series[two], curves[one] * curves[two] * numbers
        of_noises, of_drawn = scipy.fft.rfft(noises, length), scipy.fft.rfft(drawn, length)
        counted = np.array([1.0 + (one < two) for one, two in pairs])
        weights = np.array([scales[one] * scales[two] for one, two in pairs]) * counted
        after = np.array([sums[one] * sums[two] for one, two in pairs])
        variances = scipy.fft.irfft(of_noises * of_drawn, length)[:, :count] * after
        value, by_ratio = self._of(self.factors * (weights @ variances))

        slopes = by_ratio * self.factors
        shares = (variances @ slopes) * counted
        of_slopes = scipy.fft.rfft((after * slopes)[:, ::-1], length)
        by_noise = scipy.fft.irfft(of_slopes * of_drawn, length)[:, count - 1 :: -1] * weights[:, None]
        by_drawn = scipy.fft.irfft(of_slopes * of_noises, length)[:, count - 1 :: -1] * weights[:, None]
        by_scale, by_series, by_number = np.zeros(len(series)), np.zeros((len(series), count)), np.zeros(count)
        for place, (one, two) in enumerate(pairs):
            by_number += by_drawn[place] * curves[one] * curves[two]
            for term, other in ((one, two), (two, one)):
                by_scale[term] += shares[place] * scales[other]
                by_series[term] += by_noise[place] * series[other]
        by_inverse = np.zeros(count)
        for slope, tilt, decay in zip(by_series, powers, decays, strict=True):
            by_inverse += tilt * running_sums(slope[::-1], decay)[::-1]
        return value, by_inverse, by_scale, by_number

    def shortened(self, count: int) -> OfSums:
        """Return what is minimised for fewer sums, each with the mean factor of those that it stands for."""
        starts = np.arange(count) * len(self.factors) // count
        means = np.add.reduceat(self.factors, starts) / np.diff(np.r_[starts, len(self.factors)])
        return OfSums(means, float(self.decay ** (len(self.factors) / count)), self.power)

    def _of(self, ratios: Array) -> tuple[float, Array]:
        """Return v of the ratios of variances to targets, or of weighted variances, and its gradient."""
        return (float(ratios.sum()), np.ones(1)) if self.power is None else _norm(ratios, self.power)


def _norm(ratios: Array, power: float) -> Evaluated:
    largest = ratios.max()
    shares = (ratios / largest) ** (power - 1)
    norm = float(shares @ (ratios / largest)) ** (1 / power)
    return largest * norm, shares / norm ** (power - 1)


@dataclass(frozen=True, eq=False)
class OfRows:
    """The sum of the squares of ``R C⁻¹``, or the p-norm of the squared norms of its rows."""

    rows: Array  # R (m, n), the roots of weights or of 1 / targets multiplied in
    power: float | None = None

    @cached_property
    def gram(self) -> Array:
        """``R'R`` (n, n)."""
        return np.asarray(self.rows.T @ self.rows)

    @cached_property
    def along(self) -> Array:
        """The quadratic form of a series h whose value is the sum for ``C⁻¹ = Σ h_k S^k``, S one step (n, n)."""
        steps = len(self.gram)
        form = np.zeros_like(self.gram)
        for lag in range(steps):
            sums = np.cumsum(np.diagonal(self.gram, lag)[::-1])[::-1]
            form[np.arange(steps - lag), np.arange(lag, steps)] = sums
            form[np.arange(lag, steps), np.arange(steps - lag)] = sums
        return form

    def of_inverse(self, inverse: Array) -> Evaluated:
        """Return v of ``Y = C⁻¹``, and its gradient in Y."""
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
        """Return v of the first column of a Toeplitz ``C⁻¹``, and its gradient."""
        if self.power is None:
            image = self.along @ inverse
            return float(inverse @ image), 2 * image
        value, by_entry = self.of_inverse(scipy.linalg.toeplitz(inverse, np.zeros(len(inverse))))
        return value, np.array([np.trace(by_entry, -lag) for lag in range(len(inverse))])

    def of_scaled(self, inverse: Array, scales: Array, columns: Exponentials, numbers: Array) -> Scaled:
        """Return v of a `ScaledToeplitz`, and its gradients: see `OfSums.of_scaled`."""
        unscaled = scipy.linalg.toeplitz(inverse, np.zeros(len(inverse)))
        curves, roots = columns.curves, np.sqrt(numbers)
        divisors = scales @ curves
        value, by_entry = self.of_inverse(divisors[:, None] * unscaled * roots)
        by_unscaled = divisors[:, None] * by_entry * roots
        by_inverse = np.array([np.trace(by_unscaled, -lag) for lag in range(len(inverse))])
        both = by_entry * unscaled * roots
        return value, by_inverse, curves @ both.sum(axis=1), (both.T @ divisors) / (2 * numbers)


Scaled = tuple[float, Array, Array, Array]
"""A value, and its gradients in a series, the scales of the columns' divisors, and the variances of what is drawn."""

Aims = Callable[[float | None], OfRows | OfSums]
"""What is minimised by the power of its norm, None for the sum; sums without rows for Toeplitz strategies alone."""


def product(first: Array, second: Array) -> Array:
    """Return the first coefficients of a product of two series, as many as they have."""
    length = scipy.fft.next_fast_len(2 * len(first), real=True)
    product = scipy.fft.irfft(scipy.fft.rfft(first, length) * scipy.fft.rfft(second, length), length)
    return np.asarray(product[: len(first)])


def correlated(first: Array, second: Array) -> Array:
    """Return ``Σ_j first_{i+j} second_j`` for each i, as many as they have: the transpose of `product`."""
    return product(first[::-1], second)[::-1]


def inverse_series(series: Array) -> Array:
    """Return the coefficients of ``1 / c(z)``."""
    inverse = np.array([1 / series[0]])
    while (known := len(inverse)) < len(series):
        size = min(2 * known, len(series))
        padded = np.r_[inverse, np.zeros(size - known)]
        inverse = 2 * padded - product(padded, product(padded, series[:size]))
    return inverse


def descents(aims: Aims, family: Family, total: bool, deadline: Deadline = NO_DEADLINE) -> Iterator[Causal]:
    """Yield the strategies of a class that descent ends at, for norms and soft maxima closer and closer to the largest.

    At least one strategy comes, whatever the deadline.
    """
    return (family.strategy(x) for x in _points(aims, family, total, deadline))


def _points(aims: Aims, family: Family, total: bool, deadline: Deadline) -> Iterator[Array]:
    powers, sharp = (None,) if total else POWERS, SHARPNESS if family.soft else SHARPNESS[:1]
    count = max(len(powers), len(sharp))
    stages = [(powers[min(at, len(powers) - 1)], sharp[min(at, len(sharp) - 1)]) for at in range(count)]
    most, aim = MOST_STEPS, aims(powers[0])
    if isinstance(aim, OfSums) and (shorter := family.shorter()) is not None:
        fewer = partial(_shortened, aims, shorter.steps)
        *_, best = _points(fewer, shorter, total, deadline)
        x, stages, most = shorter.drawn_out(best, family), stages[-2:], FEW_STEPS
    else:
        x = family.first()
    for power, sharpness in stages:
        x = _descend(partial(family.evaluate, aim=aims(power), sharpness=sharpness), x, deadline, most)
        yield x
        if deadline.passed:
            return


def _shortened(aims: Aims, count: int, power: float | None) -> OfSums:
    aim = aims(power)
    assert isinstance(aim, OfSums)
    return aim.shortened(count)


def _descend(evaluate: Callable[[Array], Evaluated], x: Array, deadline: Deadline, most: int) -> Array:
    from scipy.optimize import minimize

    def stop_in_time(intermediate_result: object) -> None:
        if deadline.passed:
            raise StopIteration

    if not len(x):
        return x
    options = {"maxiter": most, "ftol": 1e-9, "gtol": 1e-7}
    with np.errstate(all="ignore"):
        ended = minimize(evaluate, x, jac=True, method="L-BFGS-B", callback=stop_in_time, options=options)
    return np.asarray(ended.x)
