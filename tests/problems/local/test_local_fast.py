"""Local privacy's fast solvers: certified optima, the paper's gradient descent, search and bounds for many types."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from intervals import contains

import dualmech as dm
from dualmech import fast, reference
from dualmech.fast.engine import loop
from dualmech.fast.local import bound, columns, gradient, points, search
from dualmech.fast.local.estimate import columns_within
from dualmech.geometry import local
from dualmech.geometry.local import Relaxation
from dualmech.studies import rivals
from dualmech.validate import Array
from dualmech.watching import without_warnings

quick = settings(max_examples=12)
seeds = st.integers(0, 10_000)
CUBE = dm.Domain({"a": 2, "b": 2, "c": 2})
EPSILONS = (0.5, 1.0, 2.0, 4.0)

KNOWN = {
    "all range": (dm.workloads.all_range(8), (4960.7000, 1220.1840, 317.7719, 136.8418)),
    "marginals": (dm.workloads.marginals(CUBE, ways=(0, 1, 2, 3)), (3645.8962, 879.4881, 211.7908, 75.8695)),
    "one-way": (dm.workloads.marginals(CUBE, ways=1), (612.1485, 180.5770, 59.5939, 27.8496)),
}
"""Optima of L at ε = 0.5, 1, 2, 4 from an independent convex program over all patterns, to four decimals.

At small ε that for the one-way marginals is singular.
"""


def subset_selection(size: int, epsilon: float, criterion: str = "average") -> float:
    mean = rivals.subset_selection(size, epsilon).objective(dm.workloads.identity(size))
    return mean if criterion == "average" else (mean - size) / size


def random_problem(seed: int) -> dm.LocalStrategy:
    """Any criterion, prior, rank, scale of the queries and ε; duplicated, zero and sparse rows among them."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 9))
    queries = int(rng.choice([1, 2, size, 3 * size]))
    matrix = rng.standard_normal((queries, size))
    kind = rng.integers(6)
    if kind == 1:
        matrix = np.outer(rng.standard_normal(queries), rng.standard_normal(size))
    elif kind == 2:
        matrix = matrix * 10.0 ** rng.uniform(-6, 6, (queries, 1))
    elif kind == 3:
        matrix = np.vstack([matrix, matrix[:1], 0 * matrix[:1]])
    elif kind == 4:
        matrix[:, 0] = 0
    elif kind == 5:
        matrix = rng.integers(0, 2, (queries, size)) + np.eye(queries, size)
    epsilon = float(rng.choice([0.01, 0.1, 0.5, 1, 2, 4, 10]))
    criterion = str(rng.choice(["average", "worst"]))
    prior = rng.dirichlet(np.ones(size)) if criterion == "average" and rng.random() < 0.5 else None
    return dm.LocalStrategy(dm.Workload(matrix), epsilon, criterion, prior)


def uncertified(problem: dm.LocalStrategy, **options: Any) -> dm.Solution:
    with pytest.warns(dm.errors.UncertifiedWarning):
        return fast.solve(problem, **options)


class TestExact:
    @pytest.mark.parametrize("name", KNOWN)
    def test_known_optima(self, name: str) -> None:
        workload, optima = KNOWN[name]
        for epsilon, optimum in zip(EPSILONS, optima, strict=True):
            for layer in (fast, reference)[: 2 if epsilon in (0.5, 4.0) else 1]:
                answer = layer.solve(dm.LocalStrategy(workload, epsilon), tol=1e-6)
                assert answer.status is dm.Status.CERTIFIED and contains(answer.certificate, optimum, 0.5e-4 / optimum)
                assert answer.objective == pytest.approx(optimum, abs=6e-5 + 1e-6 * optimum)
                assert answer.mechanism.worst_ratio <= np.exp(epsilon) * (1 + 1e-9)

    def test_histograms_are_subset_selection(self) -> None:
        for size, epsilon in itertools.product((2, 3, 5, 12), (0.01, 1.0, 10.0)):
            for criterion in ("average", "worst"):
                answer = fast.solve(dm.LocalStrategy(dm.workloads.identity(size), epsilon, criterion))
                expected = subset_selection(size, epsilon, criterion)
                assert answer.status is dm.Status.CERTIFIED
                assert answer.objective == pytest.approx(expected, rel=1e-6, abs=1e-6), (size, epsilon, criterion)

    def test_the_worst_case_of_a_prefix(self) -> None:
        answer = fast.solve(dm.LocalStrategy(dm.workloads.prefix(4), 1.0, "worst"), tol=1e-9)
        assert answer.objective == pytest.approx(6.0759361, abs=1e-7)
        mean = fast.solve(dm.LocalStrategy(dm.workloads.prefix(4), 1.0))
        average = (mean.objective - np.square(dm.workloads.prefix(4).dense()).sum()) / 4
        assert average <= answer.objective <= mean.mechanism.worst_variance() + 1e-9
        fast.solve(dm.LocalStrategy(dm.workloads.marginals(CUBE, ways=1), 0.5, "worst"))  # warns of nothing

    @quick
    @given(seeds)
    def test_anything_small_is_certified(self, seed: int) -> None:
        answer = fast.solve(random_problem(seed))
        assert answer.status is dm.Status.CERTIFIED and answer.certificate.feasible

    def test_sixteen_user_types(self) -> None:
        answer = fast.solve(dm.LocalStrategy(dm.workloads.prefix(16), 1.0))
        assert answer.status is dm.Status.CERTIFIED
        assert answer.objective == pytest.approx(1332.9372, rel=2e-6)
        assert len(answer.mechanism.strategy) <= 16 * 17 / 2


class TestMaster:
    @quick
    @given(seeds, st.booleans())
    def test_newton_steps_solve_the_linearised_equations(self, seed: int, adversary: bool) -> None:
        """Halving a short step quarters what it misses: first derivatives are right."""
        rng = np.random.default_rng(seed)
        problem = dm.LocalStrategy(dm.Workload(rng.standard_normal((4, 4))), 1.0, "worst" if adversary else "average")
        frame = points.Frame.of(problem.root, 1.0, problem.prior, adversary)
        point = points.start(frame, local.all_sets(4), rng.uniform(0.1, 1, 14))
        view, aim = points.View.of(frame, point), 0.1
        equations = columns.MasterEquations(frame, point, view)
        change = equations.change(np.full(14, aim), np.full(4, aim))
        before = columns.distance(frame, point, point, view, aim)
        misses = []
        for length in (2e-4, 1e-4):
            moved = points.take_step(point, change, length, length)
            after = columns.distance(frame, point, moved, points.View.of(frame, moved), aim)
            misses.append(abs(after - (1 - length) * before))
        assert misses[1] <= 0.3 * misses[0] + 1e-11 * before

    @quick
    @given(seeds)
    def test_balanced_weights_give_columns_of_sum_one(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = local.rows(local.all_sets(5), 1.0)
        weights = rng.uniform(0.8, 1.2, len(rows)) * 5 / len(rows)
        assert points.balance_columns(weights, rows) @ rows == pytest.approx(1)

    @quick
    @given(seeds, st.booleans())
    def test_moments_solve_the_equations_of_the_patterns(self, seed: int, mirrored: bool) -> None:
        rng = np.random.default_rng(seed)
        workload = dm.workloads.prefix(5) if mirrored else dm.Workload(rng.standard_normal((5, 5)))
        problem = dm.LocalStrategy(workload, 1.0)
        frame = points.Frame.of(problem.root, 1.0, problem.prior, False)
        point = points.start(frame, local.all_sets(5), rng.uniform(0.1, 1, 30))
        assert frame.mirrored == mirrored
        view, aim = points.View.of(frame, point), rng.uniform(0.01, 0.1, len(point.weights))
        changes = [
            kind(frame, point, view).change(aim, np.zeros(5))
            for kind in (columns.MasterEquations, columns.MomentEquations)
        ]
        for name in ("weights", "slacks", "costs"):
            one, other = (getattr(change, name) for change in changes)
            assert np.abs(one - other).max() <= 1e-8 * np.abs(one).max(), name

    @pytest.mark.parametrize("double", [columns.MAX_DOUBLE_PRECISION_USER_TYPES, 0])
    def test_all_patterns_are_priced(self, double: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "MAX_DOUBLE_PRECISION_USER_TYPES", double)
        problem = dm.LocalStrategy(dm.workloads.prefix(6), 1.0)
        frame = points.Frame.of(problem.root, 1.0, problem.prior, False)
        point = points.start(frame, columns.intervals(6))
        view = points.View.of(frame, point)
        rise, found = columns.price_patterns(frame, point, view, 10)
        every = local.all_sets(6)
        rows = local.rows(every, 1.0)
        excess = np.square(rows @ view.matrix).sum(axis=1) - rows @ point.costs
        best = local.rows(found, 1.0)
        assert rise == pytest.approx(excess.max())
        # A set stands for its image in reverse, which prices the same.
        first = np.all(frame.representatives(every) == every, axis=1)
        assert np.square(best @ view.matrix).sum(axis=1) - best @ point.costs == pytest.approx(
            np.sort(excess[first])[::-1][: len(found)]
        )


class TestGradient:
    @quick
    @given(seeds, st.booleans())
    def test_the_gradient_is_the_slope(self, seed: int, even: bool) -> None:
        rng = np.random.default_rng(seed)
        share = np.ones(4) if even else 4 * rng.dirichlet(np.ones(4))
        task = gradient.DescentObjective(np.eye(4) + 0.3, share, np.e)
        first = gradient.random_start(task, 12, rng)
        assume(first.objective < 1e6)  # differences say nothing where types are next to indistinguishable
        direction, step = rng.standard_normal((12, 4)), 1e-6
        ends = [
            gradient.evaluate(task, first.strategy + sign * step * direction, first.floor).objective for sign in (1, -1)
        ]
        slope = float((first.gradient * direction).sum())
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-4 * first.objective)

    @quick
    @given(seeds)
    def test_the_floors_gradient_is_the_slope_through_the_projection(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        task = gradient.DescentObjective(np.eye(4) + 0.3, np.ones(4), np.e)
        first = gradient.random_start(task, 12, rng)
        given = 3 * rng.uniform(size=(12, 4))
        direction, step = rng.standard_normal(12) * first.floor, 1e-7

        def value(shift: float) -> gradient.DescentIterate:
            floor = first.floor + shift * direction
            return gradient.evaluate(task, gradient.project_columns(given, floor, np.e), floor)

        slope = float(gradient.floor_gradient(value(0.0), np.e) @ direction)
        assert (value(step).objective - value(-step).objective) / (2 * step) == pytest.approx(
            slope, rel=1e-3, abs=1e-3 * first.objective
        )

    def test_it_ends_near_the_optimum_and_the_published_one_farther(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(8), 1.0)
        best = fast.solve(problem).objective
        full = [uncertified(problem, method=fast.ProjectedGradient(rng=seed)).objective for seed in range(3)]
        published = [uncertified(problem, method=fast.PublishedGradient(rng=seed)).objective for seed in range(3)]
        assert best < min(full) and np.median(full) < 1.12 * best
        assert 1.14 * best < np.median(published) < 1.26 * best

    @pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0])
    def test_it_never_crashes_and_stays_private(self, epsilon: float) -> None:
        tables, large = dm.workloads.marginals(CUBE, ways=1), dm.Workload(1e6 * np.eye(5)[:2])
        for workload, outputs in ((tables, None), (tables, 8), (large, 15)):
            answer = uncertified(dm.LocalStrategy(workload, epsilon), method=fast.ProjectedGradient(outputs=outputs))
            assert answer.certificate.feasible

    def test_the_worst_case_is_judged_as_such(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(5), 1.0, "worst")
        answer = uncertified(problem, method=fast.ProjectedGradient(rng=1))
        assert answer.objective >= fast.solve(problem).lower_bound
        assert answer.solver == "fast:gradient"

    def test_steps_are_counted_and_a_cut_is_said(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(5), 1.0)
        answer = uncertified(problem, method="gradient", max_iterations=7)
        assert answer.iterations == len(answer.history) == 7
        assert answer.status is dm.Status.STEPS_EXHAUSTED
        assert answer.message.startswith("it was stopped after 7 steps")
        free = uncertified(problem, method=fast.ProjectedGradient(step_size=1e-4, iterations=7))
        assert free.iterations == 7 and free.status is dm.Status.STALLED
        assert "stopped" not in free.message
        assert "stopped after" in uncertified(problem, method="restart", max_iterations=1).message

    @quick
    @given(seeds, st.sampled_from([fast.ProjectedGradient, fast.PublishedGradient]), st.sampled_from([None, 0.01, 1e6]))
    def test_no_descent_ends_above_its_start(self, seed: int, kind: Any, step_size: float | None) -> None:
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        size, most = problem.user_types, np.exp(problem.epsilon)
        raw = rng.uniform(1, most, (3 * size, size)) ** rng.integers(0, 2, (3 * size, 1))
        own = local.repair(raw, problem.epsilon)
        begun = problem.certify(dm.duals.LocalPoint(own, problem.prior), problem.dual_at(own)).objective
        method = kind(step_size=step_size)
        with without_warnings():
            answer = fast.solve(problem, method=method, start=own, max_iterations=20)
            again = fast.solve(problem, method=method, start=answer, max_iterations=20)
        assert answer.certificate.feasible and answer.objective <= begun * (1 + 1e-9)
        assert again.objective <= answer.objective * (1 + 1e-9)

    def test_the_hierarchical_mechanism_can_be_improved(self) -> None:
        """The paper's section on initialisation: begin with the best known factorisation, and never be worse."""
        problem = dm.LocalStrategy(dm.workloads.prefix(16), 1.0)
        tree: Any = rivals.hierarchical_response(16, 1.0)
        answer = uncertified(problem, method="gradient", start=tree.mechanism(problem.workload))
        assert 1332.93 < answer.objective < 0.9 * tree.objective(problem.workload)
        with pytest.raises(dm.errors.InvalidInputError, match="start: strategy is not 0.5-LDP"):
            fast.solve(dm.LocalStrategy(problem.workload, 0.5), method="gradient", start=tree.strategy)


@quick
@given(seeds, st.integers(2, 30), st.integers(1, 8), st.sampled_from([0.01, 1.0, 10.0]))
def test_columns_are_clipped_to_sum_one(seed: int, outputs: int, size: int, epsilon: float) -> None:
    rng = np.random.default_rng(seed)
    floor = rng.dirichlet(np.ones(outputs)) * rng.uniform(np.exp(-epsilon), 1)
    given = rng.standard_normal((outputs, size)) * 10.0 ** rng.uniform(-3, 2)
    shift = columns_within(given, floor, np.exp(epsilon) * floor)
    assert np.clip(given + shift, floor[:, None], np.exp(epsilon) * floor[:, None]).sum(axis=0) == (
        pytest.approx(1, abs=1e-11)
    )


class TestManyUserTypes:
    def test_a_search_comes_close_to_the_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bound, "MAX_ROUNDS", 4)
        problem = dm.LocalStrategy(dm.workloads.prefix(33), 1.0)
        answer = uncertified(problem, max_iterations=40)
        assert answer.solver == "fast:restart" and answer.certificate.feasible and answer.gap < 0.04
        assert answer.objective < 1.06 * local.trace_bound(problem.root, 1.0)

    def test_a_search_finds_the_optimum_where_it_is_known(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(12), 1.0)
        with without_warnings():
            answer = fast.solve(problem, method="restart", tol=1e-5)
        assert answer.gap <= 1e-3 and answer.solver == "fast:restart"
        assert answer.lower_bound <= 637.55633 * (1 + 1e-6) and answer.objective >= 637.55632

    def test_multipliers_prove_more_than_the_closed_form(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(12), 1.0)
        answer = fast.solve(problem)
        dual = bound.improve_bound(problem, answer.dual)
        judged = problem.certify(answer.primal, dual)
        assert dual.relaxation is not None and judged.gap < 0.003
        assert judged.lower_bound > 1.02 * local.trace_bound(problem.root, 1.0)

    @quick
    @given(seeds)
    def test_derivatives_in_multipliers_are_those_of_their_matrix(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        half = rng.standard_normal((6, 6))
        slopes = bound.multiplier_derivatives(half @ half.T)
        relaxation = Relaxation(*(rng.uniform(size=each.shape) for each in slopes))
        total = sum(
            float((getattr(relaxation, name) * each).sum()) for name, each in zip(bound.FIELDS, slopes, strict=True)
        )
        assert total == pytest.approx(float(np.vdot(relaxation.matrix(), half @ half.T)))

    @quick
    @given(seeds)
    def test_slopes_of_the_bound_are_its_derivatives(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        program = bound.BoundProgram.of(rng.standard_normal((3, 5)), 5 * rng.dirichlet(5 * np.ones(5)), 1.0)
        values = bound._start(program)
        values[5:] *= 0.9
        change = 1e-6 * rng.standard_normal(len(values)) * np.abs(values)
        ends = [program.evaluate(values + sign * change)[0] for sign in (1, -1)]
        slope = float(program.evaluate(values)[1] @ change)
        assert (ends[0] - ends[1]) / 2 == pytest.approx(slope, rel=1e-3, abs=1e-11)

    def test_histograms_get_a_design(self) -> None:
        for criterion, epsilon in (("average", 0.1), ("worst", 1.0), ("average", 4.0)):
            answer = fast.solve(dm.LocalStrategy(dm.workloads.identity(64), epsilon, criterion))
            assert answer.status is dm.Status.CERTIFIED and answer.solver == "fast:design"
            assert answer.objective == pytest.approx(subset_selection(64, epsilon, criterion), rel=1e-9)

    def test_only_workloads_that_treat_all_alike_get_one(self) -> None:
        assert search.treats_all_equally(dm.LocalStrategy(dm.workloads.identity_total(5), 1.0))
        assert not search.treats_all_equally(dm.LocalStrategy(dm.workloads.prefix(5), 1.0))
        prior = np.arange(1, 6) / 15
        assert not search.treats_all_equally(dm.LocalStrategy(dm.workloads.identity(5), 1.0, prior=prior))

    @quick
    @given(seeds)
    def test_climbers_end_where_no_single_move_helps(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        half, share = rng.standard_normal((6, 6)), 6 * rng.dirichlet(np.ones(6))
        form = half + half.T
        starts = local.all_sets(6)
        scores, sets = search.climb(form, share, 1.0, starts)

        def score(members: Array) -> float:
            vector = 1 + local.gain(1.0) * members
            return float(vector @ form @ vector / (vector.sum() * (vector @ share)))

        for found, value in zip(sets, scores, strict=True):
            assert value == pytest.approx(score(found))
            for user in range(6):
                moved = found ^ (np.arange(6) == user)
                assert not 0 < moved.sum() < 6 or score(moved) <= value + 1e-7 * (1 + abs(value))

    @settings(max_examples=5)
    @given(seeds, st.sampled_from([0.3, 1.0, 2.0]))
    def test_multipliers_bound_every_pattern(self, seed: int, epsilon: float) -> None:
        rng = np.random.default_rng(seed)
        root, share = rng.standard_normal((3, 7)), 7 * rng.dirichlet(5 * np.ones(7))
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(bound, "MAX_ROUNDS", 2)
                matrix, costs, relaxation = bound.best_multipliers(root, share, epsilon)
        except np.linalg.LinAlgError:
            reject()  # no multipliers to begin with were found: nothing is claimed, and `improve_bound` says so
        unit = np.linalg.norm(matrix)
        matrix, costs = matrix / unit, costs / unit**2
        relaxation = Relaxation(*(getattr(relaxation, name) / unit**2 for name in bound.FIELDS))
        rows = local.rows(local.all_sets(7), epsilon)
        slack = (rows @ costs) * (rows @ share) - np.square(rows @ matrix).sum(axis=1)
        assert slack.min() >= -1e-9
        # N is nearly singular at the best multipliers: the judge raises the costs by what rounding may hide there.
        assert local.excess(matrix, costs, share, epsilon, relaxation) <= 1e-4 * costs.sum()


class TestAnswers:
    def test_patterns_of_no_part_are_left_out(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(8), 1.0)
        frame = points.Frame.of(problem.root, 1.0, problem.prior, False)
        limits = loop.Limits.validated(1e-8, 1000, None, None)
        outcome = columns.generate(frame, limits)
        best = outcome.best_primal
        few, fewer, every = points.strategies(problem, frame, best.point, best.view)
        members, *_ = frame.members(best.point.sets)
        assert len(few.strategy) < len(every.strategy) == len(members) and len(fewer.strategy) <= 36

    @quick
    @given(seeds, st.booleans())
    def test_no_more_outputs_than_theory_needs(self, seed: int, adversary: bool) -> None:
        """Fewer patterns bring about the same G, and in the worst case the same variances."""
        rng = np.random.default_rng(seed)
        criterion = "worst" if adversary else "average"
        problem = dm.LocalStrategy(dm.Workload(rng.standard_normal((4, 5))), 1.0, criterion)
        frame = points.Frame.of(problem.root, 1.0, problem.prior, adversary)
        sets = local.all_sets(5)
        weights = points.balance_columns(rng.uniform(0.8, 1.2, len(sets)) / 6, local.rows(sets, 1.0))
        point = points.start(frame, sets, weights)
        *_, fewer, full = points.strategies(problem, frame, point, points.View.of(frame, point))
        assert len(fewer.strategy) <= 15 + 5 * adversary < len(full.strategy)
        before, after = (points.objective(problem, each) for each in (full, fewer))
        assert after == pytest.approx(before, rel=1e-9)

    def test_bad_options_are_named(self) -> None:
        problem, even = dm.LocalStrategy(dm.workloads.prefix(4), 1.0), np.full((4, 4), 0.25)
        cases: list[tuple[dict[str, Any], str]] = [
            ({"method": "newton"}, "method"),
            ({"method": fast.ProjectedGradient(outputs=3)}, "outputs"),
            ({"start": even}, "start belongs to gradient descent"),
            ({"method": "gradient", "start": even}, "start: strategy cannot answer"),
            ({"method": "gradient", "start": np.eye(3)}, "start: strategy must have 4 columns"),
            ({"method": fast.ProjectedGradient(outputs=8), "start": np.eye(4)}, "either outputs or start"),
            ({"tol": 0.0}, "tol"),
            ({"max_iterations": 0}, "max_iterations"),
        ]
        for options, named in cases:
            with pytest.raises(dm.errors.InvalidInputError, match=named):
                fast.solve(problem, **options)
        methods: list[tuple[Any, dict[str, Any]]] = [
            (fast.ProjectedGradient, {"step_size": 0.0}),
            (fast.PublishedGradient, {"iterations": 0}),
            (fast.ProjectedGradient, {"outputs": 0}),
            (fast.Restart, {"rng": -1}),
        ]
        for method, options in methods:
            with pytest.raises(dm.errors.InvalidInputError, match=next(iter(options))):
                method(**options)
        with pytest.raises(dm.errors.InvalidInputError, match="24 user types"):
            fast.solve(dm.LocalStrategy(dm.workloads.prefix(25), 1.0), method="exact")


@pytest.mark.parametrize(
    ("criterion", "method"), [("average", fast.ProjectedGradient), ("worst", fast.PublishedGradient)]
)
def test_descent_tells_its_progress_in_the_units_of_the_answer(criterion: str, method: Any) -> None:
    problem = dm.LocalStrategy(dm.workloads.prefix(6), 1.0, criterion)
    answer = fast.solve(problem, method=method(iterations=40), tol=1.0)
    assert answer.history[-1].objective == pytest.approx(answer.objective, rel=1e-6)


@pytest.mark.parametrize("criterion", ["average", "worst"])
def test_singular_equations_end_a_run_without_a_word_of_scipy(criterion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old kernel leaves a pivot of exactly 0 (random problems 1040 and 3841), of which SciPy only warns."""
    factorise, calls = columns.lapack.dgetrf, 0

    def singular(matrix: Any) -> Any:
        nonlocal calls
        calls += 1
        factors, pivots, _ = factorise(matrix)
        return factors, pivots, int(calls >= 6)

    monkeypatch.setattr(columns.lapack, "dgetrf", singular)
    with without_warnings():
        answer = fast.solve(dm.LocalStrategy(dm.workloads.prefix(3), 1.0, criterion=criterion), tol=1e-9)
    assert calls >= 6 and answer.certificate.feasible and answer.gap < 1
