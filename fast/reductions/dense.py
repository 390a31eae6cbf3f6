"""From a problem to the bare arrays that the dual function needs, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import ascent, loop
from dualmech.fast.engine.fidelity import FidelityProgram
from dualmech.fast.engine.rows import Steps
from dualmech.fast.reductions.copies import without_copies
from dualmech.fast.reductions.orbits import by_orbit
from dualmech.geometry.base import FitnessDual, VarianceDual
from dualmech.geometry.dense import Dense
from dualmech.geometry.orbits import Orbits
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution
from dualmech.validate import Array, Matrix

ORTHONORMAL = 1e-13  # largest entry of ``B B' - I`` for rows that are used as they are
UNMOVED = 1e-13  # largest part of a basis row in the moved directions, relative to the row, that is rounding


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """A problem without what constrains nothing, on a well-conditioned basis."""

    program: FidelityProgram  # queries over √targets and moves, in the coordinates of the inner basis
    # neighbours, queries: which neighbours and queries the program kept: the others move nothing, or are never moved
    neighbours: npt.NDArray[np.intp]
    queries: npt.NDArray[np.intp]
    # (k, r) takes a covariance of the program to the problem's basis, ``lift M lift'``; None is the identity
    lift: Array | None
    shape: tuple[int, int]  # (s, m) numbers of neighbours and queries of the problem

    @classmethod
    def of(cls, geometry: Dense, targets: Array) -> Reduction:
        """Reduce: orthonormalise the basis, leave out what no neighbour moves, divide by √targets."""
        if extra := geometry.redundant_rows:
            raise InvalidInputError(
                f"basis has {extra} rows more than the rank of the workload, on which no least cost is reached: leave "
                f"it out, which has the same optimum"
            )
        queries, moves, lift = _on_inner_basis(geometry)
        kept_queries = np.setdiff1d(np.arange(len(queries)), geometry.free_queries)
        kept_moves = np.flatnonzero(linalg.to_dense(abs(moves).max(axis=0)))
        scaled = queries[kept_queries] / np.sqrt(targets[kept_queries])[:, None]
        whole = linalg.is_identity(moves)
        program = FidelityProgram(scaled, None if whole else moves[:, kept_moves], steps=Steps.of(scaled))
        return cls(program, kept_moves, kept_queries, lift, (moves.shape[1], len(queries)))

    @classmethod
    def of_sum(cls, geometry: Dense, weights: Array) -> Reduction:
        """Reduce likewise where only the weighted sum of the variances counts: the queries become a triangle.

        ``V' V`` is all that matters of the queries V (m, k), so their triangular factor (k, k) stands for them.
        """
        apart = cls.of(geometry, 1 / weights)
        queries = apart.program.queries
        # Long rows first: a factorisation by reflections then keeps the short ones accurate.
        order = np.argsort(-np.linalg.norm(queries, axis=1), kind="stable")
        triangle = scipy.linalg.qr(queries[order], mode="r", check_finite=False)[0][: queries.shape[1]]
        return replace(apart, program=FidelityProgram(triangle, apart.program.moves, fixed=True))

    def covariance(self, inner: Array) -> Array:
        """Return the covariance on the problem's basis."""
        return inner if self.lift is None else self.lift @ inner @ self.lift.T

    def spread(self, weights: Array, targets: Array) -> tuple[Array, Array]:
        """Return (λ, μ) over all neighbours and queries, with ``Σ λ_i = 1`` and ``Σ μ_j c_j = 1``."""
        count, last = len(self.neighbours), np.zeros(self.shape[1])
        last[self.queries] = weights[count:] / weights[count:].sum() / targets[self.queries]
        return self.spread_neighbours(weights[:count]), last

    def spread_neighbours(self, weights: Array) -> Array:
        """Return λ over all neighbours, with ``Σ λ_i = 1``."""
        spread = np.zeros(self.shape[0])
        spread[self.neighbours] = weights / weights.sum()
        return spread

    def gather(self, dual: tuple[Array, Array], targets: Array) -> Array:
        """Return the program's weights from the problem's, the reverse of `spread`."""
        first, last = dual
        return np.concatenate([first[self.neighbours], (last * targets)[self.queries]])


def solve(
    problem: FitnessForUse | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
    orbits: Any = None,
) -> Solution:
    """Ascend the dual of a problem on a dense geometry; `orbits` ties its weights."""

    def task(asked: FitnessForUse | TotalVariance) -> ascent.Task:
        made = _variance_task(asked) if isinstance(asked, TotalVariance) else _fitness_task(asked)
        if orbits is not None:
            return by_orbit(made, Orbits.of(asked, orbits))
        return without_copies(made, asked.geometry)

    return ascent.solve(problem, task, limits, method=method, start=start)


def _fitness_task(problem: FitnessForUse) -> ascent.Task:
    reduction = Reduction.of(problem.geometry, problem.targets)

    def gather(known: Any) -> Array | None:
        if not isinstance(known, FitnessDual):
            return None
        sizes = np.size(known.neighbour_weights), np.size(known.query_weights)
        return reduction.gather((*known,), problem.targets) if sizes == reduction.shape else None

    return ascent.Task(
        problem, reduction, lambda weights: FitnessDual(*reduction.spread(weights, problem.targets)), gather
    )


def _variance_task(problem: TotalVariance) -> ascent.Task:
    reduction = Reduction.of_sum(problem.geometry, problem.asked_weights)

    def gather(known: Any) -> Array | None:
        if not isinstance(known, VarianceDual) or np.size(known.neighbour_weights) != reduction.shape[0]:
            return None
        return np.asarray(known.neighbour_weights[reduction.neighbours])

    return ascent.Task(
        problem, reduction, lambda weights: VarianceDual(reduction.spread_neighbours(weights)), gather
    )


def _on_inner_basis(geometry: Dense) -> tuple[Array, Matrix, Array | None]:
    """Return the queries and moves on a basis that suits the solver, and the way back."""
    queries, moves = geometry.representation, geometry.moves
    if linalg.is_identity(geometry.basis) and not len(geometry.unmoved):
        return queries, moves, None
    if geometry.workload.is_sparse and not len(geometry.unmoved):
        return _on_own_rows(geometry)
    lift = _orthonormaliser(geometry.basis)
    if lift is not None:
        queries = queries @ lift
        moves = scipy.linalg.solve_triangular(lift, moves, lower=True, check_finite=False)
    if len(geometry.unmoved):
        directions = linalg.svd(moves)[0]
        kept = directions[:, : geometry.rank - len(geometry.unmoved)]
        queries, moves, lift = queries @ kept, kept.T @ moves, _on_range(lift, kept)
    return queries, np.ascontiguousarray(moves), lift


def _on_range(lift: Array | None, kept: Array) -> Array:
    """Return ``lift @ kept``, without the rounding in basis rows that no neighbour moves: these lose all noise."""
    whole = np.eye(len(kept)) if lift is None else lift
    product = whole @ kept
    still = np.linalg.norm(product, axis=1) <= UNMOVED * np.linalg.norm(whole, axis=1)
    product[still] = 0.0
    return np.asarray(product)


def _on_own_rows(geometry: Dense) -> tuple[Array, Matrix, Array]:
    """Return a sparse workload on a well-conditioned choice of its own rows: its moves stay sparse.

    Rows are chosen by a pivoted factorisation of L, each brought to unit length first.
    """
    representation, size = geometry.representation, geometry.rank
    norms = np.linalg.norm(representation, axis=1)
    directions = representation / np.where(norms > 0, norms, 1.0)[:, None]
    order = scipy.linalg.qr(directions.T, mode="r", pivoting=True, check_finite=False)[1]
    chosen = np.sort(order[:size])
    factor = scipy.linalg.lu_factor(directions[chosen], check_finite=False)
    lift = scipy.linalg.lu_solve(factor, np.eye(size), check_finite=False)
    rows = sp.csr_array(geometry.workload.matrix)[chosen].multiply(1 / norms[chosen, None])
    moves = rows if geometry.neighbours is None else rows @ geometry.neighbours
    return representation @ lift, sp.csc_array(moves), lift


def _orthonormaliser(basis: Array) -> Array | None:
    """Return the lower triangle T with ``B = T Q`` for orthonormal rows Q, or None where B already is such."""
    gram = basis @ basis.T
    if np.abs(gram - np.eye(len(gram))).max() <= ORTHONORMAL:
        return None
    triangle = scipy.linalg.qr(basis.T, mode="r", check_finite=False)[0][: len(basis)]
    return np.ascontiguousarray(triangle.T)
