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
from dualmech.reference import attempts, backends, statements
from dualmech.reference.scaling import Scaled
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array


def _write(problem: ReuseFitness, formulation: str) -> cp.Problem:
    geometry, count = problem.geometry, len(problem.targets)
    return schur(
        statements.accuracy_first(problem.targets),
        geometry.moves,
        geometry.representation[:count],
        geometry.representation[count:],
    )


def _read(
    problem: ReuseFitness, formulation: str, request: attempts.BackendRequest
) -> attempts.Readout | Solution:
    known = problem.release_alone()
    if known is not None:
        return judged_solution(
            problem, *known, tol=request.tol, otherwise=Status.ROUNDING, solver="reference:released"
        )
    scaled = replace(Scaled.of(problem.row_by_row), problem=problem)
    asked = scaled.kept_queries < len(problem.targets)
    aim = statements.accuracy_first(np.ones(int(asked.sum())))
    program = schur(aim, scaled.moves, scaled.queries[asked], scaled.queries[~asked])
    return attempts.Readout(
        program,
        scaled,
        covariance=lambda: program.var_dict["Sigma"].value,
        dual=lambda *multipliers: _dual(scaled, *multipliers),
        constraints=("privacy", "accuracy", "released")[: 2 + (not asked.all())],
    )


def schur(aim: statements.Aim, moves: Array, queries: Array, release: Array) -> cp.Problem:
    """State Problem 1 with ``K Σ K' ⪯ I`` beside it: the release can be answered from what is known in the end.

    It says ``Σ⁻¹ ⪰ K'K``, that the total cost matrix contains what was spent, and is linear in Σ. Its multiplier is
    the matrix of weights Ω.
    """
    program = statements.schur(aim, moves, queries)
    if not len(release):
        return program
    K, Sigma = cp.Constant(release, name="K"), program.var_dict["Sigma"]
    return cp.Problem(
        program.objective,
        [*program.constraints, statements.label("released", np.eye(len(release)) - K @ Sigma @ K.T >> 0)],
    )


STATEMENT = attempts.Statement(lambda _: {"schur": backends.SEMIDEFINITE}, _write, _read)


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
