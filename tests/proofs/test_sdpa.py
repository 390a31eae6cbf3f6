"""Semidefinite programs as SDPA files: what is on disk states the problem, and whoever solves it finds the optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import library, sdpa
from dualmech.reference import backends

NAMES = [
    *("fitness-prefix-4", "variance-prefix-4", "fitness-ranges-4", "variance-rank-deficient", "fitness-one-row"),
    *("fitness-tall", "variance-zeros", "fitness-prefix-8-household", "fitness-prefix-8-replaced"),
    *("variance-prefix-8-replaced", "variance-prefix-8-three-records", "fitness-nearly-dependent"),
]


def program_of_file(program: sdpa.SparseProgram) -> tuple[cp.Problem, cp.Variable]:
    """Build the program from what is in the file alone: this is all that a reader needs to know."""
    x = cp.Variable(len(program.objective))
    constraints = []
    for number, size in enumerate(program.blocks, start=1):
        own = [entry for entry in program.entries if entry[1] == number]
        rows, columns = np.array([entry[2:4] for entry in own]).T - 1
        matrices, values = np.array([entry[0] for entry in own]), np.array([entry[4] for entry in own])
        side = abs(size)
        places = rows if size < 0 else rows * side + columns
        whole = sp.coo_array((values, (places, matrices)), shape=(side if size < 0 else side**2, x.size + 1)).tocsc()
        slack = whole[:, 1:] @ x - whole[:, [0]].toarray()[:, 0]
        if size < 0:
            constraints.append(slack >= 0)
        else:
            upper = cp.reshape(slack, (side, side), order="C")
            mask = np.triu(np.ones((side, side)), 1)
            constraints.append(upper + cp.multiply(mask, upper).T >> 0)
    return cp.Problem(cp.Minimize(program.objective @ x), constraints), x


def problems() -> dict[str, Any]:
    found = {name: library.problems()[name] for name in NAMES}
    found["privacy-first"] = lambda: dm.PrivacyFirst(dm.workloads.prefix(4), [1, 2, 3, 4], cost=0.3)
    found["a weight of 0"] = lambda: dm.TotalVariance(dm.workloads.prefix(4), [1, 0, 2, 1], geometry="dense")
    return found


@pytest.mark.parametrize("name", problems())
def test_who_solves_the_file_finds_the_optimum(name: str, tmp_path: Path) -> None:
    problem = problems()[name]()
    proof = dm.prove(fast.solve(problem, tol=1e-9))
    sdpa.write(sdpa.sparse_program(problem), tmp_path / "p.dat-s")
    program, x = program_of_file(sdpa.read(tmp_path / "p.dat-s"))
    value = program.solve(solver="CLARABEL")
    assert float(proof.lower) * (1 - 1e-5) <= value <= float(proof.upper) * (1 + 1e-5)
    assert x.value is not None
    noise = sdpa.covariance(problem, x.value)
    noise = problem.feasible(noise + 1e-6 * np.trace(noise) * np.eye(len(noise)))  # solvers leave the cone a little
    multipliers = np.maximum(program.constraints[1].dual_value, 0)
    pairs = problem.geometry.moves.shape[1]
    weights = dm.duals.FitnessDual(multipliers[:pairs], multipliers[pairs:])
    achieved = problem.certify(
        noise, dm.duals.VarianceDual(multipliers[:pairs]) if isinstance(problem, dm.TotalVariance) else weights
    )
    assert achieved.feasible and achieved.gap < 1e-3


@pytest.mark.parametrize("name", problems())
def test_what_is_written_is_read_and_written_the_same(name: str, tmp_path: Path) -> None:
    program = sdpa.sparse_program(problems()[name]())
    path = tmp_path / "p.dat-s"
    sdpa.write(program, path)
    again = sdpa.read(path)
    assert again.entries == program.entries and again.blocks == program.blocks
    assert again.remark == program.remark and np.array_equal(again.objective, program.objective)
    before = path.read_bytes()
    sdpa.write(again, path)
    assert path.read_bytes() == before


@given(st.integers(0, 2**20), st.integers(1, 5), st.integers(1, 4), st.sampled_from(["fitness", "privacy", "variance"]))
def test_slack_is_what_variances_and_costs_leave(seed: int, queries: int, cells: int, family: str) -> None:
    """At any covariance: costs as Z has them, and variances of the problem's own judge."""
    rng = np.random.default_rng(seed)
    workload, numbers = dm.Workload(rng.standard_normal((queries, cells))), rng.uniform(0.5, 2, queries)
    problem: Any = {
        "fitness": lambda: dm.FitnessForUse(workload, numbers, geometry="dense"),
        "privacy": lambda: dm.PrivacyFirst(workload, numbers, cost=0.7, geometry="dense"),
        "variance": lambda: dm.TotalVariance(workload, numbers, geometry="dense"),
    }[family]()
    moves, rows = problem.geometry.moves, problem.geometry.representation
    root = rng.standard_normal((len(moves), len(moves) + 2))
    noise, value = root @ root.T, float(rng.uniform(0.1, 5))
    costs = moves.T @ np.linalg.solve(noise, moves)
    x = np.concatenate([[value], noise[np.triu_indices(len(noise))], costs[np.triu_indices(len(costs))]])
    schur, limits = sdpa.sparse_program(problem).slack(x)
    assert np.allclose(schur, np.block([[noise, moves], [moves.T, costs]]))
    variances = np.einsum("jk,kl,jl->j", rows, noise, rows)
    left = {
        "fitness": [*(value - np.diag(costs)), *(numbers - variances)],
        "privacy": [*(0.7 - np.diag(costs)), *(value * numbers - variances)],
        "variance": [*(1 - np.diag(costs)), value - numbers @ variances],
    }[family]
    assert np.allclose(limits, left)
    assert np.allclose(sdpa.covariance(problem, x), noise)


def test_numbers_keep_all_their_digits(tmp_path: Path) -> None:
    third = dm.FitnessForUse(dm.Workload([[1 / 3, 1e-30], [0, 2.0]]), [0.1, 1e22], geometry="dense")
    program = sdpa.sparse_program(third)
    sdpa.write(program, tmp_path / "p.dat-s")
    values = {entry[4] for entry in sdpa.read(tmp_path / "p.dat-s").entries}
    assert {-0.1, -1e22, -((1 / 3) ** 2), -4.0} <= values


def test_the_weighted_sum_is_rounded_once() -> None:
    """Where products cancel, a sum in doubles would lose what is left."""
    workload = dm.Workload([[1e8, 1e8 + 1], [1.0, 1.0], [1e8, -1e8]])
    program = sdpa.sparse_program(dm.TotalVariance(workload, geometry="dense"))
    (mixed,) = (value for matrix, block, row, _, value in program.entries if (matrix, block, row) == (3, 2, 3))
    assert mixed == -2.0 * (1e8 + 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ends before the objective"),
        ("1\n1\n2\n", "ends before the objective"),
        ("2\n1\n2\n1\n", "2 variables and 1 numbers"),
        ("1\n2\n2\n1\n", "other blocks"),
        ("1\n1\n0\n1\n", "other blocks"),
        ("1\n1\n2\nnan\n", "not finite"),
        ("1\n1\n2\nx\n", "not a readable SDPA file"),
        ("1\n1\n2\n1\n1 1 1\n", "line 5: must be a matrix"),
        ("1\n1\n2\n1\n2 1 1 1 1\n", "line 5: there is no such"),
        ("1\n1\n2\n1\n1 2 1 1 1\n", "line 5: there is no such"),
        ("1\n1\n2\n1\n1 1 2 1 1\n", "upper triangle"),
        ("1\n1\n2\n1\n1 1 1 3 1\n", "upper triangle"),
        ("1\n1\n-2\n1\n1 1 1 2 1\n", "on the diagonal"),
        ("1\n1\n2\n1\n1 1 1 1 1e999\n", "finite"),
        ("1" * 9999 + "\n1\n2\n1\n", "not a readable SDPA file"),
    ],
)
def test_what_is_no_such_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "p.dat-s"
    path.write_text(text)
    with pytest.raises(dm.errors.FileFormatError, match=words):
        sdpa.read(path)


def test_files_of_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p.dat-s"
    path.write_text(
        '"of others\n* two\n 1 = mDIM\n1 = nBLOCK\n(2) = bLOCKsTRUCT\n{1.0e+00}\n\n0 1 1 1 +1.5\n1,1,1,2,-1\n'
    )
    program = sdpa.read(path)
    assert program.entries == ((0, 1, 1, 1, 1.5), (1, 1, 1, 2, -1.0)) and program.blocks == (2,)
    assert np.array_equal(program.slack(np.array([2.0]))[0], [[-1.5, -2.0], [-2.0, 0.0]])


def test_a_problem_without_such_a_program_is_refused() -> None:
    smooth = dm.SoftmaxFitness(dm.workloads.prefix(2), 1.0, t1=5.0, t2=5.0)
    with pytest.raises(dm.errors.InvalidInputError, match="problem must have a program in semidefinite cones"):
        sdpa.sparse_program(smooth)
    with pytest.raises(dm.errors.InputTypeError, match="problem must be one that the reference layer states"):
        sdpa.sparse_program(3)
    with pytest.raises(dm.errors.InvalidInputError, match="problem.factors"):
        sdpa.sparse_program(library.problems()["fitness-product-prefix-32x16"]())
    fitness = dm.FitnessForUse(dm.workloads.prefix(2), geometry="dense")
    with pytest.raises(dm.errors.InvalidInputError, match="semidefinite cones"):
        sdpa.sparse_program(fitness, "logdet")
    with pytest.raises(dm.errors.InvalidInputError, match="formulation"):
        sdpa.sparse_program(fitness, "none")


def test_the_library_has_them_with_the_basis(tmp_path: Path) -> None:
    names = ["fitness-prefix-4", "fitness-rank-deficient", "fitness-prefix-64"]
    for each in library.build(tmp_path, names):
        path, data = tmp_path / f"{each.name}.dat-s", library.arrays(tmp_path, each.name)
        assert path.exists() == (each.cells <= 16) and "basis" in data
        if path.exists():
            rank = len(data["basis"])
            assert sdpa.read(path).blocks == (rank + each.cells, -each.cells - each.queries)
            assert np.linalg.matrix_rank(np.vstack([data["basis"], data["workload"]])) == rank


@pytest.mark.filterwarnings("ignore")  # it leaves the file open, and warns of its own checks
@pytest.mark.parametrize("name", ["fitness-prefix-4", "variance-rank-deficient"])
def test_sdpas_own_reader_and_solver_find_the_same(name: str, tmp_path: Path) -> None:
    """SDPA reads the file by itself, and solves it without CVXPY."""
    if "SDPA" not in backends.installed():
        pytest.skip("SDPA is not installed")
    sdpap = pytest.importorskip("sdpap")
    problem = library.problems()[name]()
    sdpa.write(sdpa.sparse_program(problem), tmp_path / "p.dat-s")
    A, b, c, K, J = sdpap.importsdpa(str(tmp_path / "p.dat-s"))
    _, _, found, *_ = sdpap.solve(A, b, c, K, J, {"print": "no"})
    proof = dm.prove(fast.solve(problem, tol=1e-9))
    # Its own form states the dual of the file, as a minimum.
    assert -found["primalObj"] == pytest.approx(float(proof.lower), rel=1e-5)
