"""Strategies of the matrix mechanism as matrices: their errors, completion, and weights for relative errors.

A strategy A (p, d) asks the queries in its rows with equal Gaussian noise, and answers the workload by least squares.
The measures are those of Li and Miklau, "An adaptive mechanism for accurate query answering under differential
privacy", PVLDB 5(6), 2012 ("EIG").
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.linalg import to_dense
from dualmech.problems.design import answer_rows, least_squares
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

__all__ = ["completed", "noise_factor", "relative_weights", "root_mean_square_error", "total_variance"]

MOST_QUERIES = 2**53  # queries whose number a double still holds

COMPLETE = 1e-12
"""Slack of a squared column norm, relative to the largest, below which a column counts as complete."""


def noise_factor(epsilon: float, delta: float) -> float:
    """Return ``P = 2 ln(2/δ) / ε²``: at squared cost Δ², EIG gives each answer the variance ``P Δ²``.

    It is sufficient for (ε, δ)-differential privacy at ε ≤ 1, not necessary: `dualmech.accounting` is exact.
    Raises `InvalidInputError` or `InputTypeError` for ε that is not positive, δ outside (0, 1).

    Examples
    --------
    >>> import dualmech as dm
    >>> round(dm.strategies.noise_factor(0.5, 1e-4), 3)
    79.228
    """
    spread, given = math.log(2 / validate.probability(delta=delta)), validate.positive_number(epsilon=epsilon)
    validate.moderate(epsilon=given)
    return 2 * spread / given**2


def total_variance(strategy: npt.ArrayLike, workload: Workload) -> float:
    """Return ``‖A‖₂² tr(W (A'A)⁺ W')``, ``‖A‖₂`` the largest column norm: the total variance at squared cost 1.

    Raises `InvalidInputError` or `InputTypeError` for what is no matrix of finite numbers with the workload's cells, or
    a query outside its row space, which is named.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.total_variance([[1, 0], [0, 1]], dm.workloads.prefix(2))
    3.0
    """
    rows = _strategy(strategy, workload)
    basis, root = least_squares(rows)
    spread = sum(
        float(np.vdot(part, part)) for _, part in answer_rows(workload, basis, basis.T @ root, "strategy")
    )
    return spread * float(np.einsum("pi,pi->i", rows, rows).max())


def root_mean_square_error(
    strategy: npt.ArrayLike, workload: Workload, epsilon: float, delta: float, queries: int | None = None
) -> float:
    """Return ``‖A‖₂ √(P(ε, δ) tr(W (A'A)⁺ W') / m)``, the workload error of EIG (Definition 5, Proposition 4).

    Raises `InvalidInputError` or `InputTypeError` as for `total_variance` and `noise_factor`.

    Parameters
    ----------
    strategy : (p, d) array
        A.
    workload : Workload
        W.
    epsilon, delta : float
        As for `noise_factor`.
    queries : int, optional
        m, the number of queries that the error is averaged over; by default the workload's. For a workload that
        stands for a larger one (`dualmech.workloads.from_gram`), the larger one's.

    Examples
    --------
    >>> import dualmech as dm
    >>> round(dm.strategies.root_mean_square_error([[1, 0], [0, 1]], dm.workloads.prefix(2), 0.5, 1e-4), 3)
    10.901
    """
    total, factor = total_variance(strategy, workload), noise_factor(epsilon, delta)
    count = workload.shape[0] if queries is None else validate.size(MOST_QUERIES, queries=queries)
    return math.sqrt(factor * total / count)


def completed(strategy: npt.ArrayLike) -> Array:
    """Return A with rows appended that raise every column to the largest norm, at no cost to privacy.

    With n_i the squared column norms, these are the rows of ``diag(√(max n - n_i))`` that are not zero: queries
    of single cells. They can only help (EIG, Program 2, steps 4 and 5).
    Raises `InvalidInputError` or `InputTypeError` for what is no matrix of finite numbers.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.completed([[1, 1], [1, 0]])
    array([[1., 1.],
           [1., 0.],
           [0., 1.]])
    """
    rows = to_dense(validate.matrix(strategy=strategy))
    validate.moderate(strategy=rows)
    norms = np.einsum("pi,pi->i", rows, rows)
    slack = norms.max() - norms
    return np.vstack([rows, np.diag(np.sqrt(slack))[slack > COMPLETE * norms.max()]])


def relative_weights(workload: Workload, distribution: npt.ArrayLike | None = None) -> Array:
    """Return weights (m,) under which total variance stands for relative error: ``1 / (d Σ_i p_i w_ji²)``.

    A variance relative to the square of its answer needs the data. With p the share of the records in each cell,
    ``√(Σ_i p_i w_ji²)`` is how large query j is where the records are; at the uniform p, the default, the weights
    are ``1 / ‖w_j‖²``, as if every query had norm 1, the heuristic of EIG, section 3.4. (Its words for a known
    distribution, weights on the cells that are the inverse of p, would make rare queries count less: here they count
    more, as relative errors do.)
    Raises `InvalidInputError` or `InputTypeError` for a distribution of the wrong length, negative, or 0 wherever
    some query is not; the query is named.
    Returns an array (m,): for `TotalVariance` and `fast.eigen_design`; 0 for an all-zero query.

    - `workload`: W;
    - `distribution` (d,): p ≥ 0, whatever its sum.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.relative_weights(dm.workloads.identity_total(2))
    array([1. , 1. , 0.5])
    """
    check_workload(workload)
    cells = workload.shape[1]
    shares = np.full(cells, 1.0) if distribution is None else validate.finite(1, distribution=distribution)
    if len(shares) != cells or np.any(shares < 0) or not np.any(shares):
        raise InvalidInputError(
            f"distribution must be {cells} numbers of at least 0, one per cell, not all 0"
        )
    squares = np.asarray(abs(workload.matrix) ** 2 @ (shares * (cells / shares.sum())))
    norms = workload.row_norms()
    unseen = np.flatnonzero((squares == 0) & (norms > 0))
    if unseen.size:
        raise InvalidInputError(
            f"distribution must not be 0 wherever a query is not: query {workload.names[unseen[0]]!r} meets no record"
        )
    return np.where(norms > 0, 1 / np.where(norms > 0, squares, 1.0), 0.0)


def _strategy(strategy: npt.ArrayLike, workload: Workload) -> Array:
    check_workload(workload)
    rows = to_dense(validate.matrix(strategy=strategy))
    if rows.shape[1] != workload.shape[1]:
        raise InvalidInputError(
            f"strategy must have {workload.shape[1]} columns, one per cell, got {rows.shape[1]}"
        )
    validate.moderate(strategy=rows)
    if not np.any(rows):
        raise InvalidInputError("strategy must have at least one row that is not all zero")
    return rows
