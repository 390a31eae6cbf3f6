"""Common mechanisms: in closed form for two, by an accelerated fixed point of the dual for more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import validate
from dualmech.adaptive.chain import Chain, build
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop
from dualmech.fast.methods import AUTO, Auto, ClosedForm, Method
from dualmech.linalg import EPS
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.common import CommonDual, CommonMechanism
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution, require_solution
from dualmech.threads import blas_threads
from dualmech.validate import Array

# The least trace above several covariances: an accelerated fixed point of the dual, a measurement of quantum states.
#
# Write ``Y_i = V_i V_i'``, so that ``Σ_i Y_i = I`` says that the rows of ``[V_1 … V_p]`` are orthonormal. At a maximum
# of ``Σ_i tr(P_i Y_i)`` this matrix is the polar factor of ``[P_1 V_1 … P_p V_p]``. Where all ``P_i ⪰ 0``, replacing
# the matrix by the polar factor never lowers the value (Ježek, Řeháček and Fiurášek 2002). Three things make that
# quick:
#
# - Σ and all P_i may be shifted by the same matrix. The step changes most where the P_i are small, so their common part
#   is subtracted first; for two of them hardly a step then remains.
# - Steps are extrapolated with Nesterov's momentum, which starts anew whenever the value falls.
# - ``Σ_i P_i Y_i`` is the Σ that fits the optimality conditions ``(Σ - P_i) Y_i = 0`` best, but is not yet above the
#   P_i. It is raised by the positive part of ``P_i - Σ``, one mechanism after the other, which costs far less trace
#   than a multiple of the identity.


LIFT = 1e-4
"""Multiple of the identity added to the shifted P_i, in units of their mean variance: it keeps them invertible."""

CLEAR = 1e-6
"""Least eigenvalue, relative to the largest, at which a polar factor counts as orthonormal without a second look."""

MOST_DECOMPOSITIONS = 4  # attempts that one polar factor may take
MEMORY = 3  # the momentum after j steps is ``j / (j + MEMORY)``
ROUND = 15  # steps of the fixed point between two looks at the gap
ROUNDING = 64 * EPS  # relative fall of the value that does not yet restart the momentum

WARM_SHARE = 1e-3
"""Share of equal weights mixed into a warm start: a direction without any weight could not win one back."""


@dataclass(frozen=True, slots=True, eq=False)
class CommonProgram:
    """The bounds in units of order one, less their common part."""

    bounds: Array  # (p, r, r) ``(P_i - shift) / unit``, positive definite but for rounding
    shift: Array  # (r, r) a common lower bound of the P_i, less a small multiple of the identity
    unit: float  # mean variance of the ``P_i - shift``

    @classmethod
    def of(cls, bounds: Array) -> CommonProgram:
        """Subtract the common part of the covariances."""
        count, size, _ = bounds.shape
        lower = -raise_above_bounds(-bounds, -bounds[0])
        excess = bounds - lower
        traces = [float(np.trace(excess.sum(axis=0))), EPS * float(np.trace(bounds.sum(axis=0)))]
        unit = max(traces) / (count * size) or 1.0
        identity = np.eye(size)
        return cls(excess / unit + LIFT * identity, lower - LIFT * unit * identity, unit)

    def covariance(self, inner: Array) -> Array:
        """Return a covariance in the problem's own units."""
        return self.shift + self.unit * inner

    def value(self, inner: float) -> float:
        """Return a trace in the problem's own units."""
        return float(np.trace(self.shift)) + self.unit * inner


@dataclass(frozen=True, slots=True, eq=False)
class CommonPoint:
    """The two sides of the gap, in the problem's own units, with the covariance (r, r) that reaches the first."""

    objective: float
    lower_bound: float
    covariance: Array


@dataclass(frozen=True, slots=True, eq=False)
class CommonState(loop.OfPoint):
    """The state of the fixed point."""

    point: CommonPoint  # both sides of the gap at this state, proven
    factors: Array  # factors, pulled, last_pulled: (p, r, r) V_i, ``P_i V_i``, and the same one step earlier
    pulled: Array
    last_pulled: Array
    age: int  # steps since the momentum last started
    steps: int  # eigendecompositions so far

    @property
    def weights(self) -> Array:
        """The dual weights ``Y_i = V_i V_i'``."""
        return self.factors @ _transpose(self.factors)


def start(program: CommonProgram, weights: Array | None = None) -> CommonState:
    """Begin with equal weights, or near an earlier solution's weights."""
    count, size, _ = program.bounds.shape
    factors = np.broadcast_to(np.eye(size) / np.sqrt(count), program.bounds.shape)
    spent = 0
    if weights is not None:
        values, vectors = np.linalg.eigh((weights + _transpose(weights)) / 2)
        values = (1 - WARM_SHARE) * np.maximum(values, 0.0) + WARM_SHARE / count
        factors, spent = _polar(vectors * np.sqrt(values)[:, None, :])
        spent += count
    pulled = program.bounds @ factors
    return _with_gap(program, CommonState(_NOWHERE, factors, pulled, pulled, 0, spent))


def step(program: CommonProgram, state: CommonState) -> CommonState:
    """Take a round of steps, then compute the gap."""
    for _ in range(ROUND):
        state = _momentum_step(program, state)
    return _with_gap(program, state)


def raise_above_bounds(bounds: Array, covariance: Array) -> Array:
    """Return the covariance, raised above every bound up to rounding, the worst violation first."""
    missing = [_positive_part(bound - covariance) for bound in bounds]
    order = np.argsort([-np.trace(part) for part in missing], kind="stable")
    covariance = covariance + missing[order[0]]
    for index in order[1:]:
        covariance = covariance + _positive_part(bounds[index] - covariance)
    return (covariance + covariance.T) / 2


def _momentum_step(program: CommonProgram, state: CommonState) -> CommonState:
    """Take one step with momentum, or a plain one where momentum lowers the value."""
    momentum = state.age / (state.age + MEMORY)
    factors, spent = _polar(state.pulled + momentum * (state.pulled - state.last_pulled))
    pulled, age = program.bounds @ factors, state.age + 1
    reached = (1 - ROUNDING) * np.vdot(state.pulled, state.factors)
    if momentum and np.vdot(pulled, factors) < reached:
        factors, more = _polar(state.pulled)
        pulled, age, spent = program.bounds @ factors, 1, spent + more
    return CommonState(state.point, factors, pulled, state.pulled, age, state.steps + spent)


def _with_gap(program: CommonProgram, state: CommonState) -> CommonState:
    """Return the state with both sides of its gap."""
    fitted = (state.pulled @ _transpose(state.factors)).sum(axis=0)
    inner = raise_above_bounds(program.bounds, (fitted + fitted.T) / 2)
    point = CommonPoint(
        program.value(float(np.trace(inner))),
        program.value(float(np.vdot(state.pulled, state.factors))),
        program.covariance(inner),
    )
    spent = state.steps + 2 * len(program.bounds) - 1
    return CommonState(point, state.factors, state.pulled, state.last_pulled, state.age, spent)


def _polar(blocks: Array) -> tuple[Array, int]:
    """Return the polar factor ``(G G')^(-1/2) G`` of ``G = [G_1 … G_p]``, and the decompositions that it took.

    The square of an ill-conditioned G is known only up to its rounding. The result of the first attempt is far better
    conditioned, so it is treated the same way.
    """
    decompositions, clear = 0, False
    while not clear and decompositions < MOST_DECOMPOSITIONS:
        values, vectors = np.linalg.eigh((blocks @ _transpose(blocks)).sum(axis=0))
        decompositions += 1
        floor = len(values) * EPS * values[-1]
        blocks = (vectors / np.sqrt(np.maximum(values, floor))) @ vectors.T @ blocks
        clear = values[0] > CLEAR * values[-1]
    return blocks, decompositions


def _positive_part(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    kept = vectors[:, values > 0] * np.sqrt(values[values > 0])
    return np.asarray(kept @ kept.T)


def _transpose(blocks: Array) -> Array:
    return np.swapaxes(blocks, 1, 2)


_NOWHERE = CommonPoint(np.inf, 0.0, np.zeros((0, 0)))  # before the first evaluation nothing is known


TRIVIAL = "the row spaces meet in 0 alone: the common mechanism is trivial and releases nothing"


def solve_common(
    problem: CommonMechanism, limits: loop.Limits, *, method: Method = AUTO, start: Solution | None = None
) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    chosen = _choose_method(problem, method)
    answered = partial(judged_solution, problem, tol=limits.tol, solver=f"fast:{method.name}")
    began = time.perf_counter()
    if problem.trivial:
        nothing = np.zeros(problem.bounds.shape)
        return answered(nothing[0], CommonDual(nothing), otherwise=Status.STALLED, message=TRIVIAL)
    with np.errstate(all="ignore"):
        known = _weights(problem, start)
        answers = [
            _solve_block(
                problem.bounds[:, block, block], chosen, limits, None if known is None else known[:, block, block]
            )
            for block in problem.slices
        ]
        covariance = scipy.linalg.block_diag(*(answer.covariance for answer in answers))
        weights = np.array(
            [scipy.linalg.block_diag(*blocks) for blocks in zip(*(answer.weights for answer in answers), strict=True)]
        )
        primal = problem.feasible(covariance)
    longest = max(answers, key=lambda answer: answer.iterations)
    stopped = next((answer.reason for answer in answers if answer.reason is not None), Status.STALLED)
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
    history: tuple[Progress, ...] = ()


def _solve_block(bounds: Array, method: str, limits: loop.Limits, weights: Array | None) -> _Solved:
    if bounds.shape[1] == 1:
        largest = bounds.ravel() == bounds.max()
        first = np.arange(len(bounds)) == np.argmax(largest)
        return _Solved(bounds.max(axis=0), first[:, None, None].astype(np.float64))
    if method == "closed_form":
        covariance, projectors = closed_form(*bounds)
        return _Solved(_raise_in_units(bounds, covariance), projectors)
    outcome = _ascend(bounds, limits, weights)
    covariance = _raise_in_units(bounds, outcome.best_primal.point.covariance)
    return _Solved(covariance, outcome.best_dual.weights, outcome.iterations, outcome.reason, outcome.history)


def closed_form(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the least upper bound in trace of two covariances, ``(P + Q)/2 + |P - Q|/2``, and its dual weights.

    The dual weights are the projectors onto the subspace where P exceeds Q and onto the rest (Helstrom 1969).
    """
    values, vectors = np.linalg.eigh(first - second)
    larger = vectors[:, values > 0]
    projector = larger @ larger.T
    covariance = (first + second) / 2 + (vectors * (np.abs(values) / 2)) @ vectors.T
    return covariance, np.stack([projector, np.eye(len(values)) - projector])


# The least volume above several covariances: another maximal common mechanism, the same in every basis.


VOLUME_GAP = 1e-8  # gap of the log determinant to which the volume is solved
VOLUME_GROWTH = 10.0  # factor from one sharpness to the next
CENTRED = 1e-3  # Newton decrement at which a point counts as a centre
MOST_NEWTON_STEPS = 100  # to one centre


def least_volume(bounds: Array, gap: float = VOLUME_GAP) -> tuple[Array, Array]:
    """Return the Σ (r, r) of least log det above all P_i, and weights Y_i (p, r, r) that prove it.

    `reference.common.volume` states the problem; `dualmech.problems.common.volume_bound` is the bound that weights
    prove. Two have the closed form of `volume_of_two`. For more, Newton's method follows the centres of
    ``−t log det X − Σ_i log det(P_i⁻¹ − X)``, with ``X = Σ⁻¹``: at a centre the weights ``Y_i = (P_i⁻¹ − X)⁻¹ / t`` sum
    to Σ, and the gap is ``r log(1 + p/t)``. A step solves r² equations, so it is for r up to some dozens.
    Raises `InvalidInputError` for fewer than two matrices, or one that is not positive definite.

    - `bounds` (p, r, r): the P_i, positive definite;
    - `gap`: the difference of log det Σ from the bound at which to end, for three or more.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.fast.common import least_volume
    >>> from dualmech.problems.common import volume_bound
    >>> P = np.array([np.diag([4.0, 1.0]), np.diag([1.0, 2.0]), np.diag([3.0, 3.0])])
    >>> Sigma, weights = least_volume(P)
    >>> Sigma.round(6), bool(np.linalg.slogdet(Sigma)[1] - volume_bound(P, weights) < 1e-6)
    (array([[4., 0.],
           [0., 3.]]), True)
    """
    bounds, gap = validate.finite(3, bounds=bounds), validate.positive_number(gap=gap)
    count, size, _ = bounds.shape
    if count < 2 or bounds.shape[2] != size or np.linalg.eigvalsh(bounds).min(initial=np.inf) <= 0:
        raise InvalidInputError(f"bounds must be two or more positive definite matrices, got shape {bounds.shape}")
    if count == 2:
        return volume_of_two(*bounds)
    frame = np.linalg.cholesky(bounds.sum(axis=0))  # in which the P_i sum to I
    inner = np.linalg.solve(frame, np.swapaxes(np.linalg.solve(frame, bounds), 1, 2))
    costs = np.asarray(np.linalg.inv((inner + _transpose(inner)) / 2), dtype=np.float64)
    point: Array = np.eye(size)
    sharpness, last = 1.0, count * size / gap
    while True:
        point = _volume_centre(costs, point, sharpness)
        if sharpness >= last:
            break
        sharpness = min(VOLUME_GROWTH * sharpness, last)
    weights = np.linalg.inv(costs - point) / sharpness
    noise = frame @ np.linalg.inv(point) @ frame.T
    return (noise + noise.T) / 2, frame @ weights @ frame.T


def volume_of_two(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the least volume above two covariances, and weights that prove it.

    With ``P = F F'`` and ``Q = F diag(d) F'``, one F for both, it is ``Σ = F diag(max(1, d)) F'``.
    Proof: ``F⁻¹ Σ F⁻¹' ⪰ I`` and ``⪰ diag(d)`` for every upper bound Σ, so the inverse X of this matrix has diagonal
    entries of at most ``min(1, 1/d_i)``, and by Hadamard's inequality ``det X ≤ Π_i X_ii``.
    """
    values, vectors = scipy.linalg.eigh(second, first)
    factor = first @ vectors
    shares = np.stack([values <= 1, values > 1]) * np.maximum(values, 1.0)
    whole, *weights = ((factor * share) @ factor.T for share in (shares.sum(axis=0), *shares))
    return (whole + whole.T) / 2, np.stack(weights)


def _volume_centre(costs: Array, point: Array, sharpness: float) -> Array:
    """Return the X (r, r) at which ``−t log det X − Σ_i log det(C_i − X)`` is least, from one within all C_i.

    The function is self-concordant: steps of ``1/(1 + λ)``, λ the Newton decrement, stay inside.
    """
    size = len(point)
    for _ in range(MOST_NEWTON_STEPS):
        # In coordinates in which the point is I, where the equations are never far from their scale.
        factor = np.linalg.cholesky(point)
        inner = np.linalg.solve(factor, np.swapaxes(np.linalg.solve(factor, costs), 1, 2))
        slacks = np.linalg.inv((inner + _transpose(inner)) / 2 - np.eye(size))
        slope = slacks.sum(axis=0) / sharpness - np.eye(size)
        curvature = np.eye(size**2) + sum(np.kron(slack, slack) for slack in slacks) / sharpness
        move = -np.linalg.solve(curvature, slope.ravel()).reshape(size, size)
        decrement = float(np.sqrt(max(-sharpness * np.vdot(slope, move), 0.0)))
        damped = (move + move.T) / (2 * (1 + decrement if decrement > 0.25 else 1))
        point = factor @ (np.eye(size) + damped) @ factor.T
        point = (point + point.T) / 2
        if decrement < CENTRED:
            break
    return point


def _choose_method(problem: CommonMechanism, method: Method) -> str:
    count = len(problem.bounds)
    if isinstance(method, ClosedForm) and count > 2:
        raise InvalidInputError(f"method closed_form is for two mechanisms, got {count}")
    return ("closed_form" if count == 2 else "fixed_point") if isinstance(method, Auto) else method.name


def _ascend(bounds: Array, limits: loop.Limits, weights: Array | None) -> loop.Outcome[CommonState]:
    program = CommonProgram.of(bounds)
    return loop.run(start(program, weights), partial(step, program), limits)


def _weights(problem: CommonMechanism, start: Solution | None) -> Array | None:
    """Return the dual weights of an earlier solution, if one was given."""
    if start is None:
        return None
    weights: Any = getattr(require_solution(start, "start").dual, "weights", None)
    if np.shape(weights) != problem.bounds.shape or not np.all(np.isfinite(weights)):
        count, size, _ = problem.bounds.shape
        raise InvalidInputError(f"start must be a solution for {count} mechanisms and a basis of {size} queries")
    return np.asarray(weights)


def _raise_in_units(bounds: Array, covariance: Array) -> Array:
    """Return the covariance raised above every bound with each coordinate in its own unit, as it will be judged.

    Only rounding errors remain. An error that is small in the noisiest coordinate's unit may be large in a quiet
    coordinate's unit.
    """
    units = np.sqrt(np.diagonal(bounds, axis1=1, axis2=2).max(axis=0))
    scale = units * units[:, None]
    return raise_above_bounds(bounds / scale, covariance / scale) * scale


# Chains of common mechanisms with the library's own solver, every stage far below the requested tolerance.


STAGE_GAP = 1e-10
"""Gap to which a stage is solved where doubles reach it: the next stage inherits the rest of the gap."""


@blas_threads()
def chain(mechanisms: Sequence[GaussianPrivacy], *, tol: float = 1e-6) -> Chain:
    """Return the chain of certified common mechanisms of two or more, in the order in which they drop out.

    Stage s releases the information that mechanisms s, s + 1, … share and that no earlier stage released, so that the
    choice among them can wait for its answer (`dualmech.AdaptiveRelease`). Raises `InvalidInputError` or
    `InputTypeError` for arguments that `dualmech.CommonMechanism` refuses, or a tolerance that is not positive.
    Returns `Chain`: with a judged `Solution` for every stage, and an `UncertifiedWarning` where one is not proven.

    - `mechanisms`: two or more, on the same cells, or of tables on the same attributes, with the same neighbours, none
      releasing anything exactly;
    - `tol`: gap to prove in every stage.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> columns = dm.LinearGaussianMechanism([[1, 0, 1, 0], [0, 1, 0, 1]], np.eye(2))
    >>> release = dm.AdaptiveRelease(fast.chain([rows, columns]), x=[1, 2, 3, 4])
    >>> release.advance().shape, release.known.variances(dm.workloads.total(4)).round(6)
    ((1,), array([2.]))
    """
    accuracy = min(validate.positive_number(tol=tol), STAGE_GAP)

    def stage(problem: CommonMechanism) -> Solution:
        # The chain, not this stage, reports that the requested tolerance was missed.
        return solve_common(problem, loop.Limits(accuracy))

    return build(mechanisms, stage, tol=tol, solver="fast:chain")
