"""Noise on one block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry
from dualmech.geometry.base import Index
from dualmech.geometry.block_neighbours import Moved
from dualmech.geometry.block_rows import Key
from dualmech.geometry.dense_forms import judged_covariance
from dualmech.validate import Array
from dualmech.workloads.lattice import Axes

EVEN = 1e-12
"""What rounding may make a basis differ over classes that it does not tell apart, relative to its largest entry."""


ROUNDINGS = 8  # how many roundings the cost of a block of one coordinate may have seen


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Noise on a block.

    A copy of the block is a choice of an orthonormal function u_i in the component of every attribute of the key. Its
    coordinate o is the sum of the data times ``Π u_i`` over the cells of the wide attributes' classes that o names,
    divided by ``weight = 1/√(Π n_i)``, n_i the size of the class on which the component lives. In every copy ``moves``
    times the coordinates are released with noise of one covariance, `copies` times that of a `BlockPoint`.
    """

    moves: Array  # the basis, in coordinates (r, b)
    covariance: Array  # (r, r)
    root: Array  # R with R'R the covariance
    weight: float
    copies: float
    costs: Array  # of each move of neighbours (s,)
    rounding: Array  # allowance for that of the costs
    orbits: Index  # the orbit of neighbours that makes the move (s,)
    classed: Axes = ()  # wide attributes outside the key whose classes `moves` tells apart: it is even over others'

    @classmethod
    def of(
        cls,
        symmetries: Sequence[AttributeSymmetry],
        neighbours: Moved,
        key: Key,
        moves: Array,
        covariance: Array,
    ) -> Piece:
        """Judge the covariance of a copy."""
        steps, orbits = neighbours.steps(key, moves)
        pairs = [(symmetries[axis], component) for axis, component in key]
        weight = math.prod(float(symmetry.sizes[symmetry.classes[each]]) for symmetry, each in pairs) ** -0.5
        copies = math.prod(float(symmetry.dimensions[each]) for symmetry, each in pairs)
        if moves.size == 1:
            level, one = float(covariance[0, 0]), np.ones((1, 1))
            if not (math.isfinite(level) and level > 0):
                raise InvalidInputError(f"levels must be positive and finite, got {level:g}")
            cost = copies / level * (steps[0] / moves[0]) ** 2
            root = one * math.sqrt(level)
            return cls(one, one * level, root, weight, copies, cost, ROUNDINGS * linalg.EPS * cost, orbits)
        judged = judged_covariance(covariance, steps)
        triangle = None if judged is None else linalg.cholesky(judged[0])
        if judged is None or triangle is None:
            raise InvalidInputError("point must have positive definite covariances")
        outside = [axis for axis in neighbours.rows.wide if axis not in dict(key)]
        spread = moves.reshape(len(moves), *(len(symmetries[axis].sizes) for axis in outside))
        uneven = [np.ptp(spread, axis=place).max() for place in range(1, spread.ndim)]
        limit = EVEN * np.abs(moves).max()
        classed = tuple(axis for axis, most in zip(outside, uneven, strict=True) if most > limit)
        costs, rounding = copies * judged[1], copies * judged[2]
        return cls(moves, judged[0], triangle, weight, copies, costs, rounding, orbits, classed)

    def scaled(self, factor: float) -> Piece:
        """Return all noise times a number."""
        return replace(
            self,
            covariance=self.covariance * factor,
            root=self.root * math.sqrt(factor),
            costs=self.costs / factor,
            rounding=self.rounding / factor,
        )

    def covers(self, rows: Array, coordinates: Array) -> bool:
        """Whether rows, of these coordinates on the basis, lie in its span."""
        missed = np.linalg.norm(rows - coordinates @ self.moves)
        return bool(missed <= linalg.SPAN_TOLERANCE * np.linalg.norm(rows))


def axes_of(key: Key) -> Axes:
    """Return the attributes of a block."""
    return tuple(axis for axis, _ in key)
