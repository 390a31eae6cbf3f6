"""Which tables a workload is published as, and what their rows are called."""

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

LARGEST_SEARCH = 2**26  # entries of an attribute's queries that names are found for

COUNTING = re.compile(r"q?\d+|cells? \d+(\.\.\d+)?|total")
"""Names that only count: those that builders give, in whose place values tell more."""

QUERY = "query"  # the column of queries that have names of their own


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as it is published: its name, and what its entries are called along each of its sides."""

    name: str
    sides: Mapping[str, Sequence[str]]
    asked: Any  # what a mechanism of tables calls it: its name in a union, or its attributes
    rows: npt.NDArray[np.intp]  # its queries among the workload's
    # What sorts and joins the entries along a side, the first and the last value of each, where the label is not that.
    keys: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    empty: npt.NDArray[np.bool_] | bool = False  # which entries count only cells that no record has

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of entries along each side."""
        return tuple(len(labels) for labels in self.sides.values())

    @property
    def entries(self) -> int:
        """Number of queries."""
        return math.prod(self.shape)


def published_tables(workload: Workload) -> tuple[PublishedTable, ...]:
    """Return the tables of a workload: those that it is made of, or one for each of its groups of queries.

    Examples
    --------
    >>> import dualmech as dm
    >>> people = dm.Schema({"age": range(17, 91), "sex": ["female", "male"]})
    >>> asked = dm.workloads.union(
    ...     people, {"ages": {"age": dm.workloads.prefix(74)}, "cells": ["age", "sex"]}
    ... )
    >>> [(table.name, table.shape) for table in published_tables(asked)]
    [('ages', (74,)), ('cells', (74, 2))]
    >>> published_tables(asked)[0].sides["age"][:2]
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
                twice = next(label for label, count in Counter(labels).items() if count > 1)
                raise InvalidInputError(
                    f"table {table.name!r} must have rows that a reader can tell apart, got two that are called "
                    f"{twice!r} along {side!r}: give their workload names"
                )
            sides[side] = labels
            if any(any(pair) and pair != (label, label) for pair, label in zip(ends, labels, strict=bool(ends))):
                keys[side] = ends
        named = isinstance(tabular, UnionWorkload) and isinstance(workload, UnionWorkload)
        question = table.name if named else tuple(domain.names[axis] for axis in table.axes)
        empty = counts_nobody(domain, dict(table.queries))
        tables.append(PublishedTable(table.name or "total", sides, question, row, keys, empty))
    return tuple(tables)


def counts_nobody(domain: Domain, queries: Mapping[int, Workload | None]) -> npt.NDArray[np.bool_] | bool:
    """Return which product queries, an axis an attribute, count only cells that no record has.

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
        if any(len(chosen) < domain.shape[axis] for axis, chosen in together.items() if axis not in queries):
            continue  # the table sums over values that records may have
        inside = np.ones((), dtype=bool)
        for axis, query in queries.items():
            inside = np.logical_and.outer(inside, _within(query, together.get(axis), domain.shape[axis]))
        nobody = nobody | inside
    return nobody


def _within(query: Workload | None, chosen: Sequence[int] | None, size: int) -> npt.NDArray[np.bool_]:
    """Return which queries on an attribute count no value but the chosen ones; None of these are all of them."""
    if chosen is None:
        return np.ones(size if query is None else query.shape[0], dtype=bool)
    if query is None:
        return np.isin(np.arange(size), chosen)
    if math.prod(query.shape) > LARGEST_SEARCH:
        return np.zeros(query.shape[0], dtype=bool)
    return np.asarray(~np.any(np.delete(query.dense(), chosen, axis=1), axis=1))


def _rows_by_table(workload: Workload, tables: int) -> list[npt.NDArray[np.intp]]:
    """Return the queries of each table, none of them where all are too many to number."""
    if workload.shape[0] > LARGEST_SEARCH:
        return [np.zeros(0, dtype=np.intp)] * tables
    numbers = workload.table_numbers()
    ends = np.cumsum(np.bincount(numbers, minlength=tables))
    return np.split(np.argsort(numbers, kind="stable"), ends[:-1])


def entries(attribute: Attribute, ask: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """Return what the entries along an attribute are called, and what sorts and joins them, where that is known."""
    if ask is None:
        codes = range(attribute.size)
        return [attribute.label(code) for code in codes], attribute.keys([[code] for code in codes])
    if not attribute.named or isinstance(ask, CircularWorkload) or math.prod(ask.shape) > LARGEST_SEARCH:
        return [*ask.names], []
    counted = _counted(ask)
    return _names(attribute, ask.names, counted), attribute.keys(counted)


def _names(attribute: Attribute, names: Sequence[str], counted: list[list[int]]) -> list[str]:
    if all(len(codes) == 1 for codes in counted) and all(map(COUNTING.fullmatch, names)):
        return [attribute.label(codes[0]) for codes in counted]
    prefixes = len(counted) > 1 and all(codes == [*range(len(codes))] and codes for codes in counted)
    return [
        (attribute.describe(codes, prefixes) if codes and COUNTING.fullmatch(name) else None) or name
        for codes, name in zip(counted, names, strict=True)
    ]


def _counted(query: Workload) -> list[list[int]]:
    """Return the values that each query counts once; none of a query that weighs its values."""
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
    possible = None if domain is None or math.prod(workload.shape) > LARGEST_SEARCH else domain.possible()
    empty = np.zeros(len(names), dtype=bool) if possible is None else ~np.any(workload.dense()[:, possible], axis=1)
    groups: dict[str, list[int]] = {}
    for index, group in enumerate(workload.groups):
        groups.setdefault(group, []).append(index)
    return tuple(
        PublishedTable(
            group, {QUERY: [names[index] for index in rows]}, None, np.array(rows, dtype=np.intp), empty=empty[rows]
        )
        for group, rows in groups.items()
    )
