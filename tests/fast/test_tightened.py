"""Noise that nothing limits, taken back: it would drown in rounding what is asked."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.fast.engine.dual_function import DenseDual

FAR_TARGETS = 10.0 ** np.array([1.8, 2, -2.5, 1.4, 3, 2, 3.8, -3.8])
ALMOST = [[1.0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1], [1, 0, 1, 0], [1.0002, -1e-4, -7e-5, 3e-5]]

HARD: dict[str, Any] = {
    "targets far apart, replaced": lambda: dm.FitnessForUse(
        dm.Workload(np.vstack([np.tri(4), np.eye(4)])), FAR_TARGETS, neighbours="replace:2", geometry="dense"
    ),
    "a large entry, replaced": lambda: dm.FitnessForUse(
        dm.Workload(np.vstack([np.diag([1.0000001e7, 1, 1]), np.ones((1, 3))])), 9.59, neighbours="replace"
    ),
    "a row nearly twice, replaced": lambda: dm.FitnessForUse(
        dm.Workload(ALMOST), [0.42, 0.03, 16.5, 0.017, 74.0], neighbours="replace:2"
    ),
    "a row of rounding": lambda: dm.TotalVariance(
        dm.Workload([[0.478, 0, 1.4848, 0], [-7e-16, 2e-16, -3e-16, 9e-16]]), [4.6, 0.0225]
    ),
}


@pytest.mark.parametrize("name", HARD)
def test_such_problems_are_certified(name: str) -> None:
    problem = HARD[name]()
    answer = fast.solve(problem, tol=1e-5)
    assert answer.status is dm.Status.CERTIFIED
    proof, (low, high) = dm.prove(answer), answer.certificate.interval
    assert low <= proof.upper and proof.lower <= high


def test_where_that_is_not_enough_an_answer_is_still_near() -> None:
    """It used to be infeasible: the judge could not tell what a move costs where its noise is."""
    workload = dm.Workload([[1e6, 1, 1], [1, 1, 0], [0, 1, 1]])
    with warnings.catch_warnings():  # Whether it ends above or below the tolerance depends on the processor.
        warnings.simplefilter("ignore", dm.errors.UncertifiedWarning)
        answer = fast.solve(dm.FitnessForUse(workload, neighbours="replace"), tol=1e-6)
    assert answer.certificate.feasible and answer.gap < 1e-4


@given(st.integers(0, 2**20), st.integers(1, 5), st.integers(1, 6), st.sampled_from([1e-6, 1e-3, 1.0]))
def test_noise_is_less_and_costs_a_share_more_at_most(seed: int, rank: int, queries: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    moves = rng.standard_normal((rank, rank + 2)) * 10.0 ** rng.uniform(-2, 2, (rank, 1))
    asked = rng.standard_normal((max(queries, rank), rank)) * 10.0 ** rng.uniform(-3, 3, rank)
    spectrum = DenseDual(asked, moves).at(rng.uniform(0.1, 1, rank + 2 + len(asked)))
    noise, tightened = spectrum.covariance(), spectrum.tightened(share)
    costs, higher = (np.einsum("ki,ki->i", moves, np.linalg.solve(each, moves)) for each in (noise, tightened))
    assert np.all(higher <= costs + share * costs.max() * (1 + 1e-6)) and np.all(higher >= costs * (1 - 1e-6))
    scale = np.sqrt(np.diagonal(noise))
    assert np.linalg.eigvalsh((noise - tightened) / np.outer(scale, scale)).min() > -1e-8
