"""Local privacy on paper: theorems and examples of McKenna et al. (2020), and the lemmas behind the convex problem."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.geometry import local
from dualmech.problems.local.strategy import LocalDual
from dualmech.studies import rivals
from dualmech.validate import Array
from dualmech.watching import without_warnings
from dualmech.workloads.names import builtin_workload

quick = settings(max_examples=15)
seeds = st.integers(0, 10_000)
epsilons = st.sampled_from([0.05, 0.5, 1.0, 4.0])


def random_strategy(seed: int, size: int, epsilon: float) -> Array:
    """A strategy with rows strictly inside the cone of private rows, able to answer anything."""
    rng = np.random.default_rng(seed)
    levels = rng.random((size + int(rng.integers(1, 6)), size)) ** 2
    rows = (1 + local.gain(epsilon) * levels) * rng.uniform(0.2, 1, (len(levels), 1))
    problem = dm.LocalStrategy(dm.workloads.identity(size), epsilon)
    return problem.feasible(rows / rows.sum(axis=0).max()).strategy


def random_mechanism(seed: int, size: int, epsilon: float) -> dm.LocalMechanism:
    """A strategy with a reconstruction that is unbiased, and not the best."""
    rng = np.random.default_rng(seed + 1)
    workload = dm.Workload(rng.integers(-1, 3, (int(rng.integers(1, 7)), size)) + 0.2)
    strategy = random_strategy(seed, size, epsilon)
    inverse = np.linalg.pinv(strategy)
    outside = np.eye(len(strategy)) - strategy @ inverse
    noise = rng.standard_normal((workload.shape[0], len(strategy)))
    return dm.LocalMechanism(strategy, epsilon, workload, reconstruction=workload.dense() @ inverse + noise @ outside)


def objective(gram: Array, queries: Array) -> float:
    """``tr(W G⁺ W')``, infinite where W asks for what G does not see."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-10 * values[-1]
    if np.linalg.norm(queries @ vectors[:, ~kept]) > 1e-8 * np.linalg.norm(queries):
        return math.inf
    return float((((queries @ vectors[:, kept]) ** 2) / values[kept]).sum())


class TestVariance:
    """Theorem 3.4 and its corollaries."""

    @pytest.mark.parametrize("seed", [1, 2])
    def test_of_any_factorisation_by_simulation(self, seed: int) -> None:
        mechanism, runs = random_mechanism(seed, 3, 1.0), 3000
        x, rng = np.array([30.0, 0.0, 12.0]), np.random.default_rng(seed)
        answers = np.array([mechanism.simulate(x, rng) for _ in range(runs)])
        queries, strategy = mechanism.workload.dense(), mechanism.strategy
        squares = mechanism.reconstruction**2
        per_query = squares @ strategy @ x - queries**2 @ x
        spread = ((answers - queries @ x) ** 2).std(axis=0)
        error = ((answers - queries @ x) ** 2).mean(axis=0) - per_query
        assert np.all(np.abs(answers.mean(axis=0) - queries @ x) < 5 * np.sqrt(per_query / runs))
        assert np.all(np.abs(error) < 5 * spread / math.sqrt(runs))
        assert mechanism.variance(x) == pytest.approx(per_query.sum(), rel=1e-10)

    @given(seeds, st.integers(2, 6), epsilons)
    @quick
    def test_average_is_the_objective_less_the_workload(self, seed: int, size: int, epsilon: float) -> None:
        mechanism = random_mechanism(seed, size, epsilon)
        weights = mechanism.strategy.sum(axis=1)
        loss = float(np.trace(mechanism.reconstruction * weights @ mechanism.reconstruction.T))
        squares = float((mechanism.workload.dense() ** 2).sum())
        assert mechanism.average_variance(50) == pytest.approx(50 / size * (loss - squares), rel=1e-9)

    @given(seeds, st.integers(2, 6), epsilons)
    @quick
    def test_the_best_reconstruction_is_the_best(self, seed: int, size: int, epsilon: float) -> None:
        """Theorem 3.10 and 3.11: ``V = W G⁺ Q' D⁻¹`` attains ``tr(W G⁺ W')``, no other V less."""
        other = random_mechanism(seed, size, epsilon)
        best = dm.LocalMechanism(other.strategy, epsilon, other.workload)
        weights = other.strategy.sum(axis=1)
        gram = (other.strategy.T / weights) @ other.strategy
        expected = objective(gram, other.workload.dense())
        assert best.objective == pytest.approx(expected, rel=1e-7)
        assert best.objective <= other.objective * (1 + 1e-9)
        stated = other.workload.dense() @ np.linalg.inv(gram) @ (other.strategy.T / weights)
        np.testing.assert_allclose(best.reconstruction, stated, rtol=1e-5, atol=1e-7 * np.abs(stated).max())

    def test_randomised_response_on_histograms(self) -> None:
        """Example 3.7: ``N (n-1) [n / (e^ε - 1)² + 2 / (e^ε - 1)]``, for every user alike; example 5.5 divides."""
        for size, epsilon in ((9, 0.5), (9, 4.0), (6, 1.3)):
            excess = math.expm1(epsilon)
            mechanism = rivals.randomised_response(size, epsilon).mechanism(dm.workloads.identity(size))
            each = (size - 1) * (size / excess**2 + 2 / excess)
            assert mechanism.worst_variance(20) == pytest.approx(20 * each, rel=1e-10)
            assert mechanism.average_variance(20) == pytest.approx(20 * each, rel=1e-10)
            np.testing.assert_allclose(mechanism.user_variances, each, rtol=1e-10)
            assert mechanism.sample_complexity() == pytest.approx(each / size / 0.01, rel=1e-10)
            assert mechanism.worst_ratio == pytest.approx(math.exp(epsilon))
            assert mechanism.variance(np.arange(size)) == pytest.approx(each * size * (size - 1) / 2)
            assert mechanism.objective == pytest.approx(size * each + size)


class TestWorstAgainstAverage:
    """Theorem 5.1: ``L_avg ≤ L_worst ≤ e^ε (L_avg + N/n ‖W‖²)``."""

    @given(seeds, st.integers(2, 7), epsilons)
    @quick
    def test_of_any_factorisation(self, seed: int, size: int, epsilon: float) -> None:
        mechanism = random_mechanism(seed, size, epsilon)
        average, worst = mechanism.average_variance(), mechanism.worst_variance()
        squares = float((mechanism.workload.dense() ** 2).sum())
        assert average <= worst * (1 + 1e-12)
        assert worst <= math.exp(epsilon) * (average + squares / size) * (1 + 1e-12)

    def test_the_factor_is_needed(self) -> None:
        """An output that is rare, and likelier for one of many user types, alone tells the answer."""
        epsilon, size = 2.0, 4000
        row = 1e-4 * (1 + math.expm1(epsilon) * np.eye(1, size))
        strategy = np.vstack([row, 1 - row])
        mechanism = dm.LocalMechanism(strategy, epsilon, dm.Workload(row), reconstruction=[[1.0, 0.0]])
        second = mechanism.average_variance() + float((row**2).sum()) / size
        assert mechanism.worst_variance() == pytest.approx(math.exp(epsilon) * second, rel=0.01)


class TestBounds:
    """Theorem 5.6, its corollary for the worst case and its example, beside the sharper closed form."""

    @given(seeds, st.integers(2, 7), epsilons)
    @quick
    def test_by_singular_values(self, seed: int, size: int, epsilon: float) -> None:
        mechanism = random_mechanism(seed, size, epsilon)
        queries = mechanism.workload.dense()
        nuclear = float(np.linalg.svd(queries, compute_uv=False).sum())
        assert mechanism.objective >= nuclear**2 / math.exp(epsilon) * (1 - 1e-9)
        squares = float((queries**2).sum())
        bound = (nuclear**2 / math.exp(epsilon) - squares) / size
        assert mechanism.worst_variance(30) >= 30 * bound - 1e-9 * squares

    def test_histograms_need_samples(self) -> None:
        """Example 5.8: ``N ≥ (e^-ε - 1/n) / α``; what is truly needed is known, and far more at small ε."""
        size, alpha, histogram = 16, 0.01, dm.workloads.identity(16)
        for epsilon in (0.5, 1.0, 4.0):
            least = rivals.subset_selection(size, epsilon).sample_complexity(histogram, alpha)
            assert least >= (math.exp(-epsilon) - 1 / size) / alpha
            for build in (rivals.randomised_response, rivals.rappor, rivals.hadamard_response):
                assert build(size, epsilon).sample_complexity(histogram, alpha) >= least * (1 - 1e-9)

    @given(seeds, st.integers(2, 7), epsilons)
    @quick
    def test_diagonals_of_g_are_bounded(self, seed: int, size: int, epsilon: float) -> None:
        """The paper's proof takes ``tr G ≤ e^ε``; an entry is at most ``e^ε / (n - 1 + e^ε)``."""
        strategy = random_strategy(seed, size, epsilon)
        gram = (strategy.T / strategy.sum(axis=1)) @ strategy
        growth = math.exp(epsilon)
        assert np.diag(gram).max() <= growth / (size - 1 + growth) * (1 + 1e-9)
        assert size * growth / (size - 1 + growth) <= growth
        rows = strategy * np.random.default_rng(seed).random(size)  # Lemma 1, for any rows: ``G 1 = Q' 1``
        gram = (rows.T / rows.sum(axis=1)) @ rows
        np.testing.assert_allclose(gram.sum(axis=0), rows.sum(axis=0), rtol=1e-9)


class TestLemmas:
    @given(seeds, st.integers(2, 6), epsilons)
    @quick
    def test_the_objective_is_convex_and_antitone(self, seed: int, size: int, epsilon: float) -> None:
        """Lemma 2."""
        rng = np.random.default_rng(seed)
        queries = rng.standard_normal((3, size))
        first, second = (
            (rows.T / rows.sum(axis=1)) @ rows for rows in (random_strategy(seed + k, size, epsilon) for k in (0, 1))
        )
        middle = objective((first + second) / 2, queries)
        assert middle <= (objective(first, queries) + objective(second, queries)) / 2 * (1 + 1e-8)
        vector = rng.standard_normal(size)
        assert objective(first + np.outer(vector, vector), queries) <= objective(first, queries) * (1 + 1e-8)

    def test_patterns_are_extreme(self) -> None:
        """Lemma 3: n - 1 independent ratios are tight at each, and none is a mixture of others."""
        size, growth, units = 4, math.exp(2.0), np.eye(4)
        for members in local.all_sets(size):
            vector = np.where(members, growth, 1.0)
            tight = [
                units[u] - growth * units[v]
                for u, v in itertools.permutations(range(size), 2)
                if math.isclose(vector[u], growth * vector[v])
            ]
            assert np.linalg.matrix_rank(np.array(tight)) == size - 1

    @given(seeds, st.integers(2, 5), epsilons)
    @quick
    def test_splitting_changes_nobodys_variance(self, seed: int, size: int, epsilon: float) -> None:
        """Lemma 4: the parts keep the row's column of V; then the best V for the parts can only be better."""
        mechanism = random_mechanism(seed, size, epsilon)
        parts, columns = [], []
        for row, column in zip(mechanism.strategy, mechanism.reconstruction.T, strict=True):
            weights, sets = local.split_into_patterns(row[None], epsilon)
            parts.append(weights[:, None] * local.rows(sets, epsilon))
            columns += [column] * len(weights)
        split = dm.LocalMechanism(np.vstack(parts), epsilon, mechanism.workload, reconstruction=np.array(columns).T)
        scale = mechanism.user_variances.max()
        np.testing.assert_allclose(split.user_variances, mechanism.user_variances, rtol=1e-7, atol=1e-7 * scale)
        best = dm.LocalMechanism(split.strategy, epsilon, mechanism.workload)
        assert best.objective <= dm.LocalMechanism(mechanism.strategy, epsilon, mechanism.workload).objective * (
            1 + 1e-8
        )

    @given(seeds, st.integers(2, 6), epsilons)
    @quick
    def test_g_in_moments_of_the_sets(self, seed: int, size: int, epsilon: float) -> None:
        """On the complement of the ones, G is c² times the sets' second moments; its trace is at most τ."""
        rng = np.random.default_rng(seed)
        sets, excess = local.all_sets(size), local.gain(epsilon)
        weights, rows = rng.random(len(sets)), local.rows(sets, epsilon)
        gram = (rows.T * weights) @ rows
        moments = (sets.T * (weights / (size + excess * sets.sum(axis=1)) ** 2)) @ sets.astype(float)
        complement = np.linalg.qr(np.hstack([np.ones((size, 1)), rng.standard_normal((size, size - 1))]))[0][:, 1:]
        np.testing.assert_allclose(
            complement.T @ gram @ complement,
            excess**2 * complement.T @ moments @ complement,
            atol=1e-10 * weights.sum(),
        )
        counts = np.arange(1, size)
        traces = counts * (size - counts) * (excess / (size + counts * excess)) ** 2
        scale = size / weights.sum()
        assert np.trace(complement.T @ gram @ complement) * scale <= traces.max() * (1 + 1e-9)

    def test_fixed_mechanisms_are_above_known_optima(self) -> None:
        fixed = [
            rivals.randomised_response(8, 1.0),
            rivals.subset_selection(8, 1.0),
            rivals.hadamard_response(8, 1.0, blocks=1),
            rivals.hierarchical_response(8, 1.0, 2, rivals.subset_selection),
            rivals.fourier_response(3, 1.0),
        ]
        for name, value in (("all_range:8", 1220.1840), ("marginals:2x2x2:0,1,2,3", 879.4881)):
            assert all(each.objective(builtin_workload(name)) > value for each in fixed), name


NEARLY_UNIFORM = st.sampled_from([1e-15, 9.9e-13, 1e-9, 1e-3])
"""Relative deviations of a prior from the uniform one."""


class TestNearlyUniformPriors:
    """A prior near the uniform one has its own optimum: no tolerance takes it for the uniform one."""

    @pytest.mark.parametrize("deviation", [-1e-3, -9.9e-13, 0.0, 9.9e-13, 1e-3])
    def test_the_judge_contradicts_no_proof(self, deviation: float) -> None:
        share = np.array([1 - deviation, 1 + deviation]) / 2
        problem = dm.LocalStrategy(dm.Workload([[1.0, 0.0]]), 1.0, prior=share)
        with without_warnings():
            answer = fast.solve(problem, tol=1e-13)
        proof, best = dm.prove(answer), answer.certificate.interval
        for worse in (0.0, 3e-13, 1e-6):
            mixed = (1 - worse) * answer.primal + worse * answer.primal.mean(axis=1, keepdims=True)
            low, high = problem.certify(mixed, answer.dual).interval
            assert low <= proof.upper and proof.lower <= high and low <= best[1] and best[0] <= high, worse

    @quick
    @given(seeds, NEARLY_UNIFORM, st.sampled_from([0.05, 1.0]))
    def test_what_costs_must_rise_by_suffices_for_every_set(self, seed: int, deviation: float, epsilon: float) -> None:
        rng, size = np.random.default_rng(seed), 4
        share = 1 + deviation * rng.choice([-1.0, 1.0], size)
        matrix, costs = rng.uniform(0.1, 1.0, (size, 2)), rng.uniform(-0.01, 0.0, size)
        excess = Fraction(local.excess(matrix, costs, share, epsilon, None))
        ratio = Fraction(local.gain(epsilon))
        for members in itertools.product((0, 1), repeat=size):
            pattern = [1 + ratio * member for member in members]
            seen = [sum(Fraction(z) * p for z, p in zip(column, pattern, strict=True)) for column in matrix.T.tolist()]
            cost, part = (
                sum(Fraction(y) * p for y, p in zip(each.tolist(), pattern, strict=True)) for each in (costs, share)
            )
            if 0 < sum(members) < size:
                assert sum(each**2 for each in seen) <= (cost + excess * sum(pattern)) * part

    @quick
    @given(seeds, NEARLY_UNIFORM)
    def test_the_closed_form_is_charged_for_the_deviation(self, seed: int, deviation: float) -> None:
        rng = np.random.default_rng(seed)
        share = 1 + deviation * rng.uniform(-1, 1, 4)
        problem = dm.LocalStrategy(dm.workloads.prefix(4), 1.0, prior=share / share.sum())
        blank = problem.certify(random_strategy(seed, 4, 1.0), LocalDual(np.zeros((4, 4)), np.zeros(4)))
        whole = local.trace_bound(problem.root, 1.0)
        assert (1 - 3 * deviation - 1e-12) * whole <= blank.lower_bound <= 4 * problem.prior.min() * whole * (1 + 1e-15)
