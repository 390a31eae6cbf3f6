"""Reuse of a release: the dual of fitness for use with matrices of weights on the release.

If the release meets every target, no solver is needed. If no part of the release has more than one row, its weights are
scalars, and the problem is fitness for use on the queries and the rows of the release.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg
from dualmech.fast.engine import ascent, loop
from dualmech.fast.engine.dual_function import DenseDual
from dualmech.fast.engine.newton import conjugate_gradients
from dualmech.fast.engine.orbits import OrbitProgram, OrbitSpectrum, Part, RankOneProgram, RankOneSpectrum
from dualmech.fast.engine.spectrum import DenseRows, Spectrum
from dualmech.fast.reductions.blocks import BlockReduction
from dualmech.fast.reductions.dense import Reduction
from dualmech.geometry.blocks import BlockPoint
from dualmech.problems.released import ReleasedBlocks, with_rows
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array, Matrix

# Newton equations for scalar weights on neighbours and queries, and matrices of weights on a release.
#
# The problem has one part, or one part for each block of tables. Each weight belongs to a group, and the unknowns
# belong to groups. They are relative changes: ``y = √(w z) · dw / w`` for a scalar weight w with slack z, and Y for a
# matrix, ``dΩ = G D^-½ Y D^-½ G'``. Here ``Ω = G G'`` and the slack matrix S satisfy ``G'S G = D²``, D diagonal: the
# Nesterov-Todd scaling. The matrix of the equations is then the identity plus the curvature of the dual function
# (`dualmech.fast.engine.dual_function`), the sum over the parts of ``⟨M, K ∘ M⟩ + τ ‖C‖²`` with
#
#     M = Σ_j δ_j u_j u_j' + Σ_ab Δ_ab r_a r_b' - C,     C = Σ_i δ_i t_i t_i',
#
# ``δ = y / √(w z)``, ``Δ = D^-½ Y D^-½``, and rows r_a for the release like u_j for the queries. With q released rows,
# Y has q² unknowns, too many for a factorisation. Few of them are stiff: the pairs (a, b) whose directions are both
# binding. The equations of these and of the scalar weights are factored and serve as the preconditioner of conjugate
# gradients.


STIFF_RATIO = 3.0  # a pair is stiff if its curvature is more than this times its barrier
MAX_PAIRS = 4000  # limit on the stiff pairs
CG_TOL = 1e-3  # relative residual of conjugate gradients in the norm of the preconditioner
MAX_CG_STEPS = 1000
ENTRIES_PER_BLOCK = 1024  # entries of the symmetric matrices M formed at a time

Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class PartEquations:
    """The curvature of one part, with rows scaled such that M is linear in the unknowns without further factors."""

    neighbour_rows: Array  # neighbour_rows, query_rows: (s, k) rows t_i and (m, k) rows u_j
    query_rows: Array
    release: Array  # (q, k) rows r_a
    groups: tuple[Index, Index]  # of t_i and of u_j
    kernel: Array  # (k, k) K
    smoothing: float  # τ

    def curvature(self, single: Array, double: Array) -> tuple[Array, Array]:
        """Return the curvature times the unknowns: for all scalar weights, and for the matrix (q, q)."""
        neighbour_groups, query_groups = self.groups
        neighbour_part = (self.neighbour_rows.T * single[neighbour_groups]) @ self.neighbour_rows
        change = (
            (self.query_rows.T * single[query_groups]) @ self.query_rows
            + self.release.T @ double @ self.release
            - neighbour_part
        )
        weighted = self.kernel * change
        neighbour_forms = _forms(self.neighbour_rows, self.smoothing * neighbour_part - weighted)
        sums = np.zeros(len(single)) + np.bincount(neighbour_groups, neighbour_forms, len(single))
        sums += np.bincount(query_groups, _forms(self.query_rows, weighted), len(single))
        return sums, self.release @ weighted @ self.release.T

    def diagonal(self) -> Array:
        """Return the diagonal for pairs of rows of the release, shape (q, q), including the identity."""
        squares = self.release**2
        return 1 + 0.5 * (squares @ self.kernel @ squares.T) * (1 + np.eye(len(squares)))

    def block(self, rows: Index, columns: Index, units: Array) -> Array:
        """Return the curvature of the scalar weights and some pairs, in units that give both the same norm."""
        left = np.vstack([self.neighbour_rows, self.query_rows, self.release[rows]])
        right = np.vstack([self.neighbour_rows, self.query_rows, self.release[columns]])
        scale = np.concatenate([-np.ones(len(self.neighbour_rows)), np.ones(len(self.query_rows)), units])
        upper, lower = np.triu_indices(left.shape[1])
        root = np.sqrt(self.kernel[upper, lower] * np.where(upper == lower, 1.0, 2.0)) / 2
        matrix = np.zeros((len(left), len(left)))
        # ⟨M_a, K ∘ M_b⟩ of the matrices M_a = scale_a (l_a r_a' + r_a l_a') / 2
        for start in range(0, len(upper), ENTRIES_PER_BLOCK):
            a, b = upper[start : start + ENTRIES_PER_BLOCK], lower[start : start + ENTRIES_PER_BLOCK]
            entries = left[:, a] * right[:, b]
            entries += left[:, b] * right[:, a]
            entries *= root[start : start + ENTRIES_PER_BLOCK]
            matrix += entries @ entries.T
        matrix *= scale * scale[:, None]
        num_neighbours = len(self.neighbour_rows)
        matrix[:num_neighbours, :num_neighbours] += self.smoothing * (self.neighbour_rows @ self.neighbour_rows.T) ** 2
        return matrix


@dataclass(frozen=True, slots=True, eq=False)
class ReuseEquations:
    """The equations at one point. The vector of unknowns is y (s + m,), then each Y (q, q) row by row."""

    parts: tuple[PartEquations, ...]
    diagonal: RankOneSpectrum | None  # the parts of one coordinate
    products: Array  # (s + m,) w z

    @classmethod
    def of(cls, program: ReuseProgram, point: OrbitSpectrum, products: Array, scalings: list[Array]) -> ReuseEquations:
        """Return the equations at a smoothed point; `scalings` are the diagonals of D."""
        roots, parts = products**0.25, []
        for part, spectrum, scaling in zip(program.parts, point.spectra, scalings, strict=True):
            rows, num_rows = spectrum.rows(np.arange(len(spectrum.weights))), len(part.groups)
            neighbours = spectrum.neighbours
            rows[:num_rows] /= roots[part.groups][:, None]
            rows[num_rows:] /= np.sqrt(scaling)[:, None]
            mean, smoothing = spectrum.mean, point.smoothing
            kernel = mean[:, None] * mean / (mean[:, None] + mean + smoothing)
            groups = part.groups[:neighbours], part.groups[neighbours:]
            parts.append(
                PartEquations(rows[:neighbours], rows[neighbours:num_rows], rows[num_rows:], groups, kernel, smoothing)
            )
        return cls(tuple(parts), point.diagonal, products)

    def split(self, unknowns: Array) -> tuple[Array, list[Array]]:
        sizes = [len(part.release) for part in self.parts]
        single, *doubles = np.split(unknowns, len(self.products) + np.cumsum([0, *(size**2 for size in sizes[:-1])]))
        return single, [double.reshape(size, size) for double, size in zip(doubles, sizes, strict=True)]

    def solve(self, right_side: Array, normals: Array) -> tuple[Array, Array]:
        """Return the unknowns x, with ``normals @ x = 0``, and the multipliers of these constraints."""
        invert = self._preconditioner()
        inverse_normals = np.stack([invert(normal) for normal in normals])
        schur = normals @ inverse_normals.T

        def project(residual: Array) -> Array:
            direction = invert(residual)
            return np.asarray(direction - inverse_normals.T @ np.linalg.solve(schur, normals @ direction))

        tolerance = CG_TOL**2 * float(right_side @ project(right_side))
        unknowns, residual = conjugate_gradients(self._times, project, right_side, tolerance, MAX_CG_STEPS)
        return unknowns, np.asarray(np.linalg.solve(normals @ normals.T, normals @ residual))

    def _times(self, unknowns: Array) -> Array:
        single, doubles = self.split(unknowns)
        total, matrices = single.copy(), []
        for part, double in zip(self.parts, doubles, strict=True):
            product, matrix = part.curvature(single, double)
            total += product
            matrices.append((double + matrix).ravel())
        if self.diagonal is not None:
            roots, change = np.sqrt(self.products), np.zeros(len(self.diagonal.weights))
            change[: len(single)] = single / roots
            total += self.diagonal.curvature_product(change)[: len(single)] / roots
        return np.concatenate([total, *matrices])

    def _preconditioner(self) -> Callable[[Array], Array]:
        """Return a solver for the diagonal and the full block of scalar weights and stiff pairs."""
        diagonals = [part.diagonal() for part in self.parts]
        stiff_pairs = _stiff_pairs(diagonals)
        # An off-diagonal entry occurs twice: the units give it the norm of a diagonal entry.
        units = [np.where(rows == columns, 1.0, np.sqrt(2.0)) for rows, columns in stiff_pairs]
        count = len(self.products)
        starts = count + np.cumsum([0, *(len(unit) for unit in units)])
        block = np.eye(int(starts[-1]))
        if self.diagonal is not None:
            roots = np.sqrt(self.products)
            block[:count, :count] += self.diagonal.curvature()[:count, :count] / roots / roots[:, None]
        for part, pairs, unit, start in zip(self.parts, stiff_pairs, units, starts, strict=False):
            indices = np.concatenate([*part.groups, start + np.arange(len(unit))])
            _add_at(block, indices, part.block(*pairs, unit))
        factor = scipy.linalg.cho_factor(block, lower=True, overwrite_a=True, check_finite=False)

        def invert(residual: Array) -> Array:
            single, doubles = self.split(residual)
            values = [double[pairs] * unit for double, pairs, unit in zip(doubles, stiff_pairs, units, strict=True)]
            block_solution = scipy.linalg.cho_solve(factor, np.concatenate([single, *values]), check_finite=False)
            solutions = [block_solution[:count]]
            parts = zip(doubles, diagonals, stiff_pairs, units, starts, strict=False)
            for double, scale, (rows, columns), unit, start in parts:
                result = double / scale
                result[rows, columns] = result[columns, rows] = block_solution[start : start + len(unit)] / unit
                solutions.append(result.ravel())
            return np.concatenate(solutions)

        return invert


def _forms(rows: Array, matrix: Array) -> Array:
    return np.einsum("ik,ik->i", rows @ matrix, rows)


def _stiff_pairs(diagonals: list[Array]) -> list[tuple[Index, Index]]:
    pairs = [np.triu_indices(len(diagonal)) for diagonal in diagonals]
    values = [diagonal[pair] for diagonal, pair in zip(diagonals, pairs, strict=True)]
    all_values = np.concatenate([np.zeros(0), *values])
    limit = 1 + STIFF_RATIO
    if np.count_nonzero(all_values > limit) > MAX_PAIRS:
        limit = float(np.partition(all_values, -MAX_PAIRS)[-MAX_PAIRS])
    selected = [np.flatnonzero(value > limit) for value in values]
    return [(rows[index], columns[index]) for (rows, columns), index in zip(pairs, selected, strict=True)]


def _add_at(matrix: Array, indices: Index, block: Array) -> None:
    distinct, inverse = np.unique(indices, return_inverse=True)
    if len(distinct) < len(indices):
        sums = sp.csr_array((np.ones(len(indices)), (inverse, np.arange(len(indices)))))
        block = np.asarray((sums @ (sums @ block).T).T)
    else:
        distinct = indices
    matrix[np.ix_(distinct, distinct)] += block


# A primal-dual interior-point method for reuse: weights λ and μ, and a matrix of weights Ω on each part of the release.
#
# Maximise ``2F(λ, μ, Ω)``, with ``F = Σ ‖[diag(√μ) V ; Ω^½ H] D diag(√λ)‖_*`` over the parts, for ``Σ λ_i = 1``,
# ``Σ μ_j + Σ tr Ω = 1``, ``λ, μ ≥ 0`` and ``Ω ⪰ 0``. This is the dual of fitness for use with the release H, which adds
# the query ``a H`` for every unit vector a, with weights collected in Ω. The optimality conditions, for the smoothed
# dual function G of `dualmech.fast.engine.dual_function` and with a multiplier for each sum, are
#
#     gradient + z = a,   w z = τ   for every scalar weight w with its slack z, and
#     H Σ H' + S = a₂ I,   Ω S = τ I   for each matrix with its slack S,
#
# where τ decreases to zero. Newton steps use the Nesterov-Todd scaling. Neither S nor an inverse of Ω is formed: the
# state contains a factor L of Ω and, for some factor N of S, ``N'L``.


STEP_TO_BOUNDARY = 0.9  # maximum fraction of the distance to the boundary in one step

FINAL_CENTRING = 0.2  # final gap on the central path, relative to the tolerance

# Lower limit on τ, relative to the mean dual infeasibility. If the optimum does not determine the whole covariance,
# weights would otherwise vanish faster than τ.
MIN_CENTRING = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ReusePart:
    """A part of a problem: queries V (m, k) over √targets, release H (q, k), differences D (k, s) or None for I."""

    queries: Array
    release: Array
    moves: Matrix | None
    groups: Index  # of the weights on neighbours, then on queries


@dataclass(frozen=True, slots=True, eq=False)
class ReuseProgram:
    """The reduced data: parts, and the parts of one coordinate as one diagonal program."""

    parts: tuple[ReusePart, ...]
    diagonal: RankOneProgram | None
    sides: tuple[int, int]  # numbers of weights on neighbours s and on queries m

    @property
    def released(self) -> int:
        return sum(len(part.release) for part in self.parts)

    def at(self, weights: Array, factors: Sequence[Array]) -> OrbitSpectrum:
        """Evaluate the dual function, with queries L'H of weight 1 for the release, whose groups come last."""
        neighbours, queries = self.sides
        start, parts = neighbours + queries, []
        for part, factor in zip(self.parts, factors, strict=True):
            rows = np.vstack([part.queries, factor.T @ part.release])
            groups = np.concatenate([part.groups, start + np.arange(len(factor))])
            parts.append(Part(DenseDual(rows, part.moves), groups, np.ones(len(groups))))
            start += len(factor)
        diagonal = self.diagonal
        if diagonal is not None:
            empty_rows = sp.csr_array((self.released, diagonal.squared_queries.shape[1]))
            diagonal = replace(
                diagonal, squared_queries=sp.csr_array(sp.vstack([diagonal.squared_queries, empty_rows], format="csr"))
            )
        program = OrbitProgram(tuple(parts), diagonal, neighbours, start - neighbours)
        return program.at(np.concatenate([weights, np.ones(self.released)]))


@dataclass(frozen=True, slots=True, eq=False)
class ReuseState:
    """The state of the solver."""

    point: OrbitSpectrum  # at these weights; its last rows are r_a for the columns of L
    weights: Array  # weights, slacks: (s + m,) λ then μ, and z
    slacks: Array
    factors: tuple[Array, ...]  # factors, crosses: L (q, q) of each part, ``Ω = L L'``, and ``N'L``, ``S = N N'``
    crosses: tuple[Array, ...]
    multipliers: Array  # (2,) a, for the two sums
    objective: float
    lower_bound: float
    step_length: float  # of the last step
    steps: int  # decompositions

    @property
    def release_weights(self) -> list[Array]:
        """Ω of each part, shape (q, q)."""
        return [factor @ factor.T for factor in self.factors]


def start(program: ReuseProgram) -> ReuseState:
    """Return a state with equal weights, 1/2 each on queries and on the release, and slacks bounded away from 0."""
    (neighbours, queries), released = program.sides, program.released
    weights = np.repeat([1 / neighbours, 0.5 / queries], [neighbours, queries])
    factors = tuple(np.sqrt(0.5 / released) * np.eye(len(part.release)) for part in program.parts)
    point = program.at(weights, factors)
    gradient, dual_value = point.gradient()[: len(weights)], point.dual_value
    multipliers = np.array([weights[:neighbours] @ gradient[:neighbours], dual_value])
    dual_slacks = np.repeat(multipliers, program.sides) - gradient
    mean_product = float(np.mean(weights * np.abs(dual_slacks)))
    slacks = np.maximum(dual_slacks, np.minimum(0.3 * dual_value, mean_product / weights))
    crosses = []
    for spectrum, factor in zip(point.spectra, factors, strict=True):
        rows = _release_rows(spectrum, len(factor))
        noise = (rows * spectrum.mean) @ rows.T * 2 * released
        values, vectors = np.linalg.eigh(dual_value * np.eye(len(factor)) - noise)
        values = np.maximum(values, min(0.3 * dual_value, mean_product * 2 * released))
        crosses.append(np.sqrt(values)[:, None] * vectors.T @ factor)
    return _evaluate(program, point, weights, slacks, factors, tuple(crosses), multipliers, 1.0, 0)


def step(program: ReuseProgram, tol: float, state: ReuseState) -> ReuseState:
    """Take one step along the central path, towards a gap of `tol`."""
    count, released = len(state.weights), program.released
    # With N'L = U D V', the factor G = L V of Ω has G'S G = D².
    decompositions = [linalg.svd(cross)[1:] for cross in state.crosses]
    scalings = [scaling for scaling, _ in decompositions]
    factors = [factor @ right.T for factor, (_, right) in zip(state.factors, decompositions, strict=True)]
    point = _rotated(state.point, [right for _, right in decompositions])
    products, num_products = state.weights * state.slacks, count + released
    mean = float(products.sum() + sum(scaling @ scaling for scaling in scalings)) / num_products
    current = point.smoothed(mean)
    target = max(
        _next_tau(state, _residuals(current, state, factors), products, scalings, mean),
        FINAL_CENTRING * tol * point.dual_value / (num_products + len(point.values)),
    )
    equations = ReuseEquations.of(program, current, products, scalings)
    changes, multiplier_change = _newton_changes(
        program, state, equations, scalings, factors, _residuals(point.smoothed(target), state, factors), target
    )
    step_length, slack_step_length = _step_limit(*changes[0]), _step_limit(*changes[1])
    growths = _growth_factors(step_length, changes[0][1])
    slack_growths = _growth_factors(slack_step_length, changes[1][1])
    weights = state.weights * (1 + step_length * changes[0][0])
    factors = [factor @ growth for factor, growth in zip(factors, growths, strict=True)]
    sides = zip(slack_growths, scalings, growths, strict=True)
    crosses = [left.T @ (scaling[:, None] * right) for left, scaling, right in sides]
    return _evaluate(
        program,
        program.at(weights, factors),
        weights,
        state.slacks * (1 + slack_step_length * changes[1][0]),
        tuple(factors),
        tuple(crosses),
        state.multipliers + slack_step_length * multiplier_change,
        min(step_length, slack_step_length),
        state.steps,
        target,
    )


def _next_tau(state: ReuseState, residuals: Changes, products: Array, scalings: list[Array], mean: float) -> float:
    single, doubles = residuals
    infeasibility = float(np.abs(single + products).sum())
    for double, scaling in zip(doubles, scalings, strict=True):
        infeasibility += float(np.abs(np.diagonal(double) + scaling**2).sum())
    # τ decreases by more if the last step was long.
    factor = 0.1 if state.step_length > 0.9 else 0.3 if state.step_length > 0.5 else 0.8
    return max(factor * mean, MIN_CENTRING * infeasibility / (len(products) + sum(map(len, scalings))))


Changes: TypeAlias = tuple[Array, list[Array]]
"""Relative changes of scalar weights, or of their slacks, and of the matrices."""


def _newton_changes(
    program: ReuseProgram,
    state: ReuseState,
    equations: ReuseEquations,
    scalings: list[Array],
    factors: list[Array],
    residuals: Changes,
    target: float,
) -> tuple[tuple[Changes, Changes], Array]:
    products, (single, doubles) = equations.products, residuals
    roots, scaling_roots = np.sqrt(products), [np.sqrt(scaling) for scaling in scalings]
    matrix_targets = [
        ((double + target * np.eye(len(root))) / root / root[:, None]).ravel()
        for double, root in zip(doubles, scaling_roots, strict=True)
    ]
    scaled = [factor / root for factor, root in zip(factors, scaling_roots, strict=True)]
    unknowns, multiplier_change = equations.solve(
        np.concatenate([(single + target) / roots, *matrix_targets]), _normals(program, state.weights / roots, scaled)
    )
    change, matrix_changes = equations.split(unknowns)
    matrices = [(matrix + matrix.T) / 2 for matrix in matrix_changes]
    slack_matrices = [
        (np.diag(target / scaling - scaling) - matrix) / root / root[:, None]
        for matrix, scaling, root in zip(matrices, scalings, scaling_roots, strict=True)
    ]
    matrices = [matrix / root / root[:, None] for matrix, root in zip(matrices, scaling_roots, strict=True)]
    slack_change = (target - products - roots * change) / products
    return ((change / roots, matrices), (slack_change, slack_matrices)), multiplier_change


def _evaluate(
    program: ReuseProgram,
    point: OrbitSpectrum,
    weights: Array,
    slacks: Array,
    factors: tuple[Array, ...],
    crosses: tuple[Array, ...],
    multipliers: Array,
    step_length: float,
    steps: int,
    smoothing: float = 0.0,
) -> ReuseState:
    """Return a state with objective and bound; the smoothed covariance is taken if it is better."""
    objective = _objective(program, point)
    if smoothing:
        smoothed = point.smoothed(smoothing)
        smoothed_objective = _objective(program, smoothed)
        point, objective = (smoothed, smoothed_objective) if smoothed_objective < objective else (point, objective)
    neighbours, _ = program.sides
    mass = weights[:neighbours].sum() * (weights[neighbours:].sum() + sum(np.sum(factor**2) for factor in factors))
    bound, num_steps = float(point.dual_value**2 / mass), steps + point.decompositions
    sides = multipliers, objective, bound
    return ReuseState(point, weights, slacks, factors, crosses, *sides, step_length, num_steps)


def _objective(program: ReuseProgram, point: OrbitSpectrum) -> float:
    """Return the maximum cost after the covariance is scaled to meet every constraint."""
    neighbours, queries = program.sides
    max_eigenvalue = 0.0
    for part, spectrum in zip(program.parts, point.spectra, strict=True):
        release_rows = (part.release @ spectrum.root) / np.sqrt(spectrum.mean)
        max_eigenvalue = max(
            max_eigenvalue, float(np.linalg.eigvalsh(release_rows @ release_rows.T)[-1]) if len(release_rows) else 0.0
        )
    costs, variances = point.constraint_values[:neighbours], point.constraint_values[neighbours : neighbours + queries]
    return float(costs.max() * max(variances.max(initial=0.0), max_eigenvalue))


def _release_rows(spectrum: Spectrum, released: int) -> Array:
    count = len(spectrum.weights)
    return spectrum.rows(np.arange(count - released, count))


def _rotated(point: OrbitSpectrum, rotations: list[Array]) -> OrbitSpectrum:
    """Return the point with rows of the release for G = L V instead of L."""
    spectra = []
    for spectrum, rotation in zip(point.spectra, rotations, strict=True):
        queries = spectrum.rows(np.arange(spectrum.neighbours, len(spectrum.weights) - len(rotation)))
        rows = rotation @ _release_rows(spectrum, len(rotation))
        spectra.append(replace(spectrum, query_rows=DenseRows(np.vstack([queries, rows]))))
    return replace(point, spectra=tuple(spectra))


def _residuals(point: OrbitSpectrum, state: ReuseState, factors: list[Array]) -> tuple[Array, list[Array]]:
    """Return ``w (gradient - a)``, shape (s + m,), and ``G'(H Σ H' - a₂) G`` for each part, at the τ of the point."""
    count, doubles = len(state.weights), []
    sides = (point.neighbours, count - point.neighbours)
    single = state.weights * (point.gradient()[:count] - np.repeat(state.multipliers, sides))
    for spectrum, factor in zip(point.spectra, factors, strict=True):
        rows = _release_rows(spectrum, len(factor))
        doubles.append((rows * spectrum.mean) @ rows.T - state.multipliers[1] * factor.T @ factor)
    return single, doubles


def _normals(program: ReuseProgram, single: Array, factors: list[Array]) -> Array:
    """Return the coefficients of the unknowns in the sums ``Σ λ_i`` and ``Σ μ_j + Σ tr Ω``."""
    neighbours, _ = program.sides
    matrices = np.concatenate([np.zeros(0), *((factor.T @ factor).ravel() for factor in factors)])
    neighbour_sum, query_sum = np.zeros(len(single)), single.copy()
    neighbour_sum[:neighbours], query_sum[:neighbours] = single[:neighbours], 0.0
    return np.stack([np.concatenate([neighbour_sum, np.zeros(len(matrices))]), np.concatenate([query_sum, matrices])])


def _step_limit(change: Array, matrices: list[Array]) -> float:
    """Return the maximum step length, up to 1, that keeps ``1 + length · change`` and ``I + length · matrix`` ≥ 0."""
    if not all(np.isfinite(part).all() for part in (change, *matrices)):
        raise np.linalg.LinAlgError("the step is no longer finite")
    min_values = [float(change.min()), *(float(np.linalg.eigvalsh(matrix)[0]) for matrix in matrices if matrix.size)]
    worst = -min(min_values)
    return min(1.0, STEP_TO_BOUNDARY / worst) if worst > 0 else 1.0


def _growth_factors(step_length: float, matrices: list[Array]) -> list[Array]:
    """Return the Cholesky factors of ``I + step_length · matrix``."""
    sums = (np.eye(len(matrix)) + step_length * matrix for matrix in matrices)
    return [scipy.linalg.cholesky(matrix, lower=True) if matrix.size else matrix for matrix in sums]


# Reduction of a problem to its parts.


TIGHTENING_SHARE = 0.1  # allowed increase of costs, relative to the tolerance, to make covariances more accurate

TARGETS_MET = "The release meets every target: no further mechanism is run."


@dataclass(frozen=True, slots=True, eq=False)
class ReuseReduction:
    """A problem's program, and the maps from its covariances and weights to the problem."""

    program: ReuseProgram
    covariance: Callable[[tuple[Array, tuple[Array, ...]]], Any]
    dual: Callable[[Array, list[Array]], ReuseDual]  # maps scalar weights, and matrices of weights on the release
    row_by_row: ascent.ReducedProblem  # the relaxation with one query of target 1 for each row of the release


def solve_reuse(problem: ReuseFitness, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    release_alone = problem.release_alone()
    if release_alone is not None:
        return judged_solution(
            problem,
            *release_alone,
            tol=limits.tol,
            otherwise=Status.ROUNDING,
            message=TARGETS_MET,
            solver="fast:released",
        )
    earlier = problem.known
    reduction = _on_blocks(problem, earlier) if isinstance(earlier, ReleasedBlocks) else _on_rows(problem)
    if all(len(part.release) <= 1 for part in reduction.program.parts):
        return ascent.ascend(lambda _: reduction.row_by_row, problem, limits, method=method)
    with np.errstate(all="ignore"):
        return _by_newton(problem, reduction, limits)


def _by_newton(problem: ReuseFitness, reduction: ReuseReduction, limits: loop.Limits) -> Solution:
    program, tol = reduction.program, limits.tol
    outcome = loop.run(start(program), partial(step, program, loop.MARGIN * tol), limits)
    dual = reduction.dual(outcome.best_dual.weights, outcome.best_dual.release_weights)
    points = map(reduction.covariance, _noises(outcome.best_primal.point, TIGHTENING_SHARE * tol))
    primal = _first_certified(problem, points, dual, tol)
    return outcome.solution(problem, primal, dual, limits, solver="fast:newton")


def _noises(point: OrbitSpectrum, rel_increase: float) -> Iterator[tuple[Array, tuple[Array, ...]]]:
    """Yield the covariance, then nearly as good ones with less noise in unconstrained directions.

    Large noise there makes small variances lose precision. Costs increase by at most `rel_increase`.
    """
    yield point.covariance()
    for candidate in (point, point.smoothed(0.0)):
        with contextlib.suppress(np.linalg.LinAlgError):  # scales are too different for double precision
            yield candidate.tightened(rel_increase)


def _first_certified(problem: ReuseFitness, points: Iterable[Any], dual: ReuseDual, tol: float) -> Any:
    """Return the first covariance that the judge certifies, made feasible and least informative; else the best one."""
    best, best_gap = None, np.inf
    for point in points:
        primal = problem.least_informative(problem.feasible(point))
        certificate = problem.certify(primal, dual)
        if best is None or max(certificate.gap, certificate.resolution) < best_gap:
            best, best_gap = primal, max(certificate.gap, certificate.resolution)
        if certificate.certifies(tol):
            break
    return best


def _on_rows(problem: ReuseFitness) -> ReuseReduction:
    together, count, size = problem.rows.together, len(problem.targets), len(problem.release)
    reduction = Reduction.of(problem.geometry, together.targets)
    released = reduction.queries >= count
    rows, moves = np.asarray(reduction.program.queries), reduction.program.moves
    neighbours, kept_rows = len(reduction.neighbours), reduction.queries[released] - count
    sides = neighbours, int(np.count_nonzero(~released))
    part = ReusePart(rows[~released], rows[released], moves, np.arange(sum(sides)))

    def dual(weights: Array, matrices: list[Array]) -> ReuseDual:
        queries, matrix = np.zeros(count), np.zeros((size, size))
        queries[reduction.queries[~released]] = weights[neighbours:]
        matrix[np.ix_(kept_rows, kept_rows)] = matrices[0]
        total = queries.sum() + np.trace(matrix)
        neighbour_weights = reduction.spread(weights[:neighbours])[0]
        return ReuseDual(neighbour_weights, queries / total / problem.targets, matrix / total)

    def dual_by_row(weights: Array) -> ReuseDual:
        neighbour_weights, query_weights = reduction.spread(weights)
        query_weights = query_weights / together.targets
        return ReuseDual(neighbour_weights, query_weights[:count], np.diag(query_weights[count:]))

    row_by_row = ascent.ReducedProblem(problem, reduction, dual_by_row, lambda dual: None)
    program = ReuseProgram((part,), None, sides)
    return ReuseReduction(program, lambda noise: reduction.covariance(noise[1][0]), dual, row_by_row)


def _on_blocks(problem: ReuseFitness, released: ReleasedBlocks) -> ReuseReduction:
    rows = BlockReuse.of(problem, released)
    row_by_row = ascent.ReducedProblem(problem, rows.reduction, rows.dual_by_row, lambda dual: None)
    return ReuseReduction(rows.program(), rows.reduction.covariance, rows.dual, row_by_row)


@dataclass(frozen=True, slots=True, eq=False)
class BlockReuse:
    """The rows of the queries, then of a release, on their blocks, and the index of each weight."""

    targets: Array  # of the orbits of queries
    directions: list[Array]  # for each block of several coordinates (r, n), the independent directions of K
    levels: int  # number of blocks of one coordinate, whose release rows come after the queries
    reduction: BlockReduction
    rows: list[Index]  # for each part, the index in the reduction of each query row
    in_matrices: npt.NDArray[np.bool_]  # queries that are rows of the release with a matrix of weights

    @classmethod
    def of(cls, problem: ReuseFitness, released: ReleasedBlocks) -> BlockReuse:
        released_point, targets = released.coordinates, problem.targets[problem.geometry.tables]
        directions = [_independent(covariance) for covariance in released_point.covariances]
        extended = with_rows(
            problem.geometry,
            released_point.levels,
            [basis.T @ covariance for basis, covariance in zip(directions, released_point.covariances, strict=True)],
        )
        ones = np.ones(len(extended.tables) - len(targets))
        reduction = BlockReduction.of(extended, np.concatenate([1 / np.sqrt(targets), ones]))
        neighbours, program = len(reduction.neighbours), reduction.program
        rows = [part.groups[part.program.sizes[0] :] - neighbours for part in program.parts]
        in_matrices = np.zeros(program.queries, dtype=bool)
        for block_rows in rows:
            in_matrices[block_rows[reduction.queries[block_rows] >= len(targets)]] = True
        return cls(targets, directions, len(released_point.levels), reduction, rows, in_matrices)

    @property
    def starts(self) -> Index:
        """The index of the first release row of each block of several coordinates, and the end."""
        return len(self.targets) + self.levels + np.cumsum([0, *(basis.shape[1] for basis in self.directions)])

    def program(self) -> ReuseProgram:
        reduced, neighbours, parts = self.reduction.program, len(self.reduction.neighbours), []
        index = np.cumsum(~self.in_matrices) - 1 + neighbours
        for part, block_rows in zip(reduced.parts, self.rows, strict=True):
            in_matrix, cells = self.in_matrices[block_rows], part.groups[: part.program.sizes[0]]
            groups = np.concatenate([cells, index[block_rows[~in_matrix]]])
            queries = np.asarray(part.program.queries)
            parts.append(ReusePart(queries[~in_matrix], queries[in_matrix], part.program.moves, groups))
        if (diagonal := reduced.diagonal) is not None:
            diagonal = replace(
                diagonal, squared_queries=sp.csr_array(diagonal.squared_queries[np.flatnonzero(~self.in_matrices)])
            )
        return ReuseProgram(tuple(parts), diagonal, (neighbours, int(np.count_nonzero(~self.in_matrices))))

    def dual(self, weights: Array, block_matrices: list[Array]) -> ReuseDual:
        """Return the problem's weights from scalar weights and the matrix of each part."""
        reduction, neighbours = self.reduction, len(self.reduction.neighbours)
        neighbour_weights, query_weights = np.zeros(reduction.shape[0]), np.zeros(reduction.shape[1])
        neighbour_weights[reduction.neighbours] = weights[:neighbours]
        query_weights[reduction.queries[~self.in_matrices]] = weights[neighbours:]
        matrices, starts = self._diagonals(query_weights), self.starts
        for block_rows, matrix in zip(self.rows, block_matrices, strict=True):
            orbits = reduction.queries[block_rows[self.in_matrices[block_rows]]]
            if len(orbits):
                index = int(np.searchsorted(starts, orbits[0], side="right")) - 1
                local_rows = orbits - starts[index]
                matrices[index][np.ix_(local_rows, local_rows)] = matrix
        return self._assemble(neighbour_weights, query_weights, matrices)

    def dual_by_row(self, weights: Array) -> ReuseDual:
        """Return the problem's weights from scalar weights for the rows of the release."""
        neighbour_weights, query_weights = self.reduction.spread(weights)
        return self._assemble(neighbour_weights, query_weights, self._diagonals(query_weights))

    def _diagonals(self, query_weights: Array) -> list[Array]:
        """Return the scalar weights of release rows as a diagonal matrix for each block."""
        return [np.diag(part) for part in np.split(query_weights, self.starts)[1:-1]]

    def _assemble(self, first: Array, shares: Array, matrices: list[Array]) -> ReuseDual:
        count, levels = len(self.targets), shares[len(self.targets) : len(self.targets) + self.levels]
        total = shares[:count].sum() + levels.sum() + sum(np.trace(matrix) for matrix in matrices)
        rotated = [basis @ matrix @ basis.T / total for basis, matrix in zip(self.directions, matrices, strict=True)]
        release = BlockPoint(levels / total, tuple((matrix + matrix.T) / 2 for matrix in rotated))
        return ReuseDual(first / first.sum(), shares[:count] / total / self.targets, release)


def _independent(covariance: Array) -> Array:
    """Return the eigenvectors of K with non-zero eigenvalues."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors[:, values > len(values) * linalg.EPS * max(values.max(initial=0.0), 0.0)])
