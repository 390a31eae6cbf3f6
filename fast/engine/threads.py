"""How many BLAS threads a solve gets: one for small matrices, where more are slower."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

FEW_ROWS = 512
"""Rank up to which one thread is quicker: at rank 252, two threads on two cores took ten times as long as one."""

_lock = threading.Lock()
_limits: list[Any] = []  # the limit that holds, once for every solve that needs it


@contextlib.contextmanager
def threads_for_rank(rank: int) -> Iterator[None]:
    """Give BLAS one thread where the rank is small, and the user's own number elsewhere.

    The number is the process's, not the thread's: of solves at one time the first sets it, and the last restores what
    the first found.
    """
    if rank > FEW_ROWS:
        yield
        return
    with _lock:
        _limits.append(_limits[0] if _limits else _controller().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            limit = _limits.pop()
            if not _limits:
                limit.restore_original_limits()


@cache
def _controller() -> ThreadpoolController:
    """Find the BLAS libraries once; looking for them takes milliseconds, limiting them does not."""
    return ThreadpoolController()
