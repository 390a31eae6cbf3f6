"""Noise on a matrix, fitness for use and total variance side by side: workloads of the papers, shapes, neighbours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dualmech import workloads
from dualmech.crosscheck.papers.fitness import instances
from dualmech.neighbours import household
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.validate import Array
from dualmech.workloads.base import Workload

SEED = 0

Build = Callable[[], tuple[Workload, Any]]
Stated = Callable[[], Any]


def problems() -> dict[str, Stated]:
    """Return problems by name, every workload once for each family."""
    asked: dict[str, Build] = {}
    for cells in (2, 4, 8, 16, 32, 64):
        asked[f"prefix-{cells}"] = partial(even, workloads.prefix, cells)
    for cells in (4, 8, 16):
        asked[f"ranges-{cells}"] = partial(even, workloads.all_range, cells)
        asked[f"identity-total-{cells}"] = partial(even, workloads.identity_total, cells)
        asked[f"circle-{cells}"] = partial(even, workloads.circular_ranges, cells)
    for cells in (2, 4):
        asked[f"marginals-{cells}"] = partial(even, workloads.marginals, (cells,) * 3, ways=(1, 2))
    for table in instances.RANDOM_TABLES:
        asked[f"table-{table}-64"] = instances.readings(table, 64)[0].build
    for name in _shapes():
        asked[name] = partial(_shaped, name)
    found: dict[str, Stated] = {}
    for name, build in asked.items():
        found |= both(name, build)
    for name, moves in (
        ("replaced", "replace"),
        ("three-records", "add-remove:3"),
        ("household", household(8, 2)),
    ):
        found |= both(f"prefix-8-{name}", asked["prefix-8"], neighbours=moves)
    return found


def both(name: str, build: Build, **options: Any) -> dict[str, Stated]:
    """Return fitness for use and total variance of a workload with numbers: targets, and one over them as weights."""
    return {
        f"fitness-{name}": partial(_fitness, build, **options),
        f"variance-{name}": partial(_variance, build, **options),
    }


def even(build: Callable[..., Workload], *sizes: Any, **options: Any) -> tuple[Workload, float]:
    """Return a workload whose queries count alike."""
    return build(*sizes, **options), 1.0


def _fitness(build: Build, **options: Any) -> FitnessForUse:
    workload, targets = build()
    return FitnessForUse(workload, targets, **{"geometry": "dense"} | options)


def _variance(build: Build, **options: Any) -> TotalVariance:
    workload, targets = build()
    return TotalVariance(workload, 1 / np.asarray(targets, dtype=float), **{"geometry": "dense"} | options)


def _shapes() -> dict[str, Array]:
    """Return matrices of the shapes and scales that solvers stumble on, from a seed."""
    rng = np.random.default_rng(SEED)
    square, few = rng.standard_normal((8, 8)), rng.standard_normal((4, 8))
    return {
        "rank-deficient": square[:, :3] @ square[:3],
        "tall": rng.standard_normal((40, 5)),
        "wide": rng.standard_normal((5, 40)),
        "one-row": few[:1],
        "one-column": square[:, :1],
        "rows-twice": np.repeat(few, 2, axis=0),
        "columns-twice": np.repeat(few, 2, axis=1),
        "large": 1e6 * square,
        "small": 1e-6 * square,
        "rows-of-all-sizes": square * np.logspace(-6, 6, 8)[:, None],
        "columns-of-all-sizes": square * np.logspace(-6, 6, 8),
        "nearly-dependent": np.vstack([few, few[:1] + 1e-7 * square[:1]]),
        "zeros": np.pad(few, ((0, 2), (0, 2))),
    }


def _shaped(name: str) -> tuple[Workload, Array]:
    matrix = _shapes()[name]
    return Workload(matrix), np.linspace(1, 10, len(matrix))
