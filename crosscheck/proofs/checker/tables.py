"""Gaussian noise on tables over a domain: each side by noise, or weights, of whichever form a file names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import lcm, prod

from . import noise
from .exact import Given, Matrix, Refused, departed, dot, expect, identity, power, root_above, root_below, total

# Tables over a domain, as a file states them: queries on data whose cells are too many to list.
#
# There are attributes of n_1, …, n_r values; a cell is a value of each. A table names some attributes S, and for each
# of them a set of queries: the rows of a matrix, or ``values``, each value alone. It asks every product ``⊗ a_i`` of
# one query of each attribute in S, summed over the values of all others. With every table comes a number: a target on
# the variance of each of its queries, or the weight of each variance. Neighbours differ by ``records`` records, in
# whatever cells: the cost of a difference is convex in it, and so largest with all in one cell.


Key = tuple[tuple[int, int], ...]
"""Some attributes, each with one class of its values."""

MOST = 2**22  # values of an attribute, and subsets of the attributes of all tables: these are listed one by one
POSITION = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)  # so that no two texts are the same number


class AskedTables:
    def __init__(self, problem: Given) -> None:
        self.sizes = [int(size) for size in problem.vector("sizes")]
        expect(min(self.sizes) > 0 and self.sizes == problem.vector("sizes"), "sizes must be positive and whole")
        expect(max(self.sizes) <= MOST, f"an attribute may have {MOST} values at most")
        self.named, self.sets = problem.part("queries"), dict[str, Matrix]()
        self.tables = [self._table(part) for part in problem.parts("tables")]
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
        return None if name == "values" else self.sets[name]

    def summed(self, variances: list[list[tuple[Fraction, int]]]) -> Fraction:
        """Return the largest variance over its target, or the weighted sum, from each table's, with their counts."""
        if self.weighs:
            return dot([dot(*zip(*terms, strict=True)) for terms in variances], self.numbers)
        worst: dict[Fraction, Fraction] = {}
        for terms, target in zip(variances, self.numbers, strict=True):
            worst[target] = max(worst.get(target, Fraction(0)), *(variance for variance, _ in terms))
        return max(variance / target for target, variance in worst.items())

    def _table(self, part: Given) -> dict[int, str]:
        words = {position(axis, len(self.sizes)): part.get(axis) for axis in part.names()}
        for axis, name in words.items():
            if name != "values":
                known = isinstance(name, str) and name in self.named.entries
                expect(known, f"tables must ask 'values' or queries of the file, got {str(name)[:40]!r}")
                if name not in self.sets:
                    self.sets[name] = self.named.matrix(name)
                columns = self.sets[name].shape[1]
                expect(
                    columns == self.sizes[axis], f"queries {name!r} must have {self.sizes[axis]} columns, got {columns}"
                )
        return dict(sorted(words.items()))


def position(text: object, count: int) -> int:
    """Return which of some things a text names by its number."""
    named = text if isinstance(text, str) and POSITION.fullmatch(text) is not None else str(count)
    expect(int(named) < count, f"{str(text)[:40]!r} is no number below {count}")
    return int(named)


def by_attribute(part: Given, count: int) -> dict[int, Given]:
    attributes = part.get("attributes")
    if attributes is None:
        return {}
    expect(isinstance(attributes, dict), "attributes must be named by their numbers")
    named = part.part("attributes")
    return {position(name, count): named.part(name) for name in named.names()}


def by_key(part: Given, classes: list[int]) -> dict[Key, Given]:
    """Return the blocks of a file, each where it lives: some attributes, with a class of the values of each."""
    blocks: dict[Key, Given] = {}
    for block in part.listed("blocks"):
        on = block.part("on")
        components = {position(axis, len(classes)): on.get(axis) for axis in on.names()}
        blocks[tuple((axis, position(components[axis], classes[axis])) for axis in sorted(components))] = block
    return blocks


def level(block: Given) -> Fraction:
    number = block.number("level")
    expect(number > 0, "level must be positive")
    return number


# Classes of the values of attributes, and their view of queries: the bookkeeping of ``blocks``.


Table = dict[int, str]
Row = tuple[int, ...]
Part = tuple[Row, int]  # sums over the orbits of a block, times a power of two
Case = tuple[int, list[tuple[Key, Part, Fraction, Fraction]]]
"""How many queries are alike, and the parts of each, their keys with places in the table for attributes."""


class Group:
    """Queries of an attribute that its classes see alike.

    They have the same ``sums`` over the classes, times a power of two and up to sign, and on each class the same
    squared length ``rest`` of what is left without its mean.
    """

    def __init__(self, sums: Row, exponent: int, rest: Sequence[Fraction], members: Sequence[int]) -> None:
        self.sums, self.exponent, self.rest, self.members = sums, exponent, rest, members


class Classes:
    """The classes of every attribute's values, one where a file names none, and the groups of every set of queries."""

    def __init__(self, tables: AskedTables, part: Given) -> None:
        self.asked, named = tables, by_attribute(part, len(tables.sizes))
        self.labels = {axis: _labels(stated, tables.sizes[axis]) for axis, stated in named.items()}
        self.sizes = [[size] for size in tables.sizes]
        for axis, labels in self.labels.items():
            self.sizes[axis] = [labels.count(label) for label in range(max(labels) + 1)]
            expect(min(self.sizes[axis]) > 0, "classes must be numbered from 0, none without a value")
        self.wide = [axis for axis, sizes in enumerate(self.sizes) if len(sizes) > 1]
        self.of_values: dict[int, list[Group]] = {}  # of attributes of one class, by their sizes
        self.groups = {pair: self._groups(*pair) for pair in tables.used()}
        self.known: dict[tuple[tuple[int, int], ...], list[Case]] = {}

    def orbits(self, key: Key = ()) -> list[Row]:
        """Return the orbits of a block: a class of each wide attribute, the key's own where it has it."""
        chosen = dict(key)
        choices = [[chosen[axis]] if axis in chosen else range(len(self.sizes[axis])) for axis in self.wide]
        return list(product(*choices))

    def cells(self, key: Key) -> list[int]:
        """Return, for every orbit of a block, how many cells its sums go over."""
        chosen = dict(key)
        return [
            prod(self.sizes[axis][index] for axis, index in zip(self.wide, orbit, strict=True) if axis not in chosen)
            for orbit in self.orbits(key)
        ]

    def cases(self, table: Table) -> list[Case]:
        """Return the queries of a table by their groups, with the blocks in which they have a part.

        Of each part these are s, the square of all that multiplies it, and φ: the lengths of what is left on the
        classes of a key, and the means over attributes of one class; φ is for queries of weight 1, and with the square
        of the number of copies. The choice of attributes of one class changes nothing but the key, so all is found once
        for tables that are alike.
        """
        like = tuple((id(self.groups[pair]), pair[0] if pair[0] in self.wide else -1) for pair in table.items())
        if like not in self.known:
            choices = product(*(self.groups[pair] for pair in table.items()))
            self.known[like] = [
                (prod(len(group.members) for group in case), self._parts(dict(zip(table, case, strict=True))))
                for case in choices
            ]
        return self.known[like]

    def _parts(self, groups: dict[int, Group]) -> list[tuple[Key, Part, Fraction, Fraction]]:
        """Return them with the places of attributes in the table for the attributes of a key."""
        axes, parts = [*groups], []
        choices: list[list[Key]] = [
            [(), *(((place, index),) for index, rest in enumerate(groups[axis].rest) if rest)]
            for place, axis in enumerate(axes)
        ]
        for on in (sum(choice, ()) for choice in product(*choices)):
            part, square = self._part(groups, {axes[place]: index for place, index in on})
            share = Fraction(1)
            for place, index in on:
                square *= groups[axes[place]].rest[index]
                share *= 1 - Fraction(1, self.sizes[axes[place]][index])
            if square and any(part[0]):
                parts.append((on, part, square, square * share))
        return parts

    def _part(self, groups: dict[int, Group], chosen: dict[int, int]) -> tuple[Part, Fraction]:
        row: Row = (1,)
        exponent, square = 0, Fraction(1)
        for axis in sorted({*groups, *self.wide} - {*chosen}):
            sums, shift = (groups[axis].sums, groups[axis].exponent) if axis in groups else (self.sizes[axis], 0)
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
                rows = [[column[member] for member in group.members] for column in columns]
                known: dict[tuple[int, int, bool], int] = {}
                for one, first in enumerate(rows):
                    for two, second in enumerate(rows):
                        entry = sum(map(int.__mul__, first, second))
                        kind = labels[one], labels[two], one == two
                        expect(
                            known.setdefault(kind, entry) == entry,
                            f"queries {name!r} must see the values of a class of attribute {axis} alike",
                        )

    def labels_of(self, axis: int) -> Sequence[int]:
        return self.labels.get(axis) or (0,) * self.asked.sizes[axis]

    def _groups(self, axis: int, name: str) -> list[Group]:
        sizes, queries = self.sizes[axis], self.asked.matrix_of(axis, name)
        if queries is None:
            if len(sizes) > 1:
                return self._of_values(axis)
            if sizes[0] not in self.of_values:
                self.of_values[sizes[0]] = self._of_values(axis)
            return self.of_values[sizes[0]]
        labels, by_signature = self.labels_of(axis), dict[tuple[Row, Row], list[int]]()
        for member, row in enumerate(queries.rows):
            sums, squares = [0] * len(sizes), [0] * len(sizes)
            for label, entry in zip(labels, row, strict=True):
                sums[label] += entry
                squares[label] += entry * entry
            turned = -1 if next((entry for entry in sums if entry), 0) < 0 else 1
            looks = tuple(turned * entry for entry in sums), tuple(squares)
            by_signature.setdefault(looks, []).append(member)
        exponent = queries.exponent
        return [
            Group(sums, exponent, _rest(sums, squares, sizes, exponent), members)
            for (sums, squares), members in by_signature.items()
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
            Group(unit, 0, _rest(unit, unit, sizes, 0), indices) for unit, indices in zip(units, members, strict=True)
        ]


def _rest(sums: Row, squares: Row, sizes: list[int], exponent: int) -> list[Fraction]:
    pairs = zip(sums, squares, sizes, strict=True)
    return [(square - Fraction(total * total, size)) * power(1, 2 * exponent) for total, square, size in pairs]


def _labels(part: Given, size: int) -> list[int]:
    labels = part.vector("classes", size)
    expect(all(label.denominator == 1 and 0 <= label < size for label in labels), "classes must be whole numbers")
    return [int(label) for label in labels]


# Tables whose attributes have classes of values: noise that treats the values of a class alike.
#
# The values of each attribute are sorted into classes, in any way; c is a class of n_c values, n is of an attribute
# with one class alone. Functions of a value that are constant on classes, and for each c those that live on it and add
# up to 0, span all functions, and are orthogonal; P_c projects on the latter. So the functions of the cells split into
# orthogonal *blocks*, one for each choice of a set T of attributes with a class of each: products over T of functions
# in the ranges of these P_c, and of functions that are constant on classes over the others. The attributes outside T
# that have several classes make up the *orbits* x, a class of each, of n_x combinations of values; let O be those that
# have one.
#
# Upper bound. In every block measure ``A y ⊗_{i in T} R_i ⊗_{i in O} 1'`` with noise of variance 1, all independent: y
# are the means over the orbits, A is square, ``R_i'R_i = P_c``. A record with values of these classes in T costs ``|A
# e_x|² / n_x² Π_T (1 - 1/n_c)``, any other nothing; what all blocks cost adds up. A query ``⊗ a_i`` (1' where it asks
# nothing) has in the block the part ``s y ⊗_T t_i ⊗_O (s_i/n) 1'``: s are the sums of its entries over the orbits,
# ``t_i = a_i P_c``, whose squared length g_i is the sum of squares over c less the square of the sum over n_c, and s_i
# is the sum of a_i. Since ``t_i = (t_i R_i') R_i`` and ``|t_i R_i'| = |t_i|``, the part has the variance ``|s A⁻¹|² Π_T
# g_i Π_O (s_i/n)²``, and the query the sum of all. ``|s A⁻¹| ≤ |s Z| / (1 - |E|)`` for ``E = A Z - I``, as in
# ``noise``. With one orbit, A is ``1 / √level``.
#
# Lower bound, which is that of ``noise`` for ``N = diag(p) W diag(q)``. The queries of a set with the same sums over
# classes up to sign, and the same g, are a group of m. Let ``Σ a'a`` over a group depend on the classes of two values,
# and on whether they are the same, alone, which is required. Then it is ``m s̄'s̄ + Σ_c m g_c P_c / (n_c - 1)``, s̄
# being the mean on each class. Let p² be the same for all queries of a group of each attribute, and q² for all cells
# with a class x of each attribute, where they add up to h_x². Then ``N'N`` keeps every block and acts alike on its
# ``Π_T (n_c - 1)`` copies, as ``M'M`` does for the rows ``√φ s_x h_x / n_x``, φ being the sum of p² times ``Π_T g_i /
# (n_c (n_c - 1)) Π_O (s_i/n)²``. So ``‖N‖_*`` is the sum of all ``‖M‖_*``, each as often as there are copies, by the
# square of which φ is multiplied. A column has its length for a trace norm; else ``‖M‖_* ≥ ⟨M, Q⟩ / |Q|``, where ``Q =
# diag(√φ) F`` needs no root but that of a bound on ``|Q|²``, such as the largest absolute row sum of ``F' diag(φ) F +
# G'G``, with any G.


Rows = dict[Part, Fraction]  # s, and φ


def placed(on: Key, axes: Row) -> Key:
    """Return the key of a part in a table on these attributes."""
    return tuple((axes[place], index) for place, index in on)


def blocks_upper(tables: AskedTables, part: Given) -> Fraction:
    """Return the objective of noise in blocks: the largest cost, times the largest variance or their sum."""
    classes = Classes(tables, part)
    blocks = {
        key: _Noise(classes, key, block) for key, block in by_key(part, [len(sizes) for sizes in classes.sizes]).items()
    }
    costs: dict[Row, list[Fraction]] = {orbit: [] for orbit in classes.orbits()}
    for key, block in blocks.items():
        for orbit, cost in zip(classes.orbits(key), block.costs, strict=True):
            costs[orbit].append(cost)
    variances = [
        [(_variance_in_blocks(blocks, parts, tuple(table)), count) for count, parts in classes.cases(table)]
        for table in tables.tables
    ]
    return max(map(total, costs.values())) * tables.summed(variances)


def _variance_in_blocks(
    blocks: dict[Key, _Noise], parts: list[tuple[Key, Part, Fraction, Fraction]], axes: Row
) -> Fraction:
    squares, variances = [], []
    for on, seen, square, _ in parts:
        key = placed(on, axes)
        if key not in blocks:
            raise Refused(f"a query has a part on {dict(key)}, where there is no noise")
        squares.append(square)
        variances.append(blocks[key].variance(seen))
    return dot(squares, variances)


class _Noise:
    """Noise in one block: its cost for records of every orbit, and the variance that it gives s."""

    def __init__(self, classes: Classes, key: Key, part: Given) -> None:
        cells = classes.cells(key)
        self.known: dict[Part, Fraction] = {}
        self.inverse: Matrix | None = None
        if len(cells) == 1:
            self.level = level(part)
            lengths = [1 / self.level]
        else:
            shape = (len(cells), len(cells))
            strategy, self.inverse = (part.matrix(name, shape) for name in ("strategy", "inverse"))
            self.level = 1 / (1 - departed(strategy, self.inverse)) ** 2
            squares = strategy.transposed().squares()
            lengths = [square / count**2 for square, count in zip(squares, cells, strict=True)]
        sizes = [classes.sizes[axis][component] for axis, component in key]
        shared = Fraction(prod(size - 1 for size in sizes), prod(sizes))
        self.costs = [shared * length for length in lengths]

    def variance(self, seen: Part) -> Fraction:
        if seen not in self.known:
            row = Matrix([[*seen[0]]], seen[1])
            image = row if self.inverse is None else row.times(self.inverse)
            self.known[seen] = self.level * image.squares()[0]
        return self.known[seen]


def blocks_lower(tables: AskedTables, part: Given) -> Fraction:
    """Return the bound that weights of groups of queries and of orbits of cells prove."""
    classes = Classes(tables, part)
    classes.require_symmetry()
    weights = shared_weights(classes, part)
    roots = dict(zip(classes.orbits(), part.vector("roots", len(classes.orbits())), strict=True))
    expect(any(roots.values()), "roots must not all be 0")
    stated = by_key(part, [len(sizes) for sizes in classes.sizes])
    norms = []
    for key, rows in by_block(classes, weights).items():
        scales = [roots[orbit] / cells for orbit, cells in zip(classes.orbits(key), classes.cells(key), strict=True)]
        if len(scales) == 1:
            lengths = dot(rows.values(), (power(row[0] ** 2, 2 * exponent) for row, exponent in rows))
            norms.append(root_below(scales[0] ** 2 * lengths))
        elif key in stated:
            norms.append(trace_norm(rows, scales, stated[key]))
    shares = sum(root * root for root in roots.values())
    if tables.weighs:
        return total(norms) ** 2 / shares
    return total(norms) ** 2 / shares / dot(map(total, weights), tables.numbers)


def shared_weights(classes: Classes, part: Given) -> list[list[Fraction]]:
    """Return the weight of every case of each table, all its queries together: the file's own, or as is asked."""
    counts = [[count for count, _ in classes.cases(table)] for table in classes.asked.tables]
    if classes.asked.weighs:
        pairs = zip(counts, classes.asked.numbers, strict=True)
        return [[weight * count for count in table_counts] for table_counts, weight in pairs]
    flat = iter(part.nonnegative("weights", sum(map(len, counts))))
    return [[next(flat) for _ in table_counts] for table_counts in counts]


def by_block(classes: Classes, weights: list[list[Fraction]]) -> dict[Key, Rows]:
    """Return the rows of every block's M, each once, and φ with the square of the number of copies."""
    blocks: dict[Key, dict[Part, list[tuple[Fraction, Fraction]]]] = {}
    for table, shares in zip(classes.asked.tables, weights, strict=True):
        axes = tuple(table)
        for (_, parts), weight in zip(classes.cases(table), shares, strict=True):
            for on, seen, _, share in parts:
                blocks.setdefault(placed(on, axes), {}).setdefault(seen, []).append((share, weight))
    return {key: {seen: dot(*zip(*pairs, strict=True)) for seen, pairs in rows.items()} for key, rows in blocks.items()}


def trace_norm(rows: Rows, scales: list[Fraction], part: Given) -> Fraction:
    """Return a lower bound on ``‖M‖_*``, by the F and the G of a block."""
    width = len(scales)
    isometry = part.matrix("isometry", (len(rows), width))
    common = lcm(*(share.denominator for share in rows.values()))
    shares = [int(share * common) for share in rows.values()]
    weighed = Matrix(
        [[share * entry for entry in row] for share, row in zip(shares, isometry.rows, strict=True)], isometry.exponent
    )
    product = Fraction(0)
    for (row, exponent), matching in zip(rows, weighed.rows, strict=True):
        total = sum(scale * (a * b) for scale, a, b in zip(scales, row, matching, strict=True) if a and b)
        product += total * power(1, exponent + isometry.exponent)
    gram = isometry.transposed().times(weighed)
    rest = part.optional_matrix("rest", (None, width))
    if rest is not None:
        more = rest.transposed().times(rest)
        gram = gram.plus(Matrix([[common * entry for entry in row] for row in more.rows], more.exponent))
    largest = gram.largest_sum() / common
    return max(product / common, Fraction(0)) / root_above(largest) if largest else Fraction(0)


# Tables whose attributes have noise of their own: products of it, with a level for every set of attributes.
#
# Upper bound. Each attribute i has a strategy A_i, square, whose first row is all ones, 1', and whose others are R_i.
# For each set T of attributes measure ``⊗_{i in T} R_i ⊗_{i not in T} 1'`` with noise of variance τ_T, its level, all
# independent. A record costs ``Σ_T Π_T |R_i e_u|² / τ_T``, at most with u in each factor the value where it is largest.
# A query a of i is ``b A_i`` with ``b = a A_i⁻¹``, b_0 the first entry and b_1 the rest. So ``⊗ a_i`` of table S is the
# sum over ``T ⊆ S`` of ``⊗_T b_1 R_i ⊗_{S \ T} b_0 1' ⊗ 1'``, and has the variance ``Σ_T τ_T Π_T |b_1|² Π_{S \ T}
# b_0²``. Given Z, let ``E = A_i Z - I``; if ``|E| < 1``, A_i is invertible and b differs from a Z by ``a Z ((I + E)⁻¹ -
# I)``, of length at most ``|a Z| |E| / (1 - |E|)``, which is added to both. An attribute of n values without a strategy
# has one with ``R'R = I - 11'/n``, so that ``|R e_u|² = 1 - 1/n``; of it values alone are asked, which have ``b_0 =
# 1/n`` and ``|b_1|² = 1 - 1/n``.
#
# Lower bound, which is that of ``noise`` at products of weights: p_i² on the queries and q_i² on the values of each
# attribute, ``Σ q_i² = 1``, times m_S for table S. Let ``X_i = diag(p_i) A_i diag(q_i)``, A_i now being the queries,
# and U_i be of the same shape. For each T and ``S ⊇ T`` take a number f, with ``Σ_S f² = 1`` for every T, and the
# product of ``U_i (I - q_i q_i') / |U_i|`` for i in T, of ``U_i q_i q_i' / |U_i|`` for the others of S, and of q_i' for
# the rest. Added up over T and stacked over S they are a matrix Q with ``|Q| ≤ 1``, as for different T the right
# factors project on orthogonal spaces. ``⟨N, Q⟩ = Σ_T Σ_S f √m_S Π_T α_i Π_{S \ T} β_i`` for ``β_i = q_i'U_i'X_i q_i /
# |U_i|``, ``α_i = ⟨U_i, X_i⟩ / |U_i| - β_i``, and at the best f it is ``Σ_T √(Σ_S m_S Π_T α_i² Π_{S \ T} β_i²)``; the
# trace norm is no less. Values of equal weights have ``X_i = I / n`` at U_i = I, if all p_i² add up to 1.


Pair = tuple[Fraction, Fraction]  # the parts along the total, and across it, squared


def split_upper(tables: AskedTables, part: Given) -> Fraction:
    """Return the objective of noise in products: the largest cost, times the largest variance or their sum."""
    sizes = tables.sizes
    strategies = {axis: _Strategy(item, sizes[axis]) for axis, item in by_attribute(part, len(sizes)).items()}
    levels = {key: level(block) for key, block in by_key(part, [1] * len(sizes)).items()}
    cost = Fraction(0)
    for key, number in levels.items():
        worst = (strategies[axis].cost if axis in strategies else 1 - Fraction(1, sizes[axis]) for axis, _ in key)
        cost += prod(worst, start=1 / number)
    looks = {pair: _looks(tables, *pair, strategies.get(pair[0])) for pair in tables.used()}
    variances = []
    for table in tables.tables:
        pairs = [looks[pair] for pair in table.items()]
        variances.append([(_variance(table, case, levels), 1) for case in product(*pairs)])
    return cost * tables.summed(variances)


class _Strategy:
    """A strategy of an attribute: the largest cost of a record, and queries as combinations of its rows."""

    def __init__(self, part: Given, size: int) -> None:
        strategy, self.inverse = (part.matrix(name, (size, size)) for name in ("strategy", "inverse"))
        ones = [power(entry, strategy.exponent) == 1 for entry in strategy.rows[0]]
        expect(all(ones), "the first row of a strategy must be all ones")
        missed = departed(strategy, self.inverse)
        self.missed = missed / (1 - missed)
        self.cost = max(Matrix([*strategy.rows[1:], [0] * size], strategy.exponent).transposed().squares())

    def looks(self, queries: Matrix) -> list[Pair]:
        """Return bounds on ``b_0²`` and on ``|b_1|²`` of every query."""
        seen = queries.times(self.inverse)
        looks = []
        for length, (first, *_) in zip(seen.squares(), seen.numbers(), strict=True):
            more = root_above(length) * self.missed
            across = root_above(length - first * first)
            looks.append(((abs(first) + more) ** 2, (across + more) ** 2))
        return looks


def _looks(tables: AskedTables, axis: int, name: str, strategy: _Strategy | None) -> list[Pair]:
    """Return the pairs of queries that may be the worst, with targets; all added up, with weights."""
    queries, size = tables.matrix_of(axis, name), tables.sizes[axis]
    if strategy is None:
        expect(queries is None, f"attribute {axis} needs a strategy for its queries {name!r}")
        pairs, count = [(Fraction(1, size**2), 1 - Fraction(1, size))], size
    else:
        pairs, count = strategy.looks(identity(size) if queries is None else queries), 1
    if tables.weighs:
        first, second = zip(*pairs, strict=True)
        return [(count * sum(first, Fraction(0)), count * sum(second, Fraction(0)))]
    worst: list[Pair] = []
    for pair in sorted(pairs, reverse=True):
        if not worst or pair[1] > worst[-1][1]:
            worst.append(pair)
    return worst


def _variance(table: dict[int, str], case: tuple[Pair, ...], levels: dict[Key, Fraction]) -> Fraction:
    total = Fraction(0)
    for key, square in _products(table, case):
        if square:
            expect(key in levels, f"a query has a part on {dict(key)}, where there is no noise")
            total += levels[key] * square
    return total


def _products(table: dict[int, str], pairs: tuple[Pair, ...]) -> list[tuple[Key, Fraction]]:
    """Return, for every set of a table's attributes, the product of second numbers in it and of first ones outside."""
    products: list[tuple[Key, Fraction]] = [((), Fraction(1))]
    for axis, (along, across) in zip(table, pairs, strict=True):
        products = [
            item for key, square in products for item in ((key, square * along), ((*key, (axis, 0)), square * across))
        ]
    return products


def split_lower(tables: AskedTables, part: Given) -> Fraction:
    named, sums = by_attribute(part, len(tables.sizes)), dict[Key, Fraction]()
    looks = {pair: _trace(tables, *pair, named.get(pair[0])) for pair in tables.used()}
    weights = tables.numbers if tables.weighs else part.nonnegative("weights", len(tables.tables))
    for table, weight in zip(tables.tables, weights, strict=True):
        for key, square in _products(table, tuple(looks[pair] for pair in table.items())):
            sums[key] = sums.get(key, Fraction(0)) + weight * square
    proven = sum(map(root_below, sums.values()), Fraction(0)) ** 2
    if tables.weighs:
        return proven
    return proven / sum(weight * target for weight, target in zip(weights, tables.numbers, strict=True))


def _trace(tables: AskedTables, axis: int, name: str, part: Given | None) -> Pair:
    """Return ``β²`` and ``α²`` of a set of queries, over the weights; 0 where there are none."""
    queries, size = tables.matrix_of(axis, name), tables.sizes[axis]
    if part is None:
        expect(queries is None, f"attribute {axis} needs weights for its queries {name!r}")
        share = Fraction(size) if tables.weighs else Fraction(1)
        return share / size**2, share * (1 - Fraction(1, size)) ** 2
    queries = queries or identity(size)
    inner, count = part.part(name), queries.shape[0]
    q = part.vector("roots", size)
    p = [Fraction(1)] * count if tables.weighs else inner.vector("roots", count)
    isometry = inner.matrix("isometry", queries.shape)
    weighed = [
        [root * entry * other for entry, other in zip(row, q, strict=True)]
        for root, row in zip(p, queries.numbers(), strict=True)
    ]
    pairs = list(zip(weighed, isometry.numbers(), strict=True))
    whole = sum(dot(one, two) for one, two in pairs)
    along = sum(dot(one, q) * dot(two, q) for one, two in pairs)
    shares, billed = dot(q, q), Fraction(1) if tables.weighs else dot(p, p)
    divisor = isometry.norm_squared() * shares * billed
    if not divisor:
        return Fraction(0), Fraction(0)
    return (along / shares) ** 2 / divisor, (whole - along / shares) ** 2 / divisor


FORMS = {"blocks": (blocks_lower, blocks_upper), "split": (split_lower, split_upper)}
"""The functions of the lower and the upper bound, by form."""


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show.

    Noise on r records costs r² times the cost on one; where a cost is allowed, the bounds are shares of it.
    """
    tables, allowed = AskedTables(problem), problem.number("allowed")
    expect(allowed > 0, "allowed must be positive")
    _, above = FORMS[upper.word("form", FORMS)]
    below, _ = FORMS[lower.word("form", FORMS)]
    proven, achieved = below(tables, lower), above(tables, upper)
    return proven * tables.moved / allowed, achieved * tables.moved / allowed


# Products: every product of one query of each of several problems, whose bounds multiply.
#
# The factors have workloads W_i, neighbours U_i and numbers, all targets or all weights. The workload is ``W = ⊗ W_i``,
# under the neighbours ``⊗ U_i``, single records where they are for each factor, with the products of the numbers, over
# a number ``allowed``.
#
# Upper bound. Noise that measures ``A_i x`` with variance 1 in each factor measures ``⊗ A_i x`` in the product.
# Neighbours there cost ``|⊗ A_i u_i|² = Π |A_i u_i|²``, and a query has the variance ``|⊗ w_i A_i⁻¹|² = Π |w_i
# A_i⁻¹|²``, for a strategy of full column rank with any left inverse as well. So largest costs multiply, and so do
# largest ratios, and weighted sums.
#
# Lower bound. At the products of the factors' weights ``diag(p) W U diag(q)`` is the Kronecker product of the factors'
# own, whose trace norm is the product of theirs; ``Σ p² c`` and ``Σ q²`` multiply as well.


FACTORS = {
    "product targets": {"targets": noise.bounds, "table targets": bounds},
    "product weights": {"weights": noise.bounds, "table weights": bounds},
}


def product_bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    known = FACTORS[problem.word("kind", FACTORS)]
    factors = problem.parts("factors")
    noises, weights = (side.parts("factors", len(factors)) for side in (upper, lower))
    allowed = problem.number("allowed")
    expect(allowed > 0, "allowed must be positive")
    least = most = 1 / allowed
    for factor, noisy, weighed in zip(factors, noises, weights, strict=True):
        shown = known[factor.word("kind", known, "kind of a factor")](factor, noisy, weighed)
        least, most = least * shown[0], most * shown[1]
    return least, most
