"""A union of product tables, reduced by its symmetry to a few small matrices, for any number of cells.

`dualmech.geometry.attribute_symmetry` splits the functions on each attribute into components; the products with one
component of each attribute split the functions on the domain. The best noise is a covariance K_b on each such *block*
b, repeated over the copies that symmetry makes of it. A block has a coordinate for every orbit of cells that it
touches, and a row v for every orbit of queries that it sees, scaled so that with no further constants

- the cost of a record in an orbit of cells is the sum of ``(K_b⁻¹)_oo`` over the blocks, o its coordinate there, and
- the variance of a query is the sum of ``v K_b v'``.

With no symmetry there is one block, the workload itself; of marginals all blocks have one coordinate, and they are the
residual subspaces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import scipy.sparse as sp

from dualmech import linalg, mechanisms, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry, Key, Parts
from dualmech.geometry.base import (
    SET_UP,
    EvaluatedForms,
    Index,
    Judged,
    Offer,
    Request,
    TableGeometry,
    decompositions,
    numbers_by_table,
)
from dualmech.geometry.block_neighbours import moved_by
from dualmech.geometry.block_rows import Block, BlockRows, check_size, check_sums, key_of, symmetries_of
from dualmech.geometry.dense import check_noise, judged_covariance
from dualmech.geometry.in_numbers import tables_in_numbers
from dualmech.geometry.weights import given_weights, read_weights, shares, valid_weights
from dualmech.immutable import freeze
from dualmech.linalg import EPS
from dualmech.neighbours import Relation
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.marginal import MarginalWorkload
from dualmech.workloads.unions import UnionWorkload, union_of

if TYPE_CHECKING:
    from dualmech.mechanisms.privacy import GaussianPrivacy


@dataclass(frozen=True, slots=True, eq=False)
class BlockPoint:
    """Noise on blocks: a level for each of one coordinate (t,), a covariance on its basis (r, r) for each other."""

    levels: Array
    covariances: tuple[Array, ...] = ()

    def scaled(self, factor: float) -> BlockPoint:
        """Return the noise times a positive number, kept symmetric; any other number leaves it unchanged."""
        if not (np.isfinite(validate.real(factor=factor)) and factor > 0):
            return self
        return BlockPoint(
            self.levels * factor, tuple((covariance + covariance.T) / 2 * factor for covariance in self.covariances)
        )


@dataclass(frozen=True, slots=True, eq=False)
class BasedPoint:
    """Noise on blocks with the basis of each: a machine that chooses another basis reads the same noise."""

    levels: Array
    covariances: tuple[Array, ...] = ()
    bases: tuple[Array, ...] = ()

    def on(self, blocks: Sequence[Block]) -> BlockPoint:
        for name, parts in (("covariances", self.covariances), ("bases", self.bases)):
            if not isinstance(parts, tuple) or len(parts) != len(blocks):
                got = len(parts) if isinstance(parts, tuple) else type(parts).__name__
                raise InvalidInputError(f"{name} must be {len(blocks)} items, got {got}")
        triples = zip(blocks, self.covariances, self.bases, strict=True)
        return BlockPoint(
            self.levels, tuple(block.covariance_from_basis(matrix, basis) for block, matrix, basis in triples)
        )


@dataclass(frozen=True, slots=True, eq=False)
class BlockForms(EvaluatedForms):
    """Cost of a pair of neighbours of each orbit, variance of a query of each orbit, and their rounding, absolute."""

    blocks: Blocks

    def limits(self, targets: Array) -> Array:
        return targets[self.blocks.tables]

    def bill(self, weights: Array) -> Array:
        return np.asarray(weights[self.blocks.tables] * self.blocks.counts)

    def ratios(self, targets: Array) -> Array:
        largest = np.zeros(len(targets))
        np.maximum.at(largest, self.blocks.tables, self.variances)
        return np.asarray(largest / targets)


def as_block_point(blocks: Blocks, primal: object, name: str = "primal") -> BlockPoint:
    """Return a primal point of the right shapes, its entries unseen; levels alone where no block has a covariance."""
    if not isinstance(primal, BlockPoint):
        if blocks.matrix_blocks or isinstance(primal, str):
            raise InputTypeError(
                f"{name} must be noise on blocks, a dualmech.duals.BlockPoint, got {type(primal).__name__}"
            )
        primal = BlockPoint(cast(Array, primal))
    of = "" if name == "primal" else f" of {name}"
    if not isinstance(primal.covariances, Sequence):
        raise InputTypeError(f"covariances{of} must be a tuple, got {type(primal.covariances).__name__}")
    levels = np.zeros(0)
    if not validate.is_empty(primal.levels):
        levels = validate.numeric(1, **{f"levels{of}": primal.levels})
    if len(levels) != len(blocks.keys):
        raise InvalidInputError(
            f"levels{of} must be {len(blocks.keys)}, one per block of one coordinate, got {len(levels)}"
        )
    expected = len(blocks.matrix_blocks)
    if len(primal.covariances) != expected:
        raise InvalidInputError(f"covariances{of} must be {expected}, got {len(primal.covariances)}")
    covariances = []
    for index, (block_covariance, block) in enumerate(zip(primal.covariances, blocks.matrix_blocks, strict=True)):
        called = f"covariances[{index}]{of}"
        covariance, size = validate.numeric(2, **{called: block_covariance}), len(block.moves)
        if covariance.shape != (size, size):
            raise InvalidInputError(f"{called} must have shape ({size}, {size}), got {covariance.shape}")
        covariances.append(covariance)
    return BlockPoint(levels, tuple(covariances))


def trace_norm(blocks: Blocks, neighbour_weights: Array, query_weights: Array) -> Judged:
    """Return ``Σ_b ‖diag(√μ) V_b diag(√λ)‖_*`` for weights of finite, not negative entries, and its rounding, absolute.

    The allowance includes the errors of the entries of V_b from the rounding of means over classes.
    """
    seen = np.asarray(blocks.scalar_blocks.T @ query_weights)
    moved = np.asarray(blocks.reach.T @ neighbour_weights)
    total = float(np.sqrt(moved * seen).sum())
    terms = sum(blocks.reach.shape) + blocks.scalar_blocks.shape[0] + 2 * blocks.depth
    allowance = terms * EPS * total
    reach = np.sqrt(float(query_weights @ blocks.magnitudes**2) * neighbour_weights.sum() * blocks.farthest)
    copies = float(np.sqrt(blocks.copies).sum())
    for block in blocks.matrix_blocks:
        factors = np.sqrt(query_weights[block.rows])
        moves = np.sqrt(neighbour_weights[block.orbits])
        reached = factors[:, None] * (np.abs(block.queries) @ np.abs(block.steps)) * moves
        norm, rounding = linalg.trace_norm(
            factors[:, None] * (block.queries @ block.steps) * moves,
            (len(block.moves) + 2) * EPS * float(np.linalg.norm(reached)),
        )
        total, allowance = total + norm, allowance + rounding
        copies += float(np.sqrt(block.copies * len(block.moves)))
    return total, float(allowance + blocks.rounding_threshold * reach * copies)


def block_shares(blocks: Blocks, neighbour_weights: Array, query_weights: Array) -> Array:
    """Return each query orbit's part of `trace_norm`: the diagonals of ``X s X'``, X left singular vectors."""
    seen = np.asarray(blocks.scalar_blocks.T @ query_weights)
    moved = np.asarray(blocks.reach.T @ neighbour_weights)
    values = np.sqrt(np.divide(moved, seen, out=np.zeros_like(seen), where=seen > 0))
    shares = np.asarray(blocks.scalar_blocks @ values) * query_weights
    for block in blocks.matrix_blocks:
        factors = np.sqrt(query_weights[block.rows])
        moves = np.sqrt(neighbour_weights[block.orbits])
        left, singular, _ = linalg.svd(factors[:, None] * (block.queries @ block.steps) * moves)
        np.add.at(shares, block.rows, left**2 @ singular)
    return shares


def _variances(rows: Array, covariance: Array) -> Array:
    return np.einsum("jk,jk->j", rows @ covariance, rows)


def _all_noise(blocks: Blocks, point: BlockPoint) -> float:
    """Return the variances of all coordinates of all copies of all blocks, added up."""
    several = zip(blocks.matrix_blocks, point.covariances, strict=True)
    return float(blocks.copies @ point.levels + sum(block.copies * np.trace(noise) for block, noise in several))


@dataclass(frozen=True, slots=True, eq=False)
class Blocks(TableGeometry[BlockPoint, Array, Array]):
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
    takes: ClassVar[str] = (
        "workloads that keep their structure, as those of dualmech.workloads.union, marginals, query_tables, circular "
        "and kron (over a domain) do"
    )
    takes_relations: ClassVar[bool] = True

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        workload, relation = request.workload, request.neighbours
        tables = workload.tabular()
        if tables is None:
            return None
        held = numbers_by_table(cls.name, workload, tables, request.values, request.name)
        if isinstance(tables, MarginalWorkload) and relation is None:
            geometry = cls.of_marginals(tables)
        else:
            union = tables if isinstance(tables, UnionWorkload) else union_of([tables])
            assert union is not None and (relation is None or isinstance(relation, Relation))
            geometry = cls.of(union, request.most, relation)
        return Offer(geometry.operations, lambda: (geometry, held))

    @classmethod
    def of(cls, workload: UnionWorkload, most: float = math.inf, neighbours: Relation | None = None) -> Blocks:
        """Find the symmetry of a workload and split it; `of_marginals` is the quick way for marginal tables.

        Raises `GeometryError` for too many orbits of cells or of queries, for blocks too large for a dense matrix, or
        for more than `most` operations, with the attributes that have no symmetry. Raises `InvalidInputError` if all
        queries are zero.
        """
        check_sums(workload, most)
        symmetries, looks = symmetries_of(workload)
        wide = tuple(axis for axis, symmetry in enumerate(symmetries) if len(symmetry.sizes) > 1)
        parts = tuple(tuple(looks[axis][key_of(query)] for axis, query in table.queries) for table in workload.tables)
        counts = [math.prod(len(part.means) for part in table_parts) for table_parts in parts]
        cells = math.prod(len(symmetries[axis].sizes) for axis in wide)
        check_size(workload, symmetries, wide, counts, cells, most)
        rows = BlockRows(symmetries, wide)
        start = 0
        for table, table_parts, count in zip(workload.tables, parts, counts, strict=True):
            rows.add(table.axes, table_parts, np.arange(start, start + count))
            start += count
        keys, squares, columns = rows.scalar_block_arrays(start)
        if not rows.values:
            raise InvalidInputError("workload must have at least one query that is not all zero")
        ones = (np.ones(len(keys)), (columns, np.arange(len(keys))))
        reach, several = sp.csr_array(ones, shape=(cells, len(keys))), rows.matrix_blocks()
        if neighbours is not None:
            assert workload.domain is not None
            reach, several = moved_by(neighbours, workload.domain, symmetries, rows, keys, reach, several)
        return cls(
            workload,
            symmetries,
            wide,
            parts,
            np.repeat(np.arange(len(counts)), counts),
            np.concatenate([_products(table_parts, "magnitudes") for table_parts in parts]),
            np.concatenate([_products(table_parts, "counts") for table_parts in parts]),
            cells,
            keys,
            squares,
            reach,
            np.array([rows.copies_of(key) for key in keys]),
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

    def of_first_tables(self, workload: MarginalWorkload | UnionWorkload) -> Blocks:
        """Return the same blocks with the rows of the first tables alone, those of a workload."""
        tables = len(workload.table_names)
        count = int(np.searchsorted(self.tables, tables))
        blocks = []
        for block in self.matrix_blocks:
            inside = block.rows < count
            blocks.append(replace(block, rows=block.rows[inside], queries=block.queries[inside]))
        return replace(
            self,
            workload=workload,
            parts=self.parts[:tables],
            tables=self.tables[:count],
            magnitudes=self.magnitudes[:count],
            counts=self.counts[:count],
            scalar_blocks=self.scalar_blocks[:count],
            matrix_blocks=tuple(blocks),
        )

    def numbers(self, workload: Workload, values: object, name: str) -> Array:
        tables, stated = workload.tabular(), self.workload
        if tables is None or not any(stated.same_as(candidate) for candidate in (workload, tables, union_of([tables]))):
            raise InvalidInputError("geometry must be of this workload")
        return numbers_by_table(self.name, workload, tables, values, name)

    @property
    def operations(self) -> float:
        """About how many operations a solution takes."""
        shapes = ((len(block.moves), len(block.rows) + block.steps.shape[1]) for block in self.matrix_blocks)
        return SET_UP + sum(decompositions(rank, max(rows - rank, 0)) for rank, rows in shapes)

    @property
    def coordinates(self) -> int:
        """Number of coordinates of all blocks, on their bases."""
        return len(self.keys) + sum(len(block.moves) for block in self.matrix_blocks)

    @property
    def rank(self) -> int:
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
        return 4 * longest * (1 + max(len(table_parts) for table_parts in self.parts))

    @property
    def rounding_threshold(self) -> float:
        """Largest part of a query, over its largest entry, that may have been set to zero as rounding."""
        return 0.0 if self.exact else self.depth * EPS

    def point(self, primal: object) -> BlockPoint:
        return as_block_point(self, primal)

    def argument_values(self) -> dict[str, object]:
        return {} if self.neighbours is None else {"neighbours": str(self.neighbours)}

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, object]:
        """Return what the tables ask; refused where neighbours differ in several cells."""
        return tables_in_numbers(self.workload, kind, numbers, self.neighbours)

    def stored(self, point: BlockPoint) -> BasedPoint:
        """Return noise with the basis of each block, as a file holds it."""
        bases = tuple(block.moves for block in self.matrix_blocks)
        return BasedPoint(point.levels, point.covariances, bases)

    def restored(self, point: object) -> object:
        """Return noise on these blocks' bases; anything else is left to the judge."""
        return point.on(self.matrix_blocks) if isinstance(point, BasedPoint) else point

    def checked(self, proposal: object) -> BlockPoint:
        point = self.point(proposal)
        check_noise(point.levels, covariances=point.covariances)
        return point

    def divide(self, point: BlockPoint, divisor: float) -> BlockPoint:
        with np.errstate(all="ignore"):
            return point.scaled(1 / np.float64(divisor))

    def mechanism(self, point: BlockPoint) -> GaussianPrivacy:
        return mechanisms.block.BlockMechanism(self, point)

    def forms(self, point: BlockPoint) -> BlockForms | None:
        levels = point.levels
        if not (np.all(np.isfinite(levels)) and np.all(levels > 0)):
            return None
        costs, variances = np.asarray(self.reach @ (1 / levels)), np.asarray(self.scalar_blocks @ levels)
        cost_rounding, depth = (len(levels) + 2) * EPS * costs, 2 * self.depth
        variance_rounding = (len(levels) + depth) * EPS * variances
        for block, covariance in zip(self.matrix_blocks, point.covariances, strict=True):
            judged = judged_covariance(covariance, block.steps)
            if judged is None:
                return None
            regularised, profile, allowance = judged
            squares = _variances(block.queries, regularised)
            sizes = _variances(np.abs(block.queries), np.abs(regularised))
            np.add.at(costs, block.orbits, profile)
            np.add.at(cost_rounding, block.orbits, allowance + len(self.matrix_blocks) * EPS * profile)
            np.add.at(variances, block.rows, squares)
            np.add.at(variance_rounding, block.rows, (2 * len(regularised) + depth) * EPS * sizes)
        # What rounding hides of a query may be a part that it needs, which then meets the noise of its block.
        hidden = (self.rounding_threshold * self.magnitudes) ** 2 * _all_noise(self, point)
        return BlockForms(costs, variances, cost_rounding, variance_rounding + hidden, self)

    def largest_ratio(self, point: BlockPoint, targets: Array) -> float:
        with np.errstate(all="ignore"):
            variances = np.asarray(self.scalar_blocks @ point.levels)
            for block, covariance in zip(self.matrix_blocks, point.covariances, strict=True):
                regularised = linalg.regularised_covariance((covariance + covariance.T) / 2)
                if regularised is None:
                    return np.inf
                np.add.at(variances, block.rows, _variances(block.queries, regularised))
            return float((variances / targets[self.tables]).max())

    def weights(self, dual: object, queries: bool = True) -> tuple[Array, Array]:
        first, last = given_weights(dual, queries)
        checked = read_weights(self.reach.shape[0], first, "neighbour_weights", "orbit")
        shares = read_weights(len(self.tables), last, "query_weights", "orbit") if queries else np.zeros(0)
        return checked, shares

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
        """Return the weight of each orbit's variance, all its queries together, from weights of tables."""
        return np.asarray(weights[self.tables] * self.counts)

    def neighbour_words(self, index: int) -> str:
        count = self.reach.shape[0]
        return "any two neighbours" if count == 1 else f"neighbours of kind {index} of {count}"

    def prices(self, query_weights: Array, targets: Array) -> Array:
        return self._by_table(query_weights * targets[self.tables], len(targets))

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        if not valid_weights(neighbour_weights):
            return np.zeros(len(weights))
        prices = block_shares(self, neighbour_weights, self.orbit_weights(weights))
        return self._by_table(prices, len(weights))

    def _bound(self, neighbour_weights: Array, bill: Array) -> Judged:
        if not valid_weights(neighbour_weights):
            return 0.0, 0.0
        shares = neighbour_weights / neighbour_weights.max()
        norm, rounding = trace_norm(self, shares / shares.sum(), bill)
        return norm**2, 2 * rounding / norm if norm > 0 else 0.0

    def _by_table(self, values: Array, count: int) -> Array:
        return shares(np.asarray(np.bincount(self.tables, values, count), dtype=np.float64))

    def orbit_shape(self, table: int) -> tuple[int, ...]:
        """Return how many orbits of queries a table has along each of its attributes."""
        return tuple(len(part.means) for part in self.parts[table])

    def spread(self, table: int, values: Array) -> Array:
        """Return one number per query of a table, in the table's shape, from one per orbit of queries of all tables."""
        array = values[self.tables == table].reshape(self.orbit_shape(table))
        return np.asarray(array[np.ix_(*(part.orbits for part in self.parts[table]))])


def _products(parts: tuple[Parts, ...], name: str) -> Array:
    """Return the products over a table's attributes of one number of each, an orbit of queries after another."""
    return linalg.kronecker([getattr(part, name)[:, None] for part in parts]).ravel()
