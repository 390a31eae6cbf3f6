"""Tables of one data set from noisy ones: seconds and proven gap of fits on domains that nobody could write out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import fast, workloads
from dualmech.crosscheck.benchmarks.layers import load
from dualmech.crosscheck.papers.report import table
from dualmech.crosscheck.papers.scale import instances
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.crosscheck.tables import TextTable
from dualmech.mechanisms import records
from dualmech.problems.fitness import FitnessForUse
from dualmech.publishing.fitting.released import layouts_of
from dualmech.publishing.release import release
from dualmech.workloads.domain import Domain, count_text
from dualmech.workloads.unions import UnionWorkload

TARGET = 100.0  # variance of every answer
PEOPLE, TOLERANCE = 48_842, 1e-3

HEADINGS = ("tables", "queries", "cells", "of cliques", "seconds", "gap", "seconds, whole", "gap, whole")

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FittedCase:
    """Tables that are asked, of records that are drawn anew at each run, as noise is."""

    name: str
    workload: Callable[[], UnionWorkload]


def _neighbours(domain: Domain) -> UnionWorkload:
    pairs = itertools.pairwise(domain.names)
    return workloads.union(domain, {f"{one} x {two}": [one, two] for one, two in pairs})


def _eight() -> UnionWorkload:
    left_out = ("fnlwgt", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income>50K")
    domain = Domain({name: size for name, size in instances.ADULT.sizes if name not in left_out})
    sums = workloads.union(domain, {"ages": {"age": workloads.prefix(dict(domain.sizes)["age"])}})
    tables = {each.name: each for each in (*_neighbours(domain).tables, *sums.tables)}
    return UnionWorkload(domain, tables.values())


def _four() -> UnionWorkload:
    domain = Domain({"age": 75, "race": 5, "sex": 2, "income": 2})
    sums = {"age": workloads.prefix(75)}
    return workloads.union(
        domain, {"ages": sums, "ages by sex": sums | {"sex": None}, "others": ["race", "sex", "income"]}
    )


def _fourteen() -> UnionWorkload:
    domain = Domain({name: min(size, 20) for name, size in instances.ADULT.sizes})
    pairs = itertools.combinations(domain.names, 2)
    return workloads.union(domain, {f"{one} x {two}": [one, two] for one, two in pairs})


CASES = (
    FittedCase("ages, and ages by sex, summed up; three others", _four),
    FittedCase("neighbours of eight Adult attributes, ages summed up", _eight),
    FittedCase(
        "pairs along sixty attributes of ten values",
        lambda: _neighbours(Domain({f"a{i}": 10 for i in range(60)})),
    ),
    FittedCase("all pairs of fourteen Adult attributes, at most twenty values each", _fourteen),
)


def measure() -> list[dict[str, Any]]:
    """Release and fit each case in this process, to fractions and to whole numbers."""
    return [_measured(case) for case in CASES]


def _measured(case: FittedCase) -> dict[str, Any]:
    workload = case.workload()
    assert workload.domain is not None
    with without_warnings():
        answer = fast.solve(FitnessForUse(workload, TARGET), tol=TOLERANCE)
    counts = records.count(_people(workload.domain), answer.mechanism.needed_tables)
    released = release(answer, counts)
    busy, begun = load(), time.perf_counter()
    fitted = released.fitted()
    fractions, begun = time.perf_counter() - begun, time.perf_counter()
    whole = released.fitted(integer=True)
    return {
        "name": case.name,
        "queries": workload.shape[0],
        "cells": count_text(workload.shape[1]),
        "clique cells": sum(part.layout.cells for part in layouts_of(workload)),
        "seconds": fractions,
        "seconds, whole": time.perf_counter() - begun,
        "gap": fitted.gap,
        "whole": whole.gap,
        "load": busy,
    }


def _people(domain: Domain) -> Codes:
    """Return records whose attributes depend on the one before, most of them among a few values."""
    generator, found = np.random.default_rng(0), []
    level = generator.random(PEOPLE)
    for size in domain.shape:
        level = np.where(generator.random(PEOPLE) < 0.6, level, generator.random(PEOPLE) ** 2)
        found.append((size * level).astype(np.int64))
    return np.stack(found, axis=1)


def lay_out(found: list[dict[str, Any]]) -> TextTable:
    """Return the table of what was measured."""
    rows = [
        (
            *(each["name"], str(each["queries"]), each["cells"], str(each["clique cells"])),
            *(
                f"{each['seconds']:.2g}",
                f"{each['gap']:.2g}",
                f"{each['seconds, whole']:.2g}",
                f"{each['whole']:.2g}",
            ),
        )
        for each in found
    ]
    busy = max(each["load"] for each in found)
    title = f"fits of noisy tables of {PEOPLE} records, one thread (load up to {busy:.1f})"
    return table(title, HEADINGS, rows, ("tables",))
