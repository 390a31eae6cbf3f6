"""Non-negative estimates by an active-set method; projections onto local strategies by Newton's method.

The columns of the non-zero cells are linearly independent, and their QR factors are updated as cells enter and leave
(Lawson and Hanson, "Solving least squares problems", 1974). A cell only enters if its column is not orthogonal to the
residual. The residual is orthogonal to the columns of all cells inside, so dependent columns of a workload do no harm.
With a total N, data ``x = N s`` with ``1's = 1`` minimise ``‖M s‖``, where ``M = N W - a 1'``. The minimum of
``‖M t‖² + (1't - 1)²`` over all non-negative t is attained at a multiple of the same s.
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

POSITIVE_TOL = 1e-9
"""A combination of queries, fitted to 1 in all cells, counts as positive in a cell if its value exceeds this."""


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
            # Many cells may enter with hardly any gain before one brings a large gain.
            patience=steps + 1,
        )
        data = problem.feasible(outcome.best_primal.data)
    residual = np.asarray(problem.workload.matrix @ data) - problem.answers
    status = outcome.reason or Status.ROUNDING
    dual = EstimateDual(residual)
    return outcome.solution(problem, data, dual, limits, otherwise=status, solver="fast:active_set")


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """Non-negative least squares ``‖A t - b‖`` with columns of norm 1, and the data that its solutions represent."""

    root: Array  # root, target: (r, n), (r,) the workload and the answers, rotated to at most n + 1 rows
    target: Array
    units: Array  # (n,) data for a unit of t, up to the scaling to a total
    total: float | None
    scale: float  # offset of objective and bound, as in the judge's gap
    columns: Array  # columns, aim: (q, n), (q,) A and b
    aim: Array
    # lift, lift_values: (r,), (n,) a combination of rows of the root, fitted to 1 in all cells, and its values
    lift: Array
    lift_values: Array

    @classmethod
    def of(cls, problem: NonnegativeEstimate) -> _Program:
        """Rotate the rows, include the total, and scale the columns to norm 1 (zero columns stay zero)."""
        augmented = np.column_stack([problem.workload.dense(), problem.answers])
        if augmented.shape[0] > augmented.shape[1]:
            augmented = scipy.linalg.qr(augmented, mode="r", check_finite=False)[0][: augmented.shape[1]]
        root, target, total = augmented[:, :-1], augmented[:, -1], problem.total
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
        """Return the data for a solution t."""
        data = solution * self.units
        if self.total is None:
            return data
        return data * (self.total / data.sum()) if data.any() else np.full(len(data), self.total / len(data))


@dataclass(frozen=True, eq=False)
class _ActiveSet:
    """The non-zero cells, the QR factors of their columns, and the least-squares solution on them."""

    program: _Program
    solution: Array  # (n,) t, not negative
    cells: npt.NDArray[np.intp]  # (k,) the non-zero cells, in the order of the columns of the factors
    orthonormal: Array  # orthonormal, triangle: (q, q), (q, k) QR factors of the columns of the cells
    triangle: Array
    steps: int = 0

    @classmethod
    def start(cls, program: _Program) -> _ActiveSet:
        rows, cells = program.columns.shape
        no_cells = np.zeros(0, dtype=np.intp)
        return cls(program, np.zeros(cells), no_cells, np.eye(rows), np.zeros((rows, 0)))

    @cached_property
    def data(self) -> Array:
        """The data for the solution, shape (n,)."""
        return self.program.data(self.solution)

    @cached_property
    def _residual(self) -> Array:
        return np.asarray(self.program.root @ self.data - self.program.target)

    @property
    def objective(self) -> float:
        """Half the squared distance plus the judge's scale."""
        return float(self._residual @ self._residual) / 2 + self.program.scale

    @property
    def lower_bound(self) -> float:
        """The lower bound from the residual ν, as the judge computes it, plus its scale."""
        program, direction = self.program, self._residual
        slopes = program.root.T @ direction
        if program.total is None:
            positive = program.lift_values > POSITIVE_TOL
            deficit = np.maximum(-slopes, 0.0)[positive]
            direction = direction + program.lift * float((deficit / program.lift_values[positive]).max(initial=0.0))
            magnitude = np.abs(program.root).T @ np.abs(direction)
            if np.any(program.root.T @ direction < -4 * len(direction) * EPS * magnitude):
                return program.scale
        minimum = 0.0 if program.total is None else program.total * float(slopes.min())
        value, length = minimum - float(direction @ program.target), float(np.linalg.norm(direction))
        return program.scale + ((max(value, 0.0) / length) ** 2 / 2 if length > 0 else 0.0)


def _enter(state: _ActiveSet) -> _ActiveSet:
    """Let the cell of steepest descent enter, then remove the cells that would become negative.

    Raises `numpy.linalg.LinAlgError` if no cell decreases the distance by more than rounding errors.
    """
    program = state.program
    slopes = program.columns.T @ (program.aim - program.columns @ state.solution)
    slopes[state.cells] = 0.0
    for cell in np.argsort(-slopes):
        if slopes[cell] <= 8 * EPS * np.linalg.norm(program.aim):
            break
        index = len(state.cells)
        factors = scipy.linalg.qr_insert(
            state.orthonormal, state.triangle, program.columns[:, cell], index, which="col", check_finite=False
        )
        # The remainder of a column that depends on the columns inside is a rounding error.
        if abs(factors[1][index, index]) <= 64 * len(program.aim) * EPS:
            continue
        candidate = _ActiveSet(
            program, state.solution, np.append(state.cells, cell), factors[0], factors[1], state.steps + 1
        )
        if _least_squares(candidate)[-1] > 0:
            return _leave(candidate)
    raise np.linalg.LinAlgError("no cell decreases the distance")


def _leave(state: _ActiveSet) -> _ActiveSet:
    """Move towards the least-squares solution on the cells, and drop cells that reach 0, until none does."""
    while True:
        target, cells = _least_squares(state), state.cells
        current, solution = state.solution[cells], np.zeros(len(state.solution))
        non_positive = target <= 0
        if not np.any(non_positive):
            solution[cells] = target
            return _ActiveSet(state.program, solution, cells, state.orthonormal, state.triangle, state.steps)
        step_lengths = np.where(non_positive, current / np.where(non_positive, current - target, 1.0), np.inf)
        new_values = current + float(step_lengths.min()) * (target - current)
        dropped = non_positive & (step_lengths <= step_lengths.min())
        solution[cells] = np.where(dropped, 0.0, np.maximum(new_values, 0.0))
        orthonormal, triangle = state.orthonormal, state.triangle
        for index in np.flatnonzero(dropped)[::-1]:
            orthonormal, triangle = scipy.linalg.qr_delete(
                orthonormal, triangle, index, which="col", check_finite=False
            )
        num_steps = state.steps + int(dropped.sum())
        state = _ActiveSet(state.program, solution, cells[~dropped], orthonormal, triangle, num_steps)


def _least_squares(state: _ActiveSet) -> Array:
    num_inside = len(state.cells)
    rotated_target = state.orthonormal[:, :num_inside].T @ state.program.aim
    return np.asarray(scipy.linalg.solve_triangular(state.triangle[:num_inside], rotated_target, check_finite=False))


# Projection onto local strategies.
#
# With a floor on the probabilities, each column is projected separately, by finding the root of a piecewise linear
# function. Without a floor, the rows of a strategy lie in the cone of ratios up to ``e^ε``. The projection P of a row
# onto the cone also requires the root of a piecewise linear function. A semismooth Newton method maximises the dual,
# which is smooth and concave in the multipliers λ of the column sums and has the gradient ``1 - Σ_o P(r_o + λ)``.


MIN_DAMPING = 1e-14  # damping of the Hessian, relative to the number of outputs
MAX_DAMPING = 1e12  # if no step with this damping increases the bound, rounding errors end the method

MIN_RATIO, GOOD_RATIO = 1e-3, 0.75
"""Ratios of actual to predicted increase: minimum to accept a step, and minimum to decrease the damping."""

DAMPING_FACTOR = 4.0
MAX_ROOT_STEPS = 100  # for the multipliers of columns with fixed limits
COLUMN_SUM_TOL = 1e-12  # maximum error of a column sum before the last step

MAX_STALLED_STEPS = 100
"""Steps without a smaller gap after which the solver has stalled: outputs become non-zero one by one."""


def solve_projection(problem: LocalProjection, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    if problem.floor is not None:
        return _column_by_column(problem, limits)
    with np.errstate(all="ignore"):
        shifted = replace(limits, offset=problem.scale)
        outcome = loop.run(_start(problem), lambda state: _step(problem, state), shifted, patience=MAX_STALLED_STEPS)
    best_point = outcome.best_dual.point
    dual = ProjectionDual(best_point.sums, best_point.projected_rows - problem.matrix - best_point.sums)
    return outcome.solution(problem, outcome.best_primal.point.strategy, dual, limits, solver="fast:newton")


def columns_within(matrix: Array, lower_limits: Array, upper_limits: Array) -> Array:
    """Return λ, shape (n,), with ``Σ_o clip(R_ou + λ_u, lower_o, upper_o) = 1`` for every column; λ must exist.

    Each sum is piecewise linear in λ, and its slope is the number of entries between their limits. Newton's method for
    all columns together, safeguarded by bisection, ends on the piece that contains the root.
    """
    low, high = lower_limits[:, None], upper_limits[:, None]
    shift = (1 - matrix.sum(axis=0)) / len(matrix)
    lower_shift, upper_shift = (low - matrix).min(axis=0), (high - matrix).max(axis=0)
    shifted, clipped = np.empty_like(matrix), np.empty_like(matrix)
    for _ in range(MAX_ROOT_STEPS):
        np.add(matrix, shift, out=shifted)
        np.clip(shifted, low, high, out=clipped)
        deficit = 1 - clipped.sum(axis=0)
        if np.all(np.abs(deficit) <= COLUMN_SUM_TOL):
            break
        lower_shift, upper_shift = np.where(deficit > 0, shift, lower_shift), np.where(deficit < 0, shift, upper_shift)
        slope = np.count_nonzero(shifted == clipped, axis=0)
        newton_shift = shift + deficit / np.maximum(slope, 1)
        shift = np.where(
            (slope > 0) & (newton_shift > lower_shift) & (newton_shift < upper_shift),
            newton_shift,
            (lower_shift + upper_shift) / 2,
        )
    # One more step removes the remaining error.
    slope = np.count_nonzero(shifted == clipped, axis=0)
    return np.asarray(shift + np.where(slope > 0, deficit / np.maximum(slope, 1), 0.0))


def rows_within(matrix: Array, growth: float) -> tuple[Array, Array]:
    """Project rows onto the cone of rows whose entries differ by a factor of at most `growth`.

    Returns the projections, and the minimum z of each.

    z is 0 if ``Σ_u (-x_u)₊ ≥ growth Σ_u (x_u)₊``, else ``(Σ_low x + growth Σ_high x) / (#low + growth² #high)``, with
    the low entries below z and the high entries above ``growth z``.
    """
    count, growth = matrix.shape[1], np.float64(growth)
    breakpoints = np.maximum(np.hstack([matrix, matrix / growth]), 0.0)
    order = np.argsort(breakpoints, axis=1, kind="stable")
    breakpoints = np.take_along_axis(breakpoints, order, axis=1)
    is_lower, entries = order < count, np.take_along_axis(matrix, order % count, axis=1)
    num_low = np.cumsum(is_lower, axis=1)
    low_sums = np.cumsum(np.where(is_lower, entries, 0.0), axis=1)
    # Summed from the end of the large entries, because subtracting an entry would leave its rounding error in the sum.
    upper_entries = np.where(is_lower, 0.0, np.maximum(entries, 0.0))
    high_sums = np.cumsum(upper_entries[:, ::-1], axis=1)[:, ::-1] - upper_entries
    num_high = count - np.cumsum(~is_lower, axis=1)
    values = breakpoints * num_low - low_sums - growth * (high_sums - growth * breakpoints * num_high)
    piece = np.maximum((values < 0).sum(axis=1) - 1, 0)
    output = np.arange(len(matrix))
    weight = num_low[output, piece] + growth**2 * num_high[output, piece]
    total = low_sums[output, piece] + growth * high_sums[output, piece]
    positive = np.maximum(matrix, 0.0)
    is_interior = (positive - matrix).sum(axis=1) < growth * positive.sum(axis=1)
    # For a row with no entry at either limit, z is not unique.
    root = np.where(weight > 0, total / np.maximum(weight, 1), breakpoints[output, piece])
    minimum = np.where(is_interior, np.maximum(root, 0.0), 0.0)[:, None]
    return np.clip(matrix, minimum, growth * minimum), minimum[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """Multipliers λ, the projected rows, a nearby strategy, and objective and bound with the judge's scale added."""

    sums: Array
    projected_rows: Array  # projected_rows, row_minima: (m, n), (m,) the rows ``P(r_o + λ)`` and their minima
    row_minima: Array
    strategy: Array  # (m, n) the projected rows, corrected such that columns sum to 1
    value: float  # the dual function at λ
    objective: float
    lower_bound: float

    @classmethod
    def at(cls, problem: LocalProjection, sums: Array) -> _Point:
        """Project the rows of ``R + 1 λ'``."""
        projected_rows, row_minima = rows_within(problem.matrix + sums, problem.growth)
        value = float(np.square(projected_rows - problem.matrix).sum() / 2 - sums @ (projected_rows.sum(axis=0) - 1))
        strategy = problem.feasible(projected_rows)
        objective = float(np.square(strategy - problem.matrix).sum() / 2)
        return cls(sums, projected_rows, row_minima, strategy, value, objective + problem.scale, value + problem.scale)


@dataclass(frozen=True, slots=True, eq=False)
class _ProjectionState(loop.OfPoint):
    """A point, the damping of the next step, and the number of Newton systems solved."""

    point: _Point
    damping: float = 1 / DAMPING_FACTOR
    steps: int = 0


def _start(problem: LocalProjection) -> _ProjectionState:
    """Start with the λ for which the columns of ``R + 1 λ'`` sum to 1."""
    shift = (1 - problem.matrix.sum(axis=0)) / len(problem.matrix)
    return _ProjectionState(_Point.at(problem, shift))


def _step(problem: LocalProjection, state: _ProjectionState) -> _ProjectionState:
    """Take one Newton step, damped until the increase of the dual function is a sufficient part of the prediction.

    Raises `numpy.linalg.LinAlgError` if no step increases it.
    """
    point, damping, num_steps = state.point, state.damping, state.steps
    hessian, deficit = _hessian(problem, point), 1 - point.projected_rows.sum(axis=0)
    num_outputs, users = len(problem.matrix), np.arange(len(deficit))
    rounding = 8 * EPS * (abs(point.value) + float(np.square(point.sums).sum()))
    while damping <= MAX_DAMPING:
        damped = hessian.copy()
        damped[users, users] += num_outputs * damping
        direction = scipy.linalg.solve(damped, deficit, assume_a="pos", check_finite=False)
        num_steps += 1
        proposed = _Point.at(problem, point.sums + direction)
        predicted = float(direction @ deficit - direction @ hessian @ direction / 2) + rounding
        ratio = (proposed.value - point.value + rounding) / predicted
        if ratio >= MIN_RATIO:
            next_damping = damping / DAMPING_FACTOR if ratio >= GOOD_RATIO else damping
            return _ProjectionState(proposed, max(next_damping, MIN_DAMPING), num_steps)
        damping *= DAMPING_FACTOR
    raise np.linalg.LinAlgError("no step increases the dual function")


def _hessian(problem: LocalProjection, point: _Point) -> Array:
    """Return the sum of the derivatives of the row projections, shape (n, n).

    The derivative of a row is ``diag(interior) + a a' / ‖a‖²``, where a is 1 in entries at the lower limit and ``e^ε``
    in entries at the upper limit. For a zero row it is 0.
    """
    growth, shifted, minimum = problem.growth, problem.matrix + point.sums, point.row_minima[:, None]
    low, high, is_nonzero = shifted < minimum, shifted > growth * minimum, minimum > 0
    limits = np.where(is_nonzero & low, 1.0, 0.0) + np.where(is_nonzero & high, growth, 0.0)
    norms = np.linalg.norm(limits, axis=1, keepdims=True)
    limits = np.divide(limits, norms, out=np.zeros_like(limits), where=norms > 0)
    return np.asarray(np.diag((is_nonzero & ~low & ~high).sum(axis=0).astype(float)) + limits.T @ limits)


def _column_by_column(problem: LocalProjection, limits: loop.Limits) -> Solution:
    start_time = time.perf_counter()
    assert problem.floor is not None
    sums = columns_within(problem.matrix, problem.floor, problem.growth * problem.floor)
    return judged_solution(
        problem,
        problem.feasible(problem.matrix + sums),
        ProjectionDual(sums),
        tol=limits.tol,
        otherwise=Status.ROUNDING,
        iterations=1,
        seconds=time.perf_counter() - start_time,
        solver="fast:columns",
    )
