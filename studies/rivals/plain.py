"""Plain rivals: independent noise on every cell or on every answer, and the matrix mechanism, weighted or not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.linalg

import dualmech as dm
from dualmech import fast, validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.dense import Dense
from dualmech.validate import Array
from dualmech.workloads.base import check_workload

TOLERANCE = 1e-9  # gap to which the total variance is solved

EXPONENTS = {("wCA-I", "code"): 2.0, ("wCA-II", "code"): 1.0, ("wCA-I", "text"): 1.0, ("wCA-II", "text"): 0.5}
"""Power of the target by which a query's variance is divided, by variant and reading."""


def input_perturbation(workload: dm.Workload, cost: float) -> dm.LinearGaussianMechanism:
    """Add independent noise to every cell: ``B = I``, ``Σ = I / cost`` ("IP").

    The answer to a query w has variance ``‖w‖² / cost``.
    Source: section 7 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially private linear
    queries", PVLDB 14(10), 2021 ("FFU").

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.prefix(3)
    >>> rivals.input_perturbation(workload, cost=2).variances(workload)
    array([0.5, 1. , 1.5])
    """
    cells, spent = check_workload(workload).shape[1], validate.positive_number(cost=cost)
    return dm.LinearGaussianMechanism(np.eye(cells), np.eye(cells) / spent)


def gaussian_mechanism(workload: dm.Workload, cost: float) -> dm.LinearGaussianMechanism:
    """Add independent noise to every workload answer, and use the answers consistently ("GM").

    The answers ``W x`` get noise of variance ``σ² = max_i ‖W e_i‖² / cost``, the largest squared column norm
    of W over the cost. With ``W = L B``, B that of `dualmech.FitnessForUse`, least squares turns them into an
    estimate of B x of covariance ``σ² (L' L)⁻¹``, which is the mechanism returned: where W has more rows than its
    rank, it answers every query at a variance of at most σ². `raw_gaussian_variance` is σ² itself.
    Source: FFU, section 7 (see `input_perturbation`).

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.identity_total(4)
    >>> rivals.gaussian_mechanism(workload, cost=2).variances(workload)
    array([0.8, 0.8, 0.8, 0.8, 0.8])
    >>> rivals.raw_gaussian_variance(workload, cost=2)
    1.0
    """
    variance = raw_gaussian_variance(workload, cost)
    geometry = Dense.of(workload, None, None)
    triangle = scipy.linalg.qr(geometry.representation, mode="r", check_finite=False)[0][: geometry.rank]
    half = scipy.linalg.solve_triangular(triangle, np.eye(geometry.rank), check_finite=False)
    return dm.LinearGaussianMechanism(geometry.basis, variance * (half @ half.T))


def raw_gaussian_variance(workload: dm.Workload, cost: float) -> float:
    """Return the variance of every raw answer of the Gaussian mechanism: the largest squared column norm / cost.

    FFU means this variance by its "GM", without the least squares of `gaussian_mechanism`. (The code published
    with the paper takes the squared spectral norm of W in place of the largest squared column norm, which
    is never smaller and mostly far larger.)

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> rivals.raw_gaussian_variance(dm.workloads.prefix(8), cost=4)
    2.0
    """
    matrix, spent = check_workload(workload).matrix, validate.positive_number(cost=cost)
    return float((matrix * matrix).sum(axis=0).max() / spent)


def total_variance(
    workload: dm.Workload, cost: float, weights: npt.ArrayLike | None = None, tol: float = TOLERANCE
) -> dm.LinearGaussianMechanism:
    """Minimise the weighted sum of variances at a squared privacy cost ("CA", "wCA-I", "wCA-II").

    The solution of `dualmech.TotalVariance`, divided by the cost.
    Source: FFU, section 7 (see `input_perturbation`). The code published with the paper adds 1e-3 times the mean
    diagonal of ``W' W`` to it, which this does not.

    Parameters
    ----------
    weights : float or (m,) array, optional
        Weight of each query's variance; by default 1. `target_weights` makes those of FFU.
    tol : float
        Gap to which the sum is solved; an `UncertifiedWarning` says where it was not reached.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.identity_total(8)
    >>> rivals.total_variance(workload, cost=2).variances(workload)[-2:].round(4)
    array([0.5729, 1.6667])
    """
    spent = validate.positive_number(cost=cost)
    unit = fast.solve(dm.TotalVariance(workload, weights, geometry="dense"), tol=tol).mechanism
    return dm.LinearGaussianMechanism(unit.query_matrix, unit.covariance() / spent)


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
    >>> from dualmech.studies import rivals
    >>> rivals.target_weights([1, 4], "wCA-II"), rivals.target_weights([1, 4], "wCA-II", reading="text")
    (array([1.  , 0.25]), array([1. , 0.5]))
    """
    goals = validate.positive(1, targets=targets)
    if (variant, reading) not in EXPONENTS:
        allowed = ", ".join(f"{name} with {how}" for name, how in EXPONENTS)
        raise InvalidInputError(f"variant and reading must be one of {allowed}; got {variant!r} with {reading!r}")
    return np.asarray(goals ** -EXPONENTS[variant, reading])
