"""Several ways to solve one problem, at growing sizes and in one run: seconds beside what each proves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from dualmech import fast
from dualmech.crosscheck.benchmarks.layers import load
from dualmech.crosscheck.papers.report import table
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.crosscheck.tables import TextTable
from dualmech.solution import Solution

BOUND_TOLERANCE = 1e-9  # gap to which the optimum is known that answers are held against
LONG = 1.0  # seconds above which a solve is measured once

REPEATS = 5

HEADINGS = ("d", "solver", "CPU s", "wall s", "ratio", "proven gap", "above the optimum", "steps", "status")


class Answer(Protocol):
    """What a contender returns: a solution, or what the judge says of a peer's answer."""

    @property
    def objective(self) -> float:
        """What it achieves."""

    @property
    def gap(self) -> float:
        """How far it is proven to be from the optimum, relative."""

    @property
    def iterations(self) -> int:
        """Steps, as the solver counts them."""

    @property
    def status(self) -> Any:
        """How it ended; its `name` is shown."""


def by_reference(problem: Any, **options: Any) -> Solution:
    """Solve by the reference layer, which is loaded only then."""
    from dualmech import reference

    return reference.solve(problem, **options)


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to solve the problem, how it is drawn, and the largest size that it is given, with the reason."""

    name: str
    solve: Callable[[Any], Answer]
    colour: str = ""
    line: str = "-"
    largest: int | None = None
    skipped: str = ""
    missing: str = ""  # what is not installed, so that it is left out


@dataclass(frozen=True, slots=True)
class Timing:
    """One contender at one size; `ratio` is of CPU seconds, to those of the first contender in the same run."""

    cells: int
    solver: str
    processor: float  # CPU seconds, of all threads
    seconds: float  # by the clock
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
            for contender in self.present:
                contender.solve(self.problem(self.sizes[0]))  # what is only loaded once is not measured
            for cells in self.sizes:
                entries += self._at_size(cells)
        return [asdict(entry) for entry in entries]

    def _at_size(self, cells: int) -> list[Timing]:
        bound = fast.solve(self.problem(cells), tol=BOUND_TOLERANCE).lower_bound
        entries: list[Timing] = []
        for contender in self.present:
            if contender.largest is not None and cells > contender.largest:
                continue
            seconds: list[float] = []
            processor: list[float] = []
            while len(seconds) < self.repeats and (not seconds or seconds[-1] < LONG):
                begun = time.perf_counter(), time.process_time()
                answer = contender.solve(self.problem(cells))
                seconds.append(time.perf_counter() - begun[0])
                processor.append(time.process_time() - begun[1])
            middle = float(np.median(processor))
            base = entries[0].processor if entries else middle
            entries.append(
                Timing(
                    cells,
                    contender.name,
                    middle,
                    float(np.median(seconds)),
                    middle / base,
                    answer.gap,
                    answer.objective / bound - 1,
                    answer.iterations,
                    answer.status.name,
                )
            )
        return entries

    @property
    def present(self) -> tuple[Contender, ...]:
        """Contenders that are installed."""
        return tuple(each for each in self.contenders if not each.missing)

    def table(self, entries: list[Timing]) -> TextTable:
        """Lay the entries out, one line each, and say which sizes were left out."""
        left_out = [
            f"{each.name}: up to d = {each.largest}, {each.skipped}"
            for each in self.contenders
            if each.largest is not None and not each.missing
        ]
        left_out += [f"{each.name}: left out, {each.missing}" for each in self.contenders if each.missing]
        rows = (
            (
                *(str(entry.cells), entry.solver, f"{entry.processor:.3g}", f"{entry.seconds:.3g}"),
                f"{entry.ratio:.3g}",
                *(f"{entry.gap:.1e}", f"{max(entry.above, 0.0):.1e}", str(entry.steps), entry.status),
            )
            for entry in entries
        )
        return table(
            f"{self.title}: medians of seconds, certificates included (load {load():.1f})",
            HEADINGS,
            rows,
            words=("solver", "status"),
            notes=["; ".join(left_out)] if left_out else (),
        )
