"""Marginal tables of domains of any size: workloads that keep their structure, and the subspaces under them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.immutable import freeze, set_parts
from dualmech.validate import Array, Matrix
from dualmech.workloads import numbers, tabulations
from dualmech.workloads.arrays import sets_to_arrays
from dualmech.workloads.base import StructuredWorkload
from dualmech.workloads.domain import Axes, Domain, Lattice, are_positions, count_text
from dualmech.workloads.unions import Table

MAX_TABLES = 2**20  # largest number of tables of a workload


class MarginalWorkload(StructuredWorkload):
    """The cells of chosen marginal tables of a domain, however large: a `Workload` whose matrix is made on demand.

    `dualmech.workloads.marginals` builds it. Problems on hundreds of tables use it without a matrix; the
    matrix, and what needs it, is refused above 2^26 entries.

    Attributes
    ----------
    domain : Domain
        The attributes.
    axes : tuple of tuples of int
        The attributes of each table, by position.

    Examples
    --------
    >>> import dualmech as dm
    >>> tables = dm.workloads.marginals([10] * 60, ways=(1, 2))
    >>> len(tables.axes), tables.shape[0], tables.shape[1] == 10**60
    (1830, 177600, True)
    """

    __slots__ = ("_lattice", "_names", "_table_cells", "_table_names", "axes")

    axes: tuple[Axes, ...]
    _lattice: Lattice | None
    _names: tuple[str, ...] | None
    _table_cells: Array | None
    _table_names: tuple[str, ...] | None

    def __init__(self, domain: Domain, axes: Iterable[Axes]) -> None:
        checked = validate.sequence(axes=axes)
        count = len(validate.instance(Domain, domain=domain).names)
        for attributes in checked:
            if not are_positions(attributes, count):
                raise InvalidInputError(
                    f"axes must be tuples of increasing positions below {count}, got {attributes!r}"
                )
        set_parts(self, axes=checked, _lattice=None, _names=None, _table_cells=None, _table_names=None)
        self._begin((sum(cells_of(domain, axes) for axes in checked), domain.cells), domain)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The attributes of each table, by name."""
        names = self._domain.names
        return tuple(tuple(names[axis] for axis in axes) for axes in self.axes)

    @property
    def table_names(self) -> tuple[str, ...]:
        """The name of each table, such as ``age x sex``."""
        if self._table_names is None:
            titles = tuple(" x ".join(names) or "total" for names in self.sets)
            set_parts(self, _table_names=titles)
        return cast(tuple[str, ...], self._table_names)

    @property
    def table_counts(self) -> tuple[int, ...]:
        return tuple(cells_of(self._domain, axes) for axes in self.axes)

    def tabular(self) -> MarginalWorkload:
        return self

    @property
    def product_tables(self) -> tuple[Table, ...]:
        """Each table, as the product of the values of its attributes."""
        pairs = zip(self.table_names, self.axes, strict=True)
        return tuple(Table(name, tuple((axis, None) for axis in axes)) for name, axes in pairs)

    @property
    def table_cells(self) -> Array:
        """Number of cells of each table."""
        if self._table_cells is None:
            sizes = np.array(self._domain.shape, dtype=np.float64)
            cells = np.array([sizes[list(axes)].prod() for axes in self.axes])
            set_parts(self, _table_cells=freeze(cells))
        return cast(Array, self._table_cells)

    @property
    def lattice(self) -> Lattice:
        """The residual subspaces under the tables, listed once."""
        if self._lattice is None:
            set_parts(self, _lattice=Lattice.under(self._domain, self.axes))
        return cast(Lattice, self._lattice)

    @property
    def matrix(self) -> Matrix:
        """W (m, d), sparse; refused if it has too many entries."""
        if self._matrix is None:
            try:
                matrix = tabulations.marginal_matrix(self._domain, self.axes)
            except InvalidInputError as error:
                raise InvalidInputError(f"{error}; geometry='blocks' needs no matrix") from None
            set_parts(self, _matrix=matrix)
        return self._matrix

    @property
    def names(self) -> tuple[str, ...]:
        """One name per query, such as ``age=3, sex=1``, in the order of the rows."""
        if self._names is None:
            self._check_query_count()
            names = tuple(name for axes in self.axes for name in tabulations.cell_names(self._domain, axes))
            set_parts(self, _names=names)
        return cast(tuple[str, ...], self._names)

    @property
    def groups(self) -> tuple[str, ...]:
        """The table of each query, such as ``age x sex``."""
        self._check_query_count()
        tables = zip(self.table_names, self.axes, strict=True)
        return tuple(label for label, axes in tables for _ in range(cells_of(self._domain, axes)))

    @property
    def sensitivity(self) -> float:
        """The root of the number of tables, since a record is in one cell of each."""
        return math.sqrt(len(self.axes))

    def gram_levels(self, table_weights: npt.ArrayLike = 1.0) -> Array:
        """Return what ``W' diag(w) W`` multiplies each residual subspace by, over the number of cells (t,).

        The Gram matrix is ``d Σ_T g_T P_T`` with ``g_T = Σ_{S ⊇ T} w_S / cells_S``, P_T projecting on the subspaces of
        `lattice`. Weights are one for all tables, or one each.

        Examples
        --------
        >>> import dualmech as dm
        >>> tables = dm.workloads.marginals([4, 3], ways=(0, 1))
        >>> 12 * tables.gram_levels(), np.unique(np.linalg.eigvalsh(tables.gram()).round(9) + 0.0)
        (array([19.,  3.,  4.]), array([ 0.,  3.,  4., 19.]))
        """
        weights = validate.per_item(len(self.axes), table_weights=table_weights)
        return np.asarray(self.lattice.incidence @ (weights / self.table_cells))

    def per_table(self, values: object, name: str) -> Array:
        """Return one positive number per table; see `dualmech.workloads.numbers.by_table`."""
        return numbers.by_table(values, validate.text(name=name), self._domain, self.axes, self.table_names)

    def _structure(self) -> tuple[object, ...]:
        return self._domain, self.axes

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        assert self.domain is not None
        return {**sets_to_arrays(self.domain, self.axes)}

    def __repr__(self) -> str:
        queries, cells = self.shape
        return f"MarginalWorkload({len(self.axes)} tables, {queries} queries x {count_text(cells, 6)} cells)"

    @property
    def _domain(self) -> Domain:
        assert self.domain is not None
        return self.domain


def marginals(
    domain: tabulations.DomainLike,
    ways: int | Iterable[int] | None = None,
    sets: Iterable[str | Iterable[str]] | None = None,
) -> MarginalWorkload:
    """Count the records in every cell of chosen marginal tables.

    The marginal on a set of attributes is the Kronecker product, over all attributes in order, of the
    identity for those in the set and of a row of ones for the others.
    Raises `InvalidInputError` or `InputTypeError` for neither or both of `ways` and `sets`, none asked, one asked
    twice, an unknown attribute, or more than `MAX_TABLES` tables.
    FFU, section 7.7, asks for all one- and two-way marginals.
    Returns `MarginalWorkload`: one query per marginal cell, in row-major order within its table; they are named like
    ``age=3, sex=1`` and grouped like ``age x sex``. The domain may be of any size: the matrix is written out only when
    it is asked for.

    Parameters
    ----------
    domain : Domain, mapping, or sequence of sizes
        The attributes; sizes without names make attributes ``a0, a1, …``.
    ways : int or iterable of ints
        All marginals on that many attributes, in the order given: 1 and 2 for one- and two-way tables, 0
        for the total.
    sets : iterable of attribute names or of sets of them
        Those marginals only, in the order given; the order within a set does not matter.

    Examples
    --------
    >>> import dualmech as dm
    >>> tables = dm.workloads.marginals({"age": 3, "sex": 2}, sets=["sex", ("age", "sex")])
    >>> tables.shape, tables.names[:3]
    ((8, 6), ('sex=0', 'sex=1', 'age=0, sex=0'))
    >>> dm.workloads.marginals([16, 16, 16], ways=(1, 2)).shape
    (816, 4096)
    """
    table = tabulations.as_domain(domain)
    return MarginalWorkload(table, tabulations.chosen_axes(table, ways, sets, _few_tables))


def random_marginals(domain: tabulations.DomainLike, tables: int, rng: np.random.Generator | int) -> MarginalWorkload:
    """Count the records in every cell of marginal tables drawn at random.

    The sets of attributes are drawn uniformly among all non-empty ones, without repetition.
    Raises `InvalidInputError` or `InputTypeError` for more tables than there are, or what `marginals` refuses.
    Li and Miklau, PVLDB 5(6), 2012, section 5, sample random marginals by the method of an earlier paper and do
    not describe it; this is the plainest reading.

    Parameters
    ----------
    domain : Domain, mapping, or sequence of sizes
        As for `marginals`.
    tables : int
        How many marginal tables, at most ``2^attributes - 1``.
    rng : int or numpy.random.Generator
        Seed.

    Examples
    --------
    >>> import dualmech as dm
    >>> sorted(set(dm.workloads.random_marginals([2, 3, 4], tables=2, rng=0).groups))
    ['a0', 'a1 x a2']
    """
    table, count, generator = (tabulations.as_domain(domain), validate.size(tables=tables), validate.generator(rng=rng))
    attributes = len(table.names)
    if count >= 2**attributes:
        raise InvalidInputError(f"tables must be at most {2**attributes - 1}, the marginals, got {count}")
    _few_tables(table, count)
    sets: dict[tuple[str, ...], None] = {}
    while len(sets) < count:
        members = generator.random(attributes) < 0.5
        sets.update({tuple(np.array(table.names)[members]): None} if members.any() else {})
    return marginals(table, sets=sets)


def cells_of(domain: Domain, axes: Axes) -> int:
    return math.prod(domain.shape[axis] for axis in axes)


def check_marginal(workload: object, name: str = "workload") -> MarginalWorkload:
    if not isinstance(workload, MarginalWorkload):
        raise InputTypeError(f"{name} must be made by dualmech.workloads.marginals, got {type(workload).__name__}")
    return workload


def _few_tables(domain: Domain, tables: int) -> None:
    if tables > MAX_TABLES:
        raise InvalidInputError(f"marginals must be at most {MAX_TABLES} tables, got {tables}")
