"""Persons who take part in several steps, one by one, which costs and bounds are held against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator


def steps_apart(n: int, times: int, apart: int) -> Iterator[tuple[int, ...]]:
    """Yield the sets of 1 to `times` of n steps of which any two are at least `apart` steps apart."""
    for count in range(1, times + 1):
        for steps in itertools.combinations(range(n), count):
            if all(after - before >= apart for before, after in itertools.pairwise(steps)):
                yield steps
