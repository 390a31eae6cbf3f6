"""Mechanisms on their grids: exact costs by another way, what is drawn without noise, and how little the grid adds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.stats
from elimination import inverse, times, transposed
from releases import no_noise, rounded_gaussian

import dualmech as dm
from dualmech import fast
from dualmech.publishing.dense import DrawnRows
from dualmech.publishing.products import DrawnProduct, DrawnSplit
from dualmech.publishing.release import as_drawn
from dualmech.publishing.tables import DrawnTables

RNG = np.random.default_rng(5)
DOMAIN = dm.Domain({"age": 6, "sex": 2, "hours": 5})
UNION = dm.workloads.union(
    DOMAIN,
    {
        "ages": {"age": dm.workloads.prefix(6)},
        "cells": ["age", "sex"],
        "hours": {"hours": dm.Workload([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]), "sex": None},
    },
)
WAYS = dm.workloads.marginals(DOMAIN, ways=(1, 2))
MATRICES = {
    "prefix": dm.workloads.prefix(12),
    "tall": dm.Workload(RNG.integers(0, 3, (20, 6))),
    "wide": dm.Workload(RNG.integers(0, 2, (3, 9))),
    "dependent": dm.Workload([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]]),
    "one row": dm.Workload([[1, 1, 1]]),
    "one column": dm.Workload([[1.0], [2.0]]),
    "tenths": dm.Workload(0.1 * RNG.integers(0, 4, (4, 8))),
    "scaled": dm.Workload(np.diag([1e-3, 1.0, 1e3]) @ np.tril(np.ones((3, 3)))),
}


def solved(problem: Any, tol: float = 1e-6) -> Any:
    return fast.solve(problem, tol=tol).mechanism


def costs_no_more(drawn: Any, planned: Any, rel: float = 4e-6) -> float:
    """Return the exact cost of what is drawn: never above the planned one, and below by a share of it at most."""
    cost = drawn.squared_privacy_cost
    assert Fraction(planned.squared_privacy_cost) >= cost
    assert float(cost) == pytest.approx(planned.squared_privacy_cost, rel=rel)
    return float(cost)


class TestRows:
    @pytest.mark.parametrize("neighbours", [None, "replace", "add-remove:3"])
    def test_costs_less_than_planned_and_by_a_hair(self, neighbours: str | None) -> None:
        for name, asked in MATRICES.items():
            if neighbours == "replace" and name in ("one row", "one column"):  # nothing that replacing changes
                continue
            targets = 1e6 if name == "scaled" else 1.0
            mechanism = solved(dm.FitnessForUse(asked, targets, neighbours=neighbours), 1e-3)
            drawn = DrawnRows(mechanism)
            cost = costs_no_more(drawn, mechanism)
            assert drawn.mechanism.squared_privacy_cost == pytest.approx(cost, rel=4e-6), name
            planned, found = mechanism.variances(asked), drawn.mechanism.variances(asked)
            noisy = found > 1e-9 * found.max()  # what replacing does not change is released as it is
            assert np.all(found[noisy] >= planned[noisy] * (1 - 1e-9)), name
            assert np.allclose(found[noisy], planned[noisy], rtol=4e-6), name
            assert neighbours == "replace" or np.all(noisy), name
            x = np.arange(asked.shape[1]) * 1000 + 7
            returned = drawn.estimate(drawn.draw(x, no_noise), asked)
            assert np.allclose(returned, asked.apply(x), rtol=1e-9, atol=1e-6), name

    def test_a_cost_by_hand(self) -> None:
        """Noise of variance 4 on two cells: F is a half less 1e-6, on a grid of 2^-21: 20 bits."""
        drawn = DrawnRows(dm.LinearGaussianMechanism(np.eye(2), 4 * np.eye(2)))
        entry = round(0.5 * (1 - 1e-6) * 2**21)
        assert drawn.integer_rows.tolist() == [[entry, 0], [0, entry]] and drawn.exponents.tolist() == [21, 21]
        assert drawn.squared_privacy_cost == Fraction(entry, 2**21) ** 2 < Fraction(1, 4)

    def test_the_whole_matrix_is_what_costs_are_of(self) -> None:
        drawn = DrawnRows(solved(dm.FitnessForUse(dm.workloads.prefix(5), 1.0)))
        rows = [
            [Fraction(int(entry), 2 ** int(exponent)) for entry in row]
            for row, exponent in zip(drawn.integer_rows, drawn.exponents, strict=True)
        ]
        assert max(sum(row[cell] ** 2 for row in rows) for cell in range(5)) == drawn.squared_privacy_cost

    def test_what_neighbours_share_is_exact_and_costs_nothing(self) -> None:
        asked = dm.workloads.prefix(6)
        drawn = DrawnRows(solved(dm.FitnessForUse(asked, 1.0, neighbours="replace")))
        assert drawn.exact == 1 and not np.any(drawn.basis[0] - drawn.basis[0, 0])
        x = np.array([5, 0, 3, 2, 1, 1])
        found = drawn.estimate(drawn.draw(x, rounded_gaussian(0)), asked)
        assert abs(found[-1] - 12) < 1e-9 and abs(found[0] - 5) > 1e-6
        exact = dm.LinearGaussianMechanism([[1, 0], [0, 1]], [[1, 0], [0, 0]])
        with pytest.raises(dm.errors.InvalidInputError, match="some it releases exactly"):
            DrawnRows(exact)

    def test_counts_beyond_64_bits_are_added_without_wrapping(self) -> None:
        drawn = DrawnRows(dm.LinearGaussianMechanism(np.eye(2), 1e-4 * np.eye(2)))
        x = np.array([2.0**53, 2.0**53 - 1])
        found = drawn.draw(x, no_noise)
        assert np.allclose(found, x, rtol=1e-15)
        for wrong in ([0.5, 1], [2.0**54, 0], [np.nan, 0], [1, 2, 3]):
            with pytest.raises(dm.errors.DualmechError, match="records must"):
                drawn.draw(wrong, no_noise)

    def test_noise_has_the_covariance_that_is_said(self) -> None:
        asked = dm.workloads.prefix(3)
        drawn = DrawnRows(solved(dm.FitnessForUse(asked, 4.0)))
        noise = rounded_gaussian(1)
        draws = np.array([drawn.estimate(drawn.draw([1, 2, 3], noise), asked) for _ in range(4000)])
        expected = drawn.mechanism.covariance(asked)
        assert np.allclose(draws.mean(axis=0), [1, 3, 6], atol=0.2)
        assert np.allclose(np.cov(draws.T), expected, atol=0.12 * expected.max())


class TestTables:
    @pytest.mark.parametrize(
        ("asked", "neighbours"),
        [
            *((UNION, each) for each in (None, "add-remove:3", "contributions:age:2:2", "replace within age")),
            *((WAYS, each) for each in ("replace", "replace:2", "replace within sex")),
        ],
    )
    def test_blocks_against_the_matrix(self, asked: Any, neighbours: str | None) -> None:
        problem = dm.FitnessForUse(asked, 1.0, neighbours=neighbours, geometry="blocks")
        mechanism = solved(problem, 1e-4)
        drawn = DrawnTables(mechanism)
        cost = costs_no_more(drawn, mechanism)
        assert drawn.mechanism.dense().squared_privacy_cost == pytest.approx(cost, rel=1e-9)
        records = np.random.default_rng(0).integers(0, DOMAIN.shape, (300, 3))
        counts = dm.records.count(records, mechanism.needed_tables)
        measured = drawn.draw(counts, no_noise)
        whole = dm.records.count(records, dm.workloads.marginals(DOMAIN, ways=3))[0, 1, 2]
        names = asked.table_names if asked is UNION else asked.sets
        found = np.concatenate([drawn.estimate(measured, name).ravel() for name in names])
        assert np.allclose(found, asked.matrix @ whole.ravel(), atol=1e-8)

    def test_noise_has_the_variances_that_are_said(self) -> None:
        mechanism = solved(dm.FitnessForUse(UNION, 1.0, geometry="blocks"), 1e-3)
        drawn, noise = DrawnTables(mechanism), rounded_gaussian(2)
        zero = {axes: np.zeros([DOMAIN.shape[axis] for axis in axes]) for axes in mechanism.needed_tables.axes}
        draws = [drawn.draw(zero, noise) for _ in range(400)]
        for name in UNION.table_names:
            errors = np.array([drawn.estimate(each, name) for each in draws])
            ratio = (errors**2).mean(axis=0) / drawn.mechanism.variances(name)
            assert ratio.mean() == pytest.approx(1, abs=0.15), name

    def test_waves_are_refused_or_drawn_on_the_matrix(self) -> None:
        hours = dm.workloads.union({"hour": 6}, {"runs": {"hour": dm.workloads.circular_ranges(6)}})
        mechanism = solved(dm.FitnessForUse(hours, 1.0))
        with pytest.raises(dm.errors.InvalidInputError, match="not of Fourier modes"):
            DrawnTables(mechanism)
        assert isinstance(as_drawn(mechanism), DrawnRows)


class TestProductsAndSplits:
    def test_products(self) -> None:
        asked = dm.workloads.kron(dm.workloads.prefix(5), dm.Workload([[1, 1, 0], [0, 1, 1]]))
        for target in (1.0, 1e-6, 1e6):
            mechanism = solved(dm.FitnessForUse(asked, target, geometry="product"))
            drawn = DrawnProduct(mechanism)
            cost = costs_no_more(drawn, mechanism, rel=1e-4)
            assert drawn.mechanism.dense().squared_privacy_cost == pytest.approx(cost, rel=1e-9)
            x = np.arange(15).reshape(5, 3)
            assert np.allclose(drawn.estimate(drawn.draw(x, no_noise), asked), asked.apply(x.ravel()), atol=1e-7)

    def test_splits(self) -> None:
        sizes = {"age": 7, "hours": 5, "sex": 2}
        queries = {"age": dm.workloads.prefix(7), "hours": dm.workloads.prefix(5)}
        asked = dm.workloads.query_tables(sizes, queries, ways=2)
        counts = dm.records.count(np.random.default_rng(0).integers(0, [7, 5, 2], (90, 3)), asked.tables)
        truth = np.cumsum(np.cumsum(counts[0, 1], axis=0), axis=1)
        for target in (1.0, 1e-6, 1e6):
            mechanism = solved(dm.FitnessForUse(asked, target, geometry="split"), 0.1)
            drawn = DrawnSplit(mechanism)
            cost = costs_no_more(drawn, mechanism, rel=1e-4)
            assert drawn.mechanism.dense().squared_privacy_cost == pytest.approx(cost, rel=1e-9)
            assert np.allclose(drawn.mechanism.variances(asked), mechanism.variances(asked), rtol=0.02)
            found = drawn.estimate(drawn.draw(counts, no_noise), ("age", "hours"))
            assert np.allclose(found, truth, atol=1e-7)

    def test_too_many_factors_for_64_bits_are_refused(self) -> None:
        factors = [dm.LinearGaussianMechanism(np.eye(2), [[1, 0.3], [0.3, 1]])] * 12
        with pytest.raises(dm.errors.InvalidInputError, match="grids has only"):
            DrawnProduct(dm.ProductMechanism(factors))


class TestSampler:
    """The four traps of the sampler, and its distribution."""

    def draw(self) -> Any:
        pytest.importorskip("opendp")
        from dualmech.publishing.drawing import discrete_gaussian

        return discrete_gaussian

    def test_no_deviation_publishes_the_data_or_leaves_64_bits(self) -> None:
        draw = self.draw()
        for wrong in (0.0, -1.0, 2.0**57, float("inf"), float("nan")):
            with pytest.raises(dm.errors.InvalidInputError, match="noise must have a deviation above 0"):
                draw(wrong, 3)
        largest = draw(2.0**56, 1000)
        assert max(abs(each) for each in largest.tolist()) < 2**62

    def test_chi_square(self) -> None:
        """A right sampler fails once in a billion runs: it cannot be seeded."""
        draws, deviation = self.draw()(2.0, 20_000).astype(np.int64), 2.0
        edge = 8
        support = np.arange(-40, 41)
        weights = np.exp(-(support**2) / (2 * deviation**2))
        chances = weights / weights.sum()
        inner = np.abs(support) < edge
        expected = np.concatenate([[chances[support <= -edge].sum()], chances[inner], [chances[support >= edge].sum()]])
        seen = np.bincount(np.clip(draws, -edge, edge) + edge, minlength=2 * edge + 1)
        statistic = float(((seen - 20_000 * expected) ** 2 / (20_000 * expected)).sum())
        assert scipy.stats.chi2.sf(statistic, len(expected) - 1) > 1e-9

    def test_draws_differ_from_run_to_run(self) -> None:
        draw = self.draw()
        assert draw(2.0**30, 20).tolist() != draw(2.0**30, 20).tolist() and draw(1.0, 0).tolist() == []

    @pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
    def test_covariance_of_small_releases(self, count: int) -> None:
        draw, asked = self.draw(), dm.workloads.prefix(3)
        drawn = DrawnRows(solved(dm.FitnessForUse(asked, 4.0)))
        found = np.array([drawn.estimate(drawn.draw([1, 2, 3], draw), asked) for _ in range(count)]) - [1, 3, 6]
        expected = drawn.mechanism.covariance(asked)
        spread = np.sqrt((expected**2 + np.outer(np.diagonal(expected), np.diagonal(expected))) / count)
        assert np.all(np.abs(found.T @ found / count - expected) < 7 * spread)


def test_variances_are_those_of_the_noise_that_is_drawn() -> None:
    """Of a difference whose noise is a small share of both answers' own, from the whole numbers in fractions."""
    for rest in (1e-2, 1e-7, 1e-9, 1e-10, 1e-11):
        try:
            drawn = DrawnRows(dm.LinearGaussianMechanism(np.eye(2), [[1, 1 - rest], [1 - rest, 1]]))
        except dm.errors.InvalidInputError:
            assert rest < 1e-9
            continue
        pairs = zip(drawn.factor, drawn.exponents, strict=True)
        factor = inverse([[Fraction(int(entry)) / 2 ** int(exponent) for entry in row] for row, exponent in pairs])
        noise = times(factor, transposed(factor))
        true = noise[0][0] - 2 * noise[0][1] + noise[1][1]
        (stated,) = drawn.mechanism.variances(dm.Workload([[1, -1]])).tolist()
        assert abs(Fraction(stated) - true) <= true / 10**6
