"""SM-II run here on the paper's problems, in each basis that it may have been run in, beside the certified optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dualmech import fast
from dualmech.crosscheck.papers.printed import Interval
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.problems.fitness import FitnessForUse
from dualmech.progress import Status
from dualmech.validate import Array
from dualmech.workloads.base import Workload

MOST_STEPS = 10**7  # steps allowed to a run: more than its time limit lets it take

BASES: dict[str, Callable[[int], Array]] = {
    "I": np.eye,
    "U": lambda cells: np.triu(np.ones((cells, cells))),
    "W": lambda cells: np.tri(cells),
}
"""Bases by the letters of the paper, U being its upper triangle of ones; W is the workload of prefixes itself."""

STATED = {4: "U", 5: "U", 6: "U", 7: "I", 8: "I", 9: "U", 10: "I", 11: "I"}
"""The basis that section 7 names, by number of table. For Table 2 it names none; it has I and U in general."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """Where SM-II ended, and what it took."""

    basis: str  # One of `BASES`
    settings: str  # In words: which Hessian, and whose start
    objective: float  # The squared privacy cost at which its answer meets all targets
    gap: float  # What its own weights prove
    steps: int
    seconds: float
    capped: bool  # Whether it was stopped before its own rule ended it

    def excess(self, optimum: Interval) -> Interval:
        """Return by how much it lies above a certified optimum, relative, from both sides."""
        low, high = optimum
        return self.objective / high - 1, self.objective / low - 1


def run(
    workload: Workload,
    targets: Array | float,
    basis: str,
    limit: float,
    *,
    hessian: str = "exact",
    as_coded: bool = False,
) -> PublishedRun:
    """Run SM-II with the paper's parameters, or with all that its published code has (`as_coded`), for some seconds.

    A basis of more rows than the rank of the workload is allowed, as the paper's experiments have it, though its own
    Definition 3 asks for as many.
    """
    rows = BASES[basis](workload.shape[1])
    problem = FitnessForUse(workload, targets, basis=rows, geometry="dense")
    options = fast.SoftmaxOptions(hessian=hessian)
    if as_coded:
        options = fast.SoftmaxOptions.of_published_code(rows)
    with without_warnings():
        answer = fast.solve(
            problem, method="softmax_newton", options=options, time_limit=limit, max_iterations=MOST_STEPS
        )
    return PublishedRun(
        basis,
        "as coded" if as_coded else f"{hessian} Hessian",
        answer.objective,
        answer.gap,
        answer.iterations,
        answer.seconds,
        answer.status is Status.STEPS_EXHAUSTED,
    )
