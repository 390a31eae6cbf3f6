"""Queries on a circle of values: whatever is asked of some values is asked of all their translates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from dualmech import validate, workloads
from dualmech.errors import InvalidInputError
from dualmech.immutable import freeze, set_parts
from dualmech.validate import Array
from dualmech.workloads.base import MAX_DENSE_ENTRIES, StructuredWorkload

if TYPE_CHECKING:
    from dualmech.workloads.unions import UnionWorkload

Index = npt.NDArray[np.intp]

MAX_ENTRIES = 2**26  # largest number of entries of one query of every family
MAX_LISTED_MEMBERS = 8  # a larger set is not listed in its name
MAX_STEPS = 2**26  # largest number of steps that looking for translates among affine images may take


class CircularWorkload(StructuredWorkload):
    """All translates of some queries over the integers modulo n; the matrix on demand.

    Attributes
    ----------
    bases : (b, n) array
        One query of each family. Its translates are ``a(z - t)`` for t from 0 up to its period, in this order: up to
        the first that is the base again, or its negative.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.circular([[1, 1, 0, 0], [1, 0, 1, 0]])
    >>> asked.shape, asked.matrix[3], asked.matrix[4:].tolist()
    ((6, 4), array([1., 0., 0., 1.]), [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    """

    __slots__ = ("bases", "periods")

    circular: ClassVar[bool] = True

    bases: Array
    periods: Index  # number of distinct translates of each base (b,)

    def __init__(self, bases: npt.ArrayLike) -> None:
        array = freeze(np.array(validate.finite(2, bases=bases)))
        periods = np.array([_period(base) for base in array], dtype=np.intp)
        set_parts(self, bases=array, periods=periods)
        self._begin((int(periods.sum()), array.shape[1]))

    def tabular(self) -> UnionWorkload:
        return workloads.union({"value": self.shape[1]}, {"translates": {"value": self}})

    @property
    def matrix(self) -> Array:
        """W (m, n), dense; refused if it has too many entries."""
        if self.shape[0] * self.shape[1] > MAX_DENSE_ENTRIES:
            raise InvalidInputError(
                f"circular queries of shape {self.shape[0]} x {self.shape[1]} are too large for a dense matrix "
                f"(limit {MAX_DENSE_ENTRIES} entries); geometry='blocks' needs no matrix"
            )
        cells = np.arange(self.shape[1])
        rows = [
            base[(cells - np.arange(period)[:, None]) % len(cells)]
            for base, period in zip(self.bases, self.periods, strict=True)
        ]
        return freeze(np.vstack(rows))

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the answers ``W x`` (m,) on a data vector x (n,), without the matrix."""
        data = validate.finite(1, x=x)
        if data.shape != (self.shape[1],):
            raise InvalidInputError(f"x must have {self.shape[1]} entries, one per cell, got {data.shape[0]}")
        return self.along(data, 0)

    def along(self, array: Array, axis: int) -> Array:
        """Return the answers along an axis of n entries, which gets m; all translates of a base by its waves."""
        count = self.shape[1]
        waves = np.fft.rfft(np.moveaxis(array, axis, -1))
        columns = [
            np.fft.irfft(waves * spectrum.conj(), count)[..., :period]
            for spectrum, period in zip(np.fft.rfft(self.bases), self.periods, strict=True)
        ]
        return np.moveaxis(np.concatenate(columns, axis=-1), -1, axis)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per query, such as ``cells 22..3``, ``cell 0 - cell 4`` or ``cells 0, 1, 3``."""
        return tuple(
            name
            for index, (base, period) in enumerate(zip(self.bases, self.periods, strict=True))
            for name in _names_of(index, base, int(period))
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """The base of each query."""
        return tuple(f"base {base}" for base, period in enumerate(self.periods) for _ in range(period))

    @property
    def is_sparse(self) -> bool:
        """Never: translates share no zeros."""
        return False

    def column_squares(self) -> Array:
        squares = (self.bases**2).sum(axis=1) @ (self.periods / self.shape[1])
        return np.full(self.shape[1], squares)

    def _structure(self) -> tuple[object, ...]:
        return (self.bases,)

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"bases": self.bases}

    def __repr__(self) -> str:
        return f"CircularWorkload({self.shape[0]} queries x {self.shape[1]} cells, {len(self.bases)} families)"


def circular(bases: npt.ArrayLike) -> CircularWorkload:
    """Ask all translates of some queries on a circle of n values.

    Raises `InvalidInputError` or `InputTypeError` for empty, not two-dimensional, NaN or infinite entries.

    Parameters
    ----------
    bases : (b, n) array
        One query of each family.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.circular([[1, -1, 0, 0, 0]]).shape     # neighbours' differences
    (5, 5)
    """
    return CircularWorkload(bases)


def circular_ranges(n: int, lengths: Iterable[int] | None = None) -> CircularWorkload:
    """Count every run of consecutive values on a circle of n, such as hours of the day across midnight.

    Raises `InvalidInputError` or `InputTypeError` for a length that is not an integer from 1 to n, or none.

    Parameters
    ----------
    n : int
        Number of values.
    lengths : iterable of ints, optional
        Those lengths only, from 1 to n; by default all.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.circular_ranges(24).shape, dm.workloads.circular_ranges(24, lengths=[6]).shape
    ((553, 24), (24, 24))
    """
    cells = validate.size(n=n)
    if lengths is None:
        _check_size(cells, cells)
    values = range(1, cells + 1) if lengths is None else validate.sequence(lengths=lengths)
    sizes = [validate.size(lengths=length) for length in values]
    if not sizes or max(sizes) > cells:
        raise InvalidInputError(f"lengths must be one or more of 1 to {cells}, got {sizes[:10]}")
    _check_size(cells, len(sizes))
    return CircularWorkload((np.arange(cells) < np.array(sizes)[:, None]).astype(np.float64))


def differences(n: int) -> CircularWorkload:
    """Ask for the difference of every two of n values: ``x_i - x_j``, each pair once.

    Raises `InvalidInputError` or `InputTypeError` for fewer than 2 values, or too many to write a query of each
    distance.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.differences(5).shape
    (10, 5)
    """
    cells = validate.size(n=n)
    if cells < 2:
        raise InvalidInputError(f"n must be at least 2 for values to differ, got {cells}")
    _check_size(cells, cells // 2)
    bases = np.zeros((cells // 2, cells))
    bases[:, 0] = 1.0
    bases[np.arange(cells // 2), 1 + np.arange(cells // 2)] = -1.0
    return CircularWorkload(bases)


def affine(n: int, subset: Iterable[int]) -> CircularWorkload:
    """Count the records in every image ``{a s + b}`` of a set of values modulo n, a prime to n.

    Raises `InvalidInputError` or `InputTypeError` for an empty subset, or a member that is not an integer from 0 to
    n - 1.

    Parameters
    ----------
    n : int
        Number of values.
    subset : iterable of ints
        The set S whose images under invertible affine maps of the integers modulo n are asked for.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.affine(7, [0, 1, 3]).shape      # the lines of Fano's plane, and their mirror images
    (14, 7)
    """
    cells = validate.size(n=n)
    members = validate.sequence(subset=subset)
    is_valid = all(isinstance(member, int | np.integer) and 0 <= member < cells for member in members)
    if not (members and is_valid):
        raise InvalidInputError(f"subset must hold one or more integers from 0 to {cells - 1}, got {members[:10]}")
    values = np.unique(np.array(members, dtype=np.int64))
    if cells * len(values) ** 2 > MAX_STEPS:
        raise InvalidInputError(
            f"affine images of {len(values)} of {cells} values take too long to tell apart (limit {MAX_STEPS} steps)"
        )
    images: dict[bytes, Index] = {}
    for factor in (factor for factor in range(1, cells + 1) if math.gcd(factor, cells) == 1):
        image = np.asarray((factor * values) % cells, dtype=np.intp)
        images.setdefault(_least_translate(image, cells), image)
    _check_size(cells, len(images))
    bases = np.zeros((len(images), cells))
    for row, members_of in enumerate(images.values()):
        bases[row, members_of] = 1.0
    return CircularWorkload(bases)


def _check_size(cells: int, families: int) -> None:
    """Refuse more than `MAX_ENTRIES` entries in the bases of the families."""
    if cells * families > MAX_ENTRIES:
        raise InvalidInputError(
            f"{families} families of queries over {cells} values are too many (limit {MAX_ENTRIES} entries)"
        )


def _names_of(index: int, base: Array, period: int) -> list[str]:
    """Return names for the translates of a base: its cells, if they are few, else its index and the shift."""
    size, members = len(base), np.flatnonzero(base)
    values = base[members]
    if np.all(values == 1) and len(members) == size:
        return ["all cells"]
    if len(members) and np.all(values == 1):
        starts = members[base[members - 1] == 0]
        if len(members) == 1:
            return [f"cell {(starts[0] + shift) % size}" for shift in range(period)]
        if len(starts) == 1:
            ends = starts[0], starts[0] + len(members) - 1
            return [f"cells {(ends[0] + shift) % size}..{(ends[1] + shift) % size}" for shift in range(period)]
        if len(members) <= MAX_LISTED_MEMBERS:
            turned = (sorted((members + shift) % size) for shift in range(period))
            return ["cells " + ", ".join(map(str, members)) for members in turned]
    if len(members) == 2 and {*values} == {-1.0, 1.0}:
        plus, minus = members[np.argsort(-values)]
        return [f"cell {(plus + shift) % size} - cell {(minus + shift) % size}" for shift in range(period)]
    return [f"base {index} + {shift}" for shift in range(period)]


def _period(base: Array) -> int:
    """Return the least t > 0 for which the query is its own translate by t, up to sign: a divisor of n."""
    divisors = (divisor for divisor in range(1, len(base) + 1) if len(base) % divisor == 0)
    turned = ((divisor, np.roll(base, divisor)) for divisor in divisors)
    return next(divisor for divisor, other in turned if np.array_equal(other, base) or np.array_equal(-other, base))


def _least_translate(members: Index, cells: int) -> bytes:
    """Return the canonical translate of a set of values: the least that contains 0, the same for all translates."""
    translates = np.sort((members[None, :] - members[:, None]) % cells, axis=1)
    return translates[np.lexsort(translates.T[::-1])[0]].tobytes()
