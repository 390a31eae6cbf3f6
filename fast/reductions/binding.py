"""Pairs of cells, of which there are many kinds and few bind: the ascent on those alone, others joining as they must.

Weights on some neighbours prove a bound for all, with 0 for the others; noise is judged under all. So nothing is lost
but a round where a neighbour that was left out turns out to cost the most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dualmech.fast.engine import ascent, loop
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution

MANY = 512  # kinds of neighbours from which on most of them are first left out
TRIAL_STEPS = 30  # steps of the fixed point on all neighbours, which say which of them may bind
NEAR, WEIGHTY = (
    1e-3,
    1e-2,
)  # cost below the largest, and weight of the largest, relative, that a neighbour begins with
MOST_ROUNDS = 20

Ascend = Callable[..., Solution]
"""Solves a problem within limits by a method."""


def solve(problem: Any, ascend: Ascend, limits: loop.Limits) -> Solution:
    """Solve a problem on blocks by those of its kinds of neighbours that bind."""
    began, geometry = time.perf_counter(), problem.geometry
    trial = replace(limits, max_iterations=min(TRIAL_STEPS, limits.max_iterations))
    answer = ascend(problem, trial, method="fixed_point")
    if answer.status is Status.CERTIFIED:
        return answer
    forms, weights = geometry.forms(answer.primal), answer.dual.neighbour_weights
    if forms is None:
        return ascend(problem, limits, method="auto")
    kept = (forms.costs >= (1 - NEAR) * forms.cost) | (weights >= WEIGHTY * weights.max())
    history = list(answer.history)
    for _ in range(MOST_ROUNDS):
        steps = history[-1].iteration
        left = ascent.remaining_limits(limits, answer)
        if left is None:
            break
        found = ascend(
            _on_neighbours(problem, np.flatnonzero(kept)), replace(left, tol=limits.tol / 2), method="auto"
        )
        history += [replace(news, iteration=news.iteration + steps) for news in found.history]
        answer = _for_all(problem, found, kept, limits, history, time.perf_counter() - began)
        if answer.status is Status.CERTIFIED or found.status is not Status.CERTIFIED:
            break
        forms = geometry.forms(answer.primal)
        if forms is None:
            break
        joining = ~kept & (forms.costs > (1 + limits.tol / 4) * forms.costs[kept].max())
        if not joining.any():
            break
        kept |= joining
    return answer


def _on_neighbours(problem: Any, kept: Any) -> Any:
    """Return the same problem under some of its neighbours."""
    numbers = getattr(problem, problem.numbers)
    return type(problem)(problem.workload, numbers, geometry=problem.geometry.restricted(kept))


def _for_all(
    problem: Any, found: Solution, kept: Any, limits: loop.Limits, history: Any, seconds: float
) -> Solution:
    """Return an answer under some neighbours as one under all, judged anew."""
    weights = np.zeros(len(kept))
    weights[kept] = found.dual.neighbour_weights
    return judged_solution(
        problem,
        problem.feasible(found.primal),
        replace(found.dual, neighbour_weights=weights),
        tol=limits.tol,
        otherwise=Status.STALLED if found.status is Status.CERTIFIED else found.status,
        iterations=history[-1].iteration,
        seconds=seconds,
        history=tuple(history),
    )
