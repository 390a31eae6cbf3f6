"""Workloads with a matrix on demand (running sums, all ranges, sines), and workloads from Gram matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy  # it loads fft when that is used
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.immutable import freeze, set_parts
from dualmech.validate import Array
from dualmech.workloads.base import MAX_DENSE_ENTRIES, MAX_NAMES, StructuredWorkload, Workload
from dualmech.workloads.steps import Steps
from dualmech.workloads.tabulations import DomainLike, as_domain, chosen_axes

Index = npt.NDArray[np.integer]


class RuleWorkload(StructuredWorkload):
    """A workload whose rows are computed from their indices, by `_rows` and `_named` of its subclass."""

    __slots__ = ()

    too_large: ClassVar[str]
    """Beginning of the message for too many cells, such as ``sines over``."""

    instead: ClassVar[str]
    """End of that message: an alternative that needs no matrix."""

    @property
    def matrix(self) -> Array:
        """W (m, d), dense; refused if it has too many entries."""
        if self._matrix is None:
            queries, cells = self.shape
            if queries * cells > MAX_DENSE_ENTRIES:
                raise InvalidInputError(
                    f"{self.too_large} {cells} cells are too many for a matrix (limit {MAX_DENSE_ENTRIES} entries); "
                    f"{self.instead}"
                )
            set_parts(self, _matrix=freeze(self._rows(np.arange(queries))))
        assert self._matrix is not None
        return self._matrix

    @property
    def names(self) -> tuple[str, ...]:
        """One name per query, by its cells."""
        self._check_query_count()
        return self._named(np.arange(self.shape[0]))

    @property
    def groups(self) -> tuple[str, ...]:
        """One group: the group of the rule."""
        self._check_query_count()
        return (self._group,) * self.shape[0]

    @property
    def is_sparse(self) -> bool:
        """False: most entries are not zero."""
        return False

    def select(self, queries: Sequence[int] | Index) -> Workload:
        index = validate.indices(self.shape[0], queries=queries)
        return SelectedRows(self, index) if len(index) else super().select(queries)

    @property
    def _group(self) -> str:
        raise NotImplementedError

    def _named(self, index: Index) -> tuple[str, ...]:
        raise NotImplementedError

    def _rows(self, index: Index) -> Array:
        raise NotImplementedError


class SelectedRows(RuleWorkload):
    """Some queries of a rule by their numbers, in any order: (len(index), d), matrix on demand; made by `select`."""

    __slots__ = ("_index", "_rule")

    too_large = "selected queries over"
    instead = "select fewer of them"

    _rule: RuleWorkload
    _index: Index

    def __init__(self, rule: RuleWorkload, index: Index) -> None:
        set_parts(self, _rule=rule, _index=freeze(np.array(index)))
        self._begin((len(index), rule.shape[1]))

    def select(self, queries: Sequence[int] | Index) -> Workload:
        return self._rule.select(self._index[validate.indices(self.shape[0], queries=queries)])

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the answers ``W x`` (m,), for running sums without the matrix."""
        return self._rule.apply(x)[self._index] if isinstance(self._rule, StreamWorkload) else super().apply(x)

    def written(self) -> Workload:
        """Return the queries as a matrix with names, as a file holds them."""
        return Workload(self.matrix, self.names, self.groups)

    @property
    def _group(self) -> str:
        return self._rule._group

    def _named(self, index: Index) -> tuple[str, ...]:
        return self._rule._named(self._index[index])

    def _rows(self, index: Index) -> Array:
        return self._rule._rows(self._index[index])

    def _structure(self) -> tuple[object, ...]:
        return self._rule, self._index

    def __repr__(self) -> str:
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, of {self._group})"


MAX_STEPS = 2**22  # of a stream

MIN_STEP_CELLS = 64  # with fewer cells, the entries of a range are as cheap as its two steps


class StreamWorkload(RuleWorkload):
    """Running sums ``s_j = x_j + β s_{j-1}`` of all cells, (d, d); the matrix on demand.

    Attributes
    ----------
    decay : float
        β, in (0, 1]: 1 for plain sums, the prefixes.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.decayed_sums(3, 0.5)
    >>> asked.matrix
    array([[1.  , 0.  , 0.  ],
           [0.5 , 1.  , 0.  ],
           [0.25, 0.5 , 1.  ]])
    >>> float(dm.workloads.prefix(1_000_000).apply(np.ones(1_000_000))[-1])
    1000000.0
    """

    __slots__ = ("decay",)

    too_large = "running sums of"
    instead = "geometry='stream' needs no matrix"

    decay: float

    def __init__(self, steps: int, decay: float = 1.0) -> None:
        count, factor = validate.size(steps=steps), validate.positive_number(decay=decay)
        if count > MAX_STEPS:
            raise InvalidInputError(f"steps must be at most {MAX_STEPS}, got {count}")
        if factor > 1:
            raise InvalidInputError(f"decay must be at most 1, got {factor:g}")
        set_parts(self, decay=factor)
        self._begin((count, count))

    @property
    def has_matrix(self) -> bool:
        """Whether the matrix has at most `MAX_DENSE_ENTRIES` entries, none below `validate.MIN_MAGNITUDE`."""
        return self.shape[0] ** 2 <= MAX_DENSE_ENTRIES and self.decay ** (self.shape[1] - 1) >= validate.MIN_MAGNITUDE

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the sums ``W x`` (d,) of a data vector x (d,), without the matrix."""
        return running_sums(validate.vector(self.shape[1], "cell", x=x), self.decay)

    def row_norms(self) -> Array:
        powers = self.decay ** (2 * np.arange(self.shape[0]))
        return np.asarray(np.sqrt(powers.cumsum()))

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,), the squared row norms in reverse order."""
        return np.asarray(self.row_norms()[::-1] ** 2)

    @property
    def _group(self) -> str:
        return "prefixes" if self.decay == 1 else "decayed sums"

    def _named(self, index: Index) -> tuple[str, ...]:
        return tuple(f"cells 0..{last}" if last else "cell 0" for last in index)

    def _rows(self, index: Index) -> Array:
        if self.decay == 1:
            return (np.arange(self.shape[1]) <= index[:, None]).astype(np.float64)
        since = index[:, None] - np.arange(self.shape[1])
        return np.where(since >= 0, self.decay ** np.maximum(since, 0), 0.0)

    def _structure(self) -> tuple[object, ...]:
        return self.shape[0], self.decay

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"steps": self.shape[0], "decay": self.decay}

    def __repr__(self) -> str:
        kind = "running sums" if self.decay == 1 else "decayed sums"
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, {kind})"


def running_sums(x: Array, decay: float | Array) -> Array:
    """Return ``s_j = x_j + decay · s_{j-1}`` (d,), the decay one number or one per step (d - 1,)."""
    bands = np.ones((2, len(x)))
    bands[1, :-1] = -np.asarray(decay)
    return np.asarray(scipy.linalg.solve_banded((1, 0), bands, x, check_finite=False))


# Gram matrices ``W' W`` in closed form, for workloads with too many queries for a matrix.
#
# Total variance depends on a workload only through its Gram matrix: under noise of covariance Σ on the cells it is
# ``tr(W Σ W') = tr(Σ W' W)``. These builders return the Gram matrix; `from_gram` makes a workload of it.


def all_range_gram(d: int) -> Array:
    """Return ``W' W`` (d, d) of `all_range`: entry (i, k) counts the intervals that hold both cells.

    It is ``(min(i, k) + 1) (d - max(i, k))``, cells counted from 0: d + 1 times the inverse of the second
    difference matrix, with 2 on the diagonal and -1 next to it.
    Raises `InvalidInputError` or `InputTypeError` for a `d` that is not an integer of at least 1, or too large for a
    matrix.

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
    domain: DomainLike, ways: int | Iterable[int] | None = None, sets: Iterable[str | Iterable[str]] | None = None
) -> Array:
    """Return ``W' W`` (d, d) of `marginals`: entry (i, k) counts the tables that count cells i and k together.

    It is the sum over the tables of a Kronecker product over the attributes: the identity for attributes in the
    table, a matrix of ones for the others.
    Raises `InvalidInputError` or `InputTypeError` for arguments that `marginals` refuses, or too many cells for a
    matrix (d, d).
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
    domain: DomainLike, ways: int | Iterable[int] | None = None, sets: Iterable[str | Iterable[str]] | None = None
) -> Array:
    """Return ``W' W`` (d, d) of `range_marginals`, for any number of ranges.

    It is the sum over the tables of a Kronecker product over the attributes: `all_range_gram` for attributes in the
    table, a matrix of ones for the others. With ``ways`` equal to the number of attributes it is the Gram matrix of all
    ranges of the domain.
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

    The total variance of a mechanism is the same for every workload with this Gram matrix, so `dualmech.TotalVariance`
    has the same optimum, mechanism and dual weights; divide by the number of the original queries for their mean. The
    rows themselves, their variances, and targets and weights of rows have no meaning.
    Raises `InvalidInputError` or `InputTypeError` for a matrix that is asymmetric, not positive semidefinite, all
    zero, or not finite; a domain of another size.
    Returns `Workload`: dense, rows R (k, d) with ``R' R = G`` up to rounding and k the rank of G: a pivoted Cholesky
    factor of the matrix scaled to unit diagonal, so that the rank does not depend on the units of the cells.
    A Gram matrix in doubles has half the digits of W: directions of less than about 1e-7 of the norm of W are lost. Use
    W itself if it can be a matrix.

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
    cells = np.flatnonzero(diagonal > 0)
    if np.any(diagonal < 0) or np.any(checked[diagonal == 0]):
        raise InvalidInputError("gram must be positive semidefinite, its diagonal says that it is not")
    if not cells.size:
        raise InvalidInputError("gram must not be all zero: no query is asked")
    units = np.sqrt(diagonal[cells])
    correlations = checked[np.ix_(cells, cells)] / units / units[:, None]
    rounding = 8 * len(cells) * linalg.EPS
    factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(correlations, tol=rounding)
    rows = np.zeros((rank, len(cells)))
    rows[:, pivots - 1] = np.triu(factor)[:rank]
    rows[np.abs(rows) < linalg.EPS**2] = 0.0  # far below rounding, and below what problems accept
    if np.abs(rows.T @ rows - correlations).max() > len(cells) * rounding:
        raise InvalidInputError("gram must be positive semidefinite, it has no factor R with R' R = gram")
    matrix = np.zeros((rank, len(checked)))
    matrix[:, cells] = rows * units
    names = [f"direction {i}" for i in range(rank)]
    return Workload(matrix, names, ["directions"] * rank, attributes)


def _sum_of_products(
    domain: DomainLike,
    ways: int | Iterable[int] | None,
    sets: Iterable[str | Iterable[str]] | None,
    gram_of_size: Callable[[int], Array],
) -> Array:
    """Return the sum over tables of Kronecker products: `gram_of_size` for the table's attributes, ones for others."""
    table = as_domain(domain)
    gram = np.zeros((_square(table.cells), table.cells))
    for axes in chosen_axes(table, ways, sets):
        factors = [gram_of_size(n) if axis in axes else np.ones((n, n)) for axis, n in enumerate(table.shape)]
        gram += linalg.kronecker(factors)
    return gram


def _square(cells: int) -> int:
    """Return a number of cells d; refuse too many for a matrix (d, d)."""
    if cells**2 > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"Gram matrix of {cells} cells is too large for a dense matrix (limit {MAX_DENSE_ENTRIES} entries)"
        )
    return cells


# All ranges of ordered cells, and the sines, their eigen-queries, both with a matrix on demand.


MAX_CELLS = 2**22  # of all ranges and of sines

MAX_ANSWERS = 2**28  # answers or norms in one array


class RangeWorkload(RuleWorkload):
    """Every interval of d ordered cells, once, by first cell and then by last: (d (d + 1) / 2, d), matrix on demand.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.all_range(65536)
    >>> asked
    Workload(2147516416 queries x 65536 cells, all ranges)
    >>> asked.ends([0, 65535, 65536])
    (array([0, 0, 1]), array([    0, 65535,     1]))
    """

    __slots__ = ()

    is_without_copies = True
    too_large = "all ranges of"
    instead = "total variance and query weighting by dualmech.workloads.sines need no matrix"

    def __init__(self, cells: int) -> None:
        count = _cells(cells)
        self._begin((count * (count + 1) // 2, count))

    def ends(self, queries: Sequence[int] | Index) -> tuple[Index, Index]:
        """Return the first and the last cells of the ranges with these indices."""
        index, cells = validate.indices(self.shape[0], queries=queries), self.shape[1]
        # Ranges that begin at cell a or later: (d - a) (d - a + 1) / 2, a triangular number.
        left = self.shape[0] - 1 - np.asarray(index, dtype=np.int64)
        row = ((np.sqrt(8.0 * left + 1) - 1) / 2).astype(np.int64)
        row += ((row + 1) * (row + 2) // 2 <= left).astype(np.int64) - (row * (row + 1) // 2 > left)
        return cells - 1 - row, cells - 1 - (left - row * (row + 1) // 2)

    @property
    def needs_no_matrix(self) -> bool:
        return self.shape[0] <= MAX_NAMES and self.shape[1] >= MIN_STEP_CELLS

    def steps(self) -> Steps | None:
        queries = self.shape[0]
        if queries > MAX_NAMES:
            return None
        firsts, lasts = self.ends(np.arange(queries))
        inner = np.flatnonzero(firsts)
        rows = np.concatenate([np.arange(queries), inner])
        places, values = np.concatenate([lasts, firsts[inner] - 1]), np.repeat([1.0, -1.0], [queries, len(inner)])
        return Steps.few(sp.csr_array((values, (rows, places)), shape=self.shape), np.ones(queries), True)

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the answers ``W x`` (m,), differences of running sums; refused above `MAX_ANSWERS`."""
        sums = np.r_[0.0, np.cumsum(validate.vector(self.shape[1], "cell", x=x))]
        self._check_answers()
        return np.concatenate([sums[first + 1 :] - sums[first] for first in range(self.shape[1])])

    def gram(self, query_weights: npt.ArrayLike | None = None) -> Array:
        return all_range_gram(self.shape[1]) if query_weights is None else super().gram(query_weights)

    def row_norms(self) -> Array:
        """Return the Euclidean norm of each range (m,), the root of its length; refused above `MAX_ANSWERS`."""
        self._check_answers()
        cells = self.shape[1]
        roots = np.sqrt(np.arange(1, cells + 1))
        return np.concatenate([roots[: cells - first] for first in range(cells)])

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,), the number of ranges that hold the cell."""
        cell = np.arange(1, self.shape[1] + 1, dtype=np.float64)
        return cell * cell[::-1]

    @property
    def _group(self) -> str:
        return "ranges"

    def _named(self, index: Index) -> tuple[str, ...]:
        ends = zip(*self.ends(index), strict=True)
        return tuple(f"cell {a}" if a == b else f"cells {a}..{b}" for a, b in ends)

    def _rows(self, index: Index) -> Array:
        first, last = self.ends(index)
        cell = np.arange(self.shape[1])
        return ((first[:, None] <= cell) & (cell <= last[:, None])).astype(np.float64)

    def _check_answers(self) -> None:
        if self.shape[0] > MAX_ANSWERS:
            raise InvalidInputError(
                f"all ranges of {self.shape[1]} cells are too many to write out an answer of each "
                f"(limit {MAX_ANSWERS}); select some"
            )

    def _structure(self) -> tuple[object, ...]:
        return (self.shape[1],)

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"cells": self.shape[1]}

    def __repr__(self) -> str:
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, all ranges)"


class SineWorkload(RuleWorkload):
    """The orthonormal sines ``q_k(i) = √(2/(d+1)) sin(π k i / (d+1))``, k and i from 1 to d: (d, d), matrix on demand.

    They are the eigenvectors of the Gram matrix of all ranges, by falling eigenvalue: ``W'W`` is d + 1 times the
    inverse of the second difference, whose eigenvalues are ``4 sin²(π k / (2 (d + 1)))``.

    Examples
    --------
    >>> import dualmech as dm
    >>> import numpy as np
    >>> sines, gram = dm.workloads.sines(4).matrix, dm.workloads.all_range_gram(4)
    >>> np.diagonal(sines @ gram @ sines.T).round(4)
    array([13.0902,  3.618 ,  1.9098,  1.382 ])
    >>> round(abs(sines @ gram @ sines.T).sum() - np.trace(gram), 9)
    np.float64(0.0)
    """

    __slots__ = ()

    too_large = "sines over"
    instead = "weighting them for all ranges needs no matrix"

    def __init__(self, cells: int) -> None:
        count = _cells(cells)
        self._begin((count, count))

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return ``Q x`` (d,), by a fast sine transform."""
        return np.asarray(scipy.fft.dst(validate.vector(self.shape[1], "cell", x=x), type=1, norm="ortho"))

    def row_norms(self) -> Array:
        return np.ones(self.shape[0])

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,), which is 1: the matrix is orthogonal."""
        return np.ones(self.shape[1])

    @property
    def _group(self) -> str:
        return "sines"

    def _named(self, index: Index) -> tuple[str, ...]:
        return tuple(f"sine {number + 1}" for number in index)

    def _rows(self, index: Index) -> Array:
        turns, period = self.shape[0] + 1, np.arange(1, self.shape[0] + 1)
        # Angles are reduced as integers: the sine of a large angle loses digits.
        angles = np.multiply.outer(np.asarray(index, dtype=np.int64) + 1, period) % (2 * turns)
        return np.sqrt(2 / turns) * np.sin(np.pi / turns * np.arange(2 * turns))[angles]

    def _structure(self) -> tuple[object, ...]:
        return (self.shape[1],)

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"cells": self.shape[1]}

    def __repr__(self) -> str:
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, sines)"


# The builders.


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
    """Sum all cells up to j, discounted by `decay` per cell: ``W_ji = decay^(j-i)`` for i <= j.

    Raises `InvalidInputError` or `InputTypeError` for a decay that is not in (0, 1].

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.decayed_sums(3, 0.5).matrix[-1]
    array([0.25, 0.5 , 1.  ])
    """
    return StreamWorkload(validate.size(d=d), decay)


def cdf(d: int) -> StreamWorkload:
    """Count the values of an empirical distribution function: the same as `prefix` (EIG, section 5).

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

    Total variance, and query weighting by `sines`, need no matrix.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.all_range(2).names
    ('cell 0', 'cells 0..1', 'cell 1')
    """
    return RangeWorkload(validate.size(d=d))


def sines(d: int) -> SineWorkload:
    """Ask the d orthonormal sines ``√(2/(d+1)) sin(π k i / (d+1))``, the eigen-queries of `all_range`, (d, d).

    Definition 6 of EIG for ranges, in closed form; the matrix on demand.

    Examples
    --------
    >>> import dualmech as dm
    >>> ranges = dm.workloads.all_range(65536)
    >>> dm.QueryWeighting(ranges, dm.workloads.sines(65536)).costs[:2]
    array([2.85206833e+13, 7.13017084e+12])
    """
    return SineWorkload(validate.size(d=d))


def _cells(cells: int) -> int:
    count = validate.size(cells=cells)
    if count > MAX_CELLS:
        raise InvalidInputError(f"cells must be at most {MAX_CELLS}, got {count}")
    return count
