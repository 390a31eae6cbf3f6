"""Strategies as matrices: errors, completion, weights for relative errors; and causal factors of a mechanism."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast
from dualmech.problems import strategies
from dualmech.studies import rivals
from dualmech.validate import Array

quick = settings(max_examples=20)
seeds = st.integers(0, 10_000)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


class TestErrors:
    @quick
    @given(seeds, st.integers(1, 9), st.integers(1, 5))
    def test_total_variance_is_that_of_least_squares(self, seed: int, queries: int, cells: int) -> None:
        strategy = normal(queries, cells, seed=seed)
        workload = dm.Workload(normal(3, queries, seed=seed + 1) @ strategy)
        spread = workload.matrix @ np.linalg.pinv(strategy)
        sensitivity = np.linalg.norm(strategy, axis=0).max()
        expected = sensitivity**2 * (spread**2).sum()
        assert strategies.total_variance(strategy, workload) == pytest.approx(expected, rel=1e-8)

    def test_it_is_the_objective_of_total_variance(self) -> None:
        workload, tree = dm.workloads.prefix(8), rivals.hierarchical_matrix(8).toarray()
        problem = dm.TotalVariance(workload)
        covariance = problem.feasible(crosscheck.covariance_of_strategy(problem, tree))
        judged = problem.certify(covariance, np.ones(8))
        assert strategies.total_variance(tree, workload) == pytest.approx(judged.objective, rel=1e-9)

    def test_root_mean_square_error(self) -> None:
        """Proposition 4, term by term, and for a workload that stands for a larger one."""
        workload = dm.workloads.all_range(6)
        expected = np.sqrt(2 * np.log(2 / 1e-4) / 0.25 * (workload.matrix**2).sum() / 21)
        assert strategies.root_mean_square_error(np.eye(6), workload, 0.5, 1e-4) == pytest.approx(expected)
        small = dm.workloads.from_gram(workload.gram())
        error = strategies.root_mean_square_error(np.eye(6), small, 0.5, 1e-4, queries=21)
        assert len(small) == 6 and error == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("cells", [20, 300])
    def test_graded_and_singular_strategies(self, cells: int) -> None:
        """However the rows are scaled, orthogonal ones answer themselves at their own noise."""
        scales = 10 ** np.linspace(-6, 6, cells // 2)[:, None]
        rows = np.linalg.qr(normal(cells, cells // 2))[0].T
        spread = strategies.total_variance(scales * rows, dm.Workload(scales * rows))
        sensitivity = (scales**2 * rows**2).sum(axis=0).max()
        assert spread == pytest.approx(cells // 2 * sensitivity, rel=1e-9)

    @pytest.mark.parametrize(
        "strategy", [np.ones(3), np.ones((2, 2)), np.zeros((2, 3)), [[1, np.nan, 0]], "I", None], ids=str
    )
    def test_no_strategy(self, strategy: Any) -> None:
        with pytest.raises(dm.errors.DualmechError, match="strategy"):
            strategies.total_variance(strategy, dm.workloads.prefix(3))

    def test_a_query_that_the_strategy_cannot_answer_is_named(self) -> None:
        with pytest.raises(
            dm.errors.InvalidInputError, match="'cells 0..1' lies outside the row space of the strategy"
        ):
            strategies.total_variance([[1, 0, 0], [1, 1, 1]], dm.workloads.prefix(3))

    @pytest.mark.parametrize(("epsilon", "delta"), [(0, 0.1), (1, 0), (1, 1), (np.nan, 0.1), ("a", 0.1)])
    def test_no_privacy_parameters(self, epsilon: Any, delta: Any) -> None:
        with pytest.raises(dm.errors.DualmechError, match="epsilon|delta"):
            strategies.noise_factor(epsilon, delta)

    @pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0])
    @pytest.mark.parametrize("delta", [1e-9, 1e-4])
    def test_the_papers_noise_is_enough_up_to_epsilon_one(self, epsilon: float, delta: float) -> None:
        cost = strategies.noise_factor(epsilon, delta) ** -0.5
        assert dm.accounting.epsilon(cost, delta) <= epsilon


class TestCompletion:
    @quick
    @given(seeds, st.integers(1, 6), st.integers(1, 6))
    def test_all_columns_reach_the_largest_norm(self, seed: int, queries: int, cells: int) -> None:
        strategy = normal(queries, cells, seed=seed)
        full = strategies.completed(strategy)
        norms = np.linalg.norm(full, axis=0)
        np.testing.assert_allclose(norms, np.linalg.norm(strategy, axis=0).max(), rtol=1e-9)
        np.testing.assert_array_equal(full[:queries], strategy)
        assert np.all(np.any(full[queries:], axis=1)) and len(full) <= queries + cells - 1

    def test_a_complete_strategy_gets_no_row(self) -> None:
        haar = rivals.haar_matrix(8).toarray() / 3**0.5
        assert len(strategies.completed(haar)) == 8


class TestRelativeWeights:
    def test_uniform(self) -> None:
        workload = dm.Workload([[3, 4], [0, 0], [0, 2]])
        np.testing.assert_allclose(strategies.relative_weights(workload), [1 / 25, 0, 1 / 4])
        np.testing.assert_allclose(strategies.relative_weights(workload, [5, 5]), [1 / 25, 0, 1 / 4])

    def test_queries_where_few_records_are_count_more(self) -> None:
        workload = dm.Workload(sp.csr_array([[1.0, 0, 0], [0, 1, 0], [0, 1, 1]]))
        np.testing.assert_allclose(strategies.relative_weights(workload, [0.2, 0.6, 0.2]), [1 / 0.6, 1 / 1.8, 1 / 2.4])

    @pytest.mark.parametrize("distribution", [[1, 1], [1, -1, 1], [0, 0, 0], [1, np.nan, 1], "even"], ids=str)
    def test_no_distribution(self, distribution: Any) -> None:
        with pytest.raises(dm.errors.DualmechError, match="distribution"):
            strategies.relative_weights(dm.workloads.prefix(3), distribution)

    def test_a_query_that_meets_no_record_is_named(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="'cell 0' meets no record"):
            strategies.relative_weights(dm.workloads.prefix(3), [0, 1, 1])


class TestCausal:
    """Lower-triangular factors of the cost matrix: noise can be drawn as the cells arrive."""

    @quick
    @given(seeds, st.integers(1, 7))
    def test_it_is_the_lower_triangular_factor(self, seed: int, cells: int) -> None:
        half = normal(cells, cells + 2, seed=seed)
        mechanism = dm.LinearGaussianMechanism(normal(cells, cells, seed=seed + 1), half @ half.T)
        strategy = mechanism.causal_strategy()
        np.testing.assert_array_equal(strategy, np.tril(strategy))
        assert np.diagonal(strategy).min() > 0
        cost = mechanism.cost_matrix
        np.testing.assert_allclose(strategy.T @ strategy, cost, atol=1e-12 * np.abs(cost).max())

    @pytest.mark.parametrize("d", [1, 2, 16, 64])
    def test_prefixes_are_answered_from_the_noise_so_far(self, d: int) -> None:
        """``W = L A`` with L lower triangular, and the answers have the variances of the mechanism."""
        workload = dm.workloads.prefix(d)
        for problem in (dm.FitnessForUse(workload, targets=1.0), dm.TotalVariance(workload)):
            mechanism = fast.solve(problem).mechanism
            strategy = mechanism.causal_strategy()
            factor = scipy.linalg.solve_triangular(strategy.T, workload.matrix.T, lower=False).T
            np.testing.assert_allclose(factor @ strategy, workload.matrix, atol=1e-9)
            np.testing.assert_allclose(factor, np.tril(factor), atol=1e-9)
            np.testing.assert_allclose((factor**2).sum(axis=1), mechanism.variances(workload), rtol=1e-6)
            np.testing.assert_allclose((strategy**2).sum(axis=0), mechanism.profile, rtol=1e-6)

    def test_fewer_queries_than_cells_and_exact_answers_have_none(self) -> None:
        for rows, noise, words in (
            ([[1, 1]], [[1]], "as many independent queries as cells, got 1 for 2"),
            (np.eye(2), np.diag([1.0, 0]), "not finite"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=words):
                dm.LinearGaussianMechanism(rows, noise).causal_strategy()
