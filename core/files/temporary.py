"""Temporary names beside what is written: removed when a block ends, by Ctrl-C, or by the next run in the folder."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

ABANDONED = 3600.0  # seconds untouched after which what another machine left is nobody's

_NAME = re.compile(r"\.dualmech-([0-9a-f]{8})-([1-9][0-9]{0,9})-[0-9a-f]{16}\.tmp")

_unfinished: set[Path] = set()  # of this process


@contextlib.contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Yield an unused name in the folder of `target`, and remove whatever has it when the block ends.

    The name tells the machine and the process, so that another one can sweep up what a killed process left; that is
    done here first.
    """
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
    """Remove what killed processes left in a folder: those of this machine that are gone, and old ones of others."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _NAME.fullmatch(entry.name)
            if found is not None and _abandoned(entry, found[1], int(found[2])):
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
