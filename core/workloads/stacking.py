"""Unions of workloads that keep their structure: which tables marginals, query tables and products consist of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.products import ProductWorkload
from dualmech.workloads.query_tables import TableWorkload
from dualmech.workloads.unions import Table, UnionWorkload


def structured(pieces: Sequence[Workload], labels: Sequence[str] | None = None) -> UnionWorkload | None:
    """Return the union of workloads that keep their structure, or None where one does not or they share no domain.

    Tables of the same name are told apart by a number; `labels`, one a piece, are put before their names, and are the
    groups of their queries.
    """
    found = [_tables_of(piece) for piece in pieces]
    domain = pieces[0].domain
    if domain is None or any(piece.domain != domain for piece in pieces) or None in found:
        return None
    marks = [None] * len(pieces) if labels is None else [*labels]
    named: dict[str, Table] = {}
    for index, tables in enumerate(found):
        for table in tables or ():
            name = table.name if labels is None else f"{labels[index]}: {table.name}"
            for number in range(2, len(named) + 3):
                if name not in named:
                    break
                name = f"{name.removesuffix(f' ({number - 1})')} ({number})"
            named[name] = Table(name, table.queries)
    return UnionWorkload(domain, named.values(), zip(pieces, marks, strict=True) if in_order(pieces) else ())


def in_order(pieces: Sequence[Workload]) -> bool:
    """Whether queries of pieces stand table by table: of a product, if its first factor alone has several tables."""
    products = [piece for piece in pieces if isinstance(piece, ProductWorkload)]
    return all(len(_tables_of(factor) or ((),)) == 1 for piece in products for factor in piece.factors[1:])


def table_numbers(workload: Workload) -> npt.NDArray[np.intp]:
    """Return the table of each query (m,), by its number in `structured`; of a product they need not be in order."""
    if isinstance(workload, ProductWorkload):
        found = np.zeros(1, dtype=np.intp)
        for factor in workload.factors:
            own = table_numbers(factor)
            found = np.add.outer(found * (own.max() + 1), own).ravel()
        return found
    counts = getattr(workload, "table_counts", (workload.shape[0],))
    return np.repeat(np.arange(len(counts)), counts)


def _tables_of(piece: Workload) -> tuple[Table, ...] | None:
    """Return the tables of a workload that keeps its structure, None of any other."""
    if isinstance(piece, UnionWorkload):
        return piece.tables
    if isinstance(piece, MarginalWorkload | TableWorkload):
        marginals = piece if isinstance(piece, MarginalWorkload) else piece.tables
        own = piece.queries if isinstance(piece, TableWorkload) else None
        return tuple(
            Table(name, tuple((axis, own[axis] if own else None) for axis in axes))
            for name, axes in zip(marginals.table_names, marginals.axes, strict=True)
        )
    return (
        _tables_of_product(piece) if isinstance(piece, ProductWorkload) and piece.domain is not None else None
    )


def _tables_of_product(piece: ProductWorkload) -> tuple[Table, ...] | None:
    """Return every product of one table of each factor; a factor without structure must have one attribute."""
    tables, start = [Table("", ())], 0
    for factor in piece.factors:
        domain = cast(Domain, factor.domain)
        if (own := _tables_of(factor)) is None:
            if len(domain.shape) != 1:
                return None
            own = (Table(domain.names[0], ((0, factor),)),)
        tables = [
            Table(
                f"{one.name} & {two.name}" if one.name else two.name,
                (*one.queries, *((start + axis, asked) for axis, asked in two.queries)),
            )
            for one in tables
            for two in own
        ]
        start += len(domain.shape)
    return tuple(tables)
