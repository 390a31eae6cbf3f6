"""Fitness for use: the dual of Problem 1 (and so of Problem 2), with a weight on every neighbour and query."""

from __future__ import annotations

from typing import Any

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast import reductions
from dualmech.fast.engine import ascent, loop
from dualmech.fast.softmax import published
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.solution import Solution, transfer


def solve(
    problem: FitnessForUse | PrivacyFirst,
    limits: loop.Limits,
    *,
    method: str = "auto",
    options: published.SoftmaxOptions | None = None,
    start: Solution | None = None,
    orbits: Any = None,
) -> Solution:
    """Solve Problem 1 to a proven gap, and Problem 2 by its accuracy-first twin: the same dual weights prove both."""
    if isinstance(problem, PrivacyFirst):
        twin = problem.accuracy_first
        answer = solve(twin, limits, method=method, options=options, start=start, orbits=orbits)
        return transfer(answer, problem, problem.feasible(answer.primal), answer.dual)
    validate.choice((*ascent.METHODS, *published.METHODS), method=method)
    if method in published.METHODS:
        if (name := problem.geometry.name) != "dense":
            raise InvalidInputError(f"method {method!r} is for geometry 'dense', got {name!r}")
        if orbits is not None:
            raise InvalidInputError(f"orbits are for {', '.join(ascent.METHODS)}, not for {method!r}")
        return published.solve(problem, limits, method=method, options=options, start=start)
    if options is not None:
        raise InvalidInputError(f"options are for {', '.join(published.METHODS)}, not for {method!r}")
    return reductions.solve(problem.geometry, problem, limits, method=method, start=start, orbits=orbits)
