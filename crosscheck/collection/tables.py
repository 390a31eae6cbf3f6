"""Noise on tables: blocks, split noise and products, on domains of up to 10^60 cells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dualmech import workloads
from dualmech.crosscheck.collection.matrices import Stated
from dualmech.crosscheck.papers.scale import instances
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.workloads.base import Workload

SHIFTS = {"hour": 24, "ward": 5, "sex": 2}


def problems() -> dict[str, Stated]:
    """Return problems by name, every workload once for each family but where noise of one is not optimal."""
    found: dict[str, Stated] = {}
    for name, (build, geometry) in _asked().items():
        found[f"fitness-{name}"] = partial(_fitness, build, geometry)
        if geometry != "split":
            found[f"variance-{name}"] = partial(_variance, build, geometry)
    drawn = [case for case in instances.small(quick=True) if case.random]
    found |= {f"fitness-tables-{case.label}-drawn": case.problem for case in drawn}
    found["fitness-tables-sixty-drawn"] = instances.sixty(quick=True)[-1].problem
    build, _ = _asked()["tables-sixty"]
    found["fitness-tables-sixty-three-records"] = partial(_fitness, build, "blocks", "add-remove:3")
    found["privacy-tables-sixty"] = partial(_privacy, build)
    return found


def _asked() -> dict[str, tuple[Callable[[], Workload], str]]:
    marginals, kron, prefix = workloads.marginals, workloads.kron, workloads.prefix
    domains: dict[str, Any] = {"16x16x16": (16, 16, 16), "sixty": instances.SIXTY, "adult": instances.ADULT}
    domains |= {"cps": instances.published("CPS"), "loans": instances.published("Loans")}
    domains |= {"census": instances.CENSUS}
    found: dict[str, tuple[Callable[[], Workload], str]] = {
        f"tables-{name}": (partial(marginals, domain, ways=(1, 2)), "blocks")
        for name, domain in domains.items()
    }
    found |= {
        "tables-shifts": (_shifts, "blocks"),
        "tables-circle-30": (partial(workloads.circular_ranges, 30), "blocks"),
        "split-12x9": (partial(_both_in_order, 12, 9), "split"),
        "split-24x16": (partial(_both_in_order, 24, 16), "split"),
        "product-prefix-32x16": (lambda: kron(prefix(32), prefix(16)), "product"),
        "product-prefix-8-marginals-4x4": (lambda: kron(prefix(8), marginals((4, 4), ways=1)), "product"),
        "product-ranges-8-prefix-8-total-4": (
            lambda: kron(workloads.all_range(8), prefix(8), workloads.identity_total(4)),
            "product",
        ),
    }
    return found


def _shifts() -> Workload:
    tables: Any = {"by ward": {"hour": workloads.prefix(24), "ward": None}, "people": ["ward", "sex"]}
    return workloads.union(SHIFTS, tables)


def _both_in_order(first: int, second: int) -> Workload:
    queries = {"a": workloads.prefix(first), "b": workloads.prefix(second)}
    return workloads.query_tables({"a": first, "b": second}, queries, ways=(1, 2))


def _fitness(build: Callable[[], Workload], geometry: str, neighbours: Any = None) -> FitnessForUse:
    return FitnessForUse(build(), 1.0, geometry=geometry, neighbours=neighbours)


def _variance(build: Callable[[], Workload], geometry: str) -> TotalVariance:
    return TotalVariance(build(), 1.0, geometry=geometry)


def _privacy(build: Callable[[], Workload]) -> PrivacyFirst:
    return PrivacyFirst(build(), 1.0, 0.5, geometry="blocks")
