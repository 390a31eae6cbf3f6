"""Projection onto local strategies: a strategy within its limits, and multipliers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmech.linalg import EPS
from dualmech.proofs.witnesses import noise
from dualmech.proofs.witnesses.strategies import mixed, summing_to_one
from dualmech.validate import Array

Given = dict[str, Any]


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    outputs, types = stated["matrix"].shape
    noise.limited(500 * outputs * types, f"{outputs} outputs and {types} user types")


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    strategy, floor = problem.feasible(primal), stated["floor"]
    inside = strategy.mean(axis=1) if floor is None else floor / floor.sum()
    found = summing_to_one(mixed(strategy, inside[:, None], stated["epsilon"]))
    lower = {"sums": dual.sums}
    if floor is None:
        ratios = np.zeros_like(strategy) if dual.ratios is None else dual.ratios
        lower["ratios"] = _balanced(ratios, problem.growth)
    return {"strategy": found}, lower


def _balanced(ratios: Array, growth: float) -> Array:
    """Return multipliers whose negative entries are less than their row's positive ones allow, rounding included."""
    positive, negative = np.maximum(ratios, 0.0), np.maximum(-ratios, 0.0)
    given, taken = positive.sum(axis=1), growth * negative.sum(axis=1)
    shares = np.minimum(1.0, np.divide(given, taken, out=np.ones_like(given), where=taken > 0))
    slack = 1 - 8 * (ratios.shape[1] + 4) * EPS
    return np.asarray(positive - (slack * shares)[:, None] * negative)
