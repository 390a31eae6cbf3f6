"""Local privacy for many user types: sets that are drawn, weights by a multiplicative rule, limits of time."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.fast.local import barrier, bound, points, search
from dualmech.fast.local.points import Frame
from dualmech.geometry import local
from dualmech.geometry.local import Relaxation
from dualmech.watching import without_warnings

quick = settings(max_examples=12)
seeds = st.integers(0, 10_000)
epsilons = st.sampled_from([0.1, 1.0, 4.0])


class TestThresholds:
    @quick
    @given(st.floats(0.02, 0.98), st.floats(0.05, 0.5))
    def test_gaussian_correlations_are_those_of_what_is_above_a_threshold(self, rho: float, share: float) -> None:
        # By the definition: the chance that both variables are above, from the conditional law of one.
        import scipy.integrate
        import scipy.special

        level = scipy.special.ndtri(1 - share)
        deviation = (1 - rho**2) ** 0.5
        both = scipy.integrate.quad(
            lambda x: np.exp(-x * x / 2) / (2 * np.pi) ** 0.5 * scipy.special.ndtr((rho * x - level) / deviation),
            *(level, level + 12),
        )[0]
        wanted = (both - share**2) / (share * (1 - share))
        found = search.gaussian_correlations(np.array([[1.0, wanted], [wanted, 1.0]]), share)
        assert found[0, 1] == pytest.approx(rho, abs=2e-3) and found[0, 0] == 1

    @quick
    @given(seeds, st.integers(2, 12), epsilons)
    def test_sets_are_proper_and_as_large_as_subset_selection_has_them(
        self, seed: int, size: int, epsilon: float
    ) -> None:
        rng = np.random.default_rng(seed)
        root = rng.standard_normal((int(rng.integers(1, 2 * size)), size)) * (rng.random(size) < 0.7)
        sets = search.Thresholds.of(root, local.selected_size(size, epsilon)).draw(17, rng)
        assert sets.shape == (17, size) and len(set(sets.sum(axis=1))) == 1
        assert 0 < sets[0].sum() < size

    @quick
    @given(seeds)
    def test_the_correlations_are_nearly_the_best_there_are(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        root = dm.workloads.prefix(8).dense()
        centred = root - root.mean(axis=1, keepdims=True)
        half = rng.standard_normal((8, 12))
        half /= np.linalg.norm(half, axis=1, keepdims=True)
        values, best = [], search.best_correlations(root)
        for share in (0.0, 0.05, 0.3, 1.0):
            mixed = (1 - share) * best + share * half @ half.T
            values.append(float(np.trace(centred @ np.linalg.inv(mixed) @ centred.T)))
        assert min(values) > values[0] * (1 - 2e-3)


class TestWeighing:
    @quick
    @given(seeds, st.integers(3, 8), epsilons)
    def test_never_rises_and_keeps_columns_at_one(self, seed: int, size: int, epsilon: float) -> None:
        rng = np.random.default_rng(seed)
        prior = rng.dirichlet(3 * np.ones(size))
        frame = Frame.of(rng.standard_normal((size, size)), epsilon, prior, adversary=False)
        point, before = points.start(frame, local.all_sets(size)), np.inf
        for _ in range(6):
            point, view, count = search.reweigh(frame, point, 0.0, 1)
            assert count == 1 and view.objective <= before * (1 + 1e-9)
            np.testing.assert_allclose(point.weights @ view.rows, 1, rtol=1e-5)
            before = view.objective

    def test_ends_at_the_optimum(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(6), 1.0)
        frame = Frame.of(problem.root, 1.0, problem.prior, adversary=False)
        _, view, count = search.reweigh(frame, points.start(frame, local.all_sets(6)), 1e-9, 3000)
        assert count < 3000
        assert view.objective * frame.unit**2 == pytest.approx(fast.solve(problem).objective, rel=1e-4)


@quick
@given(seeds, st.integers(2, 8), epsilons)
def test_heaviest_patterns_are_those_that_rows_split_into(seed: int, size: int, epsilon: float) -> None:
    rng = np.random.default_rng(seed)
    strategy = 1 + local.gain(epsilon) * rng.random((4, size))
    weights, sets = local.split_into_patterns(strategy, epsilon)
    most = int(rng.integers(1, 4 * size))
    heaviest, found = search.heaviest_patterns(strategy, epsilon, most)
    assert len(found) == len(heaviest) == min(most, 4 * (size - 1))
    known = {(each.tobytes(), round(weight, 9)) for weight, each in zip(weights, sets, strict=True)}
    assert {(each.tobytes(), round(weight, 9)) for weight, each in zip(heaviest, found, strict=True)} <= known


def test_a_workload_that_leaves_most_types_out_is_no_worse_than_by_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "MAX_ROUNDS", 2)  # of the bound nothing is asked
    matrix = np.zeros((3, 40))
    matrix[:, :5] = np.random.default_rng(1).standard_normal((3, 5))
    problem = dm.LocalStrategy(dm.Workload(matrix), 1.0)
    with without_warnings():
        descent = fast.solve(problem, method="gradient")
        found = fast.solve(problem, max_iterations=60)
    assert found.solver == "fast:restart" and found.objective < descent.objective


def test_a_climb_begins_near_the_closed_form_and_ends_above() -> None:
    size, epsilon = 12, 1.0
    problem = dm.LocalStrategy(dm.workloads.prefix(size), epsilon)
    program = bound.BoundProgram.of(problem.root, np.ones(size), epsilon)
    value = program.evaluate(bound._start(program))[0]
    assert np.log(bound.MIN_START_RATIO * program.trace_bound) <= value <= np.log(program.trace_bound)
    # All rounds: how far a single one comes depends on the processor.
    matrix, costs, relaxation = bound.best_multipliers(problem.root, np.ones(size), epsilon)
    judged = problem.certify(
        problem.feasible(1 + np.eye(size)), dm.duals.LocalDual(matrix, costs, relaxation=relaxation)
    )
    assert judged.lower_bound > local.trace_bound(problem.root, epsilon) * 1.01


@pytest.mark.slow  # by the clock of a machine that may have other work
@pytest.mark.parametrize(("name", "size"), [("auto", 200), ("gradient", 200)])
def test_a_limit_holds_and_the_answer_is_good(name: str, size: int) -> None:
    problem = dm.LocalStrategy(dm.workloads.prefix(size), 1.0)
    began = time.perf_counter()
    with without_warnings():
        answer = fast.solve(problem, method=name, time_limit=4.0)
    # Judging, too, is within the limit.
    assert time.perf_counter() - began < 2 * 4.0
    assert answer.certificate.feasible
    assert answer.gap < (0.2 if name == "auto" else 3.0)


@quick
@given(seeds, st.integers(2, 8), st.sampled_from([0.1, 1.0, 8.0, 30.0]))
def test_variances_are_those_of_their_definition(seed: int, size: int, epsilon: float) -> None:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size)) + 10.0 ** rng.integers(-3, 4)
    strategy = 1 + local.gain(epsilon) * np.eye(size)
    strategy /= strategy.sum(axis=0)
    reconstruction = root @ np.linalg.inv(strategy)
    expected = [
        sum(strategy[o, u] * ((reconstruction[:, o] - root[:, u]) ** 2).sum() for o in range(size)) for u in range(size)
    ]
    np.testing.assert_allclose(local.user_variances(root, strategy, reconstruction), expected, rtol=1e-12)


def test_a_design_that_would_not_fit_into_memory_is_not_made() -> None:
    problem = dm.LocalStrategy(dm.workloads.identity(search.MAX_USER_TYPES + 1), 1.0)
    assert search.strategy(problem, np.random.default_rng(0)) is None


def test_in_the_worst_case_the_even_prior_proves_more_than_the_closed_form() -> None:
    problem = dm.LocalStrategy(dm.workloads.prefix(20), 1.0, "worst")
    size, gain = problem.user_types, np.exp(1.0) - 1
    strategy = (1 + gain * np.eye(size)) / (size + gain)
    blank = dm.duals.LocalDual(
        np.zeros((size, len(problem.root))), np.zeros(size), np.full(size, 1 / size), Relaxation.of(size)
    )
    even = bound.improve_even_bound(problem, blank)
    point = problem.feasible(problem.as_primal(strategy))
    bounds = [problem.certify(point, each).lower_bound for each in (blank, even)]
    assert bounds[1] > 1.01 * bounds[0]


class TestReversal:
    """Workloads that are the same in reverse: one weight stands for a set and for its image."""

    def test_is_seen_in_what_matters_alone(self) -> None:
        for workload, mirrored in (
            (dm.workloads.prefix(7), True),  # sums from the end say as much
            (dm.workloads.all_range(6), True),
            (dm.Workload(np.diag([1.0, 2.0, 3.0])), False),
            (dm.Workload(np.eye(2)), False),  # there are two sets: nothing to gain
        ):
            problem = dm.LocalStrategy(workload, 1.0)
            assert Frame.of(problem.root, 1.0, problem.prior, adversary=False).mirrored == mirrored
        uneven = dm.LocalStrategy(dm.workloads.prefix(3), 1.0, prior=[0.5, 0.25, 0.25])
        assert not Frame.of(uneven.root, 1.0, uneven.prior, adversary=False).mirrored

    @pytest.mark.parametrize(("criterion", "epsilon"), [("average", 3.0), ("worst", 0.3)])
    def test_leaves_the_optimum_where_it_is(
        self, criterion: str, epsilon: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(9), epsilon, criterion)
        mirrored = fast.solve(problem, tol=1e-7)
        monkeypatch.setattr(points, "same_in_reverse", lambda centred: False)
        plain = fast.solve(problem, tol=1e-7)
        assert mirrored.status is plain.status is dm.Status.CERTIFIED
        assert mirrored.lower_bound <= plain.objective and plain.lower_bound <= mirrored.objective

    @quick
    @given(seeds, st.integers(3, 9), epsilons)
    def test_members_bring_about_what_representatives_do(self, seed: int, size: int, epsilon: float) -> None:
        rng = np.random.default_rng(seed)
        problem = dm.LocalStrategy(dm.workloads.prefix(size), epsilon)
        frame = Frame.of(problem.root, epsilon, problem.prior, adversary=False)
        every = local.all_sets(size)
        weights = points.balance_columns(rng.uniform(0.9, 1.1, len(every)) * size / len(every), frame.rows(every))
        point = points.start(frame, every, weights)
        sets, places, shares = frame.members(point.sets)
        assert len(np.unique(sets, axis=0)) == len(sets) == len(every)
        weights, rows = shares * point.weights[places], local.rows(sets, epsilon)
        np.testing.assert_allclose(weights @ rows, point.weights @ frame.rows(point.sets))
        view = points.View.of(frame, point)
        gram = (rows.T * weights) @ rows
        value = float(np.trace(problem.root @ np.linalg.solve(gram, problem.root.T)))
        assert view.objective * frame.unit**2 == pytest.approx(value, rel=1e-8)


class TestBarrier:
    @quick
    @given(seeds, st.integers(3, 7), epsilons)
    def test_newton_steps_have_the_derivatives_right(self, seed: int, size: int, epsilon: float) -> None:
        """M is the gradient, and near the centre a step gains half its squared length: the curvature is right."""
        rng = np.random.default_rng(seed)
        root, share = rng.standard_normal((2, size)), np.ones(size)
        lift = np.hstack([np.ones((size, 1)), local.gain(epsilon) * np.eye(size)])
        products = barrier.Products.of(share, lift, np.arange(1, size - 1))
        point = barrier._start_point(root / np.linalg.norm(root), share, lift, products, bound.NO_DEADLINE)
        assert point is not None
        root, tau = root / np.linalg.norm(root), 0.1 * point.norm
        for _ in range(40):
            step, length, moments = barrier._newton_step(root, lift, products, point, tau)
            if length < 1e-4 * tau:
                break
            point, _ = barrier._newton(root, lift, products, point, tau, bound.NO_DEADLINE)
        slope = products.means(moments)
        slope[2 * size :] += tau / point.values[2 * size :]
        change = 1e-5 * rng.standard_normal(len(step)) * np.abs(point.values)
        ends = [barrier._Point.at(root, lift, products, point.values + sign * change) for sign in (1, -1)]
        assert ends[0] is not None and ends[1] is not None
        rise = (ends[0].value(tau) - ends[1].value(tau)) / 2
        assert rise == pytest.approx(float(slope @ change), rel=1e-3, abs=1e-9 * point.norm)
        step, length, _ = barrier._newton_step(root, lift, products, point, tau)
        moved = barrier._Point.at(root, lift, products, point.values + 0.1 * step)
        assert moved is not None
        gained = moved.value(tau) - point.value(tau)
        assert gained == pytest.approx((0.1 - 0.005) * length, rel=0.02, abs=1e-12 * point.norm)

    @pytest.mark.parametrize(("size", "epsilon", "share"), [(16, 1.0, 0.998), (16, 4.0, 1 - 1e-6)])
    def test_few_multipliers_prove_nearly_the_optimum(self, size: int, epsilon: float, share: float) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(size), epsilon)
        dual = bound.few_multipliers(problem)
        assert dual is not None
        answer = fast.solve(problem, tol=1e-3)
        judged = problem.certify(answer.primal, dual)
        assert share * answer.lower_bound <= judged.lower_bound <= answer.objective

    def test_a_nearly_singular_curvature_causes_no_warning(self) -> None:
        """The diagonal takes back what the ridge adds, up to rounding: SciPy's own solver warned of it."""
        curvature = np.ones((4, 4)) - 447 * 2.0**-52 * np.eye(4)
        step, _ = barrier._fixed_sum_step(curvature, np.array([1.0, -1, 0, 0]), 2)
        assert np.all(np.isfinite(step))

    def test_many_multipliers_are_left_to_the_climb(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(barrier, "MAX_VARIABLES", 30)
        problem = dm.LocalStrategy(dm.workloads.prefix(12), 4.0)
        assert bound.few_multipliers(problem) is None
        matrix, costs, relaxation = bound.best_multipliers(problem.root, np.ones(12), 4.0)
        judged = problem.certify(1 + np.eye(12), dm.duals.LocalDual(matrix, costs, relaxation=relaxation))
        assert judged.lower_bound > local.trace_bound(problem.root, 4.0)
