"""The minimum of the refined privacy ordering: one answer, its profile, and a certificate for every stage."""

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

# The refined privacy ordering, stage by stage: what the optima of a stage share, and the directions that stay open.
#
# All optimal covariances of fitness for use share a part. At optimal weights let ``P = Σ_i λ_i b_i b_i'`` over the
# moves b_i = B u_i, and ``Q = Σ_j μ_j v_j' v_j``. Stationarity, ``Σ⁻¹ P Σ⁻¹ ∝ Q``, fixes Σ⁻¹ on the range of P: in
# coordinates in which one optimum is the identity, P and Q are proportional, and every optimum is the identity on
# their range, a free block M on its complement, and zero between the two. So the optima form a *face*
#
#     ``Σ = S S' + O M O'``,   M ≻ 0,
#
# and the next entries of the sorted profile come from the same problem, smaller, with what S already costs and
# already adds in variance. Each stage settles at least one direction; the last leaves none, which is why the
# minimum of the ordering is unique. The refined mechanism is a sequence of independent releases, one per stage.


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
    fixed : (k, q) array
        S: independent unit noise in these directions is common to all optima of the earlier stages.
    open : (k, r) array
        O: the directions whose noise is still free.
    neighbours, queries : index arrays, optional
        The neighbours and queries that are open, that is, whose cost or variance depends on M; by default all that
        can be.
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
    # (m, q + r) what the coefficients of each query are added up from, in absolute value
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
        """Whether no neighbour's cost depends on M any more."""
        return not (self.open.shape[1] and len(self.neighbours))

    @property
    def slack(self) -> Array:
        """What the fixed noise leaves of the targets, ``c_j - a_j`` (m,)."""
        return self.problem.targets - self.variances

    @property
    def slack_rounding(self) -> Array:
        """Allowance for the rounding of `slack` (m,), absolute: the difference may be all rounding."""
        fixed = self.magnitudes[:, : self.fixed.shape[1]]
        size = np.einsum("jk,jk->j", fixed, fixed) + self.problem.targets
        return 4 * (len(self.fixed) + 2) * linalg.EPS * size

    def covariance(self, inner: Array | None = None) -> Array:
        """Return ``S S' + O M O'`` (k, k); by default with M = I, the optimum of the stage before."""
        size = self.open.shape[1]
        matrix = np.eye(size) if inner is None else validate.finite(2, inner=inner)
        if matrix.shape != (size, size):
            raise InvalidInputError(f"inner must have shape ({size}, {size}), got {matrix.shape}")
        free = self.open @ matrix @ self.open.T
        product = self.fixed @ self.fixed.T + free
        return np.asarray((product + product.T) / 2)

    def certify(self, primal: npt.ArrayLike, dual: FitnessDual | tuple[npt.ArrayLike, npt.ArrayLike]) -> Certificate:
        """Judge a covariance on B x (k, k), which must lie on the face, and weights (s,) and (m,).

        What is evaluated is the nearest point of the face. How far the covariance is from it, relative to its
        own standard deviations, counts as violation. By how much M may have to shrink to keep to what fixed noise
        leaves of the targets, which may be next to nothing, counts as rounding. Weights on closed neighbours and
        queries are left out.
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
        """Return the mechanism that adds noise of this covariance to B x."""
        return self.problem.mechanism(primal)

    def prices(self, dual: FitnessDual) -> Array:
        """Return each query's share of the bill of this stage (m,): ``μ_j (c_j - a_j)``, normalised."""
        weights: Array = self.problem.geometry.weights(dual)[1]
        return shares(weights * np.maximum(self.slack, 0.0))

    def binding(self, primal: npt.ArrayLike, slack: float) -> Indices:
        """Return the open neighbours whose cost is within `slack`, relative, of the largest among them."""
        within = 1 - validate.nonnegative_number(slack=slack)
        profile = profile_of(self.problem, primal)[self.neighbours]
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
        reach = np.linalg.norm(np.sqrt(last)[:, None] * self.magnitudes[self.queries, self.fixed.shape[1] :])
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
        count, units = self.fixed.shape[1], np.sqrt(np.abs(np.diagonal(covariance)))
        if not count or not np.all(np.isfinite(covariance)):
            return covariance, 0.0, 0.0
        frame = _Frame(np.hstack([self.fixed, self.open]))
        coordinates = frame.coordinates(frame.coordinates((covariance + covariance.T) / 2).T)
        inner = coordinates[count:, count:]
        face = self.covariance(inner)
        apart = relative(np.abs(face - covariance), units * units[:, None])
        return face, float(apart.max()), self._excess(inner)

    def _excess(self, inner: Array) -> float:
        """Return a t for which ``M / (1 + t)`` keeps to what fixed noise leaves of the targets for certain."""
        rows, sizes = self.rows[self.queries], self.magnitudes[self.queries, self.fixed.shape[1] :]
        size = np.einsum("jk,jk->j", sizes @ np.abs(inner), sizes)
        reach = np.einsum("jk,jk->j", rows @ inner, rows) + 4 * (len(self.fixed) + 2) * linalg.EPS * size
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
        self.orthonormal, self.triangle = scipy.linalg.qr(scaled / self.norms.T, mode="economic", check_finite=False)

    def coordinates(self, vectors: Array) -> Array:
        inside = self.orthonormal.T @ (vectors / self.units)
        solved = scipy.linalg.solve_triangular(self.triangle, inside, check_finite=False)
        return np.asarray(solved / self.norms)

    def condition(self) -> float:
        values = linalg.singular_values(self.triangle)
        return float(values[0] / values[-1])


def _directions(rank: int, **named: npt.ArrayLike) -> Array:
    """Return finite directions (rank, n), of which there may be none."""
    ((name, value),) = named.items()
    if getattr(value, "shape", None) == (rank, 0):
        return np.zeros((rank, 0))
    matrix = validate.finite(2, **named)
    validate.moderate(**named)
    if len(matrix) != rank:
        raise InvalidInputError(f"{name} must have {rank} rows, one per row of the basis, got shape {matrix.shape}")
    return matrix


def relative(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


# What all optima of a stage have in common: the face on which the next stage of the refined ordering stands.
#
# Not part of any judge: a stage is judged on the face that it names, wherever that came from.


FIXED, PER_ROOT_OF_GAP = 1e-5, 30.0
"""Least eigenvalue of P, relative to the largest, that counts as range: 1e-5, or so many roots of the gap.

Where complementarity is not strict, an eigenvalue that vanishes at the optimum is still of the order of the root
of the gap. A direction left open by mistake is fixed by the next stage; one fixed by mistake is lost."""

MOST_LEFT = 0.5
"""The largest eigenvalues are always range, however badly a stage was solved: every stage settles something."""

SUPPORTED = 1e-4
"""Least weight, relative to the largest, that proves a neighbour (or query) tight in every optimum."""

CLOSED, SUPPORTED_CLOSED = 1e-12, 1e-6
"""A neighbour whose cost owes at most this share to M is closed; where its weight proves it tight, the second.

A query likewise, and then only where its target is spent up to the second share."""


def profile_of(problem: FitnessForUse | PrivacyFirst, covariance: npt.ArrayLike) -> Array:
    """Return the squared privacy cost of each pair of neighbours (s,), infinity for no covariance."""
    geometry = problem.geometry
    forms = geometry.forms(geometry.point(covariance))
    return np.full(geometry.moves.shape[1], np.inf) if forms is None else np.asarray(forms.profile)


def next_stage(stage: RefinementStage, inner: Array, dual: FitnessDual, gap: float) -> RefinementStage:
    """Return the next stage, from an optimal M (r, r) and weights that prove it to the relative `gap`.

    In coordinates in which M is the identity, P and Q are proportional up to the gap. Their common range is
    fixed; neighbours and queries that no open direction reaches any more are closed.
    """
    factor = np.linalg.cholesky((inner + inner.T) / 2)
    moves = scipy.linalg.solve_triangular(factor, stage.moves, lower=True, check_finite=False)
    rows = stage.rows @ factor
    values, vectors = np.linalg.eigh(_common(moves, rows, dual))
    fixed = values > min(max(FIXED, PER_ROOT_OF_GAP * np.sqrt(max(gap, 0.0))), MOST_LEFT) * values[-1]
    shares, left = _shares(dual.neighbour_weights), vectors[:, ~fixed]
    reach, costs = _norms(left.T @ moves), stage.costs + _norms(moves)
    if shares @ (costs - stage.costs) <= SUPPORTED_CLOSED * costs[stage.neighbours].max():
        # The worst neighbours cost what they cost, whatever M is: they close, and no direction is fixed.
        left, reach = vectors, np.where(shares > SUPPORTED * shares.max(), 0.0, _norms(moves))
    neighbours = _still_open(stage.neighbours, relative(reach, costs), shares)
    reach, full = _norms((rows @ left).T), stage.variances + _norms(rows.T)
    loose = full - reach < (1 - SUPPORTED_CLOSED) * stage.problem.targets
    shares = _shares(dual.query_weights * stage.problem.targets)
    queries = _still_open(stage.queries, np.where(loose, 1.0, relative(reach, full)), shares)
    done = vectors[:, left.shape[1] :]
    for seen in (moves[:, neighbours], rows[queries].T):
        left, unseen = _split_by_reach(left, left.T @ seen)
        done = np.hstack([done, unseen])
    return RefinementStage(
        stage.problem,
        np.hstack([stage.fixed, stage.open @ (factor @ done)]),
        stage.open @ (factor @ left),
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


def _split_by_reach(directions: Array, vectors: Array) -> tuple[Array, Array]:
    """Split directions into those that some of the vectors (coordinates on them) reach, and the others.

    Nothing open is moved in the others, up to what was closed as rounding: their noise stays as it is.
    """
    norms = np.linalg.norm(vectors, axis=0)
    unit = vectors[:, norms > 0] / norms[norms > 0]
    if not unit.size:
        return directions[:, :0], directions
    left, values, _ = linalg.svd(unit, full_matrices=True)
    rank = int(np.count_nonzero(values > np.sqrt(CLOSED) * values[0]))  # costs and variances are squares of these
    return (
        (directions, directions[:, :0])
        if rank == len(unit)
        else (directions @ left[:, :rank], directions @ left[:, rank:])
    )


def _still_open(indices: Indices, reach: Array, shares: Array) -> Indices:
    """Return the indices that M still reaches; where a weight proves one tight, rounding may reach further."""
    least = np.where(shares > SUPPORTED * shares.max(), SUPPORTED_CLOSED, CLOSED)
    return np.asarray(indices[(reach > least)[indices]])


StageSolver = Callable[[RefinementStage], tuple[Array, FitnessDual, int]]
"""Returns an optimal M (r, r) of a stage, scaled to its targets, weights that prove it, and the steps it took."""


@dataclass(frozen=True, slots=True, eq=False)
class Refinement:
    """The one optimal covariance whose sorted privacy profile is least, lexicographically.

    Source: definition 5 and Theorem 11 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of
    differentially private linear queries", PVLDB 14(10), 2021: the minimum is unique.

    Attributes
    ----------
    solution : Solution
        Of the problem itself: the refined covariance, and the weights that prove its cost.
    stages : tuple of Solution
        One per stage, over its `RefinementStage` and the same covariance (in the units of `FitnessForUse`): each
        certifies that, on the face that the earlier stages leave, no covariance has a smaller worst cost of the
        neighbours that were still open.
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
        """The mechanism to release with."""
        return self.solution.mechanism

    @property
    def certified(self) -> bool:
        """Whether every stage, and the answer as a whole, is proven to the tolerance."""
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
    """Solve stage after stage until nothing is open; the caller supplies the solver.

    The refinement never returns less than an earlier stage. If rounding has spoilt the face of a stage, its covariance
    can raise a worst cost that was minimised before. It is then left out, and counts as unproven.

    - `problem`: the problem;
    - `directions` (k, r): columns that span all B u_i, chosen so that an optimal M on them is not far from the
      identity;
    - `solve`: solves one stage as accurately as it can: errors of a stage are inherited by the next;
    - `tol`: gap to prove in every stage;
    - `solver`: name for the solutions;
    - `deadline`: after which no stage is begun but the first; open directions then stay open, and count as unproven.
    """
    began, whole = time.perf_counter(), accuracy_first(problem)
    stage = RefinementStage(whole, np.zeros((len(directions), 0)), directions)
    solved: list[tuple[RefinementStage, FitnessDual, int]] = []
    best_profile = np.full(stage.moves.shape[1], np.inf)
    with np.errstate(all="ignore"):
        while not stage.finished and not (solved and deadline.passed):
            try:
                inner, dual, steps = solve(stage)
            except np.linalg.LinAlgError:
                # A stage that doubles do not hold stays open, and counts as unproven.
                if not solved:
                    raise
                break
            point = stage.covariance(inner)
            candidate = whole.feasible(point)
            profile = profile_of(whole, candidate)
            open_so_far = [old.neighbours for old in (stage, *(earlier for earlier, _, _ in solved))]
            if solved and not all(profile[at].max() <= (1 + tol) * best_profile[at].max() for at in open_so_far):
                break
            solved.append((stage, dual, steps))
            covariance, best_profile = candidate, profile
            try:
                stage = next_stage(stage, inner, dual, stage.certify(point, dual).gap)
            except np.linalg.LinAlgError:
                # Numerically singular noise has no square root to go on with; the judge says what that is worth.
                break
    reason = Status.STEPS_EXHAUSTED if deadline.passed else Status.STALLED
    judge = partial(judged_solution, tol=tol, otherwise=reason, solver=solver)
    stages = tuple(judge(stage, covariance, dual, iterations=steps) for stage, dual, steps in solved)
    total, seconds = sum(steps for _, _, steps in solved), time.perf_counter() - began
    first = solved[0][1]
    answer = Refinement(
        judge(problem, problem.feasible(covariance), first, iterations=total, seconds=seconds),
        _proven_in_order(stages, stage.finished),
    )
    if not answer.certified:
        warnings.warn(
            f"{solver}: a stage is proven to {answer.gap:.1e} where {tol:.1e} was asked",
            UncertifiedWarning,
            stacklevel=3,
        )
    return answer


def _proven_in_order(stages: tuple[Solution, ...], finished: bool) -> tuple[Solution, ...]:
    """Return the stages, those after the first unproven one marked unproven too: their face is uncertain."""
    proven = list(itertools.takewhile(lambda stage: stage.status is Status.CERTIFIED, stages))
    rest = list(stages[len(proven) :])
    if not rest and not finished:
        proven, rest = proven[:-1], proven[-1:]
    message = "An earlier stage is not proven, so the face of this one is in doubt."
    doubtful = [
        retold(stage, status=Status.STALLED, message=message) if stage.status is Status.CERTIFIED else stage
        for stage in rest
    ]
    return (*proven, *doubtful)


def accuracy_first(problem: FitnessForUse | PrivacyFirst) -> FitnessForUse:
    """Return the problem whose optima are refined; `InputTypeError` for anything else."""
    if not isinstance(problem, FitnessForUse | PrivacyFirst):
        raise InputTypeError(f"problem must be FitnessForUse or PrivacyFirst, got {type(problem).__name__}")
    if problem.geometry.name not in ("dense", "stream"):
        raise InvalidInputError(
            f"refine takes geometry 'dense', got {problem.geometry.name!r}: stages are found on a matrix; state the "
            f"problem with geometry='dense' where there can be one (on marginals every record costs the same anyway)"
        )
    posed = problem.accuracy_first if isinstance(problem, PrivacyFirst) else problem
    return posed.on_matrix()


# The refined privacy ordering: which of two mechanisms of equal privacy cost leaves more privacy budget.


Profiled: TypeAlias = GaussianPrivacy | Solution | Refinement | npt.ArrayLike
"""A mechanism, a solution or refinement that has one, or a privacy profile itself (s,)."""


def compare_privacy(a: Profiled, b: Profiled, tol: float = 1e-9) -> int:
    """Compare two mechanisms in the refined privacy ordering: -1 if a is more private, 0 if equal, 1 if less.

    The privacy profiles ``p_i = (B u_i)' Σ⁻¹ (B u_i)`` are sorted in decreasing order and compared like words in
    a dictionary: the first entries that differ decide, the smaller is the more private. So the privacy cost
    decides, and where it is equal, what remains of it for further queries (`free_budget`).
    Raises `InvalidInputError` or `InputTypeError` for profiles of different lengths, with NaN or negative entries,
    or not numbers; a negative tolerance; `InfeasibleAnswerError` for a solution without a mechanism.
    Source: definitions 4 and 5 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially
    private linear queries", PVLDB 14(10), 2021.

    Parameters
    ----------
    a, b : LinearGaussianMechanism, Solution, Refinement or (s,) array
        The mechanisms, or their profiles. Profiles of one length, over the same kind of neighbours.
    tol : float
        Entries differ if they do by more than this, relative to the larger of the two; infinite ones are
        equal. Equality within a tolerance is not transitive: many small steps can add up to a difference.

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
        apart = np.abs(first - second) > margin * np.maximum(first, second)
    apart |= np.isinf(first) != np.isinf(second)
    if not np.any(apart):
        return 0
    decisive = int(np.argmax(apart))
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
