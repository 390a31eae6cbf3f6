"""Total variance as CVXPY programs: the matrix mechanism's problem, as the papers state it.

Throughout, X (k, k) is ``Σ⁻¹``, the inverse of the covariance of the noise on B x, so that ``B' X B`` is the
cost matrix of the strategy; ``BU`` (k, s) holds the moves b_i between neighbouring data sets in its columns, and
``V`` (m, k) the queries on B x in its rows, ``√w_j v_j``.
"""

from __future__ import annotations

import cvxpy as cp
import scipy.linalg

from dualmech.reference.attempts import label
from dualmech.reference.fitness import symmetric, variances
from dualmech.validate import Array


def schur(moves: Array, queries: Array) -> cp.Problem:
    """State the problem with one linear matrix inequality, as the papers do.

    In formulas: minimise ``tr(V X⁻¹ V')`` over ``X ≻ 0`` subject to ``b_i' X b_i ≤ 1``. As a program:

        minimise tr Y over X, Y subject to ``[[X, V'], [V, Y]] ⪰ 0``, ``b_i' X b_i ≤ 1``.

    By the Schur complement the matrix inequality says that ``Y ⪰ V X⁻¹ V'``, on whose diagonal the weighted variances
    stand. (Where X is singular, it says so on the range of X, which holds all of them.)

    Examples
    --------
    >>> import dualmech as dm, numpy as np
    >>> problem = dm.TotalVariance(dm.workloads.prefix(2))
    >>> program = schur(problem.geometry.moves, problem.geometry.representation)
    >>> _, X = program.solve(solver="CLARABEL"), program.var_dict["X"].value
    >>> weights = program.constraints[1].dual_value
    >>> problem.certify(problem.feasible(np.linalg.inv(X)), problem.as_dual(weights / weights.sum())).gap < 1e-6
    True
    """
    BU, V = cp.Constant(moves, name="BU"), cp.Constant(queries, name="V")
    X, Y = symmetric("X", len(moves)), symmetric("Y", len(queries))
    return cp.Problem(
        cp.Minimize(cp.trace(Y)),
        [label("schur", cp.bmat([[X, V.T], [V, Y]]) >> 0), label("privacy", variances(BU.T, X) <= 1)],
    )


def gram(moves: Array, queries: Array) -> cp.Problem:
    """State the problem on the Gram matrix of the queries alone: its size knows nothing of their number.

    With ``V = Q R``, the columns of Q (m, k) orthonormal, ``tr(V X⁻¹ V') = tr(R X⁻¹ R')``: the triangle R
    takes the place of V.
    """
    return schur(moves, scipy.linalg.qr(queries, mode="r", check_finite=False)[0][: queries.shape[1]])


def matrix_frac(moves: Array, queries: Array) -> cp.Problem:
    """State the problem with the total variance ``tr(V X⁻¹ V')`` as a matrix fraction."""
    BU, V = cp.Constant(moves, name="BU"), cp.Constant(queries, name="V")
    X = symmetric("X", len(moves))
    return cp.Problem(cp.Minimize(cp.matrix_frac(V.T, X)), [label("privacy", variances(BU.T, X) <= 1)])


PROGRAMS = {"gram": gram, "schur": schur, "matrix_frac": matrix_frac}
