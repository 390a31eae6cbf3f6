"""Product workloads: the dense solver's optimum on small ones, and products that no matrix could hold."""

import pickle
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from intervals import meet, solved

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.crosscheck.agreement import Agreement
from dualmech.validate import Array

quick = settings(max_examples=10)
seeds = st.integers(0, 10_000)

PREFIXES = dm.workloads.prefix(3)
TABLES = dm.workloads.marginals({"age": 3, "sex": 2}, ways=(0, 1))
BOTH = dm.workloads.kron(PREFIXES, TABLES)
TARGETS = dm.ByFactor(1.0, {0: 1.0, 1: 4.0})


def random_factor(rng: np.random.Generator) -> tuple[dm.Workload, Array]:
    """Tall, wide, rank-deficient or sparse; duplicated rows; or marginal tables. With targets."""
    queries, cells = (int(count) for count in rng.integers(1, 5, 2))
    if rng.random() < 0.25:
        tables = dm.workloads.marginals([2, int(rng.integers(2, 4))], ways=(0, 1))
        return tables, rng.uniform(1, 9, 3)
    matrix = rng.integers(-1, 2, (queries, cells)).astype(float)
    matrix[0, 0] = 1.0
    if rng.random() < 0.3:
        matrix = np.vstack([matrix, matrix[:1]])
    return dm.Workload(matrix), rng.uniform(1, 9, len(matrix))


def random_product(seed: int) -> dm.FitnessForUse:
    rng = np.random.default_rng(seed)
    factors = [random_factor(rng) for _ in range(int(rng.integers(2, 4)))]
    workload = dm.workloads.kron(*(own for own, _ in factors))
    return dm.FitnessForUse(workload, dm.ByFactor(*(targets for _, targets in factors)))


def random_variance(seed: int) -> dm.TotalVariance:
    """As `random_product`, with weights, some of them 0."""
    rng = np.random.default_rng(seed)
    factors, weights = [], []
    for workload, numbers in (random_factor(rng) for _ in range(2)):
        kept = numbers
        if not isinstance(workload, dm.workloads.MarginalWorkload):
            kept = numbers * (rng.random(len(numbers)) < 0.8)
            kept = kept if kept @ workload.row_norms() else np.ones(len(numbers))
        factors.append(workload)
        weights.append(kept)
    return dm.TotalVariance(dm.workloads.kron(*factors), dm.ByFactor(*weights))


def written_out(problem: Any) -> Any:
    return type(problem)(problem.workload, problem.per_query(), geometry="dense")


class TestAgainstDense:
    @quick
    @given(seeds)
    def test_has_the_optimum_and_the_bound_of_the_dense_problem(self, seed: int) -> None:
        problem = random_product(seed)
        answer, dense = fast.solve(problem, tol=1e-7), written_out(problem)
        assert answer.status is dm.Status.CERTIFIED and answer.prices.sum() == pytest.approx(1)
        assert dense.geometry.name == "dense" and problem.geometry.name == "product" and problem.same_as(dense)
        assert meet(answer, solved(dense, tol=1e-6))
        mechanism = answer.mechanism
        written = mechanism.dense()
        assert written.squared_privacy_cost == pytest.approx(mechanism.squared_privacy_cost, rel=1e-9)
        variances = written.variances(problem.workload)
        assert np.all(variances <= problem.per_query() * (1 + 1e-8))
        columns, queries = np.ones(1), np.ones(1)
        for factor, *dual in zip(problem.factors, *answer.dual, strict=True):
            own = dual
            if factor.geometry.name == "blocks":
                cells, counts = factor.workload.shape[1], factor.workload.table_cells
                own = [np.full(cells, 1 / cells), np.repeat(dual[1] / counts, counts.astype(int))]
            columns, queries = np.kron(columns, own[0]), np.kron(queries, own[1])
        judged = dense.certify(np.eye(len(dense.basis)), dm.duals.FitnessDual(columns, queries))
        assert judged.lower_bound == pytest.approx(answer.lower_bound, rel=1e-8)

    @quick
    @given(seeds)
    def test_weak_duality(self, seed: int) -> None:
        problem, rng = random_product(seed), np.random.default_rng(seed)
        points: list[Any] = []
        weights: list[tuple[Array, Array]] = []
        for factor in problem.factors:
            sizes = factor.workload.shape
            if factor.geometry.name == "blocks":
                points.append(rng.uniform(0.1, 9, len(factor.geometry.keys)))
                weights.append((np.ones(1), rng.uniform(0, 1, len(factor.targets))))
            else:
                root = rng.standard_normal((len(factor.basis), len(factor.basis)))
                points.append(root @ root.T + 0.1 * np.eye(len(root)))
                weights.append((rng.uniform(0, 1, sizes[1]), rng.uniform(0, 1, sizes[0])))
        dual = dm.duals.FitnessDual(*zip(*weights, strict=True))
        judged = problem.certify(problem.feasible(points), dual)
        assert judged.feasible and judged.lower_bound <= judged.objective

    @pytest.mark.parametrize("factor", [1.1, 1e-3, 1e6])
    def test_one_factors_slack_pays_for_the_others_excess(self, factor: float) -> None:
        """Variances multiply, and so do targets: of every query it is the product of the ratios that counts."""
        problem = dm.FitnessForUse(BOTH, TARGETS)
        answer = fast.solve(problem, tol=1e-8)
        covariance, noise = answer.primal
        judged = problem.certify((factor * covariance, noise.scaled(1 / factor)), answer.dual)
        assert judged.certifies(1e-8)
        assert judged.objective == pytest.approx(answer.objective, rel=1e-12)
        written = problem.mechanism((factor * covariance, noise.scaled(1 / factor))).dense()
        assert np.all(written.variances(BOTH) <= problem.per_query() * (1 + 1e-9))
        total = dm.TotalVariance(BOTH, TARGETS)
        least = fast.solve(total, tol=1e-8)
        covariance, noise = least.primal
        assert total.certify((factor * covariance, noise.scaled(1 / factor)), least.dual).certifies(1e-8)


class TestVariance:
    @settings(quick, max_examples=8)
    @given(seeds)
    @example(82)
    def test_has_the_dense_optimum_and_prices(self, seed: int) -> None:
        problem = random_variance(seed)
        answer = fast.solve(problem, tol=1e-8)
        assert answer.status is dm.Status.CERTIFIED
        assert meet(answer, solved(written_out(problem), tol=1e-7))
        assert answer.prices.sum() == pytest.approx(1)
        mechanism, weights = answer.mechanism, problem.per_query()
        assert mechanism.squared_privacy_cost <= 1 + 1e-9
        asked = np.flatnonzero(weights)
        total = weights[asked] @ mechanism.dense().variances(problem.workload.select(asked))
        assert total == pytest.approx(answer.objective, rel=1e-8)
        # A query of zeros costs nothing to answer, whatever its weight.
        priced = asked[problem.workload.row_norms()[asked] > 0]
        np.testing.assert_array_equal(np.flatnonzero(answer.prices > 1e-12), priced)

    def test_a_factor_that_comes_again_is_one(self) -> None:
        workload = dm.workloads.kron(PREFIXES, dm.workloads.kron(TABLES, PREFIXES))
        problem = dm.TotalVariance(workload, dm.ByFactor(1.0, {0: 1.0, 1: 4.0}, 1.0))
        first, tables, last = problem.factors
        assert first is last and [first.geometry.name, tables.geometry.name] == ["dense", "blocks"]
        assert problem.geometry.factors[0] is problem.geometry.factors[2]
        ours, theirs = fast.solve(problem), reference.solve(problem)
        assert theirs.status is dm.Status.CERTIFIED
        assert crosscheck.compare([ours, theirs]).outcome is Agreement.AGREE
        covariance, noise, _ = ours.primal
        assert not problem.certify((0.9 * covariance, noise, covariance), ours.dual).feasible
        assert not problem.certify((1.1 * covariance, noise, covariance), ours.dual).certifies(1e-6)


class TestHundredsOfFactors:
    """What no double can hold is an error that says so; what one can hold is computed, whatever stands on the way."""

    @pytest.mark.parametrize("target", [1e-3, 1e3])
    def test_products_that_no_double_holds_are_refused(self, target: float) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="targets of the product .* 1e[+-]330;"):
            dm.FitnessForUse(dm.workloads.kron(*[PREFIXES] * 111), dm.ByFactor(*[target] * 110, 1.0))
        with pytest.raises(dm.errors.InvalidInputError, match="weights of the product"):
            dm.TotalVariance(dm.workloads.kron(*[PREFIXES] * 110), dm.ByFactor(*[target] * 110))

    def test_an_optimum_but_no_partial_product_must_be_a_double(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.kron(*[dm.workloads.prefix(16)] * 1000))
        assert "1.3182e+1204 cells" in repr(problem.workload)
        with pytest.raises(dm.errors.InvalidInputError, match=r"a normal double, got about 1e\+46"):
            fast.solve(problem)
        workload = dm.workloads.kron(*[dm.workloads.total(2)] * 22)
        answer = fast.solve(dm.FitnessForUse(workload, dm.ByFactor(*[1e-40] * 11, *[1e40] * 11)))
        assert answer.objective == pytest.approx(1) and answer.problem.per_query() == pytest.approx([1])
        assert answer.mechanism.squared_privacy_cost == pytest.approx(1)


class TestSolvers:
    def test_twenty_factors_of_a_thousand_digits(self) -> None:
        prefixes = dm.workloads.prefix(16)
        problem = dm.FitnessForUse(dm.workloads.kron(*[prefixes] * 20))
        answer = fast.solve(problem)
        assert problem.workload.shape[1] == 16**20
        assert answer.status is dm.Status.CERTIFIED and answer.gap <= 1e-6
        alone = fast.solve(dm.FitnessForUse(prefixes), tol=1e-9).objective
        assert answer.objective == pytest.approx(alone**20, rel=1e-6)
        assert answer.mechanism.variance_of(*np.eye(16)[[3] * 20]) > 0

    def test_an_uncertified_factor(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.kron(*[dm.workloads.prefix(16)] * 2))
        with pytest.warns(dm.errors.UncertifiedWarning, match="STEPS_EXHAUSTED"):
            answer = fast.solve(problem, max_iterations=1)
        assert answer.status is dm.Status.STEPS_EXHAUSTED

    def test_marginals_beside_prefixes(self) -> None:
        tables = dm.workloads.marginals([10] * 60, ways=(1, 2))
        prefixes = dm.workloads.prefix(16)
        problem = dm.FitnessForUse(dm.workloads.kron(prefixes, tables))
        answer = fast.solve(problem)
        alone = fast.solve(dm.FitnessForUse(prefixes), tol=1e-9).objective
        assert answer.objective == pytest.approx(alone * 1234.818652, rel=1e-6)
        of_prefixes, of_tables = answer.mechanism.variances(problem.workload)
        assert of_prefixes.max() * of_tables.max() == pytest.approx(1, abs=1e-6)


class TestMechanism:
    def test_answers_are_unbiased_and_as_noisy_as_stated(self) -> None:
        problem = dm.FitnessForUse(BOTH, TARGETS)
        mechanism = fast.solve(problem, tol=1e-8).mechanism
        x, rng, runs = np.arange(18.0).reshape(3, 6), np.random.default_rng(0), 1000
        drawn = np.array([mechanism.simulate(x, problem.workload, rng) for _ in range(runs)])
        truth = problem.workload.apply(x.ravel()).reshape(drawn.shape[1:])
        first, tables = mechanism.variances(problem.workload)
        variances = np.outer(first, np.repeat(tables, TABLES.table_cells.astype(int)))
        errors = drawn - truth
        # Five standard errors of a mean and of a variance.
        assert np.all(np.abs(errors.mean(axis=0)) < 5 * np.sqrt(variances / runs))
        assert np.abs(errors.var(axis=0) / variances - 1).max() < 5 * np.sqrt(2 / runs)

    def test_free_budgets_of_combinations_of_cells(self) -> None:
        ages = dm.LinearGaussianMechanism(np.eye(3), np.diag([1.0, 2.0, 3.0]))
        age = dm.workloads.union({"age": 4}, {"t": {"age": dm.Workload([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])}})
        tables = fast.solve(dm.FitnessForUse(dm.workloads.marginals([2, 3], ways=1))).mechanism
        for made, each in (
            (dm.ProductMechanism([ages, ages]), np.arange(9)),
            (dm.ProductMechanism([ages, tables]), np.repeat(np.arange(3), 6)),
            (
                dm.ProductMechanism([dm.BlockMechanism.of_tables(age), ages]),
                (3 * np.array([0, 0, 1, 1])[:, None] + np.arange(3)).ravel(),
            ),
        ):
            for alpha in (None, 2 * made.squared_privacy_cost):
                written = made.dense().free_budget(alpha)
                np.testing.assert_allclose(made.free_budget(alpha)[each], written, atol=1e-12)
        made = dm.ProductMechanism([dm.LinearGaussianMechanism(np.eye(3), np.eye(3))] * 30)
        with pytest.raises(dm.errors.InvalidInputError, match="too many.*take the factors' own"):
            made.free_budget()

    def test_bad_input_is_refused_by_name(self) -> None:
        ages = dm.LinearGaussianMechanism(np.eye(3), np.eye(3))
        tables = dm.BlockMechanism.of_levels(dm.Domain({"sex": 2}), {(0,): 2.0}, "replace")
        with pytest.raises(dm.errors.InvalidInputError, match=r"factors\[1\] must have the default neighbours"):
            dm.ProductMechanism([ages, tables])
        made = dm.FitnessForUse(BOTH, TARGETS).mechanism((np.eye(3), np.ones(len(TABLES.lattice.axes))))
        for message, call in (
            ("factors must be two or more", lambda made: dm.ProductMechanism(made.factors[:1])),
            (r"factors\[1\] must be a LinearG", lambda made: dm.ProductMechanism([made.factors[0], cast(Any, 3)])),
            ("release nothing exactly", lambda made: dm.ProductMechanism([made.factors[0], EXACT])),
            ("queries must be 2, one per factor, got 1", lambda made: made.variance_of([1, 0, 0])),
            ("must map attributes", lambda made: made.variance_of([1, 0, 0], [1, 0])),
            ("made by dualmech.workloads.kron", lambda made: made.variances(PREFIXES)),
            ("tables of the mechanism's domain", lambda made: made.variances(TWICE)),
            (r"x must have shape \(3, 6\)", lambda made: made.simulate(np.ones(18), BOTH)),
        ):
            with pytest.raises(dm.errors.DualmechError, match=message):
                call(made)

    def test_binding_cells_are_combinations_of_binding_ones(self) -> None:
        problem = dm.FitnessForUse(BOTH, TARGETS)
        answer = fast.solve(problem, tol=1e-8)
        own = problem.factors[0].binding(answer.primal[0], 1e-4)
        np.testing.assert_array_equal(problem.binding(answer.primal, 1e-4) // 6, np.repeat(own, 6))


TWICE: dm.Workload = dm.workloads.kron(PREFIXES, PREFIXES)
SUMS, SINGLE = dm.TotalVariance(TWICE).geometry, dm.duals.VarianceDual([np.ones(3)])
EXACT: dm.LinearGaussianMechanism = dm.LinearGaussianMechanism(np.eye(2), np.diag([1.0, 0.0]))


class TestWorkload:
    def test_is_the_kronecker_product_and_domains_are_joined(self) -> None:
        first, second = dm.Workload([[1, 2], [0, 1]], ["a", "b"]), dm.workloads.marginals([2, 2], ways=1)
        both = dm.workloads.kron(first, second)
        np.testing.assert_array_equal(both.dense(), np.kron(first.dense(), second.dense()))
        assert both.names[4] == "b & a0=0" and both.groups[0] == "queries & a0"
        assert both.domain is None and not both.is_sparse
        copy = pickle.loads(pickle.dumps(both))
        assert copy.shape == both.shape and copy.names == both.names
        first, second = (dm.workloads.marginals({name: 2}, ways=1) for name in ("age", "sex"))
        joined = dm.workloads.kron(first, second)
        assert joined.domain == dm.Domain({"age": 2, "sex": 2}) and joined.is_sparse
        np.testing.assert_array_equal(joined.dense(), np.eye(4))
        assert dm.workloads.kron(first, first).domain is None

    def test_bad_input_is_refused_by_name(self) -> None:
        for message, call in (
            ("factors must be two or more workloads", lambda: dm.workloads.kron(PREFIXES)),
            (r"factors\[1\] must be a Workload of dualmech", lambda: dm.workloads.kron(PREFIXES, cast(Any, 3))),
            ("geometry='product' needs no matrix", lambda: MANY.matrix),
            ("too many to write out", lambda: MANY.names),
            ("too many to write out", lambda: dm.FitnessForUse(MANY).per_query()),
            ("binding cells are listed", lambda: dm.FitnessForUse(MANY).binding([np.eye(3)] * 30, 0.1)),
            ("does not list its loose queries", lambda: dm.FitnessForUse(TWICE).loose([np.eye(3)] * 2, 0.1)),
            ("by factor must be 2, one per factor, got 3", lambda: dm.FitnessForUse(TWICE, dm.ByFactor(1, 1, 1))),
            ("geometry 'product' takes workloads", lambda: dm.FitnessForUse(PREFIXES, dm.ByFactor(1.0))),
            ("geometry 'product' takes", lambda: dm.FitnessForUse(TWICE, [2.0] + [1.0] * 8, geometry="product")),
            (r"^factors\[1\]: targets must be pos", lambda: dm.FitnessForUse(TWICE, dm.ByFactor(1.0, -1.0))),
            (r"^factors\[0\]: .* 3 numbers, got", lambda: dm.FitnessForUse(TWICE, dm.ByFactor([1.0, 2.0], 1.0))),
            (r"^factors\[1\]: .*got 'height'", lambda: dm.FitnessForUse(TWICE, dm.ByFactor(1, {"height": 1}))),
            (r"^factors\[1\]: weights", lambda: dm.TotalVariance(TWICE, dm.ByFactor(1.0, None), geometry=SUMS)),
            ("^targets must be positive", lambda: dm.FitnessForUse(TWICE, -1.0)),
            (
                "a basis and a matrix of neighbours are for",
                lambda: dm.FitnessForUse(TWICE, basis=np.eye(9), geometry="product"),
            ),
            ("primal must have 2 items", lambda: dm.FitnessForUse(TWICE).feasible([np.eye(3)])),
            ("primal must be a sequence", lambda: dm.FitnessForUse(TWICE).feasible(3)),
            ("neighbour_weights must have 2 items", lambda: dm.TotalVariance(TWICE).certify([np.eye(3)] * 2, SINGLE)),
            ("factors are of geometry 'product'", lambda: dm.FitnessForUse(PREFIXES).factors),
        ):
            with pytest.raises(dm.errors.DualmechError, match=message):
                call()


MANY: dm.Workload = dm.workloads.kron(*[PREFIXES] * 30)
