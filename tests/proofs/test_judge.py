"""The judge in floating point, held against exact arithmetic on problems of all shapes and scales."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast

FEW, MANY = 200, 20_000


def workload(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a few queries on a few cells: whole, real, sparse, dependent or nearly so, of one size or of many."""
    queries, cells = rng.integers(1, 7, 2)
    matrix = rng.standard_normal((queries, cells))
    kind = rng.integers(6)
    if kind == 0:
        matrix = np.rint(2 * matrix)
    elif kind == 1:
        matrix = np.where(rng.random(matrix.shape) < 0.5, 0.0, matrix)
    elif kind == 2:
        matrix = np.vstack(
            [matrix, matrix[:1] + 10.0 ** rng.uniform(-12, -1) * rng.standard_normal((1, cells))]
        )
    elif kind == 3:
        matrix = np.hstack([matrix, matrix[:, :1], np.zeros((queries, 1))])
    elif kind == 4:
        matrix = np.vstack([matrix, matrix[:1]])
    if rng.random() < 0.4:
        matrix = matrix * 10.0 ** rng.uniform(-6, 6, (len(matrix), 1))
    if rng.random() < 0.4:
        matrix = matrix * 10.0 ** rng.uniform(-6, 6, (1, matrix.shape[1]))
    return matrix * 10.0 ** rng.uniform(-9, 9)


def neighbours(rng: np.random.Generator, cells: int) -> Any:
    """Return pairs of neighbours: a record added, replaced, several, or arbitrary differences of all sizes."""
    kind = rng.integers(5)
    if kind == 0 and cells > 1:
        return "replace"
    if kind == 1:
        return "add-remove:3"
    if kind == 2:
        pairs = int(rng.integers(1, 6))
        return rng.standard_normal((cells, pairs)) * 10.0 ** rng.uniform(-4, 4, (1, pairs))
    return None


def problem(rng: np.random.Generator) -> Any:
    """Return a problem of a family that has proofs; None where its data are refused."""
    matrix = workload(rng)
    numbers = 10.0 ** rng.uniform(-3, 3, len(matrix))
    try:
        asked, moves = dm.Workload(matrix), neighbours(rng, matrix.shape[1])
        family = rng.integers(3)
        if family == 0:
            return dm.FitnessForUse(asked, numbers, neighbours=moves, geometry="dense")
        if family == 1:
            return dm.PrivacyFirst(
                asked, numbers, 10.0 ** rng.uniform(-3, 3), neighbours=moves, geometry="dense"
            )
        return dm.TotalVariance(asked, numbers, neighbours=moves, geometry="dense")
    except dm.InvalidInputError:
        return None


def check(seed: int) -> bool:
    """Hold the judge's interval against the exact one; return whether there was anything to hold."""
    rng = np.random.default_rng(seed)
    asked = problem(rng)
    if asked is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = fast.solve(asked, tol=float(10.0 ** rng.uniform(-9, -1)))
        if rng.random() < 0.3:  # any weights prove something, and the judge must not prove more
            blurred = [
                np.asarray(each) * np.exp(rng.standard_normal(np.shape(each)))
                for each in vars_of(answer.dual)
            ]
            dual = type(answer.dual)(*blurred)
            answer = dataclasses.replace(answer, dual=dual, certificate=asked.certify(answer.primal, dual))
    if not answer.certificate.feasible:
        return False
    try:
        exact = dm.prove(answer)
    except dm.CertificateError:
        return False
    low, high = answer.certificate.interval
    assert low <= exact.upper, (
        f"seed {seed}: the judge's bound {low!r} is above {float(exact.upper)!r}, which is reached"
    )
    assert exact.lower <= high, (
        f"seed {seed}: the judge's cost {high!r} is below {float(exact.lower)!r}, which is proven"
    )
    return True


def vars_of(dual: Any) -> tuple[Any, ...]:
    return tuple(getattr(dual, each.name) for each in dataclasses.fields(dual))


def test_no_certificate_of_few_problems_is_wrong() -> None:
    assert sum(map(check, range(FEW))) > FEW / 2


@pytest.mark.slow
def test_no_certificate_of_many_problems_is_wrong() -> None:
    assert sum(map(check, range(FEW, FEW + MANY))) > MANY / 2
