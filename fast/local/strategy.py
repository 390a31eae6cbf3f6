"""Local privacy: the optimal strategy by column generation, or a good strategy by search."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop
from dualmech.fast.local import bound as local_bound
from dualmech.fast.local import columns, points, search
from dualmech.fast.local.columns import Columns
from dualmech.fast.local.points import Frame
from dualmech.fast.methods import Method
from dualmech.geometry import local
from dualmech.problems.local.strategy import LocalDual, LocalPoint, LocalStrategy
from dualmech.progress import Deadline, Progress, Status
from dualmech.solution import Solution

MAX_PRICED = 20  # maximum number of user types for which ``auto`` prices all patterns at every step
MAX_EXACT = 24  # maximum number of user types for method ``exact``

TOL_FACTOR, MAX_ATTEMPTS = 0.5, 4
"""The solver's tolerance relative to the user's, and the number of attempts if the judge proves less."""

MOMENTS_TOL_FACTOR, MIN_MOMENTS_TOL = 0.1, 1e-5  # tolerance of the moments bound: relative to the user's, and minimum

KNOWN_BOUND_FACTOR = 0.9  # as `TOL_FACTOR`, if the bound is known before the search

JUDGING_FACTOR = 4.0  # time reserved for judging strategies, relative to the time to construct them

SEARCH_SHARE = 0.4  # fraction of the time limit for the search if a bound on all patterns follows

BOUND_SHARE = 0.3  # fraction of the time limit for a bound before the search

RESUME_SHARE = 0.95  # fraction of the time limit at the end of a resumed search

MAX_MULTIPLIER_USER_TYPES = 256  # beyond, multipliers rarely beat the closed-form bound within a time limit

MAX_JUDGING_SHARE, TIMED_USER_TYPES = 0.5, 26
"""Maximum fraction of the time limit for the judge to price all patterns, and a number of user types for which pricing
takes negligible time. The time for more user types is extrapolated from that number."""

SEARCHED = "patterns were searched for, not priced all: the strategy is the best one found, and the bound may be loose"


def solve_strategy(
    problem: LocalStrategy, limits: loop.Limits, *, method: str = "auto", start: object = None
) -> Solution:
    """Solve the problem by pricing all patterns if they are few, else by a search; see `dualmech.fast.solve`."""
    return (Exact() if problem.user_types <= MAX_PRICED else Restart()).solve(problem, limits, start=start)


@dataclass(frozen=True, slots=True, eq=False)
class Exact(Method):
    """Column generation that prices all 2^n patterns of n user types, at most 24."""

    name = "exact"
    problems = ("LocalStrategy",)

    def solve(self, problem: LocalStrategy, limits: loop.Limits, *, start: object = None) -> Solution:
        if (size := problem.user_types) > MAX_EXACT:
            raise InvalidInputError(f"method exact prices all patterns of at most {MAX_EXACT} user types, got {size}")
        frame, limits = _in_frame(problem, limits, self.name, start)
        with np.errstate(all="ignore"):
            return _by_columns(problem, frame, limits)


@dataclass(frozen=True, slots=True, eq=False)
class Restart(Method):
    """A search for patterns from random starts, with a weaker bound than `Exact`.

    `rng` is a `numpy.random.Generator`, or a seed.
    """

    name = "restart"
    problems = ("LocalStrategy",)

    rng: np.random.Generator | int = 0

    def __post_init__(self) -> None:
        validate.generator(rng=self.rng)

    def solve(self, problem: LocalStrategy, limits: loop.Limits, *, start: object = None) -> Solution:
        frame, limits = _in_frame(problem, limits, self.name, start)
        generator = validate.generator(rng=self.rng)
        with np.errstate(all="ignore"):
            return _by_design(problem, limits, generator) or _by_search(problem, frame, limits, generator)


def _in_frame(problem: LocalStrategy, limits: loop.Limits, method: str, start: object) -> tuple[Frame, loop.Limits]:
    """Return the problem in the solver's units, and limits that report progress in the problem's units."""
    if start is not None:
        raise InvalidInputError(f"start belongs to gradient descent, not to method {method!r}")
    with np.errstate(all="ignore"):
        frame = Frame.of(problem.root, problem.epsilon, problem.prior, problem.criterion == "worst")
    return frame, replace(limits, unit=frame.scale, offset=frame.offset)


def _by_columns(
    problem: LocalStrategy,
    frame: Frame,
    limits: loop.Limits,
    start_state: Columns | None = None,
    history: tuple[Progress, ...] = (),
    solver: str = "fast:exact",
) -> Solution:
    """Generate columns until the judge proves the gap, and drop superfluous patterns at the end."""
    start_time, aim = time.perf_counter(), TOL_FACTOR * limits.tol
    for _ in range(MAX_ATTEMPTS):
        outcome = columns.generate(frame, replace(limits, tol=aim), start_state)
        best, history = outcome.best_dual, (*history, *outcome.history)
        seconds = time.perf_counter() - start_time
        answer = points.best(
            problem,
            points.strategies(problem, frame, outcome.best_primal.point, outcome.best_primal.view),
            [points.dual(frame, best.point, best.view)],
            tol=limits.tol,
            otherwise=outcome.reason or Status.STALLED,
            message=_stop_message(outcome, seconds),
            iterations=outcome.iterations,
            seconds=seconds,
            solver=solver,
            history=history,
        )
        if answer.gap <= limits.tol or outcome.reason is not None:
            break
        # The judge's gap can be larger: it is relative to a smaller number, or its bound includes rounding errors.
        start_state, last_gap = outcome.best_primal, history[-1].gap
        aim = TOL_FACTOR * min(aim, last_gap * limits.tol / answer.gap)
        if not aim > 0:  # the solver's gap is 0 up to rounding, or the judge's is infinite
            break
    return answer


def _by_search(problem: LocalStrategy, frame: Frame, limits: loop.Limits, rng: np.random.Generator) -> Solution:
    """Search for a good strategy; if there are too many patterns to price, also for multipliers that prove a bound."""
    start_time = time.perf_counter()
    known_bound = _known_bound(problem, frame, limits.deadline)
    judging = _judging_seconds(problem, limits.deadline)
    price_all, closed_form = (
        judging < np.inf,
        problem.user_types > MAX_MULTIPLIER_USER_TYPES and limits.deadline.left is not None,
    )
    outcome, best_random, bound_met = _search(problem, frame, limits, rng, known_bound, judging)
    unlimited = limits.deadline.left is None and not limits.steps_given
    if price_all and unlimited and not bound_met and problem.user_types > TIMED_USER_TYPES:  # judging takes seconds
        return _price_all(problem, frame, limits, outcome)
    last_state = outcome.best_dual if price_all else outcome.best_primal
    dual = points.dual(frame, last_state.point, last_state.view)
    messages = (_stop_message(outcome, time.perf_counter() - start_time), SEARCHED)
    candidate_start = time.perf_counter()
    candidates = _candidates(problem, frame, outcome, best_random)
    judging_time = JUDGING_FACTOR * (time.perf_counter() - candidate_start)
    duals = [dual] if price_all else []
    if known_bound is not None:
        duals.insert(0, known_bound)
    elif not price_all and (closed_form or bound_met):
        duals = [points.closed_form_weights(problem, dual)]
    elif not price_all:
        duals = [
            _improved_bound(problem, frame, outcome, candidates[0], dual, limits, limits.deadline.before(judging_time))
        ]
        outcome = _resumed_search(problem, frame, outcome, duals[0], limits, rng)
        candidates += points.strategies(problem, frame, outcome.best_primal.point, outcome.best_primal.view)
    answer = points.best(
        problem,
        candidates,
        duals,
        tol=limits.tol,
        otherwise=outcome.reason or Status.STALLED,
        message="; ".join(filter(None, messages)),
        iterations=outcome.iterations,
        seconds=time.perf_counter() - start_time,
        solver="fast:restart",
        history=outcome.history,
    )
    if not price_all or answer.status is not Status.STALLED:
        return answer
    exact = _price_all(problem, frame, limits, outcome)
    return min(exact, answer, key=lambda judging_time: judging_time.gap)


def _search(
    problem: LocalStrategy,
    frame: Frame,
    limits: loop.Limits,
    rng: np.random.Generator,
    known_bound: LocalDual | None,
    judging_time: float,
) -> tuple[loop.Outcome[Columns], Columns, bool]:
    """Return the outcome of a search, the best random sets, and whether a bound from before the search is met."""
    price_all, deadline = judging_time < np.inf, limits.deadline
    bound = 0.0 if price_all else local.trace_bound(problem.root, problem.epsilon)
    closed_form = problem.user_types > MAX_MULTIPLIER_USER_TYPES and deadline.left is not None
    search_deadline = deadline.after(1.0 if closed_form else SEARCH_SHARE)
    if known_bound is not None:
        bound, search_deadline = (
            float(known_bound.costs.sum()),
            deadline.after(RESUME_SHARE),
        )  # costs are scaled such that their sum is the bound
    if price_all:
        search_deadline = deadline.before(judging_time)
    aim = TOL_FACTOR * limits.tol if price_all or known_bound is None else KNOWN_BOUND_FACTOR * limits.tol
    search_limits = replace(limits, tol=aim, deadline=search_deadline)
    outcome, best_random = search.search(
        problem, frame, search_limits, rng, bound, aim if price_all or known_bound is None else np.inf
    )
    return outcome, best_random, outcome.best_primal.objective * frame.unit**2 <= (1 + aim) * bound


def _candidates(
    problem: LocalStrategy, frame: Frame, outcome: loop.Outcome[Columns], best_random: Columns
) -> list[LocalPoint]:
    """Return the strategies of the best patterns of a search and, after few steps, of its initial patterns."""
    candidates = points.strategies(problem, frame, outcome.best_primal.point, outcome.best_primal.view)
    if outcome.best_primal is not best_random and outcome.iterations <= search.MAX_STEPS:
        # After few steps the patterns may have worse weights than at the start.
        candidates += points.strategies(problem, frame, best_random.point, best_random.view)
    return candidates


def _price_all(problem: LocalStrategy, frame: Frame, limits: loop.Limits, outcome: loop.Outcome[Columns]) -> Solution:
    start_state = columns.price_all(frame, outcome.best_primal, limits.deadline)
    column_limits = (
        limits if limits.steps_given else replace(limits, max_iterations=start_state.steps + limits.max_iterations)
    )
    return _by_columns(problem, frame, column_limits, start_state, outcome.history, "fast:restart")


def _known_bound(problem: LocalStrategy, frame: Frame, deadline: Deadline) -> LocalDual | None:
    """Return dual weights with few multipliers before the search, if all patterns take long to price; else None."""
    if frame.adversary or not MAX_PRICED < problem.user_types <= MAX_MULTIPLIER_USER_TYPES:
        return None
    return local_bound.few_multipliers(problem, deadline.after(BOUND_SHARE))


def _improved_bound(
    problem: LocalStrategy,
    frame: Frame,
    outcome: loop.Outcome[Columns],
    point: LocalPoint,
    dual: LocalDual,
    limits: loop.Limits,
    deadline: Deadline,
) -> LocalDual:
    """Return the moments bound of the best patterns if that is optimal, else the best of several bounds.

    They are for the adversary's prior or, since climbing is easier there, for the uniform prior.
    """
    tolerance = max(MOMENTS_TOL_FACTOR * limits.tol, MIN_MOMENTS_TOL)
    best, is_optimal = local_bound.moments_bound(problem, frame, outcome.best_primal.point, tolerance, deadline)
    if best is not None and is_optimal:
        return best
    candidates = [*([] if best is None else [best]), local_bound.improve_bound(problem, dual, deadline)]
    if dual.prior is not None:
        candidates.append(local_bound.improve_even_bound(problem, dual, deadline))
    return max(candidates, key=lambda weights: problem.certify(points.primal(problem, point), weights).lower_bound)


def _resumed_search(
    problem: LocalStrategy,
    frame: Frame,
    outcome: loop.Outcome[Columns],
    dual: LocalDual,
    limits: loop.Limits,
    rng: np.random.Generator,
) -> loop.Outcome[Columns]:
    """Continue an interrupted search with Newton steps in the time that remains after the bound."""
    was_cut = outcome.reason is Status.STEPS_EXHAUSTED and problem.user_types <= search.MAX_EXACT
    steps, end_time = limits.max_iterations - outcome.iterations, limits.deadline.after(RESUME_SHARE)
    if not was_cut or limits.deadline.left is None or steps <= 0 or end_time.passed:
        return outcome
    bound = 0.0 if frame.adversary else float(dual.costs.sum())  # costs are scaled such that their sum is the bound
    search_limits = replace(limits, tol=TOL_FACTOR * limits.tol, max_iterations=steps, deadline=end_time, callback=None)
    resumed = search.resume(problem, frame, outcome.best_primal, search_limits, rng, bound)
    return replace(
        resumed, iterations=outcome.iterations + resumed.iterations, history=(*outcome.history, *resumed.history)
    )


def _judging_seconds(problem: LocalStrategy, deadline: Deadline) -> float:
    """Return the seconds that the judge takes to price all patterns; inf if that is too long, or if it does not."""
    size = problem.user_types
    if size > local.EXACT or deadline.left is None or size <= TIMED_USER_TYPES:
        return 0.0 if size <= local.EXACT else np.inf
    start_time = time.perf_counter()
    local.worst_by_size(
        np.diag(np.arange(1.0, TIMED_USER_TYPES + 1)), problem.epsilon
    )  # without reversal symmetry, which takes longer
    seconds = (time.perf_counter() - start_time) * 2.0 ** (size - TIMED_USER_TYPES)
    return seconds if seconds <= MAX_JUDGING_SHARE * deadline.left else np.inf


def _stop_message(outcome: loop.Outcome[Columns], seconds: float) -> str:
    was_cut = outcome.reason is Status.STEPS_EXHAUSTED
    return loop.stopped_message(outcome.iterations, seconds) if was_cut else ""


def _by_design(problem: LocalStrategy, limits: loop.Limits, rng: np.random.Generator) -> Solution | None:
    """Return subset selection by a design if the workload treats all user types equally: then it is optimal."""
    start_time = time.perf_counter()
    design = search.strategy(problem, rng) if search.treats_all_equally(problem) else None
    if design is None:
        return None
    point = problem.feasible(LocalPoint(design, problem.prior))
    return points.best(
        problem,
        [point],
        [points.closed_form_weights(problem, problem.dual_at(point))],
        tol=limits.tol,
        otherwise=Status.ROUNDING,
        seconds=time.perf_counter() - start_time,
        solver="fast:design",
    )
