"""Errors by name: every error that dualmech raises on purpose derives from `DualmechError`."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


class DualmechError(Exception):
    """Base of every error raised on purpose; its message is one line, in which names are escaped."""

    def __str__(self) -> str:
        """Return the message with control characters escaped."""
        return printable(super().__str__())


class InvalidInputError(DualmechError, ValueError):
    """A value that is not allowed: the message names the argument, its value and the allowed values."""


class InputTypeError(DualmechError, TypeError):
    """A value of a type that is not allowed, such as text in place of numbers."""


class GeometryError(InvalidInputError):
    """A geometry does not support a workload, its numbers or its neighbours; the message says why, and which does."""


class FileFormatError(InvalidInputError):
    """A file that cannot be read or written, or whose contents break its schema (`docs/formats.md`)."""


class BackendError(DualmechError, RuntimeError):
    """A backend that is not installed, cannot do the cone, or returned no point; a method that failed."""


class CertificateError(DualmechError, ArithmeticError):
    """A feasible point below a proven bound, which is a fault of the library or its arithmetic."""


class WrongAnswerError(DualmechError, AssertionError):
    """An answer failed a check of `dualmech.crosscheck.testing`: the message names the problem and the fault."""


class InfeasibleAnswerError(DualmechError, RuntimeError):
    """The mechanism of an infeasible answer was requested."""


class SamplingWarning(UserWarning):
    """A random walk gave too few effectively independent points for a reliable estimate."""


class UncertifiedWarning(UserWarning):
    """A solver's answer has a proven gap above the tolerance."""


def did_you_mean(word: object, options: Iterable[str]) -> str:
    """Return the end of a message that suggests the nearest option; empty if none is similar.

    Examples
    --------
    >>> did_you_mean("prefx", ["prefix", "total"]), did_you_mean("mine", ["prefix", "total"])
    (' (did you mean prefix?)', '')
    >>> did_you_mean("hours", ["ages", "hours cumulative"])
    ' (did you mean hours cumulative?)'
    """
    if not isinstance(word, str):
        return ""
    names = [*options]
    parts = [name for name in names if word and word in name.split()]  # a word of exactly one known text
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.7) or (parts if len(parts) == 1 else [])
    return f" (did you mean {matches[0]}?)" if matches else ""


def first_line(error: Exception) -> str:
    """Return the class and the first line of an error that another library raised."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def printable(text: str) -> str:
    r"""Return a user's text with control characters escaped, for terminals.

    Examples
    --------
    >>> print(printable("age\x1b[2J\u202e \u2264 35"))
    age\x1b[2J\u202e ≤ 35
    """
    if text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode()
        if unicodedata.category(letter)[0] == "C" or letter in "\u2028\u2029"
        else letter
        for letter in text
    )
