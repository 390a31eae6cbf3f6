"""Messages of judges: the worst queries and neighbours of an answer, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech.certificate import FEASIBLE
from dualmech.linalg import to_dense
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

MAX_LISTED = 3  # constraints of a kind in a message

Ranked = list[tuple[Any, float]]
"""Queries, tables or neighbours in decreasing order of their ratio to a limit or their cost, with that number."""

Words = Callable[[Any], str]
"""A function that describes an item in words."""


def ranked(values: Array) -> Ranked:
    """Return the largest values with their positions."""
    order = np.argsort(-values, kind="stable")[:MAX_LISTED]
    return [(int(index), float(values[index])) for index in order]


def joined(parts: Iterable[Ranked]) -> Ranked:
    """Return the worst item of a product: the tuple of the factors' worst items, with the product of their values."""
    firsts = [part[0] for part in parts]
    return [(tuple(index for index, _ in firsts), float(np.prod([value for _, value in firsts])))]


def joined_words(words: Iterable[Words], index: Iterable[object]) -> str:
    """Describe an item of a product by the words of its factors."""
    return " & ".join(word(item) for word, item in zip(words, index, strict=True))


def variances_over(ranked: Ranked, words: Words, limit: str = "its target") -> tuple[str, ...]:
    """Describe the queries or tables above their targets."""
    return tuple(f"{words(index)} has {_times(ratio, limit)}" for index, ratio in ranked if ratio > 1 + FEASIBLE)


def costs_over(ranked: Ranked, limit: float, words: Words) -> tuple[str, ...]:
    """Describe the neighbours with costs above a limit."""
    return tuple(
        f"{words(index)} cost {_times(cost / limit, 'the limit')}"
        for index, cost in ranked
        if cost / limit > 1 + FEASIBLE
    )


def query_words(workload: Workload, index: int) -> str:
    return f"query {workload.names[index]!r}"


def cell_words(workload: Workload, index: int) -> str:
    """Describe a cell by its name, the values of its attributes, or its index."""
    if workload.cell_names is not None:
        return f"cell {workload.cell_names[index]!r}"
    if workload.domain is None:
        return f"cell {index}"
    codes = np.unravel_index(index, workload.domain.shape)
    values = (f"{name}={code}" for name, code in zip(workload.domain.names, codes, strict=True))
    return f"cell {', '.join(values)}"


def person_words(workload: Workload, steps: npt.NDArray[np.intp]) -> str:
    """Describe the person who participates in all steps of a phase; -1 marks missing steps."""
    present = steps[steps >= 0]
    steps_in_words = ", ".join(cell_words(workload, int(step)) for step in present[:2])
    return f"the person in {steps_in_words}{f' and {len(present) - 2} more' if len(present) > 2 else ''}"


def neighbour_words(workload: Workload, neighbours: Matrix | None, index: int) -> str:
    """Describe neighbours by the cells in which they differ, or by their index if these are more than two."""
    if neighbours is None:
        return f"neighbours at {cell_words(workload, index)}"
    column = to_dense(neighbours[:, [index]]).ravel()
    places = np.flatnonzero(column)
    if len(places) > 2:
        return f"neighbours {index}"
    return f"neighbours at {' and '.join(cell_words(workload, int(place)) for place in places)}"


def _times(ratio: float, limit: str) -> str:
    """Describe a ratio to a limit, in percent if it is close to 1."""
    return f"{ratio:.3g} times {limit}" if ratio >= 1.01 else f"{100 * (ratio - 1):.2g} % more than {limit}"
