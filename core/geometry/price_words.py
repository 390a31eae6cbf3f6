"""Prices in sentences: what a looser target saves, a larger weight adds, table by table or query by query."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.validate import Array

LISTED = 6  # most items with a sentence of their own, the dearest first

SAID = {
    "FitnessForUse": ("Loosening the target{}", "saves about {} of the squared privacy cost"),
    "PrivacyFirst": ("Loosening the target{}", "lowers the factor on all targets by about {}"),
    "TotalVariance": ("Raising the weight{}", "adds about {} to the total variance"),
}
"""What changes, and what follows, by the name of a problem's class."""


def sentences(problem: Any, prices: Array) -> tuple[str, ...]:
    """Say what prices mean for a problem, the largest first.

    A target looser by the fraction t lowers the least cost by at most ``p t / (1 + p t)`` of it, as the same dual
    weights prove, and by ``p t`` to first order; weights of total variance likewise.
    Raises `InvalidInputError` for a problem whose prices have no such meaning, or whose items have no names.
    """
    if type(problem).__name__ not in SAID or isinstance(getattr(problem, problem.numbers), tuple):
        raise InvalidInputError(
            f"prices in words are those of {', '.join(SAID)}, not by factor; ask for prices, which are numbers"
        )
    change, effect = SAID[type(problem).__name__]
    names, numbers = _names(problem, len(prices)), Counter[str]()
    shares = dict.fromkeys(names, 0.0)
    for name, price in zip(names, np.asarray(prices).tolist(), strict=True):
        shares[name] += price
        numbers[name] += 1

    def said_of(whom: str, several: bool, share: float) -> str:
        return f"{change.format('s' if several else '')} of {whom} by 1 % {effect.format(_percent(share))}."

    order = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])
    said = [said_of(name, numbers[name] > 1, shares[name]) for name in order[:LISTED]]
    if rest := order[LISTED:]:
        whom = "the other one" if len(rest) == 1 else f"all {len(rest)} others"
        said.append(said_of(whom, True, sum(shares[name] for name in rest)))
    free = [name for name in shares if shares[name] <= 0]
    if free:
        named = ", ".join(free[:LISTED]) + (f" and {len(free) - LISTED} more" if len(free) > LISTED else "")
        said.append(f"At no price: {named}; the others decide the noise.")
    return tuple(said)


def _names(problem: Any, count: int) -> list[str]:
    """Return what items are called: tables, groups of queries where there are several, or else queries."""
    asked, geometry = problem.workload, problem.geometry
    if geometry.name == "dense" and count == asked.shape[0]:
        return [*map(repr, asked.groups if len({*asked.groups}) > 1 else asked.names)]
    return [
        geometry.item_words(index).removeprefix("table ").removeprefix("query ") for index in range(count)
    ]


def _percent(share: float) -> str:
    return f"{share:.2g} %" if share < 0.995 else "1 %"
