"""More noise on a matrix: random workloads of other seeds, sums with decay, PL-94, privacy first, neighbours."""

from __future__ import annotations

from functools import partial

from dualmech import workloads
from dualmech.crosscheck.collection.matrices import Build, Stated, both, even
from dualmech.crosscheck.papers.fitness import instances
from dualmech.neighbours import household
from dualmech.problems.fitness import PrivacyFirst

CELLS, SEEDS = 32, (1, 2)  # of the random workloads
COST = 0.5  # squared, of privacy first


def problems() -> dict[str, Stated]:
    """Return problems by name."""
    found: dict[str, Stated] = {}
    for table in instances.RANDOM_TABLES:
        for seed in SEEDS:
            drawn = instances.random_instance(table, CELLS, seed)
            found |= both(f"table-{table}-{CELLS}-seed-{seed}", drawn.build)
    for cells in (16, 64):
        for decay in (0.5, 0.9, 0.99):
            found |= both(f"decayed-{cells}-{decay}", partial(even, workloads.decayed_sums, cells, decay))
    found |= both("parities-5", partial(even, workloads.parity, 5))
    asked: dict[str, Build] = {
        "ranges-8": partial(even, workloads.all_range, 8),
        "identity-total-8": partial(even, workloads.identity_total, 8),
    }
    for name, build in asked.items():
        for word, moves in (("replaced", "replace"), ("household", household(8, 3))):
            found |= both(f"{name}-{word}", build, neighbours=moves)
    asked |= {
        "prefix-8": partial(even, workloads.prefix, 8),
        "prefix-32": partial(even, workloads.prefix, 32),
        "marginals-4": partial(even, workloads.marginals, (4, 4, 4), ways=(1, 2)),
        "table-6-32": instances.random_instance(6, CELLS, 0).build,
    }
    return found | {f"privacy-{name}": partial(_privacy, build) for name, build in asked.items()}


def _privacy(build: Build) -> PrivacyFirst:
    workload, targets = build()
    return PrivacyFirst(workload, targets, COST, geometry="dense")
