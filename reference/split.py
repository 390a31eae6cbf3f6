"""Split noise through CVXPY: each attribute alone, then its levels and weights as second-order cone programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np

from dualmech.problems.splitting import LOOSE, best_split
from dualmech.progress import Status
from dualmech.reference.engine import attempts, backends
from dualmech.reference.engine.scaling import shares
from dualmech.reference.statements import label
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array, Matrix


def levels(costs: Array, sensitivities: Matrix) -> cp.Problem:
    """State the least ``Σ costs / x`` subject to ``N'x ≤ 1``; reciprocals are second-order cones."""
    c, N = cp.Constant(costs, name="costs"), cp.Constant(sensitivities, name="N")
    x = cp.Variable(len(costs), name="x")
    return cp.Problem(cp.Minimize(c @ cp.inv_pos(x)), [label("limits", N.T @ x <= 1)])


def solve(
    problem: Any,
    solver: Callable[..., Solution],
    *,
    backend: Any = "CLARABEL",
    tol: float | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> Solution:
    """Solve the problem; see `dualmech.reference.solve`. `solver` is that of an attribute alone."""
    request = attempts.BackendRequest.of(backend, frozenset({"SOC", "PSD"}), tol, time_limit, options)
    steps = 0

    def solve_attribute(own: Any) -> Solution:
        nonlocal steps
        answer = solver(own, backend=backend, time_limit=request.time_left, **options)
        steps += answer.iterations
        return answer

    def solve_levels(costs: Array, sensitivities: Matrix) -> tuple[Array, Array, int]:
        # In units in which the answer to equal multipliers is all 1.
        unit = np.sqrt(costs / np.asarray(sensitivities.mean(axis=1)).ravel())
        unit = unit / (sensitivities.T @ unit).max()
        total = float((costs / unit).sum())
        program = levels(costs / unit / total, sensitivities.multiply(unit[:, None]).tocsr())
        outcome = backends.run(
            program, request.backend, tol=request.tol, deadline=request.deadline, options=options
        )
        found = np.asarray(program.var_dict["x"].value, dtype=np.float64)
        weights = shares(attempts.multipliers(program, "limits"))
        return np.maximum(found, 1e-12 * np.max(found)) * unit, weights, outcome.iterations

    point, dual, found = best_split(
        problem, request.tol, solve_attribute, solve_levels, lambda: request.deadline.passed
    )
    return judged_solution(
        problem,
        point,
        dual,
        tol=request.tol,
        otherwise=Status.STEPS_EXHAUSTED if request.deadline.passed else Status.STALLED,
        message=LOOSE,
        iterations=steps + found,
        seconds=time.perf_counter() - request.began,
        solver=f"reference:{request.backend}:products",
    )
