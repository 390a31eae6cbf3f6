"""Variances, covariances and costs that mechanisms tell, of uneven noise on every geometry, against many digits."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from many_digits import Exact, exact, stream_root

import dualmech as dm
from dualmech import fast
from dualmech.accounting import normal_quantile
from dualmech.geometry.blocks import BlockPoint, Blocks
from dualmech.mechanisms import costs, noise
from dualmech.mechanisms.costs import MAX_VARIANCE_ERROR
from dualmech.mechanisms.stream import CHUNK, inverse_root
from dualmech.validate import Array

DIGITS = 200
CELLS = 5


def uneven(rng: np.random.Generator, shape: Any, spread: float) -> Array:
    return np.asarray(10.0 ** rng.uniform(-spread, spread, shape))


def kronecker(one: Exact, two: Exact) -> Exact:
    found = mpmath.matrix(one.rows * two.rows, one.cols * two.cols)
    for i in range(found.rows):
        for j in range(found.cols):
            found[i, j] = one[i // two.rows, j // two.cols] * two[i % two.rows, j % two.cols]
    return found


def positive_definite(rng: np.random.Generator, size: int, spread: float) -> Array:
    """Return a covariance whose eigenvalues, and units, differ."""
    turn = np.linalg.qr(rng.standard_normal((size, size)))[0]
    units = np.ldexp(1.0, rng.integers(-20, 21, size))
    found = (turn * uneven(rng, size, spread / 2)) @ turn.T * units * units[:, None]
    return np.asarray((found + found.T) / 2)


def dense(rng: np.random.Generator, spread: float, size: int = CELLS) -> tuple[Any, Exact]:
    covariance = positive_definite(rng, size, spread)
    return dm.LinearGaussianMechanism(np.eye(size), covariance), exact(covariance)


def on_rows(rng: np.random.Generator, spread: float, size: int = CELLS) -> tuple[Any, Exact]:
    rows, covariance = np.tril(rng.integers(1, 4, (size, size))), positive_definite(rng, size, spread)
    inverse = exact(rows) ** -1
    return dm.LinearGaussianMechanism(rows, covariance), inverse * exact(covariance) * inverse.T


def stream(rng: np.random.Generator, spread: float) -> tuple[Any, Exact]:
    kinds: list[Callable[[int], Any]] = [dm.workloads.prefix, dm.workloads.all_range]
    kinds.append(lambda count: dm.workloads.decayed_sums(count, float(rng.choice([0.5, 0.9, 0.01]))))
    weights = uneven(rng, (2, CELLS), spread)
    made = dm.StreamMechanism(kinds[int(rng.integers(3))](CELLS), weights[0], weights[1], float(uneven(rng, (), 3)))
    return made, stream_root(made) * stream_root(made).T


def causal(rng: np.random.Generator, spread: float) -> tuple[Any, Exact]:
    made = dm.strategies.banded(np.vstack([np.ones(CELLS), rng.uniform(-0.5, 0.5, CELLS)]))
    inverse = exact(made.matrix) ** -1
    return made, inverse * inverse.T


def marginals(rng: np.random.Generator, spread: float) -> tuple[Any, Exact]:
    domain = dm.Domain({"a": 2, "b": 3})
    levels: dict[tuple[int, ...], float] = {axes: float(uneven(rng, (), spread)) for axes in ((), (0,), (1,), (0, 1))}
    total = mpmath.zeros(6)
    for axes, level in levels.items():
        parts = []
        for axis, size in enumerate(domain.shape):
            mean = mpmath.ones(size) / size
            parts.append(mpmath.eye(size) - mean if axis in axes else mean)
        total += kronecker(*parts) * mpmath.mpf(level) / 6
    return dm.BlockMechanism.of_levels(domain, levels), total


def union(rng: np.random.Generator, spread: float) -> tuple[Any, Exact]:
    """Prefixes of one attribute by the values of another: two blocks on the values of the first."""
    geometry = Blocks.of(dm.workloads.union({"a": 3, "b": 2}, {"both": {"a": dm.workloads.prefix(3), "b": "values"}}))
    size = len(geometry.matrix_blocks[0].moves)
    noises = tuple(positive_definite(rng, size, spread / 2) for _ in geometry.matrix_blocks)
    made = dm.BlockMechanism(geometry, BlockPoint(np.ones(len(geometry.keys)), noises))
    total, mean = mpmath.zeros(6), mpmath.ones(2) / 2
    for key, piece in made.pieces.items():
        inverse = exact(piece.moves) ** -1
        own = inverse * exact(piece.covariance) * inverse.T / 2
        total += kronecker(own, mpmath.eye(2) - mean if key else mean)
    return made, total


def product(rng: np.random.Generator, spread: float) -> tuple[Any, Exact]:
    (one, first), (two, second) = dense(rng, spread / 2, 3), on_rows(rng, spread / 2, 3)
    return dm.ProductMechanism([one, two]), kronecker(first, second)


MATRICES = [dense, on_rows, stream, causal]


def true_forms(covariance: Exact, rows: Array) -> list[Any]:
    found = []
    for row in rows.tolist():
        query = mpmath.matrix(row)
        found.append((query.T * covariance * query)[0])
    return found


def check_covariances(told: Array, true: Exact) -> None:
    """Each entry, relative to the two deviations."""
    for i, j in np.ndindex(told.shape):
        assert abs(told[i, j] - true[i, j]) <= MAX_VARIANCE_ERROR * mpmath.sqrt(true[i, i] * true[j, j])


def check(told: Array, true: list[Any], off: float = MAX_VARIANCE_ERROR) -> None:
    for mine, other in zip(np.ravel(told).tolist(), true, strict=True):
        assert abs(mpmath.mpf(mine) - other) <= mpmath.mpf(off) * other


@pytest.mark.parametrize("make", MATRICES)
@given(spread=st.sampled_from([0.0, 3.0, 12.0]), seed=st.integers(0, 10**6))
def test_variances_and_covariances_of_any_queries(make: Any, spread: float, seed: int) -> None:
    """Sums, single cells, differences, real numbers; on a stream the matrix of the cells is refused if it hides one."""
    rng = np.random.default_rng(seed)
    rows = np.vstack([np.tril(np.ones((CELLS, CELLS))), np.eye(CELLS), rng.integers(-2, 3, (4, CELLS))])
    rows = np.vstack([rows[np.any(rows, axis=1)], rng.standard_normal((3, CELLS))])
    with mpmath.workdps(DIGITS):
        mechanism, covariance = make(rng, spread)
        check(mechanism.variances(dm.Workload(rows)), true_forms(covariance, rows))
        rows = np.vstack([rng.integers(-2, 3, (2, CELLS)) + 0.5, np.ones(CELLS), np.eye(CELLS)])
        try:
            told = mechanism.covariance(dm.Workload(rows))
        except dm.errors.InvalidInputError:
            assert make is stream and spread
            return
        check_covariances(told, exact(rows) * covariance * exact(rows).T)


@pytest.mark.parametrize("make", [dense, on_rows])
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_variances_of_more_terms_than_are_proven(make: Any, seed: int) -> None:
    """What doubles leave open is computed in twice the precision; covariances are as accurate."""
    rng = np.random.default_rng(seed)
    rows = np.vstack([np.tril(np.ones((CELLS, CELLS))), np.eye(CELLS)])
    with mpmath.workdps(DIGITS), pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "MAX_VERIFIED_ENTRIES", 0)
        mechanism, covariance = make(rng, 12.0)
        workload = dm.Workload(rows)
        check(mechanism.variances(workload), true_forms(covariance, rows))
        check_covariances(mechanism.covariance(workload), exact(rows) * covariance * exact(rows).T)


@pytest.mark.parametrize("make", [marginals, union])
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_variances_of_tables(make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with mpmath.workdps(DIGITS):
        mechanism, covariance = make(rng, 12.0)
        one, two = (mechanism.domain.shape[axis] for axis in (0, 1))
        for query in ({"a": np.ones(one)}, {"a": np.eye(one)[0], "b": np.eye(two)[1]}, {"b": rng.standard_normal(two)}):
            row = np.kron(query.get("a", np.ones(one)), query.get("b", np.ones(two)))
            with contextlib.suppress(dm.errors.InvalidInputError):  # what cancels on a block is refused
                check(np.array([mechanism.variance_of(query)]), true_forms(covariance, row[None]))


@given(seed=st.integers(0, 10**6))
def test_variances_of_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with mpmath.workdps(DIGITS):
        mechanism, covariance = product(rng, 12.0)
        one, two = rng.integers(-2, 3, 3) + 0.5, rng.standard_normal(3)
        check(np.array([mechanism.variance_of(one, two)]), true_forms(covariance, np.kron(one, two)[None]))


@given(seed=st.integers(0, 10**6))
def test_variances_of_split_noise_are_rounded_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workload = dm.workloads.query_tables({"a": 3, "b": 2}, {"a": dm.workloads.prefix(3)}, ways=2)
    shapes, levels = [positive_definite(rng, size, 6.0) for size in (3, 2)], uneven(rng, 4, 6.0)
    mechanism = dm.SplitMechanism(workload, shapes, levels)
    with mpmath.workdps(DIGITS):
        parts = []
        for shape in shapes:
            whole, ones = exact(shape), mpmath.ones(len(shape), 1)
            total = (ones.T * whole * ones)[0]
            means = whole * ones / total
            parts.append((means, whole - means * means.T * total))
        told = mechanism.variances(["a", "b"])
        for i, j in np.ndindex(*told.shape):
            first, second = mpmath.matrix(np.tril(np.ones((3, 3)))[i].tolist()), mpmath.matrix(np.eye(2)[j].tolist())
            true = mpmath.mpf(0)
            for axes, level in mechanism.noise.items():
                term = mpmath.mpf(level)
                for axis, query in enumerate((first, second)):
                    means, rest = parts[axis]
                    term *= (query.T * rest * query)[0] if axis in axes else (query.T * means)[0] ** 2
                true += term
            assert told[i, j] >= true * (1 - mpmath.mpf(1e-14))


@pytest.mark.parametrize("make", [*MATRICES, marginals, union, product])
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_no_cost_is_told_too_small(make: Any, seed: int) -> None:
    with mpmath.workdps(DIGITS):
        mechanism, covariance = make(np.random.default_rng(seed), 6.0)
        inverse = covariance**-1
        true = max(inverse[cell, cell] for cell in range(inverse.rows))
        assert mechanism.squared_privacy_cost >= true * (1 - mpmath.mpf(1e-15))
        assert mechanism.squared_privacy_cost <= true * (1 + mpmath.mpf(1e-6))


@pytest.mark.parametrize(
    "workload",
    [
        dm.workloads.prefix(16),
        dm.workloads.marginals({"a": 3, "b": 4}, ways=(1, 2)),
        dm.workloads.union({"age": 8, "sex": 2}, {"ages": {"age": dm.workloads.prefix(8)}, "sexes": ["sex"]}),
        dm.workloads.kron(dm.workloads.prefix(4), dm.workloads.prefix(5)),
        dm.workloads.prefix(100),
    ],
    ids=["dense", "marginals", "union", "product", "stream"],
)
def test_the_cost_is_the_requested_one(workload: dm.Workload) -> None:
    """A cost that is above it by rounding alone would be printed as 0.500001 where 0.5 was asked."""
    for problem in (dm.PrivacyFirst(workload, 1.0, cost=1.0), dm.TotalVariance(workload)):
        assert 1 - 1e-9 <= fast.solve(problem).mechanism.squared_privacy_cost <= 1


@given(seed=st.integers(0, 10**6), times=st.integers(1, 3), separation=st.integers(1, 3))
def test_no_participation_is_told_too_cheap(seed: int, times: int, separation: int) -> None:
    rng = np.random.default_rng(seed)
    with mpmath.workdps(DIGITS):
        mechanism, covariance = on_rows(rng, 8.0)
        inverse, most = covariance**-1, mpmath.mpf(0)
        for start in range(CELLS):
            steps = [*range(start, CELLS, separation)][:times]
            most = max(most, sum(abs(inverse[one, two]) for one in steps for two in steps))
        cost = mechanism.participation_cost(times, separation).squared_cost
        assert most <= cost <= most * (1 + mpmath.mpf(1e-6))


@given(seed=st.integers(0, 10**6), epsilon=st.floats(0.1, 25.0))
def test_variances_and_margins_of_local_mechanisms(seed: int, epsilon: float) -> None:
    """At a large ε nearly all of what is added up is taken off again."""
    rng = np.random.default_rng(seed)
    share = 1 / (math.exp(epsilon) + 2)
    strategy = share + (1 - 3 * share) * np.eye(3)
    mechanism = dm.LocalMechanism(strategy, epsilon + 1e-9, dm.workloads.prefix(3))
    responses = rng.integers(1, 1000, 3)
    with mpmath.workdps(60):
        rebuilt, chances = exact(mechanism.reconstruction), exact(mechanism.strategy)
        told, variances = mechanism.margins(responses), mechanism.user_variances
        count = mpmath.mpf(int(responses.sum()))
        for j in range(3):
            answer = sum(rebuilt[j, o] * int(responses[o]) for o in range(3))
            true = sum((rebuilt[j, o] - answer / count) ** 2 * int(responses[o]) for o in range(3))
            assert abs(told[j] - normal_quantile(0.95) * mpmath.sqrt(true)) <= 1e-9 * told[j] + 1e-12 * mpmath.sqrt(
                count
            )
            far = [sum((rebuilt[k, o] - (k >= j)) ** 2 for k in range(3)) for o in range(3)]
            true = sum(chances[o, j] * far[o] for o in range(3))
            assert abs(variances[j] - true) <= 1e-9 * true


class TestStreams:
    TARGETS = (
        *(4.325977931001076, 0.4414215202602308, 0.15983438015347473),
        *(0.19887713483857397, 4.542223589396115, 6.499095194076533),
    )

    def test_sums_are_told_alike_whoever_asks(self) -> None:
        """A matrix of the same rows is not known to be the sums: 0.16707 was told of the third, for 0.15983."""
        problem = dm.FitnessForUse(dm.workloads.prefix(6), targets=self.TARGETS, geometry="stream")
        mechanism = fast.solve(problem).mechanism
        own, other = mechanism.variances(), mechanism.variances(dm.Workload(np.tril(np.ones((6, 6)))))
        np.testing.assert_allclose(other, own, rtol=1e-9)
        assert own[2] == pytest.approx(self.TARGETS[2], rel=1e-6)

    @pytest.mark.parametrize(("count", "tol"), [(150, 1e-6), (40, 1e-10)])
    def test_of_many_uneven_targets(self, count: int, tol: float) -> None:
        targets = 10.0 ** np.random.default_rng(count).uniform(-1, 1, count)
        mechanism = fast.solve(dm.FitnessForUse(dm.workloads.prefix(count), targets), tol=tol).mechanism
        other = mechanism.variances(dm.Workload(np.tril(np.ones((count, count)))))
        np.testing.assert_allclose(other, mechanism.variances(dm.workloads.prefix(count)), rtol=1e-6)

    def test_what_is_said_of_the_rounding_holds(self) -> None:
        """In doubles and in pairs of them, for weights of 64 orders of magnitude."""
        for seed in range(6):
            rng = np.random.default_rng(seed)
            with mpmath.workdps(DIGITS):
                mechanism, covariance = stream(rng, 16.0)
                rows = np.vstack([rng.integers(-2, 3, (6, CELLS)) + 0.0, np.ones((1, CELLS)), np.eye(CELLS)])
                told, off = inverse_root(mechanism).variances(rows, 1e-13)
                for mine, error, true in zip(told.tolist(), off.tolist(), true_forms(covariance, rows), strict=True):
                    assert abs(mpmath.mpf(mine) - true) <= error

    def test_the_noise_written_out_keeps_every_entry(self) -> None:
        """A decomposition of the sums lost all of it at 12 (0.57 of an entry)."""
        for seed, spread in enumerate((1.0, 6.0, 12.0, 12.0, 12.0)):
            with mpmath.workdps(DIGITS):
                mechanism, covariance = stream(np.random.default_rng(seed), spread)
                found = mechanism.covariance()
                for i, j in np.ndindex(CELLS, CELLS):
                    assert abs(mpmath.mpf(found[i, j]) - covariance[i, j]) <= 1e-12 * abs(covariance[i, j])

    def test_more_queries_than_are_taken_together(self) -> None:
        mechanism = dm.StreamMechanism(dm.workloads.prefix(3), np.ones(3), np.ones(3))
        rows = np.tile(np.eye(3), (CHUNK, 1))
        found = mechanism.variances(dm.Workload(rows))
        np.testing.assert_allclose(found, np.tile(np.diagonal(mechanism.covariance()), CHUNK), rtol=1e-12)


def test_rows_that_hardly_differ_noise_that_cancels_and_little_noise() -> None:
    mechanism = dm.LinearGaussianMechanism([[1.0, 1.0], [1.0, 1.0 + 2.0**-50]], np.eye(2))
    for told in (mechanism.variances, mechanism.covariance):
        with pytest.raises(dm.errors.InvalidInputError, match="relative rounding error above"):
            told(dm.Workload([[1.0, 1.0]]))
    geometry = Blocks.of(dm.workloads.union({"a": 3}, {"sums": {"a": dm.workloads.prefix(3)}}))
    nearly = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0 + 1e-13, 0.0], [0.0, 0.0, 1.0]])
    blocks = dm.BlockMechanism(geometry, BlockPoint(np.zeros(0), (nearly,)))
    assert blocks.variance_of({"a": np.eye(3)[0]}) == pytest.approx(1.0)
    with pytest.raises(dm.errors.InvalidInputError, match="relative rounding error above"):
        blocks.variance_of({"a": np.array([1.0, 1.0, 0.0])})
    rounded_up = costs.require_told(np.array([1.0, 1e-8]), np.array([1e-9, 5e-11]), noise=1e-8)
    assert rounded_up.tolist() == [1.0, 1e-8 + 5e-11]
    for off, largest in ((2e-10, 1e-8), (5e-11, 0.0)):  # too much, and of a mechanism that rounds nothing up
        with pytest.raises(dm.errors.InvalidInputError, match="query 1"):
            costs.require_told(np.array([1.0, 1e-8]), np.array([0.0, off]), largest)


@pytest.mark.parametrize(
    "workload",
    [
        dm.workloads.prefix(16),
        dm.workloads.random_range(20, 50, rng=0),
        dm.workloads.marginals({"a": 3, "b": 4}, ways=(1, 2)),
        dm.workloads.union({"age": 8, "sex": 2}, {"ages": {"age": dm.workloads.prefix(8)}, "sexes": ["sex"]}),
        dm.workloads.kron(dm.workloads.prefix(4), dm.workloads.prefix(5)),
        dm.workloads.prefix(300),
    ],
    ids=["dense", "ranges", "marginals", "union", "product", "stream"],
)
@pytest.mark.parametrize("family", [lambda asked: dm.PrivacyFirst(asked, 1.0, cost=1.0), dm.TotalVariance])
def test_what_was_to_be_spent_is_what_is_said_to_be(workload: dm.Workload, family: Any) -> None:
    """A cost that is above it by rounding alone would be printed as 0.500001 where 0.5 was asked."""
    mechanism = fast.solve(family(workload)).mechanism
    assert 1 - 1e-9 <= mechanism.squared_privacy_cost <= 1
