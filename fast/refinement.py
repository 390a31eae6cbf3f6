"""The refined privacy ordering: every stage by Newton's method on its dual, to the limit of double precision.

A stage is fitness for use with offsets; stages become smaller (`dualmech.problems.refinement`).
`dualmech.fast.engine.newton` solves it to a gap near 1e-13, far below the requested tolerance, because the next stage
inherits the remaining gap.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from dualmech.fast.engine import loop, newton
from dualmech.fast.engine.ascent import Ascent
from dualmech.fast.engine.dual_function import DenseDual
from dualmech.fast.engine.spectrum import Spectrum
from dualmech.fast.reductions.dense import Reduction
from dualmech.geometry.weights import FitnessDual
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.refinement import Refinement, RefinementStage, accuracy_first
from dualmech.problems.refinement import refine as refine_by_stages
from dualmech.progress import Callback
from dualmech.threads import blas_threads
from dualmech.validate import Array
from dualmech.watching import verbosely

STAGE_GAP = 1e-13  # of a stage; near the limit of double precision

MAX_STEPS, MAX_STALLED_STEPS = 400, 100
"""Limits on the decompositions of a stage, and on steps without a smaller gap. Late in a run the weights still
improve while no covariance improves, until a step ends near the central path."""

DEFAULT_LIMITS = loop.Limits(STAGE_GAP, MAX_STEPS)


@blas_threads()
def refine(
    problem: FitnessForUse | PrivacyFirst,
    *,
    tol: float = 1e-9,
    time_limit: float | None = None,
    callback: Callback | None = None,
    verbose: bool = False,
) -> Refinement:
    """Return the optimal covariance that is minimal in the refined privacy ordering.

    Among all optimal covariances, it is the one whose privacy profile, sorted in decreasing order, comes first in
    lexicographic order: later queries can use the remaining privacy budget of each neighbour. Returns a `Refinement`
    with the covariance, its profile, and a certified `Solution` for every stage. Raises `InvalidInputError` or
    `InputTypeError` for another problem, or a tolerance that is not positive.

    - `problem`: the problem to refine;
    - `tol`: gap to prove in every stage;
    - `time_limit`: seconds after which the run returns its current covariance, with the current stage unproven;
    - `callback`: receives a `Progress` after each step of each stage;
    - `verbose`: whether to show the progress in a line on standard error.

    Examples
    --------
    Two cells with a common query, and a third cell with a loose target:

    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> problem = dm.FitnessForUse(dm.Workload([[1, 0, 0], [1, 1, 0], [0, 0, 1]]), targets=[1, 1, 4])
    >>> answer = fast.refine(problem)
    >>> answer.profile.round(6), len(answer.stages), answer.certified
    (array([1.333333, 1.333333, 0.25    ]), 2, True)
    """
    geometry, limits = (accuracy_first(problem).geometry, loop.Limits.validated(tol, MAX_STEPS, time_limit, callback))
    with verbosely(verbose, "refinement", callback) as report, np.errstate(all="ignore"):
        reduction = Reduction.of(geometry, problem.targets)
        directions = np.eye(geometry.rank) if reduction.lift is None else reduction.lift
        stage_limits = replace(limits, tol=STAGE_GAP, callback=report)
        return refine_by_stages(
            problem,
            directions,
            partial(solve_stage, limits=stage_limits),
            tol=limits.tol,
            solver="fast:refine",
            deadline=limits.deadline,
        )


def solve_stage(stage: RefinementStage, limits: loop.Limits = DEFAULT_LIMITS) -> tuple[Array, FitnessDual, int]:
    """Return an optimal M of a stage, the dual weights that prove it, and the number of decompositions."""
    queries = stage.rows[stage.queries] / np.sqrt(stage.slack[stage.queries])[:, None]
    moves = np.ascontiguousarray(stage.moves[:, stage.neighbours])
    program = DenseDual(queries, moves, offsets=stage.costs[stage.neighbours])
    outcome = _run(program, limits, careful=False)
    if outcome.reason is not None and not limits.deadline.passed:
        outcome = min(outcome, _run(program, limits, careful=True), key=lambda trial: trial.history[-1].gap)
    spectrum, weights = outcome.best_primal.point, outcome.best_dual.point.weights
    num_neighbours = len(stage.neighbours)
    dual = stage.spread(
        weights[:num_neighbours] / weights[:num_neighbours].sum(),
        weights[num_neighbours:] / weights[num_neighbours:].sum(),
    )
    return spectrum.covariance() / spectrum.constraint_values[num_neighbours:].max(), dual, outcome.iterations


def _run(program: DenseDual, limits: loop.Limits, careful: bool) -> loop.Outcome[Ascent[newton.NewtonState]]:
    def step(state: Ascent[newton.NewtonState]) -> Ascent[newton.NewtonState]:
        return state.after(newton.step(program, state.stage, STAGE_GAP, careful))

    start = newton.start(_uniform_spectrum(program))
    return loop.run(Ascent(start, start.decompositions), step, limits, margin=1.0, patience=MAX_STALLED_STEPS)


def _uniform_spectrum(program: DenseDual) -> Spectrum:
    """Evaluate uniform weights, with μ scaled to maximise the dual value along the ray."""
    neighbours, queries, _ = program.sizes
    neighbour_weights, query_weights = np.full(neighbours, 1 / neighbours), np.full(queries, 1 / queries)
    dual_value = program.at(np.concatenate([neighbour_weights, query_weights])).dual_value
    return program.at(np.concatenate([neighbour_weights, query_weights * dual_value**2]))
