"""From a problem to the bare arrays that the dual function needs, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import ascent, loop
from dualmech.fast.engine.dual_function import DenseDual
from dualmech.fast.engine.spectrum import SteppedQueries
from dualmech.fast.reductions.orbits import by_orbit, mirrored, tied
from dualmech.geometry.attribute_symmetry import with_positive_lead
from dualmech.geometry.dense import Dense
from dualmech.geometry.orbits import Orbits
from dualmech.linalg import to_dense
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution
from dualmech.validate import Array, Matrix
from dualmech.workloads.steps import Steps

# Cells and queries that are multiples of others: one of each kind is enough for the ascent.
#
# Cells in the same queries cost the same, and of queries that are multiples of one another only the one
# with the strictest target can bind. With one cell of each kind, a workload has full column rank more often, and stands
# on its cells.


Index = npt.NDArray[np.intp]

AS_LONG = 1 - 1e-12  # length, relative to the longest of a kind, from which a vector shares its weight
MOST_DEPENDENT = 1 / 16  # share of the kinds of cells that may depend on others where these are the basis
ROUNDING = 1e-12  # coefficient of one cell in another that counts as rounding
CHUNK = 2**22  # entries that are compared at a time


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """Which of n vectors are multiples of each other."""

    labels: Index  # (n,) the kind of each
    longest: Index  # (kinds,) one of the longest of each
    shares: Array  # (n,) of the weight of its kind that each of the longest gets; 0 for others

    @classmethod
    def of(cls, rows: Array, lengths: Array) -> Kinds:
        """Return the kinds of the rows of a matrix, none of them zero; `lengths` (n,) say which is the longest."""
        labels = _labels(rows)
        order = np.lexsort((-lengths, labels))
        longest = order[np.diff(labels[order], prepend=-1) > 0]
        equal = lengths >= AS_LONG * lengths[longest][labels]
        return cls(labels, longest, equal / np.bincount(labels[equal])[labels])

    @classmethod
    def distinct(cls, count: int) -> Kinds:
        return cls(np.arange(count), np.arange(count), np.ones(count))

    def spread(self, weights: Array) -> Array:
        return weights[self.labels] * self.shares

    def gather(self, weights: Array) -> Array:
        return np.asarray(np.bincount(self.labels, weights, len(self.longest)), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class WithoutCopies:
    """A reduction with one neighbour and one query of each kind."""

    whole: Any
    program: DenseDual
    neighbours: Kinds
    queries: Kinds
    lift: Array | None  # (k, k) takes a covariance on the kinds of cells to the problem's basis; None: as the whole's

    @property
    def shape(self) -> tuple[int, int]:
        return self.whole.shape

    def covariance(self, inner: Array) -> Array:
        return self.whole.covariance(inner) if self.lift is None else self.lift @ inner @ self.lift.T

    def spread(self, weights: Array) -> Array:
        count = len(self.neighbours.longest)
        queries = weights[count:]
        last = self.queries.spread(queries) if queries.size else queries
        return np.concatenate([self.neighbours.spread(weights[:count]), last])

    def gather(self, weights: Array) -> Array:
        count = len(self.neighbours.labels)
        queries = weights[count:]
        last = self.queries.gather(queries) if queries.size else queries
        return np.concatenate([self.neighbours.gather(weights[:count]), last])


def without_copies(reduced: ascent.ReducedProblem, geometry: Dense) -> ascent.ReducedProblem:
    """Return the problem with one neighbour and one query of each kind, on its own cells where most are independent."""
    whole, program = reduced.reduction, reduced.reduction.program
    if geometry.workload.is_without_copies and program.moves is None:
        return reduced
    written = np.asarray(geometry.workload.dense()[whole.queries])
    queries = Kinds.distinct(len(whole.queries))
    if not program.fixed:
        queries = Kinds.of(written, np.linalg.norm(np.asarray(program.queries), axis=1))
    if geometry.neighbours is not None:
        if len(queries.longest) == len(whole.queries):
            return reduced
        program = DenseDual(_chosen(program.queries, queries.longest), program.moves, program.fixed)
        return tied(reduced, WithoutCopies(whole, program, Kinds.distinct(len(whole.neighbours)), queries, None))
    columns = np.ascontiguousarray(written[:, whole.neighbours].T)
    neighbours = Kinds.of(columns, np.linalg.norm(columns, axis=1))
    all_kept = len(queries.longest) + len(neighbours.longest) == len(written) + len(columns)
    if all_kept and program.moves is None:
        return reduced
    cells = _on_cells(geometry.basis[:, whole.neighbours[neighbours.longest]])
    if cells is None and all_kept:
        return reduced
    if cells is None:
        moves = None if program.moves is None else program.moves[:, neighbours.longest]
        rows = program.queries if program.fixed else _chosen(program.queries, queries.longest)
        return tied(reduced, WithoutCopies(whole, DenseDual(rows, moves, program.fixed), neighbours, queries, None))
    independent, within = cells
    lift = _onto_basis(geometry.basis[:, whole.neighbours], columns, neighbours, within)
    if program.fixed:
        # The triangle in place of the queries, seen from the cells.
        rows = np.asarray(program.queries) @ _written(program)[:, neighbours.longest[independent]]
    else:
        targets = reduced.problem.targets[whole.queries][queries.longest]
        rows = np.ascontiguousarray(columns[neighbours.longest[independent]][:, queries.longest].T)
        factors = 1 / np.sqrt(targets)
        rows = SteppedQueries.of(Steps.of(rows), factors) or rows * factors[:, None]
    moves = None if len(independent) == len(neighbours.longest) else within
    program = DenseDual(rows, moves, program.fixed, identity_columns=None if moves is None else independent)
    return tied(reduced, WithoutCopies(whole, program, neighbours, queries, lift))


def _chosen(queries: Array | SteppedQueries, index: Index) -> Array | SteppedQueries:
    return queries.chosen(index) if isinstance(queries, SteppedQueries) else queries[index]


def _written(program: DenseDual) -> Array:
    return np.eye(program.sizes[2]) if program.moves is None else to_dense(program.moves)


def _on_cells(basis: Array) -> tuple[Index, sp.csc_array] | None:
    """Return which cells are independent, and all cells as their combinations; None where many are not.

    The dependent cells are chosen where the null space of the basis (k, n) is largest, so that their coefficients
    are no larger than need be.
    """
    rank, count = basis.shape
    if not 0 <= count - rank <= MOST_DEPENDENT * count:
        return None
    independent, within = np.arange(count), np.eye(count)
    if rank < count:
        null = scipy.linalg.qr(basis.T, check_finite=False)[0][:, rank:].T
        order = scipy.linalg.qr(null, mode="r", pivoting=True, check_finite=False)[1]
        independent, others = np.sort(order[count - rank :]), order[: count - rank]
        parts = -np.linalg.solve(null[:, others], null[:, independent]).T
        within = np.zeros((rank, count))
        within[:, independent] = np.eye(rank)
        within[:, others] = np.where(np.abs(parts) > ROUNDING, parts, 0.0)
    return independent, sp.csc_array(within)


def _onto_basis(basis: Array, columns: Array, kinds: Kinds, within: sp.csc_array) -> Array:
    """Return T with ``B = T E``, where E gives all cells in terms of the independent ones."""
    longest = columns[kinds.longest][kinds.labels]
    parts = np.einsum("ij,ij->i", columns, longest) / np.einsum("ij,ij->i", longest, longest)
    cells = within.toarray()[:, kinds.labels] * parts
    return np.asarray(scipy.linalg.solve(cells @ cells.T, cells @ basis.T, assume_a="pos").T)


def _labels(rows: Array) -> Index:
    """Return the same number for rows that are multiples of each other, and only for these."""
    keys = np.empty(len(rows), dtype=np.uint64)
    factors = np.random.default_rng(0).integers(0, 2**64, rows.shape[1], dtype=np.uint64) | np.uint64(1)
    step = max(1, CHUNK // rows.shape[1])
    for start in range(0, len(rows), step):
        keys[start : start + step] = (_directions(rows[start : start + step]).view(np.uint64) * factors).sum(axis=1)
    _, firsts, sorted_labels = np.unique(keys, return_index=True, return_inverse=True)
    # Numbered as they first come.
    labels = np.argsort(np.argsort(firsts))[sorted_labels.ravel()]
    firsts = np.sort(firsts)
    for start in range(0, len(rows), step):
        chosen = slice(start, start + step)
        if not np.array_equal(_directions(rows[chosen]), _directions(rows[firsts[labels[chosen]]])):
            return np.arange(len(rows))  # two rows that differ share a key
    return labels


def _directions(rows: Array) -> Array:
    return with_positive_lead(rows / np.abs(rows).max(axis=1, keepdims=True))


ORTHONORMAL = 1e-13  # largest entry of ``B B' - I`` for rows that are used as they are
UNMOVED = 1e-13  # largest part of a basis row in the moved directions, relative to the row, that is rounding


@dataclass(frozen=True, slots=True, eq=False)
class Reduction(ascent.Reduced):
    """A problem without neighbours and queries that constrain nothing, on a well-conditioned basis."""

    # (k, r) takes a covariance of the program to the problem's basis, ``lift M lift'``; None is the identity
    lift: Array | None

    @classmethod
    def of(cls, geometry: Dense, targets: Array, fixed: bool = False) -> Reduction:
        """Reduce: orthonormalise the basis, leave out directions that no neighbour moves, divide by √targets.

        Where the weights of the queries are fixed, ``V' V`` is all that matters of the queries V (m, k), so that their
        triangular factor (k, k) stands for them.
        """
        if extra := geometry.redundant_rows:
            raise InvalidInputError(
                f"basis has {extra} rows more than the rank of the workload, on which no least cost is reached: leave "
                f"it out, which has the same optimum"
            )
        rows, moves, lift = _on_inner_basis(geometry)
        count = len(geometry.workload)
        kept_queries = np.setdiff1d(np.arange(count), geometry.free_queries)
        kept_moves = np.flatnonzero(linalg.to_dense(abs(moves).max(axis=0)))
        factors = 1 / np.sqrt(targets[kept_queries])
        queries: Array | SteppedQueries | None = None
        if rows is None and geometry.steps is not None:
            queries = SteppedQueries.of(geometry.steps.chosen(kept_queries), factors)
        if queries is None:
            queries = (geometry.representation if rows is None else rows)[kept_queries] * factors[:, None]
        if fixed:
            queries = _triangle(queries)
        program = DenseDual(queries, None if linalg.is_identity(moves) else moves[:, kept_moves], fixed)
        return cls(program, kept_moves, kept_queries, (moves.shape[1], count), lift)

    def covariance(self, inner: Array) -> Array:
        return inner if self.lift is None else self.lift @ inner @ self.lift.T


def _triangle(queries: Array | SteppedQueries) -> Array:
    if isinstance(queries, SteppedQueries):
        gram = queries.gram(np.ones(len(queries.factors)))
        triangle = linalg.cholesky(gram) if linalg.are_clearly_independent(gram) else None
        if triangle is not None:
            return triangle
    return linalg.triangle(np.asarray(queries))


def ascend_dense(
    problem: FitnessForUse | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
    orbits: Any = None,
) -> Solution:
    """Ascend the dual of a problem on a dense geometry; `orbits` ties its weights."""

    def reduce(problem: FitnessForUse | TotalVariance) -> ascent.ReducedProblem:
        whole = reduced(problem)
        if orbits is not None:
            return by_orbit(whole, Orbits.of(problem, orbits))
        return mirrored(without_copies(whole, problem.geometry))

    return ascent.ascend(reduce, problem, limits, method=method, start=start)


def reduced(problem: FitnessForUse | TotalVariance) -> ascent.ReducedProblem:
    return ascent.with_weights(problem, Reduction.of(problem.geometry, problem.row_targets, problem.sums_variances))


def _on_inner_basis(geometry: Dense) -> tuple[Array | None, Matrix, Array | None]:
    """Return the queries, None for the workload's, and moves on a basis that suits the solver, and the way back."""
    if linalg.is_identity(geometry.basis) and not len(geometry.unmoved):
        return None, geometry.moves, None
    queries, moves = geometry.representation, geometry.moves
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
