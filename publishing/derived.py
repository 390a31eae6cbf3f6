"""Shares, means and quantiles derived from released tables, with intervals from the joint noise of the answers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dualmech import validate
from dualmech.accounting import level_of, normal_quantile
from dualmech.errors import InvalidInputError
from dualmech.linalg import EPS
from dualmech.mechanisms.costs import MAX_VARIANCE_ERROR
from dualmech.publishing.asking import MAX_DENSE_VALUES
from dualmech.publishing.attributes import Attribute
from dualmech.publishing.schema import attribute_at
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.unions import Queries, Table, UnionWorkload

Publication: TypeAlias = Any  # `dualmech.publishing.publication.Publication`, whose module imports this one

SHARE, MEAN, MEDIAN = KINDS = ("share", "mean", "median")
QUANTILE = "quantile "  # prefix, as in "quantile 0.9"

REQUIRED_QUERIES = {
    SHARE: "the values or the total of its last attribute",
    MEAN: "the sum and the total of one attribute, or a range of all its values if some are missing",
}
"""The queries that a quotient needs; quantiles need the prefixes of one attribute."""


def quantile_share(**argument: object) -> float | None:
    """Return the share of records up to a quantile, or None for a quotient; refuse other kinds.

    Examples
    --------
    >>> quantile_share(kind="median"), quantile_share(kind="quantile 0.9"), quantile_share(kind="mean")
    (0.5, 0.9, None)
    """
    ((name, value),) = argument.items()
    kind = validate.text(**{name: value})
    if kind.startswith(QUANTILE):
        word = f"{name} {kind!r}"
        return validate.probability(**{word: float(validate.exact_number(**{word: kind.removeprefix(QUANTILE)}))})
    return 0.5 if validate.choice((*KINDS, f"{QUANTILE}0.9"), **{name: kind}) == MEDIAN else None


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """Quotients of answers along one attribute of a table."""

    axis: int
    entries: tuple[int, ...]  # entry along the attribute of each quotient; empty for a mean
    over: Array  # (r, k) numerators as combinations of the table's rows
    under: Array  # (r, k) denominators
    numerators: Array  # (r, n) queries on the attribute
    denominators: Array  # (r, n) queries on the attribute

    @property
    def ends(self) -> tuple[Array, Array]:
        """Minimum a and maximum b of each quotient, shape (r,) each, over the values of a record."""
        positive = self.denominators > 0
        values = np.where(positive, self.numerators / np.where(positive, self.denominators, 1.0), np.nan)
        return np.nanmin(values, axis=1), np.nanmax(values, axis=1)

    @property
    def parts(self) -> tuple[Array, Array]:
        """The queries ``over - a under`` and ``b under - over``, shape (r, n) each.

        The quotient is ``a + (b - a) τ``, with the share τ of the first query in the sum of both. If ``a = b``, both
        queries are the denominator.
        """
        low, high = (end[:, None] for end in self.ends)
        constant = low == high
        return (
            np.where(constant, self.denominators, self.numerators - low * self.denominators),
            np.where(constant, self.denominators, high * self.denominators - self.numerators),
        )

    @property
    def weights(self) -> Array:
        """Powers of 2 (r,) that scale the second parts to about the size of the first."""
        first, second = (np.linalg.norm(rows, axis=1) for rows in self.parts)
        return np.ldexp(1.0, np.frexp(first / second)[1] - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Running sums along one attribute of a table, minus a share of the total."""

    axis: int
    share: float
    differences: Array  # (n, n) these queries on the attribute


def needed(kind: str, domain: Domain, queries: Mapping[int, Queries], last: int) -> Ratios | Sums:
    """Return the queries of a derived column; `last` is the table's last attribute.

    Raises `InvalidInputError` for a table without the required queries.
    """
    share = quantile_share(derive=kind)
    rows = _ratios(kind, domain, queries, last) if share is None else _sums(domain, queries, share)
    if rows is None:
        raise InvalidInputError(f"derive: the {kind} needs a table that asks {_needs(kind)}")
    return rows


def _needs(kind: str) -> str:
    return REQUIRED_QUERIES.get(kind, "the prefixes of one attribute")


def require_derivable(planned: Publication) -> None:
    """Refuse a plan whose derived columns cannot be computed."""
    for table, kinds in planned.derivations.items():
        for kind in kinds:
            _variances(planned, table, _needed(planned, table, kind))


def derived(released: Publication, table: str, kind: str, level: float | None = None) -> tuple[list[str], list[Any]]:
    """Return the heading and rows of a derived column; see `dualmech.publishing.publication.Publication.derived`."""
    quantile_share(kind=kind)
    parts = _needed(released, table, kind)
    quantile = released.quantile if level is None else normal_quantile(validate.probability(level=level))
    if isinstance(parts, Sums):
        return _quantiles(released, table, kind, parts, quantile)
    return _quotients(released, table, kind, parts, quantile)


def farthest(planned: Publication, table: str, kind: str, count: float, level: float | None = None) -> float:
    """Return the maximum distance of the interval's ends from a share or a mean with the denominator `count`.

    Fieller's interval contains the θ with ``|over - θ under| ≤ z √v(θ)``, for the variance v of the difference. Over
    the possible quotients, from a to b, v is maximal at an end. So the distance is at most
    ``z max(√v(a), √v(b)) / count``, also for larger denominators.
    Raises `InvalidInputError` for a quantile, and for a table without the required queries.
    """
    ratios = _needed(planned, table, kind)
    if isinstance(ratios, Sums):
        raise InvalidInputError(f"expected is for shares and means, got {kind!r} of {table!r}")
    quantile = planned.quantile if level is None else normal_quantile(validate.probability(level=level))
    variances = np.split(_variances(planned, table, ratios), 3)
    _, error = _covariance(variances, ratios.weights.reshape((-1,) + (1,) * (variances[0].ndim - 1)))
    low, high = ratios.ends
    max_variances = np.maximum(*variances[:2]) * (1 + MAX_VARIANCE_ERROR) + error / 2
    varying = max_variances[low < high]
    return float(quantile * np.sqrt(varying.max(initial=0.0))) / validate.positive_number(count=count)


def _needed(released: Publication, table: str, kind: str) -> Ratios | Sums:
    domain, queries = _queries(released, table)
    sides = released.ordered_sides(table)
    if not sides:
        raise InvalidInputError(
            f"derive: the {kind} needs a table that asks {_needs(kind)}, {table!r} has no attribute"
        )
    (last,) = domain.axes([sides[-1]])
    return needed(kind, domain, queries, last)


def _queries(released: Publication, table: str) -> tuple[Domain, dict[int, Queries]]:
    tabular = released.workload.tabular()
    names = [*released.published]
    if tabular is None:
        raise InvalidInputError(f"derive: {table!r} has no attributes whose values could be summed or divided")
    product_table: Table = tabular.product_tables[names.index(table)]
    return tabular.domain, dict(product_table.queries)


def _ratios(kind: str, domain: Domain, queries: Mapping[int, Queries], last: int) -> Ratios | None:
    if kind == SHARE:
        return _shares(attribute_at(domain, last), last, queries[last])
    for axis, query in queries.items():
        ratios = None if query is None else _mean(attribute_at(domain, axis), axis, query)
        if ratios is not None:
            return ratios
    return None


def _shares(attribute: Attribute, axis: int, query: Queries) -> Ratios | None:
    """Return the quotients of counting rows by the total: a row of the query, or the sum of all values."""
    size = attribute.size
    if (size if query is None else query.shape[0]) > 2 * MAX_DENSE_VALUES:
        return None
    rows = np.eye(size) if query is None else query.dense()
    totals = np.flatnonzero(np.all(rows == 1, axis=1))
    counting = np.flatnonzero(np.all((rows == 0) | (rows == 1), axis=1))
    if query is not None and not len(totals):
        return None
    total = np.ones(size) if query is None else (np.arange(len(rows)) == totals[0]).astype(np.float64)
    over, under = np.eye(len(rows))[counting], np.tile(total, (len(counting), 1))
    return Ratios(axis, tuple(counting.tolist()), over, under, rows[counting], np.ones((len(counting), size)))


def _mean(attribute: Attribute, axis: int, query: Workload) -> Ratios | None:
    numbers = attribute.worth
    if numbers is None or query.shape[0] > 2 * MAX_DENSE_VALUES:
        return None
    rows, present = query.dense(), (np.arange(attribute.size) < attribute.values).astype(np.float64)
    sums, counts = (np.flatnonzero(np.all(rows == row, axis=1)) for row in (numbers, present))
    if not len(sums) or not len(counts):
        return None
    over, under = ((np.arange(len(rows)) == place[0]).astype(np.float64)[None] for place in (sums, counts))
    return Ratios(axis, (), over, under, numbers[None], present[None])


def _sums(domain: Domain, queries: Mapping[int, Queries], share: float) -> Sums | None:
    for axis, query in queries.items():
        attribute = attribute_at(domain, axis)
        if query is not None and 1 < query.shape[0] == attribute.values <= MAX_DENSE_VALUES:
            rows = np.tril(np.ones((attribute.values, attribute.size)))
            if np.array_equal(query.dense(), rows):
                return Sums(axis, share, rows - share * rows[-1])
    return None


def _variances(released: Publication, table: str, quantity: Ratios | Sums) -> Array:
    """Return the variances of the differences of sums, or of both parts of quotients and their weighted sum.

    The first axis is the attribute of the quantity.
    """
    domain, queries = _queries(released, table)
    axis = quantity.axis
    if isinstance(quantity, Sums):
        rows = quantity.differences
    else:
        first, second = quantity.parts
        rows = np.vstack([first, second, first + quantity.weights[:, None] * second])
    derived_table = Table("derived", tuple(sorted((queries | {axis: Workload(rows)}).items())))
    workload, mechanism = UnionWorkload(domain, [derived_table]), released.drawn.mechanism
    if released.drawn.by_table:
        if not hasattr(mechanism, "answering"):
            raise InvalidInputError(f"derive: a {type(mechanism).__name__} does not answer combinations of its queries")
        variances = mechanism.answering(workload).variances("derived")
    else:
        variances = np.reshape(mechanism.variances(workload), workload.table_shape(derived_table))
    return np.moveaxis(np.asarray(variances), [*sorted(queries)].index(axis), 0)


def _along(released: Publication, table: str, axis: int) -> Array:
    _, queries = _queries(released, table)
    return np.moveaxis(released.estimates(table), [*sorted(queries)].index(axis), 0)


def _others(released: Publication, table: str, axis: int) -> tuple[list[str], list[tuple[str, ...]]]:
    domain, queries = _queries(released, table)
    names = [domain.names[other] for other in sorted(queries) if other != axis]
    sides = released.published[table].sides
    return names, [*itertools.product(*(sides[name] for name in names))]


def _quotients(
    released: Publication, table: str, kind: str, ratios: Ratios, quantile: float
) -> tuple[list[str], list[Any]]:
    estimates = _along(released, table, ratios.axis)
    over, under = (np.tensordot(rows, estimates, axes=1) for rows in (ratios.over, ratios.under))
    count, shape = len(ratios.numerators), (-1,) + (1,) * (over.ndim - 1)
    minimum, maximum, weights = (column.reshape(shape) for column in (*ratios.ends, ratios.weights))
    constant, variances = minimum == maximum, np.split(_variances(released, table, ratios), 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = over / under
    offsets = fieller(over - minimum * under, maximum * under - over, variances, weights, quantile)
    rounding = 8 * EPS * (np.abs(quotient) + np.abs(minimum) + np.abs(maximum))
    low, high = (quotient + np.where(constant, 1.0, maximum - minimum) * offset for offset in offsets)
    intervals = [np.where(constant, minimum, end) for end in (quotient, low - rounding, high + rounding)]
    names, cells = _others(released, table, ratios.axis)
    domain, _ = _queries(released, table)
    side = domain.names[ratios.axis]
    side_labels = released.published[table].sides[side]
    labels: list[tuple[str, ...]] = [(side_labels[entry],) for entry in ratios.entries] or [()]
    heading = [*names, *([side] if ratios.entries else []), kind, "low", "high"]
    numbers = np.moveaxis(np.stack(intervals, axis=-1).reshape(count, -1, 3), 0, 1)
    rows = [
        (*cell, *label, *numbers[place, index].tolist())
        for place, cell in enumerate(cells)
        for index, label in enumerate(labels)
    ]
    return heading, rows


def fieller(
    first: Array, second: Array, variances: Sequence[Array], weights: Array, quantile: float
) -> tuple[Array, Array]:
    """Return the ends of an interval for the share ``first / (first + second)``, relative to it, by Fieller (1954).

    The interval contains every τ with ``|D(τ)| ≤ z √Var D(τ)``, for ``D(τ) = (1 - τ) first - τ second``. It is the
    whole line if the sum T of both cannot be distinguished from 0, so its level is exact for normal noise and any T.
    For the estimated share τ₀, ``v = Var D(τ₀)`` and ``g = Cov(-D(τ₀), T)``, it contains all ``τ₀ + δ`` with
    ``(T² - z² Var T) δ² - 2 z² g δ ≤ z² v``. All terms of the discriminant are non-negative, so there is no
    cancellation. `variances` are the variances of first, second and ``first + weight · second``; v is rounded up by
    their error.

    Examples
    --------
    >>> import numpy as np
    >>> below, above = fieller(np.array([50.0]), np.array([50.0]), np.array([[1.0], [1.0], [2.0]]), np.ones(1), 2.0)
    >>> bool(np.allclose(above, 2 * 0.5**0.5 / 100, rtol=1e-3)), bool(np.allclose(below, -above))
    (True, True)
    """
    square, total, (variance1, variance2, _) = quantile**2, first + second, variances
    covariance, error = _covariance(variances, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        share1, share2 = first / total, second / total
        variance = (1 + MAX_VARIANCE_ERROR) * (share2**2 * variance1 + share1**2 * variance2)
        variance += 2 * np.abs(share1 * share2) * error - 2 * share1 * share2 * covariance
        slope = square * (share1 * (covariance + variance2) - share2 * (covariance + variance1))
        leading = total**2 - square * (variance1 + 2 * covariance + variance2)
        numerator = np.abs(slope) + np.sqrt(slope**2 + square * leading * variance)
        large_root, small_root = numerator / leading, np.where(numerator > 0, square * variance / numerator, 0.0)
    bounded, upwards = leading > 0, slope >= 0
    low, high = np.where(upwards, small_root, large_root), np.where(upwards, large_root, small_root)
    return np.where(bounded, -low, -np.inf), np.where(bounded, high, np.inf)


def _covariance(variances: Sequence[Array], weights: Array) -> tuple[Array, Array]:
    """Return the covariance of first and second, and a bound on its error; see `fieller`."""
    first, second, total = variances
    second = weights**2 * second
    return (total - first - second) / (2 * weights), MAX_VARIANCE_ERROR * (total + first + second) / (2 * weights)


def _quantiles(
    released: Publication, table: str, kind: str, sums: Sums, quantile: float
) -> tuple[list[str], list[Any]]:
    """Return quantiles: the first values whose running sums F are at least a share q of the total F_n.

    The quantile is the first k with ``D_k = F_k - q F_n ≥ 0``. The D_k are in a band that holds for all k at once, by
    Šidák's inequality. If they are, the quantile is at least the first k with a non-negative upper end, and at most the
    first k with a non-negative lower end.
    """
    domain, _ = _queries(released, table)
    attribute, values = attribute_at(domain, sums.axis), len(sums.differences)
    estimates = _along(released, table, sums.axis)
    differences = (estimates - sums.share * estimates[-1]).reshape(values, -1)
    band = normal_quantile(level_of(quantile), values)
    margins = band * np.sqrt(_variances(released, table, sums)).reshape(values, -1)
    names, cells = _others(released, table, sums.axis)
    quantiles = []
    for place, cell in enumerate(cells):
        sums_at, width = differences[:, place], margins[:, place]
        codes = (_first(sums_at >= 0), _first(sums_at + width >= 0), _first(sums_at - width >= 0))
        quantiles.append((*cell, *(attribute.label(code) for code in codes)))
    return [*names, kind, "low", "high"], quantiles


def _first(mask: Any) -> int:
    """Return the first index of a true entry of the mask, or the last index."""
    return int(np.argmax(mask)) if np.any(mask) else len(mask) - 1
