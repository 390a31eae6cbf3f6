"""A common mechanism is released first, then the residual of the chosen one: together they are the chosen one."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast

pytest.importorskip("opendp", reason="needs OpenDP, of the extra release")

PEOPLE = dm.Schema({"age": range(20, 32), "sex": ["female", "male"], "region": ["north", "east", "south"]})
FOURS = dm.Workload(np.kron(np.eye(3), np.ones(4)))
ASKED = [
    dm.workloads.union(PEOPLE, {"ages": {"age": dm.workloads.prefix(12)}, "by sex": ["age", "sex"]}),
    dm.workloads.union(PEOPLE, {"groups": {"age": FOURS, "region": None}}),
]
COUNTS = dm.records.count(
    np.random.default_rng(0).integers(0, [12, 2, 3], (300, 3)), dm.workloads.marginals([12, 2, 3], ways=3)
)
GRID = 3e-6  # of costs and variances, relative: what the grids of the two releases and of the whole take together


INSENSITIVE = 1e-4
"""Relative, of variances with replaced records: the noise on the total, which costs nothing, is tiny and arbitrary."""


def assert_whole(both: dm.Publication, mechanism: Any, workload: dm.Workload, rtol: float = GRID) -> None:
    """A combination has the cost and the variances of a mechanism, up to the grid, and no greater cost."""
    whole = dm.plan_release(mechanism, workload=workload)
    assert 1 - GRID <= float(both.rho) / mechanism.rho <= 1
    for table in whole.tables:
        np.testing.assert_allclose(both.variances(table), whole.variances(table), rtol=rtol)


@pytest.mark.parametrize("neighbours", [None, "replace", "add-remove:2"])
def test_tables(neighbours: str | None, tmp_path: Path) -> None:
    mechanisms = [fast.solve(dm.FitnessForUse(asked, 25.0, neighbours=neighbours)).mechanism for asked in ASKED]
    common = dm.release(fast.solve(dm.CommonMechanism(mechanisms)), COUNTS)
    assert common.tables == ("age",) and "CommonMechanism" in common.statement()
    dm.save_publication(common, tmp_path / "common.npz")
    kept = dm.load_publication(tmp_path / "common.npz")
    for mechanism, asked in zip(mechanisms, ASKED, strict=True):
        left = dm.residual(mechanism, common.drawn.mechanism)
        chosen = dm.release(left, COUNTS, workload=asked)
        both = dm.combine(common, chosen)
        assert_whole(both, mechanism, asked, INSENSITIVE if neighbours == "replace" else GRID)
        assert both.tables == ("age", *asked.table_names) and both.rho <= common.rho + chosen.rho
        assert "largest ρ over all choices" in both.statement()
        again = dm.combine(kept, chosen)  # a file has the largest of the costs alone
        assert again.rho == common.rho + chosen.rho
        np.testing.assert_allclose(again.estimates("age"), both.estimates("age"))
        dm.save_publication(both, tmp_path / "both.npz")
        assert dm.load_publication(tmp_path / "both.npz").rho == both.rho


@pytest.mark.parametrize("branch", [0, 1])
def test_cells_whose_common_part_has_no_whole_rows(branch: int) -> None:
    rng = np.random.default_rng(branch)
    asked = [dm.workloads.prefix(8), dm.workloads.all_range(8)]
    mechanisms = [fast.solve(dm.FitnessForUse(each, rng.uniform(50, 200, len(each)))).mechanism for each in asked]
    shared = fast.solve(dm.CommonMechanism(mechanisms)).mechanism
    common = dm.release(shared, np.arange(8), workload=dm.Workload(shared.query_matrix))
    with pytest.raises(dm.errors.InvalidInputError, match="basis of whole numbers"):
        dm.plan_release(dm.residual(mechanisms[0], shared), workload=asked[0])
    left = dm.residual(mechanisms[branch], common.drawn.mechanism)
    chosen = dm.release(left, np.arange(8), workload=asked[branch])
    both = dm.combine(common, chosen)
    assert_whole(both, mechanisms[branch], asked[branch])
    assert both.rho < 0.98 * (common.rho + chosen.rho)  # the cells that they cost most are different ones


@pytest.mark.parametrize("branch", [1, 2])
def test_the_stages_of_a_chain(branch: int) -> None:
    """A stage that others follow is released with a little more noise, so that each of them has whole rows."""
    rng = np.random.default_rng(branch)
    asked = [dm.workloads.prefix(8), dm.workloads.all_range(8), dm.workloads.identity(8)]
    mechanisms = [fast.solve(dm.FitnessForUse(each, rng.uniform(50, 200, len(each)))).mechanism for each in asked]
    chain, x = fast.chain(mechanisms), np.arange(8)
    released: list[dm.Publication] = []
    for stage, scale in zip(chain.stages, (1 + 1e-5, 1 + 5e-6), strict=True):
        rows = stage.known.query_matrix
        workload = dm.Workload(rows, groups=[f"stage {stage.index}"] * len(rows))
        target = stage.known.scaled(scale)
        left = dm.residual(target, released[0].drawn.mechanism) if released else target
        released.append(dm.release(left, x, workload=workload))
    left = dm.residual(mechanisms[branch], dm.combine(*released).drawn.mechanism)
    together = dm.combine(*released, dm.release(left, x, workload=asked[branch]))
    assert_whole(together, mechanisms[branch], asked[branch])
    assert together.rho <= chain.guarantee.rho


def test_what_is_common_is_published_by_the_tables_that_it_answers(tmp_path: Path) -> None:
    pair = [fast.solve(dm.FitnessForUse(each, 25.0)).mechanism for each in ASKED]
    answer = fast.solve(dm.CommonMechanism(pair))
    dm.save(answer, tmp_path / "common.npz")
    # A process that has loaded nothing else knows all kinds of parts that the file may have.
    script = f"import dualmech as dm; print(*dm.plan_release(dm.load({str(tmp_path / 'common.npz')!r})).tables)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["age"]


@pytest.mark.parametrize("neighbours", ["replace", "replace within sex", "contributions:region:1:2"])
def test_costs_add_up_for_the_same_neighbours_alone(neighbours: str) -> None:
    """Kinds of persons are numbered by the tables: those of two releases may be as many, and others."""
    domain = {"age": 4, "sex": 2, "region": 3}
    sets: list[list[tuple[str, ...]]] = [[("age",)], [("region",)], [("age", "sex")], [("region", "age")]]
    counts = dm.records.count(
        np.random.default_rng(0).integers(0, [4, 2, 3], (300, 3)), dm.workloads.marginals(domain, ways=3)
    )
    asked: list[dm.Workload] = [dm.workloads.marginals(domain, sets=each) for each in sets]
    halves = dm.Workload([[1, 1, 0, 0], [0, 0, 1, 1]])
    asked += [dm.workloads.union(domain, {f"by {name}": {"age": halves, name: None}}) for name in ("sex", "region")]
    released = [
        dm.release(fast.solve(dm.FitnessForUse(each, 10.0, neighbours=neighbours, geometry="blocks")), counts)
        for each in asked
    ]
    for one, two in itertools.combinations(released, 2):
        both = dm.combine(one, two)
        assert both.drawn.mechanism.rho * (1 - 1e-8) <= both.rho <= one.rho + two.rho
