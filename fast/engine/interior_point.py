"""An interior-point method for the weights of queries: primal and dual weights together, by Newton's method.

Minimise ``Σ c_i x_i^-p`` subject to ``N'x ≤ 1``, with N (k, s) ≥ 0 and p = 1 or 2. The Lagrangian is least where
``g = N y`` equals ``p c_i x_i^-(p+1)``. With the slack ``s = 1 - N'x``, the method aims at ``s_j y_j = τ``, and τ falls
to zero. Newton's equations, in the relative change δ of x, have the matrix

    H + R D R',   R = diag(x) N,   H = diag(p (p + 1) c x^-p),   D = diag(y / s),

or, with the change of y for unknown, ``D^-1 + R' H^-1 R``. The smaller of the two is factored once a step, for both a
predictor and a corrector. Sparse sensitivities stay sparse: the second matrix is then diagonal but for the few rows of
N with entries in more than one column. Many y_j are zero at the optimum, where first-order methods slow down; this one
takes some ten steps whatever the workload. A factor makes every x feasible, and every y proves a bound, so each step
says how far it is from the optimum.
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

INSIDE = 0.95  # share of the sensitivity that the first point spends
NEARLY = 0.999  # share of the way to the boundary that a step goes at most

CENTRED = 1e-3
"""Least τ, relative to the mean error of ``g = p c x^-(p+1)``: if τ shrank faster, steps would end at the boundary."""

Solver = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True, slots=True, eq=False)
class WeightingProgram:
    """The reduced data: all costs positive, no row or column of the sensitivities all zero."""

    costs: Array  # (k,) c, in units in which they sum to 1
    # (k, s) N, in units in which x = 1 is feasible, tight somewhere, and the best for equal dual weights
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
    """The state of the solver: weights x (k,) with slack (s,), dual weights y (s,), and what they prove.

    `answer` (k,) is the better of two weights, scaled to spend exactly 1: x, and the weights that y determines.
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
    """Step until the gap is small enough; the answer is ``outcome.best_primal.answer`` times the program's units."""
    queries, neighbours = program.sensitivities.shape
    weights = np.full(queries, INSIDE)
    slack = 1 - program.sensitivities.T @ weights
    first = _evaluate(program, weights, slack, np.full(neighbours, program.power / neighbours))
    return loop.run(first, partial(_step, program), replace(limits, unit=limits.unit * program.total), margin)


def _evaluate(program: WeightingProgram, weights: Array, slack: Array, dual: Array) -> InteriorPoint:
    p, costs, sensitivities = program.power, program.costs, program.sensitivities
    reach, spent = sensitivities @ dual, sensitivities.T @ weights
    powers = (costs / reach) ** (1 / (p + 1))
    candidates = [weights / spent.max(), powers / (sensitivities.T @ powers).max()]
    values = [float((costs * candidate**-p).sum()) for candidate in candidates]
    best = int(np.argmin(values))
    bound = float((costs * reach**p) ** (1 / (p + 1)) @ np.ones(len(costs))) ** (p + 1) / dual.sum() ** p
    return InteriorPoint(weights, slack, dual, candidates[best], values[best], float(bound))


def _step(program: WeightingProgram, point: InteriorPoint) -> InteriorPoint:
    """Take a predictor step towards τ = 0 to see how far it gets, then the step for the τ that this suggests."""
    rows = _rows_times(program.sensitivities, point.weights)
    pull = program.power * program.costs * point.weights**-program.power
    residual = rows @ point.dual - pull
    solve = _equations(point, rows, residual, (program.power + 1) * pull)
    products = point.slack * point.dual
    change, dual_change = solve(-products)
    slack_change = -(rows.T @ change)
    first, last = _step_limits(point, change, slack_change, dual_change)
    reached = (point.slack + first * slack_change) @ (point.dual + last * dual_change)
    target = (reached / products.sum()) ** 3 * products.mean()
    target = max(target, CENTRED * float(np.abs(residual).sum()) / len(products))
    change, dual_change = solve(target - products - first * last * slack_change * dual_change)
    slack_change = -(rows.T @ change)
    first, last = (NEARLY * length for length in _step_limits(point, change, slack_change, dual_change))
    # The slack is moved, not computed anew: where it is small, a difference from 1 would be rounding.
    moved = _evaluate(
        program,
        point.weights * (1 + first * change),
        point.slack + first * slack_change,
        point.dual + last * dual_change,
    )
    return replace(moved, steps=point.steps + 1)


def _equations(point: InteriorPoint, rows: Matrix, residual: Array, curvature: Array) -> Solver:
    """Factor the Newton matrix; the solver takes the wanted change of the products s_j y_j to δ and the change of y."""
    ratio = point.dual / point.slack
    if rows.shape[0] <= rows.shape[1] and not sp.issparse(rows):
        half = rows * np.sqrt(ratio)
        invert = _factor(half @ half.T, curvature)

        def solve(wanted: Array) -> tuple[Array, Array]:
            change = invert(-residual - rows @ (wanted / point.slack))
            return change, (wanted + point.dual * (rows.T @ change)) / point.slack

        return solve
    root = np.sqrt(ratio)
    half = _rows_times(rows, 1 / np.sqrt(curvature)) * root
    invert = _factor_sparse(half) if sp.issparse(half) else _factor(half.T @ half, np.ones(len(root)))

    def solve_dual(wanted: Array) -> tuple[Array, Array]:
        dual_change = root * invert(root * (wanted / point.dual - rows.T @ (residual / curvature)))
        return -(residual + rows @ dual_change) / curvature, dual_change

    return solve_dual


def _factor(matrix: Array, diagonal: Array) -> Callable[[Array], Array]:
    """Factor ``matrix + diag(diagonal)``, brought to unit diagonal, in place; return its solver."""
    matrix[np.diag_indices(len(matrix))] += diagonal
    scale = 1 / np.sqrt(np.diagonal(matrix))
    matrix *= scale
    matrix *= scale[:, None]
    if not np.all(np.isfinite(matrix)):
        raise np.linalg.LinAlgError("the Newton matrix is no longer finite")
    factor = scipy.linalg.cho_factor(matrix, overwrite_a=True, check_finite=False)
    return lambda right: scale * scipy.linalg.cho_solve(factor, scale * right, check_finite=False)


def _factor_sparse(half: Matrix) -> Callable[[Array], Array]:
    """Factor ``I + half' half``, from the rows of `half` with several entries; return its solver.

    A row with one entry adds to the diagonal alone. With the others as rows of B the matrix is ``Λ + B'B``, whose
    inverse needs only the factor of ``I + B Λ⁻¹ B'`` (Woodbury). Where B has more rows than columns, the matrix itself
    is factored.
    """
    rows = sp.csr_array(half)
    several = np.diff(rows.indptr) > 1
    alone, shared = rows[~several], rows[several]
    diagonal = 1 + np.asarray(alone.multiply(alone).sum(axis=0)).ravel()
    if shared.shape[0] >= shared.shape[1]:
        return _factor((shared.T @ shared).toarray(), diagonal)
    inner = _factor((shared @ sp.diags_array(1 / diagonal) @ shared.T).toarray(), np.ones(shared.shape[0]))
    return lambda right: (right - shared.T @ inner(shared @ (right / diagonal))) / diagonal


def _rows_times(matrix: Matrix, factors: Array) -> Matrix:
    """Return ``diag(factors) @ matrix``, sparse where the matrix is."""
    return sp.diags_array(factors) @ matrix if sp.issparse(matrix) else matrix * factors[:, None]


def _step_limits(point: InteriorPoint, change: Array, slack_change: Array, dual_change: Array) -> tuple[float, float]:
    """Return how far, 1 at most, the weights and the dual weights can go before something becomes negative."""
    primal = min(_to_zero(np.ones(len(change)), change), _to_zero(point.slack, slack_change))
    return min(primal, 1.0), min(_to_zero(point.dual, dual_change), 1.0)


def _to_zero(values: Array, changes: Array) -> float:
    falling = changes < 0
    return float((values[falling] / -changes[falling]).min()) if np.any(falling) else np.inf
