"""Caps on some queries and one factor on the others: against the program stated at once, and on every geometry."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dualmech as dm
from dualmech.crosscheck import capped

ASKED = dm.Workload(np.vstack([np.tril(np.ones((4, 4))), np.eye(4)]), groups=["sums"] * 4 + ["cells"] * 4)
TABLES = dm.workloads.marginals({"hour": 6, "day": 3}, ways=(1, 2))


def stated_at_once(sums: float, cost: float) -> float:
    """Minimise the factor on the cells' variances with caps on the sums, as one convex program."""
    noise, factor = cp.Variable((4, 4), PSD=True), cp.Variable()
    rows = ASKED.dense()
    limits = [sums] * 4 + [factor] * 4
    constraints = [row @ noise @ row <= limit for row, limit in zip(rows, limits, strict=True)]
    constraints += [cp.matrix_frac(cell, noise) <= cost for cell in np.eye(4)]
    program = cp.Problem(cp.Minimize(factor), constraints)
    program.solve(solver="CLARABEL")
    return float(program.value)


def test_the_program_stated_at_once_has_the_same_optimum() -> None:
    for sums in (1.5, 3.0, 20.0):
        found = capped(ASKED, {"cells": 1.0}, {"sums": sums}, cost=1.6)
        assert found.low <= found.high and found.gap < 1e-5
        assert stated_at_once(sums, 1.6) == pytest.approx(found.high, rel=1e-4)
        variances = found.mechanism.variances(ASKED)
        assert np.all(variances[:4] <= sums * (1 + 1e-9)) and np.all(variances[4:] <= found.high * (1 + 1e-9))
        assert found.mechanism.squared_privacy_cost <= 1.6 * (1 + 1e-9)
        assert found.below.certificate.interval[0] >= 1.6


def test_layers_agree_and_neighbours_count() -> None:
    fast = capped(ASKED, {"cells": 1.0}, {"sums": 2.0}, cost=1.5)
    slow = capped(ASKED, {"cells": 1.0}, {"sums": 2.0}, cost=1.5, layer="reference", tol=1e-4)
    assert fast.low <= slow.high and slow.low <= fast.high and slow.gap < 1e-3
    replaced = capped(ASKED, {"cells": 1.0}, {"sums": 2.0}, cost=1.5, neighbours="replace")
    assert replaced.low > fast.high and "factor" in repr(replaced)


@pytest.mark.parametrize("cap", [1e-3, 1.0, 1e6])
def test_tables_by_name_whatever_the_scale(cap: float) -> None:
    found = capped(TABLES, {"day": 1.0, "hour x day": 3.0}, {"hour": cap}, cost=8 / min(cap, 1.0))
    assert found.gap < 1e-5 and found.answer.problem.geometry.name == "blocks"
    assert found.mechanism.variance(["hour"]) <= cap * (1 + 1e-9)
    assert found.mechanism.variance(["day"]) <= found.high * (1 + 1e-9)


SPLIT = dm.workloads.query_tables({"a": 3, "b": 2}, {"a": dm.workloads.prefix(3), "b": dm.workloads.prefix(2)}, ways=1)


@pytest.mark.parametrize(
    ("workload", "geometry", "neighbours"),
    [
        (SPLIT, "blocks", None),
        (SPLIT, "dense", "replace"),
        (SPLIT, "blocks", "add-remove:2"),
        (dm.workloads.prefix(5), "stream", None),
        (dm.workloads.prefix(5), "dense", dm.neighbours.contributions(5, [0, 0, 1, 1, 1], 1, 2)),
        (dm.workloads.union({"a": 3}, {"r": {"a": dm.workloads.circular_ranges(3)}, "c": ["a"]}), "blocks", None),
        (dm.workloads.kron(dm.workloads.prefix(2), dm.workloads.prefix(3)), "dense", None),
    ],
)
def test_every_geometry_keeps_caps_and_cost(workload: Any, geometry: str, neighbours: Any) -> None:
    name = workload.names[0] if geometry in ("dense", "stream") else workload.tabular().table_names[0]
    free = dm.fast.solve(dm.FitnessForUse(workload, neighbours=neighbours, geometry=geometry)).objective
    cost = 1.5 * free
    found = capped(workload, 1.0, {name: 0.9}, cost, neighbours, geometry=geometry)
    assert found.gap < 1e-5 and found.answer.problem.geometry.name == geometry
    assert found.mechanism.squared_privacy_cost <= cost * (1 + 1e-9)
    problem = found.answer.problem
    assert 0.9 in problem.targets and np.all(np.isin(problem.targets, (0.9, found.high)))
    ratios = found.mechanism.as_targets(workload) / problem.geometry.per_query(workload, problem.targets)
    assert np.max(ratios) <= 1 + 1e-9


@pytest.mark.slow
def test_split_noise_has_an_interval_about_as_wide_as_its_own() -> None:
    exact = capped(SPLIT, {"a": 1.0}, {"b": 2.0}, cost=3.0, geometry="blocks")
    split = capped(SPLIT, {"a": 1.0}, {"b": 2.0}, cost=3.0, geometry="split")
    own = split.below.gap
    assert split.low <= exact.high and exact.low <= split.high and split.gap < 4 * own + 1e-6


@pytest.mark.parametrize("cap", [0.8, 3.0])
def test_caps_that_follow_one_factor_of_a_product(cap: float) -> None:
    """Certificates multiply: what is left of the cost for one factor is the cost over the other's."""
    one, two, cost = dm.workloads.prefix(3), dm.workloads.prefix(2), 4.0
    other = dm.fast.solve(dm.FitnessForUse(two))
    own = capped(one, 1.0, {"cell 0": cap}, cost / other.objective)
    product = dm.workloads.kron(one, two)
    held = {name: cap for name in product.names if name.startswith("cell 0 &")}
    whole = capped(product, 1.0, held, cost, geometry="dense")
    assert own.low <= whole.high * (1 + 1e-5) and whole.low <= own.high * (1 + 1e-5)
    mechanism = dm.ProductMechanism([own.mechanism, other.mechanism])
    assert mechanism.squared_privacy_cost <= cost * (1 + 1e-6)


def test_a_cap_holds_for_all_that_it_names() -> None:
    with pytest.raises(dm.errors.InvalidInputError, match="name some of these queries"):
        capped(TABLES, {"hour x day": 1.0, 1: 1.0}, {2: 4.0}, cost=5.0)
    with pytest.raises(dm.errors.InvalidInputError, match="name some of these queries"):
        capped(dm.workloads.prefix(3), {"cell 0": 1.0}, {"prefixes": 1.0}, cost=5.0)
    for caps in ({1: 1.0, 2: 1.0}, {"hour": 1.0, "day": 1.0, "hour x day": 1.0}):
        with pytest.raises(dm.errors.InvalidInputError, match="targets"):
            capped(TABLES, 1.0, caps, cost=50.0)


def test_numbers_that_are_even_within_tables_by_chance() -> None:
    """Caps on queries of a table whose targets are the same number, and the other way round."""
    first = TABLES.names[0]
    by_name = {name: 10.0 for name in TABLES.names if name != first}
    even = capped(TABLES, by_name, {first: 10.0}, cost=0.9)
    odd = capped(TABLES, by_name, {first: 10.000001}, cost=0.9)
    assert even.high == pytest.approx(odd.high, rel=1e-4) and even.answer.problem.geometry.name == "dense"


def test_next_to_what_the_caps_alone_take_is_refused_as_well() -> None:
    """There the lines are flat, and the next one may cross anywhere: the factor has no end that numbers hold."""
    people = {"age": 6, "hours": 3, "sex": 2}
    asked = dm.workloads.union(people, {"ages": {"age": dm.workloads.prefix(6)}, "by sex": ["hours", "sex"]})
    alone = dm.fast.solve(dm.FitnessForUse(asked, {"ages": 1e12, "by sex": 2.3})).objective
    for room in (1 - 1e-3, 1 - 1e-8):
        with pytest.raises(dm.errors.InvalidInputError, match=r"rho must be more than 0\.217392: the caps alone"):
            capped(asked, {"ages": 234.0}, {"by sex": 2.3}, alone * room)


def test_refusals_name_what_is_wrong() -> None:
    product: Any = dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.prefix(3))
    for asked, targets, caps, cost, told in (
        (ASKED, {"cells": 1.0}, {"sums": 1e-3}, 1.5, "the caps alone cost"),
        (ASKED, {"cells": 1.0}, {"cells": 1.0}, 1.5, "none in common"),
        (ASKED, {}, {"cells": 1.0}, 1.5, "both have names"),
        (ASKED, {"cells": 1.0}, {"sum": 1.0}, 1.5, "targets"),
        (ASKED, {"cells": 1.0}, {"sums": -1.0}, 1.5, "positive"),
        (ASKED, {"cells": 1.0}, {"sums": 1.0}, 0.0, "cost"),
        (product, {"prefixes": 1.0}, {"sums": 1.0}, 1.0, "target"),
    ):
        with pytest.raises(dm.errors.DualmechError, match=told):
            capped(asked, targets, caps, cost)
