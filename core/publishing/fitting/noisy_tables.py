"""Noisy tables as what cliques' tables are held against: how far they are, and how near they can come at best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dualmech.publishing.fitting.clique_tables import CliqueTables
from dualmech.validate import Array
from dualmech.workloads.lattice import Axes

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
    gram: Array | None = (
        None  # of queries along one side that are more than its values, the same as they see it
    )

    def on(self, layout: CliqueTables) -> NoisyTable:
        """Return the same asked of the smallest table of a layout that has the attributes."""
        covering = [
            number for number, clique in enumerate(layout.cliques) if set(self.axes) <= set(clique.axes)
        ]
        number = min(covering, key=lambda each: math.prod(layout.shapes[each]))
        return self.at(layout, number)

    def at(self, layout: CliqueTables, number: int) -> NoisyTable:
        """Return the same asked of a table of a layout, by its number."""
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
        """Return `adjoint` of `forward`."""
        if self.gram is None:
            return self.adjoint(self.forward(table))
        marginal = np.asarray(table.sum(axis=self.others)).reshape(self.shape)
        return np.asarray(self.gram @ marginal).reshape(self.sides)

    def answers(self, table: Array) -> Array:
        """Return the answers on a clique's table."""
        return _along(self.queries, np.asarray(table.sum(axis=self.others)).reshape(self.shape))

    def forward(self, table: Array) -> Array:
        """Return the answers over σ."""
        return np.asarray(self.answers(table) * self.unit)

    def adjoint(self, answers: Array) -> Array:
        """Return what answers over σ weigh on the cells of a clique's table, to be broadcast over the others."""
        transposed = [None if each is None else each.T for each in self.queries]
        return _along(transposed, np.asarray(answers * self.unit)).reshape(self.sides)

    def magnitudes(self) -> NoisyTable:
        """Return the same with the absolute values of all numbers, which rounding is proportional to."""
        return replace(
            self,
            queries=tuple(None if each is None else abs(each) for each in self.queries),
            aim=np.abs(self.aim),
        )


@dataclass(frozen=True, slots=True, eq=False)
class NoisyTables:
    """The noisy tables ``y`` of a release of `total` records; A is what they ask of cliques' tables, b = y/σ."""

    layout: CliqueTables
    tables: tuple[NoisyTable, ...]
    total: float

    @property
    def queries(self) -> int:
        """Number of answers."""
        return sum(table.aim.size for table in self.tables)

    def forward(self, vector: Array) -> list[Array]:
        """Return ``A p``, table by table."""
        views = self.layout.views(vector)
        return [table.forward(views[table.clique]) for table in self.tables]

    def adjoint(self, answers: Sequence[Array]) -> Array:
        """Return ``A' r``."""
        found = np.zeros(self.layout.cells)
        views = self.layout.views(found)
        for table, own in zip(self.tables, answers, strict=True):
            views[table.clique][...] += table.adjoint(own)
        return found

    def hessian(self, vector: Array) -> Array:
        """Return ``A'A p``."""
        found = np.zeros(self.layout.cells)
        views, given = self.layout.views(found), self.layout.views(vector)
        for table in self.tables:
            views[table.clique][...] += table.hessian(given[table.clique])
        return found

    @property
    def slope_at_zero(self) -> Array:
        """``-A'b``."""
        return -self.adjoint([table.aim for table in self.tables])

    def residuals(self, vector: Array) -> list[Array]:
        """Return ``A p - b``."""
        return [own - table.aim for own, table in zip(self.forward(vector), self.tables, strict=True)]

    def distance(self, residuals: Sequence[Array]) -> float:
        """Return ``½ ‖r‖²``."""
        return 0.5 * sum(float((own**2).sum()) for own in residuals)

    def least_distance(self, direction: Sequence[Array], rounding: float = 0.0) -> float:
        """Return a lower bound of ``½ ‖A x - b‖²`` over the data sets x of the total, from any direction r.

        ``‖r‖ ‖A x - b‖ ≥ <r, A x - b> ≥ N min_cell (A'r) - <r, b>``, where the least over cells of the domain is found
        on the tree. `rounding` is taken off the right side.
        """
        size = 2 * self.distance(direction)
        if not size or not np.isfinite(size):
            return 0.0
        aimed = sum(float((own * table.aim).sum()) for own, table in zip(direction, self.tables, strict=True))
        reach = self.total * self.layout.least(self.adjoint(direction)) - aimed - rounding
        return max(reach, 0.0) ** 2 / (2 * size)

    def most(self, vector: Array) -> float:
        """Return ``½ ‖A p - b‖²``, rounded up."""
        off, views, found = self._rounding, self.layout.views(np.abs(vector)), 0.0
        for table, own in zip(self.tables, self.residuals(vector), strict=True):
            sizes = table.magnitudes()
            wrong = off * (sizes.forward(views[table.clique]) + sizes.aim)
            found += 0.5 * float(((np.abs(own) + wrong) ** 2).sum())
        return found * (1 + off)

    def least(self, direction: Sequence[Array]) -> float:
        """Return the bound `least_distance`, rounded down."""
        off, reach = self._rounding, 0.0
        for table, own in zip(self.tables, map(np.abs, direction), strict=True):
            sizes = table.magnitudes()
            reach += self.total * float(sizes.adjoint(own).max(initial=0.0)) + float((own * sizes.aim).sum())
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
