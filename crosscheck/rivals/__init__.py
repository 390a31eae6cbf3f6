"""Baseline mechanisms at a given privacy cost, to set an optimal one beside; imports as `dualmech.crosscheck.rivals`.

Every builder takes a workload and a squared privacy cost Δ², and returns a `dualmech.LinearGaussianMechanism`
that spends it exactly. Neighbours differ by one record added or removed.
"""

from dualmech.crosscheck.rivals.intervals import IntervalTree
from dualmech.crosscheck.rivals.noise import gaussian_mechanism, input_perturbation, raw_gaussian_variance
from dualmech.crosscheck.rivals.trees import (
    best_branching,
    hierarchical,
    interval_tree,
    square_root_tree,
)
from dualmech.crosscheck.rivals.variance import target_weights, total_variance

__all__ = [
    "IntervalTree",
    "best_branching",
    "gaussian_mechanism",
    "hierarchical",
    "input_perturbation",
    "interval_tree",
    "raw_gaussian_variance",
    "square_root_tree",
    "target_weights",
    "total_variance",
]
