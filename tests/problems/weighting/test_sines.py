"""Program 1 on all ranges by sines: the same problem as by a matrix, judged and solved without one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.problems.design import SineLoads
from dualmech.storage import store


def by_sines(cells: int) -> dm.QueryWeighting:
    return dm.QueryWeighting(dm.workloads.all_range(cells), dm.workloads.sines(cells))


def written(cells: int) -> dm.QueryWeighting:
    return dm.QueryWeighting(dm.workloads.all_range(cells), dm.workloads.sines(cells).matrix)


class TestJudge:
    @settings(deadline=None, max_examples=40)
    @given(st.integers(1, 40), st.integers(0, 2**32 - 1))
    def test_says_what_a_matrix_says(self, cells: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        primal, dual = 10.0 ** rng.uniform(-2, 2, cells), rng.uniform(0, 1, cells) * (rng.random(cells) < 0.7)
        fast_one, slow_one = by_sines(cells), written(cells)
        np.testing.assert_allclose(fast_one.costs, slow_one.costs, rtol=1e-11)
        np.testing.assert_allclose(fast_one.sensitivities, slow_one.sensitivities, atol=1e-14)
        ours, theirs = (each.certify(each.feasible(primal), dual) for each in (fast_one, slow_one))
        assert ours.objective == pytest.approx(theirs.objective, rel=1e-10)
        assert ours.lower_bound == pytest.approx(theirs.lower_bound, rel=1e-10)
        assert fast_one.certify(primal, dual).violation == pytest.approx(
            slow_one.certify(primal, dual).violation, rel=1e-10, abs=1e-13
        )
        np.testing.assert_allclose(fast_one.prices(dual), slow_one.prices(dual), rtol=1e-9, atol=1e-15)

    @pytest.mark.parametrize("cells", [1, 2, 97, 4096])
    def test_products_are_within_their_allowance(self, cells: int) -> None:
        rng, loads = np.random.default_rng(cells), SineLoads(cells)
        chosen = np.unique(rng.integers(1, cells + 1, 20))
        period = cells + 1
        # Angles are reduced in whole numbers, and sums are taken in more digits.
        turns = np.multiply.outer(chosen, np.arange(1, period)) % period
        sums = 1 - np.cos(2 * np.pi * np.longdouble(1) / period * turns)
        for vector in (rng.random(cells), 1.0 / np.arange(1, cells + 1), np.eye(1, cells, cells // 2)[0]):
            found, error = loads.spent(vector)
            assert np.abs(found[chosen - 1] - sums @ (np.longdouble(vector) / period)).max() <= error / 4

    def test_a_bound_raised_beyond_the_truth_is_never_certified(self) -> None:
        problem, best = by_sines(33), fast.solve(by_sines(33), tol=1e-8)
        with pytest.raises(dm.errors.CertificateError):
            dm.Certificate.of(best.objective * 0.999, best.lower_bound, 0.0, best.certificate.resolution)
        wrong = problem.certify(best.primal * 1.01, best.dual)
        assert not wrong.feasible and wrong.gap == np.inf
        assert problem.certify(np.full(33, np.nan), best.dual).gap == np.inf


class TestSolver:
    def test_finds_what_a_matrix_finds(self) -> None:
        for cells in (1, 2, 3, 8, 63, 64):
            one, other = fast.solve(by_sines(cells), tol=1e-9), fast.solve(written(cells), tol=1e-9)
            assert one.status.name == other.status.name == "CERTIFIED"
            assert one.lower_bound <= other.objective * (1 + 1e-9), cells
            assert other.lower_bound <= one.objective * (1 + 1e-9), cells

    @pytest.mark.parametrize(("cells", "tol"), [(1024, 1e-9), (8192, 1e-6)])
    def test_many_cells(self, cells: int, tol: float) -> None:
        found = fast.solve(by_sines(cells), tol=tol)
        assert found.certificate.certifies(tol)
        assert found.certificate.resolution < 1e-9

    def test_limits_are_kept(self) -> None:
        seen: list[dm.Progress] = []
        with pytest.warns(dm.errors.UncertifiedWarning):
            found = fast.solve(by_sines(2000), tol=1e-12, max_iterations=1, callback=seen.append)
        assert found.status.name == "STEPS_EXHAUSTED" and found.gap < 0.05 and len(seen) == 1


class TestAroundIt:
    def test_reductions_and_pure_privacy_write_the_matrix_out(self) -> None:
        ranges, sines = dm.workloads.all_range(32), dm.workloads.sines(32)
        program = dm.QueryWeighting(ranges, sines)
        found = [fast.eigen_weights(program, method=each).objective for each in ("newton", "separation", "principal")]
        assert [round(each) for each in found] == [2289, 2342, 2588]
        assert dm.QueryWeighting(ranges, sines, privacy="pure").geometry.name == "written"
        assert dm.QueryWeighting(ranges, sines, neighbours="replace").geometry.name == "written"
        assert dm.QueryWeighting(ranges, sines, neighbours="add-remove").geometry.name == "sines"
        assert dm.QueryWeighting(dm.workloads.prefix(32), sines).geometry.name == "written"

    def test_the_design_is_that_of_a_decomposition(self) -> None:
        by_gram = dm.workloads.from_gram(dm.workloads.all_range_gram(24))
        designs = [fast.eigen_design(each) for each in (dm.workloads.all_range(24), by_gram)]
        assert designs[0].total_variance == pytest.approx(designs[1].total_variance, rel=1e-6)
        queries = [dm.designs.eigen_queries(each) for each in (dm.workloads.all_range(24), by_gram)]
        np.testing.assert_allclose(abs(queries[0]), abs(queries[1]), atol=1e-10)

    def test_files_hold_no_matrix(self, tmp_path) -> None:  # type: ignore[no-untyped-def]
        found = fast.solve(by_sines(3000), tol=1e-3)
        dm.save(found, tmp_path / "found.npz")
        assert (tmp_path / "found.npz").stat().st_size < 200_000
        again = store.load(tmp_path / "found.npz")
        assert again == found and again.problem.geometry.name == "sines"

    def test_what_needs_a_matrix_is_refused_by_name_where_it_is_too_large(self) -> None:
        problem = by_sines(20_000)
        weights = problem.feasible(np.ones(20_000))
        for ask in (problem.strategy, problem.mechanism, lambda _: problem.sensitivities):
            with pytest.raises(dm.errors.InvalidInputError, match="for a dense matrix|for a matrix"):
                ask(weights)
        assert problem.strategy_error(weights) == pytest.approx(float((problem.costs / weights).sum()))
