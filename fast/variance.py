"""Total variance: the dual of the matrix mechanism, with a weight on every neighbour and the queries' given.

It is the dual of fitness for use with the weights of the queries held fast: maximise
``F(λ) = ‖diag(√w) W U diag(√λ)‖_*`` over ``Σ λ_i = 1``. Only the Gram matrix of the queries matters, so however
many they are, a step costs what the rank of the workload says; and the fixed point ``λ_i ∝ gain_i λ_i`` starts
from the singular value bound, which is F² at the uniform λ.
"""

from __future__ import annotations

from typing import Any

from dualmech.fast import reductions
from dualmech.fast.engine import loop
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution


def solve(
    problem: TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
    orbits: Any = None,
) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    return reductions.solve(problem.geometry, problem, limits, method=method, start=start, orbits=orbits)
