"""Data sets that a noisy answer does not rule out: hit-and-run sampling of a confidence region."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dualmech import linalg, validate
from dualmech.adaptive.regions import ConfidenceRegion
from dualmech.errors import InvalidInputError, SamplingWarning
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

FEW = 100.0
"""Effective sample size below which a variance is known to no better than some 15 %, and a warning is given."""

EVERY = 4  # one direction in so many is normal; only those change the number of records

MOST_STEPS = 2**24  # largest number of steps of a walk, which take minutes


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Points of a region, as several walks through it drew them."""

    draws: Array  # (n, c, d) the n points kept of each of c walks, in order

    def __post_init__(self) -> None:
        validate.finite(3, draws=self.draws)

    @property
    def points(self) -> Array:
        """All points (n c, d)."""
        return self.draws.reshape(-1, self.draws.shape[2])

    @property
    def effective_size(self) -> float:
        """The least effective sample size of a cell."""
        return float(effective_sizes(self.draws).min())

    def variances(self, workload: Workload) -> Array:
        """Return the variance of each query over the points (m,), in squared counts."""
        return np.asarray(np.var(self._answers(workload).reshape(-1, len(workload)), axis=0, ddof=1))

    def effective_sizes(self, workload: Workload) -> Array:
        """Return the effective sample size of each query (m,)."""
        return effective_sizes(self._answers(workload))

    def _answers(self, workload: Workload) -> Array:
        check_workload(workload)
        if workload.shape[1] != self.draws.shape[2]:
            raise InvalidInputError(
                f"workload must have {self.draws.shape[2]} cells, as the samples, got {workload.shape[1]}"
            )
        return np.asarray((workload.matrix @ self.points.T).T).reshape(*self.draws.shape[:2], -1)


def hit_and_run(
    region: ConfidenceRegion,
    count: int = 1000,
    rng: np.random.Generator | int | None = None,
    chains: int = 16,
    thin: int | None = None,
    burn_in: int | None = None,
) -> Samples:
    """Draw data sets uniformly from a region by hit-and-run.

    Each step draws a direction and then a point uniformly on the chord through the region. Every fourth
    direction is normal, with the inverse Hessian of the region's barrier at its centre as covariance, so that
    long and thin regions mix as round ones do; the others move records between two cells, rather between cells
    that the queries hardly tell apart. Neither depends on where the walk is, so the limit is uniform.
    Raises `InvalidInputError` or `InputTypeError` for no region, numbers that are not integers of at least 1.
    R. L. Smith, "Efficient Monte Carlo procedures for generating points uniformly distributed over bounded regions",
    Operations Research 32(6), 1984; section 6.2 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023.
    Returns `Samples`: with a `SamplingWarning` where the least effective sample size of a cell is below 100: take more
    points, or a larger `thin`.

    - `count`: points to keep, rounded up to a multiple of `chains`;
    - `rng`: a generator or a seed, by default the operating system's;
    - `chains`: independent walks, side by side;
    - `thin`: steps from one kept point to the next; by default the number of cells;
    - `burn_in`: steps before the first; by default ten times `thin`.

    Examples
    --------
    >>> import dualmech as dm
    >>> total = dm.LinearGaussianMechanism([[1, 1, 1]], [[4]])
    >>> samples = hit_and_run(ConfidenceRegion(total, [60]), 4000, rng=1)
    >>> samples.variances(dm.Workload([[1, 1, 1], [1, 0, 0]])).round(-1)
    array([ 10., 200.])
    """
    validate.instance(ConfidenceRegion, region=region)
    cells = region.rows.shape[1]
    walks = validate.size(validate.MOST_ITEMS // cells, chains=chains)
    kept = -(-validate.size(validate.MOST_ITEMS // cells, count=count) // walks)
    stride = validate.size(MOST_STEPS // kept, thin=cells if thin is None else thin)
    ahead = validate.size(MOST_STEPS, burn_in=10 * stride if burn_in is None else burn_in)
    generator = validate.generator(rng=rng)
    middle, factor = region.analytic_centre()
    directions = _Directions(factor, _likely_exchanges(region, middle), generator)
    points = _walk(region, np.repeat(middle[:, None], walks, axis=1), directions, ahead)
    draws = np.empty((kept, walks, len(middle)))
    for index in range(kept):
        points = _walk(region, points, directions, stride)
        draws[index] = points.T
    samples = Samples(draws)
    if samples.effective_size < FEW:
        warnings.warn(
            f"the least effective sample size of a cell is {samples.effective_size:.0f} of {kept * walks} points, "
            f"below {FEW:.0f}: take more points, or a larger thin than {stride}",
            SamplingWarning,
            stacklevel=2,
        )
    return samples


def effective_sizes(draws: Array) -> Array:
    """Return how many independent draws the mean of each quantity is worth, (n, c, m) to (m,).

    ``n c / (1 + 2 Σ_t ρ_t)`` with ρ_t the autocorrelation at lag t over all walks, the variance between walks
    counted in; the sum ends where pairs of neighbouring lags stop to be positive, and none exceeds the pair before
    it. A quantity that never moves counts as one that is known: all draws.
    Source: C. J. Geyer, "Practical Markov chain Monte Carlo", Statistical Science 7(4), 1992, section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> independent = np.random.default_rng(0).standard_normal((500, 8, 1))
    >>> bool(3000 < effective_sizes(independent)[0] <= 4000)
    True
    >>> bool(effective_sizes(np.repeat(independent, 10, axis=0))[0] < 6000)
    True
    """
    draws = validate.finite(3, draws=draws)
    length, walks, _ = draws.shape
    means = draws.mean(axis=0)
    spectrum = np.fft.rfft(draws - means, n=2 * length, axis=0)
    products = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[:length].mean(axis=1) / length
    between = means.var(axis=0, ddof=1) if walks > 1 else np.zeros(draws.shape[2])
    everything = products[0] + between
    still = everything <= 0
    correlations = 1 - (products[0] - products) / np.where(still, 1.0, everything)
    even = length - length % 2
    pairs = correlations[:even:2] + correlations[1:even:2]
    positive = np.logical_and.accumulate(pairs > 0, axis=0)
    falling = np.minimum.accumulate(np.where(positive, pairs, 0.0), axis=0)
    # No credit for draws that repel one another: at most as many as there are.
    worth = length * walks / np.maximum(2 * falling.sum(axis=0) - 1, 1.0)
    return np.where(still, float(length * walks), worth)


@dataclass(frozen=True, slots=True, eq=False)
class _Directions:
    """Where the walks may go: R of the normal directions, cumulated probabilities of the exchanges, and chance."""

    factor: Array
    exchanges: Array
    generator: np.random.Generator

    def draw(self, walks: int, exchange: bool) -> Array:
        """Return a direction for each walk (d, walks)."""
        cells = len(self.factor)
        if not exchange or cells == 1:
            noise = self.generator.standard_normal((cells, walks))
            return np.asarray(scipy.linalg.solve_triangular(self.factor, noise, check_finite=False))
        pair = np.searchsorted(self.exchanges, self.generator.random(walks), side="right")
        towards, each = np.zeros((cells, walks)), np.arange(walks)
        np.add.at(towards, (pair // cells, each), 1.0)
        np.add.at(towards, (pair % cells, each), -1.0)
        return towards


def _walk(region: ConfidenceRegion, points: Array, directions: _Directions, steps: int) -> Array:
    """Return the points (d, walks) after some steps of hit-and-run."""
    for index in range(steps):
        towards = directions.draw(points.shape[1], exchange=index % EVERY > 0)
        low, high = region.chords(points, towards)
        step = low + (high - low) * directions.generator.random(points.shape[1])
        points = np.maximum(points + step * towards, 0.0)
    return points


def _likely_exchanges(region: ConfidenceRegion, middle: Array) -> Array:
    """Return cumulated probabilities (d²,) of moving records between two cells: far moves come more often."""
    gram = region.rows.T @ region.rows
    apart = np.add.outer(np.diagonal(gram), np.diagonal(gram)) - 2 * gram
    weights = 1 / (1 + np.maximum(apart, 0.0) * np.outer(middle, middle) / region.squared_radius)
    np.fill_diagonal(weights, 0.0)
    return np.asarray(np.cumsum(weights) / max(weights.sum(), linalg.EPS))
