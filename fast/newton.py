"""A primal-dual interior-point method for the dual of fitness for use, one decomposition a step.

Maximise ``2F(λ, μ)`` over ``Σ λ_i = Σ μ_j = 1``, all weights w ≥ 0. With a multiplier a for each sum, the
optimality conditions are ``gradient + z = a`` and ``w z = 0`` for slacks z ≥ 0. A step aims at ``w z = τ`` and
at the smoothed dual function G with the same τ (`dualmech.fast.fidelity`), whose primal point stays well
defined where the optimal weights leave a singular matrix. On the central path the gap is about
``(s + m + k) τ / F``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dualmech.fast.fidelity import Program, Spectrum, curvature, curvature_diagonal, decompose
from dualmech.validate import Array

TO_THE_BOUNDARY = 0.995
"""Largest part of the way to a zero weight or slack that one step may go."""

ENOUGH = 0.2
"""Where on the central path to stop, as a share of the gap that is asked."""

LAG = 1e-3
"""Least centring, as a share of how far slacks and gradient disagree."""

SMALLEST = 1e-22
"""Weights and slacks never fall below this: a zero could not grow again."""

SMOOTH_GAIN = 0.1
"""The smoothed primal point is preferred where it is better by this share of the gap that is asked."""

NEGLIGIBLE = 1e-3
"""A weight whose curvature is below this share (over the number of weights) of its barrier is left out."""


@dataclass(frozen=True, slots=True, eq=False)
class NewtonState:
    """Spectrum at the current weights, the slacks z, and the two multipliers."""

    spectrum: Spectrum
    slacks: Array
    multipliers: Array


def start(spectrum: Spectrum) -> NewtonState:
    """Begin at the weights of a spectrum, with slacks that are neither too small nor negative."""
    fidelity = spectrum.fidelity
    natural = fidelity - spectrum.gains
    centre = float(np.mean(spectrum.weights * np.abs(natural)))
    slacks = np.maximum(natural, np.minimum(0.3 * fidelity, centre / spectrum.weights))
    return NewtonState(spectrum, slacks, np.full(2, fidelity))


def step(program: Program, state: NewtonState, tol: float) -> NewtonState:
    """Take one predictor-corrector step (Mehrotra's rule for the centring) towards a gap of `tol`.

    The path is followed no further than the gap asks, and never faster than the slacks catch up with the
    gradient: weights that vanish too early would leave the covariance no room to become feasible.
    """
    slacks, weights, side = state.slacks, state.spectrum.weights, _sides(state.spectrum)
    products = weights * slacks
    mean = float(products.mean())
    here = state.spectrum.smoothed(mean)
    solve = _factor(here, products)
    missing = 1 - side.T @ weights

    def residual(spectrum: Spectrum) -> Array:
        return weights * (spectrum.gradient() - side @ state.multipliers)

    uphill = residual(here)
    predictor, _ = solve(uphill, missing)
    predictor_slack = -products * (1 + predictor)
    reach, slack_reach = _reach(predictor), _reach(predictor_slack / products)
    predicted = (1 + reach * predictor) * (products + slack_reach * predictor_slack)
    lag = float(np.abs(uphill + products).mean())
    least = ENOUGH * tol * here.fidelity / (len(weights) + len(here.values))
    target = max(mean * min(1.0, float(predicted.mean()) / mean) ** 3, LAG * lag, least)

    correction = predictor * predictor_slack
    change, shift = solve(residual(state.spectrum.smoothed(target)) + target - correction, missing)
    slack_change = (target - products - products * change - correction) / products
    reach, slack_reach = _reach(change), _reach(slack_change)
    moved = np.maximum(weights * (1 + reach * change), SMALLEST)
    slacks = np.maximum(slacks * (1 + slack_reach * slack_change), SMALLEST)
    spectrum = decompose(program, moved)
    smooth = spectrum.smoothed(target)
    # Both make a primal point of these weights. The smooth one is better near a singular optimum, the plain
    # one is better conditioned.
    best = smooth if smooth.objective < (1 - SMOOTH_GAIN * tol) * spectrum.objective else spectrum
    return NewtonState(best, slacks, state.multipliers + slack_reach * shift)


def _sides(spectrum: Spectrum) -> Array:
    """Return the (s + m, 2) indicator of neighbours and queries."""
    first = np.arange(len(spectrum.weights)) < spectrum.neighbours
    return np.stack([first, ~first], axis=1).astype(np.float64)


def _reach(relative_change: Array) -> float:
    """Return the longest step at most 1 that keeps ``1 + step · change`` positive."""
    worst = float(-relative_change.min())
    return min(1.0, TO_THE_BOUNDARY / worst) if worst > 0 else 1.0


def _factor(spectrum: Spectrum, products: Array) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Factor the Newton matrix, bordered by the two sums; what the barrier alone decides is divided out."""
    diagonal = curvature_diagonal(spectrum)
    coupled = np.flatnonzero(diagonal > NEGLIGIBLE / len(diagonal) * products)
    matrix = curvature(spectrum, coupled)
    matrix[np.diag_indices_from(matrix)] += products[coupled]
    factor = scipy.linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)

    def inverse(right_side: Array) -> Array:
        solution = (right_side.T / (products + diagonal)).T
        solution[coupled] = scipy.linalg.cho_solve(factor, right_side[coupled], check_finite=False)
        return solution

    border = _sides(spectrum) * spectrum.weights[:, None]
    bordered = inverse(border)
    corner = border.T @ bordered

    def solve(right_side: Array, missing: Array) -> tuple[Array, Array]:
        free = inverse(right_side)
        shift = np.linalg.solve(corner, border.T @ free - missing)
        return free - bordered @ shift, np.asarray(shift)

    return solve
