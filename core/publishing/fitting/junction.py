"""Which attributes must be seen together: the cliques of a triangulated graph, and the tree that they hang on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dualmech.display import counted
from dualmech.errors import InvalidInputError
from dualmech.workloads.domain import Domain, count_text
from dualmech.workloads.lattice import Axes

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
    given, sizes = [frozenset(axes) for axes in sets], domain.shape

    def cells(axes: Iterable[int]) -> int:
        return math.prod(sizes[axis] for axis in axes)

    def new_edges(axis: int, near: dict[int, set[int]]) -> int:
        return sum(len(near[axis] - near[other]) - 1 for other in near[axis])

    orders = (lambda axis, near: cells(near[axis]) * sizes[axis], new_edges)
    found = [_cliques(given, price, cells) for price in orders]
    best = min(found, key=lambda cliques: (max(map(cells, cliques)), sum(map(cells, cliques))))
    for each in (max(best, key=cells), *best):
        if cells(each) > LARGEST_CLIQUE:
            raise InvalidInputError(_hangs_together(domain, sorted(each), cells(each)))
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
    found: list[frozenset[int]] = []
    while near:
        axis = min(near, key=prices.__getitem__)
        around = near.pop(axis)
        clique = frozenset(around | {axis})
        if not any(clique <= other for other in found):
            found.append(clique)
        if cells(clique) > LARGEST_CLIQUE:
            break
        for other in around:
            near[other] = (near[other] | around) - {axis, other}
        changed = around.union(*(near[other] for other in around))
        prices.update((other, (price(other, near), other)) for other in changed)
    return found or [frozenset()]


def _spanning_tree(cliques: Sequence[frozenset[int]]) -> tuple[Clique, ...]:
    """Return cliques in the order in which a tree of the largest separators takes them in."""
    found = [Clique(tuple(sorted(cliques[0])), -1, ())]
    best = {number: (len(clique & cliques[0]), 0) for number, clique in enumerate(cliques[1:], start=1)}
    places = {0: 0}
    while best:
        number = max(best, key=lambda each: best[each][0])
        _, parent = best.pop(number)
        own = cliques[number]
        places[number] = len(found)
        found.append(Clique(tuple(sorted(own)), places[parent], tuple(sorted(own & cliques[parent]))))
        for other, (shared, _) in best.items():
            if len(cliques[other] & own) > shared:
                best[other] = (len(cliques[other] & own), number)
    return tuple(found)
