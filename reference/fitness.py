"""Fitness for use through CVXPY: Problems 1, 2 and 3 stated, handed to a backend, repaired and judged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np

from dualmech import validate
from dualmech.errors import BackendError, InvalidInputError
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.reference import backends, statements
from dualmech.reference.scaling import Scaled
from dualmech.solution import Solution, Status, conclude
from dualmech.validate import Array

FORMULATIONS = {
    "schur": frozenset({"PSD"}),
    "matrix_frac": frozenset({"PSD"}),
    "logdet": frozenset({"PSD", "ExpCone"}),
    "sum": frozenset({"PSD"}),
}
"""The statements by name, each with the cones that it needs beyond linear ones."""

FIRST_SHARPNESS = 1.0
"""Sharpness of a centring problem that is only to be read."""

GROWTH = 10.0
"""Factor from one sharpness on the central path to the next."""

LAST_BOUND = 0.25
"""The path ends where its own bound on the gap is this share of the tolerance."""

SPARE = 0.1
"""Privacy cost that a repair may add, as a share of the tolerance, in units in which the optimum is near 1."""

ACCURACIES = (1.0, 0.1, 0.01)
"""A program is solved this much more accurately each time that the judge is not satisfied."""

PATH_ACCURACY = 0.1
"""A centring problem is solved this much more accurately than a single program."""


Step = tuple[float, str]
"""The tolerance to run a backend at, and what to add to the message of what it returns."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Both sides of an answer in the problem's own units, what the judge proves, and how the run ended."""

    primal: Array
    dual: FitnessDual
    gap: float
    outcome: backends.Outcome
    message: str


def formulate(
    problem: FitnessForUse | PrivacyFirst, formulation: str = "schur", *, sharpness: float | None = None
) -> cp.Problem:
    """State Problem 1, 2 or 3 over the problem's own arrays; see `dualmech.reference.formulate`."""
    _named(formulation)
    if sharpness is not None and formulation != "logdet":
        raise InvalidInputError(f"sharpness belongs to formulation 'logdet', not to {formulation!r}")
    chosen = FIRST_SHARPNESS if sharpness is None else validate.positive_number(sharpness=sharpness)
    cost = problem.cost if isinstance(problem, PrivacyFirst) else None
    aim = _aim(formulation, problem.targets, cost)
    return _state(formulation, aim, problem.geometry.moves, problem.geometry.representation, chosen)


def solve(
    problem: FitnessForUse | PrivacyFirst,
    *,
    backend: str = "CLARABEL",
    formulation: str = "schur",
    tol: float | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> Solution:
    """Solve Problem 1 or 2 with a backend of CVXPY; see `dualmech.reference.solve`."""
    name = backends.checked(backend, _named(formulation))
    tol = backends.tolerance(name) if tol is None else validate.positive_number(tol=tol)
    if time_limit is not None:
        time_limit = validate.positive_number(time_limit=time_limit)
    began = time.perf_counter()
    scaled = Scaled.of(problem)
    aim = _aim(formulation, np.ones(scaled.sizes[1]), 1.0 if isinstance(problem, PrivacyFirst) else None)
    program = _state(formulation, aim, scaled.moves, scaled.queries, FIRST_SHARPNESS)
    run = partial(backends.run, program, name, options=options)
    read = partial(_read, program, aim, scaled, name, tol)
    if formulation == "logdet":
        steps = _central_path(program, scaled, tol)
    else:
        steps = _accuracies(tol, fixed=not backends.accuracy(name, tol).keys() - options.keys())
    answer = _best(steps, run, read, tol, time_limit)
    return conclude(
        problem,
        answer.primal,
        answer.dual,
        tol=tol,
        otherwise=Status.STEPS_EXHAUSTED if answer.outcome.exhausted else Status.BACKEND,
        message=answer.message,
        iterations=answer.outcome.iterations,
        seconds=time.perf_counter() - began,
        solver=f"reference:{name}:{formulation}",
    )


def _named(formulation: str) -> frozenset[str]:
    if not isinstance(formulation, str) or formulation not in FORMULATIONS:
        raise InvalidInputError(f"formulation must be one of {', '.join(FORMULATIONS)}, got {formulation!r}")
    return FORMULATIONS[formulation]


def _aim(formulation: str, targets: Array, cost: float | None) -> statements.Aim:
    if formulation == "sum":
        return statements.sum_of_both(targets)
    return statements.accuracy_first(targets) if cost is None else statements.privacy_first(targets, cost)


def _state(
    formulation: str, aim: statements.Aim, moves: Array, queries: Array, sharpness: float
) -> cp.Problem:
    if formulation == "logdet":
        return statements.logdet(aim, moves, queries, sharpness)
    if formulation == "matrix_frac":
        return statements.matrix_frac(aim, moves, queries)
    return statements.schur(aim, moves, queries)


def _read(
    program: cp.Problem,
    aim: statements.Aim,
    scaled: Scaled,
    backend: str,
    tol: float,
    outcome: backends.Outcome,
) -> Answer:
    """Read a program's variables and multipliers, repair both, and ask the judge."""
    message = f"{backend}: {outcome.status}, {_reported(aim, scaled)}"
    try:
        inner = program.var_dict["Sigma"].value
        dual = scaled.dual(_multipliers(program, "privacy"), _multipliers(program, "accuracy"))
        primal, gap = _judged(scaled, inner, dual, tol)
    except BackendError as error:
        if not outcome.exhausted:
            raise BackendError(f"{error} (backend {backend}, status {outcome.status})") from error
        neighbours, queries, rank = scaled.sizes
        dual = scaled.dual(np.ones(neighbours), np.ones(queries))
        primal, gap = _judged(scaled, np.eye(rank), dual, tol)
        message = f"{backend}: {outcome.status} before it had an answer; this is where it began"
    return Answer(primal, dual, gap, outcome, message)


def _judged(scaled: Scaled, inner: Array | None, dual: FitnessDual, tol: float) -> tuple[Array, float]:
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


def _multipliers(program: cp.Problem, name: str) -> Array:
    """Return the multipliers of the constraints of one name, numbered or not, in their order."""
    values = [
        constraint.dual_value
        for constraint in program.constraints
        if constraint.label.partition("[")[0] == name
    ]
    if any(value is None for value in values):
        raise BackendError("the backend returned no multipliers to judge")
    return np.concatenate([np.ravel(np.asarray(value, dtype=np.float64)) for value in values])


def _reported(aim: statements.Aim, scaled: Scaled) -> str:
    """Say what the backend takes for the optimum, in the problem's own units."""
    return f"reported optimum {aim.optimum * scaled.objective_unit:.10g}"


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


def _central_path(program: cp.Problem, scaled: Scaled, tol: float) -> Iterator[Step]:
    """Sharpen a centring problem, in units in which the optimum is about 1, as far as the tolerance needs."""
    (inverse_sharpness,) = program.parameters()
    barriers = sum(scaled.sizes)
    last = 1 / (LAST_BOUND * tol)
    for step in range(math.ceil(math.log(last, GROWTH)) + 1):
        sharpness = barriers * min(GROWTH**step, last)
        inverse_sharpness.value = 1 / sharpness
        bound = barriers / sharpness * scaled.objective_unit
        note = f"whose centre is at most (s + m + k)/t = {bound:.2g} too high"
        yield PATH_ACCURACY * tol, f"; sharpness t = {barriers / bound:.3g}, {note}"
