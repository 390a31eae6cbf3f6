"""Shares, means and medians: what they are, where they hold, and what they are refused for."""

import csv
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from releases import planned

import dualmech as dm
from dualmech import fast
from dualmech.publishing.derived import farthest, fieller

ATTRIBUTES: dict[str, Any] = {"sex": ["female", "male"], "hours": {"from": 0, "to": 9}}
TABLES: list[dict[str, Any]] = [
    {"name": "sexes", "ask": ["sex"], "variance": 100, "derive": ["share"]},
    {
        "name": "worked",
        "ask": {"sex": "values", "hours": ["sum", "total"]},
        "variance": 900,
        "derive": ["mean", "share"],
    },
    {
        "name": "up to",
        "ask": {"hours": "prefixes", "sex": "values"},
        "variance": 100,
        "derive": ["median", "quantile 0.9"],
    },
]
COUNTS = np.array([[30, 20, 50, 80, 60, 40, 20, 10, 5, 5], [5, 10, 10, 30, 60, 90, 110, 60, 20, 5]])


def solved(geometry: str = "blocks") -> dm.Solution:
    asked = dm.Specification.of({"attributes": ATTRIBUTES, "tables": TABLES})
    problem = asked.problem()
    if geometry != problem.geometry.name:
        problem = dm.FitnessForUse(asked.workload, asked.targets, geometry=geometry)
    return asked.planned(fast.solve(problem))


def truths() -> dict[tuple[str, str], list[Any]]:
    hours, people = np.arange(10), COUNTS.sum(axis=1)
    medians, tenths = (
        [str(int(np.argmax(np.cumsum(own) >= share * own.sum()))) for own in COUNTS] for share in (0.5, 0.9)
    )
    return {
        ("sexes", "share"): (people / people.sum()).tolist(),
        ("worked", "mean"): (COUNTS @ hours / people).tolist(),
        ("up to", "median"): medians,
        ("up to", "quantile 0.9"): tenths,
    }


def data(answer: dm.Solution | None, counts: Any = COUNTS) -> Any:
    assert answer is not None
    dense = answer.problem.geometry.name == "dense"
    return counts.ravel() if dense else {tuple(range(counts.ndim)): counts}


@pytest.mark.parametrize("geometry", ["blocks", "dense"])
@pytest.mark.parametrize("draws", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_intervals_hold_at_their_level(geometry: str, draws: int) -> None:
    plan = dm.plan_release(solved(geometry))
    inside: dict[tuple[str, str], list[int]] = {}
    for _ in range(draws):
        released = plan.draw(data(plan.answer))
        for (table, kind), true in truths().items():
            for row, value in zip(released.derived(table, kind, level=0.9)[1], true, strict=True):
                if table == "up to":
                    low, high = int(row[-2]), int(row[-1])
                    inside.setdefault((table, kind), []).append(low <= int(value) <= high)
                else:
                    inside.setdefault((table, kind), []).append(row[-2] <= value <= row[-1])
    for (table, _), held in inside.items():
        share, count = float(np.mean(held)), len(held)
        # Rows of one draw are dependent; six deviations of draws that count once.
        allowed = 6 * math.sqrt(0.9 * 0.1 / draws)
        assert share >= 0.9 - allowed and count == 2 * draws
        assert share <= 0.9 + allowed or table == "up to"  # whose band is wider than needed


def test_numbers_follow_from_the_tables() -> None:
    answer = solved()
    released = dm.release(answer, data(answer))
    worked = released.estimates("worked")
    heading, rows = released.derived("worked", "mean")
    assert heading == ["sex", "mean", "low", "high"]
    assert [row[1] for row in rows] == pytest.approx((worked[:, 0] / worked[:, 1]).tolist())
    sexes = released.estimates("sexes")
    heading, rows = released.derived("sexes", "share")
    assert heading == ["sex", "share", "low", "high"]
    assert [row[1] for row in rows] == pytest.approx((sexes / sexes.sum()).tolist())
    heading, rows = released.derived("worked", "share")
    assert heading == ["sex", "hours", "share", "low", "high"]
    assert [row[:2] for row in rows][:2] == [("female", "any hours"), ("male", "any hours")]
    assert [row[2:] for row in rows][1] == pytest.approx((1.0, 1.0, 1.0))
    heading, rows = released.derived("up to", "median")
    assert heading == ["sex", "median", "low", "high"] and [row[0] for row in rows] == ["female", "male"]


def test_both_geometries_say_the_same() -> None:
    widths = []
    for geometry in ("blocks", "dense"):
        plan = dm.plan_release(solved(geometry))
        found = [plan.draw(data(plan.answer)).derived("worked", "mean")[1][0] for _ in range(3)]
        widths.append(np.mean([row[-1] - row[-2] for row in found]))
    assert widths[0] == pytest.approx(widths[1], rel=0.2)


def test_files_and_statement(tmp_path: Path) -> None:
    answer = solved()
    released = dm.release(answer, data(answer))
    names = released.write(tmp_path / "out")
    assert "2_worked_mean.csv" in names and {path.name for path in (tmp_path / "out").iterdir()} == {*names}
    with open(tmp_path / "out" / "2_worked_mean.csv", newline="") as handle:
        rows = [*csv.reader(handle)]
    assert rows[0] == ["sex", "mean", "low", "high"] and len(rows) == 3
    assert float(rows[1][2]) < float(rows[1][1]) < float(rows[1][3])
    listed = (tmp_path / "out" / "tables.csv").read_text()
    assert "2_worked_mean.csv,worked: mean,2," in listed
    page = (tmp_path / "out" / "STATEMENT.md").read_text()
    assert "the mean of 'worked'" in page and "Fieller" in page


def test_a_denominator_that_may_be_nothing_leaves_the_interval_open() -> None:
    one = np.ones(1)
    below, above = fieller(one, 0 * one, [one, one, 2 * one], one, 1.96)
    assert below[0] == -np.inf and above[0] == np.inf
    answer = solved()
    released = dm.release(answer, {(0, 1): np.zeros((2, 10), dtype=int)})
    _, rows = released.derived("worked", "mean", level=1 - 1e-9)
    assert all(row[-1] == np.inf for row in rows)


@pytest.mark.parametrize("size", [20, 10**9, 10**15])
def test_fieller_by_its_definition(size: int) -> None:
    """Both ends solve the quadratic equation, which is evaluated in fractions."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        root = rng.normal(size=(2, 2)) * [[1.0], [2.0 ** rng.integers(-9, 9)]]
        noise = root @ root.T
        weight = 2.0 ** np.round(np.log2(noise[0, 0] / noise[1, 1]) / 2)
        both = noise[0, 0] + 2 * weight * noise[0, 1] + weight**2 * noise[1, 1]
        first, second = np.round(rng.normal(size=(2, 1)) * size)
        variances = [np.array([each]) for each in (noise[0, 0], noise[1, 1], both)]
        offs = np.concatenate(fieller(first, second, variances, np.array([weight]), 1.5))
        assert offs[0] <= 0 <= offs[1]
        total = Fraction(first[0] + second[0])
        for off in offs[np.isfinite(offs)]:
            end = Fraction(first[0]) / total + Fraction(off)
            sides = np.array([float(1 - end), -float(end)])
            assert float((total * Fraction(off)) ** 2) == pytest.approx(
                1.5**2 * sides @ noise @ sides, rel=1e-4, abs=float(1e-4 * sides**2 @ np.diagonal(noise))
            )
        assert np.all(np.isfinite(offs)) or size == 20


@pytest.mark.parametrize(("geometry", "records"), [("blocks", 10**8), ("dense", 10**9), ("blocks", 10**14)])
def test_intervals_of_many_records_hold_at_their_level(geometry: str, records: int) -> None:
    """The discriminant of a quadratic equation, as a difference of squares, has no correct digit there."""
    tables = [{"name": "t", "ask": ["sex"], "variance": 4, "derive": ["share"]}]
    asked = dm.Specification.of({"attributes": {"sex": ["f", "m"]}, "tables": tables})
    problem = dm.FitnessForUse(asked.workload, asked.targets, geometry=geometry)
    plan = dm.plan_release(asked.planned(fast.solve(problem)))
    counts = np.array([records * 3 // 10, records - records * 3 // 10])
    true, inside, draws = Fraction(int(counts[0]), records), 0, 60
    for _ in range(draws):
        row = plan.draw(data(plan.answer, counts)).derived("t", "share", level=0.9)[1][0]
        inside += Fraction(row[-2]) <= true <= Fraction(row[-1])
        assert row[-2] < row[-1]
    assert inside / draws >= 0.9 - 6 * math.sqrt(0.9 * 0.1 / draws)


def test_what_is_refused() -> None:
    for changed, told in (
        (
            {"ask": {"hours": "prefixes"}, "derive": ["mean"]},
            "the mean needs a table that asks the sum and the total of one attribute",
        ),
        ({"ask": {"hours": "sum"}, "derive": ["mean"]}, "the mean needs a table"),
        ({"ask": {"hours": "values"}, "derive": ["median"]}, "the median needs a table that asks the prefixes"),
        ({"ask": {"hours": ["0..3", "4..5"]}, "derive": ["share"]}, "the share needs a table that asks the values"),
        ({"ask": ["hours"], "derive": ["mode"]}, "derive must be one of share, mean, median"),
        ({"ask": ["hours"], "derive": "share"}, "derive"),
        (TABLES[0] | {"expected": 0}, "expected must be positive"),
        (TABLES[0] | {"expected": 9, "derive": []}, "expected is for"),
        (TABLES[2] | {"derive": ["quantile 1.5"]}, "must lie strictly"),
        (TABLES[2] | {"derive": ["quantile x"]}, "must be"),
        (TABLES[2] | {"derive": ["quantil 0.9"]}, "derive must be one of"),
    ):
        table = changed if "name" in changed else {"name": "t", "margin": 10, **changed}
        with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError)) as caught:
            dm.Specification.of({"attributes": ATTRIBUTES, "tables": [table]})
        assert told in str(caught.value), changed


def test_missing_values_are_in_no_mean_and_the_median_of_a_stream() -> None:
    table: dict[str, Any] = {"ask": {"hours": ["sum", "1..3", "total"]}, "variance": 1e-2, "derive": ["mean"]}
    attributes: dict[str, Any] = {"hours": {"from": 1, "to": 3, "missing": ""}}
    answer = planned({"attributes": attributes, "tables": [table | {"name": "t"}]})
    released = dm.release(answer, data(answer, np.array([100, 0, 100, 700])))
    assert released.derived("t", "mean")[1][0][0] == pytest.approx(2.0, abs=0.05)
    table = {"name": "t", "ask": {"day": "prefixes"}, "variance": 25, "derive": ["median"]}
    released = dm.release(
        planned({"attributes": {"day": {"from": 1, "to": 200}}, "tables": [table]}), np.full(200, 1000)
    )
    ((median, low, high),) = released.derived("t", "median")[1]
    assert int(low) <= 100 <= int(high) and int(low) <= int(median) <= int(high) and int(high) - int(low) < 5


def test_shares_have_the_names_of_the_table_and_totals_have_none() -> None:
    attributes = {"dest": {"labels": ["a", "b", "c"], "groups": {"half": {"one": ["a"], "two": ["b", "c"]}}}}
    table = {"name": "t", "ask": {"dest": ["half", "values", "total"]}, "variance": 4}
    answer = planned({"attributes": attributes, "tables": [table, {"total": True, "variance": 4}]})
    released = dm.release(answer, data(answer, np.array([500, 300, 200])))
    _, rows = released.derived("t", "share")
    assert [row[0] for row in rows] == ["one", "two", "a", "b", "c", "any dest"]
    assert [row[1] for row in rows] == pytest.approx([0.5, 0.5, 0.5, 0.3, 0.2, 1.0], abs=0.02)
    with pytest.raises(dm.errors.InvalidInputError, match="has no attribute"):
        released.derived("total", "share")


def test_noise_that_cannot_tell_them_is_named() -> None:
    ages = dm.workloads.query_tables(dm.Domain({"a": 4, "b": 3}), {"a": dm.workloads.prefix(4)}, ways=(1, 2))
    split = fast.solve(dm.FitnessForUse(ages, 1.0, geometry="split"), tol=1e-4)
    tables = {(0,): np.full(4, 3), (1,): np.full(3, 4), (0, 1): np.ones((4, 3), dtype=int)}
    with pytest.raises(dm.errors.InvalidInputError, match="a SplitMechanism does not answer combinations"):
        dm.release(split, tables).derived("a", "median")
    plain = dm.release(fast.solve(dm.FitnessForUse(dm.workloads.prefix(4), 1.0)), np.ones(4, dtype=int))
    with pytest.raises(dm.errors.InvalidInputError, match="'prefixes' has no attributes"):
        plain.derived("prefixes", "share")


@pytest.mark.parametrize("geometry", ["blocks", "dense"])
def test_no_interval_goes_further_than_the_plan_says(geometry: str) -> None:
    """Of values that a mean or a share can have, where the denominator comes out as expected, or larger."""
    plan = dm.plan_release(solved(geometry))
    released, checked = plan.draw(data(plan.answer)), 0
    for table, kind, ends in (("worked", "mean", (0, 9)), ("worked", "share", (0, 1)), ("sexes", "share", (0, 1))):
        for count in (100, 250, 500):
            most = farthest(plan, table, kind, count, level=0.9)
            assert most == pytest.approx(farthest(plan, table, kind, 1, level=0.9) / count)
            under = released.estimates("worked")[:, 1] if kind == "mean" else released.estimates("sexes").sum()
            for (*_, quotient, low, high), own in zip(
                released.derived(table, kind, level=0.9)[1], np.broadcast_to(under, 2), strict=False
            ):
                if table == "sexes" or kind == "mean":
                    inside = [min(max(end, ends[0]), ends[1]) for end in (low, high)]
                    assert own < count or max(abs(end - quotient) for end in inside) <= most * (1 + 1e-9)
                    checked += own >= count
    assert checked


def test_what_is_expected_is_said_and_marked(tmp_path: Path) -> None:
    tables = [TABLES[0] | {"expected": 600}, TABLES[1] | {"expected": 300}, TABLES[2]]
    answer = planned({"attributes": ATTRIBUTES, "tables": tables})
    plan = dm.plan_release(answer)
    (said,) = (line for line in plan.lines() if "the mean is within" in line)
    most = farthest(plan, "worked", "mean", 300)
    assert said.strip().startswith(f"the mean is within {most:.4g} for the expected 300 records or more")
    plan.draw(data(answer)).write(tmp_path / "tables")
    text = (tmp_path / "tables" / "STATEMENT.md").read_text()
    narrow = plan.draw(data(answer)).statement(level=0.5)
    assert f"the mean is within {farthest(plan, 'worked', 'mean', 300, 0.5):.4g} for" in narrow and most > 0
    assert f"- worked: {said.strip()}" in text and "- sexes: the share is within" in text
    assert (tmp_path / "tables" / "3_up_to_quantile_0.9.csv").exists()
