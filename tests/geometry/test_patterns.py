"""Extremal patterns: they generate every private row, and the oracle prices all of them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech.geometry import local
from dualmech.geometry.local import Relaxation

quick = settings(max_examples=24)
seeds = st.integers(0, 10_000)
epsilons = st.sampled_from([0.01, 0.5, 1.0, 4.0, 10.0])


class TestPatterns:
    @given(st.integers(2, 6), epsilons)
    @quick
    def test_are_private_and_sum_to_one(self, size: int, epsilon: float) -> None:
        rows = local.rows(local.all_sets(size), epsilon)
        assert len(rows) == 2**size - 2
        np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-12)
        np.testing.assert_allclose(rows.max(axis=1) / rows.min(axis=1), np.exp(epsilon), rtol=1e-12)

    @given(seeds, st.integers(2, 6), epsilons)
    @quick
    def test_every_private_row_is_a_chain_of_them(self, seed: int, size: int, epsilon: float) -> None:
        rng = np.random.default_rng(seed)
        strategy = 1 + local.gain(epsilon) * rng.integers(0, 4, (3, size)) / 3
        weights, sets = local.split_into_patterns(strategy, epsilon)
        assert np.all(weights > 0) and np.all(sets.any(axis=1)) and not np.any(sets.all(axis=1))
        assert len(weights) <= len(strategy) * (size + 2)
        parts = weights[:, None] * local.rows(sets, epsilon)
        np.testing.assert_allclose(parts.sum(axis=0), strategy.sum(axis=0), rtol=1e-10)

    @given(seeds, st.integers(2, 6), epsilons)
    @quick
    def test_splitting_never_hurts(self, seed: int, size: int, epsilon: float) -> None:
        # Lemma 4: q q' / 1'q of a sum is below the sum of the parts'.
        rng = np.random.default_rng(seed)
        row = 1 + local.gain(epsilon) * rng.random((1, size))
        weights, sets = local.split_into_patterns(row, epsilon)
        rows = local.rows(sets, epsilon)
        difference = (rows.T * weights) @ rows - row.T @ row / row.sum()
        assert np.linalg.eigvalsh(difference)[0] >= -1e-12 * row.sum()

    def test_too_many_are_not_listed(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="size must be at most 20"):
            local.all_sets(21)


def _all_rows(block: local.Priced) -> Any:
    return block.sets(np.arange(block.values.size)).astype(int).tolist()


class TestPricing:
    @given(seeds, st.integers(2, 9), epsilons)
    @quick
    def test_agrees_with_enumeration(self, seed: int, size: int, epsilon: float) -> None:
        rng = np.random.default_rng(seed)
        matrix = rng.standard_normal((size, size))
        matrix = matrix + matrix.T
        worst, allowance = local.worst_by_size(matrix, epsilon)
        sets = np.vstack([np.zeros((1, size), bool), local.all_sets(size), np.ones((1, size), bool)])
        vectors = 1 + local.gain(epsilon) * sets
        values = np.einsum("su,uv,sv->s", vectors, matrix, vectors)
        counts = sets.sum(axis=1)
        expected = [values[counts == count].max() for count in range(size + 1)]
        assert np.abs(worst - expected).max() <= allowance
        assert allowance <= 1e-10 * np.abs(matrix).sum() * np.exp(2 * epsilon)

    @given(seeds, st.integers(2, 9), epsilons)
    @quick
    def test_a_form_that_is_the_same_in_reverse_is_priced_on_half_of_the_sets(
        self, seed: int, size: int, epsilon: float
    ) -> None:
        matrix = np.random.default_rng(seed).standard_normal((size, size))
        matrix = matrix + matrix.T
        matrix = matrix + matrix[::-1, ::-1]
        rounded = matrix * (1 + 1e-16 * np.arange(size))
        rounded = (rounded + rounded.T) / 2
        worst, allowance = local.worst_by_size(rounded, epsilon)
        every = {tuple(row) for block in local.forms(matrix, epsilon) for row in _all_rows(block)}
        half = [tuple(row) for block in local.forms(matrix, epsilon, mirrored=True) for row in _all_rows(block)]
        assert len(half) == len({*half}) and {*half, *(row[::-1] for row in half)} == every
        vectors = 1 + local.gain(epsilon) * np.array([*every])
        values, counts = np.einsum("su,uv,sv->s", vectors, matrix, vectors), np.array([*every]).sum(axis=1)
        expected = [values[counts == count].max() for count in range(size + 1)]
        assert np.abs(worst - expected).max() <= allowance
        single = max(block.values.max() for block in local.forms(matrix, epsilon, single=True))
        assert abs(single - values.max()) <= 1e-6 * (1 + local.gain(epsilon)) ** 2 * np.abs(matrix).sum()

    def test_blocks_name_their_sets(self) -> None:
        matrix = np.diag(np.arange(1.0, 8))
        for block in local.forms(matrix, 1.0):
            chosen = np.arange(block.values.size)
            vectors = 1 + local.gain(1.0) * block.sets(chosen)
            np.testing.assert_allclose(block.values.ravel(), vectors**2 @ np.arange(1.0, 8), rtol=1e-12)
            np.testing.assert_array_equal(block.sizes.ravel(), block.sets(chosen).sum(axis=1))

    def test_single_precision_allows_for_itself_and_too_many_are_refused(self) -> None:
        rng = np.random.default_rng(0)
        matrix = rng.standard_normal((25, 25))
        worst, allowance = local.worst_by_size(matrix + matrix.T, 0.1)
        # Sets of one or of all but one member are few enough to be listed.
        for count, sets in ((1, np.eye(25)), (24, 1 - np.eye(25))):
            vectors = 1 + local.gain(0.1) * sets
            exact = np.einsum("su,uv,sv->s", vectors, matrix + matrix.T, vectors).max()
            assert abs(worst[count] - exact) <= allowance
        with pytest.raises(dm.errors.InvalidInputError, match="up to 32 user types"):
            local.worst_by_size(np.eye(33), 1.0)


class TestRelaxation:
    @given(seeds, st.integers(2, 7), epsilons)
    @quick
    def test_bounds_every_proper_subset(self, seed: int, size: int, epsilon: float) -> None:
        rng = np.random.default_rng(seed)
        multipliers = Relaxation.of(
            size,
            rng.standard_normal(size),
            both=rng.random((size, size)),
            one=rng.random((size, size)),
            neither=rng.random((size, size)),
            sizes=rng.random(max(size - 2, 0)),
            products=rng.random((4, size)),
        )
        sets = local.all_sets(size)
        lifted = np.hstack([np.ones((len(sets), 1)), sets])
        values = np.einsum("su,uv,sv->s", lifted, multipliers.matrix(), lifted)
        assert values.min() >= -1e-9 * np.abs(multipliers.matrix()).sum()
        matrix = rng.standard_normal((size, size))
        matrix = matrix + matrix.T
        divisors = (size + local.gain(epsilon) * np.arange(size + 1.0)) ** 2
        excess = multipliers.excess(matrix, epsilon, divisors)
        worst, _ = local.worst_by_size(matrix, epsilon)
        assert excess >= (worst / divisors)[1:-1].max()

    def test_bad_multipliers_are_refused_or_cut(self) -> None:
        assert Relaxation.of(3, both=-np.ones((3, 3))).both.max() == 0
        with pytest.raises(dm.errors.InvalidInputError, match=r"both must have shape \(3, 3\)"):
            Relaxation.of(3, both=np.ones((2, 2)))
        with pytest.raises(dm.errors.InvalidInputError, match="squares must be finite"):
            Relaxation.of(2, np.array([np.nan, 0]))
