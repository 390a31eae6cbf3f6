"""What a release refuses before anything is drawn: tables of other records, weights left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast

W = dm.workloads
PEOPLE = dm.Schema({"age": range(3), "sex": ["f", "m"], "region": ["n", "s", "w"]})


def tables(*given: tuple[tuple[int, ...], Any]) -> dict[Any, Any]:
    return {axes: np.array(table) for axes, table in given}


AGES, SEXES = ((0,), [2, 1, 1]), ((1,), [3, 1])
PAIRS, REGIONS = ((0, 1), [[2, 0], [1, 0], [0, 1]]), ((1, 2), [[1, 1, 0], [1, 1, 0]])

CONTRADICTIONS = [
    (tables(AGES, ((1,), [3, 2])), r"records\[\(0,\)\] and records\[\(1,\)\].*the number of records"),
    (tables(PAIRS, ((0,), [1, 2, 1])), r"records\[\(0, 1\)\] and records\[\(0,\)\].*differ on age"),
    (tables(PAIRS, REGIONS), r"records\[\(0, 1\)\] and records\[\(1, 2\)\].*differ on sex"),
    (tables(AGES, SEXES, ((), 5)), r"records\[\(0,\)\] and records\[\(\)\]"),
    (tables(PAIRS, ((1, 0), [[2, 1, 0], [0, 1, 1]])), r"in rising order, such as \(0, 2\), got \(1, 0\)"),
    (tables(AGES, ((1, 1), [[3, 0], [0, 1]])), r"in rising order.*\(1, 1\)"),
    (tables(AGES, SEXES, ((-3,), [1, 1, 2])), r"in rising order.*\(-3,\)"),
    ({**tables(AGES, SEXES), ("age",): np.array([1, 1, 2])}, r"in rising order.*'age'"),
    (tables(AGES, SEXES, ((3,), [4])), r"records\[\(3,\)\] must be of attributes 0 … 2"),
    (tables(AGES, SEXES, ((2,), [4])), r"records\[\(2,\)\] must have shape \(3,\), got \(1,\)"),
]


@pytest.mark.parametrize("geometry", ["blocks", "split"])
def test_tables_that_no_records_have_are_refused(geometry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opendp")
    sets = [("age",), ("sex",)]
    asked: Any = W.query_tables(PEOPLE, {}, sets=sets) if geometry == "split" else W.marginals(PEOPLE, sets=sets)
    mechanism = fast.solve(dm.FitnessForUse(asked, 9.0, geometry=geometry), tol=0.5).mechanism
    released = dm.release(mechanism, tables(AGES, SEXES))
    monkeypatch.setattr(type(released.drawn), "draw", lambda *_: pytest.fail("it was drawn"))
    for given, words in CONTRADICTIONS:
        with pytest.raises(dm.errors.InvalidInputError, match=words):
            dm.release(mechanism, given)


def test_many_tables_of_the_same_records_agree() -> None:
    pytest.importorskip("opendp")
    sizes = [3, 2, 3, 2, 4, 2, 2]
    records = np.random.default_rng(0).integers(0, sizes, (200, 7))
    counts = dm.records.count(records, W.marginals(sizes, ways=3))
    mechanism = fast.solve(dm.FitnessForUse(W.marginals(sizes, ways=1), 50.0)).mechanism
    assert dm.release(mechanism, counts).tables
    wrong = counts[4, 5, 6].copy()
    wrong[0, 0, 0], wrong[1, 1, 1] = wrong[0, 0, 0] + 1, wrong[1, 1, 1] + 1
    with pytest.raises(dm.errors.InvalidInputError, match=r"records\[\(4, 5, 6\)\] must be of the same records"):
        dm.release(mechanism, {**counts, (4, 5, 6): wrong})


class TestWeights:
    def test_of_a_frame(self) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"age": [1], "sex": ["f"], "region": ["n"], "weight": [2.5]})
        with pytest.raises(dm.errors.InvalidInputError, match="'weight' that is no attribute"):
            dm.records.count(frame, W.marginals(PEOPLE, ways=1))

    def test_an_attribute_may_be_called_so(self, tmp_path: Path) -> None:
        path = tmp_path / "records.csv"
        path.write_text("weight,height\n1,4\n2,4\n")
        weighed = dm.Schema({"weight": range(3)})
        assert dm.records.count(path, W.marginals(weighed, ways=1))[0,].tolist() == [0, 1, 1]
