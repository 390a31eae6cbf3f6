"""Fitness for use, privacy first and total variance: the solver of problems on a geometry.

Total variance is the dual of fitness for use with the weights of the queries fixed: maximise
``F(λ) = ‖diag(√w) W U diag(√λ)‖_*`` over ``Σ λ_i = 1``. Only the Gram matrix of the queries matters: the cost of a
step depends on the rank of the workload, not on the number of queries. The fixed point ``λ_i ∝ gain_i λ_i`` starts
from the singular value bound, which is F² at the uniform λ.
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

BEGIN_ANEW = ("product", "split")
"""Geometries whose solvers take no start."""


def solve_on_geometry(
    problem: FitnessForUse | PrivacyFirst | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
    orbits: object = None,
) -> Solution:
    """Solve the problem with the solver of its geometry.

    Raises `InvalidInputError` for an option that the geometry has no use for.
    """
    options: dict[str, Any] = {"start": start, "orbits": orbits}
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(problem, PrivacyFirst):
        return by_accuracy_first(problem, limits, partial(solve_on_geometry, method=method, **options))
    geometry = problem.geometry
    check_orbits(geometry, orbits)
    if start is not None and geometry.name in BEGIN_ANEW:
        raise InvalidInputError(f"start is not for geometry {geometry.name!r}, whose solver begins anew")
    if isinstance(problem, FitnessForUse) and getattr(geometry, "redundant_rows", False):
        return _approached(problem, limits, method=method, **options)
    ascend: Callable[..., Solution] = pkgutil.resolve_name(REDUCTIONS[type(geometry).__name__])
    return ascend(problem, limits, method=method, **options)


def by_accuracy_first(problem: PrivacyFirst, limits: loop.Limits, solver: Callable[..., Solution]) -> Solution:
    """Solve Problem 2 by a solver of its accuracy-first twin, Problem 1: the same dual weights prove both."""
    answer = solver(problem.accuracy_first, replace(limits, unit=limits.unit / problem.cost))
    return transfer(answer, problem, problem.feasible(answer.primal), answer.dual)


def _approached(problem: FitnessForUse, limits: loop.Limits, **options: Any) -> Solution:
    """Solve on a basis B of more rows than the rank of W, where the least cost is approached and never reached.

    With R orthonormal rows that span W's, ``R = T B``, and N orthonormal with ``T N' = 0``, noise of covariance
    ``T⁺ Σ T⁺' + M N'N`` varies W x as Σ does on R x, and costs ``‖N B u_i‖² / M`` more: a quarter of the tolerance.
    """
    least = FitnessForUse(problem.workload, problem.targets, neighbours=problem.geometry.neighbours, geometry="dense")
    answer = solve_on_geometry(least, replace(limits, tol=limits.tol / 2), **options)
    spanned = linalg.represent(least.basis, problem.basis, ())
    beyond = scipy.linalg.null_space(spanned).T
    reach = np.linalg.norm(beyond @ problem.geometry.moves, axis=0).max() ** 2
    back = np.linalg.pinv(spanned)
    noise = 4 * reach / (limits.tol * answer.objective)
    covariance = back @ answer.primal @ back.T + noise * (beyond.T @ beyond)
    return transfer(retold(answer, tol=limits.tol), problem, problem.feasible(covariance), answer.dual)
