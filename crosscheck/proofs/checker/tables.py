"""Gaussian noise on tables over a domain, bounded block by block, and products of problems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain, product
from math import prod
from typing import NamedTuple

from . import noise
from .exact import Matrix, Refused, Section, departed, dot, expect, identity, power, root_above, root_below, total

# Tables over a domain, as declared in a file: queries on data with too many cells to list.
#
# The attributes have n_1, …, n_r values; a cell is a combination of one value of each. A table names a set S of
# attributes, and for each of them a set of queries: the rows of a matrix, or ``values`` (the identity). The queries of
# the table are all products ``⊗ a_i`` of one query of each attribute in S, summed over the values of all other
# attributes. Every table has a number: a target on the variance of each of its queries, or the weight of each variance.
# Neighbours differ by ``records`` records in any cells. The cost is convex in the difference, and so is largest with
# all records in one cell.


Key = tuple[tuple[int, int], ...]
"""A block: its attributes, each with one class of its values."""

Table = dict[int, str]
Row = tuple[int, ...]

MAX_LISTED = 2**22  # values of an attribute, or subsets of the attributes of all tables: both are enumerated
POSITION = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)  # every number has one spelling


class DeclaredTables:
    def __init__(self, problem: Section) -> None:
        self.sizes = [int(size) for size in problem.vector("sizes")]
        expect(min(self.sizes) > 0 and self.sizes == problem.vector("sizes"), "sizes must be positive integers")
        expect(max(self.sizes) <= MAX_LISTED, f"an attribute may have at most {MAX_LISTED} values")
        self.query_sections, self.sets = problem.part("queries"), dict[str, Matrix]()
        self.tables = [self._table(part) for part in problem.parts("tables")]
        subsets = sum(1 << min(len(table), 64) for table in self.tables)
        expect(
            subsets <= MAX_LISTED, f"tables may have at most {MAX_LISTED} subsets of their attributes, got {subsets}"
        )
        self.numbers = problem.nonnegative("numbers", len(self.tables))
        self.weighted = problem.get("kind") == "table weights"
        expect(self.weighted or min(self.numbers) > 0, "targets must be positive")
        records = problem.number("records")
        expect(records > 0, "records must be positive")
        self.squared_records = records**2

    def queried_sets(self) -> set[tuple[int, str]]:
        """Return all pairs of an attribute and the name of a set of queries that a table has for it."""
        return {pair for table in self.tables for pair in table.items()}

    def matrix_of(self, name: str) -> Matrix | None:
        return None if name == "values" else self.sets[name]

    def objective(self, variances: list[list[tuple[Fraction, int]]]) -> Fraction:
        """Return the largest ratio of a variance to its target, or the weighted sum of variances.

        Each table has a list of variances, each with its number of queries.
        """
        if self.weighted:
            return dot([dot(*zip(*terms, strict=True)) for terms in variances], self.numbers)
        worst: dict[Fraction, Fraction] = {}
        for terms, target in zip(variances, self.numbers, strict=True):
            worst[target] = max(worst.get(target, Fraction(0)), *(variance for variance, _ in terms))
        return max(variance / target for target, variance in worst.items())

    def _table(self, part: Section) -> Table:
        words = {position(axis, len(self.sizes)): part.get(axis) for axis in part.names()}
        for axis, name in words.items():
            if name != "values":
                valid = isinstance(name, str) and name in self.query_sections.entries
                expect(valid, f"tables must have 'values' or queries of the file, got {str(name)[:40]!r}")
                if name not in self.sets:
                    self.sets[name] = self.query_sections.matrix(name)
                columns = self.sets[name].shape[1]
                expect(
                    columns == self.sizes[axis], f"queries {name!r} must have {self.sizes[axis]} columns, got {columns}"
                )
        return dict(sorted(words.items()))


def position(text: object, count: int) -> int:
    """Return the index below `count` that a string spells."""
    digits = text if isinstance(text, str) and POSITION.fullmatch(text) is not None else str(count)
    expect(int(digits) < count, f"{str(text)[:40]!r} is not an integer below {count}")
    return int(digits)


# The blocks of a domain, and the components of queries in them.
#
# The values of each attribute are partitioned into classes; c is a class of n_c values. The functions of a value that
# are constant on classes, and for each c the functions with support c and sum 0, are orthogonal spaces that span all
# functions; P_c is the projection on the latter space. So the functions of the cells split into orthogonal *blocks*,
# one for each choice of a set T of attributes with a class of each attribute: products over T of functions in the
# ranges of these P_c, and of functions that are constant on classes over the others. An *orbit* x of the block is a
# choice of one class of each attribute outside T with several classes; it has n_x combinations of values.
#
# A query ``⊗ a_i`` (with ``a_i = 1'`` for attributes outside its table) has in a block the component ``s y ⊗_T t_i ⊗_O
# (s_i/n) 1'``. Here y are the means over the orbits, and s the sums of the query's entries over them. ``t_i = a_i P_c``
# has the squared length g_i: the sum of the squared entries on c, less the squared sum of the entries on c divided by
# n_c. O are the attributes outside T with one class, of n values, and s_i is the sum of a_i.
#
# Upper bound. In every block measure ``A y ⊗_T R_i ⊗_O 1'`` with noise of variance 1, all independent, A square and
# ``R_i'R_i = P_c``. A record with values of these classes in T costs ``|A e_x|² / n_x² Π_T (1 - 1/n_c)``, and
# any other record costs 0. The costs of the blocks are added. As ``t_i = (t_i R_i') R_i`` and ``|t_i R_i'| = |t_i|``,
# the component of a query has the variance ``|s A⁻¹|² Π_T g_i Π_O (s_i/n)²``. The variance of the query is the sum over
# the blocks. ``|A e_x|²`` and ``|s A⁻¹|²`` are the costs and variances of ``noise`` for the queries s. With one orbit,
# A is ``1 / √level``.
#
# An attribute of one class may have its own strategy, square and invertible, with the rows 1' and R. With ``a =
# b_0 1' + b_1 R`` its factors are b_0² for ``(s_i/n)²``, ``|b_1|²`` for g_i, and the largest ``|R e_u|²`` over all
# values u for ``1 - 1/n``. Given Z, let E be the strategy times Z, less the identity. If ``|E| < 1``, b differs
# from a Z by ``a Z ((I + E)⁻¹ - I)``, of length at most ``|a Z| |E| / (1 - |E|)``. This bound is added to ``|b_0|`` and
# to ``|b_1|``.
#
# Lower bound: the bound of ``noise`` for ``N = diag(p) W diag(q)``. The queries of a set with the same sums over
# classes up to sign, and the same g, are a group of size m. It is required that entry (u, v) of ``Σ a'a`` over a group
# depends only on the classes of u and v, and on whether u = v. Then the sum is ``m s̄'s̄ + Σ_c m g_c P_c / (n_c - 1)``,
# s̄ being the mean on each class. Let p² be the same for all queries of a group of each attribute, and q² for all cells
# with a class x of each attribute, where they add up to h_x². Then every block is an invariant subspace of ``N'N``,
# which acts equally on its ``Π_T (n_c - 1)`` copies, as ``M'M`` does for the rows ``√φ s_x h_x / n_x``, φ being the sum
# of p² times ``Π_T g_i / (n_c (n_c - 1)) Π_O (s_i/n)²``. So ``‖N‖_*`` is the sum of all ``‖M‖_*``, each multiplied by
# its number of copies. The square of this number is a factor of φ: g_i then has the factor ``1 - 1/n_c``. If M has one
# column, its trace norm is its length; otherwise it is bounded as in ``noise``, with numbers ``≤ √φ`` in place of √φ.
#
# An attribute of one class may have its own weights: p_i² on its queries and q_i² on its values, ``Σ q_i² = 1``,
# with ``X_i = diag(p_i) a diag(q_i)``, the rows of a now being all its queries, and a matrix U_i of the same shape. Q
# has as its factor ``U_i (I - q_i q_i') / |U_i|`` for i in T, ``U_i q_i q_i' / |U_i|`` for the other attributes of a
# table, and q_i' for attributes outside the table. Right factors of different T project on orthogonal spaces and the
# norm of ``U_i / |U_i|`` is at most 1, so |Q| is the maximum over T of the norm of its component. ``⟨N, Q⟩`` has the
# factor ``β_i = q_i'U_i'X_i q_i / |U_i|`` outside T and ``α_i = ⟨U_i, X_i⟩ / |U_i| - β_i`` in T; β_i² takes the place
# of ``(s_i/n)²``, and α_i² that of g_i with its factor.


Part = tuple[Row, int]  # sums over the orbits of a block, times a power of two
Case = tuple[int, list[tuple[Key, Part, Fraction]]]
"""Equivalent queries of a table: their number, and for each block the sums and the factors of their component."""


class QueryGroup(NamedTuple):
    """Queries of an attribute with the same factors in all blocks."""

    members: Sequence[int]  # indices of the queries; the first index only if the group is a sum over all queries
    sums: Row  # over the classes, times a power of two; up to sign
    exponent: int
    total_factor: Fraction  # factor in blocks without the attribute, if it has one class
    class_factors: Sequence[Fraction]  # factors in blocks with the attribute, by class


class Attributes:
    """The attributes declared by the upper or lower section of a file, and the factors of all queries in the blocks.

    An attribute has classes of values, a single class by default. An attribute of one class may have a strategy in the
    upper section, or weights in the `lower` section.
    """

    def __init__(self, tables: DeclaredTables, part: Section, *, lower: bool) -> None:
        self.tables, self.lower = tables, lower
        self.labels: dict[int, list[int]] = {}
        self.strategies: dict[int, Strategy] = {}
        self.weights: dict[int, Section] = {}
        self.sizes = [[size] for size in tables.sizes]
        for axis, section in self._sections(part).items():
            if "classes" in section.entries:
                self._set_classes(axis, section)
            elif lower:
                self.weights[axis] = section
            else:
                self.strategies[axis] = Strategy(section, tables.sizes[axis])
        # Factors in the cost of a record, in blocks with the attribute, by class.
        self.costs = [[1 - Fraction(1, size) for size in sizes] for sizes in self.sizes]
        for axis, strategy in self.strategies.items():
            self.costs[axis] = [strategy.cost]
        self.wide = [axis for axis, sizes in enumerate(self.sizes) if len(sizes) > 1]
        self.groups_of_values: dict[int, list[QueryGroup]] = {}  # of attributes of one class, by their sizes
        self.groups = {pair: self._groups_of(*pair) for pair in tables.queried_sets()}
        self.cases_of_groups: dict[tuple[tuple[int, int], ...], list[Case]] = {}
        self.cases = [self._cases(table) for table in tables.tables]

    def orbits(self, key: Key = ()) -> dict[Row, int]:
        """Return the number of cells of each orbit of a block.

        An orbit is a class of each attribute with several classes; for the attributes of the key, it is the key's
        class.
        """
        classes = dict(key)
        choices = [[(classes[axis], 1)] if axis in classes else [*enumerate(self.sizes[axis])] for axis in self.wide]
        return {
            tuple([label for label, _ in choice]): prod([size for _, size in choice]) for choice in product(*choices)
        }

    def by_key(self, part: Section) -> dict[Key, Section]:
        """Return the sections of the blocks by key."""
        blocks: dict[Key, Section] = {}
        for block in part.listed("blocks"):
            on = block.part("on")
            labels = {position(axis, len(self.sizes)): on.get(axis) for axis in on.names()}
            blocks[tuple((axis, position(labels[axis], len(self.sizes[axis]))) for axis in sorted(labels))] = block
        return blocks

    def labels_of(self, axis: int) -> Sequence[int]:
        return self.labels.get(axis) or (0,) * self.tables.sizes[axis]

    def _sections(self, part: Section) -> dict[int, Section]:
        attributes = part.get("attributes")
        if attributes is None:
            return {}
        expect(isinstance(attributes, dict), "attributes must be named by their numbers")
        sections = part.part("attributes")
        return {position(name, len(self.sizes)): sections.part(name) for name in sections.names()}

    def _set_classes(self, axis: int, section: Section) -> None:
        size = self.tables.sizes[axis]
        labels = section.vector("classes", size)
        expect(all(label.denominator == 1 and 0 <= label < size for label in labels), "classes must be integers")
        self.labels[axis] = [int(label) for label in labels]
        self.sizes[axis] = [self.labels[axis].count(label) for label in range(max(self.labels[axis]) + 1)]
        expect(min(self.sizes[axis]) > 0, "classes must be numbered from 0, each with at least one value")

    def _cases(self, table: Table) -> list[Case]:
        """Return the cases of a table.

        Tables with the same groups differ only in their keys if their attributes have one class. Their components are
        computed once, with positions in the table in place of attributes.
        """
        axes = tuple(table)
        signature = tuple((id(self.groups[pair]), pair[0] if pair[0] in self.wide else -1) for pair in table.items())
        if signature not in self.cases_of_groups:
            choices = product(*(self.groups[pair] for pair in table.items()))
            self.cases_of_groups[signature] = [
                (prod(len(group.members) for group in case), self._parts(dict(zip(axes, case, strict=True))))
                for case in choices
            ]
        return [
            (
                count,
                [(tuple([(axes[place], index) for place, index in on]), sums, square) for on, sums, square in parts],
            )
            for count, parts in self.cases_of_groups[signature]
        ]

    def _parts(self, groups: dict[int, QueryGroup]) -> list[tuple[Key, Part, Fraction]]:
        """Return the components of products of queries; keys have positions in the table in place of attributes."""
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

    def _part(self, groups: dict[int, QueryGroup], classes: dict[int, int]) -> tuple[Part, Fraction]:
        row: Row = (1,)
        exponent, square = 0, Fraction(1)
        for axis in sorted({*groups, *self.wide}):
            if axis in classes:
                square *= groups[axis].class_factors[classes[axis]]
            elif axis in self.wide:
                sums, shift = (groups[axis].sums, groups[axis].exponent) if axis in groups else (self.sizes[axis], 0)
                row, exponent = tuple(entry * total for entry in row for total in sums), exponent + shift
            else:
                square *= groups[axis].total_factor
        return (row, exponent), square

    def _groups_of(self, axis: int, name: str) -> list[QueryGroup]:
        queries, sizes = self.tables.matrix_of(name), self.sizes[axis]
        if axis in self.strategies:
            return self.strategies[axis].groups(queries or identity(sizes[0]), self.tables.weighted)
        if axis in self.weights:
            return [weighted_group(self.weights[axis], name, queries or identity(sizes[0]), self.tables.weighted)]
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
            sign = -1 if next((entry for entry in sums if entry), 0) < 0 else 1
            signature = tuple(sign * entry for entry in sums), tuple(squares)
            by_signature.setdefault(signature, []).append(member)
        if self.lower and len(sizes) < len(labels):  # with a class for every value, all sums are symmetric
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
            members = [[value for value, label in enumerate(labels) if label == index] for index in range(len(sizes))]
        units = [tuple(int(index == other) for other in range(len(sizes))) for index in range(len(sizes))]
        return [self._group(sizes, places, unit, unit, 0) for unit, places in zip(units, members, strict=True)]

    def _group(self, sizes: list[int], members: Sequence[int], sums: Row, squares: Row, exponent: int) -> QueryGroup:
        class_factors = [
            (square - Fraction(total * total, size))
            * power(1, 2 * exponent)
            * (1 - Fraction(1, size) if self.lower else 1)
            for total, square, size in zip(sums, squares, sizes, strict=True)
        ]
        return QueryGroup(members, sums, exponent, (power(sums[0], exponent) / sizes[0]) ** 2, class_factors)


def require_symmetry(rows: list[list[int]], labels: Sequence[int], label: str, axis: int) -> None:
    """Require that entry (u, v) of ``Σ a'a`` depends only on the classes of u and v, and on whether u = v."""
    columns, entries = list(zip(*rows, strict=True)), dict[tuple[int, int, bool], int]()
    for i, first in enumerate(columns):
        for j, second in enumerate(columns):
            entry = sum(map(int.__mul__, first, second))
            expect(
                entries.setdefault((labels[i], labels[j], i == j), entry) == entry,
                f"{label} must be symmetric in the values of each class of attribute {axis}",
            )


class Strategy:
    """A strategy of an attribute, with the largest cost of a record."""

    def __init__(self, part: Section, size: int) -> None:
        strategy, self.inverse = (part.matrix(name, (size, size)) for name in ("strategy", "inverse"))
        ones = [power(entry, strategy.exponent) == 1 for entry in strategy.rows[0]]
        expect(all(ones), "the first row of a strategy must be all ones")
        residual = departed(strategy, self.inverse)
        self.error_factor = residual / (1 - residual)
        self.cost = max(Matrix([*strategy.rows[1:], [0] * size], strategy.exponent).transposed().squares())

    def groups(self, queries: Matrix, weighted: bool) -> list[QueryGroup]:
        """Return groups with bounds on ``b_0²`` and ``|b_1|²``: the Pareto maxima, or the sum if `weighted`."""
        coordinates, pairs = queries.times(self.inverse), []
        for length, (first, *_) in zip(coordinates.squares(), coordinates.numbers(), strict=True):
            error = root_above(length) * self.error_factor
            orthogonal_part = root_above(length - first * first)
            pairs.append(((abs(first) + error) ** 2, (orthogonal_part + error) ** 2))
        if weighted:
            return [single_group(*map(total, zip(*pairs, strict=True)))]
        pareto: list[tuple[Fraction, Fraction]] = []
        for pair in sorted(pairs, reverse=True):
            if not pareto or pair[1] > pareto[-1][1]:
                pareto.append(pair)
        return [single_group(*pair) for pair in pareto]


def single_group(total_factor: Fraction, class_factor: Fraction) -> QueryGroup:
    return QueryGroup((0,), (1,), 0, total_factor, [class_factor])


def weighted_group(part: Section, name: str, queries: Matrix, weighted: bool) -> QueryGroup:
    """Return the group of all queries of a set, with the factors ``β²`` and ``α²`` (0 if the weights are 0)."""
    inner, (count, size) = part.part(name), queries.shape
    q = part.vector("roots", size)
    p = [Fraction(1)] * count if weighted else inner.vector("roots", count)
    isometry = inner.matrix("isometry", queries.shape)
    scaled_queries = [
        [root * entry * column_root for entry, column_root in zip(row, q, strict=True)]
        for root, row in zip(p, queries.numbers(), strict=True)
    ]
    pairs = list(zip(scaled_queries, isometry.numbers(), strict=True))
    inner_product = sum(dot(left, right) for left, right in pairs)
    along_roots = sum(dot(left, q) * dot(right, q) for left, right in pairs)
    roots_squared, weights_squared = dot(q, q), Fraction(1) if weighted else dot(p, p)
    divisor = isometry.norm_squared() * roots_squared * weights_squared
    if not divisor:
        return single_group(Fraction(0), Fraction(0))
    return single_group(
        (along_roots / roots_squared) ** 2 / divisor, (inner_product - along_roots / roots_squared) ** 2 / divisor
    )


# Both bounds of tables.


def stacked(parts: Iterable[Part]) -> Matrix:
    """Return the matrix with the sums of one component per row."""
    rows = list(parts)
    common = min(exponent for _, exponent in rows)
    return Matrix([[entry << (exponent - common) for entry in row] for row, exponent in rows], common)


def upper_bound(tables: DeclaredTables, part: Section) -> Fraction:
    """Return the upper bound: the largest cost, times the largest ratio or weighted sum of variances."""
    attributes = Attributes(tables, part, lower=False)
    blocks = attributes.by_key(part)
    variances_by_part: dict[Key, dict[Part, Fraction]] = {key: {} for key in blocks}
    for _, parts in chain.from_iterable(attributes.cases):
        for key, sums, _ in parts:
            if key not in variances_by_part:
                raise Refused(f"a query has a component in the block {dict(key)}, which has no noise")
            variances_by_part[key][sums] = Fraction(0)
    costs: dict[Row, list[Fraction]] = {orbit: [] for orbit in attributes.orbits()}
    for key, block in blocks.items():
        share = prod(attributes.costs[axis][label] for axis, label in key)
        orbits = attributes.orbits(key)
        block_costs, variances = block_noise(block, [*orbits.values()], [*variances_by_part[key]])
        variances_by_part[key] = dict(zip(variances_by_part[key], variances, strict=True))
        for orbit, cost in zip(orbits, block_costs, strict=True):
            costs[orbit].append(share * cost)
    by_table = [
        [
            (dot([square for *_, square in parts], [variances_by_part[key][sums] for key, sums, _ in parts]), count)
            for count, parts in cases
        ]
        for cases in attributes.cases
    ]
    return max(map(total, costs.values())) * tables.objective(by_table)


def block_noise(part: Section, cells: list[int], parts: list[Part]) -> tuple[list[Fraction], list[Fraction]]:
    """Return the privacy cost of a record in each orbit, and the variance of each component, in one block."""
    if len(cells) == 1:
        level = part.number("level")
        expect(level > 0, "level must be positive")
        return [1 / level], [level * power(row[0] ** 2, 2 * exponent) for row, exponent in parts]
    zero_row = (0,) * len(cells), 0  # so that there is at least one row
    costs, variances = noise.costs_and_variances(part, stacked([*parts, zero_row]), None)
    return [cost / count**2 for cost, count in zip(costs, cells, strict=True)], variances[:-1]


def lower_bound(tables: DeclaredTables, part: Section) -> Fraction:
    """Return the lower bound from weights of groups of queries and of orbits of cells."""
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
    total_weight = Fraction(1) if tables.weighted else dot(map(total, weights), tables.numbers)
    return total(norms) ** 2 / sum(root * root for root in roots.values()) / total_weight


def shared_weights(attributes: Attributes, part: Section) -> list[list[Fraction]]:
    """Return the total weight of the queries of every case: the problem's weights, or dual weights of the section."""
    counts = [[count for count, _ in cases] for cases in attributes.cases]
    if attributes.tables.weighted:
        pairs = zip(counts, attributes.tables.numbers, strict=True)
        return [[weight * count for count in table_counts] for table_counts, weight in pairs]
    flat = iter(part.nonnegative("weights", sum(map(len, counts))))
    return [[next(flat) for _ in table_counts] for table_counts in counts]


def by_block(attributes: Attributes, weights: list[list[Fraction]]) -> dict[Key, dict[Part, Fraction]]:
    """Return the distinct rows s of M in every block, with their φ (including the squared number of copies)."""
    blocks: dict[Key, dict[Part, list[tuple[Fraction, Fraction]]]] = {}
    flat = zip(chain.from_iterable(attributes.cases), chain.from_iterable(weights), strict=True)
    for (_, parts), weight in flat:
        for key, sums, square in parts:
            blocks.setdefault(key, {}).setdefault(sums, []).append((square, weight))
    return {key: {sums: dot(*zip(*pairs, strict=True)) for sums, pairs in rows.items()} for key, rows in blocks.items()}


def bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    """Return the lower and upper bound on the optimum that the file proves.

    The cost for r records is r² times the cost for one; both bounds are divided by the allowed cost.
    """
    tables, allowed = DeclaredTables(problem), problem.number("allowed")
    expect(allowed > 0, "allowed must be positive")
    unit = tables.squared_records / allowed
    return lower_bound(tables, lower) * unit, upper_bound(tables, upper) * unit


# Products: all products of one query of each of several problems. The bounds of the factors multiply.
#
# The factors have workloads W_i, neighbours U_i and numbers, all targets or all weights. The workload is ``W = ⊗ W_i``
# with the neighbours ``⊗ U_i`` (single records if every factor has single records), the products of the numbers, and a
# number ``allowed``.
#
# Upper bound. Noise that measures ``A_i x`` with variance 1 in each factor measures ``⊗ A_i x`` in the product.
# The neighbours cost ``|⊗ A_i u_i|² = Π |A_i u_i|²``, and a query has the variance ``|⊗ w_i A_i⁻¹|² = Π |w_i
# A_i⁻¹|²``, for a strategy of full column rank with any left inverse. So the largest costs multiply, and so do
# the largest ratios, and the weighted sums.
#
# Lower bound. With the products of the factors' weights, ``diag(p) W U diag(q)`` is the Kronecker product of the
# matrices of the factors. Its trace norm is the product of their trace norms; ``Σ p² c`` and ``Σ q²`` multiply as well.


FACTOR_KINDS = {
    "product targets": {"targets": noise.bounds, "table targets": bounds},
    "product weights": {"weights": noise.bounds, "table weights": bounds},
}


def product_bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    factor_bounds = FACTOR_KINDS[problem.word("kind", FACTOR_KINDS)]
    factors = problem.parts("factors")
    uppers, lowers = (section.parts("factors", len(factors)) for section in (upper, lower))
    allowed = problem.number("allowed")
    expect(allowed > 0, "allowed must be positive")
    lower_value = upper_value = 1 / allowed
    for factor, factor_upper, factor_lower in zip(factors, uppers, lowers, strict=True):
        low, high = factor_bounds[factor.word("kind", factor_bounds, "kind of a factor")](
            factor, factor_upper, factor_lower
        )
        lower_value, upper_value = lower_value * low, upper_value * high
    return lower_value, upper_value
