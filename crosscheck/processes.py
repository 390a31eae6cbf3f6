"""Independent tasks in several processes of this machine, or of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def computed(tasks: Sequence[Callable[[], Result]], jobs: int = 1, *, as_they_finish: bool = False) -> Iterator[Result]:
    """Return the results of tasks, computed `jobs` at a time, in order or as they finish.

    There are at most as many processes as tasks or cores. Several processes have one BLAS thread each.
    """
    from joblib import Parallel, cpu_count, delayed

    jobs = max(1, min(jobs, len(tasks), cpu_count()))
    order = "generator_unordered" if as_they_finish else "generator"
    # No batches: tasks differ in length.
    pool = Parallel(n_jobs=jobs, return_as=order, backend="loky", inner_max_num_threads=1, batch_size=1)
    with _silent_processes() if jobs > 1 else contextlib.nullcontext():
        return iter(pool(delayed(task)() for task in tasks))


@contextlib.contextmanager
def _silent_processes() -> Iterator[None]:
    """Start child processes that ignore Ctrl-C and write no errors; this process handles both."""
    masked = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masked else set()
    error, null_file = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null_file, 2)
        yield
    finally:
        os.dup2(error, 2)
        os.close(error)
        os.close(null_file)
        if masked:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
