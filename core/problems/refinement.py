"""The refined privacy ordering, stage by stage: what the optima of a stage have in common, and what is left open.

All optimal covariances of fitness for use share a part. At optimal weights let ``P = Σ_i λ_i b_i b_i'`` over the
moves b_i = B u_i, and ``Q = Σ_j μ_j v_j' v_j``. Stationarity, ``Σ⁻¹ P Σ⁻¹ ∝ Q``, fixes Σ⁻¹ on the range of P: in
coordinates in which one optimum is the identity, P and Q are proportional, and every optimum is the identity on
their range, a free block M on its complement, and zero between the two. So the optima form a *face*

    ``Σ = S S' + O M O'``,   M ≻ 0,

and the next entries of the sorted profile come from the same problem, smaller, with what S already costs and
already adds in variance. Each stage settles at least one direction; the last leaves none, which is why the
minimum of the ordering is unique. The refined mechanism is a sequence of independent releases, one a stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.certificate import Certificate
from dualmech.errors import InvalidInputError
from dualmech.problems.evaluation import FitnessDual, covariance_of, dual_weights, evaluate, proving
from dualmech.problems.fitness import FitnessForUse
from dualmech.validate import Array

if TYPE_CHECKING:
    from dualmech.mechanism import LinearGaussianMechanism

Indices: TypeAlias = npt.NDArray[np.intp]

SETTLED, PER_ROOT_OF_GAP = 1e-5, 30.0
"""Least eigenvalue of P, relative to the largest, that counts as range: 1e-5, or so many roots of the gap.

Where complementarity is not strict, an eigenvalue that vanishes at the optimum is still of the order of the root
of the gap. A direction left open by mistake is settled by the next stage; one settled by mistake is lost."""

MOST_LEFT = 0.5
"""The largest eigenvalues are always range, however badly a stage was solved: every stage settles something."""

SUPPORTED = 1e-4
"""Least weight, relative to the largest, that proves a neighbour (or query) tight in every optimum."""

CLOSED, SUPPORTED_CLOSED = 1e-12, 1e-6
"""A neighbour whose cost owes at most this share to M is closed; where its weight proves it tight, the second.

A query likewise, and then only where its target is spent up to the second share."""


@dataclass(frozen=True, slots=True, eq=False)
class RefinementStage:
    """One stage of the refined privacy ordering: the least worst cost of the neighbours that are still open.

    Minimise ``max_i o_i + β_i' M⁻¹ β_i`` over the open neighbours i and M ≻ 0, subject to
    ``a_j + ν_j M ν_j' ≤ c_j``: problem `FitnessForUse` on the face ``Σ = S S' + O M O'``. In the coordinates
    of S and O a move ``B u_i`` is (σ_i, β_i) with ``o_i = ‖σ_i‖²``, and a query has coefficients (τ_j, ν_j) with
    ``a_j = ‖τ_j‖²``. Its dual, for λ ≥ 0 on the open neighbours and μ ≥ 0, is

        ``Σ λ_i o_i / Σ λ_i + ‖diag(√μ) N β diag(√λ)‖_*² / (Σ λ_i · Σ μ_j (c_j - a_j))``.

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

    Notes
    -----
    Definition 5 and Theorem 11 of Xiao et al., PVLDB 14(10), 2021, which proves uniqueness without a method.
    A certificate of this class holds on the face it names. The face of the first stage is everything; the later
    ones are known up to rounding and, where complementarity is not strict, up to the root of the gap before.
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
    rounding: float = field(repr=False)

    def __init__(
        self,
        problem: FitnessForUse,
        settled: Array,
        open: Array,
        neighbours: Indices | None = None,
        queries: Indices | None = None,
    ) -> None:
        settled, open = np.asarray(settled, dtype=np.float64), np.asarray(open, dtype=np.float64)
        geometry = problem.geometry
        if not settled.ndim == open.ndim == 2 or not len(settled) == len(open) == geometry.rank:
            raise InvalidInputError(
                f"settled and open must have {geometry.rank} rows, one a row of the basis, "
                f"got shapes {settled.shape} and {open.shape}"
            )
        directions, count = np.hstack([settled, open]), settled.shape[1]
        coordinates, condition = _coordinates(directions, geometry.moves)
        coefficients = geometry.representation @ directions
        moves, rows = coordinates[count:], coefficients[:, count:]
        if neighbours is None:
            neighbours = np.flatnonzero(np.abs(geometry.moves).max(axis=0))
        if queries is None:
            queries = np.setdiff1d(np.arange(len(rows)), geometry.free_queries)
        for name, chosen, size in (
            ("neighbours", neighbours, moves.shape[1]),
            ("queries", queries, len(rows)),
        ):
            if not np.isin(chosen, np.arange(size)).all():
                raise InvalidInputError(f"{name} must be indices from 0 to {size - 1}, got {chosen}")
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
            "rounding": 8 * geometry.rank * linalg.EPS * condition,
        }.items():
            object.__setattr__(self, name, value)

    @property
    def finished(self) -> bool:
        """Whether no neighbour's cost depends on M any more."""
        return not (self.open.shape[1] and len(self.neighbours))

    @property
    def slack(self) -> Array:
        """What the settled noise leaves of the targets, ``c_j - a_j`` (m,)."""
        return self.problem.targets - self.variances

    def covariance(self, inner: Array | None = None) -> Array:
        """Return ``S S' + O M O'`` (k, k); by default with M = I, the optimum of the stage before."""
        free = self.open @ self.open.T if inner is None else self.open @ inner @ self.open.T
        product = self.settled @ self.settled.T + free
        return np.asarray((product + product.T) / 2)

    def certify(
        self, primal: npt.ArrayLike, dual: FitnessDual | tuple[npt.ArrayLike, npt.ArrayLike]
    ) -> Certificate:
        """Judge a covariance on B x (k, k), which must lie on the face, and weights (s,) and (m,).

        What is evaluated is the nearest point of the face. How far the covariance is from it, relative to its
        own standard deviations, counts as violation. Weights on closed neighbours and queries are left out.
        """
        face, departure = self._nearest(covariance_of(self.problem, primal))
        sides = evaluate(self.problem, face)
        bound, rounding = self._bound(*dual_weights(self.problem, dual))
        objective = float(sides.profile[self.neighbours].max(initial=0.0))
        violation = max(sides.excess - 1, departure)
        return Certificate.of(objective, bound, violation, sides.rounding + rounding)

    def mechanism(self, primal: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the mechanism that adds noise of this covariance to B x."""
        return self.problem.mechanism(primal)

    def prices(self, dual: FitnessDual) -> Array:
        """Return each query's share of the bill of this stage (m,): ``μ_j (c_j - a_j)``, normalised."""
        bill = np.asarray(dual.query_weights) * np.maximum(self.slack, 0.0)
        total = bill.sum()
        return np.asarray(bill / total) if total > 0 else np.zeros_like(bill)

    def binding(self, primal: npt.ArrayLike, slack: float) -> Indices:
        """Return the open neighbours whose cost is within `slack`, relative, of the largest among them."""
        profile = evaluate(self.problem, primal).profile[self.neighbours]
        return np.asarray(self.neighbours[profile >= (1 - slack) * profile.max()])

    def settle(self, inner: Array, dual: FitnessDual, gap: float) -> RefinementStage:
        """Return the next stage, from an optimal M (r, r) and weights that prove it to the relative `gap`.

        In coordinates in which M is the identity, P and Q are proportional up to the gap. Their common range is
        settled; neighbours and queries that no open direction reaches any more are closed.
        """
        factor = np.linalg.cholesky((inner + inner.T) / 2)
        moves = scipy.linalg.solve_triangular(factor, self.moves, lower=True, check_finite=False)
        rows = self.rows @ factor
        values, vectors = np.linalg.eigh(_common(moves, rows, dual))
        settled = values > min(max(SETTLED, PER_ROOT_OF_GAP * np.sqrt(max(gap, 0.0))), MOST_LEFT) * values[-1]
        shares, left = _shares(dual.neighbour_weights), vectors[:, ~settled]
        reach, costs = _norms(left.T @ moves), self.costs + _norms(moves)
        if shares @ (costs - self.costs) <= SUPPORTED_CLOSED * costs[self.neighbours].max():
            # The worst neighbours cost what they cost, whatever M is: they close, and no direction is settled.
            left, reach = vectors, np.where(shares > SUPPORTED * shares.max(), 0.0, _norms(moves))
        neighbours = _still_open(self.neighbours, _relative(reach, costs), shares)
        reach, full = _norms((rows @ left).T), self.variances + _norms(rows.T)
        loose = full - reach < (1 - SUPPORTED_CLOSED) * self.problem.targets
        shares = _shares(dual.query_weights * self.problem.targets)
        queries = _still_open(self.queries, np.where(loose, 1.0, _relative(reach, full)), shares)
        done = vectors[:, left.shape[1] :]
        for seen in (moves[:, neighbours], rows[queries].T):
            left, unseen = _seen(left, left.T @ seen)
            done = np.hstack([done, unseen])
        return RefinementStage(
            self.problem,
            np.hstack([self.settled, self.open @ (factor @ done)]),
            self.open @ (factor @ left),
            neighbours,
            queries,
        )

    def _bound(self, neighbour_weights: Array, query_weights: Array) -> tuple[float, float]:
        """Return the dual value of the class's docstring and its rounding, relative; 0 where nothing is proven.

        Proof: ``Σ λ_i β_i' M⁻¹ β_i · Σ μ_j ν_j M ν_j'`` is at least the squared trace norm, as for the whole
        problem, the second factor is at most ``Σ μ_j (c_j - a_j)``, and a maximum is at least any mean.
        """
        first, last = neighbour_weights[self.neighbours], query_weights[self.queries]
        if not (proving(first) and proving(last)):
            return 0.0, 0.0
        first, last = first / first.max(), last / last.max()  # no sum or product then overflows
        budget, mass = float(last @ self.slack[self.queries]), float(first.sum())
        if not budget > 0:
            return 0.0, 0.0
        between = self.rows[self.queries] @ self.moves[:, self.neighbours]
        norm, allowance = linalg.trace_norm(np.sqrt(last)[:, None] * between * np.sqrt(first))
        free = norm**2 / (mass * budget)
        rounding = 2 * (allowance / norm if norm > 0 else 0.0) + 4 * self.rounding
        return float(first @ self.costs[self.neighbours]) / mass + free, rounding

    def _nearest(self, covariance: Array) -> tuple[Array, float]:
        """Return a point of the face near a covariance, and how far from it that is, in standard deviations."""
        count, units = self.settled.shape[1], np.sqrt(np.abs(np.diagonal(covariance)))
        if not count or not np.all(np.isfinite(covariance)):
            return covariance, 0.0
        directions = np.hstack([self.settled, self.open])
        half, _ = _coordinates(directions, (covariance + covariance.T) / 2)
        inner, _ = _coordinates(directions, half.T)
        face = self.covariance(inner[count:, count:])
        apart = _relative(np.abs(face - covariance), units * units[:, None])
        return face, float(apart.max())


def _coordinates(directions: Array, vectors: Array) -> tuple[Array, float]:
    """Return the coordinates of vectors on independent directions, and the condition number of these.

    Rows are first brought to unit length, which makes standard deviations the unit of every noisy answer.
    """
    units = np.linalg.norm(directions, axis=1)
    units = np.where(units > 0, units, 1.0)[:, None]
    scaled = directions / units
    norms = np.linalg.norm(scaled, axis=0)
    orthonormal, triangle = scipy.linalg.qr(scaled / norms, mode="economic", check_finite=False)
    values = linalg.singular_values(triangle)
    solved = scipy.linalg.solve_triangular(triangle, orthonormal.T @ (vectors / units), check_finite=False)
    return np.asarray(solved / norms[:, None]), float(values[0] / values[-1])


def _common(moves: Array, rows: Array, dual: FitnessDual) -> Array:
    """Return the mean of P and Q in coordinates in which the optimum is the identity, each of trace 1."""
    first = (moves * dual.neighbour_weights) @ moves.T
    last = (rows.T * dual.query_weights) @ rows
    return np.asarray(first / np.trace(first) + last / np.trace(last)) / 2


def _norms(columns: Array) -> Array:
    """Return the squared norms of columns."""
    return np.einsum("ki,ki->i", columns, columns)


def _shares(weights: Array) -> Array:
    """Return weights relative to their sum."""
    return np.asarray(weights / weights.sum())


def _relative(part: Array, whole: Array) -> Array:
    """Return parts of wholes, 0 where there is no whole."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _seen(directions: Array, vectors: Array) -> tuple[Array, Array]:
    """Split directions into those that some of the vectors (coordinates on them) reach, and the others.

    Nothing open is moved in the others, up to what was closed as rounding: their noise stays as it is.
    """
    norms = np.linalg.norm(vectors, axis=0)
    unit = vectors[:, norms > 0] / norms[norms > 0]
    if not unit.size:
        return directions[:, :0], directions
    left, values, _ = linalg.svd(unit, full_matrices=True)
    rank = linalg.numerical_rank(values, unit.shape)
    return (
        (directions, directions[:, :0])
        if rank == len(unit)
        else (directions @ left[:, :rank], directions @ left[:, rank:])
    )


def _still_open(indices: Indices, reach: Array, shares: Array) -> Indices:
    """Return the indices that M still reaches; where a weight proves one tight, rounding may reach further."""
    least = np.where(shares > SUPPORTED * shares.max(), SUPPORTED_CLOSED, CLOSED)
    return np.asarray(indices[(reach > least)[indices]])
