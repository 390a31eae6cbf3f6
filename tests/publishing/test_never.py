"""Cells that no record has: published as exact zeros, free on a matrix, and refused in records with their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.publishing.published import published_tables

pd: Any = pytest.importorskip("pandas")

ATTRIBUTES = {"sex": ["m", "f"], "pregnant": {"labels": ["no", "yes"], "missing": "?"}, "age": {"from": 0, "to": 5}}
NO_DEADLINE = [{"sex": "m", "pregnant": ["yes", "missing"]}, {"pregnant": "yes", "age": "0..1"}]
TABLES = [
    {"ask": ["sex", "pregnant"], "margin": 20},
    {"name": "running", "ask": {"age": "prefixes", "pregnant": "values"}, "margin": 10},
    {"name": "of men", "ask": {"sex": ["m"], "pregnant": ["yes"]}, "margin": 0},
]


def specified(**others: Any) -> dm.Specification:
    return dm.Specification.of({"attributes": ATTRIBUTES, "never": NO_DEADLINE, "tables": TABLES, **others})


def people(count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({"sex": rng.choice(["m", "f"], count), "age": rng.integers(0, 6, count)})
    may = (found["sex"] == "f") & (found["age"] > 1)
    found["pregnant"] = np.where(may & (rng.random(count) < 0.2), "yes", "no")
    return found


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_possible_cells_are_those_that_no_box_has(boxes: int, first: int, second: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = {"a": first, "b": second + 1, "c": 2}
    never = [
        {name: sorted({int(code) for code in rng.integers(0, size, 2)}) for name, size in sizes.items() if name != skip}
        for skip in rng.choice(["a", "c"], boxes)
    ]
    assert all(len(each["b"]) <= second for each in never) or second == 1
    try:
        schema = dm.Schema(sizes, never)
    except dm.errors.InvalidInputError as error:
        assert "not exclude all records" in str(error)
        return
    cells = np.stack(np.unravel_index(np.arange(schema.cells), schema.shape), axis=1)
    expected = [
        not any(all(cell[schema.names.index(name)] in codes for name, codes in box.items()) for box in never)
        for cell in cells.tolist()
    ]
    possible = schema.possible()
    assert possible is not None and possible.tolist() == expected
    assert dm.Schema.of_json(schema.to_json()) == schema
    joined = dm.Schema.joined([dm.Schema({"z": 2}), schema])
    assert joined.possible().tolist() == expected * 2  # type: ignore[union-attr]
    for rule in ("add-remove:2", "replace", "replace within b", "contributions:b:1:2"):
        relation = dm.neighbours.Relation.of(rule)
        whole = relation.matrix(schema.cells, dm.Domain(sizes)).toarray()  # type: ignore[union-attr]
        kept = whole[:, ~np.any(whole[~possible], axis=0)]
        assert relation.columns(schema.cells, schema) == kept.shape[1]
        if kept.size and sum(expected) > 1:
            found = relation.matrix(schema.cells, schema).toarray()  # type: ignore[union-attr]
            assert {*map(tuple, found.T.tolist())} == {*map(tuple, kept.T.tolist())}


@pytest.mark.parametrize("neighbours", ["add-remove", "replace", "replace within sex", "contributions:age:1:2"])
def test_a_matrix_protects_nobody_who_cannot_be(neighbours: str) -> None:
    """It costs no more than with all cells, and less where records are replaced; the plan has the words of the rule."""
    own, anyone = (
        specified(neighbours=neighbours, tables=TABLES[:2], never=never).problem() for never in (NO_DEADLINE, [])
    )
    assert own.geometry.name == "dense"
    answer, others = fast.solve(own, tol=1e-5), fast.solve(anyone)
    assert answer.certificate.interval[0] <= others.certificate.interval[1]
    assert neighbours != "replace" or answer.certificate.interval[1] < others.certificate.interval[0]
    planned = dm.plan_release(answer)
    assert planned.relation == str(dm.neighbours.Relation.of(neighbours))
    assert planned.neighbours == dm.neighbours.Relation.of(neighbours).words


@pytest.mark.parametrize("neighbours", ["add-remove", "replace within sex"])
def test_both_layers_prove_the_same_optimum(neighbours: str) -> None:
    schema = dm.Schema({"sex": ["m", "f"], "pregnant": ["no", "yes"]}, [{"sex": "m", "pregnant": "yes"}])
    asked = dm.workloads.union(schema, {"cells": ["sex", "pregnant"], "sexes": ["sex"]})
    problem = dm.FitnessForUse(asked, neighbours=neighbours)
    low, high = zip(*(each.solve(problem, tol=1e-5).certificate.interval for each in (fast, reference)), strict=True)
    assert max(low) <= min(high)
    if neighbours != "add-remove":  # of women alone some differ, by 2 in what both counts are apart
        assert max(low) <= 1.0 <= min(high)


@pytest.mark.parametrize("geometry", ["auto", "blocks"])
def test_zeros_are_exact(geometry: Any, tmp_path: Path) -> None:
    stated = specified().problem()
    numbers = stated.per_query() if geometry == "auto" else specified().targets
    problem = dm.FitnessForUse(stated.workload, numbers, geometry=geometry)
    assert problem.geometry.name == ("dense" if geometry == "auto" else "blocks")
    released = dm.plan_release(fast.solve(problem, tol=1e-4)).draw(people(500))
    first = released.tables[0]
    nobody = [[False, True, True], [False, False, False]]
    assert released.unmoved(first).tolist() == nobody
    assert np.all((released.margins(first) == 0) == nobody) and np.all(released.estimates(first)[nobody] == 0)
    running = released.unmoved("running")
    sides = [*released.published["running"].sides]
    assert (running if sides[0] == "age" else running.T)[:, 1].tolist() == [True, True, False, False, False, False]
    assert released.unmoved("of men").all() and not released.margins("of men").any()
    released.write(tmp_path / "tables")
    said = (tmp_path / "tables" / "STATEMENT.md").read_text()
    assert "- no record has sex = m with pregnant = yes or missing: counts of these records only are 0" in said


def test_what_is_asked_of_a_workload_without_tables() -> None:
    schema = dm.Schema({"sex": ["m", "f"], "pregnant": ["no", "yes"]}, [{"sex": "m", "pregnant": "yes"}])
    asked = dm.Workload([[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]], domain=schema)
    released = dm.release(fast.solve(dm.FitnessForUse(asked, 100.0)), [30, 0, 20, 10])
    (table,) = released.tables
    assert released.unmoved(table).tolist() == [False, True, False] and released.estimates(table)[1] == 0
    with pytest.raises(dm.errors.InvalidInputError, match="must count none in cells that no record has"):
        dm.release(fast.solve(dm.FitnessForUse(asked, 100.0)), [30, 1, 20, 10])


class TestRecordsThatCannotBe:
    def test_are_refused_with_their_line(self, tmp_path: Path) -> None:
        planned = dm.plan_release(fast.solve(specified().problem(), tol=1e-3))
        wrong = people(3000)
        wrong.loc[2500, ["sex", "pregnant"]] = ["m", "yes"]
        with pytest.raises(
            dm.errors.InvalidInputError, match="record 2501: no record has 'sex' = m and 'pregnant' = yes"
        ):
            planned.draw(wrong)
        wrong.to_csv(tmp_path / "people.csv", index=False)
        with pytest.raises(dm.errors.FileFormatError, match="line 2502: no record has 'sex' = m and 'pregnant' = yes"):
            planned.draw(tmp_path / "people.csv")

    def test_are_refused_in_tables_of_counts(self) -> None:
        stated = specified().problem()
        planned = dm.plan_release(fast.solve(dm.FitnessForUse(stated.workload, specified().targets, geometry="blocks")))
        tables = {(0, 1): np.ones((2, 3)), (1, 2): np.ones((3, 6))}
        with pytest.raises(dm.errors.InvalidInputError, match=r"records\[\(0, 1\)\] must count none in cells"):
            planned.draw(tables)


def test_refusals() -> None:
    for never, told in (
        ([{"sx": "m"}], "did you mean sex"),
        ([{"sex": "male"}], "never: 'male' in column 'sex'|never: .*'male'"),
        ({"sex": "m"}, "never must be a sequence"),
        (["m"], "never must be a mapping|never must map"),
        ([{}], "not exclude all records"),
        ([{"sex": ["m", "f"]}], "not exclude all records"),
    ):
        with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=told):
            specified(never=never)


def test_large_attributes_are_not_written_out() -> None:
    """A table of 100,000 values asks no matrix of their values, nor do its other attributes."""
    schema = dm.Schema(
        {"place": 10**5, "sex": ["m", "f"], "pregnant": ["no", "yes"]}, [{"sex": "m", "pregnant": "yes"}]
    )
    asked = dm.workloads.marginals(schema, sets=[["place"], ["sex", "pregnant"]])
    places, both = published_tables(asked)
    assert not np.any(places.impossible) and np.argwhere(both.impossible).tolist() == [[0, 1]]
    codes = dm.Schema({"place": 10**5, "sex": ["m", "f"]}, [{"place": "5", "sex": "m"}])
    (table,) = published_tables(dm.workloads.marginals(codes, sets=[["place", "sex"]]))
    assert np.argwhere(table.impossible).tolist() == [[5, 0]]


def test_a_small_matrix_is_no_way_around_what_a_rule_takes() -> None:
    schema = dm.Schema({"step": range(8)}, [{"step": "7"}])
    asked = dm.Workload(np.tril(np.ones((8, 8))), domain=schema)
    assert dm.TotalVariance(asked, neighbours="participation:2:4").geometry.name == "epochs"
