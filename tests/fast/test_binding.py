"""Replaced records on blocks: solved on the neighbours that bind, judged under all of them."""

from typing import Any

import pytest

import dualmech as dm
from dualmech import fast
from dualmech.fast.reductions import blocks

WORKLOADS = {
    "marginals": dm.workloads.marginals([3, 2, 4, 2], ways=(0, 1, 2)),
    "union": dm.workloads.union(
        {"age": 6, "sex": 2}, {"ages": {"age": dm.workloads.prefix(6), "sex": None}, "sexes": ["sex"]}
    ),
    "circle": dm.workloads.circular_ranges(9),
}
KINDS = (dm.FitnessForUse, dm.TotalVariance)


@pytest.mark.parametrize("kind", KINDS, ids=["fitness", "variance"])
@pytest.mark.parametrize("name", WORKLOADS)
class TestOnThoseThatBind:
    def problem(self, kind: Any, name: str) -> Any:
        return kind(WORKLOADS[name], 2.0, neighbours="replace", geometry="blocks")

    def test_the_optimum_is_that_of_all(self, kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = self.problem(kind, name)
        whole = fast.solve(problem)
        monkeypatch.setattr(blocks, "MIN_ORBITS_TO_RESTRICT", 1)
        # So few to begin with that others have to join.
        monkeypatch.setattr(blocks, "TRIAL_STEPS", 2)
        monkeypatch.setattr(blocks, "COST_TOL", 1e-12)
        monkeypatch.setattr(blocks, "WEIGHT_TOL", 0.9)
        news: list[dm.Progress] = []
        found = fast.solve(problem, callback=news.append)
        assert found.status is dm.Status.CERTIFIED and found.problem is problem
        (low, high), (lower, upper) = whole.certificate.interval, found.certificate.interval
        assert max(low, lower) <= min(high, upper)
        steps = [each.iteration for each in news]
        assert steps == sorted(steps) == [each.iteration for each in found.history]

    def test_limits_hold(self, kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(blocks, "MIN_ORBITS_TO_RESTRICT", 1)
        with pytest.warns(dm.errors.UncertifiedWarning):
            few = fast.solve(self.problem(kind, name), tol=1e-12, max_iterations=3)
        assert few.iterations <= 4 and few.certificate.feasible

    def test_a_geometry_is_taken_again(self, kind: Any, name: str) -> None:
        problem = self.problem(kind, name)
        again = kind(WORKLOADS[name], 2.0, geometry=problem.geometry)
        assert again == problem
