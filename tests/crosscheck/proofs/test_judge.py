"""The judge in floating point, held against exact arithmetic on problems of all shapes and scales."""

import contextlib
import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast

FEW, MANY = 25, 500


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
        matrix = np.vstack([matrix, matrix[:1] + 10.0 ** rng.uniform(-12, -1) * rng.standard_normal((1, cells))])
    elif kind == 3:
        matrix = np.hstack([matrix, matrix[:, :1], np.zeros((queries, 1))])
    elif kind == 4:
        matrix = np.vstack([matrix, matrix[:1]])
    if rng.random() < 0.4:
        matrix = matrix * 10.0 ** rng.uniform(-6, 6, (len(matrix), 1))
    if rng.random() < 0.4:
        matrix = matrix * 10.0 ** rng.uniform(-6, 6, (1, matrix.shape[1]))
    size = rng.uniform(-9, 9)
    return matrix * 10.0 ** (size if abs(size) < 8 else 3 * size)  # some nearly as large, or small, as problems may be


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


def fitness(rng: np.random.Generator) -> Any:
    matrix = workload(rng)
    numbers, moves = 10.0 ** rng.uniform(-3, 3, len(matrix)), neighbours(rng, matrix.shape[1])
    options: dict[str, Any] = {"neighbours": moves, "geometry": "dense"}
    family = rng.integers(3)
    if family == 0:
        return dm.FitnessForUse(dm.Workload(matrix), numbers, **options)
    if family == 1:
        return dm.PrivacyFirst(dm.Workload(matrix), numbers, 10.0 ** rng.uniform(-3, 3), **options)
    return dm.TotalVariance(dm.Workload(matrix), numbers, **options)


def soft_maxima(rng: np.random.Generator) -> Any:
    matrix = workload(rng)
    numbers, moves = 10.0 ** rng.uniform(-3, 3, len(matrix)), neighbours(rng, matrix.shape[1])
    first, second = (float(each) for each in 10.0 ** rng.uniform(-2, 3, 2) / np.abs(matrix).max())
    weight = float(rng.choice([0.0, 10.0 ** rng.uniform(-3, 1)]))
    return dm.SoftmaxFitness(dm.Workload(matrix), numbers, first, second, weight, neighbours=moves)


def weighting(rng: np.random.Generator) -> Any:
    """Return a weighting of queries that the workload is made of, of its own or of its eigen-queries."""
    matrix, kind = workload(rng), rng.integers(3)
    asked = dm.Workload(matrix)
    design: Any = dm.designs.eigen_queries(asked)
    if kind == 1:
        design = np.eye(matrix.shape[1]) * 10.0 ** rng.uniform(-3, 3, (matrix.shape[1], 1))
    elif kind == 2:
        design = np.vstack([np.eye(matrix.shape[1]), matrix / np.abs(matrix).max()])
    privacy = str(rng.choice(["approximate", "pure"]))
    return dm.QueryWeighting(asked, design, privacy, neighbours(rng, matrix.shape[1]))


def mechanism(rng: np.random.Generator, cells: int) -> Any:
    """Return noise on whole queries that few or many of the cells have in common."""
    queries = np.rint(1.5 * rng.standard_normal((int(rng.integers(1, cells + 1)), cells)))
    if rng.random() < 0.3:
        queries = np.eye(cells)
    scales = 10.0 ** rng.uniform(-2, 2, len(queries))
    return dm.LinearGaussianMechanism(queries, np.diag(scales))


def common(rng: np.random.Generator) -> Any:
    cells = int(rng.integers(1, 5))
    return dm.CommonMechanism([mechanism(rng, cells) for _ in range(rng.integers(2, 4))])


def reuse(rng: np.random.Generator) -> Any:
    matrix = workload(rng)
    numbers = 10.0 ** rng.uniform(-2, 2, len(matrix))
    return dm.ReuseFitness(dm.Workload(matrix), numbers, mechanism(rng, matrix.shape[1]))


def local(rng: np.random.Generator) -> Any:
    matrix = workload(rng)
    epsilon, worst = float(10.0 ** rng.uniform(-3, 1)), rng.random() < 0.4
    prior = rng.dirichlet(np.ones(matrix.shape[1])) if rng.random() < 0.3 and not worst else None
    return dm.LocalStrategy(dm.Workload(matrix), epsilon, "worst" if worst else "average", prior)


def projection(rng: np.random.Generator) -> Any:
    shape, epsilon = rng.integers(1, 7, 2), float(10.0 ** rng.uniform(-3, 1))
    matrix = rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3)
    floor = None
    if rng.random() < 0.5:
        shares = rng.dirichlet(np.ones(shape[0]))
        floor = shares * rng.uniform(np.exp(-epsilon), 1)
    return dm.LocalProjection(matrix, epsilon, floor)


def estimate(rng: np.random.Generator) -> Any:
    matrix = workload(rng)
    answers = rng.standard_normal(len(matrix)) * 10.0 ** rng.uniform(-3, 3)
    if rng.random() < 0.4:
        answers = matrix @ rng.exponential(1.0, matrix.shape[1])
    total = float(10.0 ** rng.uniform(-3, 3)) if rng.random() < 0.5 else None
    return dm.NonnegativeEstimate(dm.Workload(matrix), answers, total)


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
    geometry = str(rng.choice(["blocks", "split", "product"]))
    options: dict[str, Any] = {"geometry": geometry}
    if geometry == "product":
        pieces = [dm.Workload(workload(rng)) for _ in range(rng.integers(1, 3))]
        asked = dm.workloads.kron(*pieces, dm.workloads.marginals([3, 2], ways=1))
        numbers: Any = dm.ByFactor(*(10.0 ** rng.uniform(-3, 3, len(each)) for each in pieces), [1.0, 2.0])
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


FAMILIES = {
    each.__name__: each
    for each in (fitness, soft_maxima, weighting, common, reuse, local, projection, estimate, structured)
}


def check(family: str, seed: int) -> bool:
    """Hold the judge's interval against the exact one; return whether there was anything to hold."""
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings(), contextlib.suppress(dm.errors.InvalidInputError, dm.errors.CertificateError):
        warnings.simplefilter("ignore")
        asked = FAMILIES[family](rng)
        answer = fast.solve(asked, tol=float(10.0 ** rng.uniform(-9, -1)), time_limit=5)
        if rng.random() < 0.3:  # any weights prove something, and the judge must not prove more
            dual = blurred(answer.dual, rng)
            answer = dm.judged(asked, answer.primal, dual)
        if not answer.certificate.feasible:
            return False
        exact = dm.prove(answer)
        low, high = answer.certificate.interval
        assert low <= exact.upper, (
            f"{family} {seed}: the judge's bound {low!r} is above {float(exact.upper)!r}, which is reached"
        )
        assert exact.lower <= high, (
            f"{family} {seed}: the judge's cost {high!r} is below {float(exact.lower)!r}, which is proven"
        )
        return True
    return False


def blurred(weights: Any, rng: np.random.Generator) -> Any:
    """Return weights each of which is changed by some factor, whatever their form."""
    if weights is None:
        return None
    if isinstance(weights, tuple):
        return tuple(blurred(each, rng) for each in weights)
    if dataclasses.is_dataclass(weights) and not isinstance(weights, type):
        own = {each.name: blurred(getattr(weights, each.name), rng) for each in dataclasses.fields(weights)}
        return dataclasses.replace(weights, **own)
    return np.asarray(weights) * np.exp(rng.standard_normal(np.shape(weights)))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_certificate_of_few_problems_is_wrong(family: str) -> None:
    assert sum(check(family, seed) for seed in range(FEW)) > FEW / 3


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_certificate_of_many_problems_is_wrong(family: str) -> None:
    assert sum(check(family, seed) for seed in range(FEW, FEW + MANY)) > MANY / 3


@pytest.mark.parametrize("seed", [341, 1914, pytest.param(1684, marks=pytest.mark.slow)])
def test_a_bias_is_charged_what_it_costs_to_remove(seed: int) -> None:
    """Queries with columns of very different sizes, of which the best reconstruction misses 1e-10: all were too low."""
    assert check("local", seed)


def test_queries_that_the_release_answers_but_for_rounding_are_solved_as_far_as_they_can_be() -> None:
    """A step towards covariances of 1e-292 once ended in an error of NumPy's."""
    assert check("reuse", 263)
