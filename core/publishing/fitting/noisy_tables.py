"""Noisy tables as what cliques' tables are held against: how far they are, and how near they can come at best."""

from __future__ import annotations

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
    """What was released of a clique's table: queries along each side of a marginal of it, in units of the noise."""

    clique: int
    others: Axes  # the clique's sides that are summed over
    shape: Axes  # of the marginal, as the queries see it
    sides: Axes  # of the marginal, with sides of length one for the others
    queries: tuple[Any, ...]  # a matrix for each side of `shape`, or None for the values themselves
    unit: Array  # 1/σ, by query
    aim: Array  # y/σ

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
        return self.adjoint(self.forward(vector))

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

    def gap(self, vector: Array, direction: Sequence[Array]) -> float:
        """Return what ``½ ‖A p - b‖²`` exceeds the least by at most, rounding on the safe side.

        A sum of k products is off by k eps of the sum of their absolute values; k is some size of what is summed.
        """
        absolute = [table.magnitudes() for table in self.tables]
        terms = self.queries + self.layout.cells + len(self.layout.cliques)
        off = EPS * terms
        views = self.layout.views(np.abs(vector))
        upper = 0.0
        reach = 0.0
        for table, own, along in zip(absolute, self.residuals(vector), direction, strict=True):
            wrong = off * (table.forward(views[table.clique]) + table.aim)
            upper += 0.5 * float(((np.abs(own) + wrong) ** 2).sum()) * (1 + off)
            reach += self.total * float(table.adjoint(np.abs(along)).max(initial=0.0))
            reach += float((np.abs(along) * table.aim).sum())
        lower = self.least_distance(direction, off * reach) * (1 - 4 * off)
        return max(upper - lower, 0.0)


def _along(matrices: Sequence[Any], tensor: Array) -> Array:
    """Return a tensor after a matrix along each side, dense or sparse; None leaves a side as it is."""
    for side, matrix in enumerate(matrices):
        if matrix is not None:
            moved = np.moveaxis(tensor, side, 0)
            answers = np.asarray(matrix @ moved.reshape(len(moved), -1))
            tensor = np.moveaxis(answers.reshape(-1, *moved.shape[1:]), 0, side)
    return np.asarray(tensor)
