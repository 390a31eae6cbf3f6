"""The sheets on marginal tables at scale: every solver's interval meets, and outsiders' answers are judged."""

import math
from copy import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
from commanded import run

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.instances import tables
from dualmech.crosscheck.sheet import Row
from dualmech.studies.papers import scale, sheets
from dualmech.studies.papers.scale import MarginalsCase
from dualmech.studies.papers.sheets import SHEETS
from dualmech.studies.papers.verdicts import Finding

ELSEWHERE = ("scale/published", "scale/census")
NAMES = [name for name in SHEETS if name.startswith("scale/") and name not in ELSEWHERE]


@cache
def rows_of(name: str) -> list[Any]:
    return [task() for task in SHEETS[name].tasks(True)]


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_a_quick_run_is_certified_by_all_its_solvers(name: str) -> None:
    for row in rows_of(name):
        assert row.outcome is Agreement.AGREE
        assert row.gap <= scale.MARGINALS_TOLERANCE
        assert row.best.lower_bound <= row.consistent * (1 + 1e-9) <= row.plain * (1 + 2e-9)


def kept_rows(name: str, quick: bool) -> list[Any]:
    return [partial(copy, row) for row in rows_of(name)]


def test_the_command_prints_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("scale/adult", "scale/sixty")
    kept = {name: replace(SHEETS[name], tasks=partial(kept_rows, name)) for name in names}
    monkeypatch.setattr(sheets, "SHEETS", kept)
    result = run("crosscheck", *kept, "--quick")
    assert result.exit_code == 0
    for printed in ("up to 3-way", "20080567", "1e+60", "1234.81865", "yes (CLARABEL)"):
        assert printed in result.output


class TestPublished:
    def test_printed_errors_are_the_least_ones(self) -> None:
        """Another privacy cost would be found."""
        for name in ("CPS", "Adult"):
            row = scale.of_marginals(name)
            assert row.outcome is Agreement.AGREE and row.gap <= scale.MARGINALS_TOLERANCE
            assert row.paper.finding is Finding.AGREES and row.paper.fitting == tuple(scale.WAYS)
            assert all(entry.largest and entry.least[1] ** 2 <= entry.largest[0] for entry in row.parts)
        assert row.parts[0].text(dict(scale.PUBLISHED_COLUMNS)["computed again"]) == "3.0468"
        twice = [replace(each, values={**each.values, "again": tuple(2 * n for n in each.again)}) for each in row.parts]
        assert scale.of_data_set("", twice).paper.finding is not Finding.AGREES

    def test_printed_errors_of_prefixes_are_the_papers_and_not_the_least(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scale, "FEW", 0)  # to prove the least of one-way tables takes ten seconds
        row = scale.of_prefixes("CPS")
        assert row.outcome is Agreement.AGREE and row.paper.fitting == tuple(scale.WAYS)
        assert row.better > 0.005 and all(0.95 < low / high < 1 for low, high in (each.least for each in row.parts))

    def test_split_noise_and_bound_enclose_the_dense_optimum(self) -> None:
        ways: Any
        for ways in (1, (0, 1, 2)):
            asked = dm.workloads.query_tables({"age": 6, "sex": 3}, {"age": dm.workloads.prefix(6)}, ways=ways)
            problem, count = dm.FitnessForUse(asked, geometry="split"), asked.shape[0]
            least = fast.solve(dm.TotalVariance(asked, geometry="dense"), tol=1e-6).certificate.interval
            found = scale.split_error(problem.geometry, ("age",), 1.0)
            assert scale.proven_error(problem.geometry, ("age",), 1.0, 0.5) ** 2 * count <= least[1]
            assert least[0] <= found**2 * count <= 1.1 * least[1]
            low, high = scale.certified_error(asked)
            assert low**2 * count <= least[1] and least[0] <= high**2 * count
            assert high <= found * (1 + 1e-4) and high / low < 1 + 1e-4


def test_domains_are_of_the_stated_sizes() -> None:
    """The numbers of cells that the publications give, to their digits."""
    assert tables.CENSUS.cells == 1_227_744
    sizes = {name: math.prod(shape) for name, shape in scale.PUBLISHED.items()}
    assert sizes["CPS"] == 280_000 and f"{sizes['Adult']:.2e}" == "6.41e+17" and f"{sizes['Loans']:.1e}" == "8.3e+15"
    assert len(scale.growth(quick=False)) == 10 == len(tables.GROWTH)


def test_all_tables_of_the_census_need_nothing_but_its_cells() -> None:
    """Where the table of all attributes is asked for as well, noise on the tables is the best once it is consistent."""
    row = scale.solve_marginals(MarginalsCase("all", tables.CENSUS, tuple(range(6))))
    assert row.consistent == pytest.approx(row.best.objective, rel=1e-8)


def test_layers_that_disagree_would_be_found() -> None:
    case = scale.sixty(quick=True)[0]
    row = scale.solve_marginals(case)
    other = reference.solve(MarginalsCase("", case.domain, (1,)).problem(), backend="CLARABEL")
    mixed = Row.of_answers({}, [row.best, other])
    assert mixed.outcome is Agreement.DISAGREE


class TestJudge:
    TABLES = dm.workloads.marginals([10] * 40, ways=(1, 2))

    def test_an_outsiders_mechanism_is_judged(self) -> None:
        problem = dm.FitnessForUse(self.TABLES, {1: 1.0, 2: 4.0})
        plain = dm.BlockMechanism.of_tables(self.TABLES, problem.targets)
        verdict = crosscheck.judge(problem, plain)
        best = fast.solve(problem, tol=1e-9)
        assert verdict.feasible and verdict.objective == pytest.approx(plain.squared_privacy_cost)
        assert verdict.gap == pytest.approx(verdict.objective / best.objective - 1, rel=1e-6)
        assert len(verdict.loose) == len(self.TABLES.axes)
        assert 0 < verdict.scaled.gap < verdict.gap
        exact = crosscheck.judge(problem, best.mechanism)
        assert exact.gap < 1e-8 and not len(exact.loose)
        assert crosscheck.judge(dm.TotalVariance(self.TABLES), best.primal).scaled.gap < 0.5

    def test_what_is_no_answer_is_refused(self) -> None:
        domain = dm.Domain([(f"a{axis}", 10) for axis in range(40)])
        cases: list[tuple[str, Any]] = [
            ("does not measure differences of a0$", dm.BlockMechanism.of_levels(domain, {(): 1.0})),
            ("must be positive", [-1.0] * 821),
            ("levels must be 821", [1.0] * 3),
        ]
        for message, given in cases:
            with pytest.raises(dm.errors.InvalidInputError, match=message):
                crosscheck.judge(dm.FitnessForUse(self.TABLES), given)

    def test_answers_to_problems_stated_twice_are_compared(self) -> None:
        first, second = (dm.FitnessForUse(dm.workloads.marginals([10] * 30, ways=2), 2.0) for _ in range(2))
        third = dm.FitnessForUse(dm.workloads.marginals([10] * 30, ways=2), 3.0)
        one, two, other = (fast.solve(each) for each in (first, second, third))
        assert crosscheck.compare([one, two]).outcome is Agreement.AGREE
        products = [
            fast.solve(dm.FitnessForUse(dm.workloads.kron(each.workload, each.workload), 4.0))
            for each in (first, second)
        ]
        assert crosscheck.compare(products).outcome is Agreement.AGREE
        with pytest.raises(dm.errors.InvalidInputError, match="same problem"):
            crosscheck.compare([one, other])


@pytest.mark.slow
def test_blocks_close_the_interval_of_the_split() -> None:
    """Prefixes of ages beside 59 attributes, as docs/scale.md has them."""
    people = dm.Domain({"age": 64} | {f"a{axis}": 10 for axis in range(59)})
    asked = dm.workloads.query_tables(people, {"age": dm.workloads.prefix(64)}, ways=(1, 2))
    answer = fast.solve(dm.FitnessForUse(asked, geometry="blocks"), tol=1e-7)
    assert answer.gap <= 1e-7 and 1364.18 <= answer.lower_bound <= answer.objective <= 1364.1803
    # What two of the others leave is even over ages, a variance each; the total and each other have 64 rows.
    sizes = [len(each) for each in answer.primal.covariances]
    assert not len(answer.primal.levels) and (sizes.count(1), sizes.count(64)) == (1711, 60)
