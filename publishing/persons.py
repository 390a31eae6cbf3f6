"""Contribution bounds: the records of a person that are counted, and the ids that name one person."""

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
    """A bound on the number of records of one person.

    A unit is a person, or a person in one value of `per`. Each unit keeps at most `at_most` of its records. The
    selection depends only on the unit's records and on a secret key, drawn anew for every count. So data sets that
    differ in the records of one unit differ in at most `at_most` selected records, for every key (Theorem 3b of
    ``docs/theorems.md``). A row with a count of n is n equal records.

    Attributes
    ----------
    person : str
        The column whose values identify persons.
    at_most : int
        The maximum number of records of a unit, at least 1.
    per : str
        An attribute whose values are bounded separately; empty to bound all records of a person together.
    check : bool
        Whether to refuse units with more records, rather than to leave records out.
    groups : int or None
        With `check`, the maximum number of values of `per` for one person; None for any number.
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
        """Return the codes of `per`, shape (g,), from codes (attributes, g); None if `per` is empty.

        Raises `InvalidInputError` for an attribute that the domain does not have.
        """
        return codes[domain.axes([self.per])[0]] if self.per else None

    def kept(self, persons: Sequence[object], values: Codes | None, codes: Codes, rows: Codes) -> Codes:
        """Return the number of selected records of each group, shape (g,).

        From a unit with more than `at_most` records, these are drawn one at a time without replacement. So the numbers
        by group follow a multivariate hypergeometric distribution.

        Parameters
        ----------
        persons : texts or numbers (g,)
            The id of the person of each group; see `person_numbers`.
        values : codes (g,) or None
            The value of `per`.
        codes : codes (attributes, g)
            The values of a group's records, which distinguish them from other records of the person.
        rows : counts (g,)
            The number of equal records; 0 is allowed.
        """
        if not rows.all():
            selected, nonzero = np.zeros_like(rows), np.flatnonzero(rows)
            values = None if values is None else values[nonzero]
            ids = [persons[index] for index in nonzero.tolist()]
            selected[nonzero] = self.kept(ids, values, codes[:, nonzero], rows[nonzero])
            return selected
        names, person = person_numbers(self.person, persons, rows)
        values = np.zeros(len(rows), dtype=np.int64) if values is None else values
        order = np.lexsort([*codes, values, person])
        starts = np.ones(len(order), dtype=bool)
        starts[1:] = (np.diff(person[order]) != 0) | (np.diff(values[order]) != 0)
        unit, first = np.cumsum(starts) - 1, order[starts]
        if self.check:
            self._require(np.bincount(unit, rows[order]), person[first])
            return rows
        key = secrets.token_bytes(32)
        words = np.array([_word(name, key) for name in names], dtype=np.uint64)[person[first]]
        selected = np.empty_like(rows)
        selected[order] = _selected(unit, rows[order], self.at_most, _mixed(words + values[first].astype(np.uint64)))
        return selected

    def _require(self, sizes: npt.NDArray[Any], person: Codes) -> None:
        """Refuse units with too many records, and persons in too many values; the message names nobody."""
        max_records, max_values = int(sizes.max(initial=0)), int(np.bincount(person).max(initial=0))
        where = f" in one value of {self.per!r}" if self.per else ""
        if max_records > self.at_most:
            size = counted(max_records, "record")
            words = f"somebody has {size}{where}, more than the {self.at_most} that are protected"
        elif self.groups is not None and max_values > self.groups:
            limit = f"more than the {self.groups} that are protected"
            words = f"somebody has records in {max_values} values of {self.per!r}, {limit}"
        else:
            return
        raise InvalidInputError(
            f"{self.person!r}: {words}; this message depends on the records, and the noise does not protect it: "
            f"do not publish it. records.at_most leaves records out instead, which protects everybody"
        )


def _selected(unit: Codes, rows: Codes, at_most: int, words: Words) -> Codes:
    """Return the number of selected records of each group, for groups that are sorted by unit.

    `words` are random bits of each unit. In every round, each unit with more than `at_most` records draws one of its
    remaining records.
    """
    sizes = np.bincount(unit, rows).astype(np.int64)
    is_large = sizes > at_most
    counts, groups = np.where(is_large[unit], 0, rows), np.flatnonzero(is_large[unit])
    if not len(groups):
        return counts
    _, group = np.unique(unit[groups], return_inverse=True)
    remaining, total, selected = rows[groups].copy(), sizes[is_large], np.zeros(len(groups), dtype=np.int64)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    for draw in range(at_most):
        sums = np.cumsum(remaining)
        offsets = sums[starts] - remaining[starts]
        bits = _mixed(words[is_large] + np.uint64((draw + 1) * STEP % 2**64))
        place = (bits % (total - draw).astype(np.uint64)).astype(np.int64)
        index = np.searchsorted(sums, offsets + place, side="right")
        remaining[index] -= 1
        selected[index] += 1
    counts[groups] = selected
    return counts


STEP = 0x9E3779B97F4A7C15


def _mixed(words: Words) -> Words:
    """Return pseudo-random words of 64 bits, by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


MAX_EXACT_DOUBLE = 2.0**53  # doubles represent all smaller integers


def person_numbers(column: str, ids: Sequence[object], rows: Codes) -> tuple[list[str], Codes]:
    """Return the canonical id of each person, and the person's number for each of `ids`, shape (g,).

    Ids are compared like labels: texts without surrounding spaces, in Unicode's form NFC; numbers by their shortest
    text, so that the number 1.0 and the text ``1`` name one person. All other ids are different persons.
    Raises `InvalidInputError`, with the column, for a record without an id; for two spellings of one number, such as
    ``1`` and ``1.0`` or ``01``, which could be one person or two; and for inexact ids: doubles of 2^53 and more, which
    several integers may share, texts of these, such as ``1.2e+16``, and times. Types other than texts, numbers and
    UUIDs are refused.

    Parameters
    ----------
    column : str
        The column of persons, which messages name.
    ids : texts or numbers (g,)
        The ids in the records.
    rows : counts (g,)
        Records with each id.

    Examples
    --------
    >>> import numpy as np
    >>> names, numbers = person_numbers("id", [7, "a", 7.0, " a"], np.ones(4, dtype=np.int64))
    >>> names, numbers.tolist()
    (['7', 'a'], [0, 1, 0, 1])
    """
    by_type: dict[type, dict[Any, int]] = {str: {}, int: {}, float: {}}  # separate, since 1 == 1.0 == True
    numbers: dict[Decimal | str, int] = {}
    spellings: list[str] = []
    person = np.empty(len(ids), dtype=np.int64)
    for place, value in enumerate(ids):
        cache = by_type.get(value.__class__)
        number = None if cache is None else cache.get(value)
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
            if cache is not None:
                cache[value] = number
        person[place] = number
    if (empty_id := numbers.get("")) is not None:
        size = counted(int(rows[person == empty_id].sum()), "record")
        raise InvalidInputError(f"{column!r} must name the person of every record, got none in {size}")
    return spellings, person


INEXACT_TYPES = ("float16", "float32", "date", "duration", "timedelta", "time")
"""Prefixes, in small letters, of types that may round ids."""


def require_exact_ids(column: str, kind: str) -> None:
    """Refuse a column of persons whose type may round ids."""
    if kind.lower().startswith(INEXACT_TYPES):
        raise InvalidInputError(
            f"{column!r} must hold ids of persons as texts, integers or doubles, got {kind}, which may round them: "
            f"cast the column to texts"
        )


def _spelling(column: str, value: object) -> str:
    if isinstance(value, str):
        label = as_label(value)
        if ROUNDED_NUMBER.fullmatch(label):
            raise InvalidInputError(
                f"{column!r} must hold ids that are exact, got {label!r}, the form of a number that may be rounded: "
                f"write the ids with all their digits"
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
    if isinstance(value, float) and abs(value) >= MAX_EXACT_DOUBLE:
        raise InvalidInputError(
            f"{column!r} must hold ids that are exact, got the double {value!r}: several integers of 2^53 and more "
            f"share one double; store ids as integers or texts"
        )
    is_integer = isinstance(value, Integral) or value == int(value)
    return str(int(value)) if is_integer else str(value)


MAX_DIGITS = 300  # of the integer part of a numeric id, so that its text is short

ROUNDED_NUMBER = re.compile(r"[+-]?[0-9](\.[0-9]+)?[eE]\+[0-9]+")
"""Doubles with many digits, as spreadsheets, pandas and DuckDB write them."""

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")


def _word(name: str, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest())


def report_text(bound: Bound, selected: int, total: int) -> str:
    """Return the number of records left out, in words for the owner of the records."""
    where = f" in one value of {bound.per!r}" if bound.per else ""
    return (
        f"Records left out: {total - selected} of {total}, so that no {bound.person!r} has more than "
        f"{bound.at_most}{where}. This is about the records, for the office alone, and no part of the release."
    )


Report = Callable[[str], object]


def quiet(text: str) -> None:
    """Ignore a report."""
