"""The matrix mechanism: least total variance, unweighted or with weights made of the targets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dualmech import fast, validate
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.problems.variance import TotalVariance
from dualmech.validate import Array
from dualmech.workloads.base import Workload

TOLERANCE = 1e-9  # gap to which the total variance is solved

EXPONENTS = {("wCA-I", "code"): 2.0, ("wCA-II", "code"): 1.0, ("wCA-I", "text"): 1.0, ("wCA-II", "text"): 0.5}
"""Power of the target by which a query's variance is divided, by variant and reading."""


def total_variance(
    workload: Workload, cost: float, weights: npt.ArrayLike | None = None, tol: float = TOLERANCE
) -> LinearGaussianMechanism:
    """Minimise the weighted sum of variances at a squared privacy cost ("CA", "wCA-I", "wCA-II").

    The solution of `dualmech.TotalVariance`, divided by the cost.
    Source: FFU, section 7 (see `input_perturbation`). The code published with the paper adds 1e-3 times the mean
    diagonal of ``W' W`` to it, which this does not.

    Parameters
    ----------
    weights : float or (m,) array, optional
        What a unit of each query's variance counts; by default 1. `target_weights` makes those of FFU.
    tol : float
        Gap to which the sum is solved; an `UncertifiedWarning` says where it was not reached.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> workload = dm.workloads.identity_total(8)
    >>> rivals.total_variance(workload, cost=2).variances(workload)[-2:].round(4)
    array([0.5729, 1.6667])
    """
    spent = validate.positive_number(cost=cost)
    unit = fast.solve(TotalVariance(workload, weights, geometry="dense"), tol=tol).mechanism
    return LinearGaussianMechanism(unit.query_matrix, unit.covariance() / spent)


def target_weights(targets: npt.ArrayLike, variant: str, reading: str = "code") -> Array:
    """Return the weights that a variant of the matrix mechanism makes of variance targets (m,).

    FFU says that wCA-I weights each query by the inverse of its target variance, and wCA-II by the inverse of
    the square root of that. In the published code these factors multiply the query itself, so that its
    variance counts their square; read as the weights of the objective, they multiply the variance.

    ======== ========== ==========
    variant  ``code``   ``text``
    ======== ========== ==========
    wCA-I    ``1/c²``   ``1/c``
    wCA-II   ``1/c``    ``1/√c``
    ======== ========== ==========

    - `targets` (m,): variance targets c > 0;
    - `variant`: which of the two;
    - `reading`: what is multiplied by the inverse: the query, or its variance.

    Examples
    --------
    >>> from dualmech.crosscheck import rivals
    >>> rivals.target_weights([1, 4], "wCA-II"), rivals.target_weights([1, 4], "wCA-II", reading="text")
    (array([1.  , 0.25]), array([1. , 0.5]))
    """
    goals = validate.positive(1, targets=targets)
    if (variant, reading) not in EXPONENTS:
        allowed = ", ".join(f"{name} with {how}" for name, how in EXPONENTS)
        raise InvalidInputError(
            f"variant and reading must be one of {allowed}; got {variant!r} with {reading!r}"
        )
    return np.asarray(goals ** -EXPONENTS[variant, reading])
