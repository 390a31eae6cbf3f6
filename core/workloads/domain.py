"""Domains: attributes, numbering of cells, and the residual subspaces of marginal tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.validate import Array, boolean, composed, index, instance, sequence, shown, size

if TYPE_CHECKING:
    from dualmech.workloads.base import Workload

MAX_CELLS = 2**31  # whose indices are enumerated


@dataclass(frozen=True, slots=True)
class Domain:
    """Attribute names and sizes; cells are numbered in row-major order, the last attribute fastest.

    Raises `InvalidInputError` or `InputTypeError` for no attribute, a repeated name, or a size that is not an
    integer of at least 1.

    Parameters
    ----------
    sizes : mapping or iterable of (name, size)
        How many values each attribute takes. Declare it, never read it off the data.

    Examples
    --------
    >>> from dualmech import Domain
    >>> domain = Domain({"age": 74, "sex": 2})
    >>> domain.names, domain.shape, domain.cells
    (('age', 'sex'), (74, 2), 148)
    >>> domain.cell(age=3, sex=1)
    7
    """

    sizes: tuple[tuple[str, int], ...]
    # names, shape: of the attributes, in order
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    shape: tuple[int, ...] = field(init=False, repr=False, compare=False)
    # the columns of records that the attributes read, one each; several may read one column
    sources: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __init__(self, sizes: Mapping[str, int] | Iterable[tuple[str, int]]) -> None:
        items = sizes.items() if isinstance(sizes, Mapping) else sizes
        try:
            pairs = [(name, count) for name, count in items]
        except (TypeError, ValueError) as error:
            raise InputTypeError(
                "domain must map attribute names to sizes, for example {'age': 74, 'sex': 2}"
            ) from error
        checked = tuple((composed(str(name)), size(**{f"domain size of {name!r}": count})) for name, count in pairs)
        names = [name for name, _ in checked]
        if not names or len(set(names)) != len(names):
            raise InvalidInputError(f"domain must have one or more attributes of distinct names, got {names}")
        object.__setattr__(self, "sizes", checked)
        object.__setattr__(self, "names", tuple(names))
        object.__setattr__(self, "shape", tuple(count for _, count in checked))
        object.__setattr__(self, "sources", self.names)

    @property
    def cells(self) -> int:
        """Number of cells d, the product of the sizes (an exact integer, however large)."""
        return math.prod(self.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and composed(name) in self.names

    def axes(self, attributes: Iterable[str]) -> tuple[int, ...]:
        """Return the positions of the named attributes, in the domain's own order."""
        items = (attributes,) if isinstance(attributes, str) else sequence(attributes=attributes)
        names = tuple(composed(name) if isinstance(name, str) else name for name in items)
        unknown = [name for name in names if not isinstance(name, str) or name not in self.names]
        if unknown:
            hint = did_you_mean(unknown[0], self.names)
            raise InvalidInputError(f"attribute {unknown[0]!r} is not in the domain {list(self.names)}{hint}")
        if len(set(names)) != len(names):
            raise InvalidInputError(f"attributes must be distinct, got {names}")
        return tuple(sorted(self.names.index(name) for name in names))

    @property
    def impossible(self) -> tuple[Mapping[int, Sequence[int]], ...]:
        """Impossible combinations, such as pregnant men: codes by position, which no record has together."""
        return ()

    def possible(self) -> npt.NDArray[np.bool_] | None:
        """Return which cells (d,) are possible, None if all are.

        Raises `InvalidInputError` for too many cells to enumerate.
        """
        if not self.impossible:
            return None
        codes = self.codes()
        possible = np.ones(self.cells, dtype=bool)
        for combination in self.impossible:
            possible &= ~np.all([np.isin(codes[axis], values) for axis, values in combination.items()], axis=0)
        return possible

    @property
    def canonical(self) -> str:
        """A text that is the same for equal domains."""
        return repr(self.sizes)

    @property
    def schema_text(self) -> str | None:
        """The JSON of a `dualmech.Schema`, for files; None for a plain domain."""
        return None

    @classmethod
    def joined(cls, domains: Sequence[Domain]) -> Domain:
        """Return the domain of all attributes of several domains, in order."""
        checked = [
            instance(Domain, **{f"domains[{place}]": domain}) for place, domain in enumerate(sequence(domains=domains))
        ]
        return cls([pair for domain in checked for pair in domain.sizes])

    def query_set(self, axis: int, ask: object, alone: bool = False) -> Workload | None:
        """Return the queries on an attribute that a question (words, values, named rows) means; None for its values.

        - `alone`: whether the table asks of no other attribute.

        A domain has only codes and understands only ``"values"``; a `dualmech.Schema` understands more.
        """
        axis, _ = index(len(self.sizes), axis=axis), boolean(alone=alone)
        if isinstance(ask, str) and ask == "values":
            return None
        raise InvalidInputError(
            f"ask of {self.names[axis]!r} must be a workload, None or 'values', got {shown(ask)}: other words and "
            f"values need a dualmech.Schema"
        )

    def cell(self, **codes: int) -> int:
        """Return the index of the cell with one code for each attribute."""
        codes = {composed(name): code for name, code in codes.items()}
        if set(codes) != set(self.names):
            raise InvalidInputError(f"codes must name each of {list(self.names)} once, got {sorted(codes)}")
        cell = 0
        for name, count in self.sizes:
            cell = cell * count + index(count, **{name: codes[name]})
        return cell

    def codes(self) -> npt.NDArray[np.int64]:
        """Return the codes of all cells, shape (attributes, d)."""
        if self.cells > MAX_CELLS:
            raise InvalidInputError(f"domain of {count_text(self.cells)} cells is too large to enumerate")
        return np.stack(np.unravel_index(np.arange(self.cells), self.shape)).astype(np.int64)


def are_positions(axes: object, count: int) -> bool:
    """Return whether axes are a tuple of increasing positions below a count."""
    last = -1
    for axis in axes if isinstance(axes, tuple) else (None,):
        if not isinstance(axis, int) or not last < axis < count:
            return False
        last = axis
    return True


def count_text(count: int, digits: int = 3) -> str:
    """Return a positive integer of any size to a few digits.

    Examples
    --------
    >>> count_text(1_136_640, 6), count_text(17**500)
    ('1.13664e+06', '1.68e+615')
    """
    if count < 10**300:
        return f"{float(count):.{digits}g}"
    exponent = math.floor(math.log10(count))
    return f"{10 ** (math.log10(count) - exponent):.{digits}g}e+{exponent}"


# The residual subspaces of a domain, of which its marginal tables are sums.


Axes = tuple[int, ...]  # positions of a set of attributes in their domain, in increasing order

MAX_SUBSPACES = 2**22
"""Maximum number of residual subspaces, counted once for every table."""


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """The residual subspaces of tables, and the incidence of subspaces and tables.

    The functions of the cells that depend only on the attributes T, and sum to 0 over each of them, form the residual
    subspace of T, of dimension ``Π_{i in T} (n_i - 1)``. The subspaces are orthogonal, and the queries of the table S
    span the subspaces of all ``T ⊆ S``.
    """

    axes: tuple[Axes, ...]  # the attributes T of each subspace of positive dimension
    dimensions: Array  # (t,) mult_T
    incidence: sp.csr_array  # (t, tables) 1 where ``T ⊆ S``

    @classmethod
    def under(cls, domain: Domain, tables: Iterable[Axes]) -> Lattice:
        """List the subspaces of tables; attributes of one value add none.

        Raises `InvalidInputError` for more than `MAX_SUBSPACES`, counted once per table.
        """
        sizes = domain.shape
        sets = [tuple(axis for axis in axes if sizes[axis] > 1) for axes in tables]
        if sum(2 ** len(axes) for axes in sets) > MAX_SUBSPACES:
            raise InvalidInputError(
                f"tables have more than {MAX_SUBSPACES} residual subspaces in all, too many to list"
            )
        places: dict[Axes, int] = {}
        rows, columns = [], []
        for column, axes in enumerate(sets):
            for count in range(len(axes) + 1):
                for subset in itertools.combinations(axes, count):
                    rows.append(places.setdefault(subset, len(places)))
                    columns.append(column)
        dimensions_per_attribute = np.array(sizes, dtype=np.float64) - 1
        dimensions = np.array([dimensions_per_attribute[list(axes)].prod() for axes in places])
        incidence = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(places), len(sets)))
        return cls(tuple(places), dimensions, incidence)
