"""Shadow prices in sentences: the effect of looser targets or larger weights, by table or by query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.publishing.plans import PlanTerms
from dualmech.solution import Solution, require_solution
from dualmech.validate import Array

MAX_SENTENCES = 6  # one for each of the items with the largest prices
MAX_TABLE_SENTENCES = 20  # the same for the tables of a plan


def prices_in_words(answer: Solution) -> tuple[str, ...]:
    """Return an answer's prices in sentences, the largest first.

    A change of a target or weight by 1 % has this effect to first order, and never a larger one. For a table with a
    margin of error, the sentence is about the margin.
    Raises `InvalidInputError` for a problem whose prices have another meaning.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.prices_in_words(dm.fast.solve(dm.TotalVariance(dm.workloads.prefix(2))))[0]
    "Raising the weight of 'cells 0..1' by 1 % adds about 0.55 % to the total variance."
    """
    terms = PlanTerms.of(require_solution(answer))
    if terms is None or terms.specification is None:
        return price_sentences(answer.problem, answer.prices)
    return price_sentences(answer.problem, answer.prices, terms.margin_tables, MAX_TABLE_SENTENCES)


def price_sentences(
    problem: Any, prices: Array, margins: Container[str] = (), max_sentences: int = MAX_SENTENCES
) -> tuple[str, ...]:
    """Return sentences on the prices of a problem, the largest first; for tables in `margins`, on margins of error.

    A target looser by the fraction t lowers the minimum cost by a fraction of at most ``p t / (1 + p t)``, as the same
    dual solution proves, and by ``p t`` to first order. The same holds for weights of total variance.
    Raises `InvalidInputError` for a problem whose prices have another meaning, or whose items have no names.
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
        if margin:  # the variance is proportional to its square
            return f"1 % more margin of {items} {effect.format(_percent(2 * share))}."
        return f"{change.format('s' if several else '')} of {items} by 1 % {effect.format(_percent(share))}."

    order = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])
    lines = [sentence(name, numbers[name] > 1, shares[name], name in by_margin) for name in order[:max_sentences]]
    if remaining := order[max_sentences:]:
        items = "the other one" if len(remaining) == 1 else f"all {len(remaining)} others"
        lines.append(sentence(items, True, sum(shares[name] for name in remaining), by_margin.issuperset(remaining)))
    unpriced = [name for name in shares if shares[name] <= 0]
    if unpriced:
        more = f" and {len(unpriced) - MAX_SENTENCES} more" if len(unpriced) > MAX_SENTENCES else ""
        lines.append(f"At no price: {', '.join(unpriced[:MAX_SENTENCES])}{more}; the others determine the noise.")
    return tuple(lines)


def _names(problem: Any, count: int) -> list[str]:
    workload, geometry = problem.workload, problem.geometry
    if geometry.name in ("dense", "epochs", "stream") and count == workload.shape[0]:
        return [*map(repr, workload.groups if len({*workload.groups}) > 1 else workload.names)]
    return [geometry.item_words(index).removeprefix("table ").removeprefix("query ") for index in range(count)]


def _percent(share: float) -> str:
    return f"{share:.2g} %" if not 0.995 <= share < 1.05 else "1 %"
