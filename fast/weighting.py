"""Query weighting: the interior-point method on all free weights, or on parts of them."""

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

# Query weighting of all ranges with sines as design: piecewise linear dual weights, and products by fast transforms.
#
# With ``N = d + 1``, sines k and N - k have the same sensitivities, and cells i and N - i have the same columns. So
# half of the sines and cells suffice: two sines of costs a and b with the same sensitivities are equivalent to one of
# cost ``(√a + √b)²``, and by symmetry the dual weights of mirrored cells are equal.
#
# At the optimum the dual weights are 0 near the ends and smooth in between, so the solver approximates them by
# piecewise linear functions. The interior-point method then has one column for each hat function, a few hundred in
# total. Any dual weights y prove a bound and determine weights ``√(c / g)``, with costs c and ``g = N y`` for the
# sensitivities N, which are feasible after division by their maximum sensitivity. Intervals with too large a
# sensitivity are refined, ultimately to single cells, where the result is exact.


INITIAL_KNOTS = 64
MAX_KNOTS = 3072  # no refinement beyond this number: each step would factor a large matrix
MAX_PARTS = 8  # of an interval in one refinement
INNER_TOL_FACTOR = 0.1  # tolerance of the problem for given knots, relative to the user's

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
        """Costs of the pairs of sines, shape (h,)."""
        return np.asarray(self.fold(self.geometry.roots) ** 2)

    def fold(self, values: Array) -> Array:
        """Return the sums over pairs, shape (h,)."""
        lower, upper = values[: self.half].copy(), values[::-1][: self.half]
        lower[: self.cells - self.half] += upper[: self.cells - self.half]
        return lower

    def unfold(self, values: Array) -> Array:
        """Expand values of pairs to all sines or cells, shape (d,)."""
        return np.concatenate([values, values[: self.cells - self.half][::-1]])

    def hats(self, knots: Index) -> Array:
        """Return the piecewise linear hat functions of the knots, shape (b, h), of sum 1 after `unfold`."""
        hats = np.zeros((len(knots), self.half))
        for row, knot in enumerate(knots):
            previous, following = (knots[min(max(row + step, 0), len(knots) - 1)] for step in (-1, 1))
            rise, fall = np.arange(previous, knot + 1), np.arange(knot, following + 1)
            hats[row, rise] = (rise - previous) / max(knot - previous, 1)
            hats[row, fall] = (following - fall) / max(following - knot, 1)
            hats[row, knot] = 1.0
        sizes = np.full(self.half, 2.0)
        sizes[self.cells - self.half :] = 1.0
        return hats / (hats @ sizes)[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class SinePoint:
    """Piecewise linear dual weights y (d,), feasible weights (d,), and the objective and bound."""

    knots: Index
    dual: Array
    answer: Array
    excess: Array  # (h,) sensitivity minus 1 in each cell, for the weights before scaling
    objective: float
    lower_bound: float
    steps: int


def _step(program: SineProgram, point: SinePoint) -> SinePoint:
    if len(point.knots) == program.half or len(point.knots) > MAX_KNOTS:
        raise np.linalg.LinAlgError("the maximum number of knots is reached")
    max_excess, new_knots = loop.MARGIN * program.limits.tol / 2, [point.knots]
    for first, last in zip(point.knots[:-1], point.knots[1:], strict=True):
        excess = float(point.excess[first : last + 1].max())
        if last > first + 1 and excess > max_excess:
            # The excess between knots decreases quadratically with their distance.
            num_parts = int(np.clip(np.ceil(np.sqrt(excess / max_excess)), 2, MAX_PARTS))
            new_knots.append(np.linspace(first, last, num_parts + 1).round().astype(np.intp))
    knots = np.unique(np.concatenate(new_knots))
    if len(knots) == len(point.knots):
        raise np.linalg.LinAlgError("no interval needs more knots")
    return _solve(program, knots, point.steps)


def _solve(program: SineProgram, knots: Index, steps: int) -> SinePoint:
    hats, loads = program.hats(knots), program.geometry.loads(1)
    columns = np.empty((program.half, len(knots)))
    for index, hat in enumerate(hats):
        columns[:, index] = loads.reach(program.unfold(hat))[0][: program.half]
    weighting_program = interior_point.WeightingProgram.of(program.costs, columns, 1)
    inner_limits = replace(program.limits, tol=INNER_TOL_FACTOR * program.limits.tol, callback=None)
    outcome = interior_point.minimise(weighting_program, inner_limits)
    dual = program.unfold(outcome.best_dual.dual @ hats)
    # The weight of a pair is distributed in proportion to the roots of the costs.
    pairs = outcome.best_primal.answer * weighting_program.units / np.sqrt(program.costs)
    weights = program.geometry.roots * program.unfold(pairs)
    return _evaluate(program, knots, dual / dual.sum(), weights, steps + max(outcome.iterations, 1))


def _evaluate(program: SineProgram, knots: Index, dual: Array, weights: Array, steps: int) -> SinePoint:
    """Evaluate objective and bound over all sines and cells, for given weights or the weights determined by y."""
    roots, loads = program.geometry.roots, program.geometry.loads(1)
    roots_of_combination = np.sqrt(loads.reach(dual)[0])
    total = float(roots @ roots_of_combination)
    candidates = []
    for weights_tried in (weights, roots / roots_of_combination / total):
        sensitivity = loads.spent(weights_tried)[0]
        candidates.append(
            (
                float((roots**2 / weights_tried).sum() * sensitivity.max()),
                weights_tried / sensitivity.max(),
                sensitivity,
            )
        )
    objective, answer, sensitivity = min(candidates, key=lambda candidate: candidate[0])
    return SinePoint(knots, dual, answer, sensitivity[: program.half] - 1, objective, total**2, steps)


@dataclass(frozen=True, slots=True, eq=False)
class WeightingResult:
    """Weights of sensitivity at most 1, dual weights that sum to 1, and facts of the run."""

    weights: Array
    dual: Array
    reason: Status | None
    iterations: int
    history: tuple[Progress, ...] = ()


Finder = Callable[[Array, Array, int, loop.Limits], WeightingResult]
"""Maps costs (k,), sensitivities (k, s), their power (1 for Gaussian noise) and the limits to a result."""


def solve_weighting(problem: QueryWeighting, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    return run(problem, best, limits, f"fast:{method}")


def run(problem: QueryWeighting, finder: Finder, limits: loop.Limits, solver: str, message: str = "") -> Solution:
    """Find the free weights of the design queries, and judge them."""
    start_time = time.perf_counter()
    # Products with squared sines are fast; the reductions, which weight parts separately, need the matrix.
    sinusoidal = finder is best and problem.geometry.name == "sines"
    outcome = _by_sines(problem, limits) if sinusoidal else _by_matrix(problem, finder, limits)
    return judged_solution(
        problem,
        problem.feasible(problem.geometry.spread(outcome.weights)),
        WeightingDual(outcome.dual),
        tol=limits.tol,
        otherwise=outcome.reason or Status.STALLED,
        message=message,
        iterations=outcome.iterations,
        seconds=time.perf_counter() - start_time,
        solver=solver,
        history=outcome.history,
    )


def _by_matrix(problem: QueryWeighting, finder: Finder, limits: loop.Limits) -> WeightingResult:
    weighed, sensitivities = problem.geometry.weighed, problem.sensitivities
    neighbours = np.flatnonzero(sensitivities[weighed].any(axis=0))
    rows = sensitivities[np.ix_(weighed, neighbours)]
    with np.errstate(all="ignore"):
        outcome = finder(problem.costs[weighed], rows, problem.power, limits)
    dual = np.zeros(sensitivities.shape[1])
    dual[neighbours] = outcome.dual
    return replace(outcome, dual=dual)


def _by_sines(problem: QueryWeighting, limits: loop.Limits) -> WeightingResult:
    with np.errstate(all="ignore"):
        program = SineProgram(problem.geometry, limits)  # type: ignore[arg-type]
        knots = np.unique(np.linspace(0, program.half - 1, INITIAL_KNOTS).round().astype(np.intp))
        outcome = loop.run(_solve(program, knots, 0), partial(_step, program), limits)
    return WeightingResult(
        outcome.best_primal.answer, outcome.best_dual.dual, outcome.reason, outcome.iterations, outcome.history
    )


def best(costs: Array, sensitivities: Array, power: int, limits: loop.Limits) -> WeightingResult:
    """Find the optimal weights by the interior-point method."""
    columns = np.flatnonzero(sensitivities.any(axis=0))
    program = interior_point.WeightingProgram.of(costs, sensitivities[:, columns], power)
    outcome = interior_point.minimise(program, limits)
    dual = np.zeros(sensitivities.shape[1])
    dual[columns] = outcome.best_dual.dual / outcome.best_dual.dual.sum()
    weights = outcome.best_primal.answer * program.units
    return WeightingResult(weights, dual, outcome.reason, outcome.iterations, outcome.history)
