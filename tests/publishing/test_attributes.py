"""Attributes as tables need them: groups, dates, an order, sums, a cell for the rest, and rows by their names."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from releases import planned

import dualmech as dm
from dualmech import fast
from dualmech.publishing.asking import queries_on
from dualmech.publishing.schema import attribute_of

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
    return planned(specification())


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.csv"
    path.write_text(RECORDS)
    return path


def refuse(function: Callable[..., object], *cases: tuple[Any, ...]) -> None:
    """Hold that each case's arguments are refused in the words that are its last."""
    for *arguments, told in cases:
        with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError)) as caught:
            function(*arguments)
        assert told in str(caught.value), arguments


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

    def test_files_sort_and_join_and_the_statement_defines_groups(
        self, plan: dm.Solution, records: Path, tmp_path: Path
    ) -> None:
        released = dm.release(plan, records)
        released.write(tmp_path / "out")
        lines = {path.name: path.read_text().splitlines() for path in (tmp_path / "out").glob("*.csv")}
        assert lines["1_coasts.csv"][0] == "dest,estimate,margin,low,high"
        assert lines["2_to_date.csv"][0] == "day,day from,day to,estimate,margin,low,high"
        assert lines["2_to_date.csv"][2].startswith("day ≤ 2013-01-02,2013-01-01,2013-01-02,")
        assert lines["3_months_by_coast.csv"][1].startswith("2013-01,2013-01-01,2013-01-31,East,")
        page = released.statement()
        for words in (
            "coast: East = ATL, BOS; West = LAX",
            "every other value counts as 'elsewhere'",
            "| day by months x dest by coast |",
            "sum of hours",
            "both (ATL or LAX), other (elsewhere)",
        ):
            assert words in page

    def test_a_file_keeps_all(self, plan: dm.Solution, tmp_path: Path) -> None:
        dm.save(plan, tmp_path / "plan.npz")
        again = dm.load(tmp_path / "plan.npz")
        assert again.problem.workload.same_as(plan.problem.workload)
        assert dm.plan_release(again).published.keys() == dm.plan_release(plan).published.keys()
        kept = dm.plan_release(again).specification
        assert kept is not None and kept.schema == dm.Specification.of(specification()).schema

    def test_frames_of_timestamps(self, plan: dm.Solution, records: Path) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_csv(records, keep_default_na=False)
        frame["day"] = pandas.to_datetime(frame["day"], format="mixed")
        tables = plan.problem.workload.tabular()
        for column in (frame["day"], frame["day"].astype(object)):
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

    def test_weekdays_and_what_is_no_day(self) -> None:
        day = attribute_of("day", DAY)
        for place, codes in enumerate(day.groupings["weekdays"].values()):
            days = [datetime.date(2013, 1, 1) + datetime.timedelta(days=code) for code in codes]
            assert {each.weekday() for each in days} == {place}
        for text in ("2013-02-30", "2013-1-1", "01/02/2013", "2013", "2013-01", "20130101", ""):
            assert day.code(text) is None, text

    def test_two_years_of_running_sums_are_a_stream(self) -> None:
        days = {"day": {"from": "2013-01-01", "to": "2014-12-31"}}
        table = {"name": "to date", "ask": {"day": "prefixes"}, "margin": 20}
        answer = planned({"attributes": days, "tables": [table]}, tol=1e-4)
        assert answer.status is dm.Status.CERTIFIED
        assert dm.plan_release(answer).published["to date"].sides["day"][-1] == "day ≤ 2014-12-31"


class TestOrder:
    INCOME: dict[str, Any] = {"labels": ["low", "middle", "high"], "ordered": True}

    def test_prefixes_and_ranges(self) -> None:
        income = attribute_of("income", self.INCOME)
        asked = queries_on(income, ["low..middle", "middle..high", "high"])
        assert asked is not None
        assert asked.names == ("income ≤ middle", "income ≥ middle", "income = high")
        assert np.array_equal(asked.dense(), [[1, 1, 0], [0, 1, 1], [0, 0, 1]])
        assert rows_of(income, "prefixes") == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
        assert income.keys([[0, 1]]) == [("1", "2")]

    def test_the_rest_is_in_no_order_and_labels_may_look_like_ranges(self) -> None:
        income = attribute_of("income", self.INCOME | {"rest": "unknown", "missing": ""})
        assert rows_of(income, "prefixes")[-1] == [1, 1, 1, 0, 0]
        income = attribute_of("income", {"labels": ["0..9", "10..19", "20.."], "ordered": True})
        assert rows_of(income, ["10..19", "0..9"]) == [[0, 1, 0], [1, 0, 0]]


def rows_of(attribute: Any, asked: Any) -> list[list[float]]:
    found = queries_on(attribute, asked)
    assert found is not None
    return found.dense().tolist()


def test_what_is_refused_of_an_attribute() -> None:
    pair, years = {"labels": ["x", "y"]}, {"from": "2013-01-01", "to": "2014-01-01"}
    refuse(
        lambda spec: attribute_of("v", spec),
        (pair | {"groups": {"g": {"a": ["x"]}}}, "got none for 'y': its rows would not add up"),
        (pair | {"groups": {"g": {"a": ["x", "y"], "b": ["y"]}}}, "got 'y' in 'a' and 'b'"),
        (pair | {"groups": {"g": {"a": ["x", "z"]}}}, "'g' of groups of 'v': 'a': 'v' must be one of"),
        (pair | {"groups": {"values": {"a": ["x", "y"]}}}, "must have other names than values"),
        (pair | {"groups": {"x": {"a": ["x", "y"]}}}, "must have other names than values"),
        (pair | {"groups": ["x"]}, "groups of 'v' must map"),
        ({"labels": ["x"], "rest": "x"}, "a label of its own"),
        ({"labels": ["x"], "rest": ""}, "a label of its own"),
        ({"size": 2, "rest": "x"}, "size, which the option rest is not for"),
        (years | {"to": "2012-01-01"}, "must be at least 2013-01-01"),
        (years | {"to": 3}, "to of 'v' must be a date"),
        (years | {"from": "2013-13-01"}, "from of 'v' must be a date"),
        (years | {"step": "hour"}, "step of 'v' must be one of"),
        ({"from": 1, "to": 2, "step": "day"}, "step of 'v' must be a number, got 'day'"),
        ({"bins": [0, 2, 1]}, "got 2 before 1"),
        ({"bins": [0, 1], "worth": [1, 2]}, "a number for each of its 1 bins"),
        ({"labels": ["Québec", "Québec"]}, "'Québec' twice"),
    )


LABELS = {"labels": list("abcdefgh"), "groups": {"half": {"first": list("abcd"), "second": list("efgh")}}}


def test_what_is_refused_of_a_table() -> None:
    refuse(
        lambda asked: queries_on(attribute_of("v", LABELS), asked),
        ([["a", "b", "c", "d"], ["a", "b", "c", "e"]], "got 'v = a, b, c or 1 more' twice: name them"),
        ("halfs", "must be one of values, prefixes, ranges, total, sum, half"),
        (["halfs"], "did you mean half?"),
        ("prefixes", "with the option ordered = true"),
        ("sum", "needs integers"),
        ({}, "must list one value or more"),
        ([{"a": "b"}], "must be a mapping of names, or a list of values"),
        ({"x": ["z"]}, "must be one of 'a'"),
    )


def test_uneven_hierarchies_and_accents_composed_or_not() -> None:
    states = {"NY": ["Kings", "Queens"], "DC": ["DC"]}
    place = attribute_of("place", {"labels": ["Kings", "Queens", "DC"], "groups": {"state": states}})
    asked = queries_on(place, ["total", "state", "values"])
    assert asked is not None  # the district is a state and a county: asked once
    assert asked.names == ("any place", "NY", "DC", "Kings", "Queens")
    place = attribute_of("place", {"labels": ["Que\N{COMBINING ACUTE ACCENT}bec", "Ontario"]})
    assert place.code("Québec") == place.code("Que\N{COMBINING ACUTE ACCENT}bec") == 0


def test_python_tables_of_one_label_are_refused() -> None:
    schema = dm.Schema({"place": ["a", "b", "c"]})
    rows = dm.Workload(np.eye(3)[:2], ["one", "one"])
    answer = fast.solve(dm.FitnessForUse(dm.workloads.union(schema, {"places": {"place": rows}}), 1.0))
    with pytest.raises(dm.errors.InvalidInputError, match="'one' twice along"):
        _ = dm.plan_release(answer).published


def test_bins_count_for_what_is_stated() -> None:
    hours = attribute_of("hours", {"bins": [0, 20, 40, 60], "worth": [10, 30, 50], "missing": "?"})
    assert rows_of(hours, "sum") == [[10, 30, 50, 0]]
    with pytest.raises(dm.errors.InvalidInputError, match="with the option worth"):
        queries_on(attribute_of("hours", {"bins": [0, 20]}), "sum")


TOTALS: tuple[dict[str, Any], ...] = ({"total": True, "ask": ["dest"]}, {"ask": []})
"""Tables of a total, with the attributes that it would be asked of."""


def test_what_is_refused_of_a_specification() -> None:
    both = {"ask": ["dest"], "margin": 1, "variance": 1}
    refuse(
        lambda changed: dm.Specification.of(specification(**changed)),
        ({"tables": [{"ask": {"dst": "values"}, "margin": 1}]}, "did you mean dest?"),
        ({"tables": [{"name": "t", "ask": ["dest"]}]}, "table 't' must have one of variance and margin, got neither"),
        ({"tables": [both]}, "table 'dest' must have one of variance and mar"),
        ({"tables": [{"name": "t", "margin": 1}]}, "table 't' must have ask"),
        ({"epsilon": 1}, "states its privacy as rho (zCDP), not epsilon"),
        *(({"tables": [{"margin": 5} | table]}, "total") for table in TOTALS),
        ({"tables": [{"margin": 5, "ask": {}}]}, "total"),
    )


def test_what_is_refused_of_a_record_says_the_option() -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"from": 0, "to": 5}, "9", "the option clamp = true"),
        ({"bins": [0, 5]}, "-1", "the option clamp = true"),
        ({"from": "2013-01-01", "to": "2013-12-31"}, "2014-01-01", "the option clamp = true"),
        ({"from": 0, "to": 5}, "x", "got 'x'"),
        ({"labels": ["x"]}, "N/A", 'missing = "N/A"'),
        ({"labels": ["x"]}, " ", 'missing = ""'),
        ({"labels": ["x"]}, ".", 'missing = "."'),
    ]
    for spec, text, told in cases:
        attribute = attribute_of("v", spec)
        assert attribute.code(text) is None
        assert told in attribute.refused(text), (spec, text)
        assert ("clamp" in attribute.refused(text)) == ("clamp" in told)


def test_files_that_are_no_csv_or_no_toml_are_told_by_what_they_are(tmp_path: Path) -> None:
    asked = dm.workloads.marginals(dm.Schema({"dest": ["ATL"]}), ways=1)
    for content, told in (
        ("dest\nATL\n".encode("utf-16"), "is not UTF-8 text but text in UTF-16"),
        (b"PK\x03\x04\xff\xfe\x00", "an Excel workbook"),
        (b"PAR1\x15\x00", "Parquet: its name must end in .parquet"),
    ):
        (tmp_path / "records").write_bytes(content)
        with pytest.raises(dm.errors.FileFormatError, match=told):
            dm.records.count(tmp_path / "records", asked)
    for line, told in (("rho = 1/10", 'a text, "1/10"'), ("rho = 50,5", "has a point, 50.5")):
        (tmp_path / "plan.toml").write_text(f"title = 'x'\n{line}\n")
        with pytest.raises(dm.errors.FileFormatError, match=told):
            dm.Specification.read(tmp_path / "plan.toml")


class TestTotal:
    TABLES: tuple[dict[str, Any], ...] = ({"total": True, "margin": 5}, {"ask": ["dest"], "variance": 90})

    def test_by_its_name(self, records: Path, tmp_path: Path) -> None:
        released = dm.release(planned(specification(tables=[*self.TABLES])), records)
        assert released.tables == ("total", "dest")
        assert released.estimates("total").shape == () and abs(float(released.estimates("total")) - 5) < 15
        assert "| total | 1 | 5 | 5 | all records |" in released.statement()
        released.write(tmp_path / "out")
        assert (tmp_path / "out" / "1_total.csv").read_text().startswith("estimate,margin,low,high")

    def test_prices_are_of_what_was_stated(self) -> None:
        answer = planned(specification(tables=[*self.TABLES]), tol=1e-9)
        said = {line.split("'")[1]: line for line in dm.prices_in_words(answer)}
        assert said["total"].startswith("1 % more margin of 'total' saves about")
        assert said["dest"].startswith("Loosening the target of 'dest' by 1 % saves about")
        cheaper = planned(specification(tables=[{"total": True, "margin": 5.05}, self.TABLES[1]]), tol=1e-9)
        saved = 100 * (1 - cheaper.objective / answer.objective)
        told = float(said["total"].split("about ")[1].split(" %")[0])
        assert saved == pytest.approx(told, rel=0.1, abs=0.01)


@pytest.mark.parametrize("geometry", ["blocks", "dense"])
def test_an_exact_total_beside_queries_on_several_attributes(geometry: str) -> None:
    # Its noise is next to none beside the others', which rounding hid: the release was refused once it was drawn.
    delays = {"dest": "coast", "delay": ["sum", "total"]}
    asked = dm.Specification.of(
        {
            "neighbours": "replace",
            "attributes": {"dest": DEST, "month": {"from": 1, "to": 6}, "delay": {"from": 0, "to": 3}},
            "tables": [
                {"name": "coasts", "ask": {"dest": ["coast", "values"]}, "margin": 20},
                {"name": "up to", "ask": {"month": "prefixes"}, "margin": 20},
                {"name": "delay", "ask": delays, "margin": 60, "derive": ["mean"]},
                {"total": True, "margin": 0},
            ],
        }
    )
    problem = dm.FitnessForUse(asked.workload, asked.targets, neighbours=asked.protected, geometry=geometry)
    answer = asked.planned(fast.solve(problem))
    release_plan = dm.plan_release(answer)
    assert release_plan.margins("total") == 0 and release_plan.margins("up to")[-1] == 0
    assert release_plan.margins("up to")[:-1].min() > 1
    counts = np.arange(5 * 6 * 4).reshape(5, 6, 4)
    released = release_plan.draw(counts.ravel() if geometry == "dense" else {(0, 1, 2): counts})
    assert released.estimates("total") == counts.sum() == released.estimates("up to")[-1]
    last = "total" if geometry == "blocks" else asked.workload.select([len(asked.workload.names) - 1])
    assert np.all(answer.mechanism.variances(last) < 1e-3 * min(asked.targets.values()))


def test_counts_without_columns_are_told_how_to_come(plan: dm.Solution) -> None:
    for records in ([1, 2, 3], np.ones(4)):
        with pytest.raises(dm.errors.InputTypeError, match="a mapping of attributes' positions to tables of counts"):
            dm.release(plan, records)
    with pytest.raises(dm.errors.InvalidInputError, match=r"solve again with that rho \(--rho …\)"):
        dm.plan_release(plan, rho="1/1000000")


def test_a_query_beyond_the_ends_is_refused_also_where_records_count_at_an_end() -> None:
    """It had been moved to the cell at the end, which counts other records than its name says."""
    ages, year = {"from": 0, "to": 99}, {"from": "2020-01-01", "to": "2020-12-31"}
    cases: list[tuple[dict[str, Any], object, str]] = [
        (ages, "100..200", "a whole number from 0 to 99, got 100..200"),
        (ages, "18..640", "a whole number from 0 to 99, got 18..640"),
        (ages, 120, "a whole number from 0 to 99, got 120"),
        ({"bins": [0, 10, 20]}, 35, "a number from 0 to 20, got 35"),
        (year, "2021-03-01..2021-12-31", "a date from 2020-01-01 to 2020-12-31"),
    ]
    for spec, item, words in cases:
        attribute = attribute_of("a", {**spec, "clamp": True})
        with pytest.raises(dm.errors.InvalidInputError, match=words):
            attribute.chosen(item)
        assert attribute.code("2021-07-01" if spec is year else "1000") == attribute.size - 1
