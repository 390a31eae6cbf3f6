"""A union of product tables as its symmetry leaves it: a few small matrices, whatever the number of cells.

`dualmech.geometry.attribute_symmetry` splits the functions on each attribute into components; products of one component
of each attribute are those of the domain. The best noise is a covariance K_b on each such *block* b, repeated over the
copies that symmetry makes of it. A block has a coordinate for every orbit of cells that it touches, and a row v for
every orbit of queries that it sees, scaled so that with no further constants

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
from dualmech.geometry.attribute_symmetry import Frame, Parts
from dualmech.geometry.block_rows import Block, BlockRows, Key
from dualmech.validate import Array
from dualmech.workloads.circular import CircularWorkload
from dualmech.workloads.unions import Queries, UnionWorkload

Index = npt.NDArray[np.intp]

MAX_ORBITS = 2**15
"""Largest number of orbits of cells, or of queries of all tables."""

MAX_CHOICES = 2**20
"""Largest number of blocks, counted once for every table that they are part of."""

MAX_ENTRIES = 2**26
"""Largest number of entries of the blocks' rows, all together."""


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
    copies : (t,) array
        How many of each symmetry makes.
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
    copies: Array
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
        found = BlockRows(frames, wide)
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
            np.array([found.copies_of(key) for key in keys]),
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


def _frames(workload: UnionWorkload) -> tuple[tuple[Frame, ...], list[dict[object, Parts]]]:
    """Return every attribute's frame, and from there the parts of each of its query sets."""
    assert workload.domain is not None
    asked: list[dict[object, Queries]] = [{} for _ in workload.domain.shape]
    for table in workload.tables:
        for axis, own in table.queries:
            if own is not None:
                validate.moderate(queries=own.bases if isinstance(own, CircularWorkload) else own.matrix)
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
