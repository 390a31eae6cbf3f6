"""The line that says how far a run is: what it says, where it is written, and what it leaves alone."""

from __future__ import annotations

import contextlib
import io
import math
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference, watching
from dualmech.command import main as command
from dualmech.progress import Deadline, Progress, seconds_left
from dualmech.reference import solving as reference_solving

NEWS = Progress(7, 4.4579, 4.4578, 2.2e-5, 0.1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def terminal() -> Iterator[Terminal]:
    """Make standard error a terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "100")
        patch.setattr(sys, "stderr", made := Terminal())
        yield made


def problem() -> dm.FitnessForUse:
    return dm.FitnessForUse(dm.workloads.prefix(4), targets=1.0)


RUNS: dict[str, Callable[..., Any]] = {
    "fast": lambda **options: fast.solve(problem(), **options),
    "refine": lambda **options: fast.refine(problem(), **options),
    "reference": lambda **options: reference.solve(problem(), **options),
    "refine through CVXPY": lambda **options: reference.refine(problem(), **options),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=[*RUNS])
def test_nothing_is_written_unless_asked_and_one_line_where_it_is(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LINE_INTERVAL", 1e9)
    run()
    assert capsys.readouterr() == ("", "")
    run(verbose=True)
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and err.endswith(" s\n")


@pytest.mark.parametrize("name", ["fast", "refine"])
def test_the_last_line_has_both_sides_and_the_gap(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Progress] = []
    RUNS[name](verbose=True, callback=told.append)
    last = capsys.readouterr().err.splitlines()[-1]
    assert watching.news_text(told[-1]) in last


def test_a_terminal_sees_one_line_updated_in_place() -> None:
    with terminal() as shown:
        fast.solve(problem(), verbose=True)
    seen = shown.getvalue()
    assert seen.count("\n") == 1 and "\x1b[2K" in seen
    assert "objective" in seen and "gap" in seen


def test_the_backend_and_its_formulation_are_named() -> None:
    with terminal() as shown:
        reference.solve(problem(), verbose=True)
    assert "CLARABEL: schur" in shown.getvalue()


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (dm.TotalVariance(dm.workloads.prefix(2)), "SCS: gram"),
        (dm.PrivacyFirst(dm.workloads.prefix(2), 1.0, 2.0), "SCS: schur"),
        (dm.PrivacyFirst(dm.workloads.marginals([2, 2], ways=(1,)), 1.0, 2.0), "SCS: schur"),
        (dm.QueryWeighting(dm.workloads.prefix(2), [[1, 0], [0, 1]]), "SCS: inv_pos"),
        (dm.FitnessForUse(dm.workloads.kron(dm.workloads.prefix(2), dm.workloads.prefix(2)), 1.0), "SCS"),
    ],
)
def test_every_problem_has_a_program_name(asked: Any, name: str) -> None:
    assert reference_solving.program_name(asked, backend="SCS") == name


def test_elsewhere_lines_come_once_in_a_while(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for every, lines in ((1e9, 1), (0.0, 4)):
        monkeypatch.setattr(watching, "LINE_INTERVAL", every)
        with watching.watching("run") as line:
            line(NEWS)
            line(NEWS)
        assert len(capsys.readouterr().err.splitlines()) == lines


def test_an_error_ends_the_line_and_is_raised() -> None:
    with terminal() as shown, pytest.raises(ZeroDivisionError), watching.passing("run"):
        raise ZeroDivisionError
    assert shown.getvalue().endswith("\x1b[2K")  # nothing of it is kept


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["solve", "prefix:4"], ["stating the problem", "solving"]),
        (["solve", "prefix:4", "--layer", "reference"], ["CLARABEL: schur"]),
        (["solve", "prefix:4", "--refine"], ["refining"]),
        (["explain", "prefix:2"], ["solving", "fractions"]),
        (["crosscheck", "fitness/figure1", "--quick"], ["loading", "the first row", "rows, gap"]),
    ],
)
def test_a_command_says_what_it_does_on_standard_error_alone(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    class Noted(watching.Line):
        def __init__(self, show: Callable[[str], None], *given: Any) -> None:
            def note(text: str) -> None:
                shown.append(text)
                show(text)

            super().__init__(note, *given)

    with terminal() as kept, pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "Line", Noted)
        command.app(arguments, standalone_mode=False)
    assert all(any(each in text for text in shown) for each in words)
    assert kept.getvalue().endswith("\x1b[2K")
    assert "\x1b[2K" not in capsys.readouterr().out


class TestDeadline:
    def test_time_without_a_limit_never_runs_out(self) -> None:
        assert Deadline.of(None).left is None and not Deadline.of(None).passed
        assert not Deadline.of(None).after(0.5).passed

    def test_a_share_of_the_time_ends_before_the_whole(self) -> None:
        whole = Deadline.of(1e3)
        half, rest = whole.after(0.5).left, whole.left
        assert half is not None and rest is not None and 0 < half <= rest / 2 + 1 < rest


def test_a_log_without_news_is_not_silent_for_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing has news, a line comes nevertheless; the command says nothing else there."""
    monkeypatch.setattr(watching, "MAX_SILENCE", 0.01)
    written = threading.Event()
    printed = rich.console.Console.print

    def noted(self: Any, *objects: Any, **options: Any) -> None:
        printed(self, *objects, **options)
        written.set()

    monkeypatch.setattr(rich.console.Console, "print", noted)
    with watching.passing("stating the problem"):
        assert written.wait(30)
    assert capsys.readouterr().err.startswith("stating the problem, ")


def test_the_first_line_of_a_log_has_its_label(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the thread can write its first line before the task runs any further."""

    class Eager(threading.Thread):
        def start(self) -> None:
            super().start()
            assert written.wait(30)

    printed, written = rich.console.Console.print, threading.Event()

    def noted(self: Any, *objects: Any, **options: Any) -> None:
        printed(self, *objects, **options)
        written.set()

    monkeypatch.setattr(watching, "MAX_SILENCE", 0.01)
    monkeypatch.setattr(rich.console.Console, "print", noted)
    monkeypatch.setattr(watching.threading, "Thread", Eager)
    with watching.passing("stating the problem"):
        pass
    assert capsys.readouterr().err.startswith("stating the problem, ")


@given(st.floats(1e-3, 10), st.integers(2, 60), st.floats(0.05, 0.95), st.floats(1e-12, 1e-3))
def test_the_time_that_is_left_is_that_of_a_steady_pace(second: float, steps: int, factor: float, goal: float) -> None:
    history = [Progress(step, 1.0, 1.0, factor**step, second * step) for step in range(steps)]
    gap, now = factor**steps, second * steps
    true = max(math.log(goal / gap) / math.log(factor), 0.0) * second
    assert seconds_left(history, gap, goal, now) == pytest.approx(true, rel=1e-6, abs=1e-9)
    assert math.isnan(seconds_left(history, math.inf, goal, now))
    assert math.isnan(seconds_left(history, 2.0, goal, now))
    assert math.isnan(seconds_left([], gap, goal, now))


@pytest.mark.parametrize(
    ("earlier", "gap", "goal"),
    [(math.nextafter(0.3, 1), 0.3, 1e-6), (1e-6, 1e-7, 0.0), (1e-6, 1e-7, -1e-9), (1e-310, 5e-324, 10.0)],
)
def test_no_pace_and_no_goal_end_in_an_error(earlier: float, gap: float, goal: float) -> None:
    left = seconds_left([Progress(0, 1.0, 1.0, earlier, 0.0)], gap, goal, 1.0)
    assert math.isnan(left) or left >= 0
