"""A primal-dual interior-point method for the dual of fitness for use, with one decomposition per step.

Maximise ``2F(λ, μ)`` over ``Σ λ_i = Σ μ_j = 1``, all weights w ≥ 0. With a multiplier a for each sum, the
optimality conditions are ``gradient + z = a`` and ``w z = 0`` for slacks z ≥ 0. The target of a step is
``w z = τ`` for the smoothed dual function G with the same τ (`dualmech.fast.engine.dual_function`), whose primal point
is well defined even if the optimal weights give a singular matrix. On the central path the gap is about
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

# The interface of dual functions for the fixed point and Newton's method.


class Evaluation(Protocol):
    """A dual function and its primal point at given weights; for the formulas see `dualmech.fast.engine.spectrum`."""

    @property
    def weights(self) -> Array:
        """Weights on neighbours, then on queries."""

    @property
    def values(self) -> Array:
        """Singular values in increasing order."""

    @property
    def mean(self) -> Array:
        """The n of `dualmech.fast.engine.dual_function` for the singular values, at the current smoothing."""

    @property
    def neighbours(self) -> int:
        """Number of weights on neighbours."""

    @property
    def decompositions(self) -> int:
        """Number of decompositions of the evaluation."""

    @property
    def offsets(self) -> Array | None:
        """Costs that do not depend on the covariance."""

    @property
    def constraint_values(self) -> Array:
        """Costs of the neighbours, then variances of the queries, at the primal point."""

    @property
    def linear(self) -> Array:
        """Coefficients of the terms linear in the weights, apart from the smoothed function."""

    @property
    def dual_value(self) -> float:
        """Value of the dual function."""

    @property
    def lower_bound(self) -> float:
        """The lower bound from the weights."""

    @property
    def objective(self) -> float:
        """The cost of the primal point, scaled to be feasible."""

    @property
    def barrier(self) -> float:
        """The logarithmic barrier of the matrix, up to constants; without the logarithms of the weights."""

    def gradient(self) -> Array:
        """Return the gradient of the smoothed function."""

    def gradient_slope(self) -> Array:
        """Return the derivative of the gradient in the smoothing."""

    def smoothed(self, smoothing: float) -> Any:
        """Return the same decomposition at another smoothing."""

    def curvature_diagonal(self) -> Array:
        """Return the diagonal of `curvature`."""

    def curvature(self, indices: npt.NDArray[np.intp], exactly: bool = False) -> Array:
        """Return the lower triangle of minus the Hessian in relative weights, for some indices.

        Its relative error may be a percent. Unless `exactly` is set, it may be in single precision.
        """

    def curvature_product(self, change: Array) -> Array:
        """Return the product of minus the Hessian in relative weights and a vector."""

    def covariance(self) -> Any:
        """Return the primal point, unscaled."""

    def tightened(self, share: float) -> Any:
        """Return the point with less noise in unconstrained directions, at slightly higher costs, or None."""


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


STEP_TO_BOUNDARY = 0.995  # maximum fraction of the distance to a zero weight or slack in one step
FINAL_CENTRING = 0.2  # final gap on the central path, relative to the tolerance
MIN_CENTRING = 1e-3  # lower limit on τ, relative to the dual infeasibility
MIN_VALUE = 1e-22  # lower limit on weights and slacks, because zeros could not increase again
SINGULAR_RATIO = 10.0  # if the smallest singular value is less than this times τ, steps follow the path

PATH_TAU_FACTOR, MIN_LAST_STEP = 0.1, 0.5
"""Factor on τ in a path-following step, and the minimum length of the last step, else the next step only centres."""

MIN_PRODUCT, CAREFUL_MIN_PRODUCT = 3e-3, 2e-2
"""Minimum product of weight and slack, relative to the mean; otherwise a path-following step only centres."""

STEP_REDUCTION, MAX_REDUCTIONS = 0.3, 6  # for steps that decrease the potential

MAX_POTENTIAL_LOSS = 0.5
"""Allowed decrease of the potential in a step, in units of τ times the number of weights: the last τ was different."""

MIN_SMOOTH_GAIN = 0.1
"""The smoothed primal point is taken if its objective is smaller by this fraction of the tolerance."""

NEGLIGIBLE_CURVATURE = 0.03
"""Maximum sum of the neglected curvatures, each relative to its barrier."""

MAX_FORMED_WEIGHTS = 8000  # maximum size of the Newton matrix (0.5 GiB)
NUM_CG_STEPS = 20  # expected conjugate-gradient steps for one solution

MAX_CG_ERROR, MIN_CG_ERROR, MAX_CG_STEPS = 0.05, 0.001, 200
"""Relative error of a step by conjugate gradients in the norm of the equations: maximum, and minimum after a warm
start; and the maximum number of conjugate-gradient steps."""


@dataclass(frozen=True, slots=True, eq=False)
class NewtonState:
    """The dual function at the current weights, slacks z, multipliers of the sums, and the length of the last step.

    `decompositions` counts the decompositions of the last step.
    """

    point: Evaluation
    indicators: Array  # (weights, sums) indicators of the weights of each sum
    slacks: Array
    multipliers: Array
    step_length: float = 1.0
    decompositions: int = 1
    warm_started: bool = False  # if the run started near the optimum, the accuracy of steps depends on the gap

    @property
    def cg_error(self) -> float:
        """The maximum error of the next step by conjugate gradients."""
        gap = self.point.objective / self.point.lower_bound - 1
        return float(np.clip(gap, MIN_CG_ERROR, MAX_CG_ERROR)) if self.warm_started else MAX_CG_ERROR


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """Relative changes of weights and slacks, the change of the multipliers, and the target τ."""

    weights: Array
    slacks: Array
    multipliers: Array
    target: float
    potential: float  # at the start of the step, for the target τ


def operations(program: DualFunction) -> float:
    (neighbours, queries, _), (evaluation, _, product) = program.sizes, program.operations
    size = neighbours + queries
    if _is_formed(program, size):
        return evaluation + _forming_operations(program, size)
    return evaluation + 2 * NUM_CG_STEPS * product


def _is_formed(program: DualFunction, num_weights: int) -> bool:
    """Return whether to form the Newton matrix of some weights, instead of using conjugate gradients."""
    if num_weights > MAX_FORMED_WEIGHTS:
        return False
    return _forming_operations(program, num_weights) <= 2 * NUM_CG_STEPS * program.operations[2]


def _forming_operations(program: DualFunction, num_weights: int) -> float:
    (neighbours, queries, _), (_, curvature, _) = program.sizes, program.operations
    return curvature * (num_weights / (neighbours + queries)) ** 2 + 2 * num_weights**3 / 3


def start(point: Evaluation) -> NewtonState:
    """Return the state at the weights of a point, with slacks bounded away from 0."""
    sums, gradient = sum_indicators(point), point.gradient()
    multipliers = sums.T @ (point.weights * gradient) / (sums.T @ point.weights)
    dual_slacks = sums @ multipliers - gradient
    mean_product = float(np.mean(point.weights * np.abs(dual_slacks)))
    slacks = np.maximum(dual_slacks, np.minimum(0.3 * point.dual_value, mean_product / point.weights))
    return NewtonState(point, sums, slacks, multipliers)


def step(program: DualFunction, state: NewtonState, tol: float, careful: bool = False) -> NewtonState:
    """Take one step towards a gap of `tol`, shortened if the potential decreases.

    τ does not decrease further than the gap requires, nor faster than the dual infeasibility: if weights vanish too
    early, the covariance cannot become feasible. A `careful` step stays near the path at any point. It is slower, but
    makes progress if other steps have failed.
    """
    point, weights = state.point, state.point.weights
    mean = float((weights * state.slacks).mean())
    values = point.values
    min_tau = FINAL_CENTRING * tol * point.dual_value / (len(weights) + len(values))
    near_singular = values[0] < SINGULAR_RATIO * mean
    if careful or near_singular:
        direction = _path_following(program, state, mean, min_tau, CAREFUL_MIN_PRODUCT if careful else MIN_PRODUCT)
    else:
        direction = _predictor_corrector(program, state, mean, min_tau)
    step_length, slack_step_length = _step_limit(direction.weights), _step_limit(direction.slacks)
    slacks = np.maximum(state.slacks * (1 + slack_step_length * direction.slacks), MIN_VALUE)
    min_potential = direction.potential - MAX_POTENTIAL_LOSS * direction.target * len(weights)
    decompositions = 0
    for _ in range(MAX_REDUCTIONS):
        trial = program.at(np.maximum(weights * (1 + step_length * direction.weights), MIN_VALUE))
        decompositions += trial.decompositions
        smoothed = trial.smoothed(direction.target)
        if _potential(smoothed, direction.target) >= min_potential:
            break
        step_length *= STEP_REDUCTION
    # Both give a primal point. The smoothed point is better near a singular optimum, the other is better conditioned.
    best = smoothed if smoothed.objective < (1 - MIN_SMOOTH_GAIN * tol) * trial.objective else trial
    multipliers = state.multipliers + slack_step_length * direction.multipliers
    return NewtonState(best, state.indicators, slacks, multipliers, step_length, decompositions, state.warm_started)


def _predictor_corrector(program: DualFunction, state: NewtonState, mean: float, min_tau: float) -> Direction:
    """Return a predictor-corrector direction (Mehrotra's rule for the centring)."""
    products = state.point.weights * state.slacks
    current = state.point.smoothed(mean)
    solve = _solver(program, state, current, products)
    residual = _residual(state, current)
    predictor, _ = solve(residual)
    predictor_slack = -products * (1 + predictor)
    step_length, slack_step_length = _step_limit(predictor), _step_limit(predictor_slack / products)
    predicted = (1 + step_length * predictor) * (products + slack_step_length * predictor_slack)
    dual_infeasibility = float(np.abs(residual + products).mean())
    target = max(mean * min(1.0, float(predicted.mean()) / mean) ** 3, MIN_CENTRING * dual_infeasibility, min_tau)
    correction = predictor * predictor_slack
    smoothed = state.point.smoothed(target)
    change, shift = solve(_residual(state, smoothed) + target - correction)
    slack_change = (target - products - products * change - correction) / products
    return Direction(change, slack_change, shift, target, _potential(smoothed, target))


def _path_following(
    program: DualFunction, state: NewtonState, mean: float, min_tau: float, min_product: float
) -> Direction:
    """Return a direction along the path to a nearby τ, for optima that are nearly singular.

    There, small weights, slacks and n are proportional to τ. The dependence of the gradient on τ must be included:
    without it, a Newton step to the target would have an error as large as the whole change.
    """
    products = state.point.weights * state.slacks
    is_central = products.min() > min_product * mean and state.step_length > MIN_LAST_STEP
    target = max(PATH_TAU_FACTOR * mean if is_central else mean, min_tau)
    current = state.point.smoothed(mean)
    drift = current.weights * current.gradient_slope() * (target - mean)
    change, shift = _solver(program, state, current, products)(_residual(state, current) + drift + target)
    slack_change = (target - products - products * change) / products
    return Direction(change, slack_change, shift, target, _potential(state.point.smoothed(target), target))


def _residual(state: NewtonState, point: Evaluation) -> Array:
    """Return ``w (gradient - a)`` for G at the τ of the point."""
    return point.weights * (point.gradient() - state.indicators @ state.multipliers)


def _potential(point: Evaluation, tau: float) -> float:
    """Return the smoothed dual function plus ``τ Σ log w``, up to constants; Newton steps increase it."""
    barrier = point.barrier + float(np.log(point.weights).sum())
    return float(point.linear @ point.weights) + 2 * float(point.mean.sum()) + tau * barrier


def sum_indicators(point: Evaluation) -> Array:
    """Return the indicators of the weights that sum to 1: on neighbours and, if their scale is free, on queries."""
    is_neighbour = np.arange(len(point.weights)) < point.neighbours
    indicators = [is_neighbour] if is_neighbour.all() or point.offsets is not None else [is_neighbour, ~is_neighbour]
    return np.stack(indicators, axis=1).astype(np.float64)


def _step_limit(relative_change: Array) -> float:
    """Return the maximum step length, up to 1, that keeps ``1 + length · change`` positive."""
    worst = float(-relative_change.min())
    return min(1.0, STEP_TO_BOUNDARY / worst) if worst > 0 else 1.0


def _solver(
    program: DualFunction, state: NewtonState, point: Evaluation, products: Array
) -> Callable[[Array], tuple[Array, Array]]:
    """Return a solver of the Newton equations, bordered by the sums.

    The matrix is formed for the weights whose curvature is not negligible compared with the barrier; for the others it
    is diagonal. If conjugate gradients take fewer operations, they are used instead, with a diagonal preconditioner.
    """
    diagonal = point.curvature_diagonal()
    ratios = diagonal / products
    order = np.argsort(ratios)
    coupled = np.sort(order[np.cumsum(ratios[order]) > NEGLIGIBLE_CURVATURE])
    is_formed = _is_formed(program, len(coupled))
    factor = _factor(point, coupled, products[coupled]) if is_formed else None
    border, sum_errors = state.indicators * point.weights[:, None], 1 - state.indicators.T @ point.weights

    def inverse(right_side: Array) -> Array:
        solution = (right_side.T / (products + diagonal)).T
        if factor is not None:
            solution[coupled] = scipy.linalg.cho_solve(factor, right_side[coupled], check_finite=False)
        return np.asarray(solution)

    inverse_border = inverse(border)
    schur = border.T @ inverse_border

    def project(residual: Array) -> Array:
        unconstrained = inverse(residual)
        return np.asarray(unconstrained - inverse_border @ np.linalg.solve(schur, border.T @ unconstrained))

    def apply(change: Array) -> Array:
        return np.asarray(point.curvature_product(change) + products * change)

    def solve(right_side: Array) -> tuple[Array, Array]:
        unconstrained = inverse(right_side)
        shift = np.linalg.solve(schur, border.T @ unconstrained - sum_errors)
        change = unconstrained - inverse_border @ shift
        if factor is not None:
            return change, np.asarray(shift)
        tolerance = state.cg_error**2 * float(right_side @ project(right_side))
        correction, residual = conjugate_gradients(apply, project, right_side - apply(change), tolerance, MAX_CG_STEPS)
        return change + correction, np.asarray(np.linalg.solve(schur, border.T @ inverse(residual)))

    return solve


def conjugate_gradients(
    apply: Callable[[Array], Array],
    invert: Callable[[Array], Array],
    right_side: Array,
    tolerance: float,
    max_steps: int,
) -> tuple[Array, Array]:
    """Return an approximate solution, starting from 0, and its residual r.

    The method ends when ``r · invert(r)`` is at most the tolerance. The preconditioner `invert` may be a projection.
    """
    unknowns, residual = 0 * right_side, right_side
    direction = preconditioned = invert(residual)
    squared_norm = float(residual @ preconditioned)
    for _ in range(max_steps):
        if not squared_norm > tolerance:
            break
        applied = apply(direction)
        length = squared_norm / float(direction @ applied)
        unknowns, residual = unknowns + length * direction, residual - length * applied
        preconditioned, last_squared_norm = invert(residual), squared_norm
        squared_norm = float(residual @ preconditioned)
        direction = preconditioned + squared_norm / last_squared_norm * direction
    return unknowns, residual


def _factor(point: Evaluation, indices: npt.NDArray[np.intp], products: Array) -> tuple[Array, bool]:
    """Factor the Newton matrix of some weights; if rounding makes it indefinite, again in double precision."""

    def factored(exactly: bool) -> tuple[Array, bool]:
        matrix = point.curvature(indices, exactly)
        matrix[np.diag_indices_from(matrix)] += products
        return scipy.linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)

    try:
        return factored(exactly=False)
    except np.linalg.LinAlgError:
        return factored(exactly=True)
