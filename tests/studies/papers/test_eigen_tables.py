"""The Eigen-Design paper's tables: instances, certified optima, verdicts, designs, reductions, and how they look."""

import dataclasses
import io
import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commanded import run
from rich.console import Console

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.sheet import Row
from dualmech.problems import strategies
from dualmech.studies import rivals
from dualmech.studies.papers.eigen import designs, relative
from dualmech.studies.papers.eigen import instances as eigen_instances
from dualmech.studies.papers.eigen.instances import (
    ALTERNATIVES,
    BOUND,
    DATACUBE,
    FOURIER,
    HIERARCHICAL,
    IDENTITY,
    WAVELET,
    EigenInstance,
    factor,
    verdict_of,
)
from dualmech.studies.papers.verdicts import Finding

ROWS = dict(eigen_instances.alternatives(quick=True))
INSTANCES = [
    *(instance for row in ROWS.values() for instance in row),
    *eigen_instances.ranges(quick=True),
    *eigen_instances.marginals(quick=True),
]


@pytest.fixture(scope="session")
def solved() -> Iterator[dict[str, Row]]:
    yield {instance.label: eigen_instances.solve(instance) for instance in INSTANCES}


@pytest.fixture(scope="session")
def rows() -> Iterator[dict[str, Row]]:
    found = [task() for task in designs.comparisons(quick=True)]
    yield {row.name: row for row in found}


def changed(reading: Row, **changes: object) -> Row:
    instance = dataclasses.replace(reading.instance, **changes)
    return dataclasses.replace(reading, values={**reading.values, "instance": instance})


def told(row: Row) -> str:
    out = Console(file=io.StringIO(), width=400)
    for each in eigen_instances.tables(row):
        out.print(each)
    return str(out.file.getvalue())  # type: ignore[attr-defined]


def small(build: object, shape: tuple[int, ...], names: tuple[str, ...], **options: object) -> EigenInstance:
    return EigenInstance("small", shape, build, names, **options)  # type: ignore[arg-type]


class TestPrinted:
    def test_every_row_has_two_rivals_and_the_bound(self) -> None:
        for row in ALTERNATIVES.values():
            best, worst, bound = row
            assert bound == BOUND
            assert float(row[best]) <= float(row[worst])
            assert 0 < float(row[bound]) <= 1
        largest = max(float(text) for row in ALTERNATIVES.values() for text in row.values())
        assert round(largest) == 13, "as the text says"


class TestInstances:
    def test_have_as_many_cells_as_the_run_says(self) -> None:
        for quick in (False, True):
            instances = [instance for _, row in eigen_instances.alternatives(quick) for instance in row]
            instances += [*eigen_instances.ranges(quick), *eigen_instances.marginals(quick)]
            assert {instance.cells for instance in instances} == {256 if quick else eigen_instances.CELLS}
            assert len({instance.label for instance in instances}) == len(instances)

    def test_every_row_that_is_printed_is_read(self) -> None:
        assert list(ROWS) == list(ALTERNATIVES)
        for name, row in ALTERNATIVES.items():
            for instance in ROWS[name]:
                assert set(instance.printed) == set(row)
                assert set(row) - {BOUND} <= set(instance.rivals)
        assert ROWS["Predicate"][0].printed == ALTERNATIVES["Predicate"]
        assert ROWS["Predicate"][1].printed == {FOURIER: "1.39", WAVELET: "1.94", BOUND: "1.00"}

    def test_gram_matrices_stand_for_the_queries_themselves(self) -> None:
        queries = {
            "all ranges, 4x8x8": dm.workloads.range_marginals([4, 8, 8], ways=3),
            "1-way range marginals of 4x8x8": dm.workloads.range_marginals([4, 8, 8], ways=1),
            "2-way range marginals of 4x4x8x2": dm.workloads.range_marginals([4, 4, 8, 2], ways=2),
            "prefixes": dm.workloads.cdf(256),
            "2-way marginals, 4x8x8": dm.workloads.marginals([4, 8, 8], ways=2),
            "4 random marginals, 4x8x8": dm.workloads.random_marginals([4, 8, 8], 4, eigen_instances.SEED),
        }
        found = {instance.label: instance for instance in INSTANCES}
        for label, workload in queries.items():
            np.testing.assert_allclose(found[label].build().gram(), workload.gram(), atol=1e-9 * len(workload))

    def test_all_predicates_are_all_of_them_and_many_random_ones_are_near(self) -> None:
        every = np.array([[float(k >> i & 1) for i in range(5)] for k in range(2**5)])
        gram = eigen_instances._predicates(5).gram()
        np.testing.assert_allclose(every.T @ every, 2**5 / 4 * gram, atol=1e-12)
        gram = eigen_instances._random_predicates(64).gram() / (eigen_instances.SAMPLED * 64)
        np.testing.assert_allclose(gram, (np.ones((64, 64)) + np.eye(64)) / 4, atol=0.04)

    def test_rivals_spend_one_and_are_the_rivals(self) -> None:
        shape, tables_asked = (2, 4, 4), (("a0",), ("a1", "a2"))
        workload = dm.workloads.marginals(shape, sets=tables_asked)
        for name, build in {
            WAVELET: rivals.wavelet,
            HIERARCHICAL: rivals.hierarchical_product,
            FOURIER: rivals.fourier,
            DATACUBE: rivals.datacube,
            IDENTITY: rivals.input_perturbation,
        }.items():
            instance = small(lambda: workload, shape, (name,), tables=tables_asked)
            assert instance.rival(name).squared_privacy_cost == pytest.approx(1)
            expected = build(workload, 1.0).variances(workload).sum()
            assert instance.errors(name, workload) == pytest.approx((expected, expected)), name

    def test_orders_of_the_cells_matter_to_rivals_alone(self) -> None:
        workload = dm.workloads.all_range(16)
        there = small(lambda: workload, (16,), (WAVELET,), orders=4)
        least, largest = there.errors(WAVELET, workload)
        assert there.rival(WAVELET).variances(workload).sum() < least < largest
        mixed = dm.workloads.permuted(workload, eigen_instances.SEED + 2)
        assert least <= there.rival(WAVELET).variances(mixed).sum() <= largest
        one, two = (fast.eigen_design(each, bound_tol=None).total_variance for each in (workload, mixed))
        assert one == pytest.approx(two, rel=1e-6)

    def test_a_gram_matrix_of_many_cells_makes_a_workload_that_problems_take(self) -> None:
        gram = dm.workloads.all_range_gram(512)
        workload = dm.workloads.from_gram(gram)
        np.testing.assert_allclose(workload.gram(), gram, rtol=1e-10)
        assert np.abs(workload.dense()[workload.dense() != 0]).min() > 1e-40

    def test_fourier_rows_are_exactly_zero_where_they_should_be(self) -> None:
        rows = rivals.fourier_matrix([4, 4, 8])
        assert np.abs(rows[rows != 0]).min() > 1e-3
        np.testing.assert_allclose(rows @ rows.T, np.eye(128), atol=1e-14)


class TestReadings:
    def test_every_quick_instance_is_certified_and_stands_in_order(self, solved: dict[str, Row]) -> None:
        """Bound, optimum, design, rivals."""
        for reading in solved.values():
            assert reading.certified
            assert reading.gap <= eigen_instances.OPTIMUM_TOLERANCE
            low, high = reading.optimum
            assert high >= 1 - 1e-9
            assert high - low <= eigen_instances.OPTIMUM_TOLERANCE
            assert low <= reading.design[1]
            assert all(low <= error[1] for error in reading.rivals.values())
            assert eigen_instances.best_rival(reading) in reading.rivals

    def test_the_design_is_optimal_on_marginals(self, solved: dict[str, Row]) -> None:
        """EIG, section 5.2: its error equals the bound.

        Fourier and a datacube of all tables have one error there, the number of tables times the rank.
        """
        for instance in eigen_instances.marginals(quick=True):
            assert solved[instance.label].design == pytest.approx((1, 1), abs=2e-6)
            errors = solved[instance.label].rivals
            assert errors[FOURIER] == pytest.approx(errors[DATACUBE], rel=1e-9)

    def test_the_bound_on_cdfs_is_met_better_by_the_optimum_than_by_the_design(self, solved: dict[str, Row]) -> None:
        """The 0.80 that EIG prints measures its design, not the bound."""
        reading = solved["prefixes"]
        assert reading.optimum[1] < 1.03
        assert reading.design[0] > 1.2

    def test_a_factor_is_what_it_says(self) -> None:
        workload = dm.workloads.all_range(16)
        reading = eigen_instances.solve(small(lambda: workload, (16,), (WAVELET,)))
        design = fast.eigen_design(workload, tol=eigen_instances.DESIGN_TOLERANCE, bound_tol=None)
        wavelet = strategies.total_variance(rivals.haar_matrix(16).toarray(), workload)
        low, high = factor(reading, WAVELET)
        assert low <= math.sqrt(wavelet / design.total_variance) <= high
        unit = np.linalg.svd(workload.dense(), compute_uv=False).sum() ** 2 / 16
        assert reading.design == pytest.approx((math.sqrt(design.total_variance / unit),) * 2, rel=2e-6)

    def test_what_is_not_certified_is_wide(self, solved: dict[str, Row]) -> None:
        loose = dataclasses.replace(solved["prefixes"], certified=False)
        row = Row({"name": "1D CDF"}, parts=(solved["prefixes"], loose))
        assert row.outcome is Agreement.WIDE
        assert "WIDE" in told(row)


class TestVerdicts:
    @staticmethod
    def printed(reading: Row, numbers: dict[str, str]) -> Row:
        return changed(reading, printed=numbers)

    @pytest.mark.parametrize(
        ("share", "finding", "words"),
        [
            (1.0, Finding.AGREES, "^AGREES: "),
            (1 / 1.1, Finding.ABOVE, "ABOVE THE OPTIMUM"),
            (1.1, Finding.DIFFERS, "MAY DIFFER"),
        ],
    )
    def test_numbers_at_above_and_below_the_design(
        self, share: float, finding: Finding, words: str, solved: dict[str, Row]
    ) -> None:
        """Two above it say that the paper's design is worse; those below leave the instance open."""
        reading = solved["prefixes"]
        numbers = {name: f"{factor(reading, name)[0] * share:.3f}" for name in (WAVELET, HIERARCHICAL, BOUND)}
        found = self.printed(reading, numbers)
        assert verdict_of(found).finding is finding
        assert re.search(words, verdict_of(found).sentence("a design at"))
        assert finding is not Finding.AGREES or not verdict_of(found).others
        assert finding is not Finding.ABOVE or verdict_of(found).excess[0] < 0.1 < verdict_of(found).excess[1]

    def test_numbers_that_imply_different_designs_say_nothing(self, solved: dict[str, Row]) -> None:
        reading = solved["prefixes"]
        found = self.printed(reading, {WAVELET: "3.00", HIERARCHICAL: "2.00"})
        assert verdict_of(found).sentence("a design at").endswith("no two columns imply the same")
        found = self.printed(reading, {WAVELET: "3.00", BOUND: f"{factor(reading, BOUND)[0]:.3f}"})
        assert re.fullmatch(
            "AGREES IN PART: bound imply a design at .*; not wavelet",
            verdict_of(found).sentence("a design at"),
        )

    def test_claims_are_held_against_the_best_rival(self, solved: dict[str, Row]) -> None:
        claim = eigen_instances.RANGES
        assert all(eigen_instances.within(solved[each.label], claim) for each in eigen_instances.ranges(quick=True))
        assert not eigen_instances.within(solved["2-way marginals, 4x8x8"], eigen_instances.MARGINALS)
        tight = dataclasses.replace(claim, over_bound="1.0")
        assert not eigen_instances.within(solved["random ranges, 4x8x8"], tight)


class TestDesigns:
    def test_are_certified_and_none_is_below_the_optimum(self, rows: dict[str, Row]) -> None:
        for row in rows.values():
            assert row.outcome is Agreement.AGREE
            for entry in row.parts:
                assert entry.completed[1] >= 1 - 1e-9
                assert entry.completed[0] <= entry.program[1] * (1 + 1e-9)

    def test_the_order_of_the_cells_is_nothing_to_eigen_queries(self, rows: dict[str, Row]) -> None:
        for name in ("all ranges, 128", "2-way marginals, 4x4x8"):
            one, two = rows[name].eigen_queries, rows[f"{name}, permuted"].eigen_queries
            assert one.program == pytest.approx(two.program, rel=1e-5)

    def test_other_bases_fail_on_permuted_cells_and_are_optimal_on_marginals(self, rows: dict[str, Row]) -> None:
        entries = {entry.name: entry for entry in rows["all ranges, 128, permuted"].parts}
        assert entries[FOURIER].program[0] > 1.5
        assert entries[WAVELET].program[0] > 1.5
        entries = {entry.name: entry for entry in rows["2-way marginals, 4x4x8"].parts}
        assert max(entries[FOURIER].program[1], entries[WAVELET].program[1]) < 1 + 1e-5

    def test_the_root_of_the_prefixes_is_their_best_basis(self, rows: dict[str, Row]) -> None:
        best = rows["prefixes, 128"].best
        assert best.name == "root" and best.completed[1] < 1.02
        root = designs.prefix_root(64)
        np.testing.assert_allclose(root @ root, dm.workloads.prefix(64).dense(), atol=1e-12)


class TestReductions:
    def test_cost_little_and_prove_how_much(self) -> None:
        for task in designs.rows_of(64, (2, 4, 8)):
            row = task()
            assert row.outcome is Agreement.AGREE
            whole, *reduced = row.parts
            assert whole.excess <= eigen_instances.DESIGN_TOLERANCE
            assert len(reduced) == len(designs.WAYS) - 1
            for entry in row.parts:
                assert entry.error[1] >= 1 - 1e-9
                assert 0 <= entry.excess < 1
                assert entry.error[0] <= (1 + entry.excess) * 1.1 * whole.error[1]
            assert row.rival[1][1] >= 1 - 1e-9

    def test_are_those_of_the_eigen_design(self) -> None:
        """The workload's eigenvectors are found once; `fast.eigen_design` would find them for every way."""
        workload = designs.ranges_design(64)
        row = designs.rows_of(64, (2, 4, 8))[0]()
        optimum = fast.solve(dm.TotalVariance(workload), tol=1e-6).objective
        for (method, options), entry in zip(designs.WAYS, row.parts, strict=True):
            found = fast.eigen_design(workload, method=method, tol=1e-7, bound_tol=None, **options)  # type: ignore[arg-type]
            low, high = entry.error
            error = math.sqrt(found.total_variance / optimum)
            assert low * (1 - 1e-6) <= error <= high * (1 + 1e-6)

    def test_are_held_against_a_bound_that_is_nearly_the_optimum(self) -> None:
        """One step from the singular value bound; on prefixes, too, where Program 1 is far from it."""
        for workload in (designs.ranges_design(64), dm.workloads.prefix(64)):
            optimum = fast.solve(dm.TotalVariance(workload), tol=1e-7)
            program = dm.QueryWeighting(workload, dm.designs.eigen_queries(workload))
            assert 0.996 * optimum.objective <= designs.bound(program) <= optimum.objective * (1 + 1e-9)

    def test_at_the_papers_size_are_fewer_and_asked_for_by_name(self) -> None:
        for row in (task() for task in designs.large_rows(quick=True)):
            assert row.outcome is Agreement.AGREE and -1e-9 <= row.gap < 0.02
            assert [entry.label for entry in row.parts] == [
                "all eigen-queries",
                "separation, groups of 16",
                "separation, groups of 64",
                "principal, 2% of the cells",
                "principal, 10% of the cells",
            ]


def test_a_completed_total_is_that_of_least_squares() -> None:
    """From a Cholesky factor, or where strategies lack full column rank from least squares themselves."""
    marginals = dm.workloads.marginals((2, 3, 4), ways=1)
    for workload in (dm.workloads.prefix(24), marginals, designs.ranges_design(32)):
        for design in (dm.designs.eigen_queries(workload), np.eye(workload.shape[1])):
            answer = fast.solve(dm.QueryWeighting(workload, design), tol=1e-7)
            completed = strategies.completed(answer.problem.strategy(answer.primal))
            total = strategies.total_variance(completed, workload)
            assert designs.completed_total(answer) == pytest.approx(total, rel=1e-6)


def test_solving_program_1_better_can_make_program_2_worse() -> None:
    for task in designs.completion_rows(quick=True):
        row = task()
        assert row.outcome is Agreement.AGREE
        unsolved, *programs = row.parts
        assert [entry.asked for entry in programs] == list(designs.TOLERANCES)
        for entry in row.parts:
            assert 1 - 1e-9 <= entry.completed <= entry.program * (1 + 1e-9)
        assert min(entry.program for entry in programs) < unsolved.program
        assert programs[-1].completed > max(unsolved.completed, programs[0].completed)


def table(path: Path, records: list[tuple[object, ...]], columns: tuple[str, ...] = ()) -> str:
    lines = [",".join(columns or tuple(relative.FIELDS)), *(",".join(map(str, r)) for r in records)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


class TestRelativeErrors:
    def test_records_are_counted_in_bins_of_equal_width_by_their_weight(self, tmp_path: Path) -> None:
        counts = relative.histogram(table(tmp_path / "t.csv", [(0, 0, 0, 0), (74, 8, 15, 1), (74, 8, 15, 1)]))
        assert counts.shape == (eigen_instances.CELLS,)
        assert (counts[0], counts[-1], counts.sum()) == (1, 2, 3)
        records: list[tuple[object, ...]] = [(0, 0, 0, 0, "2.5"), (0, 0, 0, 0, 4), (74, 8, 15, 1, 0.5)]
        counts = relative.histogram(table(tmp_path / "t.csv", records, (*relative.FIELDS, "weight")))
        assert (counts[0], counts[-1], counts.sum()) == (6.5, 0.5, 7)

    def test_a_table_of_something_else_is_refused(self, tmp_path: Path) -> None:
        weighed = (*relative.FIELDS, "weight")
        cases: list[tuple[list[tuple[object, ...]], tuple[str, ...], str]] = [
            ([(75, 0, 0, 0)], (), "age must be a code from 0 to 74, got 75 in line 2"),
            ([(1, 0, 0.5, 0)], (), "education-num must be a code"),
            ([(1, 0, "?", 0)], (), "line 2"),
            ([(1, 0)], (), "line 2"),
            ([], (), "holds no row"),
            ([(1, 2)], ("age", "workclass"), "lacks 'education-num'"),
            ([(1, 2, 3, 0, "-1")], weighed, "weight must be a number from 0, got -1 in line 2"),
            ([(1, 2, 3, 0, "inf")], weighed, "must be finite"),
            ([(1, 2, 3, 0)], weighed, "line 2"),
        ]
        for records, columns, words in cases:
            with pytest.raises(dm.errors.InvalidInputError, match=re.escape(words)):
                relative.histogram(table(tmp_path / "t.csv", records, columns))

    def test_errors_are_over_those_of_the_design_for_them(self) -> None:
        workload = dm.workloads.marginals([2, 4], ways=(1, 2))
        sets = (("a0",), ("a1",), ("a0", "a1"))
        instance = small(partial(dm.workloads.marginals, [2, 4], ways=(1, 2)), (2, 4), (FOURIER, IDENTITY), tables=sets)
        counts = np.arange(1.0, 9.0) * 100
        row = relative.solve(instance, counts)
        assert row.outcome is Agreement.AGREE
        weights = strategies.relative_weights(workload)
        design = fast.eigen_design(workload, weights=weights).mechanism
        unit = relative.relative_error(workload, counts, design)
        identity = relative.relative_error(workload, counts, rivals.input_perturbation(workload, 1.0))
        assert row.rivals[IDENTITY] == pytest.approx(identity / unit, rel=1e-6)

    def test_noise_and_answers_scale_out(self) -> None:
        workload, counts = dm.workloads.prefix(4), np.array([5.0, 3.0, 8.0, 1.0])
        one, two = (rivals.input_perturbation(workload, cost) for cost in (1.0, 4.0))
        error = relative.relative_error(workload, counts, one)
        assert relative.relative_error(workload, 2 * counts, one) == pytest.approx(error / 2)
        assert relative.relative_error(workload, counts, two) == pytest.approx(error / 2)

    def test_ranges_in_any_order_need_no_matrix(self) -> None:
        rng = np.random.default_rng(3)
        counts, order = rng.integers(0, 20, 9).astype(float), rng.permutation(9)
        ranges = dm.workloads.all_range(9)
        mechanism = dm.LinearGaussianMechanism(np.eye(9), np.eye(9) + np.full((9, 9), 0.3))
        expected = relative.relative_error(ranges, counts[order], mechanism)
        covariance = mechanism.covariance(dm.workloads.identity(9))
        assert relative.range_error(covariance, counts[order]) == pytest.approx(expected)
        weights = strategies.relative_weights(ranges)
        unit = ranges.dense() * np.sqrt(weights)[:, None]
        gram = relative._unit_ranges(9).gram()
        np.testing.assert_allclose(gram, unit.T @ unit, rtol=1e-12)

    def test_permuted_ranges_are_those_of_permuted_cells(self) -> None:
        counts = np.random.default_rng(4).integers(0, 50, 16).astype(float)
        row = relative.line_ranges(counts, permuted=True)
        order = np.random.default_rng(eigen_instances.SEED).permutation(16)
        matrix = np.zeros((136, 16))
        matrix[:, order] = dm.workloads.all_range(16).dense()
        asked = dm.Workload(matrix)
        design = fast.eigen_design(asked, weights=strategies.relative_weights(asked), tol=1e-9).mechanism
        unit = relative.relative_error(asked, counts, design)
        wavelet = relative.relative_error(asked, counts, rivals.wavelet(asked, 1.0, (16,)))
        assert row.certified and row.rivals["wavelet"] == pytest.approx(wavelet / unit, rel=1e-4)


class TestPure:
    def test_weights_gain_and_eigen_queries_are_not_best(self) -> None:
        for task in designs.pure_rows(quick=True):
            row = task()
            assert row.outcome.name == "AGREE" and len(row.parts) == 2
            assert all(1 - 1e-9 <= basis.gain[0] <= basis.gain[1] for basis in row.parts)
            known, eigen = row.parts
            assert known.gain[0] > 1.01 and eigen.name == "eigen-queries"
            assert min(basis.over_best for basis in row.parts) == 1

    def test_equal_weights_are_the_strategy_itself(self) -> None:
        ranges = dm.workloads.all_range(8)
        row = designs.solve_pure("", lambda: ranges, {"wavelet": designs.RANGE_BASES["wavelet"]})
        haar = rivals.haar_matrix((8,))
        answered = ranges.dense() @ np.linalg.inv(haar.toarray() if hasattr(haar, "toarray") else haar)
        low, high = row.parts[0].total
        plain = (answered**2).sum() * 4**2  # the L1 sensitivity is 1 + log2(8)
        assert row.parts[0].gain[0] ** 2 * high == pytest.approx(plain)


class TestReport:
    def test_a_row_shows_printed_beside_computed(self, solved: dict[str, Row]) -> None:
        """A verdict is given at the paper's size."""
        reading = solved["prefixes"]
        text = told(Row({"name": "1D CDF"}, parts=(reading,)))
        for words in ("0.80", "1.01", "256 cells", "NO VERDICT: the paper's numbers are of 2048 cells"):
            assert words in text
        row = Row({"name": "1D CDF"}, parts=(changed(reading, shape=(eigen_instances.CELLS,)),))
        assert re.search("AGREES IN PART: hierarchical, bound imply .*; not wavelet", told(row))


class TestCommand:
    def test_all_of_them_quickly(self, solved: dict[str, Row], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(eigen_instances, "solve", lambda instance: solved[instance.label])
        monkeypatch.setenv("COLUMNS", "200")
        result = run("crosscheck", "eigen/all", "--quick")
        assert result.exit_code == 0
        for words in ("1Way Range", "best rival", "2-way marginals, 4x8x8", "root", "Theorem 2's", "separation"):
            assert words in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "reading", "words"),
    [("1Way Range", 1, "PAPER ABOVE THE OPTIMUM"), ("2Way Range", 0, "THE INSTANCE MAY DIFFER: hierarchical, bound")],
)
def test_verdicts_at_the_papers_size(row: str, reading: int, words: str) -> None:
    found = eigen_instances.solve(dict(eigen_instances.alternatives(quick=False))[row][reading])
    assert found.certified
    assert verdict_of(found).sentence("a design at").startswith(words)
