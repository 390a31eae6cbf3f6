"""The judge for outsiders, beyond fitness for use: it finds a bound of its own for every kind of answer."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast
from dualmech.studies import rivals

WEIGHTINGS = {
    privacy: dm.QueryWeighting(dm.workloads.all_range(4), dm.workloads.identity_total(4), privacy)
    for privacy in ("approximate", "pure")
}
VARIANCE = dm.TotalVariance(dm.workloads.prefix(4), [1.0, 0.0, 2.0, 3.0])


class TestQueryWeights:
    @pytest.mark.parametrize("privacy", WEIGHTINGS)
    @given(weights=st.lists(st.floats(0.01, 100), min_size=5, max_size=5), factor=st.floats(1e-3, 1e3))
    @settings(max_examples=10)
    def test_shape_and_units_are_told_apart(self, privacy: str, weights: list[float], factor: float) -> None:
        problem = WEIGHTINGS[privacy]
        verdict = crosscheck.judge(problem, weights)
        rescaled = crosscheck.judge(problem, factor * np.array(weights))
        assert verdict.lower_bound == rescaled.lower_bound <= verdict.scaled.objective
        assert rescaled.scaled.objective == pytest.approx(verdict.scaled.objective, rel=1e-12)
        assert verdict.scaled.feasible
        assert verdict.feasible == (problem.certify(weights, np.ones(4)).violation <= 1e-9)

    @pytest.mark.parametrize("privacy", WEIGHTINGS)
    def test_an_optimum_is_certified_by_a_bound_of_the_judges_own(self, privacy: str) -> None:
        answer = fast.solve(WEIGHTINGS[privacy], tol=1e-8)
        verdict = crosscheck.judge(WEIGHTINGS[privacy], answer.primal)
        assert verdict.certifies(1e-7)
        assert set(verdict.binding) <= set(range(4)) and not len(verdict.loose)

    @pytest.mark.parametrize("weights", [[1.0] * 4, [1, 1, -1, 1, 1], [1, 1, np.nan, 1, 1], np.eye(5), "many"])
    def test_what_is_none_is_refused(self, weights: object) -> None:
        with pytest.raises(dm.errors.DualmechError, match="weights"):
            crosscheck.judge(WEIGHTINGS["approximate"], weights)

    def test_nothing_for_what_is_needed_is_infinitely_bad(self) -> None:
        verdict = crosscheck.judge(WEIGHTINGS["approximate"], np.zeros(5))
        assert not verdict.feasible and verdict.gap == np.inf and not len(verdict.binding)


class TestTotalVariance:
    @given(entries=st.lists(st.floats(-1, 1), min_size=16, max_size=16))
    @settings(max_examples=10)
    def test_no_strategy_beats_the_bound(self, entries: list[float]) -> None:
        strategy = np.vstack([np.eye(4), np.reshape(entries, (4, 4))])
        covariance = crosscheck.covariance_of_strategy(VARIANCE, strategy)
        verdict = crosscheck.judge(VARIANCE, VARIANCE.feasible(covariance))
        assert verdict.feasible and verdict.objective >= verdict.lower_bound
        assert verdict.objective == pytest.approx(crosscheck.judge(VARIANCE, covariance).scaled.objective)

    def test_a_strategy_is_worth_what_the_matrix_mechanism_says(self) -> None:
        problem = dm.TotalVariance(dm.workloads.all_range(4))
        tree = rivals.hierarchical_matrix(4).toarray()
        verdict = crosscheck.judge(problem, crosscheck.covariance_of_strategy(problem, tree))
        expected = dm.strategies.total_variance(tree, problem.workload)
        assert verdict.scaled.objective == pytest.approx(expected)


class TestSoftMaxima:
    def test_any_covariance_is_feasible_and_none_beats_the_bound(self) -> None:
        problem = dm.SoftmaxFitness(dm.workloads.prefix(4), 1.0, 20, 20)
        verdict = crosscheck.judge(problem, np.eye(4))
        assert verdict.feasible and verdict.scaled.objective == verdict.objective > verdict.lower_bound
        assert crosscheck.judge(problem, fast.solve(problem, tol=1e-8).primal).certifies(1e-7)


class TestCommonMechanisms:
    CELLS = (
        dm.LinearGaussianMechanism(np.eye(2), np.diag([1.0, 4.0])),
        dm.LinearGaussianMechanism(np.eye(2), np.diag([2.0, 1.0])),
    )

    def test_a_rival_is_judged_by_trace_and_by_maximality(self) -> None:
        problem = dm.CommonMechanism(self.CELLS)
        best = crosscheck.judge(problem, dm.LinearGaussianMechanism(np.eye(2), np.diag([2.0, 4.0])))
        assert best.certifies(1e-9) and best.maximality
        worse = crosscheck.judge(problem, dm.LinearGaussianMechanism(np.eye(2), np.diag([3.0, 4.0])))
        assert worse.feasible and worse.gap == pytest.approx(1 / 6) and not worse.maximality
        # Another maximal one: its trace is larger, but nothing common tells more.
        both = dm.CommonMechanism(self.CELLS, decisions=dm.Workload([[1, 1]]))
        assert crosscheck.judge(problem, fast.solve(both).mechanism).maximality

    def test_what_is_none_is_told(self) -> None:
        problem = dm.CommonMechanism(self.CELLS)
        lie = crosscheck.judge(problem, np.diag([1.0, 4.0]) if np.allclose(problem.basis, np.eye(2)) else np.eye(2))
        assert not lie.feasible and lie.maximality is None and lie.scaled.feasible
        with pytest.raises(dm.errors.InvalidInputError, match="the mechanism must answer all 2 common queries"):
            crosscheck.judge(problem, dm.LinearGaussianMechanism([[1, 1]], [[9.0]]))


def test_a_mechanism_is_as_good_as_its_covariance() -> None:
    problem = dm.FitnessForUse(dm.workloads.prefix(3), 1.0)
    mechanism = dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1], [0, 0, 2]], np.eye(3) / 4)
    verdict = crosscheck.judge(problem, mechanism)
    same = crosscheck.judge(problem, mechanism.covariance(dm.workloads.identity(3)))
    assert verdict.objective == pytest.approx(same.objective) and verdict.gap == pytest.approx(same.gap)


class TestInWords:
    """What an answer exceeds is said by name, and what it looks like."""

    @given(factors=st.lists(st.floats(0.1, 100), min_size=5, max_size=5, unique_by=lambda each: round(each, 3)))
    @settings(max_examples=20)
    def test_the_worst_queries_are_named_by_how_much(self, factors: list[float]) -> None:
        asked = dm.Workload(np.eye(5), names=[*"abcde"])
        problem = dm.FitnessForUse(asked, 1 / np.array(factors))
        worst = sorted(zip(factors, "abcde", strict=True), reverse=True)[:3]
        expected = [(name, factor) for factor, name in worst if factor > 1.01]
        said = problem.exceeded(np.eye(5))
        clear = [each for each in said if " times " in each]
        assert [each.split()[1] for each in clear] == [repr(name) for name, _ in expected]
        for words, (_, factor) in zip(clear, expected, strict=True):
            assert float(words.split()[3]) == pytest.approx(factor, rel=1e-2)
        assert said == crosscheck.judge(problem, np.eye(5)).exceeded or not clear

    def test_tables_are_named_where_noise_is_by_table(self) -> None:
        for problem in (dm.FitnessForUse(QUERIES), dm.FitnessForUse(QUERIES, geometry="split")):
            answer = fast.solve(problem, tol=0.5)
            noise = problem.geometry.divide(answer.primal, 0.5)
            verdict = crosscheck.judge(problem, noise)
            assert "table 'age' has 2 times its target" in verdict.exceeded
        product = fast.solve(dm.FitnessForUse(PRODUCT))
        (words,) = crosscheck.judge(product.problem, product.problem.geometry.divide(product.primal, 0.5)).exceeded
        assert words.startswith("query 'cell") and " & table '" in words and words.endswith("has 2 times its target")

    @pytest.mark.parametrize(
        ("asked", "neighbours", "words"),
        [
            (dm.workloads.identity(3), None, "neighbours at cell 0 cost 2 times the limit"),
            (dm.Workload(np.eye(2), cell_names=["x", "y"]), None, "neighbours at cell 'x' cost 2 times the limit"),
            (dm.Workload(np.eye(2), domain=dm.Domain({"sex": 2})), None, "neighbours at cell sex=0 cost 2 times"),
            (dm.workloads.identity(2), "replace", "neighbours at cell 0 and cell 1 cost 4 times the limit"),
            (dm.workloads.identity(3), [[1], [1], [1]], "neighbours 0 cost 6 times the limit"),
            (dm.workloads.marginals([2], ways=1), None, "any two neighbours cost 2 times the limit"),
        ],
    )
    def test_neighbours_are_named_where_privacy_is_fixed(self, asked: dm.Workload, neighbours: Any, words: str) -> None:
        for problem in (
            dm.PrivacyFirst(asked, 1.0, 1.0, neighbours=neighbours),
            dm.TotalVariance(asked, neighbours=neighbours),
        ):
            size = problem.geometry.rank
            noise = np.eye(size) / 2 if problem.geometry.name == "dense" else np.full(2, 1.0)
            if problem.geometry.name != "dense":
                noise = problem.geometry.divide(problem.feasible(problem.geometry.point(noise)), 2.0)
            assert crosscheck.judge(problem, noise).exceeded[0].startswith(words)

    def test_weights_and_releases_are_named(self) -> None:
        weighting = dm.QueryWeighting(dm.workloads.prefix(2), dm.workloads.identity(2))
        assert weighting.exceeded([1.0, 3.0]) == ("neighbours at cell 1 cost 3 times the limit",)
        released = dm.LinearGaussianMechanism([[1.0, 0.0]], [[1.0]])
        reuse = dm.ReuseFitness(dm.workloads.identity(2), 10.0, released)
        assert reuse.exceeded(2 * np.eye(2)) == ("the earlier release has 2 times its released variance",)

    def test_rounding_is_judged_scaled_and_said(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(16))
        best = fast.solve(problem, tol=1e-9).primal
        for given_noise in (best.astype(np.float32), best.astype(np.float32).astype(float), best * (1 + 1e-7)):
            verdict = crosscheck.judge(problem, given_noise)
            assert verdict.feasible and verdict.gap < 1e-5 and "judged scaled" in verdict.remarks[0]
        uneven = best + np.triu(np.full((16, 16), 1e-8), 1)
        assert crosscheck.judge(problem, uneven).scaled.gap < 1e-5
        assert not crosscheck.judge(problem, best * 1.001).feasible
        assert not crosscheck.judge(problem, best).remarks

    @pytest.mark.parametrize(
        ("shape", "words"),
        [
            ((36, 36), "covariance of the noise on the 36 answers; the judge takes the covariance on the 8 rows"),
            ((12, 8), "a strategy over 8 cells"),
            ((8, 12), "the transpose of a strategy over 8 cells"),
        ],
    )
    def test_other_shapes_are_recognised(self, shape: tuple[int, int], words: str) -> None:
        problem = dm.FitnessForUse(dm.workloads.all_range(8))
        with pytest.raises(dm.errors.InvalidInputError, match=words):
            crosscheck.judge(problem, np.eye(*shape))
        with pytest.raises(dm.errors.InvalidInputError, match="a Cholesky factor"):
            crosscheck.judge(problem, np.tri(8))
        deficient = dm.FitnessForUse(dm.workloads.marginals([2, 2], ways=1), geometry="dense")
        on_cells = np.diag([1.0, 2.0, 3.0, 4.0])
        on_basis = deficient.basis @ on_cells @ deficient.basis.T
        first, second = (crosscheck.judge(deficient, noise).scaled.objective for noise in (on_cells, on_basis))
        assert len(deficient.basis) == 3 and first == pytest.approx(second)
        with pytest.raises(dm.errors.InvalidInputError, match="columns, one per cell, got 3; its transpose has 8"):
            crosscheck.covariance_of_strategy(problem, np.ones((8, 3)))

    def test_what_is_no_problem_and_no_answer(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(2))
        answer, workload = fast.solve(problem), dm.workloads.identity(2)
        first: Any
        for first, second, words in (
            (workload, np.eye(2), "problem must be .* got Workload; judge takes a problem and an answer"),
            (np.eye(2), problem, "problem must be .* got ndarray of shape"),
            (problem, answer, "primal must be .* got Solution; for a Solution give its primal or its mechanism"),
            (problem, dm.workloads.identity(2), "primal must be a point or a mechanism, got Workload"),
            (problem, None, "covariance must be"),
        ):
            with pytest.raises(dm.errors.InputTypeError, match=words):
                crosscheck.judge(first, second)


PREFIXES = dm.workloads.prefix(4)
QUERIES = dm.workloads.query_tables({"age": 4, "sex": 2}, {"age": PREFIXES}, ways=(1, 2))
PRODUCT = dm.workloads.kron(PREFIXES, dm.workloads.marginals([2, 3], ways=1))
replaced = dataclasses.replace


class TestBlocks:
    ASKED = dm.workloads.union(
        {"age": 4, "sex": 2, "one": 1},
        {"ages": {"age": dm.workloads.prefix(4), "sex": None}, "sexes": ["sex"], "runs": {"age": None}},
    )

    def test_plain_noise_is_judged_like_its_matrices(self) -> None:
        problem, plain = dm.FitnessForUse(self.ASKED, 1.0), dm.BlockMechanism.of_tables(self.ASKED)
        verdict = crosscheck.judge(problem, plain)
        assert verdict.feasible
        assert verdict.objective == pytest.approx(plain.squared_privacy_cost, rel=1e-12)
        dense = crosscheck.judge(dm.FitnessForUse(self.ASKED, 1.0, geometry="dense"), plain.dense())
        assert verdict.gap == pytest.approx(dense.gap, abs=1e-6)
        assert verdict.scaled.objective == pytest.approx(dense.scaled.objective)
        assert verdict.loose.tolist() == [0, 1, 2] and len(verdict.binding)
        assert not crosscheck.judge(problem, plain.scaled(10.0)).feasible
        variance = crosscheck.judge(dm.TotalVariance(self.ASKED), plain)
        assert not variance.feasible and variance.scaled.feasible and not len(variance.loose)

    def test_an_optimum_is_certified_by_a_bound_of_the_judges_own(self) -> None:
        answer = fast.solve(dm.FitnessForUse(self.ASKED, [1.0, 2.0, 3.0]), tol=1e-8)
        assert crosscheck.judge(answer.problem, answer.primal).certifies(1e-7)
        # The same tables in another order: blocks come in another, on bases of their own.
        tables = {table.name: dict(table.queries) for table in reversed(self.ASKED.tables)}
        names = self.ASKED.domain.names  # type: ignore[union-attr]
        turned = dm.workloads.union(
            self.ASKED.domain,  # type: ignore[arg-type]
            {key: {names[axis]: own for axis, own in asked.items()} for key, asked in tables.items()},
        )
        problem = dm.FitnessForUse(turned, [3.0, 2.0, 1.0])
        assert crosscheck.judge(problem, answer.mechanism).certifies(1e-7)

    @pytest.mark.parametrize(
        ("message", "given"),
        [
            ("with the same symmetry", {"age": dm.workloads.prefix(2), "sex": None}),
            ("must measure all blocks of the tables", {"age": dm.workloads.prefix(4)}),
        ],
    )
    def test_other_blocks_are_refused(self, message: str, given: dict[str, dm.Workload | None]) -> None:
        size = given["age"].shape[1]  # type: ignore[union-attr]
        other = dm.workloads.union({"age": size, "sex": 2, "one": 1}, {"ages": given})
        with pytest.raises(dm.errors.InvalidInputError, match=message):
            crosscheck.judge(dm.FitnessForUse(self.ASKED), dm.BlockMechanism.of_tables(other))
        with pytest.raises(dm.errors.InputTypeError, match="noise on blocks, a dualmech.duals.BlockPoint"):
            crosscheck.judge(dm.FitnessForUse(self.ASKED), np.eye(3))

    @pytest.mark.parametrize(
        ("message", "problem", "given"),
        [
            (
                "levels must be positive",
                dm.FitnessForUse(PRODUCT.factors[1]),
                lambda point: replaced(point, levels=-point.levels),
            ),
            (
                "levels must be finite",
                dm.FitnessForUse(PRODUCT.factors[1]),
                lambda point: replaced(point, levels=np.nan * point.levels),
            ),
            (
                r"covariances\[0\] must be positive semidefinite",
                dm.FitnessForUse(ASKED),
                lambda point: replaced(point, covariances=tuple(-each for each in point.covariances)),
            ),
            (
                r"shapes\[1\] must be symmetric",
                dm.FitnessForUse(QUERIES, geometry="split"),
                lambda point: replaced(point, shapes=(point.shapes[0], np.triu(np.ones((2, 2))))),
            ),
            (
                "levels must be positive",
                dm.FitnessForUse(PRODUCT),
                lambda point: (point[0], replaced(point[1], levels=-point[1].levels)),
            ),
            ("covariance must be positive", dm.TotalVariance(PRODUCT), lambda point: (-point[0], point[1])),
        ],
    )
    def test_what_is_no_noise_is_refused(self, message: str, problem: Any, given: Any) -> None:
        point = fast.solve(problem, tol=0.5).primal
        with pytest.raises(dm.errors.InvalidInputError, match=message):
            crosscheck.judge(problem, given(point))


@pytest.mark.parametrize("asymmetry", [5.5e-5, 1e-3])
def test_what_is_nearly_symmetric_is_no_strategy(asymmetry: float) -> None:
    problem = dm.FitnessForUse(dm.workloads.prefix(4))
    given = np.array(fast.solve(problem).covariance)
    given[0, 1] += asymmetry
    with pytest.raises(dm.errors.InvalidInputError, match=rf"differs from its transpose by {asymmetry:g}$"):
        crosscheck.judge(problem, given)
    with pytest.raises(dm.errors.InvalidInputError, match=rf"differs from its transpose by {asymmetry:g}$"):
        dm.judged(problem, given)
    assert problem.certify(given, fast.solve(problem).dual).remarks
    given[0, 1] += 1e-8 - asymmetry
    assert crosscheck.judge(problem, given).feasible
