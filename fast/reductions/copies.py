"""Cells and queries that are multiples of others: one of each kind is enough for the ascent.

Cells in the same queries cost the same, and of queries that are multiples of one another only that of the strictest
target can bind. With one cell of each kind, a workload has full column rank more often, and stands on its cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech.fast.engine import ascent
from dualmech.fast.engine.fidelity import FidelityProgram
from dualmech.fast.engine.rows import Steps
from dualmech.geometry.attribute_symmetry import with_positive_lead
from dualmech.geometry.dense import Dense
from dualmech.linalg import to_dense
from dualmech.validate import Array, Matrix

Index = npt.NDArray[np.intp]

AS_LONG = 1 - 1e-12  # length, relative to the longest of a kind, of what shares its weight
MOST_DEPENDENT = 1 / 16  # of the kinds of cells may depend on others where these are the basis
ROUNDING = 1e-12  # coefficient of a cell in another that is rounding
CHUNK = 2**22  # entries that are looked at at a time


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
        """Return a kind for each."""
        return cls(np.arange(count), np.arange(count), np.ones(count))

    def spread(self, weights: Array) -> Array:
        """Return weights of all from those of the kinds."""
        return weights[self.labels] * self.shares

    def gather(self, weights: Array) -> Array:
        """Return the weights of the kinds from those of all."""
        return np.asarray(np.bincount(self.labels, weights, len(self.longest)), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class WithoutCopies:
    """A reduction with one neighbour and one query of each kind."""

    whole: Any
    program: FidelityProgram
    neighbours: Kinds
    queries: Kinds
    lift: (
        Array | None
    )  # (k, k) takes a covariance on the kinds of cells to the problem's basis; None: as the whole's

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of neighbours and queries of the problem."""
        return self.whole.shape

    def covariance(self, inner: Array) -> Array:
        """Return the covariance on the problem's basis."""
        return self.whole.covariance(inner) if self.lift is None else self.lift @ inner @ self.lift.T

    def spread(self, weights: Array) -> Array:
        """Return the weights of all that the whole reduction keeps."""
        count = len(self.neighbours.longest)
        queries = weights[count:]
        last = self.queries.spread(queries) if queries.size else queries
        return np.concatenate([self.neighbours.spread(weights[:count]), last])

    def gather(self, weights: Array) -> Array:
        """Return the weights of the kinds."""
        count = len(self.neighbours.labels)
        queries = weights[count:]
        last = self.queries.gather(queries) if queries.size else queries
        return np.concatenate([self.neighbours.gather(weights[:count]), last])


def without_copies(task: ascent.Task, geometry: Dense) -> ascent.Task:
    """Return the task with one neighbour and one query of each kind, on its own cells where most are independent."""
    whole, program = task.reduction, task.reduction.program
    written = np.asarray(geometry.workload.dense()[whole.queries])
    queries = Kinds.distinct(len(whole.queries))
    if not program.fixed:
        queries = Kinds.of(written, np.linalg.norm(program.queries, axis=1))
    if geometry.neighbours is not None:
        if len(queries.longest) == len(whole.queries):
            return task
        found = _program(program.queries[queries.longest], program.moves, program.fixed)
        return _tied(task, WithoutCopies(whole, found, Kinds.distinct(len(whole.neighbours)), queries, None))
    columns = np.ascontiguousarray(written[:, whole.neighbours].T)
    neighbours = Kinds.of(columns, np.linalg.norm(columns, axis=1))
    all_kept = len(queries.longest) + len(neighbours.longest) == len(written) + len(columns)
    if all_kept and program.moves is None:
        return task
    cells = _on_cells(geometry.basis[:, whole.neighbours[neighbours.longest]])
    if cells is None and all_kept:
        return task
    if cells is None:
        moves = None if program.moves is None else program.moves[:, neighbours.longest]
        rows = program.queries if program.fixed else program.queries[queries.longest]
        return _tied(
            task, WithoutCopies(whole, _program(rows, moves, program.fixed), neighbours, queries, None)
        )
    own, within = cells
    lift = _onto_basis(geometry.basis[:, whole.neighbours], columns, neighbours, within)
    if program.fixed:
        # The triangle in place of the queries, seen from the cells.
        rows = program.queries @ _written(program)[:, neighbours.longest[own]]
    else:
        targets = task.problem.targets[whole.queries][queries.longest]
        rows = columns[neighbours.longest[own]][:, queries.longest].T / np.sqrt(targets)[:, None]
    moves = None if len(own) == len(neighbours.longest) else within
    found = _program(np.ascontiguousarray(rows), moves, program.fixed, own)
    return _tied(task, WithoutCopies(whole, found, neighbours, queries, lift))


def _tied(task: ascent.Task, under: WithoutCopies) -> ascent.Task:
    """Return the task on what the reduction leaves."""

    def gather(known: Any) -> Array | None:
        weights = task.gather(known)
        return None if weights is None else under.gather(weights)

    return replace(
        task, reduction=under, dual=lambda weights: task.dual(under.spread(weights)), gather=gather
    )


def _program(rows: Array, moves: Matrix | None, fixed: bool, own: Index | None = None) -> FidelityProgram:
    steps = None if fixed else Steps.of(rows)
    return FidelityProgram(rows, moves, fixed, steps=steps, own=None if moves is None else own)


def _written(program: FidelityProgram) -> Array:
    return np.eye(program.sizes[2]) if program.moves is None else to_dense(program.moves)


def _on_cells(basis: Array) -> tuple[Index, sp.csc_array] | None:
    """Return which cells are independent, and all cells as their combinations; None where many are not.

    The cells that are not are chosen where the null space of the basis (k, n) is largest, so that their coefficients
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
    """Return T with ``B = T E``, E being what all cells are of the independent ones."""
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
        keys[start : start + step] = (_directions(rows[start : start + step]).view(np.uint64) * factors).sum(
            axis=1
        )
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
    """Return rows with a largest entry of 1 and a positive first one."""
    return with_positive_lead(rows / np.abs(rows).max(axis=1, keepdims=True))
