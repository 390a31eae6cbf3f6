"""Total variance as CVXPY programs: the problem of the matrix mechanism, in the form of the papers.

X (k, k) is ``Σ⁻¹``, the inverse of the covariance of the noise on B x, so that ``B' X B`` is the cost matrix of the
strategy. The columns b_i of ``BU`` (k, s) are the differences between neighbouring data sets, and the rows ``√w_j v_j``
of ``V`` (m, k) are the queries on B x.
"""

from __future__ import annotations

import scipy.linalg

from dualmech.reference import attempts, backends, cp
from dualmech.reference.attempts import label
from dualmech.reference.fitness import symmetric, variances
from dualmech.validate import Array


def schur(moves: Array, queries: Array) -> cp.Problem:
    """State the problem with one linear matrix inequality, as in the papers.

    In formulas: minimise ``tr(V X⁻¹ V')`` over ``X ≻ 0`` subject to ``b_i' X b_i ≤ 1``. As a program:

        minimise tr Y over X, Y subject to ``[[X, V'], [V, Y]] ⪰ 0``, ``b_i' X b_i ≤ 1``.

    By the Schur complement the matrix inequality is equivalent to ``Y ⪰ V X⁻¹ V'``, whose diagonal contains the
    weighted variances. (If X is singular, this holds on the range of X, which contains all rows of V.)

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
    """State the problem with the Gram matrix of the queries, in a size independent of their number.

    With ``V = Q R``, the columns of Q (m, k) orthonormal, ``tr(V X⁻¹ V') = tr(R X⁻¹ R')``: the triangle R replaces V.
    """
    return schur(moves, scipy.linalg.qr(queries, mode="r", check_finite=False)[0][: queries.shape[1]])


def matrix_frac(moves: Array, queries: Array) -> cp.Problem:
    """State the problem with the total variance ``tr(V X⁻¹ V')`` as a matrix fraction."""
    BU, V = cp.Constant(moves, name="BU"), cp.Constant(queries, name="V")
    X = symmetric("X", len(moves))
    return cp.Problem(cp.Minimize(cp.matrix_frac(V.T, X)), [label("privacy", variances(BU.T, X) <= 1)])


def logdet(moves: Array, queries: Array, sharpness: float) -> cp.Problem:
    """State the centring problem of an interior-point method, with logarithms in place of the inequalities.

    For the sharpness t > 0, with slacks p_i in place of ``1 − b_i' X b_i``,

        minimise ``tr(V X⁻¹ V') − (Σ_i log p_i + log det X) / t`` subject to ``b_i' X b_i + p_i ≤ 1``.

    At the centre the multipliers ``λ_i = 1 / (t p_i)`` are dual weights, and prove a bound at most ``(s + k)/t`` below.
    Proof: ``h(A) = tr(V A⁻¹ V') + Σ_i λ_i (b_i' A b_i − 1)`` is convex, with the derivative ``X⁻¹ / t`` at the centre X
    and the value ``h(X) = tr(V X⁻¹ V') − s/t``. So ``h(A) ≥ h(X) + tr(X⁻¹ (A − X))/t ≥ h(X) − k/t`` for all A ≻ 0, and
    if A has cost at most 1, h(A) is at most its total variance. The parameter 1/t may be changed in place.
    """
    program = gram(moves, queries)
    X, p = program.var_dict["X"], cp.Variable(moves.shape[1], name="p")
    schur_line, privacy = program.constraints
    inverse_sharpness = cp.Parameter(nonneg=True, name="1/t", value=1 / sharpness)
    barrier = -cp.sum(cp.log(p)) - cp.log_det(X)
    limit = label("privacy", privacy.args[0] + p <= privacy.args[1])
    return cp.Problem(cp.Minimize(program.objective.args[0] + inverse_sharpness * barrier), [schur_line, limit])


PROGRAMS = {"gram": gram, "schur": schur, "matrix_frac": matrix_frac}
CONES_BY_FORMULATION = {
    **dict.fromkeys(PROGRAMS, backends.SEMIDEFINITE),
    "logdet": backends.SEMIDEFINITE | {"ExpCone"},
}
"""The formulations by name, with the cones that they need besides linear ones."""


def state(formulation: str, moves: Array, queries: Array, sharpness: float = attempts.DEFAULT_SHARPNESS) -> cp.Problem:
    return logdet(moves, queries, sharpness) if formulation == "logdet" else PROGRAMS[formulation](moves, queries)
