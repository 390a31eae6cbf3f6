"""A good strategy for many user types: patterns from several sources, weighed together, with local search for more.

Weights on any set of patterns are found exactly, by `dualmech.fast.local.master`; what cannot be done for many user
types is to price all 2^n patterns. Here many sets climb at once, one user type in or out at a time, and those that end
with a violated dual constraint are added. The answer is good; the bound is valid, and not tight.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from dualmech.fast.engine import loop
from dualmech.fast.local import columns as local_columns
from dualmech.fast.local import gradient, master, points
from dualmech.fast.local.columns import CLOSER, Columns
from dualmech.fast.local.gradient import Descent
from dualmech.fast.local.points import Frame, PatternPoint, View
from dualmech.geometry.local import patterns
from dualmech.geometry.local.patterns import Sets
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.progress import NEVER, Deadline
from dualmech.validate import Array

CLIMBERS = 3  # sets that climb at a time from patterns in use, and as many at random, for each user type
ADDED = 2  # patterns that are added at a time, at most, for each user type
FROM_DESCENT = 4  # patterns taken from the strategy that gradient descent finds, for each user type
SHORT = 0.25  # share of the time allowed that gradient descent may take

MOST, ROOM = 1500, 8
"""Patterns that are weighed together, at most: so many, or so many for each user type if that is more."""

STEPS = 12  # Newton steps on one set of patterns, at most
COARSE, FINEST = 0.1, 1e-12  # aims of the first weighing, relative, and the least one
CLIMB = 1e-9  # least relative gain of a step up
PERTURBATION_SIZE = 2  # user types that are moved in or out of a pattern before it climbs


def search(
    problem: LocalStrategy, frame: Frame, limits: loop.Limits, rng: np.random.Generator, bound: float
) -> tuple[loop.Outcome[Columns], Array]:
    """Search until the gap is reached or stops to shrink: the gap to a bound, if that is positive.

    Return what came of it, and the strategy of gradient descent, with whose patterns it began.

    Where it is 0, the gap is to what local search suggests as a bound, which proves nothing.
    """
    share = replace(limits, callback=None, deadline=limits.deadline.after(SHORT))
    descended = gradient.descend(problem, share, rng, Descent())[0]
    sets = first_sets(descended, problem.epsilon)
    weights = np.full(len(sets), len(frame.share) / len(sets))
    weights = points.balance_columns(weights, patterns.rows(sets, problem.epsilon))
    known = bound / frame.unit**2
    outcome = loop.run(
        _solve_and_search(
            frame, known, rng, limits.deadline, points.start(frame, sets, weights), COARSE, np.inf, 0
        ),
        partial(_step, frame, known, rng, limits.deadline),
        limits,
        margin=1.0,
    )
    return outcome, descended


def first_sets(strategy: Array, epsilon: float) -> Sets:
    """Return single user types, thresholds, the complements of both, and the heaviest patterns of a strategy."""
    size = strategy.shape[1]
    weights, sets = patterns.split_into_patterns(strategy, epsilon)
    heaviest = sets[np.argsort(-weights, kind="stable")[: FROM_DESCENT * size]]
    singles, thresholds = np.eye(size, dtype=bool), np.tri(size, dtype=bool)[:-1]
    return np.unique(np.vstack([singles, ~singles, thresholds, ~thresholds, heaviest]), axis=0)


def climb(
    form: Array, share: Array, epsilon: float, sets: Sets, deadline: Deadline = NEVER
) -> tuple[Array, Sets]:
    """Let sets climb to where no single user type in or out makes ``v'Kv / (1'v · b'v)`` larger; return both.

    When time is up, they are where they have come to.
    """
    size, excess = len(form), patterns.gain(epsilon)
    members = sets.astype(np.float64)
    pulls = (1 + excess * members) @ form
    values = np.einsum("su,su->s", 1 + excess * members, pulls)
    counts, masses = members.sum(axis=1), size + excess * members @ share
    diagonal = np.diagonal(form)
    while True:
        signs = 1 - 2 * members
        raised = values[:, None] + 2 * excess * signs * pulls + excess**2 * diagonal
        moved = counts[:, None] + signs
        scores = raised / ((size + excess * moved) * (masses[:, None] + excess * signs * share))
        scores[(moved < 1) | (moved > size - 1)] = -np.inf
        best = scores.argmax(axis=1)
        reached = scores[np.arange(len(sets)), best]
        present = values / ((size + excess * counts) * masses)
        going = np.flatnonzero(reached > present + CLIMB * np.abs(present))
        if not going.size or deadline.passed:
            return present, members > 0.5
        chosen = best[going]
        sign = signs[going, chosen]
        values[going] = raised[going, chosen]
        counts[going] += sign
        masses[going] += excess * sign * share[chosen]
        members[going, chosen] += sign
        pulls[going] += excess * sign[:, None] * form[chosen]


def _solve_and_search(
    frame: Frame,
    bound: float,
    rng: np.random.Generator,
    deadline: Deadline,
    point: PatternPoint,
    aim: float,
    least_gap: float,
    steps: int,
) -> Columns:
    """Solve on the patterns of a point to a tolerance, and look for others; without time left, suggest nothing."""
    point, view, count = master.solve(frame, point, aim, STEPS, deadline)
    rise, further = _violated_patterns(frame, rng, deadline, point, view)
    objective, suggested = local_columns.objective_and_bound(
        frame, point, view, np.inf if deadline.passed else rise
    )
    gap = (objective - suggested) / suggested if suggested > 0 else np.inf
    lower = bound if bound > 0 else suggested
    return Columns(point, view, objective, lower, further, steps + count, min(gap, least_gap))


def _violated_patterns(
    frame: Frame, rng: np.random.Generator, deadline: Deadline, point: PatternPoint, view: View
) -> tuple[float, Sets]:
    """Climb from patterns in use, moved a little, and from random sets; return the rise and the violated patterns."""
    size = len(frame.share)
    used = point.sets[np.argsort(-point.weights, kind="stable")[: CLIMBERS * size]]
    used = used ^ (rng.random(used.shape) < PERTURBATION_SIZE / size)
    random = rng.random((CLIMBERS * size, size)) < rng.random((CLIMBERS * size, 1))
    mixed = np.outer(point.costs, point.share)
    form = view.matrix @ view.matrix.T - (mixed + mixed.T) / 2
    scores, sets = climb(form, point.share, frame.epsilon, np.vstack([used, random]), deadline)
    proper = np.flatnonzero((scores > 0) & sets.any(axis=1) & ~sets.all(axis=1))
    if not proper.size:
        return 0.0, sets[:0]
    _, first = np.unique(sets[proper], axis=0, return_index=True)
    order = proper[first][np.argsort(-scores[proper[first]], kind="stable")]
    return float(scores[order[0]]), sets[order[: ADDED * size]]


def _step(
    frame: Frame, bound: float, rng: np.random.Generator, deadline: Deadline, columns: Columns
) -> Columns:
    """Keep the patterns of largest weight for their slack, add those found, and solve again."""
    point, size = columns.point, len(frame.share)
    known = {each.tobytes() for each in point.sets}
    further = columns.further[[each.tobytes() not in known for each in columns.further]]
    playing = point.sets.sum(axis=1) == 1  # these alone make sure that G is regular
    order = np.argsort(-point.weights / point.slacks, kind="stable")
    playing[order[: max(MOST, ROOM * size) - len(further)]] = True
    aim = CLOSER * min(columns.least_gap, 1.0)
    if not len(further):
        aim = CLOSER * min(aim, master.progress(frame, point, columns.view))
    product = aim * columns.view.objective / len(point.sets)
    point = points.replace_patterns(point, playing, further, frame.epsilon, product)
    return _solve_and_search(
        frame, bound, rng, deadline, point, max(aim, FINEST), columns.least_gap, columns.decompositions
    )
