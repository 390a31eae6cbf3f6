"""Unions of product tables through CVXPY: cone programs over blocks, independent of the number of cells.

τ (t,) are the noise levels of the blocks of one coordinate, and ``K[b]`` (r, r) the covariances of the other blocks.
``R`` (orbits of neighbours, t) are the costs per unit of 1/τ, and ``N`` (orbits of queries, t) the variances per unit
of τ. The columns of ``M[b]`` are the differences between neighbours on a block, and the rows of ``V[b]`` its queries.
The 0-1 matrices ``C[b]`` and ``Q[b]`` map them to their orbits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import linalg
from dualmech.errors import BackendError
from dualmech.geometry.block_rows import UNMOVED_TOLERANCE, with_still
from dualmech.geometry.blocks import BlockPoint, Blocks
from dualmech.problems.base import AnyProblem, dual_of
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.reference import attempts, cp, fitness
from dualmech.reference.attempts import label
from dualmech.reference.fitness import symmetric, variances
from dualmech.reference.scaling import make_definite, returned_array, shares
from dualmech.validate import Array

MIN_LEVEL = 1e-12  # lower limit on repaired noise levels, relative to the largest, in scaled units


def minimum(aim: fitness.Aim, arrays: BlockArrays, formulation: str) -> cp.Problem:
    """State the minimum cost, or common target scaling, of noise within the limits of an aim.

    In formulas, for a table and its margins, whose blocks have one coordinate each: minimise ``max_o Σ_t R_ot / τ_t``
    over ``τ > 0`` subject to ``N τ ≤ c``. Other blocks add to costs ``C_b diag(M_b' K_b⁻¹ M_b)`` and to variances
    ``Q_b diag(V_b K_b V_b')``. The program has α for the maximum, and `_forms`.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.FitnessForUse(dm.workloads.marginals((2, 3), 1), targets=1.0, geometry="blocks")
    >>> aim = fitness.accuracy_first(problem.row_targets)
    >>> program = minimum(aim, BlockArrays.of(problem.geometry), "schur")
    >>> _, tau = program.solve(solver="CLARABEL"), program.var_dict["tau"].value
    >>> privacy, accuracy = [constraint.dual_value for constraint in program.constraints]
    >>> problem.certify(problem.feasible(BlockPoint(tau, ())), problem.dual_type(privacy, accuracy)).gap < 1e-6
    True
    """
    costs, variances_of_orbits, bounds = _forms(arrays, formulation)
    return cp.Problem(
        cp.Minimize(aim.minimise),
        [
            *bounds,
            label("privacy", costs <= aim.cost_limit),
            label("accuracy", variances_of_orbits <= aim.variance_limits),
        ],
    )


def minimum_total(arrays: BlockArrays, weights: Array, formulation: str) -> cp.Problem:
    """State the minimum weighted total variance of noise with cost at most 1."""
    w = cp.Constant(weights, name="w")
    costs, variances_of_orbits, bounds = _forms(arrays, formulation)
    return cp.Problem(cp.Minimize(w @ variances_of_orbits), [*bounds, label("privacy", costs <= 1)])


def _forms(arrays: BlockArrays, formulation: str) -> tuple[cp.Expression, cp.Expression, list[cp.Constraint]]:
    """Return costs of orbits of neighbours, variances of orbits of queries, and the cone constraints of the costs.

    A reciprocal is a second-order cone. By the Schur complement ``[[K, M], [M', Z]] ⪰ 0`` is equivalent to
    ``Z ⪰ M' K⁻¹ M``, whose diagonal contains the costs; ``matrix_frac`` has ``m' K⁻¹ m`` for every column of M instead.
    """
    costs, variance_terms, bounds = [], [], []
    if arrays.N.shape[1]:
        tau = cp.Variable(arrays.N.shape[1], name="tau")
        costs.append(cp.Constant(arrays.R, name="R") @ cp.inv_pos(tau))
        variance_terms.append(cp.Constant(arrays.N, name="N") @ tau)
    for index, (M, V, C, Q) in enumerate(zip(arrays.M, arrays.V, arrays.C, arrays.Q, strict=True)):
        K = symmetric(f"K[{index}]", len(M))
        if formulation == "schur":
            Z = symmetric(f"Z[{index}]", M.shape[1])
            bounds.append(label(f"schur[{index}]", cp.bmat([[K, M], [M.T, Z]]) >> 0))
            # CVXPY treats a matrix of one entry as a vector.
            block_costs: cp.Expression = cp.diag(Z) if M.shape[1] > 1 else cp.reshape(Z, (1,), order="F")
        else:
            block_costs = cp.hstack([cp.matrix_frac(column, K) for column in M.T])
        costs.append(cp.Constant(C, name=f"C[{index}]") @ block_costs)
        variance_terms.append(cp.Constant(Q, name=f"Q[{index}]") @ variances(cp.Constant(V, name=f"V[{index}]"), K))
    return sum(costs), sum(variance_terms), bounds


def best_bound(sensitivities: sp.csr_array) -> cp.Problem:
    """State the best bound ``√α`` for blocks of one coordinate and one orbit of neighbours.

    With N over targets, maximise ``Σ_t √(N'm)_t``.
    """
    N = cp.Constant(sensitivities, name="N")
    m = cp.Variable(sensitivities.shape[0], nonneg=True, name="m")
    return cp.Problem(cp.Maximize(cp.sum(cp.sqrt(N.T @ m))), [label("spent", cp.sum(m) <= 1)])


@dataclass(frozen=True, slots=True, eq=False)
class BlockArrays:
    """The arrays of a program, as in the module's docstring."""

    R: sp.csr_array
    N: sp.csr_array
    M: tuple[Array, ...]
    V: tuple[Array, ...]
    C: tuple[sp.csr_array, ...]
    Q: tuple[sp.csr_array, ...]
    sensitive_levels: npt.NDArray[np.intp]  # indices of the sensitive blocks of one coordinate; the others have no τ
    sensitive_directions: tuple[Array | None, ...]  # sensitive directions of each other block; None if all

    @classmethod
    def of(cls, blocks: Blocks) -> BlockArrays:
        """Return the arrays of a problem without insensitive directions."""
        sensitive_levels = np.flatnonzero(np.diff(sp.csc_array(blocks.reach).indptr))
        directions_of_blocks = tuple(block.moved() for block in blocks.matrix_blocks)
        parts = [
            (block, np.eye(len(block.moves)) if moves is None else moves)
            for block, moves in zip(blocks.matrix_blocks, directions_of_blocks, strict=True)
            if moves is None or moves.size
        ]
        return cls(
            sp.csr_array(blocks.reach[:, sensitive_levels]),
            sp.csr_array(blocks.scalar_blocks[:, sensitive_levels]),
            tuple(moves.T @ block.steps for block, moves in parts),
            tuple(block.queries @ moves for block, moves in parts),
            tuple(_selection(block.orbits, blocks.reach.shape[0]) for block, _ in parts),
            tuple(_selection(block.rows, len(blocks.tables)) for block, _ in parts),
            sensitive_levels,
            directions_of_blocks,
        )

    def scaled(self, cost: float, rows: Array, levels: Array, lifts: list[Array]) -> BlockArrays:
        """Return the arrays for noise ``levels ∘ τ`` and ``lift K lift'``, with scaled query rows and costs."""
        moves = [np.linalg.solve(lift, moves) / np.sqrt(cost) for lift, moves in zip(lifts, self.M, strict=True)]
        scaled = zip(self.V, self.Q, lifts, strict=True)
        queries = [(rows @ selection)[:, None] * (values @ lift) for values, selection, lift in scaled]
        return replace(
            self,
            R=(self.R / (cost * levels)[None, :]).tocsr(),
            N=self.N.multiply((rows**2)[:, None]).multiply(levels[None, :]).tocsr(),
            M=tuple(moves),
            V=tuple(queries),
        )


@dataclass(frozen=True, slots=True, eq=False)
class BlockUnits:
    """A problem in units in which τ = 1 and K = I are feasible with cost 1."""

    problem: AnyProblem
    arrays: BlockArrays  # in these units; rows over √targets, or times √weights
    levels: Array  # levels, lifts: factors on the noise of each block, ``levels ∘ τ`` and ``lift K lift'``
    lifts: list[Array]
    cost: float  # unit of the maximum cost
    total: float  # total variance of the identities

    @classmethod
    def of(cls, problem: FitnessForUse | TotalVariance) -> BlockUnits:
        rows = np.sqrt(problem.row_weights) if problem.sums_variances else 1 / np.sqrt(problem.row_targets)
        return cls.balanced(problem, problem.geometry, rows)

    @classmethod
    def balanced(cls, problem: AnyProblem, blocks: Blocks, rows: Array) -> BlockUnits:
        """Balance every block by its singular values, as `dualmech.reference.scaling.Scaled` does."""
        arrays = BlockArrays.of(blocks)
        levels = 1 / np.sqrt(np.asarray(arrays.N.T @ rows**2))
        lifts = [_balance(*arrays, rows) for arrays in zip(arrays.M, arrays.V, arrays.Q, strict=True)]
        start_arrays = arrays.scaled(1.0, rows, levels, lifts)
        costs, orbit_variances = _sums(start_arrays)
        cost, variance = float(costs.max()), float(orbit_variances.max())
        levels, lifts = levels / variance, [lift / np.sqrt(variance) for lift in lifts]
        unit = cost * variance
        return cls(
            problem,
            arrays.scaled(unit, rows, levels, lifts),
            levels,
            lifts,
            unit,
            float(orbit_variances.sum()) / variance,
        )

    @property
    def ones(self) -> Array:
        """Limits on the variances of all orbits of queries."""
        return np.ones(self.arrays.N.shape[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.arrays.R.shape[0], self.arrays.N.shape[0], self.problem.geometry.coordinates

    @property
    def objective_unit(self) -> float:
        """The unit of the objective."""
        return self.cost * (self.total if isinstance(self.problem, TotalVariance) else 1.0)

    def noise_vector(self, variables: dict[str, cp.Variable]) -> Array:
        """Return the backend's noise as one vector, with NaN for missing values."""
        names = [*(["tau"] if len(self.levels) else []), *(f"K[{index}]" for index in range(len(self.lifts)))]
        values = [np.ravel(np.asarray(variables[name].value, dtype=np.float64)) for name in names]
        return np.concatenate(values)

    def covariance(self, inner: npt.ArrayLike | None, extra_cost: float = 0.0) -> BlockPoint:
        """Return positive and feasible noise on the problem's blocks; for any matrix, the starting point.

        `extra_cost` is distributed equally over the blocks (see `Scaled.covariance`).
        """
        values_returned = returned_array(inner, "noise")
        if values_returned.ndim == 2:
            identities = [np.ravel(np.eye(len(lift))) for lift in self.lifts]
            values_returned = np.concatenate([np.ones(len(self.levels)), *identities])
        starts = np.cumsum([len(self.levels), *(lift.size for lift in self.lifts)])[:-1]
        levels, *matrices = np.split(values_returned, starts)
        limit_share = extra_cost / (len(levels) + len(matrices))
        if len(levels):
            if not levels.max() > 0:
                raise BackendError("the backend returned no noise to judge: no level is positive")
            levels = np.maximum(levels, MIN_LEVEL * levels.max())
            levels = self.levels / (1 / levels + limit_share / np.asarray(self.arrays.R.sum(axis=0)).ravel())
        covariances = []
        for values, lift, moves in zip(matrices, self.lifts, self.arrays.M, strict=True):
            noise = make_definite(values.reshape(lift.shape))
            if limit_share > 0:
                limit = moves @ moves.T / limit_share
                noise = noise @ np.linalg.solve(noise + limit, limit)
            scaled_noise = lift @ noise @ lift.T
            covariances.append((scaled_noise + scaled_noise.T) / 2)
        return self.problem.feasible(self._everywhere(levels, iter(covariances)))

    def _everywhere(self, levels: Array, covariances: Iterator[Array]) -> BlockPoint:
        """Return noise on all blocks, tiny in insensitive directions."""
        all_levels = np.full(len(self.problem.geometry.keys), UNMOVED_TOLERANCE * max(levels, default=1.0))
        all_levels[self.arrays.sensitive_levels] = levels
        all_covariances = [
            with_still(next(covariances) if moves is None or moves.size else None, moves)
            for moves in self.arrays.sensitive_directions
        ]
        return BlockPoint(all_levels, tuple(all_covariances))

    def dual(self, privacy: Array, accuracy: Array | None = None) -> Any:
        """Normalise multipliers to weights with ``Σ λ_o = 1``, ``Σ μ_j c_j = 1``; μ is 0 without `accuracy`."""
        query_shares = np.zeros(len(self.ones)) if accuracy is None else shares(accuracy)
        return dual_of(self.problem, shares(privacy), query_shares)


def _balance(moves: Array, queries: Array, selection: sp.csr_array, rows: Array) -> Array:
    """Return the basis that makes the identity the optimal noise of a block for equal weights."""
    _, values, right = linalg.svd((selection.T @ rows)[:, None] * (queries @ moves))
    size = len(moves)
    values = np.maximum(values[:size], linalg.EPS * values[0])
    return np.asarray(moves @ right[:size].T / np.sqrt(values))


def _sums(arrays: BlockArrays) -> tuple[Array, Array]:
    costs, orbit_variances = np.asarray(arrays.R.sum(axis=1)).ravel(), np.asarray(arrays.N.sum(axis=1)).ravel()
    for M, V, C, Q in zip(arrays.M, arrays.V, arrays.C, arrays.Q, strict=True):
        costs, orbit_variances = costs + C @ (M**2).sum(axis=0), orbit_variances + Q @ (V**2).sum(axis=1)
    return costs, orbit_variances


def _selection(orbits: npt.NDArray[np.intp], count: int) -> sp.csr_array:
    """Return the 0-1 matrix that sums numbers by orbit, shape (count, n)."""
    return sp.csr_array((np.ones(len(orbits)), (orbits, np.arange(len(orbits)))), shape=(count, len(orbits)))


FORMULATION_NAMES = ("schur", "matrix_frac")


def _write(problem: AnyProblem, name: str) -> cp.Problem:
    arrays = BlockArrays.of(problem.geometry)
    if isinstance(problem, TotalVariance):
        return minimum_total(arrays, problem.row_weights, name)
    limits = problem.row_targets
    if name == "dual":
        level_costs = np.asarray(arrays.R.sum(axis=0))
        return best_bound(arrays.N.multiply(1 / limits[:, None]).multiply(level_costs).tocsr())
    return minimum(fitness.aim_of(problem, limits), arrays, name)


def _scaled_program(
    problem: FitnessForUse | TotalVariance, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    scaled = BlockUnits.of(problem)
    if formulation == "dual":
        return _scaled_bound_program(scaled)
    if isinstance(problem, TotalVariance):
        program = minimum_total(scaled.arrays, scaled.ones / scaled.total, formulation)
        kinds: tuple[str, ...] = ("privacy",)
    else:
        program = minimum(fitness.accuracy_first(scaled.ones), scaled.arrays, formulation)
        kinds = ("privacy", "accuracy")
    return attempts.ScaledProgram(
        program, scaled, covariance=lambda: scaled.noise_vector(program.var_dict), dual=scaled.dual, constraints=kinds
    )


def _cones(problem: AnyProblem) -> dict[str, frozenset[str]]:
    """Return the cones of each formulation; `dual` is for fitness for use with one coordinate and one orbit."""
    blocks = problem.geometry
    cones = frozenset({"SOC", "PSD"} if blocks.matrix_blocks else {"SOC"})
    has_dual = isinstance(problem, FitnessForUse) and not blocks.matrix_blocks and blocks.reach.shape[0] == 1
    return dict.fromkeys((*FORMULATION_NAMES, "dual") if has_dual else FORMULATION_NAMES, cones)


def _scaled_bound_program(scaled: BlockUnits) -> attempts.ScaledProgram:
    """Return the scaled `best_bound`: its variables m are dual weights, with noise ``R_t/√(N'm)_t`` for N times R."""
    # A cost 1/τ in the program corresponds to R/τ here.
    level_costs = np.asarray(scaled.arrays.R.sum(axis=0)).ravel()
    sensitivities = sp.csr_array(scaled.arrays.N.multiply(level_costs[None, :]))
    program = best_bound(sensitivities)

    def weights() -> Array:
        multipliers = returned_array(program.var_dict["m"].value, "weights")
        return np.maximum(multipliers, MIN_LEVEL * np.max(multipliers))

    return attempts.ScaledProgram(
        program,
        scaled,
        covariance=lambda: level_costs / np.sqrt(sensitivities.T @ weights()),
        dual=lambda _: scaled.dual(np.ones(1), weights()),
        constraints=("spent",),
        optimum=lambda value: value**2,
    )


FORMULATIONS = attempts.Formulations(_cones, _write, _scaled_program)
