"""How many threads BLAS and backends get for a solve, a judgement, a proof or a release: one, unless more are asked.

With one thread a process may be forked, whatever was solved in it, as `multiprocessing` does on Linux by default before
Python 3.14. A backend that was given more keeps threads of its own (Clarabel a pool), which a fork does not take along:
a forked child must then solve with one, or it waits for them for ever. Processes that are spawned, or come from a fork
server, begin anew and may use as many as they like.
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
_limits: list[threadpool_limits] = []  # the limit that holds, once for every solve that needs it
_numbers: list[int] = []  # and the number that it sets


@contextlib.contextmanager
def blas_threads(threads: int | None = None) -> Iterator[None]:
    """Give BLAS and backends so many threads, by default those of the environment, and what there was again in the end.

    The number is the process's, not the thread's: of solves at one time, or in one another, the first sets it, and the
    last restores what the first found.
    Raises `InvalidInputError` or `InputTypeError` for what is no number of at least 1.
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
    """Return the number of threads that holds around what runs now, outside of all that of the environment."""
    with _lock:
        return _numbers[0] if _numbers else _threads_of_environment()


def _threads_of_environment() -> int:
    said = os.environ.get(THREADS, "1")
    if not (found := validate.whole(said)):
        raise InvalidInputError(f"{THREADS} must be an integer of at least 1, got {validate.shown(said)}")
    return found


@cache
def _controller() -> ThreadpoolController:
    """Find the BLAS libraries once; looking for them takes milliseconds, limiting them does not."""
    return ThreadpoolController()
