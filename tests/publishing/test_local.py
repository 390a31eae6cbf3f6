"""Reports from whole-number chances: their ratio as a fraction, their distribution, and margins that hold."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.display import rounded_up
from dualmech.publishing.local import BITS, _log_above

ratios_near_one = st.builds(
    lambda least, more: Fraction(least + more, least), st.integers(2**30, 2**52), st.integers(0, 2**20)
)


def response(types: int, epsilon: float) -> dm.LocalMechanism:
    strategy = np.ones((types, types)) + (math.exp(epsilon) - 1) * np.eye(types)
    return dm.LocalMechanism(strategy / strategy.sum(axis=0), epsilon, dm.workloads.prefix(types))


@given(st.integers(2, 9), st.floats(1e-4, 12))
def test_no_ratio_exceeds_what_was_promised(types: int, epsilon: float) -> None:
    found = dm.LocalRandomiser(response(types, epsilon))
    assert np.all(found.chances.sum(axis=0) == 2**BITS) and found.chances.min() > 0
    by_hand = max(Fraction(max(row), min(row)) for row in found.chances.tolist())
    assert by_hand == found.ratio <= Fraction(math.exp(epsilon))
    assert found.epsilon <= epsilon * (1 + 1e-12) and found.epsilon >= epsilon * (1 - 1e-6) - 1e-9
    planned = response(types, epsilon)
    assert np.allclose(found.mechanism.user_variances, planned.user_variances, rtol=1e-6)
    missed = found.mechanism.reconstruction @ found.mechanism.strategy - np.tril(np.ones((types, types)))
    assert np.abs(missed).max() < 1e-10


@given(st.one_of(ratios_near_one, st.fractions(1, 2**52), st.floats(0, 20).map(lambda e: Fraction(math.exp(e)))))
@example(Fraction(2**52 + 1, 2**52))
@example(Fraction(math.exp(20)))
def test_epsilon_is_never_below_the_logarithm_of_its_ratio(ratio: Fraction) -> None:
    found = rounded_up(_log_above(ratio))
    with mp.workdps(60):
        exact = mp.log(mp.mpf(ratio.numerator) / ratio.denominator)
        assert exact <= mp.mpf(found) <= exact * (1 + mp.mpf(2) ** -51)


def test_epsilon_of_drawn_strategies_is_never_below_the_logarithm_of_their_ratio() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        even, epsilon = np.full((4, 4), 0.25), 10 ** generator.uniform(-5, 1)
        strategy = even * (1 + np.tanh(epsilon / 4) * generator.uniform(-1, 1, (4, 4)))
        strategy /= strategy.sum(axis=0)
        found = dm.LocalRandomiser(dm.LocalMechanism(strategy, epsilon, dm.workloads.total(4)))
        with mp.workdps(60):
            exact = mp.log(mp.mpf(found.ratio.numerator) / found.ratio.denominator)
            assert exact <= mp.mpf(found.epsilon) <= exact * (1 + mp.mpf(2) ** -51)


def test_solved_strategies_are_drawn_and_refusals() -> None:
    answer = fast.solve(dm.LocalStrategy(dm.workloads.prefix(5), 1.0), tol=1e-3)
    found = dm.LocalRandomiser(answer.mechanism)
    assert found.ratio <= Fraction(math.e) and found.mechanism.objective == pytest.approx(
        answer.mechanism.objective, rel=1e-9
    )
    far = dm.LocalRandomiser(response(4, 60.0))  # more privacy than asked, where chances are below 2^-52
    assert far.epsilon < 40 and np.all(far.mechanism.user_variances < 1e-4)
    wrong: Any
    for wrong in ([0, 9], [0.5], "x"):
        with pytest.raises(dm.errors.DualmechError, match="users"):
            found.reports(wrong)


def test_reports_have_their_chances() -> None:
    """A right sampler fails once in a billion runs: it cannot be seeded."""
    found, count = dm.LocalRandomiser(response(4, 1.0)), 20_000
    assert found.reports([]).shape == (0,)
    for kind in range(4):
        seen = found.histogram(found.reports([kind] * count))
        expected = count * found.mechanism.strategy[:, kind]
        statistic = float(((seen - expected) ** 2 / expected).sum())
        assert scipy.stats.chi2.sf(statistic, 3) > 1e-9
    assert {found.respond(0) for _ in range(300)} == {0, 1, 2, 3}


def test_margins_hold_as_often_as_they_say() -> None:
    mechanism, x = response(4, 1.0), np.array([400, 100, 300, 200])
    truth, generator = mechanism.workload.apply(x), np.random.default_rng(3)
    inside = []
    for _ in range(400):
        responses = mechanism.responses(x, generator)
        inside.append(np.abs(mechanism.estimate(responses) - truth) <= mechanism.margins(responses, 0.9) + 1e-9)
    assert np.all(np.mean(inside, axis=0) > 0.86)
    assert np.all(mechanism.margins(responses, 0.99) >= mechanism.margins(responses, 0.9))
    with pytest.raises(dm.errors.InvalidInputError, match="responses"):
        mechanism.margins([0, 0, 0, 0])
