"""Attributes of labels, numbers, bins or codes: their values in records and their labels in tables."""

from __future__ import annotations

import bisect
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact, InvalidOperation
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dualmech.errors import InvalidInputError, did_you_mean
from dualmech.validate import composed

MAX_CODE = 2**53 - 1  # doubles represent all integers to 2^53

MAX_LABELS_IN_MESSAGE = 8

MISSING = "missing"  # label of a missing value in tables

ABSENT = (
    *("", "na", "n/a", "nan", "null", "none", ".", "?", "-"),
    *("#n/a", "#value!", "#ref!", "#div/0!", "#name?", "#null!", "#num!"),  # errors of spreadsheets
)
"""Frequent texts, in small letters, for a missing value."""

MAX_LABELS_IN_NAME = 3  # of a query

RANGE_SIGN = ".."  # as in ``18..64``

VALUES, PREFIXES, RANGES, TOTAL, SUM = WORDS = ("values", "prefixes", "ranges", "total", "sum")
"""The queries of every attribute; the names of its groupings are further queries."""

Grouping = Mapping[str, Sequence[int]]
"""The codes of the values in each group, by its name."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute whose values are the codes 0 … size - 1: the base class of the others."""

    has_labels: ClassVar[bool] = False  # whether values have labels for the names of queries
    any_value: ClassVar[str] = ""  # in messages, the required value of a record if the ends count values beyond them

    name: str
    size: int
    column: str = ""  # the column of records, by default the name
    missing: tuple[str, ...] = ()  # texts of a missing value, which has the last code
    groups: Mapping[str, Grouping] = field(default_factory=dict, hash=False)  # groupings of the values, by name

    @property
    def source(self) -> str:
        """The name of the column in records."""
        return self.column or self.name

    @property
    def values(self) -> int:
        """Number of values, without the missing one."""
        return self.size - bool(self.missing)

    @property
    def ordered(self) -> bool:
        """Whether values are ordered, so that queries may be ranges."""
        return True

    @property
    def groupings(self) -> Mapping[str, Grouping]:
        """The groupings by name: declared groupings, and natural ones, such as months of days."""
        return self.groups

    @property
    def worth(self) -> npt.NDArray[np.float64] | None:
        """The number of each value in sums (size,), 0 for a missing value; None if values are no numbers."""
        values = np.arange(self.size)
        return np.where(values < self.values, values, 0).astype(np.float64)

    @property
    def demand(self) -> str:
        """In messages, the required value of a record."""
        return self.any_value if getattr(self, "clamp", False) else self.named_demand

    @property
    def named_demand(self) -> str:
        """In messages, the required value of a query."""
        return f"a whole number from 0 to {min(self.size - 1, MAX_CODE)}"

    def code(self, text: str) -> int | None:
        """Return the code of a value in records, or None if it is not allowed."""
        return self._known_code(text, getattr(self, "clamp", False))

    def _known_code(self, text: str, clamp: bool) -> int | None:
        if self.missing and not {as_label(text), _plain(text)}.isdisjoint(self.missing):
            return self.size - 1
        return self._code(text, clamp)

    @property
    def has_rest(self) -> bool:
        """Whether an "other" category counts all values without a label."""
        return False

    def named_code(self, text: str) -> int | None:
        """Return the code of a value in a query; None for a value without a label, even if records clamp it."""
        return self.size - 1 if self.missing and text.strip() == MISSING else self._known_code(text, False)

    def label(self, code: int) -> str:
        return MISSING if self.missing and code == self.size - 1 else self._label(code)

    def describe(self, codes: Sequence[int], ranges: bool = False) -> str | None:
        """Return a name for the query that counts some values, or None if they have no short name.

        With `ranges`, a single value and the set of all values are named as ranges, so that all prefixes have names of
        one form.

        Examples
        --------
        >>> from dualmech.publishing.schema import attribute_of
        >>> age, sex = attribute_of("age", range(17, 91)), attribute_of("sex", ["female", "male"])
        >>> age.describe(range(19)), age.describe([3]), age.describe(range(1, 48)), sex.describe([0, 1])
        ('age ≤ 35', 'age = 20', '18 ≤ age ≤ 64', 'any sex')
        """
        if not self.has_labels:
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
        if len(codes) <= MAX_LABELS_IN_NAME:
            labels = [self.label(code) for code in codes]
            return f"{self.name} = {', '.join(labels[:-1])} or {labels[-1]}"
        return None

    def chosen(self, item: object) -> list[int]:
        """Return the codes of a value, a range such as ``18..64``, or a list of these.

        Raises `InvalidInputError` for other items.
        """
        codes: list[int] = []
        for part in item if isinstance(item, list | tuple) else [item]:
            first, sign, last = str(part).partition(RANGE_SIGN)
            code = self.named_code(str(part))
            if code is not None:
                codes.append(code)
            elif sign and self.ordered:
                codes += range(*self.span(first, last))
            else:
                raise InvalidInputError(self._refused(part, self.named_demand))
        return sorted({*codes})

    def row_names(self, rows: Sequence[Sequence[int]], ranges: bool = False) -> list[str]:
        """Return a name for each query, as `describe`; for many values, the first ones and the number of others."""
        names = []
        for codes in rows:
            labels = ", ".join(self.label(code) for code in codes[:MAX_LABELS_IN_NAME])
            long_name = f"{self.name} = {labels} or {len(codes) - MAX_LABELS_IN_NAME} more"
            names.append(self.describe(codes, ranges) or long_name)
        return names

    def keys(self, rows: Sequence[Sequence[int]]) -> list[tuple[str, str]]:
        """Return the first and last value of each query, as in records, to sort and join tables by.

        Both are empty if the values are no range, and for labels without order and codes.

        Examples
        --------
        >>> from dualmech.publishing.schema import attribute_of
        >>> days = attribute_of("day", {"from": "2013-01-01", "to": "2014-12-31"})
        >>> days.keys([range(31, 59)]), attribute_of("hours", {"bins": [0, 20, 40]}).keys([[1], [0, 1]])
        ([('2013-02-01', '2013-02-28')], [('20', '40'), ('0', '40')])
        """
        return [self._keys(codes[0], codes[-1]) if self._is_range(codes) else ("", "") for codes in rows]

    def _is_range(self, codes: Sequence[int]) -> bool:
        are_values = self.has_labels and len(codes) > 0 and codes[-1] < self.values
        return are_values and codes[-1] - codes[0] == len(codes) - 1

    @property
    def end(self) -> str:
        """In messages, the required end of a range."""
        return self.named_demand

    def span(self, first: str, last: str) -> tuple[int, int]:
        """Return the first code of a range of values, and its last code plus 1.

        Raises `InvalidInputError` for ends that are no values (for bins, no edges), or not in order.
        """
        start, stop = self._ends(first), self._ends(last)
        if start is None or stop is None or start[0] >= stop[1]:
            raise InvalidInputError(
                f"a range of {self.name!r} must go from one value to a later one, each {self.end}, got {first}..{last}"
            )
        return start[0], stop[1]

    @property
    def reading(self) -> list[tuple[str, list[str]]]:
        """How values of records are read, in words for a statement, each with the items that it lists."""
        return []

    def as_spec(self) -> dict[str, object]:
        """Return the mapping of options of this attribute, for `attribute_of`."""
        groups = {
            name: {group: [self._item(code) for code in codes] for group, codes in grouping.items()}
            for name, grouping in self.groups.items()
        }
        common = {"column": self.column, "missing": list(self.missing), "groups": groups}
        return self._spec() | {key: value for key, value in common.items() if value}

    def refused(self, value: object) -> str:
        """Return the message for an invalid value of a record, with a change of the records or the schema."""
        message = self._refused(value, self.demand)
        return message if "; the option " in message else message + self._hint(str(value).strip())

    def _hint(self, text: str) -> str:
        """Return the end of a message: how to read a refused value, empty if unknown."""
        return number_hint(text)

    def _refused(self, value: object, demand: str) -> str:
        value_text, hint = reprlib.repr(value).removesuffix(".0"), ""
        text = value.strip() if isinstance(value, str) else None
        if self.has_labels and (is_missing(value) or (text is not None and text.casefold() in ABSENT)):
            hint = f'; the option missing = "{text or ""}" counts missing values in a separate cell'
        elif not getattr(self, "clamp", True) and self._code(str(value), clamp=True) is not None:
            hint = "; the option clamp = true counts values beyond the ends at the ends"
        return f"{self.source!r} must be {demand}, got {value_text}{hint}"

    def _code(self, text: str, clamp: bool = False) -> int | None:
        """Return the code of a value that is not missing; with `clamp`, values beyond an end have the end's code."""
        number = read_number(text)
        if number is None or not (number.is_integer() and 0 <= number <= min(self.values - 1, MAX_CODE)):
            return None
        return int(number)

    def _ends(self, text: str) -> tuple[int, int] | None:
        """Return the codes (start, stop) of a range that starts, or of one that ends, at a value; None for no value."""
        code = self._code(text)
        return None if code is None else (code, code + 1)

    def _label(self, code: int) -> str:
        return str(code)

    def _keys(self, first: int, last: int) -> tuple[str, str]:
        return self._label(first), self._label(last)

    def _item(self, code: int) -> str:
        return self.label(code)

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
    """An attribute of labels, such as occupations; optionally ordered, optionally with an "other" category."""

    has_labels: ClassVar[bool] = True

    labels: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()  # texts of records with their labels, if records do not hold labels
    rest: str = ""  # label of the "other" category, whose code follows the labels
    in_order: bool = False
    _codes: Mapping[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _numbers: Mapping[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        codes = {label: code for code, label in enumerate(self.labels)}
        codes = {text: codes[label] for text, label in self.texts} or codes
        object.__setattr__(self, "_codes", codes)
        object.__setattr__(self, "_numbers", {_plain(text): code for text, code in reversed(codes.items())})

    @property
    def values(self) -> int:
        """Number of labels, without the "other" category."""
        return len(self.labels)

    @property
    def ordered(self) -> bool:
        return self.in_order

    @property
    def worth(self) -> None:
        return None

    @property
    def demand(self) -> str:
        return "a value" if self.rest else self.named_demand

    @property
    def named_demand(self) -> str:
        first_labels = ", ".join(map(repr, [*self._codes][:MAX_LABELS_IN_MESSAGE]))
        return f"one of {first_labels}{', …' if len(self._codes) > MAX_LABELS_IN_MESSAGE else ''}"

    def named_code(self, text: str) -> int | None:
        plain = as_label(text)
        if plain in self.labels:
            return self.labels.index(plain)
        if self.rest:  # records may hold any text, queries only labels
            absent = bool(self.missing) and plain in (MISSING, *self.missing)
            return self.size - 1 if absent else self.values if plain == self.rest else self._codes.get(plain)
        return super(Labelled, self).named_code(text)

    @property
    def has_rest(self) -> bool:
        return bool(self.rest)

    def _code(self, text: str, clamp: bool = False) -> int | None:
        plain = as_label(text)
        code = self._codes.get(plain)
        if code is None:
            code = self._numbers.get(_plain(text))  # a frame of numbers has 1.0 for 1, and 0.5 for 0.50
        return self.values if code is None and self.rest and plain else code

    def _hint(self, text: str) -> str:
        folded = {label.casefold(): label for label in self._codes}
        similar = folded.get(text.casefold())
        if similar is None:
            return did_you_mean(text, self._codes) or '; the option rest = "other" counts all other values in one cell'
        label = self.labels[self._codes[similar]]
        return (
            f"; write {similar!r}, or map both to one label: "
            f'labels = {{ "{similar}" = "{label}", "{text}" = "{label}", … }}'
        )

    def _ends(self, text: str) -> tuple[int, int] | None:
        code = self.named_code(text)
        return None if code is None or code >= self.values else (code, code + 1)

    @property
    def end(self) -> str:
        return "one of its labels"

    def _keys(self, first: int, last: int) -> tuple[str, str]:
        """Return the texts in records, if each label has one, or the positions of labels in their order."""
        if len(self.texts) == len(self.labels) and (self.in_order or first == last):
            return self.texts[first][0], self.texts[last][0]
        return (str(first + 1), str(last + 1)) if self.in_order else ("", "")

    def _label(self, code: int) -> str:
        return self.labels[code] if code < self.values else self.rest

    @property
    def reading(self) -> list[tuple[str, list[str]]]:
        items = [f"{text} as {label}" for text, label in self.texts]
        return [("records are read so: ", items)] if items else []

    def _spec(self) -> dict[str, object]:
        spec: dict[str, object] = {"labels": dict(self.texts) if self.texts else list(self.labels)}
        return spec | ({"rest": self.rest} if self.rest else {}) | ({"ordered": True} if self.in_order else {})


@dataclass(frozen=True, slots=True)
class Numbers(Attribute):
    """An attribute of numbers with one cell each: integers, such as years of age, or points of a grid.

    With a step, the numbers of records are rounded to the nearest grid point, from the middle upwards.
    """

    has_labels: ClassVar[bool] = True

    first: Decimal | int = 0
    step: Decimal | None = None  # None: only integers are allowed
    clamp: bool = False  # whether the ends count numbers beyond them
    has_points: bool = False  # whether 1.000 is 1, not a thousand

    @property
    def any_value(self) -> str:  # type: ignore[override]
        return "a whole number" if self.step is None else "a number"

    @property
    def last(self) -> Decimal | int:
        return self.first + (self.values - 1) * (self.step or 1)

    @property
    def worth(self) -> npt.NDArray[np.float64]:
        first, step = Fraction(self.first), Fraction(self.step or 1)
        common = math.lcm(first.denominator, step.denominator)
        values = np.arange(self.size)
        return np.where(values < self.values, int(first * common) + int(step * common) * values, 0) / common

    @property
    def named_demand(self) -> str:
        return f"{self.any_value} from {decimal_text(self.first)} to {decimal_text(self.last)}"

    def _code(self, text: str, clamp: bool = False) -> int | None:
        number = read_number(text)
        if number is None or (self.step is None and (not number.is_integer() or self._may_be_thousands(text))):
            return None
        try:
            exact = int(number) if self.step is None else Decimal(text.strip())
            if not self.first <= exact <= self.last and not clamp:
                return None
            clamped = min(max(exact, self.first), self.last)
            if self.step is None:
                return int(clamped - self.first)
            offset = EXACT.subtract(clamped, self.first)
            return int(EXACT.divide_int(EXACT.add(offset, self.step / 2), self.step))
        except ArithmeticError:  # a number of thousands of digits
            return None

    def _may_be_thousands(self, text: str) -> bool:
        return "." in text and not self.has_points and THOUSANDS.fullmatch(text.strip()) is not None

    def _hint(self, text: str) -> str:
        if self.step is not None:
            return number_hint(text)
        number = read_number(text)
        if self._may_be_thousands(text):
            point = f'; the option decimal = "." reads it as {number:.0f}' if number and number.is_integer() else ""
            return f"; it may be {text.replace('.', '')}: write it without full stops{point}"
        if number is not None and not number.is_integer():
            return "; the option step = 1 rounds numbers to whole ones, step = 0.1 to tenths"
        return number_hint(text)

    def _label(self, code: int) -> str:
        return decimal_text(self.first + code * (self.step or 1))

    @property
    def reading(self) -> list[tuple[str, list[str]]]:
        words = "numbers are rounded to the nearest of these values, from the middle upwards"
        return [] if self.step is None else [(words, [])]

    def _spec(self) -> dict[str, object]:
        ends: dict[str, object] = {"from": _plain_number(self.first), "to": _plain_number(self.last)}
        step = {} if self.step is None else {"step": _plain_number(self.step)}
        options = {"clamp": True} if self.clamp else {}
        return ends | step | options | ({"decimal": "."} if self.has_points else {})


@dataclass(frozen=True, slots=True)
class Binned(Attribute):
    """An attribute of numbers in bins, which contain their left edge; the last bin also contains its right edge."""

    has_labels: ClassVar[bool] = True
    any_value: ClassVar[str] = "a number"

    edges: tuple[float, ...] = ()
    clamp: bool = False
    counts_for: tuple[float, ...] = ()  # number of each bin in sums

    @property
    def worth(self) -> npt.NDArray[np.float64] | None:
        return np.array([*self.counts_for, *[0.0] * bool(self.missing)]) if self.counts_for else None

    @property
    def named_demand(self) -> str:
        return f"a number from {self.edges[0]:g} to {self.edges[-1]:g}"

    def _code(self, text: str, clamp: bool = False) -> int | None:
        number = read_number(text)
        if number is None or not (clamp or self.edges[0] <= number <= self.edges[-1]):
            return None
        return min(max(bisect.bisect_right(self.edges, number) - 1, 0), self.values - 1)

    @property
    def end(self) -> str:
        return "an edge of its bins"

    def _ends(self, text: str) -> tuple[int, int] | None:
        number = read_number(text)
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

    def _keys(self, first: int, last: int) -> tuple[str, str]:
        return f"{self.edges[first]:.17g}", f"{self.edges[last + 1]:.17g}"

    def _item(self, code: int) -> str:
        absent = code == self.size - 1 and bool(self.missing)
        return MISSING if absent else f"{self.edges[code]!r}{RANGE_SIGN}{self.edges[code + 1]!r}"

    @property
    def reading(self) -> list[tuple[str, list[str]]]:
        items = [f"{self.label(code)} counts {value:g}" for code, value in enumerate(self.counts_for)]
        return [("in sums and means: ", items)] if items else []

    def _spec(self) -> dict[str, object]:
        worth = {"worth": list(self.counts_for)} if self.counts_for else {}
        return {"bins": list(self.edges)} | worth | ({"clamp": True} if self.clamp else {})


def as_label(value: object) -> str:
    """Return the normal form of a label: without surrounding spaces, in Unicode's form NFC.

    Examples
    --------
    >>> len(as_label(" Que" + chr(0x301) + "bec "))
    6
    """
    return composed(str(value).strip())


def text_of(value: object) -> str:
    """Return a value of a data frame as its text in a file; empty for a missing value.

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
    """Return whether a value of a data frame is missing: None, NaN, or pandas' NaT and NA.

    NaN and NaT differ from themselves; ``NA != NA`` is NA.

    Examples
    --------
    >>> is_missing(None), is_missing(float("nan")), is_missing(""), is_missing(False)
    (True, True, False, False)
    """
    if isinstance(value, Decimal):  # comparing a signalling NaN raises an error
        return value.is_nan()
    differs: object = value != value
    return value is None or (bool(differs) if isinstance(differs, bool | np.bool) else differs is value)


def _plain(text: str) -> str:
    """Return the normal form of a label, without trailing zeros if it is a decimal number."""
    label = as_label(text)
    return label.rstrip("0").rstrip(".") if DECIMAL.fullmatch(label) else label


DECIMAL = re.compile(r"[+-]?[0-9]+\.[0-9]*")

THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+")
"""An integer with full stops between thousands, or a number with three decimals."""

FORMATTED_NUMBER = re.compile(r"[^\w(+.,\u2212-]*([+\u2212-]?\d(?:[\d.,'\u2019 \u00a0\u202f]*\d)?)[^\d()]*")
"""A number with the units, signs and separators that spreadsheets add."""


def number_hint(text: str) -> str:
    """Return the end of a message about a text that is no number: the required form of the number.

    Examples
    --------
    >>> number_hint("1,200"), number_hint("12 %"), number_hint("many")
    ("; write 1200, as pandas.read_csv(…, thousands=',') reads it", '; write 12 alone', '')
    """
    match = FORMATTED_NUMBER.fullmatch(text)
    if match is None:
        return ""
    number = match[1].replace("\u2212", "-")
    integer_part, mark, fraction = number.rpartition((re.findall(r"[^\d+-]", number) or [" "])[-1])
    marks = {*re.findall(r"[^\d+-]", integer_part)}
    has_fraction = mark in (".", ",") and mark not in marks and (len(fraction) != 3 or bool(marks))
    grouping = {*marks, *(mark if not has_fraction else ())}
    plain = re.sub(r"[^\d+-]", "", integer_part if has_fraction else number) + (f".{fraction}" if has_fraction else "")
    options = [f"thousands={sign!r}" for sign in sorted(grouping)] + ["decimal=','"] * (has_fraction and mark == ",")
    if options and match[1] == text and len(grouping) < 2:
        return f"; write {plain}, as pandas.read_csv(…, {', '.join(options)}) reads it"
    return f"; write {plain} alone" if plain != text else ""


EXACT = Context(prec=2000, traps=[Inexact, InvalidOperation])
"""Decimal arithmetic that raises an error instead of rounding; quotients of two doubles have fewer digits."""


def decimal_text(number: Decimal | int) -> str:
    """Return a number with all its decimals."""
    return _plain(format(number, "f")) if isinstance(number, Decimal) else str(number)


def _plain_number(number: Decimal | int) -> int | float:
    return int(number) if number == int(number) else float(number)


def read_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and text.isascii() and "_" not in text else None
