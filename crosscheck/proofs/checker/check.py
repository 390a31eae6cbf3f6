"""Read a proof file, and say between which numbers it shows that an optimum lies.

A file has a ``problem``, with its ``kind`` and all its numbers; parts that show an ``upper`` and a ``lower`` bound on
its optimum; and a ``claim``, two numbers that the bounds are held against. Numbers are texts such as ``-0x1a3p-52``: a
whole number in hexadecimal, times a power of two. A name that nothing reads is refused.

The ``family``, where a file has one, is the library's name for the problem. No bound rests on it; it must be one that
has problems of this kind, with this number ``allowed``.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from . import epochs, local, noise, tables
from .exact import Given, Refused, above, below, expect

SCHEMA = "dualmech.proof/3"

READ = ("dualmech.proof/2", SCHEMA)  # which differ in tables alone

NOISE = ("targets", "participation targets", "table targets", "product targets")
SPREAD = ("weights", "participation weights", "table weights", "product weights")
FAMILIES: dict[str, tuple[str, ...]] = {
    "FitnessForUse": NOISE,
    "PrivacyFirst": NOISE,
    "TotalVariance": SPREAD,
    "SoftmaxFitness": ("soft maxima",),
    "QueryWeighting": ("weighting",),
    "CommonMechanism": ("common", "common volume"),
    "ReuseFitness": ("reuse",),
    "LocalStrategy": ("local",),
    "LocalProjection": ("projection",),
    "NonnegativeEstimate": ("estimate",),
}
"""The kinds of problem that a family has."""
WITHOUT_COST = ("FitnessForUse", "TotalVariance")
"""Families that ask nothing at a privacy cost of their own: the number allowed is 1."""

KINDS: dict[str, Callable[[Given, Given, Given], tuple[Fraction, Fraction]]] = {
    "targets": noise.bounds,
    "weights": noise.bounds,
    "participation targets": epochs.bounds,
    "participation weights": epochs.bounds,
    "soft maxima": noise.softmax_bounds,
    "weighting": noise.weighting_bounds,
    "common": noise.common_bounds,
    "common volume": noise.volume_bounds,
    "reuse": noise.reuse_bounds,
    "local": local.bounds,
    "projection": local.projection_bounds,
    "estimate": local.estimate_bounds,
    "table targets": tables.bounds,
    "table weights": tables.bounds,
    "product targets": tables.product_bounds,
    "product weights": tables.product_bounds,
}
"""By kind of problem, what finds its lower and its upper bound from these parts of a file: problem, upper, lower."""


def check(proof: Any) -> tuple[Fraction, Fraction]:
    """Return the bounds on the optimum that a proof claims; `Refused` where it shows less."""
    lower, upper = shown(proof)
    claim = Given(proof).part("claim")
    least, most = claim.number("lower"), claim.number("upper")
    claim.refuse_unread()
    expect(least <= lower, f"the lower bound claimed, {below(least)}, is above what is shown, {below(lower)}")
    expect(upper <= most, f"the upper bound claimed, {above(most)}, is below what is shown, {above(upper)}")
    return least, most


def shown(proof: Any) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that a file shows, whatever it claims."""
    schema = proof.get("schema") if isinstance(proof, dict) else None
    expect(schema in READ, f"it is no {SCHEMA!r} file, its schema is {str(schema)[:40]!r}")
    contents = Given(proof)
    contents.get("schema"), contents.get("claim")  # of which one was read, and the other is not asked here
    problem = contents.part("problem")
    kind = problem.word("kind", KINDS)
    try:
        with uncollected():
            bounds = KINDS[kind](problem, contents.part("upper"), contents.part("lower"))
            _require_family(problem, kind)
            contents.refuse_unread()
        return bounds
    except (TypeError, ValueError, LookupError, ArithmeticError, MemoryError, RecursionError) as error:
        raise Refused(f"its parts do not fit together: {type(error).__name__}: {error}") from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for circles of references meanwhile: there are none, and the parts to look through are many."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _require_family(problem: Given, kind: str) -> None:
    """Refuse a family that has no such problem: what is said of a file must not depend on a name alone."""
    if problem.get("family") is None:
        return
    family = problem.word("family", [name for name, kinds in FAMILIES.items() if kind in kinds])
    if family in WITHOUT_COST:
        expect(problem.number("allowed") == 1, f"allowed must be 1 where the family is {family}")


def read(path: str) -> Any:
    """Return the contents of a file; `Refused` where it is no JSON."""
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle, object_pairs_hook=_distinct)
    except UnicodeDecodeError as error:
        raise Refused("it is no text: a proof is a file of JSON, as solve --prove writes it") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"it is no JSON: {error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a part by name; `Refused` where one comes twice, which others might read otherwise."""
    mapping = dict(pairs)
    expect(len(mapping) == len(pairs), "no name may come twice in a part")
    return mapping


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
