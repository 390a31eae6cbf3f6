"""Neighbours that keep the symmetry of blocks: records added, removed or replaced, whatever the number of cells.

A record that is replaced moves ``e_u - e_v``, and a person with records in several groups the sum of several cells:
the second half lists what kinds of them there are. Where records are replaced, the total is the same for both data
sets: it costs nothing, and is measured with noise that is next to none.
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

# Kinds of pairs of cells in which neighbours differ, for any number of cells, and the cost of each pair in blocks.
#
# Along each attribute, a pair (u, v) is of one of a few *types*: the classes of both values, and whether the values are
# the same or, on a circle, how far they are apart. With κ the correlation ``P(u, v) / P(u, u)`` of two values in a
# component, the κ of a block is the product of the attributes' κ, and ``e_u ∓ e_v`` costs
#
# - within one coordinate o of the block ``2 (1 ∓ κ) (K⁻¹)_oo``;
# - between two coordinates o and p, ``(K⁻¹)_oo + (K⁻¹)_pp ∓ 2 κ (K⁻¹)_op``;
# - where the block sees only one of both, the cost of that one.


@dataclass(frozen=True, slots=True, eq=False)
class Types:
    """Types of ordered pairs of values of an attribute: the classes of both, what they share, and the type reversed."""

    first: Index  # first, second: (types,) classes of the values
    second: Index
    # (components, types) 1 - κ of each component, so that little is not lost in it; 1 where it sees one value or none
    apart: Array
    equal: npt.NDArray[np.bool_]  # (types,) whether both values are the same
    reverse: Index  # (types,) the type of the pair the other way round
    others: Array  # (components,) n - 1 of each component's class, so that κ is -1/(n - 1) of two of its values

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
            return cls(nought, nought, far, shifts == 0, np.arange(len(shifts)), np.zeros(len(far)))
        several = np.flatnonzero(symmetry.sizes > 1)
        one, two = (grid.ravel() for grid in np.meshgrid(range(classes), range(classes), indexing="ij"))
        crossed = np.flatnonzero(one != two)
        codes = np.arange(classes)
        first = np.concatenate([codes, several, one[crossed]])
        second = np.concatenate([codes, several, two[crossed]])
        equal = np.arange(len(first)) < classes
        inside = (symmetry.classes[:, None] == first) & (symmetry.classes[:, None] == second)
        values = np.where(equal, 0.0, symmetry.sizes[first] / np.maximum(symmetry.sizes[first] - 1, 1))
        # A pair that crosses classes is seen by a component at one end alone.
        seen = np.where(inside, values, 1.0)
        places = {pair: place for place, pair in enumerate(zip(first, second, equal, strict=True))}
        reverse = [places[j, i, same] for i, j, same in zip(first, second, equal, strict=True)]
        others = symmetry.sizes[symmetry.classes] - 1
        return cls(first, second, seen, equal, np.array(reverse, dtype=np.intp), others)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Kinds of pairs of cells of records that are replaced: none the same cell, nor the reverse of another."""

    types: tuple[Types, ...]
    chosen: tuple[Index, ...]  # of each attribute, the type of each kind
    first: Index  # first, second: (kinds,) orbits of the cells
    second: Index

    @property
    def count(self) -> int:
        """Number of kinds."""
        return len(self.first)

    @classmethod
    def of(cls, symmetries: tuple[AttributeSymmetry, ...], wide: tuple[int, ...], fixed: Collection[int] = ()) -> Pairs:
        """List the kinds of pairs that have the same value of each `fixed` attribute; refused beyond `MAX_ORBITS`."""
        types = tuple(Types.of(symmetry) for symmetry in symmetries)
        kept = [
            np.flatnonzero(attribute_types.equal | (axis not in fixed)) for axis, attribute_types in enumerate(types)
        ]
        count = math.prod(float(len(places)) for places in kept)
        if count > 2 * MAX_ORBITS:
            raise GeometryError(
                f"replaced records make {count:.3g} types of pairs of cells, more than "
                f"{2 * MAX_ORBITS}; records added or removed make fewer, and add-remove:2 protects a replaced one too"
            )
        chosen = _unordered(types, kept)
        same = np.all([attribute_types.equal[at] for attribute_types, at in zip(types, chosen, strict=True)], axis=0)
        chosen = tuple(at[~same] for at in chosen)
        return cls(types, chosen, *_ends(types, chosen, symmetries, wide))

    def apart(self, key: Key) -> Array:
        """Return 1 - κ of a block for each kind, 1 where it does not see both."""
        differs = np.zeros(self.count)
        for axis, component in key:
            differs_here = self.types[axis].apart[component][self.chosen[axis]]
            differs = differs + differs_here - differs * differs_here
        return differs

    def inside(self, key: Key) -> Array:
        """Return what a unit of ``1/K`` costs each kind, both of whose cells are in one coordinate of a block."""
        return 2 * self.apart(key)

    def weights(self) -> tuple[list[int], list[int]]:
        """Return how often each kind counts, halves, the squares of both cells and their inner product."""
        return [2] * self.count, [-4] * self.count


@dataclass(frozen=True, slots=True, eq=False)
class Persons(Pairs):
    """Kinds of persons with records in several cells, all of different values of one attribute, the groups.

    A person in l cells costs ``Σ_u C_uu + Σ_{u≠v} C_uv``, C the cost matrix. A kind is a number l of cells and one kind
    of pairs for all of them, so that it costs a block of one coordinate ``l (1 + (l - 1) κ)``. Others cost no more:
    where all C_uu are c, as in marginal tables, l cells cost ``l c + Σ_{u≠v} C_uv``, which is at most ``l c + l (l - 1)
    max C_uv``, and where every attribute that is asked for has l values there are l cells all of whose pairs are of the
    kind that attains the maximum. For marginal tables a kind is l and the set D of attributes in which the cells
    differ, among them the attribute of the groups, and ``κ = Π -1 / (n_i - 1)`` over the attributes of D in the block.
    Two cells are a pair, for any tables. Elsewhere l cells are refused: with m < l of which all is known,
    ``contributions:…:K l / m:m`` bounds them (Theorem 3a of ``docs/theorems.md``).
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
        """List the kinds of persons, by the attributes that blocks of these keys see.

        Raises `InvalidInputError` for a domain without the attribute, `GeometryError` for too many kinds, and for
        more groups than are exact.
        """
        rule.check(domain)
        blocks = list(keys)
        groups, seen = (domain.names.index(rule.attribute), {axis for key in blocks for axis, _ in key} | {*wide})
        types = tuple(Types.of(symmetry) for symmetry in symmetries)
        most = _most_cells(rule, domain, symmetries, wide, seen)
        kept = [
            np.arange(len(attribute_types.first) if axis in seen else 1) for axis, attribute_types in enumerate(types)
        ]
        kept[groups] = np.flatnonzero(~types[groups].equal)
        pairs = math.prod(float(len(places)) for places in kept)
        singles = math.prod(len(symmetries[axis].sizes) for axis in wide)
        kinds = singles + pairs * (most - 1)
        if kinds > MAX_ORBITS or kinds * len(blocks) > MAX_BLOCK_ENTRIES:
            raise GeometryError(
                f"neighbours ({rule}) are of {kinds:.3g} kinds, in {len(blocks)} blocks (limits: {MAX_ORBITS} kinds, "
                f"{MAX_BLOCK_ENTRIES} in all): every attribute that is asked for doubles them; "
                f"neighbours='{_anywhere(rule, most)}' bounds them"
            )
        chosen = _unordered(types, kept) if most > 1 else tuple(np.zeros(0, dtype=np.intp) for _ in types)
        one, two = _ends(types, chosen, symmetries, wide)
        first = np.concatenate([np.arange(singles), *[one] * (most - 1)])
        second = np.concatenate([np.full(singles, singles), *[two] * (most - 1)])  # a cell that there is not
        alone = np.zeros(singles, dtype=np.intp)
        several = tuple(np.concatenate([alone, *[at] * (most - 1)]) for at in chosen)
        cells = np.repeat(np.arange(1, most + 1), [singles, *[len(one)] * (most - 1)])
        return cls(types, several, first, second, cells)

    def apart(self, key: Key) -> Array:
        return 2 - super(Persons, self).apart(key)

    def inside(self, key: Key) -> Array:
        # 1/κ is a whole number, so no digit is lost where the cost is almost 0: l (P ± (l - 1)) / P.
        inverse, sign = np.ones(self.count), np.ones(self.count)
        for axis, component in key:
            differ = ~self.types[axis].equal[self.chosen[axis]]
            inverse = np.where(differ, inverse * self.types[axis].others[component], inverse)
            sign = np.where(differ, -sign, sign)
        return np.asarray(self.cells * (inverse + sign * (self.cells - 1)) / inverse)

    def weights(self) -> tuple[list[int], list[int]]:
        counts = self.cells.tolist()
        return [max(count, 2) for count in counts], [2 * count * (count - 1) for count in counts]


def _anywhere(rule: Contributions, most: int) -> str:
    return f"add-remove:{rule.members * most}"


def _most_cells(
    rule: Contributions,
    domain: Domain,
    symmetries: tuple[AttributeSymmetry, ...],
    wide: tuple[int, ...],
    seen: set[int],
) -> int:
    """Return in how many cells a person can be; refused where kinds of pairs do not say what they cost."""
    values = dict(domain.sizes)
    most = min(rule.groups, values[rule.attribute])
    turned = [domain.names[axis] for axis in seen if symmetries[axis].turning]
    if turned and most > 1:
        raise GeometryError(
            f"neighbours ({rule}) are for tables that ask no circle of an attribute, as of {turned[0]!r}; "
            f"neighbours='{_anywhere(rule, most)}' bounds them"
        )
    if most <= 2:
        return most
    few = min((n for n in (domain.shape[axis] for axis in seen) if n > 1), default=most)
    exact = 2 if wide else few
    if exact < most:
        why = (
            f"values of {domain.names[wide[0]]!r} are told apart"
            if wide
            else f"{next(domain.names[axis] for axis in sorted(seen) if domain.shape[axis] == few)!r} has {few} values"
        )
        raise GeometryError(
            f"neighbours ({rule}) may be in {exact} groups at most, where {why}; "
            f"neighbours='contributions:{rule.attribute}:{-(-rule.members * most // exact)}:{exact}' bounds them, and "
            f"so does '{_anywhere(rule, most)}'"
        )
    return most


def _unordered(types: Sequence[Types], kept: Sequence[Index]) -> tuple[Index, ...]:
    """Return, by attribute, the types of all pairs of cells of these types, one of a pair and its reverse."""
    several = [axis for axis, places in enumerate(kept) if len(places) != 1]
    sizes = [len(kept[axis]) for axis in several]
    count = math.prod(sizes)
    index = np.unravel_index(np.arange(count), sizes) if sizes else ()
    turned = np.zeros(count, dtype=np.intp)
    for axis, at in zip(several, index, strict=True):
        reverse = np.searchsorted(kept[axis], types[axis].reverse[kept[axis]])
        turned = turned * len(kept[axis]) + reverse[at]
    one_of_both = np.flatnonzero(np.arange(count) <= turned)
    columns = [np.full(len(one_of_both), places[0] if len(places) else 0, dtype=np.intp) for places in kept]
    for axis, at in zip(several, index, strict=True):
        columns[axis] = kept[axis][at[one_of_both]].astype(np.intp)
    return tuple(columns)


def _ends(
    types: Sequence[Types], chosen: Sequence[Index], symmetries: Sequence[AttributeSymmetry], wide: Iterable[int]
) -> tuple[Index, Index]:
    """Return the orbits of both cells of each kind of pairs."""
    first, second = np.zeros(len(chosen[0]), dtype=np.intp), np.zeros(len(chosen[0]), dtype=np.intp)
    for axis in wide:
        count = len(symmetries[axis].sizes)
        first = first * count + types[axis].first[chosen[axis]]
        second = second * count + types[axis].second[chosen[axis]]
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
    """Return what a unit of ``1/K`` of each block of one coordinate costs an orbit of neighbours, and others' steps.

    Raises `GeometryError` for too many kinds of pairs, `InvalidInputError` where no neighbour moves any block.
    """
    moved = NeighbourMoves.of(relation, domain, symmetries, rows, [*keys, *(block.key for block in blocks)])
    if moved.pairs is not None:
        columns = [_single(moved.pairs, rows, key) for key in keys]
        reach = sp.csr_array(np.column_stack([np.zeros((moved.count, 0)), *columns]))
    several = []
    for block in blocks:
        steps, orbits = moved.steps(block.key, block.moves)
        several.append(replace(block, steps=steps, orbits=orbits))
    if not (reach.count_nonzero() or any(map(np.any, (block.steps for block in several)))):
        raise InvalidInputError(UNMOVED)
    return sp.csr_array(moved.scale**2 * reach), tuple(several)


@dataclass(frozen=True, slots=True, eq=False)
class NeighbourMoves:
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
    ) -> NeighbourMoves:
        """Find the orbits of neighbours of blocks under a relation, None for one record added or removed."""
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
    places = np.full(1 + int(max(cells.max(), pairs.first.max(initial=0), pairs.second.max(initial=0))), -1)
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
