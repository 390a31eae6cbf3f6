"""A bound for many user types: the best Z, costs and multipliers for which no pattern breaks the dual constraints.

With costs y and multipliers x of constraints that every proper subset satisfies (`Relaxation`), let b = n π,
``v_S = T [1; s]`` and

    N = T'(y b' + b y')/2 T - A(x).

Where N is positive definite, ``‖Z'v_S‖² ≤ (y'v_S)(b'v_S)`` for every S, if ``T'ZZ'T ⪯ N``, or ``ZZ' ⪯ K`` with
``K = (T N⁻¹ T')⁻¹``. The best such Z brings ``tr R Z`` to ``‖R K^(1/2)‖_*``. It remains to maximise

    ‖R K^(1/2)‖_*² / 1'y        over y, and x ≥ 0 except for the squares.

Its logarithm is smooth. Its derivative in N is ``X = Q R'(R K R')^(-1/2) R Q'``, ``Q = N⁻¹T'K``, over the norm: sums of
entries of X are the derivatives in all multipliers, so a multiplier for each pair of user types costs no more than a
few. Each point on the way proves its bound.
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

NAMES = tuple(field.name for field in fields(Relaxation))

CLOSER = np.geomspace(1 / 3, 3, 25)  # times the best of the spreads, tried next
CLOSE, INSIDE = 0.9, 1e-3
"""Share of the closed-form bound to begin with, and how far inside the definite matrices."""

PAIRS = 10.0  # unit of the multipliers of pairs of user types, relative to the multipliers of the squares
ROUND, ROUNDS = 250, 20  # steps of the quasi-Newton method before it begins anew, and how often it does
SMALL, PATIENCE = (1e-4, 3)  # gain of the bound below which a round counts as idle, and idle rounds until the end
MEMORY = 20  # steps that it remembers
MIXED = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # shares of known multipliers that are tried
UNDEFINED = 1e10  # the value returned where N is not positive definite


@dataclass(frozen=True, slots=True, eq=False)
class BoundProgram:
    """The program: R (k, n), b (n,) and T (n, n + 1)."""

    root: Array
    share: Array
    lift: Array
    trace_bound: float  # the closed-form bound, where the prior is uniform

    @classmethod
    def of(cls, root: Array, share: Array, epsilon: float) -> BoundProgram:
        size = len(share)
        lift = np.hstack([np.ones((size, 1)), local.gain(epsilon) * np.eye(size)])
        scaled = root / np.linalg.norm(root)
        return cls(scaled, share, lift, local.trace_bound(scaled, epsilon))

    def split(self, values: Array) -> tuple[Array, Relaxation]:
        size = len(self.share)
        blank = Relaxation.of(size)
        shapes = [np.shape(getattr(blank, name)) for name in NAMES]
        parts = np.split(values[size:], np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        named = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        return values[:size], Relaxation(*named)

    def evaluate(self, values: Array) -> tuple[float, Array, Array]:
        """Return the logarithm of the bound, its derivatives, and Z; raise LinAlgError where N is not definite."""
        costs, relaxation = self.split(values)
        mixed = np.outer(costs, self.share)
        factor = np.linalg.cholesky(self.lift.T @ (mixed + mixed.T) @ self.lift / 2 - relaxation.matrix())
        half = scipy.linalg.solve_triangular(factor, self.lift.T, lower=True, check_finite=False)
        inner = np.linalg.inv(half.T @ half)
        root = np.linalg.cholesky((inner + inner.T) / 2)
        left, sizes, right = np.linalg.svd(self.root @ root, full_matrices=False)
        seen = sizes > len(sizes) * np.finfo(np.float64).eps * sizes[0]
        left, sizes, right = left[:, seen], sizes[seen], right[seen]
        if not costs.sum() > 0:
            raise np.linalg.LinAlgError("costs of sum 0 bound nothing")
        total = float(sizes.sum())
        solved = scipy.linalg.solve_triangular(factor, half, lower=True, trans="T", check_finite=False)
        pulled = (solved @ inner @ (self.root.T @ left)) / np.sqrt(sizes)
        moments = pulled @ pulled.T / total
        slopes = self.lift @ moments @ (self.lift.T @ self.share) - 1 / costs.sum()
        others = (-derivative.ravel() for derivative in multiplier_derivatives(moments))
        return (
            float(2 * np.log(total) - np.log(costs.sum())),
            np.concatenate([slopes, *others]),
            np.asarray(root @ right.T @ left.T),
        )


def few_multipliers(problem: LocalStrategy, deadline: Deadline = NO_DEADLINE) -> LocalDual | None:
    """Return the best dual weights of the average case by Newton's method, None where it needs many multipliers."""
    try:
        matrix, costs, relaxation = best_multipliers(
            problem.root, problem.user_types * problem.prior, problem.epsilon, deadline, climbs=False
        )
    except np.linalg.LinAlgError:
        return None
    return LocalDual(matrix, costs, None, relaxation)


def improve_bound(problem: LocalStrategy, dual: LocalDual, deadline: Deadline = NO_DEADLINE) -> LocalDual:
    """Return dual weights with the same prior, and the best of the rest that is found in time."""
    prior = problem.prior if dual.prior is None else dual.prior
    try:
        matrix, costs, relaxation = best_multipliers(problem.root, len(prior) * prior, problem.epsilon, deadline)
    except np.linalg.LinAlgError:
        return replace(dual, relaxation=Relaxation.of(len(prior)))
    return LocalDual(matrix, costs, dual.prior, relaxation)


def moments_bound(
    problem: LocalStrategy, frame: Frame, point: PatternPoint, enough: float, deadline: Deadline = NO_DEADLINE
) -> tuple[LocalDual | None, bool]:
    """Return dual weights from the moments of weighed patterns, and whether they are the best to a share `enough`.

    As in `Frame`, R's mean over the user types has a row of its own where no prior tells them apart.
    """
    # Imported here so that solvers load without it.
    from dualmech.fast.local import moments

    root, mean = problem.root, np.zeros(len(problem.root))
    if np.any(frame.mean):
        mean = root.mean(axis=1)
        root = np.vstack([local.centred(root), np.full(problem.user_types, np.linalg.norm(mean))])
    prior, norm = point.share / point.share.sum(), float(np.linalg.norm(root))
    share, begin = len(prior) * prior, points.moments(frame, point)
    program = BoundProgram.of(root, share, problem.epsilon)
    path = moments.path(program.root, share, problem.epsilon, begin, frame.mirrored, enough, deadline)
    known, best, reached, least = None, None, -np.inf, np.inf
    with contextlib.suppress(np.linalg.LinAlgError):
        for values, objective in path:
            try:
                value = program.evaluate(values)[0]
            except np.linalg.LinAlgError:
                known = _start(program, deadline) if known is None else known
                values, value = _definite(program, values, known)
            best, reached = max((best, reached), (values, value), key=lambda pair: pair[1])
            least = objective
    if best is None:
        return None, False
    matrix, costs, relaxation = _scaled(program, best, norm)
    across, length = matrix[:, : len(mean)], float(np.linalg.norm(mean))
    if length:
        costs = _without_row(matrix, costs, length) + 2 * across @ mean + length**2
    near = bool(np.exp(reached) >= (1 - 2 * enough) * least)
    return LocalDual(across + mean, costs, prior if frame.adversary else None, relaxation), near


def _definite(program: BoundProgram, values: Array, known: Array) -> tuple[Array, float]:
    """Return the best mixture of values with known ones that makes N definite, and the logarithm of its bound.

    N is linear in the values: where steps that are not full leave it indefinite, a little of what is definite mends it.
    """
    size = len(program.share)
    scaled = known * (values[:size].sum() / known[:size].sum())
    for share in MIXED:
        mixed = (1 - share) * values + share * scaled
        with contextlib.suppress(np.linalg.LinAlgError):
            return mixed, program.evaluate(mixed)[0]
    return known, -np.inf


def improve_even_bound(problem: LocalStrategy, dual: LocalDual, deadline: Deadline = NO_DEADLINE) -> LocalDual:
    """Return dual weights with the even prior; the given ones where none are found.

    In the worst case R is 0 on the ones, and the climb hardly moves. So a row ``t 1'/√n`` along the ones, of the norm
    of R, joins R: it raises the bound by t², since patterns sum to 1. What it takes of the costs is then subtracted.
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

    With z the last column of Z, ``(z'v)² ≥ (2t z - t² 1)'v · 1'v``: that much of the costs is free.
    """
    return costs - 2 * length * matrix[:, -1] + length**2


def best_multipliers(
    root: Array, share: Array, epsilon: float, deadline: Deadline = NO_DEADLINE, climbs: bool = True
) -> tuple[Array, Array, Relaxation]:
    """Return Z, costs and multipliers; with ``tr R Z = 1'y``, either is the bound.

    Newton's method finds them where few suffice; else, where that is allowed, a quasi-Newton method climbs in all of
    them. Raises LinAlgError where none are found.
    """
    program = BoundProgram.of(root, share, epsilon)
    values = barrier.follow(program.root, share, epsilon, deadline)
    if values is None:
        if not climbs:
            raise np.linalg.LinAlgError("few multipliers do not suffice")
        values = _climbed(program, deadline)
    return _scaled(program, values, float(np.linalg.norm(root)))


def _climbed(program: BoundProgram, deadline: Deadline) -> Array:
    """Return the values that a quasi-Newton method in all multipliers comes to in time."""
    # Imported here so that solvers load without it.
    from scipy.optimize import Bounds, minimize

    size, climb = len(program.share), _Climb(program, _start(program, deadline), deadline)
    units = _units(program, float(np.abs(climb.best[size : 2 * size]).mean()))
    least = np.zeros(len(units))
    least[: 2 * size] = -np.inf
    idle = 0
    for _ in range(ROUNDS):
        if deadline.passed:  # a round begins by preparing its bounds, which alone takes seconds for large problems
            break
        before = climb.value
        minimize(
            lambda values: climb.negative(values * units, units),
            climb.best / units,
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(least, np.inf),
            options={"maxiter": ROUND, "maxcor": MEMORY, "ftol": 0.0, "gtol": 0.0},
        )
        idle = idle + 1 if climb.value - before < SMALL else 0
        if idle == PATIENCE:
            break
    return climb.best


class _Climb:
    """The best point so far of a climb, and when it has to end."""

    def __init__(self, program: BoundProgram, first: Array, deadline: Deadline) -> None:
        self.program, self.best, self.deadline = program, first, deadline
        self.value = program.evaluate(first)[0]

    def negative(self, values: Array, units: Array) -> tuple[float, Array]:
        """Return the function to minimise, and its derivatives in units of the variables; nothing when time is up."""
        if self.deadline.passed:
            return UNDEFINED, np.zeros_like(values)
        try:
            value, slopes, _ = self.program.evaluate(values)
        except np.linalg.LinAlgError:
            return UNDEFINED, np.zeros_like(values)
        if value > self.value:
            self.value, self.best = value, values
        return -value, -slopes * units


def _start(program: BoundProgram, deadline: Deadline = NO_DEADLINE) -> Array:
    """Return costs and multipliers that prove nearly the closed-form bound, or a multiple of all squares, if better."""
    known, value = _closed_form(program), -np.inf
    with contextlib.suppress(np.linalg.LinAlgError):
        value = program.evaluate(known)[0]
        if value >= np.log(CLOSE * program.trace_bound):
            return known
    size = len(program.share)
    blank = np.concatenate([-np.ones(size), np.full(3 * size**2 + max(size - 2, 0) + 4 * size, OTHER_MULTIPLIERS)])

    def reached(spread: float) -> float:
        if deadline.passed:
            return -np.inf
        try:
            return program.evaluate(np.concatenate([program.share, spread * blank]))[0]
        except np.linalg.LinAlgError:
            return -np.inf

    spread = max(SQUARE_MULTIPLIERS * size**2, key=reached)
    spread = max(spread * CLOSER, key=reached)
    if reached(spread) <= value:
        return known
    if not np.isfinite(reached(spread)):
        raise np.linalg.LinAlgError("no multipliers that make the matrix definite were found in time")
    return np.concatenate([program.share, spread * blank])


def _closed_form(program: BoundProgram) -> Array:
    """Return the costs and multipliers of the proof of the closed-form bound, a little inside the definite matrices.

    Let τ be largest at k types. Then ``(τ/n) (1'v)² - ‖Πv‖²`` is a square of ``|S| - k``, with the squares' multipliers
    and the multiplier of the two sizes, k one of them, between which it may be negative.
    """
    size, excess = len(program.share), float(program.lift[0, 1])
    counts = np.arange(1, size)
    norms = excess**2 * counts * (size - counts) / size
    ratios = norms / (size + excess * counts) ** 2
    best, ratio = int(counts[ratios.argmax()]), float(ratios.max())
    slope = 2 * ratio * excess * (size + excess * best) - excess**2 * (1 - 2 * best / size)
    blank = Relaxation.of(size, np.full(size, -(excess**2)))
    if size > 2:
        blank.sizes[min(max(best - 1 if slope > 0 else best, 1), size - 2) - 1] = abs(slope)
    parts = (getattr(blank, name).ravel() for name in NAMES)
    return np.concatenate([ratio * (1 + INSIDE) * program.share, *parts])


def _units(program: BoundProgram, spread: float) -> Array:
    """Return the units of costs and multipliers in which they are about equally large."""
    size = len(program.share)
    relative = np.full(2 * size + 3 * size**2 + max(size - 2, 0) + 4 * size, spread / size)
    relative[:size] = 1.0
    relative[size : 2 * size] = spread
    relative[2 * size : 2 * size + 3 * size**2] = PAIRS * spread
    return relative


def _scaled(program: BoundProgram, values: Array, norm: float) -> tuple[Array, Array, Relaxation]:
    """Return Z, costs and multipliers for a root of its own norm, scaled such that ``tr R Z = 1'y``."""
    matrix = program.evaluate(values)[2]
    costs, relaxation = program.split(values)
    factor = norm * float(np.einsum("ku,uk->", program.root, matrix)) / float(costs.sum())
    scaled = {name: getattr(relaxation, name) * factor**2 for name in NAMES}
    return matrix * factor, costs * factor**2, Relaxation(**scaled)
