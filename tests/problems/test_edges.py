"""Small problems that used to end in an error of Python's or NumPy's own."""

import itertools
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.command.entry import _out_of_memory
from dualmech.watching import without_warnings

W = dm.workloads


@pytest.mark.parametrize(
    ("prior", "tol"),
    [
        ([1 / 3 + 2e-13, 1 / 3 - 1e-13, 1 / 3 - 1e-13], 1e-4),
        ([0.0, 1.0, 0.0], 1e-9),
        ([0.9992385549763189, 0.0007614450236811, 0.0], 1e-4),
    ],
)
def test_local_strategies_of_the_least_epsilon_end_with_an_answer(prior: Any, tol: float) -> None:
    with without_warnings():
        answer = fast.solve(dm.LocalStrategy(W.prefix(3), 1e-6, prior=np.array(prior) / sum(prior)), tol=tol)
    assert answer.certificate.lower_bound <= answer.certificate.objective


def test_a_query_of_nothing_beside_a_release_of_one_cell() -> None:
    released = dm.LinearGaussianMechanism([[1.0]], [[1e-6]])
    for neighbours in ("add-remove:2", np.array([[1.0, 2.0]]), None):
        problem = dm.ReuseFitness(dm.Workload([[1], [0]]), [10.0, 1.0], released, neighbours=neighbours)
        assert fast.solve(problem).gap <= 1e-6


def test_what_no_neighbour_moves_is_refused() -> None:
    for geometry, asked in itertools.product(
        ("blocks", "dense", "auto"), (W.marginals([3, 2], ways=0), W.union({"a": 3, "b": 2}, {"all": []}))
    ):
        for family in (dm.TotalVariance, dm.FitnessForUse):
            with pytest.raises(dm.errors.InvalidInputError, match="neighbours must change at least one query"):
                family(asked, neighbours="replace", geometry=geometry)


def test_a_library_that_finds_no_memory_is_told_from_one_that_is_missing() -> None:
    error = ImportError("scipy is broken")
    error.__cause__ = ImportError("libopenblas.so: failed to map segment from shared object")
    assert _out_of_memory(error) and _out_of_memory(MemoryError())
    assert not _out_of_memory(ImportError("No module named 'cvxpy'"))
