"""Independent tasks in several processes of this machine, or of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Found = TypeVar("Found")


def computed(tasks: Sequence[Callable[[], Found]], jobs: int = 1, *, as_they_finish: bool = False) -> Iterator[Found]:
    """Return what tasks return, computed `jobs` at a time, in order or as they finish; no more than tasks or cores.

    Several at a time get one BLAS thread each.
    """
    from joblib import Parallel, cpu_count, delayed

    jobs = max(1, min(jobs, len(tasks), cpu_count()))
    order = "generator_unordered" if as_they_finish else "generator"
    # One task at a time: tasks differ in length, and those of a batch would wait for each other.
    pool = Parallel(n_jobs=jobs, return_as=order, backend="loky", inner_max_num_threads=1, batch_size=1)
    with _silent_processes() if jobs > 1 else contextlib.nullcontext():
        return iter(pool(delayed(task)() for task in tasks))


@contextlib.contextmanager
def _silent_processes() -> Iterator[None]:
    """Leave Ctrl-C, and all that is to be said, to this process: others that are started here take no part in it."""
    masked = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masked else set()
    error, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(error, 2)
        os.close(error)
        os.close(nowhere)
        if masked:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
