"""Tables in parts whose attributes hang on trees: all together where that is small enough, else forest by forest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualmech.errors import InvalidInputError
from dualmech.publishing.fitting.clique_tables import CliqueTables
from dualmech.publishing.fitting.junction import junction_tree
from dualmech.workloads.domain import Domain
from dualmech.workloads.lattice import Axes


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
    for number in sorted(range(len(sets)), key=lambda each: -len(sets[each])):
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
