"""Split noise: each attribute separately by the ascent of its dual, levels and weights by an interior-point method."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from dualmech import validate
from dualmech.fast.engine import interior_point, loop
from dualmech.fast.reductions import dense
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.splitting import LOOSE, MARGIN, best_split
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array, Matrix

ATTRIBUTE_TOL = 1e-9  # gap for the noise on one attribute


def solve_split(problem: FitnessForUse | TotalVariance, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Find noise and weights of product form; see `dualmech.fast.solve`.

    Product forms leave a positive gap: use a tolerance of a few percent, or the interval.
    """
    validate.choice(("auto",), method=method)
    start_time = time.perf_counter()

    def solve_levels(costs: Array, sensitivities: Matrix) -> tuple[Array, Array, int]:
        program = interior_point.WeightingProgram.of(costs, sensitivities.tocsr(), 1)
        outcome = interior_point.minimise(program, replace(limits, tol=min(MARGIN * limits.tol, ATTRIBUTE_TOL)), 1.0)
        weights = np.maximum(outcome.best_dual.dual, 0.0)
        return outcome.best_primal.answer * program.units, weights / weights.sum(), outcome.iterations

    attribute_limits = replace(limits, tol=ATTRIBUTE_TOL)
    point, dual, steps = best_split(
        problem,
        limits.tol,
        lambda part: dense.ascend_dense(part, attribute_limits),
        solve_levels,
        lambda: limits.deadline.passed,
    )
    return judged_solution(
        problem,
        point,
        dual,
        tol=limits.tol,
        otherwise=Status.STEPS_EXHAUSTED if limits.deadline.passed else Status.STALLED,
        message=LOOSE,
        iterations=steps,
        seconds=time.perf_counter() - start_time,
        solver="fast:products",
    )
