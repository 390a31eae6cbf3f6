"""Where the ``dualmech`` command begins: what Ctrl-C does is settled before anything else is loaded."""

from __future__ import annotations

import contextlib
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

# Signals end the command within a second, without a trace: Ctrl-C with one line and status 130, others as they do.
#
# Python runs a handler between two of its own instructions, so not while a backend computes. The command therefore
# runs in a process of its own, and the one that was started waits for it: what does not end by itself upon a signal
# is killed. Nothing is raised in either, so that there is no trace of an import, or of a solver that catches whatever
# it can.
#
# This module imports next to nothing: it is there before what takes long is loaded.


STATUS = 130
GRACE = 0.8  # seconds in which a process may end by itself; removing a file can take half of that on a busy disk
LINE = b"dualmech: interrupted\n"
KILLED = b"dualmech: the process that computed was ended from outside, as happens where memory runs out\n"
CLEAR = b"\r\x1b[2K\x1b[?25h"  # of a terminal: removes the line of progress, and shows the cursor that it hid


def run(work: Callable[[], None]) -> None:
    """Do the work so that Ctrl-C and the signals that end a session end it; returns in the process that does it."""
    if not (hasattr(os, "fork") and hasattr(signal, "pthread_sigmask")):
        return work()
    # Those that are ignored, as Ctrl-C is in the background of a shell, or that are somebody else's, stay so.
    handled = {
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    read, write = os.pipe()
    worker = os.fork()
    if worker:
        os.close(read)
        _wait_for(worker, handled)
    os.close(write)
    threading.Thread(target=_end_with, args=(read,), daemon=True).start()
    for signum in handled:
        signal.signal(signum, lambda number, _: leave(signal.Signals(number)))
    signal.signal(signal.SIGPIPE, _end_without_readers)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    return work()


def leave(by: signal.Signals = signal.SIGINT) -> NoReturn:
    """End the process that works: unfinished files are removed, and processes that it started end with it."""
    try:
        # What is not loaded has nothing to clear away.
        if (temporary := sys.modules.get("dualmech.files.atomic")) is not None:
            temporary.discard_unfinished()
        if (processes := sys.modules.get("multiprocessing.process")) is not None:
            for child in processes.active_children():
                child.kill()
    finally:
        if by is signal.SIGINT:
            os._exit(STATUS)
        _end_by(by)


def _end_by(by: int) -> NoReturn:
    """End this process as a signal does that nobody handles."""
    signal.signal(by, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {by})
    os.kill(os.getpid(), by)
    os._exit(128 + by)


def _end_with(read: int) -> None:
    """End this process when the one that waits for it is gone, whose end of the pipe closes then."""
    os.read(read, 1)
    leave()


def _end_without_readers(*_: object) -> None:
    """End quietly where nobody reads the output, as ``head`` has enough; other pipes raise their own errors."""
    import select

    poll = select.poll()
    for stream in (1, 2):
        poll.register(stream, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        leave(signal.SIGPIPE)


def _wait_for(worker: int, handled: set[signal.Signals]) -> NoReturn:
    """Wait for the process that works, and end as it did."""
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        end(number)  # from a terminal it has its own; from elsewhere it has not
        signal.setitimer(signal.ITIMER_REAL, GRACE)

    def end(by: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by its own
            os.kill(worker, by)

    signal.signal(signal.SIGALRM, lambda *_: end(signal.SIGKILL))
    for signum in handled:
        signal.signal(signum, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    signal.setitimer(signal.ITIMER_REAL, 0)
    by = received[0] if received and code < 0 else -code
    if code == STATUS or (code < 0 and by == signal.SIGINT):
        terminal = os.isatty(2) and os.environ.get("TERM") != "dumb"
        os.write(2, CLEAR + LINE if terminal else LINE)
        os._exit(STATUS)
    if code >= 0:
        os._exit(code)
    if by in (signal.SIGKILL, signal.SIGABRT):
        os.write(2, KILLED)
        os._exit(1)
    _end_by(by)


NO_MEMORY = ("failed to map segment", "cannot allocate memory", "can't start new thread")
"""What the system's loader and Python say where memory runs out while a library is loaded."""

LEAST_MEMORY = 2**29
"""Bytes of address space below which loading the libraries of linear algebra may never end."""


def main() -> None:
    run(_command)


def _command() -> None:
    if (limit := _address_space()) < LEAST_MEMORY:
        _too_little(f"{limit / 2**20:.0f} MiB of address space (ulimit -v) are less than {LEAST_MEMORY / 2**20:.0f}")
    # All work takes this number of threads, or sets its own; threads that BLAS begins beyond it cost time as it loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("DUALMECH_THREADS", "1"))
    try:
        pkgutil.resolve_name("dualmech.command.main:main")()
    except (ImportError, RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
        _too_little(" ".join(str(error).split()))


def _address_space() -> float:
    """Return the limit of address space in bytes, infinite where the system has none."""
    try:
        import resource
    except ImportError:  # not on Windows
        return float("inf")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _too_little(text: str) -> NoReturn:
    print(f"dualmech: not enough memory to begin: {text}", file=sys.stderr)
    sys.exit(1)


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that memory ran out."""
    while error is not None:
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
