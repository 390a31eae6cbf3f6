"""Neighbours that keep the symmetry of blocks: records added, removed or replaced, whatever the number of cells.

A record that is replaced moves ``e_u - e_v``. Along each attribute, the pair (u, v) is of one of a few *types*: the
classes of both values, and whether the values are the same or, on a circle, how far they are apart. With κ the
correlation ``P(u, v) / P(u, u)`` of two values in a component, the product of the attributes' κ is that of a block, and

- within one coordinate o of the block the pair costs ``2 (1 - κ) (K⁻¹)_oo``;
- between two coordinates o and p, ``(K⁻¹)_oo + (K⁻¹)_pp - 2 κ (K⁻¹)_op``;
- where the block sees one of both alone, what that costs.

The total is the same for both: it costs nothing, and is measured with noise that is next to none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.geometry.attribute_symmetry import Frame
from dualmech.geometry.base import Index, LittleSymmetryError
from dualmech.geometry.block_rows import MAX_ORBITS, Block, BlockRows, Key
from dualmech.neighbours import Relation
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class Types:
    """Types of ordered pairs of values of an attribute: the classes of both, what they share, and the type reversed.

    Attributes
    ----------
    first, second : (types,) arrays of int
        Classes of the values.
    correlations : (components, types) array
        κ of each component; NaN where it sees one value or none.
    equal : (types,) array of bool
        Whether both values are the same.
    reverse : (types,) array of int
        The type of the pair the other way round.
    """

    first: Index
    second: Index
    correlations: Array
    equal: npt.NDArray[np.bool_]
    reverse: Index

    @classmethod
    def of(cls, frame: Frame) -> Types:
        """List the types of an attribute's pairs."""
        size, classes = len(frame.labels), len(frame.sizes)
        if frame.turning:
            shifts = np.arange(size // 2 + 1)
            angles = 2 * np.pi * np.outer(np.arange(1, len(frame.dimensions) + 1), shifts) / size
            nought = np.zeros(len(shifts), dtype=np.intp)
            return cls(nought, nought, np.cos(angles), shifts == 0, np.arange(len(shifts)))
        apart = np.flatnonzero(frame.sizes > 1)
        one, two = (each.ravel() for each in np.meshgrid(range(classes), range(classes), indexing="ij"))
        crossed = np.flatnonzero(one != two)
        own = np.arange(classes)
        first = np.concatenate([own, apart, one[crossed]])
        second = np.concatenate([own, apart, two[crossed]])
        equal = np.arange(len(first)) < classes
        inside = (frame.classes[:, None] == first) & (frame.classes[:, None] == second)
        values = np.where(equal, 1.0, -1 / np.maximum(frame.sizes[first] - 1, 1))
        # A pair that crosses classes is seen by a component at one end alone.
        seen = np.where(inside, values, np.nan)
        places = {pair: place for place, pair in enumerate(zip(first, second, equal, strict=True))}
        reverse = [places[j, i, same] for i, j, same in zip(first, second, equal, strict=True)]
        return cls(first, second, seen, equal, np.array(reverse, dtype=np.intp))


def moved_by(
    relation: Relation,
    frames: tuple[Frame, ...],
    rows: BlockRows,
    keys: tuple[Key, ...],
    reach: sp.csr_array,
    blocks: tuple[Block, ...],
) -> tuple[sp.csr_array, tuple[Block, ...]]:
    """Return what a unit of ``1/K`` of each block of one coordinate costs an orbit of neighbours, and others' steps.

    Raises
    ------
    LittleSymmetryError
        More than `MAX_ORBITS` types of pairs.
    """
    scale = float(relation.members)
    if not relation.replace:
        found = tuple(replace(block, steps=scale * block.steps) for block in blocks)
        return sp.csr_array(scale**2 * reach), found
    pairs = _Pairs.of(frames, rows.wide)
    columns = [_single(pairs, rows, key) for key in keys]
    reached = np.column_stack([np.zeros((pairs.count, 0)), *columns])
    moved = tuple(_several(pairs, block, scale) for block in blocks)
    return sp.csr_array(scale**2 * reached), moved


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Types of pairs of cells, none the same cell, and of two that are each other's reverse one."""

    types: tuple[Types, ...]
    chosen: tuple[Index, ...]
    first: Index
    second: Index

    @property
    def count(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, frames: tuple[Frame, ...], wide: tuple[int, ...]) -> _Pairs:
        types = tuple(Types.of(frame) for frame in frames)
        sizes = [len(each.first) for each in types]
        if np.prod(sizes, dtype=np.float64) > 2 * MAX_ORBITS:
            raise LittleSymmetryError(
                f"replaced records make {np.prod(sizes, dtype=np.float64):.3g} types of pairs of cells, more than "
                f"{2 * MAX_ORBITS}; records added or removed make fewer"
            )
        index = np.unravel_index(np.arange(int(np.prod(sizes))), sizes)
        turned = np.ravel_multi_index([own.reverse[at] for own, at in zip(types, index, strict=True)], sizes)
        same = np.all([own.equal[at] for own, at in zip(types, index, strict=True)], axis=0)
        kept = np.flatnonzero((np.arange(len(same)) <= turned) & ~same)
        chosen = tuple(at[kept].astype(np.intp) for at in index)
        first, second = np.zeros(len(kept), dtype=np.intp), np.zeros(len(kept), dtype=np.intp)
        for axis in wide:
            count = len(frames[axis].sizes)
            first = first * count + types[axis].first[chosen[axis]]
            second = second * count + types[axis].second[chosen[axis]]
        return cls(types, chosen, first, second)

    def correlation(self, key: Key) -> Array:
        """Return κ of a block for each pair, NaN where it does not see both."""
        found = np.ones(self.count)
        for axis, component in key:
            found = found * self.types[axis].correlations[component][self.chosen[axis]]
        return found


def _single(pairs: _Pairs, rows: BlockRows, key: Key) -> Array:
    """Return what a unit of ``1/K`` of a block of one coordinate costs each pair."""
    (cell,) = rows.cells_of(key)
    one, two = pairs.first == cell, pairs.second == cell
    both = 2 * (1 - np.nan_to_num(pairs.correlation(key)))
    return np.where(one & two, both, (one | two).astype(np.float64))


def _several(pairs: _Pairs, block: Block, scale: float) -> Block:
    """Return a block with the moves of its pairs, two columns for a pair between coordinates."""
    places = {int(cell): place for place, cell in enumerate(block.cells)}
    one = np.array([places.get(int(cell), -1) for cell in pairs.first])
    two = np.array([places.get(int(cell), -1) for cell in pairs.second])
    kappa = np.nan_to_num(pairs.correlation(block.key))
    columns, orbits = [], []
    for pair, (o, p, correlation) in enumerate(zip(one, two, kappa, strict=True)):
        if o < 0 and p < 0:
            continue
        vectors = _vectors(len(block.cells), o, p, correlation)
        columns += vectors
        orbits += [pair] * len(vectors)
    steps = scale * block.moves @ np.array(columns).reshape(-1, len(block.cells)).T
    return replace(block, steps=steps, orbits=np.array(orbits, dtype=np.intp))


def _vectors(size: int, one: int, two: int, correlation: float) -> list[Array]:
    """Return the coordinates of a pair's moves: vectors whose squares add up to its quadratic form."""
    first, second = np.zeros(size), np.zeros(size)
    if one < 0 or two < 0:
        first[max(one, two)] = 1.0
        return [first]
    if one == two:
        first[one] = np.sqrt(2 * (1 - correlation))
        return [first] if correlation < 1 else []
    first[[one, two]] = np.sqrt((1 + correlation) / 2) * np.array([1, -1])
    second[[one, two]] = np.sqrt((1 - correlation) / 2)
    return [each for each in (first, second) if np.any(each)]
