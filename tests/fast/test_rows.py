"""Queries by their steps, square roots of P, and Newton's method with and without its matrix."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.fast.engine import dual_function, newton, spectrum
from dualmech.fast.engine.dual_function import DiagonalHalf, Half, NearlyDiagonalHalf, TriangularHalf
from dualmech.fast.engine.spectrum import DenseRows, SteppedQueries, SteppedRows
from dualmech.fast.reductions import dense as reductions
from dualmech.validate import Array
from dualmech.workloads import steps as by_steps
from dualmech.workloads.steps import Steps


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def always_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take steps however few entries there are, and rows by them however few queries."""
    monkeypatch.setattr(by_steps, "MIN_ENTRIES", 0)
    monkeypatch.setattr(by_steps, "MAX_PAIR_FRACTION", np.inf)
    monkeypatch.setattr(dual_function, "STEPPED_ROWS_RATIO", 0)


class TestSteps:
    @pytest.mark.usefixtures("always_stepped")
    @pytest.mark.parametrize("scale", [1.0, 0.3])
    def test_rows_by_steps_are_those_written_out(self, scale: float) -> None:
        rng = draws(0)
        several: list[Array] = [
            dm.workloads.all_range(6).dense() * scale,
            np.asarray(rng.integers(-1, 2, (9, 5)) * scale),
        ]
        for queries in several:
            steps = Steps.of(queries)
            assert steps is not None
            count, rank = queries.shape
            factors, root = draws(1).uniform(0.1, 1, (count,)), rng.standard_normal((rank, rank))
            weights, matrix = rng.standard_normal((count,)), rng.standard_normal((rank, rank))
            matrix = matrix + matrix.T
            np.testing.assert_allclose(steps.gram(weights), queries.T * weights @ queries, atol=1e-12)
            np.testing.assert_allclose(
                steps.forms(matrix), np.einsum("jk,jk->j", queries @ matrix, queries), atol=1e-12
            )
            one = SteppedRows(steps, factors, root.cumsum(axis=0)).scaled(np.arange(1, rank + 1))
            two = DenseRows(factors[:, None] * (queries @ root)).scaled(np.arange(1, rank + 1))
            assert len(one) == len(two) == count
            columns, index = rng.standard_normal((rank, 3)), np.array([0, 3, 4])
            for left, right in (
                (one.squares(columns), two.squares(columns)),
                (one.forms(matrix), two.forms(matrix)),
                (one.gram(weights), two.gram(weights)),
                (one.chosen(index), two.chosen(index)),
            ):
                np.testing.assert_allclose(left, right, atol=1e-10)

    def test_only_where_they_are_few_and_targets_near(self) -> None:
        assert Steps.of(draws(0).standard_normal((300, 200))) is None
        assert Steps.of(dm.workloads.all_range(8).dense()) is None
        assert Steps.of(dm.workloads.random_range(200, 300, rng=0).dense()) is not None
        targets, workload = np.geomspace(1e-9, 1e9, 300), dm.workloads.random_range(128, 300, rng=0)
        steps = Steps.of(workload.dense())
        assert steps is not None and SteppedQueries.of(steps, np.ones(300)) is not None
        assert SteppedQueries.of(steps, 1 / np.sqrt(targets)) is None
        answer = fast.solve(dm.FitnessForUse(workload, targets), tol=1e-3)
        assert answer.status is dm.Status.CERTIFIED

    @pytest.mark.usefixtures("always_stepped")
    @pytest.mark.parametrize("neighbours", [None, "replace"])
    def test_the_answer_is_the_same(self, neighbours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = dm.FitnessForUse(dm.workloads.all_range(12), 1.0, neighbours=neighbours, geometry="dense")
        with_steps = fast.solve(problem, tol=1e-8)
        monkeypatch.setattr(by_steps, "MIN_ENTRIES", 10**9)
        without = dm.FitnessForUse(dm.workloads.all_range(12), 1.0, neighbours=neighbours, geometry="dense")
        assert meet(with_steps, fast.solve(without, tol=1e-8))


class TestHalves:
    @given(st.integers(0, 2**20), st.integers(1, 6), st.integers(0, 3))
    def test_square_roots_of_the_same_matrix(self, seed: int, rank: int, beside: int) -> None:
        rng = draws(seed)
        own = np.sort(rng.permutation(rank + beside)[:rank])
        moves = np.zeros((rank, rank + beside))
        moves[:, own] = np.eye(rank)
        moves[:, np.setdiff1d(np.arange(rank + beside), own)] = rng.standard_normal((rank, beside))
        scale, matrix = rng.uniform(0.1, 1, rank + beside), rng.standard_normal((rank, rank))
        matrix = matrix @ matrix.T
        weighted = moves * scale
        whole = weighted @ weighted.T
        found: list[Half] = [TriangularHalf(np.asarray(np.linalg.cholesky(whole)), sp.csc_array(weighted))]
        if not beside:
            found.append(DiagonalHalf(scale))
        nearly = NearlyDiagonalHalf.of(moves, own, scale)
        assert nearly is not None
        for half in [*found, nearly]:
            root = half.times(np.eye(rank))
            np.testing.assert_allclose(root @ root.T, whole, atol=1e-10)
            np.testing.assert_allclose(half.around(matrix), root.T @ matrix @ root, atol=1e-10)
            expected = np.linalg.solve(root, weighted).T @ matrix
            np.testing.assert_allclose(half.on_neighbours(matrix), expected, atol=1e-8)
            assert half.log_volume == pytest.approx(np.linalg.slogdet(root)[1], abs=1e-10)

    def test_none_where_the_other_cells_have_all_the_weight(self) -> None:
        moves = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
        assert NearlyDiagonalHalf.of(moves, np.array([0, 1]), np.array([1e-6, 1e-6, 1.0])) is None


def meet(one: Any, other: Any) -> bool:
    certified = one.status is dm.Status.CERTIFIED and other.status is dm.Status.CERTIFIED
    return bool(
        certified
        and one.lower_bound <= other.objective * (1 + 1e-9)
        and other.lower_bound <= one.objective * (1 + 1e-9)
    )


PROBLEMS: dict[str, Any] = {
    "ranges": lambda: dm.FitnessForUse(dm.workloads.all_range(16), geometry="dense"),
    "replaced": lambda: dm.FitnessForUse(dm.workloads.all_range(8), neighbours="replace", geometry="dense"),
    "targets": lambda: dm.FitnessForUse(dm.Workload(draws(0).standard_normal((30, 6))), draws(1).uniform(1, 10, 30)),
    "total": lambda: dm.TotalVariance(dm.Workload(draws(2).standard_normal((12, 9)))),
    "tables": lambda: dm.FitnessForUse(
        dm.workloads.union({"age": 8, "sex": 3}, {"ages": {"age": dm.workloads.prefix(8)}, "sexes": ["sex"]}),
        [1.0, 2.0],
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_newton_without_its_matrix_finds_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS[name]()
    formed = fast.solve(problem, tol=1e-8, method="newton")
    monkeypatch.setattr(newton, "MAX_FORMED_WEIGHTS", 0)
    assert meet(formed, fast.solve(problem, tol=1e-8, method="newton"))


@pytest.mark.parametrize("name", PROBLEMS)
def test_single_precision_costs_no_accuracy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS[name]()
    double = fast.solve(problem, tol=1e-9, method="newton")
    monkeypatch.setattr(spectrum, "MIN_SINGLE_WEIGHTS", 0)
    assert meet(double, fast.solve(problem, tol=1e-9, method="newton"))


def test_many_ranges_to_the_end() -> None:
    answer = fast.solve(dm.FitnessForUse(dm.workloads.all_range(96)), tol=1e-8)
    assert answer.status is dm.Status.CERTIFIED


class TestCopies:
    def test_queries_asked_twice_share_their_price(self) -> None:
        workload = dm.Workload([[1.0, 0, 0], [0, 1, 0], [1, 1, 1], [2, 2, 2], [1, 1, 1], [-1, -1, -1]])
        answer = fast.solve(dm.FitnessForUse(workload, [1, 1, 1, 5, 2, 1]), tol=1e-9)
        prices = answer.prices
        assert prices[2] == pytest.approx(prices[5]) and prices[2] > 0
        assert prices[3] == prices[4] == 0
        plain = fast.solve(dm.FitnessForUse(workload.select([0, 1, 2]), 1.0), tol=1e-9)
        assert meet(answer, plain)

    @pytest.mark.parametrize("kind", [dm.FitnessForUse, dm.TotalVariance])
    def test_cells_that_are_multiples_and_combinations(self, kind: Any) -> None:
        cells: Array = np.repeat(draws(0).standard_normal((7, 4)), 2, axis=1) * [1, 1, 1, -1, 1, 0.5, 2, 1]
        cells = np.hstack([cells, cells[:, :1] + cells[:, 2:3], np.zeros((7, 1))])
        workload, small = dm.Workload(cells), dm.Workload(cells[:, [0, 2, 4, 6, 8]])
        answer, fewer = fast.solve(kind(workload), tol=1e-9), fast.solve(kind(small), tol=1e-9)
        assert meet(answer, fewer)
        first = answer.dual.neighbour_weights
        assert first[0] == pytest.approx(first[1]) and first[5] == first[7] == first[9] == 0
        again = fast.solve(kind(workload), tol=1e-6, start=answer)
        assert again.status is dm.Status.CERTIFIED and again.iterations <= answer.iterations


def test_a_sparse_workload_on_the_cells_stays_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reductions, "_on_workload_rows", lambda geometry: pytest.fail("its cells are the best basis there is")
    )
    rows = sp.csr_array(np.vstack([np.eye(60), draws(1).random((240, 60)) < 0.03]))
    problem = dm.FitnessForUse(dm.Workload(rows))
    assert problem.geometry.factor is not None and problem.geometry.steps is None
    assert fast.solve(problem, tol=1e-6).status is dm.Status.CERTIFIED
