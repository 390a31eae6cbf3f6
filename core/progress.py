"""News of a solve, one line a step, handed to a callback while it runs and kept with the answer; and why it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from dualmech import validate
from dualmech.validate import Array

PACE = 40  # most steps from which the pace is computed


class Status(Enum):
    """Why a solver stopped; each value says what it means and what to do."""

    CERTIFIED = "The judge proved the answer within the tolerance of the optimum."
    STEPS_EXHAUSTED = (
        "The steps or the time allowed ran out first. The answer is the best found and its gap is proven; "
        "allow more steps, or ask for a larger tolerance."
    )
    STALLED = (
        "Steps stopped to improve the gap, usually at the limit of double precision. The answer is the best "
        "found and its gap is proven; ask for a larger tolerance, or rescale targets that differ widely."
    )
    ROUNDING = (
        "What is left of the gap is no more than was asked, or no more than rounding in its evaluation may hide. "
        "Ask for a tolerance above the certificate's resolution, or rescale what differs widely."
    )
    BACKEND = (
        "The backend ended its own way; what it returned was repaired to feasibility and judged. Tighten the "
        "backend's own tolerances, choose another backend or formulation, or use the fast layer."
    )
    GIVEN = (
        "The answer comes from elsewhere and was judged as it is; that did not prove it within the tolerance. Ask for "
        "a larger tolerance, mend what it exceeds, or give dual weights that prove more."
    )
    NON_FINITE = (
        "Numbers stopped being finite during the solve. The answer is the best one before that; rescale the "
        "workload and its targets."
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of news from a running solver, handed to its `callback`; `iteration` counts decompositions.

    `left` is the number of seconds until the gap asked for, if it keeps shrinking at its pace; NaN where that is
    unknown.
    """

    iteration: int
    objective: float
    lower_bound: float
    gap: float
    seconds: float
    left: float = math.nan


Callback = Callable[[Progress], None]


def seconds_left(history: Sequence[Progress], gap: float, goal: float, seconds: float) -> float:
    """Return the seconds until a gap reaches a goal at the pace of the latest steps; NaN if the gap does not shrink.

    A line is fitted to the logarithm of the gap over the last steps: half of all steps, at most `PACE`.

    Examples
    --------
    >>> history = [Progress(step, 1.0, 1.0, 0.1**step, 3.0 * step) for step in range(4)]
    >>> round(seconds_left(history, 1e-4, 1e-6, 12.0), 6)
    6.0
    """
    earlier = history[-min(PACE, len(history) // 2 + 1)] if history else None
    if earlier is None or not (0 < gap < earlier.gap < math.inf and goal > 0):
        return math.nan
    # Logarithms before the quotients, which may round to 1 or to 0.
    shrunk = math.log(earlier.gap) - math.log(gap)
    if not shrunk > 0:
        return math.nan
    return max(math.log(gap) - math.log(goal), 0.0) * max(seconds - earlier.seconds, 1e-9) / shrunk


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment when the time of a run is up; all parts of the run share it, the setup included.

    Examples
    --------
    >>> Deadline().passed, Deadline.of(None).left, Deadline.of(1e-9).passed
    (False, None, True)
    """

    began: float = 0.0
    seconds: float = math.inf

    @classmethod
    def of(cls, time_limit: float | None) -> Deadline:
        """Return the deadline of a user's limit, counted from now; refuse one that is not positive."""
        if time_limit is None:
            return cls()
        return cls(time.perf_counter(), validate.positive_number(time_limit=time_limit))

    @property
    def left(self) -> float | None:
        """Seconds that are left, 0 where none are; None where time is not limited."""
        if math.isinf(self.seconds):
            return None
        return max(self.began + self.seconds - time.perf_counter(), 0.0)

    @property
    def passed(self) -> bool:
        """Whether time is up."""
        return self.left == 0.0

    def after(self, share: float) -> Deadline:
        """Return the moment at which a share of the whole time is over."""
        return Deadline(self.began, share * self.seconds)

    def before(self, seconds: float) -> Deadline:
        """Return the moment so many seconds earlier, which leaves time for the steps that must follow."""
        return Deadline(self.began, max(self.seconds - seconds, 0.0))


NEVER = Deadline()  # of a run whose time is not limited


class History(tuple[Progress, ...]):
    """The news of a solve, one `Progress` per step, and each field of `Progress` as an array over all steps.

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
        """The gap between both, as the solver computed it."""
        return self._over_steps("gap")

    @property
    def seconds(self) -> Array:
        return self._over_steps("seconds")

    def _over_steps(self, name: str) -> Array:
        return np.array([getattr(news, name) for news in self], dtype=np.float64)
