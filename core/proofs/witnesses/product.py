"""Products: what shows the bounds of every factor."""

from __future__ import annotations

from typing import Any

from dualmech.geometry.base import FitnessDual, VarianceDual
from dualmech.proofs.witnesses import noise, tables

Given = dict[str, Any]


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse a factor that takes too many multiplications of whole numbers, before any of them."""
    for factor, own in zip(problem.factors, stated["factors"], strict=True):
        _module(own).refuse_large(factor, own)


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
        found.append(_module(own).witness(factor, primal[index], weights, own))
    upper, lower = ([each[side] for each in found] for side in (0, 1))
    return {"factors": upper}, {"factors": lower}


def _module(stated: Given) -> Any:
    """Return what finds the numbers of a factor."""
    return tables if stated["kind"].startswith("table ") else noise
