"""Product workloads: each factor through CVXPY, by the same backend, to a share of the tolerance."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from dualmech.errors import UncertifiedWarning
from dualmech.geometry.product import ProductProblem
from dualmech.solution import Solution, warned


def solve(
    problem: ProductProblem, solver: Callable[..., Solution], *, tol: float | None = None, **options: Any
) -> Solution:
    """Solve the problem; see `dualmech.reference.solve`, which is the `solver` of the factors."""
    share = None if tol is None else problem.share(tol)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)  # the product warns for all
        answers = [solver(factor, tol=share, **options) for factor in problem.factors]
    asked = math.expm1(math.fsum(math.log1p(answer.tol) for answer in answers))
    return warned(problem.combine(answers, asked), stacklevel=4)
