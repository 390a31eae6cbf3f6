"""Benchmarks: growth and its exponents, contenders that are left out by name, and a line of the fast layer."""

import dataclasses
import io
import math
from typing import Any

import pytest
from rich.console import Console

from dualmech.crosscheck.printing import TextTable
from dualmech.studies.benchmarks import commands, contest, growth, layers
from dualmech.studies.benchmarks.contest import Contest


def shown(drawn: TextTable) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(drawn)
    return out.getvalue()


def points(power: float, sizes: tuple[int, ...], name: str = "processor") -> list[dict[str, Any]]:
    return [{"size": size, name: 1e-3 * size**power} for size in sizes]


def smallest(compared: Contest, *sizes: int, without: str = "none") -> Contest:
    kept = tuple(each for each in compared.contenders if without not in each.name)
    return dataclasses.replace(compared, sizes=sizes, repeats=1, contenders=kept)


def test_exponents_are_those_of_power_laws_and_what_is_too_small_counts_for_none() -> None:
    for power in (0.9, 1.0, 3.0):
        assert growth.exponent(points(power, (64, 128, 512)), "processor", 0.0) == pytest.approx(power)
    found = points(1.0, (1, 2, 4, 1000, 2000))
    found[0]["processor"] = 100.0 * found[0]["processor"]
    assert growth.exponent(found, "processor", 0.5) == pytest.approx(1.0)
    assert math.isnan(growth.exponent(found[:3], "processor", 0.5))


def test_a_release_is_measured_step_by_step() -> None:
    pytest.importorskip("opendp")
    text = shown(growth.release_report((4, 6)))
    assert "6 tables" in text and "15 tables" in text and all(step in text for step in growth.STEPS)


def test_growth_is_measured_and_laid_out() -> None:
    found = [growth.measure(index, case.sizes[0]) for index, case in enumerate(growth.CASES) if index != 4]
    assert all(each["processor"] > 0 and each["proven"] <= growth.TOLERANCE for each in found)
    text = shown(growth.lay_out(found))
    assert text.count("too small to tell") == 2 * len(growth.CASES) and "running sums" in text
    assert {case.geometry for case in growth.CASES} == {"dense", "product", "blocks", "split", "stream"}


def test_growth_of_what_solves_nothing() -> None:
    text = shown(growth.action_report({"select": (64, 128), "neighbours": (4, 8), "ledger": (2, 4)}))
    assert all(f"{name}: CPU time as the power" in text for name in growth.ACTIONS)


def test_commands_are_measured_next_to_their_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "REPEATS", 1)
    figures = commands.measure(commands.LIMIT)
    assert figures["processor"] > 0 and figures["mebibytes"] > 10
    assert all(name == commands.LIMIT or name.startswith("dualmech ") for name in commands.RUNS)


def test_peers_that_are_not_installed_are_left_out_by_name() -> None:
    ours = tuple(
        dataclasses.replace(each, missing=each.missing or "not asked for") if "jax" in each.name else each
        for each in contest.PEERS_CONTEST.contenders
    )
    peers = dataclasses.replace(smallest(contest.PEERS_CONTEST, 4), contenders=ours)
    entries = peers.measure()
    assert [each["solver"] for each in entries] == [
        *("fast layer", "fast layer, stream", "CVXPY, Clarabel", "CVXPY, SCS")
    ]
    assert all(each["spread"] == 1 and each["processor"] > 0 for each in entries)
    assert all(each["above"] <= each["proven"] + 1e-9 for each in entries)
    text = shown(peers.table(entries))
    assert "jax_privacy: left out" in text and "CPU s" in text


def test_several_epochs_are_compared() -> None:
    """Peers answer in classes of strategies, the smaller the farther from the optimum; those that lack are named."""
    best, *within = smallest(contest.EPOCHS_CONTEST, 8, without="jax").measure()
    assert best["proven"] <= contest.PROVEN and len(within) == 4 and all(0 < each["proven"] < 0.3 for each in within)
    peers = contest.EPOCHS_CONTEST.contenders[-4:]
    if peers[-1].missing:
        assert "jax_privacy, banded: left out" in shown(contest.EPOCHS_CONTEST.table([best]))
        return
    for each in peers[:2]:
        assert each.solve(contest._in_epochs(8)).gap < 0.2


def test_a_peer_is_judged() -> None:
    pytest.importorskip("jax_privacy.matrix_factorization.dense")
    own, near = (contest._jax_privacy(contest._problem(8), to_the_bound) for to_the_bound in (False, True))
    assert own.gap < 1e-3 and max(own.left_out) == 0
    assert near.gap < 2 * contest.PROVEN and min(near.left_out) > 0


def test_every_contender_of_sm_ii_solves_every_size() -> None:
    softmax = smallest(contest.SOFTMAX_CONTEST, 2, 4, without="gradient descent")
    entries = softmax.measure()
    names = [each.name for each in softmax.contenders]
    assert [(each["cells"], each["solver"]) for each in entries] == [(d, name) for d in (2, 4) for name in names]
    for entry in entries:
        assert entry["seconds"] > 0 and entry["steps"] > 0
        assert entry["above"] <= entry["proven"] + 1e-9 <= 1e-3
        assert entry["ratio"] == 1 or entry["solver"] != contest.DUAL
    certified = (contest.DUAL, "Clarabel", "SCS")
    assert {each["status"] for each in entries if each["solver"] in certified} == {"CERTIFIED"}
    text = shown(contest.SOFTMAX_CONTEST.table(entries))
    assert "Clarabel: up to d = 32" in text and "gradient descent: up to d = 16" in text
    assert text.count("SM-II, printed Hessian") == 2


def test_program_1_is_certified_by_every_solver() -> None:
    entries = smallest(contest.PROGRAM1_CONTEST, 8, 16).measure()
    assert [entry["cells"] for entry in entries] == [d for d in (8, 16) for _ in contest.PROGRAM1_CONTEST.contenders]
    assert {entry["status"] for entry in entries} == {"CERTIFIED"}
    assert all(entry["above"] <= entry["proven"] + 1e-9 for entry in entries)
    assert entries[0]["proven"] <= contest.TOLERANCE and entries[0]["ratio"] == 1
    assert "Clarabel: up to d = 1024" in shown(contest.PROGRAM1_CONTEST.table(entries))


def test_a_case_tells_seconds_of_the_processor_memory_and_load() -> None:
    found = layers.in_own_process(layers.measure, 0)
    assert found["processor"] > 0 and found["mebibytes"] > 10 and found["load"] >= 0
    assert found["steps"] <= layers.BENCHMARKS[0].most_steps and float(found["limit"]) > 0
    assert "prefix 64" in shown(layers.report(["prefix 64"]))
