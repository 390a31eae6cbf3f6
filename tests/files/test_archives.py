"""An archive says what it is and is believed only so far."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import files
from dualmech.errors import FileFormatError, InputTypeError, InvalidInputError
from dualmech.files import archives, reading
from dualmech.workloads import arrays


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


class TestArchives:
    def test_round_trip_of_ours_and_of_numpys(self, tmp_path: Path) -> None:
        arrays: dict[str, Any] = {
            "matrix": np.arange(6.0).reshape(2, 3), "flag": np.array(True), "file": np.int64(-3),
            "texts": np.array(["é", ""]), "text": "FitnessForUse", "number": 0.1, "empty": np.zeros((0, 2)),
        }  # fmt: skip
        archives.write_npz(tmp_path / "a.npz", "example", 2, **arrays)
        read = archives.read_npz(tmp_path / "a.npz", "example", (1, 2))
        assert set(read) == {*arrays, "schema", "version", "library", "digest"}
        assert str(read["library"]) == dm.__version__
        assert str(read["schema"]) == "example" and int(read["version"]) == 2
        for key, value in arrays.items():
            np.testing.assert_array_equal(read[key], value)
        with np.load(tmp_path / "a.npz", allow_pickle=False) as loaded:
            assert sorted(loaded.files) == sorted(read), "numpy reads it as well"
        np.savez(tmp_path / "a.npz", schema="example", version=1, values=[1, 2])
        np.testing.assert_array_equal(archives.read_npz(tmp_path / "a.npz", "example", [1])["values"], [1, 2])

    def test_what_was_changed_says_so(self, tmp_path: Path) -> None:
        archives.write_npz(tmp_path / "a.npz", "example", 1, values=[1.0, 2.0])
        with np.load(tmp_path / "a.npz") as loaded:
            arrays = dict(loaded)
        np.savez(tmp_path / "b.npz", **(arrays | {"values": np.array([1.0, 3.0])}))
        with pytest.raises(FileFormatError, match="was changed after dualmech wrote it"):
            archives.read_npz(tmp_path / "b.npz", "example", (1,))
        np.savez(tmp_path / "c.npz", **{key: value for key, value in arrays.items() if key != "digest"})
        assert archives.read_npz(tmp_path / "c.npz", "example", (1,))["values"].tolist() == [1.0, 2.0]

    def test_schema_and_version(self, tmp_path: Path) -> None:
        for contents, match in (
            ({"version": 1}, "needs the array 'schema', has version"),
            ({"schema": "example"}, "needs the array 'version', has schema"),
            ({"values": [1.0]}, "needs the array 'schema', has values"),
            ({"schema": "other", "version": 1}, "must follow the schema 'example', got 'other'"),
            ({"schema": "example", "version": 3}, "must have version 1, 2 .* got 3; .* newer dualmech"),
            ({"schema": "example", "version": 0}, "must have version 1, 2 of 'example', got 0$"),
            ({"schema": "example", "version": 1.5}, "one integer"),
            ({"schema": "example", "version": [1]}, "one integer"),
            ({"schema": 5, "version": 1}, "one text"),
        ):
            path = tmp_path / "a.npz"
            np.savez(path, **contents)
            with pytest.raises(FileFormatError, match=f"{path}: .*{match}"):
                archives.read_npz(path, "example", (2, 1))

    def test_what_is_no_archive(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npz"
        archives.write_npz(path, "example", 1, values=np.arange(1000.0))
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 255
        for content in (b"", b"PK", b"hello", whole[:-1], whole[: len(whole) // 2], bytes(flipped)):
            path.write_bytes(content)
            with pytest.raises(FileFormatError, match=f"{path}: is not a readable .npz file"):
                archives.read_npz(path, "example", (1,))
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("schema.npy", b"not an array")
        with pytest.raises(FileFormatError, match="is not a readable .npz file"):
            archives.read_npz(path, "example", (1,))

    def test_objects_are_neither_read_nor_written(self, tmp_path: Path) -> None:
        objects = np.array([None, {}], dtype=object)
        np.savez(tmp_path / "a.npz", schema="example", version=1, values=objects)
        with pytest.raises(FileFormatError, match="pickled Python objects, which are never loaded"):
            archives.read_npz(tmp_path / "a.npz", "example", (1,))
        for wrong in (objects, np.array([1j]), np.array([b"bytes"])):
            with pytest.raises(InputTypeError, match="values must hold"):
                archives.write_npz(tmp_path / "b.npz", "example", 1, values=wrong)
        for reserved in ("schema", "version"):
            with pytest.raises(InvalidInputError, match=reserved):
                archives.write_npz(tmp_path / "b.npz", "example", 1, **{reserved: 1})
        assert names(tmp_path) == ["a.npz"]

    def test_reading_names_the_file(self) -> None:
        for error, expected in (
            (InvalidInputError("targets must be positive"), "here.npz: targets must be positive"),
            (FileNotFoundError(2, "No such file or directory"), "here.npz: cannot be read: No such file"),
            (FileFormatError("here.npz: as it was"), "^here.npz: as it was"),
        ):
            with pytest.raises(FileFormatError, match=expected), reading.errors_naming("here.npz"):
                raise error
        with pytest.raises(KeyError), reading.errors_naming("here.npz"):
            raise KeyError("a programming error stays one")


def stated(shape: object, kind: str = "<f8") -> bytes:
    """Return the header, in NumPy's format, of an array of a shape."""
    header = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


class TestMemory:
    """No file takes more memory than its size, or the largest that is written, justifies."""

    def test_what_inflates_too_far_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.npz"
        archives.write_npz(path, "example", 1, zeros=np.zeros((300, 1000)), more=np.zeros(300_000))
        monkeypatch.setattr(archives, "LARGEST_CONTENTS", 4_000_000)
        monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("read"))
        assert path.stat().st_size < 10_000
        with pytest.raises(FileFormatError, match=r"would take 4\.8e\+06 bytes of memory, 4000000 are allowed"):
            archives.read_archive(path)
        with pytest.raises(InvalidInputError, match="more than 4000000 bytes are not written"):
            archives.write_npz(path, "example", 1, zeros=np.zeros((1000, 1000)))
        monkeypatch.setattr(arrays, "MAX_CHARACTERS", 1_000_000)
        with pytest.raises(InvalidInputError, match="names must be shorter or fewer"):
            arrays.as_text_array("names", ["a"] * 1000 + ["b" * 1001])

    def test_names_are_listed_without_inflating(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.npz"
        np.savez(path, **{f"x{i}": 1.0 for i in range(12)})  # type: ignore[arg-type]
        monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("read"))
        with pytest.raises(FileFormatError, match="needs the array 'schema', has x0, x1, x10, x11, .* and 4 more$"):
            archives.read_npz(path, "example", (1,))

    @pytest.mark.parametrize(
        "shape", [(10**12,), (2, 10**15), (-1,), (-(10**9), -(10**9)), (10**400,), (3,), (1.5,), "x", ()]
    )
    def test_a_header_that_lies_about_its_size(self, shape: object, tmp_path: Path) -> None:
        contents = stated(shape) + bytes(16)
        (tmp_path / "w.npy").write_bytes(contents)
        with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
            archive.writestr("covariance.npy", contents)
        for name in ("w.npy", "w.npz"):
            with pytest.raises(FileFormatError, match=r"is not a readable \.np[yz] file"):
                files.read_matrix(tmp_path / name, "covariance")
        with pytest.raises(FileFormatError, match="is not a readable"):
            files.read_workload(tmp_path / "w.npy")

    def test_headers_of_python_2_of_texts_without_length_and_of_one_name_twice(self, tmp_path: Path) -> None:
        (tmp_path / "w.npy").write_bytes(stated((2, 1)).replace(b"(2, 1)}  ", b"(2L, 1L)}") + bytes(16))
        assert files.read_vector(tmp_path / "w.npy", "targets").shape == (2,)
        (tmp_path / "w.npy").write_bytes(stated((10**9,), "<U0"))
        with pytest.raises(FileFormatError, match="is not a readable"):
            files.read_vector(tmp_path / "w.npy", "targets")
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
            for _ in range(2):
                archive.writestr("x.npy", stated(()) + bytes(8))
        with pytest.raises(FileFormatError, match="holds 'x' twice"):
            archives.read_archive(tmp_path / "a.npz")


class TestOpening:
    @pytest.mark.parametrize("name", ["w.csv", "w.npy", "w.npz", "w.mtx"])
    def test_a_pipe_is_refused_and_not_waited_for(self, name: str, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / name)
        with pytest.raises(FileFormatError, match=f"{tmp_path}/{name}: cannot be read: it is .*not an ordinary file"):
            files.read_workload(tmp_path / name)

    @pytest.mark.parametrize("name", ["w.csv", "w.mtx"])
    def test_a_line_without_end_is_refused(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "LONGEST_LINE", 1000)
        (tmp_path / name).write_text("1,2\n" + "1," * 501)
        with pytest.raises(FileFormatError, match="line 2: is longer than 1000 characters"):
            files.read_workload(tmp_path / name)
        (tmp_path / "good.csv").write_text("1" + ",1" * 499 + "\n" + "1" + ",1" * 499)
        assert files.read_workload(tmp_path / "good.csv").shape == (2, 500)
