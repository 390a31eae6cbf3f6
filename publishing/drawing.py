"""Mechanisms on a grid: exact integer arithmetic, the sampler of discrete noise, and checked counts of records."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from os import PathLike
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import BackendError, InputTypeError, InvalidInputError
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.tables import LARGEST_TABLE, check_tables, marginal_of
from dualmech.publishing import records
from dualmech.publishing.records import MAX_TOTAL
from dualmech.publishing.schema import Schema
from dualmech.publishing.sources import engine_of
from dualmech.validate import Array, Matrix
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginal import Axes, MarginalWorkload

# Integer bases of row spaces, matrices on a grid, and their exact squares.
#
# The privacy cost is computed here without rounding: a release adds discrete noise to integers, and its cost is a sum
# of squares of integers. Products of doubles are exact below 2^53. So matrices are split into pieces of few bits,
# multiplied in floating point, and combined as Python's integers.


Integers = npt.NDArray[np.int64]
Exact = npt.NDArray[np.object_]  # of Python's integers

PIECE_BITS = 20
MAX_SUM_LENGTH = 2**12  # number of products of two pieces that are added: each is below 2^40, their sum below 2^53
MAX_ENTRY = 2**61  # magnitude of an entry in 64 bits, so that one addition does not overflow

MAX_EXPONENT = 56  # of noise: 40 deviations, which no draw exceeds, are below 2^62, and the sampler saturates at 2^63
MAX_DENOMINATOR = 10_000
MAX_SIMPLE_ENTRY = 2**10  # the echelon basis is not tried if the entries of integer rows are at most this
MAX_MULTIPLE = 2**20  # common denominator of a row, and entry of a basis
DIGITS = 10  # decimals for comparing the entries of a row whose smallest entry is 1
SPAN_TOL = 1e-9  # distance of a row from a multiple of integers, relative to its largest entry

CHUNK = 2**22  # entries of a product in memory at a time


def integer_basis(rows: Array) -> Integers:
    """Return integer rows (k, d) with the same span as independent real rows.

    If the span is the whole space, the rows are the cells. Otherwise they are integer multiples of the given rows, or
    of their echelon form, whichever has the smaller entries: large integers may approximate a row by chance. The
    echelon form has small denominators if the span has a basis of small integers.
    Raises `InvalidInputError` if neither has integer multiples.

    Examples
    --------
    >>> import numpy as np
    >>> integer_basis(np.array([[0.5, 0.5, 0.0], [0.0, 0.1, 0.3]]))
    array([[1, 1, 0],
           [0, 1, 3]])
    >>> integer_basis(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[1, 0],
           [0, 1]])
    """
    count, cells = rows.shape
    if count == cells:
        return np.eye(cells, dtype=np.int64)
    multiples = _integer_multiples(rows)
    if count and (multiples is None or np.abs(multiples).max() > MAX_SIMPLE_ENTRY):
        pivots = scipy.linalg.qr(rows, mode="r", pivoting=True, check_finite=False)[1][:count]
        echelon = np.linalg.solve(rows[:, np.sort(pivots)], rows)
        alternative = _integer_multiples(np.asarray(echelon, dtype=np.float64))
        if alternative is not None and (multiples is None or np.abs(alternative).max() < np.abs(multiples).max()):
            multiples = alternative
    if multiples is None:
        raise InvalidInputError(
            f"mechanism must answer queries whose span has a basis of whole numbers up to {MAX_MULTIPLE}: none was "
            f"found for its {count} independent rows on {cells} cells"
        )
    return multiples


def rows_beyond(basis: Integers, part: Integers) -> Integers:
    """Return the rows of a basis that complete independent rows of its span to another basis of the span.

    Examples
    --------
    >>> import numpy as np
    >>> rows_beyond(np.eye(3, dtype=int), np.array([[1, 0, 0], [0, 1, 0]]))
    array([[0, 0, 1]])
    """
    if not len(part):
        return basis
    orthonormal, rows = linalg.row_space(part.astype(np.float64)), basis.astype(np.float64)
    residual = rows - (rows @ orthonormal.T) @ orthonormal
    order = scipy.linalg.qr(residual.T, mode="r", pivoting=True, check_finite=False)[1]
    return np.asarray(basis[np.sort(order[: len(basis) - len(part)])])


def _integer_multiples(rows: Array) -> Integers | None:
    """Return a multiple of each row with small integer entries; None if some row has none."""
    array = np.zeros(rows.shape, dtype=np.int64)
    for index, row in enumerate(rows):
        size = np.abs(row).max()
        entries = row / np.abs(row[np.abs(row) > SPAN_TOL * size]).min()
        # Equal entries may differ by rounding. The distance of all entries from the fractions is checked below.
        values, places = np.unique(np.round(entries, DIGITS), return_inverse=True)
        fractions = [Fraction(value).limit_denominator(MAX_DENOMINATOR) for value in values.tolist()]
        common = math.lcm(*(fraction.denominator for fraction in fractions))
        integers = [int(fraction * common) for fraction in fractions]
        if common > MAX_MULTIPLE or max(map(abs, integers)) > MAX_MULTIPLE:
            return None
        doubles = np.array([float(fraction) for fraction in fractions])[places.ravel()]
        if np.abs(entries - doubles).max() > SPAN_TOL * np.abs(entries).max():
            return None
        divisor = math.gcd(*integers)
        array[index] = np.array([number // divisor for number in integers])[places.ravel()]
    return array


def on_grid(factor: Array, bits: int, min_exponent: int) -> tuple[Integers, Integers]:
    """Return integers N and exponents b of the rows with ``N ≈ diag(2^b) factor``, entries of about `bits` bits.

    The noise of a row has standard deviation ``2^b``. Exponents are between `min_exponent` and `MAX_EXPONENT`, so that
    draws fit 64 bits: rows with large noise get fewer bits. Zeros stay zeros.

    Examples
    --------
    >>> import numpy as np
    >>> on_grid(np.array([[0.5, 0.0], [0.3, 100.0]]), bits=4, min_exponent=1)
    (array([[  8,   0],
           [  1, 200]]), array([4, 1]))
    """
    largest = np.frexp(np.abs(factor).max(axis=1))[1]
    unlimited = np.maximum(bits - largest, min_exponent).astype(np.int64)
    exponents = np.minimum(unlimited, MAX_EXPONENT)
    scaled = np.ldexp(factor, exponents[:, None])
    if np.abs(scaled).max(initial=0.0) >= MAX_ENTRY:
        raise InvalidInputError("mechanism must have noise of a deviation above 1e-9 in the units of its queries")
    if unlimited.max(initial=0) > 2 * bits + PIECE_BITS:
        raise InvalidInputError("mechanism must have noise of a deviation below 1e12 in the units of its queries")
    return np.rint(scaled).astype(np.int64), exponents


def pieces(integers: npt.NDArray[Any]) -> list[Array]:
    """Return doubles of 20 bits with ``integers = Σ_j pieces[j] · 2^(20 j)``, all with the sign of the integer."""
    sign, remainder, parts = np.where(integers < 0, -1.0, 1.0), np.abs(integers), []
    while True:
        parts.append(sign * (remainder & (2**PIECE_BITS - 1)).astype(np.float64))
        remainder = remainder >> PIECE_BITS
        if not np.any(remainder):
            return parts


def column_squares(matrix: Integers) -> Exact:
    """Return the exact sum of squares of each column.

    Examples
    --------
    >>> import numpy as np
    >>> column_squares(np.array([[2**40 + 1, 3], [1, -4]]))
    array([1208925819616828197961730, 25], dtype=object)
    """
    return column_products(matrix, matrix)


def column_products(a: Integers, b: Integers) -> Exact:
    """Return the exact inner product of each column of a matrix with the same column of another."""
    total = np.zeros(a.shape[1], dtype=object)
    for start in range(0, len(a), MAX_SUM_LENGTH):
        left, right = (pieces(matrix[start : start + MAX_SUM_LENGTH]) for matrix in (a, b))
        for i, first in enumerate(left):
            for j, second in enumerate(right):
                sums = np.einsum("ki,ki->i", first, second).astype(np.int64).astype(object)
                total = total + sums * (1 << (PIECE_BITS * (i + j)))
    return total


def product(matrix: Integers, data: npt.NDArray[Any]) -> Exact:
    """Return ``matrix @ data`` exactly, shape (k,) or (k, n), for integers of any size.

    Examples
    --------
    >>> import numpy as np
    >>> product(np.array([[2**40, 1]]), np.array([2**40, 3]))
    array([1208925819614629174706179], dtype=object)
    """
    max_row_sum = float(np.abs(matrix).sum(axis=1, dtype=np.float64).max(initial=0.0))
    if max_row_sum * float(np.abs(data).max(initial=0)) < MAX_ENTRY:
        return np.asarray((matrix @ data.astype(np.int64)).astype(object))
    total = np.zeros((len(matrix), *data.shape[1:]), dtype=object)
    for start in range(0, matrix.shape[1], MAX_SUM_LENGTH):
        indices = slice(start, start + MAX_SUM_LENGTH)
        right = pieces(data[indices])
        for i, first in enumerate(pieces(matrix[:, indices])):
            for j, second in enumerate(right):
                total = total + (first @ second).astype(np.int64).astype(object) * (1 << (PIECE_BITS * (i + j)))
    return total


def along_axes(matrices: Sequence[Integers], data: npt.NDArray[Any]) -> Exact:
    """Return integer data with an integer matrix applied along each axis, exactly."""
    for axis, matrix in enumerate(matrices):
        array = np.moveaxis(data, axis, 0)
        transformed = product(matrix, array.reshape(len(array), -1))
        data = np.moveaxis(transformed.reshape(len(matrix), *array.shape[1:]), 0, axis)
    return np.asarray(data, dtype=object)


def integer_differences(neighbours: Matrix) -> tuple[sp.csc_array, int]:
    """Return integers N and an exponent e such that the neighbours' differences are ``N / 2^e``.

    Raises `InvalidInputError` for differences that are not multiples of 2^-20, or too large.
    """
    columns = sp.csc_array(neighbours)
    for exponent in range(0, PIECE_BITS + 1, PIECE_BITS // 4):
        scaled = columns.data * 2.0**exponent
        if np.all(scaled == np.rint(scaled)) and np.abs(scaled).max(initial=0.0) < 2**PIECE_BITS:
            integers = scaled.astype(np.int64)
            return sp.csc_array((integers, columns.indices, columns.indptr), shape=columns.shape), exponent
    raise InvalidInputError(
        f"neighbours must be differences that are multiples of 2^-{PIECE_BITS}, so that their cost is known exactly"
    )


def squared_costs(matrix: Integers, exponents: Integers, neighbours: Matrix | None) -> Exact:
    """Return ``Σ_r (N_r u)² / 4^(b_r)`` for each difference u of neighbours, as fractions. None means single cells.

    Examples
    --------
    >>> import numpy as np
    >>> squared_costs(np.array([[3, 1], [0, 1]]), np.array([1, 0]), None)
    array([Fraction(9, 4), Fraction(5, 4)], dtype=object)
    """
    if neighbours is None:
        return sums_of_squares(matrix, exponents)
    differences, exponent = integer_differences(neighbours)
    bound = np.abs(matrix).astype(np.float64).max(initial=0.0) * abs(differences).sum(axis=0).max()
    if bound >= MAX_ENTRY:
        raise InvalidInputError("neighbours must differ in fewer records for their cost to be known exactly")
    costs, step = [], max(CHUNK // max(len(matrix), 1), 1)
    for start in range(0, differences.shape[1], step):
        changes = np.asarray((differences[:, start : start + step].T @ matrix.T).T)
        costs.append(sums_of_squares(changes, exponents + exponent))
    return np.concatenate(costs)


def sums_of_squares(matrix: Integers, exponents: Integers) -> Exact:
    """Return ``Σ_r (M_ri)² / 4^(b_r)`` for each column i of the matrix M, as fractions."""
    top = int(exponents.max(initial=0))  # sum integers over one power of 4, and form fractions once
    total = np.zeros(matrix.shape[1], dtype=object)
    for exponent in np.unique(exponents).tolist():
        total = total + column_squares(matrix[exponents == exponent]) * 4 ** (top - exponent)
    return np.array([Fraction(numerator, 4**top) for numerator in total.tolist()], dtype=object)


# Sampling: all noise of releases is drawn here, by OpenDP's exact discrete Gaussian sampler.


Noise: TypeAlias = Callable[[float, int], Exact]
"""Integer noise: maps a parameter σ and a count to as many independent draws."""

MAX_DEVIATION = 2.0**MAX_EXPONENT


def discrete_gaussian(deviation: float, count: int) -> Exact:
    """Draw from the discrete Gaussian with parameter σ: probabilities ``∝ exp(-z²/2σ²)``, variance at most σ².

    Added to integers, it satisfies exactly ``‖difference‖² / 2σ²`` zCDP (Canonne, Kamath and Steinke, "The discrete
    Gaussian for differential privacy", NeurIPS 2020, Theorem 14). OpenDP draws the noise around zeros, from the
    operating system's entropy: there is no seed. The sampler never receives the data, so neither its 64 bits nor its
    own sensitivity analysis matter. Its σ is exactly `deviation`.
    Raises `BackendError` if OpenDP, of the extra ``release``, is not installed; `InvalidInputError` for a deviation
    that is not positive, or above 2^56, where draws could exceed 64 bits.
    """
    if not 0 < deviation <= MAX_DEVIATION:
        raise InvalidInputError(
            f"noise must have a deviation above 0, of at most {MAX_DEVIATION:g} in units of its grid, got {deviation:g}"
        )
    if not count:
        return np.zeros(0, dtype=object)
    return np.array(_measurement(deviation, count)([0] * count), dtype=object)


def in_batches(noise: Noise) -> Noise:
    """Return noise that is drawn in batches that double: one call of the sampler takes as long for few as for many.

    Each draw is returned once; draws left over are discarded.
    """
    leftover_draws: dict[float, Exact] = {}
    counts: dict[float, int] = {}

    def draw(deviation: float, count: int) -> Exact:
        draws, total = leftover_draws.get(deviation, np.zeros(0, dtype=object)), counts.get(deviation, 0)
        if len(draws) < count:
            draws = np.concatenate([draws, noise(deviation, max(count - len(draws), total))])
        leftover_draws[deviation], counts[deviation] = draws[count:], total + count
        return draws[:count]

    return draw


def require_sampler() -> None:
    """Raise `BackendError` if OpenDP is not installed."""
    if importlib.util.find_spec("opendp") is None:
        raise BackendError("a release needs OpenDP, of the extra `release`: pip install 'dualmech[release]'")


@functools.lru_cache(maxsize=64)
def _measurement(deviation: float, count: int) -> Any:
    require_sampler()
    from opendp import prelude as opendp  # a slow import, from an extra

    opendp.enable_features("contrib")
    numbers = opendp.vector_domain(opendp.atom_domain(T="i64"), size=count)
    return opendp.m.make_gaussian(numbers, opendp.l2_distance(T="f64"), scale=deviation)


Counts = npt.NDArray[np.int64]


class Measured(Protocol):
    """Drawn noise as a publication reads it: its mechanism, its exact cost, and estimates from noisy answers."""

    @property
    def by_table(self) -> bool:
        """Whether `estimate` takes one table; else it takes a workload."""

    @property
    def mechanism(self) -> GaussianPrivacy:
        """The Gaussian mechanism with the covariance of the drawn noise, for computing accuracy."""

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The maximum squared distance between neighbours in units of the noise: twice ρ."""

    def estimate(self, measured: Any, queries: Any) -> Any:
        """Return unbiased estimates of a table or a workload."""


class Drawn(Measured, Protocol):
    """A mechanism in integers with discrete Gaussian noise: its exact cost, and how it is drawn."""

    def read(self, source: Any, domain: Domain | None, allow_empty: bool) -> Any:
        """Return the needed counts of records."""

    def draw(self, data: Any, noise: Noise) -> Any:
        """Draw the noisy answers. Noise is added to data only here."""


def integer_counts(**argument: object) -> Counts:
    """Return counts as 64-bit integers; refuse, with the argument's name, all but integers from 0 to 2^53."""
    ((name, value),) = argument.items()
    counts = validate.finite(**argument)
    largest = np.abs(counts).max(initial=0.0)
    if largest == MAX_TOTAL:  # 2^53 + 1 rounds to the same double
        largest = max(map(int, np.asarray(value).ravel().tolist()))
    if np.any(counts != np.rint(counts)) or largest > MAX_TOTAL:
        raise InvalidInputError(f"{name} must hold whole numbers of at most 2^53: counts of records")
    if np.any(counts < 0):
        raise InvalidInputError(f"{name} must hold non-negative counts of records, got {counts.min():g}")
    return counts.astype(np.int64)


def is_records(source: object) -> bool:
    """Return whether a source is records to count: a file or a frame with named columns."""
    return isinstance(source, str | PathLike | records.Records) or (
        is_frame(source) and not (hasattr(source, "reset_index") and not hasattr(source, "columns"))
    )


IMPOSSIBLE_CELLS = "must count none in cells that no record has, as the schema says (never)"


def user_counts(source: Any, domain: Domain) -> Any:
    """Return the user's tables of counts; None if the source is records.

    Tables are a mapping of attributes' positions to arrays, a list of frames with a column of counts, or, for a schema,
    an array with one axis for each attribute.
    """
    if isinstance(source, Mapping):
        return checked_tables(source, domain)
    if isinstance(source, list | tuple) and source and all(map(is_frame, source)):
        return checked_tables(records.tables(source, domain), domain)
    if isinstance(domain, Schema) and np.shape(source if isinstance(source, np.ndarray) else ()) == domain.shape:
        return checked_tables({tuple(range(len(domain.shape))): source}, domain)
    return None


def is_frame(source: object) -> bool:
    """Return whether a source is a frame with named columns, or a Series with named rows."""
    return engine_of(source) is not None or hasattr(source, "columns") or hasattr(source, "reset_index")


def counted_vector(source: Any, domain: Domain | None, allow_empty: bool) -> Any:
    """Return the data vector (d,) of records, tables or counts over all cells of a domain."""
    if not is_records(source):
        vector = None if domain is None else user_counts(source, domain)
        if domain is not None and vector is not None:
            every = tuple(range(len(domain.names)))
            return marginal_of(domain, vector, every).ravel()
        counts, possible = integer_counts(records=source), None if domain is None else domain.possible()
        if possible is not None and counts.shape == possible.shape and np.any(counts[~possible]):
            raise InvalidInputError(f"records {IMPOSSIBLE_CELLS}")
        return validate.finite(records=source)
    domain = require_domain(domain)
    axes = tuple(range(len(domain.names)))
    if domain.cells > LARGEST_TABLE:
        raise InvalidInputError(f"a domain of {domain.cells} cells is too large to count in one table")
    tables = records.count(source, MarginalWorkload(domain, [axes]), allow_empty=allow_empty)
    return np.asarray(tables[axes]).ravel()


def require_domain(domain: Domain | None) -> Domain:
    """Return the domain; raise `InputTypeError` for None."""
    if domain is None:
        raise InputTypeError(
            "records must be counts, a data vector: the workload has no domain, which names the columns to count; give "
            "it one (domain=), such as a dualmech.Schema"
        )
    return domain


def checked_tables(source: object, domain: Domain) -> Any:
    """Return the user's tables of counts; refuse, with the table's name, tables that no records can have.

    Refused are values that are no counts, a wrong shape, counts in impossible cells, and inconsistent tables.
    """
    counts: dict[Axes, Counts] = {}
    for axes, table in check_tables(records=source).items():
        if any(axis >= len(domain.names) for axis in axes):
            raise InvalidInputError(f"records[{axes}] must be of attributes 0 … {len(domain.names) - 1}")
        counts[axes] = integer_counts(**{f"records[{axes}]": table})
        if counts[axes].sum(dtype=np.float64) > MAX_TOTAL / 2:  # marginals are sums of doubles
            total = sum(counts[axes].ravel().tolist())
            if total > MAX_TOTAL:
                raise InvalidInputError(records.inexact(f"records[{axes}]", total))
        shape = tuple(domain.shape[axis] for axis in axes)
        if counts[axes].shape != shape:
            raise InvalidInputError(f"records[{axes}] must have shape {shape}, got {counts[axes].shape}")
        for together in domain.impossible:
            if {*together} <= {*axes} and np.any(
                counts[axes][np.ix_(*(together.get(axis, range(domain.shape[axis])) for axis in axes))]
            ):
                raise InvalidInputError(f"records[{axes}] {IMPOSSIBLE_CELLS}")
    _require_consistent(counts, domain)
    return source


def _require_consistent(counts: Mapping[Axes, Counts], domain: Domain) -> None:
    """Refuse two tables with different marginals on their common attributes."""
    marginals: dict[Axes, tuple[Axes, Counts]] = {}
    for axes, table in counts.items():
        for shared in _possibly_shared(axes, counts.keys()):
            sums = table.sum(axis=tuple(at for at, axis in enumerate(axes) if axis not in shared))
            other, other_sums = marginals.setdefault(shared, (axes, sums))
            if not np.array_equal(sums, other_sums):
                words = " x ".join(domain.names[axis] for axis in shared) or "the number of records"
                raise InvalidInputError(
                    f"records[{other}] and records[{axes}] must be of the same records: they differ on {words}"
                )


def _possibly_shared(axes: Axes, tables: Collection[Axes]) -> set[Axes]:
    """Return the intersections of a table's attributes with all tables, or all subsets if these are fewer."""
    if 2 ** len(axes) <= len(tables):
        return {subset for size in range(len(axes) + 1) for subset in itertools.combinations(axes, size)}
    return {tuple(axis for axis in axes if axis in table) for table in tables}
