"""Reuse of a release: the dual of fitness for use with a matrix of weights on what was released.

Where the release meets every target, nothing is left to do; where it is one row or none, its matrix of weights is a
single weight or none, and the problem is fitness for use on the rows of both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.fast.engine import ascent, loop, threads
from dualmech.fast.reductions.dense import Reduction
from dualmech.fast.reuse import newton
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array

METHODS = ("auto", "newton")
"""Both are Newton's method, but where the problem is fitness for use: there they are that solver's."""

SPARE = 0.1  # share of the tolerance that may be spent on a covariance that doubles can judge

NOTHING_FURTHER = "The release meets every target: nothing further is run."


def solve(problem: ReuseFitness, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    validate.choice(METHODS, method=method)
    known = problem.release_alone()
    if known is not None:
        return judged_solution(
            problem,
            *known,
            tol=limits.tol,
            otherwise=Status.ROUNDING,
            message=NOTHING_FURTHER,
            solver="fast:released",
        )
    reduction = Reduction.of(problem.geometry, problem.row_by_row.targets)
    released = reduction.queries >= len(problem.targets)
    if released.sum() > 1:
        with threads.threads_for_rank(problem.geometry.rank), np.errstate(all="ignore"):
            return _by_newton(problem, reduction, released, limits)
    return ascent.solve(problem, partial(_row_by_row, reduction), limits, method=method)


def _by_newton(
    problem: ReuseFitness, reduction: Reduction, released: npt.NDArray[np.bool_], limits: loop.Limits
) -> Solution:
    rows, tol = reduction.program.queries, limits.tol
    task = newton.ReuseProgram(rows[~released], rows[released], reduction.program.moves)
    outcome = loop.run(newton.start(task), partial(newton.step, task, loop.MARGIN * tol), limits)
    count = len(problem.targets)
    kept = reduction.queries[released] - count
    best = outcome.dual
    neighbours = len(reduction.neighbours)
    queries, matrix = np.zeros(count), np.zeros((len(problem.release),) * 2)
    queries[reduction.queries[~released]] = best.weights[neighbours:]
    matrix[np.ix_(kept, kept)] = best.release_weights
    dual = _dual(reduction.spread_neighbours(best.weights[:neighbours]), queries, matrix, problem.targets)
    covariances = map(reduction.covariance, _covariances(task, outcome.primal, SPARE * tol))
    primal = _first_certified(problem, covariances, dual, tol)
    return outcome.solution(problem, primal, dual, limits, solver="fast:newton")


def _covariances(task: newton.ReuseProgram, state: newton.ReuseState, spare: float) -> Iterator[Array]:
    """Yield Σ, then others nearly as good with less noise in directions that few queries need.

    Such noise drowns the small variances in rounding. With ``P = D D'``, ``(Σ⁻¹ + c P⁻¹)⁻¹`` costs at most c more,
    since ``d_i' P⁻¹ d_i ≤ 1``; here c is a share `spare` of the cost.
    """
    yield state.point.covariance()
    for point in (state.point, state.point.smoothed(0.0)):
        noise = point.covariance()
        moves = np.eye(len(noise)) if task.moves is None else linalg.to_dense(task.moves)
        share = moves @ moves.T / (spare * point.gains[: task.sides[0]].max())
        with contextlib.suppress(np.linalg.LinAlgError):  # scales so far apart that both lose a direction
            yield noise @ np.linalg.solve(noise + share, share)


def _first_certified(
    problem: ReuseFitness, covariances: Iterable[Array], dual: ReuseDual, tol: float
) -> Array:
    """Return the first covariance that the judge certifies, made feasible and lean; the best where it does none."""
    best, least = np.zeros(0), np.inf
    for covariance in covariances:
        primal = problem.least_informative(problem.feasible(covariance))
        certificate = problem.certify(primal, dual)
        doubt = max(certificate.gap, certificate.resolution)
        if not best.size or doubt < least:
            best, least = primal, doubt
        if certificate.certifies(tol):
            break
    return best


def _row_by_row(reduction: Reduction, problem: ReuseFitness) -> ascent.Task:
    """Return the problem as fitness for use: each row of the release is a query with a target of 1."""

    def dual(weights: Array) -> ReuseDual:
        first, last = reduction.spread(weights, problem.row_by_row.targets)
        count = len(problem.targets)
        return ReuseDual(first, last[:count], np.diag(last[count:]))

    return ascent.Task(problem, reduction, dual, lambda known: None)


def _dual(neighbours: Array, shares: Array, matrix: Array, targets: Array) -> ReuseDual:
    """Return weights whose shares, of queries and release together, sum to 1."""
    total = shares.sum() + np.trace(matrix)
    return ReuseDual(neighbours, shares / total / targets, matrix / total)
