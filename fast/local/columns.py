"""Column generation: find optimal weights on some patterns, add patterns with violated dual constraints, repeat."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy.linalg
from scipy.linalg import blas, lapack

from dualmech.fast.engine import loop
from dualmech.fast.local import points
from dualmech.fast.local.points import Change, Frame, PatternPoint, View, take_step
from dualmech.geometry import local
from dualmech.geometry.local import Sets
from dualmech.linalg import EPS
from dualmech.progress import NO_DEADLINE, Deadline
from dualmech.validate import Array

# Optimal weights on a given set of patterns: a primal-dual Newton method for local privacy.
#
# Minimise ``tr(R G⁻¹ R')`` over weights w ≥ 0 with ``Σ_S w_S p_S = 1``, where ``G = Σ_S w_S p_S p_S' / a_S`` and
# ``a_S = n π'p_S``. With ``Z = G⁻¹ R'`` and costs y, the slack of a pattern is ``s_S = y'p_S - ‖Z'p_S‖² / a_S``, and
# ``w_S s_S = τ`` decreases to zero. In the worst case, an adversary also chooses the prior π: it maximises the same
# function minus ``Σ_u n π_u ‖W_u‖²``. The dual then has a level t with slacks ``t - T_u`` for the variances T_u, and
# ``n π_u (t - T_u) = τ``.
#
# In relative changes of the weights the Hessian is ``2 (O O') ∘ (Y Y')``. The columns of O are an orthonormal basis of
# the range of ``diag(w/a)^(1/2) P``; the squared norms of the rows of Y are ``w_S ‖Z'p_S‖² / a_S``. Because no inverse
# of G is formed, weights may vanish until G is singular, which happens at the optimum of some workloads.


STEP_TO_BOUNDARY = 0.995  # maximum fraction of the distance to the boundary in one step

RIDGES = (0.0, 1e-14, 1e-12, 1e-10)
"""Regularisations of the Newton matrix, scaled to unit diagonal, that are tried until it can be factored."""

NUM_SOLVES = 3  # number of times the Newton equations are solved: once, then for the residuals
MAX_RESIDUAL_RATIO = 0.9  # a corrector step is accepted if it multiplies the distance by at most this factor

STEP_REDUCTION, MAX_REDUCTIONS, MIN_RELATIVE_DECREASE = 0.5, 20, 0.01
"""Backtracking: factor on the step length, maximum number of reductions, and the required fraction of the predicted
decrease of the distance."""

MIN_CENTRING_FACTOR = 0.1
"""Lower bound on the sum of the products, relative to the residual: with smaller products steps would become tiny."""


def follow_path(
    frame: Frame, point: PatternPoint, tol: float, max_steps: int, deadline: Deadline = NO_DEADLINE
) -> tuple[PatternPoint, View, int]:
    """Take Newton steps until the gap on these patterns is at most `tol` relative to the objective.

    Return the point, its view and the number of steps.
    """
    view = View.of(frame, point)
    for num_steps in range(max_steps):
        if deadline.passed or progress(frame, point, view) <= tol:
            return point, view, num_steps
        point, view = _newton_step(frame, point, view)
    return point, view, max_steps


def progress(frame: Frame, point: PatternPoint, view: View) -> float:
    """Return a relative bound on the gap on these patterns: complementarity products plus residuals."""
    sum_error = float(np.abs(1 - point.weights @ view.rows).sum() * np.abs(point.costs).max())
    # The increase of all costs that makes them dual feasible on these patterns, times the number of costs.
    rise = max(float((view.forms / point.weights - view.rows @ point.costs).max()), 0.0) * len(point.costs)
    return (_complementarity(frame, point) + sum_error + rise + _slack_residual(frame, point, view)) / view.objective


def _slack_residual(frame: Frame, point: PatternPoint, view: View) -> float:
    """Return the absolute errors of the slacks, weighted and summed."""
    total = np.abs(point.weights * (view.rows @ point.costs - point.slacks) - view.forms).sum()
    if frame.adversary:
        allowed_variances = frame.lengths + point.level - point.spare
        total += np.abs(view.portions.T @ view.forms - point.share * allowed_variances).sum()
    return float(total)


class MasterEquations:
    """The factored Newton equations at a point: the weights are eliminated first, then the few other unknowns."""

    def __init__(self, frame: Frame, point: PatternPoint, view: View) -> None:
        self.point, self.view, self.adversary = point, view, frame.adversary
        size, share = len(point.costs), point.share
        # If a pattern represents its mirror image too, costs and share are symmetric under reversal.
        self.basis, self.symmetric_rows = frame.basis[frame.parts[0]], frame.symmetric_rows
        count = len(self.basis)
        curvature = _curvature(view)
        self.borders = point.weights[:, None] * view.coordinates[:, :count]
        corner = np.zeros((count, count))
        if self.adversary:
            scaled_portions = view.forms[:, None] * view.portions
            weight_share_block = scaled_portions - blas.dsymm(1.0, curvature, view.portions, lower=1)
            self.borders = np.hstack(
                [self.borders, weight_share_block @ self.symmetric_rows.T, np.zeros((len(weight_share_block), 1))]
            )
            corner = np.zeros((2 * count + 1,) * 2)
            share_block = view.portions.T @ (-weight_share_block - scaled_portions)
            share_block[np.diag_indices(size)] -= share * point.spare
            corner[count:-1, count:-1] = self.symmetric_rows @ share_block @ self.symmetric_rows.T
            corner[-1, count:-1] = corner[count:-1, -1] = -self.symmetric_rows @ share
            self.variance_residual = view.portions.T @ view.forms - share * (frame.lengths + point.level)
        curvature[np.diag_indices(len(curvature))] += point.weights * point.slacks
        self.curvature, self.corner = curvature, corner
        self.factor = _factor(curvature)
        self.eliminated = _solve_factored(self.factor, self.borders)
        schur = corner - self.borders.T @ self.eliminated
        self.scale = 1 / np.sqrt(np.abs(schur).max(axis=0))
        schur = schur * self.scale * self.scale[:, None]
        # The block of the costs is negative definite: the subtraction keeps it so despite rounding.
        schur[np.diag_indices(count)] -= EPS
        factors, pivots, zero = lapack.dgetrf(schur)
        if zero:
            raise np.linalg.LinAlgError(f"the equations of the costs are singular at unknown {zero - 1}")
        self.schur = factors, pivots

    def change(self, products: Array, spare_products: Array, passes: int = NUM_SOLVES) -> Change:
        """Return the Newton step towards given products of weights and slacks.

        The linear equations are solved `passes` times, from the second time on for the residual.
        """
        point, view, size, count = self.point, self.view, len(self.point.costs), len(self.basis)
        weight_residual = products - point.weights * (view.rows @ point.costs) + view.forms
        other_residual = self.basis @ (1 - point.weights @ view.rows)
        if self.adversary:
            other_residual = np.concatenate(
                [
                    other_residual,
                    -self.symmetric_rows @ (self.variance_residual + spare_products),
                    [point.share.sum() - size],
                ]
            )
        weights, other_changes = self._solve(weight_residual, other_residual, passes)
        slacks = products / point.weights - point.slacks * (1 + weights)
        share, spare, level = np.zeros(size), np.zeros(size), 0.0
        if self.adversary:
            share, level = self.symmetric_rows.T @ other_changes[count:-1], float(other_changes[-1])
            spare = spare_products / point.share - point.spare * (1 + share)
        return Change(weights, share, slacks, self.basis.T @ other_changes[:count], spare, level)

    def _solve(self, weight_target: Array, other_target: Array, passes: int) -> tuple[Array, Array]:
        """Solve with iterative refinement: elimination amplifies rounding errors for small τ."""
        weights, other_changes = np.zeros(len(weight_target)), np.zeros(len(other_target))
        weight_residual, other_residual = weight_target, other_target
        for count in range(passes):
            if count:
                weight_residual = (
                    weight_target - blas.dsymv(1.0, self.curvature, weights, lower=1) - self.borders @ other_changes
                )
                other_residual = other_target - self.borders.T @ weights - self.corner @ other_changes
            right_side = self.scale * (other_residual - self.eliminated.T @ weight_residual)
            correction = self.scale * scipy.linalg.lu_solve(self.schur, right_side, check_finite=False)
            weights += _solve_factored(self.factor, weight_residual) - self.eliminated @ correction
            other_changes += correction
        return weights, other_changes


class MomentEquations(MasterEquations):
    """The same equations without an adversary, eliminated to pairs of moments, which are fewer than the patterns.

    The Hessian is ``U U' + D`` with ``D = diag(w ∘ s)``. Let Q be the orthonormal basis of the range of O for which
    ``Y = Q F`` has ``F F' = diag(k)``. Then ``2 (O O') ∘ (Y Y')`` is the sum over pairs a ≤ b of
    ``2 (k_a + k_b) (q_a ∘ q_b)(q_a ∘ q_b)'``, with k_a in place of ``2 k_a`` if a = b: U has one column for each pair.
    With the borders B, C = [U, B] and a right-hand side r, ``δ = D⁻¹ (r - C x)``, where x solves a positive definite
    system with few unknowns.
    """

    def __init__(self, frame: Frame, point: PatternPoint, view: View) -> None:
        self.point, self.view, self.adversary = point, view, False
        self.basis, self.symmetric_rows = frame.basis[frame.parts[0]], frame.symmetric_rows
        borders = point.weights[:, None] * view.coordinates[:, : len(self.basis)]
        pairs = np.hstack([_pair_products(*part) for part in zip(view.orthonormal, view.scaled, strict=True)])
        self.pairs, self.columns = pairs.shape[1], np.hstack([pairs, borders])
        self.diagonal = point.weights * point.slacks
        system = blas.dsyrk(1.0, self.columns / np.sqrt(self.diagonal)[:, None], trans=1, lower=1)
        first_unknowns = np.arange(self.pairs)
        system[first_unknowns, first_unknowns] += 1
        self.factor = _factor(system)

    def _solve(self, weight_target: Array, other_target: Array, passes: int) -> tuple[Array, Array]:
        weights, other_changes = np.zeros(len(weight_target)), np.zeros(len(other_target))
        pairs, borders = self.columns[:, : self.pairs], self.columns[:, self.pairs :]
        weight_residual, other_residual = weight_target, other_target
        for count in range(passes):
            if count:
                weight_residual = (
                    weight_target - pairs @ (pairs.T @ weights) - self.diagonal * weights - borders @ other_changes
                )
                other_residual = other_target - borders.T @ weights
            right = self.columns.T @ (weight_residual / self.diagonal)
            right[self.pairs :] -= other_residual
            unknowns = _solve_factored(self.factor, right)
            weights += (weight_residual - self.columns @ unknowns) / self.diagonal
            other_changes += unknowns[self.pairs :]
        return weights, other_changes


MOMENT_EQUATIONS_RATIO = 1.25  # patterns per pair of moments that make `MomentEquations` cheaper


def _equations(frame: Frame, point: PatternPoint, view: View) -> MasterEquations:
    pairs = sum(part.shape[1] * (part.shape[1] + 1) // 2 for part in view.orthonormal)
    eliminate_weights = frame.adversary or len(point.weights) < MOMENT_EQUATIONS_RATIO * pairs
    return (MasterEquations if eliminate_weights else MomentEquations)(frame, point, view)


def _pair_products(orthonormal: Array, scaled: Array) -> Array:
    """Return the columns of U for one part of the coordinates, shape (s, r (r + 1) / 2); see `MomentEquations`."""
    factor = orthonormal.T @ scaled
    values, vectors = np.linalg.eigh(factor @ factor.T)
    values, basis = np.maximum(values, 0.0), orthonormal @ vectors
    first, second = np.triu_indices(len(values))
    sizes = np.where(first == second, values[first], values[first] + values[second])
    return np.asarray(basis[:, first] * (basis[:, second] * np.sqrt(2 * sizes)))


def _curvature(view: View) -> Array:
    total: Array | None = None
    for basis, scaled in zip(view.orthonormal, view.scaled, strict=True):
        curvature = blas.dsyrk(2.0, basis, lower=1)
        curvature *= blas.dsyrk(1.0, scaled, lower=1)
        total = curvature if total is None else np.add(total, curvature, out=total)
    assert total is not None
    return total


def _newton_step(frame: Frame, point: PatternPoint, view: View) -> tuple[PatternPoint, View]:
    """Take a predictor-corrector step.

    The predictor for τ = 0 determines the τ of the corrector, which uses separate primal and dual step lengths. If it
    does not decrease the distance from the solution for that τ enough, a step without the second-order correction is
    taken, with one backtracked length for both sides.
    """
    equations = _equations(frame, point, view)
    count, users = len(point.weights), len(point.share)
    predictor = equations.change(np.zeros(count), np.zeros(users), passes=1)
    primal, dual = _step_limits(point, predictor)
    total_products, predicted_products = (
        _complementarity(frame, point),
        _complementarity(frame, take_step(point, predictor, primal, dual)),
    )
    target_sum = max(
        (predicted_products / total_products) ** 3 * total_products,
        MIN_CENTRING_FACTOR * _slack_residual(frame, point, view),
    )
    target = target_sum / (count + users * frame.adversary)
    second_order = primal * dual * point.weights * predictor.weights * predictor.slacks
    second_order_spare = primal * dual * point.share * predictor.share * predictor.spare
    change = equations.change(target - second_order, target - second_order_spare)
    next_point = take_step(point, change, *(STEP_TO_BOUNDARY * length for length in _step_limits(point, change)))
    next_view, start_distance = View.of(frame, next_point), distance(frame, point, point, view, target)
    if distance(frame, point, next_point, next_view, target) <= MAX_RESIDUAL_RATIO * start_distance:
        return next_point, next_view
    change = equations.change(np.full(count, target), np.full(users, target))
    length = STEP_TO_BOUNDARY * min(_step_limits(point, change))
    for _ in range(MAX_REDUCTIONS):
        next_point = take_step(point, change, length, length)
        next_view = View.of(frame, next_point)
        if (
            distance(frame, point, next_point, next_view, target)
            <= (1 - MIN_RELATIVE_DECREASE * length) * start_distance
        ):
            break
        length *= STEP_REDUCTION
    return next_point, next_view


def _complementarity(frame: Frame, point: PatternPoint) -> float:
    return float(point.weights @ point.slacks + frame.adversary * point.share @ point.spare)


def distance(frame: Frame, base: PatternPoint, point: PatternPoint, view: View, target: float) -> float:
    """Return the norm of the residuals of the optimality equations for τ = `target`, in units of the base."""
    slopes = view.rows @ point.costs - view.forms / point.weights
    residuals = [
        base.weights * (slopes - point.slacks),
        (1 - point.weights @ view.rows) * base.costs,
        point.weights * point.slacks - target,
    ]
    if frame.adversary:
        variances = view.portions.T @ view.forms / point.share - frame.lengths
        residuals += [
            base.share * (point.level - point.spare - variances),
            point.share * point.spare - target,
            np.array([(len(point.share) - point.share.sum()) * base.level]),
        ]
    return float(np.linalg.norm(np.concatenate(residuals)))


def _step_limits(point: PatternPoint, change: Change) -> tuple[float, float]:
    """Return the maximum primal and dual step lengths, at most 1, that keep all variables non-negative."""
    primal = min(_to_zero(1.0, change.weights), _to_zero(1.0, change.share))
    return primal, min(_to_zero(point.slacks, change.slacks), _to_zero(point.spare, change.spare))


def _to_zero(values: Array | float, changes: Array) -> float:
    with np.errstate(divide="ignore"):
        step_lengths = np.where(changes < 0, -values / changes, np.inf)
    return min(float(step_lengths.min()), 1.0)


def _factor(matrix: Array) -> tuple[Array, Array]:
    """Scale a positive definite matrix to unit diagonal and factor it; return the Cholesky factor and the scale.

    If rounding makes it indefinite, a ridge is added, for which iterative refinement compensates.
    """
    scale = 1 / np.sqrt(np.diagonal(matrix))
    scaled = matrix * scale
    scaled *= scale[:, None]
    if not np.isfinite(scaled.sum()):
        raise np.linalg.LinAlgError("the Newton matrix is no longer finite")
    for ridge in RIDGES:
        scaled[np.diag_indices(len(scaled))] = 1 + ridge
        with contextlib.suppress(np.linalg.LinAlgError):
            return scipy.linalg.cholesky(scaled, lower=True, check_finite=False), scale
    raise np.linalg.LinAlgError("the Newton matrix is indefinite")


def _solve_factored(factor: tuple[Array, Array], right: Array) -> Array:
    lower, scale = factor
    column = scale if right.ndim == 1 else scale[:, None]
    return np.asarray(column * scipy.linalg.cho_solve((lower, True), column * right, check_finite=False))


@dataclass(frozen=True, slots=True)
class Pace:
    """Amount of work between two pricings of all patterns."""

    added: int  # maximum number of patterns added at a time, per user type
    gap_factor: float  # more are added if the gap on the current patterns is this fraction of the gap over all patterns

    @classmethod
    def of(cls, size: int) -> Pace:
        # Pricing many patterns takes seconds, a Newton step a fraction of that.
        return cls(3, 0.2) if size <= MAX_DOUBLE_PRECISION_USER_TYPES else cls(10, 0.005)


MAX_DOUBLE_PRECISION_USER_TYPES = 24  # with more, patterns are priced in single precision

SINGLE_ERROR = 2e-8  # of a quadratic form, relative to the sum of the magnitudes of its terms

MAX_NEWTON_STEPS = 40  # on one set of patterns

MIN_WEIGHT_SLACK_RATIO, MAX_PATTERNS_PER_USER_TYPE = 0.1, 20
"""If there are more patterns than this per user type and the gap has just decreased, patterns are dropped whose ratio
of weight to slack is below the minimum and whose slack is at least the median."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The state of column generation: a point on some patterns, its objective and bound, and patterns to add.

    `objective` and `lower_bound` are in the units of the frame. In the worst case they are n times the variance plus
    the sum of the squared norms of the workload's columns, so that they cannot vanish.
    """

    point: PatternPoint
    view: View
    objective: float
    lower_bound: float
    violated_sets: Sets
    steps: int
    least_gap: float = np.inf

    @property
    def new_sets(self) -> Sets:
        """The violated patterns that the point does not contain."""
        present = {pattern.tobytes() for pattern in self.point.sets}
        return self.violated_sets[[pattern.tobytes() not in present for pattern in self.violated_sets]]

    @property
    def gap(self) -> float:
        """Difference of objective and lower bound, relative to the lower bound."""
        return (self.objective - self.lower_bound) / self.lower_bound if self.lower_bound > 0 else np.inf


def generate(frame: Frame, limits: loop.Limits, begin: Columns | None = None) -> loop.Outcome[Columns]:
    """Generate patterns until the gap is reached, from a given state or from all circular intervals of user types."""
    if begin is None:
        start_point = points.start(frame, intervals(len(frame.share)))
        begin = _solve_and_price(frame, start_point, Pace.of(len(frame.share)).gap_factor, 0, limits.deadline)
    return loop.run(begin, partial(_step, frame, limits.tol, limits.deadline), limits, margin=1.0)


def price_all(frame: Frame, search_state: Columns, deadline: Deadline) -> Columns:
    """Return the final state of a search with a valid bound, from all patterns, in place of a heuristic one."""
    tol = Pace.of(len(frame.share)).gap_factor * search_state.least_gap
    return _solve_and_price(frame, search_state.point, tol, search_state.steps, deadline)


def intervals(size: int) -> Sets:
    """Return all intervals on a circle of user types. With equal weights for each length they are a strategy."""
    places = (np.arange(size)[:, None] - np.arange(size)) % size
    return np.vstack([places < length for length in range(1, size)])


def price_patterns(frame: Frame, point: PatternPoint, view: View, count: int) -> tuple[float, Sets]:
    """Return the increase of all costs that makes them dual feasible, and the sets of the most violated constraints.

    For many user types, quadratic forms are evaluated in single precision, and in double precision for the worst sets.
    The judge does not rely on this: it prices all patterns itself.
    """
    size, single = len(point.costs), len(point.costs) > MAX_DOUBLE_PRECISION_USER_TYPES
    mixed = np.outer(point.costs, point.share)
    form = view.matrix @ view.matrix.T - (mixed + mixed.T) / 2
    min_value = -SINGLE_ERROR * (1 + local.gain(frame.epsilon)) ** 2 * float(np.abs(form).sum()) if single else 0.0
    max_sets = count * len(frame.parts)  # a set and its mirror image, if one represents both
    sets, scores, rise = [np.zeros((0, size), dtype=bool)], [np.zeros(0)], 0.0
    for block in local.forms(form, frame.epsilon, frame.mirrored, single):
        if not block.values.max() > min_value:
            continue
        candidates = np.flatnonzero(block.values.ravel() > min_value)
        sizes, share_sums = (block.sums(candidates, weights) for weights in (np.ones(size), point.share))
        block_scores, block_rise = _scores(frame, point, block.values.ravel()[candidates], sizes, share_sums)
        worst = np.argpartition(block_scores, -min(max_sets, len(candidates)))[-max_sets:]
        sets.append(block.sets(candidates[worst]))
        scores.append(block_scores[worst])
        rise = max(rise, block_rise)
    worst_sets, worst_scores = np.vstack(sets), np.concatenate(scores)
    if single:
        vectors = 1 + local.gain(frame.epsilon) * worst_sets
        values = np.einsum("su,su->s", vectors @ form, vectors)
        worst_scores, rise = _scores(frame, point, values, worst_sets.sum(axis=1), worst_sets @ point.share)
    order = np.argsort(-worst_scores, kind="stable")[:max_sets]
    return rise, distinct(frame, worst_sets[order[worst_scores[order] > 0]])[:count]


def _scores(frame: Frame, point: PatternPoint, values: Array, sizes: Array, share_sums: Array) -> tuple[Array, float]:
    """Return the violation of each pattern's constraint, and the increase of all costs with which the judge meets them.

    `values` are ``v_S' K v_S``, `sizes` the numbers of user types in the sets, `share_sums` their sums of ``n π``.
    For a prior that is not uniform, the judge takes the least increase that is compatible with the costs.
    """
    size, excess = len(point.share), local.gain(frame.epsilon)
    mass = size + excess * share_sums
    scores = values / ((size + excess * sizes) * mass)
    scores[(sizes == 0) | (sizes == size)] = -np.inf
    is_uniform = np.allclose(point.share, 1, rtol=1e-12, atol=0)
    return scores, max(float((scores if is_uniform else scores * (mass / size)).max(initial=0.0)), 0.0)


def distinct(frame: Frame, sets: Sets) -> Sets:
    """Return the distinct representatives of the sets, in the order of first occurrence."""
    representatives = frame.representatives(sets)
    return representatives[np.sort(np.unique(representatives, axis=0, return_index=True)[1])] if len(sets) else sets


def _solve_and_price(frame: Frame, point: PatternPoint, tol: float, steps: int, deadline: Deadline) -> Columns:
    """Solve on the patterns of a point, and price all patterns; after the deadline, the bound is 0."""
    point, view, count = follow_path(frame, point, tol, MAX_NEWTON_STEPS, deadline)
    rise, new_sets = np.inf, point.sets[:0]
    if not deadline.passed:
        rise, new_sets = price_patterns(frame, point, view, Pace.of(len(frame.share)).added * len(frame.share))
    objective, bound = objective_and_bound(frame, point, view, rise)
    return Columns(point, view, objective, bound, new_sets, steps + count)


def objective_and_bound(frame: Frame, point: PatternPoint, view: View, rise: float) -> tuple[float, float]:
    """Return the objective of a point, and the bound from its dual weights with all costs increased by `rise`."""
    size = len(frame.share)
    bound = view.objective**2 / (float(point.costs.sum()) + size * rise)
    objective = view.objective
    if frame.adversary:
        variances = view.portions.T @ view.forms / point.share - frame.lengths
        objective = size * float(variances.max()) + float(frame.lengths.sum())
        bound += float((1 - point.share) @ frame.lengths)
    # If columns do not sum to 1 yet, another output completes them and takes a share of all reports.
    sums = point.weights @ view.rows
    sum_deficit = 1 - float(sums.min() / sums.max())
    return objective * float(sums.max()) * (1 + sum_deficit / local.gain(frame.epsilon)), bound


def _step(frame: Frame, tol: float, deadline: Deadline, columns: Columns) -> Columns:
    """Drop superfluous patterns, add the violated ones and solve again; if none is new, solve to a smaller gap."""
    point, new_sets = columns.point, columns.new_sets
    keep = np.ones(len(point.sets), dtype=bool)
    if len(keep) > MAX_PATTERNS_PER_USER_TYPE * len(frame.share) and columns.gap < columns.least_gap:
        keep = (point.weights > MIN_WEIGHT_SLACK_RATIO * point.slacks) | (point.slacks < np.median(point.slacks))
        keep |= point.sets.sum(axis=1) == 1  # single user types guarantee that G is non-singular
    gap_factor = Pace.of(len(frame.share)).gap_factor
    aim = gap_factor * min(columns.gap, 1.0)
    if not len(new_sets):
        aim = gap_factor * min(aim, progress(frame, point, columns.view))
    product = aim * columns.view.objective / len(point.sets)
    point = points.replace_patterns(frame, point, keep, new_sets, product)
    aim = max(aim, gap_factor * tol) if len(new_sets) else aim
    state = _solve_and_price(frame, point, aim, columns.steps, deadline)
    return replace(state, least_gap=min(columns.gap, columns.least_gap))
