"""The comparison of SM-II with other solvers: what it measures, tabulates and draws, on the smallest sizes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from dualmech.crosscheck.benchmarks import softmax

QUICK = tuple(each for each in softmax.CONTENDERS if each.name != "gradient descent")


@pytest.fixture(scope="module")
def entries() -> list[softmax.Entry]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(softmax, "SIZES", (2, 4))
        patched.setattr(softmax, "CONTENDERS", QUICK)
        patched.setattr(softmax, "REPEATS", 1)
        return [softmax.Entry(**found) for found in softmax.measure()]


def test_every_contender_solves_every_size(entries: list[softmax.Entry]) -> None:
    assert [(each.cells, each.solver) for each in entries] == [
        (d, each.name) for d in (2, 4) for each in QUICK
    ]
    for entry in entries:
        assert entry.seconds > 0 and entry.steps > 0
        assert -1e-9 <= entry.above <= entry.gap + 1e-9 <= 1e-3
        assert entry.ratio == 1 or entry.solver != softmax.DUAL
    assert {each.status for each in entries if each.solver in (softmax.DUAL, "Clarabel", "SCS")} == {
        "CERTIFIED"
    }


def test_sizes_that_are_too_slow_are_left_out_and_said(entries: list[softmax.Entry]) -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(softmax.table(entries))
    text = out.getvalue()
    assert "Clarabel: up to d = 32" in text and "gradient descent: up to d = 16" in text
    assert text.count("SM-II, printed Hessian") == 2


def test_the_picture(entries: list[softmax.Entry], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = softmax.draw(entries, str(tmp_path / "pictures"))
    assert [path.suffix for path in drawn] == [".svg", ".png"]
    assert all(path.stat().st_size > 10_000 for path in drawn)
