"""Running sums: the dual function, its gradient and products with its Hessian in time proportional to their number."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # it loads special when that is used

from dualmech.errors import InvalidInputError
from dualmech.fast.engine import ascent, loop, newton
from dualmech.fast.reductions.dense import ascend_dense
from dualmech.geometry import tridiagonal
from dualmech.geometry.stream import StreamPoint
from dualmech.geometry.tridiagonal import Bidiagonal, Poles
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution
from dualmech.validate import Array

# With T of `geometry.tridiagonal` for weights λ on cells and μ on sums, the dual function is ``F = tr T^-½``, and
# the relative derivatives of 2F are the diagonals of ``T^-½`` and ``T'^-½``. Minus its Hessian in relative weights is
# therefore these 2 n numbers times the change of the weights, less their own change: for the sum of poles that stands
# for the inverse square root, by the derivative of the recurrences of p and r. This is for each pole a linear
# recurrence forwards and one backwards, followed through many stretches at a time. Both terms use the same poles, so
# most of the error of the poles cancels.

SHARE = 1e-2  # largest error of the quadrature of an evaluation, as a share of the tolerance

COARSE = 1e-2
"""Largest error of the quadrature of the Hessian while the gap is larger; then, the gap.

It decides the pace and not the answer, but where weights fall together the Hessian is as small as the gap.
"""

SINGLE = 1e-4  # error of that quadrature from which on single precision is enough

DIAGONAL = 0.25
"""The Hessian's diagonal, over the costs: it lies between 0 and ½, and is ½ where all singular values are equal."""

EVALUATION, PRODUCT = 3000.0, 150.0  # operations a sum, as measured


@dataclass(frozen=True, slots=True, eq=False)
class Derivative:
    """How a recurrence of the poles changes, in stretches (l, p, s), and what depends on it.

    The logarithm of ``y_k = g_k (y_{k-1} + w) / D_k``, ``D_k = y_{k-1} + w + h_k``, changes by ``x_k = dg_k - A_k dh_k
    + κ_k x_{k-1}`` with those of g and h; ``A_k = h_k / D_k`` and ``κ_k = A_k y_{k-1} / (y_{k-1} + w)``.
    """

    halves: Array  # A
    passed: Array  # κ
    costs: Array  # what costs lose as x grows
    room: Array  # for x
    variances: Array | None  # what variances gain; None where nobody asks for them
    whole: Array  # the products of κ over each stretch (p, s)
    backwards: bool  # whether y follows from the next step's, on which the variances depend

    @classmethod
    def of(cls, shape: tuple[int, int, int], kind: type, backwards: bool, both: bool) -> Derivative:
        parts: list[Array] = [np.empty(shape, dtype=kind) for _ in range(4 + both)]
        halves, passed, costs, room, *variances = parts
        whole = np.ones(shape[1:], dtype=kind)
        return cls(halves, passed, costs, room, variances[0] if both else None, whole, backwards)

    def at(self, step: int, poles: slice, half: Array, before: Array, shift: Array) -> None:
        """Set A and κ of a step, for some poles, given h and the y before."""
        shifted = before + shift
        share = half / (shifted + half)
        self.halves[step, poles] = share
        share *= before / shifted
        self.passed[step, poles] = share
        self.whole[poles] *= share

    def changes(self, by_gains: Array, by_halves: Array) -> tuple[Array, Array]:
        """Return the changes of costs and variances through y (l, s), when g and h change (l, s)."""
        steps, last = range(len(by_gains))[:: -1 if self.backwards else 1], np.zeros_like(self.passed[0])
        for step in steps:  # as if x were 0 before each stretch
            x = np.multiply(self.halves[step], by_halves[step], out=self.room[step])
            np.subtract(by_gains[step], x, out=x)
            x += self.passed[step] * last
            last = x
        costs, variances = np.zeros((2, *by_gains.shape), dtype=by_gains.dtype)
        x = more = self._starts(last)
        for step in steps:
            earlier, more = x, self.passed[step] * more
            x = np.add(self.room[step], more, out=self.room[step])
            costs[step] = np.einsum("ps,ps->s", self.costs[step], x)
            if self.variances is not None:
                variances[step] = np.einsum("ps,ps->s", self.variances[step], earlier if self.backwards else x)
        return costs, variances

    def _starts(self, ends: Array) -> Array:
        """Return x before each stretch, from x at its end where it begins with 0."""
        ends, whole = np.ascontiguousarray(ends.T), np.ascontiguousarray(self.whole.T)
        starts, x = np.empty_like(ends), np.zeros_like(ends[0])
        for stretch in range(len(ends))[:: -1 if self.backwards else 1]:
            starts[stretch] = x
            x = ends[stretch] + whole[stretch] * x
        return np.ascontiguousarray(starts.T)


@dataclass(frozen=True, slots=True, eq=False)
class Curvature:
    """Products with minus the Hessian of 2F in relative weights on cells and sums."""

    ahead: Derivative  # of p
    back: Derivative  # of r
    diagonals: Array  # costs, then variances, of the same sum of poles (2 n,)
    by_a: Array  # what variances lose directly as a and b change (n,); 0 where nobody asks for variances
    by_b: Array
    within: Array  # what costs and variances lose as the weight of the other falls behind (n,)

    @classmethod
    def of(cls, matrix: Bidiagonal, poles: Poles, within: Array, both: bool) -> Curvature:
        count, (a, b), (_, halves) = len(matrix.a), matrix.back, matrix.ahead
        shape = len(a), len(poles.places), a.shape[1]
        kind = np.float32 if poles.error > SINGLE else np.float64
        ahead, back = (Derivative.of(shape, kind, backwards, both) for backwards in (False, True))
        totals, first = np.zeros((4, *a.shape)), 0
        for places, factors in poles.in_parts:
            shift, part = places[:, None], slice(first, first + len(places))
            before, steps = (
                [*tridiagonal.follow(*matrix.ahead, places)],
                tridiagonal.follow(a, b, places, tridiagonal.BACK),
            )
            following, first = next(steps), part.stop
            for step, after in zip(range(len(a))[tridiagonal.BACK], steps, strict=True):
                p, r = before.pop(), following + shift
                ahead.at(step, part, halves[step], before[-1], shift)
                back.at(step, part, b[step], following, shift)
                shifted = p + shift
                left = 1 / (shifted + after)
                scale = factors[:, None] * left**2
                ahead.costs[step, part], back.costs[step, part] = scale * p, scale * after
                totals[0, step] += factors @ left
                if ahead.variances is not None and back.variances is not None:
                    s, q = shift * a[step] / shifted, shift * b[step] / r
                    right = 1 / (shift + s + q)
                    scale = factors[:, None] * right**2
                    s, q = scale * s, scale * q
                    ahead.variances[step, part], back.variances[step, part] = s * (p / shifted), q * (following / r)
                    totals[1:, step] += factors @ right, s.sum(axis=0), q.sum(axis=0)
                following = after
        costs, variances, by_a, by_b = (tridiagonal.in_order(total, count) for total in totals)
        return cls(ahead, back, np.r_[costs, variances], by_a, by_b, within)

    def product(self, cells: Array, sums: Array) -> Array:
        """Multiply with relative changes of the weights on cells and on sums (2 n,)."""
        count, kind = len(cells), self.ahead.passed.dtype
        by_a, by_b = -(cells + sums), -(cells[1:] + sums[:-1])
        gains, halves, a, b = (
            tridiagonal.stretched(change, 0.0).astype(kind)
            for change in (np.r_[0.0, by_b], np.r_[0.0, by_a[:-1]], by_a, np.r_[by_b, 0.0])
        )
        through = self.ahead.changes(gains, halves), self.back.changes(a, b)
        costs, variances = (tridiagonal.in_order(one + other, count) for one, other in zip(*through, strict=True))
        product = self.diagonals * np.r_[cells, sums]
        product[:count] += costs
        product[count:] += self.by_a * by_a - variances
        product[count:-1] += self.by_b[:-1] * by_b
        if np.any(self.within):
            product += np.outer([1, -1], self.within * (cells - sums)).ravel()
        return product


@dataclass(frozen=True, slots=True, eq=False)
class StreamSpectrum:
    """The dual function at weights on cells and, unless the queries' weights are fixed, on sums.

    The function is not smoothed: the barrier that keeps weights from 0 keeps T from being singular.
    `dualmech.fast.engine.newton.Evaluation` says what a solver reads here.
    """

    program: StreamProgram
    weights: Array
    dual_value: float
    constraint_values: Array
    decompositions: int = 1
    barrier: float = 0.0
    offsets: None = None
    smoothing: float = np.inf  # of the barrier
    made: list[Curvature] = field(default_factory=list)  # when it is first asked for

    @property
    def neighbours(self) -> int:
        return len(self.program.numbers)

    @property
    def values(self) -> Array:
        """A lower bound on the singular values: 0, as they are not known."""
        return np.zeros(self.neighbours)

    @property
    def mean(self) -> Array:
        """The sum of the singular values (1,)."""
        return np.array([self.dual_value])

    @property
    def linear(self) -> Array:
        return np.zeros(len(self.weights))

    @property
    def lower_bound(self) -> float:
        sums = self.weights[self.neighbours :]
        return float(self.dual_value**2 / self.weights[: self.neighbours].sum() / (sums.sum() or 1.0))

    @property
    def objective(self) -> float:
        """The objective of the noise that the weights determine: both sides over their limits, multiplied."""
        dearest, worst = (
            self.constraint_values[: self.neighbours].max(),
            self.constraint_values[self.neighbours :].max(initial=0.0),
        )
        return float(dearest * (worst if len(self.constraint_values) > self.neighbours else self.dual_value))

    def gradient(self) -> Array:
        return self.constraint_values

    def gradient_slope(self) -> Array:
        return np.zeros(len(self.weights))

    def smoothed(self, smoothing: float) -> StreamSpectrum:
        """Return the same, its Hessian good enough for a barrier of this size."""
        return replace(self, smoothing=smoothing, made=[])

    def curvature_diagonal(self) -> Array:
        return DIAGONAL * self.weights * self.constraint_values

    def curvature_product(self, change: Array) -> Array:
        """Return minus the Hessian of 2F in relative weights times a vector."""
        if not self.made:
            cells, sums = self.program.split(self.weights)
            matrix = Bidiagonal.of(cells, sums, self.program.decay)
            gap = len(self.weights) * self.smoothing / self.dual_value  # on the central path
            poles = tridiagonal.poles_of(matrix, cells, sums, self.program.decay, min(COARSE, gap))
            within = self.program.within * np.sqrt(cells * sums) / (2 * self.dual_value)
            poles = replace(poles, factors=poles.factors / self.dual_value)  # numbers that single precision holds
            self.made.append(Curvature.of(matrix, poles, within, both=not self.program.fixed))
        count = self.neighbours
        on_sums = np.zeros(count) if self.program.fixed else change[count:]
        return self.dual_value * self.made[0].product(change[:count], on_sums)[: len(change)]

    def covariance(self) -> StreamPoint:
        return StreamPoint(*self.program.split(self.weights), 1.0)

    def tightened(self, share: float) -> None:
        """Return nothing: noise that two weights a cell describe is limited everywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamProgram:
    """Sums with decay, with targets or, where `fixed`, with weights.

    The dual function has the terms ``within √(λ μ)`` on top, for the steps that a group stands for; see `Groups`.
    """

    numbers: Array
    decay: float | Array
    fixed: bool
    tol: float
    within: float | Array = 0.0

    @property
    def sizes(self) -> tuple[int, int, int]:
        count = len(self.numbers)
        return count, 0 if self.fixed else count, count

    @property
    def operations(self) -> tuple[float, float, float]:
        """Operations of an evaluation, of the whole Hessian, which is never formed, and of a product with it."""
        count = len(self.numbers)
        return EVALUATION * count, np.inf, PRODUCT * count

    def split(self, weights: Array) -> tuple[Array, Array]:
        count = len(self.numbers)
        return weights[:count], self.numbers if self.fixed else weights[count:] / self.numbers

    def at(self, weights: Array) -> StreamSpectrum:
        cells, sums = self.split(weights)
        matrix = Bidiagonal.of(cells, sums, self.decay)
        poles = tridiagonal.poles_of(matrix, cells, sums, self.decay, self.tol)
        costs, variances = tridiagonal.inverse_root_diagonals(matrix, poles, both=not self.fixed)
        if np.any(self.within):
            within = self.within * np.sqrt(cells * sums)
            costs, variances = costs + within, variances + within[: len(variances)]
        gains = costs / cells
        if not self.fixed:
            gains = np.concatenate([gains, variances / sums / self.numbers])
        return StreamSpectrum(self, weights, float(costs.sum()), gains)


# From fewer steps: neighbouring steps of nearly equal numbers are taken together, and Newton's method begins at the
# optimum of these groups, drawn out. A group has the sums of its steps' weights, and lacks the singular values of its
# own steps. Of many equal steps with decay β these are ``√(λ μ) / |1 - β e^{iθ}|``, with the mean ``(2/π) K(β)``, K
# being the complete elliptic integral of that modulus; g of them, taken together, have the decay β^g.


FINENESS = 128.0
"""Groups while the distance from the nearer end, a number, or what is left of a variance changes by a factor of e."""

SHIFTED = 0.1
"""Of what a group has more than the next one, the share that lies on the other's side: in weights of cells on that of
the next group, in weights of sums on that of the one before; as measured."""

FEWER = 4  # steps a group, on average, from which on groups are of use
GROUPED = 1e-4  # the gap to which their problem is solved
NEAR = 0.25  # gap, drawn out, beyond which Newton's method is no nearer to the optimum than the fixed point soon is
SLOWEST = 1e-12  # least decay, as -log β: without any, both integrals would be infinite


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Neighbouring steps that are taken together: few steps a group at both ends, and where numbers change."""

    places: Array  # (n,) where each step is, in groups from the first
    of_step: npt.NDArray[np.intp]  # (n,) the group that it is in

    @classmethod
    def of(cls, program: StreamProgram) -> Groups:
        count = len(program.numbers)
        steps = np.arange(count)
        rates = FINENESS / (1 + np.minimum(steps, steps[::-1]))
        rates[1:] += FINENESS * (np.abs(np.diff(np.log(program.numbers))) - 2 * np.log(program.decay))
        places = np.minimum(rates, 1.0).cumsum()
        return cls(places, np.r_[0, np.cumsum(np.diff(np.floor(places)) > 0)])

    @property
    def sizes(self) -> npt.NDArray[np.intp]:
        """Number of steps of each group (m,)."""
        return np.bincount(self.of_step)

    def program(self, program: StreamProgram) -> StreamProgram:
        sizes, total = self.sizes, np.bincount(self.of_step, program.numbers)
        decays = np.r_[0.0, np.log(np.broadcast_to(program.decay, len(self.places) - 1))]
        fading = np.bincount(self.of_step, np.minimum(decays, -SLOWEST))
        of_steps, of_group = (scipy.special.ellipkm1(-np.expm1(2 * decay)) for decay in (fading / sizes, fading))
        return StreamProgram(
            np.asarray(total if program.fixed else total / sizes),
            np.exp(np.bincount(self.of_step, decays)[1:]),
            program.fixed,
            SHARE * GROUPED,
            2 / np.pi * (of_steps - of_group),
        )

    def drawn_out(self, weights: Array) -> Array:
        """Return weights of the steps: their logarithms change evenly from group to group."""
        sizes = self.sizes
        middles, more = np.bincount(self.of_step, self.places) / sizes, SHIFTED * np.diff(sizes)
        shares = sizes - np.r_[0.0, more], sizes + np.r_[more, 0.0]
        parts = [
            np.interp(self.places, middles, np.log(part / share))
            for part, share in zip(weights.reshape(-1, len(sizes)), shares, strict=False)
        ]
        return ascent.normalise(np.exp(np.concatenate(parts)), len(self.places))


def approach(program: StreamProgram, limits: loop.Limits) -> newton.NewtonState | None:
    """Return a state near the optimum, that of groups drawn out; None where they are hardly fewer than the steps."""
    if np.ndim(program.decay) > 0:  # as of all ranges, where the fixed point takes a few steps and less memory
        return None
    groups = Groups.of(program)
    count, parts = len(groups.sizes), 1 if program.fixed else 2
    if FEWER * count > len(program.numbers):
        return None
    grouped = groups.program(program)
    first: Any = grouped.at(ascent.normalise(np.tile(groups.sizes, parts).astype(np.float64), count))
    limits = loop.Limits(GROUPED, deadline=limits.deadline)
    state = newton.start(ascent.climb(grouped, limits, "auto", ascent.FixedPointState(first)).best_dual.point)
    point: Any = program.at(groups.drawn_out(state.point.weights))
    if not point.objective <= (1 + NEAR) * point.lower_bound:
        return None
    slacks = state.slacks.reshape(parts, count)[:, groups.of_step].ravel()
    centre = float((slacks * point.weights).mean())
    slacks = np.maximum(slacks, centre / point.weights)
    return newton.NewtonState(point, newton.sum_indicators(point), slacks, state.multipliers, warm_started=True)


@dataclass(frozen=True, slots=True, eq=False)
class StreamReduction:
    program: StreamProgram

    @property
    def shape(self) -> tuple[int, int]:
        return self.program.sizes[:2]

    def covariance(self, point: StreamPoint) -> StreamPoint:
        return point


def ascend_stream(
    problem: FitnessForUse | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
    orbits: object = None,
) -> Solution:
    """Solve fitness for use or total variance on running sums, with `orbits` on a matrix; see `dualmech.fast.solve`."""
    if orbits is not None:
        return ascend_dense(problem.on_matrix(), limits, method=method, start=start, orbits=orbits)

    def reduce(problem: FitnessForUse | TotalVariance) -> ascent.ReducedProblem:
        fixed, geometry = problem.sums_variances, problem.geometry
        numbers = geometry.on_sums(getattr(problem, problem.numbers))
        program = StreamProgram(numbers, geometry.decay, fixed, SHARE * min(limits.tol, 1e-3))
        count = len(numbers)

        def dual(weights: Array) -> FitnessDual | VarianceDual:
            cells, sums = program.split(weights)
            return VarianceDual(cells) if fixed else FitnessDual(cells, sums)

        def gather(known: FitnessDual) -> Array:
            cells = np.asarray(getattr(known, "neighbour_weights", None))
            sums = np.asarray(getattr(known, "query_weights", np.ones(count)))
            if cells.shape != (count,) or sums.shape != (count,):
                raise InvalidInputError(f"start must be a solution over {count} running sums")
            parts = [cells, *([] if fixed else [sums * numbers])]
            return np.concatenate([part / part.sum() for part in parts])

        return ascent.ReducedProblem(problem, StreamReduction(program), dual, gather, partial(approach, program))

    return ascent.ascend(reduce, problem, limits, method=method, start=start)
