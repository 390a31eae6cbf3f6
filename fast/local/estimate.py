"""Non-negative estimates: an active-set method on orthogonal factors, with the total folded into plain least squares.

The cells that are not 0 carry independent columns, whose factors are updated as cells enter and leave (Lawson and
Hanson, "Solving least squares problems", 1974): a cell enters only where its column has a part in the residual, which
is orthogonal to the columns of all that are in, so dependent columns of a workload do no harm. With a total N, data
``x = N s`` with ``1's = 1`` minimise ``‖M s‖``, M being ``N W - a 1'``; and the least ``‖M t‖² + (1't - 1)²`` over all
non-negative t is found in a multiple of the same s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import validate
from dualmech.fast.engine import loop, threads
from dualmech.linalg import EPS
from dualmech.problems.local.estimate import EstimateDual, NonnegativeEstimate
from dualmech.progress import Status
from dualmech.solution import Solution
from dualmech.validate import Array

METHODS = ("auto",)

LIFTED = 1e-9
"""Value in a cell, where 1 was wanted, from which a combination of queries counts as positive there."""


def solve(problem: NonnegativeEstimate, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`.

    `max_iterations` counts updates of the factors, by default ten for each cell.
    """
    cells = problem.workload.shape[1]
    steps = limits.max_iterations if limits.steps_given else 10 * cells
    validate.choice(METHODS, method=method)
    with threads.threads_for_rank(cells), np.errstate(all="ignore"):
        program = _Program.of(problem)
        outcome = loop.run(
            _ActiveSet.start(program),
            _enter,
            replace(limits, max_iterations=steps),
            # A cell may enter for next to nothing many times before it pays.
            patience=steps + 1,
        )
        data = problem.feasible(outcome.primal.data)
    residual = np.asarray(problem.workload.matrix @ data) - problem.answers
    ending = outcome.reason or Status.ROUNDING
    dual = EstimateDual(residual)
    return outcome.solution(problem, data, dual, limits, otherwise=ending, solver="fast:active_set")


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """Plain non-negative least squares ``‖A t - b‖`` with columns of norm 1, and what its solutions stand for."""

    root: Array  # root, target: (r, n), (r,) the workload and the answers, rotated into as few rows as they need
    target: Array
    units: Array  # (n,) data for one of t, up to the scaling to a total
    total: float | None
    scale: float  # what is added to both sides of the gap, as the judge does
    columns: Array  # columns, aim: (q, n), (q,) a and b
    aim: Array
    # lift, gain: (r,), (n,) a combination of rows of the root, and what it is in each cell: 1 in all, or as near to
    # that as can be
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
    decompositions: int = 0

    @classmethod
    def start(cls, program: _Program) -> _ActiveSet:
        """Begin with all cells 0."""
        rows, cells = program.columns.shape
        nobody = np.zeros(0, dtype=np.intp)
        return cls(program, np.zeros(cells), nobody, np.eye(rows), np.zeros((rows, 0)))

    @property
    def spectrum(self) -> _ActiveSet:
        """What the loop compares: the state itself knows both sides of the gap."""
        return self

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
            state.orthonormal,
            state.triangle,
            program.columns[:, cell],
            place,
            which="col",
            check_finite=False,
        )
        # What is left of a column that depends on those inside is rounding, and could point anywhere.
        if abs(factors[1][place, place]) <= 64 * len(program.aim) * EPS:
            continue
        entered = _ActiveSet(
            program,
            state.solution,
            np.append(state.inside, cell),
            factors[0],
            factors[1],
            state.decompositions + 1,
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
            return _ActiveSet(
                state.program, solution, inside, state.orthonormal, state.triangle, state.decompositions
            )
        reach = np.where(falling, current / np.where(falling, current - wanted, 1.0), np.inf)
        moved = current + float(reach.min()) * (wanted - current)
        gone = falling & (reach <= reach.min())
        solution[inside] = np.where(gone, 0.0, np.maximum(moved, 0.0))
        orthonormal, triangle = state.orthonormal, state.triangle
        for place in np.flatnonzero(gone)[::-1]:
            orthonormal, triangle = scipy.linalg.qr_delete(
                orthonormal, triangle, place, which="col", check_finite=False
            )
        count = state.decompositions + int(gone.sum())
        state = _ActiveSet(state.program, solution, inside[~gone], orthonormal, triangle, count)


def _least_squares(state: _ActiveSet) -> Array:
    """Return the least squares solution on the cells inside, without regard to signs."""
    count = len(state.inside)
    rotated = state.orthonormal[:, :count].T @ state.program.aim
    return np.asarray(scipy.linalg.solve_triangular(state.triangle[:count], rotated, check_finite=False))
