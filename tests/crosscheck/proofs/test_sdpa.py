"""Semidefinite programs as SDPA files: what is on disk states the problem, and whoever solves it finds the optimum."""

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.crosscheck import library, sdpa
from dualmech.reference import backends

NAMES = [
    *("fitness-prefix-4", "variance-prefix-4", "fitness-ranges-4", "variance-rank-deficient", "fitness-one-row"),
    *("fitness-tall", "variance-zeros", "fitness-prefix-8-household", "fitness-prefix-8-replaced"),
    *("variance-prefix-8-replaced", "variance-prefix-8-three-records", "fitness-nearly-dependent"),
]


def program_of_text(text: str) -> tuple[cp.Problem, Any]:
    """Build the program from a file's text alone, without the library: this is all that a reader needs to know."""
    count, _, sizes, objective, *lines = (line.split() for line in text.splitlines() if line[0] != '"')
    x: Any = cp.Variable(int(count[0]))
    blocks: list[Any] = [[np.zeros((abs(int(size)),) * 2) for _ in range(x.size + 1)] for size in sizes]
    for number, block, row, column, value in lines:
        place = blocks[int(block) - 1][int(number)]
        place[int(row) - 1, int(column) - 1] = place[int(column) - 1, int(row) - 1] = float(value)
    slacks = [cp.sum([a * F for a, F in zip(x, Fs[1:], strict=True)]) - Fs[0] for Fs in blocks]
    limits = [cp.diag(each) >= 0 if size[0] == "-" else each >> 0 for each, size in zip(slacks, sizes, strict=True)]
    return cp.Problem(cp.Minimize(np.array(objective, dtype=float) @ x), limits), x


def text_of(problem: Any, formulation: str | None = None) -> str:
    return sdpa.text(problem, reference.matrix_inequalities(problem, formulation))


def problems() -> dict[str, Any]:
    found = {name: library.problems()[name] for name in NAMES}
    found["privacy-first"] = lambda: dm.PrivacyFirst(dm.workloads.prefix(4), [1, 2, 3, 4], cost=0.3)
    found["a weight of 0"] = lambda: dm.TotalVariance(dm.workloads.prefix(4), [1, 0, 2, 1], geometry="dense")
    return found


@pytest.mark.parametrize("name", problems())
def test_who_solves_the_file_finds_the_optimum(name: str) -> None:
    problem = problems()[name]()
    proof = dm.prove(fast.solve(problem, tol=1e-9))
    program, x = program_of_text(text_of(problem))
    value = program.solve(solver="CLARABEL")
    assert float(proof.lower) * (1 - 1e-5) <= value <= float(proof.upper) * (1 + 1e-5)
    assert x.value is not None
    named, is_variance = reference.matrix_inequalities(problem).values(x.value), isinstance(problem, dm.TotalVariance)
    noise = np.linalg.inv(named["X"]) if is_variance else named["Sigma"]
    if len(noise) < problem.geometry.rank:  # X is on the space that neighbours move
        return
    noise = problem.feasible(noise + 1e-6 * np.trace(noise) * np.eye(len(noise)))  # solvers leave the cone a little
    multipliers = np.maximum(program.constraints[0].dual_value, 0)
    pairs = problem.geometry.moves.shape[1]
    weights = dm.duals.FitnessDual(multipliers[:pairs], multipliers[pairs:])
    achieved = problem.certify(noise, dm.duals.VarianceDual(multipliers) if is_variance else weights)
    assert achieved.feasible and achieved.gap < 1e-3


@given(st.integers(0, 2**20), st.integers(1, 5), st.integers(1, 4), st.sampled_from(["fitness", "privacy"]))
def test_slack_is_what_variances_and_costs_leave(seed: int, queries: int, cells: int, family: str) -> None:
    """At any covariance: costs as Z has them, and variances of the problem's own judge."""
    rng = np.random.default_rng(seed)
    workload, numbers = dm.Workload(rng.standard_normal((queries, cells))), rng.uniform(0.5, 2, queries)
    problem: Any = {
        "fitness": lambda: dm.FitnessForUse(workload, numbers, geometry="dense"),
        "privacy": lambda: dm.PrivacyFirst(workload, numbers, cost=0.7, geometry="dense"),
    }[family]()
    moves, rows = problem.geometry.moves, problem.geometry.representation
    root = rng.standard_normal((len(moves), len(moves) + 2))
    noise, value = root @ root.T, float(rng.uniform(0.1, 5))
    costs = moves.T @ np.linalg.solve(noise, moves)
    x = np.concatenate([[value], noise[np.triu_indices(len(noise))], costs[np.triu_indices(len(costs))]])
    written = reference.matrix_inequalities(problem)
    limits, schur = sdpa.slack(written, x)
    assert np.allclose(schur, np.block([[noise, moves], [moves.T, costs]]))
    variances = np.einsum("jk,kl,jl->j", rows, noise, rows)
    left = {
        "fitness": [*(value - np.diag(costs)), *(numbers - variances)],
        "privacy": [*(0.7 - np.diag(costs)), *(value * numbers - variances)],
    }[family]
    assert np.allclose(limits, left)
    assert np.allclose(written.values(x)["Sigma"], noise)


def test_numbers_keep_all_their_digits() -> None:
    third = dm.FitnessForUse(dm.Workload([[1 / 3, 1e-30], [0, 2.0]]), [0.1, 1e22], geometry="dense")
    values = {float(line.split()[4]) for line in text_of(third).splitlines()[5:]}
    assert {-0.1, -1e22, -((1 / 3) ** 2), -4.0} <= values


def test_a_problem_without_such_a_program_is_refused() -> None:
    smooth = dm.SoftmaxFitness(dm.workloads.prefix(2), 1.0, t1=5.0, t2=5.0)
    with pytest.raises(dm.errors.InvalidInputError, match="problem must have a program in semidefinite cones"):
        text_of(smooth)
    with pytest.raises(dm.errors.InputTypeError, match="problem must be one that the reference layer states"):
        text_of(3)
    with pytest.raises(dm.errors.InvalidInputError, match="problem.factors"):
        text_of(library.problems()["fitness-product-prefix-32x16"]())
    fitness = dm.FitnessForUse(dm.workloads.prefix(2), geometry="dense")
    with pytest.raises(dm.errors.InvalidInputError, match="semidefinite cones"):
        text_of(fitness, "logdet")
    with pytest.raises(dm.errors.InvalidInputError, match="formulation"):
        text_of(fitness, "none")


def test_the_library_has_them_with_the_basis(tmp_path: Path) -> None:
    names = ["fitness-prefix-4", "fitness-rank-deficient", "fitness-prefix-64"]
    for each in library.build(tmp_path, names):
        path, data = tmp_path / f"{each.name}.dat-s", library.arrays(tmp_path, each.name)
        assert path.exists() == (each.cells <= 16) and "basis" in data
        if path.exists():
            rank = len(data["basis"])
            sizes = path.read_text(encoding="ascii").splitlines()[3]
            assert sizes == f"{-each.cells - each.queries} {rank + each.cells}"
            assert np.linalg.matrix_rank(np.vstack([data["basis"], data["workload"]])) == rank


@pytest.mark.filterwarnings("ignore")  # it leaves the file open, and warns of its own checks
@pytest.mark.parametrize("name", ["fitness-prefix-4", "variance-rank-deficient"])
def test_sdpas_own_reader_and_solver_find_the_same(name: str, tmp_path: Path) -> None:
    """SDPA reads the file by itself, and solves it without CVXPY."""
    if "SDPA" not in backends.installed():
        pytest.skip("SDPA is not installed")
    sdpap = pytest.importorskip("sdpap")
    problem = library.problems()[name]()
    (tmp_path / "p.dat-s").write_text(text_of(problem), encoding="ascii")
    A, b, c, K, J = sdpap.importsdpa(str(tmp_path / "p.dat-s"))
    _, _, found, *_ = sdpap.solve(A, b, c, K, J, {"print": "no"})
    proof = dm.prove(fast.solve(problem, tol=1e-9))
    # Its own form states the dual of the file, as a minimum.
    assert -found["primalObj"] == pytest.approx(float(proof.lower), rel=1e-5)


def dependent_rows() -> dm.CommonMechanism:
    """State the common part of mechanisms that measure more than they have ranks, and less than all cells."""
    rng = np.random.default_rng(5)
    shared, found = rng.standard_normal((2, 5)), []
    for _ in range(3):
        queries = rng.standard_normal((4, 3)) @ np.vstack([shared, rng.standard_normal((1, 5))])
        root = rng.standard_normal((4, 4))
        found.append(dm.LinearGaussianMechanism(queries, root @ root.T))
    return dm.CommonMechanism(found)


def stage(number: int) -> Any:
    problem = dm.FitnessForUse(dm.Workload([[1, 0, 0], [1, 1, 0], [0, 0, 1]]), [1, 1, 4])
    return fast.refine(problem, tol=1e-9).stages[number].problem


OTHERS: dict[str, Any] = {
    **{f"common-random-{count}": library.problems()[f"common-random-{count}-seed-0"] for count in (2, 3, 4)},
    "common-dependent-rows": dependent_rows,
    "common-rank-one": library.problems()["common-example-312"],
    "weighting": library.problems()["weighting-prefix-8-eigen-queries-approximate"],
    "weighting-pure": library.problems()["weighting-prefix-8-wavelet-pure"],
    "reuse": library.problems()["reuse-prefix-8-after-halves"],
    "local-average": library.problems()["local-prefix-4-1-average"],
    "local-worst": library.problems()["local-prefix-4-1-worst"],
    "tables": library.problems()["fitness-tables-16x16x16"],
    "estimate": library.problems()["estimate-prefix-16-total"],
    "participation": lambda: dm.FitnessForUse(dm.workloads.prefix(4), neighbours="participation:2:2"),
    "participation-total": lambda: dm.TotalVariance(dm.workloads.prefix(4), neighbours="participation:2:2"),
}
POINTS = {"CommonMechanism": "Sigma", "QueryWeighting": "u", "ReuseFitness": "Sigma", "NonnegativeEstimate": "x"}


@pytest.mark.parametrize(
    "backend", ["CLARABEL", *(pytest.param(name, marks=pytest.mark.slow) for name in ("SCS", "CVXOPT", "SDPA"))]
)
@pytest.mark.parametrize("name", OTHERS)
def test_every_program_is_solved_from_its_file(name: str, backend: str) -> None:
    if backend not in backends.installed():
        pytest.skip(f"{backend} is not installed")
    if (name, backend) == ("estimate", "CVXOPT"):
        pytest.skip("CVXOPT fails where equations are pairs of inequalities, which leave no interior")
    problem = OTHERS[name]()
    best = fast.solve(problem, tol=1e-8)
    text = text_of(problem)
    program, x = program_of_text(text)
    backends.run(program, backend)
    sign = -1 if "maximise" in text.splitlines()[0] else 1
    assert best.lower_bound * (1 - 1e-3) <= sign * float(program.value) <= best.objective * (1 + 1e-3)
    if (point := POINTS.get(type(problem).__name__)) is not None:
        answer = problem.feasible(reference.matrix_inequalities(problem).values(x.value)[point])
        assert problem.certify(answer, best.dual).gap < 1e-2


@pytest.mark.parametrize("number", [0, 1])
def test_stages_of_a_refinement_are_solved_from_their_files(number: int) -> None:
    """The third query stands alone: a Gaussian of its target has squared cost 1/4, and prefix 2 costs 4/3."""
    program, _ = program_of_text(text_of(stage(number)))
    assert float(program.solve(solver="CLARABEL")) == pytest.approx((4 / 3, 1 / 4)[number], rel=1e-4)


@pytest.mark.parametrize(
    ("name", "formulation"),
    [
        *(("weighting", "inv_pos"), ("weighting-pure", "power"), ("tables", "matrix_frac"), ("local-worst", "socp")),
        *(
            ("common-rank-one", "dual"),
            ("common-random-3", "dual"),
            ("local-average", "socp"),
            ("local-average", "dual"),
        ),
    ],
)
def test_another_formulation_is_another_file_with_the_same_optimum(name: str, formulation: str) -> None:
    problem = OTHERS[name]()
    known = fast.solve(problem, tol=1e-8)
    written = reference.matrix_inequalities(problem, formulation)
    program, x = program_of_text(text_of(problem, formulation))
    value = float(program.solve(solver="CLARABEL")) * (-1 if written.maximised else 1)
    assert known.lower_bound * (1 - 1e-4) <= value <= known.objective * (1 + 1e-4)
    names = reference.formulate(problem, formulation).var_dict.keys()
    assert written.values(x.value).keys() == names


@pytest.mark.parametrize("name", problems() | OTHERS)
def test_a_program_is_written_the_same_each_time(name: str) -> None:
    first, second = (text_of((problems() | OTHERS)[name]()) for _ in range(2))
    assert first == second


@given(st.integers(0, 2**20), st.integers(2, 4))
def test_blocks_of_a_common_mechanism_are_what_its_covariance_leaves(seed: int, count: int) -> None:
    """The entries of F_0 are the covariances that the problem has, to the last bit."""
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((count, 3, 3))
    problem = dm.CommonMechanism(
        [dm.LinearGaussianMechanism(np.eye(3), each @ each.T) for each in roots], basis=np.eye(3)
    )
    program, noise = reference.matrix_inequalities(problem), rng.standard_normal((3, 3))
    noise = noise + noise.T
    x = np.zeros(len(program.objective))
    x[program.variables["Sigma"] - 1] = noise
    assert np.array_equal(program.values(x)["Sigma"], noise)
    for left, bound in zip(sdpa.slack(program, x), problem.bounds, strict=True):
        assert np.array_equal(left, noise - bound)
    assert program.objective @ x == pytest.approx(np.trace(noise))
