"""The dual function of the fast layer: value, gradient, Hessian and primal point, against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech.fast.engine import spectrum as engine
from dualmech.fast.engine.dual_function import DenseDual
from dualmech.fast.engine.spectrum import Spectrum
from dualmech.fast.reductions.dense import Reduction
from dualmech.linalg import to_dense
from dualmech.validate import Array


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


PROGRAMS = {
    "identity": DenseDual(draws(0).standard_normal((7, 4)), None),
    "wide": DenseDual(draws(1).standard_normal((4, 4)), draws(2).standard_normal((4, 9))),
    "sparse": DenseDual(
        draws(3).standard_normal((6, 3)), sp.csc_array(np.hstack([np.eye(3), draws(4).standard_normal((3, 2))]))
    ),
    "one": DenseDual(np.array([[2.0]]), None),
}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
smoothings = pytest.mark.parametrize("smoothing", [0.0, 1e-3, 0.3, 10.0])


def weights_for(program: DenseDual, seed: int = 5) -> Array:
    neighbours, queries, _ = program.sizes
    return draws(seed).uniform(0.2, 1, neighbours + queries)


def dense_moves(program: DenseDual) -> Array:
    return np.eye(program.sizes[2]) if program.moves is None else to_dense(program.moves)


def squares(program: DenseDual, weights: Array) -> tuple[Array, Array]:
    """Return P and Q."""
    neighbours, moves = program.sizes[0], dense_moves(program)
    first = moves * weights[:neighbours] @ moves.T
    return first, np.asarray(program.queries).T * weights[neighbours:] @ np.asarray(program.queries)


def smoothed_value(program: DenseDual, weights: Array, smoothing: float) -> float:
    """Return G: with ``s²`` the eigenvalues of P Q and ``n² + τ n = s²``, it is ``Σ 2 n + τ log(τ n)``."""
    first, last = squares(program, weights)
    values = np.sqrt(np.linalg.eigvals(first @ last).real)
    if not smoothing:
        return float(2 * values.sum())
    mean = (np.sqrt(smoothing**2 + 4 * values**2) - smoothing) / 2
    return float(np.sum(2 * mean + smoothing * np.log(smoothing * mean)))


def at(program: DenseDual, weights: Array, smoothing: float) -> Spectrum:
    spectrum = program.at(weights)
    return spectrum.smoothed(smoothing) if smoothing else spectrum


@programs
def test_the_dual_function_is_the_trace_norm(program: DenseDual) -> None:
    weights = weights_for(program)
    neighbours, moves = program.sizes[0], dense_moves(program)
    matrix = np.sqrt(weights[neighbours:, None]) * (program.queries @ moves) * np.sqrt(weights[:neighbours])
    assert program.at(weights).dual_value == pytest.approx(np.linalg.norm(matrix, "nuc"), rel=1e-12)
    assert smoothed_value(program, weights, 0) == pytest.approx(2 * program.at(weights).dual_value, rel=1e-10)


@programs
@smoothings
def test_gradient_against_differences(program: DenseDual, smoothing: float) -> None:
    weights, h = weights_for(program), 1e-6
    differences = [
        (smoothed_value(program, weights + h * e, smoothing) - smoothed_value(program, weights - h * e, smoothing))
        / (2 * h)
        for e in np.eye(len(weights))
    ]
    np.testing.assert_allclose(at(program, weights, smoothing).gradient(), differences, rtol=1e-6)


@programs
@smoothings
def test_hessian_against_differences(program: DenseDual, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "KERNEL_ERROR", 1e-6)
    weights, h = weights_for(program), 1e-5
    spectrum = at(program, weights, smoothing)
    differences = np.array(
        [
            (at(program, weights + h * e, smoothing).gradient() - at(program, weights - h * e, smoothing).gradient())
            / (2 * h)
            for e in np.eye(len(weights))
        ]
    )
    expected = -weights * differences * weights[:, None]
    lower = np.tril(spectrum.curvature(np.arange(len(weights))))
    np.testing.assert_allclose(lower, np.tril(expected), rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(spectrum.curvature_diagonal(), np.diag(lower), rtol=1e-12)
    chosen = np.arange(0, len(weights), 2)
    part = spectrum.curvature(chosen)
    np.testing.assert_allclose(np.tril(part), np.tril(lower[np.ix_(chosen, chosen)]), rtol=1e-12)


@programs
@pytest.mark.parametrize("smoothing", [1e-3, 0.3, 10.0])
def test_smoothed_value_is_a_maximum_over_n(program: DenseDual, smoothing: float) -> None:
    weights = weights_for(program)
    first, last = squares(program, weights)
    spectrum = at(program, weights, smoothing)
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


@programs
@smoothings
def test_primal_point_has_the_gains(program: DenseDual, smoothing: float) -> None:
    weights = weights_for(program)
    moves, spectrum = dense_moves(program), at(program, weights, smoothing)
    covariance = spectrum.covariance()
    costs = np.diag(moves.T @ np.linalg.inv(covariance) @ moves)
    variances = np.diag(program.queries @ covariance @ np.asarray(program.queries).T)
    np.testing.assert_allclose(spectrum.gains, np.append(costs, variances), rtol=1e-9)
    assert spectrum.objective == pytest.approx(costs.max() * variances.max(), rel=1e-9)
    if not smoothing:  # P = Σ Q Σ, the matrix geometric mean of P and the inverse of Q
        first, last = squares(program, weights)
        np.testing.assert_allclose(covariance @ last @ covariance, first, rtol=1e-8, atol=1e-10)


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
    dual = reduction.spread(spectrum.weights, problem.targets)
    judged = problem.certify(problem.feasible(reduction.covariance(spectrum.covariance())), dual)
    assert judged.lower_bound == pytest.approx(spectrum.lower_bound, rel=1e-9)
    assert judged.objective == pytest.approx(spectrum.objective, rel=1e-9)
    gathered = reduction.gather(dual, problem.targets)
    first, last = gathered[:neighbours], gathered[neighbours:]
    np.testing.assert_allclose(first, spectrum.weights[:neighbours] / spectrum.weights[:neighbours].sum())
    np.testing.assert_allclose(last, spectrum.weights[neighbours:] / spectrum.weights[neighbours:].sum())


@pytest.mark.parametrize("spread", [1.0, 1e-8, 1e-16])
def test_weights_that_differ_widely_lose_little_accuracy(spread: float) -> None:
    """Squaring loses digits of the small singular values, EPS / GRADED² at most; beyond that factors are used."""
    program = PROGRAMS["wide"]
    weights = weights_for(program) * np.where(np.arange(13) % 3, 1.0, spread)
    neighbours = program.sizes[0]
    matrix = (
        np.sqrt(weights[neighbours:, None]) * (program.queries @ dense_moves(program)) * np.sqrt(weights[:neighbours])
    )
    spectrum = program.at(weights)
    expected = np.sort(np.linalg.svd(matrix, compute_uv=False)[:4])
    np.testing.assert_allclose(spectrum.values, expected, rtol=3e-6, atol=1e-14)
    assert spectrum.dual_value == pytest.approx(expected.sum(), rel=1e-11)
    assert np.all(np.isfinite(spectrum.gains))


@programs
@smoothings
def test_products_with_the_hessian_are_those_of_its_matrix(
    program: DenseDual, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "KERNEL_ERROR", 1e-9)
    spectrum = at(program, weights_for(program), smoothing)
    matrix = symmetric(spectrum.curvature(np.arange(len(spectrum.weights))))
    for change in np.eye(len(matrix)):
        found = spectrum.curvature_product(change)
        np.testing.assert_allclose(found, matrix @ change, rtol=1e-6, atol=1e-8 * np.abs(matrix).max())


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
