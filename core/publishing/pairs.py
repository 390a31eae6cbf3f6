"""What neighbours cost in blocks of whole numbers, exactly: records added or removed, or replaced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from dualmech.geometry.attribute_symmetry import AttributeSymmetry
from dualmech.geometry.block_pairs import Pairs, Types
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms.block import BlockMechanism
from dualmech.publishing import whole_numbers
from dualmech.publishing.blocks import DrawnBlock
from dualmech.publishing.whole_numbers import Exact, Integers


def costs_of_orbits(mechanism: BlockMechanism, blocks: Mapping[Key, DrawnBlock]) -> Exact:
    """Return the squared privacy cost of each orbit of neighbours (s,), as fractions.

    A record in a cell moves the drawn numbers of a block by ``⊗ (n e_v - 1) ⊗ N e_o``, whose square is ``Π n (n - 1)``
    times that of a column of N; and two records have the product of the attributes' inner products, ``n (n - 1)`` where
    they have the same value, ``-n`` where two of one class, and 0 else.
    """
    moved = mechanism.moved
    total = np.array([Fraction(0)] * moved.count, dtype=object)
    for key, block in blocks.items():
        whole, cells = mechanism.over_all_classes(key, block.whole), moved.rows.cells_of(key)
        for exponent in np.unique(block.exponents).tolist():
            rows, unit = whole[block.exponents == exponent], Fraction(1) / Fraction(4) ** exponent
            if moved.pairs is None:
                total[cells] += whole_numbers.column_squares(rows) * (_same(mechanism, key) * unit)
            else:
                total = total + _of_pairs(mechanism, moved.pairs, key, rows, cells) * (unit / 2)
    return total * Fraction(moved.scale) ** 2


def _same(mechanism: BlockMechanism, key: Key) -> int:
    """Return ``Π n (n - 1)`` of a key's classes."""
    sizes = [class_size(mechanism.symmetries[axis], component) for axis, component in key]
    return math.prod(size * (size - 1) for size in sizes)


def class_size(symmetry: AttributeSymmetry, component: int) -> int:
    """Return how many values the class has on which a component lives."""
    return int(symmetry.sizes[symmetry.classes[component]])


def _of_pairs(
    mechanism: BlockMechanism, pairs: Pairs, key: Key, rows: Integers, cells: np.typing.NDArray[np.intp]
) -> Exact:
    """Return twice what each kind of pairs costs in some rows of a block: squares and inner products, as they count."""
    places = np.full(1 + max(int(pairs.first.max()), int(pairs.second.max())), len(cells))
    places[cells] = np.arange(len(cells))
    columns = np.hstack(
        [rows, np.zeros((len(rows), 1), dtype=np.int64)]
    )  # the last for cells that it does not see
    one, two, same = places[pairs.first], places[pairs.second], _same(mechanism, key)
    squares = whole_numbers.column_squares(columns)
    shared = np.array([1] * pairs.count, dtype=object)
    for axis, component in key:
        own = _inner_products(mechanism.symmetries[axis], component, pairs.types[axis])
        shared = shared * own[pairs.chosen[axis]]
    crossed = np.zeros(pairs.count, dtype=object)
    met = np.flatnonzero((one < len(cells)) & (two < len(cells)) & (shared != 0))
    crossed[met] = whole_numbers.column_products(columns[:, one[met]], columns[:, two[met]])
    own, crosswise = (np.array(each, dtype=object) for each in pairs.weights())
    return np.asarray(own * same * (squares[one] + squares[two]) + crosswise * shared * crossed)


def _inner_products(symmetry: AttributeSymmetry, component: int, types: Types) -> Exact:
    """Return the inner product of two values' moves in a component, for each type of pair of values."""
    size, own = class_size(symmetry, component), symmetry.classes[component]
    inside = (types.first == own) & (types.second == own)
    found = np.where(types.equal, size * (size - 1), -size)
    return np.asarray(np.where(inside, found, 0).astype(object))
