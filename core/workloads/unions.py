"""Unions of product tables: each asks its own queries along each of its attributes, given as workloads or in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.immutable import set_parts
from dualmech.validate import Array, Matrix
from dualmech.workloads import numbers, tabulations
from dualmech.workloads.arrays import as_text_array, sets_to_arrays
from dualmech.workloads.base import StructuredWorkload, Workload, same_content
from dualmech.workloads.domain import Domain, are_positions, count_text

MAX_COMBINATIONS = 2**20  # of values, among which the worst case is searched

Queries = Workload | None


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A named table: a query set for each of its attributes (None for values), by increasing position."""

    name: str
    queries: tuple[tuple[int, Queries], ...]
    axes: tuple[int, ...] = field(init=False)  # the attributes

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(axis for axis, _ in self.queries))

    def is_part_of(self, other: Table) -> bool:
        """Return whether another table has the same queries on all attributes of this one."""
        queries = dict(other.queries)
        return all(axis in queries and same_content(query, queries[axis]) for axis, query in self.queries)

    def asks_the_same(self, other: Table) -> bool:
        """Return whether another table has the same queries on the same attributes; names do not count."""
        return self.axes == other.axes and self.is_part_of(other)

    def times(self, other: Table, start: int) -> Table:
        """Return the product with a table whose attributes are numbered from `start`."""
        name = f"{self.name} & {other.name}" if self.name else other.name
        return Table(name, (*self.queries, *((start + axis, query) for axis, query in other.queries)))


class UnionWorkload(StructuredWorkload):
    """Named tables over a domain, each a product of one query set for each of its attributes; the matrix on demand.

    `dualmech.workloads.union` builds it, and `dualmech.workloads.stack` from marginals, products and query tables.

    Attributes
    ----------
    domain : Domain
        The attributes.
    tables : tuple of Table
        The tables, in order; queries of a table are in row-major order (the last attribute varies fastest).
    pieces : tuple of pairs
        The workloads that it is a stack of, after which its queries are named, with the group that each gives to all of
        its queries, or None for their own; () where the tables name them.

    Attributes
    ----------
    table_names : tuple of str
        The name of each table.
    """

    __slots__ = ("pieces", "table_names", "tables")

    tables: tuple[Table, ...]
    table_names: tuple[str, ...]
    pieces: tuple[tuple[Workload, str | None], ...]

    def __init__(
        self, domain: Domain, tables: Iterable[Table], pieces: Iterable[tuple[Workload, str | None]] = ()
    ) -> None:
        validate.instance(Domain, domain=domain)
        checked = _as_tables(domain, tables)
        set_parts(self, tables=checked, table_names=tuple(table.name for table in checked), domain=domain)
        set_parts(self, pieces=_as_pieces(pieces))
        self._begin((sum(self.table_counts), domain.cells), domain)

    def tabular(self) -> UnionWorkload:
        return self

    @property
    def product_tables(self) -> tuple[Table, ...]:
        """The tables."""
        return self.tables

    def table_shape(self, table: Table | str) -> tuple[int, ...]:
        """Return the number of queries of a table (or its name) along each of its attributes."""
        table = table if isinstance(table, Table) else self.table(table)
        sizes = self._domain.shape
        return tuple(sizes[axis] if query is None else query.shape[0] for axis, query in table.queries)

    def table(self, name: str) -> Table:
        """Return a table by name.

        Raises `InvalidInputError` for no table of that name.
        """
        return self.tables[self.table_names.index(validate.choice(self.table_names, table=name))]

    @property
    def table_counts(self) -> tuple[int, ...]:
        return tuple(math.prod(self.table_shape(table)) for table in self.tables)

    @property
    def matrix(self) -> Matrix:
        """W (m, d), sparse; refused if it has too many entries."""
        if self._matrix is None:
            if sum(self._entries(table) for table in self.tables) > tabulations.MAX_ENTRIES:
                raise InvalidInputError(
                    f"{count_text(self.shape[0])} queries over {count_text(self.shape[1])} cells are too many for a "
                    f"sparse matrix (limit {tabulations.MAX_ENTRIES} entries); geometry='blocks' needs no matrix"
                )
            rows = sp.vstack([self._rows(table) for table in self.tables], format="csr")
            set_parts(self, _matrix=sp.csr_array(rows))
        return cast(Matrix, self._matrix)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per query: its table and the names of its factors; in a stack the piece's names."""
        self._check_query_count()
        if self.pieces:
            return tuple(name for piece, _ in self.pieces for name in piece.names)
        return tuple(name for table in self.tables for name in self._names_in(table))

    @property
    def groups(self) -> tuple[str, ...]:
        """The table of each query; in a stack its own group, or its label."""
        self._check_query_count()
        if self.pieces:
            groups = (piece.groups if label is None else (label,) * piece.shape[0] for piece, label in self.pieces)
            return tuple(group for piece_groups in groups for group in piece_groups)
        return tuple(table.name for table in self.tables for _ in range(math.prod(self.table_shape(table))))

    @property
    def sensitivity(self) -> float:
        """Largest Euclidean norm of a column, ``√(max Σ_t Π_i s_ti²)`` over a value of each attribute.

        Raises `InvalidInputError` for more than 2^20 combinations of values that could be the worst.
        """
        combined = np.ones((1, len(self.tables)))
        for axis, size in enumerate(self._domain.shape):
            norms = np.ones((size, len(self.tables)))
            for index, table in enumerate(self.tables):
                query = dict(table.queries).get(axis)
                if query is not None:
                    norms[:, index] = query.column_squares()
            worst = _maximal_rows(norms)
            if len(combined) * len(worst) > MAX_COMBINATIONS:
                raise InvalidInputError(f"more than {MAX_COMBINATIONS} combinations of values could be the worst")
            combined = (combined[:, None, :] * worst).reshape(-1, len(self.tables))
        return math.sqrt(float(combined.sum(axis=1).max()))

    def per_table(self, values: object, name: str) -> Array:
        """Return one positive number per table; see `dualmech.workloads.numbers.by_table`."""
        axes = [table.axes for table in self.tables]
        return numbers.by_table(values, validate.text(name=name), self._domain, axes, self.table_names)

    def _structure(self) -> tuple[object, ...]:
        return self._domain, tuple(table.queries for table in self.tables)

    def __reduce__(self) -> tuple[object, ...]:
        return UnionWorkload, (self._domain, self.tables, self.pieces)

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        assert self.domain is not None
        return {
            **sets_to_arrays(self.domain, [table.axes for table in self.tables]),
            "table_names": as_text_array("table names", self.table_names),
            "queries": tuple(queries for table in self.tables for _, queries in table.queries),
        }

    def __repr__(self) -> str:
        queries, cells = self.shape
        return f"UnionWorkload({len(self.tables)} tables, {queries} queries x {count_text(cells, 6)} cells)"

    @property
    def _domain(self) -> Domain:
        assert self.domain is not None
        return self.domain

    def _entries(self, table: Table) -> int:
        """Return an upper bound on the number of non-zero entries of a table's rows."""
        entries = [*self._domain.shape]
        for axis, query in table.queries:
            if query is not None:
                entries[axis] = int(query.matrix.nnz) if query.is_sparse else query.matrix.size
        return math.prod(entries)

    def _rows(self, table: Table) -> sp.csr_array:
        queries = dict(table.queries)
        factors = []
        for axis, size in enumerate(self._domain.shape):
            if axis not in queries:
                factors.append(sp.csr_array(np.ones((1, size))))
            else:
                query = queries[axis]
                factors.append(sp.csr_array(sp.eye_array(size) if query is None else query.matrix))
        return sp.csr_array(reduce(lambda a, b: sp.kron(a, b, format="csr"), factors))

    def _names_in(self, table: Table) -> list[str]:
        names = [""]
        for axis, query in table.queries:
            label, size = self._domain.sizes[axis]
            axis_names = [f"{label}={value}" for value in range(size)] if query is None else query.names
            names = [f"{prefix}, {suffix}" if prefix else suffix for prefix in names for suffix in axis_names]
        return [f"{table.name}: {name}" if name else table.name for name in names]


def union(domain: tabulations.DomainLike, tables: Mapping[str, Mapping[str, object] | Iterable[str]]) -> UnionWorkload:
    """Ask named tables, each a product of one query set for each of its attributes, summed over all others.

    Raises `InvalidInputError` or `InputTypeError` for no tables, an unknown attribute or one named twice, queries
    over another number of values, no workload.

    Parameters
    ----------
    domain : Domain, mapping, or sequence of sizes
        The attributes.
    tables : mapping
        The question of each table, by name: attribute names mapped to workloads over their values or None for the
        values themselves, with a `dualmech.Schema` also to a word, a list or a mapping of a specification; or a list of
        attribute names, for their values. An empty question asks for the total.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.union(
    ...     {"age": 4, "sex": 2}, {"by sex": ["sex"], "ages": {"age": dm.workloads.prefix(4), "sex": None}}
    ... )
    >>> asked, asked.names[4]
    (UnionWorkload(2 tables, 10 queries x 8 cells), 'ages: cells 0..1, sex=0')
    """
    table_domain = tabulations.as_domain(domain)
    if not validate.mapping("names to questions", tables=tables):
        raise InvalidInputError("tables must be one or more, got none")
    if len({str(name) for name in tables}) < len(tables):
        raise InvalidInputError(f"tables must have names that differ as texts, got {[*tables]}")
    return UnionWorkload(
        table_domain,
        [_as_table(table_domain, str(name), question, len(tables) == 1) for name, question in tables.items()],
    )


def union_of(pieces: Sequence[Workload], labels: Sequence[str] | None = None) -> UnionWorkload | None:
    """Return the union of structured workloads over one domain; None if one has no tables or another domain.

    Tables of one name are numbered. `labels`, one per piece, precede the names and are the groups of the queries.
    """
    tables_of_pieces = [getattr(piece, "product_tables", None) for piece in pieces]
    domain = pieces[0].domain
    if domain is None or any(piece.domain != domain for piece in pieces) or None in tables_of_pieces:
        return None
    groups = [None] * len(pieces) if labels is None else [*labels]
    by_name: dict[str, Table] = {}
    for index, tables in enumerate(tables_of_pieces):
        for table in tables or ():
            name = table.name if labels is None else f"{labels[index]}: {table.name}"
            for number in range(2, len(by_name) + 3):
                if name not in by_name:
                    break
                name = f"{name.removesuffix(f' ({number - 1})')} ({number})"
            by_name[name] = Table(name, table.queries)
    ordered = all(getattr(piece, "in_table_order", True) for piece in pieces)
    return UnionWorkload(domain, by_name.values(), zip(pieces, groups, strict=True) if ordered else ())


def each_once(tables: Iterable[Table]) -> list[Table]:
    """Return tables of several workloads without duplicates; different tables of one name are numbered."""
    by_name: dict[str, Table] = {}
    for table in tables:
        name, number = table.name, 2
        while name in by_name and not by_name[name].asks_the_same(table):
            name, number = f"{table.name} ({number})", number + 1
        by_name.setdefault(name, Table(name, table.queries))
    return [*by_name.values()]


def tables_of(workload: Workload) -> Any:
    """Return a workload as tables (marginals or a union); refuse one without tables."""
    tables = validate.instance(Workload, workload=workload).tabular()
    if tables is None:
        raise InvalidInputError(
            "workload must have tables, as workloads of dualmech.workloads.union, marginals, query_tables, circular "
            "and kron (over a domain) do"
        )
    return tables


def _as_tables(domain: Domain, tables: Iterable[Table]) -> tuple[Table, ...]:
    checked = validate.sequence(tables=tables)
    for table in checked:
        if not isinstance(table, Table) or not are_positions(table.axes, len(domain.shape)):
            raise InputTypeError("tables must be tables over the domain; dualmech.workloads.union makes them")
        for axis, query in table.queries:
            if query is not None and query.shape[1] != domain.shape[axis]:
                raise InvalidInputError(
                    f"tables must ask of {domain.names[axis]!r} its {domain.shape[axis]} values, got {query.shape[1]}"
                )
    return checked


def _as_pieces(pieces: Iterable[tuple[Workload, str | None]]) -> tuple[tuple[Workload, str | None], ...]:
    checked = tuple(validate.sequence(pieces=piece) for piece in validate.sequence(pieces=pieces))
    for piece in checked:
        if len(piece) != 2 or not isinstance(piece[0], Workload) or not isinstance(piece[1], str | None):
            raise InputTypeError("pieces must be pairs of a workload and a label or None")
    return checked


def _as_table(domain: Domain, name: str, ask: Mapping[str, Any] | Iterable[str], is_only_table: bool) -> Table:
    if isinstance(ask, str | Workload) or not isinstance(ask, Iterable):
        raise InputTypeError(
            f"tables[{name!r}] must map attribute names to workloads, or list names, got {type(ask).__name__}"
        )
    attributes = [*ask]
    domain.axes(attributes)
    pairs = ask if isinstance(ask, Mapping) else dict.fromkeys(attributes)
    queries: dict[int, Queries] = {}
    for attribute, query in pairs.items():
        (axis,) = domain.axes([attribute])
        size = domain.shape[axis]
        argument = f"tables[{name!r}][{attribute!r}]"
        if isinstance(query, str | list | tuple | Mapping):
            query = domain.query_set(axis, query, is_only_table and len(domain.shape) == 1)
        if query is not None and validate.instance(Workload, **{argument: query}).shape[1] != size:
            raise InvalidInputError(f"{argument} must be over {size} values, got {query.shape[1]}")
        queries[axis] = query
    return Table(name, tuple(sorted(queries.items(), key=lambda pair: pair[0])))


def _maximal_rows(rows: Array) -> Array:
    """Return the distinct rows that no other row dominates in every entry."""
    maximal: list[Array] = []
    for row in np.unique(rows, axis=0)[::-1]:  # in decreasing order: only an earlier row can dominate
        if not any(np.all(other >= row) for other in maximal):
            maximal.append(row)
    return np.array(maximal)
