"""What a file gives: its parts by name, the numbers in them, and a record of what of it was read.

A name that nothing reads would be read over, and a reader of the file might think that it means something: so a file is
refused unless every name in it was read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction
from typing import Any

from .exact import Matrix, Refused, expect, power

NUMBER = re.compile(r"(-?)0x([0-9a-f]{1,1000})p([+-]?[0-9]{1,4})", re.ASCII)
Shape = tuple[int | None, int | None]


class Given:
    """A part of a file: what it holds by name, and which of its names, and of those in its parts, were read."""

    def __init__(self, entries: dict[str, Any], where: str = "") -> None:
        self.entries, self.where = entries, where
        self.unread = dict.fromkeys(entries)
        self.within: dict[str, list[Given]] = {}

    def get(self, name: str) -> Any:
        """Return what a name stands for, None where there is none: it is read."""
        self.unread.pop(name, None)
        return self.entries.get(name)

    def names(self) -> list[str]:
        """Return all names, none of which is read by that."""
        return list(self.entries)

    def refuse_unread(self) -> None:
        """Refuse a name that was not read, here or in any part."""
        for name in self.unread:
            raise Refused(
                f"{self._place(name)} means nothing there: every name of a proof must be known, and used"
            )
        for inner in self.within.values():
            for each in inner:
                each.refuse_unread()

    def word(self, name: str, known: Collection[str], called: str = "") -> str:
        """Return a word that must be one of those known; `called` is what the file's reader calls it."""
        found = self.get(name)
        if not (isinstance(found, str) and found in known):
            raise Refused(f"{called or name} must be one of {', '.join(known)}")
        return found

    def part(self, name: str) -> Given:
        """Return a part."""
        found = self.get(name)
        expect(isinstance(found, dict), f"it has no {name!r}")
        return self._within(name, [found])[0]

    def parts(self, name: str, count: int | None = None) -> list[Given]:
        """Return a list of parts, of which there must be some, or as many as is said."""
        found = self.get(name)
        held = isinstance(found, list) and len(found) > 0 and all(isinstance(each, dict) for each in found)
        expect(held and count in (None, len(found)), f"{name} must be a list of {count or 'some'} parts")
        return self._within(name, found)

    def listed(self, name: str) -> list[Given]:
        """Return a list of parts, which may have none."""
        return self.parts(name) if self.get(name) else []

    def number(self, name: str) -> Fraction:
        """Return a number."""
        return power(*_parsed(self.get(name)))

    def vector(self, name: str, count: int | None = None) -> list[Fraction]:
        """Return a list of numbers, as many as is said."""
        texts = self.get(name)
        if not isinstance(texts, list) or not texts:
            raise Refused(f"{name} must be a list of numbers")
        expect(count in (None, len(texts)), f"{name} must be {count} numbers, got {len(texts)}")
        return [power(*_parsed(text)) for text in texts]

    def nonnegative(self, name: str, count: int) -> list[Fraction]:
        """Return a list of numbers, none negative and some positive."""
        found = self.vector(name, count)
        expect(min(found) >= 0 and any(found), f"{name} must not be negative, and not all be 0")
        return found

    def matrix(self, name: str, shape: Shape = (None, None)) -> Matrix:
        """Return a matrix with all entries times one power of two."""
        rows = self.get(name)
        words = f"{name} must be rows of equally many numbers"
        if not (isinstance(rows, list) and rows and all(isinstance(row, list) and row for row in rows)):
            raise Refused(words)
        expect(len({len(row) for row in rows}) == 1, words)
        for said, count, what in zip(shape, (len(rows), len(rows[0])), ("rows", "columns"), strict=True):
            expect(said in (None, count), f"{name} must have {said} {what}, got {count}")
        parsed = [[_parsed(text) for text in row] for row in rows]
        least = min((exponent for row in parsed for whole, exponent in row if whole), default=0)
        return Matrix(
            [[whole << (exponent - least) if whole else 0 for whole, exponent in row] for row in parsed],
            least,
        )

    def optional_matrix(self, name: str, shape: Shape = (None, None)) -> Matrix | None:
        """Return a matrix, None where there is none."""
        return None if self.get(name) is None else self.matrix(name, shape)

    def _within(self, name: str, found: list[Any]) -> list[Given]:
        if name not in self.within:
            self.within[name] = [Given(each, self._place(name)) for each in found]
        return self.within[name]

    def _place(self, name: str) -> str:
        return f"{self.where}, {str(name)[:40]!r}" if self.where else repr(str(name)[:40])


def _parsed(text: Any) -> tuple[int, int]:
    """Return a whole number and the power of two that it is multiplied by."""
    found = NUMBER.fullmatch(text) if isinstance(text, str) else None
    expect(found is not None, f"{str(text)[:40]!r} is no number such as '-0x1a3p-52'")
    sign, digits, exponent = found.groups()  # type: ignore[union-attr]
    return int(sign + digits, 16), int(exponent)
