"""Query tables: the best noise on each attribute alone, then the best levels and weights for them together."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dualmech.errors import InvalidInputError, UncertifiedWarning
from dualmech.fast import fitness
from dualmech.fast.engine import interior_point, loop
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.tables import TableDual, TableFitness, TablePoint
from dualmech.solution import Callback, Solution, Status, judged, warned
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

ALONE = 1e-9
"""Gap to which the noise on one attribute is solved."""

TOTALS = (None, 0.7, 0.5, 0.3, 0.2)
"""Targets of an attribute's total, over those of its queries, that are tried one after another; None asks for none."""

SPARE = 100.0
"""Targets of an attribute's values, over those of its queries, where the queries do not determine the values."""

MARGIN = 0.1
"""Share of the tolerance to which levels and weights are solved, at most."""

LOOSE = "The best product of weights proves no more, and no noise of another form was tried: the interval is honest."


def solve(
    problem: TableFitness,
    *,
    tol: float = 1e-6,
    method: str = "auto",
    max_iterations: int = 1000,
    time_limit: float | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Find noise and weights of product form; see `dualmech.fast.solve`.

    The gap that such forms leave is not closed: ask for what is needed, a few percent, or take the interval.
    """
    limits = loop.Limits.checked(tol, max_iterations, time_limit, callback)
    if method != "auto":
        raise InvalidInputError(f"method must be auto, got {method!r}")
    began, steps = time.perf_counter(), 0
    points: list[tuple[float, TablePoint]] = []
    duals: list[tuple[float, TableDual]] = []
    for total in TOTALS:
        with np.errstate(all="ignore"):
            found = _attributes(problem, total)
            cost, point, first = _best_noise(problem, found.shapes, limits)
            bound, dual, second = _best_weights(problem, found, limits)
        points.append((cost, point))
        duals.append((bound, dual))
        steps += first + second
        (best, point), (proven, dual) = min(points, key=_first), max(duals, key=_first)
        late = time_limit is not None and time.perf_counter() - began > time_limit
        if best <= (1 + (1 - MARGIN) * tol) * proven or late:
            break
    answer = judged(
        problem,
        point,
        dual,
        tol=limits.tol,
        otherwise=Status.STALLED,
        message=LOOSE,
        iterations=steps,
        seconds=time.perf_counter() - began,
        solver="fast:products",
    )
    return warned(answer, stacklevel=4)


def _best_noise(
    problem: TableFitness, shapes: tuple[Array, ...], limits: loop.Limits
) -> tuple[float, TablePoint, int]:
    parts = problem.split(shapes)
    if parts is None:
        # Rounding left a covariance indefinite where values can hardly be told apart: plain noise is always one.
        shapes = tuple(np.eye(size) for size in problem.workload.sizes)
        parts = problem.split(shapes)
    if parts is None:
        raise np.linalg.LinAlgError("plain noise is positive definite")
    cases, tables = problem.cases(parts)
    costs = problem.costs(parts)
    levels, _, steps = _balanced(costs, cases / problem.targets[tables], limits)
    point = problem.feasible(TablePoint(shapes, levels))
    return float((costs / point.noise).sum()), point, steps


def _best_weights(
    problem: TableFitness, found: _Attributes, limits: loop.Limits
) -> tuple[float, TableDual, int]:
    start = TableDual(found.neighbour_weights, found.query_weights, np.ones(len(problem.targets)))
    gains = problem.gains(start)
    _, shares, steps = _balanced(np.ones(gains.shape[0]), gains / problem.targets, limits)
    dual = replace(start, table_weights=shares / problem.targets)
    return float(np.sqrt(gains @ dual.table_weights).sum()) ** 2, dual, steps


def _first(pair: tuple[float, object]) -> float:
    return pair[0]


def _balanced(costs: Array, sensitivities: Matrix, limits: loop.Limits) -> tuple[Array, Array, int]:
    """Minimise ``Σ costs / x`` subject to ``N'x ≤ 1``; return x, the multipliers with sum 1, and the steps."""
    program = interior_point.Program.of(costs, sensitivities.tocsr(), 1)
    outcome = interior_point.minimise(program, limits, min(MARGIN * limits.tol, ALONE))
    weights = np.maximum(outcome.dual.dual, 0.0)
    return outcome.primal.answer * program.units, weights / weights.sum(), outcome.iterations


@dataclass(frozen=True, slots=True, eq=False)
class _Attributes:
    """Covariances and weights of every attribute."""

    shapes: tuple[Array, ...]
    neighbour_weights: tuple[Array, ...]
    query_weights: tuple[Array, ...]


def _attributes(problem: TableFitness, total: float | None) -> _Attributes:
    """Solve every attribute alone; one whose values themselves are asked is symmetric, whatever its total is worth."""
    found: dict[Any, tuple[Array, Array, Array]] = {}
    keys: list[Any] = []
    for axis, (asked, size) in enumerate(zip(problem.workload.queries, problem.workload.sizes, strict=True)):
        keys.append(size if asked is None else id(asked))
        if keys[-1] in found:
            continue
        even = np.eye(size), np.ones(size), np.ones(size)
        found[keys[-1]] = even if asked is None else _alone(problem.workload.matrix_of(axis), total)
    return _Attributes(*(tuple(found[key][which] for key in keys) for which in range(3)))


def _alone(queries: Array, total: float | None) -> tuple[Array, Array, Array]:
    """Solve an attribute with targets 1 for its queries and `total` for the total."""
    count, size = queries.shape
    rows, targets = [queries], [np.ones(count)]
    if np.linalg.matrix_rank(queries) < size:
        rows, targets = [*rows, np.eye(size)], [*targets, np.full(size, SPARE)]
    if total is not None:
        rows, targets = [*rows, np.ones((1, size))], [*targets, np.array([total])]
    problem = FitnessForUse(Workload(np.vstack(rows)), np.concatenate(targets))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)  # any answer will do
        answer = fitness.solve(problem, tol=ALONE)
    return answer.primal, answer.dual.neighbour_weights, answer.dual.query_weights[:count]
