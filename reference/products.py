"""Products of workloads: each factor through CVXPY, by the same backend, to a share of the tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dualmech.problems.base import share_of
from dualmech.progress import Deadline
from dualmech.reference.engine.backends import SHORTEST
from dualmech.solution import Solution, combine_factors


def solve(
    problem: Any,
    solver: Callable[..., Solution],
    *,
    tol: float | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> Solution:
    """Solve the problem; see `dualmech.reference.solve`. `solver` is that of the factors, which share the time."""
    deadline = Deadline.of(time_limit)
    share, known, factors = None if tol is None else share_of(problem, tol), {}, problem.factors
    for factor in factors:
        if factor not in known:
            left = None if deadline.left is None else max(deadline.left, SHORTEST)
            known[factor] = solver(factor, tol=share, time_limit=left, **options)
    answers = [known[factor] for factor in factors]
    asked = math.expm1(math.fsum(math.log1p(answer.tol) for answer in answers))
    return combine_factors(problem, answers, type(answers[0].dual), asked)
