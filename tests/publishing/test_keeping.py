"""Files of publications: what they say twice is compared, and nothing else than a typed error comes of a forged one."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.mechanisms import tables
from dualmech.publishing.publication import Publication

pytest.importorskip("opendp")

PEOPLE = dm.Schema({"age": range(4), "sex": ["f", "m"]})
COUNTS = {(0, 1): np.full((4, 2), 50)}


@functools.cache
def released(kind: str) -> Publication:
    """Return a release of tables, of rows on a matrix, or a combination of two."""
    if kind == "rows":
        return dm.release(fast.solve(dm.FitnessForUse(dm.workloads.prefix(4), 9.0, geometry="dense")), np.full(4, 50))
    if kind == "both":
        return dm.combine(dm.release(plan(), COUNTS), dm.release(plan(), COUNTS))
    return dm.release(plan(), COUNTS)


@functools.cache
def plan() -> dm.Solution:
    given = {
        "title": "People",
        "attributes": {"age": {"from": 0, "to": 3}, "sex": ["f", "m"]},
        "tables": [{"name": "cells", "ask": ["age", "sex"], "variance": 16}],
    }
    specification = dm.Specification.of(given)
    return specification.planned(fast.solve(specification.problem()))


KINDS = ("rows", "tables", "both")


@functools.cache
def written(kind: str, folder: Path) -> dict[str, Any]:
    dm.save_publication(released(kind), folder / f"{kind}.npz")
    arrays = dict(np.load(folder / f"{kind}.npz"))
    del arrays["digest"]
    return arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


def read(folder: Path, arrays: dict[str, Any]) -> Publication:
    np.savez(folder / "forged.npz", **arrays)
    return dm.load_publication(folder / "forged.npz")


def refused(folder: Path, arrays: dict[str, Any], told: str) -> None:
    with pytest.raises(dm.errors.FileFormatError, match=told):
        read(folder, arrays)


class TestContradictions:
    """A file whose digest was computed anew."""

    def parts(self, folder: Path, change: Callable[[list[Any]], object]) -> dict[str, Any]:
        arrays = written("both", folder)
        parts = json.loads(str(arrays["combined"]))
        change(parts)
        return arrays | {"combined": np.array(json.dumps(parts))}

    def test_parts(self, folder: Path) -> None:
        """Else a combination with it would print half of the true ρ, or count the same noise twice as independent."""
        bound = {"person": "p", "at_most": 1, "per": "", "check": False, "groups": None}
        counted: dict[str, Any] = {"count": "n", "ignore": [], "persons": None}
        cases: list[tuple[Callable[[list[Any]], object], str]] = [
            (lambda parts: parts[0].update(rho="1/1000"), "add up"),
            (lambda parts: parts[0].update(rho="-1/1000"), "add up|must be positive"),
            (lambda parts: parts[0].update(rho="0"), "add up|must be positive"),
            (lambda parts: parts.pop(), "add up"),
            (lambda parts: parts[0].update(tables=["x"]), "tables of the workload"),
            (lambda parts: parts[0].update(digest=parts[1]["digest"]), "each of them once"),
            (lambda parts: parts[0].update(digest=""), "must be a SHA-256"),
            (lambda parts: parts[1].update(records=counted), "one column of counts, got None and 'n'"),
            (lambda parts: parts[0].update(records=counted | {"count": None, "persons": bound}), "count all records"),
        ]
        for change, told in cases:
            refused(folder, self.parts(folder, change), told)

    def test_exact_rows_have_no_noise(self, folder: Path) -> None:
        for exact in (1, 4):
            refused(folder, written("rows", folder) | {"exact": np.array(exact)}, "exact must be the number of rows")

    def test_costs_are_the_mechanisms(self, folder: Path) -> None:
        for kind in KINDS:
            arrays = written(kind, folder)
            cost = Fraction(released(kind).drawn.mechanism.squared_privacy_cost)
            refused(folder, arrays | {"squared_privacy_cost": np.array(str(cost * 999_999 / 1_000_000))}, "cost of the")
            many = {"squared_privacy_cost": np.array("1000")}
            if kind == "both":
                refused(folder, arrays | many, "add up")

    def test_noise_is_that_of_the_answer(self, folder: Path) -> None:
        """A covariance four times the answer's would be published with the answer's certificate."""
        for kind, name in (("rows", "mechanism.covariance"), ("tables", "mechanism.covariances")):
            arrays = written(kind, folder)
            refused(folder, arrays | {name: 4 * arrays[name]}, "answer must have the noise of the mechanism")

    def test_columns_are_those_of_the_specification(self, folder: Path) -> None:
        told = json.dumps({"count": "n", "ignore": [], "persons": None})
        bound = {"person": "p", "at_most": 5, "per": "", "check": False, "groups": None}
        persons = json.dumps({"count": None, "ignore": [], "persons": bound})
        assert read(folder, written("tables", folder) | {"records": np.array(told)}).declared.count == "n"
        refused(folder, written("tables", folder) | {"records": np.array(persons)}, "must protect the counted records")
        refused(
            folder, written("both", folder) | {"records": np.array(told)}, "the same as in the first combined release"
        )

    def test_persons_of_the_specification_are_those_of_the_records(self, folder: Path) -> None:
        """Else a truncated release would state a guarantee about single records, which it does not have."""
        arrays = written("tables", folder)
        specification = json.loads(str(arrays["answer.asked.specification"]))
        bounded = json.dumps(specification | {"records": {"person": "p", "at_most": 1}})
        refused(
            folder,
            arrays | {"answer.asked.specification": np.array(bounded)},
            "the same columns as the plan's specification",
        )
        refused(folder, {key: value for key, value in arrays.items() if key != "records"}, "needs the array 'records'")

    def test_specifications_of_other_plans(self, folder: Path) -> None:
        """In the file of a publication, and in the file of a plan."""
        arrays = written("tables", folder)
        dm.save(plan(), folder / "plan.npz")
        planned = dict(np.load(folder / "plan.npz"))
        del planned["digest"]
        for changed, told in (
            ({"neighbours": "add-remove:3"}, "must protect the neighbours of the specification"),
            ({"records": {"person": "p", "at_most": 3}}, "must protect the neighbours of the specification"),
            ({"tables": [{"name": "sexes", "ask": ["sex"], "variance": 16}]}, "must be to the tables of this spec"),
        ):
            other = np.array(json.dumps(json.loads(str(arrays["answer.asked.specification"])) | changed))
            refused(folder, arrays | {"answer.asked.specification": other}, told)
            np.savez(folder / "forged.npz", **(planned | {"asked.specification": other}))
            with pytest.raises(dm.errors.InvalidInputError, match=told):
                dm.plan_release(dm.load(folder / "forged.npz")).declaring(COUNTS).unit  # noqa: B018

    def test_the_first_version_reads(self, folder: Path) -> None:
        for kind in KINDS:
            arrays = {key: value for key, value in written(kind, folder).items() if key != "records"}
            parts = [
                {key: value for key, value in part.items() if key != "records"}
                for part in json.loads(str(arrays["combined"]))
            ]
            again = read(folder, arrays | {"version": np.array(1), "combined": np.array(json.dumps(parts))})
            assert again.unit == released(kind).unit and again.rho == released(kind).rho


NUMBERS = ("x", "inf", "nan", "1/0", "1e999", "1e30000000", "-1", "", "0", "1/2", "9" * 5000)
LIST = '[{"rho":"1","tables":3,"digest":"","terms":{}}]'
TEXTS = ("", "[" * 100_000, "{}", "[3]", "[[]]", '[{"rho": 1}]', "null", LIST)
PERSONS = '{"count":null,"ignore":[],"persons":{"person":1}}'
WRONG: dict[str, tuple[Any, ...]] = {
    "squared_privacy_cost": (*NUMBERS, 0.5, -1, np.nan),
    "exact": (np.nan, np.inf, -1, 99, 0.5, "x", [1, 2], 2**62),
    "combined": (*TEXTS, 3),
    "records": (*TEXTS, '{"count":3,"ignore":[],"persons":null}', PERSONS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_typed(kind: str, folder: Path) -> None:
    for name, values in WRONG.items():
        for value in values:
            with contextlib.suppress(dm.errors.FileFormatError):
                read(folder, written(kind, folder) | {name: np.array(value)})


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS), data=st.data())
def test_changed_arrays(kind: str, folder: Path, data: st.DataObject) -> None:
    """An entry, a type or a shape of any array is another, or an array is absent."""
    arrays = written(kind, folder)
    name = data.draw(st.sampled_from(sorted(arrays)))
    array = arrays[name]
    changed = data.draw(
        st.sampled_from([array[..., None], array.ravel()[:1], np.array("x"), np.array(np.nan), np.array([1, 2]), None])
    )
    if array.dtype.kind in "iuf" and array.size and data.draw(st.booleans()):
        changed = array.astype(float).copy()
        changed.flat[data.draw(st.integers(0, array.size - 1))] = data.draw(st.sampled_from([0, -1, np.nan, 1e300, 7]))
    forged = {key: value for key, value in arrays.items() if key != name}
    with contextlib.suppress(dm.errors.FileFormatError):
        read(folder, forged if changed is None else forged | {name: changed})


def test_tables_of_a_release_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each table that is estimated from them, which took time that grew with the square of their number."""
    release = dm.release(dm.BlockMechanism.of_tables(dm.workloads.marginals([2] * 5, ways=2)), [[0, 1, 0, 1, 1]] * 9)
    dm.save_publication(release, tmp_path / "release.npz")
    again = dm.load_publication(tmp_path / "release.npz")
    checked: list[str] = []
    mapping = tables.validate.mapping

    def noted(what: str, **named: Any) -> Any:
        checked.extend(named)
        return mapping(what, **named)

    monkeypatch.setattr(tables.validate, "mapping", noted)
    for publication in (release, again):
        assert len(publication.tables) == 10
        for name in publication.tables:
            publication.estimates(name)
    assert "measured" not in checked
