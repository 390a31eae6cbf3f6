"""Reduction of a problem on a dense geometry to the arrays of the dual function."""

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
from dualmech.fast.reductions.orbits import by_orbit, mirrored, with_reduction
from dualmech.geometry.attribute_symmetry import with_positive_lead
from dualmech.geometry.dense import Dense
from dualmech.geometry.orbits import Orbits
from dualmech.linalg import to_dense
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution
from dualmech.validate import Array, Matrix
from dualmech.workloads.steps import Steps

# Equivalence classes of cells and queries: one representative of each class is enough for the ascent.
#
# Vectors are equivalent if they are multiples of each other. Equal columns of the workload have equal costs, and among
# proportional queries only the one with the strictest target can bind. With one cell of each class, a workload more
# often has full column rank, and the cell basis can be used.


Index = npt.NDArray[np.intp]

MIN_RELATIVE_LENGTH = 1 - 1e-12  # shorter vectors, relative to the longest of their class, have weight 0
MAX_DEPENDENT_FRACTION = 1 / 16  # maximum fraction of dependent classes of cells in a cell basis
COEFFICIENT_TOL = 1e-12  # coefficients of one cell in another below this are rounding errors
CHUNK_ENTRIES = 2**22  # entries compared at a time


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Equivalence classes of n vectors that are multiples of each other."""

    labels: Index  # (n,) class of each vector
    representatives: Index  # (classes,) index of a longest vector of each class
    shares: Array  # (n,) fraction of the weight of its class, equal for the longest vectors and 0 for the others

    @classmethod
    def of(cls, rows: Array, lengths: Array) -> Classes:
        """Return the classes of the non-zero rows of a matrix; `lengths` (n,) determine the longest."""
        labels = _labels(rows)
        order = np.lexsort((-lengths, labels))
        representatives = order[np.diff(labels[order], prepend=-1) > 0]
        equal = lengths >= MIN_RELATIVE_LENGTH * lengths[representatives][labels]
        return cls(labels, representatives, equal / np.bincount(labels[equal])[labels])

    @classmethod
    def distinct(cls, count: int) -> Classes:
        return cls(np.arange(count), np.arange(count), np.ones(count))

    def spread(self, weights: Array) -> Array:
        return weights[self.labels] * self.shares

    def gather(self, weights: Array) -> Array:
        return np.asarray(np.bincount(self.labels, weights, len(self.representatives)), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class ClassReduction:
    """A reduction to one neighbour and one query of each class."""

    base: Any
    program: DenseDual
    neighbours: Classes
    queries: Classes
    lift: Array | None  # (k, k) maps a covariance in the cell basis to the problem's basis; None: the map of `full`

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape

    def covariance(self, inner: Array) -> Array:
        return self.base.covariance(inner) if self.lift is None else self.lift @ inner @ self.lift.T

    def spread(self, weights: Array) -> Array:
        count = len(self.neighbours.representatives)
        queries = weights[count:]
        query_weights = self.queries.spread(queries) if queries.size else queries
        return np.concatenate([self.neighbours.spread(weights[:count]), query_weights])

    def gather(self, weights: Array) -> Array:
        count = len(self.neighbours.labels)
        queries = weights[count:]
        query_weights = self.queries.gather(queries) if queries.size else queries
        return np.concatenate([self.neighbours.gather(weights[:count]), query_weights])


def without_copies(reduced: ascent.ReducedProblem, geometry: Dense) -> ascent.ReducedProblem:
    """Reduce to one neighbour and one query of each class, in the cell basis if most cells are independent."""
    base, program = reduced.reduction, reduced.reduction.program
    if geometry.workload.is_without_copies and program.moves is None:
        return reduced
    queries_kept = np.asarray(geometry.workload.dense()[base.queries])
    queries = Classes.distinct(len(base.queries))
    if not program.fixed:
        queries = Classes.of(queries_kept, np.linalg.norm(np.asarray(program.queries), axis=1))
    if geometry.neighbours is not None:
        if len(queries.representatives) == len(base.queries):
            return reduced
        program = DenseDual(_select(program.queries, queries.representatives), program.moves, program.fixed)
        return with_reduction(
            reduced, ClassReduction(base, program, Classes.distinct(len(base.neighbours)), queries, None)
        )
    columns = np.ascontiguousarray(queries_kept[:, base.neighbours].T)
    neighbours = Classes.of(columns, np.linalg.norm(columns, axis=1))
    is_complete = len(queries.representatives) + len(neighbours.representatives) == len(queries_kept) + len(columns)
    if is_complete and program.moves is None:
        return reduced
    cells = _on_cells(geometry.basis[:, base.neighbours[neighbours.representatives]])
    if cells is None and is_complete:
        return reduced
    if cells is None:
        moves = None if program.moves is None else program.moves[:, neighbours.representatives]
        rows = program.queries if program.fixed else _select(program.queries, queries.representatives)
        return with_reduction(
            reduced, ClassReduction(base, DenseDual(rows, moves, program.fixed), neighbours, queries, None)
        )
    independent, combinations = cells
    lift = _onto_basis(geometry.basis[:, base.neighbours], columns, neighbours, combinations)
    if program.fixed:
        # The triangular factor that replaces the queries, in the cell basis.
        rows = np.asarray(program.queries) @ _dense_moves(program)[:, neighbours.representatives[independent]]
    else:
        targets = reduced.problem.targets[base.queries][queries.representatives]
        rows = np.ascontiguousarray(columns[neighbours.representatives[independent]][:, queries.representatives].T)
        factors = 1 / np.sqrt(targets)
        rows = SteppedQueries.of(Steps.of(rows), factors) or rows * factors[:, None]
    moves = None if len(independent) == len(neighbours.representatives) else combinations
    program = DenseDual(rows, moves, program.fixed, identity_columns=None if moves is None else independent)
    return with_reduction(reduced, ClassReduction(base, program, neighbours, queries, lift))


def _select(queries: Array | SteppedQueries, index: Index) -> Array | SteppedQueries:
    return queries.chosen(index) if isinstance(queries, SteppedQueries) else queries[index]


def _dense_moves(program: DenseDual) -> Array:
    return np.eye(program.sizes[2]) if program.moves is None else to_dense(program.moves)


def _on_cells(basis: Array) -> tuple[Index, sp.csc_array] | None:
    """Return the independent cells, and all cells as their combinations; None if many are dependent.

    The dependent cells are chosen by pivoting in the null space of the basis (k, n), which keeps coefficients small.
    """
    rank, count = basis.shape
    if not 0 <= count - rank <= MAX_DEPENDENT_FRACTION * count:
        return None
    independent, combinations = np.arange(count), np.eye(count)
    if rank < count:
        null_space = scipy.linalg.qr(basis.T, check_finite=False)[0][:, rank:].T
        order = scipy.linalg.qr(null_space, mode="r", pivoting=True, check_finite=False)[1]
        independent, dependent = np.sort(order[count - rank :]), order[: count - rank]
        coefficients = -np.linalg.solve(null_space[:, dependent], null_space[:, independent]).T
        combinations = np.zeros((rank, count))
        combinations[:, independent] = np.eye(rank)
        combinations[:, dependent] = np.where(np.abs(coefficients) > COEFFICIENT_TOL, coefficients, 0.0)
    return independent, sp.csc_array(combinations)


def _onto_basis(basis: Array, columns: Array, classes: Classes, combinations: sp.csc_array) -> Array:
    """Return T with ``B = T E``, where E expresses all cells by the independent cells."""
    representatives = columns[classes.representatives][classes.labels]
    ratios = np.einsum("ij,ij->i", columns, representatives) / np.einsum("ij,ij->i", representatives, representatives)
    cells = combinations.toarray()[:, classes.labels] * ratios
    return np.asarray(scipy.linalg.solve(cells @ cells.T, cells @ basis.T, assume_a="pos").T)


def _labels(rows: Array) -> Index:
    """Return labels that are equal exactly for rows that are multiples of each other."""
    keys = np.empty(len(rows), dtype=np.uint64)
    factors = np.random.default_rng(0).integers(0, 2**64, rows.shape[1], dtype=np.uint64) | np.uint64(1)
    step = max(1, CHUNK_ENTRIES // rows.shape[1])
    for start in range(0, len(rows), step):
        keys[start : start + step] = (_normalised(rows[start : start + step]).view(np.uint64) * factors).sum(axis=1)
    _, first_rows, sorted_labels = np.unique(keys, return_index=True, return_inverse=True)
    # Labels in the order of first occurrence.
    labels = np.argsort(np.argsort(first_rows))[sorted_labels.ravel()]
    first_rows = np.sort(first_rows)
    for start in range(0, len(rows), step):
        rows_now = slice(start, start + step)
        if not np.array_equal(_normalised(rows[rows_now]), _normalised(rows[first_rows[labels[rows_now]]])):
            return np.arange(len(rows))  # a hash collision
    return labels


def _normalised(rows: Array) -> Array:
    return with_positive_lead(rows / np.abs(rows).max(axis=1, keepdims=True))


ORTHONORMAL_TOL = 1e-13  # maximum entry of ``B B' - I`` for rows that need no orthonormalisation
INSENSITIVE_TOL = 1e-13  # relative norm of a basis row in the sensitive directions that is a rounding error


@dataclass(frozen=True, slots=True, eq=False)
class Reduction(ascent.Reduced):
    """A problem without neighbours and queries that impose no constraint, in a well-conditioned basis."""

    # (k, r) maps a covariance M of the program to the problem's basis, ``lift M lift'``; None is the identity
    lift: Array | None

    @classmethod
    def of(cls, geometry: Dense, targets: Array, fixed: bool = False) -> Reduction:
        """Reduce: orthonormalise the basis, drop insensitive directions, and divide queries by √targets.

        If the weights of the queries are fixed, the dual depends on the queries V (m, k) only through ``V' V``, so they
        are replaced by their triangular factor (k, k).
        """
        if extra := geometry.redundant_rows:
            raise InvalidInputError(
                f"basis has {extra} rows more than the rank of the workload, so no optimum exists: omit it for the "
                "same optimal cost"
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
    """Ascend the dual of a problem on a dense geometry, with equal weights on `orbits`."""

    def reduce(problem: FitnessForUse | TotalVariance) -> ascent.ReducedProblem:
        reduced_problem = reduced(problem)
        if orbits is not None:
            return by_orbit(reduced_problem, Orbits.of(problem, orbits))
        return mirrored(without_copies(reduced_problem, problem.geometry))

    return ascent.ascend(reduce, problem, limits, method=method, start=start)


def reduced(problem: FitnessForUse | TotalVariance) -> ascent.ReducedProblem:
    return ascent.with_weights(problem, Reduction.of(problem.geometry, problem.row_targets, problem.sums_variances))


def _on_inner_basis(geometry: Dense) -> tuple[Array | None, Matrix, Array | None]:
    """Return queries (None for the workload), differences in a well-conditioned basis, and the map to the problem."""
    if linalg.is_identity(geometry.basis) and not len(geometry.unmoved):
        return None, geometry.moves, None
    queries, moves = geometry.representation, geometry.moves
    if geometry.workload.is_sparse and not len(geometry.unmoved):
        return _on_workload_rows(geometry)
    lift = _orthonormaliser(geometry.basis)
    if lift is not None:
        queries = queries @ lift
        moves = scipy.linalg.solve_triangular(lift, moves, lower=True, check_finite=False)
    if len(geometry.unmoved):
        directions = linalg.svd(moves)[0]
        sensitive = directions[:, : geometry.rank - len(geometry.unmoved)]
        queries, moves, lift = queries @ sensitive, sensitive.T @ moves, _on_range(lift, sensitive)
    return queries, np.ascontiguousarray(moves), lift


def _on_range(lift: Array | None, sensitive: Array) -> Array:
    """Return ``lift @ sensitive``, with exact zeros for insensitive basis rows, which get no noise."""
    full_lift = np.eye(len(sensitive)) if lift is None else lift
    product = full_lift @ sensitive
    insensitive = np.linalg.norm(product, axis=1) <= INSENSITIVE_TOL * np.linalg.norm(full_lift, axis=1)
    product[insensitive] = 0.0
    return np.asarray(product)


def _on_workload_rows(geometry: Dense) -> tuple[Array, Matrix, Array]:
    """Return a sparse workload in a basis of well-conditioned workload rows, which keeps differences sparse.

    Rows are selected by a pivoted factorisation of L, after scaling to unit norm.
    """
    representation, size = geometry.representation, geometry.rank
    norms = np.linalg.norm(representation, axis=1)
    directions = representation / np.where(norms > 0, norms, 1.0)[:, None]
    order = scipy.linalg.qr(directions.T, mode="r", pivoting=True, check_finite=False)[1]
    selected = np.sort(order[:size])
    factor = scipy.linalg.lu_factor(directions[selected], check_finite=False)
    lift = scipy.linalg.lu_solve(factor, np.eye(size), check_finite=False)
    rows = sp.csr_array(geometry.workload.matrix)[selected].multiply(1 / norms[selected, None])
    moves = rows if geometry.neighbours is None else rows @ geometry.neighbours
    return representation @ lift, sp.csc_array(moves), lift


def _orthonormaliser(basis: Array) -> Array | None:
    """Return the lower triangle T with ``B = T Q`` for orthonormal rows Q, or None if B is orthonormal."""
    gram = basis @ basis.T
    if np.abs(gram - np.eye(len(gram))).max() <= ORTHONORMAL_TOL:
        return None
    triangle = scipy.linalg.qr(basis.T, mode="r", check_finite=False)[0][: len(basis)]
    return np.ascontiguousarray(triangle.T)
