"""Builders of named workloads: those of the papers' experiments, and the pieces from which to stack others.

Every builder returns a `Workload` whose queries and groups have names. Arguments that are not allowed raise
`InvalidInputError` or `InputTypeError` before any work, as does a matrix too large to write out. Random
builders need their `rng`, a seed or a generator: the same seed gives the same workload.

The experiments cited below are those of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of
differentially private linear queries", PVLDB 14(10), 2021 ("FFU"), unless another paper is named.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.census import census_redistricting, census_tables, sex_by_age
from dualmech.workloads.circular import affine, circular, circular_ranges, differences
from dualmech.workloads.domain import Domain
from dualmech.workloads.grams import (
    all_range_gram,
    from_gram,
    marginals_gram,
    prefix_gram,
    range_marginals_gram,
)
from dualmech.workloads.marginals import marginals, random_marginals
from dualmech.workloads.parities import parity
from dualmech.workloads.products import kron
from dualmech.workloads.query_tables import query_tables
from dualmech.workloads.ranges import (
    Seed,
    all_range,
    cdf,
    check_dense_size,
    decayed_sums,
    prefix,
    random_range,
    range_marginals,
    sines,
)
from dualmech.workloads.tabulations import age_pyramid, pl94
from dualmech.workloads.unions import union, union_of

__all__ = [
    "affine",
    "age_pyramid",
    "all_range",
    "all_range_gram",
    "cdf",
    "census_redistricting",
    "census_tables",
    "circular",
    "circular_ranges",
    "decayed_sums",
    "differences",
    "from_gram",
    "identity",
    "identity_total",
    "kron",
    "marginals",
    "marginals_gram",
    "parity",
    "permuted",
    "pl94",
    "predicates",
    "prefix",
    "prefix_gram",
    "query_tables",
    "random_marginals",
    "random_range",
    "random_signs",
    "range_marginals",
    "range_marginals_gram",
    "related",
    "sex_by_age",
    "sines",
    "stack",
    "total",
    "union",
]

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
    cells, whole = identity(d), total(d)
    matrix = sp.vstack([sp.csr_array(part.matrix) for part in (cells, whole)], format="csr")
    return Workload(matrix, cells.names + whole.names, cells.groups + whole.groups)


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
        raise InvalidInputError(
            f"rank must be at most {min(cells, queries)}, the smaller of m and d, got {inner}"
        )
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
    Raises `InputTypeError` for something that is not a workload, an `rng` that is neither a seed nor a generator.
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
    Returns `Workload`: queries in the order of the pieces, with their names, and those of the cells where all pieces
    agree on them. Sparse if every piece is, or if one with
    more than `SPARSE_ENTRIES` entries is, or if it keeps its structure; else dense.

    Parameters
    ----------
    workloads : Workload
        The pieces, in order. Those that state a domain must state the same one, which the stack takes over.
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
    given = _as_labels(labels, len(workloads))
    if all(getattr(piece, "in_table_order", True) for piece in workloads):
        kept = union_of(workloads, given)
        if kept is not None:
            return kept
    names = [name for piece in workloads for name in piece.names]
    marks = [None] * len(workloads) if given is None else given
    own = [
        piece.groups if label is None else (label,) * piece.shape[0]
        for piece, label in zip(workloads, marks, strict=True)
    ]
    groups = [group for each in own for group in each]
    agreed = {piece.cell_names for piece in workloads}
    cell_names = agreed.pop() if len(agreed) == 1 else None
    return Workload(_stack_rows(workloads), names, groups, _shared_domain(workloads), cell_names)


def _as_labels(labels: Sequence[str] | None, count: int) -> list[str] | None:
    if labels is None:
        return None
    given = validate.sequence(labels=labels)
    if len(given) != count:
        raise InvalidInputError(f"labels must have {count} entries, one per workload, got {len(given)}")
    return [str(label) for label in given]


def _stack_rows(pieces: Sequence[Workload]) -> npt.NDArray[np.float64] | sp.csr_array:
    sparse = [piece.is_sparse for piece in pieces]
    large = [piece.is_sparse and piece.shape[0] * piece.shape[1] > SPARSE_ENTRIES for piece in pieces]
    if all(sparse) or any(large):
        return sp.csr_array(sp.vstack([sp.csr_array(piece.matrix) for piece in pieces], format="csr"))
    check_dense_size(sum(piece.shape[0] for piece in pieces), pieces[0].shape[1])
    return np.vstack([piece.dense() for piece in pieces])


def _shared_domain(pieces: Sequence[Workload]) -> Domain | None:
    domains = [piece.domain for piece in pieces if piece.domain is not None]
    for other in domains[1:]:
        if other != domains[0]:
            raise InvalidInputError(
                f"stacked workloads must agree on their domain, got {dict(domains[0].sizes)} "
                f"and {dict(other.sizes)}"
            )
    return domains[0] if domains else None


def _cells(d: int) -> int:
    cells = validate.size(d=d)
    if cells > MAX_CELLS:
        raise InvalidInputError(f"d must be at most {MAX_CELLS}, got {cells}")
    return cells
