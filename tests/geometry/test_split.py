"""Query tables on geometry ``split``: bounds and noise held against the dense judge where it can follow."""

import pickle
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.watching import without_warnings

quick = settings(max_examples=8)
seeds = st.integers(0, 10_000)

PREFIXES = dm.workloads.query_tables({"age": 6, "sex": 2, "race": 3}, {"age": dm.workloads.prefix(6)}, ways=(1, 2))


def random_workload(seed: int) -> dm.workloads.TableWorkload:
    """Up to three attributes of 1 to 4 values, each asked for its values, prefixes, ranges or anything at random."""
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(1, 5, int(rng.integers(1, 4)))]
    sizes[0] = max(sizes[0], 2)
    queries: dict[str, dm.Workload] = {}
    for axis, size in enumerate(sizes):
        kind = rng.integers(0, 4)
        if kind == 1:
            queries[f"a{axis}"] = dm.workloads.prefix(size)
        elif kind == 2:
            queries[f"a{axis}"] = dm.workloads.all_range(size)
        elif kind == 3:
            queries[f"a{axis}"] = dm.Workload(np.vstack([rng.integers(-1, 2, (2, size)), np.ones(size)]))
    ways = [(0, 1), (1,), (0, 1, 2), (2,)][int(rng.integers(0, 4))]
    chosen = [way for way in ways if way <= len(sizes)] or [1]
    return dm.workloads.query_tables(sizes, queries, ways=chosen)


def split(workload: dm.workloads.TableWorkload, targets: Any = 1.0) -> dm.FitnessForUse:
    return dm.FitnessForUse(workload, targets, geometry="split")


def random_problem(seed: int) -> dm.FitnessForUse:
    workload = random_workload(seed)
    return split(workload, np.random.default_rng(seed).uniform(1, 9, len(workload.tables.axes)))


def written_out(problem: Any) -> Any:
    return type(problem)(problem.workload, problem.per_query(), geometry="dense")


def random_point(workload: Any, rng: np.random.Generator) -> dm.duals.SplitPoint:
    roots = [rng.standard_normal((size, size)) for size in workload.sizes]
    shapes = tuple(root @ root.T + 0.3 * np.eye(len(root)) for root in roots)
    return dm.duals.SplitPoint(shapes, rng.uniform(0.1, 5, len(workload.tables.lattice.axes)))


def random_dual(workload: Any, rng: np.random.Generator) -> dm.duals.FitnessDual:
    shapes = [workload.matrix_of(axis).shape for axis in range(len(workload.sizes))]
    return dm.duals.FitnessDual(
        tuple(np.asarray(rng.uniform(0, 1, columns)) for _, columns in shapes),
        dm.duals.SplitWeights(
            tuple(np.asarray(rng.uniform(0, 1, rows)) for rows, _ in shapes),
            rng.uniform(0, 1, len(workload.tables.axes)),
        ),
    )


class TestJudge:
    @quick
    @given(seeds)
    def test_any_point_is_judged_as_its_covariance_is(self, seed: int) -> None:
        problem: Any = random_problem(seed)
        rng = np.random.default_rng(seed)
        point = random_point(problem.workload, rng)
        mechanism = problem.mechanism(point)
        dense = mechanism.dense()
        assert dense.squared_privacy_cost == pytest.approx(mechanism.squared_privacy_cost, rel=1e-8)
        variances = np.concatenate([mechanism.variances(names).ravel() for names in problem.workload.tables.sets])
        np.testing.assert_allclose(dense.variances(problem.workload), variances, rtol=1e-7, atol=1e-9)
        judged = problem.certify(point, random_dual(problem.workload, rng))
        assert judged.objective == pytest.approx(dense.squared_privacy_cost, rel=1e-8)
        forms = problem.geometry.forms(point)
        largest = [mechanism.variances(names).max() for names in problem.workload.tables.sets]
        np.testing.assert_allclose(forms.variances, largest, rtol=1e-7)
        np.testing.assert_array_equal(problem.as_primal(mechanism).levels, point.levels)

    @quick
    @given(seeds)
    def test_totals_are_those_of_the_covariance(self, seed: int) -> None:
        asked, rng = random_workload(seed), np.random.default_rng(seed)
        weights = rng.uniform(1, 9, len(asked.tables.axes))
        problem = dm.TotalVariance(asked, weights, geometry="split")
        point = problem.feasible(random_point(asked, rng))
        dense = problem.mechanism(point).dense()
        assert dense.squared_privacy_cost == pytest.approx(1, rel=1e-8)
        dual = dm.duals.VarianceDual(random_dual(asked, rng).neighbour_weights)
        judged, total = problem.certify(point, dual), dense.variances(asked) @ problem.per_query()
        assert judged.feasible and judged.objective == pytest.approx(total, rel=1e-7)
        with without_warnings():
            best = fast.solve(written_out(problem), tol=1e-5)
            ours = fast.solve(problem, tol=0.1)
        assert judged.lower_bound <= best.objective * (1 + 1e-9)
        assert ours.lower_bound <= best.objective * (1 + 1e-9) and ours.objective >= best.lower_bound * (1 - 1e-9)
        assert ours.prices.sum() == pytest.approx(1)

    @quick
    @given(seeds)
    def test_any_weights_bound_the_dense_optimum(self, seed: int) -> None:
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        with without_warnings():
            best = fast.solve(written_out(problem), tol=1e-5).objective
            ours = fast.solve(problem, tol=1e-6)
        for _ in range(5):
            bound = problem.certify(random_point(problem.workload, rng), random_dual(problem.workload, rng)).lower_bound
            assert bound <= best * (1 + 1e-9)
        assert ours.lower_bound <= best * (1 + 1e-9) and ours.certificate.feasible
        assert ours.objective >= best * (1 - 2e-5)
        assert problem.certify(problem.feasible(random_point(problem.workload, rng)), ours.dual).feasible

    def test_weights_and_shapes_have_no_unit(self) -> None:
        problem, rng = split(PREFIXES), np.random.default_rng(0)
        point, dual = random_point(problem.workload, rng), random_dual(problem.workload, rng)
        asked = dual.query_weights
        scaled = dm.duals.FitnessDual(
            tuple(1e6 * each for each in dual.neighbour_weights),
            dm.duals.SplitWeights(tuple(1e-6 * each for each in asked.queries), 1e6 * asked.tables),
        )
        first, second = problem.certify(point, dual), problem.certify(point, scaled)
        assert first.lower_bound == pytest.approx(second.lower_bound, rel=1e-9)
        larger = problem.feasible(dm.duals.SplitPoint(tuple(1e6 * shape for shape in point.shapes), point.levels))
        assert problem.certify(larger, dual).feasible

    def test_weights_of_other_shapes_are_refused(self) -> None:
        point = random_point(PREFIXES, np.random.default_rng(0))
        kinds = "FitnessDual of dualmech|must be dualmech.duals.SplitWeights"
        sixes, right = (np.ones(6),) * 3, tuple(map(np.ones, (6, 2, 3)))
        alike = dm.duals.SplitWeights(sixes, np.ones(6))
        cases: Any = (
            (kinds, sixes, np.ones(6)),
            ("neighbour_weights must be a sequence of 3 arrays", np.ones(11), alike),
            (r"neighbour_weights\[1\] must be 2, one per value, got 6", sixes, alike),
            ("table_weights must be 6", right, dm.duals.SplitWeights(right, np.ones(5))),
        )
        for message, *parts in cases:
            with pytest.raises(dm.errors.DualmechError, match=message):
                split(PREFIXES).certify(point, dm.duals.FitnessDual(*parts))
        other: Any = np.ones(3)
        with pytest.raises(dm.errors.DualmechError, match=kinds):
            split(PREFIXES).certify(point, other)


class TestSolver:
    def test_marginals_are_solved_exactly(self) -> None:
        tables = dm.workloads.query_tables([5, 4, 3], {}, ways=(1, 2))
        answer = fast.solve(split(tables, {1: 1.0, 2: 3.0}))
        same = fast.solve(dm.FitnessForUse(tables.tables, {1: 1.0, 2: 3.0}))
        assert answer.status is dm.Status.CERTIFIED
        assert answer.objective == pytest.approx(same.objective, rel=1e-6)

    def test_sixty_attributes_with_prefixes_of_ages(self) -> None:
        domain = dm.Domain({"age": 64} | {f"a{axis}": 10 for axis in range(59)})
        asked = dm.workloads.query_tables(domain, {"age": dm.workloads.prefix(64)}, ways=(1, 2))
        answer = fast.solve(split(asked), tol=0.01)
        assert answer.status is dm.Status.CERTIFIED and answer.gap < 0.007
        assert answer.prices.sum() == pytest.approx(1)
        variances = answer.mechanism.variances(["age", "a7"])
        assert variances.shape == (64, 10) and variances.max() <= 1 + 1e-9

    def test_what_is_left_open_and_queries_of_lower_rank(self) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning, match="interval is honest"):
            answer = fast.solve(split(PREFIXES))
        assert answer.status is dm.Status.STALLED and answer.gap < 0.01
        few = dm.Workload([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
        asked = dm.workloads.query_tables({"a": 5, "b": 3}, {"a": few}, ways=(1, 2))
        answer = fast.solve(split(asked), tol=0.5)
        assert answer.certificate.feasible and answer.lower_bound > 0

    def test_a_table_of_all_attributes_is_solved_exactly(self) -> None:
        queries = {"a": dm.workloads.all_range(8), "b": dm.workloads.prefix(6)}
        answer = fast.solve(split(dm.workloads.query_tables({"a": 8, "b": 6}, queries, ways=(1, 2))))
        assert answer.status is dm.Status.CERTIFIED


class TestMechanism:
    @quick
    @given(seeds)
    def test_a_cell_has_what_it_has_on_the_matrix(self, seed: int) -> None:
        workload, rng = random_workload(seed), np.random.default_rng(seed)
        point = random_point(workload, rng)
        made = dm.SplitMechanism(workload, point.shapes, point.levels)
        unit = made.squared_privacy_cost
        for alpha in (None, 2 * unit):
            left = made.free_budget(alpha)
            assert left.shape == (workload.shape[1],)
            np.testing.assert_allclose(left, made.dense().free_budget(alpha), atol=1e-6 * unit)

    def test_the_budgets_of_too_many_cells_are_not_written_out(self) -> None:
        asked = dm.workloads.query_tables([10] * 30, {"a0": dm.workloads.prefix(10)}, ways=1)
        made = fast.solve(split(asked), tol=0.01).mechanism
        with pytest.raises(dm.errors.InvalidInputError, match=r"costs of 1e\+30 cells are too many to write out"):
            made.free_budget()

    def test_answers_are_unbiased_consistent_and_as_noisy_as_stated(self) -> None:
        mechanism = fast.solve(split(PREFIXES), tol=0.01).mechanism
        records = np.random.default_rng(0).integers(0, [6, 2, 3], (60, 3))
        counts, rng, runs = dm.records.count(records, PREFIXES.tables), np.random.default_rng(1), 700
        drawn = [mechanism.recombine(mechanism.measure(counts, rng), ["age", "race"]) for _ in range(runs)]
        truth = np.cumsum(counts[0, 2], axis=0)
        variances = mechanism.variances(["age", "race"])
        errors = np.array(drawn) - truth
        # Five standard errors of a mean and of a variance.
        assert np.all(np.abs(errors.mean(axis=0)) < 5 * np.sqrt(variances / runs))
        assert np.abs(errors.var(axis=0) / variances - 1).max() < 5 * np.sqrt(2 / runs)
        noisy = mechanism.measure(counts, rng=2)
        by_both, by_age = (mechanism.recombine(noisy, names) for names in (["age", "race"], ["age"]))
        np.testing.assert_allclose(by_both.sum(axis=1), by_age, atol=1e-8)

    def test_bad_input_is_refused_by_name(self) -> None:
        made = split(PREFIXES).mechanism(dm.duals.SplitPoint(tuple(np.eye(n) for n in (6, 2, 3)), np.ones(7)))
        for message, call in (
            ("not all of its residuals are measured", lambda made: made.variances(["age", "sex", "race"])),
            ("tables must cover", lambda made: made.measure({(0,): np.zeros(6)})),
            ("'height' is not in the domain", lambda made: made.recombine({}, ["height"])),
            (
                "positive definite",
                lambda made: dm.SplitMechanism(PREFIXES, [0 * np.eye(n) for n in (6, 2, 3)], [1] * 7),
            ),
            ("noise must have 7 levels", lambda made: dm.SplitMechanism(PREFIXES, [np.eye(n) for n in (6, 2, 3)], [1])),
            ("shapes must be a sequence of 3", lambda made: dm.SplitMechanism(PREFIXES, [np.eye(6)], [1.0] * 7)),
            (r"shapes\[1\] must have shape", lambda made: dm.SplitMechanism(PREFIXES, [np.eye(6)] * 3, [1.0] * 7)),
        ):
            with pytest.raises(dm.errors.DualmechError, match=message):
                call(made)


class TestWorkload:
    def test_is_what_it_says(self) -> None:
        asked = dm.workloads.query_tables({"age": 3, "sex": 2}, {"age": dm.workloads.prefix(3)}, ways=(0, 1, 2))
        prefix, both = np.tril(np.ones((3, 3))), np.eye(2)
        expected = [
            np.ones((1, 6)),
            np.kron(prefix, np.ones((1, 2))),
            np.kron(np.ones((1, 3)), both),
            np.kron(prefix, both),
        ]
        np.testing.assert_array_equal(asked.dense(), np.vstack(expected))
        assert asked.shape == (12, 6) and len(asked.names) == len(asked.groups) == 12
        assert pickle.loads(pickle.dumps(asked)).shape == asked.shape

    def test_bad_input_is_refused_by_name(self) -> None:
        for message, call in (
            ("'height' is not in the domain", lambda: dm.workloads.query_tables([3], {"height": PREFIX}, ways=1)),
            ("must be over 3 values, got 6", lambda: dm.workloads.query_tables([3], {"a0": PREFIX}, ways=1)),
            ("must be a Workload of dualmech", lambda: dm.workloads.query_tables([3], {"a0": cast(Any, 3)}, ways=1)),
            ("queries must map", lambda: dm.workloads.query_tables([3], cast(Any, [PREFIX]), ways=1)),
            ("geometry='split' needs no matrix", lambda: dm.workloads.query_tables([10] * 30, {}, ways=1).matrix),
            ("made by dualmech.workloads.query_tables", lambda: split(cast(Any, PREFIX))),
            ("worst queries to look at", lambda: fast.solve(split(wide()))),
        ):
            with pytest.raises(dm.errors.DualmechError, match=message):
                call()


PREFIX: dm.Workload = dm.workloads.prefix(6)


def wide() -> dm.workloads.TableWorkload:
    """A table of seven attributes asked by prefixes, each with several queries that may be the worst."""
    names = [f"a{axis}" for axis in range(7)]
    queries = {name: dm.workloads.prefix(24) for name in names}
    return dm.workloads.query_tables([24] * 7, queries, ways=7)
