"""Non-negative estimates by an active-set method on orthogonal factors; the nearest local strategy by Newton's method.

The cells that are not 0 carry independent columns, whose factors are updated as cells enter and leave (Lawson and
Hanson, "Solving least squares problems", 1974): a cell enters only where its column has a part in the residual, which
is orthogonal to the columns of all that are in, so dependent columns of a workload do no harm. With a total N, data
``x = N s`` with ``1's = 1`` minimise ``‖M s‖``, M being ``N W - a 1'``; and the least ``‖M t‖² + (1't - 1)²`` over all
non-negative t is found in a multiple of the same s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech.fast.engine import loop
from dualmech.linalg import EPS
from dualmech.problems.local.estimate import EstimateDual, NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection, ProjectionDual
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array

LIFTED = 1e-9
"""Value in a cell, where 1 was wanted, from which a combination of queries counts as positive there."""


def solve_estimate(problem: NonnegativeEstimate, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`.

    `max_iterations` counts updates of the factors, by default ten for each cell.
    """
    cells = problem.workload.shape[1]
    steps = limits.max_iterations if limits.steps_given else 10 * cells
    with np.errstate(all="ignore"):
        program = _Program.of(problem)
        outcome = loop.run(
            _ActiveSet.start(program),
            _enter,
            replace(limits, max_iterations=steps, offset=problem.scale),
            # Cells may enter many times with hardly any gain before one pays.
            patience=steps + 1,
        )
        data = problem.feasible(outcome.best_primal.data)
    residual = np.asarray(problem.workload.matrix @ data) - problem.answers
    ending = outcome.reason or Status.ROUNDING
    dual = EstimateDual(residual)
    return outcome.solution(problem, data, dual, limits, otherwise=ending, solver="fast:active_set")


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """Plain non-negative least squares ``‖A t - b‖`` with columns of norm 1, and the data of its solutions."""

    root: Array  # root, target: (r, n), (r,) the workload and the answers, rotated into as few rows as they need
    target: Array
    units: Array  # (n,) data for a unit of t, up to the scaling to a total
    total: float | None
    scale: float  # offset of both sides of the gap, as the judge's
    columns: Array  # columns, aim: (q, n), (q,) a and b
    aim: Array
    # lift, gain: (r,), (n,) a combination of rows of the root, and its value in each cell: 1 in all, or as near to that
    # as possible
    lift: Array
    gain: Array

    @classmethod
    def of(cls, problem: NonnegativeEstimate) -> _Program:
        """Rotate, fold the total in, and bring the columns to norm 1; one of zeros stays as it is."""
        whole = np.column_stack([problem.workload.dense(), problem.answers])
        if whole.shape[0] > whole.shape[1]:
            whole = scipy.linalg.qr(whole, mode="r", check_finite=False)[0][: whole.shape[1]]
        root, target, total = whole[:, :-1], whole[:, -1], problem.total
        columns, aim = root, target
        if total is not None:
            distances = total * root - target[:, None]
            largest = float(np.linalg.norm(distances, axis=0).max()) or 1.0
            columns = np.vstack([distances / largest, np.ones(root.shape[1])])
            aim = np.append(np.zeros(len(root)), 1.0)
        norms = np.linalg.norm(columns, axis=0)
        units = 1 / np.where(norms > 0, norms, 1.0)
        lift: Array = np.linalg.lstsq(root.T, np.ones(root.shape[1]), rcond=None)[0].astype(np.float64)
        return cls(root, target, units, total, problem.scale, columns * units, aim, lift, root.T @ lift)

    def data(self, solution: Array) -> Array:
        """Return the data that a solution of the plain problem stands for."""
        data = solution * self.units
        if self.total is None:
            return data
        return data * (self.total / data.sum()) if data.any() else np.full(len(data), self.total / len(data))


@dataclass(frozen=True, eq=False)
class _ActiveSet:
    """The cells that are not 0, the factors of their columns, and the solution of least squares on them."""

    program: _Program
    solution: Array  # (n,) t, not negative
    inside: npt.NDArray[np.intp]  # (k,) the cells, in the order of the factors' columns
    orthonormal: Array  # orthonormal, triangle: (q, q), (q, k) factors of their columns
    triangle: Array
    steps: int = 0

    @classmethod
    def start(cls, program: _Program) -> _ActiveSet:
        rows, cells = program.columns.shape
        nobody = np.zeros(0, dtype=np.intp)
        return cls(program, np.zeros(cells), nobody, np.eye(rows), np.zeros((rows, 0)))

    @cached_property
    def data(self) -> Array:
        """The data (n,) that the solution stands for."""
        return self.program.data(self.solution)

    @cached_property
    def _residual(self) -> Array:
        return np.asarray(self.program.root @ self.data - self.program.target)

    @property
    def objective(self) -> float:
        """Half the squared distance, with the judge's scale added."""
        return float(self._residual @ self._residual) / 2 + self.program.scale

    @property
    def lower_bound(self) -> float:
        """The bound that the residual ν proves, as the judge sees it, with its scale added."""
        program, direction = self.program, self._residual
        slopes = program.root.T @ direction
        if program.total is None:
            rising = program.gain > LIFTED
            short = np.maximum(-slopes, 0.0)[rising]
            direction = direction + program.lift * float((short / program.gain[rising]).max(initial=0.0))
            magnitude = np.abs(program.root).T @ np.abs(direction)
            if np.any(program.root.T @ direction < -4 * len(direction) * EPS * magnitude):
                return program.scale
        least = 0.0 if program.total is None else program.total * float(slopes.min())
        value, length = least - float(direction @ program.target), float(np.linalg.norm(direction))
        return program.scale + ((max(value, 0.0) / length) ** 2 / 2 if length > 0 else 0.0)


def _enter(state: _ActiveSet) -> _ActiveSet:
    """Let the cell of steepest descent enter, then remove the cells that would turn negative.

    Raises `numpy.linalg.LinAlgError` where no cell lowers the distance by more than rounding.
    """
    program = state.program
    slopes = program.columns.T @ (program.aim - program.columns @ state.solution)
    slopes[state.inside] = 0.0
    for cell in np.argsort(-slopes):
        if slopes[cell] <= 8 * EPS * np.linalg.norm(program.aim):
            break
        place = len(state.inside)
        factors = scipy.linalg.qr_insert(
            state.orthonormal, state.triangle, program.columns[:, cell], place, which="col", check_finite=False
        )
        # A column that depends on those inside leaves only rounding, which could point anywhere.
        if abs(factors[1][place, place]) <= 64 * len(program.aim) * EPS:
            continue
        entered = _ActiveSet(
            program, state.solution, np.append(state.inside, cell), factors[0], factors[1], state.steps + 1
        )
        if _least_squares(entered)[-1] > 0:
            return _leave(entered)
    raise np.linalg.LinAlgError("no cell lowers the distance")


def _leave(state: _ActiveSet) -> _ActiveSet:
    """Move towards least squares on the cells inside, and drop those that reach 0 on the way, until none does."""
    while True:
        wanted, inside = _least_squares(state), state.inside
        current, solution = state.solution[inside], np.zeros(len(state.solution))
        falling = wanted <= 0
        if not np.any(falling):
            solution[inside] = wanted
            return _ActiveSet(state.program, solution, inside, state.orthonormal, state.triangle, state.steps)
        reach = np.where(falling, current / np.where(falling, current - wanted, 1.0), np.inf)
        moved = current + float(reach.min()) * (wanted - current)
        gone = falling & (reach <= reach.min())
        solution[inside] = np.where(gone, 0.0, np.maximum(moved, 0.0))
        orthonormal, triangle = state.orthonormal, state.triangle
        for place in np.flatnonzero(gone)[::-1]:
            orthonormal, triangle = scipy.linalg.qr_delete(
                orthonormal, triangle, place, which="col", check_finite=False
            )
        count = state.steps + int(gone.sum())
        state = _ActiveSet(state.program, solution, inside[~gone], orthonormal, triangle, count)


def _least_squares(state: _ActiveSet) -> Array:
    """Return the least squares solution on the cells inside, without regard to signs."""
    count = len(state.inside)
    rotated = state.orthonormal[:, :count].T @ state.program.aim
    return np.asarray(scipy.linalg.solve_triangular(state.triangle[:count], rotated, check_finite=False))


# Projection onto local strategies: a root for each column where least probabilities are fixed, else Newton's method.
#
# Without a floor the rows of a strategy lie in the cone of ratios up to ``e^ε``, onto which a row is projected by
# finding the root of a piecewise linear function. There remains a smooth concave dual in the multipliers λ of the
# columns' sums, with the gradient ``1 - Σ_o P(r_o + λ)``, P the projection. A semismooth Newton method maximises it.


LEAST_DAMPING = 1e-14  # least damping of the Hessian, relative to the number of outputs
MOST_DAMPING = 1e12  # most damping: if no step with it raises the bound, rounding stops the method

SUFFICIENT, RELIABLE = 1e-3, 0.75
"""Shares of the gain that the Hessian promises: the least for a step to count, and the least to lower the damping."""

FACTOR = 4.0  # factor by which the damping changes
ROOT_STEPS = 100  # most Newton steps to the multipliers of columns within fixed limits
SUM_TOLERANCE = 1e-12  # largest error of a column's sum before the last of them

PATIENCE = 100
"""Steps without a smaller gap after which the solver counts as stalled: outputs come into use one by one."""


def solve_projection(problem: LocalProjection, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    if problem.floor is not None:
        return _column_by_column(problem, limits)
    with np.errstate(all="ignore"):
        shown = replace(limits, offset=problem.scale)
        outcome = loop.run(_start(problem), lambda state: _step(problem, state), shown, patience=PATIENCE)
    best = outcome.best_dual.point
    dual = ProjectionDual(best.sums, best.nearest - problem.matrix - best.sums)
    return outcome.solution(problem, outcome.best_primal.point.strategy, dual, limits, solver="fast:newton")


def columns_within(matrix: Array, least: Array, most: Array) -> Array:
    """Return λ (n,) with ``Σ_o clip(R_ou + λ_u, least_o, most_o) = 1`` for every column, which must be possible.

    Each sum is piecewise linear in λ, and its slope counts the entries inside their limits: Newton's method for all
    columns together, kept in a bracket, ends on the piece that holds the root.
    """
    low, high = least[:, None], most[:, None]
    shift = (1 - matrix.sum(axis=0)) / len(matrix)
    below, above = (low - matrix).min(axis=0), (high - matrix).max(axis=0)
    moved, inside = np.empty_like(matrix), np.empty_like(matrix)
    for _ in range(ROOT_STEPS):
        np.add(matrix, shift, out=moved)
        np.clip(moved, low, high, out=inside)
        missing = 1 - inside.sum(axis=0)
        if np.all(np.abs(missing) <= SUM_TOLERANCE):
            break
        below, above = np.where(missing > 0, shift, below), np.where(missing < 0, shift, above)
        slope = np.count_nonzero(moved == inside, axis=0)
        trial = shift + missing / np.maximum(slope, 1)
        shift = np.where((slope > 0) & (trial > below) & (trial < above), trial, (below + above) / 2)
    # One more step for the error that the tolerance leaves.
    slope = np.count_nonzero(moved == inside, axis=0)
    return np.asarray(shift + np.where(slope > 0, missing / np.maximum(slope, 1), 0.0))


def rows_within(matrix: Array, growth: float) -> tuple[Array, Array]:
    """Return the nearest rows whose entries differ by a factor of at most `growth`, and their least entries z.

    z is 0 where ``Σ_u (-x_u)₊ ≥ growth Σ_u (x_u)₊``, else ``(Σ_low x + growth Σ_high x) / (#low + growth² #high)``,
    low being the entries below z and high those above ``growth z``.
    """
    count, growth = matrix.shape[1], np.float64(growth)
    places = np.maximum(np.hstack([matrix, matrix / growth]), 0.0)
    order = np.argsort(places, axis=1, kind="stable")
    places = np.take_along_axis(places, order, axis=1)
    enters, entries = order < count, np.take_along_axis(matrix, order % count, axis=1)
    lows = np.cumsum(enters, axis=1)
    low_sums = np.cumsum(np.where(enters, entries, 0.0), axis=1)
    # Summed from the far end, where the large entries are: subtracting an entry would leave its rounding in the sum.
    leaving = np.where(enters, 0.0, np.maximum(entries, 0.0))
    high_sums = np.cumsum(leaving[:, ::-1], axis=1)[:, ::-1] - leaving
    highs = count - np.cumsum(~enters, axis=1)
    values = places * lows - low_sums - growth * (high_sums - growth * places * highs)
    piece = np.maximum((values < 0).sum(axis=1) - 1, 0)
    output = np.arange(len(matrix))
    weight = lows[output, piece] + growth**2 * highs[output, piece]
    total = low_sums[output, piece] + growth * high_sums[output, piece]
    positive = np.maximum(matrix, 0.0)
    inside = (positive - matrix).sum(axis=1) < growth * positive.sum(axis=1)
    # A row with no entry at either limit has a choice of z.
    root = np.where(weight > 0, total / np.maximum(weight, 1), places[output, piece])
    least = np.where(inside, np.maximum(root, 0.0), 0.0)[:, None]
    return np.clip(matrix, least, growth * least), least[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """Multipliers λ with the projected rows and a strategy close by; both sides of the gap, moved by the scale."""

    sums: Array
    nearest: Array  # nearest, least: (m, n), (m,) the rows ``P(r_o + λ)`` and their least entries
    least: Array
    strategy: Array  # (m, n) these, mended so that columns sum to 1
    value: float  # the dual function at λ
    objective: float
    lower_bound: float

    @classmethod
    def at(cls, problem: LocalProjection, sums: Array) -> _Point:
        """Project the rows of ``R + 1 λ'``."""
        nearest, least = rows_within(problem.matrix + sums, problem.growth)
        value = float(np.square(nearest - problem.matrix).sum() / 2 - sums @ (nearest.sum(axis=0) - 1))
        strategy = problem.feasible(nearest)
        objective = float(np.square(strategy - problem.matrix).sum() / 2)
        return cls(sums, nearest, least, strategy, value, objective + problem.scale, value + problem.scale)


@dataclass(frozen=True, slots=True, eq=False)
class _ProjectionState(loop.OfPoint):
    """A point and the number of Newton systems solved so far."""

    point: _Point
    damping: float = 1 / FACTOR
    steps: int = 0


def _start(problem: LocalProjection) -> _ProjectionState:
    """Begin where the columns of ``R + 1 λ'`` sum to 1."""
    sums = (1 - problem.matrix.sum(axis=0)) / len(problem.matrix)
    return _ProjectionState(_Point.at(problem, sums))


def _step(problem: LocalProjection, state: _ProjectionState) -> _ProjectionState:
    """Take one Newton step, damped until the dual function rises by enough of the predicted increase.

    Raises `numpy.linalg.LinAlgError` where no step raises it.
    """
    point, damping, count = state.point, state.damping, state.steps
    hessian, missing = _hessian(problem, point), 1 - point.nearest.sum(axis=0)
    outputs, users = len(problem.matrix), np.arange(len(missing))
    noise = 8 * EPS * (abs(point.value) + float(np.square(point.sums).sum()))
    while damping <= MOST_DAMPING:
        damped = hessian.copy()
        damped[users, users] += outputs * damping
        direction = scipy.linalg.solve(damped, missing, assume_a="pos", check_finite=False)
        count += 1
        proposed = _Point.at(problem, point.sums + direction)
        promised = float(direction @ missing - direction @ hessian @ direction / 2) + noise
        share = (proposed.value - point.value + noise) / promised
        if share >= SUFFICIENT:
            calmer = damping / FACTOR if share >= RELIABLE else damping
            return _ProjectionState(proposed, max(calmer, LEAST_DAMPING), count)
        damping *= FACTOR
    raise np.linalg.LinAlgError("no step raises the dual function")


def _hessian(problem: LocalProjection, point: _Point) -> Array:
    """Return the sum of the derivatives of the rows' projections, (n, n).

    A row's derivative is ``diag(inside) + a a' / ‖a‖²``, where a is 1 in entries at the lower limit and ``e^ε`` in
    entries at the upper limit; a row that is 0 has none.
    """
    growth, moved, least = problem.growth, problem.matrix + point.sums, point.least[:, None]
    low, high, used = moved < least, moved > growth * least, least > 0
    limits = np.where(used & low, 1.0, 0.0) + np.where(used & high, growth, 0.0)
    norms = np.linalg.norm(limits, axis=1, keepdims=True)
    limits = np.divide(limits, norms, out=np.zeros_like(limits), where=norms > 0)
    return np.asarray(np.diag((used & ~low & ~high).sum(axis=0).astype(float)) + limits.T @ limits)


def _column_by_column(problem: LocalProjection, limits: loop.Limits) -> Solution:
    began = time.perf_counter()
    assert problem.floor is not None
    sums = columns_within(problem.matrix, problem.floor, problem.growth * problem.floor)
    return judged_solution(
        problem,
        problem.feasible(problem.matrix + sums),
        ProjectionDual(sums),
        tol=limits.tol,
        otherwise=Status.ROUNDING,
        iterations=1,
        seconds=time.perf_counter() - began,
        solver="fast:columns",
    )
