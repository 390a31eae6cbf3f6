"""Running sums: the fixed point of the dual, each evaluation in time proportional to the number of sums."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import ascent, loop
from dualmech.geometry import stream
from dualmech.geometry.base import FitnessDual, VarianceDual
from dualmech.geometry.stream import StreamPoint
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution
from dualmech.validate import Array

SHARE = 1e-3  # share of the tolerance that the quadrature of a step may be off by

ACCELERATION = ascent.Acceleration(memory=11, spare=1e-9)

PATIENCE = 150  # evaluations without a smaller gap after which it counts as stalled: they are cheap


@dataclass(frozen=True, slots=True, eq=False)
class StreamSpectrum:
    """The dual function at weights of sum 1, on cells and, unless those of the queries are fixed, on sums."""

    weights: Array
    neighbours: int
    fidelity: float
    gains: Array
    decompositions: int = 1

    @property
    def lower_bound(self) -> float:
        """What the weights prove."""
        return self.fidelity**2

    @property
    def objective(self) -> float:
        """What the noise that belongs to the weights achieves: both sides over their limits, multiplied."""
        dearest, worst = self.gains[: self.neighbours].max(), self.gains[self.neighbours :].max(initial=0.0)
        return float(dearest * (worst if len(self.gains) > self.neighbours else self.fidelity))


@dataclass(frozen=True, slots=True, eq=False)
class StreamProgram:
    """Sums with decay, with targets or, where `fixed`, with weights."""

    numbers: Array
    decay: float | Array
    fixed: bool
    tol: float

    def on_sums(self, weights: Array) -> Array:
        """Return the weights μ on the variances, from all weights."""
        return self.numbers if self.fixed else weights[len(self.numbers) :] / self.numbers

    def at(self, weights: Array) -> StreamSpectrum:
        """Evaluate."""
        count = len(self.numbers)
        cells, sums = weights[:count], self.on_sums(weights)
        matrix = stream.Bidiagonal.of(cells, sums, self.decay)
        poles = stream.poles_of(matrix, cells, sums, self.decay, self.tol)
        costs, variances = stream.inverse_root_diagonals(matrix, poles, both=not self.fixed)
        gains = costs / cells
        if not self.fixed:
            gains = np.concatenate([gains, variances / sums / self.numbers])
        return StreamSpectrum(weights, count, float(costs.sum()), gains)


def solve(
    problem: FitnessForUse | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
) -> Solution:
    """Solve fitness for use or total variance on running sums to a proven gap; see `dualmech.fast.solve`."""
    validate.choice(ascent.METHODS, method=method)
    began, fixed = time.perf_counter(), isinstance(problem, TotalVariance)
    numbers: Array = problem.geometry.on_sums(getattr(problem, problem.numbers))
    program = StreamProgram(numbers, problem.geometry.decay, fixed, SHARE * min(limits.tol, 1e-3))
    with np.errstate(all="ignore"):
        first = ascent.FixedPointState(cast(Any, program.at(_first(program, start))))
        outcome = loop.run(_Counted(first, 1), partial(_step, program), limits, patience=PATIENCE)
    best, proven = outcome.primal.spectrum.weights, outcome.dual.spectrum.weights
    count = len(numbers)
    primal = problem.feasible(StreamPoint(best[:count], program.on_sums(best), 1.0))
    dual: Any = VarianceDual(proven[:count])
    if not fixed:
        dual = FitnessDual(proven[:count], program.on_sums(proven))
    return outcome.solution(
        problem, primal, dual, limits, solver=f"fast:{method}", seconds=time.perf_counter() - began
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """A state of the fixed point, and the evaluations so far."""

    at: ascent.FixedPointState
    decompositions: int

    @property
    def spectrum(self) -> StreamSpectrum:
        return self.at.spectrum  # type: ignore[return-value]


def _step(program: StreamProgram, state: _Counted) -> _Counted:
    at = ascent.step(program, state.at, ACCELERATION)  # type: ignore[arg-type]
    return _Counted(at, state.decompositions + at.decompositions)


def _first(program: StreamProgram, start: Solution | None) -> Array:
    """Return uniform weights, or those of an earlier solution."""
    count = len(program.numbers)
    if start is None:
        return np.full(count if program.fixed else 2 * count, 1 / count)
    cells = np.asarray(getattr(start.dual, "neighbour_weights", None))
    sums = np.asarray(getattr(start.dual, "query_weights", np.ones(count)))
    if cells.shape != (count,) or sums.shape != (count,):
        raise InvalidInputError(f"start must be a solution over {count} running sums")
    parts = [cells, *([] if program.fixed else [sums * program.numbers])]
    return ascent.normalise(np.concatenate([each / each.sum() for each in parts]), count)
