"""Column generation over patterns: solve on some, find those that the costs price too low, add them, and again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dualmech.fast.engine import loop
from dualmech.fast.local import master, points
from dualmech.fast.local.points import Frame, PatternPoint, View
from dualmech.geometry.local import patterns
from dualmech.geometry.local.patterns import Sets
from dualmech.progress import Deadline

ADDED = 3  # patterns that are added at a time, for each user type

CLOSER = 0.2
"""What is left of the gap on the patterns at hand, relative to the gap over all, when more are added."""

MOST_STEPS = 40  # Newton steps on one set of patterns, at most

SMALL, FEW = 0.1, 20
"""Patterns of a weight below this share of their slack, and a slack above the median, leave where there are more than
so many for each user type, and the gap has just become smaller."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The state of column generation: a point on some patterns, what it proves, and the patterns to add.

    `objective` and `lower_bound` are in the units of the frame; in the worst case the sum of the squared lengths of
    the workload's columns is added to n times either, so that they cannot vanish.
    """

    point: PatternPoint
    view: View
    objective: float
    lower_bound: float
    further: Sets
    decompositions: int
    least_gap: float = np.inf

    @property
    def spectrum(self) -> Columns:
        """The two sides of the gap, for the loop."""
        return self

    @property
    def unknown(self) -> Sets:
        """The patterns to add that are not at hand already."""
        known = {each.tobytes() for each in self.point.sets}
        return self.further[[each.tobytes() not in known for each in self.further]]

    @property
    def gap(self) -> float:
        """Distance of the two sides, relative to the lower one."""
        return (self.objective - self.lower_bound) / self.lower_bound if self.lower_bound > 0 else np.inf


def generate(frame: Frame, limits: loop.Limits, begin: Columns | None = None) -> loop.Outcome[Columns]:
    """Generate patterns until the gap is reached, from all intervals of the user types on a circle, or further."""
    if begin is None:
        first = points.start(frame, intervals(len(frame.share)))
        begin = _solve_and_price(frame, first, CLOSER, 0, limits.deadline)
    return loop.run(begin, partial(_step, frame, limits.tol, limits.deadline), limits, margin=1.0)


def intervals(size: int) -> Sets:
    """Return all intervals on a circle of user types: with equal weights for each length they are a strategy."""
    places = (np.arange(size)[:, None] - np.arange(size)) % size
    return np.vstack([places < length for length in range(1, size)])


def price_patterns(frame: Frame, point: PatternPoint, view: View, count: int) -> tuple[float, Sets]:
    """Price all patterns; return by how much the judge will raise all costs, and the sets that are worst."""
    size, excess = len(point.costs), patterns.gain(frame.epsilon)
    mixed = np.outer(point.costs, point.share)
    even = np.allclose(point.share, 1, rtol=1e-12, atol=0)
    scores, sets, rise = [np.zeros(0)], [np.zeros((0, size), dtype=bool)], 0.0
    for block in patterns.forms(view.matrix @ view.matrix.T - (mixed + mixed.T) / 2, frame.epsilon):
        counts = size + excess * block.sizes
        half = block.left.shape[1]
        mass = size + excess * np.add.outer(block.left @ point.share[:half], block.right @ point.share[half:])
        values = block.values / (counts * mass)
        values[(block.sizes == 0) | (block.sizes == size)] = -np.inf
        # Where the prior is uneven, the judge takes the least that could stand beside the costs.
        rise = max(rise, float((values if even else values * (mass / size)).max()))
        flat = values.ravel()
        chosen = np.argpartition(flat, -min(count, len(flat)))[-count:]
        scores.append(flat[chosen])
        sets.append(block.sets(chosen))
    found = np.concatenate(scores)
    order = np.argsort(-found, kind="stable")[:count]
    return rise, np.vstack(sets)[order[found[order] > 0]]


def _solve_and_price(
    frame: Frame, point: PatternPoint, tol: float, steps: int, deadline: Deadline
) -> Columns:
    """Solve on the patterns of a point to a tolerance, and price all others; without time left, prove nothing."""
    point, view, count = master.solve(frame, point, tol, MOST_STEPS, deadline)
    rise, further = np.inf, point.sets[:0]
    if not deadline.passed:
        rise, further = price_patterns(frame, point, view, ADDED * len(frame.share))
    objective, bound = objective_and_bound(frame, point, view, rise)
    return Columns(point, view, objective, bound, further, steps + count)


def objective_and_bound(frame: Frame, point: PatternPoint, view: View, rise: float) -> tuple[float, float]:
    """Return the objective of a point, and the bound that its dual weights prove if all costs must rise so much."""
    size = len(frame.share)
    bound = view.objective**2 / (float(point.costs.sum()) + size * rise)
    objective = view.objective
    if frame.adversary:
        variances = view.portions.T @ view.forms / point.share - frame.lengths
        objective = size * float(variances.max()) + float(frame.lengths.sum())
        bound += float((1 - point.share) @ frame.lengths)
    # Where columns do not sum to 1 yet, an output more would make them, and take its share of all reports.
    sums = point.weights @ view.rows
    missing = 1 - float(sums.min() / sums.max())
    return objective * float(sums.max()) * (1 + missing / patterns.gain(frame.epsilon)), bound


def _step(frame: Frame, tol: float, deadline: Deadline, columns: Columns) -> Columns:
    """Drop patterns that play no part, add those found, and solve again; without any to add, solve further."""
    point, further = columns.point, columns.unknown
    playing = np.ones(len(point.sets), dtype=bool)
    if len(playing) > FEW * len(frame.share) and columns.gap < columns.least_gap:
        playing = (point.weights > SMALL * point.slacks) | (point.slacks < np.median(point.slacks))
        playing |= point.sets.sum(axis=1) == 1  # these alone make sure that G is regular
    aim = CLOSER * min(columns.gap, 1.0)
    if not len(further):
        aim = CLOSER * min(aim, master.progress(frame, point, columns.view))
    product = aim * columns.view.objective / len(point.sets)
    point = points.replace_patterns(point, playing, further, frame.epsilon, product)
    aim = max(aim, CLOSER * tol) if len(further) else aim
    seen = _solve_and_price(frame, point, aim, columns.decompositions, deadline)
    return replace(seen, least_gap=min(columns.gap, columns.least_gap))
