"""Reuse of a release: the dual of fitness for use with matrices of weights on the release.

Where the release meets every target, nothing is left to do; where no part of it has more than one row, its weights are
single ones, and the problem is fitness for use on the rows of both.
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
from dualmech.fast.engine.orbits import DiagonalProgram, DiagonalSpectrum, OrbitProgram, OrbitSpectrum, Part
from dualmech.fast.engine.spectrum import DenseRows, Spectrum
from dualmech.fast.reductions.blocks import BlockReduction
from dualmech.fast.reductions.dense import Reduction
from dualmech.geometry.blocks import BlockPoint
from dualmech.problems.released import ReleasedBlocks, with_rows
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array, Matrix

# Newton's equations for weights on neighbours and queries together with matrices of weights on a release.
#
# The problem is in parts, one on a matrix, one a block of tables; each weight has a group, and its unknown is of the
# group. The unknowns are relative changes: ``y = √(w z) · dw / w`` for a single weight w with slack z, and Y for a
# matrix, ``dΩ = G D^-½ Y D^-½ G'``, where ``Ω = G G'`` and the slack matrix S satisfy ``G'S G = D²``, D diagonal: the
# scaling of Nesterov and Todd, in which all unknowns have the same weight. The matrix of the equations is then the
# identity plus the curvature of the dual function (`dualmech.fast.engine.dual_function`), the sum over the parts of
# ``⟨M, K ∘ M⟩ + τ ‖C‖²`` with
#
#     M = Σ_j δ_j u_j u_j' + Σ_ab Δ_ab r_a r_b' - C,     C = Σ_i δ_i t_i t_i',
#
# δ = y / √(w z), ``Δ = D^-½ Y D^-½``, and rows r_a for the release as u_j for the queries. With q rows released, Y has
# q² unknowns, too many to factor. Few of them are stiff, though: the pairs (a, b) whose directions both bind. These and
# the single weights are factored; conjugate gradients handle the rest, in some tens of steps.


STIFF = 3.0  # a pair whose curvature is above this many times its barrier is factored
MOST_PAIRS = 4000  # pairs that are factored at most, the stiffest
ACCURACY = 1e-3  # residual at which conjugate gradients stop, relative, in the norm of the preconditioner
MOST_STEPS = 1000  # steps of conjugate gradients at most
ENTRIES = 1024  # entries of the symmetric matrices M that are written out at a time

Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class PartEquations:
    """The curvature of one part; rows are divided so that the unknowns themselves make M of them."""

    first: Array  # first, last: (s, k) rows t_i and (m, k) u_j
    last: Array
    release: Array  # (q, k) rows r_a
    groups: tuple[Index, Index]  # of t_i and of u_j
    kernel: Array  # (k, k) K
    smoothing: float  # τ

    def curvature(self, single: Array, double: Array) -> tuple[Array, Array]:
        """Return the curvature times unknowns: for all single weights, and for the matrix (q, q)."""
        of_neighbours, of_queries = self.groups
        spent = (self.first.T * single[of_neighbours]) @ self.first
        change = (self.last.T * single[of_queries]) @ self.last + self.release.T @ double @ self.release - spent
        weighed = self.kernel * change
        sums = np.zeros(len(single)) + np.bincount(
            of_neighbours, _forms(self.first, self.smoothing * spent - weighed), len(single)
        )
        sums += np.bincount(of_queries, _forms(self.last, weighed), len(single))
        return sums, self.release @ weighed @ self.release.T

    def diagonal(self) -> Array:
        """Return the diagonal for pairs of rows of the release (q, q), the identity included."""
        squares = self.release**2
        return 1 + 0.5 * (squares @ self.kernel @ squares.T) * (1 + np.eye(len(squares)))

    def block(self, rows: Index, columns: Index, units: Array) -> Array:
        """Return the curvature of the single weights and of some pairs, in units in which both kinds have one norm."""
        left = np.vstack([self.first, self.last, self.release[rows]])
        right = np.vstack([self.first, self.last, self.release[columns]])
        scale = np.concatenate([-np.ones(len(self.first)), np.ones(len(self.last)), units])
        upper, other = np.triu_indices(left.shape[1])
        root = np.sqrt(self.kernel[upper, other] * np.where(upper == other, 1.0, 2.0)) / 2
        matrix = np.zeros((len(left), len(left)))
        # ⟨M_a, K ∘ M_b⟩ of the matrices M_a = scale_a (l_a r_a' + r_a l_a') / 2
        for start in range(0, len(upper), ENTRIES):
            a, b = upper[start : start + ENTRIES], other[start : start + ENTRIES]
            entries = left[:, a] * right[:, b]
            entries += left[:, b] * right[:, a]
            entries *= root[start : start + ENTRIES]
            matrix += entries @ entries.T
        matrix *= scale * scale[:, None]
        count = len(self.first)
        matrix[:count, :count] += self.smoothing * (self.first @ self.first.T) ** 2
        return matrix


@dataclass(frozen=True, slots=True, eq=False)
class ReuseEquations:
    """The equations at one point; unknowns stand in one vector, y (s + m,) and then each Y (q, q) row by row."""

    parts: tuple[PartEquations, ...]
    diagonal: DiagonalSpectrum | None  # the parts of one coordinate, whose groups are all weights, and then some
    products: Array  # (s + m,) w z

    @classmethod
    def of(cls, program: ReuseProgram, here: OrbitSpectrum, products: Array, spreads: list[Array]) -> ReuseEquations:
        """Return the equations at a smoothed point; `spreads` are the diagonals of D."""
        roots, parts = products**0.25, []
        for part, spectrum, spread in zip(program.parts, here.spectra, spreads, strict=True):
            rows, neighbours, count = (
                spectrum.rows(np.arange(len(spectrum.weights))),
                spectrum.neighbours,
                len(part.groups),
            )
            rows[:count] /= roots[part.groups][:, None]
            rows[count:] /= np.sqrt(spread)[:, None]
            mean, smoothing = spectrum.mean, here.smoothing
            kernel = mean[:, None] * mean / (mean[:, None] + mean + smoothing)
            groups = part.groups[:neighbours], part.groups[neighbours:]
            parts.append(
                PartEquations(rows[:neighbours], rows[neighbours:count], rows[count:], groups, kernel, smoothing)
            )
        return cls(tuple(parts), here.diagonal, products)

    def split(self, unknowns: Array) -> tuple[Array, list[Array]]:
        sizes = [len(part.release) for part in self.parts]
        single, *doubles = np.split(unknowns, len(self.products) + np.cumsum([0, *(size**2 for size in sizes[:-1])]))
        return single, [double.reshape(size, size) for double, size in zip(doubles, sizes, strict=True)]

    def solve(self, right_side: Array, normals: Array) -> tuple[Array, Array]:
        """Return the unknowns x, with ``normals @ x = 0``, and the multipliers of these constraints."""
        invert = self._preconditioner()
        bordered = np.stack([invert(normal) for normal in normals])
        corner = normals @ bordered.T

        def project(residual: Array) -> Array:
            direction = invert(residual)
            return np.asarray(direction - bordered.T @ np.linalg.solve(corner, normals @ direction))

        enough = ACCURACY**2 * float(right_side @ project(right_side))
        unknowns, residual = conjugate_gradients(self._times, project, right_side, enough, MOST_STEPS)
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
        """Return the division by the diagonal, and by the whole block of the single weights and the stiff pairs."""
        diagonals = [part.diagonal() for part in self.parts]
        chosen = _stiff_pairs(diagonals)
        # In units in which an entry off the diagonal, which stands twice, has the norm of one on it.
        units = [np.where(rows == columns, 1.0, np.sqrt(2.0)) for rows, columns in chosen]
        count = len(self.products)
        starts = count + np.cumsum([0, *(len(unit) for unit in units)])
        block = np.eye(int(starts[-1]))
        if self.diagonal is not None:
            roots = np.sqrt(self.products)
            block[:count, :count] += self.diagonal.hessian()[:count, :count] / roots / roots[:, None]
        for part, pairs, unit, start in zip(self.parts, chosen, units, starts, strict=False):
            places = np.concatenate([*part.groups, start + np.arange(len(unit))])
            _add_at(block, places, part.block(*pairs, unit))
        factor = scipy.linalg.cho_factor(block, lower=True, overwrite_a=True, check_finite=False)

        def invert(residual: Array) -> Array:
            single, doubles = self.split(residual)
            stiff = [double[pairs] * unit for double, pairs, unit in zip(doubles, chosen, units, strict=True)]
            solved = scipy.linalg.cho_solve(factor, np.concatenate([single, *stiff]), check_finite=False)
            solutions = [solved[:count]]
            for double, scale, (rows, columns), unit, start in zip(
                doubles, diagonals, chosen, units, starts, strict=False
            ):
                result = double / scale
                result[rows, columns] = result[columns, rows] = solved[start : start + len(unit)] / unit
                solutions.append(result.ravel())
            return np.concatenate(solutions)

        return invert


def _forms(rows: Array, matrix: Array) -> Array:
    return np.einsum("ik,ik->i", rows @ matrix, rows)


def _stiff_pairs(diagonals: list[Array]) -> list[tuple[Index, Index]]:
    """Return the stiffest pairs of each part, `MOST_PAIRS` in all at most."""
    pairs = [np.triu_indices(len(diagonal)) for diagonal in diagonals]
    values = [diagonal[pair] for diagonal, pair in zip(diagonals, pairs, strict=True)]
    everywhere = np.concatenate([np.zeros(0), *values])
    limit = 1 + STIFF
    if np.count_nonzero(everywhere > limit) > MOST_PAIRS:
        limit = float(np.partition(everywhere, -MOST_PAIRS)[-MOST_PAIRS])
    kept = [np.flatnonzero(value > limit) for value in values]
    return [(rows[chosen], columns[chosen]) for (rows, columns), chosen in zip(pairs, kept, strict=True)]


def _add_at(matrix: Array, places: Index, block: Array) -> None:
    """Add a block to the rows and columns of a matrix, of which some may be named twice."""
    distinct, which = np.unique(places, return_inverse=True)
    if len(distinct) < len(places):
        sums = sp.csr_array((np.ones(len(places)), (which, np.arange(len(places)))))
        block = np.asarray((sums @ (sums @ block).T).T)
    else:
        distinct = places
    matrix[np.ix_(distinct, distinct)] += block


# A primal-dual interior-point method for reuse: weights λ and μ, and a matrix of weights Ω on each part of the release.
#
# Maximise ``2F(λ, μ, Ω)``, with ``F = Σ ‖[diag(√μ) V ; Ω^½ H] D diag(√λ)‖_*`` over the parts, subject to ``Σ λ_i = 1``,
# ``Σ μ_j + Σ tr Ω = 1``, ``λ, μ ≥ 0`` and ``Ω ⪰ 0``: the dual of fitness for use with the release in H as so many more
# queries, ``a H`` for every unit vector a, their weights gathered in Ω. The optimality conditions, at the smoothed dual
# function G of `dualmech.fast.engine.dual_function` and with a multiplier for each sum, are
#
#     gradient + z = a,   w z = τ   for every single weight w with its slack z, and
#     H Σ H' + S = a₂ I,   Ω S = τ I   for each matrix with its slack S,
#
# and τ falls to zero. Every step is Newton's, with the scaling of Nesterov and Todd. Neither S nor an inverse of Ω is
# ever formed: the state holds a factor L of Ω and, for some factor N of S, ``N'L``.


TO_THE_BOUNDARY = 0.9  # largest part of the way to the boundary that one step may go

QUICK, STEADY, SLOW = 0.1, 0.3, 0.8
"""Factors on τ after steps of which more than `FAR`, more than `HALF`, or less was possible."""

FAR, HALF = 0.9, 0.5

ENOUGH = 0.2  # where on the central path to stop, as a share of the requested gap

LAG = 1.0
"""Least τ, in units of how far slacks and gradient disagree on average: they have to catch up before it falls.

Where the optimum leaves part of the covariance free, its weights would otherwise vanish quicker than τ."""


@dataclass(frozen=True, slots=True, eq=False)
class ReusePart:
    """One matrix of a problem: queries V (m, k) over √targets, release H (q, k), moves D (k, s) or None for I."""

    queries: Array
    release: Array
    moves: Matrix | None
    groups: Index  # of the weights on its neighbours, then on its queries


@dataclass(frozen=True, slots=True, eq=False)
class ReuseProgram:
    """The reduced data: parts, and those of one coordinate, which are written with all weights."""

    parts: tuple[ReusePart, ...]
    diagonal: DiagonalProgram | None
    sides: tuple[int, int]  # numbers of weights on neighbours s and on single queries m

    @property
    def released(self) -> int:
        return sum(len(part.release) for part in self.parts)

    def at(self, weights: Array, factors: Sequence[Array]) -> OrbitSpectrum:
        """Evaluate the dual function, the release as queries L'H of weight 1, which have groups after all others."""
        neighbours, queries = self.sides
        start, parts = neighbours + queries, []
        for part, factor in zip(self.parts, factors, strict=True):
            rows = np.vstack([part.queries, factor.T @ part.release])
            groups = np.concatenate([part.groups, start + np.arange(len(factor))])
            parts.append(Part(DenseDual(rows, part.moves), groups, np.ones(len(groups))))
            start += len(factor)
        diagonal = self.diagonal
        if diagonal is not None:
            blank = sp.csr_array((self.released, diagonal.squares.shape[1]))
            diagonal = replace(diagonal, squares=sp.csr_array(sp.vstack([diagonal.squares, blank], format="csr")))
        program = OrbitProgram(tuple(parts), diagonal, neighbours, start - neighbours)
        return program.at(np.concatenate([weights, np.ones(self.released)]))


@dataclass(frozen=True, slots=True, eq=False)
class ReuseState:
    """The state of the solver."""

    point: OrbitSpectrum  # the decompositions at these weights, their factors ending in rows r_a for the columns of L
    weights: Array  # weights, slacks: (s + m,) λ then μ, and their z
    slacks: Array
    factors: tuple[Array, ...]  # factors, crosses: of each part (q, q) L with ``Ω = L L'``, and ``N'L``, ``S = N N'``
    crosses: tuple[Array, ...]
    multipliers: Array  # (2,) a, of the two sums
    objective: float  # objective, lower_bound: both sides of the gap at this point (the judge recomputes them)
    lower_bound: float
    reach: float  # how far the last step could go
    steps: int  # decompositions so far

    @property
    def release_weights(self) -> list[Array]:
        """Ω (q, q) of each part."""
        return [factor @ factor.T for factor in self.factors]


def start(program: ReuseProgram) -> ReuseState:
    """Begin with equal weights, half of those on queries and release on either, and slacks that are not too small."""
    (neighbours, queries), released = program.sides, program.released
    weights = np.repeat([1 / neighbours, 0.5 / queries], [neighbours, queries])
    factors = tuple(np.sqrt(0.5 / released) * np.eye(len(part.release)) for part in program.parts)
    point = program.at(weights, factors)
    gradient, dual_value = point.gradient()[: len(weights)], point.dual_value
    multipliers = np.array([weights[:neighbours] @ gradient[:neighbours], dual_value])
    natural = np.repeat(multipliers, program.sides) - gradient
    centre = float(np.mean(weights * np.abs(natural)))
    slacks = np.maximum(natural, np.minimum(0.3 * dual_value, centre / weights))
    crosses = []
    for spectrum, factor in zip(point.spectra, factors, strict=True):
        rows = _release_rows(spectrum, len(factor))
        noise = (rows * spectrum.mean) @ rows.T * 2 * released
        values, vectors = np.linalg.eigh(dual_value * np.eye(len(factor)) - noise)
        values = np.maximum(values, min(0.3 * dual_value, centre * 2 * released))
        crosses.append(np.sqrt(values)[:, None] * vectors.T @ factor)
    return _evaluate(program, point, weights, slacks, factors, tuple(crosses), multipliers, 1.0, 0)


def step(program: ReuseProgram, tol: float, state: ReuseState) -> ReuseState:
    """Take one step along the central path, no further than a gap of `tol` asks."""
    count, released = len(state.weights), program.released
    # With N'L = U D V', the factor G = L V of Ω has G'S G = D².
    turns = [linalg.svd(cross)[1:] for cross in state.crosses]
    spreads = [spread for spread, _ in turns]
    factors = [factor @ turn.T for factor, (_, turn) in zip(state.factors, turns, strict=True)]
    point = _rotated(state.point, [turn for _, turn in turns])
    products, both = state.weights * state.slacks, count + released
    mean = float(products.sum() + sum(spread @ spread for spread in spreads)) / both
    here = point.smoothed(mean)
    single, doubles = _residuals(here, state, factors)
    lag = float(np.abs(single + products).sum())
    lag += sum(
        float(np.abs(np.diagonal(double) + spread**2).sum()) for double, spread in zip(doubles, spreads, strict=True)
    )
    quickness = QUICK if state.reach > FAR else STEADY if state.reach > HALF else SLOW
    target = max(quickness * mean, LAG * lag / both, ENOUGH * tol * point.dual_value / (both + len(point.values)))
    equations = ReuseEquations.of(program, here, products, spreads)
    moves, shift = _moves(
        program, state, equations, spreads, factors, _residuals(point.smoothed(target), state, factors), target
    )
    reach, slack_reach = _step_limit(*moves[0]), _step_limit(*moves[1])
    grown, slack_grown = _grown(reach, moves[0][1]), _grown(slack_reach, moves[1][1])
    weights = state.weights * (1 + reach * moves[0][0])
    factors = [factor @ growth for factor, growth in zip(factors, grown, strict=True)]
    crosses = [
        other.T @ (spread[:, None] * growth) for other, spread, growth in zip(slack_grown, spreads, grown, strict=True)
    ]
    return _evaluate(
        program,
        program.at(weights, factors),
        weights,
        state.slacks * (1 + slack_reach * moves[1][0]),
        tuple(factors),
        tuple(crosses),
        state.multipliers + slack_reach * shift,
        min(reach, slack_reach),
        state.steps,
        target,
    )


Moves: TypeAlias = tuple[Array, list[Array]]
"""Relative changes of single weights, or of their slacks, and of the matrices."""


def _moves(
    program: ReuseProgram,
    state: ReuseState,
    equations: ReuseEquations,
    spreads: list[Array],
    factors: list[Array],
    residuals: Moves,
    target: float,
) -> tuple[tuple[Moves, Moves], Array]:
    """Return Newton's changes of weights and of slacks towards a τ, and of the multipliers of both sums."""
    products, (single, doubles) = equations.products, residuals
    roots, spread_roots = np.sqrt(products), [np.sqrt(spread) for spread in spreads]
    wanted = [
        ((double + target * np.eye(len(root))) / root / root[:, None]).ravel()
        for double, root in zip(doubles, spread_roots, strict=True)
    ]
    scaled = [factor / root for factor, root in zip(factors, spread_roots, strict=True)]
    unknowns, shift = equations.solve(
        np.concatenate([(single + target) / roots, *wanted]), _normals(program, state.weights / roots, scaled)
    )
    change, moved = equations.split(unknowns)
    matrices = [(matrix + matrix.T) / 2 for matrix in moved]
    slack_matrices = [
        (np.diag(target / spread - spread) - matrix) / root / root[:, None]
        for matrix, spread, root in zip(matrices, spreads, spread_roots, strict=True)
    ]
    matrices = [matrix / root / root[:, None] for matrix, root in zip(matrices, spread_roots, strict=True)]
    slack_change = (target - products - roots * change) / products
    return ((change / roots, matrices), (slack_change, slack_matrices)), shift


def _evaluate(
    program: ReuseProgram,
    point: OrbitSpectrum,
    weights: Array,
    slacks: Array,
    factors: tuple[Array, ...],
    crosses: tuple[Array, ...],
    multipliers: Array,
    reach: float,
    before: int,
    smoothing: float = 0.0,
) -> ReuseState:
    """Evaluate both sides of the gap; a smoothed covariance replaces the plain one where it is better."""
    objective = _objective(program, point)
    if smoothing:
        smooth = point.smoothed(smoothing)
        better = _objective(program, smooth)
        point, objective = (smooth, better) if better < objective else (point, objective)
    neighbours, _ = program.sides
    mass = weights[:neighbours].sum() * (weights[neighbours:].sum() + sum(np.sum(factor**2) for factor in factors))
    return ReuseState(
        point,
        weights,
        slacks,
        factors,
        crosses,
        multipliers,
        objective,
        float(point.dual_value**2 / mass),
        reach,
        before + point.decompositions,
    )


def _objective(program: ReuseProgram, point: OrbitSpectrum) -> float:
    """Return the largest cost times the divisor that makes the covariance meet every constraint."""
    neighbours, queries = program.sides
    largest = 0.0
    for part, spectrum in zip(program.parts, point.spectra, strict=True):
        known = (part.release @ spectrum.root) / np.sqrt(spectrum.mean)
        largest = max(largest, float(np.linalg.eigvalsh(known @ known.T)[-1]) if len(known) else 0.0)
    costs, variances = point.gains[:neighbours], point.gains[neighbours : neighbours + queries]
    return float(costs.max() * max(variances.max(initial=0.0), largest))


def _release_rows(spectrum: Spectrum, released: int) -> Array:
    """Return the rows r_a, which come after the rows of all single weights."""
    count = len(spectrum.weights)
    return spectrum.rows(np.arange(count - released, count))


def _rotated(point: OrbitSpectrum, turns: list[Array]) -> OrbitSpectrum:
    """Return the decompositions with the rows of the release for G = L V instead of L."""
    spectra = []
    for spectrum, turn in zip(point.spectra, turns, strict=True):
        queries = spectrum.rows(np.arange(spectrum.neighbours, len(spectrum.weights) - len(turn)))
        rows = turn @ _release_rows(spectrum, len(turn))
        spectra.append(replace(spectrum, last=DenseRows(np.vstack([queries, rows]))))
    return replace(point, spectra=tuple(spectra))


def _residuals(point: OrbitSpectrum, state: ReuseState, factors: list[Array]) -> tuple[Array, list[Array]]:
    """Return ``w (gradient - a)`` (s + m,) and ``G'(H Σ H' - a₂) G`` of each part at the point's own τ."""
    count, doubles = len(state.weights), []
    sides = (point.neighbours, count - point.neighbours)
    single = state.weights * (point.gradient()[:count] - np.repeat(state.multipliers, sides))
    for spectrum, factor in zip(point.spectra, factors, strict=True):
        rows = _release_rows(spectrum, len(factor))
        doubles.append((rows * spectrum.mean) @ rows.T - state.multipliers[1] * factor.T @ factor)
    return single, doubles


def _normals(program: ReuseProgram, single: Array, factors: list[Array]) -> Array:
    """Return the coefficients of the unknowns in both sums, ``Σ λ_i`` and ``Σ μ_j + Σ tr Ω``."""
    neighbours, _ = program.sides
    matrices = np.concatenate([np.zeros(0), *((factor.T @ factor).ravel() for factor in factors)])
    first, last = np.zeros(len(single)), single.copy()
    first[:neighbours], last[:neighbours] = single[:neighbours], 0.0
    return np.stack([np.concatenate([first, np.zeros(len(matrices))]), np.concatenate([last, matrices])])


def _step_limit(change: Array, matrices: list[Array]) -> float:
    """Return the longest step, 1 at most, that keeps ``1 + step · change`` and ``I + step · matrix`` positive."""
    if not all(np.isfinite(part).all() for part in (change, *matrices)):
        raise np.linalg.LinAlgError("the step is no longer finite")
    least = [float(change.min()), *(float(np.linalg.eigvalsh(matrix)[0]) for matrix in matrices if matrix.size)]
    worst = -min(least)
    return min(1.0, TO_THE_BOUNDARY / worst) if worst > 0 else 1.0


def _grown(reach: float, matrices: list[Array]) -> list[Array]:
    """Return the factors of ``I + reach · matrix``."""
    sums = (np.eye(len(matrix)) + reach * matrix for matrix in matrices)
    return [scipy.linalg.cholesky(matrix, lower=True) if matrix.size else matrix for matrix in sums]


# The way from a problem to its parts, and back.


SPARE = 0.1  # share of the tolerance that may be spent on noise that doubles can judge

NOTHING_FURTHER = "The release meets every target: nothing further is run."


@dataclass(frozen=True, slots=True, eq=False)
class ReuseReduction:
    """A problem's program, and the ways back from its noise and weights to the problem's."""

    program: ReuseProgram
    covariance: Callable[[tuple[Array, tuple[Array, ...]]], Any]
    dual: Callable[[Array, list[Array]], ReuseDual]  # takes single weights, and matrices of weights on the release
    row_by_row: ascent.ReducedProblem  # the relaxation in which each row of the release is a query with a target of 1


def solve_reuse(problem: ReuseFitness, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    known = problem.release_alone()
    if known is not None:
        return judged_solution(
            problem, *known, tol=limits.tol, otherwise=Status.ROUNDING, message=NOTHING_FURTHER, solver="fast:released"
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
    points = map(reduction.covariance, _noises(outcome.best_primal.point, SPARE * tol))
    primal = _first_certified(problem, points, dual, tol)
    return outcome.solution(problem, primal, dual, limits, solver="fast:newton")


def _noises(point: OrbitSpectrum, spare: float) -> Iterator[tuple[Array, tuple[Array, ...]]]:
    """Yield noise, then others nearly as good with less of it in directions that few queries need.

    Next to such noise, rounding loses the small variances. The others cost at most a share `spare` more.
    """
    yield point.covariance()
    for candidate in (point, point.smoothed(0.0)):
        with contextlib.suppress(np.linalg.LinAlgError):  # scales so far apart that both lose a direction
            yield candidate.tightened(spare)


def _first_certified(problem: ReuseFitness, points: Iterable[Any], dual: ReuseDual, tol: float) -> Any:
    """Return the first noise that the judge certifies, made feasible and lean; the best where it does none."""
    best, least = None, np.inf
    for point in points:
        primal = problem.least_informative(problem.feasible(point))
        certificate = problem.certify(primal, dual)
        if best is None or max(certificate.gap, certificate.resolution) < least:
            best, least = primal, max(certificate.gap, certificate.resolution)
        if certificate.certifies(tol):
            break
    return best


def _on_rows(problem: ReuseFitness) -> ReuseReduction:
    together, count, size = problem.rows.together, len(problem.targets), len(problem.release)
    reduction = Reduction.of(problem.geometry, together.targets)
    released = reduction.queries >= count
    rows, moves = np.asarray(reduction.program.queries), reduction.program.moves
    neighbours, kept = len(reduction.neighbours), reduction.queries[released] - count
    sides = neighbours, int(np.count_nonzero(~released))
    part = ReusePart(rows[~released], rows[released], moves, np.arange(sum(sides)))

    def dual(weights: Array, matrices: list[Array]) -> ReuseDual:
        queries, matrix = np.zeros(count), np.zeros((size, size))
        queries[reduction.queries[~released]] = weights[neighbours:]
        matrix[np.ix_(kept, kept)] = matrices[0]
        total = queries.sum() + np.trace(matrix)
        first = reduction.spread(weights[:neighbours])[0]
        return ReuseDual(first, queries / total / problem.targets, matrix / total)

    def dual_by_row(weights: Array) -> ReuseDual:
        first, last = reduction.spread(weights)
        last = last / together.targets
        return ReuseDual(first, last[:count], np.diag(last[count:]))

    row_by_row = ascent.ReducedProblem(problem, reduction, dual_by_row, lambda known: None)
    program = ReuseProgram((part,), None, sides)
    return ReuseReduction(program, lambda noise: reduction.covariance(noise[1][0]), dual, row_by_row)


def _on_blocks(problem: ReuseFitness, released: ReleasedBlocks) -> ReuseReduction:
    """Reduce a problem on blocks to its parts, the release as further rows of each block."""
    rows = BlockReuse.of(problem, released)
    row_by_row = ascent.ReducedProblem(problem, rows.reduction, rows.dual_by_row, lambda known: None)
    return ReuseReduction(rows.program(), rows.reduction.covariance, rows.dual, row_by_row)


@dataclass(frozen=True, slots=True, eq=False)
class BlockReuse:
    """The rows of a wish, after them those of a release, on the blocks of both: where each weight has its place."""

    targets: Array  # of the orbits of the wish
    turns: list[Array]  # of each block of several coordinates (r, n), the independent directions of its K
    levels: int  # number of blocks of one coordinate, whose rows of the release come after the wish's
    reduction: BlockReduction
    rows: list[Index]  # of each part, the query of each of its rows, as the reduction numbers them
    in_matrices: npt.NDArray[np.bool_]  # which queries are rows of the release with a matrix of weights

    @classmethod
    def of(cls, problem: ReuseFitness, released: ReleasedBlocks) -> BlockReuse:
        known, targets = released.coordinates, problem.targets[problem.geometry.tables]
        turns = [_independent(covariance) for covariance in known.covariances]
        extended = with_rows(
            problem.geometry,
            known.levels,
            [turn.T @ covariance for turn, covariance in zip(turns, known.covariances, strict=True)],
        )
        ones = np.ones(len(extended.tables) - len(targets))
        reduction = BlockReduction.of(extended, np.concatenate([1 / np.sqrt(targets), ones]))
        neighbours, program = len(reduction.neighbours), reduction.program
        rows = [part.groups[part.program.sizes[0] :] - neighbours for part in program.parts]
        in_matrices = np.zeros(program.queries, dtype=bool)
        for block_rows in rows:
            in_matrices[block_rows[reduction.queries[block_rows] >= len(targets)]] = True
        return cls(targets, turns, len(known.levels), reduction, rows, in_matrices)

    @property
    def starts(self) -> Index:
        """The orbits at which the rows of the release on each block begin, of several coordinates, and their end."""
        return len(self.targets) + self.levels + np.cumsum([0, *(turn.shape[1] for turn in self.turns)])

    def program(self) -> ReuseProgram:
        reduced, neighbours, parts = self.reduction.program, len(self.reduction.neighbours), []
        place = np.cumsum(~self.in_matrices) - 1 + neighbours
        for part, block_rows in zip(reduced.parts, self.rows, strict=True):
            matrix, cells = self.in_matrices[block_rows], part.groups[: part.program.sizes[0]]
            groups = np.concatenate([cells, place[block_rows[~matrix]]])
            queries = np.asarray(part.program.queries)
            parts.append(ReusePart(queries[~matrix], queries[matrix], part.program.moves, groups))
        if (diagonal := reduced.diagonal) is not None:
            diagonal = replace(diagonal, squares=sp.csr_array(diagonal.squares[np.flatnonzero(~self.in_matrices)]))
        return ReuseProgram(tuple(parts), diagonal, (neighbours, int(np.count_nonzero(~self.in_matrices))))

    def dual(self, weights: Array, of_blocks: list[Array]) -> ReuseDual:
        """Return the problem's weights from single ones and those of each part's rows of the release."""
        reduction, neighbours = self.reduction, len(self.reduction.neighbours)
        first, shares = np.zeros(reduction.shape[0]), np.zeros(reduction.shape[1])
        first[reduction.neighbours] = weights[:neighbours]
        shares[reduction.queries[~self.in_matrices]] = weights[neighbours:]
        matrices, starts = self._diagonals(shares), self.starts
        for block_rows, matrix in zip(self.rows, of_blocks, strict=True):
            orbits = reduction.queries[block_rows[self.in_matrices[block_rows]]]
            if len(orbits):
                index = int(np.searchsorted(starts, orbits[0], side="right")) - 1
                kept = orbits - starts[index]
                matrices[index][np.ix_(kept, kept)] = matrix
        return self._placed(first, shares, matrices)

    def dual_by_row(self, weights: Array) -> ReuseDual:
        """Return the problem's weights from a single one for each row of the release."""
        first, shares = self.reduction.spread(weights)
        return self._placed(first, shares, self._diagonals(shares))

    def _diagonals(self, shares: Array) -> list[Array]:
        """Return single weights of rows of the release, from those of all orbits, as a matrix for each block."""
        return [np.diag(part) for part in np.split(shares, self.starts)[1:-1]]

    def _placed(self, first: Array, shares: Array, matrices: list[Array]) -> ReuseDual:
        count, levels = len(self.targets), shares[len(self.targets) : len(self.targets) + self.levels]
        total = shares[:count].sum() + levels.sum() + sum(np.trace(matrix) for matrix in matrices)
        turned = [turn @ matrix @ turn.T / total for turn, matrix in zip(self.turns, matrices, strict=True)]
        held = BlockPoint(levels / total, tuple((matrix + matrix.T) / 2 for matrix in turned))
        return ReuseDual(first / first.sum(), shares[:count] / total / self.targets, held)


def _independent(known: Array) -> Array:
    """Return orthonormal directions (r, n), the eigenvectors of K whose values are not 0."""
    values, vectors = np.linalg.eigh(known)
    return np.asarray(vectors[:, values > len(values) * linalg.EPS * max(values.max(initial=0.0), 0.0)])
