"""Custom methods: the problem judges every step, the best point and weights are stored, and limits are enforced."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from dualmech import validate
from dualmech.errors import BackendError, DualmechError, InputTypeError, InvalidInputError, first_line
from dualmech.fast.engine.loop import Limits
from dualmech.fast.methods import METHODS, REGISTERED, Method, family_solver
from dualmech.immutable import apart
from dualmech.problems.base import Problem
from dualmech.progress import Progress, Status, seconds_left
from dualmech.solution import Solution, judged_solution


@dataclass(slots=True)
class Best:
    """The best point and the best dual weights, by the intervals of their certificates."""

    primal: Any = None
    dual: Any = None
    objective: float = np.inf
    bound: float = 0.0
    upper: float = np.inf  # bound on the optimum, including rounding errors and violation
    lower: float = 0.0
    resolution: float = 0.0
    remark: str = ""  # reason why dual weights of the method prove no bound

    @property
    def gap(self) -> float:
        return (self.objective - self.bound) / self.bound if self.bound > 0 else np.inf

    def take(self, problem: Problem, proposal: object, default_dual: Callable[[], object]) -> None:
        """Update with a point, made feasible, and dual weights, if they are better.

        Weights that prove no bound are ignored; without any, the weights of `default_dual` are used.
        """
        primal, dual = proposal if isinstance(proposal, tuple) and len(proposal) == 2 else (proposal, None)
        if primal is None:
            raise InputTypeError(
                "the point must be an array or a mechanism, or a pair of a point and dual weights, got None"
            )
        point = problem.feasible(problem.as_primal(primal))
        weights = None if dual is None else problem.as_dual(dual)
        if weights is not None:
            certificate = problem.certify(point, weights)
            if not certificate.lower_bound + certificate.offset > 0:
                self.remark = self.remark or "; ".join(certificate.remarks) or "the dual weights prove no bound"
                weights = None
        if weights is None:
            weights = default_dual() if self.dual is None else self.dual
            certificate = problem.certify(point, weights)
        lower, upper = certificate.interval
        if self.primal is None or upper < self.upper:
            self.primal, self.objective, self.upper = point, certificate.objective + certificate.offset, upper
            self.resolution = certificate.resolution
        if self.dual is None or lower > self.lower:
            self.dual, self.bound, self.lower = weights, certificate.lower_bound + certificate.offset, lower


Function: TypeAlias = Callable[[Any], Any]
"""Maps a problem to a point, or a pair of a point and dual weights, or yields such items."""


@dataclass(frozen=True, slots=True, eq=False)
class Custom(Method):
    """A user's function that solves problems, with its name."""

    name: str  # type: ignore[misc]
    problems: tuple[str, ...] = ("Problem",)  # type: ignore[misc]
    function: Function = field(kw_only=True)

    def check_option(self, problem: object, option: str) -> None:
        raise InputTypeError(f"option {option!r} is not supported by custom methods, got method {self.name}")

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        """Run the function until its best point is certified or a limit is reached, and judge it.

        If the function gives no dual weights, the family's default solver computes them. Raises `BackendError` if the
        function raises an error that is not a `DualmechError`.
        """
        start_time, best, history = time.perf_counter(), Best(), list[Progress]()
        steps = self._steps(problem)
        reason, num_steps, message = Status.GIVEN, 0, ""
        for num_steps, step in enumerate(steps, 1):
            try:
                with np.errstate(all="ignore"):
                    best.take(problem, step, lambda: family_solver(problem)(problem, Limits(limits.tol)).dual)
            except (InvalidInputError, InputTypeError) as error:
                message = f"step {num_steps} of method {self.name}: {error}"
                if best.primal is None:
                    raise type(error)(message) from error
                reason = Status.NON_FINITE
                break
            elapsed = time.perf_counter() - start_time
            remaining = seconds_left(history, best.gap, limits.tol, elapsed)
            history.append(Progress(num_steps, best.objective, best.bound, best.gap, elapsed, remaining))
            if limits.callback is not None:
                limits.callback(history[-1])
            if best.gap <= limits.tol and best.resolution <= limits.tol:
                break
            if limits.deadline.passed or (limits.steps_given and num_steps >= limits.max_iterations):
                reason = Status.STEPS_EXHAUSTED
                break
        steps.close()
        if best.primal is None:
            raise InvalidInputError(f"method {self.name} must return or yield at least one point, got none")
        if best.remark:
            warnings.warn(f"method {self.name}: {best.remark}; the bound is from other weights", stacklevel=6)
        return judged_solution(
            problem,
            best.primal,
            best.dual,
            tol=limits.tol,
            otherwise=reason,
            message=message,
            iterations=num_steps,
            seconds=time.perf_counter() - start_time,
            solver=f"own:{self.name}",
            history=tuple(history),
        )

    def _steps(self, problem: Problem) -> Generator[object, None, None]:
        """Yield the function's items; errors that are not a `DualmechError` become a `BackendError`."""
        try:
            iterates = self.function(apart(problem))  # the method gets a copy: the judge sees the problem unchanged
            yield from iterates if isinstance(iterates, Iterator) else (iterates,)
        except DualmechError:
            raise
        except Exception as error:
            raise BackendError(f"method {self.name} failed: {first_line(error)}") from error


def register(name: str, method: Function, problems: object = Problem) -> None:
    """Register a function under a name, for ``fast.solve(problem, method=name)`` in this process.

    A function registered under the same name is replaced. Raises `InvalidInputError` or `InputTypeError` for the name
    of one of the library's methods, an object that is not callable, or `problems` that are no problem classes.

    Parameters
    ----------
    name : str
        The method's name.
    method : callable
        Takes a problem and returns a point in the form of `problem.as_primal` (for noise on a dense geometry its
        covariance in the basis), or a pair of a point and dual weights, or of a point and None; for a product always a
        pair. A generator function yields several: the best point and the best weights are used, and the generator is
        closed when they are certified within the tolerance or a limit is reached.
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
    method_name = validate.text(name=name)
    if not method_name.isidentifier() or method_name in METHODS:
        raise InvalidInputError(f"name must be an identifier and none of {', '.join(METHODS)}, got {name!r}")
    classes = problems if isinstance(problems, tuple) else (problems,)
    if not classes or not all(isinstance(kind, type) and issubclass(kind, Problem) for kind in classes):
        raise InputTypeError(
            f"problems must be a class of problems, or a tuple of them, got {validate.shown(problems)}"
        )
    names = tuple(kind.__name__ for kind in classes)
    REGISTERED[method_name] = Custom(method_name, names, function=validate.function(method=method))
