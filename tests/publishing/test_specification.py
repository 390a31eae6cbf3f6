"""Specifications: hard tables and a privacy to spend, and that what is drawn keeps both."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast
from dualmech.solution import retold

ATTRIBUTES: dict[str, Any] = {"age": {"from": 17, "to": 24}, "sex": {"labels": ["f", "m"]}}


def specified(*tables: dict[str, Any], **others: Any) -> dm.Specification:
    return dm.Specification.of({"attributes": ATTRIBUTES, "tables": list(tables), **others})


AGES = {"name": "ages", "ask": {"age": "prefixes"}, "margin": 12}
SEXES = {"name": "sexes", "ask": ["sex"], "variance": 4.0}


class TestWhatIsAsked:
    def test_without_rho_every_table_is_kept_hard_or_not(self) -> None:
        asked = specified(AGES | {"hard": True}, SEXES)
        problem = asked.problem()
        assert isinstance(problem, dm.FitnessForUse) and asked.rho is None and asked.cost is None
        assert set(asked.caps) == {"ages"} and set(asked.targets) == {"sexes"}
        plain = specified(AGES, SEXES)
        assert plain.caps == {} and problem.same_as(plain.problem())

    def test_with_rho_one_factor_is_on_all_targets(self) -> None:
        found = fast.solve(specified(AGES, SEXES, rho="1/10").problem())
        least = fast.solve(specified(AGES, SEXES).problem())
        low, high = (each / 0.2 for each in least.certificate.interval)
        assert found.certificate.interval[0] <= high and low <= found.certificate.interval[1]

    @given(st.fractions(Fraction(1, 10**6), Fraction(10)))
    def test_the_cost_is_never_above_twice_rho(self, rho: Fraction) -> None:
        asked = specified(AGES, SEXES, rho=str(rho))
        assert asked.cost is not None
        assert Fraction(asked.cost) <= 2 * rho <= Fraction(asked.cost) * (1 + Fraction(1, 2**52))

    def test_margins_are_at_the_level(self) -> None:
        assert specified(AGES, level=0.9).quantile == pytest.approx(1.6449, abs=1e-4)

    @pytest.mark.parametrize(
        ("tables", "others", "told"),
        [
            ([AGES | {"hard": True}], {"rho": "1/2"}, "must not all be hard"),
            ([AGES | {"hard": 1}], {}, "hard must be"),
            ([AGES], {"rho": 0}, "rho must be positive"),
            ([AGES], {"rho": "1/0"}, "rho must be"),
            ([AGES], {"rh": 1}, "did you mean rho"),
            ([AGES], {"neighbours": "add-remove:0"}, "RECORDS, a whole number of at least 1"),
            ([AGES], {"neighbours": "replace:1.5"}, "neighbours must be replace or replace:RECORDS"),
            ([AGES | {"ask": {"age": ["18..400"]}}], {}, "each a whole number from"),
            ([AGES], {"neighbours": "contributions:month:1:2"}, "must name an attribute"),
            ([AGES], {"neighbours": "replace within mont"}, "must name an attribute"),
            ([AGES], {"neighbours": "add-remove within age"}, "replace within ATTRIBUTE"),
            ([AGES | {"hrad": True}], {}, "did you mean hard"),
        ],
    )
    def test_refusals(self, tables: Any, others: Any, told: str) -> None:
        with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=told):
            specified(*tables, **others)

    def test_caps_at_a_privacy_are_no_one_problem(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match=r"crosscheck\.capped"):
            specified(AGES | {"hard": True}, SEXES, rho=1).problem()


@pytest.mark.parametrize(
    ("neighbours", "rho"),
    [("add-remove", "1/2"), ("replace", "3"), ("add-remove:2", "3"), ("contributions:sex:2:2", "1/2")],
)
def test_what_is_drawn_keeps_caps_and_rho(neighbours: str, rho: str) -> None:
    """Which the room for the grid is for: margins of the tables as drawn, and the exact ρ."""
    asked = specified(AGES | {"hard": True}, SEXES, rho=rho, neighbours=neighbours)
    assert asked.cost is not None
    best = crosscheck.capped(asked.workload, asked.targets, asked.caps, asked.cost, asked.neighbours)
    drawn = dm.plan_release(best.answer, rho=asked.rho)
    assert drawn.margins("ages").max() <= 12 and drawn.rho <= Fraction(rho)
    assert drawn.variances("sexes").max() <= best.high * 4.0
    assert 2 * drawn.rho > Fraction(asked.cost) * (1 - Fraction(1, 10**4))


@pytest.mark.parametrize("rho", ["1/2", "3"])
def test_what_is_drawn_at_a_privacy_keeps_it(rho: str, tmp_path: Path) -> None:
    asked = specified(AGES, SEXES, rho=rho)
    answer = fast.solve(asked.problem())
    dm.save(answer, tmp_path / "plan.npz")
    drawn = dm.plan_release(dm.load(tmp_path / "plan.npz"), rho=rho)
    assert drawn.rho <= Fraction(rho)
    factor = answer.certificate.interval[1]
    assert drawn.margins("ages").max() <= 12 * factor**0.5 * (1 + 1e-9)


def test_what_a_specification_lacks_is_named() -> None:
    with pytest.raises(dm.errors.InvalidInputError, match="^a specification needs attributes"):
        dm.Specification.of({})


def test_ranges_of_bins_go_from_edge_to_edge() -> None:
    table = {"ask": {"hours": ["0..30"]}, "margin": 5}
    with pytest.raises(dm.errors.InvalidInputError, match="each an edge of its bins, got 0..30"):
        dm.Specification.of({"attributes": {"hours": {"bins": [0, 20, 40]}}, "tables": [table]})


def test_two_records_of_a_person_hide_one_that_is_replaced() -> None:
    """As is said where the tables have too little symmetry for `replace`."""
    ages = dm.workloads.prefix(300)
    asked = dm.workloads.union({"age": 300, "sex": 2}, {"ages by sex": {"age": ages, "sex": None}})
    with pytest.raises(dm.errors.GeometryError, match="add-remove:2 protects a replaced one too"):
        dm.FitnessForUse(asked, 9.0, neighbours="replace", geometry="blocks")
    noise = fast.solve(dm.FitnessForUse(dm.workloads.prefix(5), 9.0, neighbours="add-remove:2")).mechanism
    replaced = dm.LinearGaussianMechanism(
        noise.query_matrix, noise.covariance(), neighbours=dm.neighbours.replace_one(5)
    )
    assert replaced.squared_privacy_cost <= noise.squared_privacy_cost


TOTAL = {"name": "all", "ask": {"sex": "total"}, "margin": 0}
SOME = {"name": "some", "ask": {"age": ["17..20", "17..24"], "sex": "values"}, "variance": 9.0}


def counted(generator: np.random.Generator, asked: dm.Specification, records: int) -> Any:
    codes = np.stack([generator.integers(0, size, records) for size in asked.schema.shape], axis=1)
    return dm.records.count(codes, dm.workloads.marginals([*asked.schema.shape], ways=2))


class TestWhatNoNeighbourChanges:
    @pytest.mark.parametrize("others", [{}, {"rho": "1/20"}, {"neighbours": "replace:2"}], ids=str)
    @pytest.mark.parametrize("tables", [(AGES, SEXES, TOTAL), (SEXES, TOTAL), (AGES, SOME, TOTAL)], ids=len)
    def test_is_published_as_whole_numbers_at_no_cost(
        self, tables: Any, others: dict[str, Any], tmp_path: Path
    ) -> None:
        asked = specified(*tables, **{"neighbours": "replace"} | others)
        answer = asked.planned(fast.solve(asked.problem()))
        with_noise = specified(*tables[:-1], **{"neighbours": "replace"} | others)
        alone = fast.solve(with_noise.problem()).certificate.interval
        low, high = answer.certificate.interval
        assert low <= alone[1] and alone[0] <= high
        planned = dm.plan_release(answer)
        assert not planned.margins("all").any() and not planned.margins("all", simultaneous=True).any()
        assert any("all: exact (1 row, asked 0)" in line for line in planned.lines())
        for records in (1, 3, 12_345):
            released = dm.release(answer, counted(np.random.default_rng(records), asked, records))
            assert [*released.rows("all")[1]] == [("any sex", records, 0.0, records, records)]
            for name in released.tables:
                known = released.unmoved(name)
                assert np.all(released.estimates(name)[known] == records)
                assert np.array_equal(known, released.variances(name) == 0)
            assert released.unmoved(released.tables[0]).sum() == (tables[0] is AGES)
            assert planned.rho >= released.drawn.squared_privacy_cost / 2
        folder = tmp_path / "tables"
        released.write(folder)
        (path,) = folder.glob("*all.csv")
        assert path.read_text().splitlines()[1] == "any sex,12345,0,12345,12345"
        assert "| all | 1 | exact | 0 |" in (folder / "STATEMENT.md").read_text()

    @pytest.mark.parametrize("geometry", ["blocks", "dense"])
    def test_counts_of_a_fixed_attribute_are_the_truth(self, geometry: Any) -> None:
        """Of its values and their sums, alone or beside a total; all else has noise, and adds up to them."""
        tables = [AGES | {"ask": {"age": "prefixes", "sex": "values"}}, SEXES | {"variance": 0}, SOME]
        asked = specified(*tables, neighbours="replace:2 within sex")
        stated = asked.problem()
        numbers = stated.per_query() if geometry == "dense" else stated.targets
        problem = dm.FitnessForUse(stated.workload, numbers, neighbours="replace:2 within sex", geometry=geometry)
        planned = dm.plan_release(fast.solve(problem, tol=1e-4))
        assert planned.neighbours == "up to 2 records of one person have other values, but the same 'sex'"
        assert planned.relation == "replace:2 within sex" and planned.rho > 0
        tables = counted(np.random.default_rng(7), asked, 5000)
        both = dm.records.count(
            np.repeat(np.argwhere(tables[0, 1] >= 0), tables[0, 1].ravel().astype(int), axis=0),
            dm.workloads.marginals([*asked.schema.shape], ways=2),
        )
        counts = both if geometry == "blocks" else both[0, 1].ravel()
        released, sexes = planned.draw(counts), both[0, 1].sum(axis=0)
        assert np.array_equal(released.estimates("sexes"), sexes) and not released.margins("sexes").any()
        running = released.estimates(released.tables[0])
        assert np.array_equal(running[-1], sexes) and released.unmoved(released.tables[0])[:-1].sum() == 0
        assert released.unmoved("some").tolist() == [[False] * 2, [True] * 2]  # ages 17 to 24 are all there are

    def test_a_matrix_publishes_it_as_well(self) -> None:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(5), neighbours="replace", geometry="dense"))
        released = dm.release(answer, [3, 0, 1, 7, 2])
        (table,) = released.tables
        assert released.unmoved(table).tolist() == [False] * 4 + [True]
        assert released.estimates(table)[-1] == 13 and released.margins(table)[-1] == 0

    @pytest.mark.parametrize(
        ("tables", "neighbours", "told"),
        [
            ((SEXES, TOTAL), "add-remove", "margin and variance of 'all' must be positive.*add or remove"),
            ((SEXES, TOTAL), "contributions:age:1:2", "'all' must be positive"),
            ((AGES | {"margin": 0}, SEXES), "replace", "'ages' must be positive.*are published exactly with"),
            ((AGES, SEXES | {"variance": 0.0}), "replace", "'sexes' must be positive"),
            ((AGES | {"margin": -1}, SEXES), "replace", "margin of 'ages' must be"),
        ],
    )
    def test_of_anything_else_margin_0_is_refused_by_name(self, tables: Any, neighbours: str, told: str) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match=told):
            specified(*tables, neighbours=neighbours)

    def test_hard_limits_and_files_keep_it(self, tmp_path: Path) -> None:
        asked = specified(AGES | {"hard": True}, SEXES, TOTAL | {"hard": True}, neighbours="replace", rho="1/4")
        assert asked.exact == {"all"} and set(asked.caps) == {"ages"} and set(asked.targets) == {"sexes", "all"}
        assert dm.Specification.of_json(asked.to_json()).exact == {"all"}
        with pytest.raises(dm.errors.InvalidInputError, match="must not all be hard"):
            specified(AGES | {"hard": True}, TOTAL, neighbours="replace", rho="1/4")


class TestOneNumber:
    def test_a_plan_says_the_rho_that_it_keeps(self, tmp_path: Path) -> None:
        """Whatever a machine's rounding makes of the noise: a change of some 1e-9 changes no number of it."""
        asked = specified(AGES, SEXES)
        answer = asked.planned(fast.solve(asked.problem()))
        dm.save(answer, tmp_path / "plan.npz")
        assert answer.metadata
        kept = Fraction(str(answer.metadata["rho"]))
        told = dm.plan_release(answer).lines()
        for factor in (1 - 1e-9, 1.0, 1 + 1e-9):
            moved = retold(dm.load(tmp_path / "plan.npz"), primal=answer.primal.scaled(factor))
            planned = dm.plan_release(moved)
            assert planned.rho == kept and planned.lines() == told
            assert kept * Fraction(99999, 100000) < planned.drawn.squared_privacy_cost / 2 < kept

    def test_what_was_to_be_spent_is_said(self) -> None:
        asked = specified(AGES, SEXES, rho="1/10")
        assert dm.plan_release(asked.planned(fast.solve(asked.problem()))).rho == Fraction(1, 10)
