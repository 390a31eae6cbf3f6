"""Marginal tables on blocks: the dense solvers' optimum by residual subspaces, and domains that no matrix holds."""

import itertools
import pickle
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.mechanisms.tables import marginal_of
from dualmech.validate import Array

quick = settings(max_examples=15)
seeds = st.integers(0, 10_000)


def mechanism_residuals(mechanism: dm.BlockMechanism, tables: dict[Any, Array]) -> dict[Any, Array]:
    """The residuals without any noise: those of two draws whose noise cancels."""
    quiet = dm.BlockMechanism.of_levels(mechanism.domain, {axes: 1e-24 for axes in mechanism.noise})
    return quiet.measure(tables, rng=0)


def random_tables(seed: int) -> dm.workloads.MarginalWorkload:
    """Up to five different tables of up to four attributes of 1 to 4 values."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, int(rng.integers(1, 5)))
    sizes[0] = max(sizes[0], 2)
    every = [each for k in range(len(sizes) + 1) for each in itertools.combinations(range(len(sizes)), k)]
    chosen = rng.choice(len(every), min(len(every), int(rng.integers(1, 6))), replace=False)
    domain = dm.Domain([(f"a{axis}", int(size)) for axis, size in enumerate(sizes)])
    return dm.workloads.MarginalWorkload(domain, [every[index] for index in chosen])


def spread(workload: dm.workloads.MarginalWorkload, values: Array) -> Array:
    return np.repeat(values, workload.table_cells.astype(int))


class TestAgainstDense:
    @quick
    @given(seeds)
    def test_both_families_have_the_same_optimum(self, seed: int) -> None:
        workload, rng = random_tables(seed), np.random.default_rng(seed)
        numbers = rng.uniform(1, 100, len(workload.axes))
        for kind in (dm.FitnessForUse, dm.TotalVariance):
            structured: Any = fast.solve(kind(workload, numbers), tol=1e-9)
            dense: Any = fast.solve(kind(workload, spread(workload, numbers), geometry="dense"), tol=1e-7)
            assert structured.status is dense.status is dm.Status.CERTIFIED
            ours, theirs = structured.certificate.interval, dense.certificate.interval
            assert ours[0] <= theirs[1] and theirs[0] <= ours[1] and structured.prices.sum() == pytest.approx(1)
            if kind is dm.TotalVariance:
                assert structured.gap <= 1e-12
                continue
            # Its own bound, spread over cells and queries, proves as much to the dense judge.
            weights = spread(workload, structured.dual.query_weights / workload.table_cells)
            cells = np.full(workload.shape[1], 1 / workload.shape[1])
            judged = dense.problem.certify(dense.primal, dm.duals.FitnessDual(cells, weights))
            assert judged.lower_bound == pytest.approx(structured.lower_bound, rel=1e-8)

    @quick
    @given(seeds)
    def test_the_mechanism_is_that_of_its_covariance(self, seed: int) -> None:
        workload = random_tables(seed)
        problem = dm.FitnessForUse(workload, 2.0)
        answer = fast.solve(problem, tol=1e-9)
        mechanism, domain = answer.mechanism, workload.domain
        assert domain is not None
        projectors = {axes: np.ones((1, 1)) for axes in mechanism.noise}
        for axis, size in enumerate(domain.shape):
            mean = np.full((size, size), 1 / size)
            projectors = {
                axes: np.kron(each, np.eye(size) - mean if axis in axes else mean) for axes, each in projectors.items()
            }
        covariance = sum(mechanism.noise[axes] / domain.cells * each for axes, each in projectors.items())
        cost = sum(each * domain.cells / mechanism.noise[axes] for axes, each in projectors.items())
        np.testing.assert_allclose(np.diagonal(cost), mechanism.squared_privacy_cost, rtol=1e-9)
        queries = workload.dense()
        variances = np.einsum("jk,kl,jl->j", queries, covariance, queries)
        np.testing.assert_allclose(variances, spread(workload, mechanism.variances(workload)), rtol=1e-9)
        assert variances.max() <= 2 * (1 + 1e-9)
        rng = np.random.default_rng(seed)
        axes = workload.axes[-1]
        first, second = ({domain.names[a]: rng.standard_normal(domain.shape[a]) for a in axes} for _ in range(2))
        vectors = []
        for query in (first, second):
            vector: Any = np.ones(1)
            for name, size in domain.sizes:
                vector = np.kron(vector, query.get(name, np.ones(size)))
            vectors.append(vector)
        expected = vectors[0] @ covariance @ vectors[1]
        assert mechanism.covariance_of(first, second) == pytest.approx(expected, rel=1e-8, abs=1e-9)


class TestJudge:
    @quick
    @given(seeds)
    def test_weak_duality_and_scaling(self, seed: int) -> None:
        workload, rng = random_tables(seed), np.random.default_rng(seed)
        problem = dm.FitnessForUse(workload, rng.uniform(1, 9, len(workload.axes)))
        noise = problem.feasible(rng.uniform(0.1, 9, len(workload.lattice.axes)))
        weights = rng.uniform(0, 1, len(workload.axes)) + 1e-3
        judged = problem.certify(noise, dm.duals.FitnessDual([1.0], weights))
        assert judged.feasible and judged.interval[0] <= judged.objective
        again = problem.certify(noise, dm.duals.FitnessDual([1e-6], 1e6 * weights))
        assert again.lower_bound == pytest.approx(judged.lower_bound)
        looser = dm.FitnessForUse(workload, 1e6 * problem.targets)
        louder = looser.certify(noise.scaled(1e6), dm.duals.FitnessDual([1.0], weights))
        assert louder.objective == pytest.approx(judged.objective / 1e6)

    @quick
    @given(seeds)
    def test_levels_are_those_of_the_mechanism_over_the_copies_of_its_subspaces(self, seed: int) -> None:
        """Noise on a residual subspace is τ; on a block, of which there are ``mult`` copies, ``τ / mult``."""
        workload, rng = random_tables(seed), np.random.default_rng(seed)
        problem = dm.FitnessForUse(workload, rng.uniform(1, 9, len(workload.axes)))
        domain, lattice = workload.domain, workload.lattice
        assert domain is not None
        noise = dict(zip(lattice.axes, rng.uniform(0.1, 9, len(lattice.axes)).tolist(), strict=True))
        mechanism = dm.BlockMechanism.of_levels(domain, noise)
        point = dm.duals.BlockPoint([noise[axes] for axes in lattice.axes] / lattice.dimensions)
        assert problem.mechanism(point).noise == pytest.approx(noise, rel=1e-12)
        np.testing.assert_allclose(problem.as_primal(mechanism).levels, point.levels, rtol=1e-12)
        dual = dm.duals.FitnessDual([1.0], rng.uniform(0.1, 1, len(workload.axes)))
        bare = problem.certify(point.levels, dual)
        assert bare == problem.certify(point, dual)
        assert bare.objective == pytest.approx(mechanism.squared_privacy_cost, rel=1e-12)
        variances = mechanism.variances(workload) / problem.targets
        assert bare.violation == pytest.approx(max(variances.max() - 1, 0), rel=1e-9, abs=1e-12)

    def test_eighty_digits_of_cells(self) -> None:
        workload = dm.workloads.marginals([10] * 80, ways=(1, 2))
        targets = np.random.default_rng(0).integers(1, 101, len(workload.axes)).astype(float)
        answer = fast.solve(dm.FitnessForUse(workload, targets), tol=1e-9)
        assert answer.status is dm.Status.CERTIFIED
        assert np.all(answer.mechanism.variances(workload) <= targets * (1 + 1e-9))
        assert answer.prices.sum() == pytest.approx(1)


@pytest.mark.parametrize(("backend", "formulation"), [("CLARABEL", "dual"), ("SCS", "schur")])
def test_agrees_on_a_domain_too_large_for_a_matrix(backend: str, formulation: str) -> None:
    workload = dm.workloads.marginals([10] * 12, ways=(1, 2))
    problem = dm.FitnessForUse(workload, {1: 1.0, 2: 7.0})
    ours = fast.solve(problem, tol=1e-9)
    theirs = reference.solve(problem, backend=backend, formulation=formulation, tol=1e-3)
    assert crosscheck.compare([ours, theirs]).outcome.name == "AGREE"
    program = reference.formulate(problem, formulation=formulation)
    assert float(program.solve(solver="CLARABEL")) == pytest.approx(
        ours.objective ** (1 if formulation == "schur" else 0.5), rel=1e-5
    )


def test_too_large_ones_are_refused() -> None:
    with pytest.raises(dm.errors.InvalidInputError, match="more than 4194304 residual subspaces"):
        dm.workloads.marginals([2] * 30, ways=30).lattice  # noqa: B018
    large = dm.workloads.marginals([10] * 60, ways=(1, 2))
    for problem in (dm.FitnessForUse, dm.TotalVariance):
        with pytest.raises(
            dm.errors.InvalidInputError, match="too large for a dense matrix.*geometry='blocks' needs no matrix"
        ):
            problem(large, 1.0, geometry="dense")


class TestRelease:
    WORKLOAD = dm.workloads.marginals({"a": 2, "b": 3, "c": 2}, ways=(1, 2))

    def test_a_sampler_sees_whole_numbers_and_what_they_cost(self) -> None:
        """Whoever draws integers releases integers: ½ ‖what a record changes‖² / deviation² adds up to ρ."""
        mechanism = fast.solve(dm.FitnessForUse(self.WORKLOAD)).mechanism
        domain, drawn = mechanism.domain, []

        def sampler(deviation: float, shape: tuple[int, ...]) -> Array:
            drawn.append((deviation, shape))
            return np.zeros(shape)

        record = dm.records.count([[1, 2, 0]], self.WORKLOAD)
        residuals = mechanism.measure(record, sampler=sampler)
        assert [shape for _, shape in drawn] == [residuals[axes].shape for axes in mechanism.noise]
        whole = [residual * residual.size for residual in residuals.values()]
        for each in whole:
            np.testing.assert_allclose(each, np.round(each), atol=1e-12)
        rho = sum((each**2).sum() / deviation**2 for each, (deviation, _) in zip(whole, drawn, strict=True)) / 2
        assert rho == pytest.approx(mechanism.rho, rel=1e-12)
        for names, axes in zip(self.WORKLOAD.sets, self.WORKLOAD.axes, strict=True):
            exact = marginal_of(domain, record, axes)
            np.testing.assert_allclose(mechanism.recombine(residuals, names), exact, atol=1e-12)

    def test_what_a_sampler_may_not_return(self) -> None:
        for message, sampler in (
            ("sampler must be a function", 3),
            ("draws of shape", lambda deviation, shape: np.zeros(7)),
            ("sampler must be finite", lambda deviation, shape: np.full(shape, np.nan)),
        ):
            mechanism = fast.solve(dm.FitnessForUse(self.WORKLOAD)).mechanism
            with pytest.raises(dm.errors.DualmechError, match=message):
                mechanism.measure(dm.records.count([[1, 2, 0]], self.WORKLOAD), sampler=sampler)

    def test_tables_are_unbiased_consistent_and_as_noisy_as_stated(self) -> None:
        mechanism = fast.solve(dm.FitnessForUse(self.WORKLOAD, {1: 1.0, 2: 4.0}), tol=1e-9).mechanism
        records = np.random.default_rng(0).integers(0, [2, 3, 2], (40, 3))
        tables, rng, runs = dm.records.count(records, self.WORKLOAD), np.random.default_rng(1), 400
        drawn = [mechanism.simulate(tables, rng) for _ in range(runs)]
        for names, variance in zip(self.WORKLOAD.sets, mechanism.variances(self.WORKLOAD), strict=True):
            axes = self.WORKLOAD.axes[self.WORKLOAD.sets.index(names)]
            truth = mechanism.recombine(mechanism_residuals(cast(dm.BlockMechanism, mechanism), tables), names)
            assert truth.shape == tuple((2, 3, 2)[axis] for axis in axes)
            errors = np.array([each[names] for each in drawn]) - truth
            # Five standard errors of a mean and of a variance.
            assert np.abs(errors.mean(axis=0)).max() < 5 * np.sqrt(variance / runs)
            assert np.abs(errors.var(axis=0) / variance - 1).max() < 5 * np.sqrt(2 / runs)
        one = drawn[0]
        np.testing.assert_allclose(one["a", "b"].sum(axis=1), one["a",], atol=1e-9)
        np.testing.assert_allclose(one["b", "c"].sum(axis=1), one["a", "b"].sum(axis=0), atol=1e-9)

    def test_what_is_not_measured_is_refused(self) -> None:
        mechanism = fast.solve(dm.FitnessForUse(self.WORKLOAD)).mechanism
        for call in (
            lambda: mechanism.variance(["a", "b", "c"]),
            lambda: mechanism.recombine({}, ["a", "b", "c"]),
            lambda: mechanism.variance_of({"a": [1, 0], "b": [1, 0, 0], "c": [1, 0]}),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match="a x b x c is not answered"):
                call()
        with pytest.raises(dm.errors.InvalidInputError, match="tables must cover"):
            mechanism.measure({(0, 1): np.zeros((2, 3))})
        assert mechanism.variance_of({"a": [1, 1], "b": [1, 0, 0], "c": [1, 0]}) > 0


class TestWorkload:
    def test_keeps_its_structure(self) -> None:
        domain = dm.Domain({"age": 3, "sex": 2})
        workload = dm.workloads.marginals(domain, ways=(0, 2))
        assert isinstance(workload, dm.workloads.MarginalWorkload)
        assert workload.sets == ((), ("age", "sex")) and workload.shape == (7, 6)
        copy = pickle.loads(pickle.dumps(workload))
        assert copy.axes == workload.axes and copy.names == workload.names
        np.testing.assert_array_equal(copy.dense(), workload.dense())
        assert "2 tables" in repr(workload)

    def test_targets_by_name_and_by_ways(self) -> None:
        workload = dm.workloads.marginals({"age": 3, "sex": 2}, ways=(0, 1, 2))
        targets = {("sex", "age"): 25.0, 1: 4.0, "sex": 2.0, 0: 1.0}
        np.testing.assert_array_equal(dm.FitnessForUse(workload, targets).targets, [1, 4, 2, 25])


class TestReference:
    def test_an_unknown_formulation_is_refused(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.marginals([3, 4], ways=1))
        with pytest.raises(dm.errors.InvalidInputError, match="formulation must be one of schur, matrix_frac, dual"):
            reference.formulate(problem, formulation="primal")
