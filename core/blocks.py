"""A union of product tables as its symmetry leaves it: a few small matrices, whatever the number of cells.

`dualmech.frames` splits the functions on each attribute into components; products of one component of each attribute
are those of the domain. The best noise is a covariance K_b on each such *block* b, repeated over the copies that
symmetry makes of it. A block has a coordinate for every orbit of cells that it touches, and a row v for every orbit of
queries that it sees, scaled so that with no further constants

- the cost of a record in an orbit of cells is the sum of ``(K_b⁻¹)_oo`` over the blocks, o its coordinate there, and
- the variance of a query is the sum of ``v K_b v'``.

With no symmetry there is one block, the workload itself; of marginals all blocks have one coordinate, and they are the
residual subspaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.frames import Frame, Parts
from dualmech.unions import Queries, UnionWorkload
from dualmech.validate import Array

Index = npt.NDArray[np.intp]
Key = tuple[tuple[int, int], ...]
"""Of a block: the component of each attribute that has another than the constants on classes."""

MAX_ORBITS = 2**15
"""Largest number of orbits of cells, or of queries of all tables."""

MAX_CHOICES = 2**20
"""Largest number of blocks, counted once for every table that they are part of."""

MAX_ENTRIES = 2**26
"""Largest number of entries of the blocks' rows, all together."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block of several coordinates.

    Attributes
    ----------
    key : pairs of attribute and component
        Where it lives.
    rows : (m,) array of int
        The orbit of queries of each row.
    cells : (b,) array of int
        The orbit of cells of each coordinate.
    queries : (m, r) array
        The rows, on the basis.
    moves : (r, b) array
        The basis: the identity where the rows span all coordinates, else orthonormal rows.
    """

    key: Key
    rows: Index
    cells: Index
    queries: Array
    moves: Array

    @classmethod
    def of(cls, key: Key, rows: Index, cells: Index, values: Array) -> Block:
        """Find the basis of rows that are given by coordinates."""
        whole = linalg.spans_all(values)
        basis = np.eye(values.shape[1]) if whole else linalg.row_space(values)
        if len(basis) == values.shape[1]:
            return cls(key, rows, cells, values, np.eye(len(basis)))
        return cls(key, rows, cells, values @ basis.T, basis)

    def restated(self, covariance: Array, basis: Array) -> Array:
        """Return a covariance on this block's basis, from that on another orthonormal basis of the same rows.

        Raises
        ------
        InvalidInputError, InputTypeError
            A basis of other rows, a covariance of another shape.
        """
        if np.array_equal(basis, self.moves):
            return covariance
        shape = self.moves.shape
        rows, own = validate.numeric(2, basis=basis), validate.numeric(2, covariance=covariance)
        if rows.shape != shape or own.shape != (shape[0], shape[0]):
            raise InvalidInputError(
                f"basis and covariance must have shapes {shape} and {(shape[0], shape[0])}, "
                f"got {rows.shape} and {own.shape}"
            )
        turn = self.moves @ rows.T
        if not np.abs(turn @ rows - self.moves).max() <= linalg.SPAN_TOLERANCE:
            raise InvalidInputError("basis must be orthonormal and span what the block's queries span")
        return np.asarray(turn @ own @ turn.T)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """All blocks of a union of tables, and the orbits that tie them.

    Attributes
    ----------
    frames : tuple of Frame
        Of each attribute.
    wide : tuple of int
        The attributes with more than one class; an orbit of cells is a class of each.
    parts : tuple of tuples of Parts
        By table, what it asks of each of its attributes.
    tables : (orbits,) array of int
        The table of each orbit of queries; within a table they are in row-major order.
    magnitudes : (orbits,) array
        Largest entry of a query, in absolute value.
    counts : (orbits,) array
        Number of queries of each orbit.
    cells : int
        Number of orbits of cells.
    keys : tuple of Key
        Of the blocks of one coordinate.
    squares : (orbits, t) sparse array
        The squared entries ``v²`` of the blocks of one coordinate.
    columns : (t,) array of int
        The orbit of cells of each.
    several : tuple of Block
        The other blocks.
    """

    frames: tuple[Frame, ...]
    wide: tuple[int, ...]
    parts: tuple[tuple[Parts, ...], ...]
    tables: Index
    magnitudes: Array
    counts: Array
    cells: int
    keys: tuple[Key, ...]
    squares: sp.csr_array
    columns: Index
    several: tuple[Block, ...]

    @classmethod
    def of(cls, workload: UnionWorkload) -> Blocks:
        """Find the symmetry of a workload and split it.

        Raises
        ------
        InvalidInputError
            Too many orbits of cells or of queries, or blocks too large to write out; the message says which attributes
            have no symmetry.
        """
        frames, looks = _frames(workload)
        wide = tuple(axis for axis, frame in enumerate(frames) if len(frame.sizes) > 1)
        parts = tuple(
            tuple(looks[axis][_key_of(asked)] for axis, asked in table.queries) for table in workload.tables
        )
        counts = [math.prod(len(each.means) for each in own) for own in parts]
        cells = math.prod(len(frames[axis].sizes) for axis in wide)
        _affordable(workload, frames, wide, counts, cells)
        found = _Collected(frames, wide)
        start = 0
        for table, own, count in zip(workload.tables, parts, counts, strict=True):
            found.add(table.axes, own, np.arange(start, start + count))
            start += count
        keys, squares, columns = found.single(start)
        largest = [linalg.kronecker([each.magnitudes[:, None] for each in own]).ravel() for own in parts]
        members = [linalg.kronecker([each.counts[:, None] for each in own]).ravel() for own in parts]
        return cls(
            frames,
            wide,
            parts,
            np.repeat(np.arange(len(counts)), counts),
            np.concatenate(largest),
            np.concatenate(members),
            cells,
            keys,
            squares,
            columns,
            found.several(),
        )

    @property
    def coordinates(self) -> int:
        """Number of coordinates of all blocks, on their bases."""
        return len(self.columns) + sum(len(block.moves) for block in self.several)

    def orbit_shape(self, table: int) -> tuple[int, ...]:
        """Return how many orbits of queries a table has along each of its attributes."""
        return tuple(len(each.means) for each in self.parts[table])

    def spread(self, table: int, values: Array) -> Array:
        """Return one number a query of a table, in the table's shape, from one an orbit of queries of all tables."""
        own = values[self.tables == table].reshape(self.orbit_shape(table))
        return np.asarray(own[np.ix_(*(each.orbits for each in self.parts[table]))])


class _Collected:
    """Rows of blocks as tables bring them."""

    def __init__(self, frames: tuple[Frame, ...], wide: tuple[int, ...]) -> None:
        self.frames, self.wide = frames, wide
        self.rows: dict[Key, list[Index]] = {}
        self.values: dict[Key, list[Array]] = {}

    def add(self, axes: tuple[int, ...], parts: tuple[Parts, ...], orbits: Index) -> None:
        """Add what a table asks, block by block; rows of zeros are left out."""
        asked = dict(zip(axes, parts, strict=True))
        found: list[tuple[Key, Array]] = [((), np.ones((1, 1)))]
        # Attribute by attribute, so that a product is formed once for all blocks that begin alike.
        for axis in sorted({*axes, *self.wide}):
            factors: list[tuple[Key, Array]] = [((), np.ones((1, len(self.frames[axis].sizes))))]
            if axis in asked:
                energies = asked[axis].energies
                own = (int(each) for each in np.flatnonzero(np.any(energies, axis=0)))
                factors = [((), asked[axis].means), *((((axis, each),), energies[:, [each]]) for each in own)]
            found = [
                (key + more, linalg.kronecker([values, factor]))
                for key, values in found
                for more, factor in factors
            ]
        for key, values in found:
            seen = np.flatnonzero(np.any(values, axis=1))
            if seen.size:
                self.rows.setdefault(key, []).append(orbits[seen])
                self.values.setdefault(key, []).append(values[seen])

    def single(self, orbits: int) -> tuple[tuple[Key, ...], sp.csr_array, Index]:
        """Return the blocks of one coordinate: their keys, squared entries, and orbits of cells."""
        keys = tuple(key for key, values in self.values.items() if values[0].shape[1] == 1)
        rows = [np.concatenate(self.rows[key]) for key in keys]
        squares = [np.concatenate(self.values[key])[:, 0] ** 2 for key in keys]
        columns = np.repeat(np.arange(len(keys)), [len(each) for each in rows])
        entries = (
            np.concatenate([np.zeros(0), *squares]),
            (np.concatenate([np.zeros(0, int), *rows]), columns),
        )
        matrix = sp.csr_array(entries, shape=(orbits, len(keys)))
        return keys, matrix, np.array([self.cells_of(key)[0] for key in keys], dtype=np.intp)

    def several(self) -> tuple[Block, ...]:
        """Return the other blocks."""
        return tuple(
            Block.of(key, np.concatenate(self.rows[key]), self.cells_of(key), np.concatenate(values))
            for key, values in self.values.items()
            if values[0].shape[1] > 1
        )

    def cells_of(self, key: Key) -> Index:
        """Return the orbit of cells of each coordinate of a block."""
        chosen = dict(key)
        orbits = np.zeros(1, dtype=np.intp)
        for axis in self.wide:
            frame = self.frames[axis]
            own = [frame.classes[chosen[axis]]] if axis in chosen else np.arange(len(frame.sizes))
            orbits = np.add.outer(orbits * len(frame.sizes), own).ravel()
        return orbits.astype(np.intp)


def _frames(workload: UnionWorkload) -> tuple[tuple[Frame, ...], list[dict[object, Parts]]]:
    """Return every attribute's frame, and from there the parts of each of its query sets."""
    assert workload.domain is not None
    asked: list[dict[object, Queries]] = [{} for _ in workload.domain.shape]
    for table in workload.tables:
        for axis, own in table.queries:
            if own is not None:
                validate.moderate(queries=own.matrix if not hasattr(own, "bases") else own.bases)
            asked[axis][_key_of(own)] = own
    frames = tuple(
        Frame.of([*own.values()], size) for own, size in zip(asked, workload.domain.shape, strict=True)
    )
    looks = [
        {key: frame.parts(each) for key, each in own.items()}
        for frame, own in zip(frames, asked, strict=True)
    ]
    return frames, looks


def _key_of(asked: Queries) -> object:
    return None if asked is None else id(asked)


def _affordable(
    workload: UnionWorkload, frames: tuple[Frame, ...], wide: tuple[int, ...], counts: list[int], cells: int
) -> None:
    """Refuse what would take too much room before it is built."""
    assert workload.domain is not None
    classes = ", ".join(f"{workload.domain.names[axis]} {len(frames[axis].sizes)}" for axis in wide)
    if cells > MAX_ORBITS or sum(counts) > MAX_ORBITS:
        raise InvalidInputError(
            f"workload must have at most {MAX_ORBITS} orbits of cells and of queries, got {cells} and {sum(counts)}; "
            f"classes of values that no query tells apart: {classes or 'none but whole attributes'}"
        )
    choices = sum(
        math.prod(1 + len(frames[axis].classes) for axis in table.axes) for table in workload.tables
    )
    if choices > MAX_CHOICES:
        raise InvalidInputError(f"workload has {choices} blocks in its tables (limit {MAX_CHOICES})")
    entries = 0
    for table, count in zip(workload.tables, counts, strict=True):
        others = math.prod(len(frames[axis].sizes) for axis in wide if axis not in table.axes)
        own = math.prod(len(frames[axis].sizes) + len(frames[axis].classes) for axis in table.axes)
        entries += count * others * own
    if entries > MAX_ENTRIES:
        raise InvalidInputError(
            f"workload has {entries} entries in all its blocks (limit {MAX_ENTRIES}); classes of values that no query "
            f"tells apart: {classes or 'none but whole attributes'}"
        )
