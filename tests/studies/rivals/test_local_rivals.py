"""Fixed mechanisms of local privacy: closed forms against enumeration, what they draw, and what they refuse."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech.studies import rivals
from dualmech.studies.rivals import FactorisedRival, MatrixRival, MixedRival, SetRival, local_noise
from dualmech.studies.rivals.trees import interval_tree
from dualmech.validate import Array

quick = settings(max_examples=12)
seeds = st.integers(0, 10_000)
epsilons = st.sampled_from([0.01, 0.5, 1.0, 4.0, 10.0])

SETS: dict[str, Callable[[int, float], SetRival]] = {
    "subset selection": rivals.subset_selection,
    "RAPPOR": rivals.rappor,
    "any sizes": lambda size, epsilon: SetRival(size, epsilon, np.arange(1, size + 2) / math.comb(size + 2, 2)),
}
NOT_A_NUMBER: Any = "three"
WRONG: Any = lambda *_: 3  # noqa: E731

FIXED: dict[str, Callable[[int, float], FactorisedRival]] = {
    "randomised response": rivals.randomised_response,
    "Hadamard": rivals.hadamard_response,
    "hierarchical": lambda size, epsilon: rivals.hierarchical_response(size, epsilon, branching=2),
    **SETS,
}


def random_workload(seed: int, size: int) -> dm.Workload:
    """Tall, wide or of low rank, in units of any size."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-2, 3, (int(rng.integers(1, 9)), size)) + rng.choice([0.0, 0.1])
    matrix[0, 0] += 1
    return dm.Workload(matrix * rng.choice([1.0, 1e-6, 1e6]))


def tree_of_sets(mixed: MixedRival) -> MatrixRival:
    parts = [part.with_listed_sets() for part in mixed.parts if isinstance(part, SetRival)]
    stacked = [part.strategy[:, group] for part, group in zip(parts, mixed.groups, strict=True)]
    return MatrixRival(np.vstack(stacked) / len(stacked), mixed.epsilon)


def check_draws(rival: FactorisedRival, workload: dm.Workload, x: Array, runs: int = 600) -> None:
    """Means and variances of simulated answers are those stated, within five standard errors."""
    rng = np.random.default_rng(11)
    errors = np.array([workload.apply(rival.simulate(x, rng)) for _ in range(runs)]) - workload.apply(x)
    variance = float(x @ rival.user_variances(workload))
    squared = (errors**2).sum(axis=1)
    assert np.abs(errors.mean(axis=0)).max() < 5 * math.sqrt(variance / runs)
    assert abs(squared.mean() - variance) < 5 * squared.std() / math.sqrt(runs)


def refuse(*cases: tuple[Callable[[], Any], str]) -> None:
    for build, message in cases:
        with pytest.raises(dm.errors.DualmechError, match=message):
            build()


class TestEveryFixedMechanism:
    @pytest.mark.parametrize("name", FIXED)
    @given(seeds, st.integers(2, 8), epsilons)
    @quick
    def test_variances_are_those_of_its_listed_strategy(self, name: str, seed: int, size: int, epsilon: float) -> None:
        rival, workload = FIXED[name](size, epsilon), random_workload(seed, size)
        listed = rival.with_listed_sets() if isinstance(rival, SetRival) else rival
        assert isinstance(listed, MatrixRival)
        mechanism = listed.mechanism(workload)
        second = np.linalg.norm(workload.dense(), axis=0) ** 2 + mechanism.user_variances
        np.testing.assert_allclose(rival.gram(), listed.gram(), atol=1e-12)
        np.testing.assert_allclose(rival.gram().sum(axis=0), 1, rtol=1e-12)
        for one in (rival, listed):
            error = np.abs(one.user_variances(workload) - mechanism.user_variances)
            assert error.max() <= 1e-8 * second.max()
        assert mechanism.worst_ratio <= np.exp(epsilon) * (1 + 1e-9)
        assert rival.objective(workload) == pytest.approx(mechanism.objective, rel=1e-8)
        asked: dict[str, Any] = {"alpha": 0.02, "queries": 7}
        assert rival.sample_complexity(workload, **asked) == pytest.approx(
            mechanism.sample_complexity(**asked), rel=1e-7, abs=1e-7 * second.max()
        )

    @pytest.mark.parametrize("name", FIXED)
    def test_draws_have_the_stated_mean_and_variance(self, name: str) -> None:
        rival, x = FIXED[name](5, 1.5), np.array([6, 0, 3, 1, 2])
        check_draws(rival, dm.workloads.prefix(5), x)
        first, again = (rival.simulate(x, rng=3) for _ in range(2))
        np.testing.assert_array_equal(first, again)
        assert np.any(first != rival.simulate(x, rng=4))

    def test_the_objective_is_above_the_bound_of_the_judge(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.all_range(6), 1.0)
        nothing = dm.duals.LocalDual(np.zeros((6, len(problem.root))), np.zeros(6))
        bound = problem.certify(rivals.randomised_response(6, 1.0).strategy, nothing).lower_bound
        for name, build in FIXED.items():
            assert build(6, 1.0).objective(problem.workload) >= bound, name

    @pytest.mark.parametrize("rival", [rivals.rappor(4, 1.0), rivals.hierarchical_response(4, 1.0, 2)])
    def test_bad_input_is_refused_by_name(self, rival: FactorisedRival) -> None:
        workload = dm.workloads.prefix(4)
        for wrong in (dm.workloads.prefix(3), np.eye(4)):
            with pytest.raises(dm.errors.DualmechError, match="workload must"):
                rival.user_variances(wrong)  # type: ignore[arg-type]
        for x in ([1, 2, 3], [1, 2, 3, -1], [0.5, 0, 0, 0], [np.nan] * 4):
            with pytest.raises(dm.errors.DualmechError, match="x must"):
                rival.simulate(x)
        for option in ({"alpha": 0.0}, {"queries": 0}):
            with pytest.raises(dm.errors.DualmechError, match=next(iter(option))):
                rival.sample_complexity(workload, **option)


class TestSets:
    @given(st.integers(2, 40), epsilons)
    @quick
    def test_subset_selection_in_closed_form(self, size: int, epsilon: float) -> None:
        counts, excess = np.arange(1, size), math.expm1(epsilon)
        traces = counts * (size - counts) * (excess / (size + counts * excess)) ** 2
        histogram = dm.workloads.identity(size)
        found = rivals.subset_selection(size, epsilon)
        assert found.objective(histogram) == pytest.approx(1 + (size - 1) ** 2 / traces.max(), rel=1e-9)
        chosen = int(np.flatnonzero(found.sizes)[0])
        assert chosen in (math.floor(size / (math.exp(epsilon) + 1)), math.ceil(size / (math.exp(epsilon) + 1)))
        for name in ("RAPPOR", "any sizes"):
            rival = SETS[name](size, epsilon)
            assert rival.objective(histogram) >= found.objective(histogram) * (1 - 1e-9)

    def test_single_members_are_randomised_response(self) -> None:
        workload = dm.workloads.all_range(6)
        for epsilon in (0.5, 3.0):
            one, other = rivals.subset_selection(6, epsilon, size=1), rivals.randomised_response(6, epsilon)
            np.testing.assert_allclose(one.user_variances(workload), other.user_variances(workload), rtol=1e-9)
            np.testing.assert_allclose(np.sort(one.with_listed_sets().strategy), np.sort(other.strategy), rtol=1e-12)

    def test_bits_of_rappor_are_independent(self) -> None:
        """The listed strategy against the product of the bits' probabilities."""
        size, epsilon = 4, 1.2
        flipped = 1 / (1 + math.exp(epsilon / 2))
        listed = rivals.rappor(size, epsilon).with_listed_sets()
        assert np.sum(listed.strategy.max(axis=1) - listed.strategy.min(axis=1) > 1e-12) == 2**size - 2
        bits = np.array(list(itertools.product((False, True), repeat=size)))
        truth = np.eye(size, dtype=bool)
        probabilities = np.where(bits[:, None] == truth, 1 - flipped, flipped).prod(axis=2)
        for found, expected in zip(
            sorted(listed.strategy.round(12).tolist()), sorted(np.round(probabilities, 12).tolist()), strict=True
        ):
            np.testing.assert_allclose(found, expected, atol=1e-11)

    @pytest.mark.parametrize("name", SETS)
    def test_a_user_reports_by_the_strategy(self, name: str) -> None:
        rival, rng, runs = SETS[name](4, 1.0), np.random.default_rng(2), 4000
        reports = rival._draw(np.full(runs, 2), rng)
        sizes = np.bincount(reports.sum(axis=1), minlength=5) / runs
        assert np.abs(sizes - rival.sizes).max() < 5 * math.sqrt(0.25 / runs)
        count = np.arange(5)
        own = float(rival.sizes @ (count * math.e / (count * math.e + 4 - count)))
        assert abs(reports[:, 2].mean() - own) < 5 * math.sqrt(0.25 / runs)

    def test_the_closed_form_needs_no_list(self) -> None:
        rival = rivals.rappor(300, 1.0)
        assert np.all(rival.user_variances(dm.workloads.prefix(300)) > 0)
        with pytest.raises(dm.errors.InvalidInputError, match="more than 16384 sets"):
            rival.with_listed_sets()
        assert rivals.rappor(5, 1.0).with_listed_sets().strategy.shape == (32, 5)

    def test_bad_input_is_refused_by_name(self) -> None:
        refuse(
            (lambda: rivals.rappor(1, 1.0), "user_types must be at least 2"),
            (lambda: rivals.rappor(NOT_A_NUMBER, 1.0), "user_types must be an integer"),
            (lambda: rivals.rappor(4, 0.0), "epsilon must be positive"),
            (lambda: rivals.subset_selection(4, 1.0, size=4), "size must be from 1 to 3"),
            (lambda: SetRival(3, 1.0, [0, 1, 0]), "sizes must be a probability over 0 to 3"),
            (lambda: SetRival(2, 1.0, [0, 2, -1]), "sizes must be a probability"),
        )


class TestResponses:
    def test_hadamard_sets_overlap_by_half(self) -> None:
        for size, epsilon, blocks in itertools.product((2, 5, 7, 8, 30), (0.3, 3.0), (None, 1, 2)):
            strategy = rivals.hadamard_response(size, epsilon, blocks).strategy
            likely = strategy > strategy.min() * math.exp(epsilon / 2)
            overlap = likely.T.astype(int) @ likely
            length = overlap[0, 0]
            assert np.all(np.diag(overlap) == length), (size, epsilon, blocks)
            assert set(np.unique(overlap[~np.eye(size, dtype=bool)])) <= {0, length // 2}, (size, epsilon, blocks)
            assert len(strategy) <= 4 * size

    def test_hadamard_is_subset_selection_with_a_design(self) -> None:
        """Seven types, eight outputs: all rows but one are the blocks of a 2-design, as good as all such sets."""
        found = rivals.hadamard_response(7, 1.0, blocks=1).gram()
        weight = (found - 1 / 7) @ np.eye(7)
        np.testing.assert_allclose(weight, weight[0, 0] / (6 / 7) * (np.eye(7) - 1 / 7), atol=1e-12)
        shares = np.array([0.0, 0, 0, 7 * (7 + 3 * (math.e - 1)), 0, 0, 0, 7 * math.e])
        spread = SetRival(7, 1.0, shares / shares.sum()).spread
        assert weight[0, 0] / (6 / 7) == pytest.approx(spread, rel=1e-12)

    def test_fourier_is_diagonal_in_parities(self) -> None:
        epsilon, characters = 1.4, dm.workloads.parity(3).dense() / math.sqrt(8)
        for order in (1, 2, 3):
            found, tables = rivals.fourier_response(3, epsilon, order), dm.workloads.marginals([2] * 3, ways=order)
            asked = sum(math.comb(3, j) for j in range(1, order + 1))
            diagonal = characters @ found.gram() @ characters.T
            expected = [1.0] + [math.tanh(epsilon / 2) ** 2 / asked] * asked + [0.0] * (7 - asked)
            np.testing.assert_allclose(diagonal, np.diag(expected), atol=1e-12)
            lengths = (tables.dense() @ characters.T) ** 2
            second = lengths[:, 0].sum() + lengths[:, 1 : asked + 1].sum() * asked / math.tanh(epsilon / 2) ** 2
            assert found.objective(tables) == pytest.approx(second, rel=1e-9)

    def test_what_reports_do_not_tell_is_refused(self) -> None:
        rival = rivals.fourier_response(3, 1.0, order=1)
        assert rival.user_variances(dm.workloads.marginals([2] * 3, ways=1)).shape == (8,)
        with pytest.raises(dm.errors.InvalidInputError, match="do not determine the workload"):
            rival.user_variances(dm.workloads.identity(8))

    def test_bad_input_is_refused_by_name(self) -> None:
        refuse(
            (lambda: rivals.randomised_response(0, 1.0), "user_types must be an integer of at least 1"),
            (lambda: rivals.hadamard_response(4, 1.0, blocks=0), "blocks must be an integer"),
            (lambda: rivals.fourier_response(13, 1.0), "attributes must be at most 12"),
            (lambda: rivals.fourier_response(3, 1.0, order=4), "order must be from 1 to 3"),
            (lambda: MatrixRival(np.eye(3), 1.0), "not 1-LDP"),
            (lambda: rivals.hierarchical_response(1, 1.0), "at least 2"),
            (lambda: rivals.hierarchical_response(8, 1.0, branching=1), "at least 2"),
            (lambda: rivals.hierarchical_response(8, 1.0, oracle=NOT_A_NUMBER), "oracle must be callable"),
            (lambda: rivals.hierarchical_response(8, 1.0, oracle=WRONG), "parts must be fixed"),
            (lambda: rivals.hierarchical_response(7, 1.0, 2, rivals.rappor), "groups of one size"),
            (lambda: MixedRival([], []), "groups must be given"),
            (lambda: MixedRival([rivals.rappor(2, 1.0), rivals.rappor(2, 2.0)], [[0, 1]] * 2), "one epsilon"),
        )


class TestTrees:
    def test_levels_of_sets_in_closed_form(self) -> None:
        oracles: list[tuple[Any, int, int]] = [
            *((rivals.subset_selection, *shape) for shape in ((8, 2), (6, 6))),
            (rivals.rappor, 9, 3),
        ]
        for oracle, size, branching in oracles:
            mixed = rivals.hierarchical_response(size, 1.3, branching, oracle)
            assert isinstance(mixed, MixedRival)
            listed, workload = tree_of_sets(mixed), dm.workloads.all_range(size)
            np.testing.assert_allclose(mixed.gram(), listed.gram(), atol=1e-12)
            expected = listed.mechanism(workload).user_variances
            np.testing.assert_allclose(mixed.user_variances(workload), expected, rtol=1e-8)

    def test_draws_have_the_stated_mean_and_variance(self) -> None:
        rival = rivals.hierarchical_response(4, 1.5, 2, rivals.subset_selection)
        check_draws(rival, dm.workloads.prefix(4), np.array([5, 0, 2, 3]))

    def test_the_authors_example(self) -> None:
        """Prefixes of 128 cells at ε = 1: published with the pseudo-inverse of Q; the best V does better."""
        tree, workload = rivals.hierarchical_response(128, 1.0), dm.workloads.prefix(128)
        assert isinstance(tree, MatrixRival)
        plain = dm.LocalMechanism(
            tree.strategy, 1.0, workload, reconstruction=workload.dense() @ np.linalg.pinv(tree.strategy)
        )
        assert plain.worst_variance() == pytest.approx(5665.561344360352, rel=1e-9)
        assert tree.mechanism(workload).worst_variance() == pytest.approx(5466.13, abs=0.01)

    def test_intervals_of_any_number_of_cells(self) -> None:
        tree = rivals.hierarchical_response(11, 1.0, branching=3, oracle=rivals.randomised_response)
        assert isinstance(tree, MatrixRival) and tree.strategy.shape == (11 + 4 + 2, 11)
        assert tree.strategy[15].max() / tree.strategy[15].min() == pytest.approx(math.e)
        np.testing.assert_array_equal(np.flatnonzero(np.diff(tree.strategy[15])), [8])


class TestMatrixMechanism:
    @given(seeds, st.integers(2, 6), st.sampled_from(["l1", "l2"]))
    @quick
    def test_variance_is_that_of_least_squares(self, seed: int, size: int, norm: str) -> None:
        rng = np.random.default_rng(seed)
        strategy, workload = rng.standard_normal((size + 1, size)), random_workload(seed, size)
        delta = None if norm == "l1" else 1e-6
        rival = rivals.NoiseRival(strategy, 0.8, norm, delta)
        distances = [
            np.linalg.norm(strategy[:, u] - strategy[:, v], 1 if norm == "l1" else 2)
            for u in range(size)
            for v in range(size)
        ]
        scale = 2**0.5 / 0.8 if norm == "l1" else 1 / dm.accounting.privacy_cost(0.8, 1e-6)
        assert rival.deviation == pytest.approx(max(distances) * scale, rel=1e-12)
        centred = strategy - strategy.mean(axis=1, keepdims=True)
        queries = workload.dense() - workload.dense().mean(axis=1, keepdims=True)
        expected = rival.deviation**2 * np.linalg.norm(queries @ np.linalg.pinv(centred)) ** 2
        # Of queries that are constant, rounding is all there is: it has the size of their Gram matrix, uncentred.
        reach = np.linalg.norm(workload.dense()) * np.linalg.norm(np.linalg.pinv(centred))
        rounding = 1e-14 * float(rival.deviation * reach) ** 2
        np.testing.assert_allclose(rival.user_variances(workload), expected, rtol=1e-8, atol=rounding)

    def test_laplace_reports_are_private(self) -> None:
        rival = rivals.matrix_mechanism(dm.workloads.prefix(6), 0.7)
        ends = rival.strategy
        scale = rival.deviation / 2**0.5
        worst = max(np.abs(ends[:, u] - ends[:, v]).sum() for u in range(6) for v in range(6))
        assert worst / scale == pytest.approx(0.7, rel=1e-12)

    def test_the_chosen_strategy_is_no_worse_than_the_cells(self) -> None:
        for build, (norm, delta) in itertools.product(
            (dm.workloads.prefix, dm.workloads.identity, dm.workloads.all_range), (("l1", None), ("l2", 1e-9))
        ):
            workload = build(12)
            chosen = rivals.matrix_mechanism(workload, 1.0, norm, delta)
            plain = rivals.NoiseRival(np.eye(12), 1.0, norm, delta)
            assert chosen.objective(workload) <= plain.objective(workload) * (1 + 1e-3)

    @quick
    @given(seeds, st.integers(2, 9), st.integers(1, 3))
    def test_slopes_of_a_total_variance_are_its_derivatives(self, seed: int, size: int, sums: int) -> None:
        rng = np.random.default_rng(seed)
        queries, weights = rng.standard_normal((3, size)), rng.uniform(size=(sums, size))
        change, gram = 1e-6 * rng.standard_normal((sums, size)), queries.T @ queries
        value, slopes = local_noise.total_variance(weights, gram)
        strategy = np.vstack([np.eye(size), weights]) / (1 + weights.sum(axis=0))
        np.testing.assert_allclose(np.abs(strategy).sum(axis=0), 1, rtol=1e-12)
        assert value == pytest.approx(float(np.trace(np.linalg.inv(strategy.T @ strategy) @ gram)))
        ends = [local_noise.total_variance(weights + sign * change, gram)[0] for sign in (1, -1)]
        assert (ends[0] - ends[1]) / 2 == pytest.approx(float(slopes @ change.ravel()), rel=1e-3, abs=1e-9 * value)

    def test_an_optimised_strategy_is_better_than_all_fixed_ones(self) -> None:
        workload = dm.workloads.prefix(64)
        best = rivals.matrix_mechanism(workload, 1.0)
        assert len(best.strategy) == 64 + 64 // local_noise.CELLS_PER_SUM
        tree = rivals.NoiseRival(interval_tree(64, 8).matrix.toarray(), 1.0)
        assert best.user_variances(workload)[0] < 0.9 * tree.user_variances(workload)[0]

    def test_attributes_bring_their_fourier_coefficients(self) -> None:
        tables = dm.workloads.marginals([2] * 5, ways=1)
        assert len(rivals.matrix_mechanism(tables, 1.0).strategy) == 6

    def test_bad_input_is_refused_by_name(self) -> None:
        one_cell = rivals.NoiseRival([[1, 0, 0]], 1.0)
        refuse(
            (lambda: rivals.NoiseRival(np.eye(3), 1.0, "l3"), "norm must be one of l1, l2"),
            (lambda: rivals.NoiseRival(np.eye(3), 1.0, "l2"), "delta is needed"),
            (lambda: rivals.NoiseRival(np.eye(3), 1.0, "l1", 1e-9), "delta is needed"),
            (lambda: rivals.NoiseRival(np.eye(3), 1.0, "l2", 2.0), "delta must lie strictly between"),
            (lambda: rivals.NoiseRival(np.ones((3, 3)), 1.0), "all its columns are the same"),
            (lambda: rivals.NoiseRival(np.ones((3, 1)), 1.0), "at least two columns"),
            (lambda: rivals.matrix_mechanism(NOT_A_NUMBER, 1.0), "must be a Workload of dualmech"),
            (lambda: rivals.matrix_mechanism(dm.workloads.total(3), 1.0, "l2", 1e-9), "more than the number"),
            (lambda: one_cell.user_variances(dm.workloads.prefix(3)), "does not answer the workload"),
        )
