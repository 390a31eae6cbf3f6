"""Chains of common mechanisms: every stage common, maximal, kept by the next, and made whole again by residuals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

import dualmech as dm
from dualmech import fast, reference
from dualmech.adaptive.chain import GO_ON, STOP, Rule
from dualmech.validate import Array

quick = settings(max_examples=8)
seeds = st.integers(0, 10_000)

RUNS, FALSE_ALARM = 200_000, 1e-6
"""Simulated releases, and the probability that a right covariance is refused, over all of its entries."""


def random_mechanism(rng: np.random.Generator, rows: int, cells: int, scale: float = 1.0) -> dm.LinearGaussianMechanism:
    variances = scale * rng.uniform(0.5, 3, rows)
    return dm.LinearGaussianMechanism(rng.standard_normal((rows, cells)), np.diag(variances))


def quadruple(seed: int, cells: int = 5) -> list[dm.LinearGaussianMechanism]:
    """Return four mechanisms none of which is nested in another, some of them on dependent rows."""
    rng = np.random.default_rng(seed)
    return [random_mechanism(rng, cells + int(rng.integers(0, 3)), cells) for _ in range(4)]


def histograms(sizes: tuple[int, ...] = (24, 8, 4, 1), cells: int = 24) -> list[dm.LinearGaussianMechanism]:
    """Return nested histograms of unit noise, the coarsest first."""
    return [
        dm.LinearGaussianMechanism(np.kron(np.eye(cells // size), np.ones(size)), np.eye(cells // size))
        for size in sizes
    ]


def choosing(wanted: int, at: int) -> Rule:
    """Return the rule that goes on to a stage and chooses a mechanism there, whatever the answers."""

    def rule(stage: int, answers: Array) -> Array:
        return np.full(len(answers), wanted if stage == at else GO_ON)

    return rule


def assert_whole(chain: dm.Chain) -> None:
    """Every stage is common to all that are left, contains the stage before, and is completed by each residual."""
    before = chain.stages[0].step.common
    for stage in chain.stages:
        assert before.is_answerable_from(stage.known)
        assert before.compose(stage.increment).is_equivalent_to(stage.known)
        assert stage.maximality, stage.maximality.improvement
        for index in range(stage.index, len(chain.mechanisms)):
            target, parts = chain.mechanisms[index], stage.decomposition(index)
            assert stage.known.is_answerable_from(target)
            assert parts.target is target
            assert stage.known.stack(parts.residual).is_equivalent_to(target)
        before = stage.known


class TestNotNested:
    @quick
    @given(seeds)
    def test_each_stage_contains_the_one_before_and_is_maximal(self, seed: int) -> None:
        chain = fast.chain(quadruple(seed))
        assert chain.certified and len(chain.stages) == 3
        assert_whole(chain)

    @quick
    @given(seeds, st.integers(3, 6))
    def test_any_number_of_mechanisms_of_any_ranks(self, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        cells = int(rng.integers(2, 7))
        mechanisms = [
            random_mechanism(rng, int(rng.integers(max(cells - 1, 1), cells + 2)), cells, 10.0 ** rng.uniform(-1, 1))
            for _ in range(count)
        ]
        assert_whole(fast.chain(mechanisms))

    @quick
    @given(seeds)
    def test_counts_over_different_cells(self, seed: int) -> None:
        # What a mechanism does not see at all must not come back as rounding, which a rank would take for a query.
        rng = np.random.default_rng(seed)
        cells, mechanisms = int(rng.integers(2, 8)), []
        for _ in range(int(rng.integers(2, 5))):
            kinds = (np.eye(cells), rng.integers(0, 2, (cells + 2, cells)).astype(float))
            queries = kinds[seed % 2][: int(rng.integers(1, cells + 2))]
            queries = np.vstack([queries[queries.any(axis=1)], np.eye(cells)[:1]])
            factor = rng.standard_normal((len(queries), len(queries)))
            noise = factor @ factor.T + 10.0 ** rng.uniform(-3, 1) * np.eye(len(queries))
            mechanisms.append(dm.LinearGaussianMechanism(queries, noise))
        assert_whole(fast.chain(mechanisms))

    def test_nesting_costs_trace_but_not_maximality(self) -> None:
        # The paper asserts that CM_1234 is answerable from CM_234; for independent trace optima it is not.
        refused = 0
        for seed in range(20):
            mechanisms = quadruple(seed, 8)
            of_all, of_three = (fast.solve(dm.CommonMechanism(some)).mechanism for some in (mechanisms, mechanisms[1:]))
            refused += not of_all.is_answerable_from(of_three, tol=1e-4)
        assert refused == 20
        mechanisms = quadruple(0, 8)
        chain, problem = fast.chain(mechanisms), dm.CommonMechanism(mechanisms[1:])
        free = fast.solve(problem)
        basis = dm.Workload(problem.basis)
        assert chain.stages[1].known.variances(basis).sum() > free.objective * (1 + 1e-3)
        assert problem.maximality(chain.stages[1].known) and problem.maximality(free.primal)


class TestNested:
    def test_coarser_histograms_come_first(self) -> None:
        # Of nested histograms of unit noise, the finest answers the coarsest worst: with the noise of all its cells.
        mechanisms = histograms()
        chain = fast.chain(mechanisms)
        assert_whole(chain)
        for stage, bins in zip(chain.stages, (1, 3, 6), strict=True):
            coarsest = dm.Workload(mechanisms[stage.index].query_matrix)
            np.testing.assert_allclose(stage.known.variances(coarsest), 24 / bins, rtol=1e-6)
            assert stage.known.rank == bins

    def test_both_layers_find_the_same(self) -> None:
        mechanisms = histograms((6, 3, 1), cells=6)
        one, two = fast.chain(mechanisms), reference.chain(mechanisms)
        assert two.certified
        assert_whole(two)
        for first, second in zip(one.stages, two.stages, strict=True):
            assert first.known.is_equivalent_to(second.known, tol=1e-5)

    def test_a_mechanism_twice_leaves_nothing(self) -> None:
        cells = dm.LinearGaussianMechanism(np.eye(3), np.eye(3))
        chain = fast.chain([cells, cells, cells])
        assert_whole(chain)
        first, second = chain.stages
        assert first.known.is_equivalent_to(cells) and second.trivial
        assert first.decomposition(2).residual.rank == 0
        outcome = chain.simulate(np.ones((4, 3)), choosing(2, at=1), rng=0)
        assert outcome.answers[2].values.shape == (4, 3)

    def test_nested_optima_do_nest(self) -> None:
        mechanisms = histograms()
        chain = fast.chain(mechanisms)
        for stage in chain.stages:
            alone = fast.solve(dm.CommonMechanism(mechanisms[stage.index :])).mechanism
            assert stage.known.is_equivalent_to(alone, tol=1e-5)

    def test_two_mechanisms_have_one_stage(self) -> None:
        chain = fast.chain(histograms()[1:3])
        assert len(chain.stages) == 1
        assert_whole(chain)


class TestTrivialStages:
    def test_nothing_in_common(self) -> None:
        # The first mechanism shares no query with the others, which share the total.
        alone = dm.LinearGaussianMechanism([[1, -1, 0, 0]], [[1]])
        rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
        columns = dm.LinearGaussianMechanism([[1, 0, 1, 0], [0, 1, 0, 1]], np.eye(2))
        chain = fast.chain([alone, rows, columns])
        assert_whole(chain)
        assert chain.stages[0].trivial and chain.stages[0].known.rank == 0
        assert "trivial" in chain.stages[0].solution.message
        np.testing.assert_allclose(chain.stages[1].known.variances(dm.workloads.total(4)), 2)
        for wanted, at in ((0, 0), (1, 0), (2, 0), (1, 1), (2, 1)):
            outcome = chain.simulate(np.ones((3, 4)), choosing(wanted, at), rng=0)
            assert np.all(outcome.choices == wanted)
        mechanisms = [dm.LinearGaussianMechanism(row[None], [[1.0]]) for row in np.eye(3)]
        chain = fast.chain(mechanisms)
        assert_whole(chain)
        assert all(stage.trivial for stage in chain.stages) and chain.certified

    def test_other_neighbours(self) -> None:
        moves = dm.neighbours.replace_one(4)
        mechanisms = [
            dm.LinearGaussianMechanism(each.query_matrix, each.covariance(), moves)
            for each in histograms((4, 2, 1), cells=4)
        ]
        chain = fast.chain(mechanisms)
        assert_whole(chain)
        assert chain.guarantee.profile.shape == (6,)
        assert chain.stages[0].known.squared_privacy_cost == pytest.approx(0, abs=1e-12)

    def test_one_cell(self) -> None:
        chain = fast.chain([dm.LinearGaussianMechanism([[1.0]], [[variance]]) for variance in (4.0, 2.0, 1.0)])
        assert_whole(chain)
        assert [float(stage.known.profile[0].round(9)) for stage in chain.stages] == [0.25, 0.5]


class TestGuarantee:
    @quick
    @given(seeds)
    def test_it_is_the_maximum_over_branches(self, seed: int) -> None:
        mechanisms = quadruple(seed, 3)
        chain = fast.chain(mechanisms)
        costs = [each.squared_privacy_cost for each in mechanisms]
        assert chain.guarantee.squared_privacy_cost == max(costs)
        assert chain.guarantee.rho == max(each.rho for each in mechanisms)
        assert chain.guarantee.epsilon(1e-6) == max(each.epsilon(1e-6) for each in mechanisms)
        for stage in chain.stages:
            for parts in stage.decompositions:
                branch = stage.known.profile + parts.residual.profile
                assert np.all(branch <= chain.guarantee.profile * (1 + 1e-6))

    def test_nothing_promises_everything(self) -> None:
        assert dm.results.Guarantee(np.zeros(3)).epsilon(1e-9) == 0.0


class TestSimulation:
    @pytest.mark.parametrize("kind", ["nested", "not nested"])
    def test_recombined_answers_have_the_mechanisms_distribution(self, kind: str) -> None:
        mechanisms = histograms((6, 3, 1), cells=6) if kind == "nested" else quadruple(2, 4)[:3]
        chain, generator = fast.chain(mechanisms), np.random.default_rng(0)
        x = generator.integers(0, 50, chain.mechanisms[0].query_matrix.shape[1]).astype(float)
        blocks = np.tile(x, (RUNS, 1))
        for at, wanted in itertools.product(range(2), range(3)):
            if wanted >= at:
                outcome = chain.simulate(blocks, choosing(wanted, at), generator)
                assert np.all(outcome.stages == at)
                assert_distributed(outcome.answers[wanted].values, mechanisms[wanted], x)

    def test_blocks_keep_their_place_and_may_stop(self) -> None:
        chain = fast.chain(histograms((4, 2, 1), cells=4))
        blocks = 1e6 * np.arange(1, 41, dtype=float).reshape(10, 4)

        def rule(stage: int, answers: Array) -> Array:
            totals = answers @ chain_total(chain, stage)
            return np.where(totals > [5e7, 1e8][stage], [GO_ON, 2][stage], np.where(totals < 2e7, STOP, stage))

        outcome = chain.simulate(blocks, rule, rng=1)
        totals = blocks.sum(axis=1)
        expected = np.where(totals > 1e8, 2, np.where(totals > 5e7, 1, np.where(totals < 2e7, STOP, 0)))
        assert np.array_equal(outcome.choices, expected)
        assert np.array_equal(outcome.stages, (totals > 5e7).astype(int))
        for index, chosen in enumerate(outcome.answers):
            assert np.array_equal(chosen.blocks, np.flatnonzero(expected == index))
            true = blocks[chosen.blocks] @ chain.mechanisms[index].query_matrix.T
            np.testing.assert_allclose(chosen.values, true, atol=10)
        chain = fast.chain(histograms((4, 2, 1), cells=4))
        outcome = chain.simulate(np.ones((5, 4)), choosing(STOP, 0), rng=0)
        assert np.all(outcome.choices == STOP) and all(not len(each.blocks) for each in outcome.answers)
        assert [each.values.shape for each in outcome.answers] == [(0, 1), (0, 2), (0, 4)]

    def test_same_seed_same_answers(self) -> None:
        chain = fast.chain(histograms((4, 2, 1), cells=4))
        one, two = (chain.simulate(np.ones((5, 4)), choosing(2, 1), rng=7) for _ in range(2))
        assert np.array_equal(one.answers[2].values, two.answers[2].values)


def test_says_so_where_a_stage_is_not_proven() -> None:
    with pytest.warns(dm.errors.UncertifiedWarning, match="fast:chain: a stage is proven to"):
        chain = fast.chain(quadruple(0), tol=1e-16)
    assert not chain.certified
    assert_whole(chain)


def test_mechanisms_and_rules_are_checked() -> None:
    cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
    with pytest.raises(dm.errors.InvalidInputError, match="two or more"):
        fast.chain([cells])
    with pytest.raises(dm.errors.InputTypeError, match="mechanisms"):
        fast.chain(cells)  # type: ignore[arg-type]
    with pytest.raises(dm.errors.InvalidInputError, match="same cells"):
        fast.chain([cells, dm.LinearGaussianMechanism(np.eye(3), np.eye(3))])
    with pytest.raises(dm.errors.InvalidInputError, match="exactly"):
        fast.chain([cells, dm.LinearGaussianMechanism(np.eye(2), np.diag([1, 0]))])
    with pytest.raises(dm.errors.InvalidInputError, match="tol"):
        fast.chain([cells, cells], tol=0)
    chain, blocks = fast.chain(histograms((4, 2, 1), cells=4)), np.ones((2, 4))
    for bad in (GO_ON, 0, 3, -3):
        with pytest.raises(dm.errors.InvalidInputError, match="rule must choose a mechanism from 1 to 2"):
            chain.simulate(blocks, choosing(bad, 1))
    with pytest.raises(dm.errors.DualmechError, match="rule"):
        chain.simulate(blocks, lambda stage, answers: 0.5 * np.ones(2))
    with pytest.raises(dm.errors.DualmechError, match="rule"):
        chain.simulate(blocks, lambda stage, answers: 1)
    with pytest.raises(dm.errors.InvalidInputError, match="blocks must have 4 cells"):
        chain.simulate(np.ones((2, 3)), choosing(0, 0))


def chain_total(chain: dm.Chain, stage: int) -> Array:
    """Return what makes the total of the answers of a stage."""
    known = chain.stages[stage].known
    solved = np.linalg.lstsq(known.query_matrix.T, np.ones(known.query_matrix.shape[1]), rcond=None)[0]
    return np.asarray(solved, dtype=np.float64)


def assert_distributed(values: Array, mechanism: dm.LinearGaussianMechanism, x: Array) -> None:
    """Means and covariances lie within what chance explains, jointly: Bonferroni over all entries."""
    covariance, runs = mechanism.covariance(), len(values)
    entries = len(covariance) * (len(covariance) + 3) / 2
    allowed = -ndtri(FALSE_ALARM / 2 / entries)
    away = values - mechanism.query_matrix @ x
    variances = np.diagonal(covariance)
    assert np.all(np.abs(away.mean(axis=0)) <= allowed * np.sqrt(variances / runs))
    spread = np.sqrt((np.outer(variances, variances) + covariance**2) / runs)
    assert np.all(np.abs(away.T @ away / runs - covariance) <= allowed * spread)


class TestHonesty:
    def test_a_rough_backend_still_gives_mechanisms_that_fit_together(self) -> None:
        chain = reference.chain(quadruple(1, 4), backend="SCS", tol=1e-3)
        before = chain.stages[0].step.common
        for stage in chain.stages:
            assert before.is_answerable_from(stage.known)
            for parts in stage.decompositions:
                assert stage.known.stack(parts.residual).is_equivalent_to(parts.target)
            before = stage.known
