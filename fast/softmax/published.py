"""SM-II, the algorithm of the fitness-for-use paper: Problem 4 with increasing sharpness (Algorithms 1 to 3).

It updates Σ in the basis of the problem, and ends by the paper's rule, ``(s + m)/t₁ < TOL``, which proves no bound; the
judge certifies the gap afterwards. Differences from the printed text:

- After increasing t, the printed loop uses the direction for the old t. Here, as in the authors' published code, a new
  direction is computed first.
- A direction that is no descent direction is replaced by the negative gradient, as in that code. A line search without
  success ends the sub-problem; the printed line search never ends.
- NTTOL and TOL2 are compared with t₁F, as in that code. With F, as the printed text suggests, no fixed number is
  suitable for every t: a tolerance that is small at t₁ = 1 ends every sub-problem immediately at t₁ = 1000.
- Section 6.3 starts at ``σ² Q⁺(Q⁺)'`` as noise on B x. It is noise on x; on B x it is ``σ² B Q⁺(B Q⁺)'``. This module
  uses the latter, with σ² equal to 0.99 times the largest value that meets the targets, as printed. Both agree for
  B = I.
- Equation 14 is not the Hessian of Equation 8, as explained below. ``hessian="printed"`` uses it nevertheless.

The authors' published code differs from their text in two more points, which `SoftmaxNewton.of_published_code`
reproduces: the first point, and a factor on variances in the soft maximum. For Problem 4 with a fixed sharpness, the
algorithm ends at that sharpness.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # it loads special when that is used
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import ascent
from dualmech.fast.engine.loop import Limits, stopped_message
from dualmech.fast.fitness import by_accuracy_first
from dualmech.fast.methods import Method
from dualmech.fast.reductions.dense import Reduction
from dualmech.linalg import EPS, cholesky, to_dense
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness, soft_max
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array

SupportedProblem: TypeAlias = FitnessForUse | PrivacyFirst | SoftmaxFitness


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxNewton(Method):
    """SM-II, the algorithm of the fitness-for-use paper, with the paper's letters for its options.

    If the paper gives no value (TOL, NTTOL) or several (MU from 2, 5, 10), the default is from the authors' published
    code. MAXITER is `max_iterations` of `fast.solve`. Raises `InvalidInputError` or `InputTypeError` for a value out of
    range.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(4), targets=1.0)
    >>> method = fast.SoftmaxNewton(path_tolerance=1e-5, newton_tolerance=1e-7)
    >>> answer = fast.solve(problem, method=method, tol=1e-4)
    >>> answer.status.name, round(answer.objective, 4)
    ('CERTIFIED', 1.7586)
    """

    name = "softmax_newton"
    problems = ("FitnessForUse", "PrivacyFirst", "SoftmaxFitness")
    on_matrix = True

    conjugate_gradients: int = 5  # MAXCG, maximum number of steps of Algorithm 2
    residual: float = 1e-10  # TOL2, squared residual of t₁F at the end of Algorithm 2
    decrease: float = 0.01  # σ of Algorithm 3, between 0 and 1
    shrink: float = 0.5  # β of Algorithm 3, between 0 and 1
    growth: float = 2.0  # MU > 1, factor on t₁ and t₂
    sharpness: float = 1.0  # initial t₁ = t₂
    path_tolerance: float = 1e-3  # TOL: the algorithm ends when ``(s + m)/t₁`` is less
    newton_tolerance: float = 1e-3  # NTTOL: a sub-problem ends when ``t₁ |⟨s, ∇F⟩|`` is less
    hessian: str = "exact"  # the Hessian of Equation 8, or Equation 14 as printed
    first_share: float = 0.99  # maximum of variance over target for the initial covariance
    # factor on variances over targets in F from the second sub-problem on; t₁ and t₂ do not change
    variance_factor: float = 1.0
    # (p, d) Q of section 6.3: initially, noise is independent on Q x. By default I
    strategy: npt.ArrayLike | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        validate.size(conjugate_gradients=self.conjugate_gradients)
        for name in ("residual", "sharpness", "path_tolerance", "newton_tolerance"):
            validate.positive_number(**{name: getattr(self, name)})
        for name in ("first_share", "variance_factor"):
            validate.positive_number(**{name: getattr(self, name)})
        validate.probability(decrease=self.decrease)
        validate.probability(shrink=self.shrink)
        if not (growth := validate.positive_number(growth=self.growth)) > 1:
            raise InvalidInputError(f"growth must be above 1, got {growth:g}")
        validate.choice([*HESSIANS], hessian=self.hessian)
        if self.strategy is not None:
            object.__setattr__(self, "strategy", validate.finite(2, strategy=self.strategy))
            validate.moderate(strategy=self.strategy)

    @classmethod
    def of_published_code(cls, basis: npt.ArrayLike) -> SoftmaxNewton:
        """Return the method with the settings of the authors' published code for a basis B of k rows.

        The code uses Equation 14 as printed, starts with noise ``k σ² I`` on B x, and sets t₂ to twice the t₁ that it
        has just doubled. Its objective is ``log Σ exp(t₁ g_i) + log Σ exp(t₂ h_j)``, which is t₁F for t₁ = t₂; so it
        has ``2 h_j`` in place of ``h_j``. Its line search ends differently, so answers differ in their last digits.
        """
        rows = validate.finite(2, basis=basis)
        return cls(hessian="printed", strategy=rows, first_share=float(len(rows)), variance_factor=2.0)

    def solve(
        self, problem: SupportedProblem, limits: Limits, *, start: Solution | None = None, orbits: object = None
    ) -> Solution:
        """Run SM-II, or gradient descent (Table 3); see `dualmech.fast.solve`."""
        if isinstance(problem, PrivacyFirst):
            return by_accuracy_first(problem, limits, partial(self.solve, start=start, orbits=orbits))
        if isinstance(problem, FitnessForUse):
            if (geometry := problem.geometry.name) not in ("dense", "stream"):
                raise InvalidInputError(f"method {self.name!r} is for geometry 'dense', got {geometry!r}")
            if orbits is not None:
                raise InvalidInputError(f"orbits are for {', '.join(ascent.METHODS)}, not for {self.name!r}")
            problem = problem.on_matrix()
        if start is not None:
            raise InvalidInputError(f"start is not supported for method {self.name!r}: set its option strategy")
        with np.errstate(all="ignore"):
            objective, lift = _objective(problem, self.sharpness)
            covariance = _initial_covariance(problem, lift, self)
            path = Path(self, problem.t1 if isinstance(problem, SoftmaxFitness) else None)
            result = _optimise(objective, covariance, path, limits)
            inner = result.point.covariance
            return judged_solution(
                problem,
                problem.feasible(inner if lift is None else lift @ inner @ lift.T),
                _dual(problem, result.point),
                tol=limits.tol,
                otherwise=result.reason,
                message=result.message,
                iterations=result.iterations,
                seconds=result.seconds,
                solver=f"fast:{self.name}",
                history=result.history,
            )

    def direction(self, derivatives: Derivatives) -> Array:
        """Return the approximate Newton direction of t₁F (Algorithm 2)."""
        product, t = HESSIANS[self.hessian], derivatives.point.objective.t1
        return conjugate_gradient(
            lambda matrix: t * product(derivatives, matrix),
            t * derivatives.gradient,
            self.conjugate_gradients,
            self.residual,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxGradient(SoftmaxNewton):
    """Gradient descent, the baseline of SM-II in the fitness-for-use paper: gradient steps in place of Newton steps."""

    name = "softmax_gradient"

    def direction(self, derivatives: Derivatives) -> Array:
        return -derivatives.gradient


# Value, gradient and Hessian-vector products of the smoothed objective.
#
# With ``g_i(Σ) = b_i' Σ⁻¹ b_i``, ``h_j(Σ) = v_j Σ v_j'`` (targets divided out), shares ``p ∝ exp(t₁ g)`` and
# ``q ∝ exp(t₂ h)``, and ``a_i = Σ⁻¹ b_i``, the objective
#
#     ``F = (1/t₁) log Σ_i exp(t₁ g_i) + (1/t₂) log Σ_j exp(t₂ h_j) + Σ_j w_j h_j``
#
# has the gradient ``Q + Σ_j w_j v_j'v_j - G`` with ``G = Σ_i p_i a_i a_i'`` and ``Q = Σ_j q_j v_j'v_j``. Its Hessian
# maps a symmetric direction P to
#
#     ``Σ⁻¹ P G + G P Σ⁻¹ + t₁ Σ_i p_i (x_i - x̄) a_i a_i' + t₂ Σ_j q_j (y_j - ȳ) v_j'v_j``
#
# with ``x_i = a_i' P a_i``, ``y_j = v_j P v_j'``, and means x̄, ȳ under p, q: the second derivative of a soft maximum
# is t times a variance. The linear term of the hybrid does not contribute.
#
# Equation 14 of the paper differs in two places. It has a factor t₁ before ``Σ⁻¹ P G + G P Σ⁻¹``. And it has the
# Kronecker products ``G ⊗ G`` and ``Q ⊗ Q``, which map P to ``G P G`` and ``Q P Q``, where the derivative has outer
# products, which map P to ``G ⟨G, P⟩ = x̄ G`` and ``Q ⟨Q, P⟩ = ȳ Q``. (Both are equal for the single gradients
# ``- a_i a_i'`` and ``v_j'v_j``, which have rank one.)
#
# A product takes ``O(k² (k + s + m))`` operations and no more memory than its factors.


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """F as a function of arrays."""

    moves: Array  # (k, s) with columns b_i
    queries: Array  # (m, k) with rows v_j, over √targets
    t1: float  # t1, t2: sharpness of the soft maxima
    t2: float
    extra: Array  # (m,) w_j: total weight times targets

    @classmethod
    def from_reduction(cls, reduction: Reduction, t1: float, t2: float, extra: Array) -> Objective:
        """Return F in the reduced basis, for all neighbours and queries, including those with exponents 0."""
        program, (neighbours, queries) = reduction.program, reduction.shape
        rank = program.queries.shape[1]
        columns, rows = np.zeros((rank, neighbours)), np.zeros((queries, rank))
        columns[:, reduction.neighbours] = np.eye(rank) if program.moves is None else to_dense(program.moves)
        rows[reduction.queries] = program.queries
        return cls(columns, rows, t1, t2, extra)

    def at(self, covariance: Array) -> ObjectivePoint | None:
        """Evaluate F; None unless the matrix is positive definite and F is finite."""
        factor = cholesky(covariance)
        if factor is None:
            return None
        half = scipy.linalg.solve_triangular(factor, self.moves, trans="T", check_finite=False)
        profile = np.einsum("ki,ki->i", half, half)
        ratios = np.einsum("jk,jk->j", self.queries @ covariance, self.queries)
        neighbour_max, neighbour_shares = soft_max(profile, self.t1)
        query_max, query_shares = soft_max(ratios, self.t2)
        value = neighbour_max + query_max + float(self.extra @ ratios)
        if not np.isfinite(value):
            return None
        return ObjectivePoint(self, covariance, factor, half, profile, ratios, neighbour_shares, query_shares, value)

    def sharpened(self, growth: float) -> Objective:
        return replace(self, t1=growth * self.t1, t2=growth * self.t2)

    def trace_norm(self, neighbour_shares: Array, query_shares: Array) -> float:
        """Return ``‖diag(√(q + w)) V B diag(√p)‖_*``, the bound from the shares (the judge recomputes it)."""
        halves = (
            np.sqrt(query_shares + self.extra)[:, None] * self.queries,
            (self.moves * np.sqrt(neighbour_shares)).T,
        )
        left, right = (scipy.linalg.qr(half, mode="r", check_finite=False)[0] for half in halves)
        size = len(self.moves)
        return float(linalg.singular_values(left[:size] @ right[:size].T).sum())


@dataclass(frozen=True, slots=True, eq=False)
class ObjectivePoint:
    """F at a covariance, with the arrays for its derivatives."""

    objective: Objective
    covariance: Array
    factor: Array  # (k, k) upper triangular R with ``R'R = Σ``
    half: Array  # (k, s) with columns ``R'⁻¹ b_i``
    profile: Array  # profile, ratios: (s,) and (m,) g_i and h_j
    ratios: Array
    neighbour_shares: Array  # neighbour_shares, query_shares: (s,) and (m,) p and q
    query_shares: Array
    value: float  # F

    def derivatives(self) -> Derivatives:
        objective = self.objective
        solved_differences = scipy.linalg.solve_triangular(self.factor, self.half, check_finite=False)
        privacy = (solved_differences * self.neighbour_shares) @ solved_differences.T
        accuracy = (objective.queries.T * self.query_shares) @ objective.queries
        linear_part = (objective.queries.T * objective.extra) @ objective.queries
        gradient = accuracy + linear_part - privacy
        return Derivatives(self, solved_differences, privacy, accuracy, (gradient + gradient.T) / 2)


@dataclass(frozen=True, slots=True, eq=False)
class Derivatives:
    """First and second derivatives of F at a point; the Hessian acts on symmetric directions (k, k)."""

    point: ObjectivePoint
    solved_differences: Array  # (k, s) with columns a_i
    privacy: Array  # privacy, accuracy: (k, k) G and Q
    accuracy: Array
    gradient: Array  # (k, k) ``∇F``

    def exact_product(self, direction: Array) -> Array:
        x, y = self._changes(direction)
        p, q = self.point.neighbour_shares, self.point.query_shares
        objective = self.point.objective
        return (
            self._curvature_product(direction)
            + objective.t1 * self._from_neighbours(p * (x - p @ x))
            + objective.t2 * self._from_queries(q * (y - q @ y))
        )

    def printed_product(self, direction: Array) -> Array:
        x, y = self._changes(direction)
        p, q = self.point.neighbour_shares, self.point.query_shares
        objective = self.point.objective
        neighbour_part = (
            self._curvature_product(direction) + self._from_neighbours(p * x) - self.privacy @ direction @ self.privacy
        )
        query_part = self._from_queries(q * y) - self.accuracy @ direction @ self.accuracy
        return objective.t1 * neighbour_part + objective.t2 * query_part

    def _curvature_product(self, direction: Array) -> Array:
        """Return ``Σ⁻¹ P G + G P Σ⁻¹ = Σ_i p_i ∇²g_i P``."""
        half = scipy.linalg.cho_solve((self.point.factor, False), direction @ self.privacy, check_finite=False)
        return np.asarray(half + half.T)

    def _changes(self, direction: Array) -> tuple[Array, Array]:
        """Return ``a_i' P a_i`` and ``v_j P v_j'``."""
        queries = self.point.objective.queries
        return (
            np.einsum("ki,ki->i", direction @ self.solved_differences, self.solved_differences),
            np.einsum("jk,jk->j", queries @ direction, queries),
        )

    def _from_neighbours(self, weights: Array) -> Array:
        return (self.solved_differences * weights) @ self.solved_differences.T

    def _from_queries(self, weights: Array) -> Array:
        queries = self.point.objective.queries
        return (queries.T * weights) @ queries


# Algorithms 2 and 3 of the fitness-for-use paper: a truncated Newton direction, and a line search.
#
# Both are as printed except for termination: conjugate gradients end if a curvature is a rounding error, and the line
# search ends after `MAX_TRIALS` trials; the printed loop would run forever.


MAX_TRIALS = 50  # of a line search; with β = 1/2 the last step length is 2⁻⁴⁹, near rounding level


def conjugate_gradient(product: Callable[[Array], Array], gradient: Array, max_steps: int, tolerance: float) -> Array:
    """Return an approximate minimiser s of ``½ ⟨s, H s⟩ + ⟨s, ∇F⟩`` (Algorithm 2, for Equation 15).

    - `product`: maps a symmetric (k, k) matrix P to H P;
    - `gradient` (k, k): ``∇F``;
    - `max_steps`: MAXCG;
    - `tolerance`: TOL2: squared norm of the final residual.
    """
    step = np.zeros_like(gradient)
    residual = -gradient
    direction = residual
    length = _inner(residual, residual)
    for _ in range(max_steps):
        image = product(direction)
        curvature = _inner(direction, image)
        rounding = EPS * np.sqrt(_inner(direction, direction) * _inner(image, image))
        if not abs(curvature) > rounding:
            break
        step = step + (length / curvature) * direction
        residual = residual - (length / curvature) * image
        new_length = _inner(residual, residual)
        if not new_length > tolerance:
            break
        direction = residual + (new_length / length) * direction
        length = new_length
    return np.asarray((step + step.T) / 2)


def line_search(
    point: ObjectivePoint, step: Array, slope: float, decrease: float = 0.01, shrink: float = 0.5
) -> ObjectivePoint | None:
    """Return the first point ``Σ + β^j s`` that decreases F enough (Algorithm 3), or None.

    - `point`: Σ;
    - `step` (k, k): s, symmetric;
    - `slope`: ``⟨s, ∇F(Σ)⟩``;
    - `decrease`: σ: required fraction of the predicted decrease (Armijo's rule);
    - `shrink`: β.
    """
    length = 1.0
    for _ in range(MAX_TRIALS):
        trial = point.objective.at(point.covariance + length * step)
        if trial is not None and trial.value <= point.value + length * decrease * slope:
            return trial
        length *= shrink
    return None


def _inner(first: Array, second: Array) -> float:
    return float(np.vdot(first, second))


HESSIANS = {"exact": Derivatives.exact_product, "printed": Derivatives.printed_product}

SPAN_TOL = 1e-8  # maximum relative residual of a basis row in the row space of a strategy


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    point: ObjectivePoint
    reason: Status
    message: str
    iterations: int
    seconds: float
    history: tuple[Progress, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """The sequence of sub-problems of Algorithm 1."""

    method: SoftmaxNewton
    requested_t1: float | None  # the t₁ of Problem 4; None for Problem 1

    def reason_to_end(self, point: ObjectivePoint) -> str:
        """Return the reason to end the run at the minimiser of a sub-problem, or an empty text to continue."""
        t1 = point.objective.t1
        if self.requested_t1 is not None:
            return "it ended at the requested sharpness" if t1 >= self.requested_t1 else ""
        bound = (len(point.neighbour_shares) + len(point.query_shares)) / t1
        if bound >= self.method.path_tolerance:
            return ""
        return f"it ended by its own rule, (s + m)/t1 = {bound:.2g}, which proves no bound"

    def sharper(self, objective: Objective) -> Objective:
        growth, t1 = self.method.growth, objective.t1
        if self.requested_t1 is not None and growth * t1 >= self.requested_t1:
            # The product could differ from the requested sharpness by rounding.
            return replace(objective, t1=self.requested_t1, t2=objective.t2 * (self.requested_t1 / t1))
        next_objective = objective.sharpened(growth)
        if t1 > self.method.sharpness:
            return next_objective
        return replace(next_objective, queries=objective.queries * np.sqrt(self.method.variance_factor))


def _optimise(objective: Objective, covariance: Array, path: Path, limits: Limits) -> RunResult:
    start_time, method = time.perf_counter(), path.method
    point = objective.at(covariance)
    if point is None:
        raise InvalidInputError(
            "basis and strategy must be well conditioned: their initial covariance, σ² B Q⁺(B Q⁺)', is not positive "
            "definite in double precision"
        )
    history: list[Progress] = []
    for iteration in range(1, limits.max_iterations + 1):
        derivatives = point.derivatives()
        step = method.direction(derivatives)
        slope = float(np.vdot(step, derivatives.gradient))
        if not slope < 0:
            step, slope = -derivatives.gradient, -float(np.vdot(derivatives.gradient, derivatives.gradient))
        next_point = None
        if not point.objective.t1 * abs(slope) < method.newton_tolerance:
            next_point = line_search(point, step, slope, method.decrease, method.shrink)
        seconds = time.perf_counter() - start_time
        if next_point is None:
            history.append(_progress(point, path.requested_t1 is not None, iteration, seconds))
            if limits.callback is not None:
                limits.callback(history[-1])
            if message := path.reason_to_end(point):
                return RunResult(point, Status.STALLED, message, iteration, seconds, tuple(history))
            next_point = path.sharper(point.objective).at(point.covariance)
            if next_point is None:
                return RunResult(point, Status.NON_FINITE, "", iteration, seconds, tuple(history))
        point = next_point
        if limits.deadline.passed:
            break
    message = stopped_message(iteration, seconds)
    return RunResult(point, Status.STEPS_EXHAUSTED, message, iteration, seconds, tuple(history))


def _progress(point: ObjectivePoint, smooth: bool, iteration: int, seconds: float) -> Progress:
    """Report objective and bound at the end of a sub-problem: of Problem 1 or, if `smooth`, of the sub-problem."""
    value = float(point.profile.max() * point.ratios.max())
    bound = point.objective.trace_norm(point.neighbour_shares, point.query_shares) ** 2
    if smooth:
        terms = (point.neighbour_shares, point.objective.t1), (point.query_shares, point.objective.t2)
        value, bound = point.value, 2 * bound**0.5 + sum(float(scipy.special.entr(p).sum()) / t for p, t in terms)
    return Progress(iteration, value, bound, (value - bound) / bound if bound > 0 else np.inf, seconds)


def _objective(problem: SupportedProblem, sharpness: float) -> tuple[Objective, Array | None]:
    """Return F in the problem's basis or, if smaller, on the sensitive directions, and the map to the problem."""
    geometry, t1, t2, weight = problem.geometry, sharpness, sharpness, 0.0
    if isinstance(problem, SoftmaxFitness):
        t1, weight = min(sharpness, problem.t1), problem.total_weight
        t2 = t1 * (problem.t2 / problem.t1)
    extra = weight * problem.targets
    if len(geometry.unmoved):
        reduction = Reduction.of(geometry, problem.targets)
        return Objective.from_reduction(reduction, t1, t2, extra), reduction.lift
    queries = geometry.representation / np.sqrt(problem.targets)[:, None]
    return Objective(geometry.moves, queries, t1, t2, extra), None


def _initial_covariance(problem: SupportedProblem, lift: Array | None, method: SoftmaxNewton) -> Array:
    """Return ``σ² B Q⁺(B Q⁺)'`` (section 6.3) in the coordinates of the program."""
    noise, strategy = np.asarray(problem.basis), method.strategy
    if strategy is not None:
        queries = np.asarray(strategy)
        if queries.shape[1] != problem.workload.shape[1]:
            raise InvalidInputError(
                f"strategy must have {problem.workload.shape[1]} columns, one per cell, got {queries.shape[1]}"
            )
        noise = problem.basis @ np.linalg.pinv(queries)
        residuals = np.linalg.norm(problem.basis - noise @ queries, axis=1)
        if np.any(residuals > SPAN_TOL * np.linalg.norm(problem.basis, axis=1)):
            raise InvalidInputError("strategy must span the rows of the workload, to make it estimable")
    workload_noise = problem.geometry.representation @ noise
    variances = np.einsum("jk,jk->j", workload_noise, workload_noise)
    is_noisy = variances > 0
    scale = method.first_share * float((problem.targets[is_noisy] / variances[is_noisy]).min())
    inner = noise if lift is None else np.linalg.lstsq(lift, noise)[0]
    return scale * (inner @ inner.T)


def _dual(problem: SupportedProblem, point: ObjectivePoint) -> FitnessDual | SoftmaxDual:
    """Return the soft-maximum weights; for Problem 1, with 0 for neighbours and queries without a constraint."""
    privacy, accuracy = point.neighbour_shares.copy(), point.query_shares.copy()
    if isinstance(problem, SoftmaxFitness):
        return SoftmaxDual(privacy, accuracy)
    privacy[~np.any(problem.geometry.moves, axis=0)] = 0.0
    accuracy[problem.geometry.free_queries] = 0.0
    return FitnessDual(privacy / privacy.sum(), accuracy / accuracy.sum() / problem.targets)
