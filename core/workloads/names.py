"""Workloads by name: short texts such as ``prefix:64``, for the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dualmech import validate, workloads
from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.workloads.base import Workload


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A named workload: its builder, its syntax, readers of its parameters, and the number of optional ones."""

    build: Callable[..., Workload]
    usage: str
    parameters: tuple[Callable[[str], object], ...] = ()
    optional: int = 0
    separator: str = ","


def builtin_workload(text: str) -> Workload:
    """Build the workload of a text such as ``prefix:64`` or ``marginals:2x2x63:1,2``.

    A text is a builder's name, then a colon and its parameters, separated by commas; `usages` lists all.
    Random workloads need their seed, so that a text always names the same workload. Sizes of attributes are
    joined by ``x``. For ``marginals`` and ``range_marginals`` they are followed by a colon and the ways, and the size
    of a circle, for ``circular_ranges`` and ``affine``, by a colon and lengths or values.
    Raises `InvalidInputError` or `InputTypeError` for an unknown name (the message lists those known), parameters
    of the wrong number or kind (the message shows how they are written), or any that the builder refuses.

    Examples
    --------
    >>> from dualmech.workloads.names import builtin_workload
    >>> builtin_workload("prefix:64").shape, builtin_workload("marginals:2x2x63:1,2").shape
    ((64, 64), (323, 252))
    """
    if not isinstance(text, str):
        raise InputTypeError(f"the name of a workload must be a text, got {type(text).__name__}")
    name, colon, arguments = text.strip().partition(":")
    entry = BUILT_IN.get(name)
    if entry is None:
        hint = did_you_mean(name, BUILT_IN)
        suggestion = f"{hint[:-2]}{colon}{arguments}?)" if hint else ""
        raise InvalidInputError(f"unknown workload {text!r}{suggestion}; known are {', '.join(usages())}")
    parts = arguments.split(entry.separator) if colon else []
    max_arguments = len(entry.parameters)
    try:
        if not max_arguments - entry.optional <= len(parts) <= max_arguments:
            raise ValueError
        values = [read(part.strip()) for read, part in zip(entry.parameters, parts, strict=False)]
    except ValueError:
        raise InvalidInputError(f"workload {text!r} must be written {entry.usage}") from None
    return entry.build(*values)


def is_named(text: str) -> bool:
    """Whether a text starts with the name of a built-in workload, so that it is not the path of a file.

    Examples
    --------
    >>> from dualmech.workloads.names import is_named
    >>> is_named("prefix:many"), is_named("mine.csv")
    (True, False)
    """
    return text.strip().partition(":")[0] in BUILT_IN


def usages() -> list[str]:
    """Return how each built-in workload is written, for messages and help.

    Examples
    --------
    >>> from dualmech.workloads.names import usages
    >>> usages()[:2]
    ['identity:D', 'total:D']
    """
    return [entry.usage for entry in BUILT_IN.values()]


def _integer(text: str) -> int:
    if (number := validate.whole(text)) is None:
        raise ValueError(text)
    return number


def _integers(separator: str) -> Callable[[str], list[int]]:
    return lambda text: [_integer(part.strip()) for part in text.split(separator)]


def _shape(text: str) -> int | list[int]:
    sizes = _integers("x")(text)
    return sizes if len(sizes) > 1 else sizes[0]


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


_D_M_SEED = (_integer, _integer, _integer)
_TABLES = (_integers("x"), _integers(","))

BUILT_IN = {
    "identity": BuiltIn(workloads.identity, "identity:D", (_integer,)),
    "total": BuiltIn(workloads.total, "total:D", (_integer,)),
    "identity_total": BuiltIn(workloads.identity_total, "identity_total:D", (_integer,)),
    "prefix": BuiltIn(workloads.prefix, "prefix:D", (_integer,)),
    "decayed_sums": BuiltIn(workloads.decayed_sums, "decayed_sums:D,DECAY", (_integer, float)),
    "cdf": BuiltIn(workloads.cdf, "cdf:D", (_integer,)),
    "all_range": BuiltIn(workloads.all_range, "all_range:D", (_integer,)),
    "sines": BuiltIn(workloads.sines, "sines:D", (_integer,)),
    "random_range": BuiltIn(workloads.random_range, "random_range:D or AxBx...,M,SEED", (_shape, _integer, _integer)),
    "range_marginals": BuiltIn(workloads.range_marginals, "range_marginals:AxBx...:WAY,...", _TABLES, separator=":"),
    "marginals": BuiltIn(workloads.marginals, "marginals:AxBx...:WAY,...", _TABLES, separator=":"),
    "random_marginals": BuiltIn(
        workloads.random_marginals, "random_marginals:AxBx...,TABLES,SEED", (_integers("x"), _integer, _integer)
    ),
    "parity": BuiltIn(workloads.parity, "parity:ATTRIBUTES[:ORDER,...]", (_integer, _integers(",")), 1, separator=":"),
    "circular_ranges": BuiltIn(
        workloads.circular_ranges, "circular_ranges:N[:LENGTH,...]", (_integer, _integers(",")), 1, separator=":"
    ),
    "differences": BuiltIn(workloads.differences, "differences:N", (_integer,)),
    "affine": BuiltIn(workloads.affine, "affine:N:VALUE,...", (_integer, _integers(",")), separator=":"),
    "pl94": BuiltIn(workloads.pl94, "pl94"),
    "census_redistricting": BuiltIn(workloads.census_redistricting, "census_redistricting"),
    "sex_by_age": BuiltIn(
        workloads.sex_by_age, "sex_by_age[:BY RACE 0 or 1[,SINGLE YEARS 0 or 1[,AGES]]]", (_flag, _flag, _integer), 3
    ),
    "census_tables": BuiltIn(workloads.census_tables, "census_tables[:AGES]", (_integer,), 1),
    "age_pyramid": BuiltIn(workloads.age_pyramid, "age_pyramid[:AGES[,ADULTS 0 or 1]]", (_integer, _flag), 2),
    "random_signs": BuiltIn(workloads.random_signs, "random_signs:D,M,SEED[,PROBABILITY]", (*_D_M_SEED, float), 1),
    "predicates": BuiltIn(workloads.predicates, "predicates:D,M,SEED[,PROBABILITY]", (*_D_M_SEED, float), 1),
    "related": BuiltIn(workloads.related, "related:D,M,RANK,SEED", (_integer, *_D_M_SEED)),
}
"""The built-in workloads, by name."""
