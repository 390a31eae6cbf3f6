"""Solutions on disk are judged anew; a file that lies is found out."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast, files
from dualmech.solution import retold

PROBLEMS: dict[str, Callable[[], Any]] = {
    "accuracy first": lambda: dm.FitnessForUse(dm.workloads.prefix(6), targets=np.arange(1.0, 7.0)),
    "privacy first": lambda: dm.PrivacyFirst(dm.workloads.prefix(6), targets=1.0, cost=0.5),
    "sparse and rank-deficient": lambda: dm.FitnessForUse(
        dm.workloads.marginals((2, 3, 2), ways=(1, 2)), 1.0, geometry="dense"
    ),
    "neighbours": lambda: dm.FitnessForUse(
        dm.workloads.identity_total(4), 1.0, neighbours=dm.neighbours.replace_one(4)
    ),
    "soft maxima": lambda: dm.SoftmaxFitness(dm.workloads.prefix(5), np.arange(1.0, 6.0), 20, 10, 0.1),
    "query weighting": lambda: dm.QueryWeighting(
        dm.workloads.identity_total(4), np.eye(4)[:, ::-1], neighbours=dm.neighbours.replace_one(4)
    ),
}


def rewrite(path: Path, changes: dict[str, object]) -> None:
    with np.load(path) as archive:
        arrays = dict(archive)
    schema, version = str(arrays.pop("schema")), int(arrays.pop("version"))
    for written in ("digest", "library"):
        arrays.pop(written, None)
    for key, value in changes.items():
        if value is None:
            del arrays[key]
        else:
            arrays[key] = np.asarray(value)
    files.write_npz(path, schema, version, **arrays)


@pytest.mark.parametrize("name", PROBLEMS)
def test_round_trip_keeps_the_answer_and_its_certificate(name: str, tmp_path: Path) -> None:
    answer = fast.solve(PROBLEMS[name]())
    dm.save(answer, tmp_path / "answer.npz")
    again = dm.load(tmp_path / "answer.npz")
    assert type(again.problem) is type(answer.problem)
    # The basis is stated now, and what the queries are on it is found in another way, rounding and all.
    before, after = answer.certificate, again.certificate
    rounding = before.resolution + after.resolution
    assert after.objective == pytest.approx(before.objective, rel=rounding)
    assert after.lower_bound == pytest.approx(before.lower_bound, rel=rounding)
    assert after.violation == pytest.approx(before.violation, abs=rounding)
    assert after.resolution == pytest.approx(before.resolution, rel=0.1)
    assert again.status is dm.Status.CERTIFIED
    assert again.iterations == answer.iterations
    assert again.problem.workload.names == answer.problem.workload.names
    np.testing.assert_array_equal(again.primal, answer.primal)
    np.testing.assert_allclose(again.mechanism.profile, answer.mechanism.profile, rtol=1e-12)


def test_weights_without_limit_survive(tmp_path: Path) -> None:
    total = dm.QueryWeighting(
        dm.workloads.total(3), dm.workloads.identity_total(3), neighbours=dm.neighbours.replace_one(3)
    )
    with pytest.raises(dm.errors.InputTypeError, match="problem must declare its own .*, got a int"):
        dm.save(retold(fast.solve(PROBLEMS["privacy first"]()), problem=3), tmp_path / "no.npz")
    answer = fast.solve(total)
    dm.save(answer, tmp_path / "answer.npz")
    again = dm.load(tmp_path / "answer.npz")
    assert np.isinf(again.primal).any() and again.certificate == answer.certificate


class TestLyingFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "answer.npz"
        dm.save(fast.solve(PROBLEMS["accuracy first"]()), path)
        return path

    @pytest.mark.parametrize("factor", [0.5, 2.0])
    def test_a_scaled_covariance_is_not_certified(self, path: Path, factor: float) -> None:
        with np.load(path) as archive:
            primal = archive["primal"]
        rewrite(path, {"primal": factor * primal})
        with pytest.warns(dm.errors.UncertifiedWarning):
            assert dm.load(path).status is not dm.Status.CERTIFIED

    def test_impossible_contents_are_refused(self, path: Path) -> None:
        cases: Any = (
            ({"primal": None}, "primal"),
            ({"primal": np.eye(3)}, "covariance"),
            ({"dual.query_weights": np.ones(2)}, "dual"),
            ({"targets": -np.ones(6)}, "targets"),
            ({"problem": "Riddle"}, "Riddle"),
            ({"tol": np.inf}, "tol"),
            ({"tol": -1.0}, "tol"),
            ({"asked": 3.0}, "asked must be a PlanTerms of dualmech, got float"),
            ({"asked.kind": "Relaxation"}, "asked"),
            ({"asked.kind": "PlanTerms", "asked.rho": "much"}, "rho"),
        )
        whole = path.read_bytes()
        for changes, words in cases:
            path.write_bytes(whole)
            rewrite(path, changes)
            with pytest.raises(dm.errors.FileFormatError, match=words):
                dm.load(path)

    @pytest.mark.parametrize(
        ("changes", "words"), [({"t1": None}, "t1"), ({"t2": -1.0}, "t2"), ({"total_weight": "much"}, "total_weight")]
    )
    def test_impossible_soft_maxima_are_refused(self, tmp_path: Path, changes: dict[str, object], words: str) -> None:
        path = tmp_path / "soft.npz"
        dm.save(fast.solve(PROBLEMS["soft maxima"]()), path)
        rewrite(path, changes)
        with pytest.raises(dm.errors.FileFormatError, match=words):
            dm.load(path)

    def test_a_file_says_what_it_holds(self, path: Path) -> None:
        mechanism = dm.load(path).mechanism
        dm.save(mechanism, path)
        assert dm.load(path) == mechanism
        dm.files.write_npz(path, "another", 1, primal=np.eye(2))
        with pytest.raises(dm.errors.FileFormatError, match="'another'"):
            dm.load(path)

    def test_other_paths_and_files_that_were_cut_off_are_refused(self, path: Path) -> None:
        others: Any = (None, 3, b"answer.npz")
        for other in others:
            with pytest.raises(dm.errors.InputTypeError, match="path must be a text or a path"):
                dm.load(other)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(dm.errors.FileFormatError, match="is not a readable .npz file"):
            dm.load(path)

    def test_a_worse_covariance_for_soft_maxima_is_not_certified(self, tmp_path: Path) -> None:
        path = tmp_path / "soft.npz"
        dm.save(fast.solve(PROBLEMS["soft maxima"]()), path)
        rewrite(path, {"primal": np.eye(5), "dual.query_weights": np.full(5, 1e6)})
        with pytest.warns(dm.errors.UncertifiedWarning):
            again = dm.load(path)
        assert again.status is not dm.Status.CERTIFIED and again.gap > 0.01


TABLES = dm.workloads.marginals({"sex": 2, "place": 5}, ways=(0, 1, 2))
AGES, INCOME = dm.workloads.prefix(4), dm.workloads.all_range(3)
UNION = dm.workloads.union(
    {"age": 4, "hour": 6, "sex": 2},
    {
        "ages": {"age": AGES, "sex": None},
        "again": {"age": AGES},
        "two": {"age": dm.Workload([[1, 0, 1, 0.0], [0, 0, 1, 1.0]])},
        "runs": {"hour": dm.workloads.circular_ranges(6, lengths=[2, 3])},
        "all": [],
    },
)
QUERIES = dm.workloads.query_tables(
    {"age": 4, "b": 4, "income": 3, "one": 1}, {"age": AGES, "b": AGES, "income": INCOME}, ways=(0, 1, 2)
)
COMPOSED: dict[str, Callable[[], Any]] = {
    "split": lambda: dm.FitnessForUse(QUERIES, {0: 1.0, 1: 2.0, 2: 3.0}, geometry="split"),
    "product": lambda: dm.FitnessForUse(
        dm.workloads.kron(AGES, AGES, TABLES), dm.ByFactor(1.0, 1.0, {0: 1, 1: 2, 2: 4})
    ),
    "union": lambda: dm.FitnessForUse(UNION, [1.0, 2.0, 3.0, 4.0, 5.0]),
    "union's variance": lambda: dm.TotalVariance(UNION, [1.0, 2.0, 3.0, 4.0, 5.0]),
    "privacy first": lambda: dm.PrivacyFirst(TABLES, {0: 1, 1: 2, 2: 4}, 0.3),
    "union, records replaced": lambda: dm.FitnessForUse(UNION, neighbours="replace"),
    "marginals, two records a person": lambda: dm.TotalVariance(TABLES, neighbours="add-remove:2"),
    "circle": lambda: dm.FitnessForUse(dm.workloads.circular_ranges(6), 2.0),
    "product as a union": lambda: dm.FitnessForUse(
        dm.workloads.kron(dm.workloads.marginals({"a": 2}, ways=(0, 1)), TABLES), geometry="blocks"
    ),
    "total variance": lambda: dm.TotalVariance(
        dm.workloads.kron(INCOME, TABLES), dm.ByFactor([1.0, 0.0, 2.0, 3.0, 4.0, 5.0], 1.0)
    ),
}


@functools.cache
def composed(kind: str, tol: float = 1.0) -> dm.Solution:
    return fast.solve(COMPOSED[kind](), tol=tol)


class TestComposed:
    @pytest.mark.parametrize("kind", COMPOSED)
    def test_round_trip_keeps_the_answer_and_its_certificate(self, kind: str, tmp_path: Path) -> None:
        answer = composed(kind)
        dm.save(answer, tmp_path / "answer.npz")
        again = dm.load(tmp_path / "answer.npz")
        assert again.problem.same_as(answer.problem) and again.certificate == answer.certificate
        assert again.problem.geometry.name == answer.problem.geometry.name
        assert again.problem.workload.groups == answer.problem.workload.groups
        assert again.mechanism.rho == answer.mechanism.rho and again.status is answer.status
        dm.save(again, tmp_path / "again.npz")
        assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "answer.npz").read_bytes()

    def test_what_comes_again_is_kept_once(self, tmp_path: Path) -> None:
        path = tmp_path / "answer.npz"
        dm.save(composed("product"), path)
        first, second, _ = dm.load(path).problem.factors
        assert first is second and first.geometry is second.geometry
        arrays = files.read_archive(path)
        for key in ("workload.factors", "targets", "bases", "primal", "dual.query_weights"):
            assert arrays[key].tolist() == ([0, 0, -1] if key == "bases" else [0, 0, 1])
            assert f"{key}#2" not in arrays
        dm.save(composed("split"), path)
        again = dm.load(path)
        assert again.problem.workload.queries[0] is again.problem.workload.queries[1]
        assert files.read_archive(path)["workload.queries"].tolist() == [0, 0, 1, -1]

    @pytest.mark.parametrize("kind", ["split", "product", "union, records replaced"])
    def test_every_array_is_needed_and_none_is_believed(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "answer.npz"
        spare = {"schema", "version", "library", "digest", "status", "tol", "message", "iterations"}
        spare |= {"seconds", "solver"}
        dm.save(composed(kind), path)
        whole = path.read_bytes()
        for key in files.read_archive(path):
            if key in spare or key.endswith(("domain_names", ".names", ".groups")):
                continue
            path.write_bytes(whole)
            if key not in ("geometry", "bases", "bases.tuple", "neighbours"):
                rewrite(path, {key: None})
                with pytest.raises(dm.errors.FileFormatError, match="needs|must|takes"):
                    dm.load(path)
            rewrite(path, {key: np.array([[-3.5, np.nan]])})
            with pytest.raises(dm.errors.FileFormatError):
                dm.load(path)

    def test_impossible_contents_are_refused(self, tmp_path: Path) -> None:
        cases: Any = (
            ("split", {"workload.queries": [0, 0, 0, -1]}, "must be over 3 values"),
            ("split", {"workload.queries": [0, 0, 2, -1]}, "needs 'workload.queries#2'"),
            (
                "split",
                {"workload.queries": [0, 0, 1], "workload.queries.tuple": 3},
                "queries must be 4, one per attribute",
            ),
            ("split", {"workload.queries": [0, 0, 1, -2]}, "must be a list of whole numbers from -1"),
            ("split", {"primal.shapes": [0, 0, 1, -1]}, r"shapes\[3\]"),
            ("split", {"primal.shapes": [0, 0], "primal.shapes.tuple": 2}, "shapes must be a sequence of 4 arrays"),
            ("split", {"primal.shapes#0": np.eye(3)}, "must have shape"),
            (
                "split",
                {"dual.query_weights.queries#0": np.ones(3)},
                r"query_weights\[0\] must be 4, one per query, got 3",
            ),
            (
                "union",
                {"workload.queries": [0, -1, 0, 1], "workload.queries.tuple": 4},
                "queries must be 5, one per attribute of a table",
            ),
            ("union", {"workload.queries": [0, -1, 0, 1, 0]}, "must be over 6 values"),
            ("union", {"workload.queries": [0, -1, 0, 3, 2]}, "needs 'workload.queries#3'"),
            ("union", {"workload.queries#2.bases": np.eye(3)}, "must be over 6 values"),
            ("union", {"workload.table_names": ["a", "b", "c", "d"]}, "table_names must be 5 distinct texts"),
            ("union", {"workload.table_names": ["a", "b", "c", "d", "d"]}, "must be 5 distinct texts"),
            ("union", {"workload.set_axes": [0, 7, 0, 0, 1]}, "must hold increasing positions"),
            ("union", {"workload.kind": "Riddle"}, "workload.kind must be one of Workload, .*'Riddle'"),
            ("union", {"targets": -np.ones(5)}, "targets must be positive"),
            ("union", {"geometry": "split"}, "geometry 'split' takes"),
            ("union", {"geometry": "round"}, "geometry must be one of"),
            ("union", {"primal.levels": np.ones(99)}, "levels must be"),
            (
                "union",
                {"primal.covariances": [0, 0], "primal.covariances.tuple": 2},
                "covariances must be 5 items, got 2",
            ),
            ("union", {"primal.covariances": [0, 1, 2, 3, 7]}, "needs 'primal.covariances#7'"),
            ("union", {"primal.covariances#0": np.eye(2)}, "must have shape"),
            ("union", {"primal.bases#1": np.eye(2)}, "basis and covariance must have shapes"),
            ("union", {"primal.bases#1": np.ones((4, 4))}, "basis must be orthonormal"),
            ("union", {"dual.neighbour_weights": np.ones(3)}, "neighbour_weights must be 4, one per orbit"),
            ("union", {"dual.query_weights": np.ones((2, 2))}, "query_weights must have 1 dimension"),
            ("product", {"workload.factors": [0, 0, 7]}, "needs 'workload.factors#7'"),
            ("product", {"targets.tuple": 2}, "targets.tuple must be their number, 3"),
            ("product", {"targets": [0, 0], "targets.tuple": 2}, "by factor must be 3, one per factor, got 2"),
            ("product", {"primal": [0, 0], "primal.tuple": 2}, "primal must have 3 items"),
            ("product", {"bases": [0, 0], "bases.tuple": 2}, "bases must be 3 items, got 2"),
            ("product", {"bases#0": np.eye(3)}, "basis must"),
            ("product", {"targets#0": -np.ones(4)}, "targets must be positive"),
        )
        for kind, changes, words in cases:
            dm.save(composed(kind), tmp_path / "answer.npz")
            rewrite(tmp_path / "answer.npz", changes)
            with pytest.raises(dm.errors.FileFormatError, match=words):
                dm.load(tmp_path / "answer.npz")

    @pytest.mark.parametrize(
        ("kind", "key"),
        [
            ("split", "primal.levels"),
            ("product", "primal#0"),
            ("union", "primal.covariances#0"),
            ("privacy first", "primal.levels"),
        ],
    )
    @pytest.mark.parametrize("factor", [0.5, 2.0])
    def test_scaled_noise_is_found_out(self, kind: str, key: str, factor: float, tmp_path: Path) -> None:
        truth = composed(kind, tol=1.0 if kind == "split" else 1e-6)
        dm.save(truth, tmp_path / "answer.npz")
        rewrite(tmp_path / "answer.npz", {"tol": 1e-6, key: factor * files.read_archive(tmp_path / "answer.npz")[key]})
        with pytest.warns(dm.errors.UncertifiedWarning):
            again = dm.load(tmp_path / "answer.npz")
        # Less noise misses no target; at a fixed cost more noise spends no more.
        right = factor > 1 if kind == "privacy first" else factor < 1
        assert again.status is not dm.Status.CERTIFIED and again.certificate.feasible == right

    def test_a_covariance_means_the_same_on_another_basis(self, tmp_path: Path) -> None:
        thin = dm.Workload([[1, 0, 1, 0.0], [0, 1, 1, 1.0], [1, 1, 2, 1.0]])
        asked = dm.workloads.union({"age": 4, "sex": 2}, {"some": {"age": thin, "sex": None}})
        truth, path = fast.solve(dm.FitnessForUse(asked)), tmp_path / "answer.npz"
        dm.save(truth, path)
        arrays = files.read_archive(path)
        turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
        assert arrays["primal.bases#0"].shape == (2, 3)
        rewrite(
            path,
            {
                "primal.bases#0": turn @ arrays["primal.bases#0"],
                "primal.covariances#0": turn @ arrays["primal.covariances#0"] @ turn.T,
            },
        )
        again = dm.load(path)
        assert again.status is dm.Status.CERTIFIED and again.objective == pytest.approx(truth.objective)

    def test_a_newer_version_is_refused(self, tmp_path: Path) -> None:
        dm.save(composed("union"), tmp_path / "answer.npz")
        arrays = files.read_archive(tmp_path / "answer.npz")
        del arrays["schema"], arrays["version"], arrays["library"], arrays["digest"]
        files.write_npz(tmp_path / "answer.npz", "dualmech.solution", 2, **arrays)
        with pytest.raises(dm.errors.FileFormatError, match="version"):
            dm.load(tmp_path / "answer.npz")
