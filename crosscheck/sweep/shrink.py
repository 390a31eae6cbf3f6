"""Two answers that disagree, made small: a smaller size, fewer queries, and files that repeat it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dualmech import files
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.crosscheck.sweep.grid import SEED, SIZE
from dualmech.crosscheck.sweep.runs import LOCAL, Run
from dualmech.errors import DualmechError
from dualmech.files.reading import FilePath
from dualmech.validate import Array
from dualmech.workloads.base import Workload

MOST_TRIES = 200  # pairs of runs that shrinking may take
MOST_ENTRIES = 2**20  # of a workload that is written out as a matrix

Interval = tuple[float, float]
Ends = tuple[Interval, Interval]


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem on which two answers disagree; its queries and targets stand here where its text does not name them."""

    first: Run
    second: Run
    ends: Ends
    workload: Workload | None = None
    targets: Array | None = None


class _Trial:
    """Asks both about a candidate, so many times in all."""

    def __init__(self, tries: int) -> None:
        self.left = tries

    def __call__(self, instance: Instance) -> Instance | None:
        """Return the candidate with its intervals if they are disjoint; None if not, or if it is refused."""
        if not self.left:
            return None
        self.left -= 1
        try:
            first, second = (_interval(run, instance) for run in (instance.first, instance.second))
        except (DualmechError, MemoryError):
            return None
        disjoint = first[0] > second[1] or second[0] > first[1]
        return replace(instance, ends=(first, second)) if disjoint else None


def shrink(first: Run, second: Run, ends: Ends, tries: int = MOST_TRIES) -> Instance:
    """Return the smallest problem that was found on which the runs still disagree, the one given at worst.

    First the size is halved, where the workload has one; then the queries are written out, and half, a quarter and
    so on of them dropped, down to one by one, as long as the two certified intervals stay disjoint.
    """
    trial, found = _Trial(tries), Instance(first, second, ends)
    while (smaller := _halved(found)) is not None and (kept := trial(smaller)) is not None:
        found = kept
    written = _written_out(found)
    if written is None or (explicit := trial(written)) is None:
        return found
    return _with_fewer_queries(explicit, trial)


def _with_fewer_queries(found: Instance, trial: Callable[[Instance], Instance | None]) -> Instance:
    share = 2
    while found.workload is not None and (count := len(found.workload)) > 1:
        kept = next(filter(None, map(trial, _without_a_part(found, min(share, count)))), None)
        if kept is not None:
            found, share = kept, max(share - 1, 2)
        elif share >= count:
            break
        else:
            share *= 2
    return found


def _without_a_part(found: Instance, parts: int) -> Iterator[Instance]:
    """Yield the instance without each of so many parts of its queries."""
    workload = found.workload
    assert workload is not None
    for dropped in np.array_split(np.arange(len(workload)), parts):
        kept = np.setdiff1d(np.arange(len(workload)), dropped)
        targets = None if found.targets is None else found.targets[kept]
        yield replace(found, workload=workload.select(kept), targets=targets)


def _halved(found: Instance) -> Instance | None:
    """Return the instance at half its size, None where it has none to halve."""
    size = found.first.size
    if size is None or size < 2:
        return None
    text = found.first.pattern.replace(SIZE, str(size // 2)).replace(SEED, str(found.first.seed))
    runs = (replace(run, workload=text, size=size // 2) for run in (found.first, found.second))
    first, second = runs
    return replace(found, first=first, second=second)


def _written_out(found: Instance) -> Instance | None:
    """Return the same queries and targets as a matrix and numbers, None where they are too many."""
    try:
        asked = found.first.read()
        if np.prod([float(count) for count in asked.shape]) > MOST_ENTRIES:
            return None
        problem, _ = found.first.state(asked)
        workload = Workload(asked.dense())
    except (DualmechError, MemoryError):
        return None
    targets = getattr(problem, "targets", None)
    if targets is not None:
        numbers = np.asarray(targets, dtype=float).reshape(-1)
        if len(numbers) not in (1, len(asked), len(asked.table_counts)):
            return None
        targets = numbers if len(numbers) == len(asked) else np.repeat(numbers, asked.table_counts)
    return replace(found, workload=workload, targets=targets)


def _interval(run: Run, instance: Instance) -> Interval:
    with without_warnings():
        workload = run.read() if instance.workload is None else instance.workload
        problem, divisor = run.state(workload, instance.targets)
        low, high = run.solve(problem).certificate.interval
    return low / divisor, high / divisor


def write_instance(instance: Instance, beside: FilePath) -> tuple[Path, str]:
    """Write files that repeat a disagreement beside a file of results; return the grid, and the command that runs it.

    Of queries that are no text's there are a ``.csv`` of queries and, where targets differ, one of targets.
    Raises `FileFormatError` where one cannot be written.
    """
    stem = f"{Path(beside).with_suffix('')}-disagreement-{instance.first.problem[:8]}"
    grid, results = Path(f"{stem}.toml"), Path(f"{stem}.jsonl")
    stated = _stated(instance, stem)
    command = f"dualmech sweep {shlex.quote(str(grid))} -o {shlex.quote(str(results))}"
    ends = [f"# {run.layer} proves [{low!r}, {high!r}]" for run, (low, high) in _pairs(instance)]
    lines = ["# Certified intervals that do not meet.", *ends, "# Run this file by `dualmech sweep`."]
    lines += [f"{name} = {_toml(value)}" for name, value in stated.items() if value is not None]
    with files.atomic_write(grid) as handle:
        handle.write(("\n".join(lines) + "\n").encode())
    return grid, command


def _pairs(instance: Instance) -> Iterator[tuple[Run, Interval]]:
    return zip((instance.first, instance.second), instance.ends, strict=True)


def _stated(instance: Instance, stem: str) -> dict[str, Any]:
    """Return what the grid states, with the files that it needs written."""
    first, second, folder = instance.first, instance.second, Path(stem).parent
    workload, seed = _beside(first.workload, folder), first.seed
    targets: float | str | None = _beside(first.targets, folder)
    if instance.workload is not None:
        workload, seed = f"{Path(stem).name}.csv", None
        files.write_workload(instance.workload, folder / workload)
    if instance.targets is not None:
        targets = _targets(instance.targets, stem)
    backends = [run.backend for run in (first, second) if run.backend is not None]
    tolerances = [run.tol for run in (first, second) if run.tol is not None]
    return {
        "families": first.family,
        "workloads": workload,
        "targets": targets if first.family != LOCAL else None,
        "epsilon": first.epsilon,
        "delta": first.delta,
        "neighbours": _beside(first.neighbours, folder),
        "t1": first.t1,
        "seeds": seed if targets == "random" else None,
        "layers": list(dict.fromkeys([first.layer, second.layer])),
        "backends": list(dict.fromkeys(backends)) or None,
        "tolerances": list(dict.fromkeys(tolerances)) or None,
        "time_limit": first.time_limit,
    }


def _targets(targets: Array, stem: str) -> float | str:
    """Return one number where all targets are the same, else the name of a file with one a line."""
    if (targets == targets[0]).all():
        return float(targets[0])
    path = Path(f"{stem}-targets.csv")
    with files.atomic_write(path) as handle:
        handle.write("".join(f"{each!r}\n" for each in targets.tolist()).encode())
    return path.name


def _beside(text: str | None, folder: Path) -> str | None:
    """Return a text, the path of a file as seen from a folder, in which a grid looks for it."""
    if text is None or Path(text).suffix.lower() not in files.SUFFIXES:
        return text
    return os.path.relpath(text, folder)


def _toml(value: Any) -> str:
    """Return a value as TOML, which takes what JSON does of numbers, lists and texts but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
