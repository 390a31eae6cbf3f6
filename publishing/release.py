"""Releases: records in, exact discrete Gaussian noise, and tables out, with their cost and accuracy."""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import singledispatch
from typing import Any

from dualmech import validate
from dualmech.accounting import squared_cost_from_rho
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.epochs import EpochsMechanism
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.local import LocalMechanism
from dualmech.mechanisms.product import ProductMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.mechanisms.stream import CausalMechanism, StreamMechanism
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.publishing.combining import PlanAfter, mechanism_of
from dualmech.publishing.dense import DrawnRows, require_small
from dualmech.publishing.derived import require_derivable
from dualmech.publishing.drawing import Drawn, Measured
from dualmech.publishing.plans import PlanTerms
from dualmech.publishing.products import DrawnProduct, DrawnSplit
from dualmech.publishing.publication import (
    Publication,
    ReleasePlan,
    check_columns,
    read_as,
    records_of,
    require_no_seed,
    require_within,
    specification_of,
)
from dualmech.publishing.published import published_tables
from dualmech.publishing.streams import DrawnStream
from dualmech.publishing.tables import DrawnTables
from dualmech.solution import Solution
from dualmech.threads import blas_threads
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.marginal import MarginalWorkload
from dualmech.workloads.unions import Table, UnionWorkload, each_once


@blas_threads()
def release(
    mechanism: object,
    records: object,
    *,
    workload: Workload | None = None,
    rho: float | str | Fraction | None = None,
    after: Publication | None = None,
    allow_empty: bool = False,
    **unknown: object,
) -> Publication:
    """Release noisy answers about records: exact answers to integer queries with discrete Gaussian noise.

    The mechanism is rounded to a grid. Its noise grows by about 1e-6 (about one percent for split tables of three
    attributes), and no direction costs more. The privacy cost is then a sum of squares of integers, computed as a
    fraction. Records are counted, integer queries are answered without rounding, and OpenDP's discrete Gaussian noise
    is added. Tables follow by least squares, as post-processing.
    Raises `BackendError` if OpenDP, of the extra ``release``, is not installed. Raises `InvalidInputError` or
    `InputTypeError`, before records are read, for a mechanism that answers sensitive queries exactly, has no integer
    rows, does not answer `workload`, or costs more than `rho`; for a seed, or any other argument; and for the errors of
    `dualmech.records.count`.
    Source: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, for the noise.

    Parameters
    ----------
    mechanism : Solution or mechanism
        A solution, which answers its problem's workload; or a mechanism, which answers `workload`.
    records : path, DataFrame, frame of an engine, `dualmech.records.Records`, or counts
        Records as for `dualmech.records.count`: columns are matched by name, values by the domain (`dualmech.Schema`).
        Counts are a data vector (d,) of integers for mechanisms on matrices, an array with one axis for each factor for
        products, and the result of `dualmech.records.count` for tables. With a schema, they can also be an array with
        one axis for each attribute, or a list of frames, each with some attributes and one column of counts, as from
        ``group_by(…).len()``.
    workload : Workload, optional
        The workload to publish, if the mechanism has none.
    rho : number or text such as "1/2", optional
        The maximum privacy cost ρ (zCDP) of the release, compared exactly. The default is 100; with a larger ρ a
        release protects next to nothing.
    after : Publication, optional
        For a solution of `ReuseFitness`: the earlier release of the same records. The new noise is drawn at its own ρ,
        and the result is the combination of both releases, as `dualmech.combine` returns it.
    allow_empty : bool
        Whether zero records are allowed.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> people = dm.Schema({"age": range(17, 91), "sex": ["female", "male"]})
    >>> workload = dm.workloads.marginals(people, ways=(1, 2))
    >>> answer = fast.solve(dm.FitnessForUse(workload, {1: 4.0, 2: 16.0}))
    >>> tables = dm.records.count([[3, 0], [30, 1], [30, 1]], dm.workloads.marginals([74, 2], ways=2))
    >>> released = dm.release(answer, tables, rho="0.26")
    >>> released.rho <= answer.mechanism.rho, released.tables
    (True, ('age', 'sex', 'age x sex'))
    """
    require_no_seed(unknown)
    queries = getattr(getattr(mechanism, "problem", mechanism), "workload", None) if workload is None else workload
    if getattr(queries, "domain", None) is not None:
        specification = specification_of(PlanTerms.of(mechanism) if isinstance(mechanism, Solution) else None)
        check_columns(read_as(records, records_of(specification)), queries)  # before the slow plan
    return plan_release(mechanism, workload=workload, rho=rho, after=after).draw(records, allow_empty=allow_empty)


@blas_threads()
def plan_release(
    mechanism: object,
    *,
    workload: Workload | None = None,
    rho: float | str | Fraction | None = None,
    after: Publication | None = None,
) -> ReleasePlan:
    """Return the plan of a release: its exact privacy cost and its accuracy, without records and OpenDP.

    Raises the errors of `dualmech.release` that do not depend on records.

    Parameters
    ----------
    mechanism, workload, rho, after
        As for `dualmech.release`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> answer = fast.solve(dm.FitnessForUse(dm.workloads.marginals({"age": 4, "sex": 2}, ways=1), 50.0))
    >>> planned = dm.plan_release(answer, rho="1/10")
    >>> planned.rho < 1 / 10, planned.tables, planned.margins("age").max().round(2)
    (True, ('age', 'sex'), np.float64(13.86))

    ``planned.draw(records)`` then draws the release.
    """
    on_grid, queries = plan(mechanism, workload) if after is None else _plan_after(mechanism, workload, after)
    if workload is not None:
        require_answered(on_grid, queries)
    answer = mechanism if isinstance(mechanism, Solution) else None
    plan_rho = None if answer is None else answer.metadata.get("rho")
    require_within(on_grid.squared_privacy_cost, plan_rho if rho is None else rho)
    planned = ReleasePlan(on_grid, queries, answer)
    planned = planned if after is None else PlanAfter(after, planned)
    if planned.specification is not None:  # compute all numbers of its files before noise is drawn
        for table in planned.tables:
            planned.variances(table)
        require_derivable(planned)
    return planned


@blas_threads()
def plan(mechanism: object, workload: Workload | None = None) -> tuple[Drawn, Workload]:
    """Return a mechanism on the grid, with its exact cost, and the workload to publish."""
    problem_workload = None
    if isinstance(mechanism, Solution):
        problem_workload, mechanism = getattr(mechanism.problem, "workload", None), as_spent(mechanism)
    tables = getattr(mechanism, "workload", None)
    if workload is None:
        mechanism, tables = _with_answered_tables(mechanism, tables)
    on_grid = as_drawn(mechanism)
    if isinstance(tables, UnionWorkload) and isinstance(workload, Workload) and _has_same_tables(tables, workload):
        workload = tables
    candidates = (workload, problem_workload, tables, getattr(mechanism, "needed_tables", None))
    queries = next((candidate for candidate in candidates if candidate is not None), None)
    if queries is None:
        raise InputTypeError("workload must name the queries to publish: this mechanism has none")
    return on_grid, check_workload(queries)


MIN_NEW_SHARE = 1e-6  # smaller shares of new information in a block are raised to this, the accuracy of the grid

NOISE_TOL = 1e-4  # relative difference of drawn and planned noise; the grid needs less


def _plan_after(answer: object, workload: object, after: object) -> tuple[Drawn, Workload]:
    problem: Any = getattr(answer, "problem", None)
    if not isinstance(answer, Solution) or not hasattr(problem, "new_mechanism"):
        raise InvalidInputError("after is for a solution of ReuseFitness, which has the earlier release")
    if workload is not None:
        raise InvalidInputError("workload must not be given with after: the problem has the workload to publish")
    earlier, reused = mechanism_of(validate.instance(Publication, after=after)), problem.released
    if type(earlier) is not type(reused):
        raise InvalidInputError("after must be the release that the problem reuses, got one of another kind")
    if not (earlier.is_answerable_from(reused, NOISE_TOL) and reused.is_answerable_from(earlier, NOISE_TOL)):
        raise InvalidInputError("after must be the release that the problem reuses, got one with other noise")
    return as_drawn(problem.new_mechanism(answer.primal, MIN_NEW_SHARE)), problem.workload


def as_spent(answer: Solution) -> object:
    """Return the mechanism of an answer, scaled to the requested ρ if the problem is solved at a cost of 1.

    An answer of `ReuseFitness` is refused.
    """
    if hasattr(answer.problem, "new_mechanism"):
        raise InvalidInputError(
            "after must be the earlier release: the answer's mechanism contains it, and would pay for it again; with "
            "after, only the new noise is drawn, and combined with the earlier release"
        )
    mechanism, rho = answer.mechanism, answer.metadata.get("rho")
    if rho is None or not isinstance(answer.problem, TotalVariance | QueryWeighting):
        return mechanism
    return mechanism.scaled(1 / squared_cost_from_rho(rho))


def require_answered(measured: Measured, workload: Workload) -> None:
    """Refuse a workload that a mechanism does not answer, or whose tables have other queries in the mechanism."""
    mechanism = measured.mechanism
    if not measured.by_table:
        mechanism.variances(workload)
        return
    tables, tabular = mechanism.workload, workload.tabular()
    domain = mechanism.needed_tables.domain if tables is None else tables.domain
    if tabular is None or tabular.domain != domain:
        raise InvalidInputError("workload must be of tables over the mechanism's own domain")
    by_key, is_marginal = _tables_by_key(tables), isinstance(tabular, MarginalWorkload)
    for published, table in zip(published_tables(workload), tabular.product_tables, strict=True):
        values = Table("", tuple((axis, None) for axis in table.axes))
        answered = by_key.get(published.table_key, None if isinstance(published.table_key, str) else values)
        if answered is None or not table.asks_the_same(answered):
            raise InvalidInputError(
                f"workload asks {published.name!r}, which the mechanism does not answer under this name: take the "
                f"tables that it was made for, or some of them"
            )
        if not is_marginal:
            mechanism.variance(published.table_key)
    if is_marginal:
        mechanism.variances(tabular)  # all tables at once


def _with_answered_tables(mechanism: object, tables: object) -> tuple[object, object]:
    """Return a mechanism that names the tables that it answers, and these tables.

    A common mechanism has the tables of all its targets, which determine its symmetry, but answers few of them.
    """
    if not isinstance(tables, UnionWorkload) or not isinstance(mechanism, BlockMechanism):
        return mechanism, tables
    if all(map(mechanism._answers_all_of, tables.tables)) or (answered := answered_tables(mechanism)) is None:
        return mechanism, tables
    union = UnionWorkload(mechanism.domain, each_once([*answered.tables, *tables.tables]))
    return mechanism.answering(union), answered


def answered_tables(mechanism: BlockMechanism) -> UnionWorkload | None:
    """Return the maximal tables that a mechanism answers, among its tables and their subtables.

    A subtable has the queries on some attributes of a table, and sums over the others. None if the mechanism does not
    even answer the number of records.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> from dualmech.publishing.release import answered_tables
    >>> people = {"age": 8, "sex": 2, "region": 3}
    >>> pairs = [dm.workloads.marginals(people, sets=[("age", name)]) for name in ("sex", "region")]
    >>> common = fast.solve(dm.CommonMechanism([dm.BlockMechanism.of_tables(pair) for pair in pairs])).mechanism
    >>> [table.name for table in answered_tables(common).tables]
    ['age']
    """
    tables: list[Table] = []
    workload, names_of = mechanism.workload, mechanism.domain.names
    for table in () if workload is None else workload.product_tables:
        names = [names_of[axis] for axis in table.axes]
        for queries in itertools.chain.from_iterable(
            itertools.combinations(table.queries, count) for count in range(len(table.queries), -1, -1)
        ):
            subtable = Table(
                table.name
                if len(queries) == len(table.queries)
                else " x ".join(names[table.axes.index(axis)] for axis, _ in queries) or "total",
                queries,
            )
            if not any(map(subtable.is_part_of, tables)) and mechanism._answers_all_of(subtable):
                tables.append(subtable)
    maximal = [table for table in tables if not any(table is not other and table.is_part_of(other) for other in tables)]
    return UnionWorkload(mechanism.domain, each_once(maximal)) if maximal else None


def _tables_by_key(workload: Workload | None) -> dict[object, Table]:
    tabular = None if workload is None else workload.tabular()
    if workload is None or tabular is None:
        return {}
    if isinstance(workload, UnionWorkload):
        return {table.name: table for table in workload.tables}
    names = tabular.domain.names
    return {tuple(names[axis] for axis in table.axes): table for table in tabular.product_tables}


def _has_same_tables(tables: UnionWorkload, workload: Workload) -> bool:
    tabular = None if isinstance(workload, UnionWorkload) else workload.tabular()
    return tabular is not None and tabular.domain == tables.domain and tables.same_as(tabular)


@singledispatch
def as_drawn(mechanism: object) -> Drawn:
    """Return a mechanism on the grid, in integers."""
    hint = "; each person runs it: dualmech.LocalRandomiser" if isinstance(mechanism, LocalMechanism) else ""
    raise InputTypeError(f"mechanism must be a Solution or a Gaussian mechanism, got {type(mechanism).__name__}{hint}")


@as_drawn.register
def _(mechanism: EpochsMechanism) -> Drawn:
    raise InvalidInputError(
        f"a mechanism for persons with several participations ({mechanism.neighbours}) has no release: "
        "its noise(dimension) draws row by row"
    )


@as_drawn.register
def _(mechanism: BlockMechanism) -> Drawn:
    is_cyclic = any(symmetry.turning for symmetry in mechanism.symmetries)
    return DrawnRows(mechanism.dense()) if is_cyclic else DrawnTables(mechanism)


@as_drawn.register
def _(mechanism: CausalMechanism) -> Drawn:
    require_small(mechanism.steps)
    return DrawnRows(mechanism.dense())


as_drawn.register(LinearGaussianMechanism, DrawnRows)
as_drawn.register(ProductMechanism, DrawnProduct)
as_drawn.register(SplitMechanism, DrawnSplit)
as_drawn.register(StreamMechanism, DrawnStream)
