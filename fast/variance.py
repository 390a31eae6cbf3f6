"""Total variance: the dual of the matrix mechanism, with a weight on every neighbour and the queries' given.

It is the dual of fitness for use with the weights of the queries held fast: maximise
``F(λ) = ‖diag(√w) W U diag(√λ)‖_*`` over ``Σ λ_i = 1``. Only the Gram matrix of the queries matters, so however
many they are, a step costs what the rank of the workload says; and the fixed point ``λ_i ∝ gain_i λ_i`` starts
from the singular value bound, which is F² at the uniform λ.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from dualmech.fast.engine import ascent
from dualmech.fast.reductions import orbits as tied
from dualmech.fast.reductions.dense import Reduction
from dualmech.geometry.orbits import Orbits
from dualmech.problems.variance import TotalVariance, VarianceDual
from dualmech.solution import Solution, warned
from dualmech.validate import Array


def solve(problem: TotalVariance, *, orbits: Any = None, **options: Any) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    task = _task if orbits is None else partial(_tied_task, orbits=orbits)
    return warned(ascent.solve(problem, task, **options), stacklevel=4)


def _tied_task(problem: TotalVariance, orbits: Any) -> ascent.Task:
    return tied.tied(_task(problem), Orbits.of(problem, orbits))


def _task(problem: TotalVariance) -> ascent.Task:
    reduction = Reduction.of_sum(problem.geometry, problem.weights[problem.asked])

    def dual(weights: Array) -> VarianceDual:
        return VarianceDual(reduction.spread_neighbours(weights))

    def gather(known: Any) -> Array | None:
        if not isinstance(known, VarianceDual) or len(known.neighbour_weights) != reduction.shape[0]:
            return None
        return known.neighbour_weights[reduction.neighbours]

    return ascent.Task(problem, reduction, dual, gather)
