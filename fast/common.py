"""Common mechanisms: in closed form for two, by an accelerated fixed point of the dual for more."""

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

# The least trace above several covariances: an accelerated fixed point of the dual, a measurement of quantum states.
#
# Write ``Y_i = V_i V_i'``, so that ``Σ_i Y_i = I`` says that the rows of ``[V_1 … V_p]`` are orthonormal. At a maximum
# of ``Σ_i tr(P_i Y_i)`` this matrix is the polar factor of ``[P_1 V_1 … P_p V_p]``. Where all ``P_i ⪰ 0``, replacing
# the matrix by the polar factor never lowers the value (Ježek, Řeháček and Fiurášek 2002). Three things make that
# quick:
#
# - Σ and all P_i may be shifted by the same matrix. The step changes most where the P_i are small, so their common part
#   is subtracted first; for two of them hardly a step then remains.
# - Steps are extrapolated (Anderson 1965): the next begins at the combination of the last ``P_i V_i`` that would have
#   moved least. Where the value falls, the plain step is taken, and what came before is forgotten. Near the limit of
#   doubles it falls often; then Nesterov's momentum takes over, which forgets less.
# - ``Σ_i P_i Y_i`` is the Σ that fits the optimality conditions ``(Σ - P_i) Y_i = 0`` best, but is not yet above the
#   P_i. It is raised by the positive part of ``P_i - Σ``, one mechanism after the other, which costs far less trace
#   than a multiple of the identity. During the run it is enough to know that all this costs at most the sum of the
#   positive eigenvalues: what raises Σ for one mechanism leaves less to raise for the next.


LIFT = 1e-4
"""Multiple of the identity added to the shifted P_i, in units of their mean variance: it keeps them invertible."""

CLEAR = 1e-6
"""Least eigenvalue, relative to the largest, at which a polar factor counts as orthonormal without a second look."""

MOST_DECOMPOSITIONS = 4  # attempts that one polar factor may take
MOST_COMBINED, COMBINED_BYTES = 10, 2**28  # steps that are combined, and the memory that they may take
RIDGE = 1e-10  # added to the correlations of their moves, which become dependent near the optimum
MOST_FALLS = 3  # of the value, before momentum takes over
INERTIA = 3  # the momentum after j steps is ``j / (j + INERTIA)``
ROUND = 5  # steps of the fixed point between two looks at the gap
PATIENCE = 90  # looks without a smaller gap: on its way to a direction that lost its weight, the covariance costs more
ROUNDING = 64 * EPS  # relative fall of the value that does not yet count as one

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
class Moves:
    """The last steps, oldest first: where each came to, by how much it moved, and the products of the moves."""

    ends: tuple[Array, ...] = ()  # (p, r, r) ``P_i V_i``
    moves: tuple[Array, ...] = ()
    products: Array = field(default_factory=lambda: np.zeros((0, 0)))
    age: int = 0  # steps since the value last fell
    falls: int = 0

    def with_step(self, begin: Array, end: Array) -> Moves:
        """Return the steps with one more, without the oldest where they are too many."""
        most = min(max(COMBINED_BYTES // (2 * end.nbytes), 2), MOST_COMBINED)
        oldest = 1 if len(self.ends) >= most else 0
        moves = (*self.moves[oldest:], end - begin)
        products = np.empty((len(moves), len(moves)))
        products[:-1, :-1] = self.products[oldest:, oldest:]
        products[-1] = products[:, -1] = [np.vdot(moves[-1], move) for move in moves]
        return Moves((*self.ends[oldest:], end), moves, products, self.age + 1, self.falls)

    def extrapolated(self) -> Array:
        """Return the combination ``Σ_j a_j end_j``, ``Σ_j a_j = 1``, with ``‖Σ_j a_j move_j‖`` least, or momentum's."""
        if self.falls >= MOST_FALLS:
            momentum = self.age / (self.age + INERTIA)
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

    objective: float  # at most which the fitted covariance costs once it is raised above the bounds
    lower_bound: float  # of the weights; both as of the last look
    factors: Array  # (p, r, r) V_i
    pulled: Array  # (p, r, r) ``P_i V_i``
    last: Moves
    steps: int  # eigendecompositions so far

    @property
    def weights(self) -> Array:
        """The dual weights ``Y_i = V_i V_i'``."""
        return self.factors @ _transpose(self.factors)

    @property
    def fitted(self) -> Array:
        """The covariance ``Σ_i P_i Y_i``, in the program's units, symmetrised."""
        product = (self.pulled @ _transpose(self.factors)).sum(axis=0)
        return np.asarray((product + product.T) / 2)


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
    return _with_gap(program, CommonState(np.inf, 0.0, factors, pulled, Moves(), spent))


def step(program: CommonProgram, state: CommonState) -> CommonState:
    """Take a round of steps, then compute the gap."""
    for _ in range(ROUND):
        state = _extrapolated_step(program, state)
    return _with_gap(program, state)


def covariance_of(program: CommonProgram, state: CommonState) -> Array:
    """Return the state's covariance, raised above the bounds, in the problem's own units."""
    return program.covariance(raise_above_bounds(program.bounds, state.fitted))


def raise_above_bounds(bounds: Array, covariance: Array) -> Array:
    """Return the covariance, raised above every bound up to rounding, the worst violation first."""
    missing = [_positive_part(bound - covariance) for bound in bounds]
    order = np.argsort([-np.trace(part) for part in missing], kind="stable")
    covariance = covariance + missing[order[0]]
    for index in order[1:]:
        covariance = covariance + _positive_part(bounds[index] - covariance)
    return (covariance + covariance.T) / 2


def _extrapolated_step(program: CommonProgram, state: CommonState) -> CommonState:
    """Take the step from the extrapolated point, or the plain one where the former lowers the value."""
    last = state.last
    begin = last.extrapolated() if last.ends else state.pulled
    factors, spent = _polar(begin)
    pulled = program.bounds @ factors
    if last.ends and not np.vdot(pulled, factors) >= (1 - ROUNDING) * np.vdot(state.pulled, state.factors):
        begin, last = state.pulled, Moves(falls=last.falls + 1)
        factors, more = _polar(begin)
        pulled, spent = program.bounds @ factors, spent + more
    return replace(state, factors=factors, pulled=pulled, last=last.with_step(begin, pulled), steps=state.steps + spent)


def _with_gap(program: CommonProgram, state: CommonState) -> CommonState:
    fitted = state.fitted
    raised = float(np.trace(fitted) + np.maximum(np.linalg.eigvalsh(program.bounds - fitted), 0.0).sum())
    proven = program.value(float(np.vdot(state.pulled, state.factors)))
    steps = state.steps + len(program.bounds)
    return replace(state, objective=program.value(raised), lower_bound=proven, steps=steps)


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


def solve_common(
    problem: CommonMechanism, limits: loop.Limits, *, method: str = "auto", start: Solution | None = None
) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    chosen = _choose_method(problem, method)
    answered = partial(judged_solution, problem, tol=limits.tol, solver=f"fast:{method}")
    began = time.perf_counter()
    if problem.trivial:
        nothing = np.zeros(problem.bounds.shape)
        return answered(nothing[0], CommonDual(nothing), otherwise=Status.STALLED, message=TRIVIAL)
    with np.errstate(all="ignore"):
        known = _weights(problem, start)
        answers = [
            _solve_block(
                problem.bounds[:, block, block],
                problem.criterion,
                chosen,
                limits,
                None if known is None else known[:, block, block],
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


@dataclass(frozen=True, slots=True, eq=False)
class ClosedForm(Method):
    """The optimum of two mechanisms in closed form."""

    name = "closed_form"
    problems = ("CommonMechanism",)

    def solve(self, problem: CommonMechanism, limits: loop.Limits, *, start: Solution | None = None) -> Solution:
        if (count := len(problem.bounds)) > 2:
            raise InvalidInputError(f"method closed_form is for two mechanisms, got {count}")
        return solve_common(problem, limits, method=self.name, start=start)


@dataclass(frozen=True, slots=True)
class _Solved:
    covariance: Array
    weights: Array
    iterations: int = 1
    reason: Status | None = None
    history: tuple[Progress, ...] = ()


def _solve_block(bounds: Array, criterion: str, method: str, limits: loop.Limits, weights: Array | None) -> _Solved:
    if bounds.shape[1] == 1:
        largest = bounds.ravel() == bounds.max()
        first = np.arange(len(bounds)) == np.argmax(largest)
        return _Solved(bounds.max(axis=0), first[:, None, None].astype(np.float64))
    if method == "closed_form":
        covariance, proving = CLOSED_FORMS[criterion](*bounds)
        return _Solved(_raise_in_units(bounds, covariance), proving)
    outcome, covariance = _ascend(bounds, method, limits, weights)
    reached = (outcome.best_dual.weights, outcome.iterations, outcome.reason, outcome.history)
    return _Solved(_raise_in_units(bounds, covariance), *reached)


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
#
# In coordinates in which ``Σ_i P_i = I``, Newton's method follows the centres of
# ``−t log det X − Σ_i log det(C_i − X)``, with ``X = Σ⁻¹`` and ``C_i = P_i⁻¹``. At a centre the weights
# ``Y_i = S_i⁻¹ / t``, ``S_i = C_i − X``, sum to Σ, and the gap is p/t. For large t rounding spoils the S_i, and the
# bound loses the square of what the sum misses Σ by. Newton's equations say that ``(S_i⁻¹ + S_i⁻¹ D S_i⁻¹) / t``, D the
# step, sum to Σ after it, up to the square of the step and the rounding of their solution.


VOLUME_GROWTH = 10.0  # factor from one sharpness to the next
CENTRED = 1e-3  # Newton decrement at which a point counts as a centre
CLOSE_TO_CENTRE = 0.25  # Newton decrement up to which full Newton steps converge quadratically
MAX_NEWTON_STEPS = 100  # to one centre
MAX_SHORTENINGS = 10  # halvings of a step that rounding takes out of the domain
LARGEST_VOLUME = 64  # most coordinates r of a block: a step solves r² equations


@dataclass(frozen=True, slots=True, eq=False)
class VolumeProgram:
    """The cost matrices in coordinates in which the covariances sum to I, and the way back."""

    costs: Array  # (p, r, r) C_i
    frame: Array  # (r, r) F with ``Σ_i P_i = F F'``
    unit: float  # the r-th root of the determinant of ``F F'``

    @classmethod
    def of(cls, bounds: Array) -> VolumeProgram:
        """Bring the covariances, which are positive definite, to coordinates in which they sum to I."""
        frame, inner = _summing_to_identity(bounds)
        return cls(np.asarray(np.linalg.inv(inner)), frame, _root_of_determinant(frame @ frame.T))


@dataclass(frozen=True, slots=True, eq=False)
class VolumeState:
    """A centre, with both sides of the gap that it proves, in the problem's own units."""

    objective: float
    lower_bound: float
    covariance: Array
    centre: Array  # X
    weights: Array  # (p, r, r) Y_i, in the problem's own units
    sharpness: float
    steps: int  # Newton steps so far


def start_volume(program: VolumeProgram) -> VolumeState:
    """Begin at X = I / 2, which is within all ``C_i ⪰ I``."""
    centre = np.eye(len(program.frame)) / 2
    return _proven(program, centre, _inverses(program.costs - centre), 1.0, 0)


def sharpen_volume(program: VolumeProgram, state: VolumeState) -> VolumeState:
    """Return the centre of the next sharpness."""
    sharpness = VOLUME_GROWTH * state.sharpness
    return _proven(program, *_volume_centre(program.costs, state.centre, sharpness, state.steps))


def _proven(program: VolumeProgram, centre: Array, weights: Array, sharpness: float, steps: int) -> VolumeState:
    """Return a point of the path with both sides of its gap; weights in any unit."""
    frame = program.frame
    mean = float(np.einsum("ikl,ilk->", program.costs, weights)) / len(centre)
    return VolumeState(
        program.unit / _root_of_determinant(centre),
        program.unit * _root_of_determinant(weights.sum(axis=0)) / mean,
        frame @ np.linalg.inv(centre) @ frame.T,
        *(centre, frame @ weights @ frame.T, sharpness, steps),
    )


def volume_of_two(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the least volume above two covariances, and weights that prove it.

    With ``P = F diag(s) F'`` and ``Q = F diag(1 − s) F'``, one F for both, it is ``Σ = F diag(max(s, 1 − s)) F'``.
    Proof: let ``X = F' Σ⁻¹ F`` for an upper bound Σ. It is ``⪯ diag(1/s)`` and ``⪯ diag(1/(1 − s))``, so its diagonal
    entries are at most ``1/max(s_i, 1 − s_i)``, and by Hadamard's inequality ``det X ≤ Π_i X_ii``.
    """
    frame, (inner, _) = _summing_to_identity(np.stack([first, second]))
    values, vectors = np.linalg.eigh(inner)
    factor, least = frame @ vectors, np.maximum(values, 1 - values)
    shares = np.stack([values >= 0.5, values < 0.5]) * least
    return (factor * least) @ factor.T, (factor * shares[:, None, :]) @ factor.T


def _summing_to_identity(bounds: Array) -> tuple[Array, Array]:
    """Return F with ``Σ_i P_i = F F'``, and the ``F⁻¹ P_i F⁻¹'``."""
    frame: Array = np.linalg.cholesky(bounds.sum(axis=0))
    return frame, _in_frame(frame, bounds)


def _in_frame(frame: Array, matrices: Array) -> Array:
    """Return ``F⁻¹ M F⁻¹'`` of symmetric matrices (p, r, r)."""
    inner = np.linalg.solve(frame, np.swapaxes(np.linalg.solve(frame, matrices), 1, 2))
    return np.asarray((inner + np.swapaxes(inner, 1, 2)) / 2)


def _inverses(matrices: Array) -> Array:
    """Return the inverses of positive definite matrices (p, r, r), symmetric however ill-conditioned these are."""
    factors = np.linalg.inv(np.linalg.cholesky(matrices))
    return np.asarray(np.swapaxes(factors, 1, 2) @ factors)


def _root_of_determinant(covariance: Array) -> float:
    return float(np.exp(np.linalg.slogdet(covariance)[1] / len(covariance)))


def _volume_centre(costs: Array, point: Array, sharpness: float, steps: int) -> tuple[Array, Array, float, int]:
    """Return the X (r, r) at which ``−t log det X − Σ_i log det(C_i − X)`` is least, and weights (p, r, r).

    It begins at a point within all C_i. The function is self-concordant: steps of ``1/(1 + λ)``, λ the Newton
    decrement, stay inside but for rounding. Where rounding keeps λ from falling, the point is as close to the centre as
    doubles allow. Raises `numpy.linalg.LinAlgError` where that is not close enough to have bounds. Returns the
    sharpness, and the number of steps so far, as well.
    """
    last = np.inf
    for step in range(steps + 1, steps + MAX_NEWTON_STEPS + 1):
        factor = np.asarray(np.linalg.cholesky(point), dtype=np.float64)
        move, decrement, weights = _volume_move(costs, factor, sharpness)
        close = decrement <= CLOSE_TO_CENTRE
        point = _moved_within(costs, factor, move if close else move / (1 + decrement))
        if decrement < CENTRED or (close and decrement >= last):
            back = np.linalg.inv(factor)
            return point, back.T @ weights @ back, sharpness, step
        last = decrement if close else np.inf
    raise np.linalg.LinAlgError(f"no centre at sharpness {sharpness:g}: the Newton decrement is {decrement:g}")


def _volume_move(costs: Array, factor: Array, sharpness: float) -> tuple[Array, float, Array]:
    """Return the Newton step in coordinates in which the point is I, the Newton decrement, and weights after the step.

    There the equations are never far from their scale.
    """
    size = len(factor)
    slacks = _inverses(_in_frame(factor, costs) - np.eye(size))
    slope = slacks.sum(axis=0) / sharpness - np.eye(size)
    curvature = np.eye(size**2) + sum(np.kron(slack, slack) for slack in slacks) / sharpness
    move = -np.linalg.solve(curvature, slope.ravel())
    # Not by the slope: near the centre rounding could make its product with the step negative.
    decrement = float(np.sqrt(sharpness * (move @ curvature @ move)))
    matrix = move.reshape(size, size)
    matrix = (matrix + matrix.T) / 2
    return matrix, decrement, (slacks + slacks @ matrix @ slacks) / sharpness


def _moved_within(costs: Array, factor: Array, move: Array) -> Array:
    """Return the point after a step, which is shortened until the point lies within all C_i."""
    for _ in range(MAX_SHORTENINGS):
        moved = factor @ (np.eye(len(factor)) + move) @ factor.T
        moved = (moved + moved.T) / 2
        if all(linalg.cholesky(matrix) is not None for matrix in (moved, *(costs - moved))):
            return moved
        move = move / 2
    raise np.linalg.LinAlgError("no step within the constraints")


CLOSED_FORMS = {"trace": closed_form, "volume": volume_of_two}
"""By criterion, the optimum of two."""


def _choose_method(problem: CommonMechanism, method: str) -> str:
    count, iterative = len(problem.bounds), "fixed_point" if problem.criterion == "trace" else "newton"
    chosen = ("closed_form" if count == 2 else iterative) if method == "auto" else method
    if chosen not in ("closed_form", iterative):
        raise InvalidInputError(f"method {chosen} is not for criterion {problem.criterion!r}, whose is {iterative}")
    largest = max((part.stop - part.start for part in problem.slices), default=0)
    if chosen == "newton" and largest > LARGEST_VOLUME:
        raise InvalidInputError(
            f"method newton takes at most {LARGEST_VOLUME} common queries of {count} mechanisms, got {largest}"
        )
    return chosen


def _ascend(
    bounds: Array, method: str, limits: loop.Limits, weights: Array | None
) -> tuple[loop.Outcome[CommonState] | loop.Outcome[VolumeState], Array]:
    if method == "newton":
        volume = VolumeProgram.of(bounds)
        sharpened = loop.run(start_volume(volume), partial(sharpen_volume, volume), limits)
        return sharpened, sharpened.best_primal.covariance
    program = CommonProgram.of(bounds)
    outcome = loop.run(start(program, weights), partial(step, program), limits, patience=PATIENCE)
    return outcome, covariance_of(program, outcome.best_primal)


def _weights(problem: CommonMechanism, start: Solution | None) -> Array | None:
    if start is None:
        return None
    if problem.criterion == "volume":
        raise InvalidInputError("start belongs to criterion 'trace': a path of centres has its own")
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
    choice among them can wait for its answer. Raises `InvalidInputError` or
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
    >>> (stage,) = fast.chain([rows, columns]).stages
    >>> stage.known.rank, stage.known.variances(dm.workloads.total(4)).round(6)
    (1, array([2.]))
    """
    accuracy = min(validate.positive_number(tol=tol), STAGE_GAP)

    def stage(problem: CommonMechanism) -> Solution:
        # The chain, not this stage, reports that the requested tolerance was missed.
        return solve_common(problem, loop.Limits(accuracy))

    return build(mechanisms, stage, tol=tol, solver="fast:chain")
