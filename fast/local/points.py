"""Points of the solvers for local privacy: weights on the patterns of some sets, in well-conditioned coordinates.

The coordinates belong to an orthonormal basis of the ones vector and its complement. The vectors of the complement are
rescaled by a unit that depends only on ε and the number of user types, because G is ill-conditioned for small ε
otherwise.
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

MIN_VALUE = 1e-20  # lower limit of weights and slacks

EQUALITY_TOL = 1e-12  # relative difference of two entries that counts as a rounding error

MIN_RELATIVE_PRODUCT = 0.1
"""Lower limit on the initial products of weights and slacks, relative to their mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A problem in coordinates that bring G close to the identity for all ε.

    If the problem is invariant under reversal of the user types, the optimal weights of a set and of its mirror image
    are equal. A set then represents both, with half the weight each, and G is block diagonal: its blocks (`parts`) are
    the symmetric and the antisymmetric coordinates.
    """

    epsilon: float  # ε
    basis: Array  # (n, n) maps a pattern to its coordinates
    symmetric_rows: Array  # (width, n) orthonormal rows that span the vectors invariant under reversal, or all vectors
    parts: tuple[slice, ...]
    roots: tuple[Array, ...]  # (r, width) R in the coordinates of each part, in units that bring the optimum near n
    turn: Array  # (Σr, k) rotates the rows of these roots back to the rows of R
    mean: Array  # (k,) the mean of R over the user types if it has a separate row in these roots, else 0
    lengths: Array  # (n,) ``‖W_u‖²`` in the same units
    share: Array  # (n,) n times the prior; in the worst case, the initial one
    adversary: bool  # whether an adversary chooses the prior
    unit: float  # divisor of the root

    @classmethod
    def of(cls, root: Array, epsilon: float, prior: Array, adversary: bool) -> Frame:
        """Choose coordinates; the unit of the complement of the ones is the largest possible trace of G there."""
        size, excess = root.shape[1], local.gain(epsilon)
        counts = np.arange(1, size)
        traces = counts * (size - counts) * (excess / (size + counts * excess)) ** 2
        complement_unit = np.sqrt(traces.max() / (size - 1))
        mean, centred_root = np.zeros(len(root)), local.centred(root)
        is_uniform = adversary or bool(np.ptp(prior) <= EQUALITY_TOL * prior.max())
        if is_uniform and not adversary:
            mean = root.mean(axis=1)
            root = np.vstack([centred_root, np.full(size, np.linalg.norm(mean))])
        mirrored = is_uniform and same_in_reverse(centred_root)
        symmetric_rows, vectors = np.eye(size), scipy.linalg.qr(np.ones((size, 1)))[0].T
        if mirrored:
            symmetric_rows, vectors = reversal_bases(size)
        basis = np.vstack([np.full(size, size**-0.5), vectors[1:] / complement_unit])
        rotated, unit = root @ basis.T, float(np.linalg.norm(root @ basis.T)) / np.sqrt(size)
        parts: tuple[slice, ...] = (slice(0, size),)
        roots, bases = (rotated,), (np.eye(len(root)),)
        if mirrored:
            parts = (slice(0, len(symmetric_rows)), slice(len(symmetric_rows), size))
            bases, roots = zip(*(scipy.linalg.qr(rotated[:, part], mode="economic") for part in parts), strict=True)
        return cls(
            epsilon,
            basis,
            symmetric_rows,
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
        """Factor from this objective to the problem's, which in the worst case is for one user type, not n."""
        return self.unit**2 / (len(self.share) if self.adversary else 1)

    @property
    def offset(self) -> float:
        """Amount subtracted from the objective: in the worst case, the mean squared norm of the columns of W."""
        return self.scale * float(self.lengths.sum()) if self.adversary else 0.0

    def coordinates(self, sets: Sets) -> Array:
        """Return the patterns of sets in these coordinates, shape (s, n), computed without cancellation."""
        size, excess = len(self.share), local.gain(self.epsilon)
        scale = excess / (size + excess * sets.sum(axis=1, keepdims=True))
        return np.hstack([np.full((len(sets), 1), size**-0.5), (sets @ self.basis[1:].T) * scale])

    @property
    def mirrored(self) -> bool:
        """Whether a set also represents its mirror image."""
        return len(self.parts) > 1

    def rows(self, sets: Sets) -> Array:
        """Return the patterns of sets, shape (s, n); means of pattern and mirror image if a set represents both."""
        rows = local.rows(sets, self.epsilon)
        return (rows + rows[:, ::-1]) / 2 if self.mirrored else rows

    def representatives(self, sets: Sets) -> Sets:
        """Return the representative of each set and its mirror image."""
        if not self.mirrored:
            return sets
        differs = sets != sets[:, ::-1]
        first = differs.argmax(axis=1)
        reverse = differs.any(axis=1) & ~sets[np.arange(len(sets)), first]
        return np.where(reverse[:, None], sets[:, ::-1], sets)

    def members(self, sets: Sets) -> tuple[Sets, npt.NDArray[np.intp], Array]:
        """Return all represented sets, shape (a, n), the indices of their representatives, and fractions of the weight.

        The sets are sorted by size, then by members.
        """
        is_single = np.all(sets == sets[:, ::-1], axis=1) | (not self.mirrored)
        places, pairs = np.arange(len(sets)), np.flatnonzero(~is_single)
        shares = np.where(is_single, 1.0, 0.5)
        members, places = np.vstack([sets, sets[pairs, ::-1]]), np.append(places, pairs)
        order = np.lexsort((*~members.T[::-1], members.sum(axis=1)))
        return members[order], places[order], shares[places[order]]


def same_in_reverse(centred_workload: Array) -> bool:
    """Return whether the Gram matrix of a centred workload is invariant under reversal of the user types."""
    gram = centred_workload.T @ centred_workload
    return len(gram) > 2 and bool(np.abs(gram - gram[::-1, ::-1]).max() <= EQUALITY_TOL * np.abs(gram).max())


def reversal_bases(size: int) -> tuple[Array, Array]:
    """Return orthonormal bases of the symmetric vectors, and of all vectors: the ones, symmetric, antisymmetric."""
    units = np.eye(size)
    symmetric, antisymmetric = (units + units[::-1])[: size - size // 2], (units - units[::-1])[: size // 2]
    led = scipy.linalg.qr(np.vstack([np.ones(size), symmetric[:-1]]).T, mode="economic")[0].T
    return symmetric / np.linalg.norm(symmetric, axis=1, keepdims=True), np.vstack([led, antisymmetric / np.sqrt(2)])


@dataclass(frozen=True, slots=True, eq=False)
class PatternPoint:
    """The state of the method: weights and slacks of the patterns of some sets, costs, the adversary's variables."""

    sets: Sets  # S, one per row (s, n)
    weights: Array  # weights, slacks: (s,) w and s
    slacks: Array
    costs: Array  # (n,) y
    share: Array  # (n,) n π
    spare: Array  # (n,) ``t - T_u``; ones if there is no adversary
    level: float  # t


def moments(frame: Frame, point: PatternPoint) -> Array:
    """Return the moment matrix ``M = Σ_S w_S [1; s][1; s]' / (1'v_S · b'v_S)``, shape (n + 1, n + 1)."""
    sets, places, shares = frame.members(point.sets)
    excess = local.gain(frame.epsilon)
    masses = (len(frame.share) + excess * sets.sum(axis=1)) * (point.share.sum() + excess * sets @ point.share)
    lifted_sets = np.hstack([np.ones((len(sets), 1)), sets])
    return np.asarray(lifted_sets.T @ (lifted_sets * (shares * point.weights[places] / masses)[:, None]))


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The values at a point: its objective and the quantities of the Newton equations.

    `objective` and `matrix` (Z) are in the units of the frame. `forms` is ``w_S ‖Z'p_S‖² / a_S``, `rows` are the
    patterns (s, n), and `coordinates` are the same patterns in the frame. `orthonormal` (O) and `scaled` (Y) have one
    array for each part of the coordinates. `portions` is ``n π_u p_Su / a_S``, shape (s, n).
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
                # A direction that only patterns of vanishing weight have is lost in the rounding errors of the others.
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
    """Return a start with the given weights, equal by default, and slacks bounded away from 0."""
    size = len(frame.share)
    initial_weights = np.full(len(sets), size / len(sets)) if weights is None else weights
    sets, index = np.unique(frame.representatives(sets), axis=0, return_inverse=True)
    merged = np.bincount(index.ravel(), initial_weights).astype(np.float64)
    draft = PatternPoint(
        sets, merged, np.ones(len(sets)), np.ones(size), np.maximum(frame.share, 0.0), np.ones(size), 1.0
    )
    view = View.of(frame, draft)
    costs = np.full(size, view.objective / size)
    slacks = np.maximum(view.rows @ costs - view.forms / merged, 0.3 * costs[0])
    variances = view.portions.T @ view.forms / frame.share - frame.lengths if frame.adversary else np.zeros(size)
    level = float(variances.max() + 0.3 * costs[0])
    spare = level - variances
    return replace(draft, costs=costs, slacks=slacks, spare=spare, level=level)


def replace_patterns(
    frame: Frame, point: PatternPoint, keep: npt.NDArray[np.bool_], sets: Sets, product: float
) -> PatternPoint:
    """Keep the patterns in a mask and add others; balance the column sums.

    Products of weights and slacks start at `product` for new patterns. If a product is far below that, its smaller
    factor is increased, because a point too close to the boundary does not allow long steps.
    """
    product = max(product, float(np.mean(point.weights * point.slacks)))
    weights_kept, slacks = point.weights[keep], point.slacks[keep]
    new_slacks = np.full(len(sets), max(float(np.median(slacks)), product))
    min_product = MIN_RELATIVE_PRODUCT * product
    weights = np.where(weights_kept < slacks, np.maximum(weights_kept, min_product / slacks), weights_kept)
    slacks = np.where(weights_kept < slacks, slacks, np.maximum(slacks, min_product / weights_kept))
    members = np.vstack([point.sets[keep], sets])
    return replace(
        point,
        sets=members,
        weights=balance_columns(np.append(weights, product / new_slacks), frame.rows(members)),
        slacks=np.append(slacks, new_slacks),
        spare=np.maximum(point.spare, min_product / np.maximum(point.share, MIN_VALUE)),
    )


def balance_columns(weights: Array, rows: Array) -> Array:
    """Return weights with ``Σ_S w_S p_S = 1`` by minimal relative changes; unchanged if one would become negative."""
    scaled_rows = rows * np.sqrt(weights)[:, None]
    change = rows @ np.linalg.lstsq(scaled_rows.T @ scaled_rows, 1 - weights @ rows, rcond=None)[0]
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
    """Return the point after a step with given primal and dual step lengths."""
    return PatternPoint(
        point.sets,
        np.maximum(point.weights * (1 + primal * change.weights), MIN_VALUE),
        np.maximum(point.slacks + dual * change.slacks, MIN_VALUE),
        point.costs + dual * change.costs,
        point.share * (1 + primal * change.share),
        np.maximum(point.spare + dual * change.spare, MIN_VALUE),
        point.level + dual * change.level,
    )


# Feasible strategies and dual weights for the judge, from weights on patterns.


MAX_OUTPUTS_TO_REDUCE = 300  # removing superfluous outputs takes seconds if more may be needed

MAX_CHEAP_USER_TYPES = 20  # the judge prices all patterns of this number of user types in negligible time


def strategies(problem: LocalStrategy, frame: Frame, point: PatternPoint, view: View) -> list[LocalPoint]:
    """Return strategies with few outputs: of the active patterns, of all patterns, and one that keeps all outputs."""
    prior = point.share / point.share.sum() if frame.adversary else problem.prior
    sets, places, shares = frame.members(point.sets)
    weights, rows, lengths = shares * point.weights[places], local.rows(sets, frame.epsilon), view.forms / point.weights
    active_weights = np.where((point.weights > point.slacks)[places], weights, 0.0)
    points, sparse_weights = [], sparsest_weights(frame, point.share, sets, weights, lengths[places])
    candidates = [sparsest_weights(frame, point.share, sets, active_weights, lengths[places]), sparse_weights]
    candidates += [weights] if np.any(sparse_weights == 0) else []
    for candidate in {candidate.tobytes(): candidate for candidate in candidates}.values():
        positive = candidate > 0
        if positive.any():
            new_weights = balance_columns(candidate[positive], rows[positive])
            points.append(problem.feasible(LocalPoint(new_weights[:, None] * rows[positive], prior)))
    return points


def sparsest_weights(frame: Frame, share: Array, sets: Sets, weights: Array, lengths: Array) -> Array:
    """Return sparse weights, shape (s,), with the same G and, in the worst case, the same variances.

    ``G = Σ_S w_S p_S p_S' / a_S`` has n(n+1)/2 entries. For a fixed G, and so fixed ``‖Z'p_S‖² / a_S`` (`lengths`),
    the variances are linear in the weights too. Non-negative least squares returns weights on linearly independent
    columns (Carathéodory).
    """
    # Imported here so that solvers load without it.
    from scipy.optimize import nnls

    positive = weights > 0
    row, column = np.triu_indices(len(share))
    max_outputs = len(row) + frame.adversary * len(share)
    if np.count_nonzero(positive) <= max_outputs or max_outputs > MAX_OUTPUTS_TO_REDUCE:
        return weights
    coordinates, rows, sparse_weights = (
        frame.coordinates(sets[positive]),
        local.rows(sets[positive], frame.epsilon),
        np.zeros(len(weights)),
    )
    mass = rows @ share
    system = coordinates[:, row] * coordinates[:, column] / mass[:, None]
    if frame.adversary:
        relative_lengths = lengths[positive] / lengths[positive].mean()
        system = np.hstack([system, rows * share * (relative_lengths / mass)[:, None]])
    try:
        sparse_weights[positive] = nnls(system.T, weights[positive] @ system)[0]
    except RuntimeError:  # the iteration limit: more outputs do no harm
        return weights
    return sparse_weights


def dual(frame: Frame, point: PatternPoint, view: View, relaxation: Relaxation | None = None) -> LocalDual:
    """Return the dual weights of a point in the units of the problem.

    The frame's Z belongs to the centred R. With r the mean of R, ``Z + 1 r'`` belongs to R itself: since ``1'p = 1``,
    ``‖Z'p‖²`` increases by ``2 r'Z'p + ‖r‖²``, which is linear in p, and the costs increase by as much.
    """
    prior = point.share / point.share.sum() if frame.adversary else None
    rotated = view.matrix @ frame.turn
    matrix, costs = rotated + frame.mean, point.costs + 2 * rotated @ frame.mean
    return LocalDual(matrix * frame.unit, costs * frame.unit**2, prior, relaxation)


def closed_form_weights(problem: LocalStrategy, weights: LocalDual) -> LocalDual:
    """Return dual weights that are cheap to judge: for many user types the judge takes the closed-form bound."""
    if problem.user_types <= MAX_CHEAP_USER_TYPES:
        return weights
    return replace(weights, relaxation=Relaxation.of(problem.user_types))


def primal(problem: LocalStrategy, point: LocalPoint) -> LocalPoint | Array:
    """Return a point in the form of the problem's solutions, which contain the prior only in the worst case."""
    return point if problem.criterion == "worst" else point.strategy


def objective(problem: LocalStrategy, point: LocalPoint) -> float:
    """Return the judge's objective of a point, with dual weights that are cheap to judge."""
    size, rank = problem.user_types, len(problem.root)
    zero_dual = LocalDual(np.zeros((size, rank)), np.zeros(size), relaxation=Relaxation.of(size))
    return problem.certify(point, zero_dual).objective


def smallest_good(problem: LocalStrategy, candidates: list[LocalPoint], tol: float) -> LocalPoint:
    """Return the first candidate, in order of outputs, whose objective is within the tolerance of the best."""
    if len(candidates) == 1:
        return candidates[0]
    values = [objective(problem, candidate) for candidate in candidates]
    max_value = min(values) + tol * abs(min(values))
    return next(candidate for candidate, value in zip(candidates, values, strict=True) if value <= max_value)


def best(
    problem: LocalStrategy, candidates: list[LocalPoint], duals: list[LocalDual], *, tol: float, **facts: Any
) -> Solution:
    """Judge candidates, sorted by number of outputs; return the first certified solution, or the one of smallest gap.

    If no candidate is certified with the first dual weights, the next dual weights are tried.
    """
    if problem.user_types > MAX_CHEAP_USER_TYPES:
        # Pricing all patterns is slow: do it for one candidate only.
        candidates = [smallest_good(problem, candidates, tol)]
    answers: list[Solution] = []
    for weights, candidate in itertools.product(duals, candidates):
        answers.append(judged_solution(problem, primal(problem, candidate), weights, tol=tol, **facts))
        if answers[-1].status is Status.CERTIFIED:
            return answers[-1]
    return min(answers, key=lambda answer: answer.gap)
