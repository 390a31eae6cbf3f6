"""The best weights on a given set of patterns: a primal-dual Newton method for local privacy.

Minimise ``tr(R G⁻¹ R')`` over weights w ≥ 0 with ``Σ_S w_S p_S = 1``, where ``G = Σ_S w_S p_S p_S' / a_S`` and
``a_S = n π'p_S``. With ``Z = G⁻¹ R'`` and costs y, the slack of a pattern is ``s_S = y'p_S - ‖Z'p_S‖² / a_S``, and
``w_S s_S = τ`` falls to zero. In the worst case an adversary chooses the prior as well: it maximises the same function
less ``Σ_u n π_u ‖W_u‖²``, with a level t above every user's variance T_u, slacks ``t - T_u`` and the same τ.

In relative changes of the weights the Hessian is ``2 (O O') ∘ (Y Y')``, where O is an orthonormal basis of the range of
``diag(w/a)^(1/2) P`` and the squared lengths of the rows of Y are ``w_S ‖Z'p_S‖² / a_S``. No inverse of G is formed,
and weights may vanish until G is singular, as it is at the optimum of some workloads.
"""

from __future__ import annotations

import contextlib

import numpy as np
import scipy.linalg
from scipy.linalg import blas

from dualmech.fast.local.points import Change, Frame, PatternPoint, View, take_step
from dualmech.linalg import EPS
from dualmech.progress import NEVER, Deadline
from dualmech.validate import Array

NEARLY = 0.995  # share of the way to the boundary that a step goes at most

RIDGES = (0.0, 1e-14, 1e-12, 1e-10)
"""What is added to the unit diagonal of the Newton matrix until it can be factored."""

REFINEMENTS = 3  # how often the linear equations are solved for what is left of them
SUFFICIENT_DECREASE = (
    0.9  # a corrected step counts if the distance from what it aims at falls below this share
)

RETREAT, MOST_RETREATS, SUFFICIENT = 0.5, 20, 0.01
"""A damped step is shortened so much, at most so often, until the distance falls by this share of what it promises."""

LEAST_CENTRING = 0.1
"""τ never falls below this share of what the equations are off by: what shrank faster would stop the steps."""


def solve(
    frame: Frame, point: PatternPoint, tol: float, most: int, deadline: Deadline = NEVER
) -> tuple[PatternPoint, View, int]:
    """Step until what is left of the gap is `tol` relative to the objective; return point, view and steps."""
    view = View.of(frame, point)
    for count in range(most):
        if deadline.passed or progress(frame, point, view) <= tol:
            return point, view, count
        point, view = _step(frame, point, view)
    return point, view, most


def progress(frame: Frame, point: PatternPoint, view: View) -> float:
    """Return what is left of the gap on these patterns: products and residuals, relative to the objective."""
    missing = float(np.abs(1 - point.weights @ view.rows).sum() * np.abs(point.costs).max())
    # By so much all costs have to rise, whatever the weight of the pattern that asks for it.
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
        """Factor the Hessian in the weights, and what the costs and the adversary leave of it."""
        self.point, self.view, self.basis, self.adversary = point, view, frame.basis, frame.adversary
        size, share = len(point.costs), point.share
        # Lower triangles alone: half of the work, and what is factored reads no more.
        curvature = blas.dsyrk(2.0, view.orthonormal, lower=1)
        curvature *= blas.dsyrk(1.0, view.scaled, lower=1)
        self.borders = point.weights[:, None] * view.coordinates
        corner = np.zeros((size, size))
        if self.adversary:
            pulled = view.forms[:, None] * view.portions
            mixed = pulled - blas.dsymm(1.0, curvature, view.portions, lower=1)
            self.borders = np.hstack([self.borders, mixed, np.zeros((len(mixed), 1))])
            corner = np.zeros((2 * size + 1,) * 2)
            own = view.portions.T @ (-mixed - pulled)
            own[np.diag_indices(size)] -= share * point.spare
            corner[size : 2 * size, size : 2 * size] = own
            corner[-1, size:-1] = corner[size:-1, -1] = -share
            self.forces = view.portions.T @ view.forms - share * (frame.lengths + point.level)
        curvature[np.diag_indices(len(curvature))] += point.weights * point.slacks
        self.curvature, self.corner = curvature, corner
        self.factor = _factor(curvature)
        self.solved = _solve_factored(self.factor, self.borders)
        rest = corner - self.borders.T @ self.solved
        self.scale = 1 / np.sqrt(np.abs(rest).max(axis=0))
        rest = rest * self.scale * self.scale[:, None]
        # The costs' own part is negative: what is taken off keeps it so, however little rounding leaves of it.
        rest[np.diag_indices(size)] -= EPS
        self.rest = scipy.linalg.lu_factor(rest, check_finite=False)

    def change(self, wanted: Array, wanted_spare: Array, passes: int = REFINEMENTS) -> Change:
        """Return the step after which, to first order, all equations hold and the products are the wanted ones.

        They are solved in so many passes, each for what rounding left of them.
        """
        point, view, size = self.point, self.view, len(self.point.costs)
        first = wanted - point.weights * (view.rows @ point.costs) + view.forms
        rest = self.basis @ (1 - point.weights @ view.rows)
        if self.adversary:
            rest = np.concatenate([rest, -self.forces - wanted_spare, [point.share.sum() - size]])
        weights, others = self._solve(first, rest, passes)
        slacks = wanted / point.weights - point.slacks * (1 + weights)
        share, spare, level = np.zeros(size), np.zeros(size), 0.0
        if self.adversary:
            share, level = others[size:-1], float(others[-1])
            spare = wanted_spare / point.share - point.spare * (1 + share)
        return Change(weights, share, slacks, self.basis.T @ others[:size], spare, level)

    def _solve(self, first: Array, rest: Array, passes: int) -> tuple[Array, Array]:
        """Solve the linear system, and again for what rounding left: the elimination amplifies it as τ falls."""
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


def _step(frame: Frame, point: PatternPoint, view: View) -> tuple[PatternPoint, View]:
    """Take a predictor step towards τ = 0 to see how far it gets, then the step for the τ that this suggests.

    Both sides go as far as they can, if that brings them nearer to what the step aims at; otherwise they go the same
    way, without the predictor's correction and only so far that it does: for short steps it always does.
    """
    equations = MasterEquations(frame, point, view)
    count, users = len(point.weights), len(point.share)
    trial = equations.change(np.zeros(count), np.zeros(users), passes=1)
    primal, dual = _step_limits(point, trial)
    total, ahead = _products(frame, point), _products(frame, take_step(point, trial, primal, dual))
    centred = max((ahead / total) ** 3 * total, LEAST_CENTRING * _residual(frame, point, view))
    target = centred / (count + users * frame.adversary)
    second = primal * dual * point.weights * trial.weights * trial.slacks
    second_spare = primal * dual * point.share * trial.share * trial.spare
    change = equations.change(target - second, target - second_spare)
    found = take_step(point, change, *(NEARLY * length for length in _step_limits(point, change)))
    seen, before = View.of(frame, found), distance(frame, point, point, view, target)
    if distance(frame, point, found, seen, target) <= SUFFICIENT_DECREASE * before:
        return found, seen
    change = equations.change(np.full(count, target), np.full(users, target))
    length = NEARLY * min(_step_limits(point, change))
    for _ in range(MOST_RETREATS):
        found = take_step(point, change, length, length)
        seen = View.of(frame, found)
        if distance(frame, point, found, seen, target) <= (1 - SUFFICIENT * length) * before:
            break
        length *= RETREAT
    return found, seen


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

    Where rounding leaves it indefinite, a little is added; solving again for what is left makes up for it.
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
