"""The tables of a non-negative data set that are nearest to noisy ones, by alternating directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dualmech.publishing.fitting.cliques import CliqueTables
from dualmech.validate import Array
from dualmech.workloads.domain import Axes

# Noisy tables as what cliques' tables are held against: how far they are, and how near they can come at best.


EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, eq=False)
class NoisyTable:
    """What was released of some attributes: queries along each side of their table, in units of the noise.

    It is asked of the table of a clique that has them, summed over the clique's other sides.
    """

    axes: Axes
    shape: Axes  # of the attributes' table, as the queries see it
    queries: tuple[Any, ...]  # a matrix for each side of `shape`, or None for the values themselves
    unit: Array  # 1/σ, by query
    aim: Array  # y/σ
    clique: int = 0
    others: Axes = ()  # the clique's sides that are summed over
    sides: Axes = ()  # of the attributes' table, with sides of length one for the others
    gram: Array | None = None  # of queries along one side that are more than its values, the same as they see it

    def on(self, layout: CliqueTables) -> NoisyTable:
        """Return the same asked of the smallest table of a layout that has the attributes."""
        covering = [number for number, clique in enumerate(layout.cliques) if set(self.axes) <= set(clique.axes)]
        number = min(covering, key=lambda clique: math.prod(layout.shapes[clique]))
        return self.at(layout, number)

    def at(self, layout: CliqueTables, number: int) -> NoisyTable:
        others = layout.outside(number, self.axes)
        sides = tuple(1 if side in others else size for side, size in enumerate(layout.shapes[number]))
        return replace(self, clique=number, others=others, sides=sides, gram=self._gram())

    def _gram(self) -> Array | None:
        if len(self.queries) != 1 or self.queries[0] is None or self.unit.size <= self.shape[0]:
            return None
        rows = self.queries[0] * self.unit[:, None]
        product = rows.T @ rows
        return np.asarray(product if isinstance(product, np.ndarray) else product.toarray())

    def hessian(self, table: Array) -> Array:
        if self.gram is None:
            return self.adjoint(self.forward(table))
        marginal = np.asarray(table.sum(axis=self.others)).reshape(self.shape)
        return np.asarray(self.gram @ marginal).reshape(self.sides)

    def answers(self, table: Array) -> Array:
        return _along(self.queries, np.asarray(table.sum(axis=self.others)).reshape(self.shape))

    def forward(self, table: Array) -> Array:
        return np.asarray(self.answers(table) * self.unit)

    def adjoint(self, answers: Array) -> Array:
        """Return what answers over σ weigh on the cells of a clique's table, to be broadcast over the others."""
        transposed = [None if query is None else query.T for query in self.queries]
        return _along(transposed, np.asarray(answers * self.unit)).reshape(self.sides)

    def magnitudes(self) -> NoisyTable:
        """Return the same with the absolute values of all numbers, which rounding is proportional to."""
        return replace(
            self, queries=tuple(None if query is None else abs(query) for query in self.queries), aim=np.abs(self.aim)
        )


@dataclass(frozen=True, slots=True, eq=False)
class NoisyTables:
    """The noisy tables ``y`` of a release of `total` records; A maps cliques' tables to their queries, b = y/σ."""

    layout: CliqueTables
    tables: tuple[NoisyTable, ...]
    total: float

    @property
    def queries(self) -> int:
        return sum(table.aim.size for table in self.tables)

    def forward(self, vector: Array) -> list[Array]:
        """Return ``A p``, table by table."""
        views = self.layout.views(vector)
        return [table.forward(views[table.clique]) for table in self.tables]

    def adjoint(self, answers: Sequence[Array]) -> Array:
        """Return ``A' r``."""
        vector = np.zeros(self.layout.cells)
        views = self.layout.views(vector)
        for table, answer in zip(self.tables, answers, strict=True):
            views[table.clique][...] += table.adjoint(answer)
        return vector

    def hessian(self, vector: Array) -> Array:
        """Return ``A'A p``."""
        product = np.zeros(self.layout.cells)
        views, parts = self.layout.views(product), self.layout.views(vector)
        for table in self.tables:
            views[table.clique][...] += table.hessian(parts[table.clique])
        return product

    @property
    def slope_at_zero(self) -> Array:
        """``-A'b``."""
        return -self.adjoint([table.aim for table in self.tables])

    def residuals(self, vector: Array) -> list[Array]:
        """Return ``A p - b``."""
        return [answers - table.aim for answers, table in zip(self.forward(vector), self.tables, strict=True)]

    def distance(self, residuals: Sequence[Array]) -> float:
        """Return ``½ ‖r‖²``."""
        return 0.5 * sum(float((residual**2).sum()) for residual in residuals)

    def least_distance(self, direction: Sequence[Array], rounding: float = 0.0) -> float:
        """Return a lower bound of ``½ ‖A x - b‖²`` over the data sets x of the total, from any direction r.

        ``‖r‖ ‖A x - b‖ ≥ <r, A x - b> ≥ N min_cell (A'r) - <r, b>``, where the least over cells of the domain is found
        on the tree. `rounding` is taken off the right side.
        """
        size = 2 * self.distance(direction)
        if not size or not np.isfinite(size):
            return 0.0
        aimed = sum(float((part * table.aim).sum()) for part, table in zip(direction, self.tables, strict=True))
        reach = self.total * self.layout.least(self.adjoint(direction)) - aimed - rounding
        return max(reach, 0.0) ** 2 / (2 * size)

    def most(self, vector: Array) -> float:
        """Return ``½ ‖A p - b‖²``, rounded up."""
        off, views, bound = self._rounding, self.layout.views(np.abs(vector)), 0.0
        for table, residual in zip(self.tables, self.residuals(vector), strict=True):
            sizes = table.magnitudes()
            wrong = off * (sizes.forward(views[table.clique]) + sizes.aim)
            bound += 0.5 * float(((np.abs(residual) + wrong) ** 2).sum())
        return bound * (1 + off)

    def least(self, direction: Sequence[Array]) -> float:
        """Return the bound `least_distance`, rounded down."""
        off, reach = self._rounding, 0.0
        for table, part in zip(self.tables, map(np.abs, direction), strict=True):
            sizes = table.magnitudes()
            reach += self.total * float(sizes.adjoint(part).max(initial=0.0)) + float((part * sizes.aim).sum())
        return self.least_distance(direction, off * reach) * (1 - 4 * off)

    @property
    def _rounding(self) -> float:
        """What a sum of products is off by, in units of the sum of their sizes: eps times their number or more."""
        return EPS * (self.queries + self.layout.cells + len(self.layout.cliques))


def _along(matrices: Sequence[Any], tensor: Array) -> Array:
    """Return a tensor after a matrix along each side, dense or sparse; None leaves a side as it is."""
    for side, matrix in enumerate(matrices):
        if matrix is not None:
            moved = np.moveaxis(tensor, side, 0)
            answers = np.asarray(matrix @ moved.reshape(len(moved), -1))
            tensor = np.moveaxis(answers.reshape(-1, *moved.shape[1:]), 0, side)
    return np.asarray(tensor)


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
        copies = np.empty(self.size)
        copies[: self.layout.cells] = vector
        views = self.layout.views(vector)
        for end, _, separator, scale, place, _ in self.edges:
            copies[place] = scale * self.layout.marginal(views[end], end, separator).ravel()
        return copies

    def adjoint(self, copied: Array) -> Array:
        """Return ``K' q``."""
        merged = copied[: self.layout.cells].copy()
        views = self.layout.views(merged)
        for end, _, separator, scale, place, shape in self.edges:
            views[end][...] += self.layout.spread(scale * copied[place].reshape(shape), end, separator)
        return merged

    def project(self, copied: Array, total: float) -> Array:
        """Return the nearest non-negative tables of a total, and the nearest copies that agree."""
        projected = np.empty_like(copied)
        for target, source in zip(self.layout.views(projected), self.layout.views(copied), strict=True):
            target[...] = project(source, total)
        for (_, _, _, one, first, _), (_, _, _, two, second, _) in zip(self.edges[::2], self.edges[1::2], strict=True):
            shared = (one * copied[first] + two * copied[second]) / (one**2 + two**2)
            projected[first], projected[second] = one * shared, two * shared
        return projected


class Best:
    """The nearest point and the best lower bound that were met, each on its own."""

    def __init__(self, noisy: NoisyTables) -> None:
        self.noisy, self.upper, self.lower, self.before = noisy, np.inf, -1.0, np.inf

    def judge(self, x: Array, z: Array) -> None:
        """Take in the tables of a step: the tables of z, made to agree, and the residuals of either as a direction."""
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
    """Return a point whose residual is some part of the residual of x, by conjugate gradients from x."""
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
