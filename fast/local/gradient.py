"""The paper's projected gradient descent over strategies with a fixed number of outputs (its algorithms 1 and 2).

The variables are the strategy Q (m, n) and the floor z (m,) of its rows, ``z_o ≤ Q_ou ≤ e^ε z_o``. A step goes down the
gradient in both, and projects every column of Q on its bounds and on sum 1. It finds good strategies and proves nothing
about them: the problem is not convex in Q, and steps end where rows stick to their floors.
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

OUTPUTS = 4  # outputs for each user type
TRIAL_STEPS = 50  # steps that a length is tried for; after as many, it is halved
TRIAL_LENGTHS = 3  # lengths that are tried once one leads nowhere outside: it, its half and its quarter
DRAWS = 10  # random strategies that are drawn to begin with, at most
SHORTEST = 1e-50  # lengths below this are not tried
JUDGING = 4  # time kept to judge the last strategy, in units of the judge's time for the first
NEGLIGIBLE = 1e-10  # outputs whose floor falls below this leave

PROVES_NOTHING = "gradient descent finds good strategies and proves nothing about them: ask for method exact or restart"

Start: TypeAlias = npt.ArrayLike | LocalMechanism | Solution
"""The start of a descent: a strategy Q (m, n), or an object that holds one."""


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedGradient(Method):
    """The projected gradient descent of the paper on local strategies, from a random strategy or from a `start`.

    Raises `InvalidInputError` or `InputTypeError` for an option out of range.

    Attributes
    ----------
    outputs : int, optional
        Outputs of the random strategy, at least the number of user types; four times that number by default.
    step_size : float, optional
        Length of the steps, halved after every 50, in units in which ``W'W`` has trace n (`PublishedGradient`: in
        units of the average variance); found by trial by default.
    iterations : int, default 250
        Number of steps once their length is known.
    rng : numpy.random.Generator or int, default 0
        The source of the random strategy.
    """

    name = "gradient"
    problems = ("LocalStrategy",)
    published: ClassVar[bool] = False  # whether it goes step by step as the authors' code does

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
        """Descend from a strategy and let the problem judge the best one on the way; a given start is no better."""
        if self.outputs is not None and self.outputs < (size := problem.user_types):
            raise InvalidInputError(f"outputs must be at least {size}, the number of user types, got {self.outputs}")
        if start is not None and self.outputs is not None:
            raise InvalidInputError("give either outputs or start, which has its own")
        first = None if start is None else _start_strategy(problem, start)
        began = time.perf_counter()
        with np.errstate(all="ignore"):
            strategy, log = self.descend(problem, limits, first)
            seconds = time.perf_counter() - began
            strategies = (strategy,) if first is None else (strategy, first)
            feasible = [problem.feasible(LocalPoint(strategy, problem.prior)) for strategy in strategies]
            point = points.smallest_good(problem, feasible, tol=0.0)
            remarks = (loop.stopped_message(len(log.history), seconds) if log.cut else "", PROVES_NOTHING)
            return judged_solution(
                problem,
                points.primal(problem, point),
                points.closed_form_weights(problem, problem.dual_at(point)),
                tol=limits.tol,
                otherwise=Status.STEPS_EXHAUSTED if log.cut else Status.STALLED,
                message="; ".join(filter(None, remarks)),
                iterations=len(log.history),
                seconds=time.perf_counter() - began,
                solver=f"fast:{self.name}",
                history=tuple(log.history),
            )

    def descend(
        self, problem: LocalStrategy, limits: loop.Limits, start: Array | None = None
    ) -> tuple[Array, DescentLog]:
        """Return the best strategy of the descent, and its log; the length of its steps is found by trial."""
        gram = problem.root.T @ problem.root
        unit = float(len(gram)) if self.published else float(np.trace(gram)) / len(gram)
        growth = float(np.exp(problem.epsilon))
        program = DescentObjective(gram / unit, problem.user_types * problem.prior, growth, self.published)
        if start is None:
            outputs = self.outputs or OUTPUTS * problem.user_types
            first = random_start(program, outputs, validate.generator(rng=self.rng))
        else:
            first = own_start(program, start)
        first = _begun(program, first)
        if limits.deadline.left is not None:
            began = time.perf_counter()
            points.objective(problem, LocalPoint(first.strategy, problem.prior))
            judging = JUDGING * (time.perf_counter() - began)
            limits = replace(limits, deadline=limits.deadline.before(judging))
        log = DescentLog(limits, unit, problem.criterion == "worst")
        best, length = first, self.step_size
        if length is None:
            best, length = _try_lengths(program, first, log)
        if not log.out_of_limits():
            best = _descend(program, _begun(program, best), length, self.iterations, log, strict=False) or best
        return best.strategy, log


@dataclass(frozen=True, slots=True, eq=False)
class PublishedGradient(ProjectedGradient):
    """The gradient descent of the authors' code, whose derivative omits a term."""

    name = "published_gradient"
    published = True


def _start_strategy(problem: LocalStrategy, start: Start) -> Array:
    """Return the strategy of a mechanism, of a solution, or as it is given, if it is one for the problem."""
    held = start.mechanism if isinstance(start, Solution) else start
    matrix = validate.finite(2, start=getattr(held, "strategy", held))
    try:
        return LocalMechanism(matrix, problem.epsilon, problem.workload).strategy
    except InvalidInputError as error:
        raise InvalidInputError(f"start: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class DescentObjective:
    """The objective ``tr(G⁻¹ W'W)``, ``G = Q' diag(Q share)⁻¹ Q``, in units in which W'W has trace n.

    The authors' code (`published`) differs from the text and from `gradient` in the floor's derivative
    (`floor_gradient`); in its unit, the average variance; in its floors, the least entries of a row wherever a walk
    begins; in choosing among lengths by the worst variance; and in that no walk looks at its last step. Where it breaks
    off because a floor leaves no room, the floor is mended here.
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
        """Whether the strategy answers the workload."""
        return bool(np.isfinite(self.objective))


def _begun(program: DescentObjective, first: DescentIterate) -> DescentIterate:
    """Return where a walk begins; the authors' code forgets the floors of the walk before."""
    return replace(first, floor=first.strategy.min(axis=1)) if program.published else first


def _try_lengths(program: DescentObjective, first: DescentIterate, log: DescentLog) -> tuple[DescentIterate, float]:
    """Return the best iterate of short walks, and the length of its steps."""
    length = 1.0
    tried: list[tuple[float, float, DescentIterate]] = []
    while len(tried) < TRIAL_LENGTHS and length > SHORTEST and not log.out_of_limits():
        run = _descend(program, first, length, TRIAL_STEPS, log, strict=not tried)
        if run is not None:
            tried.append((run.worst if program.published else run.objective, length, run))
        length /= 2
    _, length, best = min(tried, key=lambda trial: trial[:2], default=(0.0, length, first))
    return best, length


class DescentLog:
    """What a descent has done so far, over all its walks, and whether a limit has cut it."""

    def __init__(self, limits: loop.Limits, unit: float, worst: bool) -> None:
        """Begin to count; progress is told of the average that is minimised, or of the `worst` variance."""
        self.limits, self.unit, self.worst, self.began = limits, unit, worst, time.perf_counter()
        self.history: list[Progress] = []
        self.cut = False

    def out_of_limits(self) -> bool:
        """Say whether another step is one too many, or too late: then the descent is cut."""
        self.cut = self.limits.deadline.passed or len(self.history) >= self.limits.max_iterations
        return self.cut

    def add(self, best: DescentIterate) -> None:
        seconds = time.perf_counter() - self.began
        reached = self.unit * (best.worst if self.worst else best.objective)
        news = Progress(len(self.history) + 1, reached, 0.0, np.inf, seconds)
        self.history.append(news)
        if self.limits.callback is not None:
            self.limits.callback(news)


def _descend(
    program: DescentObjective, first: DescentIterate, length: float, most: int, log: DescentLog, strict: bool
) -> DescentIterate | None:
    best = first
    for count, current in enumerate(descent_steps(program, first, length, most, strict), 1):
        if current is None:
            return None
        if program.published and count == most:
            break
        best = min(best, current, key=lambda point: point.objective)
        log.add(best)
        if count < most and log.out_of_limits():
            break
    return best


def own_start(program: DescentObjective, strategy: Array) -> DescentIterate:
    """Return a given strategy, its floor half way between the extremes by ratio; patterns leave it no choice."""
    floor = np.sqrt(strategy.min(axis=1) * strategy.max(axis=1) / program.growth)
    point = evaluate(program, strategy, floor)
    if not point.finite:
        raise InvalidInputError("start must have rows that span all user types, for gradients to exist")
    return point


def random_start(program: DescentObjective, outputs: int, rng: np.random.Generator) -> DescentIterate:
    """Return a random strategy: uniform entries, projected with the floor half way between its extremes.

    Where a random strategy cannot answer the workload, as happens with few outputs, another is drawn; after several,
    randomised response takes its place.
    """
    size = len(program.share)
    floor = np.full(outputs, (1 + 1 / program.growth) / (2 * outputs))
    for _ in range(DRAWS):
        draws = rng.uniform(size=(outputs, size))
        point = evaluate(program, project_columns(draws, floor, program.growth), floor)
        if point.finite:
            return point
    response = (1 + (program.growth - 1) * np.eye(size)) / (program.growth - 1 + size)
    return evaluate(program, response, response.min(axis=1))


def descent_steps(
    program: DescentObjective, first: DescentIterate, length: float, most: int, strict: bool
) -> Iterator[DescentIterate | None]:
    """Yield one iterate after the other; None, if `strict`, where a step cannot be projected."""
    current = first
    slower = 1 / (len(program.share) * program.growth)
    for count in range(1, most + 1):
        if count % TRIAL_STEPS == 0:
            length /= 2
        slope = floor_gradient(current, program.growth, program.published)
        moved = np.clip(current.floor - slower * length * slope, 0.0, 1.0)
        floor = _feasible_floor(moved, program.growth)
        if strict and floor is not moved:
            yield None
            return
        kept = floor > NEGLIGIBLE
        strategy = (current.strategy - length * current.gradient)[kept]
        floor = _feasible_floor(floor[kept], program.growth)
        current = evaluate(program, project_columns(strategy, floor, program.growth), floor)
        if not current.finite:
            if strict:
                yield None
            return
        yield current


def evaluate(program: DescentObjective, strategy: Array, floor: Array) -> DescentIterate:
    """Evaluate a strategy and its gradient; the objective is infinite where it cannot answer the workload."""
    mass = strategy @ program.share
    scaled = strategy / mass[:, None]
    try:
        factor = scipy.linalg.cho_factor(strategy.T @ scaled, check_finite=False)
    except np.linalg.LinAlgError:
        return DescentIterate(strategy, floor, np.inf, np.zeros_like(strategy))
    half = scipy.linalg.cho_solve(factor, program.gram, check_finite=False)
    forms = scipy.linalg.cho_solve(factor, half.T, check_finite=False)
    objective = float(np.trace(half))
    pulled = scaled @ forms
    lengths = np.einsum("ou,ou->o", pulled, scaled)
    gradient = lengths[:, None] * program.share - 2 * pulled
    valid = np.isfinite(objective) and objective > 0 and bool(np.all(np.isfinite(gradient)))
    worst = float((lengths @ strategy - np.diag(program.gram)).max())
    return DescentIterate(strategy, floor, objective if valid else np.inf, gradient, worst)


def floor_gradient(current: DescentIterate, growth: float, published: bool = False) -> Array:
    """Return the derivative of the objective in the floor, through the projection that follows.

    Entries on a bound move with it, and the others of their column make up for the change of its sum, equally. The
    authors' code leaves the latter out (`published`), so its descent ends at worse strategies. It also takes an entry
    to be on its upper bound only where it equals that to the last bit, which rounding undoes in a given start.
    """
    low = current.strategy <= current.floor[:, None]
    highest = growth * current.floor[:, None]
    high = current.strategy == highest if published else current.strategy >= highest
    free = ~(low | high)
    count = np.maximum(free.sum(axis=0), 1)
    relative = current.gradient
    if not published:
        relative = relative - np.where(free, relative, 0.0).sum(axis=0) / count
    return np.asarray(np.where(low, relative, 0.0).sum(axis=1) + growth * np.where(high, relative, 0.0).sum(axis=1))


def project_columns(matrix: Array, floor: Array, growth: float) -> Array:
    """Project every column on ``floor ≤ q ≤ e^ε floor``, ``1'q = 1``."""
    shift = columns_within(matrix, floor, growth * floor)
    return np.clip(matrix + shift, floor[:, None], growth * floor[:, None])


def _feasible_floor(floor: Array, growth: float) -> Array:
    """Return a floor that leaves room for columns of sum 1, itself where it does."""
    total = float(floor.sum())
    if total <= 1 <= growth * total:
        return floor
    if total <= 0:
        return np.full(len(floor), 1 / (np.sqrt(growth) * len(floor)))
    return floor * ((1 if total > 1 else 1 / growth) / total)
