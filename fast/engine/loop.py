"""The main loop of all iterative solvers: best states, progress reports and stopping rules."""

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

MAX_STEPS = 1000  # default limit on the steps of a run
MAX_STALLED_STEPS = 30  # a solver has stalled after this number of steps without a smaller gap
GAP_DECREASE = 0.9  # a gap is smaller if it is below this fraction of the last smaller gap
MARGIN = 0.5  # a solver's tolerance relative to the user's; the rest is for the judge's rounding errors


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The limits of a run (gap, steps, deadline) and a callback for progress.

    Progress is reported in the units of the answer: `unit` times the solver's objective, minus `offset`.
    """

    tol: float
    max_iterations: int = MAX_STEPS
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
        """Validate a user's options; the time limit starts now."""
        if callback is not None:
            validate.function(callback=callback)
        return cls(
            validate.positive_number(tol=tol),
            MAX_STEPS if max_iterations is None else validate.size(max_iterations=max_iterations),
            Deadline.of(time_limit),
            callback,
            max_iterations is not None,
        )


class State(Protocol):
    """A solver's state for the loop: objective and lower bound as computed by the solver, and the number of steps."""

    @property
    def objective(self) -> float:
        """Value of the primal point."""

    @property
    def lower_bound(self) -> float:
        """Value of the dual weights."""

    @property
    def steps(self) -> int:
        """Number of matrix decompositions, including rejected steps: the unit of iteration limits."""


class OfPoint:
    """A state whose `point` has the objective and the lower bound."""

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
    """The best states of a run, its termination reason (None if the gap was reached), iterations and seconds."""

    best_primal: S
    best_dual: S
    reason: Status | None
    iterations: int
    seconds: float
    history: tuple[Progress, ...]

    def solution(self, problem: object, primal: object, dual: object, limits: Limits, **more: Any) -> Solution:
        """Judge the best states of the run; `more` overrides fields of the solution."""
        progress = dict(iterations=self.iterations, seconds=self.seconds, history=self.history)
        otherwise = self.reason or Status.STALLED
        return judged_solution(problem, primal, dual, tol=limits.tol, **{"otherwise": otherwise, **progress, **more})


def run(
    start: S, step: Callable[[S], S], limits: Limits, margin: float = MARGIN, patience: int = MAX_STALLED_STEPS
) -> Outcome[S]:
    """Step from `start` until the gap between the best primal and the best dual state is at most `margin` times `tol`.

    The best covariance and the best weights rarely belong to the same step. A run stalls if the gap stops decreasing;
    a small step is no reason to stop. An objective below a lower bound means that the state has reached the limit of
    double precision: it is discarded, and the run ends.
    """
    start_time = time.perf_counter()
    state = best_primal = best_dual = start
    best_objective, best_bound = np.inf, -np.inf
    history: list[Progress] = []
    last_gap, last_improvement, reason = np.inf, 0, None
    while True:
        objective, lower_bound = state.objective, state.lower_bound
        if not (np.isfinite(objective) and np.isfinite(lower_bound)):
            reason = Status.NON_FINITE
            break
        if (highest := max(lower_bound, best_bound)) > 0 and min(objective, best_objective) < (1 - FEASIBLE) * highest:
            reason = Status.STALLED
            break
        if objective < best_objective:
            best_primal, best_objective = state, objective
        if lower_bound > best_bound:
            best_dual, best_bound = state, lower_bound
        gap = (best_objective - best_bound) / best_bound if best_bound > 0 else np.inf
        elapsed = time.perf_counter() - start_time
        remaining = seconds_left(history, gap, margin * limits.tol, elapsed)
        shown_objective, shown_bound = (
            limits.unit * best_objective - limits.offset,
            limits.unit * best_bound - limits.offset,
        )
        history.append(Progress(state.steps, shown_objective, shown_bound, gap, elapsed, remaining))
        if limits.callback is not None:
            limits.callback(history[-1])
        if gap <= margin * limits.tol:
            break
        if gap < GAP_DECREASE * last_gap:
            last_gap, last_improvement = gap, len(history)
        if len(history) - last_improvement >= patience:
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
    return Outcome(best_primal, best_dual, reason, state.steps, time.perf_counter() - start_time, tuple(history))


def stopped_message(iterations: int, seconds: float) -> str:
    """Return the message for a run that was stopped by a limit on steps or time."""
    return f"it was stopped after {iterations} steps and {seconds:.3g} s, before it ended by its own rule"


def _out_of_time(deadline: Deadline, history: list[Progress]) -> bool:
    """Return whether too little time remains for a step and the judge, who takes as long as the shortest step."""
    if (remaining := deadline.left) is None:
        return False
    steps = [current.seconds - previous.seconds for previous, current in itertools.pairwise(history)] or [0.0]
    return remaining <= steps[-1] + min(steps)
