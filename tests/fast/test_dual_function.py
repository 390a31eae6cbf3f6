"""The dual function: value, gradient, Hessian and primal point, dense, tied and of rank one, against differences."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.fast.engine import dual_function, orbits
from dualmech.fast.engine import spectrum as engine
from dualmech.fast.engine.dual_function import DenseDual
from dualmech.fast.engine.orbits import OrbitProgram, OrbitSpectrum, Part, RankOneProgram
from dualmech.fast.engine.spectrum import Spectrum
from dualmech.fast.reductions.dense import Reduction, reduced, without_copies
from dualmech.fast.reductions.orbits import OrbitReduction, mirrored
from dualmech.linalg import to_dense
from dualmech.problems.base import dual_of
from dualmech.validate import Array
from dualmech.workloads import steps as by_steps

Groups = npt.NDArray[np.intp]
Program = DenseDual | OrbitProgram


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(seed: int, *shape: int) -> Array:
    return draws(seed).standard_normal(shape)


def diagonal(seed: int, neighbours: int, queries: int, blocks: int, fixed: bool = False) -> RankOneProgram:
    """Blocks that see some neighbours and some queries each, at least one."""
    squares = draws(seed).uniform(0.1, 2, (queries, blocks)) * (draws(seed + 1).random((queries, blocks)) < 0.6)
    reach = draws(seed + 2).uniform(0.1, 2, (neighbours, blocks)) * (draws(seed + 3).random((neighbours, blocks)) < 0.6)
    squares[0], reach[0] = 1.0, 0.5
    own = squares.sum(axis=0)[None, :] if fixed else squares
    return RankOneProgram(sp.csr_array(own), sp.csr_array(reach), fixed)


def part(seed: int, queries: int, rank: int, groups: list[int], shares: bool = False, fixed: bool = False) -> Part:
    """A program of as many neighbours as there are groups, less the queries."""
    neighbours = len(groups) - (0 if fixed else queries)
    moves = None if neighbours == rank else normal(seed, rank, neighbours)
    program = DenseDual(normal(seed + 1, queries, rank), moves, fixed=fixed)
    numbers: Groups = np.array(groups)
    each = 1 / np.bincount(numbers)[numbers] if shares else np.ones(len(groups))
    return Part(program, numbers, each)


DENSE = {
    "dense": DenseDual(normal(0, 7, 4), None),
    "wide": DenseDual(normal(1, 4, 4), normal(2, 4, 9)),
    "sparse": DenseDual(normal(3, 6, 3), sp.csc_array(np.hstack([np.eye(3), normal(4, 3, 2)]))),
    "one": DenseDual(np.array([[2.0]]), None),
}
PROGRAMS: dict[str, Program] = {
    **DENSE,
    "dense, fixed": DenseDual(normal(0, 3, 3), normal(1, 3, 6), fixed=True),
    "blocks": OrbitProgram(
        (part(0, 5, 3, [0, 2, 3, 4, 5, 6, 7, 8]), part(3, 2, 2, [1, 2, 0, 8, 4])), diagonal(7, 4, 6, 5), 4, 6
    ),
    "one, on sparse neighbours": OrbitProgram((Part(DENSE["sparse"], np.arange(11), np.ones(11)),), None, 5, 6),
    "tied": OrbitProgram((part(10, 6, 4, [0, 1, 1, 0, 2, 2, 3, 4, 2, 3], shares=True),), None, 2, 3),
    "tied, wide": OrbitProgram((part(20, 4, 3, [0, 1, 1, 0, 1, 2, 3, 2, 2], shares=True),), None, 2, 2),
    "rank one": OrbitProgram((), diagonal(30, 3, 4, 6), 3, 4),
    "fixed": OrbitProgram(
        (part(40, 6, 3, [0, 1, 1], shares=True, fixed=True),), diagonal(44, 2, 3, 4, True), 2, 0, True
    ),
    "fixed, distinct": OrbitProgram((part(50, 5, 3, [2, 0, 1], fixed=True),), None, 3, 0, True),
}
programs = pytest.mark.parametrize("name", PROGRAMS)
smoothings = pytest.mark.parametrize("smoothing", [0.0, 1e-3, 0.3, 10.0])


def parts_of(program: Program) -> tuple[Part, ...]:
    if isinstance(program, OrbitProgram):
        return program.parts
    count = sum(program.sizes[:2])
    return (Part(program, np.arange(count), np.ones(count)),)


def weights_for(program: Program) -> Array:
    counts = (program.neighbours, program.queries) if isinstance(program, OrbitProgram) else program.sizes[:2]
    return draws(5).uniform(0.2, 1, sum(counts))


def dense_moves(program: DenseDual) -> Array:
    return np.eye(program.sizes[2]) if program.moves is None else to_dense(program.moves)


def squares(program: DenseDual, weights: Array) -> tuple[Array, Array]:
    """Return P and Q."""
    neighbours, moves = program.sizes[0], dense_moves(program)
    first = moves * weights[:neighbours] @ moves.T
    return first, np.asarray(program.queries).T * weights[neighbours:] @ np.asarray(program.queries)


def singular_values(program: Program, weights: Array) -> Array:
    """Of ``diag(√μ) V D diag(√λ)`` of every part and of every block of rank one, from matrices."""
    found = []
    for each in parts_of(program):
        own, neighbours = np.sqrt(weights[each.groups] * each.shares), each.program.sizes[0]
        moves = dense_moves(each.program)
        rows = each.program.queries if program.fixed else own[neighbours:, None] * each.program.queries
        found.append(np.linalg.svd(rows @ moves * own[:neighbours], compute_uv=False)[: len(moves)])
    if isinstance(program, OrbitProgram) and program.diagonal is not None:
        first, last = (weights[: program.neighbours], np.ones(1) if program.fixed else weights[program.neighbours :])
        products = (program.diagonal.squared_sensitivities.toarray().T @ first) * (
            program.diagonal.squared_queries.toarray().T @ last
        )
        found.append(np.sqrt(products))
    return np.concatenate(found)


def smoothed_value(program: Program, weights: Array, smoothing: float) -> float:
    """Return G: with ``n² + τ n = s²``, it is ``Σ 2 n + τ log(τ n)``."""
    values = singular_values(program, weights)
    if not smoothing:
        return float(2 * values.sum())
    mean = (np.sqrt(smoothing**2 + 4 * values**2) - smoothing) / 2
    return float(np.sum(2 * mean + smoothing * np.log(smoothing * mean)))


def at(program: Program, weights: Array, smoothing: float) -> Spectrum | OrbitSpectrum:
    spectrum = program.at(weights)
    return spectrum.smoothed(smoothing) if smoothing else spectrum


@programs
@smoothings
def test_gradient_and_values_against_differences(name: str, smoothing: float) -> None:
    program = PROGRAMS[name]
    weights, h = weights_for(program), 1e-6
    spectrum = at(program, weights, smoothing)
    np.testing.assert_allclose(spectrum.values, np.sort(singular_values(program, weights)), rtol=1e-9)
    steps = h * np.eye(len(weights))
    ends = [[smoothed_value(program, weights + sign * step, smoothing) for step in steps] for sign in (1, -1)]
    np.testing.assert_allclose(spectrum.gradient(), (np.array(ends[0]) - ends[1]) / (2 * h), rtol=1e-6)
    assert spectrum.dual_value == pytest.approx(singular_values(program, weights).sum(), rel=1e-10)
    if smoothing:
        later, sooner = (at(program, weights, smoothing * (1 + sign * 1e-5)).gradient() for sign in (1, -1))
        expected = (later - sooner) / (2e-5 * smoothing)
        np.testing.assert_allclose(spectrum.gradient_slope(), expected, rtol=1e-5, atol=1e-7)


TIED = [name for name, program in PROGRAMS.items() if not all(part.distinct for part in parts_of(program))]


@smoothings
@pytest.mark.parametrize(
    ("name", "by_members"), [*((name, True) for name in PROGRAMS), *((name, False) for name in TIED)]
)
def test_hessian(name: str, smoothing: float, by_members: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By differences, by products with it, and by the chosen rows and columns; dense ones to more digits."""
    program, exact = PROGRAMS[name], name in DENSE
    monkeypatch.setattr(orbits.Part, "by_members", property(lambda each: each.distinct or by_members))
    monkeypatch.setattr(orbits, "SLAB_ENTRIES", 20)
    monkeypatch.setattr(engine, "KERNEL_ERROR", 1e-9 if exact else 1e-6)
    weights, h = weights_for(program), 1e-5
    spectrum = at(program, weights, smoothing)
    ends = [
        [at(program, weights + sign * step, smoothing).gradient() for step in h * np.eye(len(weights))]
        for sign in (1, -1)
    ]
    expected = -weights * (np.array(ends[0]) - ends[1]) / (2 * h) * weights[:, None]
    whole = np.tril(spectrum.curvature(np.arange(len(weights))))
    np.testing.assert_allclose(whole, np.tril(expected), rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    full = whole + np.tril(whole, -1).T
    for change in np.eye(len(weights)):
        found, off = spectrum.curvature_product(change), (1e-6, 1e-8) if exact else (1e-4, 1e-4)
        np.testing.assert_allclose(found, full @ change, rtol=off[0], atol=off[1] * np.abs(full).max())
    bounds = spectrum.curvature_diagonal() / np.diag(whole)
    assert np.all(bounds >= 1 - 5e-3)
    if name not in TIED:
        np.testing.assert_allclose(bounds, 1, rtol=1e-12 if exact else 5e-3)
    chosen = np.arange(0, len(weights), 2)
    own = np.tril(spectrum.curvature(chosen))
    np.testing.assert_allclose(own, np.tril(whole[np.ix_(chosen, chosen)]), rtol=1e-12 if exact else 1e-9, atol=1e-12)


@programs
@smoothings
def test_primal_point_has_the_gains(name: str, smoothing: float) -> None:
    program = PROGRAMS[name]
    weights = weights_for(program)
    spectrum = at(program, weights, smoothing)
    neighbours = program.neighbours if isinstance(program, OrbitProgram) else program.sizes[0]
    costs, seen = np.zeros(neighbours), np.zeros(len(weights) - neighbours)
    point: Any = spectrum.covariance()
    levels, covariances = point if isinstance(program, OrbitProgram) else (np.zeros(0), (point,))
    if isinstance(program, OrbitProgram) and program.diagonal is not None:
        costs += program.diagonal.squared_sensitivities @ (1 / levels)
        seen += 0 if program.fixed else program.diagonal.squared_queries @ levels
    for each, covariance in zip(parts_of(program), covariances, strict=True):
        own, moves = each.program.sizes[0], dense_moves(each.program)
        forms = np.einsum("ki,ki->i", moves, np.linalg.solve(covariance, moves))
        np.add.at(costs, each.groups[:own], each.shares[:own] * forms)
        if not program.fixed:
            forms = np.einsum("jk,jk->j", each.program.queries @ covariance, each.program.queries)
            np.add.at(seen, each.groups[own:] - neighbours, each.shares[own:] * forms)
    np.testing.assert_allclose(spectrum.constraint_values, np.append(costs, seen), rtol=1e-9)
    if name in DENSE:
        assert spectrum.objective == pytest.approx(costs.max() * seen.max(), rel=1e-9)
        if not smoothing:  # P = Σ Q Σ, the matrix geometric mean of P and the inverse of Q
            first, last = squares(DENSE[name], weights)
            np.testing.assert_allclose(point @ last @ point, first, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("smoothing", [1e-3, 0.3, 10.0])
def test_smoothed_value_is_a_maximum_over_n(name: str, smoothing: float) -> None:
    program = DENSE[name]
    weights = weights_for(program)
    first, last = squares(program, weights)
    spectrum: Any = at(program, weights, smoothing)
    rank = len(first)

    def value(middle: Array) -> float:
        eigenvalues = np.linalg.eigvalsh(np.block([[last, middle], [middle.T, first]]))
        if eigenvalues[0] <= 0:
            return -np.inf
        return float(2 * np.trace(middle) + smoothing * np.log(eigenvalues).sum())

    best: Any = np.linalg.solve(spectrum.root.T, spectrum.mean[:, None] * spectrum.root.T)
    assert value(best) == pytest.approx(smoothed_value(program, weights, smoothing), rel=1e-9, abs=1e-9)
    for seed in range(20):
        step = draws(seed).standard_normal((rank, rank)) * 1e-4 * np.abs(best).max()
        assert value(best + step) <= value(best) + 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_solver_and_judge_agree_on_both_sides_of_any_weights(seed: int) -> None:
    rng = draws(seed)
    cells = int(rng.integers(2, 6))
    matrix = rng.integers(-2, 3, (int(rng.integers(1, 7)), cells)).astype(float)
    matrix[0, 0] = 3  # not all zero, and no multiple of the total
    moves = None if seed % 2 else dm.neighbours.replace_one(cells)
    problem = dm.FitnessForUse(dm.Workload(matrix), rng.uniform(1, 3, len(matrix)), neighbours=moves)
    reduction = Reduction.of(problem.geometry, problem.targets)
    neighbours, queries, _ = reduction.program.sizes
    spectrum = reduction.program.at(rng.uniform(0, 1, neighbours + queries))
    dual = dual_of(problem, *reduction.spread(spectrum.weights))
    judged = problem.certify(problem.feasible(reduction.covariance(spectrum.covariance())), dual)
    assert judged.lower_bound == pytest.approx(spectrum.lower_bound, rel=1e-9)
    assert judged.objective == pytest.approx(spectrum.objective, rel=1e-9)
    gathered = reduced(problem).gather(dual)
    assert gathered is not None
    first, last = gathered[:neighbours], gathered[neighbours:]
    np.testing.assert_allclose(first, spectrum.weights[:neighbours] / spectrum.weights[:neighbours].sum())
    np.testing.assert_allclose(last, spectrum.weights[neighbours:] / spectrum.weights[neighbours:].sum())


@pytest.mark.parametrize("spread", [1.0, 1e-8, 1e-16])
def test_weights_that_differ_widely_lose_little_accuracy(spread: float) -> None:
    """Squaring loses digits of the small singular values, EPS / GRADED² at most; beyond that factors are used."""
    program = DENSE["wide"]
    weights = weights_for(program) * np.where(np.arange(13) % 3, 1.0, spread)
    spectrum, expected = program.at(weights), np.sort(singular_values(program, weights))
    np.testing.assert_allclose(spectrum.values, expected, rtol=3e-6, atol=1e-14)
    assert spectrum.dual_value == pytest.approx(expected.sum(), rel=1e-11)
    assert np.all(np.isfinite(spectrum.constraint_values))


@given(st.integers(0, 2**20), st.integers(1, 8), st.floats(0, 10), st.sampled_from([0.0, 1e-6, 1e-2, 1.0]))
def test_formed_hessian_is_near_the_exact_one_in_every_direction(
    seed: int, rank: int, spread: float, smoothing: float
) -> None:
    rng = draws(seed)
    queries = rng.standard_normal((rank + 3, rank)) * 10.0 ** rng.uniform(-spread / 2, spread / 2, rank)
    spectrum = at(DenseDual(queries, None), rng.uniform(0.1, 1, 2 * rank + 3), smoothing)
    formed = symmetric(spectrum.curvature(np.arange(2 * rank + 3)))
    for change in rng.standard_normal((5, 2 * rank + 3)):
        exact = change @ spectrum.curvature_product(change)
        assert change @ formed @ change == pytest.approx(exact, rel=engine.KERNEL_ERROR * (1 + 1e-6))


def symmetric(lower: Array) -> Array:
    return np.asarray(np.tril(lower) + np.tril(lower, -1).T)


def test_an_ascent_starts_where_another_ended() -> None:
    tables: Any = {"ages": {"age": dm.workloads.prefix(8)}, "both": ["age", "sex"], "sexes": ["sex"]}
    workload = dm.workloads.union({"age": 8, "sex": 3}, tables)
    for problem in (dm.FitnessForUse(workload, [1.0, 2.0, 3.0]), dm.TotalVariance(workload)):
        answer = fast.solve(problem, tol=1e-8)
        again = fast.solve(problem, tol=1e-6, start=answer)
        assert again.status is dm.Status.CERTIFIED and again.iterations < answer.iterations
        for method in ("fixed_point", "newton"):
            assert fast.solve(problem, method=method, tol=1e-4).status is dm.Status.CERTIFIED


class TestMirrored:
    @pytest.fixture(autouse=True)
    def always_stepped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(by_steps, "MIN_ENTRIES", 0)
        monkeypatch.setattr(by_steps, "MAX_PAIR_FRACTION", np.inf)
        monkeypatch.setattr(dual_function, "STEPPED_ROWS_RATIO", 0)

    @staticmethod
    def symmetric(seed: int, cells: int, count: int) -> dm.FitnessForUse:
        """Return some ranges or other whole numbers, their mirror images, and targets, in any order."""
        rng = draws(seed)
        rows = rng.integers(-1, 2, (count, cells)).astype(np.float64)
        rows[:, 0] = np.where(np.any(rows, axis=1), rows[:, 0], 1.0)
        targets = rng.uniform(1, 4, count)
        order = rng.permutation(2 * count)
        whole = np.vstack([rows, rows[:, ::-1]])[order]
        return dm.FitnessForUse(dm.Workload(whole), np.tile(targets, 2)[order], geometry="dense")

    @staticmethod
    def reduced(problem: dm.FitnessForUse) -> Any:
        return mirrored(without_copies(reduced(problem), problem.geometry))

    @given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 6))
    def test_the_dual_function_is_the_same(self, seed: int, cells: int, count: int) -> None:
        problem = self.symmetric(seed, cells, count)
        whole = without_copies(reduced(problem), problem.geometry)
        half = mirrored(whole)
        if half is whole:
            return  # the cells do not stand for the basis
        neighbours, queries, _ = half.reduction.program.sizes
        weights = draws(seed).uniform(0.2, 1, neighbours + queries)
        two, one = half.reduction.program.at(weights), whole.reduction.program.at(half.reduction.spread(weights))
        assert two.dual_value == pytest.approx(one.dual_value, rel=1e-9)
        np.testing.assert_allclose(half.reduction.gather(half.reduction.spread(weights)), weights)
        covariance = half.reduction.covariance(two.covariance())
        expected = whole.reduction.covariance(one.covariance())
        np.testing.assert_allclose(covariance, expected, atol=1e-7 * np.abs(expected).max())

    @pytest.mark.parametrize("cells", [1, 2, 5, 8])
    @pytest.mark.parametrize("kind", [dm.FitnessForUse, dm.PrivacyFirst])
    def test_all_ranges(self, cells: int, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        budget = {} if kind is dm.FitnessForUse else {"cost": 2.0}
        problem = kind(dm.workloads.all_range(cells), 2.0, geometry="dense", **budget)
        answer = fast.solve(problem, tol=1e-8)
        weights = answer.dual.neighbour_weights
        np.testing.assert_allclose(weights, weights[::-1])
        again = fast.solve(problem, tol=1e-6, start=answer)
        monkeypatch.setattr(by_steps, "MIN_ENTRIES", 10**9)
        written = fast.solve(kind(dm.workloads.all_range(cells), 2.0, geometry="dense", **budget), tol=1e-8)
        for other in (again, written):
            assert answer.status is other.status is dm.Status.CERTIFIED
            assert answer.lower_bound <= other.objective * (1 + 1e-9)
            assert other.lower_bound <= answer.objective * (1 + 1e-9)

    def test_targets_or_queries_without_their_images_stay_whole(self) -> None:
        ranges = dm.workloads.all_range(6)
        for problem in (
            dm.FitnessForUse(ranges, np.arange(1.0, 22), geometry="dense"),
            dm.FitnessForUse(dm.workloads.prefix(6), geometry="dense"),
            dm.FitnessForUse(dm.Workload(0.5 * ranges.dense()), geometry="dense"),
            dm.FitnessForUse(ranges, neighbours="replace", geometry="dense"),
        ):
            assert not isinstance(self.reduced(problem).reduction, OrbitReduction)
        assert isinstance(self.reduced(dm.FitnessForUse(ranges, geometry="dense")).reduction, OrbitReduction)


@smoothings
def test_blocks_of_rank_one_are_parts_of_rank_one(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "KERNEL_ERROR", 1e-6)
    program: Any = PROGRAMS["rank one"]
    reach, squares = program.diagonal.squared_sensitivities.toarray().T, program.diagonal.squared_queries.toarray().T
    parts = []
    for moved, seen in zip(reach, squares, strict=True):
        first, last = np.flatnonzero(moved), np.flatnonzero(seen)
        own = DenseDual(np.sqrt(seen[last])[:, None], np.sqrt(moved[first])[None, :])
        parts.append(Part(own, np.concatenate([first, 3 + last]), np.ones(len(first) + len(last))))
    weights = weights_for(program)
    several: Any = (program, OrbitProgram(tuple(parts), None, 3, 4))
    one, two = (at(each, weights, smoothing) for each in several)
    for name in ("values", "constraint_values", "dual_value", "lower_bound", "objective"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-10)
    for name in ("gradient", "gradient_slope"):
        np.testing.assert_allclose(getattr(one, name)(), getattr(two, name)(), rtol=1e-9, atol=1e-12)
    levels, covariances = one.covariance()[0], two.covariance()[1]
    np.testing.assert_allclose(levels, np.concatenate(covariances).ravel(), rtol=1e-10)
    everything = np.arange(7)
    np.testing.assert_allclose(one.curvature_diagonal(), two.curvature_diagonal(), rtol=5e-3)
    np.testing.assert_allclose(np.tril(one.curvature(everything)), np.tril(two.curvature(everything)), rtol=5e-3)
    beside = [each.smoothed(0.7).barrier - each.smoothed(0.2).barrier for each in (one, two)]
    assert beside[0] == pytest.approx(beside[1], rel=1e-9)
