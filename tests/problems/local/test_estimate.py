"""Non-negative estimates: closed cases, both layers against each other, weak duality, lies, input."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import contains

import dualmech as dm
from dualmech import fast, reference
from dualmech.validate import Array


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def agree(problem: dm.NonnegativeEstimate, first: dm.Certificate, second: dm.Certificate) -> bool:
    """Whether two intervals meet, up to rounding of what the gap is relative to."""
    (low, high), (least, most) = first.interval, second.interval
    slack = 1e-14 * problem.scale
    return low <= most + slack and least <= high + slack


HALF = normal(8, 4)
WORKLOADS: dict[str, Any] = {
    "identity": np.eye(6),
    "prefix": dm.workloads.prefix(8).dense(),
    "ranges": dm.workloads.all_range(6).dense(),
    "sparse": sp.csr_array(dm.workloads.prefix(5).dense()),
    "tall": normal(12, 5),
    "wide": normal(3, 7),
    "twice": np.repeat(np.abs(normal(6, 3)), 2, axis=1),
    "cancelling": np.hstack([HALF, -HALF]),
    "a cell in no query": np.abs(normal(4, 4)) * [0, 1, 1, 1],
    "one query": normal(1, 5),
    "one cell": normal(4, 1),
    "a query of zeros": np.vstack([np.eye(3), np.zeros((1, 3))]),
    "large": 1e6 * np.abs(normal(5, 4)),
    "small": 1e-6 * np.abs(normal(5, 4)),
}


def asked(name: str, total: float | None, noise: float = 3.0) -> dm.NonnegativeEstimate:
    workload, rng = dm.Workload(WORKLOADS[name]), np.random.default_rng(1)
    data = rng.poisson(3, workload.shape[1]) * (rng.random(workload.shape[1]) < 0.5)
    spread = float(np.abs(workload.dense()).max())
    answers = workload.apply(data.astype(float)) + noise * spread * rng.standard_normal(workload.shape[0])
    return dm.NonnegativeEstimate(workload, answers, total)


both_layers = pytest.mark.parametrize("layer", [fast, reference])


class TestClosedCases:
    @both_layers
    def test_cells_by_themselves_and_with_a_total(self, layer: Any) -> None:
        """They lose their negative part, or are projected onto a simplex."""
        answer = layer.solve(dm.NonnegativeEstimate(dm.workloads.identity(4), [3.0, -2.0, 0.5, -1.0]))
        np.testing.assert_allclose(answer.primal, [3, 0, 0.5, 0], atol=1e-4)
        assert contains(answer.certificate, 2.5, 1e-12)
        answer = layer.solve(dm.NonnegativeEstimate(dm.workloads.identity(3), [5.0, 4.0, -3.0], total=6))
        np.testing.assert_allclose(answer.primal, [3.5, 2.5, 0], atol=1e-3)
        assert contains(answer.certificate, 6.75, 1e-12) and answer.primal.sum() == pytest.approx(6, rel=1e-14)

    @both_layers
    def test_answers_that_could_be_are_kept(self, layer: Any) -> None:
        """The distance is 0, and the gap relative to the answers' own size."""
        workload = dm.workloads.prefix(4)
        for total in (None, 10.0):
            answer = layer.solve(dm.NonnegativeEstimate(workload, workload.apply([1, 2, 3, 4]), total))
            assert answer.status is dm.Status.CERTIFIED and answer.lower_bound <= 1e-12
            np.testing.assert_allclose(answer.primal, [1, 2, 3, 4], atol=0.05)

    @both_layers
    def test_answers_that_are_all_zero_and_no_users(self, layer: Any) -> None:
        answer = layer.solve(dm.NonnegativeEstimate(dm.workloads.prefix(3), np.zeros(3)))
        assert answer.status is dm.Status.CERTIFIED
        np.testing.assert_allclose(answer.primal, 0, atol=1e-2)
        spread = layer.solve(dm.NonnegativeEstimate(dm.workloads.identity(4), np.zeros(4), total=3))
        assert contains(spread.certificate, 9 / 8, 1e-12) and spread.status is dm.Status.CERTIFIED
        for answers in ([1.0, -2.0, 3.0], np.zeros(3)):
            problem = dm.NonnegativeEstimate(dm.workloads.prefix(3), answers, total=0)
            answer = layer.solve(problem)
            assert answer.status is dm.Status.CERTIFIED and not answer.primal.any()
            assert answer.objective == np.dot(answers, answers) / 2
            assert problem.certify([1e-9, 0, 0], answer.dual).violation == math.inf

    def test_it_agrees_with_scipy(self) -> None:
        for name in ("prefix", "ranges", "tall", "one cell"):
            problem = asked(name, None)
            distance = scipy.optimize.nnls(problem.workload.dense(), problem.answers)[1]
            assert contains(fast.solve(problem, tol=1e-10).certificate, distance**2 / 2, 1e-12), name


class TestLayers:
    @pytest.mark.parametrize("name", WORKLOADS)
    def test_they_agree(self, name: str) -> None:
        for total, noise in itertools.product((None, 12.0), (0.3, 10.0)):
            problem = asked(name, total, noise)
            quick, stated = fast.solve(problem, tol=1e-9), reference.solve(problem)
            assert quick.status is stated.status is dm.Status.CERTIFIED
            assert quick.certificate.violation == 0 and stated.certificate.violation == 0
            assert agree(problem, quick.certificate, stated.certificate)

    def test_the_other_backend(self) -> None:
        for total in (None, 12.0):
            problem = asked("prefix", total)
            first, second = fast.solve(problem), reference.solve(problem, backend="SCS")
            assert second.status is dm.Status.CERTIFIED
            assert agree(problem, first.certificate, second.certificate)

    def test_a_larger_one(self) -> None:
        rng = np.random.default_rng(0)
        workload = dm.workloads.random_range(200, 300, rng=rng)
        answers = workload.apply(rng.poisson(1.0, 200).astype(float)) + 5 * rng.standard_normal(300)
        for total in (None, 300.0):
            assert fast.solve(dm.NonnegativeEstimate(workload, answers, total)).status is dm.Status.CERTIFIED

    def test_the_estimate_is_nearer_to_the_truth(self) -> None:
        """Subset selection on prefixes: a projection onto a convex set that holds the truth."""
        workload, data = dm.workloads.prefix(6), np.array([40.0, 0, 5, 0, 0, 15])
        mechanism: Any = reference.solve(dm.LocalStrategy(workload, 1.0)).mechanism
        for seed in range(5):
            raw = mechanism.simulate(data, rng=seed)
            for total in (None, 60.0):
                estimate = fast.solve(dm.NonnegativeEstimate(workload, raw, total)).primal
                errors = [np.linalg.norm(a - workload.apply(data)) for a in (raw, workload.apply(estimate))]
                assert errors[1] <= errors[0] * (1 + 1e-9)


class TestJudge:
    @given(st.integers(0, 10**6), st.booleans())
    @settings(max_examples=50)
    def test_any_multipliers_stay_below_any_estimate(self, seed: int, known: bool) -> None:
        rng = np.random.default_rng(seed)
        shape = (int(rng.integers(1, 6)), int(rng.integers(1, 6)))
        matrix = rng.standard_normal(shape) * (rng.random(shape) < 0.7) + 1e-3
        problem = dm.NonnegativeEstimate(dm.Workload(matrix), rng.standard_normal(shape[0]), 2.0 if known else None)
        estimate = problem.feasible(rng.standard_normal(shape[1]))
        judged = problem.certify(estimate, dm.duals.EstimateDual(rng.standard_normal(shape[0])))
        best = fast.solve(problem)
        assert judged.feasible and judged.lower_bound <= judged.objective
        assert judged.lower_bound <= best.objective + 1e-13 * problem.scale
        assert best.lower_bound <= judged.objective

    def test_the_scale_of_the_multipliers_does_not_matter(self) -> None:
        for total in (None, 12.0):
            problem = asked("prefix", total)
            answer = fast.solve(problem)
            for factor in (1e-8, 3.0, 1e8):
                scaled = problem.certify(answer.primal, dm.duals.EstimateDual(factor * answer.dual.residual))
                assert scaled.lower_bound == pytest.approx(answer.lower_bound, rel=1e-12)

    def test_multipliers_that_miss_their_sign_are_lifted(self) -> None:
        problem = asked("tall", None)
        answer = fast.solve(problem, tol=1e-10)
        for size in (1e-8, 1e-4):
            nudged = dm.duals.EstimateDual(answer.dual.residual + size * normal(12))
            bound = problem.certify(answer.primal, nudged).lower_bound
            assert 0.9 * answer.lower_bound <= bound <= answer.objective

    def test_what_is_not_feasible(self) -> None:
        problem = dm.NonnegativeEstimate(dm.workloads.identity(3), [1.0, 1, 1], total=3)
        for estimate in ([1.0, 2, -1e-3], [1.0, 1, 1.01], [math.nan, 1, 1]):
            judged = problem.certify(estimate, dm.duals.EstimateDual(np.ones(3)))
            assert not judged.feasible and judged.gap == math.inf, estimate

    def test_cells_at_zero_bind(self) -> None:
        problem = dm.NonnegativeEstimate(dm.workloads.identity(3), [5.0, 4.0, -3.0])
        assert list(fast.solve(problem).binding) == [2]


class TestRuns:
    def test_a_limit_leaves_a_judged_answer(self) -> None:
        for total, options in itertools.product((None, 12.0), ({"max_iterations": 1}, {"max_iter": 1})):
            solve: Any = fast.solve if "max_iterations" in options else reference.solve
            with pytest.warns(dm.errors.UncertifiedWarning):
                answer = solve(asked("ranges", total, 0.3), **options)
            assert answer.status is dm.Status.STEPS_EXHAUSTED and answer.certificate.feasible

    def test_the_program_can_be_read(self) -> None:
        problem = dm.NonnegativeEstimate(dm.workloads.identity(3), [5.0, 4.0, -3.0], total=6)
        program = reference.formulate(problem)
        assert [constraint.label for constraint in program.constraints] == ["residual", "total"]
        program.solve(solver="CLARABEL")
        assert float(program.value) == pytest.approx(6.75, rel=1e-6)

    def test_there_is_nothing_to_release(self) -> None:
        answer = fast.solve(asked("prefix", None))
        for name in ("mechanism", "prices"):
            with pytest.raises(dm.errors.InvalidInputError, match="a NonnegativeEstimate has no"):
                getattr(answer, name)


class TestInput:
    def test_what_is_refused(self) -> None:
        cases: list[tuple[Any, float | None, str]] = [
            ([1.0, 2.0], None, "answers must have 3 entries, one per query, got 2"),
            ([1.0, 2.0, math.nan], None, "answers must be finite"),
            ([[1.0, 2.0, 3.0]], None, "answers must have 1 dimension"),
            ([1.0, 2.0, 1e50], None, "answers must have non-zero entries of magnitude"),
            ([1.0, 2.0, 3.0], -1.0, "total must be at least 0"),
            ([1.0, 2.0, 3.0], math.inf, "total must be finite"),
        ]
        for answers, total, named in cases:
            with pytest.raises(dm.errors.InvalidInputError, match=named):
                dm.NonnegativeEstimate(dm.workloads.identity(3), answers, total)
        with pytest.raises(dm.errors.InputTypeError, match="workload must be a Workload of dualmech"):
            dm.NonnegativeEstimate(np.eye(2), [1.0, 2.0])  # type: ignore[arg-type]
        with pytest.raises(dm.errors.InvalidInputError, match="at least one query that is not all zero"):
            dm.NonnegativeEstimate(dm.Workload(np.zeros((2, 2))), [1.0, 2.0])

    def test_answers_of_another_shape(self) -> None:
        problem = dm.NonnegativeEstimate(dm.workloads.identity(2), [1.0, 2.0])
        with pytest.raises(dm.errors.InvalidInputError, match="estimate must have 2 entries"):
            problem.feasible([1.0])
        with pytest.raises(dm.errors.InvalidInputError, match="dual must hold 2 residuals"):
            problem.certify([1.0, 2.0], dm.duals.EstimateDual(np.ones(1)))
        with pytest.raises(dm.errors.InputTypeError, match="dual must be a EstimateDual of dualmech"):
            problem.certify([1.0, 2.0], np.zeros(2))  # type: ignore[arg-type]
