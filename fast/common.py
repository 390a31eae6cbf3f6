"""Maximal common mechanisms: in closed form for two mechanisms, by an accelerated fixed point of the dual for more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import linalg, validate
from dualmech.adaptive.chain import Chain, build
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop
from dualmech.fast.methods import Method
from dualmech.linalg import EPS
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.common import TRIVIAL, CommonDual, CommonMechanism
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution, require_solution
from dualmech.threads import blas_threads
from dualmech.validate import Array

# The upper bound of several covariances with minimum trace; the dual is the measurement of quantum states.
#
# With ``Y_i = V_i V_i'``, the constraint ``Σ_i Y_i = I`` means that the rows of ``[V_1 … V_p]`` are orthonormal. At a
# maximum of ``Σ_i tr(P_i Y_i)`` this matrix is the polar factor of ``[P_1 V_1 … P_p V_p]``. If all ``P_i ⪰ 0``,
# replacing the matrix by the polar factor never decreases the value (Ježek, Řeháček and Fiurášek 2002). Three measures
# make this fast:
#
# - Σ and all P_i may be shifted by the same matrix. Convergence is faster for small P_i, so a common lower bound is
#   subtracted first; for two mechanisms hardly a step then remains.
# - Anderson acceleration (1965): the next step starts at the combination of the last ``P_i V_i`` with the minimum norm
#   of the combined changes. If the value decreases, the plain step is taken, and the history is cleared. Near the limit
#   of double precision this happens often; then Nesterov's momentum is used instead.
# - ``Σ_i P_i Y_i`` is the best fit of Σ to the optimality conditions ``(Σ - P_i) Y_i = 0``, but not an upper bound of
#   the P_i. Adding the positive part of ``P_i - Σ``, for one mechanism after the other, increases the trace much less
#   than adding a multiple of the identity. During the run, the sum of all positive eigenvalues bounds that increase,
#   because each addition decreases the later violations.


IDENTITY_SHIFT = 1e-4
"""Multiple of the identity added to the shifted P_i to make them invertible, in units of their mean variance."""

ORTHONORMAL_TOL = 1e-6
"""A polar factor is accepted if the smallest eigenvalue of its Gram matrix exceeds this fraction of the largest."""

MAX_DECOMPOSITIONS = 4  # for one polar factor
MAX_COMBINED_STEPS, MAX_COMBINED_BYTES = 10, 2**28  # limits of Anderson acceleration
RIDGE = 1e-10  # added to the correlations of the changes, which become dependent near the optimum
MAX_DECREASES = 3  # decreases of the value before momentum is used
MOMENTUM_DELAY = 3  # the momentum after j steps is ``j / (j + MOMENTUM_DELAY)``
STEPS_PER_ROUND = 5  # steps of the fixed point between evaluations of the gap
MAX_STALLED_ROUNDS = 90  # many, because the gap increases while a direction regains its weight
DECREASE_TOL = 64 * EPS  # relative decrease of the value that counts as rounding error

WARM_SHARE = 1e-3
"""Fraction of equal weights mixed into a warm start, because a direction with weight 0 could not regain any."""


@dataclass(frozen=True, slots=True, eq=False)
class CommonProgram:
    """The bounds, shifted by a common lower bound and scaled to order one."""

    bounds: Array  # (p, r, r) ``(P_i - shift) / unit``, positive definite up to rounding
    shift: Array  # (r, r) a common lower bound of the P_i, minus a small multiple of the identity
    unit: float  # mean variance of the ``P_i - shift``

    @classmethod
    def of(cls, bounds: Array) -> CommonProgram:
        count, size, _ = bounds.shape
        lower = -raise_above_bounds(-bounds, -bounds[0])
        excess = bounds - lower
        traces = [float(np.trace(excess.sum(axis=0))), EPS * float(np.trace(bounds.sum(axis=0)))]
        unit = max(traces) / (count * size) or 1.0
        identity = np.eye(size)
        return cls(excess / unit + IDENTITY_SHIFT * identity, lower - IDENTITY_SHIFT * unit * identity, unit)

    def covariance(self, inner: Array) -> Array:
        """Return a covariance in the units of the problem."""
        return self.shift + self.unit * inner

    def value(self, inner: float) -> float:
        """Return a trace in the units of the problem."""
        return float(np.trace(self.shift)) + self.unit * inner


@dataclass(frozen=True, slots=True, eq=False)
class StepHistory:
    """The last steps, oldest first: their end points, changes, and the inner products of the changes."""

    ends: tuple[Array, ...] = ()  # (p, r, r) ``P_i V_i``
    changes: tuple[Array, ...] = ()
    products: Array = field(default_factory=lambda: np.zeros((0, 0)))
    age: int = 0  # steps since the last decrease of the value
    decreases: int = 0

    def with_step(self, start: Array, end: Array) -> StepHistory:
        """Return the history with another step, without the oldest step if there are too many."""
        max_steps = min(max(MAX_COMBINED_BYTES // (2 * end.nbytes), 2), MAX_COMBINED_STEPS)
        oldest = 1 if len(self.ends) >= max_steps else 0
        changes = (*self.changes[oldest:], end - start)
        products = np.empty((len(changes), len(changes)))
        products[:-1, :-1] = self.products[oldest:, oldest:]
        products[-1] = products[:, -1] = [np.vdot(changes[-1], change) for change in changes]
        return StepHistory((*self.ends[oldest:], end), changes, products, self.age + 1, self.decreases)

    def extrapolated(self) -> Array:
        """Return the ``Σ_j a_j end_j`` with minimum ``‖Σ_j a_j change_j‖``, ``Σ_j a_j = 1``, or the momentum point."""
        if self.decreases >= MAX_DECREASES:
            momentum = self.age / (self.age + MOMENTUM_DELAY)
            return (1 + momentum) * self.ends[-1] - momentum * self.ends[-min(len(self.ends), 2)]
        lengths = np.sqrt(np.diagonal(self.products))
        lengths = np.maximum(lengths, EPS * lengths.max()) if lengths.any() else np.ones(len(lengths))
        correlations = self.products / lengths / lengths[:, None] + RIDGE * np.eye(len(lengths))
        shares = np.linalg.solve(correlations, lengths.min() / lengths) / lengths
        weights = shares / shares.sum()
        return np.asarray(sum(weight * end for weight, end in zip(weights, self.ends, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class CommonState:
    """The state of the fixed point."""

    objective: float  # upper bound on the trace of the fitted covariance after raising it above the bounds
    lower_bound: float  # of the weights; objective and bound are of the last evaluation of the gap
    factors: Array  # (p, r, r) V_i
    products: Array  # (p, r, r) ``P_i V_i``
    history: StepHistory
    steps: int  # number of eigendecompositions

    @property
    def weights(self) -> Array:
        """The dual weights ``Y_i = V_i V_i'``."""
        return self.factors @ _transpose(self.factors)

    @property
    def fitted(self) -> Array:
        """The symmetrised covariance ``Σ_i P_i Y_i``, in the units of the program."""
        product = (self.products @ _transpose(self.factors)).sum(axis=0)
        return np.asarray((product + product.T) / 2)


def start(program: CommonProgram, weights: Array | None = None) -> CommonState:
    """Return the state with equal weights, or near the weights of an earlier solution."""
    count, size, _ = program.bounds.shape
    factors = np.broadcast_to(np.eye(size) / np.sqrt(count), program.bounds.shape)
    decompositions = 0
    if weights is not None:
        values, vectors = np.linalg.eigh((weights + _transpose(weights)) / 2)
        values = (1 - WARM_SHARE) * np.maximum(values, 0.0) + WARM_SHARE / count
        factors, decompositions = _polar(vectors * np.sqrt(values)[:, None, :])
        decompositions += count
    products = program.bounds @ factors
    return _with_gap(program, CommonState(np.inf, 0.0, factors, products, StepHistory(), decompositions))


def step(program: CommonProgram, state: CommonState) -> CommonState:
    """Take a round of steps, then evaluate the gap."""
    for _ in range(STEPS_PER_ROUND):
        state = _extrapolated_step(program, state)
    return _with_gap(program, state)


def covariance_of(program: CommonProgram, state: CommonState) -> Array:
    """Return the covariance of a state, raised above the bounds, in the units of the problem."""
    return program.covariance(raise_above_bounds(program.bounds, state.fitted))


def raise_above_bounds(bounds: Array, covariance: Array) -> Array:
    """Raise a covariance above every bound, up to rounding, in order of decreasing violation."""
    violations = [_positive_part(bound - covariance) for bound in bounds]
    order = np.argsort([-np.trace(violation) for violation in violations], kind="stable")
    covariance = covariance + violations[order[0]]
    for index in order[1:]:
        covariance = covariance + _positive_part(bounds[index] - covariance)
    return (covariance + covariance.T) / 2


def _extrapolated_step(program: CommonProgram, state: CommonState) -> CommonState:
    """Take the step from the extrapolated point, or the plain step if the former decreases the value."""
    history = state.history
    start = history.extrapolated() if history.ends else state.products
    factors, decompositions = _polar(start)
    products = program.bounds @ factors
    if history.ends and not np.vdot(products, factors) >= (1 - DECREASE_TOL) * np.vdot(state.products, state.factors):
        start, history = state.products, StepHistory(decreases=history.decreases + 1)
        factors, plain_decompositions = _polar(start)
        products, decompositions = program.bounds @ factors, decompositions + plain_decompositions
    return replace(
        state,
        factors=factors,
        products=products,
        history=history.with_step(start, products),
        steps=state.steps + decompositions,
    )


def _with_gap(program: CommonProgram, state: CommonState) -> CommonState:
    fitted = state.fitted
    trace = float(np.trace(fitted) + np.maximum(np.linalg.eigvalsh(program.bounds - fitted), 0.0).sum())
    lower_bound = program.value(float(np.vdot(state.products, state.factors)))
    steps = state.steps + len(program.bounds)
    return replace(state, objective=program.value(trace), lower_bound=lower_bound, steps=steps)


def _polar(blocks: Array) -> tuple[Array, int]:
    """Return the polar factor ``(G G')^(-1/2) G`` of ``G = [G_1 … G_p]``, and the number of decompositions.

    For an ill-conditioned G, ``G G'`` is too inaccurate. The result is then much better conditioned, and is replaced by
    its own polar factor.
    """
    decompositions, is_orthonormal = 0, False
    while not is_orthonormal and decompositions < MAX_DECOMPOSITIONS:
        values, vectors = np.linalg.eigh((blocks @ _transpose(blocks)).sum(axis=0))
        decompositions += 1
        floor = len(values) * EPS * values[-1]
        blocks = (vectors / np.sqrt(np.maximum(values, floor))) @ vectors.T @ blocks
        is_orthonormal = values[0] > ORTHONORMAL_TOL * values[-1]
    return blocks, decompositions


def _positive_part(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    root = vectors[:, values > 0] * np.sqrt(values[values > 0])
    return np.asarray(root @ root.T)


def _transpose(blocks: Array) -> Array:
    return np.swapaxes(blocks, 1, 2)


def solve_common(
    problem: CommonMechanism, limits: loop.Limits, *, method: str = "auto", start: Solution | None = None
) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    resolved_method = _choose_method(problem, method)
    judge = partial(judged_solution, problem, tol=limits.tol, solver=f"fast:{method}")
    start_time = time.perf_counter()
    if problem.trivial:
        zeros = np.zeros(problem.bounds.shape)
        return judge(zeros[0], CommonDual(zeros), otherwise=Status.STALLED, message=TRIVIAL)
    with np.errstate(all="ignore"):
        start_weights = _weights(problem, start)
        answers = [
            _solve_block(
                problem.bounds[:, block, block],
                problem.criterion,
                resolved_method,
                limits,
                None if start_weights is None else start_weights[:, block, block],
            )
            for block in problem.slices
        ]
        covariance = scipy.linalg.block_diag(*(answer.covariance for answer in answers))
        weights = np.array(
            [scipy.linalg.block_diag(*blocks) for blocks in zip(*(answer.weights for answer in answers), strict=True)]
        )
        primal = problem.feasible(covariance)
    slowest = max(answers, key=lambda answer: answer.iterations)
    reason = next((answer.reason for answer in answers if answer.reason is not None), Status.STALLED)
    seconds = time.perf_counter() - start_time
    return judge(
        primal,
        CommonDual(weights),
        seconds=seconds,
        otherwise=Status.ROUNDING if resolved_method == "closed_form" else reason,
        iterations=slowest.iterations,
        history=slowest.history,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ClosedForm(Method):
    """The closed-form optimum for two mechanisms."""

    name = "closed_form"
    problems = ("CommonMechanism",)

    def solve(self, problem: CommonMechanism, limits: loop.Limits, *, start: Solution | None = None) -> Solution:
        if (count := len(problem.bounds)) > 2:
            raise InvalidInputError(f"method closed_form takes two mechanisms, got {count}")
        return solve_common(problem, limits, method=self.name, start=start)


@dataclass(frozen=True, slots=True)
class _BlockSolution:
    covariance: Array
    weights: Array
    iterations: int = 1
    reason: Status | None = None
    history: tuple[Progress, ...] = ()


def _solve_block(
    bounds: Array, criterion: str, method: str, limits: loop.Limits, weights: Array | None
) -> _BlockSolution:
    if bounds.shape[1] == 1:
        is_largest = bounds.ravel() == bounds.max()
        is_first = np.arange(len(bounds)) == np.argmax(is_largest)
        return _BlockSolution(bounds.max(axis=0), is_first[:, None, None].astype(np.float64))
    if method == "closed_form":
        covariance, weights = CLOSED_FORMS[criterion](*bounds)
        return _BlockSolution(_raise_in_units(bounds, covariance), weights)
    outcome, covariance = _ascend(bounds, method, limits, weights)
    facts = (outcome.best_dual.weights, outcome.iterations, outcome.reason, outcome.history)
    return _BlockSolution(_raise_in_units(bounds, covariance), *facts)


def closed_form(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the upper bound of two covariances with minimum trace, ``(P + Q)/2 + |P - Q|/2``, and its dual weights.

    The dual weights are the projectors onto the positive eigenspace of P - Q and its complement (Helstrom 1969).
    """
    values, vectors = np.linalg.eigh(first - second)
    positive_vectors = vectors[:, values > 0]
    projector = positive_vectors @ positive_vectors.T
    covariance = (first + second) / 2 + (vectors * (np.abs(values) / 2)) @ vectors.T
    return covariance, np.stack([projector, np.eye(len(values)) - projector])


# The upper bound of several covariances with minimum volume: a maximal common mechanism that is invariant under changes
# of basis.
#
# In a basis with ``Σ_i P_i = I``, Newton's method follows the minima (centres) of ``−t log det X − Σ_i log det(C_i −
# X)``, with ``X = Σ⁻¹`` and ``C_i = P_i⁻¹``. At a centre the weights ``Y_i = S_i⁻¹ / t``, ``S_i = C_i − X``, sum to Σ,
# and the gap is p/t. For large t the S_i are inaccurate, and the bound has an error of the square of ``Σ_i Y_i - Σ``.
# By the Newton equations, ``(S_i⁻¹ + S_i⁻¹ D S_i⁻¹) / t`` sum to Σ after the step D, up to the square of the step and
# rounding errors.


BARRIER_FACTOR = 10.0  # on t
CENTRING_TOL = 1e-3  # Newton decrement of a centre
MAX_FULL_STEP_DECREMENT = 0.25  # for smaller Newton decrements, full steps converge quadratically
MAX_NEWTON_STEPS = 100  # for one centre
MAX_HALVINGS = 10  # of a step that leaves the domain by rounding errors
MAX_VOLUME_QUERIES = 64  # maximum r of a block: a step solves r² equations


@dataclass(frozen=True, slots=True, eq=False)
class VolumeProgram:
    """The cost matrices in a basis that makes the covariances sum to I, and the basis."""

    costs: Array  # (p, r, r) C_i
    frame: Array  # (r, r) F with ``Σ_i P_i = F F'``
    unit: float  # the r-th root of the determinant of ``F F'``

    @classmethod
    def of(cls, bounds: Array) -> VolumeProgram:
        frame, inner = _summing_to_identity(bounds)
        return cls(np.asarray(np.linalg.inv(inner)), frame, _root_of_determinant(frame @ frame.T))


@dataclass(frozen=True, slots=True, eq=False)
class VolumeState:
    """A centre with its objective and bound, in the units of the problem."""

    objective: float
    lower_bound: float
    covariance: Array
    centre: Array  # X
    weights: Array  # (p, r, r) Y_i, in the units of the problem
    barrier_parameter: float  # t
    steps: int  # number of Newton steps


def start_volume(program: VolumeProgram) -> VolumeState:
    """Return the state at X = I / 2, which is feasible because all ``C_i ⪰ I``."""
    centre = np.eye(len(program.frame)) / 2
    return _state_at(program, centre, _inverses(program.costs - centre), 1.0, 0)


def volume_step(program: VolumeProgram, state: VolumeState) -> VolumeState:
    """Return the centre for the next barrier parameter."""
    barrier_parameter = BARRIER_FACTOR * state.barrier_parameter
    return _state_at(program, *_volume_centre(program.costs, state.centre, barrier_parameter, state.steps))


def _state_at(
    program: VolumeProgram, centre: Array, weights: Array, barrier_parameter: float, steps: int
) -> VolumeState:
    """Return the state at a centre, with its objective and bound; weights may have any scale."""
    frame = program.frame
    mean = float(np.einsum("ikl,ilk->", program.costs, weights)) / len(centre)
    return VolumeState(
        program.unit / _root_of_determinant(centre),
        program.unit * _root_of_determinant(weights.sum(axis=0)) / mean,
        frame @ np.linalg.inv(centre) @ frame.T,
        *(centre, frame @ weights @ frame.T, barrier_parameter, steps),
    )


def volume_of_two(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the upper bound of two covariances with minimum volume, and its dual weights.

    With ``P = F diag(s) F'`` and ``Q = F diag(1 − s) F'`` for the same F, it is ``Σ = F diag(max(s, 1 − s)) F'``.
    Proof: let ``X = F' Σ⁻¹ F`` for an upper bound Σ. It is ``⪯ diag(1/s)`` and ``⪯ diag(1/(1 − s))``, so its diagonal
    entries are at most ``1/max(s_i, 1 − s_i)``, and by Hadamard's inequality ``det X ≤ Π_i X_ii``.
    """
    frame, (inner, _) = _summing_to_identity(np.stack([first, second]))
    values, vectors = np.linalg.eigh(inner)
    factor, maximum = frame @ vectors, np.maximum(values, 1 - values)
    diagonals = np.stack([values >= 0.5, values < 0.5]) * maximum
    return (factor * maximum) @ factor.T, (factor * diagonals[:, None, :]) @ factor.T


def _summing_to_identity(bounds: Array) -> tuple[Array, Array]:
    """Return F with ``Σ_i P_i = F F'``, and all ``F⁻¹ P_i F⁻¹'``."""
    frame: Array = np.linalg.cholesky(bounds.sum(axis=0))
    return frame, _in_frame(frame, bounds)


def _in_frame(frame: Array, matrices: Array) -> Array:
    """Return ``F⁻¹ M F⁻¹'`` for symmetric matrices, shape (p, r, r)."""
    inner = np.linalg.solve(frame, np.swapaxes(np.linalg.solve(frame, matrices), 1, 2))
    return np.asarray((inner + np.swapaxes(inner, 1, 2)) / 2)


def _inverses(matrices: Array) -> Array:
    """Return exactly symmetric inverses of positive definite matrices, shape (p, r, r)."""
    factors = np.linalg.inv(np.linalg.cholesky(matrices))
    return np.asarray(np.swapaxes(factors, 1, 2) @ factors)


def _root_of_determinant(covariance: Array) -> float:
    return float(np.exp(np.linalg.slogdet(covariance)[1] / len(covariance)))


def _volume_centre(costs: Array, point: Array, barrier_parameter: float, steps: int) -> tuple[Array, Array, float, int]:
    """Minimise ``−t log det X − Σ_i log det(C_i − X)`` from a feasible point by Newton's method.

    Return X (r, r), weights (p, r, r), t and the number of steps. The function is self-concordant: with the Newton
    decrement λ, steps of length ``1/(1 + λ)`` stay feasible up to rounding. The method ends at the limit of double
    precision if λ is small and stops decreasing. Raises `numpy.linalg.LinAlgError` if λ never becomes small.
    """
    last_decrement = np.inf
    for step in range(steps + 1, steps + MAX_NEWTON_STEPS + 1):
        factor = np.asarray(np.linalg.cholesky(point), dtype=np.float64)
        direction, decrement, weights = _newton_step(costs, factor, barrier_parameter)
        is_close = decrement <= MAX_FULL_STEP_DECREMENT
        point = _feasible_step(costs, factor, direction if is_close else direction / (1 + decrement))
        if decrement < CENTRING_TOL or (is_close and decrement >= last_decrement):
            inverse = np.linalg.inv(factor)
            return point, inverse.T @ weights @ inverse, barrier_parameter, step
        last_decrement = decrement if is_close else np.inf
    raise np.linalg.LinAlgError(f"no centre at t = {barrier_parameter:g}: the Newton decrement is {decrement:g}")


def _newton_step(costs: Array, factor: Array, barrier_parameter: float) -> tuple[Array, float, Array]:
    """Return the Newton step in a basis that makes the point I, the Newton decrement, and the new weights."""
    size = len(factor)
    slacks = _inverses(_in_frame(factor, costs) - np.eye(size))
    gradient = slacks.sum(axis=0) / barrier_parameter - np.eye(size)
    curvature = np.eye(size**2) + sum(np.kron(slack, slack) for slack in slacks) / barrier_parameter
    direction = -np.linalg.solve(curvature, gradient.ravel())
    # The product of gradient and step could be negative by rounding errors near the centre.
    decrement = float(np.sqrt(barrier_parameter * (direction @ curvature @ direction)))
    matrix = direction.reshape(size, size)
    matrix = (matrix + matrix.T) / 2
    return matrix, decrement, (slacks + slacks @ matrix @ slacks) / barrier_parameter


def _feasible_step(costs: Array, factor: Array, direction: Array) -> Array:
    for _ in range(MAX_HALVINGS):
        candidate = factor @ (np.eye(len(factor)) + direction) @ factor.T
        candidate = (candidate + candidate.T) / 2
        if all(linalg.cholesky(matrix) is not None for matrix in (candidate, *(costs - candidate))):
            return candidate
        direction = direction / 2
    raise np.linalg.LinAlgError("no step is feasible")


CLOSED_FORMS = {"trace": closed_form, "volume": volume_of_two}
"""Closed-form optimum for two mechanisms, by criterion."""


def _choose_method(problem: CommonMechanism, method: str) -> str:
    count, iterative = len(problem.bounds), "fixed_point" if problem.criterion == "trace" else "newton"
    resolved_method = ("closed_form" if count == 2 else iterative) if method == "auto" else method
    if resolved_method not in ("closed_form", iterative):
        raise InvalidInputError(f"method {resolved_method} is not for criterion {problem.criterion!r}: use {iterative}")
    largest = max((part.stop - part.start for part in problem.slices), default=0)
    if resolved_method == "newton" and largest > MAX_VOLUME_QUERIES:
        raise InvalidInputError(
            f"method newton takes at most {MAX_VOLUME_QUERIES} common queries of {count} mechanisms, got {largest}"
        )
    return resolved_method


def _ascend(
    bounds: Array, method: str, limits: loop.Limits, weights: Array | None
) -> tuple[loop.Outcome[CommonState] | loop.Outcome[VolumeState], Array]:
    if method == "newton":
        volume = VolumeProgram.of(bounds)
        path = loop.run(start_volume(volume), partial(volume_step, volume), limits)
        return path, path.best_primal.covariance
    program = CommonProgram.of(bounds)
    outcome = loop.run(start(program, weights), partial(step, program), limits, patience=MAX_STALLED_ROUNDS)
    return outcome, covariance_of(program, outcome.best_primal)


def _weights(problem: CommonMechanism, start: Solution | None) -> Array | None:
    if start is None:
        return None
    if problem.criterion == "volume":
        raise InvalidInputError("start is for criterion 'trace' only: a path of centres has a fixed start")
    weights: Any = getattr(require_solution(start, "start").dual, "weights", None)
    if np.shape(weights) != problem.bounds.shape or not np.all(np.isfinite(weights)):
        count, size, _ = problem.bounds.shape
        raise InvalidInputError(f"start must be a solution for {count} mechanisms and a basis of {size} queries")
    return np.asarray(weights)


def _raise_in_units(bounds: Array, covariance: Array) -> Array:
    """Raise the covariance above every bound in units that scale all coordinates alike, as for the judge.

    This corrects rounding errors: an error that is small relative to the noisiest coordinate can be large relative to
    a coordinate with little noise.
    """
    units = np.sqrt(np.diagonal(bounds, axis1=1, axis2=2).max(axis=0))
    scale = units * units[:, None]
    return raise_above_bounds(bounds / scale, covariance / scale) * scale


# Chains of common mechanisms, with every stage solved far below the requested tolerance.


STAGE_GAP = 1e-10
"""Gap of a stage, if double precision permits: the next stage inherits the remaining gap."""


@blas_threads()
def chain(mechanisms: Sequence[GaussianPrivacy], *, tol: float = 1e-6) -> Chain:
    """Return the chain of certified common mechanisms of two or more mechanisms, in order of elimination.

    Stage s releases the information that mechanisms s, s + 1, … share and that no earlier stage released, so that the
    choice of a mechanism can depend on the answer. Returns a `Chain` with a judged `Solution` for every stage, and
    issues an `UncertifiedWarning` if a stage is not certified. Raises `InvalidInputError` or `InputTypeError` for
    arguments that `dualmech.CommonMechanism` refuses, or a tolerance that is not positive.

    - `mechanisms`: two or more, on the same cells, or tables on the same attributes, with the same neighbours; none may
      release a query exactly;
    - `tol`: gap to prove in every stage.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> columns = dm.LinearGaussianMechanism([[1, 0, 1, 0], [0, 1, 0, 1]], np.eye(2))
    >>> (stage,) = fast.chain([rows, columns]).stages
    >>> stage.known.rank, stage.known.variances(dm.workloads.total(4)).round(6)
    (1, array([2.]))
    """
    accuracy = min(validate.positive_number(tol=tol), STAGE_GAP)

    def stage(problem: CommonMechanism) -> Solution:
        # The chain reports a missed tolerance, not this stage.
        return solve_common(problem, loop.Limits(accuracy))

    return build(mechanisms, stage, tol=tol, solver="fast:chain")
