"""Workloads over attributes: the cells of tables, the PL-94 redistricting tables, age pyramids."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

RACES = (
    "White",
    "Black or African American",
    "American Indian and Alaska Native",
    "Asian",
    "Native Hawaiian and Other Pacific Islander",
    "Some Other Race",
)
"""The races of PL-94; a person reports one or more of them."""

RACE_SETS = tuple(sets for size in range(1, len(RACES) + 1) for sets in itertools.combinations(RACES, size))
"""The 63 values of race: single ones first, then pairs, triples, and so on."""

ADULT_AGE = 18

MAX_ENTRIES = 2**26
"""Maximum number of non-zero entries of these workloads (2 to 3 GB while they are built)."""

DomainLike = Domain | Mapping[str, int] | Iterable[tuple[str, int]] | Sequence[int]


def check_size(domain: Domain, tables: int) -> None:
    """Refuse more than `MAX_ENTRIES` non-zero entries in the tables of a domain."""
    if tables * domain.cells > MAX_ENTRIES:
        exponent = domain.cells.bit_length() - 1
        raise InvalidInputError(
            f"marginals of a domain of 2^{exponent} or more cells are too large for a dense matrix "
            f"(limit {MAX_ENTRIES} non-zero entries in all)"
        )


def pl94() -> Workload:
    """Ask what redistricting asks: 319 queries over the 2 x 2 x 63 = 252 cells of PL 94-171.

    The cells are voting age (17 or under, 18 or over) x ethnicity (not Hispanic, Hispanic) x race, where a
    race value is one of the 63 non-empty subsets of the six races: the single ones come first (codes 0 to
    5), then pairs, triples, and so on. The queries are the voting-age marginal (2), the ethnicity marginal
    (2), single races (6), each combination of two or more races (57), and all cells (252); every such
    table is a group. Sparse.
    Source: FFU, section 7.3.

    Examples
    --------
    >>> import dualmech as dm
    >>> tables = dm.workloads.pl94()
    >>> tables.shape, tables.domain.shape
    ((319, 252), (2, 2, 63))
    >>> tables.names[0], tables.names[4], tables.names[10]
    ('17 or under', 'White', 'White + Black or African American')
    """
    labels = {
        "voting-age": [f"{ADULT_AGE - 1} or under", f"{ADULT_AGE} or over"],
        "ethnicity": ["not Hispanic", "Hispanic"],
        "race": [" + ".join(sets) for sets in RACE_SETS],
    }
    domain = Domain({name: len(values) for name, values in labels.items()})
    names = [value for values in labels.values() for value in values]
    names += [", ".join(values) for values in itertools.product(*labels.values())]
    groups = ["voting-age"] * 2 + ["ethnicity"] * 2 + ["one race"] * len(RACES)
    groups += ["two or more races"] * (len(RACE_SETS) - len(RACES)) + [" x ".join(labels)] * domain.cells
    return Workload(_partitions(domain, [(0,), (1,), (2,), (0, 1, 2)]), names, groups, domain)


def age_pyramid(ages: int = 116, adults: bool = True) -> Workload:
    """Ask for the age distribution of males, of females, and of all: 351 queries over 2 x 116 cells.

    For each of the three: how many are of age 0 to x, for every x, and, with `adults`, how many are 18 or
    over. Cells are gender (males, females) x age in years; 3 `ages` + 3 queries, or 3 `ages` without
    `adults`. Sparse.
    Raises `InvalidInputError` or `InputTypeError` for `ages` below 1, or too few for an age of 18 while
    `adults` are asked for.
    Source: FFU, section 7.6.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.age_pyramid().shape, dm.workloads.age_pyramid(adults=False).shape
    ((351, 232), (348, 232))
    >>> dm.workloads.age_pyramid().names[115:118]
    ('males, age 0-115', 'males, age 18-115', 'females, age 0')
    """
    count = validate.size(ages=ages)
    if validate.boolean(adults=adults) and count <= ADULT_AGE:
        raise InvalidInputError(f"ages must exceed {ADULT_AGE} where adults are asked for, got {count}")
    if 2 * count**2 > MAX_ENTRIES:
        raise InvalidInputError(f"ages must be at most {math.isqrt(MAX_ENTRIES // 2)}, got {count}")
    spans = [(0, age) for age in range(count)] + ([(ADULT_AGE, count - 1)] if adults else [])
    age = np.arange(count)
    ranges = sp.csr_array(np.array([(first <= age) & (age <= last) for first, last in spans], dtype=np.float64))
    people = {"males": [[1, 0]], "females": [[0, 1]], "all": [[1, 1]]}
    matrix = sp.vstack([sp.kron(sp.csr_array(group), ranges) for group in people.values()], format="csr")
    matrix.eliminate_zeros()  # the Kronecker product stores some
    names = [f"{group}, age {a}-{b}" if a < b else f"{group}, age {a}" for group in people for a, b in spans]
    groups = [group for group in people for _ in spans]
    return Workload(matrix, names, groups, Domain({"gender": 2, "age": count}))


def _partitions(domain: Domain, sets: Sequence[tuple[int, ...]]) -> sp.csr_array:
    """Return one block of rows per marginal; every cell of the domain lies in exactly one row of each."""
    codes, row, offset = domain.codes(), [], 0
    for axes in sets:
        shape = tuple(domain.shape[axis] for axis in axes)
        index = np.ravel_multi_index(tuple(codes[list(axes)]), shape) if axes else np.zeros(domain.cells, int)
        row.append(offset + index)
        offset += int(np.prod(shape, dtype=np.int64))
    rows, cells = np.concatenate(row), np.tile(np.arange(domain.cells), len(sets))
    return sp.csr_array((np.ones(len(rows)), (rows, cells)), shape=(offset, domain.cells))


def as_domain(domain: DomainLike) -> Domain:
    """Return a domain; a mapping of names to sizes is one, and sizes alone are of attributes ``a0, a1, …``."""
    if isinstance(domain, Domain):
        return domain
    if isinstance(domain, Mapping):
        return Domain(domain)
    try:
        items = [*domain]
    except TypeError as error:
        raise InputTypeError(
            f"domain must be a Domain, a mapping or a sequence of sizes, got {validate.shown(domain)}"
        ) from error
    if items and all(isinstance(item, int | np.integer) for item in items):
        return Domain([(f"a{axis}", size) for axis, size in enumerate(items)])
    return Domain(items)


def chosen_axes(
    domain: Domain,
    ways: int | Iterable[int] | None,
    sets: Iterable[str | Iterable[str]] | None,
    limit: Callable[[Domain, int], None] = check_size,
) -> list[tuple[int, ...]]:
    """Return the attributes' positions of every marginal asked for, by `ways` or by `sets`; refuse both.

    `limit` refuses a number of tables before they are listed: some domains have more of them than a list can hold. By
    default it is the largest number that can be written out.
    """
    if (ways is None) == (sets is None):
        raise InvalidInputError("marginals need exactly one of ways and sets")
    return _axes_of_ways(domain, ways, limit) if ways is not None else _axes_of_sets(domain, sets, limit)


def marginal_matrix(domain: Domain, sets: Sequence[tuple[int, ...]]) -> sp.csr_array:
    """Return the matrix of chosen marginals; refused above `MAX_ENTRIES` non-zero entries."""
    check_size(domain, len(sets))
    return _partitions(domain, sets)


def cell_names(domain: Domain, axes: tuple[int, ...]) -> list[str]:
    """Return the names of a table's cells, such as ``age=3, sex=1``; ``total`` without attributes."""
    attributes = [domain.names[axis] for axis in axes]
    codes = itertools.product(*(range(domain.shape[axis]) for axis in axes))
    return [", ".join(f"{a}={c}" for a, c in zip(attributes, code, strict=True)) or "total" for code in codes]


def _axes_of_ways(
    domain: Domain, ways: int | Iterable[int], limit: Callable[[Domain, int], None]
) -> list[tuple[int, ...]]:
    attributes = len(domain.names)
    checked = validate.sequence(ways=ways) if hasattr(ways, "__iter__") else (ways,)
    distinct = [validate.index(attributes + 1, ways=way) for way in checked]
    if not distinct or len(set(distinct)) != len(distinct):
        raise InvalidInputError(f"ways must be one or more distinct integers, got {distinct}")
    limit(domain, sum(math.comb(attributes, way) for way in distinct))
    return [axes for way in distinct for axes in itertools.combinations(range(attributes), way)]


def _axes_of_sets(
    domain: Domain, sets: Iterable[str | Iterable[str]] | None, limit: Callable[[Domain, int], None]
) -> list[tuple[int, ...]]:
    if isinstance(sets, str) or not isinstance(sets, Iterable):
        raise InputTypeError(f"sets must be a sequence of attribute names or of sets of them, got {sets!r}")
    entries = list(sets)
    for entry in entries:
        if not isinstance(entry, Iterable):
            raise InputTypeError(f"sets must hold attribute names or sets of them, got {entry!r}")
    limit(domain, len(entries))
    tables = [domain.axes(entry) for entry in entries]
    if not tables:
        raise InvalidInputError("sets must name at least one marginal, got none")
    for axes, count in Counter(tables).items():
        if count > 1:
            raise InvalidInputError(f"sets must differ, got {[domain.names[axis] for axis in axes]} twice")
    return tables
