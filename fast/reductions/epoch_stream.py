"""Several epochs of many running sums: a scaled Toeplitz strategy, and a bound from a problem with fewer steps.

Dual weights change slowly from phase to phase, and with the number of steps: weights for at most 512 steps, prolonged
by interpolation, give a good bound for a hundred thousand. The bound is evaluated on all steps.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop
from dualmech.fast.engine.scaled import ScaledCoefficients
from dualmech.fast.reductions.classes import best_mechanism
from dualmech.fast.reductions.epochs import ascend_epochs
from dualmech.geometry.epoch_stream import EpochStream
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.neighbours import Participation
from dualmech.problems.base import dual_of
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array
from dualmech.workloads.streams import StreamWorkload

MAX_COARSE_STEPS, MAX_COARSE_EPOCHS, MAX_COARSE_UNKNOWNS = 512, 32, 4096
"""Limits of the coarse problem: steps, epochs, and masses and correlations."""

COARSE_TOL = 1e-3  # gap of the coarse problem

MIN_RELATIVE_WEIGHT = 1e-3
"""Lower limit on the weight of a sum, relative to the mean: it changes the bound by as much, but far smaller weights
make the bound inaccurate."""

INTERVAL_MESSAGE = (
    "No optimum is known for this number of steps: the noise is the best scaled Toeplitz strategy that was found, and "
    "the bound is extended from a problem with fewer steps."
)


def ascend_prolonged(
    problem: FitnessForUse | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
) -> Solution:
    """Return the best scaled Toeplitz strategy, with one coefficient per step of a separation, and a bound."""
    validate.choice(("auto",), method=method)
    if start is not None:
        raise InvalidInputError("start is not supported for more steps than a matrix can have: solve without it")
    start_time = time.perf_counter()
    geometry: EpochStream = problem.geometry
    rule = geometry.neighbours
    sums = geometry.workload
    family = ScaledCoefficients(sums.shape[0], min(rule.separation, sums.shape[0]), rule, sums.decay)
    _, mechanism = best_mechanism(problem, family, rule, limits.deadline)
    dual, iterations = prolonged_weights(problem, limits)
    return judged_solution(
        problem,
        problem.as_primal(mechanism),
        dual,
        tol=limits.tol,
        otherwise=Status.STEPS_EXHAUSTED if limits.deadline.passed else Status.STALLED,
        message=INTERVAL_MESSAGE,
        iterations=iterations,
        seconds=time.perf_counter() - start_time,
        solver=f"fast:{method}",
    )


def prolonged_weights(
    problem: FitnessForUse | TotalVariance, limits: loop.Limits
) -> tuple[FitnessDual | VarianceDual, int]:
    """Return dual weights of all steps from the coarse problem, and the solver's steps."""
    coarse = _coarse_problem(problem)
    answer = ascend_epochs(coarse, replace(limits, tol=COARSE_TOL, callback=None))
    return _prolong(problem, coarse, answer.dual), answer.iterations


def _coarse_positions(num_coarse: int, count: int) -> Array:
    """Return the position of each phase among the coarse phases: one to one at both ends, stretched in between."""
    if num_coarse == count:
        return np.arange(count, dtype=np.float64)
    middles = np.arange(count) + 0.5
    distances = np.minimum(middles, count - middles)
    scaled = 0.5 * (2 * distances) ** (np.log(num_coarse) / np.log(count))
    return np.clip(np.where(middles <= count / 2, scaled, num_coarse - scaled) - 0.5, 0, num_coarse - 1)


def _interpolation(places: Array, num_coarse: int) -> Array:
    """Return the matrix of linear interpolation at some positions, shape (p, num_coarse)."""
    lower = np.minimum(places.astype(np.intp), max(num_coarse - 2, 0))
    fraction, rows = places - lower, np.arange(len(places))
    matrix = np.zeros((len(places), num_coarse))
    matrix[rows, lower] = 1 - fraction
    matrix[rows, np.minimum(lower + 1, num_coarse - 1)] += fraction
    return matrix


def _coarse_problem(problem: FitnessForUse | TotalVariance) -> Any:
    geometry: EpochStream = problem.geometry
    rule, steps = geometry.neighbours, geometry.workload.shape[0]
    times = min(rule.times, MAX_COARSE_EPOCHS)
    max_phases = min(MAX_COARSE_STEPS // times, MAX_COARSE_UNKNOWNS // (1 + times * (times - 1) // 2))
    num_phases = min(max(max_phases, 1), rule.separation)
    num_in_last = round((steps - (rule.times - 1) * rule.separation) * num_phases / rule.separation)
    count = (times - 1) * num_phases + max(num_in_last, 1)
    epochs = np.linspace(0, rule.times - 1, times).round().astype(np.intp)
    phases = np.searchsorted(_coarse_positions(num_phases, rule.separation), np.arange(num_phases)).clip(
        0, rule.separation - 1
    )
    steps_kept = np.minimum((epochs[:, None] * rule.separation + phases).ravel()[:count], steps - 1)
    # The decay must not underflow in the matrix of the coarse sums. Any prolonged weights prove a bound.
    decay = max(geometry.workload.decay ** (steps / count), (2 * validate.MIN_MAGNITUDE) ** (1 / count))
    return type(problem)(
        StreamWorkload(count, decay),
        getattr(problem, problem.numbers)[steps_kept],
        neighbours=Participation(times, num_phases, rule.parts),
        geometry="epochs",
    )


def _prolong(problem: FitnessForUse | TotalVariance, coarse: Any, dual: Any) -> FitnessDual | VarianceDual:
    phases, coarse_phases = problem.geometry.phases, coarse.geometry.phases
    present, (count, times) = phases >= 0, coarse_phases.shape
    phase_matrix = _interpolation(_coarse_positions(count, len(phases)), count)
    epoch_matrix = _interpolation(np.linspace(0, times - 1, phases.shape[1]), times)

    blocks = dual.neighbour_weights
    masses = np.maximum(np.einsum("pii->pi", blocks).max(axis=1), np.finfo(float).tiny)
    correlations = blocks / masses[:, None, None] + (coarse_phases < 0)[:, :, None] * np.eye(times)
    blocks_prolonged = epoch_matrix @ np.tensordot(phase_matrix, correlations, axes=1) @ epoch_matrix.T
    blocks_prolonged += (1 - np.einsum("pii->pi", blocks_prolonged))[:, :, None] * np.eye(phases.shape[1])
    masses_prolonged = np.exp(phase_matrix @ np.log(masses))
    weights = blocks_prolonged * (masses_prolonged / masses_prolonged.sum())[:, None, None]
    weights *= present[:, :, None] & present[:, None, :]
    queries = np.zeros(len(problem.row_targets))
    if problem.sums_variances:
        return dual_of(problem, weights, queries)

    coarse_weights = np.where(
        coarse_phases >= 0, dual.query_weights[coarse_phases] * coarse.targets[coarse_phases], 0.0
    )
    sum_weights = np.exp(
        phase_matrix @ np.log(np.maximum(coarse_weights, coarse_weights.mean() * MIN_RELATIVE_WEIGHT)) @ epoch_matrix.T
    )
    queries[phases[present]] = sum_weights[present]
    return dual_of(problem, weights, queries / queries.sum())
