"""Dual weights, and points that are not a matrix: solvers return them and judges take them."""

from dualmech.geometry.blocks import BlockPoint
from dualmech.geometry.split import SplitPoint, SplitWeights
from dualmech.geometry.stream import StreamPoint
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.problems.common import CommonDual
from dualmech.problems.local.estimate import EstimateDual
from dualmech.problems.local.projection import ProjectionDual
from dualmech.problems.local.strategy import LocalDual, LocalPoint
from dualmech.problems.reuse import ReuseDual
from dualmech.problems.softmax import SoftmaxDual
from dualmech.problems.weighting import WeightingDual

__all__ = [
    "BlockPoint",
    "CommonDual",
    "EstimateDual",
    "FitnessDual",
    "LocalDual",
    "LocalPoint",
    "ProjectionDual",
    "ReuseDual",
    "SoftmaxDual",
    "SplitPoint",
    "SplitWeights",
    "StreamPoint",
    "VarianceDual",
    "WeightingDual",
]
