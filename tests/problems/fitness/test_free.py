"""Queries for free: what a mechanism leaves unspent, and the best further release within it."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from intervals import meet

import dualmech as dm
from dualmech import fast, reference
from dualmech.validate import Array

quick = settings(max_examples=12)
seeds = st.integers(0, 10_000)
EXAMPLE = dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1]], np.eye(2))
"""M1 of section 3.2.1, whose printed matrix has a row too many: profile (1, 2, 1), cost 2."""


def uneven(seed: int, neighbours: object = None) -> dm.LinearGaussianMechanism:
    rng = np.random.default_rng(seed)
    rows, cells = int(rng.integers(1, 4)), 4
    factor = rng.standard_normal((rows, rows))
    return dm.LinearGaussianMechanism(
        rng.standard_normal((rows, cells)), factor @ factor.T + 0.3 * np.eye(rows), neighbours
    )


def stacked_profile(mechanism: dm.LinearGaussianMechanism, basis: Array, covariance: Array) -> Array:
    """Profile of both releases together: their rows stacked, their noise independent, none where no neighbour moves."""
    profile = np.zeros(1)
    for rows, noise in ((mechanism.query_matrix, mechanism.covariance()), (basis, covariance)):
        moves = rows if mechanism.neighbours is None else rows @ mechanism.neighbours
        profile = profile + np.einsum("ks,ks->s", moves, np.linalg.pinv(noise, 1e-12, hermitian=True) @ moves)
    return np.asarray(profile)


class TestBudget:
    def test_worked_example(self) -> None:
        np.testing.assert_array_equal(EXAMPLE.free_budget(), [1, 0, 1])
        np.testing.assert_array_equal(EXAMPLE.free_budget(alpha=2.5), [1.5, 0.5, 1.5])

    @quick
    @given(seeds, st.floats(1, 1e6))
    def test_is_what_the_profile_leaves(self, seed: int, factor: float) -> None:
        mechanism = uneven(seed)
        alpha = factor * mechanism.squared_privacy_cost
        left = mechanism.free_budget(alpha)
        np.testing.assert_allclose(left + mechanism.profile, alpha, rtol=1e-12)
        assert np.all(left >= 0)

    def test_rounding_of_the_cost_is_forgiven_and_no_more(self) -> None:
        assert EXAMPLE.free_budget(alpha=2 * (1 - 1e-12))[1] == 0
        with pytest.raises(dm.errors.InvalidInputError, match="alpha must be at least 2"):
            EXAMPLE.free_budget(alpha=2 * (1 - 1e-6))
        for alpha in (0.0, -1.0, np.nan, np.inf):
            with pytest.raises(dm.errors.InvalidInputError, match="alpha"):
                EXAMPLE.free_budget(alpha=alpha)

    def test_refuses_an_exact_release(self) -> None:
        exact = dm.LinearGaussianMechanism(np.eye(2), np.diag([1.0, 0.0]))
        with pytest.raises(dm.errors.InvalidInputError, match="finite"):
            exact.free_budget(alpha=9.0)


class TestExtraForFree:
    def test_worked_example(self) -> None:
        # The third query of M2 has variance 1, and uses up the budget (1, 0, 1).
        problem = dm.extra_for_free(EXAMPLE, dm.Workload([[1, 0, 1]]))
        for answer in (fast.solve(problem, tol=1e-9), reference.solve(problem)):
            assert answer.lower_bound <= 1 + 1e-9 and answer.objective >= 1 - 1e-9
        answer = fast.solve(problem, tol=1e-9)
        together = stacked_profile(EXAMPLE, problem.basis, answer.primal)
        np.testing.assert_allclose(together, [2, 2, 2], rtol=1e-8)

    @quick
    @given(seeds, st.sampled_from([1e-6, 1.0, 1e6]), st.booleans())
    @example(seed=1, scale=1.0, replace=True)  # one direction has no noise
    def test_both_releases_cost_alpha_and_no_more(self, seed: int, scale: float, replace: bool) -> None:
        rng = np.random.default_rng(seed + 1)
        mechanism = uneven(seed, dm.neighbours.replace_one(4) if replace else None)
        alpha = mechanism.squared_privacy_cost * rng.uniform(1.1, 3)
        queries = scale * rng.integers(-2, 3, (3, 4)).astype(float)
        queries[0, 0] = scale
        problem = dm.extra_for_free(mechanism, dm.Workload(queries), rng.uniform(0.5, 2, 3), alpha)
        answer = fast.solve(problem, tol=1e-8)
        assert answer.status is dm.Status.CERTIFIED
        together = stacked_profile(mechanism, problem.basis, answer.primal)
        assert together.max() <= alpha * (1 + 1e-9)
        # A release that is larger by any factor costs more: some neighbours have nothing left.
        larger = stacked_profile(mechanism, problem.basis, answer.primal / (1 + 1e-6))
        assert larger.max() > alpha
        # Of directions that no neighbour moves, rows without noise: their costs are proven from above.
        own = answer.mechanism
        extra = dm.LinearGaussianMechanism(own.query_matrix, own.covariance(), mechanism.neighbours)
        apart = mechanism.profile + extra.profile
        assert np.all(apart >= together * (1 - 1e-9))
        np.testing.assert_allclose(apart, together, rtol=1e-6)

    @quick
    @given(seeds)
    def test_no_release_within_the_budget_does_better(self, seed: int) -> None:
        rng, mechanism = np.random.default_rng(seed), uneven(seed)
        alpha = 2 * mechanism.squared_privacy_cost
        workload = dm.Workload(rng.standard_normal((3, 4)))
        bound = fast.solve(dm.extra_for_free(mechanism, workload, 1.0, alpha)).lower_bound
        factor = rng.standard_normal((4, 4))
        other = dm.LinearGaussianMechanism(np.eye(4), factor @ factor.T + 0.3 * np.eye(4))
        used = (other.profile / mechanism.free_budget(alpha)).max()
        assert other.variances(workload).max() * used >= bound * (1 - 1e-9)

    def test_an_even_profile_leaves_an_ordinary_problem_and_layers_agree(self) -> None:
        mechanism = uneven(7)
        uneven_left = dm.extra_for_free(mechanism, dm.workloads.prefix(4), [1, 2, 3, 4], 5.0 + mechanism.profile.max())
        workload, even = dm.workloads.prefix(5), dm.LinearGaussianMechanism(np.eye(5), 0.5 * np.eye(5))
        free, ordinary = dm.extra_for_free(even, workload, alpha=5.0), dm.PrivacyFirst(workload, 1.0, cost=3.0)
        assert meet(fast.solve(uneven_left), reference.solve(uneven_left))
        assert meet(fast.solve(free), fast.solve(ordinary))

    def test_sparse_workloads_and_sizes(self) -> None:
        half = dm.LinearGaussianMechanism(np.eye(200)[:100], np.eye(100))
        queries = dm.workloads.identity(200).select(np.arange(100, 200))
        answer = fast.solve(dm.extra_for_free(half, queries))
        assert answer.lower_bound * (1 - 1e-12) <= 1 <= answer.objective * (1 + 1e-12)


class TestRefusals:
    def test_a_query_that_changes_where_nothing_is_left(self) -> None:
        workload = dm.Workload([[1, 0, 1], [0, 0, 1], [0, 2, 1]], names=["ends", "last", "last two"])
        for each in (workload, dm.Workload(sp.csr_array(workload.matrix), names=workload.names)):
            with pytest.raises(dm.errors.InvalidInputError, match="'last two' changes between neighbours 1"):
                dm.extra_for_free(EXAMPLE, each)
        answer = fast.solve(dm.extra_for_free(EXAMPLE, workload, alpha=3.0))
        assert answer.status is dm.Status.CERTIFIED
        spent = dm.LinearGaussianMechanism(np.eye(3), np.eye(3))
        with pytest.raises(dm.errors.InvalidInputError, match="whose free budget is spent"):
            dm.extra_for_free(spent, dm.workloads.prefix(3))

    def test_what_no_neighbour_changes_needs_no_noise(self) -> None:
        even = dm.LinearGaussianMechanism(np.eye(3), np.eye(3), dm.neighbours.replace_one(3))
        for alpha in (None, 5.0):
            with pytest.raises(dm.errors.InvalidInputError, match="released exactly"):
                dm.extra_for_free(even, dm.workloads.total(3), alpha=alpha)

    def test_bad_arguments(self) -> None:
        ends, other = dm.Workload([[1, 0, 1]]), dm.workloads.prefix(2)
        for workload, options, told in (
            (np.eye(3), {}, "workload"),
            (other, {"alpha": 3.0}, "3 cells"),
            (ends, {"targets": 0.0}, "targets"),
            (ends, {"alpha": 1.0}, "alpha"),
        ):
            with pytest.raises((dm.errors.InputTypeError, dm.errors.InvalidInputError), match=told):
                dm.extra_for_free(EXAMPLE, workload, **options)  # type: ignore[arg-type]


class TestFootnote4:
    """Completing columns (append √(largest - own) for every cell) spends what could be kept."""

    @quick
    @given(seeds)
    def test_completion_lowers_variances_and_empties_the_budget(self, seed: int) -> None:
        strategy = np.random.default_rng(seed).standard_normal((4, 4)) + 2 * np.eye(4)
        squares = (strategy**2).sum(axis=0)
        completed = np.vstack([strategy, np.diag(np.sqrt(squares.max() - squares))])
        plain, full = (
            dm.LinearGaussianMechanism(np.eye(4), np.linalg.inv(rows.T @ rows)) for rows in (strategy, completed)
        )
        workload = dm.workloads.all_range(4)
        assert full.squared_privacy_cost == pytest.approx(plain.squared_privacy_cost, rel=1e-9)
        assert np.all(full.variances(workload) <= plain.variances(workload) * (1 + 1e-9))
        np.testing.assert_allclose(full.free_budget(), 0, atol=1e-8 * squares.max())
        assert plain.free_budget().max() > 1e-3
        assert dm.compare_privacy(plain, full) == -1
