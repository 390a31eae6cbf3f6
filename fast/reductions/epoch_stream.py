"""Several epochs of more running sums than a matrix holds: a scaled Toeplitz strategy, and a bound from fewer steps.

Dual weights change slowly along a phase, and from one number of steps to another: those of some hundred steps, their
places drawn out, serve a hundred thousand. What they prove is evaluated on all steps.
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

COARSE, EPOCHS, UNKNOWNS = 512, 32, 4096
"""Most steps, epochs, and masses and correlations of the problem whose weights are drawn out."""

CLOSE = 1e-3  # gap to which it is solved

LEAST = 1e-3
"""Weight of a sum over the mean one, at least: it costs the bound as much, and far smaller ones its digits."""

AN_INTERVAL = (
    "Of so many steps no optimum is known: noise is the best scaled Toeplitz strategy that was found, the bound "
    "that of fewer steps, drawn out."
)


def ascend_drawn_out(
    problem: FitnessForUse | TotalVariance,
    limits: loop.Limits,
    *,
    method: str = "auto",
    start: Solution | None = None,
) -> Solution:
    """Return the best scaled Toeplitz strategy, a coefficient for each step between parts, and the drawn-out bound."""
    validate.choice(("auto",), method=method)
    if start is not None:
        raise InvalidInputError("start is not for more steps than a matrix holds: their noise and bound begin anew")
    began = time.perf_counter()
    geometry: EpochStream = problem.geometry
    rule = geometry.neighbours
    sums = geometry.workload
    family = ScaledCoefficients(sums.shape[0], min(rule.separation, sums.shape[0]), rule, sums.decay)
    _, mechanism = best_mechanism(problem, family, rule, limits.deadline)
    dual, iterations = drawn_out_weights(problem, limits)
    return judged_solution(
        problem,
        problem.as_primal(mechanism),
        dual,
        tol=limits.tol,
        otherwise=Status.STEPS_EXHAUSTED if limits.deadline.passed else Status.STALLED,
        message=AN_INTERVAL,
        iterations=iterations,
        seconds=time.perf_counter() - began,
        solver=f"fast:{method}",
    )


def drawn_out_weights(
    problem: FitnessForUse | TotalVariance, limits: loop.Limits
) -> tuple[FitnessDual | VarianceDual, int]:
    """Return dual weights of all steps, from those of fewer, and the solver's steps for these."""
    short = _shorter(problem)
    answer = ascend_epochs(short, replace(limits, tol=CLOSE, callback=None))
    return _drawn_out(problem, short, answer.dual), answer.iterations


def _places(fewer: int, count: int) -> Array:
    """Return where each of so many phases stands among fewer: step by step at both ends, drawn out in between."""
    if fewer == count:
        return np.arange(count, dtype=np.float64)
    middles = np.arange(count) + 0.5
    near = np.minimum(middles, count - middles)
    scaled = 0.5 * (2 * near) ** (np.log(fewer) / np.log(count))
    return np.clip(np.where(middles <= count / 2, scaled, fewer - scaled) - 0.5, 0, fewer - 1)


def _between(places: Array, fewer: int) -> Array:
    """Return the shares of the two nearest of so many numbers at each of some places (p, fewer)."""
    before = np.minimum(places.astype(np.intp), max(fewer - 2, 0))
    share, rows = places - before, np.arange(len(places))
    shares = np.zeros((len(places), fewer))
    shares[rows, before] = 1 - share
    shares[rows, np.minimum(before + 1, fewer - 1)] += share
    return shares


def _shorter(problem: FitnessForUse | TotalVariance) -> Any:
    """Return a problem of the same kind of fewer steps, and no more epochs than `EPOCHS`, with some of the numbers."""
    geometry: EpochStream = problem.geometry
    rule, steps = geometry.neighbours, geometry.workload.shape[0]
    times = min(rule.times, EPOCHS)
    most = min(COARSE // times, UNKNOWNS // (1 + times * (times - 1) // 2))
    fewer = min(max(most, 1), rule.separation)
    in_last = round((steps - (rule.times - 1) * rule.separation) * fewer / rule.separation)
    count = (times - 1) * fewer + max(in_last, 1)
    epochs = np.linspace(0, rule.times - 1, times).round().astype(np.intp)
    kept = np.searchsorted(_places(fewer, rule.separation), np.arange(fewer)).clip(0, rule.separation - 1)
    taken = np.minimum((epochs[:, None] * rule.separation + kept).ravel()[:count], steps - 1)
    # A decay that leaves the shorter sums a matrix: what is drawn out proves a bound, whatever it comes from.
    decay = max(geometry.workload.decay ** (steps / count), (2 * validate.MIN_MAGNITUDE) ** (1 / count))
    return type(problem)(
        StreamWorkload(count, decay),
        getattr(problem, problem.numbers)[taken],
        neighbours=Participation(times, fewer, rule.parts),
        geometry="epochs",
    )


def _drawn_out(problem: FitnessForUse | TotalVariance, short: Any, dual: Any) -> FitnessDual | VarianceDual:
    phases, fewer = problem.geometry.phases, short.geometry.phases
    present, (count, times) = phases >= 0, fewer.shape
    along = _between(_places(count, len(phases)), count)
    across = _between(np.linspace(0, times - 1, phases.shape[1]), times)

    blocks = dual.neighbour_weights
    masses = np.maximum(np.einsum("pii->pi", blocks).max(axis=1), np.finfo(float).tiny)
    correlations = blocks / masses[:, None, None] + (fewer < 0)[:, :, None] * np.eye(times)
    mixed = across @ np.tensordot(along, correlations, axes=1) @ across.T
    mixed += (1 - np.einsum("pii->pi", mixed))[:, :, None] * np.eye(phases.shape[1])
    drawn = np.exp(along @ np.log(masses))
    weights = mixed * (drawn / drawn.sum())[:, None, None]
    weights *= present[:, :, None] & present[:, None, :]
    queries = np.zeros(len(problem.row_targets))
    if problem.sums_variances:
        return dual_of(problem, weights, queries)

    known = np.where(fewer >= 0, dual.query_weights[fewer] * short.targets[fewer], 0.0)
    on_sums = np.exp(along @ np.log(np.maximum(known, known.mean() * LEAST)) @ across.T)
    queries[phases[present]] = on_sums[present]
    return dual_of(problem, weights, queries / queries.sum())
