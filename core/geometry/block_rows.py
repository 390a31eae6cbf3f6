"""One block of a union of tables, and the rows that tables bring to each (see `dualmech.geometry.blocks`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.attribute_symmetry import Frame, Parts
from dualmech.validate import Array

Index = npt.NDArray[np.intp]
Key = tuple[tuple[int, int], ...]
"""Of a block: the component of each attribute that has another than the constants on classes."""


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
    copies : float
        How many of it symmetry makes.
    """

    key: Key
    rows: Index
    cells: Index
    queries: Array
    moves: Array
    copies: float

    @classmethod
    def of(cls, key: Key, rows: Index, cells: Index, values: Array, copies: float) -> Block:
        """Find the basis of rows that are given by coordinates."""
        basis = linalg.spanning(values)
        queries = values if linalg.is_identity(basis) else values @ basis.T
        return cls(key, rows, cells, queries, basis, copies)

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


class BlockRows:
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
            Block.of(
                key,
                np.concatenate(self.rows[key]),
                self.cells_of(key),
                np.concatenate(values),
                self.copies_of(key),
            )
            for key, values in self.values.items()
            if values[0].shape[1] > 1
        )

    def copies_of(self, key: Key) -> float:
        """Return how many copies symmetry makes of a block."""
        return math.prod(float(self.frames[axis].dimensions[component]) for axis, component in key)

    def cells_of(self, key: Key) -> Index:
        """Return the orbit of cells of each coordinate of a block."""
        chosen = dict(key)
        orbits = np.zeros(1, dtype=np.intp)
        for axis in self.wide:
            frame = self.frames[axis]
            own = [frame.classes[chosen[axis]]] if axis in chosen else np.arange(len(frame.sizes))
            orbits = np.add.outer(orbits * len(frame.sizes), own).ravel()
        return orbits.astype(np.intp)
