"""Local privacy's judge and mechanisms: closed forms, weak duality, and what is refused."""

import itertools
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import reference
from dualmech.geometry import local
from dualmech.geometry.local import Relaxation
from dualmech.immutable import set_parts
from dualmech.solution import judged_solution
from dualmech.validate import Array

quick = settings(max_examples=24)
seeds = st.integers(0, 10_000)
epsilons = st.sampled_from([0.01, 0.5, 1.0, 4.0, 10.0])
HISTOGRAM = dm.workloads.identity


def randomised_response(size: int, epsilon: float) -> Array:
    matrix = 1 + local.gain(epsilon) * np.eye(size)
    return np.asarray(matrix / matrix.sum(axis=0))


def subset_selection(size: int, epsilon: float) -> tuple[Array, float]:
    """The strategy, and its objective ``1 + (n-1)² / max_k τ_k``."""
    excess, counts = local.gain(epsilon), np.arange(1, size)
    traces = counts * (size - counts) * (excess / (size + counts * excess)) ** 2
    best = int(counts[np.argmax(traces)])
    sets = np.array([[u in chosen for u in range(size)] for chosen in itertools.combinations(range(size), best)])
    return local.rows(sets, epsilon) * (size / len(sets)), float(1 + (size - 1) ** 2 / traces.max())


def forged_multipliers(matrix: Array, costs: Array, epsilon: float) -> Relaxation:
    """Multipliers, some negative, whose matrix A makes ``-T'KT - A`` a small multiple of the identity."""
    size = len(costs)
    mixed = np.outer(costs, np.ones(size))
    lift = np.hstack([np.ones((size, 1)), local.gain(epsilon) * np.eye(size)])
    wanted = -(lift.T @ (matrix @ matrix.T - (mixed + mixed.T) / 2) @ lift) - 1e-9 * np.eye(size + 1)
    neither = np.full((size, size), wanted[0, 0] / size**2)
    squares = -2 * (wanted[0, 1:] + neither.sum(axis=1))
    both = wanted[1:, 1:] - np.diag(squares) - neither
    nothing = Relaxation.of(size)
    return replace(nothing, squares=squares, both=both, neither=neither)


def random_problem(seed: int) -> tuple[dm.LocalStrategy, dm.duals.LocalPoint]:
    """Any criterion, prior, and rank, with a strategy that can answer it."""
    rng = np.random.default_rng(seed)
    size, epsilon = int(rng.integers(2, 7)), float(rng.choice([0.05, 1, 3]))
    workload = dm.Workload(rng.integers(-1, 3, (int(rng.integers(1, 9)), size)) + 0.1)
    criterion = str(rng.choice(["average", "worst"]))
    prior = rng.dirichlet(np.ones(size)) if criterion == "average" and rng.random() < 0.5 else None
    problem = dm.LocalStrategy(workload, epsilon, criterion, prior)
    rows = np.vstack([rng.random((12, size)), randomised_response(size, epsilon)])
    return problem, problem.feasible(dm.duals.LocalPoint(rows, problem.prior))


class TestJudge:
    def test_subset_selection_is_optimal_on_histograms(self) -> None:
        for size, epsilon, criterion in itertools.product((2, 5, 8), (0.01, 1.0, 10.0), ("average", "worst")):
            strategy, expected = subset_selection(size, epsilon)
            problem = dm.LocalStrategy(HISTOGRAM(size), epsilon, criterion)
            judged = problem.certify(strategy, problem.dual_at(strategy))
            assert judged.certifies(1e-10), (size, epsilon, criterion)
            value = judged.objective if criterion == "average" else judged.objective * size + size
            assert value == pytest.approx(expected, rel=1e-9), (size, epsilon, criterion)

    @given(seeds)
    @quick
    def test_weak_duality(self, seed: int) -> None:
        problem, point = random_problem(seed)
        rng = np.random.default_rng(seed + 1)
        size, rank = problem.user_types, len(problem.root)
        suggested = problem.dual_at(point)
        random = dm.duals.LocalDual(
            rng.standard_normal((size, rank)), rng.standard_normal(size), rng.dirichlet(np.ones(size))
        )
        for dual in (suggested, random):
            judged = problem.certify(point, dual)
            assert judged.feasible and judged.gap >= 0
            assert judged.lower_bound <= judged.objective * (1 + judged.resolution)
        scaled = dm.duals.LocalDual(1e3 * suggested.matrix, 1e6 * suggested.costs, suggested.prior)
        bounds = [problem.certify(point, dual).lower_bound for dual in (suggested, scaled)]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-9, abs=1e-9 * np.abs(problem.root).max() ** 2)

    @given(seeds)
    @quick
    def test_objectives_are_those_of_the_mechanism(self, seed: int) -> None:
        problem, point = random_problem(seed)
        mechanism = problem.mechanism(point)
        judged = problem.certify(point, problem.dual_at(point))
        squares = np.linalg.norm(problem.workload.dense(), axis=0) ** 2
        second = problem.user_types * float(point.prior @ (mechanism.user_variances + squares))
        expected = mechanism.worst_variance() if problem.criterion == "worst" else second
        assert judged.objective == pytest.approx(expected, rel=1e-8, abs=1e-8 * second)
        assert len(problem.binding(point, 1e-6)) >= 1
        assert problem.prices(problem.dual_at(point)).shape == (problem.user_types,)

    @given(seeds, epsilons)
    @quick
    def test_the_trace_bound_is_one(self, seed: int, epsilon: float) -> None:
        rng = np.random.default_rng(seed)
        size = int(rng.integers(2, 7))
        problem = dm.LocalStrategy(dm.Workload(rng.standard_normal((4, size))), epsilon)
        nothing = dm.duals.LocalDual(np.zeros((size, len(problem.root))), np.zeros(size))
        judged = problem.certify(randomised_response(size, epsilon), nothing)
        nuclear = float(np.linalg.svd(problem.root, compute_uv=False).sum())
        assert nuclear**2 / np.exp(epsilon) * (1 - 1e-9) <= judged.lower_bound <= judged.objective * (1 + 1e-9)

    def test_a_singular_optimum_is_judged(self) -> None:
        # One-way marginals of three binary attributes: the six half-cubes, G of rank 4 of 8.
        cells = np.array(list(itertools.product([0, 1], repeat=3)))
        halves = np.vstack([cells.T == 1, cells.T == 0])
        problem = dm.LocalStrategy(dm.workloads.marginals(dm.Domain({"a": 2, "b": 2, "c": 2}), ways=1), 1.0)
        strategy = local.rows(halves, 1.0) * (8 / 6)
        judged = problem.certify(strategy, problem.dual_at(strategy))
        assert np.linalg.matrix_rank(strategy) == 4
        assert judged.objective == pytest.approx(180.5770, abs=1e-4) and judged.certifies(1e-9)

    def test_negative_multipliers_prove_nothing(self, tmp_path: Path) -> None:
        problem, strategy = dm.LocalStrategy(dm.workloads.prefix(4), 1.0), randomised_response(4, 1.0)
        honest = problem.dual_at(strategy)
        lie = replace(honest, relaxation=forged_multipliers(honest.matrix, honest.costs, 1.0))
        optimum = problem.certify(strategy, honest)
        assert optimum.gap > 0.1
        # That the multipliers are what they were meant to be: as they stand, they would bound every form by 0.
        assert lie.relaxation is not None and lie.relaxation.both.min() < 0
        judged = problem.certify(strategy, lie)
        assert judged.lower_bound <= optimum.lower_bound and not judged.certifies(0.1)
        facts: Any = {"otherwise": dm.Status.STALLED, "iterations": 1, "seconds": 0.0, "message": "", "solver": "none"}
        dm.save(judged_solution(problem, strategy, lie, tol=1e-6, **facts), tmp_path / "lie.npz")
        with pytest.warns(UserWarning):
            assert dm.load(tmp_path / "lie.npz").status is not dm.Status.CERTIFIED

    @pytest.mark.parametrize(("criterion", "relaxed"), [("average", True), ("worst", True), ("worst", False)])
    def test_dual_weights_of_any_size_prove_the_same(self, criterion: str, relaxed: bool) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(4), 1.0, criterion)
        answer = dm.fast.solve(problem, tol=1e-9)
        weights = reference.lower_bound(problem) if relaxed else replace(answer.dual, relaxation=None)
        assert (weights.relaxation is not None) is relaxed
        judged = problem.certify(answer.primal, weights)
        assert judged.gap < (0.2 if relaxed else 1e-9)
        for exponent in (-1000, -560, -540, -530, -500, -300, 300, 500, 1000):
            unit = np.ldexp(1.0, exponent)
            with np.errstate(over="ignore"):
                scaled = replace(weights, matrix=weights.matrix * unit, costs=weights.costs * unit * unit)
                if weights.relaxation is not None:
                    parts = {part.name: getattr(weights.relaxation, part.name) for part in fields(Relaxation)}
                    squared = {name: part * unit * unit for name, part in parts.items()}
                    scaled = replace(scaled, relaxation=Relaxation(**squared))
            other = problem.certify(answer.primal, scaled)
            if abs(exponent) <= 500:
                assert other.lower_bound == judged.lower_bound
            assert other.lower_bound <= answer.objective * (1 + other.resolution)
        for factor in 10.0 ** np.linspace(-150, -163, 53):
            scaled = replace(weights, matrix=weights.matrix * factor, costs=weights.costs * factor**2, relaxation=None)
            assert problem.certify(answer.primal, scaled).lower_bound <= answer.objective * (1 + 1e-12)
        nothing = replace(weights, matrix=0 * weights.matrix)
        assert problem.certify(answer.primal, nothing).lower_bound <= answer.objective

    def test_multipliers_of_another_kind_are_refused(self) -> None:
        problem, strategy = dm.LocalStrategy(dm.workloads.prefix(4), 1.0), randomised_response(4, 1.0)
        honest = problem.dual_at(strategy)
        anything: Any = np.zeros(4)
        with pytest.raises(dm.errors.InputTypeError, match="dual relaxation must be a Relaxation"):
            problem.certify(strategy, replace(honest, relaxation=anything))
        with pytest.raises(dm.errors.InvalidInputError, match=r"squares must have shape \(4,\)"):
            problem.certify(strategy, replace(honest, relaxation=Relaxation.of(3)))
        for number in (np.nan, np.inf, 1e300):
            endless = replace(Relaxation.of(4), squares=np.full(4, number), sizes=np.full(2, number))
            judged = problem.certify(strategy, replace(honest, relaxation=endless))
            assert judged.lower_bound <= problem.certify(strategy, honest).lower_bound

    def test_a_lying_solver_is_never_certified(self) -> None:
        strategy, _ = subset_selection(8, 1.0)
        problem = dm.LocalStrategy(HISTOGRAM(8), 1.0)
        honest = problem.dual_at(strategy)
        lies: dict[str, tuple[Any, dm.duals.LocalDual]] = {
            "less private": (randomised_response(8, 1.1), honest),
            "scaled": (1.01 * strategy, honest),
            "negative": (strategy - 0.1, honest),
            "NaN": (strategy * np.nan, honest),
            "cannot answer": (np.full((3, 8), 1 / 3), honest),
            "raised dual": (randomised_response(8, 1.0), dm.duals.LocalDual(honest.matrix, honest.costs / 2)),
            "NaN dual": (randomised_response(8, 1.0), dm.duals.LocalDual(honest.matrix * np.nan, honest.costs)),
        }
        for strategy, dual in lies.values():
            judged = problem.certify(strategy, dual)
            assert not judged.certifies(1e-3)
            assert judged.lower_bound <= problem.certify(subset_selection(8, 1.0)[0], honest).objective

    @given(seeds, epsilons)
    @quick
    def test_repair_makes_any_matrix_private(self, seed: int, epsilon: float) -> None:
        rng = np.random.default_rng(seed)
        problem = dm.LocalStrategy(HISTOGRAM(4), epsilon)
        repaired = problem.feasible(rng.random((9, 4)) ** 4).strategy
        dm.LocalMechanism(np.vstack([repaired / 2, randomised_response(4, epsilon) / 2]), epsilon, HISTOGRAM(4))
        exact = randomised_response(4, epsilon)
        np.testing.assert_allclose(problem.feasible(exact).strategy, exact, rtol=1e-12)

    def test_bad_input_is_refused_by_name(self) -> None:
        for message, arguments in (
            ("must be a Workload of dualmech", {"workload": np.eye(2)}),
            ("at least two cells", {"workload": HISTOGRAM(1)}),
            ("not all zero", {"workload": dm.Workload(np.zeros((2, 2)))}),
            ("epsilon must be positive", {"epsilon": 0.0}),
            ("epsilon must be from 1e-06 to 100, got 101", {"epsilon": 101.0}),
            ("epsilon must be from 1e-06 to 100", {"epsilon": 1e-7}),
            ("criterion must be one of average, worst", {"criterion": "median"}),
            ("prior belongs to the average case", {"criterion": "worst", "prior": [0.5, 0.5]}),
            ("prior must hold 2 non-negative numbers", {"prior": [0.5, 0.6]}),
            ("prior must hold 2 non-negative numbers", {"prior": [1.5, -0.5]}),
        ):
            given_arguments: dict[str, Any] = {"workload": HISTOGRAM(2), "epsilon": 1.0, **arguments}
            with pytest.raises(dm.errors.DualmechError, match=message):
                dm.LocalStrategy(**given_arguments)


class TestMechanism:
    def test_queries_that_are_all_zero_are_answered_by_zeros(self) -> None:
        mechanism = dm.LocalMechanism(randomised_response(3, 1.0), 1.0, dm.Workload(np.zeros((2, 3))))
        assert not mechanism.reconstruction.any()
        assert not mechanism.user_variances.any()
        with pytest.raises(dm.errors.InvalidInputError, match="reconstruction must satisfy V Q = W"):
            dm.LocalMechanism(mechanism.strategy, 1.0, mechanism.workload, reconstruction=np.full((2, 3), 1e-9))

    def test_a_user_reports_by_the_strategy(self) -> None:
        mechanism = dm.LocalMechanism(randomised_response(4, 1.0), 1.0, HISTOGRAM(4))
        rng = np.random.default_rng(0)
        reports = np.bincount([mechanism.respond(2, rng) for _ in range(4000)], minlength=4)
        assert abs(reports[2] / 4000 - mechanism.strategy[2, 2]) < 0.04
        assert mechanism.respond(1, rng=5) == mechanism.respond(1, rng=5)
        for user, error in (
            (4, dm.errors.InvalidInputError),
            (-1, dm.errors.InvalidInputError),
            (True, dm.errors.InputTypeError),
        ):
            with pytest.raises(error, match="user must be an integer from 0 to 3"):
                mechanism.respond(user)

    def test_survives_a_file(self, tmp_path: Path) -> None:
        mechanism = dm.LocalMechanism(randomised_response(3, 1.0), 1.0, dm.workloads.prefix(3))
        dm.save(mechanism, tmp_path / "local.npz")
        loaded = dm.load(tmp_path / "local.npz")
        np.testing.assert_array_equal(loaded.strategy, mechanism.strategy)
        np.testing.assert_array_equal(loaded.user_variances, mechanism.user_variances)

    def test_what_is_not_private_or_biased_is_refused(self) -> None:
        response, identity = randomised_response(3, 1.0), np.eye(3)
        for message, arguments in (
            ("not 1-LDP: an output has probabilities .* for user type 0", {"strategy": randomised_response(3, 1.1)}),
            ("columns of sum 1, column ", {"strategy": 0.9 * response}),
            ("must not be negative", {"strategy": identity - 0.1}),
            ("not 1-LDP", {"strategy": identity}),
            ("must have 3 columns", {"strategy": randomised_response(2, 1.0)}),
            ("cannot answer", {"strategy": np.full((2, 3), 0.5)}),
            (r"reconstruction must have shape \(3, 3\)", {"reconstruction": np.eye(2)}),
            ("V Q = W", {"reconstruction": identity}),
            ("either reconstruction or prior", {"reconstruction": identity, "prior": [1, 0, 0]}),
        ):
            given_arguments: dict[str, Any] = {"strategy": response, "epsilon": 1.0, "workload": HISTOGRAM(3)}
            with pytest.raises(dm.errors.DualmechError, match=message):
                dm.LocalMechanism(**given_arguments | arguments)
        mechanism, endless = dm.LocalMechanism(response, 1.0, HISTOGRAM(3)), [np.nan, 0, 0]
        for x in ([1, 2], [1, 2, -3], [1.5, 0, 0], endless):
            with pytest.raises(dm.errors.DualmechError, match="x must"):
                mechanism.simulate(x)


class TestRoot:
    """The root of W'W that the judge works with, and what it may be off by."""

    @pytest.mark.parametrize(("big", "sparse"), [(1e2, True), (1e4, False), (1e6, False), (1e8, True), (1e12, False)])
    def test_a_heavy_total_changes_no_variance(self, big: float, sparse: bool) -> None:
        _, least = subset_selection(4, 1.0)
        matrix = np.vstack([np.full((1, 4), big), np.eye(4)])
        workload = dm.Workload(scipy.sparse.csr_array(matrix) if sparse else matrix)
        for criterion, optimum in (("worst", least / 4 - 1), ("average", least + 4 * big**2)):
            judged = dm.fast.solve(dm.LocalStrategy(workload, 1.0, criterion), tol=1e-9).certificate
            low, high = judged.interval
            assert judged.certifies(1e-9) and low <= optimum <= high
        blind = np.ones((1, 4))
        problem = dm.LocalStrategy(workload, 1.0, "worst")
        assert not problem.certify(blind, problem.dual_at(blind)).feasible

    @given(seeds, st.booleans(), st.sampled_from(["average", "worst"]))
    @quick
    def test_its_inner_products_are_those_of_the_queries(self, seed: int, sparse: bool, criterion: str) -> None:
        rng = np.random.default_rng(seed)
        size, rank = int(rng.integers(2, 6)), int(rng.integers(1, 6))
        matrix = rng.integers(-9, 10, (int(rng.choice([1, 4, 9, 40, 300, 1200])), rank)) @ rng.integers(
            -3, 4, (rank, size)
        )
        matrix = (matrix + 10.0 ** rng.integers(0, 9, (len(matrix), 1))).astype(float)
        problem = dm.LocalStrategy(dm.Workload(scipy.sparse.csr_array(matrix) if sparse else matrix), 1.0, criterion)
        exact = np.vectorize(Fraction, otypes=[object])(matrix)
        if criterion == "worst" and np.any(np.ptp(matrix, axis=1)):
            exact = exact - exact.sum(axis=1, keepdims=True) / size
        root, off = np.vectorize(Fraction, otypes=[object])(problem.root), Fraction(problem.root_off)
        missed = float(np.square(root.T @ root - exact.T @ exact).sum()) ** 0.5
        norm = float(np.linalg.norm(problem.root))
        assert len(problem.root) <= size and problem.root_off <= 1e-10 * norm
        assert missed <= (2 * float(off) * norm + float(off) ** 2) * (1 + 1e-9)

    @given(seeds, st.sampled_from(["average", "worst"]), st.sampled_from([1e-10, 1e-6, 1e-3]))
    @quick
    def test_the_interval_allows_for_what_it_may_be_off_by(self, seed: int, criterion: str, share: float) -> None:
        rng = np.random.default_rng(seed)
        moved = rng.standard_normal((4, 4))
        moved *= share / np.linalg.norm(moved)
        problem = dm.LocalStrategy(dm.Workload(np.eye(4) + moved), 1.0, criterion)
        answer = dm.fast.solve(problem, tol=1e-11)
        set_parts(problem, root_off=share)
        _, least = subset_selection(4, 1.0)
        low, high = problem.certify(answer.primal, answer.dual).interval
        assert low <= (least if criterion == "average" else least / 4 - 1) <= high <= low + 100 * least * share + 1e-8


class TestSmallVariances:
    def test_no_interval_is_empty_and_no_variance_negative(self) -> None:
        for epsilon in (20.0, 40.0):
            problem = dm.LocalStrategy(dm.workloads.prefix(4), epsilon, "worst")
            strategy = problem.feasible(randomised_response(4, epsilon))
            low, high = problem.certify(strategy, problem.dual_at(strategy)).interval
            assert 0 <= low <= high
            variances = problem.mechanism(strategy).user_variances
            # Reports are wrong with probability e^-ε, and off by squares of few.
            assert np.all(variances > 0) and variances.max() < 100 * np.exp(-epsilon)

    @pytest.mark.parametrize("small", [1.0, 1e-200])
    def test_every_query_is_answered_whatever_the_size_of_others(self, small: float) -> None:
        # Outputs that cannot tell the last two user types apart: the second query is nothing but their difference.
        rows = (1 + local.gain(1.0) * np.eye(3)[:, [0, 1, 2, 2]]) / (3 + local.gain(1.0))
        blind = np.vstack([rows[:2], 1 - rows[:2].sum(axis=0)])
        workload = dm.Workload([[1.0, -1, 0, 0], [0, 0, small, -small]])
        with pytest.raises(dm.errors.InvalidInputError, match="misses query 1 by|cannot answer"):
            dm.LocalMechanism(blind, 1.0, workload)
        honest = dm.LocalMechanism(randomised_response(4, 1.0), 1.0, workload)
        np.testing.assert_allclose(honest.reconstruction @ honest.strategy, workload.dense(), rtol=1e-12, atol=1e-15)
        biased = honest.reconstruction * [[1.0], [1 + 1e-6]]
        with pytest.raises(dm.errors.InvalidInputError, match="misses query 1 by"):
            dm.LocalMechanism(honest.strategy, 1.0, workload, reconstruction=biased)
        blurred = (1 - 1e-12) * honest.strategy.mean(axis=1, keepdims=True) + 1e-12 * honest.strategy
        with pytest.raises(dm.errors.InvalidInputError, match="V Q = W|cannot answer"):
            dm.LocalMechanism(blurred, 1.0, dm.workloads.prefix(4))
