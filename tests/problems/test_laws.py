"""The laws of every family on a matrix, on random points: each holds for any feasible point and any dual weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

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
seeds = st.integers(0, 10_000)
factors = st.floats(1e-6, 1e6)
ROUNDING = 1e-9
"""Relative; the points drawn below are well conditioned, so that nothing but a bug reaches this."""

COVARIANCES, WEIGHTINGS = ("fitness", "variance"), ("weighting", "weighting, pure")
FAMILIES = (*COVARIANCES, *WEIGHTINGS)
JUDGED = (*FAMILIES, "softmax")

Law = TypeVar("Law", bound=Callable[..., None])


def of(*families: str) -> Callable[[Law], Law]:
    """Return how to hold a law of some families; it draws its points from ``data``."""

    def held(law: Law) -> Law:
        return pytest.mark.parametrize("family", families)(quick(given(data=st.data())(law)))

    return held


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def orthogonal(size: int, rng: np.random.Generator) -> Array:
    return np.asarray(np.linalg.qr(rng.standard_normal((size, size)))[0])


def entropy(shares: Array) -> float:
    return -sum(float(p) * math.log(p) for p in shares if p > 0)


def invertible(size: int, rng: np.random.Generator) -> Array:
    return orthogonal(size, rng) * rng.uniform(0.3, 3, size) @ orthogonal(size, rng)


def agree(one: dm.Certificate, two: dm.Certificate, factor: float = 1.0) -> None:
    assert one.feasible and two.feasible
    assert two.objective == pytest.approx(factor * one.objective, rel=ROUNDING)
    assert two.lower_bound == pytest.approx(factor * one.lower_bound, rel=ROUNDING, abs=1e-12 * factor)


@dataclass(frozen=True)
class Point:
    """A problem with a feasible point and any dual weights: of cells, and of queries where the family has those."""

    problem: Any
    primal: Array
    cells: Array
    queries: Array | None = None

    @property
    def matrix(self) -> Array:
        return np.asarray(self.problem.workload.dense())

    @property
    def numbers(self) -> Array:
        """Targets or weights of the queries, or the rows that are weighed."""
        return np.asarray(
            getattr(self.problem, getattr(self.problem, "numbers", "targets") if self.on_rows else "design")
        )

    @property
    def on_rows(self) -> bool:
        return not isinstance(self.problem, dm.QueryWeighting)

    @property
    def judged(self) -> dm.Certificate:
        return self.certified()

    def certified(
        self, problem: Any = None, primal: Array | None = None, cells: Array | None = None, queries: Array | None = None
    ) -> dm.Certificate:
        users = self.cells if cells is None else cells
        weights = self.queries if queries is None else queries
        dual = users if weights is None else (users, weights)
        return (problem or self.problem).certify(self.primal if primal is None else primal, dual)

    def restated(self, matrix: Array | None = None, numbers: Array | None = None, **options: Any) -> Any:
        """Return the problem with what is changed of it, on the same rows."""
        workload = self.problem.workload if matrix is None else dm.Workload(matrix)
        own = self.numbers if numbers is None else numbers
        if not self.on_rows:
            return dm.QueryWeighting(workload, own, self.problem.privacy)
        soft = ("t1", "t2", "total_weight") if isinstance(self.problem, dm.SoftmaxFitness) else ()
        same = {name: getattr(self.problem, name) for name in ("basis", *soft)}
        return type(self.problem)(workload, own, **same | options)

    def keeps(self, problem: Any, factor: float = 1.0, **changes: Array) -> None:
        """Hold that both sides of another problem are those of this one, times a factor."""
        agree(self.judged, self.certified(problem, **changes), factor)


@st.composite
def points(draw: st.DrawFn, family: str, least_cells: int = 1, independent: bool = False) -> Point:
    cells = draw(st.integers(least_cells, 5))
    rng = draws(draw(seeds))
    if family in WEIGHTINGS:
        queries = draw(st.integers(1, cells if independent else 7))
        design = draw(arrays(np.float64, (queries, cells), elements=st.integers(-2, 2).map(float)))
        rank = np.linalg.matrix_rank(design)
        assume(rank > 0 and (rank == queries or not independent))
        matrix = rng.integers(-2, 3, (draw(st.integers(1, 5)), queries)) @ design
        assume(np.any(matrix))
        privacy = "pure" if family.endswith("pure") else "approximate"
        weighed = dm.QueryWeighting(dm.Workload(matrix), design, privacy)
        return Point(weighed, weighed.feasible(rng.uniform(0.1, 1, queries)), rng.uniform(0, 1, cells))
    queries = draw(st.integers(1, 5))
    matrix = draw(arrays(np.float64, (queries, cells), elements=st.integers(-3, 3).map(float)))
    values = [0.0, 0.25, 1.0, 1.0, 5.0] if family == "variance" else [0.25, 0.5, 1.0, 2.0, 5.0]
    numbers = draw(arrays(np.float64, queries, elements=st.sampled_from(values)))
    assume(np.any(matrix[numbers > 0]))
    soft = [draw(st.sampled_from([0.1, 1.0, 3.0, 20.0])) for _ in range(2)] + [draw(st.sampled_from([0.0, 0.5, 3.0]))]
    kinds: dict[str, Any] = {"fitness": dm.FitnessForUse, "variance": dm.TotalVariance, "softmax": dm.SoftmaxFitness}
    problem = kinds[family](dm.Workload(matrix), numbers, *(soft if family == "softmax" else ()))
    factor = rng.standard_normal((problem.geometry.rank, problem.geometry.rank))
    covariance = problem.feasible(factor @ factor.T + 0.2 * np.eye(len(factor)))
    weights = None if family == "variance" else rng.uniform(0, 1, queries)
    return Point(problem, covariance, rng.uniform(0, 1, cells), weights)


def optimum(problem: Any) -> dm.Certificate:
    return fast.solve(problem, tol=1e-8).certificate


class TestEveryFamily:
    @of(*JUDGED)
    def test_any_weights_bound_any_feasible_point_and_their_scale_is_immaterial(
        self, family: str, data: st.DataObject
    ) -> None:
        point, scales = data.draw(points(family)), st.floats(1e-12, 1e12)
        judged = point.judged  # CertificateError if the bound were above
        assert judged.lower_bound <= judged.objective * (1 + judged.resolution)
        changes: dict[str, Any] = {"cells": data.draw(scales) * point.cells}
        if point.queries is not None:
            changes["queries"] = data.draw(scales) * point.queries
        agree(judged, point.certified(**changes))

    @of(*FAMILIES)
    def test_violation_is_the_largest_relative_excess_and_feasible_leaves_none(
        self, family: str, data: st.DataObject
    ) -> None:
        """Of variance over target, of the privacy cost, and of the sensitivity."""
        point, factor = data.draw(points(family)), data.draw(st.floats(1.001, 100))
        judged = point.certified(primal=point.primal / factor if family == "variance" else factor * point.primal)
        assert judged.violation == pytest.approx(factor - 1, rel=1e-6)
        assert not judged.feasible and judged.gap == np.inf
        feasible = point.problem.feasible(data.draw(factors) * point.primal)
        np.testing.assert_allclose(feasible, point.primal, rtol=1e-9)
        assert point.certified(primal=feasible).violation <= 1e-12

    @of(*FAMILIES)
    def test_workload_or_numbers_times_t(self, family: str, data: st.DataObject) -> None:
        """Targets divide, weights multiply; a longer design query gets a smaller weight, to the same effect."""
        point, t = data.draw(points(family)), data.draw(factors)
        primal = point.primal / t**2 if family == "fitness" else point.primal
        point.keeps(point.restated(t * point.matrix), t**2, primal=primal)
        factor, primal = t, point.primal
        if family == "fitness":
            factor, primal = 1 / t, t * primal
        elif family in WEIGHTINGS:
            factor, primal = 1.0, primal / t ** (2 / point.problem.power)
        point.keeps(point.restated(numbers=t * point.numbers), factor, primal=primal)

    @of(*FAMILIES)
    def test_units_of_each_query_are_immaterial(self, family: str, data: st.DataObject) -> None:
        """Of independent design queries, where those are weighed."""
        point = data.draw(points(family, independent=family in WEIGHTINGS))
        units = 10 ** draws(data.draw(seeds)).uniform(-4, 4, len(point.numbers))
        if family in WEIGHTINGS:
            other = point.restated(numbers=point.numbers * units[:, None])
            point.keeps(other, primal=point.primal / units ** (2 / point.problem.power))
        elif family == "variance":
            point.keeps(point.restated(point.matrix * units[:, None], point.numbers / units**2))
        else:
            other = point.restated(point.matrix * units[:, None], point.numbers * units**2)
            point.keeps(other, queries=np.asarray(point.queries) / units**2)

    @of(*JUDGED)
    def test_order_and_sign_of_cells_and_queries(self, family: str, data: st.DataObject) -> None:
        """Of design queries, where those are weighed."""
        point, rng = data.draw(points(family)), draws(data.draw(seeds))
        order, signs = rng.permutation(len(point.cells)), rng.choice([-1.0, 1.0], len(point.cells))
        rows, row_signs = rng.permutation(len(point.numbers)), rng.choice([-1.0, 1.0], (len(point.numbers), 1))
        turned, changes = point.matrix[:, order] * signs, dict[str, Any](cells=point.cells[order])
        if point.on_rows:
            basis = point.problem.basis[:, order] * signs
            other = point.restated(turned[rows] * row_signs, point.numbers[rows], basis=basis)
            if point.queries is not None:
                changes["queries"] = point.queries[rows]
        else:
            other = point.restated(turned, (point.numbers[:, order] * signs)[rows] * row_signs)
            changes["primal"] = point.primal[rows]
        point.keeps(other, **changes)

    @of("variance", *WEIGHTINGS)
    def test_orthogonal_mixtures_of_the_queries(self, family: str, data: st.DataObject) -> None:
        """Error equivalence: only the Gram matrix matters, of ``diag(√w) W``."""
        point = data.draw(points(family))
        weighted: Any = np.sqrt(point.numbers)[:, None] if family == "variance" else 1.0
        mixed = orthogonal(len(point.matrix), draws(data.draw(seeds))) @ (point.matrix * weighted)
        point.keeps(point.restated(mixed, np.ones(len(mixed)) if family == "variance" else None))

    @of("variance", *WEIGHTINGS)
    def test_a_root_of_the_bound_is_concave_in_shares(self, family: str, data: st.DataObject) -> None:
        """F, the root of the bound on total variance, is jointly concave; its square is at the same degree in λ."""
        point = data.draw(points(family))
        power = 1 / (point.problem.power + 1) if family in WEIGHTINGS else 0.5
        one, two = (point.cells / point.cells.sum(), draws(data.draw(seeds)).dirichlet(np.ones(len(point.cells))))
        middle, first, last = (point.certified(cells=each).lower_bound ** power for each in ((one + two) / 2, one, two))
        assert middle >= (first + last) / 2 * (1 - ROUNDING)


class TestCovariances:
    """Of noise on a basis."""

    @of(*COVARIANCES, "softmax")
    def test_any_basis_gives_the_same_certificate(self, family: str, data: st.DataObject) -> None:
        """Theorem 2 of fitness for use."""
        point = data.draw(points(family))
        change = invertible(point.problem.geometry.rank, draws(data.draw(seeds)))
        other = point.restated(basis=change @ point.problem.basis)
        point.keeps(other, primal=change @ point.primal @ change.T)

    @of(*COVARIANCES)
    def test_a_household_of_h_costs_h_squared(self, family: str, data: st.DataObject) -> None:
        point, members = data.draw(points(family)), data.draw(st.integers(1, 9))
        cells = len(point.cells)
        same = [[cell] * members for cell in range(cells)]
        primal = members**2 * point.primal if family == "variance" else point.primal
        for moves in (dm.neighbours.household(cells, members), dm.neighbours.compositions(cells, same)):
            point.keeps(point.restated(neighbours=moves), members**2, primal=primal)

    @of(*COVARIANCES)
    def test_asking_a_query_twice_changes_nothing(self, family: str, data: st.DataObject) -> None:
        point, part = data.draw(points(family)), data.draw(st.floats(0.1, 0.9))
        matrix, numbers = (np.vstack([point.matrix, point.matrix[:1]]), np.append(point.numbers, point.numbers[0]))
        shared = np.array([1 - part, *np.ones(len(point.matrix) - 1), part])
        if family == "variance":
            return point.keeps(point.restated(matrix, numbers * shared))
        weights = np.append(np.asarray(point.queries), np.asarray(point.queries)[0]) * shared
        return point.keeps(point.restated(matrix, numbers), queries=weights)

    @of(*COVARIANCES)
    def test_queries_that_ask_nothing_change_nothing(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        other = point.restated(np.vstack([point.matrix, 0 * point.matrix[:1]]), np.append(point.numbers, 1e-9))
        if family == "fitness":
            return point.keeps(other, queries=np.append(np.asarray(point.queries), 0.0))
        assert other.prices(point.cells)[-1] == 0
        return point.keeps(other)


class TestFitness:
    @of("fitness")
    def test_objective_and_bound_are_problem_1s(self, family: str, data: st.DataObject) -> None:
        """The judge's two numbers, computed here another way."""
        point = data.draw(points(family))
        problem, queries = point.problem, np.asarray(point.queries)
        np.testing.assert_allclose(problem.geometry.representation @ problem.basis, point.matrix, atol=1e-12)
        inverse = np.linalg.inv(point.primal)
        cost = max(float(column @ inverse @ column) for column in problem.basis.T)
        weighted = np.diag(np.sqrt(queries)) @ point.matrix @ np.diag(np.sqrt(point.cells))
        bill = point.cells.sum() * (queries @ problem.targets)
        assert point.judged.objective == pytest.approx(cost, rel=ROUNDING)
        expected = float(np.linalg.norm(weighted, "nuc")) ** 2 / float(bill)
        assert point.judged.lower_bound == pytest.approx(expected, rel=ROUNDING)

    @of("fitness")
    def test_adding_implied_queries_changes_nothing(self, family: str, data: st.DataObject) -> None:
        # A variance is convex in its query: a mean of queries keeps the mean of their targets; so does a part.
        point = data.draw(points(family))
        shares = draws(data.draw(seeds)).dirichlet(np.ones(len(point.matrix)))
        matrix = np.vstack([point.matrix, shares @ point.matrix, -0.5 * point.matrix[0]])
        targets = np.append(point.numbers, [shares @ point.numbers, point.numbers[0] / 4])
        point.keeps(point.restated(matrix, targets), queries=np.append(np.asarray(point.queries), [0.0, 0.0]))

    @of("fitness")
    def test_splitting_a_cell_changes_nothing(self, family: str, data: st.DataObject) -> None:
        point, part = data.draw(points(family)), data.draw(st.floats(0, 1))
        matrix, basis = (np.column_stack([each, each[:, 0]]) for each in (point.matrix, point.problem.basis))
        weights = np.append(point.cells, part * point.cells[0])
        weights[0] *= 1 - part
        point.keeps(point.restated(matrix, basis=basis), cells=weights)

    def test_zero_queries_and_cells_have_weight_and_price_zero(self) -> None:
        matrix = np.array([[1, 0, 2.0], [0, 0, 0], [1, 0, -1]])
        answer = fast.solve(dm.FitnessForUse(dm.Workload(matrix), [1.0, 1e-30, 3.0]), tol=1e-8)
        assert answer.status is dm.Status.CERTIFIED
        assert answer.dual.query_weights[1] == 0 == answer.prices[1]
        assert answer.dual.neighbour_weights[1] == 0
        assert answer.prices.shape == (3,)

    @of("fitness")
    def test_privacy_first_is_accuracy_first_rescaled(self, family: str, data: st.DataObject) -> None:
        """Theorem 5."""
        point, cost = data.draw(points(family)), data.draw(st.floats(1e-3, 1e3))
        scaled = point.judged.objective / cost * point.primal
        twin = dm.PrivacyFirst(point.problem.workload, point.numbers, cost)
        point.keeps(twin, 1 / cost, primal=scaled)
        np.testing.assert_allclose(twin.feasible(point.primal), scaled, rtol=ROUNDING)

    @of("fitness")
    def test_a_household_that_moves_costs_h_squared(self, family: str, data: st.DataObject) -> None:
        point, members = data.draw(points(family, least_cells=2)), data.draw(st.integers(1, 9))
        cells = len(point.cells)
        moves = dm.neighbours.replace_one(cells)
        assume(np.any(point.matrix @ moves))
        weights = draws(data.draw(seeds)).uniform(0, 1, moves.shape[1])
        household = dm.neighbours.household(cells, members, replace=True)
        single, more = (point.certified(point.restated(neighbours=each), cells=weights) for each in (moves, household))
        agree(single, more, members**2)
        # e_u - e_v is twice the mean of e_u and -e_v.
        assert single.objective <= 4 * point.judged.objective * (1 + ROUNDING)

    @of("fitness")
    def test_moves_may_be_multiplied_into_the_workload(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        moves = invertible(len(point.cells), draws(data.draw(seeds)))
        judged = point.certified(point.restated(neighbours=moves))
        agree(judged, point.certified(point.restated(point.matrix @ moves, basis=point.problem.basis @ moves)))
        agree(judged, point.certified(point.restated(neighbours=sp.csr_array(moves))))

    @of("fitness")
    def test_differences_between_others_change_nothing(self, family: str, data: st.DataObject) -> None:
        point, rng = data.draw(points(family)), draws(data.draw(seeds))
        cells = len(point.cells)
        mixture = rng.dirichlet(np.ones(cells)) * rng.choice([-1.0, 1.0], cells)
        moves = np.column_stack([np.eye(cells), mixture, np.zeros(cells)])
        point.keeps(point.restated(neighbours=moves), cells=np.append(point.cells, [0.0, 0.0]))


class TestRedundantBasis:
    """A basis of more rows than the rank: the same optimum, approached and never reached."""

    @quick
    @given(seed=st.integers(0, 10**6), extra=st.integers(1, 3), replace=st.booleans())
    def test_the_same_optimum_to_what_is_asked(self, seed: int, extra: int, replace: bool) -> None:
        rng = draws(seed)
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
        costs = [crosscheck.judge(problem, [[n, 0.5 - n], [0.5 - n, n]]).objective for n in (0.5, 5, 50, 5000)]
        assert costs == sorted(costs, reverse=True) and costs[-1] == pytest.approx(1, rel=1e-3)

    def test_what_needs_a_minimum_refuses_it(self) -> None:
        workload = dm.Workload([[1, 1]])
        with pytest.raises(dm.errors.InvalidInputError, match="basis has 1 rows more than the rank"):
            fast.refine(dm.FitnessForUse(workload, 1.0, basis=np.eye(2)))
        with pytest.raises(dm.errors.InvalidInputError, match="basis must have 1 rows"):
            dm.TotalVariance(workload, basis=np.eye(2))


class TestVariance:
    @of("variance")
    def test_objective_and_bound(self, family: str, data: st.DataObject) -> None:
        """The judge's two numbers, computed here another way."""
        point = data.draw(points(family))
        mechanism = dm.LinearGaussianMechanism(point.problem.basis, point.primal)
        asked = point.problem.asked
        variances = mechanism.variances(point.problem.workload.select(asked))
        assert mechanism.squared_privacy_cost == pytest.approx(1, rel=ROUNDING)
        assert point.judged.objective == pytest.approx(point.numbers[asked] @ variances, rel=ROUNDING)
        weighted = np.diag(np.sqrt(point.numbers)) @ point.matrix @ np.diag(np.sqrt(point.cells))
        expected = float(np.linalg.norm(weighted, "nuc")) ** 2 / float(point.cells.sum())
        assert point.judged.lower_bound == pytest.approx(expected, rel=ROUNDING)

    @of("variance")
    def test_uniform_weights_give_the_singular_value_bound(self, family: str, data: st.DataObject) -> None:
        """Theorem 2 of Li and Miklau: ``(Σ √σ)² / d`` over the eigenvalues σ of the weighted Gram matrix."""
        point = data.draw(points(family))
        eigenvalues = np.linalg.eigvalsh(point.matrix.T * point.numbers @ point.matrix)
        bound = np.sqrt(np.maximum(eigenvalues, 0)).sum() ** 2 / len(point.cells)
        judged = point.problem.certify(point.primal, dm.duals.VarianceDual(np.ones(len(point.cells))))
        assert judged.lower_bound == pytest.approx(bound, rel=1e-6)
        assert judged.lower_bound <= optimum(point.problem).objective * (1 + ROUNDING)

    @of("variance", "weighting")
    def test_another_cost_divides_every_variance(self, family: str, data: st.DataObject) -> None:
        point, cost = data.draw(points(family)), data.draw(st.floats(1e-3, 1e3))
        one, other = (point.problem.mechanism(point.primal, each) for each in (1.0, cost))
        assert other.squared_privacy_cost == pytest.approx(cost, rel=1e-7)
        np.testing.assert_allclose(other.covariance(), one.covariance() / cost, rtol=1e-9, atol=1e-12)
        if family == "variance":
            np.testing.assert_allclose(one.covariance(), point.primal)

    @of("variance")
    def test_larger_weights_cost_more(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        more = draws(data.draw(seeds)).uniform(0, 1, len(point.numbers))
        raised = np.where(point.numbers > 0, point.numbers + more, 0)
        judged = point.certified(point.restated(numbers=raised))
        assert judged.objective >= point.judged.objective * (1 - ROUNDING)
        assert judged.lower_bound >= point.judged.lower_bound * (1 - ROUNDING)

    @of("variance")
    def test_queries_of_weight_zero_might_as_well_not_be_there(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        extra = draws(data.draw(seeds)).standard_normal((2, len(point.cells)))
        matrix, weights = np.vstack([extra, point.matrix]), np.append([0.0, 0.0], point.numbers)
        other = dm.TotalVariance(dm.Workload(matrix), weights)
        assert other.geometry.rank == point.problem.geometry.rank
        np.testing.assert_array_equal(other.basis, point.problem.basis)
        point.keeps(other)
        prices = point.problem.prices(point.cells)
        np.testing.assert_allclose(other.prices(point.cells), np.append([0, 0], prices))

    @of("variance")
    def test_prices_are_the_derivatives_of_the_bound(self, family: str, data: st.DataObject) -> None:
        point, h = data.draw(points(family)), 1e-5
        prices = point.problem.prices(dm.duals.VarianceDual(point.cells))
        assert prices.sum() == pytest.approx(1) and prices.min() >= 0
        assume(np.linalg.cond((point.matrix * np.sqrt(point.numbers)[:, None])[point.numbers > 0]) < 1e3)
        for j in np.flatnonzero(point.numbers):
            raised, lowered = (
                point.certified(point.restated(numbers=point.numbers * np.exp(step * np.eye(len(prices))[j])))
                for step in (h, -h)
            )
            slope = np.log(raised.lower_bound / lowered.lower_bound) / (2 * h)
            assert slope == pytest.approx(prices[j], abs=1e-6)

    @of("variance")
    def test_at_the_weights_of_the_queries_the_optima_coincide(self, family: str, data: st.DataObject) -> None:
        """Fitness for use is the hardest total variance whose weights spend ``Σ w_j c_j = 1``."""
        point = data.draw(points(family))
        workload, targets = point.problem.workload, np.linspace(1, 2, len(point.numbers))
        fit = fast.solve(dm.FitnessForUse(workload, targets), tol=1e-8)
        hardest = optimum(dm.TotalVariance(workload, fit.dual.query_weights))
        assert hardest.objective == pytest.approx(fit.objective, rel=4e-8)
        another = fast.solve(dm.TotalVariance(workload, point.numbers / (point.numbers @ targets)))
        assert another.lower_bound <= fit.objective * (1 + ROUNDING)

    @of("variance")
    def test_no_mechanism_fit_for_use_has_less_total_variance(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        asked = point.problem.asked
        workload = point.problem.workload.select(asked)
        fit = fast.solve(dm.FitnessForUse(workload, np.linspace(1, 2, len(asked))))
        total = point.numbers[asked] @ fit.mechanism.variances(workload)
        assert total * fit.objective >= fast.solve(point.problem).lower_bound * (1 - ROUNDING)


class TestSoftmax:
    @of("softmax")
    def test_objective_and_bound(self, family: str, data: st.DataObject) -> None:
        """The judge's two numbers are Equation 8's and the dual's, computed here another way."""
        point = data.draw(points(family))
        problem, rows = point.problem, point.problem.geometry.representation
        inverse = np.linalg.inv(point.primal)
        costs = np.array([column @ inverse @ column for column in problem.basis.T])
        variances = np.array([row @ point.primal @ row for row in rows])
        exponents = problem.t1 * costs, problem.t2 * variances / problem.targets
        assume(max(each.max() for each in exponents) < 600)
        value = math.log(np.exp(exponents[0]).sum()) / problem.t1 + math.log(np.exp(exponents[1]).sum()) / problem.t2
        value += problem.total_weight * variances.sum()
        assert point.judged.objective == pytest.approx(value, rel=ROUNDING)
        first, last = (weights / weights.sum() for weights in (point.cells, np.asarray(point.queries)))
        weighted = np.diag(np.sqrt(last / problem.targets + problem.total_weight)) @ point.matrix
        bound = 2 * float(np.linalg.norm(weighted @ np.diag(np.sqrt(first)), "nuc"))
        bound += entropy(first) / problem.t1 + entropy(last) / problem.t2
        assert point.judged.lower_bound == pytest.approx(bound, rel=ROUNDING)

    @of("softmax")
    def test_a_soft_max_lies_little_above_the_maximum(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        problem, mechanism = point.problem, dm.LinearGaussianMechanism(point.problem.basis, point.primal)
        variances = mechanism.variances(problem.workload)
        maxima = mechanism.squared_privacy_cost + (variances / problem.targets).max()
        above = point.judged.objective - maxima - problem.total_weight * variances.sum()
        slack = ROUNDING * point.judged.objective
        assert -slack <= above <= problem.smoothing_gap + slack

    @of("softmax")
    def test_soft_max_weights_bound_their_own_covariance(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        dual = point.problem.dual_at(point.primal)
        assert dual.neighbour_weights.sum() == pytest.approx(1) and dual.query_weights.sum() == pytest.approx(1)
        assert point.problem.certify(point.primal, dual).gap >= 0

    @of("softmax")
    def test_scales_of_targets_and_workload(self, family: str, data: st.DataObject) -> None:
        """Targets times s are sharpness over √s, and a workload times r is targets over r²."""
        point, s = data.draw(points(family)), data.draw(factors)
        problem, root = point.problem, math.sqrt(s)
        sharper: dict[str, Any] = {"t1": root * problem.t1, "t2": root * problem.t2}
        other = point.restated(numbers=s * problem.targets, total_weight=problem.total_weight / s, **sharper)
        point.keeps(other, 1 / root, primal=root * point.primal)
        scaled = point.restated(root * point.matrix, total_weight=0.0)
        agree(point.certified(scaled), point.certified(point.restated(numbers=problem.targets / s, total_weight=0.0)))


class TestWeighting:
    @of(*WEIGHTINGS)
    def test_objective_and_bound(self, family: str, data: st.DataObject) -> None:
        """The judge's two numbers, computed here another way."""
        point = data.draw(points(family))
        problem, p = point.problem, point.problem.power
        columns = point.matrix @ np.linalg.pinv(problem.design)
        costs = np.where(np.abs(columns).max(axis=0) > 1e-9, (columns**2).sum(axis=0), 0.0)
        np.testing.assert_allclose(problem.costs, costs, rtol=1e-9)
        assert point.judged.objective == pytest.approx((costs / point.primal**p).sum(), rel=ROUNDING)
        shares = point.cells / point.cells.sum()
        reach = (problem.design**2 if p == 1 else np.abs(problem.design)) @ shares
        bound = np.sqrt(costs * reach).sum() ** 2 if p == 1 else np.cbrt(costs * reach**2).sum() ** 3
        assert point.judged.lower_bound == pytest.approx(bound, rel=ROUNDING)

    @of(*WEIGHTINGS)
    def test_the_strategy_attains_at_most_the_objective(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        spread = point.matrix @ np.linalg.pinv(point.problem.strategy(point.primal))
        error = point.problem.strategy_error(point.primal)
        assert error == pytest.approx((spread**2).sum(), rel=1e-7)
        assert error <= point.judged.objective * (1 + ROUNDING)
        if point.problem.geometry.independent:
            assert error == pytest.approx(point.judged.objective, rel=ROUNDING)

    @of("weighting")
    def test_the_mechanism_is_the_strategy(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        mechanism = point.problem.mechanism(point.primal)
        assert mechanism.squared_privacy_cost == pytest.approx(1, rel=1e-7)
        variances = mechanism.variances(point.problem.workload)
        error = point.problem.strategy_error(point.primal)
        assert variances.sum() == pytest.approx(error, rel=1e-7)
        best = fast.solve(dm.TotalVariance(point.problem.workload)).lower_bound
        assert error >= best * (1 - ROUNDING), "no weights beat the best strategy"

    @of(*WEIGHTINGS)
    def test_both_sides_meet(self, family: str, data: st.DataObject) -> None:
        point = data.draw(points(family))
        answer = fast.solve(point.problem, tol=1e-8)  # At 1e-9 rounding may hide more.
        assert answer.status is dm.Status.CERTIFIED
        assert point.problem.certify(point.primal, answer.dual).feasible
        assert point.problem.certify(answer.primal, point.cells).feasible

    @of(*WEIGHTINGS)
    def test_prices_are_the_derivatives_of_the_bound(self, family: str, data: st.DataObject) -> None:
        point, h = data.draw(points(family)), 1e-5
        prices = point.problem.prices(dm.duals.WeightingDual(point.cells))
        assert prices.sum() == pytest.approx(1) and prices.min() >= 0
        columns = point.matrix @ np.linalg.pinv(point.problem.design)
        assume(point.problem.geometry.independent)
        for i in point.problem.geometry.needed:
            scaled = (columns * np.exp(step / 2 * np.eye(len(prices))[i]) for step in (h, -h))
            raised, lowered = (
                point.certified(point.restated(each @ point.problem.design)).lower_bound for each in scaled
            )
            assert np.log(raised / lowered) / (2 * h) == pytest.approx(prices[i], abs=1e-6)

    @of("weighting")
    def test_the_bound_on_weights_is_none_on_strategies(self, family: str, data: st.DataObject) -> None:
        """Both bounds agree at the uniform dual weights on eigen-queries alone."""
        point = data.draw(points(family, independent=True))
        uniform, workload = np.ones(len(point.cells)), point.problem.workload
        eigen = dm.QueryWeighting(workload, dm.designs.eigen_queries(workload))
        bound = eigen.certify(np.ones(len(eigen.design)), uniform).lower_bound
        total = dm.TotalVariance(workload)
        judged = total.certify(np.eye(total.geometry.rank), uniform)
        assert bound == pytest.approx(judged.lower_bound, rel=1e-6)

    def test_a_design_query_that_serves_nothing_has_weight_zero(self) -> None:
        problem = dm.QueryWeighting(dm.Workload([[1.0, 1, 0]]), [[1, 1, 0], [0, 0, 1], [0, 0, 0]])
        answer = fast.solve(problem)
        np.testing.assert_array_equal(problem.costs[1:], 0)
        np.testing.assert_allclose(answer.primal, [1, 0, 0])
        assert answer.mechanism.query_matrix.shape == (1, 3)

    def test_more_design_queries_can_be_worse(self) -> None:
        """A fifth query of the same cells changes Q⁺, and proves the optimum higher: a first seed shows it.

        Program 1 answers by ``W Q⁺``, which spreads the answer over dependent queries whatever their weights.
        Least squares from the strategy can use the fifth query, or not.
        """
        rng = draws(0)
        workload, more = dm.Workload(rng.standard_normal((4, 4))), rng.standard_normal((1, 4))
        few = fast.solve(dm.QueryWeighting(workload, np.eye(4)), tol=1e-9)
        many = fast.solve(dm.QueryWeighting(workload, np.vstack([np.eye(4), more])), tol=1e-9)
        assert many.lower_bound > 1.05 * few.objective
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
