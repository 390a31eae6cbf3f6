"""Persons who take part in several steps: every sign counts, and a cost that is proven for all of them."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast

S = dm.strategies
SIZES = st.tuples(st.integers(1, 14), st.integers(1, 5), st.integers(1, 6))


def persons(n: int, times: int, separation: int) -> list[Any]:
    """Return all that persons may add with parts of -1, 0 or 1, at most so many."""
    found = []
    for start in range(n):
        steps = np.arange(start, n, separation)[:times]
        for parts in itertools.product((-1.0, 0.0, 1.0), repeat=len(steps)):
            difference = np.zeros(n)
            difference[steps] = parts
            found.append(difference)
    return found


class TestNeighbours:
    @given(SIZES, st.integers(0, 10**6))
    def test_they_cost_as_much_as_any_person(self, sizes: tuple[int, int, int], seed: int) -> None:
        n, times, separation = sizes
        root = np.random.default_rng(seed).standard_normal((n, n))
        columns = dm.neighbours.sign_patterns(n, times, separation).toarray()
        largest = max(float(np.sum((root @ each) ** 2)) for each in persons(n, times, separation))
        assert np.sum((root @ columns) ** 2, axis=0).max() == pytest.approx(largest, rel=1e-9)
        assert np.unique(columns, axis=1).shape == columns.shape
        first = columns[np.argmax(columns != 0, axis=0), np.arange(columns.shape[1])]
        assert np.all(first == 1) and np.abs(columns).sum(axis=0).max() <= times

    def test_once_is_add_or_remove_and_bad_input_is_refused(self) -> None:
        for separation in (1, 4, 9):
            assert np.array_equal(dm.neighbours.sign_patterns(5, 1, separation).toarray(), np.eye(5))
        for arguments, words in (
            ((0, 1, 1), "n must be"),
            ((4, 0, 1), "times must be"),
            ((4, 1, 0), "separation must be"),
            ((10**12, 1, 1), "1000000000000 non-zero entries are too many"),
            ((10**12, 2, 2, [[1.0, -1.0]]), "non-zero entries are too many"),
            ((1000, 60, 2), "non-zero entries are too many"),
            ((8, 2, 4, [[1.0]]), "signs must be rows of 2 numbers -1 or 1"),
            ((8, 2, 4, [[1.0, 0.5]]), "signs must be rows of 2 numbers -1 or 1"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=words):
                dm.neighbours.sign_patterns(*arguments)

    def test_with_plus_alone_too_little_is_promised(self) -> None:
        """64 prefixes in four epochs: 752.36 where the truth is 1,243.47."""
        asked, plus = dm.workloads.prefix(64), np.ones((1, 4))
        seeming = fast.solve(dm.TotalVariance(asked, neighbours=dm.neighbours.sign_patterns(64, 4, 16, plus)), tol=1e-6)
        true = fast.solve(dm.TotalVariance(asked, neighbours=dm.neighbours.sign_patterns(64, 4, 16)), tol=1e-8)
        assert seeming.objective == pytest.approx(752.363, rel=1e-5)
        assert true.objective == pytest.approx(1243.467, rel=1e-6)
        cost = true.mechanism.participation_cost(4, 16).squared_cost
        assert 1 - 1e-9 <= cost <= 1 + 1e-6


class TestCost:
    @given(SIZES, st.integers(0, 10**6), st.booleans())
    def test_of_a_matrix(self, sizes: tuple[int, int, int], seed: int, positive: bool) -> None:
        n, times, separation = sizes
        rows = np.random.default_rng(seed).uniform(0 if positive else -1, 1, (n + 2, n))
        mechanism = dm.LinearGaussianMechanism(rows, np.eye(n + 2))
        columns = dm.neighbours.sign_patterns(n, times, separation).toarray()
        true = np.sum((rows @ columns) ** 2, axis=0).max()
        cost, exact, lower = mechanism.participation_cost(times, separation)
        assert true <= cost * (1 + 1e-12)  # the matrix product is rounded as well
        assert exact >= positive
        if exact:
            assert cost == pytest.approx(true, rel=1e-6)

    @given(SIZES, st.integers(0, 10**6))
    def test_of_causal_strategies(self, sizes: tuple[int, int, int], seed: int) -> None:
        n, times, separation = sizes
        rng = np.random.default_rng(seed)
        bands = rng.uniform(-0.2, 1, (min(3, n), n))
        bands[0] = 1
        columns = dm.neighbours.sign_patterns(n, times, separation).toarray()
        for mechanism in (S.sqrt_toeplitz(n), S.toeplitz(bands[:, 0], n), S.banded(bands)):
            true = np.sum((mechanism.matrix @ columns) ** 2, axis=0).max()
            cost, exact, lower = mechanism.participation_cost(times, separation)
            assert true <= cost * (1 + 1e-12) and (not exact or cost == pytest.approx(true, rel=1e-9))
        blocks = [
            (np.arange(n) >> height == block).astype(float)
            for height in range(n.bit_length())
            for block in range(n >> height)
        ]
        true = np.sum((np.array(blocks) @ columns) ** 2, axis=0).max()
        cost, exact, lower = S.tree(n).participation_cost(times, separation)
        assert exact and cost == pytest.approx(true, rel=1e-9)

    def test_of_a_thousand_epochs_and_of_streams_by_the_matrix(self) -> None:
        cost, exact, lower = S.toeplitz(S.root_coefficients(500), 1_000_000).participation_cost(1000, 1000)
        one = S.toeplitz(S.root_coefficients(500), 1_000_000).participation_cost(1, 1).squared_cost
        assert exact and cost == pytest.approx(1000 * one, rel=1e-8)  # fewer bands than steps between
        problem = dm.FitnessForUse(dm.workloads.prefix(12), geometry="stream")
        mechanism = fast.solve(problem, tol=1e-6).mechanism
        assert mechanism.participation_cost(3, 4) == mechanism.dense().participation_cost(3, 4)

    @pytest.mark.parametrize("at_least", [False, True])
    def test_what_is_released_exactly_is_refused_by_name(self, at_least: bool) -> None:
        for rows, noise in (
            (np.eye(2), np.ones((2, 2))),
            (np.eye(2), np.diag([1.0, 0.0])),
            ([[1.0, 1.0], [1.0, 1.0 + 1e-14]], np.diag([1.0, 0.0])),
            ([[1.0, 0.0], [1.0, 1e-9]], np.ones((2, 2))),
        ):
            mechanism = dm.LinearGaussianMechanism(rows, noise)
            with pytest.raises(dm.errors.InvalidInputError, match="participation_cost is not finite"):
                mechanism.participation_cost(2, 1, at_least)
        nothing = dm.LinearGaussianMechanism(np.zeros((0, 3)), np.zeros((0, 0)))
        assert nothing.participation_cost(2, 1, at_least) == (0.0, True, 0.0)


def test_a_strategy_of_jax_privacy() -> None:
    """Two epochs of 16 steps each: its strategy is as good as what is proven."""
    dense = pytest.importorskip("jax_privacy.matrix_factorization.dense")
    problem = dm.TotalVariance(dm.workloads.prefix(32), neighbours=dm.neighbours.sign_patterns(32, 2, 16))
    strategy = np.asarray(dense.optimize(32, epochs=2), dtype=np.float64)
    verdict = crosscheck.judge(problem, crosscheck.covariance_of_strategy(problem, strategy))
    assert verdict.scaled.gap < 1e-3


@pytest.mark.parametrize("make", [dm.strategies.sqrt_toeplitz, dm.strategies.tree])
def test_parts_farther_apart_than_all_steps(make: Any) -> None:
    """A person then has one part, and no array has an entry for each step of the separation."""
    mechanism = make(6)
    alone = mechanism.participation_cost(1, 6)
    assert mechanism.participation_cost(3, 2**40) == alone
