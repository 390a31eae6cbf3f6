"""Newton's method on masses and correlation matrices of phases: the dual of problems whose persons come several times.

With a mass m_p and a correlation matrix R_p of the steps of each phase, and Λ their block diagonal matrix ``m_p R_p``,
the dual value is ``g = ‖diag(√μ) W Λ^½‖_*``, and what is ascended is the concave function

    ``F = 2 log g - Σ m_p - Σ μ_j + τ (log det Λ + Σ log μ_j)``,

at whose maximum both sums are 1 but for τ. Its gradient in Λ is ``S = X / g + τ Λ⁻¹`` with X the positive definite
solution of ``X Λ X = G``, ``G = W' diag(μ) W``: at the maximum the blocks of S are diagonal with trace 1, so that S is
the inverse of a covariance at which every phase costs 1. One eigendecomposition ``L' G L = V n² V'``, ``Λ = L L'``,
gives g, S and the Hessian: with ``Q = L⁻ᵀ V``, ``X = Q n Q'`` and ``dX = -Q (K ∘ Q' dΛ Q) Q'``, where
``K_ab = n_a n_b / (n_a + n_b)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech.linalg import cholesky
from dualmech.validate import Array

SINGLE, SINGLE_OUTSIDE = 400, 2**13
"""Unknowns from which the Hessian is formed and factored in single precision; where weights go to 0, more of them."""

FIRST_BARRIER = 0.1  # τ at the start, times the number of steps; with weights on queries ten times that
BARRIER_SHARE = 0.1  # share of the gap that is left to the barrier at the end
SHRUNK, LEAST_SHRUNK = 0.1, 1e-3  # largest and least factor on τ after a full step, where the maximum is inside
NEAR = 0.5  # Newton decrement, squared, up to which τ shrinks there
SHRUNK_OUTSIDE, NEAR_OUTSIDE = 0.1, 50.0  # the factor where weights go to 0, and the decrement over τ
ARMIJO, SHORTEST = 0.1, 1e-9  # share of the predicted gain of a step that is asked, and the least step
GRAM_EIGENVALUE_TOL = 1e-6  # least n, of the largest, up to which the eigenvalues of the Gram matrix tell them
NULL = 1e-11  # eigenvalues of this share of the largest count as this
FAINT = 1e-9  # factors of this share of the largest are left out
CHUNK = 2**23  # products of two entries that are formed at a time
SPACING = 1.0  # of the nodes of the exponential sum, in log t


@dataclass(frozen=True, slots=True, eq=False)
class PhaseWeights:
    """Weights of phases, and of queries: what is ascended."""

    blocks: Array  # (phases, times, times) ``m_p R_p``, with ``m_p I`` on steps that are not there
    queries: Array  # (m,) μ; empty where the weights of queries are fixed

    def masses(self) -> Array:
        """Return m_p (phases,)."""
        return self.blocks[:, 0, 0]

    def moved(self, direction: PhaseWeights, length: float) -> PhaseWeights:
        return PhaseWeights(self.blocks + length * direction.blocks, self.queries + length * direction.queries)


@dataclass(frozen=True, eq=False)
class PhaseProgram:
    """Queries in rows with the steps phase by phase, and which steps each phase has."""

    queries: Array  # (m, n) rows, of unit target or with the roots of their weights; steps in the order of `present`
    present: npt.NDArray[np.bool_]  # (phases, times)
    fixed: bool  # whether the weights of the queries are fixed, so that total variance is asked

    @cached_property
    def gram(self) -> Array:
        """``W'W`` on all places of all phases, 0 where there is no step."""
        return self.on_places(self.queries.T @ self.queries)

    @cached_property
    def pairs(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Places of each pair of parts of one person."""
        first, second = np.triu_indices(self.present.shape[1], 1)
        return first, second

    @cached_property
    def free(self) -> npt.NDArray[np.intp] | None:
        """Which of all masses and correlations are unknown, in the order of the Hessian; None where all are."""
        first, second = self.pairs
        there = np.append(
            np.ones((len(self.present), 1), dtype=bool), self.present[:, first] & self.present[:, second], axis=1
        )
        return None if there.all() else np.flatnonzero(there.ravel())

    @property
    def steps(self) -> int:
        return int(self.queries.shape[1])

    @cached_property
    def inside(self) -> bool:
        """Whether the maximum is surely at positive definite weights: the queries are fixed and determine all steps."""
        values = self.first.values
        return self.fixed and bool(values.min() > GRAM_EIGENVALUE_TOL * values.max())

    @cached_property
    def first(self) -> PhasePoint:
        """The dual function at equal masses without correlations, and equal weights on queries."""
        point = self.at(self.first_weights())
        assert point is not None
        return point

    @cached_property
    def places(self) -> npt.NDArray[np.intp]:
        """The place of each step among those of all phases."""
        return np.flatnonzero(self.present.ravel())

    def rows_on_places(self, rows: Array) -> Array:
        """Return rows of the steps as rows of all places, 0 where there is no step."""
        whole = np.zeros((self.present.size, rows.shape[1]))
        whole[self.places] = rows
        return whole

    def on_places(self, matrix: Array) -> Array:
        """Return a matrix on the steps as one on all places, 0 where there is no step."""
        return self.rows_on_places(self.rows_on_places(matrix).T).T

    def on_steps(self, matrix: Array) -> Array:
        return matrix if len(self.places) == len(matrix) else matrix[np.ix_(self.places, self.places)]

    def first_weights(self) -> PhaseWeights:
        """Return equal masses without correlations, and equal weights on queries."""
        phases, times = self.present.shape
        count = 0 if self.fixed else len(self.queries)
        return PhaseWeights(np.tile(np.eye(times) / phases, (phases, 1, 1)), np.full(count, 1 / max(count, 1)))

    def at(self, weights: PhaseWeights) -> PhasePoint | None:
        """Return the dual function at some weights; None where they are not positive definite."""
        if not np.all(weights.queries > 0):
            return None
        try:
            roots = np.asarray(np.linalg.cholesky(weights.blocks), dtype=np.float64)
        except np.linalg.LinAlgError:
            return None
        gram = self.gram
        if not self.fixed:
            gram = self.on_places(self.queries.T @ (weights.queries[:, None] * self.queries))
        phases, times = self.present.shape
        left = (np.swapaxes(roots, 1, 2) @ gram.reshape(phases, times, -1)).reshape(-1, phases, times)
        product = self.on_steps((np.swapaxes(left, 0, 1) @ roots).swapaxes(0, 1).reshape(gram.shape))
        squares, vectors = scipy.linalg.eigh((product + product.T) / 2, driver="evd", check_finite=False)
        values: Array = np.sqrt(np.maximum(squares, 0.0))
        if values[0] < GRAM_EIGENVALUE_TOL * values[-1]:
            values, vectors = self._singular(weights, roots)
        return PhasePoint(self, weights, roots, values, vectors)

    def _singular(self, weights: PhaseWeights, roots: Array) -> tuple[Array, Array]:
        """Return n and V from the singular values, small ones with their digits, which the Gram matrix loses."""
        rows = self.queries if self.fixed else np.sqrt(weights.queries)[:, None] * self.queries
        phases, times = self.present.shape
        whole = self.rows_on_places(rows.T).reshape(phases, times, -1)
        scaled = (np.swapaxes(roots, 1, 2) @ whole).reshape(phases * times, -1)[self.places].T
        _, values, right = scipy.linalg.svd(scaled, check_finite=False)
        return np.append(values, np.zeros(self.steps - len(values))), np.ascontiguousarray(right.T)


@dataclass(frozen=True, eq=False)
class PhasePoint:
    """The dual function at some weights, and what its decomposition gives."""

    program: PhaseProgram
    weights: PhaseWeights
    roots: Array  # (phases, times, times) lower triangles L with ``L L' = Λ``
    values: Array  # (n,) n, none negative
    vectors: Array  # (n, n) V

    @cached_property
    def dual_value(self) -> float:
        return float(self.values.sum())

    @cached_property
    def lower_bound(self) -> float:
        total = self.weights.masses().sum() * (1.0 if self.program.fixed else self.weights.queries.sum())
        return float(self.dual_value**2 / total)

    @cached_property
    def raised(self) -> Array:
        """The values, those of no size as large as can be told."""
        return np.maximum(self.values, NULL * self.values.max())

    @cached_property
    def scaled(self) -> Array:
        """``Q = L⁻ᵀ V`` on all places, 0 where there is no step."""
        return self._on_phases(np.swapaxes(np.linalg.inv(self.roots), 1, 2))

    @cached_property
    def coordinates(self) -> Array:
        """``W L V`` (m, n)."""
        return np.asarray(self.program.queries @ self._on_phases(self.roots)[self.program.places])

    def _on_phases(self, matrices: Array) -> Array:
        phases, times = self.program.present.shape
        whole = self.program.rows_on_places(self.vectors).reshape(phases, times, -1)
        return np.asarray((matrices @ whole).reshape(phases * times, -1)) * self.program.present.reshape(-1, 1)

    def merit(self, barrier: float) -> float:
        places = np.einsum("pii->pi", self.roots)[self.program.present]
        merit = 2 * np.log(self.dual_value) - self.weights.masses().sum() + 2 * barrier * np.log(places).sum()
        if not self.program.fixed:
            merit += barrier * np.log(self.weights.queries).sum() - self.weights.queries.sum()
        return float(merit)

    def gradient(self, barrier: float) -> tuple[Array, Array, Array]:
        """Return S on all places, and the gradient of ``2 log g`` in Λ's unknowns and μ, one after the other.

        The gradient of F is `slope` of it and S.
        """
        half = self.scaled * np.sqrt(self.raised / self.dual_value + barrier)
        inverse = half @ half.T
        triangles = np.linalg.inv(self.roots)
        barriers = self._of_blocks(np.swapaxes(triangles, 1, 2) @ triangles)
        variances = np.zeros(0)
        if not self.program.fixed:
            variances = self.coordinates**2 @ (1 / self.raised) / self.dual_value
        return inverse, np.append(self.unknowns(inverse) - barrier * barriers, variances), variances

    def slope(self, inverse: Array, variances: Array, barrier: float) -> Array:
        slopes = self.unknowns(inverse)
        slopes[self._masses] -= 1
        if self.program.fixed:
            return slopes
        return np.append(slopes, variances - 1 + barrier / self.weights.queries)

    @cached_property
    def _masses(self) -> npt.NDArray[np.intp]:
        phases, pairs = len(self.program.present), len(self.program.pairs[0])
        places = np.arange(phases) * (pairs + 1)
        return places if self.program.free is None else np.searchsorted(self.program.free, places)

    def unknowns(self, matrix: Array) -> Array:
        """Return ``⟨M, ∂Λ⟩`` for every mass and correlation, M on all places."""
        phases, times = self.program.present.shape
        numbers = np.arange(phases)
        return self._of_blocks(matrix.reshape(phases, times, phases, times)[numbers, :, numbers])

    def _of_blocks(self, blocks: Array) -> Array:
        first, second = self.program.pairs
        blocks = blocks * (self.program.present[:, :, None] & self.program.present[:, None, :])
        entries = np.append(np.einsum("pii->p", blocks)[:, None], 2 * blocks[:, first, second], axis=1).ravel()
        return entries if self.program.free is None else entries[self.program.free]

    def direction(self, unknowns: Array) -> PhaseWeights:
        phases, times = self.program.present.shape
        first, second = self.program.pairs
        count = phases * (len(first) + 1)
        free = self.program.free
        known = count if free is None else len(free)
        whole = np.zeros(count)
        whole[slice(None) if free is None else free] = unknowns[:known]
        whole = whole.reshape(phases, -1)
        blocks = np.zeros((phases, times, times))
        blocks[:, first, second] = blocks[:, second, first] = whole[:, 1:]
        blocks[:, np.arange(times), np.arange(times)] = whole[:, :1]
        return PhaseWeights(blocks, unknowns[known:])

    def inverse_after(self, inverse: Array, gradient: Array, unknowns: Array, barrier: float) -> Array:
        """Return S after a step of Newton's method, to first order: its blocks are diagonal where the step is exact."""
        direction, scaled, values = self.direction(unknowns), self.scaled, self.raised
        phases, times = self.program.present.shape
        moved = scaled.T @ (direction.blocks @ scaled.reshape(phases, times, -1)).reshape(phases * times, -1)
        change = -moved * np.multiply.outer(values, values)
        if not self.program.fixed:
            change += self.coordinates.T @ (direction.queries[:, None] * self.coordinates)
        change = change / np.add.outer(values, values) / self.dual_value - barrier * moved
        of_g = float(gradient @ unknowns) / 2
        change[np.diag_indices_from(change)] -= values * of_g / self.dual_value
        return np.asarray(inverse + scaled @ change @ scaled.T)


# The Hessian.


def exponential_sum(least: float, largest: float) -> tuple[Array, Array]:
    """Return nodes t and weights w with ``1/(a + b) ≈ Σ w e^(-t a) e^(-t b)`` for a, b between least and largest.

    The trapezoidal rule in log t, its tail at 0 in the first weight; off by less than 2 percent, relative, which the
    direction of a Newton step may be.
    """
    logs = np.arange(np.log(0.1 / largest), np.log(3.5 / least) + SPACING, SPACING)
    nodes = np.exp(logs)
    weights = SPACING * nodes
    weights[0] /= 1 - np.exp(-SPACING)
    return nodes, weights


def hessian(point: PhasePoint, barrier: float) -> Array:
    """Return minus the Hessian of F without the part of rank one, its upper triangle, in all unknowns."""
    program, values = point.program, point.raised
    phases, pairs = len(program.present), len(program.pairs[0])
    known = phases * (pairs + 1) if program.free is None else len(program.free)
    single = known + len(point.weights.queries) >= (SINGLE if program.inside else SINGLE_OUTSIDE)
    kind: Any = np.float32 if single else np.float64
    nodes, weights = exponential_sum(float(values.min()), float(values.max()))
    scaled = point.scaled.astype(kind)
    parts = np.empty((len(nodes) + 1, len(scaled), len(scaled)), dtype=kind)
    for place, (node, weight) in enumerate(zip(nodes, weights, strict=True)):
        factors = values * np.exp(-node * values) * np.sqrt(weight / point.dual_value)
        parts[place] = _gram(scaled, factors, kind)
    parts[-1] = _gram(scaled, np.full(len(values), np.sqrt(barrier)), kind)
    matrix = _of_correlations(parts, program, kind)
    if program.free is not None:
        matrix = matrix[np.ix_(program.free, program.free)]
    return matrix if program.fixed else _with_queries(point, matrix, (nodes, weights), barrier)


def _gram(scaled: Array, factors: Array, kind: Any) -> Array:
    """Return ``Q diag(f) Q'``, columns of no size left out."""
    kept = factors > FAINT * factors.max()
    half = scaled[:, kept] * np.sqrt(factors[kept]).astype(kind)
    return np.asarray(half @ half.T)


def _of_correlations(parts: Array, program: PhaseProgram, kind: Any) -> Array:
    """Return ``Σ_r tr(∂Λ Y_r ∂Λ' Y_r)`` for all masses and correlations, upper blocks; `parts` holds Y_r (r, …)."""
    phases, times = program.present.shape
    first, second = program.pairs
    width = len(first) + 1
    parts = parts.reshape(-1, phases, times, phases, times)
    curvature = np.zeros((phases, width, phases, width), dtype=kind)
    for phase in range(phases):
        # (phases, i, k, r): steps i of this phase, k of others
        rows = np.ascontiguousarray(parts[:, phase, :, phase:].transpose(2, 1, 3, 0))
        right = rows.transpose(0, 2, 1, 3).reshape(len(rows), times, -1)
        traces = right @ right.transpose(0, 2, 1)
        left_of_all = rows.reshape(len(rows), times, -1)
        curvature[phase, 0, phase:, 1:] = 2 * traces[:, first, second]
        curvature[phase, 0, phase:, 0] = np.einsum("qkk->q", traces)
        curvature[phase, 1:, phase:, 0] = 2 * (left_of_all @ left_of_all.transpose(0, 2, 1))[:, first, second].T
        whole = rows.reshape(len(rows), times**2, -1).transpose(0, 2, 1)
        some = max(1, CHUNK // (len(rows) * times**3))
        for start in range(0, times, some):
            chosen = np.flatnonzero((first >= start) & (first < start + some))
            left = rows[:, start : start + some].reshape(len(rows), -1, rows.shape[-1])
            # (phases, i, k, j, l): Σ_r Y_r[i, k] Y_r[j, l], with i, j steps of one phase and k, l of another
            products = (left @ whole).reshape(len(rows), -1, times, times, times)
            pairs = products[:, first[chosen] - start, :, second[chosen], :]
            both = pairs[:, :, first, second] + pairs[:, :, second, first]
            curvature[phase, 1 + chosen, phase:, 1:] = 2 * both
    return curvature.reshape(phases * width, phases * width)


def _with_queries(point: PhasePoint, matrix: Array, nodes: tuple[Array, Array], barrier: float) -> Array:
    """Return the Hessian with the weights of queries appended."""
    program, values, rows = point.program, point.raised, point.coordinates
    phases, times = program.present.shape
    first, second = program.pairs
    known, count = len(matrix), len(rows)
    whole = np.zeros((known + count,) * 2, dtype=matrix.dtype)
    whole[:known, :known] = matrix
    of_queries, across = np.zeros((count, count)), np.zeros((phases, len(first) + 1, count))
    for node, weight in zip(*nodes, strict=True):
        decayed = np.exp(-node * values)
        of_queries += weight * ((rows * (decayed / values)) @ rows.T) ** 2
        mixed = (point.scaled @ (rows * decayed).T).reshape(phases, times, count)
        across[:, 1:] += 2 * weight * mixed[:, first] * mixed[:, second]
        across[:, 0] += weight * (mixed**2).sum(axis=1)
    flat = across.reshape(-1, count) if program.free is None else across.reshape(-1, count)[program.free]
    whole[:known, known:] = -flat / point.dual_value
    whole[known:, known:] = of_queries / point.dual_value + np.diag(barrier / point.weights.queries**2)
    return whole


# Steps.


@dataclass(frozen=True, slots=True, eq=False)
class PhaseState:
    """Weights, the covariance that the last step gave, and τ; the state of a run."""

    point: PhasePoint
    covariance: Array  # (n, n) of the steps in the order of `present`, none cheaper known at this step
    objective: float
    barrier: float
    steps: int

    @property
    def lower_bound(self) -> float:
        return self.point.lower_bound


def start(program: PhaseProgram, weights: PhaseWeights | None = None) -> PhaseState:
    """Return the state at the first weights."""
    point = program.first if weights is None else program.at(weights)
    if point is None:
        raise np.linalg.LinAlgError("the first weights are not positive definite")
    barrier = (FIRST_BARRIER if program.fixed else 10 * FIRST_BARRIER) / program.steps
    objective, covariance = primal(point, point.gradient(barrier)[0])
    return PhaseState(point, covariance, objective, barrier, 1)


def primal(point: PhasePoint, inverse: Array) -> tuple[float, Array]:
    """Return the objective at the covariance with an inverse on all places, and this; infinite where it is none."""
    program = point.program
    phases, times = program.present.shape
    numbers = np.arange(phases)
    cost = np.abs(inverse.reshape(phases, times, phases, times)[numbers, :, numbers]).sum(axis=(1, 2)).max()
    inverse = program.on_steps(inverse)
    factor = cholesky((inverse + inverse.T) / 2)
    if factor is None:
        return np.inf, inverse
    half = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), check_finite=False)
    rows = program.queries @ half
    variances = np.einsum("ji,ji->j", rows, rows)
    return float(cost * (variances.sum() if program.fixed else variances.max())), np.asarray(half @ half.T)


def step(state: PhaseState, tol: float) -> PhaseState:
    """Take a step of Newton's method; raises `LinAlgError` where none leads up."""
    point, barrier, program = state.point, state.barrier, state.point.program
    inverse, gradient, variances = point.gradient(barrier)
    slope = point.slope(inverse, variances, barrier)
    unknowns = _solve(point, gradient, slope, barrier)
    gain = float(slope @ unknowns)
    covariance, objective = state.covariance, state.objective
    trials = (point.inverse_after(inverse, gradient, unknowns, barrier), inverse)
    for trial in trials:
        value, noise = primal(point, trial)
        if np.isfinite(value):
            covariance, objective = noise, value
            break
    following, length = _search(point, point.direction(unknowns), gain, barrier)
    least = BARRIER_SHARE * tol / (program.steps + len(point.weights.queries))
    if length == 1.0 and program.inside and gain < NEAR:
        barrier = max(barrier * min(SHRUNK, max(gain, LEAST_SHRUNK)), least)
    elif length == 1.0 and not program.inside and gain < NEAR_OUTSIDE * barrier:
        barrier = max(barrier * SHRUNK_OUTSIDE, least)
    return replace(
        state,
        point=following,
        covariance=covariance,
        objective=objective,
        barrier=barrier,
        steps=state.steps + 1,
    )


def _solve(point: PhasePoint, gradient: Array, slope: Array, barrier: float) -> Array:
    """Return Newton's step.

    The Hessian of ``2 log g`` has half the square of its gradient besides the curvature of g. It is factored where it
    stands, with a diagonal of 1, and formed anew, raised a little, where rounding leaves it indefinite.
    """
    raised = 0.0
    while raised < 1.0:
        whole = hessian(point, barrier)
        kind = whole.dtype.type
        units = (1 / np.sqrt(np.diagonal(whole) + gradient**2 / 2)).astype(kind)
        whole *= units[:, None]
        whole *= units
        update = scipy.linalg.blas.ssyr if kind is np.float32 else scipy.linalg.blas.dsyr
        # In column order the upper triangle of a matrix is the lower one of its transpose.
        whole = update(kind(0.5), gradient.astype(kind) * units, a=whole.T, lower=1, overwrite_a=1)
        whole[np.diag_indices_from(whole)] += kind(raised)
        try:
            factor = scipy.linalg.cho_factor(whole, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            raised = max(10 * raised, 16 * float(np.finfo(kind).eps))
            continue
        solved = scipy.linalg.cho_solve(factor, slope.astype(kind) * units, check_finite=False)
        return np.asarray(solved * units, dtype=np.float64)
    raise np.linalg.LinAlgError("the Hessian is not definite")


def _search(point: PhasePoint, direction: PhaseWeights, gain: float, barrier: float) -> tuple[PhasePoint, float]:
    """Return the point after as long a step as F allows, and the length."""
    merit, length = point.merit(barrier), 1.0
    while length > SHORTEST:
        following = point.program.at(point.weights.moved(direction, length))
        if following is not None and following.merit(barrier) >= merit + ARMIJO * length * gain - 1e-13:
            return following, length
        length /= 2
    raise np.linalg.LinAlgError("no step raises the dual function")
