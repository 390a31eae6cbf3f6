"""Random small problems of every family on every geometry, from a seed: shapes and scales that solvers stumble on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from family_files import family_files

from dualmech import workloads
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.neighbours import compositions
from dualmech.problems import designs
from dualmech.problems.common import CRITERIA, CommonMechanism
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

Rng = np.random.Generator

MOST_QUERIES, MOST_CELLS, MOST_TYPES = 8, 6, 5
MOST_STRUCTURED = 16  # cells of a workload with structure
SPLIT = (), ("split", "split")  # of one attribute there is nothing to split
MOST_REPLACED = 8  # cells of which records are replaced on a matrix: pairs grow as their square


@dataclass(frozen=True, slots=True)
class RandomProblem:
    """A random problem: how to state it, and what it is made of, in words."""

    label: str
    state: Callable[[], Any]  # may refuse by an error of the library
    twin: Callable[[], Any] | None = None  # states the same on a matrix, where the problem stands on a structure


def asked(seed: int) -> RandomProblem:
    """Return the problem of a seed; the same one each time.

    Examples
    --------
    >>> import random_problems
    >>> random_problems.asked(7).label == random_problems.asked(7).label
    True
    """
    rng = np.random.default_rng(seed)
    known = families()
    shares = np.array([*SHARES, *(SHARE for _ in family_files())])
    family = list(known)[int(rng.choice(len(known), p=shares / shares.sum()))]
    return known[family](rng, family)


def _matrix(rng: Rng, queries: int, cells: int) -> tuple[str, Array]:
    """Return a matrix of some kind, at some scale; what is all zero is not excluded."""
    kind = _one_of(rng, KINDS)
    matrix = KINDS[kind](rng, queries, cells)
    flaws = [_one_of(rng, FLAWS) for _ in range(int(rng.choice([0, 1, 2, 3], p=FLAWED)))]
    for flaw in flaws:
        matrix = FLAWS[flaw](rng, matrix)
    return ", ".join([kind, *flaws]), matrix


def _low_rank(rng: Rng, queries: int, cells: int) -> Array:
    rank = int(rng.integers(1, min(queries, cells) + 1))
    return np.asarray(rng.standard_normal((queries, rank)) @ rng.standard_normal((rank, cells)))


KINDS: dict[str, Callable[[Rng, int, int], Array]] = {
    "normal": lambda rng, m, d: rng.standard_normal((m, d)),
    "zeros and ones": lambda rng, m, d: rng.integers(0, 2, (m, d)).astype(float),
    "signs": lambda rng, m, d: rng.choice([-1.0, 1.0], (m, d)),
    "whole numbers": lambda rng, m, d: rng.integers(-3, 4, (m, d)).astype(float),
    "prefixes": lambda rng, m, d: np.tri(m, d),
    "identity and total": lambda rng, m, d: np.vstack([np.eye(d), np.ones((1, d))])[:m],
    "low rank": _low_rank,
    "sparse": lambda rng, m, d: rng.standard_normal((m, d)) * (rng.random((m, d)) < 0.3),
}

FLAWED = (0.5, 0.3, 0.15, 0.05)  # how often a matrix has none, one, two or three flaws

FLAWS: dict[str, Callable[[Rng, Array], Array]] = {
    "scaled": lambda rng, a: a * 10.0 ** rng.integers(-10, 11),
    "rows of all sizes": lambda rng, a: a * 10.0 ** rng.uniform(-5, 5, (len(a), 1)),
    "columns of all sizes": lambda rng, a: a * 10.0 ** rng.uniform(-5, 5, a.shape[1]),
    "one large entry": lambda rng, a: a + 10.0 ** rng.integers(3, 9) * _unit(rng, a.shape),
    "a row twice": lambda rng, a: np.vstack([a, a[:1]]),
    "a row nearly twice": lambda rng, a: np.vstack(
        [a, a[:1] + 10.0 ** rng.integers(-15, -3) * rng.standard_normal((1, a.shape[1]))]
    ),
    "a column twice": lambda rng, a: np.hstack([a, a[:, :1]]),
    "zero row and column": lambda rng, a: np.pad(a, ((0, 1), (1, 0))),
}


def _unit(rng: Rng, shape: tuple[int, ...]) -> Array:
    entry = np.zeros(shape)
    entry.flat[int(rng.integers(entry.size))] = 1.0
    return entry


def random_workload(rng: Rng, cells: int = MOST_CELLS) -> tuple[str, Workload]:
    label, matrix = _matrix(
        rng, int(rng.integers(1, MOST_QUERIES + 1)), int(rng.integers(1 if cells > 5 else 2, cells))
    )
    return f"{label} {matrix.shape[0]} x {matrix.shape[1]}", Workload(matrix)


def random_numbers(rng: Rng, count: int) -> tuple[str, Any]:
    """Return targets or weights: one for all, or one each, near or far apart."""
    kind = int(rng.integers(4))
    spread = {1: 0.3, 2: 2.0, 3: 4.0}.get(kind, 0.0)
    if not kind:
        return "one number", float(10.0 ** rng.uniform(-3, 3))
    return f"numbers over 10^{2 * spread:g}", 10.0 ** rng.uniform(-spread, spread, count)


def random_neighbours(rng: Rng, cells: int) -> tuple[str, Any]:
    """Return whom privacy keeps apart: a rule, or a matrix of differences."""
    kind = int(rng.integers(8))
    if kind < 4 or cells < 2:
        return "", None
    if kind < 7:
        rule = ("replace", "add-remove:2", "replace:2")[kind - 4]
        return rule, rule
    if rng.random() < 0.5:
        group = rng.permutation(cells)[: int(rng.integers(1, cells + 1))].tolist()
        return f"a household in {group}, or anyone", compositions(cells, [group, *([cell] for cell in range(cells))])
    moves = rng.integers(-2, 3, (cells, int(rng.integers(1, cells + 2)))).astype(float)
    return "own moves", moves


def _structured(rng: Rng) -> tuple[str, Workload, tuple[str, ...]]:
    """Return a workload with structure, and the geometries that it may stand on."""
    kind, sizes = int(rng.integers(6)), [int(each) for each in rng.integers(2, 5, int(rng.integers(1, 4)))]
    while np.prod(sizes) > MOST_STRUCTURED:
        sizes.pop()
    domain = {f"a{place}": size for place, size in enumerate(sizes)}
    first = sizes[0]
    if kind == 0:
        ways = int(rng.integers(1, len(sizes) + 1))
        return (f"marginals {sizes}:{ways}", workloads.marginals(domain, ways=ways), ("blocks", "dense"))
    if kind == 1:
        return f"circle {first + 1}", workloads.circular_ranges(first + 1), ("blocks", "dense")
    if kind == 2:
        own = {"a0": workloads.prefix(first)}
        tables: Any = {"own": own, "all": list(domain)}
        return f"union {sizes}", workloads.union(domain, tables), ("blocks", "dense")
    if kind == 3:
        factors = [random_workload(rng, 4)[1] for _ in range(2)]
        return f"product {[each.shape for each in factors]}", workloads.kron(*factors), ("product", "dense")
    if kind == 4:
        queries = {"a0": workloads.prefix(first)}
        ways = int(rng.integers(1, len(sizes) + 1))
        found = workloads.query_tables(domain, queries, ways=ways)
        return f"query tables {sizes}:{ways}", found, ("blocks", "dense", *SPLIT[len(sizes) > 1])
    return f"parities {len(sizes) + 1}", workloads.parity(len(sizes) + 1, int(rng.integers(1, 3))), ("dense",)


def _on_geometry(rng: Rng, family: str) -> RandomProblem:
    """Return fitness for use, privacy first or total variance, on a matrix or on a structure."""
    if rng.random() < 0.5:
        label, workload = random_workload(rng)
        words, numbers = random_numbers(rng, workload.shape[0])
        geometry = "dense"
    else:
        label, workload, geometries = _structured(rng)
        geometry = _one_of(rng, geometries)
        words, numbers = random_numbers(rng, workload.shape[0] if geometry == "dense" else 1)
        numbers = numbers if geometry == "dense" or np.ndim(numbers) == 0 else float(numbers[0])
    relation, moves = random_neighbours(rng, workload.shape[1])
    if geometry in ("product", "split") or (geometry != "dense" and not isinstance(moves, str)):
        relation, moves = "", None
    if geometry == "dense" and "replace" in relation and workload.shape[1] > MOST_REPLACED:
        relation, moves = "", None
    cost = float(10.0 ** rng.uniform(-2, 2))
    states: dict[str, Callable[..., Any]] = {
        "fitness": lambda on: FitnessForUse(workload, numbers, neighbours=moves, geometry=on),
        "privacy first": lambda on: PrivacyFirst(workload, numbers, cost, neighbours=moves, geometry=on),
        "variance": lambda on: TotalVariance(workload, numbers, neighbours=moves, geometry=on),
    }
    state = states[family]
    return RandomProblem(
        f"{family} on {geometry}: {label}; {words}; {relation}",
        lambda: state(geometry),
        None if geometry == "dense" else lambda: state("dense"),
    )


def _softmax(rng: Rng, family: str) -> RandomProblem:
    label, workload = random_workload(rng)
    words, targets = random_numbers(rng, workload.shape[0])
    t1, t2 = (float(10.0**each) for each in rng.uniform(-1, 2, 2))
    total = float(rng.choice([0.0, 10.0 ** rng.uniform(-2, 1)]))
    relation, moves = random_neighbours(rng, workload.shape[1])
    moves = None if isinstance(moves, str) else moves
    return RandomProblem(
        f"{family}: {label}; {words}; t {t1:.3g}, {t2:.3g}; total {total:.3g}; {relation}",
        lambda: SoftmaxFitness(workload, targets, t1, t2, total, neighbours=moves),
    )


def _weighting(rng: Rng, family: str) -> RandomProblem:
    label, workload = random_workload(rng)
    cells, privacy = workload.shape[1], _one_of(rng, ("approximate", "pure"))
    design = _one_of(rng, ("eigen", "identity", "own", "random"))
    extra = rng.standard_normal((cells + int(rng.integers(3)), cells))

    def state() -> QueryWeighting:
        queries: Any = {
            "eigen": lambda: designs.eigen_queries(workload),
            "identity": lambda: np.eye(cells),
            "own": lambda: workload,
            "random": lambda: extra,
        }[design]()
        return QueryWeighting(workload, queries, privacy)

    return RandomProblem(f"{family}: {label}; design {design}, {privacy}", state)


def _common(rng: Rng, family: str) -> RandomProblem:
    cells, count, size = int(rng.integers(1, 6)), int(rng.integers(2, 5)), int(rng.integers(1, 6))
    shared = rng.standard_normal((min(size, cells), cells))
    state = np.random.default_rng(int(rng.integers(2**32)))
    words = f"{family}: {count} mechanisms on {cells} cells, {len(shared)} rows shared"
    drawn = [_parts(state, cells, shared) for _ in range(count)]
    criterion = str(state.choice(CRITERIA))
    return RandomProblem(
        f"{words}, {criterion}",
        lambda: CommonMechanism([LinearGaussianMechanism(*each) for each in drawn], criterion=criterion),
    )


def _parts(rng: Rng, cells: int, shared: Array) -> tuple[Array, Array]:
    extra = rng.standard_normal((int(rng.integers(0, cells)), cells))
    matrix = np.vstack([rng.standard_normal((len(shared), len(shared))) @ shared, extra])
    root = rng.standard_normal((len(matrix), len(matrix))) * 10.0 ** rng.uniform(-2, 2)
    return matrix, root @ root.T


def _reuse(rng: Rng, family: str) -> RandomProblem:
    label, workload = random_workload(rng)
    words, targets = random_numbers(rng, workload.shape[0])
    matrix, covariance = _parts(rng, workload.shape[1], rng.standard_normal((1, workload.shape[1])))
    return RandomProblem(
        f"{family}: {label}; {words}; released {len(matrix)} rows",
        lambda: ReuseFitness(workload, targets, LinearGaussianMechanism(matrix, covariance)),
    )


def _local(rng: Rng, family: str) -> RandomProblem:
    label, workload = random_workload(rng, MOST_TYPES)
    types, epsilon = workload.shape[1], float(10.0 ** rng.uniform(-2, 1))
    kind = _one_of(rng, ("average", "worst", "prior"))
    weights = rng.random(types)
    prior = weights / weights.sum() if kind == "prior" else None
    criterion = "average" if kind == "prior" else kind
    return RandomProblem(
        f"{family}: {label}; epsilon {epsilon:.3g}, {kind}", lambda: LocalStrategy(workload, epsilon, criterion, prior)
    )


def _projection(rng: Rng, family: str) -> RandomProblem:
    label, matrix = _matrix(rng, int(rng.integers(1, 7)), int(rng.integers(1, 6)))
    epsilon = float(10.0 ** rng.uniform(-2, 1))
    share = float(rng.random())
    floor = np.full(len(matrix), share / len(matrix)) if rng.random() < 0.3 else None
    words = "" if floor is None else f", floors of {share:.3g} in all"
    return RandomProblem(
        f"{family}: {label}; epsilon {epsilon:.3g}{words}", lambda: LocalProjection(matrix, epsilon, floor)
    )


def _estimate(rng: Rng, family: str) -> RandomProblem:
    label, workload = random_workload(rng)
    answers = rng.standard_normal(workload.shape[0]) * 10.0 ** rng.uniform(-3, 3)
    total = float(10.0 ** rng.uniform(-2, 3)) if rng.random() < 0.5 else None
    return RandomProblem(f"{family}: {label}; total {total}", lambda: NonnegativeEstimate(workload, answers, total))


FAMILIES: dict[str, Callable[[Rng, str], RandomProblem]] = {
    "fitness": _on_geometry,
    "privacy first": _on_geometry,
    "variance": _on_geometry,
    "softmax": _softmax,
    "weighting": _weighting,
    "common": _common,
    "reuse": _reuse,
    "local strategy": _local,
    "local projection": _projection,
    "estimate": _estimate,
}
"""The functions that draw random problems of the families in this file, by the first words of their labels."""

SHARES = (0.25, 0.1, 0.15, 0.07, 0.09, 0.07, 0.07, 0.08, 0.06, 0.06)
"""Relative frequencies of these families."""

SHARE = 0.06
"""Relative frequency of a family with a file of its own."""


def families() -> dict[str, Callable[[Rng, str], RandomProblem]]:
    """Return the functions that draw random problems of all families, those with files of their own last."""
    return FAMILIES | {name: module.draw for name, module in family_files().items()}


def _one_of(rng: Rng, known: Any) -> Any:
    return [*known][int(rng.integers(len(known)))]
