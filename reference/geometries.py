"""Fitness for use and total variance, whatever they stand on: the formulations of each geometry."""

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
from dualmech.reference.backends import SHORTEST
from dualmech.reference.formulas import ON_GEOMETRY, noise
from dualmech.reference.formulas.writing import Formula
from dualmech.reference.scaling import shares
from dualmech.solution import Solution, combine_factors, judged_solution, retold, transfer
from dualmech.validate import Array, Matrix

if TYPE_CHECKING:
    from cvxpy.reductions.solvers.solver import Solver

# Products of workloads: each factor through CVXPY, by the same backend, to a share of the tolerance.


def solve_products(
    problem: AnyProblem, *, tol: float | None = None, time_limit: float | None = None, **options: Any
) -> Solution:
    """Solve the problem; see `dualmech.reference.solve`. The factors share the time."""
    deadline = Deadline.of(time_limit)
    share, known, factors = None if tol is None else share_of(problem, tol), {}, problem.factors
    for factor in factors:
        if factor not in known:
            left = None if deadline.left is None else max(deadline.left, SHORTEST)
            known[factor] = solve(factor, tol=share, time_limit=left, **options)
    answers = [known[factor] for factor in factors]
    within = math.expm1(math.fsum(math.log1p(answer.tol) for answer in answers))
    return combine_factors(problem, answers, type(answers[0].dual), within)


# Split noise through CVXPY: each attribute alone, then its levels and weights as second-order cone programs.


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
        # In units in which the answer to equal multipliers is all 1.
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
        seconds=time.perf_counter() - request.began,
        solver=f"reference:{request.backend}:products",
    )


# Running sums through CVXPY: the program of their matrix, whose multipliers are the weights of the noise.


SHARPER = 1e-2

LEAST = 1e-9  # least weight of the noise, over the mean: multipliers are not positive where nothing binds


def solve_streams(problem: AnyProblem, *, tol: float | None = None, **options: Any) -> Solution:
    """Solve the problem on its matrix; see `dualmech.reference.solve`.

    Its multipliers are known less well than its optimum, so it is solved to `SHARPER` of the tolerance.
    """
    sharp = None if tol is None else SHARPER * validate.positive_number(tol=tol)
    answer = solve(problem.on_geometry("dense"), tol=sharp, **options)
    fixed = problem.sums_variances
    sums = problem.geometry.on_sums(problem.weights) if fixed else answer.dual.query_weights
    point = StreamPoint(_raised(answer.dual.neighbour_weights), _raised(sums), 1.0)
    sharpened = retold(answer, tol=answer.tol / SHARPER)
    return transfer(sharpened, problem, problem.feasible(point), answer.dual)


def _raised(weights: Array) -> Array:
    return np.asarray(np.maximum(weights, LEAST * np.mean(weights)))


UNSTATED = {
    "product": "a product has a program for each factor: formulate each of problem.factors",
    "split": "split noise has no one program; geometry 'blocks' or 'dense' has one, where it can hold the workload",
}


def formulate(problem: AnyProblem, **options: Any) -> cp.Problem:
    """State the problem over its own arrays; see `dualmech.reference.formulate`."""
    check_orbits(problem.geometry, options.get("orbits"))
    if problem.geometry.name == "stream":
        return formulate(problem.on_geometry("dense"), **options)
    if (stated := formulations(problem)) is None:
        raise InvalidInputError(UNSTATED[problem.geometry.name])
    return stated.formulate(problem, **options)


def solve(problem: AnyProblem, **options: Any) -> Solution:
    """Solve the problem with a backend of CVXPY; see `dualmech.reference.solve`."""
    name = problem.geometry.name
    check_orbits(problem.geometry, options.get("orbits"))
    if name != "dense" and isinstance(problem, PrivacyFirst):
        answer = solve(problem.accuracy_first, **options)
        return transfer(answer, problem, problem.feasible(answer.primal), answer.dual)
    if (stated := formulations(problem)) is not None:
        return stated.solve(problem, **options)
    options.pop("orbits", None)
    solver = {"product": solve_products, "split": solve_split, "stream": solve_streams}[name]
    return solver(problem, **options)


def formula(problem: AnyProblem) -> Formula:
    """Return the problem in formulas, its geometry's own if that has some."""
    if problem.geometry.name in ON_GEOMETRY:
        return ON_GEOMETRY[problem.geometry.name](problem)
    return noise.variance(problem) if isinstance(problem, TotalVariance) else noise.fitness(problem)


def formulations(problem: AnyProblem, streams: bool = False) -> Formulations | None:
    """Return the formulations of a problem, None where it has no one program; a stream has those of its matrix."""
    if problem.geometry.name in UNSTATED or (problem.geometry.name == "stream" and not streams):
        return None
    if problem.geometry.name == "blocks":
        return blocks.FORMULATIONS
    if problem.geometry.name == "epochs":
        return epochs.FORMULATIONS
    return dense.VARIANCE_FORMULATIONS if isinstance(problem, TotalVariance) else dense.FORMULATIONS
