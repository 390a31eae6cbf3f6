"""Column generation over patterns: solve on some, find those that the costs price too low, add them, and repeat."""

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

# The best weights on a given set of patterns: a primal-dual Newton method for local privacy.
#
# Minimise ``tr(R G⁻¹ R')`` over weights w ≥ 0 with ``Σ_S w_S p_S = 1``, where ``G = Σ_S w_S p_S p_S' / a_S`` and
# ``a_S = n π'p_S``. With ``Z = G⁻¹ R'`` and costs y, the slack of a pattern is ``s_S = y'p_S - ‖Z'p_S‖² / a_S``, and
# ``w_S s_S = τ`` falls to zero. In the worst case an adversary chooses the prior as well: it maximises the same
# function less ``Σ_u n π_u ‖W_u‖²``, with a level t above every user's variance T_u, slacks ``t - T_u`` and the same
# τ.
#
# In relative changes of the weights the Hessian is ``2 (O O') ∘ (Y Y')``, where O is an orthonormal basis of the
# range of ``diag(w/a)^(1/2) P`` and the squared lengths of the rows of Y are ``w_S ‖Z'p_S‖² / a_S``. No inverse of G
# is formed, and weights may vanish until G is singular, as it is at the optimum of some workloads.


NEARLY = 0.995  # share of the way to the boundary that a step goes at most

RIDGES = (0.0, 1e-14, 1e-12, 1e-10)
"""Amounts added to the unit diagonal of the Newton matrix until it can be factored."""

REFINEMENTS = 3  # how often the linear equations are solved for their residual
SUFFICIENT_DECREASE = 0.9  # a corrected step counts if the distance from its aim falls below this share

RETREAT, MOST_RETREATS, SUFFICIENT = 0.5, 20, 0.01
"""A damped step is shortened so much, at most so often, until the distance falls by this share of the promised fall."""

LEAST_CENTRING = 0.1
"""τ never falls below this share of the equations' residual: if τ shrank faster, the steps would stop."""


def follow_path(
    frame: Frame, point: PatternPoint, tol: float, most: int, deadline: Deadline = NO_DEADLINE
) -> tuple[PatternPoint, View, int]:
    """Step until the remaining gap is `tol` relative to the objective; return point, view and steps."""
    view = View.of(frame, point)
    for count in range(most):
        if deadline.passed or progress(frame, point, view) <= tol:
            return point, view, count
        point, view = _master_step(frame, point, view)
    return point, view, most


def progress(frame: Frame, point: PatternPoint, view: View) -> float:
    """Return the remaining gap on these patterns: products and residuals, relative to the objective."""
    missing = float(np.abs(1 - point.weights @ view.rows).sum() * np.abs(point.costs).max())
    # All costs have to rise by so much, whatever the weight of the pattern that requires it.
    rise = max(float((view.forms / point.weights - view.rows @ point.costs).max()), 0.0) * len(point.costs)
    return (_products(frame, point) + missing + rise + _residual(frame, point, view)) / view.objective


def _residual(frame: Frame, point: PatternPoint, view: View) -> float:
    """Return how far the slacks are from their definition, each times its weight."""
    total = np.abs(point.weights * (view.rows @ point.costs - point.slacks) - view.forms).sum()
    if frame.adversary:
        limits = frame.lengths + point.level - point.spare
        total += np.abs(view.portions.T @ view.forms - point.share * limits).sum()
    return float(total)


class MasterEquations:
    """The Newton equations at a point, factored once: of the weights first, then of the few other unknowns."""

    def __init__(self, frame: Frame, point: PatternPoint, view: View) -> None:
        """Factor the Hessian in the weights, and its Schur complement in the costs and the adversary's unknowns."""
        self.point, self.view, self.adversary = point, view, frame.adversary
        size, share = len(point.costs), point.share
        # Costs and share are the same in reverse where a pattern stands for its image, too.
        self.basis, self.same = frame.basis[frame.parts[0]], frame.same
        count = len(self.basis)
        curvature = _curvature(view)
        self.borders = point.weights[:, None] * view.coordinates[:, :count]
        corner = np.zeros((count, count))
        if self.adversary:
            pulled = view.forms[:, None] * view.portions
            mixed = pulled - blas.dsymm(1.0, curvature, view.portions, lower=1)
            self.borders = np.hstack([self.borders, mixed @ self.same.T, np.zeros((len(mixed), 1))])
            corner = np.zeros((2 * count + 1,) * 2)
            pull = view.portions.T @ (-mixed - pulled)
            pull[np.diag_indices(size)] -= share * point.spare
            corner[count:-1, count:-1] = self.same @ pull @ self.same.T
            corner[-1, count:-1] = corner[count:-1, -1] = -self.same @ share
            self.forces = view.portions.T @ view.forms - share * (frame.lengths + point.level)
        curvature[np.diag_indices(len(curvature))] += point.weights * point.slacks
        self.curvature, self.corner = curvature, corner
        self.factor = _factor(curvature)
        self.solved = _solve_factored(self.factor, self.borders)
        rest = corner - self.borders.T @ self.solved
        self.scale = 1 / np.sqrt(np.abs(rest).max(axis=0))
        rest = rest * self.scale * self.scale[:, None]
        # The costs' own part is negative: the subtraction keeps it so, however little rounding leaves of it.
        rest[np.diag_indices(count)] -= EPS
        factors, pivots, zero = lapack.dgetrf(rest)
        if zero:
            raise np.linalg.LinAlgError(f"the equations of the costs are singular at unknown {zero - 1}")
        self.rest = factors, pivots

    def change(self, wanted: Array, wanted_spare: Array, passes: int = REFINEMENTS) -> Change:
        """Return the step after which, to first order, all equations hold and the products are the wanted ones.

        The equations are solved in so many passes, each for the residual that rounding left.
        """
        point, view, size, count = self.point, self.view, len(self.point.costs), len(self.basis)
        first = wanted - point.weights * (view.rows @ point.costs) + view.forms
        rest = self.basis @ (1 - point.weights @ view.rows)
        if self.adversary:
            rest = np.concatenate([rest, -self.same @ (self.forces + wanted_spare), [point.share.sum() - size]])
        weights, others = self._solve(first, rest, passes)
        slacks = wanted / point.weights - point.slacks * (1 + weights)
        share, spare, level = np.zeros(size), np.zeros(size), 0.0
        if self.adversary:
            share, level = self.same.T @ others[count:-1], float(others[-1])
            spare = wanted_spare / point.share - point.spare * (1 + share)
        return Change(weights, share, slacks, self.basis.T @ others[:count], spare, level)

    def _solve(self, first: Array, rest: Array, passes: int) -> tuple[Array, Array]:
        """Solve the linear system, and again for the residual: the elimination amplifies rounding errors as τ falls."""
        weights, others = np.zeros(len(first)), np.zeros(len(rest))
        above, below = first, rest
        for count in range(passes):
            if count:
                above = first - blas.dsymv(1.0, self.curvature, weights, lower=1) - self.borders @ others
                below = rest - self.borders.T @ weights - self.corner @ others
            wanted = self.scale * (below - self.solved.T @ above)
            further = self.scale * scipy.linalg.lu_solve(self.rest, wanted, check_finite=False)
            weights += _solve_factored(self.factor, above) - self.solved @ further
            others += further
        return weights, others


class MomentEquations(MasterEquations):
    """The same equations without an adversary, through the moments of the patterns, which are fewer than patterns.

    The Hessian is ``U U' + D`` with ``D = diag(w ∘ s)``. On the orthonormal basis Q of the range of O on which
    ``Y = Q F`` has ``F F' = diag(k)``, ``2 (O O') ∘ (Y Y')`` is the sum over pairs a ≤ b of
    ``2 (k_a + k_b) (q_a ∘ q_b)(q_a ∘ q_b)'``, with k_a in place of ``2 k_a`` where a = b: U has a column a pair. With
    B the borders and C = [U, B], ``δ = D⁻¹ (first - C x)``, and x solves a positive definite system of few unknowns.
    """

    def __init__(self, frame: Frame, point: PatternPoint, view: View) -> None:
        self.point, self.view, self.adversary = point, view, False
        self.basis, self.same = frame.basis[frame.parts[0]], frame.same
        borders = point.weights[:, None] * view.coordinates[:, : len(self.basis)]
        pairs = np.hstack([_pair_products(*part) for part in zip(view.orthonormal, view.scaled, strict=True)])
        self.pairs, self.columns = pairs.shape[1], np.hstack([pairs, borders])
        self.diagonal = point.weights * point.slacks
        system = blas.dsyrk(1.0, self.columns / np.sqrt(self.diagonal)[:, None], trans=1, lower=1)
        first_unknowns = np.arange(self.pairs)
        system[first_unknowns, first_unknowns] += 1
        self.factor = _factor(system)

    def _solve(self, first: Array, rest: Array, passes: int) -> tuple[Array, Array]:
        weights, others = np.zeros(len(first)), np.zeros(len(rest))
        pairs, borders = self.columns[:, : self.pairs], self.columns[:, self.pairs :]
        above, below = first, rest
        for count in range(passes):
            if count:
                above = first - pairs @ (pairs.T @ weights) - self.diagonal * weights - borders @ others
                below = rest - borders.T @ weights
            right = self.columns.T @ (above / self.diagonal)
            right[self.pairs :] -= below
            solved = _solve_factored(self.factor, right)
            weights += (above - self.columns @ solved) / self.diagonal
            others += solved[self.pairs :]
        return weights, others


MANY = 1.25  # patterns, relative to pairs of moments, from which the equations are solved through the moments


def _equations(frame: Frame, point: PatternPoint, view: View) -> MasterEquations:
    """Return the Newton equations at a point, factored the cheaper way."""
    pairs = sum(part.shape[1] * (part.shape[1] + 1) // 2 for part in view.orthonormal)
    few = frame.adversary or len(point.weights) < MANY * pairs
    return (MasterEquations if few else MomentEquations)(frame, point, view)


def _pair_products(orthonormal: Array, scaled: Array) -> Array:
    """Return the columns U of a part of the coordinates, shape (s, r (r + 1) / 2); see `MomentEquations`."""
    factor = orthonormal.T @ scaled
    values, vectors = np.linalg.eigh(factor @ factor.T)
    values, basis = np.maximum(values, 0.0), orthonormal @ vectors
    first, second = np.triu_indices(len(values))
    sizes = np.where(first == second, values[first], values[first] + values[second])
    return np.asarray(basis[:, first] * (basis[:, second] * np.sqrt(2 * sizes)))


def _curvature(view: View) -> Array:
    """Return the Hessian in relative changes of the weights, its lower triangle: half of the work."""
    total: Array | None = None
    for basis, scaled in zip(view.orthonormal, view.scaled, strict=True):
        curvature = blas.dsyrk(2.0, basis, lower=1)
        curvature *= blas.dsyrk(1.0, scaled, lower=1)
        total = curvature if total is None else np.add(total, curvature, out=total)
    assert total is not None
    return total


def _master_step(frame: Frame, point: PatternPoint, view: View) -> tuple[PatternPoint, View]:
    """Take a predictor step towards τ = 0 to see how far it gets, then the step for the τ that this suggests.

    Both sides go as far as they can, if that brings them nearer to the aim of the step. Otherwise they go equally far,
    without the predictor's correction and only so far that it brings them nearer; a short step always does.
    """
    equations = _equations(frame, point, view)
    count, users = len(point.weights), len(point.share)
    trial = equations.change(np.zeros(count), np.zeros(users), passes=1)
    primal, dual = _step_limits(point, trial)
    total, ahead = _products(frame, point), _products(frame, take_step(point, trial, primal, dual))
    centred = max((ahead / total) ** 3 * total, LEAST_CENTRING * _residual(frame, point, view))
    target = centred / (count + users * frame.adversary)
    second = primal * dual * point.weights * trial.weights * trial.slacks
    second_spare = primal * dual * point.share * trial.share * trial.spare
    change = equations.change(target - second, target - second_spare)
    moved = take_step(point, change, *(NEARLY * length for length in _step_limits(point, change)))
    seen, before = View.of(frame, moved), distance(frame, point, point, view, target)
    if distance(frame, point, moved, seen, target) <= SUFFICIENT_DECREASE * before:
        return moved, seen
    change = equations.change(np.full(count, target), np.full(users, target))
    length = NEARLY * min(_step_limits(point, change))
    for _ in range(MOST_RETREATS):
        moved = take_step(point, change, length, length)
        seen = View.of(frame, moved)
        if distance(frame, point, moved, seen, target) <= (1 - SUFFICIENT * length) * before:
            break
        length *= RETREAT
    return moved, seen


def _products(frame: Frame, point: PatternPoint) -> float:
    """Return the sum of all weights times slacks."""
    return float(point.weights @ point.slacks + frame.adversary * point.share @ point.spare)


def distance(frame: Frame, base: PatternPoint, point: PatternPoint, view: View, target: float) -> float:
    """Return how far a point is from solving the equations with a τ, in the units of a base."""
    slopes = view.rows @ point.costs - view.forms / point.weights
    parts = [
        base.weights * (slopes - point.slacks),
        (1 - point.weights @ view.rows) * base.costs,
        point.weights * point.slacks - target,
    ]
    if frame.adversary:
        variances = view.portions.T @ view.forms / point.share - frame.lengths
        parts += [
            base.share * (point.level - point.spare - variances),
            point.share * point.spare - target,
            np.array([(len(point.share) - point.share.sum()) * base.level]),
        ]
    return float(np.linalg.norm(np.concatenate(parts)))


def _step_limits(point: PatternPoint, change: Change) -> tuple[float, float]:
    """Return how far, 1 at most, either side can go before something becomes negative."""
    primal = min(_to_zero(1.0, change.weights), _to_zero(1.0, change.share))
    return primal, min(_to_zero(point.slacks, change.slacks), _to_zero(point.spare, change.spare))


def _to_zero(values: Array | float, changes: Array) -> float:
    with np.errstate(divide="ignore"):
        lengths = np.where(changes < 0, -values / changes, np.inf)
    return min(float(lengths.min()), 1.0)


def _factor(matrix: Array) -> tuple[Array, Array]:
    """Factor a positive definite matrix, its lower triangle brought to unit diagonal; return the factor and the scale.

    Where rounding leaves it indefinite, a little is added; solving again for the residual makes up for it.
    """
    scale = 1 / np.sqrt(np.diagonal(matrix))
    scaled = matrix * scale
    scaled *= scale[:, None]
    if not np.isfinite(scaled.sum()):
        raise np.linalg.LinAlgError("the Newton matrix is no longer finite")
    for added in RIDGES:
        scaled[np.diag_indices(len(scaled))] = 1 + added
        with contextlib.suppress(np.linalg.LinAlgError):
            return scipy.linalg.cholesky(scaled, lower=True, check_finite=False), scale
    raise np.linalg.LinAlgError("the Newton matrix is indefinite")


def _solve_factored(factor: tuple[Array, Array], right: Array) -> Array:
    lower, scale = factor
    column = scale if right.ndim == 1 else scale[:, None]
    return np.asarray(column * scipy.linalg.cho_solve((lower, True), column * right, check_finite=False))


@dataclass(frozen=True, slots=True)
class Pace:
    """How much is done between two pricings of all patterns."""

    added: int  # patterns that are added at a time, for each user type
    closer: float  # remaining gap on the current patterns, relative to the gap over all, at which more are added

    @classmethod
    def of(cls, size: int) -> Pace:
        """Return the pace for n user types: many patterns take seconds to price, a Newton step takes a fraction."""
        return cls(3, 0.2) if size <= DOUBLE else cls(10, 0.005)


DOUBLE = 24  # user types up to which all patterns are priced in double precision

SINGLE_ERROR = 2e-8  # of a form in single precision, relative to the sum of the magnitudes of its terms

MOST_STEPS = 40  # Newton steps on one set of patterns, at most

SMALL, FEW = 0.1, 20
"""Patterns of a weight below this share of their slack, and a slack above the median, leave where there are more than
so many for each user type, and the gap has just become smaller."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The state of column generation: a point on some patterns, what it proves, and the patterns to add.

    `objective` and `lower_bound` are in the units of the frame; in the worst case the sum of the squared lengths of
    the workload's columns is added to n times either, so that they cannot vanish.
    """

    point: PatternPoint
    view: View
    objective: float
    lower_bound: float
    further: Sets
    steps: int
    least_gap: float = np.inf

    @property
    def unknown(self) -> Sets:
        """The patterns to add that are not among them already."""
        known = {pattern.tobytes() for pattern in self.point.sets}
        return self.further[[pattern.tobytes() not in known for pattern in self.further]]

    @property
    def gap(self) -> float:
        """Distance of the two sides, relative to the lower one."""
        return (self.objective - self.lower_bound) / self.lower_bound if self.lower_bound > 0 else np.inf


def generate(frame: Frame, limits: loop.Limits, begin: Columns | None = None) -> loop.Outcome[Columns]:
    """Generate patterns until the gap is reached, from all intervals of the user types on a circle, or further."""
    if begin is None:
        first = points.start(frame, intervals(len(frame.share)))
        begin = _solve_and_price(frame, first, Pace.of(len(frame.share)).closer, 0, limits.deadline)
    return loop.run(begin, partial(_step, frame, limits.tol, limits.deadline), limits, margin=1.0)


def priced(frame: Frame, searched: Columns, deadline: Deadline) -> Columns:
    """Return the state that a search came to, with what it proves over all patterns in place of a suggestion."""
    tol = Pace.of(len(frame.share)).closer * searched.least_gap
    return _solve_and_price(frame, searched.point, tol, searched.steps, deadline)


def intervals(size: int) -> Sets:
    """Return all intervals on a circle of user types: with equal weights for each length they are a strategy."""
    places = (np.arange(size)[:, None] - np.arange(size)) % size
    return np.vstack([places < length for length in range(1, size)])


def price_patterns(frame: Frame, point: PatternPoint, view: View, count: int) -> tuple[float, Sets]:
    """Price all patterns; return by how much the judge will raise all costs, and the sets that are worst.

    Of many user types the forms are evaluated in single precision, and the worst sets once more. What single precision
    misses, the judge sees.
    """
    size, single = len(point.costs), len(point.costs) > DOUBLE
    mixed = np.outer(point.costs, point.share)
    form = view.matrix @ view.matrix.T - (mixed + mixed.T) / 2
    least = -SINGLE_ERROR * (1 + local.gain(frame.epsilon)) ** 2 * float(np.abs(form).sum()) if single else 0.0
    most = count * len(frame.parts)  # a set and its image, where one stands for both
    sets, scores, rise = [np.zeros((0, size), dtype=bool)], [np.zeros(0)], 0.0
    for block in local.forms(form, frame.epsilon, frame.mirrored, single):
        if not block.values.max() > least:
            continue
        chosen = np.flatnonzero(block.values.ravel() > least)
        members, shares = (block.sums(chosen, weights) for weights in (np.ones(size), point.share))
        block_scores, largest = _scores(frame, point, block.values.ravel()[chosen], members, shares)
        worst = np.argpartition(block_scores, -min(most, len(chosen)))[-most:]
        sets.append(block.sets(chosen[worst]))
        scores.append(block_scores[worst])
        rise = max(rise, largest)
    worst_sets, worst_scores = np.vstack(sets), np.concatenate(scores)
    if single:
        vectors = 1 + local.gain(frame.epsilon) * worst_sets
        values = np.einsum("su,su->s", vectors @ form, vectors)
        worst_scores, rise = _scores(frame, point, values, worst_sets.sum(axis=1), worst_sets @ point.share)
    order = np.argsort(-worst_scores, kind="stable")[:most]
    return rise, distinct(frame, worst_sets[order[worst_scores[order] > 0]])[:count]


def _scores(frame: Frame, point: PatternPoint, values: Array, members: Array, shares: Array) -> tuple[Array, float]:
    """Return by how much patterns are priced too low, and by how much the judge will raise all costs for them.

    `values` are ``v_S' K v_S``, `members` the numbers of user types in the sets, `shares` their sums of ``n π``. Where
    the prior is uneven, the judge takes the least that is compatible with the costs.
    """
    size, excess = len(point.share), local.gain(frame.epsilon)
    mass = size + excess * shares
    scores = values / ((size + excess * members) * mass)
    scores[(members == 0) | (members == size)] = -np.inf
    even = np.allclose(point.share, 1, rtol=1e-12, atol=0)
    return scores, max(float((scores if even else scores * (mass / size)).max(initial=0.0)), 0.0)


def distinct(frame: Frame, sets: Sets) -> Sets:
    """Return the sets that stand for given ones, each once, in the order of their first place."""
    standing = frame.representatives(sets)
    return standing[np.sort(np.unique(standing, axis=0, return_index=True)[1])] if len(sets) else sets


def _solve_and_price(frame: Frame, point: PatternPoint, tol: float, steps: int, deadline: Deadline) -> Columns:
    """Solve on the patterns of a point to a tolerance, and price all others; without time left, prove nothing."""
    point, view, count = follow_path(frame, point, tol, MOST_STEPS, deadline)
    rise, further = np.inf, point.sets[:0]
    if not deadline.passed:
        rise, further = price_patterns(frame, point, view, Pace.of(len(frame.share)).added * len(frame.share))
    objective, bound = objective_and_bound(frame, point, view, rise)
    return Columns(point, view, objective, bound, further, steps + count)


def objective_and_bound(frame: Frame, point: PatternPoint, view: View, rise: float) -> tuple[float, float]:
    """Return the objective of a point, and the bound that its dual weights prove if all costs must rise so much."""
    size = len(frame.share)
    bound = view.objective**2 / (float(point.costs.sum()) + size * rise)
    objective = view.objective
    if frame.adversary:
        variances = view.portions.T @ view.forms / point.share - frame.lengths
        objective = size * float(variances.max()) + float(frame.lengths.sum())
        bound += float((1 - point.share) @ frame.lengths)
    # Where columns do not sum to 1 yet, one more output would complete them, and take its share of all reports.
    sums = point.weights @ view.rows
    missing = 1 - float(sums.min() / sums.max())
    return objective * float(sums.max()) * (1 + missing / local.gain(frame.epsilon)), bound


def _step(frame: Frame, tol: float, deadline: Deadline, columns: Columns) -> Columns:
    """Drop patterns that play no part, add those found, and solve again; without any to add, solve further."""
    point, further = columns.point, columns.unknown
    playing = np.ones(len(point.sets), dtype=bool)
    if len(playing) > FEW * len(frame.share) and columns.gap < columns.least_gap:
        playing = (point.weights > SMALL * point.slacks) | (point.slacks < np.median(point.slacks))
        playing |= point.sets.sum(axis=1) == 1  # these alone make sure that G is regular
    closer = Pace.of(len(frame.share)).closer
    aim = closer * min(columns.gap, 1.0)
    if not len(further):
        aim = closer * min(aim, progress(frame, point, columns.view))
    product = aim * columns.view.objective / len(point.sets)
    point = points.replace_patterns(frame, point, playing, further, product)
    aim = max(aim, closer * tol) if len(further) else aim
    seen = _solve_and_price(frame, point, aim, columns.steps, deadline)
    return replace(seen, least_gap=min(columns.gap, columns.least_gap))
