"""Fitness for use, privacy first and total variance: the solver of problems on a geometry.

Total variance is the dual of fitness for use with the weights of the queries fixed: maximise
``F(λ) = ‖diag(√w) W U diag(√λ)‖_*`` over ``Σ λ_i = 1``. It depends only on the Gram matrix of the queries, so the
cost of a step depends on the rank of the workload, not on the number of queries. The fixed point
``λ_i ∝ λ_i d_i' Σ⁻¹ d_i`` starts from the singular value bound, which is F² for uniform λ.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop
from dualmech.fast.reductions import REDUCTIONS
from dualmech.geometry.orbits import check_orbits
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution, retold, transfer

WITHOUT_START = ("product", "split")
"""Geometries whose solvers accept no start."""


def solve_on_geometry(
    problem: FitnessForUse | PrivacyFirst | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
    orbits: object = None,
) -> Solution:
    """Solve the problem with the solver of its geometry.

    Raises `InvalidInputError` for an option that the geometry does not support.
    """
    options: dict[str, Any] = {"start": start, "orbits": orbits}
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(problem, PrivacyFirst):
        return by_accuracy_first(problem, limits, partial(solve_on_geometry, method=method, **options))
    geometry = problem.geometry
    check_orbits(geometry, orbits)
    if start is not None and geometry.name in WITHOUT_START:
        raise InvalidInputError(f"start is not supported for geometry {geometry.name!r}: solve without it")
    if isinstance(problem, FitnessForUse) and getattr(geometry, "redundant_rows", False):
        return _on_redundant_basis(problem, limits, method=method, **options)
    ascend: Callable[..., Solution] = pkgutil.resolve_name(REDUCTIONS[type(geometry).__name__])
    return ascend(problem, limits, method=method, **options)


def by_accuracy_first(problem: PrivacyFirst, limits: loop.Limits, solver: Callable[..., Solution]) -> Solution:
    """Solve Problem 2 by a solver of the equivalent Problem 1: the same dual weights prove both."""
    answer = solver(problem.accuracy_first, replace(limits, unit=limits.unit / problem.cost))
    return transfer(answer, problem, problem.feasible(answer.primal), answer.dual)


def _on_redundant_basis(problem: FitnessForUse, limits: loop.Limits, **options: Any) -> Solution:
    """Solve in a basis B with more rows than the rank of W, for which the infimum of the cost is not attained.

    Let the orthonormal rows R span the row space of W, ``R = T B``, and let N be orthonormal with ``T N' = 0``. Noise
    of covariance ``T⁺ Σ T⁺' + M N'N`` gives W x the same variances as Σ on R x, at an additional cost of ``‖N B u_i‖² /
    M``, which is a quarter of the tolerance.
    """
    dense_problem = FitnessForUse(
        problem.workload, problem.targets, neighbours=problem.geometry.neighbours, geometry="dense"
    )
    answer = solve_on_geometry(dense_problem, replace(limits, tol=limits.tol / 2), **options)
    coordinates = linalg.represent(dense_problem.basis, problem.basis, ())
    null_rows = scipy.linalg.null_space(coordinates).T
    squared_norm = np.linalg.norm(null_rows @ problem.geometry.moves, axis=0).max() ** 2
    inverse = np.linalg.pinv(coordinates)
    noise = 4 * squared_norm / (limits.tol * answer.objective)
    covariance = inverse @ answer.primal @ inverse.T + noise * (null_rows.T @ null_rows)
    return transfer(retold(answer, tol=limits.tol), problem, problem.feasible(covariance), answer.dual)
