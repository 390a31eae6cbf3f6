"""Unions of product tables: the ascent of the dual function on blocks, with a weight for every orbit.

Where every block has one coordinate and all records cost the same, as with marginals and on a circle, the problem is
query weighting, and its interior-point method solves it.
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

# Pairs of cells have many kinds, of which few bind: the ascent runs on those alone, and others join as needed.
#
# Weights on some neighbours prove a bound for all, with 0 for the others; noise is judged under all. Where a neighbour
# that was left out turns out to cost the most, only a round is lost.


MANY = 512  # kinds of neighbours from which on most of them are first left out
TRIAL_STEPS = 30  # steps of the fixed point on all neighbours, which say which of them may bind
NEAR, WEIGHTY = (
    1e-3,
    1e-2,
)  # cost below the largest, and weight of the largest, relative, that a neighbour begins with
MOST_ROUNDS = 20


def solve_binding(
    problem: FitnessForUse | TotalVariance, ascend: Callable[..., Solution], limits: loop.Limits
) -> Solution:
    began, geometry = time.perf_counter(), problem.geometry
    trial = replace(limits, max_iterations=min(TRIAL_STEPS, limits.max_iterations))
    answer = ascend(problem, trial, method="fixed_point")
    if answer.status is Status.CERTIFIED:
        return answer
    forms, weights = geometry.forms(answer.primal), answer.dual.neighbour_weights
    if forms is None:
        return ascend(problem, limits, method="auto")
    kept = (forms.profile >= (1 - NEAR) * forms.cost) | (weights >= WEIGHTY * weights.max())
    history = list(answer.history)
    for _ in range(MOST_ROUNDS):
        steps = history[-1].iteration
        left = remaining_limits(limits, answer)
        if left is None:
            break
        numbers, binding = getattr(problem, problem.numbers), geometry.restricted(np.flatnonzero(kept))
        fewer = type(problem)(problem.workload, numbers, geometry=binding)
        outcome = ascend(fewer, replace(left, tol=limits.tol / 2), method="auto")
        history += [replace(news, iteration=news.iteration + steps) for news in outcome.history]
        answer = _for_all(problem, outcome, kept, limits, history, time.perf_counter() - began)
        if answer.status is Status.CERTIFIED or outcome.status is not Status.CERTIFIED:
            break
        forms = geometry.forms(answer.primal)
        if forms is None:
            break
        joining = ~kept & (forms.profile > (1 + limits.tol / 4) * forms.profile[kept].max())
        if not joining.any():
            break
        kept |= joining
    return answer


def _for_all(
    problem: FitnessForUse | TotalVariance,
    solution: Solution,
    kept: npt.NDArray[np.bool_],
    limits: loop.Limits,
    history: Sequence[Progress],
    seconds: float,
) -> Solution:
    weights = np.zeros(len(kept))
    weights[kept] = solution.dual.neighbour_weights
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

UNMOVED = 1e-12  # largest part of a row in the moved directions, relative to the row, that is rounding

MARGIN = 0.1
"""Share of the tolerance that the interior-point method aims at; the rest is for the judge's own rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockReduction(ascent.Reduced):
    """A problem on blocks without the orbits that constrain nothing."""

    # which of the blocks of several coordinates have rank one, and joined the blocks of one coordinate
    thin: tuple[bool, ...]
    live: Index  # which of all blocks of rank one some neighbour moves; the others have next to no noise
    moved: tuple[Array | None, ...]  # of each other block, the directions that some neighbour moves; None: all
    rank_one: int  # number of all blocks of rank one

    @classmethod
    def of(cls, blocks: Blocks, scale: Array, fixed: bool = False) -> BlockReduction:
        """Reduce; `scale` (orbits,) multiplies the rows, and where `fixed` their weights are in it."""
        thin = tuple(len(block.moves) == 1 for block in blocks.matrix_blocks)
        others = [block for block, single in zip(blocks.matrix_blocks, thin, strict=True) if not single]
        moved = tuple(block.moved() for block in others)
        wide = [
            (block, moves, _moved_rows(block, moves))
            for block, moves in zip(others, moved, strict=True)
            if moves is None or moves.size
        ]
        squares, reach = _rank_one(blocks, thin)
        live, rank_one = np.flatnonzero(np.diff(sp.csc_array(reach).indptr)), reach.shape[1]
        squares, reach = squares[:, live], reach[:, live]
        touched, needed = np.diff(reach.indptr) > 0, np.diff(squares.indptr) > 0
        for block, _, seen in wide:
            touched[block.orbits[np.any(block.steps, axis=0)]] = True
            needed[block.rows[seen]] = True
        cells, queries = np.flatnonzero(touched), np.flatnonzero(needed)
        numbers = np.cumsum(touched) - 1, np.cumsum(needed) - 1 + len(cells)
        parts = tuple(_part(block, moves, seen, scale, numbers, fixed) for block, moves, seen in wide)
        squares = sp.csr_array(squares.multiply((scale**2)[:, None]))
        squares = sp.csr_array(squares.sum(axis=0)[None, :]) if fixed else squares[queries]
        diagonal = RankOneProgram(squares, reach[cells], fixed) if squares.shape[1] else None
        program = OrbitProgram(parts, diagonal, len(cells), 0 if fixed else len(queries), fixed)
        shape = len(touched), len(blocks.tables)
        return cls(program, cells, queries, shape, thin, live, moved, rank_one)

    def covariance(self, parts: tuple[Array, tuple[Array, ...]]) -> BlockPoint:
        levels = self._all_levels(parts[0])
        solved = iter(parts[1])
        wide = iter([with_still(next(solved) if moves is None or moves.size else None, moves) for moves in self.moved])
        single = len(levels) - sum(self.thin)
        narrow = iter(levels[single:])
        covariances = tuple(np.full((1, 1), next(narrow)) if is_thin else next(wide) for is_thin in self.thin)
        return BlockPoint(levels[:single], covariances)

    def _all_levels(self, levels: Array) -> Array:
        """Return levels of all blocks of rank one, next to none where no neighbour moves anything."""
        floors = np.full(self.rank_one, UNMOVED_TOLERANCE * (levels.max() if len(levels) else 1.0))
        floors[self.live] = levels
        return floors


def ascend_blocks(
    problem: FitnessForUse | TotalVariance, limits: loop.Limits, *, method: str = "auto", start: Solution | None = None
) -> Solution:
    """Ascend the dual of a problem on blocks; where all have one coordinate, weigh them as queries."""
    validate.choice(ascent.METHODS, method=method)
    ascend = partial(ascent.ascend, _reduced)
    blocks = problem.geometry
    several = blocks.neighbours is not None and blocks.neighbours.several_cells
    if several and method == "auto" and start is None and blocks.reach.shape[0] >= MANY:
        return retold(solve_binding(problem, ascend, limits), solver="fast:auto")
    alike = not blocks.matrix_blocks and blocks.reach.shape[0] == 1 and blocks.reach.nnz == len(blocks.keys)
    if method != "fixed_point" and alike and start is None and not problem.sums_variances:
        return retold(_by_query_weighting(problem, limits), solver=f"fast:{method}")
    return ascend(problem, limits, method=method, start=start)


def _reduced(problem: FitnessForUse | TotalVariance) -> ascent.ReducedProblem:
    fixed = problem.sums_variances
    scale = np.sqrt(problem.row_weights) if fixed else 1 / np.sqrt(problem.row_targets)
    return ascent.with_weights(problem, BlockReduction.of(problem.geometry, scale, fixed))


def _moved_rows(block: Block, moved: Array | None) -> Index:
    if moved is None:
        return np.arange(len(block.rows))
    lengths = np.linalg.norm(block.queries, axis=1)
    return np.flatnonzero(np.linalg.norm(block.queries @ moved, axis=1) > UNMOVED * lengths)


def _part(
    block: Block, moved: Array | None, seen: Index, scale: Array, numbers: tuple[Index, Index], fixed: bool
) -> Part:
    rows, steps = block.queries[seen] * scale[block.rows[seen], None], block.steps
    if moved is not None:
        rows, steps = rows @ moved, moved.T @ steps
    if fixed and len(rows) > rows.shape[1]:
        rows = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
    kept = np.flatnonzero(np.any(steps, axis=0))
    whole = block.steps is block.moves and len(steps) == steps.shape[1]
    program = DenseDual(rows, None if whole else np.ascontiguousarray(steps[:, kept]), fixed=fixed)
    groups = [numbers[0][block.orbits[kept]], *([] if fixed else [numbers[1][block.rows[seen]]])]
    joined = np.concatenate(groups)
    return Part(program, joined, np.ones(len(joined)))


def _rank_one(blocks: Blocks, thin: tuple[bool, ...]) -> tuple[sp.csr_array, sp.csr_array]:
    """Return the squared entries of all blocks of rank one, by orbits of queries and by orbits of cells."""
    single = [block for block, is_thin in zip(blocks.matrix_blocks, thin, strict=True) if is_thin]
    squares = [
        blocks.scalar_blocks,
        *(_column(len(blocks.tables), block.rows, block.queries[:, 0]) for block in single),
    ]
    reach = [blocks.reach, *(_column(blocks.reach.shape[0], block.orbits, block.steps[0]) for block in single)]
    return sp.csr_array(sp.hstack(squares, format="csr")), sp.csr_array(sp.hstack(reach, format="csr"))


def _column(size: int, rows: Index, entries: Array) -> sp.csr_array:
    seen = np.flatnonzero(entries)
    return sp.csr_array((entries[seen] ** 2, (rows[seen], np.zeros(len(seen), dtype=np.intp))), shape=(size, 1))


def _by_query_weighting(problem: FitnessForUse | TotalVariance, limits: loop.Limits) -> Solution:
    """Minimise ``Σ_t 1/τ_t`` subject to ``Σ_t v_jt² τ_t ≤ c_j``: query weighting, by its interior-point method.

    With marginal tables, most subspaces lie under one table each, so Newton's equations reduce to the others: a few
    hundred where the tables are tens of thousands.
    """
    began = time.perf_counter()
    blocks, targets = problem.geometry, problem.row_targets
    queries = np.flatnonzero(np.diff(blocks.scalar_blocks.indptr))
    costs = np.asarray(blocks.reach.sum(axis=0)).ravel()
    with np.errstate(all="ignore"):
        sensitivities = blocks.scalar_blocks[queries].multiply(1 / targets[queries, None]).T.tocsr()
        filled = sensitivities.nnz / math.prod(sensitivities.shape)
        program = interior_point.WeightingProgram.of(
            costs, sensitivities.toarray() if filled > 0.2 else sensitivities, 1
        )
        outcome = interior_point.minimise(program, limits, MARGIN)
    weights = np.zeros(len(targets))
    weights[queries] = outcome.best_dual.dual / targets[queries] / outcome.best_dual.dual.sum()
    primal, dual = problem.feasible(BlockPoint(outcome.best_primal.answer * program.units)), np.ones(1)
    seconds = time.perf_counter() - began
    return outcome.solution(problem, primal, FitnessDual(dual, weights), limits, seconds=seconds)
