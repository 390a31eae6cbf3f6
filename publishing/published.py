"""The tables that a workload is published as, and the labels of their entries."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.errors import InvalidInputError
from dualmech.publishing.attributes import Attribute
from dualmech.publishing.schema import attribute_at
from dualmech.workloads.base import Workload
from dualmech.workloads.circle import CircularWorkload
from dualmech.workloads.domain import Domain
from dualmech.workloads.unions import UnionWorkload

MAX_QUERY_ENTRIES = 2**26  # maximum size of an attribute's query matrix whose rows get labels from their values

COUNTING = re.compile(r"q?\d+|cells? \d+(\.\.\d+)?|total")
"""Default names of queries, which are replaced by labels of the counted values."""

QUERY = "query"  # column of the names of queries on no attribute


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table: its name, and the labels of its entries along each axis (side)."""

    name: str
    sides: Mapping[str, Sequence[str]]
    table_key: Any  # identifies the table in a mechanism of tables: its name in a union, or its attributes
    rows: npt.NDArray[np.intp]  # indices of its queries in the workload
    # By side, the first and last value of each entry, to sort and join by; only for sides whose labels are not values.
    keys: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    impossible: npt.NDArray[np.bool_] | bool = False  # mask of the entries that count only impossible cells

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of entries along each side."""
        return tuple(len(labels) for labels in self.sides.values())

    @property
    def entries(self) -> int:
        """Number of queries."""
        return math.prod(self.shape)


def published_tables(workload: Workload) -> tuple[PublishedTable, ...]:
    """Return the tables of a workload, or one table for each group of queries if it is not tabular.

    Examples
    --------
    >>> import dualmech as dm
    >>> people = dm.Schema({"age": range(17, 91), "sex": ["female", "male"]})
    >>> workload = dm.workloads.union(
    ...     people, {"ages": {"age": dm.workloads.prefix(74)}, "cells": ["age", "sex"]}
    ... )
    >>> [(table.name, table.shape) for table in published_tables(workload)]
    [('ages', (74,)), ('cells', (74, 2))]
    >>> published_tables(workload)[0].sides["age"][:2]
    ['age ≤ 17', 'age ≤ 18']
    """
    tabular = workload.tabular()
    if tabular is None:
        return _groups(workload)
    domain: Domain = tabular.domain
    rows, tables = _rows_by_table(workload, len(tabular.product_tables)), []
    for row, table in zip(rows, tabular.product_tables, strict=True):
        sides, keys = dict[str, list[str]](), dict[str, list[tuple[str, str]]]()
        for axis, question in table.queries:
            side, (labels, ends) = domain.names[axis], entries(attribute_at(domain, axis), question)
            if len({*labels}) < len(labels):
                duplicate = next(label for label, count in Counter(labels).items() if count > 1)
                raise InvalidInputError(
                    f"table {table.name!r} must have distinct labels of rows, got {duplicate!r} twice along "
                    f"{side!r}: give the queries names"
                )
            sides[side] = labels
            if any(any(pair) and pair != (label, label) for pair, label in zip(ends, labels, strict=bool(ends))):
                keys[side] = ends
        has_names = isinstance(tabular, UnionWorkload) and isinstance(workload, UnionWorkload)
        table_key = table.name if has_names else tuple(domain.names[axis] for axis in table.axes)
        impossible = counts_nobody(domain, dict(table.queries))
        tables.append(PublishedTable(table.name or "total", sides, table_key, row, keys, impossible))
    return tuple(tables)


def counts_nobody(domain: Domain, queries: Mapping[int, Workload | None]) -> npt.NDArray[np.bool_] | bool:
    """Return a mask of the product queries that count only impossible cells; it has one axis for each attribute.

    Examples
    --------
    >>> import dualmech as dm
    >>> people = dm.Schema({"sex": ["f", "m"], "pregnant": ["no", "yes"]}, [{"sex": "m", "pregnant": "yes"}])
    >>> counts_nobody(people, {0: None, 1: None})
    array([[False, False],
           [False,  True]])
    """
    nobody: npt.NDArray[np.bool_] | bool = False
    for together in domain.impossible:
        if any(len(values) < domain.shape[axis] for axis, values in together.items() if axis not in queries):
            continue  # the table also sums over possible values of that attribute
        mask = np.ones((), dtype=bool)
        for axis, query in queries.items():
            mask = np.logical_and.outer(mask, _counts_only(query, together.get(axis), domain.shape[axis]))
        nobody = nobody | mask
    return nobody


def _counts_only(query: Workload | None, values: Sequence[int] | None, size: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the queries on an attribute that count only these values; None means all values."""
    if values is None:
        return np.ones(size if query is None else query.shape[0], dtype=bool)
    if query is None:
        return np.isin(np.arange(size), values)
    if math.prod(query.shape) > MAX_QUERY_ENTRIES:
        return np.zeros(query.shape[0], dtype=bool)
    return np.asarray(~np.any(np.delete(query.dense(), values, axis=1), axis=1))


def _rows_by_table(workload: Workload, tables: int) -> list[npt.NDArray[np.intp]]:
    """Return the indices of each table's queries; empty if the workload has too many queries to number."""
    if workload.shape[0] > MAX_QUERY_ENTRIES:
        return [np.zeros(0, dtype=np.intp)] * tables
    numbers = workload.table_numbers()
    ends = np.cumsum(np.bincount(numbers, minlength=tables))
    return np.split(np.argsort(numbers, kind="stable"), ends[:-1])


def entries(attribute: Attribute, query: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the labels of the entries along an attribute, and their first and last values if these are known."""
    if query is None:
        codes = range(attribute.size)
        return [attribute.label(code) for code in codes], attribute.keys([[code] for code in codes])
    if not attribute.has_labels or isinstance(query, CircularWorkload) or math.prod(query.shape) > MAX_QUERY_ENTRIES:
        return [*query.names], []
    query_codes = _counted_codes(query)
    return _labels(attribute, query.names, query_codes), attribute.keys(query_codes)


def _labels(attribute: Attribute, names: Sequence[str], query_codes: list[list[int]]) -> list[str]:
    if all(len(codes) == 1 for codes in query_codes) and all(map(COUNTING.fullmatch, names)):
        return [attribute.label(codes[0]) for codes in query_codes]
    prefixes = len(query_codes) > 1 and all(codes == [*range(len(codes))] and codes for codes in query_codes)
    return [
        (attribute.describe(codes, prefixes) if codes and COUNTING.fullmatch(name) else None) or name
        for codes, name in zip(query_codes, names, strict=True)
    ]


def _counted_codes(query: Workload) -> list[list[int]]:
    """Return the codes of the values that each query counts; empty for a query with other coefficients than 0 and 1."""
    rows = sp.csr_array(query.matrix, copy=True)
    rows.eliminate_zeros()
    rows.sort_indices()
    return [
        rows.indices[first:last].tolist() if last > first and np.all(rows.data[first:last] == 1) else []
        for first, last in itertools.pairwise(rows.indptr.tolist())
    ]


def _groups(workload: Workload) -> tuple[PublishedTable, ...]:
    domain = workload.domain
    names = (
        entries(attribute_at(domain, 0), workload)[0]
        if domain is not None and len(domain.names) == 1
        else [*workload.names]
    )
    possible = None if domain is None or math.prod(workload.shape) > MAX_QUERY_ENTRIES else domain.possible()
    impossible = np.zeros(len(names), dtype=bool)
    if possible is not None:
        impossible = ~np.any(workload.dense()[:, possible], axis=1)
    groups: dict[str, list[int]] = {}
    for index, group in enumerate(workload.groups):
        groups.setdefault(group, []).append(index)
    return tuple(
        PublishedTable(
            name,
            {QUERY: [names[index] for index in rows]},
            None,
            np.array(rows, dtype=np.intp),
            impossible=impossible[rows],
        )
        for name, rows in groups.items()
    )
