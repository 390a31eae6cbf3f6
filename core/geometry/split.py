"""Query tables with too little symmetry for blocks: noise split by attribute, at any size of the domain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy.sparse as sp

from dualmech import linalg, mechanisms, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.base import (
    SET_UP,
    Forms,
    Index,
    Judged,
    Offer,
    Request,
    TableGeometry,
    decompositions,
    numbers_by_table,
)
from dualmech.geometry.dense import check_noise
from dualmech.geometry.in_numbers import tables_in_numbers
from dualmech.geometry.weights import given_weights, read_weights, shares, valid_weights
from dualmech.geometry.words import Ranked, ranked
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.verified import sum_rounding
from dualmech.workloads.base import Workload
from dualmech.workloads.table_queries import TableWorkload

if TYPE_CHECKING:
    from dualmech.mechanisms.privacy import GaussianPrivacy

SPLIT_FROM = 2048
"""Rank above which ``auto`` splits the noise on query tables rather than solve their blocks."""

# Noise on one attribute, split into the total's noise and the rest; and its dual weights likewise.


@dataclass(frozen=True, slots=True, eq=False)
class SplitNoise:
    """A covariance ``Σ = t θθ' + K`` with ``1'θ = 1`` and ``K 1 = 0``: t is the variance of the total.

    All numbers are rounded up, so that what they promise is kept.
    """

    means: Array  # (n,) θ, what each value has of the total
    root: Array  # (n, n) F with ``F F' = K``
    residual_costs: Array  # (n,) diagonal of ``Σ⁻¹ - 11'/t``: what a record costs on top of the total
    # residual_variances, total_parts: (m,) ``a_j K a_j'`` and ``(a_j θ)²`` of each query
    residual_variances: Array
    total_parts: Array

    @classmethod
    def of(cls, covariance: Array, queries: Array) -> SplitNoise | None:
        """Split a covariance (n, n) and see queries (m, n) with it; None where it is not positive definite."""
        if not np.all(np.isfinite(covariance)) or not np.allclose(covariance, covariance.T, rtol=1e-9, atol=0):
            return None
        symmetric = (covariance + covariance.T) / 2
        factor, judged = linalg.cholesky(symmetric), linalg.inverse_forms(symmetric, np.eye(len(covariance)))
        if factor is None or judged is None:
            return None
        _, costs, allowance = judged
        sums = np.array([math.fsum(row) for row in symmetric.tolist()])  # Σ1, rounded once
        total = math.fsum(symmetric.ravel().tolist())
        if not total > 0:
            return None
        means = sums / total
        residual = costs + allowance - 1 / (total * (1 + 2 * EPS))
        along = queries @ means
        parts = np.abs(along) + sum_rounding(len(means) + 4) * (np.abs(queries) @ np.abs(means))
        # Whatever β is, ``(a - β 1)' Σ (a - β 1)`` is at least ``a' K a``, and least with β = a'θ.
        rest = queries - along[:, None]
        reach = np.abs(queries) + np.abs(along)[:, None]
        sizes = np.einsum("jk,jk->j", reach @ np.abs(symmetric), reach)
        spread = np.einsum("jk,jk->j", rest @ symmetric, rest) + sum_rounding(2 * len(means) + 4) * sizes
        if len(means) == 1:
            residual, spread = np.zeros(1), np.zeros(len(queries))
        ones = factor.sum(axis=1)
        root = factor.T - np.outer(factor.T @ ones, ones) / float(ones @ ones)
        return cls(means, root, residual, np.maximum(spread, 0.0), parts**2 * (1 + 4 * EPS))

    @property
    def residual_cost(self) -> float:
        return float(self.residual_costs.max())

    @property
    def worst(self) -> Array:
        """The pairs of residual variance and part of the total (p, 2) that no other query exceeds in both."""
        order = np.lexsort((-self.total_parts, -self.residual_variances))
        pairs = np.column_stack([self.residual_variances, self.total_parts])[order]
        before = np.maximum.accumulate(np.r_[-1.0, pairs[:-1, 1]])
        return pairs[pairs[:, 1] > before]


@dataclass(frozen=True, slots=True, eq=False)
class SplitBound:
    """The trace norm of ``X = diag(√μ) A diag(√λ)``, split along ``h = √λ``; both numbers are rounded down.

    With the polar factor U of X, `along` is ``h'X'U h`` and `across` is the rest of ``tr X'U``; any U of norm 1 will
    do for the bound that they prove.
    """

    across: float
    along: float

    @classmethod
    def of(cls, queries: Array, query_weights: Array, neighbour_weights: Array) -> SplitBound:
        """Split for weights that are none negative and not all zero; they are brought to sum 1."""
        users = np.sqrt(neighbour_weights / neighbour_weights.sum())
        weighted = np.sqrt(query_weights / query_weights.sum())[:, None] * queries * users
        polar, longest = linalg.nearly_orthonormal(weighted)
        total, allowance = linalg.trace_norm(weighted)
        along = float((polar @ users) @ (weighted @ users))
        # Weights and roots are rounded, too, by few units each, whatever a number's share.
        size = sum(weighted.shape) + 16
        off = 2 * sum_rounding(size) * float((np.abs(polar) @ users) @ (np.abs(weighted) @ users))
        off += 2 * sum_rounding(size) * math.sqrt(min(weighted.shape)) * float(np.linalg.norm(weighted))
        return cls(max(total - along - allowance - off, 0.0) / longest, max(along - off, 0.0) / longest)


MAX_CASES = 2**20  # largest number of combinations of worst queries, over all tables

Products = list[dict[tuple[int, ...], Array]]


@dataclass(frozen=True, slots=True, eq=False)
class SplitPoint:
    """Noise: a covariance for each attribute, (n_i, n_i) and in any unit, and a level for each residual subspace."""

    shapes: tuple[Array, ...]
    levels: Array


@dataclass(frozen=True, slots=True, eq=False)
class SplitWeights:
    """Weights on queries, any none negative: of the queries of each attribute (m_i,), and of tables (tables,)."""

    queries: tuple[Array, ...]
    tables: Array


@dataclass(frozen=True, slots=True, eq=False)
class SplitForms(Forms[Array]):
    """Cost of the worst record, and the variances that split noise gives the tables."""

    split: Split
    parts: tuple[SplitNoise, ...]
    levels: Array

    @property
    def cost(self) -> float:
        return float((self.split.costs(self.parts) / self.levels).sum())

    @property
    def cost_rounding(self) -> float:
        """Allowance for rounding, relative, of both sides; what enters them is rounded up."""
        tables = self.split.workload.tables
        return 16 * (len(tables.axes) + len(tables.lattice.axes)) * EPS

    @property
    def variances(self) -> Array:
        """The largest variance of a query of each table (tables,)."""
        largest = np.zeros(len(self.split.workload.tables.axes))
        variances, tables = self.split.worst_variances(self.parts)
        np.maximum.at(largest, tables, variances.T @ self.levels)
        return largest

    def excess(self, targets: Array) -> Judged:
        return float((self.variances / targets).max()), 0.0

    def total(self, weights: Array) -> Judged:
        return float(self.split.totals(self.parts, weights) @ self.levels), 0.0

    def binding(self, slack: float) -> Index:
        """Return one neighbour that stands for those that are worst in every attribute."""
        return np.zeros(1, dtype=np.intp)

    def loose(self, targets: Array, slack: float) -> Index:
        return np.flatnonzero(self.variances / targets < 1 - slack)

    def worst_items(self, targets: Array) -> Ranked:
        return ranked(self.variances / targets)

    def worst_neighbours(self) -> Ranked:
        return [(0, self.cost)]


@dataclass(frozen=True, slots=True, eq=False)
class Split(TableGeometry[SplitPoint, list[Array], SplitWeights]):
    """Noise of the form ``Σ = Σ_T τ_T ⊗_{i in T} K_i ⊗_{i not in T} θ_i θ_i'``, with ``1'θ_i = 1`` and ``K_i 1 = 0``.

    There is a covariance on each attribute, split into its total and the rest, and a level for each set T of
    attributes. A record costs ``Σ_T (1/τ_T) Π_{i in T} k_i`` at most, k_i being the largest cost of K_i alone, and the
    record that is worst in every attribute does. The query ``⊗ a_i`` of table S has the variance
    ``Σ_{T ⊆ S} τ_T Π_{i in T} a_i K_i a_i' Π_{i in S, not T} (a_i θ_i)²``. So a point of this form is judged
    exactly, but for rounding, by which both are raised.

    Bounds are those at products of weights. With ``X_i = diag(√μ_i) A_i diag(√λ_i)``, ``h_i = √λ_i``,
    ``b_i = h_i'|X_i|h_i`` and ``a_i = ‖X_i‖_* - b_i``,

    - ``√α ≥ Σ_T √( Σ_{S ⊇ T} m_S Π_{i in T} a_i² Π_{i in S, not T} b_i² )`` for ``Σ_S m_S c_S ≤ 1``,

    since a trace norm is at least ``Σ_S tr(X_S' Q_S)`` for any stack of Q_S with ``Σ_S Q_S'Q_S ⪯ I``, and these are
    made of the polar factors U_i of X_i, ``U_i (I - h_i h_i')`` for the attributes in T and ``U_i h_i h_i'`` for the
    others of S. Where all tables are marginals, both sides equal the sides of the blocks, and meet. In general they
    need not meet: the interval is honest, not always tight. One record added or removed.
    """

    workload: TableWorkload

    name: ClassVar[str] = "split"
    takes: ClassVar[str] = "workloads made by dualmech.workloads.query_tables"
    takes_relations: ClassVar[bool] = False

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        """Say that it holds query tables, with one number a table, if need be."""
        workload = request.workload
        if not isinstance(workload, TableWorkload):
            return None
        geometry = cls(workload)
        held = geometry.numbers(workload, request.values, request.name)
        return Offer(SET_UP + decompositions(SPLIT_FROM, SPLIT_FROM), lambda: (geometry, held))

    def numbers(self, workload: Workload, values: object, name: str) -> Array:
        if not self.workload.same_as(workload):
            raise InvalidInputError("geometry must be of this workload")
        return numbers_by_table(self.name, workload, self.workload.tables, values, name)

    @property
    def rank(self) -> int:
        return max(self.workload.sizes)

    def point(self, primal: object) -> SplitPoint:
        primal = validate.instance(SplitPoint, primal=primal)
        shapes, sizes = self._as_attribute_arrays("shapes", primal.shapes, 2), self.workload.sizes
        for axis, (matrix, size) in enumerate(zip(shapes, sizes, strict=True)):
            if matrix.shape != (size, size):
                raise InvalidInputError(f"shapes[{axis}] must have shape ({size}, {size}), got {matrix.shape}")
        levels, count = validate.numeric(1, noise=primal.levels), len(self.workload.tables.lattice.axes)
        if len(levels) != count:
            raise InvalidInputError(f"noise must have {count} levels, one per residual subspace, got {len(levels)}")
        return SplitPoint(tuple(shapes), levels)

    def checked(self, proposal: object) -> SplitPoint:
        point = self.point(proposal)
        check_noise(point.levels, shapes=point.shapes)
        return point

    def divide(self, point: SplitPoint, divisor: float) -> SplitPoint:
        if not (np.isfinite(divisor) and divisor > 0):
            return point
        return SplitPoint(point.shapes, point.levels / divisor)

    def mechanism(self, point: SplitPoint) -> GaussianPrivacy:
        return mechanisms.split.SplitMechanism(self.workload, point.shapes, point.levels)

    def forms(self, point: SplitPoint) -> SplitForms | None:
        parts = self.parts(point.shapes)
        if parts is None or not (np.all(np.isfinite(point.levels)) and np.all(point.levels > 0)):
            return None
        return SplitForms(self, parts, point.levels)

    def weights(self, dual: object, queries: bool = True) -> tuple[list[Array], SplitWeights]:
        first, last = given_weights(dual, queries)
        if queries and not isinstance(last, SplitWeights):
            raise InputTypeError(f"query weights must be dualmech.duals.SplitWeights, got {type(last).__name__}")
        sizes, count = self.workload.sizes, len(self.workload.tables.axes)
        neighbours = self._as_attribute_arrays("neighbour_weights", first, 1)
        users = self._read_all(sizes, neighbours, "neighbour_weights", "value")
        counts = self.workload.table_shape(range(len(sizes)))
        if not queries:
            return users, SplitWeights(tuple(np.ones(count) for count in counts), np.ones(count))
        query_arrays = self._as_attribute_arrays("query_weights", last.queries, 1)
        query_arrays = self._read_all(counts, query_arrays, "query_weights", "query")
        tables = read_weights(count, last.tables, "table_weights", "table")
        return users, SplitWeights(tuple(query_arrays), tables)

    def _read_all(self, counts: Sequence[int], arrays: list[Array], name: str, item: str) -> list[Array]:
        pairs = enumerate(zip(counts, arrays, strict=True))
        return [read_weights(count, array, f"{name}[{axis}]", item) for axis, (count, array) in pairs]

    def bound(self, neighbour_weights: Sequence[Array], query_weights: SplitWeights, targets: Array) -> Judged:
        """Return the bound of the class's docstring, squared; what enters it is rounded down."""
        tables = query_weights.tables
        if not valid_weights(tables):
            return 0.0, 0.0
        weights = tables / tables.max()
        gains = self.bound_products(neighbour_weights, query_weights.queries)
        return float(np.sqrt(gains @ weights).sum()) ** 2 / float(weights @ targets), 0.0

    def total_bound(self, neighbour_weights: Sequence[Array], weights: Array) -> Judged:
        """Return the same with equal weights on the queries of a table, which add up to ``w_S`` times their number."""
        return float(np.sqrt(self.bound_terms(neighbour_weights, weights).sum(axis=1)).sum()) ** 2, 0.0

    def bound_terms(self, neighbour_weights: Sequence[Array], weights: Array) -> sp.csr_array:
        """Return the terms of `total_bound` under its roots (t, tables)."""
        counts = np.array(self.workload.table_counts, dtype=np.float64)
        even = [np.ones(count) for count in self.workload.table_shape(range(len(self.workload.sizes)))]
        return sp.csr_array(self.bound_products(neighbour_weights, even).multiply((weights * counts)[None, :]))

    def neighbour_words(self, index: int) -> str:
        return "neighbours at the record that is worst in every attribute"

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, object]:
        return tables_in_numbers(self.workload, kind, numbers, None)

    def prices(self, query_weights: SplitWeights, targets: Array) -> Array:
        """Return each table's share of the bound (tables,), ``m_S c_S`` over its sum."""
        return shares(query_weights.tables * targets)

    def total_prices(self, neighbour_weights: Sequence[Array], weights: Array) -> Array:
        """Return by what share of it each table's weight raises `total_bound` (tables,)."""
        seen = self.bound_terms(neighbour_weights, weights)
        total = np.asarray(seen.sum(axis=1)).ravel()
        return shares(np.asarray(seen.T @ (1 / np.sqrt(np.where(total > 0, total, 1.0)))))

    def parts(self, shapes: Sequence[Array]) -> tuple[SplitNoise, ...] | None:
        """Return every attribute's covariance, split; None where one is not positive definite."""
        noises = [SplitNoise.of(matrix, self.workload.matrix_of(axis)) for axis, matrix in enumerate(shapes)]
        return None if any(noise is None for noise in noises) else tuple(noise for noise in noises if noise)

    def costs(self, parts: Sequence[SplitNoise]) -> Array:
        """Return what a unit of ``1/τ_T`` costs, ``Π_{i in T} k_i`` (t,)."""
        worst = np.array([part.residual_cost for part in parts])
        return np.array([worst[list(axes)].prod() for axes in self.workload.tables.lattice.axes])

    def worst_variances(self, parts: Sequence[SplitNoise]) -> tuple[sp.csr_array, Index]:
        """Return the variances, ``N'τ``, of queries among which each table's worst is, and the table of each.

        Raises `InvalidInputError` for more than `MAX_CASES` of them.
        """
        worst, tables = [part.worst for part in parts], self.workload.tables.axes
        counts = [int(np.prod([len(worst[axis]) for axis in axes], dtype=np.int64)) for axes in tables]
        if sum(counts) > MAX_CASES:
            raise InvalidInputError(f"tables have {sum(counts)} worst queries to look at (limit {MAX_CASES})")
        blocks = [_products(axes, [worst[axis] for axis in axes]) for axes in tables]
        return self._by_subspace(blocks, counts), np.repeat(np.arange(len(counts)), counts)

    def totals(self, parts: Sequence[SplitNoise], weights: Array) -> Array:
        """Return what a unit of τ_T adds to the weighted total of all variances (t,)."""
        sums = [np.array([[part.residual_variances.sum(), part.total_parts.sum()]]) for part in parts]
        return np.asarray(self._by_table(sums) @ weights)

    def bound_products(self, neighbour_weights: Sequence[Array], query_weights: Sequence[Array]) -> sp.csr_array:
        """Return the numbers ``Π_{i in T} a_i² Π_{i in S, not T} b_i²`` (t, tables) of the bound."""
        pairs = []
        for axis, (moves, weights) in enumerate(zip(neighbour_weights, query_weights, strict=True)):
            proven = valid_weights(moves) and valid_weights(weights)
            queries = self.workload.matrix_of(axis)
            split = SplitBound.of(queries, weights, moves) if proven else SplitBound(0.0, 0.0)
            pairs.append(np.array([[split.across**2, split.along**2]]))
        return self._by_table(pairs)

    def _by_table(self, pairs: Sequence[Array]) -> sp.csr_array:
        tables = self.workload.tables.axes
        blocks = [_products(axes, [pairs[axis] for axis in axes]) for axes in tables]
        return self._by_subspace(blocks, [1] * len(tables))

    def _by_subspace(self, blocks: Products, counts: list[int]) -> sp.csr_array:
        """Return the (t, cases) matrix of blocks that hold the cases of a table by subspace."""
        rows, columns, values, start = [], [], [], 0
        index = {axes: row for row, axes in enumerate(self.workload.tables.lattice.axes)}
        for block, count in zip(blocks, counts, strict=True):
            for subset, value in block.items():
                if subset in index:  # those with an attribute of one value are none
                    rows.append(np.full(count, index[subset]))
                    columns.append(np.arange(start, start + count))
                    values.append(value)
            start += count
        entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        return sp.csr_array(entries, shape=(len(index), start))

    def _as_attribute_arrays(self, name: str, arrays: Sequence[object], dimensions: int) -> list[Array]:
        count = len(self.workload.sizes)
        if not isinstance(arrays, Sequence) or len(arrays) != count:
            raise InvalidInputError(f"{name} must be a sequence of {count} arrays, one per attribute")
        return [validate.numeric(dimensions, **{f"{name}[{axis}]": array}) for axis, array in enumerate(arrays)]


def _products(axes: tuple[int, ...], pairs: list[Array]) -> dict[tuple[int, ...], Array]:
    """Return, by subset of a table's attributes, all products of first entries inside it and of second ones outside.

    `pairs` (p_i, 2) belong to the table's attributes; products are in row-major order.
    """
    products = {}
    for chosen in itertools.product((False, True), repeat=len(axes)):
        product = np.ones(1)
        for inside, pair in zip(chosen, pairs, strict=True):
            product = np.multiply.outer(product, pair[:, 0 if inside else 1]).ravel()
        products[tuple(axis for axis, inside in zip(axes, chosen, strict=True) if inside)] = product
    return products
