"""Runs of a sweep: problems and their solvers, the rows of results, their file, and the verdicts on all of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO, Self, TypeAlias

import numpy as np
from threadpoolctl import threadpool_info

from dualmech import fast, files
from dualmech.crosscheck import processes
from dualmech.crosscheck.agreement import VERDICTS, Agreement
from dualmech.crosscheck.families import Layer
from dualmech.crosscheck.printing import REPORTED_DELTA
from dualmech.errors import BackendError, DualmechError, FileFormatError
from dualmech.files.reading import FilePath
from dualmech.problems.base import AnyProblem
from dualmech.progress import Status
from dualmech.solution import Solution
from dualmech.threads import blas_threads
from dualmech.validate import Array
from dualmech.watching import without_warnings
from dualmech.workloads.base import Workload
from dualmech.workloads.names import is_named

# The most memory that a process held since a moment.


OWN = Path("/proc/self")
PEAK = "VmHWM:"  # the line of Linux that holds it, in kibibytes
RESET = "5"  # what Linux takes as the word to begin anew


def start_peak() -> None:
    """Begin anew; where the system cannot, the peak counts from the start of the process."""
    with contextlib.suppress(OSError):
        (OWN / "clear_refs").write_text(RESET)


def peak_mebibytes() -> float | None:
    """Return the most memory of the process in MiB, None where the system does not say.

    Examples
    --------
    >>> start_peak()
    >>> most = peak_mebibytes()
    >>> most is None or most > 1
    True
    """
    with contextlib.suppress(OSError):
        for line in (OWN / "status").read_text().splitlines():
            if line.startswith(PEAK):
                return int(line.split()[1]) / 1024
    try:
        import resource
    except ImportError:  # of a system without it
        return None
    unit = 1024 if sys.platform != "darwin" else 1024**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


Row: TypeAlias = dict[str, Any]

LOCAL = "local"  # the family that the command line does not pose otherwise
SOFTMAX = "softmax"
RANDOM = "random"  # targets that are drawn with the seed
DRAWN = (1.0, 10.0)  # between which they are drawn, uniformly
REFUSED, FAULT = "REFUSED", "FAULT"  # how a run ends that has no answer: a typed error, and any other

PACKAGES = ("dualmech", "numpy", "scipy", "cvxpy")
DIGITS = 16  # of a digest, hexadecimal


@dataclass(frozen=True, slots=True)
class Run(ABC):
    """A problem and its solver, in the texts of a grid; a subclass says how the texts are read."""

    family: str
    workload: str
    pattern: str  # the workload before the size and the seed were put in
    size: int | None = None
    targets: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    neighbours: str | None = None
    t1: float | None = None
    seed: int | None = None
    contents: tuple[str, ...] = ()  # digests of the files that workload, targets and neighbours name
    layer: str = Layer.FAST.value
    backend: str | None = None
    tol: float | None = None
    time_limit: float | None = None
    threads: int = 1
    rho: str | None = None  # a fraction

    @classmethod
    def of(cls, row: Row) -> Self:
        kept = {field.name: row[field.name] for field in fields(cls) if field.name in row}
        return cls(**{**kept, "contents": tuple(kept["contents"])})

    @property
    def problem(self) -> str:
        """Digest of the problem; files enter by their contents, whatever their names."""
        options = {name: value for name, value in asdict(self).items() if name not in (*_HOW, "pattern", "size")}
        if self.epsilon is not None and self.family != LOCAL:
            options["conversion"] = "zCDP"
        return _digest(options)

    @property
    def digest(self) -> str:
        """Digest of the run: of the problem, and of the layer, backend, tolerance and limits."""
        return _digest({"problem": self.problem} | {name: getattr(self, name) for name in _HOW})

    @abstractmethod
    def read(self) -> Workload: ...

    @abstractmethod
    def check(self) -> None:
        """Refuse a workload, neighbours or a file of targets that cannot be read, and options that exclude each other.

        A refusal that only the statement of the problem can make is a row of its own.
        """

    @abstractmethod
    def state(self, workload: Workload, targets: Array | None = None) -> tuple[AnyProblem, float]:
        """Return the problem on a workload, and the divisor of its objective at the requested privacy."""

    def drawn(self, workload: Workload) -> Array:
        """Return random targets: one a table where a workload keeps tables, else one a query."""
        draw, counts = np.random.default_rng(self.seed).uniform, workload.table_counts
        if workload.tabular() is None:
            return draw(*DRAWN, workload.shape[0])
        targets = draw(*DRAWN, len(counts))
        return np.repeat(targets, counts) if self.family == SOFTMAX else targets  # which asks query by query

    def solve(self, problem: AnyProblem) -> Solution:
        named: dict[str, Any] = {} if self.tol is None else {"tol": self.tol}
        named |= {} if self.time_limit is None else {"time_limit": self.time_limit}
        if self.layer == Layer.FAST:
            return fast.solve(problem, **named)
        from dualmech import reference

        answer: Solution = reference.solve(problem, backend=self.backend or "CLARABEL", **named)
        return answer

    def row(self) -> Row:
        """Run it, and return the problem, the result, and its time and memory; an error is a row as well."""
        if self.layer == Layer.REFERENCE:
            import dualmech.reference  # noqa: F401 - what loading takes is not the run's
        row = {"digest": self.digest, "problem": self.problem, **asdict(self), "contents": [*self.contents]}
        with without_warnings(), blas_threads(self.threads):
            start_peak()
            wall, cpu = time.perf_counter(), time.process_time()
            outcome = self._found()
            took = {
                "wall_seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
                "peak_mebibytes": peak_mebibytes(),
                "blas_threads": max((pool["num_threads"] for pool in threadpool_info()), default=1),
            }
        return {**row, **outcome, **took, "versions": _versions()}

    def _found(self) -> Row:
        """Return the result of the run; an interval without an upper end has none."""
        row: Row = dict.fromkeys(("lower", "upper", "gap", "steps", "queries", "cells"))
        row |= {"asked_tol": None, "status": "", "message": "", "solver": ""}
        try:
            workload = self.read()
            row |= dict(zip(("queries", "cells"), workload.shape, strict=True))
            problem, divisor = self.state(workload)
            answer = self.solve(problem)
        except (DualmechError, MemoryError) as error:
            return row | {"status": REFUSED, "message": str(error) or "not enough memory"}
        except Exception as error:  # of the library or a backend: the other runs go on
            place = traceback.extract_tb(error.__traceback__)[-1]
            message = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
            return row | {"status": FAULT, "message": message}
        lower, upper = (end / divisor for end in answer.certificate.interval)
        numbers = {"lower": lower, "upper": upper, "gap": answer.gap, "asked_tol": answer.tol}
        return row | {
            **{name: float(value) if math.isfinite(value) else None for name, value in numbers.items()},
            "steps": int(answer.iterations),
            "status": answer.status.name,
            "message": answer.message,
            "solver": answer.solver,
        }


_HOW = ("layer", "backend", "tol", "time_limit", "threads")  # fields of a run that are not of the problem


def interval(row: Row) -> tuple[float, float] | None:
    if row["lower"] is None:
        return None
    return row["lower"], math.inf if row["upper"] is None else row["upper"]


def contents_of(*texts: str | None) -> tuple[str, ...]:
    """Return digests of the files among some texts, one by one; nothing of one that is not a file."""
    digests = []
    for text in texts:
        if text is not None and not is_named(text) and Path(text).is_file():
            with files.errors_naming(text):
                digests.append(hashlib.sha256(Path(text).read_bytes()).hexdigest())
    return tuple(digests)


def default_delta(epsilon: float | None, delta: float | None, family: str) -> float | None:
    if epsilon is None or family == LOCAL:
        return None
    return REPORTED_DELTA if delta is None else delta


def _digest(stated: Row) -> str:
    """Return a digest of a statement; files enter by their contents alone."""
    if stated.get("contents"):
        stated = {name: "file" if _is_file(value) else value for name, value in stated.items()}
    text = json.dumps(stated, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:DIGITS]


def _is_file(value: object) -> bool:
    return isinstance(value, str) and not is_named(value) and Path(value).suffix.lower() in files.SUFFIXES


@cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES}


# The file of results: a JSON object a line, appended and on the disk as each run ends.


SUFFIX = ".jsonl"
BEGINS = b'{"digest": "'  # every line that is written here, by which one that was cut off is known

_NUMBER: tuple[type, ...] = (float, int, NoneType)
_COUNT: tuple[type, ...] = (int, NoneType)
_TEXT: tuple[type, ...] = (str, NoneType)

FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("digest", "problem", "family", "workload", "pattern"), (str,)),
    **dict.fromkeys(("layer", "status", "message", "solver", "grid"), (str,)),
    **dict.fromkeys(("targets", "neighbours", "backend", "rho"), _TEXT),
    **dict.fromkeys(("size", "seed", "steps", "queries", "cells", "threads", "blas_threads"), _COUNT),
    **dict.fromkeys(("epsilon", "delta", "t1", "tol", "time_limit", "asked_tol"), _NUMBER),
    **dict.fromkeys(("lower", "upper", "gap", "wall_seconds", "cpu_seconds", "peak_mebibytes"), _NUMBER),
    "contents": (list,),
    "versions": (dict,),
}
"""The fields of every line."""


def read_rows(path: FilePath) -> list[Row]:
    """Return the rows of a file of results; a last line that was cut off is left out.

    Raises `FileFormatError` for a file that cannot be read, or a line that is no row, by its number.
    """
    with files.errors_naming(path), files.reading.opened(path) as handle:
        return _rows(path, _whole(path, handle.read()))


@contextlib.contextmanager
def journal(path: FilePath) -> Iterator[Journal]:
    """Open a file of results to be continued, made where it is missing; a line left half written is cut off.

    Raises `FileFormatError` where it cannot be read or written, does not end in .jsonl, holds anything else, or is
    written by another sweep.
    """
    files.check_writable(path, SUFFIX)
    with contextlib.ExitStack() as opened:
        with files.errors_naming(path):
            handle = opened.enter_context(open(path, "a+b"))
            _lock(path, handle)
            handle.seek(0)
            whole = _whole(path, handle.read())
            rows = _rows(path, whole)
            handle.truncate(len(whole))
        yield Journal(path, handle, rows)


class Journal:
    """Rows that are in a file already, and the means to add one."""

    def __init__(self, path: FilePath, handle: BinaryIO, rows: list[Row]) -> None:
        self.rows = rows
        self._path, self._handle = path, handle

    def append(self, row: Row) -> None:
        """Write a row, so that it is on the disk when this returns.

        Raises `FileFormatError` where it cannot be written.
        """
        line = json.dumps(row, allow_nan=False)
        try:
            self._handle.write(line.encode("ascii") + b"\n")
            self._handle.flush()
            os.fsync(self._handle.fileno())
        except OSError as error:
            raise FileFormatError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        self.rows.append(row)


def _whole(path: FilePath, held: bytes) -> bytes:
    """Return the lines that have an end; what comes after them has to be the beginning of one of ours."""
    end = held.rfind(b"\n") + 1
    cut = held[end:]
    if not (cut.startswith(BEGINS) or BEGINS.startswith(cut)):
        raise FileFormatError(f"{path}: is not a file of results: its last line is none")
    return held[:end]


def _rows(path: FilePath, held: bytes) -> list[Row]:
    rows = []
    for number, line in enumerate(held.splitlines(), 1):
        try:
            rows.append(_row(line))
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{path}: line {number}: is no row of results: {error}") from error
    return rows


def _row(line: bytes) -> Row:
    row = json.loads(line.decode("utf-8"))
    if not isinstance(row, dict):
        raise ValueError("it is not an object")
    for name, kinds in FIELDS.items():
        if name not in row:
            raise ValueError(f"{name} is missing")
        value = row[name]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{name} is {type(value).__name__}")
        if kinds is _NUMBER and value is not None and not math.isfinite(_double(value)):
            raise ValueError(f"{name} is not finite")
    return row


def _double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _lock(path: FilePath, handle: BinaryIO) -> None:
    """Keep the file to this process, where the system can."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise FileFormatError(f"{Path(path)}: is written by another sweep") from error


# A sweep: its missing runs, computed and written, and the verdicts on all answers.


NOTHING = "none"  # the verdict on a problem without an answer


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of all answers to one problem: the interval in which their optimum lies, and whether they meet."""

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
        return max(answered, key=lambda pair: pair[1][0])[0], min(answered, key=lambda pair: pair[1][1])[0]


def sweep(runs: Sequence[Run], path: FilePath, jobs: int = 1, dask: str | None = None, grid: str = "") -> Iterator[Row]:
    """Make the runs that a file of results lacks, `jobs` at a time or on a Dask cluster; yield each row when written.

    Raises `FileFormatError` where the file cannot be continued, `BackendError` where the cluster cannot be reached.
    """
    if dask is not None:
        processes.check_dask()
    with journal(path) as kept:
        held = {row["digest"] for row in kept.rows}
        left = [run for run in runs if run.digest not in held]
        if jobs > 1:  # the longest first, so that none is left alone at the end
            left.sort(key=lambda run: (run.layer != Layer.FAST, run.size or 0), reverse=True)
        tasks = [run.row for run in left]
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
    """Return the verdict of the rows on each problem, in the order in which problems come."""
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row["problem"], []).append(row)
    return [_verdict(rows) for rows in by_problem.values()]


def _verdict(rows: Sequence[Row]) -> Verdict:
    ends = [pair for row in rows if (pair := interval(row)) is not None]
    if not ends:
        return Verdict(tuple(rows), 0.0, math.inf, NOTHING)
    lower, upper = max(low for low, _ in ends), min(high for _, high in ends)
    certified = all(row["status"] == Status.CERTIFIED.name for row in rows)
    outcome = Agreement.DISAGREE if lower > upper else Agreement.AGREE if certified else Agreement.WIDE
    return Verdict(tuple(rows), lower, upper, VERDICTS[outcome])


def exit_status(rows: Sequence[Row]) -> int:
    """Return 4 where answers disagree, 3 where not every run is certified, else 0."""
    if any(verdict.disagree for verdict in verdicts(rows)):
        return 4
    return 0 if all(row["status"] == Status.CERTIFIED.name for row in rows) else 3
