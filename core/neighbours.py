"""Neighbours: which data sets privacy must keep apart, by a rule for domains of any size, or difference by difference.

The builders of matrices stand in `dualmech.differences`.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.differences import (
    MAX_MEMBERS,
    MAX_SIGN_EXPONENT,
    add_or_remove,
    as_members,
    cells_of_groups,
    check_entries,
    compositions,
    contributions,
    household,
    replace_one,
    sign_patterns,
    swaps_within,
    ways_to_contribute,
)
from dualmech.errors import InvalidInputError, did_you_mean
from dualmech.validate import Matrix, composed
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain, count_text

MANY = 2**32  # more differences than are written out
MOST_LISTED = 2**24  # cells up to which those that records may have are counted

NAMES = ("add-remove", "replace", "contributions", "participation")

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
        """Return the relation that ``replace``, ``replace within state`` or ``contributions:month:2:3`` stands for.

        Raises `InvalidInputError` for another text.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.neighbours.Relation.of("replace:3")
        Relation(replace=True, members=3)
        """
        rule, within, kept = validate.text(text=text).partition(" within ")
        name, colon, rest = (rule if rule.startswith("replace") and kept else text).partition(":")
        if name == "contributions":
            attribute, *numbers = rest.rsplit(":", 2)
            counts = [validate.whole(number) or 0 for number in numbers]
            if attribute and len(counts) == 2 and all(counts):
                return Contributions(counts[0], attribute=attribute, groups=counts[1])
        elif name == "participation":
            first, _, after = rest.partition(":")
            second, *last = after.split(":")
            times, separation = (validate.whole(number) or 0 for number in (first, second))
            apart = last[-1:] == [AT_LEAST]
            parts = last[: len(last) - apart]
            if times and separation and parts in ([], *([part] for part in PARTS)):
                return ADD_REMOVE if times == 1 else Participation(times, separation, (parts or ["vectors"])[0], apart)
        elif name in NAMES:
            if members := validate.whole(rest) if colon else 1:
                return (
                    ReplaceWithin(members, kept) if kept and name == "replace" else Relation(name == "replace", members)
                )
            raise InvalidInputError(
                f"neighbours must be {name} or {name}:RECORDS, a whole number of at least 1, got {text!r}"
            )
        raise InvalidInputError(
            "neighbours must be add-remove, replace, add-remove:RECORDS, replace:RECORDS, replace within ATTRIBUTE, "
            "contributions:ATTRIBUTE:RECORDS:GROUPS, participation:TIMES:SEPARATION (perhaps :signs, :at-least) "
            f"or a matrix, got {text!r}{'' if name in NAMES else did_you_mean(name, NAMES)}"
        )

    @classmethod
    def matching(cls, differences: Matrix, domain: Domain | None = None) -> Relation | None:
        """Return the relation whose `matrix` this is, None where there is none; with a domain, rules of its attributes.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.neighbours.Relation.matching(dm.neighbours.replace_one(3))
        Relation(replace=True, members=1)
        """
        differences = validate.matrix(differences=differences)
        if domain is not None:
            validate.instance(Domain, domain=domain)
        cells, pairs = differences.shape
        members = float(abs(differences).max())
        if not (1 <= members <= MAX_MEMBERS and members.is_integer()):
            return None
        known = domain if domain is not None and domain.cells == cells else None
        for rule in _rules(int(members), int(np.diff(sp.csc_array(differences).indptr).max()), known):
            if rule.columns(cells, known) == pairs > 0:
                moves = household(cells, 1) if (matrix := rule.matrix(cells, known)) is None else matrix
                if abs(moves - sp.csc_array(differences)).max() == 0:
                    return rule
        return None

    @property
    def several_cells(self) -> bool:
        """Whether neighbours differ in several cells at once, so that there are kinds of pairs of cells."""
        return self.replace

    @property
    def geometries(self) -> tuple[str, ...]:
        """Names of the geometries that alone take the rule; none where every geometry that takes rules does."""
        return ()

    @property
    def fixed(self) -> tuple[str, ...] | None:
        """The attributes whose counts no neighbour changes, () for the number of records alone, None where that may."""
        return () if self.replace else None

    def leaves(self, attribute: str, queries: Workload | None, size: int) -> npt.NDArray[np.bool_]:
        """Return which queries on an attribute (m,) no neighbour changes, summed over all others; None asks its values.

        Examples
        --------
        >>> import dualmech as dm
        >>> replaced = dm.neighbours.Relation.of("replace")
        >>> replaced.leaves("age", dm.workloads.prefix(3), 3), replaced.leaves("sex", None, 2)
        (array([False, False,  True]), array([False, False]))
        """
        values = validate.size(size=size)
        count = values if queries is None else validate.instance(Workload, queries=queries).shape[0]
        if self.fixed is None or validate.text(attribute=attribute) in self.fixed:
            return np.full(count, self.fixed is not None)
        return np.full(size, size == 1) if queries is None else np.ptp(queries.dense(), axis=1) == 0

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
        if not self.replace:
            return other.reach <= self.members
        return other.replace and self.members >= other.members

    @property
    def words(self) -> str:
        """Return the difference of neighbours in words."""
        one = self.members == 1
        records = "one record" if one else f"up to {self.members} records of one person"
        if self.replace:
            return f"{records} {'has' if one else 'have'} other values"
        return f"{records} {'is' if one else 'are'} added or removed"

    def check(self, domain: Domain | None) -> None:
        """Refuse a domain without the attribute of the rule, where it has one."""
        attribute = getattr(self, "attribute", None)
        if attribute is None:
            return
        if domain is not None:
            validate.instance(Domain, domain=domain)
        if domain is None or attribute not in domain:
            known = f"a domain with the attributes {list(domain.names)}" if domain else "cells without attributes"
            raise InvalidInputError(
                f"neighbours ({self}) must name an attribute of the domain, got {known}"
                f"{did_you_mean(attribute, domain.names) if domain else ''}"
            )

    def columns(self, d: int, domain: Domain | None = None) -> int:
        """Return how many columns `matrix` has over d cells, or fewer where they are too many to count."""
        cells = validate.size(d=d)
        if domain is not None:
            validate.instance(Domain, domain=domain)
        values, _ = self._axis(cells, domain)
        if domain is None or not domain.impossible or cells > MOST_LISTED:
            return self._ways([cells // values] * values)
        return self._ways(np.bincount(self._values(cells, domain)[domain.possible()]).tolist())

    def matrix(self, d: int, domain: Domain | None = None) -> sp.csc_array | None:
        """Return U over d cells, None for the identity; `domain` is the domain of the cells, for rules that need it.

        Cells that no record has (`never` of a `Schema`) are in no difference.
        """
        cells = validate.size(d=d)
        possible = None if domain is None else validate.instance(Domain, domain=domain).possible()
        if possible is None and self == ADD_REMOVE:
            return None
        check_entries(self.columns(cells, domain))
        values = self._values(cells, domain)
        if possible is None:
            return self._differences(values)
        kept = np.flatnonzero(possible)
        columns = self._differences(values[kept]).tocoo()
        return sp.csc_array((columns.data, (kept[columns.row], columns.col)), shape=(cells, columns.shape[1]))

    def _axis(self, cells: int, domain: Domain | None) -> tuple[int, int]:
        """Return how many values the attribute of the rule has, and how many cells come with the same one in a row."""
        self.check(domain)
        if domain is not None and cells != domain.cells:
            raise InvalidInputError(f"d must be the {count_text(domain.cells)} cells of the domain, got {cells}")
        attribute = getattr(self, "attribute", None)
        if attribute is None or domain is None:
            return 1, cells
        place = domain.names.index(attribute)
        return domain.shape[place], math.prod(domain.shape[place + 1 :])

    def _values(self, cells: int, domain: Domain | None) -> npt.NDArray[np.intp]:
        """Return the value that the attribute of the rule has in each cell; 0 where it has none."""
        values, together = self._axis(cells, domain)
        return np.arange(cells) // together % values

    def _ways(self, sizes: list[int]) -> int:
        """Return the number of differences where the attribute's values have so many cells."""
        cells = sum(sizes)
        return cells * (cells - 1) // 2 if self.replace else cells

    def _differences(self, values: npt.NDArray[np.intp]) -> sp.csc_array:
        """Return the differences over cells in which the attribute has these values."""
        return household(len(values), self.members, self.replace)

    def __str__(self) -> str:
        return f"{'replace' if self.replace else 'add-remove'}:{self.members}"


ADD_REMOVE = Relation()  # one record added or removed


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
        object.__setattr__(self, "attribute", _attribute(self.attribute))

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

    def _ways(self, sizes: list[int]) -> int:
        together = min(self.groups, len(sizes))
        if together * sum(sizes) > MANY:
            return MANY * sum(sizes)
        return int(min(ways_to_contribute(sizes, together), MANY * sum(sizes)))

    def _differences(self, values: npt.NDArray[np.intp]) -> sp.csc_array:
        return contributions(len(values), values, self.members, self.groups)

    def __str__(self) -> str:
        return f"contributions:{self.attribute}:{self.members}:{self.groups}"


@dataclass(frozen=True, slots=True)
class ReplaceWithin(Relation):
    """Up to `members` records of one person have other values, but that of one attribute stays: its counts are exact.

    In words ``replace within ATTRIBUTE``, or ``replace:RECORDS within ATTRIBUTE``: within state, everything but the
    state of a person is protected, as where the number of people of each state is published beforehand. The
    differences are as of `replace_one` with groups by the values of the attribute, times `members`.
    Raises `InvalidInputError` or `InputTypeError` for no name, a number that is no integer of at least 1.

    Attributes
    ----------
    members : int
        The most records that one person holds.
    attribute : str
        The attribute that no record changes.

    Examples
    --------
    >>> import dualmech as dm
    >>> rule = dm.neighbours.ReplaceWithin(1, attribute="state")
    >>> print(rule, rule.words, sep=": ")
    replace:1 within state: one record has other values, but the same 'state'
    """

    replace: bool = field(default=True, init=False, repr=False)
    members: int
    attribute: str

    def __post_init__(self) -> None:
        Relation.__post_init__(self)
        object.__setattr__(self, "attribute", _attribute(self.attribute))

    @property
    def fixed(self) -> tuple[str, ...]:
        return (self.attribute,)

    def contains(self, other: Relation) -> bool:
        validate.instance(Relation, other=other)
        return isinstance(other, ReplaceWithin) and self.fixed == other.fixed and self.members >= other.members

    @property
    def words(self) -> str:
        return f"{Relation.words.__get__(self)}, but the same {self.attribute!r}"

    def _ways(self, sizes: list[int]) -> int:
        return sum(size * (size - 1) // 2 for size in sizes)

    def _differences(self, values: npt.NDArray[np.intp]) -> sp.csc_array:
        return swaps_within(cells_of_groups(len(values), within=values), self.members)

    def __str__(self) -> str:
        return f"{Relation.__str__(self)} within {self.attribute}"


def _attribute(name: str) -> str:
    """Return the name of an attribute as a domain has it."""
    if not validate.text(attribute=name):
        raise InvalidInputError("attribute must be the name of one, got ''")
    return composed(name)


PARTS = ("vectors", "signs")

AT_LEAST = "at-least"
"""The last word of the text of a participation whose steps are at least so far apart."""


@dataclass(frozen=True, slots=True)
class Participation(Relation):
    """A person takes part in up to `times` steps of a stream, each `separation` after the last, and joins or leaves.

    The n steps fall into phases, p, p + separation, p + 2 separation, …; a person has a part in each step of one phase.
    With the cost matrix C of a mechanism, C_p on the steps of phase p, a phase costs the largest ``⟨C_p, R⟩`` over

    - ``parts="vectors"``, parts that are vectors of norm at most 1, as gradients are: all correlation matrices R;
    - ``parts="signs"``, parts that are numbers from -1 to 1: ``R = z z'`` with signs z, at most the cost of vectors.

    With ``at_least=True`` a person has a part in any `times` steps of which no two are less than `separation` apart
    (min-separation), and costs the largest ``⟨C_P, R⟩`` over such sets P of steps.

    In words ``participation:TIMES:SEPARATION``, for signs ``participation:TIMES:SEPARATION:signs``, at least so far
    apart ``participation:TIMES:SEPARATION:at-least``, for signs ``participation:TIMES:SEPARATION:signs:at-least``.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are no integers of at least 1, `times` of 1 (that is
    one record, which `participation` returns), other parts, and `at_least` that is no boolean.

    Examples
    --------
    >>> import dualmech as dm
    >>> rule = dm.neighbours.Participation(4, 16)
    >>> print(rule, rule.words, sep=": ")
    participation:4:16: one person's vectors in up to 4 steps, 16 apart, are added or removed
    >>> rule.phases(62)[[0, 15]]
    array([[ 0, 16, 32, 48],
           [15, 31, 47, -1]])
    """

    replace: bool = field(default=False, init=False, repr=False)
    members: int = field(default=1, init=False, repr=False)
    times: int
    separation: int
    parts: str = "vectors"
    at_least: bool = False

    def __post_init__(self) -> None:
        validate.boolean(at_least=self.at_least)
        if validate.size(times=self.times) < 2:
            raise InvalidInputError("times must be at least 2, got 1: who takes part once is one record, add-remove")
        validate.size(separation=self.separation)
        validate.choice(PARTS, parts=self.parts)

    def phases(self, n: int) -> npt.NDArray[np.intp]:
        """Return the steps of each phase, (phases, times), with -1 where the last epoch has no step for it.

        With `at_least` there are no phases: all steps are one row.
        Raises `InvalidInputError` for fewer steps than a person takes part in, and for more than the phases hold.
        """
        steps, most = validate.size(n=n), self.times * self.separation
        if steps <= (self.times - 1) * self.separation:
            fitting = -(-steps // self.separation)
            raise InvalidInputError(
                f"neighbours ({self}) must fit n = {steps} steps: {self.separation} apart are at most {fitting} of them"
            )
        if self.at_least:
            check_entries(steps)
            return np.arange(steps)[None]
        if steps > most:
            raise InvalidInputError(
                f"neighbours ({self}) must hold all n = {steps} steps, they hold {most}: phases that share steps are "
                "given as a matrix, sign_patterns, where they are few"
            )
        check_entries(most)
        grid = np.arange(self.separation)[:, None] + self.separation * np.arange(self.times)
        return np.where(grid < steps, grid, -1)

    @property
    def geometries(self) -> tuple[str, ...]:
        return ("epochs",) if self.parts == "vectors" or self.at_least else ("epochs", "dense")

    @property
    def several_cells(self) -> bool:
        return True

    @property
    def reach(self) -> int:
        return self.times

    @property
    def farthest(self) -> float:
        return float(self.times)

    def contains(self, other: Relation) -> bool:
        validate.instance(Relation, other=other)
        return other == ADD_REMOVE or (
            isinstance(other, Participation)
            and (self.separation <= other.separation if self.at_least else self.separation == other.separation)
            and (self.at_least or not other.at_least)
            and self.times >= other.times
            and self.parts in ("vectors", other.parts)
        )

    @property
    def words(self) -> str:
        added = "vectors" if self.parts == "vectors" else "numbers"
        apart = f"{'at least ' if self.at_least else ''}{self.separation} apart"
        return f"one person's {added} in up to {self.times} steps, {apart}, are added or removed"

    def columns(self, d: int, domain: Domain | None = None) -> int:
        """Return how many sign patterns there are, or fewer where they are too many to count."""
        steps = validate.size(d=d)
        if self.at_least:
            return MANY * steps
        return int(min(2.0 ** min(self.times - 1, MAX_SIGN_EXPONENT) * self.separation, MANY * steps))

    def matrix(self, d: int, domain: Domain | None = None) -> sp.csc_array:
        """Return the sign patterns over d steps; of vectors, and at least so far apart, there is no matrix."""
        if self.at_least:
            raise InvalidInputError(f"neighbours ({self}) are too many persons for a matrix of differences")
        if self.parts == "vectors":
            raise InvalidInputError(f"neighbours ({self}) must be signs where a matrix of differences is asked for")
        return sign_patterns(validate.size(d=d), self.times, self.separation)

    def __str__(self) -> str:
        ends = ":signs" * (self.parts == "signs") + f":{AT_LEAST}" * self.at_least
        return f"participation:{self.times}:{self.separation}{ends}"


def participation(n: int, times: int, separation: int, of: str = "vectors", at_least: bool = False) -> Relation:
    """Neighbours differ by a person who takes part in `times` of n steps, each `separation` after the last.

    Returns the rule, a `Participation` (of once, ``add-remove``), for any number of epochs; `sign_patterns` writes
    small ones out. Every step must be in a phase of its own: ``n ≤ times · separation``.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are no integers of at least 1, parts other than
    vectors and signs, more parts than fit into n steps, steps that no phase holds.
    Source: C. Choquette-Choo, McMahan, Rush and Thakurta, ICML 2023, (k, b)-participation; at least b apart: C.
    Choquette-Choo and others, (Amplified) banded matrix factorization, NeurIPS 2023.

    Parameters
    ----------
    n, times, separation : int
        Steps, the most in which one person takes part, and how far apart.
    of : {"vectors", "signs"}
        Whether a part is a vector of norm at most 1, or a number from -1 to 1.
    at_least : bool, default False
        Whether parts may be farther apart than `separation`.

    Examples
    --------
    >>> import dualmech as dm
    >>> print(dm.neighbours.participation(64, times=4, separation=16))
    participation:4:16
    >>> print(dm.neighbours.participation(64, times=4, separation=16, at_least=True).words)
    one person's vectors in up to 4 steps, at least 16 apart, are added or removed
    """
    steps, apart = validate.size(n=n), validate.size(separation=separation)
    validate.choice(PARTS, of=of)
    validate.boolean(at_least=at_least)
    if validate.size(times=times) == 1:
        return ADD_REMOVE
    rule = Participation(times, apart, of, at_least)
    rule.phases(steps)
    return rule


def _rules(members: int, cells: int, domain: Domain | None) -> Iterator[Relation]:
    """Yield the rules of so many records whose differences may be in so many cells, at most."""
    yield from (Relation(False, members), Relation(True, members))
    for attribute in domain.names if domain is not None else ():
        yield ReplaceWithin(members, attribute)
        yield Contributions(members, attribute, cells)


def relation_of(neighbours: NeighboursLike) -> Relation | None:
    if isinstance(neighbours, str):
        return Relation.of(neighbours)
    return neighbours if isinstance(neighbours, Relation) else None


def canonical(neighbours: Relation | Matrix | None, domain: Domain | None = None) -> str:
    """Return a text that two relations share if they are the same: a rule's text, or a digest of the differences.

    A matrix (d, s) that a rule writes out is the rule; of a domain's attributes only where the domain is given. Of
    others the SHA-256 covers the columns, whatever their order, signs and number, and the domain.

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
        rule = ADD_REMOVE if neighbours is None else Relation.matching(neighbours, domain)
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
    named = f"{columns.shape[0]} {'' if domain is None else domain.canonical}".encode()
    return f"{DIFFERENCES}{hashlib.sha256(named + b''.join(sorted(digests))).hexdigest()}"


__all__ = [
    "Contributions",
    "NeighboursLike",
    "Relation",
    "Participation",
    "ReplaceWithin",
    "add_or_remove",
    "compositions",
    "contributions",
    "household",
    "participation",
    "replace_one",
    "sign_patterns",
]
