"""Soft maxima: noise and weights as `noise` has them, with shares of queries."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from dualmech.proofs.texts import root_below
from dualmech.proofs.witnesses import noise

Given = dict[str, Any]


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    mu = [Fraction(each) for each in dual.query_weights.tolist()]
    total, weight = sum(mu) or Fraction(1), Fraction(stated["total_weight"])
    targets = [Fraction(each) for each in stated["targets"].tolist()]
    roots = np.array([root_below(own / (total * c) + weight) for own, c in zip(mu, targets, strict=True)])
    lower = noise.trace_norm(roots, np.sqrt(dual.neighbour_weights), stated)
    return noise.sides(problem, primal), lower | {"query_weights": dual.query_weights}
