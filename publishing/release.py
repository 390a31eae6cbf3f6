"""A release: records in, noise from the one exact sampler, and tables out, with what may be said of them."""

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
    **refused: object,
) -> Publication:
    """Release noisy answers about records, exactly: whole numbers with discrete Gaussian noise that nobody can predict.

    The mechanism is brought to a grid, in which its noise grows by some 1e-6 (a percent or so for split tables of three
    attributes) and no direction costs more; its privacy is then a sum of squares of whole numbers, computed as a
    fraction. Records are counted, the whole queries answered without rounding, and OpenDP's discrete Gaussian noise
    added. Everything after that is least squares, on numbers that may be told to anybody.
    Raises `BackendError` where OpenDP, of the extra ``release``, is not installed; `InvalidInputError` or
    `InputTypeError`, before records are read, for a mechanism that releases something exactly that neighbours may
    change, that has no whole rows, does not answer `workload`, or costs more than `rho`; for a seed, or any other
    argument; and what `dualmech.records.count` refuses of records.
    Source: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, for the noise.

    Parameters
    ----------
    mechanism : Solution or mechanism
        A solution answers its problem's workload; of a mechanism alone `workload` says what to publish.
    records : path, DataFrame, frame of an engine, `dualmech.records.Records`, or counts
        What `dualmech.records.count` takes: columns are matched by name, values by the domain (`dualmech.Schema`).
        Counts are a data vector (d,) of whole numbers for mechanisms on matrices, an array by factor for products, and
        for tables what `dualmech.records.count` returns; with a schema also an array with an axis for each attribute,
        and a list of frames, each with some attributes and one column of counts, as ``group_by(…).len()`` gives it.
    workload : Workload, optional
        What to publish, where the mechanism does not know it.
    rho : number or text such as "1/2", optional
        The most that the release may cost, ρ of zero-concentrated differential privacy, compared exactly. Above 100,
        which protects next to nothing, a release is refused unless this allows it.
    after : Publication, optional
        For a solution of `ReuseFitness`: the earlier release, of the same records. What is run now is drawn, at its own
        ρ, and what comes back is what both tell together, as `dualmech.combine` puts it.
    allow_empty : bool
        Whether there may be no records.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> people = dm.Schema({"age": range(17, 91), "sex": ["female", "male"]})
    >>> asked = dm.workloads.marginals(people, ways=(1, 2))
    >>> answer = fast.solve(dm.FitnessForUse(asked, {1: 4.0, 2: 16.0}))
    >>> tables = dm.records.count([[3, 0], [30, 1], [30, 1]], dm.workloads.marginals([74, 2], ways=2))
    >>> released = dm.release(answer, tables, rho="0.26")
    >>> released.rho <= answer.mechanism.rho, released.tables
    (True, ('age', 'sex', 'age x sex'))
    """
    require_no_seed(refused)
    stated = getattr(getattr(mechanism, "problem", mechanism), "workload", None) if workload is None else workload
    if getattr(stated, "domain", None) is not None:
        known = specification_of(PlanTerms.of(mechanism) if isinstance(mechanism, Solution) else None)
        check_columns(read_as(records, records_of(known)), stated)  # before any work
    return plan_release(mechanism, workload=workload, rho=rho, after=after).draw(records, allow_empty=allow_empty)


@blas_threads()
def plan_release(
    mechanism: object,
    *,
    workload: Workload | None = None,
    rho: float | str | Fraction | None = None,
    after: Publication | None = None,
) -> ReleasePlan:
    """Say what `dualmech.release` would cost, exactly, and how accurate it would be; no record is needed, nor OpenDP.

    Raises `InvalidInputError` or `InputTypeError` for what `dualmech.release` refuses before records are read.

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

    ``planned.draw(records)`` then releases what was planned.
    """
    drawn, answered = plan(mechanism, workload) if after is None else _plan_after(mechanism, workload, after)
    if workload is not None:
        require_answered(drawn, answered)
    answer = mechanism if isinstance(mechanism, Solution) else None
    spent = None if answer is None else answer.metadata.get("rho")
    require_within(drawn.squared_privacy_cost, spent if rho is None else rho)
    planned = ReleasePlan(drawn, answered, answer)
    planned = planned if after is None else PlanAfter(after, planned)
    if planned.specification is not None:  # all that its files will say can be told, before anything is drawn
        for table in planned.tables:
            planned.variances(table)
        require_derivable(planned)
    return planned


@blas_threads()
def plan(mechanism: object, workload: Workload | None = None) -> tuple[Drawn, Workload]:
    """Return a mechanism as it would be drawn, with its exact cost, and what would be published."""
    stated = None
    if isinstance(mechanism, Solution):
        stated, mechanism = getattr(mechanism.problem, "workload", None), as_spent(mechanism)
    workload_of = getattr(mechanism, "workload", None)
    if workload is None:
        mechanism, workload_of = _naming(mechanism, workload_of)
    drawn = as_drawn(mechanism)
    if isinstance(workload_of, UnionWorkload) and isinstance(workload, Workload) and _restates(workload_of, workload):
        workload = workload_of
    known = (workload, stated, workload_of)
    chosen = next(
        (candidate for candidate in known if candidate is not None), getattr(mechanism, "needed_tables", None)
    )
    if chosen is None:
        raise InputTypeError("workload must say what to publish: this mechanism does not know it")
    return drawn, check_workload(chosen)


NEW = 1e-6  # least share of the information that is drawn anew, where any of a block is: the grid is as accurate

NOISE_TOL = 1e-4  # relative: how far drawn noise may be from planned noise, that of its grid and more


def _plan_after(answer: object, workload: object, after: object) -> tuple[Drawn, Workload]:
    problem: Any = getattr(answer, "problem", None)
    if not isinstance(answer, Solution) or not hasattr(problem, "new_mechanism"):
        raise InvalidInputError("after is for a solution of ReuseFitness, which knows what was released before")
    if workload is not None:
        raise InvalidInputError("workload is not for what is released after another: the problem says what to publish")
    earlier, known = mechanism_of(validate.instance(Publication, after=after)), problem.released
    if type(earlier) is not type(known):
        raise InvalidInputError("after must be the release that the problem reuses, got one of another kind")
    if not (earlier.is_answerable_from(known, NOISE_TOL) and known.is_answerable_from(earlier, NOISE_TOL)):
        raise InvalidInputError("after must be the release that the problem reuses: its noise is another")
    return as_drawn(problem.new_mechanism(answer.primal, NEW)), problem.workload


def as_spent(answer: Solution) -> object:
    """Return the mechanism of an answer; of a problem that is solved at a cost of 1, at the ρ that was asked.

    What an earlier release is part of is refused.
    """
    if hasattr(answer.problem, "new_mechanism"):
        raise InvalidInputError(
            "after must be the earlier release: the answer's mechanism has it in it, which would be paid for again; "
            "what is run now is drawn alone, and put together with it"
        )
    mechanism, rho = answer.mechanism, answer.metadata.get("rho")
    if rho is None or not isinstance(answer.problem, TotalVariance | QueryWeighting):
        return mechanism
    return mechanism.scaled(1 / squared_cost_from_rho(rho))


def require_answered(drawn: Measured, workload: Workload) -> None:
    """Refuse a workload that a mechanism does not answer, or whose tables it knows by other values or queries."""
    mechanism = drawn.mechanism
    if not drawn.by_table:
        mechanism.variances(workload)
        return
    stated, tabular = mechanism.workload, workload.tabular()
    domain = mechanism.needed_tables.domain if stated is None else stated.domain
    if tabular is None or tabular.domain != domain:
        raise InvalidInputError("workload must be of tables over the mechanism's own domain")
    known, plain = _known_tables(stated), isinstance(tabular, MarginalWorkload)
    for published, table in zip(published_tables(workload), tabular.product_tables, strict=True):
        values = Table("", tuple((axis, None) for axis in table.axes))
        held = known.get(published.asked, None if isinstance(published.asked, str) else values)
        if held is None or not table.asks_the_same(held):
            raise InvalidInputError(
                f"workload asks {published.name!r}, which the mechanism does not answer under this name: take the "
                f"tables that it was made for, or some of them"
            )
        if not plain:
            mechanism.variance(published.asked)
    if plain:
        mechanism.variances(tabular)  # of all tables at once


def _naming(mechanism: object, tables: object) -> tuple[object, object]:
    """Return a mechanism that knows the tables that it answers by name, and those tables.

    A common mechanism was made for the tables of all its targets, which settle its symmetry, and answers few of them.
    """
    if not isinstance(tables, UnionWorkload) or not isinstance(mechanism, BlockMechanism):
        return mechanism, tables
    if all(map(mechanism._answers_all_of, tables.tables)) or (answered := answered_tables(mechanism)) is None:
        return mechanism, tables
    every = UnionWorkload(mechanism.domain, each_once([*answered.tables, *tables.tables]))
    return mechanism.answering(every), answered


def answered_tables(mechanism: BlockMechanism) -> UnionWorkload | None:
    """Return the largest tables that a mechanism answers, of those by name that it knows and of parts of them.

    A part of a table asks the same of some of its attributes, and sums over the others; it is left out where a larger
    one is answered. None where nothing is, not even the number of records.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> from dualmech.publishing.release import answered_tables
    >>> people = {"age": 8, "sex": 2, "region": 3}
    >>> by = [dm.workloads.marginals(people, sets=[("age", each)]) for each in ("sex", "region")]
    >>> common = fast.solve(dm.CommonMechanism([dm.BlockMechanism.of_tables(each) for each in by])).mechanism
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
            listed = Table(
                table.name
                if len(queries) == len(table.queries)
                else " x ".join(names[table.axes.index(axis)] for axis, _ in queries) or "total",
                queries,
            )
            if any(map(listed.is_part_of, tables)) or not mechanism._answers_all_of(listed):
                continue
            tables.append(listed)
    largest = [table for table in tables if not any(table is not other and table.is_part_of(other) for other in tables)]
    return UnionWorkload(mechanism.domain, each_once(largest)) if largest else None


def _known_tables(workload: Workload | None) -> dict[object, Table]:
    tabular = None if workload is None else workload.tabular()
    if workload is None or tabular is None:
        return {}
    if isinstance(workload, UnionWorkload):
        return {table.name: table for table in workload.tables}
    names = tabular.domain.names
    return {tuple(names[axis] for axis in table.axes): table for table in tabular.product_tables}


def _restates(tables: UnionWorkload, workload: Workload) -> bool:
    tabular = None if isinstance(workload, UnionWorkload) else workload.tabular()
    return tabular is not None and tabular.domain == tables.domain and tables.same_as(tabular)


@singledispatch
def as_drawn(mechanism: object) -> Drawn:
    """Return a mechanism as it is drawn in whole numbers."""
    hint = "; it is run by each person: dualmech.LocalRandomiser" if isinstance(mechanism, LocalMechanism) else ""
    raise InputTypeError(f"mechanism must be a Solution or a Gaussian mechanism, got {type(mechanism).__name__}{hint}")


@as_drawn.register
def _(mechanism: EpochsMechanism) -> Drawn:
    raise InvalidInputError(
        f"a mechanism for persons with parts in several steps ({mechanism.neighbours}) has no release: "
        "its noise(dimension) draws row by row"
    )


@as_drawn.register
def _(mechanism: BlockMechanism) -> Drawn:
    turned = any(symmetry.turning for symmetry in mechanism.symmetries)
    return DrawnRows(mechanism.dense()) if turned else DrawnTables(mechanism)


@as_drawn.register
def _(mechanism: CausalMechanism) -> Drawn:
    require_small(mechanism.steps)
    return DrawnRows(mechanism.dense())


as_drawn.register(LinearGaussianMechanism, DrawnRows)
as_drawn.register(ProductMechanism, DrawnProduct)
as_drawn.register(SplitMechanism, DrawnSplit)
as_drawn.register(StreamMechanism, DrawnStream)
