"""Gram matrices ``W' W`` of workloads with more queries than can be written out, in closed form.

Total variance, and every strategy that is chosen for it, asks of a workload no more than its Gram matrix: the
sum of all variances under noise of covariance Σ on the cells is ``tr(W Σ W') = tr(Σ W' W)``. These builders
return that matrix; `from_gram` makes a workload of it that any total-variance problem takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload
from dualmech.workloads.tabulations import DomainLike, as_domain, chosen_axes


def all_range_gram(d: int) -> Array:
    """Return ``W' W`` (d, d) of `all_range`: entry (i, k) counts the intervals that hold both cells.

    It is ``(min(i, k) + 1) (d - max(i, k))``, cells counted from 0: d + 1 times the inverse of the second
    difference matrix, with 2 on the diagonal and -1 beside it.
    Raises `InvalidInputError` or `InputTypeError` for a `d` that is not an integer of at least 1, or whose square
    is too large to write out.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.all_range_gram(3)
    array([[3., 2., 1.],
           [2., 4., 2.],
           [1., 2., 3.]])
    """
    cell = np.arange(_square(validate.size(d=d)), dtype=np.float64)
    return np.asarray(np.minimum.outer(cell + 1, cell + 1) * np.minimum.outer(d - cell, d - cell))


def prefix_gram(d: int) -> Array:
    """Return ``W' W`` (d, d) of `prefix`: ``d - max(i, k)``, cells counted from 0.

    Raises `InvalidInputError` or `InputTypeError` as for `all_range_gram`.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.prefix_gram(3)
    array([[3., 2., 1.],
           [2., 2., 1.],
           [1., 1., 1.]])
    """
    cell = np.arange(_square(validate.size(d=d)), dtype=np.float64)
    return np.asarray(np.minimum.outer(d - cell, d - cell))


def marginals_gram(
    domain: DomainLike,
    ways: int | Iterable[int] | None = None,
    sets: Iterable[str | Iterable[str]] | None = None,
) -> Array:
    """Return ``W' W`` (d, d) of `marginals`: entry (i, k) counts the tables in which both cells fall together.

    It is the sum over the tables of a Kronecker product over the attributes: the identity for those in the
    table, a square of ones for the others.
    Raises `InvalidInputError` or `InputTypeError` for what `marginals` refuses, or a domain whose cells, squared,
    are too many to write out.
    Parameters are as for `marginals`.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.marginals_gram([2, 2], ways=1)
    array([[2., 1., 1., 0.],
           [1., 2., 0., 1.],
           [1., 0., 2., 1.],
           [0., 1., 1., 2.]])
    """
    return _sum_of_products(domain, ways, sets, np.eye)


def range_marginals_gram(
    domain: DomainLike,
    ways: int | Iterable[int] | None = None,
    sets: Iterable[str | Iterable[str]] | None = None,
) -> Array:
    """Return ``W' W`` (d, d) of `range_marginals`, however many ranges there are.

    It is the sum over the tables of a Kronecker product over the attributes: `all_range_gram` for those in the
    table, a square of ones for the others. With ``ways`` the number of attributes it is that of all ranges.
    Raises `InvalidInputError` or `InputTypeError` as for `marginals_gram`.
    Parameters are as for `range_marginals`.

    Examples
    --------
    >>> import dualmech as dm
    >>> gram = dm.workloads.range_marginals_gram([8, 16, 16], ways=2)
    >>> gram.shape, int(gram[0, 0])
    ((2048, 2048), 512)
    """
    return _sum_of_products(domain, ways, sets, all_range_gram)


def from_gram(gram: npt.ArrayLike, domain: DomainLike | None = None) -> Workload:
    """Return a workload of at most d queries with a given Gram matrix ``W' W``.

    Whatever the mechanism, the sum of its variances is that of any workload with this Gram matrix, so
    `dualmech.TotalVariance` has the same optimum, the same mechanism and the same dual weights; divide by the
    number of queries that were meant for their mean. The queries themselves have no meaning, nor do single variances,
    targets and weights on them.
    Raises `InvalidInputError` or `InputTypeError` for a matrix that is asymmetric, not positive semidefinite, all
    zero, or not finite; a domain of another size.
    Returns `Workload`: dense, rows R (k, d) with ``R' R = G`` up to rounding and k the rank of G: a pivoted Cholesky
    factor, cells brought to unit diagonal first, so that the rank does not depend on their units.
    Squares lose half the digits: what W tells apart by less than some 1e-7 of its length, its Gram matrix in doubles
    does not, and the rank leaves it out. Where W can be written out, use W.

    Parameters
    ----------
    gram : (d, d) array
        G, symmetric and positive semidefinite, not all zero.
    domain : Domain, mapping, or sequence of sizes, optional
        The attributes behind the cells.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> ranges = dm.workloads.from_gram(dm.workloads.all_range_gram(32))
    >>> len(ranges), len(dm.workloads.all_range(32))
    (32, 528)
    >>> optima = [fast.solve(dm.TotalVariance(w)).objective for w in (ranges, dm.workloads.all_range(32))]
    >>> [round(optimum, 1) for optimum in optima]
    [2143.5, 2143.5]
    """
    checked = validate.symmetric(gram=gram)
    validate.moderate(gram=checked)
    attributes = None if domain is None else as_domain(domain)
    diagonal = np.diagonal(checked)
    used = np.flatnonzero(diagonal > 0)
    if np.any(diagonal < 0) or np.any(checked[diagonal == 0]):
        raise InvalidInputError("gram must be positive semidefinite, its diagonal says that it is not")
    if not used.size:
        raise InvalidInputError("gram must not be all zero: no query is asked")
    units = np.sqrt(diagonal[used])
    correlations = checked[np.ix_(used, used)] / units / units[:, None]
    rounding = 8 * len(used) * linalg.EPS
    factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(correlations, tol=rounding)
    rows = np.zeros((rank, len(used)))
    rows[:, pivots - 1] = np.triu(factor)[:rank]
    rows[np.abs(rows) < linalg.EPS**2] = 0.0  # far below rounding, and too small for a problem to take
    if np.abs(rows.T @ rows - correlations).max() > len(used) * rounding:
        raise InvalidInputError("gram must be positive semidefinite, it has no factor R with R' R = gram")
    matrix = np.zeros((rank, len(checked)))
    matrix[:, used] = rows * units
    names = [f"direction {i}" for i in range(rank)]
    return Workload(matrix, names, ["directions"] * rank, attributes)


def _sum_of_products(
    domain: DomainLike,
    ways: int | Iterable[int] | None,
    sets: Iterable[str | Iterable[str]] | None,
    within: Callable[[int], Array],
) -> Array:
    """Return the sum over tables of Kronecker products, `within` for the table's attributes and ones for others."""
    table = as_domain(domain)
    gram = np.zeros((_square(table.cells), table.cells))
    for axes in chosen_axes(table, ways, sets):
        product: Array = np.ones((1, 1))
        for axis, size in enumerate(table.shape):
            factor = within(size) if axis in axes else np.ones((size, size))
            product = np.asarray(np.kron(product, factor), dtype=np.float64)
        gram += product
    return gram


def _square(cells: int) -> int:
    """Return a number of cells whose square can be written out; refuse others."""
    if cells**2 > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"Gram matrix of {cells} cells is too large to write out (limit {MAX_DENSE_ENTRIES} entries)"
        )
    return cells
