"""Neighbours by a rule, for domains of any size, and whatever else stands for neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError, did_you_mean
from dualmech.neighbours.records import MAX_MEMBERS, as_members, household
from dualmech.validate import Matrix

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
        """Return the relation that a text such as ``replace`` or ``add-remove:3`` stands for.

        Raises `InvalidInputError` for another text.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.neighbours.Relation.of("replace:3")
        Relation(replace=True, members=3)
        """
        name, colon, members = validate.text(text=text).partition(":")
        counted = not colon or (members.isdecimal() and int(members) > 0)
        if name in ("add-remove", "replace") and not counted:
            raise InvalidInputError(
                f"neighbours must be {name} or {name}:RECORDS, a whole number of at least 1, got {text!r}"
            )
        if name not in ("add-remove", "replace"):
            raise InvalidInputError(
                f"neighbours must be add-remove, replace, add-remove:RECORDS, replace:RECORDS or a matrix, got {text!r}"
                f"{did_you_mean(name, ('add-remove', 'replace'))}"
            )
        return cls(name == "replace", int(members or 1))

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
        for relation in (cls(False, int(members)), cls(True, int(members))):
            if pairs == (cells * (cells - 1) // 2 if relation.replace else cells) > 0:
                own = household(cells, relation.members, relation.replace)
                if abs(own - sp.csc_array(differences)).max() == 0:
                    return relation
        return None

    def matrix(self, d: int) -> sp.csc_array | None:
        """Return U over d cells, None for the identity."""
        cells = validate.size(d=d)
        if not self.replace and self.members == 1:
            return None
        return household(cells, self.members, self.replace)

    def __str__(self) -> str:
        return f"{'replace' if self.replace else 'add-remove'}:{self.members}"
