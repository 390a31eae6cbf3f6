"""Value, gradient and Hessian of the smoothed objective, the last only as a product with a direction.

With ``g_i(Σ) = b_i' Σ⁻¹ b_i``, ``h_j(Σ) = v_j Σ v_j'`` (targets divided out), shares ``p ∝ exp(t₁ g)`` and
``q ∝ exp(t₂ h)``, and ``a_i = Σ⁻¹ b_i``, the objective

    ``F = (1/t₁) log Σ_i exp(t₁ g_i) + (1/t₂) log Σ_j exp(t₂ h_j) + Σ_j w_j h_j``

has the gradient ``Q + Σ_j w_j v_j'v_j - G`` with ``G = Σ_i p_i a_i a_i'`` and ``Q = Σ_j q_j v_j'v_j``. Its Hessian
takes a symmetric direction P to

    ``Σ⁻¹ P G + G P Σ⁻¹ + t₁ Σ_i p_i (x_i - x̄) a_i a_i' + t₂ Σ_j q_j (y_j - ȳ) v_j'v_j``

with ``x_i = a_i' P a_i``, ``y_j = v_j P v_j'``, and means x̄, ȳ under p, q: the second derivative of a soft max is
t times a variance. The linear term of the hybrid adds nothing.

Equation 14 of the paper prints something else, in two places: a factor t₁ before ``Σ⁻¹ P G + G P Σ⁻¹``, and the
Kronecker products ``G ⊗ G`` and ``Q ⊗ Q``, which take P to ``G P G`` and ``Q P Q``, where the derivative has the
products of vectors that take it to ``G ⟨G, P⟩ = x̄ G`` and ``Q ⟨Q, P⟩ = ȳ Q``. (For the single gradients
``- a_i a_i'`` and ``v_j'v_j``, being of rank one, both are the same.)

A product costs ``O(k² (k + s + m))`` operations and no more memory than its factors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg

from dualmech import linalg
from dualmech.fast.reductions.dense import Reduction
from dualmech.linalg import cholesky, to_dense
from dualmech.problems.softmax import soft_max
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """F over bare arrays."""

    moves: Array  # (k, s) the b_i in its columns
    queries: Array  # (m, k) the v_j over √targets in its rows
    t1: float  # t1, t2: sharpness of the two soft maxima
    t2: float
    extra: Array  # (m,) the w_j: total weight times targets

    @classmethod
    def from_reduction(cls, reduction: Reduction, t1: float, t2: float, extra: Array) -> Objective:
        """Return F on the reduced basis, over all neighbours and queries: an exponent that is 0 counts too."""
        program, (neighbours, queries) = reduction.program, reduction.shape
        rank = program.queries.shape[1]
        columns, rows = np.zeros((rank, neighbours)), np.zeros((queries, rank))
        columns[:, reduction.neighbours] = np.eye(rank) if program.moves is None else to_dense(program.moves)
        rows[reduction.queries] = program.queries
        return cls(columns, rows, t1, t2, extra)

    def at(self, covariance: Array) -> ObjectivePoint | None:
        """Evaluate F; None where the matrix is not positive definite, or F is not finite."""
        factor = cholesky(covariance)
        if factor is None:
            return None
        half = scipy.linalg.solve_triangular(factor, self.moves, trans="T", check_finite=False)
        profile = np.einsum("ki,ki->i", half, half)
        ratios = np.einsum("jk,jk->j", self.queries @ covariance, self.queries)
        first, neighbour_shares = soft_max(profile, self.t1)
        last, query_shares = soft_max(ratios, self.t2)
        value = first + last + float(self.extra @ ratios)
        if not np.isfinite(value):
            return None
        return ObjectivePoint(
            self, covariance, factor, half, profile, ratios, neighbour_shares, query_shares, value
        )

    def sharpened(self, growth: float) -> Objective:
        """Return the objective with both t multiplied by a factor."""
        return replace(self, t1=growth * self.t1, t2=growth * self.t2)

    def trace_norm(self, neighbour_shares: Array, query_shares: Array) -> float:
        """Return ``‖diag(√(q + w)) V B diag(√p)‖_*``, what the shares prove (the judge recomputes it)."""
        halves = (
            np.sqrt(query_shares + self.extra)[:, None] * self.queries,
            (self.moves * np.sqrt(neighbour_shares)).T,
        )
        left, right = (scipy.linalg.qr(half, mode="r", check_finite=False)[0] for half in halves)
        size = len(self.moves)
        return float(linalg.singular_values(left[:size] @ right[:size].T).sum())


@dataclass(frozen=True, slots=True, eq=False)
class ObjectivePoint:
    """F at one covariance, with what its derivatives need."""

    objective: Objective
    covariance: Array
    factor: Array  # (k, k) upper triangular R with ``R'R = Σ``
    half: Array  # (k, s) ``R'⁻¹ b_i`` in its columns
    profile: Array  # profile, ratios: (s,) and (m,) the g_i and the h_j
    ratios: Array
    neighbour_shares: Array  # neighbour_shares, query_shares: (s,) and (m,) p and q
    query_shares: Array
    value: float  # F

    def derivatives(self) -> Derivatives:
        """Return the gradient, and what Hessian products are made of."""
        objective = self.objective
        solved = scipy.linalg.solve_triangular(self.factor, self.half, check_finite=False)
        privacy = (solved * self.neighbour_shares) @ solved.T
        accuracy = (objective.queries.T * self.query_shares) @ objective.queries
        rest = (objective.queries.T * objective.extra) @ objective.queries
        gradient = accuracy + rest - privacy
        return Derivatives(self, solved, privacy, accuracy, (gradient + gradient.T) / 2)


@dataclass(frozen=True, slots=True, eq=False)
class Derivatives:
    """First and second derivatives of F at a point; the second act on symmetric directions (k, k)."""

    point: ObjectivePoint
    solved: Array  # (k, s) the a_i in its columns
    privacy: Array  # privacy, accuracy: (k, k) G and Q
    accuracy: Array
    gradient: Array  # (k, k) ``∇F``

    def exact_product(self, direction: Array) -> Array:
        """Return the Hessian of F times a direction."""
        x, y = self._changes(direction)
        p, q = self.point.neighbour_shares, self.point.query_shares
        objective = self.point.objective
        return (
            self._curvature_product(direction)
            + objective.t1 * self._from_neighbours(p * (x - p @ x))
            + objective.t2 * self._from_queries(q * (y - q @ y))
        )

    def printed_product(self, direction: Array) -> Array:
        """Return the matrix that Equation 14 prints, times a direction."""
        x, y = self._changes(direction)
        p, q = self.point.neighbour_shares, self.point.query_shares
        objective = self.point.objective
        first = (
            self._curvature_product(direction)
            + self._from_neighbours(p * x)
            - self.privacy @ direction @ self.privacy
        )
        last = self._from_queries(q * y) - self.accuracy @ direction @ self.accuracy
        return objective.t1 * first + objective.t2 * last

    def _curvature_product(self, direction: Array) -> Array:
        """Return ``Σ⁻¹ P G + G P Σ⁻¹ = Σ_i p_i ∇²g_i P``."""
        half = scipy.linalg.cho_solve(
            (self.point.factor, False), direction @ self.privacy, check_finite=False
        )
        return np.asarray(half + half.T)

    def _changes(self, direction: Array) -> tuple[Array, Array]:
        """Return ``a_i' P a_i`` and ``v_j P v_j'``."""
        queries = self.point.objective.queries
        return (
            np.einsum("ki,ki->i", direction @ self.solved, self.solved),
            np.einsum("jk,jk->j", queries @ direction, queries),
        )

    def _from_neighbours(self, weights: Array) -> Array:
        return (self.solved * weights) @ self.solved.T

    def _from_queries(self, weights: Array) -> Array:
        queries = self.point.objective.queries
        return (queries.T * weights) @ queries
