"""Independent rows whose columns differ by 19 orders of magnitude: proven values, or errors of the library."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from elimination import fractions, inverse, times, transposed

import dualmech as dm
from dualmech import fast, linalg
from dualmech.validate import Array


@functools.cache
def singular_triangles(count: int) -> list[Array]:
    """Return square matrices that are invertible, whose triangles have a 0 on the diagonal by rounding."""
    rng, matrices = np.random.default_rng(0), list[Array]()
    while len(matrices) < count:
        size = int(rng.integers(3, 5))
        rows = rng.integers(-3, 4, (size, size)) * 10.0 ** rng.choice([0, 0, 4, 8, 10, 12, 19], size)
        if (
            np.linalg.matrix_rank(rows / np.maximum(np.abs(rows).max(axis=0), 1.0)) < size
            or linalg.row_rank(rows) < size
        ):
            continue
        if not np.all(np.diagonal(np.linalg.qr(rows.T, mode="r"))):
            matrices.append(rows)
    return matrices


METHODS: dict[str, Callable[[Any, dm.Workload], object]] = {
    "variances": lambda mechanism, rows: mechanism.variances(rows),
    "covariance": lambda mechanism, rows: mechanism.covariance(rows),
    "rebase": lambda mechanism, rows: mechanism.rebase(rows.dense()),
    "represent": lambda mechanism, rows: mechanism.represent(rows),
    "simulate": lambda mechanism, rows: mechanism.simulate(np.ones(rows.shape[1]), 0, rows),
    "as_targets": lambda mechanism, rows: mechanism.as_targets(rows),
    "standardize": lambda mechanism, rows: mechanism.standardize(),
    "compose": lambda mechanism, rows: mechanism.compose(mechanism),
    "is_answerable_from": lambda mechanism, rows: cells(rows).is_answerable_from(mechanism),
    "is_equivalent_to": lambda mechanism, rows: mechanism.is_equivalent_to(cells(rows)),
    "residual": lambda mechanism, rows: dm.residual(mechanism, cells(rows)),
    "posterior": lambda mechanism, rows: dm.uncertainty.posterior_variances(rows, mechanism),
    "posterior with a prior": lambda mechanism, rows: dm.uncertainty.posterior_variances(rows, mechanism, 1.0),
    "common": lambda mechanism, rows: fast.solve(dm.CommonMechanism([mechanism, cells(rows)])),
    "basis": lambda mechanism, rows: dm.FitnessForUse(rows, 1.0, basis=rows.dense()),
}


def cells(rows: dm.Workload) -> dm.LinearGaussianMechanism:
    return dm.LinearGaussianMechanism(np.eye(rows.shape[1]), np.eye(rows.shape[1]))


@pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
@pytest.mark.parametrize("method", METHODS)
def test_errors_are_those_of_the_library(method: str) -> None:
    for rows in singular_triangles(12):
        mechanism = dm.LinearGaussianMechanism(rows, np.eye(len(rows)))
        with contextlib.suppress(dm.errors.DualmechError):
            METHODS[method](mechanism, dm.Workload(rows))


def test_variances_are_proven_or_refused() -> None:
    known = 0
    for rows in singular_triangles(12):
        mechanism = dm.LinearGaussianMechanism(rows, np.eye(len(rows)))
        exact = inverse(fractions(rows))
        true = [row[place] for place, row in enumerate(times(exact, transposed(exact)))]
        with contextlib.suppress(dm.errors.InvalidInputError):
            for value, variance in zip(mechanism.variances(dm.workloads.identity(len(rows))), true, strict=True):
                assert abs(Fraction(float(value)) - variance) <= variance / 10**6
                known += 1
    assert known >= 12


def test_a_precise_answer_and_a_vague_prior() -> None:
    """The Gram matrix of precise queries loses the prior to rounding, and is no longer positive definite."""
    mechanism = dm.LinearGaussianMechanism([[1e12, -2e10]], [[1.0]])
    variances = dm.uncertainty.posterior_variances(dm.Workload([[1, 0], [0, 1], [1e12, -2e10]]), mechanism, 1.0)
    # With s = 1 + 1e24 + 4e20, the posterior covariance is I - b b' / s.
    whole = 1 + 10**24 + 4 * 10**20
    assert variances == pytest.approx([(1 + 4 * 10**20) / whole, (1 + 10**24) / whole, 1 - 1 / whole], rel=1e-9)
