"""The language of the code: terms of docs/notation.md in public names, and limits on prose and names by room."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dualmech as dm

ROOT = Path(__file__).resolve().parents[2]
COUNTER = ROOT.parent / "shared" / "tools" / "plain.py"

REMAINING = {
    *("CausalMechanism.judged_on", "ChainStage.known", "Deadline.left", "Progress.left", "QueryWeighting.loads"),
    *("Publication.drawn", "ReleasePlan.drawn", "ReleasePlan.unmoved", "ReuseFitness.known", "Specification.given"),
    *("SoftmaxGradient.sharpness", "SoftmaxNewton.sharpness", "Specification.of.given", "StepNoise.kept"),
    *("TotalVariance.asked", "TotalVariance.asked_weights", "Waste.spent", "judged", "waste.as_drawn"),
    *("Bound.at_most", "Bound.kept", "ConfidenceRegion.most_records", "contributions.most"),
    *("Contributions.reach", "LocalStrategy.root_off", "Participation.reach", "Relation.reach"),
    *("posterior_variances.known", "variance_reduction.known"),
}
"""Public names with a word to avoid, which are to be renamed: the set may only shrink."""

LIMITS = {
    "command": (0.6, 0.5),
    "core": (11.6, 2.7),
    "crosscheck": (5.0, 2.0),
    "fast": (0.5, 0.5),
    "publishing": (0.5, 0.5),
    "reference": (1.0, 0.5),
    "studies": (27.0, 6.4),
}
"""Largest phrases without a noun per 1,000 lines, and bare names in percent, of each room; the goal is 2 and 0.5."""


def words_to_avoid() -> set[str]:
    """Return the words in the last column of the table of terms."""
    text = (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")
    table = text.split("## Terms of the code", 1)[1].split("\n## ", 1)[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| ")][1:]
    return {word for row in rows for word in re.findall(r"`(\w+)`", row[3])}


def parameters_of(owner: str, value: object) -> Iterator[tuple[str, str]]:
    function = getattr(value, "__func__", value)
    if inspect.isfunction(function):
        for name in inspect.signature(function).parameters:
            yield f"{owner}.{name}", name


def names_of(module: Any, visited: set[int]) -> Iterator[tuple[str, str]]:
    """Yield each public name that a user types, with its owner: members of modules and classes, and parameters."""
    for name in getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]:
        value = getattr(module, name)
        if id(value) in visited or not getattr(value, "__module__", "dualmech").startswith("dualmech"):
            continue
        visited.add(id(value))
        if isinstance(value, types.ModuleType):
            if value.__name__.startswith("dualmech"):
                yield from names_of(value, visited)
            continue
        yield name, name
        yield from parameters_of(name, value)
        if inspect.isclass(value):
            yield from parameters_of(name, value.__dict__.get("__init__"))
            for attribute in {*vars(value), *getattr(value, "__annotations__", {})}:
                if not attribute.startswith("_"):
                    yield f"{name}.{attribute}", attribute
                    yield from parameters_of(f"{name}.{attribute}", value.__dict__.get(attribute))


def test_public_names_use_the_terms_of_the_field() -> None:
    avoided = words_to_avoid()
    assert len(avoided) > 20
    names = {owner for owner, name in names_of(dm, set()) if avoided & set(name.strip("_").split("_"))}
    assert names == REMAINING, (
        f"rename {sorted(names - REMAINING)} by docs/notation.md, Terms of the code; "
        f"remove {sorted(REMAINING - names)} from REMAINING"
    )


@pytest.mark.skipif(not COUNTER.exists(), reason=f"the counter {COUNTER.name} is beside the project's checkouts alone")
def test_rooms_stay_as_plain_as_they_are() -> None:
    report = subprocess.run(
        [sys.executable, str(COUNTER), *LIMITS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for room, limits in LIMITS.items():
        row = re.search(rf"^{room} .* ([\d.]+) phrases per 1,000 lines, +([\d.]+) % bare names$", report, re.MULTILINE)
        assert row is not None, report
        phrases, bare = float(row[1]), float(row[2])
        assert phrases <= limits[0] and bare <= limits[1], f"{room}: {phrases} and {bare} %, limits {limits}"
