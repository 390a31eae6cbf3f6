"""Queries on an attribute: values, prefixes, ranges, groups, total, sum, or rows with names."""

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

MAX_DENSE_VALUES = 2048  # of an attribute whose prefixes and ranges are a dense matrix
IMPLICIT_WORKLOADS: dict[str, Callable[[int], Workload]] = {
    PREFIXES: lambda size: workloads.prefix(size),
    RANGES: lambda size: workloads.all_range(size),
}
"""Workloads for more values than that, which need no dense matrix."""

SUM_LIMIT = "(sum|total|amount).*(most|max|limit|clip|cap)|(most|max|limit|clip|cap).*(sum|total|amount)"
NOT_SUPPORTED = {
    "distinct|unique": "counts of distinct persons in a cell are not supported: keep one row for each person and cell, "
    "frame.unique(['person', 'cell']) in polars; records.person and records.at_most bound the cells of a person",
    SUM_LIMIT: "a limit on a person's whole sum is not supported: make one row of each person, with a clipped sum, "
    "frame.group_by('person').agg(polars.col('x').sum().clip(0, 20)) in polars",
}
"""Unsupported features by patterns of their names, with the steps to take instead (``docs/release.md``)."""

Row = tuple[str, Array]
"""The name of a query on an attribute, and the query (size,)."""


def queries_on(attribute: Attribute, ask: object, is_single: bool = False) -> Workload | None:
    """Return the queries on an attribute for a word, a list, or a mapping of names to values; None for all values.

    A word is one of `WORDS`, or a grouping of the attribute. A list has values, ranges such as ``18..64``, lists of
    these, which count together, and words. Prefixes, ranges and the sum exclude missing values and the "other"
    category; groupings have separate rows for them. Prefixes and ranges may be of any number of values if the attribute
    `is_single`: the only one, in the only table.
    Raises `InvalidInputError` or `InputTypeError` for another word, an unknown value, and two rows of one name.

    Examples
    --------
    >>> from dualmech.publishing.schema import attribute_of
    >>> age = attribute_of("age", range(17, 91))
    >>> queries_on(age, ["18..64", 90]).names, queries_on(age, {"young": "17..29", "old": ["65..89", 90]}).names
    (('18 ≤ age ≤ 64', 'age = 90'), ('young', 'old'))
    >>> goal = {"East": ["ATL", "BOS"], "West": ["LAX"]}
    >>> flown = attribute_of("dest", {"labels": ["ATL", "BOS", "LAX"], "groups": {"coast": goal}, "rest": "elsewhere"})
    >>> queries_on(flown, ["coast", "values", "total"]).names
    ('East', 'West', 'elsewhere', 'ATL', 'BOS', 'LAX', 'any dest')
    """
    place = f"ask of {attribute.name!r}"
    if ask == VALUES:
        return None
    if isinstance(ask, str):
        if ask in IMPLICIT_WORKLOADS and is_single and attribute.size == attribute.values > MAX_DENSE_VALUES:
            _require_order(attribute, ask)
            return IMPLICIT_WORKLOADS[ask](attribute.size)
        if ask not in attribute.groupings:
            refuse_unsupported(place, ask)
        rows = [*_of_word(attribute, validate.choice([*WORDS, *attribute.groupings], **{place: ask}))]
    elif isinstance(ask, Mapping):
        rows = [(validate.text(**{place: name}), _counting(attribute, part)) for name, part in ask.items()]
    else:
        rows = [row for item in validate.sequence(**{place: ask}) for row in _of_item(attribute, item)]
    if not rows:
        raise InvalidInputError(f"{place} must list one value or more, got none")
    if not attribute.has_labels and not isinstance(ask, Mapping):
        return Workload(np.array([row for _, row in rows]))
    distinct = _distinct(attribute, rows)
    return Workload(np.array([*distinct.values()]), [*distinct])


def refuse_unsupported(place: str, word: str) -> None:
    """Raise `InvalidInputError`, with advice, for a word or key that names an unsupported feature."""
    for pattern, advice in NOT_SUPPORTED.items():
        if re.search(pattern, word.casefold()):
            raise InvalidInputError(f"{place} has {word!r}, but {advice}")


def _distinct(attribute: Attribute, rows: list[Row]) -> dict[str, Array]:
    """Return rows by name, without duplicates; refuse two different rows with one name."""
    distinct: dict[str, Array] = {}
    for name, row in rows:
        if not np.array_equal(distinct.setdefault(name, row), row):
            raise InvalidInputError(
                f"ask of {attribute.name!r} must have distinct names of rows, got {name!r} twice: "
                f'name them, as in ask = {{ {attribute.name} = {{ "a name" = [values] }} }}'
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
    yield _row_name(attribute, row), row


def _of_word(attribute: Attribute, word: str) -> Iterator[Row]:
    size, values = attribute.size, attribute.values
    if word in attribute.groupings:
        groups = attribute.groupings[word]
        yield from ((name, _indicator(attribute, codes)) for name, codes in groups.items())
        for code in sorted({*range(values, size)}.difference(*groups.values())):  # missing and other values
            yield attribute.label(code), _indicator(attribute, [code])
    elif word == VALUES:
        yield from ((attribute.label(code), row) for code, row in enumerate(np.eye(size)))
    elif word == TOTAL:
        yield _row_name(attribute, np.ones(size)), np.ones(size)
    elif word == SUM:
        worth = attribute.worth
        if worth is None or not np.any(worth):
            raise InvalidInputError(
                f"the sum of {attribute.name!r} needs integers, or bins with the option worth, the number of each "
                f"bin in the sum"
            )
        yield f"sum of {attribute.name}", worth
    else:
        _require_order(attribute, word)
        if values > MAX_DENSE_VALUES:
            raise InvalidInputError(
                f"{word} of {attribute.name!r} must be of at most {MAX_DENSE_VALUES} values, whose noise is solved and "
                f"drawn on a matrix, got {values}: take coarser values, such as bins, or ask a single table of a "
                f"single attribute without missing values"
            )
        rows = np.pad(IMPLICIT_WORKLOADS[word](values).dense(), ((0, 0), (0, size - values)))
        codes = [np.flatnonzero(row).tolist() for row in rows]
        yield from zip(attribute.row_names(codes, word == PREFIXES), rows, strict=True)


def _counting(attribute: Attribute, item: object) -> Array:
    try:
        return _indicator(attribute, attribute.chosen(item))
    except InvalidInputError as error:
        labels = (attribute.label(code) for code in range(min(attribute.size, MAX_DENSE_VALUES)))
        hint = did_you_mean(item, [*WORDS, *attribute.groupings, *labels]) if isinstance(item, str) else ""
        raise InvalidInputError(f"ask of {attribute.name!r}: {error}{hint}") from None


def _indicator(attribute: Attribute, codes: npt.ArrayLike) -> Array:
    row = np.zeros(attribute.size)
    row[np.asarray(codes, dtype=np.intp)] = 1.0
    return row


def _row_name(attribute: Attribute, row: Array) -> str:
    return attribute.row_names([np.flatnonzero(row).tolist()])[0]


def _require_order(attribute: Attribute, word: str) -> None:
    if not attribute.ordered:
        raise InvalidInputError(
            f"{word} need an order, which the labels of {attribute.name!r} have with the option ordered = true"
        )
