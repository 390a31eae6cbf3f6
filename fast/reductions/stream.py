"""Running sums: the dual function, its gradient and products with its Hessian in time proportional to their number."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import scipy  # it loads special when that is used
import scipy.linalg.blas

from dualmech.errors import InvalidInputError
from dualmech.fast.engine import ascent, loop, newton
from dualmech.geometry import stream
from dualmech.geometry.stream import Bidiagonal, Poles, StreamPoint
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution
from dualmech.validate import Array

# With T of `dualmech.geometry.stream` for weights λ on cells and μ on sums, the dual function is ``F = tr T^-½``, and
# the relative derivatives of 2F are the diagonals of ``T^-½`` and ``T'^-½``. Minus its Hessian in relative weights is
# therefore these 2 n numbers times the change of the weights, less their own change: for the sum of poles that stands
# for the inverse square root, by the derivative of the recurrences of p and r. This is for each pole a linear
# recurrence forwards and one backwards, both solved with bidiagonal matrices. Both terms use the same poles, so most of
# the error of the poles cancels.

SHARE = 1e-2  # largest error of the quadrature of an evaluation, as a share of the tolerance

COARSE, GAPS = 1e-2, 100.0
"""Largest error of the quadrature of the Hessian, and the same in gaps.

It decides the pace and not the answer, but where weights fall together the Hessian is as small as the gap.
"""

DIAGONAL = 0.25
"""The Hessian's diagonal, over the costs: it lies between 0 and ½, and is ½ where all singular values are equal."""

EVALUATION, PRODUCT = 3000.0, 150.0  # operations a sum, as measured


@dataclass(frozen=True, slots=True, eq=False)
class PoleCurvature:
    """The derivative of the recurrences of a pole w, with ``D = p + w + a²`` and ``E = r + w + b²``."""

    forwards: Array  # ``-a² b² / D²`` below a diagonal of 1, in bands (2, n)
    backwards: Array  # ``-a² b² / E²`` above it
    p_by_b: Array
    p_by_a: Array
    r_by_a: Array
    r_by_b: Array
    costs: Array  # ``c / (w + p + r)²``
    variances_by_p: Array
    variances_by_r: Array

    @classmethod
    def of(
        cls, matrix: Bidiagonal, before: Array, after: Array, place: float, factor: float
    ) -> tuple[PoleCurvature, Array, Array, Array, Array]:
        """Return it with both diagonals, and what the second loses by ``log a²`` and ``log b²`` for given p and r."""
        a, b, count = matrix.a, matrix.b, len(matrix.a)
        p, r = before + place, after + place
        steepness, steepness_back = (a[:-1] * b / sums**2 for sums in (p[:-1] + a[:-1], r[1:] + b))
        forwards, backwards = np.ones((2, count), order="F"), np.ones((2, count), order="F")
        forwards[1, :-1], backwards[0, 1:] = -steepness, -steepness_back
        left, s, q = 1 / (before + r), place * a / p, np.r_[place * b / r[1:], 0.0]
        right = 1 / (place + s + q)
        by_s, by_q = factor * right**2 * s, (factor * right**2 * q)[:-1]
        made = cls(
            forwards,
            backwards,
            before[1:],
            steepness * p[:-1],
            after,
            steepness_back * r[1:],
            factor * left**2,
            by_s / p,
            by_q / r[1:],
        )
        return made, factor * left, factor * right, by_s, by_q

    def add_change(self, by_a: Array, by_b: Array, costs: Array, variances: Array) -> None:
        """Add the change of both diagonals, through p and r, when ``log a²`` and ``log b²`` change."""
        p = np.zeros(len(by_a))
        np.multiply(self.p_by_b, by_b, out=p[1:])
        p[1:] -= self.p_by_a * by_a[:-1]
        p = scipy.linalg.blas.dtbsv(1, self.forwards, p, lower=1, diag=1, overwrite_x=1)
        r = self.r_by_a * by_a
        r[:-1] -= self.r_by_b * by_b
        r = scipy.linalg.blas.dtbsv(1, self.backwards, r, lower=0, diag=1, overwrite_x=1)
        costs -= self.costs * (p + r)
        variances += self.variances_by_p * p
        variances[:-1] += self.variances_by_r * r[1:]


@dataclass(frozen=True, slots=True, eq=False)
class Curvature:
    """Products with minus the Hessian of 2F in relative weights on cells and sums."""

    poles: tuple[PoleCurvature, ...]
    diagonals: Array  # costs, then variances, of the same sum of poles (2 n,)
    by_a: Array
    by_b: Array

    @classmethod
    def of(cls, matrix: Bidiagonal, poles: Poles) -> Curvature:
        count, by_pole = len(matrix.a), []
        diagonals, by_a, by_b = np.zeros((2, count)), np.zeros(count), np.zeros(count - 1)
        for start in range(0, len(poles.places), stream.POLES):
            places = poles.places[start : start + stream.POLES]
            before, after = (np.ascontiguousarray(recurrence.T) for recurrence in stream.recurrences(matrix, places))
            for index, place in enumerate(places):
                factor = poles.factors[start + index]
                made, left, right, by_s, by_q = PoleCurvature.of(matrix, before[index], after[index], place, factor)
                by_pole.append(made)
                diagonals += left, right
                by_a -= by_s
                by_b -= by_q
        return cls(tuple(by_pole), diagonals.ravel(), by_a, by_b)

    def product(self, cells: Array, sums: Array) -> Array:
        """Multiply with relative changes of the weights on cells and on sums (2 n,)."""
        by_a, by_b = -(cells + sums), -(cells[1:] + sums[:-1])
        costs, variances = np.zeros(len(cells)), self.by_a * by_a
        variances[:-1] += self.by_b * by_b
        for pole in self.poles:
            pole.add_change(by_a, by_b, costs, variances)
        return np.asarray(self.diagonals * np.r_[cells, sums] - np.r_[costs, variances])


@dataclass(frozen=True, slots=True, eq=False)
class StreamSpectrum:
    """The dual function at weights on cells and, unless the queries' weights are fixed, on sums.

    The function is not smoothed: the barrier that keeps weights from 0 keeps T from being singular.
    `dualmech.fast.engine.newton.Evaluation` says what a solver reads here.
    """

    program: StreamProgram
    weights: Array
    dual_value: float
    gains: Array
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
        dearest, worst = self.gains[: self.neighbours].max(), self.gains[self.neighbours :].max(initial=0.0)
        return float(dearest * (worst if len(self.gains) > self.neighbours else self.dual_value))

    def gradient(self) -> Array:
        return self.gains

    def gradient_slope(self) -> Array:
        return np.zeros(len(self.weights))

    def smoothed(self, smoothing: float) -> StreamSpectrum:
        """Return the same, its Hessian good enough for a barrier of this size."""
        return replace(self, smoothing=smoothing, made=[])

    def curvature_diagonal(self) -> Array:
        return DIAGONAL * self.weights * self.gains

    def curvature_product(self, change: Array) -> Array:
        """Return minus the Hessian of 2F in relative weights times a vector."""
        cells, sums = self.program.split(self.weights)
        if not self.made:
            matrix = Bidiagonal.of(cells, sums, self.program.decay)
            gap = len(self.weights) * self.smoothing / self.dual_value  # on the central path
            poles = stream.poles_of(matrix, cells, sums, self.program.decay, min(COARSE, GAPS * gap))
            self.made.append(Curvature.of(matrix, poles))
        count = self.neighbours
        on_sums = np.zeros(count) if self.program.fixed else change[count:]
        within = self.program.within * np.sqrt(cells * sums) / 2 * (change[:count] - on_sums)
        return (self.made[0].product(change[:count], on_sums) + np.r_[within, -within])[: len(change)]

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
        """Numbers of weights on cells and on sums, and rank."""
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
        poles = stream.poles_of(matrix, cells, sums, self.decay, self.tol)
        costs, variances = stream.inverse_root_diagonals(matrix, poles, both=not self.fixed)
        within = self.within * np.sqrt(cells * sums)
        costs += within
        gains = costs / cells
        if not self.fixed:
            gains = np.concatenate([gains, (variances + within) / sums / self.numbers])
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
        """Return the problem of groups."""
        sizes, total = self.sizes, np.bincount(self.of_step, program.numbers)
        decays = np.r_[0.0, np.log(np.broadcast_to(program.decay, len(self.places) - 1))]
        fading = np.bincount(self.of_step, np.minimum(decays, -SLOWEST))
        of_steps, of_group = (scipy.special.ellipkm1(-np.expm1(2 * decay)) for decay in (fading / sizes, fading))
        return StreamProgram(
            total if program.fixed else total / sizes,
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
    groups = Groups.of(program)
    count, parts = len(groups.sizes), 1 if program.fixed else 2
    if FEWER * count > len(program.numbers):
        return None
    grouped = groups.program(program)
    first = grouped.at(ascent.normalise(np.tile(groups.sizes, parts).astype(np.float64), count))
    outcome = ascent.climb(grouped, loop.Limits(GROUPED, deadline=limits.deadline), "auto", ascent.FixedPointState(first))
    state = newton.start(outcome.best_dual.point)
    weights = groups.drawn_out(state.point.weights)
    slacks = state.slacks.reshape(parts, count)[:, groups.of_step].ravel()
    point = program.at(weights)
    if point.objective > (1 + NEAR) * point.lower_bound:
        return None
    return newton.NewtonState(point, np.maximum(slacks, float(slacks @ weights) / len(weights) / weights), state.multipliers)


@dataclass(frozen=True, slots=True, eq=False)
class StreamReduction:
    program: StreamProgram

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of weights on cells and on sums."""
        return self.program.sizes[:2]

    def covariance(self, point: StreamPoint) -> StreamPoint:
        return point


def ascend_stream(
    problem: FitnessForUse | TotalVariance, limits: loop.Limits, *, method: str = "auto", start: Solution | None = None
) -> Solution:
    """Solve fitness for use or total variance on running sums to a proven gap; see `dualmech.fast.solve`."""

    def reduce(problem: FitnessForUse | TotalVariance) -> ascent.ReducedProblem:
        fixed, geometry = isinstance(problem, TotalVariance), problem.geometry
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
