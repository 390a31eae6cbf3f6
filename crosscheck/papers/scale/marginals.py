"""Marginal tables at scale: the certified optimum by residual subspaces, beside other solvers and plain noise."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from dualmech import fast, reference
from dualmech.crosscheck.agreement import Agreement, meet
from dualmech.crosscheck.papers.scale.instances import MarginalsCase
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.mechanisms.block import BlockMechanism
from dualmech.problems.fitness import FitnessForUse
from dualmech.solution import Solution
from dualmech.workloads.base import Workload

TOLERANCE = 1e-9  # gap to which the fast layer solves
DENSE = "dense"  # the solver that knows nothing of marginals


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """Tables, solved in one way or more, beside plain noise."""

    answers: dict[str, Solution]  # By solver: the one in question first; all of the same optimum
    plain: float  # Squared privacy cost of independent noise of the target's variance on every query
    # The same where what the queries say together is counted, and the noise raised until a target is
    # met exactly
    consistent: float
    seconds: float  # From the attributes to the first certificate, the search for structure included

    @property
    def best(self) -> Solution:
        """The first answer."""
        return next(iter(self.answers.values()))

    @property
    def gap(self) -> float:
        """Its gap."""
        return self.best.gap

    @property
    def outcome(self) -> Agreement:
        """Whether all certified intervals meet, each as narrow as it was asked to be."""
        return meet(list(self.answers.values())).outcome


@dataclass(frozen=True, slots=True, eq=False)
class SolvedMarginals(Solved):
    """Marginal tables, solved."""

    case: MarginalsCase
    counts: tuple[int, int, int, int]  # Numbers of cells, of tables, of queries and of residual subspaces


def solve(case: MarginalsCase, others: tuple[str, ...] = ()) -> SolvedMarginals:
    """Solve a case by the fast layer, and by others: `DENSE`, or a backend of the reference layer."""
    begun = time.perf_counter()
    problem = case.problem()
    tables: Any = problem.workload
    with without_warnings():
        best = fast.solve(problem, tol=TOLERANCE)
        seconds = time.perf_counter() - begun
        found = {name: _other(problem, name) for name in others}
    plain = float((1 / problem.targets).sum())
    noisy = BlockMechanism.of_tables(tables, problem.targets)
    slack = float((noisy.variances(tables) / problem.targets).max())
    queries, cells = problem.workload.shape
    counts = (cells, len(problem.targets), queries, len(tables.lattice.axes))
    return SolvedMarginals({"fast": best} | found, plain, plain * slack, seconds, case, counts)


def _other(problem: FitnessForUse, name: str) -> Solution:
    if name != DENSE:
        return reference.solve(problem, backend=name)
    # A bare matrix, so that nothing of the structure is left.
    return fast.solve(FitnessForUse(Workload(problem.workload.matrix), problem.per_query()))
