"""The common mechanism's judge: bounds, violations, maximality, intersections, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech.mechanisms.decomposition import intersection
from dualmech.problems import common
from dualmech.validate import Array

EPS = np.finfo(float).eps

quick = settings(max_examples=24)
seeds = st.integers(0, 10_000)
units = st.sampled_from([1e-6, 1.0, 1e6])


def on_cells(*covariances: Array) -> dm.CommonMechanism:
    return dm.CommonMechanism([dm.LinearGaussianMechanism(np.eye(len(each)), each) for each in covariances])


def random_covariances(seed: int, count: int = 3, size: int = 4, unit: float = 1.0) -> list[Array]:
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((count, size, size))
    return [unit * (factor @ factor.T + 0.01 * np.eye(size)) for factor in factors]


def closed_form(first: Array, second: Array) -> tuple[Array, Array]:
    """Theorem 5.4, and the projectors that prove it."""
    values, vectors = np.linalg.eigh(first - second)
    positive = (vectors * (values > 0)) @ vectors.T
    covariance = (first + second + (vectors * np.abs(values)) @ vectors.T) / 2
    return covariance, np.array([positive, np.eye(len(first)) - positive])


class TestJudge:
    def test_what_exceeds_by_less_than_the_last_digit_is_raised_all_the_same(self) -> None:
        bound, covariance, exact = np.ones((1, 1, 1)), np.array([[1 + EPS]]), np.zeros(1)
        assert common.loewner_violation(bound, covariance, exact)[1] > 0
        raised = common.raise_above_bounds(bound, covariance, exact)
        assert common.loewner_violation(bound, raised, exact) == (0, 0) and raised[0, 0] < 1 + 16 * EPS

    @quick
    @given(seeds, units)
    def test_two_mechanisms_in_closed_form(self, seed: int, unit: float) -> None:
        covariances = random_covariances(seed, count=2, unit=unit)
        problem = on_cells(*covariances)
        basis = problem.basis
        covariance, weights = closed_form(*(basis @ each @ basis.T for each in covariances))
        judged = problem.certify(problem.feasible(covariance), dm.duals.CommonDual(weights))
        assert judged.certifies(1e-9)
        assert problem.maximality(problem.feasible(covariance))
        mechanism = problem.mechanism(problem.feasible(covariance))
        assert all(mechanism.is_answerable_from(each) for each in problem.mechanisms)
        assert problem.prices(weights).sum() == pytest.approx(1)

    @quick
    @given(seeds, st.integers(2, 5), units)
    def test_any_weights_bound_any_common_mechanism(self, seed: int, count: int, unit: float) -> None:
        problem, rng = on_cells(*random_covariances(seed, count, unit=unit)), np.random.default_rng(seed)
        covariance = problem.feasible(problem.bounds.sum(axis=0))
        for weights in (rng.standard_normal((count, 4, 4)), rng.random((count, 1, 1)) * np.eye(4)):
            judged = problem.certify(covariance, weights)
            assert judged.violation == 0 and 0 <= judged.lower_bound <= judged.objective
            rescaled = problem.certify(covariance, 1e3 * weights)
            assert rescaled.lower_bound == pytest.approx(judged.lower_bound, rel=1e-12)

    def test_violation_is_relative_in_every_direction(self) -> None:
        problem = on_cells(np.diag([1.0, 1e-9]), np.diag([1.0, 1e-9]))
        order = np.diag(problem.basis @ np.diag([1.0, 1e-9]) @ problem.basis.T)
        # Half the noise where there is least of it: nothing against the trace, everything against privacy.
        half = np.diag(np.where(order < 0.5, order / 2, order))
        assert problem.certify(half, np.ones((2, 1, 1)) * np.eye(2)).violation == pytest.approx(1, rel=1e-6)
        assert problem.certify(problem.feasible(half), np.ones((2, 1, 1)) * np.eye(2)).feasible

    def test_rounding_of_ill_conditioned_rows_is_stated(self) -> None:
        # b = 3 r_1 - 2 r_2 exactly, with r_1 and r_2 nearly parallel; the optimum is 16.
        for power in (10, 20, 26):
            small, common = 2.0**-power * np.array([1, 5, -1.0]), np.array([1.0, 2, 3])
            close = dm.LinearGaussianMechanism([common + 2 * small, common + 3 * small], [[2, 0.5], [0.5, 1]])
            other = dm.LinearGaussianMechanism(np.array([common, [0.0, 1, 1]]), np.diag([2.0, 3]))
            problem = dm.CommonMechanism([close, other], basis=[common])
            judged = problem.certify(problem.feasible([[16.0]]), [[[1.0]], [[0.0]]])
            assert judged.interval[0] <= 16 <= judged.interval[1] and judged.resolution < 1e-13 * 2**power, power

    def test_ill_conditioned_mechanisms(self) -> None:
        rng = np.random.default_rng(1)
        rotations = [np.linalg.qr(rng.standard_normal((12, 12)))[0] for _ in range(2)]
        for condition in (1e4, 1e8, 1e12):
            spectrum = np.geomspace(1, condition, 12)
            problem = on_cells(*((rotation * spectrum) @ rotation.T for rotation in rotations))
            covariance, weights = closed_form(*problem.bounds)
            judged = problem.certify(problem.feasible(covariance), weights)
            assert judged.violation == 0 and judged.certifies(1e-9), condition


class TestMaximality:
    def test_the_worst_of_several_nested_noises_is_the_only_one(self) -> None:
        problem = on_cells(np.diag([1.0, 4.0]), np.diag([2.0, 1.0]), np.diag([1.5, 1.5]))
        best = problem.basis @ np.diag([2.0, 4.0]) @ problem.basis.T
        assert problem.maximality(problem.feasible(best), tol=1e-9)
        more = problem.maximality(best + 0.3 * np.eye(2))
        assert not more and 0.3 / 3.3 <= more.improvement <= 0.35
        rival = dm.LinearGaussianMechanism(np.eye(2), np.diag([2.0, 4.0]))
        assert problem.maximality(rival)
        assert not problem.maximality(dm.LinearGaussianMechanism([[1, 0]], [[2.0]]))
        assert problem.maximality(dm.LinearGaussianMechanism([[1, 0]], [[2.0]])).improvement == np.inf

    @quick
    @given(seeds)
    def test_another_trace_picks_another_that_is_maximal_too(self, seed: int) -> None:
        covariances, rng = random_covariances(seed, count=2), np.random.default_rng(seed)
        skewed = rng.standard_normal((4, 4)) + 2 * np.eye(4)
        plain = on_cells(*covariances)
        other = dm.CommonMechanism(plain.mechanisms, basis=skewed)
        found = other.mechanism(other.feasible(closed_form(*other.bounds)[0]))
        assert plain.maximality(found, tol=1e-6)
        best = plain.certify(closed_form(*plain.bounds)[0], closed_form(*plain.bounds)[1])
        trace = np.trace(found.covariance(dm.Workload(plain.basis)))
        assert trace >= best.lower_bound * (1 - 1e-9)

    def test_what_rounding_leaves_of_zeros_in_a_basis_is_none(self) -> None:
        """Some kernels of linear algebra leave 1e-47 in the basis; squares of it would underflow."""
        problem = dm.CommonMechanism(on_cells(np.eye(2), np.eye(2)).mechanisms, basis=[[1.0, 1e-47], [0.0, 1.0]])
        assert np.array_equal(problem.basis, np.eye(2))
        assert problem.mechanism(np.eye(2)).rho == pytest.approx(0.5)
        with pytest.raises(dm.errors.InvalidInputError, match=r"basis must have .* 1e-40 to 1e\+40, got 1e\+50"):
            dm.CommonMechanism(problem.mechanisms, basis=[[1e50, 0.0], [0.0, 1.0]])

    def test_what_is_not_common_is_refused_by_name(self) -> None:
        problem = on_cells(np.diag([1.0, 4.0]), np.diag([2.0, 1.0]))
        with pytest.raises(dm.errors.InvalidInputError, match=r"mechanisms\[0\] cannot answer it"):
            problem.maximality(dm.LinearGaussianMechanism(np.eye(2), np.diag([2.0, 3.0])))
        total = dm.LinearGaussianMechanism([[1, 1]], [[5.0]])
        narrow = dm.CommonMechanism([total, problem.mechanisms[0]])
        with pytest.raises(dm.errors.InvalidInputError, match="outside the intersection"):
            narrow.maximality(dm.LinearGaussianMechanism(np.eye(2), 9 * np.eye(2)))


class TestIntersection:
    @quick
    @given(seeds)
    def test_finds_the_planted_directions(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shared = np.eye(4, 12)[: rng.integers(1, 5)] + rng.integers(-2, 3, (1, 12)) / 8
        spaces = []
        for _ in range(3):
            own = rng.standard_normal((2, 12))
            mixing = rng.standard_normal((len(shared) + 2,) * 2)
            spaces.append(mixing @ np.vstack([shared, own]) * rng.uniform(1e-3, 1e3, (len(mixing), 1)))
        found = intersection(spaces)
        assert len(found.rows) == len(shared)
        np.testing.assert_allclose(found.rows @ found.rows.T, np.eye(len(shared)), atol=1e-10)
        inside = found.rows.T @ found.rows
        np.testing.assert_allclose(shared @ inside, shared, atol=1e-7)

    def test_small_angles_are_seen_and_kept_apart(self) -> None:
        first = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])
        for angle in (1e-3, 1e-6, 1e-7, 3e-9):
            second = np.array([[1.0, 0, 0, 0], [0, np.cos(angle), np.sin(angle), 0]])
            found = intersection([first, second])
            assert len(found.rows) == 1
            np.testing.assert_allclose(found.angles, [0, angle], rtol=1e-5, atol=1e-15)
        below_the_tolerance = np.array([[1.0, 0, 0], [0, 1, 1e-11]])
        assert len(intersection([np.eye(2, 3), below_the_tolerance]).rows) == 2

    def test_nothing_in_common(self) -> None:
        cells = [dm.LinearGaussianMechanism(np.eye(4)[rows], np.eye(2)) for rows in ([0, 1], [2, 3])]
        problem = dm.CommonMechanism(cells)
        assert problem.trivial and problem.basis.shape == (0, 4)
        judged = problem.certify(np.zeros((0, 0)), np.zeros((2, 0, 0)))
        assert judged.gap == judged.objective == 0 and judged.certifies(1e-12)
        assert problem.mechanism(np.zeros((0, 0))).rho == 0
        assert problem.maximality(np.zeros((0, 0)))
        nothing = dm.LinearGaussianMechanism(np.zeros((0, 4)), np.zeros((0, 0)))
        assert dm.CommonMechanism([cells[0], nothing]).trivial


class TestStatement:
    def test_example_3_12(self) -> None:
        first = dm.LinearGaussianMechanism(np.kron(np.eye(3), np.ones((1, 3))), np.eye(3))
        second = dm.LinearGaussianMechanism(np.kron(np.ones((1, 3)), np.eye(3)), np.eye(3))
        problem = dm.CommonMechanism([first, second], basis=np.ones((1, 9)))
        np.testing.assert_allclose(problem.bounds.ravel(), [3, 3], rtol=1e-12)
        assert problem.maximality([[3.0]]) and not problem.maximality([[4.0]])

    def test_the_basis_only_restates_what_is_known(self) -> None:
        rng = np.random.default_rng(0)
        covariances = random_covariances(0)
        skewed = rng.standard_normal((4, 4))
        problem = dm.CommonMechanism(on_cells(*covariances).mechanisms, basis=skewed)
        for bound, covariance in zip(problem.bounds, covariances, strict=True):
            np.testing.assert_allclose(bound, skewed @ covariance @ skewed.T, rtol=1e-8)

    def test_decisions_count_more_than_what_nobody_asks(self) -> None:
        covariances = random_covariances(3, count=2)
        mechanisms = on_cells(*covariances).mechanisms
        asked = dm.Workload([[1, 0, 0, 0], [1, 1, 0, 0]])
        variances = []
        for problem in (dm.CommonMechanism(mechanisms), dm.CommonMechanism(mechanisms, decisions=asked)):
            covariance = problem.feasible(closed_form(*problem.bounds)[0])
            variances.append(problem.mechanism(covariance).variances(asked).sum())
            assert problem.maximality(covariance)
        assert variances[1] < variances[0]

    def test_bad_input_is_refused_by_name(self) -> None:
        cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
        exact = dm.LinearGaussianMechanism(np.eye(2), np.diag([1.0, 0]))
        wide = dm.LinearGaussianMechanism(np.eye(3), np.eye(3))
        replaced = dm.LinearGaussianMechanism(np.eye(2), np.eye(2), dm.neighbours.replace_one(2))
        pair, total = [cells, cells], dm.LinearGaussianMechanism([[1, 1]], [[1]])
        cases: list[tuple[str, Any, dict[str, Any]]] = [
            ("sequence of two or more", cells, {}),
            ("two or more, got 1", [cells], {}),
            (r"mechanisms\[1\] must be a LinearGaussianMechanism", [cells, None], {}),
            (r"mechanisms\[1\] releases some queries exactly", [cells, exact], {}),
            ("same cells", [cells, wide], {}),
            ("same neighbours", [cells, replaced], {}),
            ("basis must have 2 independent rows", pair, {"basis": [[1, 0]]}),
            ("basis must have 2 independent rows", pair, {"basis": [[1, 1], [2, 2]]}),
            ("either basis or decisions", pair, {"basis": np.eye(2), "decisions": dm.workloads.total(2)}),
            ("must be a Workload of dualmech", pair, {"decisions": np.eye(2)}),
            ("decisions must have 2 cells", pair, {"decisions": dm.workloads.total(3)}),
            ("'q0' lies outside", [cells, total], {"decisions": dm.Workload([[1, 0]])}),
        ]
        for message, mechanisms, options in cases:
            with pytest.raises(dm.errors.DualmechError, match=message):
                dm.CommonMechanism(mechanisms, **options)
        problem = on_cells(np.eye(2), 2 * np.eye(2))
        with pytest.raises(dm.errors.InvalidInputError, match=r"covariance must have shape \(2, 2\)"):
            problem.certify(np.eye(3), np.ones((2, 2, 2)))
        with pytest.raises(dm.errors.InvalidInputError, match=r"dual weights must have shape \(2, 2, 2\)"):
            problem.certify(np.eye(2), np.ones((3, 2, 2)))
