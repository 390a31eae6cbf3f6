"""Query weighting: the interior-point method on the weights that a problem leaves open, whole or in parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from dualmech.fast.engine import interior_point, loop
from dualmech.problems.design import SineDesign
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array

# Program 1 on all ranges by sines: dual weights between knots, products by fast transforms.
#
# Sines k and N - k have the same sensitivities, and cells i and N - i the same columns, ``N = d + 1``. So half of
# each is left: two sines of costs a and b and the same sensitivities are one of cost ``(√a + √b)²``, and by symmetry
# the dual weights of mirrored cells are equal.
#
# At the optimum the dual weights are 0 near the ends and smooth in between. The solver seeks them among the piecewise
# linear ones: the interior-point method runs as it is on a few hundred columns in place of all, each the sensitivity of
# a hat. Any y proves a bound and determines the weights ``√(c / g)``, feasible once divided by the most that they
# spend. Where they spend too much, the knots are too far apart: there the knots move together, in the end to every
# cell, where nothing is restricted.


FIRST_KNOTS = 64
MOST_KNOTS = 3072  # knots above which they are not moved together: each step would factor a large matrix

PARTS = 8  # into which an interval between knots is divided at most, at a time

INNER = 0.1  # share of the tolerance to which each choice of knots is solved

Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class SineProgram:
    """Half of the sines and half of the cells."""

    geometry: SineDesign
    limits: loop.Limits

    @property
    def cells(self) -> int:
        return len(self.geometry.design)

    @property
    def half(self) -> int:
        return (self.cells + 1) // 2

    @property
    def costs(self) -> Array:
        """Costs of the pairs of sines (h,)."""
        return np.asarray(self.folded(self.geometry.roots) ** 2)

    def folded(self, values: Array) -> Array:
        """Return the sums over pairs (h,)."""
        first, last = values[: self.half].copy(), values[::-1][: self.half]
        first[: self.cells - self.half] += last[: self.cells - self.half]
        return first

    def unfolded(self, values: Array) -> Array:
        """Return the values of pairs for both of each (d,)."""
        return np.concatenate([values, values[: self.cells - self.half][::-1]])

    def hats(self, knots: Index) -> Array:
        """Return the piecewise linear functions that are 1 at one knot and 0 at the others, of sum 1 (b, h)."""
        hats = np.zeros((len(knots), self.half))
        for row, place in enumerate(knots):
            low, high = (knots[min(max(row + step, 0), len(knots) - 1)] for step in (-1, 1))
            rise, fall = np.arange(low, place + 1), np.arange(place, high + 1)
            hats[row, rise] = (rise - low) / max(place - low, 1)
            hats[row, fall] = (high - fall) / max(high - place, 1)
            hats[row, place] = 1.0
        sizes = np.full(self.half, 2.0)
        sizes[self.cells - self.half :] = 1.0
        return hats / (hats @ sizes)[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class SinePoint:
    """Dual weights y (d,) between knots, and the feasible weights (d,) that they determine; what both prove."""

    knots: Index
    dual: Array
    answer: Array
    excess: Array  # (h,) spending above 1, cell by cell, of the weights that y determines
    objective: float
    lower_bound: float
    steps: int


def _step(program: SineProgram, point: SinePoint) -> SinePoint:
    """Divide the intervals in which too much is spent, and solve again."""
    if len(point.knots) == program.half or len(point.knots) > MOST_KNOTS:
        raise np.linalg.LinAlgError("there are no more knots to be had")
    allowed, added = loop.MARGIN * program.limits.tol / 2, [point.knots]
    for low, high in zip(point.knots[:-1], point.knots[1:], strict=True):
        most = float(point.excess[low : high + 1].max())
        if high > low + 1 and most > allowed:
            # Between knots the excess falls at least like their distance.
            parts = int(np.clip(np.ceil(np.sqrt(most / allowed)), 2, PARTS))
            added.append(np.linspace(low, high, parts + 1).round().astype(np.intp))
    knots = np.unique(np.concatenate(added))
    if len(knots) == len(point.knots):
        raise np.linalg.LinAlgError("nothing more is gained by knots")
    return _solve(program, knots, point.steps)


def _solve(program: SineProgram, knots: Index, spent: int) -> SinePoint:
    """Find the best dual weights that are linear between knots."""
    hats, loads = program.hats(knots), program.geometry.loads(1)
    columns = np.empty((program.half, len(knots)))
    for index, hat in enumerate(hats):
        columns[:, index] = loads.reach(program.unfolded(hat))[0][: program.half]
    stated = interior_point.WeightingProgram.of(program.costs, columns, 1)
    inner = replace(program.limits, tol=INNER * program.limits.tol, callback=None)
    outcome = interior_point.minimise(stated, inner)
    dual = program.unfolded(outcome.best_dual.dual @ hats)
    # A pair's weight is shared out as the roots of its costs are.
    pairs = outcome.best_primal.answer * stated.units / np.sqrt(program.costs)
    weights = program.geometry.roots * program.unfolded(pairs)
    return _evaluate(program, knots, dual / dual.sum(), weights, spent + max(outcome.iterations, 1))


def _evaluate(program: SineProgram, knots: Index, dual: Array, weights: Array, steps: int) -> SinePoint:
    """Evaluate both sides of the gap over all sines and cells, at given weights or those that the dual determines."""
    roots, loads = program.geometry.roots, program.geometry.loads(1)
    reach = np.sqrt(loads.reach(dual)[0])
    total = float(roots @ reach)
    tried = []
    for trial in (weights, roots / reach / total):
        used = loads.spent(trial)[0]
        tried.append((float((roots**2 / trial).sum() * used.max()), trial / used.max(), used))
    objective, answer, used = min(tried, key=lambda one: one[0])
    return SinePoint(knots, dual, answer, used[: program.half] - 1, objective, total**2, steps)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Weights that spend 1 at most, dual weights that sum to 1, and what it took to find them."""

    weights: Array
    dual: Array
    reason: Status | None
    iterations: int
    history: tuple[Progress, ...] = ()


Finder = Callable[[Array, Array, int, loop.Limits], Found]
"""Takes costs (k,), sensitivities (k, s), the power and the limits to weights."""


def solve_weighting(problem: QueryWeighting, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    return run(problem, best, limits, f"fast:{method}")


def run(problem: QueryWeighting, find: Finder, limits: loop.Limits, solver: str, message: str = "") -> Solution:
    """Find weights of the design queries that are needed and not free, and let the problem judge them."""
    began = time.perf_counter()
    # Products with squared sines are fast; the reductions, which weigh in parts, need the matrix.
    sinusoidal = find is best and problem.geometry.name == "sines"
    outcome = _by_sines(problem, limits) if sinusoidal else _by_matrix(problem, find, limits)
    return judged_solution(
        problem,
        problem.feasible(problem.geometry.spread(outcome.weights)),
        WeightingDual(outcome.dual),
        tol=limits.tol,
        otherwise=outcome.reason or Status.STALLED,
        message=message,
        iterations=outcome.iterations,
        seconds=time.perf_counter() - began,
        solver=solver,
        history=outcome.history,
    )


def _by_matrix(problem: QueryWeighting, find: Finder, limits: loop.Limits) -> Found:
    """Find weights from the sensitivities written out, and spread their dual over all neighbours."""
    weighed, sensitivities = problem.geometry.weighed, problem.sensitivities
    neighbours = np.flatnonzero(sensitivities[weighed].any(axis=0))
    rows = sensitivities[np.ix_(weighed, neighbours)]
    with np.errstate(all="ignore"):
        outcome = find(problem.costs[weighed], rows, problem.power, limits)
    dual = np.zeros(sensitivities.shape[1])
    dual[neighbours] = outcome.dual
    return replace(outcome, dual=dual)


def _by_sines(problem: QueryWeighting, limits: loop.Limits) -> Found:
    """Move knots together until the gap is small enough."""
    with np.errstate(all="ignore"):
        program = SineProgram(problem.geometry, limits)  # type: ignore[arg-type]
        knots = np.unique(np.linspace(0, program.half - 1, FIRST_KNOTS).round().astype(np.intp))
        outcome = loop.run(_solve(program, knots, 0), partial(_step, program), limits)
    return Found(
        outcome.best_primal.answer, outcome.best_dual.dual, outcome.reason, outcome.iterations, outcome.history
    )


def best(costs: Array, sensitivities: Array, power: int, limits: loop.Limits) -> Found:
    """Find the best weights of all, by the interior-point method."""
    columns = np.flatnonzero(sensitivities.any(axis=0))
    program = interior_point.WeightingProgram.of(costs, sensitivities[:, columns], power)
    outcome = interior_point.minimise(program, limits)
    dual = np.zeros(sensitivities.shape[1])
    dual[columns] = outcome.best_dual.dual / outcome.best_dual.dual.sum()
    weights = outcome.best_primal.answer * program.units
    return Found(weights, dual, outcome.reason, outcome.iterations, outcome.history)
