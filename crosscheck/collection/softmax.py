"""Fitness with soft maxima: workloads of the fitness paper at several sharpnesses, with and without total variance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dualmech import workloads
from dualmech.crosscheck.collection.matrices import Stated
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.workloads.base import Workload

SHARPNESSES = (1.0, 10.0, 100.0)
TOTAL_WEIGHT = 0.1

ASKED: dict[str, Callable[[], Workload]] = {
    "prefix-8": partial(workloads.prefix, 8),
    "ranges-8": partial(workloads.all_range, 8),
    "identity-total-8": partial(workloads.identity_total, 8),
    "marginals-2": partial(workloads.marginals, (2, 2, 2), ways=(1, 2)),
}


def problems() -> dict[str, Stated]:
    """Return problems by name."""
    found: dict[str, Stated] = {}
    for name, build in ASKED.items():
        for sharpness in SHARPNESSES:
            found[f"softmax-{name}-{sharpness:g}"] = partial(_state, build, sharpness)
    for cells in (2, 4, 16, 32):
        found[f"softmax-prefix-{cells}-10"] = partial(_state, partial(workloads.prefix, cells), 10.0)
    eight = ASKED["prefix-8"]
    found["softmax-prefix-8-10-total"] = partial(_state, eight, 10.0, TOTAL_WEIGHT)
    found["softmax-prefix-8-10-replaced"] = partial(_state, eight, 10.0, neighbours="replace")
    return found


def _state(
    build: Callable[[], Workload], sharpness: float, total_weight: float = 0.0, neighbours: Any = None
) -> SoftmaxFitness:
    """State a problem with targets from 1 to 10 and both maxima alike in sharpness."""
    workload = build()
    targets = np.linspace(1, 10, len(workload))
    return SoftmaxFitness(workload, targets, sharpness, sharpness, total_weight, neighbours=neighbours)
