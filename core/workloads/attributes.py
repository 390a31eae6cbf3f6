"""What an attribute's values are: labels, whole numbers, bins, or codes; how records hold and tables show them."""

from __future__ import annotations

import bisect
import itertools
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dualmech.errors import InvalidInputError

LARGEST_CODE = 2**53 - 1  # largest whole number up to which a double holds all

SHOWN_VALUES = 8  # labels that a message lists

MISSING = "missing"  # the name of a missing value in tables

LISTED_VALUES = 3  # labels that the name of a query lists


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute whose values are the codes 0 … size - 1 themselves: the base of the others."""

    named: ClassVar[bool] = False  # whether values have names of their own, which describe queries

    name: str
    size: int
    column: str = ""  # what the column of records is called, by default the name
    missing: tuple[str, ...] = ()  # texts that stand for a missing value, which has the last code

    @property
    def source(self) -> str:
        """The name of the column in records."""
        return self.column or self.name

    @property
    def values(self) -> int:
        """Number of values that are not missing."""
        return self.size - bool(self.missing)

    @property
    def ordered(self) -> bool:
        """Whether values have an order, so that a query may be a range of them."""
        return True

    @property
    def demand(self) -> str:
        """What a value must be, for messages."""
        return f"a whole number from 0 to {min(self.size - 1, LARGEST_CODE)}"

    def code(self, text: str) -> int | None:
        """Return the code of a value in records, None of one that is not allowed."""
        if self.missing and text.strip() in self.missing:
            return self.size - 1
        return self._code(text)

    def named_code(self, text: str) -> int | None:
        """Return the code of a value as tables call it, None of one that is not allowed."""
        return self.size - 1 if self.missing and text.strip() == MISSING else self.code(text)

    def label(self, code: int) -> str:
        """Return what a value is called in tables."""
        return MISSING if self.missing and code == self.size - 1 else self._label(code)

    def describe(self, codes: Sequence[int], ranges: bool = False) -> str | None:
        """Return a name for the query that counts some values; None where they have no short one.

        With `ranges` one value, and all of them, are named as ranges are, so that all prefixes are called alike.

        Examples
        --------
        >>> from dualmech.workloads.schema import attribute_of
        >>> age, sex = attribute_of("age", range(17, 91)), attribute_of("sex", ["female", "male"])
        >>> age.describe(range(19)), age.describe([3]), age.describe(range(1, 48)), sex.describe([0, 1])
        ('age ≤ 35', 'age = 20', '18 ≤ age ≤ 64', 'any sex')
        """
        if not self.named:
            return None
        if ranges and self.ordered and len(codes) and codes[-1] < self.values:
            return self._range(codes[0], codes[-1]) if codes[-1] - codes[0] == len(codes) - 1 else None
        if len(codes) == self.size:
            return f"any {self.name}"
        if len(codes) == 1:
            return f"{self.name} = {self.label(codes[0])}"
        first, last = codes[0], codes[-1]
        if self.ordered and last - first == len(codes) - 1 and last < self.values:
            return self._range(first, last)
        if len(codes) <= LISTED_VALUES:
            shown = [self.label(each) for each in codes]
            return f"{self.name} = {', '.join(shown[:-1])} or {shown[-1]}"
        return None

    @property
    def end(self) -> str:
        """What a range may begin or end with."""
        return self.demand

    def span(self, first: str, last: str) -> tuple[int, int]:
        """Return the codes of a range of values, the first and the one after the last.

        Raises `InvalidInputError` for ends that are no values, or of bins no edges, or out of order.
        """
        start, stop = self._ends(first), self._ends(last)
        if start is None or stop is None or start[0] >= stop[1]:
            raise InvalidInputError(
                f"a range of {self.name!r} must go from one value to a later one, each {self.end}, got {first}..{last}"
            )
        return start[0], stop[1]

    def as_spec(self) -> dict[str, object]:
        """Return the mapping that `attribute_of` makes this attribute of."""
        common = {"column": self.column, "missing": list(self.missing)}
        return self._spec() | {key: value for key, value in common.items() if value}

    def refused(self, value: object) -> str:
        """Say that a value is not allowed; of one that is missing, how the schema allows it."""
        shown = reprlib.repr(value).removesuffix(".0")
        absent = self.named and not self.missing and (is_missing(value) or value == "")
        hint = '; the option missing = "" counts what is missing in a cell of its own' if absent else ""
        return f"{self.source!r} must be {self.demand}, got {shown}{hint}"

    def _code(self, text: str) -> int | None:
        number = _number(text)
        if number is None or not (number.is_integer() and 0 <= number <= min(self.values - 1, LARGEST_CODE)):
            return None
        return int(number)

    def _ends(self, text: str) -> tuple[int, int] | None:
        """Return the codes that a range has as its first, and as the one after its last, where it ends at a value."""
        code = self._code(text)
        return None if code is None else (code, code + 1)

    def _label(self, code: int) -> str:
        return str(code)

    def _range(self, first: int, last: int) -> str:
        if first == 0:
            return f"{self.name} ≤ {self.label(last)}"
        if last == self.values - 1:
            return f"{self.name} ≥ {self.label(first)}"
        return f"{self.label(first)} ≤ {self.name} ≤ {self.label(last)}"

    def _spec(self) -> dict[str, object]:
        return {"size": self.values}


@dataclass(frozen=True, slots=True)
class Labelled(Attribute):
    """An attribute of labels, such as the names of occupations."""

    named: ClassVar[bool] = True

    labels: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()  # what records hold, with its label, where they do not hold labels
    _codes: Mapping[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = {label: code for code, label in enumerate(self.labels)}
        held = {text: own[label] for text, label in self.texts}
        object.__setattr__(self, "_codes", held or own)

    @property
    def ordered(self) -> bool:
        return False

    @property
    def demand(self) -> str:
        shown = ", ".join(map(repr, [*self._codes][:SHOWN_VALUES]))
        return f"one of {shown}{', …' if len(self._codes) > SHOWN_VALUES else ''}"

    def named_code(self, text: str) -> int | None:
        return self.labels.index(text.strip()) if text.strip() in self.labels else self.code(text)

    def _code(self, text: str) -> int | None:
        return self._codes.get(text.strip())

    def _label(self, code: int) -> str:
        return self.labels[code]

    def _spec(self) -> dict[str, object]:
        return {"labels": dict(self.texts) if self.texts else list(self.labels)}


@dataclass(frozen=True, slots=True)
class WholeNumbers(Attribute):
    """An attribute of whole numbers, one cell each, such as years of age."""

    named: ClassVar[bool] = True

    first: int = 0
    clamp: bool = False  # whether numbers beyond either end count as the end

    @property
    def last(self) -> int:
        return self.first + self.values - 1

    @property
    def demand(self) -> str:
        return "a whole number" if self.clamp else f"a whole number from {self.first} to {self.last}"

    def _code(self, text: str) -> int | None:
        number = _number(text)
        if number is None or not number.is_integer():
            return None
        if not self.first <= number <= self.last and not self.clamp:
            return None
        return int(min(max(number, self.first), self.last)) - self.first

    def _label(self, code: int) -> str:
        return str(self.first + code)

    def _spec(self) -> dict[str, object]:
        return {"from": self.first, "to": self.last, **({"clamp": True} if self.clamp else {})}


@dataclass(frozen=True, slots=True)
class Binned(Attribute):
    """An attribute of numbers in bins: each from its left edge to below its right one, the last with both."""

    named: ClassVar[bool] = True

    edges: tuple[float, ...] = ()
    clamp: bool = False

    @property
    def demand(self) -> str:
        return "a number" if self.clamp else f"a number from {self.edges[0]:g} to {self.edges[-1]:g}"

    def _code(self, text: str) -> int | None:
        number = _number(text)
        if number is None or not (self.clamp or self.edges[0] <= number <= self.edges[-1]):
            return None
        return min(max(bisect.bisect_right(self.edges, number) - 1, 0), self.values - 1)

    @property
    def end(self) -> str:
        return "an edge of its bins"

    def _ends(self, text: str) -> tuple[int, int] | None:
        number = _number(text)
        if number is None or number not in self.edges:
            return None
        place = self.edges.index(number)
        return place, place

    def _label(self, code: int) -> str:
        last = "]" if code == self.values - 1 else ")"
        return f"[{self.edges[code]:g}, {self.edges[code + 1]:g}{last}"

    def _range(self, first: int, last: int) -> str:
        low, high = f"{self.edges[first]:g}", f"{self.edges[last + 1]:g}"
        if last == self.values - 1:
            return f"{self.name} ≥ {low}" if first else f"{self.name} ≤ {high}"
        return f"{self.name} < {high}" if first == 0 else f"{low} ≤ {self.name} < {high}"

    def _spec(self) -> dict[str, object]:
        return {"bins": list(self.edges)} | ({"clamp": True} if self.clamp else {})


def text_of(value: object) -> str:
    """Return a value of a data frame as the text that a file would hold: nothing where it is missing.

    Examples
    --------
    >>> text_of(39.0), text_of("Private"), text_of(float("nan")), text_of(None)
    ('39', 'Private', '', '')
    """
    if isinstance(value, str):
        return value
    if is_missing(value):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def is_missing(value: object) -> bool:
    """Whether a value of a data frame is missing: None, NaN, and what pandas has for it.

    NaN and NaT differ from themselves; of NA nobody can say, and the answer is NA.

    Examples
    --------
    >>> is_missing(None), is_missing(float("nan")), is_missing(""), is_missing(False)
    (True, True, False, False)
    """
    differs: object = value != value
    return value is None or (bool(differs) if isinstance(differs, bool | np.bool) else differs is value)


def codes_of(attribute: Attribute, values: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    known: dict[object, int] = {}
    found = np.empty(len(values), dtype=np.int64)
    for index, value in enumerate(listed(values)):
        text = text_of(value)
        if text not in known:
            code = attribute.code(text)
            if code is None and isinstance(value, bool):
                code = attribute.code(str(int(value)))
            known[text] = -1 if code is None else code
        found[index] = known[text]
    return found


def listed(values: npt.NDArray[np.generic]) -> list[Any]:
    """Return the values of a column; of dates and durations, which NumPy lists as numbers, missing ones as None."""
    missing = np.isnat(values) if values.dtype.kind in "mM" else np.zeros(0, dtype=bool)
    return [None if absent else each for each, absent in itertools.zip_longest(values.tolist(), missing.tolist())]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and text.isascii() and "_" not in text else None
