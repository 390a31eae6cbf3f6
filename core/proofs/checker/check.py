"""Read a proof file, and say between which numbers it shows that an optimum lies.

A file has a ``problem``, with the ``kind`` of it and all its numbers; what shows an ``upper`` and a ``lower`` bound
on its optimum; and a ``claim``, two numbers that the bounds are held against. Numbers are texts such as
``-0x1a3p-52``: a whole number in hexadecimal, times a power of two.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from . import (
    common,
    estimate,
    local,
    noise,
    product,
    projection,
    reuse,
    softmax,
    tables,
    weighting,
)
from .exact import Refused, above, below, expect, number, part

SCHEMA = "dualmech.proof/2"

Given = dict[str, Any]

KINDS: dict[str, Callable[[Given, Given, Given], tuple[Fraction, Fraction]]] = {
    "targets": noise.bounds,
    "weights": noise.bounds,
    "soft maxima": softmax.bounds,
    "weighting": weighting.bounds,
    "common": common.bounds,
    "reuse": reuse.bounds,
    "local": local.bounds,
    "projection": projection.bounds,
    "estimate": estimate.bounds,
    "table targets": tables.bounds,
    "table weights": tables.bounds,
    "product targets": product.bounds,
    "product weights": product.bounds,
}
"""What finds the lower and the upper bound of a kind of problem, from these parts of a file: problem, upper, lower."""


def check(proof: Any) -> tuple[Fraction, Fraction]:
    """Return the bounds on the optimum that a proof claims; `Refused` where it shows less."""
    lower, upper = shown(proof)
    claim = part(proof, "claim")
    least, most = number(claim, "lower"), number(claim, "upper")
    expect(least <= lower, f"the lower bound claimed, {below(least)}, is above what is shown, {below(lower)}")
    expect(upper <= most, f"the upper bound claimed, {above(most)}, is below what is shown, {above(upper)}")
    return least, most


def shown(proof: Any) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that a file shows, whatever it claims."""
    schema = proof.get("schema") if isinstance(proof, dict) else None
    newer = "; it was written by a newer dualmech" if _newer(schema) else ""
    expect(schema == SCHEMA, f"it is no {SCHEMA!r} file{newer}")
    problem = part(proof, "problem")
    kind = str(problem.get("kind"))
    expect(kind in KINDS, f"kind must be one of {', '.join(KINDS)}")
    try:
        return KINDS[kind](problem, part(proof, "upper"), part(proof, "lower"))
    except (TypeError, ValueError, LookupError, ArithmeticError, MemoryError, RecursionError) as error:
        raise Refused(f"its parts do not fit together: {type(error).__name__}: {error}") from error


def _newer(schema: Any) -> bool:
    name, _, version = SCHEMA.partition("/")
    found = str(schema).removeprefix(f"{name}/")
    return (
        found != str(schema)
        and found.isascii()
        and found.isdecimal()
        and len(found) < 9
        and int(found) > int(version)
    )


def read(path: str) -> Any:
    """Return what a file holds; `Refused` where it is no JSON."""
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle, object_pairs_hook=_distinct)
    except UnicodeDecodeError as error:
        raise Refused("it is no text: a proof is a file of JSON, as solve --prove writes it") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"it is no JSON: {error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a part by name; `Refused` where one comes twice, which others might read otherwise."""
    found = dict(pairs)
    expect(len(found) == len(pairs), "no name may come twice in a part")
    return found


def main(arguments: list[str]) -> int:
    """Print what a file proves; return 0, or 3 where it proves less than it says, 1 where there is none to read."""
    if len(arguments) != 1:
        print("usage: python checker PROOF")
        return 2
    try:
        lower, upper = check(read(arguments[0]))
    except Refused as error:
        print(f"REFUSED: {error}")
        return 3
    except OSError as error:
        print(f"{arguments[0]}: cannot be read: {error.strerror}")
        return 1
    print(f"proven: {below(lower)} <= optimum <= {above(upper)}")
    return 0
