"""Running sums: the dual function, its gradient and products with its Hessian in linear time."""

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

# With T of `geometry.tridiagonal` for weights λ on cells and μ on sums, the dual function is ``F = tr T^-½``, and the
# relative derivatives of 2F are the diagonals of ``T^-½`` and ``T'^-½``. Minus its Hessian in relative weights is
# therefore these 2 n numbers times the change of the weights, minus the change of the numbers. The inverse square root
# is a sum of poles, whose derivatives follow from the recurrences of p and r: for each pole one forward and one
# backward linear recurrence, evaluated for many stretches at a time. Both terms use the same poles, so most of the
# quadrature error cancels.

QUADRATURE_TOL_FACTOR = 1e-2  # maximum quadrature error of an evaluation, relative to the tolerance

MAX_HESSIAN_ERROR = 1e-2
"""Maximum quadrature error of the Hessian; for smaller gaps, the gap.

It affects the convergence rate, not the answer. If weights decrease together, the Hessian is as small as the gap.
"""

SINGLE_PRECISION_ERROR = 1e-4  # single precision suffices for a larger quadrature error

DIAGONAL_RATIO = 0.25
"""Approximate diagonal of the Hessian over the costs: between 0 and ½, and ½ if all singular values are equal."""

EVALUATION_OPERATIONS, PRODUCT_OPERATIONS = 3000.0, 150.0  # measured operations per sum


@dataclass(frozen=True, slots=True, eq=False)
class Derivative:
    """The derivatives of a recurrence of the poles and its functions, in stretches (l, p, s).

    The logarithm of ``y_k = g_k (y_{k-1} + w) / D_k``, ``D_k = y_{k-1} + w + h_k``, changes by ``x_k = dg_k - A_k dh_k
    + κ_k x_{k-1}`` for changes dg and dh of the logarithms of g and h; ``A_k = h_k / D_k`` and ``κ_k = A_k y_{k-1} /
    (y_{k-1} + w)``.
    """

    halves: Array  # A
    previous_factors: Array  # κ
    costs: Array  # minus the derivative of costs in x
    workspace: Array  # for x
    variances: Array | None  # derivative of variances; None if not needed
    stretch_products: Array  # products of κ over each stretch (p, s)
    backwards: bool  # whether y depends on the next step, on whose y the variances depend

    @classmethod
    def of(cls, shape: tuple[int, int, int], kind: type, backwards: bool, with_variances: bool) -> Derivative:
        arrays: list[Array] = [np.empty(shape, dtype=kind) for _ in range(4 + with_variances)]
        halves, passed, costs, room, *variances = arrays
        stretch_products = np.ones(shape[1:], dtype=kind)
        return cls(halves, passed, costs, room, variances[0] if with_variances else None, stretch_products, backwards)

    def at(self, step: int, poles: slice, half: Array, previous: Array, shift: Array) -> None:
        """Set A and κ of a step for some poles, from h and the previous y."""
        shifted = previous + shift
        fraction = half / (shifted + half)
        self.halves[step, poles] = fraction
        fraction *= previous / shifted
        self.previous_factors[step, poles] = fraction
        self.stretch_products[poles] *= fraction

    def changes(self, by_gains: Array, by_halves: Array) -> tuple[Array, Array]:
        """Return the changes of costs and variances through y, shape (l, s), for changes of log g and log h (l, s)."""
        steps, previous = range(len(by_gains))[:: -1 if self.backwards else 1], np.zeros_like(self.previous_factors[0])
        for step in steps:  # with x = 0 before each stretch
            x = np.multiply(self.halves[step], by_halves[step], out=self.workspace[step])
            np.subtract(by_gains[step], x, out=x)
            x += self.previous_factors[step] * previous
            previous = x
        costs, variances = np.zeros((2, *by_gains.shape), dtype=by_gains.dtype)
        x = correction = self._starts(previous)
        for step in steps:
            last_x, correction = x, self.previous_factors[step] * correction
            x = np.add(self.workspace[step], correction, out=self.workspace[step])
            costs[step] = np.einsum("ps,ps->s", self.costs[step], x)
            if self.variances is not None:
                variances[step] = np.einsum("ps,ps->s", self.variances[step], last_x if self.backwards else x)
        return costs, variances

    def _starts(self, ends: Array) -> Array:
        """Return x before each stretch, from the x at its end that starts at 0."""
        ends, stretch_products = np.ascontiguousarray(ends.T), np.ascontiguousarray(self.stretch_products.T)
        starts, x = np.empty_like(ends), np.zeros_like(ends[0])
        for stretch in range(len(ends))[:: -1 if self.backwards else 1]:
            starts[stretch] = x
            x = ends[stretch] + stretch_products[stretch] * x
        return np.ascontiguousarray(starts.T)


@dataclass(frozen=True, slots=True, eq=False)
class Curvature:
    """Products with minus the Hessian of 2F in relative weights on cells and sums."""

    forward: Derivative  # of p
    backward: Derivative  # of r
    diagonals: Array  # costs, then variances, from the same sum of poles (2 n,)
    by_a: Array  # by_a, by_b: minus the direct derivatives of variances in a and b (n,); 0 if not needed
    by_b: Array
    coupling: Array  # curvature of the terms ``√(λ μ)`` (n,)

    @classmethod
    def of(cls, matrix: Bidiagonal, poles: Poles, coupling: Array, with_variances: bool) -> Curvature:
        count, (a, b), (_, halves) = len(matrix.a), matrix.back, matrix.ahead
        shape = len(a), len(poles.places), a.shape[1]
        kind = np.float32 if poles.error > SINGLE_PRECISION_ERROR else np.float64
        forward, backward = (Derivative.of(shape, kind, backwards, with_variances) for backwards in (False, True))
        totals, first_pole = np.zeros((4, *a.shape)), 0
        for places, factors in poles.in_parts:
            shift, part = places[:, None], slice(first_pole, first_pole + len(places))
            forward_values, steps = (
                [*tridiagonal.follow(*matrix.ahead, places)],
                tridiagonal.follow(a, b, places, tridiagonal.BACK),
            )
            next_value, first_pole = next(steps), part.stop
            for step, value in zip(range(len(a))[tridiagonal.BACK], steps, strict=True):
                p, r = forward_values.pop(), next_value + shift
                forward.at(step, part, halves[step], forward_values[-1], shift)
                backward.at(step, part, b[step], next_value, shift)
                shifted = p + shift
                inverse = 1 / (shifted + value)
                scale = factors[:, None] * inverse**2
                forward.costs[step, part], backward.costs[step, part] = scale * p, scale * value
                totals[0, step] += factors @ inverse
                if forward.variances is not None and backward.variances is not None:
                    s, q = shift * a[step] / shifted, shift * b[step] / r
                    inverse_root = 1 / (shift + s + q)
                    scale = factors[:, None] * inverse_root**2
                    s, q = scale * s, scale * q
                    forward.variances[step, part], backward.variances[step, part] = (
                        s * (p / shifted),
                        q * (next_value / r),
                    )
                    totals[1:, step] += factors @ inverse_root, s.sum(axis=0), q.sum(axis=0)
                next_value = value
        costs, variances, by_a, by_b = (tridiagonal.in_order(total, count) for total in totals)
        return cls(forward, backward, np.r_[costs, variances], by_a, by_b, coupling)

    def product(self, cells: Array, sums: Array) -> Array:
        """Return the product with relative changes of the weights on cells and on sums, shape (2 n,)."""
        count, kind = len(cells), self.forward.previous_factors.dtype
        by_a, by_b = -(cells + sums), -(cells[1:] + sums[:-1])
        g_changes, h_changes, a, b = (
            tridiagonal.stretched(change, 0.0).astype(kind)
            for change in (np.r_[0.0, by_b], np.r_[0.0, by_a[:-1]], by_a, np.r_[by_b, 0.0])
        )
        changes = self.forward.changes(g_changes, h_changes), self.backward.changes(a, b)
        costs, variances = (
            tridiagonal.in_order(forward + backward, count) for forward, backward in zip(*changes, strict=True)
        )
        product = self.diagonals * np.r_[cells, sums]
        product[:count] += costs
        product[count:] += self.by_a * by_a - variances
        product[count:-1] += self.by_b[:-1] * by_b
        if np.any(self.coupling):
            product += np.outer([1, -1], self.coupling * (cells - sums)).ravel()
        return product


@dataclass(frozen=True, slots=True, eq=False)
class StreamSpectrum:
    """The dual function at weights on cells and, unless the weights of the queries are fixed, on sums.

    It implements `dualmech.fast.engine.newton.Evaluation`. The function is not smoothed: because weights are positive,
    T is non-singular.
    """

    program: StreamProgram
    weights: Array
    dual_value: float
    constraint_values: Array
    decompositions: int = 1
    barrier: float = 0.0
    offsets: None = None
    smoothing: float = np.inf  # of the barrier
    curvatures: list[Curvature] = field(default_factory=list)  # one, computed on first use

    @property
    def neighbours(self) -> int:
        return len(self.program.numbers)

    @property
    def values(self) -> Array:
        """A lower bound on the singular values: 0, because they are not computed."""
        return np.zeros(self.neighbours)

    @property
    def mean(self) -> Array:
        """The sum of the singular values, shape (1,)."""
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
        """Maximum cost times maximum or total variance: the objective of the noise determined by the weights."""
        max_cost, max_variance = (
            self.constraint_values[: self.neighbours].max(),
            self.constraint_values[self.neighbours :].max(initial=0.0),
        )
        return float(max_cost * (max_variance if len(self.constraint_values) > self.neighbours else self.dual_value))

    def gradient(self) -> Array:
        return self.constraint_values

    def gradient_slope(self) -> Array:
        return np.zeros(len(self.weights))

    def smoothed(self, smoothing: float) -> StreamSpectrum:
        """Return the same point with a Hessian accurate enough for this barrier parameter."""
        return replace(self, smoothing=smoothing, curvatures=[])

    def curvature_diagonal(self) -> Array:
        return DIAGONAL_RATIO * self.weights * self.constraint_values

    def curvature_product(self, change: Array) -> Array:
        """Return minus the Hessian of 2F in relative weights times a vector."""
        if not self.curvatures:
            cells, sums = self.program.split(self.weights)
            matrix = Bidiagonal.of(cells, sums, self.program.decay)
            gap = len(self.weights) * self.smoothing / self.dual_value  # on the central path
            poles = tridiagonal.poles_of(matrix, cells, sums, self.program.decay, min(MAX_HESSIAN_ERROR, gap))
            coupling = self.program.coupling * np.sqrt(cells * sums) / (2 * self.dual_value)
            poles = replace(poles, factors=poles.factors / self.dual_value)  # within the range of single precision
            self.curvatures.append(Curvature.of(matrix, poles, coupling, with_variances=not self.program.fixed))
        count = self.neighbours
        sum_changes = np.zeros(count) if self.program.fixed else change[count:]
        return self.dual_value * self.curvatures[0].product(change[:count], sum_changes)[: len(change)]

    def covariance(self) -> StreamPoint:
        return StreamPoint(*self.program.split(self.weights), 1.0)

    def tightened(self, share: float) -> None:
        """None: noise determined by two weights per cell has no unconstrained directions."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamProgram:
    """Sums with decay, with targets or, if `fixed`, with weights.

    The dual function has additional terms ``coupling √(λ μ)`` for the steps in a group; see `Groups`.
    """

    numbers: Array
    decay: float | Array
    fixed: bool
    tol: float
    coupling: float | Array = 0.0

    @property
    def sizes(self) -> tuple[int, int, int]:
        count = len(self.numbers)
        return count, 0 if self.fixed else count, count

    @property
    def operations(self) -> tuple[float, float, float]:
        """Operations of an evaluation, of the Hessian (never formed), and of a product with the Hessian."""
        count = len(self.numbers)
        return EVALUATION_OPERATIONS * count, np.inf, PRODUCT_OPERATIONS * count

    def split(self, weights: Array) -> tuple[Array, Array]:
        count = len(self.numbers)
        return weights[:count], self.numbers if self.fixed else weights[count:] / self.numbers

    def at(self, weights: Array) -> StreamSpectrum:
        cells, sums = self.split(weights)
        matrix = Bidiagonal.of(cells, sums, self.decay)
        poles = tridiagonal.poles_of(matrix, cells, sums, self.decay, self.tol)
        costs, variances = tridiagonal.inverse_root_diagonals(matrix, poles, both=not self.fixed)
        if np.any(self.coupling):
            coupling = self.coupling * np.sqrt(cells * sums)
            costs, variances = costs + coupling, variances + coupling[: len(variances)]
        constraint_values = costs / cells
        if not self.fixed:
            constraint_values = np.concatenate([constraint_values, variances / sums / self.numbers])
        return StreamSpectrum(self, weights, float(costs.sum()), constraint_values)


# Coarsening: neighbouring steps of nearly equal numbers are grouped, and Newton's method starts from the prolonged
# optimum for groups. A group has the sums of the weights of its steps, but not the singular values within the group.
# For many equal steps with decay β these are ``√(λ μ) / |1 - β e^{iθ}|``, with mean ``(2/π) K(β)``, where K is the
# complete elliptic integral of modulus β. A group of g steps has the decay β^g.


GROUPS_PER_E_FOLD = 128.0
"""Number of groups while the distance from the nearer end, a number, or the decay changes by a factor of e."""

SHIFT_FRACTION = 0.1
"""Measured shift of weight between groups of different size, relative to the difference of sizes: weights of cells
shift towards the next group, weights of sums towards the previous group."""

MIN_GROUP_SIZE = 4  # mean number of steps per group, else groups are not used
GROUPS_TOL = 1e-4  # gap of the problem on groups
MAX_START_GAP = 0.25  # of the prolonged solution, else the fixed point is as good a start
MIN_LOG_DECAY = 1e-12  # of -log β: both integrals are infinite at 0


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of neighbouring steps: small at both ends, and where numbers change."""

    places: Array  # (n,) position of each step, in units of groups
    group_of_step: npt.NDArray[np.intp]  # (n,) index of its group

    @classmethod
    def of(cls, program: StreamProgram) -> Groups:
        count = len(program.numbers)
        steps = np.arange(count)
        rates = GROUPS_PER_E_FOLD / (1 + np.minimum(steps, steps[::-1]))
        rates[1:] += GROUPS_PER_E_FOLD * (np.abs(np.diff(np.log(program.numbers))) - 2 * np.log(program.decay))
        places = np.minimum(rates, 1.0).cumsum()
        return cls(places, np.r_[0, np.cumsum(np.diff(np.floor(places)) > 0)])

    @property
    def sizes(self) -> npt.NDArray[np.intp]:
        """Number of steps of each group, shape (m,)."""
        return np.bincount(self.group_of_step)

    def program(self, program: StreamProgram) -> StreamProgram:
        sizes, group_numbers = self.sizes, np.bincount(self.group_of_step, program.numbers)
        decays = np.r_[0.0, np.log(np.broadcast_to(program.decay, len(self.places) - 1))]
        log_decays = np.bincount(self.group_of_step, np.minimum(decays, -MIN_LOG_DECAY))
        step_integrals, group_integrals = (
            scipy.special.ellipkm1(-np.expm1(2 * decay)) for decay in (log_decays / sizes, log_decays)
        )
        return StreamProgram(
            np.asarray(group_numbers if program.fixed else group_numbers / sizes),
            np.exp(np.bincount(self.group_of_step, decays)[1:]),
            program.fixed,
            QUADRATURE_TOL_FACTOR * GROUPS_TOL,
            2 / np.pi * (step_integrals - group_integrals),
        )

    def prolong(self, weights: Array) -> Array:
        """Return weights of the steps by linear interpolation of their logarithms between groups."""
        sizes = self.sizes
        middles, shift = np.bincount(self.group_of_step, self.places) / sizes, SHIFT_FRACTION * np.diff(sizes)
        shifted_sizes = sizes - np.r_[0.0, shift], sizes + np.r_[shift, 0.0]
        log_weights = [
            np.interp(self.places, middles, np.log(part / share))
            for part, share in zip(weights.reshape(-1, len(sizes)), shifted_sizes, strict=False)
        ]
        return ascent.normalise(np.exp(np.concatenate(log_weights)), len(self.places))


def approach(program: StreamProgram, limits: loop.Limits) -> newton.NewtonState | None:
    """Return a state near the optimum from the prolonged optimum for groups, or None if groups are of no use."""
    if np.ndim(program.decay) > 0:  # as for all ranges: the fixed point takes a few steps and less memory
        return None
    groups = Groups.of(program)
    count, num_sides = len(groups.sizes), 1 if program.fixed else 2
    if MIN_GROUP_SIZE * count > len(program.numbers):
        return None
    grouped = groups.program(program)
    group_point: Any = grouped.at(ascent.normalise(np.tile(groups.sizes, num_sides).astype(np.float64), count))
    limits = loop.Limits(GROUPS_TOL, deadline=limits.deadline)
    state = newton.start(ascent.climb(grouped, limits, "auto", ascent.FixedPointState(group_point)).best_dual.point)
    start_point: Any = program.at(groups.prolong(state.point.weights))
    if not start_point.objective <= (1 + MAX_START_GAP) * start_point.lower_bound:
        return None
    slacks = state.slacks.reshape(num_sides, count)[:, groups.group_of_step].ravel()
    mean_product = float((slacks * start_point.weights).mean())
    slacks = np.maximum(slacks, mean_product / start_point.weights)
    return newton.NewtonState(
        start_point, newton.sum_indicators(start_point), slacks, state.multipliers, warm_started=True
    )


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
        program = StreamProgram(numbers, geometry.decay, fixed, QUADRATURE_TOL_FACTOR * min(limits.tol, 1e-3))
        count = len(numbers)

        def dual(weights: Array) -> FitnessDual | VarianceDual:
            cells, sums = program.split(weights)
            return VarianceDual(cells) if fixed else FitnessDual(cells, sums)

        def gather(dual: FitnessDual) -> Array:
            cells = np.asarray(getattr(dual, "neighbour_weights", None))
            sums = np.asarray(getattr(dual, "query_weights", np.ones(count)))
            if cells.shape != (count,) or sums.shape != (count,):
                raise InvalidInputError(f"start must be a solution over {count} running sums")
            sides = [cells, *([] if fixed else [sums * numbers])]
            return np.concatenate([part / part.sum() for part in sides])

        return ascent.ReducedProblem(problem, StreamReduction(program), dual, gather, partial(approach, program))

    return ascent.ascend(reduce, problem, limits, method=method, start=start)
