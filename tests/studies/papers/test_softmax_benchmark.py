"""Comparisons of solvers, of SM-II and of Program 1: what they measure, tabulate and draw, on the smallest sizes."""

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from dualmech.studies.benchmarks import contest
from dualmech.studies.benchmarks.contest import Contest, Timing

QUICK = tuple(each for each in contest.SOFTMAX_CONTENDERS if each.name != "gradient descent")


def measured(contest: Contest, **changes: object) -> list[Timing]:
    small = dataclasses.replace(contest, repeats=1, **changes)  # type: ignore[arg-type]
    return [Timing(**found) for found in small.measure()]


def shown(contest: Contest, entries: list[Timing]) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(contest.table(entries))
    return out.getvalue()


@pytest.fixture(scope="module")
def entries() -> list[Timing]:
    return measured(contest.SOFTMAX_CONTEST, sizes=(2, 4), contenders=QUICK)


def test_every_contender_solves_every_size(entries: list[Timing]) -> None:
    assert [(each.cells, each.solver) for each in entries] == [(d, each.name) for d in (2, 4) for each in QUICK]
    for entry in entries:
        assert entry.seconds > 0 and entry.steps > 0
        assert -1e-9 <= entry.above <= entry.gap + 1e-9 <= 1e-3
        assert entry.ratio == 1 or entry.solver != contest.DUAL
    assert {each.status for each in entries if each.solver in (contest.DUAL, "Clarabel", "SCS")} == {"CERTIFIED"}


def test_sizes_that_are_too_slow_are_left_out_and_said(entries: list[Timing]) -> None:
    text = shown(contest.SOFTMAX_CONTEST, entries)
    assert "Clarabel: up to d = 32" in text and "gradient descent: up to d = 16" in text
    assert text.count("SM-II, printed Hessian") == 2


def test_the_picture(entries: list[Timing], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = contest.draw(entries, str(tmp_path / "pictures"))
    assert [path.suffix for path in drawn] == [".svg", ".png"]
    assert all(path.stat().st_size > 10_000 for path in drawn)


def test_program_1_is_certified_by_every_solver() -> None:
    entries = measured(contest.PROGRAM1_CONTEST, sizes=(8, 16))
    assert [entry.cells for entry in entries] == [d for d in (8, 16) for _ in contest.PROGRAM1_CONTEST.contenders]
    assert {entry.status for entry in entries} == {"CERTIFIED"}
    assert all(entry.above <= entry.gap + 1e-9 for entry in entries)
    assert entries[0].gap <= contest.TOLERANCE and entries[0].ratio == 1
    assert "Clarabel: up to d = 1024" in shown(contest.PROGRAM1_CONTEST, entries)
