"""Privacy costs and variances of mechanisms whose noise is singular or nearly so, against exact fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from elimination import exact_cost, fractions, inverse, solution, times, transposed

import dualmech as dm
from dualmech.validate import Array


def exact_variance(covariance: Array, queries: Array, query: Array) -> Fraction | None:
    """Return ``l Σ l'`` for the l with ``l B = w``, of independent rows B; None where there is none."""
    found = solution(transposed(fractions(queries)), [Fraction(value) for value in query.tolist()])
    if found is None:
        return None
    noise = fractions(covariance)
    return sum((a * noise[i][j] * b for i, a in enumerate(found) for j, b in enumerate(found)), Fraction(0))


def attacked(seed: int) -> tuple[Array, Array]:
    """Return rows, some nearly parallel or of other lengths, and noise in whole numbers, singular or nearly."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 4))
    cells = int(rng.integers(size, 5))
    root = rng.integers(-3, 4, (size, size)).astype(float)
    if size > 1 and rng.random() < 0.5:
        root[-1] = root[0] + 2.0 ** -int(rng.integers(5, 25)) * root[-1]
    noise = root @ root.T
    if rng.random() < 0.3:
        noise = np.outer(root[0], root[0])
    units = 2.0 ** -rng.integers(0, 12, size).astype(float)
    noise = noise * units * units[:, None]
    if not np.any(noise):
        noise = np.eye(size)
    rows = rng.integers(-3, 4, (size, cells)).astype(float)
    if size > 1 and rng.random() < 0.5:
        rows[-1] = rows[0] + 2.0 ** -int(rng.integers(5, 45)) * rows[-1]
    if rng.random() < 0.5:
        off = rng.choice([0, 1]) * 2.0 ** -int(rng.integers(20, 60)) * rng.integers(-1, 2, (size, cells))
        rows = noise @ rng.integers(-2, 3, (size, cells)) + off
    rows[~np.any(rows, axis=1), 0] = 1.0
    return rows, noise


def wrong(seed: int) -> str:
    """Return what a mechanism says that is false: a cost below the truth, a variance off by 1e-6."""
    rows, noise = attacked(seed)
    mechanism = dm.LinearGaussianMechanism(rows, noise)
    for own, move in zip(mechanism.profile.tolist(), rows.T.tolist(), strict=True):
        truth = exact_cost(noise, move)
        if own < math.inf and (truth == math.inf or Fraction(own) < truth):
            return f"seed {seed}: cost {own}, {float(truth)} in truth"
    asked = np.random.default_rng(seed).integers(-2, 3, (2, len(rows))) @ rows
    asked[~np.any(asked, axis=1)] = rows[0]
    try:
        found = mechanism.variances(dm.Workload(asked))
    except dm.errors.InvalidInputError:
        return ""
    for query, said in zip(asked, found.tolist(), strict=True):
        variance = exact_variance(noise, rows, query)
        if variance is not None and abs(Fraction(said) - variance) > variance / 10**6 + Fraction(1, 10**20):
            return f"seed {seed}: variance {said}, {float(variance)} in truth"
    return ""


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_no_cost_is_below_the_truth_and_no_variance_off(first: int) -> None:
    assert not [found for seed in range(first, first + 100) if (found := wrong(seed))]


@pytest.mark.slow
def test_no_cost_is_below_the_truth_and_no_variance_off_in_many_cases() -> None:
    assert not [found for seed in range(300, 4300) if (found := wrong(seed))]


@pytest.mark.parametrize("off", [0.0, 2.0**-52, 2.0**-30])
def test_noise_without_a_direction_costs_infinity_where_that_is_moved(off: float) -> None:
    mechanism: Any = dm.LinearGaussianMechanism([[1.0, 0.0], [1.0 + off, 1.0]], np.ones((2, 2)))
    assert (mechanism.profile[0] == math.inf) == (off > 0) and mechanism.profile[1] == math.inf


def test_costs_in_many_units() -> None:
    noise = np.array([[1.0, 2.0**-30], [2.0**-30, 2.0**-59]])
    mechanism = dm.LinearGaussianMechanism(np.eye(2), noise)
    truth = [exact_cost(noise, move) for move in np.eye(2).tolist()]
    assert all(1 <= Fraction(own) / each < 1 + 1e-12 for own, each in zip(mechanism.profile, truth, strict=True))
    mechanism = dm.LinearGaussianMechanism([[1.0, 0.0], [1.0, 1e-36]], np.eye(2))
    assert np.all(mechanism.standardize().profile >= mechanism.profile)


def dependent(seed: int, least: float) -> tuple[Array, Array]:
    """Return four whole rows on three cells, and noise whose least eigenvalue is so small."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-3, 4, (4, 3)).astype(float)
    rows[~np.any(rows, axis=1), 0] = 1.0
    axes, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    noise = (axes * np.array([least, 0.1, 0.5, 1.0])) @ axes.T
    return rows, (noise + noise.T) / 2


@pytest.mark.parametrize("least", [1.0, 1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("seed", range(8))
def test_dependent_rows_cost_no_less_than_in_fractions(seed: int, least: float) -> None:
    rows, noise = dependent(seed, least)
    mechanism, exact = dm.LinearGaussianMechanism(rows, noise), fractions(rows)
    costs = times(transposed(exact), times(inverse(fractions(noise)), exact))
    persons = [
        sum(a * b * costs[i][j] for i, a in enumerate(signs) for j, b in enumerate(signs))
        for signs in itertools.product((1, -1), repeat=3)
    ]
    every = sum(abs(cost) for row in costs for cost in row)
    for at_least in (False, True):
        told = mechanism.participation_cost(3, 1, at_least)
        assert Fraction(told.lower_bound) <= max(persons) <= Fraction(told.squared_cost) <= every * Fraction(11, 10)
    for rule in ("participation:3:1", "participation:3:1:signs", "participation:3:1:at-least"):
        stated = dm.EpochsMechanism(mechanism, rule).squared_privacy_cost
        assert max(persons) <= Fraction(stated) <= every * Fraction(11, 10)
    for other, parts in ((mechanism.standardize(), 1), (mechanism.compose(mechanism), 2)):
        assert np.array_equal(other.covariance(), np.eye(len(other.query_matrix)))
        for cell, own in enumerate(other.profile.tolist()):
            assert parts * costs[cell][cell] <= Fraction(own) <= parts * costs[cell][cell] * (1 + Fraction(1, 100))


@pytest.mark.parametrize("off", [1e-14, 2.0**-50])
def test_rows_that_differ_where_there_is_no_noise_cost_infinity(off: float) -> None:
    """As mixed rows do by rounding: what stands for them is a mechanism of its own, and states no less."""
    mechanism = dm.LinearGaussianMechanism([[1.0, 1.0], [1.0, 1.0 + off]], np.ones((2, 2)))
    assert mechanism.profile.tolist() == [pytest.approx(1.0), math.inf]
    assert mechanism.compose(mechanism).profile.tolist() == [pytest.approx(2.0), math.inf]
    assert mechanism.standardize().profile.tolist() == [pytest.approx(1.0), math.inf]
    with pytest.raises(dm.errors.InvalidInputError, match="verified to be positive definite"):
        mechanism.participation_cost(2, 1)
    with pytest.raises(dm.errors.InvalidInputError, match="verified to be positive definite"):
        dm.EpochsMechanism(mechanism, "participation:2:1")
    same = dm.LinearGaussianMechanism(np.ones((2, 2)), np.ones((2, 2)))
    assert not same.releases_exactly and same.standardize().squared_privacy_cost == pytest.approx(1.0)
    with pytest.raises(dm.errors.InvalidInputError, match="verified to be positive definite"):
        same.participation_cost(2, 1)
    with pytest.raises(dm.errors.InvalidInputError, match="verified to be positive definite"):
        dm.EpochsMechanism(same, "participation:2:1")
