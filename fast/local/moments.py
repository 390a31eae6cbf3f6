"""The bound for many user types whose best sets hold few pairs: a primal-dual method on what types have in common.

`dualmech.fast.local.bound` says what N is. The program that it belongs to minimises

    tr(R G⁻¹ R'),   G = T M T',   over M ⪰ 0 with T M T'b = 1,

where M stands for ``Σ_S w_S [1; s][1; s]'``. Its diagonal is its first row, no entry is negative, and no ``|s|`` lies
between two numbers that follow each other. Costs y belong to the sums, N to M, and multipliers to the rest. Where few
pairs of user types are ever in a set together, as for large ε, most entries of M are 0, and their multipliers are
whatever N needs. Only the other entries are unknown: fewer by far than the multipliers of
`dualmech.fast.local.barrier`.

A step solves the equations of optimality, linearised, for products of entries and multipliers that fall to zero. The
product of M and ``S = N - T'ZZ'T`` is linearised at the matrix that takes one to the other (Nesterov and Todd). The
moments of patterns that a search has weighed are a good beginning: a few steps then suffice.
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

MOST = 8000  # unknown entries up to which a step takes some seconds and less than a gigabyte
FIRST, AGAIN = 0.1, 10.0  # products to begin with, relative to the objective, and again, to the end, at least
STEPS, ALL_STEPS, IDLE = 40, 80, 16  # steps until pairs enter, and in all, at most; short ones after each other
INSIDE = 0.9  # share of the way to the boundary that a step goes at most
LEAST_FALL, SHORT = 1e-3, 0.2  # factor of the products in a step, at least, and the step after which they stay
FLOORS = (3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-6)  # entries of pairs to begin with, relative to those of their types
THIN, WIDER = 1e-6, 1e-2  # least eigenvalue of M over its corner that counts as none; what the corner then gains
CLOSE = 0.1  # what is left of a size's constraint to begin with, relative to the mean, at least
FULL = 2  # full steps at the end, after which the equations hold
LARGER = 2.0  # sizes that are constrained, relative to the largest mean size of the sets that hold a user type
ROWS = 512  # rows of the Newton matrix that are formed at a time


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The unknown entries x of M: its corner, its first row, and pairs of user types.

    ``M = Σ x_k E_k``, E_k the sum of ``f_k (l r' + r l')`` over an entry and its image, where the problem is the same
    in reverse order. All l and r are rows of `vectors`: e_0 … e_n, and ``e_0 + e_u / 2`` for the first row, which is
    the diagonal as well.
    """

    vectors: Array  # (2n + 1, n + 1)
    left: Places  # left, right: (g, v) places of l and r among the vectors, of each image
    right: Places
    factors: Array  # (v,) f

    @classmethod
    def of(cls, pairs: Pairs, mirrored: bool) -> Entries:
        """State the entries for pairs (n, n) of user types."""
        size = len(pairs)
        users, (first, second) = np.arange(size), np.nonzero(np.triu(pairs, 1))
        if mirrored:
            users, standing = users[: size - size // 2], first + second < size
            first, second = first[standing], second[standing]
        left, right = np.concatenate([users, first]), np.concatenate([users, second])
        alone = np.zeros(len(left), dtype=bool)
        places = [(left, right)]
        if mirrored:
            alone = left + right == size - 1
            places.append((size - 1 - left, size - 1 - right))
        units, corner = np.eye(size + 1), np.zeros((len(places), 1), dtype=np.intp)
        diagonal = np.where(np.arange(len(left)) < len(users), size + 1, 1)
        return cls(
            np.vstack([units, units[0] + units[1:] / 2]),
            np.hstack([corner, [members + 1 for members, _ in places]]),
            np.hstack([corner, [members + diagonal for _, members in places]]),
            np.append(0.5 / len(places), np.where(alone, 0.5, 1.0)),
        )

    def __len__(self) -> int:
        return len(self.factors)

    @property
    def mirrored(self) -> bool:
        """Whether user types in reverse order are images."""
        return len(self.left) > 1

    @property
    def rows(self) -> int:
        """The number of unknown entries that are no pairs."""
        return 1 + int((self.right[0] >= (len(self.vectors) + 1) // 2).sum())

    @property
    def counts(self) -> Array:
        return np.asarray(len(self.left) * self.factors)[self.rows :]

    def values(self, matrix: Array) -> Array:
        size = matrix.shape[1]
        return np.asarray(matrix[self.left[0], np.where(self.right[0] < size, self.right[0], 0)])

    def matrix(self, values: Array) -> Array:
        placed = np.zeros((len(self.vectors),) * 2)
        for left, right in zip(self.left, self.right, strict=True):
            np.add.at(placed, (left, right), self.factors * values)
        half = self.vectors.T @ placed @ self.vectors
        return np.asarray(half + half.T)

    def means(self, form: Array) -> Array:
        """Return ``tr E_k X`` for a symmetric X."""
        seen = self.vectors @ form @ self.vectors.T
        return np.asarray(2 * self.factors * seen[self.left, self.right].sum(axis=0))

    def forms(self, first: Array, second: Array, total: Array) -> None:
        """Add ``tr E_k X E_l Y`` for symmetric X and Y, the same in reverse where the problem is, below the diagonal.

        Images of both entries come in pairs with the same trace: one of k against all of l suffices.
        """
        one, other = (self.vectors @ form @ self.vectors.T for form in (first, second))
        left, right = self.left[0], self.right[0]
        for start in range(0, len(left), ROWS):
            rows = slice(start, min(start + ROWS, len(left)))
            block = np.zeros((rows.stop - start, rows.stop))
            for ahead, behind in zip(self.left[:, : rows.stop], self.right[:, : rows.stop], strict=True):
                # The exchange of X and Y gives the other half of the products.
                for start_row, end_row in ((left, right), (right, left))[: 1 if first is second else 2]:
                    block += one[np.ix_(start_row[rows], ahead)] * other[np.ix_(end_row[rows], behind)]
                    block += one[np.ix_(start_row[rows], behind)] * other[np.ix_(end_row[rows], ahead)]
            block *= (
                (2 if first is second else 1) * len(self.left) * self.factors[rows, None] * self.factors[: rows.stop]
            )
            total[rows, : rows.stop] += block


@dataclass(frozen=True, slots=True, eq=False)
class MomentProgram:
    """The program with R (k, n), b (n,) and T (n, n + 1): unknown entries, and what is linear in them."""

    root: Array
    share: Array
    lift: Array
    entries: Entries
    sizes: Places  # (j,) j of the sizes' constraints
    spreads: Array  # (j, v) takes entries to the mean of ``(|s| - j)(|s| - j - 1)``
    sums: Array  # (i, v) takes entries to ``T M T'b``, of the first half of the user types where the others are images

    @classmethod
    def of(cls, root: Array, share: Array, epsilon: float, entries: Entries, largest: int) -> MomentProgram:
        """State the program, with constraints of sizes up to the one above the largest of a set."""
        size = len(share)
        lift = np.hstack([np.ones((size, 1)), local.gain(epsilon) * np.eye(size)])
        j = np.arange(1, min(largest + 1, size - 2) + 1)
        one, members = np.eye(size + 1)[0], np.append(0.0, np.ones(size))
        both = np.outer(one, members)
        squares, counts = entries.means(np.outer(members, members)), entries.means((both + both.T) / 2)
        spreads = squares - np.outer(2 * j + 1, counts) + np.outer(j * (j + 1), entries.means(np.outer(one, one)))
        lifted = lift @ entries.vectors.T
        weights = entries.vectors @ (lift.T @ share)
        sums = np.zeros((size - size // 2 if entries.mirrored else size, len(entries)))
        for left, right in zip(entries.left, entries.right, strict=True):
            sums += lifted[: len(sums), left] * weights[right] + lifted[: len(sums), right] * weights[left]
        return cls(root, share, lift, entries, j, spreads, sums * entries.factors)

    def users(self, values: Array) -> Array:
        """Return the costs (n,) of multipliers of the sums."""
        if not self.entries.mirrored:
            return values
        both = np.zeros(len(self.share))
        both[: len(values)] += values / 2
        both[::-1][: len(values)] += values / 2
        return both


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Entries of M and all multipliers."""

    values: Array  # (v,) x
    pairs: Array  # multipliers of the pairs
    spare: Array  # (j,) what is left of the sizes' constraints
    sizes: Array  # (j,) their multipliers
    slack: Array  # (n + 1, n + 1) S
    costs: Array  # (i,) multipliers of the sums

    def products(self, program: MomentProgram, matrix: Array) -> float:
        """Return the sum of all products of M's entries and multipliers: the distance from the optimum, nearly."""
        entries = program.entries
        pairs = entries.counts * self.values[entries.rows :] @ self.pairs
        return float(pairs + self.spare @ self.sizes + np.vdot(matrix, self.slack))


def _begin(program: MomentProgram, matrix: Array, share: float) -> State:
    """Begin at M, with products that are all the same and sum to a share of the objective."""
    entries = program.entries
    values = entries.values(matrix)
    spare = program.spreads @ values
    spare = np.maximum(spare, CLOSE * spare.mean()) if spare.size else spare
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
    """Changes of all that a state holds, and how far M and the multipliers can go."""

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
    """The equations of optimality at a state, linearised and factored."""

    def __init__(self, program: MomentProgram, state: State) -> None:
        self.program, self.state = program, state
        entries, lift = program.entries, program.lift
        self.matrix = entries.matrix(state.values)
        self.inverse = _inverse(self.matrix)
        half = _half(program, self.matrix)
        self.objective = float(np.vdot(program.root.T, half))
        pulled = lift.T @ half
        self.scaling = _scaling(self.matrix, state.slack)
        self.gradient = entries.means(pulled @ pulled.T)
        self.products = state.products(program, self.matrix)
        curvature = np.zeros((len(state.values),) * 2)
        entries.forms(2 * pulled @ pulled.T, lift.T @ _inverse(lift @ self.matrix @ lift.T) @ lift, curvature)
        entries.forms(self.scaling, self.scaling, curvature)
        pairs = np.arange(entries.rows, len(curvature))
        curvature[pairs, pairs] += entries.counts * state.pairs / state.values[pairs]
        spread = program.spreads * np.sqrt(state.sizes / state.spare)[:, None]
        for start in range(0, len(curvature), ROWS):
            curvature[start : start + ROWS] += spread[:, start : start + ROWS].T @ spread
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
        held = state.values[entries.rows :]
        missing = program.spreads @ state.values - state.spare
        force = self.gradient + tau * entries.means(self.inverse)
        force += program.spreads.T @ ((tau - state.sizes * missing) / state.spare)
        force[entries.rows :] += entries.counts * tau / held
        free = scipy.linalg.cho_solve(self.factor, self.scale * force, check_finite=False)
        costs = np.linalg.solve(self.sums @ self.solved, self.sums @ free - self.rest)
        values = self.scale * (free - self.solved @ costs)
        matrix, spare = entries.matrix(values), program.spreads @ values + missing
        further = (tau - state.pairs * values[entries.rows :]) / held - state.pairs
        prices = (tau - state.sizes * spare) / state.spare - state.sizes
        slack = tau * self.inverse - state.slack - self.scaling @ matrix @ self.scaling
        slack = (slack + slack.T) / 2
        primal = min(_to_zero(held, values[entries.rows :]), _to_zero(state.spare, spare))
        dual = min(_to_zero(state.pairs, further), _to_zero(state.sizes, prices))
        primal, dual = min(primal, _to_singular(self.matrix, matrix)), min(dual, _to_singular(state.slack, slack))
        return Step(values, further, spare, prices, slack, costs, min(1.0, INSIDE * primal), min(1.0, INSIDE * dual))


def _scaling(matrix: Array, slack: Array) -> Array:
    """Return the inverse of the definite W with ``W S W = M``."""
    lower = np.linalg.cholesky(matrix)
    values, vectors = np.linalg.eigh(lower.T @ slack @ lower)
    turned = scipy.linalg.solve_triangular(lower, vectors, lower=True, trans="T", check_finite=False)
    if not values[0] > 0:
        raise np.linalg.LinAlgError("M or S is singular")
    turned *= values**0.25
    return np.asarray(turned @ turned.T)


def _to_zero(values: Array, changes: Array) -> float:
    """Return how far positive values can go until one vanishes."""
    return float(1 / np.max(-changes / values, initial=0.1))


def _to_singular(matrix: Array, change: Array) -> float:
    """Return how far a definite matrix can go until it is singular."""
    lower = np.linalg.cholesky(matrix)
    half = scipy.linalg.solve_triangular(lower, change, lower=True, check_finite=False)
    whole = scipy.linalg.solve_triangular(lower, half.T, lower=True, check_finite=False)
    return float(1 / max(-np.linalg.eigvalsh((whole + whole.T) / 2)[0], 0.1))


def _step(program: MomentProgram, state: State, fall: bool, enough: float) -> tuple[State, float, float]:
    """Take a step; return the state, the products before it relative to the objective, and how far it went.

    A step for vanishing products shows how far they may fall. Where they are small enough, or may not, they stay.
    """
    equations = Equations(program, state)
    entries = program.entries
    count = len(equations.matrix) + len(state.spare) + float(entries.counts.sum())
    tau, relative = equations.products / count, equations.products / equations.objective
    if fall and relative > enough:
        ahead = equations.step(0.0).taken(state)
        share = ahead.products(program, entries.matrix(ahead.values)) / equations.products
        tau *= max(share**3, LEAST_FALL)
    step = equations.step(tau)
    return step.taken(state), relative, min(step.primal, step.dual)


def dual_weights(program: MomentProgram, state: State) -> tuple[Array, Relaxation, Array, float]:
    """Return costs, multipliers with ``N = T'ZZ'T + S`` but in its first row, those of pairs (n, n), the objective.

    Multipliers may be negative for pairs that are 0 in M, and then such a pair has to enter.
    """
    size, lift = len(program.share), program.lift
    costs = program.users(state.costs)
    solved = _half(program, program.entries.matrix(state.values))
    half, objective = lift.T @ solved, float(np.vdot(program.root.T, solved))
    mixed = np.outer(lift.T @ costs, lift.T @ program.share)
    sizes = Relaxation.of(size)
    sizes.sizes[program.sizes - 1] = state.sizes
    rest = (mixed + mixed.T) / 2 - sizes.matrix() - half @ half.T - state.slack
    both = 2 * np.triu(rest[1:, 1:], 1)
    relaxation = Relaxation.of(size, np.diagonal(rest)[1:].copy(), both=np.maximum(both, 0.0), sizes=sizes.sizes)
    return costs, relaxation, both, objective


def path(
    root: Array,
    share: Array,
    epsilon: float,
    begin: Array,
    mirrored: bool,
    enough: float,
    deadline: Deadline = NO_DEADLINE,
) -> Iterator[tuple[Array, float]]:
    """Yield costs and all multipliers of a `Relaxation`, flat, with the objective, after each step from an M.

    The products end at a share `enough` of the objective, when time is up, or where steps stay short. Pairs that M
    does not have but needs enter then, and the path begins again from where it came to. Raises LinAlgError where
    rounding ends it.
    """
    users = begin[1:, 1:]
    pairs, largest = users > 0, int(np.ceil(LARGER * (users.sum(axis=0) / np.diagonal(users)).max()))
    matrix, relative, count, idle = begin, FIRST, 0, 0
    while count < ALL_STEPS:
        entries = Entries.of(pairs, mirrored)
        if len(entries) > MOST:
            return
        program = MomentProgram.of(root, share, epsilon, entries, largest)
        state, length, full = _begin(program, _inside(matrix, pairs), max(relative, AGAIN * enough)), 1.0, 0
        for _ in range(STEPS):
            if deadline.passed or idle == IDLE:
                return
            state, relative, length = _step(program, state, length >= SHORT, enough)
            count, idle = count + 1, idle + 1 if length < SHORT else 0
            costs, relaxation, both, objective = dual_weights(program, state)
            parts = (np.ravel(getattr(relaxation, field.name)) for field in fields(relaxation))
            yield np.concatenate([costs, *parts]), objective
            absent = (both < 0) & ~pairs
            full = full + 1 if relative <= enough and length == 1.0 else 0
            if full == FULL or (length == 1.0 and absent.any()):
                break
        if not absent.any():
            break
        matrix, pairs = entries.matrix(state.values), pairs | absent | absent.T


def _inside(matrix: Array, pairs: Pairs) -> Array:
    """Return M with no entry of the pairs near to zero, as far as it stays definite.

    Where all sets are of one size, M is singular: then its corner is larger, as a weight on no set at all makes it.
    """
    deviations = np.sqrt(np.diagonal(matrix)[1:])
    least = float(np.linalg.eigvalsh(matrix)[0])
    if least < THIN * matrix[0, 0]:
        matrix = matrix.copy()
        matrix[0, 0] *= 1 + WIDER
        least = float(np.linalg.eigvalsh(matrix)[0])
    for floor in FLOORS:
        raised = matrix.copy()
        both = np.where(pairs, np.maximum(matrix[1:, 1:], floor * deviations[:, None] * deviations), matrix[1:, 1:])
        raised[1:, 1:] = both
        if np.linalg.eigvalsh(raised)[0] >= least / 2:
            break
    return raised
