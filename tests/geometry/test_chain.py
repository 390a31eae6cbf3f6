"""Chains of phases: determinants, covariances and trace norms, against matrices and against many digits."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmech.geometry.chain import Chain
from dualmech.validate import Array

Shape = tuple[int, int, int]
SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(0, 3))
"""Phases, epochs, and steps that the last epoch lacks."""


class Case:
    """A chain and the same as matrices, by time."""

    def __init__(self, shape: Shape, decay: float, spread: float, seed: int) -> None:
        rng, (phases, epochs, lacking) = np.random.default_rng(seed), shape
        count = phases * epochs - min(lacking, phases - 1)
        steps = np.arange(phases)[:, None] + phases * np.arange(epochs)
        self.present = steps < count
        both = self.present[:, :, None] & self.present[:, None, :]
        roots = rng.standard_normal((phases, epochs, epochs + 1))
        sizes = 10 ** rng.uniform(-spread, spread, (2, phases, 1, 1))
        products = np.where(both, sizes[0] * (roots @ roots.swapaxes(1, 2)), 0.0)
        products += sizes[1] * np.eye(epochs)
        weights = np.where(self.present, 10 ** rng.uniform(-spread, spread, (phases, epochs)), 0.0)
        decays = np.where(self.present, decay, 0.0)
        decays[0, 0] = 0.0
        ties = np.linalg.inv(products)
        ties = (ties + ties.swapaxes(1, 2)) / 2
        self.chain = Chain(ties, decays, weights, np.einsum("pii->p", np.linalg.inv(ties)) * (1 + 1e-6))
        self.steps, self.count = steps, count
        self.weights, self.inverse = np.zeros(count), np.zeros((count, count))
        self.weights[steps[self.present]] = weights[self.present]
        for phase, tie in enumerate(ties):
            some = self.present[phase]
            self.inverse[np.ix_(steps[phase][some], steps[phase][some])] = tie[np.ix_(some, some)]
        self.differences = np.eye(count) - decay * np.eye(count, k=-1)

    def precision(self, shift: float) -> Array:
        """Return ``D'P D + w diag(μ)``."""
        return np.asarray(self.differences.T @ self.inverse @ self.differences + shift * np.diag(self.weights))

    def squares(self) -> Array:
        half = np.sqrt(self.weights)[:, None] * np.linalg.inv(self.differences)
        return np.asarray(half @ np.linalg.inv(self.inverse) @ half.T)


@pytest.mark.parametrize("decay", [1.0, 0.75])
class TestChain:
    @given(SHAPES, st.floats(0, 4), st.floats(-8, 8), st.integers(0, 10**6))
    def test_determinants(self, decay: float, shape: Shape, spread: float, shift: float, seed: int) -> None:
        case, weight = Case(shape, decay, spread, seed), float(10**shift)
        with np.errstate(all="ignore"):
            value, off = case.chain.log_determinant(weight)
        if not np.isfinite(off):
            assert spread > 1
            return
        with mpmath.workdps(60):  # D'P D without rounding
            differences = mpmath.matrix(case.differences.tolist())
            tied = differences.T * mpmath.matrix(case.inverse.tolist()) * differences
            whole = tied + mpmath.mpf(weight) * mpmath.diag(case.weights.tolist())
            true = mpmath.log(mpmath.det(whole))
            alone = [mpmath.log(case.chain.ties[phase, k, k]) for phase, k in np.argwhere(~case.present)]
            assert abs(mpmath.mpf(value) - true - sum(alone)) <= off

    @given(SHAPES, st.floats(-3, 3), st.integers(0, 10**6))
    def test_covariances_of_the_inverse(self, decay: float, shape: Shape, shift: float, seed: int) -> None:
        case, weight = Case(shape, decay, 0.5, seed), float(10**shift)
        inverse = np.linalg.inv(case.precision(weight))
        added = case.differences @ inverse @ case.differences.T
        epochs = case.steps.shape[1]
        known, traces = case.chain.covariances(weight), case.chain.traces(weight)
        for phase, steps in enumerate(case.steps):
            some = case.present[phase]
            own = known[phase][epochs:, epochs:][np.ix_(some, some)]
            assert own == pytest.approx(added[np.ix_(steps[some], steps[some])], rel=1e-7, abs=1e-10)
            assert traces[phase] >= np.trace(inverse[np.ix_(steps[some], steps[some])]) * (1 - 1e-9)

    @settings(max_examples=25)
    @given(SHAPES, st.floats(0, 2), st.integers(0, 10**6))
    def test_the_trace_norm_is_just_below(self, decay: float, shape: Shape, spread: float, seed: int) -> None:
        case = Case(shape, decay, spread, seed)
        squares = case.squares()
        true, trace = np.sqrt(np.maximum(np.linalg.eigvalsh(squares), 0.0)).sum(), float(np.trace(squares))
        bound, off = case.chain.trace_norm((trace * (1 - 1e-9), trace * (1 + 1e-9)))
        assert bound <= true * (1 + off + 1e-9)
        assert bound * (1 + off) >= true * (1 - 1e-4)

    @settings(max_examples=20)
    @given(SHAPES, st.integers(0, 10**6))
    def test_shares_are_derivatives(self, decay: float, shape: Shape, seed: int) -> None:
        case = Case(shape, decay, 0.3, seed)
        trace = float(np.trace(case.squares()))
        by_sum, by_part = case.chain.shares((trace, trace))
        values, vectors = np.linalg.eigh(case.squares())
        true = vectors**2 @ np.sqrt(np.maximum(values, 0.0))
        found = np.zeros(case.count)
        found[case.steps[case.present]] = by_sum[case.present]
        assert found / found.sum() == pytest.approx(true / true.sum(), abs=5e-3)
        assert by_part.sum() == pytest.approx(by_sum.sum(), rel=1e-6)


def test_long_chains_keep_their_digits() -> None:
    """Of one epoch the trace norm of prefixes is known: ``Σ 1 / (2 sin((2k - 1) π / (4n + 2)))``."""
    steps = 20_000
    ones = np.ones((steps, 1))
    decays = ones.copy()
    decays[0] = 0.0
    chain = Chain(ones[:, :, None].copy(), decays, ones, ones[:, 0] * (1 + 1e-12))
    trace = steps * (steps + 1) / 2
    bound, off = chain.trace_norm((trace, trace))
    true = (1 / (2 * np.sin((2 * np.arange(steps) + 1) * np.pi / (4 * steps + 2)))).sum()
    assert off < 1e-6
    assert true * (1 - 1e-6) < bound <= true * (1 + off)
