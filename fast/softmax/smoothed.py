"""Newton's method for Problem 4 and its hybrid, at fixed sharpness and to a proven gap.

It is the paper's algorithm with the correct Hessian (`dualmech.fast.softmax.published`) in other coordinates, because a
few conjugate-gradient steps are not enough for an ill-conditioned Hessian. Here ``Σ = R X R'``, with R such that the
current X is the identity and G is diagonal with entries g. The first part of the Hessian then multiplies entry (a, b)
by ``g_a + g_b``. Scaled by the root of that from both sides, the Hessian is the identity plus a matrix of rank at most
s + m, whose size grows with ``t √α`` only: ten or twenty steps suffice.

The soft-maximum weights p and q of any Σ prove a bound (`SoftmaxFitness.certify`) with a gap of the order of the
squared gradient; the solver stops by this gap. If t is large compared with 1/√α, the solver starts with a smaller t.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy  # it loads special when that is used
import scipy.linalg

from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop
from dualmech.fast.reductions.dense import Reduction
from dualmech.fast.softmax.published import Objective, ObjectivePoint, conjugate_gradient, line_search
from dualmech.problems.fitness import FitnessDual
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution, retold
from dualmech.validate import Array

MAX_DIRECT_GAP = 1.0
"""If the initial gap is at most this over t, the requested sharpness is used from the start."""

MAX_INITIAL_EXPONENT = 3.0  # above the mean exponent, at the initial sharpness
SHARPNESS_FACTOR = 4.0
MIN_STEP_GAIN = 0.1  # the sharpness t increases when the predicted gain of a step is less than this over t

MAX_CG_STEPS = 500
"""For one Newton step; without rounding errors about s + m steps suffice."""

FORCING_TERM = 0.01
"""Residual of a Newton direction relative to the gradient; smaller if the squared gradient is below 1/t."""

RIDGE = 1e-8
"""Added to the Hessian, relative to the largest entry of G: in flatter directions, changes of F are rounding errors."""

MIN_WARM_WEIGHT = 1e-3  # lower limit on the weights of a warm start, relative to uniform weights


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """The state of the solver."""

    root: Array  # (k, k) lower triangular R with ``Σ = R R'``
    cap: float  # upper limit on the current sharpness
    point: ObjectivePoint  # F at the current sharpness and X = I
    objective: float  # F at the requested sharpness
    lower_bound: float  # from the soft-maximum weights of `point`
    steps: int = 0  # number of Newton steps, the unit of iteration limits


def solve_softmax(
    problem: SoftmaxFitness,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
) -> Solution:
    """Solve Problem 4 to a proven gap; see `dualmech.fast.solve`."""
    with np.errstate(all="ignore"):
        reduction = Reduction.of(problem.geometry, problem.targets)
        extra = problem.total_weight * problem.targets
        program = Objective.from_reduction(reduction, problem.t1, problem.t2, extra)
        root = _initial_root(problem, reduction, start)
        try:
            start_state = _start(program, root)
        except np.linalg.LinAlgError:
            covariance = problem.feasible(reduction.covariance(root @ root.T))
            answer = judged_solution(
                problem, covariance, problem.dual_at(covariance), tol=limits.tol, otherwise=Status.NON_FINITE
            )
        else:
            answer = _run(problem, reduction, program, start_state, limits)
    return retold(answer, solver=f"fast:{method}")


def _run(
    problem: SoftmaxFitness, reduction: Reduction, program: Objective, start_state: Descent, limits: loop.Limits
) -> Solution:
    outcome = loop.run(start_state, partial(_step, program), limits)
    best_point = outcome.best_dual.point
    primal = problem.feasible(reduction.covariance(outcome.best_primal.root @ outcome.best_primal.root.T))
    return outcome.solution(problem, primal, SoftmaxDual(best_point.neighbour_shares, best_point.query_shares), limits)


def _initial_root(problem: SoftmaxFitness, reduction: Reduction, start: Solution | None) -> Array:
    """Return R for the minimiser of weighted sums of costs and variances, with uniform weights or a start's."""
    neighbours, queries = reduction.shape
    neighbour_weights, query_weights = np.full(neighbours, 1 / neighbours), np.full(queries, 1 / queries)
    if start is not None:
        shares = _shares(problem, start)
        if shares is None or (len(shares[0]), len(shares[1])) != reduction.shape:
            raise InvalidInputError(f"start must be a solution over {neighbours} neighbours and {queries} queries")
        neighbour_weights, query_weights = (
            np.maximum(weights, MIN_WARM_WEIGHT * uniform)
            for weights, uniform in zip(shares, (neighbour_weights, query_weights), strict=True)
        )
    query_weights = query_weights + problem.total_weight * problem.targets
    weights = np.concatenate([neighbour_weights[reduction.neighbours], query_weights[reduction.queries]])
    spectrum = reduction.program.at(weights)
    half = spectrum.root / np.sqrt(spectrum.mean)
    return np.ascontiguousarray(scipy.linalg.qr(half.T, mode="r", check_finite=False)[0].T)


def _shares(problem: SoftmaxFitness, start: Solution) -> tuple[Array, Array] | None:
    """Return the dual weights of an earlier solution of Problem 1 or 4 as shares."""
    dual = getattr(start, "dual", None)
    if isinstance(dual, SoftmaxDual):
        return dual.neighbour_weights, dual.query_weights
    if isinstance(dual, FitnessDual) and dual.query_weights.shape == problem.targets.shape:
        return dual.neighbour_weights, dual.query_weights * problem.targets
    return None


def _start(program: Objective, root: Array) -> Descent:
    """Start at the requested sharpness if its gap is small, else at a sharpness that limits the exponents."""
    sharpness = max(program.t1, program.t2)
    state = _descent_at(program, root, sharpness, 0)
    if state.objective - state.lower_bound <= MAX_DIRECT_GAP / sharpness:
        return state
    exponents = state.point.profile, state.point.ratios
    max_excess = max(float(form.max() - form.mean()) for form in exponents)
    return _descent_at(program, root, min(sharpness, MAX_INITIAL_EXPONENT / max_excess), 0) if max_excess > 0 else state


def _descent_at(program: Objective, root: Array, cap: float, steps: int) -> Descent:
    """Evaluate F in coordinates that make ``R R'`` the identity."""
    transformed = replace(
        program,
        moves=scipy.linalg.solve_triangular(root, program.moves, lower=True, check_finite=False),
        queries=program.queries @ root,
    )
    identity = np.eye(len(root))
    capped = replace(transformed, t1=min(transformed.t1, cap), t2=min(transformed.t2, cap))
    target, point = transformed.at(identity), capped.at(identity)
    if target is None or point is None:
        raise np.linalg.LinAlgError("the objective is no longer finite")
    bound = _lower_bound(program, point)
    return Descent(root, cap, point, target.value, bound, steps)


def _lower_bound(program: Objective, point: ObjectivePoint) -> float:
    """Return the bound from the soft-maximum weights of a point (the judge recomputes it)."""
    neighbour_shares, query_shares = point.neighbour_shares, point.query_shares
    entropies = (
        float(scipy.special.entr(neighbour_shares).sum()) / program.t1
        + float(scipy.special.entr(query_shares).sum()) / program.t2
    )
    return 2 * point.objective.trace_norm(neighbour_shares, query_shares) + entropies


def _step(program: Objective, state: Descent) -> Descent:
    """Take one Newton step, and increase the sharpness if its gain is small."""
    rotation, point, scale, ridge = _diagonalise(state.point)
    derivatives = point.derivatives()
    gradient = scale * derivatives.gradient
    sharpness = max(point.objective.t1, point.objective.t2)
    squared_norm = float(np.vdot(gradient, gradient))
    step = scale * conjugate_gradient(
        lambda direction: scale * derivatives.exact_product(scale * direction) + ridge * scale**2 * direction,
        gradient,
        MAX_CG_STEPS,
        FORCING_TERM**2 * min(1.0, sharpness * squared_norm) * squared_norm,
    )
    slope = float(np.vdot(step, derivatives.gradient))
    next_point = line_search(point, step, slope)
    max_sharpness = max(program.t1, program.t2)
    if next_point is None and state.cap >= max_sharpness:
        raise np.linalg.LinAlgError("no step decreases the objective")
    is_settled = next_point is None or -slope < MIN_STEP_GAIN / sharpness
    cap = min(max_sharpness, SHARPNESS_FACTOR * state.cap) if is_settled else state.cap
    root = state.root
    if next_point is not None:
        rotated = rotation @ next_point.covariance @ rotation.T
        root = root @ scipy.linalg.cholesky((rotated + rotated.T) / 2, lower=True, check_finite=False)
    return _descent_at(program, root, cap, state.steps + 1)


def _diagonalise(point: ObjectivePoint) -> tuple[Array, ObjectivePoint, Array, float]:
    """Return the eigenvectors of G, the point in their basis, ``(g_a + g_b + r)^(-1/2)``, and the ridge r."""
    objective = point.objective
    weighted_differences = objective.moves * np.sqrt(point.neighbour_shares)
    values, rotation = np.linalg.eigh(weighted_differences @ weighted_differences.T)
    rotated_objective = replace(objective, moves=rotation.T @ objective.moves, queries=objective.queries @ rotation)
    rotated = rotated_objective.at(np.eye(len(values)))
    if rotated is None:
        raise np.linalg.LinAlgError("the objective is no longer finite")
    values, ridge = np.maximum(values, 0.0), RIDGE * float(values[-1])
    return rotation, rotated, 1 / np.sqrt(values[:, None] + values + ridge), ridge
