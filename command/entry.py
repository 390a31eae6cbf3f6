"""Entry point of the ``dualmech`` command: it installs signal handlers before slow imports."""

from __future__ import annotations

import contextlib
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

# Signals end the command within a second, without a traceback: Ctrl-C with one line and status 130, other signals with
# their own status.
#
# Python runs a signal handler between two of its own instructions, so not while a backend computes. The command
# therefore runs in a child process, and its parent waits for it: a child that does not exit after a signal is killed.
# The handlers raise no exception: it could appear as a traceback of an import, or be caught by a solver.
#
# This module imports only the standard library, so that the handlers are installed early.


STATUS = 130
GRACE_SECONDS = 0.8  # for a process to exit by itself; removing a file can take half of that on a busy disk
LINE = b"dualmech: interrupted\n"
KILLED = b"dualmech: the computing process was killed, as happens when memory runs out\n"
CLEAR = b"\r\x1b[2K\x1b[?25h"  # erases the progress line of a terminal, and shows the cursor


def run(work: Callable[[], None]) -> None:
    """Run `work` in a child process that Ctrl-C, SIGTERM and SIGHUP end; the parent does not return."""
    if not (hasattr(os, "fork") and hasattr(signal, "pthread_sigmask")):
        return work()
    # Keep signals that are ignored, as Ctrl-C in the background of a shell, or that have other handlers.
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
    """End the child process: remove its unfinished files, and kill its own children."""
    try:
        # A module that is not loaded needs no cleanup.
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
    signal.signal(by, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {by})
    os.kill(os.getpid(), by)
    os._exit(128 + by)


def _end_with(read: int) -> None:
    """End this process when its parent has ended, which closes the other end of the pipe."""
    os.read(read, 1)
    leave()


def _end_without_readers(*_: object) -> None:
    """End quietly if the reader of the output has closed it, such as ``head``; other pipes raise their own errors."""
    import select

    poll = select.poll()
    for stream in (1, 2):
        poll.register(stream, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        leave(signal.SIGPIPE)


def _wait_for(worker: int, handled: set[signal.Signals]) -> NoReturn:
    """Wait for the child process, and exit with its status."""
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        end(number)  # the child receives signals of a terminal itself, but no others
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)

    def end(by: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # the child has ended
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
"""Messages of the system's loader and of Python if memory runs out while a library is loaded."""

MIN_ADDRESS_SPACE = 2**29
"""In bytes; with less, loading the libraries of linear algebra may not terminate."""


def main() -> None:
    run(_command)


def _command() -> None:
    if (limit := _address_space()) < MIN_ADDRESS_SPACE:
        _exit_without_memory(
            f"{limit / 2**20:.0f} MiB of address space (ulimit -v) are less than {MIN_ADDRESS_SPACE / 2**20:.0f}"
        )
    # Solvers set their own number of threads; more threads would slow down loading BLAS.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("DUALMECH_THREADS", "1"))
    try:
        pkgutil.resolve_name("dualmech.command.main:main")()
    except (ImportError, RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
        _exit_without_memory(" ".join(str(error).split()))


def _address_space() -> float:
    try:
        import resource
    except ImportError:  # not on Windows
        return float("inf")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _exit_without_memory(text: str) -> NoReturn:
    print(f"dualmech: not enough memory to start: {text}", file=sys.stderr)
    sys.exit(1)


def _out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes says that memory ran out."""
    while error is not None:
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
