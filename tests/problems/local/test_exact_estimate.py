"""Certified intervals of estimates and projections hold the optimum, found in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.linalg import exactly_independent


def solved(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """Return the solution of a square system, None where it is singular."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for place in range(size):
        pivot = next((each for each in range(place, size) if rows[each][place]), None)
        if pivot is None:
            return None
        rows[place], rows[pivot] = rows[pivot], rows[place]
        for other in range(size):
            if other != place and rows[other][place]:
                factor = rows[other][place] / rows[place][place]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[place], strict=True)]
    return [rows[place][-1] / rows[place][place] for place in range(size)]


def least_distance(problem: dm.NonnegativeEstimate) -> Fraction:
    """Return the optimum exactly: least squares on every set of independent cells, by normal equations."""
    columns = [[Fraction(entry) for entry in column] for column in problem.workload.dense().T.tolist()]
    answers = [Fraction(entry) for entry in problem.answers.tolist()]
    total = None if problem.total is None else Fraction(problem.total)
    best = None if total is not None else sum(each * each for each in answers) / 2
    for size in range(1, len(columns) + 1):
        for cells in combinations(columns, size):
            gram = [[Fraction(sum(a * b for a, b in zip(u, v, strict=True))) for v in cells] for u in cells]
            right = [Fraction(sum(a * b for a, b in zip(u, answers, strict=True))) for u in cells]
            if total is not None:
                one = Fraction(1)
                gram = [[*row, one] for row in gram] + [[one] * size + [Fraction(0)]]
                right.append(total)
            data = solved(gram, right)
            if data is None or min(data[:size]) < 0:
                continue
            missed = [
                sum(column[query] * value for column, value in zip(cells, data[:size], strict=True)) - answer
                for query, answer in enumerate(answers)
            ]
            distance = Fraction(sum(each * each for each in missed)) / 2
            best = distance if best is None else min(best, distance)
    assert best is not None
    return best


def holds(certificate: dm.Certificate, optimum: Fraction) -> bool:
    low, high = certificate.interval
    return Fraction(low) <= optimum and (high == np.inf or optimum <= Fraction(high))


@pytest.mark.parametrize(
    ("matrix", "answers", "estimate", "multipliers"),
    [
        ([[-2, 1, 1]], [1], [0, 0, 0], [-1]),
        ([[1, 0, 0, 0], [0, -2, 1, 1]], [0, 1], [0, 0, 0, 0], [0, -1]),
        # Two columns that cancel but for the last digit: together they reach what neither nearly does.
        ([[1, -1], [-1 - 2.0**-52, 1]], [-1, -1], [0, 0], [1, 1]),
        ([[1, -1, 0], [-1 - 2.0**-52, 1, 0], [0, 0, 1]], [-1, -1, 2], [0, 0, 2], [1, 1, 0]),
        ([[1, 1e13]], [-8999], [1, -0.9e-9], [1]),
    ],
)
def test_what_no_multipliers_prove_is_not_certified(
    matrix: Any, answers: Any, estimate: Any, multipliers: Any
) -> None:
    problem = dm.NonnegativeEstimate(dm.Workload(matrix), answers)
    judged = problem.certify(estimate, dm.EstimateDual(np.array(multipliers, dtype=float)))
    assert holds(judged, least_distance(problem))


def test_columns_that_cancel_exactly_still_prove_what_is_left() -> None:
    """Orthogonal to both columns of the first pair, (1, 1, 1) sees the answers from √3 away."""
    problem = dm.NonnegativeEstimate(dm.Workload([[1, -1, 0], [-1, 1, 1], [0, 0, -1]]), [1.0, 1.0, 1.0])
    judged = problem.certify([0, 0, 0], dm.EstimateDual(np.full(3, -1.0)))
    assert least_distance(problem) == Fraction(3, 2)
    assert judged.objective == 1.5 and judged.lower_bound == pytest.approx(1.5, rel=1e-12)


SCALES = st.sampled_from([1e-12, 1e-6, 1.0, 1.0, 1.0, 1e6, 1e12])


@given(st.integers(0, 2**32 - 1), SCALES, SCALES, st.booleans(), st.booleans())
def test_intervals_hold_the_exact_optimum(
    seed: int, unit: float, noise: float, known: bool, tied: bool
) -> None:
    """Nearly consistent answers among them, cells that are the same or cancel, and queries of other units."""
    rng = np.random.default_rng(seed)
    queries, cells = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    matrix = rng.integers(-2, 3, (queries, cells)) * (1 + 1e-9 * rng.standard_normal((queries, 1)))
    if tied:
        matrix = np.column_stack([matrix, rng.choice([-1, 1, 2]) * matrix[:, 0]])
    matrix[0, 0] = matrix[0, 0] or 1.0
    matrix[-1] *= unit
    data = np.maximum(rng.standard_normal(matrix.shape[1]), 0)
    answers = matrix @ data + noise * 1e-9 * rng.standard_normal(queries) * np.abs(matrix).max(axis=1)
    total = float(data.sum()) if known else None
    problem = dm.NonnegativeEstimate(dm.Workload(matrix), answers, total)
    optimum = least_distance(problem)
    answer = fast.solve(problem, tol=0.5)
    assert holds(answer.certificate, optimum)
    rough = dm.EstimateDual(answer.dual.residual * (1 + 1e-6 * rng.standard_normal(queries)))
    nudged = answer.primal - 1e-10 * answer.primal.sum() * (rng.random(len(answer.primal)) < 0.5)
    assert holds(problem.certify(nudged, rough), optimum)


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([1e-9, 1e-3, 1.0]), st.sampled_from([1e-6, 1e-2, 1.0, 60.0])
)
def test_projections_of_equal_columns_are_those_onto_a_simplex(
    seed: int, noise: float, epsilon: float
) -> None:
    rng = np.random.default_rng(seed)
    outputs, size = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    column = rng.dirichlet(np.ones(outputs)) + noise * rng.standard_normal(outputs)
    problem = dm.LocalProjection(np.repeat(column[:, None], size, axis=1), epsilon)
    simplex = dm.NonnegativeEstimate(dm.workloads.identity(outputs), column, total=1)
    optimum = size * least_distance(simplex)
    answer = fast.solve(problem)
    assert holds(answer.certificate, optimum)
    nudged = answer.primal * (1 + 1e-10 * rng.standard_normal(answer.primal.shape))
    assert holds(problem.certify(nudged, answer.dual), optimum)


def test_exact_independence() -> None:
    thirds = np.array([[1.0, 1.0, 2.0], [1.0, 1.0 + 2.0**-52, 2.0], [3.0, 3.0, 6.0]])
    assert exactly_independent(thirds) == [0, 1]
    assert exactly_independent(np.zeros((2, 2))) == []
    assert exactly_independent(np.random.default_rng(0).standard_normal((300, 300))) is None
