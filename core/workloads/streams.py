"""Workloads by a rule, with a matrix on demand: running sums, all ranges, sines; and workloads by Gram matrices."""

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
    """A workload whose rows follow from their numbers; subclasses have `_rows` and `_named`, and say what they are."""

    __slots__ = ()

    counted: ClassVar[str]
    """What the rows are over, such as ``sines over``, of a number of cells that is too large."""

    instead: ClassVar[str]
    """What needs no matrix."""

    @property
    def matrix(self) -> Array:
        """W (m, d), dense; refused where it is too large to write out."""
        if self._written is None:
            queries, cells = self.shape
            if queries * cells > MAX_DENSE_ENTRIES:
                raise InvalidInputError(
                    f"{self.counted} {cells} cells are too many to write out (limit {MAX_DENSE_ENTRIES} entries); "
                    f"{self.instead}"
                )
            set_parts(self, _written=freeze(self._rows(np.arange(queries))))
        assert self._written is not None
        return self._written

    @property
    def names(self) -> tuple[str, ...]:
        """One name per query, from what it asks."""
        self._check_query_count()
        return self._named(np.arange(self.shape[0]))

    @property
    def groups(self) -> tuple[str, ...]:
        """One group: the group of the rule."""
        self._check_query_count()
        return (self._group,) * self.shape[0]

    @property
    def is_sparse(self) -> bool:
        """Never: too many of the entries are not zero."""
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

    __slots__ = ("_index", "_whole")

    counted = "selected queries over"
    instead = "select fewer of them"

    _whole: RuleWorkload
    _index: Index

    def __init__(self, whole: RuleWorkload, index: Index) -> None:
        set_parts(self, _whole=whole, _index=freeze(np.array(index)))
        self._begin((len(index), whole.shape[1]))

    def select(self, queries: Sequence[int] | Index) -> Workload:
        return self._whole.select(self._index[validate.indices(self.shape[0], queries=queries)])

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the answers ``W x`` (m,); those of running sums without the matrix."""
        return self._whole.apply(x)[self._index] if isinstance(self._whole, StreamWorkload) else super().apply(x)

    def written(self) -> Workload:
        """Return the queries as a matrix with names, as a file holds them."""
        return Workload(self.matrix, self.names, self.groups)

    @property
    def _group(self) -> str:
        return self._whole._group

    def _named(self, index: Index) -> tuple[str, ...]:
        return self._whole._named(self._index[index])

    def _rows(self, index: Index) -> Array:
        return self._whole._rows(self._index[index])

    def _structure(self) -> tuple[object, ...]:
        return self._whole, self._index

    def __repr__(self) -> str:
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, of {self._group})"


MAX_STEPS = 2**22  # most sums of a stream

FEW_CELLS = 64  # cells from which two steps a range are few next to its entries


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

    counted = "running sums of"
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
        """Whether the matrix can be written out: it is not too large, and no entry too small."""
        return self.shape[0] ** 2 <= MAX_DENSE_ENTRIES and self.decay ** (self.shape[1] - 1) >= validate.MIN_MAGNITUDE

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the sums ``W x`` (d,) of a data vector x (d,), without the matrix."""
        return running_sums(validate.vector(self.shape[1], "cell", x=x), self.decay)

    def row_norms(self) -> Array:
        powers = self.decay ** (2 * np.arange(self.shape[0]))
        return np.asarray(np.sqrt(powers.cumsum()))

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,): the norms of the sums, from the last to the first."""
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
        """Return what a file holds of it, by name."""
        return {"steps": self.shape[0], "decay": self.decay}

    def __repr__(self) -> str:
        kind = "running sums" if self.decay == 1 else "decayed sums"
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, {kind})"


def running_sums(x: Array, decay: float | Array) -> Array:
    """Return ``s_j = x_j + decay · s_{j-1}`` (d,), the decay one number or one per step (d - 1,)."""
    bands = np.ones((2, len(x)))
    bands[1, :-1] = -np.asarray(decay)
    return np.asarray(scipy.linalg.solve_banded((1, 0), bands, x, check_finite=False))


# Gram matrices ``W' W`` of workloads with more queries than can be written out, in closed form.
#
# Total variance, and every strategy that is chosen for it, asks of a workload no more than its Gram matrix: the
# sum of all variances under noise of covariance Σ on the cells is ``tr(W Σ W') = tr(Σ W' W)``. These builders
# return that matrix; `from_gram` makes a workload of it that any total-variance problem takes.


def all_range_gram(d: int) -> Array:
    """Return ``W' W`` (d, d) of `all_range`: entry (i, k) counts the intervals that hold both cells.

    It is ``(min(i, k) + 1) (d - max(i, k))``, cells counted from 0: d + 1 times the inverse of the second
    difference matrix, with 2 on the diagonal and -1 next to it.
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
    domain: DomainLike, ways: int | Iterable[int] | None = None, sets: Iterable[str | Iterable[str]] | None = None
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
    domain: DomainLike, ways: int | Iterable[int] | None = None, sets: Iterable[str | Iterable[str]] | None = None
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

    For any mechanism, the sum of the variances is the same for every workload with this Gram matrix, so
    `dualmech.TotalVariance` has the same optimum, the same mechanism and the same dual weights; divide by the number of
    queries that were meant for their mean. The queries themselves have no meaning, nor do single variances, targets and
    weights on them.
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
        factors = [within(size) if axis in axes else np.ones((size, size)) for axis, size in enumerate(table.shape)]
        gram += linalg.kronecker(factors)
    return gram


def _square(cells: int) -> int:
    """Return a number of cells whose square can be written out; refuse others."""
    if cells**2 > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"Gram matrix of {cells} cells is too large to write out (limit {MAX_DENSE_ENTRIES} entries)"
        )
    return cells


# All ranges of ordered cells, and the sines that are their eigen-queries: both by formulas, a matrix on demand.


MAX_CELLS = 2**22  # most cells of either workload

MAX_ANSWERS = 2**28  # most answers, or norms, that are written out


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
    counted = "all ranges of"
    instead = "total variance and query weighting by dualmech.workloads.sines need no matrix"

    def __init__(self, cells: int) -> None:
        count = _cells(cells)
        self._begin((count * (count + 1) // 2, count))

    def ends(self, queries: Sequence[int] | Index) -> tuple[Index, Index]:
        """Return the first and the last cells of ranges, given by their numbers."""
        index, cells = validate.indices(self.shape[0], queries=queries), self.shape[1]
        # Ranges that begin at cell a or later: (d - a) (d - a + 1) / 2, which counted from the last is a triangle.
        left = self.shape[0] - 1 - np.asarray(index, dtype=np.int64)
        row = ((np.sqrt(8.0 * left + 1) - 1) / 2).astype(np.int64)
        row += ((row + 1) * (row + 2) // 2 <= left).astype(np.int64) - (row * (row + 1) // 2 > left)
        return cells - 1 - row, cells - 1 - (left - row * (row + 1) // 2)

    @property
    def needs_no_matrix(self) -> bool:
        return self.shape[0] <= MAX_NAMES and self.shape[1] >= FEW_CELLS

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
        """Return the answers ``W x`` (m,), differences of running sums; refused where they are too many."""
        sums = np.r_[0.0, np.cumsum(validate.vector(self.shape[1], "cell", x=x))]
        self._check_answers()
        return np.concatenate([sums[first + 1 :] - sums[first] for first in range(self.shape[1])])

    def gram(self, query_weights: npt.ArrayLike | None = None) -> Array:
        return all_range_gram(self.shape[1]) if query_weights is None else super().gram(query_weights)

    def row_norms(self) -> Array:
        """Return the Euclidean norm of each range (m,), the root of its length; refused where they are too many."""
        self._check_answers()
        cells = self.shape[1]
        roots = np.sqrt(np.arange(1, cells + 1))
        return np.concatenate([roots[: cells - first] for first in range(cells)])

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,): in how many ranges each cell is."""
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
        """Return what a file holds of it, by name."""
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

    counted = "sines over"
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
        """Return the squared Euclidean norm of each column (d,): 1, the matrix being orthogonal."""
        return np.ones(self.shape[1])

    @property
    def _group(self) -> str:
        return "sines"

    def _named(self, index: Index) -> tuple[str, ...]:
        return tuple(f"sine {number + 1}" for number in index)

    def _rows(self, index: Index) -> Array:
        turns, period = self.shape[0] + 1, np.arange(1, self.shape[0] + 1)
        # Angles are reduced in whole numbers: a sine of a large one would lose digits.
        angles = np.multiply.outer(np.asarray(index, dtype=np.int64) + 1, period) % (2 * turns)
        return np.sqrt(2 / turns) * np.sin(np.pi / turns * np.arange(2 * turns))[angles]

    def _structure(self) -> tuple[object, ...]:
        return (self.shape[1],)

    def file_parts(self) -> dict[str, object]:
        """Return what a file holds of it, by name."""
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


def _cells(cells: int) -> int:
    count = validate.size(cells=cells)
    if count > MAX_CELLS:
        raise InvalidInputError(f"cells must be at most {MAX_CELLS}, got {count}")
    return count
