"""The limit of double precision: the better of two answers, and answers no worse than those at looser tolerances."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dualmech.fast.engine import loop
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution

LOOSENING = 100.0  # factor on the tolerance of a further run
LOOSEST_TOL = 1e-4  # tolerance above which no further run begins

AT_THE_LIMIT = (Status.STALLED, Status.ROUNDING, Status.NON_FINITE)
"""How a run ends that another one may improve: the limit of double precision stopped it, not the user's limits."""


def no_worse_than_looser(run: Callable[[loop.Limits], Solution], limits: loop.Limits) -> Solution:
    """Return the answer of a run; if it is not certified, the better of it and the answer at a looser tolerance.

    A tolerance beyond double precision takes a solver to weights whose covariance has lost digits. A run at a looser
    tolerance, begun anew, ends before.
    """
    answer = run(limits)
    rest = remaining_limits(limits, answer)
    if answer.status not in AT_THE_LIMIT or rest is None or LOOSENING * limits.tol > LOOSEST_TOL:
        return answer
    looser = no_worse_than_looser(run, replace(rest, tol=LOOSENING * limits.tol))
    return better_solution(answer, looser, answer.status)


def better_solution(first: Solution, second: Solution, otherwise: Status) -> Solution:
    """Return the covariance and the weights, of either run, that the judge proves closest to the optimum together."""
    candidates = [
        judged_solution(
            first.problem,
            one.primal,
            other.dual,
            tol=first.tol,
            otherwise=otherwise,
            iterations=first.iterations + second.iterations,
            seconds=first.seconds + second.seconds,
            solver=first.solver,
            history=first.history + tuple(_continued_progress(news, first) for news in second.history),
        )
        for one, other in itertools.product((second, first), repeat=2)
    ]
    return min(candidates, key=unproven_width)


def unproven_width(answer: Solution) -> float:
    """Return the relative width of the interval that the judge proves, rounding included."""
    return float(answer.gap + answer.certificate.resolution) if answer.certificate.feasible else np.inf


def remaining_limits(limits: loop.Limits, first: Solution) -> loop.Limits | None:
    """Return the limits of a second run, its progress numbered on from the first; None where nothing is left."""
    steps, tell = limits.max_iterations - first.iterations, limits.callback
    if steps <= 0 or limits.deadline.passed:
        return None
    following = None if tell is None else (lambda news: tell(_continued_progress(news, first)))
    return replace(limits, max_iterations=steps, callback=following)


def _continued_progress(news: Progress, first: Solution) -> Progress:
    return replace(news, iteration=news.iteration + first.iterations, seconds=news.seconds + first.seconds)
