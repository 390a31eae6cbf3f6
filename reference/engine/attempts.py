"""Running a program until the judge is satisfied: read its variables, repair them, judge, ask for more accuracy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import cvxpy as cp
import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import BackendError, InvalidInputError
from dualmech.reference.engine import backends
from dualmech.solution import Solution, Status, judged
from dualmech.validate import Array

SPARE = 0.1
"""Privacy cost that a repair may add, as a share of the tolerance, in units in which the optimum is near 1."""

ACCURACIES = (1.0, 0.1, 0.01)
"""A program is solved this much more accurately each time that the judge is not satisfied."""

Step = tuple[float, str]
"""The tolerance to run a backend at, and what to add to the message of what it returns."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A backend, the gap to prove with it, the seconds it may take, and its own options."""

    backend: str
    tol: float
    time_limit: float | None
    options: dict[str, Any]
    began: float

    @classmethod
    def of(
        cls,
        backend: str,
        cones: frozenset[str],
        tol: float | None,
        time_limit: float | None,
        options: dict[str, Any],
    ) -> Request:
        """Check what was asked; the time counts from here."""
        if "orbits" in options:
            raise InvalidInputError("orbits are for FitnessForUse and PrivacyFirst; unions find their own")
        name = backends.checked(backend, cones)
        tol = backends.tolerance(name) if tol is None else validate.positive_number(tol=tol)
        if time_limit is not None:
            time_limit = validate.positive_number(time_limit=time_limit)
        return cls(name, tol, time_limit, options, time.perf_counter())


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Both sides of an answer in the problem's own units, what the judge proves, and how the run ended."""

    primal: Any
    dual: Any
    gap: float
    outcome: backends.Outcome
    message: str


class Units(Protocol):
    """What a program is scaled by, and the way back to the problem."""

    @property
    def problem(self) -> Any:
        """What was asked."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of multipliers of each kind, and the size of the primal point."""

    @property
    def objective_unit(self) -> float:
        """The problem's objective that is 1 in scaled units."""

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> Any:
        """Return the problem's primal point for a backend's, feasible; the identity stands for where it began."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """How to read a solved program, in scaled units.

    Attributes
    ----------
    covariance : callable
        Returns Σ as the backend left it, or None.
    dual : callable
        Takes the multipliers of the constraints of each name in `constraints`, as one argument each, to the
        problem's dual weights.
    constraints : texts
        Names of the constraints whose multipliers are weights.
    optimum : callable
        Returns what the backend takes for the optimum.
    """

    program: cp.Problem
    scaled: Units
    covariance: Callable[[], Array | None]
    dual: Callable[..., Any]
    constraints: tuple[str, ...]
    optimum: Callable[[], float]


def solve(reading: Reading, request: Request, steps: Iterable[Step] | None = None) -> Solution:
    """Run a program step by step, by default ever more accurately, and let the judge have the last word."""
    name, tol, options = request.backend, request.tol, request.options
    if steps is None:
        steps = _accuracies(tol, fixed=not backends.accuracy(name, tol).keys() - options.keys())
    run = partial(backends.run, reading.program, name, options=options)
    answer = _best(steps, run, partial(_read, reading, name, tol), tol, request.time_limit)
    return judged(
        reading.scaled.problem,
        answer.primal,
        answer.dual,
        tol=tol,
        otherwise=Status.STEPS_EXHAUSTED if answer.outcome.exhausted else Status.BACKEND,
        message=answer.message,
        iterations=answer.outcome.iterations,
        seconds=time.perf_counter() - request.began,
        solver=f"reference:{name}",
    )


def _read(reading: Reading, backend: str, tol: float, outcome: backends.Outcome) -> Answer:
    """Read a program's variables and multipliers, repair both, and ask the judge."""
    scaled = reading.scaled
    # What the backend takes for the optimum, in the problem's own units.
    reported = reading.optimum() * scaled.objective_unit
    message = f"{backend}: {outcome.status}, reported optimum {reported:.10g}"
    try:
        inner = reading.covariance()
        dual = reading.dual(*(multipliers(reading.program, name) for name in reading.constraints))
        primal, gap = _judged(scaled, inner, dual, tol)
    except BackendError as error:
        if not outcome.exhausted:
            raise BackendError(f"{error} (backend {backend}, status {outcome.status})") from error
        *counts, rank = scaled.sizes
        dual = reading.dual(*(np.ones(count) for _, count in zip(reading.constraints, counts, strict=False)))
        primal, gap = _judged(scaled, np.eye(rank), dual, tol)
        message = f"{backend}: {outcome.status} before it had an answer; this is where it began"
    return Answer(primal, dual, gap, outcome, message)


def _judged(scaled: Units, inner: npt.ArrayLike | None, dual: Any, tol: float) -> tuple[Any, float]:
    """Return the covariance on the problem's basis, and the gap that is proven.

    One that the judge cannot tell apart from rounding is tried again with a little more privacy cost and less
    noise.
    """
    primal = scaled.covariance(inner)
    certificate = scaled.problem.certify(primal, dual)
    if not certificate.feasible or certificate.resolution > tol:
        primal = scaled.covariance(inner, SPARE * tol)
        certificate = scaled.problem.certify(primal, dual)
    return primal, certificate.gap


def multipliers(program: cp.Problem, name: str) -> Array:
    """Return the multipliers of the constraints of one name, numbered or not, in their order."""
    values = [
        constraint.dual_value
        for constraint in program.constraints
        if constraint.label.partition("[")[0] == name
    ]
    if any(value is None for value in values):
        raise BackendError("the backend returned no multipliers to judge")
    return np.concatenate([np.ravel(np.asarray(value, dtype=np.float64)) for value in values])


def _best(
    steps: Iterable[Step],
    run: Callable[..., backends.Outcome],
    read: Callable[[backends.Outcome], Answer],
    tol: float,
    time_limit: float | None,
) -> Answer:
    """Take one step after another until the judge grants the tolerance, and return the best answer.

    CVXPY compiles once, and a backend that can starts where it ended. That a later step fails is no loss.
    """
    answers: list[Answer] = []
    began, left = time.perf_counter(), time_limit
    for accuracy, note in steps:
        if answers and time_limit is not None:
            left = time_limit - (time.perf_counter() - began)
            if left <= 0:
                break
        try:
            answer = read(run(tol=accuracy, time_limit=left))
        except BackendError:
            if not answers:
                raise
            break
        answers.append(replace(answer, message=answer.message + note))
        # A gap that is infinite is one that more accuracy will not mend.
        if answer.gap <= tol or math.isinf(answer.gap):
            break
    best = min(answers, key=lambda answer: answer.gap)
    iterations = sum(answer.outcome.iterations for answer in answers)
    exhausted = answers[-1].outcome.exhausted or (left is not None and left <= 0)
    return replace(best, outcome=replace(best.outcome, iterations=iterations, exhausted=exhausted))


def _accuracies(tol: float, fixed: bool) -> Iterator[Step]:
    """Ask for more accuracy each time, once only where the user or the backend has fixed it."""
    for accuracy in ACCURACIES[:1] if fixed else ACCURACIES:
        yield accuracy * tol, ""
