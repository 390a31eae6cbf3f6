"""Maximisation of a dual function by a safeguarded fixed point and Newton's method, and the certified answer.

Both methods update the dual weights of a `DenseDual` with one k-by-k decomposition per step, where k is the rank of the
workload. Steps of the fixed point are cheap. Newton's method converges in a few steps for all workloads, but each step
factors a matrix of the size of all weights. After a few steps of the fixed point, the solver compares the remaining
operations of both methods. It does not compare seconds, so that runs are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop, newton
from dualmech.fast.engine.newton import DualFunction, Evaluation
from dualmech.fast.engine.precision import AT_THE_LIMIT, better_solution, remaining_limits
from dualmech.problems.base import AnyProblem, dual_of
from dualmech.progress import Status
from dualmech.solution import Solution, retold
from dualmech.validate import Array

# The multiplicative fixed point of the dual, accelerated and safeguarded; cheap steps for large problems.
#
# At the optimum, the constraint value of every non-zero weight w equals F, so w is a fixed point of
# ``log w ← log w + κ log(value / F)``. With κ = 1 the bound increases in practice at every step. κ near 2 and Anderson
# acceleration are faster; a step that decreases the bound is replaced by the plain step. Multiplicative fixed points
# for factorisation norms are known from the literature on private continual counting (Denisov et al. 2022).


STEP_POWER = 1.8  # κ of an ordinary step; 1 is the plain step, 2 the edge of stability
ANDERSON_MEMORY = 6  # number of previous steps for Anderson acceleration
MIN_RELATIVE_WEIGHT = 1e-14  # lower limit on weights, relative to their mean, because zeros could not increase again
MAX_LOG_STEP = 3.0  # maximum change of the logarithm of a weight in one step


@dataclass(frozen=True, slots=True, eq=False)
class FixedPointState:
    """The dual function at the current weights, and the recent pairs of log weights and residuals, oldest first.

    `decompositions` counts the decompositions of the last step.
    """

    point: Evaluation
    trail: tuple[tuple[Array, Array], ...] = ()
    decompositions: int = 1


def fixed_point_step(program: DualFunction, state: FixedPointState) -> FixedPointState:
    """Take an accelerated step, or the plain step if acceleration would decrease the bound."""
    point = state.point
    position = np.log(point.weights)
    # The constraint value of a negligible weight may be 0 in floating point.
    residual = np.log(np.maximum(point.constraint_values / point.dual_value, linalg.EPS))
    trail = (*state.trail, (position, residual))[-ANDERSON_MEMORY:]
    accelerated = _evaluate(program, point, _anderson_step(trail, point.weights))
    if accelerated is not None and accelerated.lower_bound >= point.lower_bound:
        return FixedPointState(accelerated, trail, accelerated.decompositions)
    plain_point = _evaluate(program, point, position + residual)
    decompositions = sum(trial.decompositions for trial in (accelerated, plain_point) if trial is not None)
    return FixedPointState(point if plain_point is None else plain_point, decompositions=decompositions)


def _anderson_step(trail: tuple[tuple[Array, Array], ...], weights: Array) -> Array:
    """Combine the previous steps to minimise the weighted residual (Anderson, type II)."""
    position, residual = trail[-1]
    target = position + STEP_POWER * residual
    if len(trail) < 3:
        return target
    position_changes = np.diff([old_position for old_position, _ in trail], axis=0)
    residual_changes = np.diff([residual for _, residual in trail], axis=0)
    root_weights = np.sqrt(weights)
    coefficients = np.linalg.lstsq((residual_changes * root_weights).T, residual * root_weights, rcond=1e-10)[0]
    return np.asarray(target - coefficients @ (position_changes + STEP_POWER * residual_changes))


def _evaluate(program: DualFunction, point: Evaluation, position: Array) -> Evaluation | None:
    log_change = np.clip(position - np.log(point.weights), -MAX_LOG_STEP, MAX_LOG_STEP)
    if not np.all(np.isfinite(log_change)):
        return None
    return program.at(normalise(point.weights * np.exp(log_change), point.neighbours))


def normalise(weights: Array, neighbours: int) -> Array:
    """Return positive weights that sum to 1 on neighbours and on queries; the latter are empty if Q is fixed."""
    normalised = []
    for part in (weights[:neighbours], weights[neighbours:]):
        if part.size:
            raised_weights = np.maximum(part, MIN_RELATIVE_WEIGHT * part.mean())
            normalised.append(raised_weights / raised_weights.sum())
    return np.concatenate(normalised)


METHODS = ("auto", "fixed_point", "newton")

S = TypeVar("S", bound=FixedPointState | newton.NewtonState)
T = TypeVar("T", bound=FixedPointState | newton.NewtonState)

MAX_NEWTON_OPERATIONS = 1e13  # of one Newton step (minutes)
EXPECTED_NEWTON_STEPS = 5  # from any state of the fixed point
TRIAL_STEPS = 3  # steps of the fixed point before its convergence rate is first estimated
MAX_FIXED_POINT_STEPS = 40  # with more expected steps, Newton's method is used if possible

TIGHTENING_FACTORS = (0.1, 0.6, 10.0, 1e3)
"""Allowed increases of the privacy costs, relative to the tolerance, when noise in unconstrained directions is reduced.
They are tried in turn until the judge finds the covariance feasible."""

MIN_WARM_WEIGHT = 1e-3  # lower limit on the weights of a warm start, relative to uniform weights


@dataclass(frozen=True, slots=True, eq=False)
class ReducedProblem:
    """A problem, its reduction to a dual function, and the maps between the weights of both."""

    problem: AnyProblem
    reduction: Any  # its `program`, the `shape` of the problem's weights, and the map `covariance` for primal points
    dual: Callable[[Array], Any]  # maps weights of the dual function to dual weights of the problem
    gather: Callable[[Any], Array | None]  # the inverse map, or None if type or size differ
    approach: Callable[[loop.Limits], newton.NewtonState | None] = lambda limits: None  # a start near the optimum


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """The neighbours and queries of a program, or orbits of them; the others have no effect."""

    program: Any
    neighbours: npt.NDArray[np.intp]
    queries: npt.NDArray[np.intp]
    shape: tuple[int, int]  # (s, m) numbers of neighbours and queries, or of orbits, of the problem

    def spread(self, weights: Array) -> tuple[Array, Array]:
        """Return weights on all neighbours and, in units of the targets, on all queries; sums are 1 unless empty."""
        num_neighbours = len(self.neighbours)
        neighbour_weights, query_weights = np.zeros(self.shape[0]), np.zeros(self.shape[1])
        neighbour_weights[self.neighbours] = weights[:num_neighbours] / weights[:num_neighbours].sum()
        if len(weights) > num_neighbours:
            query_weights[self.queries] = weights[num_neighbours:] / weights[num_neighbours:].sum()
        return neighbour_weights, query_weights


def with_weights(problem: Any, reduction: Any) -> ReducedProblem:
    """Return a reduced problem with the maps between its weights and the weights of the program."""

    def gather(dual: Any) -> Array | None:
        if not isinstance(dual, problem.dual_type):
            return None
        neighbour_weights, fixed = np.asarray(dual.neighbour_weights), problem.sums_variances
        query_weights = np.zeros(reduction.shape[1]) if fixed else np.asarray(dual.query_weights)
        if (neighbour_weights.size, query_weights.size) != reduction.shape:
            return None
        scaled_queries = [] if fixed else [(query_weights * problem.row_targets)[reduction.queries]]
        return np.concatenate([neighbour_weights[reduction.neighbours], *scaled_queries])

    def dual(weights: Array) -> Any:
        return dual_of(problem, *reduction.spread(weights))

    return ReducedProblem(problem, reduction, dual, gather)


@dataclass(frozen=True, slots=True, eq=False)
class Ascent(loop.OfPoint, Generic[S]):
    """The state of a run, with a stage of the fixed point or of Newton's method."""

    stage: S
    steps: int
    gaps: tuple[float, ...] = ()
    point: Evaluation = field(init=False)  # the dual function at the current weights

    def __post_init__(self) -> None:
        object.__setattr__(self, "point", self.stage.point)

    def after(self, stage: T) -> Ascent[T]:
        return Ascent(stage, self.steps + stage.decompositions, self.gaps)


def ascend(
    reduce: Callable[[Any], ReducedProblem],
    problem: object,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
) -> Solution:
    """Reduce the problem, maximise its dual function, and judge the result; see `dualmech.fast.solve`."""
    validate.choice(METHODS, method=method)
    with np.errstate(all="ignore"):
        reduced = reduce(problem)
        program = reduced.reduction.program
        stage: Any = reduced.approach(limits) if start is None and method != "fixed_point" else None
        if stage is None:
            point = program.at(_first_weights(reduced, start))
            stage = newton.start(point) if method == "newton" else FixedPointState(point)
        answer = _run(reduced, limits, method, stage)
        remaining = remaining_limits(limits, answer)
        # If the first attempt stalled or the judge's gap is larger, Newton's method from uniform weights may do better.
        newton_possible = newton.operations(program) <= MAX_NEWTON_OPERATIONS
        if method == "auto" and remaining is not None and answer.status in AT_THE_LIMIT and newton_possible:
            newton_answer = _run(reduced, remaining, "newton", newton.start(program.at(_uniform_weights(program))))
            answer = better_solution(answer, newton_answer)
    return retold(answer, solver=f"fast:{method}")


def climb(program: DualFunction, limits: loop.Limits, method: str, stage: Any) -> loop.Outcome[Ascent[Any]]:
    """Ascend from a stage until the gap of the dual function is small enough."""
    operations = program.operations[0], newton.operations(program)
    step = partial(_step, program, method, loop.MARGIN * limits.tol, operations)
    return loop.run(Ascent(stage, stage.point.decompositions), step, limits)


def _run(reduced: ReducedProblem, limits: loop.Limits, method: str, stage: Any) -> Solution:
    problem, tol, outcome = reduced.problem, limits.tol, climb(reduced.reduction.program, limits, method, stage)
    best_point, dual = outcome.best_primal.point, reduced.dual(outcome.best_dual.point.weights)

    def judged(covariance: object) -> Solution:
        return outcome.solution(problem, problem.feasible(reduced.reduction.covariance(covariance)), dual, limits)

    answer = judged(best_point.covariance())
    for share in TIGHTENING_FACTORS:
        if answer.status is Status.CERTIFIED or not np.isfinite(best_point.objective):
            break
        # A huge variance in an unconstrained direction makes the other directions lose precision.
        if (covariance := best_point.tightened(share * tol)) is None:
            break
        answer = min(answer, judged(covariance), key=_interval_width)
        if answer.certificate.feasible:
            break
    return answer


def _interval_width(answer: Solution) -> float:
    """Return the relative width of the certified interval, including rounding errors."""
    return float(answer.gap + answer.certificate.resolution) if answer.certificate.feasible else np.inf


def _first_weights(reduced: ReducedProblem, start: Solution | None) -> Array:
    program = reduced.reduction.program
    uniform = _uniform_weights(program)
    if start is None:
        return uniform
    weights = reduced.gather(getattr(start, "dual", None))
    if weights is None:
        neighbours, queries = reduced.reduction.shape
        on_queries = "" if program.fixed else f" and {queries} queries"
        raise InvalidInputError(f"start must be a solution over {neighbours} neighbours{on_queries}")
    return normalise(np.maximum(weights, MIN_WARM_WEIGHT * uniform), program.sizes[0])


def _uniform_weights(program: DualFunction) -> Array:
    neighbours, queries, _ = program.sizes
    return np.concatenate([np.full(count, 1 / max(count, 1)) for count in (neighbours, queries)])


def _step(
    program: DualFunction, method: str, tol: float, operations: tuple[float, float], state: Ascent[Any]
) -> Ascent[Any]:
    if isinstance(state.stage, newton.NewtonState):
        return state.after(newton.step(program, state.stage, tol))
    point = state.point
    gaps = (*state.gaps, point.objective / point.lower_bound - 1)
    if method == "auto" and _newton_is_cheaper(operations, gaps, tol):
        return state.after(newton.step(program, newton.start(point), tol))
    return replace(state, gaps=gaps).after(fixed_point_step(program, state.stage))


def _newton_is_cheaper(operations: tuple[float, float], gaps: tuple[float, ...], tol: float) -> bool:
    """Compare the expected remaining operations of both methods, from the convergence rate of the last steps."""
    if len(gaps) <= TRIAL_STEPS:
        return False
    rate = np.log(gaps[-1 - TRIAL_STEPS] / gaps[-1]) / TRIAL_STEPS
    steps = np.log(gaps[-1] / tol) / rate if rate > 0 else np.inf
    fixed_point_step, newton_step = operations
    if newton_step > MAX_NEWTON_OPERATIONS:
        return False
    return bool(steps > MAX_FIXED_POINT_STEPS or steps * fixed_point_step > EXPECTED_NEWTON_STEPS * newton_step)
