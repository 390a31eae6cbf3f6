"""The symmetry of one attribute: which values may be exchanged, or turned, and the queries that remain then.

If a group of permutations of an attribute's values takes each of its query sets to itself, up to signs, the space of
functions of the values splits into parts that no permutation leaves, its isotypic components, and noise that respects
the group is made of a matrix for each. Two kinds of groups are found, and checked on the queries themselves:

- *exchange*: all permutations within classes of values that any two queries could swap. The components are the
  functions that are constant on classes, where the group does nothing, and for each class of n_j > 1 values those
  that live on it and add up to 0, of dimension ``n_j - 1``;
- *turning*: the cyclic group, where no two values can be swapped. The components are the constants, and for each
  frequency the waves ``cos`` and ``sin``, of dimension 2, or 1 at half the number of values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
from scipy.sparse import coo_array, csgraph

from dualmech.errors import GeometryError
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads.base import Workload

Index = npt.NDArray[np.intp]

MAX_VALUES = 2**24  # largest number of values of an attribute
MAX_ENTRIES = 2**25  # largest number of entries of an attribute's queries that are searched for symmetries
MAX_ORBITS = 2**15  # largest number of orbits of cells, or of queries of all tables
MAX_BLOCK_ENTRIES = 2**26  # largest number of entries of the blocks' rows, all together

Key = tuple[tuple[int, int], ...]
"""Of a block: the component of each attribute that has another than the constants on classes."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of a query set in the components, one row for each orbit of its queries."""

    orbits: Index  # (m,) the orbit of each query
    means: Array  # (orbits, classes) mean of a query over each class
    # (orbits, components) ``√(g mult / n_j)``, g the squared norm of a query's part in a component and n_j the size of
    # its class
    component_norms: Array
    magnitudes: Array  # (orbits,) largest entry, in absolute value

    @property
    def counts(self) -> Array:
        return np.bincount(self.orbits).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class AttributeSymmetry:
    """An attribute's classes of values and components."""

    labels: Index  # (n,) the class of each value: those that the group can take to each other
    classes: Index  # (components,) on which class each component lives
    dimensions: Array  # (components,) mult, the dimension of each
    turning: bool  # which of the two kinds the group is
    sizes: Array = field(init=False)  # (classes,) number of values of each class
    # How many roundings, about, the parts of a query may have seen: sums over a class, or a Fourier transform.
    roundings: int = field(init=False)

    def __post_init__(self) -> None:
        self._hold_sizes(np.bincount(self.labels).astype(np.float64))

    def _hold_sizes(self, sizes: Array) -> None:
        largest = int(sizes.max())
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "roundings", 8 * largest.bit_length() if self.turning else largest + 2)

    @classmethod
    def of(cls, queries: Sequence[Workload | None], size: int) -> AttributeSymmetry:
        """Find the symmetry of query sets over `size` values; None stands for the values themselves.

        Raises `InvalidInputError` for too many values, or queries of too many entries to search.
        """
        if size > MAX_VALUES:
            raise GeometryError(f"attributes of a union must have at most {MAX_VALUES} values, got {size}")
        stored = [query for query in queries if query is not None and not query.circular]
        if sum(workload.shape[0] * size for workload in stored) > MAX_ENTRIES:
            raise GeometryError(
                f"queries of one attribute must have at most {MAX_ENTRIES} entries in all to be searched for symmetries"
            )
        circular = any(query is not None and query.circular for query in queries)
        sets = [workload.dense() + 0.0 for workload in stored]
        if circular and size > 3 and all(_rotation_invariant(rows) for rows in sets):
            return cls._cyclic(size)
        sets += [query.dense() + 0.0 for query in queries if query is not None and query.circular]
        labels = _exchangeable(sets, size)
        if 3 < size == labels.max() + 1 and all(_rotation_invariant(rows) for rows in sets):
            return cls._cyclic(size)
        counts = np.bincount(labels)
        classes = np.flatnonzero(counts > 1)
        return cls(labels, classes, np.asarray(counts[classes], dtype=np.float64) - 1, False)

    @classmethod
    def _cyclic(cls, size: int) -> AttributeSymmetry:
        frequencies = np.arange(1, size // 2 + 1)
        dimensions = np.where(2 * frequencies == size, 1.0, 2.0)
        return cls(np.zeros(size, dtype=np.intp), np.zeros(len(frequencies), dtype=np.intp), dimensions, True)

    def parts(self, queries: Workload | None) -> Parts:
        """Return the parts of a query set in the components."""
        if self.turning:
            return self._fourier_parts(queries)
        if queries is None:
            return self._value_parts()
        matrix = queries.dense() + 0.0
        sizes = self.sizes
        _, first, orbits = np.unique(
            _canonical_rows(matrix, self.labels), axis=0, return_index=True, return_inverse=True
        )
        rows = matrix[first]
        members = self.labels == np.arange(len(sizes))[:, None]
        means = rows @ (members.T / sizes)
        # Where entries cancel, or are all equal, the rounding error would pass for a need of noise.
        means[np.abs(means) <= self.roundings * EPS * (np.abs(rows) @ (members.T / sizes))] = 0.0
        representative = np.argmax(members, axis=1)[self.labels]
        squares = (rows - means[:, self.labels]) ** 2 @ members.T[:, self.classes]
        varied = (rows != rows[:, representative]) @ members.T[:, self.classes]
        component_norms = np.sqrt(np.where(varied, squares, 0.0) * self.dimensions / sizes[self.classes])
        return Parts(orbits.ravel(), means, component_norms, np.abs(rows).max(axis=1))

    def directions(self, component: int) -> Array:
        """Return orthonormal columns (n, mult) that span a component."""
        size, count = len(self.labels), int(self.dimensions[component])
        if self.turning:
            angles = 2 * np.pi * (component + 1) * np.arange(size) / size
            waves = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, :count]
            return np.asarray(waves * np.sqrt(count / size))
        columns = np.zeros((size, count))
        columns[self.labels == self.classes[component]] = scipy.linalg.helmert(count + 1).T
        return columns

    def _value_parts(self) -> Parts:
        """Return the parts of the values themselves, one orbit per class, without writing a matrix."""
        sizes = self.sizes
        inside = self.classes == np.arange(len(sizes))[:, None]
        return Parts(
            self.labels, np.diag(1 / sizes), inside * (self.dimensions / sizes[self.classes]), np.ones(len(sizes))
        )

    def _fourier_parts(self, queries: Any) -> Parts:
        """Return the parts on a circle: the absolute values of each orbit's Fourier coefficients."""
        size = len(self.labels)
        if queries is None:
            rows, orbits = np.eye(1, size), np.zeros(size, dtype=np.intp)
        elif queries.circular:
            rows, orbits = queries.bases, np.repeat(np.arange(len(queries.bases)), queries.periods)
        else:
            written = queries.dense() + 0.0
            # Queries that turning takes to no others of theirs, as a mechanism may be asked, stand for themselves.
            index = np.arange(len(written))
            orbits, first = _rotation_orbits(written) if _rotation_invariant(written) else (index, index)
            rows = written[first]
        waves = np.abs(np.fft.rfft(rows, axis=1))
        largest = np.abs(rows).max(axis=1)
        means = rows.mean(axis=1, keepdims=True)
        # A frequency that a query lacks has rounding errors left, which would pass for a need of noise.
        waves[waves <= self.roundings * EPS * np.linalg.norm(rows, axis=1, keepdims=True)] = 0.0
        means[np.abs(means) <= self.roundings * EPS * np.abs(rows).mean(axis=1, keepdims=True)] = 0.0
        return Parts(orbits, means, waves[:, 1:] * self.dimensions / size, largest)


def _exchangeable(sets: Sequence[Array], size: int) -> Index:
    """Return the classes of values any two of which may be swapped in every query set, numbered as they appear.

    Swappability is transitive, so each value is compared with one value of every class.
    """
    labels, representatives = np.zeros(size, dtype=np.intp), [0]
    if not sets:
        return labels
    looks = _value_labels(sets, size)
    known: dict[int, list[int]] = {int(looks[0]): [0]}
    for value in range(1, size):
        alike = known.setdefault(int(looks[value]), [])
        number = next((candidate for candidate in alike if _swappable(sets, representatives[candidate], value)), None)
        if number is None:
            alike.append(len(representatives))
            number = len(representatives)
            representatives.append(value)
        labels[value] = number
    return labels


def _value_labels(sets: Sequence[Array], size: int) -> Index:
    """Return a number for each value that swappable values share: its entries in all sets, order and signs left out."""
    columns = [np.sort(np.abs(rows), axis=0) for rows in sets]
    return np.unique(np.vstack(columns), axis=1, return_inverse=True)[1].ravel()


def _swappable(sets: Sequence[Array], one: int, two: int) -> bool:
    for rows in sets:
        affected = rows[rows[:, one] != rows[:, two]]
        swapped = affected.copy()
        swapped[:, [one, two]] = affected[:, [two, one]]
        if not _same_queries(affected, swapped):
            return False
    return True


def _rotation_invariant(queries: Array) -> bool:
    return _same_queries(queries, np.roll(queries, 1, axis=1))


def _same_queries(one: Array, two: Array) -> bool:
    """Whether two matrices hold the same rows, as often, up to their order and signs."""
    first, second = (Counter(row.tobytes() for row in with_positive_lead(rows)) for rows in (one, two))
    return first == second


def with_positive_lead(rows: Array) -> Array:
    first = np.argmax(rows != 0, axis=1)
    signs = np.sign(rows[np.arange(len(rows)), first])
    return np.asarray(rows * np.where(signs == 0, 1.0, signs)[:, None] + 0.0)


def _canonical_rows(rows: Array, labels: Index) -> Array:
    """Return a canonical form of each query, the same for all that exchanges and signs take to each other."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    both = []
    for sign in (1.0, -1.0):
        signed = sign * rows[:, order] + 0.0
        for start, stop in zip(starts, [*starts[1:], len(labels)], strict=True):
            signed[:, start:stop] = np.sort(signed[:, start:stop], axis=1)
        both.append(signed)
    first = np.argmax(both[0] != both[1], axis=1)
    rows_at = np.arange(len(rows))
    larger = both[0][rows_at, first] >= both[1][rows_at, first]
    return np.where(larger[:, None], both[0], both[1])


def _rotation_orbits(queries: Array) -> tuple[Index, Index]:
    distinct, first, labels = np.unique(with_positive_lead(queries), axis=0, return_index=True, return_inverse=True)
    count = len(distinct)
    turned = np.unique(
        np.vstack([distinct, with_positive_lead(np.roll(distinct, 1, axis=1))]), axis=0, return_inverse=True
    )[1]
    number = turned.ravel()
    origin = np.empty(count, dtype=np.intp)
    origin[number[:count]] = np.arange(count)
    orbits = orbit_labels([origin[number[count:]]], count)
    chosen = np.unique(orbits, return_index=True)[1]
    return orbits[labels.ravel()], first[chosen]


def orbit_labels(images: Sequence[Index], count: int) -> Index:
    """Return the orbit of each item, numbered as they appear, under maps that take items to items."""
    rows = np.concatenate([np.zeros(0, dtype=np.intp), *[np.arange(count)] * len(images)])
    columns = np.concatenate([np.zeros(0, dtype=np.intp), *images])
    links = coo_array((np.ones(len(rows)), (rows, columns)), shape=(count, count))
    labels = csgraph.connected_components(links, directed=False)[1]
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.ravel()].astype(np.intp)
