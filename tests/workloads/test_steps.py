"""Queries by their steps: sums in place of entries, and what is added without any rounding."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech.validate import Array
from dualmech.workloads import steps as by_steps
from dualmech.workloads.steps import Steps, exact_gram, whole_matrix


@pytest.fixture(autouse=True)
def always_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_steps, "MIN_ENTRIES", 0)
    monkeypatch.setattr(by_steps, "MAX_PAIR_FRACTION", np.inf)


def queries(seed: int, count: int, cells: int) -> Array:
    """Return whole numbers, small or large, many of them alike, with an all-zero query now and then."""
    rng = np.random.default_rng(seed)
    entries = np.repeat(rng.integers(-2, 3, (count, cells)), rng.integers(1, 4), axis=1)[:, :cells]
    return np.asarray(entries * 10.0 ** rng.integers(0, 5, (count, 1)) * (rng.random((count, 1)) < 0.9))


def fractions(matrix: Array) -> Any:
    return np.vectorize(Fraction, otypes=[object])(matrix)


sizes = st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 6)


@given(*sizes)
def test_forms_are_within_their_bounds(seed: int, count: int, cells: int) -> None:
    rows = queries(seed, count, cells)
    half = np.random.default_rng(seed).standard_normal((cells, cells)) * 10.0 ** np.arange(cells)
    for matrix in (half @ half.T, np.zeros((cells, cells)), 1e-300 * np.eye(cells), half + half.T):
        steps = Steps.of(rows)
        assert steps is not None and steps.is_whole
        values, off = steps.enclosed_forms(matrix)
        for row, value, allowance in zip(fractions(rows), values, off, strict=True):
            assert abs(row @ fractions(matrix) @ row - Fraction(value)) <= Fraction(allowance)


@given(*sizes)
def test_gram_matrices_are_exact(seed: int, count: int, cells: int) -> None:
    """Of weights that are rounded down, twice, so that nothing to speak of is lost."""
    rows, weights = queries(seed, count, cells), 10.0 ** np.random.default_rng(seed).uniform(-20, 0, count)
    steps = Steps.of(rows)
    assert steps is not None
    whole, written = exact_gram(steps, weights), exact_gram(rows, weights)
    for gram, reach in ((whole, steps.reach), (written, np.abs(rows).max(axis=1) ** 2)):
        kept = np.array([Fraction(0)] * count, dtype=object)
        for _ in range(2):
            left = np.array([float(each) for each in fractions(weights) - kept])
            unit = Fraction(2) ** (int(np.frexp(max(float(left @ reach), by_steps.MIN_TOTAL))[1]) - 52)
            kept = kept + [unit * (Fraction(each) // unit) for each in left.tolist()]
        assert np.all(kept <= fractions(weights))
        expected = (fractions(rows).T * kept) @ fractions(rows)
        assert np.array_equal(fractions(gram.high) + fractions(gram.low), expected) and not np.any(gram.radius)


@given(*sizes)
def test_sums_are_those_of_entries(seed: int, count: int, cells: int) -> None:
    rng = np.random.default_rng(seed)
    rows, weights, matrix = queries(seed, count, cells), rng.random(count), rng.standard_normal((cells, cells))
    steps = Steps.of(0.3 * rows)
    assert steps is not None
    size = np.abs(rows).max(initial=1.0)
    np.testing.assert_allclose(steps.times(matrix), 0.3 * rows @ matrix, atol=1e-12 * size)
    np.testing.assert_allclose(steps.gram(weights), (0.09 * rows.T * weights) @ rows, atol=1e-11 * size**2)
    chosen = steps.chosen(np.array([count - 1]))
    np.testing.assert_allclose(chosen.times(matrix), 0.3 * rows[-1:] @ matrix, atol=1e-12 * size)


@pytest.mark.parametrize("cells", [1, 2, 7])
def test_all_ranges_know_their_steps(cells: int) -> None:
    workload = dm.workloads.all_range(cells)
    known, counted = workload.steps(), Steps.of(workload.dense())
    assert known is not None and counted is not None and known.is_whole
    assert np.array_equal(known.steps.toarray(), counted.steps.toarray())
    assert np.array_equal(known.pairs.toarray(), counted.pairs.toarray())
    assert np.array_equal(known.largest, counted.largest)


def test_infinite_noise_and_rounded_differences_are_not_exact() -> None:
    steps = Steps.of(np.ones((2, 2)))
    assert steps is not None
    with np.errstate(over="ignore"):
        assert all(np.all(part == np.inf) for part in steps.enclosed_forms(np.full((2, 2), 1e308)))
    # The step from 1e-12 to 2^15 is -2^15 in doubles.
    steps = Steps.of(np.array([[1e-12, 2.0**15]]))
    assert steps is not None and np.all(steps.steps.data == np.rint(steps.steps.data)) and not steps.is_whole


@pytest.mark.parametrize("entry", [0.5, 2.0**21, -(2.0**21), 1 + 2.0**-50])
def test_only_whole_numbers_that_are_not_too_large(entry: float) -> None:
    rows = np.array([[1.0, 1.0], [entry, 0.0]])
    assert whole_matrix(rows) is None and whole_matrix(sp.csr_array(rows)) is None
    steps = Steps.of(rows)
    assert steps is not None and not steps.is_whole
    assert whole_matrix(np.ones((2, 2))) is not None and whole_matrix(sp.csr_array(np.eye(2))) is not None
