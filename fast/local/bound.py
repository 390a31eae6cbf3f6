"""A bound for many user types: the best Z, costs and multipliers that satisfy the dual constraints of all patterns.

With costs y and multipliers x of inequalities that every proper subset satisfies (`Relaxation`), let b = n π,
``v_S = T [1; s]`` and

    N = T'(y b' + b y')/2 T - A(x).

If N is positive definite and ``T'ZZ'T ⪯ N``, then ``‖Z'v_S‖² ≤ (y'v_S)(b'v_S)`` for every S. The condition is
equivalent to ``ZZ' ⪯ K`` with ``K = (T N⁻¹ T')⁻¹``. The maximum of ``tr R Z`` over such Z is ``‖R K^(1/2)‖_*``. It
remains to maximise

    ‖R K^(1/2)‖_*² / 1'y        over y and x, where x ≥ 0 except for the squares.

The logarithm is smooth. Its derivative in N is ``X = Q R'(R K R')^(-1/2) R Q'``, divided by the norm, with
``Q = N⁻¹T'K``. The derivatives in all multipliers are sums of entries of X, so a multiplier for each pair of user types
costs little more than a few multipliers. Every iterate proves a bound.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields, replace

import numpy as np
import scipy.linalg

from dualmech.fast.local import barrier, points
from dualmech.fast.local.barrier import OTHER_MULTIPLIERS, SQUARE_MULTIPLIERS, multiplier_derivatives
from dualmech.fast.local.points import Frame, PatternPoint
from dualmech.geometry import local
from dualmech.geometry.local import Relaxation
from dualmech.problems.local.strategy import LocalDual, LocalStrategy
from dualmech.progress import NO_DEADLINE, Deadline
from dualmech.validate import Array

FIELDS = tuple(field.name for field in fields(Relaxation))

REFINED_FACTORS = np.geomspace(1 / 3, 3, 25)  # times the best of `SQUARE_MULTIPLIERS`
MIN_START_RATIO, INTERIOR_FACTOR = 0.9, 1e-3
"""Minimum initial bound relative to the closed-form bound; relative distance of the closed form from the boundary."""

PAIR_UNIT = 10.0  # unit of the multipliers of pairs, relative to the multipliers of squares
STEPS_PER_ROUND, MAX_ROUNDS = 250, 20  # the quasi-Newton method restarts after each round
MIN_GAIN, MAX_STALLED_ROUNDS = 1e-4, 3  # a round with a smaller relative gain has stalled
LBFGS_MEMORY = 20  # number of stored steps
MIXTURE_FRACTIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # fractions of definite multipliers to try
INFEASIBLE_VALUE = 1e10  # value to minimise if N is not positive definite


@dataclass(frozen=True, slots=True, eq=False)
class BoundProgram:
    """The program: R (k, n), b (n,) and T (n, n + 1)."""

    root: Array
    share: Array
    lift: Array
    trace_bound: float  # the closed-form bound, for a uniform prior

    @classmethod
    def of(cls, root: Array, share: Array, epsilon: float) -> BoundProgram:
        size = len(share)
        lift = np.hstack([np.ones((size, 1)), local.gain(epsilon) * np.eye(size)])
        scaled = root / np.linalg.norm(root)
        return cls(scaled, share, lift, local.trace_bound(scaled, epsilon))

    def split(self, values: Array) -> tuple[Array, Relaxation]:
        size = len(self.share)
        template = Relaxation.of(size)
        shapes = [np.shape(getattr(template, name)) for name in FIELDS]
        parts = np.split(values[size:], np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        shaped = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        return values[:size], Relaxation(*shaped)

    def evaluate(self, values: Array) -> tuple[float, Array, Array]:
        """Return the logarithm of the bound, its derivatives, and Z; raise LinAlgError if N is not definite."""
        costs, relaxation = self.split(values)
        costs_by_share = np.outer(costs, self.share)
        factor = np.linalg.cholesky(
            self.lift.T @ (costs_by_share + costs_by_share.T) @ self.lift / 2 - relaxation.matrix()
        )
        half_solution = scipy.linalg.solve_triangular(factor, self.lift.T, lower=True, check_finite=False)
        inverse = np.linalg.inv(half_solution.T @ half_solution)
        root = np.linalg.cholesky((inverse + inverse.T) / 2)
        left, sizes, right = np.linalg.svd(self.root @ root, full_matrices=False)
        nonzero = sizes > len(sizes) * np.finfo(np.float64).eps * sizes[0]
        left, sizes, right = left[:, nonzero], sizes[nonzero], right[nonzero]
        if not costs.sum() > 0:
            raise np.linalg.LinAlgError("the sum of the costs must be positive")
        norm = float(sizes.sum())
        full_solution = scipy.linalg.solve_triangular(factor, half_solution, lower=True, trans="T", check_finite=False)
        scaled = (full_solution @ inverse @ (self.root.T @ left)) / np.sqrt(sizes)
        moments = scaled @ scaled.T / norm
        slopes = self.lift @ moments @ (self.lift.T @ self.share) - 1 / costs.sum()
        multiplier_slopes = (-derivative.ravel() for derivative in multiplier_derivatives(moments))
        return (
            float(2 * np.log(norm) - np.log(costs.sum())),
            np.concatenate([slopes, *multiplier_slopes]),
            np.asarray(root @ right.T @ left.T),
        )


def few_multipliers(problem: LocalStrategy, deadline: Deadline = NO_DEADLINE) -> LocalDual | None:
    """Return optimal dual weights for the average case by Newton's method, or None if it needs many multipliers."""
    try:
        matrix, costs, relaxation = best_multipliers(
            problem.root, problem.user_types * problem.prior, problem.epsilon, deadline, may_climb=False
        )
    except np.linalg.LinAlgError:
        return None
    return LocalDual(matrix, costs, None, relaxation)


def improve_bound(problem: LocalStrategy, dual: LocalDual, deadline: Deadline = NO_DEADLINE) -> LocalDual:
    """Return dual weights with the same prior and the best Z, costs and multipliers before the deadline."""
    prior = problem.prior if dual.prior is None else dual.prior
    try:
        matrix, costs, relaxation = best_multipliers(problem.root, len(prior) * prior, problem.epsilon, deadline)
    except np.linalg.LinAlgError:
        return replace(dual, relaxation=Relaxation.of(len(prior)))
    return LocalDual(matrix, costs, dual.prior, relaxation)


def moments_bound(
    problem: LocalStrategy, frame: Frame, point: PatternPoint, tolerance: float, deadline: Deadline = NO_DEADLINE
) -> tuple[LocalDual | None, bool]:
    """Return dual weights from the moments of patterns, and whether they are optimal to a relative tolerance.

    As in `Frame`, the mean of R over the user types has a separate row if the prior is uniform.
    """
    # Imported here so that solvers load without it.
    from dualmech.fast.local import moments

    root, mean = problem.root, np.zeros(len(problem.root))
    if np.any(frame.mean):
        mean = root.mean(axis=1)
        root = np.vstack([local.centred(root), np.full(problem.user_types, np.linalg.norm(mean))])
    prior, norm = point.share / point.share.sum(), float(np.linalg.norm(root))
    share, moment_matrix = len(prior) * prior, points.moments(frame, point)
    program = BoundProgram.of(root, share, problem.epsilon)
    path = moments.path(program.root, share, problem.epsilon, moment_matrix, frame.mirrored, tolerance, deadline)
    definite_values, best, best_value, objective_value = None, None, -np.inf, np.inf
    with contextlib.suppress(np.linalg.LinAlgError):
        for values, objective in path:
            try:
                value = program.evaluate(values)[0]
            except np.linalg.LinAlgError:
                definite_values = _start(program, deadline) if definite_values is None else definite_values
                values, value = _definite_mixture(program, values, definite_values)
            best, best_value = max((best, best_value), (values, value), key=lambda pair: pair[1])
            objective_value = objective
    if best is None:
        return None, False
    matrix, costs, relaxation = _scaled(program, best, norm)
    solution, length = matrix[:, : len(mean)], float(np.linalg.norm(mean))
    if length:
        costs = _without_row(matrix, costs, length) + 2 * solution @ mean + length**2
    is_optimal = bool(np.exp(best_value) >= (1 - 2 * tolerance) * objective_value)
    return LocalDual(solution + mean, costs, prior if frame.adversary else None, relaxation), is_optimal


def _definite_mixture(program: BoundProgram, values: Array, definite_values: Array) -> tuple[Array, float]:
    """Mix values with definite ones until N is positive definite; return the mixture and the logarithm of its bound.

    N is linear in the values, and may be indefinite after steps that are not full.
    """
    size = len(program.share)
    scaled = definite_values * (values[:size].sum() / definite_values[:size].sum())
    for fraction in MIXTURE_FRACTIONS:
        mixture = (1 - fraction) * values + fraction * scaled
        with contextlib.suppress(np.linalg.LinAlgError):
            return mixture, program.evaluate(mixture)[0]
    return definite_values, -np.inf


def improve_even_bound(problem: LocalStrategy, dual: LocalDual, deadline: Deadline = NO_DEADLINE) -> LocalDual:
    """Return dual weights with the uniform prior, or the given ones if the method fails.

    In the worst case R is 0 on the ones vector, and the quasi-Newton method hardly progresses. So a row ``t 1'``, with
    the norm of R, is added to R: it increases the bound by t², since patterns sum to 1. Its part of the costs is then
    subtracted.
    """
    size = problem.user_types
    row = np.full((1, size), np.linalg.norm(problem.root, 2) / np.sqrt(size))
    try:
        matrix, costs, relaxation = best_multipliers(
            np.vstack([problem.root, row]), np.ones(size), problem.epsilon, deadline
        )
    except np.linalg.LinAlgError:
        return dual
    return LocalDual(matrix[:, :-1], _without_row(matrix, costs, row[0, 0]), np.full(size, 1 / size), relaxation)


def _without_row(matrix: Array, costs: Array, length: float) -> Array:
    """Return costs for R without its last row ``t 1'``.

    With z the last column of Z, ``(z'v)² ≥ (2t z - t² 1)'v · 1'v``: the costs decrease by ``2t z - t² 1``.
    """
    return costs - 2 * length * matrix[:, -1] + length**2


def best_multipliers(
    root: Array, share: Array, epsilon: float, deadline: Deadline = NO_DEADLINE, may_climb: bool = True
) -> tuple[Array, Array, Relaxation]:
    """Return Z, costs and multipliers, scaled such that ``tr R Z = 1'y``, which is the bound.

    Newton's method is used if few multipliers suffice; otherwise, if `may_climb`, a quasi-Newton method in all
    multipliers. Raises LinAlgError if both fail.
    """
    program = BoundProgram.of(root, share, epsilon)
    values = barrier.follow(program.root, share, epsilon, deadline)
    if values is None:
        if not may_climb:
            raise np.linalg.LinAlgError("the bound needs many multipliers")
        values = _quasi_newton(program, deadline)
    return _scaled(program, values, float(np.linalg.norm(root)))


def _quasi_newton(program: BoundProgram, deadline: Deadline) -> Array:
    """Return the best values of a quasi-Newton method in all multipliers before the deadline."""
    # Imported here so that solvers load without it.
    from scipy.optimize import Bounds, minimize

    size, climb = len(program.share), _Climb(program, _start(program, deadline), deadline)
    units = _units(program, float(np.abs(climb.best[size : 2 * size]).mean()))
    lower_limits = np.zeros(len(units))
    lower_limits[: 2 * size] = -np.inf
    num_stalled = 0
    for _ in range(MAX_ROUNDS):
        if deadline.passed:  # the preparation of a round takes seconds for large problems
            break
        last_value = climb.value
        minimize(
            lambda values: climb.negative(values * units, units),
            climb.best / units,
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(lower_limits, np.inf),
            options={"maxiter": STEPS_PER_ROUND, "maxcor": LBFGS_MEMORY, "ftol": 0.0, "gtol": 0.0},
        )
        num_stalled = num_stalled + 1 if climb.value - last_value < MIN_GAIN else 0
        if num_stalled == MAX_STALLED_ROUNDS:
            break
    return climb.best


class _Climb:
    """The best point of a climb, and its deadline."""

    def __init__(self, program: BoundProgram, first: Array, deadline: Deadline) -> None:
        self.program, self.best, self.deadline = program, first, deadline
        self.value = program.evaluate(first)[0]

    def negative(self, values: Array, units: Array) -> tuple[float, Array]:
        """Return the function to minimise, and its derivatives in units of the variables."""
        if self.deadline.passed:
            return INFEASIBLE_VALUE, np.zeros_like(values)
        try:
            value, slopes, _ = self.program.evaluate(values)
        except np.linalg.LinAlgError:
            return INFEASIBLE_VALUE, np.zeros_like(values)
        if value > self.value:
            self.value, self.best = value, values
        return -value, -slopes * units


def _start(program: BoundProgram, deadline: Deadline = NO_DEADLINE) -> Array:
    """Return nearly the costs and multipliers of the closed-form bound, or better ones with equal multipliers."""
    closed_form, closed_form_value = _closed_form(program), -np.inf
    with contextlib.suppress(np.linalg.LinAlgError):
        closed_form_value = program.evaluate(closed_form)[0]
        if closed_form_value >= np.log(MIN_START_RATIO * program.trace_bound):
            return closed_form
    size = len(program.share)
    template = np.concatenate([-np.ones(size), np.full(3 * size**2 + max(size - 2, 0) + 4 * size, OTHER_MULTIPLIERS)])

    def value_at(multiplier: float) -> float:
        if deadline.passed:
            return -np.inf
        try:
            return program.evaluate(np.concatenate([program.share, multiplier * template]))[0]
        except np.linalg.LinAlgError:
            return -np.inf

    multiplier = max(SQUARE_MULTIPLIERS * size**2, key=value_at)
    multiplier = max(multiplier * REFINED_FACTORS, key=value_at)
    if value_at(multiplier) <= closed_form_value:
        return closed_form
    if not np.isfinite(value_at(multiplier)):
        raise np.linalg.LinAlgError("found no multipliers that make N positive definite before the deadline")
    return np.concatenate([program.share, multiplier * template])


def _closed_form(program: BoundProgram) -> Array:
    """Return the costs and multipliers that prove the closed-form bound, moved slightly into the interior.

    Let τ be the maximum of ``n ‖Πv‖² / (1'v)²``, attained at k user types. Then ``(τ/n) (1'v)² - ‖Πv‖²`` is a quadratic
    in ``|S| - k`` that is 0 at ``|S| = k``. It is represented by the multipliers of the squares and one multiplier of a
    size constraint, for k and a neighbouring size, between which it may be negative.
    """
    size, excess = len(program.share), float(program.lift[0, 1])
    counts = np.arange(1, size)
    norms = excess**2 * counts * (size - counts) / size
    ratios = norms / (size + excess * counts) ** 2
    best, ratio = int(counts[ratios.argmax()]), float(ratios.max())
    slope = 2 * ratio * excess * (size + excess * best) - excess**2 * (1 - 2 * best / size)
    relaxation = Relaxation.of(size, np.full(size, -(excess**2)))
    if size > 2:
        relaxation.sizes[min(max(best - 1 if slope > 0 else best, 1), size - 2) - 1] = abs(slope)
    parts = (getattr(relaxation, name).ravel() for name in FIELDS)
    return np.concatenate([ratio * (1 + INTERIOR_FACTOR) * program.share, *parts])


def _units(program: BoundProgram, square_multiplier: float) -> Array:
    """Return units that bring costs and multipliers to about the same size."""
    size = len(program.share)
    units = np.full(2 * size + 3 * size**2 + max(size - 2, 0) + 4 * size, square_multiplier / size)
    units[:size] = 1.0
    units[size : 2 * size] = square_multiplier
    units[2 * size : 2 * size + 3 * size**2] = PAIR_UNIT * square_multiplier
    return units


def _scaled(program: BoundProgram, values: Array, norm: float) -> tuple[Array, Array, Relaxation]:
    """Return Z, costs and multipliers for the root with its original norm, scaled such that ``tr R Z = 1'y``."""
    matrix = program.evaluate(values)[2]
    costs, relaxation = program.split(values)
    factor = norm * float(np.einsum("ku,uk->", program.root, matrix)) / float(costs.sum())
    scaled = {name: getattr(relaxation, name) * factor**2 for name in FIELDS}
    return matrix * factor, costs * factor**2, Relaxation(**scaled)
