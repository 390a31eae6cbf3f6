"""A ledger of releases: exact sums within a limit, two writers at a time, and what a kill leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.display import decimal_above, decimal_below
from dualmech.publishing.ledger import Ledger

PEOPLE = dm.Schema({"age": range(17, 21), "sex": ["f", "m"]})
ASKED = dm.workloads.marginals(PEOPLE, ways=1)
WRITERS, EACH = 2, 8


def planned(variance: float = 50.0, neighbours: str = "add-remove") -> dm.ReleasePlan:
    return dm.plan_release(fast.solve(dm.FitnessForUse(ASKED, variance, neighbours=neighbours)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "ledger.toml").write_text("limit = 10\n")
    return tmp_path / "ledger.toml"


def test_exact_costs_add_up_and_the_limit_holds(path: Path) -> None:
    plan = planned()
    (path.parent / "exact.toml").write_text(f'limit = "{2 * plan.rho}"\n')
    exact = Ledger.read(path.parent / "exact.toml")
    assert exact.record(plan, "w", "one").record(plan, "w", "two").spent == 2 * plan.rho == exact.limit
    again = Ledger.read(exact.path)
    assert [each["what"] for each in again.releases] == ["one", "two"]
    with pytest.raises(dm.errors.InvalidInputError, match="more than the remaining 0"):
        exact.record(plan, "w")  # of the file as it is now, not as it was read
    assert Ledger.read(exact.path) == again
    pytest.importorskip("opendp")
    assert plan.ledger is not None
    assert plan.draw({(0,): [1, 0, 2, 0], (1,): [1, 2]}).ledger is None  # each release is recorded for itself


class TestAppending:
    def test_a_ledger_that_nobody_else_changed_is_read_once(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        plan, kept = planned(), Ledger.read(path)
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "read", lambda _: pytest.fail("it was read again"))
            for number in range(3):
                before = path.read_text()
                kept = kept.record(plan, "w", f"release {number}")
                assert number == 0 or path.read_text().startswith(before)
        again = Ledger.read(path)
        assert again == kept and again.spent == kept.spent == 3 * plan.rho
        assert len(repr(kept)) < 1000

    def test_one_that_was_changed_is_read_again(self, path: Path) -> None:
        plan, kept = planned(), Ledger.read(path)
        kept = kept.record(plan, "w", "ours")
        other = Ledger.read(path).record(plan, "w", "another writer's")
        assert [each["what"] for each in kept.record(plan, "w").releases] == ["ours", "another writer's", ""]
        path.unlink()
        with pytest.raises(dm.errors.FileFormatError, match="create one with a line"):
            other.record(plan, "w")

    def test_entries_on_one_line_are_written_anew(self, path: Path) -> None:
        plan, kept = planned(), Ledger.read(path)
        kept.record(plan, "w")
        entry = path.read_text().partition("[[releases]]\n")[2].strip().replace("\n", ", ")
        path.write_text(
            f'limit = 10\nneighbours = "add-remove:1"\nunit = {{ of = "record" }}\nreleases = [{{ {entry} }}]'
        )
        kept = Ledger.read(path).record(plan, "w")
        assert len(kept.record(plan, "w").releases) == len(Ledger.read(path).releases) == 3

    def test_what_cannot_be_written_is_taken_back(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = planned()
        kept = Ledger.read(path).record(plan, "w")
        before = path.read_bytes()

        def full(_: int) -> None:
            raise OSError("no space left on device")

        with monkeypatch.context() as patched, pytest.raises(dm.errors.FileFormatError, match="no space left"):
            patched.setattr(os, "fsync", full)
            kept.record(plan, "w")
        assert path.read_bytes() == before and Ledger.read(path) == kept
        assert len(kept.record(plan, "w").releases) == 2

    def test_half_an_entry_refuses_the_ledger(self, path: Path) -> None:
        """A failure of power may leave one; that it is none must be said by who keeps the ledger."""
        plan = planned()
        Ledger.read(path).record(plan, "w").record(plan, "w")
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(dm.errors.FileFormatError):
            Ledger.read(path)


class TestNeighbours:
    """What adds up is the cost of the same differences, not of those that the same words describe."""

    def test_others_are_refused(self, path: Path) -> None:
        kept = Ledger.read(path).record(planned(), "w")
        assert kept.unit is not None and kept.unit.neighbours == kept.releases[0]["neighbours"] == "add-remove:1"
        path.write_text('limit = 10\nneighbours = "add-remove:3"\n')
        with pytest.raises(dm.errors.InvalidInputError, match="must protect the same unit of privacy, or more"):
            Ledger.read(path).record(planned(neighbours="replace"), "w")

    def test_matrices_are_told_apart(self, path: Path) -> None:
        """Both are three listed differences; of the second plan the first's neighbours cost rho = 1.3333, not 1e-6."""
        differences = np.array([[1.0, 0, 1], [0, 1, 1]])
        one, two = (
            dm.plan_release(fast.solve(dm.FitnessForUse(dm.workloads.identity(2), variance, neighbours=given)))
            for variance, given in ((20.0, differences), (0.5, differences / 1024))
        )
        kept = Ledger.read(path).record(one, "w")
        with pytest.raises(dm.errors.InvalidInputError, match="must protect the same unit of privacy, or more"):
            kept.record(two, "w")
        again = fast.solve(dm.FitnessForUse(dm.workloads.identity(2), 9.0, neighbours=-differences[:, [2, 0, 1, 0]]))
        assert len(kept.record(dm.plan_release(again), "w").releases) == 2

    def test_of_more_records_a_release_costs_fewer_no_more(self, path: Path) -> None:
        path.write_text('limit = 10\nneighbours = "replace:1"\n')
        dearer = planned(neighbours="add-remove:2")
        kept = Ledger.read(path).record(dearer, "w").record(planned(neighbours="replace:2"), "w")
        assert str(kept.unit) == "records (replace:1)" and "unit of privacy is records (replace:1)" in kept.lines()[0]
        assert [each["neighbours"] for each in kept.releases] == ["add-remove:2", "replace:2"]
        assert kept.spent >= dearer.rho >= planned(neighbours="replace:1").rho

    def test_a_relation_that_is_missing_or_emptied(self, path: Path) -> None:
        Ledger.read(path).record(planned(), "w")
        text, told = path.read_text(), "must state neighbours|must have the texts|neighbours must be"
        for removed, left in (('neighbours = "add-remove:1"\n', ""), ('"add-remove:1"', '""')):
            for place in (0, text.rindex(removed)):
                path.write_text(text[:place] + text[place:].replace(removed, left, 1))
                with pytest.raises(dm.errors.FileFormatError, match=told):
                    Ledger.read(path)

    @given(st.integers(0, 10**6))
    def test_whom_a_relation_contains_costs_no_more(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        domain = dm.Domain({"a": 3, "b": 2})
        texts = ["add-remove:1", "add-remove:2", "add-remove:4", "replace:1", "replace:2", "contributions:a:1:2"]
        texts += ["replace:1 within a", "replace:2 within a", "replace:1 within b"]
        one, two = (dm.neighbours.Relation.of(each) for each in rng.choice([*texts, "contributions:a:2:2"], 2))
        root = rng.standard_normal((6, 6))
        mechanisms = [
            dm.LinearGaussianMechanism(np.eye(6), root @ root.T + 0.1 * np.eye(6), each.matrix(6, domain))
            for each in (one, two)
        ]
        first, second = (each.squared_privacy_cost for each in mechanisms)
        assert not one.contains(two) or first >= second * (1 - 1e-9)
        assert one.contains(one)


def test_a_file_of_two_names_is_refused(path: Path) -> None:
    """Each name has a lock of its own, and a file that is written anew: four releases passed where two fitted."""
    os.link(path, path.parent / "other.toml")
    for name in ("ledger.toml", "other.toml"):
        with pytest.raises(dm.errors.FileFormatError, match="file of one name, this one has 2"):
            Ledger.read(path.parent / name)
    os.unlink(path.parent / "other.toml")
    os.symlink(path, path.parent / "linked.toml")
    assert Ledger.read(path.parent / "linked.toml").path == Ledger.read(path).path


def test_what_is_no_ledger(path: Path) -> None:
    release = '[[releases]]\nrho = "-1"\nwhat = ""\nwhen = ""\nworkload = ""\nneighbours = ""\nunit = { of = "record" }'
    for text, told in (
        ("", "needs limit"),
        ("limit = 0", "limit must be positive"),
        ('limit = "x"', "limit must be"),
        ("limit = 1\nlimits = 2", "a ledger holds"),
        ('limit = 1\n[[releases]]\nrho = "1/2"', "must have the texts"),
        (f"limit = 1\n{release}", "rho must be positive"),
        ("limit", "TOML"),
        ('limit = 1\nneighbours = "friends"', "neighbours must be"),
    ):
        path.write_text(text)
        with pytest.raises(dm.errors.FileFormatError, match=told):
            Ledger.read(path)
    with pytest.raises(dm.errors.FileFormatError, match="create one with a line"):
        Ledger.read(path.parent / "none.toml")


WRITES = """
import os, signal, sys
import dualmech as dm
from dualmech.publishing.ledger import Ledger

path, solved, count = sys.argv[1:]
plan, kept = dm.plan_release(dm.load(solved)), Ledger.read(path)
if count == "0":  # killed while it holds the lock
    Ledger._write = lambda self: os.kill(os.getpid(), signal.SIGKILL)
    kept.record(plan, "w")
for number in range(int(count)):
    kept.record(plan, "w", str(number))
"""


def test_two_writers_lose_nothing_and_a_killed_one_holds_nobody_up(path: Path) -> None:
    solved = path.parent / "solved.npz"
    dm.save(fast.solve(dm.FitnessForUse(ASKED, 50.0)), solved)

    def writer(count: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WRITES, str(path), str(solved), str(count)])

    assert writer(0).wait(600) == -signal.SIGKILL and not Ledger.read(path).releases
    writers = [writer(EACH) for _ in range(WRITERS)]
    assert [each.wait(600) for each in writers] == [0] * WRITERS
    found = Ledger.read(path)
    assert len(found.releases) == WRITERS * EACH and found.spent == WRITERS * EACH * planned().rho


class TestCommand:
    @pytest.fixture(autouse=True)
    def plan(self, path: Path) -> None:
        dm.save(fast.solve(dm.FitnessForUse(ASKED, 50.0)), path.parent / "plan.npz")
        (path.parent / "r.csv").write_text("age,sex\n17,f\n18,m\n")

    def test_it_is_charged_before_anything_is_published(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("opendp")
        folder = path.parent
        asked = (folder / "r.csv", folder / "plan.npz", "--ledger", path)
        assert run("release", *asked, "--dry-run").exit_code == 0 and not Ledger.read(path).releases
        found = run("release", *asked, "-o", folder / "out")
        assert found.exit_code == 0 and "Ledger: release 1 of these records" in found.output
        spent = Ledger.read(path).spent
        text = (folder / "out" / "STATEMENT.md").read_text()
        assert f"their total cost is rho = {spent}" in text and spent == planned().rho
        assert isinstance(spent, Fraction)

        def full(*_: object, **__: object) -> Any:
            raise dm.errors.FileFormatError("no space left on device")

        monkeypatch.setattr(dm.Publication, "statement", full)
        assert run("release", *asked, "-o", folder / "lost").exit_code != 0 and not (folder / "lost").exists()
        assert Ledger.read(path).spent == 2 * spent

    def test_a_dry_run_says_what_would_be_left_and_records_nothing(self, path: Path) -> None:
        rho = planned().rho
        asked = (path.parent / "r.csv", path.parent / "plan.npz", "--dry-run", "--ledger", path)
        path.write_text(f'limit = "{rho * 5 / 2}"\n')
        Ledger.read(path).record(planned(), "w")
        found = run("release", *asked)
        assert found.exit_code == 0 and f"Ledger: 1 release recorded, rho = {rho}," in found.output
        assert f"would leave {decimal_below(rho / 2)}. The ledger is unchanged" in found.output
        Ledger.read(path).record(planned(), "w")
        kept = path.read_text()
        refused = run("release", *asked)
        assert refused.exit_code != 0 and "more than the remaining" in str(refused.exception)
        assert (
            f"does not fit: it costs {decimal_above(rho / 2)} more than the remaining {decimal_below(rho / 2)}"
            in refused.output
        )
        assert path.read_text() == kept

    def test_a_limit_is_kept_before_records_are_read(self, path: Path) -> None:
        path.write_text('limit = "1/1000"\n')
        header = path.parent / "header.csv"
        assert ASKED.domain is not None
        header.write_text(",".join(ASKED.domain.names) + "\nno such value\n")
        for more in (("--dry-run",), ("-o", path.parent / "out")):
            refused = run("release", header, path.parent / "plan.npz", "--ledger", path, *more)
            assert "the ledger's limit is rho = 1/1000" in str(refused.exception)
