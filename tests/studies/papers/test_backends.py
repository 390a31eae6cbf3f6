"""What general solvers claim is held against proofs: a value below the optimum, or a point that lies, is counted."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from commanded import run

import dualmech as dm
from dualmech import fast, reference
from dualmech.crosscheck import collection, library
from dualmech.reference import backends
from dualmech.studies.papers import backends as claims
from dualmech.studies.papers.backends import Claim
from dualmech.studies.papers.sheets import SHEETS

pytestmark = pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")

SMALL = ["fitness-prefix-2", "variance-prefix-2", "fitness-prefix-8-replaced", "variance-prefix-8-replaced"]


def says(value: float, status: str = claims.OPTIMAL, excess: float = 0.0) -> Claim:
    return Claim("made", status, value, lower=2.0, upper=2.5, excess=excess, seconds=0.0)


def test_values_are_held_against_the_interval() -> None:
    """Those inside are neither below nor above; what is not called optimal is counted apart."""
    assert [says(value).error for value in (1.0, 2.0, 2.2, 2.5, 5.0)] == [-0.5, 0.0, 0.0, 0.0, 1.0]
    counts = claims.summary([says(1.0), says(1.9), says(2.2), says(2.6), says(9.0)], 0.1)
    assert [counts[name] for name in ("below", "below_beyond", "above", "above_beyond")] == [2, 1, 2, 1]
    others = says(1.0, claims.INACCURATE), says(np.inf, "infeasible"), says(np.nan, claims.FAILED)
    counts = claims.summary(others, 0.1)
    assert not any(counts[name] for name in ("optimal", "below", "above", "infeasible"))
    assert [counts[name] for name in ("reserved", "impossible", "none")] == [1, 1, 1]


@pytest.mark.parametrize("name", SMALL)
def test_excess_of_a_raw_point_is_what_it_breaks(name: str) -> None:
    """The true optimum breaks nothing; twice or half of the noise costs, or varies, twice as much as allowed."""
    problem = library.problems()[name]()
    answer, program = fast.solve(problem, tol=1e-9), reference.formulate(problem)
    for variable in program.variables():
        variable.value = np.zeros(variable.shape)
    for scale in (1.0, 0.5, 2.0):
        if isinstance(problem, dm.FitnessForUse):
            program.var_dict["Sigma"].value = scale * answer.primal
        else:
            unmoved = problem.geometry.unmoved
            moved = scipy.linalg.null_space(unmoved) if len(unmoved) else np.eye(len(answer.primal))
            program.var_dict["X"].value = np.linalg.inv(moved.T @ answer.primal @ moved) / scale
        found = claims.excess(problem, program, answer.objective)
        assert found == pytest.approx(max(scale, 1 / scale) - 1, abs=1e-6), scale
    honest = claims.claim(name, "CLARABEL", {})
    assert honest.optimal and abs(honest.error) < 1e-6 and honest.excess < 1e-5
    assert 0 < honest.lower <= honest.upper < honest.lower * (1 + 1e-10)


def test_an_indefinite_point_or_one_without_value_breaks_everything() -> None:
    problem = library.problems()["fitness-prefix-2"]()
    program = reference.formulate(problem)
    assert np.isnan(claims.excess(problem, program, 1.0))
    for variable in program.variables():
        variable.value = -np.ones(variable.shape)
    assert claims.excess(problem, program, 1.0) == np.inf
    assert claims.excess(problem, program, -1.0) == np.inf


def test_a_value_that_is_too_low_is_found_and_a_backend_that_fails_answers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lies(program: Any, backend: str, **_: Any) -> backends.BackendRun:
        program.solve(solver="CLARABEL")
        program._value *= 0.9
        return backends.BackendRun("optimal", False, 1, 0.0)

    def fails(*_: Any, **__: Any) -> None:
        raise dm.errors.BackendError("no licence")

    monkeypatch.setattr(backends, "run", lies)
    found = claims.claim("fitness-prefix-2", "CLARABEL", {})
    assert found.error == pytest.approx(-0.1) and found.excess == pytest.approx(1 / 0.9 - 1, abs=1e-6)
    assert found.beyond(1e-3) and not found.beyond(0.1)
    monkeypatch.setattr(backends, "run", fails)
    found = claims.claim("fitness-prefix-2", "CLARABEL", {})
    assert found.status == claims.FAILED and not found.optimal and np.isnan(found.excess)


def test_small_problems_are_of_ordinary_size_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    every = collection.matrices_problems()
    few = {f"fitness-{name}": every[f"fitness-{name}"] for name in ("prefix-8", "prefix-16", "large")}
    few["variance-small"] = every["variance-small"]
    monkeypatch.setattr(collection, "matrices_problems", lambda: few)
    ordinary, others = (claims.small(8, kind) for kind in (True, False))
    assert ordinary == ("fitness-prefix-8",) and {*others} == {"fitness-large", "variance-small"}


def test_sheets_have_a_row_per_backend_and_accuracy_and_are_printed() -> None:
    tasks = SHEETS["backends/claims"].tasks(True)
    assert len(tasks) == 2 * len(claims.backends())
    assert {"CLARABEL", "SCS"} <= set(claims.backends()) and "DIFFCP" not in claims.backends()
    result = run("crosscheck", "backends/claims", "--quick")
    assert result.exit_code == 0
    assert "CLARABEL" in result.output and "Widest proven interval" in result.output
    files = run("crosscheck", "backends/files", "--quick")
    assert files.exit_code == 0 and "SCS tight" in files.output


@pytest.mark.parametrize("name", ["common-random-2-seed-0", "common-dependent-rows", "refinement-stage-2"])
def test_files_are_read_back_and_solved_near_the_optimum(name: str) -> None:
    row = claims.file_claims(name)
    assert row.width < 1e-6
    for tight, promise in ((False, 1e-4), (True, 1e-6)):
        found = getattr(row, claims.label("CLARABEL", tight))
        assert found.optimal and abs(found.error) < promise


@pytest.mark.slow
def test_all_backends_certify_in_the_layers_units_what_they_cannot_do_by_themselves() -> None:
    for task in SHEETS["backends/scales"].tasks(False):
        row = task()
        assert row.gap < 1e-3 and not any(np.isnan(part.proven) for part in row.parts), row.problem
