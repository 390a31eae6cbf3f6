"""The judge's arithmetic for Gaussian noise: both sides of a covariance, and the bound that weights prove."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.geometry.base import Index, Judged, valid_weights
from dualmech.geometry.naming import Ranked, ranked
from dualmech.validate import Array


class HasTargets(Protocol):
    """What is evaluated: a workload over its basis and neighbours, with a target for every query."""

    @property
    def geometry(self) -> Any:
        """Workload, basis and neighbours."""

    @property
    def targets(self) -> Array:
        """Variance targets (m,)."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseForms:
    """Both quadratic forms of a covariance, with allowances for their rounding, absolute."""

    profile: Array  # profile, profile_rounding: (s,) cost ``(B u_i)' Σ⁻¹ (B u_i)`` of each pair of neighbours
    variances: Array  # variances, variance_rounding: (m,) variance ``v_j Σ v_j'`` of each query
    profile_rounding: Array
    variance_rounding: Array

    @property
    def cost(self) -> float:
        """Squared privacy cost, the largest entry of the profile."""
        return float(self.profile.max())

    @property
    def cost_rounding(self) -> float:
        """Allowance for the rounding of the cost, relative."""
        return float((self.profile + self.profile_rounding).max() / self.cost - 1)

    def excess(self, targets: Array) -> Judged:
        """Return the largest ratio of a variance to its target."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            ratios = self.variances / targets
            higher = np.maximum(ratios, 0.0) + self.variance_rounding / targets
            # Variances that cancellation left at 0 or below say nothing: the allowance is then all there is.
            return float(ratios.max()), float(higher.max() / ratios.max() - 1 if ratios.max() > 0 else np.inf)

    def total(self, weights: Array) -> Judged:
        """Return the weighted sum of the variances."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            total = float(weights @ self.variances)
            return total, float(weights @ self.variance_rounding / total)

    def binding(self, slack: float) -> Index:
        """Return the neighbours whose cost is within `slack` of the largest; none where that is infinite."""
        return np.flatnonzero((self.profile >= (1 - slack) * self.cost) & np.isfinite(self.cost))

    def loose(self, targets: Array, slack: float) -> Index:
        """Return the queries whose variance is below their target by more than `slack`, relative."""
        return np.flatnonzero(self.variances / targets < 1 - slack)

    def worst_items(self, targets: Array) -> Ranked:
        """Return the queries of the largest variances over their targets."""
        return ranked(self.variances / targets)

    def worst_neighbours(self) -> Ranked:
        """Return the neighbours of the largest costs."""
        return ranked(self.profile)


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Cost of each pair of neighbours, ratio of each variance to its target, and their rounding, relative."""

    profile: Array
    ratios: Array
    rounding: float = 0.0

    @property
    def cost(self) -> float:
        """Squared privacy cost, the largest entry of the profile."""
        return float(self.profile.max())

    @property
    def excess(self) -> float:
        """Largest ratio of a variance to its target."""
        return float(self.ratios.max())

    def binding(self, slack: float) -> Index:
        """Return the neighbours whose cost is within `slack` of the largest; none where that is infinite."""
        return np.flatnonzero((self.profile >= (1 - slack) * self.cost) & np.isfinite(self.cost))


def quadratic_forms(geometry: Any, covariance: Array) -> DenseForms | None:
    """Evaluate both forms at any matrix; None for one that is no covariance, or that some neighbour leaves."""
    judged = judged_covariance(covariance, geometry.moves, geometry.moves_rounding)
    if judged is None:
        return None
    regularised, profile, profile_rounding = judged
    with np.errstate(over="ignore", invalid="ignore"):
        variances, variance_rounding = geometry.variances(regularised)
    return DenseForms(profile, variances, profile_rounding, variance_rounding)


def judged_covariance(
    covariance: Array, moves: Array, rounding: Array | None = None
) -> tuple[Array, Array, Array] | None:
    """Return the covariance, ``diag(D' Σ⁻¹ D)`` and its rounding; None if indefinite, or left by a move."""
    if not np.all(np.isfinite(covariance)):
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        asymmetry = np.abs(covariance - covariance.T).max()
        if not asymmetry <= validate.SYMMETRY_TOLERANCE * np.abs(covariance).max():
            return None
        judged = linalg.inverse_forms((covariance + covariance.T) / 2, moves, rounding)
    return judged if judged is not None and np.all(np.isfinite(judged[1])) else None


def evaluate(problem: HasTargets, primal: npt.ArrayLike) -> Sides:
    """Evaluate both sides of Problem 1 at any matrix; one that is no covariance costs infinity."""
    geometry = problem.geometry
    forms = geometry.forms(geometry.point(primal))
    if forms is None:
        return Sides(np.full(geometry.moves.shape[1], np.inf), np.full(len(problem.targets), np.inf))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratios = forms.variances / problem.targets
        return Sides(forms.profile, ratios, forms.cost_rounding + forms.excess(problem.targets)[1])


def trace_norm_bound(geometry: Any, neighbour_weights: Array, factors: Array) -> Judged:
    """Return ``‖diag(factors) W U diag(√λ)‖_*² / Σ λ_i`` and its rounding, relative; 0 where λ proves nothing.

    It bounds ``max_i (B u_i)'Σ⁻¹(B u_i) · Σ_j factors_j² v_j Σ v_j'`` from below, whatever the covariance.
    """
    if not valid_weights(neighbour_weights):
        return 0.0, 0.0
    # Brought to a largest weight of 1 before anything else, so that no scale of theirs under- or overflows.
    shares = neighbour_weights / neighbour_weights.max()
    moves, queries = np.flatnonzero(shares), np.flatnonzero(factors)
    shares = shares[moves] / shares.sum()
    product, missed = geometry.differences(queries, moves, factors[queries], np.sqrt(shares))
    norm, rounding = linalg.trace_norm(product, missed)
    sums = (len(queries) + len(moves)) * linalg.EPS  # of the weights, to which the factors are scaled
    return norm**2, 2 * rounding / norm + sums if norm > 0 else 0.0


def divided_covariance(covariance: Array, divisor: float) -> Array:
    """Return ``Σ / divisor``, symmetric; by nothing else than a positive number: the judge refuses the rest."""
    if not (np.isfinite(divisor) and divisor > 0):
        return covariance
    with np.errstate(over="ignore", invalid="ignore"):
        return (covariance + covariance.T) / 2 / divisor
