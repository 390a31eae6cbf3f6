"""What a release refuses before anything is drawn: a second handle, tables of other records, weights left out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run

import dualmech as dm
from dualmech import fast
from dualmech.adaptive.chain import Chain

W = dm.workloads
PEOPLE = dm.Schema({"age": range(3), "sex": ["f", "m"], "region": ["n", "s", "w"]})
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "oldest pickle": lambda given: pickle.dumps(given, protocol=0),
    "in a list": lambda given: copy.deepcopy([given]),
}


@pytest.fixture(scope="module")
def on_cells() -> Chain:
    rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], 100 * np.eye(2))
    return fast.chain([rows, dm.LinearGaussianMechanism(np.eye(4), 100 * np.eye(4))])


@pytest.fixture(scope="module")
def on_tables() -> Chain:
    by = [W.marginals(PEOPLE, sets=[("age", other)]) for other in ("sex", "region")]
    return fast.chain([fast.solve(dm.FitnessForUse(each, 9.0)).mechanism for each in by])


@pytest.mark.parametrize("copied", COPIES)
class TestCopies:
    def test_of_what_is_simulated(self, copied: str, on_cells: Chain) -> None:
        release = dm.AdaptiveRelease(on_cells, [5, 3, 4, 2], rng=0)
        with pytest.raises(dm.errors.InputTypeError, match="AdaptiveRelease must not be copied"):
            COPIES[copied](release)
        release.advance()
        with pytest.raises(dm.errors.InputTypeError, match="AdaptiveRelease must not be copied"):
            COPIES[copied](release)
        assert release.choose(1).values.shape == (4,)

    def test_of_what_is_drawn_and_of_what_draws_it(self, copied: str, on_cells: Chain, on_tables: Chain) -> None:
        pytest.importorskip("opendp")
        counts = dm.records.count([[0, 0, 1], [2, 1, 1]], W.marginals([3, 2, 3], ways=3))
        for chain, data in ((on_cells, [5, 3, 4, 2]), (on_tables, counts)):
            release = dm.release_chain(chain, data)
            release.advance()
            for each in (release, release._drawn):
                with pytest.raises(dm.errors.InputTypeError, match="must not be copied"):
                    COPIES[copied](each)
            release.choose(0)


def tables(*given: tuple[tuple[int, ...], Any]) -> dict[Any, Any]:
    return {axes: np.array(table) for axes, table in given}


AGES, SEXES = ((0,), [2, 1, 1]), ((1,), [3, 1])
PAIRS = ((0, 1), [[2, 0], [1, 0], [0, 1]])

CONTRADICTIONS = {
    "totals": (
        tables(((0,), [2, 1, 1]), ((1,), [3, 2])),
        r"records\[\(0,\)\] and records\[\(1,\)\].*the number of records",
    ),
    "a marginal": (tables(PAIRS, ((0,), [1, 2, 1])), r"records\[\(0, 1\)\] and records\[\(0,\)\].*differ on age"),
    "two pairs": (
        tables(PAIRS, ((1, 2), [[1, 1, 0], [1, 1, 0]])),
        r"records\[\(0, 1\)\] and records\[\(1, 2\)\].*differ on sex",
    ),
    "a total that is given": (tables(AGES, SEXES, ((), 5)), r"records\[\(0,\)\] and records\[\(\)\]"),
    "the same table in another order": (
        tables(PAIRS, ((1, 0), [[2, 1, 0], [0, 1, 1]])),
        r"in rising order, such as \(0, 2\), got \(1, 0\)",
    ),
    "an attribute twice": (tables(AGES, ((1, 1), [[3, 0], [0, 1]])), r"in rising order.*\(1, 1\)"),
    "an attribute from the end": (tables(AGES, SEXES, ((-3,), [1, 1, 2])), r"in rising order.*\(-3,\)"),
    "an attribute by name": ({**tables(AGES, SEXES), ("age",): np.array([1, 1, 2])}, r"in rising order.*'age'"),
    "an attribute that is not there": (
        tables(AGES, SEXES, ((3,), [4])),
        r"records\[\(3,\)\] must be of attributes 0 … 2",
    ),
    "another shape": (tables(AGES, SEXES, ((2,), [4])), r"records\[\(2,\)\] must have shape \(3,\), got \(1,\)"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("geometry", ["blocks", "split"])
def test_tables_that_no_records_have_are_refused(name: str, geometry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opendp")
    given, words = CONTRADICTIONS[name]
    asked: Any = W.marginals(PEOPLE, sets=[("age",), ("sex",)])
    if geometry == "split":
        asked = W.query_tables(PEOPLE, {}, sets=[("age",), ("sex",)])
    mechanism = fast.solve(dm.FitnessForUse(asked, 9.0, geometry=geometry), tol=0.5).mechanism
    released = dm.release(mechanism, tables(AGES, SEXES))
    kind = type(released.drawn)
    monkeypatch.setattr(kind, "draw", lambda *_: pytest.fail("it was drawn"))
    with pytest.raises(dm.errors.InvalidInputError, match=words):
        dm.release(mechanism, given)


def test_chains_refuse_them_too(on_tables: Chain) -> None:
    pytest.importorskip("opendp")
    counts = dm.records.count([[0, 0, 1], [2, 1, 1]], W.marginals([3, 2, 3], ways=2))
    assert dm.release_chain(on_tables, counts).advance()
    with pytest.raises(
        dm.errors.InvalidInputError, match=r"records\[\(0, 1\)\] and records\[\(0, 2\)\] .*differ on age"
    ):
        dm.release_chain(on_tables, {**counts, (0, 2): np.roll(counts[0, 2], 1, axis=0)})


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
    @pytest.mark.parametrize("label", ["weight", "weights", "Weight", " WEIGHTS "])
    def test_a_column_of_weights_is_not_left_out(self, label: str, tmp_path: Path) -> None:
        path = tmp_path / "records.csv"
        path.write_text(f"age,sex,region,{label}\n1,f,n,17\n")
        asked = W.marginals(PEOPLE, ways=1)
        with pytest.raises(
            dm.errors.FileFormatError,
            match=rf"records\.csv: line 1: .*records.count = '{label.strip()}' .* records.ignore",
        ):
            dm.records.count(path, asked)
        answer = fast.solve(dm.FitnessForUse(asked, 9.0))
        with pytest.raises(dm.errors.FileFormatError, match="records.count"):
            dm.plan_release(answer).check_columns(path)
        answer.save(tmp_path / "plan.npz")
        found = run("release", path, tmp_path / "plan.npz", "--dry-run")
        assert isinstance(found.exception, dm.errors.FileFormatError)

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
