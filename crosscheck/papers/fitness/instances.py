"""The workloads and targets behind FFU's Tables 4 to 11: as its text says, and as its published code draws them.

Five tables are of random workloads. The code published with the paper (its repository is
``cmla-psu/matrixqueries``) seeds NumPy's legacy generator with 0 before it draws, so those very instances can
be drawn again. They differ from the text in two points: the signs are fair, because the probability of 0.2 lands
in another argument of the function that draws them; and random targets are whole numbers from 1 to 10. That Table 5 was
drawn without any targets in between is an inference from its columns: the stored versions of the code draw some.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualmech import workloads
from dualmech.validate import Array
from dualmech.workloads.base import Workload

RANDOM_TABLES = (5, 6, 7, 8, 11)

LEAST_TARGET, LARGEST_TARGET = 1, 10


@dataclass(frozen=True, slots=True)
class FitnessInstance:
    """One reading of a row of a table: which workload and targets its numbers may be of."""

    label: str  # What sets it apart from other readings of the same row
    # Returns workload and targets; cheap to keep, called where it is needed
    build: Callable[[], tuple[Workload, Array | float]]


def readings(table: int, row: int) -> tuple[FitnessInstance, ...]:
    """Return the definite instances that a row of a table may be of, at least one."""
    if table == 4:
        return (FitnessInstance("", _pl94),)
    if table == 9:
        return (
            FitnessInstance("as the text", partial(_age_pyramid, adults=True, cells=False)),
            FitnessInstance("without 18+", partial(_age_pyramid, adults=False, cells=False)),
            FitnessInstance("without 18+, with every cell", partial(_age_pyramid, adults=False, cells=True)),
        )
    if table == 10:
        return (FitnessInstance("", partial(_marginals, row)),)
    inferred = ", no targets drawn (an inference)" if table == 5 else ""
    return (FitnessInstance(f"as the code, seed 0{inferred}", partial(_DRAWN[table], row)),)


def random_instance(table: int, row: int, seed: int) -> FitnessInstance:
    """Return a row's random instance as the text describes it, drawn with a seed."""
    return FitnessInstance(f"as the text, seed {seed}", partial(_from_text, table, row, seed))


def _from_text(table: int, cells: int, seed: int) -> tuple[Workload, Array | float]:
    rng = np.random.default_rng(seed)
    if table == 11:
        return workloads.related(cells, cells // 2, cells // 2, rng), 1.0
    build = workloads.random_range if table in (5, 6) else workloads.random_signs
    workload = build(cells, 2 * cells, rng)
    random_targets = table in (6, 8)
    return workload, rng.uniform(LEAST_TARGET, LARGEST_TARGET, 2 * cells) if random_targets else 1.0


def _pl94() -> tuple[Workload, float]:
    return workloads.pl94(), 1.0


def _marginals(values: int) -> tuple[Workload, float]:
    return workloads.marginals((values,) * 3, ways=(1, 2)), 1.0


def _age_pyramid(adults: bool, cells: bool) -> tuple[Workload, float]:
    pyramid = workloads.age_pyramid(adults=adults)
    if not cells:
        return pyramid, 1.0
    every = Workload(workloads.identity(pyramid.shape[1]).matrix, domain=pyramid.domain)
    return workloads.stack(pyramid, every), 1.0


def _legacy() -> np.random.RandomState:
    """Return NumPy's legacy generator at seed 0; its stream is frozen, so that old draws can be repeated."""
    return np.random.RandomState(0)


def _drawn_ranges(cells: int, targets: bool) -> tuple[Workload, Array | float]:
    rng, ends, drawn = _legacy(), [], []
    for _ in range(2 * cells):
        ends.append([rng.randint(cells), rng.randint(cells)])
        if targets:
            drawn.append(rng.randint(LEAST_TARGET, LARGEST_TARGET + 1))
    first, last = np.sort(ends, axis=1).T[:, :, None]
    cell = np.arange(cells)
    workload = Workload((first <= cell) & (cell <= last))
    return workload, np.array(drawn, dtype=np.float64) if targets else 1.0


def _drawn_signs(cells: int, targets: bool) -> tuple[Workload, Array | float]:
    rng = _legacy()
    signs = 2.0 * rng.randint(2, size=(2 * cells, cells)) - 1
    drawn = rng.randint(LEAST_TARGET, LARGEST_TARGET + 1, 2 * cells)
    return Workload(signs), drawn.astype(np.float64) if targets else 1.0


def _drawn_related(cells: int) -> tuple[Workload, float]:
    rng, half = _legacy(), cells // 2
    right = rng.normal(size=(half, cells))
    return Workload(rng.normal(size=(half, half)) @ right), 1.0


_DRAWN: dict[int, Callable[[int], tuple[Workload, Array | float]]] = {
    5: partial(_drawn_ranges, targets=False),
    6: partial(_drawn_ranges, targets=True),
    7: partial(_drawn_signs, targets=False),
    8: partial(_drawn_signs, targets=True),
    11: _drawn_related,
}
