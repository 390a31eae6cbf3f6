"""What the fast layer reaches on fitness for use, each case in a process of its own."""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dualmech import fast, workloads
from dualmech.errors import UncertifiedWarning
from dualmech.problems.fitness import FitnessForUse
from dualmech.workload import Workload


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A case with its limits, which are stated beside what was measured and never asserted."""

    name: str
    workload: Callable[[], Workload]
    tol: float
    most_decompositions: int
    threads: int = 1
    random_targets: bool = False
    repeat: int = 3

    def problem(self) -> FitnessForUse:
        """Build the problem; random targets are uniform(1, 10) with seed 1."""
        workload = self.workload()
        targets = np.random.default_rng(1).uniform(1, 10, len(workload)) if self.random_targets else 1.0
        return FitnessForUse(workload, targets)


def _ranges(d: int, m: int) -> Callable[[], Workload]:
    return lambda: workloads.random_range(d, m, rng=0)


BENCHMARKS = (
    Benchmark("prefix 64", lambda: workloads.prefix(64), 1e-6, 25, repeat=20),
    Benchmark("prefix 64", lambda: workloads.prefix(64), 1e-9, 40, repeat=20),
    Benchmark("PL-94", workloads.pl94, 1e-6, 12),
    Benchmark("age pyramid", workloads.age_pyramid, 1e-6, 30),
    Benchmark("age pyramid, no 18+", lambda: workloads.age_pyramid(adults=False), 1e-6, 30),
    Benchmark("marginals 16x16x16", lambda: workloads.marginals((16, 16, 16), ways=(1, 2)), 1e-6, 15),
    Benchmark("512 ranges, d 256", _ranges(256, 512), 1e-6, 150),
    Benchmark("512 ranges, d 256, random", _ranges(256, 512), 1e-6, 150, random_targets=True),
    Benchmark("2048 ranges, d 1024", _ranges(1024, 2048), 1e-6, 400, threads=2, repeat=1),
    Benchmark(
        "2048 ranges, d 1024, random",
        _ranges(1024, 2048),
        1e-6,
        400,
        threads=2,
        random_targets=True,
        repeat=1,
    ),
)


def measure(benchmark: Benchmark) -> dict[str, float]:
    """Solve a case a few times in this process; seconds are medians, from the workload to the certificate."""
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        for _ in range(benchmark.repeat):
            begun = time.perf_counter()
            problem = benchmark.problem()
            answer = fast.solve(problem, tol=benchmark.tol)
            seconds.append(time.perf_counter() - begun)
    unit = 1024 if sys.platform != "darwin" else 1024**2
    return {
        "queries": problem.workload.shape[0],
        "cells": problem.workload.shape[1],
        "objective": answer.objective,
        "gap": answer.gap,
        "decompositions": answer.iterations,
        "seconds": float(np.median(seconds)),
        "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
    }


def measure_against_reference() -> dict[str, float]:
    """Compare seconds of both layers on prefix 64 in one process, certificates included; ratio of medians."""
    from dualmech import reference

    problem = FitnessForUse(workloads.prefix(64), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
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
