"""What every mechanism offers once it is on a grid, whatever its noise lies on."""

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
from dualmech.publishing.records import LARGEST_TOTAL
from dualmech.publishing.schema import Schema
from dualmech.publishing.sources import engine_of
from dualmech.validate import Array, Matrix
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginal import Axes, MarginalWorkload

# Whole numbers in place of reals: bases of row spaces, matrices on a grid, and their exact squares.
#
# What privacy rests on is computed here without rounding: a release adds discrete noise to whole numbers, and its cost
# is a sum of squares of whole numbers. Products of doubles are exact below 2^53, so that matrices are split into pieces
# of few bits, multiplied in floating point, and put together as Python's integers.


Integers = npt.NDArray[np.int64]
Exact = npt.NDArray[np.object_]  # of Python's integers

PIECE_BITS = 20
LONGEST_SUM = 2**12  # products of two pieces that are added: 2^40 each, together below 2^53
LARGEST = 2**61  # largest magnitude of an entry that is kept in 64 bits, with room for one addition

MOST_EXPONENT = 56  # of noise: 40 deviations, which no draw exceeds, are then below 2^62; the sampler saturates at 2^63
LARGEST_DENOMINATOR = 10_000
SMALL_MULTIPLE = 2**10  # entries of a whole row up to which no other basis is looked for
LARGEST_MULTIPLE = 2**20  # largest common denominator of a row, and largest entry of a basis
DIGITS = 10  # decimals at which entries of a row, whose least is 1, count as one value
AGREEMENT = 1e-9  # how far a row may be from whole multiples, relative to its largest entry: as the span of a workload

CHUNK = 2**22  # entries of a product that are held at a time


def whole_basis(rows: Array) -> Integers:
    """Return whole rows (k, d) with the same span as independent rows of real numbers.

    All rows of full rank are the cells themselves. Others are taken as they are where each is a multiple of small whole
    numbers, and else by the echelon form, which has small denominators where the span has any basis of such: of both
    the one of smaller numbers, since large ones may be near to a row by chance.
    Raises `InvalidInputError` where neither has.

    Examples
    --------
    >>> import numpy as np
    >>> whole_basis(np.array([[0.5, 0.5, 0.0], [0.0, 0.1, 0.3]]))
    array([[1, 1, 0],
           [0, 1, 3]])
    >>> whole_basis(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[1, 0],
           [0, 1]])
    """
    count, cells = rows.shape
    if count == cells:
        return np.eye(cells, dtype=np.int64)
    multiples = _whole_multiples(rows)
    if count and (multiples is None or np.abs(multiples).max() > SMALL_MULTIPLE):
        pivots = scipy.linalg.qr(rows, mode="r", pivoting=True, check_finite=False)[1][:count]
        echelon = np.linalg.solve(rows[:, np.sort(pivots)], rows)
        other = _whole_multiples(np.asarray(echelon, dtype=np.float64))
        if other is not None and (multiples is None or np.abs(other).max() < np.abs(multiples).max()):
            multiples = other
    if multiples is None:
        raise InvalidInputError(
            f"mechanism must answer queries whose span has a basis of whole numbers up to {LARGEST_MULTIPLE}: its "
            f"{count} independent rows on {cells} cells have none that was found"
        )
    return multiples


def rows_beyond(basis: Integers, part: Integers) -> Integers:
    """Return the rows of a basis that make one of the same span together with independent rows of that span.

    Examples
    --------
    >>> import numpy as np
    >>> rows_beyond(np.eye(3, dtype=int), np.array([[1, 0, 0], [0, 1, 0]]))
    array([[0, 0, 1]])
    """
    if not len(part):
        return basis
    known, rows = linalg.row_space(part.astype(np.float64)), basis.astype(np.float64)
    beyond = rows - (rows @ known.T) @ known
    order = scipy.linalg.qr(beyond.T, mode="r", pivoting=True, check_finite=False)[1]
    return np.asarray(basis[np.sort(order[: len(basis) - len(part)])])


def _whole_multiples(rows: Array) -> Integers | None:
    """Return each row as a multiple of itself with small whole entries; None where one has none."""
    array = np.zeros(rows.shape, dtype=np.int64)
    for index, row in enumerate(rows):
        size = np.abs(row).max()
        entries = row / np.abs(row[np.abs(row) > AGREEMENT * size]).min()
        # Rounding leaves many values where there is one; how near all of them are is looked at below.
        values, places = np.unique(np.round(entries, DIGITS), return_inverse=True)
        near = [Fraction(value).limit_denominator(LARGEST_DENOMINATOR) for value in values.tolist()]
        common = math.lcm(*(fraction.denominator for fraction in near))
        whole = [int(fraction * common) for fraction in near]
        if common > LARGEST_MULTIPLE or max(map(abs, whole)) > LARGEST_MULTIPLE:
            return None
        doubles = np.array([float(number) for number in near])[places.ravel()]
        if np.abs(entries - doubles).max() > AGREEMENT * np.abs(entries).max():
            return None
        divisor = math.gcd(*whole)
        array[index] = np.array([number // divisor for number in whole])[places.ravel()]
    return array


def on_grid(factor: Array, bits: int, least: int) -> tuple[Integers, Integers]:
    """Return whole numbers N and exponents b of the rows with ``N ≈ diag(2^b) factor``, entries of about `bits` bits.

    No exponent, 2 to which is the noise's deviation, is below `least`, nor too large for draws of 64 bits: rows of
    large noise get fewer bits. Zeros stay zeros.

    Examples
    --------
    >>> import numpy as np
    >>> on_grid(np.array([[0.5, 0.0], [0.3, 100.0]]), bits=4, least=1)
    (array([[  8,   0],
           [  1, 200]]), array([4, 1]))
    """
    largest = np.frexp(np.abs(factor).max(axis=1))[1]
    wanted = np.maximum(bits - largest, least).astype(np.int64)
    exponents = np.minimum(wanted, MOST_EXPONENT)
    scaled = np.ldexp(factor, exponents[:, None])
    if np.abs(scaled).max(initial=0.0) >= LARGEST:
        raise InvalidInputError("mechanism must have noise of a deviation above 1e-9 in the units of its queries")
    if wanted.max(initial=0) > 2 * bits + PIECE_BITS:
        raise InvalidInputError("mechanism must have noise of a deviation below 1e12 in the units of its queries")
    return np.rint(scaled).astype(np.int64), exponents


def pieces(whole: npt.NDArray[Any]) -> list[Array]:
    """Return doubles that hold some bits each: ``whole = Σ_j pieces[j] · 2^(20 j)``, all of the sign of the number."""
    sign, rest, parts = np.where(whole < 0, -1.0, 1.0), np.abs(whole), []
    while True:
        parts.append(sign * (rest & (2**PIECE_BITS - 1)).astype(np.float64))
        rest = rest >> PIECE_BITS
        if not np.any(rest):
            return parts


def column_squares(whole: Integers) -> Exact:
    """Return the sum of the squares of each column, exactly.

    Examples
    --------
    >>> import numpy as np
    >>> column_squares(np.array([[2**40 + 1, 3], [1, -4]]))
    array([1208925819616828197961730, 25], dtype=object)
    """
    return column_products(whole, whole)


def column_products(one: Integers, two: Integers) -> Exact:
    """Return the inner product of each column of one matrix with the same column of another, exactly."""
    total = np.zeros(one.shape[1], dtype=object)
    for start in range(0, len(one), LONGEST_SUM):
        left, right = (pieces(column[start : start + LONGEST_SUM]) for column in (one, two))
        for i, first in enumerate(left):
            for j, second in enumerate(right):
                sums = np.einsum("ki,ki->i", first, second).astype(np.int64).astype(object)
                total = total + sums * (1 << (PIECE_BITS * (i + j)))
    return total


def product(whole: Integers, data: npt.NDArray[Any]) -> Exact:
    """Return ``whole @ data`` exactly, (k,) or (k, n), for whole numbers of any size.

    Examples
    --------
    >>> import numpy as np
    >>> product(np.array([[2**40, 1]]), np.array([2**40, 3]))
    array([1208925819614629174706179], dtype=object)
    """
    reach = float(np.abs(whole).sum(axis=1, dtype=np.float64).max(initial=0.0))
    if reach * float(np.abs(data).max(initial=0)) < LARGEST:
        return np.asarray((whole @ data.astype(np.int64)).astype(object))
    total = np.zeros((len(whole), *data.shape[1:]), dtype=object)
    for start in range(0, whole.shape[1], LONGEST_SUM):
        inside = slice(start, start + LONGEST_SUM)
        right = pieces(data[inside])
        for i, first in enumerate(pieces(whole[:, inside])):
            for j, second in enumerate(right):
                total = total + (first @ second).astype(np.int64).astype(object) * (1 << (PIECE_BITS * (i + j)))
    return total


def along_axes(matrices: Sequence[Integers], data: npt.NDArray[Any]) -> Exact:
    """Return whole data with a whole matrix applied along each axis, exactly."""
    for axis, matrix in enumerate(matrices):
        moved = np.moveaxis(data, axis, 0)
        along = product(matrix, moved.reshape(len(moved), -1))
        data = np.moveaxis(along.reshape(len(matrix), *moved.shape[1:]), 0, axis)
    return np.asarray(data, dtype=object)


def moves_of_whole_numbers(neighbours: Matrix) -> tuple[sp.csc_array, int]:
    """Return neighbours' differences as whole numbers and the exponent e with ``differences = whole / 2^e``.

    Raises `InvalidInputError` for differences that are no multiples of 2^-20, or too large.
    """
    columns = sp.csc_array(neighbours)
    for exponent in range(0, PIECE_BITS + 1, PIECE_BITS // 4):
        scaled = columns.data * 2.0**exponent
        if np.all(scaled == np.rint(scaled)) and np.abs(scaled).max(initial=0.0) < 2**PIECE_BITS:
            whole = scaled.astype(np.int64)
            return sp.csc_array((whole, columns.indices, columns.indptr), shape=columns.shape), exponent
    raise InvalidInputError(
        f"neighbours must be differences that are multiples of 2^-{PIECE_BITS}, so that their cost is known exactly"
    )


def squared_costs(whole: Integers, exponents: Integers, neighbours: Matrix | None) -> Exact:
    """Return ``Σ_r (N_r u)² / 4^(b_r)`` for each of the neighbours' differences u, as fractions; None: for each cell.

    Examples
    --------
    >>> import numpy as np
    >>> squared_costs(np.array([[3, 1], [0, 1]]), np.array([1, 0]), None)
    array([Fraction(9, 4), Fraction(5, 4)], dtype=object)
    """
    if neighbours is None:
        return sums_of_squares(whole, exponents)
    moves, scale = moves_of_whole_numbers(neighbours)
    reach = np.abs(whole).astype(np.float64).max(initial=0.0) * abs(moves).sum(axis=0).max()
    if reach >= LARGEST:
        raise InvalidInputError("neighbours must differ in fewer records for their cost to be known exactly")
    costs, step = [], max(CHUNK // max(len(whole), 1), 1)
    for start in range(0, moves.shape[1], step):
        moved = np.asarray((moves[:, start : start + step].T @ whole.T).T)
        costs.append(sums_of_squares(moved, exponents + scale))
    return np.concatenate(costs)


def sums_of_squares(moved: Integers, exponents: Integers) -> Exact:
    """Return ``Σ_r (M_ri)² / 4^(b_r)`` of each column: whole numbers over one power of two, made fractions once."""
    top = int(exponents.max(initial=0))
    total = np.zeros(moved.shape[1], dtype=object)
    for exponent in np.unique(exponents).tolist():
        total = total + column_squares(moved[exponents == exponent]) * 4 ** (top - exponent)
    return np.array([Fraction(numerator, 4**top) for numerator in total.tolist()], dtype=object)


# The one place where noise of a release is drawn: OpenDP's exact discrete Gaussian sampler.


Noise: TypeAlias = Callable[[float, int], Exact]
"""Whole-number noise: a parameter σ and a count give that many independent draws."""

LARGEST_DEVIATION = 2.0**MOST_EXPONENT


def discrete_gaussian(deviation: float, count: int) -> Exact:
    """Draw from the discrete Gaussian of parameter σ, probabilities ``∝ exp(-z²/2σ²)``, of variance σ² at most.

    Added to whole numbers it is ``‖difference‖² / 2σ²`` zCDP, exactly (Canonne, Kamath and Steinke, "The discrete
    Gaussian for differential privacy", NeurIPS 2020, Theorem 14). The draws are OpenDP's, on the numbers 0, from the
    operating system's entropy: there is no seed to give. What they are added to is never handed over, so that neither
    the sampler's 64 bits nor its own account of sensitivity matter; and its σ is the very number given.
    Raises `BackendError` where OpenDP, of the extra ``release``, is not installed; `InvalidInputError` for a deviation
    that is not positive, which would publish the data, or above 2^56, where draws could leave 64 bits.
    """
    if not 0 < deviation <= LARGEST_DEVIATION:
        raise InvalidInputError(
            f"noise must have a deviation above 0, of at most {LARGEST_DEVIATION:g} in units of its grid, "
            f"got {deviation:g}"
        )
    if not count:
        return np.zeros(0, dtype=object)
    return np.array(_measurement(deviation, count)([0] * count), dtype=object)


def in_batches(noise: Noise) -> Noise:
    """Return noise that is drawn some at a time, as many as were asked for so far: a draw of one takes as long as many.

    No number is handed out twice; those that are left in the end belong to nothing.
    """
    left: dict[float, Exact] = {}
    counts: dict[float, int] = {}

    def draw(deviation: float, count: int) -> Exact:
        held, so_far = left.get(deviation, np.zeros(0, dtype=object)), counts.get(deviation, 0)
        if len(held) < count:
            held = np.concatenate([held, noise(deviation, max(count - len(held), so_far))])
        left[deviation], counts[deviation] = held[count:], so_far + count
        return held[:count]

    return draw


def require_sampler() -> None:
    """Raise `BackendError` where OpenDP is not installed: before any records are read."""
    if importlib.util.find_spec("opendp") is None:
        raise BackendError("a release needs OpenDP, of the extra `release`: pip install 'dualmech[release]'")


@functools.lru_cache(maxsize=64)
def _measurement(deviation: float, count: int) -> Any:
    require_sampler()
    from opendp import prelude as opendp  # which takes a while, and is of an extra

    opendp.enable_features("contrib")
    numbers = opendp.vector_domain(opendp.atom_domain(T="i64"), size=count)
    return opendp.m.make_gaussian(numbers, opendp.l2_distance(T="f64"), scale=deviation)


Counts = npt.NDArray[np.int64]


class Measured(Protocol):
    """What a publication reads: noise that was drawn, its exact cost, and estimates from what was measured."""

    @property
    def by_table(self) -> bool:
        """Whether estimates are asked for table by table; else for all queries of a workload."""

    @property
    def mechanism(self) -> GaussianPrivacy:
        """The Gaussian mechanism with the noise that is drawn: what accuracy is computed from."""

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The largest squared distance between neighbours in units of the noise: twice ρ."""

    def estimate(self, measured: Any, queries: Any) -> Any:
        """Return unbiased estimates of a table or a workload."""


class Drawn(Measured, Protocol):
    """A mechanism in whole numbers with discrete Gaussian noise: its exact cost, and how it is drawn."""

    def read(self, source: Any, domain: Domain | None, allow_empty: bool) -> Any:
        """Return the counts that are needed of records."""

    def draw(self, data: Any, noise: Noise) -> Any:
        """Draw what everything is estimated from: the one place where data meet noise."""


def whole_counts(**named: object) -> Counts:
    """Return counts as 64-bit integers; anything but whole numbers from 0 to 2^53 is refused by its name."""
    ((name, value),) = named.items()
    counts = validate.finite(**named)
    largest = np.abs(counts).max(initial=0.0)
    if largest == LARGEST_TOTAL:  # as is the double of 2^53 + 1
        largest = max(map(int, np.asarray(value).ravel().tolist()))
    if np.any(counts != np.rint(counts)) or largest > LARGEST_TOTAL:
        raise InvalidInputError(f"{name} must hold whole numbers of at most 2^53: counts of records")
    if np.any(counts < 0):
        raise InvalidInputError(f"{name} must hold counts of records, none of them negative, got {counts.min():g}")
    return counts.astype(np.int64)


def is_records(source: object) -> bool:
    """Whether a source is records, to be counted: a file or a frame with named columns."""
    return isinstance(source, str | PathLike | records.Records) or (
        is_frame(source) and not (hasattr(source, "reset_index") and not hasattr(source, "columns"))
    )


NOBODY = "must count none in cells that no record has, as the schema says (never)"


def given_counts(source: Any, domain: Domain) -> Any:
    """Return tables of counts that were given in place of records, None of records.

    They are a mapping of attributes' positions to arrays, a list of frames with a column of counts, or an array with an
    axis for each attribute of a schema, which reads no records of bare codes.
    """
    if isinstance(source, Mapping):
        return given_tables(source, domain)
    if isinstance(source, list | tuple) and source and all(map(is_frame, source)):
        return given_tables(records.tables(source, domain), domain)
    if isinstance(domain, Schema) and np.shape(source if isinstance(source, np.ndarray) else ()) == domain.shape:
        return given_tables({tuple(range(len(domain.shape))): source}, domain)
    return None


def is_frame(source: object) -> bool:
    """Whether a source is a frame with named columns, or a Series with named rows."""
    return engine_of(source) is not None or hasattr(source, "columns") or hasattr(source, "reset_index")


def counted_vector(source: Any, domain: Domain | None, allow_empty: bool) -> Any:
    """Return the data vector (d,) of records over all cells of a domain; anything else as it is."""
    if not is_records(source):
        vector = None if domain is None else given_counts(source, domain)
        if domain is not None and vector is not None:
            every = tuple(range(len(domain.names)))
            return marginal_of(domain, vector, every).ravel()
        counts, possible = whole_counts(records=source), None if domain is None else domain.possible()
        if possible is not None and counts.shape == possible.shape and np.any(counts[~possible]):
            raise InvalidInputError(f"records {NOBODY}")
        return validate.finite(records=source)
    known = require_domain(domain)
    whole = tuple(range(len(known.names)))
    if known.cells > LARGEST_TABLE:
        raise InvalidInputError(f"a domain of {known.cells} cells is too large to count in one table")
    tables = records.count(source, MarginalWorkload(known, [whole]), allow_empty=allow_empty)
    return np.asarray(tables[whole]).ravel()


def require_domain(domain: Domain | None) -> Domain:
    """Return a domain; refuse records where there is none that says which columns to count."""
    if domain is None:
        raise InputTypeError(
            "records must be counts, a data vector: the workload has no domain that says which columns to count; give "
            "it one (domain=), such as a dualmech.Schema"
        )
    return domain


def given_tables(source: object, domain: Domain) -> Any:
    """Return tables of counts that were given in place of records; refuse by its table what no records have.

    These are anything but counts, a table of another shape, and two tables that differ on what both of them tell.
    """
    counts: dict[Axes, Counts] = {}
    for axes, table in check_tables(records=source).items():
        if any(axis >= len(domain.names) for axis in axes):
            raise InvalidInputError(f"records[{axes}] must be of attributes 0 … {len(domain.names) - 1}")
        counts[axes] = whole_counts(**{f"records[{axes}]": table})
        if counts[axes].sum(dtype=np.float64) > LARGEST_TOTAL / 2:  # marginals add counts up as doubles
            total = sum(counts[axes].ravel().tolist())
            if total > LARGEST_TOTAL:
                raise InvalidInputError(records.inexact(f"records[{axes}]", total))
        shape = tuple(domain.shape[axis] for axis in axes)
        if counts[axes].shape != shape:
            raise InvalidInputError(f"records[{axes}] must have shape {shape}, got {counts[axes].shape}")
        for together in domain.impossible:
            if {*together} <= {*axes} and np.any(
                counts[axes][np.ix_(*(together.get(axis, range(domain.shape[axis])) for axis in axes))]
            ):
                raise InvalidInputError(f"records[{axes}] {NOBODY}")
    _require_agreement(counts, domain)
    return source


def _require_agreement(counts: Mapping[Axes, Counts], domain: Domain) -> None:
    """Refuse two tables whose marginals on the attributes that they share are not the same."""
    known: dict[Axes, tuple[Axes, Counts]] = {}
    for axes, table in counts.items():
        for shared in _possibly_shared(axes, counts.keys()):
            sums = table.sum(axis=tuple(at for at, axis in enumerate(axes) if axis not in shared))
            other, other_sums = known.setdefault(shared, (axes, sums))
            if not np.array_equal(sums, other_sums):
                words = " x ".join(domain.names[axis] for axis in shared) or "the number of records"
                raise InvalidInputError(
                    f"records[{other}] and records[{axes}] must be of the same records: they differ on {words}"
                )


def _possibly_shared(axes: Axes, tables: Collection[Axes]) -> set[Axes]:
    """Return sets of a table's attributes that hold all it has in common with any other: all, or those, if fewer."""
    if 2 ** len(axes) <= len(tables):
        return {subset for size in range(len(axes) + 1) for subset in itertools.combinations(axes, size)}
    return {tuple(axis for axis in axes if axis in table) for table in tables}
