"""Marginal tables: the interior-point method on the noise of residual subspaces, at any size of the domain.

The problem is that of query weighting, with a residual subspace for every design query and a table for every
neighbour: minimise ``Σ_T mult_T / τ_T`` subject to ``N'τ ≤ 1``. N is sparse, an entry for every subset of a table's
attributes. The subspaces of most attributes lie under one table each, so that Newton's equations come down to the
others, a few hundred where the tables are tens of thousands.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import interior_point, loop, threads
from dualmech.problems.marginals import MarginalDual, MarginalFitness, MarginalVariance
from dualmech.solution import Callback, Solution, Status, judged, warned

METHODS = ("auto", "newton")

MARGIN = 0.1
"""Share of the tolerance that the solver aims at; the rest is for the judge's own rounding."""


def solve(
    problem: MarginalFitness,
    *,
    tol: float = 1e-6,
    method: str = "auto",
    max_iterations: int = 1000,
    time_limit: float | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    limits = loop.Limits.checked(tol, max_iterations, time_limit, callback)
    validate.choice(METHODS, method=method)
    began = time.perf_counter()
    with threads.suited_to(len(problem.targets)), np.errstate(all="ignore"):
        program = interior_point.Program.of(problem.workload.lattice.dimensions, problem.sensitivities, 1)
        outcome = interior_point.minimise(program, limits, MARGIN * tol)
    answer = judged(
        problem,
        problem.feasible(outcome.primal.answer * program.units),
        MarginalDual(outcome.dual.dual / problem.targets / outcome.dual.dual.sum()),
        tol=limits.tol,
        otherwise=outcome.reason or Status.STALLED,
        iterations=outcome.iterations,
        seconds=time.perf_counter() - began,
        solver=f"fast:{method}",
        history=outcome.history,
    )
    return warned(answer, stacklevel=4)


def solve_variance(problem: MarginalVariance, *, tol: float = 1e-6, **options: Any) -> Solution:
    """Return the closed form, judged; see `dualmech.fast.solve`."""
    unknown = options.keys() - {"method", "max_iterations", "time_limit", "callback"}
    if unknown:
        raise InvalidInputError(f"options of a closed form do not include {sorted(unknown)[0]!r}")
    began = time.perf_counter()
    limits = loop.Limits.checked(tol, 1, None, None)
    answer = judged(
        problem,
        problem.optimum,
        None,
        tol=limits.tol,
        otherwise=Status.ROUNDING,
        message="closed form",
        seconds=time.perf_counter() - began,
        solver="fast:closed_form",
    )
    return warned(answer, stacklevel=4)
