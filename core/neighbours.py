"""Builders of neighbour matrices: which data sets privacy must keep apart.

The columns u_1 … u_s of U (d, s) are the differences of neighbouring data vectors up to sign. The squared
privacy cost of a mechanism with cost matrix ``C = B' Σ⁻¹ B`` is ``max_i u_i' C u_i``, the maximum over pairs
of neighbours in Theorem 3 of Xiao, Ding, Wang, Zhang and Kifer, PVLDB 14(10), 2021. Since ``z' C z`` is
convex and even in z, its maximum over a polytope is at a vertex, and of two opposite vertices one is enough;
this keeps s small below. Every builder returns a scipy sparse CSC matrix, to pass as `neighbours`.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain, count_text

# Neighbours that differ by one record, or by the records of one household, added, removed or replaced.


MAX_ENTRIES = 2**27  # largest number of non-zero entries that a builder writes out (2 GB)
MAX_MEMBERS = 2**53  # largest number of records of one household, that float64 still counts exactly


def add_or_remove(d: int) -> sp.csc_array:
    """Neighbours differ by one record added or removed: ``U = I``, (d, d), the default of every problem.

    One record in cell i changes the data vector by ``± e_i``; these are all the differences.
    Raises `InvalidInputError` or `InputTypeError` where `d` is not an integer of at least 1, or too large.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.add_or_remove(2).toarray()
    array([[1., 0.],
           [0., 1.]])
    """
    return _units(d, 1)


def replace_one(d: int) -> sp.csc_array:
    """Neighbours differ by the value of one record: the columns ``e_u - e_v``, u < v; (d, d (d - 1) / 2).

    A record that moves from cell v to cell u changes the data vector by ``e_u - e_v``, and moving it back
    changes only the sign. Every column sums to 0, so the total costs nothing.
    Raises `InvalidInputError` or `InputTypeError` where `d` is not an integer of at least 2 (in one cell nothing
    can be replaced), or too large.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.replace_one(3).toarray()
    array([[ 1.,  1.,  0.],
           [-1.,  0.,  1.],
           [ 0., -1., -1.]])
    """
    return _swaps(d, 1)


def household(d: int, members: int, replace: bool = False) -> sp.csc_array:
    """Neighbours differ by a household, a person or a device with at most `members` records, in any cells.

    Without `replace`, its records join or leave, so the difference z has ``Σ_i |z_i| <= members``: it lies
    in the convex hull of ``± members e_i``, where the cost is greatest at a vertex, and each vertex is
    itself such a difference, all records being in cell i. So ``U = members I``, (d, d).

    With `replace`, up to `members` records change their cells, and z is a sum of at most `members`
    differences ``e_u - e_v``: the mean of that many vectors ``members (e_u - e_v)`` and zeros, so again the
    cost is greatest where all records make the same move. U is (d, d (d - 1) / 2).
    Raises `InvalidInputError` or `InputTypeError` where `d` or `members` is not an integer of at least 1 (`d` of at
    least 2 with `replace`), or too large.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.household(2, members=3).toarray()
    array([[3., 0.],
           [0., 3.]])
    >>> dm.neighbours.household(2, members=3, replace=True).toarray()
    array([[ 3.],
           [-3.]])
    """
    count = as_members(members=members)
    return _swaps(d, count) if validate.boolean(replace=replace) else _units(d, count)


def compositions(d: int, groups: Iterable[Iterable[int]]) -> sp.csc_array:
    """Neighbours differ by one of the listed households, whose records join or leave together; (d, s).

    A household with n_i records in cell i changes the data vector by ``± Σ_i n_i e_i`` when all of it joins
    or leaves, and the list says which households there can be: these are all the differences. A part that
    can leave alone is no convex combination of the others in general; it must be listed too.
    Raises `InvalidInputError` or `InputTypeError` for no household, one without records, a cell that is not an
    integer from 0 to d - 1.

    Parameters
    ----------
    d : int
        Number of cells.
    groups : iterable of iterables of ints
        Each household by the cells of its records, a cell repeated as often as it has records in it.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.compositions(3, [(0, 0, 2), (1,)]).toarray()
    array([[2., 0.],
           [0., 1.],
           [1., 0.]])
    """
    cells = validate.size(d=d)
    check_entries(cells)
    given = validate.sequence(groups=groups)
    columns = [_household(group, cells, f"groups[{index}]") for index, group in enumerate(given)]
    if not columns:
        raise InvalidInputError("groups must hold at least one household, got none")
    rows = np.concatenate(columns)
    owners = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    # Repeated cells add up when the coordinates are compressed.
    return sp.csc_array((np.ones(len(rows)), (rows, owners)), shape=(cells, len(columns)))


def _household(group: Iterable[int], cells: int, name: str) -> npt.NDArray[np.int64]:
    members = validate.sequence(**{name: group})
    if not members:
        raise InvalidInputError(f"{name} must have at least one record, got none")
    for cell in members:
        if isinstance(cell, bool | np.bool_) or not isinstance(cell, int | np.integer):
            raise InputTypeError(f"{name} must hold integers, got {cell!r}")
        if not 0 <= cell < cells:
            raise InvalidInputError(f"{name} must hold cells from 0 to {cells - 1}, got {cell}")
    return np.array(members, dtype=np.int64)


def as_members(**named: int) -> int:
    """Return a number of records that float64 counts exactly."""
    ((name, given),) = named.items()
    count = validate.size(**{name: given})
    if count > MAX_MEMBERS:
        raise InvalidInputError(f"{name} must be at most {MAX_MEMBERS}, got {count}")
    return count


def _units(d: int, size: int) -> sp.csc_array:
    cells = validate.size(d=d)
    check_entries(cells)
    return sp.csc_array(sp.diags_array(np.full(cells, float(size)), format="csc"))


def _swaps(d: int, size: int) -> sp.csc_array:
    cells = validate.size(d=d)
    if cells < 2:
        raise InvalidInputError(f"d must be at least 2 for a record to be replaced, got {cells}")
    pairs = cells * (cells - 1) // 2
    check_entries(2 * pairs)
    entries = np.stack(np.triu_indices(cells, k=1), axis=1).ravel()
    signs = np.tile([float(size), -float(size)], pairs)
    return sp.csc_array((signs, entries, 2 * np.arange(pairs + 1)), shape=(cells, pairs))


def check_entries(entries: int) -> None:
    """Refuse more non-zero entries than are written out."""
    if entries > MAX_ENTRIES:
        raise InvalidInputError(f"neighbours of {entries} non-zero entries are too many (limit {MAX_ENTRIES})")


# Neighbours that differ by one person with several records: in some groups of cells, or in some steps of a stream.


MOST_SIGNS = 30  # participations of one person up to which the number of their signs is counted


def contributions(d: int, groups: npt.ArrayLike, records: int, most: int) -> sp.csc_array:
    """Neighbours differ by one person with up to `records` records in each of up to `most` groups of cells; (d, s).

    Groups are, say, the months that a person may be in: every cell is in one, and the person joins or leaves with all
    her records, so that the difference z has no entries of both signs, at most `records` in a group, and at most `most`
    groups. The cost is convex in her records of a group, so it is greatest where she has none in the group, or all of
    them in one cell: each column has `records` in one cell of each of up to `most` groups. ``N = records · most``
    records anywhere, ``add-remove:N`` on tables of any size, bound this cost. Where groups do not share noise, it is
    far below the bound. That bound is at most `most` squared times their cost, since `records` in one cell are a
    difference, too. Where groups are the values of an attribute, tables of many sizes need no bound:
    ``contributions:ATTRIBUTE:RECORDS:GROUPS`` (`dualmech.neighbours.Contributions`).
    Raises `InvalidInputError` or `InputTypeError` for numbers that are no integers of at least 1, another number of
    groups than cells, more columns than can be written out.

    Parameters
    ----------
    d : int
        Number of cells.
    groups : (d,) array
        The group of each cell, by any numbers or texts.
    records, most : int
        The most records of a person in a group, and the most groups that she is in.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.contributions(4, ["jan", "jan", "feb", "feb"], records=2, most=2).shape
    (4, 8)
    """
    cells, count = validate.size(d=d), as_members(records=records)
    try:
        labels = np.asarray(groups)
    except ValueError as error:
        raise InvalidInputError(
            f"groups must have {cells} entries, one per cell, got {validate.shown(groups)}"
        ) from error
    if labels.shape != (cells,) or labels.dtype.names:
        raise InvalidInputError(f"groups must have {cells} entries, one per cell, got shape {labels.shape}")
    members = [np.flatnonzero(labels == label).tolist() for label in dict.fromkeys(labels.tolist())]
    together = min(validate.size(most=most), len(members))
    columns = ways_to_contribute([len(own) for own in members], together)
    if columns * together > MAX_ENTRIES:
        raise InvalidInputError(
            f"{columns:.3g} ways to be in up to {together} groups are too many to write out; add-remove:"
            f"{count * together} bounds them all"
        )
    chosen = [
        cell
        for number in range(1, together + 1)
        for several in itertools.combinations(members, number)
        for cell in itertools.product(*several)
    ]
    rows = np.array([cell for cells_of in chosen for cell in cells_of], dtype=np.intp)
    owners = np.repeat(np.arange(len(chosen)), [len(cells_of) for cells_of in chosen])
    return sp.csc_array((np.full(len(rows), float(count)), (rows, owners)), shape=(cells, len(chosen)))


def sign_patterns(n: int, times: int, separation: int, signs: npt.ArrayLike | None = None) -> sp.csc_array:
    """Neighbours differ by a person with a part in at most `times` steps, `separation` apart: every sign; (n, s).

    A person adds between -1 and 1 to a step, as in training over several epochs in one order (C. Choquette-Choo,
    McMahan, Rush and Thakurta, ICML 2023). The cost is greatest where every part is -1 or 1, and all signs count: for
    plus alone the total variance of 64 prefixes in four epochs would seem to be 752, and it is 1,243, since noise may
    cancel along the signs that were left out. Columns are the signs of every start, the first of them plus:
    ``2^(times - 1)``. `participation` states the same persons, and such as add vectors, without columns, for many
    epochs. `LinearGaussianMechanism.participation_cost` bounds the cost under every sign without them.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are no integers of at least 1, more columns than can
    be written out, signs that are not -1 or 1.

    Parameters
    ----------
    n, times, separation : int
        Steps, the most in which one person takes part, and how far apart.
    signs : (r, times) array, optional
        Only these signs: the optimum for fewer neighbours is a bound for all, and no more.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.sign_patterns(4, times=2, separation=2).toarray()
    array([[ 1.,  1.,  0.,  0.],
           [ 0.,  0.,  1.,  1.],
           [ 1., -1.,  0.,  0.],
           [ 0.,  0.,  1., -1.]])
    """
    steps, most = validate.size(n=n), validate.size(times=times)
    apart = validate.size(separation=separation)
    most = min(most, -(-steps // apart))
    whole = (
        steps - (most - 1) * apart
    )  # starts after which there are steps for all parts; later ones have one part less
    starts = max(whole, min(apart, steps))
    if signs is None:
        check_entries(starts * most * 2 ** (min(most, MOST_SIGNS) - 1))
        patterns = np.array([*itertools.product((1.0, -1.0), repeat=most - 1)]).reshape(2 ** (most - 1), most - 1)
        patterns = np.hstack([np.ones((len(patterns), 1)), patterns])
    else:
        patterns = validate.finite(2, signs=signs)
        if patterns.shape[1] != times or np.any(np.abs(patterns) != 1):
            raise InvalidInputError(f"signs must be rows of {times} numbers -1 or 1, got {patterns.shape}")
        patterns = patterns[:, :most]
        check_entries(starts * patterns.size)
    groups = [(np.arange(whole), patterns)]
    if starts > whole:  # where signs come several times
        groups.append((np.arange(whole, starts), -np.unique(-patterns[:, :-1], axis=0)))
    parts = [_columns(own, kept, apart) for own, kept in groups]
    rows, entries, lengths = (np.concatenate(each) for each in zip(*parts, strict=True))
    return sp.csc_array((entries, rows, np.r_[0, np.cumsum(lengths)]), shape=(steps, len(lengths)))


def _columns(
    starts: npt.NDArray[np.intp], patterns: Array, apart: int
) -> tuple[npt.NDArray[np.intp], Array, npt.NDArray[np.intp]]:
    """Return rows, entries and numbers of entries of the columns that begin at these starts, with every pattern."""
    count, parts = patterns.shape
    taken = starts[:, None, None] + apart * np.arange(parts)
    rows = np.broadcast_to(taken, (len(starts), count, parts)).ravel()
    return rows, np.tile(patterns.ravel(), len(starts)), np.full(len(starts) * count, parts)


def ways_to_contribute(sizes: list[int], most: int) -> float:
    """Return in how many ways one can be chosen from each of up to `most` groups of these sizes."""
    ways = [1.0] + [0.0] * most
    for size in sizes:
        for number in range(most, 0, -1):
            ways[number] += ways[number - 1] * size
    return sum(ways[1:])


# Neighbours by a rule, for domains of any size, and every other form of neighbours.


MANY = 2**32  # more differences than are written out

NAMES = ("add-remove", "replace", "contributions")

DIFFERENCES = "differences:"  # the beginning of a matrix's canonical text

NeighboursLike: TypeAlias = "str | Relation | Matrix | npt.ArrayLike | None"
"""Neighbours in all their forms: words, a rule, differences by column, or None for one record more or less."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Neighbours by a rule, for domains of any size: one person's records, added or removed, or replaced.

    Attributes
    ----------
    replace : bool
        Whether records change their cells, with the number of records unchanged.
    members : int
        The most records that one person holds.
    """

    replace: bool = False
    members: int = 1

    def __post_init__(self) -> None:
        validate.boolean(replace=self.replace)
        as_members(members=self.members)

    @classmethod
    def of(cls, text: str) -> Relation:
        """Return the relation that ``replace``, ``add-remove:3`` or ``contributions:month:2:3`` stands for.

        Raises `InvalidInputError` for another text.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.neighbours.Relation.of("replace:3")
        Relation(replace=True, members=3)
        """
        name, colon, rest = validate.text(text=text).partition(":")
        if name == "contributions":
            attribute, *numbers = rest.rsplit(":", 2)
            counts = [validate.whole(number) or 0 for number in numbers]
            if attribute and len(counts) == 2 and all(counts):
                return Contributions(counts[0], attribute=attribute, groups=counts[1])
        elif name in NAMES:
            if members := validate.whole(rest) if colon else 1:
                return Relation(name == "replace", members)
            raise InvalidInputError(
                f"neighbours must be {name} or {name}:RECORDS, a whole number of at least 1, got {text!r}"
            )
        raise InvalidInputError(
            "neighbours must be add-remove, replace, add-remove:RECORDS, replace:RECORDS, "
            f"contributions:ATTRIBUTE:RECORDS:GROUPS or a matrix, got {text!r}{did_you_mean(name, NAMES)}"
        )

    @classmethod
    def matching(cls, differences: Matrix) -> Relation | None:
        """Return the relation whose `matrix` this is, None where there is none.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.neighbours.Relation.matching(dm.neighbours.replace_one(3))
        Relation(replace=True, members=1)
        """
        differences = validate.matrix(differences=differences)
        cells, pairs = differences.shape
        members = float(abs(differences).max())
        if not (1 <= members <= MAX_MEMBERS and members.is_integer()):
            return None
        for relation in (Relation(False, int(members)), Relation(True, int(members))):
            if pairs == (cells * (cells - 1) // 2 if relation.replace else cells) > 0:
                own = household(cells, relation.members, relation.replace)
                if abs(own - sp.csc_array(differences)).max() == 0:
                    return relation
        return None

    @property
    def several_cells(self) -> bool:
        """Whether neighbours differ in several cells at once, so that there are kinds of pairs of cells."""
        return self.replace

    @property
    def reach(self) -> int:
        """How many records neighbours differ by, those that leave a cell and those that enter one."""
        return self.members * (2 if self.replace else 1)

    @property
    def farthest(self) -> float:
        """Largest squared length of a difference."""
        return (2.0 if self.replace else 1.0) * self.members**2

    def contains(self, other: Relation) -> bool:
        """Whether noise that is enough for these neighbours is enough for the others, on any cells.

        A relation contains the relations of its kind with fewer records. Records added or removed contain every
        relation of no larger reach: by the triangle inequality, several records cost the most in one cell.

        Examples
        --------
        >>> import dualmech as dm
        >>> three, replaced = dm.neighbours.Relation(members=3), dm.neighbours.Relation(replace=True)
        >>> three.contains(replaced), replaced.contains(three)
        (True, False)
        """
        validate.instance(Relation, other=other)
        if type(self) is Relation and not self.replace:
            return other.reach <= self.members
        return type(self) is type(other) and self.replace == other.replace and self.members >= other.members

    @property
    def words(self) -> str:
        """Return the difference of neighbours in words."""
        one = self.members == 1
        records = "one record" if one else f"up to {self.members} records of one person"
        if self.replace:
            return f"{records} {'has' if one else 'have'} other values"
        return f"{records} {'is' if one else 'are'} added or removed"

    def check(self, domain: Domain | None) -> None:
        """Refuse a domain without the rule's attribute."""

    def pairs(self, workload: Workload) -> int:
        """Return how many columns `matrix` has over the cells of a workload."""
        cells = validate.instance(Workload, workload=workload).shape[1]
        return cells * (cells - 1) // 2 if self.replace else cells

    def matrix(self, d: int, domain: Domain | None = None) -> sp.csc_array | None:
        """Return U over d cells, None for the identity; `domain` is the domain of the cells, for rules that need it."""
        cells = validate.size(d=d)
        if not self.replace and self.members == 1:
            return None
        return household(cells, self.members, self.replace)

    def __str__(self) -> str:
        return f"{'replace' if self.replace else 'add-remove'}:{self.members}"


@dataclass(frozen=True, slots=True)
class Contributions(Relation):
    """A person with up to `members` records in each of up to `groups` values of an attribute joins or leaves.

    In words ``contributions:ATTRIBUTE:RECORDS:GROUPS``: up to 2 records in each of up to 3 months are
    ``contributions:month:2:3``. The differences are as of `contributions`, with groups by the values of the
    attribute; on blocks they need no matrix (`dualmech.geometry.block_neighbours.Persons`).
    Raises `InvalidInputError` or `InputTypeError` for no name, numbers that are no integers of at least 1.

    Attributes
    ----------
    members : int
        The most records of a person in a group.
    attribute : str
        The attribute whose values are the groups.
    groups : int
        The most groups that a person is in.

    Examples
    --------
    >>> import dualmech as dm
    >>> rule = dm.neighbours.Contributions(2, attribute="month", groups=3)
    >>> print(rule, rule.words, sep=": ")
    contributions:month:2:3: up to 2 records of one person in each of up to 3 values of 'month' are added or removed
    >>> rule.matrix(4, dm.Domain({"month": 2, "sex": 2})).shape
    (4, 8)
    """

    replace: bool = field(default=False, init=False, repr=False)
    members: int
    attribute: str
    groups: int

    def __post_init__(self) -> None:
        Relation.__post_init__(self)
        as_members(groups=self.groups)
        if not validate.text(attribute=self.attribute):
            raise InvalidInputError("attribute must be the name of one, got ''")

    @property
    def several_cells(self) -> bool:
        return True

    @property
    def reach(self) -> int:
        return self.members * self.groups

    @property
    def farthest(self) -> float:
        return float(self.members) ** 2 * self.groups

    def contains(self, other: Relation) -> bool:
        validate.instance(Relation, other=other)
        return (
            isinstance(other, Contributions)
            and self.attribute == other.attribute
            and self.groups >= other.groups
            and self.members >= other.members
        )

    @property
    def words(self) -> str:
        records = "one record" if self.members == 1 else f"up to {self.members} records"
        return (
            f"{records} of one person in each of up to {self.groups} values of {self.attribute!r} "
            f"{'is' if self.members == 1 else 'are'} added or removed"
        )

    def check(self, domain: Domain | None) -> None:
        if domain is not None:
            validate.instance(Domain, domain=domain)
        if domain is None or self.attribute not in domain:
            known = f"a domain with the attributes {list(domain.names)}" if domain else "cells without attributes"
            raise InvalidInputError(
                f"neighbours ({self}) must name an attribute of the domain, got {known}"
                f"{did_you_mean(self.attribute, domain.names) if domain else ''}"
            )

    def pairs(self, workload: Workload) -> int:
        """Return how many columns `matrix` has over a workload's cells, or fewer where they are too many to count."""
        domain = validate.instance(Workload, workload=workload).domain
        self.check(domain)
        assert domain is not None
        return self._ways(domain)

    def _ways(self, domain: Domain) -> int:
        d, values = domain.cells, dict(domain.sizes)[self.attribute]
        together = min(self.groups, values)
        if together * d > MANY:
            return MANY * d
        return int(min(ways_to_contribute([d // values] * values, together), MANY * d))

    def matrix(self, d: int, domain: Domain | None = None) -> sp.csc_array:
        domain = self._known(d, domain)
        check_entries(self._ways(domain))
        place = domain.names.index(self.attribute)
        values, after = domain.shape[place], math.prod(domain.shape[place + 1 :])
        return contributions(d, np.arange(d) // after % values, self.members, self.groups)

    def _known(self, d: int, domain: Domain | None) -> Domain:
        """Return the domain, of d cells and with the attribute."""
        cells = validate.size(d=d)
        self.check(domain)
        assert domain is not None
        if cells != domain.cells:
            raise InvalidInputError(f"d must be the {count_text(domain.cells)} cells of the domain, got {cells}")
        return domain

    def __str__(self) -> str:
        return f"contributions:{self.attribute}:{self.members}:{self.groups}"


def relation_of(neighbours: NeighboursLike) -> Relation | None:
    if isinstance(neighbours, str):
        return Relation.of(neighbours)
    return neighbours if isinstance(neighbours, Relation) else None


def canonical(neighbours: Relation | Matrix | None, cells: str = "") -> str:
    """Return a text that two relations share if they are the same: a rule's text, or a digest of the differences.

    A matrix (d, s) that a rule writes out is the rule. Of others the SHA-256 covers the columns, whatever their
    order, signs and number, and of what `cells` says that the cells are.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.neighbours import canonical
    >>> canonical(dm.neighbours.replace_one(3))
    'replace:1'
    >>> canonical(np.array([[1, 0], [1, 2]])) == canonical(np.array([[0, -1], [-2, -1]]))
    True
    """
    rule = neighbours if isinstance(neighbours, Relation) else None
    if rule is None:
        rule = Relation() if neighbours is None else Relation.matching(neighbours)
    if rule is not None:
        return str(rule)
    columns = sp.csc_array(validate.matrix(neighbours=neighbours), copy=True)
    columns.sum_duplicates()
    columns.eliminate_zeros()
    digests = set()
    for start, end in itertools.pairwise(columns.indptr.tolist()):
        rows, entries = columns.indices[start:end].astype("<i8"), columns.data[start:end].astype("<f8")
        if len(rows):
            digests.add(hashlib.sha256(rows.tobytes() + (entries * np.sign(entries[0])).tobytes()).digest())
    named = f"{columns.shape[0]} {cells}".encode()
    return f"{DIFFERENCES}{hashlib.sha256(named + b''.join(sorted(digests))).hexdigest()}"


__all__ = [
    "Contributions",
    "NeighboursLike",
    "Relation",
    "add_or_remove",
    "compositions",
    "contributions",
    "household",
    "participation",
    "replace_one",
]
