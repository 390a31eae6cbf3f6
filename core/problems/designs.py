"""Design queries to choose weights for (`dualmech.QueryWeighting`): the eigen-queries of a workload.

Any rows serve as a design, a workload's own and those of a wavelet among them; `dualmech.fast.eigen_design` takes the
eigen-queries.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.streams import RangeWorkload, SineWorkload

__all__ = ["eigen_queries"]

GRADED = 1e-12
"""Ratio of eigenvalues of a Gram matrix below which the eigenvectors are taken from the queries themselves."""

NEGLIGIBLE = 1e-30
"""Entries of a unit vector below this are written as 0: far below rounding, and too small for a problem's data."""


def eigen_queries(workload: Workload) -> Array:
    """Return the eigenvectors of ``W'W`` whose eigenvalues are not zero: (k, d), orthonormal rows, k the rank.

    They stand in the order of falling eigenvalues, and the largest entry of each is positive. Where eigenvalues
    coincide, eigenvectors are not unique, and neither is what weighting them achieves. Those of all ranges are
    `dualmech.workloads.sines`, which need no matrix.
    Raises `InvalidInputError` or `InputTypeError` for what is no workload, an all-zero one, or one that is too large to
    write out and lacks full column rank.
    Source: definition 6 of Li and Miklau, "An adaptive mechanism for accurate query answering under differential
    privacy", PVLDB 5(6), 2012; zero eigenvalues are dropped as in their section 4.1.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.designs.eigen_queries(dm.workloads.identity_total(2)).round(4)
    array([[ 0.7071,  0.7071],
           [ 0.7071, -0.7071]])
    """
    if isinstance(check_workload(workload), RangeWorkload):
        return _with_fixed_signs(SineWorkload(workload.shape[1]).matrix)
    validate.moderate(workload=workload.matrix)
    if not np.any(workload.row_norms()):
        raise InvalidInputError("workload must have at least one query that is not all zero")
    queries, cells = workload.shape
    if queries >= cells:
        values, vectors = scipy.linalg.eigh(workload.gram(), check_finite=False)
        if values[0] > GRADED * values[-1]:
            return _with_fixed_signs(vectors[:, ::-1].T)
    return _with_fixed_signs(_right_singular_vectors(workload.dense()))


def _right_singular_vectors(queries: Array) -> Array:
    """Return orthonormal rows that span the rows of W and are its right singular vectors, however it is scaled.

    The span is that of the rows at unit norm; within it, a triangle stands for W, its long rows reflected first.
    """
    basis = linalg.row_space(queries)
    inner = queries @ basis.T
    order = np.argsort(-np.linalg.norm(inner, axis=1), kind="stable")
    triangle = scipy.linalg.qr(inner[order], mode="r", check_finite=False)[0][: len(basis)]
    _, _, right = linalg.svd(triangle, full_matrices=True)
    return np.asarray(right @ basis)


def _with_fixed_signs(rows: Array) -> Array:
    """Return the rows, entries below rounding set to zero, with the sign that makes the largest magnitude positive."""
    rows = np.where(np.abs(rows) > NEGLIGIBLE, rows, 0.0)
    largest = rows[np.arange(len(rows)), np.argmax(np.abs(rows), axis=1)]
    return np.ascontiguousarray(rows * np.sign(largest)[:, None])
