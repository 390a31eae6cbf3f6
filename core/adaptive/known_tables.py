"""Which tables can be told from what is known so far: those that were asked for, or what is known of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from dualmech.mechanisms.block_order import OrderedBlocks
from dualmech.workloads.base import Workload
from dualmech.workloads.unions import Table, UnionWorkload


def known_tables(mechanism: OrderedBlocks) -> UnionWorkload | None:
    """Return the largest tables that a mechanism answers, of those by name that it knows and of parts of them.

    A part of a table asks the same of some of its attributes, and sums over the others; it is left out where a larger
    one is answered. None where nothing is, not even the number of records.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> people = {"age": 8, "sex": 2, "region": 3}
    >>> by = [dm.workloads.marginals(people, sets=[("age", each)]) for each in ("sex", "region")]
    >>> chain = fast.chain([dm.BlockMechanism.of_tables(each) for each in by])
    >>> [table.name for table in known_tables(chain.stages[0].known).tables]
    ['age']
    """
    found: list[Table] = []
    asked, names_of = mechanism.workload, mechanism.domain.names
    for table in () if asked is None else asked.product_tables:
        names = [names_of[axis] for axis in table.axes]
        for queries in _parts(table):
            own = Table(
                table.name
                if len(queries) == len(table.queries)
                else " x ".join(names[table.axes.index(axis)] for axis, _ in queries) or "total",
                queries,
            )
            if any(map(own.is_part_of, found)) or not mechanism._answers_all_of(own):
                continue
            found.append(own)
    largest = [
        each for each in found if not any(each is not other and each.is_part_of(other) for other in found)
    ]
    return UnionWorkload(mechanism.domain, _named_apart(largest)) if largest else None


def own_tables(mechanism: OrderedBlocks, workload: Workload | None) -> UnionWorkload | None:
    """Return the tables of a workload by the names under which a mechanism knows them."""
    tabular = None if workload is None else workload.tabular()
    asked = mechanism.workload
    if tabular is None or asked is None:
        return None
    wanted = tabular.product_tables
    tables = [each for each in asked.product_tables if any(map(each.asks_the_same, wanted))]
    return UnionWorkload(mechanism.domain, tables)


def _parts(table: Table) -> Iterator[tuple[tuple[int, Workload | None], ...]]:
    for count in range(len(table.queries), -1, -1):
        yield from itertools.combinations(table.queries, count)


def _named_apart(tables: Iterable[Table]) -> list[Table]:
    named: dict[str, Table] = {}
    for table in tables:
        name, number = table.name, 2
        while name in named:
            name, number = f"{table.name} ({number})", number + 1
        named[name] = Table(name, table.queries)
    return [*named.values()]
