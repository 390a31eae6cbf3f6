"""Proofs in fractions, of whatever small problem has one: the judge finds the same, and exact arithmetic is exact."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck.optima import finding, rationals
from dualmech.crosscheck.optima import surds as exact
from dualmech.watching import without_warnings

SMALL = st.integers(1, 4).flatmap(
    lambda cells: st.lists(
        st.lists(st.integers(-1, 1), min_size=cells, max_size=cells).filter(any), min_size=1, max_size=5
    )
)
NUMBERS = st.sampled_from([0.5, 1.0, 2.0, 4.0])


def posed(kind: str, rows: list[list[int]], numbers: list[float]) -> Any:
    workload = dm.Workload(rows)
    if kind == "variance":
        return dm.TotalVariance(workload, numbers, geometry="dense")
    if kind == "privacy first":
        return dm.PrivacyFirst(workload, numbers, cost=0.5, geometry="dense")
    return dm.FitnessForUse(workload, numbers, geometry="dense")


def solved(problem: Any) -> dm.Solution:
    with without_warnings():
        return fast.solve(problem, tol=1e-12)


@pytest.mark.parametrize("kind", ["fitness", "privacy first", "variance"])
@settings(max_examples=15)
@given(rows=SMALL, data=st.data())
def test_the_judge_finds_the_same(kind: str, rows: list[list[int]], data: st.DataObject) -> None:
    problem = posed(kind, rows, data.draw(st.lists(NUMBERS, min_size=len(rows), max_size=len(rows))))
    answer = solved(problem)
    proof = finding.proven(answer)
    if proof is None and (same := rationals.on_own_rows(problem)) is not None:
        problem, proof = same, finding.proven(solved(same))
    if proof is None:
        return
    lam, mu = ([*map(float, each)] for each in (proof.neighbour_weights, proof.query_weights))
    judged = problem.certify(np.array(proof.covariance, dtype=float), lam if kind == "variance" else (lam, mu))
    assert judged.feasible and judged.gap < 1e-9
    assert np.isclose(judged.objective, float(proof.optimum), rtol=1e-9)
    low, high = answer.certificate.interval
    assert low * (1 - 1e-9) <= float(proof.optimum) <= high * (1 + 1e-9)


@given(st.floats(-2, 2))
def test_a_double_stands_for_a_simple_fraction_or_for_none(value: float) -> None:
    rows = exact.exactly([value])
    assert rows is None or rows.tolist() == [[Fraction(value).limit_denominator(10**7)]]


def test_what_is_dependent_or_elsewhere_has_no_coordinates() -> None:
    one, two, other = (exact.exactly(rows) for rows in ([[1, 0]], [[1, 0], [2, 0]], [[0, 1]]))
    shares: Any = exact.on_basis(two, one)
    assert shares.tolist() == [[1], [2]]
    assert exact.on_basis(one, two) is None and exact.on_basis(other, one) is None
