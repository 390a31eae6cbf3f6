"""The certified dual solver of fitness for use: a safeguarded fixed point with a Newton finish.

Both work on the dual of Problem 1 (and so of Problem 2) at the cost of one k-by-k decomposition a step, k the
rank of the workload. The fixed point is cheap; Newton's method converges in a handful of steps whatever the
workload, but each costs a factorisation of the size of all weights. After a few steps of the first, the
solver compares what each would still cost, in operations and not in seconds, so that a run can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.fast import fixed_point, loop, newton, threads
from dualmech.fast.fidelity import Program, Spectrum, decompose
from dualmech.fast.reduction import Reduction
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.solution import Callback, Progress, Solution, Status, judged, warned
from dualmech.validate import Array

METHODS = ("auto", "fixed_point", "newton")

LARGEST_NEWTON = 8000
"""Number of weights above which the Newton matrix is not formed (0.5 GiB)."""

NEWTON_STEPS = 8
"""Steps that Newton's method is expected to take from wherever the fixed point stands."""

TRIAL_STEPS = 3
"""Steps of the fixed point before its pace is first judged."""

MOST_FIXED_POINT_STEPS = 40
"""Steps that the fixed point may be expected to need while Newton's method is possible."""

MARGIN = 0.5
"""Share of the tolerance that the solver aims at; the rest is for the judge's own rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Ascent:
    """Where the solver stands: in the fixed point, or in Newton's method once that has begun."""

    at: fixed_point.FixedPointState | newton.NewtonState
    decompositions: int
    gaps: tuple[float, ...] = ()

    @property
    def spectrum(self) -> Spectrum:
        """The current decomposition."""
        return self.at.spectrum


def solve(
    problem: FitnessForUse | PrivacyFirst,
    *,
    tol: float = 1e-6,
    method: str = "auto",
    start: Solution | None = None,
    max_iterations: int = 1000,
    time_limit: float | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Solve Problem 1 or 2 to a proven gap; see `dualmech.fast.solve`."""
    tol = validate.positive_number(tol=tol)
    max_iterations = validate.size(max_iterations=max_iterations)
    if time_limit is not None:
        time_limit = validate.positive_number(time_limit=time_limit)
    if callback is not None and not callable(callback):
        raise InputTypeError(f"callback must be callable, got {type(callback).__name__}")
    if method not in METHODS:
        raise InvalidInputError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    with threads.suited_to(problem.geometry.rank), np.errstate(all="ignore"):
        reduction = Reduction.of(problem.geometry, problem.targets)
        weights = _first_weights(problem, reduction, start)
        answer = _run(problem, reduction, tol, callback, method, weights, max_iterations, time_limit)
        if method == "auto" and _second_try(reduction.program, answer):
            left = None if time_limit is None else time_limit - answer.seconds
            steps = max_iterations - answer.iterations
            if steps > 0 and (left is None or left > 0):
                tell = None if callback is None else _following(callback, answer)
                again = _run(
                    problem, reduction, tol, tell, "newton", _uniform(reduction.program), steps, left
                )
                answer = _better(answer, again)
    return warned(replace(answer, solver=f"fast:{method}"), stacklevel=4)


def _run(
    problem: FitnessForUse | PrivacyFirst,
    reduction: Reduction,
    tol: float,
    callback: Callback | None,
    method: str,
    weights: Array,
    max_iterations: int,
    time_limit: float | None,
) -> Solution:
    first = decompose(reduction.program, weights)
    outcome = loop.run(
        Ascent(_begin(method, first), first.decompositions),
        partial(_step, reduction.program, method, MARGIN * tol),
        tol=MARGIN * tol,
        max_iterations=max_iterations,
        time_limit=time_limit,
        callback=callback,
    )
    return judged(
        problem,
        problem.feasible(reduction.covariance(outcome.primal.spectrum.covariance())),
        FitnessDual(*reduction.spread(outcome.dual.spectrum.weights, problem.targets)),
        tol=tol,
        otherwise=outcome.reason or Status.STALLED,
        iterations=outcome.iterations,
        seconds=outcome.seconds,
        history=outcome.history,
    )


def _second_try(program: Program, answer: Solution) -> bool:
    """Whether Newton's method from the middle may do better: the first attempt stalled, or the judge found less."""
    neighbours, queries, _ = program.sizes
    again = (Status.STALLED, Status.ROUNDING, Status.NON_FINITE)
    return answer.status in again and neighbours + queries <= LARGEST_NEWTON


def _better(first: Solution, second: Solution) -> Solution:
    """Return the better covariance with the better weights, whichever run found them, judged together."""
    points = [answer for answer in (second, first) if answer.certificate.feasible] or [first]
    primal = min(points, key=lambda answer: answer.objective * (1 + answer.certificate.resolution))
    dual = max((second, first), key=lambda answer: answer.lower_bound)
    return judged(
        first.problem,
        primal.primal,
        dual.dual,
        tol=first.tol,
        otherwise=Status.STALLED if second.status is Status.CERTIFIED else second.status,
        iterations=first.iterations + second.iterations,
        seconds=first.seconds + second.seconds,
        history=first.history + tuple(_later(news, first) for news in second.history),
    )


def _following(callback: Callback, first: Solution) -> Callback:
    """Return a callback for a second run, which numbers its news on from the first."""
    return lambda news: callback(_later(news, first))


def _later(news: Progress, first: Solution) -> Progress:
    """Number the news of a second run on from the first."""
    return replace(news, iteration=news.iteration + first.iterations, seconds=news.seconds + first.seconds)


def _first_weights(
    problem: FitnessForUse | PrivacyFirst, reduction: Reduction, start: Solution | None
) -> Array:
    """Return uniform weights, or those of an earlier solution raised so that none is out of reach."""
    uniform = _uniform(reduction.program)
    if start is None:
        return uniform
    dual = getattr(start, "dual", None)
    if (
        not isinstance(dual, FitnessDual)
        or (len(dual.neighbour_weights), len(dual.query_weights)) != reduction.shape
    ):
        raise InvalidInputError(
            f"start must be a solution over {reduction.shape[0]} neighbours and {reduction.shape[1]} queries"
        )
    known = reduction.gather((dual.neighbour_weights, dual.query_weights), problem.targets)
    return fixed_point.normalised(np.maximum(known, WARM_FLOOR * uniform), reduction.program.sizes[0])


def _uniform(program: Program) -> Array:
    neighbours, queries, _ = program.sizes
    return np.concatenate([np.full(neighbours, 1 / neighbours), np.full(queries, 1 / queries)])


WARM_FLOOR = 1e-3
"""Least weight of a warm start, relative to a uniform one."""


def _begin(method: str, spectrum: Spectrum) -> fixed_point.FixedPointState | newton.NewtonState:
    return newton.start(spectrum) if method == "newton" else fixed_point.FixedPointState(spectrum)


def _step(program: Program, method: str, tol: float, state: Ascent) -> Ascent:
    if isinstance(state.at, newton.NewtonState):
        return _after(state, newton.step(program, state.at, tol))
    point = state.spectrum
    gaps = (*state.gaps, point.objective / point.lower_bound - 1)
    if method == "auto" and _newton_is_cheaper(program, gaps, tol):
        return _after(state, newton.step(program, newton.start(point), tol))
    return _after(replace(state, gaps=gaps), fixed_point.step(program, state.at))


def _after(state: Ascent, at: fixed_point.FixedPointState | newton.NewtonState) -> Ascent:
    return Ascent(at, state.decompositions + at.decompositions, state.gaps)


def _newton_is_cheaper(program: Program, gaps: tuple[float, ...], tol: float) -> bool:
    """Predict the operations that each method still needs, from the pace of the last steps."""
    neighbours, queries, rank = program.sizes
    size = neighbours + queries
    if size > LARGEST_NEWTON or len(gaps) <= TRIAL_STEPS:
        return False
    pace = np.log(gaps[-1 - TRIAL_STEPS] / gaps[-1]) / TRIAL_STEPS
    steps = np.log(gaps[-1] / tol) / pace if pace > 0 else np.inf
    fixed_point_step = 12 * rank**3 + 4 * size * rank**2
    newton_step = fixed_point_step + 15 * size**2 * rank + size**3 / 3
    return bool(steps > MOST_FIXED_POINT_STEPS or steps * fixed_point_step > NEWTON_STEPS * newton_step)
