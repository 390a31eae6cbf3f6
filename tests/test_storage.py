"""Solutions on disk are judged anew; a file that lies is found out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast, files

PROBLEMS = {
    "accuracy first": lambda: dm.FitnessForUse(dm.workloads.prefix(6), targets=np.arange(1.0, 7.0)),
    "privacy first": lambda: dm.PrivacyFirst(dm.workloads.prefix(6), targets=1.0, cost=0.5),
    "sparse and rank-deficient": lambda: dm.FitnessForUse(
        dm.workloads.marginals((2, 3, 2), ways=(1, 2)), 1.0
    ),
    "neighbours": lambda: dm.FitnessForUse(
        dm.workloads.identity_total(4), 1.0, neighbours=dm.neighbours.replace_one(4)
    ),
    "soft maxima": lambda: dm.SoftmaxFitness(dm.workloads.prefix(5), np.arange(1.0, 6.0), 20, 10, 0.1),
    "query weighting": lambda: dm.QueryWeighting(
        dm.workloads.identity_total(4), np.eye(4)[:, ::-1], neighbours=dm.neighbours.replace_one(4)
    ),
}


def rewrite(path: Path, **changes: object) -> None:
    with np.load(path) as archive:
        arrays = dict(archive)
    schema, version = str(arrays.pop("schema")), int(arrays.pop("version"))
    for key, value in changes.items():
        if value is None:
            del arrays[key]
        else:
            arrays[key] = np.asarray(value)
    files.write_npz(path, schema, version, **arrays)


@pytest.mark.parametrize("name", PROBLEMS)
def test_round_trip_keeps_the_answer_and_its_certificate(name: str, tmp_path: Path) -> None:
    answer = fast.solve(PROBLEMS[name]())
    dm.save_solution(answer, tmp_path / "answer.npz")
    again = dm.load_solution(tmp_path / "answer.npz")
    assert type(again.problem) is type(answer.problem)
    assert again.certificate == answer.certificate
    assert again.status is dm.Status.CERTIFIED
    assert again.iterations == answer.iterations
    assert again.problem.workload.names == answer.problem.workload.names
    np.testing.assert_array_equal(again.primal, answer.primal)
    np.testing.assert_allclose(again.mechanism.profile, answer.mechanism.profile, rtol=1e-12)


def test_weights_without_limit_survive(tmp_path: Path) -> None:
    total = dm.QueryWeighting(
        dm.workloads.total(3), dm.workloads.identity_total(3), neighbours=dm.neighbours.replace_one(3)
    )
    with pytest.raises(dm.InputTypeError, match="FitnessForUse, .*QueryWeighting.*, got that of a int"):
        dm.save_solution(replace(fast.solve(PROBLEMS["privacy first"]()), problem=3), tmp_path / "no.npz")
    answer = fast.solve(total)
    dm.save_solution(answer, tmp_path / "answer.npz")
    again = dm.load_solution(tmp_path / "answer.npz")
    assert np.isinf(again.primal).any() and again.certificate == answer.certificate


class TestLyingFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "answer.npz"
        dm.save_solution(fast.solve(PROBLEMS["accuracy first"]()), path)
        return path

    @pytest.mark.parametrize("factor", [0.5, 2.0])
    def test_a_scaled_covariance_is_not_certified(self, path: Path, factor: float) -> None:
        with np.load(path) as archive:
            primal = archive["primal"]
        rewrite(path, primal=factor * primal)
        with pytest.warns(dm.UncertifiedWarning):
            assert dm.load_solution(path).status is not dm.Status.CERTIFIED

    def test_raised_weights_prove_no_more(self, path: Path) -> None:
        truth = dm.load_solution(path)
        rewrite(path, neighbour_weights=100 * truth.dual.neighbour_weights)
        assert dm.load_solution(path).lower_bound == pytest.approx(truth.lower_bound, rel=1e-12)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"primal": None}, "primal"),
            ({"primal": np.eye(3)}, "covariance"),
            ({"query_weights": np.ones(2)}, "dual"),
            ({"targets": -np.ones(6)}, "targets"),
            ({"problem": "Riddle"}, "Riddle"),
        ],
    )
    def test_impossible_contents_are_refused(
        self, path: Path, changes: dict[str, object], words: str
    ) -> None:
        rewrite(path, **changes)
        with pytest.raises(dm.FileFormatError, match=words):
            dm.load_solution(path)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [({"t1": None}, "t1"), ({"t2": -1.0}, "t2"), ({"total_weight": "much"}, "total_weight")],
    )
    def test_impossible_soft_maxima_are_refused(
        self, tmp_path: Path, changes: dict[str, object], words: str
    ) -> None:
        path = tmp_path / "soft.npz"
        dm.save_solution(fast.solve(PROBLEMS["soft maxima"]()), path)
        rewrite(path, **changes)
        with pytest.raises(dm.FileFormatError, match=words):
            dm.load_solution(path)

    def test_a_worse_covariance_for_soft_maxima_is_not_certified(self, tmp_path: Path) -> None:
        path = tmp_path / "soft.npz"
        dm.save_solution(fast.solve(PROBLEMS["soft maxima"]()), path)
        rewrite(path, primal=np.eye(5), query_weights=np.full(5, 1e6))
        with pytest.warns(dm.UncertifiedWarning):
            again = dm.load_solution(path)
        assert again.status is not dm.Status.CERTIFIED and again.gap > 0.01

    def test_another_schema_is_refused(self, path: Path) -> None:
        dm.load_solution(path).mechanism.save(path)
        with pytest.raises(dm.FileFormatError, match="dualmech.solution"):
            dm.load_solution(path)
