"""Causal strategies of running sums: the cost of a record and the variance of each sum, without matrices.

A lower-triangular strategy C answers step by step: ``C x`` plus unit noise z leaves the noise ``W C⁻¹ z`` on the sums
``W x``. A record in cell i costs the squared norm of column i of C, and sum j has the variance of row j of ``W C⁻¹``.
With W sums of decay β, ``W⁻¹`` is bidiagonal, and everything takes time in proportion to the number of steps, for a
Toeplitz matrix but for a logarithm. The allowances are proven where each form is evaluated.
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
    """A causal strategy: its number of steps, both sides of its noise, its matrix, and its noise as it is drawn."""

    @property
    def steps(self) -> int:
        """Number of steps n."""

    def costs(self) -> tuple[Array, Array]:
        """Return the squared norm of each column (n,), and what rounding may hide of it."""

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return each sum's variance with unit noise (n,), and what it may be higher by, relative; inf if unknown."""

    @property
    def nonnegative(self) -> bool:
        """Whether C has no negative entry."""

    @property
    def width(self) -> int:
        """Rows that a column reaches: columns as far apart, or more, share none."""

    @property
    def decreasing(self) -> bool:
        """Whether C is a Toeplitz matrix whose ``|c_k|`` do not grow.

        No columns at least b apart then cost more than the first and those each b after the last: ``(|C|'|C|)_st``
        falls with the distance of s and t, and with the later of them.
        """

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n)."""

    def participation(self, times: int, apart: int) -> tuple[float, float]:
        """Return the largest squared norm of a sum of up to so many columns of ``|C|``, so many steps apart.

        With it comes what rounding may hide of it.
        """

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""

    def matrix(self) -> Array:
        """Return C (n, n)."""

    @property
    def entry_error(self) -> float:
        """Largest relative error of an entry of the computed `matrix`."""

    def recurrence(self, level: float) -> Recurrence:
        """Return how the rows of ``√level C⁻¹ Z`` follow from one another."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Noisy counts of all binary blocks of steps that are complete, put together as they come in.

    The strategy has a row for every block of ``2^h`` steps from a multiple of that. A block's count is estimated from
    its own noisy count and the estimates of its halves, by their precisions: ``1 / v_h = 1 + 1 / (2 v_{h-1})``. A sum
    follows the blocks that its number of steps has in binary. All numbers are positive.
    """

    steps: int

    def costs(self) -> tuple[Array, Array]:
        """Return how many blocks each step is in (n,), and what rounding may hide of it."""
        cells, costs = np.arange(self.steps), np.zeros(self.steps)
        for height in range(self.steps.bit_length()):
            costs += ((cells >> height) + 1) << height <= self.steps
        return summed(costs)

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,), and what it may be higher by, relative."""
        self._check(decay)
        ends, variances = np.arange(1, self.steps + 1), np.zeros(self.steps)
        for height, variance in enumerate(self._variances()):
            variances += variance * (ends >> height & 1)
        return variances, np.full(self.steps, 8 * (self.steps.bit_length() + 2) * EPS)

    @property
    def nonnegative(self) -> bool:
        """Whether the strategy has no negative entry: it counts."""
        return True

    @property
    def width(self) -> int:
        """A step may share a block with any other."""
        return self.steps

    @property
    def decreasing(self) -> bool:
        """Whether C is such a Toeplitz matrix: it is none."""
        return False

    def products(self) -> tuple[Array, Array]:
        """Return how many blocks two steps are both in (n, n), twice."""
        steps, shared = np.arange(self.steps), np.zeros((self.steps, self.steps))
        for height in range(self.steps.bit_length()):
            blocks = steps >> height
            complete = (blocks + 1) << height <= self.steps
            shared += (blocks[:, None] == blocks) & complete
        return shared, shared

    def participation(self, times: int, apart: int) -> tuple[float, float]:
        """Return the largest squared norm of a sum of columns, so many steps apart: of counts by block."""
        together = sign_patterns(self.steps, times, apart, np.ones((1, times)))
        cells, persons = together.tocoo().coords
        costs = np.zeros(together.shape[1])
        for height in range(self.steps.bit_length()):
            blocks = cells >> height
            complete = (blocks + 1) << height <= self.steps
            keys, counts = np.unique(persons[complete] * np.int64(self.steps) + blocks[complete], return_counts=True)
            np.add.at(costs, keys // self.steps, counts.astype(np.float64) ** 2)
        return largest_of(costs, self.steps)

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        self._check(decay)
        ends, variances = np.arange(1, self.steps + 1), np.zeros(self.steps)
        below = np.zeros(0)
        for height, variance in enumerate(self._variances()):
            blocks = generator.standard_normal(self.steps >> height)
            if height:
                pairs = below[: 2 * len(blocks)].reshape(-1, 2).sum(axis=1)
                blocks = variance * blocks + (1 - variance) * pairs
            bits = (ends >> height & 1).astype(bool)
            variances[bits] += blocks[(ends[bits] >> height) - 1]
            below = blocks
        return variances

    def matrix(self) -> Array:
        """Refuse: what a tree answers is no least squares, so that a matrix would not tell the whole."""
        raise InvalidInputError(
            "a binary tree is judged on plain running sums alone: it decodes as it goes, not by least squares"
        )

    @property
    def entry_error(self) -> float:
        """0: there is no matrix."""
        return 0.0

    def recurrence(self, level: float) -> Recurrence:
        """Refuse: a step may complete several blocks, each with noise of its own."""
        raise InvalidInputError(
            "a binary tree has no strategy C whose noise C⁻¹ Z could be drawn: it decodes by blocks, as it goes"
        )

    def _variances(self) -> list[float]:
        variances = [1.0]
        while len(variances) < self.steps.bit_length():
            variances.append(1 / (1 + 1 / (2 * variances[-1])))
        return variances

    def _check(self, decay: float) -> None:
        if decay != 1:
            raise InvalidInputError(f"a binary tree answers plain running sums, not those with decay {decay:g}")


def strategy_parts(strategy: Causal) -> dict[str, object]:
    """Return what a file holds of a strategy, by name, with that of its class as `form`."""
    stated: Any = strategy
    parts = {part.name: getattr(stated, part.name) for part in fields(stated) if part.init}
    return {"form": type(strategy).__name__, **parts}


def summing(steps: int) -> float:
    """Return an allowance for the rounding of a sum of squares over so many steps, relative."""
    return 4 * (steps + 8) * EPS


def summed(squares: Array) -> tuple[Array, Array]:
    """Return sums of squares (n,), each over n steps or fewer, and what rounding may hide of them."""
    return squares, summing(len(squares)) * squares


def largest_of(squares: Array, steps: int) -> tuple[float, float]:
    """Return the largest of sums of squares over so many steps, and what rounding may hide of it."""
    largest = float(np.max(squares))
    return largest, summing(steps) * largest


def persons_cost(strategy: Causal, times: int, apart: int, at_least: bool) -> tuple[float, float] | None:
    """Return what no person exceeds with unit noise, and what one costs; None if unknown.

    Of parts exactly so far apart, or, with `at_least`, at least; of any signs, and vectors of norm at most 1.
    """
    apart = min(apart, strategy.steps)  # from there on a person has one part
    most = min(times, -(-strategy.steps // apart))
    costs, off = strategy.costs()
    least = np.maximum(costs - off, 0.0)
    if at_least and strategy.width <= apart:
        return largest_diagonal(costs + off, most, apart)[0], largest_diagonal(least, most, apart)[1]
    if at_least and not strategy.decreasing:
        return None
    upper, hidden = strategy.participation(most, apart)
    lower = _one_phase(least, most, apart)
    return upper + hidden, max(upper - hidden, lower) if strategy.nonnegative else lower


def _one_phase(costs: Array, times: int, apart: int) -> float:
    """Return the largest sum of costs (n,) of so many steps, each so far from the last: the mean over all signs."""
    by_phase = np.zeros((-(-len(costs) // apart), apart))
    by_phase.ravel()[: len(costs)] = costs
    sums = np.cumsum(by_phase, axis=0)
    sums[times:] -= sums[:-times].copy()
    last, phase = np.unravel_index(np.argmax(sums), sums.shape)
    # Added again, for differences of long sums cancel.
    return float(by_phase[max(last - times + 1, 0) : last + 1, phase].sum()) * (1 - summing(len(costs)))


def unit_forms(strategy: Causal, decay: float) -> EvaluatedForms | None:
    """Evaluate both sides of unit noise; None where doubles do not hold them, or say nothing of them."""
    costs, hidden = strategy.costs()
    variances, off = strategy.variances(decay)
    if not all(np.isfinite(numbers).all() for numbers in (variances, off, costs, hidden)):
        return None
    return EvaluatedForms(costs, variances, hidden, (off + summing(strategy.steps)) * variances)


# Banded strategies of running sums: covariances block by block, and what their rounding may hide.


LEAST_BLOCK = 32  # steps that a banded strategy is followed by at a time, at least

CAUSAL_BANDS_USABLE = 0.5  # factor by which a covariance may be too small, above which anything is said of it


@dataclass(frozen=True, slots=True, eq=False)
class Banded:
    """``C_{i+k, i} = bands[k, i]``, lower-triangular with b bands, of which the first has no zero.

    ``K = C W⁻¹`` is banded as well. In blocks of steps, D on its diagonal and E to the left of it, the covariance P of
    the answers of a block follows from that of the block before as ``D P D' = G = I + E P₋ E'``. A computed P with
    ``‖D P D' - G‖ ≤ ε < 1`` satisfies ``D P D' ⪰ (1 - ε) G``, for ``G ⪰ I``; a covariance that is too small in one
    block makes the next too small by at most the same factor. So the true covariance is at most P over the product of
    all ``1 - ε`` so far.
    """

    bands: Array  # (b, n)

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return int(self.bands.shape[1])

    def costs(self) -> tuple[Array, Array]:
        """Return the squared norm of each column (n,), and what rounding may hide of it."""
        return summed(np.einsum("ki,ki->i", self.bands, self.bands))

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,), and what it may be higher by, relative."""
        variances, off = np.zeros(self.steps), np.full(self.steps, np.inf)
        before, factor = np.zeros((0, 0)), 1.0
        with np.errstate(all="ignore"):
            for start, current, left in _in_blocks(*self._shifted(decay)):
                target = np.eye(len(current[0])) + left[0] @ before @ left[0].T
                half = scipy.linalg.solve_triangular(current[0], target, lower=True, check_finite=False)
                noise = scipy.linalg.solve_triangular(current[0], half.T, lower=True, check_finite=False)
                noise = (noise + noise.T) / 2
                magnitude = _spread(current[1], noise) + _spread(left[1], before) + np.sqrt(len(noise))
                missed = np.linalg.norm(current[0] @ noise @ current[0].T - target)
                missed += 4 * (len(noise) + 2) * EPS * magnitude
                factor *= max(1 - missed, 0.0)
                if not (factor > CAUSAL_BANDS_USABLE and np.all(np.isfinite(noise))):
                    break
                block = slice(start, start + len(noise))
                variances[block], off[block] = np.diagonal(noise), 1 / factor - 1
                before = noise
        variances[np.isinf(off)] = np.inf
        return variances, off

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
        """Whether C is written as such a Toeplitz matrix: bands may differ from step to step."""
        return False

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n)."""
        return products_of(self.matrix())

    def participation(self, times: int, apart: int) -> tuple[float, float]:
        """Return the largest squared norm of a sum of columns of ``|C|``, so many steps apart."""
        offsets = -np.arange(len(self.bands))
        sizes = sp.dia_array((np.abs(self.bands), offsets), shape=(self.steps, self.steps))
        sums = sp.csc_array(sizes @ sign_patterns(self.steps, times, apart, np.ones((1, times))))
        return largest_of((sums**2).sum(axis=0), self.steps)

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        drawn = generator.standard_normal(self.steps)
        solved = scipy.linalg.solve_banded((len(self.bands) - 1, 0), self.bands, drawn, check_finite=False)
        return running_sums(solved, decay)

    def matrix(self) -> Array:
        """Return C (n, n)."""
        return np.asarray(sum(np.diag(band[: self.steps - k], -k) for k, band in enumerate(self.bands)))

    @property
    def entry_error(self) -> float:
        """0: the bands are the matrix."""
        return 0.0

    def recurrence(self, level: float) -> Recurrence:
        """Return how the rows of ``√level C⁻¹ Z`` follow from the b - 1 rows before."""
        count, below = self.bands.shape[0] - 1, np.zeros((self.steps, self.bands.shape[0] - 1))
        for k in range(1, count + 1):
            below[k:, count - k] = self.bands[k, : self.steps - k]
        return EarlierRows.of(self.bands[0], below, level)

    def _shifted(self, decay: float) -> tuple[Array, Array]:
        """Return the bands of ``C W⁻¹``, and the magnitudes of the terms whose differences they are."""
        # Column i of C W⁻¹ is column i of C less β times the next one.
        both = np.zeros((2, len(self.bands) + 1, self.steps))
        both[0, :-1], both[1, :-1] = self.bands, np.abs(self.bands)
        both[0, 1:, :-1] -= decay * self.bands[:, 1:]
        both[1, 1:, :-1] += decay * np.abs(self.bands[:, 1:])
        return both[0], both[1]


def products_of(matrix: Array) -> tuple[Array, Array]:
    return matrix.T @ matrix, np.abs(matrix).T @ np.abs(matrix)


def _in_blocks(*arrays: Array) -> Iterator[tuple[int, list[Array], list[Array]]]:
    """Yield blocks of steps of banded matrices: where one begins, its diagonal part and the part to the left."""
    width, count = len(arrays[0]) - 1, arrays[0].shape[1]
    size = max(LEAST_BLOCK, width)
    for start in range(0, count, size):
        rows = np.arange(start, min(start + size, count))[:, None]
        columns = np.arange(max(start - size, 0), rows[-1, 0] + 1)
        below = rows - columns
        inside, earlier = (below >= 0) & (below <= width), start - int(columns[0])
        whole = [np.where(inside, bands[np.clip(below, 0, width), columns], 0.0) for bands in arrays]
        yield start, [array[:, earlier:] for array in whole], [array[:, :earlier] for array in whole]


def _spread(rows: Array, noise: Array) -> float:
    """Return the norm of ``|A| |P| |A|'``."""
    return float(np.linalg.norm(rows @ np.abs(noise) @ rows.T))


# Toeplitz strategies of running sums: power series, and what their rounding may hide.


SHORT = 256  # coefficients up to which a product of series is summed term by term

TRANSFORM = 16
"""Units of rounding by which a fast transform is off for each doubling of its length, relative to the norm: five times
the proven bound for powers of two (N. Higham, Accuracy and Stability of Numerical Algorithms, section 24.1)."""

MOST_DEPARTURE = 0.5  # departure from an inverse up to which anything is said of it


@dataclass(frozen=True, slots=True, eq=False)
class Toeplitz:
    """``C_ij = c_{i-j}``, with ``c_0 ≠ 0``: a power series c(z).

    The sums' noise is the series ``1 / ((1 - β z) c(z))``. The computed series is g, from any method; with
    ``e = 1 - (1 - β z) c g`` the true series is ``g / (1 - e)``, so that its first k coefficients have at most the norm
    ``‖g‖ / (1 - Σ_{j<k} |e_j|)``, for every k. So the residual e, with its rounding, bounds the variances' errors.
    """

    coefficients: Array  # (b,) c, those that follow are 0
    steps: int

    def costs(self) -> tuple[Array, Array]:
        """Return the squared norm of each column (n,), and what rounding may hide of it."""
        squares = np.zeros(self.steps)
        squares[: len(self.coefficients)] = self.coefficients**2
        return summed(np.cumsum(squares)[::-1].copy())

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,), and what it may be higher by, relative."""
        series = self.answers(decay)
        missed = np.cumsum(self.residual(series, decay))
        with np.errstate(over="ignore", invalid="ignore"):
            departed = missed * (2 - missed) / (1 - missed) ** 2  # 1 / (1 - e)² less 1
            off = np.where(missed < MOST_DEPARTURE, departed + (self.steps + 8) * EPS, np.inf)
            return np.cumsum(series**2), off

    def answers(self, decay: float) -> Array:
        """Return the first column of ``W C⁻¹``, the coefficients of ``1 / ((1 - β z) c(z))`` (n,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            inverse = np.array([1 / self.coefficients[0]])
            while (known := len(inverse)) < self.steps:
                size = min(2 * known, self.steps)
                product, _ = product_of_series(self.coefficients[:size], inverse, size)
                # Newton's method: twice as many coefficients are right after each step.
                inverse = np.concatenate([inverse, -product_of_series(product[known:], inverse, size - known)[0]])
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
        """Whether no coefficient is larger than the one before, in magnitude."""
        return bool(np.all(np.diff(np.abs(self.coefficients)) <= 0))

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n)."""
        return products_of(self.matrix())

    def participation(self, times: int, apart: int) -> tuple[float, float]:
        """Return the largest squared norm of a sum of columns of ``|C|``: of those from the first on."""
        total = self._added(np.abs(self.coefficients), times, apart)
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
        """Return how the rows of ``√level C⁻¹ Z`` follow from as many rows before as c has coefficients after c_0."""
        first, below = self.coefficients[0], self.coefficients[:0:-1]
        weights = np.broadcast_to(-below / first, (self.steps, len(below)))
        return EarlierRows((weights, np.broadcast_to(np.sqrt(level) / first, self.steps), np.ones(self.steps)))

    def residual(self, series: Array, decay: float, direct: bool = False) -> Array:
        """Return what ``|e|`` may be, coefficient by coefficient (n,); `direct`: with errors relative to its terms."""
        # In extended precision, where a machine has it: transforms of doubles would hide more than they find.
        shifted: Any = np.concatenate([self.coefficients, [0.0]]).astype(np.longdouble)
        shifted[1:] -= np.longdouble(decay) * self.coefficients
        with np.errstate(over="ignore", invalid="ignore"):
            product, rounding = product_of_series(
                shifted[: self.steps], series.astype(np.longdouble), self.steps, direct
            )
            product[0] -= 1
            # What is subtracted has been rounded itself.
            off = np.finfo(np.longdouble).eps * float(np.linalg.norm(self.coefficients) * np.linalg.norm(series))
            if direct and decay == 0:
                off = np.finfo(np.longdouble).eps * (np.arange(self.steps) == 0)
            return np.asarray((np.abs(product) + rounding + off) * UPWARDS, dtype=np.float64) + np.finfo(float).tiny

    def _added(self, numbers: Array, times: int, apart: int) -> Array:
        """Return the sum of up to so many columns (n,), so many steps apart, that begin with the same numbers."""
        total = np.zeros(self.steps)
        for start in range(0, min(times * apart, self.steps), apart):
            length = min(len(numbers), self.steps - start)
            total[start : start + length] += numbers[:length]
        return total


POWERS = 16 * EPS
"""What powers of a θ, with the one or two products that follow, are off by at most, relative."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffered(Toeplitz):
    """``c_0 = 1`` and ``c_k = Σ_j a_j θ_j^(k-1)``, with a scale a and a decay θ for each buffer.

    Noise is drawn from the buffers: where they cancel, what the sums in doubles are off by is counted in all costs and
    variances.
    """

    coefficients: Array = field(init=False)
    scales: Array  # (k,) a
    decays: Array  # (k,) θ
    rounding: Array = field(init=False)  # (b,) what each coefficient may be off by

    def __post_init__(self) -> None:
        series, sizes = np.r_[1.0, np.zeros(self.steps - 1)], np.zeros(self.steps)
        with np.errstate(under="ignore"):
            for scale, decay in zip(self.scales, self.decays, strict=True):
                term = scale * decay ** np.arange(self.steps - 1)
                series[1:] += term
                sizes[1:] += np.abs(term)
        off = (POWERS + len(self.scales) * EPS) * sizes
        if np.all(np.diff(np.abs(series)) <= 0):
            # So that no sum of an error and a coefficient exceeds an earlier one, as `decreasing` says.
            off = np.maximum.accumulate((np.abs(series) + off)[::-1])[::-1] - np.abs(series)
        count = int(np.flatnonzero((series != 0) | (off > 0))[-1]) + 1
        object.__setattr__(self, "coefficients", series[:count])
        object.__setattr__(self, "rounding", off[:count])

    def costs(self) -> tuple[Array, Array]:
        """Return the squared norm of each column (n,), and what rounding may hide of it."""
        squares, hidden = Toeplitz.costs(self)
        unsure = np.zeros(self.steps)
        unsure[: len(self.rounding)] = (2 * np.abs(self.coefficients) + self.rounding) * self.rounding
        return squares, hidden + np.cumsum(unsure)[::-1] * (1 + summing(self.steps))

    def products(self) -> tuple[Array, Array]:
        """Return ``C'C`` and ``|C|'|C|`` (n, n), the latter with what the coefficients are off by."""
        shared, sizes = Toeplitz.products(self)
        errors = Toeplitz(self.rounding, self.steps).matrix()
        crossed = np.abs(self.matrix()).T @ errors
        return shared, sizes + (crossed + crossed.T + errors.T @ errors) / summing(self.steps) * UPWARDS

    @property
    def entry_error(self) -> float:
        """What a coefficient is off by, relative; infinite if one may be 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(self.rounding > 0, self.rounding / np.abs(self.coefficients), 0.0)
        return float(np.max(shares))

    def participation(self, times: int, apart: int) -> tuple[float, float]:
        """Return the largest squared norm of a sum of columns of ``|C|``: of those from the first on."""
        total, unsure = (self._added(part, times, apart) for part in (np.abs(self.coefficients), self.rounding))
        largest, hidden = largest_of(total @ total, self.steps)
        return largest, hidden + float((2 * total + unsure) @ unsure) * (1 + summing(self.steps))

    def residual(self, series: Array, decay: float, direct: bool = False) -> Array:
        """Return what ``|e|`` may be, coefficient by coefficient (n,), for the c that the buffers have."""
        known = Toeplitz.residual(self, series, decay, direct)
        before = decay * np.concatenate([[0.0], series[:-1]])
        # (1 - β z) g is close to 1 / c, whose coefficients add up to much less than those of g.
        inverse = np.abs(series - before) + 2 * EPS * (np.abs(series) + np.abs(before))
        with np.errstate(over="ignore", invalid="ignore"):
            missed, rounding = product_of_series(self.rounding, inverse, self.steps)
            return known + (np.abs(missed) + rounding) * UPWARDS

    def recurrence(self, level: float) -> Recurrence:
        """Return how the rows of ``√level C⁻¹ Z`` follow from one sum with decay for each buffer."""
        return Buffers(self.scales, self.decays, level, self.steps)


def inverse_of_series(series: Array, size: int) -> Array:
    """Return the first coefficients of the inverse of a series, by substitution."""
    inverse, below = np.zeros(size), series[:0:-1]
    inverse[0] = 1 / series[0]
    for step in range(1, size):
        count = min(step, len(below))
        inverse[step] = -(below[len(below) - count :] @ inverse[step - count : step]) / series[0]
    return inverse


def product_of_series(first: Array, second: Array, size: int, direct: bool = False) -> tuple[Array, Array]:
    """Return the first coefficients of a product of two series, and what rounding may have changed of each.

    In the precision of the series, which may be extended. Of few terms, or `direct`, each error is relative to the
    terms of its own coefficient; else all are relative to the norms of the series.
    """
    terms, eps = min(len(first), len(second)), float(np.finfo(first.dtype).eps)
    if terms <= SHORT or direct:
        product = np.convolve(first, second)[:size]
        rounding = (terms + 2) * eps * np.convolve(np.abs(first), np.abs(second))[:size]
    else:
        length = scipy.fft.next_fast_len(len(first) + len(second) - 1, real=True)
        product = scipy.fft.irfft(scipy.fft.rfft(first, length) * scipy.fft.rfft(second, length), length)
        # The errors of the first two transforms scale with the norms of their inputs, of the last with the product's
        # norm.
        unit = 2 * float(np.linalg.norm(first) * np.linalg.norm(second)) + float(np.linalg.norm(product))
        product, rounding = product[:size], np.full(size, (np.log2(length) + 2) * TRANSFORM * eps * unit)
    missing = np.zeros(size - len(product))
    return np.concatenate([product, missing]), np.concatenate([rounding[:size], missing])


# Noise, step by step: rows of ``√level C⁻¹ Z`` from rows of Z, in arrays of the array API standard.


class Recurrence(Protocol):
    """How each row of noise follows from a row of independent numbers, and from rows that are kept."""

    @property
    def steps(self) -> int:
        """Number of steps n."""

    @property
    def tables(self) -> tuple[Array, ...]:
        """Numbers of each step (n, …), which `follow` takes."""

    def rows_kept(self, step: int) -> int:
        """Return how many rows are kept before a step, zeros before the first."""

    def follow(self, parts: Sequence[Any], row: Any, kept: Any, xp: Any) -> tuple[Any, Any]:
        """Return the noise of a step (m,), and what is kept after it (k, m).

        `parts` are the entries of `tables` for the step, `row` that of Z (m,), and `xp` the namespace of all arrays.
        """


@dataclass(frozen=True, slots=True, eq=False)
class EarlierRows:
    """``C y = √level z`` by substitution: ``y_t = (√level z_t - Σ_s C_ts y_s) / C_tt``, from the last rows y_s.

    Of a C whose columns have divisors, the rows that are kept are those of the noise before it is multiplied by them.
    """

    tables: tuple[Array, Array, Array]
    """-C_ts / C_tt of the k rows before, the last one last (n, k), √level / C_tt (n,), the columns' divisors (n,)."""

    @classmethod
    def of(cls, diagonal: Array, below: Array, level: float) -> EarlierRows:
        """Return the recurrence of a diagonal (n,), and of what stands left of it in each row (n, k)."""
        return cls((-below / diagonal[:, None], np.sqrt(level) / diagonal, np.ones(len(diagonal))))

    @classmethod
    def of_matrix(cls, matrix: Array) -> EarlierRows:
        """Return the recurrence of a lower-triangular matrix C (n, n) and unit noise."""
        below = np.zeros((len(matrix), len(matrix) - 1))
        for step in range(1, len(matrix)):
            below[step, len(matrix) - 1 - step :] = matrix[step, :step]
        return cls.of(np.diagonal(matrix), below, 1.0)

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return len(self.tables[0])

    def rows_kept(self, step: int) -> int:
        """Return how many rows are kept before a step."""
        return min(step, self.tables[0].shape[1])

    def follow(self, parts: Sequence[Any], row: Any, kept: Any, xp: Any) -> tuple[Any, Any]:
        """Return the noise of a step, and the rows that the next one needs."""
        weights, scale, divisor = parts
        most, held = weights.shape[0], kept.shape[0]
        noise = scale * row + xp.matmul(weights[most - held :], kept)
        after = xp.concat([kept, noise[None, :]])
        return divisor * noise, after[max(held + 1 - most, 0) :]


@dataclass(frozen=True, slots=True, eq=False)
class Buffers:
    """``y_t = √level z_t - Σ_j a_j s_j``, after which each buffer s_j becomes ``θ_j s_j + y_t``."""

    scales: Array  # (k,) a
    decays: Array  # (k,) θ
    level: float
    steps: int

    @property
    def tables(self) -> tuple[Array, ...]:
        """The numbers of the strategy, the same for each step."""
        parts = (self.scales, self.decays, np.sqrt(self.level))
        return tuple(np.broadcast_to(part, (self.steps, *np.shape(part))) for part in parts)

    def rows_kept(self, step: int) -> int:
        """Return the number of buffers."""
        return len(self.scales)

    def follow(self, parts: Sequence[Any], row: Any, kept: Any, xp: Any) -> tuple[Any, Any]:
        """Return the noise of a step, and the buffers after it."""
        scales, decays, root = parts
        noise = root * row - xp.matmul(scales, kept)
        return noise, decays[:, None] * kept + noise[None, :]
