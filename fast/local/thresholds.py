"""Sets of user types drawn such that pairs occur together about as often as in the best strategy: for many user types.

Where every set has k members and no user type is preferred, G is a matter of how often pairs of types occur together:
off the ones it is a multiple of the covariance of the indicators. The covariance that serves a workload best, were all
allowed, is ``D^(-1/2) (D^(1/2) Π W'W Π D^(1/2))^(1/2) D^(-1/2)``, with D such that its diagonal is constant. The
indicators of the k largest entries of a Gaussian vector have nearly any covariance, if the vector's own is chosen for
it: that of thresholded Gaussian variables is known (Sheppard). What sampling leaves is for weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.special

from dualmech.geometry.local import patterns
from dualmech.geometry.local.patterns import Sets
from dualmech.validate import Array

FLOOR = 1e-6  # what is added to W'W off the ones, relative to its mean, so that all user types occur
SWEEPS, EVEN = 15, 0.01  # steps towards a constant diagonal, at most, and the deviation that counts as none
ANGLES = 4001  # correlations ``sin θ`` at which the covariance of thresholded variables is tabulated


@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """A Gaussian vector, by a factor (n, n) of its covariance, and how many of its largest entries are in a set."""

    factor: Array
    members: int

    @classmethod
    def of(cls, root: Array, epsilon: float) -> Thresholds:
        """Return those for a root R (k, n), with the size of sets that subset selection has."""
        size, excess = root.shape[1], patterns.gain(epsilon)
        counts = np.arange(1, size)
        members = int(counts[np.argmax(counts * (size - counts) / (size + excess * counts) ** 2)])
        latent = gaussian_correlations(best_correlations(root), members / size)
        values, vectors = np.linalg.eigh(latent)
        return cls(vectors * np.sqrt(np.maximum(values, 0.0)), members)

    def draw(self, count: int, rng: np.random.Generator) -> Sets:
        """Draw sets (count, n), in pairs of opposite vectors."""
        size = len(self.factor)
        half = rng.standard_normal(((count + 1) // 2, size)) @ self.factor.T
        vectors = np.vstack([half, -half])[:count]
        sets = np.zeros((count, size), dtype=bool)
        np.put_along_axis(
            sets, np.argpartition(-vectors, self.members - 1, axis=1)[:, : self.members], True, axis=1
        )
        return sets


def best_correlations(root: Array) -> Array:
    """Return the correlations C (n, n) of least ``tr(R C⁻¹ R')`` off the ones, nearly, by scaling of the diagonal."""
    size = root.shape[1]
    centred = root - root.mean(axis=1, keepdims=True)
    gram = centred.T @ centred
    mean = float(np.trace(gram)) / size
    gram = (
        gram / mean if mean > FLOOR * np.vdot(root, root) / size else np.zeros_like(gram)
    ) + FLOOR * np.eye(size)
    scale = np.ones(size)
    for _ in range(SWEEPS):
        values, vectors = np.linalg.eigh(scale[:, None] * gram * scale)
        found = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T / scale[:, None] / scale
        diagonal = np.diagonal(found) / np.diagonal(found).mean()
        if np.abs(diagonal - 1).max() < EVEN:
            break
        scale = scale * np.sqrt(diagonal)
    deviations = np.sqrt(np.diagonal(found))
    return np.asarray(found / deviations[:, None] / deviations)


def gaussian_correlations(wanted: Array, share: float) -> Array:
    """Return correlations of Gaussian variables whose indicators of the largest `share` have those wanted, or nearly.

    Their covariance is ``∫ exp(-t² / (1 + sin θ)) dθ / 2π`` up to the angle of the correlation, t the threshold.
    """
    threshold = float(scipy.special.ndtri(1 - share))
    angles = np.linspace(-np.pi / 2, np.pi / 2, ANGLES)[1:-1]
    density = np.exp(-(threshold**2) / (1 + np.sin(angles))) / (2 * np.pi)
    steps = (density[1:] + density[:-1]) / 2 * np.diff(angles)
    reached = np.concatenate([[0.0], np.cumsum(steps)])
    reached = (reached - np.interp(0.0, angles, reached)) / (share * (1 - share))
    latent = np.sin(np.interp(wanted, reached, angles))
    np.fill_diagonal(latent, 1.0)
    return np.asarray(latent)
