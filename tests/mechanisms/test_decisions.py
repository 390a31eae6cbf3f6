"""Decisions from a common mechanism's answer: the signal-to-noise rule, and what is left uncertain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.adaptive.decisions import GO_ON, STOP, SignalToNoise, SignalToNoiseRule, Verdict
from dualmech.adaptive.sampling import ConfidenceRegion, hit_and_run
from dualmech.adaptive.uncertainty import posterior_variances, sampled_reduction, variance_reduction
from dualmech.validate import Array

quick = settings(max_examples=20)
seeds = st.integers(0, 10_000)

ROWS = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
COLUMNS = dm.LinearGaussianMechanism([[1, 0, 1, 0], [0, 1, 0, 1]], np.eye(2))
CELLS = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
TOTAL = dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[1]])


def nested(seed: int) -> tuple[dm.LinearGaussianMechanism, dm.LinearGaussianMechanism]:
    """Return a random mechanism and one in which its queries are nested, on independent rows."""
    rng = np.random.default_rng(seed)
    cells, fine = 6, int(rng.integers(2, 7))
    coarse = int(rng.integers(1, fine + 1))
    queries = rng.standard_normal((fine, cells))
    factors = [rng.standard_normal((size, size)) + 3 * np.eye(size) for size in (coarse, fine)]
    mix = rng.standard_normal((coarse, fine))
    return (
        dm.LinearGaussianMechanism(mix @ queries, factors[0] @ factors[0].T),
        dm.LinearGaussianMechanism(queries, factors[1] @ factors[1].T),
    )


def common_of(*mechanisms: dm.LinearGaussianMechanism) -> dm.LinearGaussianMechanism:
    return fast.solve(dm.CommonMechanism(mechanisms)).mechanism


class TestSignalToNoise:
    """Section 6.1 of the paper."""

    @quick
    @given(seeds)
    def test_the_papers_formulas(self, seed: int) -> None:
        primary, secondary = nested(seed)
        common = common_of(primary, secondary)
        rule = SignalToNoise(primary, secondary, common, share=0.5, level=2, confidence=3)
        answer = np.random.default_rng(seed).standard_normal(common.rank) * 10
        # A_*, A and the three variances, by pseudo-inverses.
        known = primary.query_matrix @ np.linalg.pinv(common.query_matrix)
        within = primary.query_matrix @ np.linalg.pinv(secondary.query_matrix)
        reach = 3 * np.sqrt(np.diag(known @ common.covariance() @ known.T))
        noise = np.sqrt(np.diag(primary.covariance()))
        noisier = np.sqrt(np.diag(within @ secondary.covariance() @ within.T))
        bounds = rule.bounds(answer)
        np.testing.assert_allclose(bounds.primary_lower, (known @ answer - reach) / noise, rtol=1e-6)
        np.testing.assert_allclose(bounds.primary_upper, (known @ answer + reach) / noise, rtol=1e-6)
        np.testing.assert_allclose(bounds.secondary_lower, (known @ answer - reach) / noisier, rtol=1e-6)
        np.testing.assert_allclose(bounds.secondary_upper, (known @ answer + reach) / noisier, rtol=1e-6)

    @quick
    @given(seeds, st.floats(0.05, 1), st.floats(0.1, 10))
    def test_verdicts_follow_from_the_bounds(self, seed: int, share: float, level: float) -> None:
        primary, secondary = nested(seed)
        common = common_of(primary, secondary)
        rule = SignalToNoise(primary, secondary, common, share, level)
        answers = np.random.default_rng(seed).standard_normal((40, common.rank)) * 20
        verdicts, bounds = rule.choose(answers), rule.bounds(answers)
        enough = {
            name: np.mean(getattr(bounds, name) >= level, axis=1) >= share
            for name in ("primary_upper", "secondary_lower", "secondary_upper")
        }
        for index, verdict in enumerate(verdicts):
            if enough["secondary_lower"][index]:
                assert verdict == Verdict.SECONDARY
            elif enough["secondary_upper"][index]:
                assert verdict == Verdict.UNDECIDED
            else:
                assert verdict == (Verdict.PRIMARY if enough["primary_upper"][index] else Verdict.INFEASIBLE)
            assert rule.choose(answers[index]) is Verdict(verdict)

    def test_without_margin_noise_or_count(self) -> None:
        rule = SignalToNoise(ROWS, CELLS, common_of(ROWS, CELLS), share=0.5, level=20, confidence=0)
        data = np.random.default_rng(0).integers(0, 40, (200, 4)).astype(float)
        exact = data @ rule.common.query_matrix.T
        assert np.array_equal(rule.choose(exact), rule.true_verdict(data))
        assert rule.true_verdict(data[0]) is Verdict(rule.choose(exact)[0])
        noiseless = dm.LinearGaussianMechanism(np.eye(2), np.diag([0.0, 1]))
        rule = SignalToNoise(noiseless, noiseless, noiseless, share=1, level=3, confidence=3)
        assert rule.choose([0, 10]) is Verdict.SECONDARY
        assert rule.choose([-1, 10]) is Verdict.INFEASIBLE

    def test_dependent_rows_are_read_by_least_squares(self) -> None:
        # One-way and two-way marginals of three binary attributes: every table says the total again.
        domain = dm.Domain({"a": 2, "b": 2, "c": 2})
        one, two = (
            dm.LinearGaussianMechanism(dm.workloads.marginals(domain, ways=(ways,)).dense(), np.eye(size))
            for ways, size in ((1, 6), (2, 12))
        )
        common = common_of(one, two)
        rule = SignalToNoise(one, two, common, 0.5, 5)
        queries = dm.Workload(one.query_matrix)
        np.testing.assert_allclose(rule.secondary_noise**2, two.variances(queries))
        np.testing.assert_allclose(rule.deviations**2, common.variances(queries))
        np.testing.assert_allclose(rule.primary_noise, 1)
        stacked = SignalToNoise(one, two, two, 0.5, 5)
        np.testing.assert_allclose(stacked.deviations, rule.secondary_noise)
        np.testing.assert_allclose(stacked.estimator @ two.query_matrix, one.query_matrix, atol=1e-12)

    def test_bad_input_is_refused_by_name(self) -> None:
        common = common_of(ROWS, COLUMNS)
        with pytest.raises(dm.errors.InvalidInputError, match=r"secondary must answer .*'q0'"):
            SignalToNoise(ROWS, COLUMNS, common, 0.5, 5)
        with pytest.raises(dm.errors.InvalidInputError, match=r"common must answer .*'q0'"):
            SignalToNoise(ROWS, CELLS, TOTAL, 0.5, 5)
        nothing = dm.LinearGaussianMechanism(np.zeros((0, 4)), np.zeros((0, 0)))
        with pytest.raises(dm.errors.InvalidInputError, match="common must answer .* releases nothing"):
            SignalToNoise(ROWS, CELLS, nothing, 0.5, 5)
        common = common_of(ROWS, CELLS)
        for share in (0, -1, 1.5, np.nan):
            with pytest.raises(dm.errors.InvalidInputError, match="share"):
                SignalToNoise(ROWS, CELLS, common, share, 5)
        with pytest.raises(dm.errors.InvalidInputError, match="level"):
            SignalToNoise(ROWS, CELLS, common, 0.5, 0)
        with pytest.raises(dm.errors.InvalidInputError, match="confidence"):
            SignalToNoise(ROWS, CELLS, common, 0.5, 5, confidence=-1)
        with pytest.raises(dm.errors.InputTypeError, match="secondary must be a LinearGaussianMechanism of dualmech"):
            SignalToNoise(ROWS, np.eye(4), common, 0.5, 5)  # type: ignore[arg-type]
        with pytest.raises(dm.errors.InvalidInputError, match="secondary must have 4 cells"):
            SignalToNoise(ROWS, dm.LinearGaussianMechanism(np.eye(3), np.eye(3)), common, 0.5, 5)
        rule = SignalToNoise(ROWS, CELLS, common, 0.5, 5)
        for answers in ([1, 2, 3], np.zeros((1, 1, 2)), [1, np.nan]):
            with pytest.raises(dm.errors.InvalidInputError, match="answers must"):
                rule.choose(answers)
        with pytest.raises(dm.errors.InvalidInputError, match="x must have 4 entries"):
            rule.true_verdict([1, 2])

    def test_verdicts_are_as_reliable_as_their_margin(self) -> None:
        # SECONDARY on one query is wrong only where the noise exceeds 3 standard deviations: 0.13 % of the time.
        rule = SignalToNoise(TOTAL, CELLS, common_of(TOTAL, CELLS), share=1, level=20)
        data, runs = np.array([10.0, 10, 10, 9.9]), 200_000
        assert rule.true_verdict(data) == Verdict.PRIMARY
        verdicts = rule.choose(rule.common.simulate(np.tile(data, (runs, 1)), rng=0))
        wrong = np.mean(verdicts == Verdict.SECONDARY)
        assert 0.0005 < wrong < 0.00135 + 5 * (0.00135 / runs) ** 0.5

    @pytest.mark.parametrize("unit", [1e-6, 1e6])
    def test_units_do_not_matter(self, unit: float) -> None:
        said = [
            dm.LinearGaussianMechanism(unit * each.query_matrix, unit**2 * each.covariance())
            for each in (ROWS, CELLS, common_of(ROWS, CELLS))
        ]
        one = SignalToNoise(ROWS, CELLS, common_of(ROWS, CELLS), 0.5, 20)
        two = SignalToNoise(said[0], said[1], said[2], 0.5, 20)
        answers = np.random.default_rng(1).uniform(0, 60, (50, 2))
        assert np.array_equal(one.choose(answers), two.choose(unit * answers))


class TestAlongAChain:
    """Section 7.5.3."""

    def test_the_finest_analysis_that_the_data_can_bear_or_none(self) -> None:
        chain = fast.chain([TOTAL, ROWS, CELLS])
        rule = SignalToNoiseRule(chain, share=0.5, level=20)
        data = np.array([[0, 1, 0, 2], [30, 20, 1, 0], [5, 20, 12, 15], [900, 800, 700, 600]], dtype=float)
        assert chain.simulate(data, rule, rng=0).choices.tolist() == [0, 2, 1, 2]
        assert chain.simulate(data, SignalToNoiseRule(chain, 1, 20), rng=0).choices.tolist() == [0, 1, 1, 2]
        chain, data = fast.chain([TOTAL, ROWS, CELLS]), np.array([[0, 1.0, 0, 0], [200, 0, 200, 0]])
        patient = chain.simulate(data, SignalToNoiseRule(chain, 0.5, 50), rng=0)
        assert patient.choices.tolist() == [0, 2]
        assert chain.simulate(data, SignalToNoiseRule(chain, 0.5, 50, stop=True), rng=0).choices.tolist() == [STOP, 2]

    def test_each_stage_is_decided_by_its_own_nested_pair(self) -> None:
        chain = fast.chain([TOTAL, ROWS, CELLS])
        rule, answers = SignalToNoiseRule(chain, 0.5, 10), np.linspace(-50, 200, 30)[:, None]
        first = np.where(rule.stages[0].choose(answers) == Verdict.SECONDARY, GO_ON, 0)
        assert np.array_equal(rule(0, answers), first)
        assert rule.stages[1].primary is ROWS and rule.stages[1].common is chain.stages[1].known
        with pytest.raises(dm.errors.InvalidInputError, match="secondary must answer"):
            SignalToNoiseRule(fast.chain([ROWS, COLUMNS]), 0.5, 5)
        with pytest.raises(dm.errors.InputTypeError, match="chain must be"):
            SignalToNoiseRule([ROWS, CELLS], 0.5, 5)  # type: ignore[arg-type]


class TestPosterior:
    """Section 6.2, the Bayesian suggestion: exact for Gaussian noise and a Gaussian prior."""

    @quick
    @given(seeds)
    def test_it_is_the_conditional_variance(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        known, _ = nested(seed)
        factor = rng.standard_normal((6, int(rng.integers(1, 8))))
        prior, queries = factor @ factor.T, rng.standard_normal((5, 6))
        rows, noise = known.query_matrix, known.covariance()
        gain = np.linalg.solve(rows @ prior @ rows.T + noise, rows @ prior)
        expected = np.diag(queries @ (prior - prior @ rows.T @ gain) @ queries.T)
        found = posterior_variances(dm.Workload(queries), known, prior)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8 * np.abs(prior).max())

    @quick
    @given(seeds)
    @example(seed=1065)
    def test_the_flat_prior_is_the_limit(self, seed: int) -> None:
        known, _ = nested(seed)
        mix = np.random.default_rng(seed).standard_normal((3, known.rank))
        inside = dm.Workload(mix @ known.query_matrix)
        flat = posterior_variances(inside, known)
        np.testing.assert_allclose(flat, known.variances(inside))
        # A prior counts as flat next to the variances of all directions that are known.
        estimate = np.linalg.pinv(known.query_matrix)
        known_to = float(np.linalg.norm(estimate @ known.covariance() @ estimate.T, 2))
        prior = 1e6 * max(1e3, known_to)
        np.testing.assert_allclose(posterior_variances(inside, known, prior=prior), flat, rtol=1e-4)
        outside = dm.Workload(np.random.default_rng(seed + 1).standard_normal((1, 6)))
        if known.rank < 6:
            assert posterior_variances(outside, known)[0] == np.inf
            query = outside.dense()[0]
            apart = query - query @ estimate @ known.query_matrix
            assert posterior_variances(outside, known, prior=1e12)[0] > 0.9e12 * float(apart @ apart)

    def test_priors_of_three_kinds_and_of_no_knowledge(self) -> None:
        queries = dm.workloads.prefix(4)
        ways = [posterior_variances(queries, ROWS, prior) for prior in (7.0, 7 * np.ones(4), 7 * np.eye(4))]
        np.testing.assert_allclose(ways[0], ways[1])
        np.testing.assert_allclose(ways[0], ways[2])
        nothing = dm.LinearGaussianMechanism(np.zeros((0, 4)), np.zeros((0, 0)))
        two = dm.Workload([[1, 1, 0, 0], [0, 0, 0, 0]])
        np.testing.assert_allclose(posterior_variances(two, nothing, prior=3.0), [6, 0])
        np.testing.assert_allclose(posterior_variances(two, nothing), [np.inf, 0])

    def test_bad_input_is_refused_by_name(self) -> None:
        queries = dm.workloads.identity(4)
        for prior in (-1.0, [1, 2], np.ones((3, 3)), np.diag([1, 1, 1, -1])):
            with pytest.raises(dm.errors.InvalidInputError, match="prior"):
                posterior_variances(queries, ROWS, prior)
        with pytest.raises(dm.errors.InvalidInputError, match="workload must have 4 cells"):
            posterior_variances(dm.workloads.identity(3), ROWS)
        with pytest.raises(dm.errors.InputTypeError, match="workload must be"):
            posterior_variances(np.eye(4), ROWS)  # type: ignore[arg-type]
        exact = dm.LinearGaussianMechanism(np.eye(4), np.diag([0.0, 1, 1, 1]))
        with pytest.raises(dm.errors.InvalidInputError, match="exactly"):
            posterior_variances(queries, exact, prior=1.0)


class TestReduction:
    @quick
    @given(seeds, st.floats(0.01, 1e4))
    def test_running_a_mechanism_never_adds_uncertainty(self, seed: int, prior: float) -> None:
        primary, secondary = nested(seed)
        found = variance_reduction([primary, secondary], common_of(primary, secondary), prior)
        for before, reduction in zip(found.before, found.reductions, strict=True):
            assert np.all(reduction >= -1e-6 * before)
        assert found.best == int(np.argmax(found.totals))
        assert all(not len(each) for each in found.unbounded)

    def test_what_nothing_bounds_is_said_and_what_is_known_is_common(self) -> None:
        common = common_of(ROWS, CELLS)
        found = variance_reduction([ROWS, CELLS], common)
        assert [each.tolist() for each in found.unbounded] == [[], [0, 1, 2, 3]]
        assert found.best == 1 and found.totals[1] == np.inf
        np.testing.assert_allclose(found.before[0], 2)
        crossed = variance_reduction([ROWS, COLUMNS], common_of(ROWS, COLUMNS))
        with pytest.raises(dm.errors.InvalidInputError, match=r"mechanisms \[0, 1\] .* state a prior"):
            _ = crossed.best
        with pytest.raises(
            dm.errors.InvalidInputError, match="known must be answerable from every mechanism, .* from 1"
        ):
            variance_reduction([ROWS, COLUMNS], ROWS)

    def test_sampled_spreads_take_the_place_of_a_prior(self) -> None:
        common = common_of(ROWS, CELLS)
        answer = common.query_matrix @ np.array([50.0, 0, 5, 5])
        samples = hit_and_run(ConfidenceRegion(common, answer), 4000, rng=0)
        found = sampled_reduction([ROWS, CELLS], samples)
        assert found.best == 1
        np.testing.assert_allclose(found.before[1], samples.points.var(axis=0, ddof=1))
        # The two cells of a row of about s records lie anywhere on a segment: a variance of s²/12.
        cells: Array = found.before[1]
        assert 0.7 < cells[0] / (50**2 / 12) < 1.4 and 0.5 < cells[2] / (10**2 / 12) < 2

    def test_a_prior_can_turn_the_choice(self) -> None:
        # A prior that knows the rows leaves more to learn from the columns, and the other way round.
        common, spread = common_of(ROWS, COLUMNS), 100 * np.eye(4)
        for known, expected in (([1, 1, -1, -1], 1), ([1, -1, 1, -1], 0)):
            prior = spread - 24 * np.outer(known, known)
            assert variance_reduction([ROWS, COLUMNS], common, prior).best == expected
