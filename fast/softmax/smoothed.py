"""Newton's method for Problem 4 and its hybrid, at fixed sharpness and to a proven gap.

It is the paper's algorithm with the right Hessian (`dualmech.fast.softmax.published`) in other coordinates. Where a
Hessian has eigenvalues of very different sizes, a few conjugate gradients do little. Here ``Σ = R X R'``, with R such
that X is now the identity and G diagonal, with entries g: the first part of the Hessian then multiplies entry (a, b)
by ``g_a + g_b``. Divided by the root of that from both sides, the Hessian is the identity plus a matrix of rank s + m
at most, whose size grows with ``t √α`` only: ten or twenty steps do.

The soft max weights p and q of any Σ prove a bound (`SoftmaxFitness.certify`) whose distance is of the order of the
gradient's square; the solver stops by this distance. A t that is large compared with 1/√α is approached from smaller
ones.
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

NEAR = 1.0
"""Where both sides of the gap are within this over t, the requested sharpness can be used at once."""

FIRST_SPREAD = 3.0  # largest exponent, above the mean one, at the sharpness that the solver begins with
GROWTH = 4.0  # factor from one sharpness to the next
SETTLED = 0.1  # a sharpness t has been used enough where the next step would gain less than this over t

MOST_CONJUGATE_GRADIENTS = 500
"""Conjugate gradients of one step; without rounding s + m of them, and some more, are always enough."""

FORCING = 0.01
"""Residual of a Newton direction, relative to the gradient; less where the gradient is small, over 1/t."""

RIDGE = 1e-8
"""Added to the Hessian, relative to the largest entry of G: flatter directions move F by rounding alone."""

WARM_FLOOR = 1e-3  # least weight of a warm start, relative to a uniform one


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """Where the solver stands."""

    root: Array  # (k, k) lower triangular R with ``Σ = R R'``
    cap: float  # the sharpness that is used where more is requested
    point: ObjectivePoint  # F at the sharpness in use and X = I
    objective: float  # F at the requested sharpness
    lower_bound: float  # the bound that the soft max weights of `point` prove on it
    steps: int = 0  # Newton steps so far: the unit in which a run is counted


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
        root = _first_root(problem, reduction, start)
        try:
            first = _begin(program, root)
        except np.linalg.LinAlgError:
            covariance = problem.feasible(reduction.covariance(root @ root.T))
            answer = judged_solution(
                problem, covariance, problem.dual_at(covariance), tol=limits.tol, otherwise=Status.NON_FINITE
            )
        else:
            answer = _run(problem, reduction, program, first, limits)
    return retold(answer, solver=f"fast:{method}")


def _run(
    problem: SoftmaxFitness, reduction: Reduction, program: Objective, first: Descent, limits: loop.Limits
) -> Solution:
    outcome = loop.run(first, partial(_step, program), limits)
    best = outcome.best_dual.point
    primal = problem.feasible(reduction.covariance(outcome.best_primal.root @ outcome.best_primal.root.T))
    return outcome.solution(problem, primal, SoftmaxDual(best.neighbour_shares, best.query_shares), limits)


def _first_root(problem: SoftmaxFitness, reduction: Reduction, start: Solution | None) -> Array:
    """Return R of the minimiser of the weighted sums of costs and variances, the weights uniform or a start's."""
    neighbours, queries = reduction.shape
    first, last = np.full(neighbours, 1 / neighbours), np.full(queries, 1 / queries)
    if start is not None:
        known = _shares(problem, start)
        if known is None or (len(known[0]), len(known[1])) != reduction.shape:
            raise InvalidInputError(f"start must be a solution over {neighbours} neighbours and {queries} queries")
        first, last = (
            np.maximum(weights, WARM_FLOOR * even) for weights, even in zip(known, (first, last), strict=True)
        )
    last = last + problem.total_weight * problem.targets
    weights = np.concatenate([first[reduction.neighbours], last[reduction.queries]])
    spectrum = reduction.program.at(weights)
    half = spectrum.root / np.sqrt(spectrum.mean)
    return np.ascontiguousarray(scipy.linalg.qr(half.T, mode="r", check_finite=False)[0].T)


def _shares(problem: SoftmaxFitness, start: Solution) -> tuple[Array, Array] | None:
    """Return the dual weights of an earlier solution as shares, whichever of the two problems it solves."""
    dual = getattr(start, "dual", None)
    if isinstance(dual, SoftmaxDual):
        return dual.neighbour_weights, dual.query_weights
    if isinstance(dual, FitnessDual) and dual.query_weights.shape == problem.targets.shape:
        return dual.neighbour_weights, dual.query_weights * problem.targets
    return None


def _begin(program: Objective, root: Array) -> Descent:
    """Begin at the requested sharpness where its gap is small, else where no exponent is far above the mean one."""
    sharpness = max(program.t1, program.t2)
    state = _descent_at(program, root, sharpness, 0)
    if state.objective - state.lower_bound <= NEAR / sharpness:
        return state
    forms = state.point.profile, state.point.ratios
    spread = max(float(form.max() - form.mean()) for form in forms)
    return _descent_at(program, root, min(sharpness, FIRST_SPREAD / spread), 0) if spread > 0 else state


def _descent_at(program: Objective, root: Array, cap: float, steps: int) -> Descent:
    """Evaluate F in the coordinates in which ``R R'`` is the identity."""
    seen = replace(
        program,
        moves=scipy.linalg.solve_triangular(root, program.moves, lower=True, check_finite=False),
        queries=program.queries @ root,
    )
    identity = np.eye(len(root))
    used = replace(seen, t1=min(seen.t1, cap), t2=min(seen.t2, cap))
    target, point = seen.at(identity), used.at(identity)
    if target is None or point is None:
        raise np.linalg.LinAlgError("the objective is no longer finite")
    bound = _lower_bound(program, point)
    return Descent(root, cap, point, target.value, bound, steps)


def _lower_bound(program: Objective, point: ObjectivePoint) -> float:
    """Return the bound that the soft max weights of a point prove (the judge recomputes it)."""
    first, last = point.neighbour_shares, point.query_shares
    entropies = float(scipy.special.entr(first).sum()) / program.t1 + float(scipy.special.entr(last).sum()) / program.t2
    return 2 * point.objective.trace_norm(first, last) + entropies


def _step(program: Objective, state: Descent) -> Descent:
    """Take one Newton step, and sharpen where it gains too little to be worth another."""
    rotation, point, scale, ridge = _diagonalise(state.point)
    derivatives = point.derivatives()
    gradient = scale * derivatives.gradient
    sharpness = max(point.objective.t1, point.objective.t2)
    length = float(np.vdot(gradient, gradient))
    step = scale * conjugate_gradient(
        lambda direction: scale * derivatives.exact_product(scale * direction) + ridge * scale**2 * direction,
        gradient,
        MOST_CONJUGATE_GRADIENTS,
        FORCING**2 * min(1.0, sharpness * length) * length,
    )
    slope = float(np.vdot(step, derivatives.gradient))
    accepted = line_search(point, step, slope)
    most = max(program.t1, program.t2)
    if accepted is None and state.cap >= most:
        raise np.linalg.LinAlgError("no step lowers the objective")
    done = accepted is None or -slope < SETTLED / sharpness
    cap = min(most, GROWTH * state.cap) if done else state.cap
    root = state.root
    if accepted is not None:
        moved = rotation @ accepted.covariance @ rotation.T
        root = root @ scipy.linalg.cholesky((moved + moved.T) / 2, lower=True, check_finite=False)
    return _descent_at(program, root, cap, state.steps + 1)


def _diagonalise(point: ObjectivePoint) -> tuple[Array, ObjectivePoint, Array, float]:
    """Return the rotation to the eigenvectors of G, the point seen from there, ``(g_a + g_b + r)^(-1/2)``, and r."""
    seen = point.objective
    half = seen.moves * np.sqrt(point.neighbour_shares)
    values, rotation = np.linalg.eigh(half @ half.T)
    turned = replace(seen, moves=rotation.T @ seen.moves, queries=seen.queries @ rotation)
    rotated = turned.at(np.eye(len(values)))
    if rotated is None:
        raise np.linalg.LinAlgError("the objective is no longer finite")
    values, ridge = np.maximum(values, 0.0), RIDGE * float(values[-1])
    return rotation, rotated, 1 / np.sqrt(values[:, None] + values + ridge), ridge
