"""A tighter tolerance never gives a worse answer: every problem of the library at tolerances from 1e-4 to 1e-12."""

from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import library
from dualmech.progress import Status
from dualmech.watching import without_warnings

TOLERANCES = [10.0**-power for power in range(4, 13, 2)]

QUICK = [
    *("fitness-rows-of-all-sizes", "fitness-columns-of-all-sizes", "fitness-nearly-dependent", "fitness-table-6-64"),
    *("variance-rows-of-all-sizes", "privacy-marginals-4", "softmax-prefix-8-10", "weighting-prefix-8-own"),
    *("reuse-prefix-8-after-total", "common-random-3-seed-0", "local-histogram-4-1-worst", "estimate-histogram-16"),
    *("projection-6x4-0.5", "fitness-tables-shifts"),
]
"""The hardest problem of each family that is solved quickly."""


def random_volume(seed: int, cells: int = 4) -> dm.CommonMechanism:
    """Return the least volume above the random mechanisms at which the centring step left its domain."""
    rng, mechanisms = np.random.default_rng(seed), []
    for _ in range(3):
        mechanisms.append(dm.LinearGaussianMechanism(rng.standard_normal((cells + 1, cells)), np.eye(cells + 1)))
        rng.standard_normal((cells + 1, cells + 1))
    return dm.CommonMechanism(mechanisms, basis=np.eye(cells), criterion="volume")


def require_no_loss(problem: Any, tolerances: list[float]) -> None:
    """Require a distance from the proven optimum within the tolerance, or no larger than at any looser tolerance."""
    with without_warnings():
        answers = [fast.solve(problem, tol=tol) for tol in tolerances]
    judged = [answer.certificate for answer in answers]
    offset = judged[0].offset
    optimum = max(each.lower_bound for each in judged) + offset
    worst = np.inf
    for tol, answer, certificate in zip(tolerances, answers, judged, strict=True):
        distance = ((certificate.objective + offset) * (1 + certificate.violation) - optimum) / optimum
        assert distance <= max(worst, tol), (
            f"{distance:.2e} at {tol:g}, at most {worst:.2e} before ({answer.status.name})"
        )
        worst = min(worst, distance + certificate.resolution)


@pytest.mark.parametrize("name", QUICK)
def test_a_tighter_tolerance_is_no_worse(name: str) -> None:
    require_no_loss(library.problems()[name](), TOLERANCES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in library.problems() if name not in QUICK])
def test_a_tighter_tolerance_is_no_worse_of_the_whole_library(name: str) -> None:
    require_no_loss(library.problems()[name](), TOLERANCES)


@pytest.mark.parametrize("seed", [8, 11, 13])
def test_a_tighter_tolerance_is_no_worse_for_a_volume(seed: int) -> None:
    require_no_loss(random_volume(seed), [*TOLERANCES[:3], 1e-9, *TOLERANCES[3:]])
    assert fast.solve(random_volume(seed), tol=1e-9).status is Status.CERTIFIED
