"""Read a proof file and compute the bounds that it proves on the optimum of its problem.

A file has four sections. ``problem`` holds the ``kind`` of the problem and all its numbers. ``upper`` and ``lower``
hold the data that prove an upper and a lower bound on the optimum. ``claim`` holds two numbers, which the proven bounds
must support. Numbers are strings such as ``-0x1a3p-52``: a hexadecimal integer times a power of two. A file with an
unknown or unused name is refused.

The optional ``family`` is the library's name for the problem. No bound depends on it, but the family must have problems
of this kind with this privacy cost ``allowed``.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from . import epochs, local, noise, tables
from .exact import Refused, Section, above, below, expect

SCHEMA = "dualmech.proof/3"

SUPPORTED_SCHEMAS = ("dualmech.proof/2", SCHEMA)  # these differ only in the problems on tables

TARGET_KINDS = ("targets", "participation targets", "table targets", "product targets")
WEIGHT_KINDS = ("weights", "participation weights", "table weights", "product weights")
FAMILIES: dict[str, tuple[str, ...]] = {
    "FitnessForUse": TARGET_KINDS,
    "PrivacyFirst": TARGET_KINDS,
    "TotalVariance": WEIGHT_KINDS,
    "SoftmaxFitness": ("soft maxima",),
    "QueryWeighting": ("weighting",),
    "CommonMechanism": ("common", "common volume"),
    "ReuseFitness": ("reuse",),
    "LocalStrategy": ("local",),
    "LocalProjection": ("projection",),
    "NonnegativeEstimate": ("estimate",),
}
"""The kinds of problem of each family."""
UNIT_COST_FAMILIES = ("FitnessForUse", "TotalVariance")
"""Families without a parameter for the privacy cost: their ``allowed`` must be 1."""

KINDS: dict[str, Callable[[Section, Section, Section], tuple[Fraction, Fraction]]] = {
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
"""For each kind of problem, the function that returns its lower and upper bound from (problem, upper, lower)."""


def check(proof: Any) -> tuple[Fraction, Fraction]:
    """Return the claimed lower and upper bound on the optimum.

    Raises
    ------
    Refused
        If the file does not prove both.
    """
    lower, upper = proven_bounds(proof)
    claim = Section(proof).part("claim")
    claimed_lower, claimed_upper = claim.number("lower"), claim.number("upper")
    claim.refuse_unread()
    expect(
        claimed_lower <= lower,
        f"the claimed lower bound, {below(claimed_lower)}, is above the proven bound, {below(lower)}",
    )
    expect(
        upper <= claimed_upper,
        f"the claimed upper bound, {above(claimed_upper)}, is below the proven bound, {above(upper)}",
    )
    return claimed_lower, claimed_upper


def proven_bounds(proof: Any) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that a file proves, without regard to its claim."""
    schema = proof.get("schema") if isinstance(proof, dict) else None
    expect(schema in SUPPORTED_SCHEMAS, f"it is not a {SCHEMA!r} file, its schema is {str(schema)[:40]!r}")
    contents = Section(proof)
    (
        contents.get("schema"),
        contents.get("claim"),
    )  # mark as read; only `check` needs the claim
    problem = contents.part("problem")
    kind = problem.word("kind", KINDS)
    try:
        with garbage_collection_paused():
            bounds = KINDS[kind](problem, contents.part("upper"), contents.part("lower"))
            _require_family(problem, kind)
            contents.refuse_unread()
        return bounds
    except (TypeError, ValueError, LookupError, ArithmeticError, MemoryError, RecursionError) as error:
        raise Refused(f"its sections are inconsistent: {type(error).__name__}: {error}") from error


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector: a proof has no reference cycles, but many objects to traverse."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _require_family(problem: Section, kind: str) -> None:
    """Refuse a family that has no problems of this kind, since callers report the family of a checked file."""
    if problem.get("family") is None:
        return
    family = problem.word("family", [name for name, kinds in FAMILIES.items() if kind in kinds])
    if family in UNIT_COST_FAMILIES:
        expect(problem.number("allowed") == 1, f"allowed must be 1 if the family is {family}")


def read(path: str) -> Any:
    """Return the contents of a JSON file; raise `Refused` if it is not JSON."""
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle, object_pairs_hook=_distinct)
    except UnicodeDecodeError as error:
        raise Refused("it is not text: a proof is a JSON file, as written by solve --prove") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"it is not JSON: {error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary; refuse duplicate names, which other readers may resolve differently."""
    mapping = dict(pairs)
    expect(len(mapping) == len(pairs), "a section must not contain the same name twice")
    return mapping


def main(arguments: list[str]) -> int:
    """Print the proven bounds; return 0, or 3 if the proof is refused, 1 if the file is unreadable, 2 for bad usage."""
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
