"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path, PurePath
from typing import BinaryIO

from dualmech.errors import FileFormatError
from dualmech.files.reading import FilePath, check_path

# Temporary names next to the file to write: removed when a block ends, by Ctrl-C, or by the next run in the folder.


ABANDONED = 3600.0  # seconds untouched after which what another machine left is nobody's

_NAME = re.compile(r"\.dualmech-([0-9a-f]{8})-([1-9][0-9]{0,9})-[0-9a-f]{16}\.tmp")

_unfinished: set[Path] = set()  # of this process


@contextlib.contextmanager
def temporary_next_to(target: Path) -> Iterator[Path]:
    """Yield an unused name in the folder of `target`, and remove whatever has it when the block ends.

    The name tells the machine and the process, so that another one can sweep up what a killed process left; that is
    done here first, but for a folder that this process is making.
    """
    if target.parent not in _unfinished:
        sweep(target.parent)
    temporary = target.with_name(f".dualmech-{_machine()}-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    # The name is known before anything has it, so that no moment of interruption can leave it behind.
    _unfinished.add(temporary)
    try:
        yield temporary
    finally:
        _remove(temporary)
        _unfinished.discard(temporary)


def discard_unfinished() -> None:
    """Remove what this process has begun to write, for when it is to end without running on."""
    for path in [*_unfinished]:
        _remove(path)


def sweep(folder: Path) -> None:
    """Remove files that killed processes left in a folder: this machine's ended processes, and old ones elsewhere."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is not None and _abandoned(entry, match[1], int(match[2])):
                _remove(Path(entry.path))


def _abandoned(entry: os.DirEntry[str], machine: str, process: int) -> bool:
    if machine == _machine() and os.name == "posix":
        return not _alive(process)
    with contextlib.suppress(OSError):
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED
    return False


def _alive(process: int) -> bool:
    """Whether a process of this machine runs; of one that may not be asked, and of any in doubt, yes."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _machine() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


@contextlib.contextmanager
def atomic_write(path: FilePath) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends without an error, and is deleted otherwise.

    The bytes go to a temporary file in the same folder, reach the disk, and are renamed. An exception, or
    an interruption from the keyboard, leaves `path` as it was and nothing else; what a killed process left, the
    next one that writes there removes. A link is followed; an existing file keeps its permissions.
    Raises `FileFormatError` where the path cannot be written (see `check_writable`), or writing failed.

    Examples
    --------
    >>> import os, tempfile
    >>> from dualmech.files import atomic_write
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(os.path.join(folder, "note")) as handle:
    ...         _ = handle.write(b"whole")
    ...     os.listdir(folder)
    ['note']
    """
    target = _target(path)
    with _failures_naming(path), temporary_next_to(target) as temporary:
        # Nobody reads the new contents who could not read the old, not even while they are written.
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """Within the block, make new files and folders that their owner alone reads; what exists keeps its permissions.

    It is the process's own mask: other threads write so, too.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def check_new_folder(path: FilePath) -> Path:
    """Return where a new folder would lie; refuse what `atomic_folder` refuses, before there is anything to write."""
    if isinstance(path, str | PathLike) and os.path.lexists(path):
        raise FileFormatError(f"{path}: cannot be written: it exists already; name a new folder")
    return _target(path)


def write_text(path: FilePath, text: str) -> None:
    """Write a text in UTF-8 to a file, whole or not at all; see `atomic_write`."""
    with atomic_write(path) as handle:
        handle.write(text.encode())


@contextlib.contextmanager
def atomic_folder(path: FilePath) -> Iterator[Path]:
    """Make a folder to write files into, which appears at `path` only if the block ends without an error.

    It has a temporary name next to `path` until then; write its files with `atomic_write`, so that they reach the disk.
    Raises `FileFormatError` where something of this name exists already, or the folder that it is to lie in is
    missing or closed to writing.

    Examples
    --------
    >>> import os, tempfile
    >>> from dualmech.files import atomic_folder, atomic_write
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with atomic_folder(os.path.join(home, "tables")) as folder, atomic_write(folder / "first") as handle:
    ...         _ = handle.write(b"whole")
    ...     os.listdir(home), os.listdir(os.path.join(home, "tables"))
    (['tables'], ['first'])
    """
    target = check_new_folder(path)
    with _failures_naming(path), temporary_next_to(target) as temporary:
        temporary.mkdir()
        try:
            yield temporary
        except FileFormatError as error:
            # Of a file inside, say where its user will look for it.
            raise FileFormatError(str(error).replace(str(temporary), str(path))) from error
        os.replace(temporary, target)


def check_writable(path: FilePath, suffix: str = "") -> None:
    """Check, before long work, that `path` could be written now; leaves nothing behind.

    Raises `FileFormatError` where the folder is missing or closed to writing, `path` is a folder, a device or a
    read-only file, or does not end in a name and `suffix`.

    Examples
    --------
    >>> from dualmech.files import check_writable
    >>> check_writable("/no/such/folder/answer.npz")
    Traceback (most recent call last):
    dualmech.errors.FileFormatError: /no/such/folder/answer.npz: cannot be written: no folder /no/such/folder
    """
    check_suffix(path, suffix)
    with _failures_naming(path), temporary_next_to(_target(path)) as trial, open(trial, "xb"):
        pass


def make_folder(path: FilePath) -> Path:
    """Return a folder to write into, made where it is missing, before anything is computed.

    Raises `FileFormatError` where it cannot be made or written to.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be made a folder: {error.strerror or error}") from error
    check_writable(Path(path) / "file")
    return Path(path)


def check_suffix(path: FilePath, suffix: str) -> None:
    """Raise `FileFormatError` unless a path ends in a name and this suffix, in letters of either case."""
    check_path(path)
    if suffix and PurePath(path).suffix.lower() != suffix:
        raise FileFormatError(f"{path}: must end in a name and {suffix}, the one format that is written here")


@contextlib.contextmanager
def _failures_naming(path: FilePath) -> Iterator[None]:
    """Turn a system call that failed while writing into one line that names the file."""
    try:
        yield
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from error


def _target(path: FilePath) -> Path:
    """Return the file behind a path, links followed, after the checks that need no trial."""
    check_path(path)
    reason = None
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            reason = "it is a folder"
        elif not target.parent.is_dir():
            reason = f"no folder {target.parent}"
        elif target.exists() and not target.is_file():
            reason = "it is not an ordinary file"
        elif target.exists() and not os.access(target, os.W_OK):
            reason = "it is read-only"
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path!r}: cannot be written: {error}") from error
    if reason:
        raise FileFormatError(f"{path}: cannot be written: {reason}")
    return target
