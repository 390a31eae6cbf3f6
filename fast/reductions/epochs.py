"""Several epochs: reduction of a problem on phases to the arrays of `fast.engine.phases`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import apart, loop, phases
from dualmech.fast.engine.apart import WalkProgram, WalkState
from dualmech.fast.engine.classes import Bands
from dualmech.fast.engine.phases import PhaseProgram, PhaseWeights
from dualmech.fast.reductions import dense
from dualmech.fast.reductions.classes import best_mechanism
from dualmech.geometry.apart import as_signs
from dualmech.geometry.epoch_stream import MAX_UNKNOWNS
from dualmech.geometry.epochs import Epochs
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.problems.base import dual_of
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Status
from dualmech.solution import Solution, retold
from dualmech.validate import Array

METHODS = ("auto", "newton")

INTERVAL_MESSAGE = (
    "No optimum is known for participations with a minimum separation: noise and bound are the best that were found."
)

SIGNS_MESSAGE = (
    "Dual weights for signs are means over the signs of normal variables, which leaves a gap; geometry 'dense' takes a "
    "column for each choice of signs, and closes the gap if they are few."
)

MAX_WALK_WEIGHTS = 2**27
"""Maximum number of weights of walks (participations times the square of steps) for a minimum separation."""

MAX_STALLED_STEPS = 80  # the ascent for a minimum separation ends after this number of steps without a smaller gap

MIXING = 1e-3  # fraction of uniform weights mixed into the weights of an earlier solution


def ascend_epochs(
    problem: FitnessForUse | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
) -> Solution:
    """Ascend the dual of a problem with several participations per user by Newton's method."""
    validate.choice(METHODS, method=method)
    geometry: Epochs = problem.geometry
    if geometry.neighbours.at_least:
        return _ascend_walks(problem, limits, method, start)
    check_size(geometry, 0 if problem.sums_variances else geometry.workload.shape[0])
    # The steps, sorted by phase.
    order: Any = geometry.phases[geometry.phases >= 0]
    query_indices = np.flatnonzero(geometry.workload.row_norms() > 0)
    with np.errstate(all="ignore"):
        rows, unit = _rows(problem, order, query_indices)
        program = PhaseProgram(rows, geometry.phases >= 0, problem.sums_variances)
        limits = replace(limits, unit=limits.unit * unit)
        outcome = loop.run(
            phases.start(program, None if start is None else _start_weights(start, problem, program, query_indices)),
            partial(phases.step, tol=loop.MARGIN * limits.tol),
            limits,
        )
        best, weights = outcome.best_primal, outcome.best_dual.point.weights
        covariance = np.empty_like(best.covariance)
        covariance[np.ix_(order, order)] = best.covariance
        basis = geometry.basis
        primal = problem.feasible(basis @ covariance @ basis.T)
        answer = outcome.solution(problem, primal, _phase_dual(problem, weights, query_indices), limits)
    message = answer.message
    if answer.status is Status.STALLED:
        message = SIGNS_MESSAGE if geometry.neighbours.parts == "signs" else message
    return retold(answer, solver=f"fast:{method}", message=message)


def _ascend_walks(
    problem: FitnessForUse | TotalVariance, limits: loop.Limits, method: str, start: Solution | None
) -> Solution:
    geometry: Epochs = problem.geometry
    rule, steps = geometry.neighbours, geometry.workload.shape[1]
    if start is not None:
        raise InvalidInputError(f"start is not supported for neighbours ({rule}): solve without it")
    if (size := min(rule.times, -(-steps // rule.separation)) * steps**2) > MAX_WALK_WEIGHTS:
        raise InvalidInputError(
            f"problem has {size} weights of walks (limit {MAX_WALK_WEIGHTS}): participations times the square of steps"
        )
    query_indices = np.flatnonzero(geometry.workload.row_norms() > 0)
    rows, unit = _rows(problem, np.arange(steps), query_indices)
    program = WalkProgram(rows, rule.times, rule.separation, rule.parts, problem.sums_variances)
    with np.errstate(all="ignore"):
        objective, primal, strategy = _best_known_noise(problem, limits)
        limits = replace(limits, unit=limits.unit * unit)
        start_state = WalkState(program.at(program.begin(strategy)), objective / unit)
        outcome = loop.run(start_state, apart.step, limits, patience=MAX_STALLED_STEPS)
    point = outcome.best_dual.point
    answer = outcome.solution(problem, primal, _dual(problem, point.dual, point.query_weights, query_indices), limits)
    message = INTERVAL_MESSAGE if answer.status is Status.STALLED else answer.message
    return retold(answer, solver=f"fast:{method}", message=message)


def _best_known_noise(problem: FitnessForUse | TotalVariance, limits: loop.Limits) -> tuple[float, Array, Array]:
    """Return the objective and the covariance of the best known noise, and the best banded strategy.

    The candidates are the best banded strategy and the optimal noise for a single record, which is good if users have
    far fewer participations than the steps allow.
    """
    geometry: Epochs = problem.geometry
    rule, steps = geometry.neighbours, geometry.workload.shape[1]
    bands = Bands(steps, min(rule.separation, steps), rule, equal=False)
    _, banded = best_mechanism(problem, bands, rule, limits.deadline)
    single_record = dense.ascend_dense(problem.for_one_record(), replace(limits, callback=None))
    candidates = []
    for point in (problem.as_primal(banded), single_record.primal):
        covariance = problem.feasible(point)
        forms = geometry.forms(covariance)
        if forms is not None:
            objective = forms.total(problem.row_weights)[0] if problem.sums_variances else forms.cost
            candidates.append((objective, covariance))
    objective, primal = min(candidates, key=lambda candidate: candidate[0])
    return objective, primal, banded.matrix


def check_size(geometry: Epochs, queries: int) -> None:
    """Raise `InvalidInputError` for a problem with too many unknowns for a Hessian."""
    count, times = geometry.phases.shape
    per_step = 1 + times * (times - 1) // 2
    if (unknowns := count * per_step + queries) > MAX_UNKNOWNS:
        max_steps = max(MAX_UNKNOWNS - queries, 0) // per_step * times
        raise InvalidInputError(
            f"problem has {unknowns} masses, correlations and weights of queries (limit {MAX_UNKNOWNS}): with "
            f"{times} epochs and {queries} query weights, at most {max_steps} steps are supported"
        )


def _rows(problem: FitnessForUse | TotalVariance, order: Any, query_indices: Any) -> tuple[Array, float]:
    """Return query rows over their targets, or times the roots of their weights, and the unit of the objective.

    Rows with fixed weights are reduced to at most the number of steps.
    """
    factors = np.sqrt(problem.row_weights[query_indices])
    rows = problem.geometry.workload.dense()[np.ix_(query_indices, order)] * factors[:, None]
    largest = float(np.abs(rows).max())
    rows = rows / largest
    if problem.sums_variances and len(rows) > rows.shape[1]:
        rows = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
    return np.asarray(rows), largest**2


def _phase_dual(
    problem: FitnessForUse | TotalVariance, weights: PhaseWeights, query_indices: Any
) -> FitnessDual | VarianceDual:
    """Return dual weights of the problem; for signs, the matrices G with ``R = (2/π) arcsin(G)``."""
    geometry: Epochs = problem.geometry
    present = geometry.phases >= 0
    blocks = weights.blocks / weights.masses().sum() * (present[:, :, None] & present[:, None, :])
    if geometry.neighbours.parts == "signs":
        blocks = as_signs(blocks)
    return _dual(problem, blocks, weights.queries, query_indices)


def _dual(
    problem: FitnessForUse | TotalVariance, neighbour_weights: Array, query_weights: Array, query_indices: Any
) -> FitnessDual | VarianceDual:
    all_query_weights = np.zeros(problem.geometry.workload.shape[0])
    if not problem.sums_variances:
        all_query_weights[query_indices] = query_weights / query_weights.sum()
    return dual_of(problem, neighbour_weights, all_query_weights)


def _start_weights(
    start: Solution, problem: FitnessForUse | TotalVariance, program: PhaseProgram, query_indices: Any
) -> PhaseWeights:
    uniform = program.first_weights()
    dual: Any = getattr(start, "dual", None)
    blocks: Any = getattr(dual, "neighbour_weights", None)
    queries: Any = getattr(dual, "query_weights", None)
    query_count = problem.geometry.workload.shape[0]
    if np.shape(blocks) != uniform.blocks.shape or (not program.fixed and np.shape(queries) != (query_count,)):
        raise InvalidInputError(
            f"start must be a solution over {uniform.blocks.shape[0]} phases of {uniform.blocks.shape[1]} steps"
        )
    correlations = np.array(blocks)
    if problem.geometry.neighbours.parts == "signs":
        masses = np.einsum("pii->pi", correlations).max(axis=1)[:, None, None]
        correlations = (
            masses * 2 / np.pi * np.arcsin(np.clip(correlations / np.where(masses > 0, masses, 1.0), -1.0, 1.0))
        )
    diagonal = np.arange(correlations.shape[1])
    correlations[:, diagonal, diagonal] = correlations[:, diagonal, diagonal].max(axis=1, keepdims=True)
    mixed_blocks = (1 - MIXING) * correlations / correlations[:, 0, 0].sum() + MIXING * uniform.blocks
    if problem.sums_variances:
        return PhaseWeights(mixed_blocks, uniform.queries)
    scaled = queries[query_indices] * problem.row_targets[query_indices]
    return PhaseWeights(mixed_blocks, (1 - MIXING) * scaled / scaled.sum() + MIXING * uniform.queries)
