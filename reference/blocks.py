"""Unions of product tables through CVXPY: the cone programs over blocks, whatever the number of cells.

Throughout, the arrays are those of `dualmech.reference.engine.block_units`: τ (t,) holds the noise levels of the blocks
of one coordinate, and ``K[b]`` (r, r) the covariance of each other block.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.reference.engine import attempts
from dualmech.reference.engine.block_units import FLOOR, BlockUnits, Stated
from dualmech.reference.engine.scaling import returned_array
from dualmech.reference.statements import label, variances
from dualmech.validate import Array

FORMULATIONS = ("schur", "matrix_frac")


def _write(problem: Any, name: str) -> cp.Problem:
    stated = Stated.of(problem.geometry)
    if isinstance(problem, TotalVariance):
        return least_total(stated, problem.geometry.orbit_weights(problem.weights), name)
    limits = problem.targets[problem.geometry.tables]
    if isinstance(problem, PrivacyFirst):
        return privacy_first(stated, limits, problem.cost, name)
    if name == "dual":
        reach = np.asarray(stated.R.sum(axis=0))
        return best_bound(stated.N.multiply(1 / limits[:, None]).multiply(reach).tocsr())
    return accuracy_first(stated, limits, name)


def _read(
    problem: FitnessForUse | TotalVariance, formulation: str, request: attempts.BackendRequest
) -> attempts.Readout:
    scaled = BlockUnits.of(problem)
    if formulation == "dual":
        return _bound_reading(scaled)
    fitness = not isinstance(problem, TotalVariance)
    state, limits = (accuracy_first, scaled.ones) if fitness else (least_total, scaled.ones / scaled.total)
    program = state(scaled.stated, limits, formulation)
    return attempts.Readout(
        program,
        scaled,
        covariance=lambda: scaled.noise_vector(program.var_dict),
        dual=scaled.dual,
        constraints=("privacy", "accuracy") if fitness else ("privacy",),
    )


def _cones(problem: Any) -> dict[str, frozenset[str]]:
    """Return what each statement needs; `dual` is for fitness for use of blocks that all have one coordinate."""
    blocks = problem.geometry
    needed = frozenset({"SOC", "PSD"} if blocks.matrix_blocks else {"SOC"})
    plain = isinstance(problem, FitnessForUse) and not blocks.matrix_blocks and blocks.reach.shape[0] == 1
    return dict.fromkeys((*FORMULATIONS, "dual") if plain else FORMULATIONS, needed)


def best_bound(sensitivities: sp.csr_array) -> cp.Problem:
    """State the best bound ``√α`` of blocks of one coordinate: with N over targets, maximise ``Σ_t √(N'm)_t``."""
    N = cp.Constant(sensitivities, name="N")
    m = cp.Variable(sensitivities.shape[0], nonneg=True, name="m")
    return cp.Problem(cp.Maximize(cp.sum(cp.sqrt(N.T @ m))), [label("spent", cp.sum(m) <= 1)])


def _bound_reading(scaled: BlockUnits) -> attempts.Readout:
    """Read `best_bound`: its weights are the dual's, and ask for the noise ``τ_t ∝ 1/√(N'm)_t``."""
    # A cost of 1/τ there is R/τ here.
    reach = np.asarray(scaled.stated.R.sum(axis=0)).ravel()
    sensitivities = sp.csr_array(scaled.stated.N.multiply(reach[None, :]))
    program = best_bound(sensitivities)

    def weights() -> Array:
        found = returned_array(program.var_dict["m"].value, "weights")
        return np.maximum(found, FLOOR * np.max(found))

    return attempts.Readout(
        program,
        scaled,
        covariance=lambda: reach / np.sqrt(sensitivities.T @ weights()),
        dual=lambda _: scaled.dual(np.ones(1), weights()),
        constraints=("spent",),
        optimum=lambda value: value**2,
    )


def accuracy_first(stated: Stated, targets: Array, formulation: str) -> cp.Problem:
    """State the least privacy cost of noise that meets the targets c of orbits of queries."""
    alpha, c = cp.Variable(name="alpha"), cp.Constant(targets, name="c")
    costs, seen, bounds = _forms(stated, formulation)
    return cp.Problem(
        cp.Minimize(alpha), [*bounds, label("privacy", costs <= alpha), label("accuracy", seen <= c)]
    )


def privacy_first(stated: Stated, targets: Array, cost: float, formulation: str) -> cp.Problem:
    """State the least factor κ on the targets c of orbits of queries, of noise of a given privacy cost."""
    kappa, c = cp.Variable(name="kappa"), cp.Constant(targets, name="c")
    costs, seen, bounds = _forms(stated, formulation)
    return cp.Problem(
        cp.Minimize(kappa), [*bounds, label("privacy", costs <= cost), label("accuracy", seen <= kappa * c)]
    )


def least_total(stated: Stated, weights: Array, formulation: str) -> cp.Problem:
    """State the least total of variances, each orbit of queries with its weight w, of noise that costs at most 1."""
    w = cp.Constant(weights, name="w")
    costs, seen, bounds = _forms(stated, formulation)
    return cp.Problem(cp.Minimize(w @ seen), [*bounds, label("privacy", costs <= 1)])


def _forms(stated: Stated, formulation: str) -> tuple[cp.Expression, cp.Expression, list[cp.Constraint]]:
    """Return costs of orbits of cells, variances of orbits of queries, and the cones that keep the costs above theirs.

    A reciprocal is a second-order cone. By the Schur complement ``[[K, M], [M', Z]] ⪰ 0`` says that ``Z ⪰ M' K⁻¹ M``,
    on whose diagonal the costs stand; ``matrix_frac`` says ``m' K⁻¹ m`` of every column of M instead.
    """
    costs, seen, bounds = [], [], []
    if stated.N.shape[1]:
        tau = cp.Variable(stated.N.shape[1], name="tau")
        costs.append(cp.Constant(stated.R, name="R") @ cp.inv_pos(tau))
        seen.append(cp.Constant(stated.N, name="N") @ tau)
    for index, (M, V, C, Q) in enumerate(zip(stated.M, stated.V, stated.C, stated.Q, strict=True)):
        K = cp.Variable((len(M), len(M)), symmetric=True, name=f"K[{index}]")
        if formulation == "schur":
            Z = cp.Variable((M.shape[1], M.shape[1]), symmetric=True, name=f"Z[{index}]")
            bounds.append(label(f"schur[{index}]", cp.bmat([[K, M], [M.T, Z]]) >> 0))
            paid: cp.Expression = cp.diag(Z)
        else:
            paid = cp.hstack([cp.matrix_frac(column, K) for column in M.T])
        costs.append(cp.Constant(C, name=f"C[{index}]") @ paid)
        seen.append(cp.Constant(Q, name=f"Q[{index}]") @ variances(cp.Constant(V, name=f"V[{index}]"), K))
    return sum(costs), sum(seen), bounds


STATEMENT = attempts.Statement(_cones, _write, _read)
