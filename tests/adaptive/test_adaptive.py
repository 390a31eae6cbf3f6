"""Adaptive releases: a state machine that cannot run two branches, and touches the data in one place."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.adaptive.chain import GO_ON, STOP
from dualmech.validate import Array

TOTAL = dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[1]])
HALVES = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
CELLS = dm.LinearGaussianMechanism(np.vstack([np.eye(4), np.ones(4)]), 2 * np.eye(5))
"""On dependent rows: the cells, and their total once more."""

CHAIN = fast.chain([TOTAL, HALVES, CELLS])
DATA = np.array([50.0, 3, 40, 2])


def opened(seed: int = 0) -> dm.AdaptiveRelease:
    return dm.AdaptiveRelease(CHAIN, DATA, rng=seed)


class TestTheStory:
    def test_before_the_first_advance_the_guarantee_alone_is_known(self) -> None:
        release = opened()
        assert release.stage is None and not release.finished
        assert release.known.rank == 0 and release.answers.shape == (0,)
        assert release.guarantee.rho == max(each.rho for each in CHAIN.mechanisms)
        release = opened()
        before = release.guarantee.rho, release.guarantee.epsilon(1e-9)
        release.advance()
        release.choose(0)
        assert (release.guarantee.rho, release.guarantee.epsilon(1e-9)) == before
        assert before[0] > TOTAL.rho

    def test_advance_look_choose(self) -> None:
        release = opened()
        for stage in CHAIN.stages:
            answers = release.advance()
            assert release.stage == stage.index and release.known is stage.known
            assert np.array_equal(answers, release.answers)
            np.testing.assert_allclose(answers, stage.known.query_matrix @ DATA, atol=6)
        answer = release.choose(2)
        assert answer.mechanism is CELLS and answer.index == 2 and release.finished
        np.testing.assert_allclose(answer.values, CELLS.query_matrix @ DATA, atol=12)

    def test_a_release_is_of_its_seed_and_cannot_be_changed_from_outside(self) -> None:
        values = []
        for seed in (1, 1, 2):
            release = opened(seed)
            release.advance()
            values.append(release.choose(1).values)
        assert np.array_equal(values[0], values[1]) and not np.array_equal(values[0], values[2])
        release = opened()
        release.advance()
        release.answers[:] = 0
        assert np.all(release.answers != 0)


class TestRules:
    @pytest.mark.parametrize("wanted", [0, 1, 2])
    def test_a_rule_decides_at_each_stage(self, wanted: int) -> None:
        seen: list[int] = []

        def rule(stage: int, answers: Array) -> Array:
            seen.append(stage)
            assert answers.shape == (1, CHAIN.stages[stage].known.rank)
            return np.array([GO_ON if stage < min(wanted, 1) else wanted])

        release = opened()
        answer = release.run(rule)
        assert answer is not None and answer.index == wanted
        assert seen == list(range(min(wanted, 1) + 1))

    def test_a_rule_can_stop_and_cannot_go_on_after_the_last_stage(self) -> None:
        release = opened()
        assert release.run(lambda stage, answers: np.array([STOP])) is None
        assert release.finished and release.answers.shape == (1,)
        with pytest.raises(dm.errors.InvalidInputError, match="rule must choose"):
            opened().run(lambda stage, answers: np.array([GO_ON]))

    def test_a_release_decides_as_the_simulation_does(self) -> None:
        rule = dm.decisions.SignalToNoiseRule(CHAIN, share=0.5, level=5)
        outcome = CHAIN.simulate(DATA[None], rule, rng=3)
        answer = dm.AdaptiveRelease(CHAIN, DATA, rng=3).run(rule)
        assert answer is not None and answer.index == outcome.choices[0]
        np.testing.assert_allclose(answer.values, outcome.answers[answer.index].values[0])


class TestOrder:
    def test_no_choice_before_a_stage_nor_of_what_is_out_and_no_stage_after_the_last(self) -> None:
        release = opened()
        with pytest.raises(dm.errors.ReleaseOrderError, match="advance before choosing"):
            release.choose(0)
        release.advance()
        release.advance()
        with pytest.raises(dm.errors.ReleaseOrderError, match="mechanism 0 is out since stage 1 ran"):
            release.choose(0)
        with pytest.raises(dm.errors.ReleaseOrderError, match="stage 1 was the last: choose mechanism 1 or 2"):
            release.advance()
        assert not release.finished and release.choose(1).index == 1

    @pytest.mark.parametrize("ending", ["choose", "stop"])
    def test_nothing_after_the_end(self, ending: str) -> None:
        release = opened()
        release.advance()
        release.choose(0) if ending == "choose" else release.stop()
        for step in (release.advance, release.stop, lambda: release.choose(1), lambda: release.run(never)):
            with pytest.raises(dm.errors.ReleaseOrderError, match="cannot .*: (mechanism 0 was|the release was)"):
                step()

    def test_stopping_returns_what_is_known_and_no_failed_measurement_is_repeated(self) -> None:
        release = opened()
        assert np.array_equal(release.advance(), release.stop())
        assert opened().stop().shape == (0,)

        def failing(mechanism: dm.LinearGaussianMechanism, x: Array, rng: np.random.Generator) -> Array:
            raise OSError("the line went dead")

        release = dm.AdaptiveRelease(CHAIN, DATA, measure=failing)
        with pytest.raises(OSError):
            release.advance()
        with pytest.raises(dm.errors.ReleaseOrderError, match="stage 0 failed"):
            release.advance()


class TestThreads:
    """Steps that threads begin during a measurement wait for its end, and see what it did."""

    @staticmethod
    def during_a_step(
        first: Callable[[dm.AdaptiveRelease], Any], second: Callable[[dm.AdaptiveRelease], Any]
    ) -> tuple[dm.AdaptiveRelease, list[Any]]:
        """Begin the second step in another thread during the first one's measurement; return both outcomes."""
        outcomes: list[Any] = []
        threads: list[threading.Thread] = []

        def attempt(step: Callable[[dm.AdaptiveRelease], Any]) -> None:
            try:
                outcomes.append(step(release))
            except dm.errors.ReleaseOrderError as error:
                outcomes.append(error)

        def measure(mechanism: dm.LinearGaussianMechanism, x: Array, rng: np.random.Generator) -> Array:
            if armed and not threads:
                threads.append(threading.Thread(target=attempt, args=(second,)))
                threads[0].start()
                threads[0].join(0.05)  # without a lock the second step ends here
            return np.asarray(mechanism.query_matrix @ x)

        armed = False
        release = dm.AdaptiveRelease(CHAIN, DATA, measure=measure)
        release.advance()
        armed = True
        attempt(first)
        threads[0].join()
        return release, outcomes

    def test_a_choice_and_a_stage_wait_for_a_stage(self) -> None:
        release, (stage, choice) = self.during_a_step(lambda each: each.advance(), lambda each: each.choose(2))
        assert release.stage == 1 and release.chosen == choice.index == 2
        np.testing.assert_allclose(stage, CHAIN.stages[1].known.query_matrix @ DATA)
        release, (stage, refused) = self.during_a_step(lambda each: each.advance(), lambda each: each.advance())
        assert release.stage == 1 and not release.finished and len(stage)
        assert isinstance(refused, dm.errors.ReleaseOrderError) and "was the last" in str(refused)

    def test_of_two_choices_at_once_one_is_answered(self) -> None:
        for _ in range(40):
            release, ready, answered = opened(), threading.Barrier(2), list[int]()
            release.advance()

            def choose(index: int, release: Any = release, ready: Any = ready, answered: Any = answered) -> None:
                ready.wait()
                try:
                    answered.append(release.choose(index).index)
                except dm.errors.ReleaseOrderError:
                    return

            threads = [threading.Thread(target=choose, args=(index,)) for index in range(2)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert answered == [release.chosen]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
    def test_a_forked_process_cannot_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fork changes nothing but the process id, which is what a release looks at."""
        release = opened()
        release.advance()
        parent = os.getpid()
        with release._lock, monkeypatch.context() as child:  # another thread may have a step under way at the fork
            child.setattr(os, "getpid", lambda: parent + 1)
            for step in (release.advance, release.stop, lambda: release.choose(1), lambda: release.run(never)):
                with pytest.raises(dm.errors.ReleaseOrderError, match=f"process {parent} began this release"):
                    step()
            assert release.answers.shape == (1,)
        assert release.choose(1).index == 1


class TestMeasure:
    def test_the_data_are_seen_in_one_place(self) -> None:
        # An exact sampler plugs in here; this one has no noise at all, so that every answer can be checked.
        asked: list[dm.LinearGaussianMechanism] = []

        def exact(mechanism: dm.LinearGaussianMechanism, x: Array, rng: np.random.Generator) -> Array:
            asked.append(mechanism)
            return np.asarray(mechanism.query_matrix @ x)

        for wanted in (0, 1, 2):
            asked.clear()
            release = dm.AdaptiveRelease(CHAIN, DATA, measure=exact)
            np.testing.assert_allclose(release.advance(), release.known.query_matrix @ DATA)
            parts = CHAIN.stages[0].decomposition(wanted)
            answer = release.choose(wanted)
            assert asked == [CHAIN.stages[0].increment, parts.residual]
            leftover = np.sqrt(np.diagonal(parts.leftover)).max()
            np.testing.assert_allclose(answer.values, answer.mechanism.query_matrix @ DATA, atol=1e-9 + 6 * leftover)

    def test_what_asks_nothing_is_not_measured(self) -> None:
        def forbidden(mechanism: dm.LinearGaussianMechanism, x: Array, rng: np.random.Generator) -> Array:
            raise AssertionError("nothing to measure")

        alone = [dm.LinearGaussianMechanism(row[None], [[1.0]]) for row in np.eye(2)]
        release = dm.AdaptiveRelease(fast.chain(alone), [1, 2], measure=forbidden)
        assert release.advance().shape == (0,)

    @pytest.mark.parametrize("bad", [np.ones(3), np.array([np.nan])])
    def test_bad_measurements_are_refused(self, bad: Array) -> None:
        release = dm.AdaptiveRelease(CHAIN, DATA, measure=lambda mechanism, x, rng: bad)
        with pytest.raises(dm.errors.InvalidInputError, match="measure"):
            release.advance()


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(dm.errors.InputTypeError, match="chain must be"):
        dm.AdaptiveRelease([TOTAL, HALVES], DATA)  # type: ignore[arg-type]
    with pytest.raises(dm.errors.InvalidInputError, match="x must have 4 entries"):
        dm.AdaptiveRelease(CHAIN, [1, 2])
    with pytest.raises(dm.errors.InvalidInputError, match="x must be finite"):
        dm.AdaptiveRelease(CHAIN, [1, 2, 3, np.nan])
    with pytest.raises(dm.errors.InputTypeError, match="measure must be callable"):
        dm.AdaptiveRelease(CHAIN, DATA, measure=3)  # type: ignore[arg-type]
    with pytest.raises(dm.errors.InputTypeError, match="rng"):
        dm.AdaptiveRelease(CHAIN, DATA, rng="0")  # type: ignore[arg-type]
    release = opened()
    release.advance()
    for index in (-1, 3):
        with pytest.raises(dm.errors.InvalidInputError, match="index must be an integer from 0 to 2"):
            release.choose(index)
    for other in (1.0, True, "1"):
        with pytest.raises(dm.errors.InputTypeError, match="index must be an integer"):
            release.choose(other)  # type: ignore[arg-type]
    assert not release.finished


def never(stage: int, answers: Array) -> Array:
    raise AssertionError("a finished release asks no rule")
