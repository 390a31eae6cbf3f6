"""Adaptive releases with exact noise: of tables by name, of cells, and what they cost as fractions."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.publishing.adaptive import DrawnChain

pytest.importorskip("opendp", reason="needs OpenDP, of the extra release")

PEOPLE = dm.Schema({"age": range(20, 32), "sex": ["female", "male"], "region": ["north", "east", "south"]})
FOURS = dm.Workload(np.kron(np.eye(3), np.ones(4)))
ASKED = [
    dm.workloads.union(PEOPLE, {"ages": {"age": dm.workloads.prefix(12)}, "by sex": ["age", "sex"]}),
    dm.workloads.union(PEOPLE, {"groups": {"age": FOURS, "region": None}}),
]


def chain_of(neighbours: str | None = None) -> Any:
    return fast.chain([fast.solve(dm.FitnessForUse(each, 25.0, neighbours=neighbours)).mechanism for each in ASKED])


@pytest.fixture
def records(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = [f"{rng.choice(['north', 'south'])},{rng.integers(20, 32)},male" for _ in range(200)]
    (tmp_path / "records.csv").write_text("\n".join(["region,age,sex", *lines]))
    return tmp_path / "records.csv"


@pytest.mark.parametrize("neighbours", [None, "replace", "add-remove:2"])
def test_its_cost_is_the_largest_over_the_branches(neighbours: str | None) -> None:
    chain = chain_of(neighbours)
    drawn = DrawnChain(chain)
    counts = dm.records.count([[0, 0, 0]] * 9, dm.workloads.marginals([12, 2, 3], ways=3))
    costs = []
    for branch in (0, 1):
        release = dm.release_chain(chain, counts)
        release.advance()
        release.choose(branch)
        ran = [mechanism.dense() for mechanism, _ in release._drawn.ran]
        costs.append(ran[0].stack(*ran[1:]).squared_privacy_cost)
        assert isinstance(release.rho, Fraction) and release.rho == drawn.squared_privacy_cost / 2
    assert float(drawn.squared_privacy_cost) == pytest.approx(max(costs), rel=1e-8)
    assert drawn.squared_privacy_cost / 2 <= chain.guarantee.rho


def test_tables_by_name_after_every_stage(records: Path, tmp_path: Path) -> None:
    release = dm.release_chain(chain_of(), records, rho="1")
    with pytest.raises(dm.errors.ReleaseOrderError, match="advance before"):
        release.publication()
    total = dm.workloads.union(PEOPLE, {"all": {"age": dm.workloads.total(12)}})
    assert repr(release).startswith("ExactAdaptiveRelease(0 steps run, rho=")
    seen = release.advance()
    with pytest.raises(dm.errors.InvalidInputError, match="not answered"):
        release.publication(ASKED[0])
    assert release.publication(total).estimates("all").shape == (1,)
    first = release.publication()
    assert [*seen] == [*first.tables] == ["age"]
    assert first.rows("age")[0][0] == "age" and next(first.rows("age")[1])[0] == "age ≤ 23"
    np.testing.assert_array_equal(first.estimates("age"), seen["age"])
    answer = release.choose(1)
    assert "2 steps run, mechanism 1 chosen" in repr(release)
    last = release.publication()
    np.testing.assert_array_equal(last.estimates("groups"), answer.values["groups"])
    excess = last.variances("groups") / 25.0 - 1
    assert np.all(excess <= 1e-5) and first.rho == last.rho == release.rho
    assert "\n- The release was adaptive: ρ is the largest over all branches" in last.statement()
    last.write(tmp_path / "out")
    assert (tmp_path / "out" / "1_groups.csv").read_text().startswith("age,age from,age to,region,estimate")


@pytest.mark.parametrize("branch", [0, 1, 2])
def test_on_cells_common_parts_need_no_whole_rows(branch: int) -> None:
    """What is left of a mechanism beyond a maximal part of it lies on no whole rows; a little is kept back for it."""
    rng = np.random.default_rng(branch)
    asked = [dm.workloads.prefix(8), dm.workloads.all_range(8), dm.workloads.identity(8)]
    mechanisms = [fast.solve(dm.FitnessForUse(each, rng.uniform(50, 200, len(each)))).mechanism for each in asked]
    chain = fast.chain(mechanisms)
    release = dm.release_chain(chain, np.arange(8.0), rho="1/4")
    for _ in range(min(branch + 1, 2)):
        release.advance()
    with pytest.raises(dm.errors.InputTypeError, match="workload must say what to publish"):
        release.publication()
    answer = release.choose(branch)
    published = release.publication(asked[branch])
    found = published.variances(published.tables[0])
    assert np.all(found <= mechanisms[branch].variances(asked[branch]) * (1 + 1e-5))
    rows = dm.Workload(mechanisms[branch].query_matrix)
    np.testing.assert_allclose(answer.values, release.publication(rows).estimates("queries"), rtol=1e-9, atol=1e-6)
    assert release.rho <= chain.guarantee.rho


def test_bad_input_is_refused_before_records_are_read_and_circles_by_name() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("takes no rng", {"rng": 1}),
        ("domain must be that of the chain's tables", {"domain": dm.Domain({"age": 3})}),
        ("rho", {"rho": "1/1000000"}),
    ]
    for message, options in cases:
        with pytest.raises(dm.errors.DualmechError, match=message):
            dm.release_chain(chain_of(), "no-such-file.csv", **options)
    runs = dm.workloads.union({"hour": 8, "day": 2}, {"runs": {"hour": dm.workloads.circular_ranges(8)}})
    pair = [dm.BlockMechanism.of_tables(runs, variance) for variance in (1.0, 2.0)]
    with pytest.raises(dm.errors.InvalidInputError, match="not its waves"):
        dm.release_chain(fast.chain(pair), {(0,): np.ones(8)})


def test_what_is_common_is_published_by_the_tables_that_it_answers(records: Path, tmp_path: Path) -> None:
    pair = [fast.solve(dm.FitnessForUse(each, 25.0)).mechanism for each in ASKED]
    answer = fast.solve(dm.CommonMechanism(pair))
    dm.save(answer, tmp_path / "common.npz")
    released = dm.release(answer, records, rho=answer.mechanism.rho)
    assert released.tables == ("age",) and "CommonMechanism" in released.statement()
    # A process that has loaded nothing else knows all kinds of parts that the file may have.
    script = f"import dualmech as dm; print(*dm.plan_release(dm.load({str(tmp_path / 'common.npz')!r})).tables)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["age"]
