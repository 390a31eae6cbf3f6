"""What is run after a release: drawn alone, at its own cost, and published together with it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run

import dualmech as dm
from dualmech import fast
from dualmech.mechanisms.frames import TableBlocks
from dualmech.publishing.ledger import Ledger

pytest.importorskip("opendp")

PEOPLE = dm.Schema({"age": range(6), "sex": ["f", "m"]})
COUNTS = {(0, 1): np.arange(12).reshape(6, 2) * 40}
GROUPS = dm.Workload(np.kron(np.eye(2), np.ones(3)), names=["young", "old"])
PREFIX = dm.workloads.prefix(6)


def union(**tables: Any) -> dm.Workload:
    return dm.workloads.union(PEOPLE, tables)


ONE_WAY, TWO_WAY = (dm.workloads.marginals(PEOPLE, ways=ways) for ways in (1, 2))
SERIES: dict[str, tuple[Any, Any, str]] = {
    "margins, then cells": (ONE_WAY, TWO_WAY, "add-remove"),
    "groups and sums, then values": (
        union(groups={"age": GROUPS, "sex": None}, upto={"age": PREFIX}),
        union(ages={"age": None}, both={"age": GROUPS, "sex": None}),
        "add-remove",
    ),
    "sums, then values, one replaced": (
        union(upto={"age": PREFIX}),
        union(ages={"age": None}, sexes=["sex"]),
        "replace",
    ),
    "groups, then values, replaced within a sex": (
        union(groups={"age": GROUPS, "sex": None}),
        union(ages={"age": None, "sex": None}),
        "replace within sex",
    ),
}


def series(name: str, target: float = 9.0) -> tuple[dm.Publication, dm.Solution]:
    earlier, wish, rule = SERIES[name]
    first = dm.release(fast.solve(dm.FitnessForUse(earlier, 20.0, neighbours=rule, geometry="blocks")), COUNTS)
    return first, fast.solve(dm.ReuseFitness(wish, target, first.drawn.mechanism))


@pytest.mark.parametrize("name", SERIES)
def test_both_keep_the_targets_at_the_least_cost(name: str) -> None:
    """What is drawn costs what the answer costs beyond the release, for every kind of neighbours, but for the grid."""
    first, answer = series(name)
    planned: Any = dm.plan_release(answer, after=first)
    both = planned.draw(COUNTS)
    assert first.rho + planned.rho >= both.rho > 0
    frame = TableBlocks([answer.mechanism, first.drawn.mechanism, planned.new_plan.drawn.mechanism])
    each = [frame.refined(own).costs for own in (first.drawn.mechanism, planned.new_plan.drawn.mechanism)]
    assert np.max(sum(each)) <= answer.objective * (1 + 1e-5)
    assert float(2 * both.rho) == pytest.approx(np.max(sum(each)), rel=1e-8)
    for table in both.tables:
        known, noisy = both.unmoved(table), both.variances(table)
        np.testing.assert_allclose(noisy, planned.variances(table), rtol=1e-9)
        limit = 20.0 if table in first.tables and table not in answer.problem.workload.tabular().table_names else 9.0
        assert np.all(noisy <= limit * (1 + 1e-4)) and not np.any(noisy[known])
    truth = np.asarray(dm.Workload(answer.problem.workload.dense()).matrix) @ COUNTS[0, 1].ravel()
    names = answer.problem.workload.tabular().table_names
    found = np.concatenate([both.estimates(table).ravel() for table in names])
    assert np.all(np.abs(found - truth) <= 10 * 3.0)  # ten standard deviations


def test_on_a_matrix() -> None:
    counts = np.array([5, 3, 2, 8, 1, 0, 4, 9])
    first = dm.release(fast.solve(dm.FitnessForUse(dm.workloads.prefix(8), 3.0)), counts)
    answer = fast.solve(dm.ReuseFitness(dm.workloads.identity(8), 0.8, first.drawn.mechanism))
    both = dm.release(answer, counts, after=first)
    assert both.tables == ("prefixes", "cells") and both.variances("cells").max() <= 0.8 * (1 + 1e-4)
    assert float(2 * both.rho) <= first.drawn.squared_privacy_cost + answer.objective
    np.testing.assert_allclose(both.estimates("cells").cumsum(), both.estimates("prefixes"), atol=1e-8)


def test_nothing_further_costs_nothing() -> None:
    first = dm.release(fast.solve(dm.FitnessForUse(union(cells=["age", "sex"]), 4.0)), COUNTS)
    answer = fast.solve(dm.ReuseFitness(union(sexes=["sex"]), 100.0, first.drawn.mechanism))
    both = dm.release(answer, COUNTS, after=first)
    assert both.rho == first.rho and both.tables == ("cells", "sexes")
    np.testing.assert_allclose(both.estimates("cells").sum(axis=0), both.estimates("sexes"), atol=1e-8)


def test_what_is_no_release_before_it_is_refused() -> None:
    first, answer = series("margins, then cells")
    other = dm.release(fast.solve(dm.FitnessForUse(SERIES["margins, then cells"][0], 40.0)), COUNTS)
    plain = fast.solve(dm.FitnessForUse(SERIES["margins, then cells"][0], 40.0))
    rows = dm.release(fast.solve(dm.FitnessForUse(dm.workloads.prefix(4), 9.0)), np.ones(4))
    for given, after, words in (
        (answer, None, "after must be the earlier release"),
        (answer, other, "with other noise"),
        (answer, rows, "one of another kind"),
        (plain, first, "after is for a solution of ReuseFitness"),
    ):
        with pytest.raises(dm.errors.InvalidInputError, match=words):
            dm.plan_release(given, after=after)
    with pytest.raises(dm.errors.InputTypeError, match="after must be a Publication"):
        dm.plan_release(answer, after=dm.plan_release(plain))  # type: ignore[arg-type]
    with pytest.raises(dm.errors.InvalidInputError, match="workload must not be given with after"):
        dm.plan_release(answer, workload=answer.problem.workload, after=first)


ATTRIBUTES = "[attributes.age]\nfrom = 0\nto = 5\n[attributes.sex]\nlabels = ['f', 'm']\n[[tables]]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r.csv").write_text("age,sex\n" + "1,f\n4,m\n" * 100)
    (tmp_path / "ledger.toml").write_text('limit = "1"\n')
    first = "name = 'up to'\nask = { age = 'prefixes' }\nmargin = 20\n"
    (tmp_path / "one.toml").write_text(f"title = 'one'\n{ATTRIBUTES}{first}")
    (tmp_path / "two.toml").write_text(f"title = 'two'\n{ATTRIBUTES}ask = {{ age = 'values' }}\nmargin = 9\n")
    return tmp_path


class TestTheCommand:
    def begin(self, folder: Path) -> tuple[Any, ...]:
        """Release `one`, solve `two` after it, and return how that is released then."""
        records, plan, first = folder / "r.csv", folder / "plan.npz", folder / "first"
        outputs = []
        for arguments in (
            ("solve", folder / "one.toml", "-o", plan),
            ("release", records, plan, "-o", first, "--ledger", folder / "ledger.toml"),
            ("solve", folder / "two.toml", "--after", first, "-o", plan),
        ):
            found = run(*arguments)
            assert found.exit_code == 0, found.exception
            outputs.append(found.stdout)
        assert "Earlier release: rho = " in outputs[-1] and "1 % more margin of 'age' saves" in outputs[-1]
        return "release", records, plan, "--after", first, "--ledger", folder / "ledger.toml"

    def test_a_series(self, folder: Path) -> None:
        """The ledger adds what each release draws, and the statement tells of both."""
        later, both = self.begin(folder), folder / "both"
        dry = run(*later, "--dry-run")
        assert "Together with the earlier release: rho = " in dry.stdout and "asked 9" in dry.stdout
        found = run(*later, "-o", both)
        assert found.exit_code == 0, found.exception
        published = dm.load_publication(both)
        assert published.rho == Ledger.read(folder / "ledger.toml").spent and len(published.parts) == 2
        for path in (folder / "plan.npz", folder / "first", both, both / "STATEMENT.md"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        assert run("combine", both, "-o", folder / "x").exit_code == 2  # one alone
        told = (both / "STATEMENT.md").read_text()
        assert "release 1, one: ρ = " in told and "release 2, two: ρ = " in told
        refused = run("release", folder / "r.csv", folder / "plan.npz", "-o", folder / "alone")
        assert refused.exit_code == 1 and "after must be the earlier release" in str(refused.exception)
        run("solve", folder / "one.toml", "-o", folder / "open.npz", "--public")
        mask = os.umask(0)
        os.umask(mask)
        assert stat.S_IMODE((folder / "open.npz").stat().st_mode) == 0o666 & ~mask

    def test_answers_that_disagree_are_paid_for(self, folder: Path) -> None:
        """The refusal tells noisy answers of the new release: the ledger has its ρ before."""
        later = self.begin(folder)
        (folder / "r.csv").write_text("age,sex\n" + "1,f\n" * 5000)
        refused = run(*later, "-o", folder / "both")
        assert refused.exit_code == 1 and "its rho counts as spent" in str(refused.exception)
        assert len(Ledger.read(folder / "ledger.toml").releases) == 2 and not (folder / "both").exists()

    def test_misuse(self, folder: Path) -> None:
        (folder / "one.toml").write_text(f"rho = '1/10'\n{ATTRIBUTES}ask = ['age']\nmargin = 20\n")
        dm.save(fast.solve(dm.FitnessForUse(union(ages={"age": None}), 4.0)), folder / "first.npz")
        after = (folder / "one.toml", "--after", folder / "first.npz")
        for line, words in (
            (after, "leave out rho"),
            ((*after, "--rho", "1/2"), "--rho belongs to"),
            (("prefix:4", "--problem", "reuse"), "needs --after"),
        ):
            refused = run("solve", *line)
            assert refused.exit_code != 0 and words in str(refused.exception)
