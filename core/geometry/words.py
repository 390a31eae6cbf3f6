"""Messages of judges: the worst queries and neighbours of an answer, and what these are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech.certificate import FEASIBLE
from dualmech.linalg import to_dense
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

WORST = 3  # most constraints of a kind that are named

Ranked = list[tuple[Any, float]]
"""Queries, tables or neighbours, the worst first, each with its ratio to its limit or with its cost."""

Words = Callable[[Any], str]
"""Says what one of these is called."""


def ranked(values: Array) -> Ranked:
    """Return the largest few of some values, each with its position."""
    order = np.argsort(-values, kind="stable")[:WORST]
    return [(int(index), float(values[index])) for index in order]


def joined(parts: Iterable[Ranked]) -> Ranked:
    """Return the worst item of a product, whose values multiply: every factor's worst item."""
    firsts = [part[0] for part in parts]
    return [(tuple(index for index, _ in firsts), float(np.prod([value for _, value in firsts])))]


def joined_words(words: Iterable[Words], index: Iterable[object]) -> str:
    """Return what one of a product is called: what each factor calls its own."""
    return " & ".join(word(item) for word, item in zip(words, index, strict=True))


def variances_over(ranked: Ranked, words: Words, limit: str = "its target") -> tuple[str, ...]:
    """Say which queries or tables have more than their targets."""
    return tuple(f"{words(index)} has {_times(ratio, limit)}" for index, ratio in ranked if ratio > 1 + FEASIBLE)


def costs_over(ranked: Ranked, limit: float, words: Words) -> tuple[str, ...]:
    """Say which neighbours cost more than a limit."""
    return tuple(
        f"{words(index)} cost {_times(cost / limit, 'the limit')}"
        for index, cost in ranked
        if cost / limit > 1 + FEASIBLE
    )


def query_words(workload: Workload, index: int) -> str:
    return f"query {workload.names[index]!r}"


def cell_words(workload: Workload, index: int) -> str:
    """Return what a cell is called: by its name, by the values of its attributes, or by its number."""
    if workload.cell_names is not None:
        return f"cell {workload.cell_names[index]!r}"
    if workload.domain is None:
        return f"cell {index}"
    codes = np.unravel_index(index, workload.domain.shape)
    values = (f"{name}={code}" for name, code in zip(workload.domain.names, codes, strict=True))
    return f"cell {', '.join(values)}"


def person_words(workload: Workload, steps: npt.NDArray[np.intp]) -> str:
    """Return the words for a person with parts in all steps of a phase, -1 for those that are not there."""
    present = steps[steps >= 0]
    named = ", ".join(cell_words(workload, int(step)) for step in present[:2])
    return f"the person in {named}{f' and {len(present) - 2} more' if len(present) > 2 else ''}"


def neighbour_words(workload: Workload, neighbours: Matrix | None, index: int) -> str:
    """Return where neighbours differ; those that differ in more than two cells by their number."""
    if neighbours is None:
        return f"neighbours at {cell_words(workload, index)}"
    column = to_dense(neighbours[:, [index]]).ravel()
    places = np.flatnonzero(column)
    if len(places) > 2:
        return f"neighbours {index}"
    return f"neighbours at {' and '.join(cell_words(workload, int(place)) for place in places)}"


def _times(ratio: float, limit: str) -> str:
    """Return how many times a limit something is, by percent where that is little more than it."""
    return f"{ratio:.3g} times {limit}" if ratio >= 1.01 else f"{100 * (ratio - 1):.2g} % more than {limit}"
