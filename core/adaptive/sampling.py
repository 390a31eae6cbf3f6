"""Data sets that a noisy answer does not rule out: hit-and-run sampling of a confidence region."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy  # it loads special when that is used
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError, SamplingWarning
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.noise import as_matrix
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

# Confidence regions: the non-negative data that a noisy answer leaves plausible, and whether they have an end.


NEWTON_STEPS = 200  # most steps to the analytic centre; it only has to be well inside

INSIDE = 1 - 1e-9
"""Share of the squared radius of the ellipsoid that its nearest non-negative point may use up."""


@dataclass(frozen=True, slots=True, eq=False)
class ConfidenceRegion:
    """All non-negative data that the answer of a mechanism leaves plausible.

    ``{x ≥ 0 : (Bx - ω)' Σ⁻¹ (Bx - ω) ≤ z,  Σ_i x_i ≤ total}`` with z the quantile of the chi-squared distribution
    with as many degrees of freedom as B has rows: the true data lie in the ellipsoid with the confidence stated.
    Counts are treated as real numbers.
    Raises `InvalidInputError` or `InputTypeError` for an answer of the wrong length; a region without bound (a
    cell is named) or without points; a mechanism that releases something exactly.
    The frequentist suggestion of section 6.2 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023. The region is bounded
    without a total iff no ``x ≥ 0`` but 0 has ``Bx = 0``. The point y nearest to 0 in the convex hull of the columns of
    ``N = Σ^(-1/2) B`` decides: if it is not 0, then ``y'N ≥ ‖y‖² 1'``, which bounds the records.

    Parameters
    ----------
    mechanism : LinearGaussianMechanism
        B and Σ, nothing released exactly.
    answer : (m,) array
        ω, what it gave.
    confidence : float, default 0.95
        Probability, over the noise, that the ellipsoid holds the truth.
    total : float, optional
        An upper bound on the number of records. Without it the answer itself must bound every cell.

    Examples
    --------
    >>> import dualmech as dm
    >>> total = dm.LinearGaussianMechanism([[1, 1, 1]], [[4]])
    >>> region = ConfidenceRegion(total, [60])
    >>> round(region.most_records, 2), region.contains([20, 20, 21]), region.contains([20, 20, 30])
    (63.92, True, False)
    """

    mechanism: LinearGaussianMechanism
    answer: Array
    confidence: float
    total: float | None
    squared_radius: float  # z
    most_records: float  # the total, or the bound that the answer implies, whichever is less
    # rows, centre: (m, d) and (m,) N and c of the ellipsoid said as ``‖N x - c‖² ≤ z``
    rows: Array = field(repr=False)
    centre: Array = field(repr=False)

    def __init__(
        self,
        mechanism: LinearGaussianMechanism,
        answer: npt.ArrayLike,
        confidence: float = 0.95,
        total: float | None = None,
    ) -> None:
        mechanism = validate.instance(LinearGaussianMechanism, mechanism=as_matrix(mechanism))
        rows = len(mechanism.query_matrix)
        values = validate.vector(rows, "query", answer=answer) if rows else np.zeros(0)
        level = validate.probability(confidence=confidence)
        whitened, centre = _whiten(mechanism, values)
        # Without any query there is no ellipsoid; a radius of 1 around the only point there is says the same.
        squared = float(scipy.special.chdtri(rows, 1 - level)) if rows else 1.0
        most = _most_records(whitened, centre, squared)
        if total is not None:
            most = min(most, validate.positive_number(total=total))
        if not np.isfinite(most):
            raise InvalidInputError(_unbounded_message(whitened))
        fields = (mechanism, values, level, total, squared, most, whitened, centre)
        for name, value in zip(self.__dataclass_fields__, fields, strict=True):
            object.__setattr__(self, name, value)
        self._interior()

    def contains(self, x: npt.ArrayLike) -> bool:
        """Whether data x (d,) lie in the region."""
        data = validate.vector(self.rows.shape[1], "cell", x=x)
        with np.errstate(over="ignore"):
            distance = self.rows @ data - self.centre
            within = float(distance @ distance) <= self.squared_radius
        return bool(within and np.all(data >= 0) and data.sum() <= self.most_records)

    def chords(self, points: Array, directions: Array) -> tuple[Array, Array]:
        """Return where the lines through the points leave the region, in multiples of the directions (walks,)."""
        across, away = self.rows @ directions, self.rows @ points - self.centre[:, None]
        square = np.einsum("kc,kc->c", across, across)
        slope = np.einsum("kc,kc->c", across, away)
        slack = np.maximum(self.squared_radius - np.einsum("kc,kc->c", away, away), 0.0)
        bounds = np.vstack([points, self.most_records - points.sum(axis=0)])
        rates = np.vstack([-directions, directions.sum(axis=0)])
        with np.errstate(divide="ignore", invalid="ignore"):
            root = np.sqrt(slope**2 + square * slack)
            # The two roots of the quadratic, neither through a difference of nearly equal numbers.
            larger = -(slope + np.copysign(root, slope))
            first, second = larger / square, -slack / larger
            steps = bounds / rates
        reach = [np.where(rates > 0, steps, np.inf).min(axis=0), np.where(rates < 0, steps, -np.inf).max(axis=0)]
        curved = square > 0
        high = np.where(curved, np.fmax(first, second), np.inf)
        low = np.where(curved, np.fmin(first, second), -np.inf)
        return np.minimum(np.maximum(low, reach[1]), 0.0), np.maximum(np.minimum(high, reach[0]), 0.0)

    def _interior(self) -> Array:
        """Return a point inside the region; refused where there is none."""
        most, cells = self.most_records, self.rows.shape[1]
        corners = np.hstack([most * self.rows - self.centre[:, None], -self.centre[:, None]])
        nearest = most * _nearest_in_hull(corners)[:-1]
        distance = np.linalg.norm(self.rows @ nearest - self.centre)
        radius = self.squared_radius**0.5
        if distance**2 > INSIDE * self.squared_radius:
            raise InvalidInputError(
                f"answer must lie within the ellipsoid of some non-negative data of at most {most:g} records, but the "
                f"nearest are at distance {distance:.4g} where {radius:.4g} is allowed; raise the confidence"
            )
        middle = np.full(cells, most / (cells + 1))
        further = np.linalg.norm(self.rows @ middle - self.centre)
        share = 0.5 if further <= radius else min(0.5, (radius - distance) / (further - distance) / 2)
        return np.asarray(nearest + share * (middle - nearest))

    def analytic_centre(self) -> tuple[Array, Array]:
        """Return the minimum of the region's barrier, nearly, and the triangle R with ``R'R`` its Hessian there.

        The barrier is ``-log(z - ‖Nx - c‖²) - Σ log x_i - log(total - Σ x_i)``.
        """
        point = self._interior()
        for _ in range(NEWTON_STEPS):
            slope, factor = self._derivatives(point)
            step = -scipy.linalg.cho_solve((factor, False), slope, check_finite=False)
            decrement = float(np.sqrt(max(-slope @ step, 0.0)))
            if decrement < 0.1:
                break
            # The damped step of a self-concordant function stays inside.
            point = point + step / (1 + decrement)
        return point, self._derivatives(point)[1]

    def _derivatives(self, point: Array) -> tuple[Array, Array]:
        away = self.rows @ point - self.centre
        slack, left = self.squared_radius - away @ away, self.most_records - point.sum()
        pull = self.rows.T @ away * (2 / slack)
        slope = pull - 1 / point + 1 / left
        hessian = 2 / slack * self.rows.T @ self.rows + np.outer(pull, pull) + 1 / left**2
        hessian[np.diag_indices_from(hessian)] += point**-2.0
        factor = linalg.cholesky(hessian)
        if factor is None:
            raise InvalidInputError("answer and total must leave a region that is wider than rounding; this one is not")
        return slope, factor


def _whiten(mechanism: LinearGaussianMechanism, answer: Array) -> tuple[Array, Array]:
    """Return ``R'⁻¹ B`` and ``R'⁻¹ ω`` with ``R'R = Σ``, over all rows of B, dependent or not."""
    if not len(answer):
        return np.zeros((0, mechanism.query_matrix.shape[1])), np.zeros(0)
    factor = linalg.cholesky(mechanism.covariance())
    if factor is None:
        raise InvalidInputError("mechanism must release nothing exactly, its covariance is singular")
    both = np.column_stack([mechanism.query_matrix, answer])
    solved = scipy.linalg.solve_triangular(factor, both, trans="T", check_finite=False)
    return solved[:, :-1], solved[:, -1]


def _nearest_in_hull(points: Array) -> Array:
    """Return the weights (n,) of the point nearest to 0 in the convex hull of the columns of `points` (k, n).

    Minimising ``‖P v‖² + (1'v - 1)²`` over ``v ≥ 0`` gives them up to scale, since only the scale trades the two.
    """
    # Imported here so that the library loads without it.
    from scipy.optimize import nnls

    size = float(np.abs(points).max()) if points.size else 1.0
    system = np.vstack([points / (size or 1.0), np.ones(points.shape[1])])
    weights, _ = nnls(system, np.append(np.zeros(len(points)), 1.0), maxiter=30 * system.shape[1])
    return np.asarray(weights / weights.sum())


def _most_records(rows: Array, centre: Array, squared_radius: float) -> float:
    """Return an upper bound on ``Σ x_i`` over ``x ≥ 0`` in the ellipsoid, ``inf`` where there is none."""
    nearest = rows @ _nearest_in_hull(rows)
    least = float((nearest @ rows).min())
    if least <= linalg.SPAN_TOLERANCE * np.linalg.norm(nearest) * np.linalg.norm(rows, axis=0).max(initial=0.0):
        return float("inf")
    return max(float(nearest @ centre + np.linalg.norm(nearest) * squared_radius**0.5) / least, 0.0)


def _unbounded_message(rows: Array) -> str:
    cell = int(np.argmax(_nearest_in_hull(rows)))
    return (
        f"total must be given: the answer does not bound the region, records of cell {cell} "
        f"(with others, or alone) can grow in number without changing it"
    )


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
    walks = validate.size(validate.MAX_ITEMS // cells, chains=chains)
    kept = -(-validate.size(validate.MAX_ITEMS // cells, count=count) // walks)
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
        towards, walk = np.zeros((cells, walks)), np.arange(walks)
        np.add.at(towards, (pair // cells, walk), 1.0)
        np.add.at(towards, (pair % cells, walk), -1.0)
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
