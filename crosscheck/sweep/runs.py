"""A run of a sweep: what is asked of which solver, its digest, and the row that comes of it."""

from __future__ import annotations

import hashlib
import json
import math
import time
import traceback
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from dualmech import fast, files
from dualmech.crosscheck.command.inputs import read_workload
from dualmech.crosscheck.command.options import Layer
from dualmech.crosscheck.command.request import REPORTED_DELTA, Request
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.crosscheck.sweep.memory import peak_mebibytes, start_peak
from dualmech.errors import DualmechError
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.names import is_named

Row: TypeAlias = dict[str, Any]

LOCAL = "local"  # the family that the command line does not pose otherwise
SOFTMAX = "softmax"
RANDOM = "random"  # targets that are drawn with the seed
DRAWN = (1.0, 10.0)  # between which they are drawn, uniformly
REFUSED, FAULT = "REFUSED", "FAULT"  # how a run ends that has no answer: a typed error, and any other

PACKAGES = ("dualmech", "numpy", "scipy", "cvxpy")
DIGITS = 16  # of a digest, hexadecimal


@dataclass(frozen=True, slots=True)
class Run:
    """What is asked, in the texts of a grid, and who is to answer.

    Examples
    --------
    >>> run = Run("fitness", "prefix:4", "prefix:4")
    >>> run.problem == Run("fitness", "prefix:4", "prefix:4", layer="reference", backend="CLARABEL").problem
    True
    >>> row = run.row()
    >>> row["status"], round(row["lower"], 4), round(row["upper"], 4), row["cells"]
    ('CERTIFIED', 1.7586, 1.7586, 4)
    """

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

    @classmethod
    def of(cls, row: Row) -> Run:
        """Return the run that a row came of."""
        kept = {each.name: row[each.name] for each in fields(cls)}
        return cls(**{**kept, "contents": tuple(kept["contents"])})

    @property
    def problem(self) -> str:
        """Digest of what is asked; that of files is their contents, whatever they are called."""
        asked = {
            name: value for name, value in asdict(self).items() if name not in (*_HOW, "pattern", "size")
        }
        return _digest(asked)

    @property
    def digest(self) -> str:
        """Digest of the run: of what is asked, and of the layer, backend, tolerance and limits."""
        return _digest({"problem": self.problem} | {name: getattr(self, name) for name in _HOW})

    def read(self) -> Workload:
        """Return the workload."""
        return read_workload(self.workload)

    def request(self, workload: Workload | str, targets: Array | str | None = None) -> Request:
        """Return what the command line would take for this."""
        return Request(
            workload,
            self.family,
            targets=targets,
            epsilon=self.epsilon,
            delta=self.delta,
            neighbours=self.neighbours,
            t1=self.t1,
        )

    def state(self, workload: Workload, targets: Array | None = None) -> tuple[Any, float]:
        """Return the problem on a workload, and what its objective is divided by at the privacy that is asked."""
        if self.family == LOCAL:
            return LocalStrategy(workload, self.epsilon or 0.0), 1.0
        given: Array | str | None = self.targets if targets is None else targets
        if targets is None and self.targets == RANDOM:
            given = self._drawn(workload)
        request = self.request(workload, given)
        problem = request.state()
        return problem, request.terms.divisor(problem)

    def _drawn(self, workload: Workload) -> Array:
        """Return random targets: one a table where a workload keeps tables, else one a query."""
        draw, counts = np.random.default_rng(self.seed).uniform, workload.table_counts
        if workload.tabular() is None:
            return draw(*DRAWN, workload.shape[0])
        targets = draw(*DRAWN, len(counts))
        return np.repeat(targets, counts) if self.family == SOFTMAX else targets  # which asks query by query

    def solve(self, problem: Any) -> Solution:
        """Return the answer of the layer."""
        named: dict[str, Any] = {} if self.tol is None else {"tol": self.tol}
        named |= {} if self.time_limit is None else {"time_limit": self.time_limit}
        if self.layer == Layer.FAST:
            return fast.solve(problem, **named)
        from dualmech import reference

        answer: Solution = reference.solve(problem, backend=self.backend or "CLARABEL", **named)
        return answer

    def row(self) -> Row:
        """Run it, and return what is asked, what came of it and what it took; an error is a row as well."""
        if self.layer == Layer.REFERENCE:
            import dualmech.reference  # noqa: F401 - what loading takes is not the run's
        asked = {"digest": self.digest, "problem": self.problem, **asdict(self), "contents": [*self.contents]}
        with without_warnings(), threadpool_limits(self.threads):
            start_peak()
            wall, cpu = time.perf_counter(), time.process_time()
            found = self._found()
            took = {
                "wall_seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
                "peak_mebibytes": peak_mebibytes(),
                "blas_threads": max((pool["num_threads"] for pool in threadpool_info()), default=1),
            }
        return {**asked, **found, **took, "versions": _versions()}

    def _found(self) -> Row:
        """Return what came of the run; an interval without an upper end has none."""
        found: Row = dict.fromkeys(("lower", "upper", "gap", "steps", "queries", "cells"))
        found |= {"asked_tol": None, "status": "", "message": "", "solver": ""}
        try:
            workload = self.read()
            found |= dict(zip(("queries", "cells"), workload.shape, strict=True))
            problem, divisor = self.state(workload)
            answer = self.solve(problem)
        except (DualmechError, MemoryError) as error:
            return found | {"status": REFUSED, "message": str(error) or "not enough memory"}
        except Exception as error:  # of the library or a backend: the other runs go on
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
            return found | {"status": FAULT, "message": said}
        lower, upper = (end / divisor for end in answer.certificate.interval)
        numbers = {"lower": lower, "upper": upper, "gap": answer.gap, "asked_tol": answer.tol}
        return found | {
            **{name: float(value) if math.isfinite(value) else None for name, value in numbers.items()},
            "steps": int(answer.iterations),
            "status": answer.status.name,
            "message": answer.message,
            "solver": answer.solver,
        }


_HOW = ("layer", "backend", "tol", "time_limit", "threads")  # what of a run is not what is asked


def interval(row: Row) -> tuple[float, float] | None:
    """Return the proven interval of a row, None of one without an answer."""
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
    """Return the δ that goes with an ε."""
    if epsilon is None or family == LOCAL:
        return None
    return REPORTED_DELTA if delta is None else delta


def _digest(stated: Row) -> str:
    """Return a digest of what is stated; of files only what they hold counts."""
    if stated.get("contents"):
        stated = {name: "file" if _is_file(value) else value for name, value in stated.items()}
    text = json.dumps(stated, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:DIGITS]


def _is_file(value: object) -> bool:
    return isinstance(value, str) and not is_named(value) and Path(value).suffix.lower() in files.SUFFIXES


@cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES}
