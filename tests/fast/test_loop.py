"""The loop of all iterative solvers: what it takes for success, and what it refuses."""

from typing import Any

import pytest

from dualmech.fast.engine import loop
from dualmech.progress import Status


class TestContradictions:
    """An objective below a bound is a contradiction, and no success."""

    @staticmethod
    def run(sides: list[tuple[float, float]], tol: float = 1e-3) -> loop.Outcome[Any]:
        """Run through states with these objectives and bounds, the last again and again."""

        class State:
            def __init__(self, steps: int) -> None:
                self.steps = steps
                self.objective, self.lower_bound = sides[min(steps, len(sides) - 1)]

        return loop.run(State(0), lambda state: State(state.steps + 1), loop.Limits(tol))

    @pytest.mark.parametrize("sides", [(0.9, 0.95), (1.05, 1.2), (0.5, 0.1), (1.0, 1.1 + 1e-8)])
    def test_a_state_whose_objective_is_below_a_bound_is_refused(self, sides: tuple[float, float]) -> None:
        outcome = self.run([(2.0, 0.5), (1.1, 1.0), sides])
        assert outcome.reason is Status.STALLED and outcome.iterations == 2
        assert (outcome.best_primal.objective, outcome.best_dual.lower_bound) == (1.1, 1.0)

    def test_a_gap_of_rounding_size_and_a_bound_of_zero_contradict_nothing(self) -> None:
        outcome = self.run([(2.0, 0.5), (1.0, 1.0 + 1e-12)])
        assert outcome.reason is None and outcome.iterations == 1
        assert self.run([(1.0, 0.0), (-1.0, -2.0), (1.0, 1.0)]).iterations == 2
