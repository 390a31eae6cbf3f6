"""Shares, means and medians of released tables: derived columns, with intervals from the joint noise of the answers."""

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
from dualmech.publishing.asking import MOST
from dualmech.publishing.attributes import Attribute
from dualmech.publishing.schema import attribute_at
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.unions import Queries, Table, UnionWorkload

Publication: TypeAlias = Any  # `dualmech.publishing.publication.Publication`, which knows this module

SHARE, MEAN, MEDIAN = KINDS = ("share", "mean", "median")
QUANTILE = "quantile "  # before the share of records that are no further, as in "quantile 0.9"

NEEDED = {
    SHARE: "the values or the total of the attribute that it names last",
    MEAN: "of one attribute its sum and its total, or a range of all its values where some are missing",
}
"""What a table must ask for a quotient; quantiles need the prefixes of one attribute."""


def quantile_share(**named: object) -> float | None:
    """Return the share of records up to a quantile, None for a kind of quotient; refuse other kinds.

    Examples
    --------
    >>> quantile_share(kind="median"), quantile_share(kind="quantile 0.9"), quantile_share(kind="mean")
    (0.5, 0.9, None)
    """
    ((name, value),) = named.items()
    kind = validate.text(**{name: value})
    if kind.startswith(QUANTILE):
        word = f"{name} {kind!r}"
        return validate.probability(**{word: float(validate.exact_number(**{word: kind.removeprefix(QUANTILE)}))})
    return 0.5 if validate.choice((*KINDS, f"{QUANTILE}0.9"), **{name: kind}) == MEDIAN else None


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """Answers along one attribute of a table that are divided by others."""

    axis: int
    entries: tuple[int, ...]  # of the table along the attribute, one for each quotient; none of a single one
    over: Array  # (r, k) numerators as sums of the table's rows
    under: Array  # (r, k) denominators
    divided: Array  # (r, n) the queries of the numerators on the attribute
    dividing: Array  # (r, n) the queries of the denominators

    @property
    def ends(self) -> tuple[Array, Array]:
        """Least and largest value a and b of each quotient, each (r,): those of its records."""
        counted = self.dividing > 0
        values = np.where(counted, self.divided / np.where(counted, self.dividing, 1.0), np.nan)
        return np.nanmin(values, axis=1), np.nanmax(values, axis=1)

    @property
    def parts(self) -> tuple[Array, Array]:
        """The queries ``over - a under`` and ``b under - over``, each (r, n), of which the first has a share τ.

        The quotient is ``a + (b - a) τ``. If all records have the same value, ``a = b``, both are the denominator.
        """
        least, largest = (end[:, None] for end in self.ends)
        constant = least == largest
        return (
            np.where(constant, self.dividing, self.divided - least * self.dividing),
            np.where(constant, self.dividing, largest * self.dividing - self.divided),
        )

    @property
    def weights(self) -> Array:
        """Powers of 2 (r,) by which the second parts are about as large as the first."""
        first, second = (np.linalg.norm(rows, axis=1) for rows in self.parts)
        return np.ldexp(1.0, np.frexp(first / second)[1] - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Running sums along one attribute of a table, less a share of the last one."""

    axis: int
    share: float
    less_share: Array  # (n, n) the queries on the attribute


def needed(kind: str, domain: Domain, queries: Mapping[int, Queries], last: int) -> Ratios | Sums:
    """Return what a derived column is made of; `last` is the attribute that the table names last.

    Raises `InvalidInputError` for a table that does not ask that.
    """
    share = quantile_share(derive=kind)
    rows = _ratios(kind, domain, queries, last) if share is None else _sums(domain, queries, share)
    if rows is None:
        raise InvalidInputError(f"derive: the {kind} needs a table that asks {_needs(kind)}")
    return rows


def _needs(kind: str) -> str:
    return NEEDED.get(kind, "the prefixes of one attribute")


def require_derivable(planned: Publication) -> None:
    """Refuse a plan whose derived columns cannot be told, before anything is drawn."""
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
    """Return how far the interval of a share or a mean goes from it, at most, where its denominator is `count`.

    Fieller's interval has the θ with ``|over - θ under| ≤ z √v(θ)``, v the variance of the difference. Of all values
    that the quotient can have, from a to b, v is largest at one of both ends, so that no such θ of the interval is
    further from it than ``z max(√v(a), √v(b)) / count``; nor where the denominator comes out larger.
    Raises `InvalidInputError` for a quantile, and a table that does not ask what this needs.
    """
    ratios = _needed(planned, table, kind)
    if isinstance(ratios, Sums):
        raise InvalidInputError(f"expected is for shares and means, got {kind!r} of {table!r}")
    quantile = planned.quantile if level is None else normal_quantile(validate.probability(level=level))
    variances = np.split(_variances(planned, table, ratios), 3)
    _, error = _covariance(variances, ratios.weights.reshape((-1,) + (1,) * (variances[0].ndim - 1)))
    least, largest = ratios.ends
    at_ends = np.maximum(*variances[:2]) * (1 + MAX_VARIANCE_ERROR) + error / 2
    varying = at_ends[least < largest]
    return float(quantile * np.sqrt(varying.max(initial=0.0))) / validate.positive_number(count=count)


def _needed(released: Publication, table: str, kind: str) -> Ratios | Sums:
    domain, queries = _asked(released, table)
    sides = released.ordered_sides(table)
    if not sides:
        raise InvalidInputError(
            f"derive: the {kind} needs a table that asks {_needs(kind)}, {table!r} has no attribute"
        )
    (last,) = domain.axes([sides[-1]])
    return needed(kind, domain, queries, last)


def _asked(released: Publication, table: str) -> tuple[Domain, dict[int, Queries]]:
    tabular = released.workload.tabular()
    names = [*released.published]
    if tabular is None:
        raise InvalidInputError(f"derive: {table!r} has no attributes whose values could be summed or divided")
    chosen: Table = tabular.product_tables[names.index(table)]
    return tabular.domain, dict(chosen.queries)


def _ratios(kind: str, domain: Domain, queries: Mapping[int, Queries], last: int) -> Ratios | None:
    if kind == SHARE:
        return _shares(attribute_at(domain, last), last, queries[last])
    for axis, query in queries.items():
        ratios = None if query is None else _mean(attribute_at(domain, axis), axis, query)
        if ratios is not None:
            return ratios
    return None


def _shares(attribute: Attribute, axis: int, query: Queries) -> Ratios | None:
    """Return every row that counts values over the total, which is a row itself or, of all values, their sum."""
    size = attribute.size
    if (size if query is None else query.shape[0]) > 2 * MOST:
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
    worth = attribute.worth
    if worth is None or query.shape[0] > 2 * MOST:
        return None
    rows, valued = query.dense(), (np.arange(attribute.size) < attribute.values).astype(np.float64)
    sums, counts = (np.flatnonzero(np.all(rows == row, axis=1)) for row in (worth, valued))
    if not len(sums) or not len(counts):
        return None
    over, under = ((np.arange(len(rows)) == place[0]).astype(np.float64)[None] for place in (sums, counts))
    return Ratios(axis, (), over, under, worth[None], valued[None])


def _sums(domain: Domain, queries: Mapping[int, Queries], share: float) -> Sums | None:
    for axis, query in queries.items():
        attribute = attribute_at(domain, axis)
        if query is not None and 1 < query.shape[0] == attribute.values <= MOST:
            rows = np.tril(np.ones((attribute.values, attribute.size)))
            if np.array_equal(query.dense(), rows):
                return Sums(axis, share, rows - share * rows[-1])
    return None


def _variances(released: Publication, table: str, wanted: Ratios | Sums) -> Array:
    """Return the variances of sums less a share, or of both parts of quotients and their weighted sum, axis first."""
    domain, queries = _asked(released, table)
    axis = wanted.axis
    if isinstance(wanted, Sums):
        rows = wanted.less_share
    else:
        first, second = wanted.parts
        rows = np.vstack([first, second, first + wanted.weights[:, None] * second])
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
    _, queries = _asked(released, table)
    return np.moveaxis(released.estimates(table), [*sorted(queries)].index(axis), 0)


def _others(released: Publication, table: str, axis: int) -> tuple[list[str], list[tuple[str, ...]]]:
    domain, queries = _asked(released, table)
    names = [domain.names[other] for other in sorted(queries) if other != axis]
    sides = released.published[table].sides
    return names, [*itertools.product(*(sides[name] for name in names))]


def _quotients(
    released: Publication, table: str, kind: str, ratios: Ratios, quantile: float
) -> tuple[list[str], list[Any]]:
    estimates = _along(released, table, ratios.axis)
    over, under = (np.tensordot(rows, estimates, axes=1) for rows in (ratios.over, ratios.under))
    count, shape = len(ratios.divided), (-1,) + (1,) * (over.ndim - 1)
    least, largest, weights = (column.reshape(shape) for column in (*ratios.ends, ratios.weights))
    constant, variances = least == largest, np.split(_variances(released, table, ratios), 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = over / under
    below, above = fieller(over - least * under, largest * under - over, variances, weights, quantile)
    rounding = 8 * EPS * (np.abs(quotient) + np.abs(least) + np.abs(largest))
    low, high = (quotient + np.where(constant, 1.0, largest - least) * off for off in (below, above))
    intervals = [np.where(constant, least, end) for end in (quotient, low - rounding, high + rounding)]
    names, cells = _others(released, table, ratios.axis)
    domain, _ = _asked(released, table)
    side = domain.names[ratios.axis]
    known = released.published[table].sides[side]
    labels: list[tuple[str, ...]] = [(known[entry],) for entry in ratios.entries] or [()]
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
    """Return how far an interval goes below and above the share ``first / (first + second)``, by Fieller (1954).

    The interval has every τ for which ``D(τ) = (1 - τ) first - τ second`` is no further from 0 than its noise goes: all
    numbers where the sum T of both cannot be told from 0. So it holds at the level of normal noise, however near 0 T
    is. With the share τ₀, v the variance of ``D(τ₀)`` and ``g = Cov(-D(τ₀), T)`` it has all ``τ₀ + δ`` with
    ``(T² - z² Var T) δ² - 2 z² g δ ≤ z² v``. No term of its discriminant is negative, so that nothing cancels.
    `variances` are those of first, second and ``first + weight · second``; v is rounded up by what these are off by.

    Examples
    --------
    >>> import numpy as np
    >>> below, above = fieller(np.array([50.0]), np.array([50.0]), np.array([[1.0], [1.0], [2.0]]), np.ones(1), 2.0)
    >>> bool(np.allclose(above, 2 * 0.5**0.5 / 100, rtol=1e-3)), bool(np.allclose(below, -above))
    (True, True)
    """
    square, total, (one, two, _) = quantile**2, first + second, variances
    shared, error = _covariance(variances, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        share, rest = first / total, second / total
        spread = (1 + MAX_VARIANCE_ERROR) * (rest**2 * one + share**2 * two) + 2 * np.abs(share * rest) * error
        spread -= 2 * share * rest * shared
        slope = square * (share * (shared + two) - rest * (shared + one))
        leading = total**2 - square * (one + 2 * shared + two)
        longer = np.abs(slope) + np.sqrt(slope**2 + square * leading * spread)
        far, near = longer / leading, np.where(longer > 0, square * spread / longer, 0.0)
    bounded, upwards = leading > 0, slope >= 0
    below, above = np.where(upwards, near, far), np.where(upwards, far, near)
    return np.where(bounded, -below, -np.inf), np.where(bounded, above, np.inf)


def _covariance(variances: Sequence[Array], weights: Array) -> tuple[Array, Array]:
    one, two, both = variances
    two = weights**2 * two
    return (both - one - two) / (2 * weights), MAX_VARIANCE_ERROR * (both + one + two) / (2 * weights)


def _quantiles(
    released: Publication, table: str, kind: str, sums: Sums, quantile: float
) -> tuple[list[str], list[Any]]:
    """Return quantiles, the first values at which running sums reach a share q of the last one.

    With ``D_k = F_k - q F_n`` the quantile is the first k with ``D_k ≥ 0``. Where all D_k are within their band, which
    holds for all at once by Šidák's inequality, it is none before the first that may be, nor after the first that must.
    """
    domain, _ = _asked(released, table)
    attribute, values = attribute_at(domain, sums.axis), len(sums.less_share)
    estimates = _along(released, table, sums.axis)
    differences = (estimates - sums.share * estimates[-1]).reshape(values, -1)
    band = normal_quantile(level_of(quantile), values)
    margins = band * np.sqrt(_variances(released, table, sums)).reshape(values, -1)
    names, cells = _others(released, table, sums.axis)
    quantiles = []
    for place, cell in enumerate(cells):
        below, width = differences[:, place], margins[:, place]
        reached = (_first(below >= 0), _first(below + width >= 0), _first(below - width >= 0))
        quantiles.append((*cell, *(attribute.label(code) for code in reached)))
    return [*names, kind, "low", "high"], quantiles


def _first(reached: Any) -> int:
    """Return the first place that is reached, the last one where none is."""
    return int(np.argmax(reached)) if np.any(reached) else len(reached) - 1
