"""What is exactly the same problem has an optimum that both certified intervals hold, whatever the rows are like."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.validate import Array

Case = tuple[Array, Array, Array]

FAMILIES = ("fitness", "privacy first", "variance", "weighting", "weighting, pure", "local", "local, worst")


def posed(family: str, matrix: Array, numbers: Array, moves: Array) -> Any:
    """Return a problem of queries with numbers, and differences of neighbours where the family has them."""
    workload = dm.Workload(matrix)
    if family == "fitness":
        return dm.FitnessForUse(workload, numbers, neighbours=moves)
    if family == "privacy first":
        return dm.PrivacyFirst(workload, numbers, 1.0, neighbours=moves)
    if family == "variance":
        return dm.TotalVariance(workload, 1 / numbers, neighbours=moves)
    if family.startswith("weighting"):
        privacy = "pure" if family.endswith("pure") else "approximate"
        return dm.QueryWeighting(workload, matrix, privacy, moves)
    return dm.LocalStrategy(workload, 1.0, "worst" if family.endswith("worst") else "average")


def data(seed: int) -> Case:
    """Return queries in whole numbers, some nearly parallel or short, with targets, and all cells as neighbours."""
    rng = np.random.default_rng(seed)
    cells = int(rng.integers(2, 4))
    matrix = rng.integers(-3, 4, (cells, cells)) + 4.0 * np.eye(cells)
    if seed % 3 == 0:
        matrix[-1] = matrix[0] + 2.0 ** -int(rng.integers(3, 25)) * matrix[-1]
    if seed % 3 == 1:
        matrix[-1] *= 2.0 ** -int(rng.integers(10, 25))
    return matrix, np.square(matrix).sum(axis=1) * rng.integers(1, 4, cells), np.eye(cells)


def permuted(family: str, case: Case, rng: np.random.Generator) -> tuple[Case, float]:
    matrix, numbers, moves = case
    rows, columns = rng.permutation(len(matrix)), rng.permutation(matrix.shape[1])
    return (matrix[rows][:, columns], numbers[rows], moves[columns]), 1.0


def in_other_units(family: str, case: Case, rng: np.random.Generator) -> tuple[Case, float]:
    """All answers in a unit that is a power of 2: squares of it are the unit of variances."""
    matrix, numbers, moves = case
    unit = 2.0 ** int(rng.integers(-20, 21))
    if family in ("fitness", "privacy first", "variance"):
        return (matrix * unit, numbers * unit**2, moves), 1.0
    return (matrix * unit, numbers, moves), unit**2


def repeated_neighbour(family: str, case: Case, rng: np.random.Generator) -> tuple[Case, float]:
    matrix, numbers, moves = case
    return (matrix, numbers, np.hstack([moves, -moves[:, :1]])), 1.0


def doubled_cell(family: str, case: Case, rng: np.random.Generator) -> tuple[Case, float]:
    """Records of the new cell count as those of the first: neighbours are no more different than before."""
    matrix, numbers, moves = case
    whole = np.zeros((len(moves) + 1, moves.shape[1] + 1))
    whole[:-1, :-1], whole[-1, -1] = moves, 1.0
    return (np.hstack([matrix, matrix[:, :1]]), numbers, whole), 1.0


def doubled_query(family: str, case: Case, rng: np.random.Generator) -> tuple[Case, float]:
    """Asked twice with the same target; of a sum, with half the weight each."""
    matrix, numbers, moves = case
    own = np.r_[numbers, numbers[:1]]
    if family == "variance":
        own[[0, -1]] *= 2
    return (np.vstack([matrix, matrix[:1]]), own, moves), 1.0


def split_query(family: str, case: Case, rng: np.random.Generator) -> tuple[Case, float]:
    """A query as two parallel ones: 3/5 and 4/5 of a multiple of five, whose squares add up to it."""
    matrix, numbers, moves = case
    rows = np.vstack([5 * matrix[:1], matrix[1:]])
    parts = np.vstack([rows[0] * 3 / 5, rows[1:], rows[0] * 4 / 5])
    own = np.r_[numbers[0] * 9, numbers[1:], numbers[0] * 16]
    if family == "variance":
        own = np.r_[numbers[0], numbers[1:], numbers[0]] * np.r_[25.0, np.ones(len(numbers) - 1), 25.0]
    return (parts, own, moves), 1.0


CHANGES = (permuted, in_other_units, repeated_neighbour, doubled_cell, doubled_query, split_query)


def applies(family: str, change: Any) -> bool:
    """Whether the change leaves the optimum alone: a design is no set of questions, and users are no records."""
    if family.startswith("weighting"):
        return change in (permuted, in_other_units, repeated_neighbour, doubled_cell)
    if family.startswith("local"):
        return change in (permuted, in_other_units)
    return True


def interval(problem: Any) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        low, high = fast.solve(problem, tol=1e-6, time_limit=20).certificate.interval
    return low, high


def parted(family: str, change: Any, seed: int) -> str:
    """Return what is wrong: nothing where both intervals meet."""
    case = data(seed)
    other, factor = change(family, case, np.random.default_rng(seed))
    first, second = interval(posed(family, *case)), interval(posed(family, *other))
    if max(first[0] * factor, second[0]) > min(first[1] * factor, second[1]):
        return f"{family}, {change.__name__}, seed {seed}: {first} times {factor}, {second}"
    return ""


PAIRS = [(family, change) for family in FAMILIES for change in CHANGES if applies(family, change)]


@pytest.mark.parametrize(("family", "change"), PAIRS)
def test_the_same_problem_in_other_words_has_the_same_optimum(family: str, change: Any) -> None:
    assert not [found for seed in range(3) if (found := parted(family, change, seed))]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "change"), PAIRS)
def test_the_same_problem_in_other_words_has_the_same_optimum_in_many_cases(family: str, change: Any) -> None:
    assert not [found for seed in range(3, 600) if (found := parted(family, change, seed))]
