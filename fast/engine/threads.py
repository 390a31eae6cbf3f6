"""How many BLAS threads a solve gets: one for small matrices, where more are slower."""

from __future__ import annotations

import contextlib
from functools import cache

from threadpoolctl import ThreadpoolController

FEW_ROWS = 512
"""Rank up to which one thread is quicker: at rank 252, two threads on two cores took ten times as long as one."""


@cache
def _controller() -> ThreadpoolController:
    """Find the BLAS libraries once; looking for them takes milliseconds, limiting them does not."""
    return ThreadpoolController()


def threads_for_rank(rank: int) -> contextlib.AbstractContextManager[object]:
    """Return a context with one BLAS thread where the rank is small, and the user's own number elsewhere."""
    if rank > FEW_ROWS:
        return contextlib.nullcontext()
    return _controller().limit(limits=1, user_api="blas")
