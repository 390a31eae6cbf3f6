"""A custom method at work: the problem judges every step, the best point and weights are kept, the limits hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualmech.errors import BackendError, DualmechError, InputTypeError, InvalidInputError, first_line
from dualmech.fast.engine.loop import Limits
from dualmech.fast.methods import Custom
from dualmech.immutable import apart
from dualmech.problems.base import Problem
from dualmech.progress import Progress, Status, seconds_left
from dualmech.solution import Solution, judged_solution


@dataclass(slots=True)
class Best:
    """The best point and the best dual weights so far."""

    primal: Any = None
    dual: Any = None
    objective: float = np.inf
    bound: float = 0.0

    @property
    def gap(self) -> float:
        """Relative gap between the two."""
        return (self.objective - self.bound) / self.bound if self.bound > 0 else np.inf

    def take(self, problem: Problem, proposal: object, some_dual: Callable[[], object]) -> None:
        """Take a step's point, made feasible, and its weights where they are better than the best so far."""
        primal, dual = proposal if isinstance(proposal, tuple) and len(proposal) == 2 else (proposal, None)
        point = problem.feasible(problem.as_primal(primal))
        if dual is None and self.dual is None:
            dual = some_dual()
        weights = self.dual if dual is None else problem.as_dual(dual)
        certificate = problem.certify(point, weights)
        if self.primal is None or (
            certificate.feasible and certificate.objective + certificate.offset < self.objective
        ):
            self.primal, self.objective = point, certificate.objective + certificate.offset
        if self.dual is None or certificate.lower_bound + certificate.offset > self.bound:
            self.dual, self.bound = weights, certificate.lower_bound + certificate.offset


def follow(problem: Problem, limits: Limits, method: Custom, some_dual: Callable[[], object]) -> Solution:
    """Follow a user's method until its best is proven, or a limit is reached, and let the problem judge it.

    `some_dual` finds dual weights where the method gives none.
    Raises `BackendError` where the method fails with an error that is not the library's.
    """
    began, best, history = time.perf_counter(), Best(), list[Progress]()
    steps = _steps(problem, method)
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
        raise InvalidInputError(f"method {method.name} must give at least one point, gave none")
    return judged_solution(
        problem,
        best.primal,
        best.dual,
        tol=limits.tol,
        otherwise=reason,
        iterations=count,
        seconds=time.perf_counter() - began,
        solver=f"own:{method.name}",
        history=tuple(history),
    )


def _steps(problem: Problem, method: Custom) -> Generator[object, None, None]:
    """Yield the items that a method gives; an error becomes the method's failure, unless it is the library's own."""
    try:
        iterates = method.function(apart(problem))  # the method gets a copy: the judge sees the problem unchanged
        yield from iterates if isinstance(iterates, Iterator) else (iterates,)
    except DualmechError:
        raise
    except Exception as error:
        raise BackendError(f"method {method.name} failed: {first_line(error)}") from error
