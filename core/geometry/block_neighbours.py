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

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.errors import LittleSymmetryError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry
from dualmech.geometry.base import Index
from dualmech.geometry.block_rows import MAX_ORBITS, Block, BlockRows, Key
from dualmech.neighbours import Relation
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class Types:
    """Types of ordered pairs of values of an attribute: the classes of both, what they share, and the type reversed."""

    first: Index  # first, second: (types,) classes of the values
    second: Index
    # (components, types) 1 - κ of each component, so that little is not lost in it; 1 where it sees one value or none
    apart: Array
    equal: npt.NDArray[np.bool_]  # (types,) whether both values are the same
    reverse: Index  # (types,) the type of the pair the other way round

    @classmethod
    def of(cls, symmetry: AttributeSymmetry) -> Types:
        """List the types of an attribute's pairs."""
        size, classes = len(symmetry.labels), len(symmetry.sizes)
        if symmetry.turning:
            shifts = np.arange(size // 2 + 1)
            # Turned back by whole turns, so that no angle is large: 1 - cos 2φ = 2 sin² φ.
            turns = np.outer(np.arange(1, len(symmetry.dimensions) + 1), shifts) % size
            far = 2 * np.sin(np.pi * np.minimum(turns, size - turns) / size) ** 2
            nought = np.zeros(len(shifts), dtype=np.intp)
            return cls(nought, nought, far, shifts == 0, np.arange(len(shifts)))
        several = np.flatnonzero(symmetry.sizes > 1)
        one, two = (each.ravel() for each in np.meshgrid(range(classes), range(classes), indexing="ij"))
        crossed = np.flatnonzero(one != two)
        own = np.arange(classes)
        first = np.concatenate([own, several, one[crossed]])
        second = np.concatenate([own, several, two[crossed]])
        equal = np.arange(len(first)) < classes
        inside = (symmetry.classes[:, None] == first) & (symmetry.classes[:, None] == second)
        values = np.where(equal, 0.0, symmetry.sizes[first] / np.maximum(symmetry.sizes[first] - 1, 1))
        # A pair that crosses classes is seen by a component at one end alone.
        seen = np.where(inside, values, 1.0)
        places = {pair: place for place, pair in enumerate(zip(first, second, equal, strict=True))}
        reverse = [places[j, i, same] for i, j, same in zip(first, second, equal, strict=True)]
        return cls(first, second, seen, equal, np.array(reverse, dtype=np.intp))


def moved_by(
    relation: Relation,
    symmetries: tuple[AttributeSymmetry, ...],
    rows: BlockRows,
    keys: tuple[Key, ...],
    reach: sp.csr_array,
    blocks: tuple[Block, ...],
) -> tuple[sp.csr_array, tuple[Block, ...]]:
    """Return what a unit of ``1/K`` of each block of one coordinate costs an orbit of neighbours, and others' steps.

    Raises `LittleSymmetryError` for more than `MAX_ORBITS` types of pairs.
    """
    moved = Moved.of(relation, symmetries, rows)
    if moved.pairs is not None:
        columns = [_single(moved.pairs, rows, key) for key in keys]
        reach = sp.csr_array(np.column_stack([np.zeros((moved.count, 0)), *columns]))
    several = []
    for block in blocks:
        steps, orbits = moved.steps(block.key, block.moves)
        several.append(replace(block, steps=steps, orbits=orbits))
    return sp.csr_array(moved.scale**2 * reach), tuple(several)


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """How neighbours move blocks: orbits of cells where records are added or removed, of pairs where replaced."""

    rows: BlockRows  # which blocks a record in a cell reaches
    scale: float  # the most records of a person
    pairs: Pairs | None  # where records are replaced, the types of pairs of cells
    count: int  # number of orbits of neighbours

    @classmethod
    def of(
        cls, relation: Relation | None, symmetries: tuple[AttributeSymmetry, ...], rows: BlockRows
    ) -> Moved:
        """Find the orbits of neighbours under a relation, None for one record added or removed."""
        scale = 1.0 if relation is None else float(relation.members)
        if relation is None or not relation.replace:
            return cls(rows, scale, None, math.prod(len(symmetries[axis].sizes) for axis in rows.wide))
        pairs = Pairs.of(symmetries, rows.wide)
        return cls(rows, scale, pairs, pairs.count)

    def steps(self, key: Key, moves: Array) -> tuple[Array, Index]:
        """Return how neighbours move a block, on a basis (r, b) of it: vectors (r, s), and the orbit of each."""
        cells = self.rows.cells_of(key)
        if self.pairs is None:
            return self.scale * moves, cells
        if len(cells) == 1:
            costs = _single(self.pairs, self.rows, key)
            seen = np.flatnonzero(costs)
            return self.scale * moves * np.sqrt(costs[seen]), seen
        return _several(self.pairs, key, cells, self.scale * moves)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Types of pairs of cells, none the same cell, and of two that are each other's reverse one."""

    types: tuple[Types, ...]
    chosen: tuple[Index, ...]
    first: Index
    second: Index

    @property
    def count(self) -> int:
        """Number of types."""
        return len(self.first)

    @classmethod
    def of(cls, symmetries: tuple[AttributeSymmetry, ...], wide: tuple[int, ...]) -> Pairs:
        """List the types of pairs; refused where there are more than `MAX_ORBITS`."""
        types = tuple(Types.of(symmetry) for symmetry in symmetries)
        sizes = [len(each.first) for each in types]
        if np.prod(sizes, dtype=np.float64) > 2 * MAX_ORBITS:
            raise LittleSymmetryError(
                f"replaced records make {np.prod(sizes, dtype=np.float64):.3g} types of pairs of cells, more than "
                f"{2 * MAX_ORBITS}; records added or removed make fewer, and add-remove:2 protects a replaced one too"
            )
        index = np.unravel_index(np.arange(int(np.prod(sizes))), sizes)
        turned = np.ravel_multi_index([own.reverse[at] for own, at in zip(types, index, strict=True)], sizes)
        same = np.all([own.equal[at] for own, at in zip(types, index, strict=True)], axis=0)
        kept = np.flatnonzero((np.arange(len(same)) <= turned) & ~same)
        chosen = tuple(at[kept].astype(np.intp) for at in index)
        first, second = np.zeros(len(kept), dtype=np.intp), np.zeros(len(kept), dtype=np.intp)
        for axis in wide:
            count = len(symmetries[axis].sizes)
            first = first * count + types[axis].first[chosen[axis]]
            second = second * count + types[axis].second[chosen[axis]]
        return cls(types, chosen, first, second)

    def apart(self, key: Key) -> Array:
        """Return 1 - κ of a block for each pair, 1 where it does not see both."""
        found = np.zeros(self.count)
        for axis, component in key:
            own = self.types[axis].apart[component][self.chosen[axis]]
            found = found + own - found * own
        return found


def _single(pairs: Pairs, rows: BlockRows, key: Key) -> Array:
    """Return what a unit of ``1/K`` of a block of one coordinate costs each pair."""
    (cell,) = rows.cells_of(key)
    one, two = pairs.first == cell, pairs.second == cell
    return np.where(one & two, 2 * pairs.apart(key), (one | two).astype(np.float64))


def _several(pairs: Pairs, key: Key, cells: Index, moves: Array) -> tuple[Array, Index]:
    """Return the moves of a block's pairs, two columns for a pair between coordinates, and the pair of each.

    The squares of a pair's columns add up to its quadratic form.
    """
    places = np.full(1 + max(pairs.first.max(), pairs.second.max()), -1)
    places[cells] = np.arange(len(cells))
    one, two, apart = places[pairs.first], places[pairs.second], pairs.apart(key)
    both = (one >= 0) & (two >= 0)
    alone = np.flatnonzero((one >= 0) ^ (two >= 0))
    inside = np.flatnonzero(both & (one == two) & (apart > 0))
    difference = np.flatnonzero(both & (one != two) & (apart < 2))
    total = np.flatnonzero(both & (one != two) & (apart > 0))
    steps = [
        moves[:, np.maximum(one, two)[alone]],
        moves[:, one[inside]] * np.sqrt(2 * apart[inside]),
        (moves[:, one[difference]] - moves[:, two[difference]]) * np.sqrt(1 - apart[difference] / 2),
        (moves[:, one[total]] + moves[:, two[total]]) * np.sqrt(apart[total] / 2),
    ]
    return np.hstack(steps), np.concatenate([alone, inside, difference, total])
