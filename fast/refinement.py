"""The refined privacy ordering: every stage by Newton's method on its dual, as far as doubles reach.

A stage is fitness for use with offsets, smaller with each stage (`dualmech.problems.refinement`). The method of
`dualmech.fast.engine.newton` takes it to a gap near 1e-13, far below any requested tolerance, because the next stage
inherits the rest of the gap.
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

STAGE_GAP = 1e-13  # gap to which a stage is solved, in doubles about the least that can be asked

MOST_STEPS, PATIENCE = 400, 100
"""Decompositions that a stage may take, and steps without a smaller gap: far along the path the weights still
improve while the covariance waits for a step that ends in its middle."""

LIMITS = loop.Limits(STAGE_GAP, MOST_STEPS)  # of a stage whose run has no limits of its own


@blas_threads()
def refine(
    problem: FitnessForUse | PrivacyFirst,
    *,
    tol: float = 1e-9,
    time_limit: float | None = None,
    callback: Callback | None = None,
    verbose: bool = False,
) -> Refinement:
    """Return the one optimal covariance that is least in the refined privacy ordering.

    Among all optimal covariances, the one whose privacy profile, sorted in decreasing order, comes first in
    dictionary order: no neighbour pays more than it must, and later queries can spend the rest.
    Raises `InvalidInputError` or `InputTypeError` for another problem, or a tolerance that is not positive.
    Returns `Refinement`: with the covariance, its profile, and a certified `Solution` for every stage.

    - `problem`: the problem to refine;
    - `tol`: gap to prove in every stage;
    - `time_limit`: seconds after which the run returns its covariance so far, the current stage unproven;
    - `callback`: receives a `Progress` after each step of each stage;
    - `verbose`: whether to show the news in a line on standard error.

    Examples
    --------
    Two cells that share a query, and one that is alone with a loose target:

    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> problem = dm.FitnessForUse(dm.Workload([[1, 0, 0], [1, 1, 0], [0, 0, 1]]), targets=[1, 1, 4])
    >>> answer = fast.refine(problem)
    >>> answer.profile.round(6), len(answer.stages), answer.certified
    (array([1.333333, 1.333333, 0.25    ]), 2, True)
    """
    geometry, limits = (accuracy_first(problem).geometry, loop.Limits.validated(tol, MOST_STEPS, time_limit, callback))
    with verbosely(verbose, "refinement", callback) as tell, np.errstate(all="ignore"):
        reduction = Reduction.of(geometry, problem.targets)
        directions = np.eye(geometry.rank) if reduction.lift is None else reduction.lift
        within = replace(limits, tol=STAGE_GAP, callback=tell)
        return refine_by_stages(
            problem,
            directions,
            partial(solve_stage, limits=within),
            tol=limits.tol,
            solver="fast:refine",
            deadline=limits.deadline,
        )


def solve_stage(stage: RefinementStage, limits: loop.Limits = LIMITS) -> tuple[Array, FitnessDual, int]:
    """Return an optimal M of a stage, the weights that prove it, and the decompositions it took."""
    queries = stage.rows[stage.queries] / np.sqrt(stage.slack[stage.queries])[:, None]
    moves = np.ascontiguousarray(stage.moves[:, stage.neighbours])
    program = DenseDual(queries, moves, offsets=stage.costs[stage.neighbours])
    outcome = _run(program, limits, careful=False)
    if outcome.reason is not None and not limits.deadline.passed:
        outcome = min(outcome, _run(program, limits, careful=True), key=lambda trial: trial.history[-1].gap)
    spectrum, weights = outcome.best_primal.point, outcome.best_dual.point.weights
    count = len(stage.neighbours)
    dual = stage.spread(weights[:count] / weights[:count].sum(), weights[count:] / weights[count:].sum())
    return spectrum.covariance() / spectrum.constraint_values[count:].max(), dual, outcome.iterations


def _run(program: DenseDual, limits: loop.Limits, careful: bool) -> loop.Outcome[Ascent[newton.NewtonState]]:
    def step(state: Ascent[newton.NewtonState]) -> Ascent[newton.NewtonState]:
        return state.after(newton.step(program, state.stage, STAGE_GAP, careful))

    begin = newton.start(_uniform_spectrum(program))
    return loop.run(Ascent(begin, begin.decompositions), step, limits, margin=1.0, patience=PATIENCE)


def _uniform_spectrum(program: DenseDual) -> Spectrum:
    """Evaluate uniform weights, μ scaled to where its dual value is largest along the ray."""
    neighbours, queries, _ = program.sizes
    first, last = np.full(neighbours, 1 / neighbours), np.full(queries, 1 / queries)
    dual_value = program.at(np.concatenate([first, last])).dual_value
    return program.at(np.concatenate([first, last * dual_value**2]))
