"""Toeplitz strategies with factors on rows and columns: both sides against matrices, and in exact arithmetic."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from participations import steps_apart

import dualmech as dm
from dualmech.geometry.scaled import ScaledToeplitz
from dualmech.validate import Array


def drawn(seed: int, steps: int, count: int, decays: Any) -> ScaledToeplitz:
    """Return such a strategy with coefficients, factors and scales drawn, and positive divisors."""
    rng = np.random.default_rng(seed)
    series = np.r_[1.0, rng.uniform(-0.4, 0.6, min(count, steps) - 1)]
    scales = np.r_[3.0, rng.uniform(-1, 1, len(decays) - 1)]
    return ScaledToeplitz(series, rng.uniform(0.3, 3, steps), scales, np.array(decays))


def exact(strategy: ScaledToeplitz, decay: float) -> tuple[list[Fraction], list[Fraction]]:
    """Return the squared norms of the columns and the variances of the sums, in fractions."""
    steps = strategy.steps
    series, rows = ([Fraction(value) for value in part.tolist()] for part in (strategy.coefficients, strategy.rows))
    divisors = [
        sum(
            Fraction(scale) * Fraction(rate) ** (step - (steps - 1) * (rate > 1))
            for scale, rate in zip(strategy.scales.tolist(), strategy.decays.tolist(), strict=True)
        )
        for step in range(steps)
    ]
    costs = [
        sum(
            (rows[row] * series[row - column] / divisors[column]) ** 2
            for row in range(column, min(column + len(series), steps))
        )
        for column in range(steps)
    ]
    inverse = [Fraction(1) / series[0]]
    for step in range(1, steps):
        used = range(1, min(step, len(series) - 1) + 1)
        inverse.append(-sum((series[lag] * inverse[step - lag] for lag in used), Fraction(0)) / series[0])
    variances, noise = [], [Fraction(0)] * steps
    for step in range(steps):
        noise = [
            Fraction(decay) * before + (divisors[step] * inverse[step - number] if number <= step else 0)
            for number, before in enumerate(noise)
        ]
        variances.append(sum(((part / row) ** 2 for part, row in zip(noise, rows, strict=True)), Fraction(0)))
    return costs, variances


def in_many_digits(strategy: ScaledToeplitz) -> tuple[Array, Array]:
    """Return the squared norms of the columns and the variances of running sums, from 80 digits."""
    with mpmath.workdps(80):
        steps, series = strategy.steps, mpmath.matrix(strategy.unscaled.matrix()[:, 0].tolist())
        scales, decays, rows = (
            [*map(mpmath.mpf, part.tolist())] for part in (strategy.scales, strategy.decays, strategy.rows)
        )
        divisors = [sum(a * rate**step for a, rate in zip(scales, decays, strict=True)) for step in range(steps)]
        costs = [
            sum((rows[row] * series[row - column]) ** 2 for row in range(column, steps)) / divisors[column] ** 2
            for column in range(steps)
        ]
        inverse = [1 / series[0]]
        for step in range(1, steps):
            inverse.append(-sum(series[lag] * inverse[step - lag] for lag in range(1, step + 1)) / series[0])
        variances, noise = [], [mpmath.mpf(0)] * steps
        for step in range(steps):
            for number in range(step + 1):
                noise[number] += divisors[step] * inverse[step - number]
            variances.append(sum((part / row) ** 2 for part, row in zip(noise, rows, strict=True)))
        return np.array(costs, dtype=float), np.array(variances, dtype=float)


class TestForms:
    @given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5), st.sampled_from([1.0, 0.5, 0.875]))
    def test_allowances_hold_in_exact_arithmetic(self, seed: int, steps: int, count: int, decay: float) -> None:
        strategy = drawn(seed, steps, count, [1.0, 0.8, 1.3])
        costs, variances = exact(strategy, decay)
        computed, hidden = strategy.costs()
        for value, more, true in zip(computed.tolist(), hidden.tolist(), costs, strict=True):
            assert abs(true - Fraction(value)) <= Fraction(more) and more < 1e-10 * value
        told, off = strategy.variances(decay)
        for value, more, true in zip(told.tolist(), off.tolist(), variances, strict=True):
            assert true <= Fraction(value) * (1 + Fraction(more)) and more < 1e-9
            assert float(true) == pytest.approx(value, rel=1e-11)

    @pytest.mark.parametrize(("steps", "count", "decay"), [(1, 1, 1.0), (300, 7, 0.99), (400, 300, 1.0)])
    def test_they_are_those_of_the_matrix(self, steps: int, count: int, decay: float) -> None:
        root = dm.strategies.root_coefficients(count)
        rates = np.exp(np.array([0.0, -2.0, 2.0, -30.0, 30.0]) / steps)
        rows = np.random.default_rng(0).uniform(0.5, 2, steps)
        strategy = ScaledToeplitz(root, rows, np.array([4.0, -1.0, -1.0, -0.5, -0.5]), rates)
        matrix = strategy.matrix()
        sums = dm.workloads.decayed_sums(steps, decay).dense() @ np.linalg.inv(matrix)
        costs, hidden = strategy.costs()
        assert costs == pytest.approx((matrix**2).sum(axis=0), rel=1e-11) and np.all(hidden < 1e-9 * costs)
        variances, off = strategy.variances(decay)
        assert variances == pytest.approx((sums**2).sum(axis=1), rel=1e-10) and off.max() < 1e-8

    def test_long_ones_are_known_to_many_digits(self) -> None:
        steps = 50_000
        hump = 1 + 4 * np.sin(np.pi * (np.arange(steps) + 0.5) / steps)
        rates = np.exp(np.array([0.0, -2.0, 2.0]) / steps)
        strategy = ScaledToeplitz(dm.strategies.root_coefficients(steps // 4), hump, np.array([5.4, -2.2, -2.2]), rates)
        assert strategy.variances(1.0)[1].max() < 1e-6
        costs, hidden = strategy.costs()
        assert (hidden / costs).max() < 1e-7

    @pytest.mark.parametrize(  # with more than 256 coefficients, products of series are fast
        ("steps", "rows", "signed"),
        [
            (40, "rising", True),
            (40, "random", False),
            (260, "falling", False),
            (260, "one", True),
            (300, "last", False),
        ],
    )
    def test_numbers_of_rows_worlds_apart(self, steps: int, rows: str, signed: bool) -> None:
        """Errors relative to the largest entry made costs 20 times too high, and lower bounds negative."""
        rng = np.random.default_rng(steps)
        factors = {
            "rising": np.logspace(-6, 6, steps),
            "falling": np.logspace(6, -6, steps),
            "random": 10.0 ** rng.uniform(-6, 6, steps),
            "one": np.where(np.arange(steps) == 5, 1e9, rng.uniform(0.5, 2, steps)),
            "last": np.where(np.arange(steps) >= steps - 2, 1e9, rng.uniform(0.5, 2, steps)),
        }[rows]
        root = dm.strategies.root_coefficients(min(steps, 260))
        series = np.r_[1.0, rng.uniform(-0.4, 0.6, steps - 1) * 0.5 ** np.arange(1, steps)] if signed else root
        strategy = ScaledToeplitz(series, factors, np.array([4.0, -1.0]), np.exp(np.array([0.0, -2.0]) / steps))
        costs, variances = in_many_digits(strategy)
        mechanism = dm.CausalMechanism(strategy)
        assert np.all(mechanism.profile >= costs) and mechanism.profile == pytest.approx(costs, rel=1e-8)
        assert mechanism.variances(dm.workloads.prefix(steps)) == pytest.approx(variances, rel=1e-6)
        cost = mechanism.participation_cost(1, 1)
        assert cost.exact and costs.max() * (1 - 1e-8) <= cost.lower_bound <= costs.max() <= cost.squared_cost
        many = mechanism.participation_cost(3, steps // 4)
        assert 0 <= many.lower_bound <= many.squared_cost and many.exact == (
            many.lower_bound >= many.squared_cost * (1 - 1e-8)
        )

    def test_a_cost_between_wide_bounds_is_not_called_exact(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of more terms than are summed one by one, the error of a fast product is all that is known."""
        monkeypatch.setattr("dualmech.geometry.scaled.MAX_TERMS", 0)
        rows, decays = np.logspace(8, -8, 300), np.array([10.0 ** (-16 / 299)])
        strategy = ScaledToeplitz(dm.strategies.root_coefficients(300), rows, np.array([1.0]), decays)
        told = dm.CausalMechanism(strategy).participation_cost(2, 100)
        assert told.lower_bound >= 0 and not told.exact

    def test_plain_factors_leave_a_toeplitz_strategy(self) -> None:
        series = [1.0, 0.5, 0.2]
        scaled = dm.strategies.scaled_toeplitz(series, np.full(9, 2.0), [4.0], [1.0])
        plain = dm.strategies.toeplitz(series, 9).scaled(4.0)
        sums = dm.workloads.prefix(9)
        assert scaled.profile == pytest.approx(plain.profile, rel=1e-12)
        assert scaled.variances(sums) == pytest.approx(plain.variances(sums), rel=1e-12)


class TestPersons:
    @given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
    def test_what_they_cost(self, seed: int, steps: int, count: int, times: int, apart: int) -> None:
        strategy = drawn(seed, steps, count, [1.0, 0.8, 1.3])
        products = np.abs(strategy.matrix()).T @ np.abs(strategy.matrix())
        persons = [[*range(start, min(start + times * apart, steps), apart)] for start in range(steps)]
        largest = max(products[np.ix_(person, person)].sum() for person in persons)
        cost, hidden = strategy.participation(times, apart)
        assert cost == pytest.approx(largest, rel=1e-10) and hidden < 1e-9 * cost
        told = dm.CausalMechanism(strategy).participation_cost(times, apart)
        assert told.squared_cost == pytest.approx(largest, rel=1e-9)
        assert 0 <= told.lower_bound <= told.squared_cost and (told.exact or not strategy.nonnegative)

    @given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 3), st.integers(1, 3))
    def test_at_least_so_far_apart(self, seed: int, steps: int, times: int, apart: int) -> None:
        strategy = drawn(seed, steps, steps, [1.0, 0.8])
        shared = np.abs(strategy.matrix().T @ strategy.matrix())
        largest = max(shared[np.ix_(person, person)].sum() for person in steps_apart(steps, times, apart))
        told = dm.CausalMechanism(strategy).participation_cost(times, apart, at_least=True)
        assert told.squared_cost >= largest * (1 - 1e-12)


class TestMechanism:
    def test_noise_step_by_step_is_that_of_the_matrix(self, tmp_path: Path) -> None:
        mechanism = dm.strategies.scaled_toeplitz([1.0, 0.5, 0.25], [1.0, 2.0, 1.5, 3.0, 1.0], [2.0, -0.5], [1.0, 0.7])
        numbers = np.random.default_rng(0).standard_normal((5, 3))
        rows = np.stack([*mechanism.scaled(4.0).noise(3, rng=lambda step: numbers[step])])
        assert rows == pytest.approx(2 * np.linalg.solve(mechanism.matrix, numbers), rel=1e-12)
        assert mechanism.noise(3).recurrence.rows_kept(4) == 2
        dm.save(mechanism.scaled(3.0), tmp_path / "noise.npz")
        assert dm.load(tmp_path / "noise.npz").same_as(mechanism.scaled(3.0))

    def test_bad_parts_are_refused(self) -> None:
        for parts, match in (
            (dict(rows=[1.0, 0.0, 1.0]), "rows"),
            (dict(decays=[1.0, -0.5]), "decays"),
            (dict(scales=[1.0]), "scales"),
            (dict(scales=[], decays=[]), "decays must not be empty"),
            (dict(scales=[1.0, -1.0], decays=[1.0, 0.9]), "every divisor of a column positive"),
            (dict(coefficients=[0.0, 1.0]), "coefficients"),
            (dict(coefficients=[1.0] * 4), "coefficients"),
        ):
            stated = dict(coefficients=[1.0, 0.5], rows=[1.0, 2.0, 3.0], scales=[2.0, -0.5], decays=[1.0, 0.7]) | parts
            with pytest.raises(dm.errors.InvalidInputError, match=match):
                dm.strategies.scaled_toeplitz(**stated)

    def test_simulated_sums_have_its_variances(self) -> None:
        mechanism = dm.strategies.scaled_toeplitz([1.0, 0.5], [1.0, 2.0, 1.5, 3.0], [2.0, -0.5], [1.0, 0.7])
        sums = dm.workloads.prefix(4)
        rng = np.random.default_rng(0)
        noisy = np.stack([mechanism.simulate(np.zeros(4), sums, rng) for _ in range(4000)])
        assert (noisy**2).mean(axis=0) == pytest.approx(mechanism.variances(sums), rel=0.15)
