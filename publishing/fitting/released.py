"""From a release to a fit: its tables on cliques of attributes, in units of their noise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.immutable import freeze
from dualmech.publishing.fitting.cliques import Clique, CliqueTables, Part, parts_of
from dualmech.publishing.fitting.nearest import NoisyTable, NoisyTables, nearest
from dualmech.publishing.fitting.records import CliqueData, FittedTables, RecordData, RecordMoves, whole_tables
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Axes, Domain
from dualmech.workloads.products import kron

if TYPE_CHECKING:
    from dualmech.publishing.statement import Planned

MOST_CODES = 2**24  # of records that are moved
LEAST_VARIANCE = 1e-9  # that is told from none, in units of the largest


def fit(released: Planned, integer: bool) -> FittedTables:
    """Return tables of a data set of the released total that are nearest, each in units of its noise.

    Minimise ``½ Σ_j ((W x - y)_j / σ_j)²`` over ``x ≥ 0`` with ``1'x = N``. Only the tables of cliques of attributes
    matter, and which of these a data set has is known on a tree: see `CliqueTables`. Where the cliques are too large,
    the least distances of parts that hang on trees, each with a data set of its own, add up to a lower bound. There,
    and for whole numbers, records are moved towards the tables, but for whole numbers of more than 2^24 codes.
    """
    parts, total = layouts_of(released.workload), float(max(round(_total(released)), 0))
    tables = _noisy_tables(released)
    fits = [_fitted_part(part, tables, total) for part in parts]
    noisy, vector, _ = fits[0]
    data: CliqueData | RecordData
    if len(parts) > 1 or (integer and are_few(total, noisy.layout)):
        noisy, moves = _moved_records(tables, fits, total)
        vector, axes = moves.vector, tuple(sorted({axis for table in tables for axis in table.axes}))
        data = RecordData(moves.codes[:, axes], axes, noisy.layout.sizes)
    else:
        vector = whole_tables(noisy.layout, vector, total) if integer else vector
        data = CliqueData(noisy.layout, freeze(vector), integer)
    views = noisy.layout.views(vector)
    fitted = {
        name: (table, freeze(noisy_table.answers(views[noisy_table.clique]).reshape(table.shape)))
        for noisy_table, (name, table) in zip(noisy.tables, released.published.items(), strict=True)
    }
    least = sum(fit[2] for fit in fits)
    return FittedTables(max(noisy.most(vector) - least, 0.0), data, _domain_of(released.workload), fitted)


Fit = tuple[NoisyTables, Array, float]
"""Of a part: its noisy tables, the nearest tables of a data set, and a lower bound of the distance."""


def _fitted_part(part: Part, tables: Sequence[NoisyTable], total: float) -> Fit:
    chosen = tuple(tables[number].on(part.layout) for number in part.tables)
    noisy = NoisyTables(part.layout, chosen, total)
    vector, direction = nearest(noisy)
    return noisy, vector, noisy.least(direction)


def _moved_records(tables: Sequence[NoisyTable], fits: Sequence[Fit], total: float) -> tuple[NoisyTables, RecordMoves]:
    """Return tables that are each on its own, and records that are moved towards them from the first part's records.

    Attributes that it lacks are taken from records of the next one that has them, by lot.
    """
    layout = fits[0][0].layout
    sizes = layout.sizes
    if not are_few(total, layout):
        raise InvalidInputError(
            f"tables that tie many attributes together are fitted by records, and {total:.0f} of them are too many "
            f"(limit {MOST_CODES} codes): fit a release of fewer tables, or publish the unbiased ones"
        )
    codes, known = np.zeros((int(total), len(sizes)), dtype=np.int64), set[int]()
    for noisy, vector, _ in fits:
        data = CliqueData(noisy.layout, whole_tables(noisy.layout, vector, total), True)
        if new := [axis for axis in data.axes if axis not in known]:
            codes[:, new] = data.records()[:, [data.axes.index(axis) for axis in new]]
            known.update(new)
    apart = CliqueTables(tuple(Clique(table.axes, -1, ()) for table in tables), sizes)
    placed = tuple(table.at(apart, number) for number, table in enumerate(tables))
    noisy = NoisyTables(apart, placed, total)
    moves = RecordMoves(noisy, codes)
    moves.descend()
    return noisy, moves


def are_few(total: float, layout: CliqueTables) -> bool:
    """Whether so many records of all attributes can be moved one by one."""
    return total * len(layout.sizes) <= MOST_CODES


def layouts_of(workload: Workload) -> tuple[Part, ...]:
    """Return the parts of a workload's tables and their cliques of attributes, from what it asks alone.

    Raises `InvalidInputError` for tables that are too large: see `parts_of`.
    """
    domain = _domain_of(workload)
    return parts_of(domain, _axes_of(workload))


def require_fit(drawn: Any, workload: Workload) -> None:
    """Refuse tables that cannot be fitted, before anything is drawn: too large ones, and those without a total.

    Raises `InvalidInputError`.
    """
    layouts_of(workload)
    mechanism = drawn.mechanism
    total = _of_all_records(drawn, workload)
    with _total_is_told():
        mechanism.variance(total) if drawn.by_table else mechanism.variances(total)


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


def _noisy_tables(released: Planned) -> tuple[NoisyTable, ...]:
    workload, tables = released.workload, released.published.values()
    variances = [released.variances(table.name) for table in tables]
    least = LEAST_VARIANCE * max(float(variance.max(initial=0.0)) for variance in variances)
    tabular, noisy = workload.tabular(), []
    owned = [None] * len(variances) if tabular is None else tabular.product_tables
    for published, owned_table, variance in zip(tables, owned, variances, strict=True):
        unit = 1 / np.sqrt(np.maximum(variance, least or 1.0))
        aim = np.asarray(released.estimates(published.name) * unit)
        if owned_table is None:
            (axes,) = _axes_of(workload)[:1]
            rows = workload.select(published.rows).matrix
            noisy.append(NoisyTable(axes, (workload.shape[1],), (rows,), unit.ravel(), aim.ravel()))
        else:
            queries = tuple(None if query is None else query.matrix for _, query in owned_table.queries)
            shape = tuple(tabular.domain.shape[axis] for axis in owned_table.axes)
            noisy.append(NoisyTable(owned_table.axes, shape, queries, np.asarray(unit), aim))
    return tuple(noisy)


def _total(released: Planned) -> float:
    count_query = _of_all_records(released.drawn, released.workload)
    with _total_is_told():
        return float(np.asarray(released.drawn.estimate(released.measured, count_query)).item())


def _of_all_records(drawn: Any, workload: Workload) -> object:
    """Return what asks for the number of records: the table of no attributes, or a workload of one row."""
    if drawn.by_table:
        return ()
    factors = getattr(workload, "factors", (workload,))
    ones = [Workload(np.ones((1, factor.shape[1]))) for factor in factors]
    return kron(*ones) if len(ones) > 1 else ones[0]


@contextlib.contextmanager
def _total_is_told() -> Iterator[None]:
    """Say of tables that do not tell the number of records what a fit lacks."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(
            f"a fit needs the number of records, which these tables do not tell: ask for the total too, or for all "
            f"values of an attribute ({error})"
        ) from error
