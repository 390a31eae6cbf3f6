"""Workloads: linear queries ``W x``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import scipy.sparse.linalg as sparse_linalg

from dualmech import validate
from dualmech.display import Displayed
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.immutable import freeze, set_parts
from dualmech.linalg import to_dense
from dualmech.validate import Array, Matrix
from dualmech.workloads.domain import Domain, count_text
from dualmech.workloads.steps import Steps

MAX_DENSE_ENTRIES = 2**28  # of a dense matrix (2 GiB of float64)

MAX_SHOWN_ATTRIBUTES = 8  # in notebooks

MAX_NAMES = 2**22  # queries whose names are listed
MAX_COMPARED = 2**32  # entries, zeros included, of matrices that are compared


@dataclass(frozen=True, slots=True, eq=False)
class Workload(Displayed):
    """A list of m linear queries over d cells, ``W x``.

    Problems and solvers use its `shape`, `names` and `groups`, its answers (`apply`), its weighted Gram matrix (`gram`)
    and, if they must, its entries (`dense`). This class stores a dense or a sparse matrix; subclasses compute the same
    without a matrix.
    Raises `InvalidInputError` or `InputTypeError` for empty, not two-dimensional, NaN or infinite entries, names or
    groups of the wrong number, or a domain of another size.

    Parameters
    ----------
    matrix : (m, d) array, scipy sparse matrix or pandas DataFrame
        One query per row. Sparse input stays sparse. The index of a DataFrame names the queries and its columns name
        the cells, unless they are default indices.
    names : sequence of m texts, optional
        Name of each query; by default ``q0, q1, …``.
    groups : sequence of m texts, optional
        The table or family of each query, for reports; by default one group, ``queries``.
    domain : Domain, optional
        The attributes behind the cells; its number of cells must be d.
    cell_names : sequence of d texts, optional
        Name of each cell.

    Examples
    --------
    >>> import dualmech as dm
    >>> workload = dm.Workload([[1, 1, 0], [0, 1, 1]], names=["left", "right"])
    >>> workload.shape
    (2, 3)
    >>> workload.apply([10, 20, 30])
    array([30., 50.])
    """

    circular: ClassVar[bool] = False  # whether a cyclic shift of the cells maps queries to queries, up to sign

    matrix: Matrix
    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    domain: Domain | None = None
    cell_names: tuple[str, ...] | None = None
    shape: tuple[int, int] = field(init=False)

    def __init__(
        self,
        matrix: npt.ArrayLike | sp.sparray | sp.spmatrix,
        names: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        domain: Domain | None = None,
        cell_names: Sequence[str] | None = None,
    ) -> None:
        if isinstance(matrix, Workload):
            raise InputTypeError("workload must be a matrix, got a Workload, which needs no conversion")
        if is_frame(matrix):
            rows, columns = frame_sides(matrix)
            names, cell_names = (rows if names is None else names, columns if cell_names is None else cell_names)
        values = validate.matrix(workload=matrix)
        queries, cells = int(values.shape[0]), int(values.shape[1])
        if domain is not None and validate.instance(Domain, domain=domain).cells != cells:
            raise InvalidInputError(f"domain must have {cells} cells, as the workload, got {domain.cells}")
        query_names = _labels("names", names, queries, "query") or tuple(f"q{j}" for j in range(queries))
        query_groups = _labels("groups", groups, queries, "query") or ("queries",) * queries
        labels = _labels("cell_names", cell_names, cells, "cell")
        set_parts(
            self,
            matrix=values,
            shape=(queries, cells),
            names=query_names,
            groups=query_groups,
            domain=domain,
            cell_names=labels,
        )

    @property
    def is_without_copies(self) -> bool:
        """Whether it is known that no query and no column is a multiple of another."""
        return False

    @property
    def has_matrix(self) -> bool:
        """Whether the matrix has at most `MAX_DENSE_ENTRIES` entries."""
        return self.shape[0] * self.shape[1] <= MAX_DENSE_ENTRIES

    @property
    def is_sparse(self) -> bool:
        """Whether the matrix is stored sparse."""
        return sp.issparse(self.matrix)

    @property
    def needs_no_matrix(self) -> bool:
        """Whether `steps` always replaces the matrix."""
        return False

    def dense(self) -> Array:
        """Return the matrix (m, d) as a dense array; refused above `MAX_DENSE_ENTRIES` entries."""
        queries, cells = self.shape
        if queries * cells > MAX_DENSE_ENTRIES:
            raise InvalidInputError(
                f"workload of shape {queries} x {cells} is too large for a dense matrix (limit {MAX_DENSE_ENTRIES} "
                "entries)"
            )
        matrix = self.matrix
        return freeze(matrix.toarray()) if sp.issparse(matrix) else matrix

    def steps(self) -> Steps | None:
        """Return the first differences of the queries; None if a dense matrix is cheaper."""
        return Steps.of(self.dense()) if self.has_matrix else None

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the answers ``W x`` (m,) on a data vector x (d,)."""
        return np.asarray(self.matrix @ validate.vector(self.shape[1], "cell", x=x))

    def gram(self, query_weights: npt.ArrayLike | None = None) -> Array:
        """Return ``W' diag(query_weights) W`` (d, d); all weights 1 by default."""
        weights = validate.per_item(self.shape[0], query_weights=1.0 if query_weights is None else query_weights)
        scaled = self.matrix.T * weights if not sp.issparse(self.matrix) else self.matrix.T @ sp.diags_array(weights)
        product = scaled @ self.matrix
        return np.asarray(product.toarray() if sp.issparse(product) else product)

    @property
    def sensitivity(self) -> float:
        """Largest Euclidean norm of a column: the L2 sensitivity to one record added or removed.

        Its square is the privacy cost of independent noise of variance 1 on every query.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.workloads.prefix(4).sensitivity, dm.workloads.marginals([10] * 64, ways=1).sensitivity
        (2.0, 8.0)
        """
        return float(np.sqrt(self.column_squares().max()))

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,), the diagonal of ``W'W``."""
        if sp.issparse(self.matrix):
            return np.asarray(self.matrix.multiply(self.matrix).sum(axis=0)).ravel()
        return np.asarray(np.einsum("ji,ji->i", self.matrix, self.matrix))

    def row_norms(self) -> Array:
        """Return the Euclidean norm of each query (m,)."""
        if sp.issparse(self.matrix):
            return np.asarray(sparse_linalg.norm(self.matrix, axis=1))
        return np.asarray(np.linalg.norm(self.matrix, axis=1))

    def select(self, queries: Sequence[int] | npt.NDArray[np.integer]) -> Workload:
        """Return the workload of the queries with these indices, in this order."""
        index = validate.indices(self.shape[0], queries=queries)
        if not len(index):
            raise InvalidInputError("queries must be one or more, got none")
        names, groups = [self.names[j] for j in index], [self.groups[j] for j in index]
        return Workload(self.matrix[index], names, groups, self.domain, self.cell_names)

    def tabular(self) -> Any:
        """Return the same queries as tables over a domain (marginals or a union); None if it has no tables."""
        return None

    @property
    def table_counts(self) -> tuple[int, ...]:
        """Number of queries of each table; a workload without tables counts as one table."""
        return (self.shape[0],)

    def table_numbers(self) -> npt.NDArray[np.intp]:
        """Return the index of the table of each query, shape (m,)."""
        return np.repeat(np.arange(len(self.table_counts)), self.table_counts)

    def same_as(self, other: object) -> bool:
        """Return whether another workload has the same queries in the same order; names do not count.

        Workloads of one structured class are compared by their structure, others entry by entry.
        """
        if self is other:
            return True
        if not isinstance(other, Workload) or self.shape != other.shape:
            return False
        structure = self._structure() if type(self) is type(other) else None
        if structure is not None and same_content(structure, other._structure()):
            return True
        if max(self.shape) > MAX_DENSE_ENTRIES or math.prod(self.shape) > MAX_COMPARED:
            return False
        return bool((sp.csr_array(self.matrix) != sp.csr_array(other.matrix)).nnz == 0)

    def _check_query_count(self) -> None:
        """Refuse more than `MAX_NAMES` queries."""
        if self.shape[0] > MAX_NAMES:
            raise InvalidInputError(
                f"names of {count_text(self.shape[0], 12)} queries are too many to write out (limit {MAX_NAMES})"
            )

    def _structure(self) -> object:
        """Return the arguments that define a structured workload; None for a matrix."""
        return None

    def __matmul__(self, x: npt.ArrayLike) -> Array:
        """Return the answers ``W x``, shape (m,) for x (d,), and (m, n) for x (d, n)."""
        data = validate.finite(x=x)
        if data.ndim == 2:
            return np.column_stack([self.apply(column) for column in data.T])
        return self.apply(data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[np.generic]:
        """Return the dense matrix W (m, d), for `numpy.asarray`."""
        matrix = self.dense()
        return np.array(matrix, dtype=dtype) if copy or dtype is not None else matrix

    def __getitem__(self, queries: int | slice | Sequence[int] | npt.NDArray[np.generic]) -> Workload:
        """Return the workload of one query, by its index, or of several, by a slice, indices, or a mask."""
        numbers = np.arange(self.shape[0])
        try:
            index = numbers[queries]
        except (IndexError, TypeError, ValueError) as error:
            text, last = validate.shown(queries), self.shape[0] - 1
            raise InvalidInputError(
                f"queries must be numbers from 0 to {last}, a slice or a mask, got {text}"
            ) from error
        return self.select(np.atleast_1d(index))

    def __iter__(self) -> Iterator[Workload]:
        """Yield a workload for each query."""
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Return `same_as`."""
        return self.same_as(other) if isinstance(other, Workload) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"queries": self.shape[0], "cells": count_text(self.shape[1], 6)}
        if self.domain is not None:
            attributes = [f"{name} ({count})" for name, count in self.domain.sizes[:MAX_SHOWN_ATTRIBUTES]]
            facts["attributes"] = ", ".join([*attributes, *(["…"] if len(self.domain.sizes) > len(attributes) else [])])
        return facts

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else "dense"
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, {kind})"


class StructuredWorkload(Workload):
    """A workload defined by its structure, without names of cells; the matrix is computed on demand."""

    __slots__ = ("_matrix",)

    _matrix: Matrix | None  # computed on demand

    def _begin(self, shape: tuple[int, int], domain: Domain | None = None) -> None:
        """Set the attributes of every workload; no matrix is computed."""
        set_parts(self, shape=shape, domain=domain, cell_names=None, _matrix=None)

    @property
    def is_sparse(self) -> bool:
        return True

    def _structure(self) -> tuple[object, ...]:
        """Return the constructor's arguments."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._structure()


def check_workload(workload: object) -> Workload:
    """Return a workload; refuse other objects."""
    if isinstance(workload, np.ndarray | list | tuple) or sp.issparse(workload):
        raise InputTypeError(
            f"workload must be a Workload of dualmech, got {type(workload).__name__}: take dualmech.Workload(matrix)"
        )
    return validate.instance(Workload, workload=workload)


def check_asks(workload: Workload) -> None:
    """Refuse entries that are too large or too small, and a workload of zeros."""
    validate.moderate(workload=workload.matrix)
    if not np.any(workload.row_norms()):
        raise InvalidInputError("workload must have at least one query that is not all zero")


def same_content(first: object, second: object) -> bool:
    """Return whether two values are equal: by `same_as`, entry by entry, item by item, field by field, or by ``==``."""
    if first is second:
        return True
    if first is None or second is None:
        return False
    if hasattr(first, "same_as"):
        return bool(first.same_as(second))
    if isinstance(first, tuple):
        return isinstance(second, tuple) and len(first) == len(second) and all(map(same_content, first, second))
    if isinstance(first, np.ndarray) or sp.issparse(first):
        arrays = isinstance(second, np.ndarray) or sp.issparse(second)
        return bool(arrays and np.array_equal(to_dense(first), to_dense(second)))
    if is_dataclass(first) and type(first).__eq__ is object.__eq__:
        return type(first) is type(second) and all(
            same_content(getattr(first, field.name), getattr(second, field.name)) for field in fields(first)
        )
    return bool(np.all(first == second))


def _labels(argument: str, labels: Sequence[str] | None, count: int, noun: str) -> tuple[str, ...] | None:
    """Return labels as texts, one per item (its `noun`); None if there are none."""
    if labels is None:
        return None
    texts = tuple(str(label) for label in validate.sequence(**{argument: labels}))
    if len(texts) != count:
        raise InvalidInputError(f"{argument} must have {count} entries, one per {noun}, got {len(texts)}")
    return texts


def is_frame(matrix: object) -> bool:
    """Return whether a matrix is a data frame; refuse frames that are not in memory."""
    if any(hasattr(matrix, name) for name in ("collect", "fetchnumpy", "to_batches")):  # polars lazy, DuckDB, Arrow
        raise InputTypeError(
            f"workload must be a matrix, or a frame of pandas or polars, got {type(matrix).__name__}: convert it "
            f"to one by collect() or to_pandas()"
        )
    return hasattr(matrix, "columns") and hasattr(matrix, "dtypes")


def frame_sides(frame: Any) -> tuple[list[str] | None, list[str] | None]:
    """Return the names of a frame's rows and columns; None for default indices, and for the rows of polars.

    Raises `InputTypeError` for a column that holds no numbers.
    """
    has_index = hasattr(frame, "index")
    for name, kind in zip(frame.columns, frame.dtypes, strict=True):
        is_number = kind.is_numeric() if hasattr(kind, "is_numeric") else getattr(kind, "kind", "O") in "biuf"
        if not is_number and str(kind) != "Boolean":
            advice = f"make it the index: set_index({name!r})"
            if not has_index:
                advice = f"take it out, Workload(frame.drop({name!r}), names=frame[{name!r}])"
            raise InputTypeError(
                f"workload must hold numbers alone, column {name!r} holds other values; to name the queries, {advice}"
            )
    rows = None if not has_index or validate.counts_from_zero(frame.index) else [_text(key) for key in frame.index]
    return rows, column_names(frame)


def column_names(source: object) -> list[str] | None:
    """Return the names of a DataFrame's columns; None for default indices and other objects."""
    columns = getattr(source, "columns", None)
    if columns is None or callable(columns) or validate.counts_from_zero(columns):
        return None
    return [_text(key) for key in columns]


def _text(key: object) -> str:
    return " x ".join(map(str, key)) if isinstance(key, tuple) else str(key)
