"""Promises of a release besides its unit of privacy: which records its tables count, sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dualmech.display import counted
from dualmech.errors import printable
from dualmech.publishing.records import Records


def promises(planned: Any) -> list[str]:
    """Return what a plan or a release promises about its records; of a combination, what each part promised.

    Plans, statements and the ledger print the same sentences.
    """
    parts = getattr(planned, "combined", ())
    several = [_of_columns(part.declared) for part in parts] or [_of_columns(planned.declared)]
    if all(sentences == several[0] for sentences in several):
        return several[0]
    return [f"Release {number}: {text}" for number, texts in enumerate(several, start=1) for text in texts]


def _of_columns(declared: Records) -> list[str]:
    sentences = _of_persons(declared)
    if declared.count is not None:
        sentences.append(f"A row counts as many records as its column {printable(declared.count)!r} says.")
    if declared.ignore:
        one = "" if declared.count is not None else ": each row counts as one record"
        sentences.append(f"Not read, though its name is that of a count: {_listed(declared.ignore)}{one}.")
    return sentences


def _of_persons(declared: Records) -> list[str]:
    bound = declared.persons
    if bound is None:
        return []
    person, per = printable(bound.person), f" in each value of {printable(bound.per)!r}" if bound.per else ""
    rows = f"{counted(bound.at_most, 'record')}{per}"
    if bound.check:
        return [f"Records in which a {person!r} has more than {rows} were to be refused."]
    return [
        f"Of each {person!r} at most {rows} {'is' if bound.at_most == 1 else 'are'} counted, chosen by its own records "
        f"alone: tables, sums, shares and means are of the records that are counted.",
        f"All records of a {person!r}{' in one value' if bound.per else ''} are protected together, however many there "
        f"are. Nothing is promised about one record alone: without it, another of the same {person!r} may be counted.",
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(printable(name)) for name in names)
