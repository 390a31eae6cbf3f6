"""Cases of every family on every geometry that it has, small enough to be solved many times."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import ConformanceCase
from family_files import family_files

import dualmech as dm

SMALL = dm.workloads.prefix(4)
TABLES = dm.workloads.marginals({"age": 4, "sex": 2}, ways=(1, 2))
WISH = {("age",): 0.5, ("sex",): 30.0, 2: 30.0}
ONE_WAY = dm.workloads.marginals({"age": 4, "sex": 2}, ways=1)
MONTHS = dm.workloads.marginals({"month": 4, "age": 3}, ways=(1, 2))
UNION = dm.workloads.union({"age": 4, "sex": 2}, {"ages": {"age": dm.workloads.prefix(4)}, "cells": ["age", "sex"]})
CIRCLE = dm.workloads.circular_ranges(5)
PRODUCT = dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.marginals([2, 3], ways=1))
QUERIES = dm.workloads.query_tables({"age": 4, "sex": 2}, {"age": dm.workloads.prefix(4)}, ways=(1, 2))

STANDING = {
    "dense": (SMALL, "dense", None, 1e-4),
    "dense, replaced": (SMALL, "dense", "replace", 1e-4),
    "dense, deficient": (dm.workloads.related(4, 5, rank=2, rng=2), "dense", None, 1e-4),
    "marginals": (TABLES, "blocks", None, 1e-4),
    "union": (UNION, "blocks", None, 1e-4),
    "union, replaced": (UNION, "blocks", "replace", 1e-4),
    "marginals, persons": (MONTHS, "blocks", "contributions:month:2:3", 1e-4),
    "union, replaced within": (UNION, "blocks", "replace within sex", 1e-4),
    "union, persons": (UNION, "blocks", "contributions:age:2:2", 1e-4),
    "circle": (CIRCLE, "blocks", None, 1e-4),
    "product": (PRODUCT, "product", None, 1e-4),
    "stream": (dm.workloads.decayed_sums(5, 0.9), "stream", None, 1e-4),
    "split": (QUERIES, "split", None, 0.1),
    "epochs": (dm.workloads.prefix(5), "epochs", "participation:2:3", 1e-4),
    "epochs, signs": (dm.workloads.prefix(5), "epochs", "participation:2:3:signs", 1e-4),
    "epochs, at least": (dm.workloads.prefix(5), "epochs", "participation:2:3:at-least", 0.2),
    "epochs, deficient": (dm.workloads.related(6, 5, rank=3, rng=2), "epochs", "participation:3:2", 1e-4),
    "ranges": (dm.workloads.all_range(4), "stream", None, 1e-4),
}
"""Workload, geometry, neighbours and gap of each structure."""


def on_geometries() -> list[ConformanceCase]:
    found = []
    for name, (workload, geometry, neighbours, tol) in STANDING.items():
        for label, state in {
            "fitness": lambda own, target, kind: dm.FitnessForUse(own, target, **kind),
            "privacy first": lambda own, target, kind: dm.PrivacyFirst(own, target, 0.5, **kind),
            "variance": lambda own, target, kind: dm.TotalVariance(own, target, **kind),
        }.items():
            if name == "ranges" and label != "variance":
                continue  # all ranges are a stream for total variance alone
            options = {"geometry": geometry, "neighbours": neighbours}

            def make(target: float = 1.0, own=workload, kind=options, state=state) -> object:  # type: ignore[no-untyped-def]
                return state(own, target, kind)

            found.append(ConformanceCase(f"{label}, {name}", make, lambda make=make: make(2.0), tol))  # type: ignore[misc]
    return found


def mechanisms(scale: float = 1.0) -> list[dm.LinearGaussianMechanism]:
    rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], scale * np.eye(2))
    return [rows, dm.LinearGaussianMechanism(np.eye(4), np.eye(4))]


def tilted() -> dm.LinearGaussianMechanism:
    """Both rows of `mechanisms`, whose noises are correlated."""
    return dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], [[1.5, 0.9], [0.9, 2.5]])


def of_tables(*workloads: dm.Workload, scale: float = 1.0) -> list[dm.BlockMechanism]:
    """Plain noise on the queries of some tables, that of the first as a case asks."""
    return [dm.BlockMechanism.of_tables(each, scale if place == 0 else 1.0) for place, each in enumerate(workloads)]


def released(variance: float = 0.8) -> dm.LinearGaussianMechanism:
    return dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[variance]])


CASES = [
    *on_geometries(),
    ConformanceCase(
        "weighting",
        lambda: dm.QueryWeighting(SMALL, dm.designs.eigen_queries(SMALL)),
        lambda: dm.QueryWeighting(SMALL, np.eye(4)),
    ),
    ConformanceCase(
        "weighting, sines",
        lambda: dm.QueryWeighting(dm.workloads.all_range(4), dm.workloads.sines(4)),
        lambda: dm.QueryWeighting(dm.workloads.all_range(4), np.eye(4)),
    ),
    ConformanceCase(
        "softmax",
        lambda: dm.SoftmaxFitness(SMALL, 1.0, t1=5.0, t2=5.0),
        lambda: dm.SoftmaxFitness(SMALL, 1.0, t1=5.0, t2=6.0),
    ),
    ConformanceCase(
        "common", lambda: dm.CommonMechanism(mechanisms()), lambda: dm.CommonMechanism(mechanisms(scale=3.0))
    ),
    ConformanceCase(
        "common, volume",
        lambda: dm.CommonMechanism([*mechanisms(), tilted()], criterion="volume"),
        lambda: dm.CommonMechanism([*mechanisms(), tilted()]),
    ),
    ConformanceCase(
        "common, volume of tables",
        lambda: dm.CommonMechanism(of_tables(UNION, TABLES), criterion="volume"),
        lambda: dm.CommonMechanism(of_tables(UNION, TABLES, scale=3.0), criterion="volume"),
    ),
    ConformanceCase(
        "common, tables",
        lambda: dm.CommonMechanism(of_tables(UNION, TABLES)),
        lambda: dm.CommonMechanism(of_tables(UNION, TABLES, scale=3.0)),
    ),
    ConformanceCase(
        "common, circle",
        lambda: dm.CommonMechanism(of_tables(CIRCLE, CIRCLE)),
        lambda: dm.CommonMechanism(of_tables(CIRCLE, CIRCLE, scale=3.0)),
    ),
    ConformanceCase(
        "reuse", lambda: dm.ReuseFitness(SMALL, 1.0, released()), lambda: dm.ReuseFitness(SMALL, 1.0, released(4.0))
    ),
    ConformanceCase(
        "reuse, marginals",
        lambda: dm.ReuseFitness(TABLES, 1.0, of_tables(ONE_WAY)[0]),
        lambda: dm.ReuseFitness(TABLES, 1.0, of_tables(ONE_WAY, scale=3.0)[0]),
    ),
    ConformanceCase(
        "reuse, union",
        lambda: dm.ReuseFitness(TABLES, WISH, of_tables(UNION, scale=2.0)[0]),
        lambda: dm.ReuseFitness(TABLES, WISH, of_tables(UNION, scale=3.0)[0]),
    ),
    ConformanceCase("local", lambda: dm.LocalStrategy(SMALL, 1.0), lambda: dm.LocalStrategy(SMALL, 1.0, "worst")),
    ConformanceCase(
        "local, worst", lambda: dm.LocalStrategy(SMALL, 1.0, "worst"), lambda: dm.LocalStrategy(SMALL, 2.0, "worst")
    ),
    ConformanceCase(
        "projection",
        lambda: dm.LocalProjection(np.array([[0.9, 0.1], [0.3, 0.5], [0.1, 0.2]]), 1.0),
        lambda: dm.LocalProjection(np.array([[0.9, 0.1], [0.3, 0.5], [0.1, 0.2]]), 2.0),
    ),
    ConformanceCase(
        "estimate",
        lambda: dm.NonnegativeEstimate(SMALL, [3.0, 2.0, 5.0, 4.0]),
        lambda: dm.NonnegativeEstimate(SMALL, [3.0, 2.0, 5.0, 4.5]),
    ),
    *(case for module in family_files().values() for case in module.CASES),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Hand every case to a test that asks for one."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[case.label for case in CASES], scope="session")


@pytest.fixture(scope="session")
def cases() -> list[ConformanceCase]:
    return CASES
