"""Neighbours by a rule, for domains of any size, and whatever else stands for neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError, did_you_mean
from dualmech.neighbours.persons import contributions, ways_to_contribute
from dualmech.neighbours.records import MAX_MEMBERS, as_members, check_entries, household
from dualmech.validate import Matrix
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain, count_text

MANY = 2**32  # more differences than are written out

NAMES = ("add-remove", "replace", "contributions")

NeighboursLike: TypeAlias = "str | Relation | Matrix | npt.ArrayLike | None"
"""What problems and mechanisms take: words, a rule, differences by column, or None for one record more or less."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Neighbours by a rule, for domains of any size: one person's records, added or removed, or replaced.

    Attributes
    ----------
    replace : bool
        Whether records change their cells, the number of records staying what it is.
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
            if attribute and len(numbers) == 2 and all(_counts(number) for number in numbers):
                return Contributions(int(numbers[0]), attribute=attribute, groups=int(numbers[1]))
        elif name in NAMES:
            if not colon or _counts(rest):
                return Relation(name == "replace", int(rest or 1))
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

    @property
    def words(self) -> str:
        """Say by what neighbours differ."""
        one = self.members == 1
        records = "one record" if one else f"up to {self.members} records of one person"
        if self.replace:
            return f"{records} {'has' if one else 'have'} other values"
        return f"{records} {'is' if one else 'are'} added or removed"

    def check(self, domain: Domain | None) -> None:
        """Refuse a domain without the attribute that the rule is about."""

    def pairs(self, workload: Workload) -> int:
        """Return how many columns `matrix` has over the cells of a workload."""
        cells = validate.instance(Workload, workload=workload).shape[1]
        return cells * (cells - 1) // 2 if self.replace else cells

    def matrix(self, d: int, domain: Domain | None = None) -> sp.csc_array | None:
        """Return U over d cells, None for the identity; `domain` says whose cells they are, where the rule asks."""
        cells = validate.size(d=d)
        if not self.replace and self.members == 1:
            return None
        return household(cells, self.members, self.replace)

    def __str__(self) -> str:
        return f"{'replace' if self.replace else 'add-remove'}:{self.members}"


@dataclass(frozen=True, slots=True)
class Contributions(Relation):
    """A person joins or leaves who has up to `members` records in each of up to `groups` values of an attribute.

    In words ``contributions:ATTRIBUTE:RECORDS:GROUPS``: up to 2 records in each of up to 3 months are
    ``contributions:month:2:3``. The differences are those of `contributions`, the groups being the values of the
    attribute; on blocks they need no matrix (`dualmech.geometry.block_pairs.Persons`).
    Raises `InvalidInputError` or `InputTypeError` for no name, numbers that are no integers of at least 1.

    Attributes
    ----------
    members : int
        The most records of a person in a group.
    attribute : str
        Whose values are the groups.
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
        """Whether neighbours differ in several cells at once, so that there are kinds of pairs of cells."""
        return True

    @property
    def reach(self) -> int:
        """How many records neighbours differ by."""
        return self.members * self.groups

    @property
    def farthest(self) -> float:
        """Largest squared length of a difference."""
        return float(self.members) ** 2 * self.groups

    @property
    def words(self) -> str:
        """Say by what neighbours differ."""
        records = "one record" if self.members == 1 else f"up to {self.members} records"
        return (
            f"{records} of one person in each of up to {self.groups} values of {self.attribute!r} "
            f"{'is' if self.members == 1 else 'are'} added or removed"
        )

    def check(self, domain: Domain | None) -> None:
        """Refuse a domain without the attribute that the rule is about."""
        if domain is not None:
            validate.instance(Domain, domain=domain)
        if domain is None or self.attribute not in domain:
            known = (
                f"a domain with the attributes {list(domain.names)}" if domain else "cells without attributes"
            )
            raise InvalidInputError(
                f"neighbours ({self}) must name an attribute of the domain, got {known}"
                f"{did_you_mean(self.attribute, domain.names) if domain else ''}"
            )

    def pairs(self, workload: Workload) -> int:
        """Return how many columns `matrix` has over the cells of a workload; of more than can be counted, some."""
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
        """Return U over the d cells of a domain."""
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
            raise InvalidInputError(
                f"d must be the {count_text(domain.cells)} cells of the domain, got {cells}"
            )
        return domain

    def __str__(self) -> str:
        return f"contributions:{self.attribute}:{self.members}:{self.groups}"


def _counts(text: str) -> bool:
    """Whether a text is a number of at least 1."""
    return text.isdecimal() and int(text) > 0
