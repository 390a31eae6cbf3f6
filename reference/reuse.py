"""Reuse of a release through CVXPY: fitness for use with one more matrix inequality, repaired and judged.

Throughout, Σ (k, k) is the covariance on B x of all that is known in the end, ``BU`` (k, s) holds the moves between
neighbouring data sets in its columns, ``L`` (m, k) the queries on B x in its rows v_j, ``K`` (q, k) the release, rows
with unit noise, and ``c`` (m,) the targets.
"""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np

from dualmech.errors import BackendError
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.progress import Status
from dualmech.reference import attempts, backends, fitness
from dualmech.reference.scaling import Scaled
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array


def schur(aim: fitness.Aim, moves: Array, queries: Array, release: Array) -> cp.Problem:
    """State Problem 1 with ``K Σ K' ⪯ I`` added: the release can be answered from the final answers.

    In formulas: minimise ``max_i (B u_i)' Σ⁻¹ (B u_i)`` over ``Σ ≻ 0`` subject to ``v_j Σ v_j' ≤ c_j`` and
    ``Σ⁻¹ ⪰ K'K``, that is, the total cost matrix contains the cost already spent. As a program: the program of
    `fitness.schur`, with ``I - K Σ K' ⪰ 0``, which says the same and is linear in Σ. Its multiplier is the matrix of
    weights Ω.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.ReuseFitness(dm.workloads.prefix(2), 1.0, dm.LinearGaussianMechanism([[1, 1]], [[2]]))
    >>> B, L = problem.geometry.moves, problem.geometry.representation
    >>> program = schur(fitness.accuracy_first(problem.targets), B, L[:2], L[2:])
    >>> _, Sigma = program.solve(solver="CLARABEL"), program.var_dict["Sigma"].value
    >>> weights = [constraint.dual_value for constraint in program.constraints[1:]]
    >>> problem.certify(problem.feasible(Sigma), problem.dual_type(*weights)).gap < 1e-6
    True
    """
    program = fitness.schur(aim, moves, queries)
    if not len(release):
        return program
    K, Sigma = cp.Constant(release, name="K"), program.var_dict["Sigma"]
    released = attempts.label("released", np.eye(len(release)) - K @ Sigma @ K.T >> 0)
    return cp.Problem(program.objective, [*program.constraints, released])


def _write(problem: ReuseFitness, formulation: str) -> cp.Problem:
    geometry, count = problem.geometry, len(problem.targets)
    return schur(
        fitness.accuracy_first(problem.targets),
        geometry.moves,
        geometry.representation[:count],
        geometry.representation[count:],
    )


def _scaled_program(
    problem: ReuseFitness, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram | Solution:
    known = problem.release_alone()
    if known is not None:
        return judged_solution(problem, *known, tol=request.tol, otherwise=Status.ROUNDING, solver="reference:released")
    scaled = replace(Scaled.of(problem.rows.together), problem=problem)
    asked = scaled.kept_queries < len(problem.targets)
    aim = fitness.accuracy_first(np.ones(int(asked.sum())))
    program = schur(aim, scaled.moves, scaled.queries[asked], scaled.queries[~asked])
    return attempts.ScaledProgram(
        program,
        scaled,
        covariance=lambda: program.var_dict["Sigma"].value,
        dual=lambda *multipliers: _dual(scaled, *multipliers),
        constraints=("privacy", "accuracy", "released")[: 2 + (not asked.all())],
    )


FORMULATIONS = attempts.Formulations(lambda _: {"schur": backends.SEMIDEFINITE}, _write, _scaled_program)


def _dual(scaled: Scaled, privacy: Array, accuracy: Array, released: Array | None = None) -> ReuseDual:
    """Return multipliers as weights with ``Σ λ_i = 1`` and ``Σ μ_j c_j + tr Ω = 1``."""
    problem: ReuseFitness = scaled.problem
    asked = scaled.kept_queries < len(problem.targets)
    queries, rows = scaled.kept_queries[asked], scaled.kept_queries[~asked] - len(problem.targets)
    shares = np.maximum(accuracy[: len(queries)], 0.0)
    matrix = np.zeros((len(problem.release), len(problem.release)))
    if released is not None:
        matrix[np.ix_(rows, rows)] = released.reshape(len(rows), len(rows))
    total = float(shares.sum() + np.trace(matrix))
    if not (np.isfinite(total) and total > 0):
        raise BackendError("the backend returned no multipliers to judge")
    weights = np.zeros(len(problem.targets))
    weights[queries] = shares / total / problem.targets[queries]
    return ReuseDual(scaled.neighbour_weights(privacy), weights, matrix / total)
