"""The common-mechanism paper's tables: examples, privacy saved, the census chain, decisions, thresholds."""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commanded import run
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.adaptive.decisions import SignalToNoiseRule
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.instances import common as instances
from dualmech.crosscheck.instances.common import (
    ACCURACY,
    BRAZIL,
    BUCKETS,
    CHOICES,
    HISRACE_CELLS,
    HISRACE_TABLES,
    TABLE_7,
)
from dualmech.crosscheck.sheet import Row
from dualmech.studies import rivals
from dualmech.studies.papers import sheets as tables
from dualmech.studies.papers.common import census as common_census
from dualmech.studies.papers.common import decisions
from dualmech.studies.papers.common import examples as common_examples
from dualmech.studies.papers.common.census import BASIS, CODE, OWN, POPULATIONS, PRIMARY, TEXT, UNSHARED
from dualmech.studies.papers.common.decisions import ESTIMATED, SUMMED, CensusBlocks
from dualmech.studies.rivals import census
from dualmech.validate import Array

MISPRINTS = {(2, "1/8"): 99.93, (6, "0.3"): 110.0}
"""Rows whose two shares do not add up to 100."""


@pytest.fixture(scope="module")
def examples() -> Iterator[dict[str, Row]]:
    found = [task() for task in common_examples.examples(quick=False)]
    yield {example.name: example for example in found}


@pytest.fixture(scope="module")
def savings() -> Iterator[dict[str, Row]]:
    found = [task() for task in common_census.savings(quick=True)]
    yield {saving.choice: saving for saving in found}


@pytest.fixture(scope="module")
def table_7() -> Iterator[Row]:
    (task,) = common_census.census(quick=False)
    yield task()


class TestPrinted:
    def test_shares_add_up_but_for_two_misprints(self) -> None:
        found = {}
        for table in ACCURACY:
            for row, (first, second, _) in table.rows.items():
                if abs(float(first) + float(second) - 100) > 0.011:
                    found[table.number, row] = round(float(first) + float(second), 2)
        assert found == MISPRINTS
        for each in TABLE_7.values():
            assert sum(map(float, each.shares)) == pytest.approx(100, abs=0.011)
        assert [float(Fraction(rho)) for rho in TABLE_7] == [1 / (2 * s * s) for s in (2, 4, 6, 8, 10, 12)]
        assert ACCURACY[2].setting("3") == instances.Setting(1 / 8, 0.5, 3)
        assert ACCURACY[6].setting("1/32").rho == 1 / 32

    def test_one_setting_has_one_row_wherever_it_stands(self) -> None:
        """Which shows which digits of the misprints are wrong."""
        rows: dict[object, set[tuple[str, ...]]] = {}
        for table in ACCURACY:
            for row, texts in table.rows.items():
                rows.setdefault((table.choice, table.setting(row)), set()).add(texts)
        repeated = [found for found in rows.values() if len(found) > 1]
        assert {("84.12", "15.81", "98.84"), ("84.19", "15.81", "98.83")} in repeated
        for found in repeated:
            accuracies = [float(accuracy) for *_, accuracy in found]
            assert max(accuracies) - min(accuracies) <= 0.021


class TestInstances:
    def test_all_mechanisms_cost_the_same(self) -> None:
        mechanisms = [each for choice in CHOICES.values() for each in choice.mechanisms]
        mechanisms += [*instances.census(), *instances.census(by_gender=False)]
        assert [each.squared_privacy_cost for each in mechanisms] == pytest.approx([1] * len(mechanisms))

    def test_histograms_are_nested_partitions(self) -> None:
        for coarse, fine in itertools.pairwise(BUCKETS.values()):
            assert set(coarse) < set(fine)
        for name, edges in BUCKETS.items():
            assert edges == tuple(sorted(edges))
            assert np.all(instances.histogram(name).dense().sum(axis=0) == 1)

    def test_sums_of_cells_are_what_they_say_and_the_published_codes_factors(self) -> None:
        """Two cells of variance 21, 64 cells of variance 1, 2 or 101 cells of variance 1."""
        factors = {}
        for name, choice in CHOICES.items():
            primary, secondary = choice.workloads
            variances = instances.summed_variances(primary, secondary)
            found = decisions.cell_sums(primary, secondary).variances(primary)
            np.testing.assert_allclose(found, variances)
            assert np.all(choice.mechanisms[1].variances(primary) <= variances * (1 + 1e-12)), name
            factors[name] = set(variances)
        assert factors == {HISRACE_TABLES: {42.0}, HISRACE_CELLS: {64.0}, BRAZIL: {2.0, 101.0}}


class TestExamples:
    def test_every_statement_holds_but_for_three_matrices_of_the_text_at_hand(self, examples: dict[str, Row]) -> None:
        assert list(examples) == ["lemma 2.4", "3.3", "3.8", "3.12", "section 4"]
        for example in examples.values():
            assert example.outcome is Agreement.AGREE
            assert example.gap <= 1e-13
        lost = [fact.statement for each in examples.values() for fact in each.parts if not fact.printed]
        assert [statement[:3] for statement in lost] == ["M_b", "M_a", "M_4"]
        assert common_examples.example("3.8", {"M_3 is maximal": 1.0}).outcome is Agreement.DISAGREE


class TestPicture:
    """Bounds that are proven, minimal, and touch what they bound."""

    def test_both_bounds_are_minimal_and_touch(self) -> None:
        for name in common_examples.FAMILIES:
            found = common_examples.family_with_bounds(name)
            assert found.outcome is Agreement.AGREE and found.gap <= 1e-9, name
            assert np.trace(found.covariance) <= np.trace(found.other) * (1 + 1e-9), name
            assert np.linalg.det(found.volume) <= np.linalg.det(found.covariance) * (1 + 1e-7), name
            for covariance in (found.covariance, found.other, found.volume):
                least = [float(np.linalg.eigvalsh(covariance - bound)[0]) for bound in found.bounds]
                assert min(least) > -1e-9 and sum(each < 1e-4 for each in least) >= 2, name

    def test_the_command_shows_them(self) -> None:
        result = run("crosscheck", "common/ellipses")
        assert result.exit_code == 0 and result.output.count("yes") == len(common_examples.FAMILIES)


class TestSaved:
    def test_printed_numbers_are_the_common_mechanisms_own_cost(self, savings: dict[str, Row]) -> None:
        for saving in savings.values():
            assert saving.outcome is Agreement.AGREE
            assert common_census.fits(saving, OWN) and common_census.fits(saving, BASIS)
            assert not common_census.fits(saving, PRIMARY)
            assert saving.readings[PRIMARY][1] < saving.readings[OWN][0]
        asked = {name: saving.layers for name, saving in savings.items()}
        assert asked == {HISRACE_TABLES: Agreement.AGREE, HISRACE_CELLS: Agreement.AGREE, BRAZIL: None}

    def test_one_way_marginals_have_a_closed_form(self, savings: dict[str, Row]) -> None:
        """By symmetry, r binary tables of variance v cost (1 + √r)² / 4v."""
        for name, variance in ((HISRACE_TABLES, 4.5), (HISRACE_CELLS, 64.0)):
            low, high = savings[name].readings[PRIMARY]
            assert low * (1 - 1e-9) <= 100 * (1 + 7**0.5) ** 2 / (4 * variance) <= high * (1 + 1e-9)

    @given(st.integers(0, 1000))
    @settings(max_examples=10)
    def test_as_good_on_its_own_queries_costs_the_mean_of_the_profile_or_more(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(3, 5))
        mechanism = dm.LinearGaussianMechanism(rng.normal(size=(3, 5)), root @ root.T)
        queries = common_census.principal_queries(mechanism)
        found = common_census.least_cost_as_accurate(mechanism, queries)
        noise = mechanism.covariance(queries)
        np.testing.assert_allclose(noise, np.diag(np.diagonal(noise)), atol=1e-8 * np.trace(noise))
        assert found.objective >= mechanism.profile.mean() * (1 - 1e-6)
        assert found.lower_bound <= mechanism.squared_privacy_cost * (1 + 1e-6)

    def test_what_is_not_proven_is_wide_and_layers_that_disagree_are_said(self) -> None:
        held = partial(common_census.held, {}, 0.0)
        assert held(True, None, True).outcome is Agreement.AGREE
        assert held(False, None, True).outcome is held(True, None, False).outcome is Agreement.WIDE
        for outcome in Agreement:
            assert held(True, outcome, True).outcome is outcome


class TestCensus:
    def test_the_chain_knows_each_bucket_as_well_as_the_finest_histogram(self) -> None:
        chain, found = common_census.stages(by_gender=True)
        assert found.certified and found.maximal
        fine = instances.histogram("Age23").dense()
        for stage, name in zip(chain.stages, BUCKETS, strict=False):
            queries = instances.histogram(name)
            parts = (queries.dense() @ fine.T > 0).sum(axis=1)
            np.testing.assert_allclose(stage.known.variances(queries), parts, rtol=1e-6)

    def test_the_third_decision_costs_everything(self, table_7: Row) -> None:
        text, code = table_7.parts
        assert (text.name, code.name) == (TEXT, CODE)
        for each, first in ((text, 1 / 23), (code, 1 / 46)):
            exact = (first, 1 / 4, 1.0)
            for (low, high), own, cost in zip(each.costs, each.own, exact, strict=True):
                assert low * (1 - 1e-9) <= cost <= high * (1 + 1e-9)
                assert own == pytest.approx(cost, rel=1e-6)
            assert each.unshared == pytest.approx((first, 1 / 4, 1 / 2), rel=1e-6)

    def test_one_reading_fits_all_rows_but_two_misprints(self, table_7: Row) -> None:
        assert table_7.outcome is Agreement.AGREE
        fits = {
            name: [row.rho for row in table_7.rows if common_census.fits(row, name)]
            for name in table_7.rows[0].readings
        }
        assert fits[TEXT] == fits[CODE] == []
        assert fits[TEXT + UNSHARED] == ["1/8"]
        assert fits[CODE + UNSHARED] == ["1/8", "1/72", "1/128", "1/200"]
        found = {row.rho: common_census.misprint(row, CODE + UNSHARED) for row in table_7.rows}
        assert {rho: text for rho, text in found.items() if text} == {"1/32": "49.49", "1/288": "44.06"}

    @given(st.integers(0, 10_000))
    @settings(max_examples=50)
    def test_bounds_hold_for_whatever_shares_were_rounded(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shares = 100 * rng.dirichlet([1.0] * 4)
        costs = np.sort(rng.random(3))
        low, high = common_census.saved([f"{share:.2f}" for share in shares], [(cost, cost) for cost in costs])
        value = shares @ [*costs, costs[-1]]
        assert low - 1e-12 <= value <= high + 1e-12
        assert high - low <= 0.02


class TestPopulation:
    def test_a_seed_gives_one_population_of_counts(self) -> None:
        for population in POPULATIONS.values():
            counts = population.draw(blocks=50, seed=3)
            np.testing.assert_array_equal(counts, population.draw(blocks=50, seed=3))
            assert not np.array_equal(counts, population.draw(blocks=50, seed=4))
            assert counts.shape == (50, len(population.mean))
            assert np.all(counts == np.rint(counts)) and counts.min() >= 0
            assert counts.sum(axis=1).min() >= 1 and population.mean.sum() == pytest.approx(1)

    def test_compositions_are_spread_around_the_mean(self) -> None:
        population = dataclasses.replace(POPULATIONS["AgeGender"], median=1000.0, spread=0.0, small=0.0)
        counts = population.draw(blocks=4000, seed=0)
        assert counts.sum(axis=1) == pytest.approx(1000)
        mean, error = counts.mean(axis=0) / 1000, counts.std(axis=0) / 1000 / np.sqrt(4000)
        assert np.all(np.abs(mean - population.mean) <= 5 * error)

    def test_noise_owes_nothing_to_the_numbers_that_sizes_were_drawn_with(self) -> None:
        """From one seed for both, every block's noise in the total would be the very number that made its size."""
        sizes = np.log(POPULATIONS["AgeGender"].draw(500).sum(axis=1))
        noise = rivals.input_perturbation(dm.workloads.total(1), 1.0).simulate(
            np.zeros((500, 1)), common_census.NOISE_SEED
        )
        assert abs(np.corrcoef(sizes, noise[:, 0])[0, 1]) < 4 / np.sqrt(500)

    def test_files_are_checked(self, tmp_path: Path) -> None:
        np.save(tmp_path / "few.npy", np.ones((2, 7)))
        np.save(tmp_path / "low.npy", -np.ones((2, 206)))
        with pytest.raises(dm.errors.InvalidInputError, match=r"206 cells per block, .*few\.npy has 7"):
            common_census.read_counts(str(tmp_path / "few.npy"), 206)
        with pytest.raises(dm.errors.InvalidInputError, match="must be counts"):
            common_census.read_counts(str(tmp_path / "low.npy"), 206)
        with pytest.raises(dm.errors.FileFormatError):
            common_census.read_counts(str(tmp_path / "none.npy"), 206)


def blocks(counts: Array) -> CensusBlocks:
    return CensusBlocks("test", np.asarray(counts, dtype=np.float64), real=True)


def synthetic(choice: str, number: int) -> CensusBlocks:
    return decisions.blocks_of(decisions.POPULATION[choice], number)


class TestDecisions:
    @pytest.mark.parametrize("table", [ACCURACY[0], ACCURACY[1], ACCURACY[6]], ids=lambda table: table.choice)
    def test_right_choices_are_those_of_exact_counts(self, table: instances.AccuracyTable) -> None:
        """Against the rule written out, on counts and noise in their own units."""
        drawn = synthetic(table.choice, 30)
        found = decisions.solve(table, drawn)
        primary, secondary = CHOICES[table.choice].workloads
        parts = instances.summed_variances(primary, secondary)
        for row in found.parts:
            setting = table.setting(row.name)
            first = 0
            for counts in drawn.counts:
                signal = [
                    query @ counts / np.sqrt(variance / (2 * setting.rho))
                    for query, variance in zip(primary.dense(), parts, strict=True)
                ]
                reached = sum(value >= setting.level - 1e-6 for value in signal)
                first += reached < setting.share * len(signal) - 1e-9
            assert row.values[SUMMED].first == pytest.approx(100 * first / len(drawn.counts))

    def test_a_population_without_doubt_is_decided_right(self) -> None:
        counts = np.vstack([np.full((5, 128), 10_000.0), np.zeros((5, 128))])
        found = decisions.solve(ACCURACY[0], blocks(counts))
        for row in found.parts:
            for outcome in (row.values[SUMMED], row.values[ESTIMATED]):
                assert (outcome.first, outcome.plain, outcome.sure) == (50, 100, 100)

    def test_a_margin_makes_choices_worse_and_sums_make_the_finer_mechanism_look_worse(self) -> None:
        found = decisions.solve(ACCURACY[0], synthetic(HISRACE_TABLES, 1000))
        assert found.outcome is Agreement.AGREE
        for row in found.parts:
            summed, estimated = (row.values[name] for name in (SUMMED, ESTIMATED))
            assert summed.first > estimated.first
            assert all(outcome.sure < outcome.plain for outcome in (summed, estimated))

    def test_printed_accuracies_are_those_without_a_margin(self) -> None:
        """On blocks that only look like the paper's: within 1.5 points without one, and further off with one."""
        for table in ACCURACY[:2]:
            found = decisions.solve(table, synthetic(table.choice, 10_000))
            for row in found.parts:
                outcome, accuracy = row.values[SUMMED], float(row.printed[2])
                assert abs(outcome.plain - accuracy) < min(1.5, abs(outcome.sure - accuracy))

    def test_files_get_a_verdict(self) -> None:
        found = decisions.solve(ACCURACY[0], synthetic(HISRACE_TABLES, 200))
        row = found.parts[0]
        outcome = row.values[SUMMED]
        for texts, fits in (
            ((f"{outcome.first:.2f}", "", f"{outcome.plain:.2f}"), True),
            (("0.00", "", "50.00"), False),
        ):
            assert decisions.half_fits(dataclasses.replace(row, values={**row.values, "printed": texts})) is fits

    def test_a_count_that_reaches_the_level_exactly_is_enough(self) -> None:
        """At ρ = 1 and y = 3, two cells of noise 1/√2 each need three people: the paper's 71.47 twice."""
        ages = np.zeros((1, 202))
        ages[0, :80] = 1.5
        table = next(each for each in ACCURACY if each.number == 5)
        found = decisions.solve(table, blocks(ages))
        assert {row.values[SUMMED].first for row in found.parts if row.name in ("1", "2")} == {0}


FITS = (census.logistic_thresholds, census.best_thresholds)


class TestThresholds:
    def test_best_thresholds_are_the_best_of_all(self) -> None:
        for seed in range(25):
            rng = np.random.default_rng(seed)
            counts, choices = rng.integers(0, 7, 12).astype(float), rng.integers(0, 3, 12)
            edges = np.append(np.arange(8.0), np.inf)
            every = [
                np.sum(census.Thresholds(pair).choose(counts) == choices)
                for pair in itertools.combinations_with_replacement(edges, 2)
            ]
            found = census.best_thresholds(counts, choices, 3)
            assert np.sum(found.choose(counts) == choices) == max(every)

    @given(st.integers(0, 10_000))
    @settings(max_examples=20)
    def test_no_tuning_beats_the_best(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        counts = np.rint(rng.lognormal(rng.uniform(0, 9), rng.uniform(0, 2), 40))
        choices = rng.integers(0, 4, 40)
        tuned, best = (np.sum(fit(counts, choices, 4).choose(counts) == choices) for fit in FITS)
        assert tuned <= best

    def test_tuned_ones_are_those_of_the_likeliest_choice(self) -> None:
        """The fit has no slope left, and its choice is the largest of the fitted log-odds everywhere."""
        rng = np.random.default_rng(1)
        counts = np.rint(rng.lognormal(6, 1, 800))
        choices = np.searchsorted([150.0, 500.0, 900.0], counts * rng.lognormal(0, 0.3, 800))
        features = np.stack([np.ones(800), (counts - counts.mean()) / counts.std()], axis=1)
        scores = census._fit(features, np.eye(4)[choices])
        odds = np.exp(features @ scores)
        slope = features.T @ (odds / odds.sum(axis=1, keepdims=True) - np.eye(4)[choices]) / 800
        assert np.abs(slope + 2 * census.RIDGE * scores).max() < 1e-6
        found = census.logistic_thresholds(counts, choices, 4)
        np.testing.assert_array_equal(found.choose(counts), np.argmax(odds, axis=1))

    def test_a_choice_that_is_never_right_gets_no_interval(self) -> None:
        counts = np.arange(60.0)
        choices = np.where(counts < 30, 0, 2)
        for fit in FITS:
            found = fit(counts, choices, 4)
            np.testing.assert_array_equal(found.choose(counts), choices)

    def test_equal_counts_get_the_commonest_choice(self) -> None:
        for counts, choices in (([5.0, 5.0, 5.0], [1, 1, 0]), ([5.0], [1])):
            for fit in FITS:
                assert set(fit(counts, choices, 2).choose(counts)) == {1}

    def test_what_is_none_is_refused(self) -> None:
        for counts, choices, options, words in (
            ([1, 2], [0, 2], 2, "between 0 and 1"),
            ([1, 2], [0], 2, "2 integers"),
            ([1, 2], [0, 0.5], 2, "integers"),
            ([1, 2], [0, 0], 1, "at least 2"),
            ([1, np.nan], [0, 0], 2, "finite"),
        ):
            for fit in FITS:
                with pytest.raises(dm.errors.InvalidInputError, match=words):
                    fit(counts, choices, options)
        with pytest.raises(dm.errors.InvalidInputError, match="increasing"):
            census.Thresholds([2.0, 1.0])

    def test_thresholds_cannot_follow_choices_that_fall_with_counts(self) -> None:
        counts, choices = np.arange(20.0), (np.arange(20) < 12).astype(int)
        for fit in FITS:
            assert set(fit(counts, choices, 2).choose(counts)) == {1}

    def test_right_choices_stop_at_the_first_histogram_that_cannot_be_refined(self) -> None:
        chain = fast.chain(instances.census(by_gender=False))
        rule = SignalToNoiseRule(chain, 0.5, 20.0, 0.0)
        counts = POPULATIONS["AgeGender"].draw(blocks=40, seed=5) * np.linspace(0.01, 1, 40)[:, None]
        found = decisions.right_choices(rule, counts)
        assert set(found) == {0, 1, 2, 3}
        names, fine = list(BUCKETS), instances.histogram
        for block, choice in zip(counts, found, strict=True):
            stage = 0
            while stage < 3:
                queries = fine(names[stage], by_gender=False).dense()
                parts = (queries @ fine(names[stage + 1]).dense().T > 0).sum(axis=1)
                if np.mean(queries @ block / np.sqrt(parts) >= 20) < 0.5:
                    break
                stage += 1
            assert stage == choice

    def test_the_chain_beats_all_thresholds_without_a_margin_and_loses_with_one(self) -> None:
        for rho in ("1/32", "1/200"):
            row = decisions.of_population(rho, 2000)
            assert row.outcome is Agreement.AGREE
            assert row.tuned <= row.best < row.chain[0.0]
            assert row.chain[3.0] < row.tuned
            assert row.finer[3.0] <= row.finer[0.0]
            assert sum(row.shares) == pytest.approx(100)
            first, second, *others = row.shares
            assert row.saved == pytest.approx(first / 46 + second / 4 + sum(others), rel=1e-6)
            shares = tuple(f"{share:.2f}" for share in row.shares)
            printed = dataclasses.replace(TABLE_7[rho], shares=shares, accuracy=f"{row.chain[0.0]:.2f}")
            assert not decisions.as_printed(row)
            assert decisions.as_printed(dataclasses.replace(row, values={**row.values, "printed": printed}))


class TestGrid:
    """Settings of one's own in place of the printed ones."""

    @staticmethod
    def write(tmp_path: Path, *lines: str) -> str:
        path = tmp_path / "grid.csv"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def test_a_printed_setting_gives_the_row_of_the_table(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, "rho,x,y", "0.125,0.5,5", "2,0.5,5")
        drawn = {half.table.choice: half for half in (task() for task in decisions.halves("HisRace", True)[:2])}
        for task in decisions.halves("HisRace", True, grid=path):
            own = task()
            assert own.own and not own.judged
            tabled = drawn[own.table.choice]
            printed = {row.name: row for row in tabled.parts}
            for name, row in zip(("1/8", "2"), own.parts, strict=True):
                assert all(printed[name].values[each] == row.values[each] for each in (SUMMED, ESTIMATED))

    def test_settings_that_differ_in_anything_are_rows_of_their_own(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, "rho,gamma", "0.5,0.1", "0.5,0.2", "0.5,0.1", "0.50000001,0.1")
        assert len(decisions.rows(True, grid=path)) == 3
        (two, cells) = decisions.halves("HisRace", True, grid=path)
        assert all(len(task.args[1]) == 2 for task in (two, cells))  # type: ignore[attr-defined]

    def test_sigma_is_the_noise_of_the_coarser_mechanism(self, tmp_path: Path) -> None:
        """Seven one-way marginals at ρ = 1/8: variance 7 / 2ρ = 28."""
        by_noise = decisions.read_grid(self.write(tmp_path, "sigma", repr(28**0.5)), ACCURACY[0].fixed, 7.0)
        assert [each.rho for each in by_noise] == [pytest.approx(1 / 8)]
        assert (by_noise[0].share, by_noise[0].level) == (0.5, 5)

    def test_what_is_no_grid_is_refused_by_name(self, tmp_path: Path) -> None:
        for lines, words in (
            (["1,2"], "a header"),
            (["rho,z", "1,2"], "a header of columns out of rho"),
            (["rho,sigma", "1,2"], "either rho or sigma"),
            (["x,y", "0.5,2"], "either rho or sigma"),
            (["rho,x", "1,1.5"], "setting 1: x must be at most 1"),
            (["rho,gamma", "1,0.5", "1,-1"], "setting 2: gamma"),
            (["rho", "inf"], "finite"),
        ):
            path = self.write(tmp_path, *lines)
            with pytest.raises(dm.errors.FileFormatError, match=words):
                decisions.read_grid(path, ACCURACY[0].fixed, 7.0)
            refused = run("crosscheck", "common/thresholds", "--grid", path)
            assert words in str(refused.exception)
        refused = run("crosscheck", "common/saved", "--grid", self.write(tmp_path, "rho", "1"))
        assert "common/hisrace, common/brazil, common/thresholds" in str(refused.exception)

    def test_the_command_takes_a_grid_on_a_file_of_blocks(self, tmp_path: Path) -> None:
        path = str(tmp_path / "blocks.npy")
        np.save(path, POPULATIONS["AgeGender"].draw(blocks=20, seed=1))
        settings = self.write(tmp_path, "rho,y,gamma", "0.03125,20,0.5", "0.5,10,0.5")
        result = run("crosscheck", "common/thresholds", "--data", path, "--grid", settings)
        said = " ".join(result.output.split())
        assert result.exit_code == 0 and "γ = 0.5 of ρ" in said and "0.5, 0.5, 10" in said
        assert "printed" not in said

    def test_a_count_that_costs_next_to_nothing_says_nothing(self) -> None:
        drawn = decisions.blocks_of(decisions.AGES, 400)
        exact, noisy = (
            decisions.solve_thresholds("own", drawn, instances.Setting(1 / 128, 0.5, 20, gamma)) for gamma in (1, 1e-9)
        )
        assert exact.best == noisy.best
        assert noisy.noisy < exact.noisy <= 100


class TestCommand:
    @pytest.mark.slow
    def test_all_of_them_quickly(self) -> None:
        result = run("crosscheck", "common/all", "--quick")
        assert result.exit_code == 0
        for words in (
            "M_4 is maximal",
            "73.8417 % NO",
            "(44.06)",
            "4 of 6 rows fit, 2 more would with one digit changed",
            "1000 blocks of synthetic HisRace",
            "there is no verdict",
            "best thresholds",
        ):
            assert words in " ".join(result.output.split())
        assert "WIDE" not in result.output
        assert max(map(len, result.output.splitlines())) <= 132

    def test_a_file_goes_to_the_tables_that_it_fits(self, tmp_path: Path) -> None:
        path = str(tmp_path / "tracts.npy")
        np.save(path, POPULATIONS["AgeGender"].draw(blocks=30, seed=1).astype(np.int32))
        chosen = tables.select_sheets(["common/hisrace", "common/thresholds"])
        tasks = tables.planned(chosen, True, {"data": path})
        assert len(tasks["common/hisrace"]) == len(decisions.halves("HisRace", True))
        row = tasks["common/thresholds"][0]()
        assert (row.blocks, row.number, row.judged) == (path, 30, True)
        with pytest.raises(dm.errors.InvalidInputError, match=re.escape("128 cells per block")):
            tables.planned(tables.select_sheets(["common/hisrace"]), True, {"data": path})

    @pytest.mark.parametrize(
        ("name", "population"), [("hisrace", "HisRace"), ("brazil", "Brazil"), ("thresholds", "AgeGender")]
    )
    def test_real_blocks_are_held_against_what_is_printed(self, name: str, population: str, tmp_path: Path) -> None:
        path = str(tmp_path / "b.npy")
        np.save(path, POPULATIONS[population].draw(blocks=20, seed=1))
        result = run("crosscheck", f"common/{name}", "--data", path)
        assert result.exit_code == 0
        assert "as printed" in result.output and "NO" in result.output
        assert "there is no verdict" not in result.output
