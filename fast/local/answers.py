"""From weights on patterns to a strategy that meets its constraints, and to dual weights, as the judge takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dualmech.fast.local.points import Frame, PatternPoint, View, balance_columns
from dualmech.geometry.local import patterns
from dualmech.geometry.local.relaxation import Relaxation
from dualmech.problems.local.strategy import LocalDual, LocalPoint, LocalStrategy
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution

CHEAP = 20  # user types up to which the judge prices all patterns in no time


def strategies(problem: LocalStrategy, frame: Frame, point: PatternPoint) -> list[LocalPoint]:
    """Return the strategy of the patterns that play a part at a point, and that of all."""
    rows = patterns.rows(point.sets, frame.epsilon)
    prior = point.share / point.share.sum() if frame.adversary else problem.prior
    found = []
    for chosen in (point.weights > point.slacks, np.ones(len(rows), dtype=bool)):
        if chosen.any():
            weights = balance_columns(point.weights[chosen], rows[chosen])
            found.append(problem.feasible(LocalPoint(weights[:, None] * rows[chosen], prior)))
    return found


def dual(frame: Frame, point: PatternPoint, view: View, relaxation: Relaxation | None = None) -> LocalDual:
    """Return the dual weights of a point in the problem's own units."""
    prior = point.share / point.share.sum() if frame.adversary else None
    return LocalDual(view.matrix * frame.unit, point.costs * frame.unit**2, prior, relaxation)


def closed_form_weights(problem: LocalStrategy, given: LocalDual) -> LocalDual:
    """Return dual weights that are quick to judge; beyond few user types they leave the closed-form bound to decide."""
    if problem.user_types <= CHEAP:
        return given
    return replace(given, relaxation=Relaxation.of(problem.user_types))


def primal(problem: LocalStrategy, point: LocalPoint) -> Any:
    """Return a point as the problem's answers hold it: with its prior in the worst case alone."""
    return point if problem.criterion == "worst" else point.strategy


def objective(problem: LocalStrategy, point: LocalPoint) -> float:
    """Return the judge's value of a point, without dual weights that take long."""
    size, rank = problem.user_types, len(problem.root)
    nothing = LocalDual(np.zeros((size, rank)), np.zeros(size), relaxation=Relaxation.of(size))
    return problem.certify(point, nothing).objective


def best(
    problem: LocalStrategy, candidates: list[LocalPoint], weights: LocalDual, *, tol: float, **found: Any
) -> Solution:
    """Let the problem judge candidates, those with fewer outputs first: the first that is certified, or the best."""
    if problem.user_types > CHEAP:
        # Pricing all patterns takes its time: it is done for one candidate.
        values = [objective(problem, each) for each in candidates]
        enough = min(values) + tol * abs(min(values))
        candidates = [next(p for p, value in zip(candidates, values, strict=True) if value <= enough)]
    answers = [
        judged_solution(problem, primal(problem, each), weights, tol=tol, **found) for each in candidates
    ]
    certified = (each for each in answers if each.status is Status.CERTIFIED)
    return next(certified, min(answers, key=lambda each: each.gap))
