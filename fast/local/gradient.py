"""The paper's projected gradient descent over strategies with a fixed number of outputs (its algorithms 1 and 2).

The variables are the strategy Q (m, n) and the floor z (m,) of its rows, ``z_o ≤ Q_ou ≤ e^ε z_o``. A step
follows the negative gradient in both, and projects every column of Q onto its bounds and the sum 1. The method finds
good strategies and proves nothing about them: the problem is not convex in Q, and steps can end at rows that stay at
their floors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop
from dualmech.fast.local import points
from dualmech.fast.local.estimate import columns_within
from dualmech.fast.methods import Method
from dualmech.mechanisms.local import LocalMechanism
from dualmech.problems.local.strategy import LocalPoint, LocalStrategy
from dualmech.progress import Progress, Status
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array

OUTPUTS_PER_USER_TYPE = 4
TRIAL_STEPS = 50  # steps of a trial walk; the step length is halved after every such number of steps
MAX_TRIAL_LENGTHS = 3  # the first step length whose projections are feasible, its half and its quarter
MAX_DRAWS = 10  # of a random strategy
MIN_STEP = 1e-50  # smaller step lengths are not tried
JUDGING_FACTOR = 4  # time reserved for judging the last strategy, relative to the first
MIN_FLOOR = 1e-10  # outputs with a smaller floor are dropped

PROVES_NOTHING = "gradient descent finds good strategies and proves nothing about them: use method exact or restart"

Start: TypeAlias = npt.ArrayLike | LocalMechanism | Solution
"""The start of a descent: a strategy Q (m, n), or an object with a strategy."""


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedGradient(Method):
    """The projected gradient descent of the paper on local strategies, from a random strategy or from a `start`.

    Raises `InvalidInputError` or `InputTypeError` for an option out of range.

    Attributes
    ----------
    outputs : int, optional
        Outputs of the random strategy, at least the number of user types; four times that number by default.
    step_size : float, optional
        Length of the steps, halved after every 50, in units that scale ``W'W`` to trace n (`PublishedGradient`: in
        units of the average variance); found by trial by default.
    iterations : int, default 250
        Number of steps once their length is known.
    rng : numpy.random.Generator or int, default 0
        The source of the random strategy.
    """

    name = "gradient"
    problems = ("LocalStrategy",)
    published: ClassVar[bool] = False  # whether to reproduce the steps of the authors' code

    outputs: int | None = None
    step_size: float | None = None
    iterations: int = 250
    rng: np.random.Generator | int = 0

    def __post_init__(self) -> None:
        if self.outputs is not None:
            validate.size(outputs=self.outputs)
        if self.step_size is not None:
            validate.positive_number(step_size=self.step_size)
        validate.size(iterations=self.iterations)
        validate.generator(rng=self.rng)

    def solve(self, problem: LocalStrategy, limits: loop.Limits, *, start: Start | None = None) -> Solution:
        """Descend from a strategy and judge the best iterate, which is at least as good as a given start."""
        if self.outputs is not None and self.outputs < (size := problem.user_types):
            raise InvalidInputError(f"outputs must be at least {size}, the number of user types, got {self.outputs}")
        if start is not None and self.outputs is not None:
            raise InvalidInputError("give either outputs or start, which determines the outputs")
        first_strategy = None if start is None else _start_strategy(problem, start)
        start_time = time.perf_counter()
        with np.errstate(all="ignore"):
            strategy, log = self.descend(problem, limits, first_strategy)
            seconds = time.perf_counter() - start_time
            strategies = (strategy,) if first_strategy is None else (strategy, first_strategy)
            feasible = [problem.feasible(LocalPoint(strategy, problem.prior)) for strategy in strategies]
            point = points.smallest_good(problem, feasible, tol=0.0)
            messages = (loop.stopped_message(len(log.history), seconds) if log.cut else "", PROVES_NOTHING)
            return judged_solution(
                problem,
                points.primal(problem, point),
                points.closed_form_weights(problem, problem.dual_at(point)),
                tol=limits.tol,
                otherwise=Status.STEPS_EXHAUSTED if log.cut else Status.STALLED,
                message="; ".join(filter(None, messages)),
                iterations=len(log.history),
                seconds=time.perf_counter() - start_time,
                solver=f"fast:{self.name}",
                history=tuple(log.history),
            )

    def descend(
        self, problem: LocalStrategy, limits: loop.Limits, start: Array | None = None
    ) -> tuple[Array, DescentLog]:
        """Return the best strategy of the descent and its log; unless given, the step length is found by trial."""
        gram = problem.root.T @ problem.root
        unit = float(len(gram)) if self.published else float(np.trace(gram)) / len(gram)
        growth = float(np.exp(problem.epsilon))
        program = DescentObjective(gram / unit, problem.user_types * problem.prior, growth, self.published)
        if start is None:
            outputs = self.outputs or OUTPUTS_PER_USER_TYPE * problem.user_types
            first_iterate = random_start(program, outputs, validate.generator(rng=self.rng))
        else:
            first_iterate = own_start(program, start)
        first_iterate = _walk_start(program, first_iterate)
        if limits.deadline.left is not None:
            start_time = time.perf_counter()
            points.objective(problem, LocalPoint(first_iterate.strategy, problem.prior))
            judging_time = JUDGING_FACTOR * (time.perf_counter() - start_time)
            limits = replace(limits, deadline=limits.deadline.before(judging_time))
        log = DescentLog(limits, unit, problem.criterion == "worst")
        best, length = first_iterate, self.step_size
        if length is None:
            best, length = _try_lengths(program, first_iterate, log)
        if not log.out_of_limits():
            best = _descend(program, _walk_start(program, best), length, self.iterations, log, strict=False) or best
        return best.strategy, log


@dataclass(frozen=True, slots=True, eq=False)
class PublishedGradient(ProjectedGradient):
    """The gradient descent of the authors' code, whose derivative omits a term."""

    name = "published_gradient"
    published = True


def _start_strategy(problem: LocalStrategy, start: Start) -> Array:
    mechanism = start.mechanism if isinstance(start, Solution) else start
    matrix = validate.finite(2, start=getattr(mechanism, "strategy", mechanism))
    try:
        return LocalMechanism(matrix, problem.epsilon, problem.workload).strategy
    except InvalidInputError as error:
        raise InvalidInputError(f"start: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class DescentObjective:
    """The objective ``tr(G⁻¹ W'W)``, ``G = Q' diag(Q share)⁻¹ Q``, in units that scale W'W to trace n.

    The authors' code (`published`) differs from the text and from `gradient` in five points: the floor's derivative
    (`floor_gradient`); its unit, the average variance; the floors at the start of a walk, the row minima; the choice of
    the step length, by the worst variance; and walks that ignore their last step. It fails if a floor is infeasible;
    here, the floor is corrected.
    """

    gram: Array  # (n, n) W'W
    share: Array  # (n,) n times the prior
    growth: float  # e^ε
    published: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class DescentIterate:
    """A strategy, the floor of its rows, its objective and its gradient."""

    strategy: Array
    floor: Array
    objective: float
    gradient: Array
    worst: float = np.inf  # the largest variance of a user type

    @property
    def finite(self) -> bool:
        """Whether the workload can be estimated from the strategy."""
        return bool(np.isfinite(self.objective))


def _walk_start(program: DescentObjective, iterate: DescentIterate) -> DescentIterate:
    """Return the start of a walk; the authors' code resets its floors."""
    return replace(iterate, floor=iterate.strategy.min(axis=1)) if program.published else iterate


def _try_lengths(
    program: DescentObjective, first_iterate: DescentIterate, log: DescentLog
) -> tuple[DescentIterate, float]:
    length = 1.0
    trials: list[tuple[float, float, DescentIterate]] = []
    while len(trials) < MAX_TRIAL_LENGTHS and length > MIN_STEP and not log.out_of_limits():
        walk = _descend(program, first_iterate, length, TRIAL_STEPS, log, strict=not trials)
        if walk is not None:
            trials.append((walk.worst if program.published else walk.objective, length, walk))
        length /= 2
    _, length, best = min(trials, key=lambda trial: trial[:2], default=(0.0, length, first_iterate))
    return best, length


class DescentLog:
    """The progress of a descent over all its walks, and whether a limit has ended it."""

    def __init__(self, limits: loop.Limits, unit: float, report_worst: bool) -> None:
        """Progress reports contain the worst variance if `report_worst`, else the average variance."""
        self.limits, self.unit, self.report_worst, self.start_time = limits, unit, report_worst, time.perf_counter()
        self.history: list[Progress] = []
        self.cut = False

    def out_of_limits(self) -> bool:
        """Return whether the step limit or the deadline is reached, and record it in `cut`."""
        self.cut = self.limits.deadline.passed or len(self.history) >= self.limits.max_iterations
        return self.cut

    def add(self, best: DescentIterate) -> None:
        seconds = time.perf_counter() - self.start_time
        value = self.unit * (best.worst if self.report_worst else best.objective)
        news = Progress(len(self.history) + 1, value, 0.0, np.inf, seconds)
        self.history.append(news)
        if self.limits.callback is not None:
            self.limits.callback(news)


def _descend(
    program: DescentObjective,
    first_iterate: DescentIterate,
    length: float,
    max_steps: int,
    log: DescentLog,
    strict: bool,
) -> DescentIterate | None:
    best = first_iterate
    for num_steps, current in enumerate(descent_steps(program, first_iterate, length, max_steps, strict), 1):
        if current is None:
            return None
        if program.published and num_steps == max_steps:
            break
        best = min(best, current, key=lambda point: point.objective)
        log.add(best)
        if num_steps < max_steps and log.out_of_limits():
            break
    return best


def own_start(program: DescentObjective, strategy: Array) -> DescentIterate:
    """Return a given strategy with the geometric mean of the smallest and the largest possible floor."""
    floor = np.sqrt(strategy.min(axis=1) * strategy.max(axis=1) / program.growth)
    point = evaluate(program, strategy, floor)
    if not point.finite:
        raise InvalidInputError("start must have rows that span all user types, for gradients to exist")
    return point


def random_start(program: DescentObjective, outputs: int, rng: np.random.Generator) -> DescentIterate:
    """Return a random strategy: uniform entries, projected with the floor half-way between its extremes.

    If the workload cannot be estimated from it, as happens with few outputs, another is drawn; after 10 draws,
    randomised response is returned.
    """
    size = len(program.share)
    floor = np.full(outputs, (1 + 1 / program.growth) / (2 * outputs))
    for _ in range(MAX_DRAWS):
        draws = rng.uniform(size=(outputs, size))
        point = evaluate(program, project_columns(draws, floor, program.growth), floor)
        if point.finite:
            return point
    response = (1 + (program.growth - 1) * np.eye(size)) / (program.growth - 1 + size)
    return evaluate(program, response, response.min(axis=1))


def descent_steps(
    program: DescentObjective, first_iterate: DescentIterate, length: float, max_steps: int, strict: bool
) -> Iterator[DescentIterate | None]:
    """Yield the iterates; if `strict`, yield None at the end if a step cannot be projected."""
    current = first_iterate
    floor_step_factor = 1 / (len(program.share) * program.growth)
    for count in range(1, max_steps + 1):
        if count % TRIAL_STEPS == 0:
            length /= 2
        slope = floor_gradient(current, program.growth, program.published)
        stepped_floor = np.clip(current.floor - floor_step_factor * length * slope, 0.0, 1.0)
        floor = _feasible_floor(stepped_floor, program.growth)
        if strict and floor is not stepped_floor:
            yield None
            return
        keep = floor > MIN_FLOOR
        strategy = (current.strategy - length * current.gradient)[keep]
        floor = _feasible_floor(floor[keep], program.growth)
        current = evaluate(program, project_columns(strategy, floor, program.growth), floor)
        if not current.finite:
            if strict:
                yield None
            return
        yield current


def evaluate(program: DescentObjective, strategy: Array, floor: Array) -> DescentIterate:
    """Evaluate a strategy and its gradient; the objective is inf if the workload cannot be estimated from it."""
    mass = strategy @ program.share
    scaled = strategy / mass[:, None]
    try:
        factor = scipy.linalg.cho_factor(strategy.T @ scaled, check_finite=False)
    except np.linalg.LinAlgError:
        return DescentIterate(strategy, floor, np.inf, np.zeros_like(strategy))
    gram_solution = scipy.linalg.cho_solve(factor, program.gram, check_finite=False)
    forms = scipy.linalg.cho_solve(factor, gram_solution.T, check_finite=False)
    objective = float(np.trace(gram_solution))
    reconstruction = scaled @ forms
    lengths = np.einsum("ou,ou->o", reconstruction, scaled)
    gradient = lengths[:, None] * program.share - 2 * reconstruction
    is_valid = np.isfinite(objective) and objective > 0 and bool(np.all(np.isfinite(gradient)))
    worst = float((lengths @ strategy - np.diag(program.gram)).max())
    return DescentIterate(strategy, floor, objective if is_valid else np.inf, gradient, worst)


def floor_gradient(current: DescentIterate, growth: float, published: bool = False) -> Array:
    """Return the derivative of the projected strategy's objective in the floor.

    Entries at a bound change with it. The free entries of the same column share the opposite change equally, so that
    the column sum stays 1. The authors' code (`published`) omits that second effect, so its descent ends at worse
    strategies. It also treats an entry as being at its upper bound only if both are equal to the last bit, which
    rounding errors in a given start prevent.
    """
    at_floor = current.strategy <= current.floor[:, None]
    ceiling = growth * current.floor[:, None]
    at_ceiling = current.strategy == ceiling if published else current.strategy >= ceiling
    is_free = ~(at_floor | at_ceiling)
    num_free = np.maximum(is_free.sum(axis=0), 1)
    reduced_gradient = current.gradient
    if not published:
        reduced_gradient = reduced_gradient - np.where(is_free, reduced_gradient, 0.0).sum(axis=0) / num_free
    return np.asarray(
        np.where(at_floor, reduced_gradient, 0.0).sum(axis=1)
        + growth * np.where(at_ceiling, reduced_gradient, 0.0).sum(axis=1)
    )


def project_columns(matrix: Array, floor: Array, growth: float) -> Array:
    """Project every column onto ``floor ≤ q ≤ e^ε floor``, ``1'q = 1``."""
    shift = columns_within(matrix, floor, growth * floor)
    return np.clip(matrix + shift, floor[:, None], growth * floor[:, None])


def _feasible_floor(floor: Array, growth: float) -> Array:
    """Scale a floor, if necessary, such that columns of sum 1 exist."""
    total = float(floor.sum())
    if total <= 1 <= growth * total:
        return floor
    if total <= 0:
        return np.full(len(floor), 1 / (np.sqrt(growth) * len(floor)))
    return floor * ((1 if total > 1 else 1 / growth) / total)
