"""Several epochs: from a problem on its phases to the bare arrays of `fast.engine.phases`, and back."""

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
from dualmech.geometry.epoch_stream import MOST_UNKNOWNS
from dualmech.geometry.epochs import Epochs
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.problems.base import dual_of
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Status
from dualmech.solution import Solution, retold
from dualmech.validate import Array

METHODS = ("auto", "newton")

AN_INTERVAL = (
    "No optimum is known for persons whose parts are at least so far apart: "
    "noise and bound are the best that were found."
)

OF_SIGNS = (
    "Weights for signs are means over the signs of normal numbers, which leaves an interval; geometry 'dense' takes a "
    "column for each choice of signs, and closes it where they are few."
)

MOST_WAYS = 2**27
"""Weights of ways from step to step, by number of parts, up to which the bound for persons so far apart is ascended."""

PATIENCE = 80  # steps without a smaller gap after which the ascent for persons so far apart ends

RAISED = 1e-3  # share of the first weights in those of an earlier solution


def ascend_epochs(
    problem: FitnessForUse | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
) -> Solution:
    """Ascend the dual of a problem whose persons take part in several steps, by Newton's method."""
    validate.choice(METHODS, method=method)
    geometry: Epochs = problem.geometry
    if geometry.neighbours.at_least:
        return _ascend_apart(problem, limits, method, start)
    check_size(geometry, 0 if problem.sums_variances else geometry.workload.shape[0])
    # The steps, phase by phase.
    order: Any = geometry.phases[geometry.phases >= 0]
    kept = np.flatnonzero(geometry.workload.row_norms() > 0)
    with np.errstate(all="ignore"):
        rows, unit = _rows(problem, order, kept)
        program = PhaseProgram(rows, geometry.phases >= 0, problem.sums_variances)
        limits = replace(limits, unit=limits.unit * unit)
        outcome = loop.run(
            phases.start(program, None if start is None else _earlier(start, problem, program, kept)),
            partial(phases.step, tol=loop.MARGIN * limits.tol),
            limits,
        )
        best, weights = outcome.best_primal, outcome.best_dual.point.weights
        covariance = np.empty_like(best.covariance)
        covariance[np.ix_(order, order)] = best.covariance
        basis = geometry.basis
        primal = problem.feasible(basis @ covariance @ basis.T)
        answer = outcome.solution(problem, primal, _phase_dual(problem, weights, kept), limits)
    message = answer.message
    if answer.status is Status.STALLED:
        message = OF_SIGNS if geometry.neighbours.parts == "signs" else message
    return retold(answer, solver=f"fast:{method}", message=message)


def _ascend_apart(
    problem: FitnessForUse | TotalVariance, limits: loop.Limits, method: str, start: Solution | None
) -> Solution:
    """Return the best noise that is known, and ascend the bound by L-BFGS."""
    geometry: Epochs = problem.geometry
    rule, steps = geometry.neighbours, geometry.workload.shape[1]
    if start is not None:
        raise InvalidInputError(f"start is not for neighbours ({rule}): the ascent of their bound begins anew")
    if (size := min(rule.times, -(-steps // rule.separation)) * steps**2) > MOST_WAYS:
        raise InvalidInputError(
            f"problem has {size} weights of ways from step to step (limit {MOST_WAYS}): parts times the square of steps"
        )
    kept = np.flatnonzero(geometry.workload.row_norms() > 0)
    rows, unit = _rows(problem, np.arange(steps), kept)
    program = WalkProgram(rows, rule.times, rule.separation, rule.parts, problem.sums_variances)
    with np.errstate(all="ignore"):
        objective, primal, strategy = _noise_apart(problem, limits)
        limits = replace(limits, unit=limits.unit * unit)
        first = WalkState(program.at(program.begin(strategy)), objective / unit)
        outcome = loop.run(first, apart.step, limits, patience=PATIENCE)
    point = outcome.best_dual.point
    answer = outcome.solution(problem, primal, _dual(problem, point.dual, point.query_weights, kept), limits)
    message = AN_INTERVAL if answer.status is Status.STALLED else answer.message
    return retold(answer, solver=f"fast:{method}", message=message)


def _noise_apart(problem: FitnessForUse | TotalVariance, limits: loop.Limits) -> tuple[float, Array, Array]:
    """Return the objective of the better noise, its covariance, and the best strategy of bands.

    Bands cost what they share; far fewer parts than fit cost little more than one record each, so that the best noise
    for one record is the other that is judged.
    """
    geometry: Epochs = problem.geometry
    rule, steps = geometry.neighbours, geometry.workload.shape[1]
    bands = Bands(steps, min(rule.separation, steps), rule, equal=False)
    _, banded = best_mechanism(problem, bands, rule, limits.deadline)
    alone = dense.ascend_dense(problem.for_one_record(), replace(limits, callback=None))
    candidates = []
    for point in (problem.as_primal(banded), alone.primal):
        noise = problem.feasible(point)
        forms = geometry.forms(noise)
        if forms is not None:
            objective = forms.total(problem.row_weights)[0] if problem.sums_variances else forms.cost
            candidates.append((objective, noise))
    objective, primal = min(candidates, key=lambda candidate: candidate[0])
    return objective, primal, banded.matrix


def check_size(geometry: Epochs, queries: int) -> None:
    """Refuse a problem with more unknowns than the Hessian may have; say how many steps fit."""
    count, times = geometry.phases.shape
    per_step = 1 + times * (times - 1) // 2
    if (unknowns := count * per_step + queries) > MOST_UNKNOWNS:
        fitting = max(MOST_UNKNOWNS - queries, 0) // per_step * times
        raise InvalidInputError(
            f"problem has {unknowns} masses, correlations and weights of queries (limit {MOST_UNKNOWNS}): in "
            f"{times} epochs at most {fitting} steps with so many queries"
        )


def _rows(problem: FitnessForUse | TotalVariance, order: Any, kept: Any) -> tuple[Array, float]:
    """Return rows of equal targets, or with the roots of their weights, no more of these than steps, and their unit.

    The unit is the problem's objective that is 1 in the program.
    """
    factors = np.sqrt(problem.row_weights[kept])
    rows = problem.geometry.workload.dense()[np.ix_(kept, order)] * factors[:, None]
    largest = float(np.abs(rows).max())
    rows = rows / largest
    if problem.sums_variances and len(rows) > rows.shape[1]:
        rows = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
    return np.asarray(rows), largest**2


def _phase_dual(problem: FitnessForUse | TotalVariance, weights: PhaseWeights, kept: Any) -> FitnessDual | VarianceDual:
    """Return dual weights of the problem: of signs the matrices G with ``R = (2/π) arcsin(G)``."""
    geometry: Epochs = problem.geometry
    present = geometry.phases >= 0
    blocks = weights.blocks / weights.masses().sum() * (present[:, :, None] & present[:, None, :])
    if geometry.neighbours.parts == "signs":
        blocks = as_signs(blocks)
    return _dual(problem, blocks, weights.queries, kept)


def _dual(
    problem: FitnessForUse | TotalVariance, neighbour_weights: Array, query_weights: Array, kept: Any
) -> FitnessDual | VarianceDual:
    shares = np.zeros(problem.geometry.workload.shape[0])
    if not problem.sums_variances:
        shares[kept] = query_weights / query_weights.sum()
    return dual_of(problem, neighbour_weights, shares)


def _earlier(start: Solution, problem: FitnessForUse | TotalVariance, program: PhaseProgram, kept: Any) -> PhaseWeights:
    """Return an earlier solution's weights, a little of the first weights mixed in; refuse those of other phases."""
    first = program.first_weights()
    dual: Any = getattr(start, "dual", None)
    blocks: Any = getattr(dual, "neighbour_weights", None)
    queries: Any = getattr(dual, "query_weights", None)
    query_count = problem.geometry.workload.shape[0]
    if np.shape(blocks) != first.blocks.shape or (not program.fixed and np.shape(queries) != (query_count,)):
        raise InvalidInputError(
            f"start must be a solution over {first.blocks.shape[0]} phases of {first.blocks.shape[1]} steps"
        )
    correlations = np.array(blocks)
    if problem.geometry.neighbours.parts == "signs":
        masses = np.einsum("pii->pi", correlations).max(axis=1)[:, None, None]
        correlations = (
            masses * 2 / np.pi * np.arcsin(np.clip(correlations / np.where(masses > 0, masses, 1.0), -1.0, 1.0))
        )
    diagonal = np.arange(correlations.shape[1])
    correlations[:, diagonal, diagonal] = correlations[:, diagonal, diagonal].max(axis=1, keepdims=True)
    mixed = (1 - RAISED) * correlations / correlations[:, 0, 0].sum() + RAISED * first.blocks
    if problem.sums_variances:
        return PhaseWeights(mixed, first.queries)
    scaled = queries[kept] * problem.row_targets[kept]
    return PhaseWeights(mixed, (1 - RAISED) * scaled / scaled.sum() + RAISED * first.queries)
