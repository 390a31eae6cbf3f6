"""A union of product tables as its symmetry leaves it: a few small matrices, whatever the number of cells.

`dualmech.geometry.attribute_symmetry` splits the functions on each attribute into components; products of one component
of each attribute are those of the domain. The best noise is a covariance K_b on each such *block* b, repeated over the
copies that symmetry makes of it. A block has a coordinate for every orbit of cells that it touches, and a row v for
every orbit of queries that it sees, scaled so that with no further constants

- the cost of a record in an orbit of cells is the sum of ``(K_b⁻¹)_oo`` over the blocks, o its coordinate there, and
- the variance of a query is the sum of ``v K_b v'``.

With no symmetry there is one block, the workload itself; of marginals all blocks have one coordinate, and they are the
residual subspaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from dualmech import linalg
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry import block_forms
from dualmech.geometry.attribute_symmetry import AttributeSymmetry, Parts
from dualmech.geometry.base import FitnessDual, Index, Judged, read_weights, shares, valid_weights
from dualmech.geometry.block_forms import BasedPoint, BlockForms, BlockPoint
from dualmech.geometry.block_neighbours import moved_by
from dualmech.geometry.block_rows import (
    MAX_CHOICES,
    MAX_ORBITS,
    Block,
    BlockRows,
    Key,
    check_size,
    key_of,
    symmetries_of,
)
from dualmech.geometry.statements import tables_in_numbers
from dualmech.immutable import freeze
from dualmech.linalg import EPS
from dualmech.neighbours import Relation
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.unions import UnionWorkload


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """All blocks of a union of tables, and the orbits that tie them."""

    workload: MarginalWorkload | UnionWorkload  # the tables
    # Of each attribute; of marginal tables, where nothing is left to say, none, nor parts.
    symmetries: tuple[AttributeSymmetry, ...]
    wide: tuple[int, ...]  # the attributes with more than one class; an orbit of cells is a class of each
    parts: tuple[tuple[Parts, ...], ...]  # by table, what it asks of each of its attributes
    tables: Index  # (orbits,) the table of each orbit of queries; within a table they are in row-major order
    magnitudes: Array  # (orbits,) largest entry of a query, in absolute value
    counts: Array  # (orbits,) number of queries of each orbit
    cells: int  # number of orbits of cells
    keys: tuple[Key, ...]  # of the blocks of one coordinate
    scalar_blocks: sp.csr_array  # (orbits, t) the squared entries ``v²`` of the blocks of one coordinate
    # (orbits of neighbours, t) what a unit of ``1/K`` of each of them costs: 1 for the records that it counts
    reach: sp.csr_array
    copies: Array  # (t,) how many of each symmetry makes
    matrix_blocks: tuple[Block, ...]  # the other blocks
    # Whether no part of a query can have been lost to rounding, as where all are counts of cells.
    exact: bool = False
    # Which data sets privacy keeps apart; None for a record added or removed.
    neighbours: Relation | None = None

    name: ClassVar[str] = "blocks"

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def of(
        cls, workload: UnionWorkload, most_cells: int = MAX_ORBITS, neighbours: Relation | None = None
    ) -> Blocks:
        """Find the symmetry of a workload and split it; `of_marginals` is the quick way for marginal tables.

        Raises `LittleSymmetryError` for more than `most_cells` orbits of cells, too many of queries, or blocks
        too large to write out; the message says which attributes have no symmetry; `InvalidInputError` for no
        query that is not all zero.
        """
        symmetries, looks = symmetries_of(workload)
        wide = tuple(axis for axis, symmetry in enumerate(symmetries) if len(symmetry.sizes) > 1)
        parts = tuple(
            tuple(looks[axis][key_of(asked)] for axis, asked in table.queries) for table in workload.tables
        )
        counts = [math.prod(len(each.means) for each in own) for own in parts]
        cells = math.prod(len(symmetries[axis].sizes) for axis in wide)
        check_size(workload, symmetries, wide, counts, cells, most_cells)
        found = BlockRows(symmetries, wide)
        start = 0
        for table, own, count in zip(workload.tables, parts, counts, strict=True):
            found.add(table.axes, own, np.arange(start, start + count))
            start += count
        keys, squares, columns = found.scalar_block_arrays(start)
        if not found.values:
            raise InvalidInputError("workload must have at least one query that is not all zero")
        ones = (np.ones(len(keys)), (columns, np.arange(len(keys))))
        reach, several = sp.csr_array(ones, shape=(cells, len(keys))), found.matrix_blocks()
        if neighbours is not None:
            assert workload.domain is not None
            reach, several = moved_by(neighbours, workload.domain, symmetries, found, keys, reach, several)
        return cls(
            workload,
            symmetries,
            wide,
            parts,
            np.repeat(np.arange(len(counts)), counts),
            np.concatenate([_products(own, "magnitudes") for own in parts]),
            np.concatenate([_products(own, "counts") for own in parts]),
            cells,
            keys,
            squares,
            reach,
            np.array([found.copies_of(key) for key in keys]),
            several,
            neighbours=neighbours,
        )

    @classmethod
    def of_marginals(cls, workload: MarginalWorkload) -> Blocks:
        """Split marginal tables, whose blocks are the residual subspaces: no query is looked at.

        A cell of table S meets each of the mult_T copies of ``T ⊆ S`` with a squared entry of ``mult_T / cells_S²``;
        all copies together have the square of ``mult_T / cells_S``.
        """
        lattice, tables = workload.lattice, np.arange(len(workload.axes))
        shares = lattice.incidence.multiply(lattice.dimensions[:, None])
        rows = shares.multiply(1 / workload.table_cells[None, :]).T
        return cls(
            workload,
            (),
            (),
            (),
            tables,
            np.ones(len(tables)),
            workload.table_cells,
            1,
            tuple(tuple((axis, 0) for axis in axes) for axes in lattice.axes),
            sp.csr_array(rows.multiply(rows)),
            sp.csr_array(np.ones((1, len(lattice.axes)))),
            lattice.dimensions,
            (),
            exact=True,
        )

    def restricted(self, neighbours: Index) -> Blocks:
        """Return the same blocks under some orbits of neighbours only."""
        numbers = np.full(self.reach.shape[0], -1)
        numbers[neighbours] = np.arange(len(neighbours))
        blocks = []
        for block in self.matrix_blocks:
            seen = numbers[block.orbits] >= 0
            blocks.append(replace(block, steps=block.steps[:, seen], orbits=numbers[block.orbits[seen]]))
        return replace(self, reach=sp.csr_array(self.reach[neighbours]), matrix_blocks=tuple(blocks))

    @property
    def coordinates(self) -> int:
        """Number of coordinates of all blocks, on their bases."""
        return len(self.keys) + sum(len(block.moves) for block in self.matrix_blocks)

    @property
    def rank(self) -> int:
        """Size of the largest block."""
        return max((len(block.moves) for block in self.matrix_blocks), default=1)

    @property
    def farthest(self) -> float:
        """Largest squared length of a move between neighbours."""
        return 1.0 if self.neighbours is None else self.neighbours.farthest

    @property
    def depth(self) -> int:
        """How many roundings an entry of a row may have seen: sums over classes or waves, and their products."""
        if self.exact:
            return 4
        longest = max(symmetry.roundings for symmetry in self.symmetries)
        return 4 * longest * (1 + max(len(own) for own in self.parts))

    @property
    def rounding_threshold(self) -> float:
        """Largest part of a query, over its largest entry, that may have been set to zero as rounding."""
        return 0.0 if self.exact else self.depth * EPS

    def point(self, primal: Any) -> BlockPoint:
        """Return a primal point of the right shapes, its entries unseen."""
        return block_forms.as_block_point(self, primal)

    def statement(self) -> dict[str, Any]:
        """Return the neighbours, where they are others than by default."""
        return {} if self.neighbours is None else {"neighbours": str(self.neighbours)}

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, Any]:
        """Return what the tables ask; refused where neighbours differ in several cells."""
        return tables_in_numbers(self.workload, kind, numbers, self.neighbours)

    def stored(self, point: BlockPoint) -> BasedPoint:
        """Return noise with the basis of each block, as a file holds it."""
        bases = tuple(block.moves for block in self.matrix_blocks)
        return BasedPoint(point.levels, point.covariances, bases)

    def restored(self, point: Any) -> Any:
        """Return noise on these blocks' bases; anything else is left to the judge."""
        return point.on(self.matrix_blocks) if isinstance(point, BasedPoint) else point

    def divide(self, point: BlockPoint, divisor: float) -> BlockPoint:
        """Return noise over a positive number."""
        with np.errstate(all="ignore"):
            return point.scaled(1 / np.float64(divisor))

    def forms(self, point: BlockPoint) -> BlockForms | None:
        """Evaluate both sides; None for noise that is no covariance, or that some record leaves."""
        return block_forms.evaluate(self, point)

    def largest_ratio(self, point: BlockPoint, targets: Array) -> float:
        """Return the largest ratio of a variance to its target; inf for noise that is no covariance."""
        forms = self.forms(point)
        return np.inf if forms is None else forms.excess(targets)[0]

    def weights(self, dual: Any, queries: bool = True) -> tuple[Array, Array]:
        """Return weights of orbits of neighbours and, if asked for, of queries, their entries unseen."""
        if queries and not isinstance(dual, FitnessDual):
            raise InputTypeError(f"dual must be a dualmech.FitnessDual, got {type(dual).__name__}")
        given = getattr(dual, "neighbour_weights", dual)
        first = read_weights(self.reach.shape[0], given, "neighbour_weights", "orbit")
        if not queries:
            return first, np.zeros(0)
        return first, read_weights(len(self.tables), dual.query_weights, "query_weights", "orbit")

    def bound(self, neighbour_weights: Array, query_weights: Array, targets: Array) -> Judged:
        """Return ``(Σ_b ‖diag(√μ) V_b diag(√λ)‖_*)² / (Σ λ_o Σ μ_j c_j)`` and its rounding, relative."""
        if not valid_weights(query_weights):
            return 0.0, 0.0
        bill = query_weights / query_weights.max()
        return self._bound(neighbour_weights, bill / (bill @ targets[self.tables]))

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        """Return the same with ``w m_j`` for μ_j, m_j being the number of queries of the orbit."""
        return self._bound(neighbour_weights, self.orbit_weights(weights))

    def orbit_weights(self, weights: Array) -> Array:
        """Return what the variance of an orbit of queries counts, all its queries together, from weights of tables."""
        return np.asarray(weights[self.tables] * self.counts)

    def per_query(self, workload: Workload, numbers: Array) -> Array:
        """Return one number per query, from one per table; refused where they are too many to write out."""
        if workload.shape[0] > MAX_CHOICES:
            raise InvalidInputError(f"{workload.shape[0]} queries are too many to write out")
        return np.asarray(numbers[workload.table_numbers()])

    def item_words(self, index: int) -> str:
        """Return what a table is called."""
        return f"table {self.workload.table_names[index]!r}"

    def neighbour_words(self, index: int) -> str:
        """Return which neighbours an orbit is of."""
        count = self.reach.shape[0]
        return "any two neighbours" if count == 1 else f"neighbours of kind {index} of {count}"

    def prices(self, query_weights: Array, targets: Array) -> Array:
        """Return each table's share of ``Σ μ_j c_j`` (tables,)."""
        return self._by_table(query_weights * targets[self.tables], len(targets))

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return each table's share of the trace norm (tables,)."""
        if not valid_weights(neighbour_weights):
            return np.zeros(len(weights))
        found = block_forms.shares(self, neighbour_weights, self.orbit_weights(weights))
        return self._by_table(found, len(weights))

    def _bound(self, neighbour_weights: Array, bill: Array) -> Judged:
        if not valid_weights(neighbour_weights):
            return 0.0, 0.0
        own = neighbour_weights / neighbour_weights.max()
        norm, rounding = block_forms.trace_norm(self, own / own.sum(), bill)
        return norm**2, 2 * rounding / norm if norm > 0 else 0.0

    def _by_table(self, values: Array, count: int) -> Array:
        return shares(np.asarray(np.bincount(self.tables, values, count), dtype=np.float64))

    def orbit_shape(self, table: int) -> tuple[int, ...]:
        """Return how many orbits of queries a table has along each of its attributes."""
        return tuple(len(each.means) for each in self.parts[table])

    def spread(self, table: int, values: Array) -> Array:
        """Return one number per query of a table, in the table's shape, from one per orbit of queries of all tables."""
        own = values[self.tables == table].reshape(self.orbit_shape(table))
        return np.asarray(own[np.ix_(*(each.orbits for each in self.parts[table]))])


def _products(own: tuple[Parts, ...], name: str) -> Array:
    """Return the products over a table's attributes of one number of each, an orbit of queries after another."""
    return linalg.kronecker([getattr(each, name)[:, None] for each in own]).ravel()
