"""Streams as they are drawn: the cost is a bound, no direction costs more than planned, and data come back."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from many_digits import Exact as Digits
from many_digits import stream_root
from releases import no_noise

import dualmech as dm
from dualmech import fast
from dualmech.mechanisms.stream import StreamMechanism
from dualmech.publishing import streams
from dualmech.publishing.streams import EXPONENT, FRACTION, NOISE_FACTOR, DrawnStream
from dualmech.validate import Array

LONG = dm.workloads.prefix(4096)


def random_stream(seed: int) -> StreamMechanism:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    kinds = (dm.workloads.prefix(count), dm.workloads.decayed_sums(count, 0.9), dm.workloads.all_range(count))
    weights = np.exp(rng.normal(0, 1, (2, count)))
    first, second = weights
    return StreamMechanism(kinds[seed % 3], first, second, 10.0 ** rng.integers(-3, 4))


def precision(drawn: DrawnStream) -> Array:
    return np.array([drawn._precision(cell) for cell in np.eye(drawn.planned.cells)])


def exact_precision(drawn: DrawnStream) -> Digits:
    """Return the inverse covariance of the noise that is drawn, from the whole numbers."""
    count = drawn.planned.cells
    total = mpmath.zeros(count)
    for each in drawn.sums:
        gain, decay = mpmath.mpf(2) ** -(FRACTION + EXPONENT), mpmath.mpf(2) ** -FRACTION
        rows = mpmath.zeros(count)
        for i in range(count):
            for j in range(count):
                before = rows[i - 1, j] * each.integer_decays[i] * decay if i else 0
                rows[i, j] = before + (each.integer_gains[i] * gain if i == j else 0)
        total += rows.T * rows
    return total


class TestDrawnStream:
    @settings(max_examples=30)
    @given(st.integers(0, 10_000))
    def test_the_noise_is_that_of_the_mechanism_and_a_little_larger(self, seed: int) -> None:
        given_mechanism = random_stream(seed)
        drawn = DrawnStream(given_mechanism)
        root = np.linalg.cholesky(given_mechanism.covariance())
        shares = np.linalg.eigvalsh(root.T @ precision(drawn) @ root)
        assert shares[0] >= 1 / NOISE_FACTOR and shares[-1] <= 1
        assert drawn.mechanism.total_variance == pytest.approx(NOISE_FACTOR * given_mechanism.total_variance, rel=1e-9)

    @pytest.mark.parametrize("count", [1, 6])
    def test_no_direction_has_more_noise_than_is_said_whatever_the_weights(self, count: int) -> None:
        """The whole numbers as they are, against 120 digits, for weights of 24 orders of magnitude."""
        made = 0
        for seed in range(8):
            rng = np.random.default_rng(seed)
            workload: Any = [dm.workloads.prefix, dm.workloads.all_range][seed % 2](count)
            first, second = 10.0 ** rng.uniform(-6, 6, (2, count))
            mechanism = StreamMechanism(workload, first, second)
            with mpmath.workdps(120), contextlib.suppress(dm.errors.InvalidInputError):
                drawn = DrawnStream(mechanism)
                shares = mpmath.eigsy(stream_root(mechanism).T * exact_precision(drawn) * stream_root(mechanism))[0]
                assert 1 / mpmath.mpf(NOISE_FACTOR) <= min(shares) and max(shares) <= 1
                made += 1
        assert made >= 4

    @given(st.integers(0, 10_000))
    def test_weights_that_differ_by_any_amount_are_drawn_or_refused(self, seed: int) -> None:
        """Factors come from positive numbers: there is none that fails (SciPy's Cholesky did)."""
        rng = np.random.default_rng(seed)
        mechanism = StreamMechanism(dm.workloads.prefix(50), *10.0 ** rng.uniform(-12, 12, (2, 50)))
        assert np.all(np.isfinite(mechanism.simulate(np.zeros(50), rng=0)))
        with contextlib.suppress(dm.errors.InvalidInputError):
            DrawnStream(mechanism)

    def test_a_tight_tolerance_is_no_reason_to_refuse(self) -> None:
        targets = 10.0 ** np.random.default_rng(1).uniform(-1, 1, 150)
        x = np.random.default_rng(2).integers(0, 10**6, 150)
        for tol in (1e-6, 1e-9, 1e-10):
            answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(150), targets, geometry="stream"), tol=tol)
            found = dm.plan_release(answer).drawn.draw(x, no_noise)
            np.testing.assert_allclose(found, x, rtol=1e-9, atol=1e-6)

    @settings(max_examples=30)
    @given(st.integers(0, 10_000))
    def test_data_come_back_and_no_record_changes_what_is_measured_by_more_than_the_cost(self, seed: int) -> None:
        drawn = DrawnStream(random_stream(seed))
        x = np.random.default_rng(seed).integers(0, 10**6, drawn.planned.cells)
        deviations = np.sqrt(np.diagonal(drawn.planned.covariance()))
        assert np.all(np.abs(drawn.draw(x, no_noise) - x) <= 1e-6 * (1 + deviations))
        assert float(drawn.squared_privacy_cost) <= drawn.planned.squared_privacy_cost
        for cell in range(len(x)):
            more = x + np.eye(1, len(x), cell, dtype=np.int64)[0]
            changes = [each.answers(more) - each.answers(x) for each in drawn.sums]
            cost = Fraction(int(sum(np.sum(each * each) for each in changes)), 4**EXPONENT)
            assert cost <= drawn.squared_privacy_cost

    def test_sums_are_rounded_and_exact(self) -> None:
        each = streams.DecayedSum.of(np.array([0.5, 0.25]), np.array([0.0, 0.5]))
        assert each.answers(np.array([3, 1])).tolist() == [3 << (EXPONENT - 1), 1 << EXPONENT]

    def test_many_steps_make_no_matrix(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = fast.solve(dm.FitnessForUse(LONG, 25.0), tol=1e-3)
        monkeypatch.setattr(StreamMechanism, "dense", None)
        planned = dm.plan_release(answer)
        assert planned.rho <= answer.mechanism.rho
        assert np.all(planned.margins("prefixes") <= 1.96 * 5 * (1 + 1e-5))
        found = planned.drawn.draw(np.arange(4096), no_noise)
        assert planned.drawn.estimate(found, LONG)[-1] == pytest.approx(4095 * 2048, abs=1e-3)

    def test_too_many_steps_and_weights_that_differ_too_much_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        uneven = StreamMechanism(dm.workloads.prefix(40), np.geomspace(1, 1e-24, 40), np.geomspace(1, 1e24, 40))
        with pytest.raises(dm.errors.InvalidInputError, match="more even weights, or fewer steps"):
            dm.plan_release(uneven)
        monkeypatch.setattr(streams, "MAX_STEPS", 3)
        with pytest.raises(dm.errors.InvalidInputError, match="at most 3 steps"):
            dm.plan_release(StreamMechanism(dm.workloads.prefix(4), np.ones(4), np.ones(4)))


class TestTableInOrder:
    """One table of prefixes over one attribute is a stream, from its specification to what is published."""

    def asked(self, days: int, **changed: object) -> dm.Specification:
        table = {"name": "by day", "ask": {"day": "prefixes"}, "variance": 25.0}
        return dm.Specification.of({"attributes": {"day": {"from": 1, "to": days}}, "tables": [table], **changed})

    @pytest.mark.parametrize("days", [300, pytest.param(1200, marks=pytest.mark.slow)])
    def test_is_solved_and_published_as_a_stream(self, days: int) -> None:
        asked = self.asked(days)
        answer = asked.planned(fast.solve(asked.problem(), tol=1e-4))
        assert answer.problem.geometry.name == "stream" and answer.status is dm.Status.CERTIFIED
        assert "of 'by day: " in dm.prices_in_words(answer)[0]
        planned = dm.plan_release(answer)
        assert planned.tables == ("by day",) and planned.margins("by day").shape == (days,)
        assert planned.margins("by day").max() <= asked.quantile * 5 * (1 + 1e-6)
        pytest.importorskip("opendp")
        released = dm.release(answer, np.full(days, 10))
        rows = [*released.rows("by day")[1]]
        assert rows[1][0] == "day ≤ 2" and abs(rows[-1][1] - 10 * days) < 50

    def test_is_the_same_problem_on_blocks(self) -> None:
        problem = self.asked(40).problem()
        stream = dm.FitnessForUse(problem.workload, problem.per_query(), geometry="stream")
        one, two = fast.solve(problem), fast.solve(stream)
        assert problem.geometry.name == "blocks" and stream.same_as(problem)
        assert one.lower_bound <= two.objective and two.lower_bound <= one.objective

    def test_is_refused_beside_another_where_a_matrix_is_too_large(self) -> None:
        attributes = {"day": {"from": 1, "to": 3000}, "sex": {"labels": ["f", "m"]}}
        with pytest.raises(dm.errors.InvalidInputError, match="a single table of a single attribute"):
            self.asked(3000, attributes=attributes)
