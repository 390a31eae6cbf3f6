"""From a release to a fit: its tables on cliques of attributes, in units of their noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.publishing.fitting.clique_tables import CliqueTables
from dualmech.publishing.fitting.fitted import FittedTables
from dualmech.publishing.fitting.junction import junction_tree
from dualmech.publishing.fitting.nearest import nearest
from dualmech.publishing.fitting.noisy_tables import NoisyTable, NoisyTables
from dualmech.publishing.fitting.whole_records import whole_tables
from dualmech.publishing.published import PublishedTable
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.lattice import Axes
from dualmech.workloads.products import kron

LEAST_VARIANCE = 1e-9  # that is told from none, in units of the largest


def fit(released: Any, integer: bool) -> FittedTables:
    """Return tables of a data set of the released total that are nearest, each in units of its noise.

    Minimise ``½ Σ_j ((W x - y)_j / σ_j)²`` over ``x ≥ 0`` with ``1'x = N``. Only the tables of cliques of attributes
    matter, and which of these a data set has is known on a tree: see `CliqueTables`.
    """
    workload = released.workload
    layout, total = layout_of(workload), float(max(round(_total(released)), 0))
    noisy = NoisyTables(layout, _noisy_tables(released, layout), total)
    vector, direction = nearest(noisy)
    if integer:
        vector = whole_tables(layout, vector, total)
    views = layout.views(vector)
    asked = zip(noisy.tables, released.published.items(), strict=True)
    found = {
        name: (table, validate.read_only(each.answers(views[each.clique]).reshape(table.shape)))
        for each, (name, table) in asked
    }
    return FittedTables(
        noisy.gap(vector, direction), integer, layout, validate.read_only(vector), _domain_of(workload), found
    )


def layout_of(workload: Workload) -> CliqueTables:
    """Return the cliques of attributes that a workload ties together, from what it asks alone.

    Raises `InvalidInputError` for cliques whose tables are too large: see `junction_tree`.
    """
    domain = _domain_of(workload)
    return CliqueTables(junction_tree(domain, _axes_of(workload)), domain.shape)


def _domain_of(workload: Workload) -> Domain:
    tabular = workload.tabular()
    if tabular is not None:
        return tabular.domain
    return workload.domain or Domain({"cell": workload.shape[1]})


def _axes_of(workload: Workload) -> list[Axes]:
    """Return the attributes of each table; queries without tables are of all attributes."""
    tabular = workload.tabular()
    if tabular is None:
        return [tuple(range(len(_domain_of(workload).shape)))]
    return [table.axes for table in tabular.product_tables]


def _noisy_tables(released: Any, layout: CliqueTables) -> tuple[NoisyTable, ...]:
    """Return the tables of a release, each on the smallest clique that has its attributes, in units of its noise."""
    workload, tables = released.workload, released.published.values()
    variances = [released.variances(table.name) for table in tables]
    least = LEAST_VARIANCE * max(float(each.max(initial=0.0)) for each in variances)
    units = [1 / np.sqrt(np.maximum(each, least or 1.0)) for each in variances]
    estimates = [released.estimates(table.name) for table in tables]
    tabular = workload.tabular()
    owned = [None] * len(units) if tabular is None else tabular.product_tables
    found = []
    for published, own, unit, estimate in zip(tables, owned, units, estimates, strict=True):
        if own is None:
            found.append(_of_rows(published, workload, layout, unit.ravel(), estimate.ravel()))
        else:
            found.append(_of_table(own, layout, unit, estimate))
    return tuple(found)


def _of_rows(
    published: PublishedTable, workload: Workload, layout: CliqueTables, unit: Any, estimate: Any
) -> NoisyTable:
    rows = workload.select(published.rows).matrix
    return NoisyTable(0, (), (workload.shape[1],), layout.shapes[0], (rows,), unit, estimate * unit)


def _of_table(own: Any, layout: CliqueTables, unit: Any, estimate: Any) -> NoisyTable:
    covering = [number for number, clique in enumerate(layout.cliques) if set(own.axes) <= set(clique.axes)]
    number = min(covering, key=lambda each: math.prod(layout.shapes[each]))
    others = layout.outside(number, own.axes)
    sides = tuple(1 if side in others else size for side, size in enumerate(layout.shapes[number]))
    queries = tuple(None if asked is None else asked.matrix for _, asked in own.queries)
    shape = tuple(layout.sizes[axis] for axis in own.axes)
    return NoisyTable(number, others, shape, sides, queries, unit, estimate * unit)


def _total(released: Any) -> float:
    """Return the estimate of the number of records."""
    asked: Any = ()
    if not released.drawn.by_table:
        factors = getattr(released.workload, "factors", (released.workload,))
        ones = [Workload(np.ones((1, each.shape[1]))) for each in factors]
        asked = kron(*ones) if len(ones) > 1 else ones[0]
    return float(np.asarray(released.drawn.estimate(released.measured, asked)).item())
