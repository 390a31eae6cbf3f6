"""All ranges as a stream, for total variance: the same as on a matrix, and none where it would be too large."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.geometry.stream import RangeStream
from dualmech.workloads import base, streams


def stated(cells: int, geometry: str = "stream", weights: float = 1.0) -> dm.TotalVariance:
    return dm.TotalVariance(dm.workloads.all_range(cells), weights, geometry=geometry)


class TestWorkloads:
    @pytest.mark.parametrize("make", [dm.workloads.all_range, dm.workloads.sines])
    @pytest.mark.parametrize("cells", [1, 2, 9])
    def test_they_answer_as_their_matrix_does(self, make: Callable[[int], dm.Workload], cells: int) -> None:
        asked, x = make(cells), np.random.default_rng(0).standard_normal(cells)
        written = dm.Workload(asked.matrix, asked.names, asked.groups)
        assert asked.same_as(written) and asked.same_as(make(cells)) and not asked.same_as(make(cells + 1))
        np.testing.assert_allclose(asked @ x, written @ x, atol=1e-12)
        np.testing.assert_allclose(asked.gram(), written.gram(), atol=1e-12)
        np.testing.assert_allclose(asked.row_norms(), written.row_norms())
        np.testing.assert_allclose(asked.column_squares(), written.column_squares())
        chosen = [len(asked) - 1, 0]
        assert asked.select(chosen).same_as(written.select(chosen)) and asked[chosen].names == written[chosen].names

    def test_ends_of_many_ranges(self) -> None:
        asked = dm.workloads.all_range(2**22)
        numbers = [0, 2**22 - 1, 2**22, len(asked) - 1, len(asked) - 2, len(asked) - 3]
        first, last = asked.ends(np.array(numbers))
        assert first.tolist() == [0, 0, 1, 2**22 - 1, 2**22 - 2, 2**22 - 2]
        assert last.tolist() == [0, 2**22 - 1, 1, 2**22 - 1, 2**22 - 1, 2**22 - 2]
        with pytest.raises(dm.errors.InvalidInputError, match="at most"):
            dm.workloads.all_range(2**22 + 1)


@pytest.mark.parametrize("cells", [1, 2, 7])
def test_they_have_the_gram_matrix_of_all_ranges(cells: int) -> None:
    geometry = RangeStream(dm.workloads.all_range(cells))
    sums = np.tril(np.arange(1.0, cells + 1) / np.arange(1.0, cells + 1)[:, None])
    np.testing.assert_allclose(
        sums.T @ (geometry.shares[:, None] * sums), dm.workloads.all_range_gram(cells), rtol=1e-12
    )
    inverse = np.eye(cells) - np.diag(np.ones(cells - 1) * geometry.decay, -1)
    np.testing.assert_allclose(inverse @ sums, np.eye(cells), atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_says_what_a_matrix_says(cells: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, dense = stated(cells, weights=2.0), stated(cells, "dense", 2.0)
    point = dm.duals.StreamPoint(10.0 ** rng.uniform(-1, 1, cells), 10.0 ** rng.uniform(-1, 1, cells), 1.5)
    point, dual = problem.feasible(point), rng.uniform(0, 1, cells) + 1e-3
    ours = problem.certify(point, dual)
    theirs = dense.certify(problem.geometry.covariance(point), dual)
    assert ours.objective == pytest.approx(theirs.objective, rel=1e-9)
    assert ours.lower_bound == pytest.approx(theirs.lower_bound, rel=1e-9)
    assert ours.feasible and theirs.violation < 1e-8
    assert problem.same_as(dense) and dense.same_as(problem)


class TestSolvers:
    @pytest.mark.parametrize("cells", [1, 2, 17])
    def test_both_geometries_agree(self, cells: int) -> None:
        one, other = (fast.solve(stated(cells, name), tol=1e-7) for name in ("stream", "dense"))
        assert one.status.name == other.status.name == "CERTIFIED"
        assert one.lower_bound <= other.objective * (1 + 1e-12)
        assert other.lower_bound <= one.objective * (1 + 1e-12)

    def test_the_reference_layer_and_an_exact_proof(self) -> None:
        answer, other = fast.solve(stated(5), tol=1e-8), reference.solve(stated(5), tol=1e-4)
        proof = dm.prove(answer)
        for each in (answer, other):
            low, high = each.certificate.interval
            assert low <= proof.upper and proof.lower <= high

    @pytest.mark.parametrize(("cells", "tol"), [(256, 1e-8), (8192, 1e-6)])
    def test_no_matrix_is_made_of_many(self, cells: int, tol: float) -> None:
        problem = dm.TotalVariance(dm.workloads.all_range(cells))
        assert problem.geometry.name == "stream"
        answer = fast.solve(problem, tol=tol)
        assert answer.certificate.certifies(tol)
        # Mirroring the cells changes nothing that is asked.
        weights = answer.dual.neighbour_weights
        np.testing.assert_allclose(weights, weights[::-1], rtol=1e-3)
        # The weights of its sines are a strategy too, and no better.
        sines = fast.solve(dm.QueryWeighting(problem.workload, dm.workloads.sines(cells)), tol=1e-3)
        assert answer.lower_bound <= sines.objective <= 1.06 * answer.objective


class TestMechanism:
    @pytest.mark.parametrize("cells", [1, 5, 48])
    def test_variances_are_those_of_the_matrix(self, cells: int) -> None:
        answer = fast.solve(stated(cells), tol=1e-6)
        mechanism, asked = answer.mechanism, answer.problem.workload
        assert isinstance(mechanism, dm.StreamMechanism)
        written = mechanism.dense()
        np.testing.assert_allclose(mechanism.variances(), written.variances(asked), rtol=1e-9)
        np.testing.assert_allclose(mechanism.variances().sum(), answer.objective, rtol=1e-9)
        assert mechanism.total_variance == pytest.approx(answer.objective, rel=1e-9)
        rows = dm.Workload(np.random.default_rng(0).standard_normal((3, cells)))
        np.testing.assert_allclose(mechanism.variances(rows), written.variances(rows), rtol=1e-8)

    def test_single_ranges_of_many_are_answered(self) -> None:
        answer = fast.solve(stated(20_000), tol=1e-3)
        mechanism, asked = answer.mechanism, answer.problem.workload
        assert isinstance(mechanism, dm.StreamMechanism)
        some = mechanism.variances(asked.select([0, 19_999, 20_000]))
        assert some.shape == (3,) and some[0] < some[2] < some[1]
        for ask in (mechanism.variances, mechanism.dense):
            with pytest.raises(dm.errors.InvalidInputError, match="too"):
                ask()
        assert mechanism.simulate_cells(np.ones(20_000), rng=0).shape == (20_000,)

    def test_drawn_noise_has_the_variances_that_are_stated(self) -> None:
        mechanism = dm.StreamMechanism(dm.workloads.all_range(4), [0.2, 0.3, 0.3, 0.2], np.ones(4))
        generator = np.random.default_rng(5)
        drawn = np.array([mechanism.simulate(np.zeros(4), generator) for _ in range(2_000)])
        np.testing.assert_allclose(drawn.var(axis=0), mechanism.variances(), rtol=0.16)  # five standard errors


def test_what_a_stream_of_ranges_cannot_hold() -> None:
    ranges = dm.workloads.all_range(4)
    with pytest.raises(dm.errors.InvalidInputError, match="for total variance alone"):
        dm.FitnessForUse(ranges, geometry="stream")
    with pytest.raises(dm.errors.InvalidInputError, match="equal weights of all ranges"):
        dm.TotalVariance(ranges, np.arange(1.0, 11.0), geometry="stream")
    for weights in (np.full(10, 3.0), {"ranges": 3.0}, 3.0, [3.0]):
        assert dm.TotalVariance(ranges, weights, geometry="stream").weights.tolist() == [3.0]
    for wrong in (0.0, -1.0, np.nan, [1.0, 2.0], {"prefixes": 1.0}):
        with pytest.raises(dm.errors.DualmechError):
            dm.TotalVariance(ranges, wrong, geometry="stream")
    ranges = dm.workloads.all_range(150)
    assert dm.TotalVariance(ranges).geometry.name == "stream"
    uneven = np.r_[2.0, np.ones(len(ranges) - 1)]
    for options in ({"weights": uneven}, {"neighbours": "replace"}, {"basis": np.eye(150)}):
        assert dm.TotalVariance(ranges, **options).geometry.name == "dense"
    assert dm.FitnessForUse(ranges).geometry.name == "dense"
    assert dm.TotalVariance(dm.workloads.all_range(16)).geometry.name == "dense"


class TestFilesAndRefusals:
    def test_files(self, tmp_path: Path) -> None:
        answer = fast.solve(stated(300), tol=1e-4)
        dm.save(answer, tmp_path / "found.npz")
        again = dm.load(tmp_path / "found.npz")
        assert again == answer and again.problem.geometry.name == "stream" and again.certificate.certifies(1e-4)


@pytest.mark.parametrize("cells", [64, 65, 200])
def test_few_steps_are_known_beforehand(cells: int) -> None:
    ranges = dm.workloads.all_range(cells)
    assert ranges.needs_no_matrix and ranges.steps() is not None


def test_targets_on_all_ranges_need_no_matrix_of_queries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All ranges of 1,024 cells were refused, whose matrix has 4 GiB; here any matrix of ranges is refused."""
    known = fast.solve(dm.FitnessForUse(dm.workloads.all_range(70)), tol=1e-6)
    monkeypatch.setattr(base, "MAX_DENSE_ENTRIES", 2**13)
    monkeypatch.setattr(streams, "MAX_DENSE_ENTRIES", 2**13)
    problem = dm.FitnessForUse(dm.workloads.all_range(70))
    assert problem.geometry.name == "dense" and not problem.workload.has_matrix
    answer = fast.solve(problem, tol=1e-6)
    assert answer.status is dm.Status.CERTIFIED
    assert answer.lower_bound <= known.objective and known.lower_bound <= answer.objective
    variances = answer.mechanism.variances(problem.workload)
    assert variances.max() == pytest.approx(1, rel=1e-6) and len(variances) == 2485
    dm.save(answer, tmp_path / "answer.npz")
    assert dm.load(tmp_path / "answer.npz").certificate.interval == answer.certificate.interval
    with pytest.raises(dm.errors.GeometryError, match="cannot be written out"):
        dm.FitnessForUse(dm.workloads.all_range(63))
