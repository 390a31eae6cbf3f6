"""A primal-dual interior-point method for the dual of fitness for use, one decomposition a step.

Maximise ``2F(λ, μ)`` over ``Σ λ_i = Σ μ_j = 1``, all weights w ≥ 0. With a multiplier a for each sum, the
optimality conditions are ``gradient + z = a`` and ``w z = 0`` for slacks z ≥ 0. A step aims at ``w z = τ`` and
at the smoothed dual function G with the same τ (`dualmech.fast.engine.dual_function`), whose primal point stays well
defined where the optimal weights leave a singular matrix. On the central path the gap is about
``(s + m + k) τ / F``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech.validate import Array

# Conjugate gradients with a preconditioner that may be a projection.


def conjugate_gradients(
    apply: Callable[[Array], Array], invert: Callable[[Array], Array], right_side: Array, enough: float, most: int
) -> tuple[Array, Array]:
    """Return an approximate solution, from 0, and its residual r; if in time, ``r · invert(r)`` is at most `enough`."""
    unknowns, residual = 0 * right_side, right_side
    direction = step = invert(residual)
    size = float(residual @ step)
    for _ in range(most):
        if not size > enough:
            break
        applied = apply(direction)
        length = size / float(direction @ applied)
        unknowns, residual = unknowns + length * direction, residual - length * applied
        step, last = invert(residual), size
        size = float(residual @ step)
        direction = step + size / last * direction
    return unknowns, residual


# A dual function as the fixed point and Newton's method read it, however it is evaluated.


class Evaluation(Protocol):
    """A dual function and its primal point at given weights; for its formulas see `dualmech.fast.engine.spectrum`."""

    @property
    def weights(self) -> Array:
        """On neighbours, then on queries."""

    @property
    def values(self) -> Array:
        """Singular values, ascending."""

    @property
    def mean(self) -> Array:
        """The n that belong to them at the smoothing."""

    @property
    def neighbours(self) -> int:
        """Number of weights on neighbours."""

    @property
    def decompositions(self) -> int:
        """Number of decompositions of the evaluation."""

    @property
    def offsets(self) -> Array | None:
        """Costs that no covariance changes."""

    @property
    def gains(self) -> Array:
        """Costs of the neighbours, then variances of the queries, at the primal point."""

    @property
    def linear(self) -> Array:
        """Coefficients of the terms linear in the weights, next to the smoothed function."""

    @property
    def dual_value(self) -> float:
        """The dual function."""

    @property
    def lower_bound(self) -> float:
        """The bound that the weights prove."""

    @property
    def objective(self) -> float:
        """The cost of the primal point, scaled to be feasible."""

    @property
    def barrier(self) -> float:
        """The logarithmic barrier, but for constants and the weights' own part."""

    def gradient(self) -> Array:
        """Return the gradient of the smoothed function."""

    def gradient_slope(self) -> Array:
        """Return its derivative by the smoothing."""

    def smoothed(self, smoothing: float) -> Any:
        """Return the same decomposition at another smoothing."""

    def curvature_diagonal(self) -> Array:
        """Return the diagonal of `curvature`."""

    def curvature(self, chosen: npt.NDArray[np.intp], exactly: bool = False) -> Array:
        """Return the lower triangle of minus the Hessian in relative weights, for the chosen indices.

        It may be accurate to a percent only and, unless `exactly` is set, in single precision.
        """

    def curvature_product(self, change: Array) -> Array:
        """Return minus the Hessian in relative weights times a vector."""

    def covariance(self) -> Any:
        """Return the primal point, unscaled."""

    def tightened(self, share: float) -> Any:
        """Return the point without noise that nothing limits, at costs higher by a share; None where all is limited."""


class DualFunction(Protocol):
    """A dual function that can be evaluated at strictly positive weights."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of weights on neighbours and on queries, and rank."""

    @property
    def operations(self) -> tuple[float, float, float]:
        """Approximate operations of an evaluation, of the curvature of all weights, and of a product with it."""

    def at(self, weights: Array) -> Any:
        """Evaluate."""


TO_THE_BOUNDARY = 0.995  # largest part of the way to a zero weight or slack that one step may go
ENOUGH = 0.2  # where on the central path to stop, as a share of the requested gap
LAG = 1e-3  # least centring, as a share of how far slacks and gradient disagree
SMALLEST = 1e-22  # weights and slacks never fall below this: a zero could not grow again
NEARLY_SINGULAR = 10.0  # where the least singular value is below this many τ, steps are short

SHORT, SHORTENED = 0.1, 0.5
"""Factor on τ in a short step, and the reach below which the next one only centres."""

OFF_CENTRE, CAREFULLY = 3e-3, 2e-2
"""Least product of a weight and its slack, relative to the mean, below which a short step only centres."""

RETREAT, MOST_RETREATS = 0.3, 6  # a step that lowers the potential is shortened so much, at most so often

SLACKENING = 0.5
"""Largest loss of the potential in a step, in units of τ a weight: the last step had another aim."""

SMOOTH_GAIN = 0.1
"""The smoothed primal point is preferred where it is better by this share of the requested gap."""

NEGLIGIBLE = 0.03
"""Sum of the curvatures of the weights that are left out, each relative to its barrier."""

LARGEST_FORMED = 8000  # number of weights above which the matrix is not formed (0.5 GiB)
CONJUGATE_GRADIENTS = 20  # steps that a solution of Newton's equations takes

ACCURACY, FINEST, MOST_CONJUGATE_GRADIENTS = 0.05, 0.001, 200
"""Error of a step by conjugate gradients, relative, in the norm of the equations, at most and, after a start near the
optimum, at least; and how many it may take."""


@dataclass(frozen=True, slots=True, eq=False)
class NewtonState:
    """The dual function at the current weights, slacks z, multipliers of the sums, and how far the last step went.

    `decompositions` counts the decompositions of the last step.
    """

    point: Evaluation
    sums: Array  # (weights, sums) 1 for the weights of each sum
    slacks: Array
    multipliers: Array
    reach: float = 1.0
    decompositions: int = 1
    near: bool = False  # whether the run began near the optimum: steps are then as accurate as the gap is small

    @property
    def accuracy(self) -> float:
        """Return the largest error of the next step by conjugate gradients."""
        gap = self.point.objective / self.point.lower_bound - 1
        return float(np.clip(gap, FINEST, ACCURACY)) if self.near else ACCURACY


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """Relative changes of weights and slacks, the change of the multipliers, and the τ that is aimed at."""

    weights: Array
    slacks: Array
    multipliers: Array
    target: float
    potential: float  # where the direction begins, at that τ


def operations(program: DualFunction) -> float:
    (neighbours, queries, _), (first, _, product) = program.sizes, program.operations
    size = neighbours + queries
    if _is_formed(program, size):
        return first + _forming(program, size)
    return first + 2 * CONJUGATE_GRADIENTS * product


def _is_formed(program: DualFunction, chosen: int) -> bool:
    """Whether to form the matrix of some of the weights, rather than to multiply with the whole matrix."""
    if chosen > LARGEST_FORMED:
        return False
    return _forming(program, chosen) <= 2 * CONJUGATE_GRADIENTS * program.operations[2]


def _forming(program: DualFunction, chosen: int) -> float:
    (neighbours, queries, _), (_, curvature, _) = program.sizes, program.operations
    return curvature * (chosen / (neighbours + queries)) ** 2 + 2 * chosen**3 / 3


def start(point: Evaluation) -> NewtonState:
    """Begin at the weights of a point, with slacks that are neither too small nor negative."""
    sums, gradient = sum_indicators(point), point.gradient()
    multipliers = sums.T @ (point.weights * gradient) / (sums.T @ point.weights)
    natural = sums @ multipliers - gradient
    centre = float(np.mean(point.weights * np.abs(natural)))
    slacks = np.maximum(natural, np.minimum(0.3 * point.dual_value, centre / point.weights))
    return NewtonState(point, sums, slacks, multipliers)


def step(program: DualFunction, state: NewtonState, tol: float, careful: bool = False) -> NewtonState:
    """Take one step towards a gap of `tol`, shortened until the smoothed dual function allows it.

    The path is followed no further than the gap asks, and never faster than the slacks catch up with the
    gradient: weights that vanish too early would leave the covariance no room to become feasible. A `careful`
    step stays near the path whatever the point: slower, and the way out where bolder steps got stuck.
    """
    point, weights = state.point, state.point.weights
    mean = float((weights * state.slacks).mean())
    values = point.values
    least = ENOUGH * tol * point.dual_value / (len(weights) + len(values))
    singular = values[0] < NEARLY_SINGULAR * mean
    if careful or singular:
        direction = _path_following(program, state, mean, least, CAREFULLY if careful else OFF_CENTRE)
    else:
        direction = _predictor_corrector(program, state, mean, least)
    reach, slack_reach = _step_limit(direction.weights), _step_limit(direction.slacks)
    slacks = np.maximum(state.slacks * (1 + slack_reach * direction.slacks), SMALLEST)
    allowed = direction.potential - SLACKENING * direction.target * len(weights)
    spent = 0
    for _ in range(MOST_RETREATS):
        trial = program.at(np.maximum(weights * (1 + reach * direction.weights), SMALLEST))
        spent += trial.decompositions
        smooth = trial.smoothed(direction.target)
        if _potential(smooth, direction.target) >= allowed:
            break
        reach *= RETREAT
    # Both make a primal point of these weights. The smooth one is better near a singular optimum, the plain
    # one is better conditioned.
    best = smooth if smooth.objective < (1 - SMOOTH_GAIN * tol) * trial.objective else trial
    multipliers = state.multipliers + slack_reach * direction.multipliers
    return NewtonState(best, state.sums, slacks, multipliers, reach, spent, state.near)


def _predictor_corrector(program: DualFunction, state: NewtonState, mean: float, least: float) -> Direction:
    """Return a predictor-corrector direction (Mehrotra's rule for the centring)."""
    products = state.point.weights * state.slacks
    here = state.point.smoothed(mean)
    solve = _solver(program, state, here, products)
    uphill = _residual(state, here)
    predictor, _ = solve(uphill)
    predictor_slack = -products * (1 + predictor)
    reach, slack_reach = _step_limit(predictor), _step_limit(predictor_slack / products)
    predicted = (1 + reach * predictor) * (products + slack_reach * predictor_slack)
    lag = float(np.abs(uphill + products).mean())
    target = max(mean * min(1.0, float(predicted.mean()) / mean) ** 3, LAG * lag, least)
    correction = predictor * predictor_slack
    aimed = state.point.smoothed(target)
    change, shift = solve(_residual(state, aimed) + target - correction)
    slack_change = (target - products - products * change - correction) / products
    return Direction(change, slack_change, shift, target, _potential(aimed, target))


def _path_following(program: DualFunction, state: NewtonState, mean: float, least: float, margin: float) -> Direction:
    """Return a direction to a nearby τ, along the path: where the optimum is singular, G bends as fast as τ falls.

    There small weights, slacks and n are proportional to τ, so the gradient's own dependence on τ must be followed
    too; Newton's method at the aim alone would be off by the whole change.
    """
    products = state.point.weights * state.slacks
    central = products.min() > margin * mean and state.reach > SHORTENED
    target = max(SHORT * mean if central else mean, least)
    here = state.point.smoothed(mean)
    drift = here.weights * here.gradient_slope() * (target - mean)
    change, shift = _solver(program, state, here, products)(_residual(state, here) + drift + target)
    slack_change = (target - products - products * change) / products
    return Direction(change, slack_change, shift, target, _potential(state.point.smoothed(target), target))


def _residual(state: NewtonState, point: Evaluation) -> Array:
    """Return ``w (gradient - a)`` of G at the point's own τ."""
    return point.weights * (point.gradient() - state.sums @ state.multipliers)


def _potential(smooth: Evaluation, smoothing: float) -> float:
    """Return the dual function with G, and ``τ Σ log w``, which a Newton step increases; constants are left out."""
    barrier = smooth.barrier + float(np.log(smooth.weights).sum())
    return float(smooth.linear @ smooth.weights) + 2 * float(smooth.mean.sum()) + smoothing * barrier


def sum_indicators(point: Evaluation) -> Array:
    """Return the indicators of the weights that sum to 1: of neighbours, and of queries where their scale is free."""
    first = np.arange(len(point.weights)) < point.neighbours
    sides = [first] if first.all() or point.offsets is not None else [first, ~first]
    return np.stack(sides, axis=1).astype(np.float64)


def _step_limit(relative_change: Array) -> float:
    """Return the longest step at most 1 that keeps ``1 + step · change`` positive."""
    worst = float(-relative_change.min())
    return min(1.0, TO_THE_BOUNDARY / worst) if worst > 0 else 1.0


def _solver(
    program: DualFunction, state: NewtonState, point: Evaluation, products: Array
) -> Callable[[Array], tuple[Array, Array]]:
    """Return a solver of Newton's equations, bordered by the two sums.

    The matrix is formed for the weights whose curvature matters compared with the barrier; the others are divided out.
    Where conjugate gradients take fewer operations, they are used instead, with the matrix's diagonal as
    preconditioner.
    """
    diagonal = point.curvature_diagonal()
    ratios = diagonal / products
    order = np.argsort(ratios)
    coupled = np.sort(order[np.cumsum(ratios[order]) > NEGLIGIBLE])
    formed = _is_formed(program, len(coupled))
    factor = _factor(point, coupled, products[coupled]) if formed else None
    border, missing = state.sums * point.weights[:, None], 1 - state.sums.T @ point.weights

    def inverse(right_side: Array) -> Array:
        solution = (right_side.T / (products + diagonal)).T
        if factor is not None:
            solution[coupled] = scipy.linalg.cho_solve(factor, right_side[coupled], check_finite=False)
        return np.asarray(solution)

    bordered = inverse(border)
    corner = border.T @ bordered

    def project(residual: Array) -> Array:
        free = inverse(residual)
        return np.asarray(free - bordered @ np.linalg.solve(corner, border.T @ free))

    def apply(change: Array) -> Array:
        return np.asarray(point.curvature_product(change) + products * change)

    def solve(right_side: Array) -> tuple[Array, Array]:
        free = inverse(right_side)
        shift = np.linalg.solve(corner, border.T @ free - missing)
        change = free - bordered @ shift
        if factor is not None:
            return change, np.asarray(shift)
        enough = state.accuracy**2 * float(right_side @ project(right_side))
        more, residual = conjugate_gradients(
            apply, project, right_side - apply(change), enough, MOST_CONJUGATE_GRADIENTS
        )
        return change + more, np.asarray(np.linalg.solve(corner, border.T @ inverse(residual)))

    return solve


def _factor(point: Evaluation, chosen: npt.NDArray[np.intp], products: Array) -> tuple[Array, bool]:
    """Factor Newton's matrix of some weights; where rounding leaves it indefinite, once more with more digits."""

    def factored(exactly: bool) -> tuple[Array, bool]:
        matrix = point.curvature(chosen, exactly)
        matrix[np.diag_indices_from(matrix)] += products
        return scipy.linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)

    try:
        return factored(exactly=False)
    except np.linalg.LinAlgError:
        return factored(exactly=True)
