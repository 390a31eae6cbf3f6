"""Noise on one attribute, split into that of the total and that of what is left; and the like of its dual weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualmech import linalg
from dualmech.linalg import EPS
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class SplitNoise:
    """A covariance ``Σ = t θθ' + K`` with ``1'θ = 1`` and ``K 1 = 0``: t is the variance of the total.

    All numbers are rounded up, so that what they promise is kept.
    """

    means: Array  # (n,) θ, what each value has of the total
    root: Array  # (n, n) F with ``F F' = K``
    residual_costs: Array  # (n,) diagonal of ``Σ⁻¹ - 11'/t``: what a record costs on top of the total
    # residual_variances, total_parts: (m,) ``a_j K a_j'`` and ``(a_j θ)²`` of each query
    residual_variances: Array
    total_parts: Array

    @classmethod
    def of(cls, covariance: Array, queries: Array) -> SplitNoise | None:
        """Split a covariance (n, n) and see queries (m, n) with it; None where it is not positive definite."""
        if not np.all(np.isfinite(covariance)) or not np.allclose(
            covariance, covariance.T, rtol=1e-9, atol=0
        ):
            return None
        symmetric = (covariance + covariance.T) / 2
        factor, judged = linalg.cholesky(symmetric), linalg.inverse_forms(symmetric, np.eye(len(covariance)))
        if factor is None or judged is None:
            return None
        _, costs, allowance = judged
        size = len(costs)
        slack = 8 * size * EPS
        ones = factor.sum(axis=1)
        total = float(ones @ ones)
        # A backward error of the factor moves a'Σb by at most slack · ‖|F||a|‖ ‖|F||b|‖, cancellation or not.
        whole = float(np.linalg.norm(np.abs(factor).sum(axis=1)))
        residual = costs + allowance - 1 / (total + slack * whole**2) if size > 1 else np.zeros(size)
        lengths, along = (
            np.linalg.norm(np.abs(factor) @ np.abs(queries.T), axis=0),
            ones @ factor @ queries.T / total,
        )
        root = factor.T - np.outer(factor.T @ ones, ones) / total
        left = np.linalg.norm(queries @ root, axis=1)
        spread = (left + slack * lengths) ** 2 + slack * lengths**2 if size > 1 else np.zeros(len(queries))
        parts = (np.abs(along) + slack * lengths * whole / total) ** 2 * (1 + 2 * slack * whole**2 / total)
        return cls(factor.T @ ones / total, root, residual, spread, parts)

    @property
    def residual_cost(self) -> float:
        """The largest of them."""
        return float(self.residual_costs.max())

    @property
    def worst(self) -> Array:
        """The pairs of residual variance and part of the total (p, 2) that no other query exceeds in both."""
        order = np.lexsort((-self.total_parts, -self.residual_variances))
        pairs = np.column_stack([self.residual_variances, self.total_parts])[order]
        before = np.maximum.accumulate(np.r_[-1.0, pairs[:-1, 1]])
        return pairs[pairs[:, 1] > before]


@dataclass(frozen=True, slots=True, eq=False)
class SplitBound:
    """The trace norm of ``X = diag(√μ) A diag(√λ)``, split along ``h = √λ``; both numbers are rounded down.

    With ``|X| = (X'X)^½``, `along` is ``h'|X|h`` and `across` is the rest of the trace of |X|.
    """

    across: float
    along: float

    @classmethod
    def of(cls, queries: Array, query_weights: Array, neighbour_weights: Array) -> SplitBound:
        """Split for weights that are none negative and not all zero; they are brought to sum 1."""
        users = np.sqrt(neighbour_weights / neighbour_weights.sum())
        weighted = np.sqrt(query_weights / query_weights.sum())[:, None] * queries * users
        total, allowance = linalg.trace_norm(weighted)
        _, sizes, right = linalg.svd(weighted)
        along = float(sizes @ (right @ users) ** 2)
        return cls(max(total - along - 3 * allowance, 0.0), max(along - 2 * allowance, 0.0))
