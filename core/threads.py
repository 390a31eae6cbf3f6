"""How many BLAS threads a solve, a judgement, a proof or a release gets: one, unless more are asked for."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import cache

from threadpoolctl import ThreadpoolController, threadpool_limits

from dualmech import validate
from dualmech.errors import InvalidInputError

THREADS = "DUALMECH_THREADS"
"""The variable of the environment with the number of BLAS threads, where it is not given. By default one:

two were never measured to gain, and next to other work on the same cores they took three to ten times as long."""

_lock = threading.Lock()
_limits: list[threadpool_limits] = []  # the limit that holds, once for every solve that needs it


@contextlib.contextmanager
def blas_threads(threads: int | None = None) -> Iterator[None]:
    """Give BLAS so many threads, those of the environment by default, and what there was again in the end.

    The number is the process's, not the thread's: of solves at one time, or in one another, the first sets it, and the
    last restores what the first found.
    Raises `InvalidInputError` or `InputTypeError` for what is no number of at least 1.
    """
    wanted = _threads_of_environment() if threads is None else validate.size(threads=threads)
    with _lock:
        _limits.append(_limits[0] if _limits else _controller().limit(limits=wanted, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            limit = _limits.pop()
            if not _limits:
                limit.restore_original_limits()


def _threads_of_environment() -> int:
    said = os.environ.get(THREADS, "1")
    if not (found := validate.whole(said)):
        raise InvalidInputError(f"{THREADS} must be an integer of at least 1, got {validate.shown(said)}")
    return found


@cache
def _controller() -> ThreadpoolController:
    """Find the BLAS libraries once; looking for them takes milliseconds, limiting them does not."""
    return ThreadpoolController()
