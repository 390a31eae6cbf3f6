"""Classes of the values of attributes, and what they see of queries: the bookkeeping of ``blocks``."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import prod

from .domain import Asked, Key, by_attribute
from .exact import expect, power
from .given import Given

Table = dict[int, str]
Row = tuple[int, ...]
Part = tuple[Row, int]  # sums over the orbits of a block, times a power of two


class Group:
    """Queries of an attribute that its classes see alike.

    They have the same ``sums`` over the classes, times a power of two and up to sign, and on each class the same
    squared length ``rest`` of what is left without its mean.
    """

    def __init__(self, sums: Row, exponent: int, rest: Sequence[Fraction], members: Sequence[int]) -> None:
        self.sums, self.exponent, self.rest, self.members = sums, exponent, rest, members


class Classes:
    """The classes of every attribute's values, one where a file names none, and the groups of every set of queries."""

    def __init__(self, asked: Asked, given: Given) -> None:
        self.asked, named = asked, by_attribute(given, len(asked.sizes))
        self.labels = {axis: _labels(said, asked.sizes[axis]) for axis, said in named.items()}
        self.sizes = [[size] for size in asked.sizes]
        for axis, labels in self.labels.items():
            self.sizes[axis] = [labels.count(label) for label in range(max(labels) + 1)]
            expect(min(self.sizes[axis]) > 0, "classes must be numbered from 0, none without a value")
        self.wide = [axis for axis, sizes in enumerate(self.sizes) if len(sizes) > 1]
        self.groups = {pair: self._groups(*pair) for pair in asked.used()}

    def orbits(self, key: Key = ()) -> list[Row]:
        """Return the orbits of a block: a class of each wide attribute, the key's own where it has it."""
        chosen = dict(key)
        own = [[chosen[axis]] if axis in chosen else range(len(self.sizes[axis])) for axis in self.wide]
        return list(product(*own))

    def cells(self, key: Key) -> list[int]:
        """Return, for every orbit of a block, how many cells its sums go over."""
        chosen = dict(key)
        return [
            prod(
                self.sizes[axis][own]
                for axis, own in zip(self.wide, orbit, strict=True)
                if axis not in chosen
            )
            for orbit in self.orbits(key)
        ]

    def cases(self, table: Table) -> list[tuple[Group, ...]]:
        """Return every choice of a group for each attribute of a table."""
        return list(product(*(self.groups[pair] for pair in table.items())))

    def parts(self, table: Table, case: tuple[Group, ...]) -> list[tuple[Key, Part, Fraction]]:
        """Return the blocks that queries of some groups have a part in: s, and the square of all that multiplies it.

        These are the lengths of what is left on the classes of a key, and the means over attributes of one class.
        """
        choices: list[list[Key]] = [
            [(), *(((axis, index),) for index, rest in enumerate(group.rest) if rest)]
            for axis, group in zip(table, case, strict=True)
        ]
        own, found = dict(zip(table, case, strict=True)), []
        for key in (sum(each, ()) for each in product(*choices)):
            part, square = self._part(own, dict(key))
            for axis, index in key:
                square *= own[axis].rest[index]
            if square and any(part[0]):
                found.append((key, part, square))
        return found

    def _part(self, own: dict[int, Group], chosen: dict[int, int]) -> tuple[Part, Fraction]:
        row: Row = (1,)
        exponent, square = 0, Fraction(1)
        for axis in sorted({*own, *self.wide} - {*chosen}):
            sums, shift = (own[axis].sums, own[axis].exponent) if axis in own else (self.sizes[axis], 0)
            if axis in self.wide:
                row, exponent = tuple(one * two for one in row for two in sums), exponent + shift
            else:
                square *= (power(sums[0], shift) / self.asked.sizes[axis]) ** 2
        return (row, exponent), square

    def require_symmetry(self) -> None:
        """Require of every group that the sum of its ``a'a`` depends on classes, and sameness of values, alone."""
        for axis, name in self.asked.used():
            queries, labels = self.asked.matrix_of(axis, name), self.labels_of(axis)
            if queries is None or len(self.sizes[axis]) == len(labels):
                continue  # of values, and where every value is a class, it does
            columns = list(zip(*queries.rows, strict=True))
            for group in self.groups[axis, name]:
                own = [[column[member] for member in group.members] for column in columns]
                known: dict[tuple[int, int, bool], int] = {}
                for one, first in enumerate(own):
                    for two, second in enumerate(own):
                        entry = sum(map(int.__mul__, first, second))
                        kind = labels[one], labels[two], one == two
                        expect(
                            known.setdefault(kind, entry) == entry,
                            f"queries {name!r} must see the values of a class of attribute {axis} alike",
                        )

    def labels_of(self, axis: int) -> Sequence[int]:
        """Return the class of each value of an attribute."""
        return self.labels.get(axis) or (0,) * self.asked.sizes[axis]

    def _groups(self, axis: int, name: str) -> list[Group]:
        sizes, queries = self.sizes[axis], self.asked.matrix_of(axis, name)
        if queries is None:
            return self._of_values(axis)
        labels, found = self.labels_of(axis), dict[tuple[Row, Row], list[int]]()
        for member, row in enumerate(queries.rows):
            sums, squares = [0] * len(sizes), [0] * len(sizes)
            for label, entry in zip(labels, row, strict=True):
                sums[label] += entry
                squares[label] += entry * entry
            turned = -1 if next((each for each in sums if each), 0) < 0 else 1
            looks = tuple(turned * each for each in sums), tuple(squares)
            found.setdefault(looks, []).append(member)
        exponent = queries.exponent
        return [
            Group(sums, exponent, _rest(sums, squares, sizes, exponent), members)
            for (sums, squares), members in found.items()
        ]

    def _of_values(self, axis: int) -> list[Group]:
        sizes, labels = self.sizes[axis], self.labels.get(axis)
        members: list[Sequence[int]] = [range(sizes[0])]
        if labels is not None:
            members = [[] for _ in sizes]
            for value, label in enumerate(labels):
                members[label].append(value)  # type: ignore[attr-defined]
        units = [tuple(int(one == two) for two in range(len(sizes))) for one in range(len(sizes))]
        return [
            Group(unit, 0, _rest(unit, unit, sizes, 0), own) for unit, own in zip(units, members, strict=True)
        ]


def _rest(sums: Row, squares: Row, sizes: list[int], exponent: int) -> list[Fraction]:
    pairs = zip(sums, squares, sizes, strict=True)
    return [(square - Fraction(own * own, size)) * power(1, 2 * exponent) for own, square, size in pairs]


def _labels(given: Given, size: int) -> list[int]:
    labels = given.vector("classes", size)
    expect(
        all(label.denominator == 1 and 0 <= label < size for label in labels), "classes must be whole numbers"
    )
    return [int(label) for label in labels]
