"""Linear Gaussian mechanisms: what follows from their two matrices, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import accounting, fast
from dualmech.validate import Array

quick = settings(max_examples=24)
seeds = st.integers(0, 10_000)
CORRELATED = np.array([[1.0, -0.5], [-0.5, 1.0]])


def random_mechanism(seed: int, moves: bool = False) -> dm.LinearGaussianMechanism:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 5))
    cells = rows + int(rng.integers(0, 3))
    factor = rng.standard_normal((rows, rows))
    neighbours = rng.standard_normal((cells, 3)) if moves else None
    queries = rng.standard_normal((rows, cells))
    return dm.LinearGaussianMechanism(queries, factor @ factor.T + 0.1 * np.eye(rows), neighbours)


class TestMembers:
    @quick
    @given(seeds, st.booleans())
    def test_privacy_follows_from_the_cost_matrix(self, seed: int, moves: bool) -> None:
        mechanism = random_mechanism(seed, moves)
        inverse = np.linalg.inv(mechanism.covariance())
        cost = mechanism.query_matrix.T @ inverse @ mechanism.query_matrix
        np.testing.assert_allclose(mechanism.cost_matrix, cost, rtol=1e-8, atol=1e-10)
        differences = np.eye(len(cost)) if mechanism.neighbours is None else np.asarray(mechanism.neighbours)
        profile = np.diag(differences.T @ cost @ differences)
        np.testing.assert_allclose(mechanism.profile, profile, rtol=1e-8)
        assert mechanism.squared_privacy_cost == mechanism.profile.max()
        assert mechanism.privacy_cost == pytest.approx(mechanism.profile.max() ** 0.5, rel=1e-15)
        assert mechanism.rho == pytest.approx(mechanism.profile.max() / 2, rel=1e-15)

    @quick
    @given(seeds)
    def test_accuracy_on_any_workload_in_the_row_space(self, seed: int) -> None:
        mechanism = random_mechanism(seed)
        rng = np.random.default_rng(seed + 1)
        coefficients = rng.standard_normal((6, len(mechanism.query_matrix)))
        matrix = coefficients @ mechanism.query_matrix
        expected = coefficients @ mechanism.covariance() @ coefficients.T
        for workload in (dm.Workload(matrix), dm.Workload(sp.csr_array(matrix))):
            np.testing.assert_allclose(mechanism.covariance(workload), expected, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(mechanism.variances(workload), np.diag(expected), rtol=1e-7)
        own = mechanism.covariance(dm.Workload(mechanism.query_matrix))
        np.testing.assert_allclose(own, mechanism.covariance(), rtol=1e-8, atol=1e-9)

    def test_privacy_is_that_of_the_cost_and_of_the_neighbours(self) -> None:
        mechanism = dm.LinearGaussianMechanism(np.eye(2), CORRELATED)
        assert mechanism.epsilon(delta=1e-9) == accounting.epsilon(mechanism.privacy_cost, 1e-9)
        assert mechanism.delta(epsilon=1.0) == accounting.delta(mechanism.privacy_cost, 1.0)
        assert mechanism.delta(mechanism.epsilon(1e-9)) == pytest.approx(1e-9, rel=1e-8)
        plain = dm.LinearGaussianMechanism(np.eye(3), np.eye(3))
        replaced = dm.LinearGaussianMechanism(np.eye(3), np.eye(3), dm.neighbours.replace_one(3))
        household = dm.LinearGaussianMechanism(np.eye(3), np.eye(3), dm.neighbours.household(3, 4))
        np.testing.assert_allclose(plain.profile, [1, 1, 1])
        np.testing.assert_allclose(replaced.profile, [2, 2, 2])
        np.testing.assert_allclose(household.profile, [16, 16, 16])

    def test_of_an_answer(self) -> None:
        workload, targets = dm.workloads.random_range(8, 14, rng=2), np.linspace(1, 2, 14)
        for moves in (None, dm.neighbours.replace_one(8)):
            problem = dm.FitnessForUse(workload, targets, neighbours=moves)
            answer = fast.solve(problem, tol=1e-8)
            mechanism = answer.mechanism
            assert mechanism.squared_privacy_cost == pytest.approx(answer.objective, rel=1e-10)
            assert (mechanism.variances(workload) / targets).max() == pytest.approx(1, rel=1e-9)
            binding = np.flatnonzero(mechanism.profile >= mechanism.profile.max() * (1 - 1e-4))
            np.testing.assert_array_equal(answer.binding, binding)

    def test_repr_is_one_line_and_arrays_cannot_be_changed(self) -> None:
        text = repr(dm.LinearGaussianMechanism(np.eye(2), CORRELATED))
        assert "\n" not in text and "2 queries x 2 cells" in text and "0.666667" in text
        queries, noise = np.eye(2), CORRELATED.copy()
        mechanism = dm.LinearGaussianMechanism(queries, noise)
        queries[0, 0] = noise[0, 0] = 9
        assert mechanism.query_matrix[0, 0] == 1 == mechanism.covariance()[0, 0]
        for array in (mechanism.query_matrix, mechanism.covariance(), mechanism.profile):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


class TestTheorem2Rebase:
    @quick
    @given(seeds, st.booleans())
    def test_same_distribution_on_other_rows(self, seed: int, moves: bool) -> None:
        mechanism = random_mechanism(seed, moves)
        rows, rng = len(mechanism.query_matrix), np.random.default_rng(seed + 1)
        left, right = (np.linalg.qr(rng.standard_normal((rows, rows)))[0] for _ in range(2))
        change = left * rng.uniform(0.3, 3, rows) @ right
        other = mechanism.rebase(change @ mechanism.query_matrix)
        np.testing.assert_allclose(other.cost_matrix, mechanism.cost_matrix, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(other.profile, mechanism.profile, rtol=1e-7)
        np.testing.assert_allclose(other.covariance(), change @ mechanism.covariance() @ change.T, atol=1e-8)
        workload = dm.Workload(rng.standard_normal((4, rows)) @ mechanism.query_matrix)
        np.testing.assert_allclose(other.variances(workload), mechanism.variances(workload), rtol=1e-6)

    @pytest.mark.parametrize(
        "rows", [[[1, 0]], [[1, 0], [2, 0]], [[1, 0, 0], [0, 1, 0]], [[np.nan, 0], [0, 1]], np.eye(3), "rows"], ids=str
    )
    def test_other_rows_must_have_the_same_span(self, rows: Any) -> None:
        with pytest.raises(dm.errors.DualmechError, match="query_matrix"):
            dm.LinearGaussianMechanism(np.eye(2), CORRELATED).rebase(rows)

    def test_another_span_is_refused(self) -> None:
        mechanism = dm.LinearGaussianMechanism([[1, 0, 0], [0, 1, 0]], CORRELATED)
        with pytest.raises(dm.errors.InvalidInputError, match="row space"):
            mechanism.rebase([[1, 0, 0], [0, 0, 1]])


class TestSimulate:
    """4000 draws: each entry of the empirical covariance is within five standard errors."""

    @staticmethod
    def check(draws: Array, mean: Array, covariance: Array) -> None:
        count = len(draws)
        scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2)
        assert np.all(np.abs(draws.mean(axis=0) - mean) <= 5 * np.sqrt(np.diag(covariance) / count) + 1e-9)
        noise = draws - mean
        assert np.all(np.abs(noise.T @ noise / count - covariance) <= 5 * scale / np.sqrt(count) + 1e-9)

    @pytest.mark.parametrize("seed", range(3))
    def test_mean_and_covariance(self, seed: int) -> None:
        mechanism = random_mechanism(seed)
        x = np.arange(mechanism.query_matrix.shape[1]) * 10.0
        generator = np.random.default_rng(seed)
        draws = np.array([mechanism.simulate(x, generator) for _ in range(4000)])
        self.check(draws, mechanism.query_matrix @ x, mechanism.covariance())

    def test_on_a_workload_and_of_a_seed(self) -> None:
        mechanism = dm.LinearGaussianMechanism(np.eye(4), np.diag([1.0, 2, 3, 4]))
        workload, x = dm.workloads.prefix(4), np.array([5.0, 0, 2, 9])
        generator = np.random.default_rng(0)
        draws = np.array([mechanism.simulate(x, generator, workload) for _ in range(4000)])
        self.check(draws, workload.apply(x), mechanism.covariance(workload))
        mechanism, x = random_mechanism(0), np.ones(random_mechanism(0).query_matrix.shape[1])
        np.testing.assert_array_equal(mechanism.simulate(x, 7), mechanism.simulate(x, 7))
        assert np.any(mechanism.simulate(x) != mechanism.simulate(x))
        assert np.any(mechanism.simulate(x, 7) != mechanism.simulate(x, 8))

    @pytest.mark.parametrize("x", [[1.0], [1, 2, 3], [[1, 2, 3]], [[[1, 2]]], 1.0, [np.nan, 1], "x", None], ids=str)
    def test_bad_data(self, x: Any) -> None:
        with pytest.raises(dm.errors.DualmechError, match="x"):
            dm.LinearGaussianMechanism(np.eye(2), CORRELATED).simulate(x)

    @pytest.mark.parametrize("rng", ["seed", -1, 1.5, True], ids=str)
    def test_bad_seed(self, rng: Any) -> None:
        with pytest.raises(dm.errors.DualmechError, match="rng"):
            dm.LinearGaussianMechanism(np.eye(2), CORRELATED).simulate([1, 2], rng)


class TestSingularCovariance:
    """The difference of two cells is noisy, their total exact: allowed where no neighbour moves the total."""

    exact_total = np.array([[1.0, -1.0], [-1.0, 1.0]])

    def test_is_free_where_nothing_moves_it_and_costs_infinity_elsewhere(self) -> None:
        mechanism = dm.LinearGaussianMechanism(np.eye(2), self.exact_total, dm.neighbours.replace_one(2))
        np.testing.assert_allclose(mechanism.profile, [1.0], rtol=1e-12)
        np.testing.assert_allclose(mechanism.variances(dm.workloads.total(2)), [0], atol=1e-15)
        assert mechanism.simulate([3, 4], rng=0, workload=dm.workloads.total(2)) == pytest.approx([7])
        with pytest.raises(dm.errors.InvalidInputError, match="cost_matrix"):
            _ = mechanism.cost_matrix
        mechanism = dm.LinearGaussianMechanism(np.eye(2), self.exact_total)
        assert mechanism.squared_privacy_cost == mechanism.rho == mechanism.privacy_cost == np.inf
        mechanism = dm.LinearGaussianMechanism(np.eye(3), np.diag([1.0, 0.0, 4.0]))
        np.testing.assert_allclose(mechanism.profile, [1, np.inf, 0.25])

    @pytest.mark.parametrize("unit", [1.0, 1e-6, 1e-13, 1e-20, 1e13])
    def test_costs_infinity_in_any_unit(self, unit: float) -> None:
        mechanism = dm.LinearGaussianMechanism([[1.0, 1.0], [unit, -unit]], np.diag([1.0, 0.0]))
        np.testing.assert_array_equal(mechanism.profile, [np.inf, np.inf])


class TestFiles:
    @pytest.mark.parametrize(
        "neighbours",
        [None, dm.neighbours.replace_one(3), np.array([[1.0], [2.0], [0.0]])],
        ids=["none", "sparse", "dense"],
    )
    def test_round_trip(self, tmp_path: Path, neighbours: Any) -> None:
        covariance = np.array([[1.0, 1 / 3], [1 / 3, 0.7]])
        mechanism = dm.LinearGaussianMechanism([[1, 0, 0.1], [0, 1, 1 / 7]], covariance, neighbours)
        path = tmp_path / "mechanism.npz"
        dm.save(mechanism, path)
        back = dm.load(path)
        np.testing.assert_array_equal(back.query_matrix, mechanism.query_matrix)
        np.testing.assert_array_equal(back.covariance(), mechanism.covariance())
        np.testing.assert_allclose(back.profile, mechanism.profile, rtol=1e-14)
        assert (back.neighbours is None) == (neighbours is None)
        assert [entry.name for entry in tmp_path.iterdir()] == ["mechanism.npz"]

    def test_contents_that_are_no_mechanism_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.npz"
        for arrays in (
            {"query_matrix": np.eye(2)},
            {"query_matrix": np.eye(2), "covariance": -np.eye(2)},
            {"query_matrix": np.eye(2), "covariance": np.eye(3)},
            {"query_matrix": np.eye(2), "covariance": np.full((2, 2), np.nan)},
        ):
            parts = {f"mechanism.{name}": array for name, array in arrays.items()}
            dm.files.write_npz(path, "dualmech.mechanism", 1, **{"mechanism.kind": "LinearGaussianMechanism"}, **parts)
            with pytest.raises(dm.errors.FileFormatError, match=r"bad\.npz"):
                dm.load(path)
        dm.files.write_npz(path, "dualmech.mechanism", 99, query_matrix=np.eye(2), covariance=np.eye(2))
        with pytest.raises(dm.errors.FileFormatError, match="version"):
            dm.load(path)


class TestBadInput:
    CASES: dict[str, tuple[str, tuple[Any, ...]]] = {
        "queries: vector": ("query_matrix", ([1, 2], np.eye(1))),
        "queries: text": ("query_matrix", ("rows", np.eye(1))),
        "queries: empty": ("query_matrix", (np.zeros((0, 2)), np.eye(2))),
        "queries: no cells": ("query_matrix", (np.zeros((0, 0)), np.zeros((0, 0)))),
        "queries: zero row": ("query_matrix", ([[1, 1], [0, 0]], np.eye(2))),
        "covariance: wrong size": ("covariance", (np.eye(2), np.eye(3))),
        "covariance: not square": ("covariance", (np.eye(2), np.ones((2, 3)))),
        "covariance: asymmetric": ("covariance", (np.eye(2), [[1, 0.1], [0.2, 1]])),
        "covariance: indefinite": ("covariance", (np.eye(2), [[1, 2], [2, 1]])),
        "covariance: zero": ("covariance", (np.eye(2), np.zeros((2, 2)))),
        "covariance: NaN": ("covariance", (np.eye(2), [[1, np.nan], [np.nan, 1]])),
        "covariance: complex": ("covariance", (np.eye(2), [[1, 1j], [-1j, 1]])),
        "neighbours: wrong rows": ("neighbours", (np.eye(2), np.eye(2), np.eye(3))),
        "neighbours: NaN": ("neighbours", (np.eye(2), np.eye(2), [[np.nan], [1]])),
        "neighbours: vector": ("neighbours", (np.eye(2), np.eye(2), [1, -1])),
    }

    @pytest.mark.parametrize("case", CASES)
    def test_is_refused_by_name(self, case: str) -> None:
        name, given = self.CASES[case]
        with pytest.raises(dm.errors.DualmechError, match=name) as error:
            dm.LinearGaussianMechanism(*given)
        assert isinstance(error.value, ValueError | TypeError) and "\n" not in str(error.value)

    def test_queries_outside_the_row_space_and_other_cells_are_named(self) -> None:
        mechanism = dm.LinearGaussianMechanism([[1, 0, 0], [0, 1, 0]], CORRELATED)
        workload = dm.Workload([[1, 1, 0], [0, 1, 1]], names=["inside", "outside"])
        for ask in (mechanism.variances, mechanism.covariance, lambda w: mechanism.simulate([1, 2, 3], 0, w)):
            with pytest.raises(dm.errors.InvalidInputError, match="'outside'"):
                ask(workload)
        mechanism = dm.LinearGaussianMechanism(np.eye(2), CORRELATED)
        with pytest.raises(dm.errors.InvalidInputError, match="workload must have 2 cells"):
            mechanism.variances(dm.workloads.prefix(3))
        with pytest.raises(dm.errors.InputTypeError, match="workload"):
            mechanism.variances(np.eye(2))  # type: ignore[arg-type]
