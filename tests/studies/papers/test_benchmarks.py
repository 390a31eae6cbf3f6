"""Benchmarks: peers that are left out by name, growth and its exponents, and what a line of the fast layer says."""

import dataclasses
import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dualmech.crosscheck.printing import TextTable
from dualmech.studies.benchmarks import contest as peers
from dualmech.studies.benchmarks import growth, layers
from dualmech.studies.benchmarks.contest import Timing


def shown(drawn: TextTable) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(drawn)
    return out.getvalue()


def points(power: float, sizes: tuple[int, ...], name: str = "processor") -> list[dict[str, Any]]:
    return [{"size": size, name: 1e-3 * size**power} for size in sizes]


def test_exponents_are_those_of_power_laws_and_what_is_too_small_counts_for_none() -> None:
    for power in (0.9, 1.0, 3.0):
        assert growth.exponent(points(power, (64, 128, 512)), "processor", 0.0) == pytest.approx(power)
    found = points(1.0, (1, 2, 4, 1000, 2000))
    found[0]["processor"] = 100.0 * found[0]["processor"]
    assert growth.exponent(found, "processor", 0.5) == pytest.approx(1.0)
    assert math.isnan(growth.exponent(found[:3], "processor", 0.5))


def test_growth_is_measured_laid_out_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = [growth.measure(index, case.sizes[0]) for index, case in enumerate(growth.CASES) if index != 4]
    assert all(each["processor"] > 0 and each["gap"] <= growth.TOLERANCE for each in found)
    text = shown(growth.lay_out(found))
    assert text.count("too small to tell") == 2 * len(growth.CASES) and "running sums" in text
    assert all(path.stat().st_size > 5000 for path in growth.draw(found, str(tmp_path / "pictures")))
    assert {case.geometry for case in growth.CASES} == {"dense", "product", "blocks", "split", "stream"}


def test_each_step_of_a_way_is_measured_and_laid_out() -> None:
    found = [growth.measure_way(attributes) for attributes in (4, 6)]
    assert [each["tables"] for each in found] == [6, 15] and all(min(each.values()) > 0 for each in found)
    text = shown(growth.lay_out_way(found))
    assert "s, 15 tables" in text and all(step in text for step in found[0] if step != "tables")


def test_peers_that_are_not_installed_are_left_out_by_name() -> None:
    ours = tuple(
        dataclasses.replace(each, missing=each.missing or "not asked for") if "jax" in each.name else each
        for each in peers.CONTEST.contenders
    )
    contest = dataclasses.replace(peers.CONTEST, sizes=(4,), repeats=1, contenders=ours)
    entries = [Timing(**found) for found in contest.measure()]
    assert [each.solver for each in entries] == [*("fast layer", "fast layer, stream", "CVXPY, Clarabel", "CVXPY, SCS")]
    assert all(each.spread == 1 and each.processor > 0 and each.above <= each.gap + 1e-9 for each in entries)
    text = shown(contest.table(entries))
    assert "jax_privacy: left out" in text and "load" in text and "CPU s" in text


def test_several_epochs_are_compared() -> None:
    """Peers answer in classes of strategies, the smaller the farther from the optimum; those that lack are named."""
    contest = dataclasses.replace(peers.EPOCHS_CONTEST, sizes=(8,), repeats=1)
    ours = tuple(each for each in contest.contenders if not each.name.startswith("jax"))
    entries = [Timing(**found) for found in dataclasses.replace(contest, contenders=ours).measure()]
    best, *within = entries
    assert best.gap <= peers.PROVEN and len(within) == 4 and all(0 < each.gap < 0.3 for each in within)
    if contest.contenders[-1].missing:
        assert "jax_privacy, banded: left out" in shown(contest.table(entries))
        return
    for each in [each for each in contest.contenders if each.name.startswith("jax")][:2]:
        assert each.solve(peers._in_epochs(8)).gap < 0.2


def test_a_peer_is_judged() -> None:
    pytest.importorskip("jax_privacy.matrix_factorization.dense")
    for ends, gap in ((peers._by_its_own_rule, 1e-3), (peers._near_the_bound, 2 * peers.PROVEN)):
        answer = peers._jax_privacy(peers._problem(8), ends, compiled=True)
        assert answer.gap < gap and answer.iterations > 0 and min(answer.left_out) > 0


def test_a_case_tells_seconds_of_the_processor_memory_and_load() -> None:
    found = layers.measure(dataclasses.replace(layers.BENCHMARKS[0], repeat=1))
    assert found["processor"] > 0 and found["mebibytes"] > 10 and found["load"] >= 0
    assert found["steps"] <= layers.BENCHMARKS[0].most_steps and (not found["limit ratio"] <= 0)
