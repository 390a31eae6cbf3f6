"""The refined privacy ordering, stage by stage: what the optima of a stage have in common, and what is left open.

All optimal covariances of fitness for use share a part. At optimal weights let ``P = Σ_i λ_i b_i b_i'`` over the
moves b_i = B u_i, and ``Q = Σ_j μ_j v_j' v_j``. Stationarity, ``Σ⁻¹ P Σ⁻¹ ∝ Q``, fixes Σ⁻¹ on the range of P: in
coordinates in which one optimum is the identity, P and Q are proportional, and every optimum is the identity on
their range, a free block M on its complement, and zero between the two. So the optima form a *face*

    ``Σ = S S' + O M O'``,   M ≻ 0,

and the next entries of the sorted profile come from the same problem, smaller, with what S already costs and
already adds in variance. Each stage settles at least one direction; the last leaves none, which is why the
minimum of the ordering is unique. The refined mechanism is a sequence of independent releases, one per stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.certificate import Certificate
from dualmech.errors import InvalidInputError
from dualmech.geometry.base import FitnessDual, shares, valid_weights
from dualmech.geometry.dense_forms import evaluate
from dualmech.immutable import frozen_copy
from dualmech.problems.fitness import FitnessForUse
from dualmech.validate import Array

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism

Indices: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class RefinementStage:
    """One stage of the refined privacy ordering: the least worst cost of the neighbours that are still open.

    Minimise ``max_i o_i + β_i' M⁻¹ β_i`` over the open neighbours i and M ≻ 0, subject to
    ``a_j + ν_j M ν_j' ≤ c_j``: problem `FitnessForUse` on the face ``Σ = S S' + O M O'``. In the coordinates
    of S and O a move ``B u_i`` is (σ_i, β_i) with ``o_i = ‖σ_i‖²``, and a query has coefficients (τ_j, ν_j) with
    ``a_j = ‖τ_j‖²``. Its dual, for λ ≥ 0 on the open neighbours and μ ≥ 0, is

        ``Σ λ_i o_i / Σ λ_i + ‖diag(√μ) N β diag(√λ)‖_*² / (Σ λ_i · Σ μ_j (c_j - a_j))``.

    Source: definition 5 and Theorem 11 of Xiao et al., PVLDB 14(10), 2021, which proves uniqueness without a method. A
    certificate of this class holds on the face it names. The face of the first stage is everything; the later ones are
    known up to rounding and, where complementarity is not strict, up to the root of the gap before.

    Parameters
    ----------
    problem : FitnessForUse
        What all stages refine.
    settled : (k, q) array
        S: independent unit noise in these directions is common to all optima of the earlier stages.
    open : (k, r) array
        O: the directions whose noise is still free.
    neighbours, queries : index arrays, optional
        The neighbours and queries that are open, that is, whose cost or variance depends on M; by default all that
        can be.
    """

    problem: FitnessForUse
    settled: Array
    open: Array
    neighbours: Indices
    queries: Indices
    costs: Array = field(repr=False)
    moves: Array = field(repr=False)
    variances: Array = field(repr=False)
    rows: Array = field(repr=False)
    # (m, q + r) what the coefficients of each query are added up from, in absolute value
    magnitudes: Array = field(repr=False)
    rounding: float = field(repr=False)

    def __init__(
        self,
        problem: FitnessForUse,
        settled: Array,
        open: Array,
        neighbours: Indices | None = None,
        queries: Indices | None = None,
    ) -> None:
        geometry = validate.instance(FitnessForUse, problem=problem).dense
        settled = _directions(geometry.rank, settled=settled)
        open = _directions(geometry.rank, open=open)
        directions, count = np.hstack([settled, open]), settled.shape[1]
        if linalg.rank(directions.T) < directions.shape[1]:
            raise InvalidInputError("settled and open must be independent directions")
        frame = _Frame(directions)
        coordinates = frame.coordinates(geometry.moves)
        coefficients = geometry.representation @ directions
        moves, rows = coordinates[count:], coefficients[:, count:]
        if neighbours is None:
            neighbours = np.flatnonzero(np.abs(geometry.moves).max(axis=0))
        if queries is None:
            queries = np.setdiff1d(np.arange(len(rows)), geometry.free_queries)
        neighbours = validate.indices(moves.shape[1], neighbours=neighbours)
        queries = validate.indices(len(rows), queries=queries)
        for name, value in {
            "problem": problem,
            "settled": settled,
            "open": open,
            "neighbours": neighbours,
            "queries": queries,
            "costs": np.einsum("ki,ki->i", coordinates[:count], coordinates[:count]),
            "moves": moves,
            "variances": np.einsum("jk,jk->j", coefficients[:, :count], coefficients[:, :count]),
            "rows": rows,
            "magnitudes": np.abs(geometry.representation) @ np.abs(directions),
            "rounding": 8 * geometry.rank * linalg.EPS * frame.condition(),
        }.items():
            object.__setattr__(self, name, frozen_copy(value) if name != "problem" else value)

    @property
    def finished(self) -> bool:
        """Whether no neighbour's cost depends on M any more."""
        return not (self.open.shape[1] and len(self.neighbours))

    @property
    def slack(self) -> Array:
        """What the settled noise leaves of the targets, ``c_j - a_j`` (m,)."""
        return self.problem.targets - self.variances

    @property
    def slack_rounding(self) -> Array:
        """Allowance for the rounding of `slack` (m,), absolute: the difference may be all rounding."""
        settled = self.magnitudes[:, : self.settled.shape[1]]
        size = np.einsum("jk,jk->j", settled, settled) + self.problem.targets
        return 4 * (len(self.settled) + 2) * linalg.EPS * size

    def covariance(self, inner: Array | None = None) -> Array:
        """Return ``S S' + O M O'`` (k, k); by default with M = I, the optimum of the stage before."""
        size = self.open.shape[1]
        given = np.eye(size) if inner is None else validate.finite(2, inner=inner)
        if given.shape != (size, size):
            raise InvalidInputError(f"inner must have shape ({size}, {size}), got {given.shape}")
        free = self.open @ given @ self.open.T
        product = self.settled @ self.settled.T + free
        return np.asarray((product + product.T) / 2)

    def certify(
        self, primal: npt.ArrayLike, dual: FitnessDual | tuple[npt.ArrayLike, npt.ArrayLike]
    ) -> Certificate:
        """Judge a covariance on B x (k, k), which must lie on the face, and weights (s,) and (m,).

        What is evaluated is the nearest point of the face. How far the covariance is from it, relative to its
        own standard deviations, counts as violation. By how much M may have to shrink to keep to what settled noise
        leaves of the targets, which may be next to nothing, counts as rounding. Weights on closed neighbours and
        queries are left out.
        """
        face, departure, excess = self._nearest(self.problem.geometry.point(primal))
        sides = evaluate(self.problem, face)
        bound, rounding = self._bound(*self.problem.geometry.weights(dual))
        objective = float(sides.profile[self.neighbours].max(initial=0.0))
        violation = max(sides.excess - 1, departure)
        return Certificate.of(objective, bound, violation, sides.rounding + rounding + excess)

    def mechanism(self, primal: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the mechanism that adds noise of this covariance to B x."""
        return self.problem.mechanism(primal)

    def prices(self, dual: FitnessDual) -> Array:
        """Return each query's share of the bill of this stage (m,): ``μ_j (c_j - a_j)``, normalised."""
        weights: Array = self.problem.geometry.weights(dual)[1]
        return shares(weights * np.maximum(self.slack, 0.0))

    def binding(self, primal: npt.ArrayLike, slack: float) -> Indices:
        """Return the open neighbours whose cost is within `slack`, relative, of the largest among them."""
        within = 1 - validate.nonnegative_number(slack=slack)
        profile = evaluate(self.problem, primal).profile[self.neighbours]
        return np.asarray(self.neighbours[profile >= within * profile.max(initial=0.0)])

    def spread(self, neighbour_shares: Array, query_shares: Array) -> FitnessDual:
        """Return weights over all from shares of the open ones; a query's share is ``μ_j (c_j - a_j)``."""
        first, last = np.zeros(self.moves.shape[1]), np.zeros(len(self.rows))
        first[self.neighbours] = neighbour_shares
        last[self.queries] = query_shares / self.slack[self.queries]
        return FitnessDual(first, last)

    def _bound(self, neighbour_weights: Array, query_weights: Array) -> tuple[float, float]:
        """Return the dual value of the class's docstring and its rounding, relative; 0 where nothing is proven.

        Proof: ``Σ λ_i β_i' M⁻¹ β_i · Σ μ_j ν_j M ν_j'`` is at least the squared trace norm, as for the whole
        problem, the second factor is at most ``Σ μ_j (c_j - a_j)``, and a maximum is at least any mean.
        """
        first, last = neighbour_weights[self.neighbours], query_weights[self.queries]
        if not (valid_weights(first) and valid_weights(last)):
            return 0.0, 0.0
        first, last = first / first.max(), last / last.max()  # no sum or product then overflows
        dense, slack = self.problem.dense, np.maximum(self.slack, 0.0) + self.slack_rounding
        budget, mass = float(last @ slack[self.queries]), float(first.sum())
        between, costs = self.rows[self.queries] @ self.moves[:, self.neighbours], self.costs[self.neighbours]
        # Coordinates of a move are known to `rounding`, relative to all of them together.
        lengths = np.sqrt(costs + np.einsum("ki,ki->i", *2 * (self.moves[:, self.neighbours],)))
        reach = np.linalg.norm(
            np.sqrt(last)[:, None] * self.magnitudes[self.queries, self.settled.shape[1] :]
        )
        missed = self.rounding * reach * np.sqrt(first @ lengths**2)
        missed += np.linalg.norm(np.sqrt(last) * dense.mismatch[self.queries]) * np.sqrt(
            first @ dense.reach[self.neighbours] ** 2
        )
        norm, allowance = linalg.trace_norm(np.sqrt(last)[:, None] * between * np.sqrt(first), missed)
        value = float(first @ costs) / mass + norm**2 / (mass * budget)
        missed = 2 * norm * allowance / budget + 2 * self.rounding * float(first @ (np.sqrt(costs) * lengths))
        return value, float(missed) / mass / value + 4 * self.rounding if value > 0 else 0.0

    def _nearest(self, covariance: Array) -> tuple[Array, float, float]:
        """Return a point of the face near a covariance, how far that is, in standard deviations, and `_excess`."""
        count, units = self.settled.shape[1], np.sqrt(np.abs(np.diagonal(covariance)))
        if not count or not np.all(np.isfinite(covariance)):
            return covariance, 0.0, 0.0
        frame = _Frame(np.hstack([self.settled, self.open]))
        coordinates = frame.coordinates(frame.coordinates((covariance + covariance.T) / 2).T)
        inner = coordinates[count:, count:]
        face = self.covariance(inner)
        apart = relative(np.abs(face - covariance), units * units[:, None])
        return face, float(apart.max()), self._excess(inner)

    def _excess(self, inner: Array) -> float:
        """Return a t for which ``M / (1 + t)`` keeps to what settled noise leaves of the targets for certain."""
        rows, sizes = self.rows[self.queries], self.magnitudes[self.queries, self.settled.shape[1] :]
        size = np.einsum("jk,jk->j", sizes @ np.abs(inner), sizes)
        reach = np.einsum("jk,jk->j", rows @ inner, rows) + 4 * (len(self.settled) + 2) * linalg.EPS * size
        left = (self.slack - self.slack_rounding)[self.queries]
        ratios = np.divide(reach, left, out=np.where(size > 0, np.inf, 0.0), where=left > 0)
        return max(float(ratios.max(initial=0.0)) - 1, 0.0)


class _Frame:
    """Independent directions, factored once: coordinates on them, and how well conditioned they are.

    Rows are first brought to unit length, which makes standard deviations the unit of every noisy answer.
    """

    def __init__(self, directions: Array) -> None:
        lengths = np.linalg.norm(directions, axis=1)
        self.units = np.where(lengths > 0, lengths, 1.0)[:, None]
        scaled = directions / self.units
        self.norms = np.linalg.norm(scaled, axis=0)[:, None]
        self.orthonormal, self.triangle = scipy.linalg.qr(
            scaled / self.norms.T, mode="economic", check_finite=False
        )

    def coordinates(self, vectors: Array) -> Array:
        """Return the coordinates of vectors in the span of the directions."""
        inside = self.orthonormal.T @ (vectors / self.units)
        solved = scipy.linalg.solve_triangular(self.triangle, inside, check_finite=False)
        return np.asarray(solved / self.norms)

    def condition(self) -> float:
        """Return the condition number of the scaled directions."""
        values = linalg.singular_values(self.triangle)
        return float(values[0] / values[-1])


def _directions(rank: int, **named: npt.ArrayLike) -> Array:
    """Return finite directions (rank, n), of which there may be none."""
    ((name, given),) = named.items()
    if getattr(given, "shape", None) == (rank, 0):
        return np.zeros((rank, 0))
    found = validate.finite(2, **named)
    validate.moderate(**named)
    if len(found) != rank:
        raise InvalidInputError(
            f"{name} must have {rank} rows, one per row of the basis, got shape {found.shape}"
        )
    return found


def relative(part: Array, whole: Array) -> Array:
    """Return parts of wholes, 0 where there is no whole."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
