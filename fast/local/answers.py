"""From weights on patterns to a strategy that meets its constraints, and to dual weights, as the judge takes them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech.fast.local.points import Frame, PatternPoint, View, balance_columns
from dualmech.geometry.local.relaxation import Relaxation
from dualmech.problems.local.strategy import LocalDual, LocalPoint, LocalStrategy
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array

MOST_NEEDED = (
    300  # outputs that may be needed, up to which a strategy is rid of others: beyond, it takes seconds
)

CHEAP = 20  # user types up to which the judge prices all patterns in no time


def strategies(problem: LocalStrategy, frame: Frame, point: PatternPoint, view: View) -> list[LocalPoint]:
    """Return the strategy of the patterns that play a part at a point, with no more outputs than needed, and of all."""
    prior = point.share / point.share.sum() if frame.adversary else problem.prior
    playing, every = point.weights > point.slacks, np.ones(len(point.weights), dtype=bool)
    found, fewer = [], fewest(frame, point, view, every)
    rest = [point.weights] if np.any(fewer == 0) else []
    for weights in {
        each.tobytes(): each for each in (fewest(frame, point, view, playing), fewer, *rest)
    }.values():
        kept = weights > 0
        if kept.any():
            balanced = balance_columns(weights[kept], view.rows[kept])
            found.append(problem.feasible(LocalPoint(balanced[:, None] * view.rows[kept], prior)))
    return found


def fewest(frame: Frame, point: PatternPoint, view: View, chosen: npt.NDArray[np.bool_]) -> Array:
    """Return weights (s,) on chosen patterns, as few as bring about the same G and, in the worst case, variances.

    G has n(n+1)/2 entries, ``Σ_S w_S p_S p_S' / a_S``, and every type's variance is linear in the weights as well, as
    long as G is the same. Non-negative least squares end at columns that are linearly independent (Carathéodory).
    """
    # Imported here so that solvers load without it.
    from scipy.optimize import nnls

    weights = np.where(chosen, point.weights, 0.0)
    first, second = np.triu_indices(len(point.share))
    needed = len(first) + frame.adversary * len(point.share)
    if np.count_nonzero(chosen) <= needed or needed > MOST_NEEDED:
        return weights
    seen = view.coordinates[chosen]
    system = seen[:, first] * seen[:, second] / (view.rows[chosen] @ point.share)[:, None]
    if frame.adversary:
        lengths = view.forms[chosen] / point.weights[chosen]
        system = np.hstack([system, view.portions[chosen] * (lengths / lengths.mean())[:, None]])
    with contextlib.suppress(RuntimeError):  # it took too many steps: more outputs do no harm
        weights[chosen] = nnls(system.T, weights[chosen] @ system)[0]
    return weights


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


def lightest(problem: LocalStrategy, candidates: list[LocalPoint], tol: float) -> LocalPoint:
    """Return the first candidate, those with fewer outputs coming first, that is within the tolerance of the best."""
    if len(candidates) == 1:
        return candidates[0]
    values = [objective(problem, each) for each in candidates]
    enough = min(values) + tol * abs(min(values))
    return next(each for each, value in zip(candidates, values, strict=True) if value <= enough)


def best(
    problem: LocalStrategy, candidates: list[LocalPoint], weights: LocalDual, *, tol: float, **found: Any
) -> Solution:
    """Let the problem judge candidates, those with fewer outputs first: the first that is certified, or the best."""
    if problem.user_types > CHEAP:
        # Pricing all patterns takes its time: it is done for one candidate.
        candidates = [lightest(problem, candidates, tol)]
    answers = [
        judged_solution(problem, primal(problem, each), weights, tol=tol, **found) for each in candidates
    ]
    certified = (each for each in answers if each.status is Status.CERTIFIED)
    return next(certified, min(answers, key=lambda each: each.gap))
