"""Bounds on the records of a person: which of them are counted, and which ids name the same person."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.display import counted
from dualmech.errors import InvalidInputError, printable
from dualmech.publishing.attributes import as_label, is_missing
from dualmech.workloads.domain import Domain

Codes = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Bound:
    """How many records one person may be.

    Each unit, a person or a person in one value of `per`, keeps at most `at_most` of its records. Which ones is a
    function of the unit's own records and of a secret key that is drawn anew for every count, so that data sets that
    differ in the records of one unit differ in at most `at_most` of them after it, whatever the key (Theorem 3b of
    ``docs/theorems.md``). A row with a count of n is n equal records.

    Attributes
    ----------
    person : str
        The column whose values are persons.
    at_most : int
        The most records of a unit, at least 1.
    per : str
        An attribute: each of its values is bounded by itself; empty for all records of a person together.
    check : bool
        Whether more records are refused in place of left out.
    groups : int or None
        The most values of `per` that a person may be in where that is checked; None for any number.
    """

    person: str
    at_most: int
    per: str = ""
    check: bool = False
    groups: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "person", validate.composed(validate.text(person=self.person)))
        validate.size(at_most=self.at_most)
        object.__setattr__(self, "per", validate.composed(validate.text(per=self.per)))
        validate.boolean(check=self.check)
        if self.groups is not None:
            validate.size(groups=self.groups)

    def values_of(self, domain: Domain, codes: Codes) -> Codes | None:
        """Return the codes (g,) of `per` of groups of codes (attributes, g), None without one.

        Raises `InvalidInputError` for an attribute that the domain does not have.
        """
        return codes[domain.axes([self.per])[0]] if self.per else None

    def kept(self, persons: Sequence[object], values: Codes | None, codes: Codes, rows: Codes) -> Codes:
        """Return how many records (g,) of each group are kept.

        Of a unit with more than `at_most` they are drawn one at a time without replacement, so that the numbers kept of
        its groups follow a multivariate hypergeometric distribution.

        Parameters
        ----------
        persons : texts or numbers (g,)
            The id of the person of each group, as the records hold it; see `person_numbers`.
        values : codes (g,) or None
            The value of `per`.
        codes : codes (attributes, g)
            What tells a group's records from other records of the person.
        rows : counts (g,)
            How many records are alike, 0 for a row that stands for none.
        """
        if not rows.all():
            kept, some = np.zeros_like(rows), np.flatnonzero(rows)
            values = None if values is None else values[some]
            kept[some] = self.kept([persons[index] for index in some.tolist()], values, codes[:, some], rows[some])
            return kept
        names, person = person_numbers(self.person, persons, rows)
        within = np.zeros(len(rows), dtype=np.int64) if values is None else values
        order = np.lexsort([*codes, within, person])
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (np.diff(person[order]) != 0) | (np.diff(within[order]) != 0)
        unit, first = np.cumsum(begins) - 1, order[begins]
        if self.check:
            self._require(np.bincount(unit, rows[order]), person[first])
            return rows
        key = secrets.token_bytes(32)
        drawn = np.array([_word(name, key) for name in names], dtype=np.uint64)[person[first]]
        kept = np.empty_like(rows)
        kept[order] = _chosen(unit, rows[order], self.at_most, _mixed(drawn + within[first].astype(np.uint64)))
        return kept

    def _require(self, sizes: npt.NDArray[Any], person: Codes) -> None:
        """Refuse units with more records than are allowed, and persons in more values; the message names nobody."""
        most, values = int(sizes.max(initial=0)), int(np.bincount(person).max(initial=0))
        where = f" in one value of {self.per!r}" if self.per else ""
        if most > self.at_most:
            words = f"somebody has {counted(most, 'record')}{where}, more than the {self.at_most} that are protected"
        elif self.groups is not None and values > self.groups:
            most_values = f"more than the {self.groups} that are protected"
            words = f"somebody has records in {values} values of {self.per!r}, {most_values}"
        else:
            return
        raise InvalidInputError(
            f"{self.person!r}: {words}; this refusal looks at the records, and is no part of what the noise protects: "
            f"do not publish it. records.at_most leaves records out in its place, which protects everybody"
        )


def _chosen(unit: Codes, rows: Codes, at_most: int, words: Words) -> Codes:
    """Return how many of each group's records are kept, of units that follow one another, a draw a round.

    `words` are random bits of each unit. In every round a unit with records to spare takes one of those that are left.
    """
    sizes = np.bincount(unit, rows).astype(np.int64)
    large = sizes > at_most
    places, groups = np.where(large[unit], 0, rows), np.flatnonzero(large[unit])
    if not len(groups):
        return places
    _, group = np.unique(unit[groups], return_inverse=True)
    left, total, taken = rows[groups].copy(), sizes[large], np.zeros(len(groups), dtype=np.int64)
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    for draw in range(at_most):
        sums = np.cumsum(left)
        before = sums[begins] - left[begins]
        place = (_mixed(words[large] + np.uint64((draw + 1) * STEP % 2**64)) % (total - draw).astype(np.uint64)).astype(
            np.int64
        )
        chosen = np.searchsorted(sums, before + place, side="right")
        left[chosen] -= 1
        taken[chosen] += 1
    places[groups] = taken
    return places


STEP = 0x9E3779B97F4A7C15


def _mixed(words: Words) -> Words:
    """Return words of 64 bits as random ones, by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


EXACT_DOUBLES = 2.0**53  # integers below have doubles of their own


def person_numbers(column: str, ids: Sequence[object], rows: Codes) -> tuple[list[str], Codes]:
    """Return the canonical id of each person, and the number of the person that each of `ids` names, shape (g,).

    Ids are compared as labels are: texts without surrounding spaces in Unicode's form NFC, numbers by their shortest
    text, so that the number 1.0 and the text ``1`` name one person. Nothing else is merged.
    Raises `InvalidInputError`, by the column, for a record without an id; two spellings of one number, such as ``1``
    and ``1.0`` or ``01``, which could be one person or two; and ids that are not represented exactly. Inexact are
    doubles of 2^53 and more, which several integers may share, texts of such doubles, ``1.2e+16``, and times. Other
    types than texts, numbers and UUIDs are refused as well.

    Parameters
    ----------
    column : str
        The column of persons, which messages name.
    ids : texts or numbers (g,)
        The ids, as records hold them.
    rows : counts (g,)
        Records with each id.

    Examples
    --------
    >>> import numpy as np
    >>> names, numbers = person_numbers("id", [7, "a", 7.0, " a"], np.ones(4, dtype=np.int64))
    >>> names, numbers.tolist()
    (['7', 'a'], [0, 1, 0, 1])
    """
    by_type: dict[type, dict[Any, int]] = {str: {}, int: {}, float: {}}  # apart, since 1 == 1.0 == True
    numbers: dict[Decimal | str, int] = {}
    spellings: list[str] = []
    person = np.empty(len(ids), dtype=np.int64)
    for place, value in enumerate(ids):
        known = by_type.get(value.__class__)
        number = None if known is None else known.get(value)
        if number is None:
            spelling = _spelling(column, value)
            number = numbers.setdefault(Decimal(spelling) if NUMBER.fullmatch(spelling) else spelling, len(numbers))
            if number == len(spellings):
                spellings.append(spelling)
            elif spelling != spellings[number]:
                raise InvalidInputError(
                    f"{column!r} must spell each id in one way, got {printable(spellings[number])!r} and "
                    f"{printable(spelling)!r}, which could be one person or two: write all ids as texts of one form"
                )
            if known is not None:
                known[value] = number
        person[place] = number
    if (empty := numbers.get("")) is not None:
        missing = counted(int(rows[person == empty].sum()), "record")
        raise InvalidInputError(f"{column!r} must name the person of every record, got none in {missing}")
    return spellings, person


INEXACT = ("float16", "float32", "date", "duration", "timedelta", "time")
"""Types, in small letters, that round the ids which they hold, or may have done so."""


def require_exact_ids(column: str, kind: str) -> None:
    """Refuse a column of persons by a type whose values do not tell all ids apart."""
    if kind.lower().startswith(INEXACT):
        raise InvalidInputError(
            f"{column!r} must hold ids of persons as texts, integers or doubles, got {kind}, which may round them: "
            f"cast the column to texts"
        )


def _spelling(column: str, value: object) -> str:
    if isinstance(value, str):
        label = as_label(value)
        if ROUNDED.fullmatch(label):
            raise InvalidInputError(
                f"{column!r} must hold ids that are exact, got {label!r}, as programs write numbers that they may have "
                f"rounded: write the ids with all their digits"
            )
        return label
    if is_missing(value):
        return ""
    if isinstance(value, bool | np.bool) or not isinstance(value, Integral | float | Decimal | UUID):
        raise InvalidInputError(
            f"{column!r} must hold ids that are texts or numbers, got {type(value).__name__}: cast them"
        )
    if isinstance(value, UUID):
        return str(value)
    digits = value.adjusted() if isinstance(value, Decimal) and value.is_finite() else 0
    if digits >= MAX_DIGITS or (isinstance(value, Integral) and abs(int(value)) >= 10**MAX_DIGITS):
        raise InvalidInputError(f"{column!r} must hold numbers of at most {MAX_DIGITS} digits, got a longer one")
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise InvalidInputError(f"{column!r} must hold finite ids, got {value}")
    if isinstance(value, float) and abs(value) >= EXACT_DOUBLES:
        raise InvalidInputError(
            f"{column!r} must hold ids that are exact, got the double {value!r}: several integers of 2^53 and more "
            f"share one double; store ids as integers or texts"
        )
    whole = isinstance(value, Integral) or value == int(value)
    return str(int(value)) if whole else str(value)


MAX_DIGITS = 300  # of the integer part of an id that is a number, so that its text is short

ROUNDED = re.compile(r"[+-]?[0-9](\.[0-9]+)?[eE]\+[0-9]+")
"""Texts of doubles with many digits, as spreadsheets, pandas and DuckDB write them."""

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")


def _word(name: str, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest())


def told(bound: Bound, kept: int, seen: int) -> str:
    """Say how many records were left out, to whoever holds the records."""
    where = f" in one value of {bound.per!r}" if bound.per else ""
    return (
        f"Records left out: {seen - kept} of {seen}, so that no {bound.person!r} has more than {bound.at_most}{where}. "
        f"This is about the records, for the office alone, and no part of the release."
    )


Report = Callable[[str], object]


def quiet(text: str) -> None:
    """Tell nobody."""
