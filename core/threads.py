"""Number of threads of BLAS and backends in solves, judgements, proofs and releases: one by default.

With one thread a process may be forked after a solve, as `multiprocessing` does on Linux by default before Python 3.14.
A backend with more threads, such as Clarabel, keeps a thread pool, which a fork does not copy: the forked child must
then solve with one thread, or it waits for the pool for ever. Spawned processes may use any number of threads.
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
"""Environment variable with the default number of threads; 1 if it is not set.

Two threads never gained in measurements, and took three to ten times as long beside other work on the same cores."""

_lock = threading.Lock()
_limits: list[threadpool_limits] = []  # the current limit, repeated for every concurrent or nested solve
_numbers: list[int] = []  # its number of threads, likewise


@contextlib.contextmanager
def blas_threads(threads: int | None = None) -> Iterator[None]:
    """Limit BLAS and backends to a number of threads, by default the environment's; restore the old limit afterwards.

    The limit is the process's: among concurrent or nested solves the first sets it, and the last restores the limit
    before the first.
    Raises `InvalidInputError` or `InputTypeError` unless `threads` is an integer of at least 1.
    """
    number = _threads_of_environment() if threads is None else validate.size(threads=threads)
    with _lock:
        _limits.append(_limits[0] if _limits else _controller().limit(limits=number, user_api="blas"))
        _numbers.append(_numbers[0] if _numbers else number)
    try:
        yield
    finally:
        with _lock:
            limit, _ = _limits.pop(), _numbers.pop()
            if not _limits:
                limit.restore_original_limits()


def threads_in_force() -> int:
    """Return the current number of threads; outside a solve, the environment's."""
    with _lock:
        return _numbers[0] if _numbers else _threads_of_environment()


def _threads_of_environment() -> int:
    text = os.environ.get(THREADS, "1")
    if not (count := validate.whole(text)):
        raise InvalidInputError(f"{THREADS} must be an integer of at least 1, got {validate.shown(text)}")
    return count


@cache
def _controller() -> ThreadpoolController:
    """Find the BLAS libraries once, which takes milliseconds."""
    return ThreadpoolController()
