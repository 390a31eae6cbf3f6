"""Custom methods: the problem judges every step, the best point and weights are kept, the limits of a run hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.errors import BackendError, DualmechError, InputTypeError, InvalidInputError, first_line
from dualmech.fast.engine.loop import Limits
from dualmech.immutable import apart
from dualmech.problems.base import Problem
from dualmech.progress import Progress, Status, seconds_left
from dualmech.solution import Solution, judged_solution

Method = Callable[[Any], Any]
"""A function: it takes a problem and returns a point, or a pair of a point and dual weights, or yields such items."""

BUILT_IN = (
    *("auto", "fixed_point", "newton", "softmax_newton", "softmax_gradient", "closed_form"),
    *("exact", "restart", "gradient", "published_gradient"),
)
"""Names of the library's own methods, which are not to be taken by others."""

REGISTERED: dict[str, tuple[Method, tuple[type, ...]]] = {}
"""By name, a custom method and the problems that it solves."""


def register(name: str, method: Method, problems: object = Problem) -> None:
    """Give a method a name, by which ``fast.solve(problem, method=name)`` calls it in this process.

    Raises `InvalidInputError` or `InputTypeError` for the name of one of the library's methods, what cannot be called,
    or problems that are no classes of them. A name that was registered before is replaced.

    Parameters
    ----------
    name : str
        The method's name.
    method : callable
        Takes a problem and returns a point, as `problem.as_primal` takes it (for noise on a dense geometry its
        covariance on the basis), or a pair of a point and dual weights, or of a point and None; of a product always a
        pair. A generator function yields them one after another: the best point and the best weights are kept, and the
        generator is closed once they are proven within the tolerance or a limit is reached.
    problems : class of problems, or tuple of them, default any
        The problems that the method solves.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> def independent(problem):
    ...     return np.eye(len(problem.basis))
    >>> fast.register("independent", independent, problems=dm.FitnessForUse)
    >>> answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(2)), method="independent", tol=0.6)
    >>> answer.status.name, round(answer.objective, 6), answer.solver
    ('CERTIFIED', 2.0, 'own:independent')
    """
    called = validate.text(name=name)
    if not called.isidentifier() or called in BUILT_IN:
        raise InvalidInputError(f"name must be an identifier and none of {', '.join(BUILT_IN)}, got {name!r}")
    kinds = problems if isinstance(problems, tuple) else (problems,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, Problem) for kind in kinds):
        raise InputTypeError(
            f"problems must be a class of problems, or a tuple of them, got {validate.shown(problems)}"
        )
    REGISTERED[called] = _callable(method), kinds


def find(problem: object, method: object) -> tuple[Method, str] | None:
    """Return a custom method with its name; None for the name of one of the library's."""
    if not isinstance(method, str):
        return _callable(method), str(getattr(method, "__name__", type(method).__name__))
    if method not in REGISTERED:
        return None
    found, kinds = REGISTERED[method]
    if not isinstance(problem, kinds):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InputTypeError(f"method {method!r} is registered for {names}, got a {type(problem).__name__}")
    return found, method


@dataclass(slots=True)
class Best:
    """The best point and the best dual weights so far."""

    primal: Any = None
    dual: Any = None
    objective: float = np.inf
    bound: float = 0.0

    @property
    def gap(self) -> float:
        """Between the two, relative."""
        return (self.objective - self.bound) / self.bound if self.bound > 0 else np.inf

    def take(self, problem: Problem, given: object, some_dual: Callable[[], object]) -> None:
        """Take a step's point, made feasible, and its weights where they are better than the best so far."""
        primal, dual = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        point = problem.feasible(problem.as_primal(primal))
        if dual is None and self.dual is None:
            dual = some_dual()
        weights = self.dual if dual is None else problem.as_dual(dual)
        found = problem.certify(point, weights)
        if self.primal is None or (found.feasible and found.objective + found.offset < self.objective):
            self.primal, self.objective = point, found.objective + found.offset
        if self.dual is None or found.lower_bound + found.offset > self.bound:
            self.dual, self.bound = weights, found.lower_bound + found.offset


def follow(problem: Problem, limits: Limits, method: Method, name: str, some_dual: Callable[[], object]) -> Solution:
    """Follow a user's method until its best is proven, or a limit is reached, and let the problem judge it.

    `some_dual` finds dual weights where the method gives none.
    Raises `BackendError` where the method fails with an error that is not the library's.
    """
    began, best, history = time.perf_counter(), Best(), list[Progress]()
    steps = _steps(problem, method, name)
    reason, count = Status.GIVEN, 0
    for count, step in enumerate(steps, 1):
        try:
            with np.errstate(all="ignore"):
                best.take(problem, step, some_dual)
        except (InvalidInputError, InputTypeError):
            if best.primal is None:
                raise
            reason = Status.NON_FINITE
            break
        spent = time.perf_counter() - began
        left = seconds_left(history, best.gap, limits.tol, spent)
        history.append(Progress(count, best.objective, best.bound, best.gap, spent, left))
        if limits.callback is not None:
            limits.callback(history[-1])
        if best.gap <= limits.tol:
            break
        if limits.deadline.passed or (limits.steps_given and count >= limits.max_iterations):
            reason = Status.STEPS_EXHAUSTED
            break
    steps.close()
    if best.primal is None:
        raise InvalidInputError(f"method {name} must give at least one point, gave none")
    return judged_solution(
        problem,
        best.primal,
        best.dual,
        tol=limits.tol,
        otherwise=reason,
        iterations=count,
        seconds=time.perf_counter() - began,
        solver=f"own:{name}",
        history=tuple(history),
    )


def _steps(problem: Problem, method: Method, name: str) -> Generator[object, None, None]:
    """Yield the items that a method gives; its errors are told as its failure, but for the library's own errors."""
    try:
        given = method(apart(problem))  # the method gets a copy: the judge sees the problem unchanged
        yield from given if isinstance(given, Iterator) else (given,)
    except DualmechError:
        raise
    except Exception as error:
        raise BackendError(f"method {name} failed: {first_line(error)}") from error


def _callable(method: object) -> Method:
    if not callable(method):
        raise InputTypeError(f"method must be text or what takes a problem to a point, got {type(method).__name__}")
    found: Method = method
    return found
