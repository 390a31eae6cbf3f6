"""The reference layer: every statement with every backend is judged right, and a bad backend is never believed."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scs
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.reference import backends
from dualmech.reference import solving as reference_solving
from dualmech.studies import rivals
from dualmech.validate import Array
from dualmech.watching import without_warnings

FORMULATIONS = ("schur", "matrix_frac", "logdet", "sum")
BACKENDS = ("CLARABEL", "SCS")
PREFIX = dm.workloads.prefix(6).dense()


@dataclass(frozen=True)
class Case:
    """A problem, the interval its optimum is known to lie in, and why some statements are left out."""

    problem: Callable[[], Any]
    known: tuple[float, float] | None = None
    skipped: tuple[tuple[str, str], ...] = ()


def printed(number: float, digits: int) -> tuple[float, float]:
    return number - 0.5 * 10.0**-digits, number + 0.5 * 10.0**-digits


def exact(number: float) -> tuple[float, float]:
    return number, number


def asked(matrix: Any, targets: Any = 1.0, **options: Any) -> Callable[[], dm.FitnessForUse]:
    return lambda: dm.FitnessForUse(dm.Workload(matrix), targets, **options)


def prefix(d: int) -> Callable[[], dm.FitnessForUse]:
    return lambda: dm.FitnessForUse(dm.workloads.prefix(d), 1.0)


def identity_total(d: int, targets: Any = 1.0, **options: Any) -> Callable[[], dm.FitnessForUse]:
    return lambda: dm.FitnessForUse(dm.workloads.identity_total(d), targets, **options)


def value(program: cp.Problem, name: str) -> Array:
    return np.asarray(program.var_dict[name].value, dtype=np.float64)


LONG_PATH = (("logdet", "the central path is for small sizes"),)
MARGINALS = dm.workloads.marginals(dm.Domain({"a": 2, "b": 3, "c": 2}), ways=(1, 2)).dense()
MIXING = np.random.default_rng(1).standard_normal((6, 6))
UNITS = 10.0 ** np.array([6, 0, -6, 0, 6, -6])

CASES = {
    "prefix 2": Case(prefix(2), exact(4 / 3)),
    "prefix 4": Case(prefix(4), printed(1.7586, 4)),
    "prefix 8": Case(prefix(8), printed(2.2816, 4)),
    "prefix 16": Case(prefix(16), printed(2.9053, 4), (*LONG_PATH, ("matrix_frac", "one block per cell is slow here"))),
    "identity and total 1": Case(identity_total(1), exact(1.0)),
    "identity and total 5": Case(identity_total(5), exact(10 / 6)),
    "marginals": Case(asked(MARGINALS), None, LONG_PATH),
    "marginals, many targets": Case(
        asked(MARGINALS, np.linspace(1, 50, len(MARGINALS))),
        None,
        (*LONG_PATH, ("matrix_frac", "one block per cell is slow here")),
    ),
    "one row": Case(asked([[1.0, 2, 0, -3]], 2.0), exact(4.5)),
    "one column": Case(asked([[1.0], [2], [0.5]], [1.0, 2, 3]), exact(2.0)),
    "one number": Case(asked([[3.0]], 2.0), exact(4.5)),
    "rows asked twice": Case(asked(np.vstack([PREFIX, PREFIX, PREFIX[:1]]))),
    "large units": Case(asked(1e6 * PREFIX)),
    "small units": Case(asked(1e-6 * PREFIX)),
    "mixed units": Case(asked(np.vstack([1e6 * PREFIX, 1e-6 * PREFIX[::2]]))),
    "rows in mixed units": Case(
        asked(UNITS[:, None] * PREFIX),
        (4 / 3 * 1e12, 4 / 3 * 1e12 * (1 + 1e-5)),  # that of the two large rows; the others add next to nothing
        (("logdet", "SCS loses the path in units this far apart"),),
    ),
    "basis": Case(asked(PREFIX, basis=MIXING)),
    "one replaced": Case(asked(PREFIX, neighbours=dm.neighbours.replace_one(6)), None, LONG_PATH),
    "one replaced, total asked": Case(identity_total(5, neighbours=dm.neighbours.replace_one(5))),
    "one replaced, basis": Case(asked(PREFIX, basis=MIXING, neighbours=dm.neighbours.replace_one(6)), None, LONG_PATH),
    "all-zero query": Case(asked(np.insert(PREFIX, 2, 0.0, axis=0))),
    "all-zero cells": Case(asked(np.insert(PREFIX, [0, 6], 0.0, axis=1))),
    "households": Case(asked(PREFIX, neighbours=dm.neighbours.compositions(6, [(0, 0, 1), (2, 3, 4), (5,)]))),
    "privacy first": Case(lambda: dm.PrivacyFirst(dm.workloads.prefix(2), 1.0, cost=1 / 6), exact(8.0)),
    "privacy first, one replaced": Case(
        lambda: dm.PrivacyFirst(
            dm.workloads.identity_total(4), [1, 2, 3, 4, 5], 100.0, neighbours=dm.neighbours.replace_one(4)
        )
    ),
}

MATRIX = [
    pytest.param(
        case,
        formulation,
        backend,
        marks=[pytest.mark.skip(reason=reason) for name, reason in case.skipped if name == formulation],
        id=f"{name}-{formulation}-{backend}",
    )
    for number, (name, case) in enumerate(CASES.items())
    for turn, formulation in enumerate(FORMULATIONS)
    for backend in BACKENDS
    if turn == (number + 2) % len(FORMULATIONS) or (turn == 0 and (backend == "CLARABEL" or number % 2))
]
"""Every case by the default statement and by another one, in turn; SCS, which is slow, takes half of the first."""


def verify(answer: dm.Solution) -> None:
    """Check what every certified answer promises, from the problem's data alone."""
    problem, judged = answer.problem, answer.certificate
    assert answer.status is dm.Status.CERTIFIED, answer.message
    assert judged.gap <= answer.tol and judged.feasible
    assert problem.certify(answer.primal, answer.dual) == judged
    np.testing.assert_array_equal(answer.primal, answer.primal.T)
    neighbours, queries = answer.dual
    assert neighbours.shape == (problem.geometry.moves.shape[1],) and queries.shape == problem.targets.shape
    assert neighbours.min() >= 0 and queries.min() >= 0
    assert neighbours.sum() == pytest.approx(1) and queries @ problem.targets == pytest.approx(1)
    assert not queries[problem.geometry.free_queries].any()
    assert answer.mechanism.privacy_cost > 0 and answer.seconds > 0 and answer.iterations > 0


@pytest.mark.parametrize(("case", "formulation", "backend"), MATRIX)
def test_every_statement_with_every_backend_is_certified(case: Case, formulation: str, backend: str) -> None:
    problem = case.problem()
    answer = reference.solve(problem, backend=backend, formulation=formulation)
    verify(answer)
    assert answer.tol == {"CLARABEL": 1e-5, "SCS": 1e-3}[backend]
    assert answer.solver == f"reference:{backend}:{formulation}"
    low, high = answer.certificate.interval
    if case.known is not None:
        least, most = case.known
    else:
        with without_warnings():
            least, most = fast.solve(problem).certificate.interval
    assert low <= most * (1 + 1e-9) and least * (1 - 1e-9) <= high


class TestRandomProblems:
    @settings(max_examples=20)
    @given(
        st.integers(1, 5),
        st.integers(1, 5),
        st.integers(0, 10**6),
        st.sampled_from(FORMULATIONS[:2] + FORMULATIONS[3:]),
        st.sampled_from(BACKENDS),
    )
    def test_weak_duality_and_agreement(self, m: int, d: int, seed: int, formulation: str, backend: str) -> None:
        random = np.random.default_rng(seed)
        matrix = random.integers(-2, 3, (m, d)).astype(float)
        matrix[0, 0] = 1.0
        problem = dm.FitnessForUse(dm.Workload(matrix), random.uniform(0.1, 10, m))
        answer = reference.solve(problem, backend=backend, formulation=formulation)
        verify(answer)
        best = fast.solve(problem, tol=1e-6).certificate.interval
        assert answer.lower_bound <= best[1] * (1 + 1e-9) and best[0] <= answer.objective * (1 + 1e-9)

    def test_targets_scale_the_cost(self) -> None:
        once = reference.solve(asked(PREFIX, np.arange(1.0, 7))())
        for factor in (1e-5, 1 / 3, 1e7):
            again = reference.solve(asked(PREFIX, factor * np.arange(1.0, 7))())
            assert again.objective == pytest.approx(once.objective / factor, rel=2e-6)
            assert again.problem.certify(factor * once.primal, once.dual).gap <= 1e-5

    def test_the_same_twice(self) -> None:
        first, second = (reference.solve(prefix(6)(), backend="SCS") for _ in range(2))
        np.testing.assert_array_equal(first.primal, second.primal)


class TestPrograms:
    """The programs that `formulate` returns are the paper's, over the problem's own arrays."""

    @pytest.mark.parametrize(
        ("formulation", "variables", "labels"),
        [
            ("schur", {"Sigma", "Z", "alpha"}, ["schur", "privacy", "accuracy"]),
            ("matrix_frac", {"Sigma", "alpha"}, ["privacy[0]", "privacy[1]", "accuracy"]),
            ("logdet", {"Sigma", "Z", "alpha", "p", "q"}, ["schur", "privacy", "accuracy"]),
            ("sum", {"Sigma", "Z", "alpha", "kappa"}, ["schur", "privacy", "accuracy"]),
        ],
    )
    def test_the_printed_program_names_its_parts(
        self, formulation: str, variables: set[str], labels: list[str]
    ) -> None:
        program = reference.formulate(prefix(2)(), formulation)
        assert program.is_dcp() and set(program.var_dict) == variables
        assert [constraint.label for constraint in program.constraints] == labels
        text = str(program)
        for name in (*variables, "BU", "L", "c"):
            assert name in text
        if hasattr(cp.Constraint, "label"):
            assert all(f"{label}: " in text for label in labels)

    @pytest.mark.parametrize("formulation", ["schur", "matrix_frac"])
    def test_a_program_solved_by_its_user_is_problem_1_or_2(self, formulation: str) -> None:
        program = reference.formulate(dm.FitnessForUse(dm.workloads.prefix(2), 2.0), formulation)
        assert program.solve(solver="CLARABEL") == pytest.approx(2 / 3, rel=1e-6)
        np.testing.assert_allclose(value(program, "Sigma"), [[2, -1], [-1, 2]], atol=1e-5)
        problem = dm.PrivacyFirst(dm.workloads.prefix(2), 2.0, cost=1 / 6)
        program = reference.formulate(problem, formulation)
        assert program.solve(solver="CLARABEL") == pytest.approx(4, rel=1e-6)
        assert "kappa" in str(program) and "cost" in str(program) and "alpha" not in str(program)

    def test_the_optimum_of_problem_3_rescaled_solves_problem_1(self) -> None:
        for d in (2, 5):
            problem = prefix(d)()
            program = reference.formulate(problem, "sum")
            total = float(program.solve(solver="CLARABEL"))
            kappa, Sigma = float(value(program, "kappa")), value(program, "Sigma")
            weights = [constraint.dual_value for constraint in program.constraints[1:]]
            judged = problem.certify(problem.feasible(Sigma / kappa), tuple(np.maximum(weights, 0)))
            assert judged.gap <= 1e-6
            assert judged.objective == pytest.approx((total / 2) ** 2, rel=1e-6)
            assert value(program, "alpha") == pytest.approx(kappa, rel=1e-4)


class TestCentralPath:
    """A centre is at most ``(s + m + k)/t`` above the optimum, and its multipliers are ``1/(t slack)``."""

    @pytest.mark.parametrize("sharpness", [1.0, 30.0, 1000.0])
    def test_bound_and_multipliers_at_a_centre(self, sharpness: float) -> None:
        problem = prefix(4)()
        program = reference.formulate(problem, "logdet", sharpness=sharpness)
        program.solve(solver="CLARABEL")
        alpha, Sigma = float(value(program, "alpha")), value(program, "Sigma")
        optimum = fast.solve(problem, tol=1e-9)
        assert optimum.lower_bound < alpha < optimum.objective + 12 / sharpness
        mechanism = problem.mechanism(Sigma)
        profile, variances = mechanism.profile, mechanism.variances(problem.workload)
        weights = 1 / (sharpness * (alpha - profile)), 1 / (sharpness * (1 - variances))
        for slack_form, constraint in zip(weights, program.constraints[1:], strict=True):
            np.testing.assert_allclose(slack_form, constraint.dual_value, rtol=1e-2)
        assert weights[0].sum() == pytest.approx(1, rel=1e-3)
        bound = problem.certify(problem.feasible(Sigma), weights).lower_bound
        assert alpha - 12 / sharpness <= bound * (1 + 1e-6) and bound <= optimum.objective

    def test_the_parameter_sharpens_a_program_in_place(self) -> None:
        program = reference.formulate(prefix(3)(), "logdet")
        (parameter,) = program.parameters()
        assert parameter.name() == "1/t" and parameter.value == 1.0 and program.is_dpp()
        program.solve(solver="CLARABEL")
        blunt = value(program, "alpha")
        parameter.value = 1e-4
        program.solve(solver="CLARABEL")
        assert value(program, "alpha") < blunt

    def test_the_message_says_where_on_the_path(self) -> None:
        answer = reference.solve(prefix(4)(), formulation="logdet")
        assert "(s + m + k)/t = " in answer.message
        bound = float(answer.message.partition("(s + m + k)/t = ")[2].split()[0])
        assert answer.objective - answer.lower_bound <= bound <= 1e-4

    def test_time_runs_out_on_the_path(self) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = reference.solve(prefix(6)(), formulation="logdet", time_limit=1e-6)
        assert answer.status is dm.Status.STEPS_EXHAUSTED and answer.certificate.feasible


class TestSingularOptima:
    def test_what_no_neighbour_moves_is_released_exactly(self) -> None:
        problem = identity_total(5, neighbours=dm.neighbours.replace_one(5))()
        for backend in BACKENDS:
            answer = reference.solve(problem, backend=backend)
            assert abs(answer.mechanism.variances(problem.workload)[-1]) <= 1e-12
            assert answer.dual.query_weights[-1] == 0 and answer.certificate.feasible

    def test_an_all_zero_query_weighs_nothing(self) -> None:
        answer = reference.solve(CASES["all-zero query"].problem())
        assert answer.dual.query_weights[2] == 0 and answer.prices[2] == 0
        assert answer.objective == pytest.approx(reference.solve(asked(PREFIX)()).objective, rel=1e-6)


class TestBackends:
    def test_installed_ones_have_versions(self) -> None:
        able = backends.installed()
        assert set(BACKENDS) <= set(able) and able["SCS"] == scs.__version__
        assert set(backends.installed(frozenset({"PSD", "ExpCone"}))) <= set(able)
        assert set(able) <= set(cp.installed_solvers())

    def test_names(self) -> None:
        """In any case; one that will not do is refused with those that do."""
        problem = prefix(2)()
        assert reference.solve(problem, backend="scs").solver == "reference:SCS:schur"
        for name, fault in (
            ("NOPE", "is unknown: CVXPY has no such conic solver"),
            ("MOSEK", "is not installed"),
            ("SCIPY", "does not support the cone"),
        ):
            with pytest.raises(dm.errors.BackendError, match=rf"'{name}' {fault}.*CLARABEL, .*SCS"):
                reference.solve(problem, backend=name)
        with pytest.raises(dm.errors.InputTypeError, match="backend must be a text"):
            reference.solve(problem, backend=3)

    def test_options_that_it_does_not_know(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = prefix(2)()
        for backend in BACKENDS:
            with pytest.raises(dm.errors.BackendError, match=f"{backend} failed: (Type|Value)Error: ") as raised:
                reference.solve(problem, backend=backend, nonsense=1)
            assert isinstance(raised.value.__cause__, TypeError | ValueError)
        monkeypatch.setattr(backends, "TIME_LIMIT_OPTIONS", {"CLARABEL": "time_limit"})
        with pytest.raises(dm.errors.BackendError, match="time_limit is supported for CLARABEL, not for SCS"):
            reference.solve(problem, backend="SCS", time_limit=1.0)

    def test_options_out_of_range_or_place(self) -> None:
        cases: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
            (reference.solve, {"formulation": "dual"}, "formulation must be one of schur"),
            (reference.solve, {"formulation": 3}, "formulation must be one of schur"),
            (reference.solve, {"tol": 0.0}, "tol must be positive"),
            (reference.solve, {"time_limit": -1.0}, "time_limit must be positive"),
            (reference.formulate, {"formulation": "logdet", "sharpness": 0.0}, "sharpness must be positive"),
            (reference.formulate, {"sharpness": 2.0}, "sharpness is an option of formulation 'logdet'"),
        ]
        for function, options, named in cases:
            with pytest.raises(dm.errors.InvalidInputError, match=named):
                function(prefix(2)(), **options)
            with pytest.raises(dm.errors.InputTypeError, match="problem must be one that the reference layer"):
                function(dm.workloads.prefix(2))


VARIABLES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "fitness": (prefix(4), "Sigma", "covariance"),
    "variance": (lambda: dm.TotalVariance(dm.workloads.prefix(6)), "X", "covariance"),
    "weighting": (lambda: dm.QueryWeighting(dm.workloads.all_range(8), rivals.haar_matrix(8)), "u", "weights"),
    "local": (lambda: dm.LocalStrategy(dm.workloads.prefix(4), 1.0), "w", "weights"),
}
"""By family: a problem, the variable of its program that holds the point, and what that is called."""


class TestHonesty:
    """Whatever a backend does, the judge has the last word."""

    @pytest.mark.parametrize(
        ("backend", "limits"),
        [
            ("CLARABEL", {"max_iter": 4}),
            ("CLARABEL", {"time_limit": 1e-9}),
            ("SCS", {"max_iters": 5}),
            ("SCS", {"max_iters": 1}),
            ("SCS", {"time_limit": 1e-9}),
        ],
    )
    def test_a_limit_leaves_a_judged_answer_and_one_warning(self, backend: str, limits: dict[str, Any]) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning) as caught:
            answer = reference.solve(prefix(4)(), backend=backend, **limits)
        assert len(caught) == 1 and answer.status is dm.Status.STEPS_EXHAUSTED
        assert backend in answer.message and answer.gap > answer.tol
        low, high = answer.certificate.interval
        assert low <= 1.75861 and high >= 1.75860 and answer.certificate.feasible

    def test_an_inaccurate_ending_is_judged(self) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning, match="BACKEND"):
            answer = reference.solve(prefix(4)(), tol=1e-9, tol_gap_rel=1e-4, tol_gap_abs=1e-4, tol_feas=1e-4)
        assert answer.status is dm.Status.BACKEND and 1e-9 < answer.gap < 1e-2

    @staticmethod
    def lying(monkeypatch: pytest.MonkeyPatch, lie: Callable[[cp.Problem], None]) -> None:
        honest = cp.Problem.solve

        def solve(program: cp.Problem, *arguments: Any, **options: Any) -> Any:
            result = honest(program, *arguments, **options)
            lie(program)
            return result

        monkeypatch.setattr(cp.Problem, "solve", solve)

    @pytest.mark.parametrize(
        "transform",
        [
            lambda Sigma: 1e-3 * Sigma,
            lambda Sigma: -Sigma + 3 * np.eye(len(Sigma)),
            lambda Sigma: Sigma - 0.5 * np.eye(len(Sigma)),
            lambda Sigma: Sigma @ np.diag([1.0, 2, 3, 4]),
        ],
        ids=["scaled", "turned", "indefinite", "lopsided"],
    )
    def test_a_false_covariance(self, monkeypatch: pytest.MonkeyPatch, transform: Callable[[Array], Array]) -> None:
        def lie(program: cp.Problem) -> None:
            program.var_dict["Sigma"].save_value(transform(value(program, "Sigma")))

        self.lying(monkeypatch, lie)
        with without_warnings():
            answer = reference.solve(prefix(4)())
        assert answer.certificate.interval[1] >= 1.75860
        assert (answer.status is dm.Status.CERTIFIED) == (answer.objective <= 1.75862)

    def test_false_multipliers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lie(program: cp.Problem) -> None:
            for constraint in program.constraints[1:]:
                constraint.save_dual_value(-1e6 * constraint.dual_value + np.array([0, 0, 0, 1e7]))

        self.lying(monkeypatch, lie)
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = reference.solve(prefix(4)())
        assert answer.lower_bound <= 1.75861 and answer.status is dm.Status.BACKEND

    @pytest.mark.parametrize(
        ("family", "lies"),
        [
            ("fitness", (None, math.nan, 0.0, -1.0)),
            ("variance", (None, -1.0)),
            ("weighting", (0.0,)),
            ("local", (-1.0,)),
        ],
    )
    def test_no_point_at_all(
        self, monkeypatch: pytest.MonkeyPatch, family: str, lies: tuple[float | None, ...]
    ) -> None:
        stated, name, words = VARIABLES[family]
        for lie in lies:

            def forget(program: cp.Problem, lie: float | None = lie) -> None:
                variable = program.var_dict[name]
                square = len(variable.shape) == 2
                shape = np.eye(variable.shape[0]) if square and lie == -1.0 else np.ones(variable.shape)
                variable.save_value(None if lie is None else lie * shape)

            with monkeypatch.context() as patched:
                self.lying(patched, forget)
                with pytest.raises(dm.errors.BackendError, match=f"no {words} to judge.*CLARABEL, status optimal"):
                    reference.solve(stated())

    @pytest.mark.parametrize("family", VARIABLES)
    def test_one_stopped_at_once_leaves_a_judged_answer(self, family: str) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning, match="STEPS_EXHAUSTED") as caught:
            answer = reference.solve(VARIABLES[family][0](), time_limit=1e-9)
        assert len(caught) == 1 and caught[0].filename == __file__
        assert answer.certificate.feasible and answer.gap > answer.tol and "CLARABEL" in answer.message

    def test_a_false_cost_matrix(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lie(program: cp.Problem) -> None:
            cost = program.var_dict["X"]
            cost.save_value(1e3 * np.asarray(cost.value) + np.diag(np.arange(6.0)))
            program.constraints[-1].save_dual_value(np.arange(6.0) - 1)

        self.lying(monkeypatch, lie)
        problem = VARIABLES["variance"][0]()
        with pytest.warns(dm.errors.UncertifiedWarning, match="BACKEND"):
            low, high = (found := reference.solve(problem).certificate).interval
        assert found.feasible and low <= fast.solve(problem).objective and fast.solve(problem).lower_bound <= high

    @pytest.mark.parametrize("answer", [None, np.full(4, math.nan), -np.ones(4)])
    def test_no_multipliers_at_all(self, monkeypatch: pytest.MonkeyPatch, answer: Array | None) -> None:
        self.lying(monkeypatch, lambda program: program.constraints[1].save_dual_value(answer))
        with pytest.raises(dm.errors.BackendError, match="no multipliers to judge.*CLARABEL, status optimal"):
            reference.solve(prefix(4)())

    @pytest.mark.parametrize("late", [True, False])
    def test_a_failure_late_on_the_path_is_no_loss_and_at_once_an_error(
        self, monkeypatch: pytest.MonkeyPatch, late: bool
    ) -> None:
        def lie(program: cp.Problem) -> None:
            if not late or program.parameters()[0].value < 1e-3:
                raise cp.error.SolverError("gave up")

        self.lying(monkeypatch, lie)
        if not late:
            with pytest.raises(dm.errors.BackendError, match="CLARABEL failed: SolverError: gave up"):
                reference.solve(prefix(4)(), formulation="logdet")
            return
        with pytest.warns(dm.errors.UncertifiedWarning, match="BACKEND"):
            answer = reference.solve(prefix(4)(), formulation="logdet")
        assert 1e-4 < answer.gap < 1e-1 and "sharpness" in answer.message


class TestInterruption:
    def test_control_c_passes_through(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(cp.Problem, "solve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reference.solve(prefix(2)())

    @pytest.mark.parametrize(("status", "raised"), [(-5, KeyboardInterrupt), (-4, dm.errors.BackendError)])
    def test_control_c_that_scs_caught_is_told_from_a_failure(
        self, monkeypatch: pytest.MonkeyPatch, status: int, raised: type[BaseException]
    ) -> None:
        honest = scs.solve

        def solve(*arguments: Any, **options: Any) -> dict[str, Any]:
            answer: dict[str, Any] = honest(*arguments, **options)
            return answer | {"info": answer["info"] | {"status_val": status}}

        monkeypatch.setattr(scs, "solve", solve)
        with pytest.raises(raised):
            reference.solve(prefix(2)(), backend="SCS")


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    for backend in BACKENDS:
        reference.solve(prefix(3)(), backend=backend)
    assert tuple(capfd.readouterr()) == ("", "")


def test_the_table_of_formulations_is_what_exists() -> None:
    """Of both rows of a family the names stand in order, the default first."""
    text, asked = str(reference.formulate.__doc__), dm.workloads.prefix(3)
    pair = [dm.LinearGaussianMechanism(np.eye(2), np.diag(each)) for each in ([1.0, 2.0], [2.0, 1.0])]
    for problem in (
        dm.FitnessForUse(asked, 1.0),
        dm.TotalVariance(asked),
        dm.SoftmaxFitness(asked, 1.0, 1.0, 1.0),
        dm.QueryWeighting(asked, np.eye(3)),
        dm.QueryWeighting(asked, np.eye(3), "pure"),
        dm.CommonMechanism(pair),
        dm.LocalStrategy(asked, 1.0),
        dm.LocalStrategy(asked, 1.0, criterion="worst"),
        dm.LocalProjection(np.ones((3, 3)) / 3, 1.0),
        dm.NonnegativeEstimate(asked, [1, 2, 3]),
    ):
        name = type(problem).__name__
        words = {"CommonMechanism": "`Common", "NonnegativeEstimate": "`LocalProjection`"}.get(name, f"`{name}`")
        rows = re.split(r"\n    ==", text[text.index(words) :])[0].splitlines()
        column = " ".join(each[41:77] if place else each[37:73] for place, each in enumerate(rows))
        assert ", ".join(reference_solving.formulations(problem)) in " ".join(column.split()), name
