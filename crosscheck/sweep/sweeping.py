"""A sweep: what of its runs is not there yet, computed and written, and what the answers say together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass

from dualmech.crosscheck import processes
from dualmech.crosscheck.agreement import VERDICTS, Agreement
from dualmech.crosscheck.sweep.journal import journal
from dualmech.crosscheck.sweep.runs import Row, Run, interval
from dualmech.errors import BackendError
from dualmech.files.reading import FilePath
from dualmech.progress import Status

NOTHING = "none"  # the verdict on a problem without an answer


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all answers to one problem say together: the interval in which their optimum lies, and whether they meet."""

    rows: tuple[Row, ...]
    lower: float
    upper: float
    word: str  # as in `VERDICTS`; `NOTHING` where there is no answer

    @property
    def disagree(self) -> bool:
        """Whether certified intervals are disjoint."""
        return self.word == VERDICTS[Agreement.DISAGREE]

    @property
    def outermost(self) -> tuple[Row, Row]:
        """The rows with the highest lower end and the lowest upper end."""
        answered = [(row, ends) for row in self.rows if (ends := interval(row)) is not None]
        return max(answered, key=lambda each: each[1][0])[0], min(answered, key=lambda each: each[1][1])[0]


def sweep(
    runs: Sequence[Run], path: FilePath, jobs: int = 1, dask: str | None = None, grid: str = ""
) -> Iterator[Row]:
    """Run what a file of results does not hold yet, `jobs` at a time or on a Dask cluster; yield each row when written.

    Raises `FileFormatError` where the file cannot be continued, `BackendError` where the cluster cannot be reached.
    """
    if dask is not None:
        processes.check_dask()
    with journal(path) as kept:
        held = {row["digest"] for row in kept.rows}
        tasks = [run.row for run in runs if run.digest not in held]
        if not tasks:
            return
        rows = (
            processes.computed(tasks, jobs, as_they_finish=True)
            if dask is None
            else processes.computed_by_dask(tasks, dask)
        )
        try:
            for row in rows:
                kept.append({**row, "grid": grid})
                yield kept.rows[-1]
        except BrokenExecutor as error:
            raise BackendError(
                f"a process of the sweep was ended from outside, as happens where memory runs out; {path} keeps what "
                f"is done, and the same command goes on from there"
            ) from error


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return what the rows say of each problem, in the order in which problems come."""
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row["problem"], []).append(row)
    return [_verdict(own) for own in by_problem.values()]


def _verdict(rows: Sequence[Row]) -> Verdict:
    ends = [found for row in rows if (found := interval(row)) is not None]
    if not ends:
        return Verdict(tuple(rows), 0.0, math.inf, NOTHING)
    lower, upper = max(low for low, _ in ends), min(high for _, high in ends)
    certified = all(row["status"] == Status.CERTIFIED.name for row in rows)
    outcome = Agreement.DISAGREE if lower > upper else Agreement.AGREE if certified else Agreement.WIDE
    return Verdict(tuple(rows), lower, upper, VERDICTS[outcome])


def exit_status(rows: Sequence[Row]) -> int:
    """Return 4 where answers disagree, 3 where not every run is certified, else 0."""
    if any(each.disagree for each in verdicts(rows)):
        return 4
    return 0 if all(row["status"] == Status.CERTIFIED.name for row in rows) else 3
