"""Baseline mechanisms at a given privacy cost, to compare an optimal one with; imports as `dualmech.studies.rivals`.

Every builder takes a workload and a squared privacy cost Δ², and returns a `dualmech.LinearGaussianMechanism`
that spends it exactly. Neighbours differ by one record added or removed. Builders named ``…_matrix`` return
the strategy itself, one query per row, to weight its queries or to judge it.

The mechanisms of local privacy (`LocalRival`) are fixed: their builders take a number of user types and ε, and return
objects that take any workload.

The parameters that most builders share are explained here alone:

- ``workload``: a `dualmech.Workload`, (m, d), the queries to answer;
- ``cost``: the squared privacy cost Δ² to spend, > 0;
- ``domain``: the attributes behind the cells (`dualmech.Domain`, a mapping, or a sequence of sizes), or their number
  for one attribute, the cell; where a workload is given, by default its own domain, or else one attribute;
- ``user_types`` and ``epsilon``: n, at least 2, and ε, from 1e-6 to 100.

All refuse, with an `InvalidInputError` or `InputTypeError` that names the argument: an object that is no workload or
asks nothing, a domain of another number of cells, numbers out of range, and anything that the builders which they call
refuse.
"""

from dualmech.problems.designs import fourier_matrix, haar_matrix, hierarchical_matrix
from dualmech.studies.rivals import census
from dualmech.studies.rivals.cubes import (
    choose_marginals,
    datacube,
    fourier,
    weighted_marginals,
)
from dualmech.studies.rivals.local_noise import NoiseRival, matrix_mechanism
from dualmech.studies.rivals.plain import (
    gaussian_mechanism,
    input_perturbation,
    raw_gaussian_variance,
    target_weights,
    total_variance,
)
from dualmech.studies.rivals.responses import (
    FactorisedRival,
    LocalRival,
    MatrixRival,
    MixedRival,
    fourier_response,
    hadamard_response,
    hierarchical_response,
    randomised_response,
)
from dualmech.studies.rivals.sets import SetRival, rappor, subset_selection, unary_encoding
from dualmech.studies.rivals.trees import (
    IntervalTree,
    best_branching,
    haar_tree,
    hierarchical,
    hierarchical_product,
    interval_tree,
    square_root_tree,
    wavelet,
)

__all__ = [
    "FactorisedRival",
    "IntervalTree",
    "LocalRival",
    "MatrixRival",
    "MixedRival",
    "NoiseRival",
    "SetRival",
    "best_branching",
    "census",
    "choose_marginals",
    "datacube",
    "fourier",
    "fourier_matrix",
    "fourier_response",
    "gaussian_mechanism",
    "haar_matrix",
    "haar_tree",
    "hadamard_response",
    "hierarchical",
    "hierarchical_matrix",
    "hierarchical_product",
    "hierarchical_response",
    "input_perturbation",
    "interval_tree",
    "matrix_mechanism",
    "randomised_response",
    "rappor",
    "raw_gaussian_variance",
    "square_root_tree",
    "subset_selection",
    "target_weights",
    "total_variance",
    "unary_encoding",
    "wavelet",
    "weighted_marginals",
]
