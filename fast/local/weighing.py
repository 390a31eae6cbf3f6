"""Weights on many patterns by a multiplicative rule: the exact ones of `dualmech.fast.local.master` take longer.

With costs y that maximise ``2 Σ_S a_S √(y'p_S) - 1'y``, ``a_S = w_S ‖Z'p_S‖ / √(n π'p_S)``, the next weights are
``a_S / √(y'p_S)``: the problem is jointly convex in weights and reconstruction, and each is minimised in turn. The
objective never rises, and columns sum to 1. Where y is constant this is the classical rule of A-optimal designs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg

from dualmech.fast.local.points import SMALLEST, Frame, PatternPoint, View
from dualmech.geometry.local import patterns
from dualmech.progress import NEVER, Deadline
from dualmech.validate import Array

SUMS = 1e-6  # how far the columns' sums may be from 1 when the costs are found
COST_STEPS, MOST_HALVINGS = 20, 30  # Newton steps for the costs, and halvings of one, at most
FIRST = 2  # steps after which the gain of one says something: the first makes columns sum to 1


def solve(
    frame: Frame, point: PatternPoint, tol: float, most: int, deadline: Deadline = NEVER
) -> tuple[PatternPoint, View, int]:
    """Step until a step gains less than `tol`, relative, or rounding ends it; return point, view and steps."""
    coordinates, rows = frame.coordinates(point.sets), patterns.rows(point.sets, frame.epsilon)
    mass, weights, costs = rows @ point.share, point.weights, point.costs
    before, count = np.inf, 0
    while count < most:
        try:
            objective, lengths = _evaluate(frame.root, coordinates, weights / mass)
            amounts = weights * np.sqrt(lengths / mass)
            costs = _best_costs(
                amounts, rows, np.full(len(costs), objective / len(costs)) if not count else costs
            )
        except np.linalg.LinAlgError:
            break
        weights, count = np.maximum(amounts / np.sqrt(rows @ costs), SMALLEST), count + 1
        if deadline.passed or (count > FIRST and before - objective <= tol * before):
            break
        before = objective
    point = replace(point, weights=weights, slacks=np.full(len(weights), SMALLEST), costs=costs)
    return point, View.of(frame, point), count


def _evaluate(root: Array, coordinates: Array, densities: Array) -> tuple[float, Array]:
    """Return ``tr(R G⁻¹ R')`` and the ``‖Z'p_S‖²`` of all patterns."""
    scaled = coordinates * np.sqrt(densities)[:, None]
    matrix = scipy.linalg.cho_solve(
        scipy.linalg.cho_factor(scaled.T @ scaled, check_finite=False), root.T, check_finite=False
    )
    pulled = coordinates @ matrix
    return float(np.vdot(matrix, root.T)), np.einsum("sk,sk->s", pulled, pulled)


def _best_costs(amounts: Array, rows: Array, costs: Array) -> Array:
    """Return the costs that are the best for some amounts, by Newton's method from others."""

    def value(given: Array) -> float:
        prices = rows @ given
        return float(2 * amounts @ np.sqrt(prices) - given.sum()) if np.all(prices > 0) else -np.inf

    reached = value(costs)
    for _ in range(COST_STEPS):
        roots = np.sqrt(rows @ costs)
        slopes = (amounts / roots) @ rows - 1
        if np.abs(slopes).max() <= SUMS:
            break
        scaled = rows * np.sqrt(amounts / (2 * roots**3))[:, None]
        curvature = scaled.T @ scaled
        change = np.linalg.solve(curvature, slopes)
        for _ in range(MOST_HALVINGS):
            found = value(costs + change)
            if found >= reached:
                costs, reached = costs + change, found
                break
            change = change / 2
        else:
            break
    return costs
