"""Progress lines on standard error, and collection of the answers that solvers return."""

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

LINE_INTERVAL = 1.0  # seconds between two lines if standard error is no terminal
MAX_SILENCE = 60.0  # seconds after which a line is written there without news

MIN_SHOWN_SECONDS = 2.0  # a shorter estimate of the remaining time is not shown


class Line:
    """The progress line of a run: it shows a task, and is the callback that shows each step."""

    def __init__(self, show: Callable[[str], None], task: str, callback: Callback | None = None) -> None:
        self.task, self._show, self._callback = task, show, callback
        show(task)

    def say(self, task: str) -> None:
        """Show another task."""
        self.task = task
        self._show(task)

    def __call__(self, news: Progress) -> None:
        """Show the progress of a step, and call the user's callback."""
        self._show(f"{self.task}: {news_text(news)}")
        if self._callback is not None:
            self._callback(news)


def news_text(news: Progress) -> str:
    """Return a step in words: its number, objective, lower bound, gap and the estimated remaining time.

    Examples
    --------
    >>> from dualmech.progress import Progress
    >>> news_text(Progress(7, 4.4579, 4.4578, 2.2e-5, 0.1))
    'step 7, objective 4.4579, bound 4.4578, gap 2.2e-05'
    >>> news_text(Progress(7, 4.4579, 4.4578, 2.2e-5, 0.1, 83.0))
    'step 7, objective 4.4579, bound 4.4578, gap 2.2e-05, at this pace 83 s more'
    """
    sides = f"objective {news.objective:.6g}, bound {news.lower_bound:.6g}"
    remaining = f", at this pace {news.left:.2g} s more" if news.left >= MIN_SHOWN_SECONDS else ""
    return f"step {news.iteration}, {sides}, gap {news.gap:.1e}{remaining}"


def verbosely(verbose: bool, task: str, callback: Callback | None = None) -> Any:
    """Return a context that yields the callback of a run: a progress line if `verbose`, else the user's callback."""
    # Imported here so that the help of the command loads no NumPy.
    from dualmech import validate

    return watching(task, callback) if validate.boolean(verbose=verbose) else contextlib.nullcontext(callback)


def passing(task: str) -> contextlib.AbstractContextManager[Line]:
    """Return a progress line for the command line: shown on a terminal only, and erased at the end."""
    return watching(task, transient=True, log=False)


@contextlib.contextmanager
def watching(
    task: str, callback: Callback | None = None, *, transient: bool = False, log: bool = True
) -> Iterator[Line]:
    """Show a line with the task, its progress and its seconds while the block runs; yield the `Line`.

    - `callback`: the user's function, called after each step;
    - `transient`: whether a terminal erases the line at the end;
    - `log`: if standard error is no terminal, whether to write at most one line a second and one at the end; otherwise
      one line a minute.
    """
    from rich.console import Console

    error = Console(stderr=True, highlight=False)
    if error.is_terminal and not error.is_dumb_terminal:
        with _in_place(error, transient) as show:
            yield Line(show, task, callback)
    else:
        with _as_log(error, task, log) as show:
            yield Line(show, task, callback)


@contextlib.contextmanager
def _in_place(error: Console, transient: bool) -> Iterator[Callable[[str], None]]:
    from rich.progress import Progress as Display
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    columns = (SpinnerColumn(finished_text=" "), text, TimeElapsedColumn())
    # Standard output may be redirected to a file: rich must not capture it.
    with Display(*columns, console=error, transient=transient, redirect_stdout=False, redirect_stderr=False) as display:
        task = display.add_task("", total=1)
        yield lambda text: display.update(task, description=text)
        display.update(task, completed=1)


@contextlib.contextmanager
def _as_log(error: Console, task: str, log: bool) -> Iterator[Callable[[str], None]]:
    start = time.perf_counter()
    last_time, last_text, end = start, task, threading.Event()

    def write() -> None:
        nonlocal last_time
        last_time = time.perf_counter()
        error.print(f"{last_text}, {last_time - start:.1f} s", markup=False, soft_wrap=True)

    def show(text: str) -> None:
        nonlocal last_text
        last_text = text
        if log and time.perf_counter() - last_time >= LINE_INTERVAL:
            write()

    def break_silence() -> None:
        # A long step without a line in the log looks like a process that hangs.
        while not end.wait(MAX_SILENCE):
            if time.perf_counter() - last_time >= MAX_SILENCE:
                write()

    threading.Thread(target=break_silence, daemon=True).start()
    try:
        yield show
    finally:
        end.set()
    if log:
        write()


@contextlib.contextmanager
def answers() -> Iterator[list[Any]]:
    """Collect the answers that solvers of either layer return while the block runs."""
    collected: list[Any] = []
    token = _ANSWERS.set(collected)
    try:
        yield collected
    finally:
        _ANSWERS.reset(token)


def note(answer: object) -> None:
    """Add an answer to the collection of `answers`, if there is one."""
    collected = _ANSWERS.get()
    if collected is not None:
        collected.append(answer)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress `UncertifiedWarning`, for callers that check the status themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        yield
