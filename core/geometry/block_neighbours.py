"""Neighbours with the symmetry of blocks: records added, removed or replaced, for any number of cells.

A replaced record changes the data by ``e_u - e_v``, and a person with records in several groups by a sum of cells.
Neighbours fall into orbits, the kinds of pairs and of persons below. With replaced records the total is equal for both
data sets: it costs nothing, and is measured with noise of a tiny variance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.errors import GeometryError, InvalidInputError
from dualmech.geometry.attribute_symmetry import MAX_BLOCK_ENTRIES, MAX_ORBITS, AttributeSymmetry, Key
from dualmech.geometry.base import Index
from dualmech.geometry.moves import UNMOVED
from dualmech.neighbours import Contributions, Relation
from dualmech.validate import Array
from dualmech.workloads.domain import Domain

if TYPE_CHECKING:
    from dualmech.geometry.block_rows import Block, BlockRows

# Orbits ("kinds") of pairs of cells in which neighbours differ, and the cost of each kind in blocks.
#
# For each attribute, a pair (u, v) has one of a few *types*: the classes of both values, and whether the values are
# equal or, under rotations, their distance. With κ the correlation ``P(u, v) / P(u, u)`` of two values in a
# component, the κ of a block is the product of the attributes' κ, and ``e_u ∓ e_v`` costs
#
# - within one coordinate o of the block ``2 (1 ∓ κ) (K⁻¹)_oo``;
# - between two coordinates o and p, ``(K⁻¹)_oo + (K⁻¹)_pp ∓ 2 κ (K⁻¹)_op``;
# - if the block depends on only one of both cells, the cost of that cell.


@dataclass(frozen=True, slots=True, eq=False)
class Types:
    """Types of ordered pairs of values of an attribute."""

    first: Index  # first, second: (types,) classes of the values
    second: Index
    # (components, types) 1 - κ of each component, without cancellation; 1 if the component is 0 on either value
    apart: Array
    equal: npt.NDArray[np.bool_]  # (types,) whether both values are the same
    reverse: Index  # (types,) the type of the reversed pair
    odds: Array  # (components,) n - 1 for the class of n values: κ = -1/(n - 1) for two of its values

    @classmethod
    def of(cls, symmetry: AttributeSymmetry) -> Types:
        """List the types of an attribute's pairs."""
        size, classes = len(symmetry.labels), len(symmetry.sizes)
        if symmetry.turning:
            shifts = np.arange(size // 2 + 1)
            # Angles are reduced modulo whole turns: 1 - cos 2φ = 2 sin² φ.
            turns = np.outer(np.arange(1, len(symmetry.dimensions) + 1), shifts) % size
            distances = 2 * np.sin(np.pi * np.minimum(turns, size - turns) / size) ** 2
            zeros = np.zeros(len(shifts), dtype=np.intp)
            return cls(zeros, zeros, distances, shifts == 0, np.arange(len(shifts)), np.zeros(len(distances)))
        several = np.flatnonzero(symmetry.sizes > 1)
        left, right = (grid.ravel() for grid in np.meshgrid(range(classes), range(classes), indexing="ij"))
        crossed = np.flatnonzero(left != right)
        codes = np.arange(classes)
        first = np.concatenate([codes, several, left[crossed]])
        second = np.concatenate([codes, several, right[crossed]])
        equal = np.arange(len(first)) < classes
        within = (symmetry.classes[:, None] == first) & (symmetry.classes[:, None] == second)
        values = np.where(equal, 0.0, symmetry.sizes[first] / np.maximum(symmetry.sizes[first] - 1, 1))
        # A component is 0 on at least one end of a pair between classes.
        distances = np.where(within, values, 1.0)
        places = {pair: place for place, pair in enumerate(zip(first, second, equal, strict=True))}
        reverse = [places[j, i, same] for i, j, same in zip(first, second, equal, strict=True)]
        others = symmetry.sizes[symmetry.classes] - 1
        return cls(first, second, distances, equal, np.array(reverse, dtype=np.intp), others)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Kinds of unordered pairs of different cells, for replaced records."""

    types: tuple[Types, ...]
    pair_types: tuple[Index, ...]  # for each attribute, (kinds,) the type of each kind
    first: Index  # first, second: (kinds,) orbits of the cells
    second: Index

    @property
    def count(self) -> int:
        """Number of kinds."""
        return len(self.first)

    @classmethod
    def of(cls, symmetries: tuple[AttributeSymmetry, ...], wide: tuple[int, ...], fixed: Collection[int] = ()) -> Pairs:
        """List the kinds of pairs with equal values of each `fixed` attribute; at most `MAX_ORBITS`."""
        types = tuple(Types.of(symmetry) for symmetry in symmetries)
        used_types = [
            np.flatnonzero(attribute_types.equal | (axis not in fixed)) for axis, attribute_types in enumerate(types)
        ]
        count = math.prod(float(len(places)) for places in used_types)
        if count > 2 * MAX_ORBITS:
            raise GeometryError(
                f"replaced records make {count:.3g} types of pairs of cells, more than "
                f"{2 * MAX_ORBITS}; records added or removed make fewer, and add-remove:2 protects a replaced one too"
            )
        kinds = _unordered(types, used_types)
        equal = np.all([attribute_types.equal[at] for attribute_types, at in zip(types, kinds, strict=True)], axis=0)
        kinds = tuple(at[~equal] for at in kinds)
        return cls(types, kinds, *_ends(types, kinds, symmetries, wide))

    def apart(self, key: Key) -> Array:
        """Return 1 - κ of a block for each kind, 1 if the block is 0 on either cell."""
        differs = np.zeros(self.count)
        for axis, component in key:
            differs_here = self.types[axis].apart[component][self.pair_types[axis]]
            differs = differs + differs_here - differs * differs_here
        return differs

    def inside(self, key: Key) -> Array:
        """Return the cost of each kind per unit of ``1/K``, for both cells in one coordinate of a block."""
        return 2 * self.apart(key)

    def weights(self) -> tuple[list[int], list[int]]:
        """Return the weights of each kind for squares of the cells and for their inner product, in halves."""
        return [2] * self.count, [-4] * self.count


@dataclass(frozen=True, slots=True, eq=False)
class Persons(Pairs):
    """Kinds of persons with records in several cells, with different values of one attribute, the groups.

    A person in l cells costs ``Σ_u C_uu + Σ_{u≠v} C_uv``, C the cost matrix. A kind is a number l of cells with one
    kind of pairs among them: it costs ``l (1 + (l - 1) κ)`` in a block of one coordinate. Other persons cost no more.
    If all C_uu are c, as in marginal tables, l cells cost ``l c + Σ_{u≠v} C_uv ≤ l c + l (l - 1) max C_uv``; and if
    every attribute of the tables has at least l values, there are l cells with all pairs of the maximal kind. For
    marginal tables a kind is l and the set D of attributes in which the cells differ, which includes the attribute of
    the groups, and ``κ = Π -1 / (n_i - 1)`` over the attributes of D in the block. Two cells are a pair, for any
    tables. Otherwise l cells are refused: for supported m < l, ``contributions:…:K l / m:m`` is an upper bound
    (Theorem 3a of ``docs/theorems.md``).
    """

    cells: Index  # (kinds,) l

    @classmethod
    def of_rule(
        cls,
        rule: Contributions,
        domain: Domain,
        symmetries: tuple[AttributeSymmetry, ...],
        wide: tuple[int, ...],
        keys: Iterable[Key],
    ) -> Self:
        """List the kinds of persons, for the attributes of blocks with these keys.

        Raises `InvalidInputError` for a domain without the attribute, `GeometryError` for too many kinds, and for
        more groups than are supported.
        """
        rule.check(domain)
        blocks = list(keys)
        groups, axes = (domain.names.index(rule.attribute), {axis for key in blocks for axis, _ in key} | {*wide})
        types = tuple(Types.of(symmetry) for symmetry in symmetries)
        max_cells = _max_cells_of(rule, domain, symmetries, wide, axes)
        used_types = [
            np.arange(len(attribute_types.first) if axis in axes else 1) for axis, attribute_types in enumerate(types)
        ]
        used_types[groups] = np.flatnonzero(~types[groups].equal)
        pairs = math.prod(float(len(places)) for places in used_types)
        singles = math.prod(len(symmetries[axis].sizes) for axis in wide)
        kinds = singles + pairs * (max_cells - 1)
        if kinds > MAX_ORBITS or kinds * len(blocks) > MAX_BLOCK_ENTRIES:
            raise GeometryError(
                f"neighbours ({rule}) are of {kinds:.3g} kinds, in {len(blocks)} blocks (limits: {MAX_ORBITS} kinds, "
                f"{MAX_BLOCK_ENTRIES} in all): each attribute of the tables doubles this number; "
                f"neighbours='{_bounding_relation(rule, max_cells)}' bounds them"
            )
        pair_types = (
            _unordered(types, used_types) if max_cells > 1 else tuple(np.zeros(0, dtype=np.intp) for _ in types)
        )
        left, right = _ends(types, pair_types, symmetries, wide)
        first = np.concatenate([np.arange(singles), *[left] * (max_cells - 1)])
        second = np.concatenate([np.full(singles, singles), *[right] * (max_cells - 1)])  # no second cell
        no_pair = np.zeros(singles, dtype=np.intp)
        types_by_kind = tuple(np.concatenate([no_pair, *[at] * (max_cells - 1)]) for at in pair_types)
        cells = np.repeat(np.arange(1, max_cells + 1), [singles, *[len(left)] * (max_cells - 1)])
        return cls(types, types_by_kind, first, second, cells)

    def apart(self, key: Key) -> Array:
        return 2 - super(Persons, self).apart(key)

    def inside(self, key: Key) -> Array:
        # 1/κ is an integer P, so l (P ± (l - 1)) / P has no cancellation.
        inverse, sign = np.ones(self.count), np.ones(self.count)
        for axis, component in key:
            differ = ~self.types[axis].equal[self.pair_types[axis]]
            inverse = np.where(differ, inverse * self.types[axis].odds[component], inverse)
            sign = np.where(differ, -sign, sign)
        return np.asarray(self.cells * (inverse + sign * (self.cells - 1)) / inverse)

    def weights(self) -> tuple[list[int], list[int]]:
        counts = self.cells.tolist()
        return [max(count, 2) for count in counts], [2 * count * (count - 1) for count in counts]


def _bounding_relation(rule: Contributions, max_cells: int) -> str:
    return f"add-remove:{rule.members * max_cells}"


def _max_cells_of(
    rule: Contributions,
    domain: Domain,
    symmetries: tuple[AttributeSymmetry, ...],
    wide: tuple[int, ...],
    axes: set[int],
) -> int:
    """Return the maximum number of cells of a person; refused if kinds of pairs do not determine their cost."""
    values = dict(domain.sizes)
    max_cells = min(rule.groups, values[rule.attribute])
    turned = [domain.names[axis] for axis in axes if symmetries[axis].turning]
    if turned and max_cells > 1:
        raise GeometryError(
            f"neighbours ({rule}) do not support cyclic queries of an attribute, as of {turned[0]!r}; "
            f"neighbours='{_bounding_relation(rule, max_cells)}' bounds them"
        )
    if max_cells <= 2:
        return max_cells
    min_values = min((n for n in (domain.shape[axis] for axis in axes) if n > 1), default=max_cells)
    exact = 2 if wide else min_values
    if exact < max_cells:
        small = [domain.names[axis] for axis in sorted(axes) if domain.shape[axis] == exact]
        reason = (
            f"tables distinguish values of {domain.names[wide[0]]!r}" if wide else f"{small[0]!r} has {exact} values"
        )
        records = -(-rule.members * max_cells // exact)
        raise GeometryError(
            f"neighbours ({rule}) may be in at most {exact} groups, because {reason}; "
            f"neighbours='contributions:{rule.attribute}:{records}:{exact}' bounds them, and so does "
            f"'{_bounding_relation(rule, max_cells)}'"
        )
    return max_cells


def _unordered(types: Sequence[Types], used_types: Sequence[Index]) -> tuple[Index, ...]:
    """Return, for each attribute, the types of all unordered pairs of cells."""
    several = [axis for axis, places in enumerate(used_types) if len(places) != 1]
    sizes = [len(used_types[axis]) for axis in several]
    count = math.prod(sizes)
    index = np.unravel_index(np.arange(count), sizes) if sizes else ()
    reverse_index = np.zeros(count, dtype=np.intp)
    for axis, at in zip(several, index, strict=True):
        reverse = np.searchsorted(used_types[axis], types[axis].reverse[used_types[axis]])
        reverse_index = reverse_index * len(used_types[axis]) + reverse[at]
    unordered = np.flatnonzero(np.arange(count) <= reverse_index)
    columns = [np.full(len(unordered), places[0] if len(places) else 0, dtype=np.intp) for places in used_types]
    for axis, at in zip(several, index, strict=True):
        columns[axis] = used_types[axis][at[unordered]].astype(np.intp)
    return tuple(columns)


def _ends(
    types: Sequence[Types], pair_types: Sequence[Index], symmetries: Sequence[AttributeSymmetry], wide: Iterable[int]
) -> tuple[Index, Index]:
    """Return the orbits of both cells of each kind of pairs."""
    first, second = np.zeros(len(pair_types[0]), dtype=np.intp), np.zeros(len(pair_types[0]), dtype=np.intp)
    for axis in wide:
        count = len(symmetries[axis].sizes)
        first = first * count + types[axis].first[pair_types[axis]]
        second = second * count + types[axis].second[pair_types[axis]]
    return first, second


def moved_by(
    relation: Relation,
    domain: Domain,
    symmetries: tuple[AttributeSymmetry, ...],
    rows: BlockRows,
    keys: tuple[Key, ...],
    reach: sp.csr_array,
    blocks: tuple[Block, ...],
) -> tuple[sp.csr_array, tuple[Block, ...]]:
    """Return the cost of each orbit of neighbours per unit of ``1/K`` of blocks of one coordinate, and other blocks.

    Raises `GeometryError` for too many kinds of pairs, and `InvalidInputError` if all blocks are insensitive.
    """
    sensitivities = NeighbourMoves.of(relation, domain, symmetries, rows, [*keys, *(block.key for block in blocks)])
    if sensitivities.pairs is not None:
        columns = [_single(sensitivities.pairs, rows, key) for key in keys]
        reach = sp.csr_array(np.column_stack([np.zeros((sensitivities.count, 0)), *columns]))
    updated = []
    for block in blocks:
        steps, orbits = sensitivities.steps(block.key, block.moves)
        updated.append(replace(block, steps=steps, orbits=orbits))
    if not (reach.count_nonzero() or any(map(np.any, (block.steps for block in updated)))):
        raise InvalidInputError(UNMOVED)
    return sp.csr_array(sensitivities.scale**2 * reach), tuple(updated)


@dataclass(frozen=True, slots=True, eq=False)
class NeighbourMoves:
    """Sensitivity vectors of blocks: for orbits of cells (records added or removed), otherwise for kinds of pairs."""

    rows: BlockRows  # the blocks and their cells
    scale: float  # maximum number of records of a person
    pairs: Pairs | None  # the kinds of neighbours that differ in several cells
    count: int  # number of orbits of neighbours

    @classmethod
    def of(
        cls,
        relation: Relation | None,
        domain: Domain,
        symmetries: tuple[AttributeSymmetry, ...],
        rows: BlockRows,
        keys: Iterable[Key],
    ) -> NeighbourMoves:
        """Return the orbits of neighbours under a relation; None is one record added or removed."""
        scale = 1.0 if relation is None else float(relation.members)
        if relation is None or not relation.several_cells:
            return cls(rows, scale, None, math.prod(len(symmetries[axis].sizes) for axis in rows.wide))
        if isinstance(relation, Contributions):
            pairs: Pairs = Persons.of_rule(relation, domain, symmetries, rows.wide, keys)
        else:
            relation.check(domain)
            pairs = Pairs.of(symmetries, rows.wide, [domain.names.index(name) for name in relation.fixed or ()])
        return cls(rows, scale, pairs, pairs.count)

    def steps(self, key: Key, moves: Array) -> tuple[Array, Index]:
        """Return the sensitivity vectors (r, s) of a block on a basis (r, b), and the orbit of each."""
        cells = self.rows.cells_of(key)
        if self.pairs is None:
            return self.scale * moves, cells
        if len(cells) == 1:
            costs = _single(self.pairs, self.rows, key)
            nonzero = np.flatnonzero(costs)
            return self.scale * moves * np.sqrt(costs[nonzero]), nonzero
        return _several(self.pairs, key, cells, self.scale * moves)


def _single(pairs: Pairs, rows: BlockRows, key: Key) -> Array:
    """Return the cost of each pair per unit of ``1/K`` of a block of one coordinate."""
    (cell,) = rows.cells_of(key)
    left, right = pairs.first == cell, pairs.second == cell
    return np.where(left & right, pairs.inside(key), (left | right).astype(np.float64))


def _several(pairs: Pairs, key: Key, cells: Index, moves: Array) -> tuple[Array, Index]:
    """Return sensitivity vectors of a block, two for a pair between coordinates, and the pair of each.

    The costs of a pair's two vectors add up to its cost.
    """
    places = np.full(1 + int(max(cells.max(), pairs.first.max(initial=0), pairs.second.max(initial=0))), -1)
    places[cells] = np.arange(len(cells))
    left, right, distances = places[pairs.first], places[pairs.second], pairs.apart(key)
    joint = (left >= 0) & (right >= 0)
    single = np.flatnonzero((left >= 0) ^ (right >= 0))
    same = np.flatnonzero(joint & (left == right) & (distances > 0))
    difference = np.flatnonzero(joint & (left != right) & (distances < 2))
    total = np.flatnonzero(joint & (left != right) & (distances > 0))
    steps = [
        moves[:, np.maximum(left, right)[single]],
        moves[:, left[same]] * np.sqrt(2 * distances[same]),
        (moves[:, left[difference]] - moves[:, right[difference]]) * np.sqrt(1 - distances[difference] / 2),
        (moves[:, left[total]] + moves[:, right[total]]) * np.sqrt(distances[total] / 2),
    ]
    return np.hstack(steps), np.concatenate([single, same, difference, total])
