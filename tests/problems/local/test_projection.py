"""Projection onto local strategies: closed cases, both layers against each other, weak duality, lies, input."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import contains, meet

import dualmech as dm
from dualmech import fast, reference
from dualmech.fast.local import estimate as solver
from dualmech.validate import Array

SHAPES = [(1, 3), (3, 1), (2, 2), (8, 3), (12, 5)]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return scale * np.random.default_rng(seed).standard_normal(shape)


def floor_for(outputs: int, epsilon: float, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    shares = rng.random(outputs) + 0.1
    return np.asarray(shares / shares.sum() * np.exp(-epsilon * rng.random()))


class TestClosedCases:
    def test_the_identity_becomes_randomised_response(self) -> None:
        for epsilon in (0.1, np.log(3), 3.0):
            growth = np.exp(epsilon)
            answer = fast.solve(dm.LocalProjection(np.eye(2), epsilon), tol=1e-10)
            expected = (np.ones((2, 2)) + (growth - 1) * np.eye(2)) / (1 + growth)
            np.testing.assert_allclose(answer.primal, expected, atol=1e-7)
            assert contains(answer.certificate, 2 / (1 + growth) ** 2, 1e-9), epsilon

    @pytest.mark.parametrize("layer", [fast, reference])
    def test_a_strategy_stays_where_it_is(self, layer: Any) -> None:
        strategy = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
        for floor in (None, [0.25, 0.25, 0.25]):
            answer = layer.solve(dm.LocalProjection(strategy, np.log(2), floor))
            assert answer.status is dm.Status.CERTIFIED
            assert answer.objective <= 1e-6 and answer.lower_bound <= answer.objective

    def test_one_output_or_one_user_type(self) -> None:
        """One output is always reported; of one user type the projection is that onto probabilities."""
        answer = fast.solve(dm.LocalProjection([[3.0, -1.0]], 1.0))
        np.testing.assert_allclose(answer.primal, 1)
        assert contains(answer.certificate, 4.0, 1e-12)
        answer = fast.solve(dm.LocalProjection([[0.9], [0.5], [-1.0]], 1.0), tol=1e-9)
        np.testing.assert_allclose(answer.primal[:, 0], [0.7, 0.3, 0], atol=1e-6)

    def test_a_floor_that_leaves_no_choice(self) -> None:
        for floor in ([0.25, 0.75], [0.125, 0.375]):
            answer = fast.solve(dm.LocalProjection(normal(2, 3), np.log(2), floor))
            np.testing.assert_allclose(answer.primal, np.array([[0.25], [0.75]]) * np.ones((1, 3)))
            assert answer.status is dm.Status.CERTIFIED
        never_reported = fast.solve(dm.LocalProjection(normal(3, 4), 1.0, [0.0, 0.3, 0.2]))
        assert not never_reported.primal[0].any() and never_reported.status is dm.Status.CERTIFIED


class TestLayers:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_they_agree(self, shape: tuple[int, int]) -> None:
        for epsilon, fixed, scale in itertools.product((0.01, 1.0, 5.0), (True, False), (1 / shape[0], 3.0)):
            floor = floor_for(shape[0], epsilon) if fixed else None
            problem = dm.LocalProjection(normal(*shape, scale=scale), epsilon, floor)
            quick, stated = fast.solve(problem, tol=1e-9), reference.solve(problem)
            assert quick.status is stated.status is dm.Status.CERTIFIED
            assert quick.certificate.feasible and stated.certificate.feasible
            (low, high), (least, most) = quick.certificate.interval, stated.certificate.interval
            assert low <= most + 1e-15 and least <= high + 1e-15, (epsilon, fixed, scale)

    def test_the_other_backend(self) -> None:
        problem = dm.LocalProjection(normal(6, 3), 1.0)
        first, second = fast.solve(problem), reference.solve(problem, backend="SCS")
        assert second.status is dm.Status.CERTIFIED and meet(first, second)

    def test_larger_ones(self) -> None:
        for epsilon, scale in itertools.product((0.01, 1.0, 20.0), (1 / 64, 1e3)):
            problem = dm.LocalProjection(normal(64, 16, scale=scale), epsilon)
            assert fast.solve(problem).status is dm.Status.CERTIFIED, (epsilon, scale)

    def test_what_may_be_chosen_is_no_farther_than_what_is_fixed(self) -> None:
        matrix = normal(8, 4, scale=0.2)
        joint = fast.solve(dm.LocalProjection(matrix, 1.0))
        for seed in range(5):
            fixed = fast.solve(dm.LocalProjection(matrix, 1.0, floor_for(8, 1.0, seed)))
            assert joint.lower_bound <= fixed.objective

    def test_the_least_entries_of_the_answer_are_a_floor_for_it(self) -> None:
        matrix = normal(8, 4, scale=0.2)
        joint = fast.solve(dm.LocalProjection(matrix, 1.0), tol=1e-10)
        least = np.maximum(joint.primal.min(axis=1), joint.primal.max(axis=1) * np.exp(-1.0))
        fixed = fast.solve(dm.LocalProjection(matrix, 1.0, least * (1 - 1e-12)), tol=1e-10)
        assert fixed.objective == pytest.approx(joint.objective, rel=1e-7)


class TestPieces:
    @given(st.integers(0, 10**6), st.sampled_from([0.01, 0.5, 2.0, 12.0]))
    @settings(max_examples=24)
    def test_rows_are_projected_onto_a_cone(self, seed: int, epsilon: float) -> None:
        """The projection P(x) lies in the cone, ``x - P(x)`` is orthogonal to it and in the polar cone."""
        rng, growth = np.random.default_rng(seed), float(np.exp(epsilon))
        rows = rng.standard_normal((4, rng.integers(1, 7))) + rng.choice([0.0, 1.0])
        nearest, least = solver.rows_within(rows, growth)
        assert np.all(nearest >= least[:, None]) and np.all(nearest <= growth * least[:, None] * (1 + 1e-15))
        left = rows - nearest
        np.testing.assert_allclose(np.einsum("ou,ou->o", left, nearest), 0, atol=1e-12)
        worst = np.maximum(left, 0).sum(axis=1) * growth - np.maximum(-left, 0).sum(axis=1)
        assert np.all(worst <= 1e-12 * growth * np.abs(rows).sum(axis=1))


class TestJudge:
    @given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0.05, 1.0, 6.0]))
    @settings(max_examples=50)
    def test_any_multipliers_stay_below_any_strategy(self, seed: int, fixed: bool, epsilon: float) -> None:
        rng = np.random.default_rng(seed)
        shape = (int(rng.integers(1, 6)), int(rng.integers(1, 5)))
        floor = floor_for(shape[0], epsilon, seed) if fixed else None
        problem = dm.LocalProjection(rng.standard_normal(shape), epsilon, floor)
        strategy = problem.feasible(rng.standard_normal(shape))
        dual = dm.duals.ProjectionDual(rng.standard_normal(shape[1]), rng.standard_normal(shape))
        best = fast.solve(problem)
        judged = problem.certify(strategy, dual)
        assert judged.feasible and judged.lower_bound <= judged.objective
        assert judged.lower_bound <= best.objective * (1 + 1e-12)
        assert best.lower_bound <= judged.objective

    def test_multipliers_near_the_best_prove_less_and_of_the_wrong_sign_are_shrunk(self) -> None:
        problem = dm.LocalProjection(normal(6, 3), 1.0)
        answer: dm.Solution = fast.solve(problem, tol=1e-10)
        for factor in (0.999, 1.001):
            for sums, ratios in ((factor, 1.0), (1.0, factor), (factor, factor)):
                dual = dm.duals.ProjectionDual(sums * answer.dual.sums, ratios * answer.dual.ratios)
                assert problem.certify(answer.primal, dual).lower_bound < answer.lower_bound
        wrong = dm.duals.ProjectionDual(np.zeros(3), -np.ones((6, 3)))
        assert problem.certify(problem.feasible(np.ones((6, 3))), wrong).lower_bound == 0

    def test_what_is_no_strategy_is_not_feasible(self) -> None:
        for strategy in (
            [[0.8, 0.2], [0.2, 0.8]],  # ratio
            [[0.75, 0.25], [0.25, 0.76]],  # sum
            [[1.0, 0.0], [0.0, 1.0]],
            [[1.25, 1.0], [-0.25, 0.0]],
        ):
            for floor in (None, [0.25, 0.25]):
                problem, dual = dm.LocalProjection(np.eye(2), np.log(3), floor), dm.duals.ProjectionDual(np.zeros(2))
                judged = problem.certify(strategy, dual)
                assert not judged.feasible and judged.gap == math.inf, strategy
                assert problem.certify(problem.feasible(strategy), dual).violation == 0, strategy

    def test_any_matrix_is_repaired(self) -> None:
        for shape, epsilon in itertools.product(SHAPES, (1e-3, 1.0, 30.0)):
            for given_matrix in (normal(*shape), np.zeros(shape), -np.ones(shape), 1e9 * normal(*shape)):
                for floor in (None, floor_for(shape[0], epsilon)):
                    problem = dm.LocalProjection(normal(*shape), epsilon, floor)
                    dual = dm.duals.ProjectionDual(np.zeros(shape[1]))
                    assert problem.certify(problem.feasible(given_matrix), dual).violation <= 1e-12, (shape, epsilon)

    def test_outputs_at_their_ratio_bind(self) -> None:
        problem = dm.LocalProjection(np.eye(3), np.log(3))
        assert list(problem.binding([[0.6, 0.2, 0.2], [0.2, 0.4, 0.4], [0.2, 0.4, 0.4]], 1e-9)) == [0]


class TestRuns:
    def test_the_program_can_be_read(self) -> None:
        program = reference.formulate(dm.LocalProjection(np.eye(2), np.log(3)))
        assert [constraint.label for constraint in program.constraints] == ["columns", "least", "most"]
        program.solve(solver="CLARABEL")
        assert float(program.value) == pytest.approx(1 / 8, rel=1e-6)

    def test_there_is_nothing_to_release(self) -> None:
        answer = fast.solve(dm.LocalProjection(np.eye(2), 1.0))
        for name in ("mechanism", "prices"):
            with pytest.raises(dm.errors.InvalidInputError, match="a LocalProjection has no"):
                getattr(answer, name)


class TestInput:
    def test_what_is_refused(self) -> None:
        one, two = [[1.0]], [[1.0], [1.0]]
        cases: list[tuple[tuple[Any, ...], str]] = [
            (([1.0, 2.0], 1.0), "matrix must have 2 dimension"),
            (([[math.nan]], 1.0), "matrix must be finite"),
            (([[1e50]], 1.0), "matrix must have non-zero entries of magnitude"),
            ((one, 0.0), "epsilon must be positive"),
            ((one, 200.0), "epsilon must be from 1e-06 to 100"),
            ((two, 1.0, [0.5]), "floor must hold 2 probabilities"),
            ((two, 1.0, [-0.1, 0.9]), "floor must hold 2 probabilities"),
            ((two, 1.0, [0.6, 0.5]), "floor must have a sum between"),
            ((two, 1.0, [0.1, 0.1]), "floor must have a sum between"),
        ]
        for arguments, named in cases:
            with pytest.raises(dm.errors.InvalidInputError, match=named):
                dm.LocalProjection(*arguments)

    def test_answers_of_another_shape(self) -> None:
        problem = dm.LocalProjection(np.eye(2), 1.0)
        with pytest.raises(dm.errors.InvalidInputError, match="strategy must have shape"):
            problem.feasible(np.ones((3, 2)))
        with pytest.raises(dm.errors.InvalidInputError, match="dual must hold 2 sums"):
            problem.certify(np.ones((2, 2)) / 2, dm.duals.ProjectionDual(np.ones(1)))
        with pytest.raises(dm.errors.InputTypeError, match="dual must be a ProjectionDual of dualmech"):
            problem.certify(np.ones((2, 2)) / 2, np.zeros(2))  # type: ignore[arg-type]
