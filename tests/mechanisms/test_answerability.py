"""The order of mechanisms by what they reveal: answerability, equivalence, stacks, standard forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech.validate import Array

quick = settings(max_examples=24)
seeds = st.integers(0, 10_000)


def random_mechanism(seed: int, cells: int = 5, unit: float = 1.0) -> dm.LinearGaussianMechanism:
    """A mechanism of one to twice as many rows as cells; dependent rows come up often."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 2 * cells))
    factor = rng.standard_normal((rows, rows))
    return dm.LinearGaussianMechanism(
        unit * (rng.integers(-2, 3, (rows, cells)) + 0.5 * np.eye(rows, cells) + 0.1),
        factor @ factor.T + 0.1 * np.eye(rows),
    )


def cost_of(mechanism: dm.LinearGaussianMechanism) -> Array:
    queries = mechanism.query_matrix
    return np.asarray(queries.T @ np.linalg.solve(mechanism.covariance(), queries))


class TestStandardForm:
    @quick
    @given(seeds, st.sampled_from([1e-6, 1.0, 1e6]))
    def test_is_the_mechanism_with_unit_noise(self, seed: int, unit: float) -> None:
        mechanism = random_mechanism(seed, unit=unit)
        form, cost = mechanism.standard_form, cost_of(mechanism)
        size = np.linalg.matrix_rank(mechanism.query_matrix)
        assert form.queries.shape == (size, 5)
        assert mechanism.rank == size
        np.testing.assert_allclose(form.queries.T @ form.queries, cost, atol=1e-9 * np.abs(cost).max())
        scale = np.abs(mechanism.query_matrix).max()
        np.testing.assert_allclose(form.lift @ form.queries, mechanism.query_matrix, atol=1e-9 * scale)
        np.testing.assert_allclose(form.estimate @ form.lift, np.eye(size), atol=1e-8)
        noise = form.estimate @ mechanism.covariance() @ form.estimate.T
        np.testing.assert_allclose(noise, np.eye(size), atol=1e-8)
        np.testing.assert_allclose(mechanism.profile, np.diagonal(cost), rtol=1e-8)

    @quick
    @given(seeds)
    def test_standardize_and_compose_change_nothing(self, seed: int) -> None:
        first, second = random_mechanism(seed), random_mechanism(seed + 1)
        assert first.is_equivalent_to(first.standardize())
        both, said_once = first.stack(second), first.compose(second)
        assert len(both.query_matrix) == len(first.query_matrix) + len(second.query_matrix)
        assert said_once.rank == len(said_once.query_matrix) == both.rank
        assert both.is_equivalent_to(said_once)
        scale = np.abs(both.cost_matrix).max()
        np.testing.assert_allclose(both.cost_matrix, first.cost_matrix + second.cost_matrix, atol=1e-9 * scale)

    def test_consistent_singular_noise_is_no_exact_release(self) -> None:
        # What a mechanism says of a workload is a mechanism of its own, with dependent rows and a singular Σ.
        cells = dm.LinearGaussianMechanism(np.eye(3), np.diag([1.0, 2.0, 3.0]))
        ranges = dm.workloads.all_range(3)
        said = dm.LinearGaussianMechanism(ranges.dense(), cells.covariance(ranges))
        assert said.is_equivalent_to(cells)
        np.testing.assert_allclose(said.variances(ranges), cells.variances(ranges), rtol=1e-9)

    def test_dependent_rows_are_answered_from_the_best_of_them(self) -> None:
        both = dm.LinearGaussianMechanism([[1, 1], [1, 0], [0, 1]], 2 * np.eye(3))
        np.testing.assert_allclose(both.covariance(dm.workloads.identity(2)), [[4 / 3, -2 / 3], [-2 / 3, 4 / 3]])
        answers = both.simulate(np.tile([3.0, 5.0], (20_000, 1)), rng=1, workload=dm.workloads.identity(2))
        assert answers.shape == (20_000, 2)
        # Five standard errors: σ/√n for the mean, √2 σ²/√n for a variance.
        assert np.abs(answers.mean(axis=0) - [3, 5]).max() < 5 * np.sqrt(4 / 3 / 20_000)
        assert np.abs(answers.var(axis=0) - 4 / 3).max() < 5 * 4 / 3 * np.sqrt(2 / 20_000)

    @quick
    @given(seeds)
    def test_dependent_rows_with_exact_ones_are_answered_as_well_as_can_be(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        cells = int(rng.integers(2, 5))
        queries = rng.standard_normal((int(rng.integers(cells + 1, 2 * cells + 2)), cells))
        factor = rng.standard_normal((len(queries), int(rng.integers(1, len(queries) + 1))))
        mechanism = dm.LinearGaussianMechanism(queries, factor @ factor.T)
        try:
            found = mechanism.covariance(dm.workloads.identity(cells))
        except dm.errors.InvalidInputError:  # which combinations are exact hangs on rounding
            with pytest.raises(dm.errors.InvalidInputError, match="relative rounding error above"):
                mechanism.variances(dm.workloads.identity(cells))
            return
        # The limit of a little noise on everything; from ten times as much, how far that is from the limit.
        noisy = (factor @ factor.T + little * np.eye(len(queries)) for little in (1e-9, 1e-8))
        expected, farther = (np.linalg.inv(queries.T @ np.linalg.solve(each, queries)) for each in noisy)
        away = np.abs(farther - expected).max()
        np.testing.assert_allclose(found, expected, atol=1e-4 * max(1.0, np.abs(expected).max()) + away)
        assert mechanism.releases_exactly == bool(np.isinf(mechanism.rho))
        if not np.any(found > 1e-12):
            return
        once = mechanism.compose()
        np.testing.assert_allclose(once.covariance(dm.workloads.identity(cells)), found, atol=1e-7)
        answers = mechanism.simulate(np.ones(cells), rng=1, workload=dm.workloads.identity(cells))
        spread = np.sqrt(np.diagonal(found))
        assert np.all(np.abs(answers - 1) <= 6 * spread + 1e-6)

    @pytest.mark.parametrize("seed", range(8))
    def test_exactness_is_no_matter_of_the_last_rounding(self, seed: int) -> None:
        factor = np.random.default_rng(seed).standard_normal((4, 3))
        mechanism = dm.LinearGaussianMechanism(np.eye(4), factor @ factor.T)
        assert mechanism.releases_exactly and np.isinf(mechanism.rho)
        with pytest.raises(dm.errors.InvalidInputError, match="released exactly"):
            mechanism.standardize()
        with pytest.raises(dm.errors.InvalidInputError, match="released exactly"):
            mechanism.is_answerable_from(dm.LinearGaussianMechanism(np.eye(4), np.eye(4)))

    def test_no_variance_is_negative(self) -> None:
        for cells in range(3, 9):
            projector = np.eye(cells) - 1 / cells
            moves = dm.neighbours.replace_one(cells)
            mechanism = dm.LinearGaussianMechanism(np.eye(cells), projector, moves)
            assert mechanism.variances(dm.workloads.total(cells)) >= 0
            assert np.isfinite(mechanism.rho)

    def test_the_trivial_mechanism(self) -> None:
        nothing = dm.LinearGaussianMechanism(np.zeros((0, 3)), np.zeros((0, 0)))
        cells = dm.LinearGaussianMechanism(np.eye(3), np.eye(3))
        assert nothing.rho == 0 == nothing.epsilon(1e-9) == nothing.delta(1.0)
        assert nothing.is_answerable_from(cells) and not cells.is_answerable_from(nothing)
        assert nothing.is_equivalent_to(nothing)
        assert cells.is_equivalent_to(cells.stack(nothing))
        assert nothing.simulate([1, 2, 3]).shape == (0,)
        assert nothing.cost_matrix.shape == (3, 3) and not nothing.cost_matrix.any()
        with pytest.raises(dm.errors.InvalidInputError, match="outside the row space"):
            nothing.variances(dm.workloads.total(3))


class TestAnswerability:
    @quick
    @given(seeds)
    def test_witnesses_hold_both_ways(self, seed: int) -> None:
        given, rng = random_mechanism(seed), np.random.default_rng(seed)
        mixing = rng.standard_normal((3, len(given.query_matrix)))
        extra = rng.standard_normal((3, 3))
        wanted = dm.LinearGaussianMechanism(
            mixing @ given.query_matrix, mixing @ given.covariance() @ mixing.T + extra @ extra.T
        )
        found = wanted.is_answerable_from(given)
        assert found and found.excess <= 1e-8
        assert found.transform is not None and found.noise is not None and found.direction is None
        np.testing.assert_allclose(found.transform @ given.query_matrix, wanted.query_matrix, atol=1e-7)
        noise = found.transform @ given.covariance() @ found.transform.T + found.noise @ found.noise.T
        np.testing.assert_allclose(noise, wanted.covariance(), atol=1e-6 * np.abs(wanted.covariance()).max())

    @quick
    @given(seeds, st.sampled_from([1e-6, 1.0, 1e6]))
    def test_a_violating_direction_costs_more(self, seed: int, unit: float) -> None:
        first, second = random_mechanism(seed, unit=unit), random_mechanism(seed + 1, unit=unit)
        found = first.is_answerable_from(second)
        difference = cost_of(second) - cost_of(first)
        definite = np.linalg.eigvalsh(difference)[0] >= -1e-9 * np.abs(difference).max()
        assert bool(found) == definite
        if not found:
            assert found.direction is not None and found.transform is None
            x = found.direction
            dearer, cheaper = x @ cost_of(first) @ x, x @ cost_of(second) @ x
            assert dearer > cheaper
            if np.isfinite(found.excess):
                assert dearer / cheaper - 1 == pytest.approx(found.excess, rel=1e-5)

    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
    def test_the_tolerance_is_relative(self, scale: float) -> None:
        noise = np.diag([1.0, 1e4]) * scale
        given = dm.LinearGaussianMechanism(np.eye(2), noise)
        for share, expected in ((1e-10, True), (1e-6, False)):
            closer = dm.LinearGaussianMechanism(np.eye(2), noise * [[1, 0], [0, 1 - share]])
            assert bool(closer.is_answerable_from(given)) == expected
        assert closer.is_answerable_from(given, tol=1e-5)

    def test_example_3_8(self) -> None:
        total = [[1.0, 1, 1]]
        four = np.vstack([total, np.eye(3)])
        m1, m3, m4 = (dm.LinearGaussianMechanism(total, [[variance]]) for variance in (1, 2, 1.5))
        m2 = dm.LinearGaussianMechanism(four, 2 * np.eye(4))
        for common in (m3, m4):
            assert common.is_answerable_from(m1) and common.is_answerable_from(m2)
        found = m4.is_answerable_from(m2)
        assert found.transform is not None
        np.testing.assert_allclose(found.transform, [[0.75, 0.25, 0.25, 0.25]], atol=1e-12)
        assert m3.is_answerable_from(m4) and not m4.is_answerable_from(m3)

    def test_what_cannot_be_compared_is_refused(self) -> None:
        cases: Any = (
            ("must be a LinearGaussianMechanism", np.eye(2)),
            ("same cells", dm.LinearGaussianMechanism(np.eye(3), np.eye(3))),
            ("same neighbours", dm.LinearGaussianMechanism(np.eye(2), np.eye(2), dm.neighbours.replace_one(2))),
        )
        for message, other in cases:
            mechanism = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
            with pytest.raises(dm.errors.DualmechError, match=message):
                mechanism.is_answerable_from(other)
            with pytest.raises(dm.errors.DualmechError, match=message):
                mechanism.compose(other)


class TestDecomposition:
    @quick
    @given(seeds)
    @example(1693)  # rows that are dependent but for rounding, where there is no noise
    def test_parts_add_up_to_the_target(self, seed: int) -> None:
        target, rng = random_mechanism(seed), np.random.default_rng(seed)
        mixing = rng.standard_normal((2, len(target.query_matrix)))
        noise = mixing @ target.covariance() @ mixing.T
        common = dm.LinearGaussianMechanism(mixing @ target.query_matrix, noise * (1 + rng.random()))
        parts = dm.decomposition(target, common)
        scale = np.abs(target.cost_matrix).max()
        np.testing.assert_allclose(
            parts.common.cost_matrix + parts.residual.cost_matrix, target.cost_matrix, atol=1e-8 * scale
        )
        assert target.is_equivalent_to(common.compose(parts.residual))
        queries = parts.from_common @ common.query_matrix + parts.from_residual @ parts.residual.query_matrix
        np.testing.assert_allclose(queries, target.query_matrix, atol=1e-7)
        answered = (
            parts.from_common @ common.covariance() @ parts.from_common.T
            + parts.from_residual @ parts.residual.covariance() @ parts.from_residual.T
        )
        size = np.abs(target.covariance()).max()
        np.testing.assert_allclose(answered + parts.leftover, target.covariance(), atol=1e-7 * size)
        np.testing.assert_allclose(answered, parts.consistent.covariance(), atol=1e-7 * size)
        assert np.linalg.eigvalsh(parts.leftover)[0] >= -1e-12 * size
        if target.independent:
            assert not parts.leftover.any()

    def test_example_3_12(self) -> None:
        first = dm.LinearGaussianMechanism(np.kron(np.eye(3), np.ones((1, 3))), np.eye(3))
        common = dm.LinearGaussianMechanism(np.ones((1, 9)), [[3.0]])
        parts = dm.decomposition(first, common)
        printed = dm.LinearGaussianMechanism(
            [[0, 0, 0, 1, 1, 1, -1, -1, -1], [-1, -1, -1, 1, 1, 1, 0, 0, 0]], [[2, 1], [1, 2]]
        )
        assert len(parts.residual.query_matrix) == 2
        assert parts.residual.is_equivalent_to(printed)
        np.testing.assert_allclose(parts.from_common, np.full((3, 1), 1 / 3))

    def test_other_parts_and_answers_are_refused(self) -> None:
        cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
        with pytest.raises(dm.errors.InvalidInputError, match="common must be answerable"):
            dm.decomposition(cells, dm.LinearGaussianMechanism(np.eye(2), 0.9 * np.eye(2)))
        with pytest.raises(dm.errors.InputTypeError, match="common must be a LinearGaussianMechanism"):
            dm.decomposition(cells, np.eye(2))
        cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
        parts = dm.decomposition(cells, dm.LinearGaussianMechanism([[1, 1]], [[2]]))
        for first, second in (([1, 2], [0]), ([1], [0, 0]), ([[1]], [0]), ([np.nan], [0])):
            with pytest.raises(dm.errors.DualmechError, match="answers"):
                parts.combine(first, second)

    def test_contradictions_in_small_units_are_kept_and_rounding_is_no_query(self) -> None:
        queries = np.array([[1.0, 0], [1, 0], [0, 1e-5], [0, 1e-5]])
        target = dm.LinearGaussianMechanism(queries, np.diag([1, 1, 1e-10, 1e-10]))
        parts = dm.decomposition(target, dm.LinearGaussianMechanism([[1, 1]], [[9.0]]))
        np.testing.assert_allclose(np.diagonal(parts.leftover), [0.5, 0.5, 5e-11, 5e-11], rtol=1e-9)
        queries = np.array([[1.0, 1, 0], [1, -1, 1e-17], [2, 0, 0]])
        assert dm.LinearGaussianMechanism(queries, np.eye(3)).rank == 2

    def test_two_noise_levels_are_gradual_release(self) -> None:
        better = dm.LinearGaussianMechanism(np.eye(3), np.eye(3))
        coarse = dm.LinearGaussianMechanism(np.eye(3), 4 * np.eye(3))
        np.testing.assert_allclose(dm.residual(better, coarse).cost_matrix, 0.75 * np.eye(3), atol=1e-12)
        nothing = dm.residual(better, better)
        assert nothing.rho == 0 and nothing.query_matrix.shape == (0, 3)
        assert dm.residual(better, nothing).is_equivalent_to(better)

    @pytest.mark.parametrize("dependent", [False, True])
    def test_combined_runs_have_the_targets_distribution(self, dependent: bool) -> None:
        queries = np.vstack([np.eye(3), np.ones((1, 3))]) if dependent else np.eye(3)
        target = dm.LinearGaussianMechanism(queries, np.diag(np.arange(1.0, len(queries) + 1)))
        common = dm.LinearGaussianMechanism([[1, 1, 1], [1, 0, -1]], 9 * np.eye(2))
        parts, x, runs = dm.decomposition(target, common), np.array([7.0, 1.0, 4.0]), 200_000
        data, rng = np.tile(x, (runs, 1)), np.random.default_rng(3)
        answers = parts.combine(common.simulate(data, rng), parts.residual.simulate(data, rng), rng)
        deviation = np.sqrt(np.diagonal(target.covariance()))
        # 4.9 standard errors: below 1e-6 a comparison, below 2e-5 for all of them.
        assert np.abs((answers.mean(axis=0) - queries @ x) / deviation).max() < 4.9 / np.sqrt(runs)
        correlations = np.cov(answers.T) / deviation / deviation[:, None]
        expected = target.covariance() / deviation / deviation[:, None]
        assert np.abs(correlations - expected).max() < 4.9 * np.sqrt(2 / runs)
