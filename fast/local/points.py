"""Points of local privacy's solvers: weights on the patterns of some sets, in coordinates fit for them.

G is near the identity in an orthonormal basis of the ones and of the vectors orthogonal to them, in a unit for these
vectors that depends on ε and on the number of user types alone; without that unit G is badly conditioned for small ε.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech.geometry import local
from dualmech.geometry.local import Relaxation, Sets
from dualmech.linalg import EPS
from dualmech.problems.local.strategy import LocalDual, LocalPoint, LocalStrategy
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array

SMALLEST = 1e-20  # weights and slacks never fall below this

OFF_CENTRE = 0.1
"""Least product of a weight and its slack with which new patterns are begun, relative to the mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A problem in coordinates in which G is near the identity whatever ε: along the ones, and across them."""

    epsilon: float  # ε
    root: Array  # (k, n) R in these coordinates, in units in which the optimum is near n
    lengths: Array  # (n,) ``‖W_u‖²`` in the same units
    basis: Array  # (n, n) takes a pattern to these coordinates
    share: Array  # (n,) n times the prior; in the worst case, of the first point
    adversary: bool  # whether the prior is chosen by an adversary
    unit: float  # divisor of the root

    @classmethod
    def of(cls, root: Array, epsilon: float, prior: Array, adversary: bool) -> Frame:
        """Choose coordinates, with the largest possible trace of G across the ones for their unit."""
        size, excess = root.shape[1], local.gain(epsilon)
        counts = np.arange(1, size)
        traces = counts * (size - counts) * (excess / (size + counts * excess)) ** 2
        across = np.sqrt(traces.max() / (size - 1))
        complement = scipy.linalg.qr(np.ones((size, 1)))[0][:, 1:]
        basis = np.vstack([np.full(size, size**-0.5), complement.T / across])
        turned = root @ basis.T
        unit = float(np.linalg.norm(turned)) / np.sqrt(size)
        lengths = np.einsum("ku,ku->u", root, root) / unit**2
        return cls(epsilon, turned / unit, lengths, basis, size * prior, adversary, unit)

    @property
    def scale(self) -> float:
        """The problem's objective where this one is 1: in the worst case, of one user type and not of all."""
        return self.unit**2 / (len(self.share) if self.adversary else 1)

    @property
    def offset(self) -> float:
        """Amount by which the problem's objective is lower: in the worst case, the mean of the squared lengths."""
        return self.scale * float(self.lengths.sum()) if self.adversary else 0.0

    def coordinates(self, sets: Sets) -> Array:
        """Return the patterns of sets (s, n) in these coordinates, those across the ones without cancellation."""
        size, excess = len(self.share), local.gain(self.epsilon)
        scale = excess / (size + excess * sets.sum(axis=1, keepdims=True))
        return np.hstack([np.full((len(sets), 1), size**-0.5), (sets @ self.basis[1:].T) * scale])


@dataclass(frozen=True, slots=True, eq=False)
class PatternPoint:
    """The state of the method: weights and slacks on the patterns of some sets, costs, and the adversary's side."""

    sets: Sets  # S, one per row (s, n)
    weights: Array  # weights, slacks: (s,) w and s
    slacks: Array
    costs: Array  # (n,) y
    share: Array  # (n,) n π
    spare: Array  # (n,) ``t - T_u``; ones where there is no adversary
    level: float  # t


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The values at a point: its objective and the quantities of the Newton equations.

    `objective` and `matrix`, Z, are in the units of the frame; `forms` is ``w_S ‖Z'p_S‖² / a_S``, `rows` are the
    patterns (s, n), and `coordinates` the same in the frame.
    """

    objective: float
    matrix: Array
    forms: Array
    rows: Array
    coordinates: Array
    orthonormal: Array
    scaled: Array
    portions: Array

    @classmethod
    def of(cls, frame: Frame, point: PatternPoint) -> View:
        rows = local.rows(point.sets, frame.epsilon)
        mass = rows @ point.share
        scale = np.sqrt(point.weights / mass)
        coordinates = frame.coordinates(point.sets)
        orthonormal, triangle = scipy.linalg.qr(coordinates * scale[:, None], mode="economic", check_finite=False)
        diagonal = np.abs(np.diagonal(triangle))
        if not diagonal.min() > 0:
            # A direction that only patterns of vanishing weight see, lost in the rounding of the others.
            triangle[np.diag_indices(len(triangle))] = np.maximum(diagonal, EPS * diagonal.max())
        half = scipy.linalg.solve_triangular(triangle, frame.root.T, trans="T", check_finite=False)
        matrix = frame.basis.T @ scipy.linalg.solve_triangular(triangle, half, check_finite=False)
        scaled = orthonormal @ half
        return cls(
            float(np.einsum("nk,nk->", half, half)),
            matrix,
            np.einsum("sk,sk->s", scaled, scaled),
            rows,
            coordinates,
            orthonormal,
            scaled,
            rows * point.share / mass[:, None],
        )


def start(frame: Frame, sets: Sets, weights: Array | None = None) -> PatternPoint:
    """Begin at given weights, equal ones by default, with slacks that are neither small nor negative."""
    size = len(frame.share)
    first = np.full(len(sets), size / len(sets)) if weights is None else weights
    blank = PatternPoint(
        sets, first, np.ones(len(sets)), np.ones(size), np.maximum(frame.share, 0.0), np.ones(size), 1.0
    )
    view = View.of(frame, blank)
    costs = np.full(size, view.objective / size)
    slacks = np.maximum(view.rows @ costs - view.forms / first, 0.3 * costs[0])
    variances = view.portions.T @ view.forms / frame.share - frame.lengths if frame.adversary else np.zeros(size)
    level = float(variances.max() + 0.3 * costs[0])
    spare = level - variances
    return replace(blank, costs=costs, slacks=slacks, spare=spare, level=level)


def replace_patterns(
    point: PatternPoint, playing: npt.NDArray[np.bool_], sets: Sets, epsilon: float, product: float
) -> PatternPoint:
    """Keep the chosen patterns and add others; no product falls short of a given one, and sums are at 1.

    A point that was solved beyond the next tolerance leaves no room for steps: where a product is far too small, the
    smaller of its factors is raised.
    """
    product = max(product, float(np.mean(point.weights * point.slacks)))
    kept, slacks = point.weights[playing], point.slacks[playing]
    new = np.full(len(sets), max(float(np.median(slacks)), product))
    least = OFF_CENTRE * product
    weights = np.where(kept < slacks, np.maximum(kept, least / slacks), kept)
    slacks = np.where(kept < slacks, slacks, np.maximum(slacks, least / kept))
    members = np.vstack([point.sets[playing], sets])
    return replace(
        point,
        sets=members,
        weights=balance_columns(np.append(weights, product / new), local.rows(members, epsilon)),
        slacks=np.append(slacks, new),
        spare=np.maximum(point.spare, least / np.maximum(point.share, SMALLEST)),
    )


def balance_columns(weights: Array, rows: Array) -> Array:
    """Return weights with ``Σ_S w_S p_S = 1`` by the least relative changes; as they are where one would vanish."""
    shares = rows * np.sqrt(weights)[:, None]
    change = rows @ np.linalg.lstsq(shares.T @ shares, 1 - weights @ rows, rcond=None)[0]
    return weights * (1 + change) if np.all(change > -1) else weights


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A Newton step: relative changes of weights and share, and changes of slacks, costs, spare and level."""

    weights: Array
    share: Array
    slacks: Array
    costs: Array
    spare: Array
    level: float


def take_step(point: PatternPoint, change: Change, primal: float, dual: float) -> PatternPoint:
    """Return the point a given share of a step away, primal and dual variables each by their own."""
    return PatternPoint(
        point.sets,
        np.maximum(point.weights * (1 + primal * change.weights), SMALLEST),
        np.maximum(point.slacks + dual * change.slacks, SMALLEST),
        point.costs + dual * change.costs,
        point.share * (1 + primal * change.share),
        np.maximum(point.spare + dual * change.spare, SMALLEST),
        point.level + dual * change.level,
    )


# From weights on patterns to a strategy that meets its constraints, and to dual weights, as the judge takes them.


MOST_NEEDED = 300  # needed outputs up to which superfluous ones are removed: beyond, it takes seconds

CHEAP = 20  # user types up to which the judge prices all patterns in no time


def strategies(problem: LocalStrategy, frame: Frame, point: PatternPoint, view: View) -> list[LocalPoint]:
    """Return the strategies of the patterns that play a part, with no more outputs than needed, and of all patterns."""
    prior = point.share / point.share.sum() if frame.adversary else problem.prior
    playing, every = point.weights > point.slacks, np.ones(len(point.weights), dtype=bool)
    points, fewer = [], fewest(frame, point, view, every)
    rest = [point.weights] if np.any(fewer == 0) else []
    for weights in {
        candidate.tobytes(): candidate for candidate in (fewest(frame, point, view, playing), fewer, *rest)
    }.values():
        kept = weights > 0
        if kept.any():
            balanced = balance_columns(weights[kept], view.rows[kept])
            points.append(problem.feasible(LocalPoint(balanced[:, None] * view.rows[kept], prior)))
    return points


def fewest(frame: Frame, point: PatternPoint, view: View, chosen: npt.NDArray[np.bool_]) -> Array:
    """Return weights (s,) on chosen patterns, as few as bring about the same G and, in the worst case, variances.

    G has n(n+1)/2 entries, ``Σ_S w_S p_S p_S' / a_S``, and every type's variance is linear in the weights as well, as
    long as G is the same. Non-negative least squares end at columns that are linearly independent (Carathéodory).
    """
    # Imported here so that solvers load without it.
    from scipy.optimize import nnls

    weights = np.where(chosen, point.weights, 0.0)
    first, second = np.triu_indices(len(point.share))
    needed = len(first) + frame.adversary * len(point.share)
    if np.count_nonzero(chosen) <= needed or needed > MOST_NEEDED:
        return weights
    seen = view.coordinates[chosen]
    system = seen[:, first] * seen[:, second] / (view.rows[chosen] @ point.share)[:, None]
    if frame.adversary:
        lengths = view.forms[chosen] / point.weights[chosen]
        system = np.hstack([system, view.portions[chosen] * (lengths / lengths.mean())[:, None]])
    with contextlib.suppress(RuntimeError):  # it took too many steps: more outputs do no harm
        weights[chosen] = nnls(system.T, weights[chosen] @ system)[0]
    return weights


def dual(frame: Frame, point: PatternPoint, view: View, relaxation: Relaxation | None = None) -> LocalDual:
    """Return the dual weights of a point in the problem's own units."""
    prior = point.share / point.share.sum() if frame.adversary else None
    return LocalDual(view.matrix * frame.unit, point.costs * frame.unit**2, prior, relaxation)


def closed_form_weights(problem: LocalStrategy, weights: LocalDual) -> LocalDual:
    """Return dual weights that are quick to judge; beyond few user types they leave the closed-form bound to decide."""
    if problem.user_types <= CHEAP:
        return weights
    return replace(weights, relaxation=Relaxation.of(problem.user_types))


def primal(problem: LocalStrategy, point: LocalPoint) -> LocalPoint | Array:
    """Return a point as the problem's answers hold it: with its prior in the worst case alone."""
    return point if problem.criterion == "worst" else point.strategy


def objective(problem: LocalStrategy, point: LocalPoint) -> float:
    """Return the judge's value of a point, without dual weights that take long."""
    size, rank = problem.user_types, len(problem.root)
    nothing = LocalDual(np.zeros((size, rank)), np.zeros(size), relaxation=Relaxation.of(size))
    return problem.certify(point, nothing).objective


def lightest(problem: LocalStrategy, candidates: list[LocalPoint], tol: float) -> LocalPoint:
    """Return the first candidate, those with fewer outputs coming first, that is within the tolerance of the best."""
    if len(candidates) == 1:
        return candidates[0]
    values = [objective(problem, candidate) for candidate in candidates]
    enough = min(values) + tol * abs(min(values))
    return next(candidate for candidate, value in zip(candidates, values, strict=True) if value <= enough)


def best(
    problem: LocalStrategy, candidates: list[LocalPoint], weights: LocalDual, *, tol: float, **facts: Any
) -> Solution:
    """Let the problem judge candidates, those with fewer outputs first: the first that is certified, or the best."""
    if problem.user_types > CHEAP:
        # Pricing all patterns takes its time: it is done for one candidate.
        candidates = [lightest(problem, candidates, tol)]
    answers = [
        judged_solution(problem, primal(problem, candidate), weights, tol=tol, **facts) for candidate in candidates
    ]
    certified = (answer for answer in answers if answer.status is Status.CERTIFIED)
    return next(certified, min(answers, key=lambda answer: answer.gap))
