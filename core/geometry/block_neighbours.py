"""Neighbours that keep the symmetry of blocks: records added, removed or replaced, whatever the number of cells.

A record that is replaced moves ``e_u - e_v``, and a person with records in several groups the sum of several cells:
`dualmech.geometry.block_pairs` lists what kinds of them there are. Where records are replaced, the total is the same
for both data sets: it costs nothing, and is measured with noise that is next to none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dualmech.errors import InvalidInputError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry
from dualmech.geometry.base import Index
from dualmech.geometry.block_pairs import Pairs, Persons
from dualmech.geometry.block_rows import Block, BlockRows, Key
from dualmech.geometry.moves import UNMOVED
from dualmech.neighbours import Contributions, Relation
from dualmech.validate import Array
from dualmech.workloads.domain import Domain


def moved_by(
    relation: Relation,
    domain: Domain,
    symmetries: tuple[AttributeSymmetry, ...],
    rows: BlockRows,
    keys: tuple[Key, ...],
    reach: sp.csr_array,
    blocks: tuple[Block, ...],
) -> tuple[sp.csr_array, tuple[Block, ...]]:
    """Return what a unit of ``1/K`` of each block of one coordinate costs an orbit of neighbours, and others' steps.

    Raises `LittleSymmetryError` for too many kinds of pairs, `InvalidInputError` where no neighbour moves any block.
    """
    moved = Moved.of(relation, domain, symmetries, rows, [*keys, *(block.key for block in blocks)])
    if moved.pairs is not None:
        columns = [_single(moved.pairs, rows, key) for key in keys]
        reach = sp.csr_array(np.column_stack([np.zeros((moved.count, 0)), *columns]))
    several = []
    for block in blocks:
        steps, orbits = moved.steps(block.key, block.moves)
        several.append(replace(block, steps=steps, orbits=orbits))
    if not (reach.count_nonzero() or any(map(np.any, (each.steps for each in several)))):
        raise InvalidInputError(UNMOVED)
    return sp.csr_array(moved.scale**2 * reach), tuple(several)


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """How neighbours move blocks: orbits of cells where records are added or removed, else kinds of pairs of cells."""

    rows: BlockRows  # which blocks a record in a cell reaches
    scale: float  # the most records of a person
    pairs: Pairs | None  # where neighbours differ in several cells, their kinds
    count: int  # number of orbits of neighbours

    @classmethod
    def of(
        cls,
        relation: Relation | None,
        domain: Domain,
        symmetries: tuple[AttributeSymmetry, ...],
        rows: BlockRows,
        keys: Iterable[Key],
    ) -> Moved:
        """Find the orbits of neighbours of blocks under a relation, None for one record added or removed."""
        scale = 1.0 if relation is None else float(relation.members)
        if relation is None or not relation.several_cells:
            return cls(rows, scale, None, math.prod(len(symmetries[axis].sizes) for axis in rows.wide))
        if isinstance(relation, Contributions):
            pairs: Pairs = Persons.of_rule(relation, domain, symmetries, rows.wide, keys)
        else:
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


def _single(pairs: Pairs, rows: BlockRows, key: Key) -> Array:
    """Return what a unit of ``1/K`` of a block of one coordinate costs each pair."""
    (cell,) = rows.cells_of(key)
    one, two = pairs.first == cell, pairs.second == cell
    return np.where(one & two, pairs.inside(key), (one | two).astype(np.float64))


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
