"""The limit of double precision: the better of two answers, and answers no worse than those at looser tolerances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dualmech.fast.engine import loop
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution

LOOSENING = 100.0  # factor on the tolerance of a further run
LOOSEST_TOL = 1e-4  # tolerance above which no further run begins

AT_THE_LIMIT = (Status.STALLED, Status.ROUNDING, Status.NON_FINITE)
"""How a run ends that another one may improve: the limit of double precision stopped it, not the user's limits."""


TIGHT = ("dense", "blocks", "stream", "product")
"""Geometries whose gap vanishes at the optimum, but for rounding; others have an interval that no tolerance narrows."""


def no_worse_than_looser(answer: Solution, run: Callable[[loop.Limits], Solution], limits: loop.Limits) -> Solution:
    """Return the answer of a run, unless it is not certified and an answer at a looser tolerance is better.

    A tolerance beyond double precision takes a solver to weights whose covariance has lost digits. A run at a looser
    tolerance, begun anew, ends before. Of the answers that are not certified, the tightest is returned whose objective
    is at most the least proven upper bound of the answers at looser tolerances.
    """
    problem = answer.problem
    if problem.geometry.name not in TIGHT:
        return answer
    answers = [answer]
    rest = remaining_limits(limits, answer)
    while answers[-1].status in AT_THE_LIMIT and rest is not None and LOOSENING * rest.tol <= LOOSEST_TOL:
        rest = replace(rest, tol=LOOSENING * rest.tol)
        answers.append(run(rest))
        rest = remaining_limits(rest, answers[-1])
    *tighter, best = answers
    least = best.certificate.interval[1]
    for answer in reversed(tighter):
        judged = answer.certificate
        # An infeasible answer has no upper bound.
        keeps = judged.feasible and judged.objective + judged.violation * (judged.objective + judged.offset) <= least
        least = min(least, judged.interval[1])
        best = combined_solution(answer, best, answer if keeps else best, answer.status)
    return best


def better_solution(first: Solution, second: Solution) -> Solution:
    """Return the better covariance with the better weights, whichever run found them, judged together."""
    feasible = [answer for answer in (second, first) if answer.certificate.feasible] or [first]
    best = min(feasible, key=lambda answer: answer.objective * (1 + answer.certificate.resolution))
    otherwise = Status.STALLED if second.status is Status.CERTIFIED else second.status
    return combined_solution(first, second, best, otherwise)


def combined_solution(first: Solution, second: Solution, best_primal: Solution, otherwise: Status) -> Solution:
    """Return the best primal point of two runs with the better weights of both, judged together."""
    return judged_solution(
        first.problem,
        best_primal.primal,
        max((second, first), key=lambda answer: answer.lower_bound).dual,
        tol=first.tol,
        otherwise=otherwise,
        iterations=first.iterations + second.iterations,
        seconds=first.seconds + second.seconds,
        message=first.message,
        solver=first.solver,
        history=first.history + tuple(_continued_progress(news, first) for news in second.history),
    )


def remaining_limits(limits: loop.Limits, first: Solution) -> loop.Limits | None:
    """Return the limits of a second run, its progress numbered on from the first; None where nothing is left."""
    steps, tell = limits.max_iterations - first.iterations, limits.callback
    if steps <= 0 or limits.deadline.passed:
        return None
    following = None if tell is None else (lambda news: tell(_continued_progress(news, first)))
    return replace(limits, max_iterations=steps, callback=following)


def _continued_progress(news: Progress, first: Solution) -> Progress:
    return replace(news, iteration=news.iteration + first.iterations, seconds=news.seconds + first.seconds)
