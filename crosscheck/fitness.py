"""The fitness-for-use paper's tables beside certified values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from joblib import Parallel, delayed

from dualmech import fast, reference
from dualmech.crosscheck.agreement import TOLERANCES, Comparison, compare
from dualmech.crosscheck.cases import TABLE_2, Case
from dualmech.errors import UncertifiedWarning
from dualmech.solution import Solution

BACKENDS = ("CLARABEL", "SCS")

QUICK = 16
"""Largest size of a quick run."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer in a table: its certified interval and what it took."""

    layer: str
    interval: tuple[float, float]
    gap: float
    certified: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One problem of a table: printed numbers, answers of all layers, and whether they agree."""

    case: Case
    size: int
    entries: tuple[Entry, ...]
    comparison: Comparison

    def confirmed(self, column: str) -> bool:
        """Whether a printed number rounds something in the interval that all answers share."""
        return self.case.confirms(column, (self.comparison.lower_bound, self.comparison.objective))


def table_2(quick: bool = False, jobs: int = 1) -> Iterator[Row]:
    """Yield the rows of Table 2: prefix workloads, all variance targets 1, solved by both layers."""
    cases = [case for case in TABLE_2 if not quick or case.problem().workload.shape[1] <= QUICK]
    yield from Parallel(n_jobs=jobs, return_as="generator")(delayed(solve_case)(case) for case in cases)


def solve_case(case: Case) -> Row:
    """Solve one case with every backend of the reference layer and with the fast layer."""
    problem = case.problem()
    answers: dict[str, Solution] = {}
    with warnings.catch_warnings():
        # A wide interval is reported in the table; a warning beside it would only be noise.
        warnings.simplefilter("ignore", UncertifiedWarning)
        for backend in BACKENDS:
            answers[backend] = reference.solve(problem, backend=backend, tol=TOLERANCES[backend])
        answers["fast"] = fast.solve(problem, tol=TOLERANCES["fast"])
    entries = tuple(
        Entry(
            name,
            answer.certificate.interval,
            answer.gap,
            answer.certificate.certifies(answer.tol),
            answer.seconds,
        )
        for name, answer in answers.items()
    )
    return Row(case, problem.workload.shape[1], entries, compare(list(answers.values())))
