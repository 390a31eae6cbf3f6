"""The laws of query weighting, on random points: every one holds for any weights and any dual weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dualmech as dm
from dualmech import fast
from dualmech.validate import Array

quick = settings(max_examples=15)
seeds = st.integers(0, 10_000)
ROUNDING = 1e-9
"""Relative; the points drawn below are well conditioned, so that nothing but a bug reaches this."""


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def orthogonal(size: int, rng: np.random.Generator) -> Array:
    return np.asarray(np.linalg.qr(rng.standard_normal((size, size)))[0])


@dataclass(frozen=True)
class Point:
    """A problem with feasible weights and any dual weights."""

    problem: dm.QueryWeighting
    weights: Array
    dual: Array

    @property
    def matrix(self) -> Array:
        return self.problem.workload.dense()

    @property
    def judged(self) -> dm.Certificate:
        return self.problem.certify(self.weights, self.dual)

    def restated(self, matrix: Array, design: Array) -> dm.QueryWeighting:
        return dm.QueryWeighting(dm.Workload(matrix), design, self.problem.privacy)


@st.composite
def points(draw: st.DrawFn, independent: bool = False) -> Point:
    cells = draw(st.integers(1, 5))
    queries = draw(st.integers(1, cells if independent else 7))
    design = draw(arrays(np.float64, (queries, cells), elements=st.integers(-2, 2).map(float)))
    rank = np.linalg.matrix_rank(design)
    assume(rank > 0 and (rank == queries or not independent))
    rng = draws(draw(seeds))
    matrix = rng.integers(-2, 3, (draw(st.integers(1, 5)), queries)) @ design
    assume(np.any(matrix))
    problem = dm.QueryWeighting(dm.Workload(matrix), design, draw(st.sampled_from(["approximate", "pure"])))
    weights = problem.feasible(rng.uniform(0.1, 1, queries))
    return Point(problem, weights, rng.uniform(0, 1, cells))


def agree(one: dm.Certificate, two: dm.Certificate, factor: float = 1.0) -> None:
    """Both sides of `two` are those of `one` times a factor, and both points are feasible."""
    assert one.feasible and two.feasible
    assert two.objective == pytest.approx(factor * one.objective, rel=ROUNDING)
    assert two.lower_bound == pytest.approx(factor * one.lower_bound, rel=ROUNDING, abs=1e-12 * factor)


class TestDefinition:
    """The judge's two numbers, computed here another way."""

    @quick
    @given(points())
    def test_objective_and_bound(self, point: Point) -> None:
        problem, p = point.problem, point.problem.power
        columns = point.matrix @ np.linalg.pinv(problem.design)
        costs = np.where(np.abs(columns).max(axis=0) > 1e-9, (columns**2).sum(axis=0), 0.0)
        np.testing.assert_allclose(problem.costs, costs, rtol=1e-9)
        assert point.judged.objective == pytest.approx((costs / point.weights**p).sum(), rel=ROUNDING)
        shares = point.dual / point.dual.sum()
        reach = (problem.design**2 if p == 1 else np.abs(problem.design)) @ shares
        bound = np.sqrt(costs * reach).sum() ** 2 if p == 1 else np.cbrt(costs * reach**2).sum() ** 3
        assert point.judged.lower_bound == pytest.approx(bound, rel=ROUNDING)

    @quick
    @given(points())
    def test_the_strategy_attains_at_most_the_objective(self, point: Point) -> None:
        strategy = point.problem.strategy(point.weights)
        spread = point.matrix @ np.linalg.pinv(strategy)
        error = point.problem.strategy_error(point.weights)
        assert error == pytest.approx((spread**2).sum(), rel=1e-7)
        assert error <= point.judged.objective * (1 + ROUNDING)
        if point.problem.geometry.independent:
            assert error == pytest.approx(point.judged.objective, rel=ROUNDING)

    @quick
    @given(points())
    def test_the_mechanism_is_the_strategy(self, point: Point) -> None:
        assume(point.problem.privacy == "approximate")
        mechanism = point.problem.mechanism(point.weights)
        assert mechanism.squared_privacy_cost == pytest.approx(1, rel=1e-7)
        variances = mechanism.variances(point.problem.workload)
        assert variances.sum() == pytest.approx(point.problem.strategy_error(point.weights), rel=1e-7)

    @quick
    @given(points(), st.floats(1.001, 100))
    def test_violation_is_the_relative_excess_of_the_sensitivity(self, point: Point, factor: float) -> None:
        judged = point.problem.certify(factor * point.weights, point.dual)
        assert judged.violation == pytest.approx(factor - 1, rel=1e-6)
        assert not judged.feasible and judged.gap == np.inf

    @quick
    @given(points(), st.floats(1e-6, 1e6))
    def test_feasible_spends_exactly_one(self, point: Point, factor: float) -> None:
        np.testing.assert_allclose(point.problem.feasible(factor * point.weights), point.weights, rtol=1e-12)


class TestWeakDuality:
    @quick
    @given(points())
    def test_any_dual_weights_bound_any_feasible_weights(self, point: Point) -> None:
        judged = point.judged  # CertificateError if the bound were above
        assert judged.lower_bound <= judged.objective * (1 + judged.resolution)

    @quick
    @given(points(), st.floats(1e-12, 1e12))
    def test_scale_of_the_dual_weights_is_immaterial(self, point: Point, factor: float) -> None:
        agree(point.judged, point.problem.certify(point.weights, factor * point.dual))

    @quick
    @given(points(), seeds)
    def test_the_root_of_the_bound_is_concave_in_shares(self, point: Point, seed: int) -> None:
        one, two = point.dual / point.dual.sum(), draws(seed).dirichlet(np.ones(len(point.dual)))

        def root(dual: Array) -> float:
            return point.problem.certify(point.weights, dual).lower_bound ** (1 / (point.problem.power + 1))

        assert root((one + two) / 2) >= (root(one) + root(two)) / 2 * (1 - ROUNDING)

    @quick
    @given(points())
    def test_both_sides_meet(self, point: Point) -> None:
        answer = fast.solve(point.problem, tol=1e-8)  # At 1e-9 rounding may hide more.
        assert answer.status is dm.Status.CERTIFIED
        assert point.problem.certify(point.weights, answer.dual).feasible
        assert point.problem.certify(answer.primal, point.dual).feasible


class TestScalingLaws:
    @quick
    @given(points(), st.floats(1e-6, 1e6))
    def test_workload_times_t(self, point: Point, t: float) -> None:
        other = point.restated(t * point.matrix, point.problem.design)
        agree(point.judged, other.certify(point.weights, point.dual), t**2)

    @quick
    @given(points(), st.floats(1e-6, 1e6))
    def test_design_times_t(self, point: Point, t: float) -> None:
        """``A = diag(√u) Q``, or ``diag(u) Q``: a longer query gets a smaller weight, to the same effect."""
        other = point.restated(point.matrix, t * point.problem.design)
        scale = t ** (2 / point.problem.power)
        agree(point.judged, other.certify(point.weights / scale, point.dual))

    @quick
    @given(points(independent=True), seeds)
    def test_units_of_independent_design_queries_are_immaterial(self, point: Point, seed: int) -> None:
        units = 10 ** draws(seed).uniform(-4, 4, len(point.weights))
        other = point.restated(point.matrix, point.problem.design * units[:, None])
        agree(point.judged, other.certify(point.weights / units ** (2 / point.problem.power), point.dual))


class TestSymmetries:
    @quick
    @given(points(), seeds)
    def test_order_and_sign_of_cells(self, point: Point, seed: int) -> None:
        rng, cells = draws(seed), len(point.dual)
        order, signs = rng.permutation(cells), rng.choice([-1.0, 1.0], cells)
        other = point.restated(point.matrix[:, order] * signs, point.problem.design[:, order] * signs)
        agree(point.judged, other.certify(point.weights, point.dual[order]))

    @quick
    @given(points(), seeds)
    def test_order_and_sign_of_design_queries(self, point: Point, seed: int) -> None:
        rng, queries = draws(seed), len(point.weights)
        order, signs = rng.permutation(queries), rng.choice([-1.0, 1.0], (queries, 1))
        other = point.restated(point.matrix, point.problem.design[order] * signs)
        agree(point.judged, other.certify(point.weights[order], point.dual))

    @quick
    @given(points(), seeds)
    def test_orthogonal_mixtures_of_the_queries(self, point: Point, seed: int) -> None:
        """Only ``W'W`` matters."""
        mixed = orthogonal(len(point.matrix), draws(seed)) @ point.matrix
        other = point.restated(mixed, point.problem.design)
        agree(point.judged, other.certify(point.weights, point.dual))


class TestDesigns:
    def test_a_design_query_that_serves_nothing_has_weight_zero(self) -> None:
        problem = dm.QueryWeighting(dm.Workload([[1.0, 1, 0]]), [[1, 1, 0], [0, 0, 1], [0, 0, 0]])
        answer = fast.solve(problem)
        np.testing.assert_array_equal(problem.costs[1:], 0)
        np.testing.assert_allclose(answer.primal, [1, 0, 0])
        assert answer.mechanism.query_matrix.shape == (1, 3)

    def test_more_design_queries_can_be_worse(self) -> None:
        """The first seed of a search: a fifth query of the same cells changes Q⁺, and proves the optimum higher.

        Program 1 answers by ``W Q⁺``, which spreads the answer over dependent queries whatever their weights.
        Least squares from the strategy can use the fifth query, or not.
        """
        for seed in range(10):
            rng = draws(seed)
            workload, more = dm.Workload(rng.standard_normal((4, 4))), rng.standard_normal((1, 4))
            few = fast.solve(dm.QueryWeighting(workload, np.eye(4)), tol=1e-9)
            many = fast.solve(dm.QueryWeighting(workload, np.vstack([np.eye(4), more])), tol=1e-9)
            if many.lower_bound > few.objective * (1 + 1e-6):
                break
        assert seed == 0 and many.lower_bound > 1.05 * few.objective
        best = fast.solve(dm.TotalVariance(workload)).lower_bound
        assert best <= many.problem.strategy_error(many.primal) < many.objective

    def test_the_choice_of_eigenvectors_matters_where_eigenvalues_coincide(self) -> None:
        """Rotating two eigenvectors of the eigenvalue 1 moves the optimum: it is not a function of W alone."""
        vectors = orthogonal(4, draws(0))
        workload = dm.Workload(np.sqrt([4, 1, 1, 0.25])[:, None] * vectors)
        cosine, sine = np.cos(np.pi / 3), np.sin(np.pi / 3)
        turned = vectors.copy()
        turned[1:3] = [[cosine, sine], [-sine, cosine]] @ vectors[1:3]
        one, two = (fast.solve(dm.QueryWeighting(workload, rows), tol=1e-9) for rows in (vectors, turned))
        assert two.objective * (1 + 5e-4) < one.lower_bound


class TestPrices:
    @quick
    @given(points())
    def test_they_are_the_derivatives_of_the_bound(self, point: Point) -> None:
        prices, h = point.problem.prices(dm.duals.WeightingDual(point.dual)), 1e-5
        assert prices.sum() == pytest.approx(1) and prices.min() >= 0
        columns = point.matrix @ np.linalg.pinv(point.problem.design)
        assume(point.problem.geometry.independent)
        for i in point.problem.geometry.needed:
            sides = []
            for step in (h, -h):
                scaled = columns * np.exp(step / 2 * np.eye(len(prices))[i])
                other = point.restated(scaled @ point.problem.design, point.problem.design)
                sides.append(other.certify(point.weights, point.dual).lower_bound)
            assert np.log(sides[0] / sides[1]) / (2 * h) == pytest.approx(prices[i], abs=1e-6)


class TestBesideTotalVariance:
    @quick
    @given(points())
    def test_no_weights_beat_the_best_strategy(self, point: Point) -> None:
        assume(point.problem.privacy == "approximate")
        best = fast.solve(dm.TotalVariance(point.problem.workload)).lower_bound
        assert point.problem.strategy_error(point.weights) >= best * (1 - ROUNDING)

    @quick
    @given(points(independent=True))
    def test_the_bound_on_weights_is_none_on_strategies(self, point: Point) -> None:
        """Both bounds agree at the uniform dual weights on eigen-queries alone."""
        assume(point.problem.privacy == "approximate")
        uniform, workload = np.ones(len(point.dual)), point.problem.workload
        eigen = dm.QueryWeighting(workload, dm.designs.eigen_queries(workload))
        bound = eigen.certify(np.ones(len(eigen.design)), uniform).lower_bound
        total = dm.TotalVariance(workload)
        judged = total.certify(np.eye(total.geometry.rank), uniform)
        assert bound == pytest.approx(judged.lower_bound, rel=1e-6)
