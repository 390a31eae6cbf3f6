"""Workloads of ranges: intervals of ordered cells, and ranges of attributes over a domain of several.

`dualmech.workloads` offers these builders beside all others. Cited below are Xiao, Ding, Wang, Zhang and
Kifer, "Optimizing fitness-for-use of differentially private linear queries", PVLDB 14(10), 2021 ("FFU"), and
Li and Miklau, "An adaptive mechanism for accurate query answering under differential privacy", PVLDB 5(6),
2012 ("EIG").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload
from dualmech.workloads.intervals import RangeWorkload, SineWorkload
from dualmech.workloads.streams import StreamWorkload
from dualmech.workloads.tabulations import MAX_ENTRIES, DomainLike, as_domain, chosen_axes

Seed = np.random.Generator | int
Index = npt.NDArray[np.integer]


def prefix(d: int) -> StreamWorkload:
    """Count cells 0 to j for every j: ``W_ji = 1`` where ``i <= j``, (d, d), its matrix on demand (FFU, section 7.1.1).

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.prefix(3).matrix
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]])
    """
    return StreamWorkload(validate.size(d=d))


def decayed_sums(d: int, decay: float) -> StreamWorkload:
    """Sum all cells so far, each counting `decay` times what it did one cell before: ``W_ji = decay^(j-i)``, i <= j.

    Raises `InvalidInputError` or `InputTypeError` for a decay that is not in (0, 1].

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.decayed_sums(3, 0.5).matrix[-1]
    array([0.25, 0.5 , 1.  ])
    """
    return StreamWorkload(validate.size(d=d), decay)


def cdf(d: int) -> StreamWorkload:
    """Count what an empirical distribution function needs: `prefix` by another name (EIG, section 5).

    All d queries count the first cell, and one the last.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.cdf(3).matrix.sum(axis=0)
    array([3., 2., 1.])
    """
    return prefix(d)


def all_range(d: int) -> RangeWorkload:
    """Count every interval of cells, once: (d (d + 1) / 2, d), by first cell, then by last, the matrix on demand.

    Where they are too many to write out, total variance and query weighting by `sines` need no matrix.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.all_range(2).names
    ('cell 0', 'cells 0..1', 'cell 1')
    """
    return RangeWorkload(validate.size(d=d))


def sines(d: int) -> SineWorkload:
    """Ask the d orthonormal sines ``√(2/(d+1)) sin(π k i / (d+1))``, the eigen-queries of `all_range`, (d, d).

    The matrix on demand. Definition 6 of EIG, for ranges in closed form: no decomposition.

    Examples
    --------
    >>> import dualmech as dm
    >>> ranges = dm.workloads.all_range(65536)
    >>> dm.QueryWeighting(ranges, dm.workloads.sines(65536)).costs[:2]
    array([2.85206833e+13, 7.13017084e+12])
    """
    return SineWorkload(validate.size(d=d))


def random_range(d: int | DomainLike, m: int, rng: Seed) -> Workload:
    """Count m random ranges: (m, d), dense.

    Over d ordered cells a range is an interval; both its end points are drawn uniformly and independently,
    and both belong to it (FFU, section 7.4). Over a domain a query is drawn in two steps: first how many
    attributes it restricts, uniformly from 1 to all of them, and which; then an interval of each, as above.
    EIG, section 5, samples "with the two-step sampling method" of an earlier paper and does not describe it. The two
    steps here are those in which Xiao, Wang and Gehrke, ICDE 2010, draw range-count queries, as we read them: how the
    end points are drawn is FFU's.

    Parameters
    ----------
    d : int, Domain, mapping, or sequence of sizes
        The number of cells, or the attributes; sizes without names make attributes ``a0, a1, …``.
    m : int
        Number of queries.
    rng : int or numpy.random.Generator
        Seed.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.random_range(8, 100, rng=0).shape
    (100, 8)
    >>> dm.workloads.random_range({"age": 8, "sex": 2}, 3, rng=1).names
    ('age=6..7', 'age=1..2, sex=0', 'age=3..6, sex=1')
    """
    generator = validate.generator(rng=rng)
    if isinstance(d, str) or not isinstance(d, Iterable):
        cells, queries = validate.size(d=d), validate.size(m=m)
        check_dense_size(queries, cells)
        ends = np.sort(generator.integers(cells, size=(queries, 2)), axis=1)
        return _intervals(ends[:, 0], ends[:, 1], cells, "ranges")
    domain, queries = as_domain(d), validate.size(m=m)
    check_dense_size(queries, domain.cells)
    attributes = len(domain.shape)
    most = generator.integers(1, attributes, size=queries, endpoint=True)
    order = generator.permuted(np.tile(np.arange(attributes), (queries, 1)), axis=1)
    restricted = order < most[:, None]
    ends = np.stack([np.sort(generator.integers(n, size=(queries, 2)), axis=1) for n in domain.shape], axis=1)
    matrix = np.ones((queries, 1))
    for axis, size in enumerate(domain.shape):
        inside = _membership(ends[:, axis, 0], ends[:, axis, 1], size) | ~restricted[:, axis, None]
        matrix = (matrix[:, :, None] * inside[:, None, :]).reshape(queries, -1)
    names = [
        ", ".join(
            _span(name, *ends[query, axis])
            for axis, name in enumerate(domain.names)
            if restricted[query, axis]
        )
        for query in range(queries)
    ]
    return Workload(matrix, names, ["ranges"] * queries, domain)


def range_marginals(
    domain: DomainLike,
    ways: int | Iterable[int] | None = None,
    sets: Iterable[str | Iterable[str]] | None = None,
) -> Workload:
    """Count the records in every range of chosen marginal tables.

    On a set of attributes these are all ways to take an interval of each: the Kronecker product, over all
    attributes in order, of `all_range` for those in the set and of a row of ones for the others. With
    ``ways`` the number of attributes, they are all ranges of the domain.
    Raises `InvalidInputError` or `InputTypeError` for what `marginals` refuses, or more than `MAX_ENTRIES` non-zero
    entries: `range_marginals_gram` has all that total variance asks of them.
    EIG, section 2, "k-way range marginal queries".
    Parameters are as for `marginals`.

    Returns
    -------
    Workload
        Sparse, ``Π n (n + 1) / 2`` rows per set, in row-major order; queries are named like
        ``age=3..7, sex=1``. An interval of all values restricts nothing, so tables on different sets share
        the ranges that this leaves, the total at least; each asks for them anew.

    Examples
    --------
    >>> import dualmech as dm
    >>> ranges = dm.workloads.range_marginals({"age": 3, "sex": 2}, ways=1)
    >>> ranges.shape, ranges.names[:3]
    ((9, 6), ('age=0', 'age=0..1', 'age=0..2'))
    """
    table = as_domain(domain)
    chosen = chosen_axes(table, ways, sets)
    entries = sum(
        math.prod(n * (n + 1) * (n + 2) // 6 if axis in axes else n for axis, n in enumerate(table.shape))
        for axes in chosen
    )
    if entries > MAX_ENTRIES:
        raise InvalidInputError(
            f"range marginals of {entries} non-zero entries are too large to write out (limit {MAX_ENTRIES})"
        )
    blocks, names, groups = [], [], []
    for axes in chosen:
        matrix, spans = sp.csr_array(np.ones((1, 1))), []
        for axis, (name, size) in enumerate(table.sizes):
            first, last = np.triu_indices(size)
            inside = _membership(first, last, size) if axis in axes else np.ones((1, size))
            matrix = sp.kron(matrix, sp.csr_array(inside, dtype=np.float64), format="csr")
            if axis in axes:
                spans.append([_span(name, a, b) for a, b in zip(first, last, strict=True)])
        blocks.append(matrix)
        names += [", ".join(parts) or "total" for parts in itertools.product(*spans)]
        groups += [" x ".join(table.names[axis] for axis in axes) or "total"] * matrix.shape[0]
    return Workload(sp.csr_array(sp.vstack(blocks, format="csr")), names, groups, table)


def check_dense_size(rows: int, columns: int) -> None:
    """Refuse a dense matrix that is too large to write out."""
    if rows * columns > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"workload of shape {rows} x {columns} is too large to write out "
            f"(limit {MAX_DENSE_ENTRIES} entries)"
        )


def _intervals(first: Index, last: Index, cells: int, group: str) -> Workload:
    names = [f"cell {a}" if a == b else f"cells {a}..{b}" for a, b in zip(first, last, strict=True)]
    return Workload(_membership(first, last, cells), names, [group] * len(names))


def _membership(first: Index, last: Index, size: int) -> npt.NDArray[np.bool_]:
    """Return which of `size` values lie in each interval, one per row."""
    value = np.arange(size)
    return np.asarray((first[:, None] <= value) & (value <= last[:, None]))


def _span(attribute: str, first: int | np.integer, last: int | np.integer) -> str:
    return f"{attribute}={first}" if first == last else f"{attribute}={first}..{last}"
