"""The minimum of the refined privacy ordering: unique, certified in every stage, and better than other optima."""

import functools
import itertools
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.fast.refinement import solve_stage
from dualmech.problems.refinement import RefinementStage
from dualmech.problems.refinement import refine as refine_by_stages
from dualmech.validate import Array
from dualmech.watching import without_warnings

PROFILE, COVARIANCE = 1e-6, 1e-5
"""Agreement, relative to the largest entry, of sorted profiles and of covariances."""


def coupled(seed: int, size: int = 5) -> dm.FitnessForUse:
    """Return a random sparse 0/1 workload with random targets: most have several stages, coupled."""
    rng = np.random.default_rng(seed)
    matrix = (rng.random((size + int(rng.integers(-1, 2)), size)) < 0.3).astype(float)
    matrix[0, 0] = 1.0
    matrix = matrix[matrix.any(axis=1)]
    return dm.FitnessForUse(dm.Workload(matrix), rng.uniform(1, 10, len(matrix)))


@functools.cache
def refined(seed: int, size: int = 5) -> dm.Refinement:
    return fast.refine(coupled(seed, size))


def random_basis(problem: dm.FitnessForUse, rng: np.random.Generator) -> Array:
    size = problem.geometry.rank
    mix = np.linalg.qr(rng.standard_normal((size, size)))[0] * rng.uniform(0.5, 2.0, size)
    return mix @ problem.basis


def distance(one: Array, two: Array) -> float:
    return float(np.abs(one - two).max() / np.abs(one).max())


def other_optimum(answer: dm.Refinement) -> Array | None:
    """Return an optimal covariance that is not the refined one: less noise where the first stage left a choice."""
    if len(answer.stages) < 2:
        return None
    first, second = answer.stages[:2]
    shrink = (1 + second.objective / first.objective) / 2
    if shrink > 0.99:
        return None
    fixed = second.problem.fixed @ second.problem.fixed.T
    return np.asarray(fixed + shrink * (answer.covariance - fixed))


def agree(one: dm.Refinement, two: dm.Refinement) -> None:
    assert one.certified and two.certified
    assert distance(np.sort(one.profile), np.sort(two.profile)) <= PROFILE
    assert distance(one.covariance, two.covariance) <= COVARIANCE


INSTANCES = {
    "one row": dm.FitnessForUse(dm.Workload([[1, 2, 0, 3]]), 1.0),
    "one column": dm.FitnessForUse(dm.Workload([[1.0], [2.0], [0.5]]), [1, 2, 3]),
    "one cell": dm.FitnessForUse(dm.Workload([[3.0]]), 2.0),
    "wide": dm.FitnessForUse(dm.Workload(np.hstack([np.tril(np.ones((3, 3))), np.eye(3, 5)])), 1.0),
    "tall": dm.FitnessForUse(dm.workloads.all_range(4), np.linspace(1, 9, 10)),
    "rank-deficient": dm.FitnessForUse(dm.Workload([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]]), [1, 4, 9]),
    "duplicated rows": dm.FitnessForUse(dm.Workload(np.vstack([np.eye(3)] * 2)), [1, 2, 3, 3, 2, 1]),
    "duplicated columns": dm.FitnessForUse(dm.Workload(np.repeat(np.tril(np.ones((3, 3))), 2, axis=1)), [1, 5, 2]),
    "zero row and column": dm.FitnessForUse(dm.Workload([[1, 0, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0]]), [1, 2, 3]),
    "cells in many units": dm.FitnessForUse(
        dm.Workload((np.eye(5) + np.tril(np.ones((5, 5)))) * 10.0 ** np.arange(-2, 3)), 1.0
    ),
    "workload in millions": dm.FitnessForUse(dm.Workload(1e6 * np.kron(np.eye(2), [[1, 0], [1, 1]])), [1, 1, 1, 7]),
    "targets in millionths": dm.FitnessForUse(dm.workloads.identity_total(4), [1e-6, 2e-6, 3e-6, 4e-6, 9e-6]),
    "replace one": dm.FitnessForUse(
        dm.workloads.identity_total(4), [1, 2, 3, 4, 5], neighbours=dm.neighbours.replace_one(4)
    ),
    "sparse": dm.FitnessForUse(dm.workloads.marginals(dm.Domain({"a": 2, "b": 3}), ways=(1, 2)), 1.0, geometry="dense"),
}


class TestUniqueness:
    """Theorem 11: the minimum of the ordering is one covariance, however it is found."""

    def test_any_basis(self) -> None:
        """The mechanism and its profile do not depend on the basis, by Theorems 2 and 4."""
        for seed in range(8):
            problem, rng = coupled(seed), np.random.default_rng(seed)
            other = dm.FitnessForUse(problem.workload, problem.targets, basis=random_basis(problem, rng))
            one, two = refined(seed), fast.refine(other)
            assert one.certified and two.certified, seed
            assert distance(np.sort(one.profile), np.sort(two.profile)) <= PROFILE, seed
            assert distance(one.covariance, two.mechanism.rebase(problem.basis).covariance()) <= COVARIANCE, seed

    def test_any_order_of_cells_and_queries_and_any_unit(self) -> None:
        for seed in range(6):
            problem, rng, one = coupled(seed, 4), np.random.default_rng(seed), refined(seed, 4)
            cells, queries = (rng.permutation(problem.workload.shape[1]), rng.permutation(problem.workload.shape[0]))
            mixed = dm.Workload(problem.workload.dense()[queries][:, cells])
            two = fast.refine(dm.FitnessForUse(mixed, problem.targets[queries]))
            assert distance(one.profile[cells], two.profile) <= PROFILE, seed
            costs = one.mechanism.cost_matrix[np.ix_(cells, cells)]
            assert distance(costs, two.mechanism.cost_matrix) <= COVARIANCE, seed
            factor = 10.0 ** rng.choice([-6, 6])
            two = fast.refine(dm.FitnessForUse(problem.workload, factor * problem.targets, basis=problem.basis))
            assert distance(one.profile, factor * two.profile) <= PROFILE, seed
            assert distance(factor * one.covariance, two.covariance) <= COVARIANCE, seed

    @pytest.mark.parametrize(("backend", "seeds"), [("CLARABEL", range(6)), ("SCS", (3, 5))])
    def test_either_layer_and_any_backend(self, backend: str, seeds: Iterable[int]) -> None:
        for seed in seeds:
            agree(refined(seed), reference.refine(coupled(seed), backend=backend))

    def test_several_stages_were_among_them(self) -> None:
        counts = [len(refined(seed).stages) for seed in range(8)]
        assert max(counts) >= 3 and sum(count > 1 for count in counts) >= 4

    @pytest.mark.parametrize("name", INSTANCES)
    def test_every_kind_of_workload(self, name: str) -> None:
        one = fast.refine(INSTANCES[name])
        agree(one, reference.refine(INSTANCES[name]))
        assert one.solution.certificate.certifies(1e-9)


class TestMinimality:
    def test_beats_other_optima(self) -> None:
        for seed in range(12):
            problem, answer = coupled(seed), refined(seed)
            plain = fast.solve(problem, tol=1e-9)
            assert dm.compare_privacy(answer.mechanism, plain, tol=1e-7) <= 0, seed
            covariance = other_optimum(answer)
            if covariance is not None:
                # Optimal as well: feasible, and its privacy cost is the proven optimum.
                rival = problem.certify(covariance, answer.solution.dual)
                assert rival.feasible and rival.gap <= 1e-9, seed
                assert dm.compare_privacy(answer.mechanism, problem.mechanism(covariance), tol=1e-7) == -1, seed

    def test_strictly_better_where_blocks_differ(self) -> None:
        # Two blocks, one cheaper: a solver may spend the spare cost of the second, the refined answer does not.
        problem = dm.FitnessForUse(dm.Workload(np.kron(np.diag([1, 0.5]), [[1, 0], [1, 1]])), 1.0)
        best, plain = fast.refine(problem), fast.solve(problem, tol=1e-9)
        np.testing.assert_allclose(best.profile, np.repeat([4 / 3, 1 / 3], 2), rtol=1e-9)
        assert dm.compare_privacy(best.mechanism, plain, tol=1e-7) == -1
        spare = best.mechanism.free_budget() - plain.mechanism.free_budget(best.profile.max() * (1 + 1e-8))
        assert spare.max() > 0.1

    def test_independent_blocks_have_their_own_optima(self) -> None:
        rng = np.random.default_rng(0)
        blocks, targets = [(rng.random((3, 3)) < 0.5) + 2 * np.eye(3) for _ in range(2)], rng.uniform(1, 10, (2, 3))
        whole = dm.Workload(scipy.linalg.block_diag(*blocks))
        answer = fast.refine(dm.FitnessForUse(whole, targets.ravel()))
        alone = [
            fast.refine(dm.FitnessForUse(dm.Workload(*own[:1]), own[1])) for own in zip(blocks, targets, strict=True)
        ]
        np.testing.assert_allclose(answer.profile, np.concatenate([each.profile for each in alone]), rtol=1e-7)
        assert np.abs(answer.covariance[:3, 3:]).max() <= COVARIANCE * np.abs(answer.covariance).max()

    def test_is_the_limit_of_soft_maxima_of_growing_ratio(self) -> None:
        # Problem 4 with t2/t1 and t1 growing: the variances' soft max then leaves the order to the costs.
        problem = dm.FitnessForUse(dm.Workload(np.kron(np.diag([1, 0.9**0.5]), [[1, 0], [1, 1]])), 1.0)
        profile = np.sort(fast.refine(problem).profile)
        np.testing.assert_allclose(profile, [1.2, 1.2, 4 / 3, 4 / 3], rtol=1e-9)
        errors = []
        for sharpness in (20.0, 40.0, 80.0, 160.0):
            smooth = dm.SoftmaxFitness(problem.workload, problem.targets, sharpness, sharpness**2)
            errors.append(distance(profile, np.sort(fast.solve(smooth, tol=1e-10).mechanism.profile)))
        assert all(after < 0.6 * before for before, after in itertools.pairwise(errors))

    def test_is_not_the_limit_of_the_papers_soft_maxima(self) -> None:
        """With t1 = t2 = t the minimiser of Problem 4 on two cells that share nothing is diag(1, 2) at every t.

        There the soft maxima of costs (1, 1/2) and of variances (1, 2/4) are equal, so the gradients cancel. The
        minimum of the ordering is diag(1, 4), with profile (1, 1/4): the limit is an optimum, but not that one.
        """
        problem = dm.FitnessForUse(dm.Workload(np.diag([1, 0.5])), 1.0)
        best = fast.refine(problem)
        np.testing.assert_allclose(best.covariance, np.diag([1, 4]), rtol=1e-9)
        for sharpness in (1.0, 4.0, 16.0):
            smooth = dm.SoftmaxFitness(problem.workload, problem.targets, sharpness, sharpness)
            answer = fast.solve(smooth, tol=1e-10)
            np.testing.assert_allclose(answer.primal, np.diag([1, 2]), rtol=1e-6)
            assert dm.compare_privacy(best.mechanism, answer.mechanism, tol=1e-6) == -1

    def test_only_one_stage_where_every_cost_is_tight(self) -> None:
        answer = fast.refine(dm.FitnessForUse(dm.workloads.prefix(16), 1.0))
        assert len(answer.stages) == 1
        np.testing.assert_allclose(answer.profile, answer.profile.max(), rtol=1e-9)


class TestCertificates:
    def test_stages_descend_and_end_with_nothing_open(self) -> None:
        for seed in range(12):
            answer = refined(seed)
            values = [stage.objective for stage in answer.stages]
            assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(values)), seed
            for value in (values[0], answer.solution.objective):
                assert value == pytest.approx(answer.profile.max(), rel=1e-12), seed
            assert all(stage.status is dm.Status.CERTIFIED and stage.gap <= answer.gap for stage in answer.stages), seed

    def test_weak_duality_on_the_face(self) -> None:
        rng = np.random.default_rng(0)
        for solution in itertools.chain.from_iterable(refined(seed).stages for seed in range(12)):
            stage = solution.problem
            rows, room = stage.rows[stage.queries], stage.slack[stage.queries]
            for _ in range(3):
                weights = rng.exponential(size=stage.moves.shape[1]), rng.exponential(size=len(stage.rows))
                half = rng.standard_normal((stage.open.shape[1],) * 2) + 2 * np.eye(stage.open.shape[1])
                inner = half @ half.T
                feasible = stage.covariance(inner / (np.einsum("jk,jk->j", rows @ inner, rows) / room).max())
                judged = stage.certify(feasible, weights)
                assert judged.feasible
                assert judged.lower_bound <= min(judged.objective, solution.objective) * (1 + 1e-9)

    def test_lies_are_not_certified(self) -> None:
        answer = refined(3)
        noise = answer.covariance
        assert len(answer.stages) > 1
        for solution in answer.stages:
            stage, dual = solution.problem, solution.dual
            lies = {
                "scaled up": noise * 1.1,
                "indefinite": noise - 2 * np.trace(noise) * np.eye(len(noise)),
                "not a number": np.full_like(noise, np.nan),
                # Less noise: feasible, but off the face that stage 2 stands on.
                "off the face": noise * (0.9 if stage.fixed.shape[1] else 1.01),
            }
            for name, lie in lies.items():
                assert not stage.certify(lie, dual).certifies(1e-6), name
            for bad in (-dual.neighbour_weights, np.full_like(dual.neighbour_weights, np.nan)):
                assert stage.certify(noise, (bad, dual.query_weights)).lower_bound == 0
            for scale in (1e-300, 1e300):
                weights = tuple(scale * part / part.max() for part in dual)
                judged = stage.certify(solution.primal, weights)
                assert judged.lower_bound == pytest.approx(solution.lower_bound, rel=1e-12)

    def test_a_stage_is_a_problem_of_its_own(self) -> None:
        answer = refined(3)
        for solution in answer.stages:
            assert solution.prices.sum() == pytest.approx(1)
            assert set(solution.binding) <= set(solution.problem.neighbours)
            np.testing.assert_allclose(solution.mechanism.profile, answer.mechanism.profile, rtol=1e-9)
            program = reference.formulate(solution.problem)
            assert float(program.solve(solver="CLARABEL")) == pytest.approx(solution.objective, rel=1e-5)

    def test_an_almost_parallel_direction_hides_nothing(self) -> None:
        # Settled noise halved, beside an open direction that is nearly the same: far off the face all the same.
        problem = dm.FitnessForUse(dm.Workload(np.eye(3)), [2.0, 1.0, 1.0])
        for epsilon in (1e-3, 1e-5, 1e-7, 1e-9):
            open_direction = np.array([[1.0], [0.0], [epsilon]])
            stage = dm.results.RefinementStage(problem, np.eye(3)[:, :2], open_direction, neighbours=np.array([2]))
            lie = stage.covariance()
            lie[1, 1] = 0.5
            judged = stage.certify(lie, ([0, 0, 1.0], [1.0, 0, 0]))
            assert judged.violation > 0.1 and not judged.certifies(1e-6)

    def test_what_is_no_dual_or_no_stage_is_refused(self) -> None:
        answer = refined(3)
        stage, ones = answer.stages[0].problem, np.ones(5)
        with pytest.raises(dm.errors.InvalidInputError, match="must be 5, one per pair of neighbours, got 1"):
            stage.certify(answer.covariance, (np.ones(1), np.ones(1)))
        for bad in ("text", (ones, ones, ones), (ones, ["a"] * 5), 3.0):
            with pytest.raises((dm.errors.InputTypeError, dm.errors.InvalidInputError)):
                stage.certify(answer.covariance, bad)
        with pytest.raises(dm.errors.InvalidInputError, match="neighbours must be integers"):
            dm.results.RefinementStage(stage.problem, stage.fixed, stage.open, neighbours=np.array([7]))
        with pytest.raises(dm.errors.InvalidInputError, match="fixed must have"):
            dm.results.RefinementStage(stage.problem, np.ones((1, 1)), stage.open)

    def test_says_so_where_a_stage_is_not_proven(self) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning, match="a stage has a gap of"):
            answer = fast.refine(dm.FitnessForUse(dm.workloads.prefix(6), 1.0), tol=1e-16)
        assert not answer.certified


class TestHardStages:
    """Found by users: a stage that was given up too early, and problems on the edge of double precision."""

    def test_a_path_whose_covariance_comes_late(self) -> None:
        matrix = [[1.0042, 0, -0.0092, -0.0561], [0, 0.5, 0, 0.0355], [-0.026, 0, 0.9, 0], [0, 0, 0, 1]]
        problem = dm.FitnessForUse(dm.Workload(matrix), [1, 1.0397, 1, 1])
        answer = fast.refine(problem)
        assert answer.certified
        assert answer.solution.objective == pytest.approx(fast.solve(problem, tol=1e-9).objective, rel=1e-8)

    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
    @pytest.mark.parametrize("layer", [fast, reference])
    def test_units_worlds_apart_end_honestly(self, layer: object) -> None:
        matrix = np.diag(10.0 ** np.linspace(-6, 6, 6)) @ np.tril(np.ones((6, 6)))
        for problem in (
            dm.FitnessForUse(dm.Workload(matrix), 1.0),
            dm.PrivacyFirst(dm.Workload(matrix), 1.0, cost=2.0),
            dm.FitnessForUse(dm.workloads.prefix(6), 10.0 ** np.linspace(4, -4, 6)),
        ):
            answer = layer.refine(problem)  # type: ignore[attr-defined]
            statuses = [stage.status is dm.Status.CERTIFIED for stage in answer.stages]
            assert statuses == sorted(statuses, reverse=True)  # nothing is proven after what is not
            assert answer.certified is (all(statuses) and answer.solution.status is dm.Status.CERTIFIED)


def test_a_stage_that_cannot_be_held_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a late stage overflows is a matter of the last digits; what was found before it is the answer."""
    solved: list[Any] = []
    own = fast.refinement.solve_stage

    def once(stage: Any, **options: Any) -> Any:
        if solved:
            raise np.linalg.LinAlgError("the weighted workload is no longer finite")
        solved.append(stage)
        return own(stage, **options)

    monkeypatch.setattr("dualmech.fast.refinement.solve_stage", once)
    problem = dm.FitnessForUse(dm.workloads.prefix(6), [1, 1, 1, 4, 4, 4])
    with pytest.warns(dm.errors.UncertifiedWarning):
        answer = fast.refine(problem)
    assert not answer.certified and answer.solution.certificate.feasible and len(answer.stages) == 1


class TestPrivacyFirst:
    def test_is_the_same_mechanism_scaled(self) -> None:
        # Theorem 5: Problem 2's solution is Problem 1's, scaled, and so is the tie-breaking.
        problem, one = coupled(3), refined(3)
        for layer in (fast, reference):
            two = layer.refine(dm.PrivacyFirst(problem.workload, problem.targets, cost=0.5))
            assert two.certified
            factor = 0.5 / one.profile.max()
            np.testing.assert_allclose(two.profile, factor * one.profile, rtol=1e-5)
            assert distance(one.covariance / factor, two.covariance) <= COVARIANCE
            assert two.solution.problem.cost == 0.5


class TestInput:
    def test_what_is_refused_is_named(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(3), 1.0)
        for refine in (fast.refine, reference.refine):
            with pytest.raises(dm.errors.InputTypeError, match="problem must be FitnessForUse or PrivacyFirst"):
                refine("prefix")  # type: ignore[arg-type]
            with pytest.raises(dm.errors.InvalidInputError, match="tol"):
                refine(problem, tol=0.0)
        with pytest.raises(dm.errors.BackendError, match="NOPE"):
            reference.refine(problem, backend="NOPE")
        with pytest.raises(dm.errors.InvalidInputError, match="formulation"):
            reference.formulate(fast.refine(problem).stages[0].problem, formulation="logdet")

    def test_extreme_units_end_honestly(self) -> None:
        matrix = (np.eye(6) + np.tril(np.ones((6, 6)))) * 10.0 ** np.arange(-4, 2)[:, None]
        with without_warnings():
            answer = fast.refine(dm.FitnessForUse(dm.Workload(matrix), 1.0))
        assert answer.certified == (answer.gap <= 1e-9 and answer.solution.certificate.resolution <= 1e-9)


SPREAD = [462.73138847595914, 0.0010296477663374718, 0.1504605892598013, 2.971346685194559, 0.001887334498861446]
"""Targets whose second stage left a direction open that only its rounding reached."""


def spread_targets(seed: int) -> dm.FitnessForUse:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    return dm.FitnessForUse(dm.workloads.prefix(count), 10.0 ** rng.uniform(-3, 3, count))


class TestNeverLess:
    """A refinement returns no less than any of its stages, the first of which is the problem itself."""

    def test_targets_over_six_decades(self) -> None:
        problems = [dm.FitnessForUse(dm.workloads.prefix(5), SPREAD)]
        for problem in problems + [spread_targets(seed) for seed in (*range(4), 50, 52, 170, 249, 371, 420, 455)]:
            with without_warnings():
                whole, answer = fast.solve(problem, tol=1e-9), fast.refine(problem)
            tolerance = 1e-8 + answer.solution.certificate.resolution
            assert answer.solution.certificate.feasible, problem.targets
            assert answer.solution.objective <= whole.objective * (1 + tolerance), problem.targets
            # A stage that is not certified is as close as rounding allows.
            assert all(stage.gap <= 1e-9 + stage.certificate.resolution for stage in answer.stages), problem.targets

    @pytest.mark.parametrize("factor", [1e-3, 1e3])
    def test_a_stage_that_raises_an_earlier_cost_is_left_out(self, factor: float) -> None:
        """The second stage's solver returns noise that is far too small, or too large, in the open directions."""
        problem = next(coupled(seed) for seed in range(8) if len(refined(seed).stages) > 1)
        stages: list[RefinementStage] = []

        def solve(stage: RefinementStage) -> Any:
            inner, dual, steps = solve_stage(stage)
            stages.append(stage)
            return (inner if len(stages) == 1 else factor * inner), dual, steps

        with without_warnings():
            answer = refine_by_stages(problem, np.eye(problem.geometry.rank), solve, tol=1e-9, solver="test")
        assert len(stages) == 2 and len(answer.stages) == 1 and not answer.certified
        assert answer.solution.certificate.certifies(1e-9)


def optimum_of_two(stage: RefinementStage, reach: float) -> Fraction:
    """Return the optimum of the stage of `spent`, whose move e_2 costs ``(reach / s)² + 1 / M``, exactly."""
    noise, seen = Fraction(float(stage.fixed[0, 0])) ** 2, Fraction(reach) ** 2
    return seen / noise + max(Fraction(1), seen / (1 - noise))


@given(
    st.sampled_from([1e-1, 1e-6, 3e-13, 4e-16, 2.3e-16]),
    st.sampled_from([0.0, 0.3, 1.0, 2.0, 1e3]),
    st.sampled_from([0.0, 1e-3, 1.0, 1e12]),
)
def test_what_settled_noise_leaves_of_a_target_may_be_rounding(left: float, reach: float, weight: float) -> None:
    """Two cells with targets of 1: fixed noise spends all but `left` of the first, which open noise reaches."""
    problem, seen = dm.FitnessForUse(dm.workloads.identity(2), 1.0), reach * left**0.5
    root = np.nextafter(np.sqrt(1 - left), 0)
    stage = RefinementStage(problem, np.array([[root], [0.0]]), np.array([[seen], [1.0]]), np.array([1]))
    optimum = optimum_of_two(stage, seen)
    least = 1 / float(optimum - Fraction(seen) ** 2 / Fraction(float(root)) ** 2)
    for noise in (least, least * (1 + 1e-10)):
        judged = stage.certify(stage.covariance(np.array([[noise]])), ([0, 1], [weight, 1]))
        low, high = judged.interval
        assert Fraction(low) <= optimum and (high == np.inf or optimum <= Fraction(high))
