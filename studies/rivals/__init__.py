# ruff: noqa: F401
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
from dualmech.studies.rivals.local_noise import NoiseRival, matrix_mechanism
from dualmech.studies.rivals.plain import (
    datacube,
    fourier,
    gaussian_mechanism,
    input_perturbation,
    raw_gaussian_variance,
    weighted_marginals,
)
from dualmech.studies.rivals.responses import (
    ALPHA,
    FactorisedRival,
    LocalRival,
    MatrixRival,
    MixedRival,
    fourier_response,
    hadamard_response,
    hierarchical_response,
    randomised_response,
)
from dualmech.studies.rivals.sets import SetRival, rappor, subset_selection
from dualmech.studies.rivals.trees import (
    IntervalTree,
    haar_tree,
    hierarchical_product,
    interval_tree,
    square_root_tree,
    wavelet,
)
