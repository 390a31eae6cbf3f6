"""Product workloads: the dense solver's optimum on small ones, and products that no matrix could hold."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.crosscheck.agreement import Agreement

quick = settings(max_examples=10)
seeds = st.integers(0, 10_000)

PREFIX = dm.FitnessForUse(dm.workloads.prefix(3), 1.0)
TABLES = dm.MarginalFitness(dm.workloads.marginals({"age": 3, "sex": 2}, ways=(0, 1)), {0: 1.0, 1: 4.0})


def random_factor(rng: np.random.Generator) -> dm.FitnessForUse | dm.MarginalFitness:
    """Tall, wide, rank-deficient or sparse; duplicated rows; or marginal tables."""
    queries, cells = (int(count) for count in rng.integers(1, 5, 2))
    if rng.random() < 0.25:
        tables = dm.workloads.marginals([2, int(rng.integers(2, 4))], ways=(0, 1))
        return dm.MarginalFitness(tables, rng.uniform(1, 9, 3))
    matrix = rng.integers(-1, 2, (queries, cells)).astype(float)
    matrix[0, 0] = 1.0
    if rng.random() < 0.3:
        matrix = np.vstack([matrix, matrix[:1]])
    return dm.FitnessForUse(dm.Workload(matrix), rng.uniform(1, 9, len(matrix)))


def random_product(seed: int) -> dm.ProductFitness:
    rng = np.random.default_rng(seed)
    return dm.ProductFitness([random_factor(rng) for _ in range(int(rng.integers(2, 4)))])


def written_out(problem: dm.ProductFitness) -> dm.FitnessForUse:
    return dm.FitnessForUse(dm.Workload(problem.workload.matrix), problem.targets)


class TestAgainstDense:
    @quick
    @given(seeds)
    def test_has_the_same_optimum(self, seed: int) -> None:
        problem = random_product(seed)
        answer = fast.solve(problem, tol=1e-7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dm.UncertifiedWarning)  # a wide interval is an interval
            dense = fast.solve(written_out(problem), tol=1e-6)
        assert answer.status is dm.Status.CERTIFIED
        ours, theirs = answer.certificate.interval, dense.certificate.interval
        assert ours[0] <= theirs[1] and theirs[0] <= ours[1]
        assert answer.prices.sum() == pytest.approx(1)

    @quick
    @given(seeds)
    def test_the_dense_judge_finds_the_same_of_its_mechanism_and_weights(self, seed: int) -> None:
        problem = random_product(seed)
        answer, dense = fast.solve(problem, tol=1e-7), written_out(problem)
        mechanism = answer.mechanism
        written = mechanism.dense()
        assert written.squared_privacy_cost == pytest.approx(mechanism.squared_privacy_cost, rel=1e-9)
        variances = written.variances(problem.workload)
        assert np.all(variances <= problem.targets * (1 + 1e-8))
        columns, queries = np.ones(1), np.ones(1)
        for factor, dual in zip(problem.factors, answer.dual.factors, strict=True):
            if isinstance(factor, dm.MarginalFitness):
                cells, tables = factor.workload.shape[1], factor.workload.table_cells
                own = np.full(cells, 1 / cells), np.repeat(dual.table_weights / tables, tables.astype(int))
            else:
                own = dual.neighbour_weights, dual.query_weights
            columns, queries = np.kron(columns, own[0]), np.kron(queries, own[1])
        judged = dense.certify(np.eye(len(dense.basis)), dm.FitnessDual(columns, queries))
        assert judged.lower_bound == pytest.approx(answer.lower_bound, rel=1e-8)

    @quick
    @given(seeds)
    def test_weak_duality(self, seed: int) -> None:
        problem, rng = random_product(seed), np.random.default_rng(seed)
        points: list[Any] = []
        weights: list[Any] = []
        for factor in problem.factors:
            sizes = factor.workload.shape
            if isinstance(factor, dm.MarginalFitness):
                points.append(rng.uniform(0.1, 9, len(factor.workload.lattice.axes)))
                weights.append(rng.uniform(0, 1, len(factor.targets)))
            else:
                root = rng.standard_normal((len(factor.basis), len(factor.basis)))
                points.append(root @ root.T + 0.1 * np.eye(len(root)))
                weights.append(dm.FitnessDual(rng.uniform(0, 1, sizes[1]), rng.uniform(0, 1, sizes[0])))
        judged = problem.certify(problem.feasible(points), weights)
        assert judged.feasible and judged.lower_bound <= judged.objective

    def test_lies_are_not_certified(self) -> None:
        problem = dm.ProductFitness([PREFIX, TABLES])
        answer = fast.solve(problem, tol=1e-8)
        covariance, noise = answer.primal
        for primal in (
            (1.1 * covariance, noise),
            (0.9 * covariance, noise),
            (covariance * np.nan, noise),
            (-covariance, noise),
            (covariance, -noise),
            # One factor's slack does not pay for the other's excess.
            (1.1 * covariance, noise / 1.1),
        ):
            assert not problem.certify(primal, answer.dual).certifies(1e-6)
        assert not problem.certify(answer.primal, (answer.dual.factors[0], [0.0] * 3)).certifies(1e-6)


def variance_factor(rng: np.random.Generator) -> dm.TotalVariance | dm.MarginalVariance:
    """As `random_factor`, with weights, some of them 0."""
    given = random_factor(rng)
    if isinstance(given, dm.MarginalFitness):
        return dm.MarginalVariance(given.workload, given.targets)
    weights = given.targets * (rng.random(len(given.targets)) < 0.8)
    return dm.TotalVariance(given.workload, weights if weights @ given.workload.row_norms() else 1.0)


class TestVariance:
    @settings(quick, max_examples=8)
    @given(seeds)
    def test_has_the_dense_optimum_and_prices(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        problem = dm.ProductVariance([variance_factor(rng) for _ in range(2)])
        answer = fast.solve(problem, tol=1e-8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dm.UncertifiedWarning)  # a wide interval is an interval
            dense = fast.solve(
                dm.TotalVariance(dm.Workload(problem.workload.matrix), problem.weights), tol=1e-7
            )
        assert answer.status is dm.Status.CERTIFIED
        ours, theirs = answer.certificate.interval, dense.certificate.interval
        assert ours[0] <= theirs[1] and theirs[0] <= ours[1]
        assert answer.prices.sum() == pytest.approx(1)
        mechanism = answer.mechanism
        assert mechanism.squared_privacy_cost <= 1 + 1e-9
        asked = np.flatnonzero(problem.weights)
        total = problem.weights[asked] @ mechanism.dense().variances(problem.workload.select(asked))
        assert total == pytest.approx(answer.objective, rel=1e-8)

    def test_both_layers_agree_and_lies_are_not_certified(self) -> None:
        tables = dm.MarginalVariance(TABLES.workload, {0: 1.0, 1: 4.0})
        problem = dm.ProductVariance(
            [
                dm.TotalVariance(PREFIX.workload),
                dm.ProductVariance([tables, dm.TotalVariance(PREFIX.workload)]),
            ]
        )
        assert len(problem.factors) == 3
        ours, theirs = fast.solve(problem), reference.solve(problem)
        assert theirs.status is dm.Status.CERTIFIED
        assert crosscheck.compare([ours, theirs]).outcome is Agreement.AGREE
        covariance, noise, _ = ours.primal
        assert not problem.certify((0.9 * covariance, noise, covariance), ours.dual).feasible
        assert not problem.certify((1.1 * covariance, noise, covariance), ours.dual).certifies(1e-6)
        # One factor's slack does not pay for the other's excess.
        assert not problem.certify((1.1 * covariance, noise / 1.1, covariance), ours.dual).feasible

    @pytest.mark.parametrize("factor", [PREFIX, TABLES])
    def test_takes_no_factors_of_fitness(self, factor: Any) -> None:
        with pytest.raises(
            dm.InputTypeError, match=r"factors\[1\] must be a TotalVariance, MarginalVariance or"
        ):
            dm.ProductVariance([dm.TotalVariance(PREFIX.workload), factor])


class TestHundredsOfFactors:
    """What no double can hold is an error that says so; what one can hold is computed, whatever stands on the way."""

    @pytest.mark.parametrize("target", [1e-3, 1e3])
    def test_products_that_no_double_holds_are_refused(self, target: float) -> None:
        factor = dm.FitnessForUse(PREFIX.workload, target)
        with pytest.raises(dm.InvalidInputError, match="targets of the product .* 1e[+-]330;"):
            dm.ProductFitness([factor] * 110 + [PREFIX])
        with pytest.raises(dm.InvalidInputError, match="weights of the product"):
            dm.ProductVariance([dm.TotalVariance(PREFIX.workload, target)] * 110)

    def test_an_optimum_that_no_double_holds_is_refused(self) -> None:
        problem = dm.ProductFitness([dm.FitnessForUse(dm.workloads.prefix(16), 1.0)] * 1000)
        assert "1.3182e+1204 cells" in repr(problem.workload)
        with pytest.raises(dm.InvalidInputError, match=r"targets must leave the optimum .* 1e\+46"):
            fast.solve(problem)

    def test_partial_products_may_be_of_any_size(self) -> None:
        small, large = (dm.FitnessForUse(dm.workloads.total(2), target) for target in (1e-40, 1e40))
        answer = fast.solve(dm.ProductFitness([small] * 11 + [large] * 11))
        assert answer.objective == pytest.approx(1) and answer.problem.targets == pytest.approx([1])
        assert answer.mechanism.squared_privacy_cost == pytest.approx(1)


class TestSolvers:
    def test_twenty_factors_of_a_thousand_digits(self) -> None:
        factor = dm.FitnessForUse(dm.workloads.prefix(16), 1.0)
        problem = dm.ProductFitness([factor] * 20)
        answer = fast.solve(problem)
        assert problem.workload.shape[1] == 16**20
        assert answer.status is dm.Status.CERTIFIED and answer.gap <= 1e-6
        assert answer.objective == pytest.approx(fast.solve(factor, tol=1e-9).objective ** 20, rel=1e-6)
        assert answer.mechanism.variance_of(*np.eye(16)[[3] * 20]) > 0

    def test_marginals_beside_prefixes(self) -> None:
        tables = dm.workloads.marginals([10] * 60, ways=(1, 2))
        prefixes = dm.FitnessForUse(dm.workloads.prefix(16), 1.0)
        problem = dm.ProductFitness([prefixes, dm.MarginalFitness(tables)])
        answer = fast.solve(problem)
        alone = fast.solve(prefixes, tol=1e-9).objective
        assert answer.objective == pytest.approx(alone * 1234.818652, rel=1e-6)
        of_prefixes, of_tables = answer.mechanism.variances(problem.workload)
        assert of_prefixes.max() * of_tables.max() == pytest.approx(1, abs=1e-6)

    def test_both_layers_agree(self) -> None:
        problem = dm.ProductFitness([PREFIX, dm.ProductFitness([TABLES, PREFIX])])
        assert len(problem.factors) == 3
        ours, theirs = fast.solve(problem), reference.solve(problem, backend="CLARABEL")
        low, high = theirs.certificate.interval
        assert theirs.certificate.certifies(theirs.tol)
        assert low <= ours.certificate.interval[1] and ours.certificate.interval[0] <= high

    def test_an_uncertified_factor_is_said(self) -> None:
        problem = dm.ProductFitness([dm.FitnessForUse(dm.workloads.prefix(16), 1.0)] * 2)
        with pytest.warns(dm.UncertifiedWarning, match="STEPS_EXHAUSTED"):
            answer = fast.solve(problem, max_iterations=1)
        assert answer.status is dm.Status.STEPS_EXHAUSTED


class TestMechanism:
    def test_answers_are_unbiased_and_as_noisy_as_stated(self) -> None:
        problem = dm.ProductFitness([PREFIX, TABLES])
        mechanism = fast.solve(problem, tol=1e-8).mechanism
        x, rng, runs = np.arange(18.0).reshape(3, 6), np.random.default_rng(0), 1000
        drawn = np.array([mechanism.simulate(x, problem.workload, rng) for _ in range(runs)])
        truth = problem.workload.apply(x.ravel()).reshape(drawn.shape[1:])
        first, tables = mechanism.variances(problem.workload)
        variances = np.outer(first, np.repeat(tables, TABLES.workload.table_cells.astype(int)))
        errors = drawn - truth
        # Five standard errors of a mean and of a variance.
        assert np.all(np.abs(errors.mean(axis=0)) < 5 * np.sqrt(variances / runs))
        assert np.abs(errors.var(axis=0) / variances - 1).max() < 5 * np.sqrt(2 / runs)

    def test_binding_cells_are_combinations_of_binding_ones(self) -> None:
        problem = dm.ProductFitness([PREFIX, TABLES])
        answer = fast.solve(problem, tol=1e-8)
        own = PREFIX.binding(answer.primal[0], 1e-4)
        np.testing.assert_array_equal(problem.binding(answer.primal, 1e-4) // 6, np.repeat(own, 6))

    @pytest.mark.parametrize(
        ("message", "call"),
        [
            ("factors must be two or more", lambda made: dm.ProductMechanism(made.factors[:1])),
            (
                r"factors\[1\] must be a LinearG",
                lambda made: dm.ProductMechanism([made.factors[0], cast(Any, 3)]),
            ),
            ("release nothing exactly", lambda made: dm.ProductMechanism([made.factors[0], EXACT])),
            ("queries must be 2, one a factor, got 1", lambda made: made.variance_of([1, 0, 0])),
            ("must map attributes", lambda made: made.variance_of([1, 0, 0], [1, 0])),
            ("made by dualmech.workloads.kron", lambda made: made.variances(PREFIX.workload)),
            ("marginals of the mechanism's domain", lambda made: made.variances(TWICE)),
            (r"x must have shape \(3, 6\)", lambda made: made.simulate(np.ones(18), BOTH)),
        ],
    )
    def test_bad_input_is_refused_by_name(
        self, message: str, call: Callable[[dm.ProductMechanism], object]
    ) -> None:
        problem = dm.ProductFitness([PREFIX, TABLES])
        made = problem.mechanism((np.eye(3), np.ones(len(TABLES.workload.lattice.axes))))
        with pytest.raises(dm.DualmechError, match=message):
            call(made)


BOTH: dm.Workload = dm.workloads.kron(PREFIX.workload, TABLES.workload)
TWICE: dm.Workload = dm.workloads.kron(PREFIX.workload, PREFIX.workload)
EXACT: dm.LinearGaussianMechanism = dm.LinearGaussianMechanism(np.eye(2), np.diag([1.0, 0.0]))


class TestWorkload:
    def test_is_the_kronecker_product(self) -> None:
        first, second = dm.Workload([[1, 2], [0, 1]], ["a", "b"]), dm.workloads.marginals([2, 2], ways=1)
        both = dm.workloads.kron(first, second)
        np.testing.assert_array_equal(both.dense(), np.kron(first.dense(), second.dense()))
        assert both.names[4] == "b & a0=0" and both.groups[0] == "queries & a0"
        assert both.domain is None and not both.is_sparse
        copy = pickle.loads(pickle.dumps(both))
        assert copy.shape == both.shape and copy.names == both.names

    def test_domains_are_joined(self) -> None:
        first, second = (dm.workloads.marginals({name: 2}, ways=1) for name in ("age", "sex"))
        joined = dm.workloads.kron(first, second)
        assert joined.domain == dm.Domain({"age": 2, "sex": 2}) and joined.is_sparse
        np.testing.assert_array_equal(joined.dense(), np.eye(4))
        assert dm.workloads.kron(first, first).domain is None

    @pytest.mark.parametrize(
        ("message", "call"),
        [
            ("factors must be two or more workloads", lambda: dm.workloads.kron(PREFIX.workload)),
            (
                r"factors\[1\] must be a dualmech.Workload",
                lambda: dm.workloads.kron(PREFIX.workload, cast(Any, 3)),
            ),
            (
                "ProductFitness and ProductVariance need no matrix",
                lambda: dm.workloads.kron(*[PREFIX.workload] * 30).matrix,
            ),
            ("too many to write out", lambda: dm.workloads.kron(*[PREFIX.workload] * 30).names),
            ("too many to write out", lambda: dm.ProductFitness([PREFIX] * 30).targets),
            (
                "binding cells are listed",
                lambda: dm.ProductFitness([PREFIX] * 30).binding([np.eye(3)] * 30, 0.1),
            ),
            ("factors must be two or more problems", lambda: dm.ProductFitness([PREFIX])),
            (
                r"factors\[1\] must be a FitnessForUse",
                lambda: dm.ProductFitness([PREFIX, cast(Any, PREFIX.workload)]),
            ),
            ("default neighbours", lambda: dm.ProductFitness([PREFIX, REPLACED])),
            ("primal must have 2 items", lambda: dm.ProductFitness([PREFIX, PREFIX]).feasible([np.eye(3)])),
        ],
    )
    def test_bad_input_is_refused_by_name(self, message: str, call: Callable[[], Any]) -> None:
        with pytest.raises(dm.DualmechError, match=message):
            call()


REPLACED: dm.FitnessForUse = dm.FitnessForUse(
    dm.workloads.identity(3), 1.0, neighbours=np.array([[1.0, 0], [-1.0, 1.0], [0, -1.0]])
)
