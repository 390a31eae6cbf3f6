"""The problems of the library, a module for families that are alike; each is stated when it is called."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import workloads
from dualmech.crosscheck.instances import common as common_instances
from dualmech.crosscheck.instances import fitness as fitness_instances
from dualmech.crosscheck.instances import tables as table_instances
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.neighbours import NeighboursLike, household
from dualmech.problems import designs
from dualmech.problems.base import AnyProblem
from dualmech.problems.common import CommonMechanism
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.local.estimate import NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.problems.reuse import ReuseFitness
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.validate import Array
from dualmech.workloads.base import Workload

# Noise on a matrix, fitness for use and total variance side by side: workloads of the papers, shapes, neighbours.


SEED = 0
COST = 0.5  # squared, of privacy first

Build = Callable[[], tuple[Workload, Any]]
MakeProblem = Callable[[], AnyProblem]


def matrices_problems() -> dict[str, MakeProblem]:
    """Return problems by name, every workload once for each family."""
    builders: dict[str, Build] = {}
    for cells in (2, 4, 8, 16, 32, 64):
        builders[f"prefix-{cells}"] = partial(even, workloads.prefix, cells)
    for cells in (4, 8, 16):
        builders[f"ranges-{cells}"] = partial(even, workloads.all_range, cells)
        builders[f"identity-total-{cells}"] = partial(even, workloads.identity_total, cells)
        builders[f"circle-{cells}"] = partial(even, workloads.circular_ranges, cells)
    for cells in (2, 4):
        builders[f"marginals-{cells}"] = partial(even, workloads.marginals, (cells,) * 3, ways=(1, 2))
    for table in fitness_instances.RANDOM_TABLES:
        builders[f"table-{table}-64"] = fitness_instances.readings(table, 64)[0].build
    for name in _shapes():
        builders[name] = partial(_shaped, name)
    makers: dict[str, MakeProblem] = {}
    for name, build in builders.items():
        makers |= both(name, build)
    for name, moves in (("replaced", "replace"), ("three-records", "add-remove:3"), ("household", household(8, 2))):
        makers |= both(f"prefix-8-{name}", builders["prefix-8"], neighbours=moves)
    return makers


def both(name: str, build: Build, **options: Any) -> dict[str, MakeProblem]:
    """Return fitness for use and total variance of a workload with numbers: targets, and one over them as weights."""
    return {
        f"fitness-{name}": partial(_fitness, build, **options),
        f"variance-{name}": partial(_variance, build, **options),
    }


def even(build: Callable[..., Workload], *sizes: object, **options: object) -> tuple[Workload, float]:
    return build(*sizes, **options), 1.0


def _fitness(build: Build, geometry: str = "dense", neighbours: NeighboursLike = None) -> FitnessForUse:
    workload, targets = build()
    return FitnessForUse(workload, targets, neighbours=neighbours, geometry=geometry)


def _variance(build: Build, geometry: str = "dense", neighbours: NeighboursLike = None) -> TotalVariance:
    workload, targets = build()
    return TotalVariance(workload, 1 / np.asarray(targets, dtype=float), neighbours=neighbours, geometry=geometry)


def _privacy(build: Build, geometry: str = "dense") -> PrivacyFirst:
    workload, targets = build()
    return PrivacyFirst(workload, targets, COST, geometry=geometry)


def _shapes() -> dict[str, Array]:
    """Return matrices of the shapes and scales that solvers stumble on, from a seed."""
    rng = np.random.default_rng(SEED)
    square, few = rng.standard_normal((8, 8)), rng.standard_normal((4, 8))
    return {
        "rank-deficient": square[:, :3] @ square[:3],
        "tall": rng.standard_normal((40, 5)),
        "wide": rng.standard_normal((5, 40)),
        "one-row": few[:1],
        "one-column": square[:, :1],
        "rows-twice": np.repeat(few, 2, axis=0),
        "columns-twice": np.repeat(few, 2, axis=1),
        "large": 1e6 * square,
        "small": 1e-6 * square,
        "rows-of-all-sizes": square * np.logspace(-6, 6, 8)[:, None],
        "columns-of-all-sizes": square * np.logspace(-6, 6, 8),
        "nearly-dependent": np.vstack([few, few[:1] + 1e-7 * square[:1]]),
        "zeros": np.pad(few, ((0, 2), (0, 2))),
    }


def _shaped(name: str) -> tuple[Workload, Array]:
    matrix = _shapes()[name]
    return Workload(matrix), np.linspace(1, 10, len(matrix))


# More noise on a matrix: random workloads of other seeds, sums with decay, PL-94, privacy first, neighbours.


MORE_CELLS, MORE_SEEDS = 32, (1, 2)  # of the random workloads


def more_problems() -> dict[str, MakeProblem]:
    makers: dict[str, MakeProblem] = {}
    for table in fitness_instances.RANDOM_TABLES:
        for seed in MORE_SEEDS:
            drawn = fitness_instances.random_instance(table, MORE_CELLS, seed)
            makers |= both(f"table-{table}-{MORE_CELLS}-seed-{seed}", drawn.build)
    for cells in (16, 64):
        for decay in (0.5, 0.9, 0.99):
            makers |= both(f"decayed-{cells}-{decay}", partial(even, workloads.decayed_sums, cells, decay))
    makers |= both("parities-5", partial(even, workloads.parity, 5))
    builders: dict[str, Build] = {
        "ranges-8": partial(even, workloads.all_range, 8),
        "identity-total-8": partial(even, workloads.identity_total, 8),
    }
    for name, build in builders.items():
        for word, moves in (("replaced", "replace"), ("household", household(8, 3))):
            makers |= both(f"{name}-{word}", build, neighbours=moves)
    builders |= {
        "prefix-8": partial(even, workloads.prefix, 8),
        "prefix-32": partial(even, workloads.prefix, 32),
        "marginals-4": partial(even, workloads.marginals, (4, 4, 4), ways=(1, 2)),
        "table-6-32": fitness_instances.random_instance(6, MORE_CELLS, 0).build,
    }
    return makers | {f"privacy-{name}": partial(_privacy, build) for name, build in builders.items()}


# Existing mechanisms: the common part of several, and the cost that an earlier release spares the next.


MECHANISMS_CELLS, SHARED = 8, 4  # of random mechanisms, and the queries that all of them answer
MECHANISMS_SEEDS = (0, 1)
WHOLE_SEEDS = (10, 11)  # of mechanisms that measure all cells


def commons() -> dict[str, MakeProblem]:
    """Return common mechanisms by name: examples 3.8 and 3.12 of the paper, its data's choices, and random ones.

    Random ones are of least trace and of least volume; those named ``whole`` have equal row spaces.
    """
    makers: dict[str, MakeProblem] = {"common-example-38": _maximal, "common-example-312": _two_marginals}
    for count in (2, 3, 4):
        for seed in MECHANISMS_SEEDS:
            makers[f"common-random-{count}-seed-{seed}"] = partial(_random, count, seed)
            makers[f"common-random-{count}-seed-{seed}-volume"] = partial(_random, count, seed, "volume")
    for seed in WHOLE_SEEDS:
        makers[f"common-whole-3-seed-{seed}-volume"] = partial(_whole, seed)
    for name, choice in zip(("race-tables", "race-cells", "brazil"), common_instances.CHOICES.values(), strict=True):
        makers[f"common-{name}"] = partial(lambda choice: CommonMechanism(choice.mechanisms), choice)
    for first in range(3):  # a chain, each of whose mechanisms refines the one before
        makers[f"common-ages-{first + 1}-and-finer"] = partial(_ages, first, None)
        makers[f"common-ages-{first + 1}-and-{first + 2}"] = partial(_ages, first, first + 2)
    del makers["common-ages-3-and-finer"]  # the same two
    return makers


def reuses() -> dict[str, MakeProblem]:
    """Return problems of reuse by name: a wish, and an earlier release, whole or in part."""
    wishes: dict[str, Callable[[], Workload]] = {
        "prefix-8": partial(workloads.prefix, 8),
        "ranges-8": partial(workloads.all_range, 8),
        "identity-total-8": partial(workloads.identity_total, 8),
    }
    released = {"cells": np.eye(8), "halves": np.kron(np.eye(2), np.ones(4)), "total": np.ones((1, 8))}
    makers: dict[str, MakeProblem] = {}
    for wish, build in wishes.items():
        for known, queries in released.items():
            makers[f"reuse-{wish}-after-{known}"] = partial(_reuse, build, queries)
    makers["reuse-prefix-16-after-quarters"] = partial(
        _reuse, partial(workloads.prefix, 16), np.kron(np.eye(4), np.ones(4))
    )
    return makers


def _maximal() -> CommonMechanism:
    first, second = np.ones((1, 3)), np.vstack([np.ones((1, 3)), np.eye(3)])
    return CommonMechanism([_noise(first, 1.0), _noise(second, 2.0)])


def _two_marginals() -> CommonMechanism:
    ones, cells = np.ones((1, 3)), np.eye(3)
    return CommonMechanism([_noise(np.kron(cells, ones), 1.0), _noise(np.kron(ones, cells), 1.0)])


def _random(count: int, seed: int, criterion: str = "trace") -> CommonMechanism:
    """State the common part of mechanisms with full covariances; they share some queries, and each has some alone."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((SHARED, MECHANISMS_CELLS))
    mechanisms = []
    for _ in range(count):
        queries = np.vstack([shared, rng.standard_normal((1, MECHANISMS_CELLS))])
        root = rng.standard_normal((len(queries), len(queries)))
        mechanisms.append(LinearGaussianMechanism(queries, root @ root.T))
    return CommonMechanism(mechanisms, criterion=criterion)


def _whole(seed: int) -> CommonMechanism:
    """State the least volume above three mechanisms that measure random queries on all cells, one more than cells."""
    rng, mechanisms = np.random.default_rng(seed), []
    for _ in range(3):
        mechanisms.append(_noise(rng.standard_normal((SHARED + 1, SHARED)), 1.0))
    return CommonMechanism(mechanisms, basis=np.eye(SHARED), criterion="volume")


def _ages(first: int, end: int | None) -> CommonMechanism:
    return CommonMechanism(common_instances.census()[first:end])


def _reuse(build: Callable[[], Workload], queries: npt.ArrayLike) -> ReuseFitness:
    """State a wish for variances 1 after a release of variances 1/2."""
    return ReuseFitness(build(), np.ones(len(build())), _noise(queries, 0.5))


def _noise(queries: npt.ArrayLike, variance: float) -> LinearGaussianMechanism:
    rows = np.asarray(queries, dtype=float)
    return LinearGaussianMechanism(rows, variance * np.eye(len(rows)))


# Local privacy: strategies for the six workloads of the paper, projections and non-negative estimates.


EPSILONS = (0.5, 1.0, 4.0)
CRITERIA = ("average", "worst")


def _marginals(size: int) -> Workload:
    bits = size.bit_length() - 1
    return workloads.marginals([2] * bits, ways=range(bits + 1))


WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "histogram": workloads.identity,
    "prefix": workloads.prefix,
    "ranges": workloads.all_range,
    "marginals": _marginals,
    "parity": lambda size: workloads.parity(size.bit_length() - 1),
}


def strategies() -> dict[str, MakeProblem]:
    """Return local strategies by name: eight user types at every ε, four and sixteen at 1; average and worst user."""
    makers: dict[str, MakeProblem] = {}
    for name, build in WORKLOADS.items():
        for size in (4, 8, 16):
            for epsilon in EPSILONS if size == 8 else (1.0,):
                for criterion in CRITERIA:
                    label = f"local-{name}-{size}-{epsilon:g}-{criterion}"
                    makers[label] = partial(_strategy, build, size, epsilon, criterion)
        makers[f"local-{name}-8-1-prior"] = partial(_with_prior, build, 8)
    return makers


def projections() -> dict[str, MakeProblem]:
    """Return projections of random matrices by name, without floors and with."""
    return {
        f"projection-{outputs}x{types}-{epsilon:g}{word}": partial(_projection, outputs, types, epsilon, floors)
        for outputs, types in ((6, 4), (16, 8), (32, 16))
        for epsilon in (0.5, 2.0)
        for word, floors in (("", False), ("-floors", True))
    }


def estimates() -> dict[str, MakeProblem]:
    """Return estimates by name: noisy answers about a few people, with their number known or not."""
    makers: dict[str, MakeProblem] = {}
    for name, build in WORKLOADS.items():
        for word, has_total in (("", False), ("-total", True)):
            makers[f"estimate-{name}-16{word}"] = partial(_estimate, build, has_total)
    return makers


def _strategy(build: Callable[[int], Workload], size: int, epsilon: float, criterion: str) -> LocalStrategy:
    return LocalStrategy(build(size), epsilon, criterion)


def _with_prior(build: Callable[[int], Workload], size: int) -> LocalStrategy:
    """State a strategy for types whose shares fall from 8/36 to 1/36."""
    shares = np.arange(size, 0, -1.0)
    return LocalStrategy(build(size), 1.0, "average", shares / shares.sum())


def _projection(outputs: int, types: int, epsilon: float, floors: bool) -> LocalProjection:
    matrix = np.random.default_rng(SEED).random((outputs, types))
    return LocalProjection(matrix, epsilon, np.full(outputs, 0.8 / outputs) if floors else None)


def _estimate(build: Callable[[int], Workload], has_total: bool) -> NonnegativeEstimate:
    """State an estimate of counts, few of them positive, from answers of standard deviation 5."""
    rng, workload = np.random.default_rng(SEED), build(16)
    counts = np.maximum(rng.normal(0, 10, 16), 0).round()
    answers = workload.dense() @ counts + rng.normal(0, 5, len(workload))
    return NonnegativeEstimate(workload, answers, float(counts.sum()) if has_total else None)


# Fitness with soft maxima: workloads of the fitness paper at several sharpnesses, with and without total variance.


SHARPNESSES = (1.0, 10.0, 100.0)
TOTAL_WEIGHT = 0.1

SOFTMAX_ASKED: dict[str, Callable[[], Workload]] = {
    "prefix-8": partial(workloads.prefix, 8),
    "ranges-8": partial(workloads.all_range, 8),
    "identity-total-8": partial(workloads.identity_total, 8),
    "marginals-2": partial(workloads.marginals, (2, 2, 2), ways=(1, 2)),
}


def softmax_problems() -> dict[str, MakeProblem]:
    makers: dict[str, MakeProblem] = {}
    for name, build in SOFTMAX_ASKED.items():
        for sharpness in SHARPNESSES:
            makers[f"softmax-{name}-{sharpness:g}"] = partial(_softmax_state, build, sharpness)
    for cells in (2, 4, 16, 32):
        makers[f"softmax-prefix-{cells}-10"] = partial(_softmax_state, partial(workloads.prefix, cells), 10.0)
    eight = SOFTMAX_ASKED["prefix-8"]
    makers["softmax-prefix-8-10-total"] = partial(_softmax_state, eight, 10.0, TOTAL_WEIGHT)
    makers["softmax-prefix-8-10-replaced"] = partial(_softmax_state, eight, 10.0, neighbours="replace")
    return makers


def _softmax_state(
    build: Callable[[], Workload], sharpness: float, total_weight: float = 0.0, neighbours: NeighboursLike = None
) -> SoftmaxFitness:
    """State a problem with targets from 1 to 10 and both maxima alike in sharpness."""
    workload = build()
    targets = np.linspace(1, 10, len(workload))
    return SoftmaxFitness(workload, targets, sharpness, sharpness, total_weight, neighbours=neighbours)


# Noise on tables: blocks, split noise and products, on domains of up to 10^60 cells.


SHIFTS = {"hour": 24, "ward": 5, "sex": 2}


def tables_problems() -> dict[str, MakeProblem]:
    """Return problems by name, every workload once for each family but where noise of one is not optimal."""
    makers: dict[str, MakeProblem] = {}
    for name, (build, geometry) in _asked().items():
        makers |= both(name, partial(even, build), geometry=geometry)
        if geometry == "split":
            del makers[f"variance-{name}"]
    drawn = [case for case in table_instances.small(quick=True) if case.random]
    makers |= {f"fitness-tables-{case.label}-drawn": case.problem for case in drawn}
    makers["fitness-tables-sixty-drawn"] = table_instances.sixty(quick=True)[-1].problem
    sixty = partial(even, _asked()["tables-sixty"][0])
    makers["fitness-tables-sixty-three-records"] = partial(_fitness, sixty, "blocks", "add-remove:3")
    makers["privacy-tables-sixty"] = partial(_privacy, sixty, "blocks")
    return makers


def _asked() -> dict[str, tuple[Callable[[], Workload], str]]:
    marginals, kron, prefix = workloads.marginals, workloads.kron, workloads.prefix
    domains: dict[str, Any] = {"16x16x16": (16, 16, 16), "sixty": table_instances.SIXTY, "adult": table_instances.ADULT}
    domains |= {"cps": table_instances.published("CPS"), "loans": table_instances.published("Loans")}
    domains |= {"census": table_instances.CENSUS}
    entries: dict[str, tuple[Callable[[], Workload], str]] = {
        f"tables-{name}": (partial(marginals, domain, ways=(1, 2)), "blocks") for name, domain in domains.items()
    }
    entries |= {
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
    return entries


def _shifts() -> Workload:
    tables: Any = {"by ward": {"hour": workloads.prefix(24), "ward": None}, "people": ["ward", "sex"]}
    return workloads.union(SHIFTS, tables)


def _both_in_order(first: int, second: int) -> Workload:
    queries = {"a": workloads.prefix(first), "b": workloads.prefix(second)}
    return workloads.query_tables({"a": first, "b": second}, queries, ways=(1, 2))


# Query weighting: eigen-queries, wavelets, Fourier bases, single cells, and the queries themselves.


Shape = tuple[int, ...]

DESIGNS: dict[str, Callable[[Workload, Shape], Array]] = {
    "eigen-queries": lambda workload, shape: designs.eigen_queries(workload),
    "wavelet": lambda workload, shape: designs.haar_matrix(shape).toarray(),
    "Fourier": lambda workload, shape: designs.fourier_matrix(shape),
    "identity": lambda workload, shape: np.eye(math.prod(shape)),
}
"""Design queries that the Eigen-Design paper compares, by name, and single cells."""

WEIGHTING_ASKED: dict[str, tuple[Callable[[], Workload], Shape]] = {
    "prefix-8": (partial(workloads.prefix, 8), (8,)),
    "ranges-16": (partial(workloads.all_range, 16), (16,)),
    "marginals-2x4x2": (partial(workloads.marginals, (2, 4, 2), ways=(1, 2)), (2, 4, 2)),
}


def weighting_problems() -> dict[str, MakeProblem]:
    """Return problems by name, most of them both for approximate and for pure privacy."""
    makers: dict[str, MakeProblem] = {}
    for name, (build, shape) in WEIGHTING_ASKED.items():
        for design in DESIGNS:
            for privacy in ("approximate", "pure"):
                makers[f"weighting-{name}-{design.lower()}-{privacy}"] = partial(
                    _weighting_state, build, shape, design, privacy
                )
    for cells in (32, 64):
        ranges = partial(workloads.prefix, cells)
        makers[f"weighting-prefix-{cells}-eigen-queries"] = partial(_weighting_state, ranges, (cells,), "eigen-queries")
    build, shape = WEIGHTING_ASKED["prefix-8"]
    makers["weighting-prefix-8-own"] = lambda: QueryWeighting(build(), build())
    makers["weighting-prefix-8-eigen-queries-replaced"] = partial(
        _weighting_state, build, shape, "eigen-queries", neighbours="replace"
    )
    return makers


def _weighting_state(
    build: Callable[[], Workload],
    shape: Shape,
    design: str,
    privacy: str = "approximate",
    neighbours: str | None = None,
) -> QueryWeighting:
    workload = build()
    return QueryWeighting(workload, DESIGNS[design](workload, shape), privacy, neighbours)


PARTS: tuple[Callable[[], dict[str, MakeProblem]], ...] = (
    matrices_problems,
    more_problems,
    tables_problems,
    softmax_problems,
    weighting_problems,
    commons,
    reuses,
    strategies,
    projections,
    estimates,
)

FAMILIES = {
    "fitness": "FitnessForUse",
    "privacy": "PrivacyFirst",
    "variance": "TotalVariance",
    "softmax": "SoftmaxFitness",
    "weighting": "QueryWeighting",
    "common": "CommonMechanism",
    "reuse": "ReuseFitness",
    "local": "LocalStrategy",
    "projection": "LocalProjection",
    "estimate": "NonnegativeEstimate",
}
"""The classes of problems, by the first word of their names in the library."""


def problems() -> dict[str, MakeProblem]:
    """Return the problems by name; each is stated when it is called.

    Examples
    --------
    >>> from dualmech.crosscheck import library
    >>> library.problems()["fitness-prefix-8"]()
    FitnessForUse(Workload(8 queries x 8 cells, running sums), dense)
    """
    return {name: state for part in PARTS for name, state in part().items()}
