"""Scaling of problems to numbers of order one, and the maps back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.errors import BackendError
from dualmech.problems.base import AnyProblem, dual_of
from dualmech.problems.fitness import PrivacyFirst
from dualmech.validate import Array

MIN_EIGENVALUE = 1e-13  # of a covariance in scaled units, relative to the largest


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A problem with all targets, or weights, equal to 1, in a basis that brings good covariances near the identity.

    Neighbours with no effect on queries, and queries that no neighbour affects, are dropped; the latter are released
    exactly.
    """

    problem: AnyProblem
    moves: Array  # (r, s') differences between the kept neighbours, in the coordinates of the new basis
    queries: Array  # (m', r) the kept queries over √targets, or times √weights
    lift: Array  # (k, r) maps a covariance to the problem's basis, ``lift Σ lift'``
    unit: float  # unit of the product of squared cost and variance
    kept_moves: npt.NDArray[np.intp]  # kept_moves, kept_queries: indices of the kept neighbours and queries
    kept_queries: npt.NDArray[np.intp]

    @classmethod
    def of(cls, problem: AnyProblem) -> Scaled:
        """Balance the problem by the singular values of ``diag(c)^(-1/2) W U = X S Y'``.

        With ``queries = X S^(1/2)`` and ``moves = S^(1/2) Y'`` the identity is the optimal covariance for the mean
        cost and the mean variance: at Σ = I the gradient of ``tr(S Σ⁻¹) + tr(S Σ)``, which is ``S − Σ⁻¹ S Σ⁻¹``,
        vanishes. The optimum for the maxima is usually close. In scaled units the identity has cost 1, and maximum
        variance 1 or, for fixed weights, total variance r.
        """
        geometry, targets = problem.geometry, problem.row_targets
        kept_queries = np.setdiff1d(np.arange(len(targets)), geometry.free_queries)
        kept_moves = np.flatnonzero(np.abs(geometry.moves).max(axis=0))
        root = np.sqrt(targets[kept_queries])[:, None]
        size = geometry.rank - len(geometry.unmoved)
        ones = np.ones(len(kept_moves))
        _, values, right = linalg.svd(geometry.differences(kept_queries, kept_moves, 1 / root[:, 0], ones)[0])
        values = np.maximum(values[:size], linalg.EPS * values[0])
        moves = geometry.moves[:, kept_moves]
        lift = (moves @ right[:size].T) / np.sqrt(values)
        # The factors are computed from the problem's arrays, because small singular vectors are inaccurate.
        inner_moves, inner_queries = _solve(lift, moves), geometry.representation[kept_queries] @ lift / root
        variances = np.einsum("jk,jk->j", inner_queries, inner_queries)
        variance = float(variances.sum() / size if problem.sums_variances else variances.max())
        unit = variance * float(np.einsum("ki,ki->i", inner_moves, inner_moves).max())
        return cls(
            problem,
            inner_moves * np.sqrt(variance / unit),
            inner_queries / np.sqrt(variance),
            lift / np.sqrt(variance),
            unit,
            kept_moves,
            kept_queries,
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.moves.shape[1], len(self.queries), len(self.moves)

    @property
    def objective_unit(self) -> float:
        """The unit of the objective; a budget is 1 in scaled units."""
        return self.unit / self.problem.cost if isinstance(self.problem, PrivacyFirst) else self.unit

    def covariance(self, inner: npt.ArrayLike | None, extra_cost: float = 0.0) -> Array:
        """Return a backend's Σ in the problem's basis, positive definite on sensitive directions, and feasible.

        `extra_cost` is a squared cost, in scaled units, that may be added to reduce noise in unconstrained directions.
        With ``P = moves moves'``, ``(Σ⁻¹ + extra_cost · P⁻¹)⁻¹ ⪯ Σ`` has at most that additional cost, since
        ``b_i' P⁻¹ b_i ≤ 1``. Large variances in unconstrained directions make small variances inaccurate. Raises
        `BackendError` if Σ is missing, not finite, or zero.
        """
        noise = make_definite(returned_array(inner))
        if extra_cost > 0:
            scaled_limit = self.moves @ self.moves.T / extra_cost
            noise = noise @ np.linalg.solve(noise + scaled_limit, scaled_limit)
        problem_noise = self.lift @ noise @ self.lift.T
        # Exact zeros in insensitive directions.
        geometry = self.problem.geometry
        exact, insensitive = geometry.unmoved, ~np.any(geometry.moves, axis=1)
        problem_noise -= problem_noise @ exact.T @ exact
        problem_noise -= exact.T @ (exact @ problem_noise)
        problem_noise[insensitive], problem_noise[:, insensitive] = 0.0, 0.0
        return self.problem.feasible((problem_noise + problem_noise.T) / 2)

    def dual(self, privacy: Array, accuracy: Array | None = None) -> Any:
        """Normalise multipliers to weights λ (s,) with ``Σ λ_i = 1``, and μ (m,) with ``Σ μ_j c_j = 1``.

        Raises `BackendError` if multipliers are missing or not finite, or if none is positive.
        """
        query_shares = np.zeros(len(self.problem.row_targets))
        if accuracy is not None:
            query_shares[self.kept_queries] = shares(accuracy)
        return dual_of(self.problem, self.neighbour_weights(privacy), query_shares)

    def neighbour_weights(self, privacy: Array) -> Array:
        """Normalise multipliers to weights λ (s,) with ``Σ λ_i = 1``; raises `BackendError` if none is positive."""
        weights = np.zeros(self.problem.geometry.moves.shape[1])
        weights[self.kept_moves] = shares(privacy)
        return weights


def returned_array(inner: npt.ArrayLike | None, meaning: str = "covariance") -> Array:
    """Return a backend's numbers; raises `BackendError` if they are missing or not finite."""
    array = np.asarray(np.nan if inner is None else inner, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise BackendError(f"the backend returned no {meaning} to judge")
    return array


def entries(inner: npt.ArrayLike | None, meaning: str) -> Array:
    """Return a backend's numbers as a vector, or the diagonal of a matrix (the identity is the starting point)."""
    array = returned_array(inner, meaning)
    return np.diagonal(array) if array.ndim == 2 else array


def shares(multipliers: Array) -> Array:
    """Clip multipliers at 0 and normalise them to sum 1."""
    clipped = np.maximum(multipliers, 0.0)
    total = float(clipped.sum())
    if not np.isfinite(total) or total <= 0:
        raise BackendError("the backend returned no multipliers to judge")
    return np.asarray(clipped / total)


def make_definite(inner: Array) -> Array:
    """Return the symmetric part, moved towards the identity unless it is positive definite.

    If a backend violates the cone by δ, Σ is accurate to about δ, so its smallest eigenvalue is raised to δ.
    """
    inner = (inner + inner.T) / 2
    values = np.linalg.eigvalsh(inner)
    if values[-1] <= 0:
        raise BackendError("the backend returned no covariance to judge: it has no positive eigenvalue")
    floor = max(-values[0], MIN_EIGENVALUE * values[-1])
    return inner if values[0] >= floor else inner + (floor - values[0]) * np.eye(len(inner))


def inverse(cost: Array | None) -> Array:
    """Return ``Σ = X⁻¹``, with X moved towards the identity if it is indefinite."""
    factor = linalg.cholesky(make_definite(returned_array(cost)))
    if factor is None:
        raise BackendError("the backend returned no covariance to judge")
    half = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), check_finite=False)
    return np.asarray(half @ half.T)


def _solve(lift: Array, moves: Array) -> Array:
    """Return the coordinates of differences in the columns of `lift`, independently of their units."""
    norms = np.linalg.norm(lift, axis=0)
    orthonormal, triangle = scipy.linalg.qr(lift / norms, mode="economic", check_finite=False)
    coordinates = scipy.linalg.solve_triangular(triangle, orthonormal.T @ moves, check_finite=False)
    return np.asarray(coordinates / norms[:, None])
