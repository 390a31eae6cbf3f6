"""A bound for many user types by a primal-dual method on moments of sets, if few pairs of types occur in sets.

`dualmech.fast.local.bound` defines N. It is a multiplier of the program that minimises

    tr(R G⁻¹ R'),   G = T M T',   over M ⪰ 0 with T M T'b = 1,

where M is the moment matrix ``Σ_S w_S [1; s][1; s]'``. Its diagonal equals its first row, its entries are
non-negative, and no ``|s|`` lies between two consecutive integers. The costs y are the multipliers of the column sums,
N is the multiplier of M, and a `Relaxation` contains the others. If few pairs of user types are ever in a set
together, as for large ε, most entries of M are 0, and their multipliers are free. Only the other entries are unknowns:
far fewer than the multipliers in `dualmech.fast.local.barrier`.

A step solves the linearised optimality conditions for decreasing complementarity products of entries and multipliers.
The product of M and ``S = N - T'ZZ'T`` is linearised at the Nesterov-Todd scaling point. The moments of the patterns
of a search are a good start: a few steps suffice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech.fast.local.barrier import RIDGE
from dualmech.geometry import local
from dualmech.geometry.local import Relaxation
from dualmech.progress import NO_DEADLINE, Deadline
from dualmech.validate import Array

Places = npt.NDArray[np.intp]
Pairs = npt.NDArray[np.bool_]

MAX_ENTRIES = 8000  # with this number of unknown entries, a step takes some seconds and less than a gigabyte
INITIAL_PRODUCTS = 0.1  # sum of complementarity products at the start, relative to the objective
RESTART_FACTOR = 10.0  # after a restart, this sum is at least the final one times this factor
MAX_STEPS, MAX_TOTAL_STEPS = 40, 80  # between restarts, and in total
STEP_TO_BOUNDARY = 0.9  # maximum fraction of the distance to the boundary in one step
SHORT_STEP, MAX_SHORT_STEPS = 0.2, 16  # length of a short step, and number of successive short steps that end the path
MIN_DECREASE = 1e-3  # minimum factor on the products in a step
PAIR_FLOORS = (3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-6)  # lower limits on initial pair entries, relative to the diagonal
SINGULAR_TOL, CORNER_INCREASE = 1e-6, 1e-2  # if M is singular up to this tolerance, its corner increases by this factor
MIN_SPARE = 0.1  # lower limit on the initial slack of a size constraint, relative to the mean
NUM_FULL_STEPS = 2  # full steps required at the end
SIZE_FACTOR = 2.0  # constrained sizes, relative to the largest mean size of the sets of a user type
BLOCK_ROWS = 512  # of the Newton matrix


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The unknown entries x of M: its corner, its first row, and pairs of user types.

    ``M = Σ x_k E_k``. E_k is ``f_k (l r' + r l')``, summed over an entry and its mirror image if the problem is
    invariant under reversal. All l and r are rows of `vectors`: e_0 … e_n, and ``e_0 + e_u / 2`` for the first row,
    which equals the diagonal.
    """

    vectors: Array  # (2n + 1, n + 1)
    left: Places  # left, right: (g, v) indices of l and r in `vectors`, for each image
    right: Places
    factors: Array  # (v,) f

    @classmethod
    def of(cls, pairs: Pairs, mirrored: bool) -> Entries:
        """Return the entries for a mask of the pairs of user types, shape (n, n)."""
        size = len(pairs)
        users, (first, second) = np.arange(size), np.nonzero(np.triu(pairs, 1))
        if mirrored:
            users, canonical = users[: size - size // 2], first + second < size
            first, second = first[canonical], second[canonical]
        left, right = np.concatenate([users, first]), np.concatenate([users, second])
        self_mirrored = np.zeros(len(left), dtype=bool)
        places = [(left, right)]
        if mirrored:
            self_mirrored = left + right == size - 1
            places.append((size - 1 - left, size - 1 - right))
        units, corner = np.eye(size + 1), np.zeros((len(places), 1), dtype=np.intp)
        diagonal = np.where(np.arange(len(left)) < len(users), size + 1, 1)
        return cls(
            np.vstack([units, units[0] + units[1:] / 2]),
            np.hstack([corner, [members + 1 for members, _ in places]]),
            np.hstack([corner, [members + diagonal for _, members in places]]),
            np.append(0.5 / len(places), np.where(self_mirrored, 0.5, 1.0)),
        )

    def __len__(self) -> int:
        return len(self.factors)

    @property
    def mirrored(self) -> bool:
        """Whether the problem is invariant under reversal of the user types."""
        return len(self.left) > 1

    @property
    def rows(self) -> int:
        """The number of unknown entries in the first row."""
        return 1 + int((self.right[0] >= (len(self.vectors) + 1) // 2).sum())

    @property
    def counts(self) -> Array:
        return np.asarray(len(self.left) * self.factors)[self.rows :]

    def values(self, matrix: Array) -> Array:
        size = matrix.shape[1]
        return np.asarray(matrix[self.left[0], np.where(self.right[0] < size, self.right[0], 0)])

    def matrix(self, values: Array) -> Array:
        coefficients = np.zeros((len(self.vectors),) * 2)
        for left, right in zip(self.left, self.right, strict=True):
            np.add.at(coefficients, (left, right), self.factors * values)
        half = self.vectors.T @ coefficients @ self.vectors
        return np.asarray(half + half.T)

    def means(self, form: Array) -> Array:
        """Return ``tr E_k X`` for a symmetric X."""
        products = self.vectors @ form @ self.vectors.T
        return np.asarray(2 * self.factors * products[self.left, self.right].sum(axis=0))

    def forms(self, first: Array, second: Array, total: Array) -> None:
        """Add ``tr E_k X E_l Y`` for symmetric X and Y below the diagonal of `total`.

        X and Y are invariant under reversal if the problem is. One image of k and all images of l then suffice.
        """
        first_form, second_form = (self.vectors @ form @ self.vectors.T for form in (first, second))
        left, right = self.left[0], self.right[0]
        for start in range(0, len(left), BLOCK_ROWS):
            rows = slice(start, min(start + BLOCK_ROWS, len(left)))
            block = np.zeros((rows.stop - start, rows.stop))
            for image_left, image_right in zip(self.left[:, : rows.stop], self.right[:, : rows.stop], strict=True):
                # Exchanging X and Y gives the other half of the products.
                for start_row, end_row in ((left, right), (right, left))[: 1 if first is second else 2]:
                    block += (
                        first_form[np.ix_(start_row[rows], image_left)]
                        * second_form[np.ix_(end_row[rows], image_right)]
                    )
                    block += (
                        first_form[np.ix_(start_row[rows], image_right)]
                        * second_form[np.ix_(end_row[rows], image_left)]
                    )
            block *= (
                (2 if first is second else 1) * len(self.left) * self.factors[rows, None] * self.factors[: rows.stop]
            )
            total[rows, : rows.stop] += block


@dataclass(frozen=True, slots=True, eq=False)
class MomentProgram:
    """The program with R (k, n), b (n,) and T (n, n + 1): its unknown entries and the linear functions of them."""

    root: Array
    share: Array
    lift: Array
    entries: Entries
    sizes: Places  # (j,) the sizes j of the size constraints
    spreads: Array  # (j, v) maps entries to the mean of ``(|s| - j)(|s| - j - 1)``
    sums: Array  # (i, v) maps entries to ``T M T'b``, for the first half of the user types if the others are images

    @classmethod
    def of(cls, root: Array, share: Array, epsilon: float, entries: Entries, max_set_size: int) -> MomentProgram:
        """Return the program, with size constraints up to `max_set_size` + 1."""
        size = len(share)
        lift = np.hstack([np.ones((size, 1)), local.gain(epsilon) * np.eye(size)])
        j = np.arange(1, min(max_set_size + 1, size - 2) + 1)
        unit, members = np.eye(size + 1)[0], np.append(0.0, np.ones(size))
        corner_members = np.outer(unit, members)
        squares, counts = (
            entries.means(np.outer(members, members)),
            entries.means((corner_members + corner_members.T) / 2),
        )
        spreads = squares - np.outer(2 * j + 1, counts) + np.outer(j * (j + 1), entries.means(np.outer(unit, unit)))
        lift_rows = lift @ entries.vectors.T
        weights = entries.vectors @ (lift.T @ share)
        sums = np.zeros((size - size // 2 if entries.mirrored else size, len(entries)))
        for left, right in zip(entries.left, entries.right, strict=True):
            sums += lift_rows[: len(sums), left] * weights[right] + lift_rows[: len(sums), right] * weights[left]
        return cls(root, share, lift, entries, j, spreads, sums * entries.factors)

    def users(self, values: Array) -> Array:
        """Return the costs, shape (n,), from the multipliers of the sums."""
        if not self.entries.mirrored:
            return values
        costs = np.zeros(len(self.share))
        costs[: len(values)] += values / 2
        costs[::-1][: len(values)] += values / 2
        return costs


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Entries of M and all multipliers."""

    values: Array  # (v,) x
    pairs: Array  # multipliers of the pairs
    spare: Array  # (j,) slacks of the size constraints
    sizes: Array  # (j,) their multipliers
    slack: Array  # (n + 1, n + 1) S
    costs: Array  # (i,) multipliers of the sums

    def products(self, program: MomentProgram, matrix: Array) -> float:
        """Return the sum of all complementarity products: approximately the gap."""
        entries = program.entries
        pairs = entries.counts * self.values[entries.rows :] @ self.pairs
        return float(pairs + self.spare @ self.sizes + np.vdot(matrix, self.slack))


def _begin(program: MomentProgram, matrix: Array, share: float) -> State:
    """Return the state at M with equal products that sum to a fraction of the objective."""
    entries = program.entries
    values = entries.values(matrix)
    spare = program.spreads @ values
    spare = np.maximum(spare, MIN_SPARE * spare.mean()) if spare.size else spare
    objective = float(np.vdot(program.root.T, _half(program, matrix)))
    tau = share * objective / (len(matrix) + len(spare) + entries.counts.sum())
    inverse = _inverse(entries.matrix(values))
    return State(values, tau / values[entries.rows :], spare, tau / spare, tau * inverse, np.zeros(len(program.sums)))


def _half(program: MomentProgram, matrix: Array) -> Array:
    """Return ``Z = G⁻¹ R'``."""
    factor = scipy.linalg.cho_factor(program.lift @ matrix @ program.lift.T, lower=True, check_finite=False)
    return np.asarray(scipy.linalg.cho_solve(factor, program.root.T, check_finite=False))


def _inverse(matrix: Array) -> Array:
    factor = scipy.linalg.cho_factor(matrix, lower=True, check_finite=False)
    inverse = scipy.linalg.cho_solve(factor, np.eye(len(matrix)), check_finite=False)
    return np.asarray((inverse + inverse.T) / 2)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Changes of the variables of a state, and the primal and dual step lengths."""

    values: Array
    pairs: Array
    spare: Array
    sizes: Array
    slack: Array
    costs: Array
    primal: float
    dual: float

    def taken(self, state: State) -> State:
        return State(
            state.values + self.primal * self.values,
            state.pairs + self.dual * self.pairs,
            state.spare + self.primal * self.spare,
            state.sizes + self.dual * self.sizes,
            state.slack + self.dual * self.slack,
            self.costs,
        )


class Equations:
    """The linearised and factored optimality conditions at a state."""

    def __init__(self, program: MomentProgram, state: State) -> None:
        self.program, self.state = program, state
        entries, lift = program.entries, program.lift
        self.matrix = entries.matrix(state.values)
        self.inverse = _inverse(self.matrix)
        half = _half(program, self.matrix)
        self.objective = float(np.vdot(program.root.T, half))
        lifted_half = lift.T @ half
        self.scaling = _scaling(self.matrix, state.slack)
        self.gradient = entries.means(lifted_half @ lifted_half.T)
        self.products = state.products(program, self.matrix)
        curvature = np.zeros((len(state.values),) * 2)
        entries.forms(2 * lifted_half @ lifted_half.T, lift.T @ _inverse(lift @ self.matrix @ lift.T) @ lift, curvature)
        entries.forms(self.scaling, self.scaling, curvature)
        pairs = np.arange(entries.rows, len(curvature))
        curvature[pairs, pairs] += entries.counts * state.pairs / state.values[pairs]
        scaled_spreads = program.spreads * np.sqrt(state.sizes / state.spare)[:, None]
        for start in range(0, len(curvature), BLOCK_ROWS):
            curvature[start : start + BLOCK_ROWS] += scaled_spreads[:, start : start + BLOCK_ROWS].T @ scaled_spreads
        self.scale = 1 / np.sqrt(np.diagonal(curvature))
        curvature *= self.scale
        curvature *= self.scale[:, None]
        curvature[np.diag_indices(len(curvature))] += RIDGE
        self.factor = scipy.linalg.cholesky(curvature, lower=True, overwrite_a=True, check_finite=False), True
        self.sums = program.sums * self.scale
        self.solved = scipy.linalg.cho_solve(self.factor, self.sums.T, check_finite=False)
        self.rest = 1 - program.sums @ state.values

    def step(self, tau: float) -> Step:
        program, state, entries = self.program, self.state, self.program.entries
        pair_values = state.values[entries.rows :]
        gap_error = program.spreads @ state.values - state.spare
        force = self.gradient + tau * entries.means(self.inverse)
        force += program.spreads.T @ ((tau - state.sizes * gap_error) / state.spare)
        force[entries.rows :] += entries.counts * tau / pair_values
        unconstrained = scipy.linalg.cho_solve(self.factor, self.scale * force, check_finite=False)
        costs = np.linalg.solve(self.sums @ self.solved, self.sums @ unconstrained - self.rest)
        values = self.scale * (unconstrained - self.solved @ costs)
        matrix, spare = entries.matrix(values), program.spreads @ values + gap_error
        pair_steps = (tau - state.pairs * values[entries.rows :]) / pair_values - state.pairs
        size_steps = (tau - state.sizes * spare) / state.spare - state.sizes
        slack = tau * self.inverse - state.slack - self.scaling @ matrix @ self.scaling
        slack = (slack + slack.T) / 2
        primal = min(_to_zero(pair_values, values[entries.rows :]), _to_zero(state.spare, spare))
        dual = min(_to_zero(state.pairs, pair_steps), _to_zero(state.sizes, size_steps))
        primal, dual = min(primal, _to_singular(self.matrix, matrix)), min(dual, _to_singular(state.slack, slack))
        return Step(
            values,
            pair_steps,
            spare,
            size_steps,
            slack,
            costs,
            min(1.0, STEP_TO_BOUNDARY * primal),
            min(1.0, STEP_TO_BOUNDARY * dual),
        )


def _scaling(matrix: Array, slack: Array) -> Array:
    """Return the inverse of the positive definite W with ``W S W = M``."""
    lower = np.linalg.cholesky(matrix)
    values, vectors = np.linalg.eigh(lower.T @ slack @ lower)
    rotated = scipy.linalg.solve_triangular(lower, vectors, lower=True, trans="T", check_finite=False)
    if not values[0] > 0:
        raise np.linalg.LinAlgError("M or S is singular")
    rotated *= values**0.25
    return np.asarray(rotated @ rotated.T)


def _to_zero(values: Array, changes: Array) -> float:
    """Return the maximum step length, up to 10, that keeps some positive values non-negative."""
    return float(1 / np.max(-changes / values, initial=0.1))


def _to_singular(matrix: Array, change: Array) -> float:
    """Return the maximum step length, up to 10, that keeps a positive definite matrix semidefinite."""
    lower = np.linalg.cholesky(matrix)
    half_scaled = scipy.linalg.solve_triangular(lower, change, lower=True, check_finite=False)
    scaled = scipy.linalg.solve_triangular(lower, half_scaled.T, lower=True, check_finite=False)
    return float(1 / max(-np.linalg.eigvalsh((scaled + scaled.T) / 2)[0], 0.1))


def _step(program: MomentProgram, state: State, may_decrease: bool, target: float) -> tuple[State, float, float]:
    """Take a step; return the new state, the relative sum of products before it, and the step length.

    A predictor step determines the decrease of the products, unless they are at their target or `may_decrease` is
    False.
    """
    equations = Equations(program, state)
    entries = program.entries
    count = len(equations.matrix) + len(state.spare) + float(entries.counts.sum())
    tau, relative_products = equations.products / count, equations.products / equations.objective
    if may_decrease and relative_products > target:
        predicted = equations.step(0.0).taken(state)
        ratio = predicted.products(program, entries.matrix(predicted.values)) / equations.products
        tau *= max(ratio**3, MIN_DECREASE)
    step = equations.step(tau)
    return step.taken(state), relative_products, min(step.primal, step.dual)


def dual_weights(program: MomentProgram, state: State) -> tuple[Array, Relaxation, Array, float]:
    """Return costs, multipliers, the multipliers of pairs before clipping, shape (n, n), and the objective.

    The multipliers satisfy ``N = T'ZZ'T + S`` except in the first row. Pairs that are 0 in M may have a negative
    multiplier, and have to enter then.
    """
    size, lift = len(program.share), program.lift
    costs = program.users(state.costs)
    half = _half(program, program.entries.matrix(state.values))
    lifted_half, objective = lift.T @ half, float(np.vdot(program.root.T, half))
    mixed = np.outer(lift.T @ costs, lift.T @ program.share)
    sizes = Relaxation.of(size)
    sizes.sizes[program.sizes - 1] = state.sizes
    residual = (mixed + mixed.T) / 2 - sizes.matrix() - lifted_half @ lifted_half.T - state.slack
    pair_multipliers = 2 * np.triu(residual[1:, 1:], 1)
    relaxation = Relaxation.of(
        size, np.diagonal(residual)[1:].copy(), both=np.maximum(pair_multipliers, 0.0), sizes=sizes.sizes
    )
    return costs, relaxation, pair_multipliers, objective


def path(
    root: Array,
    share: Array,
    epsilon: float,
    start: Array,
    mirrored: bool,
    target: float,
    deadline: Deadline = NO_DEADLINE,
) -> Iterator[tuple[Array, float]]:
    """Yield the costs and all multipliers of a `Relaxation` as one vector, and the objective, after each step from M.

    The path ends when the products are a fraction `target` of the objective, at the deadline, or after many short
    steps. When pairs with negative multipliers enter, the path restarts from the current M. Raises LinAlgError if
    rounding errors end it.
    """
    users = start[1:, 1:]
    pairs, max_set_size = users > 0, int(np.ceil(SIZE_FACTOR * (users.sum(axis=0) / np.diagonal(users)).max()))
    matrix, relative_products, num_steps, stalled = start, INITIAL_PRODUCTS, 0, 0
    while num_steps < MAX_TOTAL_STEPS:
        entries = Entries.of(pairs, mirrored)
        if len(entries) > MAX_ENTRIES:
            return
        program = MomentProgram.of(root, share, epsilon, entries, max_set_size)
        state, length, num_full = (
            _begin(program, _inside(matrix, pairs), max(relative_products, RESTART_FACTOR * target)),
            1.0,
            0,
        )
        for _ in range(MAX_STEPS):
            if deadline.passed or stalled == MAX_SHORT_STEPS:
                return
            state, relative_products, length = _step(program, state, length >= SHORT_STEP, target)
            num_steps, stalled = num_steps + 1, stalled + 1 if length < SHORT_STEP else 0
            costs, relaxation, pair_multipliers, objective = dual_weights(program, state)
            parts = (np.ravel(getattr(relaxation, field.name)) for field in fields(relaxation))
            yield np.concatenate([costs, *parts]), objective
            absent = (pair_multipliers < 0) & ~pairs
            num_full = num_full + 1 if relative_products <= target and length == 1.0 else 0
            if num_full == NUM_FULL_STEPS or (length == 1.0 and absent.any()):
                break
        if not absent.any():
            break
        matrix, pairs = entries.matrix(state.values), pairs | absent | absent.T


def _inside(matrix: Array, pairs: Pairs) -> Array:
    """Return M with the entries of all pairs increased to a floor, if it stays positive definite.

    If all sets have the same size, M is singular: then its corner is increased, as a weight on the empty set would do.
    """
    deviations = np.sqrt(np.diagonal(matrix)[1:])
    min_eigenvalue = float(np.linalg.eigvalsh(matrix)[0])
    if min_eigenvalue < SINGULAR_TOL * matrix[0, 0]:
        matrix = matrix.copy()
        matrix[0, 0] *= 1 + CORNER_INCREASE
        min_eigenvalue = float(np.linalg.eigvalsh(matrix)[0])
    for floor in PAIR_FLOORS:
        adjusted = matrix.copy()
        inner = np.where(pairs, np.maximum(matrix[1:, 1:], floor * deviations[:, None] * deviations), matrix[1:, 1:])
        adjusted[1:, 1:] = inner
        if np.linalg.eigvalsh(adjusted)[0] >= min_eigenvalue / 2:
            break
    return adjusted
