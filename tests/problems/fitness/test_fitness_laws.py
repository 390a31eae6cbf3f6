"""The laws of fitness for use, on random points: every one holds for any covariance and any dual weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dualmech as dm
from dualmech import crosscheck, fast
from dualmech.validate import Array

quick = settings(max_examples=15)
ROUNDING = 1e-9
"""Relative; the points drawn below are well conditioned, so that nothing but a bug reaches this."""


@dataclass(frozen=True)
class Point:
    """A problem with a feasible covariance and any dual weights."""

    problem: dm.FitnessForUse
    covariance: Array
    neighbour_weights: Array
    query_weights: Array

    @property
    def matrix(self) -> Array:
        return self.problem.workload.dense()

    @property
    def parts(self) -> tuple[dm.Workload, Array, Array]:
        return self.problem.workload, self.problem.targets, self.problem.basis

    @property
    def dual(self) -> tuple[Array, Array]:
        return self.neighbour_weights, self.query_weights

    @property
    def judged(self) -> dm.Certificate:
        return self.problem.certify(self.covariance, self.dual)


def random_covariance(size: int, rng: np.random.Generator) -> Array:
    factor = rng.standard_normal((size, size))
    return factor @ factor.T + 0.2 * np.eye(size)


def invertible(size: int, rng: np.random.Generator) -> Array:
    left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
    return left * rng.uniform(0.3, 3, size) @ right


@st.composite
def points(draw: st.DrawFn, least_cells: int = 1) -> Point:
    shape = draw(st.integers(1, 5)), draw(st.integers(least_cells, 5))
    matrix = draw(arrays(np.float64, shape, elements=st.integers(-3, 3).map(float)))
    assume(np.any(matrix))
    targets = draw(arrays(np.float64, shape[0], elements=st.sampled_from([0.25, 0.5, 1.0, 2.0, 5.0])))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    problem = dm.FitnessForUse(dm.Workload(matrix), targets)
    covariance = problem.feasible(random_covariance(problem.geometry.rank, rng))
    return Point(problem, covariance, rng.uniform(0, 1, shape[1]), rng.uniform(0, 1, shape[0]))


def agree(one: dm.Certificate, two: dm.Certificate, factor: float = 1.0) -> None:
    """Both sides of `two` are those of `one` times a factor, and both points are feasible."""
    assert one.feasible and two.feasible
    assert two.objective == pytest.approx(factor * one.objective, rel=ROUNDING)
    assert two.lower_bound == pytest.approx(factor * one.lower_bound, rel=ROUNDING, abs=1e-12 * factor)


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


seeds = st.integers(0, 10_000)


class TestDefinition:
    """The judge's two numbers are Problem 1's, computed here another way."""

    @quick
    @given(points())
    def test_objective_and_bound(self, point: Point) -> None:
        geometry = point.problem.geometry
        np.testing.assert_allclose(geometry.representation @ point.problem.basis, point.matrix, atol=1e-12)
        inverse = np.linalg.inv(point.covariance)
        cost = max(float(column @ inverse @ column) for column in point.problem.basis.T)
        weighted = (
            np.diag(np.sqrt(point.query_weights)) @ point.matrix @ np.diag(np.sqrt(point.neighbour_weights))
        )
        bill = point.neighbour_weights.sum() * (point.query_weights @ point.problem.targets)
        assert point.judged.objective == pytest.approx(cost, rel=ROUNDING)
        expected = float(np.linalg.norm(weighted, "nuc")) ** 2 / float(bill)
        assert point.judged.lower_bound == pytest.approx(expected, rel=ROUNDING)

    @quick
    @given(points(), st.floats(1.001, 100))
    def test_violation_is_the_largest_relative_excess(self, point: Point, factor: float) -> None:
        judged = point.problem.certify(factor * point.covariance, point.dual)
        assert judged.violation == pytest.approx(factor - 1, rel=1e-6)
        assert not judged.feasible and judged.gap == np.inf

    @quick
    @given(points(), st.floats(1e-6, 1e6))
    def test_feasible_scales_to_the_tightest_target(self, point: Point, factor: float) -> None:
        covariance = point.problem.feasible(factor * point.covariance)
        np.testing.assert_allclose(covariance, point.covariance, rtol=1e-9)
        assert point.problem.certify(covariance, point.dual).violation <= 1e-12


class TestWeakDuality:
    @quick
    @given(points())
    def test_any_weights_bound_any_feasible_covariance(self, point: Point) -> None:
        judged = point.judged  # CertificateError if the bound were above
        assert judged.lower_bound <= judged.objective * (1 + judged.resolution)

    @quick
    @given(points(), st.floats(1e-12, 1e12), st.floats(1e-12, 1e12))
    def test_scale_of_the_weights_is_immaterial(self, point: Point, first: float, last: float) -> None:
        dual = first * point.neighbour_weights, last * point.query_weights
        agree(point.judged, point.problem.certify(point.covariance, dual))


class TestScalingLaws:
    @quick
    @given(points(), st.floats(1e-6, 1e6))
    def test_targets_times_t_divide_the_cost_by_t(self, point: Point, t: float) -> None:
        other = dm.FitnessForUse(point.problem.workload, t * point.problem.targets)
        agree(point.judged, other.certify(t * point.covariance, point.dual), 1 / t)

    @quick
    @given(points(), st.floats(1e-6, 1e6))
    def test_workload_times_t_multiplies_the_cost_by_t_squared(self, point: Point, t: float) -> None:
        other = dm.FitnessForUse(
            dm.Workload(t * point.matrix), point.problem.targets, basis=point.problem.basis
        )
        agree(point.judged, other.certify(point.covariance / t**2, point.dual), t**2)

    @quick
    @given(points(), seeds)
    def test_units_of_each_query_are_immaterial(self, point: Point, seed: int) -> None:
        units = 10 ** draws(seed).uniform(-4, 4, len(point.query_weights))
        workload = dm.Workload(point.matrix * units[:, None])
        other = dm.FitnessForUse(workload, point.problem.targets * units**2, basis=point.problem.basis)
        dual = point.neighbour_weights, point.query_weights / units**2
        agree(point.judged, other.certify(point.covariance, dual))


class TestSymmetries:
    @quick
    @given(points(), seeds)
    def test_order_and_sign_of_cells(self, point: Point, seed: int) -> None:
        rng, cells = draws(seed), len(point.neighbour_weights)
        order, signs = rng.permutation(cells), rng.choice([-1.0, 1.0], cells)
        workload = dm.Workload(point.matrix[:, order] * signs)
        other = dm.FitnessForUse(workload, point.problem.targets, basis=point.problem.basis[:, order] * signs)
        agree(
            point.judged,
            other.certify(point.covariance, (point.neighbour_weights[order], point.query_weights)),
        )

    @quick
    @given(points(), seeds)
    def test_order_and_sign_of_queries(self, point: Point, seed: int) -> None:
        rng, queries = draws(seed), len(point.query_weights)
        order, signs = rng.permutation(queries), rng.choice([-1.0, 1.0], queries)
        workload = dm.Workload(point.matrix[order] * signs[:, None])
        other = dm.FitnessForUse(workload, point.problem.targets[order], basis=point.problem.basis)
        agree(
            point.judged,
            other.certify(point.covariance, (point.neighbour_weights, point.query_weights[order])),
        )

    @quick
    @given(points(least_cells=2), seeds)
    def test_optimum_ignores_order_and_sign(self, point: Point, seed: int) -> None:
        rng, (queries, cells) = draws(seed), point.matrix.shape
        rows, columns = rng.permutation(queries), rng.permutation(cells)
        mixed = point.matrix[rows][:, columns] * rng.choice([-1.0, 1.0], cells)
        one = fast.solve(point.problem).certificate.interval
        other = dm.FitnessForUse(dm.Workload(mixed), point.problem.targets[rows])
        two = fast.solve(other).certificate.interval
        assert max(one[0], two[0]) <= min(one[1], two[1]) * (1 + 1e-12)


class TestTheorem2ChangeOfBasis:
    @quick
    @given(points(), seeds)
    def test_any_basis_gives_the_same_certificate(self, point: Point, seed: int) -> None:
        change = invertible(point.problem.geometry.rank, draws(seed))
        other = dm.FitnessForUse(
            point.problem.workload, point.problem.targets, basis=change @ point.problem.basis
        )
        agree(point.judged, other.certify(change @ point.covariance @ change.T, point.dual))

    @quick
    @given(points(), seeds)
    def test_optimum_ignores_the_basis(self, point: Point, seed: int) -> None:
        rank = point.problem.geometry.rank
        orthogonal = np.linalg.qr(draws(seed).standard_normal((rank, rank)))[0]
        other = dm.FitnessForUse(
            point.problem.workload, point.problem.targets, basis=orthogonal @ point.problem.basis
        )
        one, two = (fast.solve(each).certificate.interval for each in (point.problem, other))
        assert max(one[0], two[0]) <= min(one[1], two[1]) * (1 + 1e-12)


class TestRedundantQueriesAndCells:
    @quick
    @given(points(), st.floats(0, 1))
    def test_asking_a_query_twice_changes_nothing(self, point: Point, part: float) -> None:
        matrix = np.vstack([point.matrix, point.matrix[:1]])
        targets = np.append(point.problem.targets, point.problem.targets[0])
        weights = np.append(point.query_weights, part * point.query_weights[0])
        weights[0] *= 1 - part
        other = dm.FitnessForUse(dm.Workload(matrix), targets, basis=point.problem.basis)
        agree(point.judged, other.certify(point.covariance, (point.neighbour_weights, weights)))

    @quick
    @given(points(), seeds)
    def test_adding_implied_queries_changes_nothing(self, point: Point, seed: int) -> None:
        # A variance is convex in its query: a mean of queries keeps the mean of their targets; so does a part.
        shares = draws(seed).dirichlet(np.ones(len(point.matrix)))
        matrix = np.vstack([point.matrix, shares @ point.matrix, -0.5 * point.matrix[0], 0 * point.matrix[0]])
        targets = np.append(
            point.problem.targets, [shares @ point.problem.targets, point.problem.targets[0] / 4, 1e-9]
        )
        other = dm.FitnessForUse(dm.Workload(matrix), targets, basis=point.problem.basis)
        weights = np.append(point.query_weights, np.zeros(3))
        agree(point.judged, other.certify(point.covariance, (point.neighbour_weights, weights)))

    @quick
    @given(points(), st.floats(0, 1))
    def test_splitting_a_cell_changes_nothing(self, point: Point, part: float) -> None:
        matrix, basis = (np.column_stack([each, each[:, 0]]) for each in (point.matrix, point.problem.basis))
        weights = np.append(point.neighbour_weights, part * point.neighbour_weights[0])
        weights[0] *= 1 - part
        other = dm.FitnessForUse(dm.Workload(matrix), point.problem.targets, basis=basis)
        agree(point.judged, other.certify(point.covariance, (weights, point.query_weights)))

    def test_zero_queries_and_cells_have_weight_and_price_zero(self) -> None:
        matrix = np.array([[1, 0, 2.0], [0, 0, 0], [1, 0, -1]])
        answer = fast.solve(dm.FitnessForUse(dm.Workload(matrix), [1.0, 1e-30, 3.0]), tol=1e-8)
        assert answer.status is dm.Status.CERTIFIED
        assert answer.dual.query_weights[1] == 0 == answer.prices[1]
        assert answer.dual.neighbour_weights[1] == 0
        assert answer.prices.shape == (3,)


class TestTheorem5PrivacyFirst:
    @quick
    @given(points(), st.floats(1e-3, 1e3))
    def test_is_accuracy_first_rescaled(self, point: Point, cost: float) -> None:
        alpha = point.judged.objective
        twin = dm.PrivacyFirst(point.problem.workload, point.problem.targets, cost)
        agree(point.judged, twin.certify(alpha / cost * point.covariance, point.dual), 1 / cost)
        np.testing.assert_allclose(
            twin.feasible(point.covariance), alpha / cost * point.covariance, rtol=ROUNDING
        )


class TestNeighbours:
    @quick
    @given(points(), st.integers(1, 9))
    def test_a_household_of_h_costs_h_squared(self, point: Point, members: int) -> None:
        cells, (_, targets, basis) = point.matrix.shape[1], point.parts
        same = [[cell] * members for cell in range(cells)]
        for moves in (dm.neighbours.household(cells, members), dm.neighbours.compositions(cells, same)):
            other = dm.FitnessForUse(point.problem.workload, targets, basis=basis, neighbours=moves)
            agree(point.judged, other.certify(point.covariance, point.dual), members**2)

    @quick
    @given(points(least_cells=2), st.integers(1, 9), seeds)
    def test_a_household_that_moves_costs_h_squared(self, point: Point, members: int, seed: int) -> None:
        cells, (workload, targets, basis) = point.matrix.shape[1], point.parts
        moves = dm.neighbours.replace_one(cells)
        assume(np.any(point.matrix @ moves))
        one = dm.FitnessForUse(workload, targets, basis=basis, neighbours=moves)
        more = dm.FitnessForUse(
            workload, targets, basis=basis, neighbours=dm.neighbours.household(cells, members, replace=True)
        )
        weights = draws(seed).uniform(0, 1, moves.shape[1]), point.query_weights
        single = one.certify(point.covariance, weights)
        agree(single, more.certify(point.covariance, weights), members**2)
        # e_u - e_v is twice the mean of e_u and -e_v.
        assert single.objective <= 4 * point.judged.objective * (1 + ROUNDING)

    @quick
    @given(points(), seeds)
    def test_moves_may_be_multiplied_into_the_workload(self, point: Point, seed: int) -> None:
        moves = invertible(point.matrix.shape[1], draws(seed))
        workload, targets, basis = point.parts
        one = dm.FitnessForUse(workload, targets, basis=basis, neighbours=moves)
        two = dm.FitnessForUse(dm.Workload(point.matrix @ moves), targets, basis=basis @ moves)
        sparse = dm.FitnessForUse(workload, targets, basis=basis, neighbours=sp.csr_array(moves))
        judged = one.certify(point.covariance, point.dual)
        agree(judged, two.certify(point.covariance, point.dual))
        agree(judged, sparse.certify(point.covariance, point.dual))

    @quick
    @given(points(), seeds)
    def test_differences_between_others_change_nothing(self, point: Point, seed: int) -> None:
        rng, cells = draws(seed), point.matrix.shape[1]
        mixture = rng.dirichlet(np.ones(cells)) * rng.choice([-1.0, 1.0], cells)
        workload, targets, basis = point.parts
        moves = np.column_stack([np.eye(cells), mixture, np.zeros(cells)])
        other = dm.FitnessForUse(workload, targets, basis=basis, neighbours=moves)
        weights = np.append(point.neighbour_weights, [0.0, 0.0])
        agree(point.judged, other.certify(point.covariance, (weights, point.query_weights)))


class TestRedundantBasis:
    """A basis of more rows than the rank: the same optimum, approached and never reached."""

    @quick
    @given(seed=st.integers(0, 10**6), extra=st.integers(1, 3), replace=st.booleans())
    def test_the_same_optimum_to_what_is_asked(self, seed: int, extra: int, replace: bool) -> None:
        rng = np.random.default_rng(seed)
        rank, cells = int(rng.integers(1, 4)), 6
        matrix = rng.standard_normal((5, rank)) @ rng.standard_normal((rank, cells))
        targets = rng.uniform(0.5, 3, 5)
        moves = dm.neighbours.replace_one(cells) if replace else None
        rows = np.vstack([np.linalg.svd(matrix)[2][:rank], rng.standard_normal((extra, cells))])
        basis = invertible(rank + extra, rng) @ rows
        wide = dm.FitnessForUse(dm.Workload(matrix), targets, basis=basis, neighbours=moves)
        least = dm.FitnessForUse(dm.Workload(matrix), targets, neighbours=moves)
        one, other = fast.solve(wide, tol=1e-4), fast.solve(least, tol=1e-4)
        assert one.status is dm.Status.CERTIFIED and wide.geometry.redundant_rows == extra
        assert max(one.lower_bound, other.lower_bound) <= min(one.objective, other.objective) * (1 + ROUNDING)
        assert wide.certify(one.primal, other.dual).gap <= 2e-4, "weights of either prove both"
        assert one.mechanism.squared_privacy_cost == pytest.approx(one.objective)

    def test_less_noise_where_nothing_is_asked_costs_more(self) -> None:
        problem = dm.FitnessForUse(dm.Workload([[1, 1]]), 1.0, basis=np.eye(2))
        costs = [
            crosscheck.judge(problem, [[n, 0.5 - n], [0.5 - n, n]]).objective for n in (0.5, 5, 50, 5000)
        ]
        assert costs == sorted(costs, reverse=True) and costs[-1] == pytest.approx(1, rel=1e-3)

    def test_what_needs_a_minimum_refuses_it(self) -> None:
        workload = dm.Workload([[1, 1]])
        with pytest.raises(dm.errors.InvalidInputError, match="basis has 1 rows more than the rank"):
            fast.refine(dm.FitnessForUse(workload, 1.0, basis=np.eye(2)))
        with pytest.raises(dm.errors.InvalidInputError, match="basis must have 1 rows"):
            dm.TotalVariance(workload, basis=np.eye(2))
