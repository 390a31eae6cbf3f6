"""Fitness for use and total variance: the formulations of each geometry."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.orbits import check_orbits
from dualmech.geometry.stream import StreamPoint
from dualmech.problems.base import AnyProblem, share_of
from dualmech.problems.fitness import PrivacyFirst
from dualmech.problems.splitting import LOOSE, best_split
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Deadline, Status
from dualmech.reference import attempts, backends, blocks, cp, dense, epochs, weighting
from dualmech.reference.attempts import Formulations
from dualmech.reference.backends import MIN_SECONDS
from dualmech.reference.formulas import ON_GEOMETRY, noise
from dualmech.reference.formulas.writing import Formula
from dualmech.reference.scaling import shares
from dualmech.solution import Solution, combine_factors, judged_solution, retold, transfer
from dualmech.validate import Array, Matrix

if TYPE_CHECKING:
    from cvxpy.reductions.solvers.solver import Solver

# Products of workloads: each factor through CVXPY, with the same backend and a fraction of the tolerance.


def solve_products(
    problem: AnyProblem, *, tol: float | None = None, time_limit: float | None = None, **options: Any
) -> Solution:
    """Solve the problem; see `dualmech.reference.solve`. The time limit is for all factors together."""
    deadline = Deadline.of(time_limit)
    share, solutions, factors = None if tol is None else share_of(problem, tol), {}, problem.factors
    for factor in factors:
        if factor not in solutions:
            remaining = None if deadline.left is None else max(deadline.left, MIN_SECONDS)
            solutions[factor] = solve(factor, tol=share, time_limit=remaining, **options)
    answers = [solutions[factor] for factor in factors]
    total_tol = math.expm1(math.fsum(math.log1p(answer.tol) for answer in answers))
    return combine_factors(problem, answers, type(answers[0].dual), total_tol)


# Split noise through CVXPY: each attribute separately, then levels and weights as second-order cone programs.


def solve_split(
    problem: AnyProblem,
    *,
    backend: str | Solver = "CLARABEL",
    tol: float | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> Solution:
    """Solve the problem; see `dualmech.reference.solve`."""
    request = attempts.BackendRequest.of(backend, frozenset({"SOC", "PSD"}), tol, time_limit, options)
    steps = 0

    def solve_attribute(part: object) -> Solution:
        nonlocal steps
        answer = solve(part, backend=backend, time_limit=request.time_left, **options)
        steps += answer.iterations
        return answer

    def solve_levels(costs: Array, sensitivities: Matrix) -> tuple[Array, Array, int]:
        # The units make the weights for equal multipliers 1.
        unit = np.sqrt(costs / np.asarray(sensitivities.mean(axis=1)).ravel())
        unit = unit / (sensitivities.T @ unit).max()
        total = float((costs / unit).sum())
        program = weighting.inv_pos(costs / unit / total, sensitivities.multiply(unit[:, None]).tocsr())
        outcome = backends.run(program, request.backend, tol=request.tol, deadline=request.deadline, options=options)
        attribute_weights = np.asarray(program.var_dict["u"].value, dtype=np.float64)
        weights = shares(attempts.multipliers(program, "privacy"))
        return np.maximum(attribute_weights, 1e-12 * np.max(attribute_weights)) * unit, weights, outcome.iterations

    point, dual, value = best_split(
        problem, request.tol, solve_attribute, solve_levels, lambda: request.deadline.passed
    )
    return judged_solution(
        problem,
        point,
        dual,
        tol=request.tol,
        otherwise=Status.STEPS_EXHAUSTED if request.deadline.passed else Status.STALLED,
        message=LOOSE,
        iterations=steps + value,
        seconds=time.perf_counter() - request.start_time,
        solver=f"reference:{request.backend}:products",
    )


# Running sums through CVXPY: a program for their matrix, whose multipliers determine the noise.


STREAM_TOL_FACTOR = 1e-2

MIN_WEIGHT = 1e-9  # lower limit on the weights of the noise, relative to their mean: multipliers can be 0


def solve_streams(problem: AnyProblem, *, tol: float | None = None, **options: Any) -> Solution:
    """Solve the problem on its matrix; see `dualmech.reference.solve`.

    Multipliers are less accurate than the optimum, so the tolerance is multiplied by `STREAM_TOL_FACTOR`.
    """
    stream_tol = None if tol is None else STREAM_TOL_FACTOR * validate.positive_number(tol=tol)
    answer = solve(problem.on_geometry("dense"), tol=stream_tol, **options)
    fixed = problem.sums_variances
    sums = problem.geometry.on_sums(problem.weights) if fixed else answer.dual.query_weights
    point = StreamPoint(_positive(answer.dual.neighbour_weights), _positive(sums), 1.0)
    rescaled = retold(answer, tol=answer.tol / STREAM_TOL_FACTOR)
    return transfer(rescaled, problem, problem.feasible(point), answer.dual)


def _positive(weights: Array) -> Array:
    return np.asarray(np.maximum(weights, MIN_WEIGHT * np.mean(weights)))


REASONS_WITHOUT_PROGRAM = {
    "product": "a product has a program for each factor: formulate each of problem.factors",
    "split": "split noise has no single program; use geometry 'blocks' or 'dense' if it supports the workload",
}


def formulate(problem: AnyProblem, **options: Any) -> cp.Problem:
    """State the problem over its own arrays; see `dualmech.reference.formulate`."""
    check_orbits(problem.geometry, options.get("orbits"))
    if problem.geometry.name == "stream":
        return formulate(problem.on_geometry("dense"), **options)
    if (family := formulations(problem)) is None:
        raise InvalidInputError(REASONS_WITHOUT_PROGRAM[problem.geometry.name])
    return family.formulate(problem, **options)


def solve(problem: AnyProblem, **options: Any) -> Solution:
    """Solve the problem with a backend of CVXPY; see `dualmech.reference.solve`."""
    name = problem.geometry.name
    check_orbits(problem.geometry, options.get("orbits"))
    if name != "dense" and isinstance(problem, PrivacyFirst):
        answer = solve(problem.accuracy_first, **options)
        return transfer(answer, problem, problem.feasible(answer.primal), answer.dual)
    if (family := formulations(problem)) is not None:
        return family.solve(problem, **options)
    options.pop("orbits", None)
    solver = {"product": solve_products, "split": solve_split, "stream": solve_streams}[name]
    return solver(problem, **options)


def formula(problem: AnyProblem) -> Formula:
    """Return the problem in formulas, which may depend on the geometry."""
    if problem.geometry.name in ON_GEOMETRY:
        return ON_GEOMETRY[problem.geometry.name](problem)
    return noise.variance(problem) if isinstance(problem, TotalVariance) else noise.fitness(problem)


def formulations(problem: AnyProblem, streams: bool = False) -> Formulations | None:
    """Return the formulations of a problem, or None without a single program; with `streams`, also for streams."""
    if problem.geometry.name in REASONS_WITHOUT_PROGRAM or (problem.geometry.name == "stream" and not streams):
        return None
    if problem.geometry.name == "blocks":
        return blocks.FORMULATIONS
    if problem.geometry.name == "epochs":
        return epochs.FORMULATIONS
    return dense.VARIANCE_FORMULATIONS if isinstance(problem, TotalVariance) else dense.FORMULATIONS
