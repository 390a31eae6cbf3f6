"""Product workloads: each factor separately, to a fraction of the tolerance."""

from __future__ import annotations

import time
from dataclasses import replace

from dualmech.fast.engine import loop
from dualmech.fast.fitness import solve_on_geometry
from dualmech.problems.base import share_of
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution, combine_factors, retold


def solve_product(problem: FitnessForUse | TotalVariance, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap, with one run for each distinct factor.

    The limit on steps is for each factor, the time limit for all factors together.
    """
    start_time, solutions, factors = time.perf_counter(), {}, problem.factors
    for factor in factors:
        if factor in solutions:
            continue
        factor_limits = replace(limits, tol=share_of(problem, limits.tol))
        solutions[factor] = solve_on_geometry(factor, factor_limits, method=method)
    answers = [solutions[factor] for factor in factors]
    answer = combine_factors(problem, answers, type(answers[0].dual), limits.tol)
    return retold(answer, seconds=time.perf_counter() - start_time)
