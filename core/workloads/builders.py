"""Builders of named workloads: the workloads of the papers' experiments, and pieces to stack into others.

Every builder returns a `Workload` whose queries and groups have names. Arguments that are not allowed raise
`InvalidInputError` or `InputTypeError` before any work, as does a workload too large for a dense matrix. Random
builders need their `rng`, a seed or a generator: the same seed gives the same workload.

The experiments cited below are from Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially
private linear queries", PVLDB 14(10), 2021 ("FFU"), or of Li and Miklau, "An adaptive mechanism for accurate query
answering under differential privacy", PVLDB 5(6), 2012 ("EIG"), unless another paper is named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload, check_workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.tabulations import MAX_ENTRIES, DomainLike, as_domain, chosen_axes
from dualmech.workloads.unions import union_of

# Ranges: intervals of ordered cells, and ranges of attributes over a domain of several.


Seed = np.random.Generator | int
Index = npt.NDArray[np.integer]


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
    num_restricted = generator.integers(1, attributes, size=queries, endpoint=True)
    order = generator.permuted(np.tile(np.arange(attributes), (queries, 1)), axis=1)
    restricted = order < num_restricted[:, None]
    ends = np.stack([np.sort(generator.integers(n, size=(queries, 2)), axis=1) for n in domain.shape], axis=1)
    matrix = np.ones((queries, 1))
    for axis, size in enumerate(domain.shape):
        members = _membership(ends[:, axis, 0], ends[:, axis, 1], size) | ~restricted[:, axis, None]
        matrix = (matrix[:, :, None] * members[:, None, :]).reshape(queries, -1)
    names = [
        ", ".join(_span(name, *ends[query, axis]) for axis, name in enumerate(domain.names) if restricted[query, axis])
        for query in range(queries)
    ]
    return Workload(matrix, names, ["ranges"] * queries, domain)


def range_marginals(
    domain: DomainLike, ways: int | Iterable[int] | None = None, sets: Iterable[str | Iterable[str]] | None = None
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
    tables = chosen_axes(table, ways, sets)
    entries = sum(
        math.prod(n * (n + 1) * (n + 2) // 6 if axis in axes else n for axis, n in enumerate(table.shape))
        for axes in tables
    )
    if entries > MAX_ENTRIES:
        raise InvalidInputError(
            f"range marginals of {entries} non-zero entries are too many for a sparse matrix (limit {MAX_ENTRIES})"
        )
    blocks, names, groups = [], [], []
    for axes in tables:
        matrix, spans = sp.csr_array(np.ones((1, 1))), []
        for axis, (name, size) in enumerate(table.sizes):
            first, last = np.triu_indices(size)
            members = _membership(first, last, size) if axis in axes else np.ones((1, size))
            matrix = sp.kron(matrix, sp.csr_array(members, dtype=np.float64), format="csr")
            if axis in axes:
                spans.append([_span(name, a, b) for a, b in zip(first, last, strict=True)])
        blocks.append(matrix)
        names += [", ".join(parts) or "total" for parts in itertools.product(*spans)]
        groups += [" x ".join(table.names[axis] for axis in axes) or "total"] * matrix.shape[0]
    return Workload(sp.csr_array(sp.vstack(blocks, format="csr")), names, groups, table)


def check_dense_size(rows: int, columns: int) -> None:
    """Refuse a workload that is too large for a dense matrix."""
    if rows * columns > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"workload of shape {rows} x {columns} is too large for a dense matrix (limit {MAX_DENSE_ENTRIES} entries)"
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


# Parities of binary attributes: how many more records have an even number of ones among some attributes than odd.


MAX_ATTRIBUTES = 24  # largest number of attributes; there are 2^24 cells then


def parity(attributes: int, order: int | Iterable[int] | None = None) -> Workload:
    """Ask the parities of sets of binary attributes: entry (S, u) is ``(-1)^(number of ones of u in S)``.

    The answer to a query is the number of records with an even number of ones among the attributes in S, less the
    number of those with an odd one. All ``2^k`` of them are the characters of k attributes, a Hadamard matrix.
    Raises `InvalidInputError` or `InputTypeError` for more than `MAX_ATTRIBUTES` attributes, an order outside 0 to k or
    given twice, a workload too large for a dense matrix.
    Source: Gaboardi, Gallego Arias, Hsu, Roth and Wu, "Dual Query: practical private query release for high dimensional
    data", ICML 2014; the hardest workload of McKenna, Maity, Mazumdar and Miklau, PVLDB 13(11), 2020, section 6.
    Returns `Workload`: dense, queries named like ``parity of a0, a2`` and grouped like ``order 2``, by order and then
    as the attributes are.

    Parameters
    ----------
    attributes : int
        Number k of binary attributes ``a0, a1, …``; there are ``2^k`` cells, the last attribute fastest.
    order : int or iterable of ints, optional
        Sizes of the sets: 3 for parities of three attributes, ``(0, 1, 2)`` for all of at most two; all sizes by
        default. The only set of size 0 asks the number of records.

    Examples
    --------
    >>> import dualmech as dm
    >>> pairs = dm.workloads.parity(3, order=2)
    >>> pairs.names[0], pairs.matrix[0]
    ('parity of a0, a1', array([ 1.,  1., -1., -1., -1., -1.,  1.,  1.]))
    >>> dm.workloads.parity(3).shape
    (8, 8)
    """
    count = validate.size(attributes=attributes)
    if count > MAX_ATTRIBUTES:
        raise InvalidInputError(f"attributes must be at most {MAX_ATTRIBUTES}, got {count}")
    sizes = _sizes(order, count)
    check_dense_size(sum(math.comb(count, size) for size in sizes), 1 << count)
    sets = [axes for size in sizes for axes in itertools.combinations(range(count), size)]
    domain = as_domain([2] * count)
    ones = (np.arange(1 << count)[:, None] >> np.arange(count)[::-1]) & 1
    members = np.zeros((len(sets), count), dtype=np.intp)
    for row, axes in zip(members, sets, strict=True):
        row[list(axes)] = 1
    names = [f"parity of {', '.join(domain.names[axis] for axis in axes)}" if axes else "total" for axes in sets]
    return Workload(1.0 - 2.0 * (members @ ones.T % 2), names, [f"order {len(axes)}" for axes in sets], domain)


def _sizes(order: int | Iterable[int] | None, count: int) -> list[int]:
    sizes = range(count + 1) if order is None else order
    orders = validate.sequence(order=sizes) if hasattr(sizes, "__iter__") else (sizes,)
    distinct = [validate.index(count + 1, order=size) for size in orders]
    if not distinct or len(set(distinct)) != len(distinct):
        raise InvalidInputError(f"order must be one or more distinct integers, got {distinct}")
    return distinct


MAX_CELLS = 2**24
"""Largest number of cells that `identity`, `total` and `identity_total` take; each gets a name."""

SPARSE_ENTRIES = 2**16  # a sparse piece with more entries than this, zeros included, makes a stack sparse


def identity(d: int) -> Workload:
    """Count every cell: ``W = I``, (d, d), sparse.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.identity(3).names
    ('cell 0', 'cell 1', 'cell 2')
    """
    cells = _cells(d)
    return Workload(sp.eye_array(cells, format="csr"), [f"cell {i}" for i in range(cells)], ["cells"] * cells)


def total(d: int) -> Workload:
    """Count all records: ``W = 1'``, (1, d), dense.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.total(3).matrix
    array([[1., 1., 1.]])
    """
    return Workload(np.ones((1, _cells(d))), ["total"], ["total"])


def identity_total(d: int) -> Workload:
    """Count every cell, then all records: ``W = [I; 1']``, (d + 1, d), sparse (FFU, sections 5.1 and 7.2).

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.identity_total(2).dense()
    array([[1., 0.],
           [0., 1.],
           [1., 1.]])
    """
    cells, row = identity(d), total(d)
    matrix = sp.vstack([sp.csr_array(part.matrix) for part in (cells, row)], format="csr")
    return Workload(matrix, cells.names + row.names, cells.groups + row.groups)


def random_signs(d: int, m: int, rng: Seed, probability: float = 0.2) -> Workload:
    """Ask m queries of independent random signs: +1 with `probability`, else -1; (m, d), dense (FFU, 7.5).

    Examples
    --------
    >>> import dualmech as dm
    >>> bool((abs(dm.workloads.random_signs(4, 6, rng=0).matrix) == 1).all())
    True
    """
    cells, queries = validate.size(d=d), validate.size(m=m)
    heads = validate.probability(probability=probability)
    check_dense_size(queries, cells)
    signs = np.where(validate.generator(rng=rng).random((queries, cells)) < heads, 1.0, -1.0)
    return Workload(signs, [f"signs {j}" for j in range(queries)], ["random signs"] * queries)


def predicates(d: int, m: int, rng: Seed, probability: float = 0.5) -> Workload:
    """Count the records that satisfy m random predicates: (m, d), dense.

    Each cell belongs to each predicate with `probability`, independently; at a half, all predicates are equally
    likely. (Li and Miklau, PVLDB 5(6), 2012, section 5: "uniformly sampled predicate queries".)

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.predicates(4, 2, rng=0).matrix
    array([[0., 1., 1., 1.],
           [0., 0., 0., 0.]])
    """
    cells, queries = validate.size(d=d), validate.size(m=m)
    chance = validate.probability(probability=probability)
    check_dense_size(queries, cells)
    members = validate.generator(rng=rng).random((queries, cells)) < chance
    return Workload(members, [f"predicate {j}" for j in range(queries)], ["predicates"] * queries)


def related(d: int, m: int, rank: int, rng: Seed) -> Workload:
    """Ask m queries that share a few directions: ``W = C A``, (m, d), dense (FFU, section 7.8).

    C is (m, rank) and A is (rank, d), their entries independent and standard normal; the paper takes
    ``m = rank = d / 2``. A `rank` above m or d, which no such matrix has, raises `InvalidInputError`.

    Examples
    --------
    >>> import dualmech as dm
    >>> import numpy as np
    >>> int(np.linalg.matrix_rank(dm.workloads.related(8, 6, 2, rng=0).matrix))
    2
    """
    cells, queries, inner = validate.size(d=d), validate.size(m=m), validate.size(rank=rank)
    if inner > min(cells, queries):
        raise InvalidInputError(f"rank must be at most {min(cells, queries)}, the smaller of m and d, got {inner}")
    check_dense_size(queries, cells)
    generator = validate.generator(rng=rng)
    left = generator.standard_normal((queries, inner))
    matrix = left @ generator.standard_normal((inner, cells))
    return Workload(matrix, [f"related {j}" for j in range(queries)], ["related"] * queries)


def permuted(workload: Workload, rng: Seed) -> Workload:
    """Ask the same of the cells in a random order: ``W P``, (m, d), P a uniformly random permutation.

    Nothing changes for a mechanism that looks at the workload alone, everything for one that relies on the order
    of the cells. Names and groups stay, cells take their names along; a domain is dropped, as it no longer numbers
    the cells.
    Raises `InputTypeError` if `workload` is no workload, or `rng` neither a seed nor a generator.
    Source: Li and Miklau, PVLDB 5(6), 2012, section 3, semantic equivalence, and section 5.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.permuted(dm.workloads.prefix(3), rng=0).matrix
    array([[0., 1., 0.],
           [0., 1., 1.],
           [1., 1., 1.]])
    """
    check_workload(workload)
    order = validate.generator(rng=rng).permutation(workload.shape[1])
    cells = None if workload.cell_names is None else [workload.cell_names[i] for i in order]
    return Workload(workload.matrix[:, order], workload.names, workload.groups, cell_names=cells)


def stack(*workloads: Workload, labels: Sequence[str] | None = None) -> Workload:
    """Ask several workloads over the same d cells together: (m_1 + m_2 + …, d).

    Where all pieces keep their structure over one domain (marginals, query tables, unions, products over a domain whose
    first factor alone has several tables), so does the stack: it is a `UnionWorkload`, whose matrix is written out only
    when it is asked for.
    Raises `InvalidInputError` or `InputTypeError` for no piece, a piece that is no workload, cells or domains that
    differ, labels of the wrong number.
    Returns `Workload`: queries in the order of the pieces, with their names, and the names of the cells if all pieces
    have the same. Sparse if every piece is sparse, if a sparse piece has more than `SPARSE_ENTRIES` entries, or if the
    stack is structured; else dense.

    Parameters
    ----------
    workloads : Workload
        The pieces, in order. All their domains must be the same, which becomes the domain of the stack.
    labels : sequence of texts, optional
        One per piece: the group that all its queries take. By default queries keep their own groups.

    Examples
    --------
    >>> import dualmech as dm
    >>> both = dm.workloads.stack(dm.workloads.prefix(4), dm.workloads.total(4), labels=["left", "all"])
    >>> both.shape, both.groups
    ((5, 4), ('left', 'left', 'left', 'left', 'all'))
    >>> people = dm.Domain({"age": 100} | {f"a{axis}": 10 for axis in range(20)})
    >>> asked = dm.workloads.query_tables(people, {"age": dm.workloads.prefix(100)}, ways=1)
    >>> dm.workloads.stack(asked, dm.workloads.marginals(people, ways=2))
    UnionWorkload(231 tables, 39300 queries x 1e+22 cells)
    """
    if not workloads:
        raise InvalidInputError("stack needs at least one workload, got none")
    for piece in workloads:
        validate.instance(Workload, workloads=piece)
    cells = sorted({piece.shape[1] for piece in workloads})
    if len(cells) > 1:
        raise InvalidInputError(f"stacked workloads must have the same number of cells, got {cells}")
    texts = _as_labels(labels, len(workloads))
    if all(getattr(piece, "in_table_order", True) for piece in workloads):
        union = union_of(workloads, texts)
        if union is not None:
            return union
    names = [name for piece in workloads for name in piece.names]
    marks = [None] * len(workloads) if texts is None else texts
    labelled = [
        piece.groups if label is None else (label,) * piece.shape[0]
        for piece, label in zip(workloads, marks, strict=True)
    ]
    groups = [group for groups in labelled for group in groups]
    agreed = {piece.cell_names for piece in workloads}
    cell_names = agreed.pop() if len(agreed) == 1 else None
    return Workload(_stack_rows(workloads), names, groups, _shared_domain(workloads), cell_names)


def _as_labels(labels: Sequence[str] | None, count: int) -> list[str] | None:
    if labels is None:
        return None
    checked = validate.sequence(labels=labels)
    if len(checked) != count:
        raise InvalidInputError(f"labels must have {count} entries, one per workload, got {len(checked)}")
    return [str(label) for label in checked]


def _stack_rows(pieces: Sequence[Workload]) -> npt.NDArray[np.float64] | sp.csr_array:
    sparse = [piece.is_sparse for piece in pieces]
    is_large = [piece.is_sparse and piece.shape[0] * piece.shape[1] > SPARSE_ENTRIES for piece in pieces]
    if all(sparse) or any(is_large):
        return sp.csr_array(sp.vstack([sp.csr_array(piece.matrix) for piece in pieces], format="csr"))
    check_dense_size(sum(piece.shape[0] for piece in pieces), pieces[0].shape[1])
    return np.vstack([piece.dense() for piece in pieces])


def _shared_domain(pieces: Sequence[Workload]) -> Domain | None:
    domains = [piece.domain for piece in pieces if piece.domain is not None]
    for other in domains[1:]:
        if other != domains[0]:
            raise InvalidInputError(
                f"stacked workloads must agree on their domain, got {dict(domains[0].sizes)} and {dict(other.sizes)}"
            )
    return domains[0] if domains else None


def _cells(d: int) -> int:
    cells = validate.size(d=d)
    if cells > MAX_CELLS:
        raise InvalidInputError(f"d must be at most {MAX_CELLS}, got {cells}")
    return cells
