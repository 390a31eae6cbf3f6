"""Watched runs: a line on standard error that shows a run's progress, and the answers that the run returns."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dualmech.errors import UncertifiedWarning

if TYPE_CHECKING:
    from rich.console import Console

    from dualmech.progress import Callback, Progress

_ANSWERS: ContextVar[list[Any] | None] = ContextVar("answers", default=None)

EVERY = 1.0  # seconds between two lines where nothing can be updated in place
SILENT = 60.0  # seconds after which a line is written there, with or without news

WORTH_SAYING = 2.0  # remaining seconds below which the line leaves them out


class Line:
    """The line about a run: it shows words, or the news of a step, which it takes as a callback."""

    def __init__(self, show: Callable[[str], None], what: str, then: Callback | None = None) -> None:
        self.what, self._show, self._then = what, show, then
        show(what)

    def say(self, what: str) -> None:
        """Say what runs now."""
        self.what = what
        self._show(what)

    def __call__(self, news: Progress) -> None:
        """Show the progress, and pass the news on."""
        self._show(f"{self.what}: {news_text(news)}")
        if self._then is not None:
            self._then(news)


def news_text(news: Progress) -> str:
    """Return the news of a step in words: the number of steps, both sides, and the gap between them.

    Examples
    --------
    >>> from dualmech.progress import Progress
    >>> news_text(Progress(7, 4.4579, 4.4578, 2.2e-5, 0.1))
    'step 7, objective 4.4579, bound 4.4578, gap 2.2e-05'
    >>> news_text(Progress(7, 4.4579, 4.4578, 2.2e-5, 0.1, 83.0))
    'step 7, objective 4.4579, bound 4.4578, gap 2.2e-05, at this pace 83 s more'
    """
    sides = f"objective {news.objective:.6g}, bound {news.lower_bound:.6g}"
    left = f", at this pace {news.left:.2g} s more" if news.left >= WORTH_SAYING else ""
    return f"step {news.iteration}, {sides}, gap {news.gap:.1e}{left}"


def verbosely(verbose: bool, what: str, callback: Callback | None = None) -> Any:
    """Return the context of a run, watched if `verbose`; it yields the callback for the run."""
    # Imported here so that the help of the command loads nothing that computes.
    from dualmech import validate

    return watching(what, callback) if validate.boolean(verbose=verbose) else contextlib.nullcontext(callback)


def passing(what: str) -> contextlib.AbstractContextManager[Line]:
    """Return the same context for the command line: only a terminal shows the line, and keeps nothing of it."""
    return watching(what, transient=True, always=False)


@contextlib.contextmanager
def watching(
    what: str, callback: Callback | None = None, *, transient: bool = False, always: bool = True
) -> Iterator[Line]:
    """Show a line with the task, its news and its seconds while the block runs; yields the `Line` that takes the news.

    - `what`: what runs;
    - `callback`: the function to which the news is passed on;
    - `transient`: whether a terminal keeps nothing of the line;
    - `always`: whether lines are written where standard error is no terminal: one a second at most, and one at the
      end; without it one a minute.
    """
    from rich.console import Console

    error = Console(stderr=True, highlight=False)
    if error.is_terminal and not error.is_dumb_terminal:
        with _in_place(error, transient) as show:
            yield Line(show, what, callback)
    else:
        with _now_and_then(error, what, always) as show:
            yield Line(show, what, callback)


@contextlib.contextmanager
def _in_place(error: Console, transient: bool) -> Iterator[Callable[[str], None]]:
    from rich.progress import Progress as Display
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    columns = (SpinnerColumn(finished_text=" "), text, TimeElapsedColumn())
    # Other output is left alone: output redirected to a file must not appear here instead.
    with Display(*columns, console=error, transient=transient, redirect_stdout=False, redirect_stderr=False) as display:
        task = display.add_task("", total=1)
        yield lambda text: display.update(task, description=text)
        display.update(task, completed=1)


@contextlib.contextmanager
def _now_and_then(error: Console, what: str, always: bool) -> Iterator[Callable[[str], None]]:
    began = time.perf_counter()
    written, latest, ended = began, what, threading.Event()

    def write() -> None:
        nonlocal written
        written = time.perf_counter()
        error.print(f"{latest}, {written - began:.1f} s", markup=False, soft_wrap=True)

    def show(text: str) -> None:
        nonlocal latest
        latest = text
        if always and time.perf_counter() - written >= EVERY:
            write()

    def break_silence() -> None:
        # A run may have no news for long, and a log without a line looks like a process that hangs.
        while not ended.wait(SILENT):
            if time.perf_counter() - written >= SILENT:
                write()

    threading.Thread(target=break_silence, daemon=True).start()
    try:
        yield show
    finally:
        ended.set()
    if always:
        write()


@contextlib.contextmanager
def answers() -> Iterator[list[Any]]:
    """Collect the answers that solvers of either layer return while the block runs."""
    answers: list[Any] = []
    token = _ANSWERS.set(answers)
    try:
        yield answers
    finally:
        _ANSWERS.reset(token)


def note(answer: object) -> None:
    """Pass an answer to every collector."""
    kept = _ANSWERS.get()
    if kept is not None:
        kept.append(answer)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Solve without warnings of answers that are not certified: whoever solves so looks at the status, or says it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        yield
