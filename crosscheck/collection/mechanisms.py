"""Mechanisms that are there: what several have in common, and what one that was released spares the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from dualmech import workloads
from dualmech.crosscheck.collection.matrices import Stated
from dualmech.crosscheck.papers.common import instances
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.problems.common import CommonMechanism
from dualmech.problems.reuse import ReuseFitness
from dualmech.workloads.base import Workload

CELLS, SHARED = 8, 4  # of random mechanisms, and the queries that all of them answer
SEEDS = (0, 1)


def commons() -> dict[str, Stated]:
    """Return common mechanisms by name: examples 3.8 and 3.12 of the paper, its data's choices, and random ones."""
    found: dict[str, Stated] = {"common-example-38": _maximal, "common-example-312": _two_marginals}
    for count in (2, 3, 4):
        for seed in SEEDS:
            found[f"common-random-{count}-seed-{seed}"] = partial(_random, count, seed)
    for name, choice in zip(("race-tables", "race-cells", "brazil"), instances.CHOICES.values(), strict=True):
        found[f"common-{name}"] = partial(_choice, choice)
    for first in range(3):  # a chain, each of whose mechanisms refines the one before
        found[f"common-ages-{first + 1}-and-finer"] = partial(_ages, first, None)
        found[f"common-ages-{first + 1}-and-{first + 2}"] = partial(_ages, first, first + 2)
    del found["common-ages-3-and-finer"]  # the same two
    return found


def reuses() -> dict[str, Stated]:
    """Return problems of reuse by name: a wish, and what was released, whole or in part."""
    wishes: dict[str, Callable[[], Workload]] = {
        "prefix-8": partial(workloads.prefix, 8),
        "ranges-8": partial(workloads.all_range, 8),
        "identity-total-8": partial(workloads.identity_total, 8),
    }
    released = {"cells": np.eye(8), "halves": np.kron(np.eye(2), np.ones(4)), "total": np.ones((1, 8))}
    found: dict[str, Stated] = {}
    for wish, build in wishes.items():
        for known, queries in released.items():
            found[f"reuse-{wish}-after-{known}"] = partial(_reuse, build, queries)
    found["reuse-prefix-16-after-quarters"] = partial(
        _reuse, partial(workloads.prefix, 16), np.kron(np.eye(4), np.ones(4))
    )
    return found


def _maximal() -> CommonMechanism:
    """State example 3.8."""
    first, second = np.ones((1, 3)), np.vstack([np.ones((1, 3)), np.eye(3)])
    return CommonMechanism([_noise(first, 1.0), _noise(second, 2.0)])


def _two_marginals() -> CommonMechanism:
    """State example 3.12."""
    ones, cells = np.ones((1, 3)), np.eye(3)
    return CommonMechanism([_noise(np.kron(cells, ones), 1.0), _noise(np.kron(ones, cells), 1.0)])


def _random(count: int, seed: int) -> CommonMechanism:
    """State what mechanisms of full noise covariances have in common, who answer some queries all and some alone."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((SHARED, CELLS))
    mechanisms = []
    for _ in range(count):
        queries = np.vstack([shared, rng.standard_normal((1, CELLS))])
        root = rng.standard_normal((len(queries), len(queries)))
        mechanisms.append(LinearGaussianMechanism(queries, root @ root.T))
    return CommonMechanism(mechanisms)


def _choice(choice: instances.Choice) -> CommonMechanism:
    return CommonMechanism(choice.mechanisms)


def _ages(first: int, end: int | None) -> CommonMechanism:
    return CommonMechanism(instances.census()[first:end])


def _reuse(build: Callable[[], Workload], queries: npt.ArrayLike) -> ReuseFitness:
    """State a wish for variances 1 after a release of variances 1/2."""
    return ReuseFitness(build(), np.ones(len(build())), _noise(queries, 0.5))


def _noise(queries: npt.ArrayLike, variance: float) -> LinearGaussianMechanism:
    rows = np.asarray(queries, dtype=float)
    return LinearGaussianMechanism(rows, variance * np.eye(len(rows)))
