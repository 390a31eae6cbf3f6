"""Releases as their users meet them: workloads given beside a mechanism, codes with labels, what refusals tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from typer.testing import Result

import dualmech as dm
from dualmech import fast
from dualmech.publishing.markdown import Page
from dualmech.publishing.statement import _proven


class TestWhatIsAsked:
    """A workload that is given beside a mechanism: some of its tables, under their own names, or nothing at all."""

    people = dm.Schema({"age": range(1, 6), "sex": ["f", "m"]})
    others = dm.Schema({"age": range(2, 7), "sex": ["m", "f"]})
    ages = dm.workloads.prefix(5)

    def ask(self, tables: Any, domain: dm.Schema = people) -> Any:
        return dm.workloads.union(domain, tables)

    def test_tables_are_refused_that_the_mechanism_knows_otherwise(self) -> None:
        answer = fast.solve(dm.FitnessForUse(self.ask({"ages": {"age": self.ages}, "sex": ["sex"]}), 9.0))
        split = dm.workloads.query_tables(self.people, {"age": self.ages}, ways=1)
        sums = fast.solve(dm.FitnessForUse(split, 9.0, geometry="split"), tol=1e-2)
        few = dm.workloads.marginals(self.people, ways=1)
        cases: list[tuple[Any, Any, str]] = [
            (answer, self.ask({"ages": ["age"]}), "under this name"),  # sums are no counts
            (answer, self.ask({"years": {"age": self.ages}}), "under this name"),
            (answer, self.ask({"ages": {"age": self.ages}}, self.others), "own domain"),  # other labels
            (answer, dm.workloads.marginals(self.others, ways=1), "own domain"),
            (answer, dm.workloads.marginals(self.people, ways=2), "not answered"),
            (answer, dm.workloads.identity(10), "own domain"),
            (sums, few, "under this name"),
            (dm.LinearGaussianMechanism([[1, 1, 0]], [[1]]), dm.workloads.identity(3), "outside the row space"),
        ]
        for mechanism, workload, told in cases:
            with pytest.raises(dm.errors.InvalidInputError, match=told):
                dm.release(mechanism, object(), workload=workload)  # which cannot be read

    def test_some_of_the_tables_are_published(self) -> None:
        pytest.importorskip("opendp")
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"age": [1, 2, 5, 5], "sex": ["f", "m", "m", "m"]})
        asked = self.ask({"ages": {"age": self.ages}, "sex": ["sex"]})
        answer = fast.solve(dm.FitnessForUse(asked, 1e-8), tol=1e-4)
        stated = dm.workloads.query_tables(self.people, {"age": self.ages}, ways=1)
        sums = fast.solve(dm.FitnessForUse(stated, 1e-8, geometry="blocks"), tol=1e-4)
        cases: list[tuple[Any, Any, str, list[int]]] = [
            (answer, self.ask({"ages": {"age": self.ages}}), "ages", [1, 2, 2, 2, 4]),
            (answer, dm.workloads.marginals(self.people, ways=1), "age", [1, 1, 0, 0, 2]),
            (sums, stated, "age", [1, 2, 2, 2, 4]),
        ]
        for mechanism, workload, table, truth in cases:
            found = dm.release(mechanism, frame, workload=workload, rho=1e9)
            assert np.allclose(found.estimates(table), truth, atol=0.01)

    def test_what_has_no_workload_or_takes_no_argument_says_so(self) -> None:
        pair = fast.solve(dm.CommonMechanism([dm.LinearGaussianMechanism(np.eye(2), np.eye(2))] * 2))
        with pytest.raises(dm.errors.InputTypeError, match="workload must name"):
            dm.release(pair, [1, 2])
        matrix: Any = np.eye(2)
        with pytest.raises(dm.errors.InputTypeError, match="mechanism must be"):
            dm.release(matrix, [1, 2])
        unknown: Any = {"epsilon": 1.0}
        with pytest.raises(dm.errors.InputTypeError, match="takes no epsilon: the mechanism determines"):
            dm.release(pair, [1, 2], **unknown)


class TestCodes:
    def test_labels_of_codes(self) -> None:
        coded = dm.Schema({"race": {"labels": {0: "White", 1: "other", 2: "other"}, "missing": "?"}})
        race = coded.attribute(0)
        assert [race.code(text) for text in ("0", "1", " 2", "?", "White")] == [0, 1, 1, 2, None]
        assert [race.label(code) for code in range(race.size)] == ["White", "other", "missing"]
        assert dm.Schema.of_json(coded.to_json()) == coded
        given = {"attributes": {"race": {"labels": {"0": "White", "1": "other"}}}}
        table = {"ask": {"race": ["other"]}, "variance": 1}
        asked = dm.Specification.of({**given, "tables": [table]}).workload
        assert asked.dense().tolist() == [[0, 1]]

    @pytest.mark.parametrize(
        ("labels", "told"),
        [({}, "one or more"), ({0: "a", "0": "b"}, "distinct"), (["missing"], "names missing values")],
    )
    def test_refusals(self, labels: Any, told: str) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match=told):
            dm.Schema({"race": {"labels": labels, "missing": "?"}})

    def test_what_is_missing_has_a_hint(self) -> None:
        pandas = pytest.importorskip("pandas")
        sexes = dm.workloads.marginals(dm.Schema({"sex": ["f", "m"]}), ways=1)
        with pytest.raises(dm.errors.InvalidInputError, match='missing = ""'):
            dm.records.count(pandas.DataFrame({"sex": ["f", None]}), sexes)
        allowed = dm.workloads.marginals(dm.Schema({"sex": {"labels": ["f", "m"], "missing": ""}}), ways=1)
        found = dm.records.count(pandas.DataFrame({"sex": ["f", None]}), allowed)
        assert found[(0,)].tolist() == [1, 0, 1]

    def test_an_empty_file_is_called_empty(self, tmp_path: Path) -> None:
        (tmp_path / "empty.csv").write_text("")
        with pytest.raises(dm.errors.FileFormatError, match="is empty"):
            dm.records.count(tmp_path / "empty.csv", dm.workloads.marginals(dm.Schema({"sex": 2}), ways=1))


class TestCommand:
    """The command ``release`` on a plan that ``solve`` wrote."""

    @pytest.fixture
    def plan(self, tmp_path: Path) -> Path:
        people = dm.Schema({"sex": ["f", "m"]})
        answer = fast.solve(dm.FitnessForUse(dm.workloads.union(people, {"sex": ["sex"]}), 4.0))
        dm.save(answer, tmp_path / "plan.npz")
        (tmp_path / "records.csv").write_text("sex\nf\nm\nm\n")
        return tmp_path

    def run(self, *arguments: object) -> Result:
        return run("release", *arguments)

    def test_a_folder_of_one_table(self, plan: Path) -> None:
        pytest.importorskip("opendp")
        found = self.run(plan / "records.csv", plan / "plan.npz", "-o", plan / "out", "--rho", "1/2")
        assert found.exit_code == 0 and "written: 1 table, tables.csv and STATEMENT.md" in found.output
        assert "Queries: 2, in 1 table." in (plan / "out" / "STATEMENT.md").read_text()

    def test_a_plan_that_is_not_certified_says_so(self, plan: Path) -> None:
        asked = dm.workloads.union(dm.Schema({"age": range(6)}), {"ages": {"age": dm.workloads.prefix(6)}})
        with pytest.warns(dm.errors.UncertifiedWarning):
            rough = fast.solve(dm.FitnessForUse(asked, 4.0), tol=1e-15)
        dm.save(rough, plan / "rough.npz")
        (plan / "ages.csv").write_text("age\n0\n1\n")
        found = self.run(plan / "ages.csv", plan / "rough.npz", "--dry-run")
        assert found.exit_code == 0 and "the plan is not certified: gap" in found.output
        assert "not certified" not in self.run(plan / "records.csv", plan / "plan.npz", "--dry-run").output
        page = Page("statement")
        _proven(page, rough)
        assert "It is not certified: gap" in str(page)

    def test_refusals_say_what_to_do_and_come_before_records_are_read(self, plan: Path) -> None:
        (plan / "people.toml").write_text("")
        (plan / "out").mkdir()
        for source, output, told in (
            ("plan.npz", "out", "exists already"),
            ("plan.npz", "none/out", "no folder"),
            ("nowhere.npz", "new", "there is no such file"),
            ("people.toml", "new", "dualmech solve"),
            ("records.csv", "new", "then the file of a solution"),
        ):
            found = self.run("no such file.csv", plan / source, "-o", plan / output)
            assert found.exit_code != 0 and told in str(found.exception or found.output), source
