"""Neighbour relations: rules for domains of any size; `dualmech.differences` builds matrices of differences."""

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

COUNT_LIMIT = 2**32  # a count of differences above this many per cell is not exact: no matrix has so many
MAX_LISTED_CELLS = 2**24  # cells of which the possible ones are counted

NAMES = ("add-remove", "replace", "contributions", "participation")

DIFFERENCES = "differences:"  # prefix of the canonical text of a matrix

NeighboursLike: TypeAlias = "str | Relation | Matrix | npt.ArrayLike | None"
"""Neighbours in all forms: words, a rule, a matrix of differences, or None for one record added or removed."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Neighbours by a rule, for domains of any size: the records of one person are added or removed, or replaced.

    Attributes
    ----------
    replace : bool
        Whether records change their cells, with the number of records unchanged.
    members : int
        Maximum number of records of one person.
    """

    replace: bool = False
    members: int = 1

    def __post_init__(self) -> None:
        validate.boolean(replace=self.replace)
        as_members(members=self.members)

    @classmethod
    def of(cls, text: str) -> Relation:
        """Return the relation of a text such as ``replace``, ``replace within state`` or ``contributions:month:2:3``.

        Raises `InvalidInputError` for another text.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.neighbours.Relation.of("replace:3")
        Relation(replace=True, members=3)
        """
        rule, _, fixed = validate.text(text=text).partition(" within ")
        name, colon, arguments = (rule if rule.startswith("replace") and fixed else text).partition(":")
        if name == "contributions":
            attribute, *numbers = arguments.rsplit(":", 2)
            counts = [validate.whole(number) or 0 for number in numbers]
            if attribute and len(counts) == 2 and all(counts):
                return Contributions(counts[0], attribute=attribute, groups=counts[1])
        elif name == "participation":
            first, _, tail = arguments.partition(":")
            second, *options = tail.split(":")
            times, separation = (validate.whole(number) or 0 for number in (first, second))
            at_least = options[-1:] == [AT_LEAST]
            parts = options[: len(options) - at_least]
            if times and separation and parts in ([], *([part] for part in PARTS)):
                kind = (parts or ["vectors"])[0]
                return ADD_REMOVE if times == 1 else Participation(times, separation, kind, at_least)
        elif name in NAMES:
            if members := validate.whole(arguments) if colon else 1:
                is_within = fixed and name == "replace"
                return ReplaceWithin(members, fixed) if is_within else Relation(name == "replace", members)
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
        """Return the relation with this `matrix`, None if there is none; with a domain, also rules on its attributes.

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
        cell_domain = domain if domain is not None and domain.cells == cells else None
        for rule in _rules(int(members), int(np.diff(sp.csc_array(differences).indptr).max()), cell_domain):
            if rule.columns(cells, cell_domain) == pairs > 0:
                columns = household(cells, 1) if (matrix := rule.matrix(cells, cell_domain)) is None else matrix
                if abs(columns - sp.csc_array(differences)).max() == 0:
                    return rule
        return None

    @property
    def several_cells(self) -> bool:
        """Whether neighbours may differ in several cells at once."""
        return self.replace

    @property
    def geometries(self) -> tuple[str, ...]:
        """Names of the only geometries that support the rule; () if every geometry with rules does."""
        return ()

    @property
    def fixed(self) -> tuple[str, ...] | None:
        """Attributes whose counts all neighbours share; () if only the total is shared, None if it is not."""
        return () if self.replace else None

    def leaves(self, attribute: str, queries: Workload | None, size: int) -> npt.NDArray[np.bool_]:
        """Return which queries on an attribute (m,), None for its values, have the same answers on all neighbours.

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
        """Maximum number of records by which neighbours differ; a moved record leaves one cell and enters another."""
        return self.members * (2 if self.replace else 1)

    @property
    def farthest(self) -> float:
        """Largest squared length of a difference."""
        return (2.0 if self.replace else 1.0) * self.members**2

    def contains(self, other: Relation) -> bool:
        """Return whether the cost under these neighbours bounds the cost under the other relation, on any cells.

        A relation contains the relations of its kind with fewer records. ``add-remove:k`` contains every relation of a
        `reach` of at most k: by the triangle inequality, k records cost the most in one cell.

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
        """The difference between neighbours in words."""
        single = self.members == 1
        records = "one record" if single else f"up to {self.members} records of one person"
        if self.replace:
            return f"{records} {'has' if single else 'have'} other values"
        return f"{records} {'is' if single else 'are'} added or removed"

    def check(self, domain: Domain | None) -> None:
        """Refuse a domain without the attribute of the rule."""
        attribute = getattr(self, "attribute", None)
        if attribute is None:
            return
        if domain is not None:
            validate.instance(Domain, domain=domain)
        if domain is None or attribute not in domain:
            description = f"a domain with the attributes {list(domain.names)}" if domain else "cells without attributes"
            raise InvalidInputError(
                f"neighbours ({self}) must name an attribute of the domain, got {description}"
                f"{did_you_mean(attribute, domain.names) if domain else ''}"
            )

    def columns(self, d: int, domain: Domain | None = None) -> int:
        """Return the number of columns of `matrix` over d cells; a lower bound above the limit of matrices."""
        cells = validate.size(d=d)
        if domain is not None:
            validate.instance(Domain, domain=domain)
        values, _ = self._axis(cells, domain)
        if domain is None or not domain.impossible or cells > MAX_LISTED_CELLS:
            return self._ways([cells // values] * values)
        return self._ways(np.bincount(self._values(cells, domain)[domain.possible()]).tolist())

    def matrix(self, d: int, domain: Domain | None = None) -> sp.csc_array | None:
        """Return U over d cells, None for the identity; `domain` is needed by rules on an attribute.

        Impossible cells (`never` of a `Schema`) are in no difference.
        """
        cells = validate.size(d=d)
        possible = None if domain is None else validate.instance(Domain, domain=domain).possible()
        if possible is None and self == ADD_REMOVE:
            return None
        check_entries(self.columns(cells, domain))
        values = self._values(cells, domain)
        if possible is None:
            return self._differences(values)
        cell = np.flatnonzero(possible)
        columns = self._differences(values[cell]).tocoo()
        return sp.csc_array((columns.data, (cell[columns.row], columns.col)), shape=(cells, columns.shape[1]))

    def _axis(self, cells: int, domain: Domain | None) -> tuple[int, int]:
        """Return the number of values of the rule's attribute, and the number of consecutive cells of one value."""
        self.check(domain)
        if domain is not None and cells != domain.cells:
            raise InvalidInputError(f"d must be the {count_text(domain.cells)} cells of the domain, got {cells}")
        attribute = getattr(self, "attribute", None)
        if attribute is None or domain is None:
            return 1, cells
        place = domain.names.index(attribute)
        return domain.shape[place], math.prod(domain.shape[place + 1 :])

    def _values(self, cells: int, domain: Domain | None) -> npt.NDArray[np.intp]:
        """Return the value of the rule's attribute in each cell; 0 for a rule without an attribute."""
        values, run = self._axis(cells, domain)
        return np.arange(cells) // run % values

    def _ways(self, sizes: list[int]) -> int:
        """Return the number of differences if the attribute's values have these numbers of cells."""
        cells = sum(sizes)
        return cells * (cells - 1) // 2 if self.replace else cells

    def _differences(self, values: npt.NDArray[np.intp]) -> sp.csc_array:
        """Return the differences over cells with these values of the attribute."""
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
        Maximum number of records of a person in a group.
    attribute : str
        The attribute whose values are the groups.
    groups : int
        Maximum number of groups of a person.

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
        max_groups = min(self.groups, len(sizes))
        if max_groups * sum(sizes) > COUNT_LIMIT:
            return COUNT_LIMIT * sum(sizes)
        return int(min(ways_to_contribute(sizes, max_groups), COUNT_LIMIT * sum(sizes)))

    def _differences(self, values: npt.NDArray[np.intp]) -> sp.csc_array:
        return contributions(len(values), values, self.members, self.groups)

    def __str__(self) -> str:
        return f"contributions:{self.attribute}:{self.members}:{self.groups}"


@dataclass(frozen=True, slots=True)
class ReplaceWithin(Relation):
    """Up to `members` records of one person have other values, except for one attribute, whose counts are exact.

    In words ``replace within ATTRIBUTE``, or ``replace:RECORDS within ATTRIBUTE``. For example, within state, all
    values but the state of a person are protected: the number of people in each state is public. The differences are
    those of `replace_one`, with groups by the values of the attribute, times `members`. Raises `InvalidInputError` or
    `InputTypeError` for no name, a number that is no integer of at least 1.

    Attributes
    ----------
    members : int
        Maximum number of records of one person.
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
    """Return the name of an attribute in the form of domains."""
    if not validate.text(attribute=name):
        raise InvalidInputError("attribute must be the name of an attribute, got ''")
    return composed(name)


PARTS = ("vectors", "signs")

AT_LEAST = "at-least"
"""The last word of the text of a participation with a minimum separation."""


@dataclass(frozen=True, slots=True)
class Participation(Relation):
    """A person participates in up to `times` steps of a stream, each `separation` after the last, and joins or leaves.

    The n steps fall into phases p, p + separation, p + 2 separation, …; a person participates in the steps of one
    phase. With the cost matrix C of a mechanism, C_p on the steps of phase p, a phase costs the largest ``⟨C_p, R⟩``
    over

    - ``parts="vectors"``, contributions that are vectors of norm at most 1, such as gradients: correlation matrices R;
    - ``parts="signs"``, contributions from -1 to 1: ``R = z z'`` with signs z, at most the cost of vectors.

    With ``at_least=True`` (min-separation) a person participates in up to `times` steps with distances of at least
    `separation`, and costs the largest ``⟨C_P, R⟩`` over all such sets P of steps.

    In words ``participation:TIMES:SEPARATION``, followed by ``:signs`` for signs and then ``:at-least`` for a minimum
    separation.
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
            raise InvalidInputError("times must be at least 2, got 1: one participation is one record, add-remove")
        validate.size(separation=self.separation)
        validate.choice(PARTS, parts=self.parts)

    def phases(self, n: int) -> npt.NDArray[np.intp]:
        """Return the steps of each phase, shape (phases, times), with -1 if the last epoch has no step of the phase.

        With `at_least` there are no phases: all steps are one row.
        Raises `InvalidInputError` for fewer steps than `times` participations need, or more than the phases cover.
        """
        steps, max_steps = validate.size(n=n), self.times * self.separation
        if steps <= (self.times - 1) * self.separation:
            fitting = -(-steps // self.separation)
            raise InvalidInputError(
                f"neighbours ({self}) must fit n = {steps} steps: {self.separation} apart are at most {fitting} of them"
            )
        if self.at_least:
            check_entries(steps)
            return np.arange(steps)[None]
        if steps > max_steps:
            raise InvalidInputError(
                f"neighbours ({self}) must cover all n = {steps} steps, they cover {max_steps}: for phases that share "
                "steps give a matrix, sign_patterns, if it is small"
            )
        check_entries(max_steps)
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
        parts = "vectors" if self.parts == "vectors" else "numbers"
        distance = f"{'at least ' if self.at_least else ''}{self.separation} apart"
        return f"one person's {parts} in up to {self.times} steps, {distance}, are added or removed"

    def columns(self, d: int, domain: Domain | None = None) -> int:
        """Return the number of sign patterns; a lower bound above the limit of matrices."""
        steps = validate.size(d=d)
        if self.at_least:
            return COUNT_LIMIT * steps
        return int(min(2.0 ** min(self.times - 1, MAX_SIGN_EXPONENT) * self.separation, COUNT_LIMIT * steps))

    def matrix(self, d: int, domain: Domain | None = None) -> sp.csc_array:
        """Return the sign patterns over d steps; refused for vectors and for a minimum separation."""
        if self.at_least:
            raise InvalidInputError(f"neighbours ({self}) have no matrix of differences, with a minimum separation")
        if self.parts == "vectors":
            raise InvalidInputError(f"neighbours ({self}) must be signs for a matrix of differences")
        return sign_patterns(validate.size(d=d), self.times, self.separation)

    def __str__(self) -> str:
        ends = ":signs" * (self.parts == "signs") + f":{AT_LEAST}" * self.at_least
        return f"participation:{self.times}:{self.separation}{ends}"


def participation(n: int, times: int, separation: int, of: str = "vectors", at_least: bool = False) -> Relation:
    """Neighbours differ by a person who participates in `times` of n steps, each `separation` after the last.

    Returns a `Participation` (``add-remove`` if `times` is 1); `sign_patterns` is the matrix of a small one. Every step
    must be in one phase: ``n ≤ times · separation``.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are not integers of at least 1, contributions other
    than vectors and signs, more participations than fit into n steps, and steps in no phase.
    Source: C. Choquette-Choo, McMahan, Rush and Thakurta, ICML 2023, (k, b)-participation; at least b apart: C.
    Choquette-Choo and others, (Amplified) banded matrix factorization, NeurIPS 2023.

    Parameters
    ----------
    n, times, separation : int
        Number of steps, maximum number of participations of one person, and their separation.
    of : {"vectors", "signs"}
        Whether a contribution is a vector of norm at most 1, or a number from -1 to 1.
    at_least : bool, default False
        Whether `separation` is a minimum.

    Examples
    --------
    >>> import dualmech as dm
    >>> print(dm.neighbours.participation(64, times=4, separation=16))
    participation:4:16
    >>> print(dm.neighbours.participation(64, times=4, separation=16, at_least=True).words)
    one person's vectors in up to 4 steps, at least 16 apart, are added or removed
    """
    steps, stride = validate.size(n=n), validate.size(separation=separation)
    validate.choice(PARTS, of=of)
    validate.boolean(at_least=at_least)
    if validate.size(times=times) == 1:
        return ADD_REMOVE
    rule = Participation(times, stride, of, at_least)
    rule.phases(steps)
    return rule


def _rules(members: int, max_cells: int, domain: Domain | None) -> Iterator[Relation]:
    """Yield the rules of a number of records whose differences have at most `max_cells` non-zero entries."""
    yield from (Relation(False, members), Relation(True, members))
    for attribute in domain.names if domain is not None else ():
        yield ReplaceWithin(members, attribute)
        yield Contributions(members, attribute, max_cells)


def relation_of(neighbours: NeighboursLike) -> Relation | None:
    if isinstance(neighbours, str):
        return Relation.of(neighbours)
    return neighbours if isinstance(neighbours, Relation) else None


def canonical(neighbours: Relation | Matrix | None, domain: Domain | None = None) -> str:
    """Return a text that is the same for equal relations: a rule's text, or a digest of the differences.

    The matrix of a rule is the rule (of a rule on an attribute only if the domain is given). The digest of another
    matrix is a SHA-256 of the set of its columns, up to sign, and of the domain.

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
    header = f"{columns.shape[0]} {'' if domain is None else domain.canonical}".encode()
    return f"{DIFFERENCES}{hashlib.sha256(header + b''.join(sorted(digests))).hexdigest()}"


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
