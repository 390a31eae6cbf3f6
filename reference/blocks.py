"""Unions of product tables through CVXPY: the cone programs over blocks, whatever the number of cells.

Throughout, τ (t,) holds the noise levels of the blocks of one coordinate, and ``K[b]`` (r, r) the covariance of each
other block. ``R`` (neighbours, t) says which orbit of neighbours pays for which level, and ``N`` (queries, t) what a
level adds to the variance of an orbit of queries. ``M[b]`` (r, steps) holds in its columns how neighbours move a block,
``V[b]`` its queries in its rows; ``C[b]`` and ``Q[b]``, of zeros and ones, take them to their orbits.
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

FLOOR = 1e-12  # least noise level that a repair leaves, relative to the largest, in scaled units


def least(aim: fitness.Aim, stated: BlockArrays, formulation: str) -> cp.Problem:
    """State the least cost, or factor on the targets, of noise within the limits of an aim, of orbits of queries.

    In formulas, for a table and its margins, whose blocks have one coordinate each: minimise ``max_o Σ_t R_ot / τ_t``
    over ``τ > 0`` subject to ``N τ ≤ c``. Other blocks add to costs ``C_b diag(M_b' K_b⁻¹ M_b)`` and to variances
    ``Q_b diag(V_b K_b V_b')``. The program has α for the maximum, and `_forms`.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.FitnessForUse(dm.workloads.marginals((2, 3), 1), targets=1.0, geometry="blocks")
    >>> aim = fitness.accuracy_first(problem.row_targets)
    >>> program = least(aim, BlockArrays.of(problem.geometry), "schur")
    >>> _, tau = program.solve(solver="CLARABEL"), program.var_dict["tau"].value
    >>> privacy, accuracy = [constraint.dual_value for constraint in program.constraints]
    >>> problem.certify(problem.feasible(BlockPoint(tau, ())), problem.dual_type(privacy, accuracy)).gap < 1e-6
    True
    """
    costs, seen, bounds = _forms(stated, formulation)
    return cp.Problem(
        cp.Minimize(aim.minimise),
        [*bounds, label("privacy", costs <= aim.cost_limit), label("accuracy", seen <= aim.variance_limits)],
    )


def least_total(stated: BlockArrays, weights: Array, formulation: str) -> cp.Problem:
    """State the least total of variances, each orbit of queries with its weight w, of noise that costs at most 1."""
    w = cp.Constant(weights, name="w")
    costs, seen, bounds = _forms(stated, formulation)
    return cp.Problem(cp.Minimize(w @ seen), [*bounds, label("privacy", costs <= 1)])


def _forms(stated: BlockArrays, formulation: str) -> tuple[cp.Expression, cp.Expression, list[cp.Constraint]]:
    """Return costs of orbits of cells, variances of orbits of queries, and the cones that keep the costs above theirs.

    A reciprocal is a second-order cone. By the Schur complement ``[[K, M], [M', Z]] ⪰ 0`` says that ``Z ⪰ M' K⁻¹ M``,
    on whose diagonal the costs stand; ``matrix_frac`` says ``m' K⁻¹ m`` of every column of M instead.
    """
    costs, seen, bounds = [], [], []
    if stated.N.shape[1]:
        tau = cp.Variable(stated.N.shape[1], name="tau")
        costs.append(cp.Constant(stated.R, name="R") @ cp.inv_pos(tau))
        seen.append(cp.Constant(stated.N, name="N") @ tau)
    for index, (M, V, C, Q) in enumerate(zip(stated.M, stated.V, stated.C, stated.Q, strict=True)):
        K = symmetric(f"K[{index}]", len(M))
        if formulation == "schur":
            Z = symmetric(f"Z[{index}]", M.shape[1])
            bounds.append(label(f"schur[{index}]", cp.bmat([[K, M], [M.T, Z]]) >> 0))
            # Of one entry, CVXPY takes a matrix for a vector.
            paid: cp.Expression = cp.diag(Z) if M.shape[1] > 1 else cp.reshape(Z, (1,), order="F")
        else:
            paid = cp.hstack([cp.matrix_frac(column, K) for column in M.T])
        costs.append(cp.Constant(C, name=f"C[{index}]") @ paid)
        seen.append(cp.Constant(Q, name=f"Q[{index}]") @ variances(cp.Constant(V, name=f"V[{index}]"), K))
    return sum(costs), sum(seen), bounds


def best_bound(sensitivities: sp.csr_array) -> cp.Problem:
    """State the best bound ``√α`` of blocks of one coordinate: with N over targets, maximise ``Σ_t √(N'm)_t``."""
    N = cp.Constant(sensitivities, name="N")
    m = cp.Variable(sensitivities.shape[0], nonneg=True, name="m")
    return cp.Problem(cp.Maximize(cp.sum(cp.sqrt(N.T @ m))), [label("spent", cp.sum(m) <= 1)])


@dataclass(frozen=True, slots=True, eq=False)
class BlockArrays:
    """The arrays of a program, those of the module's docstring."""

    R: sp.csr_array
    N: sp.csr_array
    M: tuple[Array, ...]
    V: tuple[Array, ...]
    C: tuple[sp.csr_array, ...]
    Q: tuple[sp.csr_array, ...]
    live: npt.NDArray[np.intp]  # which blocks of one coordinate some neighbour moves; the others have no τ
    moved: tuple[Array | None, ...]  # of each other block, the directions that neighbours move; None: all

    @classmethod
    def of(cls, blocks: Blocks) -> BlockArrays:
        """Take the arrays of a problem, without directions that no neighbour moves."""
        live = np.flatnonzero(np.diff(sp.csc_array(blocks.reach).indptr))
        moved = tuple(block.moved() for block in blocks.matrix_blocks)
        kept = [
            (block, np.eye(len(block.moves)) if moves is None else moves)
            for block, moves in zip(blocks.matrix_blocks, moved, strict=True)
            if moves is None or moves.size
        ]
        return cls(
            sp.csr_array(blocks.reach[:, live]),
            sp.csr_array(blocks.scalar_blocks[:, live]),
            tuple(moves.T @ block.steps for block, moves in kept),
            tuple(block.queries @ moves for block, moves in kept),
            tuple(_selection(block.orbits, blocks.reach.shape[0]) for block, _ in kept),
            tuple(_selection(block.rows, len(blocks.tables)) for block, _ in kept),
            live,
            moved,
        )

    def scaled(self, cost: float, rows: Array, levels: Array, lifts: list[Array]) -> BlockArrays:
        """Return the same for noise ``levels ∘ τ`` and ``lift K lift'``; rows times factors, costs over a unit."""
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
    """A problem in units in which levels of 1 and identities cost 1, meet the targets, and suit equal weights best."""

    problem: AnyProblem
    stated: BlockArrays  # the arrays, in these units; rows over √targets, or times √weights
    levels: Array  # levels, lifts: factors on the noise of each block, ``levels ∘ τ`` and ``lift K lift'``
    lifts: list[Array]
    cost: float  # the largest cost that is called 1
    total: float  # the total variance of the identities

    @classmethod
    def of(cls, problem: FitnessForUse | TotalVariance) -> BlockUnits:
        rows = np.sqrt(problem.row_weights) if problem.sums_variances else 1 / np.sqrt(problem.row_targets)
        return cls.balanced(problem, problem.geometry, rows)

    @classmethod
    def balanced(cls, problem: AnyProblem, blocks: Blocks, rows: Array) -> BlockUnits:
        """Balance every block by its singular values, as `dualmech.reference.scaling.Scaled` does."""
        stated = BlockArrays.of(blocks)
        levels = 1 / np.sqrt(np.asarray(stated.N.T @ rows**2))
        lifts = [_balance(*arrays, rows) for arrays in zip(stated.M, stated.V, stated.Q, strict=True)]
        begun = stated.scaled(1.0, rows, levels, lifts)
        costs, seen = _sums(begun)
        cost, variance = float(costs.max()), float(seen.max())
        levels, lifts = levels / variance, [lift / np.sqrt(variance) for lift in lifts]
        unit = cost * variance
        return cls(problem, stated.scaled(unit, rows, levels, lifts), levels, lifts, unit, float(seen.sum()) / variance)

    @property
    def ones(self) -> Array:
        """Limits on the variances of all orbits of queries."""
        return np.ones(self.stated.N.shape[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.stated.R.shape[0], self.stated.N.shape[0], self.problem.geometry.coordinates

    @property
    def objective_unit(self) -> float:
        """The problem's objective that is 1 in scaled units."""
        return self.cost * (self.total if isinstance(self.problem, TotalVariance) else 1.0)

    def noise_vector(self, variables: dict[str, cp.Variable]) -> Array:
        """Return all noise as a backend left it, one after another; NaN for what it left out."""
        names = [*(["tau"] if len(self.levels) else []), *(f"K[{index}]" for index in range(len(self.lifts)))]
        values = [np.ravel(np.asarray(variables[name].value, dtype=np.float64)) for name in names]
        return np.concatenate(values)

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> BlockPoint:
        """Return the noise on the problem's blocks, positive and feasible; a matrix stands for where it began.

        Every block gets the same part of the cost that may be added, `spare` (`Scaled.covariance`).
        """
        begin = returned_array(inner, "noise")
        if begin.ndim == 2:
            begun = [np.ravel(np.eye(len(lift))) for lift in self.lifts]
            begin = np.concatenate([np.ones(len(self.levels)), *begun])
        starts = np.cumsum([len(self.levels), *(lift.size for lift in self.lifts)])[:-1]
        levels, *matrices = np.split(begin, starts)
        share = spare / (len(levels) + len(matrices))
        if len(levels):
            if not levels.max() > 0:
                raise BackendError("the backend returned no noise to judge: no level is positive")
            levels = np.maximum(levels, FLOOR * levels.max())
            levels = self.levels / (1 / levels + share / np.asarray(self.stated.R.sum(axis=0)).ravel())
        covariances = []
        for values, lift, moves in zip(matrices, self.lifts, self.stated.M, strict=True):
            noise = make_definite(values.reshape(lift.shape))
            if share > 0:
                limit = moves @ moves.T / share
                noise = noise @ np.linalg.solve(noise + limit, limit)
            lifted = lift @ noise @ lift.T
            covariances.append((lifted + lifted.T) / 2)
        return self.problem.feasible(self._everywhere(levels, iter(covariances)))

    def _everywhere(self, levels: Array, covariances: Iterator[Array]) -> BlockPoint:
        """Return noise on all blocks, next to none on directions that no neighbour moves."""
        spread = np.full(len(self.problem.geometry.keys), UNMOVED_TOLERANCE * max(levels, default=1.0))
        spread[self.stated.live] = levels
        raised = [
            with_still(next(covariances) if moves is None or moves.size else None, moves) for moves in self.stated.moved
        ]
        return BlockPoint(spread, tuple(raised))

    def dual(self, privacy: Array, accuracy: Array | None = None) -> Any:
        """Return multipliers as weights with ``Σ λ_o = 1``, ``Σ μ_j c_j = 1``."""
        query_shares = np.zeros(len(self.ones)) if accuracy is None else shares(accuracy)
        return dual_of(self.problem, shares(privacy), query_shares)


def _balance(moves: Array, queries: Array, selection: sp.csr_array, rows: Array) -> Array:
    """Return the basis on which the identity is the best noise of a block for equal weights."""
    _, values, right = linalg.svd((selection.T @ rows)[:, None] * (queries @ moves))
    size = len(moves)
    values = np.maximum(values[:size], linalg.EPS * values[0])
    return np.asarray(moves @ right[:size].T / np.sqrt(values))


def _sums(stated: BlockArrays) -> tuple[Array, Array]:
    costs, seen = np.asarray(stated.R.sum(axis=1)).ravel(), np.asarray(stated.N.sum(axis=1)).ravel()
    for M, V, C, Q in zip(stated.M, stated.V, stated.C, stated.Q, strict=True):
        costs, seen = costs + C @ (M**2).sum(axis=0), seen + Q @ (V**2).sum(axis=1)
    return costs, seen


def _selection(orbits: npt.NDArray[np.intp], count: int) -> sp.csr_array:
    """Return the matrix (count, n) of zeros and ones that sums numbers by orbit."""
    return sp.csr_array((np.ones(len(orbits)), (orbits, np.arange(len(orbits)))), shape=(count, len(orbits)))


FORMULATION_NAMES = ("schur", "matrix_frac")


def _write(problem: AnyProblem, name: str) -> cp.Problem:
    stated = BlockArrays.of(problem.geometry)
    if isinstance(problem, TotalVariance):
        return least_total(stated, problem.row_weights, name)
    limits = problem.row_targets
    if name == "dual":
        reach = np.asarray(stated.R.sum(axis=0))
        return best_bound(stated.N.multiply(1 / limits[:, None]).multiply(reach).tocsr())
    return least(fitness.aim_of(problem, limits), stated, name)


def _scaled_program(
    problem: FitnessForUse | TotalVariance, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    scaled = BlockUnits.of(problem)
    if formulation == "dual":
        return _scaled_bound_program(scaled)
    if isinstance(problem, TotalVariance):
        program = least_total(scaled.stated, scaled.ones / scaled.total, formulation)
        kinds: tuple[str, ...] = ("privacy",)
    else:
        program = least(fitness.accuracy_first(scaled.ones), scaled.stated, formulation)
        kinds = ("privacy", "accuracy")
    return attempts.ScaledProgram(
        program, scaled, covariance=lambda: scaled.noise_vector(program.var_dict), dual=scaled.dual, constraints=kinds
    )


def _cones(problem: AnyProblem) -> dict[str, frozenset[str]]:
    """Return what each formulation needs; `dual` is for fitness for use of blocks that all have one coordinate."""
    blocks = problem.geometry
    needed = frozenset({"SOC", "PSD"} if blocks.matrix_blocks else {"SOC"})
    plain = isinstance(problem, FitnessForUse) and not blocks.matrix_blocks and blocks.reach.shape[0] == 1
    return dict.fromkeys((*FORMULATION_NAMES, "dual") if plain else FORMULATION_NAMES, needed)


def _scaled_bound_program(scaled: BlockUnits) -> attempts.ScaledProgram:
    """Read `best_bound`: its weights are the dual's, and determine the noise ``τ_t ∝ 1/√(N'm)_t``."""
    # A cost of 1/τ there is R/τ here.
    reach = np.asarray(scaled.stated.R.sum(axis=0)).ravel()
    sensitivities = sp.csr_array(scaled.stated.N.multiply(reach[None, :]))
    program = best_bound(sensitivities)

    def weights() -> Array:
        multipliers = returned_array(program.var_dict["m"].value, "weights")
        return np.maximum(multipliers, FLOOR * np.max(multipliers))

    return attempts.ScaledProgram(
        program,
        scaled,
        covariance=lambda: reach / np.sqrt(sensitivities.T @ weights()),
        dual=lambda _: scaled.dual(np.ones(1), weights()),
        constraints=("spent",),
        optimum=lambda value: value**2,
    )


FORMULATIONS = attempts.Formulations(_cones, _write, _scaled_program)
