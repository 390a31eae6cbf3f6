"""The two simplest mechanisms: independent noise on every cell, or on every workload answer."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dualmech import validate
from dualmech.geometry.dense import Dense
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.workloads.base import Workload, check_workload


def input_perturbation(workload: Workload, cost: float) -> LinearGaussianMechanism:
    """Add independent noise to every cell: ``B = I``, ``Σ = I / cost`` ("IP").

    The answer to a query w has variance ``‖w‖² / cost``.
    Source: section 7 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially private linear
    queries", PVLDB 14(10), 2021 ("FFU").

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> workload = dm.workloads.prefix(3)
    >>> rivals.input_perturbation(workload, cost=2).variances(workload)
    array([0.5, 1. , 1.5])
    """
    cells, spent = check_workload(workload).shape[1], validate.positive_number(cost=cost)
    return LinearGaussianMechanism(np.eye(cells), np.eye(cells) / spent)


def gaussian_mechanism(workload: Workload, cost: float) -> LinearGaussianMechanism:
    """Add independent noise to every workload answer, and use the answers consistently ("GM").

    The answers ``W x`` get noise of variance ``σ² = max_i ‖W e_i‖² / cost``, the largest squared column norm
    of W over the cost. With ``W = L B``, B that of `dualmech.FitnessForUse`, least squares turns them into an
    estimate of B x of covariance ``σ² (L' L)⁻¹``, which is the mechanism returned: where W has more rows than its
    rank, it answers every query at a variance of at most σ². `raw_gaussian_variance` is σ² itself.
    Source: FFU, section 7 (see `input_perturbation`).

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
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
    return LinearGaussianMechanism(geometry.basis, variance * (half @ half.T))


def raw_gaussian_variance(workload: Workload, cost: float) -> float:
    """Return the variance of every raw answer of the Gaussian mechanism: the largest squared column norm / cost.

    This is what FFU means by its "GM", without the least squares of `gaussian_mechanism`. (The code published
    with the paper takes the squared spectral norm of W in place of the largest squared column norm, which
    is never smaller and mostly far larger.)

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> rivals.raw_gaussian_variance(dm.workloads.prefix(8), cost=4)
    2.0
    """
    matrix, spent = check_workload(workload).matrix, validate.positive_number(cost=cost)
    return float((matrix * matrix).sum(axis=0).max() / spent)
