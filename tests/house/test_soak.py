"""Random problems of every family through both layers, each from its seed: certified intervals meet, every time.

A seed that fails is run again by ``python tests/soak.py SEED 1``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import random_problems
import soak

import dualmech as dm
from dualmech.solution import Solution

FEW, MANY, BATCH = 50, 4_000, 10
"""Seeds of every run and of a slow one, and how many are run at a time; `make test-anywhere` draws 10,000 others."""


def faults(seeds: range) -> list[str]:
    found = (soak.outcome(seed) for seed in seeds)
    return [f"{each.seed}: {each.label}: {each.fault}" for each in found if each.fault]


@pytest.mark.parametrize("first", range(0, FEW, BATCH))
def test_some_seeds(first: int) -> None:
    assert not faults(range(first, first + BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FEW, MANY, FEW))
def test_all_seeds(first: int) -> None:
    assert not faults(range(first, first + FEW))


def test_every_family_and_geometry_is_drawn() -> None:
    labels = [random_problems.asked(seed).label for seed in range(1000)]
    for family in random_problems.families():
        assert any(label.startswith(family) for label in labels), family
    for family in ("fitness", "privacy first", "variance"):
        for geometry in ("dense", "blocks", "product", "split"):
            assert any(label.startswith(f"{family} on {geometry}") for label in labels), (family, geometry)
    for words in ("replace", "add-remove:2", "household", "own moves", *random_problems.KINDS, *random_problems.FLAWS):
        assert any(words in label for label in labels), words
    assert len(random_problems.SHARES) == len(random_problems.FAMILIES)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_seed_is_the_same_problem_each_time(seed: int) -> None:
    one, other = random_problems.asked(seed), random_problems.asked(seed)
    assert one.label == other.label and one.state().same_as(other.state())


def made(state: Callable[[], Any]) -> Callable[[int], random_problems.RandomProblem]:
    return lambda seed: random_problems.RandomProblem("made", state)


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign error, a warning, bounds that cross, and a worse answer at a tighter tolerance."""
    small = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    honest = soak._solved

    def raises(*_: Any) -> Solution:
        raise ZeroDivisionError("by nothing")

    def warns(layer: str, problem: Any, tol: float | None = None) -> Solution:
        assert np.float64(1) / np.float64(0) > 0
        return honest(layer, problem, tol)

    def twice(layer: str, problem: Any, tol: float | None = None) -> Solution:
        return honest(layer, problem if layer == "fast" else dm.FitnessForUse(problem.workload, 0.5), tol)

    def loses(layer: str, problem: Any, tol: float | None = None) -> Solution:
        return honest(layer, problem, None if tol is None else 1e-3)

    wrong = (raises, "ZeroDivisionError"), (warns, "RuntimeWarning"), (twice, "do not meet"), (loses, "at 1e-10")
    for solved, words in wrong:
        monkeypatch.setattr(random_problems, "asked", made(lambda: small))
        monkeypatch.setattr(soak, "_solved", solved)
        assert words in soak.outcome(0).fault
    monkeypatch.setattr(soak, "_solved", honest)
    assert not soak.outcome(0).fault


def test_what_is_refused_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_problems, "asked", made(lambda: dm.FitnessForUse(dm.Workload([[0.0]]))))
    found = soak.outcome(0)
    assert not found.fault and found.words == ("refused: InvalidInputError",)


def test_the_command_counts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert soak.main(0, 3) == 0 and "3 seeds from 0: 0 faults" in capsys.readouterr().out

    def broken() -> None:
        raise LookupError("nothing there")

    monkeypatch.setattr(random_problems, "asked", made(broken))
    assert soak.main(7, 1) == 1 and "7: made" in capsys.readouterr().out
