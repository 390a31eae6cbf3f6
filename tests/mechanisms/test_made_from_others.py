"""Every mechanism made from another, on badly scaled inputs: costs and variances are those of the other, in fractions.

A cost is never below that of the mechanism that it was made from, and a variance is within a millionth, or refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from elimination import Rows, fractions, inverse, times, transposed
from many_digits import stream_root

import dualmech as dm
from dualmech.publishing.combining import LeastSquares
from dualmech.validate import Array

Made = tuple[Any, Rows]
"""A mechanism, and the exact cost matrix that it should have."""

NEARLY_PARALLEL = np.array([[1, 1], [1, 1.0005845655050853]])
HILBERT = 1 / (np.arange(4)[:, None] + np.arange(4) + 1)
TRIANGLE = np.tril(np.ones((4, 4)))

INPUTS: dict[str, tuple[Array, Array]] = {
    "plain": (TRIANGLE, np.diag([1.0, 2.0, 3.0, 4.0])),
    "nearly parallel rows": (NEARLY_PARALLEL, np.diag([1, 3.77e-7])),
    "Hilbert matrix": (HILBERT, np.eye(4)),
    "noise of all sizes": (TRIANGLE, np.diag([1e6, 1e-7, 1.0, 3e-3])),
    "rows of all sizes": (np.array([1e8, 1e-5, 1.0, 3e3])[:, None] * TRIANGLE, np.eye(4)),
    "cells of all sizes": (TRIANGLE * [1e6, 1.0, 1e-6, 3.0], np.eye(4)),
    "correlated noise": (TRIANGLE, HILBERT + 1e-9 * np.eye(4)),
    "a sum told well": (np.vstack([np.eye(4), np.ones((1, 4))]), np.diag([4.0, 4.0, 4.0, 4.0, 4e-13])),
}


def cost_of(queries: Array, covariance: Array) -> Rows:
    """Return ``B' Σ⁻¹ B`` in fractions."""
    rows = fractions(queries)
    return times(transposed(rows), times(inverse(fractions(covariance)), rows))


def added(one: Rows, two: Rows, share: Fraction = Fraction(1)) -> Rows:
    return [[a + share * b for a, b in zip(*pair, strict=True)] for pair in zip(one, two, strict=True)]


def multiple(rows: Rows, share: Fraction) -> Rows:
    return [[share * entry for entry in row] for row in rows]


def check(made: Any, cost: Rows, workload: Array | None = None) -> int:
    """Hold a mechanism against an exact cost matrix; return how many variances are proven."""
    for stated, row, place in zip(np.asarray(made.profile).tolist(), cost, range(len(cost)), strict=True):
        assert np.isinf(stated) or Fraction(stated) >= row[place]
    return check_variances(made, cost, np.eye(len(cost)) if workload is None else workload)


def check_variances(made: Any, cost: Rows, queries: Array) -> int:
    """Hold the variances that a mechanism states against an exact cost matrix; return how many it states."""
    proven, rows = 0, fractions(queries)
    true = times(rows, times(inverse(cost), transposed(rows)))
    for place, query in enumerate(queries):
        with contextlib.suppress(dm.errors.InvalidInputError):
            (variance,) = made.variances(dm.Workload(query[None])).tolist()
            assert abs(Fraction(variance) - true[place][place]) <= true[place][place] / 10**6
            proven += 1
    return proven


def single(name: str) -> tuple[dm.LinearGaussianMechanism, Rows]:
    return dm.LinearGaussianMechanism(*INPUTS[name]), cost_of(*INPUTS[name])


def rebased(mechanism: dm.LinearGaussianMechanism) -> dm.LinearGaussianMechanism:
    cells = mechanism.query_matrix.shape[1]
    return mechanism.rebase(np.eye(cells) + np.tri(cells, k=-1) * 0.3)


TIMES, OTHER = 1 / 3, "plain"

MAKERS: dict[str, Callable[[Any], tuple[Any, Fraction]]] = {
    "rebase to the cells": lambda one: (one.rebase(np.eye(one.query_matrix.shape[1])), Fraction(1)),
    "rebase": lambda one: (rebased(one), Fraction(1)),
    "standardize": lambda one: (one.standardize(), Fraction(1)),
    "scaled": lambda one: (one.scaled(TIMES), 1 / Fraction(TIMES)),
    "dense": lambda one: (one.dense(), Fraction(1)),
    "compose with itself": lambda one: (one.compose(one), Fraction(2)),
    "stack with itself": lambda one: (one.stack(one), Fraction(2)),
    "rebase, then scaled": lambda one: (rebased(one).scaled(TIMES), 1 / Fraction(TIMES)),
    "scaled, then rebase": lambda one: (rebased(one.scaled(TIMES)), 1 / Fraction(TIMES)),
    "scaled twice": lambda one: (one.scaled(TIMES).scaled(TIMES), 1 / Fraction(TIMES) ** 2),
    "rebase, then standardize": lambda one: (rebased(one).standardize(), Fraction(1)),
    "standardize, then rebase": lambda one: (rebased(one.standardize()), Fraction(1)),
    "rebase, then stack": lambda one: (rebased(one).stack(one), Fraction(2)),
    "rebase, then compose": lambda one: (rebased(one).compose(one.standardize()), Fraction(2)),
    "scaled, then compose": lambda one: (one.scaled(TIMES).compose(one), 1 / Fraction(TIMES) + 1),
    "residual": lambda one: (dm.residual(one, one.scaled(4.0)), Fraction(3, 4)),
    "consistent": lambda one: (dm.decomposition(one, one.scaled(4.0)).consistent, Fraction(1)),
}


@pytest.mark.parametrize("name", INPUTS)
def test_on_cells(name: str) -> None:
    original, cost = single(name)
    for maker, make in MAKERS.items():
        try:
            made, share = make(original)
        except dm.errors.DualmechError:
            assert name != "plain", maker
            continue
        # A residual is a mechanism by itself: its variances are those of its own rows.
        proven = (check if maker != "residual" else check_costs)(made, multiple(cost, share))
        assert proven == len(cost) or name != "plain", maker


def check_costs(made: Any, cost: Rows) -> int:
    for stated, row, place in zip(np.asarray(made.profile).tolist(), cost, range(len(cost)), strict=True):
        assert np.isinf(stated) or Fraction(stated) >= row[place]
    return len(cost)


def test_what_a_file_would_understate_is_not_saved(tmp_path: Any) -> None:
    rounded = single("nearly parallel rows")[0].rebase(np.eye(2))
    if np.any(dm.LinearGaussianMechanism(np.eye(2), rounded.covariance()).profile < rounded.profile * (1 - 1e-8)):
        with pytest.raises(dm.errors.InvalidInputError, match="save the original"):
            dm.save(rounded, tmp_path / "noise.npz")
    plain = single("plain")[0].rebase(np.eye(4))
    dm.save(plain, tmp_path / "plain.npz")
    assert dm.load(tmp_path / "plain.npz").rho == pytest.approx(plain.rho, rel=1e-9)


@pytest.mark.parametrize("other", INPUTS)
def test_composed_with_others(other: str) -> None:
    for name in [*INPUTS][: [*INPUTS].index(other) + 1]:
        (one, first), (two, second) = single(name), single(other)
        if len(first) == len(second):
            with contextlib.suppress(dm.errors.InvalidInputError):
                check(one.compose(two.scaled(1e-6)), added(first, second, 1 / Fraction(1e-6)))
            check(one.stack(two), added(first, second))
            with contextlib.suppress(dm.errors.InvalidInputError):
                check(rebased(one).compose(rebased(two)), added(first, second))


# Mechanisms of other structure, written out on the cells.


def table_cost(sizes: tuple[int, ...], levels: dict[tuple[int, ...], float]) -> Rows:
    """Return the cost matrix of independent noise on the residuals of marginal tables, in fractions."""
    cells = int(np.prod(sizes))
    total = [[Fraction(0)] * cells for _ in range(cells)]
    for axes, level in levels.items():
        matrix: Rows = [[1 / Fraction(level)]]
        for axis, size in enumerate(sizes):
            mean = Fraction(1, size)
            factor = [[(Fraction(i == j) - mean if axis in axes else mean) for j in range(size)] for i in range(size)]
            matrix = [[a * b for a in row for b in other] for row in matrix for other in factor]
        total = added(total, matrix)
    return multiple(total, Fraction(cells))


@pytest.mark.parametrize("level", [1e-9, 1e-3, 1.0, 1e3, 1e9])
def test_tables(level: float) -> None:
    domain = dm.Domain({"age": 3, "sex": 2})
    levels: dict[tuple[int, ...], float] = {(): 6.0, (0,): 5.0, (1,): 6.0 * level, (0, 1): 7.0}
    others: dict[tuple[int, ...], float] = {(): 6.0 / level, (0,): 5.0, (1,): 3.0, (0, 1): 7.0 * level}
    first, second = dm.BlockMechanism.of_levels(domain, levels), dm.BlockMechanism.of_levels(domain, others)
    cost, more = table_cost((3, 2), levels), table_cost((3, 2), others)
    assert check(first.dense(), cost) == 6
    check_costs(first.scaled(TIMES).dense(), multiple(cost, 1 / Fraction(TIMES)))
    both = first.compose(second)
    assert Fraction(both.squared_privacy_cost) >= added(cost, more)[0][0]
    assert check(both.dense(), added(cost, more)) == 6
    # (A cell's variance is the same by blocks.)
    variance = inverse(added(cost, more))[0][0]
    assert abs(Fraction(both.variance_of({"age": [1, 0, 0], "sex": [1, 0]})) - variance) <= variance / 10**6


@pytest.mark.parametrize("ratio", [1.0, 1e6, 1e12, 1e16, 1e20])
def test_tables_with_several_classes(ratio: float) -> None:
    """Blocks of several coordinates hold the noise of both, next to each other."""
    domain = dm.Domain({"age": 4, "sex": 2})
    prefixes = dm.workloads.union(domain, {"up to": {"age": dm.workloads.prefix(4), "sex": None}})
    values = dm.workloads.union(domain, {"ages": {"age": None}, "sexes": {"sex": None}})
    first = dm.BlockMechanism.of_tables(prefixes)
    second = dm.BlockMechanism.of_tables(values).scaled(ratio)
    together = first.dense().stack(second.dense())
    try:
        both = first.compose(second)
    except dm.errors.InvalidInputError as error:
        assert "rounding hides" in str(error) and ratio > 1e10
        return
    assert both.squared_privacy_cost >= max(first.squared_privacy_cost, float(np.max(together.profile)) * (1 - 1e-15))
    written = both.dense()
    for queries in (prefixes, values):
        with contextlib.suppress(dm.errors.InvalidInputError):
            true = together.variances(dm.Workload(queries.dense()))
            assert written.variances(dm.Workload(queries.dense())) == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize("correlation", [0.5, 1 - 1e-6, 1 - 1e-12])
def test_products(correlation: float) -> None:
    noises = np.array([[1, correlation], [correlation, 1]]), np.diag([1.0, 1e-8])
    factors = [dm.LinearGaussianMechanism(np.eye(2), noise) for noise in noises]
    one, two = (cost_of(np.eye(2), noise) for noise in noises)
    cost = [[a * b for a in row for b in other] for row in one for other in two]
    written = dm.ProductMechanism(factors).dense()
    assert check(written, cost) == 4 or correlation > 0.9
    check_costs(written.scaled(TIMES), multiple(cost, 1 / Fraction(TIMES)))


def steps() -> Iterator[tuple[str, Any, Rows]]:
    rows, scales, decays = np.array([1e-4, 3.0, 1e5, 0.7]), np.array([3.0, -0.3]), np.array([1.0, 0.7])
    series = np.array([1.0, 0.3, -0.2])
    divisors = [sum(Fraction(a) * Fraction(d) ** i for a, d in zip(scales, decays, strict=True)) for i in range(4)]
    lags = [*map(Fraction, series.tolist()), *[Fraction(0)]]
    scaled = [
        [Fraction(rows[k]) * (lags[k - i] if 0 <= k - i < 4 else 0) / divisors[i] for i in range(4)] for k in range(4)
    ]
    yield "scaled", dm.strategies.scaled_toeplitz(series, rows, scales, decays), times(transposed(scaled), scaled)
    terms = [sum(Fraction(a) * Fraction(d) ** k for a, d in ((0.3, 0.9), (-0.2, 0.4))) for k in range(4)]
    buffered = [[Fraction(k == i) + (terms[k - i - 1] if k > i else 0) for i in range(4)] for k in range(4)]
    yield "buffered", dm.strategies.buffered([0.3, -0.2], [0.9, 0.4], 4), times(transposed(buffered), buffered)
    plain = fractions(dm.strategies.sqrt_toeplitz(4).matrix)
    yield "Toeplitz", dm.strategies.sqrt_toeplitz(4), times(transposed(plain), plain)


@pytest.mark.parametrize("kind", ["scaled", "buffered", "Toeplitz"])
def test_strategies_of_steps(kind: str) -> None:
    ((mechanism, cost),) = [(made, exact) for name, made, exact in steps() if name == kind]
    for made, share in (
        (mechanism, Fraction(1)),
        (mechanism.dense(), Fraction(1)),
        (mechanism.scaled(TIMES), 1 / Fraction(TIMES)),
        (mechanism.rebase(np.eye(4)), Fraction(1)),
        (mechanism.standardize(), Fraction(1)),
        (mechanism.compose(mechanism), Fraction(2)),
        (mechanism.scaled(TIMES).dense(), 1 / Fraction(TIMES)),
    ):
        check(made, multiple(cost, share), np.vstack([np.tril(np.ones((4, 4))), np.eye(4)]))


@pytest.mark.parametrize(("seed", "decay"), [*zip(range(8), [1.0, 0.9] * 4, strict=True)])
def test_running_sums(seed: int, decay: float) -> None:
    rng = np.random.default_rng(seed)
    weights, sums = 10.0 ** rng.uniform(-6, 6, (2, 5))
    mechanism = dm.StreamMechanism(dm.workloads.decayed_sums(5, decay), weights, sums)
    with mpmath.workdps(200):
        root = stream_root(mechanism)
        covariance = root * root.T
        cost = mpmath.inverse(covariance)
        persons = max(
            (signs_of * cost * signs_of.T)[0]
            for signs_of in map(mpmath.matrix, ([[1, 0, s, 0, t]] for s in (1, -1) for t in (1, -1)))
        )
        for made, factor in (
            (mechanism.dense(), 1.0),
            (mechanism.dense().scaled(TIMES), TIMES),
            (mechanism.scaled(TIMES).dense(), TIMES),
            (mechanism.dense().standardize(), 1.0),
            (mechanism.rebase(TRIANGLE_OF_FIVE), 1.0),
            (mechanism.compose(mechanism), 0.5),
        ):
            for place, stated in enumerate(made.profile.tolist()):
                assert stated >= cost[place, place] / mpmath.mpf(factor) * (1 - mpmath.mpf(10) ** -17)
            with contextlib.suppress(dm.errors.InvalidInputError):
                for place, variance in enumerate(made.variances(dm.workloads.identity(5)).tolist()):
                    assert (
                        abs(variance - covariance[place, place] * factor) <= covariance[place, place] * factor / 10**6
                    )
            with contextlib.suppress(dm.errors.InvalidInputError):
                assert made.participation_cost(3, 2).squared_cost >= persons / mpmath.mpf(factor) * (
                    1 - mpmath.mpf(10) ** -17
                )


TRIANGLE_OF_FIVE = np.tril(np.ones((5, 5))) + np.eye(5)


# Releases that are combined.


@pytest.mark.parametrize("ratio", [1.0, 1e6, 1e13, 1e16, 1e18, 1e24])
@pytest.mark.parametrize("orthonormal", [False, True])
def test_combined_releases(ratio: float, orthonormal: bool) -> None:
    """One release of the total, told well, and one of the cells: 4.00003, 3.9375 and 8 were stated for 4.000008."""
    for first, second in ((np.ones((1, 3)), np.eye(3)), (TRIANGLE[:3, :3], np.array([[1.0, -1.0, 0.0], [0, 1, 1]]))):
        noises = (4.0 * np.eye(len(first)) / ratio, 4.0 * np.eye(len(second)) + 0.5)
        cost = added(cost_of(first, noises[0]), cost_of(second, noises[1]))
        try:
            fit = LeastSquares.of([np.zeros((0, 3))], [(first, noises[0]), (second, noises[1])], orthonormal)
        except dm.errors.InvalidInputError:
            assert ratio > 1e12
            continue
        queries = np.vstack([np.eye(3), np.tril(np.ones((3, 3)))])
        check_variances(dm.LinearGaussianMechanism(fit.rows, fit.covariance), cost, queries)
        # What is computed from answers has these variances, too, and no bias.
        estimator, rows = fractions(fit.from_noisy), fractions(np.vstack([first, second]))
        spread = inverse(fractions(fit.rows))
        weights = times(spread, estimator)
        noise = fractions(
            np.block(
                [[noises[0], np.zeros((len(first), len(second)))], [np.zeros((len(second), len(first))), noises[1]]]
            )
        )
        true, actual = inverse(cost), times(weights, times(noise, transposed(weights)))
        identity = times(weights, rows)
        for place in range(3):
            assert actual[place][place] <= true[place][place] * Fraction(1000001, 1000000)
            for other in range(3):
                assert abs(identity[place][other] - (place == other)) <= Fraction(1, 10**9)
