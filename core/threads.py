"""Threads of BLAS and backends in a solve, a judgement, a proof or a release: one, unless a user asks for more.

With one thread a process may be forked after any solve, as `multiprocessing` does on Linux by default before Python
3.14. A backend with more threads keeps a pool of its own (Clarabel does), and a fork does not copy these threads: a
forked child must then solve with one thread, or it waits for the pool for ever. Spawned processes, and processes from a
fork server, start fresh and may use any number of threads.
"""

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
"""The variable of the environment with the number of threads, where it is not given. By default one:

two were never measured to gain, and next to other work on the same cores they took three to ten times as long."""

_lock = threading.Lock()
_limits: list[threadpool_limits] = []  # the limit in force, once for every solve that runs under it
_numbers: list[int] = []  # the number of threads that the limit sets


@contextlib.contextmanager
def blas_threads(threads: int | None = None) -> Iterator[None]:
    """Give BLAS and backends so many threads, by default the environment's number; restore the old number afterwards.

    The number belongs to the process, not to a thread: of concurrent or nested solves, the first sets the number, and
    the last restores the number that the first found.
    Raises `InvalidInputError` or `InputTypeError` for anything but an integer of at least 1.
    """
    wanted = _threads_of_environment() if threads is None else validate.size(threads=threads)
    with _lock:
        _limits.append(_limits[0] if _limits else _controller().limit(limits=wanted, user_api="blas"))
        _numbers.append(_numbers[0] if _numbers else wanted)
    try:
        yield
    finally:
        with _lock:
            limit, _ = _limits.pop(), _numbers.pop()
            if not _limits:
                limit.restore_original_limits()


def threads_in_force() -> int:
    """Return the number of threads in force; outside of every solve, the environment's number."""
    with _lock:
        return _numbers[0] if _numbers else _threads_of_environment()


def _threads_of_environment() -> int:
    text = os.environ.get(THREADS, "1")
    if not (count := validate.whole(text)):
        raise InvalidInputError(f"{THREADS} must be an integer of at least 1, got {validate.shown(text)}")
    return count


@cache
def _controller() -> ThreadpoolController:
    """Find the BLAS libraries once; looking for them takes milliseconds, limiting them does not."""
    return ThreadpoolController()
