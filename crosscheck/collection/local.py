"""Local privacy: strategies for the six workloads of the paper, projections and non-negative estimates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dualmech import workloads
from dualmech.crosscheck.collection.matrices import Stated
from dualmech.problems.local.estimate import NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.workloads.base import Workload

EPSILONS = (0.5, 1.0, 4.0)
CRITERIA = ("average", "worst")
SEED = 0


def _marginals(size: int) -> Workload:
    bits = size.bit_length() - 1
    return workloads.marginals([2] * bits, ways=range(bits + 1))


WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "histogram": workloads.identity,
    "prefix": workloads.prefix,
    "ranges": workloads.all_range,
    "marginals": _marginals,
    "parity": lambda size: workloads.parity(size.bit_length() - 1),
}


def strategies() -> dict[str, Stated]:
    """Return local strategies by name: eight user types at every ε, four and sixteen at 1; average and worst user."""
    found: dict[str, Stated] = {}
    for name, build in WORKLOADS.items():
        for size in (4, 8, 16):
            for epsilon in EPSILONS if size == 8 else (1.0,):
                for criterion in CRITERIA:
                    label = f"local-{name}-{size}-{epsilon:g}-{criterion}"
                    found[label] = partial(_strategy, build, size, epsilon, criterion)
        found[f"local-{name}-8-1-prior"] = partial(_with_prior, build, 8)
    return found


def projections() -> dict[str, Stated]:
    """Return projections of random matrices by name, without floors and with."""
    return {
        f"projection-{outputs}x{types}-{epsilon:g}{word}": partial(
            _projection, outputs, types, epsilon, floors
        )
        for outputs, types in ((6, 4), (16, 8), (32, 16))
        for epsilon in (0.5, 2.0)
        for word, floors in (("", False), ("-floors", True))
    }


def estimates() -> dict[str, Stated]:
    """Return estimates by name: noisy answers about a few people, with their number known or not."""
    found: dict[str, Stated] = {}
    for name, build in WORKLOADS.items():
        for word, known in (("", False), ("-total", True)):
            found[f"estimate-{name}-16{word}"] = partial(_estimate, build, known)
    return found


def _strategy(build: Callable[[int], Workload], size: int, epsilon: float, criterion: str) -> LocalStrategy:
    return LocalStrategy(build(size), epsilon, criterion)


def _with_prior(build: Callable[[int], Workload], size: int) -> LocalStrategy:
    """State a strategy for types whose shares fall from 8/36 to 1/36."""
    shares = np.arange(size, 0, -1.0)
    return LocalStrategy(build(size), 1.0, "average", shares / shares.sum())


def _projection(outputs: int, types: int, epsilon: float, floors: bool) -> LocalProjection:
    matrix = np.random.default_rng(SEED).random((outputs, types))
    return LocalProjection(matrix, epsilon, np.full(outputs, 0.8 / outputs) if floors else None)


def _estimate(build: Callable[[int], Workload], known: bool) -> NonnegativeEstimate:
    """State an estimate of counts, few of them positive, from answers of standard deviation 5."""
    rng, workload = np.random.default_rng(SEED), build(16)
    counts = np.maximum(rng.normal(0, 10, 16), 0).round()
    answers = workload.dense() @ counts + rng.normal(0, 5, len(workload))
    return NonnegativeEstimate(workload, answers, float(counts.sum()) if known else None)
