"""Ctrl-C ends the command within a second: with one line and status 130, whatever it computes.

Python runs a handler between two of its own instructions, so not while a backend computes. The command therefore runs
in a process of its own, and the one that was started waits for it: what does not end by itself upon Ctrl-C is killed.
Nothing is raised in either, so that there is no trace of an import, or of a solver that catches whatever it can.

This module imports next to nothing: it is there before what takes long is loaded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

STATUS = 130
GRACE = 0.4  # seconds in which a process may end by itself
LINE = b"dualmech: interrupted\n"
CLEAR = b"\r\x1b[2K\x1b[?25h"  # of a terminal: removes the line of progress, and shows the cursor that it hid


def run(work: Callable[[], None]) -> None:
    """Do the work so that Ctrl-C ends it; returns in the process that does it."""
    supported = hasattr(os, "fork") and hasattr(signal, "pthread_sigmask")
    if not supported or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return work()  # Ctrl-C is ignored, as in the background of a shell, or somebody else's
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    read, write = os.pipe()
    worker = os.fork()
    if worker:
        os.close(read)
        _wait_for(worker)
    os.close(write)
    threading.Thread(target=_end_with, args=(read,), daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: leave())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return work()


def leave() -> NoReturn:
    """End the process that works: unfinished files are removed, and processes that it started end with it."""
    try:
        # What is not loaded has nothing to clear away.
        if (temporary := sys.modules.get("dualmech.files.temporary")) is not None:
            temporary.discard_unfinished()
        if (processes := sys.modules.get("multiprocessing.process")) is not None:
            for child in processes.active_children():
                child.kill()
    finally:
        os._exit(STATUS)


def _end_with(read: int) -> None:
    """End this process when the one that waits for it is gone, whose end of the pipe closes then."""
    os.read(read, 1)
    leave()


def _wait_for(worker: int) -> NoReturn:
    """Wait for the process that works, and end as it did."""
    asked = False

    def interrupt(*_: object) -> None:
        nonlocal asked
        asked = True
        end(signal.SIGINT)  # from a terminal it has its own; from elsewhere it has not
        signal.setitimer(signal.ITIMER_REAL, GRACE)

    def end(by: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by its own
            os.kill(worker, by)

    signal.signal(signal.SIGALRM, lambda *_: end(signal.SIGKILL))
    signal.signal(signal.SIGINT, interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    signal.setitimer(signal.ITIMER_REAL, 0)
    if code == STATUS or (asked and code < 0):
        terminal = os.isatty(2) and os.environ.get("TERM") != "dumb"
        os.write(2, CLEAR + LINE if terminal else LINE)
        os._exit(STATUS)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
