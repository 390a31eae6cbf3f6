"""Mechanisms from noise on a geometry."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from dualmech.geometry.block_forms import BlockPoint
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense import Dense
from dualmech.geometry.product import Product
from dualmech.geometry.split import Split, SplitPoint
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.product import ProductMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.validate import Array


@singledispatch
def mechanism_of(geometry: Any, point: Any) -> Any:
    """Return the mechanism with the noise that a checked point of a geometry describes."""
    raise NotImplementedError(type(geometry).__name__)


@mechanism_of.register
def _dense(geometry: Dense, point: Array) -> LinearGaussianMechanism:
    return LinearGaussianMechanism(geometry.basis, point, geometry.neighbours)


@mechanism_of.register
def _blocks(geometry: Blocks, point: BlockPoint) -> BlockMechanism:
    return BlockMechanism(geometry, point)


@mechanism_of.register
def _product(geometry: Product, point: tuple[Any, ...]) -> ProductMechanism:
    pairs = zip(geometry.factors, point, strict=True)
    return ProductMechanism([mechanism_of(factor, own) for factor, own in pairs])


@mechanism_of.register
def _split(geometry: Split, point: SplitPoint) -> SplitMechanism:
    return SplitMechanism(geometry.workload, point.shapes, point.levels)
