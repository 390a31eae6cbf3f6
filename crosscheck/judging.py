"""The judge for outsiders: says how far a covariance of anybody's making is from the optimum."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualmech import fast, validate
from dualmech.certificate import Certificate
from dualmech.errors import InvalidInputError, UncertifiedWarning
from dualmech.linalg import settled
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.validate import Array

BOUND_TOLERANCE = 1e-9
"""Gap to which the judge's own bound is solved."""

TIGHT = 1e-6
"""A target, or a neighbour, counts as tight within this, relative; an outsider's answer need not be exact."""


@dataclass(frozen=True, slots=True)
class Verdict(Certificate):
    """A certificate for an outsider's covariance, and where it is loose.

    Attributes
    ----------
    loose : index array
        Queries whose variance is more than 1e-6 below their target, relative.
    binding : index array
        Neighbours whose cost is within 1e-6 of the largest, relative.
    scaled : Certificate
        The same covariance, scaled so that it just meets its constraints: how good its shape is.
    """

    loose: npt.NDArray[np.intp]
    binding: npt.NDArray[np.intp]
    scaled: Certificate


def judge(
    problem: FitnessForUse | PrivacyFirst | TotalVariance,
    covariance: npt.ArrayLike,
    tol: float = BOUND_TOLERANCE,
) -> Verdict:
    """Judge a covariance (k, k) of noise on B x, with a bound that the judge finds for itself.

    Parameters
    ----------
    problem : FitnessForUse, PrivacyFirst or TotalVariance
        What the covariance is meant to solve.
    covariance : (k, k) array
        Σ, on the problem's basis.
    tol : float
        Gap to which the bound is solved; the verdict's gap is honest whatever was reached.

    Raises
    ------
    InvalidInputError, InputTypeError
        Not a symmetric positive semidefinite matrix of finite numbers and of the right size.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import crosscheck
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    >>> verdict = crosscheck.judge(problem, np.eye(2) / 2)
    >>> verdict.feasible, round(verdict.objective, 6), round(verdict.gap, 6)
    (True, 2.0, 0.5)
    >>> verdict.loose, verdict.binding
    (array([0]), array([0, 1]))
    """
    given = validate.symmetric(covariance=covariance)
    size = problem.geometry.rank
    if given.shape != (size, size):
        raise InvalidInputError(
            f"covariance must have shape ({size}, {size}), as the basis, got {given.shape}"
        )
    if settled(given) is None:
        smallest = float(np.linalg.eigvalsh(given)[0])
        if smallest < -validate.SYMMETRY_TOLERANCE * np.abs(given).max():
            raise InvalidInputError(
                f"covariance must be positive semidefinite, its least eigenvalue is {smallest:.3g}"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        dual = fast.solve(problem, tol=tol).dual
    verdict = problem.certify(given, dual)
    binding = problem.binding(given, TIGHT) if np.isfinite(verdict.objective) else np.zeros(0, dtype=np.intp)
    return Verdict(
        verdict.objective,
        verdict.lower_bound,
        verdict.gap,
        verdict.violation,
        verdict.resolution,
        loose=problem.loose(given, TIGHT),
        binding=binding,
        scaled=problem.certify(problem.feasible(given), dual),
    )


def covariance_of_strategy(
    problem: FitnessForUse | PrivacyFirst | TotalVariance, strategy: npt.ArrayLike
) -> Array:
    """Return the covariance on B x of a matrix-mechanism strategy A: unit noise on A x, least squares.

    Raises
    ------
    InvalidInputError
        A strategy with another number of cells, or that cannot answer the workload.
    """
    queries = validate.finite(2, strategy=strategy)
    cells = problem.workload.shape[1]
    if queries.shape[1] != cells:
        raise InvalidInputError(f"strategy must have {cells} columns, one a cell, got {queries.shape[1]}")
    solution = np.linalg.pinv(queries)
    answered = problem.basis @ solution
    missed = np.linalg.norm(problem.basis - answered @ queries, axis=1)
    if np.any(missed > 1e-8 * np.linalg.norm(problem.basis, axis=1)):
        raise InvalidInputError("strategy cannot answer the workload: its rows do not span the workload's")
    return np.asarray(answered @ answered.T)


__all__ = ["Verdict", "covariance_of_strategy", "judge"]
