"""Local privacy: the best strategy by column generation, a good one by search, or the paper's own gradient descent."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop, threads
from dualmech.fast.local import answers, columns, designs, gradient, search
from dualmech.fast.local import bound as local_bound
from dualmech.fast.local.columns import Columns
from dualmech.fast.local.points import Frame
from dualmech.geometry.local import patterns, strategies
from dualmech.problems.local.strategy import LocalPoint, LocalStrategy
from dualmech.progress import Progress, Status
from dualmech.solution import Solution

METHODS = ("auto", "exact", "restart", "gradient", "published_gradient")

EXACT = 20  # user types up to which ``auto`` prices all patterns at every step
LARGEST_EXACT = 24  # user types up to which ``exact`` may be asked for

MARGIN, ATTEMPTS = 0.5, 4
"""Share of the tolerance that the solver aims at, and how often it aims lower where the judge proves less."""

SEARCHING = 0.5  # share of the time for the patterns, where the rest is for a bound on all of them

SEARCHED = "Patterns were searched for, not priced all: the strategy is the best one found, and the bound may be loose."


def solve(
    problem: LocalStrategy,
    limits: loop.Limits,
    *,
    method: str = "auto",
    rng: np.random.Generator | int = 0,
    outputs: int | None = None,
) -> Solution:
    """Solve the problem to a proven gap; see `dualmech.fast.solve`."""
    chosen = _choose_method(problem, method, outputs)
    generator = validate.generator(rng=rng)
    with threads.threads_for_rank(problem.user_types), np.errstate(all="ignore"):
        frame = Frame.of(problem.root, problem.epsilon, problem.prior, problem.criterion == "worst")
        if chosen == "exact":
            answer = _by_columns(problem, frame, limits)
        elif chosen == "restart":
            answer = _by_design(problem, limits, generator) or _by_search(problem, frame, limits, generator)
        else:
            published = chosen == "published_gradient"
            answer = gradient.solve(problem, limits, generator, outputs, published)
    return answer


def _choose_method(problem: LocalStrategy, method: str, outputs: int | None) -> str:
    validate.choice(METHODS, method=method)
    size = problem.user_types
    if method == "exact" and size > LARGEST_EXACT:
        raise InvalidInputError(
            f"method exact prices all patterns, of {LARGEST_EXACT} user types at most, got {size}"
        )
    if outputs is not None and not method.endswith("gradient"):
        raise InvalidInputError(
            "outputs belongs to gradient descent; the other methods choose how many they need"
        )
    if outputs is not None and validate.size(outputs=outputs) < size:
        raise InvalidInputError(f"outputs must be at least {size}, the number of user types, got {outputs}")
    if method == "auto":
        return "exact" if size <= EXACT else "restart"
    return method


def _by_columns(problem: LocalStrategy, frame: Frame, limits: loop.Limits) -> Solution:
    """Generate columns until the judge proves the gap, and leave out the patterns that play no part in the end."""
    started, aim = time.perf_counter(), MARGIN * limits.tol
    begin: Columns | None = None
    history: tuple[Progress, ...] = ()
    for _ in range(ATTEMPTS):
        outcome = columns.generate(frame, replace(limits, tol=aim), begin)
        best, history = outcome.dual, (*history, *outcome.history)
        answer = answers.best(
            problem,
            answers.strategies(problem, frame, outcome.primal.point),
            answers.dual(frame, best.point, best.view),
            tol=limits.tol,
            otherwise=outcome.reason or Status.STALLED,
            iterations=outcome.iterations,
            seconds=time.perf_counter() - started,
            solver="fast:exact",
            history=history,
        )
        if answer.gap <= limits.tol or outcome.reason is not None:
            break
        # The judge may count the gap relative to less, or be less sure of the bound.
        begin, reached = outcome.primal, history[-1].gap
        aim = MARGIN * min(aim, reached * limits.tol / answer.gap)
    return answer


def _by_search(
    problem: LocalStrategy, frame: Frame, limits: loop.Limits, rng: np.random.Generator
) -> Solution:
    """Search for a good strategy, and for multipliers that bound all patterns where there are too many to price."""
    began = time.perf_counter()
    few = problem.user_types <= patterns.EXACT
    bound = 0.0 if few else strategies.trace_bound(problem.root, problem.epsilon)
    searching = limits.deadline if few else limits.deadline.after(SEARCHING)
    within = replace(limits, tol=MARGIN * limits.tol, deadline=searching)
    outcome = search.search(problem, frame, within, rng, bound)
    last = outcome.dual if few else outcome.primal
    dual = answers.dual(frame, last.point, last.view)
    return answers.best(
        problem,
        answers.strategies(problem, frame, outcome.primal.point),
        dual if few else local_bound.improve_bound(problem, dual, limits.deadline),
        tol=limits.tol,
        otherwise=outcome.reason or Status.STALLED,
        message=SEARCHED,
        iterations=outcome.iterations,
        seconds=time.perf_counter() - began,
        solver="fast:restart",
        history=outcome.history,
    )


def _by_design(problem: LocalStrategy, limits: loop.Limits, rng: np.random.Generator) -> Solution | None:
    """Return subset selection by a design where the workload treats all user types equally: then it is optimal."""
    began = time.perf_counter()
    known = designs.strategy(problem, rng) if designs.treats_all_equally(problem) else None
    if known is None:
        return None
    point = problem.feasible(LocalPoint(known, problem.prior))
    return answers.best(
        problem,
        [point],
        answers.closed_form_weights(problem, problem.dual_at(point)),
        tol=limits.tol,
        otherwise=Status.ROUNDING,
        seconds=time.perf_counter() - began,
        solver="fast:design",
    )
