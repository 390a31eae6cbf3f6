"""Tables of cliques that agree on what they share: how they are laid out, made to agree, and searched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dualmech.display import counted
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.domain import Axes, Domain, count_text

# Which attributes must be seen together: the cliques of a triangulated graph, and the tree that they hang on.


LARGEST_CLIQUE, LARGEST_SUM = 2**17, 2**20  # cells of one clique's table, and of all together
MOST_NAMED = 6  # attributes that a refusal names


@dataclass(frozen=True, slots=True)
class Clique:
    """Attributes whose joint table is a variable, in increasing order, and how it hangs on the tree.

    `separator` are the attributes shared with the clique number `parent`, which comes before; the root has none.
    """

    axes: Axes
    parent: int
    separator: Axes


def junction_tree(domain: Domain, sets: Iterable[Axes]) -> tuple[Clique, ...]:
    """Return cliques of attributes, parents first, such that each set is in one, on a tree of them.

    Of two cliques that share an attribute, all between them on the tree have it (running intersection). The graph in
    which attributes of a set are neighbours is triangulated greedily, once by the fewest cells of the next clique and
    once by the fewest new edges; what has fewer cells is taken. Its cliques hang on a spanning tree of the most shared
    attributes, which for a triangulated graph has running intersections. Parts that share nothing hang together by
    empty separators, the total.
    Raises `InvalidInputError` for a clique of more than 2^17 cells, with its attributes, or more than 2^20 in all.
    Source: Jensen and Jensen, "Optimal junction trees", UAI 1994, for the spanning tree.

    Examples
    --------
    >>> domain = Domain({"age": 4, "sex": 2, "race": 3, "parent": 2})
    >>> [clique.axes for clique in junction_tree(domain, [(0, 1), (1, 2), (2, 3), (0, 3)])]
    [(1, 2, 3), (0, 1, 3)]
    >>> junction_tree(domain, [(0, 1), (2,), ()])[0]
    Clique(axes=(2,), parent=-1, separator=())
    """
    tables, sizes = [frozenset(axes) for axes in sets], domain.shape

    def cells(axes: Iterable[int]) -> int:
        return math.prod(sizes[axis] for axis in axes)

    def new_edges(axis: int, near: dict[int, set[int]]) -> int:
        return sum(len(near[axis] - near[other]) - 1 for other in near[axis])

    orders = (lambda axis, near: cells(near[axis]) * sizes[axis], new_edges)
    candidates = [_cliques(tables, price, cells) for price in orders]
    best = min(candidates, key=lambda cliques: (max(map(cells, cliques)), sum(map(cells, cliques))))
    for candidate in (max(best, key=cells), *best):
        if cells(candidate) > LARGEST_CLIQUE:
            raise InvalidInputError(_hangs_together(domain, sorted(candidate), cells(candidate)))
    if sum(map(cells, best)) > LARGEST_SUM:
        raise InvalidInputError(
            f"tables of {sum(map(cells, best))} cells in all are too large to fit (limit {LARGEST_SUM}): fit a release "
            f"of fewer tables, or publish the unbiased ones"
        )
    return _spanning_tree(best)


def _hangs_together(domain: Domain, axes: Sequence[int], cells: int) -> str:
    """Say which attributes hang together too tightly, and what to do."""
    names = ", ".join(repr(domain.names[axis]) for axis in axes[:MOST_NAMED])
    more = f" and {len(axes) - MOST_NAMED} more" if len(axes) > MOST_NAMED else ""
    return (
        f"a data set of these tables is too large to fit: they tie {counted(len(axes), 'attribute')} together, {names}"
        f"{more}, of {count_text(cells)} cells (limit {LARGEST_CLIQUE}): fit a release of fewer tables among "
        f"them, or of fewer values (bins, classes of labels), or publish the unbiased tables"
    )


def _cliques(
    sets: Sequence[frozenset[int]],
    price: Callable[[int, dict[int, set[int]]], int],
    cells: Callable[[Iterable[int]], int],
) -> list[frozenset[int]]:
    """Return the maximal cliques as attributes are eliminated one by one, the cheapest first.

    It ends with a clique that is too large, so that a refusal does not take long.
    """
    near: dict[int, set[int]] = {axis: set() for axes in sets for axis in axes}
    for axes in sets:
        for axis in axes:
            near[axis] |= axes - {axis}
    prices = {axis: (price(axis, near), axis) for axis in near}
    cliques: list[frozenset[int]] = []
    while near:
        axis = min(near, key=prices.__getitem__)
        around = near.pop(axis)
        clique = frozenset(around | {axis})
        if not any(clique <= other for other in cliques):
            cliques.append(clique)
        if cells(clique) > LARGEST_CLIQUE:
            break
        for other in around:
            near[other] = (near[other] | around) - {axis, other}
        changed = around.union(*(near[other] for other in around))
        prices.update((other, (price(other, near), other)) for other in changed)
    return cliques or [frozenset()]


def _spanning_tree(cliques: Sequence[frozenset[int]]) -> tuple[Clique, ...]:
    """Return cliques in the order in which a tree of the largest separators takes them in."""
    tree = [Clique(tuple(sorted(cliques[0])), -1, ())]
    best = {number: (len(clique & cliques[0]), 0) for number, clique in enumerate(cliques[1:], start=1)}
    places = {0: 0}
    while best:
        number = max(best, key=lambda candidate: best[candidate][0])
        _, parent = best.pop(number)
        joining = cliques[number]
        places[number] = len(tree)
        tree.append(Clique(tuple(sorted(joining)), places[parent], tuple(sorted(joining & cliques[parent]))))
        for other, (shared, _) in best.items():
            if len(cliques[other] & joining) > shared:
                best[other] = (len(cliques[other] & joining), number)
    return tuple(tree)


@dataclass(frozen=True, slots=True, eq=False)
class CliqueTables:
    """The layout of the tables of cliques on a tree, one after another in a vector.

    Tables ``p_C ≥ 0`` that agree on separators, ``Σ_{C∖S} p_C = Σ_{P∖S} p_P``, are those of a non-negative data set:
    hang the cliques on one after another and let ``x = Π_C p_C / Π_S p_S``, with 0/0 = 0. A child's factor
    ``p_C / p_S`` adds up to 1 over its new attributes wherever ``p_S > 0``, so it leaves the tables before
    as they were, and by running intersection its own table is p_C. The converse is plain.
    """

    cliques: tuple[Clique, ...]
    sizes: tuple[int, ...]  # of all attributes
    shapes: tuple[Axes, ...] = field(init=False)
    offsets: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        shapes = tuple(tuple(self.sizes[axis] for axis in clique.axes) for clique in self.cliques)
        object.__setattr__(self, "shapes", shapes)
        object.__setattr__(self, "offsets", tuple(np.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist()))

    @property
    def cells(self) -> int:
        return self.offsets[-1]

    def views(self, vector: Array) -> list[Array]:
        bounds = zip(self.offsets, self.offsets[1:], self.shapes, strict=False)
        return [vector[first:last].reshape(shape) for first, last, shape in bounds]

    def outside(self, number: int, axes: Axes) -> Axes:
        """Return which sides of a clique's table belong to other attributes than these."""
        return tuple(side for side, axis in enumerate(self.cliques[number].axes) if axis not in axes)

    def marginal(self, table: Array, number: int, axes: Axes) -> Array:
        return np.asarray(table.sum(axis=self.outside(number, axes)))

    def spread(self, table: Array, number: int, axes: Axes) -> Array:
        """Return a table of some attributes with sides of length one for a clique's others."""
        return np.expand_dims(table, self.outside(number, axes))

    def uniform(self, total: float) -> Array:
        """Return tables that agree, the same number in all cells of each."""
        sizes = np.diff(self.offsets)
        return np.repeat(total / sizes, sizes)

    def least(self, weights: Array) -> float:
        """Return ``min_x Σ_C w_C(x_C)`` over all cells x of the domain, by messages from the leaves to the root.

        ``Σ_C <w_C, p_C>`` over the tables of a data set of total N is at least N times this, and attains it.
        """
        tables = [table.copy() for table in self.views(weights)]
        for number in range(len(tables) - 1, 0, -1):
            clique = self.cliques[number]
            message = tables[number].min(axis=self.outside(number, clique.separator))
            tables[clique.parent] += self.spread(message, clique.parent, clique.separator)
        return float(tables[0].min())

    def agreeing(self, vector: Array, total: float) -> Array:
        """Return non-negative tables that agree, near to some: each is scaled to what its parent says."""
        agreed = vector.copy()
        tables = self.views(agreed)
        for number, table in enumerate(tables):
            clique = self.cliques[number]
            marginal = self.marginal(table, number, clique.separator)
            wanted = np.asarray(total)
            if number:
                wanted = self.marginal(tables[clique.parent], clique.parent, clique.separator)
            factor = np.divide(wanted, marginal, out=np.zeros(marginal.shape), where=marginal > 0)
            even = wanted * (marginal <= 0) * (marginal.size / max(table.size, 1))
            table *= self.spread(factor, number, clique.separator)
            if np.any(even):
                table += self.spread(even, number, clique.separator)
        return agreed


# Tables in parts whose attributes hang on trees: all together where that is small enough, else forest by forest.


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some of the tables, by number, and the cliques of their attributes."""

    tables: tuple[int, ...]
    layout: CliqueTables


def parts_of(domain: Domain, sets: Sequence[Axes]) -> tuple[Part, ...]:
    """Return one part of all tables, or several where these tie too many attributes together.

    Raises `InvalidInputError` where even a part does: one of its tables has too many cells.
    """
    together = range(len(sets))
    try:
        return (_part(domain, sets, together),)
    except InvalidInputError:
        if len(forests := spanning_forests(sets)) == 1:
            raise
        return tuple(_part(domain, sets, chosen) for chosen in forests)


def spanning_forests(sets: Sequence[Axes]) -> list[list[int]]:
    """Split sets, by number, into parts in which they form no circle: a set meets what is there in one of each tree.

    Largest sets come first; one that lies in another is in its part.

    Examples
    --------
    >>> spanning_forests([(0, 1), (1, 2), (0, 2), (2,)])
    [[0, 1, 3], [2]]
    """
    trees: list[dict[int, int]] = []  # of each part, a tree's number for each attribute
    parts: list[list[int]] = []
    for number in sorted(range(len(sets)), key=lambda place: -len(sets[place])):
        axes = set(sets[number])
        place = _place(axes, [[set(sets[other]) for other in part] for part in parts], trees)
        if place == len(parts):
            trees.append({})
            parts.append([])
        tree = trees[place]
        merged = {tree.get(axis, axis) for axis in axes}
        tree.update((axis, min(merged)) for axis in {*tree, *axes} if tree.get(axis, axis) in merged)
        parts[place].append(number)
    return parts


def _place(axes: set[int], parts: Sequence[Sequence[set[int]]], trees: Sequence[dict[int, int]]) -> int:
    """Return the first part that has these attributes in a set, else the first in which they close no circle."""
    for number, part in enumerate(parts):
        if any(axes <= other for other in part):
            return number
    for number, tree in enumerate(trees):
        if len({tree.get(axis, axis) for axis in axes}) == len(axes):
            return number
    return len(parts)


def _part(domain: Domain, sets: Sequence[Axes], chosen: Sequence[int]) -> Part:
    cliques = junction_tree(domain, [sets[number] for number in chosen])
    return Part(tuple(chosen), CliqueTables(cliques, domain.shape))
