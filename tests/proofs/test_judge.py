"""The judge in floating point, held against exact arithmetic on problems of all shapes and scales."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast

FEW, MANY, STRUCTURED = 200, 20_000, 5_000


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


def queries(rng: np.random.Generator, size: int) -> Any:
    """Return what a table may ask of an attribute: its values, a few queries of any kind, or all translates of some."""
    kind = rng.integers(7)
    if kind == 0:
        return dm.workloads.prefix(size)
    if kind == 1 and size > 1:
        return dm.workloads.differences(size)
    if kind == 2:
        return dm.workloads.circular_ranges(size)
    if kind in (3, 4):
        rows = rng.standard_normal((rng.integers(1, 4), size))
        rows = np.rint(rows) if kind == 3 else rows
        return dm.Workload(rows * 10.0 ** rng.uniform(-6, 6, (len(rows), 1)))
    return None


def tables(rng: np.random.Generator, alike: bool) -> Any:
    """Return tables over a few attributes, each asking what it likes, or all alike of an attribute."""
    sizes = [int(each) for each in rng.integers(1, 6, rng.integers(1, 4))]
    names = [f"a{axis}" for axis in range(len(sizes))]
    own = {name: queries(rng, size) for name, size in zip(names, sizes, strict=True)}
    found = []
    for _ in range(rng.integers(1, 5)):
        chosen = [name for name in names if rng.random() < 0.6]
        if not alike:
            own |= {name: queries(rng, sizes[names.index(name)]) for name in chosen if rng.random() < 0.4}
        found.append({name: own[name] for name in chosen})
    domain = dict(zip(names, sizes, strict=True))
    if not alike:
        return dm.workloads.union(domain, {str(index): table for index, table in enumerate(found)})
    sets = {tuple(table) for table in found}
    asked = {name: each for name, each in own.items() if each is not None}
    return dm.workloads.query_tables(domain, asked, sets=sorted(sets))


def structured(rng: np.random.Generator) -> Any:
    """Return a problem on blocks, split by attribute or of factors; None where its data are refused."""
    geometry = str(rng.choice(["blocks", "split", "product"]))
    options: dict[str, Any] = {"geometry": geometry}
    try:
        if geometry == "product":
            pieces = [dm.Workload(workload(rng)) for _ in range(rng.integers(1, 3))]
            asked = dm.workloads.kron(*pieces, dm.workloads.marginals([3, 2], ways=1))
            numbers: Any = dm.ByFactor(
                *(10.0 ** rng.uniform(-3, 3, len(each)) for each in pieces), [1.0, 2.0]
            )
        else:
            asked = tables(rng, geometry == "split")
            numbers = 10.0 ** rng.uniform(-3, 3, len(asked.table_names))
            if geometry == "blocks" and rng.random() < 0.3:
                options["neighbours"] = "add-remove:3"
        family = rng.integers(3)
        if family == 0:
            return dm.FitnessForUse(asked, numbers, **options)
        if family == 1:
            return dm.PrivacyFirst(asked, numbers, 10.0 ** rng.uniform(-3, 3), **options)
        return dm.TotalVariance(asked, numbers, **options)
    except dm.InvalidInputError:
        return None


def blurred(rng: np.random.Generator, weights: Any) -> Any:
    """Return weights that are off, whatever their form."""
    if isinstance(weights, tuple):
        return tuple(blurred(rng, each) for each in weights)
    if dataclasses.is_dataclass(weights) and not isinstance(weights, type):
        return type(weights)(*(blurred(rng, each) for each in vars_of(weights)))
    return np.asarray(weights) * np.exp(rng.standard_normal(np.shape(weights)))


def check(seed: int, pose: Callable[[np.random.Generator], Any] = problem) -> bool:
    """Hold the judge's interval against the exact one; return whether there was anything to hold."""
    rng = np.random.default_rng(seed)
    asked = pose(rng)
    if asked is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = fast.solve(asked, tol=float(10.0 ** rng.uniform(-9, -1)))
        if rng.random() < 0.3:  # any weights prove something, and the judge must not prove more
            dual = blurred(rng, answer.dual)
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


def test_no_certificate_of_few_structured_problems_is_wrong() -> None:
    assert sum(check(seed, structured) for seed in range(FEW // 2)) > FEW / 4


@pytest.mark.slow
def test_no_certificate_of_many_structured_problems_is_wrong() -> None:
    assert sum(check(seed, structured) for seed in range(FEW // 2, STRUCTURED)) > STRUCTURED / 2


@pytest.mark.slow
def test_no_certificate_of_many_problems_is_wrong() -> None:
    assert sum(map(check, range(FEW, FEW + MANY))) > MANY / 2
