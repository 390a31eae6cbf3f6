"""Fitness for use, privacy first and total variance: the entry points of their solvers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.fast import reductions
from dualmech.fast.engine import ascent, loop
from dualmech.fast.methods import AUTO, Method, SoftmaxNewton
from dualmech.fast.softmax import published
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution, retold, transfer


def solve_fitness(
    problem: FitnessForUse | PrivacyFirst,
    limits: loop.Limits,
    *,
    method: Method = AUTO,
    start: Solution | None = None,
    orbits: object = None,
) -> Solution:
    """Solve Problem 1 to a proven gap, and Problem 2 by its accuracy-first twin: the same dual weights prove both."""
    if isinstance(problem, PrivacyFirst):
        twin = problem.accuracy_first
        shown = replace(limits, unit=limits.unit / problem.cost)
        answer = solve_fitness(twin, shown, method=method, start=start, orbits=orbits)
        return transfer(answer, problem, problem.feasible(answer.primal), answer.dual)
    if isinstance(method, SoftmaxNewton):
        if (name := problem.geometry.name) not in ("dense", "stream"):
            raise InvalidInputError(f"method {method.name!r} is for geometry 'dense', got {name!r}")
        if orbits is not None:
            raise InvalidInputError(f"orbits are for {', '.join(ascent.METHODS)}, not for {method.name!r}")
        return published.descend(problem.on_matrix(), limits, method=method, start=start)
    if getattr(problem.geometry, "redundant_rows", 0):
        return _approached(problem, limits, method=method, start=start, orbits=orbits)
    return reductions.solve_on_geometry(problem, limits, method=method.name, start=start, orbits=orbits)


def _approached(problem: FitnessForUse, limits: loop.Limits, **options: Any) -> Solution:
    """Solve on a basis B of more rows than the rank of W, where the least cost is approached and never reached.

    With R orthonormal rows that span W's, ``R = T B``, and N orthonormal with ``T N' = 0``, noise of covariance
    ``T⁺ Σ T⁺' + M N'N`` varies W x as Σ does on R x, and costs ``‖N B u_i‖² / M`` more: a quarter of the tolerance.
    """
    least = FitnessForUse(problem.workload, problem.targets, neighbours=problem.geometry.neighbours, geometry="dense")
    answer = solve_fitness(least, replace(limits, tol=limits.tol / 2), **options)
    spanned = linalg.represent(least.basis, problem.basis, ())
    beyond = scipy.linalg.null_space(spanned).T
    reach = np.linalg.norm(beyond @ problem.geometry.moves, axis=0).max() ** 2
    back = np.linalg.pinv(spanned)
    noise = 4 * reach / (limits.tol * answer.objective)
    covariance = back @ answer.primal @ back.T + noise * (beyond.T @ beyond)
    return transfer(retold(answer, tol=limits.tol), problem, problem.feasible(covariance), answer.dual)


# Total variance: the dual of the matrix mechanism, with a weight on every neighbour, and the weights of the queries
# given.
#
# It is the dual of fitness for use with the weights of the queries fixed: maximise
# ``F(λ) = ‖diag(√w) W U diag(√λ)‖_*`` over ``Σ λ_i = 1``. Only the Gram matrix of the queries matters: the cost of a
# step depends on the rank of the workload, not on the number of queries. The fixed point ``λ_i ∝ gain_i λ_i`` starts
# from the singular value bound, which is F² at the uniform λ.


def solve_variance(
    problem: TotalVariance,
    limits: loop.Limits,
    *,
    method: Method = AUTO,
    start: Solution | None = None,
    orbits: object = None,
) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    return reductions.solve_on_geometry(problem, limits, method=method.name, start=start, orbits=orbits)
