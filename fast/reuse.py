"""Reuse of a release: the dual of fitness for use with a matrix of weights on the release.

Where the release meets every target, nothing is left to do; where it is one row or none, its matrix of weights is a
single weight or none, and the problem is fitness for use on the rows of both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.fast.engine import ascent, loop
from dualmech.fast.engine.dual_function import DenseDual, decompose
from dualmech.fast.engine.newton import conjugate_gradients
from dualmech.fast.engine.spectrum import DenseRows, Spectrum
from dualmech.fast.methods import AUTO, Method
from dualmech.fast.reductions.dense import Reduction
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array, Matrix

# Newton's equations for weights on neighbours and queries together with a matrix of weights on a release.
#
# The unknowns are relative changes: ``y = √(w z) · dw / w`` for a single weight w with slack z, and Y for the matrix,
# ``dΩ = G D^-½ Y D^-½ G'``, where ``Ω = G G'`` and the slack matrix S satisfy ``G'S G = D²``, D diagonal: the scaling
# of Nesterov and Todd, in which all unknowns have the same weight. The matrix of the equations is then the identity
# plus the curvature of the dual function (`dualmech.fast.engine.dual_function`), ``⟨M, K ∘ M⟩ + τ ‖C‖²`` with
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


@dataclass(frozen=True, slots=True, eq=False)
class ReuseEquations:
    """The equations at one point; unknowns stand in one vector, y (s + m,) and then Y (q, q) row by row."""

    factors: Array  # (s + m + q, k) rows t_i, u_j and r_a
    mean: Array  # (k,) the n of `dualmech.fast.engine.dual_function`, ``K_ab = n_a n_b / (n_a + n_b + τ)``
    smoothing: float  # τ
    sides: tuple[int, int]  # (s, m) numbers of weights on neighbours and on queries
    products: Array  # (s + m,) w z
    spread: Array  # (q,) the diagonal of D

    @property
    def kernel(self) -> Array:
        """K (k, k)."""
        return self.mean[:, None] * self.mean / (self.mean[:, None] + self.mean + self.smoothing)

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """Return the rows t_i, u_j and r_a, divided so that the unknowns themselves make M of them."""
        neighbours, queries = self.sides
        first, last = self.factors[: neighbours + queries], self.factors[neighbours + queries :]
        single = first / self.products[:, None] ** 0.25
        return single[:neighbours], single[neighbours:], last / np.sqrt(self.spread)[:, None]

    def solve(self, right_side: Array, normals: Array) -> tuple[Array, Array]:
        """Return the unknowns x, with ``normals @ x = 0``, and the multipliers of these constraints."""
        apply, invert = self._operator(), self._preconditioner()
        bordered = np.stack([invert(normal) for normal in normals])
        corner = normals @ bordered.T

        def project(residual: Array) -> Array:
            direction = invert(residual)
            return np.asarray(direction - bordered.T @ np.linalg.solve(corner, normals @ direction))

        enough = ACCURACY**2 * float(right_side @ project(right_side))
        unknowns, residual = conjugate_gradients(apply, project, right_side, enough, MOST_STEPS)
        return unknowns, np.asarray(np.linalg.solve(normals @ normals.T, normals @ residual))

    def _operator(self) -> Callable[[Array], Array]:
        """Return the function that multiplies the unknowns with the matrix of the equations."""
        (first, last, matrix), kernel, count = self.parts, self.kernel, sum(self.sides)
        size = len(self.spread)

        def apply(unknowns: Array) -> Array:
            single, double = unknowns[:count], unknowns[count:].reshape(size, size)
            spent = (first.T * single[: len(first)]) @ first
            change = (last.T * single[len(first) :]) @ last + matrix.T @ double @ matrix - spent
            weighed = kernel * change
            on_first = self.smoothing * spent - weighed
            return unknowns + np.concatenate(
                [
                    np.einsum("ik,ik->i", first @ on_first, first),
                    np.einsum("jk,jk->j", last @ weighed, last),
                    (matrix @ weighed @ matrix.T).ravel(),
                ]
            )

        return apply

    def _preconditioner(self) -> Callable[[Array], Array]:
        """Return the division by the diagonal, and by the whole block of the single weights and the stiff pairs."""
        (first, last, matrix), kernel, count = self.parts, self.kernel, sum(self.sides)
        size = len(self.spread)
        squares = matrix**2
        diagonal = 1 + 0.5 * (squares @ kernel @ squares.T) * (1 + np.eye(size))
        rows, columns = np.triu_indices(size)
        order = np.argsort(-diagonal[rows, columns], kind="stable")[:MOST_PAIRS]
        order = order[diagonal[rows, columns][order] > 1 + STIFF]
        rows, columns = rows[order], columns[order]
        # In units in which an entry off the diagonal, which stands twice, has the norm of one on it.
        units = np.where(rows == columns, 1.0, np.sqrt(2.0))
        block = self._block(
            np.vstack([first, last, matrix[rows]]),
            np.vstack([first, last, matrix[columns]]),
            np.concatenate([-np.ones(len(first)), np.ones(len(last)), units]),
        )
        block[: len(first), : len(first)] += self.smoothing * (first @ first.T) ** 2
        block[np.diag_indices_from(block)] += 1.0
        factor = scipy.linalg.cho_factor(block, lower=True, overwrite_a=True, check_finite=False)

        def invert(residual: Array) -> Array:
            double = residual[count:].reshape(size, size)
            coupled = np.concatenate([residual[:count], double[rows, columns] * units])
            solved = scipy.linalg.cho_solve(factor, coupled, check_finite=False)
            result = double / diagonal
            result[rows, columns] = result[columns, rows] = solved[count:] / units
            return np.concatenate([solved[:count], result.ravel()])

        return invert

    def _block(self, left: Array, right: Array, scale: Array) -> Array:
        """Return ``⟨M_a, K ∘ M_b⟩`` for the matrices ``M_a = scale_a (l_a r_a' + r_a l_a') / 2``."""
        upper, columns = np.triu_indices(left.shape[1])
        root = np.sqrt(self.kernel[upper, columns] * np.where(upper == columns, 1.0, 2.0)) / 2
        block = np.zeros((len(left), len(left)))
        for start in range(0, len(upper), ENTRIES):
            a, b = upper[start : start + ENTRIES], columns[start : start + ENTRIES]
            entries = left[:, a] * right[:, b]
            entries += left[:, b] * right[:, a]
            entries *= root[start : start + ENTRIES]
            block += entries @ entries.T
        return np.asarray(block * scale * scale[:, None])


# A primal-dual interior-point method for reuse: weights λ and μ, and a matrix of weights Ω on the release.
#
# Maximise ``2F(λ, μ, Ω)``, with ``F = ‖[diag(√μ) V ; Ω^½ H] D diag(√λ)‖_*``, over ``Σ λ_i = 1``,
# ``Σ μ_j + tr Ω = 1``, ``λ, μ ≥ 0`` and ``Ω ⪰ 0``: the dual of fitness for use with the release in H as so many more
# queries, ``a H`` for every unit vector a, their weights gathered in Ω. The optimality conditions, at the smoothed dual
# function G of `dualmech.fast.engine.dual_function` and with a multiplier for each sum, are
#
#     gradient + z = a,   w z = τ   for every single weight w with its slack z, and
#     H Σ H' + S = a₂ I,   Ω S = τ I   for the matrix with its slack S,
#
# and τ falls to zero. Every step is Newton's, with the scaling of Nesterov and Todd (`dualmech.fast.reuse`).
# Neither S nor an inverse of Ω is ever formed: the state holds a factor L of Ω and, for some factor N of S, ``N'L``.


TO_THE_BOUNDARY = 0.9  # largest part of the way to the boundary that one step may go

QUICK, STEADY, SLOW = 0.1, 0.3, 0.8
"""Factors on τ after steps of which more than `FAR`, more than `HALF`, or less was possible."""

FAR, HALF = 0.9, 0.5

ENOUGH = 0.2  # where on the central path to stop, as a share of the requested gap

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
    objective: float  # objective, lower_bound: both sides of the gap at this point (the judge recomputes them)
    lower_bound: float
    reach: float  # how far the last step could go
    steps: int  # decompositions so far

    @property
    def release_weights(self) -> Array:
        """Ω (q, q)."""
        return self.factor @ self.factor.T


def start(program: ReuseProgram) -> ReuseState:
    """Begin with equal weights, half of those on queries and release on either, and slacks that are not too small."""
    (neighbours, queries), released = program.sides, len(program.release)
    weights = np.repeat([1 / neighbours, 0.5 / queries], [neighbours, queries])
    factor = np.sqrt(0.5 / released) * np.eye(released)
    point = _decompose(program, weights, factor)
    gradient, dual_value = point.gradient()[: len(weights)], point.dual_value
    multipliers = np.array([weights[:neighbours] @ gradient[:neighbours], dual_value])
    natural = np.repeat(multipliers, program.sides) - gradient
    centre = float(np.mean(weights * np.abs(natural)))
    slacks = np.maximum(natural, np.minimum(0.3 * dual_value, centre / weights))
    rows = _release_rows(point, len(weights))
    noise = (rows * point.mean) @ rows.T * 2 * released
    values, vectors = np.linalg.eigh(dual_value * np.eye(released) - noise)
    values = np.maximum(values, min(0.3 * dual_value, centre * 2 * released))
    cross = np.sqrt(values)[:, None] * vectors.T @ factor
    return _evaluate(program, point, weights, slacks, factor, cross, multipliers, 1.0, 0)


def step(program: ReuseProgram, tol: float, state: ReuseState) -> ReuseState:
    """Take one step along the central path, no further than a gap of `tol` asks."""
    count, released = len(state.weights), len(state.factor)
    # With N'L = U D V', the factor G = L V of Ω has G'S G = D².
    _, spread, turn = linalg.svd(state.cross)
    point, factor = _rotate_release(state.point, turn, count), state.factor @ turn.T
    products = state.weights * state.slacks
    mean = (products.sum() + spread @ spread) / (count + released)
    least = ENOUGH * tol * point.dual_value / (count + released + len(point.values))
    here = point.smoothed(mean)
    single, double = _residuals(here, state, factor)
    lag = np.abs(single + products).sum() + np.abs(np.diagonal(double) + spread**2).sum()
    quickness = QUICK if state.reach > FAR else STEADY if state.reach > HALF else SLOW
    target = max(quickness * mean, LAG * float(lag) / (count + released), least)
    single, double = _residuals(point.smoothed(target), state, factor)
    double += target * np.eye(released)
    roots, root_spread = np.sqrt(products), np.sqrt(spread)
    equations = ReuseEquations(
        here.rows(np.arange(len(here.weights))), here.mean, mean, program.sides, products, spread
    )
    unknowns, shift = equations.solve(
        np.concatenate([(single + target) / roots, (double / root_spread / root_spread[:, None]).ravel()]),
        _normals(program, state.weights / roots, factor / root_spread),
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
        program,
        _decompose(program, weights, factor),
        weights,
        state.slacks * (1 + slack_reach * slack_change),
        factor,
        slack_grown.T @ (spread[:, None] * grown),
        state.multipliers + slack_reach * shift,
        min(reach, slack_reach),
        state.steps,
        target,
    )


def _decompose(program: ReuseProgram, weights: Array, factor: Array) -> Spectrum:
    """Evaluate the dual function, the release as queries L'H of weight 1."""
    function = DenseDual(np.vstack([program.queries, factor.T @ program.release]), program.moves)
    return decompose(function, np.concatenate([weights, np.ones(len(factor))]))


def _evaluate(
    program: ReuseProgram,
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
    objective = _objective(program, point)
    if smoothing:
        smooth = point.smoothed(smoothing)
        better = _objective(program, smooth)
        point, objective = (smooth, better) if better < objective else (point, objective)
    neighbours, _ = program.sides
    mass = weights[:neighbours].sum() * (weights[neighbours:].sum() + np.sum(factor**2))
    return ReuseState(
        point,
        weights,
        slacks,
        factor,
        cross,
        multipliers,
        objective,
        float(point.dual_value**2 / mass),
        reach,
        before + point.decompositions,
    )


def _objective(program: ReuseProgram, point: Spectrum) -> float:
    """Return the largest cost times the divisor that makes the covariance meet every constraint."""
    neighbours, queries = program.sides
    known = (program.release @ point.root) / np.sqrt(point.mean)
    largest = np.linalg.eigvalsh(known @ known.T)[-1]
    costs, variances = point.gains[:neighbours], point.gains[neighbours : neighbours + queries]
    return float(costs.max() * max(variances.max(initial=0.0), largest))


def _release_rows(point: Spectrum, count: int) -> Array:
    """Return the rows r_a, which come after the rows of all single weights."""
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


def _normals(program: ReuseProgram, single: Array, factor: Array) -> Array:
    """Return the coefficients of the unknowns in both sums, ``Σ λ_i`` and ``Σ μ_j + tr Ω``."""
    neighbours, _ = program.sides
    normals = np.zeros((2, len(single) + factor.shape[1] ** 2))
    normals[0, :neighbours] = single[:neighbours]
    normals[1, neighbours : len(single)] = single[neighbours:]
    normals[1, len(single) :] = (factor.T @ factor).ravel()
    return normals


def _step_limit(change: Array, matrix: Array) -> float:
    """Return the longest step, 1 at most, that keeps ``1 + step · change`` and ``I + step · matrix`` positive."""
    worst = -min(float(change.min()), float(np.linalg.eigvalsh(matrix)[0]))
    return min(1.0, TO_THE_BOUNDARY / worst) if worst > 0 else 1.0


"""Both are Newton's method, but where the problem is fitness for use: there they are that solver's."""

SPARE = 0.1  # share of the tolerance that may be spent on a covariance that doubles can judge

NOTHING_FURTHER = "The release meets every target: nothing further is run."


def solve_reuse(problem: ReuseFitness, limits: loop.Limits, *, method: Method = AUTO) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    known = problem.release_alone()
    if known is not None:
        return judged_solution(
            problem, *known, tol=limits.tol, otherwise=Status.ROUNDING, message=NOTHING_FURTHER, solver="fast:released"
        )
    reduction = Reduction.of(problem.geometry, problem.rows.together.targets)
    released = reduction.queries >= len(problem.targets)
    if released.sum() > 1:
        with np.errstate(all="ignore"):
            return _by_newton(problem, reduction, released, limits)
    return ascent.ascend(partial(_row_by_row, reduction), problem, limits, method=method.name)


def _by_newton(
    problem: ReuseFitness, reduction: Reduction, released: npt.NDArray[np.bool_], limits: loop.Limits
) -> Solution:
    rows, tol = reduction.program.queries, limits.tol
    program = ReuseProgram(rows[~released], rows[released], reduction.program.moves)
    outcome = loop.run(start(program), partial(step, program, loop.MARGIN * tol), limits)
    count = len(problem.targets)
    kept = reduction.queries[released] - count
    best = outcome.best_dual
    neighbours = len(reduction.neighbours)
    queries, matrix = np.zeros(count), np.zeros((len(problem.release),) * 2)
    queries[reduction.queries[~released]] = best.weights[neighbours:]
    matrix[np.ix_(kept, kept)] = best.release_weights
    dual = _dual(reduction.spread_neighbours(best.weights[:neighbours]), queries, matrix, problem.targets)
    covariances = map(reduction.covariance, _covariances(program, outcome.best_primal, SPARE * tol))
    primal = _first_certified(problem, covariances, dual, tol)
    return outcome.solution(problem, primal, dual, limits, solver="fast:newton")


def _covariances(program: ReuseProgram, state: ReuseState, spare: float) -> Iterator[Array]:
    """Yield Σ, then others nearly as good with less noise in directions that few queries need.

    Next to such noise, rounding loses the small variances. With ``P = D D'``, ``(Σ⁻¹ + c P⁻¹)⁻¹`` costs at most c more,
    since ``d_i' P⁻¹ d_i ≤ 1``; here c is a share `spare` of the cost.
    """
    yield state.point.covariance()
    for point in (state.point, state.point.smoothed(0.0)):
        noise = point.covariance()
        moves = np.eye(len(noise)) if program.moves is None else linalg.to_dense(program.moves)
        share = moves @ moves.T / (spare * point.gains[: program.sides[0]].max())
        with contextlib.suppress(np.linalg.LinAlgError):  # scales so far apart that both lose a direction
            yield noise @ np.linalg.solve(noise + share, share)


def _first_certified(problem: ReuseFitness, covariances: Iterable[Array], dual: ReuseDual, tol: float) -> Array:
    """Return the first covariance that the judge certifies, made feasible and lean; the best where it does none."""
    best, least = np.zeros(0), np.inf
    for covariance in covariances:
        primal = problem.least_informative(problem.feasible(covariance))
        certificate = problem.certify(primal, dual)
        doubt = max(certificate.gap, certificate.resolution)
        if not best.size or doubt < least:
            best, least = primal, doubt
        if certificate.certifies(tol):
            break
    return best


def _row_by_row(reduction: Reduction, problem: ReuseFitness) -> ascent.ReducedProblem:
    """Return the problem as fitness for use: each row of the release is a query with a target of 1."""

    def dual(weights: Array) -> ReuseDual:
        first, last = reduction.spread(weights, problem.rows.together.targets)
        count = len(problem.targets)
        return ReuseDual(first, last[:count], np.diag(last[count:]))

    return ascent.ReducedProblem(problem, reduction, dual, lambda known: None)


def _dual(neighbours: Array, shares: Array, matrix: Array, targets: Array) -> ReuseDual:
    """Return weights whose shares, of queries and release together, sum to 1."""
    total = shares.sum() + np.trace(matrix)
    return ReuseDual(neighbours, shares / total / targets, matrix / total)
