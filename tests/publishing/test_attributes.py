"""Attributes as tables need them: groups, dates, an order, sums, a cell for the rest, and rows by their names."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.workloads.asking import asked_of
from dualmech.workloads.schema import attribute_of

DEST = {
    "labels": ["ATL", "BOS", "LAX"],
    "groups": {"coast": {"East": ["ATL", "BOS"], "West": ["LAX"]}},
    "rest": "elsewhere",
    "missing": ["", "NA"],
}
DAY = {"from": datetime.date(2013, 1, 1), "to": datetime.date(2013, 2, 10)}
RECORDS = """dest,day,hours
ATL,2013-01-01 05:15:00,1
BOS,2013-01-31,2
LAX,2013-02-01T10:00,3
ORD,2013-02-10,4
NA,2013-02-09,40
"""


def specification(**changed: Any) -> dict[str, Any]:
    return {
        "attributes": {
            "dest": DEST,
            "area": {"column": "dest", "labels": {"ATL": "south", "BOS": "north", "LAX": "south"}, "rest": "unknown"},
            "day": DAY,
            "hours": {"from": 0, "to": 4, "clamp": True},
        },
        "tables": [
            {"name": "coasts", "ask": {"dest": ["coast", "values", "total"]}, "margin": 20},
            {"name": "to date", "ask": {"day": "prefixes"}, "margin": 20},
            {"name": "months by coast", "ask": {"day": "months", "dest": "coast"}, "margin": 30},
            {"name": "flown", "ask": {"hours": "sum"}, "margin": 300},
            {"name": "named", "ask": {"dest": {"both": ["ATL", "LAX"], "other": "elsewhere"}}, "variance": 90},
            {"name": "areas", "ask": ["area"], "variance": 50},
        ],
        **changed,
    }


@pytest.fixture(scope="module")
def plan() -> dm.Solution:
    asked = dm.Specification.of(specification())
    return asked.planned(fast.solve(asked.problem()))


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.csv"
    path.write_text(RECORDS)
    return path


class TestWholeWay:
    def test_answers_are_those_of_the_records(self, plan: dm.Solution, records: Path) -> None:
        assert plan.status is dm.Status.CERTIFIED
        truth = {
            "coasts": [2, 1, 1, 1, 1, 1, 1, 5],
            "months by coast": [2, 0, 0, 0, 0, 1, 1, 1],
            "flown": [1 + 2 + 3 + 4 + 4],
            "named": [2, 1],
            "areas": [2, 1, 2],
        }
        found = dm.release(plan, records)
        for name, expected in truth.items():
            estimates, variances = found.estimates(name).ravel(), found.variances(name).ravel()
            if name == "months by coast":
                estimates, variances = estimates.reshape(4, 2).T.ravel(), variances.reshape(4, 2).T.ravel()
            assert len(estimates) == len(expected)
            assert np.all(np.abs(estimates - expected) < 7 * np.sqrt(variances))
        assert found.estimates("to date").shape == (41,)

    def test_rows_have_names(self, plan: dm.Solution) -> None:
        tables = dm.plan_release(plan).published
        assert tables["coasts"].sides["dest"] == [
            "East", "West", "elsewhere", "missing", "ATL", "BOS", "LAX", "any dest",
        ]  # fmt: skip
        assert tables["months by coast"].sides["day"] == ["2013-01", "2013-02"]
        assert tables["flown"].sides["hours"] == ["sum of hours"]
        assert tables["named"].sides["dest"] == ["both", "other"]
        assert tables["areas"].sides["area"] == ["south", "north", "unknown"]
        assert tables["to date"].sides["day"][31] == "day ≤ 2013-02-01"

    def test_files_sort_and_join(self, plan: dm.Solution, records: Path, tmp_path: Path) -> None:
        dm.release(plan, records).write(tmp_path / "out")
        lines = {path.name: path.read_text().splitlines() for path in (tmp_path / "out").glob("*.csv")}
        assert lines["1_coasts.csv"][0] == "dest,estimate,margin,low,high"
        assert lines["2_to_date.csv"][0] == "day,day from,day to,estimate,margin,low,high"
        assert lines["2_to_date.csv"][2].startswith("day ≤ 2013-01-02,2013-01-01,2013-01-02,")
        assert lines["3_months_by_coast.csv"][1].startswith("2013-01,2013-01-01,2013-01-31,East,")

    def test_the_statement_defines_groups(self, plan: dm.Solution, records: Path) -> None:
        page = dm.release(plan, records).statement()
        assert "coast: East = ATL, BOS; West = LAX" in page
        assert "every other value counts as 'elsewhere'" in page
        assert "| day by months x dest by coast |" in page
        assert "sum of hours" in page
        assert "both (ATL or LAX), other (elsewhere)" in page

    def test_a_file_keeps_all(self, plan: dm.Solution, tmp_path: Path) -> None:
        plan.save(tmp_path / "plan.npz")
        again = dm.load(tmp_path / "plan.npz")
        assert again.problem.workload.same_as(plan.problem.workload)
        assert dm.plan_release(again).published.keys() == dm.plan_release(plan).published.keys()
        kept = dm.plan_release(again).specification
        assert kept is not None and kept.schema == dm.Specification.of(specification()).schema

    def test_fitted_tables_agree(self, plan: dm.Solution, records: Path) -> None:
        counts = dm.release(plan, records).fitted(integer=True).counts("coasts")
        assert counts[:4].sum() == counts[-1] == counts[2:7].sum()

    def test_frames_of_timestamps(self, plan: dm.Solution, records: Path) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_csv(records, keep_default_na=False)
        frame["day"] = pandas.to_datetime(frame["day"], format="mixed")
        tables = plan.problem.workload.tabular()
        for column in (frame["day"], frame["day"].astype(object), frame["day"].dt.tz_localize("UTC")):
            found = dm.records.count(frame.assign(day=column), dm.workloads.marginals(tables.domain, sets=["day"]))
            (counts,) = found.values()
            assert np.flatnonzero(counts).tolist() == [0, 30, 31, 39, 40]


def test_sums_on_every_geometry() -> None:
    schema = dm.Schema({"hours": range(3, 9), "sex": ["f", "m"]})
    asked = dm.workloads.union(schema, {"total hours": {"hours": "sum", "sex": "values"}, "people": ["sex"]})
    objectives = []
    for geometry in ("dense", "blocks"):
        problem = dm.FitnessForUse(asked, {"total hours": 400.0, "people": 4.0}, geometry=geometry)
        answer = fast.solve(problem, tol=1e-8)
        assert answer.status is dm.Status.CERTIFIED
        objectives.append(answer.certificate.interval)
        cells = np.arange(12)
        found = dm.release(answer, cells) if geometry == "dense" else dm.release(answer, {(0, 1): cells.reshape(6, 2)})
        expected = np.arange(3, 9) @ cells.reshape(6, 2)
        assert np.all(np.abs(found.estimates("total hours").ravel() - expected) < 7 * 20)
    assert max(low for low, _ in objectives) <= min(high for _, high in objectives)


class TestDates:
    @given(
        first=st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)),
        length=st.integers(0, 2000),
        step=st.sampled_from(["day", "week", "month", "quarter", "year"]),
        data=st.data(),
    )
    def test_every_day_has_the_code_of_its_period(
        self, first: datetime.date, length: int, step: str, data: st.DataObject
    ) -> None:
        last = first + datetime.timedelta(days=length)
        attribute: Any = attribute_of("t", {"from": first, "to": last, "step": step})
        offset = data.draw(st.integers(0, length))
        day = first + datetime.timedelta(days=offset)
        code = attribute.code(str(day))
        assert code is not None and 0 <= code < attribute.size
        assert attribute.code(str(first)) == 0 and attribute.code(str(last)) == attribute.size - 1
        low, high = map(datetime.date.fromisoformat, attribute.keys([[code]])[0])
        assert first <= low <= day <= high <= last
        assert attribute.named_code(attribute.label(code)) == code or step == "week"
        if step == "week":
            assert attribute.label(code) == str(low) and code == offset // 7
        outside = [first - datetime.timedelta(days=1), last + datetime.timedelta(days=1)]
        assert [attribute.code(str(each)) for each in outside] == [None, None]
        for groups in attribute.groupings.values():
            assert sorted(code for codes in groups.values() for code in codes) == [*range(attribute.size)]
        again = attribute_of("t", attribute.as_spec())
        assert again == attribute

    def test_weekdays(self) -> None:
        groups = attribute_of("day", DAY).groupings["weekdays"]
        for name, codes in groups.items():
            days = [datetime.date(2013, 1, 1) + datetime.timedelta(days=code) for code in codes]
            assert {day.weekday() for day in days} == {[*groups].index(name)}

    @pytest.mark.parametrize("text", ["2013-02-30", "2013-1-1", "01/02/2013", "2013", "2013-01", "20130101", ""])
    def test_what_is_no_day(self, text: str) -> None:
        assert attribute_of("day", DAY).code(text) is None

    def test_two_years_of_running_sums_are_a_stream(self) -> None:
        asked = dm.Specification.of(
            {
                "attributes": {"day": {"from": "2013-01-01", "to": "2014-12-31"}},
                "tables": [{"name": "to date", "ask": {"day": "prefixes"}, "margin": 20}],
            }
        )
        answer = asked.planned(fast.solve(asked.problem(), tol=1e-4))
        assert answer.status is dm.Status.CERTIFIED
        assert dm.plan_release(answer).published["to date"].sides["day"][-1] == "day ≤ 2014-12-31"


class TestOrder:
    INCOME = {"labels": ["low", "middle", "high"], "ordered": True}

    def test_prefixes_and_ranges(self) -> None:
        income = attribute_of("income", self.INCOME)
        asked = asked_of(income, ["low..middle", "middle..high", "high"])
        assert asked is not None
        assert asked.names == ("income ≤ middle", "income ≥ middle", "income = high")
        assert np.array_equal(asked.dense(), [[1, 1, 0], [0, 1, 1], [0, 0, 1]])
        assert asked_of(income, "prefixes").dense().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]  # type: ignore[union-attr]
        assert income.keys([[0, 1]]) == [("1", "2")]

    def test_the_rest_is_in_no_order(self) -> None:
        income = attribute_of("income", self.INCOME | {"rest": "unknown", "missing": ""})
        asked = asked_of(income, "prefixes")
        assert asked is not None and asked.dense()[-1].tolist() == [1, 1, 1, 0, 0]

    def test_labels_that_look_like_ranges(self) -> None:
        income = attribute_of("income", {"labels": ["0..9", "10..19", "20.."], "ordered": True})
        asked = asked_of(income, ["10..19", "0..9"])
        assert asked is not None and asked.dense().tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"labels": ["x", "y"], "groups": {"g": {"a": ["x"]}}}, "got none for 'y': its rows would not add up"),
        ({"labels": ["x", "y"], "groups": {"g": {"a": ["x", "y"], "b": ["y"]}}}, "got 'y' in 'a' and 'b'"),
        ({"labels": ["x", "y"], "groups": {"g": {"a": ["x", "z"]}}}, "'g' of groups of 'v': 'a': 'v' must be one of"),
        ({"labels": ["x", "y"], "groups": {"values": {"a": ["x", "y"]}}}, "stands for something else"),
        ({"labels": ["x", "y"], "groups": {"x": {"a": ["x", "y"]}}}, "stands for something else"),
        ({"labels": ["x", "y"], "groups": ["x"]}, "groups of 'v' must map"),
        ({"labels": ["x"], "rest": "x"}, "a label of its own"),
        ({"labels": ["x"], "rest": ""}, "a label of its own"),
        ({"size": 2, "rest": "x"}, "size, which the option rest is not for"),
        ({"from": "2013-01-01", "to": "2012-01-01"}, "must be at least 2013-01-01"),
        ({"from": "2013-01-01", "to": 3}, "to of 'v' must be a date"),
        ({"from": "2013-13-01", "to": "2014-01-01"}, "from of 'v' must be a date"),
        ({"from": "2013-01-01", "to": "2014-01-01", "step": "hour"}, "step of 'v' must be one of"),
        ({"from": 1, "to": 2, "step": "day"}, "step of 'v' is for dates"),
        ({"bins": [0, 2, 1]}, "got 2 before 1"),
        ({"bins": [0, 1], "worth": [1, 2]}, "a number for each of its 1 bins"),
        ({"labels": ["Québec", "Québec"]}, "'Québec' twice"),
    ],
)
def test_what_is_refused_of_an_attribute(spec: Any, told: str) -> None:
    with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError)) as caught:
        attribute_of("v", spec)
    assert told in str(caught.value)


LABELS = {"labels": list("abcdefgh"), "groups": {"half": {"first": list("abcd"), "second": list("efgh")}}}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ([["a", "b", "c", "d"], ["a", "b", "c", "e"]], "got two that are called 'v = a, b, c or 1 more': name them"),
        ("halfs", "must be one of values, prefixes, ranges, total, sum, half"),
        (["halfs"], "did you mean half?"),
        ("prefixes", "with the option ordered = true"),
        ("sum", "needs numbers"),
        ({}, "must list one value or more"),
        ([{"a": "b"}], "must be a mapping of names, or a list of values"),
        ({"x": ["z"]}, "must be one of 'a'"),
    ],
)
def test_what_is_refused_of_a_table(asked: Any, told: str) -> None:
    with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError)) as caught:
        asked_of(attribute_of("v", LABELS), asked)
    assert told in str(caught.value)


def test_uneven_hierarchies() -> None:
    states = {"NY": ["Kings", "Queens"], "DC": ["DC"]}
    place = attribute_of("place", {"labels": ["Kings", "Queens", "DC"], "groups": {"state": states}})
    asked = asked_of(place, ["total", "state", "values"])
    assert asked is not None  # the district is a state and a county: asked once
    assert asked.names == ("any place", "NY", "DC", "Kings", "Queens")


def test_accents_composed_or_not_are_one_label() -> None:
    place = attribute_of("place", {"labels": ["Que\N{COMBINING ACUTE ACCENT}bec", "Ontario"]})
    assert place.code("Québec") == place.code("Que\N{COMBINING ACUTE ACCENT}bec") == 0


def test_python_tables_of_one_label_are_refused() -> None:
    schema = dm.Schema({"place": ["a", "b", "c"]})
    rows = dm.Workload(np.eye(3)[:2], ["one", "one"])
    answer = fast.solve(dm.FitnessForUse(dm.workloads.union(schema, {"places": {"place": rows}}), 1.0))
    with pytest.raises(dm.errors.InvalidInputError, match="two that are called 'one'"):
        _ = dm.plan_release(answer).published


def test_bins_count_for_what_is_stated() -> None:
    hours = attribute_of("hours", {"bins": [0, 20, 40, 60], "worth": [10, 30, 50], "missing": "?"})
    asked = asked_of(hours, "sum")
    assert asked is not None and asked.dense().tolist() == [[10, 30, 50, 0]]
    with pytest.raises(dm.errors.InvalidInputError, match="with the option worth"):
        asked_of(attribute_of("hours", {"bins": [0, 20]}), "sum")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"tables": [{"ask": {"dst": "values"}, "margin": 1}]}, "did you mean dest?"),
        ({"tables": [{"name": "t", "ask": ["dest"]}]}, "table 't' must have one of variance and margin, got neither"),
        ({"tables": [{"ask": ["dest"], "margin": 1, "variance": 1}]}, "table 'dest' must have one of variance and mar"),
        ({"tables": [{"name": "t", "margin": 1}]}, "table 't' must have ask"),
        ({"epsilon": 1}, "states its privacy as rho (zCDP), not epsilon"),
    ],
)
def test_what_is_refused_of_a_specification(changed: Any, told: str) -> None:
    with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError)) as caught:
        dm.Specification.of(specification(**changed))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "text", "told"),
    [
        ({"from": 0, "to": 5}, "9", "the option clamp = true"),
        ({"bins": [0, 5]}, "-1", "the option clamp = true"),
        ({"from": "2013-01-01", "to": "2013-12-31"}, "2014-01-01", "the option clamp = true"),
        ({"from": 0, "to": 5}, "x", "got 'x'"),
        ({"labels": ["x"]}, "N/A", 'missing = "N/A"'),
        ({"labels": ["x"]}, " ", 'missing = ""'),
        ({"labels": ["x"]}, ".", 'missing = "."'),
    ],
)
def test_what_is_refused_of_a_record_says_the_option(spec: Any, text: str, told: str) -> None:
    attribute = attribute_of("v", spec)
    assert attribute.code(text) is None
    assert told in attribute.refused(text)
    assert ("clamp" in attribute.refused(text)) == ("clamp" in told)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("dest\nATL\n".encode("utf-16"), "it seems to be UTF-16"),
        (b"PK\x03\x04\xff\xfe\x00", "a workbook of a spreadsheet"),
        (b"PAR1\xff\x00", "Parquet"),
    ],
)
def test_files_that_are_no_csv_are_told_by_what_they_are(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "records").write_bytes(content)
    schema = dm.Schema({"dest": ["ATL"]})
    with pytest.raises(dm.errors.FileFormatError, match=told):
        dm.records.count(tmp_path / "records", dm.workloads.marginals(schema, ways=1))


@pytest.mark.parametrize(("line", "told"), [("rho = 1/10", 'a text, "1/10"'), ("rho = 50,5", "has a point, 50.5")])
def test_numbers_that_are_no_toml(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "plan.toml").write_text(f"title = 'x'\n{line}\n")
    with pytest.raises(dm.errors.FileFormatError, match=told):
        dm.Specification.read(tmp_path / "plan.toml")


class TestTotal:
    TABLES: tuple[dict[str, Any], ...] = ({"total": True, "margin": 5}, {"ask": ["dest"], "variance": 90})

    def test_by_its_name(self, tmp_path: Path) -> None:
        asked = dm.Specification.of(specification(tables=[*self.TABLES]))
        answer = asked.planned(fast.solve(asked.problem()))
        (tmp_path / "records.csv").write_text(RECORDS)
        released = dm.release(answer, tmp_path / "records.csv")
        assert released.tables == ("total", "dest")
        assert released.estimates("total").shape == () and abs(float(released.estimates("total")) - 5) < 15
        assert "| total | 1 | 5 | 5 | all records |" in released.statement()
        released.write(tmp_path / "out")
        assert (tmp_path / "out" / "1_total.csv").read_text().startswith("estimate,margin,low,high")

    def test_prices_are_of_what_was_stated(self) -> None:
        asked = dm.Specification.of(specification(tables=[*self.TABLES]))
        answer = asked.planned(fast.solve(asked.problem(), tol=1e-9))
        said = {line.split("'")[1]: line for line in answer.prices_in_words()}
        assert said["total"].startswith("1 % more margin of 'total' saves about")
        assert said["dest"].startswith("Loosening the target of 'dest' by 1 % saves about")
        looser = dm.Specification.of(specification(tables=[{"total": True, "margin": 5.05}, self.TABLES[1]]))
        cheaper = fast.solve(looser.problem(), tol=1e-9)
        saved = 100 * (1 - cheaper.objective / answer.objective)
        told = float(said["total"].split("about ")[1].split(" %")[0])
        assert saved == pytest.approx(told, rel=0.1, abs=0.01)

    @pytest.mark.parametrize("table", [{"total": True, "ask": ["dest"]}, {"ask": []}, {"ask": {}}])
    def test_ask_or_total(self, table: dict[str, Any]) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="total"):
            dm.Specification.of(specification(tables=[{"margin": 5, **table}]))


@pytest.mark.parametrize("geometry", ["blocks", "dense"])
def test_an_exact_total_beside_queries_on_several_attributes(geometry: str) -> None:
    # Its noise is next to none beside the others', which rounding hid: the release was refused once it was drawn.
    asked = dm.Specification.of(
        {
            "neighbours": "replace",
            "attributes": {"dest": DEST, "month": {"from": 1, "to": 6}, "delay": {"from": 0, "to": 3}},
            "tables": [
                {"name": "coasts", "ask": {"dest": ["coast", "values"]}, "margin": 20},
                {"name": "up to", "ask": {"month": "prefixes"}, "margin": 20},
                {
                    "name": "delay",
                    "ask": {"dest": "coast", "delay": ["sum", "total"]},
                    "margin": 60,
                    "derive": ["mean"],
                },
                {"total": True, "margin": 0},
            ],
        }
    )
    problem = dm.FitnessForUse(asked.workload, asked.targets, neighbours=asked.protected, geometry=geometry)
    answer = asked.planned(fast.solve(problem))
    planned = dm.plan_release(answer)
    assert planned.margins("total") == 0 and planned.margins("up to")[-1] == 0
    assert planned.margins("up to")[:-1].min() > 1
    counts = np.arange(5 * 6 * 4).reshape(5, 6, 4)
    records = counts.ravel() if geometry == "dense" else {(0, 1, 2): counts}
    released = planned.draw(records)
    assert released.estimates("total") == counts.sum() == released.estimates("up to")[-1]
    variances = (
        answer.mechanism.variances(asked.workload.select([len(asked.workload.names) - 1]))
        if (geometry == "dense")
        else answer.mechanism.variances("total")
    )
    assert np.all(variances < 1e-3 * min(asked.targets.values()))


def test_counts_without_columns_are_told_how_to_come(plan: dm.Solution) -> None:
    for records in ([1, 2, 3], np.ones(4)):
        with pytest.raises(dm.errors.InputTypeError, match="a mapping of attributes' positions to tables of counts"):
            dm.release(plan, records)
    with pytest.raises(dm.errors.InvalidInputError, match=r"solve again with that rho \(--rho …\)"):
        dm.plan_release(plan, rho="1/1000000")


@pytest.mark.parametrize(
    ("spec", "item", "words"),
    [
        ({"from": 0, "to": 99}, "100..200", "a whole number from 0 to 99, got 100..200"),
        ({"from": 0, "to": 99}, "18..640", "a whole number from 0 to 99, got 18..640"),
        ({"from": 0, "to": 99}, 120, "a whole number from 0 to 99, got 120"),
        ({"bins": [0, 10, 20]}, 35, "a number from 0 to 20, got 35"),
        ({"from": "2020-01-01", "to": "2020-12-31"}, "2021-03-01..2021-12-31", "a date from 2020-01-01 to 2020-12-31"),
    ],
)
def test_a_query_beyond_the_ends_is_refused_also_where_records_count_at_an_end(
    spec: dict[str, Any], item: object, words: str
) -> None:
    """It had been moved to the cell at the end, which counts other records than its name says."""
    attribute = attribute_of("a", {**spec, "clamp": True})
    with pytest.raises(dm.errors.InvalidInputError, match=words):
        attribute.chosen(item)
    assert attribute.code("2021-07-01" if "2020-01-01" in spec.values() else "1000") == attribute.size - 1
