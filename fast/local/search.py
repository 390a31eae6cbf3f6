"""A good strategy for many user types: sets that are drawn for the workload, weighed, and replaced by local search.

The sets are the largest entries of Gaussian vectors (`dualmech.fast.local.thresholds`). A multiplicative rule weighs
them, the lightest leave, and sets that climb, one user type in or out at a time, to where a dual constraint is violated
take their place. Where they are few enough, weights are then found exactly, by `dualmech.fast.local.master`, with local
search for more patterns. What cannot be done for many user types is to price all 2^n. The answer is good; the bound is
valid, and not tight.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from dualmech.fast.engine import loop
from dualmech.fast.local import columns as local_columns
from dualmech.fast.local import gradient, master, points, weighing
from dualmech.fast.local.columns import CLOSER, Columns
from dualmech.fast.local.gradient import Descent
from dualmech.fast.local.points import Frame, PatternPoint, View
from dualmech.fast.local.thresholds import Thresholds
from dualmech.geometry.local import patterns
from dualmech.geometry.local.patterns import Sets
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.progress import NEVER, Deadline
from dualmech.validate import Array

DRAWN = 16  # sets that are drawn, and stay as many, for each user type
WEIGHING, LAST_GAIN = 25, 2e-4
"""Steps that weigh one collection of sets, at most, and the relative gain below which they end."""

ROUNDS, IDLE = 30, 6
"""How often sets are replaced before exact weights, at most, and rounds without a smaller gap."""

LIGHT = 0.01  # weight of drawn sets beside patterns of a descent, relative to the mean of these
SHORT = 0.3  # share of the time allowed until then

FOLLOWING = 3  # times what it takes to draw sets: the time that is left for what follows the search of many user types

FEW = 64  # user types up to which weights are found exactly: a step for more takes seconds
HEAVIEST = 6  # drawn sets that are then kept, for each user type

CLIMBERS, LEAST = 1, 100
"""Sets that climb from patterns in use, and as many drawn ones, for each user type, and at least."""

ADDED = 2  # patterns that are added at a time, at most, for each user type

MOST, ROOM = 1500, 8
"""Patterns that are weighed together, at most: so many, or so many for each user type if that is more."""

STEPS = 12  # Newton steps on one set of patterns, at most
COARSE, FINEST = 0.1, 1e-12  # aims of the first weighing, relative, and the least one
CLIMB = 1e-9  # least relative gain of a step up
PERTURBATION_SIZE = 2  # user types that are moved in or out of a pattern before it climbs


def search(
    problem: LocalStrategy, frame: Frame, limits: loop.Limits, rng: np.random.Generator, bound: float
) -> tuple[loop.Outcome[Columns], Columns]:
    """Search until the gap is reached or stops to shrink: the gap to a bound, if that is positive.

    Return what came of it, and the best of the drawn sets, with which it began.

    Where it is 0, the gap is to what local search suggests as a bound, which proves nothing.
    """
    size = len(frame.share)
    exact = size <= FEW or frame.adversary
    thresholds, began = Thresholds.of(problem.root, problem.epsilon), time.perf_counter()
    drawn_sets = np.vstack([np.eye(size, dtype=bool), thresholds.draw(DRAWN * size, rng)])
    first = points.start(frame, np.unique(drawn_sets, axis=0))
    following = 0.0 if exact else FOLLOWING * (time.perf_counter() - began)
    limits = replace(limits, deadline=limits.deadline.before(following))
    if np.linalg.matrix_rank(problem.root) < size - 1:
        first = _with_descent(problem, frame, first, replace(limits, callback=None), rng)
    seeker = Seeker(frame, thresholds, bound / frame.unit**2, rng, limits.deadline)
    if not exact:
        outcome = loop.run(seeker.weigh(first), seeker.exchange, limits, margin=1.0)
        return outcome, outcome.primal
    soon = limits.deadline.after(SHORT)
    early = replace(limits, callback=None, max_iterations=ROUNDS * WEIGHING, deadline=soon)
    hasty = replace(seeker, deadline=soon)
    drawn = loop.run(hasty.weigh(first), hasty.exchange, early, margin=1.0, patience=IDLE).primal
    begin = seeker.solve(heaviest(frame, drawn.point), COARSE, np.inf, 0)
    return loop.run(begin, seeker.step, limits, margin=1.0), drawn


def resume(
    problem: LocalStrategy,
    frame: Frame,
    found: Columns,
    limits: loop.Limits,
    rng: np.random.Generator,
    bound: float,
) -> loop.Outcome[Columns]:
    """Search on from where an exact search was cut, towards a proven bound, or, where that is 0, a suggested one."""
    thresholds = Thresholds.of(problem.root, problem.epsilon)
    seeker = Seeker(frame, thresholds, bound / frame.unit**2, rng, limits.deadline)
    begin = replace(found, lower_bound=seeker.bound or found.lower_bound, decompositions=0)
    return loop.run(begin, seeker.step, limits, margin=1.0)


def _with_descent(
    problem: LocalStrategy, frame: Frame, drawn: PatternPoint, limits: loop.Limits, rng: np.random.Generator
) -> PatternPoint:
    """Add the heaviest patterns that gradient descent finds, where W leaves directions out that drawn sets do not."""
    share, size = replace(limits, deadline=limits.deadline.after(SHORT)), len(frame.share)
    strategy, _ = gradient.descend(problem, share, rng, Descent())
    weights, sets = heaviest_patterns(strategy, problem.epsilon, DRAWN * size // 2)
    sets, first = np.unique(np.vstack([sets, drawn.sets]), axis=0, return_index=True)
    weights = np.append(weights, np.full(len(drawn.sets), LIGHT * weights.mean()))[first]
    weights = points.balance_columns(size * weights / weights.sum(), patterns.rows(sets, frame.epsilon))
    return points.start(frame, sets, weights)


def heaviest_patterns(strategy: Array, epsilon: float, most: int) -> tuple[Array, Sets]:
    """Return weights and sets of the heaviest patterns that the rows of a strategy split into, constants left out."""
    least, size = strategy.min(axis=1, keepdims=True), strategy.shape[1]
    excess = patterns.gain(epsilon)
    levels = (strategy / least - 1) / excess
    order = np.sort(levels, axis=1)
    weights = least * np.diff(order, axis=1) * (size + excess * np.arange(size - 1, 0, -1))
    chosen = np.argsort(-weights, axis=None, kind="stable")[:most]
    chosen = chosen[weights.ravel()[chosen] > 0]
    output, place = np.unravel_index(chosen, weights.shape)
    return weights.ravel()[chosen], levels[output] >= order[output, place + 1][:, None]


def heaviest(frame: Frame, point: PatternPoint) -> PatternPoint:
    """Return a point to begin exact weighing with: the heaviest sets of another, and single user types."""
    size = len(frame.share)
    singles = np.eye(size, dtype=bool)
    chosen = np.argsort(-point.weights, kind="stable")[: HEAVIEST * size]
    sets, first = np.unique(np.vstack([point.sets[chosen], singles]), axis=0, return_index=True)
    weights = np.append(point.weights[chosen], np.full(size, point.weights[chosen].min()))[first]
    weights = points.balance_columns(size * weights / weights.sum(), patterns.rows(sets, frame.epsilon))
    return points.start(frame, sets, weights)


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


@dataclass(frozen=True, slots=True, eq=False)
class Seeker:
    """What looks for sets and weighs them: a problem's frame, how sets are drawn, a bound, and until when."""

    frame: Frame
    thresholds: Thresholds
    bound: float
    rng: np.random.Generator
    deadline: Deadline

    def weigh(self, point: PatternPoint, least_gap: float = np.inf, steps: int = 0) -> Columns:
        """Weigh the patterns of a point, and look for others."""
        point, view, count = weighing.solve(self.frame, point, LAST_GAIN, WEIGHING, self.deadline)
        return self._columns(point, view, least_gap, steps + count)

    def exchange(self, columns: Columns) -> Columns:
        """Let the sets that were found take the place of the lightest, and weigh again."""
        point, further = columns.point, columns.unknown
        size = len(self.frame.share)
        playing = point.sets.sum(axis=1) == 1
        playing[np.argsort(-point.weights, kind="stable")[: (DRAWN + 1) * size - len(further)]] = True
        sets = np.vstack([point.sets[playing], further])
        weights = np.append(point.weights[playing], np.full(len(further), np.median(point.weights[playing])))
        weights *= size / weights.sum()
        return self.weigh(
            replace(point, sets=sets, weights=weights), columns.least_gap, columns.decompositions
        )

    def solve(self, point: PatternPoint, aim: float, least_gap: float, steps: int) -> Columns:
        """Solve on the patterns of a point to a tolerance, and look for others."""
        point, view, count = master.solve(self.frame, point, aim, STEPS, self.deadline)
        return self._columns(point, view, least_gap, steps + count)

    def step(self, found: Columns) -> Columns:
        """Keep the patterns of largest weight for their slack, add those found, and solve again."""
        point, further, size = found.point, found.unknown, len(self.frame.share)
        playing = point.sets.sum(axis=1) == 1  # these alone make sure that G is regular
        order = np.argsort(-point.weights / point.slacks, kind="stable")
        playing[order[: max(MOST, ROOM * size) - len(further)]] = True
        aim = CLOSER * min(found.least_gap, 1.0)
        if not len(further):
            aim = CLOSER * min(aim, master.progress(self.frame, point, found.view))
        product = aim * found.view.objective / len(point.sets)
        point = points.replace_patterns(point, playing, further, self.frame.epsilon, product)
        return self.solve(point, max(aim, FINEST), found.least_gap, found.decompositions)

    def _columns(self, point: PatternPoint, view: View, least_gap: float, steps: int) -> Columns:
        """Look for patterns at a point; without time left, suggest no bound."""
        rise, further = self._violated_patterns(point, view)
        objective, suggested = local_columns.objective_and_bound(
            self.frame, point, view, np.inf if self.deadline.passed else rise
        )
        gap = (objective - suggested) / suggested if suggested > 0 else np.inf
        lower = self.bound if self.bound > 0 else suggested
        return Columns(point, view, objective, lower, further, steps, min(gap, least_gap))

    def _violated_patterns(self, point: PatternPoint, view: View) -> tuple[float, Sets]:
        """Climb from patterns in use, moved a little, and from drawn ones; return the rise and those violated."""
        size, rng = len(self.frame.share), self.rng
        climbers = max(CLIMBERS * size, LEAST)
        used = point.sets[np.argsort(-point.weights, kind="stable")[:climbers]]
        used = used ^ (rng.random(used.shape) < PERTURBATION_SIZE / size)
        random = self.thresholds.draw(climbers, rng)
        mixed = np.outer(point.costs, point.share)
        form = view.matrix @ view.matrix.T - (mixed + mixed.T) / 2
        scores, sets = climb(form, point.share, self.frame.epsilon, np.vstack([used, random]), self.deadline)
        proper = np.flatnonzero((scores > 0) & sets.any(axis=1) & ~sets.all(axis=1))
        if not proper.size:
            return 0.0, sets[:0]
        _, first = np.unique(sets[proper], axis=0, return_index=True)
        order = proper[first][np.argsort(-scores[proper[first]], kind="stable")]
        return float(scores[order[0]]), sets[order[: ADDED * size]]
