"""Baseline mechanisms at a given privacy cost, to set an optimal one beside; imports as `dualmech.crosscheck.rivals`.

Every builder takes a workload and a squared privacy cost Δ², and returns a `dualmech.LinearGaussianMechanism`
that spends it exactly. Neighbours differ by one record added or removed. Builders named ``…_matrix`` return
the strategy itself, one query a row, to weight its queries or to judge it.
"""

from dualmech.crosscheck.rivals.datacube import choose_marginals, datacube
from dualmech.crosscheck.rivals.fourier import fourier, fourier_matrix
from dualmech.crosscheck.rivals.intervals import IntervalTree
from dualmech.crosscheck.rivals.noise import gaussian_mechanism, input_perturbation, raw_gaussian_variance
from dualmech.crosscheck.rivals.products import hierarchical_matrix, hierarchical_product
from dualmech.crosscheck.rivals.trees import (
    best_branching,
    hierarchical,
    interval_tree,
    square_root_tree,
)
from dualmech.crosscheck.rivals.variance import target_weights, total_variance
from dualmech.crosscheck.rivals.wavelets import haar_matrix, haar_tree, wavelet

__all__ = [
    "IntervalTree",
    "best_branching",
    "choose_marginals",
    "datacube",
    "fourier",
    "fourier_matrix",
    "gaussian_mechanism",
    "haar_matrix",
    "haar_tree",
    "hierarchical",
    "hierarchical_matrix",
    "hierarchical_product",
    "input_perturbation",
    "interval_tree",
    "raw_gaussian_variance",
    "square_root_tree",
    "target_weights",
    "total_variance",
    "wavelet",
]
