"""Fitness for use and total variance, whatever they stand on: which statement a geometry has."""

from __future__ import annotations

from typing import Any

import cvxpy as cp

from dualmech.errors import InvalidInputError
from dualmech.problems.fitness import PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.reference import blocks, fitness, products, split, variance
from dualmech.reference.engine.attempts import Statement
from dualmech.solution import Solution, transfer

UNSTATED = {
    "product": "a product has a program for each factor: formulate each of problem.factors",
    "split": "split noise has no one program; geometry 'blocks' or 'dense' has one, where it can hold the workload",
}


def formulate(problem: Any, **options: Any) -> cp.Problem:
    """State the problem over its own arrays; see `dualmech.reference.formulate`."""
    name = problem.geometry.name
    if name in UNSTATED:
        raise InvalidInputError(UNSTATED[name])
    return _statement(problem).formulate(problem, **options)


def solve(problem: Any, **options: Any) -> Solution:
    """Solve the problem with a backend of CVXPY; see `dualmech.reference.solve`."""
    name = problem.geometry.name
    if name != "dense" and isinstance(problem, PrivacyFirst):
        answer = solve(problem.accuracy_first, **options)
        return transfer(answer, problem, problem.feasible(answer.primal), answer.dual)
    if name not in UNSTATED:
        return _statement(problem).solve(problem, **options)
    if options.pop("orbits", None) is not None:
        raise InvalidInputError("orbits are for geometry 'dense'")
    return (products if name == "product" else split).solve(problem, solve, **options)


def _statement(problem: Any) -> Statement:
    if problem.geometry.name == "blocks":
        _refuse_replaced(problem)
        return blocks.STATEMENT
    return variance.STATEMENT if isinstance(problem, TotalVariance) else fitness.STATEMENT


def _refuse_replaced(problem: Any) -> None:
    """Refuse blocks where a record is replaced: what nobody moves has no noise that a program could find."""
    relation = problem.geometry.neighbours
    if relation is not None and relation.replace:
        raise InvalidInputError(
            "the reference layer states replaced records on geometry 'dense'; on blocks the fast layer solves them"
        )
