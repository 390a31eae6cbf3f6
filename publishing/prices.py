"""Prices in sentences: what a looser target saves, a larger weight adds, table by table or query by query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.publishing.plans import PlanTerms
from dualmech.solution import Solution, require_solution
from dualmech.validate import Array

MOST_SENTENCES = 6  # most items with a sentence of their own, the dearest first
MOST_TABLES = 20  # and most tables of a plan


def prices_in_words(answer: Solution) -> tuple[str, ...]:
    """Return an answer's prices in sentences, the largest first; refused where prices have another meaning.

    A change by 1 % saves that much to first order, and never more. Of a table whose accuracy was stated as a margin
    of error, it is the margin that changes.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.prices_in_words(dm.fast.solve(dm.TotalVariance(dm.workloads.prefix(2))))[0]
    "Raising the weight of 'cells 0..1' by 1 % adds about 0.55 % to the total variance."
    """
    terms = PlanTerms.of(require_solution(answer))
    if terms is None or terms.specification is None:
        return price_sentences(answer.problem, answer.prices)
    return price_sentences(answer.problem, answer.prices, terms.margin_tables, MOST_TABLES)


def price_sentences(
    problem: Any, prices: Array, margins: Container[str] = (), most: int = MOST_SENTENCES
) -> tuple[str, ...]:
    """Say what prices mean for a problem, the largest first; of tables in `margins` by their margins of error.

    A target looser by the fraction t lowers the least cost by at most ``p t / (1 + p t)`` of it, as the same dual
    weights prove, and by ``p t`` to first order; weights of total variance likewise.
    Raises `InvalidInputError` for a problem whose prices have no such meaning, or whose items have no names.
    """
    if problem.price_words is None or isinstance(getattr(problem, problem.numbers), tuple):
        raise InvalidInputError(
            f"prices in words need a problem with a target or a weight per item, got {problem.headline}; "
            "its prices are numbers"
        )
    change, effect = problem.price_words
    names, numbers = _names(problem, len(prices)), Counter[str]()
    shares = dict.fromkeys(names, 0.0)
    for name, price in zip(names, np.asarray(prices).tolist(), strict=True):
        shares[name] += price
        numbers[name] += 1

    by_margin = {name for name in shares if name[1:-1] in margins}

    def sentence(items: str, several: bool, share: float, margin: bool) -> str:
        if margin:  # whose square is the variance
            return f"1 % more margin of {items} {effect.format(_percent(2 * share))}."
        return f"{change.format('s' if several else '')} of {items} by 1 % {effect.format(_percent(share))}."

    order = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])
    lines = [sentence(name, numbers[name] > 1, shares[name], name in by_margin) for name in order[:most]]
    if rest := order[most:]:
        items = "the other one" if len(rest) == 1 else f"all {len(rest)} others"
        lines.append(sentence(items, True, sum(shares[name] for name in rest), by_margin.issuperset(rest)))
    free = [name for name in shares if shares[name] <= 0]
    if free:
        named = ", ".join(free[:MOST_SENTENCES]) + (
            f" and {len(free) - MOST_SENTENCES} more" if len(free) > MOST_SENTENCES else ""
        )
        lines.append(f"At no price: {named}; the others decide the noise.")
    return tuple(lines)


def _names(problem: Any, count: int) -> list[str]:
    workload, geometry = problem.workload, problem.geometry
    if geometry.name in ("dense", "epochs", "stream") and count == workload.shape[0]:
        return [*map(repr, workload.groups if len({*workload.groups}) > 1 else workload.names)]
    return [geometry.item_words(index).removeprefix("table ").removeprefix("query ") for index in range(count)]


def _percent(share: float) -> str:
    return f"{share:.2g} %" if not 0.995 <= share < 1.05 else "1 %"
