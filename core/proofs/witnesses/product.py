"""Products: what shows the bounds of every factor."""

from __future__ import annotations

from typing import Any

from dualmech.geometry.base import FitnessDual, VarianceDual
from dualmech.proofs.witnesses import noise, tables

Given = dict[str, Any]


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse a factor that takes too many multiplications of whole numbers, before any of them."""
    for factor, own in zip(problem.factors, stated["factors"], strict=True):
        refuse, _ = _finders(own)
        refuse(factor, own)


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    found = []
    for index, (factor, own) in enumerate(zip(problem.factors, stated["factors"], strict=True)):
        users = dual.neighbour_weights[index]
        weights = (
            FitnessDual(users, dual.query_weights[index])
            if isinstance(dual, FitnessDual)
            else VarianceDual(users)
        )
        _, find = _finders(own)
        found.append(find(factor, primal[index], weights, own))
    upper, lower = ([each[side] for each in found] for side in (0, 1))
    return {"factors": upper}, {"factors": lower}


def _finders(stated: Given) -> Any:
    """Return what refuses a factor that is too large, and what finds its numbers."""
    if stated["kind"].startswith("table "):
        return tables.refuse_large, tables.witness
    return noise.refuse_large, noise.witness
