"""Product workloads: every product of one query of each factor, for any number of cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.immutable import set_parts
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import MAX_DENSE_ENTRIES, MAX_NAMES, StructuredWorkload, Workload
from dualmech.workloads.domain import Domain, count_text
from dualmech.workloads.unions import Table, UnionWorkload, union_of


class ProductWorkload(StructuredWorkload):
    """The Kronecker product ``W_1 ⊗ … ⊗ W_r`` of workloads, made by `dualmech.workloads.kron`; its matrix on demand.

    Its cells and its queries are combinations of the factors', in row-major order (the last factor varies fastest).

    Attributes
    ----------
    factors : tuple of Workload
        The factors, none of them a product.
    domain : Domain or None
        The attributes of all factors, in order; None if a factor has no domain or two attributes have one name.
    """

    __slots__ = ("_names", "factors")

    factors: tuple[Workload, ...]
    _names: tuple[str, ...] | None

    def __init__(self, factors: Sequence[Workload]) -> None:
        checked = validate.sequence(factors=factors)
        for index, factor in enumerate(checked):
            validate.instance(Workload, **{f"factors[{index}]": factor})
        if len(checked) < 2:
            raise InvalidInputError(f"factors must be two or more workloads, got {len(checked)}")
        set_parts(self, factors=checked, _names=None)
        queries, cells = zip(*(factor.shape for factor in checked), strict=True)
        self._begin((math.prod(queries), math.prod(cells)), _joint_domain([factor.domain for factor in checked]))

    def tabular(self) -> UnionWorkload | None:
        """Return the products of one table of each factor; None if a factor of several attributes has no tables."""
        return union_of([self])

    @property
    def product_tables(self) -> tuple[Table, ...] | None:
        """Every product of one table of each factor; None if a factor without tables has several attributes."""
        if self.domain is None:
            return None
        tables, start = [Table("", ())], 0
        for factor in self.factors:
            domain, tabular = cast(Domain, factor.domain), factor.tabular()
            if tabular is None and len(domain.shape) != 1:
                return None
            own_table = (Table(domain.names[0], ((0, factor),)),)
            factor_tables = own_table if tabular is None else tabular.product_tables
            tables = [table.times(factor_table, start) for table in tables for factor_table in factor_tables]
            start += len(domain.shape)
        return tuple(tables)

    @property
    def in_table_order(self) -> bool:
        """Whether the queries of each table are consecutive: only the first factor may have several tables."""
        return all(len(factor.table_counts) == 1 for factor in self.factors[1:])

    def table_numbers(self) -> npt.NDArray[np.intp]:
        """Return for each query the index of its table in `product_tables`, shape (m,)."""
        numbers = np.zeros(1, dtype=np.intp)
        for factor in self.factors:
            numbers = np.add.outer(numbers * len(factor.table_counts), factor.table_numbers()).ravel()
        return numbers

    @property
    def matrix(self) -> Matrix:
        """W (m, d), sparse if all factors are; refused if it has too many entries."""
        if self._matrix is None:
            entries = math.prod(_stored_entries(factor) for factor in self.factors)
            if entries > MAX_DENSE_ENTRIES:
                raise InvalidInputError(
                    f"a product of {count_text(entries)} entries is too large for a dense matrix (limit "
                    f"{MAX_DENSE_ENTRIES}); geometry='product' needs no matrix"
                )
            matrices = [factor.matrix for factor in self.factors]
            if self.is_sparse:
                matrix = reduce(lambda a, b: sp.kron(a, b, format="csr"), matrices)
                matrix = sp.csr_array(matrix)
            else:
                matrix = linalg.kronecker([factor.dense() for factor in self.factors])
            set_parts(self, _matrix=matrix)
        return self._matrix

    @property
    def names(self) -> tuple[str, ...]:
        """The factors' names, such as ``cells 0..1 & sex=1``."""
        if self._names is None:
            self._check_query_count()
            names = itertools.product(*(factor.names for factor in self.factors))
            set_parts(self, _names=tuple(" & ".join(name) for name in names))
        return cast(tuple[str, ...], self._names)

    @property
    def groups(self) -> tuple[str, ...]:
        """The factors' groups, such as ``prefixes & sex``."""
        self._check_query_count()
        return tuple(" & ".join(groups) for groups in itertools.product(*(factor.groups for factor in self.factors)))

    @property
    def is_sparse(self) -> bool:
        return all(factor.is_sparse for factor in self.factors)

    @property
    def sensitivity(self) -> float:
        return math.prod(factor.sensitivity for factor in self.factors)

    def _structure(self) -> tuple[object, ...]:
        return (self.factors,)

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"factors": self.factors}

    def __repr__(self) -> str:
        queries, cells = (count_text(count, 6) for count in self.shape)
        return f"ProductWorkload({len(self.factors)} factors, {queries} queries x {cells} cells)"


def kron(*factors: Workload) -> ProductWorkload:
    """Ask every product of one query of each factor: the Kronecker product of their matrices.

    Raises `InvalidInputError` or `InputTypeError` for fewer than two factors, or one that is no workload.

    Parameters
    ----------
    factors : Workload
        Two or more; a factor that is a product is replaced by its factors.

    Examples
    --------
    >>> import dualmech as dm
    >>> ages, sexes = dm.workloads.prefix(3), dm.workloads.identity(2)
    >>> both = dm.workloads.kron(ages, sexes)
    >>> both.names[2], both.dense()[2]
    ('cells 0..1 & cell 0', array([1., 0., 1., 0., 0., 0.]))
    >>> dm.workloads.kron(*[dm.workloads.prefix(1000)] * 20)
    ProductWorkload(20 factors, 1e+60 queries x 1e+60 cells)
    """
    for index, factor in enumerate(factors):
        validate.instance(Workload, **{f"factors[{index}]": factor})
    return ProductWorkload([part for factor in factors for part in getattr(factor, "factors", (factor,))])


def as_product(workload: Workload) -> ProductWorkload | None:
    """Return a product unchanged, and a union of one table as a product over its domain; None for other workloads."""
    if isinstance(workload, ProductWorkload):
        return workload
    tables = workload.tables if isinstance(workload, UnionWorkload) else ()
    if len(tables) != 1 or workload.domain is None or len(workload.domain.shape) < 2:
        return None
    queries = dict(tables[0].queries)
    return ProductWorkload(
        [
            queries[axis] or _cells(size) if axis in queries else Workload(np.ones((1, size)))
            for axis, size in enumerate(workload.domain.shape)
        ]
    )


def factored(workload: ProductWorkload, values: Array) -> tuple[Array, ...] | None:
    """Return numbers of the factors whose products are the values (m,) up to rounding; None if there are none."""
    if np.any(values <= 0):
        return None
    table = values.reshape([factor.shape[0] for factor in workload.factors])
    first, vectors = table.flat[0], []
    for axis in range(table.ndim):
        line = np.moveaxis(table, axis, 0).reshape(table.shape[axis], -1)[:, 0]
        vectors.append(line if axis == 0 else line / first)
    products = reduce(np.multiply.outer, vectors)
    return tuple(vectors) if np.all(np.abs(products - table) <= 4 * table.ndim * linalg.EPS * table) else None


def outer(vectors: Sequence[Array]) -> Array:
    """Return all products of one entry of each vector, at most `MAX_NAMES`; the last vector varies fastest."""
    count = math.prod(len(vector) for vector in vectors)
    if count > MAX_NAMES:
        raise InvalidInputError(
            f"{count_text(count)} products of the factors' numbers are too many to write out (limit {MAX_NAMES}); "
            f"take the factors' own"
        )
    # Scaled by powers of 2, so that no partial product overflows if the whole product does not.
    units = [math.frexp(float(np.abs(vector).max()))[1] for vector in vectors]
    scaled = (np.ldexp(vector, -unit) for vector, unit in zip(vectors, units, strict=True))
    return np.ldexp(reduce(lambda a, b: np.multiply.outer(a, b).ravel(), scaled), sum(units))


def product(numbers: Iterable[float]) -> float:
    """Return the product of non-negative numbers without overflow of partial products.

    Examples
    --------
    >>> product([1e200, 1e200, 1e-200, 1e-200]), product([1e200, 1e200])
    (1.0, inf)
    """
    result, exponent = 1.0, 0
    for number in numbers:
        result, shift = math.frexp(result * number)
        exponent += shift
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(result, exponent))


def _cells(size: int) -> Workload:
    return Workload(sp.eye_array(size, format="csr"))


def _stored_entries(factor: Workload) -> int:
    return int(factor.matrix.nnz) if factor.is_sparse else factor.shape[0] * factor.shape[1]


def _joint_domain(domains: Sequence[Domain | None]) -> Domain | None:
    domains_of_factors = [domain for domain in domains if domain is not None]
    pairs = [pair for domain in domains_of_factors for pair in domain.sizes]
    if len(domains_of_factors) < len(domains) or len({name for name, _ in pairs}) < len(pairs):
        return None
    kind = next((type(domain) for domain in domains_of_factors if domain.schema_text is not None), Domain)
    return kind.joined(domains_of_factors)
