"""Tables of cliques that agree on what they share: how they are laid out, made to agree, and searched."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dualmech.publishing.fitting.junction import Clique
from dualmech.validate import Array
from dualmech.workloads.lattice import Axes


@dataclass(frozen=True, slots=True, eq=False)
class CliqueTables:
    """The layout of the tables of cliques on a tree, one after another in a vector.

    Tables ``p_C ≥ 0`` that agree on separators, ``Σ_{C∖S} p_C = Σ_{P∖S} p_P``, are those of a non-negative data set:
    hang the cliques on one after another and let ``x = Π_C p_C / Π_S p_S``, with 0/0 = 0. A child's factor
    ``p_C / p_S`` adds up to 1 over its new attributes wherever ``p_S > 0``, so it leaves the tables before
    as they were, and by running intersection its own table is p_C. The converse is plain.
    """

    cliques: tuple[Clique, ...]
    sizes: tuple[int, ...]  # of all attributes
    shapes: tuple[Axes, ...] = field(init=False)
    offsets: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        shapes = tuple(tuple(self.sizes[axis] for axis in clique.axes) for clique in self.cliques)
        object.__setattr__(self, "shapes", shapes)
        object.__setattr__(
            self, "offsets", tuple(np.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist())
        )

    @property
    def cells(self) -> int:
        """Number of cells of all tables together."""
        return self.offsets[-1]

    def views(self, vector: Array) -> list[Array]:
        """Return the tables of a vector, an axis an attribute."""
        bounds = zip(self.offsets, self.offsets[1:], self.shapes, strict=False)
        return [vector[first:last].reshape(shape) for first, last, shape in bounds]

    def outside(self, number: int, axes: Axes) -> Axes:
        """Return which sides of a clique's table belong to other attributes than these."""
        return tuple(side for side, axis in enumerate(self.cliques[number].axes) if axis not in axes)

    def marginal(self, table: Array, number: int, axes: Axes) -> Array:
        """Return the table of some of a clique's attributes."""
        return np.asarray(table.sum(axis=self.outside(number, axes)))

    def spread(self, table: Array, number: int, axes: Axes) -> Array:
        """Return a table of some attributes with sides of length one for a clique's others."""
        return np.expand_dims(table, self.outside(number, axes))

    def uniform(self, total: float) -> Array:
        """Return tables that agree, the same number in all cells of each."""
        sizes = np.diff(self.offsets)
        return np.repeat(total / sizes, sizes)

    def least(self, weights: Array) -> float:
        """Return ``min_x Σ_C w_C(x_C)`` over all cells x of the domain, by messages from the leaves to the root.

        ``Σ_C <w_C, p_C>`` over the tables of a data set of total N is at least N times this, and attains it.
        """
        tables = [table.copy() for table in self.views(weights)]
        for number in range(len(tables) - 1, 0, -1):
            clique = self.cliques[number]
            message = tables[number].min(axis=self.outside(number, clique.separator))
            tables[clique.parent] += self.spread(message, clique.parent, clique.separator)
        return float(tables[0].min())

    def agreeing(self, vector: Array, total: float) -> Array:
        """Return non-negative tables that agree, near to some: each is scaled to what its parent says."""
        found = vector.copy()
        tables = self.views(found)
        for number, table in enumerate(tables):
            clique = self.cliques[number]
            own = self.marginal(table, number, clique.separator)
            wanted = np.asarray(total)
            if number:
                wanted = self.marginal(tables[clique.parent], clique.parent, clique.separator)
            factor = np.divide(wanted, own, out=np.zeros(own.shape), where=own > 0)
            even = wanted * (own <= 0) * (own.size / max(table.size, 1))
            table *= self.spread(factor, number, clique.separator)
            if np.any(even):
                table += self.spread(even, number, clique.separator)
        return found
