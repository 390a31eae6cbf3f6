"""Points of local privacy's solvers: weights on the patterns of some sets, in coordinates fit for them.

G is near the identity in an orthonormal basis of the ones and of the vectors orthogonal to them, in a unit for these
vectors that depends on ε and on the number of user types alone; without that unit G is badly conditioned for small ε.
"""

from __future__ import annotations

import itertools
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

ALIKE = 1e-12  # relative difference of two entries that counts as rounding

OFF_CENTRE = 0.1
"""Least product of a weight and its slack with which new patterns are begun, relative to the mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A problem in coordinates in which G is near the identity whatever ε: along the ones, and across them.

    Where the problem is the same with the user types in reverse order, the best weights of a set and of its mirror
    image are equal. A set then stands for both, in halves, and G has no entries between `parts` of the coordinates:
    those that stay the same in reverse, and those that change their sign.
    """

    epsilon: float  # ε
    basis: Array  # (n, n) takes a pattern to these coordinates
    same: Array  # (width, n) orthonormal rows: the vectors that are the same in reverse, or all
    parts: tuple[slice, ...]
    roots: tuple[Array, ...]  # (r, width) R in each part's coordinates, in units in which the optimum is near n
    turn: Array  # (Σr, k) takes the rows of these roots to R's own
    mean: Array  # (k,) R's mean over the user types, where it has a row of its own in these roots; 0 elsewhere
    lengths: Array  # (n,) ``‖W_u‖²`` in the same units
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
        mean, centred = np.zeros(len(root)), local.centred(root)
        even = adversary or bool(np.ptp(prior) <= ALIKE * prior.max())
        if even and not adversary:
            mean = root.mean(axis=1)
            root = np.vstack([centred, np.full(size, np.linalg.norm(mean))])
        mirrored = even and same_in_reverse(centred)
        same, vectors = np.eye(size), scipy.linalg.qr(np.ones((size, 1)))[0].T
        if mirrored:
            same, vectors = reversal_bases(size)
        basis = np.vstack([np.full(size, size**-0.5), vectors[1:] / across])
        turned, unit = root @ basis.T, float(np.linalg.norm(root @ basis.T)) / np.sqrt(size)
        parts: tuple[slice, ...] = (slice(0, size),)
        roots, bases = (turned,), (np.eye(len(root)),)
        if mirrored:
            parts = (slice(0, len(same)), slice(len(same), size))
            bases, roots = zip(*(scipy.linalg.qr(turned[:, part], mode="economic") for part in parts), strict=True)
        return cls(
            epsilon,
            basis,
            same,
            parts,
            tuple(root / unit for root in roots),
            np.hstack(bases)[: len(mean)].T,
            mean / unit,
            np.einsum("ku,ku->u", root, root) / unit**2,
            size * prior,
            adversary,
            unit,
        )

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

    @property
    def mirrored(self) -> bool:
        """Whether a set stands for its image in reverse, too."""
        return len(self.parts) > 1

    def rows(self, sets: Sets) -> Array:
        """Return the patterns (s, n) of sets; the mean of a pattern and its image where a set stands for both."""
        rows = local.rows(sets, self.epsilon)
        return (rows + rows[:, ::-1]) / 2 if self.mirrored else rows

    def representatives(self, sets: Sets) -> Sets:
        """Return the set of each pair of images, given either."""
        if not self.mirrored:
            return sets
        differs = sets != sets[:, ::-1]
        first = differs.argmax(axis=1)
        turned = differs.any(axis=1) & ~sets[np.arange(len(sets)), first]
        return np.where(turned[:, None], sets[:, ::-1], sets)

    def members(self, sets: Sets) -> tuple[Sets, npt.NDArray[np.intp], Array]:
        """Return all sets (a, n) that some stand for, the place of each one's representative, and its share of it.

        Small sets come first, and those of one size in the order of their members.
        """
        alone = np.all(sets == sets[:, ::-1], axis=1) | (not self.mirrored)
        places, both = np.arange(len(sets)), np.flatnonzero(~alone)
        shares = np.where(alone, 1.0, 0.5)
        members, places = np.vstack([sets, sets[both, ::-1]]), np.append(places, both)
        order = np.lexsort((*~members.T[::-1], members.sum(axis=1)))
        return members[order], places[order], shares[places[order]]


def same_in_reverse(centred: Array) -> bool:
    """Whether a centred workload's Gram matrix is the same with the user types in reverse order."""
    gram = centred.T @ centred
    return len(gram) > 2 and bool(np.abs(gram - gram[::-1, ::-1]).max() <= ALIKE * np.abs(gram).max())


def reversal_bases(size: int) -> tuple[Array, Array]:
    """Return orthonormal rows: of the vectors that are the same in reverse, and of all, led by these and the ones."""
    units = np.eye(size)
    same, opposite = (units + units[::-1])[: size - size // 2], (units - units[::-1])[: size // 2]
    led = scipy.linalg.qr(np.vstack([np.ones(size), same[:-1]]).T, mode="economic")[0].T
    return same / np.linalg.norm(same, axis=1, keepdims=True), np.vstack([led, opposite / np.sqrt(2)])


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


def moments(frame: Frame, point: PatternPoint) -> Array:
    """Return M (n + 1, n + 1) of weighed patterns: ``Σ_S w_S [1; s][1; s]' / (1'v_S · b'v_S)``."""
    sets, places, shares = frame.members(point.sets)
    excess = local.gain(frame.epsilon)
    masses = (len(frame.share) + excess * sets.sum(axis=1)) * (point.share.sum() + excess * sets @ point.share)
    lifted = np.hstack([np.ones((len(sets), 1)), sets])
    return np.asarray(lifted.T @ (lifted * (shares * point.weights[places] / masses)[:, None]))


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The values at a point: its objective and the quantities of the Newton equations.

    `objective` and `matrix`, Z, are in the units of the frame; `forms` is ``w_S ‖Z'p_S‖² / a_S``, `rows` are the
    patterns (s, n), and `coordinates` the same in the frame. `orthonormal` and `scaled` have an array for each part of
    the coordinates.
    """

    objective: float
    matrix: Array
    forms: Array
    rows: Array
    coordinates: Array
    orthonormal: tuple[Array, ...]
    scaled: tuple[Array, ...]
    portions: Array

    @classmethod
    def of(cls, frame: Frame, point: PatternPoint) -> View:
        rows, coordinates = frame.rows(point.sets), frame.coordinates(point.sets)
        mass = rows @ point.share
        scale = np.sqrt(point.weights / mass)[:, None]
        orthonormal, halves, matrices = [], [], []
        for part, root in zip(frame.parts, frame.roots, strict=True):
            basis, triangle = scipy.linalg.qr(coordinates[:, part] * scale, mode="economic", check_finite=False)
            diagonal = np.abs(np.diagonal(triangle))
            if not diagonal.min() > 0:
                # A direction that only patterns of vanishing weight see, lost in the rounding of the others.
                triangle[np.diag_indices(len(triangle))] = np.maximum(diagonal, EPS * diagonal.max())
            half = scipy.linalg.solve_triangular(triangle, root.T, trans="T", check_finite=False)
            matrices.append(frame.basis[part].T @ scipy.linalg.solve_triangular(triangle, half, check_finite=False))
            orthonormal.append(basis)
            halves.append(half)
        scaled = tuple(basis @ half for basis, half in zip(orthonormal, halves, strict=True))
        return cls(
            float(np.sum([np.vdot(half, half) for half in halves])),
            np.hstack(matrices),
            np.sum([np.einsum("sk,sk->s", values, values) for values in scaled], axis=0),
            rows,
            coordinates,
            tuple(orthonormal),
            scaled,
            rows * point.share / mass[:, None],
        )


def start(frame: Frame, sets: Sets, weights: Array | None = None) -> PatternPoint:
    """Begin at given weights, equal ones by default, with slacks that are neither small nor negative."""
    size = len(frame.share)
    parts = np.full(len(sets), size / len(sets)) if weights is None else weights
    sets, place = np.unique(frame.representatives(sets), axis=0, return_inverse=True)
    first = np.bincount(place.ravel(), parts).astype(np.float64)
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
    frame: Frame, point: PatternPoint, playing: npt.NDArray[np.bool_], sets: Sets, product: float
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
        weights=balance_columns(np.append(weights, product / new), frame.rows(members)),
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
    sets, places, shares = frame.members(point.sets)
    weights, rows, lengths = shares * point.weights[places], local.rows(sets, frame.epsilon), view.forms / point.weights
    playing = np.where((point.weights > point.slacks)[places], weights, 0.0)
    points, fewer = [], fewest(frame, point.share, sets, weights, lengths[places])
    candidates = [fewest(frame, point.share, sets, playing, lengths[places]), fewer]
    candidates += [weights] if np.any(fewer == 0) else []
    for candidate in {candidate.tobytes(): candidate for candidate in candidates}.values():
        kept = candidate > 0
        if kept.any():
            balanced = balance_columns(candidate[kept], rows[kept])
            points.append(problem.feasible(LocalPoint(balanced[:, None] * rows[kept], prior)))
    return points


def fewest(frame: Frame, share: Array, sets: Sets, weights: Array, lengths: Array) -> Array:
    """Return weights (s,) on as few sets as bring about the same G and, in the worst case, the same variances.

    G has n(n+1)/2 entries, ``Σ_S w_S p_S p_S' / a_S``, and every type's variance is linear in the weights as well, as
    long as G, and so the given ``‖Z'p_S‖² / a_S``, is the same. Non-negative least squares end at columns that are
    linearly independent (Carathéodory).
    """
    # Imported here so that solvers load without it.
    from scipy.optimize import nnls

    chosen = weights > 0
    first, second = np.triu_indices(len(share))
    needed = len(first) + frame.adversary * len(share)
    if np.count_nonzero(chosen) <= needed or needed > MOST_NEEDED:
        return weights
    seen, rows, fewer = frame.coordinates(sets[chosen]), local.rows(sets[chosen], frame.epsilon), np.zeros(len(weights))
    mass = rows @ share
    system = seen[:, first] * seen[:, second] / mass[:, None]
    if frame.adversary:
        relative = lengths[chosen] / lengths[chosen].mean()
        system = np.hstack([system, rows * share * (relative / mass)[:, None]])
    try:
        fewer[chosen] = nnls(system.T, weights[chosen] @ system)[0]
    except RuntimeError:  # it took too many steps: more outputs do no harm
        return weights
    return fewer


def dual(frame: Frame, point: PatternPoint, view: View, relaxation: Relaxation | None = None) -> LocalDual:
    """Return the dual weights of a point in the problem's own units.

    Z on R across the ones lacks the ones themselves, on which every pattern is 1: with ``Z + 1 r'``, r the mean of R,
    ``‖Z'p‖²`` grows by ``2 r'Z'p + ‖r‖²``, which is linear in p, and costs grow by as much.
    """
    prior = point.share / point.share.sum() if frame.adversary else None
    across = view.matrix @ frame.turn
    matrix, costs = across + frame.mean, point.costs + 2 * across @ frame.mean
    return LocalDual(matrix * frame.unit, costs * frame.unit**2, prior, relaxation)


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
    problem: LocalStrategy, candidates: list[LocalPoint], duals: list[LocalDual], *, tol: float, **facts: Any
) -> Solution:
    """Let the problem judge candidates, those with fewer outputs first: the first that is certified, or the best.

    Dual weights that come later are tried where no earlier ones certify.
    """
    if problem.user_types > CHEAP:
        # Pricing all patterns takes its time: it is done for one candidate.
        candidates = [lightest(problem, candidates, tol)]
    answers: list[Solution] = []
    for weights, candidate in itertools.product(duals, candidates):
        answers.append(judged_solution(problem, primal(problem, candidate), weights, tol=tol, **facts))
        if answers[-1].status is Status.CERTIFIED:
            return answers[-1]
    return min(answers, key=lambda answer: answer.gap)
