"""Solver progress records, deadlines and termination statuses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from dualmech import validate
from dualmech.validate import Array

MAX_FITTED_STEPS = 40  # steps from which the remaining time is estimated


class Status(Enum):
    """Termination status of a solver; the value explains it and names a way out."""

    CERTIFIED = "The judge proved the answer within the tolerance of the optimum."
    STEPS_EXHAUSTED = (
        "The limit on steps or time was reached first. The answer is the best found and its gap is proven; "
        "allow more steps, or ask for a larger tolerance."
    )
    STALLED = (
        "Steps no longer improved the gap, usually at the limit of double precision. The answer is the best "
        "found and its gap is proven; ask for a larger tolerance, or rescale targets that differ widely."
    )
    ROUNDING = (
        "The remaining gap is below the tolerance, or below the rounding error of its evaluation. "
        "Ask for a tolerance above the certificate's resolution, or rescale data that differ widely."
    )
    BACKEND = (
        "The backend stopped by its own rule; its point was repaired to feasibility and judged. Tighten the "
        "backend's own tolerances, choose another backend or formulation, or use the fast layer."
    )
    GIVEN = (
        "The answer is a user's and was judged unchanged; its gap is not proven within the tolerance. Ask for "
        "a larger tolerance, mend the constraints that it exceeds, or give better dual weights."
    )
    NON_FINITE = (
        "A step was not finite. The answer is the best one before that step; rescale the workload and its targets."
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """A solver's state after a step, the argument of its `callback`; `iteration` counts decompositions.

    `left` is an estimate of the seconds until the gap reaches the tolerance; NaN if unknown.
    """

    iteration: int
    objective: float
    lower_bound: float
    gap: float
    seconds: float
    left: float = math.nan


Callback = Callable[[Progress], None]


def seconds_left(history: Sequence[Progress], gap: float, goal: float, seconds: float) -> float:
    """Estimate the seconds until the gap reaches the goal; NaN if the gap does not shrink.

    The logarithm of the gap is extrapolated linearly from the last half of the steps, at most `MAX_FITTED_STEPS`.

    Examples
    --------
    >>> history = [Progress(step, 1.0, 1.0, 0.1**step, 3.0 * step) for step in range(4)]
    >>> round(seconds_left(history, 1e-4, 1e-6, 12.0), 6)
    6.0
    """
    earlier = history[-min(MAX_FITTED_STEPS, len(history) // 2 + 1)] if history else None
    if earlier is None or not (0 < gap < earlier.gap < math.inf and goal > 0):
        return math.nan
    # A difference of logarithms, as the quotient of the gaps may round to 1 or to 0.
    log_decrease = math.log(earlier.gap) - math.log(gap)
    if not log_decrease > 0:
        return math.nan
    return max(math.log(gap) - math.log(goal), 0.0) * max(seconds - earlier.seconds, 1e-9) / log_decrease


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time limit of a run, shared by all its parts, the setup included.

    Examples
    --------
    >>> Deadline().passed, Deadline.of(None).left, Deadline.of(1e-9).passed
    (False, None, True)
    """

    began: float = 0.0
    seconds: float = math.inf

    @classmethod
    def of(cls, time_limit: float | None) -> Deadline:
        """Return the deadline of a user's time limit, counted from now; refuse a limit that is not positive."""
        if time_limit is None:
            return cls()
        return cls(time.perf_counter(), validate.positive_number(time_limit=time_limit))

    @property
    def left(self) -> float | None:
        """Remaining seconds, at least 0; None without a time limit."""
        if math.isinf(self.seconds):
            return None
        return max(self.began + self.seconds - time.perf_counter(), 0.0)

    @property
    def passed(self) -> bool:
        """Whether the time limit is reached."""
        return self.left == 0.0

    def after(self, fraction: float) -> Deadline:
        """Return a deadline at a fraction of the whole time."""
        return Deadline(self.began, fraction * self.seconds)

    def before(self, seconds: float) -> Deadline:
        """Return a deadline earlier by a number of seconds, to leave time for later steps."""
        return Deadline(self.began, max(self.seconds - seconds, 0.0))


NO_DEADLINE = Deadline()  # of a run without a time limit


class History(tuple[Progress, ...]):
    """The progress of a solve: one `Progress` per step, and each field of `Progress` as an array over all steps.

    Examples
    --------
    >>> history = History([Progress(1, 2.0, 1.0, 1.0, 0.1), Progress(2, 1.5, 1.2, 0.25, 0.2)])
    >>> len(history), history.gap, history[-1].iteration
    (2, array([1.  , 0.25]), 2)
    """

    __slots__ = ()

    @property
    def iteration(self) -> Array:
        return self._over_steps("iteration")

    @property
    def objective(self) -> Array:
        return self._over_steps("objective")

    @property
    def lower_bound(self) -> Array:
        return self._over_steps("lower_bound")

    @property
    def gap(self) -> Array:
        """The gap, as the solver computed it."""
        return self._over_steps("gap")

    @property
    def seconds(self) -> Array:
        return self._over_steps("seconds")

    def _over_steps(self, name: str) -> Array:
        return np.array([getattr(news, name) for news in self], dtype=np.float64)
