"""Tables that look like tables: no negative count, all of one data set, whole where asked; and no longer unbiased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualmech import linalg, validate
from dualmech.display import counted
from dualmech.errors import InvalidInputError
from dualmech.publishing.published import PublishedTable
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import count_text
from dualmech.workloads.unions import Table

LARGEST_DOMAIN = 2**17  # cells of a data set that is fitted
STEPS, JUDGED = 400, 5  # steps at most, and after how many each the gap is computed
INNER_STEPS, INNER = 40, 1e-8  # conjugate gradients of a step, and the residual at which they end, relative
RELAXED, BALANCE = 1.6, 5.0
CLOSE = 1e-3  # gap that is aimed at, in units of the noise, for each query


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FittedTables:
    """Tables of one non-negative data set that is near to what was released, made by `Publication.fitted`.

    Truths of 0 are no longer estimated by negative numbers, so small counts come out too large on average, and large
    ones too small: margins of error and intervals do not hold for them, and none are given.

    Attributes
    ----------
    data : array
        The data set, an axis an attribute, or by cell where the workload has no domain.
    gap : float
        What the squared distance in units of the noise, halved, exceeds the least possible by at most; before it was
        rounded to whole numbers.
    """

    data: Array
    gap: float
    _tables: dict[str, tuple[PublishedTable, Array]]

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._tables)

    def counts(self, table: str) -> Array:
        """Return a table, an axis a side: of prefixes it grows, since no count is negative."""
        validate.choice(self.tables, table=table)
        return self._tables[table][1]

    def __repr__(self) -> str:
        sizes = f"{counted(len(self.tables), 'table')}, {counted(self.data.size, 'cell')}"
        return f"FittedTables({sizes}, gap={self.gap:.2g})"


def fit(released: Any, integer: bool) -> FittedTables:
    """Return the data set of the released total that is nearest, each table in units of its noise.

    Minimise ``f(x) = ½ Σ_j ((W x - y)_j / σ_j)²`` over ``x ≥ 0`` with ``1'x = N``, by alternating directions. By
    convexity no such z is below ``f(x) + min_z f'(x)(z - x)``, and the least of a linear function is at one cell, which
    is the gap that is reported.
    """
    operators = _operators(released)
    total = max(round(_total(released)), 0)
    shape, targets = operators[0].shape, [released.estimates(each.table.name) for each in operators]
    units = [1 / np.maximum(released.variances(each.table.name), 1e-9) for each in operators]

    def slope(x: Array) -> Array:
        found = np.zeros(shape)
        for own, target, unit in zip(operators, targets, units, strict=True):
            found += own.adjoint((own.forward(x) - target) * unit)
        return found

    x, gap = _descend(slope, shape, float(total), CLOSE * released.workload.shape[0])
    if integer:
        x = np.diff(np.rint(np.cumsum(x.ravel())), prepend=0.0).reshape(shape)
    found = {each.table.name: (each.table, validate.read_only(each.forward(x))) for each in operators}
    return FittedTables(validate.read_only(x), gap, found)


@dataclass(frozen=True, slots=True, eq=False)
class _Operator:
    """A table of a data set, and what its entries weigh on the cells."""

    table: PublishedTable
    shape: tuple[int, ...]
    forward: Callable[[Array], Array]
    adjoint: Callable[[Array], Array]


def _operators(released: Any) -> list[_Operator]:
    workload = released.workload
    tabular = workload.tabular()
    cells = workload.shape[1]
    if cells > LARGEST_DOMAIN:
        raise InvalidInputError(
            f"a data set of {count_text(cells)} cells is too large to fit (limit {LARGEST_DOMAIN}): publish the "
            f"unbiased tables, or fit a release on fewer attributes"
        )
    if tabular is None:
        return [_of_rows(table, workload) for table in released.published.values()]
    pairs = zip(released.published.values(), tabular.product_tables, strict=True)
    return [_of_table(table, own, tabular.domain.shape) for table, own in pairs]


def _of_rows(table: PublishedTable, workload: Workload) -> _Operator:
    rows = workload.select(table.rows).matrix
    return _Operator(
        table, (workload.shape[1],), lambda x: np.asarray(rows @ x), lambda y: np.asarray(rows.T @ y)
    )


def _of_table(table: PublishedTable, own: Table, shape: tuple[int, ...]) -> _Operator:
    others = tuple(axis for axis in range(len(shape)) if axis not in own.axes)
    matrices = [np.eye(shape[axis]) if asked is None else asked.dense() for axis, asked in own.queries]
    plain = all(asked is None for _, asked in own.queries)

    def forward(x: Array) -> Array:
        marginal = np.asarray(x.sum(axis=others))
        return marginal if plain else linalg.apply_along_axes(matrices, marginal)

    def adjoint(y: Array) -> Array:
        marginal = y if plain else linalg.apply_along_axes([each.T for each in matrices], y)
        return np.broadcast_to(np.expand_dims(marginal, others), shape)

    return _Operator(table, shape, forward, adjoint)


def _total(released: Any) -> float:
    """Return the estimate of the number of records."""
    if not released.drawn.by_table:
        found, _ = released.estimate(Workload(np.ones((1, released.workload.shape[1]))))
        return float(np.asarray(found)[0])
    return float(np.asarray(released.drawn.estimate(released.measured, ())))


def _descend(
    slope: Callable[[Array], Array], shape: tuple[int, ...], total: float, close: float
) -> tuple[Array, float]:
    """Return a point of the simplex of a total, and its gap, by the alternating direction method of multipliers.

    One half-step is least squares without the constraint, a regularised equation that few conjugate gradients solve, as
    tables have few different eigenvalues; the other is the projection.
    """
    constant = slope(np.zeros(shape))

    def hessian(x: Array) -> Array:
        return slope(x) - constant

    z = np.full(shape, total / np.prod(shape, dtype=np.float64))
    x, scaled, weight, best = z, np.zeros(shape), _weight(hessian, shape), (z, np.inf)
    for step in range(STEPS):
        if step % JUDGED == 0:
            gradient = slope(z)
            gap = float((gradient * z).sum() - total * gradient.min())
            best = min(best, (z, gap), key=lambda pair: pair[1])
            if gap <= close or not total:
                break
        x = _solved(hessian, weight, weight * (z - scaled) - constant, x)
        relaxed = RELAXED * x + (1 - RELAXED) * z
        before, z = z, project(relaxed + scaled, total)
        scaled = scaled + relaxed - z
        apart, moved = float(np.linalg.norm(x - z)), float(np.linalg.norm(z - before))
        if step % JUDGED == JUDGED - 1 and max(apart, moved) > BALANCE * min(apart, moved):
            factor = 2.0 if apart > moved else 0.5
            weight, scaled = weight * factor, scaled / factor
    return best


def _weight(hessian: Callable[[Array], Array], shape: tuple[int, ...]) -> float:
    """Return a typical eigenvalue, by which a step weighs the constraint against the fit."""
    vector = np.random.default_rng(0).standard_normal(shape)
    return float((vector * hessian(vector)).sum() / (vector**2).sum())


def _solved(hessian: Callable[[Array], Array], weight: float, aim: Array, x: Array) -> Array:
    """Return ``(H + weight)⁻¹ aim`` by conjugate gradients from x."""
    left = aim - hessian(x) - weight * x
    direction, size = left, float((left**2).sum())
    goal = INNER**2 * float((aim**2).sum())
    for _ in range(INNER_STEPS):
        if size <= goal:
            break
        moved = hessian(direction) + weight * direction
        length = size / float((direction * moved).sum())
        x, left = x + length * direction, left - length * moved
        size, before = float((left**2).sum()), size
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
