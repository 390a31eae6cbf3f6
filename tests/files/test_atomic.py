"""A file or a folder is whole or absent, whatever happens while it is written."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualmech.errors import FileFormatError, InputTypeError
from dualmech.files import archives, atomic


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


class TestAtomicWrite:
    def test_writes_and_replaces(self, tmp_path: Path) -> None:
        for content in (b"first", b"second"):
            with atomic.atomic_write(tmp_path / "file") as handle:
                handle.write(content)
                assert content not in [(tmp_path / name).read_bytes() for name in names(tmp_path) if name == "file"]
            assert (tmp_path / "file").read_bytes() == content
        assert names(tmp_path) == ["file"]

    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit, RuntimeError])
    @pytest.mark.parametrize("before", [None, b"old"])
    def test_an_interruption_leaves_nothing(self, tmp_path: Path, interruption: Any, before: bytes | None) -> None:
        path = tmp_path / "file"
        if before:
            path.write_bytes(before)
        with pytest.raises(interruption), atomic.atomic_write(path) as handle:
            handle.write(b"half")
            raise interruption
        assert names(tmp_path) == (["file"] if before else [])
        assert before is None or path.read_bytes() == before

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    @pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
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
        with atomic.atomic_write(link) as handle:
            handle.write(b"new")
        assert link.is_symlink() and real.read_bytes() == b"new"
        assert real.stat().st_mode & 0o777 == 0o640

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
    def test_what_few_may_read_is_as_closed_while_it_is_replaced(self, mode: int, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"old")
        (tmp_path / "file").chmod(mode)
        with atomic.atomic_write(tmp_path / "file") as handle:
            handle.write(b"new")
            assert os.fstat(handle.fileno()).st_mode & 0o777 & ~mode == 0
        assert (tmp_path / "file").stat().st_mode & 0o777 == mode


class TestAtomicFolder:
    def test_it_appears_with_all_its_files_or_not_at_all(self, tmp_path: Path) -> None:
        for failure in (KeyboardInterrupt, OSError, None):
            ignored = contextlib.suppress(KeyboardInterrupt, FileFormatError)
            with ignored, atomic.atomic_folder(tmp_path / "tables") as folder:
                (folder / "first").write_bytes(b"1")
                assert not (tmp_path / "tables").exists()
                if failure is not None:
                    raise failure
            assert names(tmp_path) == ([] if failure else ["tables"])
        assert names(tmp_path / "tables") == ["first"]

    def test_a_failure_inside_names_the_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        path = tmp_path / "tables"
        with (
            pytest.raises(FileFormatError, match=f"^{path}/first: cannot be written: No space left"),
            atomic.atomic_folder(path) as folder,
            atomic.atomic_write(folder / "first"),
        ):
            pass
        assert names(tmp_path) == []

    @pytest.mark.parametrize("make", ["mkdir", "touch"])
    def test_what_is_there_already_stays(self, make: str, tmp_path: Path) -> None:
        getattr(tmp_path / "tables", make)()
        with pytest.raises(FileFormatError, match="exists already"), atomic.atomic_folder(tmp_path / "tables"):
            pass
        assert names(tmp_path) == ["tables"]
        with pytest.raises(InputTypeError, match="path must be a text"), atomic.atomic_folder(3):  # type: ignore[arg-type]
            pass

    def test_a_folder_that_is_being_made_is_not_searched_for_each_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        searched: list[Path] = []
        monkeypatch.setattr(atomic, "sweep", searched.append)
        with atomic.atomic_folder(tmp_path / "tables") as folder:
            for number in range(20):
                atomic.write_text(folder / f"{number}.csv", "1")
        assert searched == [tmp_path]


class TestUnwritablePaths:
    def refused(self, path: Any, match: str) -> None:
        with pytest.raises(FileFormatError, match=match) as caught:
            atomic.check_writable(path)
        assert "\n" not in str(caught.value)
        with pytest.raises(FileFormatError, match=match), atomic.atomic_write(path):
            pytest.fail("opened")

    def test_folders_devices_and_missing_folders(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"old")
        self.refused(tmp_path, "it is a folder")
        self.refused(tmp_path / "no" / "file", f"{tmp_path}/no/file: cannot be written: no folder {tmp_path}/no")
        self.refused(tmp_path / "file" / "below", "no folder")
        self.refused("", "folder")
        self.refused("a\0b", "cannot be written")
        os.mkfifo(tmp_path / "pipe")
        self.refused(tmp_path / "pipe", "not an ordinary file")
        assert names(tmp_path) == ["file", "pipe"]
        with pytest.raises(InputTypeError, match="path"):
            atomic.check_writable(3)  # type: ignore[arg-type]

    def test_the_ending_is_of_a_name_and_a_check_leaves_nothing(self, tmp_path: Path) -> None:
        for wrong in (".npz", "answer", "answer.csv", "answer.npz/x"):
            with pytest.raises(FileFormatError, match=r"must end in a name and \.npz"):
                atomic.check_writable(tmp_path / wrong, ".npz")
            with pytest.raises(FileFormatError, match=r"must end in a name and \.npz"):
                archives.write_npz(tmp_path / wrong, "s", 1, a=1.0)
        atomic.check_writable(tmp_path / "ANSWER.NPZ", ".npz")
        atomic.check_writable(tmp_path / "new.npz")
        assert names(tmp_path) == []
        (tmp_path / "old.npz").write_bytes(b"old")
        atomic.check_writable(tmp_path / "old.npz")
        assert (tmp_path / "old.npz").read_bytes() == b"old" and names(tmp_path) == ["old.npz"]

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
