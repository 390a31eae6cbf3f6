"""The one loop that every iterative solver runs in: it counts, keeps the best, reports, and knows when to stop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from dualmech import validate
from dualmech.certificate import FEASIBLE
from dualmech.progress import NO_DEADLINE, Callback, Deadline, Progress, Status, seconds_left
from dualmech.solution import Solution, judged_solution

MOST_STEPS = 1000  # steps of a run unless the user sets another limit
PATIENCE = 30  # steps without a smaller gap after which a solver counts as stalled
WORTHWHILE = 0.9  # a gap counts as smaller when it is below this share of the last one that did
MARGIN = 0.5  # share of the tolerance that a solver aims at; the rest is for the judge's own rounding


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The limits of a run: the gap to prove, steps, the moment to end, and a callback for progress.

    Progress is told in the answer's units: `unit` times the solver's own objective, less `offset`.
    """

    tol: float
    max_iterations: int = MOST_STEPS
    deadline: Deadline = NO_DEADLINE
    callback: Callback | None = None
    steps_given: bool = False
    unit: float = 1.0
    offset: float = 0.0

    @classmethod
    def validated(
        cls,
        tol: float,
        max_iterations: int | None = None,
        time_limit: float | None = None,
        callback: Callback | None = None,
    ) -> Limits:
        """Return the limits of a user's options, the time counted from now; refuse those that are not allowed."""
        if callback is not None:
            validate.function(callback=callback)
        return cls(
            validate.positive_number(tol=tol),
            MOST_STEPS if max_iterations is None else validate.size(max_iterations=max_iterations),
            Deadline.of(time_limit),
            callback,
            max_iterations is not None,
        )


class State(Protocol):
    """A solver's state, as the loop reads it: both sides of the gap as the solver sees them, and the steps so far."""

    @property
    def objective(self) -> float:
        """Value of the primal point."""

    @property
    def lower_bound(self) -> float:
        """Value of the dual weights."""

    @property
    def steps(self) -> int:
        """Matrix decompositions so far, rejected steps included: the unit in which a run is counted."""


class OfPoint:
    """A state whose `point` holds both sides of the gap."""

    __slots__ = ()

    @property
    def objective(self: Any) -> float:
        return float(self.point.objective)

    @property
    def lower_bound(self: Any) -> float:
        return float(self.point.lower_bound)


S = TypeVar("S", bound=State)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Generic[S]):
    """The best states of a run, why it ended (None: the gap was reached), and what it took."""

    best_primal: S
    best_dual: S
    reason: Status | None
    iterations: int
    seconds: float
    history: tuple[Progress, ...]

    def solution(self, problem: object, primal: object, dual: object, limits: Limits, **more: Any) -> Solution:
        """Let the problem judge the best states of the run; `more` overrides fields of the solution."""
        progress = dict(iterations=self.iterations, seconds=self.seconds, history=self.history)
        otherwise = self.reason or Status.STALLED
        return judged_solution(problem, primal, dual, tol=limits.tol, **{"otherwise": otherwise, **progress, **more})


def run(
    start: S, step: Callable[[S], S], limits: Limits, margin: float = MARGIN, patience: int = PATIENCE
) -> Outcome[S]:
    """Step from `start` until the gap between the best primal and the best dual state is small enough.

    Small enough is at most `margin` times the tolerance. The two sides are kept apart: the best covariance and the best
    weights rarely come from the same step. A small step is never a reason to stop; only a gap that stops shrinking
    is. A state with an objective below a bound is beyond double precision: it is refused, and the run ends.
    """
    begun = time.perf_counter()
    state = best_primal = best_dual = start
    least, bound = np.inf, -np.inf
    history: list[Progress] = []
    mark, last_gain, reason = np.inf, 0, None
    while True:
        objective, lower_bound = state.objective, state.lower_bound
        if not (np.isfinite(objective) and np.isfinite(lower_bound)):
            reason = Status.NON_FINITE
            break
        if (highest := max(lower_bound, bound)) > 0 and min(objective, least) < (1 - FEASIBLE) * highest:
            reason = Status.STALLED
            break
        if objective < least:
            best_primal, least = state, objective
        if lower_bound > bound:
            best_dual, bound = state, lower_bound
        gap = (least - bound) / bound if bound > 0 else np.inf
        spent = time.perf_counter() - begun
        left = seconds_left(history, gap, margin * limits.tol, spent)
        shown, proven = limits.unit * least - limits.offset, limits.unit * bound - limits.offset
        history.append(Progress(state.steps, shown, proven, gap, spent, left))
        if limits.callback is not None:
            limits.callback(history[-1])
        if gap <= margin * limits.tol:
            break
        if gap < WORTHWHILE * mark:
            mark, last_gain = gap, len(history)
        if len(history) - last_gain >= patience:
            reason = Status.STALLED
            break
        if state.steps >= limits.max_iterations or _out_of_time(limits.deadline, history):
            reason = Status.STEPS_EXHAUSTED
            break
        try:
            state = step(state)
        except np.linalg.LinAlgError:
            reason = Status.STALLED
            break
    return Outcome(best_primal, best_dual, reason, state.steps, time.perf_counter() - begun, tuple(history))


def stopped_message(iterations: int, seconds: float) -> str:
    """Say that a run was stopped by a limit on its steps or its time."""
    return f"it was stopped after {iterations} steps and {seconds:.3g} s, before it ended by its own rule"


def _out_of_time(deadline: Deadline, history: list[Progress]) -> bool:
    """Whether there is no time for a step as long as the last, and for the judge, who takes as long as the shortest."""
    if (left := deadline.left) is None:
        return False
    steps = [later.seconds - earlier.seconds for earlier, later in itertools.pairwise(history)] or [0.0]
    return left <= steps[-1] + min(steps)
