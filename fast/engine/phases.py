"""Newton's method on masses and correlation matrices of phases, for users with several participations.

Each phase p has a mass m_p and a correlation matrix R_p of its steps. With the block diagonal matrix Λ of ``m_p R_p``,
the dual value is ``g = ‖diag(√μ) W Λ^½‖_*``. The method maximises the concave function

    ``F = 2 log g - Σ m_p - Σ μ_j + τ (log det Λ + Σ log μ_j)``,

whose maximum has both sums equal to 1 in the limit τ → 0. Its gradient in Λ, before the subtraction of the masses, is
``S = X / g + τ Λ⁻¹``, where X is the positive definite solution of ``X Λ X = G`` and ``G = W' diag(μ) W``. At the
maximum the blocks of S are diagonal with trace 1, so that S is the inverse of a covariance with cost 1 for
every phase. One eigendecomposition ``L' G L = V n² V'``, ``Λ = L L'``, gives g, S and the Hessian: with ``Q = L⁻ᵀ V``,
``X = Q n Q'`` and ``dX = -Q (K ∘ Q' dΛ Q) Q'``, where ``K_ab = n_a n_b / (n_a + n_b)``.
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

MIN_SINGLE, MIN_BOUNDARY_SINGLE = 400, 2**13
"""Minimum numbers of unknowns for a Hessian in single precision: for an interior maximum, and if weights go to 0."""

INITIAL_BARRIER = 0.1  # initial τ, times the number of steps; with weights on queries ten times larger
FINAL_BARRIER_SHARE = 0.1  # final contribution of the barrier, relative to the tolerance
MAX_BARRIER_FACTOR, MIN_BARRIER_FACTOR = 0.1, 1e-3  # factor on τ after a full step, for an interior maximum
MAX_DECREMENT = 0.5  # squared Newton decrement for which τ is decreased, for an interior maximum
BOUNDARY_BARRIER_FACTOR, MAX_BOUNDARY_DECREMENT = 0.1, 50.0  # as above, over τ, if weights go to 0
ARMIJO_FACTOR, MIN_STEP = 0.1, 1e-9  # line search: required fraction of the predicted increase, step length
GRAM_EIGENVALUE_TOL = 1e-6  # for smaller n, relative to the largest, the Gram matrix is too inaccurate
EIGENVALUE_FLOOR = 1e-11  # lower limit on eigenvalues, relative to the largest
FACTOR_TOL = 1e-9  # smaller factors, relative to the largest, are dropped
CHUNK_ENTRIES = 2**23  # number of products formed at a time
NODE_SPACING = 1.0  # of the nodes t of the exponential sum, in log t


@dataclass(frozen=True, slots=True, eq=False)
class PhaseWeights:
    """Weights of phases and of queries, the variables of the dual."""

    blocks: Array  # (phases, times, times) ``m_p R_p``, with ``m_p I`` on missing steps
    queries: Array  # (m,) μ; empty if the weights of queries are fixed

    def masses(self) -> Array:
        """Return m_p, shape (phases,)."""
        return self.blocks[:, 0, 0]

    def stepped(self, direction: PhaseWeights, length: float) -> PhaseWeights:
        return PhaseWeights(self.blocks + length * direction.blocks, self.queries + length * direction.queries)


@dataclass(frozen=True, eq=False)
class PhaseProgram:
    """Query rows with their columns (steps) sorted by phase, and the steps of each phase."""

    queries: Array  # (m, n) rows over targets, or times the roots of weights; columns in the order of `present`
    present: npt.NDArray[np.bool_]  # (phases, times)
    fixed: bool  # whether the weights of the queries are fixed, as for total variance

    @cached_property
    def gram(self) -> Array:
        """``W'W`` on all places of all phases, 0 for missing steps."""
        return self.on_places(self.queries.T @ self.queries)

    @cached_property
    def pairs(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Places of each pair of participations of a user."""
        first, second = np.triu_indices(self.present.shape[1], 1)
        return first, second

    @cached_property
    def free_unknowns(self) -> npt.NDArray[np.intp] | None:
        """Indices of the unknown masses and correlations, in the order of the Hessian; None if all are unknown."""
        row, column = self.pairs
        is_present = np.append(
            np.ones((len(self.present), 1), dtype=bool), self.present[:, row] & self.present[:, column], axis=1
        )
        return None if is_present.all() else np.flatnonzero(is_present.ravel())

    @property
    def steps(self) -> int:
        return int(self.queries.shape[1])

    @cached_property
    def inside(self) -> bool:
        """Whether the maximum is certainly interior: query weights are fixed, and the queries determine all steps."""
        values = self.first_point.values
        return self.fixed and bool(values.min() > GRAM_EIGENVALUE_TOL * values.max())

    @cached_property
    def first_point(self) -> PhasePoint:
        point = self.at(self.first_weights())
        assert point is not None
        return point

    @cached_property
    def places(self) -> npt.NDArray[np.intp]:
        """Index of each step among the places of all phases."""
        return np.flatnonzero(self.present.ravel())

    def rows_on_places(self, rows: Array) -> Array:
        """Expand rows from steps to all places, with 0 for missing steps."""
        all_rows = np.zeros((self.present.size, rows.shape[1]))
        all_rows[self.places] = rows
        return all_rows

    def on_places(self, matrix: Array) -> Array:
        """Expand a matrix from steps to all places, with 0 for missing steps."""
        return self.rows_on_places(self.rows_on_places(matrix).T).T

    def on_steps(self, matrix: Array) -> Array:
        return matrix if len(self.places) == len(matrix) else matrix[np.ix_(self.places, self.places)]

    def first_weights(self) -> PhaseWeights:
        """Return equal masses without correlations, and equal weights on queries."""
        phases, times = self.present.shape
        count = 0 if self.fixed else len(self.queries)
        return PhaseWeights(np.tile(np.eye(times) / phases, (phases, 1, 1)), np.full(count, 1 / max(count, 1)))

    def at(self, weights: PhaseWeights) -> PhasePoint | None:
        """Return the dual function at some weights, or None unless they are positive definite."""
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
        """Return n and V from a singular value decomposition, which is accurate for small n, unlike the Gram matrix."""
        rows = self.queries if self.fixed else np.sqrt(weights.queries)[:, None] * self.queries
        phases, times = self.present.shape
        all_rows = self.rows_on_places(rows.T).reshape(phases, times, -1)
        scaled = (np.swapaxes(roots, 1, 2) @ all_rows).reshape(phases * times, -1)[self.places].T
        _, values, right = scipy.linalg.svd(scaled, check_finite=False)
        return np.append(values, np.zeros(self.steps - len(values))), np.ascontiguousarray(right.T)


@dataclass(frozen=True, eq=False)
class PhasePoint:
    """The dual function at some weights, by one eigendecomposition."""

    program: PhaseProgram
    weights: PhaseWeights
    roots: Array  # (phases, times, times) lower triangles L with ``L L' = Λ``
    values: Array  # (n,) non-negative n
    vectors: Array  # (n, n) V

    @cached_property
    def dual_value(self) -> float:
        return float(self.values.sum())

    @cached_property
    def lower_bound(self) -> float:
        total = self.weights.masses().sum() * (1.0 if self.program.fixed else self.weights.queries.sum())
        return float(self.dual_value**2 / total)

    @cached_property
    def floored_values(self) -> Array:
        """The values, raised to a lower limit."""
        return np.maximum(self.values, EIGENVALUE_FLOOR * self.values.max())

    @cached_property
    def scaled(self) -> Array:
        """``Q = L⁻ᵀ V`` on all places, 0 for missing steps."""
        return self._on_phases(np.swapaxes(np.linalg.inv(self.roots), 1, 2))

    @cached_property
    def coordinates(self) -> Array:
        """``W L V`` (m, n)."""
        return np.asarray(self.program.queries @ self._on_phases(self.roots)[self.program.places])

    def _on_phases(self, matrices: Array) -> Array:
        phases, times = self.program.present.shape
        all_rows = self.program.rows_on_places(self.vectors).reshape(phases, times, -1)
        return np.asarray((matrices @ all_rows).reshape(phases * times, -1)) * self.program.present.reshape(-1, 1)

    def merit(self, barrier: float) -> float:
        places = np.einsum("pii->pi", self.roots)[self.program.present]
        merit = 2 * np.log(self.dual_value) - self.weights.masses().sum() + 2 * barrier * np.log(places).sum()
        if not self.program.fixed:
            merit += barrier * np.log(self.weights.queries).sum() - self.weights.queries.sum()
        return float(merit)

    def gradient(self, barrier: float) -> tuple[Array, Array, Array]:
        """Return S on all places, the gradient of ``2 log g`` in the unknowns of Λ and in μ, and its part in μ.

        `slope` computes the gradient of F from S and the last part.
        """
        half = self.scaled * np.sqrt(self.floored_values / self.dual_value + barrier)
        inverse = half @ half.T
        triangles = np.linalg.inv(self.roots)
        barriers = self._of_blocks(np.swapaxes(triangles, 1, 2) @ triangles)
        variances = np.zeros(0)
        if not self.program.fixed:
            variances = self.coordinates**2 @ (1 / self.floored_values) / self.dual_value
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
        return places if self.program.free_unknowns is None else np.searchsorted(self.program.free_unknowns, places)

    def unknowns(self, matrix: Array) -> Array:
        """Return ``⟨M, ∂Λ⟩`` for every unknown mass and correlation, for M on all places."""
        phases, times = self.program.present.shape
        numbers = np.arange(phases)
        return self._of_blocks(matrix.reshape(phases, times, phases, times)[numbers, :, numbers])

    def _of_blocks(self, blocks: Array) -> Array:
        row, column = self.program.pairs
        blocks = blocks * (self.program.present[:, :, None] & self.program.present[:, None, :])
        entries = np.append(np.einsum("pii->p", blocks)[:, None], 2 * blocks[:, row, column], axis=1).ravel()
        return entries if self.program.free_unknowns is None else entries[self.program.free_unknowns]

    def direction(self, unknowns: Array) -> PhaseWeights:
        phases, times = self.program.present.shape
        row, column = self.program.pairs
        count = phases * (len(row) + 1)
        free_indices = self.program.free_unknowns
        num_known = count if free_indices is None else len(free_indices)
        all_unknowns = np.zeros(count)
        all_unknowns[slice(None) if free_indices is None else free_indices] = unknowns[:num_known]
        all_unknowns = all_unknowns.reshape(phases, -1)
        blocks = np.zeros((phases, times, times))
        blocks[:, row, column] = blocks[:, column, row] = all_unknowns[:, 1:]
        blocks[:, np.arange(times), np.arange(times)] = all_unknowns[:, :1]
        return PhaseWeights(blocks, unknowns[num_known:])

    def inverse_after(self, inverse: Array, gradient: Array, unknowns: Array, barrier: float) -> Array:
        """Return S after a Newton step to first order; its blocks are diagonal if the step is exact."""
        direction, scaled, values = self.direction(unknowns), self.scaled, self.floored_values
        phases, times = self.program.present.shape
        changed_blocks = scaled.T @ (direction.blocks @ scaled.reshape(phases, times, -1)).reshape(phases * times, -1)
        change = -changed_blocks * np.multiply.outer(values, values)
        if not self.program.fixed:
            change += self.coordinates.T @ (direction.queries[:, None] * self.coordinates)
        change = change / np.add.outer(values, values) / self.dual_value - barrier * changed_blocks
        log_change = float(gradient @ unknowns) / 2
        change[np.diag_indices_from(change)] -= values * log_change / self.dual_value
        return np.asarray(inverse + scaled @ change @ scaled.T)


# The Hessian.


def exponential_sum(minimum: float, maximum: float) -> tuple[Array, Array]:
    """Return nodes t and weights w with ``1/(a + b) ≈ Σ w e^(-t a) e^(-t b)`` for a, b in an interval.

    This is the trapezoidal rule in log t, with the tail at 0 in the first weight. The relative error is less than 2 %,
    which is accurate enough for the direction of a Newton step.
    """
    logs = np.arange(np.log(0.1 / maximum), np.log(3.5 / minimum) + NODE_SPACING, NODE_SPACING)
    nodes = np.exp(logs)
    weights = NODE_SPACING * nodes
    weights[0] /= 1 - np.exp(-NODE_SPACING)
    return nodes, weights


def hessian(point: PhasePoint, barrier: float) -> Array:
    """Return the upper triangle of minus the Hessian of F, without its rank-one part, in all unknowns."""
    program, values = point.program, point.floored_values
    phases, pairs = len(program.present), len(program.pairs[0])
    num_known = phases * (pairs + 1) if program.free_unknowns is None else len(program.free_unknowns)
    use_single = num_known + len(point.weights.queries) >= (MIN_SINGLE if program.inside else MIN_BOUNDARY_SINGLE)
    dtype: Any = np.float32 if use_single else np.float64
    nodes, weights = exponential_sum(float(values.min()), float(values.max()))
    scaled = point.scaled.astype(dtype)
    parts = np.empty((len(nodes) + 1, len(scaled), len(scaled)), dtype=dtype)
    for place, (node, weight) in enumerate(zip(nodes, weights, strict=True)):
        factors = values * np.exp(-node * values) * np.sqrt(weight / point.dual_value)
        parts[place] = _gram(scaled, factors, dtype)
    parts[-1] = _gram(scaled, np.full(len(values), np.sqrt(barrier)), dtype)
    matrix = _correlation_hessian(parts, program, dtype)
    if program.free_unknowns is not None:
        matrix = matrix[np.ix_(program.free_unknowns, program.free_unknowns)]
    return matrix if program.fixed else _with_query_weights(point, matrix, (nodes, weights), barrier)


def _gram(scaled: Array, factors: Array, dtype: Any) -> Array:
    """Return ``Q diag(f) Q'`` without negligible columns."""
    nonzero = factors > FACTOR_TOL * factors.max()
    half = scaled[:, nonzero] * np.sqrt(factors[nonzero]).astype(dtype)
    return np.asarray(half @ half.T)


def _correlation_hessian(parts: Array, program: PhaseProgram, dtype: Any) -> Array:
    """Return the upper blocks of ``Σ_r tr(∂Λ Y_r ∂Λ' Y_r)`` for all masses and correlations; `parts` are the Y_r."""
    phases, times = program.present.shape
    row, column = program.pairs
    width = len(row) + 1
    parts = parts.reshape(-1, phases, times, phases, times)
    curvature = np.zeros((phases, width, phases, width), dtype=dtype)
    for phase in range(phases):
        # (phases, i, k, r): steps i of this phase, steps k of the others
        rows = np.ascontiguousarray(parts[:, phase, :, phase:].transpose(2, 1, 3, 0))
        right = rows.transpose(0, 2, 1, 3).reshape(len(rows), times, -1)
        traces = right @ right.transpose(0, 2, 1)
        left_rows = rows.reshape(len(rows), times, -1)
        curvature[phase, 0, phase:, 1:] = 2 * traces[:, row, column]
        curvature[phase, 0, phase:, 0] = np.einsum("qkk->q", traces)
        curvature[phase, 1:, phase:, 0] = 2 * (left_rows @ left_rows.transpose(0, 2, 1))[:, row, column].T
        all_rows = rows.reshape(len(rows), times**2, -1).transpose(0, 2, 1)
        rows_per_chunk = max(1, CHUNK_ENTRIES // (len(rows) * times**3))
        for start in range(0, times, rows_per_chunk):
            selected = np.flatnonzero((row >= start) & (row < start + rows_per_chunk))
            left = rows[:, start : start + rows_per_chunk].reshape(len(rows), -1, rows.shape[-1])
            # (phases, i, k, j, l): Σ_r Y_r[i, k] Y_r[j, l], with i, j steps of one phase and k, l of another
            products = (left @ all_rows).reshape(len(rows), -1, times, times, times)
            pairs = products[:, row[selected] - start, :, column[selected], :]
            symmetric_sum = pairs[:, :, row, column] + pairs[:, :, column, row]
            curvature[phase, 1 + selected, phase:, 1:] = 2 * symmetric_sum
    return curvature.reshape(phases * width, phases * width)


def _with_query_weights(point: PhasePoint, matrix: Array, nodes: tuple[Array, Array], barrier: float) -> Array:
    program, values, rows = point.program, point.floored_values, point.coordinates
    phases, times = program.present.shape
    row, column = program.pairs
    num_known, count = len(matrix), len(rows)
    full_matrix = np.zeros((num_known + count,) * 2, dtype=matrix.dtype)
    full_matrix[:num_known, :num_known] = matrix
    query_terms, cross_terms = np.zeros((count, count)), np.zeros((phases, len(row) + 1, count))
    for node, weight in zip(*nodes, strict=True):
        decayed = np.exp(-node * values)
        query_terms += weight * ((rows * (decayed / values)) @ rows.T) ** 2
        products = (point.scaled @ (rows * decayed).T).reshape(phases, times, count)
        cross_terms[:, 1:] += 2 * weight * products[:, row] * products[:, column]
        cross_terms[:, 0] += weight * (products**2).sum(axis=1)
    flat_cross_terms = (
        cross_terms.reshape(-1, count)
        if program.free_unknowns is None
        else cross_terms.reshape(-1, count)[program.free_unknowns]
    )
    full_matrix[:num_known, num_known:] = -flat_cross_terms / point.dual_value
    full_matrix[num_known:, num_known:] = query_terms / point.dual_value + np.diag(barrier / point.weights.queries**2)
    return full_matrix


# Steps.


@dataclass(frozen=True, slots=True, eq=False)
class PhaseState:
    """The state of a run: weights, the covariance of the last step, and τ."""

    point: PhasePoint
    covariance: Array  # (n, n) of the steps in the order of `present`
    objective: float
    barrier: float
    steps: int

    @property
    def lower_bound(self) -> float:
        return self.point.lower_bound


def start(program: PhaseProgram, weights: PhaseWeights | None = None) -> PhaseState:
    point = program.first_point if weights is None else program.at(weights)
    if point is None:
        raise np.linalg.LinAlgError("the first weights are not positive definite")
    barrier = (INITIAL_BARRIER if program.fixed else 10 * INITIAL_BARRIER) / program.steps
    objective, covariance = primal(point, point.gradient(barrier)[0])
    return PhaseState(point, covariance, objective, barrier, 1)


def primal(point: PhasePoint, inverse: Array) -> tuple[float, Array]:
    """Return the objective and the covariance for an inverse on all places; inf if it is not positive definite."""
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
    """Take a Newton step; raises `LinAlgError` if no step increases F."""
    point, barrier, program = state.point, state.barrier, state.point.program
    inverse, gradient, variances = point.gradient(barrier)
    slope = point.slope(inverse, variances, barrier)
    unknowns = _solve(point, gradient, slope, barrier)
    decrement = float(slope @ unknowns)
    covariance, objective = state.covariance, state.objective
    trials = (point.inverse_after(inverse, gradient, unknowns, barrier), inverse)
    for trial in trials:
        value, trial_covariance = primal(point, trial)
        if np.isfinite(value):
            covariance, objective = trial_covariance, value
            break
    next_point, length = _search(point, point.direction(unknowns), decrement, barrier)
    final_barrier = FINAL_BARRIER_SHARE * tol / (program.steps + len(point.weights.queries))
    if length == 1.0 and program.inside and decrement < MAX_DECREMENT:
        barrier = max(barrier * min(MAX_BARRIER_FACTOR, max(decrement, MIN_BARRIER_FACTOR)), final_barrier)
    elif length == 1.0 and not program.inside and decrement < MAX_BOUNDARY_DECREMENT * barrier:
        barrier = max(barrier * BOUNDARY_BARRIER_FACTOR, final_barrier)
    return replace(
        state,
        point=next_point,
        covariance=covariance,
        objective=objective,
        barrier=barrier,
        steps=state.steps + 1,
    )


def _solve(point: PhasePoint, gradient: Array, slope: Array, barrier: float) -> Array:
    """Return the Newton step.

    The Hessian of ``2 log g`` is the curvature of g minus half the square of its gradient. It is scaled to unit
    diagonal and factored in place. If rounding makes it indefinite, it is formed again with a larger ridge.
    """
    ridge = 0.0
    while ridge < 1.0:
        matrix = hessian(point, barrier)
        dtype = matrix.dtype.type
        units = (1 / np.sqrt(np.diagonal(matrix) + gradient**2 / 2)).astype(dtype)
        matrix *= units[:, None]
        matrix *= units
        update = scipy.linalg.blas.ssyr if dtype is np.float32 else scipy.linalg.blas.dsyr
        # In column order, the upper triangle of a matrix is the lower triangle of its transpose.
        matrix = update(dtype(0.5), gradient.astype(dtype) * units, a=matrix.T, lower=1, overwrite_a=1)
        matrix[np.diag_indices_from(matrix)] += dtype(ridge)
        try:
            factor = scipy.linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            ridge = max(10 * ridge, 16 * float(np.finfo(dtype).eps))
            continue
        solution = scipy.linalg.cho_solve(factor, slope.astype(dtype) * units, check_finite=False)
        return np.asarray(solution * units, dtype=np.float64)
    raise np.linalg.LinAlgError("the Hessian is not definite")


def _search(point: PhasePoint, direction: PhaseWeights, decrement: float, barrier: float) -> tuple[PhasePoint, float]:
    merit, length = point.merit(barrier), 1.0
    while length > MIN_STEP:
        candidate = point.program.at(point.weights.stepped(direction, length))
        if candidate is not None and candidate.merit(barrier) >= merit + ARMIJO_FACTOR * length * decrement - 1e-13:
            return candidate, length
        length /= 2
    raise np.linalg.LinAlgError("no step raises the dual function")
