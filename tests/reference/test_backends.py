"""Other open backends, where they are installed: each proves what it promises, at the tolerance that is asked."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import CLARABEL

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.reference import backends

OTHERS = ("SDPA", "CVXOPT", "COPT")
PROBLEMS: dict[str, Callable[[], Any]] = {
    "prefix": lambda: dm.FitnessForUse(dm.workloads.prefix(6), targets=1.0),
    "large units": lambda: dm.FitnessForUse(dm.Workload(1e6 * np.tri(5)), targets=np.arange(1.0, 6)),
    "variance": lambda: dm.TotalVariance(dm.workloads.all_range(5)),
    "replaced": lambda: dm.TotalVariance(dm.workloads.prefix(5), neighbours="replace"),
    "privacy first": lambda: dm.PrivacyFirst(dm.workloads.prefix(4), 1.0, cost=0.5),
    "common": lambda: dm.CommonMechanism(
        [dm.LinearGaussianMechanism(np.eye(3), cov) for cov in (np.eye(3), np.diag([1.0, 2, 3]))]
    ),
}


def need(backend: str) -> None:
    if backend not in backends.installed():
        pytest.skip(f"{backend} is not installed")


@pytest.mark.parametrize("backend", OTHERS)
def test_it_proves_what_is_asked(backend: str) -> None:
    need(backend)
    for name, state in PROBLEMS.items():
        for tol in (None, 1e-5):
            problem = state()
            answer = reference.solve(problem, backend=backend, tol=tol)
            assert answer.status is dm.Status.CERTIFIED, (name, tol)
            assert answer.tol == (tol or backends.OTHER_DEFAULT_TOLERANCE)
            assert crosscheck.compare([answer, fast.solve(problem)]).outcome is crosscheck.Agreement.AGREE, name


def test_its_failure_leaves_nothing_behind() -> None:
    """An option of one run is not another's, not even after an error: CVXOPT's are a module's own."""
    need("CVXOPT")
    problem = PROBLEMS["prefix"]()
    with pytest.raises(dm.errors.BackendError, match="CVXOPT failed"):
        reference.solve(problem, backend="CVXOPT", maxiters="many")
    assert reference.solve(problem, backend="CVXOPT").status is dm.Status.CERTIFIED


@pytest.mark.parametrize("backend", backends.ACCURACY)
def test_tolerances_follow_what_is_asked_down_to_what_it_takes(backend: str) -> None:
    known = backends.ACCURACY[backend]
    assert set(backends.accuracy(backend, 1e-3).values()) == {known.share * 1e-3}
    assert set(backends.at_tolerance(backend, 0.0).values()) == {known.minimum}
    assert backends.accuracy("NOT KNOWN", 1e-3) == {}


def test_a_package_of_another_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "sdpa-multiprecision":
            return "9.9"
        raise backends.metadata.PackageNotFoundError

    monkeypatch.setattr(backends.metadata, "version", version)
    assert backends._version("SDPA") == "9.9 (sdpa-multiprecision)"
    assert backends._version("CVXOPT") == "unknown"


def test_a_solver_object_goes_by_its_own_name() -> None:
    problem = dm.FitnessForUse(dm.workloads.prefix(3))

    class Mine(CLARABEL):
        def name(self) -> str:
            return "MINE"

    found = reference.solve(problem, backend=Mine(), formulation="matrix_frac")
    assert found.status is dm.Status.CERTIFIED and found.solver == "reference:MINE:matrix_frac"
    linear = Mine()
    linear.SUPPORTED_CONSTRAINTS = []
    with pytest.raises(dm.errors.BackendError, match="'MINE' does not support the cones PSD"):
        reference.solve(problem, backend=linear)
    assert reference.solve(problem, backend=Mine()).solver == "reference:MINE:schur"  # again, another object
    with pytest.raises(dm.errors.InputTypeError, match="backend must be a text"):
        reference.solve(problem, backend=Mine)
