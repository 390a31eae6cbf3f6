"""Several ways to solve one problem, at growing sizes and in one run: seconds beside what each proves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dualmech import fast
from dualmech.crosscheck.papers.report import table
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.crosscheck.tables import TextTable
from dualmech.solution import Solution

BOUND_TOLERANCE = 1e-9  # gap to which the optimum is known that answers are held against
LONG = 1.0  # seconds above which a solve is measured once

REPEATS = 5

HEADINGS = ("d", "solver", "seconds", "ratio", "proven gap", "above the optimum", "steps", "status")


def by_reference(problem: Any, **options: Any) -> Solution:
    """Solve by the reference layer, which is loaded only then."""
    from dualmech import reference

    return reference.solve(problem, **options)


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to solve the problem, how it is drawn, and the largest size that it is given, with the reason."""

    name: str
    solve: Callable[[Any], Solution]
    colour: str = ""
    line: str = "-"
    largest: int | None = None
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """One contender at one size; `ratio` is to the seconds of the first contender in the same run."""

    cells: int
    solver: str
    seconds: float
    ratio: float
    gap: float
    above: float
    steps: int
    status: str


@dataclass(frozen=True, slots=True)
class Contest:
    """What is solved, at which sizes and by whom; the first contender is what the others are compared with."""

    title: str  # Of the table
    sizes: tuple[int, ...]  # Numbers of cells
    # Takes a number of cells to the problem; making it is part of what is measured
    problem: Callable[[int], Any]
    contenders: tuple[Contender, ...]  # In the order of the table
    repeats: int = REPEATS  # How often a solve that is not `LONG` is measured

    def measure(self) -> list[dict[str, Any]]:
        """Solve every size with every contender that is not too slow for it; seconds include the certificate."""
        entries: list[Timing] = []
        with without_warnings():
            for contender in self.contenders:
                contender.solve(self.problem(self.sizes[0]))  # what is only loaded once is not measured
            for cells in self.sizes:
                entries += self._at_size(cells)
        return [asdict(entry) for entry in entries]

    def _at_size(self, cells: int) -> list[Timing]:
        bound = fast.solve(self.problem(cells), tol=BOUND_TOLERANCE).lower_bound
        entries: list[Timing] = []
        for contender in self.contenders:
            if contender.largest is not None and cells > contender.largest:
                continue
            seconds: list[float] = []
            while len(seconds) < self.repeats and (not seconds or seconds[-1] < LONG):
                begun = time.perf_counter()
                answer = contender.solve(self.problem(cells))
                seconds.append(time.perf_counter() - begun)
            middle = float(np.median(seconds))
            base = entries[0].seconds if entries else middle
            entries.append(
                Timing(
                    cells,
                    contender.name,
                    middle,
                    middle / base,
                    answer.gap,
                    answer.objective / bound - 1,
                    answer.iterations,
                    answer.status.name,
                )
            )
        return entries

    def table(self, entries: list[Timing]) -> TextTable:
        """Lay the entries out, one line each, and say which sizes were left out."""
        left_out = [
            f"{each.name}: up to d = {each.largest}, {each.skipped}"
            for each in self.contenders
            if each.largest is not None
        ]
        rows = (
            (
                *(str(entry.cells), entry.solver, f"{entry.seconds:.3g}", f"{entry.ratio:.3g}"),
                *(f"{entry.gap:.1e}", f"{max(entry.above, 0.0):.1e}", str(entry.steps), entry.status),
            )
            for entry in entries
        )
        return table(
            f"{self.title}: medians of seconds, certificates included",
            HEADINGS,
            rows,
            words=("solver", "status"),
            notes=["; ".join(left_out)] if left_out else (),
        )
