"""From a problem on a geometry to the bare arrays that the engine needs, and back: one module per geometry."""

from __future__ import annotations

from typing import Any

from dualmech.fast.engine import loop
from dualmech.fast.reductions import blocks, dense, product, split
from dualmech.solution import Solution


def solve(geometry: Any, problem: Any, limits: loop.Limits, **options: Any) -> Solution:
    """Solve fitness for use or total variance on a geometry to a proven gap."""
    return SOLVERS[geometry.name](problem, limits, **options)


def _product(problem: Any, limits: loop.Limits, **options: Any) -> Solution:
    return product.solve(problem, limits, solve, **options)


SOLVERS = {"dense": dense.solve, "blocks": blocks.solve, "product": _product, "split": split.solve}
