"""The tables of a non-negative data set that are nearest to noisy ones, by alternating directions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dualmech.publishing.fitting.clique_tables import CliqueTables
from dualmech.publishing.fitting.noisy_tables import NoisyTables
from dualmech.validate import Array

FEWEST, MOST, WORK = 1000, 4000, 2**25  # steps at most: of many cells fewer, as steps times cells are work
JUDGED = 5  # steps after which the gap is computed again
WAIT, STALLED = 200, 0.95  # steps in which the gap must fall to this part of it for others to follow
INNER_STEPS, INNER = 40, 0.1  # conjugate gradients of a step, and the part of the residual at which they end
START_STEPS, START, START_WEIGHT = 200, 1e-6, 1e-3  # the same of the first point, and how little it is held
RELAXED = 1.6
BALANCED, BALANCE, LARGEST_FACTOR = 25, 2.0, 100.0  # when the weight is changed, and by how much at most
CLOSE = 1e-3  # gap that is aimed at, in units of the noise, for each query


def nearest(noisy: NoisyTables) -> tuple[Array, list[Array]]:
    """Return tables that agree, near to the noisy ones, and the direction of the best lower bound that was met.

    Minimise ``f(p) = ½ ‖A p - b‖²`` over the tables of non-negative data sets by the alternating direction method of
    multipliers. One half-step is least squares without constraints, each clique for itself, by few conjugate gradients;
    the other makes tables non-negative with the total, and separators the mean of what both sides say.
    """
    layout, total = noisy.layout, noisy.total
    copies = Copies.of(layout)
    constant, start = noisy.slope_at_zero, layout.uniform(total)
    if not total or not noisy.queries:
        return start, noisy.residuals(start)
    weight = START_WEIGHT * _typical(noisy.hessian, layout.cells)

    def solved(aim: Array, point: Array, steps: int, accuracy: float) -> Array:
        def moved(x: Array) -> Array:
            return noisy.hessian(x) + weight * copies.adjoint(copies.forward(x))

        return _solved(moved, weight * copies.adjoint(aim) - constant, point, steps, accuracy)

    x = solved(copies.forward(start), start, START_STEPS, START)
    weight /= START_WEIGHT
    z = copies.project(copies.forward(x), total)
    scaled, best = np.zeros_like(z), Best(noisy)
    best.judge(x, z)
    for step in range(1, min(max(WORK // layout.cells, FEWEST), MOST) + 1):
        x = solved(z - scaled, x, INNER_STEPS, INNER)
        copied = copies.forward(x)
        relaxed = RELAXED * copied + (1 - RELAXED) * z
        before, z = z, copies.project(relaxed + scaled, total)
        scaled = scaled + relaxed - z
        if step % JUDGED == 0:
            best.judge(x, z)
            if best.close or (step % WAIT == 0 and best.stalled()):
                break
        if step % BALANCED == 0:
            factor = _factor(copied, z, before, scaled)
            weight, scaled = weight * factor, scaled / factor
    return best.point, best.direction


@dataclass(slots=True, eq=False)
class Copies:
    """A vector of cliques' tables with copies of their separators, as child and parent see them, orthonormal rows."""

    layout: CliqueTables
    edges: list[tuple[int, int, tuple[int, ...], float, slice, tuple[int, ...]]]
    size: int

    @classmethod
    def of(cls, layout: CliqueTables) -> Copies:
        """Lay out the copies behind the tables: clique, its separator and scale, where; two for each edge."""
        edges, size = [], layout.cells
        for number, clique in enumerate(layout.cliques[1:], start=1):
            shape = tuple(layout.sizes[axis] for axis in clique.separator)
            cells = math.prod(shape)
            for end in (number, clique.parent):
                scale = math.sqrt(cells / math.prod(layout.shapes[end]))
                edges.append((end, number, clique.separator, scale, slice(size, size + cells), shape))
                size += cells
        return cls(layout, edges, size)

    def forward(self, vector: Array) -> Array:
        """Return tables and copies ``K p``."""
        found = np.empty(self.size)
        found[: self.layout.cells] = vector
        views = self.layout.views(vector)
        for end, _, separator, scale, place, _ in self.edges:
            found[place] = scale * self.layout.marginal(views[end], end, separator).ravel()
        return found

    def adjoint(self, copied: Array) -> Array:
        """Return ``K' q``."""
        found = copied[: self.layout.cells].copy()
        views = self.layout.views(found)
        for end, _, separator, scale, place, shape in self.edges:
            views[end][...] += self.layout.spread(scale * copied[place].reshape(shape), end, separator)
        return found

    def project(self, copied: Array, total: float) -> Array:
        """Return the nearest non-negative tables of a total, and the nearest copies that agree."""
        found = np.empty_like(copied)
        for own, given in zip(self.layout.views(found), self.layout.views(copied), strict=True):
            own[...] = project(given, total)
        for (_, _, _, one, first, _), (_, _, _, two, second, _) in zip(
            self.edges[::2], self.edges[1::2], strict=True
        ):
            shared = (one * copied[first] + two * copied[second]) / (one**2 + two**2)
            found[first], found[second] = one * shared, two * shared
        return found


class Best:
    """The nearest point and the best lower bound that were met, each on its own."""

    def __init__(self, noisy: NoisyTables) -> None:
        self.noisy, self.upper, self.lower, self.before = noisy, np.inf, -1.0, np.inf

    def judge(self, x: Array, z: Array) -> None:
        """Take in the tables of a step: those of z made to agree, and the residuals of either as a direction."""
        noisy = self.noisy
        point = noisy.layout.agreeing(z[: noisy.layout.cells], noisy.total)
        residuals = noisy.residuals(point)
        if noisy.distance(residuals) < self.upper:
            self.point, self.upper = point, noisy.distance(residuals)
        for direction in (noisy.residuals(x), residuals):
            lower = noisy.least_distance(direction)
            if lower > self.lower:
                self.direction, self.lower = direction, lower

    @property
    def close(self) -> bool:
        """Whether the two are as near as is aimed at."""
        return self.upper - self.lower <= CLOSE * self.noisy.queries

    def stalled(self) -> bool:
        """Whether the two have hardly come nearer since this was asked last."""
        before, self.before = self.before, self.upper - self.lower
        return self.before > STALLED * before


def _factor(copied: Array, z: Array, before: Array, scaled: Array) -> float:
    """Return by what to change the weight, so that both residuals of a step are of the same size, relative."""
    norm = np.linalg.norm
    apart = float(norm(copied - z)) / max(float(norm(copied)), float(norm(z)))
    moved = float(norm(z - before)) / max(float(norm(scaled)), np.finfo(np.float64).tiny)
    if min(apart, moved) * BALANCE >= max(apart, moved) or min(apart, moved) < 1e-14:
        return 1.0
    return min(max(math.sqrt(apart / moved), 1 / LARGEST_FACTOR), LARGEST_FACTOR)


def _typical(hessian: Callable[[Array], Array], cells: int) -> float:
    """Return a typical eigenvalue, by which a step weighs the constraint against the fit."""
    vector = np.random.default_rng(0).standard_normal(cells)
    return float(vector @ hessian(vector)) / float(vector @ vector)


def _solved(operator: Callable[[Array], Array], aim: Array, x: Array, steps: int, accuracy: float) -> Array:
    """Return a point whose residual is some part of that of x, by conjugate gradients from x."""
    left = aim - operator(x)
    direction, size = left, float(left @ left)
    goal = accuracy**2 * size
    for _ in range(steps):
        if size <= goal:
            break
        moved = operator(direction)
        length = size / float(direction @ moved)
        x, left = x + length * direction, left - length * moved
        size, before = float(left @ left), size
        direction = left + size / before * direction
    return x


def project(point: Array, total: float) -> Array:
    """Return the nearest point with no negative entry and a sum of `total`.

    Examples
    --------
    >>> import numpy as np
    >>> project(np.array([3.0, 1.0, -2.0]), 3.0)
    array([2.5, 0.5, 0. ])
    """
    ordered = -np.sort(-point.ravel())
    excess = (np.cumsum(ordered) - total) / np.arange(1, ordered.size + 1)
    kept = int(np.flatnonzero(ordered > excess)[-1]) if np.any(ordered > excess) else 0
    return np.asarray(np.maximum(point - excess[kept], 0.0))
