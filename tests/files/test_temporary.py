"""Temporary names: what a killed process left is swept up by the next that writes there, what is alive never."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dualmech as dm
from dualmech import files
from dualmech.files import atomic

LONG_AGO = 1.0  # seconds since 1970


def name_of(process: int, machine: str | None = None) -> str:
    return f".dualmech-{machine or atomic._machine()}-{process}-{'0' * 16}.tmp"


@pytest.fixture(scope="module")
def gone() -> int:
    """The number of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-S", "-c", ""])
    done.wait()
    return done.pid


def leave(path: Path, folder: bool) -> None:
    if folder:
        path.mkdir()
        (path / "table.csv").write_text("half")
    else:
        path.write_text("half")
    os.utime(path, (LONG_AGO, LONG_AGO))


def write(folder: Path) -> None:
    with files.atomic_write(folder / "new") as handle:
        handle.write(b"whole")


def write_folder(folder: Path) -> None:
    with files.atomic_folder(folder / "new"):
        pass


def check(folder: Path) -> None:
    files.check_writable(folder / "new")
    (folder / "new").touch()


@pytest.mark.skipif(os.name != "posix", reason="numbers of processes of POSIX")
@pytest.mark.parametrize("act", [write, write_folder, check])
@pytest.mark.parametrize("folder", [False, True])
def test_what_a_killed_process_left_is_removed(act: object, folder: bool, gone: int, tmp_path: Path) -> None:
    assert callable(act)
    leave(tmp_path / name_of(gone), folder)
    act(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.skipif(os.name != "posix", reason="numbers of processes of POSIX")
def test_what_a_live_process_writes_is_kept_however_old(folder: bool, tmp_path: Path) -> None:
    alive = {os.getpid(), os.getppid(), 1}
    for process in alive:
        leave(tmp_path / name_of(process), folder)
    write(tmp_path)
    assert len([*tmp_path.iterdir()]) == len(alive) + 1


def test_what_another_machine_left_is_removed_once_it_is_old(gone: int, tmp_path: Path) -> None:
    old, young = tmp_path / name_of(gone, "0" * 8), tmp_path / name_of(gone, "1" * 8)
    leave(old, folder=False)
    young.write_text("half")
    write(tmp_path)
    assert young.exists() and not old.exists()


def test_names_that_are_not_ours_are_left_alone(gone: int, tmp_path: Path) -> None:
    names = [
        "notes.tmp",
        ".dualmech-notes.tmp",
        name_of(gone).removeprefix("."),
        name_of(gone) + ".txt",
        name_of(0),
        name_of(gone).replace("-" + "0" * 16, ""),
    ]
    for name in names:
        leave(tmp_path / name, folder=False)
    write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*names, "new"}


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
def test_a_link_is_removed_and_not_what_it_leads_to(gone: int, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    leave(precious, folder=True)
    (tmp_path / name_of(gone)).symlink_to(precious)
    write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "new"}
    assert [*precious.iterdir()]


def test_what_is_unfinished_can_be_discarded_at_any_moment(tmp_path: Path) -> None:
    with pytest.raises(dm.errors.FileFormatError), files.atomic_write(tmp_path / "new") as handle:
        handle.write(b"half")
        atomic.discard_unfinished()
        assert not [*tmp_path.iterdir()]
    assert not [*tmp_path.iterdir()]
    with pytest.raises(dm.errors.FileFormatError), files.atomic_folder(tmp_path / "new") as folder:
        (folder / "table").write_text("half")
        atomic.discard_unfinished()
    assert not [*tmp_path.iterdir()]
