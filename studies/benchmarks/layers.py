"""The results of the fast layer on each family; and how any case is measured, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

import dualmech as dm
from dualmech import designs, fast, workloads
from dualmech.crosscheck.printing import TextTable
from dualmech.crosscheck.sheet import Columns, Row, drawn
from dualmech.validate import Array
from dualmech.watching import without_warnings

Problem: TypeAlias = Callable[[], Any]
Measured: TypeAlias = dict[str, Any]  # as JSON has it

THREADS = ("DUALMECH_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def in_own_process(function: Callable[..., Any], *arguments: object, threads: int = 1) -> Any:
    """Return what a function of a module returns in a fresh process, where peak memory and threads are its own."""
    module, name = function.__module__, function.__qualname__
    code = f"import json; from {module} import {name} as run; print(json.dumps(run(*{arguments!r})))"
    environment = os.environ | dict.fromkeys(THREADS, str(threads))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def clocked() -> Iterator[Measured]:
    """Yield a mapping that has the block's seconds, those of the processor, and the load before it, once it ends."""
    figures: Measured = {"load": os.getloadavg()[0]}
    begun, spent = time.perf_counter(), time.process_time()
    yield figures
    figures |= {"seconds": time.perf_counter() - begun, "processor": time.process_time() - spent}


def peak_mebibytes() -> float:
    """Return the most memory that this process has held."""
    unit = 1024 if sys.platform != "darwin" else 1024**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A case with its limits, which are stated next to what was measured and never asserted."""

    name: str
    problem: Problem
    tol: float
    most_steps: int
    threads: int = 1
    repeat: int = 3


def _uniform(cells: int, queries: int) -> dm.FitnessForUse:
    """Return fitness for use of random ranges with targets uniform(1, 10)."""
    targets = np.random.default_rng(1).uniform(1, 10, queries)
    return dm.FitnessForUse(_ranges(cells, queries), targets)


def _ranges(cells: int, queries: int) -> dm.Workload:
    return workloads.random_range(cells, queries, rng=0)


def _normal(queries: int, cells: int) -> dm.Workload:
    return dm.Workload(np.random.default_rng(0).standard_normal((queries, cells)))


def _epochs(steps: int, times: int) -> dm.TotalVariance:
    """Return total variance of sums in several epochs, each part of a person a vector."""
    return dm.TotalVariance(workloads.prefix(steps), neighbours=f"participation:{times}:{steps // times}")


def _program1(gram: Array) -> dm.QueryWeighting:
    """Return Program 1 on the eigen-queries of a workload that is known by its Gram matrix."""
    built = workloads.from_gram(gram)
    return dm.QueryWeighting(built, designs.eigen_queries(built))


def _sines(cells: int) -> dm.QueryWeighting:
    """Return Program 1 on the eigen-queries of all ranges, in closed form."""
    return dm.QueryWeighting(workloads.all_range(cells), workloads.sines(cells))


CUBE = (16, 16, 16)

_once = partial(Benchmark, repeat=1)
_large = partial(Benchmark, threads=2, repeat=1)

BENCHMARKS = (
    Benchmark("prefix 64", lambda: dm.FitnessForUse(workloads.prefix(64)), 1e-6, 25, repeat=20),
    Benchmark("prefix 64", lambda: dm.FitnessForUse(workloads.prefix(64)), 1e-9, 40, repeat=20),
    Benchmark("PL-94", lambda: dm.FitnessForUse(workloads.pl94()), 1e-6, 12),
    Benchmark("age pyramid", lambda: dm.FitnessForUse(workloads.age_pyramid()), 1e-6, 30),
    Benchmark("age pyramid, no 18+", lambda: dm.FitnessForUse(workloads.age_pyramid(adults=False)), 1e-6, 30),
    Benchmark("marginals 16x16x16", lambda: dm.FitnessForUse(workloads.marginals(CUBE, ways=(1, 2))), 1e-6, 15),
    Benchmark("512 ranges, d 256", lambda: dm.FitnessForUse(_ranges(256, 512)), 1e-6, 150),
    Benchmark("512 ranges, d 256, random", partial(_uniform, 256, 512), 1e-6, 150),
    Benchmark("all ranges, d 256", lambda: dm.FitnessForUse(workloads.all_range(256)), 1e-6, 30),
    _once("all ranges, d 1024", lambda: dm.FitnessForUse(workloads.all_range(1024)), 1e-6, 30),
    Benchmark("12800 ranges, d 256", lambda: dm.FitnessForUse(_ranges(256, 12800)), 1e-6, 30),
    Benchmark("12800 normal queries, d 256", lambda: dm.FitnessForUse(_normal(12800, 256)), 1e-6, 30),
    _once("2048 ranges, d 1024", lambda: dm.FitnessForUse(_ranges(1024, 2048)), 1e-6, 400),
    _once("2048 ranges, d 1024, random", partial(_uniform, 1024, 2048), 1e-6, 400),
    Benchmark("variance: prefix 64", lambda: dm.TotalVariance(workloads.prefix(64)), 1e-9, 40, repeat=20),
    _once("variance: marginals 16x16x16", lambda: dm.TotalVariance(workloads.marginals(CUBE, ways=(1, 2))), 1e-6, 40),
    _once("variance: 2048 ranges", lambda: dm.TotalVariance(_ranges(1024, 2048)), 1e-6, 40),
    _once("variance: 1024 predicates", lambda: dm.TotalVariance(workloads.predicates(1024, 1024, rng=0)), 1e-6, 40),
    _once("variance: CDF", lambda: dm.TotalVariance(workloads.cdf(1024)), 1e-6, 40),
    *(
        _once(f"{name}: {n} sums{word}", partial(family, workloads.prefix(n), geometry=geometry), 1e-6, most)
        for name, geometry, n, most in (
            *(("matrix", "dense", 256, 40), ("matrix", "dense", 1024, 40), ("stream", "stream", 2**18, 60)),
        )
        for family, word in ((dm.FitnessForUse, ""), (dm.TotalVariance, ", variance"))
    ),
    *(Benchmark(f"epochs: 256 sums, {k}", partial(_epochs, 256, k), 1e-6, 20) for k in (4, 8, 16)),
    *(
        _once(f"epochs: {n} sums, {k}", partial(_epochs, n, k), 1e-6, 20)
        for n, k in ((512, 8), (512, 16), (1024, 4), (1024, 16), (2048, 16))
    ),
    _large("weighting: all ranges of 2048", lambda: _program1(workloads.all_range_gram(2048)), 1e-9, 20),
    Benchmark("weighting: all ranges of 8192, sines", partial(_sines, 8192), 1e-6, 60),
    Benchmark("weighting: all ranges of 65536, sines", partial(_sines, 65536), 1e-6, 60),
    _large(
        "weighting: 2-way marginals 16x16x32",
        lambda: _program1(workloads.marginals_gram((16, 16, 32), ways=2)),
        *(1e-3, 20),
    ),
    *(
        _once(f"local: {n} prefixes", partial(dm.LocalStrategy, workloads.prefix(n), 1.0), 1e-6, 1500)
        for n in (16, 20, 24, 28, 32)
    ),
)
"""Named by workload for fitness for use, else by family; the last takes minutes and 4 GiB. Running sums on a matrix are
those that `auto` would take for a stream; the steps that are allowed are stated beside those taken, never asserted."""


def decomposition_seconds(size: int) -> float:
    """Return the processor's seconds for one eigendecomposition of a matrix of this size."""
    matrix = np.random.default_rng(0).standard_normal((size, size))
    runs = []
    for _ in range(3):
        with clocked() as clock:
            np.linalg.eigh(matrix + matrix.T)
        runs.append(clock["processor"])
    return float(np.median(runs))


def measure(index: int) -> Measured:
    """Solve a case a few times in this process; seconds are medians, from the workload to the certificate.

    ``limit``, on a matrix, is the processor's seconds over those of as many eigendecompositions as the solve has
    steps: no solver that takes these steps is quicker than 1.
    """
    benchmark, clocks = BENCHMARKS[index], []
    with without_warnings():
        for _ in range(benchmark.repeat):
            with clocked() as clock:
                problem = benchmark.problem()
                answer = fast.solve(problem, tol=benchmark.tol)
            clocks.append(clock)
    seconds, processor = (float(np.median([clock[name] for clock in clocks])) for name in ("seconds", "processor"))
    geometry = getattr(problem, "geometry", None)
    limit = ""
    if getattr(geometry, "name", "") == "dense" and answer.iterations:
        limit = f"{processor / (answer.iterations * decomposition_seconds(problem.geometry.rank)):.2g}"
    queries, cells = problem.workload.shape
    return {
        **{"name": benchmark.name, "queries": queries, "cells": cells, "tol": benchmark.tol},
        **{"objective": answer.objective, "proven": answer.gap, "steps": answer.iterations},
        **{"most_steps": benchmark.most_steps, "threads": benchmark.threads, "load": clocks[0]["load"]},
        **{"seconds": seconds, "processor": processor, "limit": limit, "mebibytes": peak_mebibytes()},
    }


COLUMNS: Columns = (
    *(("workload", "{name}"), ("m x d", "{queries} x {cells}"), ("optimum at most", "{objective:.9g}")),
    *(("gap", "{proven:.1e}"), ("asked", "{tol:.0e}"), ("steps", "{steps}"), ("allowed", "{most_steps}")),
    *(("CPU s", "{processor:.3g}"), ("limit ratio", "{limit}"), ("wall s", "{seconds:.3g}")),
    *(("MiB", "{mebibytes:.0f}"), ("threads", "{threads}"), ("load", "{load:.1f}")),
)


def report(names: list[str]) -> TextTable:
    """Measure the cases whose names begin with one of some words, all without any."""
    chosen = [
        (index, case)
        for index, case in enumerate(BENCHMARKS)
        if not names or any(case.name.startswith(name) for name in names)
    ]
    rows = [Row(in_own_process(measure, index, threads=case.threads)) for index, case in chosen]
    title = "fast layer: steps are decompositions, seconds medians from the workload to the certificate"
    return drawn(title, COLUMNS, rows, words=())


def measure_against_reference() -> Measured:
    """Compare seconds of both layers on prefix 64 in one process, certificates included; ratio of medians."""
    from dualmech import reference

    problem, runs = dm.FitnessForUse(workloads.prefix(64), 1.0), []
    with without_warnings():
        for _ in range(50):
            with clocked() as clock:
                quick = fast.solve(problem, tol=1e-6)
            runs.append(clock["seconds"])
        with clocked() as clock:
            exact = reference.solve(problem, backend="CLARABEL")
    middle, slow = float(np.median(runs)), clock["seconds"]
    return {"gaps": [quick.gap, exact.gap], "seconds": [middle, slow], "ratio": slow / middle}


def report_against_reference() -> str:
    return Row(in_own_process(measure_against_reference)).text(
        "prefix 64, one process and thread: fast {seconds[0]:.3g} s (gap {gaps[0]:.1e}), reference with Clarabel "
        "{seconds[1]:.3g} s (gap {gaps[1]:.1e}): {ratio:.0f} times faster"
    )
