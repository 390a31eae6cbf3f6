"""Fitness for use and total variance, whatever they stand on: which statement a geometry has."""

from __future__ import annotations

from typing import Any

import cvxpy as cp

from dualmech.errors import InvalidInputError
from dualmech.geometry.orbits import check_orbits
from dualmech.problems.fitness import PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.reference import blocks, fitness, products, split, streams, variance
from dualmech.reference.engine.attempts import Statement
from dualmech.solution import Solution, transfer

UNSTATED = {
    "product": "a product has a program for each factor: formulate each of problem.factors",
    "split": "split noise has no one program; geometry 'blocks' or 'dense' has one, where it can hold the workload",
}


def formulate(problem: Any, **options: Any) -> cp.Problem:
    """State the problem over its own arrays; see `dualmech.reference.formulate`."""
    check_orbits(problem.geometry, options.get("orbits"))
    if problem.geometry.name == "stream":
        return formulate(problem.on_geometry("dense"), **options)
    if (stated := statement(problem)) is None:
        raise InvalidInputError(UNSTATED[problem.geometry.name])
    return stated.formulate(problem, **options)


def solve(problem: Any, **options: Any) -> Solution:
    """Solve the problem with a backend of CVXPY; see `dualmech.reference.solve`."""
    name = problem.geometry.name
    check_orbits(problem.geometry, options.get("orbits"))
    if name != "dense" and isinstance(problem, PrivacyFirst):
        answer = solve(problem.accuracy_first, **options)
        return transfer(answer, problem, problem.feasible(answer.primal), answer.dual)
    if (stated := statement(problem)) is not None:
        return stated.solve(problem, **options)
    options.pop("orbits", None)
    own = {"product": products.solve, "split": split.solve, "stream": streams.solve}[name]
    return own(problem, solve, **options)


def statement(problem: Any, streams: bool = False) -> Statement | None:
    """Return the statement of a problem, None where it has no program of its own; of streams, that of their matrix."""
    if problem.geometry.name in UNSTATED or (problem.geometry.name == "stream" and not streams):
        return None
    if problem.geometry.name == "blocks":
        return blocks.STATEMENT
    return variance.STATEMENT if isinstance(problem, TotalVariance) else fitness.STATEMENT
