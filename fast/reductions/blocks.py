"""Unions of product tables: the ascent of the dual function on blocks, with a weight for every orbit.

Where every block has one coordinate and all records cost the same, as with marginals and on a circle, the problem is
that of query weighting, and its interior-point method solves it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import (
    ascent,
    interior_point,
    loop,
    threads,
)
from dualmech.fast.engine.diagonal import DiagonalProgram
from dualmech.fast.engine.fidelity import Program
from dualmech.fast.engine.orbits import OrbitProgram, Part
from dualmech.geometry.block_forms import UnionPoint
from dualmech.geometry.block_rows import Block
from dualmech.geometry.blocks import Blocks
from dualmech.problems.unions import UnionDual, UnionFitness, UnionVariance
from dualmech.solution import Callback, Solution, Status, judged, warned
from dualmech.validate import Array

Index = npt.NDArray[np.intp]

MARGIN = 0.1
"""Share of the tolerance that the interior-point method aims at; the rest is for the judge's own rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockReduction:
    """A problem on blocks without the orbits that constrain nothing.

    Attributes
    ----------
    program : OrbitProgram
        Rows over √targets.
    cells, queries : index arrays
        The orbits that the program kept.
    shape : (orbits of cells, orbits of queries)
        Of the problem.
    thin : tuple of bool
        Which of the blocks of several coordinates have rank one, and went with those of one coordinate.
    """

    program: OrbitProgram
    cells: Index
    queries: Index
    shape: tuple[int, int]
    thin: tuple[bool, ...]

    @classmethod
    def of(cls, blocks: Blocks, scale: Array, fixed: bool = False) -> BlockReduction:
        """Reduce; `scale` (orbits,) multiplies the rows, and where `fixed` their weights are in it."""
        touched = np.zeros(blocks.cells, dtype=bool)
        touched[blocks.columns] = True
        asked = np.diff(blocks.squares.indptr) > 0
        for block in blocks.several:
            touched[block.cells[np.any(block.moves, axis=0)]] = True
            asked[block.rows] = True
        cells, queries = np.flatnonzero(touched), np.flatnonzero(asked)
        numbers = np.cumsum(touched) - 1, np.cumsum(asked) - 1 + len(cells)
        thin = tuple(len(block.moves) == 1 for block in blocks.several)
        parts = tuple(
            _part(block, scale, numbers, fixed)
            for block, single in zip(blocks.several, thin, strict=True)
            if not single
        )
        squares, reach = _rank_one(blocks, thin)
        squares = sp.csr_array(squares.multiply((scale**2)[:, None]))
        squares = sp.csr_array(squares.sum(axis=0)[None, :]) if fixed else squares[queries]
        diagonal = DiagonalProgram(squares, reach[cells], fixed) if squares.shape[1] else None
        program = OrbitProgram(parts, diagonal, len(cells), 0 if fixed else len(queries), fixed)
        return cls(program, cells, queries, (blocks.cells, len(blocks.tables)), thin)

    def covariance(self, found: tuple[Array, tuple[Array, ...]]) -> UnionPoint:
        """Return the primal point."""
        levels, wide = found[0], iter(found[1])
        single = len(levels) - sum(self.thin)
        narrow = iter(levels[single:])
        covariances = tuple(np.full((1, 1), next(narrow)) if each else next(wide) for each in self.thin)
        return UnionPoint(levels[:single], covariances)

    def dual(self, weights: Array, targets: Array | None) -> UnionDual:
        """Return weights of all orbits, ``Σ λ_o = 1`` and ``Σ μ_j c_j = 1``."""
        count = len(self.cells)
        first = np.zeros(self.shape[0])
        first[self.cells] = weights[:count] / weights[:count].sum()
        if targets is None:
            return UnionDual(first)
        last = np.zeros(self.shape[1])
        last[self.queries] = weights[count:] / weights[count:].sum() / targets[self.queries]
        return UnionDual(first, last)


def solve(problem: UnionFitness, *, method: str = "auto", **limits: Any) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    validate.choice(ascent.METHODS, method=method)
    _no_orbits(limits)
    if (
        method == "auto"
        and not problem.blocks.several
        and problem.blocks.cells == 1
        and "start" not in limits
    ):
        return warned(_as_weighting(problem, **limits), stacklevel=4)
    return warned(ascent.solve(problem, _task, method=method, rank=_rank(problem), **limits), stacklevel=4)


def solve_variance(problem: UnionVariance, **options: Any) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    _no_orbits(options)
    return warned(ascent.solve(problem, _variance_task, rank=_rank(problem), **options), stacklevel=4)


def _no_orbits(options: dict[str, Any]) -> None:
    if "orbits" in options:
        raise InvalidInputError(
            "orbits are for FitnessForUse, PrivacyFirst and TotalVariance; unions find their own"
        )


def _task(problem: UnionFitness) -> ascent.Task:
    targets = problem.orbit_targets
    reduction = BlockReduction.of(problem.blocks, 1 / np.sqrt(targets))

    def gather(known: Any) -> Array | None:
        if not _fits(known, reduction) or known.query_weights is None:
            return None
        return np.concatenate(
            [known.cell_weights[reduction.cells], (known.query_weights * targets)[reduction.queries]]
        )

    return ascent.Task(problem, reduction, lambda weights: reduction.dual(weights, targets), gather)


def _variance_task(problem: UnionVariance) -> ascent.Task:
    reduction = BlockReduction.of(problem.blocks, np.sqrt(problem.orbit_weights), fixed=True)

    def gather(known: Any) -> Array | None:
        return known.cell_weights[reduction.cells] if _fits(known, reduction) else None

    return ascent.Task(problem, reduction, lambda weights: reduction.dual(weights, None), gather)


def _fits(known: Any, reduction: BlockReduction) -> bool:
    if not isinstance(known, UnionDual) or len(known.cell_weights) != reduction.shape[0]:
        return False
    return known.query_weights is None or len(known.query_weights) == reduction.shape[1]


def _part(block: Block, scale: Array, numbers: tuple[Index, Index], fixed: bool) -> Part:
    rows = block.queries * scale[block.rows, None]
    if fixed and len(rows) > rows.shape[1]:
        rows = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
    kept = np.flatnonzero(np.any(block.moves, axis=0))
    whole = len(block.moves) == block.moves.shape[1]
    program = Program(rows, None if whole else block.moves[:, kept], fixed=fixed)
    groups = [numbers[0][block.cells[kept]], *([] if fixed else [numbers[1][block.rows]])]
    joined = np.concatenate(groups)
    return Part(program, joined, np.ones(len(joined)))


def _rank_one(blocks: Blocks, thin: tuple[bool, ...]) -> tuple[sp.csr_array, sp.csr_array]:
    """Return the squared entries of all blocks of rank one, by orbits of queries and by orbits of cells."""
    single = [block for block, each in zip(blocks.several, thin, strict=True) if each]
    count = len(blocks.columns)
    ones = sp.csr_array((np.ones(count), (blocks.columns, np.arange(count))), shape=(blocks.cells, count))
    squares = [
        blocks.squares,
        *(_column(len(blocks.tables), each.rows, each.queries[:, 0]) for each in single),
    ]
    reach = [ones, *(_column(blocks.cells, each.cells, each.moves[0]) for each in single)]
    return sp.csr_array(sp.hstack(squares, format="csr")), sp.csr_array(sp.hstack(reach, format="csr"))


def _column(size: int, rows: Index, entries: Array) -> sp.csr_array:
    return sp.csr_array((entries**2, (rows, np.zeros(len(rows), dtype=np.intp))), shape=(size, 1))


def _rank(problem: UnionFitness | UnionVariance) -> int:
    """Return the size of the largest block, which decides how many threads are of use."""
    return max((len(block.moves) for block in problem.blocks.several), default=1)


def _as_weighting(
    problem: UnionFitness,
    *,
    tol: float = 1e-6,
    max_iterations: int = 1000,
    time_limit: float | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Minimise ``Σ_t 1/τ_t`` subject to ``Σ_t v_jt² τ_t ≤ c_j``."""
    checked = loop.Limits.checked(tol, max_iterations, time_limit, callback)
    began = time.perf_counter()
    blocks, targets = problem.blocks, problem.orbit_targets
    asked = np.flatnonzero(np.diff(blocks.squares.indptr))
    with threads.suited_to(len(asked)), np.errstate(all="ignore"):
        sensitivities = blocks.squares[asked].multiply(1 / targets[asked, None]).T.tocsr()
        filled = sensitivities.nnz / np.prod(sensitivities.shape)
        program = interior_point.Program.of(
            np.ones(len(blocks.columns)), sensitivities.toarray() if filled > 0.2 else sensitivities, 1
        )
        outcome = interior_point.minimise(program, checked, MARGIN * tol)
    weights = np.zeros(len(targets))
    weights[asked] = outcome.dual.dual / targets[asked] / outcome.dual.dual.sum()
    return judged(
        problem,
        problem.feasible(UnionPoint(outcome.primal.answer * program.units, ())),
        UnionDual(np.ones(1), weights),
        tol=checked.tol,
        otherwise=outcome.reason or Status.STALLED,
        iterations=outcome.iterations,
        seconds=time.perf_counter() - began,
        solver="fast:interior_point",
        history=outcome.history,
    )
