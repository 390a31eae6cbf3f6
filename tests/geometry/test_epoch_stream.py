"""Several epochs of more running sums than a matrix holds: what is proven, against matrices; what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.geometry.apart import roots_of
from dualmech.geometry.epoch_stream import EpochStream
from dualmech.geometry.epochs import Epochs
from dualmech.mechanisms.stream import CausalMechanism

RULES = st.builds(
    dm.neighbours.Participation, st.integers(2, 4), st.integers(1, 5), st.sampled_from(["vectors", "signs"])
)


@pytest.fixture(scope="module", autouse=True)
def small_limits() -> Iterator[None]:
    """At most 100 steps and 1,000 weights have a matrix, and weights and strategies are drawn out from fewer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualmech.geometry.epochs.LARGEST_DENSE", 100)
        patch.setattr("dualmech.geometry.epochs.MAX_UNKNOWNS", 1000)
        patch.setattr("dualmech.fast.reductions.epoch_stream.MAX_COARSE_STEPS", 40)
        patch.setattr("dualmech.fast.engine.scaled.MAX_DIRECT_STEPS", 100)
        patch.setattr("dualmech.fast.engine.scaled.MIN_COARSE_COUNT", 8)
        yield


def both(rule: Any, lacking: int, decay: float) -> tuple[EpochStream, Epochs]:
    steps = rule.times * rule.separation - min(lacking, rule.separation - 1)
    sums = dm.workloads.decayed_sums(steps, decay)
    written: Any = dm.TotalVariance(sums, neighbours=rule, geometry="epochs").geometry
    return EpochStream(sums, rule), written


def names(answer: Any) -> tuple[str, str]:
    return answer.status.name, type(answer.problem.geometry).__name__


class TestBound:
    @settings(max_examples=12)
    @given(RULES, st.integers(0, 3), st.sampled_from([1.0, 0.8]), st.integers(0, 2), st.integers(0, 10**6))
    def test_it_is_that_of_the_matrix(self, rule: Any, lacking: int, decay: float, missing: int, seed: int) -> None:
        """Of any weights, of ranks as low as 1, raised a little, so that they have an inverse."""
        chain, written = both(rule, lacking, decay)
        _, of_vectors = both(dm.neighbours.Participation(rule.times, rule.separation), lacking, decay)
        rng = np.random.default_rng(seed)
        roots = rng.standard_normal((len(chain.phases), rule.times, max(rule.times - missing, 1)))
        weights = roots @ roots.swapaxes(1, 2)
        queries, targets = (10 ** rng.uniform(-2, 2, chain.workload.shape[0]) for _ in range(2))
        roots_and_total = roots_of(weights, chain.phases, rule.parts)
        assert roots_and_total is not None
        products = roots_and_total[0] @ roots_and_total[0].swapaxes(1, 2) / roots_and_total[1]
        masses = np.einsum("pii->pi", products).max(axis=1)
        raised = chain.raised * (masses + 1 / len(masses))
        same = products + raised[:, None, None] * np.eye(rule.times)
        for known, true in (
            (chain.total_bound(weights, queries), of_vectors.total_bound(same, queries)),
            (chain.bound(weights, queries, targets), of_vectors.bound(same, queries, targets)),
        ):
            assert known[0] <= true[0] * (1 + known[1] + true[1])
            assert known[0] >= true[0] * (1 - 1e-3)
        shares = chain.total_prices(weights, queries), chain.phase_prices(weights, queries)
        assert shares[0].sum() == pytest.approx(1) and shares[1].sum() == pytest.approx(1)
        if not missing and rule.parts == "vectors":
            assert shares[0] == pytest.approx(written.total_prices(weights, queries), abs=0.02)
            assert shares[1] == pytest.approx(written.phase_prices(weights, queries), abs=0.02)

    def test_what_proves_nothing_is_0(self) -> None:
        chain, _ = both(dm.neighbours.Participation(2, 3), 0, 1.0)
        none, ones = np.zeros((3, 2, 2)), np.ones(6)
        for weights in (none, none * np.nan, -np.eye(2) + none):
            assert chain.total_bound(weights, ones) == (0.0, 0.0)
            assert not chain.total_prices(weights, ones).any()
        assert chain.bound(np.eye(2) + none, 0 * ones, ones) == (0.0, 0.0)
        with pytest.raises(dm.errors.InvalidInputError, match=r"shape \(3, 2, 2\)"):
            chain.weights(dm.geometry.weights.VarianceDual(np.ones((2, 2, 2))), queries=False)

    @pytest.mark.parametrize(("family", "times"), [(dm.TotalVariance, 2), (dm.FitnessForUse, 4)])
    def test_the_drawn_out_bound_is_close(self, family: Any, times: int) -> None:
        """Drawn out from half of the steps: what `fast` proves without a matrix."""
        sums, rule = dm.workloads.prefix(60), dm.neighbours.Participation(times, 60 // times)
        exact = fast.solve(family(sums, neighbours=rule), tol=1e-3)
        answer = fast.solve(family(sums, geometry=EpochStream(sums, rule)), tol=0.9)
        assert answer.status.name == "CERTIFIED"
        assert 0.97 * exact.lower_bound < answer.lower_bound <= exact.objective <= answer.objective


class TestCost:
    @given(RULES, st.integers(0, 3), st.integers(0, 10**6))
    def test_it_is_that_of_the_matrix(self, rule: Any, lacking: int, seed: int) -> None:
        chain, written = both(rule, lacking, 1.0)
        steps = chain.workload.shape[0]
        coefficients = np.random.default_rng(seed).uniform(0.1, 1, steps) * 0.5 ** np.arange(steps)
        for mechanism in (
            dm.strategies.toeplitz(coefficients, steps),
            dm.strategies.sqrt_toeplitz(steps),
            dm.strategies.buffered([0.3], [0.9], steps),
        ):
            point: Any = mechanism.point_on(chain)
            forms, dense = chain.forms(point), written.forms(mechanism.point_on(written))
            assert forms is not None and dense is not None
            assert forms.cost == pytest.approx(dense.cost, rel=1e-7)
            assert forms.variances == pytest.approx(dense.variances, rel=1e-9)

    def test_of_parts_that_may_be_farther_apart(self) -> None:
        rule = dm.neighbours.Participation(2, 3, at_least=True)
        bands = dm.strategies.banded([[1.0] * 6, [0.5] * 6, [0.1] * 6])
        cost = bands.participation_cost(2, 3, at_least=True)
        rising = dm.strategies.toeplitz([1.0, 0.1, 0.2, 0.3], steps=6)
        chain = EpochStream(dm.workloads.prefix(6), rule)
        forms = chain.forms(bands.point_on(chain))
        assert forms is not None and forms.cost == pytest.approx(cost.squared_cost, rel=1e-12)
        with pytest.raises(dm.errors.InvalidInputError, match="at most 3 bands, or be a Toeplitz strategy"):
            chain.point(rising.point_on(EpochStream(dm.workloads.prefix(6), dm.neighbours.Participation(2, 3))))


@pytest.fixture(scope="module")
def answer(small_limits: None) -> Any:
    with pytest.warns(dm.errors.UncertifiedWarning):
        return fast.solve(dm.TotalVariance(dm.workloads.prefix(120), neighbours="participation:2:60"), tol=1e-3)


class TestLong:
    def test_an_interval_is_proven(self, answer: Any) -> None:
        assert names(answer) == ("STALLED", "EpochStream") and "No optimum is known" in answer.message
        assert 0 < answer.gap < 0.03
        assert answer.mechanism.squared_privacy_cost <= 1 + 1e-12
        assert isinstance(answer.mechanism.steps, CausalMechanism)
        known = answer.mechanism.steps.participation_cost(2, 60)
        assert answer.mechanism.profile == pytest.approx([known.squared_cost])
        assert answer.mechanism.variances(answer.problem.workload).sum() == pytest.approx(answer.objective, rel=1e-9)
        assert answer.prices.sum() == pytest.approx(1) and answer.phase_prices.sum() == pytest.approx(1)
        assert answer.phase_prices[0, 0] == answer.phase_prices.max()

    def test_of_a_shorter_stream_of_noise_by_step_and_of_strategies(self, answer: Any) -> None:
        """The first sums alone, with persons as often and as far apart, cost no more."""
        short = fast.solve(dm.TotalVariance(dm.workloads.prefix(60), neighbours="participation:2:30"), tol=1e-4)
        assert short.objective / 60 < answer.lower_bound / 120
        rows = answer.mechanism.noise(3, rng=0)
        assert np.stack([next(rows) for _ in range(4)]).shape == (4, 3)
        assert answer.mechanism.scaled(2.0).rho == pytest.approx(answer.mechanism.rho / 2)
        noisy = answer.mechanism.simulate(np.ones(120), rng=0, workload=answer.problem.workload)
        assert noisy.shape == (120,)
        best = fast.strategy(answer.problem, within="blt:2", bound=answer)
        assert answer.objective < best.objective < 1.2 * answer.lower_bound
        alone = fast.strategy(dm.TotalVariance(dm.workloads.prefix(5000)), within="toeplitz:5000", tol=1e-3)
        assert alone.gap < 0.08

    def test_it_is_kept_and_judged_anew(self, answer: Any, tmp_path: Path) -> None:
        dm.save(answer, tmp_path / "answer.npz")
        with pytest.warns(dm.errors.UncertifiedWarning):
            kept = dm.load(tmp_path / "answer.npz")
        assert kept.problem == answer.problem and kept.certificate == answer.certificate
        assert kept.mechanism == answer.mechanism and repr(kept.mechanism) == repr(answer.mechanism)
        dm.save(answer.mechanism, tmp_path / "noise.npz")
        assert dm.load(tmp_path / "noise.npz") == answer.mechanism
        assert crosscheck.compare([answer, kept]).outcome.name != "CONFLICT"
        verdict = crosscheck.judge(answer.problem, dm.strategies.sqrt_toeplitz(120), bound=answer)
        assert verdict.scaled.gap > answer.gap

    @pytest.mark.parametrize("rule", ["participation:2:60:signs", "participation:2:60:at-least"])
    def test_other_persons(self, answer: Any, rule: str) -> None:
        other = fast.solve(dm.TotalVariance(dm.workloads.prefix(120), neighbours=rule), tol=0.2)
        assert other.status.name == "CERTIFIED"
        assert other.objective == pytest.approx(answer.objective, rel=0.05)  # two descents
        assert other.lower_bound == pytest.approx(answer.lower_bound, rel=1e-3)

    def test_many_epochs_have_no_matrix_either(self) -> None:
        many = fast.solve(dm.FitnessForUse(dm.workloads.prefix(60), 2.0, neighbours="participation:60:1"), tol=0.3)
        assert names(many) == ("CERTIFIED", "EpochStream")
        privacy_first = dm.PrivacyFirst(dm.workloads.prefix(60), 2.0, 0.5, neighbours="participation:60:1")
        assert fast.solve(privacy_first, tol=0.3).status.name == "CERTIFIED"

    def test_what_takes_a_matrix_is_refused_by_name(self, answer: Any) -> None:
        problem = answer.problem
        for refused in (
            lambda: reference.solve(problem),
            lambda: reference.formulate(problem),
            lambda: dm.prove(answer),
            lambda: problem.basis,
            lambda: problem.for_one_record(),
            lambda: problem.in_numbers(),
            lambda: crosscheck.judge(problem, np.eye(3)),
        ):
            with pytest.raises(dm.errors.GeometryError, match="120 running sums with neighbours .* have no matrix"):
                refused()
        with pytest.raises(dm.errors.InvalidInputError, match="start is not supported"):
            fast.solve(problem, start=answer)
        with pytest.raises(dm.errors.DualmechError, match="has no release"):
            dm.plan_release(answer)
        with pytest.raises(dm.errors.InvalidInputError, match="at most 4096 steps, got 5000"):
            fast.strategy(
                dm.TotalVariance(dm.workloads.prefix(5000), neighbours="participation:2:2500"), within="banded:8"
            )
        with pytest.raises(dm.errors.GeometryError, match="holds it|have no matrix|phases cover them"):
            dm.TotalVariance(dm.workloads.prefix(200), neighbours="participation:2:60:at-least", geometry="epochs")
        with pytest.raises(dm.errors.InputTypeError, match="steps must be a LinearGaussianMechanism or a Causal"):
            dm.EpochsMechanism(answer.mechanism, "participation:2:60")


def test_the_command_solves_and_judges() -> None:
    posed = ("prefix:120", "--problem", "variance", "--neighbours", "participation:2:60")
    solved = run("solve", *posed, "--tol", "0.1")
    assert solved.exit_code == 0 and "CERTIFIED" in solved.output, solved.output
    judged = run("judge", *posed, "--strategy", "sqrt")
    assert judged.exit_code == 0 and "optimum at least 12" in judged.output, judged.output
