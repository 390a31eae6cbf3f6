"""A file is whole or absent, whatever happens; an archive says what it is and is believed only so far."""

from __future__ import annotations

import contextlib
import errno
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualmech.errors import FileFormatError, InputTypeError, InvalidInputError
from dualmech.files import archives


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


class TestAtomicWrite:
    def test_writes_and_replaces(self, tmp_path: Path) -> None:
        for content in (b"first", b"second"):
            with archives.atomic_write(tmp_path / "file") as handle:
                handle.write(content)
                assert content not in [
                    (tmp_path / name).read_bytes() for name in names(tmp_path) if name == "file"
                ]
            assert (tmp_path / "file").read_bytes() == content
        assert names(tmp_path) == ["file"]

    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit, RuntimeError])
    @pytest.mark.parametrize("before", [None, b"old"])
    def test_an_interruption_leaves_nothing(
        self, tmp_path: Path, interruption: type[BaseException], before: bytes | None
    ) -> None:
        path = tmp_path / "file"
        if before:
            path.write_bytes(before)
        with pytest.raises(interruption), archives.atomic_write(path) as handle:
            handle.write(b"half")
            raise interruption
        assert names(tmp_path) == (["file"] if before else [])
        assert before is None or path.read_bytes() == before

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    @pytest.mark.parametrize(
        "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
    )
    def test_a_failing_last_step_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
    ) -> None:
        def fail(*_: object) -> None:
            raise failure

        monkeypatch.setattr(os, step, fail)
        expected = FileFormatError if isinstance(failure, OSError) else KeyboardInterrupt
        with pytest.raises(expected, match="No space" if isinstance(failure, OSError) else None):
            archives.write_npz(tmp_path / "file.npz", "s", 1, a=np.ones(3))
        assert names(tmp_path) == []

    def test_follows_links_and_keeps_permissions(self, tmp_path: Path) -> None:
        real, link = tmp_path / "real", tmp_path / "link"
        real.write_bytes(b"old")
        real.chmod(0o640)
        link.symlink_to(real)
        with archives.atomic_write(link) as handle:
            handle.write(b"new")
        assert link.is_symlink() and real.read_bytes() == b"new"
        assert real.stat().st_mode & 0o777 == 0o640


class TestAtomicFolder:
    def test_it_appears_with_all_its_files_or_not_at_all(self, tmp_path: Path) -> None:
        for failure in (KeyboardInterrupt, OSError, None):
            ignored = contextlib.suppress(KeyboardInterrupt, FileFormatError)
            with ignored, archives.atomic_folder(tmp_path / "tables") as folder:
                (folder / "first").write_bytes(b"1")
                assert not (tmp_path / "tables").exists()
                if failure is not None:
                    raise failure
            assert names(tmp_path) == ([] if failure else ["tables"])
        assert names(tmp_path / "tables") == ["first"]

    @pytest.mark.parametrize("make", ["mkdir", "touch"])
    def test_what_is_there_already_stays(self, make: str, tmp_path: Path) -> None:
        getattr(tmp_path / "tables", make)()
        with (
            pytest.raises(FileFormatError, match="exists already"),
            archives.atomic_folder(tmp_path / "tables"),
        ):
            pass
        assert names(tmp_path) == ["tables"]
        with pytest.raises(InputTypeError, match="path must be a text"), archives.atomic_folder(3):  # type: ignore[arg-type]
            pass


class TestUnwritablePaths:
    def refused(self, path: Any, match: str) -> None:
        with pytest.raises(FileFormatError, match=match) as caught:
            archives.check_writable(path)
        assert "\n" not in str(caught.value)
        with pytest.raises(FileFormatError, match=match), archives.atomic_write(path):
            pytest.fail("opened")

    def test_folders_devices_and_missing_folders(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"old")
        self.refused(tmp_path, "it is a folder")
        self.refused(
            tmp_path / "no" / "file", f"{tmp_path}/no/file: cannot be written: no folder {tmp_path}/no"
        )
        self.refused(tmp_path / "file" / "below", "no folder")
        self.refused("", "folder")
        self.refused("a\0b", "cannot be written")
        os.mkfifo(tmp_path / "pipe")
        self.refused(tmp_path / "pipe", "not an ordinary file")
        assert names(tmp_path) == ["file", "pipe"]
        with pytest.raises(InputTypeError, match="path"):
            archives.check_writable(3)  # type: ignore[arg-type]

    def test_closed_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def closed(*_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr("builtins.open", closed)
        self.refused(tmp_path / "file", "cannot be written: Permission denied")

    def test_read_only_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_bytes(b"old")
        # Whoever runs the tests as root may write anything, so the answer is put in the system's mouth.
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        self.refused(tmp_path / "file", "read-only")

    def test_a_check_leaves_nothing(self, tmp_path: Path) -> None:
        archives.check_writable(tmp_path / "new.npz")
        assert names(tmp_path) == []
        (tmp_path / "old.npz").write_bytes(b"old")
        archives.check_writable(tmp_path / "old.npz")
        assert (tmp_path / "old.npz").read_bytes() == b"old" and names(tmp_path) == ["old.npz"]


class TestArchives:
    def test_round_trip(self, tmp_path: Path) -> None:
        arrays: dict[str, Any] = {
            "matrix": np.arange(6.0).reshape(2, 3), "flag": np.array(True), "file": np.int64(-3),
            "texts": np.array(["é", ""]), "text": "FitnessForUse", "number": 0.1, "empty": np.zeros((0, 2)),
        }  # fmt: skip
        archives.write_npz(tmp_path / "a.npz", "example", 2, **arrays)
        read = archives.read_npz(tmp_path / "a.npz", "example", (1, 2))
        assert set(read) == {*arrays, "schema", "version"}
        assert str(read["schema"]) == "example" and int(read["version"]) == 2
        for key, value in arrays.items():
            np.testing.assert_array_equal(read[key], value)
        with np.load(tmp_path / "a.npz", allow_pickle=False) as loaded:
            assert sorted(loaded.files) == sorted(read), "numpy reads it as well"

    def test_what_numpy_wrote_is_read(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", schema="example", version=1, values=[1, 2])
        np.testing.assert_array_equal(archives.read_npz(tmp_path / "a.npz", "example", [1])["values"], [1, 2])

    @pytest.mark.parametrize(
        ("contents", "match"),
        [
            ({"version": 1}, "needs the array 'schema', has version"),
            ({"schema": "example"}, "needs the array 'version', has schema"),
            ({"values": [1.0]}, "needs the array 'schema', has values"),
            ({"schema": "other", "version": 1}, "must follow the schema 'example', got 'other'"),
            ({"schema": "example", "version": 3}, "must have version 1, 2 .* got 3; .* newer dualmech"),
            ({"schema": "example", "version": 0}, "must have version 1, 2 of 'example', got 0$"),
            ({"schema": "example", "version": 1.5}, "one integer"),
            ({"schema": "example", "version": [1]}, "one integer"),
            ({"schema": 5, "version": 1}, "one text"),
        ],
    )
    def test_schema_and_version(self, tmp_path: Path, contents: dict[str, Any], match: str) -> None:
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
        with pytest.raises(FileFormatError, match="'schema' is not an array"):
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
            with pytest.raises(FileFormatError, match=expected), archives.errors_naming("here.npz"):
                raise error
        with pytest.raises(KeyError), archives.errors_naming("here.npz"):
            raise KeyError("a programming error stays one")
