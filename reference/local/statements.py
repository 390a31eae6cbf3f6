"""Local privacy as CVXPY programs over all extremal patterns.

Throughout, ``P`` (s, n) holds the patterns p_S in its rows, ``R`` (k, n) a root of the workload, ``R'R = W'W``,
``share`` (n,) n times the prior, ``w`` (s,) the weights of the patterns and ``U`` (k, s) the reconstruction of each
times its weight. One user's second moment, averaged over the prior, is ``Σ_S ‖U_S‖² (share'p_S) / (n w_S)``.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np

from dualmech.reference.statements import label
from dualmech.validate import Array


def sdp(patterns: Array, directions: Array, root: Array) -> cp.Problem:
    """State the average case with one linear matrix inequality, ``tr(R G⁻¹ R')`` being the least trace of T.

    The rows of `directions` (s, r) are ``p_S / √(share'p_S)``, in any coordinates: ``G = Σ_S w_S a_S a_S'``.
    """
    P, R = cp.Constant(patterns, name="P"), cp.Constant(root, name="R")
    size = directions.shape[1]
    products = np.einsum("si,sj->ijs", directions, directions).reshape(size**2, -1)
    w = cp.Variable(len(patterns), name="w", nonneg=True)
    T = cp.Variable((len(root), len(root)), name="T", symmetric=True)
    G = cp.reshape(products @ w, (size, size), order="C")
    return cp.Problem(
        cp.Minimize(cp.trace(T)),
        [label("schur", cp.bmat([[G, R.T], [R, T]]) >> 0), label("columns", P.T @ w == 1)],
    )


def socp(patterns: Array, root: Array, share: Array) -> cp.Problem:
    """State the average case in second-order cones: ``‖U_S‖² ≤ w_S s_S`` is ``‖(2 U_S, w_S - s_S)‖ ≤ w_S + s_S``."""
    P, R, shares = cp.Constant(patterns, name="P"), cp.Constant(root, name="R"), cp.Constant(share)
    w, s = cp.Variable(len(patterns), name="w"), cp.Variable(len(patterns), name="s")
    U = cp.Variable((len(root), len(patterns)), name="U")
    return cp.Problem(
        cp.Minimize((P @ shares) @ s),
        [label("unbiased", U @ P == R), label("columns", P.T @ w == 1), label("moments", _cones(w, s, U))],
    )


def socp_worst(patterns: Array, root: Array, share: Array) -> cp.Problem:
    """State the worst case in second-order cones: t is at least the variance of every user type."""
    P, R = cp.Constant(patterns, name="P"), cp.Constant(root, name="R")
    w, s = cp.Variable(len(patterns), name="w"), cp.Variable(len(patterns), name="s")
    U = cp.Variable((len(root), len(patterns)), name="U")
    t = cp.Variable(name="t")
    return cp.Problem(
        cp.Minimize(t),
        [
            label("unbiased", U @ P == R),
            label("columns", P.T @ w == 1),
            label("moments", _cones(w, s, U)),
            label("users", P.T @ s - np.square(root).sum(axis=0) <= t),
        ],
    )


def dual(patterns: Array, root: Array, share: Array) -> cp.Problem:
    """State the dual of the average case: ``‖Z'p_S‖² ≤ (y'p_S)(share'p_S)`` for every pattern."""
    P, R, shares = cp.Constant(patterns, name="P"), cp.Constant(root, name="R"), cp.Constant(share)
    Z, y = cp.Variable(root.T.shape, name="Z"), cp.Variable(root.shape[1], name="y")
    return cp.Problem(
        cp.Maximize(2 * cp.trace(Z @ R) - cp.sum(y)),
        [label("patterns", _cones(P @ y, P @ shares, (P @ Z).T))],
    )


def dual_worst(patterns: Array, root: Array, share: Array) -> cp.Problem:
    """State the dual of the worst case, in which the adversary chooses the share of each user type."""
    P, R = cp.Constant(patterns, name="P"), cp.Constant(root, name="R")
    size = root.shape[1]
    Z, y = cp.Variable(root.T.shape, name="Z"), cp.Variable(size, name="y")
    shares = cp.Variable(size, name="share", nonneg=True)
    known = np.square(root).sum(axis=0)
    return cp.Problem(
        cp.Maximize((2 * cp.trace(Z @ R) - cp.sum(y) - known @ shares) / size),
        [label("patterns", _cones(P @ y, P @ shares, (P @ Z).T)), label("prior", cp.sum(shares) == size)],
    )


STATEMENTS = {
    ("average", "socp"): socp,
    ("average", "dual"): dual,
    ("worst", "socp"): socp_worst,
    ("worst", "dual"): dual_worst,
}


def _cones(first: cp.Expression, second: cp.Expression, vectors: cp.Expression) -> cp.Constraint:
    """Return ``‖v_S‖² ≤ first_S second_S`` for the columns v_S of `vectors`, as second-order cones."""
    difference = cp.reshape(first - second, (1, first.size), order="F")
    return cp.SOC(first + second, cp.vstack([2 * vectors, difference]), axis=0)
