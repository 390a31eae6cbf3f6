"""Local privacy: the best strategy by column generation, or a good one by search."""

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

EXACT = 20  # user types up to which ``auto`` prices all patterns at every step
LARGEST_EXACT = 24  # user types up to which ``exact`` may be asked for

MARGIN, ATTEMPTS = 0.5, 4
"""Share of the tolerance that the solver aims at, and how often it aims lower where the judge proves less."""

BARELY, LEAST_MOMENTS = 0.1, 1e-5  # share of the tolerance at which the bound of moments ends, and where it does so

NEARLY = 0.9  # the share of the tolerance that it aims at where the bound is known beforehand

ENDING = 4.0  # time to judge strategies at the end, in units of the time to make them of patterns

SEARCHING = 0.4  # share of the time for the patterns, where the rest is for a bound on all of them

PATH = 0.3  # share of the time for a bound before the search, where few multipliers prove it

RESUMED = 0.95  # share of the time at which a search resumed after the bound ends

MULTIPLIED = 256  # user types up to which multipliers come to prove more than the closed form within a limit

JUDGING, TIMED = 0.5, 26
"""Share of the time that the judge may take to price all patterns, and user types up to which it takes no time. The
time for so many predicts the time for more."""

SEARCHED = "patterns were searched for, not priced all: the strategy is the best one found, and the bound may be loose"


def solve_strategy(
    problem: LocalStrategy, limits: loop.Limits, *, method: str = "auto", start: object = None
) -> Solution:
    """Solve the problem by pricing all patterns where they are few, else by a search; see `dualmech.fast.solve`."""
    return (Exact() if problem.user_types <= EXACT else Restart()).solve(problem, limits, start=start)


@dataclass(frozen=True, slots=True, eq=False)
class Exact(Method):
    """Column generation that prices all 2^n patterns of n user types, of which it takes at most 24."""

    name = "exact"
    problems = ("LocalStrategy",)

    def solve(self, problem: LocalStrategy, limits: loop.Limits, *, start: object = None) -> Solution:
        if (size := problem.user_types) > LARGEST_EXACT:
            raise InvalidInputError(
                f"method exact prices all patterns, of {LARGEST_EXACT} user types at most, got {size}"
            )
        frame, limits = _framed(problem, limits, self.name, start)
        with np.errstate(all="ignore"):
            return _by_columns(problem, frame, limits)


@dataclass(frozen=True, slots=True, eq=False)
class Restart(Method):
    """A search for patterns from random starts, which proves less than `Exact`.

    `rng` is a `numpy.random.Generator`, or a seed.
    """

    name = "restart"
    problems = ("LocalStrategy",)

    rng: np.random.Generator | int = 0

    def __post_init__(self) -> None:
        validate.generator(rng=self.rng)

    def solve(self, problem: LocalStrategy, limits: loop.Limits, *, start: object = None) -> Solution:
        frame, limits = _framed(problem, limits, self.name, start)
        generator = validate.generator(rng=self.rng)
        with np.errstate(all="ignore"):
            return _by_design(problem, limits, generator) or _by_search(problem, frame, limits, generator)


def _framed(problem: LocalStrategy, limits: loop.Limits, method: str, start: object) -> tuple[Frame, loop.Limits]:
    """Return the problem in the solver's units, and limits that report progress in the problem's; refuse a start."""
    if start is not None:
        raise InvalidInputError(f"start belongs to gradient descent, not to method {method!r}")
    with np.errstate(all="ignore"):
        frame = Frame.of(problem.root, problem.epsilon, problem.prior, problem.criterion == "worst")
    return frame, replace(limits, unit=frame.scale, offset=frame.offset)


def _by_columns(
    problem: LocalStrategy,
    frame: Frame,
    limits: loop.Limits,
    begin: Columns | None = None,
    history: tuple[Progress, ...] = (),
    solver: str = "fast:exact",
) -> Solution:
    """Generate columns until the judge proves the gap, and leave out the patterns that play no part in the end."""
    started, aim = time.perf_counter(), MARGIN * limits.tol
    for _ in range(ATTEMPTS):
        outcome = columns.generate(frame, replace(limits, tol=aim), begin)
        best, history = outcome.best_dual, (*history, *outcome.history)
        seconds = time.perf_counter() - started
        answer = points.best(
            problem,
            points.strategies(problem, frame, outcome.best_primal.point, outcome.best_primal.view),
            [points.dual(frame, best.point, best.view)],
            tol=limits.tol,
            otherwise=outcome.reason or Status.STALLED,
            message=_ending(outcome, seconds),
            iterations=outcome.iterations,
            seconds=seconds,
            solver=solver,
            history=history,
        )
        if answer.gap <= limits.tol or outcome.reason is not None:
            break
        # The judge may count the gap relative to less, or be less sure of the bound.
        begin, reached = outcome.best_primal, history[-1].gap
        aim = MARGIN * min(aim, reached * limits.tol / answer.gap)
        if not aim > 0:  # its own two sides meet up to rounding, or the judge can prove nothing: none is closer
            break
    return answer


def _by_search(problem: LocalStrategy, frame: Frame, limits: loop.Limits, rng: np.random.Generator) -> Solution:
    """Search for a good strategy, and for multipliers that bound all patterns where there are too many to price."""
    began = time.perf_counter()
    known = _known_bound(problem, frame, limits.deadline)
    judging = _judging_seconds(problem, limits.deadline)
    few, closed_form = judging < np.inf, problem.user_types > MULTIPLIED and limits.deadline.left is not None
    outcome, drawn, proven = _searched(problem, frame, limits, rng, known, judging)
    unlimited = limits.deadline.left is None and not limits.steps_given
    if few and unlimited and not proven and problem.user_types > TIMED:  # a judgement alone would take seconds
        return _all_priced(problem, frame, limits, outcome)
    last = outcome.best_dual if few else outcome.best_primal
    dual = points.dual(frame, last.point, last.view)
    remarks = (_ending(outcome, time.perf_counter() - began), SEARCHED)
    pointed = time.perf_counter()
    candidates = _candidates(problem, frame, outcome, drawn)
    ending = ENDING * (time.perf_counter() - pointed)
    duals = [dual] if few else []
    if known is not None:
        duals.insert(0, known)
    elif not few and (closed_form or proven):
        duals = [points.closed_form_weights(problem, dual)]
    elif not few:
        duals = [_improved(problem, frame, outcome, candidates[0], dual, limits, limits.deadline.before(ending))]
        outcome = _resumed(problem, frame, outcome, duals[0], limits, rng)
        candidates += points.strategies(problem, frame, outcome.best_primal.point, outcome.best_primal.view)
    answer = points.best(
        problem,
        candidates,
        duals,
        tol=limits.tol,
        otherwise=outcome.reason or Status.STALLED,
        message="; ".join(filter(None, remarks)),
        iterations=outcome.iterations,
        seconds=time.perf_counter() - began,
        solver="fast:restart",
        history=outcome.history,
    )
    if not few or answer.status is not Status.STALLED:
        return answer
    exact = _all_priced(problem, frame, limits, outcome)
    return min(exact, answer, key=lambda ending: ending.gap)


def _searched(
    problem: LocalStrategy,
    frame: Frame,
    limits: loop.Limits,
    rng: np.random.Generator,
    known: LocalDual | None,
    judging: float,
) -> tuple[loop.Outcome[Columns], Columns, bool]:
    """Return the outcome of a search, the best of the drawn sets, and whether a bound known beforehand proves it."""
    few, deadline = judging < np.inf, limits.deadline
    bound = 0.0 if few else local.trace_bound(problem.root, problem.epsilon)
    closed_form = problem.user_types > MULTIPLIED and deadline.left is not None
    searching = deadline.after(1.0 if closed_form else SEARCHING)
    if known is not None:
        bound, searching = float(known.costs.sum()), deadline.after(RESUMED)  # costs are scaled so
    if few:
        searching = deadline.before(judging)
    aim = MARGIN * limits.tol if few or known is None else NEARLY * limits.tol
    within = replace(limits, tol=aim, deadline=searching)
    outcome, drawn = search.search(problem, frame, within, rng, bound, aim if few or known is None else np.inf)
    return outcome, drawn, outcome.best_primal.objective * frame.unit**2 <= (1 + aim) * bound


def _candidates(
    problem: LocalStrategy, frame: Frame, outcome: loop.Outcome[Columns], drawn: Columns
) -> list[LocalPoint]:
    """Return the strategies of a search's best patterns; after few steps, of those that it began with, too."""
    candidates = points.strategies(problem, frame, outcome.best_primal.point, outcome.best_primal.view)
    if outcome.best_primal is not drawn and outcome.iterations <= search.MAX_STEPS:
        # So few steps may leave the patterns with worse weights than they began with.
        candidates += points.strategies(problem, frame, drawn.point, drawn.view)
    return candidates


def _all_priced(problem: LocalStrategy, frame: Frame, limits: loop.Limits, outcome: loop.Outcome[Columns]) -> Solution:
    """Generate columns from the patterns at which a search ended, of which it may have missed some."""
    begin = columns.price_all(frame, outcome.best_primal, limits.deadline)
    further = limits if limits.steps_given else replace(limits, max_iterations=begin.steps + limits.max_iterations)
    return _by_columns(problem, frame, further, begin, outcome.history, "fast:restart")


def _known_bound(problem: LocalStrategy, frame: Frame, deadline: Deadline) -> LocalDual | None:
    """Return what proves a bound before the search, where few multipliers do and all patterns take long to price."""
    if frame.adversary or not EXACT < problem.user_types <= MULTIPLIED:
        return None
    return local_bound.few_multipliers(problem, deadline.after(PATH))


def _improved(
    problem: LocalStrategy,
    frame: Frame,
    outcome: loop.Outcome[Columns],
    point: LocalPoint,
    dual: LocalDual,
    limits: loop.Limits,
    deadline: Deadline,
) -> LocalDual:
    """Return the bound of the moments of the best patterns; where they end early, the best one that is found.

    It may be at the adversary's prior, or at the even one, from which it climbs best.
    """
    enough = max(BARELY * limits.tol, LEAST_MOMENTS)
    best, near = local_bound.moments_bound(problem, frame, outcome.best_primal.point, enough, deadline)
    if best is not None and near:
        return best
    tried = [*([] if best is None else [best]), local_bound.improve_bound(problem, dual, deadline)]
    if dual.prior is not None:
        tried.append(local_bound.improve_even_bound(problem, dual, deadline))
    return max(tried, key=lambda weights: problem.certify(points.primal(problem, point), weights).lower_bound)


def _resumed(
    problem: LocalStrategy,
    frame: Frame,
    outcome: loop.Outcome[Columns],
    dual: LocalDual,
    limits: loop.Limits,
    rng: np.random.Generator,
) -> loop.Outcome[Columns]:
    """Search on in the time that the bound left, where the search was cut and its weights are exact."""
    cut = outcome.reason is Status.STEPS_EXHAUSTED and problem.user_types <= search.MAX_EXACT
    steps, until = limits.max_iterations - outcome.iterations, limits.deadline.after(RESUMED)
    if not cut or limits.deadline.left is None or steps <= 0 or until.passed:
        return outcome
    bound = 0.0 if frame.adversary else float(dual.costs.sum())  # they are scaled so
    within = replace(limits, tol=MARGIN * limits.tol, max_iterations=steps, deadline=until, callback=None)
    more = search.resume(problem, frame, outcome.best_primal, within, rng, bound)
    return replace(more, iterations=outcome.iterations + more.iterations, history=(*outcome.history, *more.history))


def _judging_seconds(problem: LocalStrategy, deadline: Deadline) -> float:
    """Return the judge's seconds to price all patterns; infinite where they are too many, or it does not price them."""
    size = problem.user_types
    if size > local.EXACT or deadline.left is None or size <= TIMED:
        return 0.0 if size <= local.EXACT else np.inf
    began = time.perf_counter()
    local.worst_by_size(np.diag(np.arange(1.0, TIMED + 1)), problem.epsilon)  # not the same in reverse: the longer way
    seconds = (time.perf_counter() - began) * 2.0 ** (size - TIMED)
    return seconds if seconds <= JUDGING * deadline.left else np.inf


def _ending(outcome: loop.Outcome[Columns], seconds: float) -> str:
    """Say that a run was cut, nothing where it was not."""
    cut = outcome.reason is Status.STEPS_EXHAUSTED
    return loop.stopped_message(outcome.iterations, seconds) if cut else ""


def _by_design(problem: LocalStrategy, limits: loop.Limits, rng: np.random.Generator) -> Solution | None:
    """Return subset selection by a design where the workload treats all user types equally: then it is optimal."""
    began = time.perf_counter()
    known = search.strategy(problem, rng) if search.treats_all_equally(problem) else None
    if known is None:
        return None
    point = problem.feasible(LocalPoint(known, problem.prior))
    return points.best(
        problem,
        [point],
        [points.closed_form_weights(problem, problem.dual_at(point))],
        tol=limits.tol,
        otherwise=Status.ROUNDING,
        seconds=time.perf_counter() - began,
        solver="fast:design",
    )
