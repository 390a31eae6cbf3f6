"""One block of a union of tables, and the rows that tables have in each (see `dualmech.geometry.blocks`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import GeometryError, InvalidInputError
from dualmech.geometry.attribute_symmetry import MAX_BLOCK_ENTRIES, MAX_ORBITS, AttributeSymmetry, Key, Parts
from dualmech.geometry.base import Index, decompositions
from dualmech.validate import Array
from dualmech.workloads.unions import Queries, UnionWorkload

MAX_CHOICES = 2**20  # largest number of blocks, counted once for every table that they are part of

UNMOVED_TOLERANCE = 1e-10
"""Noise on directions that no neighbour moves, relative to the rest: it could be 0, and costs nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    key: Key  # where it lives
    rows: Index  # (m,) the orbit of queries of each row
    cells: Index  # (b,) the orbit of cells of each coordinate
    queries: Array  # (m, r) the rows, on the basis
    moves: Array  # (r, b) the basis: the identity where the rows span all coordinates, else orthonormal rows
    copies: float  # how many of it symmetry makes
    steps: Array  # (r, s) what neighbours move, on the basis; `moves` where a record is added or removed
    orbits: Index  # (s,) the orbit of neighbours of each step

    @classmethod
    def of(cls, key: Key, rows: Index, cells: Index, values: Array, copies: float) -> Block:
        """Find the basis of rows that are given by coordinates."""
        basis = linalg.row_basis(values)
        queries = values if linalg.is_identity(basis) else values @ basis.T
        return cls(key, rows, cells, queries, basis, copies, basis, cells)

    def moved(self) -> Array | None:
        """Return orthonormal directions (r, k) that some neighbour moves, None where these are all."""
        if self.steps is self.moves:
            return None
        directions, values, _ = linalg.svd(self.steps)
        rank = linalg.numerical_rank(values, self.steps.shape)
        return None if rank == len(self.moves) else directions[:, :rank]

    def covariance_from_basis(self, covariance: Array, basis: Array) -> Array:
        """Return a covariance on this block's basis, from that on another orthonormal basis of the same rows.

        Raises `InvalidInputError` or `InputTypeError` for a basis of other rows, a covariance of another shape.
        """
        if np.array_equal(basis, self.moves):
            return covariance
        shape = self.moves.shape
        rows, matrix = validate.numeric(2, basis=basis), validate.numeric(2, covariance=covariance)
        if rows.shape != shape or matrix.shape != (shape[0], shape[0]):
            raise InvalidInputError(
                f"basis and covariance must have shapes {shape} and {(shape[0], shape[0])}, "
                f"got {rows.shape} and {matrix.shape}"
            )
        turn = self.moves @ rows.T
        if not np.abs(turn @ rows - self.moves).max() <= linalg.SPAN_TOLERANCE:
            raise InvalidInputError("basis must be orthonormal and span what the block's queries span")
        return np.asarray(turn @ matrix @ turn.T)


def with_still(noise: Array | None, moved: Array | None) -> Array:
    """Return noise on all directions of a block from noise on the `moved` ones, with almost none on the others."""
    if moved is None:
        assert noise is not None
        return noise
    if noise is None:
        return UNMOVED_TOLERANCE * np.eye(len(moved))
    still = UNMOVED_TOLERANCE * float(np.trace(noise)) / len(noise)
    return moved @ noise @ moved.T + still * (np.eye(len(moved)) - moved @ moved.T)


class BlockRows:
    def __init__(self, symmetries: tuple[AttributeSymmetry, ...], wide: tuple[int, ...]) -> None:
        self.symmetries, self.wide = symmetries, wide
        self.rows: dict[Key, list[Index]] = {}
        self.values: dict[Key, list[Array]] = {}

    def add(self, axes: tuple[int, ...], parts: tuple[Parts, ...], orbits: Index) -> None:
        """Add what a table asks, block by block; rows of zeros are left out."""
        parts_by_axis = dict(zip(axes, parts, strict=True))
        terms: list[tuple[Key, Array]] = [((), np.ones((1, 1)))]
        # Attribute by attribute, so that a product is formed once for all blocks that begin alike.
        for axis in sorted({*axes, *self.wide}):
            factors: list[tuple[Key, Array]] = [((), np.ones((1, len(self.symmetries[axis].sizes))))]
            if axis in parts_by_axis:
                component_norms = parts_by_axis[axis].component_norms
                components = (int(component) for component in np.flatnonzero(np.any(component_norms, axis=0)))
                factors = [
                    ((), parts_by_axis[axis].means),
                    *((((axis, component),), component_norms[:, [component]]) for component in components),
                ]
            terms = [
                (key + more, linalg.kronecker([values, factor])) for key, values in terms for more, factor in factors
            ]
        for key, values in terms:
            seen = np.flatnonzero(np.any(values, axis=1))
            if seen.size:
                self.rows.setdefault(key, []).append(orbits[seen])
                self.values.setdefault(key, []).append(values[seen])

    def scalar_block_arrays(self, orbits: int) -> tuple[tuple[Key, ...], sp.csr_array, Index]:
        """Return the blocks of one coordinate: their keys, squared entries, and orbits of cells."""
        keys = tuple(key for key, values in self.values.items() if values[0].shape[1] == 1)
        rows = [np.concatenate(self.rows[key]) for key in keys]
        squares = [np.concatenate(self.values[key])[:, 0] ** 2 for key in keys]
        columns = np.repeat(np.arange(len(keys)), [len(row) for row in rows])
        entries = (np.concatenate([np.zeros(0), *squares]), (np.concatenate([np.zeros(0, int), *rows]), columns))
        matrix = sp.csr_array(entries, shape=(orbits, len(keys)))
        return keys, matrix, np.array([self.cells_of(key)[0] for key in keys], dtype=np.intp)

    def matrix_blocks(self) -> tuple[Block, ...]:
        return tuple(
            Block.of(
                key, np.concatenate(self.rows[key]), self.cells_of(key), np.concatenate(values), self.copies_of(key)
            )
            for key, values in self.values.items()
            if values[0].shape[1] > 1
        )

    def copies_of(self, key: Key) -> float:
        return math.prod(float(self.symmetries[axis].dimensions[component]) for axis, component in key)

    def cells_of(self, key: Key) -> Index:
        chosen = dict(key)
        orbits = np.zeros(1, dtype=np.intp)
        for axis in self.wide:
            symmetry = self.symmetries[axis]
            codes = [symmetry.classes[chosen[axis]]] if axis in chosen else np.arange(len(symmetry.sizes))
            orbits = np.add.outer(orbits * len(symmetry.sizes), codes).ravel()
        return orbits.astype(np.intp)


def check_key(key: Key, symmetries: tuple[AttributeSymmetry, ...]) -> None:
    axes = [axis for axis, _ in key]
    if axes != sorted({*axes}) or any(
        not (0 <= axis < len(symmetries) and 0 <= component < len(symmetries[axis].dimensions))
        for axis, component in key
    ):
        raise InvalidInputError(f"keys must name components of increasing attributes, got {key}")


def symmetries_of(workload: UnionWorkload) -> tuple[tuple[AttributeSymmetry, ...], list[dict[object, Parts]]]:
    """Return every attribute's symmetry, and from there the parts of each of its query sets."""
    assert workload.domain is not None
    queries: list[dict[object, Queries]] = [{} for _ in workload.domain.shape]
    for table in workload.tables:
        for axis, query in table.queries:
            if query is not None:
                validate.moderate(queries=getattr(query, "bases" if query.circular else "matrix"))
            queries[axis][key_of(query)] = query
    symmetries = tuple(
        AttributeSymmetry.of([*queries.values()], size)
        for queries, size in zip(queries, workload.domain.shape, strict=True)
    )
    looks = [
        {key: symmetry.parts(queries) for key, queries in by_key.items()}
        for symmetry, by_key in zip(symmetries, queries, strict=True)
    ]
    return symmetries, looks


def check_sums(workload: UnionWorkload, most: float) -> None:
    """Refuse one table's blocks that would take too many operations, by what symmetry cannot change.

    Values that it takes to each other have columns of one sum, and queries rows of one sum.
    """
    if len(workload.tables) > 1 or most == math.inf:
        return
    cells = queries = 1
    for _, query in workload.tables[0].queries:
        if query is not None and not query.circular:
            if not query.has_matrix:
                raise GeometryError("geometry 'blocks' takes queries on attributes that can be written out")
            cells *= _distinct(query.matrix.sum(axis=0))
            queries *= _distinct(query.matrix.sum(axis=1))
    if decompositions(min(cells, queries), 0) > most:
        raise GeometryError(
            f"workload has {cells} orbits of cells and {queries} of queries or more, too many for blocks"
        )


def _distinct(sums: Array) -> int:
    """Return how many numbers differ by more than rounding, at least."""
    return len(np.unique(np.round(sums / max(np.abs(sums).max(), validate.MIN_MAGNITUDE), 9)))


def key_of(queries: Queries) -> object:
    """Return a key that tells query sets apart; the values themselves are one set in all tables."""
    return None if queries is None else id(queries)


def check_size(
    workload: UnionWorkload,
    symmetries: tuple[AttributeSymmetry, ...],
    wide: tuple[int, ...],
    counts: list[int],
    cells: int,
    most: float,
) -> None:
    """Refuse blocks that would take too much memory, or too many operations, before they are built."""
    assert workload.domain is not None
    classes = ", ".join(f"{workload.domain.names[axis]} {len(symmetries[axis].sizes)}" for axis in wide)
    queries = sum(counts)
    if max(cells, queries) > MAX_ORBITS or decompositions(min(cells, queries), 0) > most:
        raise GeometryError(
            f"workload has {cells} orbits of cells and {queries} of queries, too many for blocks (limit {MAX_ORBITS}); "
            f"classes of values that no query tells apart: {classes or 'none but whole attributes'}"
        )
    choices = sum(math.prod(1 + len(symmetries[axis].classes) for axis in table.axes) for table in workload.tables)
    if choices > MAX_CHOICES:
        raise GeometryError(f"workload has {choices} blocks in its tables (limit {MAX_CHOICES})")
    entries = 0
    for table, count in zip(workload.tables, counts, strict=True):
        others = math.prod(len(symmetries[axis].sizes) for axis in wide if axis not in table.axes)
        orbits = math.prod(len(symmetries[axis].sizes) + len(symmetries[axis].classes) for axis in table.axes)
        entries += count * others * orbits
    if entries > MAX_BLOCK_ENTRIES:
        raise GeometryError(
            f"workload has {entries} entries in all its blocks (limit {MAX_BLOCK_ENTRIES}); classes of values that no "
            f"query tells apart: {classes or 'none but whole attributes'}"
        )
