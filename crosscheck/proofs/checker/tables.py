"""Gaussian noise on tables over a domain: one matrix bound for every block of cells, and products of problems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain, product
from math import prod
from typing import NamedTuple

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

Table = dict[int, str]
Row = tuple[int, ...]

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

    def matrix_of(self, name: str) -> Matrix | None:
        return None if name == "values" else self.sets[name]

    def summed(self, variances: list[list[tuple[Fraction, int]]]) -> Fraction:
        """Return the largest variance over its target, or the weighted sum, from each table's, with their counts."""
        if self.weighs:
            return dot([dot(*zip(*terms, strict=True)) for terms in variances], self.numbers)
        worst: dict[Fraction, Fraction] = {}
        for terms, target in zip(variances, self.numbers, strict=True):
            worst[target] = max(worst.get(target, Fraction(0)), *(variance for variance, _ in terms))
        return max(variance / target for target, variance in worst.items())

    def _table(self, part: Given) -> Table:
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


# The blocks of a domain, and of the queries of tables.
#
# The values of each attribute are sorted into classes, in any way; c is a class of n_c values. Functions of a value
# that are constant on classes, and for each c those that live on it and add up to 0, span all functions, and are
# orthogonal; P_c projects on the latter. So the functions of the cells split into orthogonal *blocks*, one for each
# choice of a set T of attributes with a class of each: products over T of functions in the ranges of these P_c, and of
# functions that are constant on classes over the others. The attributes outside T that have several classes make up
# the *orbits* x of the block, a class of each, of n_x combinations of values.
#
# A query ``⊗ a_i`` (1' where it asks nothing) has in a block the part ``s y ⊗_T t_i ⊗_O (s_i/n) 1'``. y are the means
# over the orbits, s the sums of the query's entries over them; ``t_i = a_i P_c``, whose squared length g_i is the sum
# of squares over c less the square of the sum over n_c; O are the attributes outside T that have n values in one class,
# and s_i is the sum of a_i.
#
# Upper bound. In every block measure ``A y ⊗_T R_i ⊗_O 1'`` with noise of variance 1, all independent, A square and
# ``R_i'R_i = P_c``. A record with values of these classes in T costs ``|A e_x|² / n_x² Π_T (1 - 1/n_c)``, any other
# nothing; costs of blocks add up. As ``t_i = (t_i R_i') R_i`` and ``|t_i R_i'| = |t_i|``, a query's part has the
# variance ``|s A⁻¹|² Π_T g_i Π_O (s_i/n)²``, and the query the sum of all. ``|A e_x|²`` and ``|s A⁻¹|²`` are the costs
# and variances of ``noise`` for the queries s. With one orbit, A is ``1 / √level``.
#
# An attribute of one class may have a strategy of its own, square and invertible, with the rows 1' and R. With ``a =
# b_0 1' + b_1 R`` its factors are b_0² for ``(s_i/n)²``, ``|b_1|²`` for g_i, and the largest ``|R e_u|²`` over all
# values u for ``1 - 1/n``. Given Z, let E be what the strategy times Z is off the identity: if ``|E| < 1``, b differs
# from a Z by ``a Z ((I + E)⁻¹ - I)``, of length at most ``|a Z| |E| / (1 - |E|)``, which is added to both.
#
# Lower bound, which is that of ``noise`` for ``N = diag(p) W diag(q)``. The queries of a set with the same sums over
# classes up to sign, and the same g, are a group of m. Let ``Σ a'a`` over a group depend on the classes of two values,
# and on whether they are the same, alone, which is required. Then it is ``m s̄'s̄ + Σ_c m g_c P_c / (n_c - 1)``, s̄
# being the mean on each class. Let p² be the same for all queries of a group of each attribute, and q² for all cells
# with a class x of each attribute, where they add up to h_x². Then ``N'N`` keeps every block and acts alike on its
# ``Π_T (n_c - 1)`` copies, as ``M'M`` does for the rows ``√φ s_x h_x / n_x``, φ being the sum of p² times ``Π_T g_i /
# (n_c (n_c - 1)) Π_O (s_i/n)²``. So ``‖N‖_*`` is the sum of all ``‖M‖_*``, each as often as there are copies; these are
# counted in φ, by their square: g_i then has the factor ``1 - 1/n_c``. A column has its length for a trace norm, and
# for another M it is bounded as in ``noise``, by numbers in place of √φ that are not above it.
#
# An attribute of one class may have weights of its own: p_i² on its queries and q_i² on its values, ``Σ q_i² = 1``,
# with ``X_i = diag(p_i) a diag(q_i)``, a now all its queries, and a matrix U_i of the same shape. Q has as its factor
# ``U_i (I - q_i q_i') / |U_i|`` for i in T, ``U_i q_i q_i' / |U_i|`` for the others that a table asks about, and q_i'
# for the rest. Right factors of different T project on orthogonal spaces and ``U_i / |U_i|`` lengthens nothing, so |Q|
# is the largest of its parts at single T. ``⟨N, Q⟩`` has the factor ``β_i = q_i'U_i'X_i q_i / |U_i|`` outside T and
# ``α_i = ⟨U_i, X_i⟩ / |U_i| - β_i`` in T; β_i² takes the place of ``(s_i/n)²``, and α_i² that of g_i with its factor.


Part = tuple[Row, int]  # sums over the orbits of a block, times a power of two
Case = tuple[int, list[tuple[Key, Part, Fraction]]]
"""Queries of a table that are alike: how many, and by block the sums and the product of factors of their part."""


class QueryGroup(NamedTuple):
    """Queries of an attribute with the same factors in all blocks."""

    members: Sequence[int]  # which queries; where all are added up, the first alone
    sums: Row  # over the classes, times a power of two; up to sign
    exponent: int
    total_factor: Fraction  # factor in blocks without the attribute, where it has one class
    class_factors: Sequence[Fraction]  # factors in blocks with the attribute, by class


class Attributes:
    """The attributes as a side of a file states them, and the queries of all tables by their factors in blocks.

    An attribute has classes of values, one where the file names none. With one class it may have a strategy, in the
    upper side, or weights, in the `lower` side.
    """

    def __init__(self, tables: AskedTables, part: Given, *, lower: bool) -> None:
        self.asked, self.lower = tables, lower
        self.labels: dict[int, list[int]] = {}
        self.strategies: dict[int, Strategy] = {}
        self.weights: dict[int, Given] = {}
        self.sizes = [[size] for size in tables.sizes]
        for axis, stated in self._stated(part).items():
            if "classes" in stated.entries:
                self._sort(axis, stated)
            elif lower:
                self.weights[axis] = stated
            else:
                self.strategies[axis] = Strategy(stated, tables.sizes[axis])
        # Factors in the cost of a record, in blocks with the attribute, by class.
        self.costs = [[1 - Fraction(1, size) for size in sizes] for sizes in self.sizes]
        for axis, strategy in self.strategies.items():
            self.costs[axis] = [strategy.cost]
        self.wide = [axis for axis, sizes in enumerate(self.sizes) if len(sizes) > 1]
        self.groups_of_values: dict[int, list[QueryGroup]] = {}  # of attributes of one class, by their sizes
        self.groups = {pair: self._groups_of(*pair) for pair in tables.used()}
        self.cases_of_groups: dict[tuple[tuple[int, int], ...], list[Case]] = {}
        self.cases = [self._cases(table) for table in tables.tables]

    def orbits(self, key: Key = ()) -> dict[Row, int]:
        """Return how many cells the sums of each orbit of a block go over.

        An orbit is a class of each wide attribute, the key's own where it has it.
        """
        chosen = dict(key)
        choices = [[(chosen[axis], 1)] if axis in chosen else [*enumerate(self.sizes[axis])] for axis in self.wide]
        return {tuple([label for label, _ in one]): prod([size for _, size in one]) for one in product(*choices)}

    def by_key(self, part: Given) -> dict[Key, Given]:
        """Return the blocks of a file by key."""
        blocks: dict[Key, Given] = {}
        for block in part.listed("blocks"):
            on = block.part("on")
            labels = {position(axis, len(self.sizes)): on.get(axis) for axis in on.names()}
            blocks[tuple((axis, position(labels[axis], len(self.sizes[axis]))) for axis in sorted(labels))] = block
        return blocks

    def labels_of(self, axis: int) -> Sequence[int]:
        return self.labels.get(axis) or (0,) * self.asked.sizes[axis]

    def _stated(self, part: Given) -> dict[int, Given]:
        attributes = part.get("attributes")
        if attributes is None:
            return {}
        expect(isinstance(attributes, dict), "attributes must be named by their numbers")
        named = part.part("attributes")
        return {position(name, len(self.sizes)): named.part(name) for name in named.names()}

    def _sort(self, axis: int, stated: Given) -> None:
        size = self.asked.sizes[axis]
        labels = stated.vector("classes", size)
        expect(all(label.denominator == 1 and 0 <= label < size for label in labels), "classes must be whole numbers")
        self.labels[axis] = [int(label) for label in labels]
        self.sizes[axis] = [self.labels[axis].count(label) for label in range(max(self.labels[axis]) + 1)]
        expect(min(self.sizes[axis]) > 0, "classes must be numbered from 0, none without a value")

    def _cases(self, table: Table) -> list[Case]:
        """Return the cases of a table.

        Tables with the same groups differ in their keys alone if their attributes have one class: their parts are
        computed once, with places in the table for attributes.
        """
        axes = tuple(table)
        like = tuple((id(self.groups[pair]), pair[0] if pair[0] in self.wide else -1) for pair in table.items())
        if like not in self.cases_of_groups:
            choices = product(*(self.groups[pair] for pair in table.items()))
            self.cases_of_groups[like] = [
                (prod(len(group.members) for group in case), self._parts(dict(zip(axes, case, strict=True))))
                for case in choices
            ]
        return [
            (
                count,
                [(tuple([(axes[place], index) for place, index in on]), sums, square) for on, sums, square in parts],
            )
            for count, parts in self.cases_of_groups[like]
        ]

    def _parts(self, groups: dict[int, QueryGroup]) -> list[tuple[Key, Part, Fraction]]:
        """Return the parts of products of these queries; keys have places in the table for attributes."""
        axes, parts = [*groups], []
        choices: list[list[Key]] = [
            [(), *(((place, index),) for index, square in enumerate(group.class_factors) if square)]
            for place, group in enumerate(groups.values())
        ]
        for on in (sum(choice, ()) for choice in product(*choices)):
            part, square = self._part(groups, {axes[place]: index for place, index in on})
            if square and any(part[0]):
                parts.append((on, part, square))
        return parts

    def _part(self, groups: dict[int, QueryGroup], chosen: dict[int, int]) -> tuple[Part, Fraction]:
        row: Row = (1,)
        exponent, square = 0, Fraction(1)
        for axis in sorted({*groups, *self.wide}):
            if axis in chosen:
                square *= groups[axis].class_factors[chosen[axis]]
            elif axis in self.wide:
                sums, shift = (groups[axis].sums, groups[axis].exponent) if axis in groups else (self.sizes[axis], 0)
                row, exponent = tuple(one * two for one in row for two in sums), exponent + shift
            else:
                square *= groups[axis].total_factor
        return (row, exponent), square

    def _groups_of(self, axis: int, name: str) -> list[QueryGroup]:
        queries, sizes = self.asked.matrix_of(name), self.sizes[axis]
        if axis in self.strategies:
            return self.strategies[axis].groups(queries or identity(sizes[0]), self.asked.weighs)
        if axis in self.weights:
            return [weighted_group(self.weights[axis], name, queries or identity(sizes[0]), self.asked.weighs)]
        if queries is not None:
            return self._groups_of_queries(axis, name, queries)
        if len(sizes) > 1:
            return self._groups_of_values(axis)
        if sizes[0] not in self.groups_of_values:
            self.groups_of_values[sizes[0]] = self._groups_of_values(axis)
        return self.groups_of_values[sizes[0]]

    def _groups_of_queries(self, axis: int, name: str, queries: Matrix) -> list[QueryGroup]:
        sizes, labels, by_signature = self.sizes[axis], self.labels_of(axis), dict[tuple[Row, Row], list[int]]()
        for member, row in enumerate(queries.rows):
            sums, squares = [0] * len(sizes), [0] * len(sizes)
            for label, entry in zip(labels, row, strict=True):
                sums[label] += entry
                squares[label] += entry * entry
            turned = -1 if next((entry for entry in sums if entry), 0) < 0 else 1
            signature = tuple(turned * entry for entry in sums), tuple(squares)
            by_signature.setdefault(signature, []).append(member)
        if self.lower and len(sizes) < len(labels):  # where every value is a class, there is nothing to require
            for members in by_signature.values():
                require_symmetry([queries.rows[member] for member in members], labels, f"queries {name!r}", axis)
        return [
            self._group(sizes, members, sums, squares, queries.exponent)
            for (sums, squares), members in by_signature.items()
        ]

    def _groups_of_values(self, axis: int) -> list[QueryGroup]:
        sizes, labels = self.sizes[axis], self.labels.get(axis)
        members: list[Sequence[int]] = [range(sizes[0])]
        if labels is not None:
            members = [[value for value, label in enumerate(labels) if label == one] for one in range(len(sizes))]
        units = [tuple(int(one == two) for two in range(len(sizes))) for one in range(len(sizes))]
        return [self._group(sizes, places, unit, unit, 0) for unit, places in zip(units, members, strict=True)]

    def _group(self, sizes: list[int], members: Sequence[int], sums: Row, squares: Row, exponent: int) -> QueryGroup:
        across = [
            (square - Fraction(total * total, size))
            * power(1, 2 * exponent)
            * (1 - Fraction(1, size) if self.lower else 1)
            for total, square, size in zip(sums, squares, sizes, strict=True)
        ]
        return QueryGroup(members, sums, exponent, (power(sums[0], exponent) / sizes[0]) ** 2, across)


def require_symmetry(rows: list[list[int]], labels: Sequence[int], words: str, axis: int) -> None:
    """Require of a group that the sum of its ``a'a`` depends on classes, and sameness of values, alone."""
    columns, entries = list(zip(*rows, strict=True)), dict[tuple[int, int, bool], int]()
    for one, first in enumerate(columns):
        for two, second in enumerate(columns):
            entry = sum(map(int.__mul__, first, second))
            expect(
                entries.setdefault((labels[one], labels[two], one == two), entry) == entry,
                f"{words} must see the values of a class of attribute {axis} alike",
            )


class Strategy:
    """A strategy of an attribute: the largest cost of a record, and queries as combinations of its rows."""

    def __init__(self, part: Given, size: int) -> None:
        strategy, self.inverse = (part.matrix(name, (size, size)) for name in ("strategy", "inverse"))
        ones = [power(entry, strategy.exponent) == 1 for entry in strategy.rows[0]]
        expect(all(ones), "the first row of a strategy must be all ones")
        missed = departed(strategy, self.inverse)
        self.missed = missed / (1 - missed)
        self.cost = max(Matrix([*strategy.rows[1:], [0] * size], strategy.exponent).transposed().squares())

    def groups(self, queries: Matrix, weighs: bool) -> list[QueryGroup]:
        """Return bounds on ``b_0²`` and ``|b_1|²`` of queries that may be the worst; with weights, all added up."""
        seen, pairs = queries.times(self.inverse), []
        for length, (first, *_) in zip(seen.squares(), seen.numbers(), strict=True):
            more = root_above(length) * self.missed
            across = root_above(length - first * first)
            pairs.append(((abs(first) + more) ** 2, (across + more) ** 2))
        if weighs:
            return [single_group(*map(total, zip(*pairs, strict=True)))]
        worst: list[tuple[Fraction, Fraction]] = []
        for pair in sorted(pairs, reverse=True):
            if not worst or pair[1] > worst[-1][1]:
                worst.append(pair)
        return [single_group(*pair) for pair in worst]


def single_group(along: Fraction, across: Fraction) -> QueryGroup:
    return QueryGroup((0,), (1,), 0, along, [across])


def weighted_group(part: Given, name: str, queries: Matrix, weighs: bool) -> QueryGroup:
    """Return the group of all queries of a set, whose factors are ``β²`` and ``α²``; 0 if the weights are."""
    inner, (count, size) = part.part(name), queries.shape
    q = part.vector("roots", size)
    p = [Fraction(1)] * count if weighs else inner.vector("roots", count)
    isometry = inner.matrix("isometry", queries.shape)
    weighed = [
        [root * entry * other for entry, other in zip(row, q, strict=True)]
        for root, row in zip(p, queries.numbers(), strict=True)
    ]
    pairs = list(zip(weighed, isometry.numbers(), strict=True))
    whole = sum(dot(one, two) for one, two in pairs)
    along = sum(dot(one, q) * dot(two, q) for one, two in pairs)
    shares, billed = dot(q, q), Fraction(1) if weighs else dot(p, p)
    divisor = isometry.norm_squared() * shares * billed
    if not divisor:
        return single_group(Fraction(0), Fraction(0))
    return single_group((along / shares) ** 2 / divisor, (whole - along / shares) ** 2 / divisor)


# Both bounds of tables.


def stacked(parts: Iterable[Part]) -> Matrix:
    """Return the sums of parts, a row each, times one power of two."""
    rows = list(parts)
    least = min(exponent for _, exponent in rows)
    return Matrix([[entry << (exponent - least) for entry in row] for row, exponent in rows], least)


def upper_bound(tables: AskedTables, part: Given) -> Fraction:
    """Return the objective of noise in blocks: the largest cost, times the largest variance or their sum."""
    attributes = Attributes(tables, part, lower=False)
    blocks = attributes.by_key(part)
    seen: dict[Key, dict[Part, Fraction]] = {key: {} for key in blocks}
    for _, parts in chain.from_iterable(attributes.cases):
        for key, sums, _ in parts:
            if key not in seen:
                raise Refused(f"a query has a part on {dict(key)}, where there is no noise")
            seen[key][sums] = Fraction(0)
    costs: dict[Row, list[Fraction]] = {orbit: [] for orbit in attributes.orbits()}
    for key, block in blocks.items():
        share = prod(attributes.costs[axis][label] for axis, label in key)
        orbits = attributes.orbits(key)
        block_costs, variances = block_noise(block, [*orbits.values()], [*seen[key]])
        seen[key] = dict(zip(seen[key], variances, strict=True))
        for orbit, cost in zip(orbits, block_costs, strict=True):
            costs[orbit].append(share * cost)
    by_table = [
        [
            (dot([square for *_, square in parts], [seen[key][sums] for key, sums, _ in parts]), count)
            for count, parts in cases
        ]
        for cases in attributes.cases
    ]
    return max(map(total, costs.values())) * tables.summed(by_table)


def block_noise(part: Given, cells: list[int], parts: list[Part]) -> tuple[list[Fraction], list[Fraction]]:
    """Return the cost of noise for the means over each orbit, and the variance that it gives each row of sums."""
    if len(cells) == 1:
        level = part.number("level")
        expect(level > 0, "level must be positive")
        return [1 / level], [level * power(row[0] ** 2, 2 * exponent) for row, exponent in parts]
    nothing = (0,) * len(cells), 0  # so that there is a row
    costs, variances = noise.sides(part, stacked([*parts, nothing]), None)
    return [cost / count**2 for cost, count in zip(costs, cells, strict=True)], variances[:-1]


def lower_bound(tables: AskedTables, part: Given) -> Fraction:
    """Return the bound that weights of groups of queries and of orbits of cells prove."""
    attributes = Attributes(tables, part, lower=True)
    weights = shared_weights(attributes, part)
    orbits = attributes.orbits()
    roots = dict(zip(orbits, part.vector("roots", len(orbits)), strict=True))
    expect(any(roots.values()), "roots must not all be 0")
    blocks, norms = attributes.by_key(part), []
    for key, rows in by_block(attributes, weights).items():
        scales = [roots[orbit] / cells for orbit, cells in attributes.orbits(key).items()]
        if len(scales) == 1:
            lengths = dot(rows.values(), (power(row[0] ** 2, 2 * exponent) for row, exponent in rows))
            norms.append(root_below(scales[0] ** 2 * lengths))
        elif key in blocks:
            p, norm = noise.norm_of_columns(blocks[key], stacked(rows), Fraction(1), scales)
            noise.at_most([root * root for root in p], [*rows.values()])
            norms.append(root_below(norm))
    billed = Fraction(1) if tables.weighs else dot(map(total, weights), tables.numbers)
    return total(norms) ** 2 / sum(root * root for root in roots.values()) / billed


def shared_weights(attributes: Attributes, part: Given) -> list[list[Fraction]]:
    """Return the weight of every case of each table, all its queries together: the file's own, or as is asked."""
    counts = [[count for count, _ in cases] for cases in attributes.cases]
    if attributes.asked.weighs:
        pairs = zip(counts, attributes.asked.numbers, strict=True)
        return [[weight * count for count in table_counts] for table_counts, weight in pairs]
    flat = iter(part.nonnegative("weights", sum(map(len, counts))))
    return [[next(flat) for _ in table_counts] for table_counts in counts]


def by_block(attributes: Attributes, weights: list[list[Fraction]]) -> dict[Key, dict[Part, Fraction]]:
    """Return the rows s of every block's M, each once, and φ with the square of the number of copies."""
    blocks: dict[Key, dict[Part, list[tuple[Fraction, Fraction]]]] = {}
    flat = zip(chain.from_iterable(attributes.cases), chain.from_iterable(weights), strict=True)
    for (_, parts), weight in flat:
        for key, sums, square in parts:
            blocks.setdefault(key, {}).setdefault(sums, []).append((square, weight))
    return {key: {sums: dot(*zip(*pairs, strict=True)) for sums, pairs in rows.items()} for key, rows in blocks.items()}


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show.

    Noise on r records costs r² times the cost on one; where a cost is allowed, the bounds are shares of it.
    """
    tables, allowed = AskedTables(problem), problem.number("allowed")
    expect(allowed > 0, "allowed must be positive")
    unit = tables.moved / allowed
    return lower_bound(tables, lower) * unit, upper_bound(tables, upper) * unit


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
