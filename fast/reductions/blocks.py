"""Unions of product tables: the ascent of the dual function on blocks, with a weight for every orbit.

If every block has one coordinate and all records have equal costs, as for marginals and on a circle, the problem is a
query weighting problem, and is solved by the interior-point method for these.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import validate
from dualmech.fast.engine import ascent, interior_point, loop
from dualmech.fast.engine.dual_function import DenseDual
from dualmech.fast.engine.orbits import OrbitProgram, Part, RankOneProgram
from dualmech.fast.engine.precision import remaining_limits
from dualmech.geometry.block_rows import UNMOVED_TOLERANCE, Block, with_still
from dualmech.geometry.blocks import BlockPoint, Blocks
from dualmech.geometry.weights import FitnessDual
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution, retold
from dualmech.validate import Array

# Neighbours that are pairs of cells have many orbits, few of them binding: the ascent uses an active set of orbits.
#
# Weights on some neighbours prove a bound for all, with weight 0 for the others, and noise is judged for all
# neighbours. If an omitted neighbour has the maximum cost, it is added in another round.


MIN_ORBITS_TO_RESTRICT = 512  # with fewer orbits of neighbours, all are used from the start
TRIAL_STEPS = 30  # steps of the fixed point on all neighbours, to select the active ones
COST_TOL, WEIGHT_TOL = (
    1e-3,
    1e-2,
)  # initially active: cost within this of the maximum, or at least this fraction of the maximum weight
MAX_ROUNDS = 20


def solve_binding(
    problem: FitnessForUse | TotalVariance, ascend: Callable[..., Solution], limits: loop.Limits
) -> Solution:
    start_time, geometry = time.perf_counter(), problem.geometry
    trial_limits = replace(limits, max_iterations=min(TRIAL_STEPS, limits.max_iterations))
    answer = ascend(problem, trial_limits, method="fixed_point")
    if answer.status is Status.CERTIFIED:
        return answer
    forms, weights = geometry.forms(answer.primal), answer.dual.neighbour_weights
    if forms is None:
        return ascend(problem, limits, method="auto")
    active = (forms.profile >= (1 - COST_TOL) * forms.cost) | (weights >= WEIGHT_TOL * weights.max())
    history = list(answer.history)
    for _ in range(MAX_ROUNDS):
        steps_before = history[-1].iteration
        remaining = remaining_limits(limits, answer)
        if remaining is None:
            break
        numbers, binding = getattr(problem, problem.numbers), geometry.restricted(np.flatnonzero(active))
        restricted = type(problem)(problem.workload, numbers, geometry=binding)
        outcome = ascend(restricted, replace(remaining, tol=limits.tol / 2), method="auto")
        history += [replace(news, iteration=news.iteration + steps_before) for news in outcome.history]
        answer = _extend_solution(problem, outcome, active, limits, history, time.perf_counter() - start_time)
        if answer.status is Status.CERTIFIED or outcome.status is not Status.CERTIFIED:
            break
        forms = geometry.forms(answer.primal)
        if forms is None:
            break
        violated = ~active & (forms.profile > (1 + limits.tol / 4) * forms.profile[active].max())
        if not violated.any():
            break
        active |= violated
    return answer


def _extend_solution(
    problem: FitnessForUse | TotalVariance,
    solution: Solution,
    active: npt.NDArray[np.bool_],
    limits: loop.Limits,
    history: Sequence[Progress],
    seconds: float,
) -> Solution:
    weights = np.zeros(len(active))
    weights[active] = solution.dual.neighbour_weights
    return judged_solution(
        problem,
        problem.feasible(solution.primal),
        replace(solution.dual, neighbour_weights=weights),
        tol=limits.tol,
        otherwise=Status.STALLED if solution.status is Status.CERTIFIED else solution.status,
        iterations=history[-1].iteration,
        seconds=seconds,
        history=tuple(history),
    )


Index = npt.NDArray[np.intp]

INSENSITIVE_TOL = 1e-12  # relative norm of a row in the sensitive directions that is a rounding error

TOL_FACTOR = 0.1
"""The tolerance of the interior-point method relative to the user's; the rest is for the judge's rounding errors."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockReduction(ascent.Reduced):
    """A problem on blocks without the orbits that impose no constraint."""

    # the blocks of several coordinates that have rank one, and are treated as blocks of one coordinate
    is_rank_one: tuple[bool, ...]
    sensitive_blocks: Index  # the sensitive blocks of rank one; the others get almost no noise
    sensitive: tuple[Array | None, ...]  # the sensitive directions of each other block; None if all
    rank_one: int  # number of blocks of rank one

    @classmethod
    def of(cls, blocks: Blocks, scale: Array, fixed: bool = False) -> BlockReduction:
        """Reduce; `scale` (orbits,) multiplies the rows, and includes their weights if they are `fixed`."""
        is_rank_one = tuple(len(block.moves) == 1 for block in blocks.matrix_blocks)
        matrix_blocks = [
            block for block, is_rank_one in zip(blocks.matrix_blocks, is_rank_one, strict=True) if not is_rank_one
        ]
        sensitive = tuple(block.moved() for block in matrix_blocks)
        parts_data = [
            (block, directions, _sensitive_rows(block, directions))
            for block, directions in zip(matrix_blocks, sensitive, strict=True)
            if directions is None or directions.size
        ]
        squares, squared = _rank_one(blocks, is_rank_one)
        sensitive_blocks, rank_one = (
            np.flatnonzero(np.diff(sp.csc_array(squared).indptr)),
            squared.shape[1],
        )
        squares, squared = (
            squares[:, sensitive_blocks],
            squared[:, sensitive_blocks],
        )
        has_cell, has_query = np.diff(squared.indptr) > 0, np.diff(squares.indptr) > 0
        for block, _, rows in parts_data:
            has_cell[block.orbits[np.any(block.steps, axis=0)]] = True
            has_query[block.rows[rows]] = True
        cells, queries = np.flatnonzero(has_cell), np.flatnonzero(has_query)
        numbers = np.cumsum(has_cell) - 1, np.cumsum(has_query) - 1 + len(cells)
        parts = tuple(_part(block, directions, rows, scale, numbers, fixed) for block, directions, rows in parts_data)
        squares = sp.csr_array(squares.multiply((scale**2)[:, None]))
        squares = sp.csr_array(squares.sum(axis=0)[None, :]) if fixed else squares[queries]
        diagonal = RankOneProgram(squares, squared[cells], fixed) if squares.shape[1] else None
        program = OrbitProgram(parts, diagonal, len(cells), 0 if fixed else len(queries), fixed)
        shape = len(has_cell), len(blocks.tables)
        return cls(program, cells, queries, shape, is_rank_one, sensitive_blocks, sensitive, rank_one)

    def covariance(self, parts: tuple[Array, tuple[Array, ...]]) -> BlockPoint:
        levels = self._all_levels(parts[0])
        solved_blocks = iter(parts[1])
        matrix_covariances = iter(
            [
                with_still(next(solved_blocks) if moves is None or moves.size else None, moves)
                for moves in self.sensitive
            ]
        )
        num_scalar = len(levels) - sum(self.is_rank_one)
        scalar_levels = iter(levels[num_scalar:])
        covariances = tuple(
            np.full((1, 1), next(scalar_levels)) if is_thin else next(matrix_covariances)
            for is_thin in self.is_rank_one
        )
        return BlockPoint(levels[:num_scalar], covariances)

    def _all_levels(self, levels: Array) -> Array:
        """Return levels of all blocks of rank one, tiny for the insensitive blocks."""
        floors = np.full(self.rank_one, UNMOVED_TOLERANCE * (levels.max() if len(levels) else 1.0))
        floors[self.sensitive_blocks] = levels
        return floors


def ascend_blocks(
    problem: FitnessForUse | TotalVariance, limits: loop.Limits, *, method: str = "auto", start: Solution | None = None
) -> Solution:
    """Ascend the dual of a problem on blocks, or solve it as query weighting if all blocks have one coordinate."""
    validate.choice(ascent.METHODS, method=method)
    ascend = partial(ascent.ascend, _reduced)
    blocks = problem.geometry
    several_cells = blocks.neighbours is not None and blocks.neighbours.several_cells
    if several_cells and method == "auto" and start is None and blocks.reach.shape[0] >= MIN_ORBITS_TO_RESTRICT:
        return retold(solve_binding(problem, ascend, limits), solver="fast:auto")
    equal_costs = not blocks.matrix_blocks and blocks.reach.shape[0] == 1 and blocks.reach.nnz == len(blocks.keys)
    if method != "fixed_point" and equal_costs and start is None and not problem.sums_variances:
        return retold(_by_query_weighting(problem, limits), solver=f"fast:{method}")
    return ascend(problem, limits, method=method, start=start)


def _reduced(problem: FitnessForUse | TotalVariance) -> ascent.ReducedProblem:
    fixed = problem.sums_variances
    scale = np.sqrt(problem.row_weights) if fixed else 1 / np.sqrt(problem.row_targets)
    return ascent.with_weights(problem, BlockReduction.of(problem.geometry, scale, fixed))


def _sensitive_rows(block: Block, directions: Array | None) -> Index:
    if directions is None:
        return np.arange(len(block.rows))
    lengths = np.linalg.norm(block.queries, axis=1)
    return np.flatnonzero(np.linalg.norm(block.queries @ directions, axis=1) > INSENSITIVE_TOL * lengths)


def _part(
    block: Block, directions: Array | None, row_indices: Index, scale: Array, numbers: tuple[Index, Index], fixed: bool
) -> Part:
    rows, steps = block.queries[row_indices] * scale[block.rows[row_indices], None], block.steps
    if directions is not None:
        rows, steps = rows @ directions, directions.T @ steps
    if fixed and len(rows) > rows.shape[1]:
        rows = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
    nonzero = np.flatnonzero(np.any(steps, axis=0))
    is_identity = block.steps is block.moves and len(steps) == steps.shape[1]
    program = DenseDual(rows, None if is_identity else np.ascontiguousarray(steps[:, nonzero]), fixed=fixed)
    groups = [numbers[0][block.orbits[nonzero]], *([] if fixed else [numbers[1][block.rows[row_indices]]])]
    all_groups = np.concatenate(groups)
    return Part(program, all_groups, np.ones(len(all_groups)))


def _rank_one(blocks: Blocks, is_rank_one: tuple[bool, ...]) -> tuple[sp.csr_array, sp.csr_array]:
    """Return the squared entries of all blocks of rank one, for orbits of queries and for orbits of cells."""
    blocks_of_rank_one = [block for block, is_thin in zip(blocks.matrix_blocks, is_rank_one, strict=True) if is_thin]
    squares = [
        blocks.scalar_blocks,
        *(_column(len(blocks.tables), block.rows, block.queries[:, 0]) for block in blocks_of_rank_one),
    ]
    squared = [
        blocks.reach,
        *(_column(blocks.reach.shape[0], block.orbits, block.steps[0]) for block in blocks_of_rank_one),
    ]
    return sp.csr_array(sp.hstack(squares, format="csr")), sp.csr_array(sp.hstack(squared, format="csr"))


def _column(size: int, rows: Index, entries: Array) -> sp.csr_array:
    nonzero = np.flatnonzero(entries)
    return sp.csr_array(
        (entries[nonzero] ** 2, (rows[nonzero], np.zeros(len(nonzero), dtype=np.intp))), shape=(size, 1)
    )


def _by_query_weighting(problem: FitnessForUse | TotalVariance, limits: loop.Limits) -> Solution:
    """Minimise ``Σ_t 1/τ_t`` subject to ``Σ_t v_jt² τ_t ≤ c_j`` as query weighting.

    For marginals, most subspaces belong to a single table, so the Newton equations reduce to the other subspaces: a few
    hundred for tens of thousands of tables.
    """
    start_time = time.perf_counter()
    blocks, targets = problem.geometry, problem.row_targets
    queries = np.flatnonzero(np.diff(blocks.scalar_blocks.indptr))
    costs = np.asarray(blocks.reach.sum(axis=0)).ravel()
    with np.errstate(all="ignore"):
        sensitivities = blocks.scalar_blocks[queries].multiply(1 / targets[queries, None]).T.tocsr()
        density = sensitivities.nnz / math.prod(sensitivities.shape)
        program = interior_point.WeightingProgram.of(
            costs, sensitivities.toarray() if density > 0.2 else sensitivities, 1
        )
        outcome = interior_point.minimise(program, limits, TOL_FACTOR)
    weights = np.zeros(len(targets))
    weights[queries] = outcome.best_dual.dual / targets[queries] / outcome.best_dual.dual.sum()
    primal, dual = problem.feasible(BlockPoint(outcome.best_primal.answer * program.units)), np.ones(1)
    seconds = time.perf_counter() - start_time
    return outcome.solution(problem, primal, FitnessDual(dual, weights), limits, seconds=seconds)
