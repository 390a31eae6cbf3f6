"""What may be asked of an attribute: its values, prefixes, ranges, groups, total or sum, or rows by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from dualmech import validate, workloads
from dualmech.errors import InvalidInputError, did_you_mean
from dualmech.publishing.attributes import PREFIXES, RANGES, SUM, TOTAL, VALUES, WORDS, Attribute
from dualmech.validate import Array
from dualmech.workloads.base import Workload

MOST = 2048  # values of an attribute up to which what follows is written out
IN_ORDER: dict[str, Callable[[int], Workload]] = {
    PREFIXES: lambda size: workloads.prefix(size),
    RANGES: lambda size: workloads.all_range(size),
}
"""What has as much noise as there are values, which are no more than this."""

SUM_LIMIT = "(sum|total|amount).*(most|max|limit|clip|cap)|(most|max|limit|clip|cap).*(sum|total|amount)"
NOT_SUPPORTED = {
    "distinct|unique": "counts of distinct persons in a cell are not supported: keep one row for each person and cell, "
    "frame.unique(['person', 'cell']) in polars; records.person and records.at_most bound the cells of a person",
    SUM_LIMIT: "a limit on a person's whole sum is not supported: make one row of each person, with a clipped sum, "
    "frame.group_by('person').agg(polars.col('x').sum().clip(0, 20)) in polars",
}
"""What is asked for and is no feature, by what it may be called: what to do before (``docs/release.md``)."""

Row = tuple[str, Array]
"""The name of a query on an attribute, and the query (size,)."""


def asked_of(attribute: Attribute, ask: object, alone: bool = False) -> Workload | None:
    """Return the queries on an attribute that a word, a list, or a mapping of names to values stands for.

    A word is one of `WORDS`, or a grouping of the attribute. A list has values, ranges of them such as ``18..64``,
    lists of these, which count together, and words. Prefixes, ranges and the sum leave out what is missing, and what
    counts as the rest; groups have these in rows of their own. Words in order are of any number of values where the
    attribute stands `alone`, in one table over no other.
    Raises `InvalidInputError` or `InputTypeError` for another word, a value that the attribute has not, two rows of one
    name.

    Examples
    --------
    >>> from dualmech.publishing.schema import attribute_of
    >>> age = attribute_of("age", range(17, 91))
    >>> asked_of(age, ["18..64", 90]).names, asked_of(age, {"young": "17..29", "old": ["65..89", 90]}).names
    (('18 ≤ age ≤ 64', 'age = 90'), ('young', 'old'))
    >>> goal = {"East": ["ATL", "BOS"], "West": ["LAX"]}
    >>> flown = attribute_of("dest", {"labels": ["ATL", "BOS", "LAX"], "groups": {"coast": goal}, "rest": "elsewhere"})
    >>> asked_of(flown, ["coast", "values", "total"]).names
    ('East', 'West', 'elsewhere', 'ATL', 'BOS', 'LAX', 'any dest')
    """
    what = f"ask of {attribute.name!r}"
    if ask == VALUES:
        return None
    if isinstance(ask, str):
        if ask in IN_ORDER and alone and attribute.size == attribute.values > MOST:
            _require_order(attribute, ask)
            return IN_ORDER[ask](attribute.size)
        if ask not in attribute.groupings:
            refuse_unsupported(what, ask)
        rows = [*_of_word(attribute, validate.choice([*WORDS, *attribute.groupings], **{what: ask}))]
    elif isinstance(ask, Mapping):
        rows = [(validate.text(**{what: name}), _counting(attribute, part)) for name, part in ask.items()]
    else:
        rows = [row for item in validate.sequence(**{what: ask}) for row in _of_item(attribute, item)]
    if not rows:
        raise InvalidInputError(f"{what} must list one value or more, got none")
    if not attribute.named and not isinstance(ask, Mapping):
        return Workload(np.array([row for _, row in rows]))
    distinct = _distinct(attribute, rows)
    return Workload(np.array([*distinct.values()]), [*distinct])


def refuse_unsupported(what: str, word: str) -> None:
    """Raise `InvalidInputError` for a word or key by which a user asks for what is no feature, and say what to do."""
    for called, advice in NOT_SUPPORTED.items():
        if re.search(called, word.casefold()):
            raise InvalidInputError(f"{what} has {word!r}, but {advice}")


def _distinct(attribute: Attribute, rows: list[Row]) -> dict[str, Array]:
    """Return rows by name; a row that comes twice is asked once, and two rows of one name are refused."""
    distinct: dict[str, Array] = {}
    for name, row in rows:
        known = distinct.setdefault(name, row)
        if not np.array_equal(known, row):
            raise InvalidInputError(
                f"ask of {attribute.name!r} must have rows that a reader can tell apart, got two that are called "
                f'{name!r}: name them, as in ask = {{ {attribute.name} = {{ "a name" = [values] }} }}'
            )
    return distinct


def _of_item(attribute: Attribute, item: object) -> Iterator[Row]:
    if isinstance(item, Mapping):
        raise InvalidInputError(
            f"ask of {attribute.name!r} must be a mapping of names, or a list of values: {{ name = [values] }}"
        )
    word = isinstance(item, str) and attribute.named_code(item) is None
    if word and item in (*WORDS, *attribute.groupings):
        yield from _of_word(attribute, str(item))
        return
    row = _counting(attribute, item)
    yield _name(attribute, row), row


def _of_word(attribute: Attribute, word: str) -> Iterator[Row]:
    size, values = attribute.size, attribute.values
    if word in attribute.groupings:
        groups = attribute.groupings[word]
        yield from ((name, _indicator(attribute, codes)) for name, codes in groups.items())
        for code in sorted({*range(values, size)}.difference(*groups.values())):  # what is missing, and the rest
            yield attribute.label(code), _indicator(attribute, [code])
    elif word == VALUES:
        yield from ((attribute.label(code), row) for code, row in enumerate(np.eye(size)))
    elif word == TOTAL:
        yield _name(attribute, np.ones(size)), np.ones(size)
    elif word == SUM:
        worth = attribute.worth
        if worth is None or not np.any(worth):
            raise InvalidInputError(
                f"the sum of {attribute.name!r} needs numbers: whole ones, or bins with the option worth, what a "
                f"number in each bin adds to the sum"
            )
        yield f"sum of {attribute.name}", worth
    else:
        _require_order(attribute, word)
        if values > MOST:
            raise InvalidInputError(
                f"{word} of {attribute.name!r} must be of at most {MOST} values, whose noise is solved and drawn on a "
                f"matrix, got {values}: take coarser ones, such as bins, or ask them in one table of one attribute, "
                f"without missing values, and no other"
            )
        rows = np.pad(IN_ORDER[word](values).dense(), ((0, 0), (0, size - values)))
        counted = [np.flatnonzero(row).tolist() for row in rows]
        yield from zip(attribute.row_names(counted, word == PREFIXES), rows, strict=True)


def _counting(attribute: Attribute, item: object) -> Array:
    try:
        return _indicator(attribute, attribute.chosen(item))
    except InvalidInputError as error:
        known = [*WORDS, *attribute.groupings, *(attribute.label(code) for code in range(min(attribute.size, MOST)))]
        near = did_you_mean(item, known) if isinstance(item, str) else ""
        raise InvalidInputError(f"ask of {attribute.name!r}: {error}{near}") from None


def _indicator(attribute: Attribute, codes: npt.ArrayLike) -> Array:
    row = np.zeros(attribute.size)
    row[np.asarray(codes, dtype=np.intp)] = 1.0
    return row


def _name(attribute: Attribute, row: Array) -> str:
    return attribute.row_names([np.flatnonzero(row).tolist()])[0]


def _require_order(attribute: Attribute, word: str) -> None:
    if not attribute.ordered:
        raise InvalidInputError(
            f"{word} need an order, which the labels of {attribute.name!r} have with the option ordered = true"
        )
