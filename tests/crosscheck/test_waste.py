"""How much a mechanism wastes: proven from its own variances, whatever its structure and that of the workload."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast

DOMAIN = {"age": 8, "sex": 2}
COUNTS = dm.workloads.marginals(DOMAIN, ways=(1, 2))
MIXED = dm.workloads.union(
    DOMAIN, {"sums": {"age": dm.workloads.prefix(8)}, "both": {"age": dm.workloads.all_range(8), "sex": None}}
)
CIRCLE = dm.workloads.union({"age": 8, "sex": 2}, {"runs": {"age": dm.workloads.circular_ranges(8)}, "c": ["sex"]})
CELLS = dm.BlockMechanism.of_tables(COUNTS)


class TestAsTargets:
    """Variances of queries that a mechanism was not made for."""

    @pytest.mark.parametrize("asked", [COUNTS, MIXED, dm.workloads.prefix(16), dm.workloads.identity(16)])
    @pytest.mark.parametrize(
        "made", [lambda: CELLS, lambda: dm.BlockMechanism.of_tables(dm.workloads.stack(CIRCLE, COUNTS))]
    )
    def test_blocks_agree_with_the_matrix(self, made: Callable[[], Any], asked: dm.Workload) -> None:
        mechanism = made()
        np.testing.assert_allclose(mechanism.as_targets(asked), mechanism.dense().variances(asked), rtol=1e-11)

    def test_a_table_of_the_same_name_is_another_one(self) -> None:
        own = dm.workloads.union(DOMAIN, {"a": ["age"], "b": ["age", "sex"]})
        other = dm.workloads.union(DOMAIN, {"a": {"age": dm.workloads.prefix(8)}, "b": ["sex"]})
        mechanism = dm.BlockMechanism.of_tables(own)
        np.testing.assert_allclose(mechanism.as_targets(other), mechanism.dense().variances(other), rtol=1e-11)

    def test_what_is_not_answered_is_refused(self) -> None:
        ages = dm.BlockMechanism.of_tables(dm.workloads.marginals(DOMAIN, sets=[["age"]]))
        for asked in (dm.workloads.marginals(DOMAIN, sets=[["sex"]]), dm.workloads.prefix(16)):
            with pytest.raises(dm.errors.InvalidInputError, match="not answered|row space"):
                ages.as_targets(asked)
        with pytest.raises(dm.errors.InvalidInputError, match="attributes of the mechanism"):
            ages.as_targets(dm.workloads.marginals({"age": 8, "cut": 2}, ways=1))


class TestWaste:
    """The verdict."""

    def test_an_optimal_mechanism_wastes_nothing(self) -> None:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(12)), tol=1e-8)
        found = crosscheck.waste(answer.mechanism, dm.workloads.prefix(12))
        assert found.share[0] <= 1e-6 and found.share[1] <= 2e-6

    def test_counts_judged_on_running_sums(self) -> None:
        counts = dm.LinearGaussianMechanism(np.eye(8), np.eye(8))
        found = crosscheck.waste(counts, dm.workloads.prefix(8))
        again = fast.solve(dm.FitnessForUse(dm.workloads.prefix(8), np.arange(1.0, 9.0)), tol=1e-8)
        low, high = found.least
        assert low <= again.objective and again.lower_bound <= high
        assert found.cost == counts.squared_privacy_cost

    def test_further_answers_are_waste(self) -> None:
        both = dm.LinearGaussianMechanism(np.vstack([np.ones((1, 4)), [[1, 1, 0, 0]]]), np.eye(2))
        found = crosscheck.waste(both, dm.workloads.total(4))
        low, high = found.share
        assert low - 1e-6 <= 0.5 <= high + 1e-6

    @pytest.mark.parametrize("neighbours", [None, "replace", "replace:3"])
    def test_neighbours_are_the_mechanisms(self, neighbours: str | None) -> None:
        made = dm.LinearGaussianMechanism(np.vstack([np.eye(4), np.ones((1, 4))]), np.eye(5), neighbours)
        found = crosscheck.waste(made, dm.workloads.prefix(4))
        own = found.answer.problem.neighbours
        assert (own is None) == (neighbours is None) and 0 <= found.share[0] <= found.share[1] < 1
        assert found.better.squared_privacy_cost <= found.cost * (1 + 1e-9)

    @pytest.mark.parametrize(
        ("made", "asked"),
        [
            (lambda: CELLS, MIXED),
            (lambda: CELLS, dm.workloads.prefix(16)),
            (lambda: dm.strategies.sqrt_toeplitz(16), dm.workloads.all_range(16)),
            (lambda: dm.StreamMechanism(dm.workloads.prefix(16), np.ones(16), np.ones(16)), dm.workloads.prefix(16)),
            (
                lambda: dm.ProductMechanism([dm.strategies.sqrt_toeplitz(4).dense()] * 2),
                dm.workloads.kron(dm.workloads.prefix(4), dm.workloads.prefix(4)),
            ),
        ],
    )
    def test_the_better_mechanism_is_as_accurate_and_costs_the_least(
        self, made: Callable[[], Any], asked: dm.Workload
    ) -> None:
        mechanism = made()
        found = crosscheck.waste(mechanism, asked)
        better, cells = found.better, dm.Workload(asked.dense())
        before, after = mechanism.as_targets(cells), better.as_targets(cells)
        assert np.all(after <= before * (1 + 2e-9))
        low, high = found.least
        assert low <= better.squared_privacy_cost <= high * (1 + 1e-9) <= found.cost * (1 + 2e-9)

    def test_a_large_domain_is_matched_table_by_table_and_says_so(self) -> None:
        sizes = [8] * 6
        asked = dm.workloads.union(sizes_domain(sizes), {"sums": {"a0": dm.workloads.prefix(8)}, "one": ["a1"]})
        counts = dm.BlockMechanism.of_tables(dm.workloads.marginals(sizes_domain(sizes), ways=(0, 1)))
        found = crosscheck.waste(counts, asked)
        assert found.by_table and found.answer.problem.geometry.name == "blocks"
        assert "least accurate query of every table" in found.words[0] and len(found.words) == 3
        even = crosscheck.waste(counts, dm.workloads.marginals(sizes_domain(sizes), ways=1))
        assert not even.by_table and even.answer.problem.geometry.name == "blocks"

    @given(st.integers(0, 2**32 - 1))
    def test_the_interval_holds_whatever_the_mechanism(self, seed: int) -> None:
        chance = np.random.default_rng(seed)
        rows = np.vstack([np.eye(3), chance.normal(size=(2, 3))])
        made = dm.LinearGaussianMechanism(rows, np.diag(chance.uniform(0.5, 2, 5)))
        asked = dm.Workload(chance.normal(size=(4, 3)))
        found = crosscheck.waste(made, asked, tol=1e-3)
        low, high = found.least
        assert 0 < low <= high <= found.cost
        assert np.all(found.better.variances(asked) <= made.variances(asked) * (1 + 2e-9))

    def test_bad_input(self) -> None:
        with pytest.raises(dm.errors.InputTypeError, match="mechanism must be one of Gaussian noise"):
            crosscheck.waste(np.eye(3), dm.workloads.prefix(3))
        exact = dm.LinearGaussianMechanism(np.eye(3), np.diag([1.0, 1.0, 0.0]))
        with pytest.raises(dm.errors.InvalidInputError, match="positive and finite"):
            crosscheck.waste(exact, dm.workloads.prefix(3))
        with pytest.raises(dm.errors.InvalidInputError, match="too large for a dense matrix"):
            huge = dm.BlockMechanism.of_tables(dm.workloads.marginals([10] * 10, ways=1))
            crosscheck.waste(huge, dm.workloads.prefix(4))


def sizes_domain(sizes: list[int]) -> dict[str, int]:
    return {f"a{index}": size for index, size in enumerate(sizes)}


class TestPractice:
    """What splitting a budget over tables loses."""

    @pytest.mark.parametrize("neighbours", [None, "add-remove:3", "replace"])
    def test_as_drawn_is_the_problem_that_a_hand_would_pose(self, neighbours: str | None) -> None:
        found = crosscheck.waste(COUNTS, rho="1/10", as_drawn=True, neighbours=neighbours)
        cost = {None: 1, "add-remove:3": 9, "replace": 2}[neighbours]
        problem = dm.FitnessForUse(COUNTS, 3 * cost / 0.2, neighbours=neighbours)
        low, high = fast.solve(problem, tol=1e-8).certificate.interval
        assert found.share[0] <= 1 - low / 0.2 and 1 - high / 0.2 <= found.share[1]
        assert [*found.variances.values()] == pytest.approx([3 * cost / 0.2] * 3)
        assert found.better.squared_privacy_cost <= 0.2 * (1 - found.share[0]) * (1 + 1e-9)

    def test_consistent_is_the_mechanism_judged(self) -> None:
        found, judged = crosscheck.waste(COUNTS, rho=0.1), crosscheck.waste(CELLS.scaled(15.0), COUNTS)
        assert found.share == pytest.approx(judged.share, abs=1e-6)
        assert found.share[1] < crosscheck.waste(COUNTS, rho=0.1, as_drawn=True).share[0]

    def test_shares_and_groups_of_queries(self) -> None:
        uneven = crosscheck.waste(COUNTS, rho=1, shares={"age": 1, "sex": 1, "age x sex": 2}, as_drawn=True)
        assert uneven.variances == pytest.approx({"age": 2, "sex": 2, "age x sex": 1})
        assert uneven.words[0].startswith("This split of rho = 1 over 3 tables, as drawn, wastes")
        plain = crosscheck.waste(dm.workloads.pl94(), rho="1/10", as_drawn=True)
        assert plain.cost == 0.2 >= plain.mechanism.squared_privacy_cost
        assert "over 5 tables" in plain.words[0]

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({}, "rho must be given"),
            ({"rho": "x"}, "rho must be"),
            ({"rho": 1, "workload": COUNTS}, "no other workload"),
            ({"rho": 1, "shares": {"age": 1}}, "shares must name each table once"),
            ({"rho": 1, "shares": {"age": 1, "sex": -1, "age x sex": 1}}, "shares must be positive"),
        ],
    )
    def test_bad_practices(self, given: dict[str, Any], told: str) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match=told):
            crosscheck.waste(COUNTS, **given)

    def test_a_mechanism_is_no_practice(self) -> None:
        for name in ("rho", "shares", "as_drawn", "neighbours"):
            given: dict[str, Any] = {name: {"age": 1} if name == "shares" else True}
            with pytest.raises(dm.errors.InvalidInputError, match=f"^{name} is for a practice"):
                crosscheck.waste(CELLS, COUNTS, **given)

    @pytest.mark.parametrize("as_drawn", [False, True])
    def test_exact_tables_get_no_share(self, as_drawn: bool) -> None:
        everybody = {"sex": dm.workloads.total(2)}
        free = dm.workloads.union(DOMAIN, {"all": everybody, "age": ["age"], "sex": ["sex"]})
        options: dict[str, Any] = {"rho": 1, "neighbours": "replace", "as_drawn": as_drawn}
        found = crosscheck.waste(free, **options)
        assert "over 2 tables" in found.practice
        assert found.variances["all"] < 1e-5
        # Two one-way tables that are made consistent with the exact total are the best noise for their accuracy.
        assert found.share == pytest.approx([0.3125 if as_drawn else 0.0] * 2, abs=1e-5)
        with pytest.raises(dm.errors.InvalidInputError, match="shares must name each table once, age, sex, got all, "):
            crosscheck.waste(free, shares={"all": 1, "age": 1, "sex": 1}, **options)
        with pytest.raises(dm.errors.InvalidInputError, match="must have a table that neighbours change"):
            crosscheck.waste(dm.workloads.union(DOMAIN, {"all": everybody}), **options)

    def test_a_plan_with_an_exact_total(self, tmp_path: Path) -> None:
        path = tmp_path / "tables.toml"
        path.write_text(
            'neighbours = "replace"\nrho = "1/10"\nattributes.sex = ["f", "m"]\nattributes.age = { from = 0, to = 3 }\n'
            'tables = [{ ask = ["sex"], margin = 20 }, { ask = ["age"], margin = 20 }, { total = true, margin = 0 }]\n'
        )
        done = run("waste", str(path), "--as-drawn", "-o", tmp_path / "better.npz")
        assert done.exit_code == 0 and "over 2 tables, as drawn, wastes" in done.output
        kept = dm.plan_release(dm.load(tmp_path / "better.npz")).specification
        assert kept is not None and kept.exact == {"total"}

    @pytest.mark.parametrize("more", [[], ["--as-drawn"]])
    def test_in_one_question(self, more: list[str], tmp_path: Path) -> None:
        path, people = (tmp_path / "better.npz", Path(__file__).resolve().parents[2] / "examples" / "people.toml")
        asked = ["waste", str(people), "--practice", "equal", "--rho", "1/10", *more]
        done = run(*asked, "-o", path)
        assert done.exit_code == 0 and done.output.count("\n") == 1 and " of it (proven): noise of rho" in done.output
        planned = dm.plan_release(dm.load(path))
        assert planned.rho < 0.06 and "asked" in "".join(planned.lines())

    def test_shares_in_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "shares.csv").write_text("a0,1\na1,3\n")
        asked = ["waste", "marginals:4x2:1", "--rho", "1/10", "--practice"]
        done = run(*asked, tmp_path / "shares.csv")
        assert done.exit_code == 0 and done.output.startswith("This split of rho = 1/10 over 2 tables")
        assert "--practice takes equal" in str(run(*asked, "even").exception)
        assert "give --rho" in str(run(*asked[:2]).exception)


class TestCommand:
    """``judge --mechanism``."""

    def test_a_file_is_judged_and_the_better_one_written(self, tmp_path: Path) -> None:
        made, better = tmp_path / "counts.npz", tmp_path / "better.npz"
        dm.save(dm.LinearGaussianMechanism(np.vstack([np.eye(8), np.ones((1, 8))]), 2 * np.eye(9)), made)
        done = run("judge", "prefix:8", "--mechanism", made, "-o", better)
        assert done.exit_code == 0 and "Wasted: " in done.output and "The better mechanism: " in done.output
        again = run("judge", "prefix:8", "--mechanism", better, "--tol", "1e-5")
        assert again.exit_code == 0 and "Wasted: at most" in again.output

    def test_a_solution_and_a_union_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "union.npz"
        dm.save(fast.solve(dm.FitnessForUse(MIXED)), path)
        done = run("judge", "prefix:16", "--mechanism", path)
        assert done.exit_code == 0 and "Wasted: " in done.output

    @pytest.mark.parametrize("more", [["--targets", "2"], ["--rho", "1"], ["--geometry", "dense"]])
    def test_what_the_mechanism_brings_is_not_asked_for(self, more: list[str]) -> None:
        done = run("judge", "prefix:8", "--mechanism", "x.npz", *more)
        assert more[0] in str(done.exception) and "has its own" in str(done.exception)


def test_of_many_queries_in_order_is_refused_before_any_work() -> None:
    asked = dm.workloads.union(dm.Schema({"day": 4096}), {"by day": {"day": "prefixes"}})
    with pytest.raises(dm.errors.InvalidInputError, match="at most 2048 queries in order"):
        crosscheck.waste(asked, rho=0.1)
