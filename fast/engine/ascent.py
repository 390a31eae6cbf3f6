"""The ascent of a dual function: a safeguarded fixed point with a Newton finish, and its certified answer.

Both work on the dual weights of a `DenseDual` at the cost of one k-by-k decomposition a step, k the rank of the
workload. The fixed point is cheap; Newton's method converges in a handful of steps whatever the workload, but
each costs a factorisation of the size of all weights. After a few steps of the fixed point, the solver compares the
remaining cost of both, in operations and not in seconds, so that a run can be repeated.
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
# At the optimum every weight w that is not zero has ``gain = F``, so ``log w ← log w + κ log(gain / F)`` leaves
# it alone. With κ = 1 the bound rises in practice at every step; κ near 2 and Anderson acceleration are quicker,
# and a step that lowers the bound is taken back and replaced by the plain one. Multiplicative fixed points for
# factorisation norms are known from the literature on private continual counting (Denisov et al. 2022).


POWER = 1.8  # κ of an ordinary step; 1 is the plain step, 2 the edge of stability
MEMORY = 6  # number of earlier steps that Anderson acceleration mixes
FLOOR = 1e-14  # smallest weight, relative to the mean weight: a zero could not grow again
LONGEST = 3.0  # largest change of the logarithm of a weight in one step


@dataclass(frozen=True, slots=True, eq=False)
class FixedPointState:
    """The dual function at the current weights and, oldest first, the recent (log weights, log gains / F).

    `decompositions` counts the decompositions of the last step.
    """

    point: Evaluation
    trail: tuple[tuple[Array, Array], ...] = ()
    decompositions: int = 1


def fixed_point_step(program: DualFunction, state: FixedPointState) -> FixedPointState:
    """Take one accelerated step, or the plain one where acceleration would lower the bound."""
    point = state.point
    position = np.log(point.weights)
    # A weight whose move hardly matters may have a gain of 0 in floating point.
    residual = np.log(np.maximum(point.gains / point.dual_value, linalg.EPS))
    trail = (*state.trail, (position, residual))[-MEMORY:]
    proposed = _evaluate(program, point, _anderson_step(trail, point.weights))
    if proposed is not None and proposed.lower_bound >= point.lower_bound:
        return FixedPointState(proposed, trail, proposed.decompositions)
    plain = _evaluate(program, point, position + residual)
    spent = sum(trial.decompositions for trial in (proposed, plain) if trial is not None)
    return FixedPointState(point if plain is None else plain, decompositions=spent)


def _anderson_step(trail: tuple[tuple[Array, Array], ...], weights: Array) -> Array:
    """Mix the trail so that the residual, weighted as it enters F, would be least (Anderson, type II)."""
    position, residual = trail[-1]
    target = position + POWER * residual
    if len(trail) < 3:
        return target
    moves = np.diff([earlier for earlier, _ in trail], axis=0)
    changes = np.diff([residual for _, residual in trail], axis=0)
    importance = np.sqrt(weights)
    mix = np.linalg.lstsq((changes * importance).T, residual * importance, rcond=1e-10)[0]
    return np.asarray(target - mix @ (moves + POWER * changes))


def _evaluate(program: DualFunction, point: Evaluation, position: Array) -> Evaluation | None:
    step_taken = np.clip(position - np.log(point.weights), -LONGEST, LONGEST)
    if not np.all(np.isfinite(step_taken)):
        return None
    return program.at(normalise(point.weights * np.exp(step_taken), point.neighbours))


def normalise(weights: Array, neighbours: int) -> Array:
    """Return positive weights whose two parts each sum to 1; the second is empty where Q is fixed."""
    parts = []
    for part in (weights[:neighbours], weights[neighbours:]):
        if part.size:
            floored = np.maximum(part, FLOOR * part.mean())
            parts.append(floored / floored.sum())
    return np.concatenate(parts)


METHODS = ("auto", "fixed_point", "newton")

S = TypeVar("S", bound=FixedPointState | newton.NewtonState)
T = TypeVar("T", bound=FixedPointState | newton.NewtonState)

MOST_OPERATIONS = 1e13  # operations of a step above which Newton's method is left alone (minutes)
NEWTON_STEPS = 5  # steps that Newton's method is expected to take from wherever the fixed point stands
TRIAL_STEPS = 3  # steps of the fixed point before its pace is first judged
MOST_FIXED_POINT_STEPS = 40  # steps that the fixed point may be expected to need while Newton's method is possible

TIGHTENINGS = (0.1, 0.6, 10.0, 1e3)
"""Shares of the tolerance by which privacy costs may rise to tighten a covariance whose noise no constraint limits.
They are tried in turn, until the judge finds the covariance feasible."""

WARM_FLOOR = 1e-3  # least weight of a warm start, relative to a uniform one


@dataclass(frozen=True, slots=True, eq=False)
class ReducedProblem:
    """A problem, its reduction to a dual function, and the ways between the weights of both."""

    problem: AnyProblem
    reduction: Any  # has the `program`, the `shape` of the problem's weights, and `covariance`, the way back for noise
    dual: Callable[[Array], Any]  # takes weights of the dual function to dual weights of the problem
    gather: Callable[[Any], Array | None]  # takes an earlier dual's weights back; None where kind or size differ
    approach: Callable[[loop.Limits], newton.NewtonState | None] = lambda limits: None  # a start near the optimum


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """The neighbours and queries, or orbits of them, that a program kept: no other moves a query, or is moved."""

    program: Any
    neighbours: npt.NDArray[np.intp]
    queries: npt.NDArray[np.intp]
    shape: tuple[int, int]  # (s, m) numbers of neighbours and queries, or of orbits, of the problem

    def spread(self, weights: Array) -> tuple[Array, Array]:
        """Return weights on all neighbours, and on all queries over 1/targets, either of sum 1 if there are some."""
        count = len(self.neighbours)
        first, last = np.zeros(self.shape[0]), np.zeros(self.shape[1])
        first[self.neighbours] = weights[:count] / weights[:count].sum()
        if len(weights) > count:
            last[self.queries] = weights[count:] / weights[count:].sum()
        return first, last


def with_weights(problem: Any, reduction: Any) -> ReducedProblem:
    """Return a reduced problem with the ways between its weights and those of the program."""

    def gather(dual: Any) -> Array | None:
        if not isinstance(dual, problem.dual_type):
            return None
        first, fixed = np.asarray(dual.neighbour_weights), problem.sums_variances
        last = np.zeros(reduction.shape[1]) if fixed else np.asarray(dual.query_weights)
        if (first.size, last.size) != reduction.shape:
            return None
        shares = [] if fixed else [(last * problem.row_targets)[reduction.queries]]
        return np.concatenate([first[reduction.neighbours], *shares])

    def dual(weights: Array) -> Any:
        return dual_of(problem, *reduction.spread(weights))

    return ReducedProblem(problem, reduction, dual, gather)


@dataclass(frozen=True, slots=True, eq=False)
class Ascent(loop.OfPoint, Generic[S]):
    """The state of a run: of the fixed point, or of Newton's method once that has begun."""

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
    """Reduce the problem, ascend its dual function, and let the problem judge; see `dualmech.fast.solve`."""
    validate.choice(METHODS, method=method)
    with np.errstate(all="ignore"):
        reduced = reduce(problem)
        program = reduced.reduction.program
        first: Any = reduced.approach(limits) if start is None and method != "fixed_point" else None
        if first is None:
            point = program.at(_first_weights(reduced, start))
            first = newton.start(point) if method == "newton" else FixedPointState(point)
        answer = _run(reduced, limits, method, first)
        rest = remaining_limits(limits, answer)
        # Newton's method from the middle may do better where the first attempt stalled, or the judge found less.
        affordable = newton.operations(program) <= MOST_OPERATIONS
        if method == "auto" and rest is not None and answer.status in AT_THE_LIMIT and affordable:
            again = _run(reduced, rest, "newton", newton.start(program.at(_uniform(program))))
            answer = better_solution(answer, again)
    return retold(answer, solver=f"fast:{method}")


def climb(program: DualFunction, limits: loop.Limits, method: str, first: Any) -> loop.Outcome[Ascent[Any]]:
    """Ascend from a stage until the gap, as the dual function knows it, is small enough."""
    operations = program.operations[0], newton.operations(program)
    step = partial(_step, program, method, loop.MARGIN * limits.tol, operations)
    return loop.run(Ascent(first, first.point.decompositions), step, limits)


def _run(reduced: ReducedProblem, limits: loop.Limits, method: str, first: Any) -> Solution:
    problem, tol, outcome = reduced.problem, limits.tol, climb(reduced.reduction.program, limits, method, first)
    best, dual = outcome.best_primal.point, reduced.dual(outcome.best_dual.point.weights)

    def judged(covariance: object) -> Solution:
        return outcome.solution(problem, problem.feasible(reduced.reduction.covariance(covariance)), dual, limits)

    answer = judged(best.covariance())
    for share in TIGHTENINGS:
        if answer.status is Status.CERTIFIED or not np.isfinite(best.objective):
            break
        # Noise in a direction that no constraint limits may be so large that rounding loses the rest.
        if (covariance := best.tightened(share * tol)) is None:
            break
        answer = min(answer, judged(covariance), key=_unproven)
        if answer.certificate.feasible:
            break
    return answer


def _unproven(answer: Solution) -> float:
    """Return the width of the interval that the judge grants, rounding included."""
    return float(answer.gap + answer.certificate.resolution) if answer.certificate.feasible else np.inf


def _first_weights(reduced: ReducedProblem, start: Solution | None) -> Array:
    """Return uniform weights, or an earlier solution's weights, raised so that none is out of reach."""
    program = reduced.reduction.program
    uniform = _uniform(program)
    if start is None:
        return uniform
    weights = reduced.gather(getattr(start, "dual", None))
    if weights is None:
        neighbours, queries = reduced.reduction.shape
        on_queries = "" if program.fixed else f" and {queries} queries"
        raise InvalidInputError(f"start must be a solution over {neighbours} neighbours{on_queries}")
    return normalise(np.maximum(weights, WARM_FLOOR * uniform), program.sizes[0])


def _uniform(program: DualFunction) -> Array:
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
    """Predict the operations that each method still needs, from a step of each and the pace of the last steps."""
    if len(gaps) <= TRIAL_STEPS:
        return False
    pace = np.log(gaps[-1 - TRIAL_STEPS] / gaps[-1]) / TRIAL_STEPS
    steps = np.log(gaps[-1] / tol) / pace if pace > 0 else np.inf
    fixed_point_step, newton_step = operations
    if newton_step > MOST_OPERATIONS:
        return False
    return bool(steps > MOST_FIXED_POINT_STEPS or steps * fixed_point_step > NEWTON_STEPS * newton_step)
