"""Specifications: hard tables and a privacy to spend, and that what is drawn keeps both."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast

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
            ([AGES | {"hrad": True}], {}, "did you mean hard"),
        ],
    )
    def test_refusals(self, tables: Any, others: Any, told: str) -> None:
        with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=told):
            specified(*tables, **others)

    def test_caps_at_a_privacy_are_no_one_problem(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match=r"crosscheck\.capped"):
            specified(AGES | {"hard": True}, SEXES, rho=1).problem()


@pytest.mark.parametrize("neighbours", ["add-remove", "replace", "add-remove:2", "contributions:sex:2:2"])
@pytest.mark.parametrize("rho", ["1/2", "3"])
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
    answer.save(tmp_path / "plan.npz")
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
