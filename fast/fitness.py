"""Fitness for use: the dual of Problem 1 (and so of Problem 2), with a weight on every neighbour and query."""

from __future__ import annotations

from functools import partial
from typing import Any

from dualmech.errors import InvalidInputError
from dualmech.fast.engine import ascent
from dualmech.fast.reductions import orbits as tied
from dualmech.fast.reductions.dense import Reduction
from dualmech.fast.softmax import published
from dualmech.geometry.orbits import Orbits
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.solution import Solution, warned
from dualmech.validate import Array


def solve(
    problem: FitnessForUse | PrivacyFirst,
    *,
    method: str = "auto",
    options: published.SoftmaxOptions | None = None,
    orbits: Any = None,
    **limits: Any,
) -> Solution:
    """Solve Problem 1 or 2 to a proven gap; see `dualmech.fast.solve`."""
    if method in published.METHODS:
        if orbits is not None:
            raise InvalidInputError(f"orbits are for {', '.join(ascent.METHODS)}, not for {method!r}")
        return published.solve(problem, method=method, options=options, **limits)
    if method not in ascent.METHODS:
        raise InvalidInputError(
            f"method must be one of {', '.join((*ascent.METHODS, *published.METHODS))}, got {method!r}"
        )
    if options is not None:
        raise InvalidInputError(f"options are for {', '.join(published.METHODS)}, not for {method!r}")
    task = _task if orbits is None else partial(_tied_task, orbits=orbits)
    return warned(ascent.solve(problem, task, method=method, **limits), stacklevel=4)


def _tied_task(problem: FitnessForUse | PrivacyFirst, orbits: Any) -> ascent.Task:
    return tied.tied(_task(problem), Orbits.of(problem, orbits))


def _task(problem: FitnessForUse | PrivacyFirst) -> ascent.Task:
    reduction = Reduction.of(problem.geometry, problem.targets)

    def dual(weights: Array) -> FitnessDual:
        return FitnessDual(*reduction.spread(weights, problem.targets))

    def gather(known: Any) -> Array | None:
        if not isinstance(known, FitnessDual):
            return None
        first, last = known
        return reduction.gather((first, last), problem.targets) if _sizes(known) == reduction.shape else None

    return ascent.Task(problem, reduction, dual, gather)


def _sizes(dual: FitnessDual) -> tuple[int, int]:
    return len(dual.neighbour_weights), len(dual.query_weights)
