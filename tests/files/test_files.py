"""Workloads, vectors and matrices survive every format; whatever is wrong with a file is one clear line."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmech import files, workloads
from dualmech.errors import DualmechError, FileFormatError, InputTypeError, InvalidInputError
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

quick = settings(max_examples=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda text: not text.endswith("\0"))
KEEPS_NAMES, KEEPS_DOMAIN, KEEPS_SPARSITY = (".csv", ".npz"), (".npz",), (".npz", ".mtx")


@st.composite
def any_workload(draw: st.DrawFn) -> Workload:
    m, d = draw(st.integers(1, 5)), draw(st.sampled_from([1, 4, 6]))
    rows = draw(st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=m, max_size=m))
    names, groups = (draw(st.lists(texts, min_size=m, max_size=m)) for _ in range(2))
    domain = draw(st.sampled_from([None, Domain({"a, b": d}), Domain([("x", 1), ("ü", d)])]))
    matrix: Any = sp.csr_array(np.array(rows)) if draw(st.booleans()) else rows
    cells = draw(st.none() | st.lists(texts.filter(str.strip), min_size=d, max_size=d))
    return Workload(matrix, names, groups, domain, cells)


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(path: Path, match: str = ".") -> None:
    with pytest.raises(FileFormatError, match=match) as caught:
        files.read_workload(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


class TestRoundTrips:
    @quick
    @given(any_workload(), st.sampled_from(files.SUFFIXES))
    def test_workload(self, workload: Workload, suffix: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"workload{suffix}"
            files.write_workload(workload, path)
            again = files.read_workload(str(path))
            assert [entry.name for entry in Path(folder).iterdir()] == [path.name]
        np.testing.assert_array_equal(again.dense(), workload.dense())
        assert again.is_sparse == (workload.is_sparse and suffix in KEEPS_SPARSITY)
        if suffix in KEEPS_NAMES:
            assert (again.names, again.groups) == (workload.names, workload.groups)
        assert again.cell_names == (workload.cell_names if suffix in KEEPS_NAMES else None)
        assert again.domain == (workload.domain if suffix in KEEPS_DOMAIN else None)

    def test_same_workload_same_bytes(self, tmp_path: Path) -> None:
        for name in ("one.npz", "two.npz"):
            files.write_workload(workloads.pl94(), tmp_path / name)
        assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()

    @quick
    @given(any_workload())
    def test_arrays(self, workload: Workload) -> None:
        arrays = files.workload_arrays(workload)
        assert all(key.startswith("workload_") and value.dtype.kind in "fiU" for key, value in arrays.items())
        again = files.workload_from_arrays(arrays | {"other": np.array(1)})
        np.testing.assert_array_equal(again.dense(), workload.dense())
        assert (again.names, again.groups, again.domain) == (workload.names, workload.groups, workload.domain)
        assert again.is_sparse == workload.is_sparse and again.cell_names == workload.cell_names


class TestOthersFiles:
    @pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
    def test_scipy_npz(self, tmp_path: Path, kind: str) -> None:
        matrix = workloads.age_pyramid(20).matrix
        sp.save_npz(tmp_path / "w.npz", sp.csr_array(matrix).asformat(kind))
        workload = files.read_workload(tmp_path / "w.npz")
        assert workload.is_sparse and workload.names[0] == "q0"
        np.testing.assert_array_equal(workload.dense(), workloads.age_pyramid(20).dense())

    @pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.float32, ">f8"])
    def test_npy_of_any_real_type(self, tmp_path: Path, dtype: Any) -> None:
        matrix = np.asfortranarray(np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype))
        np.save(tmp_path / "w.npy", matrix)
        np.testing.assert_array_equal(files.read_workload(tmp_path / "w.npy").dense(), matrix)


class TestVectors:
    @pytest.mark.parametrize("content", ["1\n2.5\n3e2\n", "target\r\n1\r\n2.5\r\n300", "\ufeff 1\n\n2.5\n300\n\n"])
    def test_csv(self, tmp_path: Path, content: str) -> None:
        path = written(tmp_path / "targets.csv", content)
        np.testing.assert_array_equal(files.read_vector(path, "targets"), [1, 2.5, 300])

    @pytest.mark.parametrize("shape", [(3,), (3, 1)])
    def test_arrays(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        values = np.array([1.0, 2.0, 3.0]).reshape(shape)
        np.save(tmp_path / "t.npy", values)
        np.savez(tmp_path / "t.npz", targets=values, other=[1])
        for name in ("t.npy", "t.npz"):
            np.testing.assert_array_equal(files.read_vector(tmp_path / name, "targets"), [1, 2, 3])

    def test_refused_files(self, tmp_path: Path) -> None:
        for content, match in (
            ("1,2,3\n", "one column"),
            ("query,target\nleft,1\n", "column of names"),
            ("1\nmany\n", "line 2: 'many' is not a number"),
            ("1\ninf\n", "line 2: numbers must be finite"),
            ("", "no row"),
        ):
            path = written(tmp_path / "targets.csv", content)
            with pytest.raises(FileFormatError, match=f"{path}: .*{match}"):
                files.read_vector(path, "targets")
        np.savez(tmp_path / "t.npz", moe=[1.0])
        with pytest.raises(FileFormatError, match="needs the array 'targets', has moe"):
            files.read_vector(tmp_path / "t.npz", "targets")
        for wrong in (np.ones((1, 3)), np.array(1.0), np.array(["1"]), np.array([]), np.array([1j]), [np.nan]):
            np.save(tmp_path / "t.npy", wrong)
            with pytest.raises(FileFormatError, match="t.npy: targets must"):
                files.read_vector(tmp_path / "t.npy", "targets")
        with pytest.raises(FileFormatError, match="must end in .csv, .npy or .npz"):
            files.read_vector(tmp_path / "t.mtx", "targets")


def test_every_format_and_refused_files(tmp_path: Path) -> None:
    matrix = np.array([[2.0, -0.5], [-0.5, 1 / 3]])
    np.save(tmp_path / "c.npy", matrix)
    files.write_npz(tmp_path / "c.npz", "dualmech.mechanism", 1, covariance=matrix)
    files.write_workload(Workload(matrix), tmp_path / "c.csv")
    files.write_workload(Workload(sp.csr_array(matrix)), tmp_path / "c.mtx")
    written(tmp_path / "bare.csv", "2,-0.5\n-0.5,0.3333333333333333\n")
    for path in tmp_path.iterdir():
        np.testing.assert_array_equal(files.read_matrix(path, "covariance"), matrix)
    np.save(tmp_path / "c.npy", np.array([[1.0, np.nan]]))
    with pytest.raises(FileFormatError, match=r"c.npy: covariance must be finite, got nan at .*\[0, 1\]"):
        files.read_matrix(tmp_path / "c.npy", "covariance")
    np.save(tmp_path / "c.npy", np.ones(3))
    with pytest.raises(FileFormatError, match="2 dimension"):
        files.read_matrix(tmp_path / "c.npy", "covariance")
    header = "%%MatrixMarket matrix coordinate real general\n1000000 1000000 1\n1 1 1\n"
    with pytest.raises(FileFormatError, match="too large"):
        files.read_matrix(written(tmp_path / "c.mtx", header), "covariance")


class TestBadFiles:
    @pytest.mark.parametrize("suffix", files.SUFFIXES)
    def test_missing_folder_or_empty(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"workload{suffix}"
        refused(path, "cannot be read: No such file")
        refused(written(path, b""))
        path.unlink()
        path.mkdir()
        refused(path, "cannot be read: Is a directory")

    @pytest.mark.parametrize("suffix", files.SUFFIXES)
    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
        path = written(tmp_path / f"w{suffix}", "1\n")

        def closed(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("builtins.open", closed)
        refused(path, "cannot be read: Permission denied")

    @pytest.mark.parametrize("name", ["workload", "workload.txt", "workload.csv.gz", ".csv"])
    def test_unknown_ending(self, tmp_path: Path, name: str) -> None:
        refused(written(tmp_path / name, "1\n"), "must end in .csv, .npy, .npz or .mtx")
        with pytest.raises(FileFormatError, match="must end in"):
            files.write_workload(workloads.prefix(2), tmp_path / name)

    def test_only_paths_workloads_and_names_that_a_format_holds(self, tmp_path: Path) -> None:
        with pytest.raises(InputTypeError, match="path"):
            files.read_workload(3)  # type: ignore[arg-type]
        with pytest.raises(InputTypeError, match="ndarray"):
            files.write_workload(np.eye(2), tmp_path / "w.npz")  # type: ignore[arg-type]
        assert not list(tmp_path.iterdir())
        with pytest.raises(InvalidInputError, match="NUL"):
            files.write_workload(Workload([[1]], names=["a\0"]), tmp_path / "w.npz")
        with pytest.raises(InvalidInputError, match="UTF-8"):
            files.write_workload(Workload([[1]], names=["\ud800"]), tmp_path / "w.csv")
        assert not list(tmp_path.iterdir())

    def test_pickles_other_archives_and_indices_outside_the_matrix(self, tmp_path: Path) -> None:
        objects = np.array([{"x": 1}], dtype=object)
        np.save(tmp_path / "w.npy", objects, allow_pickle=True)
        np.savez(tmp_path / "w.npz", schema=files.SCHEMA, version=1, workload_matrix=objects)
        for name in ("w.npy", "w.npz"):
            refused(tmp_path / name, "pickled Python objects")
        refused(written(tmp_path / "raw.npz", objects.dumps()), "not a zip file")
        np.savez(tmp_path / "w.npz", a=np.eye(2), b=np.eye(2))
        refused(tmp_path / "w.npz", "neither .* but arrays a, b")
        np.savez(tmp_path / "w.npz", format="csr", shape=[2, 2])
        refused(tmp_path / "w.npz")
        files.write_npz(tmp_path / "w.npz", "dualmech.mechanism", 1, covariance=np.eye(2))
        refused(tmp_path / "w.npz", "must follow the schema 'dualmech.workload', got 'dualmech.mechanism'")
        parts = {"data": np.ones(2), "indices": np.array([0, 9]), "indptr": np.array([0, 1, 2])}
        np.savez(tmp_path / "w.npz", format="csr", shape=[2, 2], **parts)  # type: ignore[arg-type]
        refused(tmp_path / "w.npz")
        arrays = files.workload_arrays(workloads.identity(2))
        for key in ("indices", "indptr"):
            with pytest.raises(InvalidInputError, match="fit together"):
                files.workload_from_arrays(arrays | {f"workload_{key}": parts[key] + 7})

    @pytest.mark.parametrize("wrong", [np.ones(3), np.ones((2, 2, 1)), np.ones((0, 3)), np.array([["a"]]),
                                       np.array([[1j]]), np.array([[np.inf]])])  # fmt: skip
    def test_arrays_that_are_no_workload(self, tmp_path: Path, wrong: Any) -> None:
        np.save(tmp_path / "w.npy", wrong)
        refused(tmp_path / "w.npy", "workload must")

    def test_arrays_that_do_not_fit(self, tmp_path: Path) -> None:
        for change, match in (
            ({"workload_names": None}, "needs the array 'workload_names'"),
            ({"workload_matrix": None}, "needs the array 'workload_data'"),
            ({"workload_names": np.array(["one"])}, "names must have 3"),
            ({"workload_names": np.array("one")}, "names"),
            ({"workload_shape": np.array([3, 4])}, "shape"),
            ({"workload_shape": np.array([3, 3, 3])}, "two numbers"),
            ({"workload_domain_sizes": None}, "domain"),
            ({"workload_domain_sizes": np.array([4])}, "domain"),
            ({"workload_domain_sizes": np.array([3, 1])}, "domain"),
            ({"workload_domain_sizes": np.array([1.5])}, "size"),
        ):
            workload = Workload(np.eye(3), domain=Domain({"a": 3}))
            arrays = {k: v for k, v in (files.workload_arrays(workload) | change).items() if v is not None}
            with pytest.raises(DualmechError, match=match):
                files.workload_from_arrays(arrays)
            files.write_npz(tmp_path / "w.npz", files.SCHEMA, files.VERSION, **arrays)
            refused(tmp_path / "w.npz", match)

    @pytest.mark.parametrize("suffix", [*files.SUFFIXES, ".scipy.npz"])
    def test_damage_is_refused_or_harmless(self, tmp_path: Path, suffix: str) -> None:
        path, rng = tmp_path / f"w{suffix}", np.random.default_rng(0)
        if suffix == ".scipy.npz":
            sp.save_npz(path, sp.csr_array(workloads.age_pyramid(19).matrix))
        else:
            files.write_workload(workloads.age_pyramid(19), path)
        whole = path.read_bytes()
        for _ in range(80):
            damaged = bytearray(whole[: rng.integers(len(whole))] if rng.random() < 0.3 else whole)
            for place in rng.integers(min(len(whole), 400), size=rng.integers(3)):
                damaged[place : place + 1] = rng.bytes(1)
            path.write_bytes(damaged)
            for read in (files.read_workload, lambda p: files.read_matrix(p, "workload_matrix")):
                try:
                    read(path)
                except FileFormatError as error:
                    assert "\n" not in str(error)
