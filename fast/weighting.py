"""Query weighting: the interior-point method on what a problem leaves to decide, whole or in parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dualmech import validate
from dualmech.fast import sines
from dualmech.fast.engine import interior_point, loop, threads
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array

METHODS = ("auto", "newton")


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Weights that spend 1 at most, dual weights that sum to 1, and what it took to find them."""

    weights: Array
    dual: Array
    reason: Status | None
    iterations: int
    history: tuple[Progress, ...] = ()


Finder = Callable[[Array, Array, int, loop.Limits], Found]
"""Takes costs (k,), sensitivities (k, s), the power and the limits to weights."""


def solve(problem: QueryWeighting, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    validate.choice(METHODS, method=method)
    return run(problem, best, limits, f"fast:{method}")


def run(
    problem: QueryWeighting, find: Finder, limits: loop.Limits, solver: str, message: str = ""
) -> Solution:
    """Find weights of the design queries that are needed and not free, and let the problem judge them."""
    began = time.perf_counter()
    # Products with squared sines are fast; ways to weigh in parts want the matrix.
    sinusoidal = find is best and problem.geometry.name == "sines"
    found = _by_sines(problem, limits) if sinusoidal else _by_matrix(problem, find, limits)
    return judged_solution(
        problem,
        problem.feasible(problem.geometry.spread(found.weights)),
        WeightingDual(found.dual),
        tol=limits.tol,
        otherwise=found.reason or Status.STALLED,
        message=message,
        iterations=found.iterations,
        seconds=time.perf_counter() - began,
        solver=solver,
        history=found.history,
    )


def _by_matrix(problem: QueryWeighting, find: Finder, limits: loop.Limits) -> Found:
    """Find weights from the sensitivities written out, and spread their dual over all neighbours."""
    weighed, sensitivities = problem.geometry.weighed, problem.sensitivities
    neighbours = np.flatnonzero(sensitivities[weighed].any(axis=0))
    rows = sensitivities[np.ix_(weighed, neighbours)]
    with threads.threads_for_rank(min(rows.shape)), np.errstate(all="ignore"):
        found = find(problem.costs[weighed], rows, problem.power, limits)
    dual = np.zeros(sensitivities.shape[1])
    dual[neighbours] = found.dual
    return replace(found, dual=dual)


def _by_sines(problem: QueryWeighting, limits: loop.Limits) -> Found:
    """Find weights of sines for all ranges."""
    with threads.threads_for_rank(len(problem.design)), np.errstate(all="ignore"):
        outcome = sines.best(problem.geometry, limits)  # type: ignore[arg-type]
    return Found(
        outcome.primal.answer, outcome.dual.dual, outcome.reason, outcome.iterations, outcome.history
    )


def best(costs: Array, sensitivities: Array, power: int, limits: loop.Limits) -> Found:
    """Find the best weights of all, by the interior-point method."""
    columns = np.flatnonzero(sensitivities.any(axis=0))
    program = interior_point.WeightingProgram.of(costs, sensitivities[:, columns], power)
    outcome = interior_point.minimise(program, limits)
    dual = np.zeros(sensitivities.shape[1])
    dual[columns] = outcome.dual.dual / outcome.dual.dual.sum()
    weights = outcome.primal.answer * program.units
    return Found(weights, dual, outcome.reason, outcome.iterations, outcome.history)
