"""Causal strategies of running sums: the cost of a record and the variance of each sum, without matrices.

A lower-triangular strategy C answers step by step: ``C x`` plus unit noise z leaves the noise ``W C⁻¹ z`` on the sums
``W x``. A record in cell i costs the squared norm of column i of C, and sum j has the variance of row j of ``W C⁻¹``.
For sums with decay β, ``W⁻¹`` is bidiagonal, and all evaluations take time proportional to the number of steps, times a
logarithm for Toeplitz matrices. Each class proves the error bounds of its evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import scipy  # it loads fft when that is used
import scipy.linalg
import scipy.sparse as sp

from dualmech.errors import InvalidInputError
from dualmech.geometry.apart import largest_diagonal
from dualmech.geometry.base import EvaluatedForms
from dualmech.linalg import EPS
from dualmech.neighbours import sign_patterns
from dualmech.validate import Array
from dualmech.verified import UPWARDS
from dualmech.workloads.streams import running_sums


class Causal(Protocol):
    """A causal strategy: its costs and variances, its matrix, and samples of its noise."""

    @property
    def steps(self) -> int:
        """Number of steps n."""

    def costs(self) -> tuple[Array, Array]:
        """Return the squared norm of each column (n,) and rounding-error bounds."""

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum under unit noise (n,) and relative error bounds (inf if unknown)."""

    @property
    def nonnegative(self) -> bool:
        """Whether C has no negative entry."""

    @property
    def width(self) -> int:
        """Bandwidth: columns at least this far apart have disjoint supports."""

    @property
    def decreasing(self) -> bool:
        """Whether C is a Toeplitz matrix with non-increasing ``|c_k|``.

        Then ``(|C|'|C|)_st`` decreases in the distance of s and t and in the later step, so that among columns with a
        minimum separation b the columns 0, b, 2 b, … cost the most.
        """

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n)."""

    def participation(self, times: int, separation: int) -> tuple[float, float]:
        """Return the squared norm of the largest sum of `times` columns of ``|C|``, and its error."""

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Sample the noise of the sums (n,)."""

    def matrix(self) -> Array:
        """Return C (n, n)."""

    @property
    def entry_error(self) -> float:
        """Maximum relative error of the entries of `matrix`."""

    def recurrence(self, level: float) -> Recurrence:
        """Return the recurrence of the rows of ``√level C⁻¹ Z``."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The binary tree: noisy counts of all complete binary blocks of steps, combined online.

    The strategy has a row for every block of ``2^h`` steps that begins at a multiple of ``2^h``. The estimate of a
    block combines its own noisy count with the estimates of its halves, weighted by precision: ``1 / v_h = 1 + 1 / (2
    v_{h-1})``. A sum adds the blocks of the binary expansion of its number of steps. All numbers are positive.
    """

    steps: int

    def costs(self) -> tuple[Array, Array]:
        """Return the number of blocks that contain each step (n,) and rounding-error bounds."""
        cells, costs = np.arange(self.steps), np.zeros(self.steps)
        for height in range(self.steps.bit_length()):
            costs += ((cells >> height) + 1) << height <= self.steps
        return summed(costs)

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,) and relative error bounds (inf if unknown)."""
        self._check(decay)
        ends, variances = np.arange(1, self.steps + 1), np.zeros(self.steps)
        for height, variance in enumerate(self._variances()):
            variances += variance * (ends >> height & 1)
        return variances, np.full(self.steps, 8 * (self.steps.bit_length() + 2) * EPS)

    @property
    def nonnegative(self) -> bool:
        """True: the entries are counts."""
        return True

    @property
    def width(self) -> int:
        """The number of steps: any two steps may share a block."""
        return self.steps

    @property
    def decreasing(self) -> bool:
        """False: C is not Toeplitz."""
        return False

    def products(self) -> tuple[Array, Array]:
        """Return the numbers of blocks that two steps share (n, n), as both results."""
        steps, shared = np.arange(self.steps), np.zeros((self.steps, self.steps))
        for height in range(self.steps.bit_length()):
            blocks = steps >> height
            complete = (blocks + 1) << height <= self.steps
            shared += (blocks[:, None] == blocks) & complete
        return shared, shared

    def participation(self, times: int, separation: int) -> tuple[float, float]:
        """Return the largest sum of squared counts per block over `times` steps, `separation` apart, with its error."""
        patterns = sign_patterns(self.steps, times, separation, np.ones((1, times)))
        cells, persons = patterns.tocoo().coords
        costs = np.zeros(patterns.shape[1])
        for height in range(self.steps.bit_length()):
            blocks = cells >> height
            complete = (blocks + 1) << height <= self.steps
            keys, counts = np.unique(persons[complete] * np.int64(self.steps) + blocks[complete], return_counts=True)
            np.add.at(costs, keys // self.steps, counts.astype(np.float64) ** 2)
        return largest_of(costs, self.steps)

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        self._check(decay)
        ends, noise = np.arange(1, self.steps + 1), np.zeros(self.steps)
        halves = np.zeros(0)
        for height, variance in enumerate(self._variances()):
            blocks = generator.standard_normal(self.steps >> height)
            if height:
                pairs = halves[: 2 * len(blocks)].reshape(-1, 2).sum(axis=1)
                blocks = variance * blocks + (1 - variance) * pairs
            bits = (ends >> height & 1).astype(bool)
            noise[bits] += blocks[(ends[bits] >> height) - 1]
            halves = blocks
        return noise

    def matrix(self) -> Array:
        """Refuse: the estimates of a tree are not least squares, which a matrix would imply."""
        raise InvalidInputError(
            "a binary tree answers only plain running sums: its online estimates are not least squares"
        )

    @property
    def entry_error(self) -> float:
        """0: there is no matrix."""
        return 0.0

    def recurrence(self, level: float) -> Recurrence:
        """Refuse: a step may complete several blocks, each with its own noise."""
        raise InvalidInputError(
            "a binary tree has no noise C⁻¹ Z by steps: its online estimates combine noisy counts of blocks"
        )

    def _variances(self) -> list[float]:
        variances = [1.0]
        while len(variances) < self.steps.bit_length():
            variances.append(1 / (1 + 1 / (2 * variances[-1])))
        return variances

    def _check(self, decay: float) -> None:
        if decay != 1:
            raise InvalidInputError(f"a binary tree answers plain running sums, got decay {decay:g}")


def strategy_parts(strategy: Causal) -> dict[str, object]:
    """Return the fields of a strategy to store, by name, with its class name as `form`."""
    instance: Any = strategy
    parts = {part.name: getattr(instance, part.name) for part in fields(instance) if part.init}
    return {"form": type(strategy).__name__, **parts}


def summing(steps: int) -> float:
    """Return a relative error bound of a sum of squares over a number of steps."""
    return 4 * (steps + 8) * EPS


def summed(squares: Array) -> tuple[Array, Array]:
    """Return sums of at most n squares (n,) and rounding-error bounds."""
    return squares, summing(len(squares)) * squares


def largest_of(squares: Array, steps: int) -> tuple[float, float]:
    """Return the largest of sums of squares over a number of steps and its rounding-error bound."""
    maximum = float(np.max(squares))
    return maximum, summing(steps) * maximum


def persons_cost(strategy: Causal, times: int, separation: int, at_least: bool) -> tuple[float, float] | None:
    """Return an upper and a lower bound on a person's squared cost under unit noise; None if no bound is known.

    A person contributes vectors of norm at most 1, with any signs, to up to `times` steps. Successive ones are
    `separation` steps apart, or at least as many with `at_least`.
    """
    separation = min(separation, strategy.steps)  # a larger separation allows one participation too
    max_times = min(times, -(-strategy.steps // separation))
    costs, errors = strategy.costs()
    lower_costs = np.maximum(costs - errors, 0.0)
    if at_least and strategy.width <= separation:
        upper = largest_diagonal(costs + errors, max_times, separation)[0]
        return upper, largest_diagonal(lower_costs, max_times, separation)[1]
    if at_least and not strategy.decreasing:
        return None
    cost, error = strategy.participation(max_times, separation)
    lower = _largest_phase(lower_costs, max_times, separation)
    return cost + error, max(cost - error, lower) if strategy.nonnegative else lower


def _largest_phase(costs: Array, times: int, separation: int) -> float:
    """Return the largest sum of costs (n,) over separated steps, the mean cost of a person over all signs."""
    by_phase = np.zeros((-(-len(costs) // separation), separation))
    by_phase.ravel()[: len(costs)] = costs
    sums = np.cumsum(by_phase, axis=0)
    sums[times:] -= sums[:-times].copy()
    last, phase = np.unravel_index(np.argmax(sums), sums.shape)
    # Summed again, as differences of cumulative sums cancel.
    return float(by_phase[max(last - times + 1, 0) : last + 1, phase].sum()) * (1 - summing(len(costs)))


def unit_forms(strategy: Causal, decay: float) -> EvaluatedForms | None:
    """Evaluate the costs and variances of unit noise; None if they overflow or have no error bound."""
    costs, cost_errors = strategy.costs()
    variances, rel_errors = strategy.variances(decay)
    if not all(np.isfinite(numbers).all() for numbers in (variances, rel_errors, costs, cost_errors)):
        return None
    return EvaluatedForms(costs, variances, cost_errors, (rel_errors + summing(strategy.steps)) * variances)


# Banded strategies of running sums: covariances block by block, with error bounds.


MIN_BLOCK = 32  # steps of a block of a banded strategy

MIN_COVARIANCE_FACTOR = 0.5  # the true covariance is at most the computed one over this factor; below it no bound


@dataclass(frozen=True, slots=True, eq=False)
class Banded:
    """``C_{i+k, i} = bands[k, i]``, lower-triangular with b bands; the first band has no zero.

    ``K = C W⁻¹`` is banded as well. In blocks of steps, with D on its diagonal and E to the left of it, the covariance
    P of the answers of a block follows from P₋ of the block before: ``D P D' = G = I + E P₋ E'``. A computed P with
    ``‖D P D' - G‖ ≤ ε < 1`` satisfies ``D P D' ⪰ (1 - ε) G``, since ``G ⪰ I``. If P₋ is too small by a factor, P is too
    small by at most the same factor. So the true covariance is at most P over the product of all ``1 - ε`` up to its
    block.
    """

    bands: Array  # (b, n)

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return int(self.bands.shape[1])

    def costs(self) -> tuple[Array, Array]:
        """Return the squared norm of each column (n,) and rounding-error bounds."""
        return summed(np.einsum("ki,ki->i", self.bands, self.bands))

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,) and relative error bounds (inf if unknown)."""
        variances, errors = np.zeros(self.steps), np.full(self.steps, np.inf)
        previous, factor = np.zeros((0, 0)), 1.0
        with np.errstate(all="ignore"):
            for start, current, left in _in_blocks(*self._shifted(decay)):
                target = np.eye(len(current[0])) + left[0] @ previous @ left[0].T
                half = scipy.linalg.solve_triangular(current[0], target, lower=True, check_finite=False)
                covariance = scipy.linalg.solve_triangular(current[0], half.T, lower=True, check_finite=False)
                covariance = (covariance + covariance.T) / 2
                size = len(covariance)
                magnitude = _magnitude(current[1], covariance) + _magnitude(left[1], previous) + np.sqrt(size)
                residual = np.linalg.norm(current[0] @ covariance @ current[0].T - target)
                residual += 4 * (size + 2) * EPS * magnitude
                factor *= max(1 - residual, 0.0)
                if not (factor > MIN_COVARIANCE_FACTOR and np.all(np.isfinite(covariance))):
                    break
                block = slice(start, start + size)
                variances[block], errors[block] = np.diagonal(covariance), 1 / factor - 1
                previous = covariance
        variances[np.isinf(errors)] = np.inf
        return variances, errors

    @property
    def nonnegative(self) -> bool:
        """Whether C has no negative entry."""
        return bool(np.all(self.bands >= 0))

    @property
    def width(self) -> int:
        """The number of bands."""
        return len(self.bands)

    @property
    def decreasing(self) -> bool:
        """False: bands may differ from step to step."""
        return False

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n)."""
        return products_of(self.matrix())

    def participation(self, times: int, separation: int) -> tuple[float, float]:
        """Return the squared norm of the largest sum of `times` columns of ``|C|``, and its error."""
        offsets = -np.arange(len(self.bands))
        sizes = sp.dia_array((np.abs(self.bands), offsets), shape=(self.steps, self.steps))
        sums = sp.csc_array(sizes @ sign_patterns(self.steps, times, separation, np.ones((1, times))))
        return largest_of((sums**2).sum(axis=0), self.steps)

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        sample = generator.standard_normal(self.steps)
        answers = scipy.linalg.solve_banded((len(self.bands) - 1, 0), self.bands, sample, check_finite=False)
        return running_sums(answers, decay)

    def matrix(self) -> Array:
        """Return C (n, n)."""
        return np.asarray(sum(np.diag(band[: self.steps - k], -k) for k, band in enumerate(self.bands)))

    @property
    def entry_error(self) -> float:
        """0: the bands are the matrix."""
        return 0.0

    def recurrence(self, level: float) -> Recurrence:
        """Return the recurrence of the rows of ``√level C⁻¹ Z`` from the last b - 1 rows."""
        count = self.bands.shape[0] - 1
        left = np.zeros((self.steps, count))
        for k in range(1, count + 1):
            left[k:, count - k] = self.bands[k, : self.steps - k]
        return EarlierRows.of(self.bands[0], left, level)

    def _shifted(self, decay: float) -> tuple[Array, Array]:
        """Return the bands of ``C W⁻¹`` and the sums of the magnitudes of their two terms."""
        # Column i of C W⁻¹ is column i of C minus β times column i + 1.
        pair = np.zeros((2, len(self.bands) + 1, self.steps))
        pair[0, :-1], pair[1, :-1] = self.bands, np.abs(self.bands)
        pair[0, 1:, :-1] -= decay * self.bands[:, 1:]
        pair[1, 1:, :-1] += decay * np.abs(self.bands[:, 1:])
        return pair[0], pair[1]


def products_of(matrix: Array) -> tuple[Array, Array]:
    return matrix.T @ matrix, np.abs(matrix).T @ np.abs(matrix)


def _in_blocks(*arrays: Array) -> Iterator[tuple[int, list[Array], list[Array]]]:
    """Yield the first step, the diagonal parts and the left parts of each block of steps of banded matrices."""
    width, count = len(arrays[0]) - 1, arrays[0].shape[1]
    size = max(MIN_BLOCK, width)
    for start in range(0, count, size):
        rows = np.arange(start, min(start + size, count))[:, None]
        columns = np.arange(max(start - size, 0), rows[-1, 0] + 1)
        offsets = rows - columns
        in_band, num_left = (offsets >= 0) & (offsets <= width), start - int(columns[0])
        blocks = [np.where(in_band, bands[np.clip(offsets, 0, width), columns], 0.0) for bands in arrays]
        yield start, [block[:, num_left:] for block in blocks], [block[:, :num_left] for block in blocks]


def _magnitude(rows: Array, covariance: Array) -> float:
    """Return the norm of ``|A| |P| |A|'``."""
    return float(np.linalg.norm(rows @ np.abs(covariance) @ rows.T))


# Toeplitz strategies of running sums: power series, with error bounds.


MAX_DIRECT_TERMS = 256  # longer products of series take fast Fourier transforms

FFT_ERROR = 16
"""Error of a fast Fourier transform per doubling of its length, in units of rounding relative to the norm: five times
the proven bound for powers of 2 (N. Higham, Accuracy and Stability of Numerical Algorithms, section 24.1)."""

MAX_RESIDUAL = 0.5  # sum of the coefficients of the residual of an inverse series; above it no bound is stated


@dataclass(frozen=True, slots=True, eq=False)
class Toeplitz:
    """``C_ij = c_{i-j}``, with ``c_0 ≠ 0``: a power series c(z).

    The noise of the sums is the series ``1 / ((1 - β z) c(z))``. Let g be the computed series, from any method. With
    ``e = 1 - (1 - β z) c g`` the true series is ``g / (1 - e)``, and the norm of its first k coefficients is at most
    ``‖g‖ / (1 - Σ_{j<k} |e_j|)``, for every k. So the residual e, with its rounding, bounds the errors of the
    variances.
    """

    coefficients: Array  # (b,) c; later coefficients are 0
    steps: int

    def costs(self) -> tuple[Array, Array]:
        """Return the squared norm of each column (n,) and rounding-error bounds."""
        squares = np.zeros(self.steps)
        squares[: len(self.coefficients)] = self.coefficients**2
        return summed(np.cumsum(squares)[::-1].copy())

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,) and relative error bounds (inf if unknown)."""
        series = self.answers(decay)
        residual_sum = np.cumsum(self.residual(series, decay))
        with np.errstate(over="ignore", invalid="ignore"):
            error = residual_sum * (2 - residual_sum) / (1 - residual_sum) ** 2  # 1 / (1 - e)² - 1
            error = np.where(residual_sum < MAX_RESIDUAL, error + (self.steps + 8) * EPS, np.inf)
            return np.cumsum(series**2), error

    def answers(self, decay: float) -> Array:
        """Return the first column of ``W C⁻¹``, the coefficients of ``1 / ((1 - β z) c(z))`` (n,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            inverse = np.array([1 / self.coefficients[0]])
            while (count := len(inverse)) < self.steps:
                size = min(2 * count, self.steps)
                product, _ = product_of_series(self.coefficients[:size], inverse, size)
                # A step of Newton's method doubles the number of correct coefficients.
                inverse = np.concatenate([inverse, -product_of_series(product[count:], inverse, size - count)[0]])
            return running_sums(inverse, decay) if np.all(np.isfinite(inverse)) else np.full(self.steps, np.nan)

    @property
    def nonnegative(self) -> bool:
        """Whether C has no negative entry."""
        return bool(np.all(self.coefficients >= 0))

    @property
    def width(self) -> int:
        """The number of coefficients."""
        return len(self.coefficients)

    @property
    def decreasing(self) -> bool:
        """Whether the magnitudes of the coefficients do not increase."""
        return bool(np.all(np.diff(np.abs(self.coefficients)) <= 0))

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n)."""
        return products_of(self.matrix())

    def participation(self, times: int, separation: int) -> tuple[float, float]:
        """Return the squared norm of the sum of the columns 0, `separation`, … of ``|C|``, and its error."""
        total = self._column_sum(np.abs(self.coefficients), times, separation)
        return largest_of(total @ total, self.steps)

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        return product_of_series(self.answers(decay), generator.standard_normal(self.steps), self.steps)[0]

    def matrix(self) -> Array:
        """Return C (n, n)."""
        column = np.zeros(self.steps)
        column[: len(self.coefficients)] = self.coefficients
        return np.asarray(scipy.linalg.toeplitz(column, np.zeros(self.steps)))

    @property
    def entry_error(self) -> float:
        """0: the coefficients are the entries."""
        return 0.0

    def recurrence(self, level: float) -> Recurrence:
        """Return the recurrence of the rows of ``√level C⁻¹ Z`` from the last b - 1 rows."""
        first, tail = self.coefficients[0], self.coefficients[:0:-1]
        weights = np.broadcast_to(-tail / first, (self.steps, len(tail)))
        return EarlierRows((weights, np.broadcast_to(np.sqrt(level) / first, self.steps), np.ones(self.steps)))

    def residual(self, series: Array, decay: float, direct: bool = False) -> Array:
        """Return upper bounds on the coefficients of ``|e|`` (n,); `direct`: without transforms.

        In extended precision, if the machine has it: the rounding of transforms of doubles would exceed e.
        """
        shifted: Any = np.concatenate([self.coefficients, [0.0]]).astype(np.longdouble)
        shifted[1:] -= np.longdouble(decay) * self.coefficients
        with np.errstate(over="ignore", invalid="ignore"):
            product, rounding = product_of_series(
                shifted[: self.steps], series.astype(np.longdouble), self.steps, direct
            )
            product[0] -= 1
            # The shifted coefficients are rounded too.
            error = np.finfo(np.longdouble).eps * float(np.linalg.norm(self.coefficients) * np.linalg.norm(series))
            if direct and decay == 0:
                error = np.finfo(np.longdouble).eps * (np.arange(self.steps) == 0)
            return np.asarray((np.abs(product) + rounding + error) * UPWARDS, dtype=np.float64) + np.finfo(float).tiny

    def _column_sum(self, numbers: Array, times: int, separation: int) -> Array:
        """Return the sum of `times` columns (n,) with these numbers from the diagonal on, `separation` steps apart."""
        total = np.zeros(self.steps)
        for start in range(0, min(times * separation, self.steps), separation):
            length = min(len(numbers), self.steps - start)
            total[start : start + length] += numbers[:length]
        return total


POWERS = 16 * EPS
"""Relative error bound of a power of θ and one or two products with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffered(Toeplitz):
    """``c_0 = 1`` and ``c_k = Σ_j a_j θ_j^(k-1)``, with a scale a and a decay θ for each buffer.

    `recurrence` samples noise from the buffers. Their terms may cancel: the rounding errors of the coefficients are
    included in all costs and variances.
    """

    coefficients: Array = field(init=False)
    scales: Array  # (k,) a
    decays: Array  # (k,) θ
    rounding: Array = field(init=False)  # (b,) error bounds of the coefficients

    def __post_init__(self) -> None:
        series, sizes = np.r_[1.0, np.zeros(self.steps - 1)], np.zeros(self.steps)
        with np.errstate(under="ignore"):
            for scale, decay in zip(self.scales, self.decays, strict=True):
                term = scale * decay ** np.arange(self.steps - 1)
                series[1:] += term
                sizes[1:] += np.abs(term)
        error = (POWERS + len(self.scales) * EPS) * sizes
        if np.all(np.diff(np.abs(series)) <= 0):
            # Coefficients with their errors must not increase, as `decreasing` promises.
            error = np.maximum.accumulate((np.abs(series) + error)[::-1])[::-1] - np.abs(series)
        count = int(np.flatnonzero((series != 0) | (error > 0))[-1]) + 1
        object.__setattr__(self, "coefficients", series[:count])
        object.__setattr__(self, "rounding", error[:count])

    def costs(self) -> tuple[Array, Array]:
        """Return the squared norm of each column (n,) and rounding-error bounds."""
        squares, errors = Toeplitz.costs(self)
        square_errors = np.zeros(self.steps)
        square_errors[: len(self.rounding)] = (2 * np.abs(self.coefficients) + self.rounding) * self.rounding
        return squares, errors + np.cumsum(square_errors)[::-1] * (1 + summing(self.steps))

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n), the latter enlarged to bound the errors of coefficients too."""
        products, sizes = Toeplitz.products(self)
        errors = Toeplitz(self.rounding, self.steps).matrix()
        mixed = np.abs(self.matrix()).T @ errors
        return products, sizes + (mixed + mixed.T + errors.T @ errors) / summing(self.steps) * UPWARDS

    @property
    def entry_error(self) -> float:
        """Maximum relative error of a coefficient; infinite if a computed one is 0 but inexact."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rel_errors = np.where(self.rounding > 0, self.rounding / np.abs(self.coefficients), 0.0)
        return float(np.max(rel_errors))

    def participation(self, times: int, separation: int) -> tuple[float, float]:
        """Return the squared norm of the sum of the columns 0, `separation`, … of ``|C|``, and its error."""
        total, errors = (
            self._column_sum(part, times, separation) for part in (np.abs(self.coefficients), self.rounding)
        )
        cost, cost_error = largest_of(total @ total, self.steps)
        return cost, cost_error + float((2 * total + errors) @ errors) * (1 + summing(self.steps))

    def residual(self, series: Array, decay: float, direct: bool = False) -> Array:
        """Return upper bounds on the coefficients of ``|e|`` (n,) for the exact c of the buffers."""
        residual = Toeplitz.residual(self, series, decay, direct)
        shifted = decay * np.concatenate([[0.0], series[:-1]])
        # (1 - β z) g is close to 1 / c, whose coefficients have a much smaller sum than the coefficients of g.
        inverse = np.abs(series - shifted) + 2 * EPS * (np.abs(series) + np.abs(shifted))
        with np.errstate(over="ignore", invalid="ignore"):
            product, rounding = product_of_series(self.rounding, inverse, self.steps)
            return residual + (np.abs(product) + rounding) * UPWARDS

    def recurrence(self, level: float) -> Recurrence:
        """Return the recurrence of the rows of ``√level C⁻¹ Z`` from one decayed sum per buffer."""
        return Buffers(self.scales, self.decays, level, self.steps)


def inverse_of_series(series: Array, size: int) -> Array:
    """Return the first coefficients of the inverse of a series, by substitution."""
    inverse, tail = np.zeros(size), series[:0:-1]
    inverse[0] = 1 / series[0]
    for step in range(1, size):
        count = min(step, len(tail))
        inverse[step] = -(tail[len(tail) - count :] @ inverse[step - count : step]) / series[0]
    return inverse


def product_of_series(first: Array, second: Array, size: int, direct: bool = False) -> tuple[Array, Array]:
    """Return the first coefficients of a product of two series and rounding-error bounds, in the series' precision.

    For few terms, or `direct`, an error is relative to the terms of its coefficient; with transforms, to the norms of
    the series.
    """
    terms, eps = min(len(first), len(second)), float(np.finfo(first.dtype).eps)
    if terms <= MAX_DIRECT_TERMS or direct:
        product = np.convolve(first, second)[:size]
        rounding = (terms + 2) * eps * np.convolve(np.abs(first), np.abs(second))[:size]
    else:
        length = scipy.fft.next_fast_len(len(first) + len(second) - 1, real=True)
        product = scipy.fft.irfft(scipy.fft.rfft(first, length) * scipy.fft.rfft(second, length), length)
        # Errors of the first two transforms are relative to the norms of their inputs, of the last to the product's.
        unit = 2 * float(np.linalg.norm(first) * np.linalg.norm(second)) + float(np.linalg.norm(product))
        product, rounding = product[:size], np.full(size, (np.log2(length) + 2) * FFT_ERROR * eps * unit)
    zeros = np.zeros(size - len(product))
    return np.concatenate([product, zeros]), np.concatenate([rounding[:size], zeros])


# Noise, step by step: rows of ``√level C⁻¹ Z`` from rows of Z, in arrays of the array API standard.


class Recurrence(Protocol):
    """A recurrence: each row of noise from a row of independent numbers and a state of earlier rows."""

    @property
    def steps(self) -> int:
        """Number of steps n."""

    @property
    def tables(self) -> tuple[Array, ...]:
        """Arguments of `follow` for each step, shape (n, …)."""

    def rows_kept(self, step: int) -> int:
        """Return the number of rows of the state before a step; they are zero before the first step."""

    def follow(self, parts: Sequence[Any], row: Any, state: Any, xp: Any) -> tuple[Any, Any]:
        """Return the noise of a step (m,) and the state after it (k, m).

        `parts` are the entries of `tables` for the step, `row` is the row of Z (m,), and `xp` the array namespace.
        """


@dataclass(frozen=True, slots=True, eq=False)
class EarlierRows:
    """``C y = √level z`` by substitution: ``y_t = (√level z_t - Σ_s C_ts y_s) / C_tt``, from the last rows y_s.

    With ``C = C₀ diag(1/f)`` the state has the last rows of C₀⁻¹ z, and the noise is f times them.
    """

    tables: tuple[Array, Array, Array]
    """-C_ts / C_tt of the last k rows, in order (n, k), √level / C_tt (n,), and the factors f (n,)."""

    @classmethod
    def of(cls, diagonal: Array, left: Array, level: float) -> EarlierRows:
        """Return the recurrence of a diagonal (n,) and the entries to the left of it in each row (n, k)."""
        return cls((-left / diagonal[:, None], np.sqrt(level) / diagonal, np.ones(len(diagonal))))

    @classmethod
    def of_matrix(cls, matrix: Array) -> EarlierRows:
        """Return the recurrence of a lower-triangular matrix C (n, n) and unit noise."""
        left = np.zeros((len(matrix), len(matrix) - 1))
        for step in range(1, len(matrix)):
            left[step, len(matrix) - 1 - step :] = matrix[step, :step]
        return cls.of(np.diagonal(matrix), left, 1.0)

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return len(self.tables[0])

    def rows_kept(self, step: int) -> int:
        """Return the number of rows of the state before a step."""
        return min(step, self.tables[0].shape[1])

    def follow(self, parts: Sequence[Any], row: Any, state: Any, xp: Any) -> tuple[Any, Any]:
        """Return the noise of a step and the rows for the next step."""
        weights, scale, divisor = parts
        max_rows, rows = weights.shape[0], state.shape[0]
        noise = scale * row + xp.matmul(weights[max_rows - rows :], state)
        state = xp.concat([state, noise[None, :]])
        return divisor * noise, state[max(rows + 1 - max_rows, 0) :]


@dataclass(frozen=True, slots=True, eq=False)
class Buffers:
    """``y_t = √level z_t - Σ_j a_j s_j``, after which each buffer s_j becomes ``θ_j s_j + y_t``."""

    scales: Array  # (k,) a
    decays: Array  # (k,) θ
    level: float
    steps: int

    @property
    def tables(self) -> tuple[Array, ...]:
        """Scales, decays and √level, the same for each step."""
        parts = (self.scales, self.decays, np.sqrt(self.level))
        return tuple(np.broadcast_to(part, (self.steps, *np.shape(part))) for part in parts)

    def rows_kept(self, step: int) -> int:
        """Return the number of buffers."""
        return len(self.scales)

    def follow(self, parts: Sequence[Any], row: Any, state: Any, xp: Any) -> tuple[Any, Any]:
        """Return the noise of a step and the buffers after it."""
        scales, decays, root = parts
        noise = root * row - xp.matmul(scales, state)
        return noise, decays[:, None] * state + noise[None, :]
