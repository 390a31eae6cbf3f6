"""Fitness for use of query tables, such as prefixes of ages by sex: an honest interval at any size of the domain."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.certificate import Certificate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.split_parts import SplitBound, SplitNoise
from dualmech.linalg import EPS
from dualmech.problems.marginals import Targets
from dualmech.validate import Array
from dualmech.workloads.query_tables import TableWorkload

if TYPE_CHECKING:
    from dualmech.mechanisms.split import TableMechanism

MAX_CASES = 2**20
"""Largest number of combinations of worst queries, over all tables."""


@dataclass(frozen=True, slots=True, eq=False)
class TablePoint:
    """Noise: a covariance for each attribute, (n_i, n_i) and in any unit, and a level for each residual subspace."""

    shapes: tuple[Array, ...]
    noise: Array


@dataclass(frozen=True, slots=True, eq=False)
class TableDual:
    """Weights that prove a bound, any none negative: of values (n_i,), of queries (m_i,), of tables (tables,)."""

    neighbour_weights: tuple[Array, ...]
    query_weights: tuple[Array, ...]
    table_weights: Array


@dataclass(frozen=True, slots=True, eq=False)
class TableFitness:
    """Fitness for use on query tables: every query of a table has one variance target, and the privacy cost is least.

    Noise of the form ``Σ = Σ_T τ_T ⊗_{i in T} K_i ⊗_{i not in T} θ_i θ_i'`` is considered, where ``1'θ_i = 1``,
    ``K_i 1 = 0``: a covariance on each attribute, split into its total and the rest, and a level for each set T of
    attributes. A record costs ``Σ_T (1/τ_T) Π_{i in T} k_i`` at most, k_i being the largest cost of K_i alone, and the
    record that is worst in every attribute does. The query ``⊗ a_i`` of table S has the variance
    ``Σ_{T ⊆ S} τ_T Π_{i in T} a_i K_i a_i' Π_{i in S, not T} (a_i θ_i)²``. So a point of this form is judged exactly.

    The bound is that of `FitnessForUse` at products of weights. With ``X_i = diag(√μ_i) A_i diag(√λ_i)``,
    ``h_i = √λ_i``, ``b_i = h_i'|X_i|h_i`` and ``a_i = ‖X_i‖_* - b_i``,

    - ``√α ≥ Σ_T √( Σ_{S ⊇ T} m_S Π_{i in T} a_i² Π_{i in S, not T} b_i² )`` for ``Σ_S m_S c_S ≤ 1``,

    since a trace norm is at least ``Σ_S tr(X_S' Q_S)`` for any stack of Q_S with ``Σ_S Q_S'Q_S ⪯ I``, and these are
    made of the polar factors U_i of X_i, ``U_i (I - h_i h_i')`` for the attributes in T and ``U_i h_i h_i'`` for the
    others of S. Where all tables are marginals both sides are those of `MarginalFitness`, and meet. In general they
    need not: the interval is honest, not always tight.

    Parameters
    ----------
    workload : TableWorkload
        Made by `dualmech.workloads.query_tables`.
    targets : float, array or mapping
        One for all tables, one each, or by name and ways, as for `MarginalFitness`.

    Raises
    ------
    InvalidInputError, InputTypeError
        Another workload; what `MarginalFitness` refuses of targets.

    Notes
    -----
    One record added or removed.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> domain = dm.Domain({"age": 16} | {f"a{axis}": 10 for axis in range(30)})
    >>> asked = dm.workloads.query_tables(domain, {"age": dm.workloads.prefix(16)}, ways=(1, 2))
    >>> answer = fast.solve(dm.TableFitness(asked), tol=0.02)
    >>> answer.status.name
    'CERTIFIED'
    """

    workload: TableWorkload
    targets: Array

    def __init__(self, workload: TableWorkload, targets: Targets = 1.0) -> None:
        if not isinstance(workload, TableWorkload):
            raise InputTypeError(
                f"workload must be made by dualmech.workloads.query_tables, got {type(workload).__name__}"
            )
        checked = workload.tables.per_table(targets, "targets")
        validate.moderate(targets=checked)
        object.__setattr__(self, "workload", workload)
        object.__setattr__(self, "targets", checked)

    def certify(self, primal: TablePoint, dual: TableDual) -> Certificate:
        """Judge noise and dual weights; neither needs to come from a solver."""
        bound = self._bound(dual)
        rounding = 16 * (len(self.targets) + len(self.workload.tables.lattice.axes)) * EPS
        noise, parts = self._noise(primal), self.split(primal.shapes)
        if parts is None or not (np.all(np.isfinite(noise)) and np.all(noise > 0)):
            return Certificate.of(np.inf, bound, np.inf, rounding)
        excess = float((self.variances(primal) / self.targets).max()) - 1
        return Certificate.of(
            float((self.costs(parts) / noise).sum()), bound, excess if excess > rounding else 0.0, rounding
        )

    def split(self, shapes: Sequence[npt.ArrayLike]) -> tuple[SplitNoise, ...] | None:
        """Return every attribute's covariance, split; None where one is not positive definite."""
        matrices, sizes = self._each("shapes", shapes, 2), self.workload.sizes
        for axis, (matrix, size) in enumerate(zip(matrices, sizes, strict=True)):
            if matrix.shape != (size, size):
                raise InvalidInputError(
                    f"shapes[{axis}] must have shape ({size}, {size}), got {matrix.shape}"
                )
        found = [SplitNoise.of(matrix, self.workload.matrix_of(axis)) for axis, matrix in enumerate(matrices)]
        return None if any(each is None for each in found) else tuple(each for each in found if each)

    def costs(self, parts: Sequence[SplitNoise]) -> Array:
        """Return what a unit of ``1/τ_T`` costs, ``Π_{i in T} k_i`` (t,)."""
        worst = np.array([part.residual_cost for part in parts])
        return np.array([worst[list(axes)].prod() for axes in self.workload.tables.lattice.axes])

    def cases(self, parts: Sequence[SplitNoise]) -> tuple[sp.csr_array, npt.NDArray[np.intp]]:
        """Return the variances, ``N'τ``, of queries among which each table's worst is, and the table of each.

        Raises
        ------
        InvalidInputError
            More than `MAX_CASES` of them.
        """
        worst = [part.worst for part in parts]
        counts = [
            int(np.prod([len(worst[axis]) for axis in axes], dtype=np.int64))
            for axes in self.workload.tables.axes
        ]
        if sum(counts) > MAX_CASES:
            raise InvalidInputError(f"tables have {sum(counts)} worst queries to look at (limit {MAX_CASES})")
        blocks = [_products(axes, [worst[axis] for axis in axes]) for axes in self.workload.tables.axes]
        return self._assembled(blocks, counts), np.repeat(np.arange(len(counts)), counts)

    def gains(self, dual: TableDual) -> sp.csr_array:
        """Return the numbers ``Π_{i in T} a_i² Π_{i in S, not T} b_i²`` (t, tables) of the bound."""
        users = self._each("neighbour_weights", dual.neighbour_weights, 1)
        asked = self._each("query_weights", dual.query_weights, 1)
        pairs = []
        for axis, (own, weights) in enumerate(zip(users, asked, strict=True)):
            queries = self.workload.matrix_of(axis)
            if (len(weights), len(own)) != queries.shape:
                raise InvalidInputError(
                    f"dual weights of attribute {axis} must be {queries.shape[1]} of values and {queries.shape[0]} "
                    f"of queries, got {len(own)} and {len(weights)}"
                )
            fine = all(
                np.all(np.isfinite(each)) and np.all(each >= 0) and np.any(each) for each in (own, weights)
            )
            split = SplitBound.of(queries, weights, own) if fine else SplitBound(0.0, 0.0)
            pairs.append(np.array([[split.across**2, split.along**2]]))
        tables = self.workload.tables.axes
        blocks = [_products(axes, [pairs[axis] for axis in axes]) for axes in tables]
        return self._assembled(blocks, [1] * len(tables))

    def variances(self, primal: TablePoint) -> Array:
        """Return the largest variance of a query of each table (tables,); inf where the shapes are no covariances."""
        parts, largest = self.split(primal.shapes), np.zeros(len(self.targets))
        if parts is None:
            return np.full(len(self.targets), np.inf)
        found, tables = self.cases(parts)
        np.maximum.at(largest, tables, found.T @ self._noise(primal))
        return largest

    def feasible(self, primal: TablePoint) -> TablePoint:
        """Return the noise scaled so that the tightest target is met exactly."""
        return TablePoint(primal.shapes, self._noise(primal) / (self.variances(primal) / self.targets).max())

    def mechanism(self, primal: TablePoint) -> TableMechanism:
        """Return the mechanism with this noise."""
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.mechanisms.split import TableMechanism

        return TableMechanism(self.workload, primal.shapes, self._noise(primal))

    def prices(self, dual: TableDual) -> Array:
        """Return each table's share of the bound (tables,), ``m_S c_S`` over its sum."""
        bill = self._weights(dual) * self.targets
        return np.asarray(bill / bill.sum())

    def binding(self, primal: TablePoint, slack: float) -> npt.NDArray[np.intp]:
        """Return one neighbour that stands for those that are worst in every attribute."""
        return np.zeros(1, dtype=np.intp)

    def _bound(self, dual: TableDual) -> float:
        weights = self._weights(dual)
        if not (np.all(np.isfinite(weights)) and np.all(weights >= 0) and np.any(weights)):
            return 0.0
        shares = weights / weights.max()
        return float(np.sqrt(self.gains(dual) @ shares).sum()) ** 2 / float(shares @ self.targets)

    def _assembled(self, blocks: list[dict[tuple[int, ...], Array]], counts: list[int]) -> sp.csr_array:
        """Return the (t, cases) matrix of blocks that hold the cases of a table by subspace."""
        rows, columns, values, start = [], [], [], 0
        index = {axes: row for row, axes in enumerate(self.workload.tables.lattice.axes)}
        for block, count in zip(blocks, counts, strict=True):
            for subset, numbers in block.items():
                if subset in index:  # those with an attribute of one value are none
                    rows.append(np.full(count, index[subset]))
                    columns.append(np.arange(start, start + count))
                    values.append(numbers)
            start += count
        entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        return sp.csr_array(entries, shape=(len(index), start))

    def _noise(self, primal: TablePoint) -> Array:
        noise, count = validate.numeric(1, noise=primal.noise), len(self.workload.tables.lattice.axes)
        if len(noise) != count:
            raise InvalidInputError(
                f"noise must have {count} levels, one a residual subspace, got {len(noise)}"
            )
        return noise

    def _weights(self, dual: TableDual) -> Array:
        weights = validate.numeric(1, table_weights=dual.table_weights)
        if len(weights) != len(self.targets):
            raise InvalidInputError(f"table_weights must be {len(self.targets)}, got {len(weights)}")
        return weights

    def _each(self, name: str, given: Sequence[Any], dimensions: int) -> list[Array]:
        count = len(self.workload.sizes)
        if not isinstance(given, Sequence) or len(given) != count:
            raise InvalidInputError(f"{name} must be a sequence of {count} arrays, one an attribute")
        return [validate.numeric(dimensions, **{f"{name}[{axis}]": each}) for axis, each in enumerate(given)]


def _products(axes: tuple[int, ...], pairs: list[Array]) -> dict[tuple[int, ...], Array]:
    """Return, by subset of a table's attributes, all products of first entries inside it and of second ones outside.

    `pairs` (p_i, 2) are those of each attribute of the table; products are in row-major order.
    """
    found = {}
    for chosen in itertools.product((False, True), repeat=len(axes)):
        product = np.ones(1)
        for inside, pair in zip(chosen, pairs, strict=True):
            product = np.multiply.outer(product, pair[:, 0 if inside else 1]).ravel()
        found[tuple(axis for axis, inside in zip(axes, chosen, strict=True) if inside)] = product
    return found
