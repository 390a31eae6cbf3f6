"""Numbers as they were printed."""

from __future__ import annotations

import re
from fractions import Fraction

CLOSE = Fraction(1, 10**5)  # how far above the true number six digits may be


def number_after(words: str, output: str) -> Fraction:
    """Return the number that follows words, exactly as it was printed."""
    found = re.search(re.escape(words) + r"([0-9.]+(?:e[-+]?[0-9]+)?)", output)
    assert found is not None, output
    return Fraction(found[1].rstrip("."))


def is_close_above(shown: Fraction, number: Fraction | float | str) -> bool:
    """Whether a number is one that was rounded up to six digits."""
    exact = Fraction(number)
    return exact <= shown <= exact * (1 + CLOSE)
