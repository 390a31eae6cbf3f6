"""What completing its columns makes of the Eigen-Design, by how exactly its Program 1 was solved.

Program 1 of EIG knows nothing of the columns that Program 2 completes afterwards. Weights that solve it a little worse
can leave more room to complete, and end as the better strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualmech import fast
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.eigen.designs import all_ranges
from dualmech.crosscheck.papers.eigen.instances import CELLS, prefixes
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.problems import designs, strategies
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.validate import Array
from dualmech.workloads.base import Workload

TOLERANCES = (1e-2, 1e-5, 3e-6, 1e-7, 1e-9)
"""Gaps to which Program 1 is solved, relative, one after the other."""


@dataclass(frozen=True, slots=True)
class Completed:
    """Weights of the eigen-queries, and what completing columns makes of them; errors over the singular value bound."""

    asked: float  # Gap that was asked of Program 1; infinite where nothing was optimised
    gap: float  # Gap proven
    program: float  # Error of the weighted eigen-queries alone
    completed: float  # Error once the columns are completed


@dataclass(frozen=True, slots=True)
class CompletionRow:
    """A workload and the weights tried on it; the first are those of Theorem 2, ``u_i`` proportional to ``√σ_i``."""

    name: str
    entries: tuple[Completed, ...]

    @property
    def outcome(self) -> Agreement:
        """Whether Program 1 was solved as exactly as asked."""
        certified = all(entry.gap <= entry.asked for entry in self.entries)
        return certified_outcome(certified)

    @property
    def gap(self) -> float:
        """Gap of the last weights, which were solved most exactly."""
        return self.entries[-1].gap


def solve(name: str, build: Callable[[], Workload]) -> CompletionRow:
    """Weigh the eigen-queries of a workload ever more exactly, and complete the columns each time.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck.papers.eigen import completion
    >>> row = completion.solve("prefixes", lambda: dm.workloads.prefix(128))
    >>> unsolved, *_, exact = row.entries
    >>> unsolved.program > exact.program, unsolved.completed < exact.completed
    (True, True)
    """
    workload = build()
    program = QueryWeighting(workload, designs.eigen_queries(workload))
    uniform = np.ones(workload.shape[1])
    unit = TotalVariance(workload, geometry="dense").certify(np.eye(workload.shape[1]), uniform).lower_bound
    weights = program.feasible(np.sqrt(program.costs))
    gap = program.certify(weights, uniform).gap
    entries = [Completed(math.inf, gap, *_errors(workload, program, weights, unit))]
    with without_warnings():
        for tol in TOLERANCES:
            answer = fast.solve(program, tol=tol)
            entries.append(Completed(tol, answer.gap, *_errors(workload, program, answer.primal, unit)))
    return CompletionRow(name, tuple(entries))


def _errors(workload: Workload, program: QueryWeighting, weights: Array, unit: float) -> tuple[float, float]:
    """Return the root errors of weighted eigen-queries alone and completed."""
    completed = strategies.total_variance(strategies.completed(program.strategy(weights)), workload)
    return math.sqrt(program.strategy_error(weights) / unit), math.sqrt(completed / unit)


def rows(quick: bool) -> list[Callable[[], CompletionRow]]:
    """Return the workloads to try: prefixes and all ranges over 2048 cells, or 256."""
    cells = 256 if quick else CELLS
    return [
        partial(solve, f"prefixes, {cells}", partial(prefixes, cells)),
        partial(solve, f"all ranges, {cells}", partial(all_ranges, cells)),
    ]
