"""From a problem on a geometry to the bare arrays that the engine needs, and back: one module a geometry."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from dualmech.fast.engine import loop
from dualmech.fast.reductions import blocks, dense, product, split
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense import Dense
from dualmech.geometry.product import Product
from dualmech.geometry.split import Split
from dualmech.solution import Solution


@singledispatch
def solve(geometry: Any, problem: Any, limits: loop.Limits, **options: Any) -> Solution:
    """Solve fitness for use or total variance on a geometry to a proven gap."""
    raise NotImplementedError(type(geometry).__name__)


@solve.register
def _dense(geometry: Dense, problem: Any, limits: loop.Limits, **options: Any) -> Solution:
    return dense.solve(problem, limits, **options)


@solve.register
def _blocks(geometry: Blocks, problem: Any, limits: loop.Limits, **options: Any) -> Solution:
    return blocks.solve(problem, limits, **options)


@solve.register
def _product(geometry: Product, problem: Any, limits: loop.Limits, **options: Any) -> Solution:
    return product.solve(problem, limits, solve, **options)


@solve.register
def _split(geometry: Split, problem: Any, limits: loop.Limits, **options: Any) -> Solution:
    return split.solve(problem, limits, **options)
