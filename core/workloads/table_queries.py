"""Tables of queries: every product of one query on each of some attributes, on domains of any size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import cast

import numpy as np
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.immutable import set_parts
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import MAX_DENSE_ENTRIES, StructuredWorkload, Workload
from dualmech.workloads.domain import count_text
from dualmech.workloads.marginal import MarginalWorkload, check_marginal, marginals
from dualmech.workloads.tabulations import DomainLike
from dualmech.workloads.unions import Table, UnionWorkload, union_of


class TableWorkload(StructuredWorkload):
    """Tables over attributes of a domain, however large, whose cells are queries such as prefixes or ranges.

    The table on attributes S asks every product of one query of each of them, ``⊗_{i in S} A_i``, summed over all
    others. `dualmech.workloads.query_tables` builds it.

    Attributes
    ----------
    tables : MarginalWorkload
        The marginal tables on the same attributes; the domain, the names and the residual subspaces are theirs.
    queries : tuple of Workload or None
        A_i of each attribute of the domain; None for the identity, its values themselves.
    """

    __slots__ = ("queries", "tables")

    tables: MarginalWorkload
    queries: tuple[Workload | None, ...]

    def __init__(self, tables: MarginalWorkload, queries: Iterable[Workload | None]) -> None:
        checked, sizes = validate.sequence(queries=queries), check_marginal(tables, "tables")._domain.shape
        if len(checked) != len(sizes):
            raise InvalidInputError(f"queries must have {len(sizes)} items, one per attribute, got {len(checked)}")
        for index, (query, size) in enumerate(zip(checked, sizes, strict=True)):
            if query is not None and validate.instance(Workload, **{f"queries[{index}]": query}).shape[1] != size:
                raise InvalidInputError(f"queries[{index}] must have {size} cells, got {query.shape[1]}")
        set_parts(self, tables=tables, queries=checked)
        set_parts(self, domain=tables.domain)
        self._begin((sum(self.table_counts), tables.shape[1]), tables.domain)

    @property
    def table_names(self) -> tuple[str, ...]:
        """The name of each table, such as ``age x sex``."""
        return self.tables.table_names

    def tabular(self) -> UnionWorkload:
        return cast(UnionWorkload, union_of([self]))

    @property
    def product_tables(self) -> tuple[Table, ...]:
        """Each table, as the product of its attributes' queries."""
        pairs = zip(self.table_names, self.tables.axes, strict=True)
        return tuple(Table(name, tuple((axis, self.queries[axis]) for axis in axes)) for name, axes in pairs)

    @property
    def table_counts(self) -> tuple[int, ...]:
        return tuple(math.prod(self.table_shape(axes)) for axes in self.tables.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each attribute."""
        assert self.domain is not None
        return self.domain.shape

    def table_shape(self, axes: Iterable[int]) -> tuple[int, ...]:
        """Return how many queries a table has along each of its attributes."""
        return tuple(len(self.matrix_of(axis)) for axis in validate.sequence(axes=axes))

    def matrix_of(self, axis: int) -> Array:
        """Return A_i (m_i, n_i) of an attribute."""
        query = self.queries[validate.index(len(self.queries), axis=axis)]
        if query is None and self.sizes[axis] ** 2 > MAX_DENSE_ENTRIES:
            raise InvalidInputError(
                f"attributes must have at most {math.isqrt(MAX_DENSE_ENTRIES)} values to be tabulated with others' "
                f"queries, got {self.sizes[axis]}; marginals have no such limit"
            )
        return np.eye(self.sizes[axis]) if query is None else query.dense()

    @property
    def matrix(self) -> Matrix:
        """W (m, d); refused if it has too many entries."""
        if self.shape[0] * self.shape[1] > MAX_DENSE_ENTRIES:
            raise InvalidInputError(
                f"query tables of {count_text(self.shape[1])} cells are too large for a dense matrix "
                f"(limit {MAX_DENSE_ENTRIES} entries); geometry='split' needs no matrix"
            )
        sizes = self.sizes
        blocks = [
            reduce(
                lambda a, b: sp.kron(a, b, format="csr"),
                [
                    sp.csr_array(self.matrix_of(axis) if axis in axes else np.ones((1, sizes[axis])))
                    for axis in range(len(sizes))
                ],
            )
            for axes in self.tables.axes
        ]
        return sp.csr_array(sp.vstack(blocks, format="csr"))

    @property
    def names(self) -> tuple[str, ...]:
        """One name per query: its table and its number there."""
        return tuple(f"{label}: {number}" for label, count in self._counts() for number in range(count))

    @property
    def groups(self) -> tuple[str, ...]:
        """The table of each query, such as ``age x sex``."""
        return tuple(label for label, count in self._counts() for _ in range(count))

    @property
    def sensitivity(self) -> float:
        """The root of ``Σ_S Π_{i in S} s_i²``: the worst value of an attribute is the same in all tables."""
        worst = [1.0 if query is None else query.sensitivity**2 for query in self.queries]
        return math.sqrt(sum(math.prod(worst[axis] for axis in axes) for axes in self.tables.axes))

    def _structure(self) -> tuple[object, ...]:
        return self.tables, self.queries

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"tables": self.tables, "queries": self.queries}

    def __repr__(self) -> str:
        cells = count_text(self.shape[1], 6)
        return f"TableWorkload({len(self.tables.axes)} tables, {self.shape[0]} queries x {cells} cells)"

    def _counts(self) -> list[tuple[str, int]]:
        return [*zip(self.table_names, self.table_counts, strict=True)]


def query_tables(
    domain: DomainLike,
    queries: Mapping[str, Workload],
    ways: int | Iterable[int] | None = None,
    sets: Iterable[str | Iterable[str]] | None = None,
) -> TableWorkload:
    """Ask tables over attributes, some of them by queries of their own, such as prefixes of ages.

    Raises `InvalidInputError` or `InputTypeError` for what `marginals` refuses, an unknown attribute, queries over
    another number of values, no workload.

    Parameters
    ----------
    domain, ways, sets
        As for `marginals`.
    queries : mapping of attribute names to Workload
        The queries of each attribute, over its values; an attribute that is not named is asked by its values.

    Examples
    --------
    >>> import dualmech as dm
    >>> domain = dm.Domain({"age": 4, "sex": 2})
    >>> asked = dm.workloads.query_tables(domain, {"age": dm.workloads.prefix(4)}, ways=2)
    >>> asked.shape, asked.dense()[2]      # age 0..1, sex 0
    ((8, 8), array([1., 0., 1., 0., 0., 0., 0., 0.]))
    """
    tables = marginals(domain, ways, sets)
    validate.mapping("attribute names to workloads", queries=queries)
    assert tables.domain is not None
    by_axis: list[Workload | None] = [None] * len(tables.domain.shape)
    for name, query in queries.items():
        (axis,) = tables.domain.axes([name])
        validate.instance(Workload, **{f"queries[{name!r}]": query})
        if query.shape[1] != tables.domain.shape[axis]:
            raise InvalidInputError(
                f"queries[{name!r}] must be over {tables.domain.shape[axis]} values, got {query.shape[1]}"
            )
        by_axis[axis] = query
    return TableWorkload(tables, by_axis)
