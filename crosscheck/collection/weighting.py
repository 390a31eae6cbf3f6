"""Query weighting: eigen-queries, wavelets, Fourier bases, single cells, and the queries themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dualmech import workloads
from dualmech.crosscheck.collection.matrices import Stated
from dualmech.crosscheck.papers.eigen.designs import DESIGNS
from dualmech.crosscheck.papers.eigen.instances import Shape
from dualmech.problems.weighting import QueryWeighting
from dualmech.workloads.base import Workload

ASKED: dict[str, tuple[Callable[[], Workload], Shape]] = {
    "prefix-8": (partial(workloads.prefix, 8), (8,)),
    "ranges-16": (partial(workloads.all_range, 16), (16,)),
    "marginals-2x4x2": (partial(workloads.marginals, (2, 4, 2), ways=(1, 2)), (2, 4, 2)),
}


def problems() -> dict[str, Stated]:
    """Return problems by name, most of them for noise that is private approximately and for such as is purely."""
    found: dict[str, Stated] = {}
    for name, (build, shape) in ASKED.items():
        for design in DESIGNS:
            for privacy in ("approximate", "pure"):
                found[f"weighting-{name}-{design.lower()}-{privacy}"] = partial(
                    _state, build, shape, design, privacy
                )
    for cells in (32, 64):
        ranges = partial(workloads.prefix, cells)
        found[f"weighting-prefix-{cells}-eigen-queries"] = partial(_state, ranges, (cells,), "eigen-queries")
    build, shape = ASKED["prefix-8"]
    found["weighting-prefix-8-own"] = lambda: QueryWeighting(build(), build())
    found["weighting-prefix-8-eigen-queries-replaced"] = partial(
        _state, build, shape, "eigen-queries", neighbours="replace"
    )
    return found


def _state(
    build: Callable[[], Workload],
    shape: Shape,
    design: str,
    privacy: str = "approximate",
    neighbours: str | None = None,
) -> QueryWeighting:
    workload = build()
    return QueryWeighting(workload, DESIGNS[design](workload, shape), privacy, neighbours)
