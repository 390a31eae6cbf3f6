"""Common mechanisms: in closed form for two, by an accelerated fixed point of the dual for more."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.common import fixed_point
from dualmech.fast.engine import loop, threads
from dualmech.problems.common import CommonDual, CommonMechanism
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution, require_solution
from dualmech.validate import Array

METHODS = ("auto", "closed_form", "fixed_point")

TRIVIAL = "the row spaces meet in 0 alone: the common mechanism is trivial and releases nothing"


def solve(
    problem: CommonMechanism, limits: loop.Limits, *, method: str = "auto", start: Solution | None = None
) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    chosen = _choose_method(problem, method)
    answered = partial(judged_solution, problem, tol=limits.tol, solver=f"fast:{method}")
    began = time.perf_counter()
    if problem.trivial:
        nothing = np.zeros(problem.bounds.shape)
        return answered(nothing[0], CommonDual(nothing), otherwise=Status.STALLED, message=TRIVIAL)
    with threads.threads_for_rank(len(problem.basis)), np.errstate(all="ignore"):
        known = _weights(problem, start)
        found = [
            _solve_block(
                problem.bounds[:, block, block],
                chosen,
                limits,
                None if known is None else known[:, block, block],
            )
            for block in problem.slices
        ]
        covariance = scipy.linalg.block_diag(*(each.covariance for each in found))
        weights = np.array(
            [scipy.linalg.block_diag(*own) for own in zip(*(each.weights for each in found), strict=True)]
        )
        primal = problem.feasible(covariance)
    longest = max(found, key=lambda each: each.iterations)
    stopped = next((each.reason for each in found if each.reason is not None), Status.STALLED)
    seconds = time.perf_counter() - began
    return answered(
        primal,
        CommonDual(weights),
        seconds=seconds,
        otherwise=Status.ROUNDING if chosen == "closed_form" else stopped,
        iterations=longest.iterations,
        history=longest.history,
    )


@dataclass(frozen=True, slots=True)
class _Solved:
    """The answer on one block."""

    covariance: Array
    weights: Array
    iterations: int = 1
    reason: Status | None = None
    history: tuple[Any, ...] = ()


def _solve_block(bounds: Array, method: str, limits: loop.Limits, weights: Array | None) -> _Solved:
    if bounds.shape[1] == 1:
        largest = bounds.ravel() == bounds.max()
        first = np.arange(len(bounds)) == np.argmax(largest)
        return _Solved(bounds.max(axis=0), first[:, None, None].astype(np.float64))
    if method == "closed_form":
        covariance, projectors = closed_form(*bounds)
        return _Solved(_raise_in_units(bounds, covariance), projectors)
    outcome = _ascend(bounds, limits, weights)
    covariance = _raise_in_units(bounds, outcome.primal.spectrum.covariance)
    return _Solved(covariance, outcome.dual.weights, outcome.iterations, outcome.reason, outcome.history)


def closed_form(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the least upper bound in trace of two covariances, ``(P + Q)/2 + |P - Q|/2``, and its dual weights.

    These are the projectors on where P exceeds Q and on the rest (Helstrom 1969).
    """
    values, vectors = np.linalg.eigh(first - second)
    larger = vectors[:, values > 0]
    projector = larger @ larger.T
    covariance = (first + second) / 2 + (vectors * (np.abs(values) / 2)) @ vectors.T
    return covariance, np.stack([projector, np.eye(len(values)) - projector])


def _choose_method(problem: CommonMechanism, method: str) -> str:
    validate.choice(METHODS, method=method)
    count = len(problem.bounds)
    if method == "closed_form" and count > 2:
        raise InvalidInputError(f"method closed_form is for two mechanisms, got {count}")
    return ("closed_form" if count == 2 else "fixed_point") if method == "auto" else method


def _ascend(
    bounds: Array, limits: loop.Limits, weights: Array | None
) -> loop.Outcome[fixed_point.CommonState]:
    program = fixed_point.CommonProgram.of(bounds)
    return loop.run(fixed_point.start(program, weights), partial(fixed_point.step, program), limits)


def _weights(problem: CommonMechanism, start: Solution | None) -> Array | None:
    """Return the dual weights of an earlier solution, if one was given."""
    if start is None:
        return None
    weights: Any = getattr(require_solution(start, "start").dual, "weights", None)
    if np.shape(weights) != problem.bounds.shape or not np.all(np.isfinite(weights)):
        count, size, _ = problem.bounds.shape
        raise InvalidInputError(
            f"start must be a solution for {count} mechanisms and a basis of {size} queries"
        )
    return np.asarray(weights)


def _raise_in_units(bounds: Array, covariance: Array) -> Array:
    """Return the covariance raised above every bound with each coordinate in its own unit, as it will be judged.

    Only rounding is left to raise, but what is rounding in the units of the noisiest coordinate may be much in those
    of a quiet one.
    """
    units = np.sqrt(np.diagonal(bounds, axis1=1, axis2=2).max(axis=0))
    scale = units * units[:, None]
    return fixed_point.raise_above_bounds(bounds / scale, covariance / scale) * scale
