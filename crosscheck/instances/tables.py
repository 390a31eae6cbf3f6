"""Marginal tables at scale, as problems: domains of published experiments and of the census, up to 10^80 cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dualmech import workloads
from dualmech.problems.fitness import FitnessForUse
from dualmech.workloads.domain import Domain

ADULT = Domain(
    {
        **{"age": 75, "workclass": 9, "fnlwgt": 100, "education-num": 16, "marital-status": 7},
        **{"occupation": 15, "relationship": 6, "race": 5, "sex": 2, "capital-gain": 100},
        **{"capital-loss": 100, "hours-per-week": 100, "native-country": 42, "income>50K": 2},
    }
)
"""The Adult table's fourteen attributes, ages from 16, amounts and hours in a hundred values each."""

PUBLISHED = {
    "CPS": (50, 100, 7, 4, 2),
    "Adult": (85, 9, 100, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42, 2),
    "Loans": (101, 101, 101, 101, 3, 8, 36, 6, 51, 4, 5, 15),
}
"""Sizes of the data sets of ResidualPlanner (NeurIPS 2023), as the code published with it has them."""

CENSUS = Domain({"relationship": 42, "sex": 2, "age": 116, "hispanic": 2, "race": 63})
"""A person in the 2020 census's demographic and housing characteristics: relationship or kind of group quarters in 42
values, 63 combinations of six races, 1,227,744 cells."""

SIXTY = Domain([(f"a{axis}", 10) for axis in range(60)])
"""The fast layer's standard large instance: 10^60 cells."""

SEED = 0  # of random targets

INSTANCES_SMALL = ((2, 3), (6, 4), (4, 3, 2), (4, 4, 4), (2, 3, 2, 4), (8, 8, 8), (5, 4, 3, 6))
"""Domains that the dense solver can follow in a second."""

LARGEST_SMALL = (16, 16, 16)  # one that takes it several

GROWTH = (2, 5, 10, 20, 30, 40, 50, 60, 70, 80)
"""Numbers of attributes of ten values, so that these are also the digits of the number of cells."""


@dataclass(frozen=True, slots=True)
class MarginalsCase:
    label: str  # Their description
    domain: Domain  # The attributes
    ways: tuple[int, ...]  # All tables of that many attributes
    targets: Any = 1.0  # As in `FitnessForUse`; ignored if `random`
    random: bool = False  # Whether every table's target is drawn from 1 to 100

    def problem(self) -> FitnessForUse:
        tables = workloads.marginals(self.domain, ways=self.ways)
        if not self.random:
            return FitnessForUse(tables, self.targets)
        target_values = np.random.default_rng(SEED).integers(1, 101, len(tables.axes))
        return FitnessForUse(tables, target_values.astype(np.float64))


def small(quick: bool) -> list[MarginalsCase]:
    """Return the cases for the dense solver: all one- and two-way tables, their targets equal and then not."""
    shapes = INSTANCES_SMALL if quick else (*INSTANCES_SMALL, LARGEST_SMALL)
    return [
        MarginalsCase("x".join(map(str, shape)), _domain(shape), (1, 2), random=random)
        for shape in shapes
        for random in (False, True)
    ]


def adult(quick: bool) -> list[MarginalsCase]:
    """Return Adult's tables of up to one, two, three and, if there is time, four attributes."""
    return [
        MarginalsCase(f"up to {max_ways}-way", ADULT, tuple(range(1, max_ways + 1)))
        for max_ways in (1, 2, 3, 4)[: 3 + (not quick)]
    ]


def sixty(quick: bool) -> list[MarginalsCase]:
    """Return the one- and two-way tables of sixty attributes with three kinds of targets."""
    return [
        MarginalsCase("targets 1", SIXTY, (1, 2)),
        MarginalsCase("1 for one-way, 7 for two-way", SIXTY, (1, 2), {1: 1.0, 2: 7.0}),
        MarginalsCase("random from 1 to 100", SIXTY, (1, 2), random=True),
    ]


def domains(quick: bool) -> list[MarginalsCase]:
    """Return the published domains and the census, tables of up to three attributes; and all 32 census tables."""
    domains_by_name = {name: published(name) for name in PUBLISHED} | {"census": CENSUS}
    cases = [MarginalsCase(f"{name}, up to 3-way", domain, (0, 1, 2, 3)) for name, domain in domains_by_name.items()]
    return [*cases, MarginalsCase("census, all tables", CENSUS, tuple(range(6)))]


def published(name: str) -> Domain:
    """Return the attributes of a data set of `PUBLISHED`, called ``a0`` and so on."""
    return _domain(PUBLISHED[name])


def growth(quick: bool) -> list[MarginalsCase]:
    """Return one- and two-way tables of increasing numbers of attributes."""
    counts = GROWTH[:4] if quick else GROWTH
    return [MarginalsCase(f"{count} attributes", _domain((10,) * count), (1, 2)) for count in counts]


def _domain(sizes: tuple[int, ...]) -> Domain:
    return Domain([(f"a{axis}", size) for axis, size in enumerate(sizes)])
