"""Hit-and-run: uniform where the answer is known, inside the region always, and honest about its own accuracy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech.adaptive.sampling import ConfidenceRegion, Samples, effective_sizes, hit_and_run
from dualmech.validate import Array

quick = settings(max_examples=10)
seeds = st.integers(0, 10_000)

DEVIATIONS = 5.0
"""Standard errors, by effective sample size, within which an average must lie."""


def nothing(cells: int) -> dm.LinearGaussianMechanism:
    return dm.LinearGaussianMechanism(np.zeros((0, cells)), np.zeros((0, 0)))


def assert_mean(draws: Array, expected: Array) -> None:
    """The mean over walks (n, c, m) is what is expected, within what its effective sample size allows."""
    points = draws.reshape(-1, draws.shape[2])
    error = points.std(axis=0) / np.sqrt(effective_sizes(draws))
    assert np.all(np.abs(points.mean(axis=0) - expected) <= DEVIATIONS * error), points.mean(axis=0)


def random_region(seed: int) -> ConfidenceRegion:
    rng = np.random.default_rng(seed)
    cells = int(rng.integers(1, 9))
    rows = rng.integers(0, 2, (int(rng.integers(1, 6)), cells)).astype(float)
    rows = np.vstack([rows[rows.any(axis=1)], np.ones(cells)])
    mechanism = dm.LinearGaussianMechanism(rows, np.diag(rng.uniform(0.5, 9, len(rows))))
    answer = mechanism.simulate(rng.gamma(1, 20, cells), rng)
    return ConfidenceRegion(mechanism, np.maximum(answer, 0) if len(rows) == 1 else answer, confidence=0.999)


class TestUniform:
    def test_on_a_simplex(self) -> None:
        # Uniform on {x ≥ 0, Σ x ≤ T}: Dirichlet(1, …, 1) times T.
        cells, total = 5, 30.0
        draws = hit_and_run(ConfidenceRegion(nothing(cells), [], total=total), 8000, rng=0).draws
        mean = total / (cells + 1)
        assert_mean(draws, np.full(cells, mean))
        variance = total**2 * cells / ((cells + 1) ** 2 * (cells + 2))
        assert_mean((draws - mean) ** 2, np.full(cells, variance))

    def test_in_an_ellipsoid_and_in_a_share_of_one(self) -> None:
        # Uniform in an ellipsoid of squared radius z in k dimensions: covariance z Σ / (k + 2).
        noise = np.array([[4.0, 3, 0], [3, 9, 1], [0, 1, 1]])
        region = ConfidenceRegion(dm.LinearGaussianMechanism(np.eye(3), noise), [1e3, 2e3, 3e3])
        draws = hit_and_run(region, 8000, rng=0).draws - np.array([1e3, 2e3, 3e3])
        assert_mean(draws, np.zeros(3))
        products = (draws[..., :, None] * draws[..., None, :]).reshape(*draws.shape[:2], 9)
        assert_mean(products, region.squared_radius / 5 * noise.ravel())
        # The quarter of a disc: the mean of each coordinate is 4 r / (3 π).
        region = ConfidenceRegion(dm.LinearGaussianMechanism(np.eye(2), np.eye(2)), [0.0, 0.0])
        assert_mean(hit_and_run(region, 8000, rng=0).draws, np.full(2, 4 * region.squared_radius**0.5 / (3 * np.pi)))

    def test_on_an_interval(self) -> None:
        region = ConfidenceRegion(dm.LinearGaussianMechanism([[2.0]], [[1.0]]), [1.0])
        reach = region.squared_radius**0.5
        draws = hit_and_run(region, 4000, rng=0).draws
        assert_mean(draws, np.array([(1 + reach) / 4]))
        assert draws.min() >= 0 and draws.max() <= (1 + reach) / 2
        assert draws.min() < 0.01 and draws.max() > (1 + reach) / 2 - 0.01


class TestRegion:
    @quick
    @given(seeds)
    def test_every_point_lies_in_it(self, seed: int) -> None:
        region = random_region(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dm.errors.SamplingWarning)
            samples = hit_and_run(region, 64, rng=seed)
        inside = ConfidenceRegion(region.mechanism, region.answer, 0.999 + 1e-9)
        for point in samples.points:
            assert inside.contains(point)
            assert point.sum() <= region.most_records * (1 + 1e-9)

    def test_the_confidence_is_that_of_the_chi_squared_quantile(self) -> None:
        mechanism = dm.LinearGaussianMechanism(np.eye(3), np.diag([1.0, 2, 3]))
        region = ConfidenceRegion(mechanism, [50, 50, 50], confidence=0.9)
        assert region.squared_radius == pytest.approx(6.251388631)
        truth, rng = np.array([50.0, 50, 50]), np.random.default_rng(0)
        held = [ConfidenceRegion(mechanism, mechanism.simulate(truth, rng), 0.9).contains(truth) for _ in range(500)]
        assert abs(np.mean(held) - 0.9) < 5 * (0.09 / 500) ** 0.5

    def test_of_totals_dependent_rows_and_seeds(self) -> None:
        difference = dm.LinearGaussianMechanism([[1, -1, 0]], [[1]])
        region = ConfidenceRegion(difference, [3], total=50)
        samples = hit_and_run(region, 4000, rng=0)
        assert region.most_records == 50 and samples.points.sum(axis=1).max() <= 50
        assert not region.contains([25, 24, 10])
        twice = dm.LinearGaussianMechanism([[1, 1], [1, 0], [0, 1]], np.eye(3))
        region = ConfidenceRegion(twice, [20, 11, 10])
        assert region.squared_radius == pytest.approx(7.814727903)
        assert region.contains([11, 10]) and hit_and_run(region, 2000, rng=0).effective_size > 100
        region = random_region(1)
        one, two, other = (hit_and_run(region, 400, rng=seed, thin=20).points for seed in (5, 5, 6))
        assert np.array_equal(one, two) and not np.array_equal(one, other)

    def test_bad_input_is_refused_by_name(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="total must be given: .* cell 2"):
            ConfidenceRegion(dm.LinearGaussianMechanism([[1, 1, 0]], [[1]]), [3])
        with pytest.raises(dm.errors.InvalidInputError, match="total must be given"):
            ConfidenceRegion(dm.LinearGaussianMechanism([[1, -1]], [[1]]), [3])
        with pytest.raises(dm.errors.InvalidInputError, match="total must be given"):
            ConfidenceRegion(nothing(2), np.zeros(0))
        cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
        with pytest.raises(dm.errors.InvalidInputError, match="answer must lie within"):
            ConfidenceRegion(cells, [-5, -5])
        with pytest.raises(dm.errors.InvalidInputError, match="at most 3 records"):
            ConfidenceRegion(cells, [20, 20], total=3)
        assert ConfidenceRegion(cells, [-2, -1]).contains([0, 0])
        cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
        with pytest.raises(dm.errors.InputTypeError, match="mechanism must be"):
            ConfidenceRegion(np.eye(2), [1, 2])  # type: ignore[arg-type]
        with pytest.raises(dm.errors.InvalidInputError, match="answer must have 2 entries"):
            ConfidenceRegion(cells, [1])
        with pytest.raises(dm.errors.InvalidInputError, match="confidence"):
            ConfidenceRegion(cells, [1, 2], confidence=1)
        with pytest.raises(dm.errors.InvalidInputError, match="total"):
            ConfidenceRegion(cells, [1, 2], total=0)
        with pytest.raises(dm.errors.InvalidInputError, match="exactly"):
            ConfidenceRegion(dm.LinearGaussianMechanism(np.eye(2), np.diag([0.0, 1])), [1, 2])
        region = ConfidenceRegion(cells, [10, 20])
        for name in ("count", "chains", "thin", "burn_in"):
            with pytest.raises(dm.errors.InvalidInputError, match=name):
                hit_and_run(region, **{name: 0})
        with pytest.raises(dm.errors.InputTypeError, match="region must be"):
            hit_and_run(cells)  # type: ignore[arg-type]
        with pytest.raises(dm.errors.InvalidInputError, match="x must have 2 entries"):
            region.contains([1])
        samples = hit_and_run(region, 2000, rng=0)
        with pytest.raises(dm.errors.InvalidInputError, match="workload must have 2 cells"):
            samples.variances(dm.workloads.identity(3))
        with pytest.raises(dm.errors.InputTypeError, match="workload must be"):
            samples.variances(np.eye(2))  # type: ignore[arg-type]

    def test_the_implied_total_is_no_smaller_than_any_point(self) -> None:
        mechanism = dm.LinearGaussianMechanism(np.array([[1, 2, 0.5], [1, 0, 1]]), np.eye(2))
        region = ConfidenceRegion(mechanism, [10, 5])
        best = np.zeros(3)
        for point in np.random.default_rng(0).uniform(0, 40, (20_000, 3)):
            if region.squared_radius >= np.sum((mechanism.query_matrix @ point - [10, 5]) ** 2):
                best = max(best, point, key=np.sum)
        assert 0 < best.sum() <= region.most_records


class TestEffectiveSize:
    @pytest.mark.parametrize("persistence", [0.0, 0.5, 0.9, 0.98])
    def test_an_autoregression_is_worth_what_theory_says(self, persistence: float) -> None:
        rng, length, walks = np.random.default_rng(0), 4000, 16
        draws = np.empty((length, walks, 1))
        draws[0] = rng.standard_normal((walks, 1)) / (1 - persistence**2) ** 0.5
        for step in range(1, length):
            draws[step] = persistence * draws[step - 1] + rng.standard_normal((walks, 1))
        expected = length * walks * (1 - persistence) / (1 + persistence)
        assert 0.75 < effective_sizes(draws)[0] / expected <= 1.25

    def test_of_walks_apart_of_constants_and_of_queries(self) -> None:
        draws = np.random.default_rng(0).standard_normal((500, 8, 1)) + 10 * np.arange(8)[:, None]
        assert effective_sizes(draws)[0] < 20
        assert effective_sizes(np.ones((10, 4, 2))).tolist() == [40, 40]
        assert effective_sizes(np.ones((1, 1, 2))).tolist() == [1, 1]
        samples = Samples(np.random.default_rng(0).standard_normal((200, 4, 3)))
        sizes = samples.effective_sizes(dm.Workload([[1, 0, 0], [1, 1, 1]]))
        assert sizes.shape == (2,) and np.all((sizes > 400) & (sizes <= 800))

    def test_too_few_are_said(self) -> None:
        region = ConfidenceRegion(dm.LinearGaussianMechanism(np.ones((1, 40)), [[1]]), [100])
        with pytest.warns(dm.errors.SamplingWarning, match="effective sample size of a cell is .* of 64 points"):
            samples = hit_and_run(region, 64, thin=1, rng=0)
        assert samples.effective_size < 100
        with pytest.warns(dm.errors.SamplingWarning):
            hit_and_run(region, 50, rng=0)
