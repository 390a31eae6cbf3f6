"""What is asked of an attribute in words: its values, prefixes, ranges, the total, or a list of values and ranges."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.attributes import Attribute
from dualmech.workloads.base import Workload
from dualmech.workloads.streams import RangeWorkload, StreamWorkload

KINDS = ("values", "prefixes", "ranges", "total")
"""What may be asked of an attribute, but for lists of values."""

IN_ORDER, MOST = ("prefixes", "ranges"), 2048
"""What has as much noise as there are values, which are no more than this."""

BETWEEN = ".."  # as in ``18..64``


def asked_of(attribute: Attribute, asked: object, alone: bool = False) -> Workload | None:
    """Return the queries on an attribute that a kind, or a list of values and ranges of them, stands for.

    What is in order is of any number of values where the attribute stands `alone`, in one table over no other.

    Examples
    --------
    >>> from dualmech.workloads.schema import attribute_of
    >>> asked_of(attribute_of("age", range(17, 91)), ["18..64", 90]).names
    ('18 ≤ age ≤ 64', 'age = 90')
    """
    if asked == "values":
        return None
    values = attribute.values
    if isinstance(asked, str):
        validate.choice(KINDS, **{f"ask of {attribute.name!r}": asked})
        if asked != "total" and not attribute.ordered:
            raise InvalidInputError(f"{asked} need an order, which the labels of {attribute.name!r} have not")
        made: Any = {"prefixes": StreamWorkload, "ranges": RangeWorkload, "total": _total}[asked]
        if asked in IN_ORDER and values > MOST:
            if alone and values == attribute.size:
                return cast(Workload, made(values))
            raise InvalidInputError(
                f"{asked} of {attribute.name!r} must be of at most {MOST} values, whose noise is solved and drawn on a "
                f"matrix, got {values}: take coarser ones, such as bins, or ask them in one table of one attribute, "
                f"without missing values, and no other"
            )
        rows = made(attribute.size if asked == "total" else values).dense()
        rows = np.pad(rows, ((0, 0), (0, attribute.size - rows.shape[1])))
    else:
        items = validate.sequence(**{f"ask of {attribute.name!r}": asked})
        rows = np.array([_row(attribute, item) for item in items])
        if not len(rows):
            raise InvalidInputError(f"ask of {attribute.name!r} must list one value or more, got none")
    if not attribute.named:
        return Workload(rows)
    names = [attribute.describe(np.flatnonzero(row).tolist(), asked == "prefixes") for row in rows]
    shown = [
        name or f"{attribute.name}: {int(row.sum())} values" for name, row in zip(names, rows, strict=True)
    ]
    return Workload(rows, shown)


def _row(attribute: Attribute, item: object) -> Array:
    row = np.zeros(attribute.size)
    for part in item if isinstance(item, list | tuple) else [item]:
        first, between, last = str(part).partition(BETWEEN)
        if between and attribute.ordered:
            start, stop = attribute.span(first, last)
            row[start:stop] = 1.0
        else:
            code = attribute.named_code(str(part))
            if code is None:
                raise InvalidInputError(f"ask of {attribute.name!r}: {attribute.refused(part)}")
            row[code] = 1.0
    return row


def _total(size: int) -> Workload:
    return Workload(np.ones((1, size)))
