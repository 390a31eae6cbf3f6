"""Caps on some queries and one factor on the others: against the program stated at once, and on every geometry."""

from __future__ import annotations

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


@pytest.mark.parametrize("sums", [1.5, 3.0, 20.0])
def test_the_program_stated_at_once_has_the_same_optimum(sums: float) -> None:
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


def test_refusals_name_what_is_wrong() -> None:
    product: Any = dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.prefix(3))
    for asked, targets, caps, cost, told in (
        (ASKED, {"cells": 1.0}, {"sums": 1e-3}, 1.5, "the caps alone take"),
        (ASKED, {"cells": 1.0}, {"cells": 1.0}, 1.5, "nothing both"),
        (ASKED, {}, {"cells": 1.0}, 1.5, "each name something"),
        (ASKED, {"cells": 1.0}, {"sum": 1.0}, 1.5, "targets"),
        (ASKED, {"cells": 1.0}, {"sums": -1.0}, 1.5, "positive"),
        (ASKED, {"cells": 1.0}, {"sums": 1.0}, 0.0, "cost"),
        (product, {"prefixes": 1.0}, {"sums": 1.0}, 1.0, "target"),
    ):
        with pytest.raises(dm.DualmechError, match=told):
            capped(asked, targets, caps, cost)
