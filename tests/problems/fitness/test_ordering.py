"""The refined privacy ordering: a dictionary of sorted profiles, with rounding forgiven entry by entry."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast

quick = settings(max_examples=24)
profiles = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, np.inf]), min_size=4, max_size=4)
seeds = st.integers(0, 10_000)


def mechanism(rows: object) -> dm.LinearGaussianMechanism:
    queries = np.atleast_2d(np.asarray(rows, dtype=float))
    return dm.LinearGaussianMechanism(queries, np.eye(len(queries)))


class TestDefinition5:
    def test_worked_example(self) -> None:
        # Section 3.2.1: equal privacy cost, but the second mechanism answers one more query.
        first = mechanism([[1, 1, 0], [0, 1, 1]])
        second = mechanism([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
        np.testing.assert_array_equal(first.profile, [1, 2, 1])
        np.testing.assert_array_equal(second.profile, [2, 2, 2])
        assert first.squared_privacy_cost == second.squared_privacy_cost
        assert dm.compare_privacy(first, second) == -1
        assert dm.compare_privacy(second, first) == 1

    @quick
    @given(profiles, profiles)
    def test_is_the_dictionary_order_of_sorted_profiles(self, a: list[float], b: list[float]) -> None:
        one, two = sorted(a, reverse=True), sorted(b, reverse=True)
        expected = (one > two) - (one < two)
        for tol in (0.0, 1e-9):
            assert dm.compare_privacy(a, b, tol) == expected == -dm.compare_privacy(b, a, tol)

    @quick
    @given(seeds)
    def test_privacy_cost_decides_first(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        one, two = (mechanism(rng.standard_normal((2, 3))) for _ in range(2))
        expected = -1 if one.privacy_cost < two.privacy_cost else 1
        assert dm.compare_privacy(one, two) == expected

    @quick
    @given(profiles, seeds)
    def test_order_of_the_neighbours_is_immaterial(self, a: list[float], seed: int) -> None:
        assert dm.compare_privacy(a, np.random.default_rng(seed).permutation(a)) == 0

    @quick
    @given(st.tuples(profiles, profiles, profiles))
    def test_is_transitive(self, three: tuple[list[float], list[float], list[float]]) -> None:
        a, b, c = three
        if dm.compare_privacy(a, b) <= 0 and dm.compare_privacy(b, c) <= 0:
            assert dm.compare_privacy(a, c) <= 0


class TestTolerance:
    def test_is_relative_to_each_entry(self) -> None:
        for scale in (1e-12, 1.0, 1e12):
            profile = scale * np.array([3.0, 2.0, 1e-6])
            for factors, tol, order in (
                ([1, 1, 1 + 1e-10], 1e-9, 0),
                ([1, 1, 1 + 1e-8], 1e-9, -1),
                ([1 + 1e-10, 1, 0.5], 1e-9, 1),
                ([1, 1, 1 + 1e-8], 1e-7, 0),
                ([1 + 1e-15, 1, 1], 0, -1),
            ):
                assert dm.compare_privacy(profile, profile * factors, tol) == order, (scale, factors, tol)

    @quick
    @given(seeds)
    def test_theorem_4_another_basis_is_equally_private(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        factor = rng.standard_normal((3, 3))
        one = dm.LinearGaussianMechanism(rng.standard_normal((3, 5)), factor @ factor.T + 0.2 * np.eye(3))
        change = np.linalg.qr(rng.standard_normal((3, 3)))[0] * rng.uniform(0.3, 3, 3)
        assert dm.compare_privacy(one, one.rebase(change @ one.query_matrix)) == 0


class TestArguments:
    def test_solutions_mechanisms_and_profiles(self) -> None:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(4), targets=1.0))
        assert dm.compare_privacy(answer, answer.mechanism) == 0
        assert dm.compare_privacy(answer, mechanism(np.eye(4)).profile * 4) == -1

    def test_an_exact_release_is_the_least_private(self) -> None:
        exact = dm.LinearGaussianMechanism(np.eye(2), np.diag([1.0, 0.0]))
        assert dm.compare_privacy(exact, [1e300, 1e300]) == 1
        assert dm.compare_privacy(exact, exact) == 0

    def test_other_neighbours_make_other_lengths(self) -> None:
        swapped = dm.LinearGaussianMechanism(np.eye(3), np.eye(3), dm.neighbours.household(3, 2))
        assert dm.compare_privacy(swapped, [4, 4, 4]) == 0
        with pytest.raises(dm.errors.InvalidInputError, match="same length, got 3 and 2"):
            dm.compare_privacy(swapped, [1, 2])

    def test_refuses_other_arguments(self) -> None:
        for profile in ([1, np.nan], [1, -1], [[1, 2]], []):
            with pytest.raises(dm.errors.InvalidInputError, match="b "):
                dm.compare_privacy([1, 1], profile)
        with pytest.raises(dm.errors.InputTypeError, match="a "):
            dm.compare_privacy("profile", [1])
        with pytest.raises(dm.errors.InvalidInputError, match="tol"):
            dm.compare_privacy([1], [1], tol=-1)
        problem = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
        answer = fast.solve(problem)
        infeasible = dm.judged(problem, 2 * answer.primal, answer.dual)
        with pytest.raises(dm.errors.InfeasibleAnswerError):
            dm.compare_privacy(infeasible, answer)
