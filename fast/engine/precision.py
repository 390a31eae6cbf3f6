"""The limit of double precision: the better of two answers, and answers at looser tolerances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dualmech.fast.engine import loop
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution

LOOSENING = 100.0  # factor on the tolerance of another run
LOOSEST_TOL = 1e-4  # maximum tolerance of another run

AT_THE_LIMIT = (Status.STALLED, Status.ROUNDING, Status.NON_FINITE)
"""Status of a run that was stopped by the limit of double precision, not by the user's limits."""

EXACT_GEOMETRIES = ("dense", "blocks", "stream", "product")
"""Geometries whose gap is 0 at the optimum up to rounding; the others have a positive minimum gap."""


def no_worse_than_looser(answer: Solution, run: Callable[[loop.Limits], Solution], limits: loop.Limits) -> Solution:
    """Return an answer, or a better one at a looser tolerance if it is not certified.

    With a tolerance beyond double precision, a solver can end at weights whose covariance is inaccurate. A new run at a
    looser tolerance ends before that. Among the answers, the result is the one with the tightest tolerance whose
    objective is at most the smallest certified upper bound at looser tolerances.
    """
    problem = answer.problem
    if problem.geometry.name not in EXACT_GEOMETRIES:
        return answer
    answers = [answer]
    remaining = remaining_limits(limits, answer)
    while answers[-1].status in AT_THE_LIMIT and remaining is not None and LOOSENING * remaining.tol <= LOOSEST_TOL:
        remaining = replace(remaining, tol=LOOSENING * remaining.tol)
        answers.append(run(remaining))
        remaining = remaining_limits(remaining, answers[-1])
    *tighter, best = answers
    min_upper_bound = best.certificate.interval[1]
    for answer in reversed(tighter):
        certificate = answer.certificate
        # An infeasible answer has no upper bound.
        is_no_worse = (
            certificate.feasible
            and certificate.objective + certificate.violation * (certificate.objective + certificate.offset)
            <= min_upper_bound
        )
        min_upper_bound = min(min_upper_bound, certificate.interval[1])
        best = combined_solution(answer, best, answer if is_no_worse else best, answer.status)
    return best


def better_solution(first: Solution, second: Solution) -> Solution:
    """Combine the better covariance and the better dual weights of two runs, and judge them together."""
    feasible = [answer for answer in (second, first) if answer.certificate.feasible] or [first]
    best = min(feasible, key=lambda answer: answer.objective * (1 + answer.certificate.resolution))
    otherwise = Status.STALLED if second.status is Status.CERTIFIED else second.status
    return combined_solution(first, second, best, otherwise)


def combined_solution(first: Solution, second: Solution, best_primal: Solution, otherwise: Status) -> Solution:
    """Combine the best primal point of two runs with the better dual weights, and judge them together."""
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
    """Return the limits of a second run, with continued step numbers, or None if no steps or time remain."""
    steps, callback = limits.max_iterations - first.iterations, limits.callback
    if steps <= 0 or limits.deadline.passed:
        return None
    continued_callback = None if callback is None else (lambda news: callback(_continued_progress(news, first)))
    return replace(limits, max_iterations=steps, callback=continued_callback)


def _continued_progress(news: Progress, first: Solution) -> Progress:
    return replace(news, iteration=news.iteration + first.iterations, seconds=news.seconds + first.seconds)
