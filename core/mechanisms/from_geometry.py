"""Mechanisms from noise on a geometry."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmech import linalg
from dualmech.geometry.dense import Dense
from dualmech.geometry.product import Product
from dualmech.geometry.split import Split, SplitPoint
from dualmech.geometry.stream import CausalPoint, Stream, StreamPoint
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.causal import CausalMechanism
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.noise import in_few_digits
from dualmech.mechanisms.product import ProductMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.mechanisms.stream import StreamMechanism
from dualmech.validate import Array


def mechanism_of(geometry: Any, point: Any) -> Any:
    """Return the mechanism with the noise that a checked point of a geometry describes."""
    return MECHANISMS[geometry.name](geometry, point)


def _dense(geometry: Dense, point: Array) -> LinearGaussianMechanism:
    """Return the mechanism of the covariance that is judged: as it is, or raised where rounding left it singular.

    Rows without noise are written in few digits, so that neighbours who share what they say do so exactly.
    """
    judged = linalg.regularised_covariance(point)
    rows, silent = geometry.basis, np.diagonal(point) == 0
    if np.any(silent):
        rows = rows.copy()
        rows[silent] = in_few_digits(rows[silent])
    return LinearGaussianMechanism(rows, point if judged is None else judged, geometry.neighbours)


def _product(geometry: Product, point: tuple[Any, ...]) -> ProductMechanism:
    pairs = zip(geometry.factors, point, strict=True)
    return ProductMechanism([mechanism_of(factor, own) for factor, own in pairs])


def _split(geometry: Split, point: SplitPoint) -> SplitMechanism:
    return SplitMechanism(geometry.workload, point.shapes, point.levels)


def _stream(geometry: Stream, point: StreamPoint | CausalPoint) -> StreamMechanism | CausalMechanism:
    if isinstance(point, CausalPoint):
        return CausalMechanism(point.strategy, point.level)
    return StreamMechanism(geometry.workload, point.neighbour_weights, point.query_weights, point.level)


MECHANISMS: dict[str, Any] = {
    "dense": _dense,
    "blocks": BlockMechanism,
    "product": _product,
    "split": _split,
    "stream": _stream,
}
