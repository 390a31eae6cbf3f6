"""A primal-dual interior-point method for the weights of queries.

Minimise ``Σ c_i x_i^-p`` subject to ``N'x ≤ 1``, with N (k, s) ≥ 0 and p = 1 or 2. The Lagrangian is stationary if
``g = N y`` equals ``p c_i x_i^-(p+1)``. With the slack ``s = 1 - N'x``, the targets are ``s_j y_j = τ``, for τ
decreasing to zero. The Newton equations in the relative change δ of x have the matrix

    H + R D R',   R = diag(x) N,   H = diag(p (p + 1) c x^-p),   D = diag(y / s),

or, in the change of y, ``D^-1 + R' H^-1 R``. The smaller matrix is factored once per step, for a predictor and a
corrector. If the sensitivities are sparse, the second matrix is diagonal except for the rows of N with entries in
several columns. Many y_j are zero at the optimum, which slows first-order methods down; this method takes about ten
steps for all workloads. Every x is feasible after scaling and every y gives a lower bound, so each step has a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dualmech.fast.engine import loop
from dualmech.validate import Array, Matrix

INITIAL_SENSITIVITY = 0.95  # of the first point; 1 is allowed
STEP_TO_BOUNDARY = 0.999  # maximum fraction of the distance to the boundary in one step

MIN_CENTRING = 1e-3
"""Lower limit on τ, relative to the mean error of ``g = p c x^-(p+1)``: for smaller τ, steps end at the boundary."""

Solver = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True, slots=True, eq=False)
class WeightingProgram:
    """The reduced data: costs are positive, and no row or column of the sensitivities is zero."""

    costs: Array  # (k,) c, scaled to sum 1
    # (k, s) N, scaled such that x = 1 is feasible with one tight constraint, and optimal for equal dual weights
    sensitivities: Matrix
    power: int  # p
    units: Array  # (k,) the weights at x = 1
    total: float  # the sum of the costs at these weights

    @classmethod
    def of(cls, costs: Array, sensitivities: Matrix, power: int) -> WeightingProgram:
        units = (costs / np.asarray(sensitivities.mean(axis=1)).ravel()) ** (1 / (power + 1))
        units = units / (sensitivities.T @ units).max()
        scaled = costs * units**-power
        total = float(scaled.sum())
        return cls(scaled / total, _rows_times(sensitivities, units), power, units, total)


@dataclass(frozen=True, slots=True, eq=False)
class InteriorPoint:
    """The state of the solver: weights x (k,) with slack (s,), dual weights y (s,), objective and bound.

    `answer` (k,) is the better of x and the weights determined by y, both scaled to sensitivity 1.
    """

    weights: Array
    slack: Array
    dual: Array
    answer: Array
    objective: float
    lower_bound: float
    steps: int = 0


def minimise(
    program: WeightingProgram, limits: loop.Limits, margin: float = loop.MARGIN
) -> loop.Outcome[InteriorPoint]:
    """Solve to the gap of the limits; the weights are ``outcome.best_primal.answer`` times the units of the program."""
    queries, neighbours = program.sensitivities.shape
    weights = np.full(queries, INITIAL_SENSITIVITY)
    slack = 1 - program.sensitivities.T @ weights
    start_point = _evaluate(program, weights, slack, np.full(neighbours, program.power / neighbours))
    return loop.run(start_point, partial(_step, program), replace(limits, unit=limits.unit * program.total), margin)


def _evaluate(program: WeightingProgram, weights: Array, slack: Array, dual: Array) -> InteriorPoint:
    p, costs, sensitivities = program.power, program.costs, program.sensitivities
    dual_combination, sensitivities_used = sensitivities @ dual, sensitivities.T @ weights
    powers = (costs / dual_combination) ** (1 / (p + 1))
    candidates = [weights / sensitivities_used.max(), powers / (sensitivities.T @ powers).max()]
    values = [float((costs * candidate**-p).sum()) for candidate in candidates]
    best = int(np.argmin(values))
    bound = float((costs * dual_combination**p) ** (1 / (p + 1)) @ np.ones(len(costs))) ** (p + 1) / dual.sum() ** p
    return InteriorPoint(weights, slack, dual, candidates[best], values[best], float(bound))


def _step(program: WeightingProgram, point: InteriorPoint) -> InteriorPoint:
    """Take a predictor-corrector step (Mehrotra): the predictor for τ = 0 determines the τ of the corrector."""
    rows = _rows_times(program.sensitivities, point.weights)
    power_terms = program.power * program.costs * point.weights**-program.power
    residual = rows @ point.dual - power_terms
    solve = _equations(point, rows, residual, (program.power + 1) * power_terms)
    products = point.slack * point.dual
    change, dual_change = solve(-products)
    slack_change = -(rows.T @ change)
    primal_step, dual_step = _step_limits(point, change, slack_change, dual_change)
    predicted_product = (point.slack + primal_step * slack_change) @ (point.dual + dual_step * dual_change)
    target = (predicted_product / products.sum()) ** 3 * products.mean()
    target = max(target, MIN_CENTRING * float(np.abs(residual).sum()) / len(products))
    change, dual_change = solve(target - products - primal_step * dual_step * slack_change * dual_change)
    slack_change = -(rows.T @ change)
    primal_step, dual_step = (
        STEP_TO_BOUNDARY * length for length in _step_limits(point, change, slack_change, dual_change)
    )
    # The slack is updated, because the difference 1 - N'x would lose small slacks to rounding.
    next_point = _evaluate(
        program,
        point.weights * (1 + primal_step * change),
        point.slack + primal_step * slack_change,
        point.dual + dual_step * dual_change,
    )
    return replace(next_point, steps=point.steps + 1)


def _equations(point: InteriorPoint, rows: Matrix, residual: Array, curvature: Array) -> Solver:
    """Factor the Newton matrix; the solver maps target changes of the products s_j y_j to δ and the change of y."""
    ratio = point.dual / point.slack
    if rows.shape[0] <= rows.shape[1] and not sp.issparse(rows):
        scaled_rows = rows * np.sqrt(ratio)
        invert = _factor(scaled_rows @ scaled_rows.T, curvature)

        def solve(product_change: Array) -> tuple[Array, Array]:
            change = invert(-residual - rows @ (product_change / point.slack))
            return change, (product_change + point.dual * (rows.T @ change)) / point.slack

        return solve
    root = np.sqrt(ratio)
    scaled_rows = _rows_times(rows, 1 / np.sqrt(curvature)) * root
    invert = (
        _factor_sparse(scaled_rows)
        if sp.issparse(scaled_rows)
        else _factor(scaled_rows.T @ scaled_rows, np.ones(len(root)))
    )

    def solve_dual(product_change: Array) -> tuple[Array, Array]:
        dual_change = root * invert(root * (product_change / point.dual - rows.T @ (residual / curvature)))
        return -(residual + rows @ dual_change) / curvature, dual_change

    return solve_dual


def _factor(matrix: Array, diagonal: Array) -> Callable[[Array], Array]:
    """Scale ``matrix + diag(diagonal)`` to unit diagonal and factor it in place; return its solver."""
    matrix[np.diag_indices(len(matrix))] += diagonal
    scale = 1 / np.sqrt(np.diagonal(matrix))
    matrix *= scale
    matrix *= scale[:, None]
    if not np.all(np.isfinite(matrix)):
        raise np.linalg.LinAlgError("the Newton matrix is no longer finite")
    factor = scipy.linalg.cho_factor(matrix, overwrite_a=True, check_finite=False)
    return lambda right: scale * scipy.linalg.cho_solve(factor, scale * right, check_finite=False)


def _factor_sparse(half: Matrix) -> Callable[[Array], Array]:
    """Factor ``I + half' half``; return its solver.

    A row with one entry only changes the diagonal. With the other rows in B, the matrix is ``Λ + B'B``, whose inverse
    needs only the factor of ``I + B Λ⁻¹ B'`` (Woodbury). If B has at least as many rows as columns, the matrix itself
    is factored.
    """
    rows = sp.csr_array(half)
    has_several = np.diff(rows.indptr) > 1
    single_rows, shared = rows[~has_several], rows[has_several]
    diagonal = 1 + np.asarray(single_rows.multiply(single_rows).sum(axis=0)).ravel()
    if shared.shape[0] >= shared.shape[1]:
        return _factor((shared.T @ shared).toarray(), diagonal)
    inner_solver = _factor((shared @ sp.diags_array(1 / diagonal) @ shared.T).toarray(), np.ones(shared.shape[0]))
    return lambda right: (right - shared.T @ inner_solver(shared @ (right / diagonal))) / diagonal


def _rows_times(matrix: Matrix, factors: Array) -> Matrix:
    """Return ``diag(factors) @ matrix``, which is sparse if the matrix is."""
    return sp.diags_array(factors) @ matrix if sp.issparse(matrix) else matrix * factors[:, None]


def _step_limits(point: InteriorPoint, change: Array, slack_change: Array, dual_change: Array) -> tuple[float, float]:
    """Return the maximum primal and dual step lengths, at most 1, that keep all variables non-negative."""
    primal = min(_to_zero(np.ones(len(change)), change), _to_zero(point.slack, slack_change))
    return min(primal, 1.0), min(_to_zero(point.dual, dual_change), 1.0)


def _to_zero(values: Array, changes: Array) -> float:
    decreasing = changes < 0
    return float((values[decreasing] / -changes[decreasing]).min()) if np.any(decreasing) else np.inf
