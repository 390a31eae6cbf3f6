"""The minimum of the refined privacy ordering: the unique covariance, with a certificate for every stage."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.certificate import Certificate
from dualmech.errors import InputTypeError, InvalidInputError, UncertifiedWarning
from dualmech.geometry.weights import FitnessDual, shares, valid_weights
from dualmech.immutable import frozen_copy
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.stream import SteppedMechanism
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.progress import NO_DEADLINE, Deadline, Status
from dualmech.solution import Solution, judged_solution, retold
from dualmech.validate import Array

# The stages of the refined privacy ordering: the face of optimal covariances, and its free directions.
#
# All optimal covariances of fitness for use share a component. At optimal weights let ``P = Σ_i λ_i b_i b_i'`` over the
# sensitivity vectors b_i = B u_i, and ``Q = Σ_j μ_j v_j' v_j``. Stationarity, ``Σ⁻¹ P Σ⁻¹ ∝ Q``, fixes Σ⁻¹ on the range
# of P. In coordinates in which one optimum is the identity, P and Q are proportional. Every optimum is then the
# identity on their range, a free block M on its complement, and zero between the two: the optima form a *face*
#
#     ``Σ = S S' + O M O'``,   M ≻ 0,
#
# and the next entries of the sorted profile are the optimum of a smaller problem of the same form, in M, with the
# costs and variances of S added. Each stage fixes at least one direction, so there are finitely many, and the minimum
# is unique. The refined mechanism is a sequence of independent releases, one per stage.


Indices: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class RefinementStage:
    """One stage of the refined privacy ordering: minimise the worst cost of the open neighbours.

    Minimise ``max_i o_i + β_i' M⁻¹ β_i`` over the open neighbours i and M ≻ 0, subject to ``a_j + ν_j M ν_j' ≤ c_j``:
    problem `FitnessForUse` on the face ``Σ = S S' + O M O'``. In the coordinates of S and O a sensitivity vector ``B
    u_i`` is (σ_i, β_i) with ``o_i = ‖σ_i‖²``, and a query has coefficients (τ_j, ν_j) with ``a_j = ‖τ_j‖²``. Its dual,
    for λ ≥ 0 on the open neighbours and μ ≥ 0, is

        ``Σ λ_i o_i / Σ λ_i + ‖diag(√μ) N β diag(√λ)‖_*² / (Σ λ_i · Σ μ_j (c_j - a_j))``.

    Source: definition 5 and Theorem 11 of Xiao et al., PVLDB 14(10), 2021, which proves uniqueness without a method. A
    certificate holds on the face of the stage. The face of the first stage is the whole cone. Later faces have
    rounding errors and, if complementarity is not strict, an error of the order of the root of the previous gap.

    Parameters
    ----------
    problem : FitnessForUse
        The problem of the first stage.
    fixed : (k, q) array
        S: all optima of the earlier stages have independent unit noise in these directions.
    open : (k, r) array
        O: the directions of the free noise M.
    neighbours, queries : index arrays, optional
        The open neighbours and queries, whose cost or variance depends on M; by default all with a non-zero
        sensitivity vector or variance.
    """

    problem: FitnessForUse
    fixed: Array
    open: Array
    neighbours: Indices
    queries: Indices
    costs: Array = field(repr=False)
    moves: Array = field(repr=False)
    variances: Array = field(repr=False)
    rows: Array = field(repr=False)
    # (m, q + r) sums of absolute values for the rounding errors of each query's coefficients
    magnitudes: Array = field(repr=False)
    rounding: float = field(repr=False)

    def __init__(
        self,
        problem: FitnessForUse,
        fixed: Array,
        open: Array,
        neighbours: Indices | None = None,
        queries: Indices | None = None,
    ) -> None:
        geometry = validate.instance(FitnessForUse, problem=problem).dense
        fixed = _directions(geometry.rank, fixed=fixed)
        open = _directions(geometry.rank, open=open)
        directions, count = np.hstack([fixed, open]), fixed.shape[1]
        if linalg.rank(directions.T) < directions.shape[1]:
            raise InvalidInputError("fixed and open must be independent directions")
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
            "fixed": fixed,
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
        """Whether no neighbour's cost depends on M."""
        return not (self.open.shape[1] and len(self.neighbours))

    @property
    def slack(self) -> Array:
        """The targets minus the variances of the fixed noise, ``c_j - a_j`` (m,)."""
        return self.problem.targets - self.variances

    @property
    def slack_rounding(self) -> Array:
        """Absolute error bounds on `slack` (m,), whose entries may be as small as these."""
        fixed = self.magnitudes[:, : self.fixed.shape[1]]
        size = np.einsum("jk,jk->j", fixed, fixed) + self.problem.targets
        return 4 * (len(self.fixed) + 2) * linalg.EPS * size

    def covariance(self, inner: Array | None = None) -> Array:
        """Return ``S S' + O M O'`` (k, k); by default with M = I, the optimum of the previous stage."""
        size = self.open.shape[1]
        matrix = np.eye(size) if inner is None else validate.finite(2, inner=inner)
        if matrix.shape != (size, size):
            raise InvalidInputError(f"inner must have shape ({size}, {size}), got {matrix.shape}")
        free_noise = self.open @ matrix @ self.open.T
        product = self.fixed @ self.fixed.T + free_noise
        return np.asarray((product + product.T) / 2)

    def certify(self, primal: npt.ArrayLike, dual: FitnessDual | tuple[npt.ArrayLike, npt.ArrayLike]) -> Certificate:
        """Certify a covariance on B x (k, k) on the face, with weights (s,) and (m,).

        The nearest point of the face is evaluated. The distance to it, relative to the standard deviations of the
        covariance, counts as a violation. The factor by which M may exceed `slack`, which may be near 0, counts as
        a rounding error. Weights on closed neighbours and queries are ignored.
        """
        face, departure, excess = self._nearest(self.problem.geometry.point(primal))
        forms = self.problem.geometry.forms(face)
        bound, rounding = self._bound(*self.problem.geometry.weights(dual))
        if forms is None:
            return Certificate.of(np.inf, bound, np.inf, rounding + excess)
        objective = float(forms.profile[self.neighbours].max(initial=0.0))
        largest, slack = forms.excess(self.problem.targets)
        off = forms.cost_rounding + slack + rounding + excess
        return Certificate.of(objective, bound, max(largest - 1, departure), off)

    def mechanism(self, primal: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the mechanism ``B x + N(0, Σ)``."""
        return self.problem.mechanism(primal)

    def prices(self, dual: FitnessDual) -> Array:
        """Return the normalised shadow prices of the queries in this stage (m,): ``μ_j (c_j - a_j)``, with sum 1."""
        weights: Array = self.problem.geometry.weights(dual)[1]
        return shares(weights * np.maximum(self.slack, 0.0))

    def binding(self, primal: npt.ArrayLike, slack: float) -> Indices:
        """Return the open neighbours with a cost of at least ``1 - slack`` times the largest cost among them."""
        min_share = 1 - validate.nonnegative_number(slack=slack)
        profile = profile_of(self.problem, primal)[self.neighbours]
        return np.asarray(self.neighbours[profile >= min_share * profile.max(initial=0.0)])

    def spread(self, neighbour_shares: Array, query_shares: Array) -> FitnessDual:
        """Return weights on all neighbours and queries from shares of the open ones: λ_i, and ``μ_j (c_j - a_j)``."""
        first, last = np.zeros(self.moves.shape[1]), np.zeros(len(self.rows))
        first[self.neighbours] = neighbour_shares
        last[self.queries] = query_shares / self.slack[self.queries]
        return FitnessDual(first, last)

    def _bound(self, neighbour_weights: Array, query_weights: Array) -> tuple[float, float]:
        """Return the dual value of the class's docstring and its relative error bound; 0 for invalid weights.

        Proof: ``Σ λ_i β_i' M⁻¹ β_i · Σ μ_j ν_j M ν_j'`` is at least the squared trace norm, as for the whole
        problem, the second factor is at most ``Σ μ_j (c_j - a_j)``, and a maximum is at least any mean.
        """
        first, last = neighbour_weights[self.neighbours], query_weights[self.queries]
        if not (valid_weights(first) and valid_weights(last)):
            return 0.0, 0.0
        first, last = first / first.max(), last / last.max()  # no sum or product then overflows
        dense, slack = self.problem.dense, np.maximum(self.slack, 0.0) + self.slack_rounding
        budget, mass = float(last @ slack[self.queries]), float(first.sum())
        products, costs = self.rows[self.queries] @ self.moves[:, self.neighbours], self.costs[self.neighbours]
        # Coordinates of a sensitivity vector have errors of at most `rounding` times the norm of all of them.
        lengths = np.sqrt(costs + np.einsum("ki,ki->i", *2 * (self.moves[:, self.neighbours],)))
        row_norm = np.linalg.norm(np.sqrt(last)[:, None] * self.magnitudes[self.queries, self.fixed.shape[1] :])
        error = self.rounding * row_norm * np.sqrt(first @ lengths**2)
        error += np.linalg.norm(np.sqrt(last) * dense.mismatch[self.queries]) * np.sqrt(
            first @ dense.reach[self.neighbours] ** 2
        )
        norm, allowance = linalg.trace_norm(np.sqrt(last)[:, None] * products * np.sqrt(first), error)
        value = float(first @ costs) / mass + norm**2 / (mass * budget)
        error = 2 * norm * allowance / budget + 2 * self.rounding * float(first @ (np.sqrt(costs) * lengths))
        return value, float(error) / mass / value + 4 * self.rounding if value > 0 else 0.0

    def _nearest(self, covariance: Array) -> tuple[Array, float, float]:
        """Return a point of the face near a covariance, their distance in standard deviations, and `_excess`."""
        count, units = self.fixed.shape[1], np.sqrt(np.abs(np.diagonal(covariance)))
        if not count or not np.all(np.isfinite(covariance)):
            return covariance, 0.0, 0.0
        frame = _Frame(np.hstack([self.fixed, self.open]))
        coordinates = frame.coordinates(frame.coordinates((covariance + covariance.T) / 2).T)
        inner = coordinates[count:, count:]
        face = self.covariance(inner)
        distances = _ratios(np.abs(face - covariance), units * units[:, None])
        return face, float(distances.max()), self._excess(inner)

    def _excess(self, inner: Array) -> float:
        """Return a t for which ``M / (1 + t)`` is verified to meet `slack`."""
        rows, magnitudes = self.rows[self.queries], self.magnitudes[self.queries, self.fixed.shape[1] :]
        sums = np.einsum("jk,jk->j", magnitudes @ np.abs(inner), magnitudes)
        variances = np.einsum("jk,jk->j", rows @ inner, rows) + 4 * (len(self.fixed) + 2) * linalg.EPS * sums
        slack = (self.slack - self.slack_rounding)[self.queries]
        ratios = np.divide(variances, slack, out=np.where(sums > 0, np.inf, 0.0), where=slack > 0)
        return max(float(ratios.max(initial=0.0)) - 1, 0.0)


class _Frame:
    """A factorisation of independent directions, for coordinates on them and their condition number.

    Rows are scaled to unit length, so that the unit of every noisy answer is its standard deviation.
    """

    def __init__(self, directions: Array) -> None:
        lengths = np.linalg.norm(directions, axis=1)
        self.units = np.where(lengths > 0, lengths, 1.0)[:, None]
        scaled = directions / self.units
        self.norms = np.linalg.norm(scaled, axis=0)[:, None]
        self.orthonormal, self.triangle = scipy.linalg.qr(scaled / self.norms.T, mode="economic", check_finite=False)

    def coordinates(self, vectors: Array) -> Array:
        projected = self.orthonormal.T @ (vectors / self.units)
        scaled = scipy.linalg.solve_triangular(self.triangle, projected, check_finite=False)
        return np.asarray(scaled / self.norms)

    def condition(self) -> float:
        values = linalg.singular_values(self.triangle)
        return float(values[0] / values[-1])


def _directions(rank: int, **argument: npt.ArrayLike) -> Array:
    """Return finite directions (rank, n), n ≥ 0."""
    ((name, value),) = argument.items()
    if getattr(value, "shape", None) == (rank, 0):
        return np.zeros((rank, 0))
    matrix = validate.finite(2, **argument)
    validate.moderate(**argument)
    if len(matrix) != rank:
        raise InvalidInputError(f"{name} must have {rank} rows, one per row of the basis, got shape {matrix.shape}")
    return matrix


def _ratios(numerator: Array, denominator: Array) -> Array:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


# The face of all optima of a stage, on which the next stage is posed. No certificate depends on this computation: a
# stage is certified on its own face, from any source.


RANGE_TOL, RANGE_GAP_FACTOR = 1e-5, 30.0
"""Relative tolerances for the range of P: eigenvalues above 1e-5, and above 30 times the root of the gap.

If complementarity is not strict, an eigenvalue with limit 0 is of the order of the root of the gap. A direction that is
left open by mistake is fixed by the next stage; a direction that is fixed by mistake is lost."""

MAX_RANGE_TOL = 0.5
"""Upper limit of the tolerance: a badly solved stage also fixes the directions of its largest eigenvalues."""

MIN_TIGHT_WEIGHT = 1e-4
"""Minimum weight, relative to the largest, of a neighbour or query that is tight in every optimum."""

CLOSED_TOL, TIGHT_CLOSED_TOL = 1e-12, 1e-6
"""A neighbour is closed if M contributes at most this share of its cost; the second if its weight shows it tight.

A query is closed likewise, and only if its variance is within the second tolerance of its target."""


def profile_of(problem: FitnessForUse | PrivacyFirst, covariance: npt.ArrayLike) -> Array:
    """Return the squared privacy cost of each pair of neighbours (s,); infinite if the matrix is no covariance."""
    geometry = problem.geometry
    forms = geometry.forms(geometry.point(covariance))
    return np.full(geometry.moves.shape[1], np.inf) if forms is None else np.asarray(forms.profile)


def next_stage(stage: RefinementStage, inner: Array, dual: FitnessDual, gap: float) -> RefinementStage:
    """Return the next stage, from an optimal M (r, r) and weights that certify it to the relative `gap`.

    In coordinates in which M is the identity, P and Q are proportional up to the gap. Their common range is
    fixed. Neighbours and queries that no longer depend on an open direction are closed.
    """
    factor = np.linalg.cholesky((inner + inner.T) / 2)
    moves = scipy.linalg.solve_triangular(factor, stage.moves, lower=True, check_finite=False)
    rows = stage.rows @ factor
    values, vectors = np.linalg.eigh(_common(moves, rows, dual))
    fixed = values > min(max(RANGE_TOL, RANGE_GAP_FACTOR * np.sqrt(max(gap, 0.0))), MAX_RANGE_TOL) * values[-1]
    shares, open_directions = _shares(dual.neighbour_weights), vectors[:, ~fixed]
    open_norms, costs = _norms(open_directions.T @ moves), stage.costs + _norms(moves)
    if shares @ (costs - stage.costs) <= TIGHT_CLOSED_TOL * costs[stage.neighbours].max():
        # The cost of the worst neighbours does not depend on M: they are closed, and no direction is fixed.
        open_directions, open_norms = vectors, np.where(shares > MIN_TIGHT_WEIGHT * shares.max(), 0.0, _norms(moves))
    neighbours = _still_open(stage.neighbours, _ratios(open_norms, costs), shares)
    open_norms, total_norms = _norms((rows @ open_directions).T), stage.variances + _norms(rows.T)
    slack_queries = total_norms - open_norms < (1 - TIGHT_CLOSED_TOL) * stage.problem.targets
    shares = _shares(dual.query_weights * stage.problem.targets)
    queries = _still_open(stage.queries, np.where(slack_queries, 1.0, _ratios(open_norms, total_norms)), shares)
    fixed_directions = vectors[:, open_directions.shape[1] :]
    for dependent in (moves[:, neighbours], rows[queries].T):
        open_directions, orthogonal = _split_by_span(open_directions, open_directions.T @ dependent)
        fixed_directions = np.hstack([fixed_directions, orthogonal])
    return RefinementStage(
        stage.problem,
        np.hstack([stage.fixed, stage.open @ (factor @ fixed_directions)]),
        stage.open @ (factor @ open_directions),
        neighbours,
        queries,
    )


def _common(moves: Array, rows: Array, dual: FitnessDual) -> Array:
    """Return the mean of P and Q in coordinates in which the optimum is the identity, each of trace 1."""
    first = (moves * dual.neighbour_weights) @ moves.T
    last = (rows.T * dual.query_weights) @ rows
    return np.asarray(first / np.trace(first) + last / np.trace(last)) / 2


def _norms(columns: Array) -> Array:
    return np.einsum("ki,ki->i", columns, columns)


def _shares(weights: Array) -> Array:
    return np.asarray(weights / weights.sum())


def _split_by_span(directions: Array, vectors: Array) -> tuple[Array, Array]:
    """Split directions into the span of the vectors (coordinates on them) and its orthogonal complement.

    Costs and variances of open neighbours and queries do not depend on noise in the complement, up to `CLOSED_TOL`.
    """
    norms = np.linalg.norm(vectors, axis=0)
    unit = vectors[:, norms > 0] / norms[norms > 0]
    if not unit.size:
        return directions[:, :0], directions
    left, values, _ = linalg.svd(unit, full_matrices=True)
    rank = int(np.count_nonzero(values > np.sqrt(CLOSED_TOL) * values[0]))  # costs and variances are squares of these
    return (
        (directions, directions[:, :0])
        if rank == len(unit)
        else (directions @ left[:, :rank], directions @ left[:, rank:])
    )


def _still_open(indices: Indices, dependence: Array, shares: Array) -> Indices:
    """Return the indices whose cost or variance depends on M, up to the tolerance of their weight."""
    tolerances = np.where(shares > MIN_TIGHT_WEIGHT * shares.max(), TIGHT_CLOSED_TOL, CLOSED_TOL)
    return np.asarray(indices[(dependence > tolerances)[indices]])


StageSolver = Callable[[RefinementStage], tuple[Array, FitnessDual, int]]
"""Returns an optimal M (r, r) of a stage, scaled to its targets, its dual weights, and the number of iterations."""


@dataclass(frozen=True, slots=True, eq=False)
class Refinement:
    """The optimal covariance with the lexicographically least sorted privacy profile.

    Source: definition 5 and Theorem 11 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of
    differentially private linear queries", PVLDB 14(10), 2021: the minimum is unique.

    Attributes
    ----------
    solution : Solution
        The refined covariance as a solution of the problem, with dual weights.
    stages : tuple of Solution
        One per stage, for its `RefinementStage` and the same covariance (in the units of `FitnessForUse`). Each
        certifies that no covariance on the face of its stage has a smaller worst cost of the open neighbours.
    """

    solution: Solution
    stages: tuple[Solution, ...]

    @property
    def covariance(self) -> Array:
        """Covariance of the noise on B x (k, k)."""
        return np.asarray(self.solution.primal)

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each pair of neighbours (s,)."""
        return profile_of(self.solution.problem, self.covariance)

    @property
    def mechanism(self) -> LinearGaussianMechanism:
        """The mechanism ``B x + N(0, Σ)``."""
        return self.solution.mechanism

    @property
    def certified(self) -> bool:
        """Whether the solution and every stage are certified to the tolerance."""
        return all(answer.status is Status.CERTIFIED for answer in (self.solution, *self.stages))

    @property
    def gap(self) -> float:
        """The largest gap of all stages."""
        return max(answer.gap for answer in (self.solution, *self.stages))


def refine(
    problem: FitnessForUse | PrivacyFirst,
    directions: Array,
    solve: StageSolver,
    *,
    tol: float,
    solver: str,
    deadline: Deadline = NO_DEADLINE,
) -> Refinement:
    """Solve one stage after the other, with the caller's solver, until no neighbour is open.

    The result is never worse than that of an earlier stage. If rounding errors of a face raise a worst cost that an
    earlier stage minimised, the stage is dropped and counts as not certified.

    - `problem`: the problem;
    - `directions` (k, r): columns that span all B u_i, scaled so that an optimal M on them is close to the
      identity;
    - `solve`: solves one stage to attainable precision, since the next stage inherits its error;
    - `tol`: largest gap of a certified stage;
    - `solver`: name for the solutions;
    - `deadline`: no stage but the first starts after it; the last stage then counts as not certified.
    """
    start, first_problem = time.perf_counter(), accuracy_first(problem)
    stage = RefinementStage(first_problem, np.zeros((len(directions), 0)), directions)
    solved: list[tuple[RefinementStage, FitnessDual, int]] = []
    best_profile = np.full(stage.moves.shape[1], np.inf)
    with np.errstate(all="ignore"):
        while not stage.finished and not (solved and deadline.passed):
            try:
                inner, dual, steps = solve(stage)
            except np.linalg.LinAlgError:
                # A stage beyond double precision stays open, and counts as not certified.
                if not solved:
                    raise
                break
            point = stage.covariance(inner)
            candidate = first_problem.feasible(point)
            profile = profile_of(first_problem, candidate)
            open_so_far = [old.neighbours for old in (stage, *(earlier for earlier, _, _ in solved))]
            if solved and not all(profile[at].max() <= (1 + tol) * best_profile[at].max() for at in open_so_far):
                break
            solved.append((stage, dual, steps))
            covariance, best_profile = candidate, profile
            try:
                stage = next_stage(stage, inner, dual, stage.certify(point, dual).gap)
            except np.linalg.LinAlgError:
                # Numerically singular noise has no square root for a next stage.
                break
    reason = Status.STEPS_EXHAUSTED if deadline.passed else Status.STALLED
    judge = partial(judged_solution, tol=tol, otherwise=reason, solver=solver)
    stages = tuple(judge(stage, covariance, dual, iterations=steps) for stage, dual, steps in solved)
    total, seconds = sum(steps for _, _, steps in solved), time.perf_counter() - start
    first = solved[0][1]
    answer = Refinement(
        judge(problem, problem.feasible(covariance), first, iterations=total, seconds=seconds),
        _certified_in_order(stages, stage.finished),
    )
    if not answer.certified:
        warnings.warn(
            f"{solver}: a stage has a gap of {answer.gap:.1e}, above the tolerance {tol:.1e}",
            UncertifiedWarning,
            stacklevel=3,
        )
    return answer


def _certified_in_order(stages: tuple[Solution, ...], finished: bool) -> tuple[Solution, ...]:
    """Mark the stages after the first uncertified one as uncertified, since their face is uncertain."""
    certified = list(itertools.takewhile(lambda stage: stage.status is Status.CERTIFIED, stages))
    uncertified = list(stages[len(certified) :])
    if not uncertified and not finished:
        certified, uncertified = certified[:-1], certified[-1:]
    message = "An earlier stage is not certified, so the face of this stage is uncertain."
    doubtful = [
        retold(stage, status=Status.STALLED, message=message) if stage.status is Status.CERTIFIED else stage
        for stage in uncertified
    ]
    return (*certified, *doubtful)


def accuracy_first(problem: FitnessForUse | PrivacyFirst) -> FitnessForUse:
    """Return the `FitnessForUse` problem whose optima are refined; raises `InputTypeError` for other classes."""
    if not isinstance(problem, FitnessForUse | PrivacyFirst):
        raise InputTypeError(f"problem must be FitnessForUse or PrivacyFirst, got {type(problem).__name__}")
    if problem.geometry.name not in ("dense", "stream"):
        raise InvalidInputError(
            f"refine supports geometry 'dense', got {problem.geometry.name!r}: pose the problem with geometry='dense' "
            f"if its matrices fit in memory (on marginals every record costs the same anyway)"
        )
    posed = problem.accuracy_first if isinstance(problem, PrivacyFirst) else problem
    return posed.on_matrix()


# Comparison in the refined privacy ordering: of two mechanisms of equal cost, the one with more remaining budget.


Profiled: TypeAlias = GaussianPrivacy | Solution | Refinement | npt.ArrayLike
"""A mechanism, a solution or refinement with a mechanism, or a privacy profile (s,)."""


def compare_privacy(a: Profiled, b: Profiled, tol: float = 1e-9) -> int:
    """Compare two mechanisms in the refined privacy ordering: -1 if a is more private, 0 if equal, 1 if less.

    The privacy profiles ``p_i = (B u_i)' Σ⁻¹ (B u_i)`` are sorted in decreasing order and compared
    lexicographically: at the first difference, the smaller entry is the more private. So the privacy cost decides,
    and if it is equal, the budget that remains for further queries (`free_budget`).
    Raises `InvalidInputError` or `InputTypeError` for profiles of different lengths, with NaN or negative entries,
    or not numbers; a negative tolerance; `InfeasibleAnswerError` for a solution without a mechanism.
    Source: definitions 4 and 5 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially
    private linear queries", PVLDB 14(10), 2021.

    Parameters
    ----------
    a, b : LinearGaussianMechanism, Solution, Refinement or (s,) array
        The mechanisms, or their profiles. Profiles of one length, over the same kind of neighbours.
    tol : float
        Entries are equal if their difference is at most this, relative to the larger one, or if both are infinite.
        Equality within a tolerance is not transitive.

    Returns
    -------
    int
        -1, 0 or 1.

    Examples
    --------
    >>> import dualmech as dm
    >>> two = dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1]], [[1, 0], [0, 1]])
    >>> dm.compare_privacy(two, [2, 2, 2]), two.privacy_cost == 2**0.5
    (-1, True)
    """
    margin = validate.nonnegative_number(tol=tol)
    first, second = np.sort(_profile("a", a))[::-1], np.sort(_profile("b", b))[::-1]
    if first.shape != second.shape:
        raise InvalidInputError(
            f"a and b must be profiles of the same length, got {len(first)} and {len(second)} pairs of neighbours"
        )
    with np.errstate(invalid="ignore"):
        differ = np.abs(first - second) > margin * np.maximum(first, second)
    differ |= np.isinf(first) != np.isinf(second)
    if not np.any(differ):
        return 0
    decisive = int(np.argmax(differ))
    return -1 if first[decisive] < second[decisive] else 1


def _profile(argument: str, profiled: Profiled) -> Array:
    if isinstance(profiled, Solution | Refinement):
        profiled = profiled.mechanism
    if isinstance(profiled, LinearGaussianMechanism | SteppedMechanism):
        return profiled.profile
    profile = validate.numeric(1, **{argument: profiled})
    if not np.all(profile >= 0):
        raise InvalidInputError(f"{argument} must be a profile of entries of at least 0, got {profile.min():g}")
    return profile
