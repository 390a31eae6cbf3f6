"""The laws of total variance, on random points: every one holds for any covariance and any dual weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """A problem with a feasible covariance and any dual weights."""

    problem: dm.TotalVariance
    covariance: Array
    dual: Array

    @property
    def matrix(self) -> Array:
        return self.problem.workload.dense()

    @property
    def weights(self) -> Array:
        return self.problem.weights

    @property
    def judged(self) -> dm.Certificate:
        return self.problem.certify(self.covariance, self.dual)

    def restated(self, matrix: Array, weights: Array, **options: Array) -> dm.TotalVariance:
        stated: dict[str, Any] = {"basis": self.problem.basis} | options
        return dm.TotalVariance(dm.Workload(matrix), weights, **stated)


@st.composite
def points(draw: st.DrawFn, least_cells: int = 1) -> Point:
    shape = draw(st.integers(1, 5)), draw(st.integers(least_cells, 5))
    matrix = draw(arrays(np.float64, shape, elements=st.integers(-3, 3).map(float)))
    weights = draw(arrays(np.float64, shape[0], elements=st.sampled_from([0.0, 0.25, 1.0, 1.0, 5.0])))
    assume(np.any(matrix[weights > 0]))
    rng = draws(draw(seeds))
    problem = dm.TotalVariance(dm.Workload(matrix), weights)
    factor = rng.standard_normal((problem.geometry.rank, problem.geometry.rank))
    covariance = problem.feasible(factor @ factor.T + 0.2 * np.eye(len(factor)))
    return Point(problem, covariance, rng.uniform(0, 1, shape[1]))


def agree(one: dm.Certificate, two: dm.Certificate, factor: float = 1.0) -> None:
    """Both sides of `two` are those of `one` times a factor, and both points are feasible."""
    assert one.feasible and two.feasible
    assert two.objective == pytest.approx(factor * one.objective, rel=ROUNDING)
    assert two.lower_bound == pytest.approx(factor * one.lower_bound, rel=ROUNDING, abs=1e-12 * factor)


def optimum(problem: dm.TotalVariance) -> float:
    return fast.solve(problem, tol=1e-8).objective


class TestDefinition:
    """The judge's two numbers, computed here another way."""

    @quick
    @given(points())
    def test_objective_and_bound(self, point: Point) -> None:
        mechanism = dm.LinearGaussianMechanism(point.problem.basis, point.covariance)
        asked = point.problem.asked
        variances = mechanism.variances(point.problem.workload.select(asked))
        assert mechanism.squared_privacy_cost == pytest.approx(1, rel=ROUNDING)
        assert point.judged.objective == pytest.approx(point.weights[asked] @ variances, rel=ROUNDING)
        weighted = np.diag(np.sqrt(point.weights)) @ point.matrix @ np.diag(np.sqrt(point.dual))
        expected = float(np.linalg.norm(weighted, "nuc")) ** 2 / float(point.dual.sum())
        assert point.judged.lower_bound == pytest.approx(expected, rel=ROUNDING)

    @quick
    @given(points())
    def test_uniform_weights_give_the_singular_value_bound(self, point: Point) -> None:
        """Theorem 2 of Li and Miklau: ``(Σ √σ)² / d`` over the eigenvalues σ of the weighted Gram matrix."""
        cells = len(point.dual)
        eigenvalues = np.linalg.eigvalsh(point.matrix.T * point.weights @ point.matrix)
        bound = np.sqrt(np.maximum(eigenvalues, 0)).sum() ** 2 / cells
        judged = point.problem.certify(point.covariance, dm.duals.VarianceDual(np.ones(cells)))
        assert judged.lower_bound == pytest.approx(bound, rel=1e-6)
        assert judged.lower_bound <= optimum(point.problem) * (1 + ROUNDING)

    @quick
    @given(points(), st.floats(1.001, 100))
    def test_violation_is_the_relative_excess_of_the_cost(self, point: Point, factor: float) -> None:
        judged = point.problem.certify(point.covariance / factor, point.dual)
        assert judged.violation == pytest.approx(factor - 1, rel=1e-6)
        assert not judged.feasible and judged.gap == np.inf

    @quick
    @given(points(), st.floats(1e-6, 1e6))
    def test_feasible_spends_exactly_one(self, point: Point, factor: float) -> None:
        covariance = point.problem.feasible(factor * point.covariance)
        np.testing.assert_allclose(covariance, point.covariance, rtol=1e-9)
        assert point.problem.certify(covariance, point.dual).violation <= 1e-12

    @quick
    @given(points(), st.floats(1e-3, 1e3))
    def test_another_cost_divides_every_variance(self, point: Point, cost: float) -> None:
        mechanism = point.problem.mechanism(point.covariance, cost)
        assert mechanism.squared_privacy_cost == pytest.approx(cost, rel=ROUNDING)
        np.testing.assert_allclose(mechanism.covariance(), point.covariance / cost)


class TestWeakDuality:
    @quick
    @given(points())
    def test_any_weights_bound_any_feasible_covariance(self, point: Point) -> None:
        judged = point.judged  # CertificateError if the bound were above
        assert judged.lower_bound <= judged.objective * (1 + judged.resolution)

    @quick
    @given(points(), st.floats(1e-12, 1e12))
    def test_scale_of_the_weights_is_immaterial(self, point: Point, factor: float) -> None:
        agree(point.judged, point.problem.certify(point.covariance, factor * point.dual))

    @quick
    @given(points(), seeds)
    def test_the_bound_is_concave_in_shares(self, point: Point, seed: int) -> None:
        """F, the root of the bound, is jointly concave; its square is at the same degree in λ."""
        one, two = point.dual / point.dual.sum(), draws(seed).dirichlet(np.ones(len(point.dual)))

        def root(dual: Array) -> float:
            return point.problem.certify(point.covariance, dual).lower_bound ** 0.5

        assert root((one + two) / 2) >= (root(one) + root(two)) / 2 * (1 - ROUNDING)


class TestScalingLaws:
    @quick
    @given(points(), st.floats(1e-6, 1e6))
    def test_weights_times_t(self, point: Point, t: float) -> None:
        agree(
            point.judged,
            point.restated(point.matrix, t * point.weights).certify(point.covariance, point.dual),
            t,
        )

    @quick
    @given(points(), st.floats(1e-6, 1e6))
    def test_workload_times_t(self, point: Point, t: float) -> None:
        other = point.restated(t * point.matrix, point.weights)
        agree(point.judged, other.certify(point.covariance, point.dual), t**2)

    @quick
    @given(points(), seeds)
    def test_units_of_each_query_are_immaterial(self, point: Point, seed: int) -> None:
        units = 10 ** draws(seed).uniform(-4, 4, len(point.weights))
        other = point.restated(point.matrix * units[:, None], point.weights / units**2)
        agree(point.judged, other.certify(point.covariance, point.dual))

    @quick
    @given(points(), st.integers(1, 9))
    def test_a_household_of_h_multiplies_by_h_squared(self, point: Point, members: int) -> None:
        moves = dm.neighbours.household(len(point.dual), members)
        other = dm.TotalVariance(
            point.problem.workload, point.weights, basis=point.problem.basis, neighbours=moves
        )
        agree(point.judged, other.certify(members**2 * point.covariance, point.dual), members**2)

    @quick
    @given(points(), seeds)
    def test_larger_weights_cost_more(self, point: Point, seed: int) -> None:
        raised = np.where(point.weights > 0, point.weights + draws(seed).uniform(0, 1, len(point.weights)), 0)
        judged = point.restated(point.matrix, raised).certify(point.covariance, point.dual)
        assert judged.objective >= point.judged.objective * (1 - ROUNDING)
        assert judged.lower_bound >= point.judged.lower_bound * (1 - ROUNDING)


class TestSymmetries:
    @quick
    @given(points(), seeds)
    def test_order_and_sign_of_cells(self, point: Point, seed: int) -> None:
        rng, cells = draws(seed), len(point.dual)
        order, signs = rng.permutation(cells), rng.choice([-1.0, 1.0], cells)
        basis = point.problem.basis[:, order] * signs
        other = point.restated(point.matrix[:, order] * signs, point.weights, basis=basis)
        agree(point.judged, other.certify(point.covariance, point.dual[order]))

    @quick
    @given(points(), seeds)
    def test_orthogonal_mixtures_of_the_weighted_queries(self, point: Point, seed: int) -> None:
        """Error equivalence: only the Gram matrix of ``diag(√w) W`` matters."""
        mixed = orthogonal(len(point.weights), draws(seed)) @ (point.matrix * np.sqrt(point.weights)[:, None])
        other = point.restated(mixed, np.ones(len(point.weights)))
        agree(point.judged, other.certify(point.covariance, point.dual))

    @quick
    @given(points())
    def test_a_root_of_the_gram_matrix_will_do(self, point: Point) -> None:
        values, vectors = np.linalg.eigh(point.matrix.T * point.weights @ point.matrix)
        kept = values > 1e-6 * values[-1]
        assume(np.count_nonzero(kept) == point.problem.geometry.rank)
        root = np.sqrt(values[kept])[:, None] * vectors[:, kept].T
        other = point.restated(root, np.ones(len(root)))
        agree(point.judged, other.certify(point.covariance, point.dual))

    @quick
    @given(points(least_cells=2), seeds)
    def test_optimum_ignores_both(self, point: Point, seed: int) -> None:
        rng, (queries, cells) = draws(seed), point.matrix.shape
        weighted = point.matrix * np.sqrt(point.weights)[:, None]
        mixed = orthogonal(queries, rng) @ weighted[:, rng.permutation(cells)]
        assert optimum(dm.TotalVariance(dm.Workload(mixed))) == pytest.approx(
            optimum(point.problem), rel=3e-8
        )


class TestBasis:
    @quick
    @given(points(), seeds)
    def test_any_basis_gives_the_same_certificate(self, point: Point, seed: int) -> None:
        rng, size = draws(seed), point.problem.geometry.rank
        change = orthogonal(size, rng) * rng.uniform(0.3, 3, size)
        other = point.restated(point.matrix, point.weights, basis=change @ point.problem.basis)
        agree(point.judged, other.certify(change @ point.covariance @ change.T, point.dual))


class TestQueriesThatAddNothing:
    @quick
    @given(points(), st.floats(0.1, 0.9))
    def test_a_query_may_be_split_into_parts_of_its_weight(self, point: Point, part: float) -> None:
        matrix = np.vstack([point.matrix, point.matrix[:1]])
        weights = np.append(point.weights, (1 - part) * point.weights[0])
        weights[0] *= part
        agree(point.judged, point.restated(matrix, weights).certify(point.covariance, point.dual))

    @quick
    @given(points(), seeds)
    def test_queries_of_weight_zero_might_as_well_not_be_there(self, point: Point, seed: int) -> None:
        extra = draws(seed).standard_normal((2, len(point.dual)))
        matrix, weights = np.vstack([extra, point.matrix]), np.append([0.0, 0.0], point.weights)
        other = dm.TotalVariance(dm.Workload(matrix), weights)
        assert other.geometry.rank == point.problem.geometry.rank
        np.testing.assert_array_equal(other.basis, point.problem.basis)
        agree(point.judged, other.certify(point.covariance, point.dual))
        np.testing.assert_allclose(
            other.prices(point.dual), np.append([0, 0], point.problem.prices(point.dual))
        )

    @quick
    @given(points())
    def test_queries_that_ask_nothing_weigh_nothing(self, point: Point) -> None:
        other = point.restated(np.vstack([point.matrix, 0 * point.matrix[:1]]), np.append(point.weights, 3.0))
        agree(point.judged, other.certify(point.covariance, point.dual))
        assert other.prices(point.dual)[-1] == 0


class TestPrices:
    @quick
    @given(points(), seeds)
    def test_they_are_the_derivatives_of_the_bound(self, point: Point, seed: int) -> None:
        prices, h = point.problem.prices(dm.duals.VarianceDual(point.dual)), 1e-5
        assert prices.sum() == pytest.approx(1) and prices.min() >= 0
        assume(np.linalg.cond((point.matrix * np.sqrt(point.weights)[:, None])[point.weights > 0]) < 1e3)
        for j in np.flatnonzero(point.weights):
            sides = [
                point.restated(point.matrix, point.weights * np.exp(step * np.eye(len(prices))[j])).certify(
                    point.covariance, point.dual
                )
                for step in (h, -h)
            ]
            slope = np.log(sides[0].lower_bound / sides[1].lower_bound) / (2 * h)
            assert slope == pytest.approx(prices[j], abs=1e-6)


class TestBesideFitnessForUse:
    @quick
    @given(points())
    def test_no_mechanism_fit_for_use_has_less_total_variance(self, point: Point) -> None:
        asked = point.problem.asked
        targets = np.linspace(1, 2, len(asked))
        fit = fast.solve(dm.FitnessForUse(point.problem.workload.select(asked), targets))
        total = point.weights[asked] @ fit.mechanism.variances(point.problem.workload.select(asked))
        bound = fast.solve(point.problem).lower_bound
        assert total * fit.objective >= bound * (1 - ROUNDING)

    @quick
    @given(points())
    def test_at_the_weights_of_the_queries_the_optima_coincide(self, point: Point) -> None:
        """Fitness for use is the hardest total variance whose weights spend ``Σ w_j c_j = 1``."""
        workload, targets = point.problem.workload, np.linspace(1, 2, len(point.weights))
        fit = fast.solve(dm.FitnessForUse(workload, targets), tol=1e-8)
        hardest = fast.solve(dm.TotalVariance(workload, fit.dual.query_weights), tol=1e-8)
        assert hardest.objective == pytest.approx(fit.objective, rel=4e-8)
        another = fast.solve(dm.TotalVariance(workload, point.weights / (point.weights @ targets)))
        assert another.lower_bound <= fit.objective * (1 + ROUNDING)
