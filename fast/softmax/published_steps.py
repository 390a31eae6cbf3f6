"""Algorithms 2 and 3 of the fitness-for-use paper: a truncated Newton direction, and how far to go along it.

Both are as printed but for what lets them end: conjugate gradients stop where a curvature is rounding alone, and the
line search stops looking after `MOST_TRIALS` trials, where the printed loop would run forever.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dualmech.fast.softmax.derivatives import ObjectivePoint
from dualmech.linalg import EPS
from dualmech.validate import Array

MOST_TRIALS = 50  # step lengths that a line search tries; with β = 1/2 the last one is 2⁻⁴⁹, next to rounding


def conjugate_gradient(
    product: Callable[[Array], Array], gradient: Array, most_steps: int, tolerance: float
) -> Array:
    """Return an approximate minimiser s of ``½ ⟨s, H s⟩ + ⟨s, ∇F⟩`` (Algorithm 2, for Equation 15).

    - `product`: takes a symmetric (k, k) matrix P to H P;
    - `gradient` (k, k): ``∇F``;
    - `most_steps`: MAXCG;
    - `tolerance`: TOL2: the squared length of the residual at which to stop.
    """
    step = np.zeros_like(gradient)
    residual = -gradient
    direction = residual
    length = _inner(residual, residual)
    for _ in range(most_steps):
        image = product(direction)
        curvature = _inner(direction, image)
        noise = EPS * np.sqrt(_inner(direction, direction) * _inner(image, image))
        if not abs(curvature) > noise:
            break
        step = step + (length / curvature) * direction
        residual = residual - (length / curvature) * image
        shorter = _inner(residual, residual)
        if not shorter > tolerance:
            break
        direction = residual + (shorter / length) * direction
        length = shorter
    return np.asarray((step + step.T) / 2)


def line_search(
    point: ObjectivePoint, step: Array, slope: float, decrease: float = 0.01, shrink: float = 0.5
) -> ObjectivePoint | None:
    """Return the first point ``Σ + β^j s`` that lowers F enough (Algorithm 3); None where none of them does.

    - `point`: Σ;
    - `step` (k, k): s, symmetric;
    - `slope`: ``⟨s, ∇F(Σ)⟩``;
    - `decrease`: σ: how much of the slope must be gained, Armijo's rule;
    - `shrink`: β.
    """
    length = 1.0
    for _ in range(MOST_TRIALS):
        trial = point.objective.at(point.covariance + length * step)
        if trial is not None and trial.value <= point.value + length * decrease * slope:
            return trial
        length *= shrink
    return None


def _inner(one: Array, two: Array) -> float:
    return float(np.vdot(one, two))
