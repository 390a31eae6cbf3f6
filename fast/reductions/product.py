"""Product workloads: each factor by its own solver, to a share of the tolerance."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dualmech.errors import UncertifiedWarning
from dualmech.fast.engine import loop
from dualmech.geometry.product import ProductProblem
from dualmech.solution import Callback, Solution, warned


def solve(
    problem: ProductProblem,
    solver: Callable[..., Solution],
    *,
    tol: float = 1e-6,
    method: str = "auto",
    max_iterations: int = 1000,
    time_limit: float | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`, which is the `solver` of the factors.

    Steps are allowed to each factor; the time limit holds for all. A factor that comes twice is solved once.
    """
    limits = loop.Limits.checked(tol, max_iterations, time_limit, callback)
    began, known = time.perf_counter(), {}
    options: dict[str, Any] = {"method": method, "max_iterations": max_iterations, "callback": callback}
    for factor in problem.factors:
        if id(factor) in known:
            continue
        if time_limit is not None:
            options["time_limit"] = max(time_limit - (time.perf_counter() - began), 1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncertifiedWarning)  # the product warns for all
            known[id(factor)] = solver(factor, tol=problem.share(limits.tol), **options)
    answer = problem.combine([known[id(factor)] for factor in problem.factors], limits.tol)
    return warned(replace(answer, seconds=time.perf_counter() - began), stacklevel=4)
