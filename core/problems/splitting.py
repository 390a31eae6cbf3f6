"""How noise that is split by attribute is found, by any solver of the parts: each attribute alone, then all levels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from dualmech.geometry.split import Split, SplitPoint, SplitWeights
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

TOTALS = (None, 0.7, 0.5, 0.3, 0.2)
"""Targets of an attribute's total, over its queries' targets, that are tried one after another; None asks for none."""

SPARE = 100.0
"""Targets of an attribute's values, over its queries' targets, where the queries do not determine the values."""

MARGIN = 0.1  # share of the tolerance that is left for the judge's own rounding

LOOSE = "The best product of weights proves no more, and no noise of another form was tried: the interval is honest."

Alone = Callable[[FitnessForUse | TotalVariance], Solution]  # solves the problem of one attribute

Balanced = Callable[[Array, Matrix], tuple[Array, Array, int]]
"""Minimises ``Σ costs / x`` subject to ``N'x ≤ 1``: returns x, multipliers of sum 1, and the steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Attributes:
    shapes: tuple[Array, ...]
    neighbour_weights: tuple[Array, ...]
    query_weights: tuple[Array, ...]


def best_split(
    problem: FitnessForUse | TotalVariance, tol: float, alone: Alone, balanced: Balanced, late: Callable[[], bool]
) -> tuple[SplitPoint, FitnessDual | VarianceDual, int]:
    """Return the best noise and the best weights of product form that were found, and the steps it took.

    The gap that such forms leave is not closed; the search ends at the tolerance, or when time is up.
    """
    steps = 0
    points: list[tuple[float, SplitPoint]] = []
    duals: list[tuple[float, FitnessDual | VarianceDual]] = []
    for total in TOTALS:
        with np.errstate(all="ignore"):
            by_attribute = attributes(problem, total, alone)
            shapes = _positive_definite(problem.geometry, by_attribute.shapes)
            parts = problem.geometry.parts(shapes)
            if isinstance(problem, TotalVariance):
                points.append(_least_total(problem, shapes, parts))
                proven = problem.geometry.total_bound(by_attribute.neighbour_weights, problem.weights)[0]
                duals.append((proven, VarianceDual(by_attribute.neighbour_weights)))
            else:
                point, first = _best_levels(problem, shapes, parts, balanced)
                dual, second = _best_weights(problem, by_attribute, balanced)
                steps += first + second
                points.append(point)
                duals.append(dual)
        (best, noise), (proven, weights) = min(points, key=itemgetter(0)), max(duals, key=itemgetter(0))
        if best <= (1 + (1 - MARGIN) * tol) * proven or late():
            break
    return noise, weights, max(steps, 1)


def attributes(problem: FitnessForUse | TotalVariance, total: float | None, alone: Alone) -> Attributes:
    """Solve every attribute alone; one whose values themselves are asked is symmetric, whatever its total is worth."""
    by_attribute: dict[int, tuple[Array, Array, Array]] = {}
    keys: list[int] = []
    workload, summed = problem.geometry.workload, problem.sums_variances
    for axis, (query, size) in enumerate(zip(workload.queries, workload.sizes, strict=True)):
        keys.append(size if query is None else id(query))
        if keys[-1] in by_attribute:
            continue
        if query is None:
            by_attribute[keys[-1]] = np.eye(size), np.ones(size), np.ones(size)
            continue
        queries = workload.matrix_of(axis)
        answer = alone(_attribute_problem(queries, total, summed))
        weights = np.ones(len(queries)) if summed else answer.dual.query_weights[: len(queries)]
        by_attribute[keys[-1]] = answer.primal, answer.dual.neighbour_weights, weights
    return Attributes(*(tuple(by_attribute[key][which] for key in keys) for which in range(3)))


def _attribute_problem(queries: Array, total: float | None, summed: bool) -> FitnessForUse | TotalVariance:
    count, size = queries.shape
    rows, targets = [queries], [np.ones(count)]
    if np.linalg.matrix_rank(queries) < size:
        rows, targets = [*rows, np.eye(size)], [*targets, np.full(size, SPARE)]
    if total is not None:
        rows, targets = [*rows, np.ones((1, size))], [*targets, np.array([total])]
    workload, limits = Workload(np.vstack(rows)), np.concatenate(targets)
    return TotalVariance(workload, 1 / limits) if summed else FitnessForUse(workload, limits)


def _positive_definite(split: Split, shapes: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return covariances of attributes, plain noise where rounding left one indefinite."""
    if split.parts(shapes) is not None:
        return shapes
    return tuple(np.eye(size) for size in split.workload.sizes)


def _best_levels(
    problem: FitnessForUse, shapes: tuple[Array, ...], parts: object, balanced: Balanced
) -> tuple[tuple[float, SplitPoint], int]:
    split = problem.geometry
    cases, tables = split.worst_variances(parts)
    costs = split.costs(parts)
    levels, _, steps = balanced(costs, cases / problem.targets[tables])
    point = problem.feasible(SplitPoint(shapes, levels))
    return (float((costs / point.levels).sum()), point), steps


def _best_weights(
    problem: FitnessForUse, by_attribute: Attributes, balanced: Balanced
) -> tuple[tuple[float, FitnessDual], int]:
    gains = problem.geometry.bound_products(by_attribute.neighbour_weights, by_attribute.query_weights)
    _, shares, steps = balanced(np.ones(gains.shape[0]), gains / problem.targets)
    weights = shares / problem.targets
    dual = FitnessDual(by_attribute.neighbour_weights, SplitWeights(by_attribute.query_weights, weights))
    return (float(np.sqrt(gains @ weights).sum()) ** 2, dual), steps


def _least_total(problem: TotalVariance, shapes: tuple[Array, ...], parts: object) -> tuple[float, SplitPoint]:
    """Return the levels of least total at a cost of 1, by the Cauchy-Schwarz inequality ``τ_T ∝ √(k_T / g_T)``."""
    split = problem.geometry
    bill = split.totals(parts, problem.weights)
    point = problem.feasible(SplitPoint(shapes, np.sqrt(split.costs(parts) / bill)))
    return float(bill @ point.levels), point
