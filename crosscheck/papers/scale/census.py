"""The census's lists of tables, certified by symmetry, beside the dense solver and beside independent noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dualmech import fast, workloads
from dualmech.crosscheck.papers.scale.marginals import Solved
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.mechanisms.block import BlockMechanism
from dualmech.problems.fitness import FitnessForUse
from dualmech.workloads import census
from dualmech.workloads.base import Workload
from dualmech.workloads.unions import UnionWorkload

TOLERANCE = 1e-6  # gap to which both solvers solve
AGES = {"P12": 4.0, "PCT12": 25.0}  # targets by published table: the finer, the looser

ALL = {f"P{number}": 1.0 for number in range(1, 6)} | AGES


@dataclass(frozen=True, slots=True)
class TablesCase:
    """A list of tables with targets."""

    label: str  # What they are
    build: Callable[[], UnionWorkload]  # Returns them
    targets: Mapping[str, float] = field(default_factory=dict)  # By published table; by default all are 1
    dense: bool = False  # Whether the dense solver can follow

    def problem(self) -> FitnessForUse:
        """Return the problem."""
        tables = self.build()
        return FitnessForUse(tables, census.per_table(tables, self.targets) if self.targets else 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class SolvedTables(Solved):
    """A list of tables, solved."""

    case: TablesCase
    problem: FitnessForUse  # The problem on blocks

    @property
    def blocks(self) -> tuple[int, int]:
        """How many blocks there are, and the size of the largest covariance."""
        found = self.problem.geometry
        return len(found.keys) + len(found.matrix_blocks), found.rank


def solve(case: TablesCase) -> SolvedTables:
    """Solve a case by symmetry, and by the dense solver where that can follow.

    Examples
    --------
    >>> from dualmech.crosscheck.papers.scale import census
    >>> row = census.solve(census.SMALL[1])
    >>> row.case.label, round(row.best.objective, 5), round(row.plain, 5), round(row.consistent, 5), row.outcome.name
    ('P12', 2.25, 3.0, 2.87321, 'AGREE')
    """
    begun = time.perf_counter()
    problem = case.problem()
    with without_warnings():
        answers = {"fast": fast.solve(problem, tol=TOLERANCE)}
        seconds = time.perf_counter() - begun
        if case.dense:
            answers["dense"] = fast.solve(on_matrix(problem), tol=TOLERANCE)
    noisy = BlockMechanism.of_tables(problem.workload, problem.targets)
    plain = noisy.squared_privacy_cost
    slack = problem.geometry.largest_ratio(noisy.point_on(problem.geometry), problem.targets)
    return SolvedTables(answers, plain, plain * slack, seconds, case, problem)


def on_matrix(problem: FitnessForUse) -> FitnessForUse:
    """Return the problem on its matrix; cells that no query tells apart cost the same, and are written once."""
    cells = np.unique(problem.workload.matrix.toarray(), axis=1)
    return FitnessForUse(Workload(cells), problem.per_query())


def cases(quick: bool) -> list[TablesCase]:
    """Return the lists of tables; those that take seconds only if there is time."""
    return SMALL if quick else [*SMALL, *LARGE]


def _tables_of_race() -> UnionWorkload:
    tables = workloads.census_redistricting()
    assert tables.domain is not None
    return UnionWorkload(tables.domain, tables.tables[:-1])


SMALL = [
    TablesCase("P1 to P4", _tables_of_race, dense=True),
    TablesCase("P12", partial(workloads.sex_by_age, iterations=False, single_years=False), dense=True),
    TablesCase("P12, PCT12", partial(workloads.sex_by_age, iterations=False), dense=True),
    TablesCase("P12, PCT12", partial(workloads.sex_by_age, iterations=False), AGES, dense=True),
]
LARGE = [
    TablesCase("P1 to P5", workloads.census_redistricting, dense=True),
    TablesCase("P12 to P12I", partial(workloads.sex_by_age, single_years=False), dense=True),
    TablesCase("P12 to P12I, PCT12 to PCT12O", workloads.sex_by_age),
    TablesCase("P12 to P12I, PCT12 to PCT12O", workloads.sex_by_age, AGES),
    TablesCase("all of these", workloads.census_tables),
    TablesCase("all of these", workloads.census_tables, ALL),
]
