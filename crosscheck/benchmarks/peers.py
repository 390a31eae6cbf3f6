"""Total variance of prefixes beside other libraries, where they are installed: CPU seconds, and what is proven."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from dualmech import fast, workloads
from dualmech.crosscheck.benchmarks.contest import Contender, Contest, by_reference
from dualmech.crosscheck.judging import covariance_of_strategy, judge
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution

SIZES = (32, 256, 1024)

TOLERANCE = 1e-6  # gap that is asked of the fast layer, and to which the bound is known

MOST_STEPS = 1000  # of a peer that is not to end by its own rule


class Ended(Enum):
    """What can be said of a peer's run: that it ended."""

    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A peer's strategy as the judge sees it."""

    objective: float
    gap: float
    iterations: int
    status: Ended = Ended.ENDED


@cache
def _bound(cells: int) -> Solution:
    """Return what is proven, once: it is no part of what is measured."""
    return fast.solve(_problem(cells), tol=TOLERANCE)


@cache
def _problem(cells: int) -> TotalVariance:
    return TotalVariance(workloads.prefix(cells), geometry="dense")


def _jax_privacy(problem: TotalVariance, most: int | None = None) -> PeerAnswer:
    """Optimise a strategy by jax_privacy in 64 bits, to the end of its own rule, or for so many steps."""
    import jax
    from jax_privacy.matrix_factorization import dense

    jax.config.update("jax_enable_x64", True)
    steps = 0

    def counted(step: Any) -> Any:
        nonlocal steps
        steps += 1
        return dense.pg_tol_termination_fn(step) if most is None else steps >= most

    cells = problem.workload.shape[1]
    strategy = np.asarray(dense.optimize(cells, callback=counted), dtype=np.float64)
    verdict = judge(problem, covariance_of_strategy(problem, strategy), bound=_bound(cells)).scaled
    return PeerAnswer(verdict.objective, verdict.gap, steps)


def _missing(module: str) -> str:
    return "" if find_spec(module) else f"{module} is not installed"


CONTEST = Contest(
    "total variance of prefixes",
    SIZES,
    _problem,
    (
        Contender("fast layer", partial(fast.solve, tol=TOLERANCE)),
        Contender("jax_privacy", _jax_privacy, missing=_missing("jax_privacy")),
        Contender(
            f"jax_privacy, {MOST_STEPS} steps",
            partial(_jax_privacy, most=MOST_STEPS),
            largest=256,
            skipped="d = 1024 takes it minutes",
            missing=_missing("jax_privacy"),
        ),
        Contender(
            "CVXPY, Clarabel",
            partial(by_reference, backend="CLARABEL"),
            largest=32,
            skipped="d = 64 takes it minutes",
        ),
        Contender("CVXPY, SCS", partial(by_reference, backend="SCS"), largest=32, skipped="likewise"),
    ),
    repeats=3,
)
"""Of peers the strategy is judged, which is part of their seconds; steps are as each counts them."""
