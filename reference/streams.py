"""Running sums through CVXPY: the program of their matrix, whose multipliers are the weights of the noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.geometry.stream import StreamPoint
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution, retold, transfer
from dualmech.validate import Array

SHARPER = 1e-2

LEAST = 1e-9
"""Least weight of the noise, over the mean: a backend's multipliers are not positive where nothing binds."""


def solve(
    problem: Any, solver: Callable[..., Solution], *, tol: float | None = None, **options: Any
) -> Solution:
    """Solve the problem on its matrix by `solver`; see `dualmech.reference.solve`.

    Its multipliers are known less well than its optimum: they are asked for `SHARPER` of the tolerance.
    """
    sharp = None if tol is None else SHARPER * validate.positive_number(tol=tol)
    answer = solver(problem.on_geometry("dense"), tol=sharp, **options)
    fixed = isinstance(problem, TotalVariance)
    sums = problem.geometry.on_sums(problem.weights) if fixed else answer.dual.query_weights
    point = StreamPoint(_raised(answer.dual.neighbour_weights), _raised(sums), 1.0)
    asked = retold(answer, tol=answer.tol / SHARPER)
    return transfer(asked, problem, problem.feasible(point), answer.dual)


def _raised(weights: Array) -> Array:
    return np.asarray(np.maximum(weights, LEAST * np.mean(weights)))
