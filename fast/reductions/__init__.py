"""From a problem on a geometry to the bare arrays that the engine needs, and back: one module per geometry."""

from __future__ import annotations

from typing import Any

from dualmech.errors import InvalidInputError
from dualmech.fast.engine import loop
from dualmech.fast.reductions import blocks, dense, product, split, stream
from dualmech.geometry.orbits import check_orbits
from dualmech.solution import Solution


def solve(geometry: Any, problem: Any, limits: loop.Limits, **options: Any) -> Solution:
    """Solve fitness for use or total variance on a geometry to a proven gap.

    Raises `InvalidInputError` for an option that the geometry has no use for.
    """
    given = {name: value for name, value in options.items() if value is not None or name == "method"}
    check_orbits(geometry, given.get("orbits"))
    if "start" in given and "start" not in OPTIONS[geometry.name]:
        raise InvalidInputError(f"start is not for geometry {geometry.name!r}, whose solver begins anew")
    return SOLVERS[geometry.name](problem, limits, **given)


def _product(problem: Any, limits: loop.Limits, **options: Any) -> Solution:
    return product.solve(problem, limits, solve, **options)


SOLVERS = {
    "dense": dense.solve,
    "blocks": blocks.solve,
    "product": _product,
    "split": split.solve,
    "stream": stream.solve,
}

OPTIONS = {
    "dense": frozenset({"method", "options", "start", "orbits"}),
    "blocks": frozenset({"method", "start"}),
    "product": frozenset({"method"}),
    "split": frozenset(),
    "stream": frozenset({"method", "start"}),
}
"""By geometry, which options of a family's solver its problems can use."""
