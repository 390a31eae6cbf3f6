"""The judge's arithmetic for upper bounds of several covariances in the Loewner order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dualmech import linalg
from dualmech.linalg import EPS
from dualmech.validate import Array

IMPROVABLE = 1e-3
"""Improvement, in units of the mean variance, up to which a common mechanism counts as maximal."""

SHIFTS = np.geomspace(1e-14, 1.0, 57)
"""Shifts τ, in units of the mean variance, among which the best bound on an improvement is looked for."""

MOST_RAISES = 10
"""Times that a covariance is raised: each time by twice as much, since rounding may undo a little of it."""


@dataclass(frozen=True, slots=True)
class Maximality:
    """Whether a common mechanism is maximal; true or false in a condition.

    Attributes
    ----------
    improvement : float
        Proven: no mechanism that is common to all, and from which this one is answerable, lowers the variance of
        any query f B, f of norm 1, by more than this many times the mean variance ``tr Σ / r``. Infinite where some
        query in all row spaces is not answered at all.
    maximal : bool
        Whether that is within the tolerance asked for.
    """

    improvement: float
    maximal: bool

    def __bool__(self) -> bool:
        return self.maximal


def dual_bound(bounds: Array, weights: Array, roundings: Array) -> tuple[float, float]:
    """Return ``Σ_i tr(P_i Y_i)`` of the repaired weights, and its rounding, relative.

    `roundings` (p,) are those of the P_i themselves, relative to their norms.

    Proof that it bounds the optimum: ``tr Σ = Σ_i tr(Σ Y_i) ≥ Σ_i tr(P_i Y_i)`` where ``Σ_i Y_i = I`` and
    ``Y_i ⪰ 0``, ``Σ ⪰ P_i``; where ``Σ_i Y_i ⪯ ν I``, ``ν tr Σ`` is at least as much, since Σ ⪰ 0.
    """
    size = weights.shape[1]
    if not np.all(np.isfinite(weights)) or not np.any(weights):
        return 0.0, 0.0
    weights = weights / np.abs(weights).max()
    shifts = [
        max(-float(np.linalg.eigvalsh(each)[0]), 0.0) + 4 * size * EPS * float(np.linalg.norm(each))
        for each in weights
    ]
    total = weights.sum(axis=0)
    largest = (
        float(np.linalg.eigvalsh(total)[-1]) + sum(shifts) + 4 * size * EPS * float(np.linalg.norm(total))
    )
    value = float(np.einsum("ikl,ilk->", bounds, weights))
    value += sum(shift * float(np.trace(bound)) for shift, bound in zip(shifts, bounds, strict=True))
    sizes = np.linalg.norm(bounds, axis=(1, 2)) * np.linalg.norm(weights, axis=(1, 2))
    rounding = float((size * EPS + roundings) @ sizes) / value if value > 0 else 0.0
    return value / largest, rounding


def violation(bounds: Array, covariance: Array, roundings: Array) -> tuple[float, float]:
    """Return the least v ≥ 0 with ``P_i ⪯ (1 + v) Σ`` for all i, and its rounding; infinite where Σ is not definite.

    It is first looked for in the differences ``Σ - P_i``, brought to comparable units: where their least
    eigenvalues clear rounding, v is exactly 0, however ill-conditioned Σ may be.
    """
    if not np.all(np.diagonal(covariance) > 0):
        return np.inf, 0.0
    if all(excess <= 0 for excess in _excesses(bounds, covariance, roundings)):
        return 0.0, 0.0
    factor = linalg.cholesky(covariance)
    if factor is None:
        return np.inf, 0.0
    inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), check_finite=False)
    largest = max(float(np.linalg.eigvalsh(inverse.T @ bound @ inverse)[-1]) for bound in bounds)
    # The same backward error of the Cholesky factor as in `linalg.inverse_forms`, for all directions at once.
    magnitudes = float(np.linalg.norm(np.abs(factor) @ np.abs(inverse), 2))
    return max(largest - 1, 0.0), 3 * len(factor) * EPS * magnitudes**2


def raise_above_bounds(bounds: Array, covariance: Array, roundings: Array) -> Array:
    """Return the covariance plus as little, in the units of each coordinate, as puts it above every P_i for certain."""
    units = _units(bounds)
    share = 1.0
    for _ in range(MOST_RAISES):
        worst = max(_excesses(bounds, covariance, roundings))
        if worst <= 0:
            return covariance
        covariance = covariance + share * max(worst, EPS) * np.diag(units**2)  # less would change nothing
        share *= 2
    return covariance


def improvement(bounds: Array, covariance: Array) -> float:
    """Bound what a better common mechanism could gain, in units of the mean variance.

    It would have the covariance Σ - D with ``0 ⪯ D ⪯ S_i = Σ - P_i``. For any τ > 0, ``(S_i + τI)⁻¹ ⪯ (D + τI)⁻¹``;
    the sum over all p mechanisms gives ``D ⪯ p (Σ_i (S_i + τI)⁻¹)⁻¹ - τI``, whose largest eigenvalue is returned,
    the least over several τ. With exact kernels of the S_i that span the space it tends to 0 with τ, which is the
    criterion of Stott (2017); and it needs no decision on ranks.
    """
    size, count = len(covariance), len(bounds)
    mean = float(np.trace(covariance)) / size
    spectra = []
    for bound in bounds:
        values, vectors = np.linalg.eigh((covariance - bound) / mean)
        allowance = 4 * size * EPS * float(np.linalg.norm(covariance) + np.linalg.norm(bound)) / mean
        spectra.append((np.maximum(values, 0.0) + allowance, vectors))
    best = np.inf
    for shift in SHIFTS:
        total = sum((vectors / (values + shift)) @ vectors.T for values, vectors in spectra)
        least = float(np.linalg.eigvalsh(total)[0]) - 4 * size * EPS * float(np.linalg.norm(total))
        if least > 0:
            best = min(best, float(count / least - shift))
    return max(best, 0.0)


def _units(bounds: Array) -> Array:
    """Return the standard deviation of each coordinate under the noisiest of the mechanisms."""
    return np.asarray(np.sqrt(np.diagonal(bounds, axis1=1, axis2=2).max(axis=0)))


def _excesses(bounds: Array, covariance: Array, roundings: Array) -> Iterator[float]:
    """Yield upper bounds on the largest eigenvalue of each ``P_i - Σ``, each coordinate in its own unit."""
    units = _units(bounds)
    scale = units * units[:, None]
    noise = covariance / scale
    unit = 4 * len(noise) * EPS
    for bound, rounding in zip(bounds / scale, roundings, strict=True):
        largest = float(np.linalg.eigvalsh(bound - noise)[-1])
        yield largest + float((unit + rounding) * np.linalg.norm(bound) + unit * np.linalg.norm(noise))
