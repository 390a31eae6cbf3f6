"""Noise is drawn anew unless a seed is given: who knows the seed subtracts the noise."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.studies import rivals

ROOT = Path(__file__).resolve().parents[2]
TABLES = dm.workloads.marginals({"a": 2, "b": 3}, ways=(1, 2))
COUNTS: Any = {(0, 1): np.arange(6.0).reshape(2, 3)}
CELLS = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
RESPONSE = rivals.randomised_response(4, 1.0)
LARGE = np.full(4, 1e6)

DRAWS: dict[str, Callable[..., Any]] = {
    "dense": lambda **seed: CELLS.simulate(LARGE, **seed),
    "blocks": lambda **seed: dm.BlockMechanism.of_tables(TABLES).measure(COUNTS, **seed),
    "blocks, tables": lambda **seed: dm.BlockMechanism.of_tables(TABLES).simulate(COUNTS, **seed),
    "product": lambda **seed: _product().simulate(
        LARGE.reshape(2, 2), dm.workloads.kron(*[dm.workloads.prefix(2)] * 2), **seed
    ),
    "split": lambda **seed: _split().measure(COUNTS, **seed),
    "local": lambda **seed: RESPONSE.mechanism(dm.workloads.prefix(4)).simulate(LARGE, **seed),
    "local, reports": lambda **seed: RESPONSE.mechanism(dm.workloads.prefix(4)).responses(LARGE, **seed),
    "rival": lambda **seed: RESPONSE.simulate(LARGE, **seed),
    "chain": lambda **seed: _chosen(**seed),
    "region": lambda **seed: (
        dm.sampling.hit_and_run(
            dm.sampling.ConfidenceRegion(dm.LinearGaussianMechanism([[1.0, 1.0]], [[4.0]]), [60]), 2, **seed
        ).points
    ),
}


def _product() -> Any:
    return fast.solve(dm.FitnessForUse(dm.workloads.kron(*[dm.workloads.prefix(2)] * 2), 1.0)).mechanism


def _split() -> Any:
    asked = dm.workloads.query_tables({"a": 2, "b": 3}, {"a": dm.workloads.prefix(2)}, ways=(1, 2))
    return fast.solve(dm.FitnessForUse(asked, 1.0, geometry="split"), tol=1.0).mechanism


def _chosen(**seed: Any) -> Any:
    rule: Any = lambda stage, answers: np.zeros(len(answers), dtype=int)  # noqa: E731
    return fast.chain([CELLS, CELLS.scaled(2)]).simulate([LARGE], rule, **seed).answers[0].values


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(same(one[key], other[key]) for key in one)
    return np.array_equal(one, other)


@pytest.mark.filterwarnings("ignore::dualmech.errors.SamplingWarning")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=[*DRAWS])
def test_a_draw_repeats_itself_only_with_a_seed(draw: Callable[..., Any]) -> None:
    assert same(draw(rng=7), draw(rng=7)) and not same(draw(), draw())


def test_nothing_that_draws_has_a_seed_of_its_own() -> None:
    seeded = [
        f"{path.name}: {node.name}"
        for folder in ("core", "crosscheck", "studies")
        for path in (ROOT / folder).rglob("*.py")
        if "rng" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        for name, default in defaults(node)
        if name == "rng" and not (isinstance(default, ast.Constant) and default.value is None)
    ]
    assert not seeded


def defaults(function: ast.FunctionDef) -> list[tuple[str, ast.expr]]:
    """Return the parameters of a function that have a default, with it."""
    told = function.args
    by_place = [*told.posonlyargs, *told.args]
    pairs = zip(by_place[len(by_place) - len(told.defaults) :], told.defaults, strict=True)
    named = ((each, value) for each, value in zip(told.kwonlyargs, told.kw_defaults, strict=True) if value)
    return [(each.arg, value) for each, value in (*pairs, *named)]
