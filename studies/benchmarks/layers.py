"""The results of the fast layer on each family, every case in a process of its own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from dualmech import fast, workloads
from dualmech.problems import designs
from dualmech.problems.base import AnyProblem
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.validate import Array
from dualmech.watching import without_warnings
from dualmech.workloads.base import Workload

Problem: TypeAlias = Callable[[], AnyProblem]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A case with its limits, which are stated next to what was measured and never asserted."""

    name: str
    problem: Problem
    tol: float
    most_steps: int
    threads: int = 1
    repeat: int = 3


def _fitness(workload: Callable[[], Workload], random: bool = False) -> Problem:
    """Return fitness for use with targets 1, or uniform(1, 10) with seed 1."""

    def problem() -> FitnessForUse:
        built = workload()
        targets = np.random.default_rng(1).uniform(1, 10, len(built)) if random else 1.0
        return FitnessForUse(built, targets)

    return problem


def _variance(workload: Callable[[], Workload]) -> Problem:
    return lambda: TotalVariance(workload())


def _dense(family: type[FitnessForUse | TotalVariance], cells: int) -> Problem:
    """Return running sums on a matrix, which `auto` would take for a stream."""
    return lambda: family(workloads.prefix(cells), geometry="dense")


def _stream(family: type[FitnessForUse | TotalVariance], cells: int) -> Problem:
    return lambda: family(workloads.prefix(cells), geometry="stream")


def _epochs(steps: int, times: int) -> Problem:
    """Return total variance of sums in several epochs, each part of a person a vector."""
    rule = f"participation:{times}:{steps // times}"
    return lambda: TotalVariance(workloads.prefix(steps), neighbours=rule)


def _program1(gram: Callable[[], Array]) -> Problem:
    """Return Program 1 on the eigen-queries of a workload that is known by its Gram matrix."""

    def problem() -> QueryWeighting:
        built = workloads.from_gram(gram())
        return QueryWeighting(built, designs.eigen_queries(built))

    return problem


def _sines(cells: int) -> Problem:
    """Return Program 1 on the eigen-queries of all ranges, in closed form."""
    return lambda: QueryWeighting(workloads.all_range(cells), workloads.sines(cells))


def _prefix() -> Workload:
    return workloads.prefix(64)


def _marginals() -> Workload:
    return workloads.marginals((16, 16, 16), ways=(1, 2))


def _predicates() -> Workload:
    return workloads.predicates(1024, 1024, rng=0)


def _all_ranges() -> Workload:
    return workloads.all_range(256)


def _normal() -> Workload:
    return Workload(np.random.default_rng(0).standard_normal((12800, 256)))


def _two_way_gram() -> Array:
    return workloads.marginals_gram((16, 16, 32), ways=2)


def _ranges(d: int, m: int) -> Callable[[], Workload]:
    return lambda: workloads.random_range(d, m, rng=0)


_once = partial(Benchmark, repeat=1)
_large = partial(Benchmark, threads=2, repeat=1)

BENCHMARKS = (
    Benchmark("prefix 64", _fitness(_prefix), 1e-6, 25, repeat=20),
    Benchmark("prefix 64", _fitness(_prefix), 1e-9, 40, repeat=20),
    Benchmark("PL-94", _fitness(workloads.pl94), 1e-6, 12),
    Benchmark("age pyramid", _fitness(workloads.age_pyramid), 1e-6, 30),
    Benchmark("age pyramid, no 18+", _fitness(lambda: workloads.age_pyramid(adults=False)), 1e-6, 30),
    Benchmark("marginals 16x16x16", _fitness(_marginals), 1e-6, 15),
    Benchmark("512 ranges, d 256", _fitness(_ranges(256, 512)), 1e-6, 150),
    Benchmark("512 ranges, d 256, random", _fitness(_ranges(256, 512), random=True), 1e-6, 150),
    Benchmark("all ranges, d 256", _fitness(_all_ranges), 1e-6, 30),
    Benchmark("12800 ranges, d 256", _fitness(_ranges(256, 12800)), 1e-6, 30),
    Benchmark("12800 normal queries, d 256", _fitness(_normal), 1e-6, 30),
    _once("2048 ranges, d 1024", _fitness(_ranges(1024, 2048)), 1e-6, 400),
    _once("2048 ranges, d 1024, random", _fitness(_ranges(1024, 2048), random=True), 1e-6, 400),
    Benchmark("variance: prefix 64", _variance(_prefix), 1e-9, 40, repeat=20),
    Benchmark("variance: marginals 16x16x16", _variance(_marginals), 1e-6, 40, repeat=1),
    _once("variance: 2048 ranges", _variance(_ranges(1024, 2048)), 1e-6, 40),
    _once("variance: 1024 predicates", _variance(_predicates), 1e-6, 40),
    _once("variance: CDF", _variance(lambda: workloads.cdf(1024)), 1e-6, 40),
    *(
        _once(f"matrix: {n} sums{word}", _dense(family, n), 1e-6, 40)
        for n in (256, 1024)
        for family, word in ((FitnessForUse, ""), (TotalVariance, ", variance"))
    ),
    *(
        _once(f"stream: 262144 sums{word}", _stream(family, 2**18), 1e-6, 60)
        for family, word in ((FitnessForUse, ""), (TotalVariance, ", variance"))
    ),
    *(Benchmark(f"epochs: {n} sums, {k}", _epochs(n, k), 1e-6, 20) for n, k in ((256, 4), (256, 8), (256, 16))),
    *(_once(f"epochs: {n} sums, {k}", _epochs(n, k), 1e-6, 20) for n, k in ((512, 8), (512, 16), (1024, 4))),
    *(_once(f"epochs: {n} sums, {k}", _epochs(n, k), 1e-6, 20) for n, k in ((1024, 16), (2048, 16))),
    _large("weighting: all ranges of 2048", _program1(partial(workloads.all_range_gram, 2048)), 1e-9, 20),
    Benchmark("weighting: all ranges of 8192, sines", _sines(8192), 1e-6, 60),
    Benchmark("weighting: all ranges of 65536, sines", _sines(65536), 1e-6, 60),
    _large("weighting: 2-way marginals 16x16x32", _program1(_two_way_gram), 1e-3, 20),
)
"""Named by workload for fitness for use, else by family; the last takes minutes and 4 GiB."""


def peak_mebibytes() -> float:
    """Return the most memory that this process has held."""
    unit = 1024 if sys.platform != "darwin" else 1024**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def load() -> float:
    """Return how many processes want to run: with others running, the clock says more than the processor."""
    return os.getloadavg()[0]


def decomposition_seconds(size: int) -> float:
    """Return the processor's seconds for one eigendecomposition of a matrix of this size."""
    matrix = np.random.default_rng(0).standard_normal((size, size))
    matrix += matrix.T
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        np.linalg.eigh(matrix)
        seconds.append(time.process_time() - begun)
    return float(np.median(seconds))


def measure(benchmark: Benchmark) -> dict[str, float]:
    """Solve a case a few times in this process; seconds are medians, from the workload to the certificate.

    ``limit ratio``, on a matrix, is the processor's seconds over those of as many eigendecompositions as the solve has
    steps: no solver that takes these steps is quicker than 1.
    """
    seconds, processor, busy = [], [], load()
    with without_warnings():
        for _ in range(benchmark.repeat):
            begun, spent = time.perf_counter(), time.process_time()
            problem = benchmark.problem()
            answer = fast.solve(problem, tol=benchmark.tol)
            seconds.append(time.perf_counter() - begun)
            processor.append(time.process_time() - spent)
    on_matrix = getattr(getattr(problem, "geometry", None), "name", "") == "dense"
    limit = answer.iterations * decomposition_seconds(problem.geometry.rank) if on_matrix else np.nan
    return {
        "queries": problem.workload.shape[0],
        "cells": problem.workload.shape[1],
        "objective": answer.objective,
        "gap": answer.gap,
        "steps": answer.iterations,
        "seconds": float(np.median(seconds)),
        "processor": float(np.median(processor)),
        "limit ratio": float(np.median(processor)) / limit,
        "load": busy,
        "mebibytes": peak_mebibytes(),
    }


STARTS = 5  # of each process whose start is measured
STARTED = {
    "solve": ("-m", "dualmech", "solve", "prefix:16"),
    "libraries": ("-c", "import numpy, scipy.linalg, scipy.sparse"),
}


def measure_start() -> dict[str, float]:
    """Return the seconds of a small solve from the command line, and of loading NumPy and SciPy alone; medians."""
    seconds: dict[str, list[float]] = {name: [] for name in STARTED}
    for _ in range(STARTS):
        for name, words in STARTED.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - begun)
    return {name: float(np.median(taken)) for name, taken in seconds.items()}


def measure_against_reference() -> dict[str, float]:
    """Compare seconds of both layers on prefix 64 in one process, certificates included; ratio of medians."""
    from dualmech import reference

    problem = FitnessForUse(workloads.prefix(64), 1.0)
    with without_warnings():
        seconds = []
        for _ in range(50):
            begun = time.perf_counter()
            quick = fast.solve(problem, tol=1e-6)
            seconds.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        exact = reference.solve(problem, backend="CLARABEL")
        slow = time.perf_counter() - begun
    middle = float(np.median(seconds))
    return {
        "fast gap": quick.gap,
        "reference gap": exact.gap,
        "fast seconds": middle,
        "reference seconds": slow,
        "ratio": slow / middle,
    }
