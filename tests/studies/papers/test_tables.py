"""The paper's tables of ratios: verdicts, instances, what every mechanism needs, and how rows look."""

import dataclasses
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.instances import fitness as instances
from dualmech.crosscheck.instances.fitness import MECHANISMS, RATIO_TABLES
from dualmech.crosscheck.printing import TextTable, rounded_from
from dualmech.crosscheck.sheet import Row, Sheet
from dualmech.studies import rivals
from dualmech.studies.papers import sheets
from dualmech.studies.papers.fitness import figures, ratios
from dualmech.studies.papers.fitness.ratios import SolvedRatios
from dualmech.studies.papers.verdicts import Evidence, Finding, verdict
from dualmech.watching import without_warnings

quick = settings(max_examples=24)

RANGES = [(44, 4), (0, 54), (3, 57), (3, 37)]
RANGES_WITH_TARGETS = [(44, 4), (0, 4), (9, 31), (21, 30)]

TABLES = {table.number: table for table in RATIO_TABLES}


def exact(column: str, value: float, printed: str, weight: int = 1) -> Evidence:
    return Evidence(column, column, (value, value), printed, weight)


def told(tables: Iterator[TextTable]) -> str:
    out = Console(file=io.StringIO(), width=200)
    for each in tables:
        out.print(each)
    return str(out.file.getvalue())  # type: ignore[attr-defined]


def changed(row: Row, **changes: Any) -> Row:
    names = ("table", "row", "readings", "random", "runs")
    return ratios.ratio_row(**{name: getattr(row, name) for name in names} | changes)


@pytest.fixture(scope="session")
def solved() -> Iterator[dict[tuple[int, int], Row]]:
    rows = [(4, 252), (9, 232), (10, 2), (10, 4), (5, 64), (6, 64), (7, 64), (8, 64), (11, 64)]
    yield {(number, row): ratios.solve_row(TABLES[number], row, seeds=2) for number, row in rows}


class TestVerdicts:
    def test_two_columns_against_one_optimum(self) -> None:
        """Both at the optimum agree; both above it condemn the paper, and no cost below a proven bound is believed."""
        columns = [exact("IP", 20.0, "10.00"), exact("CA", 3.0, "1.50")]
        found = verdict(columns, (2.0, 2.000001))
        assert (found.finding, found.fitting, found.others) == (Finding.AGREES, ("IP", "CA"), ())
        found = verdict(columns, (1.8, 1.800001))
        assert found.finding is Finding.ABOVE
        assert found.excess[0] < 2 / 1.8 - 1 < found.excess[1]
        assert verdict(columns, (2.2, 2.200001)).finding is Finding.DIFFERS

    def test_what_decides_nothing(self) -> None:
        """One column, columns of one source, columns or pairs of equal weight that contradict each other."""
        copies = [Evidence(name, "CA", (3.0, 3.0), "1.50") for name in ("CA", "CA as coded")]
        apart = [exact("IP", 20.0, "10.00"), exact("CA", 3.0, "1.60")]
        pairs = [exact("a", 20.0, "10.00"), exact("b", 3.0, "1.50"), exact("c", 9.0, "3.00"), exact("d", 6.0, "2.00")]
        for columns, optimum in (([exact("IP", 20.0, "10.00")], 1.8), (copies, 1.8), (apart, 1.5), (pairs, 1.5)):
            assert verdict(columns, (optimum, optimum + 1e-6)).finding is Finding.DIFFERS, columns

    def test_what_nothing_was_optimised_in_outweighs_the_rest(self) -> None:
        columns = [
            exact("IP", 20.0, "10.00", 3),
            exact("HM", 8.0, "4.00", 2),
            *(exact(name, 3.0, "1.00") for name in ("CA", "wCA-I", "wCA-II")),
        ]
        found = verdict(columns, (1.8, 1.800001))
        assert (found.finding, found.fitting) == (Finding.ABOVE, ("IP", "HM"))
        assert found.others == ("CA", "wCA-I", "wCA-II")

    def test_the_optimum_in_the_common_interval_is_agreement_whoever_else_differs(self) -> None:
        found = verdict(
            [exact("IP", 20.0, "10.0", 3), exact("CA", 3.0, "1.50"), exact("HM", 5.0, "1.00", 2)], (2.0, 2.0)
        )
        assert (found.finding, found.others) == (Finding.AGREES, ("HM",))

    @quick
    @given(st.lists(st.floats(0.5, 500), min_size=2, max_size=5), st.floats(0.5, 50), st.floats(0.5, 1.0))
    def test_rounded_ratios_lead_back_to_their_cost(self, ratios_there: list[float], cost: float, share: float) -> None:
        """Print ratios at a cost, forget it, and hold them against an optimum that is lower or the same."""
        columns = [exact(f"m{j}", ratio * cost, f"{ratio:.2f}") for j, ratio in enumerate(ratios_there)]
        for column in columns:
            assert column.implied[0] <= cost * (1 + 1e-12)
            assert column.implied[1] >= cost * (1 - 1e-12)
        found = verdict(columns, (share * cost, share * cost))
        assert found.implied[0] <= cost * (1 + 1e-12)
        assert found.implied[1] >= cost * (1 - 1e-12)
        assert found.sources == len(columns)
        above = found.implied[0] > share * cost
        assert found.finding is (Finding.ABOVE if above else Finding.AGREES)
        assert found.excess[0] - 1e-12 <= 1 / share - 1 <= found.excess[1] + 1e-12

    def test_half_a_unit_of_the_last_digit(self) -> None:
        assert rounded_from("8.6") == pytest.approx((8.55, 8.65))
        assert rounded_from("1.00") == pytest.approx((0.995, 1.005))


class TestPrinted:
    def test_every_row_has_a_number_for_every_mechanism(self) -> None:
        for table in RATIO_TABLES:
            for row in table.rows:
                printed = table.printed(row)
                assert tuple(printed) == MECHANISMS
                assert printed["SM-II"] == "1.00"
                assert all(float(text) >= 1 for text in printed.values())
                if table.number not in (6, 8):  # equal targets make the weightings of CA one
                    assert printed["CA"] == printed["wCA-I"] == printed["wCA-II"]

    def test_what_the_text_says_of_the_total_error(self) -> None:
        assert TABLES[4].said_of_total_error(252) == "2.07"
        assert [TABLES[10].said_of_total_error(t) for t in (2, 4, 16)] == ["1.1", "1.1 to 1.34", "1.34"]
        assert TABLES[6].said_of_total_error(64) == ""


class TestInstances:
    def test_have_the_sizes_that_the_text_states(self) -> None:
        rows = [(number, row) for number, table in TABLES.items() for row in table.rows if row <= 256]
        for number, row in rows:
            queries = {4: 319, 10: 3 * row + 3 * row**2, 11: row // 2}.get(number, 2 * row)
            cells = row**3 if number == 10 else row
            for instance in instances.readings(number, row):
                workload, targets = instance.build()
                if number != 9:
                    assert workload.shape == (queries, cells), (number, row)
                assert np.ndim(targets) == (number in (6, 8)), (number, row)
        shapes = [instance.build()[0].shape for instance in instances.readings(9, 232)]
        assert shapes == [(351, 232), (348, 232), (580, 232)], "age pyramids are three readings"

    def test_are_drawn_alike_every_time(self) -> None:
        for number in instances.RANDOM_TABLES:
            for instance in (*instances.readings(number, 64), instances.random_instance(number, 64, 3)):
                (one, targets), (two, again) = instance.build(), instance.build()
                np.testing.assert_array_equal(one.dense(), two.dense())
                np.testing.assert_array_equal(targets, again)

    def test_the_codes_draws_are_those_of_the_legacy_generator(self) -> None:
        """The stream of `RandomState` is frozen, so these never change."""
        for number, first in ((5, RANGES), (6, RANGES_WITH_TARGETS)):
            ranges = instances.readings(number, 64)[0].build()[0].dense()
            assert [(int(row.argmax()), int(row.sum())) for row in ranges[:4]] == first
        signs = instances.readings(7, 256)[0].build()[0].dense()
        assert abs(signs.mean()) < 0.01  # fair, whatever the text says
        targets = instances.readings(6, 256)[0].build()[1]
        assert set(np.unique(targets)) == set(range(1, 11))
        as_worded = instances.random_instance(7, 256, 0).build()[0].dense()
        assert as_worded.mean() == pytest.approx(-0.6, abs=0.02)  # mostly negative, in the text


class TestMechanisms:
    @pytest.mark.parametrize(("cells", "target"), [(8, 1.0), (32, 4.0), (32, 100.0)])
    def test_closed_forms_hold_the_optimised_ones(self, cells: int, target: float) -> None:
        def build() -> tuple[dm.Workload, np.ndarray]:
            return dm.workloads.identity_total(cells), np.append(np.ones(cells), target)

        reading = ratios.solve(instances.FitnessInstance("", build))
        assert reading.certified
        best = figures.fitness_noise(cells, target)
        assert reading.cost[0] * (1 - 1e-9) <= best.squared_cost <= reading.cost[1] * (1 + 1e-9)
        for name, power in ratios.CA_WEIGHTINGS.items():
            largest = figures.variance_noise(cells, target**-power).largest_ratio(target)
            low, high = reading.values[name]
            assert low * (1 - 1e-9) <= largest <= high * (1 + 1e-9)

    @pytest.mark.parametrize("number", [6, 11])
    def test_a_coarse_optimum_still_brackets_the_largest_ratio(self, number: int) -> None:
        workload, targets = instances.readings(number, 64)[0].build()
        goals = np.broadcast_to(targets, workload.shape[:1])
        weights, found = goals**-2.0, []
        with without_warnings():
            for tol in (1e-11, 1e-3, 1e-5, 1e-7):
                answer = fast.solve(dm.TotalVariance(workload, weights), tol=tol, method="fixed_point")
                variances = answer.mechanism.variances(workload)
                found.append(ratios._largest_ratio(variances, goals, weights, answer.certificate))
        (least, largest), *coarse = found
        assert all(low <= largest and least <= high for low, high in coarse)

    def test_the_closed_forms_are_the_rivals(self) -> None:
        for number, row in ((4, 252), (6, 64), (9, 232)):
            workload, targets = instances.readings(number, row)[0].build()
            goals = np.broadcast_to(targets, workload.shape[:1])
            tree = rivals.square_root_tree(workload.shape[1])
            for name, mechanism in (
                ("IP", rivals.input_perturbation(workload, cost=1.0)),
                ("HM", tree.mechanism(1.0)),
            ):
                assert mechanism.squared_privacy_cost == pytest.approx(1)
                low, high = ratios._closed_forms(workload, goals)[name]
                assert low <= (mechanism.variances(workload) / goals).max() <= high, (number, name)

    def test_every_optimum_of_the_small_rows_is_certified(self, solved: dict[tuple[int, int], Row]) -> None:
        """Nothing beats the best fit, and CA has the least total; the words' first weighting is the code's second."""
        for row in solved.values():
            assert row.outcome is Agreement.AGREE
            assert row.gap <= ratios.COST_TOLERANCE
            for reading in row.readings:
                low, high = reading.cost
                assert high - low <= 1.01e-6 * low
                assert all(reading.ratio(name)[1] >= 1 for name in ratios.RIVALS)
                assert reading.total_error >= 1 - 1e-6
        for number in (6, 8):
            reading = solved[number, 64].readings[0]
            assert reading.words["wCA-I"] == reading.values["wCA-II"]


class TestTheTables:
    def test_table_4_implies_a_cost_far_above_the_optimum(self, solved: dict[tuple[int, int], Row]) -> None:
        row = solved[4, 252]
        assert row.readings[0].values["IP"] == pytest.approx((126, 126), rel=1e-9)
        found = row.verdicts[0]
        assert found.finding is Finding.ABOVE
        assert {"IP", "HM", "CA"} <= set(found.fitting)
        assert found.implied[0] <= 126 / 36.56 <= found.implied[1]
        assert found.excess == pytest.approx((0.1435, 0.1439), abs=1e-4)
        assert row.readings[0].ratio("IP") == pytest.approx((41.8128, 41.8128), abs=1e-4)

    def test_table_10_is_above_the_optimum(self, solved: dict[tuple[int, int], Row]) -> None:
        """Its CA has the ridge of the code."""
        for t, least in ((2, 0.0044), (4, 0.0127)):
            found = solved[10, t].verdicts[0]
            assert found.finding is Finding.ABOVE
            assert {"IP", "HM"} <= set(found.fitting)
            assert found.excess[0] > least
        assert "CA as coded" in found.fitting and "CA" in found.others

    def test_table_9_fits_one_reading_best(self, solved: dict[tuple[int, int], Row]) -> None:
        """A reading that fewer columns fit is withdrawn."""
        row = solved[9, 232]
        assert [found.finding for found in row.verdicts] == [Finding.DIFFERS, Finding.DIFFERS, Finding.ABOVE]
        for reading in row.readings:  # the worst query of all three is everybody's, 232 cells
            assert reading.values["IP"] == pytest.approx((232, 232), rel=1e-9)
        assert changed(row, readings=row.readings[:1]).verdicts[0].finding is Finding.ABOVE

    def test_the_codes_draws_bring_the_random_tables_back(self, solved: dict[tuple[int, int], Row]) -> None:
        above = {5: 0.0013, 6: 0.0120, 8: 0.0023, 11: 0.0436}
        for number, least in above.items():
            found = solved[number, 64].verdicts[0]
            assert found.finding is Finding.ABOVE
            assert {"IP", "HM"} <= set(found.fitting)
            assert found.excess[0] > least
        assert solved[7, 64].verdicts[0].finding is Finding.AGREES

    def test_the_spread_is_over_all_seeds(self, solved: dict[tuple[int, int], Row]) -> None:
        """Table 7 is not of the signs that the text describes."""
        assert not ratios.within_spread(solved[7, 64], "IP")
        assert ratios.spread(solved[7, 64], "IP")[0] > 1.4
        row = solved[5, 64]
        assert len(row.random) == 2
        low, high = ratios.spread(row, "IP")
        for reading in row.random:
            assert low <= reading.ratio("IP")[0] <= reading.ratio("IP")[1] <= high
        shifted, outside = (
            dataclasses.replace(row, values={**row.values, "printed": row.printed | {"IP": f"{at:.2f}"}})
            for at in ((low + high) / 2, high + 1)
        )
        assert ratios.within_spread(shifted, "IP") and not ratios.within_spread(outside, "IP")

    def test_what_is_not_certified_is_wide(self, solved: dict[tuple[int, int], Row]) -> None:
        row = solved[10, 2]
        loose: SolvedRatios = dataclasses.replace(row.readings[0], certified=False)
        wide = changed(row, readings=(loose,))
        assert wide.outcome is Agreement.WIDE
        assert "WIDE" in told(ratios.tables(wide))


LARGER = [(10, 6), (10, 8), (10, 10)] + [(n, d) for n in instances.RANDOM_TABLES for d in (128, 256)]

OPEN = {(5, 128)}
"""Rows of which no two columns imply one cost."""

AGREEING = {(7, 128)}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "row"), LARGER)
def test_larger_rows_are_certified_and_their_verdicts_stand(number: int, row: int) -> None:
    solved_row = ratios.solve_row(TABLES[number], row, seeds=0)
    assert solved_row.outcome is Agreement.AGREE
    expected = Finding.DIFFERS if (number, row) in OPEN else Finding.ABOVE
    assert solved_row.verdicts[0].finding is (Finding.AGREES if (number, row) in AGREEING else expected)


class TestRace:
    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
    def test_the_papers_optimisers_meet_the_certified_interval(self) -> None:
        row = ratios.race(4, limit=0.2)
        assert row.outcome is Agreement.AGREE
        assert list(row.answers) == ["softmax_gradient", "softmax_newton", "dual"]
        assert row.gap <= 1e-6
        lying = dataclasses.replace(row.answers["dual"], values={"interval": (1.0, 1.1)})
        assert ratios.raced(4, 0.2, {"lying": lying} | row.answers).outcome is Agreement.DISAGREE


class TestReport:
    def test_a_row_shows_printed_beside_certified_with_a_verdict(self, solved: dict[tuple[int, int], Row]) -> None:
        text = told(ratios.tables(solved[4, 252]))
        for words in ("36.56", "41.8128", "319 queries x 252 cells", "PAPER ABOVE THE OPTIMUM by 14.35 %", "2.07"):
            assert words in text
        text = told(ratios.tables(solved[6, 64]))
        for words in ("as worded", "as the code, seed 0", "as the text, 2 seeds", "INSTANCE IS RANDOM"):
            assert words in text
        assert "THE INSTANCE MAY DIFFER" in told(ratios.tables(solved[9, 232]))
        assert "AGREES IN PART: IP, CA" in told(ratios.tables(solved[7, 64]))


class TestCommand:
    def test_a_papers_tables_go_by_its_name(self) -> None:
        """But for those that take an hour; the names that help lists are those of the sheets."""
        help_text = " ".join(run("crosscheck", "--help").output.split())
        for paper, names in sheets.PAPERS.items():
            apart = {"eigen": ["reductions8192"], "local": ["epsilon512", "size"]}.get(paper, [])
            assert [*sheets.loaded(paper)] == names
            listed = [f"{paper}/{each}" for each in names if each not in apart]
            assert list(sheets.select_sheets([f"{paper}/all"])) == listed
            assert all(f"{paper}/{each}" in help_text for each in (*names, "all"))

    def test_names_are_checked_before_any_work(self) -> None:
        for unknown, known in (("fitness/2", "fitness/table11"), ("eigen", "eigen/all")):
            with pytest.raises(dm.errors.InvalidInputError, match=known):
                sheets.select_sheets([unknown])
        assert list(sheets.select_sheets([])) == ["fitness/table2"]
        for named in (["eigen/ranges", "fitness/table4"], ["eigen/reductions8192"]):
            assert list(sheets.select_sheets(named)) == named

    def test_several_at_once_in_order_and_a_time_limit_lets_published_solvers_run_at_every_size(self) -> None:
        result = run(
            *("crosscheck", "fitness/table10", "fitness/figure1", "--quick", "--jobs", "2", "--time-limit", "0.01")
        )
        assert result.exit_code == 0
        assert result.output.count("SM-II run here, as coded, B = I") == 3
        assert result.output.count("CAPPED") == 4, "three runs and the legend"
        places = [result.output.index(words) for words in ("t = 2", "t = 4", "t = 6", "fitness/figure1")]
        assert places == sorted(places)
        refused = run("crosscheck", "fitness/figure1", "--time-limit", "1")
        assert "fitness/table2, fitness/table3" in str(refused.exception)
        assert "time_limit must be positive" in str(run("crosscheck", "--time-limit", "0").exception)

    def test_published_solvers_run_up_to_64_cells_without_one(self) -> None:
        tasks: Any = sheets.SHEETS["fitness/table10"].tasks(True)
        assert {task.args[-1][0] for task in tasks} == {64}
        (few,), (many,) = (ratios._published_runs(10, instances.readings(10, row), 8, 0.01) for row in (2, 4))
        assert few is not None and few.basis == "I" and many is None

    def test_exit_status(self, monkeypatch: pytest.MonkeyPatch) -> None:
        agree, wide, disagree = Agreement.AGREE, Agreement.WIDE, Agreement.DISAGREE
        shown: list[object] = []
        sheet = Sheet("nowhere", lambda quick: [], lambda out, title, rows: shown.extend(rows))
        monkeypatch.setattr(sheets, "SHEETS", {"stub": sheet})
        for outcomes, status in (([agree], 0), ([wide, agree], 3), ([wide, disagree], 4)):
            rows = [Row.compared({}, 0.0, each) for each in outcomes]
            monkeypatch.setattr(sheets, "compute", lambda *arguments, rows=rows: [iter(rows)])
            shown.clear()
            assert run("crosscheck", "stub").exit_code == status and shown == rows
