"""Plans of releases: exact cost and accuracy without a record, what is refused of counts, and what is warned of."""

from __future__ import annotations

import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run

import dualmech as dm
from dualmech import fast
from dualmech.display import decimal_above
from dualmech.publishing import publication
from dualmech.watching import without_warnings

PEOPLE = dm.Schema({"age": range(17, 23), "sex": ["f", "m"]})
ASKED = dm.workloads.union(PEOPLE, {"ages": {"age": dm.workloads.prefix(6)}, "sex": ["sex"]})
PRODUCT = dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.prefix(4))
SPLIT = dm.FitnessForUse(
    dm.workloads.query_tables({"a": 4, "b": 3}, {"a": dm.workloads.prefix(4)}, ways=1), 4.0, geometry="split"
)


def no_sampler() -> None:
    raise AssertionError("a plan needs no sampler")


class TestPlan:
    def test_it_is_what_the_release_then_costs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("opendp")
        cases: list[tuple[Any, Any]] = [
            (dm.FitnessForUse(dm.workloads.prefix(6), 4.0), np.arange(6)),
            (dm.FitnessForUse(ASKED, 4.0), {(0,): np.ones(6), (1,): np.array([2, 4])}),
            (dm.FitnessForUse(PRODUCT, 4.0), np.ones((3, 4))),
            (SPLIT, {(0,): np.ones(4), (1,): np.array([2, 1, 1])}),
            (dm.FitnessForUse(dm.workloads.prefix(6), 1.0, geometry="stream"), np.arange(6)),
            (dm.TotalVariance(dm.workloads.all_range(5)), np.ones(5)),
            (dm.PrivacyFirst(dm.workloads.prefix(4), 1.0, 0.5), np.ones(4)),
        ]
        for problem, data in cases:
            with without_warnings():
                answer = fast.solve(problem, tol=1e-3)
            with monkeypatch.context() as patched:
                patched.setattr(publication, "require_sampler", no_sampler)
                planned = dm.plan_release(answer, rho=answer.mechanism.rho * 1.1)
            released = planned.draw(data)
            with pytest.raises(dm.errors.InvalidInputError, match="no second draw"):
                released.draw(data)
            assert planned.rho == released.rho and planned.tables == released.tables
            assert f"({answer.status.name})" in released.statement() and released.answer is answer
            assert problem is SPLIT or 0 < released.rho <= Fraction(answer.mechanism.rho)
            assert all(np.all(np.isfinite(released.estimates(name))) for name in released.tables)
            assert planned.epsilon(1e-9) == released.epsilon(1e-9) and planned.delta(1.0) == released.delta(1.0)
            for name in planned.tables:
                assert np.array_equal(planned.margins(name, 0.9), released.margins(name, 0.9))
                assert np.array_equal(
                    planned.margins(name, simultaneous=True), released.margins(name, simultaneous=True)
                )
            assert planned.neighbours in released.statement() and "ReleasePlan(" in repr(planned)

    def test_it_is_of_a_mechanism_on_a_grid(self) -> None:
        with pytest.raises(dm.errors.InputTypeError, match="drawn must be"):
            dm.ReleasePlan(np.eye(2), ASKED)  # type: ignore[arg-type]

    def test_columns_are_looked_for_and_no_record_is_read(self, tmp_path: Path) -> None:
        planned = dm.plan_release(fast.solve(dm.FitnessForUse(ASKED, 4.0)))
        path = tmp_path / "records.csv"
        path.write_text("sex,name, age\nno such sex\n")
        planned.check_columns(path)
        planned.check_columns(np.ones(4))
        path.write_text("sex,years\nf,17\n")
        with pytest.raises(dm.errors.FileFormatError, match="line 1: .*'age'"):
            planned.check_columns(path)
        path.write_text("")
        with pytest.raises(dm.errors.FileFormatError, match="is empty"):
            planned.check_columns(path)
        pandas = pytest.importorskip("pandas")
        with pytest.raises(dm.errors.InvalidInputError, match="'age'"):
            planned.check_columns(pandas.DataFrame({"sex": ["f"]}))
        nameless = dm.plan_release(fast.solve(dm.FitnessForUse(dm.workloads.prefix(4), 4.0)))
        with pytest.raises(dm.errors.InputTypeError, match="no domain"):
            nameless.check_columns(path)


class TestCounts:
    def test_vectors_hold_counts(self) -> None:
        pytest.importorskip("opendp")
        product = dm.workloads.kron(dm.workloads.prefix(2), dm.workloads.prefix(2))
        for problem in (
            dm.FitnessForUse(dm.workloads.prefix(4), 4.0),
            dm.FitnessForUse(dm.workloads.prefix(4), 4.0, geometry="stream"),
            dm.FitnessForUse(product, 4.0),
        ):
            answer = fast.solve(problem)
            for wrong, told in ((-1, "non-negative counts of records, got -1"), (0.5, "whole numbers")):
                with pytest.raises(dm.errors.InvalidInputError, match=told):
                    dm.release(answer, [3, wrong, 2, 4])

    def test_tables_hold_counts_even_where_their_sums_would(self) -> None:
        pytest.importorskip("opendp")
        for problem in (dm.FitnessForUse(ASKED, 4.0, geometry="blocks"), SPLIT):
            with without_warnings():
                answer = fast.solve(problem, tol=1e-1)
            with pytest.raises(dm.errors.InvalidInputError, match=r"records\[\(0,\)\] must hold non-negative counts"):
                dm.release(answer, {(0,): np.array([5, -1, 0, 0, 0, 0]), (1,): np.array([2, 2])})


class TestUnbounded:
    def test_a_large_rho_that_nobody_allowed_is_refused(self) -> None:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(4), 1e-4))
        with pytest.raises(dm.errors.InvalidInputError, match=r"costs rho = \d+.*at most 100 .*rho=… \(--rho …\)"):
            dm.plan_release(answer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dm.plan_release(answer, rho=1e6)
            dm.plan_release(answer.mechanism.scaled(1e4), workload=dm.workloads.prefix(4))

    def test_releases_are_refused_before_records_are_read_unless_the_limit_allows_it(self) -> None:
        pytest.importorskip("opendp")
        cells = dm.LinearGaussianMechanism(np.eye(4), 1e-4 * np.eye(4))
        asked = dm.workloads.identity(4)
        with pytest.raises(dm.errors.InvalidInputError, match="by default at most 100 is released"):
            dm.release(cells, "no such file.csv", workload=asked)
        assert dm.release(cells, np.ones(4), workload=asked, rho=6000).rho > 100

    def test_a_rho_of_100_needs_no_limit(self) -> None:
        cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2) / 199)
        assert 99 < dm.plan_release(cells, workload=dm.workloads.identity(2)).rho <= 100


class TestDryRun:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        dm.save(fast.solve(dm.FitnessForUse(ASKED, {"ages": 40.0, "sex": 9.0})), tmp_path / "plan.npz")
        dm.save(fast.solve(dm.FitnessForUse(ASKED, 1e-6)), tmp_path / "sharp.npz")
        (tmp_path / "records.csv").write_text("sex,age\nnobody can read this\n")
        return tmp_path

    def test_it_says_what_would_be_spent(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(publication, "require_sampler", no_sampler)
        found = run("release", folder / "records.csv", folder / "plan.npz", "--dry-run")
        planned = dm.plan_release(dm.load(folder / "plan.npz"))
        assert found.exit_code == 0 and not (folder / "out").exists()
        for words in (
            f"rho = {planned.rho}, which is at most {planned.rho_text} (zCDP)",
            *(
                f"epsilon = {decimal_above(planned.epsilon(delta))} at delta = {delta:g}"
                for delta in (1e-6, 1e-9, 1e-12)
            ),
            "Neighbours: one record is added or removed.",
            f"ages: {planned.margins('ages').max():.6g} (6 rows)",
        ):
            assert words in found.output

    def test_refusals(self, folder: Path) -> None:
        (folder / "other.csv").write_text("sex\nf\n")
        (folder / "out").mkdir()
        for arguments, told in (
            (("records.csv", "plan.npz"), "or --dry-run"),
            (("records.csv", "plan.npz", "--dry-run", "--rho", "1/1000"), "more than"),
            (("records.csv", "plan.npz", "--dry-run", "--level", "95"), "level"),
            (("other.csv", "plan.npz", "--dry-run"), "'age'"),
            (("none.csv", "plan.npz", "--dry-run"), "none.csv"),
            (("records.csv", "plan.npz", "--dry-run", "-o", "out"), "--output is not for --dry-run"),
        ):
            placed = [str(folder / each) if each.endswith((".csv", ".npz", "out")) else each for each in arguments]
            found = run("release", *placed)
            assert found.exit_code != 0 and told in str(found.exception or found.output), arguments

    def test_a_large_rho_is_one_line_on_standard_error(self, folder: Path) -> None:
        found = run("release", folder / "records.csv", folder / "sharp.npz", "--dry-run")
        assert isinstance(found.exception, dm.errors.InvalidInputError) and "\n" not in str(found.exception)
        assert "protects next to nothing" in str(found.exception) and "--rho" in str(found.exception)
        (folder / "few.csv").write_text("sex,age\nf,1\n")
        found = run("release", folder / "few.csv", folder / "sharp.npz", "-o", folder / "out")
        assert isinstance(found.exception, dm.errors.InvalidInputError) and not (folder / "out").exists()
        bounded = run("release", folder / "records.csv", folder / "sharp.npz", "--dry-run", "--rho", "1e9")
        assert bounded.exit_code == 0 and "next to nothing" not in bounded.stderr
