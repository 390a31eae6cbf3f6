"""Methods of one's own: judged step by step, the best kept, within the limits of the run."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast, geometry
from dualmech.crosscheck import library
from dualmech.fast import methods, solving
from dualmech.fast.engine import loop
from dualmech.fast.reductions import REDUCTIONS
from dualmech.geometry.base import KINDS
from dualmech.watching import without_warnings

PROBLEM = dm.FitnessForUse(dm.workloads.prefix(4), targets=1.0)


def towards_the_optimum(problem: Any) -> Iterator[Any]:
    best, start = fast.solve(problem, tol=1e-10), np.eye(len(problem.basis))
    for share in (0, 0.5, 1, 0.5):
        yield share * best.primal + (1 - share) * start, best.dual


def test_ends_once_it_is_proven() -> None:
    news: list[dm.Progress] = []
    found = fast.solve(PROBLEM, method=towards_the_optimum, callback=news.append)
    assert found.status is dm.Status.CERTIFIED and found.iterations == 3 == len(news)
    assert found.solver == "own:towards_the_optimum"
    assert np.all(np.diff(found.history.gap) < 0)


def test_the_best_of_both_sides_is_kept() -> None:
    best = fast.solve(PROBLEM, tol=1e-10)
    worse = np.eye(4), (np.ones(4), np.ones(4))

    def method(_: Any) -> Any:
        yield best.primal, worse[1]
        yield worse[0], best.dual
        yield worse

    assert fast.solve(PROBLEM, method=method).iterations == 2


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_points_are_made_feasible(scale: float) -> None:
    best = fast.solve(PROBLEM, tol=1e-10)
    assert fast.solve(PROBLEM, method=lambda _: scale * best.primal, tol=1e-8).status is dm.Status.CERTIFIED


def test_limits_hold() -> None:
    closed = []

    def endless(_: Any) -> Any:
        try:
            while True:
                yield np.eye(4)
        finally:
            closed.append(True)

    for limit in ({"max_iterations": 3}, {"time_limit": 1e-9}):
        with pytest.warns(dm.errors.UncertifiedWarning):
            found = fast.solve(PROBLEM, method=endless, **limit)
        assert found.status is dm.Status.STEPS_EXHAUSTED and found.certificate.feasible
    assert len(closed) == 2 and found.gap > 0


def returns(_: Any) -> Any:
    raise RuntimeError("no convergence\nsecond line")


def yields(_: Any) -> Any:
    yield np.eye(4)
    raise ZeroDivisionError("at step 2")


def ends_badly(_: Any) -> Any:
    try:
        while True:
            yield np.eye(4)
    finally:
        raise KeyError("in the end")


def test_its_failure_is_named_with_its_cause() -> None:
    for method, said, cause in (
        (returns, "method returns failed: RuntimeError: no convergence", RuntimeError),
        (yields, "method yields failed: ZeroDivisionError: at step 2", ZeroDivisionError),
        (ends_badly, "method ends_badly failed: KeyError: 'in the end'", KeyError),
    ):
        with pytest.raises(dm.errors.BackendError) as caught:
            fast.solve(PROBLEM, method=method, max_iterations=3)
        assert str(caught.value) == said and isinstance(caught.value.__cause__, cause)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), dm.errors.InvalidInputError("own"), dm.errors.CertificateError("own")]
)
def test_interruptions_and_the_library_s_own_errors_pass(error: BaseException) -> None:
    def method(_: Any) -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        fast.solve(PROBLEM, method=method)
    assert caught.value is error


def test_what_diverges_keeps_its_best() -> None:
    def method(_: Any) -> Any:
        yield np.eye(4)
        yield np.full((4, 4), np.nan)

    with pytest.warns(dm.errors.UncertifiedWarning):
        found = fast.solve(PROBLEM, method=method)
    assert found.status is dm.Status.NON_FINITE and found.certificate.feasible
    assert found.message.startswith("step 2 of method method: covariance must be finite, got nan")


def test_dual_weights_that_prove_nothing_are_replaced_and_a_warning_says_why() -> None:
    best = fast.solve(PROBLEM, tol=1e-9)
    lam, mu = best.dual.neighbour_weights, best.dual.query_weights
    for dual, words in (((-lam, mu), "one is negative"), ((lam, 0 * mu), "all weights of one kind are 0")):
        with pytest.warns(UserWarning, match=f"method signs: the dual weights prove nothing: {words}.*; the bound is"):

            def signs(_: Any, dual: Any = dual) -> Any:
                return best.covariance, dual

            assert fast.solve(PROBLEM, method=signs).status is dm.Status.CERTIFIED


def test_faults_of_yielded_items_name_method_and_step() -> None:
    def late(_: Any) -> Any:
        yield np.eye(4)
        yield None

    def early(_: Any) -> Any:
        yield None

    with pytest.raises(dm.errors.InputTypeError, match="^step 1 of method early: the point must be .*, got None"):
        fast.solve(PROBLEM, method=early)
    with pytest.warns(dm.errors.UncertifiedWarning, match="step 2 of method late: the point must be .*, got None"):
        assert fast.solve(PROBLEM, method=late).certificate.feasible


def test_a_gap_that_rounding_blurs_does_not_end_the_run() -> None:
    """On rows of all sizes early points of the fixed point have a small gap and a large rounding error."""

    def fixed_point(problem: Any) -> Any:
        matrix = problem.workload.dense() / np.sqrt(problem.targets)[:, None]
        mu = 1 / (matrix**2).sum(axis=1)
        lam = 1 / (mu @ matrix**2)
        while True:
            left, s, right = np.linalg.svd(np.sqrt(mu)[:, None] * matrix * np.sqrt(lam))
            half = np.sqrt(lam)[:, None] * right.T / np.sqrt(np.maximum(s, 1e-17 * s[0]))
            yield half @ half.T, (lam, mu / problem.targets)
            lam, mu = ((side**2 @ s) / s.sum() + 1e-12 for side in (right.T, left))

    problem = library.problems()["fitness-rows-of-all-sizes"]()
    for tol in (3e-2, 1e-2, 1e-3):
        assert fast.solve(problem, method=fixed_point, tol=tol).status is dm.Status.CERTIFIED


def test_other_methods_are_refused() -> None:
    cases: Any = (
        (3, "method must be a name, a method"),
        (lambda _: iter([]), "got none"),
        (lambda _: np.eye(3), r"must have shape \(4, 4\)"),
        (lambda _: (np.eye(4), (np.ones(3), np.ones(4))), "must be 4, one per pair of neighbours, got 3"),
        (lambda _: (np.eye(4), 3), "dual must be"),
    )
    for method, words in cases:
        with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=words):
            fast.solve(PROBLEM, method=method)
    for method in (fast.Exact(), fast.ClosedForm(), fast.ProjectedGradient(iterations=3)):
        with pytest.raises(dm.errors.InputTypeError, match=f"{method.name!r} is for .*, got a FitnessForUse"):
            fast.solve(PROBLEM, method=method)


def test_registered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        methods.REGISTERED, "mine", fast.Auto()
    )  # the next line replaces it, the end of the test removes it
    fast.register("mine", towards_the_optimum, problems=(dm.FitnessForUse, dm.PrivacyFirst))
    assert fast.solve(PROBLEM, method="mine").solver == "own:mine"
    with pytest.raises(dm.errors.InputTypeError, match="registered for FitnessForUse, PrivacyFirst"):
        fast.solve(dm.TotalVariance(dm.workloads.prefix(4)), method="mine")
    with pytest.raises(dm.errors.InputTypeError, match="'start' is not supported"):
        fast.solve(PROBLEM, method="mine", start=fast.solve(PROBLEM))


@pytest.mark.parametrize(
    "arguments", [("newton", print), ("two words", print), ("", print), ("x", 3), ("x", print, int), ("x", print, ())]
)
def test_what_cannot_be_registered_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match="name|method|problems"):
        fast.register(*arguments)


@pytest.mark.parametrize("name", methods.METHODS)
def test_a_name_is_short_for_a_method_with_its_defaults(name: str) -> None:
    method = methods.by_name(name)
    family = method.problems[0]
    problem: Any = {
        "LocalStrategy": lambda: dm.LocalStrategy(dm.workloads.prefix(3), 1.0),
        "CommonMechanism": lambda: dm.CommonMechanism([dm.LinearGaussianMechanism(np.eye(2), np.eye(2))] * 2),
    }.get(family, lambda: PROBLEM)()
    with without_warnings():
        by_name, by_method = (
            fast.solve(problem, method=given, tol=1.0, max_iterations=200) for given in (name, method)
        )
    assert by_name.solver == by_method.solver and by_name == by_method
    assert method.name == name and type(solving.method_for(problem, name)) is type(method)
    assert getattr(fast, type(method).__name__) is type(method)


def test_a_method_without_an_algorithm_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Method must implement solve"):
        methods.Method().solve(PROBLEM, loop.Limits(1.0))


def test_a_method_solves_by_itself() -> None:
    assert fast.Newton().solve(PROBLEM, loop.Limits(1e-6)) == fast.solve(PROBLEM, method="newton")


def test_every_geometry_has_a_reduction_and_every_family_a_solver() -> None:
    modules = [
        importlib.import_module(f"dualmech.geometry.{info.name}") for info in pkgutil.iter_modules(geometry.__path__)
    ]
    classes = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    named = {kind.__name__ for kind in classes if getattr(kind, "name", "") in KINDS}
    assert named == {*REDUCTIONS}, "REDUCTIONS of fast/reductions/__init__.py must have every geometry"
    for place in (*REDUCTIONS.values(), *(solver.solve for solver in methods.FAMILY_SOLVERS.values())):
        assert isinstance(place, str) and callable(pkgutil.resolve_name(place))
