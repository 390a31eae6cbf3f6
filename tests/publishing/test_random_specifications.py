"""Random small specifications: each is solved by both layers and released, or refused by an error of the library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast, reference

KINDS: dict[str, Any] = {
    "income": {"from": 0, "to": 3},
    "hours": {"bins": [0, 20, 40, 60]},
    "sex": ["f", "m"],
    "dest": {"labels": ["a", "b", "c"], "groups": {"half": {"one": ["a"], "two": ["b", "c"]}}},
    "age": {"from": 1, "to": 3, "missing": ""},
}
WORDS: dict[str, list[Any]] = {
    "income": ["sum", "total", "prefixes", "ranges", "0..1"],
    "hours": ["prefixes", "total"],
    "sex": ["total", "f"],
    "dest": ["half", "total", "a"],
    "age": ["sum", "total", "prefixes"],
}


def specification(rng: np.random.Generator) -> dict[str, Any]:
    """Return a specification of one to three attributes, tables over them and neighbours, all drawn."""
    names = rng.choice([*KINDS], rng.integers(1, 4), replace=False).tolist()
    tables = [_table(rng, names, number) for number in range(rng.integers(1, 4))]
    rules = ["add-remove", "replace", "add-remove:2", "replace:2"]
    rules += [f"replace within {names[0]}", f"contributions:{names[0]}:1:2"]
    stated = {
        "attributes": {name: KINDS[name] for name in names},
        "tables": tables,
        "neighbours": str(rng.choice(rules)),
    }
    return stated | ({"rho": "1/2"} if rng.random() < 0.2 else {})


def _table(rng: np.random.Generator, names: list[str], number: int) -> dict[str, Any]:
    stated = {"name": f"t{number}", "variance": float(rng.choice([1.0, 4.0, 900.0]))}
    if rng.random() < 0.1:
        return stated | {"total": True}
    ask: dict[str, Any] = {}
    for name in rng.choice(names, rng.integers(1, len(names) + 1), replace=False).tolist():
        words = rng.choice(WORDS[name], rng.integers(1, 3), replace=False).tolist()
        ask[name] = "values" if rng.random() < 0.4 else words
    derive = {"derive": [str(rng.choice(["share", "mean", "median"]))]} if rng.random() < 0.15 else {}
    return stated | {"ask": ask} | derive


def agree(*answers: dm.Solution) -> None:
    low, high = zip(*(each.certificate.interval for each in answers), strict=True)
    assert max(low) <= min(high)


def attempt(seed: int, both: bool) -> str:
    """Return what became of a random specification: released, or the message that refuses it."""
    rng = np.random.default_rng([64, seed])
    try:
        asked = dm.Specification.of(specification(rng))
        problem = asked.problem()
        answer = fast.solve(problem, tol=1e-6)
    except dm.errors.DualmechError as error:
        return str(error)
    if both and math.prod(asked.schema.shape) <= 8:  # so that the cone program is small
        agree(answer, reference.solve(problem))
    plan = dm.plan_release(asked.planned(answer))
    counts = rng.integers(0, 50, asked.schema.shape)
    written = problem.geometry.name == "dense"
    released = plan.draw(counts.ravel() if written else {tuple(range(counts.ndim)): counts})
    assert released.rho == plan.rho > 0
    for table in released.tables:
        assert np.all(np.isfinite(released.estimates(table))) and np.all(released.margins(table) >= 0)
    assert released.statement()
    return "released"


REFUSED = "derive: ", "neighbours must change at least one query"


@pytest.mark.parametrize(
    "start", [*range(0, 100, 25), *(pytest.param(k, marks=pytest.mark.slow) for k in range(100, 600, 25))]
)
def test_no_bare_error(start: int) -> None:
    results = [attempt(seed, both=seed % 5 == 0) for seed in range(start, start + 25)]
    assert results.count("released") >= 10
    assert not [result for result in results if result != "released" and not result.startswith(REFUSED)]


def test_a_sum_beside_a_total_that_nobody_changes() -> None:
    """The block of the total has no row that neighbours leave, beside those that they change."""
    counts, table = (
        np.arange(8).reshape(4, 2),
        {"name": "t", "ask": {"income": "sum", "sex": "values"}, "variance": 4.0},
    )
    attributes = {"income": {"from": 0, "to": 3}, "sex": ["f", "m"]}
    for neighbours in ("replace", "replace:2", "replace within sex"):
        asked = dm.Specification.of({"attributes": attributes, "tables": [table], "neighbours": neighbours})
        ours, theirs = fast.solve(asked.problem()), reference.solve(asked.problem())
        agree(ours, theirs)
        released = dm.plan_release(asked.planned(ours)).draw({(0, 1): counts})
        assert released.variances("t") == pytest.approx(4.0, rel=1e-4)
        assert released.estimates("t").ravel() == pytest.approx(np.arange(4) @ counts, abs=20)


def test_what_no_neighbour_changes_is_refused_alike() -> None:
    """One query or several: nothing has a price, and the message says what to do."""
    income, told = {"income": {"from": 0, "to": 3}}, "none does, so every answer .* publish the exact sums"
    for ask in ("values", ["total"], ["sum"], ["sum", "total"], ["sum", "0..1", "total"], "prefixes"):
        for others in ({}, {"sex": ["f", "m"]}):
            table = {"name": "t", "ask": {"income": ask}, "variance": 4.0}
            stated = {"attributes": income | others, "tables": [table], "neighbours": "replace within income"}
            with pytest.raises(dm.errors.InvalidInputError, match=told):
                dm.Specification.of(stated).problem()
