"""A primal-dual interior-point method for reuse: weights λ and μ, and a matrix of weights Ω on what was released.

Maximise ``2F(λ, μ, Ω)``, with ``F = ‖[diag(√μ) V ; Ω^½ H] D diag(√λ)‖_*``, over ``Σ λ_i = 1``,
``Σ μ_j + tr Ω = 1``, ``λ, μ ≥ 0`` and ``Ω ⪰ 0``: the dual of fitness for use with the release in H as so many more
queries, ``a H`` for every unit vector a, their weights gathered in Ω. The optimality conditions, at the smoothed dual
function G of `dualmech.fast.engine.fidelity` and with a multiplier for each sum, are

    gradient + z = a,   w z = τ   for every single weight w with its slack z, and
    H Σ H' + S = a₂ I,   Ω S = τ I   for the matrix with its slack S,

and τ falls to zero. Every step is Newton's, with the scaling of Nesterov and Todd (`dualmech.fast.reuse.equations`).
Neither S nor an inverse of Ω is ever formed: the state holds a factor L of Ω and, for some factor N of S, ``N'L``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg

from dualmech import linalg
from dualmech.fast.engine.fidelity import FidelityProgram, decompose
from dualmech.fast.engine.rows import DenseRows
from dualmech.fast.engine.spectrum import Spectrum
from dualmech.fast.reuse.equations import ReuseEquations
from dualmech.validate import Array, Matrix

TO_THE_BOUNDARY = 0.9  # largest part of the way to the boundary that one step may go

QUICK, STEADY, SLOW = 0.1, 0.3, 0.8
"""Factors on τ after steps of which more than `FAR`, more than `HALF`, or less was possible."""

FAR, HALF = 0.9, 0.5

ENOUGH = 0.2  # where on the central path to stop, as a share of the gap that is asked

LAG = 1.0
"""Least τ, in units of how far slacks and gradient disagree on average: they have to catch up before it falls.

Where the optimum leaves part of the covariance free, its weights would otherwise vanish quicker than τ."""


@dataclass(frozen=True, slots=True, eq=False)
class ReuseProgram:
    """The reduced data: queries V (m, k) over √targets, release H (q, k), moves D (k, s) or None for the identity."""

    queries: Array
    release: Array
    moves: Matrix | None

    @property
    def sides(self) -> tuple[int, int]:
        """Numbers of neighbours s and of queries m."""
        queries, rank = self.queries.shape
        return (rank if self.moves is None else self.moves.shape[1]), queries


@dataclass(frozen=True, slots=True, eq=False)
class ReuseState:
    """The state of the solver."""

    point: Spectrum  # the decomposition at these weights, its factors ending in rows r_a for the columns of L
    weights: Array  # weights, slacks: (s + m,) λ then μ, and their z
    slacks: Array
    factor: Array  # factor, cross: (q, q) L with ``Ω = L L'``, and ``N'L`` with ``S = N N'``
    cross: Array
    multipliers: Array  # (2,) a, of the two sums
    objective: (
        float  # objective, lower_bound: what both sides of the gap are here (the judge recomputes them)
    )
    lower_bound: float
    reach: float  # how far the last step could go
    decompositions: int  # how many so far

    @property
    def spectrum(self) -> ReuseState:
        """Both sides of the gap, for the loop."""
        return self

    @property
    def release_weights(self) -> Array:
        """Ω (q, q)."""
        return self.factor @ self.factor.T


def start(task: ReuseProgram) -> ReuseState:
    """Begin with equal weights, half of those on queries and release on either, and slacks that are not too small."""
    (neighbours, queries), released = task.sides, len(task.release)
    weights = np.repeat([1 / neighbours, 0.5 / queries], [neighbours, queries])
    factor = np.sqrt(0.5 / released) * np.eye(released)
    point = _decompose(task, weights, factor)
    gradient, fidelity = point.gradient()[: len(weights)], point.fidelity
    multipliers = np.array([weights[:neighbours] @ gradient[:neighbours], fidelity])
    natural = np.repeat(multipliers, task.sides) - gradient
    centre = float(np.mean(weights * np.abs(natural)))
    slacks = np.maximum(natural, np.minimum(0.3 * fidelity, centre / weights))
    rows = _release_rows(point, len(weights))
    noise = (rows * point.mean) @ rows.T * 2 * released
    values, vectors = np.linalg.eigh(fidelity * np.eye(released) - noise)
    values = np.maximum(values, min(0.3 * fidelity, centre * 2 * released))
    cross = np.sqrt(values)[:, None] * vectors.T @ factor
    return _evaluate(task, point, weights, slacks, factor, cross, multipliers, 1.0, 0)


def step(task: ReuseProgram, tol: float, state: ReuseState) -> ReuseState:
    """Take one step along the central path, no further than a gap of `tol` asks."""
    count, released = len(state.weights), len(state.factor)
    # With N'L = U D V', the factor G = L V of Ω has G'S G = D².
    _, spread, turn = linalg.svd(state.cross)
    point, factor = _rotate_release(state.point, turn, count), state.factor @ turn.T
    products = state.weights * state.slacks
    mean = (products.sum() + spread @ spread) / (count + released)
    least = ENOUGH * tol * point.fidelity / (count + released + len(point.values))
    here = point.smoothed(mean)
    single, double = _residuals(here, state, factor)
    lag = np.abs(single + products).sum() + np.abs(np.diagonal(double) + spread**2).sum()
    quickness = QUICK if state.reach > FAR else STEADY if state.reach > HALF else SLOW
    target = max(quickness * mean, LAG * float(lag) / (count + released), least)
    single, double = _residuals(point.smoothed(target), state, factor)
    double += target * np.eye(released)
    roots, root_spread = np.sqrt(products), np.sqrt(spread)
    equations = ReuseEquations(
        here.rows(np.arange(len(here.weights))), here.mean, mean, task.sides, products, spread
    )
    unknowns, shift = equations.solve(
        np.concatenate([(single + target) / roots, (double / root_spread / root_spread[:, None]).ravel()]),
        _normals(task, state.weights / roots, factor / root_spread),
    )
    change, matrix = unknowns[:count], unknowns[count:].reshape(released, released)
    matrix = (matrix + matrix.T) / 2
    slack_change = (target - products - roots * change) / products
    slack_matrix = (np.diag(target / spread - spread) - matrix) / root_spread / root_spread[:, None]
    change, matrix = change / roots, matrix / root_spread / root_spread[:, None]
    reach, slack_reach = _step_limit(change, matrix), _step_limit(slack_change, slack_matrix)
    grown = scipy.linalg.cholesky(np.eye(released) + reach * matrix, lower=True)
    slack_grown = scipy.linalg.cholesky(np.eye(released) + slack_reach * slack_matrix, lower=True)
    weights, factor = state.weights * (1 + reach * change), factor @ grown
    return _evaluate(
        task,
        _decompose(task, weights, factor),
        weights,
        state.slacks * (1 + slack_reach * slack_change),
        factor,
        slack_grown.T @ (spread[:, None] * grown),
        state.multipliers + slack_reach * shift,
        min(reach, slack_reach),
        state.decompositions,
        target,
    )


def _decompose(task: ReuseProgram, weights: Array, factor: Array) -> Spectrum:
    """Evaluate the dual function, the release as queries L'H of weight 1."""
    program = FidelityProgram(np.vstack([task.queries, factor.T @ task.release]), task.moves)
    return decompose(program, np.concatenate([weights, np.ones(len(factor))]))


def _evaluate(
    task: ReuseProgram,
    point: Spectrum,
    weights: Array,
    slacks: Array,
    factor: Array,
    cross: Array,
    multipliers: Array,
    reach: float,
    before: int,
    smoothing: float = 0.0,
) -> ReuseState:
    """Evaluate both sides of the gap; a smoothed covariance replaces the plain one where it is better."""
    objective = _objective(task, point)
    if smoothing:
        smooth = point.smoothed(smoothing)
        better = _objective(task, smooth)
        point, objective = (smooth, better) if better < objective else (point, objective)
    neighbours, _ = task.sides
    mass = weights[:neighbours].sum() * (weights[neighbours:].sum() + np.sum(factor**2))
    return ReuseState(
        point,
        weights,
        slacks,
        factor,
        cross,
        multipliers,
        objective,
        float(point.fidelity**2 / mass),
        reach,
        before + point.decompositions,
    )


def _objective(task: ReuseProgram, point: Spectrum) -> float:
    """Return the largest cost times what the covariance has to be divided by to meet every constraint."""
    neighbours, queries = task.sides
    known = (task.release @ point.root) / np.sqrt(point.mean)
    largest = np.linalg.eigvalsh(known @ known.T)[-1]
    costs, variances = point.gains[:neighbours], point.gains[neighbours : neighbours + queries]
    return float(costs.max() * max(variances.max(initial=0.0), largest))


def _release_rows(point: Spectrum, count: int) -> Array:
    """Return the rows r_a, which come after those of all single weights."""
    return point.rows(np.arange(count, len(point.weights)))


def _rotate_release(point: Spectrum, turn: Array, count: int) -> Spectrum:
    """Return the decomposition with the rows of the release for G = L V instead of L."""
    queries = point.rows(np.arange(point.neighbours, count))
    return replace(point, last=DenseRows(np.vstack([queries, turn @ _release_rows(point, count)])))


def _residuals(point: Spectrum, state: ReuseState, factor: Array) -> tuple[Array, Array]:
    """Return ``w (gradient - a)`` (s + m,) and ``G'(H Σ H' - a₂) G`` (q, q) at the point's own τ."""
    count, rows = len(state.weights), _release_rows(point, len(state.weights))
    sides = (point.neighbours, count - point.neighbours)
    single = state.weights * (point.gradient()[:count] - np.repeat(state.multipliers, sides))
    return single, (rows * point.mean) @ rows.T - state.multipliers[1] * factor.T @ factor


def _normals(task: ReuseProgram, single: Array, factor: Array) -> Array:
    """Return the coefficients of the unknowns in both sums, ``Σ λ_i`` and ``Σ μ_j + tr Ω``."""
    neighbours, _ = task.sides
    normals = np.zeros((2, len(single) + factor.shape[1] ** 2))
    normals[0, :neighbours] = single[:neighbours]
    normals[1, neighbours : len(single)] = single[neighbours:]
    normals[1, len(single) :] = (factor.T @ factor).ravel()
    return normals


def _step_limit(change: Array, matrix: Array) -> float:
    """Return the longest step, 1 at most, that keeps ``1 + step · change`` and ``I + step · matrix`` positive."""
    worst = -min(float(change.min()), float(np.linalg.eigvalsh(matrix)[0]))
    return min(1.0, TO_THE_BOUNDARY / worst) if worst > 0 else 1.0
