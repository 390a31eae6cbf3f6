"""Workloads in whole numbers on a matrix: variances and bounds by steps and Gram matrices, and from the entries."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, linalg
from dualmech.validate import Array
from dualmech.workloads import base, streams
from dualmech.workloads import steps as by_steps


@pytest.fixture(autouse=True)
def always_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_steps, "MIN_ENTRIES", 0)
    monkeypatch.setattr(by_steps, "MAX_PAIR_FRACTION", np.inf)


def whole(seed: int, count: int, cells: int) -> Array:
    """Return whole numbers: of any size, duplicated queries and cells, of lower rank, of one query or one cell."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-1, 2, (count, cells)) * 2.0 ** rng.integers(0, 12, (count, 1))
    if rng.random() < 0.3:
        rows[:, -1] = rows[:, 0]
    if rng.random() < 0.3:
        rows[-1] = rows[0]
    rows[0, 0] = 1.0
    return np.asarray(rows)


def problems(rows: Array, targets: Array) -> tuple[Any, Any]:
    """Return a problem that knows its steps, or its whole numbers, and one that knows neither."""
    known = dm.FitnessForUse(dm.Workload(rows), targets, geometry="dense")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(by_steps, "MIN_ENTRIES", 10**9)
        return known, dm.FitnessForUse(dm.Workload(rows), targets, geometry="dense")


@given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 5))
def test_both_ways_to_judge_agree(seed: int, count: int, cells: int) -> None:
    rng, rows = np.random.default_rng(seed), whole(seed, count, cells)
    known, plain = problems(rows, rng.uniform(0.1, 10, count))
    half = rng.standard_normal((known.geometry.rank,) * 2)
    covariance = half @ half.T + 0.1 * np.eye(len(half))
    weights = 10.0 ** rng.uniform(-6, 0, cells), 10.0 ** rng.uniform(-6, 0, count)
    one = known.certify(covariance, weights)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(linalg, "GRAM_ASPECT_RATIO", np.inf)
        other = plain.certify(covariance, weights)
    assert one.objective == pytest.approx(other.objective, rel=1e-9)
    assert one.lower_bound == pytest.approx(other.lower_bound, rel=1e-9)
    assert one.violation == pytest.approx(other.violation, rel=1e-9, abs=1e-12)
    assert one.resolution <= 4 * other.resolution + 4 * linalg.GRAM_DEFECT_TOL


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(2, 4))
def test_answers_of_both_meet(seed: int, cells: int, times: int) -> None:
    """Also where weights are 0, which proves no less."""
    rows = whole(seed, cells * times, cells)
    known, plain = problems(rows, np.ones(len(rows)))
    one, other = fast.solve(known, tol=1e-7), fast.solve(plain, tol=1e-7)
    assert one.status is other.status is dm.Status.CERTIFIED
    assert one.lower_bound <= other.objective * (1 + 1e-9) and other.lower_bound <= one.objective * (1 + 1e-9)
    first, last = other.dual.neighbour_weights.copy(), other.dual.query_weights.copy()
    first[-1], last[-1] = 0.0, 0.0
    if np.any(first) and np.any(last):
        assert known.certify(one.primal, (first, last)).lower_bound <= one.objective * (1 + 1e-9)


def test_all_ranges_need_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than can be written out are solved and judged, for largest variance and for total variance."""
    written = dm.workloads.all_range(12)
    reference = [fast.solve(kind(written, geometry="dense")) for kind in (dm.FitnessForUse, dm.TotalVariance)]
    monkeypatch.setattr(base, "MAX_DENSE_ENTRIES", 78 * 12 - 1)
    monkeypatch.setattr(streams, "MAX_DENSE_ENTRIES", 78 * 12 - 1)
    ranges = dm.workloads.all_range(12)
    with pytest.raises(dm.errors.InvalidInputError, match="too large for a dense matrix"):
        ranges.dense()
    for kind, known in zip((dm.FitnessForUse, dm.TotalVariance), reference, strict=True):
        answer = fast.solve(kind(ranges, geometry="dense"))
        assert answer.status is dm.Status.CERTIFIED
        assert answer.lower_bound <= known.objective and known.lower_bound <= answer.objective
        assert answer.mechanism.rho > 0


def test_noise_of_very_different_sizes_is_judged_from_the_entries() -> None:
    """Where sums over all cells lose what little noise a query meets."""
    problem = dm.FitnessForUse(dm.workloads.all_range(3), geometry="dense")
    noise = np.diag([1.0, 1.0, 1e38])
    values, off = problem.geometry.variances(noise)
    assert values[0] == 1.0 and np.all(off <= 1e-12 * values)
    assert not np.all(problem.geometry.steps.enclosed_forms(noise)[1] <= 1e-12 * values)
