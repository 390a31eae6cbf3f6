"""Total variance through CVXPY: the matrix mechanism's program stated, handed to a backend, repaired and judged.

Throughout, X (k, k) is ``Σ⁻¹``, the inverse of the covariance of the noise on B x, so that ``B' X B`` is the
cost matrix of the strategy; ``BU`` (k, s) holds the moves between neighbouring data sets in its columns, and
``V`` (m, k) the queries on B x in its rows, ``√w_j v_j``.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import scipy.linalg

from dualmech import linalg
from dualmech.errors import BackendError
from dualmech.problems.variance import TotalVariance, VarianceDual
from dualmech.reference.engine import attempts, backends
from dualmech.reference.engine.scaling import Scaled, make_definite, returned_array
from dualmech.reference.statements import label, variances
from dualmech.validate import Array

FORMULATIONS = ("gram", "schur", "matrix_frac")  # the statements by name; all need the semidefinite cone


def _write(problem: TotalVariance, formulation: str) -> cp.Problem:
    geometry, weights = problem.geometry, problem.weights[problem.asked]
    moves, queries = geometry.moves, geometry.representation * np.sqrt(weights)[:, None]
    if len(geometry.unmoved):
        # X would be infinite on what no neighbour moves: it is released exactly, and left out here.
        moved = scipy.linalg.null_space(geometry.unmoved)
        moves, queries = moved.T @ moves, queries @ moved
    return STATEMENTS[formulation](moves, queries)


def _read(problem: TotalVariance, formulation: str, request: attempts.BackendRequest) -> attempts.Readout:
    scaled = Scaled.of_sum(problem)
    program = STATEMENTS[formulation](scaled.moves, scaled.queries)
    return attempts.Readout(
        program,
        scaled,
        covariance=lambda: _inverse(program.var_dict["X"].value),
        dual=lambda privacy: VarianceDual(scaled.neighbour_weights(privacy)),
        constraints=("privacy",),
    )


def schur(moves: Array, queries: Array) -> cp.Problem:
    """State the problem with one linear matrix inequality, as the papers do.

    By the Schur complement, ``[[X, V'], [V, Y]] ⪰ 0`` says that ``Y ⪰ V X⁻¹ V'``, on whose diagonal the
    weighted variances stand. (Where X is singular, it says so on the range of X, which holds all of them.)
    """
    BU, V = cp.Constant(moves, name="BU"), cp.Constant(queries, name="V")
    X = cp.Variable((len(moves), len(moves)), symmetric=True, name="X")
    Y = cp.Variable((len(queries), len(queries)), symmetric=True, name="Y")
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
    X = cp.Variable((len(moves), len(moves)), symmetric=True, name="X")
    return cp.Problem(cp.Minimize(cp.matrix_frac(V.T, X)), [label("privacy", variances(BU.T, X) <= 1)])


STATEMENTS = {"gram": gram, "schur": schur, "matrix_frac": matrix_frac}

STATEMENT = attempts.Statement(lambda _: dict.fromkeys(FORMULATIONS, backends.SEMIDEFINITE), _write, _read)


def _inverse(cost: Array | None) -> Array:
    """Return ``Σ = X⁻¹``, X moved towards the identity where a backend left it indefinite."""
    factor = linalg.cholesky(make_definite(returned_array(cost)))
    if factor is None:
        raise BackendError("the backend returned no covariance to judge")
    half = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), check_finite=False)
    return np.asarray(half @ half.T)
