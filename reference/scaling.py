"""Units in which a backend finds numbers of order one, and the way back to the problem's own."""

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

SMALLEST = 1e-13  # least eigenvalue of a covariance in scaled units, relative to the largest


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """The same problem with all targets, or weights, 1, on a basis in which no covariance is far from the identity.

    Rows that constrain nothing are left out: neighbours that move no query, and queries that no neighbour moves,
    which are released exactly.
    """

    problem: AnyProblem
    moves: Array  # (r, s') moves of the kept neighbours, in the coordinates of the new basis
    queries: Array  # (m', r) the kept queries over √targets, or times √weights
    lift: Array  # (k, r) takes a covariance back to the problem's basis, ``lift Σ lift'``
    unit: float  # the product of squared cost and variance that is 1 in scaled units
    kept_moves: npt.NDArray[np.intp]  # kept_moves, kept_queries: which neighbours and queries were kept
    kept_queries: npt.NDArray[np.intp]

    @classmethod
    def of(cls, problem: AnyProblem) -> Scaled:
        """Balance the problem by the singular values of ``diag(c)^(-1/2) W U = X S Y'``.

        With ``queries = X S^(1/2)`` and ``moves = S^(1/2) Y'`` the identity is the best covariance for the
        mean of all costs and the mean of all variances: Σ = I is where ``S − Σ⁻¹ S Σ⁻¹``, the gradient of
        ``tr(S Σ⁻¹) + tr(S Σ)``, vanishes. The maxima do not move the optimum far from there.
        In scaled units the identity costs 1, and has the largest variance 1, or for given weights the total variance r.
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
        # The factors are taken from the problem's own arrays: small singular vectors are not accurate enough.
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
        """The problem's objective that is 1 in scaled units, where a budget to spend is 1 as well."""
        return self.unit / self.problem.cost if isinstance(self.problem, PrivacyFirst) else self.unit

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> Array:
        """Return a backend's Σ on the problem's basis, positive definite where the problem is, and feasible.

        `spare` is a squared cost, in scaled units, that may be added to take back noise that no binding constraint
        needs. With ``P = moves moves'``, ``(Σ⁻¹ + spare · P⁻¹)⁻¹ ⪯ Σ`` costs at most `spare` more, since ``b_i' P⁻¹ b_i
        ≤ 1``. A backend leaves large variances where nothing requires less; next to them rounding loses the small ones.
        Raises `BackendError` where there is no Σ, or it is not finite, or it is zero.
        """
        noise = make_definite(returned_array(inner))
        if spare > 0:
            share = self.moves @ self.moves.T / spare
            noise = noise @ np.linalg.solve(noise + share, share)
        lifted = self.lift @ noise @ self.lift.T
        # Exactly 0 noise where no neighbour moves anything: lifting leaves rounding there.
        geometry = self.problem.geometry
        exact, still = geometry.unmoved, ~np.any(geometry.moves, axis=1)
        lifted -= lifted @ exact.T @ exact
        lifted -= exact.T @ (exact @ lifted)
        lifted[still], lifted[:, still] = 0.0, 0.0
        return self.problem.feasible((lifted + lifted.T) / 2)

    def dual(self, privacy: Array, accuracy: Array | None = None) -> Any:
        """Return multipliers as weights λ (s,) with ``Σ λ_i = 1``, and μ (m,) with ``Σ μ_j c_j = 1`` for targets.

        Raises `BackendError` where multipliers are missing, not finite, or none is positive.
        """
        query_shares = np.zeros(len(self.problem.row_targets))
        if accuracy is not None:
            query_shares[self.kept_queries] = shares(accuracy)
        return dual_of(self.problem, self.neighbour_weights(privacy), query_shares)

    def neighbour_weights(self, privacy: Array) -> Array:
        """Return multipliers as weights λ (s,) with ``Σ λ_i = 1``; `BackendError` where they are none."""
        weights = np.zeros(self.problem.geometry.moves.shape[1])
        weights[self.kept_moves] = shares(privacy)
        return weights


def returned_array(inner: npt.ArrayLike | None, what: str = "covariance") -> Array:
    """Return a backend's numbers; `BackendError` where it left none, or some that are not finite."""
    array = np.asarray(np.nan if inner is None else inner, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise BackendError(f"the backend returned no {what} to judge")
    return array


def entries(inner: npt.ArrayLike | None, what: str) -> Array:
    """Return the same as a vector; a matrix, such as the identity for where a backend began, is its diagonal."""
    array = returned_array(inner, what)
    return np.diagonal(array) if array.ndim == 2 else array


def shares(multipliers: Array) -> Array:
    """Return multipliers, clipped at 0, that sum to 1."""
    clipped = np.maximum(multipliers, 0.0)
    total = float(clipped.sum())
    if not np.isfinite(total) or total <= 0:
        raise BackendError("the backend returned no multipliers to judge")
    return np.asarray(clipped / total)


def make_definite(inner: Array) -> Array:
    """Return the symmetric part, moved towards the identity where it is not positive definite.

    A backend that leaves the cone by δ knows Σ to about δ; so it is moved until its least eigenvalue is δ.
    """
    inner = (inner + inner.T) / 2
    values = np.linalg.eigvalsh(inner)
    if values[-1] <= 0:
        raise BackendError("the backend returned no covariance to judge: it has no positive eigenvalue")
    floor = max(-values[0], SMALLEST * values[-1])
    return inner if values[0] >= floor else inner + (floor - values[0]) * np.eye(len(inner))


def inverse(cost: Array | None) -> Array:
    """Return ``Σ = X⁻¹``, X moved towards the identity where a backend left it indefinite."""
    factor = linalg.cholesky(make_definite(returned_array(cost)))
    if factor is None:
        raise BackendError("the backend returned no covariance to judge")
    half = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), check_finite=False)
    return np.asarray(half @ half.T)


def _solve(lift: Array, moves: Array) -> Array:
    """Return the coordinates of the moves on the columns of `lift`, whatever the units of these."""
    norms = np.linalg.norm(lift, axis=0)
    orthonormal, triangle = scipy.linalg.qr(lift / norms, mode="economic", check_finite=False)
    solved = scipy.linalg.solve_triangular(triangle, orthonormal.T @ moves, check_finite=False)
    return np.asarray(solved / norms[:, None])
