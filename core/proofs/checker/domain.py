"""Tables over a domain, as a file states them: what is asked of data whose cells are too many to list.

There are attributes of n_1, …, n_r values; a cell is a value of each. A table names some attributes S, and for each of
them a set of queries: the rows of a matrix, or ``values``, each value alone. It asks every product ``⊗ a_i`` of one
query of each attribute in S, summed over the values of all others. With every table comes a number: a target on the
variance of each of its queries, or what a unit of it counts. Neighbours differ by
``records`` records, in whatever cells: the cost of a difference is convex in it, and so largest with all in one cell.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from .exact import Matrix, expect
from .given import Given

Key = tuple[tuple[int, int], ...]
"""Some attributes, each with one class of its values."""

MOST = 2**22  # values of an attribute, and subsets of the attributes of all tables: what is listed one by one
POSITION = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)  # so that no two texts are the same number


class Asked:
    """The tables of a problem, with their numbers."""

    def __init__(self, problem: Given) -> None:
        self.sizes = [int(size) for size in problem.vector("sizes")]
        expect(
            min(self.sizes) > 0 and self.sizes == problem.vector("sizes"), "sizes must be positive and whole"
        )
        expect(max(self.sizes) <= MOST, f"an attribute may have {MOST} values at most")
        self.named, self.sets = problem.part("queries"), dict[str, Matrix]()
        self.tables = [self._table(each) for each in problem.parts("tables")]
        subsets = sum(1 << min(len(table), 64) for table in self.tables)
        expect(subsets <= MOST, f"tables may have {MOST} subsets of their attributes at most, got {subsets}")
        self.numbers = problem.nonnegative("numbers", len(self.tables))
        self.weighs = problem.get("kind") == "table weights"
        expect(self.weighs or min(self.numbers) > 0, "targets must be positive")
        records = problem.number("records")
        expect(records > 0, "records must be positive")
        self.moved = records**2

    def used(self) -> set[tuple[int, str]]:
        """Return every attribute with the name of each set of queries that some table asks of it."""
        return {pair for table in self.tables for pair in table.items()}

    def matrix_of(self, axis: int, name: str) -> Matrix | None:
        """Return queries of an attribute, None for its values."""
        return None if name == "values" else self.sets[name]

    def summed(self, variances: list[list[tuple[Fraction, int]]]) -> Fraction:
        """Return the largest variance over its target, or the weighted sum, from each table's, with their counts."""
        pairs = list(zip(variances, self.numbers, strict=True))
        if self.weighs:
            return sum(
                (weight * variance * count for own, weight in pairs for variance, count in own), Fraction(0)
            )
        return max(variance / target for own, target in pairs for variance, _ in own)

    def _table(self, given: Given) -> dict[int, str]:
        found = {position(axis, len(self.sizes)): given.get(axis) for axis in given.names()}
        for axis, name in found.items():
            known = isinstance(name, str) and name in ("values", *self.named.names())
            expect(known, f"tables must ask 'values' or queries of the file, got {str(name)[:40]!r}")
            if name != "values":
                if name not in self.sets:
                    self.sets[name] = self.named.matrix(name)
                columns = self.sets[name].shape[1]
                expect(
                    columns == self.sizes[axis],
                    f"queries {name!r} must have {self.sizes[axis]} columns, got {columns}",
                )
        return dict(sorted(found.items()))


def position(text: Any, count: int) -> int:
    """Return which of some things a text names by its number."""
    expect(
        isinstance(text, str) and POSITION.fullmatch(text) is not None and int(text) < count,
        f"{str(text)[:40]!r} is no number below {count}",
    )
    return int(text)


def by_attribute(given: Given, count: int) -> dict[int, Given]:
    """Return what a file says of attributes, where it says anything."""
    found = given.get("attributes")
    if found is None:
        return {}
    expect(isinstance(found, dict), "attributes must be named by their numbers")
    named = given.part("attributes")
    return {position(name, count): named.part(name) for name in named.names()}


def by_key(given: Given, classes: list[int]) -> dict[Key, Given]:
    """Return the blocks of a file, each where it lives: some attributes, with a class of the values of each."""
    found: dict[Key, Given] = {}
    for each in given.listed("blocks"):
        on = each.part("on")
        own = {position(axis, len(classes)): on.get(axis) for axis in on.names()}
        found[tuple((axis, position(own[axis], classes[axis])) for axis in sorted(own))] = each
    return found


def level(block: Given) -> Fraction:
    """Return the variance of noise in a block of one coordinate."""
    found = block.number("level")
    expect(found > 0, "level must be positive")
    return found
