"""From a problem on a geometry to the bare arrays that the engine needs, and back: one module per geometry."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import interior_point, loop
from dualmech.fast.reductions import blocks, dense, stream
from dualmech.geometry.epoch_stream import EpochStream
from dualmech.geometry.orbits import check_orbits
from dualmech.problems.base import share_of
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.splitting import LOOSE, MARGIN, best_split
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Status
from dualmech.solution import Solution, combine_factors, judged_solution, retold
from dualmech.validate import Array, Matrix

# Product workloads: each factor by its own solver, to a share of the tolerance.


def solve_product(problem: FitnessForUse | TotalVariance, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Solve the problem to a proven gap, each different factor once.

    The limit on steps holds for each factor, the time limit for all together.
    """
    began, known, factors = time.perf_counter(), {}, problem.factors
    for factor in factors:
        if factor in known:
            continue
        factor_limits = replace(limits, tol=share_of(problem, limits.tol))
        known[factor] = solve_on_geometry(factor, factor_limits, method=method)
    answers = [known[factor] for factor in factors]
    answer = combine_factors(problem, answers, type(answers[0].dual), limits.tol)
    return retold(answer, seconds=time.perf_counter() - began)


# Split noise: each attribute alone by the ascent of its dual, levels and weights by an interior-point method.


ALONE = 1e-9  # gap to which the noise on one attribute is solved


def solve_split(problem: FitnessForUse | TotalVariance, limits: loop.Limits, *, method: str = "auto") -> Solution:
    """Find noise and weights of product form; see `dualmech.fast.solve`.

    The gap that product forms leave is not closed: ask for a few percent, or use the interval.
    """
    validate.choice(("auto",), method=method)
    began = time.perf_counter()

    def solve_levels(costs: Array, sensitivities: Matrix) -> tuple[Array, Array, int]:
        program = interior_point.WeightingProgram.of(costs, sensitivities.tocsr(), 1)
        outcome = interior_point.minimise(program, replace(limits, tol=min(MARGIN * limits.tol, ALONE)), 1.0)
        weights = np.maximum(outcome.best_dual.dual, 0.0)
        return outcome.best_primal.answer * program.units, weights / weights.sum(), outcome.iterations

    alone = replace(limits, tol=ALONE)
    point, dual, steps = best_split(
        problem, limits.tol, lambda part: dense.ascend_dense(part, alone), solve_levels, lambda: limits.deadline.passed
    )
    return judged_solution(
        problem,
        point,
        dual,
        tol=limits.tol,
        otherwise=Status.STEPS_EXHAUSTED if limits.deadline.passed else Status.STALLED,
        message=LOOSE,
        iterations=steps,
        seconds=time.perf_counter() - began,
        solver="fast:products",
    )


def solve_on_geometry(problem: FitnessForUse | TotalVariance, limits: loop.Limits, **options: Any) -> Solution:
    """Solve fitness for use or total variance on its geometry to a proven gap.

    Raises `InvalidInputError` for an option that the geometry has no use for.
    """
    geometry = problem.geometry
    named = {name: value for name, value in options.items() if value is not None or name == "method"}
    if "orbits" in named:
        check_orbits(geometry, named["orbits"])
        if geometry.name == "stream":
            return dense.ascend_dense(problem.on_matrix(), limits, **named)
    if "start" in named and geometry.name in BEGIN_ANEW:
        raise InvalidInputError(f"start is not for geometry {geometry.name!r}, whose solver begins anew")
    return SOLVERS[geometry.name](problem, limits, **named)


def _epochs(problem: FitnessForUse | TotalVariance, limits: loop.Limits, **options: Any) -> Solution:
    # Most problems are of one record, and begin sooner without.
    from dualmech.fast.reductions import epoch_stream, epochs

    long = isinstance(problem.geometry, EpochStream)
    return (epoch_stream.ascend_drawn_out if long else epochs.ascend_epochs)(problem, limits, **options)


SOLVERS = {
    "dense": dense.ascend_dense,
    "epochs": _epochs,
    "blocks": blocks.ascend_blocks,
    "product": solve_product,
    "split": solve_split,
    "stream": stream.ascend_stream,
}

BEGIN_ANEW = ("product", "split")
"""Geometries whose solvers take no start."""
